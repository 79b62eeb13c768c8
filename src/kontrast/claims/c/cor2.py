"""C.cor2: Gaussian α has a smaller roughness than uniform α; does it have more patterns?"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from kontrast.claims.evidence import Curve, Evidence, Finding, Panel, Verdict, corrected, curve, judged, printed, shown
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, largest
from kontrast.patterns import (
    THRESHOLD_Q,
    Ending,
    GatedCovariance,
    GaussianImportance,
    LatentCategorical,
    LatentSummation,
    gaussian_features,
    gaussian_z0,
    orthonormal_patterns,
    power_iteration,
)

M, DIMENSION = 6, 8
TEMPERATURES = (0.1, 0.5, 2.0, 8.0)
GRID_Q, GRID_TEMPERATURES = (0.1, 0.2, 0.3, 0.35, 0.4, 0.43, 0.47), (0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 2.0, 8.0)
LOW, HIGH = 0.2, 0.43  # q below and above the threshold of uniform α
WINDOW = 0.7  # τ at which Gaussian α keeps patterns at q = HIGH
NEAR = 0.95  # the cosine with some u_m from which on an end point counts as a pattern
APART = 0.1  # the distance from which on two end points are different
TOLERANCE = 1e-9  # of gates
NOISE = 0.05  # of the samples on which r is compared, as r needs a density


@dataclass(eq=False)  # not frozen, as `OneLayerField` is not
class OwnImportance:
    """A(w)w of states x (n, d) with probabilities (n,) behind ReLUs; α compares the output of each filter alone.

    This is `GatedCovariance` with importance_of="each" for weighted states, for all filters at once.
    """

    states: Tensor
    probabilities: Tensor
    temperature: float = math.inf  # τ; infinite is uniform α
    normalized: bool = False  # whether each row of α sums to 1 under the probabilities, as InfoNCE's does
    coupled: bool = False

    def gates(self, weights: Tensor) -> Tensor:
        """(k, n) of bool."""
        return weights @ self.states.mT > TOLERANCE

    def product(self, weights: Tensor) -> Tensor:
        """A(w)w, (k, d)."""
        gates = self.gates(weights).to(weights)
        h = gates * (weights @ self.states.mT)
        alpha = torch.exp(-(h[:, :, None] - h[:, None]).square() / (2 * self.temperature))  # (k, n, n)
        if self.normalized:
            alpha = alpha / (alpha @ self.probabilities)[:, :, None]
            alpha = (alpha + alpha.mT) / 2
        alpha = alpha * self.probabilities
        pull = self.probabilities * (alpha.sum(2) * h - (alpha @ h[:, :, None])[:, :, 0])
        return torch.as_tensor((gates * pull) @ self.states)


@dataclass(frozen=True)
class AtPattern:
    """Latent summation at w = u_m under the Gaussian α of the filter's own output, in closed form.

    There h is s = √((1 − q)/q) with probability q, else 0, and ε = e^{−s²/2τ} weighs pairs of the two. So A(u_m) is
    ε(1 − q)² along u_m and q² + ε q(1 − q) along every other pattern. As w turns away by δ, ε of each x before the
    plane becomes ε(1 − s δ^T x/τ), which adds −ε(1 − q)²/τ to A(w)w along δ.
    """

    q: float
    temperature: float = math.inf

    @property
    def closeness(self) -> float:
        """ε."""
        return math.exp(-(1 - self.q) / self.q / (2 * self.temperature))

    @property
    def gap(self) -> float:
        """λ_1 − λ_2 of A(u_m): ε(1 − q)(1 − 2q) − q². u_m is an LME, and stable for fixed α, iff it is > 0."""
        return self.closeness * (1 - self.q) * (1 - 2 * self.q) - self.q**2

    @property
    def margin(self) -> float:
        """The same for an α that moves with w: u_m is stable iff it is > 0."""
        return self.gap + self.closeness * (1 - self.q) ** 2 / self.temperature


@claim(
    "C.cor2",
    source="Paper C, Corollary 2, (87) to (93)",
    title="Gaussian α lowers the roughness bound: are there more patterns?",
    printed="r(w, α_g) = z_0 r(w, α_u) with z_0 = E e^{−h²/2τ} ≤ 1. So z_0 ≪ 1 lowers the roughness, and Gaussian α "
    "can lead to more local optima, that is patterns to learn, than uniform α.",
    corrected="r(w, α_g) = z_0 r(w, α_u) is an identity. But the gap falls with z_0 too. For sums of patterns u_m is "
    "an LME iff ε(1 − q)(1 − 2q) > q² with ε = e^{−(1 − q)/2qτ}: Gaussian α only removes LMEs. As τ falls, there are "
    "more end points, but they are mixtures, and patterns are lost. An α that moves with w, which the corollary does "
    "not treat, can keep u_m stable where it is not an LME, iff ε(1 − q)[(1 − 2q) + (1 − q)/τ] > q²: in a window of "
    "moderate τ up to q = 0.451, against (3 − √5)/2 = 0.382 for uniform α.",
    recorded=Verdict.CORRECTED,
    cost=2,
)
def corollary_2(setting: Setting) -> Evidence:
    """End points and patterns against τ; the closed form at u_m against A(u_m), and against where filters stay."""
    n_starts, n_samples = setting.pick(quick=24, full=200, paper=200), 400
    n_steps = setting.pick(quick=200, full=600, paper=600)
    starts = torch.randn(n_starts, DIMENSION, generator=generator("starts"), dtype=torch.float64)
    patterns = orthonormal_patterns(M, DIMENSION, generator=generator("patterns"))
    table = _counts(_populations(patterns, n_samples), patterns, starts, n_steps)
    error, words = largest(*(_identity_error(patterns, tau) for tau in TEMPERATURES)), "r(α_g) over z_0 r(α_u), minus 1"
    return judged(
        printed("identity_error", error, words, high=1e-10),
        corrected("identity_error", error, words, high=1e-10),
        corrected("field_error", _field_error(patterns), "field against GatedCovariance: relative error", high=1e-12),
        *_patterns_by_temperature(table),
        *_at_patterns(patterns, setting.pick(quick=2, full=1, paper=1)),
        *_in_the_window(patterns, starts, n_steps),
        *shown(
            z0_at_least_temperature=gaussian_z0(_smooth_outputs(patterns), TEMPERATURES[0]),
            share_unfinished=float(table.unfinished.max()),
        ),
        data=table,
        panels=[*_count_panels(table, n_samples), _gap_panel()],
        setting={"M": M, "d": DIMENSION, "starts": n_starts, "samples": n_samples, "q": [LOW, HIGH]},
        warnings=[
            "the corollary, like Theorems 1 and 2, holds α fixed; an α of a filter's own output moves with the filter, "
            "which also affects stability",
            "filters that had not come to rest are counted where they were after the last step; see share_unfinished",
        ],
    )


def _patterns_by_temperature(table: xr.Dataset) -> tuple[Finding, ...]:
    """Patterns and end points at finite temperatures against those of uniform α."""
    exact, least = table.sel(model=f"sums, q = {LOW}", rule="Gaussian"), TEMPERATURES[0]
    own, uniform = table.patterns.sel(rule="Gaussian"), table.patterns.sel(temperature=math.inf)
    gain = own.sel(temperature=least) - own.sel(temperature=math.inf)
    gained = float(gain.max())
    anywhere = float((table.patterns.drop_sel(temperature=math.inf) - uniform).max())
    ends = float(exact.ends.sel(temperature=least) / exact.ends.sel(temperature=math.inf))
    return (
        printed("patterns_gained_at_least_temperature", gained, "patterns gained over uniform α at the least τ", low=1),
        corrected("patterns_gained_at_least_temperature", gained, "no model gains a pattern there", high=0),
        corrected("patterns_lost_at_least_temperature", float(-gain.min()), "but some model loses patterns", low=1),
        corrected("patterns_gained_anywhere_below_threshold", anywhere, "patterns gained at any τ by any rule", high=0),
        corrected("end_points_at_least_temperature_over_uniform", ends, "yet more end points there: ratio", low=1.5),
    )


def _at_patterns(patterns: Tensor, every: int) -> tuple[Finding, ...]:
    """The closed form at u_m over a grid of q and τ; `every` thins the grid out."""
    grid = [AtPattern(q, tau) for q in GRID_Q[1::every] for tau in (*GRID_TEMPERATURES[::every], math.inf)]
    clear = [case for case in grid if abs(case.margin) > 0.005]
    gain = max(case.gap - AtPattern(case.q).gap for case in grid)
    error = largest(*(_gap_error(patterns, case) for case in grid))
    n_wrong = sum(_stays(patterns, case) != (case.margin > 0) for case in clear)
    return (
        corrected("largest_gain_in_gap", gain, "largest gap at u_m minus that of uniform α", high=0),
        corrected("gap_error", error, "closed form of the gap against A(u_m): largest error", high=1e-12),
        corrected("n_cases_not_as_foretold", n_wrong, "number of (q, τ) at which filters defy the prediction", high=0),
        *shown(n_cases=len(clear), n_stable_without_gap=sum(case.margin > 0 > case.gap for case in clear)),
    )


def _in_the_window(patterns: Tensor, starts: Tensor, n_steps: int) -> tuple[Finding, ...]:
    """Patterns at a q above the threshold of uniform α: for α that moves at a moderate τ, and for uniform α."""
    moving, uniform = (
        _ends(*LatentSummation(patterns, HIGH).states(), patterns, starts, n_steps, temperature=tau)["patterns"]
        for tau in (WINDOW, math.inf)
    )
    return (
        corrected("patterns_in_window", moving, f"patterns at q = {HIGH}, τ = {WINDOW} if α moves", low=M, high=M),
        corrected("patterns_of_uniform_there", uniform, "number of patterns there for uniform α", high=0),
        corrected("largest_stable_q", _largest_stable_q(), "largest q with a stable u_m", low=0.449, high=0.453),
    )


Population = tuple[Tensor, Tensor]  # states (n, d) and their probabilities (n,)


def _populations(patterns: Tensor, n: int) -> dict[str, Population]:
    categorical = LatentCategorical(patterns, torch.full((M,), 1 / M, dtype=torch.float64))
    samples = LatentSummation(patterns, LOW).sample(n, generator=generator("samples"))
    drawn, counts = torch.unique(samples, dim=0, return_counts=True)  # many occur more than once
    return {
        "categories": categorical.states(),
        f"sums, q = {LOW}": LatentSummation(patterns, LOW).states(),
        f"{LOW} sampled": (drawn, (counts / n).to(drawn)),
    }


def _counts(models: Mapping[str, Population], patterns: Tensor, starts: Tensor, n_steps: int) -> xr.Dataset:
    """End points, patterns and unfinished starts, over model, rule and temperature; τ = ∞ is uniform α."""
    rules = ("Gaussian", "InfoNCE", "of samples")
    temperatures = (*TEMPERATURES, math.inf)
    cells = []
    for (x, p), rule, tau in itertools.product(models.values(), rules, temperatures):
        if rule == "of samples":
            cells.append(_count(_of_samples(x, p, tau), patterns, starts, n_steps))
        else:
            cells.append(_ends(x, p, patterns, starts, n_steps, temperature=tau, normalized=rule == "InfoNCE"))
    coordinates: dict[str, list[Any]] = {"model": [*models], "rule": [*rules], "temperature": [*temperatures]}
    shape = [len(values) for values in coordinates.values()]
    counts = {name: np.array([cell[name] for cell in cells]).reshape(shape) for name in cells[0]}
    return xr.Dataset({name: (list(coordinates), values) for name, values in counts.items()}, coords=coordinates)


def _ends(x: Tensor, p: Tensor, patterns: Tensor, starts: Tensor, n_steps: int, **options: Any) -> dict[str, float]:
    """`_count` for `OwnImportance` with these options."""
    return _count(OwnImportance(x, p, **options), patterns, starts, n_steps)


def _of_samples(x: Tensor, p: Tensor, temperature: float) -> GatedCovariance:
    """Gaussian α of the states themselves; α_ij n² p_i p_j weighs pairs as the population does."""
    n = len(x)
    squares = (x[:, None] - x).square().sum(2)
    alpha = torch.exp(-squares / (2 * temperature)) * (n * p) * (n * p)[:, None]
    return GatedCovariance(x, importance=alpha, gate_tolerance=TOLERANCE)


def _count(field: OwnImportance | GatedCovariance, patterns: Tensor, starts: Tensor, n_steps: int) -> dict[str, float]:
    run = power_iteration(field, starts, max_steps=n_steps, tolerance=1e-6)
    kept: list[Tensor] = []
    for w, ending in zip(run.weights, run.endings, strict=True):
        heard = ending not in (Ending.SILENT, Ending.DIVERGED)
        if heard and all(float((w - other).norm()) > APART for other in kept):
            kept.append(w)
    cosines = torch.stack(kept) @ patterns.mT if kept else torch.zeros(1, len(patterns)).to(patterns)
    return {
        "ends": len(kept),
        "patterns": int((cosines.max(0).values > NEAR).sum()),
        "unfinished": run.endings.count(Ending.STEP_LIMIT) / len(starts),
    }


def _smooth_outputs(patterns: Tensor) -> Tensor:
    """Outputs of the filter u_1 on smoothed samples."""
    x = LatentSummation(patterns, LOW).sample(400, noise_std=NOISE, generator=generator("outputs"))
    return torch.relu(x @ patterns[0])


def _identity_error(patterns: Tensor, temperature: float) -> float:
    """Σ_l z_l φ_l(x) at an x of the plane, which is r(α_g)/r(α_u) by the features (89), over z_0, minus 1."""
    h = _smooth_outputs(patterns)
    order = math.ceil(float(h.max()) ** 2 / temperature + 8 * float(h.max()) / math.sqrt(temperature)) + 8
    with_plane = torch.cat([h, h.new_zeros(1)])[:, None]  # the last output is 0, as on the plane
    phi = gaussian_features(with_plane, temperature=temperature, order=order, lower=0.0).values
    return abs(float(phi[:-1].mean(0) @ phi[-1]) / gaussian_z0(h, temperature) - 1)


def _field_error(patterns: Tensor) -> float:
    """Relative error of the field of equally likely states against the library's."""
    x = LatentSummation(patterns, LOW).sample(30, noise_std=NOISE, generator=generator("field"))
    weights = torch.randn(5, DIMENSION, generator=generator("weights"), dtype=torch.float64)
    p = torch.full((30,), 1 / 30, dtype=torch.float64)
    found = OwnImportance(x, p, 0.5).product(weights)
    expected = GatedCovariance(x, importance=GaussianImportance(0.5), importance_of="each").product(weights)
    return float((found - expected).norm() / expected.norm())


