r"""The generative models of paper C, Appendix B.1: one pattern at a time, or all at once with random weights.

Patterns are the **rows** u_m of `patterns`, (M, d). For ReLU, uniform pairwise importance, no augmentation and
orthonormal patterns, the population's $A(u_m) = \mathbb V[\tilde x^{u_m}]$ is known, (34) and (35). The I that the
paper writes in (35) is the projector $U^\top U$ on the span of the patterns, which is I only if there are d of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kontrast import checks
from kontrast.errors import InputError
from kontrast.linalg import random_frame

THRESHOLD_Q = (3 - math.sqrt(5)) / 2  # (1 - q)² = q: u_m is the top eigenvector of (35) iff q_m is below
MOST_PATTERNS = 16  # of a model whose 2^M sums are listed


@dataclass(frozen=True, eq=False)
class LatentCategorical:
    """x is one of the patterns u_m, (M, d), the m-th with probability `probabilities`[m], (M,)."""

    patterns: Tensor
    probabilities: Tensor

    def __post_init__(self) -> None:
        checks.require_matrix("patterns", self.patterns, ("M", "d"), "pass one row per pattern")
        require_probabilities(self.probabilities, len(self.patterns))

    def sample(self, n: int, *, noise_std: float = 0.0, generator: torch.Generator) -> Tensor:
        """`n` samples as rows (n, d), smoothed by Gaussian noise of this standard deviation."""
        n = _checked_draw(n, noise_std, generator)
        p = self.probabilities.double().to(generator.device)
        drawn = torch.multinomial(p, n, replacement=True, generator=generator)
        return _smoothed(self.patterns[drawn.to(self.patterns.device)], noise_std, generator)

    def states(self) -> tuple[Tensor, Tensor]:
        """All values of x, (M, d), and their probabilities, (M,)."""
        return self.patterns, self.probabilities.to(self.patterns)

    def eigenvalue_at(self, m: int) -> float:
        """λ of A(u_m)u_m = λu_m for orthonormal patterns: P[y = m](1 − P[y = m])."""
        p = float(self.probabilities[_index(m, len(self.patterns))])
        return p * (1 - p)

    def gap_at(self, m: int) -> float:
        """The gap between that eigenvalue and the next, which is 0; u_m is an LME iff the gap is above 0."""
        return self.eigenvalue_at(m)

    def covariance_at(self, m: int) -> Tensor:
        r"""$A(u_m) = P[y = m](1 - P[y = m])\, u_m u_m^\top$ of (34), (d, d), for ReLU and orthonormal patterns."""
        _require_orthonormal(self.patterns)
        u = self.patterns[_index(m, len(self.patterns))]
        return self.eigenvalue_at(m) * torch.outer(u, u)


@dataclass(frozen=True, eq=False)
class LatentSummation:
    r"""$x = \sum_m y_m u_m$ with independent y_m of mean 0 and variance 1 that take two values each.

    $y_m = \sqrt{(1 - q_m)/q_m}$ with probability q_m, else $-\sqrt{q_m/(1 - q_m)}$. `q` is (M,), or one number for all.
    """

    patterns: Tensor
    q: Tensor | float

    def __post_init__(self) -> None:
        checks.require_matrix("patterns", self.patterns, ("M", "d"), "pass one row per pattern")
        _require_rates(self.q, len(self.patterns))

    @property
    def rates(self) -> Tensor:
        """q_m of every pattern, (M,), in float64."""
        return torch.as_tensor(self.q, dtype=torch.float64, device=self.patterns.device).expand(len(self.patterns))

    def sample(self, n: int, *, noise_std: float = 0.0, generator: torch.Generator) -> Tensor:
        """`n` samples as rows (n, d), smoothed by Gaussian noise of this standard deviation."""
        n = _checked_draw(n, noise_std, generator)
        shape = (n, len(self.patterns))
        u = torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)
        return _smoothed(self._sum(u.to(self.patterns.device) < self.rates), noise_std, generator)

    def states(self) -> tuple[Tensor, Tensor]:
        """All 2^M values of x, (2^M, d), and their probabilities, (2^M,); the first has every y_m below 0."""
        M, device = len(self.patterns), self.patterns.device
        if M > MOST_PATTERNS:
            raise InputError(
                f"{M} patterns have 2^{M} sums, too many to list; use at most {MOST_PATTERNS} patterns, or sample"
            )
        bits = torch.arange(2**M, device=device)[:, None] >> torch.arange(M, device=device)  # (2^M, M)
        high = (bits & 1).bool()
        return self._sum(high), torch.where(high, self.rates, 1 - self.rates).prod(1).to(self.patterns.dtype)

    def eigenvalue_at(self, m: int) -> float:
        """λ of A(u_m)u_m = λu_m for orthonormal patterns: (1 − q_m)²."""
        return (1 - float(self.rates[_index(m, len(self.patterns))])) ** 2

    def gap_at(self, m: int) -> float:
        """The gap between that eigenvalue and the largest other one, q_m; below 0 for q_m > `THRESHOLD_Q`.

        u_m is an LME iff the gap is above 0. For a single pattern there is no other, and the gap is the eigenvalue.
        """
        others = float(self.rates[_index(m, len(self.patterns))]) if len(self.patterns) > 1 else 0.0
        return self.eigenvalue_at(m) - others

    def covariance_at(self, m: int) -> Tensor:
        r"""$A(u_m) = (1 - q_m)^2 u_m u_m^\top + q_m (U^\top U - u_m u_m^\top)$, (d, d), for ReLU.

        Paper C, (35), whose I is the projector U^T U on the span of the patterns; these must be orthonormal.
        """
        _require_orthonormal(self.patterns)
        u, q = self.patterns[_index(m, len(self.patterns))], float(self.rates[m])
        own = torch.outer(u, u)
        return (1 - q) ** 2 * own + q * (self.patterns.mT @ self.patterns - own)

    def _sum(self, high: Tensor) -> Tensor:
        """Rows x for rows of (n, M) that say which y_m take their upper value."""
        odds = ((1 - self.rates) / self.rates).sqrt()
        return (torch.where(high, odds, -1 / odds) @ self.patterns.double()).to(self.patterns.dtype)


def orthonormal_patterns(n_patterns: int, d: int, *, generator: torch.Generator) -> Tensor:
    """Orthonormal rows (n_patterns, d), drawn uniformly, in float64."""
    n_patterns, d = _checked_size(n_patterns, d, generator)
    return random_frame(d, n_patterns, generator=generator).mT.contiguous()


def nearly_orthogonal_patterns(n_patterns: int, d: int, size: float, *, generator: torch.Generator) -> Tensor:
    """Rows (n_patterns, d) of norm 1 with ‖U U^T − I‖₂ = `size`, in float64.

    The Gram matrix is I + `size`·E with a random symmetric E of zero diagonal and norm 1. U is its root times
    orthonormal rows, so no rows with this Gram matrix are closer to those.
    """
    n_patterns, d = _checked_size(n_patterns, d, generator)
    checks.require_between("size", size, 0, 1, high_included=False)
    frame = orthonormal_patterns(n_patterns, d, generator=generator)
    if size == 0:
        return frame
    if n_patterns == 1:
        raise InputError(f"one pattern of norm 1 cannot be off by {size}; pass size=0, or n_patterns of 2 or more")
    gaussian = torch.randn(n_patterns, n_patterns, generator=generator, device=generator.device, dtype=torch.float64)
    E = gaussian.triu(1) + gaussian.triu(1).mT
    values, vectors = torch.linalg.eigh(E)
    root = (1 + size * values / values.abs().max()).sqrt()
    return torch.matmul(vectors * root @ vectors.mT, frame)


def require_probabilities(probabilities: Tensor, n: int) -> None:
    """Refuse what is not a floating-point tensor (n,) of numbers of 0 or more that sum to 1."""
    checks.require_floating("probabilities", probabilities)
    checks.require_shape("probabilities", probabilities, (n,), f"torch.full(({n},), 1 / {n}) makes them equal")
    total, tolerance = float(probabilities.double().sum()), 8 * torch.finfo(probabilities.dtype).eps * max(n, 8)
    if not (probabilities >= 0).all() or not abs(total - 1) <= tolerance:  # NaN compares as False
        raise InputError(
            f"probabilities must not be below 0 and must sum to 1, got a smallest of {float(probabilities.min()):g} "
            f"and a sum of {total:g}; divide them by their sum"
        )


def _require_rates(q: Tensor | float, n: int) -> None:
    if not checks.is_number(q) and not (isinstance(q, Tensor) and q.is_floating_point() and q.shape == (n,)):
        raise InputError(
            f"q must be a number, or a floating-point tensor ({n},) with one per pattern, got {checks.in_words(q)}"
        )
    rates = torch.as_tensor(q, dtype=torch.float64)
    if not ((rates > 0) & (rates < 1)).all():
        raise InputError(
            f"q must be above 0 and below 1, got {float(rates.min()):g} to {float(rates.max()):g}; at 0 and 1 y_m has "
            "one value only and cannot have variance 1"
        )


def _require_orthonormal(patterns: Tensor) -> None:
    rows = patterns.double()
    gram = rows @ rows.mT
    off = float(torch.linalg.matrix_norm(gram - torch.eye(len(gram), dtype=gram.dtype, device=gram.device), ord=2))
    if off > 64 * torch.finfo(patterns.dtype).eps * len(patterns):
        raise InputError(
            f"A(u_m) is known in closed form only for orthonormal patterns, and ‖U U^T − I‖ is {off:.3g} for these; "
            "use orthonormal_patterns, or kontrast.patterns.MixtureCovariance.of(model, noise_std).matrix(w)"
        )


def _checked_draw(n: int, noise_std: float, generator: torch.Generator) -> int:
    checks.require_finite_not_negative(noise_std=noise_std)
    checks.require_generator(generator)
    return checks.require_whole("n", n)


def _checked_size(n_patterns: int, d: int, generator: torch.Generator) -> tuple[int, int]:
    checks.require_generator(generator)
    n_patterns, d = checks.require_whole("n_patterns", n_patterns), checks.require_whole("d", d)
    if n_patterns > d:
        raise InputError(
            f"there are no {n_patterns} independent patterns in {d} dimensions; use at most {d} patterns or a larger d"
        )
    return n_patterns, d


def _index(m: int, n: int) -> int:
    return checks.require_whole("m", m, least=0, most=n - 1)


def _smoothed(x: Tensor, noise_std: float, generator: torch.Generator) -> Tensor:
    if noise_std == 0:
        return x
    xi = torch.randn(x.shape, generator=generator, device=generator.device, dtype=x.dtype)
    return x + noise_std * xi.to(x.device)
