"""Small line plots as SVG text, without matplotlib: a page has two for every cell of a map, made in no time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import ArrayLike

from kontrast.report.axes import HUGE, Array, number
from kontrast.report.svg import printable

WIDTH, HEIGHT = 300, 170
LEFT, RIGHT, TOP, BOTTOM = 50.0, 292.0, 24.0, 144.0  # of the axes
RUNAWAY = 100  # times its start; beyond it the axis is logarithmic on both sides of a linear middle


@dataclass(frozen=True, eq=False)
class Curve:
    """One curve: (seed, step) values, NaN where a run is over; drawn as their mean in a band from lowest to highest."""

    values: Array
    color: str
    dashed: bool = False


def small_plot(
    title: str,
    label: str,
    steps: Array,
    curves: Sequence[Curve],
    *,
    level: float | None = None,
    floor: float | None = None,
) -> Markup:
    """The curves over the steps, both ends of each axis labelled; `label` is for those who cannot see it.

    `level` is a dashed line where it lies in the range of the values, which begins at `floor` where there is one.
    """
    every = np.concatenate([curve.values.ravel() for curve in curves])
    every = np.clip(every[np.isfinite(every)], -HUGE, HUGE)
    parts = [_text(LEFT, 14, title, weight="bold"), _line(f"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}", "currentColor", 0.7)]
    if not every.size:
        parts.append(_text((LEFT + RIGHT) / 2, (TOP + BOTTOM) / 2, "no finite value was recorded", anchor="middle"))
    else:
        scale = _Scale.of(steps, every, _start(curves), floor)
        parts += [part for curve in curves for part in _drawn(curve, steps, scale)]
        if level is not None and scale.low <= level <= scale.high:
            at = float(scale.y(np.array(level)))
            parts.append(_line(f"M{LEFT} {at:.1f}H{RIGHT}", "currentColor", 0.8, "4 3"))
        parts += [_text(LEFT - 4, BOTTOM, number(_short(scale.low)), anchor="end")]
        parts += [_text(LEFT - 4, TOP + 8, number(_short(scale.high)), anchor="end")]
    parts += [
        _text(LEFT, HEIGHT - 10, f"step {steps[0]:.0f}"),
        _text(RIGHT, HEIGHT - 10, f"{steps[-1]:.0f}", anchor="end"),
    ]
    return Markup(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(printable(label))}" font-size="11" fill="currentColor">{"".join(parts)}</svg>'
    )


@dataclass(frozen=True)
class _Scale:
    """Where steps and values lie: steps by log(1 + step), values on a linear axis or, past a runaway, by asinh."""

    last: float
    low: float
    high: float
    unit: float  # infinite for a linear axis

    @classmethod
    def of(cls, steps: Array, values: Array, start: float, floor: float | None) -> _Scale:
        low, high = float(values.min()), float(values.max())
        low = low if floor is None else min(low, floor)
        if high == low:
            low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
        largest = max(-low, high)
        # Over the smallest starts the largest values would overflow.
        unit = max(start, 1e-300 * largest) if start > 0 and largest > RUNAWAY * start else math.inf
        return cls(float(steps[-1]), low, high, unit)

    def x(self, steps: Array) -> Array:
        return LEFT + (RIGHT - LEFT) * np.log1p(steps) / math.log1p(self.last or 1.0)

    def y(self, values: Array) -> Array:
        low, high = self._place(np.array(self.low)), self._place(np.array(self.high))
        return np.asarray(BOTTOM - (BOTTOM - TOP) * (self._place(values) - low) / (high - low))

    def _place(self, values: Array) -> Array:
        # In units of the largest, as differences of numbers near HUGE would overflow.
        return values / max(abs(self.low), abs(self.high)) if math.isinf(self.unit) else np.arcsinh(values / self.unit)


def _start(curves: Sequence[Curve]) -> float:
    first = np.abs(np.concatenate([curve.values[:, 0] for curve in curves]))
    first = first[np.isfinite(first)]
    return float(np.median(first)) if first.size else 0.0


def _drawn(curve: Curve, steps: Array, scale: _Scale) -> Iterator[str]:
    x, finite = scale.x(steps), np.isfinite(curve.values)
    values = np.clip(curve.values, -HUGE, HUGE)
    there = finite.any(axis=0)
    if len(values) > 1:
        low = scale.y(np.where(finite, values, np.inf).min(axis=0, initial=np.inf, where=finite))
        high = scale.y(np.where(finite, values, -np.inf).max(axis=0, initial=-np.inf, where=finite))
        for run in _runs(there):
            there_and_back = [*zip(x[run], low[run], strict=True), *zip(x[run][::-1], high[run][::-1], strict=True)]
            yield f'<path d="{_path(there_and_back)}z" fill="{curve.color}" fill-opacity=".22"/>'
    whole = finite.all(axis=0)
    mean = scale.y(np.where(whole, values.mean(axis=0, where=finite | ~whole), np.nan))
    for run in _runs(whole):
        points = list(zip(x[run], mean[run], strict=True))
        if len(points) == 1:
            yield f'<circle cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="2.2" fill="{curve.color}"/>'
        yield _line(_path(points), curve.color, 1.8, "5 3" if curve.dashed else "")


def _runs(there: ArrayLike) -> list[slice]:
    """The stretches in which something is there."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], np.asarray(there, dtype=int), [0]])))
    return [slice(int(first), int(last)) for first, last in edges.reshape(-1, 2)]


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _line(path: str, color: str, width: float, dashes: str = "") -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<path d="{path}" fill="none" stroke="{color}" stroke-width="{width:g}"{dashed}/>'


def _text(x: float, y: float, words: str, *, anchor: str = "start", weight: str = "normal") -> str:
    look = f' text-anchor="{anchor}"' * (anchor != "start") + f' font-weight="{weight}"' * (weight != "normal")
    return f'<text x="{x:g}" y="{y:g}"{look}>{escape(words)}</text>'


def _short(value: float) -> float:
    return float(f"{value:.2g}")
