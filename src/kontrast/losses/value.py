from __future__ import annotations

from dataclasses import dataclass

from kontrast._types import Tensor

__all__ = ["LossValue"]


@dataclass(frozen=True, eq=False)
class LossValue:
    """A loss and the named parts it is the sum of.

    Attributes:
        total: The loss, a scalar; `value.total.backward()` trains.
        terms: Parts of the loss, weights applied, which sum to `total` up to rounding. They carry gradients too.
    """

    total: Tensor
    terms: dict[str, Tensor]

    def mean(self) -> LossValue:
        """The same value averaged over all its entries: per-anchor losses become one scalar."""
        return LossValue(self.total.mean(), {name: term.mean() for name, term in self.terms.items()})
