r"""Paper C, Def. 3: locally maximal eigenvectors (LMEs), the patterns that a one-layer contrastive network can learn.

w is one if $A(w) w = \lambda w$ with λ the largest eigenvalue of A(w). `find_lmes` runs the power iteration (94) from
many starts, brings chattering filters to rest exactly (settling.py), and judges every limit.

**Stability.** Half the Hessian of the energy is A(w) + R(w) with $R u = \frac{d}{d\epsilon} A(w + \epsilon u) w$, so
the flow (7) is stable at w exactly where $\lambda_{\max}(P (A + R) P) < \lambda$ on the tangent space, while Theorem 1
assumes $\lambda_{gap} > \rho = \lVert R P \rVert$ (`certified`). For a ReLU
$R = \sum_i \delta(w^\top x_i)\, v_i\, x_i x_i^\top$ with v the pull on each output. Without views $v_i \le 0$ on the
plane, so R never harms, and every LME is stable. With views, or with a leaky ReLU, $v_i > 0$ is possible: such an edge
repels.

Samples have no density, so `margins` judge the energy of the samples themselves. A ridge that contains w holds it
there, and only directions along all such ridges matter. A nearby ridge that attracts does not help; nearby edges that
repel count by their density. `smooth_margins` estimate the margins of the distribution: all nearby edges count by their
density.

All of this holds α fixed, as the paper does. An α that depends on the filter (`importance_of="each"`) is fixed to its
value at w, and its own change can decide otherwise (claim C.cor2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from kontrast import checks
from kontrast.errors import InputError
from kontrast.linalg import fix_signs
from kontrast.patterns.contrastive_covariance import Importance, PairLaplacian
from kontrast.patterns.gated_covariance import ActivationLike, GatedCovariance, ImportanceOf
from kontrast.patterns.one_layer import Ending, FilterRun, power_iteration
from kontrast.patterns.settling import REST, Limit, orthogonal_to, residual_at, resting, rounds_for, settled
from kontrast.progress import Advance, progress_bar

NEARBY = 1e-3  # unfinished limits within this distance are settled as one
DEFAULTS = {"importance": "uniform", "importance_of": "samples", "activation": "relu", "gate_tolerance": 1e-9}
LARGEST_SHIFT = 16.0  # of the iteration: enough to come close to a ridge and settle on it
N_DIRECTIONS = 8  # random ones in which roughness is measured, beside the worst one by its formula


@dataclass(frozen=True, eq=False)
class FilterMatch:
    """The nearest pattern of each of K filters: its index and |cos| (cos where −w and w are different filters)."""

    index: Tensor  # (K,); −1 for filters of zeros
    cosines: Tensor  # (K,)

    def found(self, least: float = 0.9) -> Tensor:
        """Indices of the patterns that some filter matches with a cosine of at least `least`."""
        checks.require_positive(least=least)
        return torch.as_tensor(sorted(set(self.index[self.cosines >= least].tolist())), device=self.index.device)


@dataclass(frozen=True, eq=False)
class LMEs:
    """The limits found, from the largest basin to the smallest; row j of everything (m, …) belongs to pattern j."""

    weights: Tensor  # (m, d), unit rows
    eigenvalues: Tensor  # (m,): λ
    gaps: Tensor  # (m,): λ₁ − λ₂ of A(w); below 0 where λ is not the largest and w is no LME
    roughness: Tensor  # (m,): ρ by directional differences; infinite where A(·)w jumps at w
    roughness_formula: Tensor  # (m,): ρ = ‖R P‖ from the samples nearest to the edge
    margins: Tensor  # (m,): λ − λ_max(P (A + R) P) of the samples, along the ridges that contain w; above 0: stable
    smooth_margins: Tensor  # (m,): the same for their distribution, by the density of samples near the plane
    residuals: Tensor  # (m,): ‖A(w)w − λw‖/λ, with fractional gates for samples on the edge
    edges: Tensor  # (m,): how many samples lie on the edge of their gate
    basins: Tensor  # (m,): fraction of the starts that ended there
    assignment: Tensor  # (k,): each start's pattern; −1 where it reached none
    run: FilterRun
    symmetric: bool  # −w is the same pattern as w

    @property
    def maximal(self) -> Tensor:
        """Def. 3: λ is the largest eigenvalue of A(w), and a single one: (m,) of bool. Others can be stable too."""
        return self.gaps > 0

    @property
    def certified(self) -> Tensor:
        """Theorem 1's sufficient test, λ_gap > ρ, for both estimates of ρ: (m,) of bool."""
        return self.gaps > torch.maximum(self.roughness, self.roughness_formula)

    @property
    def stable(self) -> Tensor:
        """The exact criterion for the energy of these samples: (m,) of bool."""
        return self.margins > 0

    @property
    def discrepancies(self) -> Tensor:
        """‖w(t + 1) − w(t)‖ of every start, (T, k)."""
        return self.run.discrepancies

    @property
    def status(self) -> tuple[Ending, ...]:
        """How every start ended; filters that the iteration left chattering or unfinished may have been settled."""
        return tuple(
            Ending.SETTLED if found >= 0 and ending is not Ending.CONVERGED else ending
            for ending, found in zip(self.run.endings, self.assignment.tolist(), strict=True)
        )

    def __len__(self) -> int:
        return len(self.weights)

    def __repr__(self) -> str:
        return (
            f"LMEs({len(self)} patterns from {len(self.assignment)} starts, {int(self.maximal.sum())} locally maximal, "
            f"{int(self.stable.sum())} stable, {int(self.certified.sum())} certified, "
            f"{int((self.assignment < 0).sum())} starts without)"
        )

    def match(self, filters: Tensor) -> FilterMatch:
        """The pattern nearest to each row of a trained network's `filters` (K, d), say `net[0].weight`."""
        checks.require_type("filters", filters, Tensor, "pass layer.weight")
        checks.require_shape("filters", filters, ("K", self.weights.shape[1]), "pass layer.weight")
        if not len(self):
            raise InputError("there are no patterns to match filters with; raise n_starts or max_steps of find_lmes")
        rows = filters.detach().to(self.weights)
        sizes = rows.norm(dim=1)
        checks.require_finite("filters", sizes, "check the training")
        cosines = (rows / sizes.where(sizes > 0, 1.0)[:, None]) @ self.weights.mT
        best = (cosines.abs() if self.symmetric else cosines).max(dim=1)
        return FilterMatch(best.indices.where(sizes > 0, -1), best.values)


