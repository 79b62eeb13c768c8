r"""Pairwise importance α: contrastive losses as weights on the pairs of a batch (paper C's α-CL).

With $d_{ij}^2 = \|f_i - f_j\|^2/2$ and $d_i^2 = \|f_i - f_i'\|^2/2$ (the paper has the halves), each rule here has a
loss L, a sum over anchors, with the gradient of the energy at fixed α, paper C, (2):
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

from kontrast import checks
from kontrast.errors import InputError
from kontrast.losses import require_rows

ImportanceFunction = Callable[[Tensor, Tensor | None], Tensor]


@dataclass(frozen=True, eq=False)
class ImportanceWeights:
    """Weights of the pairs of n samples, without gradients; a rule makes them, or you do: `ImportanceWeights(α, β)`."""

    alpha: Tensor  # α, (n, n): how strongly pair (i, j) is pushed apart; rules have α_ii = 0
    positive: Tensor  # β, (n,): how strongly two views of i are pulled together; α1 except for `SpectralImportance`

    def __post_init__(self) -> None:
        for name, value in (("positive", self.positive), ("alpha", self.alpha)):
            checks.require_type(name, value, Tensor, "use torch.as_tensor")
        checks.require_shape("positive", self.positive, ("n",))
        checks.require_shape("alpha", self.alpha, (len(self.positive), len(self.positive)), "pass one weight per pair")


class ImportanceRule:
    """A rule that computes α from outputs; the base of the rules below.

    A rule of your own computes α from half squared distances (`_alpha`) and, if it has one, its loss (`_loss`).
    """

    symmetric: ClassVar[bool] = False  # whether α = α^T for all outputs

    def __call__(self, outputs: Tensor, positives: Tensor | None = None) -> ImportanceWeights:
        """α and β for outputs (n, z) and the outputs of the other views, (n, z); None if the views are equal."""
        alpha = self.rows(outputs, positives)
        return ImportanceWeights(alpha, self.pull(alpha))

    def rows(self, outputs: Tensor, positives: Tensor | None = None, rows: slice = slice(None)) -> Tensor:
        """Some rows of α, (b, n), without computing the others."""
        self._require(outputs, positives)
        with torch.no_grad():
            squares = _pair_squares(outputs, rows).clamp_min_(0)
            columns = torch.arange(len(outputs), device=outputs.device)[rows]
            themselves = (torch.arange(len(columns), device=outputs.device), columns)
            squares[themselves] = math.inf  # so that no sum over j ≠ i counts them
            alpha = self._alpha(squares, _view_squares(outputs, positives)[rows, None])
            alpha[themselves] = 0
        return alpha

    def pull(self, rows: Tensor) -> Tensor:
        """β of some samples from their rows of α."""
        return rows.sum(1)

    def loss(self, outputs: Tensor, positives: Tensor | None = None) -> Tensor:
        r"""The loss L of the outputs, a sum over anchors, with $-\nabla L = N^2\nabla\mathrm{tr}\,C_{sg(α)}[f]$."""
        self._require(outputs, positives)
        return self._loss(outputs, positives)

    def _alpha(self, squares: Tensor, own: Tensor) -> Tensor:
        r"""α (b, n) from $d_{ij}^2$ (b, n), infinite for j = i, and $d_i^2$ (b, 1); α_ii is set to 0 afterwards."""
        raise NotImplementedError

    def _loss(self, outputs: Tensor, positives: Tensor | None) -> Tensor:
        r"""$\sum_i \beta_i d_i^2 - \sum_{ij} \alpha_{ij} d_{ij}^2$ with fixed α and β."""
        weights = self(outputs, positives)
        apart = (weights.alpha * _pair_squares(outputs)).sum()
        return (weights.positive * _view_squares(outputs, positives)).sum() - apart

    def _require(self, outputs: Tensor, positives: Tensor | None) -> None:
        given = {"outputs": outputs} if positives is None else {"outputs": outputs, "positives": positives}
        for name, rows in given.items():
            checks.require_type(name, rows, Tensor, f"use torch.as_tensor({name})")
        require_rows(2, **given)
        for name, rows in given.items():
            checks.require_finite(name, rows.detach(), "scale the samples, or check the encoder")


@dataclass(frozen=True)
class UniformImportance(ImportanceRule):
    r"""α_ij = 1: the quadratic loss $\sum_i \sum_{j \ne i} (d_i^2 - d_{ij}^2)$."""

    symmetric: ClassVar[bool] = True

    def _alpha(self, squares: Tensor, own: Tensor) -> Tensor:
        return torch.ones_like(squares)


@dataclass(frozen=True)
class GaussianImportance(ImportanceRule):
    r"""$\alpha_{ij} = e^{-d_{ij}^2/τ} = e^{-\|f_i - f_j\|^2/2τ}$, paper C, Lemma 1, of the outputs as given.

    The paper takes the outputs of samples before augmentation. Its loss is $\tau\sum_{i \ne j} e^{-d_{ij}^2/τ} + \sum_i
    \mathrm{sg}(\beta_i) d_i^2$: α does not depend on $d_i^2$, so the pull of the views is not the gradient of any
    function, and β must be held fixed there. Without views nothing is held fixed.
    """

    temperature: float = 1.0
    symmetric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.require_positive(temperature=self.temperature)

    def _alpha(self, squares: Tensor, own: Tensor) -> Tensor:
        return squares.div_(-self.temperature).exp_()

    def _loss(self, outputs: Tensor, positives: Tensor | None) -> Tensor:
        closeness = torch.exp(_others_squares(outputs) / -self.temperature)
        pull = (closeness.detach().sum(1) * _view_squares(outputs, positives)).sum()
        return self.temperature * closeness.sum() + pull


@dataclass(frozen=True)
class InfoNCEImportance(ImportanceRule):
    r"""$\alpha_{ij} = e_{ij}/(ε e_i + \sum_{k \ne i} e_{ik})$ with $e = e^{-d^2/τ}$: the loss (1) of paper C.

    ε = 1 puts the positive in the denominator, as most code does; ε = 0 leaves it out, and each row of α sums to 1.
    """

    temperature: float = 1.0
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        checks.require_positive(temperature=self.temperature)
        checks.require_not_negative(epsilon=self.epsilon)

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
        checks.require_not_negative(margin=self.margin)

    def _alpha(self, squares: Tensor, own: Tensor) -> Tensor:
        return (own - squares + self.margin > 0).to(squares.dtype)

    def _loss(self, outputs: Tensor, positives: Tensor | None) -> Tensor:
        return torch.relu(_view_squares(outputs, positives)[:, None] - _others_squares(outputs) + self.margin).sum()


@dataclass(frozen=True)
class SpectralImportance(ImportanceRule):
    r"""$\alpha_{ij} = 2 f_i^\top f_j/(n-1)$ and β_i = 2, for outputs of length 1: the spectral contrastive loss.

    $L = -2\sum_i f_i^\top f_i' + \frac{1}{n-1}\sum_{i \ne j} (f_i^\top f_j)^2$, in which $f_i^\top f_j = 1 - d_{ij}^2$.
    Where α_ij < 0 the loss pulls i and j together. It is the only rule whose β is not α1.
    """

    symmetric: ClassVar[bool] = True

    def pull(self, rows: Tensor) -> Tensor:
        """β = 2 for any rows of α."""
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
                    f"SpectralImportance needs rows of length 1, but those of {name} are off by {off:.2g}; use "
                    f"torch.nn.functional.normalize({name}, dim=1)"
                )


@dataclass(frozen=True, eq=False)
class GivenImportance(ImportanceRule):
    r"""A given α: a matrix (n, n), or a function of outputs and positives that returns one.

    It is taken as it is, with its diagonal: α_ii weighs the views of sample i, as in paper C, (3). The loss is
    $\sum_{ij} \mathrm{sg}(\alpha_{ij})(d_i^2 - d_{ij}^2)$.
    """

    alpha: Tensor | ImportanceFunction

    def __post_init__(self) -> None:
        if not callable(self.alpha):
            require_importance(self.alpha)

    def rows(self, outputs: Tensor, positives: Tensor | None = None, rows: slice = slice(None)) -> Tensor:
        """Some rows of α, (b, n); a function computes all of them each time."""
        self._require(outputs, positives)
        alpha = self.alpha if isinstance(self.alpha, Tensor) else self._computed(outputs, positives)
        require_importance(alpha, n=len(outputs))
        return alpha.detach().to_dense().to(outputs)[rows].clone()

    def _computed(self, outputs: Tensor, positives: Tensor | None) -> Tensor:
        """α by the function; an error in it is reported as the function's own."""
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
"""The forms of α that `importance_from` takes."""


