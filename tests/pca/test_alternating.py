from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import integers, sampled_from

from kontrast.data import GaussianNoise, Pairs, make_pairs, pair_matrix
from kontrast.dynamics import contrastive_problem
from kontrast.errors import InputError
from kontrast.linalg import orthonormality_error
from kontrast.losses import ContrastiveLoss, Dot, Linear
from kontrast.nets import MLP, parameters_of
from kontrast.pca import (
    Alternation,
    alternating_pca,
    contrastive_pca,
    orthonormal_start,
    pair_features,
    pca_network,
    train_pca_network,
)
from tests.cases import DTYPES, TOLERANCE, generator, randn

DELTAS = [None, 0.01, 0.5]


def setting(*, seed: int = 0, depth: int = 1, dtype: torch.dtype = torch.float64, width: int = 24) -> tuple[MLP, Pairs]:
    pairs = make_pairs(randn(8, 4, seed=seed), views=GaussianNoise(0.3), generator=generator(seed))
    net = MLP(4, width, 2, depth=depth, generator=generator(seed + 1), dtype=dtype)
    return net, pairs.to(dtype=dtype)


def by_hand(net: MLP, pairs: Pairs, delta: float | None, rate: float, n_updates: int) -> Alternation:
    """Dense eigenvectors of C̃, and the whole network differentiated anew in every update."""
    objective, S = contrastive_problem(pairs, ContrastiveLoss(Dot(), Linear())).objective, pair_matrix(pairs).to_dense()
    theta = {name: p.requires_grad_() for name, p in parameters_of(net).items()}
    losses, gaps = [], []
    for update in range(n_updates + 1):
        features = pair_features(net, pairs.rows, delta=delta, parameters=theta).detach()
        values, vectors = torch.linalg.eigh(features.mT @ S @ features)
        theta["output"] = vectors[:, -net.d_out :].clone()
        loss = objective(pca_network(net, delta=delta)(theta, pairs.rows))
        losses.append(float(loss.detach()))
        gaps.append(float(values[-net.d_out] - values[-net.d_out - 1]))
        if update < n_updates:
            names = [name for name in theta if name != "output"]
            for name, gradient in zip(names, torch.autograd.grad(loss, [theta[n] for n in names]), strict=True):
                theta[name] = (theta[name] - rate * gradient).detach().requires_grad_()
    return Alternation(theta, torch.tensor(losses, dtype=torch.float64), torch.tensor(gaps, dtype=torch.float64))


@given(seed=integers(0, 2**16), delta=sampled_from(DELTAS), depth=integers(1, 2))
@settings(max_examples=12)
def test_it_is_the_papers_two_steps(seed: int, delta: float | None, depth: int) -> None:
    net, pairs = setting(seed=seed, depth=depth)
    ours = alternating_pca(net, pairs, delta=delta, learning_rate=0.2, n_updates=4)
    slow = by_hand(net, pairs, delta, 0.2, 4)
    torch.testing.assert_close(ours.losses, slow.losses, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(ours.gaps, slow.gaps, rtol=1e-9, atol=1e-10)
    for name in ours.parameters:
        if name != "output":
            torch.testing.assert_close(ours.parameters[name], slow.parameters[name].detach(), rtol=1e-8, atol=1e-9)


@given(seed=integers(0, 2**16), delta=sampled_from(DELTAS))
@settings(max_examples=12)
def test_the_loss_falls_with_every_update(seed: int, delta: float | None) -> None:
    net, pairs = setting(seed=seed)
    run = alternating_pca(net, pairs, delta=delta, learning_rate=0.05, n_updates=10)
    assert run.losses.shape == run.gaps.shape == (11,)
    assert all(later < earlier for earlier, later in itertools.pairwise(run.losses.tolist()))


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_last_w_is_the_pca_of_the_last_c(delta: float | None, dtype: torch.dtype) -> None:
    net, pairs = setting(dtype=dtype)
    run = alternating_pca(net, pairs, delta=delta, learning_rate=0.2, n_updates=3)
    features = pair_features(net, pairs.rows, delta=delta, parameters=run.parameters)
    last = contrastive_pca(features, pair_matrix(pairs), 2)
    torch.testing.assert_close(run.parameters["output"], last.frame, **TOLERANCE[dtype])
    assert orthonormality_error(run.parameters["output"]) < (1e-12 if dtype is torch.float64 else 1e-5)
    assert float(run.losses[-1]) == pytest.approx(-float(last.values.sum()), rel=1e-5)
    assert float(run.gaps[-1]) == pytest.approx(last.gap, rel=1e-3)
    assert run.parameters["hidden.0"].dtype == dtype
    assert not any(p.requires_grad for p in run.parameters.values())


def test_no_update_is_pca_of_the_start() -> None:
    net, pairs = setting()
    before = parameters_of(net)
    run = alternating_pca(net, pairs, delta=0.01, learning_rate=1.0, n_updates=0)
    solution = contrastive_pca(pair_features(net, pairs.rows, delta=0.01), pair_matrix(pairs), 2)
    assert torch.equal(run.parameters["output"], solution.frame)
    assert torch.equal(run.parameters["hidden.0"], before["hidden.0"])
    alternating_pca(net, pairs, delta=0.01, learning_rate=1.0, n_updates=2)
    assert all(torch.equal(p, before[name]) for name, p in parameters_of(net).items())


def test_it_goes_on_from_a_start_and_is_ahead_of_training() -> None:
    net, pairs = setting()
    options = {"delta": 0.01, "learning_rate": 0.5}
    whole = alternating_pca(net, pairs, n_updates=6, **options)
    start = alternating_pca(net, pairs, n_updates=2, **options).parameters
    kept = {name: p.clone() for name, p in start.items()}
    rest = alternating_pca(net, pairs, n_updates=4, start=start, **options)
    torch.testing.assert_close(rest.losses, whole.losses[2:], **TOLERANCE[torch.float64])
    assert all(torch.equal(p, kept[name]) for name, p in start.items())
    assert whole.losses[-1] < train_pca_network(net, pairs, n_steps=6, **options).losses[-1]


def test_it_says_where_the_subspace_is_not_unique() -> None:
    x = torch.eye(2, dtype=torch.float64)
    index = torch.tensor([[0]])
    pairs = Pairs(x, torch.tensor([0]), index, torch.tensor([[1]]))
    net = MLP(2, 12, 3, activation="linear", dtype=torch.float64)
    run = alternating_pca(net, pairs, delta=None, learning_rate=0.1, n_updates=3)
    assert 1 <= len(run.warnings) <= 4
    assert all("not unique" in text for text in run.warnings)


def test_what_cannot_work_is_refused() -> None:
    net, pairs = setting()
    with pytest.raises(InputError, match="n_updates must be a whole number of at least 0, got -1"):
        alternating_pca(net, pairs, delta=None, learning_rate=0.1, n_updates=-1)
    with pytest.raises(InputError, match="learning_rate must be a positive number"):
        alternating_pca(net, pairs, delta=None, learning_rate=math.nan, n_updates=1)
    start = orthonormal_start(net)
    with pytest.raises(InputError, match="start must hold"):
        alternating_pca(net, pairs, delta=None, learning_rate=0.1, n_updates=1, start={"output": start["output"]})
    with pytest.raises(InputError, match="lower the learning rate"):
        alternating_pca(net, pairs, delta=None, learning_rate=1e200, n_updates=5)
