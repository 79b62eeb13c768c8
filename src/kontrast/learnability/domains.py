r"""Domains on which one row of an invariant kernel determines its spectrum: the hypercube, the circle and the sphere.

Paper D, (31) and (137). On {±1}^d, on evenly spaced points of a circle and on the sphere S^{d−1}, every kernel that is
invariant under the symmetries of the domain has the same eigenfunctions: parities, waves and spherical harmonics. Each
level has one eigenfunction Z that depends only on the position relative to x_0, and its eigenvalue is the mean of
k(x_0, ·)Z over the domain.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kontrast.checks import in_words, require_callable, require_positive, require_whole
from kontrast.errors import ConvergenceError, InputError
from kontrast.learnability.eigenlearning import Spectrum

KernelFunction = Callable[[Tensor, Tensor], Tensor]

MOST_DIMENSIONS = 1000  # of a hypercube with a spectrum: binomials stay below the largest float
MOST_CORNERS = 20  # dimensions of a hypercube whose points are all held
MOST_PARITIES = 13  # dimensions of one whose 4^d values of parities are all held
N_PAIRS = 16  # random pairs at which invariance is checked
N_SAME = 6  # of them pair a point with itself

# Relative to k(x, x): an eigenvalue below ROUNDING is 0, one below −INVARIANCE is refused.
ROUNDING = 16 * float(np.finfo(float).eps)
INVARIANCE = 1e-9

NODES, WEIGHTS = (torch.as_tensor(part) for part in np.polynomial.legendre.leggauss(32))
MOST_PANELS = 256
MOST_SPHERE = 10_000  # dimensions of a sphere: the kernel sees points with all their coordinates
HUGE = 1e280  # values of a kernel beyond which sums of them overflow
CONVERGED, TOO_ROUGH = 1e-14, 1e-8  # change of eigenvalues between two quadratures, relative to k(x, x)


@dataclass(frozen=True, eq=False)
class Parities:
    r"""The eigenfunctions $\prod_{i \in S} x_i$ of every invariant kernel on the hypercube, one for each set S."""

    functions: Tensor  # (2^d, 2^d), one per column, at the points of `hypercube`; of mean square 1 and orthogonal
    levels: Tensor  # (2^d,), the size of each set, ascending


def hypercube(d: int) -> Tensor:
    """All points of {±1}^d, (2^d, d) in float64; coordinate i of row b is −1 where bit i of b is set."""
    d = require_whole("d", d, most=MOST_CORNERS)
    bits = torch.arange(2**d)[:, None] >> torch.arange(d) & 1
    return (1 - 2 * bits).double()


def parities(d: int) -> Parities:
    """All parities of d coordinates, ordered by level."""
    d = require_whole("d", d, most=MOST_PARITIES)
    functions = torch.ones(1, 1, dtype=torch.float64)
    for _ in range(d):  # (−1)^|b ∧ S|: the next coordinate is the next higher bit of point b and of set S
        functions = torch.cat([torch.cat([functions, functions], 1), torch.cat([functions, -functions], 1)])
    levels, order = torch.sort((hypercube(d) < 0).sum(1), stable=True)
    return Parities(functions[:, order], levels)


def hypercube_spectrum(kernel: KernelFunction, d: int) -> Spectrum:
    r"""Spectrum on {±1}^d of a kernel that depends on the number of coordinates in which two points differ.

    Level k, the parities of k coordinates, has $\binom dk$ of them and
    $\lambda_k = 2^{-d} \sum_j \mathcal K_j(k)\, k(x_0, x_j)$: x_j differs from x_0 in j coordinates and Krawtchouk's
    $\mathcal K_j(k) = \sum_i (-1)^i \binom ki \binom{d-k}{j-i}$ sums the parity over all such points. The kernel is
    evaluated at d + 1 points only, so d may be large.

    `kernel` is k(x, y), from rows (n, d) and (m, d) to (n, m): a `Kernel` or a function. One that is not positive, or
    not invariant under flips and permutations of coordinates, is refused. Levels are in the order k = 0, …, d;
    eigenvalues within rounding of 0, relative to k(x, x), are 0. If together these hold part of k(x, x), it is the
    `remainder`, and the domain counts as infinite.
    """
    d = require_whole("d", d, most=MOST_DIMENSIONS)
    at = torch.arange(d + 1)
    row = _row(kernel, (1 - 2 * (at[:d] < at[:, None]).long()).double())
    x, y = (1 - 2 * torch.randint(0, 2, (2, N_PAIRS, d), generator=_draw())).double()
    y[:N_SAME] = x[:N_SAME]
    _require_invariant(kernel, x, y, row[(x != y).sum(1)], row[0], "the number of coordinates in which x and y differ")
    counts, size = [math.comb(d, k) for k in range(d + 1)], 2**d
    values, sums = [], counts
    for _ in range(d + 1):
        values.append(math.fsum(r * (s / size) for r, s in zip(row.tolist(), sums, strict=True)))
        sums = _next_krawtchouk(sums)
    levels = _spectrum(torch.tensor(values, dtype=torch.float64), counts, float(row[0]))
    return levels if levels.trace >= (1 - INVARIANCE) * float(row[0]) else _with_remainder(levels, float(row[0]))


def _next_krawtchouk(sums: Sequence[int]) -> list[int]:
    """K_j(k + 1) of K_j(k): coefficients of (1 − z)^k (1 + z)^(d − k), times (1 − z)/(1 + z). Exact integers."""
    found: list[int] = []
    for j, s in enumerate(sums):
        found.append(s - (sums[j - 1] + found[j - 1] if j else 0))
    return found


def circle(n_points: int, *, radius: float = 1.0) -> Tensor:
    """Evenly spaced points of a circle, (M, 2) in float64, from (radius, 0) on."""
    n_points = require_whole("n_points", n_points)
    require_positive(radius=radius)
    angles = torch.arange(n_points, dtype=torch.float64) * (2 * math.pi / n_points)
    return radius * torch.stack([angles.cos(), angles.sin()], dim=1)


def circle_spectrum(kernel: KernelFunction, n_points: int, *, radius: float = 1.0) -> Spectrum:
    r"""Spectrum on `circle` of a kernel that depends on the angle between two points.

    $\lambda_q = \frac1M \sum_j k(x_0, x_j) \cos(2\pi q j/M)$, the Fourier transform of one row. A frequency has a
    cosine and a sine; 0 and M/2 have only a cosine. Frequencies are in the order q = 0, …, ⌊M/2⌋. `kernel` is as in
    `hypercube_spectrum`, of rows (n, 2).
    """
    n_points = require_whole("n_points", n_points)
    points = circle(n_points, radius=radius)
    row = _row(kernel, points)
    i, j = torch.randint(0, n_points, (2, N_PAIRS), generator=_draw())
    j[:N_SAME] = i[:N_SAME]
    apart = (j - i) % n_points
    _require_invariant(kernel, points[i], points[j], row[apart], row[0], "the angle between x and y")
    values = torch.fft.rfft(row).real / n_points
    counts = [1 if q in (0, n_points - q) else 2 for q in range(len(values))]
    return _spectrum(values, counts, float(row[0]))


def sphere_spectrum(kernel: KernelFunction, d: int, n_degrees: int, *, radius: float = 1.0) -> Spectrum:
    r"""Spectrum on the sphere S^{d−1} of a kernel that depends on the angle θ between two points.

    By Funk and Hecke $\lambda_k = \int κ(θ) P_k(\cos θ) \sin^{d-2}θ\,dθ / \int \sin^{d-2}θ\,dθ$ with the polynomials of
    `zonal_polynomials`. Kernels of networks are smooth in θ, though not in its cosine, so the integrals are by
    Gauss–Legendre quadrature in θ, over panels that are halved until nothing changes.

    Degrees are in the order k = 0, …, n_degrees − 1; the others' part of k(x, x) is the `remainder`. Eigenvalues within
    rounding or quadrature error of 0 are 0. `kernel` is as in `hypercube_spectrum`, and d = 2 is the continuous circle.

    Raises:
        InputError: the kernel is not invariant under rotations, or not positive.
        ConvergenceError: the kernel is too rough in θ for the quadrature.
    """
    d, n_degrees = require_whole("d", d, least=2, most=MOST_SPHERE), require_whole("n_degrees", n_degrees)
    require_positive(radius=radius)
    x, y = torch.nn.functional.normalize(torch.randn(2, N_PAIRS, d, generator=_draw(), dtype=torch.float64), dim=2)
    y[:N_SAME] = x[:N_SAME]
    angles = 2 * torch.atan2((x - y).norm(dim=1), (x + y).norm(dim=1))
    top, *expected = _row(kernel, _arc(angles, d, radius))
    _require_invariant(kernel, radius * x, radius * y, torch.stack(expected), top, "the angle between x and y")
    counts = [_harmonics(d, k) for k in range(n_degrees)]
    if counts[-1] > sys.float_info.max:
        raise InputError(f"degree {n_degrees - 1} has too many harmonics on S^{d - 1} to count; pass fewer n_degrees")
    _require_positive(float(top), float(top))
    values, error = _funk_hecke(kernel, d, n_degrees, radius, float(top))
    return _with_remainder(_spectrum(values, counts, float(top), error=error), float(top))


def zonal_polynomials(t: Tensor, d: int, n_degrees: int) -> Tensor:
    r"""$P_k(t)$ for k = 0, …, n_degrees − 1, (n_degrees, …): Gegenbauer's for S^{d−1}, with P_k(1) = 1.

    $N_k P_k(x \cdot y) = \sum_m Y_{km}(x) Y_{km}(y)$ over the N_k harmonics of degree k, of mean square 1.
    """
    found = [torch.ones_like(t), t]
    for k in range(1, n_degrees - 1):
        found.append(((2 * k + d - 2) * t * found[-1] - k * found[-2]) / (k + d - 2))
    return torch.stack(found[:n_degrees])


def _funk_hecke(kernel: KernelFunction, d: int, n_degrees: int, radius: float, top: float) -> tuple[Tensor, Tensor]:
    """Eigenvalues, and the change of each by the last halving of the panels."""
    panels = 2 + math.ceil(max(n_degrees / 8, math.sqrt(d)))  # resolves waves of degree k and a peak of width 1/√d
    values = _quadrature(kernel, d, n_degrees, radius, panels)
    while True:
        panels *= 2
        finer = _quadrature(kernel, d, n_degrees, radius, panels)
        change, values = (finer - values).abs(), finer
        worst = float(change.max())
        if worst <= CONVERGED * top:
            return values, change
        if panels >= MOST_PANELS:
            break
    if worst > TOO_ROUGH * top:
        raise ConvergenceError(
            f"eigenvalues still change by {worst / top:.1e} of k(x, x) at {panels * len(NODES)} angles; the kernel "
            "must be continuous in the angle, and piecewise smooth"
        )
    return values, change


def _quadrature(kernel: KernelFunction, d: int, n_degrees: int, radius: float, panels: int) -> Tensor:
    width = math.pi / panels
    angles = (width * (torch.arange(panels)[:, None] + (NODES + 1) / 2)).flatten()
    weights = WEIGHTS.repeat(panels) * angles.sin() ** (d - 2)
    polynomials = zonal_polynomials(angles.cos(), d, n_degrees)
    return polynomials @ (weights * _row(kernel, _arc(angles, d, radius))[1:]) / weights.sum()


def _arc(angles: Tensor, d: int, radius: float) -> Tensor:
    """x_0 on the first axis, then points at these angles from it."""
    points = torch.zeros(len(angles) + 1, d, dtype=torch.float64)
    points[0, 0] = radius
    points[1:, 0], points[1:, 1] = radius * angles.cos(), radius * angles.sin()
    return points


def _harmonics(d: int, k: int) -> int:
    """The number of spherical harmonics of degree k on S^{d−1}."""
    return math.comb(d + k - 1, k) - (math.comb(d + k - 3, k - 2) if k > 1 else 0)


def _draw() -> torch.Generator:
    return torch.Generator().manual_seed(0)  # the same pairs for every kernel


def _row(kernel: KernelFunction, points: Tensor) -> Tensor:
    """The kernel of the first point with all of them."""
    return _values(kernel, points[:1], points)[0]


def _values(kernel: KernelFunction, x: Tensor, y: Tensor) -> Tensor:
    require_callable("kernel", kernel, "pass a Kernel or a function k(x, y) of rows")
    found = kernel(x, y)
    if not isinstance(found, Tensor) or found.shape != (len(x), len(y)) or not found.is_floating_point():
        raise InputError(
            f"kernel must return floats ({len(x)}, {len(y)}) for {len(x)} and {len(y)} rows, got {in_words(found)}"
        )
    if not bool((found.abs() < HUGE).all()):
        raise InputError("the kernel is NaN, infinite or huge at points of the domain; scale it, or check its inputs")
    return found.detach().double().cpu()


def _require_invariant(
    kernel: KernelFunction, x: Tensor, y: Tensor, expected: Tensor, top: Tensor, depends_on: str
) -> None:
    """Compare k(x_i, y_i) and k(y_i, x_i) at random pairs with the value at the equivalent pair of x_0."""
    found = _values(kernel, torch.cat([x, y]), torch.cat([y, x])).diagonal()
    off = (found - torch.cat([expected, expected])).abs()
    if float(off.max()) > INVARIANCE * float(top.abs()):
        worst = int(off.argmax())
        raise InputError(
            f"the kernel must be symmetric and depend only on {depends_on}, but at two pairs where that is equal it is "
            f"{float(found[worst]):.6g} and {float(expected[worst % len(x)]):.6g}; for any other kernel use "
            "eigensystem(K) of points of the domain"
        )


def _spectrum(values: Tensor, counts: Sequence[int], top: float, *, error: Tensor | float = 0.0) -> Spectrum:
    """The levels, with eigenvalues within rounding or `error` of 0 set to 0."""
    _require_positive(float(values.min()), top)
    noise = torch.as_tensor(error).clamp(min=ROUNDING * top)
    return Spectrum(torch.where(values > noise, values, 0.0), torch.tensor(counts, dtype=torch.float64))


def _require_positive(value: float, top: float) -> None:
    if top < 0 or value < -INVARIANCE * top:
        raise InputError(
            f"the kernel must not have negative eigenvalues, but one is {value:.3g}, where k(x, x) = {top:.3g}; use a "
            "positive semi-definite function"
        )


def _with_remainder(levels: Spectrum, top: float) -> Spectrum:
    """The levels of an infinite domain, with the part of k(x, x) that they leave out."""
    return Spectrum(levels.eigenvalues, levels.counts, math.inf, max(0.0, top - levels.trace))
