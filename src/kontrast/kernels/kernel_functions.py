"""Kernels k(x, y) of samples: infinitely wide networks, random Fourier features, cosines, frozen models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from kontrast.checks import in_words
from kontrast.errors import InputError
from kontrast.kernels.infinite import InfiniteNetwork
from kontrast.nets import activation_from

KERNEL_TILE = {"cpu": 2**24, "cuda": 2**30}  # entries of k(x, points) held at a time


class Kernel(Protocol):
    """k(x, y) of samples."""

    def __call__(self, x: Tensor, y: Tensor | None = None, /) -> Tensor:
        """(n, m); by default y is x."""
        ...

    def diagonal(self, x: Tensor, /) -> Tensor:
        """k(x_i, x_i), (n,)."""
        ...


@dataclass(frozen=True)
class NetworkKernel:
    r"""$\mathbb{E}[\varphi(x)\cdot\varphi(y)]/M$ of the last hidden layer of an infinitely wide network."""

    network: InfiniteNetwork

    def __call__(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """The NNGP kernel."""
        return self.network.nngp(x.flatten(1), None if y is None else y.flatten(1))

    def diagonal(self, x: Tensor) -> Tensor:
        """Its diagonal."""
        return self.network.nngp_diagonal(x.flatten(1))

    def state(self) -> dict[str, Any]:
        """The words and numbers from which `kernel_from_state` makes the same kernel."""
        name = activation_from(self.network.activation).stored_name
        return {"kind": "network", "depth": self.network.depth, "activation": name}


@dataclass(frozen=True)
class TangentKernel:
    r"""$\Theta(x, y)$, the tangent kernel of an infinitely wide network."""

    network: InfiniteNetwork

    def __call__(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """The NTK."""
        return self.network.ntk(x.flatten(1), None if y is None else y.flatten(1))

    def diagonal(self, x: Tensor) -> Tensor:
        """Its diagonal."""
        return self.network.ntk_diagonal(x.flatten(1))


@dataclass(frozen=True)
class GaussianKernel:
    r"""$e^{-\|x-y\|^2/2\ell^2}$, the limit of random Fourier features."""

    length_scale: float

    def __call__(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """(n, m), from differences where distances are small."""
        x = x.flatten(1)
        distances = torch.cdist(x, x if y is None else y.flatten(1))
        if y is None:
            distances.fill_diagonal_(0.0)
        return distances.div_(self.length_scale).square_().mul_(-0.5).exp_()

    def diagonal(self, x: Tensor) -> Tensor:
        """Ones."""
        return x.new_ones(len(x))

    def state(self) -> dict[str, Any]:
        """The word and number from which `kernel_from_state` makes the same kernel."""
        return {"kind": "gaussian", "length_scale": self.length_scale}


@dataclass(frozen=True)
class CosineKernel:
    r"""$k(x, y) / ((\sqrt{k(x,x)} + \delta)(\sqrt{k(y,y)} + \delta))$: features divided by their norms plus δ."""

    kernel: Kernel
    delta: float

    def __call__(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """(n, m)."""
        scale = self._scale(x)
        K = self.kernel(x) if y is None else self.kernel(x, y)
        return K.mul_(scale[:, None]).mul_(scale if y is None else self._scale(y))

    def diagonal(self, x: Tensor) -> Tensor:
        """Just below 1; 0 for a sample whose features are all 0."""
        return self.kernel.diagonal(x) * self._scale(x).square()

    def state(self) -> dict[str, Any]:
        """The state of the kernel that is divided, and δ."""
        inner: Any = self.kernel
        return {**inner.state(), "delta": self.delta}

    def _scale(self, x: Tensor) -> Tensor:
        return (self.kernel.diagonal(x).sqrt() + self.delta).reciprocal()


@dataclass(frozen=True)
class FeatureKernel:
    r"""$\varphi(x)\cdot\varphi(y)$: the kernel of a frozen model; regression with it is a linear probe."""

    features: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """(n, m), without gradients."""
        phi = self._features(x)
        return phi @ (phi if y is None else self._features(y)).mT

    def diagonal(self, x: Tensor) -> Tensor:
        """Squared lengths of features."""
        return self._features(x).square().sum(1)

    @torch.no_grad()
    def _features(self, x: Tensor) -> Tensor:
        phi = self.features(x)
        if not isinstance(phi, Tensor) or not phi.is_floating_point() or phi.ndim < 2 or len(phi) != len(x):
            raise InputError(f"features must return ({len(x)}, M) floats for {len(x)} samples, got {in_words(phi)}")
        return phi.flatten(1)


def kernel_from_state(state: Mapping[str, Any]) -> Kernel:
    """The kernel whose `state` this is."""
    if state["kind"] == "gaussian":
        kernel: Kernel = GaussianKernel(state["length_scale"])
    else:
        kernel = NetworkKernel(InfiniteNetwork(depth=state["depth"], activation=state["activation"]))
    return CosineKernel(kernel, state["delta"]) if "delta" in state else kernel
