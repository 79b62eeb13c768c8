"""The value of a loss: the total to train on, and the named parts it is the sum of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor


@dataclass(frozen=True, eq=False)
class LossValue:
    """A loss and the named parts it is the sum of.

    Attributes:
        total: The loss, a scalar; `value.total.backward()` trains.
        terms: Parts of the loss, weights applied, which sum to `total` up to rounding. They carry gradients too.
    """

    total: Tensor
    terms: Mapping[str, Tensor]

    def mean(self) -> LossValue:
        """The same value averaged over all its entries: per-anchor losses become one scalar."""
        terms = self.terms
        return LossValue(self.total.mean(), LazyTerms(lambda: {name: term.mean() for name, term in terms.items()}))


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
