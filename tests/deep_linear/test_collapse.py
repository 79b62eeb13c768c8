from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import booleans, floats, integers, sampled_from
from scipy.sparse import csr_matrix

from kontrast.data import GaussianNoise, make_pairs
from kontrast.deep_linear import Collapse, data_matrix, kernel_collapse, linear_collapse, pair_weights
from kontrast.errors import InputError
from kontrast.linalg import random_frame
from tests.cases import generator, randn
from tests.reference import ssl as reference


def symmetric(d: int, seed: int) -> torch.Tensor:
    A = randn(d, d, seed=seed)
    return (A + A.mT) / 2


def with_spectrum(values: list[float], seed: int = 0) -> torch.Tensor:
    Q = random_frame(len(values), len(values), generator=generator(seed))
    return Q @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ Q.mT


def kernel_of_rank(m: int, rank: int, seed: int) -> torch.Tensor:
    X = randn(m, rank, seed=seed)
    return X @ X.mT / rank


def unscaled(found: Collapse) -> torch.Tensor:
    return found.values * found.log_scale.exp()[:, None, None]


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert float((found - expected).norm() / expected.norm()) < 1e-8


@settings(max_examples=12)
@given(seed=integers(0, 2**16), d=integers(2, 5), z=integers(1, 4), scale=floats(0.1, 2.0))
def test_a_linear_model_is_the_matrix_exponential(seed: int, d: int, z: int, scale: float) -> None:
    C, weights = scale * symmetric(d, seed), randn(z, d, seed=seed + 1)
    found = linear_collapse(C, weights, times=[0.0, 0.3, 1.7])
    for t, values in zip([0.0, 0.3, 1.7], unscaled(found), strict=True):
        close(values.mT, reference.linear_flow(C, weights, t))
    torch.testing.assert_close(torch.linalg.matrix_norm(found.values), torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(found.eigenvalues, torch.linalg.eigvalsh(C))


@settings(max_examples=12)
@given(seed=integers(0, 2**16), r=integers(1, 4), z=integers(1, 3))
def test_a_projected_model_is_its_own_flow(seed: int, r: int, z: int) -> None:
    """Also with more projections than outputs, which AA^T then has zeros for."""
    C, weights, A = symmetric(4, seed), randn(z, 4, seed=seed + 1), 0.5 * randn(r, z, seed=seed + 2)
    found = unscaled(linear_collapse(C, weights, times=[0.2, 0.9], projector=A))
    for t, values in zip([0.2, 0.9], found, strict=True):
        close(values.mT, reference.linear_flow(C, weights, t, A))
    close(found[1].mT, reference.projected_weights_flow(C, weights, A, 0.9))


@settings(max_examples=12)
@given(seed=integers(0, 2**16), rank=integers(1, 6), z=integers(1, 3), sparse=booleans())
def test_a_kernel_model_is_the_matrix_exponential(seed: int, rank: int, z: int, sparse: bool) -> None:
    """Starts are outside the range of K, unless it has full rank."""
    K, S, U = kernel_of_rank(6, rank, seed), symmetric(6, seed + 1), randn(6, z, seed=seed + 2)
    found = unscaled(kernel_collapse(K, S.to_sparse() if sparse else S, U, times=[0.0, 0.1, 0.8]))
    for t, values in zip([0.0, 0.1, 0.8], found, strict=True):
        close(values, reference.kernel_flow(K, S, U, t))


def test_a_kernel_system_that_is_not_diagonalizable_grows_linearly() -> None:
    """KS = [[0, 1], [0, 0]]: U(t) = U₀ − 2t KS U₀, and B is 0."""
    K, S = torch.diag(torch.tensor([1.0, 0.0])).double(), torch.tensor([[0.0, 1.0], [1.0, 0.0]]).double()
    U = randn(2, 2)
    found = kernel_collapse(K, S, U, times=[0.0, 1.0, 5.0])
    assert found.eigenvalues.tolist() == [0.0, 0.0]
    for t, values in zip([0.0, 1.0, 5.0], unscaled(found), strict=True):
        close(values, U - 2 * t * K @ S @ U)


@given(seed=integers(0, 2**16), Q=sampled_from([0, 1]))
def test_the_linear_kernel_is_the_linear_model(seed: int, Q: int) -> None:
    x = randn(5, 3, seed=seed)
    pairs = make_pairs(x, views=GaussianNoise(0.3), negatives=Q, generator=generator(seed))
    X, weights = pairs.x, randn(2, 3, seed=seed + 1)
    linear = unscaled(linear_collapse(data_matrix(pairs), weights, times=[0.02, 0.1]))
    kernel = unscaled(kernel_collapse(X @ X.mT, pair_weights(pairs), X @ weights.mT, times=[0.02, 0.1]))
    close(kernel, X @ linear)


def test_pairs_collapse_and_nothing_overflows() -> None:
    """e^{−2λ₁t} is far above 1e5000 at the last time."""
    x = randn(30, 4) * torch.tensor([2.0, 1.0, 0.7, 0.5])
    pairs = make_pairs(x, views=GaussianNoise(0.1), generator=generator(1))
    times = [0.0, 1e-2, 1e3]
    for found in (
        linear_collapse(data_matrix(pairs), randn(3, 4, seed=2), times=times),
        kernel_collapse(pairs.x @ pairs.x.mT, pair_weights(pairs), randn(60, 3, seed=3), times=times),
    ):
        assert float(found.log_scale[-1]) > 5000 * math.log(10)
        assert torch.isfinite(found.values).all()
        ranks = found.effective_ranks()
        assert float(ranks[0]) > 2
        assert float(ranks[-1]) == pytest.approx(1, abs=1e-9)
        rise = -2 * float(found.eigenvalues[0]) * (times[2] - times[1])
        assert float(found.log_scale[2] - found.log_scale[1]) == pytest.approx(rise, rel=1e-2)


def test_outputs_that_shrink_collapse_too_and_do_not_underflow() -> None:
    found = linear_collapse(with_spectrum([1.0, 2.0, 3.0]), randn(2, 3), times=[0.0, 1e4])
    assert float(found.log_scale[-1]) == pytest.approx(-2e4, rel=1e-3)
    assert float(found.effective_ranks()[-1]) == pytest.approx(1, abs=1e-9)


@given(seed=integers(0, 2**16), gap=floats(0.2, 2.0), lowest=floats(-3.0, 1.0), z=integers(2, 3))
def test_the_ratio_decays_at_twice_the_gap(seed: int, gap: float, lowest: float, z: int) -> None:
    C = with_spectrum([lowest, lowest + gap, lowest + 3 * gap, lowest + 4 * gap], seed)
    times = torch.linspace(6 / gap, 16 / gap, 100, dtype=torch.float64)  # s₂/s₁ from some e^−12 to e^−32
    found = linear_collapse(C, randn(z, 4, seed=seed + 1), times=times)
    assert found.predicted_rate == pytest.approx(2 * gap, rel=1e-9)
    assert found.measured_rate() == pytest.approx(2 * gap, rel=0.01)


def test_the_measured_rate_is_the_predicted_one() -> None:
    C = with_spectrum([-2.0, -1.5, -0.5, 0.0, 1.0])
    found = linear_collapse(C, randn(3, 5, seed=1), times=torch.linspace(0, 30, 200))
    assert found.measured_rate() == pytest.approx(found.predicted_rate, rel=0.01)
    assert found.predicted_rate == pytest.approx(1.0)
    K, S = kernel_of_rank(5, 5, 0), symmetric(5, 1)
    of_kernel = kernel_collapse(K, S, randn(5, 3, seed=2), times=torch.linspace(0, 40, 400))
    expected = torch.linalg.eigvals(K @ S).real.sort().values
    assert of_kernel.predicted_rate == pytest.approx(2 * float(expected[1] - expected[0]))
    assert of_kernel.measured_rate() == pytest.approx(of_kernel.predicted_rate, rel=0.01)


def test_the_rate_is_measured_where_the_third_direction_no_longer_counts() -> None:
    """s₂/s₁ = e^{−t}√(1 + 9e^{−0.4t}): its slope is −1 to 1 % only from some 1e-5 down."""
    C = torch.diag(torch.tensor([-1.0, -0.5, -0.4], dtype=torch.float64))
    weights = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 3.0]], dtype=torch.float64)
    t = torch.linspace(3, 30, 300, dtype=torch.float64)
    found = linear_collapse(C, weights, times=t)
    torch.testing.assert_close(found.singular_ratios(), (-t).exp() * (1 + 9 * (-0.4 * t).exp()).sqrt())
    assert found.measured_rate() == pytest.approx(found.predicted_rate, rel=0.005)


