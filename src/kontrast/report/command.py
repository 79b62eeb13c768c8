"""The command line that makes a study again, rebuilt from its spec."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable
from typing import Any

from kontrast.options import Option, options_of
from kontrast.report.svg import printable
from kontrast.study import Findings, StudySpec, Thresholds

SPEC, THRESHOLDS = options_of("kontrast.study", "StudySpec"), options_of("kontrast.study", "Thresholds")
OPTIONS = {option.argument: option.name for option in SPEC}
THRESHOLD_OPTIONS = {option.argument: option.name for option in THRESHOLDS}


@dataclasses.dataclass(frozen=True)
class Command:
    """The command, and whether it says all: a spec made in Python may hold what no option can."""

    text: str
    complete: bool


def command(findings: Findings) -> Command:
    """`kontrast study` with the options that differ from its defaults, quoted for a shell."""
    spec, default = findings.spec, StudySpec()
    words = [*_changed(spec, default, SPEC), *_changed(findings.thresholds, Thresholds(), THRESHOLDS)]
    text = shlex.join(["kontrast", "study", *words])
    # The rest of the spec follows from the options, the data and the version, unless it was changed in Python.
    follows = spec.n_ntk_points == min(default.n_ntk_points, spec.n_samples)
    return Command(printable(text), follows and text == printable(text))


def _changed(given: Any, default: Any, options: Iterable[Option]) -> list[str]:
    """The words of the options that are not at their defaults."""
    values = [(option, getattr(given, option.argument)) for option in options]
    changed = [(option, value) for option, value in values if value != getattr(default, option.argument)]
    return [word for option, value in changed for word in option.write(value)]
