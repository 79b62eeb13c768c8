"""Networks and inputs of the claims on Theorem 2.1."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kontrast.claims.setting import Setting, generator
from kontrast.errors import InputError
from kontrast.kernels import infinite_ntk
from kontrast.nets import MLP

D, Z = 10, 8  # inputs: principal components of the data; outputs
N, N_NEW = 10, 10

Target = Literal["easy", "hard"]


@dataclass(frozen=True)
class Network:
    """A network, its target and its inputs."""

    activation: str
    parametrization: str = "ntk"
    depth: int = 1
    target: Target = "easy"
    centered: bool = True  # whether the inputs are

    @property
    def name(self) -> str:
        """The differences from the plain case: tanh, relu_hard, tanh_standard_2."""
        differs = {
            "standard": self.parametrization == "standard",
            str(self.depth): self.depth > 1,
            "hard": self.target == "hard",
            "cone": not self.centered,
        }
        return "_".join([self.activation, *(word for word, does in differs.items() if does)])

    def net(self, d_in: int, width: int, d_out: int, draw: torch.Generator, device: str | torch.device) -> MLP:
        """The network itself, in float64."""
        return MLP(
            d_in,
            width,
            d_out,
            depth=self.depth,
            activation=self.activation,
            parametrization=self.parametrization,
            generator=draw,
            dtype=torch.float64,
            device=device,
        )


@dataclass(frozen=True, eq=False)
class Sample:
    """Inputs on the unit sphere, as Theorem 2.1 requires: to train on, and new ones."""

    x: Tensor
    new: Tensor


@functools.lru_cache(maxsize=8)
def sample(setting: Setting, n: int, *, centered: bool = True) -> Sample:
    """Data in their ten leading principal components, divided by their norms; if not centred, they share a direction.

    There are few inputs because, in the standard parametrisation, the first layer's part of the kernel is d/width of
    the others', and must be small before a law in the width shows.
    """
    rows = setting.dataset().rows
    if n + N_NEW > len(rows) or rows.shape[1] < D:
        raise InputError(
            f"this claim needs {n + N_NEW} samples of at least {D} features, got {tuple(rows.shape)}; "
            "give a larger data set"
        )
    rows = rows - rows.mean(0) if centered else rows
    _, _, directions = torch.linalg.svd(rows, full_matrices=False)
    order = torch.randperm(len(rows), generator=generator("D.sample"))[: n + N_NEW]
    x = rows[order] @ directions[:D].mT
    x = (x / x.norm(dim=1, keepdim=True)).to(setting.device)
    return Sample(x[:n], x[n:])


def net_of(setting: Setting, network: Network, width: int, *, seed: int, d_out: int = Z) -> MLP:
    """The network at one width; its weights depend on width and seed alone."""
    return network.net(D, width, d_out, generator("net", seed, width), setting.device)


def targets_of(network: Network, x: Tensor, *, d_out: int = Z) -> Tensor:
    """Targets as large as the outputs at the start: a linear function, or the one the kernel learns last."""
    size = 1 / math.sqrt(D) if network.parametrization == "standard" else 1.0
    if network.target == "hard":
        _, modes = torch.linalg.eigh(infinite_ntk(x, activation=network.activation))
        last: Tensor = modes[:, :d_out]
        return size * math.sqrt(len(x)) * last
    weights = torch.randn(D, d_out, generator=generator("D.target"), dtype=torch.float64).to(x)
    return size * x @ weights
