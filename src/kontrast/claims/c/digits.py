"""Paper C, Sec. 3.1, on real digits: which patterns filters find, and how many of them a wider layer collects."""

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

from kontrast.claims.evidence import Criterion, Evidence, Panel, Style, Verdict, curve, evidence
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, largest
from kontrast.data import Dataset, draw_patches
from kontrast.patterns import GatedCovariance, GaussianImportance, InfoNCEImportance, LMEs, find_lmes, power_iteration

Array = NDArray[np.float64]

DATA = "mnist5k"
CHOSEN = "7 × 7 patches"  # for all that is measured once
KINDS = {"5 × 5 patches": 5, "7 × 7 patches": 7, "whole images": None}
LEAST_STD = 0.1  # of a patch's pixels: the background of digits has none
MOST_COMPONENTS = 40  # of samples as they are, which hold 79 % of the variance of MNIST images and more of the patches'
DISTINCT = 0.3  # patterns this far apart are two: a cosine of 0.955
MATCHED = 0.9  # the cosine at which a filter has a pattern
FEW = 8  # filters, beside the widest layer
TEMPERATURES = (16.0, 4.0, 1.0, 0.25, 0.06)  # in units of the median squared distance
DRAWS = 60  # subsets of the starts, for each width
NUDGE = 0.3  # the length of what is added to a start of length 1


@dataclass(frozen=True, eq=False)
class Samples:
    """Patches or images in their principal coordinates, as they are and whitened.

    Attributes:
        raw: (n, r): coordinates of falling variance, centred.
        white: (n, w): the first w of them at variance 1.
    """

    raw: Tensor
    white: Tensor

    @classmethod
    def of(cls, data: Dataset, side: int | None, n: int, n_white: int, seed: int, device: str) -> Samples:
        """Patches of a side, each less its mean; or images, without a side."""
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
    """The patterns that many starts found: basins are judged by one half of them, layers are made of the other."""

    found: LMEs

    @cached_property
    def halves(self) -> tuple[Array, Array]:
        """Each start's pattern; one that came to none has a pattern of its own, which no other start has."""
        ends = self.found.assignment.cpu().numpy()
        own = len(self.found) + np.arange(len(ends))
        half = len(ends) // 2
        each = np.where(ends < 0, own, ends)
        return each[:half], each[half:]

    @cached_property
    def shares(self) -> Array:
        """Basin shares by the first half."""
        return np.unique(self.halves[0], return_counts=True)[1] / len(self.halves[0])

    def collected(self, width: int, seed: int) -> float:
        """Patterns among so many filters of the second half, the mean over subsets."""
        draw, second = np.random.default_rng([seed, width]), self.halves[1]
        return float(np.mean([len(set(draw.choice(second, width, replace=False).tolist())) for _ in range(DRAWS)]))

    def foretold(self, width: int) -> float:
        """The collector's curve Σ_j 1 − (1 − p_j)^K."""
        return float((1 - (1 - self.shares) ** width).sum())

    @property
    def growth(self) -> float:
        """Patterns in the widest layer over those among `FEW` filters."""
        return self.collected(len(self.halves[1]), 0) / self.collected(FEW, 0)


