r"""Training under a fixed kernel and MSE in closed form (Lee et al. 2019, Sec. 2.2; paper D, Sec. 2).

With the loss ½‖f − Y‖², a sum over samples and outputs (paper D, assumption 5), the residual obeys
$\dot r = -\eta\Theta r$, or $r_{t+1} = (1 - \eta\Theta) r_t$ in steps. So in Θ's eigenbasis every mode shrinks
independently, by $e^{-\eta\lambda t}$ or $(1 - \eta\lambda)^t$.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import torch
from torch import Tensor

from kontrast import checks
from kontrast.dynamics import flat_kernel
from kontrast.errors import InputError, KontrastError
from kontrast.kernels import InfiniteNetwork
from kontrast.linalg import as_symmetric, eigenvalue_rounding, spectral_norm

SMALL = 1000  # rows up to which a kernel is always decomposed; beyond, t = ∞ by itself is a Cholesky solve

Training = Literal["flow", "descent"]


@dataclass(frozen=True, eq=False)
class MSETraining:
    r"""A kernel's training on targets, at any time; made by `mse_training`, which checks and explains the arguments.

    `time` is any number from 0 on: the flow's time, or the number of steps of descent; `math.inf` is the limit. In the
    limit, modes with eigenvalues of at most `tolerance`, which may be rounding of zero, are never learned: this is the
    pseudo-inverse of Θ.
    """

    matrix: Tensor  # Θ as (N, N) in float64: N = n for a kernel (n, n), N = n·z for (n, n, z, z)
    start: Tensor  # f_0, (n, z)
    targets: Tensor  # Y, (n, z)
    learning_rate: float
    method: Training
    precision: float  # the rounding unit of the given kernel

    def outputs(self, time: float) -> Tensor:
        r"""$f_t = Y + e^{-\eta\Theta t}(f_0 - Y)$, or $Y + (1 - \eta\Theta)^t (f_0 - Y)$, (n, z); f_0 itself at 0."""
        return (self.start.double() + self._change(self._checked(time))).to(self.start.dtype)

    def weights(self, time: float) -> Tensor:
        r"""$a_t$, (n, z): $f_t(x) = f_0(x) + \Theta(x, X)\,a_t$ for every x, and $\theta_t = \theta_0 + J^\top a_t$."""
        return self._weights(self._checked(time)).to(self.start.dtype)

    def predict(self, cross: Tensor, start: Tensor, time: float) -> Tensor:
        """f_t at m new inputs, (m, z): `cross` is Θ(new, X), (m, n) or (m, n, z, z), `start` f_0 there, (m, z)."""
        n, z = self.start.shape
        _require_dense("cross", cross, outputs=self.start)
        _require_dense("start", start, outputs=self.start)
        checks.require_shape("start", start, ("m", z), "pass f_0 at the new inputs")
        m = len(start)
        if cross.shape not in ((m, n), (m, n, z, z)):
            raise InputError(
                f"cross must have shape {(m, n)} or {(m, n, z, z)}, new inputs in rows and the {n} training points in "
                f"columns, got {tuple(cross.shape)}; check that it is not transposed"
            )
        a = self._weights(self._checked(time))
        moved = flat_kernel(cross.detach().double()) @ (a if cross.ndim == 2 else a.reshape(-1, 1))
        return (start.detach().double() + moved.view(m, z)).to(self.start.dtype)

    def loss(self, time: float) -> float:
        """½‖f_t − Y‖², exact even where the residual is far below the rounding of the targets."""
        time = self._checked(time)
        if time == math.inf and self._limit is not None:
            return 0.0
        return float((self._shares(time)[0][:, None] * self._modes[2]).square().sum()) / 2

    def distance(self, time: float) -> float:
        """‖θ_t − θ_0‖ of the linear model behind the kernel: √(a_t^T Θ a_t), its change's norm in Θ's space."""
        time = self._checked(time)
        square = float((self._weights(time) * self._change(time)).sum())  # Θ a_t = f_t − f_0
        return math.sqrt(max(square, 0.0))

    @property
    def eigenvalues(self) -> Tensor:
        """The eigenvalues of Θ, (N,) and ascending; those that rounding left below zero are zero."""
        return self._modes[0]

    @property
    def tolerance(self) -> float:
        """The largest eigenvalue that may be the rounding of zero; at t = ∞ it counts as zero."""
        return eigenvalue_rounding(self.matrix, self.precision)

    @cached_property
    def _modes(self) -> tuple[Tensor, Tensor, Tensor]:
        """Θ = Q diag(λ) Q^T and Q^T (f_0 − Y)."""
        values, vectors = torch.linalg.eigh(self.matrix)
        if float(values[0]) < -10 * self.tolerance:
            raise InputError(
                f"kernel must be positive semi-definite, but has the eigenvalues {float(values[0]):.3g} to "
                f"{float(values[-1]):.3g}; check that it is a kernel matrix"
            )
        return values.clamp(min=0), vectors, vectors.mT @ self._flat_residual

    @property
    def _flat_residual(self) -> Tensor:
        """f_0 − Y as the columns that Θ acts on: (n, z), or one of n·z."""
        return (self.start.double() - self.targets.double()).reshape(len(self.matrix), -1)

    @cached_property
    def _limit(self) -> Tensor | None:
        """−Θ^{-1}(f_0 − Y) by Cholesky where Θ is large, not decomposed yet and clearly invertible; else None."""
        n = len(self.matrix)
        if n <= SMALL or "_modes" in self.__dict__:
            return None
        L, info = torch.linalg.cholesky_ex(self.matrix)
        if int(info) != 0:
            return None
        largest = spectral_norm(self.matrix).value
        self._refuse_unstable(largest)
        inverse = spectral_norm(lambda v: torch.cholesky_solve(v, L), n=n, device=L.device, tolerance=0.1).value
        if inverse * 2 * self.tolerance >= 1:  # 1/inverse is the smallest eigenvalue, to 10 %
            return None
        return -torch.cholesky_solve(self._flat_residual, L).view_as(self.start)

    def _weights(self, time: float) -> Tensor:
        if time == math.inf and self._limit is not None:
            return self._limit
        values, vectors, residual = self._modes
        _, learned = self._shares(time)
        if time == math.inf:
            slope = torch.where(learned > 0, learned / values, 0.0)
        else:  # (1 − e^{−ηλt})/λ tends to ηt as λ → 0, and so does (1 − (1 − ηλ)^t)/λ
            reach = self.learning_rate * time
            slope = torch.where(values * reach > torch.finfo(values.dtype).tiny, learned / values, reach)
        return self._back(vectors, -slope[:, None] * residual)

    def _change(self, time: float) -> Tensor:
        """f_t − f_0, which loses no digits at small times."""
        if time == math.inf and self._limit is not None:
            return self.targets.double() - self.start.double()
        _, vectors, residual = self._modes
        return self._back(vectors, -self._shares(time)[1][:, None] * residual)

    def _back(self, vectors: Tensor, modes: Tensor) -> Tensor:
        """From the eigenbasis to (n, z)."""
        result = (vectors @ modes).view(self.start.shape)
        if not bool(torch.isfinite(result).all()):
            raise KontrastError(
                f"the outputs overflow, because learning_rate={self.learning_rate:g} is above "
                f"2/λ_max = {2 / float(self.eigenvalues[-1]):.4g}; ask for earlier times, or lower it"
            )
        return result

    def _shares(self, time: float) -> tuple[Tensor, Tensor]:
        """The share of each mode's residual that is left, and 1 − left, the share learned, exact even where tiny."""
        values = self.eigenvalues
        if time == math.inf:
            self._refuse_unstable(float(values[-1]))
            left = (values <= self.tolerance).to(values.dtype)
            return left, 1 - left
        if self.method == "flow":
            exponent = -values * (self.learning_rate * time)
            return exponent.exp(), -exponent.expm1()
        if time == 0:
            return torch.ones_like(values), torch.zeros_like(values)
        step = self.learning_rate * values
        # (1 − s)^t as ± exp(t log|1 − s|); log1p keeps all digits near s = 0 and, with s − 2, near s = 2.
        exponent = time * torch.where(step < 1, -step, step - 2).log1p()
        left = exponent.exp() * torch.where(step > 1, (-1.0) ** (time % 2), 1.0)
        return left, torch.where(step < 1, -exponent.expm1(), 1 - left)

    def _refuse_unstable(self, largest: float) -> None:
        if self.method == "descent" and self.learning_rate * largest >= 2:
            raise InputError(
                f"descent has no limit at learning_rate={self.learning_rate:g}: it must be below "
                f"2/λ_max = {2 / largest:.6g}; lower it, ask for finite times, or use method='flow'"
            )

    def _checked(self, time: float) -> float:
        return _checked_time(time, self.learning_rate, self.method)


