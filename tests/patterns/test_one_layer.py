"""The one-layer flow (7) and iteration (94) of paper C: where they end, that they say how, and that they agree."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import integers, sampled_from
from torch import Tensor

from kontrast.errors import InputError
from kontrast.patterns import (
    Ending,
    GatedCovariance,
    LatentCategorical,
    LatentSummation,
    MixtureCovariance,
    OneLayerField,
    PairLaplacian,
    one_layer,
    one_layer_flow,
    orthonormal_patterns,
    power_iteration,
)
from tests.cases import DTYPES, generator, randn
from tests.reference import one_layer as reference

SEEDS = integers(0, 2**16)
PATTERNS = orthonormal_patterns(5, 6, generator=generator(0))
CATEGORICAL = LatentCategorical(PATTERNS, torch.tensor([0.1, 0.15, 0.2, 0.25, 0.3], dtype=torch.float64))


def off(field: OneLayerField, w: Tensor) -> Tensor:
    """The sine of the angle between w and A(w)w: 0 at a fixed point."""
    product = field.product(w)
    product = product / product.norm(dim=1, keepdim=True)
    return (product - (product * w).sum(1, keepdim=True) * w).norm(dim=1)


def clusters(seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Samples with no gates nearby to flip: two clusters that most filters tell apart, both far from 0."""
    noise = randn(40, 3, seed=seed, dtype=dtype)
    return torch.cat([noise[:20] + 5, 0.5 * noise[20:] - 5])


class Stub:
    """Any field at all."""

    coupled = False

    def __init__(self, product) -> None:
        self.product = product

    def gates(self, weights: Tensor) -> Tensor:
        return torch.empty(len(weights), 0, dtype=torch.bool)


@settings(max_examples=10)
@given(seed=SEEDS, dtype=sampled_from(DTYPES))
def test_the_iteration_is_the_plain_one_where_nothing_chatters(seed: int, dtype: torch.dtype) -> None:
    x, starts = clusters(seed, dtype), randn(3, 3, seed=seed + 1, dtype=dtype)
    run = power_iteration(GatedCovariance(x), starts, max_steps=6, tolerance=1e-300)
    assert run.weights.dtype == dtype
    assert run.discrepancies.shape == (6, 3)
    tolerance = 1e-9 if dtype == torch.float64 else 2e-3
    for start, w, ending in zip(starts, run.weights, run.endings, strict=True):
        if ending is not Ending.SILENT:
            torch.testing.assert_close(w, reference.iterate(x, start, 6), rtol=0, atol=tolerance)
    torch.testing.assert_close(run.weights.norm(dim=1), torch.ones(3, dtype=dtype))


@settings(max_examples=10)
@given(seed=SEEDS, dtype=sampled_from(DTYPES))
def test_a_linear_filter_becomes_the_top_eigenvector(seed: int, dtype: torch.dtype) -> None:
    x = randn(30, 4, seed=seed, dtype=dtype) * torch.tensor([3.0, 1.0, 1.0, 0.5], dtype=dtype)
    run = power_iteration(
        GatedCovariance(x, activation="linear"),
        randn(2, 4, seed=seed + 1, dtype=dtype),
        tolerance=100 * torch.finfo(dtype).eps,
    )
    assert all(run.converged)
    top = torch.linalg.eigh(torch.cov(x.mT, correction=0)).eigenvectors[:, -1]
    cosines = (run.weights @ top).abs()
    torch.testing.assert_close(
        cosines, torch.ones_like(cosines), rtol=0, atol=1e-10 if dtype == torch.float64 else 1e-5
    )


def test_with_whitened_samples_every_linear_filter_is_fixed_at_once() -> None:
    x, p = LatentSummation(orthonormal_patterns(4, 4, generator=generator(1)), 0.3).states()
    weigh = PairLaplacian.of_features(len(p) * p[:, None])  # α_ij = n² p_i p_j: the population
    starts = randn(5, 4, seed=2)
    run = power_iteration(GatedCovariance(x, importance=weigh, activation="linear"), starts)
    assert all(run.converged)
    assert int(run.n_steps.max()) == 1
    torch.testing.assert_close(run.weights, starts / starts.norm(dim=1, keepdim=True))


