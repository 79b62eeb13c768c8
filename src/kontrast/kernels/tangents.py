"""The tangents of any module's rows, parameter by parameter, in the smallest form that the wanted kernel needs.

A plan is made once from two rows: where the rows are in every tensor, which parameters can go layer by layer, and which
form is cheapest for each; plain automatic differentiation checks that the plan is right. It is then carried out on
blocks of rows. Parameters that the plan cannot explain go through per-row Jacobians, with the same result.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from kontrast.errors import InputError
from kontrast.kernels.contraction import Channels, Dense, Gram, Output, Piece
from kontrast.kernels.recording import BroadcastUse, LookupUse, OuterUse, Record, Rows, Use, record
from kontrast.nets import Parameters, PureFunction

# How far two evaluations of the same number may differ, relative to its scale.
ROUNDING = {torch.float64: 1e-8, torch.float32: 1e-3}
COARSE = 0.1  # for half precision
WITNESSES = 16  # rows for which a module must give the same outputs alone, in another order and again


class Kind(Enum):
    """Which numbers of the kernel are wanted."""

    FULL = "full"
    TRACE = "trace"
    DIAGONAL = "diagonal"


class Form(Enum):
    """How a parameter's tangents are kept."""

    GRAM = "features and signals"
    DENSE = "gradients"
    OUTPUT = "features of the last map"
    HIDDEN = "features and one signal, for the trace: the map before the last"
    CHANNELS = "gradients of the last map's features, the same for all outputs: the map before the last"


_SHORTCUTS = {Form.OUTPUT, Form.HIDDEN, Form.CHANNELS}  # valid if the net ends as it did for the planning rows
_WITH_BIAS = {Form.GRAM, Form.OUTPUT, Form.HIDDEN}  # a bias can be one more feature


@dataclass(frozen=True, eq=False)
class Network:
    """A module at a parameter point as a pure function, and the parameters whose tangents are wanted."""

    name: str
    function: PureFunction
    parameters: Parameters  # all of them, detached, with requires_grad
    selected: tuple[str, ...]

    def __call__(self, x: Tensor) -> Tensor:
        """f(x) at these parameters."""
        return self.function(self.parameters, x)

    @property
    def like(self) -> Tensor:
        """A tensor of the network's number type and device."""
        return next(iter(self.parameters.values()))


@dataclass(frozen=True)
class Question:
    """The kernel that is wanted, and between how many rows."""

    kind: Kind
    n: int
    m: int
    components: bool


@dataclass(frozen=True)
class Group:
    """A parameter, or a weight and the bias of the same maps, with its uses and its form."""

    names: tuple[str, ...]
    uses: tuple[int, ...]
    form: Form
    kept: int  # numbers kept per row
    at_work: int  # further numbers while these are computed
    positions: int = 1  # of a row in the products of a `Gram`


@dataclass(frozen=True, eq=False)
class Plan(ABC):
    """How the tangents of rows of one shape are computed."""

    network: Network
    n_outputs: int  # c

    @property
    @abstractmethod
    def bytes_kept(self) -> int:
        """Bytes per row between its computation and the contraction."""

    @property
    @abstractmethod
    def bytes_at_work(self) -> int:
        """Bytes per row while its tangents are computed."""

    @property
    def positions(self) -> int:
        """The most positions of one row that a contraction pairs with those of another."""
        return 1

    @abstractmethod
    def pieces(self, x: Tensor) -> dict[tuple[str, ...], Piece]:
        """The tangents of these rows, by the names of the parameters."""


@dataclass(frozen=True)
class Ends:
    """The use that makes the output, f = s(W h), and the one before it, h = φ(a), if the net ends this way."""

    output: int | None = None
    hidden: int | None = None