def test_outside_the_range_of_the_kernel_nothing_moves_and_that_counts() -> None:
    """β = −1 and 1 with a third direction that stays: s₂ is that one, not the one that shrinks."""
    K = torch.diag(torch.tensor([1.0, 1.0, 0.0])).double()
    S = torch.diag(torch.tensor([-1.0, 1.0, 1.0])).double()
    times = torch.linspace(0, 13, 100)
    outside = kernel_collapse(K, S, randn(3, 2), times=times)
    assert outside.eigenvalues.tolist() == pytest.approx([-1, 0, 1])
    assert outside.predicted_rate == pytest.approx(2)
    assert outside.measured_rate() == pytest.approx(2, rel=0.01)
    inside = kernel_collapse(K, S, K @ randn(3, 2), times=times)
    assert inside.eigenvalues.tolist() == pytest.approx([-1, 1])
    assert inside.predicted_rate == pytest.approx(4)
    assert inside.measured_rate() == pytest.approx(4, rel=0.01)


@pytest.mark.parametrize(
    ("spectrum", "strengths"),
    [
        ([-1.0, -0.6, 0.0, 0.5], [1.0, 1.0]),
        ([-1.0, -0.6, 0.0, 0.5], [1.0, 0.7]),
        ([-1.0, -0.2, 0.0, 0.5], [1.0, 0.3, 0.2]),
        ([-1.0, 0.5, 0.8, 1.0], [1.0, 0.2]),
        ([0.5, 0.8, 1.0, 2.0], [1.0, 0.6]),
        ([-1.0, -1.0, 0.0, 0.5], [1.0, 0.5]),
    ],
)
def test_projections_collapse_at_the_predicted_rate(spectrum: list[float], strengths: list[float]) -> None:
    """Remark 3; `strengths` are the eigenvalues of AA^T."""
    r = len(strengths)
    P = random_frame(r, r, generator=generator(3))
    A = (
        P
        @ torch.diag(torch.tensor(strengths, dtype=torch.float64).sqrt())
        @ random_frame(5, r, generator=generator()).mT
    )
    C, weights = with_spectrum(spectrum, 1), randn(5, 4, seed=2)
    rate = linear_collapse(C, weights, times=[0.0], projector=A).predicted_rate
    found = linear_collapse(C, weights, times=torch.linspace(12 / rate, 26 / rate, 50), projector=A)
    assert rate > 0.2
    assert found.measured_rate() == pytest.approx(rate, rel=0.02)


