"""Paper C, Corollary 2: whether Gaussian α, with its smaller roughness, has more patterns than uniform α."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from kontrast.claims.evidence import Criterion, Evidence, Panel, Style, Verdict, curve, evidence
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
LOW, HIGH = 0.2, 0.43  # q: below and above the threshold of uniform α
WINDOW = 0.7  # τ at which Gaussian α holds patterns at HIGH
NEAR = 0.95  # the cosine with some u_m that makes an end a pattern
APART = 0.1  # ends this far apart are two
TOLERANCE = 1e-9  # of gates
NOISE = 0.05  # of samples on which r is compared, as it needs a density


@dataclass(eq=False)  # not frozen, as `OneLayerField` is not
class OwnImportance:
    """A(w)w of states x (n, d) with probabilities (n,) behind ReLUs; α compares the output of each filter alone.

    It is `GatedCovariance` with importance_of="each" for weighted states, all filters at once.

    Attributes:
        states: x, (n, d).
        probabilities: (n,).
        temperature: τ; infinite is uniform α.
        normalised: each row of α sums to 1 under the probabilities, as InfoNCE's does.
    """

    states: Tensor
    probabilities: Tensor
    temperature: float = math.inf
    normalized: bool = False
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
        """λ_1 − λ_2 of A(u_m): ε(1 − q)(1 − 2q) − q². u_m is an LME, and stable with α held fixed, iff it is > 0."""
        return self.closeness * (1 - self.q) * (1 - 2 * self.q) - self.q**2

    @property
    def margin(self) -> float:
        """The same with an α that moves with w: u_m is stable iff it is above 0."""
        return self.gap + self.closeness * (1 - self.q) ** 2 / self.temperature


@claim(
    "C.cor2",
    source="Paper C, Corollary 2, (87) to (93)",
    title="Gaussian α lowers the roughness bound: are there more patterns?",
    printed="r(w, α_g) = z_0 r(w, α_u) with z_0 = E e^{−h²/2τ} ≤ 1. So z_0 ≪ 1 lowers the roughness, and Gaussian α "
    "can lead to more local optima, that is patterns to learn, than uniform α.",
    corrected="r(w, α_g) = z_0 r(w, α_u) is an identity. But the gap falls with z_0 too. For q-sums u_m is an LME iff "
    "ε(1 − q)(1 − 2q) > q² with ε = e^{−(1 − q)/2qτ}: Gaussian α only takes LMEs away. As τ falls there are more end "
    "points, but they are mixtures, and patterns get lost. α that moves with w, which the corollary does not treat, "
    "can keep u_m stable where it is no LME, iff ε(1 − q)[(1 − 2q) + (1 − q)/τ] > q²: in a window of moderate τ up to "
    "q = 0.451, against (3 − √5)/2 = 0.382 of uniform α.",
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
    every = setting.pick(quick=2, full=1, paper=1)
    grid = [AtPattern(q, tau) for q in GRID_Q[1::every] for tau in (*GRID_TEMPERATURES[::every], math.inf)]
    clear = [case for case in grid if abs(case.margin) > 0.005]
    exact, least = table.sel(model=f"sums, q = {LOW}"), TEMPERATURES[0]
    own = table.sel(rule="Gaussian")
    gain = own.patterns.sel(temperature=least) - own.patterns.sel(temperature=math.inf)
    beyond = {
        tau: _ends(*_summation(patterns, HIGH), patterns, starts, n_steps, temperature=tau)
        for tau in (WINDOW, math.inf)
    }
    return evidence(
        {
            "identity_error": largest(*(_identity_error(patterns, tau) for tau in TEMPERATURES)),
            "field_error": _field_error(patterns),
            "patterns_gained_at_least_temperature": float(gain.max()),
            "patterns_lost_at_least_temperature": float(-gain.min()),
            "patterns_gained_anywhere_below_threshold": _most_gained(table),
            "end_points_at_least_temperature_over_uniform": float(
                exact.ends.sel(rule="Gaussian", temperature=least)
                / exact.ends.sel(rule="Gaussian", temperature=math.inf)
            ),
            "largest_gain_in_gap": max(case.gap - AtPattern(case.q).gap for case in grid),
            "gap_error": largest(*(_gap_error(patterns, case) for case in grid)),
            "n_cases": len(clear),
            "n_cases_not_as_foretold": sum(_stays(patterns, case) != (case.margin > 0) for case in clear),
            "n_stable_without_gap": sum(case.margin > 0 > case.gap for case in clear),
            "patterns_in_window": beyond[WINDOW]["patterns"],
            "patterns_of_uniform_there": beyond[math.inf]["patterns"],
            "largest_stable_q": _largest_stable_q(),
            "z0_at_least_temperature": _z0(patterns, least),
            "share_unfinished": float(table.unfinished.max()),
        },
        _CRITERIA,
        data=table,
        panels=[*_count_panels(table, n_samples), _gap_panel()],
        setting={"M": M, "d": DIMENSION, "starts": n_starts, "samples": n_samples, "q": [LOW, HIGH]},
        warnings=[
            "the corollary, like Theorems 1 and 2, holds α fixed; α of a filter's own output moves with it, which has "
            "its own part in what is stable",
            "filters that had not come to rest are counted where they were after all steps; see share_unfinished",
        ],
    )


_CRITERIA = (
    Criterion("identity_error", "r(α_g) over z_0 r(α_u), less 1", high=1e-10),
    Criterion("patterns_gained_at_least_temperature", "more patterns where z_0 is least, in some model", low=1),
    Criterion("identity_error", "r(α_g) over z_0 r(α_u), less 1", high=1e-10, role="corrected"),
    Criterion("field_error", "the field beside GatedCovariance", high=1e-12, role="corrected"),
    Criterion("patterns_gained_at_least_temperature", "no more patterns there", high=0, role="corrected"),
    Criterion("patterns_lost_at_least_temperature", "but fewer in some model", low=1, role="corrected"),
    Criterion(
        "patterns_gained_anywhere_below_threshold",
        "no more at any τ, of outputs, samples or InfoNCE, for q below the threshold",
        high=0,
        role="corrected",
    ),
    Criterion("end_points_at_least_temperature_over_uniform", "though more end points", low=1.5, role="corrected"),
    Criterion("largest_gain_in_gap", "the gap at u_m, less that of uniform α", high=0, role="corrected"),
    Criterion("gap_error", "its closed form beside A(u_m)", high=1e-12, role="corrected"),
    Criterion("n_cases_not_as_foretold", "(q, τ) where filters near u_m do not as foretold", high=0, role="corrected"),
    Criterion("patterns_in_window", "α that moves holds patterns", low=M, high=M, role="corrected"),
    Criterion("patterns_of_uniform_there", "where uniform α has none", high=0, role="corrected"),
    Criterion("largest_stable_q", "the largest such q", low=0.449, high=0.453, role="corrected"),
)

Population = tuple[Tensor, Tensor]  # states (n, d) and their probabilities (n,)


def _summation(patterns: Tensor, q: float) -> Population:
    return LatentSummation(patterns, q).states()


def _populations(patterns: Tensor, n: int) -> dict[str, Population]:
    categorical = LatentCategorical(patterns, torch.full((M,), 1 / M, dtype=torch.float64))
    samples = LatentSummation(patterns, LOW).sample(n, generator=generator("samples"))
    drawn, counts = torch.unique(samples, dim=0, return_counts=True)  # many come more than once
    return {
        "categories": categorical.states(),
        f"sums, q = {LOW}": _summation(patterns, LOW),
        f"{LOW} sampled": (drawn, (counts / n).to(drawn)),
    }


def _counts(models: Mapping[str, Population], patterns: Tensor, starts: Tensor, n_steps: int) -> xr.Dataset:
    """Ends, patterns and unfinished starts, over model, rule and temperature; uniform α is that of τ = ∞."""
    rules = ("Gaussian", "InfoNCE", "of samples")
    temperatures = (*TEMPERATURES, math.inf)
    cells = []
    for x, p in models.values():
        for rule in rules:
            for tau in temperatures:
                if rule == "of samples":
                    cells.append(_count(_of_samples(x, p, tau), patterns, starts, n_steps))
                else:
                    cells.append(_ends(x, p, patterns, starts, n_steps, temperature=tau, normalized=rule == "InfoNCE"))
    shape = (len(models), len(rules), len(temperatures))
    dims = ("model", "rule", "temperature")
    return xr.Dataset(
        {name: (dims, np.array([cell[name] for cell in cells]).reshape(shape)) for name in cells[0]},
        coords={"model": list(models), "rule": list(rules), "temperature": list(temperatures)},
    )


def _ends(
    x: Tensor,
    p: Tensor,
    patterns: Tensor,
    starts: Tensor,
    n_steps: int,
    *,
    temperature: float,
    normalized: bool = False,
) -> dict[str, float]:
    return _count(OwnImportance(x, p, temperature, normalized), patterns, starts, n_steps)


def _of_samples(x: Tensor, p: Tensor, temperature: float) -> GatedCovariance:
    """Gaussian α of the states themselves, weighted: α_ij n² p_i p_j weighs pairs as the population does."""
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


def _most_gained(table: xr.Dataset) -> float:
    uniform = table.patterns.sel(temperature=math.inf)
    return float((table.patterns.drop_sel(temperature=math.inf) - uniform).max())


def _smooth_outputs(patterns: Tensor) -> Tensor:
    """Outputs of the filter u_1 on smoothed samples."""
    x = LatentSummation(patterns, LOW).sample(400, noise_std=NOISE, generator=generator("outputs"))
    return torch.relu(x @ patterns[0])


def _z0(patterns: Tensor, temperature: float) -> float:
    return gaussian_z0(_smooth_outputs(patterns), temperature)


def _identity_error(patterns: Tensor, temperature: float) -> float:
    """Σ_l z_l φ_l(x) at an x of the plane, which is r(α_g)/r(α_u) by the features (89), over z_0, less 1."""
    h = _smooth_outputs(patterns)
    order = math.ceil(float(h.max()) ** 2 / temperature + 8 * float(h.max()) / math.sqrt(temperature)) + 8
    with_plane = torch.cat([h, h.new_zeros(1)])[:, None]  # the last output is 0, as on the plane
    phi = gaussian_features(with_plane, temperature=temperature, order=order, lower=0.0).values
    return abs(float(phi[:-1].mean(0) @ phi[-1]) / gaussian_z0(h, temperature) - 1)


def _field_error(patterns: Tensor) -> float:
    """The field of equally likely states beside that of the library."""
    x = LatentSummation(patterns, LOW).sample(30, noise_std=NOISE, generator=generator("field"))
    weights = torch.randn(5, DIMENSION, generator=generator("weights"), dtype=torch.float64)
    p = torch.full((30,), 1 / 30, dtype=torch.float64)
    found = OwnImportance(x, p, 0.5).product(weights)
    expected = GatedCovariance(x, importance=GaussianImportance(0.5), importance_of="each").product(weights)
    return float((found - expected).norm() / expected.norm())


def _gap_error(patterns: Tensor, case: AtPattern) -> float:
    """The gap of A(u_1), from the states, less its closed form."""
    x, p = _summation(patterns, case.q)
    n, h = len(x), torch.relu(x @ patterns[0])
    alpha = torch.exp(-(h[:, None] - h).square() / (2 * case.temperature)) * (n * p) * (n * p)[:, None]
    A = GatedCovariance(x, importance=alpha, gate_tolerance=TOLERANCE).matrix(patterns[0])
    u = patterns[0]
    others = A - (u @ A @ u) * torch.outer(u, u)
    return abs(float(u @ A @ u - torch.linalg.eigvalsh(others)[-1]) - case.gap)


def _stays(patterns: Tensor, case: AtPattern) -> bool:
    """Whether filters that start near the patterns come to rest at them."""
    x, p = _summation(patterns, case.q)
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
    """Ends and patterns against τ, those of uniform α dashed."""
    finite = list(TEMPERATURES)
    return [
        Panel(
            title,
            "temperature τ",
            "how many",
            tuple(
                curve(f"{name}, {rule}", finite, table[variable].sel(model=model, rule=rule, temperature=finite))
                for variable, name in (("ends", "end points"), ("patterns", "patterns"))
                for rule in table.rule.values
            )
            + tuple(
                curve(
                    f"{name}, uniform",
                    finite,
                    [float(table[variable].sel(model=model, rule="Gaussian")[-1])] * 4,
                    "dashed",
                )
                for variable, name in (("ends", "end points"), ("patterns", "patterns"))
            ),
            y_log=False,
        )
        for model, title in (
            (f"sums, q = {LOW}", f"Sums of {M} patterns, q = {LOW}, exact"),
            (f"{LOW} sampled", f"The same, {n} samples"),
        )
    ]


_DECIDING: tuple[tuple[str, str, Style], ...] = (("gap", "gap, α fixed", "dashed"), ("margin", "α moves", "plain"))


def _gap_panel() -> Panel:
    temperatures = np.geomspace(0.1, 30, 60)
    return Panel(
        "At u_m: the gap, and what decides when α moves",
        "temperature τ",
        "above 0 if stable",
        tuple(
            curve(
                f"{name}, q = {q}",
                temperatures,
                [getattr(AtPattern(q, float(tau)), which) for tau in temperatures],
                style,
            )
            for q in (LOW, 0.35, HIGH)
            for which, name, style in _DECIDING
        ),
        y_log=False,
    )
