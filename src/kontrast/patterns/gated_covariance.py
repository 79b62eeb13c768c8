r"""Paper C, Sec. 3: the matrix $A(w) = C_\alpha[\tilde x^w]$ that drives a filter, for gated samples.

With $z = w^\top x$ and a homogeneous h, $\tilde x^w = x\, h(z)/z$ is the gated sample, $h(z) = w^\top \tilde x^w$, and
$C_\alpha[h(w^\top x)] = w^\top A(w) w$. A(w)w needs neither A(w) nor pairs of samples: with the gates g, the outputs h
and the pull $v = \mathcal L h$ on each output, which is half the gradient of the energy by that output,

$$A(w) w = \sum_i g_i v_i x_i, \qquad C_\alpha[h] = \sum_i h_i v_i,$$

where the sum is over the samples, and over their positives if there are views.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from kontrast import checks
from kontrast.errors import InputError
from kontrast.nets import Activation
from kontrast.patterns.contrastive_covariance import Importance, PairLaplacian, pair_laplacian
from kontrast.patterns.homogeneous import Homogeneous, homogeneous_from
from kontrast.patterns.importance import ImportanceWeights, UniformImportance

ImportanceOf = Literal["samples", "outputs", "each"]
ActivationLike = str | Homogeneous | Activation | nn.Module | Callable[[Tensor], Tensor]


class GatedCovariance:
    r"""A(w) of samples, its products A(w)w for many filters at once, and the energy $C_\alpha[h(w^\top x)]$.

    Args:
        x: samples as rows (n, d), at least two that differ.
        positives: their other views (n, d); None is no augmentation (Corollary 1).
        importance: α: a name, a rule or a tensor, see `contrastive_covariance`.
        importance_of: what a rule compares: "samples" (Def. 1: α is fixed), the "outputs" of all filters together, like
            the loss of a trained network, with α computed again for all weights (2), or the output of "each" filter by
            itself (Corollary 2). α never carries a gradient.
        activation: "relu", "leaky_relu:0.2", "linear", "monomial:3", "relu_power:2", a module or a function; refused
            unless it is homogeneous (Assumption 1).
        gate_tolerance: gates open above it, so that a z of 0 stays closed despite rounding. In units of the largest
            ‖x‖, and at least 16 roundings of the number type, which matters in float32; 0 means no tolerance.
    """

    def __init__(
        self,
        x: Tensor,
        positives: Tensor | None = None,
        *,
        importance: Importance | PairLaplacian = "uniform",
        importance_of: ImportanceOf = "samples",
        activation: ActivationLike = "relu",
        gate_tolerance: float = 1e-9,
    ) -> None:
        _require_samples(x, positives)
        checks.require_choice("importance_of", importance_of, get_args(ImportanceOf))
        checks.require_between("gate_tolerance", gate_tolerance, 0, 1, high_included=False)
        self.activation = homogeneous_from(activation)
        self.n, self.d = x.shape
        self.points = x.detach() if positives is None else torch.cat([x, positives]).detach()  # (m, d)
        rounding = 16 * torch.finfo(x.dtype).eps if gate_tolerance else 0.0
        self.tolerance = max(gate_tolerance, rounding) * float(self.points.norm(dim=1).max())
        self.importance_of = importance_of
        self._importance = importance
        self._fixed = self._fixed_laplacian(x, positives)
        if self._fixed is not None and (self._fixed.n != self.n or self._fixed.degrees.dtype != x.dtype):
            raise InputError(
                f"importance weighs pairs of {self._fixed.n} samples in {self._fixed.degrees.dtype}, but there are "
                f"{self.n} in {x.dtype}; make it from these samples"
            )
        self.coupled = self._fixed is None and importance_of == "outputs"

    @property
    def has_views(self) -> bool:
        """Whether the samples have positives."""
        return len(self.points) > self.n

    @property
    def is_fixed(self) -> bool:
        """Whether α is the same for all weights."""
        return self._fixed is not None

    def pull(self, outputs: Tensor) -> Tensor:
        r"""V = 𝓛h, half the gradient of $C_\alpha[h]$ by each output, for outputs (m, k): (m, k)."""
        if self._fixed is not None:
            return self._pull(self._fixed, outputs)
        if self.importance_of == "outputs":
            return self._pull(self._laplacian_of(outputs), outputs)
        columns = [self._pull(self._laplacian_of(column), column) for column in torch.split(outputs, 1, dim=1)]
        return torch.cat(columns, dim=1)

    def pull_on_plane(self, outputs: Tensor) -> Tensor:
        """The pull on each output (m,) if that output alone were 0; α must be fixed."""
        assert self._fixed is not None
        pulled = self._fixed.positive / (2 * self.n**2)
        own = self._fixed.degrees / self.n**2
        own = torch.cat([own - pulled, -pulled]) if self.has_views else own
        return self.pull(outputs[:, None])[:, 0] - own * outputs

    def product(self, weights: Tensor) -> Tensor:
        """A(w)w for rows w of `weights` (k, d): (k, d)."""
        gates, outputs = self._forward(weights)
        return (gates * self.pull(outputs)).mT @ self.points

    def gates(self, weights: Tensor) -> Tensor:
        """Whether each sample and positive lies on the positive side of each filter, (k, m) of bool."""
        self._require_weights(weights)
        return weights @ self.points.mT > self.tolerance

    def energy(self, weights: Tensor) -> Tensor:
        r"""$C_\alpha[h(w^\top x)] = w^\top A(w) w$ for rows w of `weights`: (k,)."""
        _, outputs = self._forward(weights)
        return (outputs * self.pull(outputs)).sum(0)

    def matrix(self, w: Tensor, *, gates: Tensor | None = None) -> Tensor:
        """A(w), (d, d), for one w (d,); `gates` (m,) replace h(z)/z, for example by fractions on an edge."""
        checks.require_floating("w", w)
        checks.require_shape("w", w, (self.d,), "pass one filter")
        own, outputs = self._forward(w[None])
        values = own[:, 0] if gates is None else gates
        gated = values[:, None] * self.points
        laplacian = self._fixed if self._fixed is not None else self._laplacian_of(outputs)
        A = gated.mT @ self._pull(laplacian, gated)
        return (A + A.mT) / 2

    def frozen(self, w: Tensor) -> GatedCovariance:
        """The same covariance with α fixed to its value at w (d,)."""
        if self._fixed is not None:
            return self
        _, outputs = self._forward(w[None])
        copy = object.__new__(GatedCovariance)
        copy.__dict__.update(self.__dict__, _fixed=self._laplacian_of(outputs), coupled=False)
        return copy

    def _forward(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Gates and outputs, (m, k) each."""
        self._require_weights(weights)
        z = self.points @ weights.detach().mT
        gates = self.activation.gate(z, self.tolerance)
        return gates, gates * z

    def _pull(self, laplacian: PairLaplacian, outputs: Tensor) -> Tensor:
        first = outputs[: self.n]
        pulled = laplacian.product(first) / self.n**2
        if not self.has_views:
            return pulled
        apart = laplacian.positive[:, None] * (first - outputs[self.n :]) / (2 * self.n**2)
        return torch.cat([pulled - apart, apart])

    def _fixed_laplacian(self, x: Tensor, positives: Tensor | None) -> PairLaplacian | None:
        """The Laplacian of an α that does not depend on outputs; None where a rule looks at these."""
        if not _is_rule(self._importance):
            return pair_laplacian(self._importance, outputs=x.detach())
        if self.importance_of != "samples":
            return None
        return self._laplacian_of(x.detach() if positives is None else self.points)

    def _laplacian_of(self, outputs: Tensor) -> PairLaplacian:
        """The Laplacian that a rule computes from outputs (m, k)."""
        return pair_laplacian(self._importance, outputs[: self.n], outputs[self.n :] if self.has_views else None)

    def _require_weights(self, weights: Tensor) -> None:
        checks.require_type("weights", weights, Tensor, "pass filters as rows")
        if weights.ndim != 2 or weights.shape[1] != self.d:  # no rows are legal
            raise InputError(f"weights must have shape (k, {self.d}), got {tuple(weights.shape)}; pass filters as rows")
        checks.require_same_dtype(x=self.points, weights=weights)


