from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import floats, integers
from torch import Tensor, nn

from kontrast.diagnosis import metrics, monitor_folder
from kontrast.diagnosis.collapse_rules import collapse_of
from kontrast.diagnosis.monitor import CollapseWarning, Monitor, read_monitor
from kontrast.diagnosis.monitor_folder import RECORDS_FILE, MonitorFolder
from kontrast.diagnosis.snapshots import leave_one_out_accuracy, linear_cka
from kontrast.errors import InputError, StoreError
from kontrast.linalg import cka
from kontrast.losses import nt_xent
from tests.cases import generator, randn

IN_FOLDER = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=12, phases=[Phase.generate]
)
XA = randn(24, 6, seed=1, dtype=torch.float32)
VIEWS = (XA, XA + 0.1 * randn(24, 6, seed=2, dtype=torch.float32))


def network(seed: int = 0, width: int = 12) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        backbone = nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2))
        return nn.Sequential(backbone, nn.Linear(width, 4))


def trained(
    net: nn.Module,
    n_steps: int,
    told: Callable[[int, Any], object] = lambda step, loss: None,
    loss_of: Callable[[Tensor, Tensor], Any] = nt_xent,
    *,
    rate: float = 0.1,
    amp: bool = False,
) -> list[Tensor]:
    """A training on the probe set itself; returns its losses and, at the end, the random state."""
    torch.manual_seed(5)
    losses = []
    net.train()
    for step in range(1, n_steps + 1):
        xa, xb = (x + 0.1 * torch.randn_like(x) for x in VIEWS)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
            a, b = net(torch.cat([xa, xb])).float().chunk(2)
            loss = loss_of(a, b)
            told(step, loss)
        net.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= rate * p.grad
        losses.append(loss.detach().clone())
    return [*losses, torch.get_rng_state()]


def records(folder: Path) -> list[dict[str, Any]]:
    return list(MonitorFolder(folder).records())


# --- what it records ------------------------------------------------------------------------------------------------


def test_the_numbers_are_those_of_the_functions(tmp_path: Path) -> None:
    net, labels = network(), torch.arange(24) % 3
    monitor = Monitor(net, VIEWS, folder=tmp_path / "m", features="0", labels=labels, temperature=0.5)
    monitor.step(0)
    net.eval()
    with torch.no_grad():
        backbone = torch.stack([net[0](x) for x in VIEWS], 1)
        z = torch.stack([net(x) for x in VIEWS], 1)
    found = monitor.to_dataset().isel(checkpoint=0).sel(bound="value")
    for layer, rows in (("0", backbone), ("embedding", z)):
        at = found.sel(layer=layer)
        for name, value in metrics.metrics_of(rows[:, 0]).items():
            np.testing.assert_allclose(float(at[name]), value, rtol=1e-4)
        np.testing.assert_allclose(float(at.lidar), metrics.lidar(rows), rtol=1e-4)
        assert float(at.similarity_to_start) == pytest.approx(1)
        d = int(found.layer_dimension.sel(layer=layer))
        assert d == rows.shape[2]
        centered = (rows[:, 0] - rows[:, 0].mean(0)).double()
        np.testing.assert_allclose(at.singular_values[:d], torch.linalg.svdvals(centered) / 24**0.5, rtol=1e-4)
    a, b = z.unbind(1)
    assert float(found.alignment) == pytest.approx(metrics.alignment(a, b), rel=1e-4)
    assert float(found.uniformity) == pytest.approx(metrics.uniformity((a, b)), rel=1e-4)
    assert float(found.neighbor_agreement) == metrics.neighbor_agreement(z)
    assert float(found.effective_negatives) == pytest.approx(metrics.effective_negatives(a, b, 0.5), rel=1e-4)
    assert float(found.knn_accuracy) == leave_one_out_accuracy(backbone[:, 0], labels)
    assert found.similarity_histogram.sum("bin").values.tolist() == [24, 2 * 24 * 23]


