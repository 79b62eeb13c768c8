"""A study in one call: a network, data and a loss in, findings out."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from kontrast.data import Dataset, keep_in_memory
from kontrast.nets import Build, named_builder
from kontrast.study.prepare import prepare
from kontrast.study.running import run_study
from kontrast.study.spec import StudySpec
from kontrast.study.summary import Findings, find
from kontrast.study.thresholds import Thresholds


def run(
    build: Build | None = None,
    data: str | os.PathLike[str] | Dataset = "mnist5k",
    *,
    loss: str | tuple[str, ...] = "nt_xent",
    folder: Path | str | None = None,
    budget: str | float | None = None,
    thresholds: Thresholds | None = None,
    **fields: Any,
) -> Findings:
    """The map of a network of your own: `run(build, data, loss="vicreg", widths=(16, 64)).verdict`.

    Everything runs in this process, because a function cannot be sent to others unless it lies in a file; the command
    line, `kontrast study --model my_net.py:build`, uses all cores.

    Args:
        build: `build(width, generator)` returns an `nn.Module` whose outputs are (n, d); without a width,
            `build(generator)`, the map has steps in place of widths. None is the built-in network.
        data: a name, a path, or a `Dataset`.
        loss: one of `losses.VIEW_LOSSES`, or several.
        folder: where results are kept, to resume and to report; None keeps none.
        budget: the time that the run may take, as in "2m".
        thresholds: as in `find`.
        **fields: other fields of `StudySpec`.
    """
    source = keep_in_memory(data) if isinstance(data, Dataset) else os.fspath(data)
    model = None if build is None else named_builder(build)
    losses = (loss,) if isinstance(loss, str) else loss
    spec = prepare(StudySpec(data=source, model=model, losses=losses, **fields))
    if folder is not None:
        return find(run_study(spec, folder, budget=budget), thresholds)
    with tempfile.TemporaryDirectory() as temporary:
        return find(run_study(spec, Path(temporary) / "study", budget=budget), thresholds)
