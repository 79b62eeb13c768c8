r"""The generative models of paper C, Appendix B.1: patterns drawn one at a time, or all at once with random signs.

Patterns are the **rows** u_m of `patterns`, (M, d). For ReLU, uniform pairwise importance, no augmentation and
orthonormal patterns, the population's $A(u_m) = \mathbb V[\tilde x^{u_m}]$ is known, (34) and (35). In (35) the paper
writes I: it is the projector $U^\top U$ on the span of the patterns, which is I only where there are d of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kontrast.checks import is_number, require_whole
from kontrast.errors import InputError
from kontrast.linalg import random_frame

THRESHOLD_Q = (3 - math.sqrt(5)) / 2  # (1 - q)² = q: u_m is the top eigenvector of (35) iff q_m is below
MOST_PATTERNS = 16  # whose 2^M sums are listed


@dataclass(frozen=True, eq=False)
class LatentCategorical:
    """x is one of the patterns u_m, (M, d), the m-th with probability `probabilities`[m], (M,)."""

    patterns: Tensor
    probabilities: Tensor

    def __post_init__(self) -> None:
        _require_patterns(self.patterns)
        require_probabilities(self.probabilities, len(self.patterns), "patterns")

    def sample(self, n: int, *, noise_std: float = 0.0, generator: torch.Generator) -> Tensor:
        """`n` samples as rows (n, d), smoothed by Gaussian noise of that standard deviation."""
        _check_draw(n, noise_std, generator)
        p = self.probabilities.double().to(generator.device)
        drawn = torch.multinomial(p, n, replacement=True, generator=generator)
        return _smoothed(self.patterns[drawn.to(self.patterns.device)], noise_std, generator)

    def states(self) -> tuple[Tensor, Tensor]:
        """All values x takes, (M, d), and their probabilities, (M,)."""
        return self.patterns, self.probabilities.to(self.patterns)

    def eigenvalue_at(self, m: int) -> float:
        """λ of A(u_m)u_m = λu_m for orthonormal patterns: P[y = m](1 − P[y = m])."""
        p = float(self.probabilities[_index(m, len(self.patterns))])
        return p * (1 - p)

    def gap_at(self, m: int) -> float:
        """From that eigenvalue down to the next one, which is 0; u_m is an LME iff the gap is above 0."""
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
        _require_patterns(self.patterns)
        _require_rates(self.q, len(self.patterns))

    @property
    def rates(self) -> Tensor:
        """q_m of every pattern, (M,), in float64."""
        return torch.as_tensor(self.q, dtype=torch.float64, device=self.patterns.device).expand(len(self.patterns))

    def sample(self, n: int, *, noise_std: float = 0.0, generator: torch.Generator) -> Tensor:
        """`n` samples as rows (n, d), smoothed by Gaussian noise of that standard deviation."""
        _check_draw(n, noise_std, generator)
        shape = (n, len(self.patterns))
        u = torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)
        return _smoothed(self._sum(u.to(self.patterns.device) < self.rates), noise_std, generator)

    def states(self) -> tuple[Tensor, Tensor]:
        """All 2^M values x takes, (2^M, d), and their probabilities, (2^M,); the first has every y_m below 0."""
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
        """From that eigenvalue to the largest other one, q_m, which is above it for q_m > `THRESHOLD_Q`.

        u_m is an LME iff the gap is above 0. A pattern alone has no others, and its gap is its eigenvalue.
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
    _check_size(n_patterns, d, generator)
    return random_frame(d, n_patterns, generator=generator).mT.contiguous()


def nearly_orthogonal_patterns(n_patterns: int, d: int, size: float, *, generator: torch.Generator) -> Tensor:
    """Rows (n_patterns, d) of norm 1 with ‖U U^T − I‖₂ = `size`, in float64.

    The Gram matrix is I + `size`·E with a random symmetric E of zero diagonal and norm 1; U is its root times
    orthonormal rows, so no other rows of this Gram matrix are nearer to these.
    """
    _check_size(n_patterns, d, generator)
    if not is_number(size) or not 0 <= size < 1:
        raise InputError(f"size must be a number from 0 to below 1, got {size!r}; at 1 patterns may coincide")
    frame = orthonormal_patterns(n_patterns, d, generator=generator)
    if size == 0:
        return frame
    if n_patterns == 1:
        raise InputError(f"one pattern of norm 1 cannot be off by {size}; pass size=0, or 2 patterns or more")
    gaussian = torch.randn(n_patterns, n_patterns, generator=generator, device=generator.device, dtype=torch.float64)
    E = gaussian.triu(1) + gaussian.triu(1).mT
    values, vectors = torch.linalg.eigh(E)
    root = (1 + size * values / values.abs().max()).sqrt()
    return torch.matmul(vectors * root @ vectors.mT, frame)


