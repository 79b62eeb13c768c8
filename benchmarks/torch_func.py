"""Empirical kernels as torch.func gives them: the forms of its tutorial on neural tangent kernels, and a better one.

In fused attention torch.func loops over rows, and has no forward mode; but for the tutorial's first form, which is as
it stands there, attention goes by its plain products.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, jvp, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

Parameters = dict[str, Tensor]
JACOBIAN, TWO_JACOBIANS = "torch.func, one Jacobian", "torch.func, the tutorial's two Jacobians"
VECTOR_PRODUCTS = "torch.func, vector products"
ROWS_OF_VECTOR_PRODUCTS = {"resnet18": 4, "vit": 8, "convnet": 32}  # n² passes a call: more take minutes


def of_one_point(net: nn.Module) -> tuple[Callable[[Parameters, Tensor], Tensor], Parameters]:
    """The network as a function of its parameters and of one point, and the parameters."""
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    return lambda p, point: functional_call(net, p, (point[None],))[0], parameters


def jacobians(net: nn.Module, x: Tensor) -> list[Tensor]:
    """∂f/∂θ as (n, c, p) for every parameter."""
    function, parameters = of_one_point(net)
    return [J.flatten(2) for J in vmap(jacrev(function), (None, 0))(parameters, x).values()]


def one_jacobian(net: nn.Module, x: Tensor, contraction: str = "nap,map->nm") -> Tensor:
    """The trace kernel (n, n), or by "nap,mbp->nmab" the whole, of the Jacobian of all rows taken once."""
    with sdpa_kernel(SDPBackend.MATH):
        return sum(torch.einsum(contraction, J, J) for J in jacobians(net, x))


def two_jacobians(net: nn.Module, x: Tensor) -> Tensor:
    """The trace kernel in the tutorial's first form, k(x1, x2) by a Jacobian each, with x for both."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")  # it loops in fused attention
        pairs = zip(jacobians(net, x), jacobians(net, x), strict=True)
    return sum(torch.einsum("nap,map->nm", J1, J2) for J1, J2 in pairs)


def vector_products(net: nn.Module, x: Tensor) -> Tensor:
    """The trace kernel in the tutorial's second form: for every pair of points and every output a vjp and a jvp."""
    function, parameters = of_one_point(net)

    def of_a_pair(x1: Tensor, x2: Tensor) -> Tensor:
        output, pulled_back = vjp(lambda p: function(p, x1), parameters)

        def row(e: Tensor) -> Tensor:
            return jvp(lambda p: function(p, x2), (parameters,), pulled_back(e))[1]

        return vmap(row)(torch.eye(len(output), dtype=output.dtype, device=output.device))

    with sdpa_kernel(SDPBackend.MATH):
        kernels = vmap(vmap(of_a_pair, (None, 0)), (0, None))(x, x)
    return torch.einsum("nmaa->nm", kernels)


WAYS = {JACOBIAN: one_jacobian, TWO_JACOBIANS: two_jacobians, VECTOR_PRODUCTS: vector_products}
