"""How the tangents of a module's rows are computed, decided once from passes over one row and over two.

Where the rows are in every tensor, which parameters can go layer by layer, and which form is cheapest for each. Plain
automatic differentiation checks that the plan is right; parameters that it cannot explain go through per-row Jacobians,
with the same result.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kontrast.kernels.network import Network, check_output, told_of
from kontrast.kernels.recording import BroadcastUse, LookupUse, Origins, OuterUse, Record, Rows, Use, record


class Kind(Enum):
    """Which numbers of the kernel are wanted."""

    FULL = "full"
    TRACE = "trace"
    DIAGONAL = "diagonal"


class Form(Enum):
    """How a parameter's tangents are kept."""

    GRAM = "features and signals"
    OUTER = "features and signals of a few outputs, whose gradients are formed in slices"
    DENSE = "gradients"
    OUTPUT = "features of the last map"
    HIDDEN = "features and one signal, for the trace: the map before the last"
    CHANNELS = "gradients of the last map's features, the same for all outputs: the map before the last"


ENDINGS = {Form.OUTPUT, Form.HIDDEN, Form.CHANNELS}  # valid if the net ends as it did for the planning rows
_WITH_BIAS = {Form.GRAM, Form.OUTPUT, Form.HIDDEN}  # a bias can be one more feature


@dataclass(frozen=True)
class Question:
    """The kernel that is wanted, and between how many rows."""

    kind: Kind
    n: int
    m: int
    components: bool = False
    symmetric: bool = False  # y is x
    gradients: bool = False  # themselves are wanted, in the order of a parameter's numbers; of embeddings, the signals


@dataclass(frozen=True)
class Group:
    """A parameter, or a weight and the bias of the same maps, with its uses and its form."""

    names: tuple[str, ...]
    uses: tuple[int, ...]
    form: Form
    sizes: Sizes
    derived: tuple[str, ...] = ()  # tensors made from it whose gradients are pulled back


class Sizes(NamedTuple):
    """Numbers per row: kept all the time, kept per output, and further ones while these are used."""

    kept: int = 0
    per_output: int = 0
    at_work: int = 0
    positions: int = 1  # that a contraction pairs with those of another row
    copied: int = 0  # copies made of the features, while they are multiplied
    collected_from: int = 0  # of a backward pass, per output: the signals of which `per_output` are kept


@dataclass(frozen=True)
class Ends:
    """The use that makes the output, f = s(W h), and the one before it, h = φ(a), if the net ends this way."""

    output: int | None = None
    hidden: int | None = None


@dataclass(frozen=True)
class Layout:
    """What a forward pass over other rows must have in common with the planning rows, for their plan to hold."""

    n_outputs: int
    origins: Origins = field(default_factory=Origins)
    signature: tuple[object, ...] = ()
    rows: tuple[Rows | None, ...] = ()  # for each use
    opaque: tuple[str, ...] = ()  # through per-row Jacobians
    groups: tuple[Group, ...] = ()
    ends: Ends = Ends()
    multiplications: int = 0  # per row, by the linear maps of a forward pass
    tokens: int = 1  # the most that a linear layer maps


class Saved(NamedTuple):
    """Bytes per row that a forward pass keeps for its backward pass, and those of its largest tensor."""

    total: int
    largest: int


class Observed(NamedTuple):
    """Recorded passes over one row and over two, and what they kept."""

    one: Record
    two: Record
    saved: Saved
    origins: Origins


def observe(network: Network, x: Tensor, name: str) -> Observed:
    """Watch the module on the first row of x and on both."""
    origins = Origins()
    with told_of(network, x, name):
        origins.survey((lambda: network(x[:1]), lambda: network(x)), network.parameters)
        one, least = _watched(network, x[:1], origins)
        two, most = _watched(network, x, origins)
    for seen, rows in ((one, x[:1]), (two, x)):
        check_output(network, seen.output, rows)
    return Observed(one, two, Saved(max(0, most.total - least.total), most.largest), origins)