def _gap_error(patterns: Tensor, case: AtPattern) -> float:
    """The gap of A(u_1) from the states, minus its closed form."""
    (x, p), u = LatentSummation(patterns, case.q).states(), patterns[0]
    n, h = len(x), torch.relu(x @ u)
    alpha = torch.exp(-(h[:, None] - h).square() / (2 * case.temperature)) * (n * p) * (n * p)[:, None]
    A = GatedCovariance(x, importance=alpha, gate_tolerance=TOLERANCE).matrix(u)
    others = A - (u @ A @ u) * torch.outer(u, u)
    return abs(float(u @ A @ u - torch.linalg.eigvalsh(others)[-1]) - case.gap)


def _stays(patterns: Tensor, case: AtPattern) -> bool:
    """Whether filters that start near the patterns come to rest there."""
    x, p = LatentSummation(patterns, case.q).states()
    nearby = patterns + 0.01 * torch.randn(M, DIMENSION, generator=generator("nearby"), dtype=torch.float64)
    ends = power_iteration(OwnImportance(x, p, case.temperature), nearby, max_steps=200, tolerance=1e-6).weights
    return float((ends * patterns).sum(1).min()) > 1 - 1e-5


def _largest_stable_q() -> float:
    """The largest q at which u_m is stable for some τ, by bisection."""
    low, high = THRESHOLD_Q, 0.5
    temperatures = np.geomspace(0.05, 50, 2000)
    while high - low > 1e-6:
        middle = (low + high) / 2
        stable = max(AtPattern(middle, float(tau)).margin for tau in temperatures) > 0
        low, high = (middle, high) if stable else (low, middle)
    return low


