from __future__ import annotations

import dataclasses
import math
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

from kontrast.data import load, make_pairs, parse_view
from kontrast.errors import KontrastError
from kontrast.losses import ContrastiveLoss, Cosine, Linear
from kontrast.nets import MLP
from kontrast.runs import Interrupted, Store, run_cells
from kontrast.runs.execute import THREAD_VARIABLES
from kontrast.runs.records import generator_for
from kontrast.study import EMBEDDINGS, MEASURES, OF_THE_INPUT, PCA_MEASURES, StudySpec, measure, prepare, run_study
from kontrast.study.study import MAX_DENSE
from tests.reference import ntk

TINY = StudySpec(data="digits", n_samples=6, d_out=3, widths=(8, 32), n_seeds=2, n_steps=12)


@pytest.fixture(scope="module")
def cell() -> xr.Dataset:
    return measure(prepare(TINY), 8, 1)


def test_a_cell_is_what_a_slow_hand_written_study_measures(cell: xr.Dataset) -> None:
    """The whole cell again with torch's own backward, the Jacobian kernel and an explicit loop."""
    spec, sampler = prepare(TINY), generator_for(1, 0)
    sample = load("digits", dtype=torch.float64).subsample(6, generator=sampler)
    pairs = make_pairs(sample.x, views=parse_view(spec.views), generator=sampler)
    net = MLP(64, 8, 3, generator=generator_for(1, 8), dtype=torch.float64)
    loss, x, probes = ContrastiveLoss(Cosine(0.01), Linear()), pairs.rows, sample.rows
    K_pool, K0, f0 = ntk.empirical_ntk(net, x, x), ntk.empirical_ntk(net, probes, probes), net(x).detach()
    start = torch.cat([p.detach().flatten() for p in net.parameters()])
    predicted = f0.clone()
    for step in range(1, 13):
        value = loss(*pairs.split(net(x))).total
        gradients = torch.autograd.grad(value, list(net.parameters()))
        with torch.no_grad():
            for p, g in zip(net.parameters(), gradients, strict=True):
                p -= 0.1 * g
        point = predicted.requires_grad_()
        (g,) = torch.autograd.grad(loss(*pairs.split(point)).total, point)
        predicted = (point - 0.1 * torch.einsum("xyij,yj->xi", K_pool, g)).detach()
        if step in (1, 5, 12):
            seen = cell.sel(similarity="cosine", step=step)
            change, f = ntk.empirical_ntk(net, probes, probes) - K0, net(x).detach()
            moved = torch.cat([p.detach().flatten() for p in net.parameters()]) - start
            expected = {
                "ntk_drift_max": change.abs().max(),
                "ntk_drift_fro": change.norm() / K0.norm(),
                "kernel_gap": (f - predicted).norm() / f.norm(),
                "output_move": (f - f0).norm() / f0.norm(),
                "parameter_move": moved.norm(),
                "loss": loss(*pairs.split(f)).total,
                "kernel_loss": loss(*pairs.split(predicted)).total,
            }
            for name, number in expected.items():
                assert float(seen[name]) == pytest.approx(float(number), rel=1e-7, abs=1e-12), name


def test_cells_have_one_shape_and_their_status(cell: xr.Dataset) -> None:
    assert set(MEASURES) < set(cell.data_vars)
    assert cell.similarity.values.tolist() == ["cosine", "dot"]
    assert int(cell.width) == 8
    assert int(cell.seed) == 1
    assert cell.diverged.values.tolist() == [0, 0]
    assert cell.stopped_at.values.tolist() == [12, 12]
    assert np.isfinite(cell[list(MEASURES)].to_dataarray()).all()


def test_a_cell_holds_the_pca_view_and_the_probes(cell: xr.Dataset) -> None:
    assert set(PCA_MEASURES) < set(cell.data_vars)
    assert np.isfinite(cell[list(PCA_MEASURES)].to_dataarray()).all()
    assert cell.pca_angle_start.dims == ("step",)
    assert cell.embedding.values.tolist() == list(EMBEDDINGS)
    assert ((cell.probe_accuracy >= 0) & (cell.probe_accuracy <= 1)).all()
    assert int(cell.probe_overlap) == 0
    assert int(cell.n_classes) == 10
    scores = dict(zip(cell.embedding.values.tolist(), cell.probe_accuracy.values.tolist(), strict=True))
    assert scores["pixels"] > 0.9 > scores["random"] > scores["chance"]


