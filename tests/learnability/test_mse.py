from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import floats, integers, sampled_from

from kontrast.dynamics import fixed_kernel_flow
from kontrast.errors import InputError, KontrastError
from kontrast.kernels import InfiniteNetwork
from kontrast.learnability import ensemble, mse_training
from kontrast.learnability import mse as module
from kontrast.linalg import eigenvalue_rounding, gp_covariance
from tests.cases import DTYPES, generator, randn
from tests.reference import linearized as reference

N, Z = 6, 2
SPECTRA = {
    "well": torch.linspace(0.5, 3, 12, dtype=torch.float64),
    "nearly singular": 10.0 ** torch.linspace(-15, 0.5, 12, dtype=torch.float64),
    "singular": torch.cat([torch.zeros(4), 10.0 ** torch.linspace(-3, 0.5, 8)]).double(),
}
METHODS = ["flow", "descent"]


def matrix_of(seed: int, spectrum: str, n: int = N * Z) -> torch.Tensor:
    Q = torch.linalg.qr(randn(n, n, seed=seed))[0]
    K = (Q * SPECTRA[spectrum][-n:]) @ Q.mT
    return (K + K.mT) / 2


def as_kernel(matrix: torch.Tensor) -> torch.Tensor:
    """(nz, nz) as (n, n, z, z)."""
    return matrix.view(N, Z, N, Z).permute(0, 2, 1, 3)


