"""LiDAR: the authors' formula, what it is blind to, and views that do not belong together."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import floats, integers, lists
from torch import Tensor

from kontrast.diagnosis.metrics import ViewGroups, lidar
from kontrast.errors import InputError
from kontrast.linalg import random_frame
from tests.cases import generator, randn
from tests.reference import metrics as reference

seeds = integers(0, 2**16)


def views_of(n: int, v: int, d: int, seed: int = 0, noise: float = 0.3, decay: float = 0.5) -> Tensor:
    """Samples with a power-law covariance, and views around them."""
    samples = randn(n, 1, d, seed=seed) * torch.arange(1, d + 1, dtype=torch.float64) ** -decay
    return samples + noise * randn(n, v, d, seed=seed + 1) + 0.5


@settings(max_examples=15)
@given(seed=seeds, n=integers(2, 25), v=integers(2, 5), d=integers(1, 12), noise=floats(0.05, 2))
def test_it_is_the_authors_formula(seed: int, n: int, v: int, d: int, noise: float) -> None:
    views = views_of(n, v, d, seed, noise)
    assert lidar(views) == pytest.approx(reference.lidar(views.numpy()), rel=1e-10)
    assert lidar(views, delta=0.1) == pytest.approx(reference.lidar(views.numpy(), delta=0.1), rel=1e-10)


@pytest.mark.parametrize("n, v", [(3, 2), (20, 4)])
def test_more_dimensions_than_views(n: int, v: int) -> None:
    """Where views do not span the space, the rest is δ alone within and nothing between."""
    views = views_of(n, v, 40)
    assert lidar(views) == pytest.approx(reference.lidar(views.numpy()), rel=1e-9)


@settings(max_examples=15)
@given(seed=seeds, v=integers(2, 4), d=integers(1, 10), sizes=lists(integers(1, 5), min_size=2, max_size=8))
def test_batches_and_merges_give_what_all_at_once_gives(seed: int, v: int, d: int, sizes: list[int]) -> None:
    views = views_of(sum(sizes), v, d, seed)
    whole, one_by_one, merged = lidar(views), ViewGroups(), ViewGroups()
    for batch in views.split(sizes):
        one_by_one.update(batch)
    for batch in reversed(views.split(sizes)):
        part = ViewGroups()
        part.update(batch)
        part.merge(ViewGroups())
        merged.merge(part)
    assert one_by_one.n == merged.n == len(views)
    assert one_by_one.compute()["lidar"] == pytest.approx(whole, rel=1e-10)
    assert merged.compute()["lidar"] == pytest.approx(whole, rel=1e-10)


@given(seed=seeds, n=integers(2, 20), d=integers(1, 10), scale=floats(0.01, 100), shift=floats(-10, 10))
def test_rotation_shift_order_and_duplicates_change_nothing(
    seed: int, n: int, d: int, scale: float, shift: float
) -> None:
    views = views_of(n, 3, d, seed)
    found = lidar(views)
    R = random_frame(d, d, generator=generator(seed))
    order = torch.randperm(n, generator=generator(seed))
    assert lidar(views @ R) == pytest.approx(found, rel=1e-8)
    assert lidar(views + shift) == pytest.approx(found, rel=1e-8)
    assert lidar(views[order][:, [2, 0, 1]]) == pytest.approx(found, rel=1e-10)
    assert lidar(torch.cat([views, views])) == pytest.approx(found, rel=1e-9)
    assert lidar(torch.cat([views, views], 1)) == pytest.approx(found, rel=1e-9)
    assert lidar(scale * views, delta=scale**2 * 1e-4) == pytest.approx(found, rel=1e-8)  # δ is absolute


def test_directions_that_only_views_move_in_do_not_count() -> None:
    """A rank of the covariance counts them, LiDAR does not."""
    views = torch.zeros(200, 4, 10, dtype=torch.float64)
    views[..., :2] = randn(200, 1, 2) + 0.01 * randn(200, 4, 2, seed=1)
    views[..., 2:] = randn(200, 4, 8, seed=2)
    assert lidar(views) == pytest.approx(2, abs=0.1)


def test_one_tensor_per_view() -> None:
    views = views_of(12, 3, 5)
    assert lidar(list(views.unbind(1))) == lidar(views)


def test_number_types_are_widened() -> None:
    views = views_of(30, 3, 6).float().requires_grad_()
    assert lidar(views) == pytest.approx(lidar(views.detach().double()), rel=1e-12)


def test_what_has_no_answer_says_why() -> None:
    groups = ViewGroups()
    assert groups.missing == {"lidar": "needs 2 samples, got 0"}
    groups.update(views_of(1, 2, 4))
    assert math.isnan(groups.compute()["lidar"])
    assert groups.missing == {"lidar": "needs 2 samples, got 1"}
    equal = ViewGroups()
    for _ in range(3):
        equal.update(torch.full((4, 3, 5), 0.1))
    assert "equal" in equal.missing["lidar"]
    assert math.isnan(lidar(torch.zeros(4, 2, 3)))


@pytest.mark.parametrize(
    "views, message",
    [
        (randn(4, 1, 3), r"at least 2 views of every sample, got shape \(4, 1, 3\)"),
        ([randn(4, 3)], "at least 2 views of every sample, got 1"),
        ([randn(4, 3), randn(5, 3)], r"views\[1\] must have the shape of views\[0\], \(4, 3\), got \(5, 3\)"),
        ([randn(4, 3), randn(4, 2)], r"row i of every view is one sample"),
        ([randn(4, 3), [[1.0]]], r"views\[1\] must be a tensor"),
        (randn(8, 3), r"views must have shape \(n, v, d\), got \(8, 3\); pass \(samples, views, dimensions\)"),
        (math.nan * randn(4, 2, 3), "views holds NaN or infinite values"),
        (randn(4, 2, 5), "embeddings had 3 dimensions so far, got 5"),
        (randn(4, 6, 3), "samples had 2 views so far, got 6; give every sample as many"),
    ],
)
def test_views_that_do_not_fit_are_refused(views: Tensor, message: str) -> None:
    groups = ViewGroups()
    groups.update(views_of(6, 2, 3))
    before = groups.compute()
    with pytest.raises(InputError, match=message):
        groups.update(views)
    assert groups.compute() == before


def test_settings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="delta must be a positive number"):
        ViewGroups(delta=0)
    with pytest.raises(InputError, match=r"delta must be 0.0001 in both, got 0.1"):
        ViewGroups().merge(ViewGroups(delta=0.1))
    two, three = ViewGroups(), ViewGroups()
    two.update(views_of(3, 2, 4))
    three.update(views_of(3, 3, 4))
    with pytest.raises(InputError, match="samples had 2 views so far, got 3"):
        two.merge(three)
