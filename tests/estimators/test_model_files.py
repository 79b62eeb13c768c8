"""Models in files: the same numbers back to the last bit, or a clear error."""

from __future__ import annotations

import json
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from kontrast.data import Affine, GaussianNoise
from kontrast.errors import DataError, InputError, StoreError
from kontrast.estimators import (
    ContrastivePCA,
    DeepLinearSSL,
    Fourier,
    Patches,
    SpectralContrastive,
    load_model,
    model_files,
    save_model,
)
from kontrast.nets import Activation
from tests.estimators.made_data import pictures, rows

ROWS = {
    "random": ContrastivePCA(2, width=16),
    "deep": ContrastivePCA(2, width=16, depth=3, activation="leaky_relu:0.2", negatives=3, n_positives=2),
    "dot": SpectralContrastive(2, width=16, similarity="dot", power=0.5, ridge=1e-3, n_views=2),
    "fourier": SpectralContrastive(2, width=16, features="fourier", random_state=5),
    "fourier of a length": ContrastivePCA(2, width=16, features=Fourier(2.0), delta=1e-3),
    "inf": ContrastivePCA(2),
    "inf deep": ContrastivePCA(2, activation="erf", depth=2, similarity="dot"),
    "inf fourier": ContrastivePCA(2, features="fourier"),
    "landmarks": ContrastivePCA(2, n_landmarks=9),
    "inf spectral": SpectralContrastive(2, width=math.inf),
    "inf spectral fourier": SpectralContrastive(2, width=math.inf, features="fourier", n_landmarks=12),
    "linear": DeepLinearSSL(2),
    "linear for a time": DeepLinearSSL(2, time=0.1, flow="polar", depth=2, width=9, negatives=3, random_state=4),
    "linear, nothing repelled": DeepLinearSSL(2, time=0.0, contrastive=False, n_positives=2),
}
IMAGES = {
    "patches": SpectralContrastive(2, width=8, features="patches", n_views=2),
    "patches with options": ContrastivePCA(
        2,
        width=8,
        features=Patches(4, 2, 0.1, two_sided=True, contrast_floor=0.03),
        image_shape=(8, 8),
        views=Affine(5.0, 0.1, 0.05),
    ),
    "random": SpectralContrastive(2, width=16, views="crop+noise:0.05", n_views=2),
    "linear": DeepLinearSSL(2, time=1.0, flow="oja"),
}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return ContrastivePCA(2, width=8).fit(rows()).save(tmp_path / "model.npz")


def check_round_trip(model: object, x: np.ndarray, path: Path) -> None:
    model.fit(x)
    assert model.save(path) == path
    again = load_model(path)
    assert type(again) is type(model)
    np.testing.assert_array_equal(again.transform(x), model.transform(x))
    assert again.transform(x).dtype == model.transform(x).dtype
    new = x[:3] * 0.9
    np.testing.assert_array_equal(again.transform(new), model.transform(new))
    for name in ("components_", "eigenvalues_", "mean_", "kernel_error_", "eigenvalue_errors_", "n_features_in_"):
        np.testing.assert_array_equal(getattr(again, name), getattr(model, name))
    assert list(again.get_feature_names_out()) == list(model.get_feature_names_out())
    again.save(path)
    np.testing.assert_array_equal(load_model(path).transform(x), model.transform(x))
    with zipfile.ZipFile(path) as archive:
        assert not any(b"pickle" in archive.read(name) for name in archive.namelist())
    assert [found.name for found in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ROWS)
def test_models_of_rows_come_back_to_the_last_bit(kind: str, dtype: str, tmp_path: Path) -> None:
    check_round_trip(ROWS[kind], rows().astype(dtype), tmp_path / "model.npz")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", IMAGES)
def test_models_of_images_come_back_to_the_last_bit(kind: str, dtype: str, tmp_path: Path) -> None:
    x = pictures().astype(dtype)
    check_round_trip(IMAGES[kind], x.reshape(24, 64) if IMAGES[kind].image_shape else x, tmp_path / "model.npz")


@pytest.mark.parametrize("kind", ROWS)
def test_a_loaded_model_has_the_same_parameters_and_fits_the_same(kind: str, tmp_path: Path) -> None:
    model = ROWS[kind].fit(rows())
    again = load_model(model.save(tmp_path / "model.npz"))
    assert again.get_params() == model.get_params()
    np.testing.assert_array_equal(again.fit(rows()).transform(rows()), model.transform(rows()))


