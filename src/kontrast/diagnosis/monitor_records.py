"""Records of a monitor as lines of JSON, and as the labelled arrays that a diagnosis stores."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from kontrast.diagnosis.metrics import LIDAR_DEFINITION, LIDAR_WORDS, SPECTRAL_METRICS
from kontrast.diagnosis.monitor_folder import MonitorFolder, Record
from kontrast.diagnosis.quantities import BOUNDS, Quantity, described
from kontrast.diagnosis.snapshots import Snapshot
from kontrast.errors import StoreError

DIGITS = 6  # of singular values: a line of all digits would be three times as long
KINDS = ("positives", "negatives")
QUANTITIES = (
    *(Quantity(it.name, it.words, it.definition) for it in SPECTRAL_METRICS.values()),
    Quantity("lidar", LIDAR_WORDS, LIDAR_DEFINITION),
    Quantity("similarity_to_start", "similarity to the start", "Linear CKA of the embedding and the first one."),
    Quantity("alignment", "alignment", "Mean squared distance of the two views of a sample, rows of unit length."),
    Quantity("uniformity", "uniformity", "log mean of exp(−2 · squared distance) of samples, rows of unit length."),
    Quantity("neighbor_agreement", "agreement of neighbors", "How often the nearest other row shows the same sample."),
    Quantity(
        "effective_negatives", "effective negatives", "exp(entropy) of the softmax of NT-Xent's 2n − 2 negatives."
    ),
    Quantity("positive_similarity", "similarity of positives", "Mean cosine of the two views of a sample."),
    Quantity("negative_similarity", "similarity of negatives", "Mean cosine of views of different samples."),
    Quantity("knn_accuracy", "nearest neighbors", "Leave-one-out accuracy of the 20 nearest by cosine.", percent=True),
    Quantity("loss", "loss", "The training loss at this step."),
    Quantity("loss_mean", "mean loss", "Mean training loss since the record before; what is not finite is left out."),
    Quantity("n_losses", "losses", "How many losses there were since the record before."),
    Quantity("n_losses_not_finite", "losses that are not finite", "How many of them were NaN or infinite."),
)
_BY_NAME = {it.name: it for it in QUANTITIES}


def as_record(
    step: int, status: str, losses: Mapping[str, float], snapshot: Snapshot, told: Mapping[str, str]
) -> Record:
    """One line of the folder; a number that is missing is null."""
    return {
        "step": step,
        "status": status,
        "losses": _written(losses),
        "layers": {name: _written(numbers) for name, numbers in snapshot.layers.items()},
        "pairs": _written(snapshot.pairs),
        "collapse": snapshot.collapse,
        "missing": snapshot.missing,
        "warnings": dict(told),
        "dimensions": snapshot.dimensions,
        "singular_values": {n: [_short(v) for v in values] for n, values in snapshot.singular_values.items()},
        "similarities": snapshot.similarities,
    }


def snapshot_in(record: Record) -> Snapshot:
    """The numbers of a record, but for its arrays."""
    return Snapshot(
        layers={name: _read(numbers) for name, numbers in record["layers"].items()},
        dimensions=record["dimensions"],
        pairs=_read(record["pairs"]),
        collapse=record["collapse"],
        missing=record["missing"],
    )


def read_monitor(folder: str | Path) -> xr.Dataset:
    """The records of a monitor's folder as one dataset, in the format that a diagnosis stores.

    Dimensions: `checkpoint` ("step 0", "step 200", …; the coordinate `step` has the numbers), `layer`, `component`,
    `kind`, `bin` and `bound` (value, low, high; a monitor has no intervals, so the last two are NaN). Every spectral
    metric, `lidar` and `similarity_to_start` by checkpoint and layer; the numbers of pairs, `loss`, `loss_mean` and,
    with labels, `knn_accuracy` by checkpoint; `singular_values` (centred, over √n), `similarity_histogram` (counts),
    `status` and `collapse`.
    """
    store = MonitorFolder(folder)
    spec = store.spec()
    records = list(store.records())
    if not records:
        raise StoreError(f"{folder} holds no whole record yet; call monitor.step in the training loop")
    layers = [str(name) for name in spec["layers"]]
    data: dict[str, Any] = _numbers(records, layers) | _arrays(records, layers, spec["n"])
    dimensions = {name: d for record in records for name, d in record["dimensions"].items()}
    data["layer_dimension"] = ("layer", np.array([dimensions.get(layer, 0) for layer in layers], dtype=np.int32))
    data["status"] = ("checkpoint", [record["status"] for record in records])
    data["collapse"] = (
        ("checkpoint", "layer"),
        [[record["collapse"].get(layer, "") for layer in layers] for record in records],
    )
    steps = np.array([record["step"] for record in records])
    whole = np.int32 if steps.max() < 2**31 else np.float64  # netCDF-3 has no longer whole numbers
    missing = {f"{name} at step {record['step']}": why for record in records for name, why in record["missing"].items()}
    notes = [*spec["notes"], *(text for record in records for text in record["warnings"].values())]
    return xr.Dataset(
        data,
        coords={
            "checkpoint": [f"step {step}" for step in steps],
            "step": ("checkpoint", steps.astype(whole)),
            "layer": layers,
            "bound": list(BOUNDS),
        },
        attrs={
            "format": spec["format"],
            "kind": spec["kind"],
            "name": spec["encoder"].split()[0],
            "n_samples": spec["n"],
            "n_points": 0,
            "n_parameters": spec["n_parameters"],
            "features": spec["features"],
            "loss_given": 0,  # of the training's batches, and not of the probe set
            "loss": "",
            "views": spec["views"],
            "settings": json.dumps(spec, ensure_ascii=False),
            "notes": json.dumps(notes, ensure_ascii=False),
            "missing": json.dumps(missing, ensure_ascii=False),
        },
    )


def _numbers(records: list[Record], layers: list[str]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for name in _names(numbers for record in records for numbers in record["layers"].values()):
        values = [[_number(record["layers"].get(layer, {}).get(name)) for layer in layers] for record in records]
        data[name] = (("checkpoint", "layer", "bound"), _bounded(values), described(_BY_NAME[name]))
    for part in ("pairs", "losses"):
        for name in _names(record[part] for record in records):
            values_ = [_number(record[part].get(name)) for record in records]
            data[name] = (("checkpoint", "bound"), _bounded(values_), described(_BY_NAME[name]))
    return data


def _arrays(records: list[Record], layers: list[str], n: int) -> dict[str, Any]:
    longest = max((len(values) for record in records for values in record["singular_values"].values()), default=0)
    spectra = np.full((len(records), len(layers), longest), np.nan)
    n_bins = max((len(counts) for record in records for counts in record["similarities"].values()), default=0)
    histograms = np.full((len(records), len(KINDS), n_bins), np.nan)
    for i, record in enumerate(records):
        for j, layer in enumerate(layers):
            values = record["singular_values"].get(layer, [])
            spectra[i, j, : len(values)] = np.array(values) / math.sqrt(n)
        for j, kind in enumerate(KINDS):
            counts = record["similarities"].get(kind, [])
            histograms[i, j, : len(counts)] = counts
    found: dict[str, Any] = {"singular_values": (("checkpoint", "layer", "component"), spectra)}
    if n_bins:
        found["similarity_histogram"] = (("checkpoint", "kind", "bin"), histograms)
        edges = np.linspace(-1, 1, n_bins + 1)
        found |= {"kind": ("kind", list(KINDS)), "bin": ("bin", (edges[:-1] + edges[1:]) / 2)}
    return found


def _names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names in any row, in the order in which they come."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _bounded(values: Any) -> np.ndarray:
    """Numbers with a last dimension of their bounds, which a monitor has none of."""
    plain = np.asarray(values, dtype=float)
    return np.stack([plain, np.full_like(plain, np.nan), np.full_like(plain, np.nan)], -1)


def _written(numbers: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


def _read(numbers: Mapping[str, float | None]) -> dict[str, float]:
    return {name: _number(value) for name, value in numbers.items()}


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
