from __future__ import annotations

import itertools
import math
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import floats, integers, sampled_from

from kontrast.data import GaussianNoise, Pairs, make_pairs, pair_matrix
from kontrast.dynamics import Snapshot, Status, contrastive_problem, gradient_descent
from kontrast.errors import InputError
from kontrast.linalg import Eigenpairs, fix_signs, orthonormality_error, random_frame, subspace_sines, top_eigenpairs
from kontrast.losses import ContrastiveLoss, Dot, Linear
from kontrast.nets import MLP, PARAMETRIZATIONS, parameters_of
from kontrast.pca import (
    PCASolution,
    contrastive_drift,
    contrastive_matrix,
    contrastive_pca,
    hidden_features,
    orthonormal_start,
    pair_features,
    pca_network,
    row_difference,
    train_pca_network,
)
from tests.cases import DTYPES, TOLERANCE, generator, randn
from tests.reference import contrastive as reference

LOSS = ContrastiveLoss(Dot(), Linear())
DELTAS = [None, 0.01, 0.5]
MODULE = sys.modules[contrastive_pca.__module__]


def setting(
    *, n: int = 6, width: int = 16, depth: int = 1, seed: int = 0, dtype: torch.dtype = torch.float64, **options: object
) -> tuple[MLP, Pairs]:
    pairs = make_pairs(randn(n, 4, seed=seed), views=GaussianNoise(0.3), generator=generator(seed), **options)
    net = MLP(4, width, 3, depth=depth, activation="relu", generator=generator(seed + 1), dtype=dtype)
    return net, pairs.to(dtype=dtype)


def features_of(net: MLP, pairs: Pairs, delta: float | None = 0.01) -> torch.Tensor:
    return pair_features(net, pairs.rows, delta=delta)


def loss_at(net: MLP, pairs: Pairs, delta: float | None, parameters: dict[str, torch.Tensor]) -> torch.Tensor:
    return contrastive_problem(pairs, LOSS).objective(pca_network(net, delta=delta)(parameters, pairs.rows))


def random_S(m: int, *, seed: int = 0, symmetric: bool = False) -> torch.Tensor:
    S = randn(m, m, seed=seed) * (randn(m, m, seed=seed + 1) > 0.5)
    return ((S + S.mT) / 2 if symmetric else S).to_sparse().coalesce()


# Features and the network (7)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS)
def test_hidden_features_are_what_the_output_layer_sees(depth: int, parametrization: str) -> None:
    net = MLP(4, 16, 3, depth=depth, parametrization=parametrization, activation="tanh", dtype=torch.float64)
    x = randn(5, 4)
    phi = hidden_features(net, x)
    assert phi.shape == (5, 16)
    torch.testing.assert_close(net.scales[-1] * phi @ net.output, net(x))
    torch.testing.assert_close(phi.tolist(), reference.hidden(net, x), rtol=1e-12, atol=1e-12)
    other = {name: p + 1 for name, p in parameters_of(net).items()}
    torch.testing.assert_close(net.scales[-1] * hidden_features(net, x, other) @ other["output"], net.at(other, x))


@given(seed=integers(0, 2**16), delta=sampled_from(DELTAS), depth=integers(1, 2), negatives=sampled_from([0, 2, "all"]))
def test_the_loss_is_a_trace(seed: int, delta: float | None, depth: int, negatives: int | str) -> None:
    """Claims A.eq8 and A.eq10, for W with orthonormal columns and without."""
    net, pairs = setting(n=4, width=8, depth=depth, seed=seed, negatives=negatives, n_positives=2)
    C = reference.matrix(net, pairs, delta)
    for parameters in (parameters_of(net), orthonormal_start(net)):
        W = parameters["output"]
        loss = float(loss_at(net, pairs, delta, parameters))
        assert loss == pytest.approx(-float(torch.trace(W.mT @ C @ W)), rel=1e-12, abs=1e-12)
        assert loss == pytest.approx(reference.loss(net, W, pairs, delta), rel=1e-12, abs=1e-12)


