r"""The general contrastive loss of paper A, a similarity of embeddings under a link, and the two losses of paper B.

Paper A, eq. (1): $L = \frac1N \sum_n l(\{s(x_n, x_{n,q})\}_q)$. A *similarity* is $s$, a *link* is $l$; each
combination is one loss. To add a similarity, write its class and give it a line in `SIMILARITIES`, from which the study
reads its choices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from kontrast.checks import require_choice, require_positive
from kontrast.losses._checks import require_pairs
from kontrast.losses.value import LazyTerms, LossValue


class Similarity(ABC):
    """A similarity that is a dot product after one map of each embedding, so that each is mapped only once."""

    @abstractmethod
    def embed(self, f: Tensor) -> Tensor:
        """The vectors (..., z) whose dot products are the similarities."""

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """Similarities of vectors along the last dimension; the others broadcast."""
        return _dot(self.embed(a), self.embed(b))


class Link(ABC):
    """The loss of one anchor as a function of its similarities."""

    @abstractmethod
    def per_anchor(self, s_pos: Tensor, s_neg: Tensor, negative_weight: Tensor | None = None) -> LossValue:
        """Losses (n,) and their terms (n,) from similarities (n, P) and (n, Q) and weights (n, Q)."""

    def __call__(self, s_pos: Tensor, s_neg: Tensor, negative_weight: Tensor | None = None) -> Tensor:
        """The losses (n,) alone."""
        return self.per_anchor(s_pos, s_neg, negative_weight).total


@dataclass(frozen=True)
class Dot(Similarity):
    r"""Dot product $s(x, \tilde x) = f(x)^\top f(\tilde x)$ (paper A, Sec. 2.1)."""

    def embed(self, f: Tensor) -> Tensor:
        """The embedding itself."""
        return f


@dataclass(frozen=True)
class Cosine(Similarity):
    r"""Cosine similarity $s = f(x)^\top f(\tilde x) / ((\|f(x)\| + δ)(\|f(\tilde x)\| + δ))$ (paper A, Sec. 2.1).

    With δ > 0 (Assumption 1) it is defined at f = 0, where its gradient is $f(\tilde x)/(δ(\|f(\tilde x)\| + δ))$;
    first and second derivatives are finite everywhere. The scale of f matters, if little for ‖f‖ ≫ δ.
    """

    delta: float = 0.01

    def __post_init__(self) -> None:
        require_positive(delta=self.delta)

    def embed(self, f: Tensor) -> Tensor:
        """Each vector divided by its norm plus δ."""
        # The root has no derivative at 0, so ‖f‖ is computed as √(‖f‖² + t²). With t = δ·eps/4 the sum ‖f‖ + δ is
        # right to rounding for every f, while first and second derivatives stay finite at 0. A `where` on zero rows
        # does the same for four more kernels, and torch's vector_norm has NaN second derivatives there.
        limits = torch.finfo(f.dtype)
        t_squared = max((self.delta * limits.eps / 4) ** 2, limits.tiny)
        norm = ((f * f).sum(-1, keepdim=True) + t_squared).sqrt()
        return f * (norm + self.delta).reciprocal()  # a third of the backward time of f.square() and a division


@dataclass(frozen=True)
class Linear(Link):
    r"""$l = \sum_q w_q s_q^- - \sum_p s_p^+$ (paper A, eq. (6)): sums over pairs, as printed, not means.

    Terms: `positive` and `negative`.
    """

    def per_anchor(self, s_pos: Tensor, s_neg: Tensor, negative_weight: Tensor | None = None) -> LossValue:
        """Losses and terms of shape (n,)."""
        attraction = s_pos.sum(-1)
        repulsion = (s_neg if negative_weight is None else negative_weight * s_neg).sum(-1)
        return LossValue(repulsion - attraction, LazyTerms(lambda: {"positive": -attraction, "negative": repulsion}))


@dataclass(frozen=True)
class Softmax(Link):
    r"""$l = -\sum_p e^{s_p/τ} / (e^{s_p/τ} + \sum_q w_q e^{s_q/τ})$ (paper A, Sec. 2.1), between −P and 0.

    Each positive meets all negatives but not the other positives. Weights must not be negative. Without negatives the
    loss is the constant −P. Term: `ratio`, the loss itself, for a ratio is no sum.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        require_positive(temperature=self.temperature)

    def per_anchor(self, s_pos: Tensor, s_neg: Tensor, negative_weight: Tensor | None = None) -> LossValue:
        """Losses and terms of shape (n,)."""
        log_odds = s_pos / self.temperature - _log_negative_mass(s_neg, negative_weight, self.temperature)
        ratio = -log_odds.sigmoid().sum(-1)
        return LossValue(ratio, {"ratio": ratio})


