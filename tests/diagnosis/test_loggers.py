"""The adapters against stand-ins that check calls as the libraries do; these are not installed with kontrast."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kontrast.diagnosis.loggers import TensorBoardLogger, WandbLogger, lightning_callback
from kontrast.diagnosis.monitor import Monitor
from kontrast.diagnosis.monitor_folder import MonitorFolder
from kontrast.errors import InputError
from kontrast.losses import nt_xent
from tests.cases import randn

XA = randn(12, 5, dtype=torch.float32)
VIEWS = (XA, XA + 0.1)


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4))


def steps_in(folder: Path) -> list[int]:
    return [record["step"] for record in MonitorFolder(folder).records()]


# --- TensorBoard ----------------------------------------------------------------------------------------------------


class Writer:
    """`SummaryWriter` as far as it is used."""

    def __init__(self) -> None:
        self.scalars: dict[int, dict[str, float]] = {}
        self.histograms: dict[int, dict[str, Tensor]] = {}

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        assert isinstance(scalar_value, float | int)
        self.scalars.setdefault(int(global_step or 0), {})[tag] = scalar_value

    def add_histogram(self, tag: str, values: Tensor, global_step: int | None = None) -> None:
        assert isinstance(values, Tensor)
        self.histograms.setdefault(int(global_step or 0), {})[tag] = values


def test_tensorboard_has_every_record_after_the_folder(tmp_path: Path) -> None:
    writer = Writer()
    loggers = [
        TensorBoardLogger(writer),
        SimpleNamespace(write=lambda step, *_: stored.append(steps_in(tmp_path / "m"))),
    ]
    stored: list[list[int]] = []
    monitor = Monitor(network(), VIEWS, every=2, folder=tmp_path / "m", features="0", loggers=loggers)
    for step in range(5):
        monitor.step(step, loss=1.0 + step)
    assert stored == [[0], [0, 2], [0, 2, 4]]  # a logger that fails costs no record
    assert list(writer.scalars) == list(writer.histograms) == [0, 2, 4]
    data = monitor.to_dataset().sel(bound="value")
    for at, step in enumerate((0, 2, 4)):
        row = writer.scalars[step]
        assert row["kontrast/embedding/rankme"] == float(data.rankme.sel(layer="embedding")[at])
        assert row["kontrast/0/lidar"] == float(data.lidar.sel(layer="0")[at])
        assert row["kontrast/alignment"] == float(data.alignment[at])
        assert row["kontrast/loss_mean"] == float(data.loss_mean[at])
        assert set(writer.histograms[step]) == {"kontrast/0/singular_values", "kontrast/embedding/singular_values"}
    assert "kontrast/embedding/alpha_req" not in writer.scalars[0]  # it is missing: too few samples


def test_a_writer_of_something_else_is_refused() -> None:
    with pytest.raises(InputError, match=r"writer\.add_scalar must be a function"):
        TensorBoardLogger(object())


# --- Weights & Biases -----------------------------------------------------------------------------------------------


class Run:
    """A run that joins and drops rows as W&B's does: steps only go forward, and uncommitted numbers wait."""

    def __init__(self) -> None:
        self.step = 0
        self.rows: list[dict[str, Any]] = []
        self.dropped: list[Mapping[str, Any]] = []
        self.axes: dict[str, str] = {}
        self._waiting: dict[str, Any] = {}

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        assert step_metric is not None
        self.axes[name] = step_metric

    def log(self, data: Mapping[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        if step is not None and step < self.step:
            self.dropped.append(data)
            return
        if step is not None and step > self.step:
            self.finish()
            self.step = step
        self._waiting.update(data)
        if commit or (commit is None and step is None):
            self.finish()
            self.step += 1

    def finish(self) -> None:
        if self._waiting:
            self.rows.append(self._waiting)
        self._waiting = {}


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("wandb")
    module.run = None  # type: ignore[attr-defined]
    module.Histogram = lambda sequence: ("histogram", tuple(sequence))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


@pytest.mark.parametrize("own_steps", [False, True])
def test_weights_and_biases_keeps_the_users_own_numbers(tmp_path: Path, wandb: ModuleType, own_steps: bool) -> None:
    run = Run()
    monitor = Monitor(network(), VIEWS, every=3, folder=tmp_path / "m", loggers=[WandbLogger(run)])
    for step in range(10):
        options = {"step": step} if own_steps else {}
        run.log({"before": step}, **options)
        monitor.step(step, loss=1.0)
        run.log({"after": step}, **options)
    run.finish()
    assert not run.dropped
    assert run.axes == {"kontrast/*": "kontrast/step"}
    for name in ("before", "after"):
        assert [row[name] for row in run.rows if name in row] == list(range(10))
    rows = [row for row in run.rows if "kontrast/step" in row]
    assert [row["kontrast/step"] for row in rows] == [0, 3, 6, 9]
    assert all("kontrast/embedding/rankme" in row for row in rows)
    assert rows[0]["kontrast/embedding/singular_values"][0] == "histogram"


def test_weights_and_biases_alone_commits_every_record(tmp_path: Path, wandb: ModuleType) -> None:
    wandb.run = Run()  # type: ignore[attr-defined]
    monitor = Monitor(network(), VIEWS, every=3, folder=tmp_path / "m", loggers=[WandbLogger(commit=True)])
    for step in range(10):
        monitor.step(step)
    assert [row["kontrast/step"] for row in wandb.run.rows] == [0, 3, 6, 9]  # type: ignore[attr-defined]


def test_weights_and_biases_is_imported_when_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wandb: ModuleType
) -> None:
    logger = WandbLogger()
    with pytest.raises(InputError, match=r"no Weights & Biases run is active; call wandb.init\(\) first"):
        logger.write(0, {}, {})
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match="wandb is not installed; pip install wandb"):
        WandbLogger(Run()).write(0, {}, {})
    with pytest.raises(InputError, match=r"run\.log must be a function"):
        WandbLogger("my project")


