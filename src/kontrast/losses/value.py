"""The value of a loss: the total to train on, and the named parts it is the sum of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor


def _of_total(name: str) -> Callable[..., Any]:
    """The special method `name` of the total; Python looks these up on the class, past `__getattr__`."""

    def method(self: LossValue, *arguments: Any) -> Any:
        return getattr(self.total, name)(*arguments)

    method.__name__ = name
    return method


@dataclass(frozen=True, eq=False)
class LossValue:
    """A loss and the named parts it is the sum of, which behaves as the scalar tensor `total` does.

    `value.backward()` trains; `value.item()`, `float(value)`, `value.detach()`, arithmetic, comparisons and torch's
    functions give what the total gives: plain tensors, without terms. Only what insists on the type `torch.Tensor`
    needs `value.total`: `torch.func.grad` of a function that returns it, `GradScaler.scale`, `torch.tensor([value])`.

    Attributes:
        total: The loss, a scalar tensor.
        terms: Parts of the loss, weights applied, which sum to `total` up to rounding. They carry gradients too.
    """

    total: Tensor
    terms: Mapping[str, Tensor]

    def mean(self) -> LossValue:
        """The same value averaged over all its entries: per-anchor losses become one scalar."""
        terms = self.terms
        return LossValue(self.total.mean(), LazyTerms(lambda: {name: term.mean() for name, term in terms.items()}))

    def backward(self, *arguments: Any, **options: Any) -> None:
        """As `Tensor.backward`, of the total."""
        self.total.backward(*arguments, **options)  # type: ignore[no-untyped-call]

    def __getattr__(self, name: str) -> Any:
        # Called for what is no attribute of a LossValue. Copying and pickling ask for special names of their own.
        if name == "total" or name.startswith("__"):
            raise AttributeError(f"LossValue has no attribute {name!r}")
        return getattr(self.total, name)

    def __float__(self) -> float:
        return float(self.total.item())  # without torch's warning that the number has no gradient

    def __int__(self) -> int:
        return int(self.total.item())

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return function(*_with_totals(args), **_with_totals(kwargs or {}))

    __hash__ = object.__hash__  # by identity, as tensors do
    __array_priority__ = 1000  # numpy's numbers leave arithmetic to a LossValue, as they do to a tensor
    __eq__, __ne__ = _of_total("__eq__"), _of_total("__ne__")
    __lt__, __le__ = _of_total("__lt__"), _of_total("__le__")
    __gt__, __ge__ = _of_total("__gt__"), _of_total("__ge__")
    __add__, __radd__ = _of_total("__add__"), _of_total("__radd__")
    __sub__, __rsub__ = _of_total("__sub__"), _of_total("__rsub__")
    __mul__, __rmul__ = _of_total("__mul__"), _of_total("__rmul__")
    __truediv__, __rtruediv__ = _of_total("__truediv__"), _of_total("__rtruediv__")
    __pow__, __rpow__ = _of_total("__pow__"), _of_total("__rpow__")
    __neg__, __pos__, __abs__ = _of_total("__neg__"), _of_total("__pos__"), _of_total("__abs__")
    __bool__, __format__, __array__ = _of_total("__bool__"), _of_total("__format__"), _of_total("__array__")


def _with_totals(given: Any) -> Any:
    """The arguments of a torch function with totals in place of LossValues, inside lists and tuples too."""
    if isinstance(given, LossValue):
        return given.total
    if isinstance(given, list | tuple):
        parts = [_with_totals(part) for part in given]
        return parts if isinstance(given, list) else tuple(parts)
    if isinstance(given, dict):
        return {name: _with_totals(part) for name, part in given.items()}
    return given


class LazyTerms(Mapping[str, Tensor]):
    """Terms that are computed when they are first read: a training loop, which never reads them, pays nothing."""

    def __init__(self, compute: Callable[[], dict[str, Tensor]]) -> None:
        self._compute = compute

    @cached_property
    def _computed(self) -> dict[str, Tensor]:
        return self._compute()

    def __getitem__(self, name: str) -> Tensor:
        return self._computed[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._computed)

    def __len__(self) -> int:
        return len(self._computed)

    def __repr__(self) -> str:
        return repr(self._computed)