def mse_training(
    kernel: Tensor, outputs: Tensor, targets: Tensor, *, learning_rate: float = 1.0, method: Training = "flow"
) -> MSETraining:
    r"""Training of outputs on targets under a fixed kernel, at any time up to ∞, by one eigendecomposition.

    $f_t = Y + e^{-\eta\Theta t}(f_0 - Y)$ for the flow $\dot f = -\eta\Theta(f - Y)$, with $(1 - \eta\Theta)^t$ for
    descent (paper D, claim D.lee). The work is done at the first question, in float64. For a large invertible kernel of
    which only t = ∞ is asked, it is a Cholesky solve.

    Rounding: eigenvalues carry an error of about eps·λ_max, so outputs are exact to about (1 + ηλ_max t)·eps. No
    simulation in this precision is closer: 3e-13 after 3000 steps of nearly singular kernels.

    Args:
        kernel: Θ among the training points, (n, n, z, z) as `empirical_ntk` returns it, or (n, n) if it is the same for
            every output, like an infinite network's.
        outputs: f_0 at the training points, (n, z).
        targets: Y, (n, z).
        learning_rate: η.
        method: "flow", or "descent" in steps of η.
    """
    checks.require_positive(learning_rate=learning_rate)
    checks.require_choice("method", method, get_args(Training))
    _require_dense("kernel", kernel)
    _require_dense("outputs", outputs, kernel=kernel)
    require_targets(targets, outputs)
    n, z = outputs.shape
    if kernel.shape not in ((n, n), (n, n, z, z)):
        raise InputError(
            f"kernel must have shape {(n, n)} or {(n, n, z, z)} for outputs {(n, z)}, got {tuple(kernel.shape)}"
        )
    matrix = as_symmetric(flat_kernel(kernel.detach()), "kernel")
    precision = torch.finfo(kernel.dtype).eps
    return MSETraining(matrix, outputs.detach(), targets.detach(), float(learning_rate), method, precision)