def test_one_tensor_of_views_is_two_tensors(tmp_path: Path) -> None:
    for name, views in (("two", VIEWS), ("one", torch.stack(VIEWS, 1))):
        Monitor(network(), views, folder=tmp_path / name).step(0)
    assert records(tmp_path / "one") == records(tmp_path / "two")


IMAGES, CLASSES = randn(40, 1, 6, 6, seed=3, dtype=torch.float32), torch.arange(40) % 4
PAIRS = torch.utils.data.TensorDataset(IMAGES, IMAGES + 0.1)


@pytest.mark.parametrize(
    ("views", "options", "n"),
    [
        ("affine", {"data": IMAGES, "labels": CLASSES}, 40),
        ("affine", {"data": IMAGES, "labels": CLASSES, "n_samples": 16, "n_views": 3}, 16),
        (lambda x: x + 0.1, {"data": IMAGES}, 40),
        (torch.utils.data.DataLoader(PAIRS, batch_size=10), {"n_samples": 20}, 20),
    ],
)
def test_views_in_every_form_that_a_diagnosis_takes(
    tmp_path: Path, views: Any, options: dict[str, Any], n: int
) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 5))
    state = torch.get_rng_state()
    for _ in range(2):  # the same views again, so that a run can be resumed
        monitor = Monitor(net, views, folder=tmp_path / "m", **options)
    assert torch.equal(state, torch.get_rng_state())
    monitor.step(0)
    assert monitor.to_dataset().attrs["n_samples"] == n
    assert ("knn_accuracy" in monitor.to_dataset()) == ("labels" in options)


def test_the_weights_are_those_of_the_moment(tmp_path: Path) -> None:
    net = network()
    monitor = Monitor(net, VIEWS, every=10, folder=tmp_path / "m")
    trained(net, 20, monitor.step)
    Monitor(net, VIEWS, folder=tmp_path / "end").step(20)
    before, after = monitor.to_dataset().isel(checkpoint=-1), read_monitor(tmp_path / "end").isel(checkpoint=0)
    # The last step was told before its update.
    assert not np.allclose(before.rankme, after.rankme, equal_nan=True)
    monitor.step(21, now=True)
    now = monitor.to_dataset().isel(checkpoint=-1)
    for name in ("rankme", "spread", "alignment"):
        np.testing.assert_array_equal(now[name], after[name])
    assert float(now.similarity_to_start.sel(bound="value", layer="embedding")) < 1


@pytest.mark.parametrize("stride", [1, 3, 7])
def test_a_record_at_the_first_step_and_whenever_a_multiple_is_reached(tmp_path: Path, stride: int) -> None:
    monitor = Monitor(network(), VIEWS, every=10, folder=tmp_path / "m")
    told = list(range(2, 45, stride))
    made = [step for step in told if monitor.step(step)]
    due = {min(step for step in told if step >= multiple) for multiple in (10, 20, 30, 40)}
    assert made == [2, *sorted(due)]
    data = monitor.to_dataset()
    assert data.checkpoint.values.tolist() == [f"step {step}" for step in made]
    assert data.step.values.tolist() == made


def test_losses_in_every_form_and_their_mean(tmp_path: Path) -> None:
    monitor = Monitor(network(), VIEWS, every=4, folder=tmp_path / "m")
    monitor.step(0)
    a, b = randn(8, 4), randn(8, 4, seed=1)
    for step, loss in enumerate([2.0, torch.tensor(4.0), nt_xent(a, b), np.float64(1.0)], 1):
        monitor.step(step, loss=loss)
    monitor.step(5, loss=10.0)
    monitor.step(5, loss=20.0)  # accumulated gradients: the same step again
    monitor.step(8)
    first, second, third = (record["losses"] for record in records(tmp_path / "m"))
    assert first == {"loss": None, "loss_mean": None, "n_losses": 0, "n_losses_not_finite": 0}
    assert second["loss_mean"] == pytest.approx((2 + 4 + float(nt_xent(a, b).total) + 1) / 4)
    assert second["loss"] == 1
    assert (third["loss_mean"], third["n_losses"]) == (15, 2)


