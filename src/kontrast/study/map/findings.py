"""The map in words and numbers: every cell's regime, the borders, what training pays, judged from stored results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from kontrast.dynamics import Ending
from kontrast.study.map.baselines import BASELINES, CLOSED_FORMS
from kontrast.study.map.borders import Border, borders_of
from kontrast.study.map.measures import DIVERGED_AT, QUANTITIES, STILL_FALLING
from kontrast.study.map.regimes import Estimate, MapCell, Regime, decided
from kontrast.study.map.section import ENDINGS, PROBES, loss_of
from kontrast.study.spec import StudySpec
from kontrast.study.thresholds import Thresholds

NUMBERS = tuple(quantity.name for quantity in (*QUANTITIES, STILL_FALLING))
TRAINED = {"linear": ("map_accuracy", "map_twin_accuracy"), "knn": ("map_knn", "map_twin_knn")}  # network, twin
BEYOND = 10**6  # a width that no one will train


@dataclass(frozen=True)
class MapFindings:
    """The map.

    Attributes:
        cells: every loss, width and rate.
        borders: those that the map shows.
        baselines: width → baseline → probe → test accuracy; empty without labels.
        best_closed_form: width → the closed form of the best mean validation accuracy.
        setting: the cell that the verdict is about.
        verdict: what training does there, what it pays, and where a kernel would do the same.
    """

    cells: tuple[MapCell, ...]
    borders: tuple[Border, ...]
    baselines: dict[int, dict[str, dict[str, Estimate]]]
    best_closed_form: dict[int, str]
    setting: MapCell
    verdict: str

    def panel(self, loss: str) -> tuple[MapCell, ...]:
        """The cells of one loss."""
        return tuple(cell for cell in self.cells if cell.loss == loss)

    @property
    def losses(self) -> tuple[str, ...]:
        """The losses, in the order of their panels."""
        return tuple(dict.fromkeys(cell.loss for cell in self.cells))

    @property
    def axis(self) -> tuple[str, str]:
        """The word and the symbol of the map's other axis: widths, or the steps of a network without a width."""
        return ("steps", "T") if self.setting.width is None else ("width", "M")

    def grid(self, loss: str) -> list[dict[int, MapCell]]:
        """A panel row by row: for each rate, the smallest first, the cells by their widths or steps."""
        rows: dict[float, dict[int, MapCell]] = {}
        for cell in self.panel(loss):
            rows.setdefault(cell.rate, {})[cell.size] = cell
        return [rows[rate] for rate in sorted(rows)]

    def border(self, loss: str, name: str) -> Border | None:
        """A border by its name."""
        return next((it for it in self.borders if (it.loss, it.name) == (loss, name)), None)


def judge(result: xr.Dataset, spec: StudySpec, thresholds: Thresholds) -> MapFindings | None:
    """The findings on the map of a consolidated study; None where the spec has no map."""
    if not spec.losses:
        return None
    best = _best_closed_forms(result)
    cells = [
        decided(_cell(result.sel(panel=loss, width=width).isel(rate=r), spec, loss, width, best.get(width)), thresholds)
        for loss in spec.losses
        for width in map(int, result.width.values)
        for r in range(len(spec.rates_of(loss)))
    ]
    borders = [
        border
        for loss in spec.losses
        for border in borders_of([cell for cell in cells if cell.loss == loss], thresholds, spec.max_steps)
    ]
    setting = _setting(spec, cells)
    return MapFindings(
        tuple(cells),
        tuple(borders),
        _baselines(result),
        best,
        setting,
        _verdict(spec, setting, borders, best.get(setting.size), cells),
    )


def _cell(seen: xr.Dataset, spec: StudySpec, loss: str, size: int, best: str | None) -> MapCell:
    """One cell from its numbers over the seeds."""
    endings = tuple(ENDINGS[int(code)] for code in seen.map_ending.values)
    numbers = {name: Estimate.over(seen[name].values) for name in NUMBERS}
    stopped = seen.map_stopped_at.values.astype(float)
    diverged = np.asarray([ending is Ending.DIVERGED for ending in endings])
    numbers[DIVERGED_AT.name] = Estimate.over(np.where(diverged.all(), stopped, np.nan))
    return MapCell(
        loss,
        size,
        width=size if spec.has_width else None,
        rate=float(seen.map_rate.values.flat[0]),
        learning_rate=float(np.exp(np.log(seen.map_learning_rate.values).mean())),
        steps=int(stopped.max()),
        endings=endings,
        numbers=numbers,
        gains=_gains(seen, "linear", best),
        knn_gains=_gains(seen, "knn", best),
    )


