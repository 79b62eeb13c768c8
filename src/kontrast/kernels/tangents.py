"""The tangents of blocks of rows, as pieces much smaller than a Jacobian: a plan carried out.

One forward pass over the rows of a block, then one backward pass per output, or per direction in the space of outputs.
What a direction's pass gives is contracted before the next one where it would be too large to keep for all of them.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge
from torch.func import jacrev, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from kontrast.kernels.contraction import Channels, Dense, Gram, Outer, Output, Piece, add_block
from kontrast.kernels.network import Network, check_output, tolerance
from kontrast.kernels.planning import (
    ENDINGS,
    Form,
    Group,
    Layout,
    Observed,
    Question,
    Saved,
    ends_of,
    layout_of,
    mixture_of,
    observe,
    reached,
)
from kontrast.kernels.recording import LookupUse, OuterUse, Record, Rows, Use, record

Pieces = dict[tuple[str, ...], Piece | Outer]

FEW_TOKENS = 256  # whose products with each other take less memory than the rest of their layer
WITNESS_NUMBERS = 2**24  # of gradients formed at once to check a plan


@dataclass(frozen=True)
class Costs:
    """Bytes per row of what a plan computes."""

    kept: int  # by a pass from its start to its end, for its backward passes too
    collected: int  # per direction, until the last
    streamed: int  # per direction, until it is contracted
    at_work: int  # further ones while a pass runs
    in_products: int  # further ones while the pieces of one parameter are contracted
    copied: int = 0  # in all while they are: patches of convolutions
    multiplications: float = math.inf  # per row, not bytes, of a forward pass
    positions: int = 1  # that the contraction of a `Gram` pairs with those of another row


class Pass:
    """A forward pass over some rows, and what its backward passes give."""

    def once(self) -> Pieces:
        """The pieces that need no backward pass per direction."""
        return {}

    def streamed(self, directions: Tensor) -> Pieces:
        """The pieces of these directions alone, (q, c), to be contracted before the next."""
        return {}

    def collected(self) -> Pieces:
        """The pieces of all directions so far."""
        return {}


@dataclass(frozen=True, eq=False)
class Plan(ABC):
    """How the tangents of rows of one shape are computed."""

    network: Network
    n_outputs: int  # c

    @property
    @abstractmethod
    def costs(self) -> Costs:
        """What it takes."""

    @abstractmethod
    def start(self, x: Tensor, n_directions: int, *, at_once: bool = False) -> Pass:
        """A pass over these rows, for so many directions in all.

        With `at_once` one backward pass serves all directions, if it can: a GPU waits less for its next step.
        """


@dataclass(frozen=True, eq=False)
class RecordedPlan(Plan):
    """A plan from watching the forward pass of two rows."""

    layout: Layout
    saved: int  # bytes per row that a forward pass keeps for its backward pass
    largest: int  # of which for one tensor
    vmapped: bool = False  # whether torch can map the Jacobians of opaque parameters over rows
    batched: bool = False  # whether torch can map a backward pass over directions

    @property
    def costs(self) -> Costs:
        """From the sizes of the groups."""
        size = self.network.like.element_size()
        kept = collected = streamed = signals = in_products = copied = 0
        for group in self.layout.groups:
            kept += group.sizes.kept
            if group.form is Form.GRAM:
                collected += group.sizes.per_output
            else:
                streamed += group.sizes.per_output
            signals += group.sizes.collected_from
            in_products = max(in_products, group.sizes.at_work)
            copied += group.sizes.copied
        opaque = sum(self.network.parameters[name].numel() for name in self.layout.opaque)
        mapped = 3 * self.saved if opaque else 0
        return Costs(
            kept=self.saved + size * kept,
            collected=size * collected,
            streamed=size * (streamed + opaque) + mapped,
            at_work=2 * self.largest + size * signals + mapped,
            in_products=size * in_products,
            copied=size * copied,
            multiplications=self.layout.multiplications or math.inf,
            positions=max((group.sizes.positions for group in self.layout.groups), default=1),
        )

    def start(self, x: Tensor, n_directions: int, *, at_once: bool = False) -> Pass:
        """The forward pass; raises `UnplannedError` if these rows do not fit the plan."""
        return RecordedPass(self, x, n_directions, at_once=at_once and self.batched)


class UnplannedError(Exception):
    """The forward pass differs from the plan: it depends on the values of the rows."""


class RecordedPass(Pass):
    """A watched pass. Backward passes start at its outputs and stop where parameters are used."""

    def __init__(
        self, plan: RecordedPlan, x: Tensor, n_directions: int, *, at_once: bool = False, seen: Record | None = None
    ) -> None:
        self.plan, self.network, self.layout, self.x = plan, plan.network, plan.layout, x
        self.n_directions, self.at_once = n_directions, at_once
        self._grams: dict[tuple[str, ...], _Collected] = {}
        self._n_done = 0
        used = {name for group in self.layout.groups for name in group.names} | set(self.layout.opaque)
        unused = [name for name in self.network.selected if name not in used]
        self.seen = seen
        if seen is None and (self.layout.groups or unused):
            with _attention(plainly=at_once and self.layout.tokens <= FEW_TOKENS):
                self.seen = record(
                    lambda: self.network(x), self.network.parameters, self.layout.origins, signals_only=True
                )
            check_output(self.network, self.seen.output, x)
            if not self._holds(self.seen, unused):
                raise UnplannedError

    def _holds(self, seen: Record, unused: Sequence[str]) -> bool:
        """Whether these rows took the same branches as the planning rows, with the same parameters."""
        layout = self.layout
        if seen.output.shape[1] != layout.n_outputs or (layout.groups and seen.signature() != layout.signature):
            return False
        if (seen.opaque & set(self.network.selected)) - set(layout.opaque):
            return False
        if any(group.form in ENDINGS for group in layout.groups) and ends_of(seen, layout.rows) != layout.ends:
            return False
        return not reached(self.network, unused, seen)

    def once(self) -> Pieces:
        """Those of the last maps, known from the forward pass."""
        pieces: Pieces = {}
        for group in self.layout.groups:
            if group.form is Form.OUTPUT:
                pieces[group.names] = _output_piece(self._ended, self.layout, group)
            elif group.form in (Form.HIDDEN, Form.CHANNELS):
                pieces[group.names] = _hidden_piece(self._ended, self.network, self.layout, group)
        return pieces

    @property
    def _collecting(self) -> bool:
        """Whether signals are still to be collected; a pass may be streamed again for another block."""
        return self._n_done < self.n_directions

    @property
    def _ended(self) -> Record:
        assert self.seen is not None
        return self.seen

    def streamed(self, directions: Tensor) -> Pieces:
        """A backward pass per direction, or one for all. Signals of `Form.GRAM` are collected on the way."""
        pieces: Pieces = {}
        groups = [group for group in self.layout.groups if group.form not in ENDINGS]
        if not self._collecting:
            groups = [group for group in groups if group.form is not Form.GRAM]
        if groups:
            passes = [
                self._signals(groups, some) for some in torch.split(directions, len(directions) if self.at_once else 1)
            ]
            for group in groups:
                uses, rows = self._uses(group)
                if group.form is Form.GRAM:
                    continue
                signals = [[given[index] for index in group.uses] for given in passes]
                if group.form is Form.OUTER:
                    piece: Piece | Outer = _outer_piece(uses, rows, signals, len(self.x))
                else:
                    pulled = [self._pulled(group, given) for given in passes]
                    piece = _dense_piece(uses, rows, signals, pulled, len(self.x))
                pieces[group.names] = piece
        if self.layout.opaque:
            found = jacobians(self.network, self.layout.opaque, self.x, directions, vmapped=self.plan.vmapped)
            pieces |= {(name,): Dense(gradient) for name, gradient in found.items()}
        return pieces

    def _signals(self, groups: Sequence[Group], directions: Tensor) -> dict[int, Tensor]:
        """∂(direction·f)/∂a where parameters are used, by use; those of `Form.GRAM` go into their places.

        As of a pass over as many copies of the rows as there are directions.
        """
        seen = self._ended
        made = {index for group in groups for name in group.derived for index in self._uses_of(name)}
        wanted = sorted({index for group in groups for index in group.uses} | made)
        alone = {index for group in groups if group.form is not Form.GRAM for index in group.uses} | made
        edges = [seen.uses[index].edge for index in wanted]
        found = signals_at(seen.output, edges, directions)
        given = {}
        for index, signal in zip(wanted, found, strict=True):
            rows, shape = self.layout.rows[index], (len(directions), *seen.uses[index].output_shape)
            assert rows is not None
            # A use that these outputs do not depend on has no signal.
            given[index] = rows.joined(seen.output.new_zeros(shape) if signal is None else signal)
            if rows.heard is not None and not _heard_there_alone(seen.uses[index], given[index], rows):
                raise UnplannedError
        if self._collecting:
            for group in groups:
                if group.form is Form.GRAM:
                    signals = [given[index] for index in group.uses]
                    self._collector(group).take(slice(self._n_done, self._n_done + len(directions)), signals)
            self._n_done += len(directions)
        return {index: signal for index, signal in given.items() if index in alone}

    def _collector(self, group: Group) -> _Collected:
        if group.names not in self._grams:
            uses, rows = self._uses(group)
            self._grams[group.names] = _Collected(uses, rows, len(self.x), self.n_directions, len(group.names) > 1)
        return self._grams[group.names]

    def collected(self) -> Pieces:
        """The features and signals of `Form.GRAM`."""
        return {names: collected.piece() for names, collected in self._grams.items()}

    def _uses(self, group: Group) -> tuple[list[Use], list[Rows]]:
        rows = [rows for index in group.uses if (rows := self.layout.rows[index]) is not None]
        return [self._ended.uses[index] for index in group.uses], rows

    def _uses_of(self, name: str) -> list[int]:
        return [index for index, use in enumerate(self._ended.uses) if use.parameter == name]

    def _pulled(self, group: Group, signals: Mapping[int, Tensor]) -> Tensor | None:
        """The gradient of every row that reaches a parameter through the tensors derived from it, (n, p)."""
        total: Tensor | None = None
        for name in group.derived:
            made = self._ended.derived[name].tensor
            gradient = made.new_zeros(())
            for index in self._uses_of(name):
                rows = self.layout.rows[index]
                assert rows is not None
                use = self._ended.uses[index]
                gradient = gradient + use.gradient(signals[index], rows, use.prepared(rows))
            pulled = _pull(made, self.network.parameters[group.names[0]], gradient)
            total = pulled if total is None else total + pulled
        return total


def _heard_there_alone(use: Use, signal: Tensor, rows: Rows) -> bool:
    assert isinstance(use, OuterUse)
    return bool(signal.count_nonzero() == use.signals(signal, rows).count_nonzero())


def _attention(*, plainly: bool) -> AbstractContextManager[None]:
    """By its plain products, which torch can map over directions; the fused ones it would take one by one."""
    return sdpa_kernel(SDPBackend.MATH) if plainly else nullcontext()


def signals_at(output: Tensor, edges: Sequence[GradientEdge], directions: Tensor) -> list[Tensor | None]:
    """∂(direction·f)/∂a at every edge, (q, …): by one backward pass, for several directions a mapped one."""
    reached: list[int] = []

    def of_one(direction: Tensor) -> list[Tensor]:
        cotangent = direction.expand(len(output), -1)
        found = torch.autograd.grad(output, edges, cotangent, retain_graph=True, allow_unused=True)
        reached[:] = [index for index, signal in enumerate(found) if signal is not None]
        return [found[index] for index in reached]

    if len(directions) == 1:
        signals = [signal[None] for signal in of_one(directions[0])]
    else:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")  # a loop over directions, as ours
            signals = vmap(of_one)(directions)
    at = dict(zip(reached, signals, strict=True))
    return [at.get(index) for index in range(len(edges))]


# What was planned for a module, which holds no tensors. A pass over other rows is still compared with its layout.
_Planned = dict[tuple[object, ...], tuple[Layout, Saved, bool, bool]]
_PLANNED: WeakKeyDictionary[nn.Module, _Planned] = WeakKeyDictionary()


def plan_for(network: Network, x: Tensor, question: Question, *, name: str, again: bool = False) -> RecordedPlan:
    """A plan for rows like those of `x`, (2, …): the one found before for this module, or `again` a new one."""
    modes = tuple(part.training for part in network.module.modules())
    like = network.like
    key = (question, network.selected, network.output, modes, x.shape[1:], x.dtype, like.dtype, like.device)
    planned = _PLANNED.setdefault(network.module, {})
    if again or key not in planned:
        # A plan that did not hold may have taken for a rule what was so in two rows by chance.
        planned[key] = _planned(network, x, question, name, all_heard=again)
    layout, saved, *mapped = planned[key]
    return RecordedPlan(network, layout.n_outputs, layout, *saved, *mapped)


def _planned(
    network: Network, x: Tensor, question: Question, name: str, *, all_heard: bool
) -> tuple[Layout, Saved, bool, bool]:
    observed = observe(network, x, name)
    layout = layout_of(network, observed, question, all_heard=all_heard)
    if layout is not None:
        vmapped = _vmap_works(network, layout.opaque, x)
        plan = RecordedPlan(network, layout.n_outputs, layout, *observed.saved, vmapped)
        if _witness_agrees(plan, x, observed.two):
            return layout, observed.saved, vmapped, _batches(observed.two)
    return _opaque(network, x, observed)


def jacobian_plan(network: Network, x: Tensor, *, name: str) -> RecordedPlan:
    """A plan for such rows that uses automatic differentiation alone."""
    layout, saved, *mapped = _opaque(network, x, observe(network, x, name))
    return RecordedPlan(network, layout.n_outputs, layout, *saved, *mapped)


def _opaque(network: Network, x: Tensor, observed: Observed) -> tuple[Layout, Saved, bool, bool]:
    layout = Layout(observed.two.output.shape[1], opaque=network.selected)
    return layout, observed.saved, _vmap_works(network, network.selected, x), False


# --- the pieces of each form ----------------------------------------------------------------------------------------


# Signals come from one pass after another. In each, as if the n rows came once for every direction.


def _outer_piece(uses: Sequence[Use], rows: Sequence[Rows], passes: Sequence[Sequence[Tensor]], n: int) -> Outer:
    features, signals, copied, inputs = [], [], False, 0
    for place, (use, where) in enumerate(zip(uses, rows, strict=True)):
        assert isinstance(use, OuterUse)
        features.append(partial(use.features, where))
        signals.append(tuple(torch.unflatten(use.signals(given[place], where), 0, (-1, n)) for given in passes))
        copied |= use.convolution
        inputs = use.shape.numel() // (signals[0][0].shape[2] * signals[0][0].shape[-1])
    return Outer(tuple(features), tuple(signals), inputs, copied)


def _dense_piece(
    uses: Sequence[Use],
    rows: Sequence[Rows],
    passes: Sequence[Sequence[Tensor]],
    pulled: Sequence[Tensor | None],
    n: int,
) -> Dense:
    totals = list(pulled)
    for place, (use, where) in enumerate(zip(uses, rows, strict=True)):
        prepared = use.prepared(where)
        for k, given in enumerate(passes):
            gradient, sofar = use.gradient(given[place], where, prepared), totals[k]
            totals[k] = gradient if sofar is None else sofar + gradient
    gradients = [part for total in totals if total is not None for part in torch.split(total, n)]
    return Dense(gradients[0][:, None] if len(gradients) == 1 else torch.stack(gradients, 1))


class _Collected:
    """The features, and the signals of one direction after another, of a parameter in `Form.GRAM`."""

    def __init__(self, uses: Sequence[Use], rows: Sequence[Rows], n: int, n_directions: int, ones: bool) -> None:
        self.uses, self.rows, self.n, self.ones = uses, rows, n, ones
        features = [_features(use, where) for use, where in zip(uses, rows, strict=True)]
        self.features = torch.cat(features, dim=1 if features[0].ndim == 2 else 2)  # (n, T) ids or (n, G, T, I)
        self.signals: Tensor | None = None
        self.n_directions = n_directions

    def take(self, places: slice, signals: Sequence[Tensor]) -> None:
        plain = [_signals(use, B, rows) for use, B, rows in zip(self.uses, signals, self.rows, strict=True)]
        value = plain[0] if len(plain) == 1 else torch.cat(plain, dim=2)
        if self.signals is None:
            self.signals = value.new_empty(self.n, self.n_directions, *value.shape[1:])
        self.signals[:, places] = torch.unflatten(value, 0, (-1, self.n)).transpose(0, 1)

    def piece(self) -> Gram:
        assert self.signals is not None
        return Gram(self.features, self.signals, ones=self.ones)


def _features(use: Use, rows: Rows) -> Tensor:
    assert isinstance(use, OuterUse | LookupUse)
    return use.tokens(rows) if isinstance(use, LookupUse) else use.features(rows)


def _signals(use: Use, signal: Tensor, rows: Rows) -> Tensor:
    assert isinstance(use, OuterUse | LookupUse)
    return use.signals(signal, rows)


def _pull(made: Tensor, parameter: Tensor, gradients: Tensor) -> Tensor:
    """(n, p) from the gradients of every row with respect to a tensor made from the parameter, (n, numbers of it)."""
    cotangents = gradients.view(-1, *made.shape)
    try:
        (pulled,) = torch.autograd.grad(made, parameter, cotangents, retain_graph=True, is_grads_batched=True)
    except RuntimeError:  # an operation that torch cannot map; any other error comes again below
        pulled = torch.stack([torch.autograd.grad(made, parameter, one, retain_graph=True)[0] for one in cotangents])
    return pulled.flatten(1)


def _output_piece(seen: Record, layout: Layout, group: Group) -> Output:
    use, rows = seen.uses[group.uses[0]], layout.rows[group.uses[0]]
    assert isinstance(use, OuterUse)
    assert rows is not None
    (slopes,) = torch.autograd.grad(seen.output, [use.edge], torch.ones_like(seen.output), retain_graph=True)
    return Output(use.features(rows)[:, 0, 0], slopes, ones=len(group.names) > 1)


def _hidden_piece(seen: Record, network: Network, layout: Layout, group: Group) -> Piece:
    r"""The map before the last, for $f = s\,W z$, $z = \phi(a)$: its signals are $s\,W_i \odot \partial z/\partial a$.

    For the trace of one position, $\sum_i B_i(x)\cdot B_i(y) = (\phi'(x) \odot s^2\sum_i W_i^2)\cdot\phi'(y)$: one
    signal replaces those of all outputs. Otherwise the gradients of $z$ do.
    """
    assert layout.ends.output is not None
    last, use, rows = seen.uses[layout.ends.output], seen.uses[group.uses[0]], layout.rows[group.uses[0]]
    assert isinstance(last, OuterUse)
    assert isinstance(use, OuterUse)
    assert rows is not None
    assert last.held is not None
    f = seen.output
    (slopes,) = torch.autograd.grad(f, [last.edge], torch.ones_like(f), retain_graph=True)
    W = slopes[0, 0] * network.parameters[last.parameter].detach()
    W = W if last.outputs_first else W.mT  # (c, channels)
    size = W.norm(dim=0) if group.form is Form.HIDDEN else torch.ones_like(W[0])
    (signal,) = torch.autograd.grad(last.held, [use.edge], size.expand(len(f), -1), retain_graph=True)
    B = use.signals(signal, rows)  # (n, G, T, O)
    if group.form is Form.HIDDEN:
        return Gram(use.features(rows), B[:, None], ones=len(group.names) > 1)
    gradients = B.sum(2)[..., None] if use.bias else B.mT @ use.features(rows)
    return Channels(gradients.flatten(1, 2), W)


# --- per-row Jacobians ----------------------------------------------------------------------------------------------


def jacobians(
    network: Network, names: Iterable[str], x: Tensor, directions: Tensor, *, vmapped: bool
) -> dict[str, Tensor]:
    """(n, q, p) for each of these parameters, by automatic differentiation of one row at a time."""
    if vmapped:
        return {name: J.flatten(2) for name, J in _vmap_jacobians(network, names, x, directions).items()}
    names = list(names)
    wanted = [network.parameters[name] for name in names]
    by_row: list[list[Tensor]] = []
    for row in torch.split(x, 1):
        with torch.enable_grad():
            f = network(row)
        check_output(network, f, row)
        by_output = [
            torch.autograd.grad(f, wanted, e, retain_graph=True, allow_unused=True) for e in directions[:, None]
        ]
        by_row.append([_stacked(parts, p) for parts, p in zip(zip(*by_output, strict=True), wanted, strict=True)])
    return {name: torch.stack(rows) for name, rows in zip(names, zip(*by_row, strict=True), strict=True)}


def _stacked(gradients: Sequence[Tensor | None], p: Tensor) -> Tensor:
    """(q, p) from the gradients of one row's outputs."""
    dense = [torch.zeros_like(p) if g is None else g.to_dense() if g.is_sparse else g for g in gradients]
    return torch.stack([g.flatten() for g in dense])


def _vmap_jacobians(network: Network, names: Iterable[str], x: Tensor, directions: Tensor) -> dict[str, Tensor]:
    fixed = {name: p.detach() for name, p in network.parameters.items()}

    def of_row(row: Tensor) -> dict[str, Tensor]:
        chosen = {name: fixed[name] for name in names}
        jacobian: dict[str, Tensor] = jacrev(lambda q: directions @ network.function({**fixed, **q}, row[None])[0])(
            chosen
        )
        return jacobian

    # An LSTM on a CPU keeps what its backward pass needs only where gradients are on outside of the map as well.
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.filterwarnings("ignore", message="There is a performance drop")  # slow, not wrong
        result: dict[str, Tensor] = vmap(of_row)(x)
    return result


def _vmap_works(network: Network, names: Sequence[str], x: Tensor) -> bool:
    """Whether torch can map the Jacobian over rows; if not, the rows go one by one through plain autograd.

    This hides nothing: the plain route raises any error that is not vmap's own again.
    """
    if not names:
        return False
    try:
        with torch.no_grad():
            ones = network(x[:1]).new_ones(1, network(x[:1]).shape[1])
        _vmap_jacobians(network, names, x, ones)
    except RuntimeError:
        return False
    return True


def _batches(two: Record) -> bool:
    """Whether torch can map a backward pass over directions, with the signals of passes for one direction each."""
    edges = [use.edge for use in two.uses]
    if not edges:
        return False
    mixtures = mixture_of(two.output, 2)
    try:
        mapped = signals_at(two.output, edges, mixtures)
    except RuntimeError:  # an operation that torch cannot map; then there is a pass for each
        return False
    for k, mixture in enumerate(mixtures):
        for found, alone in zip(mapped, signals_at(two.output, edges, mixture[None]), strict=True):
            if (found is None) != (alone is None):
                return False
            if found is None or alone is None:
                continue
            if (found[k] - alone[0]).abs().max() > tolerance(alone) * alone.abs().max():
                return False
    return True


def _witness_agrees(plan: RecordedPlan, x: Tensor, two: Record) -> bool:
    """Whether K(x_0, x_1) and K(x_0, x_0) of one random mixture of outputs agree with plain autograd."""
    layout = plan.layout
    names = [name for name in plan.network.selected if name not in layout.opaque]
    if not names:
        return True
    f = two.output
    mixture = mixture_of(f)[0]
    groups = tuple(replace(group, form=Form.GRAM if group.form in ENDINGS else group.form) for group in layout.groups)
    layerwise = f.new_zeros(2, 1, 2, 1)
    if groups:
        witness = replace(plan, layout=replace(layout, groups=groups, opaque=()))
        begun = RecordedPass(witness, x, 1, seen=two)
        for piece in (*begun.streamed(mixture[None]).values(), *begun.collected().values()):
            add_block(piece, piece, layerwise, full=True, symmetric=False, numbers=WITNESS_NUMBERS)
    wanted = [plan.network.parameters[name] for name in names]
    plain = []
    for row in range(2):
        cotangent = torch.zeros_like(f).index_copy_(0, torch.tensor([row], device=f.device), mixture[None])
        gradients = torch.autograd.grad(f, wanted, cotangent, retain_graph=True, allow_unused=True)
        plain.append(torch.cat([_stacked([g], p)[0] for g, p in zip(gradients, wanted, strict=True)]))
    # In float64: products over all parameters at once lose three digits to rounding in a net of ten million.
    gradients_of_rows = torch.stack(plain).double()
    expected = gradients_of_rows @ gradients_of_rows.mT
    scale = expected.diagonal().sqrt()
    error = (layerwise.view(2, 2) - expected).abs()
    return bool((error <= tolerance(f) * (scale[:, None] * scale)).all())
