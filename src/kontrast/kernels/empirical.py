r"""Empirical NTK $K_{ij}(x, y) = \nabla_\theta f_i(x)^\top \nabla_\theta f_j(y)$ (paper A, Sec. 2.3) of any module.

For a layer $a = V h$ with backward signal $B_i = \partial f_i / \partial a$, the weight gradient is the outer product
$B_i h^\top$, so the layer adds $(h(x)\cdot h(y))\,(B_i(x)\cdot B_j(y))$ to the kernel: two products of small
matrices, and no Jacobian with its n·c·p entries. `recording` finds the layers, `tangents` plans and computes their
pieces, `contraction` multiplies them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TypedDict, Unpack

import torch
from torch import Tensor, nn

from kontrast.checks import require_rows
from kontrast.errors import InputError
from kontrast.kernels.contraction import Piece, joined
from kontrast.kernels.mlp_tangents import mlp_plan
from kontrast.kernels.tangents import (
    Kind,
    Network,
    Plan,
    Question,
    RecordedPlan,
    UnplannedError,
    jacobian_plan,
    plan_for,
    refuse_dependent_rows,
)
from kontrast.memory import rows_that_fit
from kontrast.nets import MLP, PureFunction, pure_function

# Bytes that one forward pass may use, and entries of one tile of the kernel. Larger ones are no faster: products are
# long enough, a CPU's caches hold the tile, and half of a symmetric kernel is saved only if there are several tiles.
WORKING_SET = {"cpu": 2**24, "cuda": 2**33}
TILE = {"cpu": 2**17, "cuda": 2**22}


class NTKOptions(TypedDict, total=False):
    """The options of all empirical tangent kernels."""

    parameters: Mapping[str, Tensor] | None  # evaluate there, by the module's names, as a trajectory records them
    only: Iterable[str] | None  # restrict the kernel to these parameters, by names or prefixes such as "encoder.0"
    memory: float | None  # bytes to work in besides the result; by default half of what is free


def empirical_ntk(module: nn.Module, x: Tensor, y: Tensor | None = None, **options: Unpack[NTKOptions]) -> Tensor:
    """The tangent kernel (n, m, c, c) between the rows of `x` and `y` (`y=None`: of `x` with itself).

    Exact for any module whose rows are independent: linear and convolutional layers, biases, normalisations (in eval
    mode) and embeddings go layer by layer, even if a parameter is used several times; the rest goes through per-row
    Jacobians. The parameters are those that train, `requires_grad=True`; tied ones count once.

    Args:
        module: any module with outputs (n, c); it is not changed.
        x: rows (n, …) of floats or, for embeddings, integers.
        y: rows (m, …), or None for the symmetric kernel, which costs half.
        **options: `parameters`, `only` and `memory`, see `NTKOptions`.
    """
    return _kernels(module, x, y, Kind.FULL, **options)[""].permute(0, 2, 1, 3)


def empirical_ntk_trace(module: nn.Module, x: Tensor, y: Tensor | None = None, **options: Unpack[NTKOptions]) -> Tensor:
    """The sum over outputs, not the mean, of `empirical_ntk`'s diagonal blocks: Σ_i K_ii(x, y), shape (n, m).

    The outputs are summed inside the products, so the (n, m, c, c) kernel is never formed. Arguments as there.
    """
    return _kernels(module, x, y, Kind.TRACE, **options)[""]


def empirical_ntk_mean(module: nn.Module, x: Tensor, y: Tensor | None = None, **options: Unpack[NTKOptions]) -> Tensor:
    """`empirical_ntk_trace` divided by the number of outputs: the kernel of an average output, (n, m)."""
    trace = empirical_ntk_trace(module, x, y, **options)
    with torch.no_grad():
        n_outputs = network_of(module, options.get("parameters"), options.get("only"))(x[:1]).shape[1]
    return trace.div_(n_outputs)


def empirical_ntk_diagonal(module: nn.Module, x: Tensor, **options: Unpack[NTKOptions]) -> Tensor:
    """K(x_i, x_i) for every row, (n, c, c), without the rest of the kernel. Arguments as in `empirical_ntk`."""
    return _kernels(module, x, None, Kind.DIAGONAL, **options)[""]


def empirical_ntk_components(
    module: nn.Module, x: Tensor, y: Tensor | None = None, **options: Unpack[NTKOptions]
) -> dict[str, Tensor]:
    """The part of `empirical_ntk` due to each parameter, by name: (n, m, c, c) each; their sum is the kernel."""
    kernels = _kernels(module, x, y, Kind.FULL, True, **options)
    return {name: kernel.permute(0, 2, 1, 3) for name, kernel in kernels.items()}


def _kernels(
    module: nn.Module,
    x: Tensor,
    y: Tensor | None,
    kind: Kind,
    components: bool = False,
    /,
    *,
    parameters: Mapping[str, Tensor] | None = None,
    only: Iterable[str] | None = None,
    memory: float | None = None,
) -> dict[str, Tensor]:
    """The kernels by parameter, or their sum under the name ""; the full kernel as (n, c, m, c)."""
    with torch.inference_mode(False):  # inside inference mode there are no gradients
        network = network_of(module, parameters, only)
        x = check_rows("x", x, network)
        y = None if y is None else check_rows("y", y, network)
        question = Question(kind, len(x), len(x if y is None else y), components)
        if isinstance(module, MLP):
            plan = mlp_plan(module, network, kind, x=x, y=x if y is None else y)
            return _fill((plan, plan), x, y, question, memory)
        plans = _plans(network, x, y, question)
        try:
            return _fill(plans, x, y, question, memory)
        except UnplannedError:
            # The forward pass branches on values: no plan fits all rows, but automatic differentiation does.
            return _fill(_jacobian_plans(plans, x, y), x, y, question, memory)


def _plans(network: Network, x: Tensor, y: Tensor | None, question: Question) -> tuple[RecordedPlan, RecordedPlan]:
    refuse_dependent_rows(network, x, "x")
    plan = plan_for(network, two_rows(x, y), question, name="x")
    if y is not None:
        refuse_dependent_rows(network, y, "y")
    if y is None or _alike(x, y):
        return plan, plan
    # Rows of another shape, for instance sequences of another length: the same forms at other places.
    other = plan_for(network, two_rows(y, None), question, name="y")
    if other.n_outputs != plan.n_outputs:
        raise InputError(f"x has {plan.n_outputs} outputs but y has {other.n_outputs}; pass rows with equally many")
    if (plan.signature, plan.opaque, plan.ends) == (other.signature, other.opaque, other.ends):
        return plan, replace(other, groups=plan.groups)
    return _jacobian_plans((plan, other), x, y)


def _jacobian_plans(
    plans: tuple[RecordedPlan, RecordedPlan], x: Tensor, y: Tensor | None
) -> tuple[RecordedPlan, RecordedPlan]:
    first, second = (
        jacobian_plan(plan.network, plan.n_outputs, plan.activations, two_rows(rows, None))
        for plan, rows in zip(plans, (x, x if y is None else y), strict=True)
    )
    return first, second


def _alike(x: Tensor, y: Tensor) -> bool:
    return x.shape[1:] == y.shape[1:] and x.dtype == y.dtype


def two_rows(x: Tensor, y: Tensor | None) -> Tensor:
    """Two rows to plan with, different ones if there are."""
    if len(x) > 1:
        return x[:2]
    if y is not None and _alike(x, y):
        return torch.cat([x[:1], y[:1]])
    return torch.cat([x, x.roll(1, -1) if x.is_floating_point() and x.ndim > 1 else x])


# --- blocks of rows, tiles of the kernel ----------------------------------------------------------------------------


def _fill(
    plans: tuple[Plan, Plan], x: Tensor, y: Tensor | None, question: Question, memory: float | None
) -> dict[str, Tensor]:
    plan, c = plans[0], plans[0].n_outputs
    like, n, m = plan.network.like.detach(), question.n, question.m
    shape = {Kind.FULL: (n, c, m, c), Kind.TRACE: (n, m), Kind.DIAGONAL: (n, c, c)}[question.kind]
    names = plan.network.selected if question.components else ("",)
    results = {name: like.new_zeros(shape) for name in names}
    # One pair of rows has this many entries in a tile.
    cells = (1 if question.kind is Kind.TRACE else c * c) * plans[0].positions * plans[1].positions
    kept, at_work = (max(getattr(p, name) for p in plans) for name in ("bytes_kept", "bytes_at_work"))
    needed = at_work + 2 * kept + 2 * cells * like.element_size()
    rows = rows_that_fit(needed, max(n, m), memory=memory, device=like.device, what="tangents")
    # Where much is kept anyway, the forward pass may use as much: longer products are faster.
    at_once = max(1, min(rows, max(WORKING_SET.get(like.device.type, 2**28), rows * kept) // at_work))
    tile = max(1, min(rows, math.isqrt(TILE.get(like.device.type, 2**20) // cells)))
    with torch.no_grad():
        for i in _parts(range(n), rows):
            at_x = _computed(plans[0], x, i, at_once, tile)
            if question.kind is Kind.DIAGONAL:
                _add_diagonal(results, at_x, tile)
                continue
            for j in _parts(range(i.start if y is None else 0, m), rows):
                same = y is None and i == j
                at_y = at_x if same else _computed(plans[1], x if y is None else y, j, at_once, tile)
                for left, right in itertools.product(at_x, at_y):
                    _add_block(results, left, right, question, tile, symmetric=y is None)
    return results


@dataclass(frozen=True)
class _Part:
    """The tangents of consecutive rows."""

    rows: range
    pieces: dict[tuple[str, ...], Piece]

    def piece(self, names: tuple[str, ...], rows: range) -> Piece:
        return self.pieces[names].rows(rows.start - self.rows.start, rows.stop - self.rows.start)


def _computed(plan: Plan, x: Tensor, rows: range, at_once: int, tile: int) -> list[_Part]:
    parts = [_Part(part, plan.pieces(x[part.start : part.stop])) for part in _parts(rows, at_once)]
    if 4 * at_once >= tile:  # long enough for fast products as they are
        return parts
    names = list(parts[0].pieces)
    return [_Part(rows, {name: joined([part.pieces.pop(name) for part in parts]) for name in names})]


def _add_block(
    results: dict[str, Tensor], left: _Part, right: _Part, question: Question, tile: int, *, symmetric: bool
) -> None:
    """Write one block of the kernel, tile by tile; of a symmetric kernel also the transposed block."""
    full = question.kind is Kind.FULL
    wide = 2 if full else 1  # the axis of y's rows
    for i, j in itertools.product(_parts(left.rows, tile), _parts(right.rows, tile)):
        if symmetric and j.start < i.start:
            continue
        for name, result in results.items():
            part = result[i.start : i.stop].narrow(wide, j.start, len(j))
            buffer = torch.zeros_like(part, memory_format=torch.contiguous_format)
            for names in left.pieces:
                if name in ("", *names):
                    at_x, at_y = left.piece(names, i), right.piece(names, j)
                    (at_x.add_full if full else at_x.add_trace)(at_y, buffer)
            part.copy_(buffer)
            if symmetric and j.start > i.start:
                mirror = buffer.permute(2, 3, 0, 1) if full else buffer.mT
                result[j.start : j.stop].narrow(wide, i.start, len(i)).copy_(mirror)


def _add_diagonal(results: dict[str, Tensor], at_x: list[_Part], tile: int) -> None:
    for part in at_x:
        for i in _parts(part.rows, tile):
            for name, result in results.items():
                for names in part.pieces:
                    if name in ("", *names):
                        part.piece(names, i).add_diagonal(result[i.start : i.stop])


def _parts(rows: range, size: int) -> Iterator[range]:
    return (range(start, min(start + size, rows.stop)) for start in range(rows.start, rows.stop, size))


# --- the module and its rows, checked -------------------------------------------------------------------------------


def network_of(
    module: nn.Module, parameters: Mapping[str, Tensor] | None = None, only: Iterable[str] | None = None
) -> Network:
    """The module as a pure function of the chosen parameters; refuses a module without a tangent kernel."""
    if not isinstance(module, nn.Module):
        raise InputError(f"module must be an nn.Module, got {type(module).__name__}; wrap a function in a module")
    own = dict(module.named_parameters())
    what = type(module).__name__
    if not own:
        raise InputError(f"{what} has no parameters, so it has no tangent kernel")
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in own.values()):
        raise InputError(f"{what} has lazy layers without parameters yet; call it once on a batch first")
    _refuse_randomness(module)
    point = own if parameters is None else _at_point(own, parameters)
    first = next(iter(point.values()))
    for name, p in point.items():
        if not p.is_floating_point():
            raise InputError(f"the parameters of {what} must be real floats, but {name} is {p.dtype}")
        if p.dtype != first.dtype or p.device != first.device:
            raise InputError(
                f"the parameters of {what} must have one dtype and one device, but {name} is {p.dtype} on {p.device} "
                f"and {next(iter(point))} is {first.dtype} on {first.device}; convert with module.to(…)"
            )
    detached = {name: p.detach().requires_grad_() for name, p in point.items()}
    return Network(what, _differentiable(module), detached, _selected(own, only))


def _differentiable(module: nn.Module) -> PureFunction:
    """The module as a pure function of a copy of x, since its first layer may work in place.

    Recurrent layers run without cuDNN, which has no derivative in eval mode.
    """
    function = pure_function(module)
    recurrent = any(isinstance(part, nn.RNNBase) for part in module.modules())

    def on_a_copy(parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        with torch.backends.cudnn.flags(enabled=False) if recurrent else nullcontext():
            return function(parameters, x.clone())

    return on_a_copy


def _at_point(own: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    if parameters.keys() != own.keys():
        raise InputError(f"the net's parameters are {sorted(own)}, got {sorted(parameters)}")
    for name, p in own.items():
        if parameters[name].shape != p.shape:
            raise InputError(
                f"the net's parameter {name} has shape {tuple(p.shape)}, got {tuple(parameters[name].shape)}"
            )
    return {name: parameters[name] for name in own}


def _selected(own: Mapping[str, Tensor], only: Iterable[str] | None) -> tuple[str, ...]:
    trained = [name for name, p in own.items() if p.requires_grad]
    if not trained:
        raise InputError("all parameters are frozen (requires_grad=False); call module.requires_grad_(True)")
    if only is None:
        return tuple(trained)
    wanted = [only] if isinstance(only, str) else list(only)
    for given in wanted:
        if not isinstance(given, str):
            raise InputError(f"only must hold names of parameters, got {given!r}; there are {list(own)}")
        if not any(_matches(name, given) for name in own):
            raise InputError(f"only holds {given!r}, which is no parameter nor a prefix of one; there are {list(own)}")
    chosen = tuple(name for name in trained if any(_matches(name, given) for given in wanted))
    if not chosen:
        raise InputError(f"only selects no parameter that trains, got {wanted}; those that train are {trained}")
    return chosen


def _matches(name: str, given: str) -> bool:
    return name == given or name.startswith(given + ".")


def _refuse_randomness(module: nn.Module) -> None:
    """Refuse batch statistics, which couple the rows, and dropout, which is random: neither has a kernel of rows."""
    for path, part in module.named_modules():
        what = f"{type(part).__name__} {path!r}" if path else type(part).__name__
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and (part.training or part.running_mean is None):
            cause = "in train mode" if part.training else "without running statistics"
            fix = "call module.eval()" if part.running_mean is not None else "build it with track_running_stats=True"
            raise InputError(f"{what} {cause} uses batch statistics, so a row's output depends on the others; {fix}")
        rate = getattr(part, "dropout", getattr(part, "p", 0)) if isinstance(part, _RANDOM) else 0
        if part.training and isinstance(rate, float | int) and rate > 0:
            raise InputError(f"{what} in train mode drops entries at random, so f is no function; call module.eval()")
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.max_norm is not None:
            raise InputError(f"{what} has max_norm, which rewrites its weights in every forward pass; build it without")


_RANDOM = (nn.modules.dropout._DropoutNd, nn.MultiheadAttention, nn.RNNBase)


def check_rows(name: str, rows: Tensor, network: Network) -> Tensor:
    """The rows without gradients; refuses rows that the network cannot take."""
    like = network.like
    require_rows(name, rows)
    if rows.is_complex():
        raise InputError(f"{name} must be real, got complex numbers; pass their real and imaginary parts as columns")
    if rows.device != like.device or (rows.is_floating_point() and rows.dtype != like.dtype):
        raise InputError(
            f"{name} is {rows.dtype} on {rows.device} but the net is {like.dtype} on {like.device}; "
            f"convert with {name}.to(device={str(like.device)!r}, dtype={like.dtype})"
        )
    if rows.is_floating_point() and not rows.isfinite().all():
        bad = int((~rows.isfinite().flatten(1).all(1)).nonzero()[0]) if rows.ndim > 1 else 0
        raise InputError(f"{name} holds NaN or infinite numbers, first in row {bad}; remove or replace them")
    return rows.detach().clone() if rows.is_inference() else rows.detach()