def _watched(network: Network, x: Tensor, origins: Origins) -> tuple[Record, Saved]:
    """A recorded pass, and the bytes it saved for a backward pass, the parameters apart."""
    own = {p.untyped_storage().data_ptr() for p in network.parameters.values()}
    storages: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        seen = record(lambda: network(x), network.parameters, origins, keep_values=True)
    return seen, Saved(sum(storages.values()), max(storages.values(), default=0))


def layout_of(network: Network, observed: Observed, question: Question, *, all_heard: bool) -> Layout | None:
    """The layer-by-layer layout for this question; None where passes over one row and over two do not match.

    Positions that no output depends on are left out, unless `all_heard`.
    """
    one, two, _, origins = observed
    signature = two.signature()
    if one.signature() != signature:
        return None
    rows = [_rows_in(*pair) for pair in zip(one.values, two.values, strict=True)]
    unexplained = {use.parameter for i, use in enumerate(two.uses) if not _explained(use, rows[i])}
    opaque = one.opaque | two.opaque
    for name in unexplained:
        opaque |= two.derived[name].sources if name in two.derived else {name}
    used = {use.parameter for use in two.uses} | {name for d in two.derived.values() for name in d.sources}
    unseen = [name for name in network.selected if name not in opaque | used]
    opaque = (opaque | set(reached(network, unseen, two))) & set(network.selected)
    ends = Ends() if question.gradients else ends_of(two, rows)
    if not all_heard:
        rows = _with_heard(two, rows, ends)
    groups = tuple(_groups(network, two, rows, ends, opaque, question))
    in_order = tuple(name for name in network.selected if name in opaque)
    known = [(use, _sizes(use, where)) for use, where in zip(two.uses, rows, strict=True) if where is not None]
    multiplications = sum(math.prod(size) for _, size in known)
    linear = (size.positions for use, size in known if isinstance(use, OuterUse) and not use.convolution)
    tokens = max(linear, default=1)
    return Layout(two.output.shape[1], origins, signature, tuple(rows), in_order, groups, ends, multiplications, tokens)


def reached(network: Network, names: Sequence[str], seen: Record) -> list[str]:
    """The parameters among these that the output depends on, even in ways that the recorder did not see."""
    if not names:
        return []
    wanted = [network.parameters[name] for name in names]
    ones = torch.ones_like(seen.output)
    gradients = torch.autograd.grad(seen.output, wanted, ones, retain_graph=True, allow_unused=True)
    return [name for name, gradient in zip(names, gradients, strict=True) if gradient is not None]


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