class BatchNormalized:
    r"""The field of a filter whose output is batch-normalised: the energy is $C_\alpha[h]/\mathbb V[h]$.

    It does not depend on ‖w‖, so a gradient step never shortens w. That is the only part of "per-filter normalisation
    by BatchNorm" (Sec. 3) that holds. The energy is a different one: where α is uniform and there are no views it is 1
    for every w, and nothing is learned. The field is $\pm(A(w)w/C_\alpha[h] - \mathbb V[\tilde x]w/\mathbb V[h]) + w$
    with the sign of $C_\alpha[h]$, which views can make negative: w plus 1/2p of the gradient of $\pm\log|C_\alpha[h]/
    \mathbb V[h]|$. So w is fixed exactly where the energy is stationary. It is 0 where all outputs are equal.
    """

    coupled = False

    def __init__(self, covariance: GatedCovariance) -> None:
        checks.require_type("covariance", covariance, GatedCovariance)
        if covariance.coupled:
            raise InputError("covariance must not have importance_of='outputs'; use 'samples' or 'each'")
        self.covariance = covariance
        plain = covariance.points[: covariance.n]
        self._plain = GatedCovariance(plain, activation=covariance.activation, gate_tolerance=0.0)
        self._plain.tolerance = covariance.tolerance

    def product(self, weights: Tensor) -> Tensor:
        """The field at rows w of `weights` (k, d) of norm 1: (k, d)."""
        energy, variance = self.covariance.energy(weights)[:, None], self._plain.energy(weights)[:, None]
        rise = self.covariance.product(weights) / energy.abs() - energy.sign() * self._plain.product(weights) / variance
        return torch.where((energy != 0) & (variance != 0), rise + weights, 0.0)

    def gates(self, weights: Tensor) -> Tensor:
        """The gates of the samples, as in `GatedCovariance`."""
        return self.covariance.gates(weights)

    def energy(self, weights: Tensor) -> Tensor:
        r"""$C_\alpha[h]/\mathbb V[h]$, (k,)."""
        return self.covariance.energy(weights) / self._plain.energy(weights)


