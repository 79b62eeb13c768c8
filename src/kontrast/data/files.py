"""Reading arrays from `.npz`, `.npy`, `.csv` and idx files, from a folder of these and from a folder of images.

Every way a file can be missing, cut short or wrong ends in a one-line `DataError`; nothing is ever unpickled.
"""

from __future__ import annotations

import gzip
import math
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kontrast.data.broken_files import explained, require_content
from kontrast.data.conventions import Array, ImageShape
from kontrast.data.image_folders import ImageFolder
from kontrast.data.tables import parse_labels, parse_table
from kontrast.errors import DataError

SPLITS = ("train", "test", "all")
FILE_KINDS = ".npz, .npy, .csv, idx such as train-images-idx3-ubyte(.gz), a folder of these or of .png and .jpg images"

SAMPLE_KEYS = ("x", "data", "images")
LABEL_KEYS = ("y", "labels", "label", "targets", "target")
IDX_NAME = re.compile(r"[-.]idx\d")
IDX_IMAGES = re.compile(r"(^|[-_])(train|t10k|test)-images[-.]idx3")
IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


class Arrays(NamedTuple):
    """Samples and, where the file has them, labels, as stored."""

    x: Array
    y: Array | None


@dataclass(frozen=True)
class Chosen:
    """What in a file holds samples and labels, by name: a column of a table, or keys of an archive; None is by rule."""

    label_column: str | None = None
    x_key: str | None = None
    y_key: str | None = None


BY_RULE = Chosen()


def read_arrays(
    path: Path, *, split: str = "train", chosen: Chosen = BY_RULE, image_shape: ImageShape | None = None
) -> Arrays:
    """Read samples and labels from an existing file or folder.

    * `.npz`: samples under `x_key`, or x, data or images, labels under `y_key`, or y, label(s) or target(s), in any
      case. With x_train and x_test (or train_images and so on) `split` chooses "train", "test" or "all". A lone array
      is taken as samples.
    * `NAME.npy`: labels from `NAME_labels.npy` beside it, or from `y….npy` when the name is `x….npy`.
    * `.csv`: `parse_table`; labels from its `label_column`, which no other file has.
    * idx, plain or `.gz`: labels from the file with "images-idx3" replaced by "labels-idx1", where it exists.
    * a folder: `x.npy`, else the idx images of `split` (train-, t10k- or test-), else its only `.npz` or `.npy`,
      else its only `.csv`.
    * a folder of images: `ImageFolder`; `image_shape` resizes them, and says nothing to files.

    `split` is of no effect where the files have no splits.
    """
    if path.is_dir():
        return _read_folder(path, split, chosen, image_shape)
    _refuse_names(path, chosen, columns=path.suffix == ".csv", keys=path.suffix == ".npz")
    if path.suffix == ".csv":
        return Arrays(*parse_table(_text(path), source=str(path), label_column=chosen.label_column))
    if path.suffix == ".npz":
        return _read_npz(path, split, chosen)
    if path.suffix == ".npy":
        return _read_npy(path)
    if IDX_NAME.search(path.name):
        return _read_idx_pair(path)
    raise DataError(f"{path} is of no known kind; give {FILE_KINDS}")


def read_labels(path: Path, *, n_samples: int) -> Array:
    """Labels alone: a `.npy` or idx file, y (or labels, targets) of a `.npz`, or a `.csv` of one column."""
    if path.suffix == ".npz":
        with _archive(path) as archive:
            key = archive.files[0] if len(archive.files) == 1 else _find_key(archive.files, LABEL_KEYS)
            if key is None:
                raise DataError(f"{path} has the keys {', '.join(archive.files)}; name the labels y")
            return np.asarray(archive[key])
    if path.suffix == ".npy":
        return _load_npy(path)
    if path.suffix == ".csv":
        return parse_labels(_text(path), source=str(path), n_samples=n_samples)
    if IDX_NAME.search(path.name):
        return read_idx(path)
    raise DataError(f"{path} is no file of labels; give .npy, .npz, .csv or idx")


