"""B.conj2: with more outputs, the span tends to that of the lowest eigenvectors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor

from kontrast.claims.b.problems import moon_matrix, orthogonal_net, start_of
from kontrast.claims.evidence import Evidence, Panel, Verdict, curve, judged, printed, shown
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, largest
from kontrast.deep_linear import DeepLinearFlow, deep_linear_flow, flow_law

SHAPES = ((3, 2), (6, 2), (8, 3))  # d, z
LAW = flow_law("grassmann")
STEP = 0.25  # of Runge-Kutta, for |eigenvalues| ≤ 1: rates are at most 8, and steps are stable up to 2.78/8
ROUNDING = 1e-17  # smaller distances are drawn here, as 0 has no place on a logarithmic axis


@dataclass(frozen=True)
class Cases:
    """Random cases of Conjecture 2, of one kind.

    Attributes:
        gap: λ_(z+1) − λ_z is drawn between this and twice this.
        hidden: the factor that makes the start small along v_1 … v_z; 1 leaves it as it is.
        thin: the smallest singular value of the start; None draws all between 0.05 and 0.95.
        unit: whether all singular values are 1, as at h = d.
        last: λ_z, which only has to be negative; None draws it between −0.5 and −0.05.
    """

    gap: float
    hidden: float = 1.0
    thin: float | None = None
    unit: bool = False
    last: float | None = None

    def distances(self, d: int, z: int, n: int, purpose: str) -> NDArray[np.float64]:
        """1 − the least projection of v_1 … v_z on the span of q, case by case, at time (10 + log 1/hidden)/gap."""
        draw = generator(purpose, d, z)
        gaps = self.gap * (1 + torch.rand(n, 1, generator=draw, dtype=torch.float64))
        values = self._eigenvalues(d, z, gaps, draw)
        times = (10 - math.log(self.hidden)) / gaps[:, :, None]
        q = _followed(values[:, :, None], self._starts(d, z, n, draw), times, on_the_sphere=self.unit)
        lost = ~torch.isfinite(q).all(2).all(1)  # NaN: the claim is then undecided
        flow = DeepLinearFlow(tuple(range(n)), q.masked_fill(lost[:, None, None], 0), values[0], torch.eye(d).to(q))
        distances = 1 - flow.projections(z).min(dim=1).values
        return np.asarray(distances.masked_fill(lost, math.nan).numpy())

    def _eigenvalues(self, d: int, z: int, gaps: Tensor, draw: torch.Generator) -> Tensor:
        """Ascending eigenvalues between −1 and 1, z of them negative, with λ_(z+1) − λ_z given by `gaps`."""
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
    """Integrate (8) from q (n, d, z), each case to its own time, by the Runge-Kutta method of order four.

    The steps are too long to follow fast decays closely, but they lead to the same limits, and only those matter.
    Singular values of 1 stay 1, but rounding errors grow while q^T Λq is positive: `on_the_sphere` removes them.
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
    """Search for counterexamples among random and adversarial cases, each followed for at least 10/gap."""
    n_cases = setting.pick(quick=240, full=6000)
    kinds = {
        "random": Cases(gap=0.05),
        "tiny gap": Cases(gap=setting.pick(quick=0.01, full=1e-3)),
        "nearly orthogonal": Cases(gap=0.05, hidden=1e-6),
        "nearly rank-deficient": Cases(gap=0.05, thin=1e-6),
        "barely negative": Cases(gap=0.05, last=-1e-4),
        "on the sphere": Cases(gap=0.05, unit=True),
    }
    n = n_cases // (len(kinds) * len(SHAPES))
    found = {name: np.concatenate([cases.distances(d, z, n, name) for d, z in SHAPES]) for name, cases in kinds.items()}
    worst = {name: float(values.max()) for name, values in found.items()}
    distances = tuple(
        curve(name, np.arange(1, len(values) + 1), np.maximum(np.sort(values)[::-1], ROUNDING), "plain")
        for name, values in found.items()
    )
    return judged(
        printed("worst", largest(*worst.values()), "v_1 … v_z lie in the span (1 − least projection)", high=1e-6),
        *shown(
            n_cases=float(sum(len(values) for values in found.values())),
            **{f"worst_{name.replace(' ', '_').replace('-', '_')}": value for name, value in worst.items()},
            projection_of_v1_started_orthogonal=_started_orthogonal(),
        ),
        data=xr.Dataset({name: ("case", values) for name, values in found.items()}),
        panels=[
            Panel("Distances by kind of case, largest first", "rank", "1 − least projection", distances),
            _figure_4(),
        ],
        setting={
            "shapes": [f"d = {d}, z = {z}" for d, z in SHAPES],
            "time": "10/gap, for hidden starts (10 + log 10⁶)/gap",
        },
        warnings=["starts that are exactly orthogonal to v_1 or of lower rank stay so; both have probability 0"],
    )


def _started_orthogonal() -> float:
    """The projection of v_1 on the span, at time 100, if the start is exactly orthogonal to v_1."""
    start = Cases(gap=0.05)._starts(6, 2, 1, generator("orthogonal"))[0]
    start[0] = 0
    C = torch.diag(torch.linspace(-1, 1, 6, dtype=torch.float64))
    return float(deep_linear_flow(C, start, times=[100.0]).projections(1))


def _figure_4() -> Panel:
    """Fig. 4: projections of v_1, v_2, v_3 on the span, on half moons."""
    C, times = moon_matrix(200, 0), np.geomspace(0.1, 200, 60)
    flows = {z: deep_linear_flow(C, start_of(orthogonal_net(3, 10, z, 0)), times=times) for z in (1, 2, 3)}
    curves = tuple(
        curve(f"v_{i + 1}, z = {z}", times, flow.projections(3)[:, i], "dashed" if z == 1 else "plain")
        for z, flow in flows.items()
        for i in range(3)
    )
    return Panel("Half moons: projections on the span", "time t", "|projection|", curves, y_log=False)
