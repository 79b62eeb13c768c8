"""A monitor beside any training loop: what its embedding does, recorded as it goes, and a warning when it collapses."""

from __future__ import annotations

import html
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import xarray as xr
from torch import Tensor, nn

from kontrast.checks import require_callable, require_positive, require_type, require_whole
from kontrast.diagnosis.inputs.encoder import Encoder
from kontrast.diagnosis.metrics import SPECTRAL_METRICS
from kontrast.diagnosis.monitor_folder import MonitorFolder
from kontrast.diagnosis.monitor_records import as_record, read_monitor, snapshot_in
from kontrast.diagnosis.probe_set import (
    ProbeSet,
    device_of,
    encoder_in_words,
    require_whole_weights,
    state_now,
    undisturbed,
    without_own_hooks,
)
from kontrast.diagnosis.running_loss import Loss, RunningLoss
from kontrast.diagnosis.snapshots import EMBEDDING, Snapshot, highest_of, snapshot_of
from kontrast.errors import InputError, StoreError
from kontrast.nets import Select, unwrapped

if TYPE_CHECKING:
    from kontrast.diagnosis.loggers import Logger

__all__ = ["CollapseWarning", "Monitor", "read_monitor"]

FORMAT = 1
OK = "ok"
FEW = 16  # samples that an encoder is tried on before training
ADVICE = {
    "complete": (
        "all samples have nearly the same embedding: check that the loss repels (negatives, a variance term or a "
        "stop-gradient with a predictor), lower the learning rate, look for dead activations"
    ),
    "dimensional": (
        "few directions are left: try weaker augmentations, a lower temperature or more negatives, less weight decay, "
        "a wider projector, or a covariance term as in VICReg and Barlow Twins"
    ),
}
OF_COLLAPSE = ("centered_rank", "participation_ratio", "spread")
SHOWN = ("rankme", "centered_rank", "spread")


class CollapseWarning(UserWarning):
    """The embedding has begun to collapse."""


