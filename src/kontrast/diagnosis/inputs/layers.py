"""Layers by their names: which submodules are listened to, and how what they return becomes rows (n, d)."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from kontrast.checks import in_words, require_type
from kontrast.errors import InputError

EMBEDDING = "embedding"  # the layer that is what the module returns
MOST_OF_HEAD = 6  # linear layers of the head that are told apart
FEW_NAMES = 6  # that a message tells


@dataclass(frozen=True)
class Tap:
    """A layer: what a submodule returns, or what enters it."""

    layer: str
    at: str
    enters: bool = False


@contextmanager
def tapped(module: nn.Module, taps: Iterable[Tap], keep: Callable[[Tap, Any], None]) -> Iterator[None]:
    """Hand what passes each tap to `keep`, at once: a later layer may work in place on it."""
    parts = dict(module.named_modules(remove_duplicate=False))
    handles = []
    for tap in taps:
        if tap.enters:

            def before(_: nn.Module, args: Any, kwargs: Any, tap: Tap = tap) -> None:
                keep(tap, (args, kwargs))

            handles.append(parts[tap.at].register_forward_pre_hook(before, with_kwargs=True))
        else:

            def after(_: nn.Module, __: Any, output: Any, tap: Tap = tap) -> None:
                keep(tap, output)

            handles.append(parts[tap.at].register_forward_hook(after))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def wanted_taps(module: nn.Module, features: str | None, head: str | None) -> tuple[list[Tap], Tap | None]:
    """The layers that `features` and `head` name, whether or not they run, and the one that probes judge."""
    parts = dict(module.named_modules(remove_duplicate=False))
    inside = None if head is None else _part_called(parts, head, "head")
    judged = None
    if features is not None:
        at = _part_called(parts, features, "features")
        judged = Tap(f"{at} layer" if at == EMBEDDING else at, at)
    elif inside is not None:
        judged = Tap(f"before {inside}", inside, enters=True)
    taps = [] if judged is None else [judged]
    if inside is not None:
        linear = [name for name, part in parts[inside].named_modules(prefix=inside) if isinstance(part, nn.Linear)]
        taps += [Tap(name, name) for name in linear if judged is None or judged.enters or name != judged.at]
    return taps, judged


def evenly(taps: list[Tap]) -> list[Tap]:
    """At most six of the head's layers, the first and the last among them."""
    last = len(taps) - 1
    if last < MOST_OF_HEAD:
        return taps
    return [taps[round(k * last / (MOST_OF_HEAD - 1))] for k in range(MOST_OF_HEAD)]


def _part_called(parts: Mapping[str, nn.Module], name: str, argument: str) -> str:
    """The name of a submodule, without what wrappers put before it; refuses a name that is none."""
    require_type(argument, name, str, "name a submodule, as in module.named_modules()")
    plain = name.replace("_orig_mod.", "").removeprefix("module.")
    for known in (name, plain):
        if known and known in parts:
            return known
    names = [one for one in parts if one]
    if close := difflib.get_close_matches(plain, names, n=1):
        hint = f"did you mean {close[0]!r}?"
    elif names:
        top = [one for one in names if "." not in one]
        hint = f"it has {', '.join(top[:FEW_NAMES])}{', …' if len(top) > FEW_NAMES else ''}"
    else:
        hint = f"it has no submodules, so leave {argument} out"
    raise InputError(f"{argument}={name!r} names no submodule of {type(parts['']).__name__}; {hint}")


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in what a layer takes or returns: a tensor, or one in tuples, mappings or objects."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)
    elif dataclasses.is_dataclass(value):
        yield from tensors_in(vars(value))


def tensor_of(value: Any, what: str) -> Tensor:
    """The first tensor of floating-point numbers that a layer returned, or that entered it."""
    for tensor in tensors_in(value):
        if tensor.is_floating_point() and tensor.ndim >= 2:
            return tensor
    raise InputError(f"{what} gives {in_words(value)} without a tensor of features; name another layer")


def as_rows(value: Tensor, n: int | None, what: str) -> Tensor:
    """One row for each of n samples, (n, d): maps (n, c, h, w) and tokens (n, t, d) are averaged over their places."""
    if not value.is_floating_point():
        raise InputError(f"{what} gives {in_words(value)}; it must give real floating-point numbers")
    if value.ndim < 2 or 0 in value.shape or (n is not None and value.shape[0] != n):
        rows = "one row for each sample" if n is None else f"{n} rows for {n} samples"
        raise InputError(
            f"{what} gives shape {tuple(value.shape)}, not {rows}; have it give (n, d), maps (n, c, h, w) or tokens "
            "(n, t, d), or pick a part of it with select="
        )
    if value.ndim == 2:
        return value
    return value.mean(1) if value.ndim == 3 else value.flatten(2).mean(2)


def averaged_in_words(layer: str, shape: tuple[int, ...]) -> str:
    """The note of a layer that is averaged over its places; empty for rows."""
    if len(shape) == 3 and shape[1] > 1:
        return f"{layer} is {shape[1]} tokens of {shape[2]} numbers; their mean was diagnosed"
    if len(shape) > 3 and any(size > 1 for size in shape[2:]):
        size = "×".join(map(str, shape[2:]))
        return f"{layer} is {shape[1]} maps of {size} places; their means were diagnosed"
    return ""