def find_lmes(
    x: Tensor | GatedCovariance,
    positives: Tensor | None = None,
    *,
    starts: Literal["random", "samples"] | Tensor = "random",
    n_starts: int = 64,
    max_steps: int = 1000,
    tolerance: float | None = None,
    distinct: float = 0.05,
    importance: Importance | PairLaplacian = "uniform",
    importance_of: ImportanceOf = "samples",
    activation: ActivationLike = "relu",
    gate_tolerance: float = 1e-9,
    generator: torch.Generator | None = None,
    progress: bool | Advance = False,
) -> LMEs:
    """The patterns at which filters of a one-layer network come to rest, each with its certificate.

    ```python
    found = kt.patterns.find_lmes(x, n_starts=64, generator=torch.Generator().manual_seed(0))
    found.weights[found.certified]
    ```

    Args:
        x: samples as rows (n, d), or a `GatedCovariance` of them.
        positives: their other views (n, d), or None.
        starts: "random" directions, "samples" drawn from x, or rows (k, d) of your own.
        n_starts: how many to draw.
        max_steps: the most steps of the power iteration.
        tolerance: of its convergence; None is 1e-10 in float64 and 1e-5 in float32.
        distinct: limits closer than this are one pattern, the one of largest λ: samples split a maximum of their
            distribution into several, about 1/√n apart.
        importance: α; for this and the next three see `GatedCovariance`.
        importance_of: what α compares.
        activation: a homogeneous one.
        gate_tolerance: above which gates open.
        generator: draws the starts; needed unless they are given.
        progress: show bars for the iteration and for settling, or a function of the work done and the work in all.
    """
    options = {"importance": importance, "importance_of": importance_of, "activation": activation}
    field = _as_field(x, positives, {**options, "gate_tolerance": gate_tolerance})
    checks.require_positive(distinct=distinct)
    if tolerance is None:
        tolerance = 1e-10 if field.points.dtype == torch.float64 else 1e-5
    first = _starts(field, starts, n_starts, generator)
    run = power_iteration(
        field, first, max_steps=max_steps, tolerance=tolerance, largest_shift=LARGEST_SHIFT, progress=progress
    )
    symmetric = abs(field.activation.left) == abs(field.activation.right)
    with progress_bar("settling", progress) as advance:
        ends = _ends(field, run, advance, symmetric=symmetric)
    limits, assignment = _limits(field, ends, distinct, symmetric=symmetric)
    return _judged(field, limits, assignment, run, symmetric=symmetric)


