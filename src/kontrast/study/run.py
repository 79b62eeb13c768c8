"""A study from its spec to its result: every cell measured by every section, stored, and joined into one dataset."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import xarray as xr

from kontrast.runs import Store, run_cells
from kontrast.study import kernel, labels, map, pca, probes
from kontrast.study.cell import draw_cell
from kontrast.study.spec import StudySpec, cell_name, parse_cell, require_current

SECTIONS = (kernel, pca, probes, labels)  # later ones judge the embeddings that earlier ones trained


def run_study(
    spec: StudySpec,
    folder: Path | str,
    *,
    workers: int = 0,
    on_start: Callable[[list[str]], None] = lambda missing: None,
    on_cell: Callable[[str], None] = lambda cell: None,
) -> xr.Dataset:
    """Measure the cells of a prepared spec that `folder` does not hold yet, and return the consolidated result.

    With `workers=0` the cells run here, one after the other; a script that asks for processes needs the usual
    `if __name__ == "__main__":` guard. The numbers are the same, bit for bit.
    """
    require_current(spec)
    store = Store(folder)
    store.claim(spec.as_dict())
    with store.lock():
        store.clear_temporary()
        missing = [cell for cell in spec.cells if not store.has(cell)]
        on_start(missing)
        work = functools.partial(_measure_and_store, spec, Path(folder))
        try:
            run_cells(work, _together(spec, missing), workers=workers, on_done=_each(on_cell))
        finally:
            store.clear_temporary()  # a worker that was stopped may have been writing
        result = consolidate(spec, store)
        store.write_result(result)
    return result


def _each(on_cell: Callable[[str], None]) -> Callable[[str], None]:
    """Report cells one by one that were computed at once."""

    def report(cells: str) -> None:
        for cell in cells.split("+"):
            on_cell(cell)

    return report


def consolidate(spec: StudySpec, store: Store) -> xr.Dataset:
    """One dataset over (similarity, width, seed, step) from the stored cells alone."""
    rows = [
        xr.concat([store.read(cell_name(width, seed)) for seed in spec.seeds], dim="seed")
        for width in sorted(spec.widths)
    ]
    result = xr.concat(rows, dim="width")
    result.attrs["spec"] = json.dumps(spec.as_dict(), sort_keys=True)
    return result


def measure_cell(spec: StudySpec, width: int, seed: int) -> xr.Dataset:
    """The numbers of one width and seed: the map, then section by section; what the spec leaves out adds none."""
    return measure_cells(spec, width, [seed])[0]


def measure_cells(spec: StudySpec, width: int, seeds: Sequence[int]) -> list[xr.Dataset]:
    """The numbers of one width and some seeds, whose maps are trained together."""
    return [
        _joined([part, *_sections(spec, width, seed)]).assign_coords(width=width, seed=seed)
        for seed, part in zip(seeds, map.measure(spec, width, seeds), strict=True)
    ]


def _sections(spec: StudySpec, width: int, seed: int) -> list[xr.Dataset]:
    """The full-batch sections, which know the built-in network alone."""
    if spec.model is not None:
        return []
    cell = draw_cell(spec, width, seed)
    return [section.measure(cell) for section in SECTIONS]


def _joined(parts: Sequence[xr.Dataset]) -> xr.Dataset:
    measured = xr.Dataset()
    for part in parts:
        measured = measured.assign(part).assign_coords(part.coords)
    return measured


def _measure_and_store(spec: StudySpec, folder: Path, cells: str) -> None:
    """Measure and store cells of one width, whose names are joined by "+"."""
    names = cells.split("+")
    places = [parse_cell(name) for name in names]
    store, measured = Store(folder), measure_cells(spec, places[0][0], [seed for _, seed in places])
    for name, dataset in zip(names, measured, strict=True):
        store.write(name, dataset)


def _together(spec: StudySpec, missing: Sequence[str]) -> list[str]:
    """The cells that are computed at once: one on a CPU, the seeds of a width on a GPU, which has room for them."""
    if spec.device.startswith("cpu") or not spec.losses:
        return list(missing)
    groups: dict[int, list[str]] = {}
    for cell in missing:
        groups.setdefault(parse_cell(cell)[0], []).append(cell)
    return ["+".join(group) for group in groups.values()]
