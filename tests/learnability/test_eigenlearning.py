"""Learning predicted from eigenvalues: κ at any scale, conservation, limits that are known exactly, and bad input."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.strategies import booleans, floats, integers

from kontrast.errors import InputError
from kontrast.learnability import Spectrum, kappa, predict_learning
from tests.cases import generator, randn
from tests.reference import learnability as reference

seeds = integers(0, 2**16)


def decaying(seed: int, size: int = 40, *, fall: float = 2.0) -> torch.Tensor:
    """Eigenvalues about i^−fall."""
    return torch.arange(1, size + 1).double().pow(-fall) * (0.5 + torch.rand(size, generator=generator(seed)).double())


@given(seed=seeds, n=integers(1, 39), ridge=floats(0, 3), fall=floats(0, 12), scale=floats(-120, 120))
def test_kappa_solves_its_equation_at_any_scale(seed: int, n: int, ridge: float, fall: float, scale: float) -> None:
    values = decaying(seed, fall=fall)
    found = kappa(Spectrum(values * 10**scale, size=math.inf), n, ridge=ridge * 10**scale) / 10**scale
    assert found == pytest.approx(reference.kappa(values.tolist(), n, ridge), rel=1e-9)
    left = float((values / (values + found)).sum()) + ridge / found
    assert left == pytest.approx(n, rel=1e-10)


@given(seed=seeds, n=integers(1, 12), ridge=floats(0, 2))
def test_levels_are_modes_written_together(seed: int, n: int, ridge: float) -> None:
    values, counts = decaying(seed, 5), torch.tensor([1, 3, 2, 4, 3])
    apart = values.repeat_interleave(counts)
    powers = torch.rand(13, generator=generator(seed)).double()
    together = torch.stack([part.sum() for part in torch.split(powers, counts.tolist())])
    for replacement in (True, False):
        one = predict_learning(Spectrum(values, counts.double()), together, n, ridge=ridge, replacement=replacement)
        other = predict_learning(Spectrum(apart), powers, n, ridge=ridge, replacement=replacement)
        assert one.kappa == pytest.approx(other.kappa, rel=1e-9, abs=1e-300)
        for name in ("test_error", "unseen_error", "learnability", "overfitting"):
            same = pytest.approx(float(getattr(other, name)), rel=1e-8, nan_ok=True)
            assert float(getattr(one, name)) == same, name


@given(seed=seeds, n=integers(1, 39), replacement=booleans())
def test_without_a_ridge_learnabilities_sum_to_n(seed: int, n: int, replacement: bool) -> None:
    spectrum = Spectrum(decaying(seed), size=math.inf if replacement else None)
    found = predict_learning(spectrum, torch.ones(40), n, replacement=replacement)
    assert float(found.learnabilities.sum()) == pytest.approx(n, rel=1e-10)
    more = predict_learning(spectrum, torch.ones(40), n + 1, replacement=replacement)
    assert bool((more.learnabilities >= found.learnabilities - 1e-12).all())


@given(seed=seeds, n=integers(1, 40), ridge=floats(0, 3))
def test_whole_domain_is_seen_and_unseen_together(seed: int, n: int, ridge: float) -> None:
    powers = torch.rand(40, 3, generator=generator(seed)).double()
    found = predict_learning(Spectrum(decaying(seed)), powers, n, ridge=ridge, replacement=False)
    if n < 40:
        whole = n / 40 * found.train_error + (1 - n / 40) * found.unseen_error
        assert found.test_error.tolist() == pytest.approx(whole.tolist(), rel=1e-9, abs=1e-12)
    else:
        assert bool(found.unseen_error.isnan().all())


def test_all_points_of_the_domain_are_ridge_regression_itself() -> None:
    values, ridge = decaying(1), 0.3
    powers = torch.rand(40, generator=generator(2)).double()
    found = predict_learning(Spectrum(values), powers, 40, ridge=ridge, replacement=False)
    exact = values / (values + ridge / 40)  # K/M (K/M + δ/M)⁻¹
    assert found.kappa == 0
    assert found.learnabilities.tolist() == pytest.approx(exact.tolist(), rel=1e-12)
    assert float(found.test_error) == pytest.approx(float(((1 - exact) ** 2 * powers).sum()), rel=1e-12)


def test_equal_eigenvalues_learn_their_samples_and_nothing_else() -> None:
    # K = I: f̂ is f at the samples and 0 elsewhere.
    found = predict_learning(Spectrum(torch.full((50,), 1 / 50)), torch.full((50,), 2 / 50), 20, replacement=False)
    assert float(found.learnability) == pytest.approx(20 / 50)
    assert float(found.test_error) == pytest.approx(2 * 30 / 50)
    assert float(found.unseen_error) == pytest.approx(2)


def test_saturated_kernel_is_least_squares() -> None:
    """r features, n > r samples: κ = 0, L = 1 there, and the classical error σ² n/(n − r)."""
    spectrum = Spectrum(torch.tensor([2.0, 1.0, 0.5, 0.0]), torch.tensor([3.0, 3.0, 4.0, 1.0]), size=math.inf)
    powers = torch.tensor([1.0, 0.0, 0.0, 0.7])
    found = predict_learning(spectrum, powers, 30, noise_variance=0.1)
    assert found.kappa == 0
    assert found.learnabilities.tolist() == [1, 1, 1, 0]
    assert float(found.test_error) == pytest.approx(0.8 * 30 / 20)
    assert float(found.train_error) == pytest.approx(0.8 * 20 / 30)  # (n − r)/n
    assert predict_learning(spectrum, powers, 10).overfitting == math.inf  # the interpolation peak
    assert float(predict_learning(spectrum, torch.tensor([1.0, 2.0, 3.0, 0.0]), 10).test_error) == 0  # and no bias


@given(n=integers(7, 29))
def test_singular_kernel_of_a_finite_domain_is_the_limit_of_a_small_ridge(n: int) -> None:
    spectrum = Spectrum(torch.cat([decaying(3, 6), torch.zeros(24)]))
    powers = torch.rand(30, generator=generator(4)).double()
    limit = predict_learning(spectrum, powers, n, replacement=False)
    near = predict_learning(spectrum, powers, n, ridge=1e-11, replacement=False)
    for name in ("test_error", "unseen_error", "train_error", "overfitting", "learnability"):
        assert float(getattr(limit, name)) == pytest.approx(float(getattr(near, name)), rel=1e-4), name


def test_regression_on_all_points_of_a_singular_kernel_is_its_projection() -> None:
    powers = torch.rand(30, generator=generator(4)).double()
    found = predict_learning(Spectrum(torch.cat([decaying(3, 6), torch.zeros(24)])), powers, 30, replacement=False)
    assert float(found.test_error) == pytest.approx(float(powers[6:].sum()), rel=1e-12)


@given(seed=seeds, n=integers(1, 30))
def test_small_sample_of_a_large_domain_needs_no_replacement(seed: int, n: int) -> None:
    """M → ∞: both ways to draw agree."""
    values, copies = decaying(seed, 8, fall=1.0), 20_000.0
    spectrum = Spectrum(values / copies, torch.full((8,), copies))
    powers = torch.rand(8, generator=generator(seed)).double()
    once, again = (predict_learning(spectrum, powers, n, ridge=0.2, replacement=r) for r in (False, True))
    for name in ("test_error", "unseen_error", "train_error"):
        assert float(getattr(once, name)) == pytest.approx(float(getattr(again, name)), rel=1e-3), name


@given(seed=seeds, n=integers(1, 100), ridge=floats(0, 2))
def test_points_that_come_again_count_for_less(seed: int, n: int, ridge: float) -> None:
    """Without a ridge only distinct points count; and the domain is seen and unseen together."""
    values, powers = decaying(seed, fall=1.0), torch.rand(40, generator=generator(seed)).double()
    found = predict_learning(Spectrum(values), powers, n, ridge=ridge)
    missing = (1 - 1 / 40) ** n
    if ridge == 0:
        assert float(found.learnabilities.sum()) == pytest.approx(40 * (1 - missing), rel=1e-3)
        assert float(found.train_error) < 1e-6 * float(found.test_error)
    assert float(found.test_error) >= missing * float(found.unseen_error) * (1 - 1e-9)


@given(seed=seeds, n=integers(1, 100), scale=floats(-50, 50))
def test_without_a_ridge_distinct_points_alone_count(seed: int, n: int, scale: float) -> None:
    """Of n draws M(1 − (1 − 1/M)^n) are distinct on average: κ and L are those of as many samples."""
    values, distinct = decaying(seed, fall=1.0), 40 * (1 - (1 - 1 / 40) ** n)
    found = predict_learning(Spectrum(values * 10**scale), torch.ones(40), n)
    expected = reference.kappa(values.tolist(), distinct, 0.0)
    assert found.kappa / 10**scale == pytest.approx(expected, rel=1e-6)
    assert float(found.learnabilities.sum()) == pytest.approx(distinct, rel=1e-7)
    assert found.learnabilities.tolist() == pytest.approx((values / (values + expected)).tolist(), rel=1e-6)
    assert float(found.train_error) < 1e-15 * float(found.test_error)


def test_one_point_drawn_again_and_again_is_ridge_regression() -> None:
    found = predict_learning(Spectrum(torch.tensor([2.0])), torch.tensor([3.0]), 5, ridge=0.4)
    assert float(found.learnability) == pytest.approx(10 / 10.4)
    assert float(found.test_error) == pytest.approx(3 * (0.4 / 10.4) ** 2)
    assert float(found.train_error) == pytest.approx(3 * (0.4 / 10.4) ** 2)


def test_remainder_acts_as_a_ridge() -> None:
    """A thousand modes of which each is far below κ, in one number."""
    head, tail = decaying(5, 10), torch.full((100_000,), 1e-6)
    whole = Spectrum(torch.cat([head, tail]), size=math.inf)
    short = Spectrum(head, size=math.inf, remainder=0.1)
    powers = torch.rand(10, generator=generator(6)).double()
    full = predict_learning(whole, torch.cat([powers, torch.zeros(100_000)]), 8)
    cut = predict_learning(short, powers, 8)
    assert whole.trace == pytest.approx(short.trace)
    assert cut.kappa == pytest.approx(full.kappa, rel=1e-3)
    assert float(cut.test_error) == pytest.approx(float(full.test_error), rel=1e-3)


def test_nothing_is_learned_from_nothing() -> None:
    found = predict_learning(Spectrum(decaying(7)), torch.ones(40), 0, replacement=False)
    assert found.kappa == math.inf
    assert float(found.learnability) == 0
    assert float(found.test_error) == 40
    assert math.isnan(float(found.train_error))


@given(seed=seeds, n=integers(1, 35))
def test_error_of_noise_is_that_of_its_power(seed: int, n: int) -> None:
    """On a continuous domain noise σ² counts as power in modes that are never learned."""
    values = decaying(seed)
    powers = torch.rand(40, generator=generator(seed)).double()
    noisy = predict_learning(Spectrum(values, size=math.inf), powers, n, noise_variance=0.3, ridge=0.1)
    extended = Spectrum(torch.cat([values, torch.zeros(1)]), size=math.inf)
    as_power = predict_learning(extended, torch.cat([powers, torch.full((1,), 0.3, dtype=torch.float64)]), n, ridge=0.1)
    assert float(noisy.test_error) == pytest.approx(float(as_power.test_error), rel=1e-12)
    assert float(noisy.train_error) == pytest.approx(float(as_power.train_error), rel=1e-12)


BAD_SPECTRA = {
    "numpy": (lambda: Spectrum(np.ones(3)), "tensor"),
    "empty": (lambda: Spectrum(torch.ones(0)), "at least one"),
    "matrix": (lambda: Spectrum(torch.ones(2, 2)), r"\(r,\)"),
    "negative": (lambda: Spectrum(torch.tensor([1.0, -1e-3])), "at least 0"),
    "nan": (lambda: Spectrum(torch.tensor([1.0, math.nan])), "finite"),
    "counts": (lambda: Spectrum(torch.ones(3), torch.ones(2)), "multiplicities"),
    "no counts": (lambda: Spectrum(torch.ones(2), torch.zeros(2)), "positive"),
    "size": (lambda: Spectrum(torch.ones(3), size=5), "eigenvalues of 0 too"),
    "remainder": (lambda: Spectrum(torch.ones(3), remainder=0.1), "finite domain"),
    "zero": (lambda: Spectrum(torch.zeros(3)), "scale the kernel"),
    "subnormal": (lambda: Spectrum(torch.full((3,), 1e-311, dtype=torch.float64)), "scale the kernel"),
}


@pytest.mark.parametrize("name", BAD_SPECTRA)
def test_bad_spectra_are_refused(name: str) -> None:
    make, text = BAD_SPECTRA[name]
    with pytest.raises(InputError, match=text):
        make()


BAD_CALLS = {
    "no spectrum": ({"spectrum": torch.ones(3)}, "Spectrum"),
    "too many": ({"n_samples": 4, "replacement": False}, "at most the 3 points"),
    "half a sample": ({"n_samples": 1.5}, "whole number"),
    "negative ridge": ({"ridge": -1.0}, "ridge"),
    "infinite ridge": ({"ridge": math.inf}, "finite"),
    "endless samples": ({"n_samples": 10**30}, "at most"),
    "negative noise": ({"noise_variance": -1.0}, "noise_variance must be"),
    "noise on points": ({"noise_variance": 1.0}, "noise_variance must be 0 .* part of the target"),
    "wrong powers": ({"powers": torch.ones(4)}, "each of the 3 levels"),
    "negative powers": ({"powers": -torch.ones(3)}, "squares"),
    "no target": ({"powers": torch.zeros(3)}, "nothing to learn"),
    "numpy powers": ({"powers": np.ones(3)}, "tensor"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls_are_refused(name: str) -> None:
    given_, text = BAD_CALLS[name]
    call = {"spectrum": Spectrum(torch.ones(3)), "powers": torch.ones(3), "n_samples": 2, **given_}
    with pytest.raises(InputError, match=text):
        predict_learning(call.pop("spectrum"), call.pop("powers"), call.pop("n_samples"), **call)


def test_float32_and_float64_agree() -> None:
    values, powers = decaying(8), randn(40, seed=9).square()
    one = predict_learning(Spectrum(values.float()), powers.float(), 12, ridge=0.1)
    other = predict_learning(Spectrum(values), powers, 12, ridge=0.1)
    assert float(one.test_error) == pytest.approx(float(other.test_error), rel=1e-5)
