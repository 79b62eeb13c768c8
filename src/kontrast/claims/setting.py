"""At which scale, on which data and where a claim is measured; and the samples, networks and sweeps all claims share."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray

from kontrast._types import Tensor, resolve_device
from kontrast.data import Dataset, Pairs, default_view, make_pairs
from kontrast.errors import InputError
from kontrast.linalg import PowerLaw, fit_power_law
from kontrast.losses import ContrastiveLoss, link_from, similarity_from
from kontrast.nets import MLP
from kontrast.sweep import load_data

Scale = Literal["quick", "full", "paper"]
SCALES: tuple[Scale, ...] = ("quick", "full", "paper")
T = TypeVar("T")


@dataclass(frozen=True)
class Setting:
    """What decides the numbers of a verification beside the code.

    Attributes:
        scale: "quick" (seconds a claim), "full" (the setting behind the expected numbers) or "paper" (1000 samples,
            widths to 8192 and more, 500 steps; for a GPU).
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

    def pairs(
        self, n: int, *, seed: int, data: str | None = None, negatives: int | Literal["all"] = 1, positives: int = 1
    ) -> Pairs:
        """n anchors with one cropped positive and one random negative each, as all of paper A's experiments have."""
        dataset, draw = self.dataset(data), generator("pairs", seed)
        if n > len(dataset):
            raise InputError(
                f"this claim needs {n} samples and {data or self.data_names[0]!r} has {len(dataset)}; "
                "give a larger --data or use --quick"
            )
        sample = dataset.subsample(n, generator=draw)
        made = make_pairs(
            sample.x, view=default_view(dataset), n_positives=positives, negatives=negatives, generator=draw
        )
        return made.to(device=self.device)

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


def loss_of(similarity: str, link: str = "linear", *, delta: float = 0.01, temperature: float = 1.0) -> ContrastiveLoss:
    """Paper A's loss (1) by the names of its two parts."""
    return ContrastiveLoss(similarity_from(similarity, delta=delta), link_from(link, temperature=temperature))


def generator(purpose: str, *key: int) -> torch.Generator:
    """A generator for one purpose and key: independent streams for different ones."""
    state = np.random.SeedSequence([zlib.crc32(purpose.encode()), *key]).generate_state(1)[0]
    return torch.Generator().manual_seed(int(state))


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


def width_law(values: xr.DataArray, *, from_width: int = 0) -> PowerLaw:
    """The power law in the width of the mean over seeds, from some width on."""
    means = values.where(values.width >= from_width, drop=True).mean("seed", skipna=False)
    return fit_power_law(means.width.values, means.values)


def seed_mean(values: xr.DataArray) -> NDArray[np.float64]:
    """The mean over seeds; NaN where one seed is, so that no failed run is averaged away."""
    return np.asarray(values.mean("seed", skipna=False).values, dtype=float)


def _plain(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else value
