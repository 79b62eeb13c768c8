"""Losses of two views by name: the named functions in one form, one run at a time and in a stack."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import integers, sampled_from
from torch.func import grad, jvp, vmap

from kontrast import losses
from kontrast.errors import InputError
from kontrast.losses import LINKS, VIEW_LOSSES, ContrastiveLoss, link_from, similarity_from, view_loss_from
from tests.cases import DTYPES, TOLERANCE, generator, randn

N, Z, RUNS = 6, 4, 3
LABELS = torch.tensor([0, 1, 0, 2, 1, 1])
KINDS = [(name, "linear") for name in VIEW_LOSSES] + [
    (name, link) for name in ("cosine", "dot") for link in LINKS if link != "linear"
]


def general(similarity, link, a, b):
    """Paper A's loss with every negative written out: (n, n − 1, z) rows, and 1/(n − 1) each with the linear link."""
    n = len(a)
    negatives = torch.stack([torch.cat([b[:i], b[i + 1 :]]) for i in range(n)])
    weight = torch.full((n, n - 1), 1 / (n - 1), dtype=a.dtype) if link == "linear" else None
    return ContrastiveLoss(similarity_from(similarity), link_from(link))(a, b.unsqueeze(1), negatives, weight)


def directly(name, link, a, b):
    """The same loss by the function of its own."""
    if name in ("cosine", "dot"):
        return general(name, link, a, b).total
    if name == "supcon":
        return losses.supcon(torch.stack([a, b], 1), LABELS).total
    if name == "triplet":
        return losses.triplet(a, b, torch.cat([b[1:], b[:1]])).total
    return getattr(losses, {"spectral": "spectral_contrastive"}.get(name, name))(a, b).total


def of_rows(name, link):
    """The loss as a function of both views below each other, (2N, z)."""
    loss = view_loss_from(name, link=link)
    return lambda f: loss(f[:N], f[N:], LABELS)


def close(actual, expected, **tolerance):
    torch.testing.assert_close(actual, expected, **(TOLERANCE[actual.dtype] | tolerance))


def test_the_names():
    assert VIEW_LOSSES == (
        "nt_xent", "info_nce", "supcon", "vicreg", "barlow_twins", "spectral", "triplet", "cosine", "dot"
    )  # fmt: skip
    assert [view_loss_from(name).name for name in VIEW_LOSSES] == list(VIEW_LOSSES)
    assert len({view_loss_from(name, link=link).words for name, link in KINDS}) == len(KINDS)
    assert view_loss_from("nt_xent").words == "NT-Xent"
    assert view_loss_from("dot").words == "dot product, linear link"
    assert view_loss_from("cosine", link="log_softmax").words == "cosine similarity, log-softmax link"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name, link", KINDS)
@settings(max_examples=3)
@given(seed=integers(0, 2**16))
def test_each_is_its_named_function(name, link, dtype, seed):
    f = randn(2 * N, Z, seed=seed, dtype=dtype)
    value = of_rows(name, link)(f)
    assert value.shape == ()
    assert value.dtype == dtype
    close(value, directly(name, link, f[:N], f[N:]))
    expected = grad(lambda f: directly(name, link, f[:N], f[N:]))(f)
    assert expected.norm() > 0
    close(grad(of_rows(name, link))(f), expected, atol=TOLERANCE[dtype]["atol"] * 10)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name, link", KINDS)
def test_a_stack_of_runs_is_the_loop_over_them(name, link, dtype):
    loss = of_rows(name, link)
    stack, tangents = randn(RUNS, 2 * N, Z, dtype=dtype), randn(RUNS, 2 * N, Z, seed=1, dtype=dtype)

    def hessian_product(f, tangent):
        return jvp(grad(loss), (f,), (tangent,))[1]

    close(vmap(loss)(stack), torch.stack([loss(f) for f in stack]))
    size = {"atol": TOLERANCE[dtype]["atol"] * 100}  # curvatures of VICReg are above 10
    close(vmap(grad(loss))(stack), torch.stack([grad(loss)(f) for f in stack]), **size)
    products = vmap(hessian_product)(stack, tangents)
    close(products, torch.stack([hessian_product(f, t) for f, t in zip(stack, tangents, strict=True)]), **size)
    # The runs may lie along any dimension: nothing is viewed that a stack makes strided.
    close(vmap(grad(loss), in_dims=2)(stack.permute(1, 2, 0)), vmap(grad(loss))(stack), **size)


@pytest.mark.parametrize("name, link", KINDS)
def test_hessian_products_are_differences_of_gradients(name, link):
    loss, f, tangent = of_rows(name, link), randn(2 * N, Z, seed=2), randn(2 * N, Z, seed=3)
    step = 1e-5
    difference = (grad(loss)(f + step * tangent) - grad(loss)(f - step * tangent)) / (2 * step)
    product = jvp(grad(loss), (f,), (tangent,))[1]
    torch.testing.assert_close(product, difference, rtol=1e-6, atol=1e-6 * float(difference.abs().max() + 1))


def test_labels_of_a_stack_may_differ():
    loss = view_loss_from("supcon")
    a, b = randn(RUNS, N, Z), randn(RUNS, N, Z, seed=1)
    labels = torch.stack([LABELS, LABELS.flip(0), torch.arange(N)])
    close(vmap(loss)(a, b, labels), torch.stack([loss(*one) for one in zip(a, b, labels, strict=True)]))


