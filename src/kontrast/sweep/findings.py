"""What a study's numbers say: fitted exponents, divergence, and a verdict that is computed from both."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import xarray as xr

from kontrast.errors import InputError
from kontrast.linalg import LogLaw, PowerLaw, fit_log_law, fit_power_law
from kontrast.sweep.spec import StudySpec

TOLERANCE = 0.05  # a kernel that predicts the outputs within this share of their norm counts as predicting them
RUNAWAY = 100.0  # outputs that moved by more than this multiple of their first norm are on their way to overflow
FLAT = -0.25  # a gap whose exponent lies surely above half of the theorem's −1/2 does not fall as a kernel's would
FITTED = ("ntk_drift_max", "ntk_drift_fro", "kernel_gap", "parameter_move")


class Verdict(Enum):
    """What the trained model is; the value says it in words."""

    KERNEL = "a kernel machine"
    KERNEL_WHEN_WIDER = "approaches a kernel machine as it widens"
    LEARNS = "leaves its kernel: training learns what no fixed kernel does"
    UNDECIDED = "no kernel machine at these widths, and too few of them to say more"
    DIVERGES = "diverges: no kernel describes it"
    STILL = "has barely moved: these steps say nothing yet"


@dataclass(frozen=True)
class SimilarityFindings:
    """One similarity's findings.

    Means and fits are over the seeds at `step`: the last step when every run reached it; where a run diverged, the
    last recorded one before half of the earliest divergence, so that no mean holds a run that is about to overflow.
    """

    similarity: str
    learning_rate: float
    verdict: Verdict
    sentence: str
    step: int | None
    widths: tuple[int, ...]
    n_seeds: int
    means: dict[str, tuple[float, ...]]  # measure → one value a width, at `step`
    exponents: dict[str, PowerLaw]  # measure → law in the width; absent where it cannot be fitted
    diverged: tuple[int, ...]  # how many seeds diverged, a width
    running_away: tuple[int, ...]  # how many seeds did not, but ended with outputs over `RUNAWAY` times their start
    kernel_diverged: tuple[int, ...]  # in how many seeds the fixed kernel's own prediction overflowed, a width
    diverged_at: tuple[float, ...]  # mean step of divergence, a width; NaN where none did
    divergence_law: LogLaw | None  # mean step of divergence against ln width, when every run diverged


@dataclass(frozen=True)
class Findings:
    """Everything `kontrast study` says, rebuilt from the stored result alone."""

    spec: StudySpec
    tolerance: float
    similarities: tuple[SimilarityFindings, ...]

    @property
    def verdict(self) -> str:
        """One line a similarity."""
        return "\n".join(found.sentence for found in self.similarities)

    def as_dict(self) -> dict[str, Any]:
        """JSON types; non-finite numbers become null."""
        plain = {
            "study": self.spec.name,
            "tolerance": self.tolerance,
            "spec": self.spec.as_dict(),
            "similarities": {
                found.similarity: {
                    **{key: value for key, value in dataclasses.asdict(found).items() if key != "similarity"},
                    "verdict": found.verdict.name.lower(),
                }
                for found in self.similarities
            },
        }
        return _finite(plain)  # type: ignore[no-any-return]


def check_tolerance(tolerance: float) -> None:
    """Refuse a tolerance that is no share of a norm, before any work is done for it."""
    if not 0 < tolerance < 1:
        raise InputError(f"tolerance must lie between 0 and 1, got {tolerance}; 0.05 is the default")


def find(result: xr.Dataset, *, tolerance: float = TOLERANCE) -> Findings:
    """Judge a consolidated study; `tolerance` is the relative error under which a kernel counts as predicting."""
    check_tolerance(tolerance)
    spec = StudySpec.from_dict(json.loads(result.attrs["spec"]))
    found = tuple(_judge(result.sel(similarity=similarity), tolerance) for similarity in spec.similarities)
    return Findings(spec, tolerance, found)


def _judge(result: xr.Dataset, tolerance: float) -> SimilarityFindings:
    widths = tuple(int(width) for width in result.width)
    diverged = result.diverged.values.astype(bool)  # (width, seed)
    stopped = np.where(diverged, result.stopped_at.values, np.nan)
    diverged_at = tuple(float(np.nanmean(row)) if np.isfinite(row).any() else math.nan for row in stopped)
    at = _common_step(result)
    means = {} if at is None else {name: _seed_means(result[name].sel(step=at)) for name in (*FITTED, *_SHOWN)}
    exponents = {name: law for name in FITTED if (law := _fit(widths, means.get(name))) is not None}
    plain = SimilarityFindings(
        similarity=str(result.similarity.values),
        learning_rate=float(result.learning_rate.values.flat[0]),
        verdict=Verdict.STILL,
        sentence="",
        step=at,
        widths=widths,
        n_seeds=result.sizes["seed"],
        means=means,
        exponents=exponents,
        diverged=tuple(int(row.sum()) for row in diverged),
        running_away=tuple(int(row.sum()) for row in _runaways(result)),
        kernel_diverged=tuple(int(row.sum()) for row in result.kernel_diverged.values),
        diverged_at=diverged_at,
        divergence_law=fit_log_law(widths, diverged_at) if diverged.all() and len(widths) > 1 else None,
    )
    verdict, words = _verdict(plain, tolerance)
    if sum(plain.kernel_diverged) and at is not None:
        words += f" (judged at step {at}: the fixed kernel's own prediction overflows later)"
    return dataclasses.replace(plain, verdict=verdict, sentence=f"{plain.similarity}: {words}")


_SHOWN = ("output_move", "effective_rank", "spread", "loss")


def _common_step(result: xr.Dataset) -> int | None:
    """The last recorded step at which every run is whole, and no run is within half its way to divergence."""
    measured = np.isfinite(result[list(FITTED)].to_dataarray().transpose("step", ...).values)
    usable = measured.reshape(len(result.step), -1).all(axis=1)
    diverged = result.diverged.values.astype(bool)
    if diverged.any():
        usable &= result.step.values <= result.stopped_at.values[diverged].min() / 2
    usable &= (result.output_move.transpose("step", ...).values <= RUNAWAY).all(axis=(1, 2))
    return int(result.step.values[usable][-1]) if usable.any() else None


def _runaways(result: xr.Dataset) -> np.ndarray:
    """(width, seed): whether a run reached the last step with outputs that have run away."""
    last = result.output_move.isel(step=-1).transpose("width", "seed").values  # NaN, a diverged run, compares as False
    return np.asarray(last > RUNAWAY)


def _seed_means(values: xr.DataArray) -> tuple[float, ...]:
    return tuple(float(value) for value in values.mean("seed", skipna=False).transpose("width").values)


def _fit(widths: tuple[int, ...], values: tuple[float, ...] | None) -> PowerLaw | None:
    if values is None or len(widths) < 2 or not all(math.isfinite(v) and v > 0 for v in values):
        return None
    return fit_power_law(widths, values)


def _verdict(found: SimilarityFindings, tolerance: float) -> tuple[Verdict, str]:
    widest = found.widths[-1]
    if sum(found.diverged) or sum(found.running_away):
        return Verdict.DIVERGES, f"{_divergence(found)}{_drift(found)}no kernel describes where it goes"
    if not found.means:
        return Verdict.DIVERGES, "the fixed kernel's own prediction overflows at once; lower the learning rate"
    gaps, moves = found.means["kernel_gap"], found.means["output_move"]
    if moves[-1] < tolerance:
        return Verdict.STILL, (
            f"after {found.step} steps the outputs have moved by {moves[-1]:.2%} at width {widest}, "
            "too little to judge; raise the steps or the learning rate"
        )
    if gaps[-1] <= tolerance:
        first = next(w for w, gap in zip(found.widths, gaps, strict=True) if gap <= tolerance)
        return Verdict.KERNEL, (
            f"{_drift(found)}at width {widest} a kernel machine predicts this model within {gaps[-1]:.1%} "
            f"(within {tolerance:.0%} from width {first})"
        )
    law = found.exponents.get("kernel_gap")
    if law is not None and law.high < 0:
        needed = law.solve(tolerance)
        return Verdict.KERNEL_WHEN_WIDER, (
            f"{_drift(found)}at width {widest} a kernel machine still misses this model by {gaps[-1]:.1%}; "
            f"at this rate {tolerance:.0%} needs width {_round(needed)}"
        )
    missed = f"{_drift(found)}at width {widest} a fixed kernel misses this model by {gaps[-1]:.1%}"
    if law is not None and law.low > FLAT:
        return (
            Verdict.LEARNS,
            f"{missed} and the gap does not fall with width: training learns what no fixed kernel does",
        )
    return Verdict.UNDECIDED, f"{missed}; whether the gap falls with width these widths do not tell, add more or larger"


def _divergence(found: SimilarityFindings) -> str:
    total = found.n_seeds * len(found.widths)
    first, last = found.diverged_at[0], found.diverged_at[-1]
    if not sum(found.diverged):
        return f"runs away in {sum(found.running_away)} of {total} runs, outputs over {RUNAWAY:.0f} times their start; "
    if sum(found.diverged) < total:
        return f"diverges in {sum(found.diverged)} of {total} runs; "
    if found.divergence_law is None:
        return f"diverges at step {first:.0f}; "
    later = ", later when wider" if found.divergence_law.low > 0 else ""
    steps = f"step {first:.0f} at width {found.widths[0]}, {last:.0f} at {found.widths[-1]}"
    return f"diverges at every width{later}: {steps}; "


def _drift(found: SimilarityFindings) -> str:
    law = found.exponents.get("ntk_drift_max")
    if law is None:
        return ""
    verb = "falls" if law.high < 0 else "grows" if law.low > 0 else "goes"  # "goes": the interval holds both signs
    return f"NTK drift at step {found.step} {verb} as M^{law}; "


def _round(width: float) -> str:
    return f"about {float(f'{width:.1g}'):,.0f}" if width < 1e9 else "beyond reach"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value if not isinstance(value, float) or math.isfinite(value) else None