def splits_in(path: Path, x_key: str | None = None) -> tuple[str, ...]:
    """The splits that a file or folder has: train and test, one of them, or none."""
    if path.is_dir():
        if images := ImageFolder.find(path):
            return images.splits
        files = _files_in(path)
        if path / "x.npy" in files:
            return ()
        single = _single_files(files)
        return tuple(_idx_parts(files, "all")) or (splits_in(single[0], x_key) if len(single) == 1 else ())
    if path.suffix != ".npz":
        return ()
    with _archive(path) as archive:
        return tuple(_keys_of_splits(archive.files, x_key))


def read_idx(path: Path) -> Array:
    """The array of one idx file: two zero bytes, a type code, the number of sizes, sizes, values; all big-endian."""
    require_content(path)
    with explained(path, "complete gzip file" if path.suffix == ".gz" else "readable file"):
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in IDX_TYPES or content[3] == 0:
        raise DataError(f"{path} starts with {content[:4].hex(' ')}, which is no idx file; give the original idx file")
    dtype, n_sizes = np.dtype(IDX_TYPES[content[2]]), content[3]
    start = 4 + 4 * n_sizes
    if len(content) < start:
        raise DataError(f"{path} is cut short inside its header of {start} bytes; download it again")
    shape = struct.unpack(f">{n_sizes}I", content[4:start])
    promised = math.prod(shape) * dtype.itemsize  # Python integers: sizes from broken bytes cannot overflow
    if len(content) - start != promised:
        raise DataError(
            f"{path} promises {promised} bytes for shape {shape} but holds {len(content) - start}; download it again"
        )
    if n_sizes > 4:  # before numpy, which has a limit of its own
        raise DataError(f"{path} holds an array of {n_sizes} dimensions; images have at most 4")
    return np.frombuffer(content, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))


def _read_idx_pair(path: Path) -> Arrays:
    """Images and, where a label file lies beside them (compressed or not), labels."""
    name = re.sub(r"images([-.])idx3", r"labels\1idx1", path.name).removesuffix(".gz")
    if name == path.name.removesuffix(".gz"):  # not called images: no way to tell which labels belong to it
        return Arrays(read_idx(path), None)
    labels = [beside for beside in (path.with_name(name), path.with_name(name + ".gz")) if beside.is_file()]
    return Arrays(read_idx(path), read_idx(labels[0]) if labels else None)


def _read_npy(path: Path) -> Arrays:
    beside = [path.with_name(f"{path.stem}_labels.npy")]
    if path.stem.startswith("x"):
        beside.append(path.with_name(f"y{path.stem[1:]}.npy"))
    labels = [name for name in beside if name.is_file()]
    return Arrays(_load_npy(path), _load_npy(labels[0]) if labels else None)


