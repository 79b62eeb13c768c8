"""The preset of paper A gives the numbers that a study gave before it had a map."""

from __future__ import annotations

import pytest
import xarray as xr

from kontrast.study import StudySpec, kernel, pca, prepare, run_study

SMALL = {"data": "digits", "widths": (16, 32), "n_seeds": 2, "n_steps": 10}

# run_study(prepare(StudySpec(**SMALL)), folder) at commit 4a6877f, the last one without a map, where all other fields
# had the defaults of paper A: the cell of width 32 and seed 1 at its last step, each number as Python's repr writes it.
BEFORE = {
    "cosine": {
        "ntk_drift_max": 1.5139410178001889,
        "ntk_drift_fro": 0.01368976110740754,
        "kernel_gap": 0.000538884811113968,
        "output_move": 0.04680494687609256,
        "parameter_move": 0.13527604486595615,
        "loss": -0.1636889533434995,
        "kernel_loss": -0.16371053467119523,
        "effective_rank": 8.388380790626865,
        "spread": 0.23373877542993565,
    },
    "dot": {
        "ntk_drift_max": 16.72375517628776,
        "ntk_drift_fro": 0.5424386996828587,
        "kernel_gap": 0.1471241131085156,
        "output_move": 1.1796558971704292,
        "parameter_move": 3.6022254823544677,
        "loss": -111.64244172570012,
        "kernel_loss": -86.23174588223809,
        "effective_rank": 7.580322465596244,
        "spread": 0.11122609684695806,
    },
    "orthonormal": {
        "pca_angle_start": 0.999997812759322,
        "pca_angle_now": 0.9999907533419027,
        "pca_angle_frozen": 0.9999978308539331,
        "matrix_drift": 0.083554407198195,
        "frozen_gap": 0.04116421859782116,
        "eigengap": 0.0015955915579807015,
        "pca_loss": -0.21169148423692857,
    },
    "probes": {
        "pca": 0.838,
        "trained": 0.818,
        "iterative": 0.838,
        "cosine": 0.796,
        "dot": 0.8,
        "random": 0.806,
        "pixels": 0.956,
        "pixel-pca": 0.906,
        "chance": 0.102,
    },
}
# On the machine that made them they are the same to the last bit. Another one's BLAS adds in another order: without
# vector instructions 2e-14 was the largest difference.
CLOSE = 1e-12


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> xr.Dataset:
    spec = prepare(StudySpec.preset("paper-a", **SMALL))
    return run_study(spec, tmp_path_factory.mktemp("paper-a") / "s").sel(width=32, seed=1)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_the_kernel_section_is_what_it_was(cell: xr.Dataset, similarity: str) -> None:
    last = cell.sel(similarity=similarity, step=10)
    assert BEFORE[similarity].keys() == {it.name for it in kernel.QUANTITIES}
    assert {name: float(last[name]) for name in BEFORE[similarity]} == pytest.approx(
        BEFORE[similarity], rel=CLOSE, abs=0
    )
    assert float(last.learning_rate) == {"cosine": 0.1, "dot": 0.0167}[similarity]


def test_the_orthonormal_run_is_what_it_was(cell: xr.Dataset) -> None:
    last = cell.sel(pca_step=10)
    assert BEFORE["orthonormal"].keys() == {it.name for it in pca.QUANTITIES}
    assert {name: float(last[name]) for name in BEFORE["orthonormal"]} == pytest.approx(
        BEFORE["orthonormal"], rel=CLOSE, abs=0
    )


def test_the_probes_are_what_they_were(cell: xr.Dataset) -> None:
    scores = dict(zip(cell.embedding.values.tolist(), cell.probe_accuracy.values.tolist(), strict=True))
    assert scores == pytest.approx(BEFORE["probes"], rel=CLOSE, abs=0)


def test_there_is_no_map(cell: xr.Dataset) -> None:
    assert not [name for name in cell.variables if str(name).startswith("map_")]
