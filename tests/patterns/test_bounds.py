"""Paper C's Theorems 2 and 3 and Corollary 2: where each lemma holds, and where what is printed does not."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import floats, integers, sampled_from
from torch import Tensor

from kontrast.errors import InputError
from kontrast.patterns import (
    check_guarantee,
    estimate_constants,
    gaussian_z0,
    guarantee,
    irregularity,
    positive_definite,
    roughness_bound,
)
from kontrast.patterns.bounds import ball_radius, eigenvector_constant
from tests.cases import DTYPES, generator, randn

MatrixOf = Callable[[Tensor], Tensor]


def unit(rows: Tensor) -> Tensor:
    return rows / rows.norm(dim=-1, keepdim=True)


def smooth_matrix(d: int, bend: float, seed: int, *, top: float = 1.0, dtype: torch.dtype = torch.float64) -> MatrixOf:
    """A(w) = F(w)F(w)^T with F linear in w, so A ≥ 0; `top` sets e_1 apart and `bend` is how much A varies."""
    fixed = 0.3 * randn(d, d, seed=seed) / math.sqrt(d)
    fixed[0, 0] += top
    varying = bend * randn(d, d, d, seed=seed + 1) / d

    def matrix(w: Tensor) -> Tensor:
        F = fixed.to(dtype) + varying.to(dtype) @ w
        return F @ F.mT

    return matrix


def step(A: MatrixOf, w: Tensor) -> Tensor:
    return unit(A(w) @ w)


def top_vector(A: Tensor, towards: Tensor) -> Tensor:
    phi = torch.linalg.eigh(A).eigenvectors[:, -1]
    return phi if float(phi @ towards) >= 0 else -phi


def remainder(A: Tensor, B: Tensor) -> float:
    """‖φ_1(B) − φ_1(A) − Δφ_1‖ of Lemma 6, by the sum over eigenvectors."""
    values, vectors = torch.linalg.eigh(A)
    phi = vectors[:, -1]
    first_order = torch.zeros_like(phi)
    for j in range(len(values) - 1):
        first_order += vectors[:, j] @ (B - A) @ phi / (values[-1] - values[j]) * vectors[:, j]
    return float((top_vector(B, phi) - phi - first_order).norm())


def norm(A: Tensor) -> float:
    return float(torch.linalg.matrix_norm(A, 2))


# Theorem 2


def ball_volume(d: int) -> float:
    return math.pi ** (d / 2) / math.gamma(d / 2 + 1)


def uniform_ball(radius: float, d: int) -> tuple[float, float]:
    """ρ and r of x uniform in a ball: E[h] and ‖M‖ are both C_0 V_{d−1}/((d + 1)V_d)."""
    each = radius * ball_volume(d - 1) / ((d + 1) * ball_volume(d))
    return each**2, 1 / (ball_volume(d) * radius**d)


def plane_roughness(density: Callable[[Tensor], Tensor], radius: float, angle: float) -> float:
    """‖(A(v) − A(w))w‖/‖v − w‖ in the plane, w = e_1 and v at `angle`, by quadrature in polar coordinates.

    Midpoints in φ of cells that neither half-plane's edge cuts.
    """
    n_phi, n_r = 4000, 400
    phi = (torch.arange(n_phi, dtype=torch.float64) + 0.5) * (2 * math.pi / n_phi)
    r = (torch.arange(n_r, dtype=torch.float64) + 0.5) * (radius / n_r)
    direction = torch.stack([phi.cos(), phi.sin()], dim=1)
    x = direction[:, None] * r[:, None]  # (φ, r, 2)
    mass = density(x) * r * (radius / n_r) * (2 * math.pi / n_phi)
    assert abs(float(mass.sum()) - 1) < 5e-3

    def covariance(v: Tensor) -> Tensor:
        inside = mass * (x @ v > 0)
        mean = torch.einsum("pr,pri->i", inside, x)
        return torch.einsum("pr,pri,prj->ij", inside, x, x) - torch.outer(mean, mean)

    w = torch.tensor([1.0, 0.0], dtype=torch.float64)
    found = []
    for turned in (angle, -angle):
        v = torch.tensor([math.cos(turned), math.sin(turned)], dtype=torch.float64)
        found.append(float(((covariance(v) - covariance(w)) @ w).norm() / (v - w).norm()))
    return max(found)


def shifted_disc(radius: float, offset: float) -> tuple[Callable[[Tensor], Tensor], float, float]:
    """Uniform on a disc about offset·e_1 with ‖x‖ ≤ radius; its density, and exactly r and ρ."""
    own = radius - abs(offset)
    level = 1 / (math.pi * own**2)
    center = torch.tensor([offset, 0.0], dtype=torch.float64)
    t = torch.linspace(-1, 1, 20001, dtype=torch.float64)
    mean = torch.trapezoid((offset + own * t).clamp_min(0) * 2 / math.pi * (1 - t**2).sqrt(), t)
    half = math.sqrt(max(own**2 - offset**2, 0))  # of the chord on the plane
    return lambda x: level * ((x - center).norm(dim=-1) <= own), level, float(mean) * level * 2 * half**3 / 3


@pytest.mark.parametrize("offset", [0.0, 0.2, 0.4, -0.2])
def test_roughness_is_the_mean_output_times_the_density_at_the_plane(offset: float) -> None:
    density, _, rho = shifted_disc(1.0, offset)
    assert plane_roughness(density, 1.0, 10 * 2 * math.pi / 4000) == pytest.approx(rho, rel=0.02)


@given(radius=floats(1e-3, 50), offset=floats(-0.45, 0.45), d=integers(2, 40))
def test_the_corrected_and_the_sharp_bound_hold_and_the_printed_one_fails_for_small_inputs(
    radius: float, offset: float, d: int
) -> None:
    ball, at_plane = uniform_ball(radius, d)
    for form in ("corrected", "sharp"):
        assert roughness_bound(radius, at_plane, d, form=form).with_measured(ball).holds
        _, level, rho = shifted_disc(radius, offset * radius)
        assert roughness_bound(radius, level, 2, form=form).with_measured(rho).holds
    fails_below = math.pi * (ball_volume(d - 1) / ((d + 1) * ball_volume(d))) ** 2  # about 1/2d
    printed = roughness_bound(radius, at_plane, d, form="printed").with_measured(ball)
    assert printed.holds is (radius >= fails_below)


@given(scale=floats(1e-3, 1e3), d=integers(1, 50))
def test_in_other_units_the_roughness_and_the_true_bounds_change_alike(scale: float, d: int) -> None:
    for form, power in (("corrected", 2), ("sharp", 2), ("printed", 3)):
        one, other = (roughness_bound(s, 0.3 * s**-d, d, form=form).value for s in (1.0, scale))
        assert other / one == pytest.approx(scale**power, rel=1e-9)


@pytest.mark.parametrize("d", [2, 5, 30])
def test_no_constant_below_the_sharp_one_is_true(d: int) -> None:
    """A slab of density r at the plane and all other mass near C_0·w."""
    radius, thickness, level = 0.7, 1e-6, 2.0
    slab_mass = level * 2 * thickness * ball_volume(d - 1) * radius ** (d - 1)  # a little too much: the ball is round
    mean_output = (1 - slab_mass) * radius * 0.999
    boundary = level * ball_volume(d - 1) * radius ** (d + 1) / (d + 1)
    sharp = roughness_bound(radius, level, d, form="sharp").with_measured(mean_output * boundary)
    assert 1 <= sharp.ratio < 1.01
    assert sharp.value < roughness_bound(radius, level, d).value


def test_the_uniform_ball_is_never_certified_by_the_corrected_bound() -> None:
    for d in (2, 10, 50):
        assert roughness_bound(0.3, uniform_ball(0.3, d)[1], d).value == pytest.approx(0.3**2 / math.pi)
    assert 1 / math.pi > 1 / 4  # and λ_gap ≤ C_0²/4


def test_bounds_beyond_the_range_of_floats_keep_their_logarithm() -> None:
    bound = roughness_bound(1e3, 1.0, 200)
    volume = 100 * math.log10(math.pi) - math.lgamma(101) / math.log(10)
    assert bound.value == math.inf
    assert bound.log10 == pytest.approx(volume + 3 * 202 - math.log10(math.pi))
    assert roughness_bound(1.0, 0.0, 3).value == 0


# Corollary 2


@given(seed=integers(0, 2**16), temperature=floats(0.05, 10))
def test_gaussian_importance_lowers_r_by_z0(seed: int, temperature: float) -> None:
    """Σ_l z_l² max p̃_l with z_l² p̃_l = z_l φ_l p, over the features (89), on the plane where h = 0."""
    h = randn(500, seed=seed).clamp_min(0)
    damping, on_plane = torch.exp(-(h**2) / (2 * temperature)), torch.zeros(1, dtype=h.dtype)
    total = 0.0
    for order in range(40):
        factor = temperature ** (-order / 2) / math.sqrt(math.factorial(order))
        z = float((damping * h**order).mean()) * factor
        total += z * float(on_plane**order * factor)  # times max p, which both r have
    assert total == pytest.approx(gaussian_z0(h, temperature), rel=1e-12)
    assert 0 < gaussian_z0(h, temperature) <= 1


def test_z0_of_known_outputs() -> None:
    assert gaussian_z0(torch.tensor([0.0, 2.0]), 2.0) == pytest.approx((1 + math.exp(-1)) / 2)


# Lemmas 4 to 8

SMOOTH = {"seed": integers(0, 2**16), "d": integers(2, 7), "bend": floats(0, 1.5)}


@given(**SMOOTH)
def test_lemmas_4_and_5_bound_one_step(seed: int, d: int, bend: float) -> None:
    A, w = smooth_matrix(d, bend, seed), unit(randn(d, seed=seed + 2))
    found = irregularity(A(w), w)
    phi, after = top_vector(A(w), w), step(A, w)
    c, mu = float(found.correlation), float(found.mu)
    assert c == pytest.approx(float(phi @ w))
    assert 1 - float(phi @ after) <= mu * (1 - c) + 1e-12
    assert float((after - w).norm()) <= math.sqrt(2 * (1 + mu * c) * (1 - c)) + 1e-9


def test_lemma_4_needs_that_no_eigenvalue_is_below_minus_lambda_2() -> None:
    """It asks for λ_1 > 0 and c > 0 only."""
    A, w = torch.diag(torch.tensor([1.0, 0.1, -0.9]).double()), unit(torch.tensor([1.0, 0.0, 1.0]).double())
    found, after = irregularity(A, w), unit(A @ w)
    assert 1 - float(after[0]) > 5 * float(found.mu * found.shortfall)
    lifted = positive_definite(lambda w: A)(w)
    found, after = irregularity(lifted, w), unit(lifted @ w)
    assert 1 - float(after[0]) <= float(found.mu * found.shortfall)


@given(**SMOOTH, distance=floats(1e-3, 2))
def test_lemma_6_holds_with_the_explicit_constant(seed: int, d: int, bend: float, distance: float) -> None:
    A, w = smooth_matrix(d, bend, seed), unit(randn(d, seed=seed + 2))
    one, other = A(w), A(unit(w + distance * randn(d, seed=seed + 3)))
    values = torch.linalg.eigvalsh(one)
    kappa = eigenvector_constant(float(values[-1] - values[-2]))
    assert remainder(one, other) <= kappa * norm(other - one) ** 2 + 1e-12


def test_no_constant_below_four_root_two_would_do_for_lemma_6() -> None:
    """Levels that just cross: φ_1 turns by a right angle though its first-order change is 0."""
    one = torch.diag(torch.tensor([1.0, 0.0]).double())
    other = torch.diag(torch.tensor([0.5 - 1e-9, 0.5 + 1e-9]).double())
    share = remainder(one, other) / norm(other - one) ** 2 / eigenvector_constant(1.0)
    assert share == pytest.approx(4 * math.sqrt(2) / (2 * math.sqrt(13)), rel=1e-6)


@given(**SMOOTH)
def test_lemma_7_bounds_how_the_eigenvector_turns_away(seed: int, d: int, bend: float) -> None:
    """With L and κ of the one pair w(t), w(t + 1), which is all that its proof uses."""
    A, w = smooth_matrix(d, bend, seed), unit(randn(d, seed=seed + 2))
    after = step(A, w)
    change = norm(A(after) - A(w))
    L, kappa = change / float((after - w).norm()), remainder(A(w), A(after)) / max(change, 1e-8) ** 2
    found = irregularity(A(w), w, lipschitz=L, curvature=kappa)
    phi = top_vector(A(w), w)
    turned = abs(float((phi - top_vector(A(after), phi)) @ after))
    assert turned <= float(found.nu * found.shortfall) + 1e-9
    assert float(found.omega) == pytest.approx(float(found.mu + found.nu))


@given(gamma=floats(0, 0.99), shortfall=floats(0, 0.5))
def test_the_ball_is_the_cap_of_98(gamma: float, shortfall: float) -> None:
    c_gamma = 2 * math.sqrt(gamma) / (1 + gamma)
    least = (1 - shortfall - c_gamma) / (1 - c_gamma)
    assert 1 - ball_radius(gamma, shortfall) ** 2 / 2 == pytest.approx(least, rel=1e-6, abs=1e-9)


@settings(max_examples=10)
@given(seed=integers(0, 2**16), d=integers(2, 5), bend=sampled_from([0.0, 0.02, 0.1]), distance=floats(0.001, 0.3))
def test_wherever_the_condition_is_met_the_guarantee_holds(seed: int, d: int, bend: float, distance: float) -> None:
    A = smooth_matrix(d, bend, seed)
    start = torch.eye(d, dtype=torch.float64)[0] + distance * unit(randn(d, seed=seed + 2))
    promise = guarantee(A, start, n_points=16, generator=generator(seed))
    check = check_guarantee(A, promise, n_steps=30)
    assert check.held is (True if promise.met else None)
    if promise.met:
        assert promise.omega <= promise.gamma < 1
        assert promise.radius == pytest.approx(ball_radius(promise.gamma, promise.shortfall))
        w = check.weights[-1]
        assert float((w - top_vector(A(w), w)).norm()) <= math.sqrt(2 * promise.shortfall_at(30)) + 1e-12


def test_the_condition_is_met_for_matrices_that_hardly_vary_and_not_for_those_that_do() -> None:
    start = torch.tensor([1.0, 0.1, 0, 0], dtype=torch.float64)
    met = [guarantee(smooth_matrix(4, bend, 3), start, generator=generator()).met for bend in (0.0, 0.05, 3.0)]
    assert met == [True, True, False]


def test_a_constant_matrix_gives_the_rate_of_plain_power_iteration() -> None:
    A = torch.diag(torch.tensor([1.0, 0.5, 0.2], dtype=torch.float64))
    start = torch.tensor([1.0, 1e-3, 0], dtype=torch.float64)
    promise = guarantee(lambda w: A, start, generator=generator())
    assert promise.met
    assert promise.constants.lipschitz == 0
    assert 0.25 <= promise.gamma < 0.27
    assert 0.9 < float(check_guarantee(lambda w: A, promise).rate.measured or 0) <= 1


def test_the_guarantee_names_what_fails() -> None:
    indefinite = torch.diag(torch.tensor([1.0, 0.1, -0.9], dtype=torch.float64))
    start = torch.tensor([1.0, 0.01, 0.01], dtype=torch.float64)
    promise = guarantee(lambda w: indefinite, start, generator=generator())
    assert [a.name for a in promise.assumptions if not a.holds] == ["A(w) ≥ 0"]
    assert check_guarantee(lambda w: indefinite, promise).held is None
    assert guarantee(positive_definite(lambda w: indefinite), start, generator=generator()).met
    across = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    promise = guarantee(lambda w: indefinite.square(), across, generator=generator())
    assert [a.name for a in promise.assumptions if not a.holds] == ["c_0 ≠ 0", "irregularity (96)"]
    assert math.isnan(promise.gamma)
    assert math.isnan(promise.radius)


def test_a_start_that_is_a_critical_point_is_kept() -> None:
    A = torch.diag(torch.tensor([1.0, 0.5, 0.2], dtype=torch.float64))
    promise = guarantee(lambda w: A, torch.eye(3, dtype=torch.float64)[0], generator=generator())
    assert promise.met
    assert check_guarantee(lambda w: A, promise).held


def test_a_promise_of_too_much_is_found_out() -> None:
    A, start = smooth_matrix(4, 0.05, 3), torch.tensor([1.0, 0.1, 0, 0], dtype=torch.float64)
    promise = guarantee(A, start, generator=generator())
    assert check_guarantee(A, promise).held
    assert check_guarantee(A, dataclasses.replace(promise, gamma=promise.gamma / 100)).held is False
    assert check_guarantee(A, dataclasses.replace(promise, radius=promise.radius / 100)).held is False
    assert dataclasses.replace(check_guarantee(A, promise), least_rise=-1e-9).held is False


@given(seed=integers(0, 2**16), slope=floats(0.01, 10), radius=floats(1e-6, 2))
def test_the_lipschitz_constant_of_a_linear_matrix_is_found(seed: int, slope: float, radius: float) -> None:
    """A(w) = I + slope·w_2·e_1e_1^T about e_1, where w_2 may change as fast as w."""

    def A(w: Tensor) -> Tensor:
        return torch.eye(2, dtype=w.dtype) + torch.diag(torch.stack([slope * w[1], 0 * w[0]]))

    start = torch.tensor([1.0, 0.0], dtype=torch.float64)
    found = estimate_constants(A, start, radius, n_points=32, generator=generator(seed))
    assert 0.85 * slope <= found.lipschitz <= slope * (1 + 1e-6) + 1e-7  # rounding over the distance of near pairs


def test_the_curvature_found_is_what_pairs_say_and_no_more_than_the_provable_one() -> None:
    A, start = smooth_matrix(4, 0.3, 5), torch.eye(4, dtype=torch.float64)[0]
    found = estimate_constants(A, start, 0.2, n_points=48, generator=generator())
    others = [unit(start + 0.1 * unit(randn(4, seed=s))) for s in range(30)]
    seen = max(remainder(A(v), A(w)) / norm(A(w) - A(v)) ** 2 for v in others[:15] for w in others[15:])
    assert 0.5 * seen < found.curvature <= eigenvector_constant(found.gap)
    assert found.lowest >= 0
    assert found.n_points == 96


def test_shifting_keeps_eigenvectors_and_makes_positive() -> None:
    def A(w: Tensor) -> Tensor:
        return smooth_matrix(4, 0.5, 1)(w) - torch.eye(4, dtype=w.dtype)

    w = unit(randn(4, seed=2))
    lifted = positive_definite(A, epsilon=1e-3)(w)
    assert float(torch.linalg.eigvalsh(lifted)[0]) == pytest.approx(1e-3)
    across = torch.eye(4, dtype=w.dtype) - torch.outer(w, w)
    assert torch.allclose(across @ lifted @ w, across @ A(w) @ w)  # (99)


@given(seed=integers(0, 2**16), lipschitz=floats(0.01, 3), curvature=floats(0.01, 3))
def test_irregularity_is_that_of_definition_4(seed: int, lipschitz: float, curvature: float) -> None:
    """(95), number by number."""
    B, w = randn(4, 4, seed=seed), unit(randn(4, seed=seed + 1))
    A = B @ B.mT
    values, vectors = np.linalg.eigh(A.numpy())
    c = abs(float(vectors[:, -1] @ w.numpy()))
    mu = 0.5 * (1 + c) / c**2 * (values[-2] / values[-1]) ** 2
    nu = 2 * curvature * lipschitz**2 * (1 + mu * c)
    nu += 2 * lipschitz / (values[-1] - values[-2]) * math.sqrt(mu * (1 + mu * c))
    found = irregularity(A, w, lipschitz=lipschitz, curvature=curvature)
    assert float(found.mu) == pytest.approx(mu, rel=1e-6)
    assert float(found.omega) == pytest.approx(mu + nu, rel=1e-6)


def test_irregularity_is_infinite_where_power_iteration_has_no_direction() -> None:
    A, w = torch.diag(torch.tensor([1.0, 0.5], dtype=torch.float64)), torch.eye(2, dtype=torch.float64)
    many = irregularity(torch.stack([A, A, -A, torch.eye(2).double()]), torch.stack([w[0], w[1], w[0], w[0]]))
    assert many.omega.tolist() == [0.25, math.inf, math.inf, math.inf]


@pytest.mark.parametrize("dtype", DTYPES)
def test_number_types_are_kept(dtype: torch.dtype) -> None:
    A, start = smooth_matrix(4, 0.05, 3, dtype=dtype), torch.tensor([1.0, 0.1, 0, 0], dtype=dtype)
    promise = guarantee(A, start, generator=generator())
    assert promise.met
    assert promise.start.dtype == dtype
    assert check_guarantee(A, promise).held


# Bad input


def constant(w: Tensor) -> Tensor:
    return torch.diag(torch.tensor([1.0, 0.5], dtype=w.dtype))


START = torch.tensor([1.0, 0.1], dtype=torch.float64)
REFUSED: dict[str, Callable[[], Any]] = {
    "radius must be a positive": lambda: roughness_bound(0, 1, 2),
    "radius must be a positive number, got 'x'": lambda: roughness_bound("x", 1, 2),  # type: ignore[arg-type]
    "density_at_plane": lambda: roughness_bound(1, math.nan, 2),
    "d must be a whole": lambda: roughness_bound(1, 1, 2.5),  # type: ignore[arg-type]
    "form must be": lambda: roughness_bound(1, 1, 2, form="best"),  # type: ignore[arg-type]
    "outputs must be a tensor of floating-point numbers": lambda: gaussian_z0(np.ones(3), 1.0),  # type: ignore[arg-type]
    "outputs must have shape .n,., got": lambda: gaussian_z0(torch.ones(2, 2), 1.0),
    "temperature": lambda: gaussian_z0(torch.ones(2), 0.0),
    "matrix must be a tensor of floating-point numbers": lambda: irregularity(np.eye(2), START),  # type: ignore[arg-type]
    "weight must be a tensor of floating-point numbers": lambda: irregularity(constant(START), torch.tensor([1, 0])),
    "matrix must be .d, d.": lambda: irregularity(constant(START), torch.ones(3, dtype=torch.float64)),
    "lipschitz": lambda: irregularity(constant(START), START, lipschitz=-1),
    "curvature": lambda: irregularity(constant(START), START, curvature="much"),  # type: ignore[arg-type]
    "gap": lambda: eigenvector_constant(0.0),
    "epsilon": lambda: positive_definite(constant, epsilon=0),
    "matrix must be a function, got torch.float32": lambda: positive_definite(torch.eye(2)),  # type: ignore[arg-type]
    "matrix must be a function, got str": lambda: guarantee("A", START, generator=generator()),  # type: ignore[arg-type]
    "start must be a tensor of floating-point numbers": lambda: guarantee(
        constant, torch.tensor([1, 0]), generator=generator()
    ),
    "start must be one weight": lambda: guarantee(constant, 0 * START, generator=generator()),
    "got .1,. of norm": lambda: guarantee(constant, torch.ones(1), generator=generator()),
    "matrix.start. must be a tensor of floating-point numbers, got ndarray": lambda: guarantee(
        lambda w: np.eye(2), START, generator=generator()
    ),  # type: ignore[arg-type,return-value]
    "matrix.start. must have shape .2, 2., got .3, 3.": lambda: guarantee(
        lambda w: torch.eye(3), START, generator=generator()
    ),
    "must be symmetric": lambda: guarantee(lambda w: torch.ones(2, 2).double().tril(), START, generator=generator()),
    "NaN": lambda: guarantee(lambda w: math.nan * constant(w), START, generator=generator()),
    "n_points": lambda: guarantee(constant, START, n_points=1, generator=generator()),
    "generator must be": lambda: guarantee(constant, START, generator=0),  # type: ignore[arg-type]
    "radius must be a positive number, got 0": lambda: estimate_constants(constant, START, 0, generator=generator()),
    "promise must be": lambda: check_guarantee(constant, START),  # type: ignore[arg-type]
    "gamma must be a number of at least 0 and below 1": lambda: ball_radius(1.0, 0.1),
    "shortfall": lambda: ball_radius(0.5, -0.1),
    "step must be": lambda: guarantee(constant, START, generator=generator()).shortfall_at(-1),
    "n_steps": lambda: check_guarantee(constant, guarantee(constant, START, generator=generator()), n_steps=0),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_work_is_refused_in_words(text: str) -> None:
    with pytest.raises(InputError, match=text):
        REFUSED[text]()