@given(seed=integers(0, 2**16), delta=sampled_from(DELTAS), dtype=sampled_from(DTYPES))
def test_the_matrix_is_the_papers(seed: int, delta: float | None, dtype: torch.dtype) -> None:
    net, pairs = setting(n=4, width=8, seed=seed, negatives=2, dtype=dtype)
    C_V = reference.matrix(net, pairs, delta)
    close = {"rtol": 0.0, "atol": TOLERANCE[dtype]["atol"] * max(1.0, float(C_V.abs().max()))}
    for symmetric, expected in ((False, C_V), (True, (C_V + C_V.mT) / 2)):
        C = contrastive_matrix(features_of(net, pairs, delta), pair_matrix(pairs, symmetric=symmetric))
        assert C.dtype == dtype
        torch.testing.assert_close(C.double(), expected, **close)


@pytest.mark.parametrize("delta", DELTAS)
def test_silent_points_have_finite_gradients(delta: float | None) -> None:
    net, pairs = setting()
    pairs.x[:2] = 0  # φ(0) = 0 for ReLU
    parameters = {name: p.requires_grad_() for name, p in orthonormal_start(net).items()}
    loss = loss_at(net, pairs, delta, parameters)
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    assert all(torch.isfinite(g).all() for g in gradients)
    assert all(g.abs().max() > 0 for g in gradients)


def test_the_gradient_is_that_of_differences() -> None:
    net, pairs = setting(depth=2)
    net.activation = MLP(1, 1, 1, activation="tanh").activation
    start = {name: p.requires_grad_() for name, p in orthonormal_start(net).items()}
    names = list(start)

    def value(*tensors: torch.Tensor) -> torch.Tensor:
        return loss_at(net, pairs, 0.1, dict(zip(names, tensors, strict=True)))

    assert torch.autograd.gradcheck(value, tuple(start.values()))


def test_the_start_is_orthonormal_and_leaves_the_net_alone() -> None:
    net, _ = setting()
    before = parameters_of(net)
    start = orthonormal_start(net)
    assert orthonormality_error(start["output"]) < 1e-12
    assert subspace_sines(start["output"], before["output"])[0] < 1e-12
    assert torch.equal(start["hidden.0"], before["hidden.0"])
    start["hidden.0"] += 1
    assert all(torch.equal(p, before[name]) for name, p in parameters_of(net).items())


# The drift of C


@given(
    m=integers(1, 12),
    M=integers(1, 30),
    seed=integers(0, 2**16),
    size=sampled_from([1e-120, 1e-12, 1e-5, 1.0, 1e3]),
    scale=sampled_from([1e-80, 1.0, 1e80]),
)
def test_the_drift_is_the_norm_of_the_difference(m: int, M: int, seed: int, size: float, scale: float) -> None:
    """Tiny drifts too: the expected norm is of Δ^T S Φ_0 + Φ_0^T S Δ + Δ^T S Δ, for the Δ that the numbers hold."""
    S = random_S(m, seed=seed)
    features0 = scale * randn(m, M, seed=seed + 2)
    features = features0 + scale * size * randn(m, M, seed=seed + 3)
    D, dense, F0 = (features - features0) / scale, S.to_dense(), features0 / scale
    largest = float(D.abs().max()) or 1.0  # so that squares of 1e-120 do not vanish
    D = D / largest
    moved = D.mT @ dense @ F0 + F0.mT @ dense @ D + largest * D.mT @ dense @ D
    expected = float(moved.norm()) * largest * scale * scale
    assert contrastive_drift(features, features0, S) == pytest.approx(expected, rel=1e-8, abs=0)


