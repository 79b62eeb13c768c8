"""Every refusal of bad input, once: what was wrong, what was given, how to fix it.

One rule for each kind of value, everywhere. A whole number is anything that `operator.index` takes (Python's, numpy's,
a tensor of one integer) and never a bool. A number is real, and never a bool. A device or a dtype is a string or
torch's own object. Messages name the Python argument; the command line translates that name into its option.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Iterable, Sequence, Sized
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from kontrast.errors import InputError, TooManyComponentsError

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def require_whole(name: str, value: Any, *, least: int = 1, most: int | None = None, otherwise: str = "") -> int:
    """`value` as an int between `least` and `most`; `otherwise` names what else is allowed, as in ", or 'all'"."""
    whole = as_whole(value)
    if whole is not None and least <= whole and (most is None or whole <= most):
        return whole
    limit = f"at least {least}" if whole is None or whole < least else f"at most {most}"
    raise InputError(f"{name} must be a whole number of {limit}{otherwise}, got {_shown(value)}")


def as_whole(value: Any) -> int | None:
    """`value` as an int where it is a whole number, else None."""
    if isinstance(value, bool | np.bool_) or getattr(value, "dtype", None) == torch.bool:
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def is_number(value: Any) -> bool:
    """Whether it is a real number, Python's or numpy's, and no bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def require_positive(**values: float) -> None:
    """Refuse named values that are not finite numbers above zero."""
    for name, value in values.items():
        if not (is_number(value) and 0 < value < math.inf):
            raise InputError(f"{name} must be a positive number, got {_shown(value)}; pass a value above 0")


def require_not_negative(**values: float) -> None:
    """Refuse named values that are not numbers of at least zero. Infinity passes, NaN does not."""
    for name, value in values.items():
        if not (is_number(value) and value >= 0):
            raise InputError(f"{name} must be a number of 0 or more, got {_shown(value)}")


def require_finite_not_negative(**values: float) -> None:
    """Refuse named values that are not finite numbers of at least zero, such as a ridge."""
    for name, value in values.items():
        if not (is_number(value) and 0 <= value < math.inf):
            raise InputError(f"{name} must be a finite number of at least 0, got {_shown(value)}")


def require_between(
    name: str,
    value: Any,
    low: float,
    high: float,
    *,
    low_included: bool = True,
    high_included: bool = True,
    fix: str = "",
) -> float:
    """`value` as a float between `low` and `high`."""
    inside = is_number(value) and (low <= value <= high)
    if not inside or (value == low and not low_included) or (value == high and not high_included):
        least = f"{'of at least' if low_included else 'above'} {low:g}"
        most = f"{'at most' if high_included else 'below'} {high:g}"
        raise InputError(f"{name} must be a number {least} and {most}, got {_shown(value)}{_then(fix)}")
    return float(value)


def require_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Refuse an option that is none of the words `choices`."""
    words = list(choices)
    if not isinstance(value, str) or value not in words:
        raise InputError(f"{name} must be one of {', '.join(words)}, got {_shown(value)}")


def require_type(name: str, value: Any, kind: type | tuple[type, ...], fix: str = "") -> None:
    """Refuse a value that is not of `kind`; `fix` says how to make one."""
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        wanted = " or ".join(dict.fromkeys(one.__name__ for one in kinds))  # numpy's bool is one too
        raise InputError(f"{name} must be {wanted}, got {in_words(value)}{_then(fix)}")


def require_floating(name: str, value: Any, fix: str = "use torch.as_tensor(…).double()") -> None:
    """Refuse anything but a tensor of real floating-point numbers."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise InputError(f"{name} must be a tensor of floating-point numbers, got {in_words(value)}; {fix}")


def require_finite(name: str, tensor: Tensor, fix: str = "check the data behind it") -> None:
    """Refuse a tensor that holds NaN or infinity."""
    # The sum is finite unless a value is not, or it overflows; it takes a tenth of the time.
    if not bool(torch.isfinite(tensor.sum())) and not bool(torch.isfinite(tensor).all()):
        raise InputError(f"{name} holds NaN or infinite values; {fix}")


def require_shape(name: str, tensor: Tensor | NDArray[Any], shape: Sequence[int | str], fix: str = "") -> None:
    """Refuse a tensor of another shape. A size is a number, or a letter that stands for any number of at least one."""
    given = tuple(tensor.shape)
    # A plain loop: losses check their shapes at every training step.
    for size, wanted in zip(given, shape, strict=False):
        if size != wanted and not (isinstance(wanted, str) and size >= 1):
            break
    else:
        if len(given) == len(shape):
            return
    wanted = f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
    full = " with no size of 0" if 0 in given and 0 not in shape else ""
    raise InputError(f"{name} must have shape {wanted}{full}, got {given}{_then(fix)}")


def require_matrix(name: str, value: Any, shape: Sequence[int | str] = ("n", "d"), fix: str = "") -> None:
    """Refuse anything but a finite floating-point tensor of this shape."""
    require_floating(name, value)
    require_shape(name, value, shape, fix)
    require_finite(name, value)