def test_discrepancies_and_steps_are_those_of_each_filter() -> None:
    x = randn(30, 4, seed=0) * torch.tensor([3.0, 1.0, 1.0, 0.5])
    field = GatedCovariance(x, activation="linear")
    starts = torch.cat([power_iteration(field, randn(1, 4, seed=1)).weights, randn(2, 4, seed=3)])
    run = power_iteration(field, starts)
    assert int(run.n_steps[0]) == 1 < int(run.n_steps[1])
    for i, n in enumerate(run.n_steps.tolist()):
        assert torch.isfinite(run.discrepancies[:n, i]).all()
        assert torch.isnan(run.discrepancies[n:, i]).all()
        assert float(run.discrepancies[n - 1, i]) < 1e-10
        assert (run.discrepancies[: n - 1, i] >= 1e-10).all()


def test_gates_that_flip_for_ever_are_reported_and_named() -> None:
    x = CATEGORICAL.sample(150, noise_std=0.05, generator=generator(3))
    field, starts = GatedCovariance(x), randn(8, 6, seed=4)
    run = power_iteration(field, starts)
    assert set(run.endings) == {Ending.CHATTERING}
    assert (run.shifts > 32).all()
    assert (run.shifts <= 64).all()
    assert not run.converged.any()
    assert int(run.n_steps.max()) < 1000
    z = (run.weights @ x.mT).abs()
    assert run.flipping.any(dim=1).all()
    assert float(z[run.flipping].max()) < 0.01
    undamped = power_iteration(field, starts, largest_shift=0.0)
    assert not undamped.shifts.any()
    assert set(undamped.endings) == {Ending.CHATTERING}
    assert float(off(field, run.weights).max()) < 0.3
    finer = power_iteration(field, starts, largest_shift=1024.0, max_steps=3000)
    assert float((finer.weights - run.weights).norm(dim=1).max()) < 0.02  # damping moves the limits no more


def test_what_swings_without_any_gates_is_damped_and_converges() -> None:
    field = MixtureCovariance.of(CATEGORICAL, 0.01)
    starts = randn(10, 6, seed=5)
    undamped = power_iteration(field, starts, largest_shift=0.0, max_steps=200)
    assert Ending.CHATTERING in undamped.endings
    assert float(off(field, undamped.weights).max()) > 0.01
    run = power_iteration(field, starts)
    assert all(run.converged)
    assert (run.shifts[[e is Ending.CHATTERING for e in undamped.endings]] >= 1).all()
    assert float(off(field, run.weights).max()) < 1e-9


@pytest.mark.parametrize("shift", [0.5, 5.0])
def test_a_shift_changes_no_limit(shift: float) -> None:
    field, starts = MixtureCovariance.of(CATEGORICAL, 0.2), randn(6, 6, seed=6)
    run, shifted = power_iteration(field, starts), power_iteration(field, starts, shift=shift)
    assert all(run.converged)
    assert all(shifted.converged)
    assert float(off(field, shifted.weights).max()) < 1e-9
    assert (shifted.shifts == shift).all()
    assert shifted.n_steps.sum() > run.n_steps.sum()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_filter_that_no_sample_excites_is_silent_and_stays(dtype: torch.dtype) -> None:
    x = randn(20, 3, seed=7, dtype=dtype).abs()
    starts = torch.stack([-torch.ones(3, dtype=dtype), torch.ones(3, dtype=dtype)])
    run = power_iteration(GatedCovariance(x), starts, tolerance=1e-4)
    assert run.endings[0] is Ending.SILENT is not run.endings[1]
    torch.testing.assert_close(run.weights[0], starts[0] / math.sqrt(3))
    assert torch.isnan(run.discrepancies[:, 0]).all()
    y = randn(37, 3, seed=7, dtype=dtype)
    level = torch.cat([torch.full((37, 1), 0.7, dtype=dtype), y], dim=1)
    same_output = torch.tensor([[1.0, 0, 0, 0], [0, 1.0, 1.0, 1.0]], dtype=dtype)  # 0.7 whatever the sample
    assert float(GatedCovariance(level).product(same_output)[0].norm()) > 0  # but for rounding
    assert power_iteration(GatedCovariance(level), same_output, max_steps=5).endings[0] is Ending.SILENT