RULES: dict[str, ImportanceRule] = {
    "uniform": UniformImportance(),
    "gaussian": GaussianImportance(),
    "info_nce": InfoNCEImportance(),
    "triplet": TripletImportance(),
    "spectral": SpectralImportance(),
}


def importance_from(importance: ImportanceLike) -> ImportanceRule:
    """The rule for a name of `RULES` (with its default temperature or margin), a matrix or a function."""
    if isinstance(importance, ImportanceRule):
        return importance
    if isinstance(importance, type):
        raise InputError(f"importance is the class {importance.__name__}; make an instance, {importance.__name__}(…)")
    if isinstance(importance, Tensor) or callable(importance):
        return GivenImportance(importance)
    if not isinstance(importance, str):
        raise InputError(
            f"importance must be a name ({', '.join(RULES)}), a rule, a tensor (n, n) or a function, got "
            f"{checks.in_words(importance)}; use torch.as_tensor for an array"
        )
    checks.require_choice("importance", importance, RULES)
    return RULES[importance]


_VALUES: dict[torch.layout, Callable[[Tensor], Tensor]] = {
    torch.strided: lambda alpha: alpha,
    torch.sparse_coo: lambda alpha: alpha.coalesce().values(),
    torch.sparse_csr: lambda alpha: alpha.values(),
}


