"""The scale, data and device of a measurement; the samples, networks and sweeps that all claims share."""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch
import xarray as xr
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from kontrast.checks import require_choice, require_whole, resolve_device
from kontrast.data import Dataset, Pairs, default_view, load_data, make_pairs
from kontrast.errors import InputError
from kontrast.linalg import Estimate, fit_power_law
from kontrast.losses import ContrastiveLoss, link_from, similarity_from
from kontrast.nets import MLP
from kontrast.runs import generator_for

Scale = Literal["quick", "full", "paper"]
SCALES: tuple[Scale, ...] = ("quick", "full", "paper")
T = TypeVar("T")


@dataclass(frozen=True)
class Setting:
    """Everything besides the code that decides the numbers of a verification.

    Attributes:
        scale: "quick" (seconds per claim), "full" (the setting behind the expected numbers) or "paper" (widths of
            8192 and more, 500 steps, 1000 samples in the figures; for a GPU).
        device: where tensors live.
        n_seeds: number of runs to average over; each claim has its own default.
        data: data sets by name or file; every claim uses the first, claims that compare data use the others too.
    """

    scale: Scale = "full"
    device: str = "cpu"
    n_seeds: int | None = None
    data: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_choice("scale", self.scale, SCALES)
        resolve_device(self.device)
        object.__setattr__(self, "device", str(self.device))  # torch's own object becomes a name, which JSON can hold
        if self.n_seeds is not None:
            object.__setattr__(self, "n_seeds", require_whole("n_seeds", self.n_seeds))
        if len(set(self.data)) < len(self.data):
            raise InputError(f"data must name every data set once, got {list(self.data)}")

    def pick(self, *, quick: T, full: T, paper: T | None = None) -> T:
        """The choice for this scale; without one for `paper`, that scale takes the choice for `full`."""
        choice = {"quick": quick, "full": full, "paper": paper}[self.scale]
        return full if choice is None else choice

    def seeds(self, *, quick: int, full: int = 5, paper: int | None = None) -> range:
        """The seeds to average over: as many as `n_seeds` says, or the claim's own default."""
        return range(self.n_seeds or self.pick(quick=quick, full=full, paper=paper))

    @property
    def data_names(self) -> tuple[str, ...]:
        """The data sets; by default the small digits, and MNIST at the paper's scale."""
        return self.data or ("mnist5k" if self.scale == "paper" else "digits",)

    def dataset(self, name: str | None = None) -> Dataset:
        """The data set `name` in float64, by default the first of `data_names`."""
        return load_data(name or self.data_names[0], "all", None)

    def dataset_of(self, n: int, *, labels: bool = False, name: str | None = None) -> Dataset:
        """The same; refuses a data set of fewer than `n` samples, and one without labels if `labels` are needed."""
        name = name or self.data_names[0]
        dataset = self.dataset(name)
        unlabeled = labels and dataset.y is None
        if unlabeled or len(dataset) < n:
            raise InputError(
                f"this claim needs {n} samples{' with labels' if labels else ''} and {name!r} has {len(dataset)}"
                f"{' without labels' if unlabeled else ''}; choose another data set"
            )
        return dataset

    def mean_square(self, name: str | None = None) -> float:
        """The mean ‖x‖² of a data set, which sets the time scale of training under the dot product."""
        return _mean_square(name or self.data_names[0])

    def pairs(self, n: int, *, seed: int, data: str | None = None) -> Pairs:
        """Anchors with one augmented positive and one random negative each, as in all experiments of paper A."""
        return self.labeled_pairs(n, seed=seed, data=data)[0]

    def labeled_pairs(self, n: int, *, seed: int, data: str | None = None) -> tuple[Pairs, Tensor | None]:
        """The same with the anchors' labels, or None if the data has none."""
        return _labeled_pairs(self, data or self.data_names[0], n, seed)

    def net(self, x: Tensor, width: int, d_out: int, *, seed: int, activation: str = "relu", depth: int = 1) -> MLP:
        """Paper A's network (2) for inputs like x, in float64; its weights depend only on the width and the seed."""
        return MLP(
            x.flatten(1).shape[1],
            width,
            d_out,
            depth=depth,
            activation=activation,
            generator=generator("net", seed, width),
            dtype=torch.float64,
            device=self.device,
        )


