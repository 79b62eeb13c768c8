"""The orthonormal run arrives where nothing is chosen for it, and says beforehand where it cannot."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kontrast.data import pair_matrix
from kontrast.linalg import subspace_sines
from kontrast.options import in_options, options_of
from kontrast.pca import contrastive_pca, pair_features, train_pca_network
from kontrast.study import StudySpec, pca, prepare
from kontrast.study.arrival import ARRIVED, DOUBT, MOST_STEPS, two_digits
from kontrast.study.cell import draw_cell
from kontrast.study.draws import draw_net

DIGITS = StudySpec(
    data="digits", losses=(), n_samples=12, d_out=5, widths=(16, 64), n_seeds=2, n_steps=20, n_probe_samples=0
)


def twin_sines(spec: StudySpec) -> list[float]:
    """The twin's largest sine to PCA of C̃(0) at the end, in every cell."""
    d_out, n_steps, rate = spec.pca_run
    sines = []
    for width in spec.widths:
        for seed in range(spec.n_seeds):
            cell = draw_cell(spec, width, seed)
            net, pairs, delta = cell.net_with(d_out), cell.pairs, spec.delta
            run = train_pca_network(net, pairs, delta=delta, learning_rate=rate, n_steps=n_steps, freeze_hidden=True)
            there = contrastive_pca(pair_features(net, pairs.rows, delta=delta), pair_matrix(pairs), d_out).frame
            sines.append(float(subspace_sines(run.final_parameters["output"], there)[0]))
    return sines


def rows(folder: Path, x: np.ndarray) -> str:
    np.save(folder / "rows.npy", x)
    return str(folder / "rows.npy")


@pytest.mark.parametrize("data", ["digits", "moons", "mnist5k"])
def test_the_twin_arrives_in_every_cell_when_nothing_is_chosen(data: str) -> None:
    spec = prepare(dataclasses.replace(DIGITS, data=data))
    assert spec.pca_outlook == ""
    assert spec.pca_d_out is not None
    assert 1 <= spec.pca_d_out <= 5
    assert spec.pca_steps is not None
    assert spec.pca_steps <= MOST_STEPS
    assert max(twin_sines(spec)) < ARRIVED


def test_a_wide_network_arrives_with_its_twin() -> None:
    spec = prepare(dataclasses.replace(DIGITS, data="moons", widths=(512,)))
    for seed in range(2):
        measured = pca.measure(draw_cell(spec, 512, seed)).isel(pca_step=-1)
        assert float(measured.pca_angle_frozen) < ARRIVED
        assert float(measured.pca_angle_start) < 0.1
        assert int(measured.pca_step) == spec.pca_steps


def test_the_plan_is_that_of_a_slow_look_at_every_cell() -> None:
    """The same eigenvalues of C̃ itself, by hand: which gap is the largest in the worst cell, and how long a step is."""
    spec = prepare(DIGITS)
    gaps, spreads = [], []
    for width in spec.widths:
        for seed in range(spec.n_seeds):
            cell = draw_cell(spec, width, seed)
            phi = torch.relu(cell.pairs.rows @ cell.net.hidden[0].detach().T)
            phi = phi / (phi.norm(dim=1, keepdim=True) + spec.delta * width**0.5)
            S = torch.zeros(24, 24, dtype=torch.float64)
            for n in range(12):
                S[cell.pairs.positive[n, 0], cell.pairs.anchor[n]] += 1 / 12
                S[cell.pairs.negative[n, 0], cell.pairs.anchor[n]] -= 1 / 12
            values = torch.linalg.eigvalsh(phi.T @ (S + S.T) @ phi / 2).flip(0)
            spreads.append(float(values[0] - values[-1]))
            gaps.append(values[:5] - values[1:6])
    worst = torch.stack(gaps).amin(0)
    assert spec.pca_d_out == int(worst.argmax()) + 1
    assert spec.pca_learning_rate == pytest.approx(0.5 / max(spreads), rel=0.1)
    assert spec.pca_learning_rate <= 0.5 / max(spreads)


