"""Trace kernels of many outputs from a few random directions in the space of outputs, with their standard errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor, nn

from kontrast.checks import require_whole
from kontrast.kernels.empirical import NTKOptions, filled, plans_to_try
from kontrast.kernels.network import check_rows, network_of, require_finite_parameters, undisturbed
from kontrast.kernels.planning import Kind, Question
from kontrast.kernels.projections import MOST_SEED, random_directions

GROUPS = 8  # of directions: independent estimates, whose spread says how good their mean is


@dataclass(frozen=True, eq=False)
class KernelEstimate:
    """An estimate of a kernel and the standard error of each of its entries."""

    value: Tensor
    error: Tensor


def empirical_ntk_trace_estimate(
    module: nn.Module,
    x: Tensor,
    y: Tensor | None = None,
    *,
    directions: int = 32,
    seed: int = 0,
    **options: Unpack[NTKOptions],
) -> KernelEstimate:
    r"""`empirical_ntk_trace` of a module with many outputs, from a backward pass for each of a few directions.

    For orthogonal random directions of length √c, $v_k^\top K(x, y)\,v_k$ is unbiased for the sum of the diagonal of
    the c × c block K(x, y). The standard errors come from the spread of eight groups of directions. With as many
    directions as outputs the kernel is exact.

    Args:
        module: any module with outputs (n, c).
        x: rows (n, …).
        y: rows (m, …), or None for the symmetric kernel.
        directions: how many backward passes per block of rows; at least 16.
        seed: of the directions: the same seed gives the same estimate.
        **options: as in `empirical_ntk`.
    """
    directions = require_whole("directions", directions, least=2 * GROUPS)
    seed = require_whole("seed", seed, least=0, most=MOST_SEED)
    memory = options.get("memory")
    with undisturbed(module):
        which = options.get("parameters"), options.get("only"), options.get("output")
        network = network_of(module, *which)
        require_finite_parameters(network, "the module holds" if which[0] is None else "parameters hold")
        x, y = check_rows("x", x, network), None if y is None else check_rows("y", y, network)
        question = Question(Kind.TRACE, len(x), len(x if y is None else y), symmetric=y is None)
        c = next(plans_to_try(network, x, y, question))[0].n_outputs
        if directions >= c:
            exact = filled(network, x, y, question, memory)[""]
            return KernelEstimate(exact, torch.zeros_like(exact))
        groups = random_directions(c, directions, seed).tensor_split(GROUPS)
        mean, squares = (network.like.new_zeros(question.n, question.m, requires_grad=False) for _ in range(2))
        for done, group in enumerate(groups):
            found = filled(network, x, y, question, memory, directions=group / math.sqrt(len(group)))[""]
            moved = found - mean
            mean += moved / (done + 1)
            squares += moved.mul_(found.sub_(mean))
        # Of c orthogonal directions, these q leave out the share 1 − q / c.
        variance = squares * ((1 - directions / c) / (GROUPS * (GROUPS - 1)))
        return KernelEstimate(mean, variance.sqrt_())


def empirical_ntk_along(
    module: nn.Module, x: Tensor, groups: Sequence[Tensor], **options: Unpack[NTKOptions]
) -> list[Tensor]:
    r"""Estimates of the trace kernel from groups of directions $v_k$ in the space of outputs, (n, n) each.

    Parameters that need a backward pass for each output enter by $\sum_k v_k^\top K(x, x')\,v_k$ over the group; the
    last linear layers, which need none, with all outputs. So directions must have $E\sum_k v_k v_k^\top = I$.

    Args:
        module: any module with outputs (n, c).
        x: rows (n, …).
        groups: directions, (q, c) each; all groups have the plan of the first in common.
        **options: as in `empirical_ntk`.
    """
    memory = options.get("memory")
    with undisturbed(module):
        network = network_of(module, options.get("parameters"), options.get("only"), options.get("output"))
        x = check_rows("x", x, network)
        question = Question(Kind.TRACE, len(x), len(x), symmetric=True)
        return [filled(network, x, None, question, memory, directions=group.to(network.like))[""] for group in groups]
