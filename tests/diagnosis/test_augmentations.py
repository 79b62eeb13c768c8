"""Planted embeddings: which part of a view they ignore, and which they tell."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kontrast.data import Compose, HorizontalFlip, parse_view
from kontrast.diagnosis.augmentations import OWN, augmentations, relative_distance, told_by
from kontrast.diagnosis.leaks import RIDGES, explained
from kontrast.errors import InputError
from tests.cases import generator, randn

seeds = st.integers(0, 2**16)
relaxed = settings(deadline=None, max_examples=10)


def images(n: int = 200, *, channels: int = 3) -> torch.Tensor:
    return 1 + torch.rand(n, channels, 6, 6, generator=generator(), dtype=torch.float64)


def flat(x):
    return x.flatten(1)


def without_flips(x):
    return (x + x.flip(3)).flatten(1)


def without_brightness(x):
    rows = x.flatten(1)
    return rows / rows.mean(1, keepdim=True)


def found_in(embed, text, x=None, **options):
    found = augmentations(embed, parse_view(text), images() if x is None else x, generator=generator(1), **options)
    return {it.name: it for it in found}


# --- distances ------------------------------------------------------------------------------------------------------


def test_a_relative_distance_is_0_for_equal_views_and_1_for_strangers():
    a, b = randn(200, 30), randn(200, 30, seed=1)
    assert relative_distance(a, a).value == 0
    strangers = relative_distance(a, b)
    assert strangers.low < 1 < strangers.high
    assert strangers.high - strangers.low < 0.2


@relaxed
@given(n=st.integers(2, 30), d=st.integers(1, 9), seed=seeds, scale=st.floats(1e-3, 1e3), shift=st.floats(-50, 50))
def test_a_relative_distance_is_that_of_all_pairs_and_knows_no_scale_shift_or_turn(n, d, seed, scale, shift):
    a, b = randn(n, d, seed=seed), randn(n, d, seed=seed + 1)
    pairs = torch.cdist(a, b).square()
    expected = float(pairs.diagonal().mean() / ((pairs.sum() - pairs.trace()) / (n * (n - 1))))
    assert relative_distance(a, b).value == pytest.approx(expected, rel=1e-6)
    turn = torch.linalg.qr(randn(d, d, seed=seed)).Q
    assert relative_distance(scale * a @ turn + shift, scale * b @ turn + shift).value == pytest.approx(
        expected, rel=1e-6
    )


def test_equal_samples_have_no_distance_to_compare_with():
    for dtype in (torch.float32, torch.float64):
        a = torch.full((20, 50), 1 / 3, dtype=dtype)
        assert math.isnan(relative_distance(a, a * (1 + torch.finfo(dtype).eps)).value)


# --- the probe ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n, d", [(64, 8), (128, 300)])
def test_a_probe_finds_nothing_where_nothing_is(n, d):
    for seed in range(20):
        targets = {"size": randn(n, seed=seed + 100), "kind": randn(n, seed=seed + 200) > 0}
        for share in explained(randn(n, d, seed=seed), targets, seed=seed).values():
            assert share.low < 0.1
            assert share.value < 0.2


@relaxed
@given(seed=seeds, scale=st.floats(1e-3, 1e3), shift=st.floats(-9, 9))
def test_a_probe_finds_a_linear_number_whatever_the_scale_and_the_directions(seed, scale, shift):
    z = randn(100, 6, seed=seed)
    noise = randn(100, seed=seed + 1)
    targets = {"exact": 5 * z[:, 0] - z[:, 3] + 2, "half": z[:, 1] + noise, "sign": z[:, 2] > 0}
    found = explained(z, targets)
    assert found["exact"].value > 0.999
    assert 0.1 < found["half"].value < 0.8
    assert 0.3 < found["sign"].value < 0.9
    turned = explained(scale * z @ torch.linalg.qr(randn(6, 6, seed=seed)).Q + shift, targets)
    for name, share in found.items():
        assert turned[name].value == pytest.approx(share.value, abs=1e-6)


def test_the_probe_is_ridge_regression_on_the_other_folds():
    """Its leave-one-out errors, ridge and predictions against the slow way: fit again without each sample."""
    n, d = 40, 5
    z, y = randn(n, d), randn(n, seed=1)
    y = y + z[:, 0]
    fold = torch.randperm(n, generator=generator(3)) % 5
    errors = torch.zeros(n, dtype=torch.float64)
    totals = torch.zeros(n, dtype=torch.float64)
    for held_out in range(5):
        train, test = (fold != held_out).nonzero()[:, 0], (fold == held_out).nonzero()[:, 0]
        best, best_error = 0.0, math.inf
        for share in RIDGES:
            ridge = share * float((z[train] - z[train].mean(0)).square().sum())
            total = sum(
                float(y[i] - _ridge(z[train[train != i]], y[train[train != i]], z[i : i + 1], ridge)[0]) ** 2
                for i in train.tolist()
            )
            if total < best_error - 1e-12:
                best, best_error = ridge, total
        errors[test] = (y[test] - _ridge(z[train], y[train], z[test], best)).square()
        totals[test] = (y[test] - y[train].mean()).square()
    slow = float(1 - errors.sum() / totals.sum())
    assert explained(z, {"y": y}, seed=3)["y"].value == pytest.approx(slow, abs=1e-9)


def _ridge(x, y, new, ridge):
    """Ridge regression with a free intercept."""
    center, mean = x.mean(0), y.mean()
    rows = x - center
    w = torch.linalg.solve(rows.mT @ rows + ridge * torch.eye(x.shape[1], dtype=x.dtype), rows.mT @ (y - mean))
    return mean + (new - center) @ w


# --- parts of a view ------------------------------------------------------------------------------------------------


def test_an_embedding_without_a_part_ignores_it_and_one_that_keeps_it_leaks_it():
    raw = found_in(flat, "flip+brightness:0.8")
    assert raw["flip"].invariance[OWN].value > 0.3
    assert not raw["flip"].ignored
    assert raw["brightness"].leaked == ("brightness",)
    assert raw["brightness"].leaks["brightness"][OWN].low > 0.8
    blind = found_in(without_flips, "flip+brightness:0.8")
    assert blind["flip"].invariance[OWN].value == pytest.approx(0, abs=1e-20)
    assert blind["flip"].ignored
    assert blind["flip"].leaked == ()
    assert not blind["brightness"].ignored
    even = found_in(without_brightness, "flip+brightness:0.8")
    assert even["brightness"].ignored
    assert even["brightness"].leaked == ()


def test_the_sentence_names_what_is_ignored_and_what_is_leaked():
    x = images()
    found = augmentations(
        without_flips, parse_view("flip+brightness:0.8"), x, references={"the start": flat}, generator=generator(1)
    )
    said = told_by(found)
    assert said.startswith("the embedding ignores flip (invariance ")
    assert "and leaks brightness (R² 0.9" in said
    assert said.endswith("; the start 1)")
    assert told_by(augmentations(flat, parse_view("gray:0.5"), images(channels=1), generator=generator())) == (
        "gray does nothing to these samples"
    )
    assert told_by(augmentations(flat, HorizontalFlip(), images(), generator=generator())) == (
        "the embedding neither ignores nor leaks flip"
    )


def test_a_small_number_in_one_direction_leaks_although_the_embedding_barely_moves():
    def embed(x):
        level = x.mean(dim=(1, 2, 3))
        return torch.cat([10 * torch.sin(40 * without_brightness(x)), level[:, None]], dim=1)

    part = found_in(embed, "brightness:0.5")["brightness"]
    assert part.ignored
    assert part.leaks["brightness"][OWN].low > 0.5


def test_parts_without_numbers_are_asked_whether_they_were_applied():
    def spread(x):
        return x.flatten(1).std(1, keepdim=True)

    part = found_in(spread, "noise:0.5")["noise"]
    assert list(part.leaks) == ["applied"]
    assert part.leaks["applied"][OWN].low > 0.5
    assert "whether noise was applied" in told_by([part])

    def shifted(x, generator):
        return x + 1

    (own,) = augmentations(flat, shifted, images(), generator=generator())
    assert own.name == "shifted"
    assert own.leaks["applied"][OWN].low > 0.5
    assert list(own.leaks) == ["applied"]


def test_what_does_not_vary_is_left_out_and_what_varies_too_rarely_is_missing():
    part = found_in(flat, "crop:0.5,0.9")["crop"]
    assert list(part.leaks) == ["crop: area", "crop: x", "crop: y"]
    rare = found_in(flat, "flip:0.01")["flip"]
    assert rare.leaks == {}
    assert "a probe takes 5 of each kind" in rare.missing["flip"]
    few = found_in(flat, "brightness", images(30))["brightness"]
    assert few.missing == {"brightness": "30 samples train no probe; it takes 64"}
    assert few.invariance[OWN].low > 0


def test_all_embeddings_see_the_same_views_and_a_seed_makes_them():
    view = Compose((parse_view("crop"), parse_view("noise")))
    first = augmentations(flat, view, images(), references={"same": flat}, generator=generator(5))
    again = augmentations(flat, view, images(), generator=generator(5))
    for part, other in zip(first, again, strict=True):
        assert part.invariance[OWN] == part.invariance["same"] == other.invariance[OWN] == part.change
        for leak, repeated in zip(part.leaks.values(), other.leaks.values(), strict=True):
            assert leak[OWN] == leak["same"] == repeated[OWN]


def test_bad_input_is_refused():
    view = parse_view("flip")
    with pytest.raises(InputError, match="need 2 samples"):
        augmentations(flat, view, images(1), generator=generator())
    with pytest.raises(InputError, match="x must be a tensor of floating-point numbers"):
        augmentations(flat, view, torch.zeros(4, 1, 2, 2, dtype=torch.uint8), generator=generator())
    with pytest.raises(InputError, match="the embedding holds NaN"):
        augmentations(lambda x: flat(x) * math.nan, view, images(4), generator=generator())
    with pytest.raises(InputError, match="the start must have shape"):
        augmentations(flat, view, images(4), references={"the start": lambda x: x}, generator=generator())
    with pytest.raises(InputError, match="the view flip needs images"):
        augmentations(flat, view, randn(4, 5), generator=generator())
    with pytest.raises(InputError, match="view must be a function"):
        augmentations(flat, None, images(4), generator=generator())
