from __future__ import annotations

import gzip
import io
import math
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kontrast.data import check_writable, load, load_parts, write_arrays, writing
from kontrast.data.files import IDX_TYPES, read_arrays, read_idx
from kontrast.errors import DataError, InputError, StoreError
from tests.cases import generator, real_data

fuzzed = settings(deadline=None, max_examples=60)
relaxed = settings(deadline=None, max_examples=25)


def bytes_of_images(n: int = 6, height: int = 4, width: int = 5, seed: int = 0) -> np.ndarray:
    return torch.randint(0, 256, (n, height, width), generator=generator(seed)).numpy().astype(np.uint8)


def idx_bytes(array: np.ndarray) -> bytes:
    codes = {np.dtype(name): code for code, name in IDX_TYPES.items()}
    big = array.astype(array.dtype.newbyteorder(">"))
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, codes[big.dtype], array.ndim, *array.shape)
    return header + big.tobytes()


def write_idx(path: Path, array: np.ndarray) -> Path:
    content = idx_bytes(array)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def npz_bytes(compressed: bool = False, **arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **arrays)
    return file.getvalue()


def refusal(source: Path, **options: object) -> str:
    """The message with which a source is refused: one line that names the source."""
    with pytest.raises(DataError) as caught:
        load(source, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert str(source) in message
    return message


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all examples of a property; each example overwrites the files of the one before."""
    return tmp_path_factory.mktemp("files")


# Samples: shapes, number types, scaling


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes_are_scaled_and_images_get_channels_first(tmp_path, dtype):
    gray = bytes_of_images()
    for shape, expected in {
        (6, 4, 5): gray[:, None],
        (6, 4, 5, 1): gray[:, None],
        (6, 1, 4, 5): gray[:, None],
        (2, 4, 5, 3): np.moveaxis(gray.reshape(2, 4, 5, 3), 3, 1),
        (2, 3, 4, 5): gray.reshape(2, 3, 4, 5),
        (6, 20): gray.reshape(6, 20),
    }.items():
        np.save(tmp_path / "a.npy", gray.reshape(shape))
        data = load(tmp_path / "a.npy", dtype=dtype)
        assert data.x.dtype == dtype
        assert data.x.is_contiguous()
        torch.testing.assert_close(data.x, torch.from_numpy(expected / 255).to(dtype), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "shape, expected", [((2, 3, 6, 4), (2, 3, 6, 4)), ((2, 4, 6, 3), (2, 3, 4, 6)), ((2, 3, 6, 3), (2, 3, 6, 3))]
)
def test_a_shape_that_reads_both_ways_has_the_smaller_number_as_channels(tmp_path, shape, expected):
    np.save(tmp_path / "a.npy", np.zeros(shape))
    assert load(tmp_path / "a.npy").x.shape == expected


@pytest.mark.parametrize(
    "values, divisor",
    [
        (np.array([0, 7, 255], dtype=np.int64), 255),
        (np.array([0, 7, 255], dtype=">u2"), 255),
        (np.array([0, 7, 256], dtype=np.int32), 1),
        (np.array([-1, 7, 255], dtype=np.int16), 1),
        (np.array([0, 7, 255], dtype=np.float64), 1),
        (np.array([0, 7, 255], dtype=">f4"), 1),
        (np.array([0, 7, 255], dtype=np.longdouble), 1),
        (np.array([0, 1, 1], dtype=bool), 1),
    ],
    ids=lambda value: str(value.dtype) + str(value.max()) if isinstance(value, np.ndarray) else str(value),
)
def test_which_images_are_scaled(tmp_path, values, divisor):
    np.save(tmp_path / "a.npy", values.reshape(3, 1, 1))
    x = load(tmp_path / "a.npy", dtype=torch.float64).x
    assert x.shape == (3, 1, 1, 1)
    torch.testing.assert_close(x.flatten(), torch.tensor(values.astype(np.float64) / divisor))


def test_integer_rows_other_than_bytes_stay(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[0, 255], [3, 4]], dtype=np.int64))
    assert load(tmp_path / "a.npy").x.tolist() == [[0, 255], [3, 4]]


@pytest.mark.parametrize("image_shape, expected", [((4, 6), (1, 4, 6)), ((2, 4, 3), (2, 4, 3))])
def test_rows_become_images_of_a_given_shape(tmp_path, image_shape, expected):
    rows = np.arange(48).reshape(2, 24)
    np.save(tmp_path / "a.npy", rows)
    data = load(tmp_path / "a.npy", image_shape=image_shape, dtype=torch.float64)
    assert data.x.shape == (2, *expected)
    torch.testing.assert_close(data.rows, torch.from_numpy(rows / 255))


def test_an_image_shape_must_fit(tmp_path):
    np.save(tmp_path / "rows.npy", np.zeros((2, 24)))
    np.save(tmp_path / "images.npy", np.zeros((2, 4, 6)))
    message = refusal(tmp_path / "rows.npy", image_shape=(5, 5))
    assert "(24,)" in message
    assert "image_shape (5, 5)" in message
    assert "leave image_shape out" in message
    assert "(1, 4, 6)" in refusal(tmp_path / "images.npy", image_shape=(6, 4))
    assert load(tmp_path / "images.npy", image_shape=(np.int64(4), 6)).x.shape == (2, 1, 4, 6)
    for nonsense in [(0, 5), (24,), 24, (4.0, 6), (True, 24), ("4", "6")]:
        with pytest.raises(InputError, match=r"image_shape must be \(h, w\) or \(c, h, w\)"):
            load(tmp_path / "rows.npy", image_shape=nonsense)


@pytest.mark.parametrize(
    "array, given_text, fix",
    [
        (np.zeros((3, 2), dtype=complex), "complex128", "integers or floats"),
        (np.array([["a", "b"]]), "<U1", "integers or floats"),
        (np.zeros(3, dtype="M8[s]"), "datetime64", "integers or floats"),
        (np.zeros(3), "(3,)", "(n, d)"),
        (np.float64(3), "()", "(n, d)"),
        (np.zeros((2, 2, 2, 2, 2)), "(2, 2, 2, 2, 2)", "(n, c, h, w)"),
        (np.zeros((0, 4)), "(0, 4)", "with no size of 0"),
        (np.array([[1.0, math.nan]]), "1 values that are nan", "drop these rows"),
        (np.full((2, 2), 1e300), "4 values that are nan or infinite", "row 0"),  # too large for float32
    ],
)
def test_samples_that_cannot_work_are_refused(tmp_path, array, given_text, fix):
    np.save(tmp_path / "a.npy", array)
    message = refusal(tmp_path / "a.npy")
    assert given_text in message
    assert fix in message


# Labels


@pytest.mark.parametrize(
    "labels",
    [
        np.array([3, 0, -2]),
        np.array([3, 0, 2], dtype=np.uint8),
        np.array([[3], [0], [2]], dtype=">i2"),
        np.array([3.0, 0.0, -2.0]),
        np.array([True, False, True]),
    ],
)
def test_whole_labels_stay(tmp_path, labels):
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2)), y=labels)
    y = load(tmp_path / "a.npz").y
    assert y.dtype == torch.int64
    assert y.tolist() == [int(label) for label in labels.reshape(-1)]


@pytest.mark.parametrize("kind", ["U", "S"])
def test_text_labels_are_numbered_in_sorted_order(tmp_path, kind):
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 2)), y=np.array(["dog", "cat", "zebra", "cat"]).astype(kind))
    assert load(tmp_path / "a.npz").y.tolist() == [1, 0, 2, 0]


def test_text_labels_mean_the_same_class_in_every_split(tmp_path):
    np.savez(
        tmp_path / "a.npz",
        x_train=np.zeros((2, 2)),
        y_train=np.array(["dog", "elephant"]),
        x_test=np.zeros((2, 2)),
        y_test=np.array(["ant", "dog"]),
    )
    assert load(tmp_path / "a.npz", split="train").y.tolist() == [1, 2]
    assert load(tmp_path / "a.npz", split="test").y.tolist() == [0, 1]
    assert load(tmp_path / "a.npz", split="all").y.tolist() == [1, 2, 0, 1]


@pytest.mark.parametrize(
    "labels, given_text, fix",
    [
        (np.array([0, 1]), "3 samples but labels of shape (2,)", "shape (3,)"),
        (np.eye(3), "labels of shape (3, 3)", "argmax(1)"),
        (np.array([0.0, 0.5, 1.0]), "the label 0.5", "whole numbers"),
        (np.array([0.0, math.nan, 1.0]), "the label nan", "whole numbers"),
        (np.array([0.0, math.inf, 1.0]), "the label inf", "whole numbers"),
        (np.array([0, 1, 2**64 - 1], dtype=np.uint64), f"the label {2**64 - 1}", "whole numbers"),
        (np.zeros(3, dtype=complex), "complex128", "integers or text"),
    ],
)
def test_labels_that_cannot_work_are_refused(tmp_path, labels, given_text, fix):
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2)), y=labels)
    message = refusal(tmp_path / "a.npz")
    assert given_text in message
    assert fix in message


# npz and npy


@pytest.mark.parametrize("x_key", ["x", "X", "data", "images"])
@pytest.mark.parametrize("y_key", ["y", "Y", "label", "labels", "target", "targets"])
def test_an_archive_by_its_keys(tmp_path, x_key, y_key):
    np.savez(tmp_path / "a.npz", **{"another": np.zeros(7), x_key: np.ones((3, 2)), y_key: np.arange(3)})
    data = load(tmp_path / "a.npz")
    assert data.x.tolist() == [[1, 1]] * 3
    assert data.y.tolist() == [0, 1, 2]
    assert data.name == str(tmp_path / "a.npz")


@pytest.mark.parametrize(
    "keys",
    [("x_train", "y_train", "x_test", "y_test"), ("train_images", "train_labels", "test_images", "test_labels")],
)
def test_an_archive_with_splits(tmp_path, keys):
    arrays = np.zeros((3, 2)), np.zeros(3, dtype=np.uint8), np.ones((2, 2)), np.ones(2, dtype=np.uint8)
    np.savez(tmp_path / "a.npz", **dict(zip(keys, arrays, strict=True)))
    for split, expected in {"train": [0, 0, 0], "test": [1, 1], "all": [0, 0, 0, 1, 1]}.items():
        data = load(str(tmp_path / "a.npz"), split=split)
        assert data.y.tolist() == expected
        assert data.x[:, 0].tolist() == expected


def test_a_lone_array_is_samples_without_labels(tmp_path):
    np.savez(tmp_path / "a.npz", whatever=np.ones((3, 2)))
    np.savez(tmp_path / "b.npz", np.ones((3, 2)))
    np.savez(tmp_path / "c.npz", x=np.ones((3, 2)), something=np.zeros(9))
    for name in "abc":
        data = load(tmp_path / f"{name}.npz")
        assert data.x.shape == (3, 2)
        assert data.y is None


@pytest.mark.parametrize(
    "arrays, split, given_text, fix",
    [
        ({"foo": np.zeros((3, 2)), "bar": np.zeros(3)}, "train", "keys foo, bar", "name the samples x"),
        ({}, "train", "no keys", "name the samples x"),
        ({"x_train": np.zeros((3, 2)), "y_train": np.zeros(3)}, "test", "no x_test", "split='train'"),
        ({"x_test": np.zeros((3, 2))}, "train", "no x_train (keys: x_test)", "split='test'"),
        (
            {"x_train": np.zeros((3, 2)), "y_train": np.zeros(3), "x_test": np.zeros((3, 2))},
            "all",
            "labels for train alone",
            "split='train'",
        ),
        ({"x_train": np.zeros((3, 2)), "x_test": np.zeros((3, 4))}, "all", "float64 (3, 4)", "split='train'"),
        ({"x_train": np.zeros((3, 2)), "x_test": np.zeros((3, 2), dtype=np.uint8)}, "all", "uint8 (3, 2)", "split="),
    ],
)
def test_an_archive_with_the_wrong_keys_is_refused(tmp_path, arrays, split, given_text, fix):
    np.savez(tmp_path / "a.npz", **arrays)
    message = refusal(tmp_path / "a.npz", split=split)
    assert given_text in message
    assert fix in message


# Arrays by their keys


@pytest.fixture
def named(tmp_path: Path) -> Path:
    x, y = np.arange(6.0).reshape(3, 2), np.arange(3)
    np.savez(tmp_path / "a.npz", Points=x, points=x + 10, kind=y, y=y + 5, other=np.zeros(9))
    return tmp_path / "a.npz"


def test_arrays_are_chosen_by_their_keys(named):
    assert load(named, x_key="points").x[0].tolist() == [10, 11]
    data = load(named, x_key="Points", y_key="kind")
    assert data.x[0].tolist() == [0, 1]
    assert data.y.tolist() == [0, 1, 2]
    assert load(named, x_key="POINTS").x.shape == (3, 2)  # in another case, where none is in this
    assert load(named, x_key="Points").y.tolist() == [5, 6, 7]  # labels by rule, as without a key
    assert list(load_parts(named, x_key="points", y_key="kind")) == ["all"]


def test_text_labels_under_a_key(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2)), kind=np.array(["dog", "cat", "dog"]))
    assert load(tmp_path / "a.npz", y_key="kind").y.tolist() == [1, 0, 1]
    np.savez(tmp_path / "lone.npz", y=np.zeros((3, 2)))
    assert load(tmp_path / "lone.npz", x_key="y").y is None  # no array is both


def test_a_key_may_name_both_splits(tmp_path):
    arrays = {f"{key}_{part}": np.full((n, 2) if key == "rows" else n, n) for key in ("rows", "kind", "x", "y")
              for part, n in (("train", 3), ("test", 2))}  # fmt: skip
    np.savez(tmp_path / "a.npz", **arrays, pool=np.zeros((4, 2)))
    options = {"x_key": "rows", "y_key": "kind"}
    assert load(tmp_path / "a.npz", split="all", **options).y.tolist() == [3, 3, 3, 2, 2]
    assert {name: len(part) for name, part in load_parts(tmp_path / "a.npz", **options).items()} == {
        "train": 3,
        "test": 2,
    }
    assert len(load_parts(tmp_path / "a.npz", x_key="pool")["all"]) == 4
    assert load(tmp_path / "a.npz", x_key="rows_test", y_key="kind_test").y.tolist() == [2, 2]


@pytest.mark.parametrize(
    "options, said",
    [
        ({"x_key": "rows"}, "no array 'rows'; give x_key one of its keys: Points, points, kind, y, other"),
        ({"x_key": "Points", "y_key": "c"}, "no array 'c'; give y_key one of its keys: Points, points, kind, y, other"),
        ({"y_key": "kind"}, "name the samples x (or x_train and x_test) and the labels y, or pass x_key and y_key"),
        ({"x_key": "points", "y_key": "other"}, "has 3 samples but labels of shape (9,)"),
        ({"x_key": "kind"}, "samples of shape (3,)"),
    ],
)
def test_keys_that_are_not_there_are_refused_with_those_that_are(named, options, said):
    assert said in refusal(named, **options)


def test_one_key_of_labels_does_not_fit_two_splits(tmp_path):
    np.savez(tmp_path / "a.npz", x_train=np.zeros((3, 2)), x_test=np.zeros((2, 2)), kind=np.arange(3))
    said = refusal(tmp_path / "a.npz", y_key="kind")
    assert "no kind_train or kind_test for y_key (keys: x_train, x_test, kind); pass x_key too" in said
    assert load(tmp_path / "a.npz", x_key="x_train", y_key="kind").y.tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["a.npy", "a.csv", "x.npy", "train-images-idx3-ubyte"])
def test_only_archives_have_keys(tmp_path, name):
    write_idx(tmp_path / name, bytes_of_images()) if "idx" in name else (tmp_path / name).write_text("1,2")
    for key in ("x_key", "y_key"):
        said = f"is no .npz, so it has no key 'k'; leave {key} out"
        assert said in refusal(tmp_path / name, **{key: "k"})
        with pytest.raises(DataError, match=said):
            load(tmp_path, **{key: "k"})
        with pytest.raises(InputError, match=f"'moons' has its own labels and no key 'k'; leave {key} out"):
            load("moons", **{key: "k"})


@pytest.mark.parametrize("option", ["label_column", "x_key", "y_key"])
def test_names_are_text(tmp_path, option):
    with pytest.raises(InputError, match=f"{option} must be str or NoneType, got int"):
        load(table(tmp_path, "a,b\n1,2\n"), **{option: 1})


def test_a_file_without_splits_is_the_same_for_every_split(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones((3, 2)))
    for split in ("train", "test", "all"):
        assert len(load(tmp_path / "a.npz", split=split)) == 3


@pytest.mark.parametrize(
    "x_name, y_name", [("x", "y"), ("x_train", "y_train"), ("digits", "digits_labels"), ("x", "x_labels")]
)
def test_a_single_array_finds_its_labels_beside_it(tmp_path, x_name, y_name):
    np.save(tmp_path / f"{x_name}.npy", np.ones((3, 2)))
    assert load(tmp_path / f"{x_name}.npy").y is None
    np.save(tmp_path / f"{y_name}.npy", np.arange(3))
    assert load(tmp_path / f"{x_name}.npy").y.tolist() == [0, 1, 2]


def test_numpy_files_under_the_wrong_name_say_the_right_one(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((3, 2)))
    np.savez(tmp_path / "b.npz", x=np.ones((3, 2)))
    assert "rename it to end in .npy" in refusal((tmp_path / "a.npy").rename(tmp_path / "a.npz"))
    assert "rename it to end in .npz" in refusal((tmp_path / "b.npz").rename(tmp_path / "b.npy"))


def test_pickled_objects_are_never_loaded(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[{"a": 1}]]), allow_pickle=True)
    np.savez(tmp_path / "a.npz", x=np.array([[{"a": 1}]]), allow_pickle=True)
    for name in ("a.npy", "a.npz"):
        assert "plain numbers" in refusal(tmp_path / name)


@pytest.mark.parametrize(
    "shape", ["(10000000000000, 1000)", "(" + "9" * 30 + ", 2)", "(-1, 2)", "(2", "('a', 2)", "(2L, 2L)"]
)
def test_headers_that_promise_the_impossible_are_refused(tmp_path, shape):
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + b"\0" * 16)
    assert "not a complete .npy file" in refusal(tmp_path / "a.npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.write(tmp_path / "a.npy", "x.npy")
    assert "not a complete .npz file" in refusal(tmp_path / "a.npz")


@pytest.mark.parametrize("name", ["a.npz", "a.npy", "a.csv", "a-images-idx3-ubyte", "a-images-idx3-ubyte.gz"])
def test_empty_files_and_files_of_rubbish_are_refused(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"")
    assert "is empty (0 bytes); download or save it again" in refusal(path)
    path.write_bytes(b"<html>404 not found</html>")
    message = refusal(path)
    assert "no idx file" in message or "is not a complete" in message or "no numbers" in message
    assert "again" in message or "give the original idx file" in message or "give a table" in message


@fuzzed
@given(data=st.data(), compressed=st.booleans())
def test_a_broken_archive_is_read_or_refused(folder, data, compressed):
    content = broken(data, npz_bytes(compressed, x=np.arange(12.0).reshape(3, 4), y=np.arange(3)))
    path = folder / "fuzz.npz"
    path.write_bytes(content)
    read_or_refused(path)


@fuzzed
@given(data=st.data())
def test_a_broken_array_is_read_or_refused(folder, data):
    file = io.BytesIO()
    np.save(file, np.arange(12, dtype=np.uint8).reshape(3, 4))
    path = folder / "fuzz.npy"
    path.write_bytes(broken(data, file.getvalue()))
    read_or_refused(path)


@relaxed
@given(data=st.data(), compressed=st.booleans())
def test_a_cut_archive_is_refused(folder, data, compressed):
    content = npz_bytes(compressed, x=np.arange(12.0).reshape(3, 4), y=np.arange(3))
    path = folder / "cut.npz"
    path.write_bytes(content[: data.draw(st.integers(1, len(content) - 1))])
    assert "not a complete .npz file" in refusal(path)


def broken(data: st.DataObject, content: bytes) -> bytes:
    """The bytes, cut anywhere and with a few of them changed; never empty."""
    changed = bytearray(content)
    for _ in range(data.draw(st.integers(0, 3), label="number of changes")):
        place = data.draw(st.integers(0, len(changed) - 1), label="place")
        changed[place] = data.draw(st.integers(0, 255), label="byte")
    return bytes(changed[: data.draw(st.integers(1, len(changed)), label="length")])


def read_or_refused(path: Path) -> None:
    """Any other exception than `DataError` fails the test, and so does a set that breaks its own promises."""
    try:
        data = load(path)
    except DataError as error:
        message = str(error)
    else:
        message = f"{path} was read"
        assert data.x.isfinite().all()
        assert data.x.dim() in (2, 4)
    assert "\n" not in message
    assert str(path) in message


# idx


@relaxed
@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    code=st.sampled_from(sorted(IDX_TYPES)),
    suffix=st.sampled_from(["", ".gz"]),
    seed=st.integers(0, 2**16),
)
def test_an_idx_file_reads_back(folder, shape, code, suffix, seed):
    values = torch.randint(-100, 100, shape, generator=generator(seed)).numpy()
    array = (
        np.abs(values).astype(np.uint8) if code == 0x08 else values.astype(np.dtype(IDX_TYPES[code]).newbyteorder("="))
    )
    read = read_idx(write_idx(folder / f"some-idx{len(shape)}{suffix}", array))
    assert read.dtype == array.dtype
    np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize(
    "images, labels",
    [
        ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
        ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
        ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte"),
        ("t10k-images.idx3-ubyte", "t10k-labels.idx1-ubyte"),
        ("t10k-images.idx3-ubyte", "t10k-labels.idx1-ubyte.gz"),
    ],
)
def test_idx_images_find_their_labels(tmp_path, images, labels):
    pixels = bytes_of_images(3)
    path = write_idx(tmp_path / images, pixels)
    assert load(path).y is None
    write_idx(tmp_path / labels, np.array([4, 1, 9], dtype=np.uint8))
    data = load(path)
    assert data.y.tolist() == [4, 1, 9]
    torch.testing.assert_close(data.x, torch.from_numpy(pixels[:, None] / 255).float())


@fuzzed
@given(data=st.data(), suffix=st.sampled_from(["", ".gz"]))
def test_a_broken_idx_file_is_read_or_refused(folder, data, suffix):
    content = idx_bytes(bytes_of_images(2, 3, 3))
    path = folder / f"fuzz-images-idx3-ubyte{suffix}"
    path.write_bytes(broken(data, gzip.compress(content, mtime=0) if suffix else content))
    read_or_refused(path)


@relaxed
@given(data=st.data(), suffix=st.sampled_from(["", ".gz"]))
def test_a_cut_idx_file_is_refused(folder, data, suffix):
    content = idx_bytes(bytes_of_images(2, 3, 3))
    content = gzip.compress(content, mtime=0) if suffix else content
    path = folder / f"cut-images-idx3-ubyte{suffix}"
    path.write_bytes(content[: data.draw(st.integers(1, len(content) - 1))])
    assert "again" in refusal(path) or "original idx file" in refusal(path)


@pytest.mark.parametrize(
    "content, given_text, fix",
    [
        (b"\0\0\x08", "00 00 08", "give the original idx file"),
        (b"\1\0\x08\3" + b"\0" * 20, "01 00 08 03", "give the original idx file"),
        (b"\0\0\x0a\3" + b"\0" * 20, "00 00 0a 03", "give the original idx file"),
        (b"\0\0\x08\0", "00 00 08 00", "give the original idx file"),
        (b"\0\0\x08\3" + b"\0" * 7, "header of 16 bytes", "download it again"),
        (idx_bytes(bytes_of_images(2, 3, 3))[:-1], "promises 18 bytes for shape (2, 3, 3) but holds 17", "download"),
        (idx_bytes(bytes_of_images(2, 3, 3)) + b"!", "promises 18 bytes for shape (2, 3, 3) but holds 19", "download"),
        (b"\0\0\x0e\4" + b"\xff" * 16 + b"\0" * 8, f"promises {8 * (2**32 - 1) ** 4} bytes", "download"),
        (b"\0\0\x08\xff" + b"\0\0\0\1" * 255 + b"7", "255 dimensions", "at most 4"),
        (b"\0\0\x08\3" + b"\0" * 12, "(0, 0, 0)", "with no size of 0"),
        (b"\0\0\x08\1\0\0\0\2ab", "(2,)", "(n, h, w)"),
    ],
    ids=lambda value: f"{len(value)} bytes" if isinstance(value, bytes) else "",
)
def test_what_is_wrong_with_an_idx_file_is_said(tmp_path, content, given_text, fix):
    path = tmp_path / "a-images-idx3-ubyte"
    path.write_bytes(content)
    message = refusal(path)
    assert given_text in message
    assert fix in message


def test_a_gz_file_must_be_compressed_and_whole(tmp_path):
    path = tmp_path / "a-images-idx3-ubyte.gz"
    path.write_bytes(idx_bytes(bytes_of_images()))
    assert "is not a complete gzip file (BadGzipFile); download or save it again" in refusal(path)
    path.write_bytes(gzip.compress(idx_bytes(bytes_of_images()))[:-9])
    assert "is not a complete gzip file (EOFError)" in refusal(path)


def test_broken_labels_are_named(tmp_path):
    write_idx(tmp_path / "train-images-idx3-ubyte", bytes_of_images(3))
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(b"rubbish")
    with pytest.raises(DataError, match="train-labels-idx1-ubyte starts with"):
        load(tmp_path / "train-images-idx3-ubyte")
    write_idx(labels, np.zeros(4, dtype=np.uint8))
    with pytest.raises(DataError, match=r"3 samples but labels of shape \(4,\)"):
        load(tmp_path / "train-images-idx3-ubyte")


# Folders and paths


def write_mnist_like(folder: Path, suffix: str = "", prefix: str = "") -> None:
    for part, n, label in (("train", 3, 1), ("t10k", 2, 2)):
        write_idx(folder / f"{prefix}{part}-images-idx3-ubyte{suffix}", bytes_of_images(n, seed=label))
        write_idx(folder / f"{prefix}{part}-labels-idx1-ubyte{suffix}", np.full(n, label, dtype=np.uint8))


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("prefix", ["", "emnist-letters-"])
def test_a_folder_of_idx_files(tmp_path, suffix, prefix):
    write_mnist_like(tmp_path, suffix, prefix)
    (tmp_path / "README").write_text("not data")
    for split, expected in {"train": [1, 1, 1], "test": [2, 2], "all": [1, 1, 1, 2, 2]}.items():
        data = load(tmp_path, split=split)
        assert data.y.tolist() == expected
        assert data.x.shape == (len(expected), 1, 4, 5)


def test_a_compressed_twin_does_not_count(tmp_path):
    write_mnist_like(tmp_path)
    write_mnist_like(tmp_path, ".gz")
    assert load(tmp_path, split="test").y.tolist() == [2, 2]


def test_a_folder_of_idx_files_that_lacks_a_split_or_has_too_many(tmp_path):
    write_idx(tmp_path / "train-images-idx3-ubyte", bytes_of_images(3))
    assert len(load(tmp_path, split="all")) == 3
    message = refusal(tmp_path, split="test")
    assert "t10k-images-idx3-ubyte, but holds none" in message
    assert "ask for another split" in message
    write_idx(tmp_path / "fashion-train-images-idx3-ubyte", bytes_of_images(3))
    message = refusal(tmp_path, split="train")
    assert "holds fashion-train-images-idx3-ubyte, train-images-idx3-ubyte" in message
    assert "give the file itself" in message


def test_a_folder_with_labels_for_one_split_alone_is_refused_as_a_whole(tmp_path):
    write_mnist_like(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    assert load(tmp_path, split="test").y is None
    assert "labels for one split alone; ask for that split" in refusal(tmp_path, split="all")


def test_a_folder_of_numpy_files(tmp_path):
    np.savez(tmp_path / "only.npz", x=np.ones((2, 3)), y=np.arange(2))
    (tmp_path / "notes.txt").write_text("not data")
    assert load(tmp_path).y.tolist() == [0, 1]
    np.save(tmp_path / "x.npy", np.zeros((4, 3)))
    np.save(tmp_path / "y.npy", np.arange(4))
    assert load(tmp_path).y.tolist() == [0, 1, 2, 3]  # x.npy comes before all others


def test_a_folder_with_one_array_and_its_labels(tmp_path):
    np.save(tmp_path / "mine.npy", np.zeros((4, 3)))
    np.save(tmp_path / "mine_labels.npy", np.arange(4))
    assert load(tmp_path).y.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "names, found",
    [
        ([], "holds no file"),
        (["notes.txt"], "holds notes.txt;"),
        (["a.npz", "b.npz"], "holds a.npz, b.npz;"),
        ([f"{k}.npy" for k in range(7)], "holds 0.npy, 1.npy, 2.npy, 3.npy, 4.npy, …;"),
    ],
)
def test_a_folder_without_data_says_what_it_found_and_what_it_looks_for(tmp_path, names, found):
    for name in names:
        (tmp_path / name).write_bytes(b"")
    message = refusal(tmp_path)
    assert found in message
    assert (
        "must hold x.npy and y.npy, or train-images-idx3-ubyte and its labels, or exactly one .npz or .npy, or one .csv"
        in message
    )


def test_other_kinds_of_files_are_refused(tmp_path):
    (tmp_path / "a.xlsx").write_text("1,2")
    message = refusal(tmp_path / "a.xlsx")
    assert "of no known kind; give .npz, .npy, .csv, idx" in message


def test_a_file_that_cannot_be_opened_says_why(tmp_path):
    for name in ("gone.npz", "gone.npy", "gone-images-idx3-ubyte"):
        with pytest.raises(DataError, match=f"{name} cannot be read: No such file or directory; check the path"):
            read_arrays(tmp_path / name)


def test_a_home_folder_is_understood(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    np.save(tmp_path / "a.npy", np.zeros((4, 3)))
    assert len(load("~/a.npy")) == 4


# Tables


def table(folder: Path, text: str) -> Path:
    (folder / "a.csv").write_text(text)
    return folder / "a.csv"


@pytest.mark.parametrize(
    "text",
    [
        "1,2.5\n3,-4e-1\n",
        "a,b\n1,2.5\n3,-.4",
        "\ufeffa;b\r\n1;2.5\r\n3;-0.4\r\n",
        "\n a\tb \n\n1\t2.5\n 3 \t -0.4 \n\n",
        '"the first","b, c"\n"1","2.5"\n3,-0.4',
        "1,b\n1,2.5\n3,-0.4",  # a name that is a number
    ],
)
def test_a_table_with_or_without_names(tmp_path, text):
    data = load(table(tmp_path, text), dtype=torch.float64)
    assert data.x.tolist() == [[1, 2.5], [3, -0.4]]
    assert data.y is None


@pytest.mark.parametrize(
    "text, column, labels",
    [
        ("a,y,b\n1,7,2\n3,8,4\n", "y", [7, 8]),
        ("a,y,b\n1,cat,2\n3,ant,4\n", "y", [1, 0]),
        ("0,y,1\n1,cat,2\n3,ant,4\n", "y", [1, 0]),  # named as pandas does
        ("1,cat,2\n3,ant,4\n", "1", [1, 0]),
        ("1,7,2\n3,8,4\n", "-2", [7, 8]),
        ("a,5,b\n1,7,2\n3,8,4\n", "5", [7, 8]),  # a name comes before a number
        ('a,y,b\n1,"cat, black",2\n3,"ant",4\n', "y", [1, 0]),
    ],
)
def test_a_column_of_a_table_holds_the_labels(tmp_path, text, column, labels):
    data = load(table(tmp_path, text), label_column=column)
    assert data.x.tolist() == [[1, 2], [3, 4]]
    assert data.y.tolist() == labels


@pytest.mark.parametrize("name", ["target", "Label", "LABELS", "class", "y", "Category", "species"])
@pytest.mark.parametrize("values", ["01", "ab"], ids=["numbers", "words"])
def test_a_column_that_is_called_like_labels_is_no_feature_by_accident(tmp_path, name, values):
    path = table(tmp_path, f"a,{name},b\n1,{values[0]},2\n3,{values[1]},4\n")
    expected = f"the column {name!r} looks like labels; pass label_column={name!r}, or label_column='none' to use it as"
    assert expected in refusal(path)
    assert load(path, label_column=name).y.tolist() == [0, 1]
    if values == "01":
        everything = load(path, label_column="none")
        assert everything.x.tolist() == [[1, 0, 2], [3, 1, 4]]
        assert everything.y is None
    else:
        assert f"column {name!r} holds 'a' in sample 0" in refusal(path, label_column="none")


def test_other_names_are_features_and_a_column_called_none_has_a_number(tmp_path):
    path = table(tmp_path, "yes,classes,none\n1,2,0\n3,4,1\n")
    assert load(path).x.shape == load(path, label_column="none").x.shape == (2, 3)
    assert load(path, label_column="2").y.tolist() == [0, 1]
    assert load(table(tmp_path, "1,7\n3,8\n")).x.shape == (2, 2)  # without names nothing looks like labels
    assert load(table(tmp_path, "a,class\n1,7\n"), label_column="a").x.tolist() == [[7]]  # the user has decided


def test_whole_numbers_in_a_table_are_pixels_of_images(tmp_path):
    path = table(tmp_path, "0,51,102,255\n255,0,0,0")
    assert load(path).x.tolist() == [[0, 51, 102, 255], [255, 0, 0, 0]]
    torch.testing.assert_close(load(path, image_shape=(2, 2)).x[0, 0], torch.tensor([[0, 0.2], [0.4, 1]]))
    assert load(table(tmp_path, "0.5,51,102,255"), image_shape=(2, 2)).x.max() == 255


@pytest.mark.parametrize(
    "text, options, given_text, fix",
    [
        ("a,b\n", {}, "names of columns and no numbers", "one sample per line"),
        (" \n\n", {}, "no numbers", "one sample per line"),
        ("1,2\n3\n", {}, "2 columns in its first line and 1 in sample 1", "save it again"),
        ("a,b\n1,2\n3,4,5\n", {"label_column": "b"}, "and 3 in sample 1", "save it again"),
        ("a,b\n1,2\n3,x y\n", {}, "column 'b' holds 'x y' in sample 1", "name the column as the labels"),
        ("1,2\n3,x\n", {}, "column 1 holds 'x' in sample 1", "leave the column out"),
        ("a,b\n1,\n3,4\n", {}, "column 'b' holds nothing in sample 0", "fill the value in"),
        ("a,b\n1,nan\n", {}, "nan or infinite", "drop these rows"),
        ("a,b\n1,2\n", {"label_column": "c"}, "no column 'c'", "a name, or the column's number from 0 to 1"),
        ("a,a\n1,2\n", {"label_column": "a"}, "2 of them", "number"),
        ("1,2\n", {"label_column": "2"}, "no line of names", "from 0 to 1"),
        ("y\n1\n", {"label_column": "y"}, "one column, the labels", "more columns"),
        ("a,y\n1,0.5\n", {"label_column": "y"}, "the label 0.5", "whole numbers"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(tmp_path, text, options, given_text, fix):
    message = refusal(table(tmp_path, text), **options)
    assert given_text in message
    assert fix in message


def test_only_tables_have_columns(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((3, 2)))
    assert "has no columns, so none called 'y'; leave label_column out" in refusal(tmp_path / "a.npy", label_column="y")
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2)))
    for column in ("y", "none"):
        said = refusal(tmp_path / "a.npz", label_column=column)
        assert f"none called {column!r}; leave label_column out, and name the array of its labels with y_key" in said
    with pytest.raises(InputError, match="'digits' has its own labels and no column 'y'"):
        load("digits", label_column="y")
    (tmp_path / "b.csv").write_bytes("a,b\n1,2".encode("utf-16"))
    assert "not a text file in UTF-8" in refusal(tmp_path / "b.csv")


@fuzzed
@given(data=st.data())
def test_a_broken_table_is_read_or_refused(folder, data):
    path = folder / "fuzz.csv"
    path.write_bytes(broken(data, b"first,second\n1.5,2\n3,4e5\n-1,0\n"))
    read_or_refused(path)


def test_a_folder_may_hold_one_table(tmp_path):
    table(tmp_path, "a,y\n1,0\n2,1\n")
    assert load(tmp_path, label_column="y").y.tolist() == [0, 1]
    np.save(tmp_path / "b.npy", np.zeros((5, 2)))
    assert len(load(tmp_path)) == 5  # arrays come before tables


# Parts, and labels in files of their own


def test_parts_of_an_archive(tmp_path):
    arrays = {"x_train": np.zeros((4, 2)), "y_train": np.arange(4) % 2, "x_test": np.ones((2, 2))}
    np.savez(tmp_path / "a.npz", **arrays)
    parts = load_parts(tmp_path / "a.npz")
    assert list(parts) == ["train", "test"]
    assert parts["train"].y.tolist() == [0, 1, 0, 1]
    assert parts["test"].y is None
    assert parts["test"].x.tolist() == [[1, 1], [1, 1]]
    np.savez(tmp_path / "b.npz", x_test=np.ones((2, 2)))
    assert len(load_parts(tmp_path / "b.npz")["all"]) == 2
    np.savez(tmp_path / "c.npz", x_train=np.zeros((4, 2)), x_test=np.zeros((2, 3)))
    with pytest.raises(DataError, match=r"samples of different shapes, \{'train': \(2,\), 'test': \(3,\)\}"):
        load_parts(tmp_path / "c.npz")


def test_parts_of_folders_and_names(tmp_path):
    for part, n in (("train", 3), ("t10k", 2)):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte", bytes_of_images(n))
    assert {name: len(part) for name, part in load_parts(tmp_path).items()} == {"train": 3, "test": 2}
    np.save(tmp_path / "x.npy", np.zeros((7, 2)))
    assert {name: len(part) for name, part in load_parts(tmp_path).items()} == {"all": 7}
    (tmp_path / "inner").mkdir()
    np.savez(tmp_path / "inner" / "a.npz", x_train=np.zeros((3, 2)), x_test=np.zeros((2, 2)))
    assert list(load_parts(tmp_path / "inner")) == ["train", "test"]
    assert list(load_parts("moons")) == ["all"]
    with pytest.raises(DataError, match=r"no data set or file is called 'gone\.npz'"):
        load_parts("gone.npz")


@pytest.mark.parametrize("kind", ["npy", "npz", "npz of more", "csv", "csv with a name", "words", "idx"])
def test_labels_in_a_file_of_their_own(tmp_path, kind):
    np.savez(tmp_path / "x.npz", x_train=np.zeros((3, 2)), x_test=np.zeros((2, 2)))
    values = np.array([2, 0, 1, 1, 0])
    path = tmp_path / {"words": "y.csv", "idx": "y-idx1-ubyte"}.get(kind, f"y.{kind.split()[0]}")
    match kind:
        case "npy":
            np.save(path, values)
        case "npz":
            np.savez(path, whatever=values)
        case "npz of more":
            np.savez(path, labels=values, other=np.zeros(3))
        case "idx":
            write_idx(path, values.astype(np.uint8))
        case "words":
            path.write_text("cow\nant\nbee\nbee\nant\n")
        case _:
            path.write_text("y\n" * (kind != "csv") + "\n".join(map(str, values)))
    parts = load_parts(tmp_path / "x.npz", labels=str(path))
    assert parts["train"].y.tolist() == [2, 0, 1]
    assert parts["test"].y.tolist() == [1, 0]


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("y.csv", "1,2\n3,4\n", "must hold labels in one column, got 2 columns"),
        ("y.csv", "1\n2\n", "has 5 samples but labels of shape (2,)"),
        ("y.npy", "rubbish", "not a complete .npy file"),
        ("y.txt", "1", "is no file of labels; give .npy"),
    ],
)
def test_files_that_are_no_labels(tmp_path, name, content, said):
    np.save(tmp_path / "samples.npy", np.zeros((5, 2)))
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError) as caught:
        load_parts(tmp_path / "samples.npy", labels=str(tmp_path / name))
    assert said in str(caught.value)
    with pytest.raises(DataError, match=r"there is no file of labels gone\.csv"):
        load_parts(tmp_path / "samples.npy", labels="gone.csv")
    np.savez(tmp_path / "two.npz", a=np.zeros(5), b=np.zeros(5))
    with pytest.raises(DataError, match="has the keys a, b; name the labels y"):
        load_parts(tmp_path / "samples.npy", labels=str(tmp_path / "two.npz"))


def test_labels_come_from_one_place(tmp_path):
    path = table(tmp_path, "a,y\n1,0\n2,1\n")
    (tmp_path / "l.csv").write_text("3\n4\n")
    beside = str(tmp_path / "l.csv")
    assert load_parts(path, labels="y")["all"].y.tolist() == [0, 1]
    assert load_parts(path, label_column="y")["all"].y.tolist() == [0, 1]
    with pytest.raises(DataError, match="the column 'y' looks like labels"):
        load_parts(path, labels=beside)
    both = load_parts(path, labels=beside, label_column="none")["all"]
    assert both.y.tolist() == [3, 4]
    assert both.x.shape == (2, 2)
    for labels in (beside, "y", "a"):
        with pytest.raises(
            InputError, match=r"the labels are given twice, as .* and by label_column 'y'; leave one out"
        ):
            load_parts(path, labels=labels, label_column="y")
    np.savez(tmp_path / "b.npz", x=np.zeros((2, 2)), kind=np.arange(2))
    with pytest.raises(InputError, match=r"given twice, as .* and by y_key 'kind'"):
        load_parts(tmp_path / "b.npz", labels=beside, y_key="kind")
    with pytest.raises(
        DataError, match=r"no file of labels digit, and .*b\.npz has no columns, so none called 'digit'"
    ):
        load_parts(tmp_path / "b.npz", labels="digit")


# Writing


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("suffix", [".npy", ".npz", ".csv"])
def test_what_is_written_reads_back(tmp_path, suffix, dtype):
    z = torch.randn(20, 3, generator=generator(), dtype=torch.float64).numpy().astype(dtype) ** 9
    path = write_arrays(tmp_path / f"z{suffix}", {"z": z})
    kind = torch.float32 if dtype == np.float32 else torch.float64
    np.testing.assert_array_equal(load(path, dtype=kind).x.numpy(), z)
    if suffix == ".csv":
        assert path.read_text().startswith("z0,z1,z2\n")
    assert list(tmp_path.iterdir()) == [path]


def test_an_archive_holds_several_arrays_and_others_one(tmp_path):
    arrays = {"z": np.zeros((2, 3)), "y": np.arange(2)}
    write_arrays(tmp_path / "z.npz", arrays)
    with np.load(tmp_path / "z.npz") as archive:
        assert sorted(archive.files) == ["y", "z"]
    for suffix in (".npy", ".csv"):
        with pytest.raises(InputError, match=r"file holds one array, got z, y; name it z\.npz"):
            write_arrays(tmp_path / f"z{suffix}", arrays)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), ValueError("a bug")])
@pytest.mark.parametrize("suffix", [".npy", ".npz", ".csv"])
def test_an_interrupted_write_leaves_the_old_file_alone(tmp_path, monkeypatch, suffix, error):
    path = write_arrays(tmp_path / f"z{suffix}", {"z": np.zeros((2, 3))})
    before = path.read_bytes()
    real = writing._write

    def fail(file, *arguments):
        real(file, *arguments)
        raise error

    monkeypatch.setattr(writing, "_write", fail)
    expected = StoreError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected) as caught:
        write_arrays(path, {"z": np.ones((20, 3))})
    if expected is StoreError:
        assert f"cannot write {path}: No space left on device" in str(caught.value)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_places_that_cannot_be_written_are_refused(tmp_path):
    (tmp_path / "z.npz").mkdir()
    for path, said in {
        tmp_path / "z.txt": "arrays are written as .npy, .npz, .csv, got 'z.txt'",
        tmp_path / "z.npz": "is a folder; give the name of a file in it",
        tmp_path / "gone" / "z.npy": "there is no folder",
    }.items():
        with pytest.raises(InputError) as caught:
            check_writable(path)
        assert said in str(caught.value)


# Real files


def test_real_mnist():
    test = load(real_data("mnist.npz"), split="test")
    assert test.x.shape == (10000, 1, 28, 28)
    assert float(test.x.max()) == 1
    assert test.y.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_real_color_images():
    data = load(real_data("cifar10_subset.npz"), split="all")
    assert data.x.shape == (6000, 3, 32, 32)
    with np.load(real_data("cifar10_subset.npz")) as archive:
        first = archive["x_train"][0]
    torch.testing.assert_close(data.x[0], torch.from_numpy(np.moveaxis(first, 2, 0) / 255).float())