@dataclass(frozen=True)
class LogSoftmax(Link):
    r"""$l = -\sum_p \log( e^{s_p/τ} / (e^{s_p/τ} + \sum_q w_q e^{s_q/τ}) )$ (paper A, Sec. 2.1; InfoNCE for P = 1).

    Each positive meets all negatives but not the other positives. Weights must not be negative. Without negatives the
    loss is the constant 0. Terms: `alignment` $= -\sum_p s_p/τ$ and `uniformity`, the sum of the log denominators.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        require_positive(temperature=self.temperature)

    def per_anchor(self, s_pos: Tensor, s_neg: Tensor, negative_weight: Tensor | None = None) -> LossValue:
        """Losses and terms of shape (n,)."""
        logits = s_pos / self.temperature
        # −log ratio = log(1 + e^x), x = log(Σ w e^{s⁻/τ}) − s⁺/τ: no large numbers cancel. torch's softplus returns x
        # itself above its threshold, which is exact in float64 from 40 on but not at its default 20; torch.logaddexp
        # has NaN second derivatives for x < −88 (float32).
        x = _log_negative_mass(s_neg, negative_weight, self.temperature) - logits
        total = F.softplus(x, threshold=40.0).sum(-1)
        return LossValue(total, LazyTerms(lambda: {"alignment": -logits.sum(-1), "uniformity": total + logits.sum(-1)}))


@dataclass(frozen=True)
class ContrastiveLoss:
    r"""Paper A, eq. (1): the mean over anchors of `link` applied to the `similarity` of each anchor with its pairs.

    `ContrastiveLoss(Cosine(), Linear())` is the loss of the paper's experiments on a constant NTK. The terms are those
    of the link, and `ContrastiveLoss(…)(…).backward()` trains.
    """

    similarity: Similarity
    link: Link

    def __call__(
        self, anchor: Tensor, positives: Tensor, negatives: Tensor, negative_weight: Tensor | None = None
    ) -> LossValue:
        """The loss of embeddings.

        Args:
            anchor: Shape (n, z).
            positives: Shape (n, P, z).
            negatives: Shape (n, Q, z). Q = 0 is the non-contrastive setting. Shape (1, Q, z) shares the negatives among
                all anchors at the price of one matrix product.
            negative_weight: Shape (n, Q), constant; None is 1 each. Weight 1/(n−1) on all other samples makes the
                linear loss its expectation over one random negative; weight 0 leaves a negative out.
        """
        embed = self.similarity.embed
        return self.of_embedded(embed(anchor), embed(positives), embed(negatives), negative_weight)

    def of_embedded(
        self, anchor: Tensor, positives: Tensor, negatives: Tensor, negative_weight: Tensor | None = None
    ) -> LossValue:
        """The loss of vectors that `similarity.embed` has mapped already, as for the points of a pool."""
        require_pairs(anchor, positives, negatives, negative_weight)
        s_pos, s_neg = _pair_dot(anchor, positives), _pair_dot(anchor, negatives)
        return self.link.per_anchor(s_pos, s_neg, negative_weight).mean()


@dataclass(frozen=True)
class SimilarityEntry:
    """A similarity's line in `SIMILARITIES`."""

    make: type[Similarity]  # its fields are its options
    words: str  # as in "trained with …"
    learning_rate: Callable[[float], float]  # the study's, of the mean ‖x‖² of the samples, unless another is given


