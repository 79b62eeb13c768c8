"""Watch one forward pass: which operation uses which parameter, on what features, and where its gradient arrives.

Operations are caught at the level of torch's functions, so a user's own module that calls `F.linear` or `h @ W.T` is
understood as well as `nn.Linear`. What is made from parameters alone, the same for every row (a slice of a weight, a
table of positions, a normalised weight), is followed as a *derived* parameter: its gradient is pulled back to them. The
parameters of any other operation without a rule here are *opaque*: their gradients come from automatic differentiation.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from kontrast.kernels.convolutions import convolution


@dataclass(frozen=True)
class Rows:
    """The place of the batch's rows in a tensor: along `axis`, which holds `per_row` entries of every row.

    (n, …) has axis 0; a sequence-first (T, n, …) has axis 1; a flattened (n·T, …) has axis 0 and `per_row` T. The
    entries of a row are together there or, if flattened from (T, n), n apart.
    """

    axis: int
    per_row: int = 1
    together: bool = True
    heard: tuple[int, ...] | None = None  # the positions of a linear map that reach the output, where these are few

    def split(self, tensor: Tensor) -> Tensor:
        """(n, per_row, …other axes in their order…), a view."""
        tensor = tensor.movedim(self.axis, 0)
        if self.together:
            return torch.unflatten(tensor, 0, (-1, self.per_row))
        return torch.unflatten(tensor, 0, (self.per_row, -1)).transpose(0, 1)

    def joined(self, tensors: Tensor) -> Tensor:
        """(q, …), q such tensors, as one in which the rows of the first come first, then those of the second."""
        if len(tensors) == 1:
            return tensors[0]
        if self.together:
            return tensors.movedim(0, self.axis).flatten(self.axis, self.axis + 1)
        apart = torch.unflatten(tensors, self.axis + 1, (self.per_row, -1)).movedim(0, self.axis + 1)
        return apart.flatten(self.axis, self.axis + 2)

    def among_heard(self, positions: Tensor) -> Tensor:
        """Those heard of (n, G, T, …)."""
        return positions if self.heard is None else positions[:, :, list(self.heard)]


@dataclass(frozen=True, eq=False)
class Use:
    """One operation a = op(…, parameter, …); the rest of the pass depends on the parameter only through a."""

    parameter: str  # or the name of a derived one
    shape: torch.Size  # the parameter's
    output_shape: torch.Size
    edge: GradientEdge  # where ∂f/∂a arrives in a backward pass, even if a is overwritten in place later
    held: Tensor | None  # the features with their graph

    def signature(self) -> tuple[object, ...]:
        """The part that passes over different rows must have in common for one plan to fit both."""
        return (type(self).__name__, self.parameter, len(self.output_shape))

    def prepared(self, rows: Rows) -> Tensor | None:
        """The input of `gradient` that is the same for all outputs."""
        raise NotImplementedError

    def gradient(self, signal: Tensor, rows: Rows, prepared: Tensor | None) -> Tensor:
        """The gradient of every row with respect to the parameter, (n, p), from the signal ∂f_i/∂a.

        The signals may be of several outputs, one after another, as `Rows.joined` makes them: then (q·n, p).
        """
        raise NotImplementedError


def _by_rows(signals: Tensor, features: Tensor, operation: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The operation on signals (q·n, …) of q outputs and features (n, …) of the same rows."""
    if len(signals) == len(features):
        return operation(signals, features)
    return operation(torch.unflatten(signals, 0, (-1, len(features))), features).flatten(0, 1)


