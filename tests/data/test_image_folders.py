"""Folders of images as people have them, and every way in which one can be wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from kontrast.data import load, load_parts
from kontrast.errors import DataError, InputError
from tests.cases import generator
from tests.data.test_files import broken, read_or_refused, refusal

fuzzed = settings(deadline=None, max_examples=60)


def pixels(height: int = 4, width: int = 5, *, channels: int = 0, seed: int = 0) -> np.ndarray:
    shape = (height, width, channels) if channels else (height, width)
    return torch.randint(0, 256, shape, generator=generator(seed)).numpy().astype(np.uint8)


def write(path: Path, image: np.ndarray | Image.Image | None = None, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = pixels() if image is None else image
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(path, **options)
    return path


def labels_of(folder: Path, **options: object) -> list[int]:
    return load(folder, **options).y.tolist()


# Reading


@pytest.mark.parametrize("channels", [0, 3])
def test_images_in_the_order_of_their_names_scaled_to_one(tmp_path, channels):
    images = {name: pixels(channels=channels, seed=k) for k, name in enumerate(["b.png", "a.PNG", "c10.png", "c9.png"])}
    for name, image in images.items():
        write(tmp_path / name, image)
    data = load(tmp_path, dtype="float64")
    expected = np.stack([images[name] for name in sorted(images)]) / 255
    expected = expected.transpose(0, 3, 1, 2) if channels else expected[:, None]
    torch.testing.assert_close(data.x, torch.from_numpy(expected))
    assert data.y is None
    assert data.x.shape == (4, channels or 1, 4, 5)


@pytest.mark.parametrize("suffix", [".jpg", ".jpeg", ".JPG"])
def test_photographs_are_read_as_pillow_decodes_them(tmp_path, suffix):
    path = write(tmp_path / f"a{suffix}", pixels(16, 24, channels=3), format="JPEG")
    with Image.open(path) as image:
        expected = np.asarray(image).transpose(2, 0, 1)
    torch.testing.assert_close(load(tmp_path).x[0], torch.from_numpy(expected / 255).float())


def test_every_folder_is_a_class(tmp_path):
    for k, (name, n) in enumerate({"dog": 2, "cat": 1, "Zebra": 2}.items()):
        for number in range(n):
            write(tmp_path / name / f"{number}.png", pixels(seed=10 * k + number))
    assert labels_of(tmp_path) == [0, 0, 1, 2, 2]  # sorted as text is: Zebra, cat, dog
    torch.testing.assert_close(load(tmp_path).x[2, 0] * 255, torch.from_numpy(pixels(seed=10)).float())


@pytest.mark.parametrize(
    "names, labels", [(["0", "7", "10"], [0, 10, 7]), (["-1", "01", "3"], [-1, 1, 3]), (["1", "01", "2"], [0, 1, 2])]
)
def test_classes_that_are_called_by_numbers_keep_them_unless_two_are_one(tmp_path, names, labels):
    for name in names:
        write(tmp_path / name / "a.png")
    assert labels_of(tmp_path) == labels


def test_train_and_test_are_splits_that_share_their_classes(tmp_path):
    for name, seed in (("train/b/1.png", 1), ("train/c/2.png", 2), ("Test/a/3.png", 3), ("Test/c/4.png", 4)):
        write(tmp_path / name, pixels(seed=seed))
    assert [labels_of(tmp_path, split=split) for split in ("train", "test", "all")] == [[1, 2], [0, 2], [1, 2, 0, 2]]
    parts = load_parts(tmp_path)
    assert {name: part.y.tolist() for name, part in parts.items()} == {"train": [1, 2], "test": [0, 2]}
    assert torch.equal(load(tmp_path, split="all").x, torch.cat([part.x for part in parts.values()]))
    assert list(load_parts(tmp_path / "train")) == ["all"]


def test_splits_without_classes_and_one_split_alone(tmp_path):
    write(tmp_path / "test" / "a.png")
    assert "has no folder train; ask for split='test'" in refusal(tmp_path)
    assert load(tmp_path, split="all").y is None
    write(tmp_path / "train" / "a.png")
    assert list(load_parts(tmp_path)) == ["train", "test"]
    write(tmp_path / "mixed" / "train" / "a" / "a.png")
    write(tmp_path / "mixed" / "test" / "a.png")
    assert load(tmp_path / "mixed", split="test").y is None
    assert "folders of classes in train alone; ask for split='train'" in refusal(tmp_path / "mixed", split="all")


def test_a_class_may_be_called_train(tmp_path):
    for name in ("bus", "train"):
        write(tmp_path / name / "a.png")
    assert labels_of(tmp_path) == [0, 1]
    assert list(load_parts(tmp_path)) == ["all"]


def test_labels_may_come_in_a_file_of_their_own(tmp_path):
    for k in range(3):
        write(tmp_path / "images" / f"{k}.png")
    np.save(tmp_path / "y.npy", np.array([2, 0, 1]))
    assert load_parts(tmp_path / "images", labels=str(tmp_path / "y.npy"))["all"].y.tolist() == [2, 0, 1]


def test_what_is_hidden_and_what_is_no_data_is_left_out(tmp_path):
    write(tmp_path / "a.png")
    for name in (".DS_Store", "._a.png", ".labels.csv", "README.md", "Thumbs.db"):
        (tmp_path / name).write_bytes(b"no image")
    (tmp_path / ".cache").mkdir()
    assert len(load(tmp_path)) == 1


# Modes


def modes() -> dict[str, Image.Image]:
    gray, color = Image.fromarray(pixels()), Image.fromarray(pixels(channels=3))
    deep = Image.fromarray(pixels().astype(np.uint16) * 257)
    alpha = color.convert("RGBA")
    alpha.putalpha(gray)
    palette = color.quantize(16)
    palette.info["transparency"] = bytes(range(16))
    return {
        "1": gray.convert("1"),
        "L": gray,
        "LA": gray.convert("LA"),
        "I;16": deep,
        "RGB": color,
        "RGBA": alpha,
        "P": palette,
    }


@pytest.mark.parametrize("mode", ["1", "L", "LA", "I;16"])
def test_gray_images_have_one_channel(tmp_path, mode):
    write(tmp_path / "a.png", modes()[mode])
    x = load(tmp_path).x
    assert x.shape == (1, 1, 4, 5)
    expected = np.asarray(modes()[mode].convert("1")) * 255 if mode == "1" else pixels()
    torch.testing.assert_close(x[0, 0] * 255, torch.from_numpy(expected.astype(np.float32)))


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P"])
def test_other_images_are_red_green_and_blue_without_transparency(tmp_path, mode):
    image = modes()[mode]
    write(tmp_path / "a.png", image)
    expected = pixels(channels=3) if mode != "P" else np.array(image.convert("RGBA"))[..., :3]
    torch.testing.assert_close(load(tmp_path).x[0] * 255, torch.from_numpy(expected.transpose(2, 0, 1)).float())


def test_where_one_image_has_colours_all_are_rgb_over_all_splits(tmp_path):
    write(tmp_path / "train" / "a.png", pixels())
    write(tmp_path / "test" / "b.png", pixels(channels=3))
    x = load(tmp_path, split="train").x
    assert x.shape == (1, 3, 4, 5)
    torch.testing.assert_close(x[0, 2] * 255, torch.from_numpy(pixels()).float())
    write(tmp_path / "cmyk" / "a.jpg", Image.fromarray(pixels(channels=3)).convert("CMYK"))
    assert load(tmp_path / "cmyk").x.shape == (1, 3, 4, 5)


def test_a_camera_that_was_held_on_its_side(tmp_path):
    turned = Image.Exif()
    turned[0x0112] = 6  # to be turned a quarter clockwise
    write(tmp_path / "a.jpg", pixels(16, 24), exif=turned, quality=100)
    x = load(tmp_path).x
    assert x.shape == (1, 1, 24, 16)
    expected = torch.from_numpy(pixels(16, 24) / 255).float().rot90(-1)
    assert (x[0, 0] - expected).abs().mean() < 0.02  # JPEG keeps no image to the bit


# Sizes


def test_two_sizes_are_refused_with_both_files_and_resized_on_demand(tmp_path):
    write(tmp_path / "cat" / "a.png", pixels(4, 5))
    write(tmp_path / "dog" / "b.png", pixels(6, 8, seed=1))
    message = refusal(tmp_path)
    assert "cat/a.png of 4×5 pixels (height×width) and dog/b.png of 6×8" in message
    assert "pass image_shape=(4, 5)" in message
    data = load(tmp_path, image_shape=(4, 5))
    assert data.x.shape == (2, 1, 4, 5)
    torch.testing.assert_close(data.x[0, 0] * 255, torch.from_numpy(pixels()).float())
    small = Image.fromarray(pixels(6, 8, seed=1)).resize((5, 4), Image.Resampling.BILINEAR)
    torch.testing.assert_close(data.x[1, 0] * 255, torch.from_numpy(np.array(small)).float())


@pytest.mark.parametrize("shape, expected", [((3, 4, 5), (3, 4, 5)), ((1, 2, 3), (1, 2, 3)), ((7, 6), (3, 7, 6))])
def test_an_image_shape_may_ask_for_channels(tmp_path, shape, expected):
    write(tmp_path / "a.png", pixels(channels=3))
    assert load(tmp_path, image_shape=shape).x.shape == (1, *expected)


def test_image_shapes_that_no_image_can_have_are_refused(tmp_path):
    write(tmp_path / "a.png")
    assert "of 1 channel (gray) or 3 (RGB), got image_shape (2, 4, 5)" in refusal(tmp_path, image_shape=(2, 4, 5))
    for nonsense in [(0, 5), (5,), 5]:
        with pytest.raises(InputError, match=r"image_shape must be \(h, w\) or \(c, h, w\)"):
            load(tmp_path, image_shape=nonsense)


# What is refused


def test_files_that_are_no_images_say_so(tmp_path):
    path = write(tmp_path / "a.png", pixels(40, 50))
    content = path.read_bytes()
    for bad, said in (
        (b"", "a.png is empty (0 bytes)"),
        (b"<html>404</html>", "a.png holds neither a PNG nor a JPEG image; save it again as one"),
        (content[: len(content) // 2], "a.png is not a readable PNG or JPEG image (image file is truncated"),
    ):
        path.write_bytes(bad)
        assert said in refusal(tmp_path)
    write(tmp_path / "b.gif", pixels()).rename(path)
    assert "holds neither a PNG nor a JPEG image" in refusal(tmp_path)


def test_an_image_beyond_pillows_limit_is_refused(tmp_path, monkeypatch):
    write(tmp_path / "a.png", pixels(40, 50))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 999)
    assert "a.png is too large (Image size (2000 pixels) exceeds limit" in refusal(tmp_path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1999)  # only a warning to Pillow
    assert len(load(tmp_path)) == 1


@fuzzed
@given(data=st.data(), suffix=st.sampled_from([".png", ".jpg"]))
def test_a_broken_image_is_read_or_refused(tmp_path_factory, data, suffix):
    folder = tmp_path_factory.mktemp("broken")
    path = write(folder / f"a{suffix}", pixels(6, 7, channels=3))
    path.write_bytes(broken(data, path.read_bytes()))
    read_or_refused(folder)


LAYOUTS = {
    "a csv beside images": (["a.png", "y.csv"], "holds y.csv beside images"),
    "an array beside images": (["a.png", "x.npy"], "holds x.npy beside images"),
    "idx beside images": (["a.png", "train-images-idx3-ubyte"], "holds train-images-idx3-ubyte beside images"),
    "another kind of image": (["a.png", "b.WebP"], "holds b.WebP beside images"),
    "a csv beside classes": (["cat/a.png", "labels.csv"], "holds labels.csv beside folders of images"),
    "a csv beside splits": (["train/a.png", "labels.csv"], "holds labels.csv beside folders of images"),
    "images beside classes": (["cat/a.png", "b.png"], "holds cat beside images"),
    "images beside splits": (["train/a.png", "b.png"], "holds b.png beside folders of images"),
    "a csv in a class": (["cat/a.png", "cat/y.csv"], "cat holds y.csv beside the images of a class"),
    "a folder in a class": (["cat/a.png", "cat/old/b.png"], "cat holds old beside the images of a class"),
    "an empty class": (["cat/a.png", "dog/"], "dog holds no .png or .jpg image, as a folder of a class must"),
    "a class of text": (["cat/a.png", "dog/a.txt"], "dog holds no .png or .jpg image"),
    "an empty split": (["train/a.png", "test/"], "test holds no .png or .jpg image; fill it, or remove it"),
    "a third split": (
        ["train/a.png", "val/a.png"],
        "splits called train and test alone, got val; give one folder itself",
    ),
    "folders too deep": (["animals/cat/a.png"], "holds no file; it must hold x.npy"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_folders_that_cannot_be_meant_are_refused(tmp_path, name):
    places, said = LAYOUTS[name]
    for place in places:
        path = tmp_path / place
        if place.endswith("/"):
            path.mkdir()
        elif path.suffix == ".png":
            write(path)
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text("1,2")
    assert said in refusal(tmp_path)
    with pytest.raises(DataError):
        load_parts(tmp_path)


def test_names_of_columns_and_keys_are_refused(tmp_path):
    write(tmp_path / "a.png")
    assert "has no columns, so none called 'y'; leave label_column out" in refusal(tmp_path, label_column="y")
    assert "so it has no key 'x'; leave x_key out" in refusal(tmp_path, x_key="x")


def test_a_folder_of_text_is_no_folder_of_images(tmp_path):
    (tmp_path / "notes").mkdir()
    np.save(tmp_path / "x.npy", np.zeros((4, 3)))
    assert load(tmp_path).x.shape == (4, 3)
