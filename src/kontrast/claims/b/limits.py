"""Paper B, Theorem 3 and Conjecture 2: where the equation of deep linear networks leads."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor

from kontrast.claims.b.problems import matrix_with, moon_matrix, orthogonal_net, start_of
from kontrast.claims.evidence import Criterion, Evidence, Panel, Style, Verdict, curve, evidence
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, largest, sweep
from kontrast.deep_linear import DeepLinearFlow, deep_linear_flow, flow_law, train_deep_linear

D = 6
TIMES = tuple(np.geomspace(0.01, 100, 41))
LOWEST = 0.3  # the smallest eigenvalue where all are positive


@claim(
    "B.thm3",
    source="Paper B, Theorem 3, (9)",
    title="One output: q tends to 0 or to the lowest eigenvector",
    printed="For z = 1, with all eigenvalues positive q converges to 0 with probability 1; with a negative one q "
    "becomes the eigenvector of the smallest.",
    corrected="q → 0 needs h > d: at h = d it stays on the unit sphere and tends to ±v_1 as well. The end is +v_1 or "
    "−v_1, whichever q_0 is nearer to. There is an exact solution: w = e^{−Λτ}q_0, N = |w|², κ = ρ_0²/(1 − "
    "ρ_0)·(N/N_0)², |q|² = (−κ + √(κ² + 4κ))/2, dτ/dt = 2(2 − |q|²).",
    recorded=Verdict.CORRECTED,
)
def theorem_3(setting: Setting) -> Evidence:
    """Both cases at h = d and above, by the exact solution and by DOP853."""
    seeds = setting.seeds(quick=6, full=40, paper=40)

    def measure(width: int, seed: int) -> dict[str, object]:
        start = start_of(orthogonal_net(D, width, 1, seed))
        found: dict[str, object] = {}
        for case, low in (("positive", LOWEST), ("negative", -1.0)):
            C = matrix_with(_spread(low, seed), seed)
            flow = deep_linear_flow(C, start, times=TIMES, method="exact")
            check = deep_linear_flow(C, start, times=TIMES, method="dop853", tolerance=1e-12)
            size = flow.q.norm(dim=(1, 2))
            end = flow.q[-1, :, 0]
            sign = torch.sign(flow.basis[:, 0] @ start[:, 0])
            target = torch.eye(D, dtype=C.dtype)[0] * sign
            found |= {
                f"size_{case}": size,
                f"overlap_{case}": flow.q[:, 0, 0].abs(),
                f"end_size_{case}": float(size[-1]),
                f"end_distance_{case}": float((end - target).norm()),
                f"error_{case}": float((flow.q - check.q).abs().max()),
                f"paper_formula_{case}": _paper_formula_error(flow.eigenvalues, flow.q, width > D),
            }
        return {**found, "trained_size_positive": _trained_size(matrix_with(_spread(LOWEST, seed), seed), width, seed)}

    data = sweep([D, D + 1, 2 * D], seeds, measure, t=TIMES)
    square, wider = data.sel(width=D), data.sel(width=[D + 1, 2 * D])
    return evidence(
        {
            "end_size_positive_wider": float(wider.end_size_positive.values.max()),
            "end_size_positive_square": float(square.end_size_positive.values.min()),
            "trained_size_positive_square": float(square.trained_size_positive.values.min()),
            "trained_size_positive_wider": float(wider.trained_size_positive.values.max()),
            "end_distance_positive_square": float(square.end_distance_positive.values.max()),
            "end_distance_negative": float(data.end_distance_negative.values.max()),
            "exact_error": largest(float(data.error_positive.values.max()), float(data.error_negative.values.max())),
            "formula_error": largest(
                float(wider.paper_formula_positive.values.max()), float(wider.paper_formula_negative.values.max())
            ),
        },
        _CRITERIA_3,
        data=data,
        panels=[
            Panel(
                title,
                "time t",
                label,
                tuple(
                    curve(f"{name}, start {seed + 1}", data.t, data[variable].sel(width=width).isel(seed=seed), style)
                    for width, name, style in _WIDTHS
                    for seed in range(min(3, len(seeds)))
                ),
                y_log=False,
            )
            for title, variable, label in (
                ("All eigenvalues positive", "size_positive", "|q|"),
                ("One negative eigenvalue or more", "overlap_negative", "|v_1·q|"),
            )
        ],
        setting={"d": D, "z": 1, "last_time": TIMES[-1]},
    )


_CRITERIA_3 = (
    Criterion("end_size_positive_square", "all eigenvalues positive, h = d: |q| → 0", high=1e-3),
    Criterion("end_size_positive_wider", "all positive, h > d: |q| → 0", high=1e-3, role="corrected"),
    Criterion("end_size_positive_square", "at h = d |q| stays at 1", low=1 - 1e-9, role="corrected"),
    Criterion("trained_size_positive_square", "as in a trained network", low=1 - 1e-9, role="corrected"),
    Criterion("trained_size_positive_wider", "where a wider one falls", high=0.5, role="corrected"),
    Criterion("end_distance_positive_square", "and q → ±v_1 there too", high=1e-3, role="corrected"),
    Criterion(
        "end_distance_negative",
        "a negative eigenvalue: q → ±v_1, with the sign of the start",
        high=1e-3,
        role="corrected",
    ),
    Criterion("exact_error", "the exact solution agrees with DOP853", high=1e-8, role="corrected"),
    Criterion("formula_error", "and its |q|² is that of κ", high=1e-10, role="corrected"),
)


def _trained_size(C: Tensor, width: int, seed: int) -> float:
    """|q| of a network after training to time 3."""
    net = orthogonal_net(D, width, 1, seed)
    run = train_deep_linear(net, C, flow="grassmann", learning_rate=0.02, n_steps=150)
    return float(run.final_outputs.norm())


_WIDTHS: tuple[tuple[int, str, Style], ...] = ((D, "h = d", "dashed"), (2 * D, "h = 2d", "plain"))


def _spread(low: float, seed: int) -> Tensor:
    """Eigenvalues from `low` up to 1.5, evenly spaced but for a little noise: no gap is tiny."""
    values = torch.linspace(low, 1.5, D, dtype=torch.float64)
    return values + 0.05 * torch.rand(D, generator=generator("spread", seed), dtype=torch.float64)


def _paper_formula_error(eigenvalues: Tensor, q: Tensor, inside: bool) -> float:
    """How far ρ = |q|² is from (−κ + √(κ² + 4κ))/2; NaN on the sphere, where κ is infinite.

    N/N_0 follows from q up to its length: q is parallel to e^{−Λτ}q_0, so τ from two of its rows gives N.
    """
    if not inside:
        return math.nan
    first, rows = q[0, :, 0], q[:, :, 0]
    ratio = torch.log((rows[:, 0] / rows[:, 1]) / (first[0] / first[1]))
    tau = ratio / (eigenvalues[1] - eigenvalues[0])
    early = tau < 20 / float(eigenvalues.abs().max())  # later one row is rounding
    log_N = torch.logsumexp(2 * torch.log(first.abs()) - 2 * eigenvalues * tau[early, None], dim=1)
    rho0, rho = float(first.square().sum()), rows[early].square().sum(1)
    kappa = rho0**2 / (1 - rho0) * torch.exp(2 * (log_N - math.log(rho0)))
    expected = 2 * kappa / (kappa + torch.sqrt(kappa.square() + 4 * kappa))  # the same, without cancellation
    return float((rho - expected).abs().max())


SHAPES = ((3, 2), (6, 2), (8, 3))  # d, z
LAW = flow_law("grassmann")
STEP = 0.25  # of Runge and Kutta, for eigenvalues in ±1: rates are at most 8, and 2.78/8 is the limit of stability


@dataclass(frozen=True)
class Cases:
    """Random cases of Conjecture 2, of one kind.

    Attributes:
        gap: the least of λ_(z+1) − λ_z; the largest is twice as much.
        hidden: by what the start is small along v_1 … v_z; 1 is not small.
        thin: the smallest singular value of the start; None draws all between 0.05 and 0.95.
        unit: all singular values 1, as at h = d.
        last: λ_z, of which nothing but the sign is asked; None draws it between −0.5 and −0.05.
    """

    gap: float
    hidden: float = 1.0
    thin: float | None = None
    unit: bool = False
    last: float | None = None

    def distances(self, d: int, z: int, n: int, purpose: str) -> NDArray[np.float64]:
        """1 − the least projection of v_1 … v_z on the span of q, by case, at time (10 + log 1/hidden)/gap."""
        draw = generator(purpose, d, z)
        gaps = self.gap * (1 + torch.rand(n, 1, generator=draw, dtype=torch.float64))
        values = self._eigenvalues(d, z, gaps, draw)
        times = (10 - math.log(self.hidden)) / gaps[:, :, None]
        q = _followed(values[:, :, None], self._starts(d, z, n, draw), times, on_the_sphere=self.unit)
        lost = ~torch.isfinite(q).all(2).all(1)  # a case that overflowed has no distance, and the claim no verdict
        flow = DeepLinearFlow(tuple(range(n)), q.masked_fill(lost[:, None, None], 0), values[0], torch.eye(d).to(q))
        distances = 1 - flow.projections(z).min(dim=1).values
        return np.asarray(distances.masked_fill(lost, math.nan).numpy())

    def _eigenvalues(self, d: int, z: int, gaps: Tensor, draw: torch.Generator) -> Tensor:
        """Ascending, in ±1, z of them negative, λ_z and λ_(z+1) by the gap apart."""
        last = -0.05 - 0.45 * torch.rand(len(gaps), 1, generator=draw, dtype=torch.float64)
        last = last if self.last is None else torch.full_like(last, self.last)
        low = last - (1 + last) * torch.rand(len(gaps), z - 1, generator=draw, dtype=torch.float64)
        above = last + gaps
        high = above + (1 - above) * torch.rand(len(gaps), d - z - 1, generator=draw, dtype=torch.float64)
        return torch.cat([low, last, above, high], dim=1).sort(dim=1).values

    def _starts(self, d: int, z: int, n: int, draw: torch.Generator) -> Tensor:
        u, _, vh = torch.linalg.svd(torch.randn(n, d, z, generator=draw, dtype=torch.float64), full_matrices=False)
        sizes = 0.05 + 0.9 * torch.rand(n, 1, z, generator=draw, dtype=torch.float64)
        if self.thin is not None:
            sizes[:, :, -1] = self.thin
        q = (u if self.unit else u * sizes) @ vh
        q[:, :z] *= self.hidden
        return torch.as_tensor(q)


def _followed(values: Tensor, q: Tensor, times: Tensor, *, on_the_sphere: bool) -> Tensor:
    """(8) from q (n, d, z), each case to its own time, by the Runge-Kutta method of order four.

    Its steps are too long to follow fast decays closely, but have the same limits, which is what is asked for.
    Singular values 1 stay, but rounding drives q off them while q^T Λq is positive: `on_the_sphere` takes it back.
    """
    n_steps = math.ceil(float(times.max()) / STEP)
    h = times / n_steps
    for _ in range(n_steps):
        k1 = LAW.velocity(values, q)
        k2 = LAW.velocity(values, q + h / 2 * k1)
        k3 = LAW.velocity(values, q + h / 2 * k2)
        q = q + h / 6 * (k1 + 2 * (k2 + k3) + LAW.velocity(values, q + h * k3))
        if on_the_sphere:
            q = 1.5 * q - 0.5 * q @ (q.mT @ q)  # Newton's step to the nearest frame
    return torch.as_tensor(q)


@claim(
    "B.conj2",
    source="Paper B, Conjecture 2 and Fig. 4",
    title="More outputs: the span tends to the lowest eigenvectors",
    printed="If C has at least z negative eigenvalues, the span of q's columns tends to that of the eigenvectors of "
    "the z most negative ones.",
    recorded=Verdict.HOLDS,
    cost=3,
)
def conjecture_2(setting: Setting) -> Evidence:
    """A search for counter-examples among random and adversarial cases, each followed for 10 over its gap and more."""
    n_cases = setting.pick(quick=240, full=6000, paper=6000)
    kinds = {
        "random": Cases(gap=0.05),
        "tiny gap": Cases(gap=setting.pick(quick=0.01, full=1e-3, paper=1e-3)),
        "nearly orthogonal": Cases(gap=0.05, hidden=1e-6),
        "nearly rank-deficient": Cases(gap=0.05, thin=1e-6),
        "barely negative": Cases(gap=0.05, last=-1e-4),
        "on the sphere": Cases(gap=0.05, unit=True),
    }
    n = n_cases // (len(kinds) * len(SHAPES))
    found = {name: np.concatenate([cases.distances(d, z, n, name) for d, z in SHAPES]) for name, cases in kinds.items()}
    worst = {name: float(values.max()) for name, values in found.items()}
    start = Cases(gap=0.05)._starts(6, 2, 1, generator("orthogonal"))[0]
    start[0] = 0
    C = torch.diag(torch.linspace(-1, 1, 6, dtype=torch.float64))
    orthogonal = deep_linear_flow(C, start, times=[100.0]).projections(1)
    return evidence(
        {
            "n_cases": float(sum(len(values) for values in found.values())),
            **{f"worst_{name.replace(' ', '_').replace('-', '_')}": value for name, value in worst.items()},
            "worst": largest(*worst.values()),
            "projection_of_v1_started_orthogonal": float(orthogonal),
        },
        [
            Criterion("worst", "1 − |projection| of v_1 … v_z on the span, in the worst case", high=1e-6),
        ],
        data=xr.Dataset({name: ("case", values) for name, values in found.items()}),
        panels=[
            Panel(
                "The worst cases of each kind",
                "rank",
                "1 − least projection",
                tuple(
                    curve(name, np.arange(1, len(values) + 1), np.maximum(np.sort(values)[::-1], ROUNDING), "plain")
                    for name, values in found.items()
                ),
            ),
            _figure_4(),
        ],
        setting={
            "shapes": [f"d = {d}, z = {z}" for d, z in SHAPES],
            "time": "10/gap, for hidden starts (10 + log 10⁶)/gap",
        },
        warnings=[
            "a start exactly orthogonal to v_1 stays so, and one of lower rank keeps it: both have probability 0"
        ],
    )


ROUNDING = 1e-17  # a distance of 0 has no place on a logarithmic axis


def _figure_4() -> Panel:
    """Projections of v_1, v_2, v_3 on the span on half moons: paper B, Fig. 4."""
    C, times = moon_matrix(200, 0), np.geomspace(0.1, 200, 60)
    curves = []
    for z in (1, 2, 3):
        flow = deep_linear_flow(C, start_of(orthogonal_net(3, 10, z, 0)), times=times)
        curves += [
            curve(f"v_{i + 1}, z = {z}", times, flow.projections(3)[:, i], "dashed" if z == 1 else "plain")
            for i in range(3)
        ]
    return Panel("Half moons: projections on the span", "time t", "|projection|", tuple(curves), y_log=False)