@pytest.mark.parametrize("shape", [(5, 40), (40, 5)])
def test_the_drift_is_that_of_the_two_matrices(shape: tuple[int, int]) -> None:
    for symmetric in (True, False):
        S = random_S(shape[0], symmetric=symmetric)
        now, before = randn(*shape, seed=7), randn(*shape, seed=8)
        direct = float((contrastive_matrix(now, S) - contrastive_matrix(before, S)).norm())
        assert contrastive_drift(now, before, S) == pytest.approx(direct, rel=1e-11)


def test_a_rotation_of_the_points_that_leaves_c_alone_is_no_drift() -> None:
    """Terms of the squared norm cancel wholly here, which the (m, m) products alone would not resolve."""
    m, M = 6, 30
    S, F = torch.eye(m, dtype=torch.float64).to_sparse(), randn(m, M)
    R = random_frame(m, m, generator=generator(1))
    assert contrastive_drift(R @ F, F, S) < 1e-12 * float(contrastive_matrix(F, S).norm())
    assert contrastive_drift(-F, F, S) == 0
    assert contrastive_drift(F, F.clone(), S) == 0
    E = 1e-9 * randn(m, M, seed=2)  # and what little drift there is beside the rotation is found
    expected = float((F.mT @ E + E.mT @ F).norm())
    assert contrastive_drift(R @ (F + E), F, S) == pytest.approx(expected, rel=1e-5)


def test_the_drift_in_float32() -> None:
    for m, M in ((6, 30), (30, 6)):
        S, now, before = random_S(m), randn(m, M, seed=2), randn(m, M, seed=3)
        low = contrastive_drift(now.float(), before.float(), S.float())
        assert low == pytest.approx(contrastive_drift(now, before, S), rel=1e-5)
        huge = contrastive_drift(1e15 * now.float(), 1e15 * before.float(), S.float())
        assert huge == pytest.approx(1e30 * low, rel=1e-4)


# PCA