@dataclass(frozen=True, eq=False)
class RecordedPlan(Plan):
    """A plan from watching the forward pass of two rows; by default it goes through per-row Jacobians alone."""

    opaque: tuple[str, ...]
    vmapped: bool
    activations: int  # numbers per row
    signature: tuple[object, ...] = ()
    rows: tuple[Rows | None, ...] = ()  # for each use
    groups: tuple[Group, ...] = ()
    ends: Ends = Ends()

    @property
    def positions(self) -> int:
        """The most of any parameter that is contracted as `Gram`."""
        return max((group.positions for group in self.groups), default=1)

    @property
    def bytes_kept(self) -> int:
        """Features, signals and gradients in the chosen forms."""
        opaque = sum(self.network.parameters[name].numel() for name in self.opaque)
        numbers = sum(group.kept for group in self.groups) + self.n_outputs * opaque
        return numbers * self.network.like.element_size()

    @property
    def bytes_at_work(self) -> int:
        """Activations, their gradients, patches of convolutions."""
        numbers = 3 * self.activations + sum(group.at_work for group in self.groups)
        if self.opaque:
            numbers += 2 * self.n_outputs * self.activations
        return numbers * self.network.like.element_size()

    def pieces(self, x: Tensor) -> dict[tuple[str, ...], Piece]:
        """The pieces from one forward pass, and backward passes or per-row Jacobians."""
        pieces: dict[tuple[str, ...], Piece] = {}
        if self.groups or self._unused:
            seen = record(lambda: self.network(x), self.network.parameters)
            check_output(self.network, seen.output, x)
            if not self._holds_for(seen):
                raise UnplannedError
            pieces |= _pieces(self, seen)
        gradients = jacobians(self.network, self.opaque, x, vmapped=self.vmapped) if self.opaque else {}
        return pieces | {(name,): Dense(gradient) for name, gradient in gradients.items()}

    @property
    def _unused(self) -> list[str]:
        """Selected parameters that the planning rows did not use; they add nothing as long as no row uses them."""
        used = {name for group in self.groups for name in group.names} | set(self.opaque)
        return [name for name in self.network.selected if name not in used]

    def _holds_for(self, seen: Record) -> bool:
        """Whether these rows took the same branches as the planning rows, with the same parameters."""
        if seen.output.shape[1] != self.n_outputs or (self.groups and _signature(seen) != self.signature):
            return False
        if (seen.opaque & set(self.network.selected)) - set(self.opaque):
            return False
        shortcuts = any(group.form in _SHORTCUTS for group in self.groups)
        if shortcuts and _ends(seen, self.rows) != self.ends:
            return False
        return not _reached(self.network, self._unused, seen)


def plan_for(network: Network, x: Tensor, question: Question, *, name: str) -> RecordedPlan:
    """A plan for rows like those of `x`, (2, …)."""
    one, two = observe(network, x, name)
    signature, n_outputs, activations = _signature(two), two.output.shape[1], two.activations // 2
    rows = tuple(_rows_in(*pair) for pair in zip(one.values, two.values, strict=False))
    if _signature(one) != signature:
        return jacobian_plan(network, n_outputs, activations, x)
    uses = [i for i, use in enumerate(two.uses) if use.parameter in network.selected]
    opaque = one.opaque | two.opaque | {two.uses[i].parameter for i in uses if not _explained(two.uses[i], rows[i])}
    unseen = [name for name in network.selected if name not in opaque | {use.parameter for use in two.uses}]
    opaque = (opaque | set(_reached(network, unseen, two))) & set(network.selected)
    ends = _ends(two, rows)
    groups = tuple(_groups(network, two, rows, ends, opaque, question))
    in_order = tuple(name for name in network.selected if name in opaque)
    vmapped = bool(opaque) and _vmap_works(network, opaque, x)
    plan = RecordedPlan(network, n_outputs, in_order, vmapped, activations, signature, rows, groups, ends)
    return plan if _witness_agrees(plan, two) else jacobian_plan(network, n_outputs, activations, x)


def _reached(network: Network, names: Sequence[str], seen: Record) -> list[str]:
    """The parameters among these that the output depends on, even in ways that the recorder did not see."""
    if not names:
        return []
    wanted = [network.parameters[name] for name in names]
    ones = torch.ones_like(seen.output)
    gradients = torch.autograd.grad(seen.output, wanted, ones, retain_graph=True, allow_unused=True)
    return [name for name, gradient in zip(names, gradients, strict=True) if gradient is not None]