def test_the_other_endings() -> None:
    starts = randn(2, 3, seed=8)
    field = GatedCovariance(randn(30, 3, seed=9))
    assert set(power_iteration(field, starts, max_steps=1).endings) == {Ending.STEP_LIMIT}
    broken = power_iteration(Stub(lambda w: w / torch.tensor([[1.0], [0.0]])[: len(w)]), starts)
    assert broken.endings == (Ending.CONVERGED, Ending.DIVERGED)
    torch.testing.assert_close(broken.weights[1], starts[1] / starts[1].norm())


@pytest.mark.parametrize("activation", ["linear", "relu_power:2"])
def test_coupled_filters_end_together_where_all_are_at_rest(activation: str) -> None:
    x = randn(40, 3, seed=10) * torch.tensor([2.0, 1.0, 0.5])
    field = GatedCovariance(x, importance="info_nce", importance_of="outputs", activation=activation)
    run = power_iteration(field, randn(2, 3, seed=11), tolerance=1e-9)
    assert all(run.converged)
    assert len(set(run.n_steps.tolist())) == 1
    assert float(off(field, run.weights).max()) < 1e-8
    alone = power_iteration(field, run.weights[:1], tolerance=1e-9)
    assert float((alone.weights - run.weights[:1]).norm()) > 1e-6  # without the other filter α is another


@settings(max_examples=4)
@given(seed=SEEDS)
def test_along_the_flow_rows_have_length_1_and_the_energy_never_falls(seed: int) -> None:
    field = MixtureCovariance.of(CATEGORICAL, 0.2)
    times = np.linspace(0, 60, 13)
    flow = one_layer_flow(field, 3 * randn(2, 6, seed=seed), times=times)
    assert flow.times == tuple(times)
    assert flow.reached == 60
    assert not flow.chattering
    torch.testing.assert_close(flow.weights.norm(dim=2), torch.ones(13, 2).double())
    energies = torch.stack([field.energy(w) for w in flow.weights])
    assert float((energies[:-1] - energies[1:]).max()) < 1e-9


