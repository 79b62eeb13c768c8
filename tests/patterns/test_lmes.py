"""Locally maximal eigenvectors: found to rounding, on ridges too, and judged as the energy itself judges them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import booleans, integers, sampled_from
from torch import Tensor

from kontrast.errors import InputError
from kontrast.patterns import (
    Ending,
    GatedCovariance,
    GaussianImportance,
    Homogeneous,
    InfoNCEImportance,
    LatentCategorical,
    LatentSummation,
    LMEs,
    MixtureCovariance,
    PairLaplacian,
    contrastive_covariance,
    find_lmes,
    one_layer_flow,
    orthonormal_patterns,
    power_iteration,
)
from tests.cases import DTYPES, generator, randn

SEEDS = integers(0, 2**16)
PATTERNS = orthonormal_patterns(8, 8, generator=generator(0))
CATEGORICAL = LatentCategorical(PATTERNS, torch.arange(5.0, 13.0, dtype=torch.float64) / 68)


def population(model: LatentCategorical | LatentSummation, **options: object) -> GatedCovariance:
    """A model without noise exactly: its states, with α_ij = n² p_i p_j."""
    x, p = model.states()
    return GatedCovariance(x, importance=PairLaplacian.of_features(len(p) * p[:, None]), **options)


def recovered(found: LMEs, patterns: Tensor, within: float) -> int:
    return int(((patterns[:, None] - found.weights).norm(dim=2).min(1).values < within).sum())


def perturbed(w: Tensor, size: float, n: int = 60, seed: int = 0) -> Tensor:
    v = w + size * randn(n, len(w), seed=seed, dtype=w.dtype) / math.sqrt(len(w))
    return v / v.norm(dim=1, keepdim=True)


def largest_rise(field: GatedCovariance, w: Tensor) -> float:
    """Of the energy in random directions, at several distances, relative; a strict maximum has it below 0."""
    energy = field.energy(w[None])
    rises = [float((field.energy(perturbed(w, size)) / energy - 1).max()) for size in (1e-2, 1e-3, 1e-4, 1e-5)]
    return max(rises)


@pytest.mark.parametrize("model", [CATEGORICAL, LatentSummation(PATTERNS, 0.1), LatentSummation(PATTERNS, 0.2)])
def test_all_patterns_of_both_models_are_found_and_nothing_else(model: LatentCategorical | LatentSummation) -> None:
    found = find_lmes(population(model), n_starts=100, generator=generator(1))
    assert recovered(found, PATTERNS, 1e-8) == len(found) == 8
    assert found.maximal.all()
    assert found.stable.all()
    nearest = (found.weights @ PATTERNS.mT).max(1).indices.tolist()
    for j, m in enumerate(nearest):
        assert float(found.eigenvalues[j]) == pytest.approx(model.eigenvalue_at(m), abs=1e-10)
        assert float(found.gaps[j]) == pytest.approx(model.gap_at(m), abs=1e-10)
    assert float(found.residuals.max()) < 1e-9


def test_near_the_threshold_sums_of_three_patterns_are_lmes_too() -> None:
    field = population(LatentSummation(PATTERNS, 0.35))
    found = find_lmes(field, n_starts=100, generator=generator(1))
    assert recovered(found, PATTERNS, 1e-8) == 8
    assert (found.assignment >= 0).all()
    three = PATTERNS[:3].sum(0, keepdim=True) / math.sqrt(3)
    sums = find_lmes(field, starts=three)
    torch.testing.assert_close(sums.weights, three)
    assert 0.05 < float(sums.gaps[0]) < float(found.gaps[0])
    assert sums.stable.all()
    assert largest_rise(field, three[0]) < 0


def test_above_the_threshold_the_patterns_of_the_summation_model_are_no_lmes() -> None:
    found = find_lmes(population(LatentSummation(PATTERNS, 0.4)), starts=PATTERNS)
    at_patterns = (PATTERNS[:, None] - found.weights).norm(dim=2).min(0).values < 1e-6
    assert not found.maximal[at_patterns].any()


def test_a_linear_network_finds_one_direction_where_relu_finds_all() -> None:
    found = find_lmes(population(CATEGORICAL, activation="linear"), n_starts=20, generator=generator(1))
    assert len(found) == 1
    assert found.symmetric
    assert float(found.basins[0]) == 1


@settings(max_examples=5)
@given(seed=SEEDS, dense=booleans(), leaky=booleans(), views=booleans())
def test_what_chatters_is_settled_to_rounding_at_a_strict_maximum(
    seed: int, dense: bool, leaky: bool, views: bool
) -> None:
    x = CATEGORICAL.sample(80, noise_std=0.15, generator=generator(seed))
    positives = x + 0.02 * randn(80, 8, seed=seed + 2) if views else None
    options = {"importance": randn(80, 80, seed=seed).abs() if dense else "uniform"}
    field = GatedCovariance(x, positives, activation="leaky_relu:0.1" if leaky else "relu", **options)
    found = find_lmes(field, n_starts=3, generator=generator(seed + 1))
    assert Ending.CHATTERING in found.run.endings
    assert (found.assignment >= 0).all()
    assert set(found.status) <= {Ending.SETTLED, Ending.CONVERGED}
    assert float(found.residuals.max()) < 1e-9
    assert (found.edges > 0).any()
    for w, stable in zip(found.weights, found.stable, strict=True):
        # The gates' tolerance hides outputs below 1e-9 of the samples: so much may the energy seem to rise.
        assert largest_rise(field, w) < (1e-9 if stable else math.inf)
    assert found.stable.any()
    moved = (found.run.weights - found.weights[found.assignment]).norm(dim=1)
    assert float(moved.max()) < 0.1


@pytest.mark.parametrize("q", [0.38, 0.42])
def test_no_start_is_lost_where_maxima_lie_on_many_ridges(q: float) -> None:
    x = LatentSummation(PATTERNS, q).sample(400, noise_std=0.05, generator=generator(2))
    found = find_lmes(x, n_starts=8, generator=generator(3))
    assert (found.assignment >= 0).all()
    assert int(found.edges.max()) >= 5
    assert found.stable.all()
    assert float(found.residuals.max()) < 1e-12


@pytest.mark.parametrize("rule", [GaussianImportance(2.0), InfoNCEImportance(1.0)])
def test_an_alpha_of_each_output_is_made_anew_until_all_is_at_rest(
    rule: GaussianImportance | InfoNCEImportance,
) -> None:
    x = CATEGORICAL.sample(40, noise_std=0.05, generator=generator(2))
    found = find_lmes(x, n_starts=2, generator=generator(3), importance=rule, importance_of="each")
    assert (found.assignment >= 0).all()
    assert Ending.SETTLED in found.status
    assert float(found.residuals.max()) < 1e-9


@settings(max_examples=3)
@given(seed=SEEDS, summation=booleans())
def test_certified_points_are_stable_and_draw_back_what_left_them(seed: int, summation: bool) -> None:
    model = LatentSummation(PATTERNS[:4], 0.2) if summation else CATEGORICAL
    x = model.sample(100, noise_std=0.3 if summation else 0.1, generator=generator(seed))
    found = find_lmes(x, n_starts=2, generator=generator(seed + 1))
    assert found.stable[found.certified].all()
    for w in found.weights[found.stable]:
        again = find_lmes(x, starts=perturbed(w, 1e-3, n=1, seed=seed))
        assert float((again.weights - w).norm(dim=1).min()) < 1e-6
        assert float(again.basins[(again.weights - w).norm(dim=1).argmin()]) == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["relu_power:2", "monomial:3", "linear"])
@pytest.mark.parametrize("views", [False, True])
def test_margins_and_roughness_are_those_of_finite_differences(
    activation: str, views: bool, dtype: torch.dtype
) -> None:
    x = randn(50, 4, seed=3, dtype=dtype) * torch.tensor([1.5, 1.0, 1.0, 0.8], dtype=dtype)
    positives = x + 0.2 * randn(50, 4, seed=4, dtype=dtype) if views else None
    found = find_lmes(x, positives, activation=activation, n_starts=6, generator=generator(4))
    assert len(found)
    double = GatedCovariance(x.double(), None if positives is None else positives.double(), activation=activation)
    tolerance = 1e-4 if dtype == torch.float64 else 3e-3
    for j, w in enumerate(found.weights.double()):
        step, eye = 1e-5, torch.eye(4).double()
        jacobian = (double.product(w + step * eye) - double.product(w - step * eye)).mT / (2 * step)
        w_perp = torch.linalg.qr(w[:, None], mode="complete").Q[:, 1:]
        A = double.matrix(w)
        size = float(torch.linalg.matrix_norm(jacobian, ord=2))
        margin = w @ A @ w - torch.linalg.eigvalsh(w_perp.mT @ jacobian @ w_perp).max()
        assert float(found.margins[j]) == pytest.approx(float(margin), abs=tolerance * size)
        rough = float(torch.linalg.matrix_norm((jacobian - A) @ w_perp, ord=2))
        assert float(found.roughness_formula[j]) == pytest.approx(rough, abs=tolerance * size)
        if dtype == torch.float64:  # in float32 a difference over 1e-5 is round-off
            assert float(found.roughness[j]) == pytest.approx(rough, abs=1e-3 * size)
        assert bool(found.stable[j])  # a limit of the iteration


def test_with_many_samples_roughness_and_margins_are_the_populations() -> None:
    means = torch.tensor([[2.0, 0.2, 0.0], [-0.3, 1.0, 0.3], [-0.2, -0.6, -1.0]], dtype=torch.float64)
    p = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    noise = 0.7
    x = means[torch.multinomial(p, 20_000, replacement=True, generator=generator(5))]
    x = x + noise * randn(20_000, 3, seed=6)
    exact = MixtureCovariance(means, p, noise)
    found = find_lmes(x, n_starts=6, generator=generator(7))
    limits = power_iteration(exact, randn(20, 3, seed=8)).weights
    assert len(found)
    for j, w in enumerate(found.weights):
        u = limits[(limits - w).norm(dim=1).argmin()]
        assert float((u - w).norm()) < 0.05
        assert float(found.roughness_formula[j]) == pytest.approx(exact.roughness(u), rel=0.35)
        assert float(found.roughness[j]) == pytest.approx(exact.roughness(u), rel=0.35)
        assert float(found.smooth_margins[j]) == pytest.approx(exact.stability_margin(u), rel=0.15)


def views_that_pull_off(spread: float, n: int, height: float) -> tuple[Tensor, Tensor]:
    """A pattern e₁ in a quarter of the samples; the others lie near the plane, their other views far in front of it.

    So the pull on those on the plane is positive, (n − 1)h'/2 > Σh, and w is drawn to whichever side it leans.
    """
    pattern = torch.tensor([[1.0, 0.0]], dtype=torch.float64).expand(n, 2)
    near = torch.linspace(-spread, spread, 3 * n // 2, dtype=torch.float64)
    up = torch.stack([near, torch.full_like(near, height)], dim=1)
    x = torch.cat([pattern, up, up * torch.tensor([1.0, -1.0])])
    other = torch.tensor([[0.6, 0.0]], dtype=torch.float64).expand(2 * len(near), 2)
    return x, torch.cat([pattern, other])


@pytest.mark.parametrize(("spread", "n", "height"), [(0.0, 10, 1.0), (0.02, 60, 0.3)])
def test_views_can_make_a_locally_maximal_eigenvector_unstable(spread: float, n: int, height: float) -> None:
    x, positives = views_that_pull_off(spread, n, height)
    pattern = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    found = find_lmes(x, positives, starts=pattern)
    torch.testing.assert_close(found.weights, pattern)
    assert found.maximal.all()
    assert not found.stable.any()
    assert not found.certified.any()
    field = GatedCovariance(x, positives)
    left = power_iteration(field, perturbed(pattern[0], 0.05, n=4), shift=20.0, max_steps=1500)
    assert (left.weights[:, 1].abs() > 0.05).all()
    assert (field.energy(left.weights) > (1 + 1e-4) * field.energy(pattern)).all()
    without = find_lmes(x, starts=pattern)
    assert without.stable.all()


def test_a_leaky_gate_whose_mean_output_is_negative_makes_edges_repel() -> None:
    x = torch.tensor([[1.0, 0.0], [-3.0, 0.0], [0.0, 0.1], [0.0, -0.1]], dtype=torch.float64)
    e = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    found = find_lmes(x, starts=e, activation="leaky_relu:0.5")
    assert found.maximal.all()
    assert float(found.margins[0]) == -math.inf
    field = GatedCovariance(x, activation="leaky_relu:0.5")
    tilted = torch.tensor([[1.0, 1e-3]], dtype=torch.float64)
    assert float(field.energy(tilted / tilted.norm())) > float(field.energy(e))


@pytest.mark.parametrize("activation", ["linear", Homogeneous(1.0, 1.0, 1.0), "monomial:2", "monomial:3"])
def test_where_both_signs_are_one_filter_they_are_one_pattern(activation: str | Homogeneous) -> None:
    x, starts = randn(60, 3, seed=9) * torch.tensor([1.0, 2.0, 0.5]), randn(6, 3, seed=10)
    found = find_lmes(x, starts=torch.cat([starts, -starts]), activation=activation)
    assert found.symmetric
    assert torch.equal(found.assignment[:6], found.assignment[6:])
    assert (found.assignment >= 0).all()
    gram = (found.weights @ found.weights.mT).abs().fill_diagonal_(0)
    assert float(gram.max()) < 1 - 1e-6
    match = found.match(-7 * found.weights)
    assert match.index.tolist() == list(range(len(found)))
    torch.testing.assert_close(match.cosines, torch.ones(len(found)).double())


def test_basins_assignment_and_matching() -> None:
    starts = torch.cat([PATTERNS, PATTERNS[:3], -PATTERNS.sum(0, keepdim=True)])  # the last excites nothing
    found = find_lmes(population(CATEGORICAL), starts=starts)
    assert found.run.endings[-1] is Ending.SILENT is found.status[-1]
    assert int(found.assignment[-1]) == -1
    torch.testing.assert_close(found.weights[found.assignment[:8]], PATTERNS)
    assert torch.equal(found.assignment[8:11], found.assignment[:3])
    torch.testing.assert_close(found.basins, torch.tensor([2, 2, 2, 1, 1, 1, 1, 1]).double() / 12)
    assert float(found.basins.sum()) == pytest.approx(11 / 12)
    filters = torch.stack([3 * PATTERNS[4], PATTERNS[6] + 0.2 * PATTERNS[1], -PATTERNS[2]]).float()
    match = found.match(torch.nn.Parameter(filters))
    assert match.index[:2].tolist() == found.assignment[[4, 6]].tolist()
    assert float(match.cosines[2]) < 0.01  # −w is another filter than w
    assert found.match(torch.zeros(1, 8)).index.tolist() == [-1]
    with pytest.raises(InputError, match="NaN"):
        found.match(torch.full((1, 8), math.nan))
    with pytest.raises(InputError, match="least"):
        match.found("all")
    assert match.found().tolist() == sorted(match.index[:2].tolist())
    assert match.found(0.999).tolist() == match.index[:1].tolist()
    assert "8 patterns from 12 starts, 8 locally maximal, 8 stable" in repr(found)
    assert found.discrepancies is found.run.discrepancies


def test_unfinished_starts_near_a_finished_one_join_it() -> None:
    field = population(LatentSummation(PATTERNS, 0.2))
    found = find_lmes(field, starts=torch.cat([PATTERNS[:1], perturbed(PATTERNS[0], 1e-2, n=2)]), max_steps=2)
    assert found.run.endings == (Ending.CONVERGED, Ending.STEP_LIMIT, Ending.STEP_LIMIT)
    assert found.assignment.tolist() == [0, 0, 0]


def test_a_smooth_filter_that_did_not_finish_has_no_pattern() -> None:
    found = find_lmes(randn(50, 4, seed=3), activation="relu_power:2", max_steps=1, n_starts=3, generator=generator(0))
    assert len(found) == 0
    assert found.assignment.tolist() == [-1] * 3
    assert set(found.status) == {Ending.STEP_LIMIT}
    with pytest.raises(InputError, match="no patterns"):
        found.match(torch.ones(1, 4))


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_float32(noise: float) -> None:
    x = CATEGORICAL.sample(300, noise_std=noise, generator=generator(11))
    found = find_lmes(x.float(), n_starts=120, generator=generator(12))
    assert found.weights.dtype == found.margins.dtype == found.basins.dtype == torch.float32
    double = find_lmes(x, starts=found.weights.double())
    if noise == 0:
        assert recovered(found, PATTERNS, 1e-5) == 8
    assert (found.assignment >= 0).sum() >= 110
    assert float((double.weights[:, None] - found.weights).norm(dim=2).min(1).values.max()) < 1e-3
    assert found.stable.all()
    # Gates are told open from closed within 16 roundings of the plane, and one sample's pull is 1/300 of λ.
    assert float(found.residuals.max()) < 1e-3
    assert float(found.residuals.median()) < 1e-4


def test_one_dimension_and_samples_that_come_twice() -> None:
    x = torch.tensor([[1.0], [2.0], [-1.0], [-4.0]], dtype=torch.float64)
    found = find_lmes(x, n_starts=10, generator=generator(0))
    assert sorted(found.weights[:, 0].tolist()) == [-1.0, 1.0]
    assert found.stable.all()
    assert found.maximal.all()
    y = CATEGORICAL.sample(60, noise_std=0.1, generator=generator(13))
    once = find_lmes(y, n_starts=5, generator=generator(1))
    once = find_lmes(y, starts=once.weights)
    twice = find_lmes(torch.cat([y, y]), starts=once.weights)
    torch.testing.assert_close(twice.weights, once.weights, rtol=0, atol=1e-9)
    torch.testing.assert_close(twice.eigenvalues, once.eigenvalues)
    assert torch.equal(twice.edges, 2 * once.edges)


@pytest.mark.parametrize("seed", [3, 6])
def test_samples_of_one_direction_share_their_edge(seed: int) -> None:
    y = CATEGORICAL.sample(60, noise_std=0.1, generator=generator(seed))
    found = find_lmes(torch.cat([y, 3 * y, 0.7 * y]), n_starts=5, generator=generator(1))
    assert (found.assignment >= 0).all()
    assert not (found.edges % 3).any()


@settings(max_examples=3)
@given(seed=SEEDS, kind=sampled_from(["random", "samples"]))
def test_the_same_seed_draws_the_same_starts(seed: int, kind: str) -> None:
    x = torch.cat([torch.zeros(3, 3).double(), randn(12, 3, seed=1)])  # samples at 0 start nothing
    a, b = (find_lmes(x, starts=kind, n_starts=4, max_steps=30, generator=generator(seed)) for _ in range(2))
    assert torch.equal(a.run.weights, b.run.weights)
    assert torch.equal(a.margins, b.margins)
    assert a.run.endings == b.run.endings


def test_progress_is_told() -> None:
    steps: list[int] = []
    find_lmes(randn(20, 3, seed=0), n_starts=2, generator=generator(0), progress=lambda done, _: steps.append(done))
    assert steps[0] == 1


X = randn(12, 3, seed=0)
G = generator(0)
REFUSED = {
    "samples that are an array": (lambda: find_lmes(X.numpy(), generator=G), "rows"),
    "samples all the same": (lambda: find_lmes(torch.ones(5, 3), generator=G), "no variance"),
    "views of another length": (lambda: find_lmes(X, X[:5], generator=G), "positives"),
    "an activation that is not homogeneous": (lambda: find_lmes(X, activation="tanh", generator=G), "homogeneous"),
    "a negative α": (lambda: find_lmes(X, importance=-torch.ones(12, 12).double(), generator=G), "negative"),
    "an α of NaN": (lambda: find_lmes(X, importance=torch.full((12, 12), np.nan).double(), generator=G), "NaN"),
    "coupled filters": (
        lambda: find_lmes(X, importance="gaussian", importance_of="outputs", generator=G),
        "patterns of their own",
    ),
    "options beside a covariance": (lambda: find_lmes(GatedCovariance(X), activation="linear", generator=G), "already"),
    "views beside a covariance": (lambda: find_lmes(GatedCovariance(X), X, generator=G), "already"),
    "no generator": (lambda: find_lmes(X), "generator"),
    "a generator that is a seed": (lambda: find_lmes(X, generator=0), "generator"),
    "a generator of numpy": (lambda: find_lmes(X, generator=np.random.default_rng(0)), "generator"),
    "unknown starts": (lambda: find_lmes(X, starts="digits", generator=G), "starts"),
    "starts that are an array": (lambda: find_lmes(X, starts=np.ones((1, 3))), "starts"),
    "starts of other samples": (lambda: find_lmes(X, starts=torch.ones(1, 4).double()), "starts"),
    "starts at 0": (lambda: find_lmes(X, starts=torch.zeros(1, 3).double()), "direction"),
    "no starts": (lambda: find_lmes(X, n_starts=0, generator=G), "n_starts"),
    "no steps": (lambda: find_lmes(X, max_steps=0, generator=G), "max_steps"),
    "no tolerance": (lambda: find_lmes(X, tolerance=0.0, generator=G), "tolerance"),
    "a distance of 0": (lambda: find_lmes(X, distinct=0, generator=G), "distinct"),
    "filters that are an array": (lambda: find_lmes(X, generator=G, n_starts=2).match(np.ones((1, 3))), "filters"),
    "filters of other samples": (lambda: find_lmes(X, generator=G, n_starts=2).match(torch.ones(1, 4)), "filters"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_input_is_refused(what: str) -> None:
    act, names = REFUSED[what]
    with pytest.raises(InputError, match=names):
        act()


def test_the_test_of_theorem_1_takes_the_larger_roughness() -> None:
    found = find_lmes(X, n_starts=1, generator=generator(0))
    one = torch.ones(1).double()
    for measured, formula, certified in ((0.5, 0.9, True), (1.1, 0.9, False), (0.5, 1.1, False)):
        judged = replace(found, gaps=one, roughness=measured * one, roughness_formula=formula * one)
        assert bool(judged.certified) == certified


def test_a_saddle_is_not_stable_for_the_edges_about_it() -> None:
    """Without views margins are those of the samples: edges close by attract, but w does not lie on them."""
    inner, outer = torch.tensor([[1.0, 1.2], [1.0, -1.2]]), torch.tensor([[-1.0, 5.0], [-1.0, -5.0]])
    x = torch.cat([inner.repeat(25, 1), outer.repeat(25, 1)]).double()
    found = find_lmes(x, starts=torch.tensor([[1.0, 0.0]], dtype=torch.float64))
    energies = GatedCovariance(x).energy(torch.tensor([[1.0, 0.0], [1.0, 0.1]]).double())
    assert float(energies[1]) > float(energies[0])
    assert not found.stable.any()
    assert float(found.margins[0]) == pytest.approx(float(found.gaps[0]), abs=1e-9)
    assert float(found.smooth_margins[0]) > 0


@pytest.mark.parametrize("height", [0.1, 0.5, 2.0])
def test_what_lies_on_an_edge_that_repels_is_neither_certified_nor_stable(height: float) -> None:
    """Two of 802 samples lie on the plane, and their views pull w towards them."""
    draw = generator(0)
    right = torch.stack([2 + 4 * torch.rand(200, generator=draw), 0.1 * torch.randn(200, generator=draw)], dim=1)
    half = torch.cat([right, right * torch.tensor([-1.0, 1.0])])
    both = torch.cat([half, half * torch.tensor([1.0, -1.0])])
    x = torch.cat([both, torch.tensor([[0.0, height], [0.0, -height]])]).double()
    views = torch.cat([both, torch.tensor([[30.0, 0.0], [30.0, 0.0]])]).double()
    found = find_lmes(x, views, starts=torch.tensor([[1.0, 0.0]], dtype=torch.float64))
    angles = torch.tensor([0.0, 1e-4], dtype=torch.float64)
    at, off = GatedCovariance(x, views).energy(torch.stack([angles.cos(), angles.sin()], dim=1))
    assert float(off) > float(at)
    assert found.maximal.all()
    assert float(found.roughness[0]) == math.inf
    assert not found.certified.any()
    assert not found.stable.any()


def test_limits_close_together_are_the_one_of_largest_eigenvalue() -> None:
    every = find_lmes(population(CATEGORICAL), starts=PATTERNS)
    one = find_lmes(population(CATEGORICAL), starts=PATTERNS, distinct=3.0)
    assert len(one) == 1
    assert float(one.basins[0]) == 1
    assert float(one.eigenvalues[0]) == pytest.approx(float(every.eigenvalues.max()))
    assert float(every.eigenvalues.max()) > 1.5 * float(every.eigenvalues.min())


def test_an_importance_of_each_filter_is_judged_as_it_is_there() -> None:
    x = CATEGORICAL.sample(100, noise_std=0.1, generator=generator(11))
    field = GatedCovariance(x, importance=GaussianImportance(temperature=2.0), importance_of="each")
    found = find_lmes(field, starts=PATTERNS[:3])
    assert len(found) >= 2
    for w, margin, formula in zip(found.weights, found.margins, found.roughness_formula, strict=True):
        held = find_lmes(field.frozen(w), starts=w[None])
        torch.testing.assert_close(held.weights[0], w, rtol=0, atol=1e-8)
        assert float(margin) == pytest.approx(float(held.margins[0]), rel=1e-6)
        assert float(formula) == pytest.approx(float(held.roughness_formula[0]), rel=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("importance", ["uniform", GaussianImportance(temperature=2.0)])
def test_a_gpu_finds_the_same_patterns(importance: str | GaussianImportance) -> None:
    x = CATEGORICAL.sample(300, noise_std=0.1, generator=generator(11))
    starts = torch.randn(24, x.shape[1], generator=generator(12), dtype=torch.float64)
    here = find_lmes(x, starts=starts, importance=importance)
    there = find_lmes(x.cuda(), starts=starts.cuda(), importance=importance)
    assert there.weights.device.type == there.margins.device.type == there.assignment.device.type == "cuda"
    assert len(here) == len(there)
    torch.testing.assert_close(there.weights.cpu(), here.weights, rtol=0, atol=1e-8)
    torch.testing.assert_close(there.margins.cpu(), here.margins, rtol=0, atol=1e-8)
    assert there.match(x[:5]).index.device.type == "cuda"
    covariance = GatedCovariance(x.cuda(), importance=importance)
    flow = one_layer_flow(covariance, starts[:2].cuda(), times=[0.0, 1.0], tolerance=1e-4)
    assert flow.weights.device.type == "cuda"
    views = x + 0.1
    C = contrastive_covariance(x.cuda(), positives=views.cuda(), importance=importance)
    torch.testing.assert_close(C.cpu(), contrastive_covariance(x, positives=views, importance=importance))