@pytest.mark.parametrize("bad", [float("nan"), torch.tensor(float("inf"))])
def test_a_loss_that_is_not_finite_is_told_and_left_out(tmp_path: Path, bad: Any) -> None:
    monitor = Monitor(network(), VIEWS, every=2, folder=tmp_path / "m")
    monitor.step(0, loss=1.0)
    monitor.step(1, loss=bad)
    monitor.step(2, loss=3.0)
    monitor.step(4, loss=3.0)
    status = [record["status"] for record in records(tmp_path / "m")]
    assert status == ["ok", "1 losses were NaN or infinite", "ok"]
    assert records(tmp_path / "m")[1]["losses"]["loss_mean"] == 3


def test_weights_that_are_nan_are_told_and_the_loop_goes_on(tmp_path: Path) -> None:
    net = network()
    monitor = Monitor(net, VIEWS, every=1, folder=tmp_path / "m")
    monitor.step(0)
    with torch.no_grad():
        net[1].weight[0, 0] = torch.nan
    monitor.step(1)
    with torch.no_grad():
        net[1].weight[0, 0] = 0
    monitor.step(2)
    data = monitor.to_dataset()
    assert [status == "ok" for status in data.status.values] == [True, False, True]
    assert "NaN" in str(data.status.values[1])
    assert np.isnan(data.rankme.sel(bound="value")).values[:, 0].tolist() == [False, True, False]
    assert not monitor.warnings


def test_the_dataset_is_stored_as_it_is(tmp_path: Path) -> None:
    monitor = Monitor(network(), VIEWS, every=1, folder=tmp_path / "m", head="1")
    for step in range(3):
        monitor.step(step, loss=1.0)
    data = monitor.to_dataset()
    data.to_netcdf(tmp_path / "d.nc", engine="scipy")
    assert data.layer.values.tolist() == ["before 1", "embedding"]
    assert data.attrs["n_samples"] == 24
    assert json.loads(data.attrs["settings"])["kind"] == "monitor"
    assert data.rankme.attrs["long_name"] == "RankMe"
    assert np.allclose(data.bin, np.linspace(-0.9875, 0.9875, 80))
    assert data.rankme.dims == ("checkpoint", "layer", "bound")
    assert data.loss.dims == ("checkpoint", "bound")


def test_it_is_printed_in_one_line(tmp_path: Path) -> None:
    monitor = Monitor(network(), VIEWS, folder=tmp_path / "<m>")
    assert "no record yet" in str(monitor)
    monitor.step(0, loss=1.5)
    assert "\n" not in str(monitor)
    assert "step 0, 1 record in" in str(monitor)
    assert "mean loss 1.5" in str(monitor)
    assert "no collapse" in str(monitor)
    assert "&lt;m&gt;" in monitor._repr_html_()
    assert "<m>" not in monitor._repr_html_()


# --- nothing is disturbed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("amp", [False, True])
def test_training_is_the_same_to_the_bit(tmp_path: Path, amp: bool) -> None:
    alone, watched = network(), network()
    monitor = Monitor(watched, VIEWS, every=3, folder=tmp_path / "m", features="0", head="1")
    expected = trained(alone, 12, amp=amp)
    got = trained(watched, 12, monitor.step, amp=amp)
    assert len(records(tmp_path / "m")) == 5
    for here, there in zip(expected, got, strict=True):
        assert torch.equal(here, there)
    for name, tensor in alone.state_dict().items():
        assert torch.equal(tensor, watched.state_dict()[name]), name


