"""A(w) of a Gaussian mixture: equal to its integrals, half the energy's gradient, and the flow's Jacobian with B."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import booleans, floats, integers, sampled_from
from torch import Tensor, nn

from kontrast.errors import InputError
from kontrast.patterns import (
    THRESHOLD_Q,
    Homogeneous,
    LatentCategorical,
    LatentSummation,
    MixtureCovariance,
    OneLayerField,
    nearly_orthogonal_patterns,
    orthonormal_patterns,
    power_iteration,
)
from kontrast.patterns.homogeneous import homogeneous_from
from tests.cases import DTYPES, TOLERANCE, generator, randn
from tests.reference import one_layer_population as reference

ACTIVATIONS = ["relu", "leaky_relu:0.3", "linear", Homogeneous(1.0, 1.0, 1.0)]  # the last is |z|
SEEDS = integers(0, 2**16)


def draw_mixture(seed: int, *, s: int = 4, d: int = 3, noise: float = 0.5, **options: object) -> MixtureCovariance:
    p = torch.rand(s, generator=generator(seed), dtype=torch.float64) + 0.05
    return MixtureCovariance(randn(s, d, seed=seed), p / p.sum(), noise, **options)


def unit(w: Tensor) -> Tensor:
    return w / w.norm(dim=-1, keepdim=True)


def flow(covariance: MixtureCovariance, w: Tensor) -> Tensor:
    """The right side of (7), as a function of w that is constant along rays."""
    e = unit(w)
    v = covariance.product(e[None])[0]
    return v - (v @ e) * e


def fixed_point(covariance: MixtureCovariance, w: Tensor, n_steps: int = 4000) -> Tensor:
    """The power iteration (94) with a shift, to where it stays."""
    w = unit(w)[None]
    for _ in range(n_steps):
        w, before = unit(covariance.product(w) + 0.1 * w), w
        if (w - before).abs().max() < 1e-15:
            break
    return w[0]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("noise", [0.1, 1.0])
def test_it_equals_its_integrals_in_two_dimensions(activation: str | Homogeneous, noise: float) -> None:
    for seed in range(2):
        covariance = draw_mixture(seed, d=2, s=3, noise=noise, activation=activation)
        h, w = homogeneous_from(activation), randn(2, seed=seed + 9)
        parts = (covariance.means.numpy(), covariance.probabilities.numpy(), noise, w.numpy())
        A, output = reference.moments_2d(*parts, lambda z, h=h: h.gate(torch.from_numpy(z)).numpy())
        np.testing.assert_allclose(covariance.matrix(w), A, rtol=0, atol=1e-12)
        assert covariance.mean_output(w) == pytest.approx(output, abs=1e-12)
        M = reference.boundary_2d(*parts)
        np.testing.assert_allclose(covariance.boundary_matrix(w), M, rtol=0, atol=1e-9 * (1 + abs(M).max()))


@pytest.mark.parametrize("activation", ["relu", "leaky_relu:0.3"])
def test_sample_covariances_scatter_around_it(activation: str) -> None:
    covariance = draw_mixture(3, s=5, d=4, noise=0.4, activation=activation)
    w = randn(4, seed=1)
    mean, error = reference.sampled_moments(
        covariance.means,
        covariance.probabilities,
        0.4,
        w,
        homogeneous_from(activation).gate,
        n=4000,
        n_batches=50,
        generator=generator(2),
    )
    A = covariance.matrix(w)
    assert ((mean - A).abs() < 4.5 * error).all()
    assert error.max() < 0.01 * A.abs().max()  # the errors are small enough to tell


@settings(max_examples=12)
@given(
    seed=SEEDS,
    s=integers(1, 6),
    d=integers(1, 4),
    noise=sampled_from([0.0, 0.01, 0.5, 3.0]),
    activation=sampled_from(ACTIVATIONS),
    length=floats(0.1, 10),
)
def test_product_energy_and_matrix_agree_for_weights_of_any_length(
    seed: int, s: int, d: int, noise: float, activation: str | Homogeneous, length: float
) -> None:
    covariance = draw_mixture(seed, s=s, d=d, noise=noise, activation=activation)
    weights = randn(3, d, seed=seed + 1)
    products, energies = covariance.product(weights), covariance.energy(weights)
    for w, product, energy in zip(weights, products, energies, strict=True):
        A = covariance.matrix(w)
        assert torch.equal(A, A.mT) or torch.allclose(A, A.mT, rtol=0, atol=1e-15)
        assert torch.linalg.eigvalsh(A)[0] > -1e-13 * (1 + A.norm())
        torch.testing.assert_close(A @ w, product, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(w @ A @ w, energy, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(covariance.matrix(length * w), A, rtol=1e-11, atol=1e-12)
        assert covariance.mean_output(length * w) == pytest.approx(length * covariance.mean_output(w), rel=1e-12)
    torch.testing.assert_close(covariance.product(length * weights), length * products, rtol=1e-11, atol=1e-12)


@given(seed=SEEDS, noise=floats(0.05, 3), activation=sampled_from(ACTIVATIONS))
def test_the_product_is_half_the_gradient_of_the_energy(seed: int, noise: float, activation: str | Homogeneous) -> None:
    covariance = draw_mixture(seed, noise=noise, activation=activation)
    weights = randn(3, 3, seed=seed + 1).requires_grad_()
    (gradient,) = torch.autograd.grad(covariance.energy(weights).sum(), weights)
    torch.testing.assert_close(gradient / 2, covariance.product(weights).detach(), rtol=1e-9, atol=1e-9)


@given(seed=SEEDS, noise=floats(0.3, 2), activation=sampled_from(ACTIVATIONS), length=sampled_from([1.0, 3.0]))
def test_the_roughness_matrix_is_the_slope_of_the_matrix(
    seed: int, noise: float, activation: str | Homogeneous, length: float
) -> None:
    covariance = draw_mixture(seed, noise=noise, activation=activation)
    w, u, step = length * unit(randn(3, seed=seed + 1)), randn(3, seed=seed + 2), 1e-4
    ahead, behind = (covariance.matrix(w + t * step * u) @ w for t in (1, -1))
    B = covariance.roughness_matrix(w)
    torch.testing.assert_close((ahead - behind) / (2 * step), -B @ u, rtol=0, atol=1e-6)
    assert (B @ w).abs().max() < 1e-13
    torch.testing.assert_close(B, covariance.roughness_matrix(w / 7), rtol=1e-10, atol=1e-12)
    assert covariance.roughness(w) == pytest.approx(float(torch.linalg.eigvalsh(B).abs().max()), abs=1e-14)


def test_the_roughness_bounds_every_change_and_is_reached() -> None:
    covariance = draw_mixture(0, d=4, noise=0.6)
    w, step = unit(randn(4, seed=1)), 1e-5
    directions = randn(60, 4, seed=2)
    top = torch.linalg.eigh(covariance.roughness_matrix(w)).eigenvectors[:, -1]
    changes = []
    for u in [*directions, top]:
        v = unit(w + step * (u - (u @ w) * w))
        changes.append(float(((covariance.matrix(v) - covariance.matrix(w)) @ w).norm() / (v - w).norm()))
    assert max(changes) == pytest.approx(covariance.roughness(w), rel=1e-3)
    assert changes[-1] == pytest.approx(max(changes), rel=1e-3)


@pytest.mark.parametrize("activation", ["relu", "leaky_relu:0.3"])
@pytest.mark.parametrize("seed", range(3))
def test_the_flow_has_the_jacobian_of_its_margin(activation: str, seed: int) -> None:
    covariance = draw_mixture(seed, d=4, s=5, noise=0.5, activation=activation)
    w = fixed_point(covariance, randn(4, seed=seed + 1))
    assert flow(covariance, w).norm() < 1e-11
    step, eye = 1e-5, torch.eye(4, dtype=torch.float64)
    columns = [(flow(covariance, w + step * e) - flow(covariance, w - step * e)) / (2 * step) for e in eye]
    P, A, B = eye - torch.outer(w, w), covariance.matrix(w), covariance.roughness_matrix(w)
    energy = w @ A @ w
    torch.testing.assert_close(torch.stack(columns, 1), P @ (A - B - energy * eye) @ P, rtol=0, atol=1e-6)
    tangent = torch.linalg.qr(w[:, None], mode="complete").Q[:, 1:]
    slowest = torch.linalg.eigvalsh(tangent.mT @ torch.stack(columns, 1) @ tangent)[-1]
    assert covariance.stability_margin(w) == pytest.approx(-float(slowest), abs=1e-6)
    assert covariance.stability_margin(5 * w) == pytest.approx(covariance.stability_margin(w), rel=1e-9)
    assert covariance.stability_margin(w) > 0  # the iteration stayed there


@given(seed=SEEDS, noise=floats(0.05, 2))
def test_roughness_only_ever_steadies_relu(seed: int, noise: float) -> None:
    """B ⪰ 0, so that the margin is at least the gap: every LME is stable, certified by Theorem 1 or not."""
    covariance = draw_mixture(seed, noise=noise)
    w = unit(randn(3, seed=seed + 1))
    A = covariance.matrix(w)
    assert torch.linalg.eigvalsh(covariance.roughness_matrix(w))[0] > -1e-14
    P = torch.eye(3, dtype=torch.float64) - torch.outer(w, w)
    without = w @ A @ w - torch.linalg.eigvalsh(P @ A @ P)[-1]
    assert covariance.stability_margin(w) >= float(without) - 1e-12


def test_leaky_relu_has_locally_maximal_eigenvectors_that_are_not_stable() -> None:
    """All data far behind the plane: E[h] < 0, B ⪯ 0 and larger than the gap, as Theorem 1 fears."""
    means = torch.tensor([[-1.5, 0.0], [-2.0, 0.0]], dtype=torch.float64)
    half = torch.full((2,), 0.5, dtype=torch.float64)
    covariance = MixtureCovariance(means, half, 1.0, activation="leaky_relu:0.5")
    w = torch.tensor([1.0, 0.0], dtype=torch.float64)
    A = covariance.matrix(w)
    gap = float(A[0, 0] - A[1, 1])
    assert abs(A[0, 1]) < 1e-15
    assert covariance.mean_output(w) < 0 < gap < covariance.roughness(w)
    assert covariance.stability_margin(w) == pytest.approx(gap - covariance.roughness(w), abs=1e-13)
    left = fixed_point(covariance, torch.tensor([1.0, 1e-3], dtype=torch.float64), 200)
    assert left[0] < 0.99  # and the iteration leaves it


def test_the_power_iteration_swings_about_a_stable_point_where_the_roughness_is_large() -> None:
    U = orthonormal_patterns(8, 8, generator=generator())
    covariance = MixtureCovariance.of(LatentCategorical(U, torch.full((8,), 0.125, dtype=U.dtype)), 0.01)
    w = fixed_point(covariance, U[0])
    assert covariance.stability_margin(w) > 0.3
    assert torch.linalg.eigvalsh(covariance.matrix(w) - covariance.roughness_matrix(w))[0] < -covariance.energy(w[None])
    v, before = unit(w + 1e-6 * randn(8))[None], w[None]
    for _ in range(300):  # (94) as it stands; `fixed_point` has a shift
        v, before = unit(covariance.product(v)), v
    assert (v - w).norm() > 1e-3
    torch.testing.assert_close(unit(covariance.product(v)), before, rtol=0, atol=1e-9)  # a swing of two steps


@given(seed=SEEDS, noise=sampled_from([0.0, 0.5]))
def test_a_linear_network_has_the_covariance_of_the_data(seed: int, noise: float) -> None:
    covariance = draw_mixture(seed, noise=noise, activation="linear")
    p, centered = covariance.probabilities, covariance.means - covariance.probabilities @ covariance.means
    w = randn(3, seed=seed + 1)
    expected = centered.mT @ (p[:, None] * centered) + noise**2 * torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(covariance.matrix(w), expected, rtol=1e-12, atol=1e-13)
    assert covariance.roughness(w) == 0


@settings(max_examples=12)
@given(M=integers(2, 5), extra=integers(0, 2), seed=SEEDS, summation=booleans())
def test_without_noise_it_is_the_models_own_closed_form(M: int, extra: int, seed: int, summation: bool) -> None:
    U = orthonormal_patterns(M, M + extra, generator=generator(seed))
    p = torch.rand(M, generator=generator(seed), dtype=torch.float64) + 0.1
    model = LatentSummation(U, p / 1.2) if summation else LatentCategorical(U, p / p.sum())
    discrete = MixtureCovariance.of(model, 0.0)
    for m in range(M):
        u = U[m]
        torch.testing.assert_close(discrete.matrix(u), model.covariance_at(m), rtol=0, atol=1e-12)
        torch.testing.assert_close(discrete.product(u[None])[0], model.eigenvalue_at(m) * u, rtol=0, atol=1e-12)
        assert discrete.stability_margin(u) == pytest.approx(model.gap_at(m), abs=1e-12)
        assert discrete.roughness(u) == (0.0 if summation else math.inf)  # the other patterns lie on the plane
    if summation:  # no state on the plane: noise of 1e-4 opens no gate
        nearly = MixtureCovariance.of(model, 1e-4)
        torch.testing.assert_close(nearly.matrix(U[0]), model.covariance_at(0), rtol=0, atol=2e-4)
    else:  # half of each state on the plane comes in, and its gate is open half of the time
        nearly, away = MixtureCovariance.of(model, 1e-9), U[0] - 0.1 * U[1:].sum(0)
        torch.testing.assert_close(nearly.matrix(away), discrete.matrix(away), rtol=0, atol=1e-8)
        assert (nearly.matrix(U[0]) - discrete.matrix(U[0])).abs().max() > 1e-3


@pytest.mark.parametrize("noise", [1e-310, 1e-12])
def test_tiny_noise_is_as_good_as_none(noise: float) -> None:
    for activation in ACTIVATIONS:
        some, none = (draw_mixture(1, noise=sigma, activation=activation) for sigma in (noise, 0.0))
        w = randn(3, seed=5)
        torch.testing.assert_close(some.matrix(w), none.matrix(w), rtol=0, atol=1e-11)
        torch.testing.assert_close(some.product(w[None]), none.product(w[None]), rtol=0, atol=1e-11)
        assert some.roughness(w) == none.roughness(w) == 0


@given(offset=floats(-0.2, 0.2).filter(lambda t: abs(t) > 1e-3))
def test_the_margin_of_the_summation_model_changes_sign_at_the_threshold(offset: float) -> None:
    U = orthonormal_patterns(4, 4, generator=generator())
    covariance = MixtureCovariance.of(LatentSummation(U, THRESHOLD_Q + offset), 0.0)
    assert (covariance.stability_margin(U[0]) > 0) == (offset < 0)


def test_a_state_on_the_plane_undoes_a_negative_output() -> None:
    """Without noise, J·E[h] < 0: opening the gate of the state on the plane raises the energy at once."""
    means = torch.tensor([[-1.0, 0.0], [-3.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    p = torch.tensor([0.45, 0.45, 0.1], dtype=torch.float64)
    covariance = MixtureCovariance(means, p, 0.0, activation="leaky_relu:0.5")
    w = torch.tensor([1.0, 0.0], dtype=torch.float64)
    assert covariance.stability_margin(w) == -math.inf
    here, opened = covariance.energy(torch.stack([w, unit(w + torch.tensor([0.0, 1e-4], dtype=w.dtype))]))
    assert opened > here + 1e-6
    assert covariance.roughness(w) == math.inf
    assert MixtureCovariance(means, p, 0.0, activation="linear").roughness(w) == 0
    zero = MixtureCovariance(means * torch.tensor([[1.0], [1.0], [0.0]]), p, 0.0)  # a state at 0 has nothing to open
    assert zero.roughness(-w) == 0


def test_a_line_has_no_tangent_to_leave_along() -> None:
    assert draw_mixture(0, d=1).stability_margin(torch.ones(1, dtype=torch.float64)) == math.inf


@pytest.mark.parametrize("summation", [False, True])
def test_all_patterns_of_the_smoothed_models_attract(summation: bool) -> None:
    U = nearly_orthogonal_patterns(8, 10, 0.05, generator=generator(1))
    model = LatentSummation(U, 0.25) if summation else LatentCategorical(U, torch.full((8,), 0.125, dtype=U.dtype))
    covariance = MixtureCovariance.of(model, 0.1)
    found = torch.stack([fixed_point(covariance, u, 800) for u in U])
    cosines = found @ U.mT
    assert torch.equal(cosines.argmax(1), torch.arange(8))
    assert cosines.diagonal().min() > 0.9
    assert min(covariance.stability_margin(w) for w in found) > 0


@given(seed=SEEDS, noise=sampled_from([0.0, 0.3]), activation=sampled_from(ACTIVATIONS))
def test_float32_gives_float32_computed_in_float64(seed: int, noise: float, activation: str | Homogeneous) -> None:
    exact = draw_mixture(seed, noise=noise, activation=activation)
    rough = MixtureCovariance(exact.means.float(), exact.probabilities.float(), noise, activation=activation)
    weights = randn(2, 3, seed=seed + 1)
    tolerance = {"rtol": 1e-4, "atol": 1e-5}
    for name in ("product", "energy"):
        found = getattr(rough, name)(weights.float())
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), getattr(exact, name)(weights), **tolerance)
    found = rough.matrix(weights[0].float())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact.matrix(weights[0]), **tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_opens_no_gates(dtype: torch.dtype) -> None:
    U = orthonormal_patterns(8, 8, generator=generator()).to(dtype)
    model = LatentCategorical(U, torch.full((8,), 0.125, dtype=dtype))
    covariance = MixtureCovariance.of(model, 0.0)
    for m in range(8):
        torch.testing.assert_close(covariance.matrix(U[m]), model.covariance_at(m), **TOLERANCE[dtype])


def test_the_one_layer_dynamics_run_on_it() -> None:
    U = orthonormal_patterns(4, 5, generator=generator())
    covariance: OneLayerField = MixtureCovariance.of(LatentSummation(U, 0.2), 0.2)
    run = power_iteration(covariance, unit(U + 0.1 * randn(4, 5)))
    torch.testing.assert_close(run.weights, U, rtol=0, atol=1e-8)  # u_m stays exact under noise, by symmetry


def test_many_weights_are_done_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    covariance, weights = draw_mixture(0), randn(7, 3, seed=1)
    whole = covariance.product(weights)
    monkeypatch.setattr("kontrast.patterns.population._BLOCK", 9)
    torch.testing.assert_close(covariance.product(weights), whole, rtol=0, atol=1e-15)
    assert covariance.gates(weights).shape == (7, 0)
    assert covariance.gates(weights).dtype == torch.bool
    assert covariance.product(weights[:0]).shape == (0, 3)


MEANS, HALF = randn(2, 3), torch.full((2,), 0.5, dtype=torch.float64)


@pytest.mark.parametrize(
    ("means", "probabilities", "noise", "activation", "message"),
    [
        (MEANS.numpy(), HALF, 0.1, "relu", r"means must be a tensor of floating-point numbers, got ndarray"),
        (MEANS.long(), HALF, 0.1, "relu", r"got torch.int64 \(2, 3\)"),
        (MEANS[0], HALF, 0.1, "relu", r"means must have shape \(s, d\), got \(3,\)"),
        (MEANS / 0, HALF, 0.1, "relu", "means holds NaN or infinite"),
        (MEANS, HALF[:1], 0.1, "relu", r"probabilities must have shape \(2,\)"),
        (MEANS, HALF * 2, 0.1, "relu", "a sum of 2"),
        (MEANS, HALF, -0.1, "relu", "noise_std must be a finite number of at least 0, got -0.1"),
        (MEANS, HALF, math.inf, "relu", "got inf"),
        (MEANS, HALF, "0.1", "relu", "got '0.1'"),
        (MEANS, HALF, 0.1, "monomial:3", "activations of degree 1, got degree 3"),
        (MEANS, HALF, 0.1, nn.Tanh(), "homogeneous"),
        (MEANS, HALF, 0.1, 3, "activation must be"),
    ],
)
def test_bad_mixtures_are_refused(
    means: Tensor, probabilities: Tensor, noise: float, activation: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        MixtureCovariance(means, probabilities, noise, activation=activation)


def test_bad_weights_are_refused() -> None:
    covariance = MixtureCovariance(MEANS, HALF, 0.1)
    for method in ("product", "energy", "gates"):
        for weights, message in (
            (randn(3), r"weights must have shape \(k, 3\), got \(3,\)"),
            (randn(2, 4), r"got \(2, 4\)"),
            (randn(2, 3).numpy(), "got ndarray"),
            (torch.ones(2, 3, dtype=torch.int64), "got torch.int64"),
            (randn(2, 3) / 0, "finite and not zero"),
            (torch.zeros(2, 3, dtype=torch.float64), "finite and not zero"),
            (torch.ones(2, 3, device="meta"), "weights must be on cpu like the means, got meta"),
        ):
            with pytest.raises(InputError, match=message):
                getattr(covariance, method)(weights)
    for method in ("matrix", "mean_output", "boundary_matrix", "roughness_matrix", "roughness", "stability_margin"):
        for w, message in (
            (randn(1, 3), r"w must have shape \(3,\), got \(1, 3\)"),
            ("w", "got str"),
            (torch.zeros(3, dtype=torch.float64), "finite and not zero"),
        ):
            with pytest.raises(InputError, match=message):
                getattr(covariance, method)(w)
    with pytest.raises(InputError, match="model must be LatentCategorical or LatentSummation, got str"):
        MixtureCovariance.of("model", 0.1)
    discrete = MixtureCovariance(torch.eye(2, dtype=torch.float64), HALF, 0.0)
    with pytest.raises(InputError, match="a state lies on the plane"):
        discrete.boundary_matrix(torch.tensor([1.0, 0.0], dtype=torch.float64))
