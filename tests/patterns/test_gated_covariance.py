"""A(w) behind gates: equal to the sum over pairs, half the energy's gradient by 1/p, and blind to what is round-off."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import booleans, floats, integers, sampled_from
from torch import Tensor

from kontrast.errors import InputError
from kontrast.patterns import (
    BatchNormalized,
    Ending,
    GatedCovariance,
    GaussianImportance,
    ImportanceWeights,
    InfoNCEImportance,
    LatentCategorical,
    OneLayerField,
    PairLaplacian,
    SpectralImportance,
    orthonormal_patterns,
    power_iteration,
)
from kontrast.patterns.homogeneous import homogeneous_from
from tests.cases import DTYPES, TOLERANCE, generator, randn
from tests.reference import one_layer as reference

ACTIVATIONS = ["relu", "leaky_relu:0.2", "linear", "monomial:3", "relu_power:2"]
RULES = {"gaussian": GaussianImportance(0.7), "info_nce": InfoNCEImportance(0.5, 0.3)}
SEEDS = integers(0, 2**16)
N, D, K = 6, 3, 2


def draw(seed: int, *, views: bool, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor | None, Tensor]:
    x = randn(N, D, seed=seed, dtype=dtype) + 0.3
    positives = x + 0.4 * randn(N, D, seed=seed + 1, dtype=dtype) if views else None
    return x, positives, randn(K, D, seed=seed + 2, dtype=dtype)


def draw_alpha(seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Asymmetric, with weights on the diagonal, and about half of them 0."""
    return torch.relu(randn(N, N, seed=seed + 3, dtype=dtype))


def weights_of_uniform(x: Tensor) -> ImportanceWeights:
    ones = torch.ones(N, N, dtype=x.dtype) - torch.eye(N, dtype=x.dtype)
    return ImportanceWeights(ones, ones.sum(1))


def outputs_of(field: GatedCovariance, weights: Tensor, rows: Tensor | None) -> Tensor | None:
    return None if rows is None else field.activation(rows @ weights.mT)


def largest(tensor: Tensor) -> float:
    return float(tensor.abs().max())


def check(field: GatedCovariance, x: Tensor, positives: Tensor | None, weights: Tensor, pairs: list[ImportanceWeights]):
    """Products, energies and matrices of each filter against the sum over pairs with that filter's α."""
    products, energies = field.product(weights), field.energy(weights)
    assert products.dtype == energies.dtype == x.dtype
    tolerance = 100 * TOLERANCE[x.dtype]["atol"]
    for w, product, energy, own in zip(weights, products, energies, pairs, strict=True):
        A = reference.gated_covariance(x, positives, w, field.activation, own.alpha, own.positive)
        size = (1 + largest(A)) * (1 + float(w.norm())) ** 2 * (1 + largest(own.alpha))
        torch.testing.assert_close(product, A @ w, rtol=0, atol=tolerance * size)
        torch.testing.assert_close(energy, w @ A @ w, rtol=0, atol=tolerance * size)
        if not field.coupled:
            torch.testing.assert_close(field.matrix(w), A, rtol=0, atol=tolerance * size)


@settings(max_examples=12)
@given(seed=SEEDS, views=booleans(), activation=sampled_from(ACTIVATIONS), dtype=sampled_from(DTYPES))
def test_it_is_the_sum_over_pairs(seed: int, views: bool, activation: str, dtype: torch.dtype) -> None:
    x, positives, weights = draw(seed, views=views, dtype=dtype)
    alpha = draw_alpha(seed, dtype)
    given_pairs = ImportanceWeights(alpha, alpha.sum(1))
    for importance, pairs in (
        ("uniform", weights_of_uniform(x)),
        (alpha, given_pairs),
        (alpha.to_sparse(), given_pairs),
        (ImportanceWeights(alpha, alpha[0]), ImportanceWeights(alpha, alpha[0])),
    ):
        field = GatedCovariance(x, positives, importance=importance, activation=activation)
        assert field.is_fixed
        assert not field.coupled
        assert field.has_views == views
        check(field, x, positives, weights, [pairs] * K)