def test_probes_of_the_input_do_not_depend_on_the_width() -> None:
    spec = prepare(TINY)
    narrow, wide = (measure(spec, width, 0).probe_accuracy for width in (8, 32))
    for name in EMBEDDINGS:
        same = float(narrow.sel(embedding=name)) == float(wide.sel(embedding=name))
        assert same == (name in OF_THE_INPUT), name


def test_a_diverged_run_has_no_accuracy() -> None:
    spec = prepare(dataclasses.replace(TINY, learning_rates=(0.1, 5.0), n_steps=60))
    scores = measure(spec, 8, 0).probe_accuracy
    assert math.isnan(float(scores.sel(embedding="dot")))
    assert np.isfinite(scores.sel(embedding="cosine"))


def test_what_the_spec_leaves_out_is_not_measured() -> None:
    bare = measure(prepare(dataclasses.replace(TINY, parametrization="standard", n_probe_samples=0)), 8, 0)
    assert not set(PCA_MEASURES) & set(bare.data_vars)
    assert "embedding" not in bare.coords
    assert int(bare.n_classes) == 10
    standard = measure(prepare(dataclasses.replace(TINY, parametrization="standard")), 8, 0)
    assert standard.embedding.values.tolist() == ["cosine", "dot", "random", "pixels", "pixel-pca", "chance"]


def test_a_diverged_run_is_recorded_with_its_step_and_never_filled_in() -> None:
    spec = prepare(dataclasses.replace(TINY, learning_rates=(0.1, 5.0), n_steps=60))
    dot = measure(spec, 8, 0).sel(similarity="dot")
    assert int(dot.diverged) == 1
    assert 0 < int(dot.stopped_at) < 60
    whole = np.isfinite(dot.ntk_drift_max.values)
    assert (whole == (dot.step.values < int(dot.stopped_at))).all()
    assert np.isfinite(dot.loss.values[whole]).all()


def test_widths_share_their_samples_and_seeds_do_not() -> None:
    spec = prepare(TINY)
    assert float(measure(spec, 8, 0).loss[0, 0]) != float(measure(spec, 8, 1).loss[0, 0])
    xr.testing.assert_identical(measure(spec, 8, 0), measure(spec, 8, 0))


def test_a_kernel_too_large_to_hold_gives_the_same_numbers(monkeypatch: pytest.MonkeyPatch, cell: xr.Dataset) -> None:
    assert MAX_DENSE >= 12 * 3
    monkeypatch.setattr("kontrast.study.study.MAX_DENSE", 0)
    free = measure(prepare(TINY), 8, 1)
    xr.testing.assert_allclose(free, cell, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    "change",
    [
        {"depth": 3, "activation": "tanh"},
        {"link": "softmax", "temperature": 0.5, "negatives": "all"},
        {"link": "log_softmax", "n_positives": 2, "negatives": 3},
        {"parametrization": "orthogonal"},
        {"parametrization": "standard"},
        {"data": "moons", "similarities": ("cosine",)},
        {"dtype": "float32"},
        {"negatives": 0, "similarities": ("cosine",)},
    ],
    ids=str,
)
def test_every_kind_of_study_runs(change: dict[str, object]) -> None:
    result = measure(prepare(dataclasses.replace(TINY, **change)), 8, 0)
    assert np.isfinite(result[list(MEASURES)].to_dataarray()).all()
    assert float(result.output_move.sel(step=12).min()) > 0


@pytest.mark.parametrize(
    "change",
    [
        {"delta": 0.5},
        {"link": "softmax"},
        {"link": "softmax", "temperature": 0.3},
        {"activation": "tanh"},
        {"depth": 2},
        {"parametrization": "standard"},
        {"d_out": 4},
        {"n_positives": 2},
        {"negatives": 2},
        {"negatives": "all"},
        {"view": "noise:0.1"},
        {"n_samples": 7},
        {"learning_rates": (0.2, 0.02)},
        {"n_ntk_points": 3},
    ],
    ids=str,
)
def test_every_choice_reaches_the_numbers(change: dict[str, object], cell: xr.Dataset) -> None:
    base = cell if "temperature" not in change else measure(prepare(dataclasses.replace(TINY, link="softmax")), 8, 1)
    other = measure(prepare(dataclasses.replace(TINY, **change)), 8, 1)
    assert not np.allclose(other.ntk_drift_max, base.ntk_drift_max, rtol=1e-6)


