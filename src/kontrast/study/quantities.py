"""A quantity of the study, declared once: its name and words, how it is computed, where it shows, how it is drawn.

Each section (`kernel`, `pca`, `probes`, `labels`) lists its own in `QUANTITIES`. The stored arrays, the findings, the
tables of the terminal and of the page, and the plots all read that list, so a new quantity is one entry in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from kontrast.dynamics import Recorder, Snapshot, Trajectory
from kontrast.runs import padded

if TYPE_CHECKING:
    from kontrast.study.spec import StudySpec

Variables = dict[str, tuple[Any, ...]]  # name → (dimensions, values, attributes), as xarray takes them


def short(value: float) -> str:
    """Three digits; a dash where there is no number."""
    return f"{value:#.3g}".rstrip(".") if math.isfinite(value) else "–"


def share(value: float) -> str:
    """A percentage, or a power of ten where that would be long; a dash where there is no number."""
    if not math.isfinite(value):
        return "–"
    return f"{value:.2%}" if value < 10 else f"{value:.1e}"


@dataclass(frozen=True)
class Plot:
    """One picture of the page. The first word of its name, up to the "-", is the plate in which it stands."""

    name: str
    against: Literal["width", "step"]
    title: str


@dataclass(frozen=True)
class Drawing:
    """How a quantity is drawn.

    Attributes:
        plots: the pictures that show it; quantities that name the same plot share it.
        symbol: the label of the y axis.
        curve: its name in the legend of a plot that it shares; without, curves have the names of their runs.
        hue: its colour there.
        threshold: the field of `Thresholds` that is drawn as a dashed line.
        guide: exponent in the width of a dashed line to compare with.
        unbounded: whether it leaves through the top of the axes when a run diverges.
        span: all values it can have, for an axis that is linear and shows the whole span.
    """

    plots: tuple[Plot, ...]
    symbol: str
    curve: str = ""
    hue: str = ""
    threshold: str = ""
    guide: float | None = None
    unbounded: bool = False
    span: Callable[[StudySpec], tuple[float, float]] | None = None


@dataclass(frozen=True)
class Quantity:
    """One quantity of the study.

    Attributes:
        name: of its array in the store and of its numbers in the findings.
        long_name: its definition, in words and symbols.
        record: computes it at a recorded step, from the section's own view of that step.
        read: reads it off a finished measurement instead.
        heading: of its column on the page; without, it is in no table.
        write: how a table writes a value.
        in_terminal: whether the terminal's table, which has 80 characters, shows it too.
        fitted: whether a power law in the width is fitted to it.
        scale: the stored number that is its natural size; without, that is 1, as for sines and shares.
        drawing: how it is drawn; None where the page has no picture of it or one of its own kind.
    """

    name: str
    long_name: str
    record: Callable[[Any], float | Tensor] | None = None
    read: Callable[[Any], Any] | None = None
    heading: str = ""
    write: Callable[[float], str] = short
    in_terminal: bool = False
    fitted: bool = False
    scale: str = ""
    drawing: Drawing | None = None


@dataclass(frozen=True, eq=False)
class Finished:
    """A trained run and its twin, with the steps that are recorded."""

    trained: Trajectory
    twin: Trajectory
    steps: Sequence[int]

    def losses(self, run: Trajectory) -> Tensor:
        """The losses of `run` at the recorded steps it reached."""
        return run.losses[[step for step in self.steps if step < len(run.losses)]]


def outputs_by_step(run: Trajectory) -> dict[int, Tensor]:
    """The kept outputs of a run; a step that it did not reach is missing."""
    return dict(zip(run.steps, run.outputs if run.outputs is not None else (), strict=True))


def recorder(quantities: Sequence[Quantity], view: Callable[[Snapshot], Any]) -> Recorder:
    """A recorder of all `quantities` that are recorded at a step, from one `view` of it."""

    def record(now: Snapshot) -> Tensor:
        seen = view(now)
        numbers = [float(quantity.record(seen)) for quantity in quantities if quantity.record is not None]
        return torch.tensor(numbers, dtype=torch.float64)

    return record


def over_steps(
    quantities: Sequence[Quantity], finished: Finished, scalars: Variables, *, axis: str = "step"
) -> xr.Dataset:
    """The records of `recorder` ("all") and those read off the finished runs, over the `axis`, beside `scalars`.

    Steps that a diverged run never reached are NaN.
    """
    recorded = [quantity.name for quantity in quantities if quantity.record is not None]
    records, n = finished.trained.records.get("all"), len(finished.steps)
    columns: dict[str, Tensor] = dict(zip(recorded, records.unbind(1), strict=True)) if records is not None else {}
    columns |= {quantity.name: quantity.read(finished) for quantity in quantities if quantity.read is not None}
    arrays = {it.name: (axis, padded(columns.get(it.name), n), {"long_name": it.long_name}) for it in quantities}
    return xr.Dataset(arrays | scalars, coords={axis: np.asarray(finished.steps, dtype=np.int32)})


def scalar(value: float | np.generic, long_name: str) -> tuple[tuple[()], float | np.generic, dict[str, str]]:
    """A variable that is one number per cell."""
    return (), value, {"long_name": long_name}