class Restless(nn.Module):
    """It writes to a buffer at every pass, and draws random numbers in eval mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 5)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        torch.randn(3)
        return self.layer(x)


def test_buffers_random_numbers_modes_gradients_and_hooks_stay(tmp_path: Path) -> None:
    called = []
    net = nn.Sequential(Restless(), nn.utils.parametrizations.spectral_norm(nn.Linear(5, 5)), nn.BatchNorm1d(5))
    net[0].layer.eval()  # a frozen part in a module in train mode
    net[1].register_forward_hook(lambda *_: called.append(1))
    net[2].register_full_backward_hook(lambda *_: None)
    monitor = Monitor(net, VIEWS, every=1, folder=tmp_path / "m")
    net(VIEWS[0]).sum().backward()
    called.clear()

    def everything() -> list[Any]:
        state = [tensor.clone() for tensor in [*net.state_dict().values(), torch.get_rng_state()]]
        grads = [p.grad.clone() for p in net.parameters()]
        modes = [part.training for part in net.modules()]
        hooks = [len(part._forward_hooks) + len(part._backward_hooks) for part in net.modules()]
        flags = (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))
        return [state, grads, modes, hooks, flags]

    def same(here: Any, there: Any) -> bool:
        if isinstance(here, Tensor):
            return torch.equal(here, there)
        if isinstance(here, list):
            return all(same(a, b) for a, b in zip(here, there, strict=True))
        return bool(here == there)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        before = everything()
        assert monitor.step(0)
        assert same(before, everything())
    with torch.no_grad():
        assert monitor.step(1)
        assert not torch.is_grad_enabled()
    assert not called
    first, second = records(tmp_path / "m")  # in full precision, whatever autocast says
    assert first["layers"] == second["layers"]


def test_hooks_that_are_parts_of_the_module_run(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an old way that many models still use
        net = nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 4)))
    net(VIEWS[0])
    with torch.no_grad():
        net[0].weight = net[0].weight.detach()  # so that it can be copied
        net[0].weight_v.copy_(randn(4, 6, seed=3))
    Monitor(net, VIEWS, folder=tmp_path / "m").step(0)
    expected = metrics.spread(net(VIEWS[0]))
    assert records(tmp_path / "m")[0]["layers"]["embedding"]["spread"] == pytest.approx(expected, rel=1e-4)


def wrapped_in_ddp(net: nn.Module) -> nn.Module:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    return nn.parallel.DistributedDataParallel(net)


# They import torch's compiler, which takes seconds.
COMPILED = [pytest.param(it, marks=pytest.mark.slow) for it in (wrapped_in_ddp, torch.compile, "a compiled part")]


@pytest.mark.parametrize("wrap", [nn.DataParallel, *COMPILED])
def test_the_module_below_its_wrappers_is_watched(tmp_path: Path, wrap: Any) -> None:
    net = network()
    Monitor(net, VIEWS, folder=tmp_path / "plain").step(0)
    try:
        if callable(wrap):
            outer = wrap(net)
        else:
            net[0] = torch.compile(net[0])
            outer = net
        monitor = Monitor(outer, VIEWS, folder=tmp_path / "plain")
        monitor.step(1, now=True)
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    first, second = records(tmp_path / "plain")
    assert first["layers"] == second["layers"]


def test_of_several_processes_the_first_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monitor = Monitor(network(), VIEWS, folder=tmp_path / "m")
    assert not monitor.step(0, loss=1.0)
    assert not (tmp_path / "m").exists()


def test_the_graph_of_a_loss_is_not_kept(tmp_path: Path) -> None:
    net = network()
    monitor = Monitor(net, VIEWS, folder=tmp_path / "m")
    monitor.step(0)
    output = net(VIEWS[0])
    kept = weakref.ref(output)
    monitor.step(1, loss=output.square().mean())
    del output
    gc.collect()
    assert kept() is None


def test_memory_does_not_grow(tmp_path: Path) -> None:
    monitor = Monitor(network(), tuple(x[:8] for x in VIEWS), every=100, folder=tmp_path / "m")
    loss = torch.tensor(1.0)

    def run(start: int, stop: int) -> int:
        for step in range(start, stop):
            monitor.step(step, loss=loss)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = run(0, 1000)
        after = run(1000, 4000)
    finally:
        tracemalloc.stop()
    assert after - before < 20_000  # a step that is kept takes more than 7 bytes, a record that is kept over 1000
    assert len(records(tmp_path / "m")) == 40


# --- killed at any moment -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("five") / "m"
    monitor = Monitor(network(), VIEWS, every=10, folder=folder)
    for step in range(0, 50, 10):
        monitor.step(step, loss=float(step))
    return folder


@IN_FOLDER
@given(at=integers(0, 10**6))
def test_cut_at_any_byte_all_whole_records_are_read_and_the_run_goes_on(tmp_path: Path, five: Path, at: int) -> None:
    content = (five / RECORDS_FILE).read_bytes()
    first = content.index(b"\n")
    cut = content[: first + at % (len(content) - first)]
    folder = tmp_path / f"cut{at}"
    folder.mkdir(exist_ok=True)
    for path in five.iterdir():
        (folder / path.name).write_bytes(cut if path.name == RECORDS_FILE else path.read_bytes())
    whole = [record for record in records(five) if json.dumps(record, separators=(",", ":")).encode() in cut]
    assert records(folder) == whole
    monitor = Monitor(network(), VIEWS, every=10, folder=folder)
    for step in range(5, 60, 5):
        monitor.step(step)
    assert [record["step"] for record in records(folder)] == list(range(0, 60, 10))


def test_a_process_that_is_killed_leaves_whole_records(tmp_path: Path) -> None:
    program = (
        "import sys, runpy; MonitorFolder = runpy.run_path(sys.argv[2])['MonitorFolder']\n"  # not the whole package
        "store = MonitorFolder(sys.argv[1]); store.claim({'kind': 'monitor'})\n"
        "for step in range(10**6): store.append({'step': step, 'filling': 'x' * 5000})"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "m"), monitor_folder.__file__])
    path = tmp_path / "m" / RECORDS_FILE
    while not path.exists() or path.stat().st_size < 50_000:
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    steps = [record["step"] for record in records(tmp_path / "m")]
    assert len(steps) >= 9
    assert steps == list(range(len(steps)))


def test_a_damaged_line_in_the_middle_is_told(tmp_path: Path, five: Path) -> None:
    lines = (five / RECORDS_FILE).read_bytes().splitlines(keepends=True)
    store = MonitorFolder(tmp_path)
    (tmp_path / RECORDS_FILE).write_bytes(b"".join([lines[0], lines[1][:50] + b"\n", lines[2]]))
    with pytest.raises(StoreError, match=r"line 2 of .* is damaged"):
        list(store.records())


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    def run(folder: Path, steps: range, net: nn.Module) -> None:
        monitor = Monitor(net, VIEWS, every=10, folder=folder)
        for step in steps:
            monitor.step(step)

    torch_net = network()
    run(tmp_path / "once", range(50), torch_net)
    for steps in (range(25), range(15, 35), range(31, 50)):  # from checkpoints behind and after the last record
        run(tmp_path / "thrice", steps, torch_net)
    assert records(tmp_path / "thrice") == records(tmp_path / "once")


def test_a_run_that_begins_anew_is_another_run(tmp_path: Path) -> None:
    for seed in (0, 1):  # killed right after its first record: that is all there is to lose
        Monitor(network(seed), VIEWS, every=5, folder=tmp_path / "m").step(0)
    Monitor(network(1), VIEWS, folder=tmp_path / "other").step(0)
    assert records(tmp_path / "m") == records(tmp_path / "other")
    monitor = Monitor(network(1), VIEWS, every=5, folder=tmp_path / "m")
    monitor.step(0)
    monitor.step(5)
    with pytest.raises(StoreError, match="holds a run up to step 5, and this one begins at step 0; choose another"):
        Monitor(network(1), VIEWS, every=5, folder=tmp_path / "m").step(0)
    assert len(records(tmp_path / "m")) == 2


def test_two_runs_in_one_folder_are_told_apart(tmp_path: Path) -> None:
    one = Monitor(network(), VIEWS, every=5, folder=tmp_path / "m")
    one.step(0)
    other = Monitor(network(), VIEWS, every=5, folder=tmp_path / "m")
    other.step(5)
    with pytest.raises(StoreError, match="another process writes to"):
        one.step(5)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"encoder": network(width=10)}, "another encoder"),
        ({"probe_views": (VIEWS[1], VIEWS[0])}, "another probe set"),
        ({"labels": torch.arange(24)}, "another labelling"),
        ({"temperature": 0.1}, r"another temperature \(None there, 0.1 here\)"),
        ({"features": "0"}, "another features"),
    ],
)
def test_the_folder_of_another_run_is_refused(tmp_path: Path, changed: dict[str, Any], told: str) -> None:
    options = {"encoder": network(), "probe_views": VIEWS, "folder": tmp_path / "m"}
    Monitor(**options).step(0)
    Monitor(**options | {"every": 7, "encoder": network(1)})  # as often as one likes, with whatever weights
    with pytest.raises(StoreError, match=told):
        Monitor(**options | changed)


def test_a_folder_of_something_else_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("do not touch")
    for folder in (tmp_path, tmp_path / "thesis.tex"):
        with pytest.raises(StoreError, match="holds no records of a monitor; choose another folder"):
            Monitor(network(), VIEWS, folder=folder)
    with pytest.raises(StoreError, match="holds no records of a monitor"):
        read_monitor(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("content", ["{", "[1]", "{}", '{"spec": {"kind": "monitor"}, "sha256": "0"}'])
def test_a_damaged_spec_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "spec.json").write_text(content)
    with pytest.raises(StoreError, match="changed or damaged"):
        Monitor(network(), VIEWS, folder=tmp_path)


def test_a_missing_start_is_told(tmp_path: Path) -> None:
    Monitor(network(), VIEWS, folder=tmp_path / "m").step(0)
    (tmp_path / "m" / "start.npz").write_bytes(b"PK")
    with pytest.raises(StoreError, match="missing or damaged"):
        Monitor(network(), VIEWS, folder=tmp_path / "m")


# --- collapse -------------------------------------------------------------------------------------------------------


def test_a_healthy_run_warns_of_nothing(tmp_path: Path) -> None:
    net = network()
    monitor = Monitor(net, VIEWS, every=5, folder=tmp_path / "m", features="0")
    trained(net, 60, monitor.step)
    assert monitor.warnings == ()
    assert set(monitor.to_dataset().collapse.values.ravel()) == {"none"}


def attract(a: Tensor, b: Tensor) -> Tensor:
    """Nothing repels: all samples end at one point."""
    return (torch.cat([a, b]) - torch.tensor([3.0, 2.0, 1.0, 1.0])).square().sum(1).mean()


def flatten(a: Tensor, b: Tensor) -> Tensor:
    """Two of three dimensions, and whatever the third one shows, go."""
    return torch.cat([a, b])[:, 1:].square().sum(1).mean() + (a[:, 0].std() - 2).square()


@pytest.mark.parametrize(("loss_of", "kind"), [(attract, "complete"), (flatten, "dimensional")])
def test_a_planted_collapse_is_told_once_at_the_moment_it_begins(
    tmp_path: Path, loss_of: Callable[[Tensor, Tensor], Tensor], kind: str
) -> None:
    net = network()
    monitor = Monitor(net, VIEWS, every=10, folder=tmp_path / "m")
    monitor.step(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trained(net, 200, monitor.step, loss_of)
    (told,) = [str(it.message) for it in caught if issubclass(it.category, CollapseWarning)]
    assert monitor.warnings == (told,)
    data = monitor.to_dataset()
    collapsed = data.collapse.sel(layer="embedding").values == kind
    begin = int(data.step[int(np.argmax(collapsed))])
    assert told.startswith(f"{kind} collapse of 'embedding' at step {begin}: centred entropy rank")
    assert "n = 24, d = 4; " in told
    assert told in json.loads(data.attrs["notes"])
    assert f"{kind} collapse" in str(monitor)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # resumed: it was told already
        resumed = Monitor(net, VIEWS, every=10, folder=tmp_path / "m")
        resumed.step(210)
    assert resumed.warnings == (told,)


def test_what_rose_from_nothing_and_falls_back_is_a_collapse(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(6, 4))
    monitor = Monitor(net, VIEWS, every=1, folder=tmp_path / "m")
    with torch.no_grad():
        net[0].weight.copy_(randn(4, 6, seed=4))
    for step, length in enumerate((0.03, 3.0, 0.1, 0.03)):  # of the signal beside the bias
        with torch.no_grad():
            net[0].bias.fill_(1 / length)
        if step == 2:
            monitor = Monitor(net, VIEWS, every=1, folder=tmp_path / "m")  # resumed: it knows how far it had risen
        if step < 3:
            monitor.step(step)
    spread = monitor.to_dataset().spread.sel(bound="value", layer="embedding").values
    assert spread[0] < 0.01 < spread[1]
    with pytest.warns(CollapseWarning, match=f"complete collapse .* spread .* .highest so far {spread[1]:.3g}"):
        monitor.step(3)


def test_a_warning_that_is_an_error_comes_after_the_record(tmp_path: Path) -> None:
    net = network()
    monitor = Monitor(net, VIEWS, every=5, folder=tmp_path / "m")
    monitor.step(0)
    with torch.no_grad():
        net[1].weight.zero_()
    with pytest.raises(CollapseWarning, match="complete"):
        monitor.step(5)
    assert len(records(tmp_path / "m")) == 2
    monitor.step(10)


@given(
    spread=floats(0, 1), first=floats(1e-3, 1), rank=floats(1, 60), first_rank=floats(1, 60), ratio=floats(1, 60),
    n=integers(2, 300), d=integers(1, 300),
)  # fmt: skip
def test_the_two_rules_of_collapse(
    spread: float, first: float, rank: float, first_rank: float, ratio: float, n: int, d: int
) -> None:
    now = {"spread": spread, "centered_rank": rank, "participation_ratio": ratio}
    start = {"spread": first, "centered_rank": first_rank, "participation_ratio": ratio}
    found = collapse_of(now, start, n=n, d=d)
    most = min(n - 1, d)
    complete = spread < 1e-12 or (spread < 0.01 and spread < first / 2)
    few = most > 1 and ((rank < max(1.5, most / 10) and rank < first_rank / 2) or ratio < 1.1)
    assert found == ("complete" if complete else "dimensional" if few else "none")
    if ratio >= 1.1 and first >= 1e-12:
        assert collapse_of(start, start, n=n, d=d) == "none"  # nothing begins collapsed by comparison with itself


@pytest.mark.parametrize("missing", [{}, {"spread": np.nan, "centered_rank": np.nan, "participation_ratio": np.nan}])
def test_missing_numbers_are_no_collapse(missing: dict[str, float]) -> None:
    assert collapse_of(missing, {}, n=20, d=20) == "none"


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_embeddings_that_are_all_equal_are_complete_collapse(tmp_path: Path, value: float) -> None:
    net = nn.Sequential(nn.Linear(6, 4))
    with torch.no_grad():
        net[0].weight.zero_()
        net[0].bias.fill_(value)
    monitor = Monitor(net, VIEWS, folder=tmp_path / "m")
    with pytest.warns(CollapseWarning, match="complete collapse"):
        monitor.step(0)


# --- its own measures -----------------------------------------------------------------------------------------------


@given(seed=integers(0, 2**16), n=integers(3, 12), d=integers(1, 14), other=integers(1, 14))
def test_linear_cka_is_the_alignment_of_centred_kernels(seed: int, n: int, d: int, other: int) -> None:
    a, b = randn(n, d, seed=seed), randn(n, other, seed=seed + 1) + 3
    assert linear_cka(a, b) == pytest.approx(cka(a @ a.T, b @ b.T), rel=1e-9, abs=1e-12)
    rotation = torch.linalg.qr(randn(d, d, seed=seed + 2)).Q
    assert linear_cka(1e3 * a @ rotation + 5, a) == pytest.approx(1)


def test_linear_cka_of_equal_rows_is_not_a_number() -> None:
    assert np.isnan(linear_cka(torch.ones(5, 3), randn(5, 3)))


@given(seed=integers(0, 2**16), n=integers(3, 30), n_classes=integers(1, 4))
def test_leave_one_out_votes_of_the_others(seed: int, n: int, n_classes: int) -> None:
    z = randn(n, 3, seed=seed)
    labels = torch.randint(n_classes, (n,), generator=generator(seed))
    unit = (z / z.norm(dim=1, keepdim=True)).numpy()
    right = 0
    for i in range(n):
        order = [j for j in np.argsort(-unit @ unit[i]) if j != i][:20]
        votes = [(sum(int(labels[j] == c) for j in order), c) for c in range(n_classes)]
        most = max(votes)[0]
        tied = [c for count, c in votes if count == most]
        right += int(labels[i]) in tied if len(tied) == 1 else 0
        if len(tied) > 1:  # the nearer neighbours decide
            nearness = {c: sum(20 - k for k, j in enumerate(order) if int(labels[j]) == c) for c in tied}
            best = max(nearness.values())
            winners = [c for c, value in nearness.items() if value == best]
            right += int(labels[i]) == winners[0]
    assert leave_one_out_accuracy(z, labels) == pytest.approx(right / n)


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"probe_views": tuple(x[:1] for x in VIEWS)}, "two views of at least 2 samples"),
        ({"probe_views": (VIEWS[0],)}, "two views of at least 2 samples"),
        ({"probe_views": (VIEWS[0], VIEWS[1][:-1])}, "xa and xb must have one length, got 24 and 23"),
        ({"probe_views": (VIEWS[0], VIEWS[1][:, :-1])}, "xb must have the shape of xa"),
        ({"probe_views": (VIEWS[0], VIEWS[1] / 0)}, "probe_views holds NaN or infinite values"),
        ({"probe_views": (torch.zeros(3), torch.zeros(3))}, "probe_views must be tensors"),
        ({"every": 0}, "every must be a whole number of at least 1, got 0"),
        ({"every": 2.5}, "every must be a whole number"),
        ({"labels": torch.arange(5)}, "labels must be one whole number for each of 24 samples"),
        ({"labels": torch.rand(24)}, "labels must be one whole number"),
        ({"labels": object()}, "labels must be one whole number"),
        ({"temperature": 0.0}, "temperature must be a positive number"),
        ({"loggers": [print]}, r"loggers\[0\].write must be a function"),
        ({"encoder": print}, "encoder must be Module"),
        ({"encoder": nn.Sequential(nn.LazyLinear(3))}, "lazy layers without weights; call it once"),
        ({"features": "backbone"}, "features='backbone' names no submodule"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(tmp_path: Path, changed: dict[str, Any], told: str) -> None:
    options: dict[str, Any] = {"encoder": network(), "probe_views": VIEWS, "folder": tmp_path / "m"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch: lazy modules are new
        with pytest.raises(InputError, match=told):
            Monitor(**options | changed)
    assert not (tmp_path / "m").exists()


def test_steps_and_losses_that_cannot_be_are_refused(tmp_path: Path) -> None:
    monitor = Monitor(network(), VIEWS, folder=tmp_path / "m")
    monitor.step(3)
    for step, told in ((2, "step must not go backwards, got 2 after 3"), (-1, "step must be"), (0.5, "step must be")):
        with pytest.raises(InputError, match=told):
            monitor.step(step)  # type: ignore[arg-type]
    for loss in (torch.zeros(2), "low", torch.zeros((), dtype=torch.complex64)):
        with pytest.raises(InputError, match="loss must be one number"):
            monitor.step(4, loss=loss)  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="holds no whole record yet"):
        Monitor(network(), VIEWS, folder=tmp_path / "empty").to_dataset()


def test_weights_that_are_spread_over_processes_are_refused(tmp_path: Path) -> None:
    class FullyShardedDataParallel(nn.Sequential):
        pass

    with pytest.raises(InputError, match="sharded over processes"):
        Monitor(FullyShardedDataParallel(nn.Linear(6, 2)), VIEWS, folder=tmp_path / "m")