def observe(network: Network, x: Tensor, name: str) -> tuple[Record, Record]:
    """Recorded passes over the first row and over both rows."""
    return _observed(network, x[:1], name), _observed(network, x, name)


def _observed(network: Network, x: Tensor, name: str) -> Record:
    """One recorded pass."""
    with _told_of(network, x, name):
        seen = record(lambda: network(x), network.parameters, keep_values=True)
    check_output(network, seen.output, x)
    return seen


def _evaluated(network: Network, x: Tensor, name: str) -> Tensor:
    """One plain pass."""
    with _told_of(network, x, name):
        output = network(x)
    check_shape_of(network, output, x)
    return output


@contextmanager
def _told_of(network: Network, x: Tensor, name: str) -> Iterator[None]:
    """Turn errors of the module about its input into errors about `name`."""
    try:
        yield
    except InputError:
        raise
    except (RuntimeError, ValueError, IndexError) as error:
        hint = ""
        if not x.is_floating_point():
            hint = f"; {name} holds integers, so if its first layer needs floats pass {name}.to({network.like.dtype})"
        raise InputError(
            f"{network.name} cannot be evaluated on {name}, rows of shape {tuple(x.shape[1:])} and type {x.dtype}: "
            f"{str(error).splitlines()[0]}{hint}"
        ) from error


def check_shape_of(network: Network, output: Tensor, x: Tensor) -> None:
    """Refuse outputs that are not (n, c) real numbers."""
    if output.ndim != 2 or output.shape[0] != x.shape[0] or output.shape[1] == 0:
        fix = "add a last axis with [:, None]" if output.ndim == 1 else "flatten or pool all axes but the first"
        raise InputError(
            f"{network.name} must return (n, c), one row of c >= 1 outputs for each row of x, "
            f"got shape {tuple(output.shape)} for {x.shape[0]} rows; {fix}"
        )
    if output.is_complex():
        raise InputError(f"{network.name} returns complex numbers; return their real and imaginary parts as outputs")


def check_output(network: Network, output: Tensor, x: Tensor) -> None:
    """Refuse outputs that are not (n, c), and those that do not depend on the parameters."""
    check_shape_of(network, output, x)
    if not output.requires_grad:
        raise InputError(
            f"the output of {network.name} has no gradient with respect to its parameters; "
            "remove torch.no_grad() or detach() from its forward pass"
        )


def refuse_dependent_rows(network: Network, x: Tensor, name: str) -> None:
    """Refuse a module whose outputs for some rows of x depend on the other rows, or change from pass to pass."""
    few = x[torch.linspace(0, len(x) - 1, min(len(x), WITNESSES)).round().long().to(x.device)]
    half = (len(few) + 1) // 2
    with torch.no_grad():
        together = _evaluated(network, few, name)
        others = [_evaluated(network, few.flip(0), name).flip(0), _evaluated(network, few[:half], name)]
        if half < len(few):
            others.append(_evaluated(network, few[half:], name))
    rows = [together, together[:half], together[half:]]
    for alone, beside in zip(others, rows, strict=False):
        difference = (alone - beside).abs().max()
        if difference > tolerance(together) * together.abs().max():
            raise InputError(
                f"{network.name} gives a row of {name} another output when other rows are evaluated with it (they "
                f"differ by {float(difference):.1e}): its rows depend on each other or on chance (batch statistics, "
                "dropout), so there is no kernel between rows; make the forward pass deterministic and independent "
                "for each row"
            )


def tolerance(like: Tensor) -> float:
    """The rounding allowed between two evaluations in this number type."""
    return ROUNDING.get(like.dtype, COARSE)


def _signature(seen: Record) -> tuple[object, ...]:
    return tuple(use.signature() for use in seen.uses)


