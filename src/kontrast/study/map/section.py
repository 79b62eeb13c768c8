"""The map of a study: every width trained at every rate under every loss, measured beside its twins."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from kontrast.data import Dataset, view_batches
from kontrast.dynamics import (
    Ending,
    ManyRuns,
    Optimizer,
    checkpoints_of,
    critical_rate,
    optimizer_from,
    train_many,
)
from kontrast.losses import ViewLoss, view_loss_from
from kontrast.nets import last_features, one_run, parameters_of, pure_function, stack_of
from kontrast.runs import generator_for
from kontrast.study.draws import load_samples
from kontrast.study.map.baselines import BASELINES, scores
from kontrast.study.map.measures import N_PCA_SAMPLES, QUANTITIES, SLICE, STILL_FALLING, Ended, Ground, Probes
from kontrast.study.map.networks import draw_network
from kontrast.study.map.split import Samples, Split, split_for
from kontrast.study.spec import StudySpec

WATCHED = 128  # held-out samples whose loss and gap are watched
ENDINGS = tuple(Ending)
PROBES = ("linear", "knn")
FEW_STEPS = 8  # whose time tells that of one
N_RATE_SAMPLES = 64  # whose two views give the critical rate


def measure(spec: StudySpec, width: int, seeds: Sequence[int]) -> list[xr.Dataset]:
    """The map's numbers at one width, a dataset for each seed; on a GPU all seeds are trained together."""
    if not spec.losses:
        return [xr.Dataset() for _ in seeds]
    dataset = load_samples(spec)
    samples = Samples.of(spec, dataset)
    starts = [_Start.draw(spec, dataset, samples, width, seed) for seed in seeds]
    # A network without a width has steps in its place.
    max_steps = spec.max_steps if spec.has_width else width
    panels = [_panel(spec, samples, starts, name, max_steps) for name in spec.losses]
    return [
        xr.concat([panel[i] for panel in panels], dim="panel").assign(_baselines(spec, samples, start))
        for i, start in enumerate(starts)
    ]


def seconds_per_step(spec: StudySpec) -> float:
    """The time of one step at all rates and losses at the narrowest width, from a few of them."""
    few = dataclasses.replace(spec, n_probe_samples=0, max_steps=FEW_STEPS)
    dataset = load_samples(spec)
    samples = Samples.of(few, dataset)
    starts = [_Start.draw(few, dataset, samples, min(spec.widths), spec.seed)]
    began = time.monotonic()
    for name in spec.losses:
        _train(few, samples, starts, name, FEW_STEPS)
    return (time.monotonic() - began) / FEW_STEPS


