"""Any loss as an `nn.Module`, for training code that expects one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from kontrast.checks import require_callable
from kontrast.errors import InputError
from kontrast.losses.named import NAMED_LOSSES, check_options
from kontrast.losses.value import LossValue


class LossModule(nn.Module):
    """A loss with its options; calling it returns the total, a scalar tensor for `backward()`.

    `LossModule(nt_xent, temperature=0.5)(view_a, view_b).backward()`. The options are checked when the module is made:
    their names for every loss, their values for the named losses of this package. For the terms call the loss itself.

    Args:
        loss: A named loss, a `ContrastiveLoss`, or any function of embeddings that returns a `LossValue` or a tensor.
        options: Its keyword arguments.
    """

    def __init__(self, loss: Callable[..., LossValue | Tensor], **options: Any) -> None:
        super().__init__()
        require_callable("loss", loss, "pass a loss such as kontrast.losses.nt_xent")
        self.name = getattr(loss, "__name__", type(loss).__name__)
        parameters = inspect.signature(loss).parameters.values()
        known = [p.name for p in parameters if p.default is not p.empty]
        unknown = [name for name in options if name not in known]
        if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
            has = f"its options are {', '.join(known)}" if known else "it has no options"
            raise InputError(f"{self.name} has no option {unknown[0]!r}; {has}")
        if loss in NAMED_LOSSES:
            check_options(**options)
        self.loss, self.options = loss, options

    def forward(self, *embeddings: Tensor) -> Tensor:
        """The loss of the embeddings, a scalar."""
        value = self.loss(*embeddings, **self.options)
        return value.total if isinstance(value, LossValue) else value

    def extra_repr(self) -> str:
        """The loss and its options, for `print(module)`."""
        return ", ".join([self.name, *(f"{name}={value!r}" for name, value in self.options.items())])
