from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

from kontrast.data import load, make_pairs, parse_view
from kontrast.losses import ContrastiveLoss, Cosine, Linear
from kontrast.nets import MLP
from kontrast.runs import Store, generator_for
from kontrast.study import EMBEDDINGS, OF_THE_INPUT, StudySpec, kernel, measure_cell, pca, prepare, run_study
from kontrast.study.cell import draw_cell
from kontrast.study.kernel import MAX_DENSE
from tests.reference import ntk
from tests.runs.kills import die_at, in_a_fork

TINY = StudySpec(
    data="digits",
    losses=(),
    views="crop:0.5,1.0",
    n_samples=6,
    d_out=3,
    pca_d_out=3,
    pca_steps=12,
    widths=(8, 32),
    n_seeds=2,
    n_steps=12,
    n_probe_samples=60,
)
TINY_MAP = {"losses": ("nt_xent", "dot"), "rates": (0.3, 3.0), "max_steps": 8, "batch_size": 8}
NAMES = [quantity.name for quantity in kernel.QUANTITIES]
PCA_NAMES = [quantity.name for quantity in pca.QUANTITIES]


@pytest.fixture(scope="module")
def cell() -> xr.Dataset:
    return measure_cell(prepare(TINY), 8, 1)


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
    assert set(NAMES) < set(cell.data_vars)
    assert cell.similarity.values.tolist() == ["cosine", "dot"]
    assert int(cell.width) == 8
    assert int(cell.seed) == 1
    assert cell.diverged.values.tolist() == [0, 0]
    assert cell.stopped_at.values.tolist() == [12, 12]
    assert np.isfinite(cell[NAMES].to_dataarray()).all()


def test_a_cell_holds_the_pca_view_and_the_probes(cell: xr.Dataset) -> None:
    assert set(PCA_NAMES) < set(cell.data_vars)
    assert np.isfinite(cell[PCA_NAMES].to_dataarray()).all()
    assert cell.pca_angle_start.dims == ("pca_step",)
    assert cell.embedding.values.tolist() == list(EMBEDDINGS)
    assert ((cell.probe_accuracy >= 0) & (cell.probe_accuracy <= 1)).all()
    assert int(cell.probe_overlap) == 0
    assert int(cell.n_classes) == 10
    sizes = dict(zip(cell.embedding.values.tolist(), cell.probe_dimension.values.tolist(), strict=True))
    assert sizes == dict.fromkeys(EMBEDDINGS, 3) | {"pixels": 64, "chance": 0}
    scores = dict(zip(cell.embedding.values.tolist(), cell.probe_accuracy.values.tolist(), strict=True))
    assert scores["pixels"] > 0.75 > scores["random"] > scores["chance"]


def test_probes_of_the_input_do_not_depend_on_the_width(cell: xr.Dataset) -> None:
    narrow, wide = cell.probe_accuracy, measure_cell(prepare(TINY), 32, 1).probe_accuracy
    for name in EMBEDDINGS:
        same = float(narrow.sel(embedding=name)) == float(wide.sel(embedding=name))
        assert same == (name in OF_THE_INPUT), name


@pytest.fixture(scope="module")
def diverged() -> xr.Dataset:
    return measure_cell(prepare(dataclasses.replace(TINY, learning_rates=(0.1, 5.0), n_steps=60)), 8, 0)


def test_a_diverged_run_has_no_accuracy(diverged: xr.Dataset) -> None:
    scores = diverged.probe_accuracy
    assert math.isnan(float(scores.sel(embedding="dot")))
    assert np.isfinite(scores.sel(embedding="cosine"))


def test_what_the_spec_leaves_out_is_not_measured() -> None:
    bare = measure_cell(prepare(dataclasses.replace(TINY, parametrization="standard", n_probe_samples=0)), 8, 0)
    assert not set(PCA_NAMES) & set(bare.data_vars)
    assert "embedding" not in bare.coords
    assert int(bare.n_classes) == 10
    standard = measure_cell(prepare(dataclasses.replace(TINY, parametrization="standard")), 8, 0)
    assert standard.embedding.values.tolist() == ["cosine", "dot", "random", "pixels", "pixel-pca", "chance"]


def test_a_diverged_run_is_recorded_with_its_step_and_never_filled_in(diverged: xr.Dataset) -> None:
    dot = diverged.sel(similarity="dot")
    assert int(dot.diverged) == 1
    assert 0 < int(dot.stopped_at) < 60
    whole = np.isfinite(dot.ntk_drift_max.values)
    assert (whole == (dot.step.values < int(dot.stopped_at))).all()
    assert np.isfinite(dot.loss.values[whole]).all()