def _is_rule(importance: object) -> bool:
    """Whether α depends on outputs; uniform α does not."""
    named = isinstance(importance, str) and importance == "uniform"
    return not named and not isinstance(importance, Tensor | PairLaplacian | ImportanceWeights | UniformImportance)


def _require_samples(x: Tensor, positives: Tensor | None) -> None:
    for name, rows in (("x", x), *([] if positives is None else [("positives", positives)])):
        if not _are_rows(rows):
            raise InputError(
                f"{name} must be dense rows (n, d) of float32 or float64, got {checks.in_words(rows)}; flatten images "
                "with x.flatten(1), convert arrays with torch.as_tensor(x)"
            )
        if not torch.isfinite(rows.norm()):
            raise InputError(f"{name} holds NaN, infinite or huge values; drop these samples, or scale all of them")
    if positives is not None:
        checks.require_shape("positives", positives, x.shape, "pass one view per sample")
        checks.require_alike(x=x, positives=positives)
    if len(x) < 2 or not (x != x[0]).any():
        raise InputError(
            f"the {len(x)} samples in x have no variance, so there is no pattern to find; pass samples that differ"
        )


def _are_rows(rows: object) -> bool:
    if not isinstance(rows, Tensor) or rows.layout != torch.strided or rows.dtype not in (torch.float32, torch.float64):
        return False
    return rows.ndim == 2 and 0 not in rows.shape
