"""C.width: the patterns that filters find on real digits, and how many of them a wider layer collects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor

from kontrast.claims.evidence import Evidence, Finding, Panel, Verdict, corrected, curve, judged, printed, shown
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, largest
from kontrast.data import Dataset, draw_patches
from kontrast.patterns import GatedCovariance, GaussianImportance, InfoNCEImportance, LMEs, find_lmes, power_iteration

Array = NDArray[np.float64]

DATA = "mnist5k"
CHOSEN = "7 × 7 patches"  # for everything measured on one kind only
KINDS = {"5 × 5 patches": 5, "7 × 7 patches": 7, "whole images": None}
LEAST_STD = 0.1  # of a patch's pixels: the background of digits has none
MOST_COMPONENTS = 40  # of raw samples; they hold 79 % of the variance of MNIST images and more of that of patches
DISTINCT = 0.3  # the distance from which on two patterns are different: a cosine of 0.955
MATCHED = 0.9  # the cosine from which on a filter has a pattern
FEW = 8  # filters, compared with the widest layer
TEMPERATURES = (16.0, 4.0, 1.0, 0.25, 0.06)  # in units of the median squared distance
DRAWS = 60  # subsets of the starts per width
NUDGE = 0.3  # length of the vector added to a start of length 1


@dataclass(frozen=True, eq=False)
class Samples:
    """Patches or images in their principal coordinates, raw and whitened."""

    raw: Tensor  # (n, r): coordinates of falling variance, centred
    white: Tensor  # (n, w): the first w of them at variance 1

    @classmethod
    def of(cls, data: Dataset, side: int | None, n: int, n_white: int, seed: int, device: str) -> Samples:
        """Patches of this side, each minus its mean; whole images if `side` is None."""
        draw = generator("digits", seed, side or 0)
        if side is None:
            x = data.subsample(n, generator=draw).rows
        else:
            x = draw_patches(data, side, n, generator=draw, min_std=LEAST_STD)
            x = x - x.mean(1, keepdim=True)
        u, sizes, _ = torch.linalg.svd((x - x.mean(0)).to(device), full_matrices=False)
        rank = min(MOST_COMPONENTS, int((sizes > 1e-9 * sizes[0]).sum()))
        return cls(u[:, :rank] * sizes[:rank], u[:, : min(n_white, rank)] * len(x) ** 0.5)


@dataclass(frozen=True, eq=False)
class Collection:
    """The patterns that many starts find: one half of the starts measures the basins, the other makes up layers."""

    found: LMEs

    @cached_property
    def halves(self) -> tuple[Array, Array]:
        """The pattern of each start, by halves; a start that reached none counts as a pattern of its own."""
        ends = self.found.assignment.cpu().numpy()
        own = len(self.found) + np.arange(len(ends))
        half = len(ends) // 2
        each = np.where(ends < 0, own, ends)
        return each[:half], each[half:]

    @cached_property
    def shares(self) -> Array:
        """Basin shares, from the first half."""
        return np.unique(self.halves[0], return_counts=True)[1] / len(self.halves[0])

    def collected(self, width: int, seed: int) -> float:
        """Number of patterns among `width` filters of the second half, averaged over subsets."""
        draw, second = np.random.default_rng([seed, width]), self.halves[1]
        return float(np.mean([len(set(draw.choice(second, width, replace=False).tolist())) for _ in range(DRAWS)]))

    def predicted(self, width: int) -> float:
        """The collector's curve Σ_j 1 − (1 − p_j)^K."""
        return float((1 - (1 - self.shares) ** width).sum())

    @property
    def growth(self) -> float:
        """Number of patterns in the widest layer over that among `FEW` filters."""
        return self.collected(len(self.halves[1]), 0) / self.collected(FEW, 0)