def require_probabilities(probabilities: Tensor, n: int, of: str) -> None:
    """Raise `InputError` unless these are `n` floating-point numbers, none below 0, that sum to 1."""
    if not isinstance(probabilities, Tensor) or not probabilities.is_floating_point() or probabilities.shape != (n,):
        raise InputError(
            f"probabilities must be a floating-point tensor ({n},), one for each of the {of}, got "
            f"{_in_words(probabilities)}; torch.full(({n},), 1 / {n}) makes all alike"
        )
    total, tolerance = float(probabilities.double().sum()), 8 * torch.finfo(probabilities.dtype).eps * max(n, 8)
    if not (probabilities >= 0).all() or not abs(total - 1) <= tolerance:  # NaN compares as False
        raise InputError(
            f"probabilities must not be below 0 and must sum to 1, got a smallest of {float(probabilities.min()):g} "
            f"and a sum of {total:g}; divide them by their sum"
        )


def _require_patterns(patterns: Tensor) -> None:
    if (
        not isinstance(patterns, Tensor)
        or not patterns.is_floating_point()
        or patterns.ndim != 2
        or not patterns.numel()
    ):
        raise InputError(
            f"patterns must be floating-point rows (M, d), got {_in_words(patterns)}; use "
            "torch.as_tensor(patterns).double(), with a row for each pattern"
        )
    if not torch.isfinite(patterns).all():
        raise InputError("patterns hold NaN or infinite values; pass finite ones")


def _require_rates(q: Tensor | float, n: int) -> None:
    if not is_number(q) and not (isinstance(q, Tensor) and q.is_floating_point() and q.shape == (n,)):
        raise InputError(
            f"q must be a number, or a floating-point tensor ({n},) with one for each pattern, got {_in_words(q)}"
        )
    rates = torch.as_tensor(q, dtype=torch.float64)
    if not ((rates > 0) & (rates < 1)).all():
        raise InputError(
            f"q must lie between 0 and 1, both left out, got {float(rates.min()):g} to {float(rates.max()):g}; at "
            "either end y_m has one value only and cannot have variance 1"
        )


def _require_orthonormal(patterns: Tensor) -> None:
    rows = patterns.double()
    gram = rows @ rows.mT
    off = float(torch.linalg.matrix_norm(gram - torch.eye(len(gram), dtype=gram.dtype, device=gram.device), ord=2))
    if off > 64 * torch.finfo(patterns.dtype).eps * len(patterns):
        raise InputError(
            f"A(u_m) is known in closed form for orthonormal patterns only, and ‖U U^T − I‖ is {off:.3g} for these; "
            "use orthonormal_patterns, or kontrast.patterns.MixtureCovariance.of(model, noise_std).matrix(w)"
        )


def _check_draw(n: int, noise_std: float, generator: torch.Generator) -> None:
    require_whole("n", n)
    if not is_number(noise_std) or not 0 <= noise_std < math.inf:
        raise InputError(f"noise_std must be a finite number of at least 0, a standard deviation, got {noise_std!r}")
    _require_generator(generator)


def _check_size(n_patterns: int, d: int, generator: torch.Generator) -> None:
    require_whole("n_patterns", n_patterns)
    require_whole("d", d)
    if n_patterns > d:
        raise InputError(
            f"there are no {n_patterns} independent patterns in {d} dimensions; use at most {d} patterns or a larger d"
        )
    _require_generator(generator)


def _require_generator(generator: torch.Generator) -> None:
    if not isinstance(generator, torch.Generator):
        raise InputError(
            f"generator must be a torch.Generator, got {_in_words(generator)}; use torch.Generator().manual_seed(0)"
        )


def _index(m: int, n: int) -> int:
    index = require_whole("m", m, least=0)
    if index >= n:
        raise InputError(f"m must be below {n}, the number of patterns, got {m}; the first is m = 0")
    return index


def _smoothed(x: Tensor, noise_std: float, generator: torch.Generator) -> Tensor:
    if noise_std == 0:
        return x
    xi = torch.randn(x.shape, generator=generator, device=generator.device, dtype=x.dtype)
    return x + noise_std * xi.to(x.device)


def _in_words(given: object) -> str:
    return f"{given.dtype} {tuple(given.shape)}" if isinstance(given, Tensor) else f"{given!r}"[:60]
