"""C.thm3: where ω is small, power iteration finds a critical point nearby."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from kontrast.claims.evidence import Evidence, Finding, Panel, Verdict, corrected, curve, judged, printed, shown
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, largest
from kontrast.patterns import (
    Guarantee,
    GuaranteeCheck,
    LatentCategorical,
    LatentSummation,
    MixtureCovariance,
    check_guarantee,
    estimate_constants,
    guarantee,
    irregularity,
    nearly_orthogonal_patterns,
    one_layer_flow,
    orthonormal_patterns,
)

N_PATTERNS, DIMENSION = 4, 6
Q = 0.2
SIZES = (0.03, 0.1, 0.3)  # ‖UU^T − I‖
DISTANCES = (0.003, 0.01, 0.03)  # of starts from a pattern
NOISES = {
    "categorical, obtuse": (0.003, 0.01, 0.03),
    "summation": (0.02, 0.05, 0.1),
    "categorical": (0.003, 0.01, 0.03),
}
ROUNDING = 1e-16  # a move of 0 has no place on a logarithmic axis


@claim(
    "C.thm3",
    source="Paper C, Theorem 3, (94) to (99), Lemmas 4 to 8, Fig. 1 right",
    title="Where ω is small, power iteration finds a critical point nearby",
    printed="With L the Lipschitz constant of A on the unit sphere: if sup ω ≤ γ < 1 on B_γ, power iteration converges "
    "to a critical point in B_γ. So there is one near each u_m if U is only approximately orthogonal.",
    corrected="L and κ are needed on B_γ only; with those of the whole sphere the condition is never met here. With "
    "those of B_γ it can be met, and then everything promised holds. κ = 2√13/λ_gap² always suffices. Lemma 4 needs A "
    "≥ 0, not only λ_1 > 0. In the categorical model the other patterns lie on the plane of u_m, where A jumps: the "
    "condition can be met if they lie behind the plane. If one lies before it, the condition is not met, and the "
    "iteration swings about a critical point near u_m, which the flow (7) does reach.",
    recorded=Verdict.CORRECTED,
    cost=2,
)
def theorem_3(setting: Setting) -> Evidence:
    """27 cases of each model: where the condition is met, every step is held against the promise.

    In the judged categorical model all patterns are obtuse to each other. Patterns with inner products of either sign
    are measured apart, to show the effect of a pattern before the plane.
    """
    n_points, seeds = setting.pick(quick=16, full=64, paper=64), setting.seeds(quick=1, full=5, paper=5)
    cases = [
        Case.of(kind, size, noise, distance, seed, n_points)
        for kind in NOISES
        for size in SIZES
        for noise in NOISES[kind]
        for distance in (DISTANCES[:1] if kind == "categorical" else DISTANCES)
        for seed in seeds
    ]
    main = [case for case in cases if case.kind != "categorical"]
    met = [case for case in main if case.promise.met]
    return judged(
        *_condition(main),
        *_promises(met),
        *_with_a_pattern_before([case for case in cases if case.kind == "categorical" and not case.behind]),
        data=_cases_dataset(cases),
        panels=[_figure_1(), _promise_panel(met)],
        setting={"M": N_PATTERNS, "d": DIMENSION, "q": Q, "sizes": list(SIZES), "distances": list(DISTANCES)}
        | {"noises": {k: list(v) for k, v in NOISES.items()}, "n_points": n_points, "n_seeds": len(seeds)},
        warnings=["L, κ and ω are the largest values at sampled points of B_γ: the condition is tested, not proved"],
    )


@dataclass(frozen=True, eq=False)
class Case:
    """A smoothed model, a pattern and a start near it; the promise of Theorem 3, and the iteration beside it."""

    kind: str
    size: float
    noise: float
    distance: float
    field: MixtureCovariance
    pattern: Tensor  # u_m
    behind: bool  # whether all other patterns lie behind the plane of this one, u_j^T u_m < 0
    promise: Guarantee
    check: GuaranteeCheck
    sphere_omega: float  # ω at the start with L and κ of the whole sphere
    sphere_omega_of_slope: float  # the same with κ = 0

    @classmethod
    def of(cls, kind: str, size: float, noise: float, distance: float, seed: int, n_points: int) -> Case:
        """Follow one case; `kind` names the model and its patterns."""
        key = (seed, round(1e4 * size), round(1e4 * noise), round(1e4 * distance))
        draw = generator(f"theorem 3 {kind}", *key)
        patterns = _patterns(kind, size, draw)
        field = MixtureCovariance.of(_model(kind, patterns), noise)
        A = field.matrix
        across = torch.randn(DIMENSION, generator=draw, dtype=torch.float64)
        across -= (across @ patterns[0]) * patterns[0]
        start = patterns[0] + distance * across / across.norm()
        promise = guarantee(A, start, n_points=n_points, generator=draw)
        sphere = estimate_constants(A, start, 2.0, n_points=n_points, generator=draw)
        w, L = promise.start, sphere.lipschitz
        omegas = [float(irregularity(A(w), w, lipschitz=L, curvature=k).omega) for k in (sphere.curvature, 0.0)]
        behind = bool((patterns[1:] @ patterns[0] < 0).all())
        check = check_guarantee(A, promise, n_steps=40)
        return cls(kind, size, noise, distance, field, patterns[0], behind, promise, check, omegas[0], omegas[1])

    @property
    def converged(self) -> bool:
        """Whether the iteration comes to rest."""
        return float(self.check.moves[-1]) < 1e-8

    def flow_end(self) -> tuple[float, float]:
        """The end of the flow (7) from the same start: its residual over λ, and its distance from u_m."""
        w = one_layer_flow(self.field, self.promise.start[None], times=[200.0], tolerance=1e-6).weights[-1, 0]
        product = self.field.matrix(w) @ w
        eigenvalue = w @ product
        return float((product - eigenvalue * w).norm() / eigenvalue), float((w - self.pattern).norm())


def _patterns(kind: str, size: float, draw: torch.Generator) -> Tensor:
    """Patterns with ‖UU^T − I‖ = size; obtuse ones all have the inner product −size/(M − 1)."""
    if kind != "categorical, obtuse":
        return nearly_orthogonal_patterns(N_PATTERNS, DIMENSION, size, generator=draw)
    M = N_PATTERNS
    gram = (1 + size / (M - 1)) * torch.eye(M, dtype=torch.float64) - size / (M - 1)
    return torch.as_tensor(torch.linalg.cholesky(gram) @ orthonormal_patterns(M, DIMENSION, generator=draw))


def _model(kind: str, patterns: Tensor) -> LatentCategorical | LatentSummation:
    if kind == "summation":
        return LatentSummation(patterns, Q)
    return LatentCategorical(patterns, torch.full((N_PATTERNS,), 1 / N_PATTERNS, dtype=torch.float64))


def _condition(cases: Sequence[Case]) -> tuple[Finding, ...]:
    """How often the condition is met, with constants of the sphere and with those of B_γ."""
    met = [case for case in cases if case.promise.met]
    n_sphere = sum(case.sphere_omega < 1 for case in cases)
    least_omega = min(case.sphere_omega_of_slope for case in cases if case.kind == "summation")
    return (
        printed("n_met_with_constants_of_the_sphere", n_sphere, "condition met, L and κ of the sphere: cases", low=1),
        corrected("n_met", len(met), "condition met, L and κ of B_γ: cases", low=8),
        *shown(
            n_cases=len(cases),
            n_met_summation=sum(case.kind == "summation" for case in met),
            n_met_categorical_obtuse=sum(case.kind == "categorical, obtuse" for case in met),
            least_omega_with_L_of_the_sphere_and_no_kappa_summation=least_omega,
            n_unmet_that_converge=sum(case.converged for case in cases if not case.promise.met),
        ),
    )


def _promises(met: Sequence[Case]) -> tuple[Finding, ...]:
    """Everything that Theorem 3 promises, in the cases where its condition is met."""
    n_broken = sum(not case.check.held for case in met)
    rate = largest(-math.inf, *(case.check.rate.measured or 0.0 for case in met))
    reach = largest(-math.inf, *(1 / case.check.reach.ratio for case in met))
    excess = largest(-math.inf, *(case.check.omega - case.promise.gamma for case in met))
    return (
        corrected("n_broken", n_broken, "cases in which the condition is met and a promise is broken", high=0),
        corrected("worst_rate", rate, "largest 1 − c_t over γ^t(1 − c_0)", low=0, high=1 + 1e-9),
        corrected("worst_reach", reach, "largest ‖w(t) − w(0)‖ over the radius of B_γ", low=0, high=1 + 1e-9),
        corrected("worst_omega_on_the_way", excess, "largest ω − γ along the iteration", high=1e-9),
        *shown(median_gamma=float(np.median([case.promise.gamma for case in met])) if met else math.nan),
    )


def _with_a_pattern_before(cases: Sequence[Case]) -> tuple[Finding, ...]:
    """The categorical model with another pattern before the plane of u_m: u_j^T u_m > 0."""
    ends = [case.flow_end() for case in cases if case.noise == max(NOISES[case.kind])]
    n_met = sum(case.promise.met for case in cases)
    n_resting = sum(case.converged for case in cases)
    residual = largest(*(residual for residual, _ in ends))
    return (
        corrected("n_met_with_a_pattern_before", n_met, "cases with u_j^T u_m > 0 that meet the condition", high=0),
        corrected("n_that_converge_with_a_pattern_before", n_resting, "cases in which the iteration converges", high=0),
        corrected("flow_residual_with_a_pattern_before", residual, "the flow rests: largest ‖A(w)w − λw‖/λ", high=1e-3),
        *shown(
            n_cases_with_a_pattern_before=len(cases),
            flow_distance_with_a_pattern_before=largest(*(distance for _, distance in ends)),
        ),
    )


def _cases_dataset(cases: Sequence[Case]) -> xr.Dataset:
    rows = [
        {name: getattr(case, name) for name in ("size", "noise", "distance", "sphere_omega")}
        | {name: getattr(case.promise, name) for name in ("met", "gamma", "omega", "radius")}
        | {name: getattr(case.promise.constants, name) for name in ("lipschitz", "curvature", "gap")}
        | {name: getattr(case.check, name).measured for name in ("rate", "reach")}
        for case in cases
    ]
    variables = {name: ("case", np.array([row[name] for row in rows], dtype=float)) for name in rows[0]}
    return xr.Dataset(variables, coords={"model": ("case", [case.kind for case in cases])})


def _figure_1() -> Panel:
    """‖w(t + 1) − w(t)‖ in latent summation models with nearly orthogonal patterns: paper C, Fig. 1 right."""
    curves = []
    for size in (0.03, 0.1, 0.2, 0.3):
        draw = generator("figure 1", round(100 * size))
        patterns = nearly_orthogonal_patterns(6, 8, size, generator=draw)
        A = MixtureCovariance.of(LatentSummation(patterns, 0.25), 0.05).matrix
        w = patterns[0] + 0.2 * torch.randn(8, generator=draw, dtype=torch.float64)
        w, moves = w / w.norm(), []
        for _ in range(30):
            after = A(w) @ w
            after = after / after.norm()
            moves.append(max(float((after - w).norm()), ROUNDING))
            w = after
        curves.append(curve(f"‖UU^T − I‖ = {size:g}", np.arange(1, 31), moves))
    return Panel("Latent summation: power iteration", "step t", "‖w(t+1) − w(t)‖", tuple(curves), x_log=False)


def _promise_panel(met: Sequence[Case]) -> Panel:
    """1 − c_t of the cases with the largest γ, beside the promise."""
    curves = []
    for case in sorted(met, key=lambda case: -case.promise.gamma)[:3]:
        steps = np.arange(13)
        name = f"{case.kind} {case.size:g}, noise {case.noise:g}, from {case.distance:g}"
        found = np.maximum(case.check.shortfalls[:13].numpy(), ROUNDING**2)
        promised = [max(case.promise.shortfall_at(int(t)), ROUNDING**2) for t in steps]
        curves += [curve(name, steps, found), curve(f"promised, {name}", steps, promised, "dashed")]
    return Panel("1 − c_t and the promise γ^t(1 − c_0)", "step t", "1 − c_t", tuple(curves), x_log=False)
