"""The learning rate at which descent on the linearised network becomes unstable: the natural unit of rates."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad, jvp, vmap

from kontrast.dynamics.many_runs import BatchLoss
from kontrast.linalg import top_eigenpairs
from kontrast.nets import Parameters, Stack

TOLERANCE = 1e-2  # of the eigenvalue: the unit of an axis that spans decades


def critical_rate(stack: Stack, loss: BatchLoss, x: Tensor, labels: Tensor | None = None) -> float:
    r"""2/λ_max, λ_max the largest eigenvalue of the first kernel as the loss sees it.

    The linearised network descends a loss of outputs f = f_0 + J Δ, whose curvature in Δ is $J^\top H J$ with H that
    of the loss in the outputs. Its eigenvalues are those of K H, K = J J^T the tangent kernel of the batch; descent is
    stable below 2/λ_max. For half the mean squared error over n points λ_max is that of K/n. Where the loss curves
    nowhere upwards, H is taken to be 1/n.

    Args:
        stack: the network at one start.
        loss: of a batch.
        x: a batch, (1, 2n, …).
        labels: (1, n), for a loss that takes them.
    """
    origin = stack.origin
    with torch.no_grad():
        outputs = stack.twin_outputs({name: torch.zeros_like(p) for name, p in origin.items()}, x)[0, 0]
    own_labels = None if labels is None else labels[0]

    def curvature(direction: Tensor) -> Tensor:
        slope = grad(lambda f: loss(f, own_labels))
        curved: Tensor = jvp(slope, (outputs,), (direction,))[1]
        return curved

    largest = _largest(stack, x, outputs, vmap(curvature))
    if not largest > 0:
        largest = _largest(stack, x, outputs, lambda directions: directions / len(outputs))
    return 2 / largest


def _largest(stack: Stack, x: Tensor, outputs: Tensor, curvature: vmap) -> float:
    """The largest eigenvalue of J^T H J, by products with blocks of steps."""
    shapes = {name: p.shape[2:] for name, p in stack.origin.items()}
    sizes = [shape.numel() for shape in shapes.values()]

    def product(block: Tensor) -> Tensor:
        parts = torch.split(block.mT, sizes, dim=1)
        steps: Parameters = {
            name: part.reshape(1, len(part), *shape).requires_grad_()
            for (name, shape), part in zip(shapes.items(), parts, strict=True)
        }
        with torch.enable_grad():
            moved = stack.twin_outputs(steps, x)[0] - outputs  # J Δ, (b, 2n, z)
        pulled = torch.autograd.grad((moved * curvature(moved.detach())).sum(), list(steps.values()))
        return torch.cat([part.flatten(2)[0] for part in pulled], dim=1).mT

    return float(
        top_eigenpairs(
            product, 1, n=sum(sizes), dtype=outputs.dtype, device=outputs.device, tolerance=TOLERANCE
        ).values[0]
    )