def _load_npy(path: Path) -> Array:
    require_content(path)
    with explained(path, "complete .npy file of plain numbers"), path.open("rb") as file:
        array = np.load(file, allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise DataError(f"{path} is a zip archive of arrays; rename it to end in .npz")
        return array


def _refuse_names(path: Path, chosen: Chosen, *, columns: bool, keys: bool) -> None:
    """Refuse the name of a column, or of a key, for a source that has none."""
    if chosen.label_column is not None and not columns:
        other = ", and name the array of its labels with y_key" if keys else ""
        raise DataError(f"{path} has no columns, so none called {chosen.label_column!r}; leave label_column out{other}")
    for name in ("x_key", "y_key"):
        if getattr(chosen, name) is not None and not keys:
            raise DataError(f"{path} is no .npz, so it has no key {getattr(chosen, name)!r}; leave {name} out")


def _read_npz(path: Path, split: str, chosen: Chosen) -> Arrays:
    with _archive(path) as archive:
        keys = _choose_keys(archive.files, path, split, chosen)
        x = [archive[key] for key in keys.x]
        labels = {key: archive[key] for key in keys.all_y}
    labels = _number_text(labels)
    return Arrays(_stack(x, path), _stack([labels[key] for key in keys.y], path) if keys.y else None)


@contextmanager
def _archive(path: Path) -> Iterator[Any]:
    """An open .npz file, whose errors are explained."""
    require_content(path)
    # numpy leaves a file it opened itself open when the archive turns out broken, so it is opened here
    with explained(path, "complete .npz file of plain numbers"), path.open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise DataError(f"{path} is a single array; rename it to end in .npy")
        with archive:
            yield archive


class _Keys(NamedTuple):
    """Keys of the samples and labels asked for, one per split, and of the labels of every split."""

    x: list[str]
    y: list[str]
    all_y: list[str]


def _choose_keys(keys: list[str], path: Path, split: str, chosen: Chosen) -> _Keys:
    x_keys = _keys_of_splits(keys, chosen.x_key)
    if not x_keys:
        return _keys_without_splits(keys, path, chosen)
    y_names = LABEL_KEYS if chosen.y_key is None else (chosen.y_key.lower(),)
    y_keys = {part: key for part in x_keys if (key := _find_key(keys, y_names, part))}
    if chosen.y_key is not None and not y_keys:
        raise DataError(
            f"{path} has samples in splits, and no {chosen.y_key}_train or {chosen.y_key}_test for y_key (keys: "
            f"{', '.join(keys)}); pass x_key too, for one array of samples"
        )
    wanted = list(x_keys) if split == "all" else [split]
    if wanted[0] not in x_keys:
        raise DataError(f"{path} has no x_{split} (keys: {', '.join(keys)}); ask for split={next(iter(x_keys))!r}")
    labeled = [part for part in wanted if part in y_keys]
    if labeled and labeled != wanted:
        raise DataError(f"{path} has labels for {labeled[0]} alone; ask for split={labeled[0]!r} or label both splits")
    return _Keys([x_keys[part] for part in wanted], [y_keys[part] for part in labeled], list(y_keys.values()))


def _keys_without_splits(keys: list[str], path: Path, chosen: Chosen) -> _Keys:
    x_key, y_key = _one_key(keys, chosen.x_key, SAMPLE_KEYS), _one_key(keys, chosen.y_key, LABEL_KEYS)
    if len(keys) == 1 and chosen == BY_RULE:
        x_key, y_key = keys[0], None
    for name, wanted, key in (("x_key", chosen.x_key, x_key), ("y_key", chosen.y_key, y_key)):
        if wanted is not None and key is None:
            raise DataError(f"{path} has no array {wanted!r}; give {name} one of its keys: {', '.join(keys) or 'none'}")
    if x_key is None:
        found = f"the keys {', '.join(keys)}" if keys else "no keys"
        raise DataError(
            f"{path} has {found}; name the samples x (or x_train and x_test) and the labels y, or pass x_key and y_key"
        )
    y = [y_key] if y_key and y_key != x_key else []
    return _Keys([x_key], y, y)


def _keys_of_splits(keys: Sequence[str], x_key: str | None) -> dict[str, str]:
    """The keys of the samples of each split; none where `x_key` is a key itself."""
    if x_key is not None and _one_key(keys, x_key, SAMPLE_KEYS):
        return {}
    names = SAMPLE_KEYS if x_key is None else (x_key.lower(),)
    return {part: key for part in ("train", "test") if (key := _find_key(keys, names, part))}


def _one_key(keys: Sequence[str], wanted: str | None, names: tuple[str, ...]) -> str | None:
    """The key that is wanted, in its case or else in another; where none is, the first of `names`."""
    return wanted if wanted in keys else _find_key(keys, names if wanted is None else (wanted.lower(),))


def _find_key(keys: Iterable[str], names: tuple[str, ...], part: str = "") -> str | None:
    """The first key, in the order of `names`, that is NAME, NAME_part or part_NAME, whatever its case."""
    by_name: dict[str, str] = {}
    for key in keys:
        by_name.setdefault(key.lower(), key)
    for name in names:
        for spelling in (f"{name}_{part}", f"{part}_{name}") if part else (name,):
            if spelling in by_name:
                return by_name[spelling]
    return None


def _number_text(labels: dict[str, Array]) -> dict[str, Array]:
    """Text labels as numbers that mean the same class in every split; other labels as they are."""
    if not labels or any(values.dtype.kind not in "US" for values in labels.values()):
        return labels
    classes = np.unique(np.concatenate([values.reshape(-1) for values in labels.values()]))
    return {key: np.searchsorted(classes, values) for key, values in labels.items()}


def _stack(arrays: list[Array], path: Path) -> Array:
    """The arrays one after another. Kinds must agree: bytes joined with floats would lose their scaling to [0, 1]."""
    first = arrays[0]
    for other in arrays[1:]:
        if 0 in (first.ndim, other.ndim) or first.shape[1:] != other.shape[1:] or first.dtype.kind != other.dtype.kind:
            raise DataError(
                f"{path} has splits that do not fit together: {first.dtype} {first.shape} and "
                f"{other.dtype} {other.shape}; ask for split='train' or split='test'"
            )
    return first if len(arrays) == 1 else np.concatenate(arrays)


def _read_folder(folder: Path, split: str, chosen: Chosen, image_shape: ImageShape | None) -> Arrays:
    if images := ImageFolder.find(folder):
        _refuse_names(folder, chosen, columns=False, keys=False)
        return Arrays(*images.read(split, image_shape))
    files = _files_in(folder)
    if folder / "x.npy" in files:
        return read_arrays(folder / "x.npy", chosen=chosen)
    if any(IDX_IMAGES.search(file.name) for file in files):
        _refuse_names(folder, chosen, columns=False, keys=False)
        parts = [_read_idx_pair(_idx_images(folder, files, part)) for part in _idx_parts(files, split)]
        labels = [part.y for part in parts if part.y is not None]
        x = _stack([part.x for part in parts], folder)
        if labels and len(labels) < len(parts):
            raise DataError(f"{folder} has labels for one split alone; ask for that split, or label both")
        return Arrays(x, _stack(labels, folder) if labels else None)
    candidates = _single_files(files)
    if len(candidates) != 1:
        found = ", ".join(file.name for file in files[:5]) + (", …" if len(files) > 5 else "")
        raise DataError(
            f"{folder} holds {found or 'no file'}; it must hold x.npy and y.npy, or train-images-idx3-ubyte and its "
            "labels, or exactly one .npz or .npy, or one .csv, or .png and .jpg images, or a folder of these for each "
            "class; or give the file itself"
        )
    return read_arrays(candidates[0], split=split, chosen=chosen)


def _files_in(folder: Path) -> list[Path]:
    with explained(folder, "readable folder"):
        return sorted(name for name in folder.iterdir() if name.is_file())


def _single_files(files: list[Path]) -> list[Path]:
    """The files that a folder without x.npy and idx files may be read from; tables only where there are no arrays."""
    arrays = [file for file in files if file.suffix in (".npz", ".npy") and not file.stem.endswith("_labels")]
    return arrays or [file for file in files if file.suffix == ".csv"]


def _idx_parts(files: list[Path], split: str) -> list[str]:
    if split != "all":
        return [split]
    return [part for part in ("train", "test") if any(_idx_part(file) == part for file in files)]


def _idx_part(file: Path) -> str | None:
    """The split an idx file of images belongs to; MNIST calls its test split t10k."""
    match = IDX_IMAGES.search(file.name)
    return None if match is None else "train" if match[2] == "train" else "test"


def _idx_images(folder: Path, files: list[Path], part: str) -> Path:
    """The one file of images for a split; a compressed twin of the same file does not count."""
    images = [file for file in files if _idx_part(file) == part]
    images = [file for file in images if file.suffix != ".gz" or file.with_suffix("") not in images]
    if len(images) != 1:
        found = ", ".join(file.name for file in images) or "none"
        prefix = "train" if part == "train" else "t10k"
        raise DataError(
            f"{folder} must hold one idx file of {part} images, such as {prefix}-images-idx3-ubyte, but holds {found}; "
            "ask for another split or give the file itself"
        )
    return images[0]


def _text(path: Path) -> str:
    require_content(path)
    with explained(path, "text file in UTF-8"):
        return path.read_text(encoding="utf-8-sig")