def test_views_are_written_where_they_have_a_name(tmp_path: Path) -> None:
    for view, back in ((GaussianNoise(0.25), "noise:0.25"), ("mask:0.5", "mask:0.5"), (lambda x, g: x + 0.1, "auto")):
        model = ContrastivePCA(2, width=8, views=view).fit(rows())
        assert load_model(model.save(tmp_path / "model.npz")).views == back


def test_a_random_state_is_not_written_but_its_model_is(tmp_path: Path) -> None:
    model = ContrastivePCA(2, width=8, random_state=np.random.RandomState(3)).fit(rows())
    again = load_model(model.save(tmp_path / "model.npz"))
    assert again.random_state is None
    np.testing.assert_array_equal(again.transform(rows()), model.transform(rows()))


@pytest.mark.parametrize(
    "options",
    [
        {"n_components": np.int64(2)},
        {"delta": np.float64(1e-3)},
        {"ridge": np.float64(1e-3)},
        {"power": np.float64(0.5)},
        {"image_shape": (np.int64(2), np.int64(3))},
        {"image_shape": [2, 3]},
    ],
)
def test_options_of_numpy_types_are_written(options: dict[str, object], tmp_path: Path) -> None:
    model = SpectralContrastive(**{"n_components": 2, "width": 8, "views": "noise:0.1", **options}).fit(rows())
    again = load_model(model.save(tmp_path / "model.npz"))
    np.testing.assert_array_equal(again.transform(rows()), model.transform(rows()))