def require_importance(alpha: Any, *, n: int | None = None) -> None:
    """Refuse an α that is not a square floating-point tensor, dense or sparse, of finite weights of 0 or more."""
    checks.require_floating("alpha", alpha)
    checks.require_shape("alpha", alpha, ("n", "n") if n is None else (n, n), "pass one weight per pair of samples")
    if alpha.shape[0] != alpha.shape[1] or len(alpha) < 2:
        raise InputError(
            f"alpha must be square, for at least 2 samples, got {tuple(alpha.shape)}; pass one weight per pair"
        )
    if alpha.layout not in _VALUES:
        raise InputError(f"alpha must be dense, or sparse as COO or CSR, got {alpha.layout}; use alpha.to_sparse()")
    values = _VALUES[alpha.layout](alpha)
    if not values.numel():  # a sparse α without a weight
        return
    checks.require_finite("alpha", values.detach(), "make every weight a finite number of 0 or more")
    low = float(values.detach().min())
    if low < 0:
        raise InputError(f"alpha must not be negative, got {low:.3g} as the smallest weight; clamp it at 0")


def _pair_squares(outputs: Tensor, rows: slice = slice(None)) -> Tensor:
    r"""$d_{ij}^2 = \|f_i - f_j\|^2/2$ of some rows i and all j, (b, n), by one product."""
    f = outputs - outputs.detach().mean(0)  # a common part would cancel, and digits with it
    halves = f.square().sum(1) / 2
    return torch.addmm(halves[rows, None] + halves, f[rows], f.mT, alpha=-1)


def _others_squares(outputs: Tensor) -> Tensor:
    """The same for all rows, infinite for j = i."""
    return _without_self(_pair_squares(outputs), math.inf)


def _without_self(pairs: Tensor, value: float) -> Tensor:
    return pairs.masked_fill(torch.eye(len(pairs), dtype=torch.bool, device=pairs.device), value)


def _view_squares(outputs: Tensor, positives: Tensor | None) -> Tensor:
    r"""$d_i^2 = \|f_i - f_i'\|^2/2$, (n,); 0 without other views."""
    return outputs.new_zeros(len(outputs)) if positives is None else (outputs - positives).square().sum(1) / 2
