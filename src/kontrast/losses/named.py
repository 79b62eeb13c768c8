"""Named losses of self-supervised learning, as pure functions; `LossModule` makes an `nn.Module` of any of them.

Each returns a `LossValue`, which behaves as a scalar tensor does, `backward()` included, and has its named parts as
`terms`. Conventions differ between libraries, so each docstring states its own: what is normalised, which pairs are
negatives, which entries are averaged.
Wherever embeddings are normalised, a zero embedding counts as the zero vector and has a finite gradient.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from kontrast import checks
from kontrast.errors import InputError
from kontrast.losses._checks import require_rows
from kontrast.losses.similarity_and_link import LogSoftmax
from kontrast.losses.value import LossValue

# Options of one name obey one rule in every loss; those that stand in none of these are yes or no.
POSITIVE = ("temperature", "gamma", "epsilon")
NOT_NEGATIVE = ("margin", "invariance", "variance", "covariance", "redundancy")
CHOICES = {"negatives": ("both", "cross", "intra"), "distance": ("euclidean", "squared", "cosine")}


def check_options(**options: Any) -> None:
    """Refuse a value that a named loss does not take for its option of this name."""
    for name, value in options.items():
        if name in CHOICES:
            checks.require_choice(name, value, CHOICES[name])
        elif name in POSITIVE:
            checks.require_positive(**{name: value})
        elif name in NOT_NEGATIVE:
            checks.require_not_negative(**{name: value})
        else:
            checks.require_type(name, value, bool, "pass True or False")


def info_nce(
    query: Tensor, key: Tensor, *, temperature: float = 0.1, symmetric: bool = False, normalize: bool = True
) -> LossValue:
    r"""InfoNCE (van den Oord et al. 2018) with in-batch negatives of the key view, as in CLIP.

    $\frac1n \sum_i -\log \big(e^{q_i^\top k_i/τ} / \sum_j e^{q_i^\top k_j/τ}\big)$: cross-entropy over the n keys, the
    positive among them, n − 1 negatives. `info_nce(query, key).backward()` trains. Terms: `alignment` (mean of
    −s⁺/τ) and `uniformity` (mean log of the denominator).

    Args:
        query: Embeddings (n, z), n ≥ 2.
        key: Their positives (n, z), row by row.
        temperature: τ > 0.
        symmetric: Average with the loss in which key and query change places.
        normalize: Divide each row by its norm (cosine similarity); False takes plain dot products.
    """
    require_rows(2, query=query, key=key)
    check_options(temperature=temperature, symmetric=symmetric, normalize=normalize)
    a, b = (_unit(query), _unit(key)) if normalize else (query, key)
    return _in_batch(a, b, temperature, negatives="cross", symmetric=symmetric)


def nt_xent(
    view_a: Tensor,
    view_b: Tensor,
    *,
    temperature: float = 0.5,
    negatives: Literal["both", "cross", "intra"] = "both",
    symmetric: bool = True,
) -> LossValue:
    """NT-Xent, the loss of SimCLR (Chen et al. 2020, eq. (1)), on cosine similarities.

    The positive of a row is always its twin in the other view, and it stands in the denominator. The defaults are
    SimCLR's and equal the `NTXentLoss` of pytorch-metric-learning on both views concatenated.
    `nt_xent(view_a, view_b).backward()` trains. Terms: `alignment` (mean of −s⁺/τ) and `uniformity` (mean log of
    the denominator).

    Args:
        view_a: Embeddings (n, z), n ≥ 2; normalised here.
        view_b: The other view of the same samples (n, z).
        temperature: τ > 0.
        negatives: "both": all other samples in both views (2n − 2). "cross": in the other view (n − 1, `info_nce`).
            "intra": in the view of the anchor (n − 1).
        symmetric: True: mean over the anchors of both views. False: anchors from `view_a` alone.
    """
    require_rows(2, view_a=view_a, view_b=view_b)
    check_options(temperature=temperature, negatives=negatives, symmetric=symmetric)
    return _in_batch(_unit(view_a), _unit(view_b), temperature, negatives=negatives, symmetric=symmetric)


def moco(query: Tensor, key: Tensor, queue: Tensor, *, temperature: float = 0.07) -> LossValue:
    r"""Loss of momentum contrast (He et al. 2020, eq. (1)) on cosine similarities.

    $\frac1n \sum_i -\log \big(e^{q_i^\top k_i/τ} / (e^{q_i^\top k_i/τ} + \sum_j e^{q_i^\top c_j/τ})\big)$ with $c_j$
    the queue; other keys of the batch are no negatives. `key` and `queue` are detached: only `query` has a gradient.
    The caller fills the queue and moves the key encoder. `moco(query, key, queue).backward()` trains. Terms:
    `alignment` (mean of −s⁺/τ) and `uniformity` (mean log of the denominator).

    Args:
        query: Embeddings (n, z); normalised here, like the others.
        key: Their positives (n, z) from the momentum encoder.
        queue: Stored keys (K, z), K ≥ 1.
        temperature: τ > 0.
    """
    require_rows(query=query, key=key)
    checks.require_floating("queue", queue, "use queue.float()")
    checks.require_shape("queue", queue, ("K", query.shape[1]), "pass one stored key per row")
    check_options(temperature=temperature)
    q, k, c = _unit(query), _unit(key.detach()), _unit(queue.detach())
    s_pos = (q * k).sum(-1, keepdim=True)
    return LogSoftmax(temperature).per_anchor(s_pos, q @ c.T).mean()


def triplet(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    margin: float = 0.2,
    distance: Literal["euclidean", "squared", "cosine"] = "euclidean",
) -> LossValue:
    r"""Triplet margin loss (Schroff et al. 2015): $\frac1n \sum_i \max(0, d(a_i, p_i) - d(a_i, n_i) + \text{margin})$.

    The mean is over **all** triplets, also those at zero; pytorch-metric-learning's default averages the nonzero ones,
    its `MeanReducer` gives this loss. Embeddings are not normalised unless the distance is "cosine".
    `triplet(anchor, positive, negative).backward()` trains. Term: `hinge`, the loss itself.

    Args:
        anchor: Embeddings (n, z).
        positive: Shape (n, z).
        negative: Shape (n, z).
        margin: At least 0.
        distance: "euclidean" ‖a − b‖, "squared" ‖a − b‖² or "cosine" 1 − cos(a, b).
    """
    require_rows(anchor=anchor, positive=positive, negative=negative)
    check_options(margin=margin, distance=distance)
    if distance == "cosine":
        a = _unit(anchor)
        gap = (a * (_unit(negative) - _unit(positive))).sum(-1)
    elif distance == "squared":
        gap = (anchor - positive).square().sum(-1) - (anchor - negative).square().sum(-1)
    else:
        gap = _norm(anchor - positive) - _norm(anchor - negative)
    hinge = (gap + margin).relu().mean()
    return LossValue(hinge, {"hinge": hinge})


def spectral_contrastive(view_a: Tensor, view_b: Tensor) -> LossValue:
    r"""Spectral contrastive loss (HaoChen et al. 2021).

    $-\frac2n \sum_i a_i^\top b_i + \frac{1}{n(n-1)} \sum_{i \neq j} (a_i^\top b_j)^2$: unbiased for
    $-2\,\mathbb{E}[f(x)^\top f(x^+)] + \mathbb{E}[(f(x)^\top f(x'))^2]$, which is $\|\bar A - F F^\top\|_F^2$ up to a
    constant. Plain dot products, nothing is normalised; the squares run over distinct samples across the two views.
    `spectral_contrastive(view_a, view_b).backward()` trains. Terms: `attraction`, `repulsion`.

    Args:
        view_a: Embeddings (n, z), n ≥ 2.
        view_b: The other view of the same samples (n, z).
    """
    require_rows(2, view_a=view_a, view_b=view_b)
    attraction = -2 * (view_a * view_b).sum(-1).mean()
    repulsion = off_diagonal(view_a @ view_b.T).square().mean()
    return LossValue(attraction + repulsion, {"attraction": attraction, "repulsion": repulsion})


def supcon(features: Tensor, labels: Tensor, *, temperature: float = 0.1) -> LossValue:
    r"""Supervised contrastive loss, variant "out" (Khosla et al. 2020, eq. (2)), on cosine similarities.

    Over all rows i (each view of each sample), with P(i) the other rows of the same label:
    $\mathrm{mean}_i \frac{1}{|P(i)|} \sum_{p \in P(i)} -\log \big(e^{s_{ip}/τ} / \sum_{a \neq i} e^{s_{ia}/τ}\big)$.
    Rows without a positive are left out of the mean (the loss is 0 when there is none at all), as in the loss of this
    name in pytorch-metric-learning. With distinct labels and v = 2 it is `nt_xent`.
    `supcon(features, labels).backward()` trains. Terms: `alignment` (mean of −s/τ over positives) and
    `uniformity` (mean log of the denominator).

    Args:
        features: Embeddings (n, v, z) of v views, n · v ≥ 2; normalised here.
        labels: Shape (n,).
        temperature: τ > 0.
    """
    checks.require_floating("features", features, "use features.float()")
    checks.require_shape("features", features, ("n", "v", "z"), "use features.unsqueeze(1) for one view")
    n, v, z = features.shape
    checks.require_shape("labels", labels, (n,), "pass one label per sample")
    if n * v < 2:
        raise InputError(f"supcon needs at least 2 rows (n · v), got shape {(n, v, z)}; use a larger batch")
    check_options(temperature=temperature)
    rows = _unit(features.reshape(n * v, z))
    row_labels = labels.repeat_interleave(v)
    logits = off_diagonal(rows @ rows.T) / temperature  # (nv, nv − 1)
    positive = off_diagonal(row_labels.unsqueeze(1) == row_labels).to(logits.dtype)
    n_positive = positive.sum(-1)
    # One weight per pair: 1/|P(i)| on positives, divided by the number of rows that have any.
    weight = positive / n_positive.clamp_min(1).unsqueeze(1) / (n_positive > 0).sum().clamp_min(1)
    total = -(weight * logits.log_softmax(-1)).sum()
    alignment = -(weight * logits).sum()
    return LossValue(total, {"alignment": alignment, "uniformity": total - alignment})


def vicreg(
    view_a: Tensor,
    view_b: Tensor,
    *,
    invariance: float = 25.0,
    variance: float = 25.0,
    covariance: float = 1.0,
    gamma: float = 1.0,
    epsilon: float = 1e-4,
) -> LossValue:
    r"""VICReg (Bardes et al. 2022), in the convention of the authors' code.

    - `invariance` × mean of $(a - b)^2$ over all n·z entries (the paper's eq. (5) prints the sum over dimensions);
    - `variance` × mean over dimensions **and** over the two views of $\max(0, γ - \sqrt{\mathrm{Var} + ε})$ (the
      paper's eq. (6) prints the sum over views);
    - `covariance` × sum over the two views of the squared off-diagonal covariances, divided by z.

    Variance and covariance are unbiased (n − 1). A dimension without variance is safe: ε is below the root.
    `vicreg(view_a, view_b).backward()` trains. Terms: `invariance`, `variance` and `covariance`, weights applied.

    Args:
        view_a: Embeddings (n, z), n ≥ 2; not normalised.
        view_b: The other view of the same samples (n, z).
        invariance: Weight of the first term, at least 0.
        variance: Weight of the second.
        covariance: Weight of the third.
        gamma: Target standard deviation γ > 0.
        epsilon: ε > 0.
    """
    require_rows(2, view_a=view_a, view_b=view_b)
    check_options(invariance=invariance, variance=variance, covariance=covariance, gamma=gamma, epsilon=epsilon)
    n, z = view_a.shape
    spread, redundancy = [], []
    for view in (view_a, view_b):
        centered = view - view.mean(0)
        C = centered.T @ centered / (n - 1)  # (z, z)
        spread.append((gamma - (C.diagonal() + epsilon).sqrt()).relu().mean())
        redundancy.append(off_diagonal(C).square().sum() / z)
    return _sum_of(
        invariance=invariance * (view_a - view_b).square().mean(),
        variance=variance * (spread[0] + spread[1]) / 2,
        covariance=covariance * (redundancy[0] + redundancy[1]),
    )


def barlow_twins(view_a: Tensor, view_b: Tensor, *, redundancy: float = 0.005, epsilon: float = 1e-5) -> LossValue:
    r"""Barlow Twins (Zbontar et al. 2021, eq. (1)): $\sum_i (1 - C_{ii})^2 + λ \sum_{i \neq j} C_{ij}^2$.

    C (z, z) is the cross-correlation of the two views over the batch, each standardised as the authors do by a batch
    norm without scale: biased variance (n) plus ε below the root. A dimension without variance has C = 0, safely. Sums
    over dimensions, not means. `barlow_twins(view_a, view_b).backward()` trains. Terms: `diagonal` and
    `off_diagonal`, weights applied.

    Args:
        view_a: Embeddings (n, z), n ≥ 2.
        view_b: The other view of the same samples (n, z).
        redundancy: λ ≥ 0.
        epsilon: ε > 0.
    """
    require_rows(2, view_a=view_a, view_b=view_b)
    check_options(redundancy=redundancy, epsilon=epsilon)
    a, b = ((view - view.mean(0)) / (view.var(0, correction=0) + epsilon).sqrt() for view in (view_a, view_b))
    C = a.T @ b / view_a.shape[0]
    return _sum_of(diagonal=(1 - C.diagonal()).square().sum(), off_diagonal=redundancy * off_diagonal(C).square().sum())


def non_contrastive(prediction: Tensor, target: Tensor) -> LossValue:
    r"""Negative cosine similarity of SimSiam (Chen and He 2021, eq. (1)): $-\frac1n \sum_i \cos(p_i, t_i)$.

    `target` is detached, the stop-gradient without which the loss collapses. One direction only; SimSiam averages
    (p₁, z₂) and (p₂, z₁). BYOL's loss ‖p̄ − t̄‖² is 2 + 2 × this. `non_contrastive(prediction, target).backward()`
    trains. Term: `alignment`, the loss.

    Args:
        prediction: Embeddings (n, z) after the predictor; normalised here, like the target.
        target: Shape (n, z).
    """
    require_rows(prediction=prediction, target=target)
    alignment = -(_unit(prediction) * _unit(target.detach())).sum(-1).mean()
    return LossValue(alignment, {"alignment": alignment})


NAMED_LOSSES = (
    info_nce, nt_xent, moco, triplet, spectral_contrastive, supcon, vicreg, barlow_twins, non_contrastive
)  # fmt: skip


def _in_batch(a: Tensor, b: Tensor, temperature: float, *, negatives: str, symmetric: bool) -> LossValue:
    """InfoNCE of rows whose positive is their twin, with negatives from the batch; both directions if symmetric."""
    link = LogSoftmax(temperature)
    ab = a @ b.T
    s_pos = ab.diagonal().unsqueeze(1)
    directions = []
    for across, anchors in ((ab, a), (ab.T, b)) if symmetric else ((ab, a),):
        blocks = []
        if negatives != "intra":
            blocks.append(off_diagonal(across))
        if negatives != "cross":
            blocks.append(off_diagonal(anchors @ anchors.T))
        directions.append(link.per_anchor(s_pos, torch.cat(blocks, dim=1)).mean())
    if not symmetric:
        return directions[0]
    there, back = directions
    return LossValue(
        (there.total + back.total) / 2, {name: (term + back.terms[name]) / 2 for name, term in there.terms.items()}
    )


def _sum_of(**terms: Tensor) -> LossValue:
    return LossValue(torch.stack(list(terms.values())).sum(), terms)


def off_diagonal(matrix: Tensor) -> Tensor:
    """The entries off the diagonal of a square matrix (n, n), row by row: (n, n − 1)."""
    n = matrix.shape[0]
    # After the first entry, every (n + 1)-th is on the diagonal.
    return matrix.reshape(-1)[1:].view(n - 1, n + 1)[:, :-1].reshape(n, n - 1)


def _unit(f: Tensor) -> Tensor:
    """Rows divided by their norms; a zero row stays zero and passes its gradient through unchanged."""
    # Dividing by max(‖f‖, 1e-12), the usual remedy, gives gradients of 1e12 at 0.
    square = (f * f).sum(-1, keepdim=True)
    return f * square.masked_fill(square == 0, 1).rsqrt()


def _norm(f: Tensor) -> Tensor:
    """Norms of rows, with gradient zero and finite second derivatives at a zero row."""
    return (f * _unit(f)).sum(-1)
