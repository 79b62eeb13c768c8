"""A study from its spec to its result: every cell measured by every section, stored, and joined into one dataset."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import xarray as xr

from kontrast.runs import Store, run_cells
from kontrast.study import kernel, labels, pca, probes
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
            run_cells(work, missing, workers=workers, on_done=on_cell)
        finally:
            store.clear_temporary()  # a worker that was stopped may have been writing
        result = consolidate(spec, store)
        store.write_result(result)
    return result


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
    """The numbers of one width and seed, section by section; a section that the spec leaves out adds none."""
    cell = draw_cell(spec, width, seed)
    measured = xr.Dataset()
    for section in SECTIONS:
        part = section.measure(cell)
        measured = measured.assign(part).assign_coords(part.coords)
    return measured.assign_coords(width=width, seed=seed)


def _measure_and_store(spec: StudySpec, folder: Path, cell: str) -> None:
    Store(folder).write(cell, measure_cell(spec, *parse_cell(cell)))