def require_same_length(**values: Sized) -> None:
    """Refuse named sequences or tensors of different lengths."""
    lengths = {name: len(value) for name, value in values.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(
            f"{' and '.join(lengths)} must have one length, got {' and '.join(map(str, lengths.values()))}"
        )


def require_same_shape(fix: str = "", /, **tensors: Tensor | NDArray[Any]) -> None:
    """Refuse named tensors of different shapes."""
    (first, like), *others = tensors.items()
    for name, tensor in others:
        if tensor.shape != like.shape:
            raise InputError(
                f"{name} must have the shape of {first}, {tuple(like.shape)}, got {tuple(tensor.shape)}{_then(fix)}"
            )


def require_same_dtype(**tensors: Tensor) -> None:
    """Refuse named tensors of different dtypes."""
    (first, like), *others = tensors.items()
    for name, tensor in others:
        if tensor.dtype != like.dtype:
            raise InputError(
                f"{name} must be {like.dtype} like {first}, got {tensor.dtype}; use {name}.to({first}.dtype)"
            )


def require_callable(name: str, value: Any, fix: str = "pass a function") -> None:
    """Refuse a value that cannot be called."""
    if not callable(value):
        raise InputError(f"{name} must be a function, got {in_words(value)}; {fix}")


def require_generator(value: Any, name: str = "generator") -> None:
    """Refuse anything but a `torch.Generator`."""
    if not isinstance(value, torch.Generator):
        raise InputError(
            f"{name} must be a torch.Generator, got {in_words(value)}; use torch.Generator().manual_seed(0)"
        )


def resolve_generator(generator: torch.Generator | None, name: str = "generator") -> torch.Generator:
    """The generator, or one of seed 0 where none is given: the same call then gives the same numbers."""
    if generator is None:
        return torch.Generator().manual_seed(0)
    require_generator(generator, name)
    return generator


def increasing_times(times: ArrayLike) -> NDArray[np.float64]:
    """The times as an array; refuses anything but finite, increasing numbers from 0 on."""
    try:
        array = np.asarray(times, dtype=float)
    except (TypeError, ValueError):
        array = np.empty(0)
    in_order = array.ndim == 1 and len(array) > 0 and array[0] >= 0 and bool((np.diff(array) > 0).all())
    if not (in_order and np.isfinite(array).all()):
        given = array.tolist() if array.size else times
        raise InputError(
            f"times must be finite, increasing and start at 0 or later, got {given}; pass a list such as [0, 0.5, 1]"
        )
    return array


def resolve_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """Torch's number type: float32 or float64, by name or as torch's own object."""
    for name, known in DTYPES.items():
        if isinstance(dtype, str | torch.dtype) and dtype in (name, known):
            return known
    raise InputError(f"dtype must be one of {', '.join(DTYPES)}, got {_shown(dtype)}")


def resolve_device(device: str | torch.device) -> torch.device:
    """Torch's device, by name or as torch's own object; refuses a device this machine does not have."""
    name = str(device) if isinstance(device, torch.device) else device
    kind, _, index = name.partition(":") if isinstance(name, str) else ("", "", "")
    if kind not in ("cpu", "cuda") or (index and not (index.isascii() and index.isdigit())):
        raise InputError(f"device must look like 'cpu', 'cuda' or 'cuda:1', got {_shown(device)}")
    if kind == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InputError(f"device {name!r} was asked for but torch sees no CUDA GPU here; use device='cpu'")
    if index and int(index) >= torch.cuda.device_count():
        raise InputError(f"device {name!r} was asked for but there are {torch.cuda.device_count()} GPUs; use 'cuda:0'")
    return torch.device(name)


def in_words(given: Any) -> str:
    """A value that was given instead of the right one: a tensor's dtype and shape, or the name of its type."""
    return f"{given.dtype} {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__


def features_not_finite() -> InputError:
    """The refusal of features too large, or not finite, to take moments of."""
    return InputError("the features hold NaN, infinite or huge values; scale the samples, or look at the encoder")


def require_number(**values: float) -> None:
    """Refuse named values that are not numbers; infinity is one, NaN is none."""
    for name, value in values.items():
        if not is_number(value) or math.isnan(value):
            raise InputError(f"{name} must be a number, got {_shown(value)}")


def require_rows(name: str, value: Any) -> None:
    """Refuse what is not a tensor with at least one row and no empty axis."""
    if not isinstance(value, Tensor) or value.ndim == 0 or value.numel() == 0:
        raise InputError(f"{name} must be a tensor with at least one row, got {in_words(value)}")


def require_alike(**tensors: Tensor) -> None:
    """Refuse named tensors of different dtypes or on different devices."""
    (first, like), *others = tensors.items()
    for name, tensor in others:
        if tensor.dtype != like.dtype or tensor.device != like.device:
            raise InputError(
                f"{name} must be {like.dtype} on {like.device} like {first}, got {tensor.dtype} on {tensor.device}; "
                f"use {name}.to({first})"
            )


def require_components(n_components: Any, n_available: int, what: str = "features") -> int:
    """`n_components` as an int, no more than there are features (or samples, …: `what`)."""
    k = require_whole("n_components", n_components)
    if k > n_available:
        raise TooManyComponentsError(
            f"n_components={k}, but there are only {n_available} {what}; ask for at most {n_available}", n_available
        )
    return k


def _shown(value: Any) -> str:
    """The value as it would be typed, but the type of an array, whose numbers may fill pages."""
    if isinstance(value, Tensor | np.ndarray) and value.ndim > 0:
        return in_words(value)
    return repr(value) if isinstance(value, str) else str(value)


def _then(fix: str) -> str:
    return f"; {fix}" if fix else ""
