"""A made-up map in the shape of `run_study`: every number a formula, every regime somewhere."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import xarray as xr

from kontrast.study import StudySpec
from kontrast.study import map as regime_map
from tests.report.studies import study

SETTLED, STEP_LIMIT, DIVERGED = range(3)  # as the endings are stored
STEPS = np.array([0, 2, 3, 5, 8, 13, 21, 34, 55, 89, 150, 300])


def map_study(*, labels: bool = True, sections: bool = True, **fields: Any) -> xr.Dataset:
    """A map of nt_xent and dot over five widths, above the sections of `study`, or above none with a model of its own.

    From low to high rates a run is undertrained, then a kernel machine where it is wide, then learns, and diverges;
    under the dot product it is PCA where it would be a kernel machine, and collapses before it diverges.
    """
    chosen = {"losses": ("nt_xent", "dot"), "widths": (32, 64, 128, 256, 512), **fields}
    if not labels:
        chosen |= {"n_probe_samples": 0, "n_classes": 0}
    result = study(**chosen)
    spec = StudySpec.from_dict(json.loads(result.attrs["spec"]))
    panels = [_panel(spec, loss, labels=labels) for loss in spec.losses]
    mapped = xr.concat(panels, dim="panel").assign(_baselines(spec) if labels else {})
    if not sections:
        spec = dataclasses.replace(spec, model="my_net.py:build")
        result = xr.Dataset(coords={"width": result.width, "seed": result.seed})
        result.attrs["spec"] = json.dumps(spec.as_dict(), sort_keys=True)
    return result.assign(mapped).assign_coords(mapped.coords)


def _panel(spec: StudySpec, loss: str, *, labels: bool) -> xr.Dataset:
    rates, widths = np.asarray(spec.rates_of(loss)), np.array(sorted(spec.widths), dtype=float)
    w, s, r = np.meshgrid(widths, np.arange(spec.n_seeds), np.arange(len(rates)), indexing="ij")
    noise, dot = 1 + 0.05 * np.sin(3 * s + np.log2(w) + r), loss == "dot"
    ending = np.where(r == 0, STEP_LIMIT, np.where(r >= len(rates) - (1 if not dot else 2), DIVERGED, SETTLED))
    over = ending == DIVERGED
    gap = 0.05 * 1.6**r * (w / 128) ** -0.4 * noise + (0.3 if dot else 0)
    accuracy = 0.6 + 0.05 * np.minimum(r, 5) + 0.01 * np.log2(w) * noise
    numbers = {
        "map_gap": gap,
        "map_pca_first": np.where(dot & (w > 100) & (r < 3), 0.05, 0.5) * noise,
        "map_rank": np.where(dot & (r == 3), 1.1, 6.0) * noise,
        "map_first_rank": 6.0 * noise,
        "map_spread": 0.8 * noise,
        "map_accuracy": accuracy,
        "map_validation": accuracy + 0.01,
        "map_knn": accuracy - 0.02,
        "map_twin_accuracy": accuracy - 0.02 * r * noise,
        "map_twin_knn": accuracy - 0.03 * r,
    }
    dims = ("width", "seed", "rate")
    arrays: dict[str, Any] = {}
    for quantity in regime_map.QUANTITIES:
        values = np.where(over, np.nan, numbers.get(quantity.name, 0.5 * noise))
        blank = (
            not labels
            and quantity.name in numbers
            and quantity.name.split("_")[-1] in ("accuracy", "validation", "knn")
        )
        arrays[quantity.name] = (dims, values * np.nan if blank else values, {"long_name": quantity.long_name})
    fall = np.log1p(STEPS) / np.log1p(STEPS[-1])
    until = np.where(over[..., None], 40 - 4 * r[..., None], STEPS[-1])
    curve = np.where(until >= STEPS, 5 - fall * (1 + 0.1 * r[..., None]) * noise[..., None], np.nan)
    return xr.Dataset(
        arrays
        | {
            "map_rate": (dims, np.broadcast_to(rates, w.shape)),
            "map_learning_rate": (dims, np.broadcast_to(rates * 20, w.shape)),
            "map_unit": (dims[:2], np.full(w.shape[:2], 20.0), {"long_name": "the critical rate"}),
            "map_ending": (dims, ending.astype(np.int32)),
            "map_stopped_at": (dims, until[..., 0].astype(np.int32)),
            "map_still_falling": (dims, np.where(ending == STEP_LIMIT, 0.5, 0.05)),
            "map_loss": ((*dims, "checkpoint"), curve),
            "map_twin_loss": ((*dims, "checkpoint"), curve + 0.1 * fall),
            "map_gap_curve": ((*dims, "checkpoint"), np.where(np.isfinite(curve), gap[..., None] * fall, np.nan)),
            "map_checkpoint": ((*dims[:2], "checkpoint"), np.broadcast_to(STEPS.astype(float), (*w.shape[:2], 12))),
        },
        coords={
            "width": widths.astype(np.int32),
            "seed": np.arange(spec.n_seeds, dtype=np.int32),
            "panel": loss,
        },
    )


def _baselines(spec: StudySpec) -> dict[str, Any]:
    names, probes = list(regime_map.BASELINES), ["linear", "knn"]
    w, s, b = np.meshgrid(sorted(spec.widths), np.arange(spec.n_seeds), np.arange(len(names)), indexing="ij")
    scores = np.array([0.5, 0.8, 0.7, 0.75, 0.88, 0.1])[b] * (1 + 0.01 * np.sin(s + np.log2(w)))
    dims = ("width", "seed", "baseline")
    return {
        "map_baseline": ((*dims, "probe"), np.stack([scores, scores + 0.01], axis=-1), {"long_name": "test accuracy"}),
        "map_baseline_validation": (dims, scores),
        "baseline": ("baseline", names),
        "probe": ("probe", probes),
    }