def test_widths_share_their_samples_and_seeds_do_not(cell: xr.Dataset) -> None:
    spec = prepare(TINY)
    narrow, wide, other = (draw_cell(spec, width, seed) for width, seed in ((8, 1), (32, 1), (8, 0)))
    torch.testing.assert_close(narrow.pairs.x, wide.pairs.x, rtol=0, atol=0)
    assert not torch.equal(narrow.pairs.x, other.pairs.x)
    xr.testing.assert_identical(measure_cell(spec, 8, 1), cell)


def test_a_kernel_too_large_to_hold_gives_the_same_numbers(monkeypatch: pytest.MonkeyPatch, cell: xr.Dataset) -> None:
    assert MAX_DENSE >= 12 * 3
    monkeypatch.setattr("kontrast.study.kernel.MAX_DENSE", 0)
    free = kernel.measure(draw_cell(prepare(TINY), 8, 1))
    xr.testing.assert_allclose(free, cell[list(free.data_vars)].drop_vars(["width", "seed"]), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    "change",
    [
        {"depth": 3, "activation": "tanh"},
        {"link": "softmax", "temperature": 0.5, "negatives": "all"},
        {"link": "log_softmax", "n_positives": 2, "negatives": 3},
        {"parametrization": "orthogonal"},
        {"parametrization": "standard"},
        {"parametrization": "mup", "depth": 2},
        {"data": "moons", "views": "noise:0.1", "similarities": ("cosine",)},
        {"dtype": "float32"},
        {"negatives": 0, "similarities": ("cosine",)},
    ],
    ids=str,
)
def test_every_kind_of_study_runs(change: dict[str, object]) -> None:
    result = kernel.measure(draw_cell(prepare(dataclasses.replace(TINY, **change)), 8, 0))
    assert np.isfinite(result[NAMES].to_dataarray()).all()
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
        {"views": "noise:0.1"},
        {"n_samples": 7},
        {"learning_rates": (0.2, 0.02)},
        {"n_ntk_points": 3},
    ],
    ids=str,
)
def test_every_choice_reaches_the_numbers(change: dict[str, object], cell: xr.Dataset) -> None:
    def measured(**fields: object) -> xr.Dataset:
        return kernel.measure(draw_cell(prepare(dataclasses.replace(TINY, **fields)), 8, 1))

    base = cell if "temperature" not in change else measured(link="softmax")
    other = measured(**change)
    assert not np.allclose(other.ntk_drift_max, base.ntk_drift_max, rtol=1e-6)


def test_float32_agrees_with_float64(cell: xr.Dataset) -> None:
    single = kernel.measure(draw_cell(prepare(dataclasses.replace(TINY, dtype="float32")), 8, 1))
    np.testing.assert_allclose(single.ntk_drift_max, cell.ntk_drift_max, rtol=2e-2)
    np.testing.assert_allclose(single.loss, cell.loss, rtol=1e-4, atol=1e-5)


def cheap(spec: StudySpec, width: int, seeds: Sequence[int]) -> list[xr.Dataset]:
    """Cells that cost nothing."""
    return [
        xr.Dataset(
            {"loss": ("step", np.random.default_rng([width, seed]).standard_normal(4))},
            coords={"step": np.arange(4, dtype=np.int32), "width": width, "seed": seed},
        )
        for seed in seeds
    ]


@pytest.fixture
def cheap_spec(monkeypatch: pytest.MonkeyPatch) -> StudySpec:
    monkeypatch.setattr("kontrast.study.running.measure_cells", cheap)
    return dataclasses.replace(TINY, learning_rates=(0.1, 0.1), data_digest="made up")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_study_resumes_where_it_stopped(cheap_spec: StudySpec, tmp_path: Path) -> None:
    spec, started = cheap_spec, []
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
    assert contents(part) == contents(tmp_path / "whole")
    assert run_study(spec, part, workers=0, on_cell=again.append).identical(whole)
    assert len(again) == 3


