"""Sketches of tangent kernels: gradients are formed slice by slice, projected, and forgotten."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from kontrast.checks import require_choice, require_whole
from kontrast.errors import InputError
from kontrast.kernels.blocks import Division, divide, row_slices
from kontrast.kernels.contraction import Dense, Gram, Outer, Piece
from kontrast.kernels.empirical import by_a_plan, filled, plans_to_try, prepared
from kontrast.kernels.network import Network, require_finite_parameters, undisturbed
from kontrast.kernels.planning import Kind, Question
from kontrast.kernels.projections import MOST_BUCKETS, MOST_SEED, CountSketch, random_directions, rotated
from kontrast.kernels.sketches import GROUPS, Drawn, NTKSketch, Witnesses
from kontrast.kernels.tangents import Plan
from kontrast.nets import Select
from kontrast.progress import Advance, progress_bar

OUTPUTS = ("all", "sum")
DIM_PER_DIRECTION = 128  # of a module with many outputs, so many numbers stand for each direction
# Rows between which kernels are exact: for summed outputs so many if there are; else at most, and one of so many.
WITNESSES, MOST_WITNESSES, ONE_OF = 32, 64, 8


def empirical_ntk_sketch(
    module: nn.Module,
    x: Tensor,
    dim: int = 4096,
    *,
    seed: int = 0,
    outputs: Literal["all", "sum"] = "all",
    parameters: Mapping[str, Tensor] | None = None,
    only: Iterable[str] | None = None,
    output: Select | None = None,
    memory: float | None = None,
    progress: bool | Advance = False,
) -> NTKSketch:
    r"""`empirical_ntk_trace` from a random projection of every row's gradients to `dim` numbers, with error bars.

    For models and data whose kernel takes too long: the cost is that of the backward passes, not of n² products of
    gradients, and what is kept is (n, dim). Entries are known to about 1/√dim of the rows' lengths, nearly parallel
    gradients far better. Of more outputs than 32, or dim / 128 if that is more, random directions take the place.

    Args:
        module: any module that has a tangent kernel; it is not changed.
        x: rows (n, …).
        dim: numbers per row, a multiple of 32. The error falls like 1/√dim.
        seed: of the projection. To compare two sketches, take the same one.
        outputs: "all" for the trace kernel; "sum" for the gradients of the summed outputs, one backward pass per row,
            whose kernel stands for the trace as long as the outputs' gradients are nearly orthogonal. How far it is off
            is measured on 32 rows and added to every interval.
        parameters: evaluate there, as in `empirical_ntk`.
        only: restrict the kernel to these parameters, as in `empirical_ntk`.
        output: which of the module's outputs, as in `empirical_ntk`.
        memory: bytes to work in besides the sketch; by default half of what is free.
        progress: show a bar, or a function of the backward passes done and those in all.
    """
    dim = require_whole("dim", dim, least=2 * GROUPS, most=MOST_BUCKETS)
    if dim % GROUPS:
        near = GROUPS * round(dim / GROUPS)
        raise InputError(f"dim must be a multiple of {GROUPS}, got {dim}; the nearest is {near}")
    seed = require_whole("seed", seed, least=0, most=MOST_SEED)
    require_choice("outputs", outputs, OUTPUTS)
    with undisturbed(module):
        network, x, _ = prepared(module, x, None, parameters=parameters, only=only, output=output)
        require_finite_parameters(network, "the module holds" if parameters is None else "parameters hold")
        question = Question(Kind.TRACE, len(x), len(x), symmetric=True, gradients=True)
        with progress_bar("sketch", progress) as advance, torch.no_grad():
            maker = _Maker(x, dim, seed, outputs, memory, advance)
            sketch = by_a_plan(
                lambda plans: maker.make(plans[0][0], question), plans_to_try(network, x, None, question)
            )
        if not sketch.squares.isfinite().all():
            raise InputError(
                "gradients overflow, so there is no kernel; the parameters are finite, but they are far too large or "
                "the module returns NaN or infinite outputs: look at both, or compute in float64"
            )
        return replace(sketch, witnesses=_witnesses(network, x, sketch.drawn, memory))


def _witnesses(network: Network, x: Tensor, drawn: Drawn, memory: float | None) -> Witnesses | None:
    """Kernels between rows from all over; None where they would cost more than they tell."""
    summed = drawn.outputs == "sum"
    n = min(len(x), WITNESSES) if summed else min(len(x) // ONE_OF, MOST_WITNESSES)
    if n < WITNESSES and not summed:
        return None
    rows = torch.linspace(0, len(x) - 1, n).round().long().to(x.device)
    few = x[rows]
    plain = Question(Kind.TRACE, len(few), len(few), symmetric=True)
    c = next(plans_to_try(network, few, None, plain))[0].n_outputs
    if not summed:
        if c > _n_directions(drawn.dim):
            return None  # the sketch itself knows their trace from a few directions only
        trace = filled(network, few, None, plain, memory)[""]
        return Witnesses(rows, trace, trace)
    directions = random_directions(c, GROUPS, drawn.seed) / math.sqrt(GROUPS) if c > GROUPS else None
    trace = filled(network, few, None, plain, memory, directions)[""]
    of_sum = filled(network, few, None, replace(plain, gradients=True), memory, torch.ones(1, c))[""]
    return Witnesses(rows, of_sum, trace)


def _n_directions(dim: int) -> int:
    """In the space of outputs, for a sketch of so many numbers."""
    return GROUPS * max(1, dim // (GROUPS * DIM_PER_DIRECTION))


@dataclass
class _Maker:
    """How a sketch is made once there is a plan."""

    x: Tensor
    dim: int
    seed: int
    outputs: str
    memory: float | None
    advance: Advance

    def make(self, plan: Plan, question: Question) -> NTKSketch:
        network, n = plan.network, len(self.x)
        like = network.like.detach()
        directions = self._directions(plan.n_outputs).to(like)
        q = len(directions)
        apart = self.outputs == "all" and q < plan.n_outputs  # each direction in the numbers of its group
        n_numbers = q * sum(network.parameters[name].numel() for name in network.selected)
        sketch = CountSketch(self.dim // GROUPS if apart else self.dim, n_numbers, seed=self.seed, like=like)
        features, squares = like.new_zeros(n, self.dim), like.new_zeros(n, q)
        division = divide((plan, plan), question, q, self.memory)
        parts = row_slices(n, division.rows)
        for done, rows in enumerate(parts):
            taken = _Rows(network, sketch, features[rows], squares[rows], division, apart)
            begun = plan.start(self.x[rows], q, at_once=division.at_once)
            first = 0
            for some in torch.split(directions, division.directions):
                for names, piece in begun.streamed(some).items():
                    taken.add(names[0], piece, first)
                first += len(some)
                self.advance(done * q + first, len(parts) * q)
            for names, piece in begun.collected().items():
                taken.add(names[0], piece, 0)
        groups = squares.view(n, GROUPS, -1).mean(2) if apart else squares.sum(1, keepdim=True).expand(n, GROUPS)
        # The kernel is the mean of the directions' kernels; or each group stands for all directions alike.
        features = features / math.sqrt(q) if apart else rotated(features, self.seed)
        drawn = Drawn(self.seed, self.dim, self.outputs, n_numbers, _sums(self.x))
        return NTKSketch(features.view(n, GROUPS, -1), groups, drawn)

    def _directions(self, n_outputs: int) -> Tensor:
        if self.outputs == "sum":
            return torch.ones(1, n_outputs)
        q = _n_directions(self.dim)
        return torch.eye(n_outputs) if n_outputs <= q else random_directions(n_outputs, q, self.seed)


def _sums(x: Tensor) -> tuple[float, ...]:
    """A number for every row that tells it from others."""
    flat = x.flatten(1)
    weights = torch.randn(flat.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(x.device)
    return tuple(total for rows in torch.split(flat, 256) for total in (rows.double() @ weights).tolist())


@dataclass
class _Rows:
    """The sketches of a block of rows, to which the pieces of one parameter after another are added."""

    network: Network
    sketch: CountSketch
    features: Tensor  # (n, dim)
    squares: Tensor  # (n, directions)
    division: Division
    apart: bool

    def add(self, name: str, piece: Piece | Outer, first: int) -> None:
        """The gradients of a parameter for the directions from `first`."""
        if isinstance(piece, Outer):
            numbers = self.division.numbers
            start = 0
            cut = piece.cut(numbers, together=True)
            for part in piece.slices(cut, numbers):
                self._add_gradients(name, part, first, start)
                start += part.gradients.shape[2]
        elif isinstance(piece, Dense):
            self._add_gradients(name, piece, first, 0)
        else:
            assert isinstance(piece, Gram)
            self._add_embedding(name, piece)

    def _add_gradients(self, name: str, part: Dense, first: int, start: int) -> None:
        for k, gradients in enumerate(part.gradients.unbind(1), start=first):
            self.squares[:, k] += torch.linalg.vector_norm(gradients, dim=1).square()
            place = self._place(name, k) + start
            self.sketch.add(gradients, place, self._buckets(k), numbers=self.division.numbers)

    def _add_embedding(self, name: str, piece: Gram) -> None:
        """Signals at the rows of the weight that the tokens name; a token that comes twice is added twice."""
        width = self.network.parameters[name].shape[1]
        for k, at in itertools.product(range(piece.signals.shape[1]), self._strips(piece)):
            some = replace(piece.rows(at.start, at.stop), signals=piece.signals[at, k : k + 1])
            self.squares[at, k : k + 1] += _diagonal(some)
            places = piece.features[at, :, None] * width + torch.arange(width, device=piece.features.device)
            values = some.signals.flatten(1)
            self.sketch.scatter(values, places.flatten(1) + self._place(name, k), self._buckets(k)[at])

    def _strips(self, piece: Gram) -> list[slice]:
        per_row = piece.positions * max(piece.positions, piece.signals.shape[-1])
        return row_slices(len(piece.signals), max(1, self.division.numbers // per_row))

    def _place(self, name: str, k: int) -> int:
        """Where the gradient of output k for this parameter begins, among all of them one after another."""
        before = 0
        sizes = {other: self.network.parameters[other].numel() for other in self.network.selected}
        for other, size in sizes.items():
            if other == name:
                break
            before += size
        return k * sum(sizes.values()) + before

    def _buckets(self, k: int) -> Tensor:
        if not self.apart:
            return self.features
        group = k * GROUPS // self.squares.shape[1]
        return self.features[:, group * self.sketch.n_buckets :][:, : self.sketch.n_buckets]


def _diagonal(piece: Gram) -> Tensor:
    out = piece.signals.new_zeros(len(piece.signals), 1, 1)
    piece.add_diagonal(out)
    return out[:, 0]
