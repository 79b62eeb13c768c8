r"""Paper C, Sec. 3: the matrix $A(w) = C_\alpha[\tilde x^w]$ that drives a filter, of samples behind their gates.

With $z = w^\top x$ and a homogeneous h, $\tilde x^w = x\, h(z)/z$ is the sample behind its gate, $h(z) = w^\top \tilde
x^w$, and $C_\alpha[h(w^\top x)] = w^\top A(w) w$. Neither A(w) nor pairs of samples are formed for A(w)w: with g the
gates, h the outputs and $v = \mathcal L h$ the pull on each output, half the energy's gradient by it,

$$A(w) w = \sum_i g_i v_i x_i, \qquad C_\alpha[h] = \sum_i h_i v_i,$$

where the sum runs over the samples, and over their positives where there are views.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from kontrast.checks import in_words, is_number
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
        importance_of: what a rule compares: "samples" (Def. 1: α is fixed), "outputs" of all filters together, as a
            trained network's loss does, with α computed anew for every weights (2), or the output of "each" filter
            alone (Corollary 2). α never carries a gradient.
        activation: "relu", "leaky_relu:0.2", "linear", "monomial:3", "relu_power:2", a module or a function; refused
            unless it is homogeneous (Assumption 1).
        gate_tolerance: gates open above it: z that is 0 but for rounding keeps its gate closed. In units of the
            largest ‖x‖, and at least 16 roundings of the number type, which matters in float32; 0 is none at all.
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
        if importance_of not in get_args(ImportanceOf):
            raise InputError(f"importance_of must be one of {', '.join(get_args(ImportanceOf))}, got {importance_of!r}")
        if not is_number(gate_tolerance) or not 0 <= gate_tolerance < 1:
            raise InputError(f"gate_tolerance must be a number from 0 to below 1, got {gate_tolerance!r}")
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
                f"importance weighs pairs of {self._fixed.n} samples in {self._fixed.degrees.dtype}, and there are "
                f"{self.n} in {x.dtype}; make it of these samples"
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
        """What the pull on each output (m,) would be if that output alone were 0; α must be fixed."""
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
        """Which samples, and positives, lie on the positive side of each filter, (k, m) of bool."""
        self._require_weights(weights)
        return weights @ self.points.mT > self.tolerance

    def energy(self, weights: Tensor) -> Tensor:
        r"""$C_\alpha[h(w^\top x)] = w^\top A(w) w$ for rows w of `weights`: (k,)."""
        _, outputs = self._forward(weights)
        return (outputs * self.pull(outputs)).sum(0)

    def matrix(self, w: Tensor, *, gates: Tensor | None = None) -> Tensor:
        """A(w), (d, d), for one w (d,); `gates` (m,) replaces h(z)/z, say by fractions for samples on the edge."""
        if not isinstance(w, Tensor) or w.shape != (self.d,):
            raise InputError(f"w must be one filter ({self.d},), got {in_words(w)}")
        own, outputs = self._forward(w[None])
        values = own[:, 0] if gates is None else gates
        gated = values[:, None] * self.points
        laplacian = self._fixed if self._fixed is not None else self._laplacian_of(outputs)
        A = gated.mT @ self._pull(laplacian, gated)
        return (A + A.mT) / 2

    def frozen(self, w: Tensor) -> GatedCovariance:
        """The same with α as it is at w (d,), for all weights."""
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
        """The Laplacian of an α that no outputs change; None where a rule is to look at these."""
        if not _is_rule(self._importance):
            return pair_laplacian(self._importance, outputs=x.detach())
        if self.importance_of != "samples":
            return None
        return self._laplacian_of(x.detach() if positives is None else self.points)

    def _laplacian_of(self, outputs: Tensor) -> PairLaplacian:
        """What a rule makes of outputs (m, k)."""
        return pair_laplacian(self._importance, outputs[: self.n], outputs[self.n :] if self.has_views else None)

    def _require_weights(self, weights: Tensor) -> None:
        if not isinstance(weights, Tensor) or weights.ndim != 2 or weights.shape[1] != self.d:
            raise InputError(f"weights must be filters as rows (k, {self.d}), got {in_words(weights)}")
        if weights.dtype != self.points.dtype:
            raise InputError(f"weights must be {self.points.dtype} like the samples, got {weights.dtype}")


class BatchNormalized:
    r"""The field of a filter whose output is batch-normalised: the energy is $C_\alpha[h]/\mathbb V[h]$.

    It does not depend on ‖w‖, so a gradient step never shortens w: this is all of "per-filter normalisation by
    BatchNorm" (Sec. 3) that holds. The energy is another one: where α is uniform and there are no views it is 1
    whatever w is, and nothing is learned. The field is $\pm(A(w)w/C_\alpha[h] - \mathbb V[\tilde x]w/\mathbb V[h]) + w$
    with the sign of $C_\alpha[h]$, which views can make negative: w plus 1/2p of the gradient of $\pm\log|C_\alpha[h]/
    \mathbb V[h]|$, so that w is fixed exactly where the energy is stationary. It is 0 where all outputs are the same.
    """

    coupled = False

    def __init__(self, covariance: GatedCovariance) -> None:
        if not isinstance(covariance, GatedCovariance) or covariance.coupled:
            raise InputError("batch normalisation takes a GatedCovariance whose α is not that of all outputs together")
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
        """Those of the samples."""
        return self.covariance.gates(weights)

    def energy(self, weights: Tensor) -> Tensor:
        r"""$C_\alpha[h]/\mathbb V[h]$, (k,)."""
        return self.covariance.energy(weights) / self._plain.energy(weights)


def _is_rule(importance: object) -> bool:
    """Whether α depends on what it is computed of; uniform α does not."""
    if isinstance(importance, Tensor | PairLaplacian | ImportanceWeights):
        return False
    return not isinstance(importance, UniformImportance) and not (
        isinstance(importance, str) and importance == "uniform"
    )


def _require_samples(x: Tensor, positives: Tensor | None) -> None:
    for name, rows in (("x", x), *([] if positives is None else [("positives", positives)])):
        if not _are_rows(rows):
            raise InputError(
                f"{name} must be dense rows (n, d) of float32 or float64, got {in_words(rows)}; flatten images with "
                "x.flatten(1), convert arrays with torch.as_tensor(x)"
            )
        if not torch.isfinite(rows.norm()):
            raise InputError(f"{name} holds NaN, infinite or huge values; drop these samples, or scale all of them")
    if positives is not None and (positives.shape != x.shape or positives.dtype != x.dtype):
        raise InputError(
            f"positives must be one view of each sample, {x.dtype} {tuple(x.shape)}, got {in_words(positives)}"
        )
    if len(x) < 2 or not (x != x[0]).any():
        raise InputError(
            f"the {len(x)} samples have no variance, so there is no pattern to find; pass samples that differ"
        )


def _are_rows(rows: object) -> bool:
    if not isinstance(rows, Tensor) or rows.layout != torch.strided or rows.dtype not in (torch.float32, torch.float64):
        return False
    return rows.ndim == 2 and 0 not in rows.shape
