r"""Paper C, (3): the contrastive covariance C_α of two functions of n samples, as a form of a graph Laplacian.

$C_\alpha[a, b] = \frac{1}{2N^2}\sum_{ij} \alpha_{ij} [(a_i - a_j)(b_i - b_j)^\top - (a_i - a_i')(b_i - b_i')^\top]
= \frac{1}{N^2} a^\top L b - \frac{1}{2N^2} \Delta a^\top \mathrm{diag}(\beta) \Delta b$ with α_s = (α + α^T)/2,
L = diag(α_s 1) − α_s, β = α1 and Δa = a − a'. α_ii does not enter L, but it counts in β: (3) sums over all j. (15),
the same term in the paper's proof, leaves j = i out, and so do the rules here (α_ii = 0).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from kontrast import checks
from kontrast.errors import InputError
from kontrast.memory import rows_that_fit
from kontrast.patterns.importance import (
    GivenImportance,
    ImportanceLike,
    ImportanceRule,
    ImportanceWeights,
    UniformImportance,
    importance_from,
    require_importance,
)
from kontrast.progress import Advance, progress_bar

Importance = ImportanceLike | ImportanceWeights

HELD = 2**28  # bytes of α up to which that of a rule is held for all products
COPIES = 4  # of a block of α, while a rule computes it
HEIGHT = 1024  # the most rows in a block: enough for products at full speed
MOST_FEATURES = 100_000  # columns of a feature map: more is a mistake in `order`


@dataclass(frozen=True, eq=False)
class PairLaplacian:
    """L and β of weights on the pairs of n samples, all that C_α needs of α; made by `pair_laplacian`."""

    degrees: Tensor  # α_s 1, (n,)
    positive: Tensor  # β, (n,), the weights of the samples' own pairs of views
    _times: Callable[[Tensor], Tensor] = field(repr=False)  # b (n, k) → L b

    @property
    def n(self) -> int:
        """The number of samples."""
        return len(self.degrees)

    def product(self, b: Tensor) -> Tensor:
        """L b, (n, k)."""
        if not isinstance(b, Tensor) or b.ndim != 2 or len(b) != self.n or b.dtype != self.degrees.dtype:
            raise InputError(
                f"b must be a {self.degrees.dtype} tensor ({self.n}, k), one row per sample, got {checks.in_words(b)}"
            )
        return self._times(b - b.mean(0))  # L1 = 0 except for rounding, which a large mean would amplify

    @classmethod
    def of_features(cls, features: Tensor) -> PairLaplacian:
        r"""The one of $\alpha_{ij} = \varphi_i^\top \varphi_j$ for i ≠ j (paper C, Def. 1), at the cost of φ (n, m)."""
        _require_features(features)
        phi = features.detach()
        degrees = phi @ phi.sum(0)
        others = degrees - phi.square().sum(1)
        return cls(others, others, lambda b: degrees[:, None] * b - phi @ (phi.mT @ b))


def pair_laplacian(
    importance: Importance | PairLaplacian,
    outputs: Tensor | None = None,
    positives: Tensor | None = None,
    *,
    memory: float | None = None,
    progress: bool | Advance = False,
) -> PairLaplacian:
    """The Laplacian of weights on pairs, given in any form. No gradients flow into α.

    ```python
    pair_laplacian("gaussian", outputs)
    pair_laplacian(ImportanceWeights(alpha, positive=torch.full((n,), 2.0)))  # a β other than α1
    ```

    Args:
        importance: a rule or its name, which looks at `outputs` ("uniform" only at their number, in closed form); α as
            a tensor (n, n), dense or sparse (COO or CSR, and stays so); or α with its own β, as `ImportanceWeights`.
        outputs: (n, z); α gets their number type and device. None where α is given itself.
        positives: the outputs of the other views, (n, z), for the rules that compare them.
        memory: bytes for one block of α; None takes half of the free memory. A rule's α of up to 256 MiB is held; a
            larger one is computed again for every product, in blocks of rows.
        progress: show a bar while blocks are computed.
    """
    if outputs is not None:
        checks.require_floating("outputs", outputs)
        checks.require_shape("outputs", outputs, ("n", "z"), "pass one row per sample")
        _require_pairs("outputs", outputs)
    if isinstance(importance, PairLaplacian):
        return importance
    if isinstance(importance, ImportanceWeights):
        return _of_weights(importance)
    if isinstance(importance, Tensor):
        require_importance(importance, n=None if outputs is None else len(outputs))
        alpha = importance.detach() if outputs is None else importance.detach().to(outputs)
        return _of_matrix(alpha, alpha.sum(1)) if alpha.layout == torch.strided else _of_sparse(alpha)
    rule = importance_from(importance)
    if outputs is None:
        raise InputError(f"{rule} computes α from outputs, and none were given; pass outputs, one row per sample")
    if isinstance(rule, UniformImportance):
        n = len(outputs)
        degrees = outputs.new_full((n,), n - 1.0)
        return PairLaplacian(degrees, degrees, lambda b: n * b)  # of b whose mean is 0
    block = rows_that_fit(
        COPIES * len(outputs) * outputs.element_size(),
        len(outputs),
        memory=memory,
        device=outputs.device,
        what="the pairwise importance",
    )
    held = block == len(outputs) and len(outputs) ** 2 * outputs.element_size() <= HELD
    if held or isinstance(rule, GivenImportance):
        return _of_weights(rule(outputs, positives))
    return _streamed(_Blocks(rule, outputs.detach(), positives, min(block, HEIGHT), progress))


def contrastive_covariance(
    a: Tensor,
    b: Tensor | None = None,
    *,
    positives: Tensor | None = None,
    positives_b: Tensor | None = None,
    importance: Importance | PairLaplacian = "uniform",
    memory: float | None = None,
    progress: bool | Advance = False,
) -> Tensor:
    r"""$C_\alpha[a, b]$ of paper C, (3), (d_a, d_b), without a loop over pairs; C_α[a] where b is None.

    Gradients flow into a and b but not into α. Without views and with α ≥ 0, C_α[a] is positive semi-definite; with
    views it need not be (it is in the limit of many samples, Lemma 2).

    Args:
        a: one function of the samples, (n, d_a).
        b: another, (n, d_b).
        positives: a of the samples' other views, (n, d_a); None where there is no augmentation.
        positives_b: b of these, (n, d_b).
        importance: α in any form that `pair_laplacian` takes. A rule looks at a and its positives; for other outputs
            pass `pair_laplacian(rule, outputs, positives)`.
        memory: see `pair_laplacian`.
        progress: show a bar while α is computed in blocks.
    """
    same = b is None
    b, positives_b = (a, positives) if b is None else (b, positives_b)
    _require_functions(a, b, positives, positives_b)
    laplacian = pair_laplacian(importance, a, positives, memory=memory, progress=progress)
    if laplacian.n != len(a):
        raise InputError(
            f"importance weighs pairs of {laplacian.n} samples, but a has {len(a)} rows; pass one row per sample"
        )
    C = (a - a.mean(0)).mT @ laplacian.product(b) / len(a) ** 2
    if positives is not None and positives_b is not None:
        apart = (a - positives).mT @ (laplacian.positive[:, None] * (b - positives_b))
        C = C - apart / (2 * len(a) ** 2)
    return (C + C.mT) / 2 if same else C


def adjusted_covariance(a: Tensor, features: Tensor) -> Tensor:
    r"""$\sum_l z_l^2 \mathbb V_{\tilde p_l}[a]$, (d, d): the limit of C_α of paper C, Lemma 2 and Corollary 1.

    Here for the distribution of the samples, with $z_l$ the mean of φ_l and $\tilde p_l \propto \varphi_l$. With
    $\alpha = \varphi\varphi^\top$ and no views it **is** C_α[a] at any number of samples. Many samples are needed only
    for their distribution to become the population's and, with views, for $\mathbb E[g(x)|x_0]$ to replace g.

    a (n, d) are g of the samples, or with augmentation its conditional means given each sample. `features` are φ
    (n, m), none of them negative, of the samples before augmentation.
    """
    _require_functions(a, a, None, None)
    _require_features(features, n=len(a))
    phi, centered = features.detach().to(a), a - a.mean(0)
    z = phi.mean(0)
    second = centered.mT @ ((phi @ z)[:, None] * centered) / len(a)  # Σ_l z_l² E_l[a a^T]
    first = phi.mT @ centered / len(a)  # z_l E_l[a], (m, d)
    return second - first.mT @ first


@dataclass(frozen=True, eq=False)
class GaussianFeatures:
    r"""The first features of $e^{-\|y_i - y_j\|^2/2τ}$."""

    values: Tensor  # φ, (n, m), none of them negative
    lower: Tensor  # the offset that was subtracted from y for that, (z,)
    error: float  # the largest |α_ij − φ_i·φ_j|, reached for some i = j


def gaussian_features(y: Tensor, *, temperature: float, order: int, lower: float | None = None) -> GaussianFeatures:
    r"""The feature map (13) of the Gaussian α: all monomials of y up to a degree, for y of few dimensions.

    $\varphi_\kappa(y) = e^{-\|y\|^2/2τ} \prod_j y_j^{\kappa_j}/\sqrt{τ^{\kappa_j}\kappa_j!}$ for |κ| ≤ order. (11)
    lists each monomial |κ|!/κ! times, once per order of its factors; here they are merged, with the same sum
    $\sum_l z_l^2 \mathbb V_{\tilde p_l}$. For one output it is (89). At most P[Poisson(‖y‖²/τ) > order] is cut off.

    An `order` of about ‖y‖²/τ + 6‖y‖/√τ leaves 1e-8. `lower` is a lower bound of all outputs y (n, z), by default the
    smallest value of each dimension.
    """
    checks.require_matrix("y", y, ("n", "z"), "pass one row per sample")
    checks.require_positive(temperature=temperature)
    degrees = _multi_indices(y.shape[1], checks.require_whole("order", order, least=0)).to(y)
    bound = y.detach().min(0).values
    if lower is not None:
        if not checks.is_number(lower) or not lower <= float(bound.min()):
            raise InputError(
                f"lower must be a number of at most {float(bound.min()):.3g}, the smallest output, got {lower!r}; "
                "leave it out to take the smallest of each dimension"
            )
        bound = torch.full_like(bound, float(lower))
    above = y.detach() - bound
    logs = -above.square().sum(1, keepdim=True) / (2 * temperature) - torch.lgamma(degrees + 1).sum(1) / 2
    for j in range(y.shape[1]):
        logs = logs + torch.xlogy(degrees[:, j], above[:, j, None] / math.sqrt(temperature))
    phi = logs.exp()
    rest = torch.special.gammainc(above.new_tensor(order + 1.0), above.square().sum(1) / temperature)
    return GaussianFeatures(phi, bound, float(rest.max()))


def _multi_indices(z: int, order: int) -> Tensor:
    """The degrees κ of all monomials of z variables up to an order, (m, z)."""
    if math.comb(z + order, z) > MOST_FEATURES:
        raise InputError(
            f"{z} outputs have {math.comb(z + order, z):,} monomials up to degree {order}, more than "
            f"{MOST_FEATURES:,}; lower order, or use GaussianImportance itself"
        )
    powers = [
        [chosen.count(j) for j in range(z)]
        for k in range(order + 1)
        for chosen in combinations_with_replacement(range(z), k)
    ]
    return torch.tensor(powers, dtype=torch.float64)


def _of_weights(weights: ImportanceWeights) -> PairLaplacian:
    """A rule's α may be negative, but it must be finite, and so must its sums."""
    laplacian = _of_matrix(weights.alpha.detach(), weights.positive.detach())
    checks.require_finite("alpha", laplacian.degrees, "make every weight a finite number")
    checks.require_finite("positive", laplacian.positive, "make every weight a finite number")
    return laplacian


