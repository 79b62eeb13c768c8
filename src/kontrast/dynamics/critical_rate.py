"""The learning rate at which descent under the first kernel becomes unstable: the natural unit of rates."""

from __future__ import annotations

import torch
from torch import Tensor

from kontrast.errors import InputError
from kontrast.linalg import top_eigenpairs
from kontrast.nets import Parameters, Stack

# Of the residual. An eigenvalue's error goes with its square, but a residual of 0.1 may be that of the second
# eigenvalue: one network in 13 was then off by up to 20 %. At 0.01 none is, for a third more products.
TOLERANCE = 0.01


def critical_rate(stack: Stack, x: Tensor, *, unit_length: bool = False) -> float:
    r"""2/λ_max, λ_max the largest eigenvalue of the first kernel over a batch, divided by its number n of points.

    Descent of half the mean squared error of the linearised network f_0 + J Δ has the curvature $J^\top J / n$, whose
    eigenvalues are those of K/n, K = J J^T; it is stable below 2/λ_max. Other losses curve by a factor of their own,
    so that they become unstable at some multiple of it. `unit_length=True` takes the kernel of outputs as cosines see
    them, K over the mean squared length of an output.

    Args:
        stack: the network at one start.
        x: a batch, (1, n, …).
        unit_length: whether the loss does not see the length of outputs.
    """
    shapes = {name: p.shape[2:] for name, p in stack.origin.items()}
    sizes = [shape.numel() for shape in shapes.values()]
    with torch.no_grad():
        outputs = stack.outputs(stack.origin, x)[0, 0]
    n = len(outputs)

    def product(block: Tensor) -> Tensor:
        """J^T J Δ / n of steps Δ in the columns."""
        parts = torch.split(block.mT, sizes, dim=1)
        steps: Parameters = {
            name: part.reshape(1, len(part), *shape).requires_grad_()
            for (name, shape), part in zip(shapes.items(), parts, strict=True)
        }
        with torch.enable_grad():
            moved = stack.twin_outputs(steps, x)[0] - outputs  # (b, n, z)
        pulled = torch.autograd.grad(
            (moved * (moved.detach() / n)).sum(), list(steps.values()), allow_unused=True, materialize_grads=True
        )
        return torch.cat([part.flatten(2)[0] for part in pulled], dim=1).mT

    top = top_eigenpairs(product, 1, n=sum(sizes), dtype=outputs.dtype, device=outputs.device, tolerance=TOLERANCE)
    scale = float(outputs.square().sum(1).mean()) if unit_length else 1.0
    largest = float(top.values[0])
    if not largest > 0:
        raise InputError(
            "the first kernel is zero: no parameter moves the outputs of these samples; look at the first weights, or "
            "for a detach() in the network"
        )
    return 2 * scale / largest