def _rows_in(one: Tensor, two: Tensor) -> Rows | None:
    """Where the rows are, from the same tensor of a pass over one row and of a pass over two."""
    if one.ndim != two.ndim:
        return None
    grown = [axis for axis, (a, b) in enumerate(zip(one.shape, two.shape, strict=True)) if a != b]
    if len(grown) != 1 or two.shape[grown[0]] != 2 * one.shape[grown[0]]:
        return None
    axis = grown[0]
    together = Rows(axis, one.shape[axis])
    apart = Rows(axis, one.shape[axis], together=False)
    if together.per_row == 1:
        return together
    distance = [(rows.split(two)[:1] - rows.split(one)).abs().sum() for rows in (together, apart)]
    return together if distance[0] <= distance[1] else apart


def _explained(use: Use, rows: Rows | None) -> bool:
    if rows is None:
        return False
    if isinstance(use, BroadcastUse):
        return use.aligned[rows.axis] == 1
    if isinstance(use, OuterUse) and use.convolution:
        return rows.axis == 0
    return rows.axis < len(use.output_shape) - 1


def jacobian_plan(network: Network, n_outputs: int, activations: int, x: Tensor) -> RecordedPlan:
    """The plan that uses automatic differentiation alone; `x` are two rows to try it on."""
    return RecordedPlan(network, n_outputs, network.selected, _vmap_works(network, network.selected, x), activations)


# --- which form for which parameter ---------------------------------------------------------------------------------


def _groups(
    network: Network, two: Record, rows: Sequence[Rows | None], ends: Ends, opaque: set[str], question: Question
) -> Iterator[Group]:
    by_name: dict[str, list[int]] = {}
    for index, use in enumerate(two.uses):
        if use.parameter in network.selected and use.parameter not in opaque:
            by_name.setdefault(use.parameter, []).append(index)
    forms = {name: _form(two, rows, uses, ends, question) for name, uses in by_name.items()}
    merged: set[str] = set()
    if not question.components:  # a weight and its bias share the product of signals, the larger of the two
        for name, uses in by_name.items():
            twin = _twin(two, uses)
            if twin in by_name and forms[twin].form in _WITH_BIAS:
                edges, others = ([two.uses[i].edge for i in part] for part in (uses, by_name[twin]))
                if edges == others:
                    merged.add(name)
    partners = {_twin(two, by_name[name]): name for name in merged}
    for name, uses in by_name.items():
        if name not in merged:
            names = (name, partners[name]) if name in partners else (name,)
            choice = forms[name]
            yield Group(names, tuple(uses), choice.form, choice.kept, choice.at_work, choice.positions)


def _twin(two: Record, uses: Sequence[int]) -> str | None:
    twins = {use.twin if isinstance(use := two.uses[i], OuterUse) else None for i in uses}
    return twins.pop() if len(twins) == 1 else None


@dataclass(frozen=True)
class _Choice:
    form: Form
    flops: float
    kept: int
    at_work: int = 0
    positions: int = 1


