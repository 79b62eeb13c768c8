"""How steep and how curved an activation is: the Lipschitz constants of φ and of φ'."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from kontrast.nets.activations import Activation, activation_from

_E = math.e
_PI = math.pi

# (L_φ, β_φ) = (max |φ'|, max |φ''|). Where the maxima lie: tanh' at 0, tanh'' where tanh² = 1/3; sigmoid likewise with
# (2s − 1)² = 1/3; erf'' and gaussian' at 2^-½; gelu' at √2, where φ'' = (2 − a²)·n(a) vanishes, and gelu'' at 0.
_SLOPES: dict[str, tuple[float, float]] = {
    "relu": (1.0, math.inf),
    "tanh": (1.0, 4 / (3 * math.sqrt(3))),
    "sigmoid": (0.25, 1 / (6 * math.sqrt(3))),
    "erf": (2 / math.sqrt(_PI), 2 * math.sqrt(2 / (_PI * _E))),
    "gelu": (0.5 * (1 + math.erf(1)) + 1 / (math.sqrt(_PI) * _E), math.sqrt(2 / _PI)),
    "softplus": (1.0, 0.25),
    "sine": (1.0, 1.0),
    "cosine": (1.0, 1.0),
    "gaussian": (math.sqrt(2 / _E), 2.0),
    "linear": (1.0, 0.0),
}


def slopes_of(activation: str | Activation) -> tuple[float, float]:
    """L_φ = max |φ'| and β_φ = max |φ''|, infinite where φ' jumps or is not known to be continuous.

    Exact for the named activations. For others a maximum over [−40, 40], refined on finer grids: the value at some
    point, so it may fall short of the supremum in the last digits, or by far more if φ oscillates faster than the grid.
    """
    act = activation_from(activation)
    if act.name in _SLOPES:
        return _SLOPES[act.name]
    if act.name.startswith("leaky_relu"):
        return 1.0, 0.0 if act.smooth else math.inf
    return largest(act.first), largest(act.second) if act.smooth else math.inf


def largest(function: Callable[[Tensor], Tensor], *, half_width: float = 40.0) -> float:
    """The maximum of |function| over [−half_width, half_width], by grids of 20,001 points that close in."""
    center, best = 0.0, 0.0
    while half_width > 1e-9:
        grid = torch.linspace(center - half_width, center + half_width, 20_001, dtype=torch.float64)
        values = function(grid).abs()
        best = max(best, float(values.max()))
        center, half_width = float(grid[values.argmax()]), half_width / 1000
    return best