def eigen_reference(features: torch.Tensor, S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    C = features.mT @ S.to_dense() @ features
    values, vectors = torch.linalg.eigh((C + C.mT) / 2)
    return values.flip(0), vectors.flip(1)


@given(m=integers(2, 14), M=integers(1, 30), k=integers(1, 30), seed=integers(0, 2**16), dtype=sampled_from(DTYPES))
def test_pca_is_the_top_of_the_dense_spectrum(m: int, M: int, k: int, seed: int, dtype: torch.dtype) -> None:
    """Any S, so that eigenvalues of both signs and the zeros of M > m all come to be among the k largest."""
    k = min(k, M)
    features = randn(m, M, seed=seed)
    S = (random_S(m, seed=seed) + torch.eye(m, dtype=torch.float64).to_sparse()).coalesce()
    solution = contrastive_pca(features.to(dtype), S.to(dtype), k)
    values, vectors = eigen_reference(features, S)
    size = float(values.abs().max())
    tolerance = (1e-11 if dtype is torch.float64 else 1e-4) * size
    torch.testing.assert_close(solution.values.double(), values[:k], rtol=0, atol=tolerance)
    assert orthonormality_error(solution.frame) < (1e-12 if dtype is torch.float64 else 1e-5)
    gap = float(values[k - 1] - values[k]) if k < M else math.inf
    assert solution.gap == pytest.approx(gap, rel=0, abs=2 * tolerance)
    if math.isfinite(gap) and gap > 1e-3 * size:
        accuracy = 1e-8 if dtype is torch.float64 else 0.2
        assert subspace_sines(solution.frame.double(), vectors[:, :k])[0] < accuracy
        assert solution.warnings == ()
    torch.testing.assert_close(fix_signs(solution.frame), solution.frame, rtol=0, atol=0)


@pytest.mark.parametrize("width", [20, 90])
@pytest.mark.parametrize("delta", DELTAS)
def test_exact_and_lanczos_agree(width: int, delta: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    net, pairs = setting(n=30, width=width, negatives=2)
    features = features_of(net, pairs, delta)
    for S in (pair_matrix(pairs), pair_matrix(pairs, symmetric=False), pair_matrix(pairs).to_dense()):
        exact = contrastive_pca(features, S, 3)
        with monkeypatch.context() as patch:
            patch.setattr(MODULE, "EXACT_BELOW", 0)
            lanczos = contrastive_pca(features, S, 3)
        torch.testing.assert_close(lanczos.values, exact.values, rtol=0, atol=1e-9 * float(exact.values[0]))
        torch.testing.assert_close(lanczos.frame, exact.frame, rtol=0, atol=1e-6)
        assert lanczos.gap == pytest.approx(exact.gap, abs=1e-9 * float(exact.values[0]))
        assert exact.warnings == lanczos.warnings == ()


@given(seed=integers(0, 2**16), delta=sampled_from(DELTAS), width=sampled_from([6, 40]))
def test_no_frame_has_a_lower_loss(seed: int, delta: float | None, width: int) -> None:
    net, pairs = setting(width=width, seed=seed)
    solution = contrastive_pca(features_of(net, pairs, delta), pair_matrix(pairs), 3)
    start = orthonormal_start(net)
    best = float(loss_at(net, pairs, delta, {**start, "output": solution.frame}))
    assert best == pytest.approx(-float(solution.values.sum()), rel=1e-11, abs=1e-13)
    for k in range(5):
        near = torch.linalg.qr(solution.frame + 0.1 * k * randn(width, 3, seed=seed + k))[0]
        for W in (random_frame(width, 3, generator=generator(seed + k)), near):
            assert float(loss_at(net, pairs, delta, {**start, "output": W})) >= best - 1e-12 * abs(best)


def test_algebraic_not_absolute() -> None:
    S = torch.diag(torch.tensor([-5.0, 1.0, 2.0])).to_sparse()
    solution = contrastive_pca(torch.eye(3), S, 2)
    assert solution.values.tolist() == [2, 1]
    torch.testing.assert_close(solution.frame, torch.eye(3)[:, [2, 1]])
    assert solution.gap == 6


@pytest.mark.parametrize("limit", [0, 4000])
def test_zeros_of_the_complement_are_among_the_largest(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "EXACT_BELOW", limit)
    features = torch.zeros(3, 200, dtype=torch.float64)
    features[:, :3] = torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    S = torch.diag(torch.tensor([4.0, -1.0, -1.0], dtype=torch.float64)).to_sparse()
    alone = contrastive_pca(features, S, 1)
    assert alone.values.tolist() == pytest.approx([4])
    assert alone.gap == pytest.approx(4)
    assert alone.warnings == ()
    three = contrastive_pca(features, S, 3)
    torch.testing.assert_close(three.values, torch.tensor([4.0, 0, 0], dtype=torch.float64), rtol=0, atol=1e-9)
    assert orthonormality_error(three.frame) < 1e-12
    assert features.mul(1.0)[1:].matmul(three.frame[:, 1:]).abs().max() < 1e-6  # orthogonal to what repels
    assert abs(three.gap) < 1e-8
    (text,) = three.warnings
    assert "the top-3 subspace is not unique; lower n_components to the number of positive" in text


def test_a_repeated_eigenvalue_is_told() -> None:
    S = torch.diag(torch.tensor([2.0, 1.0, 1.0, 0.5], dtype=torch.float64)).to_sparse()
    Q = random_frame(4, 4, generator=generator())
    (text,) = contrastive_pca(Q, S, 2).warnings
    assert "not unique; change n_components" in text
    assert contrastive_pca(Q, S, 1).warnings == contrastive_pca(Q, S, 3).warnings == ()
    everything = contrastive_pca(Q, S, 4)
    assert everything.gap == math.inf
    assert everything.warnings == ()


@pytest.mark.parametrize("residual, n_warnings", [(1e-4, 0), (1e-2, 1)])
def test_a_gap_below_the_error_of_lanczos_is_told(
    residual: float, n_warnings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    S = torch.diag(torch.linspace(1, 2, 101, dtype=torch.float64)).to_sparse()  # gaps of 0.01

    def inexact(*args: object, **options: object) -> Eigenpairs:
        found = top_eigenpairs(*args, **options)
        return replace(found, residuals=found.residuals + residual)

    monkeypatch.setattr(MODULE, "EXACT_BELOW", 0)
    monkeypatch.setattr(MODULE, "top_eigenpairs", inexact)
    solution = contrastive_pca(torch.eye(101, dtype=torch.float64), S, 2)
    assert solution.gap == pytest.approx(0.01)
    assert len(solution.warnings) == n_warnings


def test_silent_and_equal_points_need_no_full_rank() -> None:
    net, pairs = setting(n=10, width=60)
    pairs.x[:3] = pairs.x[3]  # equal rows
    pairs.x[4] = 0
    features, S = features_of(net, pairs), pair_matrix(pairs)
    values, vectors = eigen_reference(features, S)
    solution = contrastive_pca(features, S, 3)
    torch.testing.assert_close(solution.values, values[:3], rtol=0, atol=1e-13)
    assert subspace_sines(solution.frame, vectors[:, :3])[0] < 1e-9


@pytest.mark.parametrize("limit", [0, 4000])
@pytest.mark.parametrize("shape", [(6, 130), (130, 6)])
def test_nothing_to_find_is_refused(limit: int, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "EXACT_BELOW", limit)
    m, M = shape
    pairs = make_pairs(randn(m // 2, 2), views=GaussianNoise(0.1), generator=generator())
    S = pair_matrix(pairs)
    alike = (3 + randn(1, M)).expand(m, M)  # attraction and repulsion cancel
    for features, matrix in ((alike, S), (torch.zeros(m, M).double(), S), (randn(m, M), 0 * S)):
        with pytest.raises(InputError, match="contrastive matrix is zero to rounding"):
            contrastive_pca(features, matrix, 2)


@pytest.mark.parametrize("k", [0, -1, 17, 2.0, True])
def test_impossible_numbers_of_components_are_refused(k: object) -> None:
    net, pairs = setting()
    with pytest.raises(
        InputError, match=r"n_components must be a whole number of at least 1, got|there are only 16 features"
    ):
        contrastive_pca(features_of(net, pairs), pair_matrix(pairs), k)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_features_that_are_not_finite_are_refused(value: float) -> None:
    net, pairs = setting()
    features, S = features_of(net, pairs), pair_matrix(pairs)
    bad = features.clone()
    bad[1, 1] = value
    with pytest.raises(InputError, match="NaN"):
        contrastive_pca(bad, S, 2)
    with pytest.raises(InputError, match="NaN"):
        contrastive_drift(bad, features, S)


def test_matrices_that_do_not_fit_are_refused() -> None:
    net, pairs = setting()
    features, S = features_of(net, pairs), pair_matrix(pairs)
    with pytest.raises(InputError, match=r"S must be torch.float64 of shape \(11, 11\)"):
        contrastive_matrix(features[1:], S)
    with pytest.raises(InputError, match=r"S must be torch.float32"):
        contrastive_pca(features.float(), S, 2)
    with pytest.raises(InputError, match="must have one shape"):
        contrastive_drift(features, features[:, 1:], S)
    with pytest.raises(InputError, match=r"features must have shape \(m, M\) with no size of 0, got \(.*, 0\)"):
        contrastive_matrix(features[:, :0], S)


def test_a_full_pair_matrix_multiplies_like_a_sparse_one(monkeypatch: pytest.MonkeyPatch) -> None:
    features, S = randn(20, 8), random_S(20)
    full = contrastive_matrix(features, S)
    monkeypatch.setattr(MODULE, "DENSE_SPEED", 0)
    torch.testing.assert_close(contrastive_matrix(features, S), full, rtol=0, atol=1e-12)


# Training


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_training_descends_on_the_grassmannian(delta: float | None, dtype: torch.dtype) -> None:
    net, pairs = setting(width=32, dtype=dtype)
    run = train_pca_network(net, pairs, delta=delta, learning_rate=0.1, n_steps=50, keep_outputs=True)
    assert run.status is Status.STEP_LIMIT
    assert orthonormality_error(run.final_parameters["output"]) < (1e-12 if dtype is torch.float64 else 2e-6)
    assert all(later <= earlier + 1e-7 for earlier, later in itertools.pairwise(run.losses.tolist()))
    assert run.losses[-1] < run.losses[0]
    assert run.outputs is not None
    assert run.outputs.shape == (2, 12, 3)
    assert not torch.equal(run.final_parameters["hidden.0"], parameters_of(net)["hidden.0"])
    last = loss_at(net, pairs, delta, run.final_parameters)
    assert float(last) == pytest.approx(float(run.losses[-1]), rel=1e-5)


@given(seed=integers(0, 2**16), delta=sampled_from(DELTAS), depth=integers(1, 2))
@settings(max_examples=12)
def test_frozen_training_is_training_at_the_hidden_rate_zero(seed: int, delta: float | None, depth: int) -> None:
    net, pairs = setting(seed=seed, depth=depth)
    seen = {"moved": lambda s: pair_features(net, pairs.rows, parameters=s.parameters) @ s.parameters["output"]}
    options = {"n_steps": 10, "record_at": [0, 4, 10], "recorders": seen, "keep_outputs": True}
    frozen = train_pca_network(net, pairs, delta=delta, learning_rate=0.5, freeze_hidden=True, **options)
    start = orthonormal_start(net)
    slow = gradient_descent(
        pca_network(net, delta=delta),
        start,
        contrastive_problem(pairs, LOSS),
        learning_rate={name: 0.5 if name == "output" else 0.0 for name in start},
        orthonormal={"output"},
        **options,
    )
    assert frozen.steps == slow.steps
    assert list(frozen.final_parameters) == list(slow.final_parameters)
    for name, parameter in slow.final_parameters.items():
        torch.testing.assert_close(frozen.final_parameters[name], parameter, **TOLERANCE[torch.float64])
        assert name == "output" or torch.equal(frozen.final_parameters[name], start[name])
    for ours, theirs in (
        (frozen.losses, slow.losses),
        (frozen.outputs, slow.outputs),
        (frozen.final_outputs, slow.final_outputs),
        (frozen.records["moved"], slow.records["moved"]),
    ):
        torch.testing.assert_close(ours, theirs, **TOLERANCE[torch.float64])


def test_frozen_training_finds_the_pca() -> None:
    """Claim A.pca with C held fixed: the rate of convergence is 1 − 2η·gap a step."""
    net, pairs = setting(n=10, width=40)
    solution = contrastive_pca(features_of(net, pairs), pair_matrix(pairs), 3)
    n_steps = math.ceil(15 / (2 * solution.gap))
    run = train_pca_network(net, pairs, delta=0.01, learning_rate=1.0, n_steps=n_steps, freeze_hidden=True)
    assert subspace_sines(run.final_parameters["output"], solution.frame)[0] < 1e-4
    assert float(run.losses[-1]) == pytest.approx(-float(solution.values.sum()), abs=1e-8)


def test_training_goes_on_from_a_start() -> None:
    net, pairs = setting()
    for freeze in (False, True):
        options = {"delta": 0.1, "learning_rate": 0.3, "freeze_hidden": freeze}
        whole = train_pca_network(net, pairs, n_steps=10, **options)
        half = train_pca_network(net, pairs, n_steps=5, **options)
        rest = train_pca_network(net, pairs, n_steps=5, start=half.final_parameters, **options)
        for name, parameter in whole.final_parameters.items():
            torch.testing.assert_close(rest.final_parameters[name], parameter, **TOLERANCE[torch.float64])


def test_recorders_measure_the_drift() -> None:
    net, pairs = setting(width=64)
    S, features0 = pair_matrix(pairs), features_of(net, pairs, 0.1)

    def drift(snapshot: Snapshot) -> float:
        now = pair_features(net, pairs.rows, delta=0.1, parameters=snapshot.parameters)
        return contrastive_drift(now, features0, S)

    options = {"delta": 0.1, "learning_rate": 1.0, "n_steps": 4, "record_at": range(5), "recorders": {"drift": drift}}
    moved = train_pca_network(net, pairs, **options).records["drift"]
    assert moved[0] == 0
    assert (moved[1:] > moved[:-1]).all()
    assert (train_pca_network(net, pairs, freeze_hidden=True, **options).records["drift"] == 0).all()


def test_a_start_of_another_net_is_refused() -> None:
    net, pairs = setting()
    start = orthonormal_start(net)
    other = orthonormal_start(setting(width=8)[0])
    for wrong in ({"output": start["output"]}, other, {**start, "more": start["output"]}):
        with pytest.raises(InputError, match="start must hold the net's parameters"):
            train_pca_network(net, pairs, delta=None, learning_rate=0.1, n_steps=1, start=wrong)
    with pytest.raises(InputError, match="must start with orthonormal columns"):
        train_pca_network(net, pairs, delta=None, learning_rate=0.1, n_steps=1, start=parameters_of(net))


# Rows compared


@given(seed=integers(0, 2**16), scale=floats(1e-100, 1e100))
def test_row_difference_by_hand(seed: int, scale: float) -> None:
    a, b = randn(5, 3, seed=seed), randn(5, 3, seed=seed + 1)
    expected = sum(math.dist(u, v) / math.hypot(*v) for u, v in zip(a.tolist(), b.tolist(), strict=True)) / 5
    assert row_difference(scale * a, scale * b) == pytest.approx(expected, rel=1e-12)
    assert row_difference(b, b) == 0


def test_rows_without_a_size_are_refused() -> None:
    a, b = randn(4, 2), randn(4, 2)
    b[2] = 0
    with pytest.raises(InputError, match=r"1 of 4 rows of b are zero \(the first is row 2\)"):
        row_difference(a, b)
    with pytest.raises(InputError, match="of the same points"):
        row_difference(a, b[:3])
    with pytest.raises(InputError, match="NaN"):
        row_difference(a / 0, a)


def test_a_solution_is_frozen() -> None:
    solution = PCASolution(torch.eye(2), torch.ones(2), math.inf)
    with pytest.raises(AttributeError):
        solution.gap = 1.0


@pytest.mark.gpu
@pytest.mark.parametrize("width", [8, 40])
def test_a_gpu_gives_the_same(width: int) -> None:
    net, pairs = setting(width=width)
    features, S = features_of(net, pairs), pair_matrix(pairs)
    there = pair_matrix(pairs.to("cuda"))
    here, gpu = contrastive_pca(features, S, 3), contrastive_pca(features.cuda(), there, 3)
    assert gpu.frame.device.type == "cuda"
    torch.testing.assert_close(gpu.frame.cpu(), here.frame, rtol=0, atol=1e-9)
    moved = features + 0.1 * randn(*features.shape)
    drift = contrastive_drift(moved, features, S)
    assert contrastive_drift(moved.cuda(), features.cuda(), there) == pytest.approx(drift, rel=1e-10)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_another_sparse_layout_and_other_rows_are_refused() -> None:
    features, S = randn(4, 3), torch.eye(4, dtype=torch.float64)
    with pytest.raises(InputError, match="S must be dense or sparse in COO layout"):
        contrastive_pca(features, S.to_sparse_csr(), 1)
    with pytest.raises(InputError, match=r"this net takes rows \(n, 5\) of torch.float64, .*, got \(4, 3\)"):
        pair_features(MLP(5, 6, 2, dtype=torch.float64), features)
    with pytest.raises(InputError, match=r"got \(4, 3\) of torch.float32"):
        pair_features(MLP(3, 6, 2, dtype=torch.float64), features.float())
