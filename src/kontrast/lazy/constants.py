"""The constants of paper A's assumptions, measured on a network and its data instead of assumed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kontrast.bounds import Assumption
from kontrast.checks import require_finite, require_positive
from kontrast.data import Pairs
from kontrast.errors import InputError
from kontrast.linalg import orthonormality_error
from kontrast.losses import Linear, Link, LogSoftmax, Softmax
from kontrast.nets import MLP, slopes_of


@dataclass(frozen=True)
class Constants:
    r"""The constants in the bounds of paper A, for one net (2) or (7) at its start, one set of pairs and one loss.

    The symbols are the paper's. `max_weight` is c(0) = max(‖W(0)‖_max, ‖V(0)‖_max), which the paper writes as
    c_θ log M; so `c_theta` depends on the width, and no bound here needs it by itself.

    `s_0` belongs to $b_2 = ∂f_z/∂φ = W_z/\sqrt M$, the only one that Lemma 7 uses. It is no constant: it grows like
    √(2 log M), as the largest of M normal numbers does. `s_0_input` belongs to $b_1 = ∂f_z/∂x$, a vector of D and not
    of M numbers. As ‖b‖_∞ ≥ ‖b‖₂/√D for every b, Assumption 6 as printed forces s_0 ≥ √(M/D).
    """

    activation: str
    lipschitz: float  # L_φ
    smoothness: float  # β_φ, infinite at a kink
    value_at_zero: float  # |φ(0)|
    c_in: float  # max ‖x‖_∞ over the pool
    c_norm: float  # max ‖x‖₂ over the pool, between c_in and √D c_in
    max_weight: float  # c(0)
    c_s: float  # max(‖W(0)‖₂, ‖V(0)‖₂)/√M
    s_0: float
    s_0_input: float
    feature_norm: float  # max ‖φ(V(0)x)‖₂/√M over the pool
    delta: float
    n_pairs: float  # Q: pairs per anchor; with the linear link, the sum of their weights
    c_l: float  # |∂l/∂s| for one pair; c_l·Q bounds the sum over the pairs of an anchor
    d_in: int  # D
    d_out: int  # Z
    width: int  # M
    n_anchors: int  # N
    learning_rate: float  # η
    scale: float  # the factor in front of W: M^-½ in the net (2)
    frame_error: float  # max |WᵀW − 1|, 0 in the net (7)

    @property
    def c_theta(self) -> float:
        """Assumption 4's c_θ = c(0)/log M; infinite for M = 1, where log M = 0."""
        return self.max_weight / math.log(self.width) if self.width > 1 else math.inf


def constants_of(
    net: MLP, pairs: Pairs, *, learning_rate: float, delta: float = 0.01, link: Link | None = None
) -> Constants:
    """The constants at the parameters, taken to be θ(0), of the network (2), `MLP(depth=1)`, or (7), W^T W = I.

    `delta` is δ of the cosine similarity, or of the loss (10); `link` says how similarities become a loss.
    """
    if not isinstance(net, MLP) or net.depth != 1:
        given = f"depth={net.depth}" if isinstance(net, MLP) else type(net).__name__
        raise InputError(f"paper A bounds nets with one hidden layer, MLP(depth=1), got {given}")
    if net.parametrization == "mup":
        raise InputError(
            "paper A bounds nets without a factor in front of the first layer, and a 'mup' net has √width there; use "
            "parametrization='ntk'"
        )
    require_positive(learning_rate=learning_rate, delta=delta)
    net.check_rows(pairs.rows)
    require_finite("pairs.rows", pairs.rows, "leave those points out")
    (V,), W = net.layers()
    V, W, x = V.double(), W.double(), pairs.rows.to(W.device, torch.float64)
    lipschitz, smoothness = slopes_of(net.activation)
    slopes = net.activation.first(x @ V.mT)  # (m, M); b_1 = ∂f_z/∂x ∝ Vᵀ(φ'(Vx) ∘ W_z)
    n_pairs, c_l = _pair_slopes(pairs, Linear() if link is None else link)
    root = math.sqrt(net.width)
    return Constants(
        activation=net.activation.name,
        lipschitz=lipschitz,
        smoothness=smoothness,
        value_at_zero=float(net.activation(x.new_zeros(1)).abs()),
        c_in=float(x.abs().max()),
        c_norm=float(x.norm(dim=1).max()),
        max_weight=max(float(V.abs().max()), float(W.abs().max())),
        c_s=max(_spectral_norm(A) for A in (V, W)) / root,
        s_0=root * _spikiness(W.mT),
        s_0_input=root * max(_spikiness((slopes * w) @ V) for w in W.mT),  # one output at a time: never (m, M, Z)
        feature_norm=float(net.activation(x @ V.mT).norm(dim=1).max()) / root,
        delta=float(delta),
        n_pairs=n_pairs,
        c_l=c_l,
        d_in=net.d_in,
        d_out=net.d_out,
        width=net.width,
        n_anchors=pairs.n_anchors,
        learning_rate=float(learning_rate),
        scale=net.scales[-1],
        frame_error=float(orthonormality_error(W)),
    )