def test_a_projector_of_orthonormal_rows_changes_the_outputs_and_not_the_rate() -> None:
    C, weights, A = symmetric(5, 0), randn(4, 5, seed=1), random_frame(4, 2, generator=generator()).mT
    projected, plain = (linear_collapse(C, weights, times=[0.1, 1.0], projector=P) for P in (A, None))
    assert projected.predicted_rate == pytest.approx(plain.predicted_rate)
    close(unscaled(projected), unscaled(plain) @ A.mT)


def test_one_output_has_no_second_direction() -> None:
    found = linear_collapse(symmetric(3, 0), randn(1, 3), times=[0.0, 1.0, 2.0, 3.0])
    assert math.isnan(found.predicted_rate)
    assert math.isnan(found.measured_rate())
    assert found.singular_ratios().tolist() == [0.0] * 4
    assert found.effective_ranks().tolist() == pytest.approx([1.0] * 4)


def test_float32_is_followed_in_float64() -> None:
    C, weights = symmetric(4, 0).float(), randn(2, 4, seed=1).float()
    found = linear_collapse(C, weights, times=[1.0])
    assert found.values.dtype == torch.float64
    close(unscaled(found)[0].mT, reference.linear_flow(C.double(), weights.double(), 1.0))


def test_a_matrix_that_is_not_symmetric_is_symmetrized_only_when_asked() -> None:
    C, weights = randn(3, 3), randn(2, 3)
    with pytest.raises(InputError, match="C must be symmetric"):
        linear_collapse(C, weights, times=[1.0])
    asked = linear_collapse(C, weights, times=[1.0], symmetrize=True)
    assert torch.equal(asked.values, linear_collapse((C + C.mT) / 2, weights, times=[1.0]).values)