@dataclass(frozen=True, eq=False)
class OuterUse(Use):
    """a_t = W h_t at positions t: the gradient of W is Σ_t B_t h_t^T. Without features, a bias: h_t = 1."""

    at_features: Callable[[Rows, slice], Tensor]  # of some rows, (r, G, T, I)
    at_signals: Callable[[Tensor, Rows], Tensor]  # ∂f_i/∂a → (n, G, T, O)
    outputs_first: bool  # W is stored (O, I), not (I, O)
    bias: bool = False
    twin: str | None = None  # for a bias: the weight of the same operation
    convolution: bool = False

    def features(self, rows: Rows, part: slice = slice(None)) -> Tensor:
        """(r, G, T, I) of all or of some rows."""
        return rows.among_heard(self.at_features(rows, part))

    def signals(self, signal: Tensor, rows: Rows) -> Tensor:
        """∂f_i/∂a as (n, G, T, O)."""
        return rows.among_heard(self.at_signals(signal, rows))

    def heard(self, signal: Tensor, rows: Rows) -> Tensor:
        """Whether f_i depends on a at each position, (n, T)."""
        return self.at_signals(signal, rows).ne(0).any(3).any(1)

    def prepared(self, rows: Rows) -> Tensor | None:
        """The features."""
        return None if self.bias else self.features(rows)

    def gradient(self, signal: Tensor, rows: Rows, prepared: Tensor | None) -> Tensor:
        """Σ_t B_t h_t^T, or Σ_t B_t."""
        B = self.signals(signal, rows)
        if prepared is None:
            return B.sum(2).flatten(1)
        outer = _by_rows(B.mT, prepared, torch.matmul)  # (n, G, O, I), summed over positions
        return (outer if self.outputs_first else outer.mT).flatten(1)


@dataclass(frozen=True, eq=False)
class BroadcastUse(Use):
    """a = h ⊙ p or a = h + p with p broadcast against the batch: normalisation layers, scales and shifts."""

    factor: Callable[[], Tensor] | None  # ∂a/∂p, of the shape of a, computed when needed; None for 1
    aligned: tuple[int, ...]  # p's shape with as many axes as a

    def prepared(self, rows: Rows) -> Tensor | None:
        """The factor by rows."""
        return None if self.factor is None else rows.split(self.factor())

    def gradient(self, signal: Tensor, rows: Rows, prepared: Tensor | None) -> Tensor:
        """Σ B ⊙ h over all axes that p was broadcast along."""
        product = rows.split(signal) if prepared is None else _by_rows(rows.split(signal), prepared, torch.mul)
        kept = self.aligned[: rows.axis] + self.aligned[rows.axis + 1 :]
        summed = [1, *(axis for axis, size in enumerate(kept, start=2) if size == 1)]
        return product.sum(summed).reshape(len(product), -1)


