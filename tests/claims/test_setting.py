"""Samples and networks depend on what they should, and on nothing else."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from kontrast.claims import Setting
from kontrast.claims.setting import generator, geometric, largest, seed_mean, smallest, sweep, width_law
from kontrast.errors import DataError, InputError

QUICK = Setting(scale="quick")


def test_the_same_seed_gives_the_same_samples_and_weights() -> None:
    again = Setting(scale="full")
    assert torch.equal(QUICK.pairs(5, seed=1).x, again.pairs(5, seed=1).x)
    assert not torch.equal(QUICK.pairs(5, seed=1).x, again.pairs(5, seed=2).x)
    x = QUICK.pairs(5, seed=1).x
    assert torch.equal(QUICK.net(x, 8, 2, seed=1).output, again.net(x, 8, 2, seed=1).output)
    assert not torch.equal(QUICK.net(x, 8, 2, seed=1).output, again.net(x, 8, 2, seed=2).output)


def test_streams_of_different_purposes_differ() -> None:
    draws = {tuple(torch.rand(2, generator=generator(*key)).tolist()) for key in (("a", 0), ("b", 0), ("a", 1))}
    assert len(draws) == 3


def test_choices_by_scale() -> None:
    assert [Setting(scale=s).pick(quick=1, full=2, paper=3) for s in ("quick", "full", "paper")] == [1, 2, 3]
    assert [Setting(scale=s).pick(quick=1, full=2) for s in ("quick", "full", "paper")] == [1, 2, 2]
    assert [len(Setting(scale=s).seeds(quick=1, full=3)) for s in ("quick", "full", "paper")] == [1, 3, 3]
    assert geometric(32, 256) == (32, 64, 128, 256)
    assert geometric(4, 64, 4) == (4, 16, 64)
    assert list(QUICK.seeds(quick=2)) == [0, 1]
    assert list(Setting(scale="quick", n_seeds=3).seeds(quick=2)) == [0, 1, 2]
    assert QUICK.data_names == ("digits",)
    assert Setting(scale="paper").data_names == ("mnist5k",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": "tiny"}, "scale must be one of quick, full, paper, got 'tiny'"),
        ({"n_seeds": 0}, "n_seeds must be a whole number of at least 1, got 0"),
        ({"n_seeds": True}, "n_seeds must be a whole number of at least 1, got True"),
        ({"device": "tpu"}, "device must look like"),
    ],
)
def test_bad_settings_are_refused_at_once(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Setting(**options)  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device that must be missing")
def test_a_device_that_is_not_there() -> None:
    with pytest.raises(InputError, match=r"device 'cuda' was asked for but torch sees no CUDA GPU"):
        Setting(device="cuda")


def test_numbers_of_numpy_and_devices_of_torch_are_taken() -> None:
    assert Setting(n_seeds=np.int64(3), device=torch.device("cpu")) == Setting(n_seeds=3)  # type: ignore[arg-type]


def test_labels_are_asked_for_only_where_they_are_needed(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).random((12, 4)))
    setting = Setting(data=(str(tmp_path / "rows.npy"),))
    assert len(setting.dataset_of(12)) == 12
    with pytest.raises(
        InputError, match=r"needs 10 samples with labels and '.*rows.npy' has 12 without labels; choose"
    ):
        setting.dataset_of(10, labels=True)


def test_too_few_samples_and_unknown_data() -> None:
    with pytest.raises(InputError, match="needs 5000 samples and 'digits' has 1797; choose another data set"):
        QUICK.pairs(5000, seed=0)
    with pytest.raises(DataError, match="nowhere"):
        Setting(data=("nowhere",)).pairs(5, seed=0)


def test_a_sweep_keeps_its_axes_and_its_failures() -> None:
    data = sweep([2, 4, 8], [0, 1], lambda w, s: {"a": 1 / w, "b": [s, w], "c": math.nan if w == 4 else 1.0}, t=[5, 6])
    assert data.a.dims == ("width", "seed")
    assert data.b.dims == ("width", "seed", "t")
    assert data.b.sel(width=8, seed=1, t=6) == 8
    assert width_law(data.a).value == pytest.approx(-1)
    assert math.isnan(width_law(data.c).value)  # a failed run is not averaged away
    assert np.isfinite(data.a).all()


def test_a_law_from_a_width_on_counts_that_width() -> None:
    """A kink at 4: from 4 on the law is −1, with 2 it is not, without 4 there are too few points to tell from −1."""
    values = {2: 0.1, 4: 1.0, 8: 0.5, 16: 0.25}
    data = sweep(list(values), [0, 1], lambda width, seed: {"a": values[width]})
    assert width_law(data.a, from_width=4).value == pytest.approx(-1)
    assert width_law(data.a, from_width=4).low == pytest.approx(-1)  # three points on a line: an interval without width
    assert width_law(data.a).value != pytest.approx(-1)


def test_one_failed_seed_is_never_averaged_away() -> None:
    data = sweep([2, 4], [0, 1], lambda width, seed: {"a": math.nan if (width, seed) == (4, 1) else 1.0})
    assert np.isnan(seed_mean(data.a)).tolist() == [False, True]
    assert math.isnan(largest(1.0, math.nan, 0.0))
    assert math.isnan(largest(math.nan, 1.0))
    assert largest(1.0, 3.0, 2.0) == 3.0
    assert smallest(1.0, 3.0, 2.0) == 1.0
    assert math.isnan(largest(data.a))
    assert math.isnan(smallest(2.0, data.a))
    assert largest(data.a.sel(width=2), torch.tensor([5.0, 4.0])) == 5.0
    assert smallest(np.array([[2.0, -1.0]]), torch.tensor(3.0)) == -1.0


def test_the_same_data_twice_is_refused() -> None:
    with pytest.raises(InputError, match="data must name every data set once"):
        Setting(data=("digits", "digits"))
