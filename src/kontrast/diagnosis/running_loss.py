"""The losses of a loop between two moments, in constant memory and without waiting for a GPU."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kontrast.checks import in_words, is_number
from kontrast.errors import InputError
from kontrast.losses import LossValue

Loss = Tensor | LossValue | float


class RunningLoss:
    """The last loss, and the mean of those that are finite; losses on a GPU are added up there."""

    def __init__(self) -> None:
        self._last: float | Tensor = math.nan
        self._total: float | Tensor = 0.0
        self._finite: float | Tensor = 0
        self._count = 0

    def add(self, loss: Loss) -> None:
        """Count one loss; its graph is not kept."""
        value = loss.total if isinstance(loss, LossValue) else loss
        if isinstance(value, Tensor):
            if value.numel() != 1 or value.is_complex():
                raise InputError(f"loss must be one number, got {in_words(value)}; pass loss.mean()")
            value = value.detach().reshape(()).double() if value.is_cuda else float(value.detach())
        elif not is_number(value):
            raise InputError(f"loss must be one number, got {in_words(value)}; pass a scalar tensor or a float")
        self._last = value
        self._count += 1
        if isinstance(value, Tensor):
            self._finite = self._finite + torch.isfinite(value)
            self._total = self._total + torch.nan_to_num(value, nan=0.0, posinf=0.0, neginf=0.0)
        elif math.isfinite(value):
            self._finite, self._total = self._finite + 1, self._total + value

    def read(self) -> dict[str, float]:
        """`loss`, the last one; `loss_mean`; how many there were, and how many of them are not finite."""
        finite = int(self._finite)
        return {
            "loss": float(self._last),
            "loss_mean": float(self._total) / finite if finite else math.nan,
            "n_losses": self._count,
            "n_losses_not_finite": self._count - finite,
        }
