"""The kernel block by block: how many rows and outputs are held at a time, and where their contraction goes.

A plan says what a row costs. As many rows as the budget allows stand in one block, because the backward passes of a
block are repeated for every other block. What one output's backward pass gives is contracted before the next pass.
Several outputs go together, as many as fit in a working set, where that saves work: a block that has them all keeps
what it has for the other blocks, and the patches of a convolution are copied once for all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kontrast.kernels.contraction import Dense, Outer, Piece, add_block
from kontrast.kernels.planning import Kind, Question
from kontrast.kernels.tangents import Pieces, Plan
from kontrast.memory import budget_bytes, rows_that_fit

# Bytes for the backward passes of several outputs at once, and numbers of gradients that are formed at once.
WORKING_SET = {"cpu": 2**29, "cuda": 2**33}
NUMBERS = {"cpu": 2**25, "cuda": 2**30}
# Multiplications of a pass over rows so few that one backward pass for all outputs saves more than it takes to map it.
FEW = {"cpu": 2**24, "cuda": 2**37}
SMALL = 2**12  # numbers of a parameter whose gradients are multiplied together with those of others
SCRATCH = {"cpu": 0.2}  # of a budget: what torch's own operations take for a moment, and memory in pieces
TILES = {"cpu": 2**20, "cuda": 2**28}  # bytes of the tiles in `add_block`: three of them


@dataclass(frozen=True)
class Division:
    """How much is held at a time."""

    rows: int  # of a block
    directions: int  # whose backward passes are contracted together
    numbers: int  # of gradients that are formed in one go
    at_once: bool = False  # one backward pass for all directions

    def n_blocks(self, question: Question) -> int:
        """Of the kernel, or on and above the diagonal of a symmetric one."""
        down, across = (-(-rows // self.rows) for rows in (question.n, question.m))
        return down * (down + 1) // 2 if question.symmetric else down * across


def divide(
    plans: tuple[Plan, Plan], question: Question, n_directions: int, memory: float | None, *, n_kernels: int = 1
) -> Division:
    """The largest blocks that the budget allows; refuses one too small for a row beside another.

    Of several such kernels that are computed side by side, each has its own blocks.
    """
    device, n_rows = plans[0].network.like.device, max(question.n, question.m)
    size = plans[0].network.like.element_size()
    budget = int((1 - SCRATCH.get(device.type, 0)) * budget_bytes(memory, device))
    costs = [plan.costs for plan in plans]
    at_once = 1 if question.kind is Kind.TRACE else n_directions
    streamed = n_kernels * max(cost.streamed for cost in costs)
    per_row = at_once * streamed + n_kernels * max(
        cost.kept + n_directions * cost.collected + cost.at_work + cost.in_products for cost in costs
    )
    cells = 1 if question.kind is Kind.TRACE else plans[0].n_outputs ** 2
    least_tile = n_kernels * 3 * size * cells * costs[0].positions * costs[1].positions
    # Gradients on both sides, and their parts in half precision.
    numbers = min(NUMBERS.get(device.type, 2**26), budget // (16 * size)) if any(c.in_products for c in costs) else 0
    fixed = 4 * size * numbers + min(TILES.get(device.type, 2**24), budget // 8)
    alone = question.symmetric or question.kind is Kind.DIAGONAL
    if alone and n_rows * per_row + fixed <= budget:
        rows, blocks = n_rows, 1
    else:
        blocks = 1 if question.kind is Kind.DIAGONAL else 2
        needed = blocks * per_row + least_tile
        rows = rows_that_fit(needed, n_rows, memory=memory, device=device, what="tangents")
        rows = max(1, min(rows, (budget - fixed) // (blocks * per_row)))
    if question.kind is Kind.DIAGONAL:  # rows that never meet: no more than is fast
        rows = max(1, min(rows, WORKING_SET.get(device.type, 2**28) // per_row))
    elif question.kind is Kind.TRACE and (blocks > 1 or any(cost.copied > cost.streamed for cost in costs)):
        spare = min(budget - fixed - blocks * rows * per_row, WORKING_SET.get(device.type, 2**28))
        at_once += max(0, spare // max(1, blocks * rows * streamed))
    if blocks == 1 and rows * max(cost.multiplications for cost in costs) <= FEW.get(device.type, 0):
        kept = rows * n_kernels * max(cost.kept + cost.in_products for cost in costs)
        each = rows * n_kernels * max(cost.collected + cost.streamed + cost.at_work for cost in costs)
        room = min(budget - fixed - kept, WORKING_SET.get(device.type, 2**28))
        if n_directions * each <= room:
            return Division(rows, n_directions, max(numbers, 1), at_once=True)
    return Division(rows, min(at_once, n_directions), max(numbers, 1))


def fill(
    plans: tuple[Plan, Plan],
    x: Tensor,
    y: Tensor | None,
    question: Question,
    memory: float | None,
    directions: Tensor | None = None,
) -> dict[str, Tensor]:
    """The kernels by parameter, or their sum under the name ""; the full kernel as (n, c, m, c).

    `directions` (q, c) replace the outputs in the trace, where they need a backward pass each.
    """
    plan, c = plans[0], plans[0].n_outputs
    like, n, m = plan.network.like.detach(), question.n, question.m
    shape = {Kind.FULL: (n, c, m, c), Kind.TRACE: (n, m), Kind.DIAGONAL: (n, c, c)}[question.kind]
    names = plan.network.selected if question.components else ("",)
    results = {name: like.new_zeros(shape) for name in names}
    outputs = torch.eye(c, dtype=like.dtype, device=like.device) if directions is None else directions.to(like)
    division = divide(plans, question, len(outputs), memory)
    with torch.no_grad():
        if question.kind is Kind.DIAGONAL:
            for i in row_slices(n, division.rows):
                for pieces in _Block(plans[0], x[i], outputs, division).pieces():
                    _add_diagonal(pieces, results, i)
            return results
        targets = {name: partial(_at, result) for name, result in results.items()}
        for i, j, block in each_block(plans, x, y, question, outputs, division, targets):
            if question.symmetric and i != j:
                for name, result in results.items():
                    _at(result, j, i).copy_(_transposed(block[name]))
    return results


def each_block(
    plans: tuple[Plan, Plan],
    x: Tensor,
    y: Tensor | None,
    question: Question,
    outputs: Tensor,
    division: Division,
    targets: Mapping[str, Callable[[slice, slice], Tensor]],
) -> Iterator[tuple[slice, slice, dict[str, Tensor]]]:
    """Block (i, j) after block of the kernels, of symmetric ones those on and above the diagonal, added to `targets`.

    Without gradients: call it under `torch.no_grad()`.
    """
    for i in row_slices(question.n, division.rows):
        at_x = _Block(plans[0], x[i], outputs, division)
        for j in row_slices(question.m, division.rows):
            if question.symmetric and j.start < i.start:
                continue
            same = question.symmetric and i == j
            at_y = at_x if same else _Block(plans[1], x[j] if y is None else y[j], outputs, division)
            block = {name: target(i, j) for name, target in targets.items()}
            _add(at_x, at_y, block, question)
            if same:
                for part in block.values():
                    _mirror(part)
            yield i, j, block


class _Block:
    """What the passes over a block of rows give, chunk by chunk of directions; kept if it is one chunk."""

    def __init__(self, plan: Plan, rows: Tensor, directions: Tensor, division: Division) -> None:
        self.begun, self.division = plan.start(rows, len(directions), at_once=division.at_once), division
        self.chunks = torch.split(directions, division.directions)
        self._kept: list[Pieces] | None = None

    def pieces(self) -> Iterator[Pieces]:
        """In the same order and of the same names for all blocks."""
        if self._kept is not None:
            yield from self._kept
            return
        kept = [self.begun.once()]
        yield kept[0]
        for chunk in self.chunks:
            streamed = self.begun.streamed(chunk)
            if len(self.chunks) == 1:
                kept.append(streamed)
            yield streamed
            del streamed
        kept.append(self.begun.collected())
        yield kept[-1]
        if len(self.chunks) == 1:
            self._kept = kept


def _add(at_x: _Block, at_y: _Block, out: dict[str, Tensor], question: Question) -> None:
    same, full = at_x is at_y, question.kind is Kind.FULL
    every = ((pieces, pieces) for pieces in at_x.pieces()) if same else zip(at_x.pieces(), at_y.pieces(), strict=True)
    for left, right in every:
        if out.keys() == {""}:
            mine = gathered(left)
            left, right = mine, mine if right is left else gathered(right)
        for names, piece in left.items():
            for target in _targets(names, out):
                numbers = at_x.division.numbers
                add_block(piece, right[names], target, full=full, symmetric=same, numbers=numbers)


def gathered(pieces: Pieces) -> Pieces:
    """The same kernel in fewer products: the gradients of small parameters side by side."""
    small = {n: p for n, p in pieces.items() if isinstance(p, Dense) and p.gradients.shape[2] <= SMALL}
    if len(small) < 2:
        return pieces
    together = Dense(torch.cat([piece.gradients for piece in small.values()], 2))
    large = {names: piece for names, piece in pieces.items() if names not in small}
    return large | {tuple(name for names in small for name in names): together}


def _add_diagonal(pieces: Pieces, results: dict[str, Tensor], i: slice) -> None:
    for names, piece in pieces.items():
        for target in _targets(names, results):
            parts: Iterable[Piece] = _slices(piece) if isinstance(piece, Outer) else [piece]
            for part in parts:
                part.add_diagonal(target[i])


def _slices(piece: Outer) -> Iterator[Piece]:
    numbers = NUMBERS["cpu"]
    return piece.slices(piece.cut(numbers, together=True), numbers)


def _targets(names: tuple[str, ...], results: dict[str, Tensor]) -> list[Tensor]:
    return [result for name, result in results.items() if name in ("", *names)]


def row_slices(n: int, size: int) -> list[slice]:
    """The rows 0 … n − 1, at most `size` at a time."""
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def _at(result: Tensor, i: slice, j: slice) -> Tensor:
    """The block of rows i of x and j of y, in (n, m) or (n, c, m, c)."""
    return result[i, j] if result.ndim == 2 else result[i, :, j]


def _mirror(block: Tensor) -> None:
    """Copy the upper triangle of a symmetric block to the lower."""
    for strip, other in itertools.product(row_slices(len(block), STRIP), repeat=2):
        if strip.start < other.start:
            _at(block, other, strip).copy_(_transposed(_at(block, strip, other)))
        elif strip == other:
            tile = _at(block, strip, strip)
            matrix = tile if tile.ndim == 2 else tile.flatten(2).flatten(0, 1)
            tile.copy_((matrix.triu() + matrix.triu(1).mT).view(tile.shape))


STRIP = 1024


def _transposed(block: Tensor) -> Tensor:
    return block.mT if block.ndim == 2 else block.permute(2, 3, 0, 1)
