r"""A(w) of a population instead of samples (paper C): a mixture of Gaussians of one width, in closed form.

For x = μ_s + σξ with probability p_s, uniform pairwise importance and no augmentation, $A(w) = \mathbb V[\tilde x^w]$
(Appendix B.1). The gate jumps by J at the plane w^T x = 0, where h is 0, so

$$\frac{d}{d\varepsilon} A(w + \varepsilon u)\, w = -B u, \qquad B = J\,\mathbb E[h]\, M, \qquad
M = \mathbb E[x x^\top \delta(w^\top x)],$$

and the flow (7) has the Jacobian P(A − B − λ)P at a fixed point. M is positive semi-definite, and so is B where
J·E[h] ≥ 0: always for ReLU. The roughness ρ = ‖B‖ of Theorem 1 then makes a fixed point **more** stable, and every
LME is stable whether λ_gap > ρ or not. Leaky ReLU on data whose mean lies far behind the plane has E[h] < 0, B below 0,
and LMEs that are not stable.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kontrast.checks import require_finite_not_negative, require_floating, require_matrix, require_type
from kontrast.errors import InputError
from kontrast.patterns.homogeneous import homogeneous_from
from kontrast.patterns.latent_models import LatentCategorical, LatentSummation, require_probabilities

GATE_TOLERANCE = 1e-9  # without noise, in units of the largest mean: a gate opened by round-off is an error of order 1
_BLOCK = 2**22  # numbers in one (weights, states) table
_FAR = 40.0  # standard deviations beyond which the normal density is 0 in float64, and 0·∞ would be NaN


@dataclass(frozen=True)
class _Moments:
    """Moments of each weight on each state, (k, s), except for the two that are per weight."""

    direction: Tensor  # w/‖w‖, (k, d)
    length: Tensor  # ‖w‖, (k, 1)
    z: Tensor  # direction·μ_s
    a: Tensor  # z/σ
    open: Tensor  # Φ(a): the probability that w^T x > 0
    density: Tensor  # φ(a)
    gate: Tensor  # mean of the gate
    output: Tensor  # mean of h(direction·x) given s


class MixtureCovariance:
    """Exact A(w), its energy, roughness and stability for x = μ_s + σξ with probability p_s, ξ standard normal.

    Computed in float64; results have the number type of the weights. A(w) depends on the direction of w only.

    `means` are μ_s as rows (s, d), `probabilities` p_s (s,). With σ = `noise_std` = 0 it is the discrete model itself,
    and gates open above 1e-9 of the largest mean. The activation is of degree 1: "relu", "leaky_relu:0.2", "linear", a
    module or a function.
    """

    coupled = False  # each weight's field is its own

    def __init__(
        self,
        means: Tensor,
        probabilities: Tensor,
        noise_std: float,
        *,
        activation: str | Callable[[Tensor], Tensor] = "relu",
    ) -> None:
        require_matrix("means", means, ("s", "d"), "pass one row per state")
        require_probabilities(probabilities, len(means))
        require_finite_not_negative(noise_std=noise_std)
        self.activation = homogeneous_from(activation)
        if self.activation.degree != 1:
            raise InputError(
                f"the population's A(w) is known for activations of degree 1, got degree {self.activation.degree:g}; "
                "use relu, leaky_relu or linear, or GatedCovariance of samples"
            )
        self.means = means.detach().double()
        self.probabilities = probabilities.detach().to(self.means)
        self.noise_std = float(noise_std)
        self._above, self._below = self.activation.right, -self.activation.left  # the gate on either side of the plane
        self._precision = means.dtype

    @classmethod
    def of(
        cls,
        model: LatentCategorical | LatentSummation,
        noise_std: float,
        *,
        activation: str | Callable[[Tensor], Tensor] = "relu",
    ) -> MixtureCovariance:
        """The covariance of a generative model of Appendix B.1, smoothed by noise of this standard deviation."""
        require_type("model", model, (LatentCategorical, LatentSummation))
        return cls(*model.states(), noise_std, activation=activation)

    def product(self, weights: Tensor) -> Tensor:
        """A(w)w for each row w of (k, d): half the gradient of `energy`."""
        self._require_weights(weights, 2)
        blocks = torch.split(weights, max(1, _BLOCK // len(self.means)))
        return torch.cat([self._product(self._moments(block)) for block in blocks]).to(weights.dtype)

    def energy(self, weights: Tensor) -> Tensor:
        """V[h(w^T x)] = w^T A(w) w for each row of (k, d): (k,)."""
        return (self.product(weights) * weights).sum(1)

    def gates(self, weights: Tensor) -> Tensor:
        """Of shape (k, 0): a population has no samples whose gates could be open."""
        self._require_weights(weights, 2)
        return torch.empty(len(weights), 0, dtype=torch.bool, device=weights.device)

    def matrix(self, w: Tensor) -> Tensor:
        r"""A(w) = V[x̃], (d, d), for w (d,): the variance of the states' means plus the mean of their variances.

        With c = 1[w^T x > 0] and the unit vector e along w,
        $\mathbb E[cx] = \Phi\mu + \sigma\varphi e$ and
        $\mathbb E[c x x^\top] = \Phi\mu\mu^\top + \sigma\varphi(\mu e^\top + e\mu^\top)
        + \sigma^2(\Phi I - a\varphi\, e e^\top)$ at a = e^T μ/σ.
        """
        self._require_weights(w, 1)
        return self._matrix(w).to(w.dtype)

    def mean_output(self, w: Tensor) -> float:
        """E[h(w^T x)] for w (d,)."""
        self._require_weights(w, 1)
        moments = self._moments(w[None])
        return float(moments.length[0, 0] * (moments.output[0] @ self.probabilities))

    def boundary_matrix(self, w: Tensor) -> Tensor:
        """M = E[x x^T δ(w^T x)], (d, d), for w (d,): the second moment on the plane where the gate jumps."""
        self._require_weights(w, 1)
        if self._on_plane(w):
            raise InputError(
                "a state lies on the plane w^T x = 0, where its density is infinite; use noise_std above 0"
            )
        return self._boundary_matrix(w).to(w.dtype)

    def roughness_matrix(self, w: Tensor) -> Tensor:
        """B = J·E[h]·M, (d, d): A(w + εu)w = A(w)w − εBu + O(ε²), for any length of w."""
        return self.boundary_matrix(w) * (self.activation.jump * self.mean_output(w))

    def roughness(self, w: Tensor) -> float:
        """ρ(w) = ‖B‖₂ of Theorem 1; infinite without noise where a state lies on the plane w^T x = 0.

        ρ is for unit weights. B w = 0, as M has no part along w, so the tangent space gives the whole norm.
        """
        self._require_weights(w, 1)
        if self._on_plane(w):
            return math.inf if self._jump_at(w) else 0.0
        return float(torch.linalg.matrix_norm(self._roughness_matrix(w), ord=2))

    def stability_margin(self, w: Tensor) -> float:
        """λ − λ_max(P(A − B)P) on the tangent space, λ = w^T A w/‖w‖²: a fixed point w is stable iff it is above 0.

        Stable means under the flow (7). The power iteration (94) also needs that no eigenvalue of P(A − B)P is below
        −λ: under small noise B is large, and the iteration then swings from side to side about a stable w.

        A margin of exactly 0 decides nothing to this order. Without noise and with a state on the plane the flow is
        not differentiable: E[h]·J < 0 makes w unstable (−∞); otherwise such states only add to the stability, and the
        margin without them is a lower bound.
        """
        self._require_weights(w, 1)
        on_plane = self._on_plane(w)
        if on_plane and self._jump_at(w) < 0:
            return -math.inf
        if len(w) == 1:
            return math.inf
        A = self._matrix(w)
        direction = self._moments(w[None]).direction[0]
        slope = A if on_plane else A - self._roughness_matrix(w)
        tangent = torch.linalg.qr(direction[:, None], mode="complete")[0][:, 1:]  # (d, d - 1)
        return float(direction @ A @ direction - torch.linalg.eigvalsh(tangent.mT @ slope @ tangent)[-1])

    def _product(self, m: _Moments) -> Tensor:
        """E[x̃h] − E[x̃]E[h], by Stein's lemma E[f(e^T x)x] = E[f]μ + σ²E[f']e with f = gate²·z and f = gate."""
        p, sigma, J = self.probabilities, self.noise_std, self.activation.jump
        squares = _between(m.open, self._below**2, self._above**2)  # E[gate²]
        rectified = m.z * m.open + sigma * m.density  # E[max(z, 0)]
        second = self._below**2 * m.z + (self._above**2 - self._below**2) * rectified  # E[gate²·z]
        mean = (m.output @ p)[:, None]
        on_means = (second - mean * m.gate) * p
        along = ((sigma**2 * squares - sigma * J * mean * m.density) @ p)[:, None]
        return m.length * (on_means @ self.means + along * m.direction)

    def _matrix(self, w: Tensor) -> Tensor:
        moments = self._moments(w[None])
        e = moments.direction[0]
        a, Phi, phi, gate = (t[0] for t in (moments.a, moments.open, moments.density, moments.gate))
        p, mu, sigma, J = self.probabilities, self.means, self.noise_std, self.activation.jump
        centers = gate[:, None] * mu + J * sigma * torch.outer(phi, e)
        centers = centers - p @ centers
        # Φ(1 − Φ) and no difference of second moments: nothing cancels, and A stays positive semi-definite.
        A = centers.mT @ (p[:, None] * centers) + J**2 * mu.mT @ ((p * Phi * (1 - Phi))[:, None] * mu)
        crossed = torch.outer(e, J * sigma * (p * phi * _between(Phi, self._above, self._below)) @ mu)
        squares = p @ _between(Phi, self._below**2, self._above**2)
        along = p @ ((self._above**2 - self._below**2) * a * phi + J**2 * phi.square())
        identity = torch.eye(len(e), dtype=e.dtype, device=e.device)
        return A + crossed + crossed.mT + sigma**2 * (squares * identity - along * torch.outer(e, e))

    def _boundary_matrix(self, w: Tensor) -> Tensor:
        """Given w^T x = 0, x is P μ + σ P ξ, and the density of w^T x at 0 is φ(a)/(σ‖w‖); 0 without noise."""
        if self.noise_std == 0:
            return self.means.new_zeros(len(w), len(w))
        moments = self._moments(w[None])
        e = moments.direction[0]
        density = self.probabilities * moments.density[0] / (self.noise_std * moments.length[0, 0])
        inside = self.means - torch.outer(moments.z[0], e)
        P = torch.eye(len(e), dtype=e.dtype, device=e.device) - torch.outer(e, e)
        return inside.mT @ (density[:, None] * inside) + self.noise_std**2 * density.sum() * P

    def _roughness_matrix(self, w: Tensor) -> Tensor:
        return self._jump_at(w) * self._boundary_matrix(w)

    def _jump_at(self, w: Tensor) -> float:
        return self.activation.jump * self.mean_output(w)

    def _on_plane(self, w: Tensor) -> bool:
        """Whether, without noise, a state other than 0 lies on the plane w^T x = 0."""
        if self.noise_std > 0:
            return False
        tolerance = self._tolerance(w)
        flat = (self._moments(w[None]).z[0].abs() <= tolerance) & (self.means.norm(dim=1) > tolerance)
        return bool((flat & (self.probabilities > 0)).any())

    def _tolerance(self, weights: Tensor) -> float:
        """Tolerance of w^T μ for a unit w; float32 patterns are orthogonal only up to float32's rounding."""
        eps = max(torch.finfo(self._precision).eps, torch.finfo(weights.dtype).eps)
        return max(GATE_TOLERANCE, 16 * eps) * float(self.means.norm(dim=1).max())

    def _moments(self, weights: Tensor) -> _Moments:
        w = weights.double()
        length = w.norm(dim=1, keepdim=True)
        direction = w / length
        z = direction @ self.means.mT
        if self.noise_std == 0:
            open_, density = (z > self._tolerance(weights)).double(), torch.zeros_like(z)
            a = torch.zeros_like(z)  # used only as a·density
        else:
            a = (z / self.noise_std).clamp(-_FAR, _FAR)
            open_, density = torch.special.ndtr(a), torch.exp(-a * a / 2) / math.sqrt(2 * math.pi)
        gate = _between(open_, self._below, self._above)
        output = gate * z + self.activation.jump * self.noise_std * density
        return _Moments(direction, length, z, a, open_, density, gate, output)

    def _require_weights(self, weights: Tensor, ndim: int) -> None:
        d = self.means.shape[1]
        name = "weights" if ndim == 2 else "w"
        require_floating(name, weights)
        if weights.ndim != ndim or weights.shape[-1] != d:  # no rows are legal
            raise InputError(f"{name} must have shape {f'(k, {d})' if ndim == 2 else (d,)}, got {tuple(weights.shape)}")
        if weights.device != self.means.device:
            raise InputError(f"{name} must be on {self.means.device} like the means, got {weights.device}; move one")
        lengths = weights.detach().double().norm(dim=-1)
        if not ((lengths > 0) & (lengths < math.inf)).all():
            raise InputError(f"{name} must be finite and not zero, as A(w) depends on the direction of w")


def _between(share: Tensor, low: float, high: float) -> Tensor:
    """The mean of a number that is `high` with this probability, else `low`."""
    return low + (high - low) * share
