"""kontrast's side of `kernels.py`, and what torch alone offers beside it."""

from __future__ import annotations

import sys

from worker import Ready, restrict_threads, serve

restrict_threads(int(sys.argv[1]))  # before torch counts the cores

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.func import functional_call, jacrev, vmap  # noqa: E402

import kontrast as kt  # noqa: E402

torch.set_num_threads(int(sys.argv[1]))


def product(x: np.ndarray) -> Ready:
    """X Xᵀ and nothing else."""
    points = torch.from_numpy(x)
    return lambda: points @ points.mT


def infinite_ntk(x: np.ndarray, *, depth: int, compile: bool) -> Ready:
    """ReLU, in neural-tangents' convention: the input product divided by d."""
    points = torch.from_numpy(x)
    kernel, scale = kt.kernels.infinite_ntk, 1 / x.shape[1]
    return lambda: kernel(points, depth=depth, input_scale=scale, compile=compile)


def empirical_ntk_trace(x: np.ndarray, V: np.ndarray, W: np.ndarray, *, network: str) -> Ready:
    """Of f(x) = W^T relu(V x) / √M as an `MLP`, or of √M f, which has M times the kernel, as an `nn.Sequential`."""
    points, net = torch.from_numpy(x), NETWORKS[network](torch.from_numpy(V), torch.from_numpy(W))
    kernel = kt.kernels.empirical_ntk_trace  # a subpackage is imported on first use: here, not in the measured time
    return lambda: kernel(net, points)


def mlp(V: Tensor, W: Tensor) -> nn.Module:
    net = kt.nets.MLP(V.shape[1], len(V), W.shape[1])
    with torch.no_grad():
        net.hidden[0].copy_(V)
        net.output.copy_(W)
    return net


def sequential(V: Tensor, W: Tensor) -> nn.Module:
    net = nn.Sequential(nn.Linear(V.shape[1], len(V), bias=False), nn.ReLU(), nn.Linear(len(V), W.shape[1], bias=False))
    with torch.no_grad():
        net[0].weight.copy_(V)
        net[2].weight.copy_(W.mT)
    return net


NETWORKS = {"MLP": mlp, "Sequential": sequential}


def convnet(x: np.ndarray, *, side: str, traced: bool) -> Ready:
    """The tangent kernel of a small ConvNet by kontrast, or from torch.func's Jacobian."""
    points, net = torch.from_numpy(x), small_convnet()
    if side == "kontrast":
        kernel = kt.kernels.empirical_ntk_trace if traced else kt.kernels.empirical_ntk
        return lambda: kernel(net, points)
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    jacobian = vmap(jacrev(lambda p, point: functional_call(net, p, (point[None],))[0]), (None, 0))
    contraction = "nap,map->nm" if traced else "nap,mbp->nmab"

    def contracted() -> Tensor:
        blocks = [J.flatten(2) for J in jacobian(parameters, points).values()]  # (n, c, p) for every parameter
        return sum(torch.einsum(contraction, J, J) for J in blocks)

    return contracted


def small_convnet() -> nn.Module:
    """25,578 parameters for pictures of 32×32×3, 10 outputs; the same every time."""
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 8 * 8, 10),
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / max(1, p[0].numel()) ** 0.5)
    return net


if __name__ == "__main__":
    serve(
        {
            "product": product,
            "infinite_ntk": infinite_ntk,
            "empirical_ntk_trace": empirical_ntk_trace,
            "convnet": convnet,
        },
        about={"torch": torch.__version__, "kontrast": kt.__version__},
    )
