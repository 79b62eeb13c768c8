"""Where a monitor's numbers also go: TensorBoard, Weights & Biases; and Lightning, whose loop it follows.

None of these is imported before it is used, and kontrast needs none of them.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, Protocol

from torch import Tensor, nn

from kontrast.checks import is_number, require_callable, require_type
from kontrast.diagnosis.monitor import Monitor
from kontrast.errors import InputError
from kontrast.losses import LossValue

PREFIX = "kontrast"


class Logger(Protocol):
    """What `Monitor(loggers=[…])` takes: it is called once per record, after the record is in the monitor's folder."""

    def write(self, step: int, numbers: Mapping[str, float], spectra: Mapping[str, Tensor]) -> None:
        """Take finite numbers by name, and the centred singular values of every layer."""


class TensorBoardLogger:
    """Numbers as scalars and singular values as histograms of a `SummaryWriter`, below "kontrast/".

    Args:
        writer: any object with `add_scalar(tag, value, step)` and `add_histogram(tag, values, step)`, such as
            `torch.utils.tensorboard.SummaryWriter()`.
    """

    def __init__(self, writer: Any) -> None:
        for method in ("add_scalar", "add_histogram"):
            require_callable(f"writer.{method}", getattr(writer, method, None), "pass a SummaryWriter")
        self._writer = writer

    def write(self, step: int, numbers: Mapping[str, float], spectra: Mapping[str, Tensor]) -> None:
        """Add one record."""
        for name, value in numbers.items():
            self._writer.add_scalar(f"{PREFIX}/{name}", value, step)
        for layer, values in spectra.items():
            self._writer.add_histogram(f"{PREFIX}/{layer}/singular_values", values, step)


class WandbLogger:
    """Numbers of a Weights & Biases run, over their own axis "kontrast/step".

    W&B drops what is logged at a step that lies behind, so a logger that counted its steps forward could lose the
    user's own numbers. This one leaves the count alone: its numbers join the next `log` call of the training loop.

    Args:
        run: what `wandb.init()` returns; None takes the run that is active when the first record comes.
        commit: make every record a row of its own, which moves W&B's count of steps on. For loops that log nothing, or
            less often than the monitor records.
    """

    def __init__(self, run: Any = None, *, commit: bool = False) -> None:
        if run is not None:
            require_callable("run.log", getattr(run, "log", None), "pass what wandb.init() returns")
        require_type("commit", commit, bool, "pass True or False")
        self._run, self._commit, self._is_prepared = run, commit, False

    def write(self, step: int, numbers: Mapping[str, float], spectra: Mapping[str, Tensor]) -> None:
        """Log one record."""
        wandb: Any = _imported("wandb", "pip install wandb")
        run = wandb.run if self._run is None else self._run
        if run is None:
            raise InputError("no Weights & Biases run is active; call wandb.init() first, or pass its run")
        if not self._is_prepared:
            run.define_metric(f"{PREFIX}/*", step_metric=f"{PREFIX}/step")
            self._is_prepared = True
        row: dict[str, Any] = {f"{PREFIX}/{name}": value for name, value in numbers.items()}
        row |= {
            f"{PREFIX}/{layer}/singular_values": wandb.Histogram(values.tolist()) for layer, values in spectra.items()
        }
        run.log({f"{PREFIX}/step": step, **row}, commit=self._commit)


def lightning_callback(
    probe_views: Any, *, encoder: str | Callable[[nn.Module], nn.Module] | None = None, **options: Any
) -> Any:
    """A Lightning callback that keeps a `Monitor`: it steps with the trainer's `global_step` and records start and end.

    Works with `lightning` and with `pytorch_lightning`. The loss is that of `training_step`, as Lightning reports it,
    which is divided by `accumulate_grad_batches`. The callback's `monitor` is there once training has begun.

    Args:
        probe_views: a `Monitor`, or the probe views of one that is made when training begins.
        encoder: what is watched in the LightningModule: the name of a submodule such as "backbone", a function of the
            module, or None for the module itself. Not with a `Monitor`, which knows its own.
        options: other arguments of the `Monitor`.
    """
    if isinstance(probe_views, Monitor):
        unwanted = [name for name, value in {"encoder": encoder, **options}.items() if value is not None]
        if unwanted:
            raise InputError(
                f"a Monitor has its options already, got {unwanted[0]}= too; pass it when you make the Monitor"
            )
        return _callback_class()(lambda module: probe_views)

    def make(module: nn.Module) -> Monitor:
        return Monitor(_part(module, encoder), probe_views, **options)

    return _callback_class()(make)


def _part(module: nn.Module, encoder: str | Callable[[nn.Module], nn.Module] | None) -> nn.Module:
    if encoder is None:
        return module
    if callable(encoder):
        return encoder(module)
    try:
        return module.get_submodule(encoder)
    except AttributeError:
        names = ", ".join(name for name, _ in module.named_children())
        raise InputError(f"{type(module).__name__} has no submodule {encoder!r}; it has {names}") from None


def _callback_class() -> type[Any]:
    """The callback as a subclass of the Callback of every Lightning in use: the program's trainer may be of either."""
    packages = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}
    names = [name for name in packages.values() if name in sys.modules]
    if not names:
        names = [name for package, name in packages.items() if importlib.util.find_spec(package)][:1]
    if not names:
        raise InputError("neither lightning nor pytorch_lightning is installed; pip install lightning")
    bases = tuple(importlib.import_module(name).Callback for name in names)
    return type("LightningMonitor", (_Hooks, *bases), {})


class _Hooks:
    """The hooks of the callback. Lightning calls them on every process; the monitor works on the first alone."""

    def __init__(self, make: Callable[[nn.Module], Monitor]) -> None:
        super().__init__()
        self._make = make
        self.monitor: Monitor | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Record the start."""
        if self.monitor is None:
            # Before Lightning 2, a copy of its module took trainer and loaders along.
            guard = getattr(pl_module, "_prevent_trainer_and_dataloaders_deepcopy", nullcontext)
            with guard():
                self.monitor = self._make(pl_module)
        self.monitor.step(trainer.global_step)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *batch: Any) -> None:
        """Follow the loop."""
        assert self.monitor is not None  # training has started
        self.monitor.step(trainer.global_step, loss=_loss_in(outputs))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Record the end."""
        assert self.monitor is not None
        self.monitor.step(trainer.global_step, now=True)


def _loss_in(outputs: Any) -> Any:
    """The loss in what `training_step` returned: a tensor, or a mapping with "loss"; None where there is none."""
    value = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    return value if isinstance(value, Tensor | LossValue) or is_number(value) else None


def _imported(name: str, how: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(f"{name} is not installed; {how}") from None