def _limits(
    field: GatedCovariance, ends: Sequence[Limit | None], distinct: float, *, symmetric: bool
) -> tuple[list[Limit], list[int]]:
    """The distinct limits among the ends, from the largest basin to the smallest, and each start's index into them."""
    heights = [-math.inf if end is None else float(field.energy(end.w[None])) for end in ends]
    limits: list[Limit] = []
    assignment = [-1] * len(ends)
    for i in sorted(range(len(ends)), key=lambda i: -heights[i]):
        end = ends[i]
        if end is None:
            continue
        known = next((j for j, old in enumerate(limits) if _near(end.w, old.w, distinct, symmetric=symmetric)), None)
        if known is None:
            known = len(limits)
            limits.append(end)
        assignment[i] = known
    order = sorted(range(len(limits)), key=lambda j: -assignment.count(j))
    rank = {old: new for new, old in enumerate(order)} | {-1: -1}
    return [limits[j] for j in order], [rank[j] for j in assignment]


def _ends(field: GatedCovariance, run: FilterRun, advance: Advance, *, symmetric: bool) -> list[Limit | None]:
    """Where each start came to rest; unfinished ends close to each other are settled as one."""
    weights = fix_signs(run.weights.mT).mT if symmetric else run.weights
    n_rounds = rounds_for(field, len(weights))
    groups: list[tuple[Tensor, Limit | None]] = []
    ends: list[Limit | None] = []
    for w, ending, flipping in zip(weights, run.endings, run.flipping, strict=True):
        if ending in (Ending.SILENT, Ending.DIVERGED):
            ends.append(None)
        elif ending is Ending.CONVERGED:
            ends.append(resting(field, w))
        else:
            near = [limit for place, limit in groups if _near(w, place, NEARBY, symmetric=symmetric)]
            ends.append(near[0] if near else settled(field, w, flipping, n_rounds=n_rounds))
            groups.extend([] if near else [(w, ends[-1])])
        advance(len(ends), len(weights))
    return ends


def _near(a: Tensor, b: Tensor, distance: float, *, symmetric: bool) -> bool:
    return float((a - b).norm()) < distance or (symmetric and float((a + b).norm()) < distance)


def _judged(
    field: GatedCovariance, limits: Sequence[Limit], assignment: Sequence[int], run: FilterRun, *, symmetric: bool
) -> LMEs:
    certificates = [_certificate(field.frozen(limit.w), limit) for limit in limits]
    weights = torch.stack([limit.w for limit in limits]) if limits else run.weights[:0]

    def column(name: str) -> Tensor:
        return torch.tensor([getattr(each, name) for each in certificates], dtype=torch.float64).to(weights)

    return LMEs(
        weights,
        eigenvalues=column("eigenvalue"),
        gaps=column("gap"),
        roughness=column("roughness"),
        roughness_formula=column("roughness_formula"),
        margins=column("margin"),
        smooth_margins=column("smooth_margin"),
        residuals=column("residual"),
        edges=torch.tensor([int(limit.edge.sum()) for limit in limits], device=weights.device),
        basins=torch.tensor([assignment.count(j) for j in range(len(limits))]).to(weights) / len(assignment),
        assignment=torch.tensor(assignment, device=weights.device),
        run=run,
        symmetric=symmetric,
    )


@dataclass(frozen=True)
class _Certificate:
    """The numbers that judge one limit; see the fields of `LMEs`."""

    eigenvalue: float
    gap: float
    roughness: float
    roughness_formula: float
    margin: float
    smooth_margin: float
    residual: float


