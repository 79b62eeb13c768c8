"""The report: one HTML file with everything inside it, for a phone, a desk, the dark and a printer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jinja2
import xarray as xr
from markupsafe import Markup

from kontrast.report.command import OPTIONS, command
from kontrast.report.figures import Plate
from kontrast.report.svg import printable
from kontrast.sweep import FLAT, MEASURES, RUNAWAY, Findings, SimilarityFindings, Verdict

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


def render(result: xr.Dataset, findings: Findings, plates: tuple[Plate, ...], pictures: Mapping[str, str]) -> str:
    """The page; `pictures` maps a panel's name to its `<svg>`."""
    spec = findings.spec
    template = _environment().get_template("page.html")
    return template.render(
        data=printable(spec.data),
        spec=spec,
        n_seeds=result.sizes["seed"],
        tolerance=findings.tolerance,
        similarities=[_similarity(found) for found in findings.similarities],
        plates=plates,
        pictures={name: Markup(picture) for name, picture in pictures.items()},  # made by `to_svg` alone
        columns=[heading for heading, _ in COLUMNS.values()],
        rules=[
            (verdict, rule, [found.similarity for found in findings.similarities if found.verdict is verdict])
            for verdict, rule in RULES.items()
        ],
        settings=_settings(findings),
        command=command(findings),
        variables=_variables(result),
        sizes=[(str(name), size) for name, size in result.sizes.items()],
    )


def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("kontrast.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
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


def _divergence(found: SimilarityFindings, i: int) -> str:
    if not found.diverged[i]:
        return "–"
    return f"{found.diverged[i]} of {found.n_seeds}, step {found.diverged_at[i]:.0f}"


def _settings(findings: Findings) -> list[tuple[str, str, str]]:
    """(field, value, option) for every field of the spec."""
    spec = findings.spec
    return [
        (field.name, printable(_plain(getattr(spec, field.name))), OPTIONS.get(field.name, ""))
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
