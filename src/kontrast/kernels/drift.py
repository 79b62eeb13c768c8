"""How far the tangent kernel of a module moved between two points, without storing either kernel."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from kontrast.errors import InputError
from kontrast.kernels.blocks import Division, divide, each_block
from kontrast.kernels.empirical import by_a_plan, plans_to_try, prepared
from kontrast.kernels.network import require_finite_parameters, undisturbed
from kontrast.kernels.planning import Kind, Question
from kontrast.kernels.tangents import Plan
from kontrast.linalg import KernelComparison, KernelDrift
from kontrast.memory import budget_bytes
from kontrast.nets import Select, require_state
from kontrast.progress import Advance, progress_bar


def ntk_drift(
    module: nn.Module,
    start: Mapping[str, Tensor],
    end: Mapping[str, Tensor],
    x: Tensor,
    y: Tensor | None = None,
    *,
    only: Iterable[str] | None = None,
    output: Select | None = None,
    memory: float | None = None,
    progress: bool | Advance = False,
) -> KernelDrift:
    """How far `empirical_ntk_trace` at `end` is from the one at `start`: what `kernel_drift` says of the two.

    Block after block of both kernels is computed and compared, in float64 sums, so n is limited by time, not by
    memory.

    Args:
        module: any module that has a tangent kernel; it is not changed.
        start: where training began: a `state_dict()`, or the parameters alone of a module without buffers.
        end: where it ended.
        x: rows (n, …).
        y: rows (m, …) for the kernels between x and y, or None.
        only: restrict the kernels to these parameters, as in `empirical_ntk`.
        output: which of the module's outputs, as in `empirical_ntk`.
        memory: bytes to work in; by default half of what is free.
        progress: show a bar, or a function of the blocks done and the blocks in all.
    """
    require_state("start", start)
    require_state("end", end)
    with undisturbed(module):
        networks = []
        for name, point in (("start", start), ("end", end)):
            network, rows, others = prepared(module, x, y, parameters=point, only=only, output=output)
            require_finite_parameters(network, f"{name} holds")
            networks.append(network)
        question = Question(Kind.TRACE, len(rows), len(rows if others is None else others), symmetric=others is None)
        with progress_bar("drift", progress) as advance, torch.no_grad():
            compared = by_a_plan(
                lambda plans: _compared(plans, rows, others, question, memory, advance),
                *(plans_to_try(network, rows, others, question) for network in networks),
            )
    if not math.isfinite(compared.moved + compared.size + compared.first_size):
        raise InputError(
            "a kernel overflows, so it has no drift; the parameters are finite, but they are far too large or the "
            "module returns NaN or infinite outputs: look at both, or compute in float64"
        )
    return compared.drift()


def _compared(
    plans: tuple[tuple[Plan, Plan], ...],
    x: Tensor,
    y: Tensor | None,
    question: Question,
    memory: float | None,
    advance: Advance,
) -> KernelComparison:
    like, c = plans[0][0].network.like, plans[0][0].n_outputs
    outputs = torch.eye(c, dtype=like.dtype, device=like.device)
    division = _of_both(plans, question, c, memory)
    target = partial(_empty, like.detach())
    both = [each_block(pair, x, y, question, outputs, division, {"": target}) for pair in plans]
    seen, n_blocks = KernelComparison(), division.n_blocks(question)
    for done, ((i, j, first), (_, _, last)) in enumerate(zip(*both, strict=True), start=1):
        for strip in range(0, len(first[""]), STRIP):
            rows = slice(strip, strip + STRIP)
            twice = question.symmetric and i != j
            seen.add(last[""][rows].double(), first[""][rows].double(), times=1 + twice)
        advance(done, n_blocks)
    return seen


STRIP = 256  # rows that are compared at a time, in float64


def _of_both(plans: tuple[tuple[Plan, Plan], ...], question: Question, c: int, memory: float | None) -> Division:
    """Blocks of both kernels in one budget."""
    like = plans[0][0].network.like
    divisions = [divide(pair, question, c, memory, n_kernels=len(plans)) for pair in plans]
    rows, directions = (min(getattr(d, name) for d in divisions) for name in ("rows", "directions"))
    # A block of either kernel, and what it is compared in, in a quarter of the budget.
    most = max(1, math.isqrt(budget_bytes(memory, like.device) // (4 * 2 * like.element_size())))
    if most < rows:
        return replace(divisions[0], rows=most, directions=directions, at_once=False)
    return replace(divisions[0], rows=rows, directions=directions, at_once=all(d.at_once for d in divisions))


def _empty(like: Tensor, i: slice, j: slice) -> Tensor:
    return like.new_zeros(i.stop - i.start, j.stop - j.start)