def _certificate(field: GatedCovariance, limit: Limit) -> _Certificate:
    w, d = limit.w, field.d
    A = field.matrix(w, gates=limit.gates)
    values = torch.linalg.eigvalsh(A)
    eigenvalue = float(w @ A @ w)
    others = values[torch.arange(d, device=w.device) != int((values - eigenvalue).abs().argmin())]
    gap = eigenvalue - float(others.max()) if d > 1 else math.inf
    pull, residual = residual_at(field, w, limit.gates)
    slope, width = _gate_slope(field, w)
    if field.activation.jump:
        pull = field.pull_on_plane(limit.gates * (field.points @ w))
    R = _roughness_matrix(field, A, slope * pull)
    tangent = torch.eye(d).to(w) - torch.outer(w, w)
    formula = measured = math.inf
    if math.isfinite(width):
        formula = float(torch.linalg.matrix_norm(R @ tangent, ord=2))
        measured = math.inf if _jumps(field, limit, pull) else _directional_roughness(field, limit, R @ tangent, width)
    smooth_margin = margin = eigenvalue - _largest_within(A + R, w[None])
    if field.activation.jump:
        repelling = _roughness_matrix(field, A, (slope * pull).clamp(min=0))
        ridges = field.points[limit.edge & _in_between(field, limit.gates)]
        margin = eigenvalue - _largest_within(A + repelling, torch.cat([w[None], ridges]))
        if _rises_off_edges(field, limit, pull):
            margin = -math.inf
    relative = float(residual.norm()) / (abs(eigenvalue) or 1.0)
    return _Certificate(eigenvalue, gap, measured, formula, margin, smooth_margin, relative)


def _jumps(field: GatedCovariance, limit: Limit, pull: Tensor) -> bool:
    """Whether A(·)w jumps at w: a sample lies on the edge of its gate, and there is a pull on its output."""
    forces = (pull[:, None] * field.points)[limit.edge].norm(dim=1)
    return bool(field.activation.jump and (forces > REST * torch.finfo(pull.dtype).eps * pull.abs().max()).any())


def _rises_off_edges(field: GatedCovariance, limit: Limit, pull: Tensor) -> bool:
    r"""Whether the energy rises at once off the edge: $\sum_S v_i (h(x_i^\top u) - g_i x_i^\top u) > 0$ for some u.

    Never for a ReLU without views, where v_i ≤ 0. The directions tried are ± x_i and those that move the output of only
    one sample on the edge; these find every rise if the samples are independent.
    """
    if not field.activation.jump or not limit.edge.any():
        return False
    points, gates, v = field.points[limit.edge], limit.gates[limit.edge], pull[limit.edge]
    if not (v * field.activation.jump > 0).any():  # no edge repels
        return False
    distinct = torch.as_tensor(np.unique(points.cpu().numpy(), axis=0)).to(points)
    directions = torch.cat([distinct, torch.linalg.pinv(distinct).mT])
    moved = points @ directions.mT  # (s, directions)
    moved = torch.cat([moved, -moved], dim=1)
    rise = v @ (field.activation(moved) - gates[:, None] * moved)
    return bool((rise > REST * torch.finfo(v.dtype).eps * (v.abs() @ moved.abs())).any())


def _in_between(field: GatedCovariance, gates: Tensor) -> Tensor:
    low, high = sorted((-field.activation.left, field.activation.right))
    slack = 1e-6 * (high - low)
    return (gates > low + slack) & (gates < high - slack)


def _largest_within(matrix: Tensor, normals: Tensor) -> float:
    """The largest eigenvalue of a symmetric matrix on the vectors orthogonal to `normals`; −∞ if there are none."""
    basis = orthogonal_to(normals)
    return float(torch.linalg.eigvalsh(basis @ matrix @ basis.mT)[-1]) if len(basis) else -math.inf


