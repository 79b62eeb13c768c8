"""Views of any samples: holes, mixtures and relative noise. Plain noise is tested in test_views.py."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kontrast.data import Compose, GaussianNoise, Masking, Mixup, RelativeNoise, fit_view, make_pairs, parse_view
from kontrast.errors import InputError
from tests.cases import DTYPES, generator, randn

relaxed = settings(deadline=None, max_examples=25)
seeds = st.integers(0, 2**32)
shapes = st.one_of(
    st.tuples(st.integers(0, 6), st.integers(0, 9)),
    st.tuples(st.integers(0, 6), st.integers(1, 4), st.integers(1, 5), st.integers(1, 5)),
)


@relaxed
@given(
    view=st.one_of(st.builds(Masking, st.floats(0, 1)), st.builds(Mixup, st.floats(0, 0.5))),
    shape=shapes,
    dtype=st.sampled_from(DTYPES),
    seed=seeds,
)
def test_rows_and_images_keep_shape_and_type_and_depend_on_the_seed_alone(view, shape, dtype, seed):
    x = randn(*shape, dtype=dtype)
    before = x.clone()
    seen = view(x, generator(seed))
    assert seen.shape == x.shape
    assert seen.dtype == dtype
    assert torch.equal(seen, view(x, generator(seed)))
    assert torch.equal(x, before)


@relaxed
@given(shape=shapes, dtype=st.sampled_from(DTYPES), seed=seeds)
def test_no_strength_is_the_identity_and_a_certain_mask_leaves_nothing(shape, dtype, seed):
    x = randn(*shape, dtype=dtype)
    assert torch.equal(Masking(0)(x, generator(seed)), x)
    assert torch.equal(Mixup(0)(x, generator(seed)), x)
    assert (Masking(1)(x, generator(seed)) == 0).all()


@pytest.mark.parametrize("shape", [(500, 80), (100, 1, 20, 20)])
@pytest.mark.parametrize("probability", [0.05, 0.25, 0.9])
def test_a_mask_hides_the_share_asked_for_and_nothing_else(shape, probability):
    x = randn(*shape)
    seen = Masking(probability)(x, generator())
    hidden = seen == 0
    assert torch.equal(seen[~hidden], x[~hidden])
    assert abs(float(hidden.double().mean()) - probability) < 5 * math.sqrt(0.25 / x.numel())
    assert len(hidden.flatten(1).unique(dim=0)) > 0.9 * len(x)  # a mask of its own for each sample
    assert torch.equal(Masking(probability)(x.float(), generator()) == 0, hidden)


def test_a_mask_hides_what_is_not_finite():
    x = torch.full((3, 4), math.nan)
    assert (Masking(1.0)(x, generator()) == 0).all()


def parts(n: int, share: float, seed: int) -> torch.Tensor:
    """(n, n): how much of each sample (columns) is in each view (rows)."""
    return Mixup(share)(torch.eye(n, dtype=torch.float64), generator(seed))


@relaxed
@given(n=st.integers(2, 9), share=st.floats(0.01, 0.5), seed=seeds)
def test_a_mixture_is_convex_and_never_with_itself(n, share, seed):
    mixed = parts(n, share, seed)
    own = mixed.diagonal()
    torch.testing.assert_close(mixed.sum(dim=1), torch.ones(n, dtype=torch.float64), rtol=0, atol=1e-14)
    assert (mixed >= 0).all()
    assert (own >= 1 - share).all()
    assert (own < 1).all()  # λ = 0 has probability 2^-53
    assert ((mixed - torch.diag(own) > 0).sum(dim=1) == 1).all()


@relaxed
@given(n=st.integers(2, 9), share=st.floats(0, 0.5), seed=seeds)
def test_images_and_rows_are_mixed_alike(n, share, seed):
    x = randn(n, 2, 3, 4)
    seen = Mixup(share)(x, generator(seed))
    torch.testing.assert_close(seen.flatten(1), parts(n, share, seed) @ x.flatten(1), rtol=0, atol=1e-13)


def test_every_other_sample_and_every_share_is_equally_likely():
    n, draws = 4, 3000
    shares = torch.stack([parts(n, 0.4, seed) for seed in range(draws)])
    chosen = (shares > 0).double().mean(dim=0)
    off = ~torch.eye(n, dtype=torch.bool)
    assert (chosen[off] - 1 / 3).abs().max() < 5 * math.sqrt(2 / 9 / draws)
    lam = 1 - torch.diagonal(shares, dim1=1, dim2=2).flatten()
    fifths = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0], dtype=torch.float64)
    torch.testing.assert_close(lam.quantile(fifths), 0.4 * fifths, rtol=0, atol=0.015)


def test_a_single_sample_has_nothing_to_be_mixed_with():
    x = randn(1, 5)
    seen = Mixup(0.5)(x, generator())
    assert torch.equal(seen, x)
    assert seen.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("view, high", [(Masking, "1"), (Mixup, "0.5")])
@pytest.mark.parametrize("value", [-0.1, 1.5, math.nan, "much", True])
def test_bad_numbers_are_refused(view, high, value):
    with pytest.raises(InputError, match=rf"must be a number of at least 0 and at most {high}, got {value!r}; write m"):
        view(value)


def test_gradients_pass_through_views_of_rows():
    x = randn(3, 4).requires_grad_()
    for view in (Masking(), Mixup()):
        assert torch.autograd.gradcheck(lambda x, view=view: view(x, generator(2)), x)


def test_every_sample_is_mixed_by_a_share_of_its_own() -> None:
    """Of the unit vectors, sample i keeps 1 − λ_i at place i."""
    kept = Mixup(0.5)(torch.eye(30, dtype=torch.float64), generator()).diagonal()
    assert len(kept.unique()) == 30
    assert float(kept.min()) < 0.6
    assert float(kept.max()) > 0.9


# Noise relative to the deviation of each column


def units(n: int, *, seed: int = 0) -> torch.Tensor:
    """Columns of deviations 1e-6, 1, 1000 and 0, not in the middle."""
    return (randn(n, 4, seed=seed) + 5) * torch.tensor([1e-6, 1, 1000, 0], dtype=torch.float64) + 3


def test_relative_noise_is_a_share_of_the_deviation_of_every_column() -> None:
    x = units(4000)
    view = fit_view(parse_view("relative-noise:0.2"), torch.split(x, 100))
    noise = view(x, generator()) - x
    torch.testing.assert_close(noise.std(0)[:3] / x.std(0)[:3], torch.full((3,), 0.2).double(), rtol=0.05, atol=0)
    assert (noise[:, 3] == 0).all()
    assert noise.mean(0).abs().div(x.std(0))[:3].max() < 0.02


@relaxed
@given(n=st.integers(2, 30), batch=st.integers(1, 30), share=st.floats(0, 2), seed=seeds)
def test_relative_noise_does_not_depend_on_the_batch_that_it_sees(n, batch, share, seed):
    """The deviations are those of the data set, so that a sample alone has the noise that it has among others."""
    x = units(n, seed=seed)
    view = fit_view(RelativeNoise(share), torch.split(x, batch))
    std = share * x.std(0, correction=0)
    drawn = torch.randn(1, 4, generator=generator(seed), dtype=torch.float64)
    torch.testing.assert_close(view(x[:1], generator(seed)), x[:1] + std * drawn, rtol=1e-6, atol=0)


def test_where_deviations_are_1_relative_noise_is_plain_noise() -> None:
    x = torch.tensor([[-1.0, 1.0], [1.0, -1.0]])
    view = fit_view(RelativeNoise(0.3), [x])
    assert torch.equal(view(x, generator(3)), GaussianNoise(0.3)(x, generator(3)))
    images = x.view(1, 1, 2, 2) * torch.tensor([-1.0, 1.0]).view(2, 1, 1, 1)
    view = fit_view(RelativeNoise(0.3), [images])
    assert torch.equal(view(images, generator(3)), GaussianNoise(0.3)(images, generator(3)))


def test_fitting_reaches_into_compositions_and_leaves_other_views_and_fitted_ones() -> None:
    x = units(20)
    plain = Compose((Masking(0.5), GaussianNoise(0.1)))
    assert fit_view(plain, []) is plain
    view = fit_view(parse_view("mask:0.5+relative-noise"), [x])
    assert str(view) == "mask:0.5+relative-noise:0.1"
    assert view == parse_view(str(view))
    expected = fit_view(RelativeNoise(), [x])(Masking(0.5)(x, g := generator()), g)
    assert torch.equal(view(x, generator()), expected)
    assert fit_view(view, [100 * x]) is view


def test_relative_noise_without_a_data_set_is_refused_and_pairs_are_one() -> None:
    x = units(9)
    with pytest.raises(
        InputError, match=r"view relative-noise:0\.1 is relative to the deviations of a data set.*fit_view"
    ):
        RelativeNoise()(x, generator())
    pairs = make_pairs(x, views=RelativeNoise(), generator=generator())
    assert torch.equal(pairs.x[9:], fit_view(RelativeNoise(), [x])(x, generator()))


@pytest.mark.parametrize("share", [-0.1, math.inf, math.nan, "much", True])
def test_a_bad_share_is_refused(share: object) -> None:
    with pytest.raises(InputError, match="share must be a finite number of at least 0"):
        RelativeNoise(share)
