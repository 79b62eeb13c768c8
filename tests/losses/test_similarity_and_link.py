from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import booleans, floats, integers, sampled_from
from torch.autograd.functional import hessian, jacobian

from kontrast.errors import InputError
from kontrast.losses import (
    LINKS,
    SIMILARITIES,
    ContrastiveLoss,
    Cosine,
    Dot,
    Linear,
    LogSoftmax,
    Softmax,
    alignment_loss,
    contrastive_trace_loss,
    info_nce,
    link_from,
    similarity_from,
)
from tests.cases import DTYPES, TOLERANCE, generator, randn
from tests.reference import losses as reference

seeds = integers(0, 2**16)
quick = settings(max_examples=10, deadline=None)


def embeddings(n, P, Q, z, *, seed=0, dtype=torch.float64):
    """Anchor, positives, negatives of about unit norm."""
    shapes = [(n, z), (n, P, z), (n, Q, z)]
    return [randn(*shape, seed=seed + i, dtype=dtype) / math.sqrt(z) for i, shape in enumerate(shapes)]


def close(actual, expected, **tolerance):
    expected = torch.as_tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual, expected, **(TOLERANCE[actual.dtype] | tolerance))


# The value


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("similarity", SIMILARITIES)
@quick
@given(
    seed=seeds, n=integers(1, 5), P=integers(1, 3), Q=integers(0, 4), z=integers(1, 5), weighted=booleans(),
    delta=sampled_from([1e-3, 0.01, 1.0]), temperature=sampled_from([0.2, 1.0, 3.0]),
)  # fmt: skip
def test_equals_the_double_loop(dtype, link, similarity, seed, n, P, Q, z, weighted, delta, temperature):
    data = embeddings(n, P, Q, z, seed=seed, dtype=dtype)
    weight = None
    if weighted:  # some exactly 0, which masks
        weight = (torch.rand(n, Q, generator=generator(seed + 9), dtype=dtype) - 0.3).clamp_min(0)
    loss = ContrastiveLoss(similarity_from(similarity, delta=delta), link_from(link, temperature=temperature))
    options = {"similarity": similarity, "link": link, "delta": delta, "temperature": temperature}
    close(loss(*data, weight).total, reference.contrastive(*data, weight, **options))


@pytest.mark.parametrize("similarity", [Dot(), Cosine()])
def test_similarities_broadcast(similarity):
    a, b = randn(3, 1, 4), randn(2, 4, seed=1)
    expected = torch.stack([torch.stack([similarity(a[i, 0], b[j]) for j in range(2)]) for i in range(3)])
    close(similarity(a, b), expected)


@pytest.mark.parametrize("link", LINKS)
def test_shared_negatives_equal_their_copies(link):
    anchor, positives, negatives = embeddings(4, 2, 5, 3)
    weight = torch.rand(4, 5, generator=generator(), dtype=torch.float64)
    loss = ContrastiveLoss(Cosine(), link_from(link))
    shared = loss(anchor, positives, negatives[:1], weight)
    copied = loss(anchor, positives, negatives[:1].repeat(4, 1, 1), weight)
    close(shared.total, copied.total)


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_expectation_weights_are_the_mean_over_one_random_negative(similarity):
    n = 4
    anchor, positives, _ = embeddings(n, 1, 0, 3)
    loss = ContrastiveLoss(similarity_from(similarity), Linear())
    others = [[j for j in range(n) if j != i] for i in range(n)]
    draws = [loss(anchor, positives, anchor[list(choice)].unsqueeze(1)).total for choice in itertools.product(*others)]
    weight = (1 - torch.eye(n, dtype=torch.float64)) / (n - 1)
    close(loss(anchor, positives, anchor.unsqueeze(0), weight).total, torch.stack(draws).mean())


@pytest.mark.parametrize("link", LINKS)
def test_weight_zero_is_absence(link):
    anchor, positives, negatives = embeddings(3, 2, 4, 3)
    negatives[:, 3] *= 1e6  # would dominate
    weight = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64).repeat(3, 1)
    loss = ContrastiveLoss(Dot(), link_from(link))
    close(
        loss(anchor, positives, negatives, weight).total,
        loss(anchor, positives, negatives[:, :3]).total,
        rtol=0,
        atol=0,
    )
    negatives.requires_grad_()
    loss(anchor, positives, negatives, weight).total.backward()
    assert (negatives.grad[:, 3] == 0).all()
    assert (negatives.grad[:, :3] != 0).all()


@pytest.mark.parametrize(("link", "constant"), [(Linear(), None), (Softmax(), -2.0), (LogSoftmax(), 0.0)])
def test_without_negatives(link, constant):
    anchor, positives, negatives = (x.requires_grad_() for x in embeddings(3, 2, 0, 4))
    value = ContrastiveLoss(Dot(), link)(anchor, positives, negatives)
    value.total.backward()
    if constant is None:
        close(value.total, alignment_loss(anchor, positives).total / 3)
        close(anchor.grad, -positives.detach().sum(1) / 3)
    else:
        close(value.total, constant)
        close(anchor.grad, torch.zeros(3, 4))


# The links


@pytest.mark.parametrize("link", [Softmax(0.7), LogSoftmax(0.7)])
@quick
@given(seed=seeds, shift=floats(-50, 50))
def test_softmax_family_ignores_a_common_shift(link, seed, shift):
    s_pos, s_neg = randn(4, 2, seed=seed), randn(4, 3, seed=seed + 1)
    close(link(s_pos + shift, s_neg + shift), link(s_pos, s_neg), rtol=1e-9)
    assert not torch.allclose(link(s_pos + 1, s_neg), link(s_pos, s_neg))


@quick
@given(seed=seeds, factor=floats(0.1, 10))
def test_temperature_is_a_scale_of_the_similarities_and_weights_are_log_shifts(seed, factor):
    s_pos, s_neg = randn(4, 2, seed=seed), randn(4, 3, seed=seed + 1)
    for link in (Softmax, LogSoftmax):
        close(link(factor)(s_pos, s_neg), link(1.0)(s_pos / factor, s_neg / factor))
        weight = torch.full_like(s_neg, factor)
        close(link(1.0)(s_pos, s_neg, weight), link(1.0)(s_pos, s_neg + math.log(factor)), rtol=1e-10)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("link", [Softmax(), LogSoftmax()])
@pytest.mark.parametrize("s", [-1e4, -100.0, 0.0, 30.0, 1e4])
def test_softmax_family_is_stable(link, s, dtype):
    x = torch.tensor([[s, 0.0, s / 2]], dtype=dtype)  # positive, negative, masked negative
    weight = torch.tensor([[1.0, 0.0]], dtype=dtype)

    def total(x):
        return link(x[:, :1], x[:, 1:], weight).sum()

    e = math.exp(-abs(s))
    ratio = 1 / (1 + e) if s > 0 else e / (1 + e)
    rest = e / (1 + e) if s > 0 else 1 / (1 + e)
    if isinstance(link, Softmax):
        value, slope = -ratio, ratio * rest
    else:
        value, slope = max(-s, 0.0) + math.log1p(e), rest
    close(total(x), value)
    close(jacobian(total, x), [[-slope, slope, 0.0]], rtol=1e-5 if dtype == torch.float32 else 1e-11)
    assert hessian(total, x).isfinite().all()


@pytest.mark.parametrize("link", [Softmax(), LogSoftmax()])
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_negatives_masked_is_no_negatives(link, dtype):
    x = randn(2, 4, dtype=dtype)
    weight = torch.zeros(2, 3, dtype=dtype)

    def total(x):
        return link(x[:, :1], x[:, 1:], weight).sum()

    close(total(x), link(x[:, :1], x[:, :0]).sum())
    close(jacobian(total, x), torch.zeros(2, 4))
    close(hessian(total, x), torch.zeros(2, 4, 2, 4))
    close(hessian(lambda x: link(x, x[:, :0]).sum(), x), torch.zeros(2, 4, 2, 4))


@pytest.mark.parametrize("x", [15.0, 19.0, 21.0, 25.0, 33.0, 39.0, 41.0])
def test_log_softmax_keeps_its_digits_for_hard_negatives(x):
    zero = torch.zeros(1, 1, dtype=torch.float64)
    expected = x + math.log1p(math.exp(-x))
    close(LogSoftmax()(zero, zero + x), [expected], rtol=4e-16, atol=0)


# The similarities


@quick
@given(seed=seeds, factor=floats(1e-3, 1e3), delta=sampled_from([1e-3, 0.01, 1.0]))
def test_cosine_under_a_change_of_scale(seed, factor, delta):
    a, b = randn(5, 3, seed=seed), randn(5, 3, seed=seed + 1)
    s, norm = Cosine(delta), a.norm(dim=-1)
    close(s(factor * a, b), s(a, b) * factor * (norm + delta) / (factor * norm + delta))


def test_cosine_of_long_vectors_is_the_cosine_and_below_one_else():
    a, b = randn(50, 3), randn(50, 3, seed=1)
    close(Cosine(1e-3)(1e12 * a, 1e12 * b), torch.cosine_similarity(a, b), rtol=1e-10)
    assert (Cosine(0.5)(a, a) < 1).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("delta", [1e-6, 0.01, 1.0])
def test_cosine_at_a_zero_embedding(dtype, delta):
    g = randn(3, 4, dtype=dtype)
    s = Cosine(delta)
    zero = torch.zeros(3, 4, dtype=dtype, requires_grad=True)
    value = s(zero, g)
    close(value, torch.zeros(3), atol=0)
    value.sum().backward()
    close(zero.grad, g / (delta * (g.norm(dim=-1, keepdim=True) + delta)))
    assert hessian(lambda f: s(f, g).sum(), zero.detach()).isfinite().all()
    assert hessian(lambda f: s(f, f).sum(), zero.detach()).isfinite().all()


@pytest.mark.parametrize("size", [1e-30, 1e-18, 1e-10, 1e-6, 1e-2])
def test_cosine_gradient_is_right_for_short_embeddings(size):
    delta, u, g = 0.01, torch.nn.functional.normalize(randn(1, 4)), randn(1, 4, seed=1)
    f = (size * u).requires_grad_()
    Cosine(delta)(f, g).sum().backward()
    # ∇ f·ĝ/(‖f‖+δ) = ĝ/(‖f‖+δ) − u (f·ĝ)/(‖f‖+δ)²
    g_hat, length = g / (g.norm() + delta), size + delta
    close(f.grad, g_hat / length - u * (size * u * g_hat).sum() / length**2)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_gradients_against_differences(similarity, link):
    data = [x.requires_grad_() for x in embeddings(2, 2, 2, 2, seed=5)]
    weight = torch.tensor([[0.5, 0.0], [1.0, 2.0]], dtype=torch.float64)
    loss = ContrastiveLoss(similarity_from(similarity, delta=0.1), link_from(link, temperature=0.5))

    def total(*data):
        return loss(*data, weight).total

    assert torch.autograd.gradcheck(total, data)
    assert torch.autograd.gradgradcheck(total, data)


def test_runs_under_vmap_and_grad_transforms():
    data = [torch.stack([x, 2 * x, -x + 1]) for x in embeddings(4, 1, 2, 3)]
    loss = ContrastiveLoss(Cosine(), LogSoftmax())
    together = torch.func.vmap(torch.func.grad(lambda a, p, q: loss(a, p, q).total))(*data)
    for i in range(3):
        a, p, q = (x[i].clone().requires_grad_() for x in data)
        loss(a, p, q).total.backward()
        close(together[i], a.grad)


# Relations between losses


@quick
@given(seed=seeds, n=integers(2, 6), temperature=floats(0.1, 2))
def test_log_softmax_of_cosines_over_the_batch_is_info_nce(seed, n, temperature):
    a, b = randn(n, 3, seed=seed), randn(n, 3, seed=seed + 1)
    similarity = Cosine(0.05)
    general = ContrastiveLoss(similarity, LogSoftmax(temperature))(
        a, b.unsqueeze(1), b.unsqueeze(0), 1 - torch.eye(n, dtype=a.dtype)
    )
    named = info_nce(similarity.embed(a), similarity.embed(b), temperature=temperature, normalize=False)
    close(general.total, named.total)
    close(general.terms["alignment"], named.terms["alignment"])
    close(general.terms["uniformity"], named.terms["uniformity"])


def test_trace_loss_is_the_trace_of_paper_b():
    x, x_pos, x_neg = randn(6, 4), randn(6, 2, 4, seed=1), randn(6, 3, 4, seed=2)
    theta = randn(3, 4, seed=3)
    C = sum(torch.outer(x[i], x_neg[i].sum(0) - x_pos[i].sum(0)) for i in range(6))
    u, u_pos, u_neg = x @ theta.T, x_pos @ theta.T, x_neg @ theta.T
    value = contrastive_trace_loss(u, u_pos, u_neg)
    close(value.total, torch.trace(theta @ C @ theta.T))
    close(value.total, 6 * ContrastiveLoss(Dot(), Linear())(u, u_pos, u_neg).total)
    close(value.terms["positive"], alignment_loss(u, u_pos).total)


def test_alignment_loss_has_the_corrected_sign():
    x, theta = randn(6, 4), randn(3, 4, seed=1)
    C = -sum(torch.outer(row, row) for row in x)
    value = alignment_loss(x @ theta.T, (x @ theta.T).unsqueeze(1))
    close(value.total, torch.trace(theta @ C @ theta.T))
    assert value.total < 0  # perfectly aligned positives lower the loss


@pytest.mark.parametrize("link", LINKS)
def test_more_alignment_lowers_and_more_negative_similarity_raises(link):
    s_pos, s_neg = randn(4, 2).requires_grad_(), randn(4, 3, seed=1).requires_grad_()
    link_from(link)(s_pos, s_neg).sum().backward()
    assert (s_pos.grad < 0).all()
    assert (s_neg.grad > 0).all()


# Words and errors


def test_constructors_by_word():
    assert similarity_from("dot", delta=0.5) == Dot()
    assert similarity_from("cosine") == Cosine()
    assert similarity_from("cosine", delta=0.5) == Cosine(0.5)
    assert link_from("linear", temperature=0.3) == Linear()
    assert link_from("softmax", temperature=0.3) == Softmax(0.3)
    assert link_from("log_softmax", temperature=0.3) == LogSoftmax(0.3)


def test_every_similarity_has_words_and_a_rate():
    assert {name: entry.words for name, entry in SIMILARITIES.items()} == {
        "cosine": "cosine similarity",
        "dot": "dot-product similarity",
    }
    assert {name: entry.learning_rate(100.0) for name, entry in SIMILARITIES.items()} == {"cosine": 0.1, "dot": 0.0025}
    assert SIMILARITIES["dot"].learning_rate(3.0) == 0.0833  # three digits, as it is printed


A, B, C = torch.zeros(3, 2), torch.zeros(3, 1, 2), torch.zeros(3, 4, 2)
loss = ContrastiveLoss(Dot(), Linear())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: similarity_from("euclid"), r"similarity must be one of cosine, dot, got 'euclid'"),
        (lambda: similarity_from("dot", delto=1.0), r"an option of a similarity must be one of delta, got 'delto'"),
        (lambda: similarity_from("cosine", delta=0.0), r"delta must be a positive number, got 0.0"),
        (lambda: link_from("log"), r"link must be one of linear, softmax, log_softmax, got 'log'"),
        (lambda: Cosine(0.0), r"delta must be a positive number, got 0.0"),
        (lambda: Cosine(-1.0), r"delta must be a positive number, got -1.0"),
        (lambda: Softmax(0.0), r"temperature must be a positive number, got 0.0"),
        (lambda: LogSoftmax(math.nan), r"temperature must be a positive number, got nan"),
        (lambda: loss(A[0], B, C), r"anchor must have shape \(n, z\), got \(2,\)"),
        (lambda: loss(A.long(), B, C), r"anchor must be .*floating-point.* got torch.int64 \(3, 2\); use anchor.float"),
        (lambda: loss(A[:0], B[:0], C[:0]), r"anchor must have shape \(n, z\) with no size of 0, got \(0, 2\)"),
        (lambda: loss(A, A, C), r"positives must have shape \(3, P, 2\), got \(3, 2\); use positives.unsqueeze\(1\)"),
        (lambda: loss(A, B[:1], C), r"positives must have shape \(3, P, 2\), got \(1, 1, 2\)"),
        (lambda: loss(A, B[:, :0], C), r"positives must have shape \(3, P, 2\) with no size of 0, got \(3, 0, 2\)"),
        (lambda: loss(A, B.long(), C), r"positives must be a tensor of floating-point numbers.* use positives.float"),
        (lambda: loss(A, B, C.long()), r"negatives must be a tensor of floating-point numbers.* use negatives.float"),
        (lambda: loss(A, B, C[:2]), r"negatives must have shape \(3, Q, 2\), or \(1, Q, 2\) .*, got \(2, 4, 2\)"),
        (lambda: loss(A, B, C[..., :1]), r"negatives must have shape"),
        (lambda: loss(A, B, C, torch.ones(3)), r"negative_weight must have shape \(3, 4\), got \(3,\); pass"),
        (lambda: contrastive_trace_loss(A, B, A), r"negatives must have shape .*use negatives.unsqueeze\(1\)"),
        (lambda: alignment_loss(A, A), r"positives must have shape"),
    ],
)  # fmt: skip
def test_errors_teach(call, message):
    with pytest.raises(InputError, match=message):
        call()
