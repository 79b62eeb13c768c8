"""Pairwise importance: α as the formulas say, and the loss gradient that it reproduces, paper C, (2)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import booleans, floats, integers, sampled_from
from torch import Tensor

from kontrast.errors import InputError
from kontrast.patterns import (
    GaussianImportance,
    ImportanceRule,
    InfoNCEImportance,
    SpectralImportance,
    TripletImportance,
    UniformImportance,
)
from kontrast.patterns.importance import GivenImportance, importance_from, require_importance
from tests.cases import DTYPES, TOLERANCE, generator, randn
from tests.reference import one_layer_covariance as reference

TAU = sampled_from([1e-3, 0.1, 1.0, 30.0, 1e3])
RULES = [
    UniformImportance(),
    GaussianImportance(0.7),
    InfoNCEImportance(0.5),
    InfoNCEImportance(0.5, 0.3),
    TripletImportance(0.0),
    TripletImportance(1.5),
    SpectralImportance(),
    GivenImportance(lambda f, views: (f @ f.mT).abs()),
]


def outputs_of(rule: ImportanceRule, n: int, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    f = randn(n, 3, seed=seed, dtype=dtype)
    view = f + 0.5 * randn(n, 3, seed=seed + 1, dtype=dtype)
    if isinstance(rule, SpectralImportance):
        f, view = torch.nn.functional.normalize(f, dim=1), torch.nn.functional.normalize(view, dim=1)
    return f, view


def energy_from_pairs(f: Tensor, view: Tensor, alpha: Tensor, pull: Tensor) -> Tensor:
    """n² tr C_α[f] straight from (3), differentiable."""
    apart = (f[:, None] - f[None, :]).square().sum(2) / 2
    return (alpha * apart).sum() - (pull * (f - view).square().sum(1) / 2).sum()


def gradients(rule: ImportanceRule, n: int, seed: int, *, views: bool) -> tuple[Tensor, Tensor]:
    """−∇L and n²∇ tr C_{sg(α)}[f] by the weights of a small network."""
    first, second = randn(5, 4, seed=seed).requires_grad_(), randn(3, 5, seed=seed + 1).requires_grad_()
    x = randn(n, 4, seed=seed + 2)
    x_view = x + 0.3 * randn(n, 4, seed=seed + 3)

    def net(rows: Tensor) -> Tensor:
        f = torch.tanh(rows @ first.mT) @ second.mT
        return torch.nn.functional.normalize(f, dim=1) if isinstance(rule, SpectralImportance) else f

    f, view = net(x), net(x_view) if views else None
    weights = rule(f, view)
    assert not weights.alpha.requires_grad
    assert not weights.positive.requires_grad
    loss = torch.autograd.grad(-rule.loss(f, view), [first, second], retain_graph=True)
    # Without views both terms are of f alone, and the second is 0.
    energy = energy_from_pairs(f, f if view is None else view, weights.alpha, weights.positive)
    of_energy = torch.autograd.grad(energy, [first, second])
    return torch.cat([g.flatten() for g in loss]), torch.cat([g.flatten() for g in of_energy])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@settings(max_examples=10)
@given(n=integers(2, 9), seed=integers(0, 2**16), views=booleans())
def test_the_loss_has_the_gradient_of_the_energy(rule: ImportanceRule, n: int, seed: int, views: bool) -> None:
    loss, energy = gradients(rule, n, seed, views=views)
    torch.testing.assert_close(loss, energy, rtol=1e-10, atol=1e-10 * float(energy.norm()) + 1e-13)


@settings(max_examples=10)
@given(n=integers(2, 9), seed=integers(0, 2**16), tau=TAU, epsilon=floats(0, 10), margin=floats(0, 5))
def test_it_has_at_any_temperature_and_margin(n: int, seed: int, tau: float, epsilon: float, margin: float) -> None:
    for rule in (
        GaussianImportance(tau),
        InfoNCEImportance(tau),
        InfoNCEImportance(tau, epsilon),
        TripletImportance(margin),
    ):
        loss, energy = gradients(rule, n, seed, views=True)
        torch.testing.assert_close(loss, energy, rtol=1e-10, atol=1e-10 * float(energy.norm()) + 1e-13)


@settings(max_examples=10)
@given(n=integers(2, 7), seed=integers(0, 2**16), tau=floats(0.2, 5), epsilon=floats(0, 3), margin=floats(0, 3))
def test_alpha_is_as_the_formulas_say(n: int, seed: int, tau: float, epsilon: float, margin: float) -> None:
    for rule, expected in (
        (UniformImportance(), lambda f, view: torch.ones(n, n).to(f) - torch.eye(n).to(f)),
        (GaussianImportance(tau), lambda f, view: reference.gaussian(f, view, tau)),
        (InfoNCEImportance(tau, epsilon), lambda f, view: reference.info_nce(f, view, tau, epsilon)),
        (TripletImportance(margin), lambda f, view: reference.triplet(f, view, margin)),
        (SpectralImportance(), reference.spectral),
    ):
        f, view = outputs_of(rule, n, seed)
        weights = rule(f, view)
        torch.testing.assert_close(weights.alpha, expected(f, view), rtol=1e-11, atol=1e-12)
        pull = torch.full((n,), 2.0).to(f) if isinstance(rule, SpectralImportance) else weights.alpha.sum(1)
        torch.testing.assert_close(weights.positive, pull, rtol=1e-14, atol=0)
        assert torch.equal(weights.alpha, weights.alpha.mT) or not rule.symmetric


@given(n=integers(2, 7), seed=integers(0, 2**16), tau=floats(0.2, 5), epsilon=floats(0, 3), margin=floats(0, 3))
def test_losses_are_as_the_formulas_say(n: int, seed: int, tau: float, epsilon: float, margin: float) -> None:
    f, view = outputs_of(UniformImportance(), n, seed)
    unit, unit_view = outputs_of(SpectralImportance(), n, seed)
    for found, expected in (
        (UniformImportance().loss(f, view), reference.quadratic_loss(f, view)),
        (GaussianImportance(tau).loss(f), reference.gaussian_loss(f, tau)),
        (InfoNCEImportance(tau, epsilon).loss(f, view), reference.info_nce_loss(f, view, tau, epsilon)),
        (TripletImportance(margin).loss(f, view), reference.triplet_loss(f, view, margin)),
        (SpectralImportance().loss(unit, unit_view), reference.spectral_loss(unit, unit_view)),
    ):
        assert float(found) == pytest.approx(expected, rel=1e-11, abs=1e-11)


@settings(max_examples=10)
@given(n=integers(2, 9), seed=integers(0, 2**16), top=integers(0, 8), height=integers(1, 9), dtype=sampled_from(DTYPES))
def test_rows_are_those_of_the_whole(n: int, seed: int, top: int, height: int, dtype: torch.dtype) -> None:
    rows = slice(min(top, n - 1), min(top + height, n))
    for rule in RULES:
        f, view = outputs_of(rule, n, seed, dtype)
        block = rule.rows(f, view, rows)
        assert block.dtype == dtype
        torch.testing.assert_close(block, rule(f, view).alpha[rows], **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tau", [1e-3, 1e3])
def test_extreme_temperatures_stay_finite(tau: float, dtype: torch.dtype) -> None:
    f, view = outputs_of(UniformImportance(), 8, 0, dtype)
    for rule in (
        GaussianImportance(tau),
        InfoNCEImportance(tau),
        InfoNCEImportance(tau, 1e-9),
        InfoNCEImportance(tau, 1e9),
    ):
        leaf = (30 * f).requires_grad_()
        rule.loss(leaf, 30 * view).backward()
        assert leaf.grad is not None
        assert torch.isfinite(leaf.grad).all()
        weights = rule(leaf, 30 * view)
        assert torch.isfinite(weights.alpha).all()
        assert bool((weights.alpha >= 0).all())
    rows = InfoNCEImportance(tau)(30 * f, 30 * view).alpha.sum(1)
    torch.testing.assert_close(rows, torch.ones_like(rows), **TOLERANCE[dtype])


def test_outputs_far_from_zero_keep_their_distances() -> None:
    f, view = outputs_of(UniformImportance(), 6, 3)
    far = GaussianImportance(0.5)(f + 1e6, view + 1e6).alpha
    torch.testing.assert_close(far, GaussianImportance(0.5)(f, view).alpha, rtol=1e-8, atol=1e-8)


def test_without_views_each_sample_is_its_own_view() -> None:
    f, _ = outputs_of(UniformImportance(), 6, 1)
    for rule in (InfoNCEImportance(0.5, 0.7), TripletImportance(0.4)):
        torch.testing.assert_close(rule(f).alpha, rule(f, f).alpha, rtol=0, atol=0)


def test_a_given_matrix_is_taken_as_it_is_its_diagonal_too() -> None:
    alpha = torch.rand(4, 4, generator=generator()).double()
    f, view = outputs_of(UniformImportance(), 4, 0)
    rule = importance_from(alpha)
    assert torch.equal(rule(f, view).alpha, alpha)
    assert torch.equal(rule(f, view).positive, alpha.sum(1))
    loss, energy = gradients(rule, 4, 0, views=True)
    torch.testing.assert_close(loss, energy, rtol=1e-10, atol=1e-10)


def test_importance_from_names() -> None:
    assert importance_from("uniform") == UniformImportance()
    assert importance_from("gaussian") == GaussianImportance(1.0)
    assert importance_from("info_nce") == InfoNCEImportance(1.0, 0.0)
    assert importance_from("triplet") == TripletImportance(1.0)
    assert importance_from("spectral") == SpectralImportance()
    rule = TripletImportance(3.0)
    assert importance_from(rule) is rule


def alpha_with(value: float) -> Tensor:
    alpha = torch.ones(3, 3, dtype=torch.float64)
    alpha[0, 1] = value
    return alpha


def by_columns(alpha: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls the layout a beta
        return alpha.to_sparse_csc()


OUTPUTS = randn(3, 2)
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: importance_from(alpha_with(-0.5)), "must not be negative, got -0.5"),
    (lambda: importance_from(alpha_with(float("nan"))), "NaN or infinite"),
    (lambda: importance_from(alpha_with(float("inf")).to_sparse()), "NaN or infinite"),
    (lambda: importance_from(torch.ones(3, 2)), r"must be square, .* got \(3, 2\)"),
    (lambda: importance_from(torch.ones(1, 1)), "at least 2 samples"),
    (lambda: importance_from(torch.ones(3, 3, dtype=torch.int64)), "floating-point"),
    (lambda: importance_from(np.ones((3, 3))), "as_tensor"),
    (lambda: importance_from("infonce"), "one of uniform, gaussian, info_nce, triplet, spectral, got 'infonce'"),
    (lambda: importance_from(3), "a name .* got int"),
    (lambda: require_importance(by_columns(torch.ones(3, 3))), "COO or CSR"),
    (lambda: GivenImportance(torch.ones(4, 4))(OUTPUTS), r"shape \(3, 3\)"),
    (lambda: GivenImportance(lambda f, views: f)(OUTPUTS), r"shape \(3, 3\)"),
    (lambda: GivenImportance(lambda f, views: -torch.ones(3, 3))(OUTPUTS), "must not be negative"),
    (lambda: GivenImportance(lambda f, views: [1.0])(OUTPUTS), "got list"),
    (lambda: GivenImportance(lambda f: f @ f.mT)(OUTPUTS), "takes 1 positional argument"),
    (lambda: importance_from(InfoNCEImportance), r"make an instance, InfoNCEImportance\(…\)"),
    (lambda: GaussianImportance(0.0), "temperature must be a positive number"),
    (lambda: InfoNCEImportance(-1.0), "temperature must be a positive number"),
    (lambda: InfoNCEImportance("warm"), "temperature must be a positive number"),
    (lambda: InfoNCEImportance(1.0, -0.1), "epsilon must be a number of 0 or more, got -0.1"),
    (lambda: InfoNCEImportance(1.0, "x"), "epsilon must be a number"),
    (lambda: TripletImportance(float("nan")), "margin must be a number"),
    (lambda: UniformImportance()(OUTPUTS, randn(4, 2)), "positives must have the shape of outputs"),
    (lambda: UniformImportance()(OUTPUTS[:1]), "at least 2 samples"),
    (lambda: UniformImportance()(OUTPUTS.numpy()), "outputs must be Tensor, got ndarray; use torch.as_tensor"),
    (lambda: UniformImportance()(OUTPUTS, "x"), "positives must be Tensor, got str"),
    (lambda: UniformImportance().loss(OUTPUTS.long()), "floating-point"),
    (lambda: GaussianImportance()(OUTPUTS / 0), "NaN or infinite"),
    (lambda: SpectralImportance()(OUTPUTS), "rows of length 1"),
    (
        lambda: SpectralImportance().loss(torch.nn.functional.normalize(OUTPUTS, dim=1), OUTPUTS),
        "those of positives are off by",
    ),
]


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[f"{k}" for k in range(len(REFUSED))])
def test_bad_input_is_refused(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_coinciding_outputs_weigh_one_and_no_more(dtype: torch.dtype) -> None:
    """Rounding makes their squared distance negative before it is cut off, and a small τ would blow that up."""
    outputs = 1e3 * randn(60, 7, seed=0, dtype=dtype).repeat(2, 1)
    alpha = GaussianImportance(1e-9)(outputs).alpha
    assert torch.isfinite(alpha).all()
    assert float(alpha.max()) <= 1