def _form(two: Record, rows: Sequence[Rows | None], uses: Sequence[int], ends: Ends, question: Question) -> _Choice:
    """The cheapest form of one parameter's tangents for this question."""
    c = two.output.shape[1]
    first = two.uses[uses[0]]
    sizes = [_sizes(two.uses[i], rows[i]) for i in uses]
    if len(uses) == 1 and ends.output is not None and first.edge == two.uses[ends.output].edge:
        return _Choice(Form.OUTPUT, 0, sizes[0].inputs + c)
    # Multiplications: pairs of rows, and pairs of outputs within each.
    pairs = question.n if question.kind is Kind.DIAGONAL else question.n * question.m
    each = c if question.kind is Kind.TRACE else c * c
    p = first.shape.numel()
    made = (question.n + question.m) * c * sum(math.prod(size) for size in sizes)
    features = max(size.groups * size.positions * size.inputs for size in sizes)
    choices = [_Choice(Form.DENSE, made + pairs * each * p, c * p, at_work=features)]
    if len(uses) == 1 and ends.hidden is not None and first.edge == two.uses[ends.hidden].edge:
        combine = 0 if question.kind is Kind.TRACE else each * p // sizes[0].inputs
        choices += [_Choice(Form.CHANNELS, made // c + pairs * (p + combine), p, at_work=features)]
        if question.kind is Kind.TRACE and sizes[0].positions == 1:
            size = p // sizes[0].inputs
            choices += [_Choice(Form.HIDDEN, pairs * (sizes[0].inputs + size), sizes[0].inputs + size)]
    if _gram_is_possible([two.uses[i] for i in uses], sizes):
        choices += [_gram_choice(isinstance(first, LookupUse), sizes, c, pairs, each)]
    return min(choices, key=lambda choice: choice.flops)


def _gram_choice(lookup: bool, sizes: Sequence[_Sizes], c: int, pairs: int, each: int) -> _Choice:
    positions = sum(size.positions for size in sizes)
    groups, _, inputs, outputs = sizes[0]
    inputs = 1 if lookup else inputs
    # The sum over positions is limited by memory, which costs about as much as ten multiplications in a product.
    combine = 0 if groups * positions == 1 else 10 * each
    flops = pairs * groups * positions**2 * (inputs + each * outputs + combine)
    kept, at_work = groups * positions * (inputs + c * outputs), groups * positions * outputs
    return _Choice(Form.GRAM, flops, kept, at_work, positions)


class _Sizes(NamedTuple):
    groups: int
    positions: int
    inputs: int
    outputs: int


def _sizes(use: Use, rows: Rows | None) -> _Sizes:
    """The sizes of a linear map; a scale or shift counts as one position and one input."""
    assert rows is not None
    if isinstance(use, LookupUse):
        return _Sizes(1, use.tokens(rows).shape[1], *use.shape)
    if not isinstance(use, OuterUse):
        return _Sizes(1, 1, 1, use.shape.numel())
    _, groups, positions, inputs = use.features(rows).shape
    return _Sizes(groups, positions, inputs, use.shape.numel() // (groups * inputs))


def _gram_is_possible(uses: Sequence[Use], sizes: Sequence[_Sizes]) -> bool:
    if len({(size.groups, size.inputs, size.outputs) for size in sizes}) > 1 or len({type(use) for use in uses}) > 1:
        return False
    if all(isinstance(use, LookupUse) for use in uses):
        return True
    return len({use.outputs_first for use in uses if isinstance(use, OuterUse)}) == 1


# Functions of one entry each, by the name of their node in the graph of automatic differentiation.
_CONSTANT_SLOPE = {"MulBackward0", "DivBackward0"}
# fmt: off
_POINTWISE = _CONSTANT_SLOPE | {
    "ReluBackward0", "LeakyReluBackward0", "TanhBackward0", "SigmoidBackward0", "GeluBackward0", "ErfBackward0",
    "ErfcBackward0", "SiluBackward0", "SoftplusBackward0", "EluBackward0", "CeluBackward0", "MishBackward0",
    "HardtanhBackward0", "HardswishBackward0", "LogSigmoidBackward0", "SinBackward0", "CosBackward0", "SinhBackward0",
    "CoshBackward0", "AtanBackward0", "AsinhBackward0", "ExpBackward0", "Expm1Backward0", "Log1PBackward0",
    "SqrtBackward0", "AbsBackward0", "NegBackward0", "PowBackward0", "ClampBackward0", "ClampMinBackward0",
    "LeakyReluBackward1", "EluBackward1", "ClampBackward1",
}
# fmt: on


# Functions of one channel and its positions each; that they did not mix channels is tested all the same.
# fmt: off
_BY_CHANNEL = _POINTWISE | {
    "MeanBackward1", "SumBackward1", "AmaxBackward0", "ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0",
    "SqueezeBackward1", "SqueezeBackward2", "AdaptiveAvgPool2DBackward0", "AdaptiveMaxPool2DBackward0",
    "AvgPool2DBackward0", "MaxPool2DWithIndicesBackward0", "NativeBatchNormBackward0", "CudnnBatchNormBackward0",
}
# fmt: on


def _ends(two: Record, rows: Sequence[Rows | None]) -> Ends:
    r"""Find f = s W φ(a): the signal of output i is $s\,W_i \odot \phi'(a)$, known without a backward pass per output.

    φ may also pool the positions of each channel of a. Consumers are counted in the graph of automatic
    differentiation, which has every path to the output.
    """
    consumers = _consumers(two.output.grad_fn)
    maps = {
        use.edge.node: index
        for index, use in enumerate(two.uses)
        if isinstance(use, OuterUse) and not use.bias and rows[index] is not None
    }
    output, constant = _follow(two.output.grad_fn, maps, consumers, _POINTWISE)
    if output is None or rows[output] != Rows(0) or two.uses[output].output_shape != two.output.shape:
        return Ends()
    held = two.uses[output].held
    if not constant or held is None or held.grad_fn is None:
        return Ends(output)
    hidden, _ = _follow(held.grad_fn, maps, consumers, _BY_CHANNEL)
    if hidden is not None and not _keeps_channels_apart(two.uses[hidden], rows[hidden], held):
        hidden = None
    return Ends(output, hidden)


def _keeps_channels_apart(use: Use, rows: Rows | None, held: Tensor) -> bool:
    """Whether feature k of the last map depends on channel k of this one alone, tested for three of them."""
    assert isinstance(use, OuterUse)
    assert rows is not None
    n_channels = held.shape[1]
    for k in {0, n_channels // 2, n_channels - 1}:
        cotangent = torch.zeros_like(held)
        cotangent[:, k] = 1
        (signal,) = torch.autograd.grad(held, [use.edge], cotangent, retain_graph=True)
        reached = use.signals(signal, rows).abs().sum((0, 2)).flatten()
        if len(reached) != n_channels or reached.sum() != reached[k]:
            return False
    return True


def _consumers(node: Any) -> Counter[Any]:
    counts: Counter[Any] = Counter()
    stack = [node]
    while stack:
        for following, _ in stack.pop().next_functions:
            if following is not None:
                counts[following] += 1
                if counts[following] == 1:
                    stack.append(following)
    return counts


def _follow(node: Any, maps: dict[Any, int], consumers: Counter[Any], allowed: set[str]) -> tuple[int | None, bool]:
    """Walk back over the allowed functions to a linear map; also return whether all their slopes were constant."""
    constant = True
    while consumers[node] <= 1:
        if node in maps:
            return maps[node], constant
        name = node.name()
        following = [f for f, _ in node.next_functions if f is not None and "AccumulateGrad" not in f.name()]
        if name not in allowed or len(following) != 1:
            break
        if name in _CONSTANT_SLOPE:
            saved = [node._saved_other, getattr(node, "_saved_self", None)]
            if any(factor is not None and factor.numel() > 1 for factor in saved):
                break
        else:
            constant = False
        node = following[0]
    return None, False


# --- carrying the plan out ------------------------------------------------------------------------------------------


class UnplannedError(Exception):
    """The forward pass differs from the plan: it depends on the values of the rows."""


def _pieces(plan: RecordedPlan, seen: Record) -> dict[tuple[str, ...], Piece]:
    f = seen.output
    pieces: dict[tuple[str, ...], Piece] = {}
    through_all: list[Group] = []
    for group in plan.groups:
        if group.form is Form.OUTPUT:
            pieces[group.names] = _output_piece(plan, group, seen)
        elif group.form in (Form.HIDDEN, Form.CHANNELS):
            pieces[group.names] = _hidden_piece(plan, group, seen)
        else:
            through_all.append(group)
    if through_all:
        one_hot = torch.eye(plan.n_outputs, dtype=f.dtype, device=f.device)[:, None].expand(-1, len(f), -1)
        pieces |= _pieces_by_backward(plan, through_all, seen, one_hot)
    return pieces


def _pieces_by_backward(
    plan: RecordedPlan, groups: Sequence[Group], seen: Record, cotangents: Tensor
) -> dict[tuple[str, ...], Piece]:
    """One backward pass per cotangent, (c, n, outputs); its signals are used before the next."""
    wanted = sorted({index for group in groups for index in group.uses})
    place = {index: k for k, index in enumerate(wanted)}
    builders = [_Builder(plan, group, seen, len(cotangents)) for group in groups]
    edges = [seen.uses[index].edge for index in wanted]
    for i, cotangent in enumerate(cotangents):
        signals = torch.autograd.grad(seen.output, edges, cotangent, retain_graph=True, allow_unused=True)
        for builder in builders:
            builder.take(i, [signals[place[index]] for index in builder.group.uses])
    return {builder.group.names: builder.piece() for builder in builders}


class _Builder:
    """Collects a group's tangents output by output."""

    def __init__(self, plan: RecordedPlan, group: Group, seen: Record, c: int) -> None:
        self.group, self.c = group, c
        self.uses = [seen.uses[index] for index in group.uses]
        self.rows = [rows for index in group.uses if (rows := plan.rows[index]) is not None]
        self.like = seen.output
        self.collected: Tensor | None = None
        if group.form is Form.DENSE:
            self.prepared = [use.prepared(rows) for use, rows in zip(self.uses, self.rows, strict=True)]
        else:
            features = [_features(use, rows) for use, rows in zip(self.uses, self.rows, strict=True)]
            self.features = torch.cat(features, dim=1 if features[0].ndim == 2 else 2)  # (n, T) ids or (n, G, T, I)

    def take(self, i: int, signals: Sequence[Tensor | None]) -> None:
        shapes = (use.output_shape for use in self.uses)
        given = [self.like.new_zeros(s) if B is None else B for B, s in zip(signals, shapes, strict=True)]
        if self.group.form is Form.DENSE:
            prepared = zip(self.uses, given, self.rows, self.prepared, strict=True)
            first, *more = (use.gradient(B, rows, features) for use, B, rows, features in prepared)
            value = sum(more, start=first)
        else:
            plain = zip(self.uses, given, self.rows, strict=True)
            value = torch.cat([_signals(use, B, rows) for use, B, rows in plain], dim=2)
        if self.collected is None:
            self.collected = value.new_empty(value.shape[0], self.c, *value.shape[1:])
        self.collected[:, i] = value

    def piece(self) -> Piece:
        assert self.collected is not None
        if self.group.form is Form.DENSE:
            return Dense(self.collected)
        return Gram(self.features, self.collected, ones=len(self.group.names) > 1)


def _features(use: Use, rows: Rows) -> Tensor:
    assert isinstance(use, OuterUse | LookupUse)
    return use.tokens(rows) if isinstance(use, LookupUse) else use.features(rows)


def _signals(use: Use, signal: Tensor, rows: Rows) -> Tensor:
    assert isinstance(use, OuterUse | LookupUse)
    return use.signals(signal, rows)


def _output_piece(plan: RecordedPlan, group: Group, seen: Record) -> Output:
    use, rows = seen.uses[group.uses[0]], plan.rows[group.uses[0]]
    assert isinstance(use, OuterUse)
    assert rows is not None
    (slopes,) = torch.autograd.grad(seen.output, [use.edge], torch.ones_like(seen.output), retain_graph=True)
    return Output(use.features(rows)[:, 0, 0], slopes, ones=len(group.names) > 1)


def _hidden_piece(plan: RecordedPlan, group: Group, seen: Record) -> Piece:
    r"""The map before the last, for $f = s\,W z$, $z = \phi(a)$: its signals are $s\,W_i \odot \partial z/\partial a$.

    For the trace of one position, $\sum_i B_i(x)\cdot B_i(y) = (\phi'(x) \odot s^2\sum_i W_i^2)\cdot\phi'(y)$: one
    signal replaces those of all outputs. Otherwise the gradients of $z$ do.
    """
    assert plan.ends.output is not None
    last, use, rows = seen.uses[plan.ends.output], seen.uses[group.uses[0]], plan.rows[group.uses[0]]
    assert isinstance(last, OuterUse)
    assert isinstance(use, OuterUse)
    assert rows is not None
    assert last.held is not None
    f = seen.output
    (slopes,) = torch.autograd.grad(f, [last.edge], torch.ones_like(f), retain_graph=True)
    W = slopes[0, 0] * plan.network.parameters[last.parameter].detach()
    W = W if last.outputs_first else W.mT  # (c, channels)
    size = W.norm(dim=0) if group.form is Form.HIDDEN else torch.ones_like(W[0])
    (signal,) = torch.autograd.grad(last.held, [use.edge], size.expand(len(f), -1), retain_graph=True)
    B = use.signals(signal, rows)  # (n, G, T, O)
    if group.form is Form.HIDDEN:
        return Gram(use.features(rows), B[:, None], ones=len(group.names) > 1)
    gradients = B.sum(2)[..., None] if use.bias else B.mT @ use.features(rows)
    return Channels(gradients.flatten(1, 2), W)


# --- per-row Jacobians ----------------------------------------------------------------------------------------------


def jacobians(network: Network, names: Iterable[str], x: Tensor, *, vmapped: bool) -> dict[str, Tensor]:
    """(n, c, p) for each of these parameters, by automatic differentiation of one row at a time."""
    if vmapped:
        return {name: J.flatten(2) for name, J in _vmap_jacobians(network, names, x).items()}
    names = list(names)
    wanted = [network.parameters[name] for name in names]
    by_row: list[list[Tensor]] = []
    for row in torch.split(x, 1):
        with torch.enable_grad():
            f = network(row)
        check_output(network, f, row)
        one_hot = torch.eye(f.shape[1], dtype=f.dtype, device=f.device)[:, None]
        by_output = [torch.autograd.grad(f, wanted, e, retain_graph=True, allow_unused=True) for e in one_hot]
        by_row.append([_stacked(parts, p) for parts, p in zip(zip(*by_output, strict=True), wanted, strict=True)])
    return {name: torch.stack(rows) for name, rows in zip(names, zip(*by_row, strict=True), strict=True)}


def _stacked(gradients: Sequence[Tensor | None], p: Tensor) -> Tensor:
    """(c, p) from the gradients of one row's outputs."""
    dense = [torch.zeros_like(p) if g is None else g.to_dense() if g.is_sparse else g for g in gradients]
    return torch.stack([g.flatten() for g in dense])


def _vmap_jacobians(network: Network, names: Iterable[str], x: Tensor) -> dict[str, Tensor]:
    fixed = {name: p.detach() for name, p in network.parameters.items()}

    def of_row(row: Tensor) -> dict[str, Tensor]:
        chosen = {name: fixed[name] for name in names}
        jacobian: dict[str, Tensor] = jacrev(lambda q: network.function({**fixed, **q}, row[None])[0])(chosen)
        return jacobian

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")  # slow, not wrong
        result: dict[str, Tensor] = vmap(of_row)(x)
    return result


def _vmap_works(network: Network, names: Iterable[str], x: Tensor) -> bool:
    """Whether torch can map the Jacobian over rows; if not, the rows go one by one through plain autograd.

    This hides nothing: the plain route raises any error that is not vmap's own again.
    """
    try:
        _vmap_jacobians(network, names, x)
    except RuntimeError:
        return False
    return True


def _witness_agrees(plan: RecordedPlan, two: Record) -> bool:
    """Whether K(x_0, x_1) and K(x_0, x_0) of one random mixture of outputs agree with plain autograd."""
    names = [name for name in plan.network.selected if name not in plan.opaque]
    if not names:
        return True
    f = two.output
    mixture = torch.randn(f.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(f)
    groups = [Group(g.names, g.uses, Form.DENSE if g.form is Form.DENSE else Form.GRAM, 0, 0) for g in plan.groups]
    layerwise = f.new_zeros(2, 1, 2, 1)
    if groups:
        for piece in _pieces_by_backward(plan, groups, two, mixture.expand(1, 2, -1)).values():
            piece.add_full(piece, layerwise)
    wanted = [plan.network.parameters[name] for name in names]
    plain = []
    for row in range(2):
        cotangent = torch.zeros_like(f).index_copy_(0, torch.tensor([row], device=f.device), mixture[None])
        gradients = torch.autograd.grad(f, wanted, cotangent, retain_graph=True, allow_unused=True)
        plain.append(torch.cat([_stacked([g], p)[0] for g, p in zip(gradients, wanted, strict=True)]))
    expected = torch.stack(plain) @ torch.stack(plain).mT
    scale = expected.diagonal().sqrt()
    error = (layerwise.view(2, 2) - expected).abs()
    return bool((error <= tolerance(f) * (scale[:, None] * scale)).all())