def test_names_of_columns_are_kept(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(rows(), columns=list("abcdef"))
    model = ContrastivePCA(2, width=8).fit(frame)
    again = load_model(model.save(tmp_path / "model.npz"))
    np.testing.assert_array_equal(again.transform(frame), model.transform(frame))


# Encoders


@pytest.mark.parametrize("kind", [ContrastivePCA, DeepLinearSSL, SpectralContrastive])
def test_a_head_on_an_encoder_needs_the_encoder(kind: type, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(6, 5), nn.Tanh()), rows().astype(np.float32)
    model = kind(2, features=net).fit(x)
    path = model.save(tmp_path / "head.npz")
    with pytest.raises(InputError, match="a head over an encoder of your own; pass it as features="):
        load_model(path)
    again = load_model(path, features=net)
    np.testing.assert_array_equal(again.transform(x), model.transform(x))
    assert again.features is net


@pytest.mark.parametrize("kind", [ContrastivePCA, SpectralContrastive])
def test_another_encoder_than_the_models_is_refused(kind: type, tmp_path: Path) -> None:
    x = rows().astype(np.float32)
    path = kind(2, features=nn.Linear(6, 5)).fit(x).save(tmp_path / "head.npz")
    for other in (nn.Linear(6, 4), lambda t: t[:, :1]):
        with pytest.raises(InputError, match=r"5 features"):
            load_model(path, features=other).transform(x)


def test_a_model_with_features_of_its_own_takes_no_encoder(saved: Path) -> None:
    with pytest.raises(InputError, match="brings its own features; leave features out"):
        load_model(saved, features=torch.tanh)


# Files that are not as they were written


def rewrite(path: Path, change: object) -> None:
    """The same archive, valid to numpy and zip, with other arrays."""
    with np.load(path) as archive:
        arrays = dict(archive)
    change(arrays)
    np.savez(path, **arrays)


def names_in(path: Path) -> list[str]:
    with np.load(path) as archive:
        return archive.files


@pytest.mark.parametrize("model", [ROWS["dot"], ROWS["landmarks"], ROWS["fourier"], IMAGES["patches"]])
def test_a_changed_number_in_any_array_is_noticed(model: object, tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    x = pictures() if model.features == "patches" else rows()
    model.fit(x).save(path)
    names = [name for name in names_in(path) if name not in ("header", "checksum")]
    assert len(names) >= 4
    for name in names:
        for change in (
            lambda a, name=name: a[name].view(np.uint8).reshape(-1).__setitem__(0, a[name].view(np.uint8).flat[0] ^ 1),
            lambda a, name=name: a.update({name: a[name][:-1]}),
            lambda a, name=name: a.update({name: a[name].astype(np.float16)}),
            lambda a, name=name: a.pop(name),
            lambda a, name=name: a.update({f"{name}2": a[name]}),
        ):
            model.save(path)
            rewrite(path, change)
            with pytest.raises(DataError, match=r"model.npz is not as it was written: its checksum does not match"):
                load_model(path)


def change_header(path: Path, *, sign: bool = False, **changes: object) -> None:
    def change(arrays: dict[str, np.ndarray]) -> None:
        header = json.loads(str(arrays["header"]))
        header.update(changes)
        text = json.dumps(header, sort_keys=True)
        arrays["header"] = np.array(text)
        if sign:
            arrays["checksum"] = np.array(model_files._checksum(text, arrays))

    rewrite(path, change)


def test_a_changed_header_is_noticed(saved: Path) -> None:
    change_header(saved, n_features_in=7)
    with pytest.raises(DataError, match="checksum does not match"):
        load_model(saved)


def header_of(path: Path) -> dict[str, Any]:
    with np.load(path) as archive:
        return json.loads(str(archive["header"]))


def test_the_header_is_that_of_format_1(tmp_path: Path) -> None:
    """Files of older versions are read: what they hold keeps its names."""
    header = header_of(DeepLinearSSL(2, time=0.5).fit(rows()).save(tmp_path / "model.npz"))
    assert header.keys() == {
        "arrays", "feature_names_in", "features", "format", "kernel_error", "model", "n_features_in", "numbers",
        "parameters", "sample_shape",
    }  # fmt: skip
    assert header["features"] == {"kind": "input", "n_features": 6}
    assert header["numbers"].keys() == {"loss_"}
    for model, features, arrays in (
        (
            ROWS["deep"],
            {"kind": "random", "depth": 3, "activation": "leaky_relu:0.2"},
            ["hidden0", "hidden1", "hidden2"],
        ),
        (ROWS["fourier"], {"kind": "fourier"}, ["frequencies", "phases"]),
        (ROWS["landmarks"], {"kind": "kernel", "mixed": True}, ["points", "mix"]),
        (
            IMAGES["patches"],
            {"kind": "patches", "image_shape": [1, 8, 8], "sides": 1, "grid": 3},
            ["filters", "offsets"],
        ),
    ):
        path = model.fit(pictures() if model is IMAGES["patches"] else rows()).save(tmp_path / "model.npz")
        header = header_of(path)
        assert features.items() <= header["features"].items()
        assert {name for name in header["arrays"] if "." in name} == {f"features.{name}" for name in arrays}
        if features["kind"] == "kernel":
            expected = {"kind": "network", "depth": 1, "activation": "relu", "delta": 1e-6}
            assert header["features"]["kernel"] == expected
        else:
            assert header["features"]["delta"] == model.delta


def test_arguments_by_their_former_names_are_read(tmp_path: Path) -> None:
    model = DeepLinearSSL(2, center=False).fit(rows())
    path = model.save(tmp_path / "model.npz")
    parameters = header_of(path)["parameters"]
    change_header(path, sign=True, parameters={"centre": parameters.pop("center"), **parameters})
    assert load_model(path).get_params() == model.get_params()


@pytest.mark.parametrize("version", [0, 2, 99, "1", None])
@pytest.mark.parametrize("sign", [True, False])
def test_another_version_is_named(saved: Path, version: object, sign: bool) -> None:
    change_header(saved, sign=sign, format=version)
    with pytest.raises(DataError, match=f"a model of format {version}, and this version of kontrast reads format 1"):
        load_model(saved)


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "ContrastiveUMAP"},
        {"features": {"kind": "wavelets"}},
        {"features": {"kind": "fourier", "delta": 1e-6}},
        {"parameters": {}},
        {"n_features_in": None},
    ],
)
def test_a_header_that_was_signed_again_but_makes_no_sense_is_refused(saved: Path, changes: dict[str, object]) -> None:
    change_header(saved, sign=True, **changes)
    with pytest.raises(DataError, match=r"model.npz"):
        load_model(saved)


