"""A module as the tangent kernels see it: a pure function of rows at a parameter point, or a refusal that says why not.

Wrappers are taken off (`torch.compile`, `DataParallel`), half precision is read as float32, and whatever couples rows
or leaves the output to chance is refused before any work starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kontrast.checks import require_rows
from kontrast.errors import InputError
from kontrast.nets import (
    MLP,
    Parameters,
    PureFunction,
    Select,
    at_point,
    plain_name,
    pure_function,
    select_output,
    unwrapped,
)
from kontrast.threads import as_many_threads_as_cores_are_idle

# How far two evaluations of the same number may differ, relative to its scale.
ROUNDING = {torch.float64: 1e-8, torch.float32: 1e-3}
WITNESSES = 16  # rows for which a module must give the same outputs alone, in another order and again
HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, eq=False)
class Network:
    """A module at a parameter point as a pure function, and the parameters whose tangents are wanted."""

    module: nn.Module  # without its wrappers
    function: PureFunction
    parameters: Parameters  # all of them, detached, with requires_grad
    selected: tuple[str, ...]
    output: Select | None = None  # what `function` picks from the module's result

    def __call__(self, x: Tensor) -> Tensor:
        """f(x) at these parameters."""
        return self.function(self.parameters, x)

    @property
    def name(self) -> str:
        """What messages call it."""
        return type(self.module).__name__

    @property
    def mlp(self) -> MLP | None:
        """The module, if its tangents have a formula of their own."""
        return self.module if type(self.module) is MLP and self.output is None else None

    @property
    def like(self) -> Tensor:
        """A tensor of the network's number type and device."""
        return next(iter(self.parameters.values()))


def network_of(
    module: nn.Module,
    parameters: Mapping[str, Tensor] | None = None,
    only: Iterable[str] | None = None,
    output: Select | None = None,
) -> Network:
    """The module as a pure function of the chosen parameters; refuses a module without a tangent kernel."""
    if not isinstance(module, nn.Module):
        raise InputError(f"module must be an nn.Module, got {type(module).__name__}; wrap a function in a module")
    module = unwrapped(module)
    own = dict(module.named_parameters())
    what = type(module).__name__
    if not own:
        raise InputError(f"{what} has no parameters, so it has no tangent kernel")
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in own.values()):
        raise InputError(f"{what} has lazy layers without parameters yet; call it once on a batch first")
    _refuse_layers(module)
    buffers = dict(module.named_buffers())
    point: dict[str, Tensor] = dict(own)
    if parameters is not None:
        point, buffers = at_point(module, parameters)
    _require_one_home(what, {**point, **buffers}, own)
    dtype = torch.promote_types(next(iter(point.values())).dtype, torch.float32)
    detached = {name: p.detach().to(dtype).requires_grad_() for name, p in point.items()}
    function = _differentiable(module, {name: _wide(b) for name, b in buffers.items()}, output)
    return Network(module, function, detached, _selected(own, only), output)


@contextmanager
def undisturbed(module: nn.Module) -> Iterator[None]:
    """Work with gradients, in full precision, without compiled code and the module's backward hooks; all is put back.

    Compiled code hides its operations, and a backward hook may change the gradients it sees. On a busy machine fewer
    threads take less time.
    """
    parts = list(module.modules()) if isinstance(module, nn.Module) else []
    kinds = ("_backward_hooks", "_backward_pre_hooks")
    hooks = [(part, kind, given) for part in parts for kind in kinds if (given := part.__dict__.get(kind))]
    compiled = any("_orig_mod" in part._modules or part._compiled_call_impl is not None for part in parts)
    with ExitStack() as stack:
        stack.enter_context(as_many_threads_as_cores_are_idle())
        stack.enter_context(torch.inference_mode(False))  # inside inference mode there are no gradients
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        known: Any = torch.backends
        for backend in (known.cuda.matmul, known.cudnn.conv, known.cudnn.rnn):
            stack.callback(setattr, backend, "fp32_precision", backend.fp32_precision)
            backend.fp32_precision = "ieee"  # TF32, the default of convolutions, has ten bits
        if compiled:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        for part, kind, given in hooks:
            stack.callback(setattr, part, kind, given)
            setattr(part, kind, type(given)())
        yield


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in HALF else tensor


