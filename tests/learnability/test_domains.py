"""Spectra on the hypercube, the circle and the sphere are those of the dense kernel and of known integrals."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import floats, integers
from torch import Tensor

from kontrast.errors import ConvergenceError, InputError
from kontrast.kernels import GaussianKernel, InfiniteNetwork, NetworkKernel, TangentKernel
from kontrast.learnability import (
    Spectrum,
    circle,
    circle_spectrum,
    hypercube,
    hypercube_spectrum,
    parities,
    sphere_spectrum,
    zonal_polynomials,
)
from tests.cases import generator
from tests.reference.domains import (
    corners,
    dense_eigenvalues,
    exponential_on_the_sphere,
    harmonics,
    parity_quotients,
    random_rows,
)

KernelFunction = Callable[[Tensor, Tensor], Tensor]
BIASED = InfiniteNetwork(depth=2, bias_std=0.4)
KERNELS: dict[str, KernelFunction] = {
    "ntk": TangentKernel(BIASED),
    "nngp": NetworkKernel(InfiniteNetwork()),
    "gauss": GaussianKernel(1.5),
    "laplace": lambda x, y: torch.exp(-(x[:, None] - y).norm(dim=2)),
    "linear": lambda x, y: x @ y.mT,
    "constant": lambda x, y: torch.full((len(x), len(y)), 2.0, dtype=torch.float64),
}
every_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)


def expanded(spectrum: Any) -> Tensor:
    return torch.repeat_interleave(spectrum.eigenvalues, spectrum.counts.long()).sort(descending=True).values


def positive_polynomial(seed: int, degree: int) -> KernelFunction:
    """Σ a_k (x·y)^k with a_k ≥ 0: positive on every domain."""
    a = torch.rand(degree + 1, generator=generator(seed), dtype=torch.float64) / 2.0 ** torch.arange(degree + 1)
    return lambda x, y: sum((a_k * (x @ y.mT / x.shape[1]) ** k for k, a_k in enumerate(a)), torch.zeros(1).double())


def test_the_hypercube_has_every_corner_once() -> None:
    found = {tuple(row) for row in hypercube(5).tolist()}
    assert found == {tuple(row) for row in corners(5).tolist()}
    assert hypercube(5).shape == (32, 5)


def test_parities_are_products_of_coordinates_ordered_by_level() -> None:
    points, basis = hypercube(4), parities(4)
    assert torch.equal(basis.functions.mT @ basis.functions, 16 * torch.eye(16).double())
    assert basis.levels.tolist() == [0] + [1] * 4 + [2] * 6 + [3] * 4 + [4]
    for column, level in zip(basis.functions.mT, basis.levels.tolist(), strict=True):
        weights = points.mT @ column / 16  # Fourier coefficients of level 1
        assert level != 1 or sorted(weights.abs().tolist()) == [0, 0, 0, 1]
    assert torch.equal(basis.functions[:, -1], points.prod(1))


@every_kernel
@pytest.mark.parametrize("d", [1, 2, 7])
def test_the_hypercube_s_spectrum_is_the_dense_one(kernel: KernelFunction, d: int) -> None:
    found, points = hypercube_spectrum(kernel, d), hypercube(d)
    top = float(kernel(points[:1], points[:1]))
    assert found.n_points == 2**d
    torch.testing.assert_close(expanded(found), dense_eigenvalues(kernel, points), rtol=0, atol=1e-12 * top)
    torch.testing.assert_close(found.eigenvalues, parity_quotients(kernel, d), rtol=0, atol=1e-12 * top)


@given(seed=integers(0, 2**16), d=integers(1, 7), degree=integers(0, 9))
def test_parities_diagonalize_any_invariant_kernel(seed: int, d: int, degree: int) -> None:
    kernel, points, basis = positive_polynomial(seed, degree), hypercube(d), parities(d)
    levels = hypercube_spectrum(kernel, d)
    A = basis.functions.mT @ kernel(points, points) @ basis.functions / 4**d
    torch.testing.assert_close(A, torch.diag(levels.eigenvalues[basis.levels]), rtol=0, atol=1e-13)
    assert bool((levels.eigenvalues[degree + 1 :] == 0).all())  # a polynomial of lower degree has no such parity


def test_a_hypercube_of_many_dimensions_needs_few_values_of_the_kernel() -> None:
    """exp(x·y/d) factors: λ_k = cosh(1/d)^(d−k) sinh(1/d)^k."""
    d = 60
    found = hypercube_spectrum(lambda x, y: torch.exp(x @ y.mT / d), d)
    expected = [math.cosh(1 / d) ** (d - k) * math.sinh(1 / d) ** k for k in range(d + 1)]
    assert found.eigenvalues.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-14)
    assert found.counts.tolist() == [float(math.comb(d, k)) for k in range(d + 1)]


def test_what_rounding_hides_of_a_huge_hypercube_is_its_remainder() -> None:
    found = hypercube_spectrum(GaussianKernel(4.0), 60)
    assert bool((found.eigenvalues == 0).any())
    assert found.n_points == math.inf
    assert found.remainder > 1e-4
    assert found.trace == pytest.approx(1, abs=1e-12)


@every_kernel
@pytest.mark.parametrize("n_points", [1, 2, 3, 32, 33])
def test_the_circle_s_spectrum_is_the_dense_one(kernel: KernelFunction, n_points: int) -> None:
    found, points = circle_spectrum(kernel, n_points, radius=1.7), circle(n_points, radius=1.7)
    top = float(kernel(points[:1], points[:1]))
    assert found.n_points == n_points
    torch.testing.assert_close(expanded(found), dense_eigenvalues(kernel, points), rtol=0, atol=1e-12 * top)


@given(seed=integers(0, 2**16), n_points=integers(2, 40), degree=integers(0, 9))
def test_waves_diagonalize_any_invariant_kernel(seed: int, n_points: int, degree: int) -> None:
    kernel, points = positive_polynomial(seed, degree), circle(n_points)
    found, K = circle_spectrum(kernel, n_points), kernel(points, points) / n_points
    angles = torch.arange(n_points, dtype=torch.float64) * 2 * math.pi / n_points
    for q, value in enumerate(found.eigenvalues):
        for wave in (torch.cos(q * angles), torch.sin(q * angles)):
            torch.testing.assert_close(K @ wave, value * wave, rtol=0, atol=1e-12)


@every_kernel
def test_a_circle_of_many_points_is_the_sphere_of_two_dimensions(kernel: KernelFunction) -> None:
    """For smooth kernels at once, for those with a kink at θ = 0 as 1/M²."""
    points, limit = circle_spectrum(kernel, 4001, radius=1.3), sphere_spectrum(kernel, 2, 12, radius=1.3)
    torch.testing.assert_close(points.eigenvalues[:12], limit.eigenvalues, rtol=0, atol=1e-6)
    torch.testing.assert_close(points.counts[:12], limit.counts)
    assert limit.n_points == math.inf


@given(d=integers(2, 12), scale=floats(0.2, 4.0))
def test_the_exponential_kernel_has_bessel_functions(d: int, scale: float) -> None:
    found = sphere_spectrum(lambda x, y: torch.exp(scale * x @ y.mT), d, 9)
    expected = [exponential_on_the_sphere(d, k, scale) for k in range(9)]
    assert found.eigenvalues.tolist() == pytest.approx(expected, abs=1e-14 * math.exp(scale) + 1e-15)
    assert found.trace == pytest.approx(math.exp(scale), rel=1e-13)


@given(d=integers(2, 40), radius=floats(0.1, 10))
def test_the_linear_kernel_has_degree_one_alone(d: int, radius: float) -> None:
    found = sphere_spectrum(lambda x, y: x @ y.mT, d, 5, radius=radius)
    torch.testing.assert_close(
        found.eigenvalues, torch.tensor([0, radius**2 / d, 0, 0, 0], dtype=torch.float64), rtol=1e-13, atol=0
    )
    assert found.remainder <= 1e-13 * radius**2


@pytest.mark.parametrize("d", [2, 3, 4, 10, 100, 784])
def test_relu_without_bias_has_no_odd_degree_above_one(d: int) -> None:
    """Its NNGP kernel, the arc-cosine one of order 1; its NTK has a share of order 0 and with it odd degrees from 3."""
    found = sphere_spectrum(NetworkKernel(InfiniteNetwork()), d, 8)
    assert found.eigenvalues[3::2].tolist() == [0, 0, 0]
    assert float(found.eigenvalues[1]) == pytest.approx(0.25 / d, rel=1e-12)
    assert bool((found.eigenvalues[[0, 2]] > 0).all())


def test_relu_on_the_circle_is_known() -> None:
    """(sin θ + (π − θ) cos θ)/2π has Fourier coefficients 2/π², ¼ and (2/π²)/(k² − 1)² for even k."""
    found = sphere_spectrum(NetworkKernel(InfiniteNetwork()), 2, 9)
    even = [2 / math.pi**2 / (k**2 - 1) ** 2 / 2 for k in range(0, 9, 2)]
    factor = float(found.eigenvalues[0]) / even[0]
    assert found.eigenvalues[::2].tolist() == pytest.approx([factor * value for value in even], rel=1e-11)
    assert found.trace == pytest.approx(0.5, rel=1e-13)


@pytest.mark.parametrize("d", [2, 3, 7])
def test_multiplicities_count_harmonic_polynomials(d: int) -> None:
    found = sphere_spectrum(KERNELS["gauss"], d, 6)
    assert found.counts.tolist() == [harmonics(d, k) for k in range(6)]


@given(seed=integers(0, 2**16), d=integers(2, 9))
def test_levels_and_zonal_polynomials_add_up_to_the_kernel(seed: int, d: int) -> None:
    kernel, rows = positive_polynomial(seed, 8), random_rows(6, d, generator(seed))
    found = sphere_spectrum(kernel, d, 9)
    noise = 4e-15 * float(found.counts.sum())  # of each eigenvalue, which each harmonic adds
    terms = (found.counts * found.eigenvalues)[:, None, None] * zonal_polynomials(rows @ rows.mT, d, 9)
    torch.testing.assert_close(terms.sum(0), kernel(rows, rows), rtol=0, atol=noise)
    assert found.remainder <= noise


@settings(max_examples=12)
@given(d=integers(2, 12), n_degrees=integers(1, 12))
def test_what_fewer_degrees_leave_out_is_the_remainder(d: int, n_degrees: int) -> None:
    kernel = KERNELS["ntk"]
    few, many = sphere_spectrum(kernel, d, n_degrees), sphere_spectrum(kernel, d, 20)
    assert few.trace == pytest.approx(many.trace, rel=1e-12)
    left = float((many.counts * many.eigenvalues)[n_degrees:].sum()) + many.remainder
    assert few.remainder == pytest.approx(left, rel=1e-6, abs=1e-12)


def of_the_first_coordinate(x: Tensor, y: Tensor) -> Tensor:
    return x[:, :1] @ y[:, :1].mT


def turning(x: Tensor, y: Tensor) -> Tensor:
    """Invariant under rotations of the plane, but not symmetric."""
    return 2 + x @ y.mT + x[:, :1] @ y[:, 1:].mT - x[:, 1:] @ y[:, :1].mT


def negative(x: Tensor, y: Tensor) -> Tensor:
    return 1 - (x @ y.mT / x.shape[1]) ** 2 + 0 * x[:, :1]


DOMAINS: dict[str, Callable[[Any], Any]] = {
    "hypercube": lambda kernel: hypercube_spectrum(kernel, 6),
    "circle": lambda kernel: circle_spectrum(kernel, 30),
    "sphere": lambda kernel: sphere_spectrum(kernel, 3, 5),
    "sphere of the plane": lambda kernel: sphere_spectrum(kernel, 2, 5),
}
every_domain = pytest.mark.parametrize("spectrum", DOMAINS.values(), ids=DOMAINS)


@every_domain
@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (of_the_first_coordinate, r"symmetric and depend only on the .* but .*eigensystem"),
        (negative, r"must not have negative eigenvalues.*positive semi-definite"),
        (lambda x, y: -x @ y.mT, r"must not have negative eigenvalues"),
        (lambda x, y: x @ y.mT / 0.0, r"NaN, infinite or huge"),
        (lambda x, y: (x @ y.mT).numpy(), r"must return floats.*ndarray"),
        (lambda x, y: x, r"must return floats \(1, "),
        (lambda x, y: (x @ y.mT).long(), r"must return floats.*int64"),
        (np.ones((3, 3)), r"must be a function.*ndarray"),
        ("rbf", r"must be a function.*str"),
        (None, r"must be a function"),
    ],
)
def test_what_is_no_invariant_kernel_is_refused(spectrum: Callable[[Any], Any], kernel: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        spectrum(kernel)


@every_domain
@pytest.mark.parametrize("off", [1e-3, 1e-7])
def test_a_kernel_that_is_nearly_invariant_is_refused(spectrum: Callable[[Any], Any], off: float) -> None:
    gauss = KERNELS["gauss"]
    with pytest.raises(InputError, match=r"symmetric and depend only on the "):
        spectrum(lambda x, y: gauss(x, y) + off * of_the_first_coordinate(x, y))
    rounded = spectrum(lambda x, y: gauss(x, y) + 1e-12 * of_the_first_coordinate(x, y))
    torch.testing.assert_close(rounded.eigenvalues, spectrum(gauss).eigenvalues, rtol=0, atol=1e-11)


@every_domain
@pytest.mark.parametrize("below", [1e-3, 1e-7])
def test_a_small_negative_eigenvalue_is_refused_and_rounding_is_not(
    spectrum: Callable[[Any], Any], below: float
) -> None:
    """The linear function has one level."""
    with pytest.raises(InputError, match=r"must not have negative eigenvalues, but one is -"):
        spectrum(lambda x, y: 1 - below * (x @ y.mT))
    rounded = spectrum(lambda x, y: 1 - 1e-12 * (x @ y.mT))
    assert not rounded.eigenvalues[1:].any()


def equal(x: Tensor, y: Tensor) -> Tensor:
    return (x[:, None] == y).all(2).double()


@pytest.mark.parametrize("d", [2, 3, 10])
def test_a_kernel_of_a_point_with_itself_is_the_same_everywhere(d: int) -> None:
    """Independent noise at every point is invariant; noise of another variance elsewhere is not."""
    gauss = KERNELS["gauss"]

    def spectrum(kernel: KernelFunction) -> Spectrum:
        return sphere_spectrum(kernel, d, 5)

    noisy = spectrum(lambda x, y: gauss(x, y) + 0.5 * equal(x, y))
    assert noisy.trace == pytest.approx(1.5, rel=1e-9)
    for elsewhere in (
        spectrum,
        lambda kernel: hypercube_spectrum(kernel, d),
        lambda kernel: circle_spectrum(kernel, 30),
    ):
        with pytest.raises(InputError, match=r"symmetric and depend only on the "):
            elsewhere(lambda x, y: gauss(x, y) + equal(x, y) * (2 + x.prod(1, keepdim=True)))


def test_a_kernel_that_is_not_symmetric_is_refused() -> None:
    for spectrum in (DOMAINS["circle"], DOMAINS["sphere of the plane"]):
        with pytest.raises(InputError, match="symmetric"):
            spectrum(turning)


def test_a_kernel_that_jumps_is_refused() -> None:
    with pytest.raises(ConvergenceError, match=r"still change by .* continuous in the angle"):
        sphere_spectrum(lambda x, y: (x @ y.mT > 0.3).double() + 1.0, 3, 4)


@pytest.mark.parametrize("bad", [0, -1, 2.5, "3", True, None, math.inf])
def test_sizes_are_whole_numbers(bad: Any) -> None:
    kernel = KERNELS["gauss"]
    calls: list[Callable[[], Any]] = [
        lambda: hypercube(bad),
        lambda: parities(bad),
        lambda: hypercube_spectrum(kernel, bad),
        lambda: circle(bad),
        lambda: circle_spectrum(kernel, bad),
        lambda: sphere_spectrum(kernel, bad, 3),
        lambda: sphere_spectrum(kernel, 3, bad),
    ]
    for call in calls:
        with pytest.raises(InputError, match="must be a whole number"):
            call()


@pytest.mark.parametrize("radius", [0.0, -1.0, math.inf, "1"])
def test_a_radius_is_a_positive_number(radius: Any) -> None:
    with pytest.raises(InputError, match="radius must be a positive number"):
        circle_spectrum(KERNELS["gauss"], 8, radius=radius)
    with pytest.raises(InputError, match="radius must be a positive number"):
        sphere_spectrum(KERNELS["gauss"], 3, 4, radius=radius)


def test_domains_too_large_to_hold_are_refused() -> None:
    with pytest.raises(InputError, match=r"d must be a whole number of at most 20, got 21"):
        hypercube(21)
    with pytest.raises(InputError, match=r"d must be a whole number of at most 13, got 14"):
        parities(14)
    with pytest.raises(InputError, match="at most 1000"):
        hypercube_spectrum(KERNELS["gauss"], 1001)
    with pytest.raises(InputError, match="fewer n_degrees"):
        sphere_spectrum(KERNELS["linear"], 784, 2000)