@functools.lru_cache(maxsize=16)  # networks of all widths see the same samples
def _labeled_pairs(setting: Setting, data: str, n: int, seed: int) -> tuple[Pairs, Tensor | None]:
    dataset, draw = setting.dataset_of(n, name=data), generator("pairs", seed)
    sample = dataset.subsample(n, generator=draw)
    made = make_pairs(sample.x, views=default_view(dataset), generator=draw).to(device=setting.device)
    return made, None if sample.y is None else sample.y.to(setting.device)


@functools.lru_cache(maxsize=8)
def _mean_square(name: str) -> float:
    return float(load_data(name, "all", None).rows.pow(2).sum(1).mean())


def loss_of(similarity: str, link: str = "linear", *, delta: float = 0.01, temperature: float = 1.0) -> ContrastiveLoss:
    """Paper A's loss (1), by the names of its similarity and its link."""
    return ContrastiveLoss(similarity_from(similarity, delta=delta), link_from(link, temperature=temperature))


def generator(purpose: str, *key: int) -> torch.Generator:
    """A random generator for one purpose and key; different purposes or keys give independent streams."""
    return generator_for(zlib.crc32(purpose.encode()), *key)


def sweep(
    widths: Sequence[int], seeds: Sequence[int], measure: Callable[[int, int], Mapping[str, Any]], **coordinates: Any
) -> xr.Dataset:
    """Call `measure(width, seed)` over the grid; every key of its results becomes a variable over (width, seed, …).

    Results that are arrays have the dimensions named in `coordinates`, in order, such as `step=(0, 10, 100)`.
    """
    rows = [[measure(width, seed) for seed in seeds] for width in widths]
    variables = {}
    for name in rows[0][0]:
        values = np.asarray([[np.asarray(_plain(cell[name]), dtype=float) for cell in row] for row in rows])
        variables[name] = (("width", "seed", *list(coordinates)[: values.ndim - 2]), values)
    named = {key: np.asarray(values) for key, values in coordinates.items()}
    return xr.Dataset(variables, coords={"width": list(widths), "seed": list(seeds), **named})


def width_law(values: xr.DataArray, *, from_width: int = 0) -> Estimate:
    """The exponent in the width of the mean over seeds, from `from_width` on; NaN unless all means are positive."""
    means = values.where(values.width >= from_width, drop=True).mean("seed", skipna=False)
    if not (np.isfinite(means.values).all() and (means.values > 0).all()):
        return Estimate.of(math.nan)
    return Estimate.of(fit_power_law(means.width.values, means.values))


def seed_mean(values: xr.DataArray) -> NDArray[np.float64]:
    """The mean over seeds; NaN if one seed is NaN, so that no failed run is averaged away."""
    return np.asarray(values.mean("seed", skipna=False).values, dtype=float)


def largest(*values: ArrayLike | Tensor) -> float:
    """The largest of numbers, arrays and tensors; NaN if one is NaN, which `max` of Python and xarray would lose."""
    return float(np.max([np.max(np.asarray(_plain(value))) for value in values]))


def smallest(*values: ArrayLike | Tensor) -> float:
    """The smallest of numbers, arrays and tensors; NaN if one is NaN."""
    return float(np.min([np.min(np.asarray(_plain(value))) for value in values]))


def geometric(first: int, last: int, factor: int = 2) -> tuple[int, ...]:
    """Sizes from `first` to `last`, each `factor` times the one before."""
    sizes = [first]
    while sizes[-1] < last:
        sizes.append(factor * sizes[-1])
    return tuple(sizes)


def _plain(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else value