def _count_panels(table: xr.Dataset, n: int) -> list[Panel]:
    """End points and patterns against τ; dashed for uniform α."""
    finite, counted, panels = list(TEMPERATURES), {"ends": "end points", "patterns": "patterns"}, []
    titles = {f"sums, q = {LOW}": f"Sums of {M} patterns, q = {LOW}, exact", f"{LOW} sampled": f"The same, {n} samples"}
    for model, title in titles.items():
        of = table.sel(model=model)
        curves = [
            curve(f"{name}, {rule}", finite, of[variable].sel(rule=rule, temperature=finite))
            for variable, name in counted.items()
            for rule in table.rule.values
        ]
        for variable, name in counted.items():
            uniform = float(of[variable].sel(rule="Gaussian")[-1])
            curves.append(curve(f"{name}, uniform", finite, [uniform] * len(finite), "dashed"))
        panels.append(Panel(title, "temperature τ", "number", tuple(curves), y_log=False))
    return panels


def _gap_panel() -> Panel:
    temperatures, curves = np.geomspace(0.1, 30, 60), list[Curve]()
    for q in (LOW, 0.35, HIGH):
        cases = [AtPattern(q, float(tau)) for tau in temperatures]
        curves.append(curve(f"gap, α fixed, q = {q}", temperatures, [case.gap for case in cases], "dashed"))
        curves.append(curve(f"α moves, q = {q}", temperatures, [case.margin for case in cases], "plain"))
    title = "At u_m: the gap, and the margin if α moves"
    return Panel(title, "temperature τ", "above 0 if stable", tuple(curves), y_log=False)