SIMILARITIES: Mapping[str, SimilarityEntry] = {
    # At 0.01 outputs barely move, at 1 they converge (claim A.fig1).
    "cosine": SimilarityEntry(Cosine, "cosine similarity", lambda scale: 0.1),
    # The samples' scale sets the time scale of the dot product: it diverges within tens of steps.
    "dot": SimilarityEntry(Dot, "dot-product similarity", lambda scale: float(f"{0.25 / scale:.3g}")),
}

LINKS: Mapping[str, type[Link]] = {"linear": Linear, "softmax": Softmax, "log_softmax": LogSoftmax}


def similarity_from(name: str, **options: float) -> Similarity:
    """The similarity called `name` in `SIMILARITIES`; of the options, such as `delta`, it takes those it has."""
    made: Similarity = _made("similarity", name, {known: entry.make for known, entry in SIMILARITIES.items()}, options)
    return made


def link_from(name: str, **options: float) -> Link:
    """The link called `name` in `LINKS`; of the options, such as `temperature`, it takes those it has."""
    made: Link = _made("link", name, LINKS, options)
    return made


def _made(what: str, name: str, classes: Mapping[str, Any], options: Mapping[str, float]) -> Any:
    """The class called `name` with those of the options that are its fields; refuses one that no class has."""
    require_choice(what, name, classes)
    known = {field.name: None for kind in classes.values() for field in fields(kind)}
    for option in options:
        require_choice(f"an option of a {what}", option, known)
    return classes[name](
        **{field.name: options[field.name] for field in fields(classes[name]) if field.name in options}
    )


def contrastive_trace_loss(anchor: Tensor, positives: Tensor, negatives: Tensor) -> LossValue:
    r"""Paper B, eq. (1): $\sum_i u(x_i)^\top (\sum_q u(x_{i,q}^-) - \sum_p u(x_{i,p}^+))$.

    A sum over anchors, so it is n times `ContrastiveLoss(Dot(), Linear())`. For linear u = Θx it is
    $\mathrm{Tr}(Θ \tilde C Θ^\top)$ with the $\tilde C$ of eq. (5). Terms: `positive`, `negative`.

    Args:
        anchor: Shape (n, z).
        positives: Shape (n, P, z).
        negatives: Shape (n, Q, z), or (1, Q, z) shared by all anchors.
    """
    require_pairs(anchor, positives, negatives)
    positive = -(anchor * positives.sum(1)).sum()
    negative = (anchor * negatives.sum(1)).sum()
    return LossValue(positive + negative, {"positive": positive, "negative": negative})


def alignment_loss(anchor: Tensor, positives: Tensor) -> LossValue:
    r"""Paper B, eq. (12), non-contrastive: $-\sum_i \sum_p u(x_i)^\top u(x_{i,p}^+)$.

    For linear u = Θx it is $\mathrm{Tr}(Θ \tilde C Θ^\top)$ with $\tilde C = -\sum_i x_i (x_i^+)^\top$. The paper
    prints $\tilde C$ without the minus, which negates the loss (correction B.nc). Term: `positive`.

    Args:
        anchor: Shape (n, z).
        positives: Shape (n, P, z).
    """
    require_pairs(anchor, positives)
    positive = -(anchor * positives.sum(1)).sum()
    return LossValue(positive, {"positive": positive})


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1)


def _pair_dot(a: Tensor, b: Tensor) -> Tensor:
    """Dot products (n, Q) of a (n, z) with b (n, Q, z), or with b (1, Q, z) shared by all rows."""
    if b.shape[0] == 1:
        return a @ b[0].T
    # Product and sum beat a batched product (n, Q, z) @ (n, z, 1) 1.5 to 10 times for embeddings of z ≤ 128 on a CPU.
    return _dot(a.unsqueeze(1), b)


def _log_negative_mass(s_neg: Tensor, negative_weight: Tensor | None, temperature: float) -> Tensor:
    r"""$\log \sum_q w_q e^{s_q/τ}$ of shape (n, 1)."""
    logits = s_neg / temperature
    if negative_weight is not None:
        # A huge negative number stands for log 0: in a row that is masked altogether −∞ would give ∞ − ∞ = NaN in the
        # gradient.
        lowest = torch.finfo(s_neg.dtype).min / 4
        logits = logits + negative_weight.to(s_neg.dtype).log().clamp_min(lowest)
    return logits.logsumexp(-1, keepdim=True)