@dataclass(frozen=True, eq=False)
class Ensemble:
    """The Gaussian distribution of outputs at new inputs over random initialisations, independent for each output."""

    mean: Tensor  # (m, z)
    covariance: Tensor  # (m, m), of each of the z outputs


def ensemble(
    network: InfiniteNetwork,
    x: Tensor,
    targets: Tensor,
    new: Tensor,
    *,
    time: float = math.inf,
    learning_rate: float = 1.0,
    method: Training = "flow",
) -> Ensemble:
    r"""Mean and covariance at `new` of infinitely wide networks trained on ½‖f(x) − targets‖² up to `time`.

    Lee et al. 2019, Eqs. 14 to 16: with $A_t = \Theta^{-1}(1 - e^{-\eta\Theta t})$ the mean is $\Theta_* A_t Y$ and the
    covariance $K_{**} + \Theta_* A_t K A_t \Theta_*^\top - (\Theta_* A_t K_{X*} + h.c.)$, K the NNGP kernel that draws
    the start. At time 0 it is the prior; at ∞ it is not the posterior of the Gaussian process, for which Θ = K.

    The inputs x are (n, d), the targets (n, z), and `new` is (m, d). For time, η and method see `mse_training`.
    """
    checks.require_type("network", network, InfiniteNetwork, "for modules use linearized_mse")
    checks.require_positive(learning_rate=learning_rate)
    checks.require_choice("method", method, get_args(Training))
    _require_dense("x", x)
    _require_dense("targets", targets, x=x)
    checks.require_shape("targets", targets, (len(x), "z"), "pass one row per row of x")
    _checked_time(time, learning_rate, method)
    # A_t Θ_*^T are the weights of training from zero on the columns of Θ_*^T.
    columns = network.ntk(x, new)
    training = mse_training(
        network.ntk(x), torch.zeros_like(columns), columns, learning_rate=learning_rate, method=method
    )
    B = training._weights(training._checked(time))  # in float64: the three terms nearly cancel where much is learned
    half = network.nngp(new, x).double() @ B
    covariance = network.nngp(new).double() + B.mT @ network.nngp(x).double() @ B - half - half.mT
    mean = B.mT @ targets.detach().double()
    return Ensemble(mean.to(x.dtype), ((covariance + covariance.mT) / 2).to(x.dtype))


def require_targets(targets: Tensor, outputs: Tensor) -> None:
    """Refuse targets that are not like the (n, z) outputs."""
    checks.require_type("outputs", outputs, Tensor)
    checks.require_shape("outputs", outputs, ("n", "z"), "for one output use outputs[:, None]")
    _require_dense("targets", targets, outputs=outputs)
    checks.require_shape("targets", targets, outputs.shape, "use targets[:, None]" if targets.ndim == 1 else "")


def _checked_time(time: float, learning_rate: float, method: Training) -> float:
    checks.require_not_negative(time=time)
    try:
        value = float(time)
    except OverflowError:  # a whole number beyond 1e308
        value = math.inf
    if method == "descent" and value != math.inf and not value.is_integer():
        raise InputError(f"time must be a whole number of steps for descent, or math.inf, got {time}")
    return math.inf if math.isinf(learning_rate * value) else value


def _require_dense(name: str, given: Tensor, **like: Tensor) -> None:
    """Refuse what is not a dense, finite floating-point tensor, of the number type and device of those in `like`."""
    checks.require_floating(name, given)
    if given.layout != torch.strided:
        raise InputError(f"{name} must be dense, got {given.layout}; use {name}.to_dense()")
    for other, tensor in like.items():
        checks.require_alike(**{other: tensor, name: given})
    checks.require_finite(name, given)