# --- Lightning ------------------------------------------------------------------------------------------------------


class Callback:
    """Lightning's base class: every hook exists and does nothing; the trainer asks for the state's key."""

    @property
    def state_key(self) -> str:
        return self.__class__.__qualname__

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None: ...
    def on_fit_start(self, trainer: Any, pl_module: Any) -> None: ...
    def on_train_start(self, trainer: Any, pl_module: Any) -> None: ...
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None: ...
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None: ...
    def on_train_end(self, trainer: Any, pl_module: Any) -> None: ...
    def on_fit_end(self, trainer: Any, pl_module: Any) -> None: ...
    def state_dict(self) -> dict[str, Any]:
        return {}


class Module(nn.Module):
    """A LightningModule of two parts."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.backbone, self.projector = nn.Linear(5, 6), nn.Linear(6, 4)
        self.rate = 0.01

    def forward(self, x: Tensor) -> Tensor:
        return self.projector(self.backbone(x))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        return {"loss": nt_xent(*(self(x) for x in batch)).total}


class Trainer:
    """The order in which Lightning 2 calls hooks, and how it counts: one step per update, whatever accumulates."""

    def __init__(self, callbacks: list[Any], *, n_batches: int, accumulate: int = 1) -> None:
        assert all(isinstance(callback, Callback) for callback in callbacks)
        self.callbacks, self.n_batches, self.accumulate = callbacks, n_batches, accumulate
        self.global_step = 0

    def _call(self, hook: str, *args: Any) -> None:
        for callback in self.callbacks:
            assert callback.state_key
            getattr(callback, hook)(self, self.module, *args)

    def fit(self, module: nn.Module, outputs_of: Callable[[Any], Any] = lambda outputs: outputs) -> None:
        self.module = module
        for callback in self.callbacks:
            callback.setup(self, module, stage="fit")
        self._call("on_fit_start")
        self._call("on_train_start")
        for batch_idx in range(self.n_batches):
            self._call("on_train_batch_start", VIEWS, batch_idx)
            outputs = module.training_step(VIEWS, batch_idx)
            outputs["loss"] = outputs["loss"] / self.accumulate
            outputs["loss"].backward()
            outputs["loss"] = outputs["loss"].detach()
            if (batch_idx + 1) % self.accumulate == 0:
                with torch.no_grad():
                    for p in module.parameters():
                        p -= module.rate * p.grad
                module.zero_grad()
                self.global_step += 1
            self._call("on_train_batch_end", outputs_of(outputs), VIEWS, batch_idx)
        self._call("on_train_end")
        self._call("on_fit_end")


@pytest.fixture(params=["lightning.pytorch", "pytorch_lightning"])
def lightning(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = ModuleType(request.param)
    module.Callback = Callback  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, request.param, module)
    if "." in request.param:
        monkeypatch.setitem(sys.modules, "lightning", ModuleType("lightning"))
    return str(request.param)


@pytest.mark.usefixtures("lightning")
def test_lightning_records_start_steps_and_end(tmp_path: Path) -> None:
    callback = lightning_callback(VIEWS, encoder="backbone", every=4, folder=tmp_path / "m")
    assert type(callback).__name__ == "LightningMonitor"
    assert callback.monitor is None
    Trainer([callback], n_batches=10).fit(Module())
    assert steps_in(tmp_path / "m") == [0, 4, 8, 10]
    data = callback.monitor.to_dataset()
    assert data.loss_mean.notnull().sel(bound="value").values.tolist() == [False, True, True, True]
    assert int(data.layer_dimension.sel(layer="embedding")) == 6


@pytest.mark.usefixtures("lightning")
def test_lightning_counts_updates_where_gradients_accumulate(tmp_path: Path) -> None:
    callback = lightning_callback(VIEWS, every=2, folder=tmp_path / "m", features="backbone")
    Trainer([callback], n_batches=12, accumulate=3).fit(Module())
    assert steps_in(tmp_path / "m") == [0, 2, 4]
    counts = callback.monitor.to_dataset().n_losses.sel(bound="value").values
    assert counts.sum() == 12


@pytest.mark.usefixtures("lightning")
def test_lightning_takes_a_monitor_that_is_there(tmp_path: Path) -> None:
    module = Module()
    monitor = Monitor(module.backbone, VIEWS, every=4, folder=tmp_path / "m")
    callback = lightning_callback(monitor)
    Trainer([callback], n_batches=5).fit(module)
    assert callback.monitor is monitor
    assert steps_in(tmp_path / "m") == [0, 4, 5]
    with pytest.raises(InputError, match="a Monitor has its options already, got every= too"):
        lightning_callback(monitor, every=3)


@pytest.mark.usefixtures("lightning")
@pytest.mark.parametrize("outputs", [None, {}, {"loss": None}, [torch.zeros(2)]])
def test_lightning_batches_without_a_loss_pass(tmp_path: Path, outputs: Any) -> None:
    callback = lightning_callback(VIEWS, folder=tmp_path / "m")
    Trainer([callback], n_batches=2).fit(Module(), lambda _: outputs)
    assert steps_in(tmp_path / "m") == [0, 2]


@pytest.mark.usefixtures("lightning")
def test_lightning_names_of_submodules_and_functions(tmp_path: Path) -> None:
    callback = lightning_callback(VIEWS, encoder=lambda module: module.backbone, folder=tmp_path / "m")
    Trainer([callback], n_batches=1).fit(Module())
    assert callback.monitor.to_dataset().layer_dimension.values.tolist() == [6]
    with pytest.raises(InputError, match="Module has no submodule 'encoder'; it has backbone, projector"):
        Trainer([lightning_callback(VIEWS, encoder="encoder", folder=tmp_path / "x")], n_batches=1).fit(Module())


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) for name in ("lightning", "pytorch_lightning")), reason="Lightning is installed"
)
def test_without_lightning_the_reason_is_told() -> None:
    with pytest.raises(InputError, match="neither lightning nor pytorch_lightning is installed; pip install lightning"):
        lightning_callback(VIEWS)