def _of_matrix(alpha: Tensor, positive: Tensor) -> PairLaplacian:
    symmetric = (alpha + alpha.mT) / 2
    degrees = symmetric.sum(1)
    return PairLaplacian(degrees, positive, lambda b: degrees[:, None] * b - symmetric @ b)


def _of_sparse(alpha: Tensor) -> PairLaplacian:
    # Without this, torch warns that it does not check the indices again.
    with torch.sparse.check_sparse_tensor_invariants(enable=False):  # type: ignore[no-untyped-call]
        entries = alpha.to_sparse(layout=torch.sparse_coo).coalesce()
        symmetric = ((entries + entries.mT) / 2).coalesce()
    ones = torch.ones(len(alpha), 1, dtype=alpha.dtype, device=alpha.device)
    degrees = torch.sparse.mm(symmetric, ones)
    positive = torch.sparse.mm(entries, ones)[:, 0]
    return PairLaplacian(degrees[:, 0], positive, lambda b: degrees * b - torch.sparse.mm(symmetric, b))


@dataclass(frozen=True, eq=False)
class _Blocks:
    """The rows of a rule's α, a few at a time."""

    rule: ImportanceRule
    outputs: Tensor
    positives: Tensor | None
    size: int
    progress: bool | Advance

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        n = len(self.outputs)
        with progress_bar("pairs", self.progress) as advance:
            for top in range(0, n, self.size):
                rows = slice(top, min(top + self.size, n))
                yield rows, self.rule.rows(self.outputs, self.positives, rows)
                advance(rows.stop, n)