@settings(max_examples=12)
@given(seed=SEEDS, views=booleans(), activation=sampled_from(ACTIVATIONS), rule=sampled_from(sorted(RULES)))
def test_a_rule_looks_at_samples_at_all_outputs_or_at_each(seed: int, views: bool, activation: str, rule: str) -> None:
    x, positives, weights = draw(seed, views=views)
    make = RULES[rule]

    def field_of(what: str) -> GatedCovariance:
        return GatedCovariance(x, positives, importance=make, importance_of=what, activation=activation)

    check(field_of("samples"), x, positives, weights, [make(x, positives)] * K)
    field = field_of("outputs")
    f, other = outputs_of(field, weights, x), outputs_of(field, weights, positives)
    assert field.coupled
    assert not field.is_fixed
    check(field, x, positives, weights, [make(f, other)] * K)
    columns = [make(f[:, [k]], None if other is None else other[:, [k]]) for k in range(K)]
    each = field_of("each")
    assert not each.coupled
    assert not each.is_fixed
    check(each, x, positives, weights, columns)
    frozen = each.frozen(weights[0])
    assert frozen.is_fixed
    assert not each.is_fixed
    check(frozen, x, positives, weights, [columns[0]] * K)


@given(seed=SEEDS, views=booleans(), activation=sampled_from(ACTIVATIONS), each=booleans())
def test_products_are_the_energys_gradient_by_2p_with_alpha_held(
    seed: int, views: bool, activation: str, each: bool
) -> None:
    x, positives, weights = draw(seed, views=views)
    options = {"importance": RULES["info_nce"], "importance_of": "each"} if each else {"importance": draw_alpha(seed)}
    field = GatedCovariance(x, positives, activation=activation, **options)
    h = homogeneous_from(activation)
    for w, product in zip(weights, field.product(weights), strict=True):
        w.requires_grad_(True)
        f, other = h(x @ w), None if positives is None else h(positives @ w)
        alpha = draw_alpha(seed)
        pairs = ImportanceWeights(alpha, alpha.sum(1))
        if each:
            pairs = RULES["info_nce"](f.detach()[:, None], None if other is None else other.detach()[:, None])
        energy = reference.energy(f, other, pairs.alpha, pairs.positive)
        (gradient,) = torch.autograd.grad(energy, w)
        torch.testing.assert_close(2 * h.degree * product, gradient, rtol=1e-10, atol=1e-10 * (1 + largest(gradient)))


@settings(max_examples=12)
@given(seed=SEEDS, views=booleans(), activation=sampled_from(ACTIVATIONS), factor=floats(0.01, 100))
def test_homogeneity(seed: int, views: bool, activation: str, factor: float) -> None:
    x, positives, weights = draw(seed, views=views)
    field = GatedCovariance(x, positives, activation=activation)
    p = field.activation.degree
    for power, found, scaled in (
        (2 * p - 1, field.product(weights), field.product(factor * weights)),
        (2 * p, field.energy(weights), field.energy(factor * weights)),
        (2 * p - 2, field.matrix(weights[0]), field.matrix(factor * weights[0])),
    ):
        torch.testing.assert_close(
            scaled, factor**power * found, rtol=1e-9, atol=1e-11 * factor**power * largest(found)
        )
    torch.testing.assert_close(field.matrix(weights[1]) @ weights[1], field.product(weights)[1])


def test_gates_given_take_the_place_of_the_filters_own() -> None:
    x, _, weights = draw(0, views=False)
    gates = torch.linspace(0, 1, N, dtype=torch.float64)
    expected = torch.cov((gates[:, None] * x).mT, correction=0)
    torch.testing.assert_close(GatedCovariance(x).matrix(weights[0], gates=gates), expected)


def test_filters_do_not_need_gradients_and_samples_pass_none_on() -> None:
    x, positives, weights = draw(0, views=True)
    field = GatedCovariance(x.requires_grad_(True), positives, importance=draw_alpha(0).requires_grad_(True))
    for found in (field.product(weights.requires_grad_(True)), field.energy(weights), field.matrix(weights[0])):
        assert not found.requires_grad