def _differentiable(module: nn.Module, buffers: Mapping[str, Tensor], output: Select | None) -> PureFunction:
    """The module as a pure function of a copy of x, since its first layer may work in place.

    Recurrent layers run without cuDNN, which has no derivative in eval mode.
    """
    plain = output is None and isinstance(module, MLP)  # its way is shorter without a choice
    function = pure_function(
        module, buffers=buffers, select=None if plain else lambda result: select_output(result, output, module)
    )
    recurrent = any(isinstance(part, nn.RNNBase) for part in module.modules())

    def on_a_copy(parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        with ExitStack() as stack:
            if recurrent:
                stack.callback(setattr, torch.backends.cudnn, "enabled", torch.backends.cudnn.enabled)
                torch.backends.cudnn.enabled = False
            return function(parameters, x.clone())

    return on_a_copy


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
    name, given = plain_name(name), plain_name(given)
    return name == given or name.startswith(given + ".")


# --- what has no kernel ---------------------------------------------------------------------------------------------


def _require_one_home(what: str, state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Refuse tensors without values, on several devices, or of several number types."""
    first_name, first = next(iter(state.items()))
    for name, tensor in state.items():
        kind = "parameters" if name in own else "buffers"
        if tensor.is_meta:
            raise InputError(
                f"the {kind} of {what} must have values, but {name} is on the meta device; call "
                f"module.to_empty(device='cpu') and load its weights"
            )
        if name in own and not tensor.is_floating_point():
            raise InputError(f"the parameters of {what} must be real floats, but {name} is {tensor.dtype}")
        # Half precision is read as float32, so it may stand beside it.
        other_type = name in own and _wide(tensor).dtype != _wide(first).dtype
        if tensor.device != first.device or other_type:
            raise InputError(
                f"the {kind} of {what} must have one dtype and one device, but {name} is {tensor.dtype} on "
                f"{tensor.device} and {first_name} is {first.dtype} on {first.device}; convert with module.to(…)"
            )


def _refuse_layers(module: nn.Module) -> None:
    """Refuse batch statistics, which couple the rows, dropout, which is random, and embeddings that rewrite weights."""
    for path, part in module.named_modules():
        what = f"{type(part).__name__} {path!r}" if path else type(part).__name__
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and (part.training or part.running_mean is None):
            cause = "in train mode" if part.training else "without running statistics"
            fix = "call module.eval()" if part.running_mean is not None else "build it with track_running_stats=True"
            raise InputError(f"{what} {cause} uses batch statistics, so a row's output depends on the others; {fix}")
        rate = getattr(part, "dropout", getattr(part, "p", 0)) if isinstance(part, _RANDOM) else 0
        if part.training and isinstance(rate, float | int) and rate > 0:
            raise InputError(f"{what} in train mode drops entries at random, so f is no function; call module.eval()")
        if isinstance(part, nn.Embedding | nn.EmbeddingBag):
            if part.max_norm is not None:
                raise InputError(
                    f"{what} has max_norm, which rewrites its weights in every forward pass; build it without"
                )
            if part.sparse:
                raise InputError(
                    f"{what} has sparse gradients, and kernels need dense ones; set module.sparse = False on it, "
                    "which changes no output"
                )


_RANDOM = (nn.modules.dropout._DropoutNd, nn.MultiheadAttention, nn.RNNBase)


def _hint(module: nn.Module) -> str:
    for path, part in module.named_modules():
        if isinstance(part, nn.MultiheadAttention) and not part.batch_first:
            return (
                f" (MultiheadAttention {path!r} has batch_first=False: it attends along axis 0, so rows that lie "
                "there attend to each other; build it with batch_first=True, or transpose before it)"
            )
    return ""


def require_finite_parameters(network: Network, what: str) -> None:
    """Refuse NaN and infinite parameters by name."""
    for name, p in network.parameters.items():
        if not p.isfinite().all():
            raise InputError(f"{what} NaN or infinite numbers in {name}; training diverged before this point")


def check_rows(name: str, rows: Tensor, network: Network) -> Tensor:
    """The rows without gradients; refuses rows that the network cannot take."""
    like = network.like
    require_rows(name, rows)
    if rows.is_complex():
        raise InputError(f"{name} must be real, got complex numbers; pass their real and imaginary parts as columns")
    if rows.dtype in HALF and like.dtype == torch.float32:
        rows = rows.float()
    if rows.device != like.device or (rows.is_floating_point() and rows.dtype != like.dtype):
        raise InputError(
            f"{name} is {rows.dtype} on {rows.device} but the net is {like.dtype} on {like.device}; "
            f"convert with {name}.to(device={str(like.device)!r}, dtype={like.dtype})"
        )
    if rows.is_floating_point() and not rows.isfinite().all():
        bad = int((~rows.isfinite().flatten(1).all(1)).nonzero()[0]) if rows.ndim > 1 else 0
        raise InputError(f"{name} holds NaN or infinite numbers, first in row {bad}; remove or replace them")
    return rows.detach().clone() if rows.is_inference() else rows.detach()


# --- outputs --------------------------------------------------------------------------------------------------------


def evaluated(network: Network, x: Tensor, name: str) -> Tensor:
    """One plain pass."""
    with told_of(network, x, name):
        output = network(x)
    check_shape_of(network, output, x)
    return output


@contextmanager
def told_of(network: Network, x: Tensor, name: str) -> Iterator[None]:
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
    if not output.is_floating_point():
        raise InputError(
            f"{network.name} returns {output.dtype}, which has no gradient; return what comes before argmax or rounding"
        )
    if output.dtype != network.like.dtype:
        raise InputError(
            f"{network.name} returns {output.dtype} but its parameters are read as {network.like.dtype}; return "
            "outputs as the last layer makes them, without a conversion"
        )


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
        together = evaluated(network, few, name)
        apart = [evaluated(network, part.flip(0), name).flip(0) for part in torch.split(few, half)]
    difference = (torch.cat(apart) - together).abs().max()
    if difference > tolerance(together) * together.abs().max():
        raise InputError(
            f"{network.name} gives a row of {name} another output when other rows are evaluated with it (they "
            f"differ by {float(difference):.1e}): its rows depend on each other or on chance (batch statistics, "
            f"dropout){_hint(network.module)}, so there is no kernel between rows; make the forward pass deterministic "
            "and independent for each row"
        )


def tolerance(like: Tensor) -> float:
    """The rounding allowed between two evaluations in this number type."""
    return ROUNDING[like.dtype]
