"""The report: one HTML file with everything inside it, for a phone, a desk, the dark and a printer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import xarray as xr
from markupsafe import Markup

from kontrast.report.command import OPTIONS, THRESHOLD_OPTIONS, command
from kontrast.report.drawing import Plate
from kontrast.report.template import template
from kontrast.study import (
    CLOSED_FORM,
    EMBEDDINGS,
    FLAT,
    MEASURES,
    REPRESENTATIONS,
    RUNAWAY,
    Findings,
    LabelFindings,
    PCAFindings,
    PCAVerdict,
    ProbeFindings,
    SimilarityFindings,
    Verdict,
)
from kontrast.study import SHARE as LABEL_SHARE

# Verdict → the rule it follows from, in the order `sweep.findings` asks; the page marks the one that decided.
RULES = {
    Verdict.DIVERGES: f"a run overflowed or ended with outputs over {RUNAWAY:g} times their start, or the fixed "
    "kernel's own prediction overflowed at once",
    Verdict.STILL: "at the widest network the outputs moved by less than the tolerance",
    Verdict.KERNEL: "at the widest network the kernel gap is at most the tolerance",
    Verdict.KERNEL_WHEN_WIDER: "the kernel gap falls with width: the 95 % interval of its exponent lies below zero",
    Verdict.LEARNS: f"the kernel gap does not fall with width: the 95 % interval of its exponent lies above {FLAT:g}",
    Verdict.UNDECIDED: "none of these: the gap is larger than the tolerance, and its exponent is not known well enough",
}
# The same for the orthonormal run, in the order `sweep.pca_findings` asks; "within" is a largest sine of at most the
# PCA tolerance.
PCA_RULES = {
    PCAVerdict.DIVERGES: "a run overflowed",
    PCAVerdict.UNDEFINED: "at the widest network some C̃ has an eigengap of zero, so that its PCA is not unique",
    PCAVerdict.PCA: "at the widest network the trained subspace is within the PCA tolerance of PCA of C̃(0)",
    PCAVerdict.PCA_WHEN_WIDER: "the twin with frozen features is within the PCA tolerance of PCA of C̃(0), and the "
    "trained one's sine falls with width: the 95 % interval of its exponent lies below zero",
    PCAVerdict.PCA_OF_LEARNED_FEATURES: "at the widest network the trained subspace is within the PCA tolerance of PCA "
    "of C̃(t)",
    PCAVerdict.STILL: "the twin with frozen features is not within the PCA tolerance of PCA of C̃(0), and since the "
    "first record the loss of the widest network has changed by less than the tolerance",
    PCAVerdict.PCA_UNDERWAY: "at the widest network the frozen gap is at most the tolerance, and the twin with frozen "
    "features is not within the PCA tolerance either",
    PCAVerdict.NOT_CONVERGED: "none of these",
}


def short(value: float) -> str:
    """Three digits, as the terminal writes them."""
    return f"{value:#.3g}".rstrip(".") if math.isfinite(value) else "–"


def share(value: float) -> str:
    """A percentage, or a power of ten where that would be long."""
    if not math.isfinite(value):
        return "–"
    return f"{value:.2%}" if value < 10 else f"{value:.1e}"


# The tables' columns: measure → heading, and how a value is written.
COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "ntk_drift_max": ("NTK drift, max", short),
    "ntk_drift_fro": ("NTK drift, relative", share),
    "kernel_gap": ("kernel gap", share),
    "output_move": ("outputs moved", share),
    "parameter_move": ("weights moved", short),
    "effective_rank": ("effective rank", short),
    "spread": ("spread", share),
}
PCA_COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "pca_angle_start": ("sine to C̃(0)", short),
    "pca_angle_now": ("sine to C̃(t)", short),
    "pca_angle_frozen": ("sine, frozen", short),
    "matrix_drift": ("C̃ drift", share),
    "frozen_gap": ("frozen gap", share),
    "eigengap": ("eigengap now", short),
}


def accuracy(mean: float, deviation: float) -> str:
    """An accuracy in per cent with its deviation over the seeds, where there is one."""
    if not math.isfinite(mean):
        return "–"
    return f"{100 * mean:.1f}±{100 * deviation:.1f}" if math.isfinite(deviation) else f"{100 * mean:.1f}"


def pairs(measured: Sequence[float], predicted: Sequence[float], form: str) -> list[str]:
    """Measured / predicted, in a format without its per-cent signs; a dash for a run that diverged."""
    return [
        f"{form.format(one)} / {form.format(other)}".replace("%", "") if math.isfinite(one) else "–"
        for one, other in zip(measured, predicted, strict=True)
    ]


def needed(n: float) -> str:
    """A number of labels, in two digits; a dash where there were too few."""
    return f"{float(f'{n:.2g}'):.0f}" if math.isfinite(n) else "–"


def render(result: xr.Dataset, findings: Findings, plates: tuple[Plate, ...], pictures: Mapping[str, str]) -> str:
    """The page; `pictures` maps a panel's name to its `<svg>`."""
    spec = findings.spec
    return template("page.html").render(
        data=spec.data,
        spec=spec,
        n_seeds=result.sizes["seed"],
        headline=findings.headline,
        thresholds=[(name, getattr(findings.thresholds, name), option) for name, option in THRESHOLD_OPTIONS.items()],
        similarities=[_similarity(found) for found in findings.similarities],
        pca=None if findings.pca is None else _pca(findings.pca),
        probes=None if findings.probes is None else _probes(findings.probes),
        without_probes=findings.without_probes,
        labels=None if findings.labels is None else _labels(findings.labels),
        plates=plates,
        pictures={name: Markup(picture) for name, picture in pictures.items()},  # made by `to_svg` alone
        columns=[heading for heading, _ in COLUMNS.values()],
        rules=[
            (verdict, rule, [found.similarity for found in findings.similarities if found.verdict is verdict])
            for verdict, rule in RULES.items()
        ],
        pca_columns=[heading for heading, _ in PCA_COLUMNS.values()],
        pca_rules=[
            (verdict, rule, findings.pca is not None and findings.pca.verdict is verdict)
            for verdict, rule in PCA_RULES.items()
        ],
        closed_form=[name for name in CLOSED_FORM if findings.probes and name in findings.probes.embeddings],
        settings=_settings(findings),
        command=command(findings),
        variables=_variables(result),
        sizes=[(str(name), size) for name, size in result.sizes.items()],
    )