@dataclass(frozen=True, eq=False)
class _Start:
    """One seed before training: its split of the samples, its network, and what all its runs are measured on."""

    seed: int
    split: Split
    module: nn.Module
    ground: Ground

    @classmethod
    def draw(cls, spec: StudySpec, dataset: Dataset, samples: Samples, width: int, seed: int) -> _Start:
        split, module = split_for(spec, dataset, seed), draw_network(spec, dataset, width, seed)
        test = samples.inputs(samples.x[split.test.to(samples.x.device)])
        ground = Ground(
            module,
            samples.inputs,
            parameters_of(module),
            pure_function(module),
            last_features(module),
            points=test[: spec.n_ntk_points],
            pairs=samples.views(split.contrasted[:N_PCA_SAMPLES], generator_for(seed, 0, 3)),
            test=test[:SLICE],
            probes=Probes.of(samples, split) if samples.labels is not None and spec.n_probe_samples else None,
            n_components=spec.d_out,
        )
        return cls(seed, split, module, ground)

    def unit(self, samples: Samples, loss: ViewLoss, optimizer: Optimizer) -> float:
        """The unit of this start's rates: there the first step is as long as descent's at the critical rate."""
        batch = torch.cat([view[:N_RATE_SAMPLES] for view in self.ground.pairs.chunk(2)])
        rate = critical_rate(stack_of([self.module]), batch.unsqueeze(0), unit_length=loss.scale_free)
        labels = _labels(samples, self.split.contrasted[: len(batch) // 2], loss)
        leaves = {name: p.detach().requires_grad_() for name, p in self.ground.origin.items()}
        value = batch_loss(loss, self.ground.function(leaves, batch), labels)
        rows = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
        gradients = dict(zip(leaves, rows, strict=True))
        length = optimizer_from("sgd").first_step(gradients)
        return rate * length / optimizer.first_step(gradients) if length else rate


# Training


@dataclass(frozen=True, eq=False)
class _Trained:
    """The runs of one loss, and the unit of rates at each start: its own critical rate."""

    rates: np.ndarray
    units: list[float]
    runs: ManyRuns


def _train(spec: StudySpec, samples: Samples, starts: Sequence[_Start], name: str, max_steps: int) -> _Trained:
    loss = loss_of(spec, name)
    rates = np.asarray(spec.rates_of(name), dtype=float)
    optimizer = optimizer_from(spec.optimizer, momentum=spec.momentum)
    units = [start.unit(samples, loss, optimizer) for start in starts]
    runs = train_many(
        stack_of([start.module for start in starts]),
        functools.partial(batch_loss, loss),
        _batches(spec, samples, starts, loss),
        _watched(samples, starts, loss),
        learning_rates=torch.as_tensor(np.outer(units, rates)),
        optimizer=optimizer,
        max_steps=max_steps,
        unit_length=loss.scale_free,
        bounded=loss.bounded,
    )
    return _Trained(rates, units, runs)


def _panel(spec: StudySpec, samples: Samples, starts: Sequence[_Start], name: str, max_steps: int) -> list[xr.Dataset]:
    """One loss at all rates: a dataset for each start."""
    trained = _train(spec, samples, starts, name, max_steps)
    n_checkpoints = len(checkpoints_of(spec.max_steps))
    return [_measured(name, trained, start, i, n_checkpoints) for i, start in enumerate(starts)]


def loss_of(spec: StudySpec, name: str) -> ViewLoss:
    """The loss of a panel."""
    return view_loss_from(name, temperature=spec.temperature, link=spec.link, delta=spec.delta)


def batch_loss(loss: ViewLoss, outputs: Tensor, labels: Tensor | None) -> Tensor:
    """The loss of two views that lie one below the other."""
    n = outputs.shape[0] // 2
    return loss(outputs[:n], outputs[n:], labels)


def _labels(samples: Samples, rows: Tensor, loss: ViewLoss) -> Tensor | None:
    return samples.labels[rows.to(samples.labels.device)] if loss.needs_labels and samples.labels is not None else None


def _batches(
    spec: StudySpec, samples: Samples, starts: Sequence[_Start], loss: ViewLoss
) -> Iterator[tuple[Tensor, Tensor | None]]:
    assert spec.batch_size is not None, "the spec was not prepared"
    streams = []
    for start in starts:
        rows = start.split.contrasted.to(samples.x.device)
        streams.append(
            view_batches(
                samples.x[rows],
                samples.view,
                batch_size=spec.batch_size,
                generator=generator_for(start.seed, 0, 5),
                labels=_labels(samples, rows, loss),
            )
        )
    for drawn in zip(*streams, strict=True):
        labels = [y for _, y in drawn if y is not None]
        yield torch.stack([samples.inputs(x) for x, _ in drawn]), torch.stack(labels) if labels else None


def _watched(samples: Samples, starts: Sequence[_Start], loss: ViewLoss) -> tuple[Tensor, Tensor | None]:
    n = min(WATCHED, *(len(start.split.validation) for start in starts))
    rows = [start.split.validation[:n] for start in starts]
    x = torch.stack(
        [samples.views(row, generator_for(start.seed, 0, 6)) for row, start in zip(rows, starts, strict=True)]
    )
    labels = [y for row in rows if (y := _labels(samples, row, loss)) is not None]
    return x, torch.stack(labels) if labels else None


# What is stored


def _measured(name: str, trained: _Trained, start: _Start, i: int, n_checkpoints: int) -> xr.Dataset:
    """The numbers of one start under one loss; NaN for what a run that diverged has not, and after the last step."""
    rates, unit, runs = trained.rates, trained.units[i], trained.runs
    numbers: dict[str, list[float]] = {quantity.name: [] for quantity in QUANTITIES}
    for r, ending in enumerate(runs.endings[i]):
        run = None if ending is Ending.DIVERGED else _ended(runs, start, i, r)
        for quantity in QUANTITIES:
            assert quantity.read is not None
            numbers[quantity.name].append(math.nan if run is None else quantity.read(run))
    arrays: dict[str, Any] = {
        it.name: (("rate",), np.asarray(numbers[it.name], dtype=float), {"long_name": it.long_name})
        for it in QUANTITIES
    }
    arrays |= {
        "map_rate": (("rate",), rates, {"long_name": "the learning rate in units of the critical rate"}),
        "map_learning_rate": (("rate",), rates * unit, {"long_name": "the learning rate"}),
        "map_unit": (
            (),
            unit,
            {
                "long_name": "the critical rate: 2/λ_max of the first kernel under this loss, and for Adam "
                "the rate at which its first step is as long as descent's there"
            },
        ),
        "map_ending": (
            ("rate",),
            np.asarray([ENDINGS.index(ending) for ending in runs.endings[i]], dtype=np.int32),
            {"long_name": "how a run ended: " + ", ".join(f"{k} {it.name.lower()}" for k, it in enumerate(ENDINGS))},
        ),
        "map_stopped_at": (
            ("rate",),
            runs.stopped_at[i].numpy().astype(np.int32),
            {"long_name": "the step at which a run ended"},
        ),
        STILL_FALLING.name: (
            ("rate",),
            runs.still_falling[i].numpy(),
            {"long_name": STILL_FALLING.long_name},
        ),
    }
    curves = {
        "map_loss": (runs.losses[:, i], "loss of the network at held-out samples"),
        "map_twin_loss": (runs.twin_losses[:, i], "loss of the linearised twin at held-out samples"),
        "map_gap_curve": (runs.gaps[:, i], "kernel gap at held-out samples"),
        "map_checkpoint": (torch.tensor(runs.checkpoints), "steps at which the curves are taken"),
    }
    for key, (values, long_name) in curves.items():
        padded = np.full((n_checkpoints, *values.shape[1:]), np.nan)
        padded[: len(values)] = values.double().cpu().numpy()
        arrays[key] = (("rate", "checkpoint")[-values.ndim :], padded.T, {"long_name": long_name})
    return xr.Dataset(arrays, coords={"panel": name})


def _ended(runs: ManyRuns, start: _Start, i: int, r: int) -> Ended:
    steps = {name: p[i : i + 1, r : r + 1] for name, p in runs.twin_steps.items()}
    twin = stack_of([start.module])

    def twin_outputs(inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat([twin.twin_outputs(steps, part.unsqueeze(0))[0, 0] for part in torch.split(inputs, SLICE)])

    place = runs.checkpoints.index(int(runs.stopped_at[i, r]))
    return Ended(start.ground, one_run(runs.parameters, i, r), twin_outputs, float(runs.gaps[place, i, r]))


def _baselines(spec: StudySpec, samples: Samples, start: _Start) -> dict[str, Any]:
    """Accuracies of every twin without a gradient; nothing without labels."""
    table = np.asarray(list(scores(spec, samples, start.split.contrasted, start.ground, start.seed).values()))
    if not len(table):
        return {}
    return {
        "map_baseline": (
            ("baseline", "probe"),
            table[:, :2],
            {"long_name": "test accuracy of a twin without a gradient"},
        ),
        "map_baseline_validation": (
            ("baseline",),
            table[:, 2],
            {"long_name": "its linear probe's accuracy on validation samples"},
        ),
        "baseline": ("baseline", list(BASELINES)),
        "probe": ("probe", list(PROBES)),
    }
