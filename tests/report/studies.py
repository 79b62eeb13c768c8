"""Small made-up studies in the shape of `run_study`: every number a formula, every odd case one argument."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from kontrast.study import EMBEDDINGS, OF_THE_INPUT, Quantity, StudySpec, kernel, labels, pca

Divergence = Callable[[int, int], int | None]  # (width, seed) → the step of divergence, None where there is none


def still_falling(result: xr.Dataset) -> xr.Dataset:
    """The same study with a loss that falls in a straight line to the last step."""
    return result.assign(loss=result.loss * 0 - result.step)


def later_when_wider(width: int, seed: int) -> int:
    return round(4 * np.log(width)) + 2 * seed


def study(
    *,
    diverging: Mapping[str, Divergence] | None = None,
    scale: Mapping[str, float] | None = None,
    kernel_until: int | None = None,
    flat_gap: bool = False,
    pca_diverging: Divergence = lambda width, seed: None,
    n_classes: int = 10,
    **fields: Any,
) -> xr.Dataset:
    """A result whose measures are multiplied by `scale` and whose runs stop where `diverging` says (dot by default).

    From the step `kernel_until` on the fixed kernel's own prediction is overflown. `flat_gap`: no fall with width.
    The PCA view, the probes and the label curves are there where the spec has them.
    """
    similarities = tuple(fields.pop("similarities", ("cosine", "dot")))
    rates = tuple(0.1 if name == "cosine" else 0.00284 for name in similarities)
    small = StudySpec(
        losses=(),
        widths=(16, 64, 256),
        n_seeds=3,
        n_steps=60,
        pca_learning_rate=1.0,
        pca_d_out=10,
        pca_steps=40,
        views="crop:0.5,1.0",
        data_digest="61cc0492",
        n_probe_samples=500,
    )
    spec = dataclasses.replace(small, similarities=similarities, **{"learning_rates": rates, **fields})
    runs = {"dot": later_when_wider} if diverging is None else diverging
    parts = [_runs(spec, name, runs.get(name, lambda width, seed: None), scale or {}) for name in similarities]
    result = xr.concat(parts, dim="similarity")
    result["kernel_diverged"] = xr.full_like(result.diverged, kernel_until is not None)
    if kernel_until is not None:
        for name in ("kernel_gap", "kernel_loss"):
            result[name] = result[name].where(result.step < kernel_until)
    if flat_gap:
        result["kernel_gap"] = result.kernel_gap * (result.width / 16.0) ** 0.75
    if not spec.without_pca:
        orthonormal = _orthonormal(spec, pca_diverging, scale or {})
        result = result.assign(orthonormal).assign_coords(orthonormal.coords)
    result["n_classes"] = xr.full_like(result.diverged.isel(similarity=0, drop=True), n_classes)
    if spec.n_probe_samples:
        probes = _probes(spec, result)
        result = result.assign(probes).assign_coords(embedding=probes.embedding)
    if spec.label_curves:
        result = result.assign(_labels(spec, result))
    result.attrs["spec"] = json.dumps(spec.as_dict(), sort_keys=True)
    return result


def _all_of(
    quantities: Sequence[Quantity], formulas: dict[str, np.ndarray], otherwise: np.ndarray
) -> dict[str, np.ndarray]:
    """Every quantity in its order, by its formula or, where it has none here, by `otherwise`."""
    names = [quantity.name for quantity in quantities]
    assert formulas.keys() <= set(names)
    return {name: np.array(formulas.get(name, otherwise)) for name in names}


def _described(
    quantities: Sequence[Quantity], dims: tuple[str, ...], values: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    return {it.name: (dims, values[it.name], {"long_name": it.long_name}) for it in quantities}


def _orthonormal(spec: StudySpec, diverges: Divergence, scale: Mapping[str, float]) -> xr.Dataset:
    widths, steps = np.array(sorted(spec.widths), dtype=float), np.array(spec.pca_record_steps, dtype=float)
    w, s, t = np.meshgrid(widths, np.arange(spec.n_seeds, dtype=float), steps, indexing="ij")
    noise, grown = 1 + 0.1 * np.sin(3 * s + np.log2(w)), np.log1p(t) / np.log1p(steps[-1])
    formulas = {
        "pca_angle_start": np.minimum(1, 0.001 + 1.5 / w * noise + (1 - grown)),
        "pca_angle_now": np.minimum(1, 0.001 + 0.5 / w * noise + (1 - grown)),
        "pca_angle_frozen": np.minimum(1, 0.0005 * noise + (1 - grown)),
        "matrix_drift": 6 / w * grown * noise,
        "frozen_gap": 3 / w * grown * noise,
        "eigengap": 0.02 * noise,
        "pca_loss": -0.3 * grown * noise,
    }
    values = _all_of(pca.QUANTITIES, formulas, 0.5 * grown * noise)
    stopped = np.array([[diverges(int(width), seed) or np.nan for seed in range(spec.n_seeds)] for width in widths])
    for name, value in values.items():
        value[t >= stopped[..., None]] = np.nan
        values[name] = value * scale.get(name, 1.0)
    dims = ("width", "seed")
    return xr.Dataset(
        _described(pca.QUANTITIES, (*dims, "pca_step"), values)
        | {
            "pca_diverged": (dims, np.isfinite(stopped).astype(np.int32)),
            "pca_stopped_at": (dims, np.where(np.isfinite(stopped), stopped, steps[-1]).astype(np.int32)),
            "pca_not_unique": (dims, np.zeros(stopped.shape, dtype=np.int32)),
            "eigengap_start": (dims, np.full(stopped.shape, 0.02)),
        },
        coords={"pca_step": steps.astype(np.int32)},
    )


def _embeddings(spec: StudySpec) -> list[str]:
    there = {
        "random",
        *spec.similarities,
        *OF_THE_INPUT,
        *(() if spec.without_pca else ("pca", "trained", "iterative")),
    }
    return [name for name in EMBEDDINGS if name in there]


def _dimensions(spec: StudySpec, names: list[str], shape: tuple[int, ...]) -> np.ndarray:
    sizes = {"pixels": 784, "pixel-pca": spec.d_out, "chance": 0, **dict.fromkeys(spec.similarities, spec.d_out)}
    return np.stack([np.full(shape, sizes.get(name, spec.pca_d_out), dtype=np.int32) for name in names])


def _labels(spec: StudySpec, result: xr.Dataset) -> xr.Dataset:
    """Curves by formula at the widest network, predictions a little off; NaN for a similarity that diverged."""
    names, counts = [name for name in _embeddings(spec) if name != "chance"] + ["ntk"], [10, 20, 50, 100, 200, 400]
    k, n, s = np.meshgrid(np.arange(len(names)), counts, np.arange(spec.n_seeds), indexing="ij")
    error = (1.6 - 0.1 * k) * n**-0.2 * (1 + 0.01 * s)
    for i, name in enumerate(names):
        if name in spec.similarities and bool(result.diverged.sel(similarity=name).isel(width=-1).any()):
            error[i] = np.nan
    formulas = {
        "label_error": error,
        "label_error_predicted": 1.02 * error,
        "label_error_spectrum": 0.9 * error,
        "label_accuracy": 1 - error / 1.7,
        "label_accuracy_predicted": 1.01 - error / 1.7,
    }
    values = _all_of(labels.QUANTITIES, formulas, error)
    narrow = np.full((len(spec.widths) - 1, *error.shape), np.nan)
    dims = ("width", "representation", "n_labels", "seed")
    return xr.Dataset(
        {name: (dims, np.concatenate([narrow, value[None]])) for name, value in values.items()}
        | {"label_samples": (("width", "seed"), np.full((len(spec.widths), spec.n_seeds), 600, dtype=np.int32))},
        coords={"representation": names, "n_labels": counts},
    )


def _probes(spec: StudySpec, result: xr.Dataset) -> xr.Dataset:
    """Accuracies by formula: those of the input the same at every width, NaN for a run that diverged."""
    names = _embeddings(spec)
    widths, seeds = np.meshgrid(sorted(spec.widths), np.arange(spec.n_seeds), indexing="ij")
    scores = []
    for k, name in enumerate(names):
        score = 0.4 + 0.02 * k + 0.01 * seeds + 0.02 * (0 if name in OF_THE_INPUT else np.log10(widths))
        if name in spec.similarities:
            score = np.where(result.diverged.sel(similarity=name).transpose("width", "seed") == 1, np.nan, score)
        if name == "trained":
            score = np.where(result.pca_diverged.transpose("width", "seed") == 1, np.nan, score)
        scores.append(score)
    return xr.Dataset(
        {
            "probe_accuracy": (("embedding", "width", "seed"), scores),
            "probe_dimension": (("embedding", "width", "seed"), _dimensions(spec, names, widths.shape)),
            "probe_overlap": (("width", "seed"), np.zeros(widths.shape, dtype=np.int32)),
        },
        coords={"embedding": names},
    )


def _runs(spec: StudySpec, similarity: str, diverges: Divergence, scale: Mapping[str, float]) -> xr.Dataset:
    widths, steps = np.array(sorted(spec.widths), dtype=float), np.array(spec.record_steps, dtype=float)
    w, s, t = np.meshgrid(widths, np.arange(spec.n_seeds, dtype=float), steps, indexing="ij")
    noise, grown = 1 + 0.1 * np.sin(3 * s + np.log2(w)), np.log1p(t) / np.log1p(steps[-1])
    formulas = {
        "ntk_drift_max": 300 * w**-0.8 * grown * noise,
        "ntk_drift_fro": 4 * w**-0.8 * grown * noise,
        "kernel_gap": 1.2 * w**-0.75 * grown**2 * noise,
        "output_move": 0.6 * grown * noise,
        "parameter_move": 3 * grown * noise,
        "loss": -0.6 * (1 - np.exp(-8 * t / steps[-1])) * noise,  # it settles
        "kernel_loss": -0.61 * grown * noise,
        "effective_rank": 9 - 2 * grown * noise,
        "spread": 0.4 + 0.4 * grown / noise,
    }
    values = _all_of(kernel.QUANTITIES, formulas, 0.5 * grown * noise)
    stopped = np.array([[diverges(int(width), seed) or np.nan for seed in range(spec.n_seeds)] for width in widths])
    over = np.nan_to_num(t / stopped[..., None])  # 0 … 1 on the way to a divergence, 0 for a run that has none
    for name in ("ntk_drift_max", "output_move", "loss"):
        values[name] = values[name] * np.exp(np.minimum(200, (3 * np.minimum(over, 1)) ** 5))
    for name, value in values.items():
        value[over >= 1] = np.nan if name != "kernel_loss" else value[over >= 1]
        values[name] = value * scale.get(name, 1.0)
    dims = ("width", "seed")
    return xr.Dataset(
        _described(kernel.QUANTITIES, (*dims, "step"), values)
        | {
            "diverged": (dims, np.isfinite(stopped).astype(np.int32)),
            "stopped_at": (dims, np.where(np.isfinite(stopped), stopped, spec.n_steps).astype(np.int32)),
            "learning_rate": (
                dims,
                np.full(
                    stopped.shape, dict(zip(spec.similarities, spec.learning_rates or (), strict=True))[similarity]
                ),
            ),
            "ntk_scale": (dims, np.full(stopped.shape, 250.0), {"long_name": "max |K(0)| over the NTK points"}),
        },
        coords={
            "width": widths.astype(np.int32),
            "seed": np.arange(spec.n_seeds, dtype=np.int32),
            "step": steps.astype(np.int32),
            "similarity": similarity,
        },
    )