def test_every_flipped_byte_is_noticed_or_harmless(saved: Path) -> None:
    whole, x = saved.read_bytes(), rows()
    expected = load_model(saved).transform(x)
    refused = 0
    for place in range(0, len(whole), 29):
        broken = bytearray(whole)
        broken[place] ^= 0x55
        saved.write_bytes(broken)
        try:
            found = load_model(saved).transform(x)
        except DataError:
            refused += 1
        else:
            np.testing.assert_array_equal(found, expected)
    assert refused > 0.4 * len(range(0, len(whole), 29))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_file_is_refused(saved: Path, share: float) -> None:
    whole = saved.read_bytes()
    saved.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(DataError, match=r"no kontrast model, or broken.*save the model again"):
        load_model(saved)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    def text(path: Path) -> None:
        path.write_text("a,b\n1,2\n")

    def array(path: Path) -> None:
        with path.open("wb") as file:
            np.save(file, np.ones(3))

    def arrays(path: Path) -> None:
        np.savez(path, x=np.ones(3))

    def pickled(path: Path) -> None:
        np.savez(path, header=np.array([{"format": 1}], dtype=object), checksum=np.array("0"))

    def not_json(path: Path) -> None:
        np.savez(path, header=np.array("format 1"), checksum=np.array("0"))

    def a_list(path: Path) -> None:
        np.savez(path, header=np.array("[1]"), checksum=np.array("0"))

    for write in (text, array, arrays, pickled, not_json, a_list):
        path = tmp_path / f"{write.__name__}.npz"
        write(path)
        with pytest.raises(DataError, match=f"{write.__name__}.npz is no kontrast model, or broken"):
            load_model(path)


def test_a_pickle_inside_is_not_run(saved: Path, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    rewrite(saved, lambda arrays: arrays.update(components=np.array([Trap()], dtype=object)))
    with pytest.raises(DataError, match="no kontrast model, or broken"):
        load_model(saved)
    assert not (tmp_path / "sprung").exists()


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no model file .*nowhere.npz; check the path"):
        load_model(tmp_path / "nowhere.npz")
    with pytest.raises(DataError, match="there is no model file"):
        load_model(tmp_path)


def test_a_renamed_model_still_loads_and_any_text_does_not(saved: Path, tmp_path: Path) -> None:
    expected = load_model(saved).transform(rows())
    renamed = saved.rename(tmp_path / "model.txt")
    np.testing.assert_array_equal(load_model(renamed).transform(rows()), expected)
    (tmp_path / "notes.txt").write_text("not a model")
    with pytest.raises(DataError, match=r"notes.txt is no kontrast model"):
        load_model(tmp_path / "notes.txt")


# Saving


def test_what_cannot_be_saved_is_refused_and_the_old_file_stays(saved: Path, tmp_path: Path) -> None:
    before = saved.read_bytes()
    x = rows()
    with pytest.raises(InputError, match=r"not fitted.*call fit first"):
        ContrastivePCA(2).save(saved)
    for width in (8, math.inf):
        own = ContrastivePCA(2, width=width, activation=lambda t: t.clamp(min=0)).fit(x)
        with pytest.raises(InputError, match="a function of your own, which a file cannot hold"):
            own.save(saved)
    with pytest.raises(InputError, match=r"saved as .npz, got 'model.txt'; name it model.npz"):
        ContrastivePCA(2, width=8).fit(x).save(tmp_path / "model.txt")
    with pytest.raises(InputError, match=r"there is no folder .*missing; make it first"):
        save_model(ContrastivePCA(2, width=8).fit(x), tmp_path / "missing" / "model.npz")
    assert saved.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == ["model.npz"]


@pytest.mark.parametrize("name", ["mine", "relu"])
def test_an_activation_object_of_ones_own_is_refused_whatever_its_name(name: str, tmp_path: Path) -> None:
    """A file holds the name alone, and that is none, or that of another function."""
    own = Activation(name, torch.square, lambda a: 2 * a, lambda a: 2 * torch.ones_like(a), smooth=True)
    model = ContrastivePCA(2, width=8, activation=own).fit(rows())
    with pytest.raises(InputError, match="a function of your own, which a file cannot hold"):
        model.save(tmp_path / "model.npz")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_old_file(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()

    def full(file: object, **arrays: object) -> None:
        file.write(b"half of")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_files.np, "savez", full)
    with pytest.raises(StoreError, match="No space left"):
        ContrastivePCA(2, width=8).fit(rows()).save(saved)
    assert saved.read_bytes() == before
    assert [found.name for found in saved.parent.iterdir()] == ["model.npz"]


def test_an_existing_file_is_replaced_whole(saved: Path) -> None:
    """Who is reading the old file goes on reading the old file."""
    before = saved.read_bytes()
    other = SpectralContrastive(2, width=8).fit(rows())
    with saved.open("rb") as reader:
        other.save(saved)
        assert reader.read() == before
    assert isinstance(load_model(saved), SpectralContrastive)
    np.testing.assert_array_equal(load_model(str(saved)).transform(rows()), other.transform(rows()))


def test_an_unknown_device_is_refused(saved: Path) -> None:
    with pytest.raises(InputError, match="device must look like"):
        load_model(saved, device="tpu")
    assert load_model(saved, device="cpu").device == "cpu"