def test_cells_that_are_measured_at_once_are_stored_and_reported_one_by_one(
    cheap_spec: StudySpec, tmp_path: Path
) -> None:
    """On a GPU the seeds of a width are trained together; cells that cost nothing need none."""
    run_study(cheap_spec, tmp_path / "one by one")
    on_a_gpu = dataclasses.replace(cheap_spec, losses=("nt_xent",), device="cuda")
    reported: list[str] = []
    run_study(on_a_gpu, tmp_path / "together", on_cell=reported.append)
    assert reported == cheap_spec.cells
    assert contents(tmp_path / "together" / "cells") == contents(tmp_path / "one by one" / "cells")
    Store(tmp_path / "together").path(reported[1]).unlink()
    run_study(on_a_gpu, tmp_path / "together", on_cell=reported.append)
    assert reported[4:] == [reported[1]]


def test_a_study_with_a_map_resumes_where_it_stopped(tmp_path: Path) -> None:
    """Nothing stands in for the cells here: a cell's map is the same whichever ran before it."""
    spec = prepare(dataclasses.replace(TINY, **TINY_MAP, data="moons", views=None, widths=(8,), n_probe_samples=0))
    whole = run_study(spec, tmp_path / "whole")
    assert {"map_gap", "map_accuracy", "ntk_drift_max", "pca_angle_start"} <= set(whole.data_vars)
    assert dict(whole.sizes)["panel"] == 2

    def stop(cell: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(spec, tmp_path / "part", on_cell=stop)
    again: list[str] = []
    run_study(spec, tmp_path / "part", on_cell=again.append)
    assert again == spec.cells[1:]
    assert contents(tmp_path / "part") == contents(tmp_path / "whole")


def test_a_kill_at_any_moment_loses_nothing_that_was_stored(cheap_spec: StudySpec, tmp_path: Path) -> None:
    """The process ends at its first, second, ... call that touches a file, until one run gets through."""
    spec = dataclasses.replace(cheap_spec, widths=(8,))
    run_study(spec, tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    for moment in itertools.count():
        folder = tmp_path / f"{moment}"
        killed = in_a_fork(lambda folder=folder, moment=moment: die_at(moment, lambda: run_study(spec, folder)))
        stored = Store(folder)
        kept = [cell for cell in spec.cells if stored.has(cell)]
        for cell in kept:  # what counts as stored is whole
            assert stored.path(cell).read_bytes() == whole[f"cells/{cell}.nc"]
        missing: list[list[str]] = []
        run_study(spec, folder, on_start=missing.append)
        assert missing == [[cell for cell in spec.cells if cell not in kept]]
        assert contents(folder) == whole
        if not killed:
            break
    assert moment >= 30  # every write of the spec, of two cells with their checksums, and of the result


def test_ten_kills_and_a_resume_give_the_same_bytes(cheap_spec: StudySpec, tmp_path: Path) -> None:
    """SIGKILL at random moments, in one folder."""
    run_study(cheap_spec, tmp_path / "whole")
    moments, folder = random.Random(2024), tmp_path / "killed"
    for _ in range(10):
        for path in sorted((folder / "cells").glob("*.sha256"))[:2]:  # so that there is something left to do
            path.unlink()
        in_a_fork(lambda: run_study(cheap_spec, folder), kill_after=moments.uniform(0, 0.05))
    run_study(cheap_spec, folder)
    assert contents(folder) == contents(tmp_path / "whole")


def test_processes_give_the_same_bytes_as_one(tmp_path: Path) -> None:
    rng, y = np.random.default_rng(0), np.arange(60) % 3
    np.savez(tmp_path / "blobs.npz", x=rng.normal(size=(3, 5))[y] + rng.normal(size=(60, 5)), y=y)
    fields = {"data": str(tmp_path / "blobs.npz"), "widths": (16,), "similarities": ("cosine",), "n_probe_samples": 20}
    spec = prepare(dataclasses.replace(TINY, **fields, **TINY_MAP, views="noise:0.1", label_curves=True))
    torch.set_num_threads(2)
    try:
        run_study(spec, tmp_path / "one")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    run_study(spec, tmp_path / "two", workers=2)
    for name in ["result.nc", *(f"cells/{cell}.nc" for cell in spec.cells)]:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_the_gap_is_nan_where_the_twin_overflowed() -> None:
    spec = prepare(dataclasses.replace(TINY, similarities=("dot",), learning_rates=(1e3,), n_steps=300))
    dot = kernel.measure(draw_cell(spec, 8, 0)).sel(similarity="dot")
    assert int(dot.diverged) == 1
    assert math.isnan(float(dot.kernel_gap[-1]))
