"""The page of a study: one HTML file with everything inside it, for a phone, a desk, the dark and a printer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import xarray as xr
from markupsafe import Markup

from kontrast.report.axes import INK, PRINT_INK, style
from kontrast.report.command import OPTIONS, THRESHOLD_OPTIONS, command
from kontrast.report.plates import Plate, picture_figure, plate_figure
from kontrast.report.study.cells import Card, cards
from kontrast.report.study.plates import plates
from kontrast.report.study.regimes import cell_id
from kontrast.report.svg import to_png, to_svg
from kontrast.report.template import PAGE, template
from kontrast.study import (
    EMBEDDINGS,
    REPRESENTATIONS,
    Findings,
    MapFindings,
    Rule,
    Table,
    Thresholds,
    kernel,
    pca,
    tables,
)
from kontrast.study import map as regime_map

MAP_PLATES = ("map", "pays")


def study_files(result: xr.Dataset, findings: Findings) -> dict[str, bytes]:
    """Every file of the report by its path in the folder, the page last."""
    made = plates(result, findings)
    svgs: dict[str, str] = {}
    for picture in (picture for plate in made for picture in plate.pictures):
        with style(INK, salt=picture.name):
            label = f"{picture.description}. Data: {findings.spec.data}."
            svgs[picture.name] = to_svg(picture_figure(picture), name=picture.name, label=label, links=picture.links)
    files = {f"figures/{name}.svg": svg.encode() + b"\n" for name, svg in svgs.items()}
    first = made[0]
    with style(PRINT_INK, salt=first.name):
        files[f"figures/{first.name}.png"] = to_png(plate_figure(first))
    files[PAGE] = render(result, findings, made, svgs).encode()
    return files


def render(result: xr.Dataset, findings: Findings, plates: tuple[Plate, ...], svgs: Mapping[str, str]) -> str:
    """The page; `svgs` maps a picture's name to its `<svg>`."""
    spec, thresholds, orthonormal, labels = findings.spec, findings.thresholds, findings.pca, findings.labels
    return template("kontrast.report.study").render(
        spec=spec,
        findings=findings,
        n_seeds=result.sizes["seed"],
        similarity_tables=[tables.similarity_table(found) for found in findings.similarities],
        pca_table=None if orthonormal is None else tables.pca_table(orthonormal),
        probe_table=None if findings.probes is None else tables.probe_table(findings.probes),
        embeddings=EMBEDDINGS,
        label_tables=[] if labels is None else tables.label_tables(labels),
        representations=REPRESENTATIONS,
        plates={plate.name: plate for plate in plates if plate.name in MAP_PLATES},
        section_plates=[plate for plate in plates if plate.name not in MAP_PLATES],
        mapped=None if findings.map is None else _Mapped.of(result, findings, findings.map),
        svgs={name: Markup(svg) for name, svg in svgs.items()},  # made by `to_svg` alone
        rules=_ruled(kernel.RULES, thresholds, {it.similarity: it.verdict for it in findings.similarities}),
        pca_rules=_ruled(pca.RULES, thresholds, {"orthonormal": orthonormal.verdict}) if orthonormal else [],
        thresholds=[(name, getattr(thresholds, name), option) for name, option in THRESHOLD_OPTIONS.items()],
        settings=[
            (field.name, _plain(getattr(spec, field.name)), OPTIONS.get(field.name, ""))
            for field in dataclasses.fields(spec)
        ],
        command=command(findings),
        variables=[
            (str(name), ", ".join(str(dim) for dim in array.dims), str(array.attrs.get("long_name", "")))
            for name, array in result.data_vars.items()
        ],
        defined_variables=set(result.data_vars),
        sizes=[(str(name), size) for name, size in result.sizes.items()],
    )


@dataclasses.dataclass(frozen=True)
class _Mapped:
    """What the page says of a map besides its plates."""

    cards: list[Card]
    tables: list[tuple[Table, list[list[str]]]]  # per loss, with the ids of the cells, row by row
    borders: Table | None
    baselines: list[Table]
    rules: list[tuple[str, str, int, bool]]  # what it says, its condition, how many cells, whether the setting's

    @classmethod
    def of(cls, result: xr.Dataset, findings: Findings, found: MapFindings) -> _Mapped:
        ids = [
            [[cell_id(cell) for cell in row.values()] for row in reversed(found.grid(loss))] for loss in found.losses
        ]
        reasons = [rule.reason(findings.thresholds) for rule in regime_map.RULES]
        return cls(
            cards(result, findings),
            list(zip([tables.map_table(found, loss) for loss in found.losses], ids, strict=True)),
            tables.border_table(found),
            tables.baseline_tables(found) if found.baselines else [],
            [
                (
                    rule.regime.word,
                    reason,
                    sum(cell.reason == reason for cell in found.cells),
                    found.setting.reason == reason,
                )
                for rule, reason in zip(regime_map.RULES, reasons, strict=True)
            ],
        )


def _ruled(
    rules: Sequence[Rule], thresholds: Thresholds, verdicts: Mapping[str, Enum]
) -> list[tuple[Rule, str, list[str]]]:
    """Every rule, with its condition and the names of the runs that it decided."""
    return [
        (rule, rule.reason(thresholds), [name for name, verdict in verdicts.items() if verdict is rule.verdict])
        for rule in rules
    ]


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(str(part) for part in value)
    return "–" if value is None or value == "" else str(value)