@claim(
    "C.width",
    source="Paper C, Sec. 3.1, possible relationship to empirical observations, and Sec. 1",
    title="Real digits: the more filters, the more patterns",
    printed="The more nonlinear nodes with different initialization, the more local optima are likely to be collected "
    "as learned patterns; with linear activation only one major pattern is learned. Luckily initialized filters come "
    "back to their patterns when they are retrained from their own start.",
    corrected="Linear filters do learn one direction. But on raw patches and images ReLU filters learn two or three "
    "patterns, however many filters there are. Many patterns take whitened samples, like the x of the paper's "
    "summation model; on these linear filters learn nothing, as A = I. The number of patterns follows the collector's "
    "curve Σ_j 1 − (1 − p_j)^K of the basin shares p, until all are found. All of them are stable. With InfoNCE's α, "
    "which sees all outputs, filters cannot be treated one by one as in (5): they drive each other apart, and many end "
    "at none of these patterns.",
    recorded=Verdict.CORRECTED,
    cost=3,
)
def width(setting: Setting) -> Evidence:
    """Patterns of patches and images, ReLU beside linear, against width and τ; lottery tickets; an InfoNCE network."""
    n, n_white = setting.pick(quick=300, full=600, paper=2000), setting.pick(quick=10, full=16, paper=20)
    n_starts, seeds = setting.pick(quick=96, full=512, paper=512), setting.seeds(quick=1, full=2, paper=3)
    data = setting.dataset(setting.data[0] if setting.data else DATA)
    samples = {
        (kind, seed): Samples.of(data, side, min(n, len(data)), n_white, seed, setting.device)
        for kind, side in KINDS.items()
        for seed in seeds
    }
    raw = {key: _patterns(each.raw, n_starts, key[1]) for key, each in samples.items()}
    white = {key: _patterns(each.white, n_starts, key[1]) for key, each in samples.items()}
    chosen = [(samples[CHOSEN, seed].white, white[CHOSEN, seed], seed) for seed in seeds]
    temperatures = setting.pick(quick=TEMPERATURES[2::2], full=TEMPERATURES, paper=TEMPERATURES)
    by_temperature = np.array([_by_temperature(x, temperatures, n_starts, seed) for x, _, seed in chosen])
    at_uniform = _mean(len(each.shares) for _, each, _ in chosen)
    widths = [2**k for k in range((n_starts // 2).bit_length())]
    table = _by_width({"as they are": raw, "whitened": white}, widths, list(seeds))
    return judged(
        *_linear(samples),
        *_collected(list(raw.values()), list(white.values()), table),
        *_lottery(chosen),
        *_joint_network(chosen, setting.pick(quick=16, full=64, paper=64)),
        *shown(
            most_patterns_at_a_temperature=float(by_temperature.mean(0).max()),
            patterns_at_least_temperature_over_uniform=_mean(by_temperature[:, -1]) / at_uniform,
            patterns_at_uniform=at_uniform,
        ),
        data=table.assign(by_temperature=(("seed", "temperature"), by_temperature), temperature=list(temperatures)),
        panels=[*_width_panels(table), _temperature_panel(temperatures, by_temperature, at_uniform)],
        setting={"data": data.name, "samples": n, "starts": n_starts, "white_components": n_white}
        | {"components": MOST_COMPONENTS, "seeds": len(seeds)},
        warnings=[
            "retraining a filter from its own start repeats the same computation: that all filters come back says "
            "nothing. Measured instead: filters from other starts do not come back, and most from nudged starts do"
        ],
    )


def _linear(samples: Mapping[tuple[str, int], Samples]) -> tuple[Finding, ...]:
    """Linear filters, on raw samples and on whitened ones."""
    found = [_patterns(each.raw, 32, key[1], activation="linear") for key, each in samples.items()]
    n_patterns = largest(*(len(each.found) for each in found))
    words = "number of directions that linear filters learn"
    move = largest(*(_linear_move(each.white, key[1]) for key, each in samples.items()))
    return (
        printed("linear_patterns", n_patterns, words, low=1, high=1),
        corrected("linear_patterns", n_patterns, words, low=1, high=1),
        corrected("linear_move_on_white", move, "whitened samples: largest move of a linear filter", high=1e-6),
    )


def _collected(raw: Sequence[Collection], white: Sequence[Collection], table: xr.Dataset) -> tuple[Finding, ...]:
    """Patterns of ReLU filters: how many, how their number grows with the width, and their stability."""
    growth, found = _mean(each.growth for each in raw), [each.found for each in (*raw, *white)]
    n_raw = _mean(len(each.shares) for each in raw)
    growth_white = _mean(each.growth for each in white)
    ratio = float((table.collected / table.predicted).sel(samples="whitened").mean())
    stable = _mean(float(each.stable.double().mean()) for each in found)
    at_first = _mean(float(f.basins[f.weights[:, 0].abs() > MATCHED].sum()) for f in (each.found for each in raw))
    return (
        printed("relu_growth_as_they_are", growth, f"raw: patterns of the widest layer over those of {FEW}", low=1.5),
        corrected("relu_growth_as_they_are", growth, "this ratio: hardly any growth", high=1.3),
        corrected("relu_patterns_as_they_are", n_raw, "ReLU, raw: number of patterns, two or three", low=1.5, high=4),
        corrected("relu_growth_white", growth_white, "whitened samples: the same ratio", low=1.5),
        corrected("collected_over_foretold", ratio, "whitened: patterns over collector's curve", low=0.85, high=1.15),
        corrected("share_stable", stable, "share of the patterns that are stable", low=0.99),
        *shown(
            relu_patterns_white=_mean(len(each.shares) for each in white),
            share_at_first_component=at_first,
            share_maximal=_mean(float(each.maximal.double().mean()) for each in found),
            share_certified=_mean(float(each.certified.double().mean()) for each in found),
        ),
    )


def _patterns(x: Tensor, n_starts: int, seed: int, **options: Any) -> Collection:
    """The patterns from random starts; after 300 steps `find_lmes` can bring the filters to their ends."""
    draw = generator("starts of digits", seed)
    return Collection(find_lmes(x, n_starts=n_starts, max_steps=300, distinct=DISTINCT, generator=draw, **options))


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _linear_move(x: Tensor, seed: int) -> float:
    starts = _directions(32, x, seed)
    run = power_iteration(GatedCovariance(x, activation="linear"), starts, max_steps=100)
    return float((run.weights - starts).norm(dim=1).max())


def _directions(n: int, like: Tensor, seed: int) -> Tensor:
    rows = torch.randn(n, like.shape[1], generator=generator("directions", seed), dtype=torch.float64).to(like)
    return torch.as_tensor(rows / rows.norm(dim=1, keepdim=True))


Chosen = Sequence[tuple[Tensor, Collection, int]]  # whitened samples, their patterns and the seed


def _lottery(chosen: Chosen) -> tuple[Finding, ...]:
    """How often a filter's pattern is found again: from another random start, and from one near its own."""
    another, nudged, chances, ratios = [], [], [], []
    for x, patterns, seed in chosen:
        starts = _directions(len(patterns.halves[1]), x, seed)
        elsewhere = _directions(len(starts), x, seed + 1000)
        nearby = starts + NUDGE * _directions(len(starts), x, seed + 2000)
        first, other, near = (patterns.found.match(_trained(x, w)).index for w in (starts, elsewhere, nearby))
        another.append(float((first[:, None] == other).double().mean()))
        nudged.append(float((first == near).double().mean()))
        chances.append(float((patterns.shares**2).sum()))
        ratios.append(another[-1] / chances[-1])
    ratio, words = _mean(ratios), "how often another start finds the same pattern, over Σp²"
    return (
        corrected("ticket_another_start_over_chance", ratio, words, low=0.6, high=1.6),
        corrected("ticket_nudged_start", _mean(nudged), "share of nudged starts that find the same pattern", low=0.5),
        *shown(ticket_another_start=_mean(another), ticket_chance=_mean(chances)),
    )


def _trained(x: Tensor, starts: Tensor) -> Tensor:
    return power_iteration(GatedCovariance(x), starts, max_steps=300, tolerance=1e-5).weights


def _joint_network(chosen: Chosen, n_filters: int) -> tuple[Finding, ...]:
    """Filters trained together by InfoNCE, τ the median half squared distance of the first outputs, and each alone."""
    shares: dict[str, list[float]] = {"": [], "_alone": [], "_untrained": []}
    places, unrest = [], []
    for x, patterns, seed in chosen:
        starts = _directions(n_filters, x, seed)
        temperature = float(torch.pdist(torch.relu(x @ starts.mT)).square().median()) / 2
        field = GatedCovariance(x, importance=InfoNCEImportance(temperature), importance_of="outputs")
        together = power_iteration(field, starts, max_steps=150, tolerance=1e-5).weights
        alone = _trained(x, starts)
        for name, w in zip(shares, (together, alone, starts), strict=True):
            shares[name].append(float((patterns.found.match(w).cosines > MATCHED).double().mean()))
        places.append(_places(together) / _places(alone))
        pull = field.product(together)
        unrest.append(float((1 - (pull * together).sum(1) / pull.norm(dim=1)).median()))  # 1 − cos of w and A(w)w
    return (
        corrected("joint_at_a_pattern", _mean(shares.pop("")), "share of InfoNCE's filters at a pattern", high=0.8),
        corrected("joint_places_over_alone", _mean(places), "number of their ends over that of filters alone", low=1.2),
        *shown(joint_unrest=_mean(unrest), **{f"joint_at_a_pattern{name}": _mean(of) for name, of in shares.items()}),
    )


def _places(filters: Tensor) -> int:
    """The number of different filters: those within `DISTINCT` of an earlier one do not count."""
    kept: list[Tensor] = []
    for w in filters:
        if all(float((w - other).norm()) > DISTINCT for other in kept):
            kept.append(w)
    return len(kept)


def _by_temperature(x: Tensor, temperatures: Sequence[float], n_starts: int, seed: int) -> list[int]:
    median = float(torch.pdist(x[:1000]).square().median())
    return [
        len(_patterns(x, n_starts, seed, importance=GaussianImportance(tau * median)).shares) for tau in temperatures
    ]


def _by_width(
    found: Mapping[str, Mapping[tuple[str, int], Collection]], widths: Sequence[int], seeds: Sequence[int]
) -> xr.Dataset:
    """Numbers of patterns, collected and predicted, over samples, kind, seed and width."""
    cells = [
        [[[(c := each[kind, seed]).collected(K, seed), c.predicted(K)] for K in widths] for seed in seeds]
        for each in found.values()
        for kind in KINDS
    ]
    values = np.array(cells).reshape(len(found), len(KINDS), len(seeds), len(widths), 2)
    dims = ("samples", "kind", "seed", "width")
    return xr.Dataset(
        {"collected": (dims, values[..., 0]), "predicted": (dims, values[..., 1])},
        coords={"samples": list(found), "kind": list(KINDS), "seed": list(seeds), "width": list(widths)},
    )


def _width_panels(table: xr.Dataset) -> list[Panel]:
    means, panels = table.mean("seed"), []
    for name in table.samples.values:
        curves = []
        for kind in KINDS:
            of = means.sel(samples=name, kind=kind)
            curves.append(curve(kind, of.width, of.collected))
            curves.append(curve(f"predicted, {kind}", of.width, of.predicted, "dashed"))
        title = f"ReLU filters on {'raw' if name == 'as they are' else name} samples"
        panels.append(Panel(title, "filters K", "patterns", tuple(curves), y_log=False))
    return panels


def _temperature_panel(temperatures: Sequence[float], counts: Array, uniform: float) -> Panel:
    gaussian = curve("Gaussian α", temperatures, counts.mean(0))
    flat = curve("uniform α", temperatures, [uniform] * len(temperatures), "dashed")
    title, x_label = "Whitened 7 × 7 patches: Gaussian α of the samples", "τ in median squared distances"
    return Panel(title, x_label, "patterns", (gaussian, flat), y_log=False)
