"""The main job: kernel, PCA or learning? Every width and seed trained beside its closed-form twins, and measured."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from kontrast.checks import resolve_device, resolve_dtype
from kontrast.data import Pairs, load_data, make_pairs, parse_view
from kontrast.dynamics import (
    Problem,
    Recorder,
    Snapshot,
    Status,
    Trajectory,
    contrastive_problem,
    distance_from,
    fixed_kernel_descent,
    gradient_descent,
)
from kontrast.kernels import empirical_ntk
from kontrast.linalg import effective_rank, relative_spread
from kontrast.losses import ContrastiveLoss, link_from, similarity_from
from kontrast.nets import MLP, Linearized, Parameters, parameters_of, pure_function
from kontrast.runs import Store, generator_for, padded, run_cells
from kontrast.study.labels import label_curves, no_curves
from kontrast.study.pca_view import pca_view
from kontrast.study.probes import EMBEDDINGS, Embedding, input_embeddings, probe_accuracies
from kontrast.study.spec import StudySpec, cell_name, parse_cell

MAX_DENSE = 6000  # outputs (points × dimensions) up to which the fixed kernel is held as a matrix

MEASURES = {
    "ntk_drift_max": "max |K(t) − K(0)| over the probe points",
    "ntk_drift_fro": "‖K(t) − K(0)‖_F / ‖K(0)‖_F over the probe points",
    "kernel_gap": "‖f − f_K‖_F / ‖f‖_F, f_K the fixed-kernel prediction",
    "output_move": "‖f(t) − f(0)‖_F / ‖f(0)‖_F",
    "parameter_move": "‖θ(t) − θ(0)‖",
    "loss": "the training loss",
    "kernel_loss": "the loss of the fixed-kernel prediction",
    "effective_rank": "effective rank of the anchors' centred embedding",
    "spread": "share of the embedding's squared norm that is not its mean",
}


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
        xr.concat([store.read(cell_name(width, seed)) for seed in range(spec.n_seeds)], dim="seed")
        for width in sorted(spec.widths)
    ]
    result = xr.concat(rows, dim="width")
    result.attrs["spec"] = json.dumps(spec.as_dict(), sort_keys=True)
    return result


def measure(spec: StudySpec, width: int, seed: int) -> xr.Dataset:
    """One cell: train a net of `width` under every similarity, beside its fixed-kernel twin, and the PCA view.

    Where the data has labels, a linear probe then judges every embedding; with `labels`, curves over their number too.
    The samples and pairs depend on the seed alone, so that widths differ by the network only.
    """
    device, dtype = resolve_device(spec.device), resolve_dtype(spec.dtype)
    dataset = load_data(spec.data, spec.split, spec.image_shape)
    sampler = generator_for(seed, 0)
    contrasted = dataset.draw(spec.n_samples, generator=sampler)
    pairs = make_pairs(
        dataset.x[contrasted],
        views=parse_view(str(spec.views)),
        n_positives=spec.n_positives,
        negatives=spec.negatives,
        generator=sampler,
    ).to(device=device, dtype=dtype)
    net = MLP(
        dataset.rows.shape[1],
        width,
        spec.d_out,
        depth=spec.depth,
        activation=spec.activation,
        parametrization=spec.parametrization,
        generator=generator_for(seed, width),
        dtype=dtype,
        device=device,
    )
    assert spec.learning_rates is not None
    runs = {
        similarity: _one_similarity(spec, net, pairs, similarity, rate)
        for similarity, rate in zip(spec.similarities, spec.learning_rates, strict=True)
    }
    cell = xr.concat([run.measures for run in runs.values()], dim="similarity").assign_coords(width=width, seed=seed)
    embeddings: dict[str, Embedding | None] = {"random": net}
    if not spec.without_pca:
        view = pca_view(spec, net, pairs)
        cell = cell.assign(view.measures)
        embeddings |= view.embeddings
    embeddings |= {similarity: run.embedding for similarity, run in runs.items()}
    embeddings |= input_embeddings(pairs.rows[pairs.anchor], spec.d_out)
    n_classes = 0 if dataset.y is None else len(torch.unique(dataset.y))
    cell["n_classes"] = ((), np.int32(n_classes), {"long_name": "classes of the data's labels; 0 without labels"})
    if spec.n_probe_samples:
        probes = probe_accuracies(
            {name: embeddings[name] for name in EMBEDDINGS if name in embeddings},
            dataset,
            spec.n_probe_samples,
            contrasted=contrasted,
            generator=generator_for(seed, 0, 1),
            device=device,
            dtype=dtype,
        )
        cell = cell.assign(probes).assign_coords(embedding=probes.embedding)
    if spec.label_curves:
        judged = {name: embeddings[name] for name in EMBEDDINGS if name in embeddings}
        curves = no_curves(list(judged), len(dataset))
        if width == max(spec.widths):
            curves = label_curves(
                judged,
                dataset,
                contrasted=contrasted,
                generator=generator_for(seed, 0, 2),
                seed=seed,
                device=device,
                dtype=dtype,
            )
        cell = cell.assign(curves)
    return cell


@dataclass(frozen=True, eq=False)
class _Run:
    measures: xr.Dataset
    embedding: Embedding | None  # None where the run diverged


def _one_similarity(spec: StudySpec, net: MLP, pairs: Pairs, similarity: str, rate: float) -> _Run:
    loss = ContrastiveLoss(
        similarity_from(similarity, delta=spec.delta), link_from(spec.link, temperature=spec.temperature)
    )
    problem = contrastive_problem(pairs, loss)
    steps = spec.record_steps
    twin = _kernel_twin(net, problem, learning_rate=rate, n_steps=spec.n_steps, record_at=steps)
    probes = problem.inputs[pairs.anchor[: spec.n_ntk_points]]
    K0 = empirical_ntk(net, probes)
    function = pure_function(net)
    trained = gradient_descent(
        function,
        parameters_of(net),
        problem,
        learning_rate=rate,
        n_steps=spec.n_steps,
        record_at=steps,
        recorders={
            "drifts": _drift_recorder(net, probes, K0),
            "kernel_gap": _gap_recorder(twin),
            **_movement_recorders(parameters_of(net), net(problem.inputs).detach(), pairs.anchor),
        },
    )
    measures = _as_dataset(spec, similarity, rate, trained, twin, float(K0.abs().max()))
    diverged = trained.status is Status.DIVERGED
    return _Run(measures, None if diverged else functools.partial(function, trained.final_parameters))


def _kernel_twin(net: MLP, problem: Problem, *, learning_rate: float, n_steps: int, record_at: list[int]) -> Trajectory:
    """The same descent with the NTK held at its start: dense where it fits, by products where it does not."""
    outputs = net(problem.inputs).detach()
    kernel: Tensor | Callable[[Tensor], Tensor]
    if outputs.numel() <= MAX_DENSE:
        kernel = empirical_ntk(net, problem.inputs)
    else:
        kernel = functools.partial(Linearized.of(net).kernel_product, problem.inputs)
    return fixed_kernel_descent(
        kernel,
        outputs,
        problem.objective,
        learning_rate=learning_rate,
        n_steps=n_steps,
        record_at=record_at,
        keep_outputs=True,
    )


def _drift_recorder(net: MLP, probes: Tensor, K0: Tensor) -> Recorder:
    def drifts(now: Snapshot) -> Tensor:
        change = empirical_ntk(net, probes, parameters=now.parameters) - K0
        return torch.stack([change.abs().max(), change.norm() / K0.norm()])

    return drifts


def _gap_recorder(twin: Trajectory) -> Recorder:
    predicted = dict(zip(twin.steps, twin.outputs if twin.outputs is not None else (), strict=True))

    def gap(now: Snapshot) -> float:
        if now.step not in predicted:  # the twin overflowed first
            return math.nan
        return float((now.outputs - predicted[now.step]).norm() / now.outputs.norm())

    return gap


def _movement_recorders(start: Parameters, outputs: Tensor, anchor: Tensor) -> dict[str, Recorder]:
    return {
        "output_move": lambda now: float((now.outputs - outputs).norm() / outputs.norm()),
        "parameter_move": distance_from(start),
        "effective_rank": lambda now: effective_rank(now.outputs[anchor]),
        "spread": lambda now: relative_spread(now.outputs[anchor]),
    }


def _as_dataset(
    spec: StudySpec, similarity: str, rate: float, trained: Trajectory, twin: Trajectory, scale: float
) -> xr.Dataset:
    """The run on the common step axis; steps that a diverged run never reached are NaN, and its status says so."""
    steps = spec.record_steps
    records = dict(trained.records)
    drifts = records.pop("drifts", None)
    if drifts is not None:
        records["ntk_drift_max"], records["ntk_drift_fro"] = drifts.unbind(1)
    for name, run in (("loss", trained), ("kernel_loss", twin)):
        records[name] = run.losses[[step for step in steps if step < len(run.losses)]]
    return xr.Dataset(
        {name: ("step", padded(records.get(name), len(steps)), {"long_name": text}) for name, text in MEASURES.items()}
        | {
            "diverged": ((), np.int32(trained.status is Status.DIVERGED)),
            "stopped_at": ((), np.int32(trained.stopped_at)),
            "kernel_diverged": ((), np.int32(twin.status is Status.DIVERGED)),
            "learning_rate": ((), rate),
            "ntk_scale": ((), scale, {"long_name": "max |K(0)| over the probe points"}),
        },
        coords={"step": np.asarray(steps, dtype=np.int32), "similarity": similarity},
    )


def _measure_and_store(spec: StudySpec, folder: Path, cell: str) -> None:
    Store(folder).write(cell, measure(spec, *parse_cell(cell)))