def _gains(seen: xr.Dataset, probe: str, best: str | None) -> dict[str, Estimate]:
    """Differences of a cell's test accuracies to its start's, its twin's and the best closed form's, paired by seed."""
    if best is None:
        return {}
    trained, twin = (seen[name].values for name in TRAINED[probe])
    baseline = seen.map_baseline.sel(probe=probe)
    others = {
        "start": baseline.sel(baseline="start").values,
        "kernel": twin,
        "closed form": baseline.sel(baseline=best).values,
    }
    return {name: Estimate.over(trained - other) for name, other in others.items()}


def _best_closed_forms(result: xr.Dataset) -> dict[int, str]:
    """The closed form of the best mean validation accuracy at every width; test samples have no say."""
    if "map_baseline" not in result:
        return {}
    found = {}
    for width in result.width.values:
        scores = result.map_baseline_validation.sel(width=width, baseline=list(CLOSED_FORMS)).mean("seed", skipna=False)
        values = np.nan_to_num(scores.values, nan=-1.0)
        found[int(width)] = CLOSED_FORMS[int(values.argmax())]
    return found


def _baselines(result: xr.Dataset) -> dict[int, dict[str, dict[str, Estimate]]]:
    if "map_baseline" not in result:
        return {}
    return {
        int(width): {
            name: {
                probe: Estimate.over(result.map_baseline.sel(width=width, baseline=name, probe=probe).values)
                for probe in PROBES
            }
            for name in BASELINES
        }
        for width in result.width.values
    }


def _setting(spec: StudySpec, cells: Sequence[MapCell]) -> MapCell:
    """The cell nearest to the user's setting; without one, the widest network at its best rate."""
    own = [cell for cell in cells if cell.loss == spec.losses[0]]
    if spec.setting is not None:
        width, rate = spec.setting
        return min(own, key=lambda cell: (abs(math.log(cell.size / width)), abs(math.log(cell.rate / rate))))
    widest = [cell for cell in own if cell.size == max(it.size for it in own)]
    whole = [cell for cell in widest if cell.regime is not Regime.DIVERGED]
    return best_rate(widest) or (whole or widest)[-1]


def best_rate(cells: Sequence[MapCell]) -> MapCell | None:
    """The cell of the best validation accuracy, among those that settled where there are any; None without labels."""
    scored = [cell for cell in cells if math.isfinite(cell.numbers["map_validation"].mean)]
    settled = [cell for cell in scored if cell.settled]
    return max(settled or scored, key=lambda cell: cell.numbers["map_validation"].mean, default=None)


# The sentence


def _verdict(
    spec: StudySpec, setting: MapCell, borders: Sequence[Border], best: str | None, cells: Sequence[MapCell] = ()
) -> str:
    where = f"{loss_of(spec, setting.loss).words} at {setting.size_words} and rate {setting.rate:g}"
    where += f", after {setting.steps} steps" if setting.width is not None else ""
    where += _asked_for(spec, setting)
    told = {
        Regime.LEARNING: "training learns features",
        Regime.KERNEL: "the network is a kernel machine",
        Regime.PCA: "the network is PCA of the features at its start",
        Regime.COLLAPSED: "training collapses the embedding",
        Regime.DIVERGED: "training diverges",
        Regime.UNDERTRAINED: f"undertrained: {_undertrained(setting, cells)}",
    }[setting.regime]
    parts = [f"{where}: {told}" + ("" if setting.sure or setting.regime is Regime.UNDERTRAINED else " (not sure)")]
    if setting.gains and setting.regime not in (Regime.DIVERGED, Regime.UNDERTRAINED):
        gains = setting.gains
        parts[0] += (
            f": {gains['start'].in_points()} of test accuracy over its start, {gains['kernel'].in_points()} over its "
            f"kernel twin, {gains['closed form'].in_points()} against {best}, the best closed form at the same width"
        )
    elif not setting.gains:
        parts.append("without labels to probe no gain can be told")
    border = next((it for it in borders if (it.loss, it.name) == (setting.loss, "kernel")), None)
    if border is not None and setting.regime is Regime.LEARNING:
        parts += _where_a_kernel_would_do(setting, border)
    elif border is not None and setting.regime is Regime.KERNEL:
        parts += _where_it_learns(setting, border)
    return "; ".join(parts)


