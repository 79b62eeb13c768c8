"""What is measured of a run that has ended, against the dense kernel and the definition of each number."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import integers

from kontrast.nets import MLP, last_features, parameters_of, pure_function
from kontrast.study.map import QUANTITIES
from kontrast.study.map.measures import Ended, Ground
from tests.cases import generator, randn
from tests.reference import ntk

SEEDS = integers(0, 2**16)
READ = {quantity.name: quantity.read for quantity in QUANTITIES}
D, WIDTH, Z = 5, 7, 2


def run_of(seed, *, step=0.5):
    """A network, moved by a step of chance, as a run that has ended; and that network."""
    net = MLP(D, WIDTH, Z, activation="tanh", generator=generator(seed), dtype=torch.float64)
    ended = copy.deepcopy(net)
    with torch.no_grad():
        for i, p in enumerate(ended.parameters()):
            p.add_(step * randn(*p.shape, seed=seed + i))
    ground = Ground(
        net,
        lambda x: x,
        parameters_of(net),
        pure_function(net),
        last_features(net),
        points=randn(4, D, seed=seed + 7),
        pairs=randn(24, D, seed=seed + 8),
        test=randn(9, D, seed=seed + 9),
        probes=None,
        n_components=Z,
    )
    return Ended(ground, parameters_of(ended), net, 0.25), ended


@settings(max_examples=8)
@given(seed=SEEDS)
def test_drift_and_alignment_are_those_of_the_dense_kernel(seed):
    run, ended = run_of(seed)
    K, K0 = (
        ntk.empirical_ntk(net, run.ground.points, run.ground.points).diagonal(dim1=2, dim2=3).sum(-1).detach()
        for net in (ended, run.ground.module)
    )
    assert READ["map_drift"](run) == pytest.approx(float((K - K0).norm() / K0.norm()))
    assert READ["map_alignment"](run) == pytest.approx(float((K * K0).sum() / K.norm() / K0.norm()))
    assert READ["map_gap"](run) == 0.25


@settings(max_examples=8)
@given(seed=SEEDS)
def test_rank_and_spread_are_of_the_outputs_now_and_at_the_start(seed):
    run, ended = run_of(seed)
    for net, prefix in ((ended, "map_"), (run.ground.module, "map_first_")):
        f = net(run.ground.test).detach()
        centred = f - f.mean(0)
        p = torch.linalg.svdvals(centred)
        p = p / p.sum()
        assert READ[f"{prefix}rank"](run) == pytest.approx(math.exp(-float((p * p.log()).sum())))
        spread = float(centred.square().sum() / f.square().sum())
        assert READ[f"{prefix}spread"](run) == pytest.approx(spread)


@settings(max_examples=8)
@given(seed=SEEDS)
def test_contrastive_pca_is_that_of_the_pairs_by_a_slow_loop(seed):
    """C = Σ over pairs of S_ij φ_i φ_j^T of centred features: a sample attracts its other view, and repels all."""
    run, ended = run_of(seed)
    n = len(run.ground.pairs) // 2
    for net, name in ((run.ground.module, "map_pca_first"), (ended, "map_pca_now")):
        features = last_features(net)
        parameters = parameters_of(net)
        phi = features(parameters, run.ground.pairs)
        center = phi.mean(0)
        phi = phi - center
        C = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
        for i in range(n):
            for j in range(n):
                weight = ((i == j) - 1 / n) / (2 * n)
                C += weight * (torch.outer(phi[i], phi[n + j]) + torch.outer(phi[n + j], phi[i]))
        frame = torch.linalg.eigh(C).eigenvectors[:, -Z:]
        there = (features(parameters, run.ground.test) - center) @ frame
        here = ended(run.ground.test).detach()
        Q, P = (torch.linalg.qr(part - part.mean(0)).Q for part in (here, there))
        cosines = torch.linalg.svdvals(Q.T @ P).clamp(max=1)
        assert READ[name](run) == pytest.approx(math.sqrt(float((1 - cosines.square()).mean())), abs=1e-6)


def test_a_run_that_has_not_moved_is_its_start():
    run, _ = run_of(3, step=0.0)
    assert READ["map_drift"](run) == 0
    assert READ["map_alignment"](run) == pytest.approx(1)
    assert READ["map_pca_first"](run) == pytest.approx(READ["map_pca_now"](run))
    assert READ["map_rank"](run) == READ["map_first_rank"](run)
    assert run.sine(run.outputs @ randn(Z, Z, seed=1) + 5) == pytest.approx(0, abs=1e-7)  # the span, not the basis
    assert math.isnan(run.sine(None))
    assert math.isnan(READ["map_accuracy"](run))  # no probes without labels
    assert math.isnan(READ["map_twin_knn"](run))


def test_outputs_all_alike_have_no_sine_and_features_too_few_no_pca():
    run, _ = run_of(4)
    flat = {name: torch.zeros_like(p) for name, p in run.parameters.items()}
    still = Ended(run.ground, flat, run.twin_outputs, 0.0)
    assert math.isnan(READ["map_pca_first"](still))
    assert run.ground.pca_outputs(flat) is None