def assumptions_of(constants: Constants) -> tuple[Assumption, ...]:
    """Assumptions 1 to 6 of paper A by their numbers; "6, b₁" is the part of 6 that no proof for two layers needs."""
    k = constants
    kink = "" if math.isfinite(k.smoothness) else f": {k.activation} has a kink, or is not known to have none"
    growth = math.sqrt(2 * math.log(k.width))
    least = math.sqrt(k.width / k.d_in)
    return (
        Assumption("1", k.delta > 0, f"δ = {k.delta:g}"),
        Assumption("2", math.isfinite(k.c_l), f"c_l = {k.c_l:g}"),
        Assumption("3", math.isfinite(k.c_in), f"c_in = {k.c_in:.4g}, max ‖x‖₂ = {k.c_norm:.4g}"),
        Assumption("4", math.isfinite(k.c_theta), f"c_θ = {k.c_theta:.4g}, c_θ log M = {k.max_weight:.4g}"),
        Assumption(
            "5",
            math.isfinite(k.lipschitz) and math.isfinite(k.smoothness),
            f"L_φ = {k.lipschitz:.4g}, β_φ = {k.smoothness:.4g}{kink}",
        ),
        Assumption("6", math.isfinite(k.s_0), f"c_s = {k.c_s:.4g}, s_0 = {k.s_0:.4g} where √(2 log M) = {growth:.4g}"),
        Assumption(
            "6, b₁", k.s_0_input <= k.s_0, f"∂f/∂x needs s_0 = {k.s_0_input:.4g}, and at least √(M/D) = {least:.4g}"
        ),
    )


def _pair_slopes(pairs: Pairs, link: Link) -> tuple[float, float]:
    r"""Q and c_l with |∂l/∂s| ≤ c_l and, for every anchor, Σ |∂l/∂s| ≤ c_l·Q over its pairs.

    Linear: |∂l/∂s| is the pair's weight, so Q is the sum of the weights and c_l = 1. With the odds' sigmoid
    σ_p = σ(s_p/τ − log Σ_q w_q e^{s_q/τ}): softmax has |∂l/∂s_p| = σ_p(1 − σ_p)/τ ≤ 1/(4τ), and the negatives divide
    each positive's slope among them, so |∂l/∂s_q| ≤ P/(4τ). Log-softmax has 1 − σ_p ≤ 1 in place of σ_p(1 − σ_p) ≤ 1/4.
    """
    n_positives, weight = pairs.n_positives, pairs.negative_weight
    if isinstance(link, Linear):
        negatives = pairs.n_negatives if weight is None else float(weight.abs().sum(1).max())
        return n_positives + negatives, 1.0
    if not isinstance(link, Softmax | LogSoftmax):
        raise InputError(f"c_l is known for the links Linear, Softmax and LogSoftmax, got {type(link).__name__}")
    n_negatives = pairs.n_negatives if weight is None else int((weight != 0).sum(1).max())
    if n_negatives == 0:  # both losses are constant then
        return n_positives, 0.0
    slope = 1.0 if isinstance(link, LogSoftmax) else 0.25
    return n_positives + n_negatives, n_positives * slope / link.temperature


def _spectral_norm(matrix: Tensor) -> float:
    """‖A‖₂ from the smaller of AᵀA and AAᵀ: exact to rounding, and far cheaper than an SVD."""
    gram = matrix.mT @ matrix if matrix.shape[0] >= matrix.shape[1] else matrix @ matrix.mT
    return math.sqrt(float(torch.linalg.eigvalsh(gram)[-1].clamp_min(0)))


def _spikiness(rows: Tensor) -> float:
    """The largest ‖b‖_∞/‖b‖₂ among rows that are not zero."""
    norms = rows.norm(dim=1)
    rows, norms = rows[norms > 0], norms[norms > 0]
    return float((rows.abs().amax(1) / norms).max()) if len(rows) else 0.0
