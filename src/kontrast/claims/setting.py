"""Scale, data and device of a measurement; and the samples, networks and sweeps that all claims share."""

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
from numpy.typing import NDArray
from torch import Tensor

from kontrast.checks import resolve_device
from kontrast.claims.evidence import Estimate
from kontrast.data import Dataset, Pairs, default_view, load_data, make_pairs
from kontrast.errors import InputError
from kontrast.linalg import fit_power_law
from kontrast.losses import ContrastiveLoss, link_from, similarity_from
from kontrast.nets import MLP
from kontrast.runs import generator_for

Scale = Literal["quick", "full", "paper"]
SCALES: tuple[Scale, ...] = ("quick", "full", "paper")
T = TypeVar("T")


@dataclass(frozen=True)
class Setting:
    """What decides the numbers of a verification beside the code.

    Attributes:
        scale: "quick" (seconds a claim), "full" (the setting behind the expected numbers) or "paper" (widths to
            8192 and more, 500 steps, 1000 samples for its figures; for a GPU).
        device: where tensors live.
        n_seeds: runs that are averaged; each claim has its own default.
        data: data sets by name or file; the first serves every claim, the others those that compare data.
    """

    scale: Scale = "full"
    device: str = "cpu"
    n_seeds: int | None = None
    data: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise InputError(f"scale must be one of {', '.join(SCALES)}, got {self.scale!r}")
        resolve_device(self.device)
        if self.n_seeds is not None and self.n_seeds < 1:
            raise InputError(f"seeds must be at least 1, got {self.n_seeds}")
        if len(set(self.data)) < len(self.data):
            raise InputError(f"give every data set once, got {list(self.data)}")

    def pick(self, *, quick: T, full: T, paper: T) -> T:
        """The choice for this scale."""
        return {"quick": quick, "full": full, "paper": paper}[self.scale]

    def seeds(self, *, quick: int, full: int = 5, paper: int = 5) -> range:
        """The seeds to average over: as many as the user asked for, or as the claim needs."""
        return range(self.n_seeds or self.pick(quick=quick, full=full, paper=paper))

    @property
    def data_names(self) -> tuple[str, ...]:
        """The data sets, with the default filled in: small digits for quick and full runs, MNIST for the paper's."""
        return self.data or ("mnist5k" if self.scale == "paper" else "digits",)

    def dataset(self, name: str | None = None) -> Dataset:
        """A data set in float64; the first of `data_names` without a name."""
        return load_data(name or self.data_names[0], "all", None)

    def mean_square(self, name: str | None = None) -> float:
        """The mean ‖x‖² of a data set, which sets the time scale of the dot product."""
        return _mean_square(name or self.data_names[0])

    def pairs(self, n: int, *, seed: int, data: str | None = None) -> Pairs:
        """Anchors with one cropped positive and one random negative each, as all of paper A's experiments have."""
        return self.labeled_pairs(n, seed=seed, data=data)[0]

    def labeled_pairs(self, n: int, *, seed: int, data: str | None = None) -> tuple[Pairs, Tensor | None]:
        """The same with the anchors' labels, where the data has them."""
        return _labeled_pairs(data or self.data_names[0], n, seed, self.device)

    def net(self, x: Tensor, width: int, d_out: int, *, seed: int, activation: str = "relu", depth: int = 1) -> MLP:
        """Paper A's network (2) for rows like x, in float64; its weights depend on width and seed alone."""
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


@functools.lru_cache(maxsize=16)  # widths share their samples
def _labeled_pairs(data: str, n: int, seed: int, device: str) -> tuple[Pairs, Tensor | None]:
    dataset, draw = load_data(data, "all", None), generator("pairs", seed)
    if n > len(dataset):
        raise InputError(f"this claim needs {n} samples and {data!r} has {len(dataset)}; give a larger --data")
    sample = dataset.subsample(n, generator=draw)
    made = make_pairs(sample.x, views=default_view(dataset), generator=draw).to(device=device)
    return made, None if sample.y is None else sample.y.to(device)


@functools.lru_cache(maxsize=8)
def _mean_square(name: str) -> float:
    return float(load_data(name, "all", None).rows.pow(2).sum(1).mean())


def loss_of(similarity: str, link: str = "linear", *, delta: float = 0.01, temperature: float = 1.0) -> ContrastiveLoss:
    """Paper A's loss (1) by the names of its two parts."""
    return ContrastiveLoss(similarity_from(similarity, delta=delta), link_from(link, temperature=temperature))


def generator(purpose: str, *key: int) -> torch.Generator:
    """A generator for one purpose and key: independent streams for different ones."""
    return generator_for(zlib.crc32(purpose.encode()), *key)


def sweep(
    widths: Sequence[int], seeds: Sequence[int], measure: Callable[[int, int], Mapping[str, Any]], **coordinates: Any
) -> xr.Dataset:
    """`measure(width, seed)` over the grid, one variable a key over (width, seed, …).

    Values that are arrays have the dimensions named in `coordinates`, in order: `step=(0, 10, 100)`, say.
    """
    rows = [[measure(width, seed) for seed in seeds] for width in widths]
    variables = {}
    for name in rows[0][0]:
        values = np.asarray([[np.asarray(_plain(cell[name]), dtype=float) for cell in row] for row in rows])
        variables[name] = (("width", "seed", *list(coordinates)[: values.ndim - 2]), values)
    named = {key: np.asarray(values) for key, values in coordinates.items()}
    return xr.Dataset(variables, coords={"width": list(widths), "seed": list(seeds), **named})


def width_law(values: xr.DataArray, *, from_width: int = 0) -> Estimate:
    """The exponent in the width of the mean over seeds, from some width on; NaN where a mean is no positive number."""
    means = values.where(values.width >= from_width, drop=True).mean("seed", skipna=False)
    if not (np.isfinite(means.values).all() and (means.values > 0).all()):
        return Estimate.of(math.nan)
    return Estimate.of(fit_power_law(means.width.values, means.values))


def seed_mean(values: xr.DataArray) -> NDArray[np.float64]:
    """The mean over seeds; NaN where one seed is, so that no failed run is averaged away."""
    return np.asarray(values.mean("seed", skipna=False).values, dtype=float)


def largest(*values: float) -> float:
    """The largest; NaN where one is, which Python's `max` would lose."""
    return float(np.max(values))


def _plain(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else value