def mixture_of(output: Tensor, n: int = 1) -> Tensor:
    """Random directions in the space of outputs, (n, c): what is zero along one is zero for every output."""
    drawn = torch.randn(n, output.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return drawn.to(output)


def _with_heard(two: Record, rows: Sequence[Rows | None], ends: Ends) -> list[Rows | None]:
    """The places of the rows, with the positions that reach the output where these are few and the same in both rows.

    Where a network reads a class token alone, its last layers reach the output at one position of many.
    """
    found = list(rows)
    # The signals of the last maps and of their biases come from no backward pass that would look again.
    ended = [two.uses[index].edge for index in (ends.output, ends.hidden) if index is not None]
    wanted = [
        (index, use, where)
        for index, (use, where) in enumerate(zip(two.uses, rows, strict=True))
        if isinstance(use, OuterUse) and where is not None and use.edge not in ended
    ]
    if not wanted:
        return found
    cotangent = mixture_of(two.output).expand(len(two.output), -1)
    edges = [use.edge for _, use, _ in wanted]
    signals = torch.autograd.grad(two.output, edges, cotangent, retain_graph=True, allow_unused=True)
    for (index, use, where), signal in zip(wanted, signals, strict=True):
        if signal is None:
            continue
        first, second = use.heard(signal, where)
        if first.equal(second) and 0 < MANY_TO_ONE * int(first.sum()) <= len(first):
            found[index] = replace(where, heard=tuple(first.nonzero().flatten().tolist()))
    return found


MANY_TO_ONE = 8  # positions to those heard, from which it pays to look for them in every pass


def _explained(use: Use, rows: Rows | None) -> bool:
    if rows is None:
        return False
    if isinstance(use, BroadcastUse):
        return use.aligned[rows.axis] == 1
    if isinstance(use, OuterUse) and use.convolution:
        return rows.axis == 0
    return rows.axis < len(use.output_shape) - 1


# --- which form for which parameter ---------------------------------------------------------------------------------


def _groups(
    network: Network, two: Record, rows: Sequence[Rows | None], ends: Ends, opaque: set[str], question: Question
) -> Iterator[Group]:
    direct: dict[str, list[int]] = {}
    for index, use in enumerate(two.uses):
        direct.setdefault(use.parameter, []).append(index)
    derived: dict[str, list[str]] = {}
    for made, what in two.derived.items():
        for source in what.sources:
            derived.setdefault(source, []).append(made)
    wanted = [name for name in network.selected if name not in opaque and (name in direct or name in derived)]
    for name in [name for name in wanted if name in derived]:
        yield Group((name,), tuple(direct.get(name, ())), Form.DENSE, _pulled(two, rows, name, direct, derived),
                    tuple(derived[name]))  # fmt: skip
    plain = {name: direct[name] for name in wanted if name not in derived}
    forms = {name: _form(two, rows, uses, ends, question) for name, uses in plain.items()}
    merged: set[str] = set()
    if not question.components:  # a weight and its bias share the product of signals, the larger of the two
        for name, uses in plain.items():
            twin = _twin(two, uses)
            if twin in plain and forms[twin].form in _WITH_BIAS:
                edges, others = ([two.uses[i].edge for i in part] for part in (uses, plain[twin]))
                if edges == others:
                    merged.add(name)
    partners = {_twin(two, plain[name]): name for name in merged}
    for name, uses in plain.items():
        if name not in merged:
            names = (name, partners[name]) if name in partners else (name,)
            yield Group(names, tuple(uses), forms[name].form, forms[name].sizes)


def _pulled(
    two: Record,
    rows: Sequence[Rows | None],
    name: str,
    direct: dict[str, list[int]],
    derived: dict[str, list[str]],
) -> Sizes:
    """The sizes of a parameter whose gradient comes, in part, from tensors made from it."""
    uses = [i for other in (name, *derived[name]) for i in direct.get(other, ())]
    largest = max(two.derived[made].tensor.numel() for made in derived[name])
    features = sum(_features_of(_sizes(two.uses[i], rows[i])) for i in uses)
    return Sizes(features, 2 * largest, largest)


def _twin(two: Record, uses: Sequence[int]) -> str | None:
    twins = {use.twin if isinstance(use := two.uses[i], OuterUse) else None for i in uses}
    return twins.pop() if len(twins) == 1 else None


class _Choice(NamedTuple):
    form: Form
    flops: float
    sizes: Sizes


def _form(two: Record, rows: Sequence[Rows | None], uses: Sequence[int], ends: Ends, question: Question) -> _Choice:
    """The cheapest form of one parameter's tangents for this question."""
    c = two.output.shape[1]
    first = two.uses[uses[0]]
    sizes = [_sizes(two.uses[i], rows[i]) for i in uses]
    if len(uses) == 1 and ends.output is not None and first.edge == two.uses[ends.output].edge:
        return _Choice(Form.OUTPUT, 0, Sizes(sizes[0].inputs + c))
    # Multiplications: to form gradients, and for pairs of rows and of outputs within each.
    n_rows = question.n + (0 if question.symmetric else question.m)
    pairs = question.n if question.kind is Kind.DIAGONAL else question.n * question.m / (1 + question.symmetric)
    each = c if question.kind is Kind.TRACE else c * c
    p = first.shape.numel()
    made = n_rows * c * sum(math.prod(size) for size in sizes)
    features, signals = sum(map(_features_of, sizes)), _signals_of(two, uses)
    alike = _oriented_alike([two.uses[i] for i in uses], sizes)
    # Those of a map with several groups, or of one that is stored the other way round, lie in another order.
    ordered = isinstance(first, OuterUse) and first.outputs_first and sizes[0].groups == 1
    if alike and isinstance(first, OuterUse) and not first.bias and (ordered or not question.gradients):
        copied = features if first.convolution else 0
        gradients = _Choice(Form.OUTER, made + pairs * each * p, Sizes(0, signals, features, copied=copied))
    else:
        gradients = _Choice(Form.DENSE, made + pairs * each * p, Sizes(features, p, signals))
    if question.gradients:
        lookup = isinstance(first, LookupUse) and alike
        return _gram_choice(True, sizes, signals, pairs, each, question.kind) if lookup else gradients
    choices = [gradients]
    if len(uses) == 1 and ends.hidden is not None and first.edge == two.uses[ends.hidden].edge:
        combine = 0 if question.kind is Kind.TRACE else each * p // sizes[0].inputs
        choices += [_Choice(Form.CHANNELS, made // c + pairs * (p + combine), Sizes(p, 0, features))]
        if question.kind is Kind.TRACE and sizes[0].positions == 1:
            size = p // sizes[0].inputs
            kept = Sizes(sizes[0].inputs + size)
            choices += [_Choice(Form.HIDDEN, pairs * (sizes[0].inputs + size), kept)]
    if alike:
        choices += [_gram_choice(isinstance(first, LookupUse), sizes, signals, pairs, each, question.kind)]
    return min(choices, key=lambda choice: choice.flops)


def _gram_choice(
    lookup: bool, sizes: Sequence[_MapSizes], signals: int, pairs: float, each: int, kind: Kind
) -> _Choice:
    positions = sum(size.positions for size in sizes)
    groups, _, inputs, outputs = sizes[0]
    inputs = 1 if lookup else inputs
    # The sum over positions is limited by memory, which costs about as much as ten multiplications in a product.
    combine = 0 if groups * positions == 1 else 10 if kind is Kind.TRACE else 10 * each
    flops = pairs * groups * positions**2 * (inputs + each * outputs + combine)
    kept, per_output = groups * positions * inputs, groups * positions * outputs
    return _Choice(Form.GRAM, flops, Sizes(kept, per_output, 0, positions, collected_from=signals))


class _MapSizes(NamedTuple):
    groups: int
    positions: int
    inputs: int
    outputs: int


def _features_of(size: _MapSizes) -> int:
    return size.groups * size.positions * size.inputs


def _signals_of(two: Record, uses: Sequence[int]) -> int:
    """Numbers per row, those of positions that are left out as well."""
    return sum(two.uses[i].output_shape.numel() for i in uses) // len(two.output)


def _sizes(use: Use, rows: Rows | None) -> _MapSizes:
    """The sizes of a linear map; a scale or shift counts as one position and one input."""
    assert rows is not None
    if isinstance(use, LookupUse):
        return _MapSizes(1, use.tokens(rows).shape[1], *use.shape)
    if not isinstance(use, OuterUse):
        return _MapSizes(1, 1, 1, use.shape.numel())
    _, groups, positions, inputs = use.features(rows).shape
    return _MapSizes(groups, positions, inputs, use.shape.numel() // (groups * inputs))


def _oriented_alike(uses: Sequence[Use], sizes: Sequence[_MapSizes]) -> bool:
    if len({(size.groups, size.inputs, size.outputs) for size in sizes}) > 1 or len({type(use) for use in uses}) > 1:
        return False
    if all(isinstance(use, LookupUse) for use in uses):
        return True
    return len({use.outputs_first for use in uses if isinstance(use, OuterUse)}) == 1


# --- how the net ends -----------------------------------------------------------------------------------------------

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


def ends_of(two: Record, rows: Sequence[Rows | None]) -> Ends:
    r"""Find f = s W φ(a): the signal of output i is $s\,W_i \odot \phi'(a)$, known without a backward pass per output.

    φ may also pool the positions of each channel of a. Consumers are counted in the graph of automatic
    differentiation, which has every path to the output.
    """
    consumers = _consumers(two.output.grad_fn)
    maps = {
        use.edge.node: index
        for index, use in enumerate(two.uses)
        if isinstance(use, OuterUse) and not use.bias and rows[index] is not None and use.parameter not in two.derived
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