def test_it_is_a_field_of_the_dynamics() -> None:
    x, positives, weights = draw(0, views=True)
    field: OneLayerField = GatedCovariance(x, positives)
    torch.testing.assert_close(field.gates(weights), weights @ torch.cat([x, positives]).mT > 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_a_tolerance_round_off_opens_gates_and_patterns_are_missed(dtype: torch.dtype) -> None:
    patterns = orthonormal_patterns(8, 10, generator=generator(0))
    p = torch.arange(1.0, 9.0).double() / 36
    x, probabilities = LatentCategorical(patterns.to(dtype), p.to(dtype)).states()
    weigh = PairLaplacian.of_features(8 * probabilities[:, None])  # α_ij = n² p_i p_j
    starts = randn(40, 10, seed=1, dtype=dtype)

    def errors(**options: float) -> Tensor:
        field = GatedCovariance(x, importance=weigh, **options)
        run = power_iteration(field, starts, max_steps=300, tolerance=1e3 * torch.finfo(dtype).eps, largest_shift=0.0)
        ended = torch.tensor([ending is not Ending.SILENT for ending in run.endings])
        return (run.weights[ended][:, None] - patterns.to(dtype)).norm(dim=2).min(1).values

    assert errors().max() < (1e-9 if dtype == torch.float64 else 1e-5)
    assert errors(gate_tolerance=0.0).max() > 0.05


@given(seed=SEEDS, views=booleans(), activation=sampled_from(ACTIVATIONS))
def test_batch_normalization_ascends_the_ratio_whatever_its_sign(seed: int, views: bool, activation: str) -> None:
    x, positives, weights = draw(seed, views=views)
    weights = weights / weights.norm(dim=1, keepdim=True)
    field = BatchNormalized(GatedCovariance(x, positives, importance=draw_alpha(seed), activation=activation))
    h, alpha = homogeneous_from(activation), draw_alpha(seed)
    for w, product, energy in zip(weights, field.product(weights), field.energy(weights), strict=True):
        w = w.clone().requires_grad_(True)
        f = h(x @ w)
        if f.detach().var() < 1e-6:
            continue
        over = reference.energy(f, None if positives is None else h(positives @ w), alpha, alpha.sum(1))
        ratio = over / f.var(correction=0)
        torch.testing.assert_close(energy, ratio.detach(), rtol=1e-9, atol=1e-9)
        (gradient,) = torch.autograd.grad(ratio, w)
        rise = gradient / (2 * h.degree * ratio.detach().abs())
        torch.testing.assert_close(product - w.detach(), rise, rtol=1e-8, atol=1e-8 * (1 + largest(rise)))
        assert abs(float(gradient @ w.detach())) < 1e-9 * (1 + largest(gradient))  # BatchNorm does not see the length


@pytest.mark.parametrize("activation", ["relu", "linear", "relu_power:2"])
def test_normalized_by_the_batch_uniform_alpha_learns_nothing(activation: str) -> None:
    x, _, weights = draw(5, views=False)
    field = BatchNormalized(GatedCovariance(x, activation=activation))
    torch.testing.assert_close(field.energy(weights), torch.ones(K).double())
    run = power_iteration(field, weights)
    assert set(run.endings) == {Ending.CONVERGED}
    assert int(run.n_steps.max()) == 1


def test_a_normalized_filter_without_outputs_is_silent() -> None:
    x = randn(20, 3, seed=0).abs()
    field = BatchNormalized(GatedCovariance(x, x + 0.1 * randn(20, 3, seed=1).abs()))
    assert power_iteration(field, -torch.ones(1, 3).double()).endings == (Ending.SILENT,)


X = randn(N, D, seed=0)
REFUSED = {
    "an array": (lambda: GatedCovariance(X.numpy()), "rows"),
    "whole numbers": (lambda: GatedCovariance(X.long()), "float32 or float64"),
    "half precision": (lambda: GatedCovariance(X.half()), "float32 or float64"),
    "sparse samples": (lambda: GatedCovariance(X.to_sparse()), "dense"),
    "nothing": (lambda: GatedCovariance(None), "rows"),
    "huge samples": (lambda: GatedCovariance(1e200 * X), "huge"),
    "a string": (lambda: GatedCovariance("samples"), "rows"),
    "one axis": (lambda: GatedCovariance(X[0]), "rows"),
    "no sample": (lambda: GatedCovariance(X[:0]), "rows"),
    "one sample": (lambda: GatedCovariance(X[:1]), "no variance"),
    "samples all the same": (lambda: GatedCovariance(X[:1].expand(5, D)), "no variance"),
    "NaN": (lambda: GatedCovariance(X / 0 * 0), "NaN"),
    "views of another length": (lambda: GatedCovariance(X, X[:4]), "positives"),
    "views of another type": (lambda: GatedCovariance(X, X.float()), "positives"),
    "views that are an array": (lambda: GatedCovariance(X, X.numpy()), "positives"),
    "views that hold NaN": (lambda: GatedCovariance(X, X / 0 * 0), "positives"),
    "a negative α": (lambda: GatedCovariance(X, importance=-torch.ones(N, N).double()), "negative"),
    "an α of NaN": (lambda: GatedCovariance(X, importance=torch.full((N, N), np.nan).double()), "NaN"),
    "an infinite sparse α": (lambda: GatedCovariance(X, importance=(torch.eye(N) / 0).double().to_sparse()), "NaN"),
    "an α of others": (lambda: GatedCovariance(X, importance=torch.ones(4, 4).double()), "shape"),
    "an α that is an array": (lambda: GatedCovariance(X, importance=np.ones((N, N))), "importance"),
    "a Laplacian of others": (
        lambda: GatedCovariance(X, importance=PairLaplacian.of_features(torch.ones(4, 1).double())),
        "4 samples",
    ),
    "a Laplacian of another type": (
        lambda: GatedCovariance(X, importance=PairLaplacian.of_features(torch.ones(N, 1))),
        "float32",
    ),
    "an unknown rule": (lambda: GatedCovariance(X, importance="cosine"), "importance"),
    "the spectral rule of long samples": (lambda: GatedCovariance(X, importance=SpectralImportance()), "length 1"),
    "α of something else": (lambda: GatedCovariance(X, importance="gaussian", importance_of="views"), "importance_of"),
    "an activation that is not homogeneous": (lambda: GatedCovariance(X, activation="tanh"), "homogeneous"),
    "a module that is not": (lambda: GatedCovariance(X, activation=torch.nn.GELU()), "homogeneous"),
    "a negative tolerance": (lambda: GatedCovariance(X, gate_tolerance=-1e-9), "gate_tolerance"),
    "a tolerance that is a string": (lambda: GatedCovariance(X, gate_tolerance="0"), "gate_tolerance"),
    "weights that are an array": (lambda: GatedCovariance(X).product(np.ones((2, D))), "weights"),
    "weights of other samples": (lambda: GatedCovariance(X).energy(torch.ones(2, 5).double()), "weights"),
    "weights of another type": (lambda: GatedCovariance(X).gates(torch.ones(2, D).long()), "int64"),
    "one filter as rows": (lambda: GatedCovariance(X).matrix(torch.ones(1, D).double()), "one filter"),
    "a covariance that is none": (lambda: BatchNormalized(X), "GatedCovariance"),
    "coupled filters to normalise": (
        lambda: BatchNormalized(GatedCovariance(X, importance="gaussian", importance_of="outputs")),
        "importance_of='outputs'",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_input_is_refused(what: str) -> None:
    act, names = REFUSED[what]
    with pytest.raises(InputError, match=names):
        act()


def test_batch_normalization_keeps_the_gates_that_rounding_would_open() -> None:
    model = LatentCategorical(orthonormal_patterns(8, 10, generator=generator(0)), torch.full((8,), 1 / 8).double())
    x = model.sample(400, generator=generator(1))
    field = BatchNormalized(GatedCovariance(x))
    torch.testing.assert_close(field.product(model.patterns), model.patterns)  # uniform α, no views: all w are fixed
