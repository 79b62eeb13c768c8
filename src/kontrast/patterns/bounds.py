r"""Paper C's bounds for one-layer networks: the roughness of A(w), and critical points found by power iteration.

Theorem 2 (`roughness_bound`) bounds the roughness ρ(w), which Theorem 1 compares with the eigenvalue gap; Corollary 2
is about its factor r. Theorem 3 (`guarantee`) promises a critical point near a start w(0) if the irregularity ω
of (95) is small on a ball B_γ. It takes any function w → A(w) (d, d), of samples, of a population, or of neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor

from kontrast import checks
from kontrast.bounds import Assumption, Bound, Form, value_of
from kontrast.errors import InputError
from kontrast.linalg import require_symmetric

MatrixOf = Callable[[Tensor], Tensor]

KAPPA = 2 * math.sqrt(13)  # κ·λ_gap² never exceeds this: see `eigenvector_constant`
SLACK, LEAST = 1.02, 0.005  # the search for γ steps this far beyond the ω found, so that it ends soon
NEAR = 0.05  # the distance of near pairs, in radii
FAR = (1, 2, 5, 11)  # each point is also paired with the ones this many places later


def roughness_bound(radius: float, density_at_plane: float, d: int, *, form: Form = "corrected") -> Bound:
    r"""Theorem 2: the roughness $ρ(w) \le C_0^2\,\mathrm{vol}(C_0)\,r/π$ of ReLU, ‖x‖ ≤ C_0, without augmentation.

    Printed: C_0³ instead of C_0². That cannot be right: in other units, s·x, ρ is s² times as large, and so is
    vol(C_0)·r C_0², as vol·r has no unit. In (81) and (82) a third C_0 appears without a reason: E[h] ≤ C_0 and
    ‖x‖ ≤ C_0 give two. So the printed bound is violated for small C_0, and needlessly loose for C_0 > 1.

    Corrected: as in the proof, with vol(Ω) = vol(C_0)θ/π for the two wedges Ω at the angle θ between w and v.

    Sharp: $C_0^{d+2}\,V_{d-1}\,r/(d+1)$, V_k the volume of the unit ball in k dimensions. Exactly, ρ = E[h]·‖M‖ with
    $M = E[xx^\top δ(w^\top x)]$, and ‖M‖ ≤ max p·∫(u·x)² over the ball of radius C_0 in the plane. No smaller constant
    is true: a thin slab of density r at the plane, with the rest of the mass at C_0·w, comes arbitrarily close. It is
    π V_{d−1}/((d + 1)V_d) ≈ √(π/2d) times the corrected one.

    A bound above C_0²/4 cannot help Theorem 1, as λ_gap ≤ λ_* = Var h(w^T x) ≤ C_0²/4 because 0 ≤ h ≤ C_0. For x
    uniform in a ball vol·r = 1, and the corrected bound is C_0²/π in every dimension: it certifies nothing.

    `radius` is C_0, the largest ‖x‖, and d the dimension of x. `density_at_plane` is r(w, α) = Σ_l z_l² max p̃_l(x; α)
    over the plane w^T x = 0, for uniform α max p.
    """
    checks.require_choice("form", form, ("printed", "corrected", "sharp"))
    checks.require_positive(radius=radius)
    d = checks.require_whole("d", d)
    checks.require_not_negative(density_at_plane=density_at_plane)
    log_constant = _log_volume(d) - math.log(math.pi)
    if form == "sharp":
        log_constant = _log_volume(d - 1) - math.log(d + 1)
    power = d + (3 if form == "printed" else 2)
    log10 = -math.inf
    if density_at_plane > 0:  # in logarithms: C_0^(d + 2) overflows long before the bound does
        log10 = (log_constant + power * math.log(radius) + math.log(density_at_plane)) / math.log(10)
    return Bound(
        name="ρ(w)",
        source=f"paper C, Theorem 2, {form}" + ("" if form == "printed" else ", claims C.thm2"),
        value=value_of(log10),
        constants={"C_0": radius, "r": density_at_plane, "d": d},
        log10=log10,
    )


def gaussian_z0(outputs: Tensor, temperature: float) -> float:
    r"""Corollary 2: $z_0 = E\,e^{-h^2/2τ}$ of outputs h = h(w^T x) (n,), the factor by which Gaussian α lowers r, (93).

    r(w, α_g) = z_0·r(w, α_u), as all features l ≥ 1 vanish on the plane where h = 0: an identity for the bound. With α
    held fixed, the roughness itself falls by another factor, $E[h\,e^{-h^2/2τ}]/E[h]$.
    """
    checks.require_floating("outputs", outputs)
    checks.require_shape("outputs", outputs, ("n",), "pass those of one filter")
    checks.require_positive(temperature=temperature)
    return float(torch.exp(-outputs.double().square() / (2 * temperature)).mean())


@dataclass(frozen=True, eq=False)
class Irregularity:
    """c, μ, ν and ω of Definition 4 at one weight or at many."""

    correlation: Tensor  # c = |w^T φ_1|
    shortfall: Tensor  # 1 − c, without cancellation
    eigenvalue: Tensor  # λ_1 of A(w)
    gap: Tensor  # λ_1 − λ_2
    mu: Tensor  # (100): 1 − d ≤ μ(1 − c) after one step of power iteration
    nu: Tensor  # (111): |d − c'| ≤ ν(1 − c)
    omega: Tensor  # (95), μ + ν; infinite where c, λ_1 or the gap is not above 0


def irregularity(matrix: Tensor, weight: Tensor, *, lipschitz: float = 0.0, curvature: float = 0.0) -> Irregularity:
    r"""Definition 4, (95): how far power iteration at `weight` is from that with a constant matrix.

    $μ = \frac{1 + c}{2c^2}(λ_2/λ_1)^2$ and
    $ν = 2κL^2(1 + μc) + 2Lλ_{gap}^{-1}\sqrt{μ(1 + μc)}$, with L = `lipschitz` and κ = `curvature`.

    Lemma 4 assumes λ_1 > 0 only. It also needs |λ_i| ≤ λ_2 for i > 1, which A ≥ 0 gives: it is false for the
    eigenvalues 1, 0.1 and −0.9. Lemmas 5 and 7 assume A > 0, but A ≥ 0 is enough.

    `matrix` is A(w), (d, d), for a `weight` w (d,) of norm 1, or (n, d, d) for many, (n, d).
    """
    checks.require_floating("matrix", matrix)
    checks.require_floating("weight", weight)
    if weight.dim() not in (1, 2) or weight.shape[-1] < 2 or matrix.shape != (*weight.shape, weight.shape[-1]):
        raise InputError(
            f"matrix must be (d, d) for a weight (d,), or (n, d, d) for (n, d), with d of 2 or more, got"
            f" {tuple(matrix.shape)} and {tuple(weight.shape)}"
        )
    checks.require_not_negative(lipschitz=lipschitz, curvature=curvature)
    values, vectors = torch.linalg.eigh(matrix)
    return _irregularity(values, vectors, weight, lipschitz, curvature)


def _irregularity(values: Tensor, vectors: Tensor, weight: Tensor, L: float, kappa: float) -> Irregularity:
    first, gap = values[..., -1], _gap(values)
    phi = _towards(vectors[..., -1], weight)
    shortfall = (weight - phi).square().sum(-1) / 2
    c = (weight * phi).sum(-1)
    mu = (1 + c) / (2 * c.square()) * (1 - gap / first).square()
    fine = (c > 0) & (first > 0) & (gap > 0) & torch.isfinite(mu)
    curving = kappa * L**2 if L > 0 else 0.0  # κ may be infinite where A is constant
    nu = 2 * curving * (1 + mu * c) + 2 * L / gap * (mu * (1 + mu * c)).sqrt()
    mu, nu = (torch.where(fine, bound, math.inf) for bound in (mu, nu))
    return Irregularity(c, shortfall, first, gap, mu, nu, mu + nu)


def eigenvector_constant(gap: float) -> float:
    r"""A κ for Lemma 6 that always works: $\|φ_1' - φ_1 - Δφ_1\| \le κ\|δA\|^2$ with κ = 2√13/λ_gap².

    The paper only says that κ exists. With V = δA, φ_1' = cos θ φ_1 + y, and R the inverse of λ_1 − A across φ_1, the
    eigenvalue equation gives y = R[PVφ_1' − (λ_1' − λ_1)y] and Δφ_1 = RPVφ_1, so
    ‖y − Δφ_1‖ ≤ (1 − cos θ + 2 sin θ)‖V‖/λ_gap. With sin θ ≤ 2‖V‖/λ_gap (Davis–Kahan after Yu et al.) the claim
    follows for δA of any size, with the sign φ_1·φ_1' ≥ 0. So κ is finite on a set iff the gap stays open there. Where
    levels just cross, κλ_gap² = 4√2 is reached, not far below 2√13.
    """
    checks.require_positive(gap=gap)
    return KAPPA / gap / gap  # the square of a tiny gap would be 0


def positive_definite(matrix: MatrixOf, *, epsilon: float = 1e-6) -> MatrixOf:
    """Â(w) = A(w) − λ_min(w)I + εI of (99), which is positive definite and has the same critical points as A(w)."""
    _require_function(matrix)
    checks.require_positive(epsilon=epsilon)

    def shifted_matrix(weight: Tensor) -> Tensor:
        A = matrix(weight)
        lowest = torch.linalg.eigvalsh(A)[0]
        return torch.as_tensor(A + (epsilon - lowest) * torch.eye(len(A), dtype=A.dtype, device=A.device))

    return shifted_matrix


@dataclass(frozen=True)
class LocalConstants:
    """The constants of A(w) on a ball that Theorem 3 needs, from `n_points` of its points: lower bounds, not proofs."""

    lipschitz: float  # L, the largest ‖A(w) − A(w')‖₂/‖w − w'‖
    curvature: float  # κ, the largest ‖φ_1' − φ_1 − Δφ_1‖/‖δA‖₂², at most `eigenvector_constant` of the gap
    gap: float  # the smallest λ_1 − λ_2
    lowest: float  # the smallest eigenvalue
    n_points: int  # how many A(w) these come from


def estimate_constants(
    matrix: MatrixOf, start: Tensor, radius: float, *, n_points: int = 64, generator: torch.Generator
) -> LocalConstants:
    """L and κ on the part of the unit sphere within `radius` of `start`, from near and far pairs of points there.

    Half of the points lie on the edge of the ball. The paper takes L on the whole sphere, but its proofs need it on B_γ
    only, as w(t) and w(t+1) both lie there. For samples A(w) jumps where a gate opens, so L grows as pairs come
    closer: it is finite only for a population with a density.

    `matrix`, w (d,) → A(w) (d, d), is symmetric. Of `start` only the direction matters. `radius` is a chord; beyond 2
    the ball is the whole sphere. Each of the `n_points` drawn has a near neighbour as well.
    """
    w = _unit_start(matrix, start)
    checks.require_positive(radius=radius)
    draws = _Draws.make(w, checks.require_whole("n_points", n_points, least=2), generator)
    return _Sampled.on_ball(matrix, w, radius, draws).constants


@dataclass(frozen=True, eq=False)
class Guarantee:
    """The promise of Theorem 3 about power iteration from `start`, if it makes one."""

    start: Tensor  # w(0), of norm 1
    shortfall: float  # 1 − c_0
    omega: float  # the largest ω found on the last ball tried
    gamma: float  # the smallest γ with sup ω ≤ γ on B_γ, up to 2 % and 0.005; NaN where there is none below 1
    radius: float  # of B_γ, as a chord; NaN where there is none
    constants: LocalConstants  # those found on B_γ
    assumptions: tuple[Assumption, ...]  # of the theorem, judged

    @property
    def met(self) -> bool:
        """Whether the theorem applies, as far as the sampled points tell."""
        return all(assumption.holds for assumption in self.assumptions)

    def shortfall_at(self, step: int) -> float:
        """The bound γ^t(1 − c_0) on 1 − c_t, (134)."""
        return float(self.gamma ** checks.require_whole("step", step, least=0) * self.shortfall)


def ball_radius(gamma: float, shortfall: float) -> float:
    r"""The radius $\sqrt{2(1 + γ)(1 - c_0)}/(1 - \sqrt γ)$ of B_γ, (122), for 1 − c_0 = `shortfall`."""
    checks.require_not_negative(shortfall=shortfall)
    checks.require_between("gamma", gamma, 0, 1, high_included=False)
    return math.sqrt(2 * (1 + gamma) * shortfall) / (1 - math.sqrt(gamma))


def guarantee(matrix: MatrixOf, start: Tensor, *, n_points: int = 64, generator: torch.Generator) -> Guarantee:
    r"""Theorem 3: the smallest γ < 1 with $\sup_{B_γ} ω \le γ$, where L and κ are those of B_γ, (96).

    B_γ grows with γ, and L, κ and ω grow with it. So γ is found from below: it is set to the largest ω on B_γ until the
    two agree. If that passes 1, there is no γ. The suprema are over `n_points` points and their neighbours; the points
    of smaller balls count in larger ones.

    ```python
    promise = guarantee(positive_definite(covariance.matrix), w, generator=torch.Generator().manual_seed(0))
    ```

    `matrix`, w (d,) → A(w) (d, d), is symmetric without negative eigenvalues; see `positive_definite`. Of `start`,
    w(0), only the direction matters. `n_points` are drawn in each ball.
    """
    w = _unit_start(matrix, start)
    draws = _Draws.make(w, checks.require_whole("n_points", n_points, least=2), generator)
    seen = _Sampled.at(matrix, w[None])
    first = seen.irregularity()
    shortfall = float(first.shortfall[0])
    omega, gamma = float(first.omega[0]), -1.0
    while omega > gamma and omega * SLACK + LEAST < 1:
        gamma = omega * SLACK + LEAST
        seen = seen.and_also(_Sampled.on_ball(matrix, w, ball_radius(gamma, shortfall), draws))
        omega = float(seen.irregularity().omega.max())
    found = omega <= gamma
    constants, size = seen.constants, float(seen.values.abs().max())
    return Guarantee(
        start=w,
        shortfall=shortfall,
        omega=omega,
        gamma=gamma if found else math.nan,
        radius=ball_radius(gamma, shortfall) if found else math.nan,
        constants=constants,
        assumptions=(
            Assumption(
                "A(w) ≥ 0",
                constants.lowest >= -1e3 * torch.finfo(w.dtype).eps * size,
                f"the smallest eigenvalue is {constants.lowest:.3g}; `positive_definite` lifts a negative one",
            ),
            Assumption("c_0 ≠ 0", shortfall < 1, f"1 − c_0 = {shortfall:.3g}"),
            Assumption(
                "irregularity (96)",
                found,
                f"the largest ω of {constants.n_points} points is {omega:.3g}"
                + (f" <= γ = {gamma:.3g}" if found else ", and no γ below 1 is as large"),
            ),
        ),
    )


@dataclass(frozen=True, eq=False)
class GuaranteeCheck:
    """Power iteration (94) compared with the promise of Theorem 3."""

    weights: Tensor  # w(t), (T + 1, d)
    shortfalls: Tensor  # 1 − c_t, (T + 1,)
    moves: Tensor  # ‖w(t + 1) − w(t)‖, (T,)
    rate: Bound  # the largest (1 − c_t)/(γ^t(1 − c_0)) for t ≥ 1, bounded by 1
    reach: Bound  # the largest ‖w(t) − w(0)‖, bounded by the radius of B_γ
    least_rise: float  # the smallest c_{t+1} − c_t; by the theorem it is not negative
    omega: float  # the largest ω on the way, with the L and κ of the guarantee
    constants: LocalConstants  # L and κ on the way

    @property
    def held(self) -> bool | None:
        """Whether everything promised held at every step; None where nothing was promised."""
        if self.rate.holds is None or self.reach.holds is None:
            return None
        return self.rate.holds and self.reach.holds and self.least_rise >= 0


def check_guarantee(matrix: MatrixOf, promise: Guarantee, *, n_steps: int = 60) -> GuaranteeCheck:
    """Follow power iteration (94) from the guarantee's start for `n_steps` and compare each step with the promise.

    Distances below the rounding error of eigenvectors count as 0, and so does 1 − c_t below its square.
    """
    _require_function(matrix)
    checks.require_type("promise", promise, Guarantee, "make one with guarantee()")
    n_steps = checks.require_whole("n_steps", n_steps)
    w, A = [promise.start], [matrix(promise.start)]
    for _ in range(n_steps):
        moved = A[-1] @ w[-1]
        w.append(moved / moved.norm())
        A.append(matrix(w[-1]))
    steps = torch.arange(n_steps)
    path = _Sampled.of(torch.stack(w), torch.stack(A), pairs=(steps, steps + 1))
    shortfalls = path.irregularity().shortfall
    rounding = 100 * torch.finfo(shortfalls.dtype).eps * path.values.abs().max() / _gap(path.values).min()
    counted = torch.where(shortfalls > rounding**2, shortfalls, 0.0)
    distances = (path.points - promise.start).norm(dim=1)
    promised = 1.0 if promise.met else math.nan
    rates = [_ratio(float(counted[t]), promise.shortfall_at(t)) for t in range(1, len(w))]
    return GuaranteeCheck(
        weights=path.points,
        shortfalls=shortfalls,
        moves=(path.points[1:] - path.points[:-1]).norm(dim=1),
        rate=Bound("max (1 − c_t)/(γ^t(1 − c_0))", "paper C, Theorem 3 (134)", promised, measured=max(rates)),
        reach=Bound(
            "max ‖w(t) − w(0)‖",
            "paper C, Theorem 3 (122)",
            promised * promise.radius,
            {"γ": promise.gamma, "1 − c_0": promise.shortfall},
            promise.assumptions,
            measured=float(torch.where(distances > rounding, distances, 0.0).max()),
            trivial=2.0,
        ),
        least_rise=float((counted[:-1] - counted[1:]).min()),
        omega=float(path.irregularity(promise.constants).omega.max()),
        constants=path.constants,
    )


@dataclass(frozen=True, eq=False)
class _Draws:
    """Directions orthogonal to w and fractions of a radius, drawn once for balls of all sizes."""

    directions: Tensor  # (n, d), of norm 1
    shares: Tensor  # (n,)
    steps: Tensor  # (n, d), of norm 1

    @classmethod
    def make(cls, w: Tensor, n: int, generator: torch.Generator) -> _Draws:
        checks.require_generator(generator)
        noise = torch.randn(2, n, len(w), generator=generator, dtype=torch.float64, device=generator.device).to(w)
        shares = torch.rand(n, generator=generator, dtype=torch.float64, device=generator.device).to(w).sqrt()
        shares[: n // 2] = 1
        across = noise[0] - (noise[0] @ w)[:, None] * w
        across, step = (
            rows / rows.norm(dim=1, keepdim=True).clamp_min(torch.finfo(w.dtype).tiny) for rows in (across, noise[1])
        )
        return cls(across, shares, step)

    def points(self, w: Tensor, radius: float) -> Tensor:
        """Points of the unit sphere within `radius` of w, and a neighbour of each in the ball, (2n, d)."""
        chord = (self.shares * min(radius, 2.0))[:, None]
        points = (1 - chord.square() / 2) * w + chord * (1 - chord.square() / 4).sqrt() * self.directions
        inwards = self.steps * torch.where((self.steps * (w - points)).sum(1, keepdim=True) < 0, -1.0, 1.0)
        near = points + NEAR * min(radius, 2.0) * inwards
        return torch.cat([points, near / near.norm(dim=1, keepdim=True)])


@dataclass(frozen=True, eq=False)
class _Sampled:
    """A(w) at some points with their eigenpairs, and estimates of L and κ from pairs of them."""

    points: Tensor  # (n, d)
    values: Tensor  # (n, d), ascending
    vectors: Tensor  # (n, d, d)
    slopes: Tensor  # (m,) of pairs
    curvatures: Tensor  # (2m,)

    @classmethod
    def at(cls, matrix: MatrixOf, points: Tensor, pairs: tuple[Tensor, Tensor] | None = None) -> _Sampled:
        return cls.of(points, torch.stack([matrix(point) for point in points]), pairs or (torch.arange(0),) * 2)

    @classmethod
    def of(cls, points: Tensor, matrices: Tensor, pairs: tuple[Tensor, Tensor]) -> _Sampled:
        checks.require_finite("matrix(w) near the start", matrices, "check the data behind it")
        values, vectors = torch.linalg.eigh(matrices)
        i, j = (index.to(points.device) for index in pairs)
        change = matrices[j] - matrices[i]
        size, distance = torch.linalg.eigvalsh(change).abs().amax(-1), (points[j] - points[i]).norm(dim=1)
        apart = distance > math.sqrt(torch.finfo(points.dtype).eps)  # nearer pairs differ by rounding
        slopes = _quotient(size, distance, apart)
        forth = _quotient(_remainder(values[i], vectors[i], vectors[j], change), size.square(), apart)
        back = _quotient(_remainder(values[j], vectors[j], vectors[i], -change), size.square(), apart)
        return cls(points, values, vectors, slopes, torch.cat([forth, back]))

    @classmethod
    def on_ball(cls, matrix: MatrixOf, w: Tensor, radius: float, draws: _Draws) -> _Sampled:
        """Points of the ball. One too small for differences of floats is enlarged, which can only raise L and κ."""
        smallest = 30 * math.sqrt(torch.finfo(w.dtype).eps)
        points = draws.points(w, max(radius, smallest))
        n = len(points) // 2
        index = torch.arange(n)
        right = torch.cat([index + n, *(index.roll(-places) for places in FAR)])
        return cls.at(matrix, points, pairs=(index.repeat(1 + len(FAR)), right))

    def and_also(self, other: _Sampled) -> _Sampled:
        return _Sampled(*(torch.cat([getattr(each, f.name) for each in (self, other)]) for f in fields(self)))

    @cached_property
    def constants(self) -> LocalConstants:
        gap = float(_gap(self.values).min())
        kappa = float(self.curvatures.max()) if len(self.curvatures) else 0.0
        return LocalConstants(
            lipschitz=float(self.slopes.max()) if len(self.slopes) else 0.0,
            curvature=min(kappa, eigenvector_constant(gap)) if gap > 0 else math.inf,
            gap=gap,
            lowest=float(self.values.min()),
            n_points=len(self.points),
        )

    def irregularity(self, constants: LocalConstants | None = None) -> Irregularity:
        """Irregularity at every point, with L and κ of all of them unless others are given."""
        k = constants or self.constants
        return _irregularity(self.values, self.vectors, self.points, k.lipschitz, k.curvature)


def _remainder(values: Tensor, vectors: Tensor, others: Tensor, change: Tensor) -> Tensor:
    """‖φ_1' − φ_1 − Δφ_1‖ of Lemma 6, for pairs."""
    first = vectors[..., -1]
    parts = (vectors[..., :-1].mT @ (change @ first[..., None]))[..., 0]  # φ_j^T δA φ_1, (m, d − 1)
    step = (vectors[..., :-1] @ (parts / (values[..., -1:] - values[..., :-1]))[..., None])[..., 0]
    return (_towards(others[..., -1], first) - first - step).square().sum(-1).sqrt()


