"""A study in one call, end to end, with a network of the user's own."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import kontrast
from kontrast.data import Dataset, load
from kontrast.errors import InputError
from kontrast.study import Regime
from tests.cases import randn

REGIMES = {regime.name.lower() for regime in Regime}
TINY = {"n_samples": 8, "n_seeds": 2, "max_steps": 8, "batch_size": 8, "rates": (0.1, 1.0), "map_samples": 64}


def small_conv(width: int, generator: torch.Generator) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, width, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(9 * width, 4))


def test_a_conv_net_from_start_to_finish(tmp_path: Path) -> None:
    digits = load("digits", image_shape=(8, 8)).subsample(200, generator=torch.Generator().manual_seed(0))
    found = kontrast.study.run(small_conv, digits, loss="nt_xent", widths=(2, 4), folder=tmp_path / "s", **TINY)
    assert found.map is not None
    assert found.verdict.startswith("NT-Xent at width 4 and rate ")
    assert [(cell.width, cell.rate) for cell in found.map.cells] == [(2, 0.1), (2, 1.0), (4, 0.1), (4, 1.0)]
    plain = found.as_dict()
    assert {cell["regime"] for cell in plain["map"]} <= REGIMES
    assert all(math.isfinite(cell["numbers"]["gap"]["mean"]) for cell in plain["map"])
    assert found.similarities == ()  # the full-batch sections know the built-in network alone
    again = kontrast.study.run(small_conv, digits, loss="nt_xent", widths=(2, 4), folder=tmp_path / "s", **TINY)
    assert again.as_dict() == plain


def test_a_network_without_a_width_is_mapped_over_its_steps() -> None:
    fields = {**TINY, "max_steps": 16}
    found = kontrast.study.run(lambda generator: small_conv(2, generator), "digits", loss="dot", **fields)
    assert found.map is not None
    assert found.map.axis == ("steps", "T")
    assert [cell.size for cell in found.map.cells] == [8, 8, 16, 16]
    assert all(cell.steps <= cell.size for cell in found.map.cells)
    assert " at 16 steps and rate " in found.verdict


@pytest.mark.parametrize("n", range(2, 8))
def test_a_few_samples_are_enough_or_refused_in_one_line(n: int) -> None:
    few = Dataset(randn(n, 3), None, "few")
    fields = {"n_samples": 2, "widths": (4,), "n_seeds": 1, "max_steps": 8, "rates": (0.1,), "d_out": 2}
    if n < 6:
        with pytest.raises(InputError, match=rf"the map needs 6 samples, .* has {n}; give more, or losses='none'"):
            kontrast.study.run(None, few, **fields)
    else:
        assert "without labels to probe no gain can be told" in kontrast.study.run(None, few, **fields).verdict


def test_the_map_alone_needs_no_more_samples_than_it_has() -> None:
    few, fields = Dataset(randn(10, 3), None, "few"), {"widths": (4,), "n_seeds": 1, "max_steps": 8, "rates": (0.1,)}
    assert kontrast.study.run(None, few, d_out=2, full_batch=False, **fields).map is not None
    with pytest.raises(InputError, match=r"asked for 50 samples but .* has 10"):
        kontrast.study.run(None, few, d_out=2, **fields)


def test_bad_input_is_refused_before_any_work() -> None:
    for fields, words in (
        ({"loss": "nt-xent"}, "no loss of two views is called 'nt-xent'; did you mean 'nt_xent'"),
        ({"budget": "soon"}, "budget must be a time such as 90s, 2m or 1h, got 'soon'"),
        ({"batch_size": 10**6}, "a batch_size of 1000000 needs as many samples"),
        ({"map_samples": 10**6}, "asked for 1000000 map_samples but"),
        ({"max_steps": 4}, "max_steps must be a whole number of at least 8, got 4"),
        ({"rates": (0.0,)}, "rates must be a positive number"),
        ({"setting": (3,)}, "setting must be a width and a rate"),
        (
            {"setting": (3, 0.1)},
            r"setting \(3, 0.1\) lies outside of the map, whose widths are 2 and whose rates are 0.1",
        ),
        ({"setting": (1, 0.1)}, r"setting \(1, 0.1\) lies outside of the map"),
        ({"setting": (2.01, 0.1)}, r"setting \(2.01, 0.1\) lies outside of the map"),
        ({"setting": (2, 0.001)}, r"setting \(2, 0.001\) lies outside of the map"),
        ({"setting": (2, 50)}, r"setting \(2, 50\) lies outside of the map, .*; give widths and rates that reach it"),
    ):
        with pytest.raises(InputError, match=words):
            kontrast.study.run(small_conv, "digits", **{**TINY, "widths": (2,), **fields})