class Monitor:
    """Watches an encoder on a fixed probe set while any loop trains it.

    ::

        monitor = kt.Monitor(encoder, (xa, xb), every=200)
        monitor.step(0)                                        # the start, before the first update
        for step, batch in enumerate(loader, 1):
            ...
            monitor.step(step, loss=loss)

    At the first step it is told of, and whenever a multiple of `every` is reached, it runs a copy of the encoder in
    eval mode on the probe set and appends one record to its folder: the spectral metrics, LiDAR, the singular values
    and the similarity to the start (linear CKA) of every watched layer; alignment, uniformity, neighbor agreement and
    similarities of the embedding; the loss and its mean since the last record. Memory does not grow. A record is on
    the disk when `step` returns, so a kill loses at most the one that is being written.

    The training goes on as if nothing had been there: modules keep their mode, buffers, gradients and hooks, torch its
    random numbers, autocast its state. The copy is made once; parameters and buffers are followed, other attributes of
    modules, such as a rate that a schedule moves, are not. Forward hooks that are functions of the user's are not
    called. Below DataParallel, DistributedDataParallel and torch.compile the module itself is watched; of several
    processes the first records alone.

    Spectra and the rules for collapse read the first view, one row per sample. The moment the embedding, or the layer
    `features`, collapses there is a `CollapseWarning`, once for each kind. What it falls from are the largest numbers
    so far: at the start batch norms have no statistics yet, and embeddings may have little spread.

    Args:
        encoder: the module that is trained.
        probe_views: two views of the same samples (xa, xb), a tensor (n, v, …), or whatever `kontrast.diagnose` takes
            as `views` together with `data`. About 256 samples; the same ones where a run is resumed.
        every: steps between records.
        folder: where records go. One with records of the same encoder and probe set is carried on after its last
            record; one with anything else is refused.
        features: the submodule that labels judge, such as "backbone", watched beside what the encoder returns.
        head: the submodule that is the projector; what enters it and its linear layers are watched as well.
        select: which tensor of what the encoder returns: a name, a number or a function.
        labels: one per sample; then the leave-one-out accuracy of 20 nearest neighbors is recorded (`knn_accuracy`).
        temperature: of the loss; then the effective number of negatives is recorded.
        loggers: `TensorBoardLogger`, `WandbLogger`, or anything with their `write`.
        data: samples that `probe_views` makes views of, where it is a transform or a text.
        n_samples: samples to read where views are not given as tensors, which are all taken.
        n_views: views of each sample, where they are made here.
        seed: of views that are made here.
        batch_size: inputs that the encoder sees at once.
    """

    def __init__(
        self,
        encoder: nn.Module,
        probe_views: Any,
        *,
        every: int = 200,
        folder: str | Path = "kontrast-monitor",
        features: str | None = None,
        head: str | None = None,
        select: Select | None = None,
        labels: Any = None,
        temperature: float | None = None,
        loggers: Sequence[Logger] = (),
        data: Any = None,
        n_samples: int = 256,
        n_views: int = 2,
        seed: int = 0,
        batch_size: int = 256,
    ) -> None:
        require_type("encoder", encoder, nn.Module, "pass the module that is trained")
        self.every = require_whole("every", every)
        self._batch_size = require_whole("batch_size", batch_size)
        if temperature is not None:
            require_positive(temperature=temperature)
        for k, logger in enumerate(loggers):
            require_callable(f"loggers[{k}].write", getattr(logger, "write", None), "pass TensorBoardLogger(writer)")
        self._temperature, self._loggers = temperature, tuple(loggers)
        self._store = MonitorFolder(folder)
        if _is_first_process():
            self._store.check()
        most = require_whole("n_samples", n_samples, least=2)
        self._probe = ProbeSet.of(probe_views, labels, data=data, n_views=n_views, most=most, seed=seed)
        self._module = unwrapped(encoder)
        require_whole_weights(self._module)
        with undisturbed(device_of(self._module)), without_own_hooks(self._module):
            few = self._probe.views[:FEW, 0]
            self._encoder = Encoder.of(self._module, few, features=features, head=head, select=select)
        self._losses = RunningLoss()
        self._seen = -1  # the last step
        self._forget()
        if _is_first_process():
            self._store.claim(self._spec(select))
            self._resume()

    @property
    def folder(self) -> Path:
        """Where the records are."""
        return self._store.folder

    @property
    def warnings(self) -> tuple[str, ...]:
        """What it has warned of in this run, also before it was resumed."""
        return tuple(self._warned.values())

    def step(self, step: int, loss: Loss | None = None, *, now: bool = False) -> bool:
        """Tell where the loop is; returns whether a record was made.

        Args:
            step: how many updates there were. It never decreases; the same step again, as with accumulated gradients,
                adds its loss.
            loss: of this step, a scalar. A GPU is not waited for. A NaN is told in the record and left out of the mean.
            now: make a record at this step whatever `every` says, unless there is one.
        """
        number = require_whole("step", step, least=0)
        if number < self._seen:
            raise InputError(f"step must not go backwards, got {number} after {self._seen}; count over the whole run")
        if loss is not None:
            self._losses.add(loss)
        self._seen = number
        if not _is_first_process():
            return False
        if self._is_resumed:
            self._go_on(number)
        if self._recorded is not None:
            is_passed = number // self.every > self._recorded // self.every
            if number <= self._recorded or not (now or is_passed):
                return False
        self._record(number)
        return True

    def to_dataset(self) -> xr.Dataset:
        """All records so far, as `read_monitor` has them."""
        return read_monitor(self.folder)

    def __repr__(self) -> str:
        name = f"Monitor of {type(self._module).__name__}"
        if self._now is None or self._start is None:
            return f"{name}: no record yet, {self._probe.n} samples every {self.every} steps"
        records = f"{self._n_records} record{'s' if self._n_records > 1 else ''}"
        parts = [f"step {self._recorded}, {records} in {self.folder}"]
        if math.isfinite(self._loss_mean):
            parts.append(f"mean loss {self._loss_mean:.4g}")
        parts += _beside(self._now.layers.get(EMBEDDING, {}), self._start.layers.get(EMBEDDING, {}), SHOWN, "start")
        parts.append(", ".join(f"{kind} collapse" for kind in self._warned) or "no collapse")
        return f"{name}: {'; '.join([*parts, *[self._status] * (self._status != OK)])}"

    def _repr_html_(self) -> str:
        rows = ""
        if self._now is not None and self._start is not None:
            for layer, numbers in self._now.layers.items():
                for name, value in numbers.items():
                    first = self._start.layers.get(layer, {}).get(name, math.nan)
                    cells = (layer, _in_words(name), f"{first:.3g}", f"{value:.3g}")
                    rows += "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"
        table = f"<table><tr><th>layer</th><th></th><th>start</th><th>now</th></tr>{rows}</table>" if rows else ""
        told = "".join(f"<p>{html.escape(text)}</p>" for text in self.warnings)
        return f"<div><p>{html.escape(repr(self))}</p>{told}{table}</div>"

    # --- what was recorded ------------------------------------------------------------------------------------------

    def _spec(self, select: Select | None) -> dict[str, Any]:
        """What must be the same for a run to go on in its folder; notes may differ."""
        return {
            "kind": "monitor",
            "format": FORMAT,
            "encoder": encoder_in_words(self._module),
            "layers": list(self._encoder.layers),
            "features": self._encoder.features,
            "select": getattr(select, "__name__", type(select).__name__) if callable(select) else select,
            "probe": str(self._probe),
            "n": self._probe.n,
            "n_views": self._probe.n_views,
            "n_parameters": sum(p.numel() for p in self._module.parameters()),
            "views": self._probe.words,
            "labels": self._probe.labels_in_words(),
            "temperature": self._temperature,
            "notes": [*self._probe.notes, *self._encoder.notes],
        }

    def _forget(self) -> None:
        """As before the first record."""
        self._is_resumed = False  # records were found, and no step was told yet
        self._first_step: int = 0
        self._recorded: int | None = None  # the last step with a record
        self._n_records = 0
        self._start: Snapshot | None = None
        self._now: Snapshot | None = None
        self._highest: dict[str, dict[str, float]] = {}  # of each layer, so far
        self._first: dict[str, Tensor] = {}
        self._loss_mean = math.nan
        self._status = OK
        self._warned: dict[str, str] = {}

    def _resume(self) -> None:
        """Read what the folder holds; of its records only the first and the last are kept."""
        for record in self._store.records():
            self._n_records += 1
            self._now, self._recorded, self._status = snapshot_in(record), int(record["step"]), record["status"]
            mean = record["losses"]["loss_mean"]
            self._loss_mean = math.nan if mean is None else mean
            if self._start is None:
                self._start, self._first_step = self._now, self._recorded
            self._highest = highest_of(self._highest, self._now.layers)
            self._warned |= record["warnings"]
        if self._n_records:
            self._is_resumed, self._first = True, self._store.start()

    def _go_on(self, step: int) -> None:
        """The first step after the folder was read: a run that begins anew does not mix with the one on record."""
        if step <= self._first_step and self._n_records > 1:
            raise StoreError(
                f"{self.folder} holds a run up to step {self._recorded}, and this one begins at step {step}; choose "
                "another folder, or delete that one if you no longer need it"
            )
        self._is_resumed = False
        if step <= self._first_step:  # its start is all there is: take it again
            self._store.begin_again()
            self._forget()

    # --- a record ---------------------------------------------------------------------------------------------------

    def _record(self, step: int) -> None:
        snapshot, problems = self._look(step)
        losses = self._losses.read()
        if losses["n_losses_not_finite"]:
            problems.append(f"{losses['n_losses_not_finite']:g} losses were NaN or infinite")
        status = "; ".join(problems) or OK
        told = {kind: text for kind, text in self._collapses(step, snapshot).items() if kind not in self._warned}
        self._store.append(as_record(step, status, losses, snapshot, told))
        self._start = self._start or snapshot
        self._highest = highest_of(self._highest, snapshot.layers)
        self._now, self._recorded, self._n_records = snapshot, step, self._n_records + 1
        self._status, self._loss_mean, self._losses = status, losses["loss_mean"], RunningLoss()
        self._warned |= told
        numbers = snapshot.numbers() | {name: value for name, value in losses.items() if math.isfinite(value)}
        spectra = {name: torch.tensor(values) for name, values in snapshot.singular_values.items()}
        for logger in self._loggers:
            logger.write(step, numbers, spectra)
        for text in told.values():  # last, since a filter may turn warnings into errors
            warnings.warn(text, CollapseWarning, stacklevel=3)

    def _look(self, step: int) -> tuple[Snapshot, list[str]]:
        """What there is to see now, or why there is nothing."""
        try:
            layers = self._layers()
        except InputError as error:
            if self._start is None:
                raise
            # Whether training goes on is for its loop to say; the record tells why it has no numbers.
            return Snapshot(missing={EMBEDDING: str(error)}), [str(error)]
        if self._start is None:
            self._first, self._first_step = {name: z[:, 0].float() for name, z in layers.items()}, step
            self._store.write_start(self._first)
        snapshot = snapshot_of(
            layers,
            features=self._encoder.features,
            first=self._first,
            highest=self._highest,
            labels=self._probe.labels,
            temperature=self._temperature,
        )
        return snapshot, []

    def _layers(self) -> dict[str, Tensor]:
        """The embeddings (n, v, d) of every layer as the weights are now, on the CPU."""
        device, views = device_of(self._module), self._probe.views
        with undisturbed(device):
            if self._encoder.like.device != device:  # the user has moved the module
                self._encoder.module.to(device)
            rows = views.flatten(0, 1)  # (n v, …), views of one sample one after the other
            layers = self._encoder.outputs(state_now(self._module), rows, batch_size=self._batch_size)
        return {name: z.cpu().reshape(*views.shape[:2], -1) for name, z in layers.items()}

    def _collapses(self, step: int, snapshot: Snapshot) -> dict[str, str]:
        """Each kind of collapse at this moment, with its numbers and what to try."""
        told: dict[str, str] = {}
        for layer, kind in snapshot.collapse.items():
            if kind != "none" and kind not in told:
                now, before = snapshot.layers[layer], self._highest.get(layer, {})
                numbers = ", ".join(_beside(now, before, OF_COLLAPSE, "highest so far"))
                size = f"n = {self._probe.n}, d = {snapshot.dimensions[layer]}"
                told[kind] = f"{kind} collapse of {layer!r} at step {step}: {numbers}, {size}; {ADVICE[kind]}"
        return told


def _beside(now: Mapping[str, float], other: Mapping[str, float], names: Sequence[str], words: str) -> list[str]:
    """Numbers, each beside another one."""
    return [
        f"{_in_words(name)} {now[name]:.3g} ({words} {other.get(name, math.nan):.3g})"
        for name in names
        if math.isfinite(now.get(name, math.nan))
    ]


def _in_words(name: str) -> str:
    return SPECTRAL_METRICS[name].words if name in SPECTRAL_METRICS else name.replace("_", " ")


def _is_first_process() -> bool:
    """Whether this process is the one that records, of those that train together."""
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0