def _towards(vectors: Tensor, weights: Tensor) -> Tensor:
    """The vectors with signs such that each points along its weight."""
    return vectors * torch.where((vectors * weights).sum(-1, keepdim=True) < 0, -1.0, 1.0)


def _gap(values: Tensor) -> Tensor:
    """λ_1 − λ_2."""
    return values[..., -1] - values[..., -2]


def _quotient(a: Tensor, b: Tensor, apart: Tensor) -> Tensor:
    """a/b, and 0 where pairs are too close or nothing changed."""
    return torch.where(apart & (b > 0), a / b.clamp_min(torch.finfo(b.dtype).tiny), 0.0)


def _ratio(a: float, b: float) -> float:
    return 0.0 if a == 0 else (a / b if b != 0 else math.inf)


def _log_volume(d: int) -> float:
    """Log of the volume of the unit ball in d dimensions."""
    return d / 2 * math.log(math.pi) - math.lgamma(d / 2 + 1)


def _unit_start(matrix: MatrixOf, start: Tensor) -> Tensor:
    """The direction of the start; refuses a matrix function that does not fit it."""
    _require_function(matrix)
    checks.require_floating("start", start)
    norm = float(start.norm())
    if start.dim() != 1 or len(start) < 2 or not (math.isfinite(norm) and norm > 0):
        raise InputError(
            f"start must be one weight (d,), d of 2 or more, finite and not 0, got {tuple(start.shape)} of norm {norm}"
        )
    w = start / norm
    A = matrix(w)
    checks.require_floating("matrix(start)", A)
    checks.require_shape("matrix(start)", A, (len(w), len(w)))
    checks.require_same_dtype(**{"start": w, "matrix(start)": A})
    require_symmetric(A, "matrix(start)")
    return w


def _require_function(matrix: MatrixOf) -> None:
    checks.require_callable("matrix", matrix, "pass w -> A(w)")