def _gate_slope(field: GatedCovariance, w: Tensor) -> tuple[Tensor, float]:
    """g'(z) of every sample, (m,), and the width within which a gate's jump is counted.

    For a gate that jumps, δ(z) is a box around 0 that holds the √m nearest samples. If all of these lie on the plane
    itself there is no density, and the width is infinite.
    """
    z = field.points @ w
    if not field.activation.jump:
        return field.activation.gate_slope(z), 0.0
    nearest = max(10, math.isqrt(len(z)))
    width = float(z.abs().kthvalue(min(nearest, len(z))).values)
    if width <= field.tolerance:
        return torch.zeros_like(z), math.inf
    return field.activation.jump / (2 * width) * (z.abs() <= width).to(z), width


def _roughness_matrix(field: GatedCovariance, A: Tensor, slope: Tensor) -> Tensor:
    r"""$R = X^\top \mathrm{diag}(g'(z) \circ v) X + (p - 1) A$, for `slope` g'(z) ∘ v."""
    R = field.points.mT @ (slope[:, None] * field.points) + (field.activation.degree - 1) * A
    return (R + R.mT) / 2


def _directional_roughness(field: GatedCovariance, limit: Limit, R: Tensor, width: float) -> float:
    r"""The largest $\lVert (A(v) - A(w)) w \rVert / \lVert v - w \rVert$ over directions, at the scale of `width`.

    Directions: the one in which R is largest, and random ones. The distance from w to v moves outputs by `width`, so
    that as many gates flip as the formula counts; if gates do not jump it is 1e-5.
    """
    w = limit.w
    generator = torch.Generator().manual_seed(0)  # the same directions for the same data
    random = torch.randn(N_DIRECTIONS, field.d, generator=generator, dtype=torch.float64).to(w)
    directions = torch.cat([torch.linalg.svd(R).Vh[:1], random])
    directions = directions - (directions @ w)[:, None] * w
    z = field.points @ w
    reach = (z.abs() <= width) if width else torch.ones_like(z, dtype=torch.bool)
    largest = 0.0
    for u in directions / directions.norm(dim=1, keepdim=True):
        spread = float((field.points[reach] @ u).square().mean().sqrt())
        angle = min(0.1, width / spread if width and spread else 1e-5)
        for sign in (1.0, -1.0):
            v = math.cos(angle) * w + sign * math.sin(angle) * u
            gates = field.activation.gate(field.points @ v, field.tolerance)
            moved = (gates * field.pull((gates * z)[:, None])[:, 0]) @ field.points
            still = (limit.gates * field.pull((limit.gates * z)[:, None])[:, 0]) @ field.points
            largest = max(largest, float((moved - still).norm() / (v - w).norm()))
    return largest


def _as_field(x: Tensor | GatedCovariance, positives: Tensor | None, options: dict[str, Any]) -> GatedCovariance:
    if not isinstance(x, GatedCovariance):
        field = GatedCovariance(x, positives, **options)
    elif positives is not None or any(isinstance(v, Tensor) or v != DEFAULTS[name] for name, v in options.items()):
        raise InputError("a GatedCovariance already has its positives and options; pass them where it is made")
    else:
        field = x
    if field.coupled:
        raise InputError(
            "with importance_of='outputs' filters depend on each other and have no patterns of their own; use "
            "'samples' or 'each', or power_iteration for all filters at once"
        )
    return field


def _starts(field: GatedCovariance, starts: str | Tensor, n_starts: int, generator: torch.Generator | None) -> Tensor:
    if isinstance(starts, Tensor):
        checks.require_shape("starts", starts, ("k", field.d), "pass rows like the samples")
        return starts.to(field.points)
    if not isinstance(starts, str):
        raise InputError(f"starts must be 'random', 'samples' or a tensor of rows, got {checks.in_words(starts)}")
    checks.require_choice("starts", starts, ("random", "samples"))
    n_starts = checks.require_whole("n_starts", n_starts)
    checks.require_generator(generator)
    assert generator is not None
    if starts == "random":
        drawn = torch.randn(n_starts, field.d, generator=generator, dtype=torch.float64, device=generator.device)
        return drawn.to(field.points)
    usable = torch.nonzero(field.points[: field.n].norm(dim=1) > 0)[:, 0]
    places = torch.randint(len(usable), (n_starts,), generator=generator, device=generator.device)
    return field.points[usable[places.to(usable.device)]]
