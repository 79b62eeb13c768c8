"""Patterns and starts of filters, and the push that tells a stable rest point from an unstable one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kontrast.claims.setting import generator
from kontrast.patterns import LatentCategorical, LatentSummation, OneLayerField, one_layer_flow, orthonormal_patterns

M, D = 8, 10  # patterns, and the dimension they lie in
RATES = (0.1, 0.2, 0.3, 0.35)  # q of the summation model
PUSH, SPAN = 1e-4, 3.0  # length of a push, and the time it is followed for, in units of 1/|margin|

Model = LatentCategorical | LatentSummation


def patterns_of(n: int = M, d: int = D) -> Tensor:
    """Orthonormal patterns (n, d), the same in all measurements."""
    return orthonormal_patterns(n, d, generator=generator("patterns", n, d))


def starts_of(n: int, d: int = D) -> Tensor:
    """Random directions (n, d)."""
    return torch.randn(n, d, generator=generator("starts", n, d), dtype=torch.float64)


def gap_at(A: Tensor, w: Tensor) -> float:
    """λ of A w = λw minus the largest other eigenvalue of A."""
    values, eigenvalue = torch.linalg.eigvalsh(A), w @ A @ w
    own = int((values - eigenvalue).abs().argmin())
    return float(eigenvalue - torch.cat([values[:own], values[own + 1 :]]).max())


def followed(field: OneLayerField, starts: Tensor, time: float) -> Tensor:
    """The position of the flow (7) at some time; NaN if it does not get there."""
    flow = one_layer_flow(field, starts, times=[time], tolerance=1e-7, max_steps=1500)
    return torch.full_like(starts, math.nan) if flow.chattering else flow.weights[-1]


@dataclass(eq=False)
class _Rescaled:
    """A field whose rows each have their own clock."""

    field: OneLayerField
    rates: Tensor  # (k,)
    coupled: bool = False

    def product(self, weights: Tensor) -> Tensor:
        return self.rates[:, None] * self.field.product(weights)

    def gates(self, weights: Tensor) -> Tensor:
        return self.field.gates(weights)


def push_and_follow(field: OneLayerField, w: Tensor, margins: Tensor, worst: Tensor | None = None) -> Tensor:
    """Distance of the flow (7) from each rest point (k, d) at `SPAN`/|margin| after a push, over the push: (k,).

    Pushes have the length `PUSH` and go in random directions and, if given, in the `worst` ones (k, d); the largest
    distance counts.
    """
    k, d = w.shape
    draw = torch.randn(3, k, d, generator=generator("pushes", k, d), dtype=torch.float64)
    directions = draw if worst is None else torch.cat([draw, worst[None]])
    directions = directions - (directions * w).sum(-1, keepdim=True) * w
    pushed = (w + PUSH * torch.nn.functional.normalize(directions, dim=-1)).reshape(-1, d)
    clock = _Rescaled(field, (1 / margins.abs()).repeat(len(directions)))
    end = followed(clock, pushed, SPAN).reshape(-1, k, d)
    return torch.as_tensor((end - w).norm(dim=-1).max(0).values / PUSH)