def _streamed(blocks: _Blocks) -> PairLaplacian:
    """The Laplacian whose every product goes through the blocks once."""
    of_rows, columns, pull = [], torch.zeros_like(blocks.outputs[:, 0]), []
    for _, alpha in blocks:
        of_rows.append(alpha.sum(1))
        columns += alpha.sum(0)
        pull.append(blocks.rule.pull(alpha))
    degrees = (torch.cat(of_rows) + columns) / 2

    def times(b: Tensor) -> Tensor:
        if blocks.rule.symmetric:
            return degrees[:, None] * b - torch.cat([alpha @ b for _, alpha in blocks])
        product: Tensor = degrees[:, None] * b
        for rows, alpha in blocks:
            product = product - alpha.mT @ b[rows] / 2
            product[rows] -= alpha @ b / 2
        return product

    return PairLaplacian(degrees, torch.cat(pull), times)


def _require_functions(a: Tensor, b: Tensor, positives: Tensor | None, positives_b: Tensor | None) -> None:
    """Refuse all but finite rows of one length, number type and device, with views of both or of neither."""
    for name, rows, shape in (
        ("a", a, ("n", "d")),
        ("b", None if b is a else b, ("n", "d")),
        ("positives", positives, getattr(a, "shape", ())),
        ("positives_b", None if positives_b is positives else positives_b, getattr(b, "shape", ())),
    ):
        if rows is None:
            continue
        checks.require_floating(name, rows)
        checks.require_shape(name, rows, shape, "pass one row per sample")
        checks.require_alike(**{"a": a, name: rows})
        checks.require_same_length(**{"a": a, name: rows})
        checks.require_finite(name, rows.detach(), "drop these samples")
    if (positives is None) != (positives_b is None):
        raise InputError("a and b must both have other views, or neither; pass positives and positives_b")
    _require_pairs("a", a)


def _require_pairs(name: str, rows: Tensor) -> None:
    if len(rows) < 2:
        raise InputError(f"{name} needs at least 2 samples, got {len(rows)}; with one there are no pairs")


def _require_features(features: Tensor, *, n: int | None = None) -> None:
    checks.require_floating("features", features)
    checks.require_shape("features", features, ("n" if n is None else n, "m"), "pass one row per sample")
    _require_pairs("features", features)
    if not torch.isfinite(features).all() or bool((features < 0).any()):
        raise InputError(
            f"features must be finite and not negative (paper C, Def. 1), got {float(features.min()):.3g} as the "
            "smallest; shift the outputs they are made from"
        )
