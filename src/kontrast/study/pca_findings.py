"""What the orthonormal run says: is the trained subspace PCA of the first features, PCA of others, or none yet?"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from enum import Enum

import xarray as xr

from kontrast.linalg import PowerLaw
from kontrast.study.over_seeds import fit_in_width, last_step, seed_means, whole_steps
from kontrast.study.pca_view import PCA_MEASURES
from kontrast.study.spec import StudySpec
from kontrast.study.thresholds import Thresholds

FITTED = ("pca_angle_start", "pca_angle_now", "matrix_drift", "frozen_gap")
NEEDED = ("pca_angle_start", "pca_angle_now", "pca_angle_frozen", "matrix_drift")
RELAXED = 5.0  # e-foldings of the slowest direction after which descent has had its time


class PCAVerdict(Enum):
    """What the trained subspace is; the value says it in words."""

    PCA = "PCA of its random features"
    PCA_WHEN_WIDER = "approaches PCA of its random features as it widens"
    PCA_OF_LEARNED_FEATURES = "PCA of features that training changed"
    STILL = "has barely moved: these steps say nothing yet"
    PCA_UNDERWAY = "is doing PCA of its random features, and has not finished"
    NOT_CONVERGED = "has not arrived at any PCA"
    UNDEFINED = "has no one PCA to be compared with"
    DIVERGES = "diverges: no PCA describes it"


@dataclass(frozen=True)
class PCAFindings:
    """The orthonormal run's findings: means and fits over the seeds at `step`, the last at which every run is whole."""

    learning_rate: float
    verdict: PCAVerdict
    sentence: str
    step: int | None
    widths: tuple[int, ...]
    n_seeds: int
    means: dict[str, tuple[float, ...]]  # measure → one value a width, at `step`
    exponents: dict[str, PowerLaw]  # measure → law in the width; absent where it cannot be fitted
    progress: float  # share of the loss at `step` that was won since the first record, at the widest network
    eigengaps: tuple[float, ...]  # mean λ_Z − λ_(Z+1) of C̃(0), a width
    diverged: tuple[int, ...]  # how many seeds diverged, a width
    not_unique: tuple[int, ...]  # in how many seeds some C̃ had no eigengap, a width


def find_pca(result: xr.Dataset, spec: StudySpec, thresholds: Thresholds) -> PCAFindings:
    """Judge the orthonormal run of a consolidated study."""
    widths = tuple(int(width) for width in result.width)
    diverged = result.pca_diverged.transpose("width", "seed").values.astype(bool)
    usable = whole_steps(result, NEEDED, diverged, result.pca_stopped_at.transpose("width", "seed").values)
    at = last_step(result, usable)
    means = {} if at is None else {name: seed_means(result[name].sel(step=at)) for name in PCA_MEASURES}
    plain = PCAFindings(
        learning_rate=spec.pca_learning_rate,
        verdict=PCAVerdict.NOT_CONVERGED,
        sentence="",
        step=at,
        widths=widths,
        n_seeds=result.sizes["seed"],
        means=means,
        exponents={name: law for name in FITTED if (law := fit_in_width(widths, means.get(name))) is not None},
        progress=_progress(result, at),
        eigengaps=seed_means(result.eigengap_start),
        diverged=tuple(int(row.sum()) for row in diverged),
        not_unique=tuple(int(n) for n in result.pca_not_unique.transpose("width", "seed").values.sum(axis=1)),
    )
    verdict, words = _verdict(plain, thresholds)
    return dataclasses.replace(plain, verdict=verdict, sentence=f"orthonormal: {words}")