@pytest.mark.parametrize("name, link", KINDS)
@settings(max_examples=5)
@given(seed=integers(0, 2**16))
def test_scale_free_says_whether_lengths_matter(name, link, seed):
    # The cosine divides by ‖f‖ + δ: at lengths of 10⁶ to 10⁸ its δ of 0.01 moves it by less than 10⁻⁷.
    size = 1e7 if name == "cosine" else 1.0
    f = randn(2 * N, Z, seed=seed)
    f = size * f / f.norm(dim=1, keepdim=True)
    lengths = 10 ** (2 * torch.rand(2 * N, 1, generator=generator(seed), dtype=f.dtype) - 1)
    loss = of_rows(name, link)
    moved = float((loss(lengths * f) - loss(f)).abs() / (1 + loss(f).abs()))
    if view_loss_from(name, link=link).scale_free:
        assert moved < 1e-7
    else:
        assert moved > 1e-4


@pytest.mark.parametrize("name, link", KINDS)
@settings(max_examples=10)
@given(seed=integers(0, 2**16), size=sampled_from([1e-3, 1.0, 1e3]))
def test_a_bounded_loss_stays_above_its_bound(name, link, seed, size):
    loss, f = view_loss_from(name, link=link), size * randn(2 * N, Z, seed=seed)
    # A cosine less another is at least −2, a softmax ratio at most 1; all other bounded losses are never negative.
    bound = {"cosine": -2.0, "dot": -1.0}.get(name, 0.0)
    # Samples whose views are alike but opposite to the others' are the best case of a repulsive loss.
    best = size * torch.tensor([1.0, -1.0] * N, dtype=f.dtype).unsqueeze(1) * f[:1]
    # One long embedding beside zeros is where the spectral loss has no bound.
    lonely = f.new_zeros(2 * N, Z).index_fill(0, torch.tensor([0, N]), 1e3)
    lowest = min(float(loss(g[:N], g[N:], LABELS)) for g in (f, best, lonely))
    assert (lowest >= bound) if loss.bounded else (lowest < -100)


def test_temperatures():
    f = randn(2 * N, Z)
    for name, own in (("nt_xent", 0.5), ("info_nce", 0.1), ("supcon", 0.1)):
        default, same, other = (view_loss_from(name, temperature=t)(f[:N], f[N:], LABELS) for t in (None, own, 0.3))
        assert torch.equal(default, same)
        assert not torch.equal(default, other)
    for link in ("softmax", "log_softmax"):
        default, same, other = (view_loss_from("dot", link=link, temperature=t)(f[:N], f[N:]) for t in (None, 1.0, 0.3))
        assert torch.equal(default, same)
        assert not torch.equal(default, other)
    assert not torch.equal(view_loss_from("cosine")(f[:N], f[N:]), view_loss_from("cosine", delta=1.0)(f[:N], f[N:]))


@pytest.mark.parametrize("name", VIEW_LOSSES)
def test_options_of_other_losses_are_passed_over(name):
    taken = {"nt_xent", "info_nce", "supcon"}
    f = randn(2 * N, Z)
    default, given_one = (view_loss_from(name, temperature=t)(f[:N], f[N:], LABELS) for t in (None, 0.3))
    assert torch.equal(default, given_one) == (name not in taken)


@pytest.mark.parametrize("name, link", KINDS)
def test_a_loss_can_be_sent_to_another_process_and_waits_for_no_data(name, link):
    loss, f = view_loss_from(name, link=link), randn(2 * N, Z)
    assert torch.equal(pickle.loads(pickle.dumps(loss))(f[:N], f[N:], LABELS), loss(f[:N], f[N:], LABELS))
    # Meta tensors have shapes but no values: reading one raises.
    assert loss(f[:N].to("meta"), f[N:].to("meta"), LABELS.to("meta")).shape == ()


REFUSALS = [
    (
        lambda: view_loss_from("nt_xnet"),
        "no loss of two views is called 'nt_xnet'; did you mean 'nt_xent'\\? names: nt",
    ),
    (lambda: view_loss_from("Barlow-Twins"), "did you mean 'barlow_twins'"),
    (lambda: view_loss_from("zzz"), "called 'zzz'; names: nt_xent, info_nce"),
    (lambda: view_loss_from(None), "called None; names"),
    (lambda: view_loss_from("dot", link="cubic"), "link must be one of linear, softmax, log_softmax, got 'cubic'"),
    (lambda: view_loss_from("vicreg", temperature=0), "temperature must be a positive number, got 0"),
    (lambda: view_loss_from("dot", delta=-1), "delta must be a positive number, got -1"),
    (lambda: view_loss_from("supcon")(randn(3, 2), randn(3, 2)), "the loss 'supcon' needs the label of each sample"),
    (lambda: view_loss_from("supcon")(randn(3, 2), randn(3, 2), LABELS), "labels must have shape"),
    (lambda: view_loss_from("dot")(randn(1, 2), randn(1, 2)), "at least 2 samples, got 1"),
    (lambda: view_loss_from("cosine")(randn(3, 2), randn(2, 2)), "view_b must have the shape of view_a"),
]


@pytest.mark.parametrize("call, words", REFUSALS)
def test_refusals(call, words):
    with pytest.raises(InputError, match=words):
        call()