def _undertrained(setting: MapCell, cells: Sequence[MapCell]) -> str:
    if setting.settled:
        return "the linear probe has not moved from its start"
    faster = [
        cell.rate
        for cell in cells
        if (cell.loss, cell.size) == (setting.loss, setting.size) and cell.rate > setting.rate and cell.settled
    ]
    advice = f"at rate {min(faster):g} it settles" if faster else "raise max_steps"
    return f"the loss still falls; {advice}"


def _asked_for(spec: StudySpec, setting: MapCell) -> str:
    """The setting that was asked for, where the verdict is about the cell nearest to it."""
    if spec.setting is None or np.allclose(spec.setting, (setting.size, setting.rate), rtol=1e-6):
        return ""
    size, rate = spec.setting
    return f" (the cell nearest to {'width' if spec.has_width else 'steps'} {size:g} and rate {rate:g})"


def _where_a_kernel_would_do(setting: MapCell, border: Border) -> list[str]:
    width, rate, places = border.size_at(setting.rate), border.rate_at(setting.size), []
    if setting.width is not None and setting.width < width.mean and width.high < BEYOND:
        low = f"{setting.width:,}" if width.low <= setting.width else _digits(width.low)
        places.append(f"from {_between('width', low, _digits(width.high))} on")
    if rate.low > 0 and rate.mean < setting.rate:
        places.append(f"below {_between('rate', _digits(rate.low), _digits(min(rate.high, setting.rate)))}")
    return [f"{', or '.join(places)}, a kernel machine would do the same"] if places else []


def _where_it_learns(setting: MapCell, border: Border) -> list[str]:
    rate = border.rate_at(setting.size)
    if not rate.mean > setting.rate or math.isinf(rate.high):
        return []
    return [f"above {_between('rate', _digits(max(rate.low, setting.rate)), _digits(rate.high))} its features move"]


def _between(word: str, low: str, high: str) -> str:
    return f"{word} {low}" if low == high else f"a {word} between {low} and {high}"


def _digits(value: float) -> str:
    """Two digits."""
    return f"{float(f'{value:.2g}'):,g}"


def as_dict(found: MapFindings) -> dict[str, Any]:
    """The map, its borders and baselines as JSON types."""
    return {
        "map": [_plain_cell(cell) for cell in found.cells],
        "borders": [_plain_border(border) for border in found.borders],
        "baselines": [
            {
                "width": width,
                "best_closed_form": found.best_closed_form[width],
                "accuracy": {name: {p: _interval(e) for p, e in probes.items()} for name, probes in table.items()},
            }
            for width, table in found.baselines.items()
        ],
    }


def _plain_cell(cell: MapCell) -> dict[str, Any]:
    return {
        "loss": cell.loss,
        "width": cell.width,
        "learning_rate": cell.learning_rate,
        "relative_rate": cell.rate,
        "regime": cell.regime.name.lower(),
        "reason": cell.reason,
        "sure": cell.sure,
        "steps": cell.steps,
        "endings": [ending.name.lower() for ending in cell.endings],
        "numbers": {name.removeprefix("map_"): _interval(estimate) for name, estimate in cell.numbers.items()},
        "gains": _plain_gains(cell.gains),
        "knn_gains": _plain_gains(cell.knn_gains),
    }


def _plain_gains(gains: dict[str, Estimate]) -> dict[str, dict[str, float]]:
    return {name.replace(" ", "_"): _interval(estimate) for name, estimate in gains.items()}


def _plain_border(border: Border) -> dict[str, Any]:
    law = border.law
    return {
        "loss": border.loss,
        "name": border.name,
        "words": border.words,
        "rates": dict(zip(map(str, border.sizes), border.rates, strict=True)),
        "exponent": None if law is None else {"mean": law.exponent, "low": law.low, "high": law.high},
        "prefactor": None if law is None else law.prefactor,
    }


def _interval(estimate: Estimate) -> dict[str, float]:
    return {"mean": estimate.mean, "low": estimate.low, "high": estimate.high}