def _verdict(found: PCAFindings, thresholds: Thresholds) -> tuple[PCAVerdict, str]:
    widest, tolerance = found.widths[-1], thresholds.pca_tolerance
    if sum(found.diverged):
        total = found.n_seeds * len(found.widths)
        return PCAVerdict.DIVERGES, (
            f"diverges in {sum(found.diverged)} of {total} runs; lower --pca-learning-rate ({found.learning_rate:g})"
        )
    if found.not_unique[-1] or not found.means:
        return PCAVerdict.UNDEFINED, (
            f"the eigengap of C̃ is zero in {sum(found.not_unique)} of {found.n_seeds * len(found.widths)} runs, so its "
            "PCA is not unique; lower --d-out or --pca-learning-rate, or take more --samples"
        )
    start, now, frozen = (found.means[name][-1] for name in ("pca_angle_start", "pca_angle_now", "pca_angle_frozen"))
    law = found.exponents.get("pca_angle_start")
    after = f"after {found.step} steps at width {widest}"
    if start <= tolerance:
        sines = found.means["pca_angle_start"]
        first = next(w for w, sine in zip(found.widths, sines, strict=True) if sine <= tolerance)
        return PCAVerdict.PCA, (
            f"{_fall(law)}{after} the trained subspace is PCA of C̃(0) within a sine of {start:.2g} "
            f"(within {tolerance:g} from width {first})"
        )
    apart = f"{after} the trained subspace is a sine of {start:.2g} from PCA of C̃(0) and {now:.2g} from PCA of C̃(t)"
    if frozen <= tolerance and law is not None and law.high < 0:
        return (
            PCAVerdict.PCA_WHEN_WIDER,
            f"{_fall(law)}{apart}; at this rate {tolerance:g} needs width {_width(law, tolerance)}",
        )
    if now <= tolerance:
        return PCAVerdict.PCA_OF_LEARNED_FEATURES, f"{apart}: training changed the features, and it follows them"
    gap = found.means["frozen_gap"][-1]
    if frozen > tolerance and not abs(found.progress) > thresholds.tolerance:
        return PCAVerdict.STILL, (
            f"{apart}, but its loss has changed by {found.progress:.2%} since the first record, too little to judge; "
            "raise --steps or --pca-learning-rate"
        )
    if frozen > tolerance and gap <= thresholds.tolerance:
        return PCAVerdict.PCA_UNDERWAY, (
            f"{after} its outputs are those of features frozen at their start within {gap:.2%}, so what it does is "
            f"PCA of C̃(0), not finished (sine {start:.2g}); {_advice(found, frozen, tolerance)}"
        )
    return PCAVerdict.NOT_CONVERGED, f"{apart}; {_advice(found, frozen, tolerance)}"


def _progress(result: xr.Dataset, at: int | None) -> float:
    """1 − loss(first record)/loss(at), means over the seeds of the widest network."""
    if at is None:
        return math.nan
    first, last = (seed_means(result.pca_loss.sel(step=step))[-1] for step in (int(result.step[0]), at))
    return 1 - first / last if last else math.nan


def _advice(found: PCAFindings, frozen: float, tolerance: float) -> str:
    """Why the descent is at no PCA, from its twin with frozen features and from the eigengap."""
    if frozen <= tolerance:
        return (
            f"its twin with frozen features arrives (sine {frozen:.2g}), so the features move faster than W can "
            "follow: lower --pca-learning-rate, or take larger widths"
        )
    # Around PCA the error of W shrinks by 1 − 2η·gap a step.
    needed = 1 / (2 * found.learning_rate * found.eigengaps[-1])
    assert found.step is not None
    if found.step > RELAXED * needed:
        return (
            f"nor does its twin with frozen features arrive (sine {frozen:.2g}), though the eigengap of "
            f"{found.eigengaps[-1]:.2g} takes some {_steps(needed)} steps: they are too long, lower --pca-learning-rate"
        )
    return (
        f"nor has its twin with frozen features arrived (sine {frozen:.2g}): the eigengap of {found.eigengaps[-1]:.2g} "
        f"takes several times {_steps(needed)} steps; raise --steps, or lower --d-out"
    )


def _fall(law: PowerLaw | None) -> str:
    if law is None:
        return ""
    verb = "falls" if law.high < 0 else "grows" if law.low > 0 else "goes"  # "goes": the interval holds both signs
    return f"the sine to PCA of C̃(0) {verb} as M^{law}; "


def _width(law: PowerLaw, tolerance: float) -> str:
    width = law.solve(tolerance)
    return f"about {float(f'{width:.1g}'):,.0f}" if width < 1e9 else "beyond reach"


def _steps(needed: float) -> str:
    return f"{float(f'{needed:.1g}'):,.0f}" if math.isfinite(needed) and needed < 1e12 else "very many"
