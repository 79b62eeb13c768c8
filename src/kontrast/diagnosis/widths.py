"""How wide for a drift below ε? A sweep of widths, where the model comes from a function of its width."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from scipy import stats
from torch import Tensor, nn
from torch.func import grad

from kontrast.diagnosis.inputs import Encoder, Select
from kontrast.diagnosis.subject import Subject
from kontrast.dynamics import critical_rate
from kontrast.errors import InputError
from kontrast.kernels import ntk_drift
from kontrast.linalg import PowerLaw, fit_power_law
from kontrast.nets import stack_of

DRIFT = 0.1  # that is asked for
N_STEPS, RATE, N_SEEDS = 50, 0.3, 2  # of full-batch gradient descent; the rate is a share of the critical one
N_PAIRS = 64
FARTHEST = 100  # times the widest network that was trained, beyond which nothing is said
LEAST_FIT = 0.8  # share of the variance of log drift that the law must explain

Builder = Callable[[int, int], nn.Module]
"""The module of a width and a seed, at its start."""


def measure(
    subject: Subject, build: Builder, widths: Sequence[int], select: Select | None, advance: Callable[[], None]
) -> xr.Dataset:
    """The kernel's drift after the same short training at every width and seed."""
    table = []
    for width in sorted(widths):
        table.append([_drift(subject, build(width, seed), select) for seed in range(N_SEEDS)])
        advance()
    words = f"‖K − K(0)‖ / ‖K(0)‖ after {N_STEPS} steps of gradient descent at {RATE:g} of the critical rate"
    return xr.Dataset(
        {"width_drift": (("width", "seed"), np.array(table), {"long_name": "kernel drift", "definition": words})},
        coords={"width": np.array(sorted(widths), dtype=np.int32)},
    )


def _drift(subject: Subject, module: nn.Module, select: Select | None) -> float:
    a, b = (view[:N_PAIRS] for view in subject.pair)
    x = torch.cat([a, b])
    encoder = Encoder.of(module, x[:2], select=select)
    start = {name: value.detach().clone() for name, value in encoder.module.state_dict().items()}
    origin, buffers = encoder.parameters(start), encoder.buffers(start)

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return subject.value_of_loss(*encoder.function(parameters, buffers, x).chunk(2))

    rate = RATE * critical_rate(stack_of([encoder.module]), x.unsqueeze(0), unit_length=True)
    here = dict(origin)
    for _ in range(N_STEPS):
        gradient = grad(loss)(here)
        here = {name: p - rate * gradient[name] for name, p in here.items()}
    if not all(bool(torch.isfinite(p).all()) for p in here.values()):
        return math.nan
    points = subject.x[: subject.settings.n_points]
    return ntk_drift(encoder.module, start, {**start, **here}, points, output=encoder.output).relative


@dataclass(frozen=True)
class WidthNeeded:
    """The width from which on the drift stays below what was asked for; None where the sweep cannot tell, and why."""

    drift: float
    width: float | None
    low: float
    high: float
    law: PowerLaw | None
    sentence: str


def needed(result: xr.Dataset, drift: float = DRIFT) -> WidthNeeded | None:
    """The law drift ∝ width^p, solved for a drift; None where no widths were swept."""
    if "width_drift" not in result:
        return None
    widths, table = result.width.values.astype(float), result.width_drift.values
    if not (0 < drift < math.inf):
        raise InputError(f"drift must be a positive number, got {drift}")

    def refused(law: PowerLaw | None, why: str) -> WidthNeeded:
        return WidthNeeded(drift, None, math.nan, math.nan, law, f"no width can be named: {why}")

    if not np.isfinite(table).all() or (table <= 0).any():
        return refused(None, "training diverged, or did not move the kernel, at one of the widths")
    if len(widths) < 3:
        return refused(None, f"a law needs three widths or more, got {len(widths)}")
    x, y = np.log(np.repeat(widths, table.shape[1])), np.log(table.ravel())
    law = fit_power_law(np.exp(x), np.exp(y))
    if law.high >= 0 or np.ptp(y) < 1e-9:
        return refused(law, f"the drift does not surely fall with the width (exponent {law})")
    explained = 1 - float(((y - np.log(law.prefactor) - law.exponent * x) ** 2).sum() / ((y - y.mean()) ** 2).sum())
    if explained < LEAST_FIT:
        return refused(law, f"a power law explains only {explained:.0%} of how the drift changes with the width")
    mean, low, high = _solved(x, y, math.log(drift))
    if mean > FARTHEST * widths.max():
        return refused(law, f"it would lie beyond {FARTHEST} times the widest network that was trained ({mean:.2g})")
    sentence = (
        f"a kernel drift below {drift:g} takes a width of {_digits(mean)} ({_digits(low)} to {_digits(high)}); the "
        f"drift falls like width^{law}"
    )
    return WidthNeeded(drift, mean, low, high, law, sentence)


def _solved(x: np.ndarray, y: np.ndarray, level: float) -> tuple[float, float, float]:
    """The width at which the fitted line reaches a level, with Fieller's interval."""
    n, centered = len(x), x - x.mean()
    slope = float(centered @ y / (centered @ centered))
    residual = y - y.mean() - slope * centered
    variance = float(residual @ residual) / (n - 2)
    t2 = float(stats.t.ppf(0.975, n - 2)) ** 2
    # (level − ȳ − slope·u)² ≤ t² s² (1/n + u²/S), a quadratic in u = log width − mean.
    S, d = float(centered @ centered), level - float(y.mean())
    a, b, c = slope**2 - t2 * variance / S, -2 * d * slope, d**2 - t2 * variance / n
    root = math.sqrt(max(b * b - 4 * a * c, 0.0))
    ends = sorted([(-b - root) / (2 * a), (-b + root) / (2 * a)]) if a > 0 else [-math.inf, math.inf]
    return tuple(_exp(u + float(x.mean())) for u in (d / slope, *ends))  # type: ignore[return-value]


def _exp(value: float) -> float:
    return math.exp(value) if value < 709 else math.inf


def _digits(value: float) -> str:
    return f"{float(f'{value:.2g}'):,g}" if math.isfinite(value) else "∞"