def _similarity(found: SimilarityFindings) -> dict[str, Any]:
    """What the page says of one similarity, as strings."""
    return {
        "name": found.similarity,
        "rate": f"{found.learning_rate:g}",
        "when": f"means over seeds at step {found.step}"
        if found.step is not None
        else "too early an overflow for means",
        "verdict": found.verdict,
        "sentence": found.sentence.removeprefix(f"{found.similarity}: "),
        "rows": [
            (
                width,
                [write(found.means[name][i]) if found.means else "–" for name, (_, write) in COLUMNS.items()],
                _divergence(found, i),
            )
            for i, width in enumerate(found.widths)
        ],
        "exponents": [found.exponents.get(name) for name in COLUMNS] if found.exponents else None,
    }


def _pca(found: PCAFindings) -> dict[str, Any]:
    """What the page says of the orthonormal run, as strings."""
    return {
        "rate": f"{found.learning_rate:g}",
        "when": f"means over seeds at step {found.step}" if found.step is not None else "no step without a gap",
        "verdict": found.verdict,
        "sentence": found.sentence.removeprefix("orthonormal: "),
        "rows": [
            (width, [write(found.means[name][i]) if found.means else "–" for name, (_, write) in PCA_COLUMNS.items()])
            for i, width in enumerate(found.widths)
        ],
        "exponents": [found.exponents.get(name) for name in PCA_COLUMNS] if found.exponents else None,
    }


def _probes(found: ProbeFindings) -> dict[str, Any]:
    """The table of accuracies, and who is who in it."""
    return {
        "n_samples": found.n_samples,
        "overlap": found.overlap,
        "names": [(name, EMBEDDINGS[name]) for name in found.embeddings],
        "rows": [
            (width, [accuracy(found.means[name][i], found.deviations[name][i]) for name in found.embeddings])
            for i, width in enumerate(found.widths)
        ],
        "many": found.n_seeds > 1,
    }


def _labels(found: LabelFindings) -> dict[str, Any]:
    """The tables of the label curves, and who is who in them."""
    return {
        "sentence": found.sentence,
        "width": found.width,
        "n_samples": found.n_samples,
        "share": f"{LABEL_SHARE:.0%}",
        "n_labels": found.n_labels,
        "names": [(name, REPRESENTATIONS[name]) for name in found.representations],
        "tables": [
            (
                "test error, as a share of the labels' variance",
                [(name, pairs(found.errors[name], found.predicted_errors[name], "{:.3f}")) for name in found.errors],
            ),
            (
                "test accuracy in per cent",
                [
                    (name, pairs(found.accuracies[name], found.predicted_accuracies[name], "{:.1%}"))
                    for name in found.accuracies
                ],
            ),
        ],
        "needed": [
            (name, needed(found.needed[name]), needed(found.predicted_needed[name])) for name in found.representations
        ],
        "best": found.best,
        "level": f"{found.level:.0%}",
        "accuracy_gap": f"{100 * found.accuracy_gap:.0f}",
    }


def _divergence(found: SimilarityFindings, i: int) -> str:
    if not found.diverged[i]:
        return "–"
    return f"{found.diverged[i]} of {found.n_seeds}, step {found.diverged_at[i]:.0f}"


def _settings(findings: Findings) -> list[tuple[str, str, str]]:
    """(field, value, option) for every field of the spec."""
    spec = findings.spec
    return [
        (field.name, _plain(getattr(spec, field.name)), OPTIONS.get(field.name, ""))
        for field in dataclasses.fields(spec)
    ]


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(str(part) for part in value)
    return "–" if value is None or value == "" else str(value)


def _variables(result: xr.Dataset) -> list[tuple[str, str, str]]:
    """(name, dimensions, meaning) for every array of the result."""
    other = {
        "diverged": "1 where the run overflowed",
        "stopped_at": "the step at which the run ended",
        "kernel_diverged": "1 where the fixed kernel's own prediction overflowed",
        "learning_rate": "the learning rate",
    }
    return [
        (
            str(name),
            ", ".join(str(dim) for dim in array.dims),
            MEASURES.get(str(name)) or other.get(str(name)) or str(array.attrs.get("long_name", "")),
        )
        for name, array in result.data_vars.items()
    ]