def test_float32_agrees_with_float64(cell: xr.Dataset) -> None:
    single = measure(prepare(dataclasses.replace(TINY, dtype="float32")), 8, 1)
    np.testing.assert_allclose(single.ntk_drift_max, cell.ntk_drift_max, rtol=2e-2)
    np.testing.assert_allclose(single.loss, cell.loss, rtol=1e-4, atol=1e-5)


def test_a_study_resumes_where_it_stopped(tmp_path: Path) -> None:
    spec, started = prepare(TINY), []
    whole = run_study(spec, tmp_path / "whole", workers=0)
    part = tmp_path / "part"

    def stop_after_two(cell: str) -> None:
        started.append(cell)
        if len(started) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(spec, part, workers=0, on_cell=stop_after_two)
    store = Store(part)
    assert [store.has(cell) for cell in spec.cells] == [True, True, False, False]
    store.path(spec.cells[1]).write_bytes(b"damaged")
    again: list[str] = []
    resumed = run_study(spec, part, workers=0, on_cell=again.append)
    assert again == spec.cells[1:]
    xr.testing.assert_identical(resumed, whole)
    for cell in spec.cells:
        assert store.path(cell).read_bytes() == Store(tmp_path / "whole").path(cell).read_bytes()
    assert run_study(spec, part, workers=0, on_cell=again.append).identical(whole)
    assert len(again) == 3


def test_processes_give_the_same_bytes_as_one(tmp_path: Path) -> None:
    rng, y = np.random.default_rng(0), np.arange(60) % 3
    np.savez(tmp_path / "blobs.npz", x=rng.normal(size=(3, 5))[y] + rng.normal(size=(60, 5)), y=y)
    spec = prepare(dataclasses.replace(TINY, data=str(tmp_path / "blobs.npz"), label_curves=True))
    torch.set_num_threads(2)
    try:
        run_study(spec, tmp_path / "one")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    run_study(spec, tmp_path / "two", workers=2)
    for name in ["result.nc", *(f"cells/{cell}.nc" for cell in spec.cells)]:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_any_executor_will_do_and_a_failure_is_raised() -> None:
    done: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        run_cells(lambda cell: None, ["a", "b"], workers=1, on_done=done.append, executor=pool)
    assert sorted(done) == ["a", "b"]
    with pytest.raises(ZeroDivisionError), ThreadPoolExecutor(1) as pool:
        run_cells(lambda cell: 1 // 0, ["a"], workers=1, executor=pool)


def check_threads(cell: str) -> None:
    told = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    if set(told.values()) != {"1"} or torch.get_num_threads() != 1:
        raise AssertionError(f"{told}, torch has {torch.get_num_threads()} threads")


def test_workers_have_one_thread_and_the_environment_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    run_cells(check_threads, ["a"], workers=1)
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "MKL_NUM_THREADS" not in os.environ


def interrupt(cell: str) -> None:
    raise KeyboardInterrupt


def die(cell: str) -> None:
    os._exit(9)


def test_ctrl_c_is_told_apart_from_failure() -> None:
    with pytest.raises(Interrupted):
        run_cells(interrupt, ["a"], workers=0)


def test_a_worker_that_dies_says_what_to_do() -> None:
    with pytest.raises(KontrastError, match=r"a worker process died.*--workers 1"):
        run_cells(die, ["a", "b"], workers=1)


def test_the_gap_is_nan_where_the_twin_overflowed() -> None:
    spec = prepare(dataclasses.replace(TINY, similarities=("dot",), learning_rates=(1e3,), n_steps=300))
    dot = measure(spec, 8, 0).sel(similarity="dot")
    assert int(dot.diverged) == 1
    assert math.isnan(float(dot.kernel_gap[-1]))