def test_three_clear_clusters_are_two_dimensions(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    centres = np.eye(3).repeat(10, axis=0)
    x = rows(tmp_path, centres + 0.01 * generator.standard_normal((30, 3)))
    spec = prepare(dataclasses.replace(DIGITS, data=x, n_samples=30, negatives="all", views="noise:0.01", n_seeds=3))
    assert spec.pca_d_out == 2
    assert max(twin_sines(spec)) < ARRIVED


def test_what_is_given_is_kept_and_prepared_specs_stay_as_they_are() -> None:
    given = {"pca_d_out": 3, "pca_steps": 7, "pca_learning_rate": 0.5}
    for changed in ({}, *({name: value} for name, value in given.items()), given):
        spec = prepare(dataclasses.replace(DIGITS, **changed))
        assert {name: getattr(spec, name) for name in changed} == changed
        assert prepare(spec) == spec
        assert None not in spec.pca_run


def test_more_outputs_than_the_study_has_are_drawn_for_the_orthonormal_run() -> None:
    spec = prepare(dataclasses.replace(DIGITS, d_out=2, pca_d_out=6, pca_steps=3, widths=(16,)))
    cell = draw_cell(spec, 16, 0)
    pca.measure(cell)
    x = cell.pairs.rows
    assert [cell.embeddings[name](x).shape[1] for name in ("pca", "trained", "random", "pixel-pca")] == [6, 6, 6, 2]
    assert torch.equal(cell.net_with(6).hidden[0], cell.net.hidden[0])
    assert torch.equal(cell.net_with(1).output, cell.net.output[:, :1])
    assert cell.net_with(2) is cell.net


CANNOT: list[tuple[dict[str, Any], str]] = [
    ({"pca_steps": 2}, r"the eigengap is [\d.]+ and needs about \d+ steps, 2 are given; with pca_steps=\d+ it arrives"),
    ({"pca_d_out": 5, "pca_steps": 100}, r"at dimension 5 the eigengap .* with pca_d_out=\d it takes \d\d?$"),
    ({"pca_learning_rate": 1e-3, "pca_steps": 200}, r"; with pca_learning_rate=[\d.]+ it takes \d+$"),
    ({"pca_learning_rate": 1e3}, r"steps of 1000 overshoot where the eigenvalues .*; with pca_learning_rate=[\d.]+"),
]


@pytest.mark.parametrize("given, words", CANNOT, ids=[str(case[0]) for case in CANNOT])
def test_a_setting_that_cannot_arrive_says_so_and_its_advice_is_true(given: dict[str, Any], words: str) -> None:
    spec = prepare(dataclasses.replace(DIGITS, **given))
    assert spec.pca_outlook.startswith(DOUBT)
    assert re.search(words, spec.pca_outlook), spec.pca_outlook
    assert "\n" not in spec.pca_outlook
    assert max(twin_sines(spec)) > ARRIVED
    for advice in spec.pca_outlook.rpartition("; ")[2].split(", or "):
        kinds = {"pca_d_out": int, "pca_steps": int, "pca_learning_rate": float}
        changes = {name: kinds[name](value) for name, value in re.findall(r"(pca_\w+)=([\d.]+)", advice)}
        assert changes
        better = prepare(dataclasses.replace(spec, **changes))
        assert better.pca_outlook == ""
        assert max(twin_sines(better)) < ARRIVED


def test_the_command_line_says_it_in_its_own_options() -> None:
    spec = prepare(dataclasses.replace(DIGITS, pca_d_out=5, pca_steps=100))
    said = in_options(spec.pca_outlook, options_of("kontrast.study", "StudySpec"))
    assert re.search(r"with --pca-d-out \d it takes \d+$", said)


def test_data_without_an_eigengap_are_out_of_reach_and_no_advice_is_given(tmp_path: Path) -> None:
    """Rows that lie on one line through the origin: a first eigenvalue, then rounding, whatever the width."""
    line = np.linspace(1, 2, 40)[:, None] * np.ones((1, 4)) / 2
    tiny = dataclasses.replace(DIGITS, data=rows(tmp_path, line), views="noise:0.0", delta=1e-9, pca_d_out=3)
    spec = prepare(tiny)
    assert "the eigengap is zero to rounding, so that PCA is not unique" in spec.pca_outlook
    assert spec.pca_steps == spec.n_steps  # nothing is gained by more
    free = prepare(dataclasses.replace(tiny, pca_d_out=None))
    assert free.pca_d_out == 1


def test_what_takes_too_long_is_out_of_reach_and_no_advice_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """As data would be whose eigengaps are all tiny: here the bearable number of steps is."""
    needed = prepare(DIGITS).pca_steps
    monkeypatch.setattr("kontrast.study.arrival.MOST_STEPS", 5)
    spec = prepare(DIGITS)
    assert needed is not None
    assert needed > 2 * spec.n_steps  # twice what was asked for would be bearable
    assert spec.pca_steps == spec.n_steps
    assert re.search(
        r"20 are given; PCA is out of reach for these data: the eigenvalues of C̃ span 0\.\d+, and the largest eigengap "
        rf"up to dimension 5 is 0\.\d+ in one of the cells, which takes about {needed} steps$",
        spec.pca_outlook,
    )
    assert prepare(spec) == spec


def test_points_that_all_look_alike_are_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "kontrast.study.arrival.pair_features", lambda net, x, delta: torch.ones(len(x), net.width).double()
    )
    spec = prepare(DIGITS)
    assert spec.pca_run == (1, DIGITS.n_steps, 1.0)
    assert spec.pca_outlook == (
        f"{DOUBT}all points look alike to these networks (C̃ is zero to rounding); PCA is out of reach for these data"
    )


def test_many_points_are_planned_for_by_a_narrower_network(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def draw(*arguments: Any, **options: Any) -> Any:
        seen.append(arguments[2])
        return draw_net(*arguments, **options)

    whole = prepare(DIGITS)
    monkeypatch.setattr("kontrast.study.arrival.draw_net", draw)
    monkeypatch.setattr("kontrast.study.arrival.LARGEST_MATRIX", 20)  # below the 24 points
    spec = prepare(DIGITS)
    assert set(seen) == {16, 20}
    assert spec.pca_outlook == ""
    assert spec.pca_d_out is not None
    assert max(twin_sines(spec)) < ARRIVED
    assert whole.pca_steps is not None
    assert spec.pca_steps is not None
    assert spec.pca_steps > whole.pca_steps  # a stand-in's start is another one, which costs a factor


@pytest.mark.parametrize("value, up, down", [(173.2, 180, 170), (0.2999, 0.30, 0.29), (7.0, 7.0, 7.0), (0.0, 0.0, 0.0)])
def test_two_digits(value: float, up: float, down: float) -> None:
    assert (two_digits(value, math.ceil), two_digits(value, math.floor)) == (up, down)
    assert two_digits(math.inf, math.ceil) == math.inf
