"""kontrast's side of `kernels.py`, and what torch alone offers beside it."""

from __future__ import annotations

import sys

from worker import Ready, restrict_threads, serve

restrict_threads(int(sys.argv[1]))  # before torch counts the cores

import numpy as np  # noqa: E402
import torch  # noqa: E402
from networks import NETWORKS  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch_func import WAYS, one_jacobian  # noqa: E402

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
    points, net = torch.from_numpy(x), TWO_LAYERS[network](torch.from_numpy(V), torch.from_numpy(W))
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


TWO_LAYERS = {"MLP": mlp, "Sequential": sequential}


def convnet(x: np.ndarray, *, side: str, traced: bool, **weights: np.ndarray) -> Ready:
    """The tangent kernel of a small ConvNet by kontrast, or from torch.func's Jacobian."""
    points, net = torch.from_numpy(x), NETWORKS["convnet"]()
    net.load_state_dict({name: torch.from_numpy(weight) for name, weight in weights.items()})
    if side == "kontrast":
        kernel = kt.kernels.empirical_ntk_trace if traced else kt.kernels.empirical_ntk
        return lambda: kernel(net, points)
    contraction = "nap,map->nm" if traced else "nap,mbp->nmab"
    return lambda: one_jacobian(net, points, contraction)


def network_trace(x: np.ndarray, *, network: str, way: str, rows: int | None = None, **options: float) -> Ready:
    """The trace kernel of a network of `networks.py` on the first `rows`, in one of `NETWORK_WAYS`."""
    points, net, kernel = torch.from_numpy(x)[:rows], NETWORKS[network](), NETWORK_WAYS[way]
    return lambda: kernel(net, points, **options)


def by_nngeometry(net: nn.Module, x: Tensor) -> Tensor:
    """One output at a time: all at once it takes every pair of outputs, ten times the work, and the trace of that."""
    from nngeometry import GramMatrix

    for module in net.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False  # its hooks cannot go with layers that work in place
    K = torch.zeros(len(x), len(x))
    for a in range(net(x[:1]).shape[1]):
        K += GramMatrix(net, (x,), function=lambda *d, a=a: net(d[0])[:, a : a + 1]).to_torch()[0, :, 0]
    return K


NETWORK_WAYS = {"kontrast": kt.kernels.empirical_ntk_trace, "nngeometry": by_nngeometry} | WAYS


if __name__ == "__main__":
    serve(
        {
            "product": product,
            "infinite_ntk": infinite_ntk,
            "empirical_ntk_trace": empirical_ntk_trace,
            "convnet": convnet,
            "network_trace": network_trace,
        },
        about={"torch": torch.__version__, "kontrast": kt.__version__},
    )