@dataclass(frozen=True, eq=False)
class LookupUse(Use):
    """a_t = E[id_t], an embedding: a linear layer whose features are one-hot."""

    ids: Tensor
    padding: int | None  # this id's row of E is never trained

    def tokens(self, rows: Rows) -> Tensor:
        """(n, T) ids."""
        return rows.split(self.ids).flatten(1)

    def signals(self, signal: Tensor, rows: Rows) -> Tensor:
        """(n, 1, T, O), zero at padding."""
        B = rows.split(signal).flatten(1, -2)
        if self.padding is not None:
            B = _by_rows(B, (self.tokens(rows) != self.padding)[:, :, None], torch.mul)
        return B[:, None]

    def prepared(self, rows: Rows) -> Tensor | None:
        """The ids."""
        return self.tokens(rows)

    def gradient(self, signal: Tensor, rows: Rows, prepared: Tensor | None) -> Tensor:
        """Signals added up at their tokens' rows of E."""
        assert prepared is not None
        B, (vocabulary, width) = self.signals(signal, rows), self.shape
        n = len(B)
        tokens = prepared.repeat(n // len(prepared), 1)
        places = tokens + vocabulary * torch.arange(n, device=tokens.device)[:, None]
        total = B.new_zeros(n * vocabulary, width)
        return total.index_add_(0, places.flatten(), B.reshape(-1, width)).view(n, -1)


@dataclass
class Record:
    """The uses of parameters in one forward pass."""

    output: Tensor
    uses: list[Use]
    opaque: set[str]
    derived: dict[str, Derived]
    values: list[Tensor]  # the outputs of the uses, to find the rows in them; empty unless `keep_values`

    def signature(self) -> tuple[object, ...]:
        """What passes over different rows must have in common for one plan to fit both."""
        return tuple(use.signature() for use in self.uses), frozenset(self.derived)


@dataclass(frozen=True, eq=False)
class Derived:
    """A tensor made from parameters alone, with its graph."""

    tensor: Tensor
    sources: frozenset[str]  # the parameters it is made from


class Origins:
    """Names for what a pass computes: by the operation, the names of its inputs and how often that came before.

    The names are the same in every pass that does the same work, whatever the number of rows. Two surveyed passes, over
    one row and over two, tell which results do not grow with the rows: `alike` holds their names.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[object, ...], str] = {}
        self.alike: frozenset[str] = frozenset()

    def name(self, func: Any, inputs: Iterable[str], seen: Counter[tuple[object, ...]]) -> str:
        """The name of the next result of this operation on these inputs; `seen` counts within one pass."""
        step = (getattr(func, "__name__", str(func)), *inputs)
        seen[step] += 1
        return self._names.setdefault((*step, seen[step]), f"%{len(self._names)}")

    def survey(self, passes: Iterable[Callable[[], Tensor]], parameters: Mapping[str, Tensor]) -> None:
        """Find the names in `alike` from passes over different numbers of rows."""
        shapes = []
        for function in passes:
            survey = _Survey(self, parameters)
            with torch.enable_grad(), survey:
                function()
            shapes.append(survey.shapes)
        first, *others = shapes
        self.alike = frozenset(name for name, shape in first.items() if all(o.get(name) == shape for o in others))


def record(
    function: Callable[[], Tensor],
    parameters: Mapping[str, Tensor],
    origins: Origins | None = None,
    *,
    keep_values: bool = False,
    signals_only: bool = False,
) -> Record:
    """Run `function`, which must use exactly these tensors as its parameters, and note every use of them.

    With `signals_only` the parameters of some uses are outside the graph: there are signals, but no gradients.
    """
    recorder = _Recorder(parameters, origins or Origins(), keep_values, signals_only)
    with torch.enable_grad(), recorder:
        output = function()
    derived = {name: recorder.derived[name] for use in recorder.uses if (name := use.parameter) in recorder.derived}
    return Record(output, recorder.uses, recorder.opaque, derived, recorder.values)


class _Watcher(TorchFunctionMode):
    """Sees the operations of a pass, also those inside torch's own functions that are written in Python."""

    def __init__(self) -> None:
        super().__init__()
        self._open: set[Any] = set()

    def opens(self, func: Any) -> bool:
        """Whether it is such a function without a rule here, and not open: some pass themselves on to the mode."""
        is_python = isinstance(func, FunctionType) and func.__module__ == F.__name__
        return is_python and func not in _RULES and func not in self._open

    def inside(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Its result, with what it calls seen."""
        self._open.add(func)
        try:
            with self:
                return _opened(func)(*args, **kwargs)
        finally:
            self._open.discard(func)


class _Survey(_Watcher):
    """Names every result that parameters have a part in, and notes its shape."""

    def __init__(self, origins: Origins, parameters: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.origins = origins
        self.known: dict[int, tuple[str, Tensor]] = {id(p): (name, p) for name, p in parameters.items()}
        self.seen: Counter[tuple[object, ...]] = Counter()
        self.shapes: dict[str, torch.Size] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        inputs = [self.known[id(value)][0] for value in _tensors((args, kwargs)) if id(value) in self.known]
        if inputs and self.opens(func):
            return self.inside(func, args, kwargs)
        result = func(*args, **kwargs)
        made = [value for value in _tensors((result,)) if value.requires_grad]
        if inputs and made:
            name = self.origins.name(func, inputs, self.seen)
            for place, value in enumerate(made):
                self.known[id(value)] = (f"{name}.{place}", value)  # held, so that no identity is used twice
                self.shapes[f"{name}.{place}"] = value.shape
        return result


class _Recorder(_Watcher):
    def __init__(
        self, parameters: Mapping[str, Tensor], origins: Origins, keep_values: bool, signals_only: bool
    ) -> None:
        super().__init__()
        self.origins = origins
        self.keep_values, self.signals_only = keep_values, signals_only
        # By identity of the tensor object; a reference is held so that no identity is used twice.
        self.known = {id(p): _Known(name, name, p.shape, p, transposed=False) for name, p in parameters.items()}
        self.uses: list[Use] = []
        self.values: list[Tensor] = []
        self.opaque: set[str] = set()
        self.derived: dict[str, Derived] = {}
        self.seen: Counter[tuple[object, ...]] = Counter()

    def find(self, value: object) -> _Known | None:
        return self.known.get(id(value)) if isinstance(value, Tensor) else None

    def knows(self, input: Tensor, weight: Tensor, bias: Tensor | None = None, *rest: Any, **others: Any) -> bool:
        """Whether nothing but parameters is lost if a layer's weight and bias are cut from the graph."""
        made = [part for part in (weight, bias) if part is not None and part.requires_grad]
        return all(self.find(part) is not None for part in made)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        found = [known for value in _tensors((args, kwargs)) if (known := self.find(value))]
        rule = _RULES.get(func)
        if found and self.opens(func):
            return self.inside(func, args, kwargs)
        faster = self.signals_only and func is torch.conv2d and self.knows(*args, **kwargs)
        result = (convolution if faster else func)(*args, **kwargs)
        made = [value for value in _tensors((result,)) if value.requires_grad] if found else []
        # Results without a gradient (a shape, a detached copy) have nothing to differentiate.
        if made:
            self._note(func, found, rule, result, made, args, kwargs)
        return result

    def _note(
        self,
        func: Any,
        found: list[_Known],
        rule: _Rule | None,
        result: Any,
        made: list[Tensor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        sources = frozenset[str]().union(*(self._sources(known) for known in found))
        name = self.origins.name(func, (known.origin for known in found), self.seen)
        alike = f"{name}.0" in self.origins.alike
        if alike or rule is None:
            alias = found[0].alias(made[0], f"{name}.0") if len(found) == len(made) == 1 else None
            if alias is not None:
                self.known[id(made[0])] = alias
                return
        if alike:
            for place, value in enumerate(made):
                made_here = f"{name}.{place}"
                self.derived[made_here] = Derived(value, sources)
                self.known[id(value)] = _Known(made_here, made_here, value.shape, value, transposed=False)
            return
        if rule is not None and isinstance(result, Tensor):
            uses = list(rule(self, result, *args, **kwargs))
            self.uses += uses
            self.values += [result.detach()] * (len(uses) if self.keep_values else 0)
            if sorted(use.parameter for use in uses) == sorted(known.name for known in found):
                return
        self.opaque |= sources

    def _sources(self, known: _Known) -> frozenset[str]:
        return self.derived[known.name].sources if known.name in self.derived else frozenset([known.name])

    def use(self, kind: type[Use], parameter: _Known, out: Tensor, held: Tensor | None, **what: Any) -> Use:
        return kind(parameter.name, parameter.shape, out.shape, get_gradient_edge(out), held, **what)


@dataclass(frozen=True)
class _Known:
    name: str  # the parameter's, or the derived one's
    origin: str  # among `Origins`: an alias has one of its own
    shape: torch.Size
    tensor: Tensor
    transposed: bool

    def alias(self, other: Tensor, origin: str) -> _Known | None:
        """`other` as the same parameter, if it is all of it or its transpose."""
        mine = self.tensor
        if other.data_ptr() != mine.data_ptr() or other.dtype != mine.dtype:
            return None
        if other.shape == mine.shape and other.stride() == mine.stride():
            return _Known(self.name, origin, self.shape, other, self.transposed)
        if mine.ndim == 2 and other.shape == mine.shape[::-1] and other.stride() == mine.stride()[::-1]:
            return _Known(self.name, origin, self.shape, other, not self.transposed)
        return None


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
        elif isinstance(value, dict):
            yield from _tensors(value.values())


@functools.cache
def _opened(func: FunctionType) -> FunctionType:
    """A function of torch.nn.functional that runs its body under the mode.

    Such functions pass themselves to the mode as a whole (`if has_torch_function(…)`), which would hide the linear
    maps inside multi-head attention; this is the same code without that test.
    """
    names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    namespace = {**func.__globals__, **dict.fromkeys(names, lambda *_: False)}
    body = FunctionType(func.__code__, namespace, func.__name__, func.__defaults__, func.__closure__)
    body.__kwdefaults__ = func.__kwdefaults__
    return body


# The rules. Each takes the arguments of the functions it describes and yields the uses it can explain; a parameter that
# it does not explain is opaque.

_Rule = Callable[..., Iterator[Use]]


def _linear(rec: _Recorder, out: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Iterator[Use]:
    known = rec.find(weight)
    if known and weight.ndim == 2 and out.ndim >= 2:
        yield _linear_use(rec, out, input, known, outputs_first=not known.transposed)
    if (shift := rec.find(bias)) and out.ndim >= 2:
        yield _bias_use(rec, out, shift, known, _linear_signals)


def _matmul(rec: _Recorder, out: Tensor, input: Tensor, other: Tensor, **rest: Any) -> Iterator[Use]:
    if (known := rec.find(other)) and other.ndim == 2 and out.ndim >= 2 and not rec.find(input):
        yield _linear_use(rec, out, input, known, outputs_first=known.transposed)


def _addmm(
    rec: _Recorder, out: Tensor, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Iterator[Use]:
    if beta == alpha == 1:
        yield from _matmul(rec, out, mat1, mat2)
        if (shift := rec.find(input)) and input.ndim == 1 and len(input) == out.shape[1]:
            yield _bias_use(rec, out, shift, rec.find(mat2), _linear_signals)


def _linear_use(rec: _Recorder, out: Tensor, input: Tensor, known: _Known, *, outputs_first: bool) -> Use:
    h = input.detach()
    return rec.use(
        OuterUse,
        known,
        out,
        input,
        at_features=lambda rows, part: rows.split(h)[part].flatten(1, -2)[:, None],
        at_signals=_linear_signals,
        outputs_first=outputs_first,
    )


def _linear_signals(signal: Tensor, rows: Rows) -> Tensor:
    return rows.split(signal).flatten(1, -2)[:, None]


def _bias_use(
    rec: _Recorder,
    out: Tensor,
    bias: _Known,
    weight: _Known | None,
    signals: Callable[[Tensor, Rows], Tensor],
    *,
    convolution: bool = False,
) -> Use:
    like = out.detach().new_empty(1).expand(out.shape)  # a shape without storage

    def ones(rows: Rows, part: slice) -> Tensor:
        places = signals(like, rows)[part]
        return places.new_ones(()).expand(*places.shape[:3], 1)

    return rec.use(
        OuterUse,
        bias,
        out,
        None,
        at_features=ones,
        at_signals=signals,
        outputs_first=True,
        bias=True,
        twin=weight.name if weight else None,
        convolution=convolution,
    )


def _conv(
    rec: _Recorder,
    out: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | str | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> Iterator[Use]:
    if input.ndim != weight.ndim or weight.ndim > 4:
        return  # without a batch axis, or three-dimensional
    known, h = rec.find(weight), input.detach()

    def signals(groups: int, signal: Tensor, rows: Rows) -> Tensor:
        return _positions(rows.split(torch.unflatten(signal.flatten(2), 1, (groups, -1))))

    def features(rows: Rows, part: slice) -> Tensor:
        some = rows.split(h)[part].flatten(0, 1)  # (r·per_row, C, …)
        patches = _patches(some, groups, weight.shape[2:], stride, padding, dilation)  # (N, G, L, C/G·k)
        return torch.unflatten(patches, 0, (-1, rows.per_row)).transpose(1, 2).flatten(2, 3)

    if known and not known.transposed:
        signals_of_weight = functools.partial(signals, groups)
        what = {"at_features": features, "at_signals": signals_of_weight, "outputs_first": True, "convolution": True}
        yield rec.use(OuterUse, known, out, input, **what)
    if shift := rec.find(bias):
        yield _bias_use(rec, out, shift, known, functools.partial(signals, 1), convolution=True)


def _positions(split: Tensor) -> Tensor:
    """(n, r, G, features, L) → (n, G, r·L, features)."""
    return split.permute(0, 2, 1, 4, 3).flatten(2, 3)


def _patches(h: Tensor, groups: int, kernel: torch.Size, stride: Any, padding: Any, dilation: Any) -> Tensor:
    """The patches that a convolution multiplies, one per position: (N, groups, positions, channels·kernel)."""
    axes = len(kernel)
    stride, dilation = _per_axis(stride, axes), _per_axis(dilation, axes)
    if padding == "same":  # as torch does: an odd one goes to the right
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        h = F.pad(h, [side for total in reversed(totals) for side in (total // 2, total - total // 2)])
        padding = 0
    padding = (0,) * axes if padding == "valid" else _per_axis(padding, axes)
    if axes == 1:
        h, kernel = h.unsqueeze(2), torch.Size((1, *kernel))
        stride, dilation, padding = (1, *stride), (1, *dilation), (0, *padding)
    if h.is_cuda:
        windows = _windows(F.pad(h, [side for p in reversed(padding) for side in (p, p)]), kernel, stride, dilation)
    else:
        windows = F.unfold(h, tuple(kernel), dilation, padding, stride)
    return windows.reshape(len(h), groups, -1, windows.shape[-1]).mT


def _windows(h: Tensor, kernel: torch.Size, stride: Any, dilation: Any) -> Tensor:
    """(N, channels·kernel, positions) in one copy; `F.unfold` copies image by image on a GPU."""
    for axis, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True), start=2):
        h = h.unfold(axis, d * (k - 1) + 1, s)[..., ::d]
    return h.permute(0, 1, 4, 5, 2, 3).flatten(4).flatten(1, 3)


def _per_axis(value: Any, axes: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    return values * axes if len(values) == 1 else values


def _normalization(function: Callable[..., Tensor], *, by_channel: bool) -> _Rule:
    """The rule of a = weight ⊙ plain + bias, with the weight and the bias along axis 1 or along the last axes."""
    signature = inspect.signature(function)

    def rule(rec: _Recorder, out: Tensor, *args: Any, **kwargs: Any) -> Iterator[Use]:
        given = signature.bind(*args, **kwargs).arguments
        if given.get("training"):
            return  # with batch statistics the rows are not independent
        affine = {name: rec.find(given[name]) for name in ("weight", "bias") if name in given}
        plain: dict[str, Any] = {**given, "input": given["input"].detach(), **dict.fromkeys(affine)}
        for name, known in affine.items():
            if known:
                after = out.ndim - 2 if by_channel else 0
                aligned = (1,) * (out.ndim - known.tensor.ndim - after) + (*known.tensor.shape,) + (1,) * after
                factor = functools.partial(function, **plain) if name == "weight" else None
                yield rec.use(BroadcastUse, known, out, None, factor=factor, aligned=aligned)

    return rule


def _multiply(rec: _Recorder, out: Tensor, input: Any, other: Any, **rest: Any) -> Iterator[Use]:
    yield from _pointwise(rec, out, input, other, is_product=True)


def _add(rec: _Recorder, out: Tensor, input: Any, other: Any, *, alpha: float = 1, **rest: Any) -> Iterator[Use]:
    if alpha == 1:
        yield from _pointwise(rec, out, input, other, is_product=False)


def _pointwise(rec: _Recorder, out: Tensor, left: Any, right: Any, *, is_product: bool) -> Iterator[Use]:
    known, h = (rec.find(left), right) if rec.find(left) else (rec.find(right), left)
    if not known or known.transposed or not isinstance(h, Tensor) or rec.find(h) or h.shape != out.shape:
        return
    shape = known.tensor.shape
    aligned = (1,) * (out.ndim - len(shape)) + tuple(shape)
    detached = h.detach()
    factor = (lambda: detached) if is_product else None
    yield rec.use(BroadcastUse, known, out, h if is_product else None, factor=factor, aligned=aligned)


def _spread(rec: _Recorder, out: Tensor, input: Any, *sizes: Any, **rest: Any) -> Iterator[Use]:
    """A parameter repeated for every row: a class token, learned queries."""
    known = rec.find(input)
    if not known or known.transposed or out.ndim < len(known.shape):
        return
    aligned = (1,) * (out.ndim - len(known.shape)) + tuple(known.shape)
    if all(mine in (1, size) for mine, size in zip(aligned, out.shape, strict=True)):
        yield rec.use(BroadcastUse, known, out, None, factor=None, aligned=aligned)


def _embedding(
    rec: _Recorder,
    out: Tensor,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Iterator[Use]:
    known = rec.find(weight)
    if known and not known.transposed and max_norm is None and not scale_grad_by_freq:
        padding = padding_idx if padding_idx is None or padding_idx >= 0 else len(weight) + padding_idx
        yield rec.use(LookupUse, known, out, input, ids=input, padding=padding)


_RULES: dict[Any, _Rule] = {
    **dict.fromkeys((torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__), _matmul),
    **dict.fromkeys((torch.addmm, Tensor.addmm), _addmm),
    **dict.fromkeys((torch.conv1d, torch.conv2d), _conv),
    **dict.fromkeys((torch.mul, Tensor.mul, Tensor.__mul__), _multiply),
    **dict.fromkeys((torch.add, Tensor.add, Tensor.__add__, Tensor.add_, Tensor.__iadd__), _add),
    **dict.fromkeys((Tensor.expand, Tensor.expand_as, torch.broadcast_to, Tensor.broadcast_to), _spread),
    **dict.fromkeys((Tensor.repeat, torch.tile, Tensor.tile, torch.repeat_interleave), _spread),
    **{function: _normalization(function, by_channel=False) for function in (F.layer_norm, F.rms_norm)},
    **{function: _normalization(function, by_channel=True) for function in (F.group_norm, F.batch_norm)},
    F.linear: _linear,
    F.embedding: _embedding,
}