@claim(
    "C.width",
    source="Paper C, Sec. 3.1, possible relationship to empirical observations, and Sec. 1",
    title="Real digits: the more filters, the more patterns",
    printed="The more nonlinear nodes with different initialization, the more local optima are likely to be collected "
    "as learned patterns; with linear activation only one major pattern is learned. Luckily initialized filters come "
    "back to their patterns when they are retrained from their own start.",
    corrected="Linear filters do learn one direction. But on patches and images as they are ReLU filters learn two or "
    "three patterns, however many there are. It takes "
    "whitened samples, like the x of the paper's summation model, for many patterns; there linear filters learn none, "
    "as A = I. Their number follows the collector's curve Σ_j 1 − (1 − p_j)^K of the basin shares p, until all are "
    "found. They are stable. With the α of InfoNCE, which sees all outputs, filters cannot be considered one by one as "
    "in (5): they drive each other apart, and many end at none of these patterns.",
    recorded=Verdict.CORRECTED,
    cost=3,
)
def width(setting: Setting) -> Evidence:
    """Patterns of patches and images, ReLU beside linear, against width and τ; lottery tickets; an InfoNCE network."""
    n, n_white = setting.pick(quick=300, full=600, paper=2000), setting.pick(quick=10, full=16, paper=20)
    n_starts, seeds = setting.pick(quick=96, full=512, paper=512), setting.seeds(quick=1, full=2, paper=3)
    n_filters = setting.pick(quick=16, full=64, paper=64)
    data = setting.dataset(setting.data[0] if setting.data else DATA)
    samples = {
        (kind, seed): Samples.of(data, side, min(n, len(data)), n_white, seed, setting.device)
        for kind, side in KINDS.items()
        for seed in seeds
    }
    raw = {key: _patterns(each.raw, n_starts, key[1]) for key, each in samples.items()}
    white = {key: _patterns(each.white, n_starts, key[1]) for key, each in samples.items()}
    linear = [_patterns(each.raw, 32, key[1], activation="linear") for key, each in samples.items()]
    chosen = [(samples[CHOSEN, seed].white, white[CHOSEN, seed], seed) for seed in seeds]
    tickets = [_lottery(*each) for each in chosen]
    joint = [_joint_network(*each, n_filters=n_filters) for each in chosen]
    temperatures = setting.pick(quick=TEMPERATURES[2::2], full=TEMPERATURES, paper=TEMPERATURES)
    by_temperature = np.array([_by_temperature(x, temperatures, n_starts, seed) for x, _, seed in chosen])
    widths = [2**k for k in range((n_starts // 2).bit_length())]
    table = _by_width({"as they are": raw, "whitened": white}, widths, list(seeds))
    found = [each.found for each in (*raw.values(), *white.values())]
    at_uniform = _mean(len(each.shares) for _, each, _ in chosen)
    measured = {
        "linear_patterns": largest(*(len(each.found) for each in linear)),
        "linear_move_on_white": largest(*(_linear_move(each.white, key[1]) for key, each in samples.items())),
        "relu_growth_as_they_are": _mean(each.growth for each in raw.values()),
        "relu_growth_white": _mean(each.growth for each in white.values()),
        "relu_patterns_as_they_are": _mean(len(each.shares) for each in raw.values()),
        "relu_patterns_white": _mean(len(each.shares) for each in white.values()),
        "share_at_first_component": _mean(_share_at_first(each.found) for each in raw.values()),
        "collected_over_foretold": float((table.collected / table.foretold).sel(samples="whitened").mean()),
        "most_patterns_at_a_temperature": float(by_temperature.mean(0).max()),
        "patterns_at_least_temperature_over_uniform": _mean(by_temperature[:, -1]) / at_uniform,
        "patterns_at_uniform": at_uniform,
        "share_stable": _mean(float(each.stable.double().mean()) for each in found),
        "share_maximal": _mean(float(each.maximal.double().mean()) for each in found),
        "share_certified": _mean(float(each.certified.double().mean()) for each in found),
        **{f"ticket_{name}": _mean(each[name] for each in tickets) for name in tickets[0]},
        **{f"joint_{name}": _mean(each[name] for each in joint) for name in joint[0]},
    }
    return evidence(
        measured,
        _CRITERIA,
        data=table.assign(by_temperature=(("seed", "temperature"), by_temperature), temperature=list(temperatures)),
        panels=[*_width_panels(table), _temperature_panel(temperatures, by_temperature, at_uniform)],
        setting={"data": data.name, "samples": n, "starts": n_starts, "white_components": n_white}
        | {"components": MOST_COMPONENTS, "seeds": len(seeds)},
        warnings=[
            "retraining a filter from its own start repeats the same computation: that all come back says nothing. "
            "That filters from other starts do not, and that nudged starts mostly do, is what was measured"
        ],
    )


_CRITERIA = (
    Criterion("linear_patterns", "linear filters learn one direction", low=1, high=1),
    Criterion("relu_growth_as_they_are", "ReLU: the widest layer has more patterns than 8 filters", low=1.5),
    Criterion("linear_patterns", "linear filters learn one direction", low=1, high=1, role="corrected"),
    Criterion("relu_growth_as_they_are", "ReLU, samples as they are: hardly more", high=1.3, role="corrected"),
    Criterion("relu_patterns_as_they_are", "two or three patterns", low=1.5, high=4, role="corrected"),
    Criterion("relu_growth_white", "whitened samples: more filters, more patterns", low=1.5, role="corrected"),
    Criterion("linear_move_on_white", "where linear filters stay at their starts", high=1e-6, role="corrected"),
    Criterion(
        "collected_over_foretold", "patterns over those of the collector's curve", low=0.85, high=1.15, role="corrected"
    ),
    Criterion("share_stable", "all are stable", low=0.99, role="corrected"),
    Criterion(
        "ticket_another_start_over_chance", "another start wins as often as Σp²", low=0.6, high=1.6, role="corrected"
    ),
    Criterion("ticket_nudged_start", "one near a filter's own wins mostly", low=0.5, role="corrected"),
    Criterion("joint_at_a_pattern", "InfoNCE's filters at a pattern of uniform α", high=0.8, role="corrected"),
    Criterion("joint_places_over_alone", "at how many places, over each filter alone", low=1.2, role="corrected"),
)


def _patterns(x: Tensor, n_starts: int, seed: int, **options: Any) -> Collection:
    """After 300 steps filters are near enough to their ends for `find_lmes` to bring them there."""
    draw = generator("starts of digits", seed)
    return Collection(find_lmes(x, n_starts=n_starts, max_steps=300, distinct=DISTINCT, generator=draw, **options))


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _share_at_first(found: LMEs) -> float:
    """The share of the starts that ended at ± the first principal component."""
    return float(found.basins[found.weights[:, 0].abs() > MATCHED].sum())


def _linear_move(x: Tensor, seed: int) -> float:
    starts = _directions(32, x, seed)
    run = power_iteration(GatedCovariance(x, activation="linear"), starts, max_steps=100)
    return float((run.weights - starts).norm(dim=1).max())


def _directions(n: int, like: Tensor, seed: int) -> Tensor:
    rows = torch.randn(n, like.shape[1], generator=generator("directions", seed), dtype=torch.float64).to(like)
    return torch.as_tensor(rows / rows.norm(dim=1, keepdim=True))


def _lottery(x: Tensor, patterns: Collection, seed: int) -> dict[str, float]:
    """How often a filter's pattern is found again: from another random start, and from one near its own."""
    starts = _directions(len(patterns.halves[1]), x, seed)
    first = patterns.found.match(_trained(x, starts)).index
    others = patterns.found.match(_trained(x, _directions(len(starts), x, seed + 1000))).index
    nudged = patterns.found.match(_trained(x, starts + NUDGE * _directions(len(starts), x, seed + 2000))).index
    chance = float((patterns.shares**2).sum())
    same = float((first[:, None] == others).double().mean())
    return {
        "another_start": same,
        "chance": chance,
        "another_start_over_chance": same / chance,
        "nudged_start": float((first == nudged).double().mean()),
    }


def _trained(x: Tensor, starts: Tensor) -> Tensor:
    return power_iteration(GatedCovariance(x), starts, max_steps=300, tolerance=1e-5).weights


def _joint_network(x: Tensor, patterns: Collection, seed: int, *, n_filters: int) -> dict[str, float]:
    """Filters trained together by InfoNCE, τ the median half squared distance of the first outputs, and each alone."""
    starts = _directions(n_filters, x, seed)
    temperature = float(torch.pdist(torch.relu(x @ starts.mT)).square().median()) / 2
    field = GatedCovariance(x, importance=InfoNCEImportance(temperature), importance_of="outputs")
    ends = {
        "": power_iteration(field, starts, max_steps=150, tolerance=1e-5).weights,
        "_alone": _trained(x, starts),
        "_untrained": starts,
    }
    pull = field.product(ends[""])
    return {
        **{f"at_a_pattern{name}": _share_matched(patterns.found, w) for name, w in ends.items()},
        "places_over_alone": _places(ends[""]) / _places(ends["_alone"]),
        "unrest": float((1 - (pull * ends[""]).sum(1) / pull.norm(dim=1)).median()),  # 1 − cos of w and A(w)w
    }


def _share_matched(found: LMEs, filters: Tensor) -> float:
    return float((found.match(filters).cosines > MATCHED).double().mean())


def _places(filters: Tensor) -> int:
    """How many there are, those within `DISTINCT` of one counted already left out."""
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
    """Patterns collected and foretold, over samples, kind, seed and width."""
    cells = [
        [[[(c := each[kind, seed]).collected(K, seed), c.foretold(K)] for K in widths] for seed in seeds]
        for each in found.values()
        for kind in KINDS
    ]
    values = np.array(cells).reshape(len(found), len(KINDS), len(seeds), len(widths), 2)
    dims = ("samples", "kind", "seed", "width")
    return xr.Dataset(
        {"collected": (dims, values[..., 0]), "foretold": (dims, values[..., 1])},
        coords={"samples": list(found), "kind": list(KINDS), "seed": list(seeds), "width": list(widths)},
    )


_LINES: tuple[tuple[str, str, Style], ...] = (("collected", "", "line"), ("foretold", "foretold, ", "dashed"))


def _width_panels(table: xr.Dataset) -> list[Panel]:
    means = table.mean("seed")
    return [
        Panel(
            f"ReLU filters on samples {name}" if name == "as they are" else f"ReLU filters on {name} samples",
            "filters K",
            "patterns",
            tuple(
                curve(f"{label}{kind}", means.width, means[variable].sel(samples=name, kind=kind), style)
                for kind in KINDS
                for variable, label, style in _LINES
            ),
            y_log=False,
        )
        for name in table.samples.values
    ]


def _temperature_panel(temperatures: Sequence[float], counts: Array, uniform: float) -> Panel:
    return Panel(
        "Whitened 7 × 7 patches: Gaussian α of the samples",
        "τ in median squared distances",
        "patterns",
        (
            curve("Gaussian α", temperatures, counts.mean(0)),
            curve("uniform α", temperatures, [uniform] * len(temperatures), "dashed"),
        ),
        y_log=False,
    )
