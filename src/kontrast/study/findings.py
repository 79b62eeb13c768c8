"""What a study's numbers say: kernel, PCA or learning, computed from exponents, divergence, angles and probes."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import xarray as xr

from kontrast.linalg import LogLaw, PowerLaw, fit_log_law
from kontrast.study.label_findings import LabelFindings, find_labels
from kontrast.study.over_seeds import fit_in_width, last_step, seed_means, whole_steps
from kontrast.study.pca_findings import PCAFindings, PCAVerdict, find_pca
from kontrast.study.probe_findings import ProbeFindings, find_probes, without_probes
from kontrast.study.spec import StudySpec
from kontrast.study.thresholds import Thresholds

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
    thresholds: Thresholds
    similarities: tuple[SimilarityFindings, ...]
    pca: PCAFindings | None  # None where the spec allows no PCA view: `spec.without_pca` says why
    probes: ProbeFindings | None
    without_probes: str  # why there are none; empty where there are
    labels: LabelFindings | None = None  # None where they were not asked for

    @property
    def headline(self) -> str:
        """Kernel, PCA or learning, in one line: a word for every run, and what training buys downstream."""
        words: dict[str, list[str]] = {}
        for found in self.similarities:
            words.setdefault(ANSWERS[found.verdict], []).append(found.similarity)
        if self.pca is not None:
            words.setdefault(ANSWERS[self.pca.verdict], []).append("orthonormal")
        answers = "; ".join(f"{answer} ({', '.join(runs)})" for answer, runs in words.items())
        if self.probes is None:
            return f"{answers}; no downstream probes, {self.without_probes}"
        gain = self.probes.gain
        return f"{answers}; {gain.sentence if gain else 'every trained run diverged, so no probe judges training'}"

    @property
    def verdict(self) -> str:
        """The headline, and one line a run."""
        others = [found.sentence for found in (self.pca, self.labels) if found is not None]
        return "\n".join([self.headline, *(found.sentence for found in self.similarities), *others])

    def as_dict(self) -> dict[str, Any]:
        """JSON types; non-finite numbers become null."""
        plain = {
            "study": self.spec.name,
            "headline": self.headline,
            "thresholds": dataclasses.asdict(self.thresholds),
            "spec": self.spec.as_dict(),
            "similarities": {
                found.similarity: {
                    **{key: value for key, value in dataclasses.asdict(found).items() if key != "similarity"},
                    "verdict": found.verdict.name.lower(),
                }
                for found in self.similarities
            },
            "pca": None
            if self.pca is None
            else {**dataclasses.asdict(self.pca), "verdict": self.pca.verdict.name.lower()},
            "without_pca": self.spec.without_pca,
            "probes": None if self.probes is None else dataclasses.asdict(self.probes),
            "without_probes": self.without_probes,
            "labels": None if self.labels is None else dataclasses.asdict(self.labels),
        }
        return _finite(plain)  # type: ignore[no-any-return]


# The headline's word for every verdict.
ANSWERS: dict[Verdict | PCAVerdict, str] = {
    Verdict.KERNEL: "kernel",
    Verdict.KERNEL_WHEN_WIDER: "kernel when wider",
    Verdict.LEARNS: "learning",
    Verdict.UNDECIDED: "undecided",
    Verdict.DIVERGES: "divergence",
    Verdict.STILL: "barely moved",
    PCAVerdict.PCA: "PCA",
    PCAVerdict.PCA_WHEN_WIDER: "PCA when wider",
    PCAVerdict.PCA_OF_LEARNED_FEATURES: "learning",
    PCAVerdict.STILL: "barely moved",
    PCAVerdict.PCA_UNDERWAY: "PCA, not finished",
    PCAVerdict.NOT_CONVERGED: "no PCA yet",
    PCAVerdict.UNDEFINED: "no one PCA",
    PCAVerdict.DIVERGES: "divergence",
}


def find(result: xr.Dataset, thresholds: Thresholds | None = None) -> Findings:
    """Judge a consolidated study by `thresholds`, the defaults without."""
    thresholds = thresholds or Thresholds()
    spec = StudySpec.from_dict(json.loads(result.attrs["spec"]))
    has_probes = bool(spec.n_probe_samples)
    return Findings(
        spec,
        thresholds,
        tuple(_judge(result.sel(similarity=name), thresholds.tolerance) for name in spec.similarities),
        pca=None if spec.without_pca else find_pca(result, spec, thresholds),
        probes=find_probes(result, spec, thresholds.probe_margin) if has_probes else None,
        without_probes="" if has_probes else without_probes(result),
        labels=find_labels(result) if spec.label_curves else None,
    )


def _judge(result: xr.Dataset, tolerance: float) -> SimilarityFindings:
    widths = tuple(int(width) for width in result.width)
    diverged = result.diverged.values.astype(bool)  # (width, seed)
    stopped = np.where(diverged, result.stopped_at.values, np.nan)
    diverged_at = tuple(float(np.nanmean(row)) if np.isfinite(row).any() else math.nan for row in stopped)
    at = _common_step(result)
    means = {} if at is None else {name: seed_means(result[name].sel(step=at)) for name in (*FITTED, *_SHOWN)}
    exponents = {name: law for name in FITTED if (law := fit_in_width(widths, means.get(name))) is not None}
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
    usable = whole_steps(result, FITTED, result.diverged.values.astype(bool), result.stopped_at.values)
    usable &= (result.output_move.transpose("step", ...).values <= RUNAWAY).all(axis=(1, 2))
    return last_step(result, usable)


def _runaways(result: xr.Dataset) -> np.ndarray:
    """(width, seed): whether a run reached the last step with outputs that have run away."""
    last = result.output_move.isel(step=-1).transpose("width", "seed").values  # NaN, a diverged run, compares as False
    return np.asarray(last > RUNAWAY)


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