EYE = torch.eye(3, dtype=torch.float64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"times": [1.0, 1.0]}, "increasing"),
        ({"times": [-1.0, 1.0]}, "start at 0 or later"),
        ({"times": [0.0, math.nan]}, "must be finite"),
        ({"times": []}, "must be finite"),
        ({"weights": randn(2, 4)}, r"weights must have shape \(z, 3\), got \(2, 4\)"),
        ({"weights": randn(2, 3) / 0}, "weights holds NaN or infinite"),
        (
            {"weights": randn(2, 3).numpy()},
            r"weights must be a tensor of floating-point numbers, got ndarray; use torch",
        ),
        ({"weights": randn(2, 3).tolist()}, "weights must be a tensor .* got list"),
        ({"weights": randn(2, 3) * 1j}, "weights must be a tensor .* got torch.complex128"),
        ({"C": EYE.numpy()}, "C must be a dense tensor of floating-point numbers, got ndarray"),
        ({"projector": [[1.0, 1.0]]}, "projector must be a tensor .* got list"),
        (
            {"C": EYE * 1e200, "times": [1e200]},
            r"times of up to 1e\+200 × eigenvalues of up to 1e\+200, .* beyond the range",
        ),
        ({"C": -EYE * 1e200, "times": [0.0, 1e200]}, "pass earlier times"),
        ({"C": EYE * 1e308}, r"eigenvalues of up to 1e\+308"),
        ({"C": EYE * 1e200, "projector": EYE[:2, :2] * 1e60, "times": [0.0]}, "beyond the range of floats"),
        ({"weights": torch.zeros(2, 3)}, "weights must not be zero"),
        ({"C": EYE / 0}, "NaN or infinite"),
        ({"C": EYE[:2]}, "square"),
        ({"projector": randn(2, 3)}, r"projector must have shape \(r, 2\), got \(2, 3\)"),
        ({"projector": EYE[:1, :2], "weights": EYE[[1, 0]] * EYE[0]}, "stay so"),
    ],
)
def test_bad_linear_models_are_refused(change: dict[str, object], message: str) -> None:
    arguments = {"C": EYE, "weights": randn(2, 3), "times": [0.0, 1.0]} | change
    with pytest.raises(InputError, match=message):
        linear_collapse(arguments.pop("C"), arguments.pop("weights"), **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"K": -EYE}, "K must be positive semi-definite, but its smallest eigenvalue is -1"),
        ({"K": randn(3, 3)}, "K must be symmetric"),
        ({"S": randn(3, 3)}, "S must be symmetric"),
        ({"S": torch.eye(4).double()}, r"S must have shape \(3, 3\), got .*; K and S must be over the same points"),
        ({"S": (EYE / 0).to_sparse()}, "S holds NaN"),
        ({"K": EYE.numpy()}, "K must be a dense tensor of floating-point numbers, got ndarray"),
        ({"S": EYE.numpy()}, "S must be a dense tensor of floating-point numbers, got ndarray"),
        ({"S": csr_matrix(EYE.numpy())}, r"S must be .* got csr_matrix; use torch.as_tensor\(S.toarray\(\)\)"),
        ({"S": [[1.0]]}, "S must be a matrix, got list"),
        ({"outputs": randn(3, 2).numpy()}, "outputs must be a tensor .* got ndarray"),
        ({"S": -1e200 * EYE, "times": [1e200]}, r"times of up to 1e\+200 × eigenvalues of up to 1e\+200"),
        ({"outputs": EYE[:, :1], "times": [0.0, 40.0]}, "at time 40 the outputs are below the rounding of their start"),
        ({"K": 1e200 * EYE, "S": 1e200 * EYE}, r"K of up to 1e\+200 × S"),
        ({"outputs": 1e200 * randn(3, 2)}, "or the start, are beyond the range of floats"),
        ({"outputs": randn(4, 2)}, r"outputs must have shape \(3, z\), got \(4, 2\)"),
        ({"times": [2.0, 1.0]}, "increasing"),
    ],
)
def test_bad_kernel_models_are_refused(change: dict[str, object], message: str) -> None:
    arguments = {"K": EYE, "S": EYE, "outputs": randn(3, 2), "times": [0.0, 1.0]} | change
    with pytest.raises(InputError, match=message):
        kernel_collapse(**arguments)  # type: ignore[arg-type]
