"""A module at a parameter point: its parameters and buffers, from a whole state_dict or refused."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from kontrast.checks import require_type
from kontrast.errors import InputError

FEW_NAMES = 3  # that a message tells
FIX = "pass what module.state_dict() gives"


def at_point(
    module: nn.Module, state: Mapping[str, Tensor], name: str = "parameters"
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The parameters and the buffers of the module at another point, by its own names.

    `state` is a whole state_dict, or the parameters alone of a module without running statistics: one point's
    parameters never meet another's statistics. `name` is what messages call it.
    """
    require_state(name, state)
    own, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    known = {plain_name(it): it for it in (*own, *buffers)}
    # Tied parameters stand in a state_dict under all of their names; here under the first.
    point = {known[plain_name(it)]: value for it, value in state.items() if plain_name(it) in known}
    strange = [it for it in state if plain_name(it) not in known]
    tied = [it for it in strange if any(state[it] is value or _same(state[it], value) for value in point.values())]
    missing, unknown = [it for it in own if it not in point], [it for it in strange if it not in tied]
    if missing or unknown:
        parts = [f"no {_some(missing)}"] * bool(missing)
        parts += [f"{_some(unknown)}, which the net has not"] * bool(unknown)
        raise InputError(f"{name} hold {' and '.join(parts)}; pass the state_dict() of a module built like this one")
    require_statistics(name, module, point)
    for it, here in {**own, **buffers}.items():
        if it in point and point[it].shape != here.shape:
            kind = "parameter" if it in own else "buffer"
            raise InputError(f"the net's {kind} {it} has shape {tuple(here.shape)}, got {tuple(point[it].shape)}")
    return {it: point[it] for it in own}, {it: point.get(it, b) for it, b in buffers.items()}


def statistics_of(module: nn.Module) -> list[str]:
    """The names of the buffers that are stored and change in training as parameters do, such as running means."""
    buffers = dict(module.named_buffers())
    if not buffers:
        return []
    stored = module.state_dict()
    return [name for name, b in buffers.items() if name in stored and b.is_floating_point()]


def require_statistics(name: str, module: nn.Module, point: Mapping[str, Tensor]) -> None:
    """Refuse a point without the running statistics that belong to its parameters."""
    left_out = [it for it in statistics_of(module) if it not in point]
    if left_out:
        raise InputError(
            f"{name} hold no {left_out[0]}, which changes in training as they do ({len(left_out)} such buffers), "
            "so the network would be half of one point and half of another; pass the whole state_dict() of the point, "
            f"or {{**module.state_dict(), **{name}}} to keep the module's own"
        )


def require_state(name: str, given: object) -> None:
    """Refuse anything but tensors by name."""
    require_type(name, given, Mapping, FIX)
    assert isinstance(given, Mapping)
    for key, value in given.items():
        require_type(f"{name}[{key!r}]", value, Tensor, FIX)


def plain_name(name: str) -> str:
    """A parameter's name without what wrappers put before it."""
    return name.replace("_orig_mod.", "").removeprefix("module.")


def _some(names: list[str]) -> str:
    """The first few."""
    return ", ".join(names[:FEW_NAMES]) + (f" and {len(names) - FEW_NAMES} more" if len(names) > FEW_NAMES else "")


def _same(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape
