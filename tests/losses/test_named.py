from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import booleans, floats, integers, sampled_from
from torch.nn import functional as F

from kontrast.errors import InputError
from kontrast.losses import (
    barlow_twins,
    info_nce,
    moco,
    non_contrastive,
    nt_xent,
    spectral_contrastive,
    supcon,
    triplet,
    vicreg,
)
from tests.cases import DTYPES, TOLERANCE, generator, randn
from tests.reference import losses as reference

REASON = "needs pytorch-metric-learning, a development extra: pip install -e '.[dev]'"
metric_learning = pytest.importorskip("pytorch_metric_learning.losses", reason=REASON)
distances = pytest.importorskip("pytorch_metric_learning.distances", reason=REASON)
reducers = pytest.importorskip("pytorch_metric_learning.reducers", reason=REASON)

seeds = integers(0, 2**16)
quick = settings(max_examples=8, deadline=None)
# cosines divided by a small temperature lose digits before they are compared
LOOSE = {torch.float64: {"rtol": 1e-10, "atol": 1e-11}, torch.float32: {"rtol": 1e-4, "atol": 1e-5}}


def views(n, z=4, *, seed=0, dtype=torch.float64):
    a = randn(n, z, seed=seed, dtype=dtype)
    return a, a + 0.5 * randn(n, z, seed=seed + 1, dtype=dtype)


def close(actual, expected, table=TOLERANCE, **tolerance):
    expected = torch.as_tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual, expected, **(table[actual.dtype] | tolerance))


# NT-Xent, InfoNCE, MoCo


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("negatives", ["both", "cross", "intra"])
@quick
@given(seed=seeds, n=integers(2, 6), z=integers(1, 5), temperature=sampled_from([0.1, 0.5, 2.0]))
def test_nt_xent_equals_the_double_loop(dtype, symmetric, negatives, seed, n, z, temperature):
    data = views(n, z, seed=seed, dtype=dtype)
    options = {"temperature": temperature, "negatives": negatives, "symmetric": symmetric}
    close(nt_xent(*data, **options).total, reference.nt_xent(*data, **options), LOOSE)


@quick
@given(seed=seeds, n=integers(2, 8), temperature=floats(0.05, 2))
def test_nt_xent_equals_pytorch_metric_learning(seed, n, temperature):
    data = [x.requires_grad_() for x in views(n, seed=seed)]
    oracle = metric_learning.NTXentLoss(temperature=temperature)(torch.cat(data), torch.arange(n).repeat(2))
    ours = nt_xent(*data, temperature=temperature).total
    close(ours, oracle, rtol=1e-10)
    for grad, expected in zip(torch.autograd.grad(ours, data), torch.autograd.grad(oracle, data), strict=True):
        close(grad, expected, rtol=1e-8, atol=1e-10)


@quick
@given(seed=seeds, n=integers(2, 8), temperature=floats(0.05, 2), normalize=booleans())
def test_info_nce_is_the_cross_entropy_of_the_batch(seed, n, temperature, normalize):
    a, b = views(n, seed=seed)
    u, v = (F.normalize(a), F.normalize(b)) if normalize else (a, b)
    logits, target = u @ v.T / temperature, torch.arange(n)
    there, back = F.cross_entropy(logits, target), F.cross_entropy(logits.T, target)
    options = {"temperature": temperature, "normalize": normalize}
    close(info_nce(a, b, **options).total, there, LOOSE)
    close(info_nce(a, b, symmetric=True, **options).total, (there + back) / 2, LOOSE)


def test_nt_xent_cross_is_info_nce():
    a, b = views(6)
    for symmetric in (True, False):
        options = {"temperature": 0.3, "symmetric": symmetric}
        close(nt_xent(a, b, negatives="cross", **options).total, info_nce(a, b, **options).total)


def test_symmetric_losses_are_symmetric_and_the_others_are_not():
    a, b = views(5)
    for negatives in ("both", "cross", "intra"):
        close(nt_xent(a, b, negatives=negatives).total, nt_xent(b, a, negatives=negatives).total)
        one_way = [nt_xent(*pair, negatives=negatives, symmetric=False).total for pair in ((a, b), (b, a))]
        assert not torch.isclose(*one_way)
        close(nt_xent(a, b, negatives=negatives).total, sum(one_way) / 2)


@pytest.mark.parametrize("dtype", DTYPES)
@quick
@given(seed=seeds, n=integers(1, 5), K=integers(1, 6), temperature=sampled_from([0.07, 0.5]))
def test_moco_equals_the_loop(dtype, seed, n, K, temperature):
    q, k = views(n, seed=seed, dtype=dtype)
    queue = randn(K, 4, seed=seed + 2, dtype=dtype)
    close(moco(q, k, queue, temperature=temperature).total, reference.moco(q, k, queue, temperature=temperature), LOOSE)


def test_moco_trains_the_query_alone():
    q, k, queue = (x.requires_grad_() for x in (*views(3), randn(5, 4, seed=7)))
    moco(q, k, queue).total.backward()
    assert q.grad.norm() > 0
    assert k.grad is None
    assert queue.grad is None


# Triplet


@pytest.mark.parametrize(
    ("distance", "oracle"),
    [
        ("euclidean", distances.LpDistance(normalize_embeddings=False)),
        ("squared", distances.LpDistance(normalize_embeddings=False, power=2)),
        ("cosine", distances.CosineSimilarity()),
    ],
)
@quick
@given(seed=seeds, n=integers(1, 8), margin=sampled_from([0.0, 0.2, 1.0]))
def test_triplet_equals_pytorch_metric_learning(distance, oracle, seed, n, margin):
    data = [randn(n, 4, seed=seed + i) for i in range(3)]
    i = torch.arange(n)
    function = metric_learning.TripletMarginLoss(margin=margin, distance=oracle, reducer=reducers.MeanReducer())
    expected = function(torch.cat(data), indices_tuple=(i, i + n, i + 2 * n))
    close(triplet(*data, margin=margin, distance=distance).total, expected)


def test_triplet_by_hand():
    anchor, positive, negative = torch.zeros(2, 2), torch.tensor([[3.0, 4], [0, 1]]), torch.tensor([[0.0, 2], [0, 9]])
    close(triplet(anchor, positive, negative, margin=0.5).total, (5 - 2 + 0.5) / 2)  # the second is at zero, and counts
    close(triplet(anchor, positive, negative, margin=0.5, distance="squared").total, (25 - 4 + 0.5) / 2)
    close(triplet(positive, positive, negative, margin=0.5, distance="cosine").total, (0.8 - 1 + 0.5 + 0.5) / 2)


@pytest.mark.parametrize("distance", ["euclidean", "squared", "cosine"])
def test_triplet_has_finite_derivatives_where_anchor_and_positive_coincide(distance):
    a, negative = randn(3, 4), randn(3, 4, seed=1)
    a[0] = 0

    def total(anchor):
        return triplet(anchor, a, negative, margin=10.0, distance=distance).total

    assert torch.autograd.functional.jacobian(total, a).isfinite().all()
    assert torch.autograd.functional.hessian(total, a).isfinite().all()


# Spectral contrastive


@pytest.mark.parametrize("dtype", DTYPES)
@quick
@given(seed=seeds, n=integers(2, 6), z=integers(1, 4))
def test_spectral_contrastive_equals_the_double_loop(dtype, seed, n, z):
    data = [x / 2 for x in views(n, z, seed=seed, dtype=dtype)]
    close(spectral_contrastive(*data).total, reference.spectral_contrastive(*data), LOOSE)


def test_spectral_contrastive_is_an_unbiased_matrix_factorization():
    # Population: 5 points, a symmetric set of positive pairs (x, x⁺), each equally likely.
    edges = [(0, 1), (1, 2), (0, 3), (3, 4), (2, 2), (4, 0)]
    pairs = edges + [(y, x) for x, y in edges]
    f = randn(5, 3)
    P = torch.zeros(5, 5, dtype=torch.float64)
    for x, y in pairs:
        P[x, y] += 1 / len(pairs)
    p = P.sum(1)
    A = P / (p[:, None] * p).sqrt()  # normalised adjacency Ā
    G = p.sqrt()[:, None] * f  # rows √p(x) f(x)
    factorization = (A - G @ G.T).square().sum() - A.square().sum()
    batches = itertools.product(pairs, repeat=2)  # all batches of two independent positive pairs
    values = [spectral_contrastive(f[[x, u]], f[[y, v]]).total for (x, y), (u, v) in batches]
    close(torch.stack(values).mean(), factorization)


# SupCon


@pytest.mark.parametrize("dtype", DTYPES)
@quick
@given(
    seed=seeds, n=integers(1, 5), v=integers(1, 3), n_labels=integers(1, 4), temperature=sampled_from([0.1, 0.5, 2.0])
)
def test_supcon_equals_the_double_loop(dtype, seed, n, v, n_labels, temperature):
    if n * v < 2:
        n = 2
    features = randn(n, v, 3, seed=seed, dtype=dtype)
    labels = torch.randint(n_labels, (n,), generator=generator(seed))
    expected = reference.supcon(features, labels, temperature=temperature)
    close(supcon(features, labels, temperature=temperature).total, expected, LOOSE)


@quick
@given(seed=seeds, n=integers(3, 6), v=integers(1, 3), temperature=floats(0.05, 2))
def test_supcon_equals_pytorch_metric_learning(seed, n, v, temperature):
    features = randn(n, v, 4, seed=seed)
    labels = torch.tensor([3, 3, 8, *range(10, 7 + n)])  # a pair, and singletons: without a positive when v = 1
    oracle = metric_learning.SupConLoss(temperature=temperature)
    expected = oracle(features.reshape(n * v, 4), labels.repeat_interleave(v))
    close(supcon(features, labels, temperature=temperature).total, expected, rtol=1e-10)


def test_supcon_of_distinct_labels_is_nt_xent():
    a, b = views(5)
    close(supcon(torch.stack([a, b], 1), torch.arange(5), temperature=0.3).total, nt_xent(a, b, temperature=0.3).total)


def test_supcon_without_any_positive_is_zero_with_zero_gradient():
    features = randn(3, 1, 4).requires_grad_()
    value = supcon(features, torch.arange(3)).total
    value.backward()
    assert value == 0
    assert (features.grad == 0).all()


# VICReg, Barlow Twins, SimSiam


@pytest.mark.parametrize("dtype", DTYPES)
@quick
@given(seed=seeds, n=integers(2, 6), z=integers(1, 4), gamma=sampled_from([0.5, 1.0, 3.0]))
def test_vicreg_equals_its_definition(dtype, seed, n, z, gamma):
    data = views(n, z, seed=seed, dtype=dtype)
    weights = {"invariance": 2.0, "variance": 3.0, "covariance": 0.7}
    ours = vicreg(*data, **weights, gamma=gamma, epsilon=1e-3).total
    expected = reference.vicreg(*data, weights=list(weights.values()), gamma=gamma, epsilon=1e-3)
    close(ours, expected, LOOSE)


def test_vicreg_equals_the_authors_lines():
    a, b = views(16, 5)
    std = [(x.var(dim=0) + 1e-4).sqrt() for x in (a, b)]
    covariances = [torch.cov(x.T) for x in (a, b)]
    expected = 25 * F.mse_loss(a, b) + 25 * sum(F.relu(1 - s).mean() / 2 for s in std)
    expected += sum((C - C.diagonal().diag()).pow(2).sum() / 5 for C in covariances)
    close(vicreg(a, b).total, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@quick
@given(seed=seeds, n=integers(2, 6), z=integers(1, 4), redundancy=sampled_from([0.0, 0.005, 1.0]))
def test_barlow_twins_equals_its_definition(dtype, seed, n, z, redundancy):
    data = views(n, z, seed=seed, dtype=dtype)
    expected = reference.barlow_twins(*data, redundancy=redundancy, epsilon=1e-5)
    close(barlow_twins(*data, redundancy=redundancy).total, expected, LOOSE)


def test_barlow_twins_standardizes_as_batch_norm_does():
    a, b = views(16, 5)
    a_hat, b_hat = (F.batch_norm(x, None, None, training=True, eps=1e-5) for x in (a, b))
    C = a_hat.T @ b_hat / 16
    on = (C.diagonal() - 1).pow(2).sum()
    close(barlow_twins(a, b).total, on + 0.005 * (C.pow(2).sum() - C.diagonal().pow(2).sum()))


def test_non_contrastive_is_the_negative_cosine_and_stops_the_gradient():
    p, t = (x.requires_grad_() for x in views(5))
    value = non_contrastive(p, t).total
    close(value, -F.cosine_similarity(p, t).mean())
    value.backward()
    assert p.grad.norm() > 0
    assert t.grad is None
    close((p.grad * p).sum(-1), torch.zeros(5))  # the loss ignores the length of the prediction


# Stability


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "loss",
    [
        lambda a, b: nt_xent(a, b, temperature=1e-4),
        lambda a, b: info_nce(a, b, temperature=1e-4),
        lambda a, b: info_nce(1e2 * a, 1e2 * b, normalize=False),
        lambda a, b: moco(a, b, a.flip(0), temperature=1e-4),
        lambda a, b: supcon(torch.stack([a, b], 1), torch.tensor([0, 0, 1]), temperature=1e-4),
        lambda a, b: triplet(a, b, b.flip(0), distance="cosine"),
        vicreg,
        barlow_twins,
        non_contrastive,
    ],
    ids=["nt_xent", "info_nce", "info_nce_dot", "moco", "supcon", "triplet", "vicreg", "barlow", "non_contrastive"],
)
def test_finite_with_zero_rows_constant_dimensions_and_sharp_temperatures(loss, dtype):
    a, b = views(3, dtype=dtype)
    a[0], b[1], a[2] = 0, 0, b[2]
    a[:, 1], b[:, 1] = 0.1, 0.1  # a constant that its own rounded mean does not equal
    for x in (a, b, torch.zeros_like(a)):
        x = x.clone().requires_grad_()
        value = loss(x, b)
        value.total.backward()
        assert value.total.isfinite()
        assert x.grad.isfinite().all()
        assert x.grad.abs().max() < 1e8


def test_barlow_twins_counts_a_constant_dimension_as_uncorrelated():
    a, b = views(7, 2)
    a[:, 1] = 0.1
    close(barlow_twins(a, b, redundancy=0.0).total, barlow_twins(a[:, :1], b[:, :1], redundancy=0.0).total + 1)


# Errors

X, Y = torch.zeros(4, 3), torch.zeros(4, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: info_nce(X, Y), r"key must have the shape of query, \(4, 3\), got \(4, 2\)"),
        (lambda: info_nce(X[:1], X[:1]), r"needs at least 2 samples, got 1; use a larger batch"),
        (lambda: info_nce(X, X, temperature=0.0), r"temperature must be a positive number, got 0.0"),
        (lambda: info_nce(X[None], X[None]), r"query must have shape \(n, z\), got \(1, 4, 3\)"),
        (lambda: nt_xent(X, X[:3]), r"view_b must have the shape of view_a, \(4, 3\), got \(3, 3\)"),
        (lambda: nt_xent(X, X, negatives="all"), r"negatives must be one of both, cross, intra, got 'all'"),
        (lambda: nt_xent(X, X, temperature=-1.0), r"temperature must be a positive number, got -1.0"),
        (lambda: moco(X, X, Y), r"queue must have shape \(K, 3\), got \(4, 2\); pass one stored key"),
        (lambda: moco(X, X, X[:0]), r"queue must have shape \(K, 3\) with no size of 0, got \(0, 3\)"),
        (lambda: moco(X, X, X, temperature=0.0), r"temperature must be a positive number"),
        (lambda: triplet(X, X, Y), r"negative must have the shape of anchor"),
        (lambda: triplet(X, X, X, margin=-0.1), r"margin must be a number of 0 or more, got -0.1"),
        (lambda: triplet(X, X, X, margin=math.nan), r"margin must be a number of 0 or more, got nan"),
        (lambda: triplet(X, X, X, distance="l1"), r"distance must be one of euclidean, squared, cosine, got 'l1'"),
        (lambda: spectral_contrastive(X[:1], X[:1]), r"needs at least 2 samples, got 1"),
        (lambda: supcon(X, torch.zeros(4)), r"features must have shape \(n, v, z\), got \(4, 3\); use features"),
        (lambda: supcon(X[None], torch.zeros(4)), r"labels must have shape \(1,\), got \(4,\); pass one label"),
        (lambda: supcon(X[:1, None], torch.zeros(1)), r"supcon needs at least 2 rows"),
        (lambda: supcon(X[:, None], torch.zeros(4), temperature=0.0), r"temperature must be a positive number"),
        (lambda: vicreg(X[:1], X[:1]), r"needs at least 2 samples"),
        (lambda: vicreg(X, X, invariance=-1.0), r"invariance must be a number of 0 or more, got -1.0"),
        (lambda: vicreg(X, X, epsilon=0.0), r"epsilon must be a positive number"),
        (lambda: vicreg(X, X, gamma=0.0), r"gamma must be a positive number"),
        (lambda: barlow_twins(X, X, redundancy=-1.0), r"redundancy must be a number of 0 or more"),
        (lambda: barlow_twins(X, X, epsilon=-1.0), r"epsilon must be a positive number"),
        (lambda: non_contrastive(X.int(), X), r"prediction must be .* floating-point .*got torch.int32 \(4, 3\)"),
        (lambda: non_contrastive(X[:0], X[:0]), r"prediction must have shape \(n, z\) with no size of 0, got \(0, 3\)"),
        (lambda: non_contrastive(X, X.double()), r"target must be torch.float32 like prediction, got torch.float64"),
        (lambda: moco(X, X, X.long()), r"queue must be a tensor of floating-point numbers"),
        (lambda: supcon(X.long()[None], torch.zeros(1)), r"features must be a tensor of floating-point numbers"),
        (lambda: info_nce(X, X, symmetric="no"), r"symmetric must be bool, got str; pass True or False"),
    ],
)  # fmt: skip
def test_errors_teach(call, message):
    with pytest.raises(InputError, match=message):
        call()
