"""The page of a diagnosis: one HTML file with everything inside it, for a phone, a desk, the dark and a printer."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure, FigureBase

from kontrast.diagnosis import Diagnosis, Settings, collapse_rules, rules
from kontrast.options import options_of
from kontrast.report.axes import INK, PRINT_INK, new_axes, say, style
from kontrast.report.diagnosis import blame, checkpoints, labels, lazy, pays, spectra, widths
from kontrast.report.diagnosis.definitions import definitions
from kontrast.report.diagnosis.sections import Section, checkpoints_of, is_monitor
from kontrast.report.plates import Picture, Plate, picture_figure, plate_figure
from kontrast.report.svg import to_svg
from kontrast.report.template import template

QUESTIONS = (lazy, spectra, pays, checkpoints, blame, labels, widths)  # in the order of the page
SETTINGS, LIMITS = options_of("kontrast.diagnosis", "Settings"), options_of("kontrast.diagnosis", "Limits")
MOST_MISSING = 100  # reasons that the page lists
ELSEWHERE = ("kind", "format", "notes", "views", "features", "n_parameters")  # of a monitor's setting
PAYS = {"yes": "training pays", "no": "training buys nothing", "unsure": "whether it pays is not sure"}
COLLAPSES = {"none": "no collapse", "dimensional": "dimensional collapse", "complete": "complete collapse"}


def sections_of(d: Diagnosis) -> list[Section]:
    """The questions that were asked, each answered or with the reason why not."""
    return [section for section in (question.section(d) for question in QUESTIONS) if section is not None]


def diagnosis_page(d: Diagnosis) -> str:
    """The page of a diagnosis: one HTML file that needs no other, and no network."""
    sections = sections_of(d)
    svgs = {
        picture.name: _svg(picture, d) for section in sections for plate in section.plates for picture in plate.pictures
    }
    defined = definitions(d.result)
    return template(
        "kontrast.report.diagnosis"
    ).render(
        d=d,
        name=str(d.result.attrs.get("name", "")) or "a model",
        about=_about(d),
        badges=badges(d),
        sections=sections,
        svgs={name: Markup(svg) for name, svg in svgs.items()},  # made by `to_svg` alone
        definitions=defined,
        defined={it.name for it in defined},
        rules=[(rule, rule.reason(d.limits)) for rule in rules.RULES],
        collapse_rules=collapse_rules,
        of_monitor=is_monitor(d),
        limits=[(option.argument, getattr(d.limits, option.argument), option.name, option.help) for option in LIMITS],
        settings=_settings(d),
        missing=sorted(d.missing.items())[:MOST_MISSING],
        n_missing=len(d.missing),
        sizes=sorted((str(name), size) for name, size in d.result.sizes.items()),
    )


def diagnosis_figure(d: Diagnosis) -> Figure:
    """The pictures that say most in one figure: what training buys, the spectrum, similarities, the checkpoints."""
    with style(PRINT_INK, salt="diagnosis"):
        return plate_figure(Plate("diagnosis", "", "", tuple(_chosen(d))))


def _chosen(d: Diagnosis) -> list[Picture]:
    """At most six pictures of the page."""
    every = {it.name: it for section in sections_of(d) for plate in section.plates for it in plate.pictures}
    layers = [name for name in every if name.startswith("spectrum-")]
    wanted = ["lazy-errors", *layers[-1:], "pays-gains"]
    wanted += ["checkpoints-ranks" if "checkpoints-ranks" in every else "lazy-layers", "similarities-end", "loss-marks"]
    shown = [every[name] for name in wanted if name in every]
    return shown or list(every.values())[:1] or [Picture("nothing", "no number was measured", _nothing)]


def _nothing(figure: FigureBase) -> None:
    say(new_axes(figure, "", ""), "no number was measured")


def _svg(picture: Picture, d: Diagnosis) -> str:
    with style(INK, salt=picture.name):
        label = f"{picture.description}. Model: {d.result.attrs.get('name', '')}."
        return to_svg(picture_figure(picture), name=picture.name, label=label)


def badges(d: Diagnosis) -> list[tuple[str, str]]:
    """Regime, collapse, whether training pays, and what is to blame: the class of each badge and its words."""
    made = []
    if not (is_monitor(d) and d.regime == "unknown"):
        made.append((d.regime, d.regime + ("" if d.decided.sure else " (not sure)")))
    made.append((f"collapse-{d.collapse}", COLLAPSES[d.collapse]))
    if d.hardest is not None:
        made.append((f"pays-{d.pays}", PAYS[d.pays]))
    return [*made, *(("blamed", f"to blame: {what}") for what in d.blamed)]


def _about(d: Diagnosis) -> str:
    """What was diagnosed, in one line."""
    attributes, seen = d.result.attrs, checkpoints_of(d)
    parts = [f"{int(attributes['n_parameters']):,} parameters"] if "n_parameters" in attributes else []
    parts.append(f"{int(attributes['n_samples']):,} samples")
    if views := str(attributes.get("views", "")):
        parts.append(f"views: {views}")
    if loss := str(attributes.get("loss", "")):
        parts.append(f"loss: {loss}" + ("" if attributes.get("loss_given", 0) else " (stands in)"))
    what = "records" if is_monitor(d) else "checkpoints"
    parts.append(f"{len(seen)} {what}: {seen[0]} to {seen[-1]}" if len(seen) > 2 else f"{what}: {', '.join(seen)}")
    return "; ".join(part for part in parts if part)


def _settings(d: Diagnosis) -> list[tuple[str, str, str]]:
    """Everything that decided the numbers: field, value, option."""
    attributes = d.result.attrs
    names = {option.argument: option.name for option in SETTINGS}
    rows = [
        (name, _plain(attributes[name]), option)
        for name, option in (
            ("name", ""),
            ("views", "--views"),
            ("loss", "--loss"),
            ("features", "--features"),
            ("n_parameters", ""),
            ("n_samples", ""),
        )
        if name in attributes
    ]
    stored = json.loads(str(attributes.get("settings", "{}")) or "{}")
    known = [field.name for field in dataclasses.fields(Settings)]
    given: Mapping[str, Any] = {
        name: stored[name] for name in (*known, *stored) if name in stored and name not in ELSEWHERE
    }
    return rows + [(name, _plain(value), names.get(name, "")) for name, value in given.items()]


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None or value == "" else str(value)
