r"""Pairwise importance α: contrastive losses as paper C's α-CL sees them, weights on the pairs of a batch.

With $d_{ij}^2 = \|f_i - f_j\|^2/2$ and $d_i^2 = \|f_i - f_i'\|^2/2$, the paper's halves, each rule here has a loss L
(a sum over anchors) whose gradient is that of the energy with α held fixed, paper C, (2):
$-\nabla L = N^2 \nabla \mathrm{tr}\,C_{\mathrm{sg}(\alpha)}[f]$, where
$N^2\,\mathrm{tr}\,C_\alpha[f] = \sum_{ij} \alpha_{ij} d_{ij}^2 - \sum_i \beta_i d_i^2$ and β = α1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from kontrast.checks import require_choice, require_not_negative, require_positive
from kontrast.errors import InputError
from kontrast.losses import require_rows

__all__ = [
    "GaussianImportance",
    "GivenImportance",
    "ImportanceLike",
    "ImportanceRule",
    "ImportanceWeights",
    "InfoNCEImportance",
    "SpectralImportance",
    "TripletImportance",
    "UniformImportance",
    "importance_from",
    "require_importance",
]

ImportanceFunction = Callable[[Tensor, Tensor | None], Tensor]


@dataclass(frozen=True, eq=False)
class ImportanceWeights:
    """What weighs the pairs of n samples, without gradients.

    Attributes:
        alpha: α, (n, n): how much pair (i, j) is pushed apart. Rules have α_ii = 0.
        positive: β, (n,): how much the two views of sample i are pulled together; α1 but for `SpectralImportance`.
    """

    alpha: Tensor
    positive: Tensor

    def __post_init__(self) -> None:
        for name, value, ndim in (("positive", self.positive, 1), ("alpha", self.alpha, 2)):
            if not isinstance(value, Tensor) or value.ndim != ndim or {*value.shape} != {len(self.positive)}:
                given = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise InputError(f"{name} must be a tensor of n weights along each of {ndim} dimensions, got {given}")


class ImportanceRule:
    """A rule that makes α of outputs. `UniformImportance`, `GaussianImportance`, `InfoNCEImportance`, `TripletImportance`, `SpectralImportance` and `GivenImportance` are some.

    A rule of one's own gives α from half squared distances (`_alpha`) and, where there is one, its loss (`_loss`).
    """

    symmetric: ClassVar[bool] = False  # whether α = α^T for all outputs

    def __call__(self, outputs: Tensor, positives: Tensor | None = None) -> ImportanceWeights:
        """α and β of outputs (n, z) and those of the other views, (n, z); None: the views are equal."""
        alpha = self.rows(outputs, positives)
        return ImportanceWeights(alpha, self.pull(alpha))

    def rows(self, outputs: Tensor, positives: Tensor | None = None, rows: slice = slice(None)) -> Tensor:
        """Some rows of α, (b, n), without making the others."""
        self._require(outputs, positives)
        with torch.no_grad():
            squares = _pair_squares(outputs, rows).clamp_min_(0)
            columns = torch.arange(len(outputs), device=outputs.device)[rows]
            themselves = (torch.arange(len(columns), device=outputs.device), columns)
            squares[themselves] = math.inf  # no sum over j ≠ i sees them then
            alpha = self._alpha(squares, _view_squares(outputs, positives)[rows, None])
            alpha[themselves] = 0
        return alpha

    def pull(self, rows: Tensor) -> Tensor:
        """β of the samples whose rows of α these are."""
        return rows.sum(1)

    def loss(self, outputs: Tensor, positives: Tensor | None = None) -> Tensor:
        r"""The loss L of the outputs, a sum over anchors, with $-\nabla L = N^2\nabla\mathrm{tr}\,C_{sg(α)}[f]$."""
        self._require(outputs, positives)
        return self._loss(outputs, positives)

    def _alpha(self, squares: Tensor, own: Tensor) -> Tensor:
        r"""α (b, n) from $d_{ij}^2$ (b, n), infinite for j = i, and $d_i^2$ (b, 1); α_ii is set to 0 afterwards."""
        raise NotImplementedError

    def _loss(self, outputs: Tensor, positives: Tensor | None) -> Tensor:
        r"""$\sum_i \beta_i d_i^2 - \sum_{ij} \alpha_{ij} d_{ij}^2$ with α and β held fixed."""
        weights = self(outputs, positives)
        apart = (weights.alpha * _pair_squares(outputs)).sum()
        return (weights.positive * _view_squares(outputs, positives)).sum() - apart

    def _require(self, outputs: Tensor, positives: Tensor | None) -> None:
        given = {"outputs": outputs} if positives is None else {"outputs": outputs, "positives": positives}
        for name, rows in given.items():
            if not isinstance(rows, Tensor):
                raise InputError(
                    f"{name} must be a tensor (n, z), got {type(rows).__name__}; use torch.as_tensor({name})"
                )
        require_rows(2, **given)
        for name, rows in given.items():
            if not all(torch.isfinite(end) for end in torch.aminmax(rows.detach())):  # a tenth of isfinite's time
                raise InputError(f"{name} hold NaN or infinite values; scale the samples, or look at the encoder")


@dataclass(frozen=True)
class UniformImportance(ImportanceRule):
    r"""α_ij = 1: the quadratic loss $\sum_i \sum_{j \ne i} (d_i^2 - d_{ij}^2)$."""

    symmetric: ClassVar[bool] = True

    def _alpha(self, squares: Tensor, own: Tensor) -> Tensor:
        return torch.ones_like(squares)


@dataclass(frozen=True)
class GaussianImportance(ImportanceRule):
    r"""$\alpha_{ij} = e^{-d_{ij}^2/τ} = e^{-\|f_i - f_j\|^2/2τ}$, paper C, Lemma 1, of the outputs as given.

    The paper takes those of samples before augmentation. Its loss is $\tau\sum_{i \ne j} e^{-d_{ij}^2/τ} + \sum_i
    \mathrm{sg}(\beta_i) d_i^2$: as α does not depend on $d_i^2$, the pull of the views is the gradient of no function,
    and β must be held fixed there. Without views nothing is held fixed.
    """

    temperature: float = 1.0
    symmetric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_positive(temperature=self.temperature)

    def _alpha(self, squares: Tensor, own: Tensor) -> Tensor:
        return squares.div_(-self.temperature).exp_()

    def _loss(self, outputs: Tensor, positives: Tensor | None) -> Tensor:
        closeness = torch.exp(_others_squares(outputs) / -self.temperature)
        pull = (closeness.detach().sum(1) * _view_squares(outputs, positives)).sum()
        return self.temperature * closeness.sum() + pull


@dataclass(frozen=True)
class InfoNCEImportance(ImportanceRule):
    r"""$\alpha_{ij} = e_{ij}/(ε e_i + \sum_{k \ne i} e_{ik})$ with $e = e^{-d^2/τ}$: the loss (1) of paper C.

    ε = 1 has the positive in the denominator, as most code does; ε = 0 leaves it out, and each row of α sums to 1.
    """

    temperature: float = 1.0
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        require_positive(temperature=self.temperature)
        require_not_negative(epsilon=self.epsilon)

    def _alpha(self, squares: Tensor, own: Tensor) -> Tensor:
        log_mass = self._log_mass(squares, own)
        return squares.div_(-self.temperature).sub_(log_mass).exp_()

    def _loss(self, outputs: Tensor, positives: Tensor | None) -> Tensor:
        own = _view_squares(outputs, positives)[:, None]
        return (self.temperature * self._log_mass(_others_squares(outputs), own) + own).sum()

    def _log_mass(self, squares: Tensor, own: Tensor) -> Tensor:
        """The logarithm of the denominator, (b, 1)."""
        log_mass = torch.logsumexp(squares / -self.temperature, dim=1, keepdim=True)
        if self.epsilon == 0:
            return log_mass
        return torch.logaddexp(log_mass, math.log(self.epsilon) - own / self.temperature)


@dataclass(frozen=True)
class TripletImportance(ImportanceRule):
    r"""α_ij = 1 where $d_i^2 - d_{ij}^2 + m > 0$, else 0: $\sum_i \sum_{j \ne i} \max(0, d_i^2 - d_{ij}^2 + m)$."""

    margin: float = 1.0

    def __post_init__(self) -> None:
        require_not_negative(margin=self.margin)

    def _alpha(self, squares: Tensor, own: Tensor) -> Tensor:
        return (own - squares + self.margin > 0).to(squares.dtype)

    def _loss(self, outputs: Tensor, positives: Tensor | None) -> Tensor:
        return torch.relu(_view_squares(outputs, positives)[:, None] - _others_squares(outputs) + self.margin).sum()


@dataclass(frozen=True)
class SpectralImportance(ImportanceRule):
    r"""$\alpha_{ij} = 2 f_i^\top f_j/(n-1)$ and β_i = 2, for outputs of length 1: the spectral contrastive loss.

    $L = -2\sum_i f_i^\top f_i' + \frac{1}{n-1}\sum_{i \ne j} (f_i^\top f_j)^2$, in which $f_i^\top f_j = 1 - d_{ij}^2$.
    Where α_ij < 0 the loss pulls i and j together. It is the one rule with a β of its own.
    """

    symmetric: ClassVar[bool] = True

    def pull(self, rows: Tensor) -> Tensor:
        """β = 2, whatever the rows of α are."""
        return rows.new_full((len(rows),), 2.0)

    def _alpha(self, squares: Tensor, own: Tensor) -> Tensor:
        return (1 - squares) * (2 / (squares.shape[1] - 1))

    def _loss(self, outputs: Tensor, positives: Tensor | None) -> Tensor:
        other = outputs if positives is None else positives
        dots = _without_self(outputs @ outputs.mT, 0.0)
        return dots.square().sum() / (len(outputs) - 1) - 2 * (outputs * other).sum()

    def _require(self, outputs: Tensor, positives: Tensor | None) -> None:
        super()._require(outputs, positives)
        for name, rows in {"outputs": outputs, "positives": outputs if positives is None else positives}.items():
            off = float((rows.detach().norm(dim=1) - 1).abs().max())
            if off > math.sqrt(torch.finfo(rows.dtype).eps):
                raise InputError(
                    f"the spectral rule needs rows of length 1, but those of {name} are off by {off:.2g}; use "
                    f"torch.nn.functional.normalize({name}, dim=1)"
                )


@dataclass(frozen=True, eq=False)
class GivenImportance(ImportanceRule):
    r"""An α of one's own: a matrix (n, n), or a function of outputs and positives that makes one.

    It is taken as it is, its diagonal too: α_ii weighs the views of sample i, as paper C, (3) has it. The loss is
    $\sum_{ij} \mathrm{sg}(\alpha_{ij})(d_i^2 - d_{ij}^2)$.
    """

    alpha: Tensor | ImportanceFunction

    def __post_init__(self) -> None:
        if not callable(self.alpha):
            require_importance(self.alpha)

    def rows(self, outputs: Tensor, positives: Tensor | None = None, rows: slice = slice(None)) -> Tensor:
        """Some rows of α, (b, n); a function makes all of them each time."""
        self._require(outputs, positives)
        alpha = self.alpha if isinstance(self.alpha, Tensor) else self._made(outputs, positives)
        require_importance(alpha, n=len(outputs))
        return alpha.detach().to_dense().to(outputs)[rows].clone()

    def _made(self, outputs: Tensor, positives: Tensor | None) -> Tensor:
        """By the function, whose own failures are told apart."""
        assert not isinstance(self.alpha, Tensor)
        try:
            return self.alpha(outputs, positives)
        except Exception as error:
            name = getattr(self.alpha, "__name__", type(self.alpha).__name__)
            raise InputError(
                f"the importance {name} fails on outputs {tuple(outputs.shape)}: {type(error).__name__}: {error}; it "
                "must take outputs (n, z) and positives (n, z) or None, and return α (n, n)"
            ) from error


ImportanceLike = str | Tensor | ImportanceRule | ImportanceFunction
"""What `importance_from` takes."""


def importance_from(
    importance: ImportanceLike, *, temperature: float = 1.0, epsilon: float = 0.0, margin: float = 1.0
) -> ImportanceRule:
    """The rule by its name: "uniform", "gaussian", "info_nce", "triplet" or "spectral"; or of a matrix or function.

    `temperature` is used by gaussian and info_nce, `epsilon` by info_nce and `margin` by triplet alone.
    """
    if isinstance(importance, ImportanceRule):
        return importance
    if isinstance(importance, type):
        raise InputError(f"importance is the class {importance.__name__}; make one of it, {importance.__name__}(…)")
    if isinstance(importance, Tensor) or callable(importance):
        return GivenImportance(importance)
    rules: dict[str, Callable[[], ImportanceRule]] = {
        "uniform": UniformImportance,
        "gaussian": lambda: GaussianImportance(temperature),
        "info_nce": lambda: InfoNCEImportance(temperature, epsilon),
        "triplet": lambda: TripletImportance(margin),
        "spectral": SpectralImportance,
    }
    if not isinstance(importance, str):
        raise InputError(
            f"importance must be a name ({', '.join(rules)}), a rule, a tensor (n, n) or a function, got "
            f"{type(importance).__name__}; use torch.as_tensor for an array"
        )
    require_choice("importance", importance, rules)
    return rules[importance]()


_VALUES: dict[torch.layout, Callable[[Tensor], Tensor]] = {
    torch.strided: lambda alpha: alpha,
    torch.sparse_coo: lambda alpha: alpha.coalesce().values(),
    torch.sparse_csr: lambda alpha: alpha.values(),
}


def require_importance(alpha: Any, *, n: int | None = None) -> None:
    """Refuse an α that is not a square floating-point tensor, dense or sparse, of finite weights of 0 or more."""
    if not isinstance(alpha, Tensor) or not alpha.is_floating_point():
        given = alpha.dtype if isinstance(alpha, Tensor) else type(alpha).__name__
        raise InputError(
            f"alpha must be a floating-point tensor (n, n), got {given}; use torch.as_tensor(alpha).double()"
        )
    size = "n" if n is None else n
    if alpha.ndim != 2 or len(alpha) != (alpha.shape[1] if n is None else n) or alpha.shape[1] != len(alpha):
        raise InputError(
            f"alpha must have shape ({size}, {size}), one weight per pair of samples, got {tuple(alpha.shape)}"
        )
    if len(alpha) < 2:
        raise InputError(f"alpha needs at least 2 samples, got {len(alpha)}; with one there are no pairs")
    if alpha.layout not in _VALUES:
        raise InputError(f"alpha must be dense, or sparse as COO or CSR, got {alpha.layout}; use alpha.to_sparse()")
    values = _VALUES[alpha.layout](alpha)
    if not values.numel():  # a sparse α without a weight
        return
    low, high = torch.aminmax(values.detach())  # NaN if there is one; a tenth of isfinite's time
    if not (math.isfinite(low) and math.isfinite(high)):
        raise InputError("alpha holds NaN or infinite weights; make every weight a finite number of 0 or more")
    if low < 0:
        raise InputError(f"alpha must not be negative, got {float(low):.3g} as the smallest weight; clamp it at 0")


def _pair_squares(outputs: Tensor, rows: slice = slice(None)) -> Tensor:
    r"""$d_{ij}^2 = \|f_i - f_j\|^2/2$ of some rows i and all j, (b, n), by one product."""
    f = outputs - outputs.detach().mean(0)  # what all have in common would cancel, digits with it
    halves = f.square().sum(1) / 2
    return torch.addmm(halves[rows, None] + halves, f[rows], f.mT, alpha=-1)


def _others_squares(outputs: Tensor) -> Tensor:
    """The same of all rows, infinite for j = i."""
    return _without_self(_pair_squares(outputs), math.inf)


def _without_self(pairs: Tensor, value: float) -> Tensor:
    return pairs.masked_fill(torch.eye(len(pairs), dtype=torch.bool, device=pairs.device), value)


def _view_squares(outputs: Tensor, positives: Tensor | None) -> Tensor:
    r"""$d_i^2 = \|f_i - f_i'\|^2/2$, (n,); without other views 0."""
    return outputs.new_zeros(len(outputs)) if positives is None else (outputs - positives).square().sum(1) / 2
