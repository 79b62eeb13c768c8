"""The command line that makes a study again, rebuilt from its spec."""

from __future__ import annotations

import dataclasses
import shlex
from typing import Any

from kontrast.report.svg import printable
from kontrast.study import Findings, StudySpec, Thresholds

# Every field that has an option. The rest of the spec (probes, digest, format) follows from these, the data and the
# version.
OPTIONS = {
    "data": "--data",
    "split": "--split",
    "image_shape": "--image-shape",
    "n_samples": "--samples",
    "views": "--view",
    "n_positives": "--positives",
    "negatives": "--negatives",
    "similarities": "--similarity",
    "link": "--link",
    "temperature": "--temperature",
    "delta": "--delta",
    "activation": "--activation",
    "depth": "--depth",
    "parametrization": "--parametrization",
    "d_out": "--d-out",
    "widths": "--widths",
    "n_seeds": "--seeds",
    "n_steps": "--steps",
    "learning_rates": "--learning-rate",
    "pca_learning_rate": "--pca-learning-rate",
    "n_probe_samples": "--probe-samples",
    "label_curves": "--labels",
    "device": "--device",
    "dtype": "--dtype",
}
THRESHOLD_OPTIONS = {
    "tolerance": "--tolerance",
    "pca_tolerance": "--pca-tolerance",
    "probe_margin": "--probe-margin",
}


@dataclasses.dataclass(frozen=True)
class Command:
    """The command, and whether it says all: a spec made in Python may hold what no option can."""

    text: str
    complete: bool


def command(findings: Findings) -> Command:
    """`kontrast study` with the options that differ from its defaults, quoted for a shell."""
    spec, default = findings.spec, StudySpec()
    options = {
        option: _words(getattr(spec, field))
        for field, option in OPTIONS.items()
        if getattr(spec, field) != getattr(default, field)
    }
    options |= {
        option: _words(getattr(findings.thresholds, name))
        for name, option in THRESHOLD_OPTIONS.items()
        if getattr(findings.thresholds, name) != getattr(Thresholds(), name)
    }
    text = shlex.join(["kontrast", "study", *(word for option, words in options.items() for word in (option, *words))])
    complete = _probes_are_automatic(spec, default) and text == printable(text)
    return Command(printable(text), complete)


def _probes_are_automatic(spec: StudySpec, default: StudySpec) -> bool:
    return spec.n_ntk_points == min(default.n_ntk_points, spec.n_samples)


def _words(value: Any) -> list[str]:
    """What follows an option: its value, and nothing where it is a flag."""
    return [] if value is True else [_text(value)]


def _text(value: Any) -> str:
    return ",".join(_text(part) for part in value) if isinstance(value, tuple) else str(value)