def test_the_flow_of_a_linear_filter_is_that_of_its_closed_form() -> None:
    x, start, time = randn(30, 3, seed=12), randn(1, 3, seed=13), 1.7
    values, vectors = torch.linalg.eigh(torch.cov(x.mT, correction=0))
    grown = (start @ vectors * (values * time).exp()) @ vectors.mT  # Oja's flow: exp(At)w, normalised
    expected = grown / grown.norm()
    errors = []
    for tolerance in (1e-4, 1e-7, 1e-12):
        flow = one_layer_flow(GatedCovariance(x, activation="linear"), start, times=[time], tolerance=tolerance)
        errors.append(float((flow.weights[0] - expected).norm()))
        assert errors[-1] < 10 * tolerance
    assert errors[0] > errors[2]
    single = one_layer_flow(GatedCovariance(x.float(), activation="linear"), start.float(), times=[0, time])
    assert single.weights.dtype == torch.float32
    torch.testing.assert_close(single.weights[1].double(), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(single.weights[0].double(), start / start.norm(), rtol=0, atol=1e-6)


def test_flow_and_iteration_have_the_same_limits() -> None:
    field, starts = MixtureCovariance.of(CATEGORICAL, 0.1), randn(4, 6, seed=14)
    ends = one_layer_flow(field, starts, times=[400.0]).weights[0]
    assert float(off(field, ends).max()) < 1e-6
    limits = power_iteration(field, starts).weights
    apart = (ends[:, None] - limits).norm(dim=2).min(1).values  # not of the same start: one step of (94) is a long way
    assert float(apart.max()) < 1e-5


def test_the_flow_of_samples_ends_where_gates_chatter_and_says_so() -> None:
    x = CATEGORICAL.sample(40, noise_std=0.05, generator=generator(15))
    field, start = GatedCovariance(x), randn(1, 6, seed=16)
    flow = one_layer_flow(field, start, times=[0, 2, 1e5], max_steps=100)
    assert flow.chattering
    assert flow.times == (0, 2)
    assert flow.weights.shape == (2, 1, 6)
    assert 2 < flow.reached < 1e5
    assert float(field.energy(flow.weights[1])) > float(field.energy(flow.weights[0]))
    none = one_layer_flow(field, start, times=[1e5], max_steps=10)
    assert none.chattering
    assert none.times == ()
    assert none.weights.shape == (0, 1, 6)


def test_a_flow_that_max_steps_would_not_finish_does_not_take_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_layer, "PACE", 100)
    calls = 0

    def turning(w: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return 300 * torch.stack([-w[:, 1], w[:, 0]], dim=1)

    flow = one_layer_flow(Stub(turning), torch.ones(1, 2).double(), times=[1e6])
    assert flow.chattering
    assert flow.reached < 10
    assert calls < 2_000


FIELD = GatedCovariance(randn(5, 2, seed=0))
ONES = torch.ones(1, 2).double()
REFUSED = {
    "samples for a field": (lambda: power_iteration(clusters(0), PATTERNS), "GatedCovariance"),
    "nothing for a field": (lambda: one_layer_flow(None, PATTERNS, times=[1.0]), "GatedCovariance"),
    "starts that are an array": (lambda: power_iteration(FIELD, np.ones((1, 2))), "starts"),
    "starts of whole numbers": (lambda: power_iteration(FIELD, torch.ones(1, 2).long()), "starts"),
    "one start": (lambda: power_iteration(FIELD, ONES[0]), "starts"),
    "no starts": (lambda: power_iteration(FIELD, ONES[:0]), "starts"),
    "a start at 0": (lambda: power_iteration(FIELD, 0 * ONES), "direction"),
    "a start of NaN": (lambda: power_iteration(FIELD, ONES / 0 * 0), "direction"),
    "starts of other samples": (lambda: power_iteration(FIELD, torch.ones(1, 3).double()), "weights"),
    "starts of another type": (lambda: power_iteration(FIELD, torch.ones(1, 2)), "float64"),
    "no steps": (lambda: power_iteration(FIELD, ONES, max_steps=0), "max_steps"),
    "half a step": (lambda: power_iteration(FIELD, ONES, max_steps=0.5), "max_steps"),
    "no tolerance": (lambda: power_iteration(FIELD, ONES, tolerance=0), "tolerance"),
    "a negative shift": (lambda: power_iteration(FIELD, ONES, shift=-1), "shift"),
    "an infinite largest shift": (lambda: power_iteration(FIELD, ONES, largest_shift=math.inf), "largest_shift"),
    "a shift that is a string": (lambda: power_iteration(FIELD, ONES, shift="1"), "shift"),
    "times that fall": (lambda: one_layer_flow(FIELD, ONES, times=[1, 0.5]), "times"),
    "times below 0": (lambda: one_layer_flow(FIELD, ONES, times=[-1, 1]), "times"),
    "times that are words": (lambda: one_layer_flow(FIELD, ONES, times="soon"), "times"),
    "no times": (lambda: one_layer_flow(FIELD, ONES, times=[]), "times"),
    "a flow from 0": (lambda: one_layer_flow(FIELD, 0 * ONES, times=[1]), "direction"),
    "a flow without tolerance": (lambda: one_layer_flow(FIELD, ONES, times=[1], tolerance=0), "tolerance"),
    "a flow without steps": (lambda: one_layer_flow(FIELD, ONES, times=[1], max_steps=0), "max_steps"),
    "a flow that overflows": (lambda: one_layer_flow(Stub(lambda w: w / 0), ONES, times=[1]), "not finite"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_input_is_refused(what: str) -> None:
    act, names = REFUSED[what]
    with pytest.raises(InputError, match=names):
        act()


def test_a_flow_that_came_to_rest_stays_there() -> None:
    """However long: that is no chatter."""
    field = GatedCovariance(clusters(0), activation="linear")
    flow = one_layer_flow(field, randn(2, 3, seed=1, dtype=torch.float64), times=[0.0, 1e9, 1e12], max_steps=200)
    assert flow.times == (0.0, 1e9, 1e12)
    assert not flow.chattering
    top = torch.linalg.eigh(field.matrix(flow.weights[0, 0])).eigenvectors[:, -1]
    torch.testing.assert_close((flow.weights[1:] @ top).abs(), torch.ones(2, 2, dtype=torch.float64))


def test_convergence_is_the_angle_whatever_the_damping() -> None:
    """A damped step is shorter by 1 + s, and that is no convergence."""
    field = GatedCovariance(clusters(3), activation="leaky_relu:0.5")
    starts = randn(6, 3, seed=4, dtype=torch.float64)
    run = power_iteration(field, starts, shift=99.0, largest_shift=99.0, tolerance=1e-3, max_steps=20_000)
    assert run.converged.all()
    assert 1e-5 < float(off(field, run.weights).max()) < 1.5e-3