def setting(seed: int, spectrum: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return matrix_of(seed, spectrum), randn(N, Z, seed=seed + 1), randn(N, Z, seed=seed + 2)


@given(
    seed=integers(0, 2**16),
    spectrum=sampled_from(list(SPECTRA)),
    share=sampled_from([0.1, 0.5, 1.0, 1.9]),
    n_steps=sampled_from([0, 1, 2, 17, 400, 3000]),
)
def test_descent_equals_the_simulated_linear_model(seed: int, spectrum: str, share: float, n_steps: int) -> None:
    """Claim D.lee: (1 − ηΘ)^t to 1e-12, at thousands of steps and for nearly singular kernels too."""
    matrix, start, targets = setting(seed, spectrum)
    rate = share / float(SPECTRA[spectrum].max())
    training = mse_training(as_kernel(matrix), start, targets, learning_rate=rate, method="descent")
    expected = reference.kernel_steps(matrix, start, targets, learning_rate=rate, n_steps=n_steps)
    assert (training.outputs(n_steps) - expected).norm() <= 1e-12 * (start.norm() + targets.norm())
    assert training.loss(n_steps) == pytest.approx(float((expected - targets).square().sum()) / 2, rel=1e-9, abs=1e-24)


@given(seed=integers(0, 2**16), spectrum=sampled_from(list(SPECTRA)), time=floats(0, 30), rate=floats(0.01, 10))
def test_flow_equals_the_matrix_exponential(seed: int, spectrum: str, time: float, rate: float) -> None:
    matrix, start, targets = setting(seed, spectrum)
    training = mse_training(as_kernel(matrix), start, targets, learning_rate=rate)
    expected = reference.flow(matrix, start, targets, learning_rate=rate, time=time)
    torch.testing.assert_close(training.outputs(time), expected, rtol=1e-11, atol=1e-11)


def test_flow_equals_the_integrated_one() -> None:
    matrix, start, targets = setting(3, "nearly singular")
    times, kernel = [0.0, 0.7, 4.0], as_kernel(matrix)
    flow = fixed_kernel_flow(kernel, start, lambda f: (f - targets).square().sum() / 2, times=times, tolerance=1e-11)
    training = mse_training(kernel, start, targets)
    for row, time in zip(flow, times, strict=True):
        torch.testing.assert_close(training.outputs(time), row, rtol=1e-9, atol=1e-9)


@given(seed=integers(0, 2**16), spectrum=sampled_from(list(SPECTRA)), s=integers(0, 50), t=integers(0, 50))
@pytest.mark.parametrize("method", METHODS)
def test_a_run_goes_on_from_where_it_was(method: str, seed: int, spectrum: str, s: int, t: int) -> None:
    """outputs(s + t) is outputs(t) of a run from outputs(s), and weights add up; outputs(0) is the start."""
    matrix, start, targets = setting(seed, spectrum)
    options = {"learning_rate": 0.4, "method": method}
    whole = mse_training(as_kernel(matrix), start, targets, **options)
    rest = mse_training(as_kernel(matrix), whole.outputs(s), targets, **options)
    assert torch.equal(whole.outputs(0), start)
    assert not whole.weights(0).any()
    torch.testing.assert_close(whole.outputs(s + t), rest.outputs(t), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(whole.weights(s + t), whole.weights(s) + rest.weights(t), rtol=1e-9, atol=1e-10)


@given(seed=integers(0, 2**16), spectrum=sampled_from(list(SPECTRA)), early=floats(0, 1e4), more=floats(0, 1e4))
def test_the_loss_never_rises_along_the_flow_and_the_distance_never_falls(
    seed: int, spectrum: str, early: float, more: float
) -> None:
    matrix, start, targets = setting(seed, spectrum)
    training = mse_training(as_kernel(matrix), start, targets)
    times = [early, early + more, math.inf]
    losses = [training.loss(t) for t in times]
    assert losses[0] >= losses[1]
    # What the limit keeps of modes below the tolerance, the flow would learn by times of 1e15.
    assert losses[1] >= losses[2] * (1 - 1e-6)
    distances = [training.distance(t) for t in times[:2]]
    assert distances[0] <= distances[1] * (1 + 1e-9) + 1e-9


@given(seed=integers(0, 2**16), time=sampled_from([0, 1, 5, 300, math.inf]))
@pytest.mark.parametrize("method", METHODS)
def test_weights_predict_the_training_points_themselves(method: str, seed: int, time: float) -> None:
    """With cross = Θ(X, X) the prediction is outputs(t), and ‖θ_t − θ_0‖² = a^T Θ a."""
    matrix, start, targets = setting(seed, "well")
    kernel = as_kernel(matrix)
    training = mse_training(kernel, start, targets, learning_rate=0.5, method=method)
    torch.testing.assert_close(training.predict(kernel, start, time), training.outputs(time), rtol=1e-11, atol=1e-12)
    a = training.weights(time).reshape(-1)
    assert training.distance(time) == pytest.approx(float(a @ matrix @ a) ** 0.5, rel=1e-9, abs=1e-12)


@given(seed=integers(0, 2**16), time=sampled_from([0, 3, math.inf]), method=sampled_from(METHODS))
def test_one_kernel_for_all_outputs(seed: int, time: float, method: str) -> None:
    k, start, targets = matrix_of(seed, "well", N), randn(N, Z, seed=seed + 1), randn(N, Z, seed=seed + 2)
    full = torch.einsum("xy,ij->xyij", k, torch.eye(Z, dtype=torch.float64))
    runs = [mse_training(K, start, targets, learning_rate=0.3, method=method) for K in (k, full)]
    torch.testing.assert_close(runs[0].outputs(time), runs[1].outputs(time), rtol=1e-11, atol=1e-12)
    cross, new = randn(3, N, seed=seed + 3), randn(3, Z, seed=seed + 4)
    both = torch.einsum("xy,ij->xyij", cross, torch.eye(Z, dtype=torch.float64))
    predicted = [run.predict(c, new, time) for run, c in zip(runs, (cross, both), strict=True)]
    torch.testing.assert_close(predicted[0], predicted[1], rtol=1e-10, atol=1e-11)


def test_small_eigenvalues_have_their_limit() -> None:
    """(1 − e^{−ηλt})/λ → ηt, also where 1 − e^{−ηλt} itself would have lost every digit."""
    values = torch.tensor([0.0, 1e-320, 1e-20, 1.0], dtype=torch.float64)
    start, targets = torch.zeros(4, 1, dtype=torch.float64), torch.ones(4, 1, dtype=torch.float64)
    for method in METHODS:
        a = mse_training(values.diag(), start, targets, learning_rate=0.5, method=method).weights(6)
        assert a[:3, 0].tolist() == pytest.approx([3.0] * 3, rel=1e-15)
    assert float(a[3]) == 1 - 0.5**6


def test_the_limit_of_a_singular_kernel_is_the_pseudo_inverse() -> None:
    matrix, start, targets = setting(5, "singular")
    training = mse_training(as_kernel(matrix), start, targets)
    residual = (start - targets).reshape(-1)
    inverse = torch.linalg.pinv(matrix, hermitian=True, rtol=1e-12)
    torch.testing.assert_close(training.weights(math.inf).reshape(-1), -inverse @ residual, rtol=1e-9, atol=1e-9)
    kept = residual - matrix @ (inverse @ residual)
    torch.testing.assert_close(training.outputs(math.inf), targets + kept.view(N, Z), rtol=1e-9, atol=1e-10)
    assert training.loss(math.inf) == pytest.approx(float(kept.square().sum()) / 2)
    assert training.tolerance == eigenvalue_rounding(matrix, torch.finfo(torch.float64).eps)


def rounding(dtype: torch.dtype, n: int) -> float:
    """What rounding may leave of zero, of a kernel of n rows with a 1 on the diagonal and nothing else."""
    eps = torch.finfo(dtype).eps
    return 16 * eps if dtype is torch.float64 else 4 * n**0.5 * eps


@pytest.mark.parametrize("dtype", DTYPES)
def test_only_what_may_be_rounding_of_zero_is_never_learned(dtype: torch.dtype) -> None:
    """Eigenvalues on both sides of the tolerance, and below zero: rounding down to ten times it, no kernel beyond."""
    start, targets, small = torch.zeros(3, 1, dtype=dtype), torch.ones(3, 1, dtype=dtype), rounding(dtype, 3)

    def training(*shares: float) -> module.MSETraining:
        return mse_training(torch.tensor([1.0, *(s * small for s in shares)], dtype=dtype).diag(), start, targets)

    assert training(0, 0).tolerance == pytest.approx(small, rel=1e-9, abs=0)
    assert training(1.2, 0.8).outputs(math.inf)[:, 0].tolist() == [1, 1, 0]
    assert training(0.0, -9.0).outputs(math.inf)[:, 0].tolist() == [1, 0, 0]
    for below in (-11.0, -1e3, -0.5 / small):
        with pytest.raises(InputError, match=r"positive semi-definite, but has the eigenvalues -\S+ to 1; check"):
            training(0.0, below).outputs(math.inf)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("share", [0.5, 5.0])
def test_the_limit_of_a_large_kernel_that_is_nearly_singular(share: float, method: str) -> None:
    """Cholesky goes through in both cases, and is right where the smallest eigenvalue is above the tolerance alone."""
    n = 1010  # above SMALL
    v = torch.nn.functional.normalize(randn(n), dim=0)
    tolerance = 16 * torch.finfo(torch.float64).eps * n
    K = torch.eye(n).double() - (1 - share * tolerance) * torch.outer(v, v)  # 1, and along v share·tolerance
    K = (K + K.mT) / 2
    start, targets = torch.zeros(n, 1).double(), randn(n, 1, seed=1)
    training = mse_training(K, start, targets, learning_rate=0.5, method=method)
    weights, along = training.weights(math.inf), v[:, None] * (v @ targets)
    assert training.tolerance == pytest.approx(tolerance, rel=1e-2, abs=0)
    assert int(torch.linalg.cholesky_ex(K).info) == 0
    if share < 1:  # the pseudo-inverse
        torch.testing.assert_close(weights, targets - along, rtol=0, atol=1e-9)
        torch.testing.assert_close(training.outputs(math.inf), targets - along, rtol=0, atol=1e-9)
        assert training.loss(math.inf) == pytest.approx(float(along.square().sum()) / 2, rel=1e-9)
    else:
        assert "_modes" not in training.__dict__
        torch.testing.assert_close(K @ weights, targets, rtol=0, atol=1e-2)
        assert float(v @ weights[:, 0]) == pytest.approx(float(v @ targets[:, 0]) / (share * tolerance), rel=0.1)


@pytest.mark.parametrize("method", METHODS)
def test_the_limit_of_a_large_kernel_is_a_solve(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Cholesky and without a decomposition, with the same answers; a singular kernel goes the long way."""
    n = 80
    A, start, targets = randn(n, n), randn(n, 1, seed=1), randn(n, 1, seed=2)
    K, cross = A @ A.mT / n + 0.1 * torch.eye(n), randn(5, n, seed=3)
    slow = mse_training(K, start, targets, learning_rate=0.3, method=method)
    monkeypatch.setattr(module, "SMALL", 10)
    fast = mse_training(K, start, targets, learning_rate=0.3, method=method)
    for question in ("outputs", "weights"):
        torch.testing.assert_close(getattr(fast, question)(math.inf), getattr(slow, question)(math.inf))
    torch.testing.assert_close(fast.predict(cross, targets[:5], math.inf), slow.predict(cross, targets[:5], math.inf))
    assert fast.distance(math.inf) == pytest.approx(slow.distance(math.inf), rel=1e-10)
    assert fast.loss(math.inf) == 0
    assert "_modes" not in fast.__dict__
    singular = mse_training(A[:, :70] @ A[:, :70].mT / n, start, targets, learning_rate=0.3, method=method)
    assert singular.loss(math.inf) > 0.01
    assert "_modes" in singular.__dict__
    if method == "descent":
        with pytest.raises(InputError, match="below 2/λ_max"):
            mse_training(K, start, targets, learning_rate=2.0, method=method).outputs(math.inf)


def test_descent_tends_to_the_flow_at_first_order() -> None:
    matrix, start, targets = setting(1, "well")
    kernel = as_kernel(matrix)
    flow = mse_training(kernel, start, targets).outputs(1.0)
    errors = [
        float((mse_training(kernel, start, targets, learning_rate=1 / n, method="descent").outputs(n) - flow).norm())
        for n in (100, 200, 400)
    ]
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.05)
    assert errors[1] / errors[2] == pytest.approx(2, rel=0.05)


def test_above_the_stable_rate_descent_grows_and_overflow_is_an_error() -> None:
    K, start, targets = torch.eye(1).double(), torch.ones(1, 1).double(), torch.zeros(1, 1).double()
    training = mse_training(K, start, targets, learning_rate=3.0, method="descent")
    assert [float(training.outputs(t)) for t in (0, 1, 2, 3)] == pytest.approx([1, -2, 4, -8])
    with pytest.raises(KontrastError, match="above 2/λ_max = 2"):
        training.outputs(2000)
    with pytest.raises(InputError, match=r"no limit at learning_rate=3: it must be below 2/λ_max = 2"):
        training.outputs(math.inf)
    edge = mse_training(K, start, targets, learning_rate=2.0, method="descent")  # swings for ever
    assert float(edge.outputs(10**9 + 1)) == -1
    with pytest.raises(InputError, match="no limit"):
        edge.loss(math.inf)


@given(seed=integers(0, 2**16), time=sampled_from([0, 7, math.inf]))
def test_float32_keeps_its_type_and_its_digits(seed: int, time: float) -> None:
    matrix, start, targets = setting(seed, "well")
    exact = mse_training(as_kernel(matrix), start, targets, method="descent", learning_rate=0.3)
    rounded = mse_training(
        as_kernel(matrix).float(), start.float(), targets.float(), method="descent", learning_rate=0.3
    )
    assert rounded.outputs(time).dtype is torch.float32
    assert rounded.weights(time).dtype is torch.float32
    torch.testing.assert_close(rounded.outputs(time).double(), exact.outputs(time), rtol=2e-5, atol=2e-6)


# --- ensembles of infinitely wide networks ---------------------------------------------------------------------------


def points(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return randn(3, 3, dtype=dtype), randn(3, 1, seed=1, dtype=dtype), randn(2, 3, seed=2, dtype=dtype)


@pytest.mark.parametrize("n_steps", [0, 4, math.inf])
def test_the_ensemble_is_that_of_wide_networks(n_steps: float) -> None:
    """4000 nets of width 256: means and covariances within 4.5 standard errors and the few 1/width of finite nets."""
    x, targets, new = points()
    x, new = x / 3, new / 3  # so that steps of one are stable for every draw
    predicted = ensemble(InfiniteNetwork(), x, targets, new, time=n_steps, learning_rate=1.0, method="descent")
    drawn = reference.random_ensemble(x, targets, new, width=256, n_draws=4000, generator=generator(3), n_steps=n_steps)
    mean, error = drawn.mean(0), drawn.std(0) / len(drawn) ** 0.5
    assert ((mean - predicted.mean[:, 0]).abs() <= 4.5 * error + 3 / 256 * targets.abs().max()).all()
    deviation = drawn - mean
    products = deviation[:, :, None] * deviation[:, None, :]
    error = products.std(0) / len(drawn) ** 0.5
    slack = 4.5 * error + 3 / 256 * predicted.covariance.diagonal().max()
    assert ((products.mean(0) - predicted.covariance).abs() <= slack).all()
    if math.isinf(n_steps):  # the GP posterior, which is another thing, would not pass
        nngp = InfiniteNetwork().nngp
        posterior = gp_covariance(nngp(x), nngp(new, x), nngp(new), noise_variance=0)
        assert ((products.mean(0) - posterior).abs() > slack).any()


@settings(max_examples=10)
@given(seed=integers(0, 2**16), activation=sampled_from(["relu", "erf"]), depth=integers(1, 2))
def test_the_ensemble_starts_as_the_prior_and_ends_as_equation_16(seed: int, activation: str, depth: int) -> None:
    net = InfiniteNetwork(depth=depth, activation=activation, bias_std=0.3)
    x, targets, new = randn(5, 3, seed=seed), randn(5, 2, seed=seed + 1), randn(4, 3, seed=seed + 2)
    prior = ensemble(net, x, targets, new, time=0)
    assert not prior.mean.any()
    torch.testing.assert_close(prior.covariance, net.nngp(new), rtol=1e-12, atol=1e-13)
    end = ensemble(net, x, targets, new)
    A = net.ntk(new, x) @ torch.linalg.inv(net.ntk(x))
    half = A @ net.nngp(x, new)
    covariance = net.nngp(new) + A @ net.nngp(x) @ A.mT - half - half.mT
    scale = float(net.nngp(new).diagonal().max()) * max(1.0, float(A.norm()) ** 2)
    torch.testing.assert_close(end.mean, A @ targets, rtol=1e-7, atol=1e-9)
    assert (end.covariance - covariance).abs().max() <= 1e-8 * scale
    assert float(torch.linalg.eigvalsh(end.covariance)[0]) >= -1e-9 * scale
    at_the_data = ensemble(net, x, targets, x)
    torch.testing.assert_close(at_the_data.mean, targets, rtol=1e-7, atol=1e-8)
    assert at_the_data.covariance.abs().max() <= 1e-7 * scale


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", METHODS)
def test_every_member_obeys_the_closed_form(method: str, dtype: torch.dtype) -> None:
    """The mean is the training from zero, and outputs are alike."""
    x, targets, new = points(dtype)
    net = InfiniteNetwork()
    found = ensemble(net, x, targets, new, time=5, learning_rate=0.1, method=method)
    training = mse_training(net.ntk(x), torch.zeros_like(targets), targets, learning_rate=0.1, method=method)
    expected = training.predict(net.ntk(new, x), torch.zeros(2, 1, dtype=dtype), 5)
    assert found.mean.dtype is found.covariance.dtype is dtype
    torch.testing.assert_close(found.mean, expected, rtol=1e-5 if dtype is torch.float32 else 1e-11, atol=1e-6)


# --- bad input -------------------------------------------------------------------------------------------------------

K, F, Y = torch.eye(3).double(), torch.zeros(3, 2).double(), torch.ones(3, 2).double()
BAD = [
    ((K.numpy(), F, Y), "kernel must be a tensor of floating-point numbers, got ndarray"),
    ((K, F.numpy(), Y), "outputs must be a tensor of floating-point numbers, got ndarray"),
    ((K, F, [[1.0]]), "targets must be a tensor of floating-point numbers, got list"),
    ((K, F, Y.long()), r"targets must be a tensor of floating-point numbers, got torch.int64 \(3, 2\)"),
    ((K, F, Y.float()), "targets must be torch.float64 on cpu like outputs, got torch.float32"),
    ((K, F, Y[:, 0]), r"targets must have shape \(3, 2\), got \(3,\); use targets\[:, None\]"),
    ((K, F, Y[:2]), r"targets must have shape \(3, 2\), got \(2, 2\)"),
    ((K, F[:, 0], Y[:, 0]), r"outputs must have shape \(n, z\).*outputs\[:, None\]"),
    ((K[:2, :2], F, Y), r"kernel must have shape \(3, 3\) or \(3, 3, 2, 2\) .* got \(2, 2\)"),
    ((K.triu() + torch.ones(3, 3).double().triu(1), F, Y), "kernel must be symmetric"),
    ((K / 0, F, Y), "kernel holds NaN"),
    ((K, F, Y * math.nan), "targets holds NaN"),
]


@pytest.mark.parametrize("arguments, message", BAD)
def test_bad_trainings_are_refused(arguments: tuple[torch.Tensor, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        mse_training(*arguments)


@pytest.mark.parametrize(
    "options, message", [({"learning_rate": 0}, "learning_rate"), ({"method": "sgd"}, "one of flow, descent")]
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        mse_training(K, F, Y, **options)
    with pytest.raises(InputError, match=message):
        ensemble(InfiniteNetwork(), K, Y, K, **options)


@pytest.mark.parametrize("time", [-1, math.nan, "1", None, True, torch.ones(2)])
@pytest.mark.parametrize("question", ["outputs", "weights", "loss", "distance"])
def test_bad_times_are_refused(time: object, question: str) -> None:
    with pytest.raises(InputError, match="time must be a number of 0 or more"):
        getattr(mse_training(K, F, Y), question)(time)


def test_steps_are_whole_numbers() -> None:
    training = mse_training(K, F, Y, learning_rate=0.1, method="descent")
    for whole in (3, 3.0, np.int64(3), np.float32(3)):
        assert torch.equal(training.outputs(whole), training.outputs(3))
    with pytest.raises(InputError, match=r"whole number of steps for descent, or math.inf, got 2.5"):
        training.outputs(2.5)
    assert training.loss(10**400) == 0


@pytest.mark.parametrize(
    "cross, start, message",
    [
        (torch.ones(3, 4).double(), torch.ones(4, 2).double(), r"cross must have shape \(4, 3\) .* not transposed"),
        (torch.ones(4, 3), torch.ones(4, 2).double(), "cross must be torch.float64 on cpu like outputs"),
        (torch.ones(4, 3).double(), torch.ones(4).double(), r"start must have shape \(m, 2\)"),
        (np.ones((4, 3)), torch.ones(4, 2).double(), "cross must be a tensor of floating-point numbers"),
    ],
)
def test_bad_predictions_are_refused(cross: torch.Tensor, start: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        mse_training(K, F, Y).predict(cross, start, 1)


def test_what_is_no_kernel_is_refused() -> None:
    with pytest.raises(InputError, match="positive semi-definite, but has the eigenvalues -1 to 1"):
        mse_training(torch.diag(torch.tensor([1.0, -1.0, 1.0])).double(), F, Y).outputs(1)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("relu", K, Y, K), "network must be InfiniteNetwork, got str"),
        ((InfiniteNetwork(), K.numpy(), Y, K), "x must be a tensor of floating-point numbers"),
        ((InfiniteNetwork(), K, Y[:, 0], K), r"targets must have shape \(3, z\).*got \(3,\)"),
        ((InfiniteNetwork(), K, Y[:2], K), r"targets must have shape \(3, z\).*got \(2, 2\)"),
        ((InfiniteNetwork(), K, Y, K.float()), r"use y\.to"),
    ],
)
def test_bad_ensembles_are_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ensemble(*arguments)


def test_float32_loses_no_modes_of_a_large_kernel() -> None:
    """λ_max grows with the number of points, and rounding of the entries only with its root: t = ∞ is the end."""
    x = torch.nn.functional.normalize(randn(700, 10, seed=4), dim=1)
    K, y = InfiniteNetwork().ntk(x), randn(700, 1, seed=5)
    ends = {}
    for kind in (torch.float32, torch.float64):
        training = mse_training(K.to(kind), torch.zeros_like(y).to(kind), y.to(kind))
        assert training.loss(math.inf) <= training.loss(1e6)
        ends[kind] = training.weights(math.inf).double()
    assert float((ends[torch.float32] - ends[torch.float64]).norm() / ends[torch.float64].norm()) < 1e-3
