"""Laws that every loss of the package obeys."""

from __future__ import annotations

import dataclasses
import inspect
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import integers

from kontrast import losses
from kontrast.errors import InputError
from kontrast.losses import ContrastiveLoss, LossValue, link_from, similarity_from
from tests.cases import DTYPES, TOLERANCE, generator, randn

quick = settings(max_examples=4, deadline=None)

CONTRASTIVE = {
    f"{similarity}-{link}": ContrastiveLoss(similarity_from(similarity), link_from(link, temperature=0.5))
    for similarity in losses.SIMILARITIES
    for link in losses.LINKS
}
# Each loss with options that are not its defaults.
OPTIONS = {
    "info_nce": {"temperature": 0.3, "symmetric": True, "normalize": False},
    "nt_xent": {"temperature": 0.3, "negatives": "intra", "symmetric": False},
    "moco": {"temperature": 0.3},
    "triplet": {"margin": 0.9, "distance": "squared"},
    "spectral_contrastive": {},
    "supcon": {"temperature": 0.3},
    "vicreg": {"invariance": 2.0, "variance": 3.0, "covariance": 4.0, "gamma": 2.0, "epsilon": 0.1},
    "barlow_twins": {"redundancy": 0.3, "epsilon": 0.1},
    "non_contrastive": {},
}
FUNCTIONS = {name: getattr(losses, name) for name in [*OPTIONS, "contrastive_trace_loss", "alignment_loss"]}
WITH_OPTIONS = {f"{name}-options": partial(FUNCTIONS[name], **options) for name, options in OPTIONS.items() if options}
EVERY = CONTRASTIVE | FUNCTIONS | WITH_OPTIONS


def arguments(name, *, n=5, seed=0, dtype=torch.float64):
    """Arguments for the loss called `name`; a leading dimension of n is the batch."""

    def rows(i, *shape):
        return 0.5 * randn(n, *shape, 3, seed=seed + i, dtype=dtype)

    if name in CONTRASTIVE:
        return rows(0), rows(1, 2), rows(2, 4), torch.rand(n, 4, generator=generator(seed), dtype=dtype)
    name = name.removesuffix("-options")
    if name == "contrastive_trace_loss":
        return rows(0), rows(1, 2), rows(2, 4)
    if name == "alignment_loss":
        return rows(0), rows(1, 2)
    if name == "supcon":
        return rows(0, 2), torch.arange(n) % 3
    if name in ("triplet", "moco"):
        return rows(0), rows(1), rows(2)
    return rows(0), rows(1)


def close(actual, expected, **tolerance):
    torch.testing.assert_close(actual, expected, **(TOLERANCE[actual.dtype] | tolerance))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", EVERY)
@quick
@given(seed=integers(0, 2**16), n=integers(2, 6))
def test_terms_sum_to_the_total(name, dtype, seed, n):
    value = EVERY[name](*arguments(name, n=n, seed=seed, dtype=dtype))
    assert isinstance(value, LossValue)
    assert value.total.shape == ()
    assert value.total.dtype == dtype
    assert all(term.shape == () for term in value.terms.values())
    # uniformity is near −alignment, so the sum is compared on the scale of the terms
    scale = max(abs(term.item()) for term in value.terms.values()) + 1
    close(sum(value.terms.values()), value.total, atol=scale * TOLERANCE[dtype]["atol"])


def test_the_names_of_the_terms():
    names = {name: set(EVERY[name](*arguments(name)).terms) for name in [*CONTRASTIVE, *FUNCTIONS]}
    nce, pairs = {"alignment", "uniformity"}, {"positive", "negative"}
    assert names == {
        "dot-linear": pairs,
        "cosine-linear": pairs,
        "dot-softmax": {"ratio"},
        "cosine-softmax": {"ratio"},
        "dot-log_softmax": nce,
        "cosine-log_softmax": nce,
        "info_nce": nce,
        "nt_xent": nce,
        "moco": nce,
        "supcon": nce,
        "triplet": {"hinge"},
        "spectral_contrastive": {"attraction", "repulsion"},
        "vicreg": {"invariance", "variance", "covariance"},
        "barlow_twins": {"diagonal", "off_diagonal"},
        "non_contrastive": {"alignment"},
        "contrastive_trace_loss": pairs,
        "alignment_loss": {"positive"},
    }


def test_alignment_and_positive_terms_hold_the_positive_similarities_alone():
    a, b = randn(5, 3), randn(5, 3, seed=1)
    cosine = torch.cosine_similarity(a, b).mean()
    close(losses.nt_xent(a, b, temperature=0.5).terms["alignment"], -cosine / 0.5)
    close(losses.moco(a, b, a, temperature=0.5).terms["alignment"], -cosine / 0.5)
    close(losses.supcon(torch.stack([a, b], 1), torch.arange(5), temperature=0.5).terms["alignment"], -cosine / 0.5)
    close(losses.spectral_contrastive(a, b).terms["attraction"], -2 * (a * b).sum(-1).mean())
    data = arguments("dot-linear")
    expected = -(data[0].unsqueeze(1) * data[1]).sum(-1).sum(-1).mean()
    close(CONTRASTIVE["dot-linear"](*data).terms["positive"], expected)
    close(CONTRASTIVE["dot-log_softmax"](*data).terms["alignment"], expected / 0.5)
    quarter = losses.vicreg(a, b, invariance=0.25).terms
    close(quarter["invariance"], (a - b).square().mean() / 4)
    close(losses.vicreg(a, a).terms["invariance"], torch.zeros((), dtype=a.dtype))


@pytest.mark.parametrize("name", EVERY)
@quick
@given(seed=integers(0, 2**16))
def test_the_order_of_the_batch_does_not_matter(name, seed):
    data = arguments(name, n=6, seed=seed)
    order = torch.randperm(6, generator=generator(seed))
    close(EVERY[name](*(x[order] for x in data)).total, EVERY[name](*data).total)


@pytest.mark.parametrize("name", EVERY)
def test_inputs_are_left_alone(name):
    data = arguments(name)
    copies = [x.clone() for x in data]
    versions = [x._version for x in data]
    EVERY[name](*data)
    assert [x._version for x in data] == versions
    assert all(torch.equal(x, copy) for x, copy in zip(data, copies, strict=True))


@pytest.mark.parametrize("name", EVERY)
def test_no_step_waits_for_the_data(name):
    # Meta tensors have shapes but no values: reading one value (a branch on the data, `.item()`) raises.
    value = EVERY[name](*(x.to("meta") for x in arguments(name)))
    assert value.total.shape == ()


@pytest.mark.parametrize("name", EVERY)
def test_differentiable_in_the_first_argument(name):
    x, *rest = arguments(name)
    x.requires_grad_()

    def total(x):
        return EVERY[name](x, *rest).total

    assert torch.autograd.gradcheck(total, x)
    assert torch.autograd.grad(total(x), x)[0].norm() > 0


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_has_an_effect_and_one_rule(name):
    options, data = OPTIONS[name], arguments(name)
    parameters = inspect.signature(FUNCTIONS[name]).parameters.values()
    assert options.keys() == {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    total = FUNCTIONS[name](*data, **options).total
    for option in options:
        others = {other: value for other, value in options.items() if other != option}
        assert not torch.equal(FUNCTIONS[name](*data, **others).total, total), option
        with pytest.raises(InputError, match=f"{option} must be"):
            FUNCTIONS[name](*data, **{option: None})


def test_a_loss_value_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        losses.alignment_loss(*arguments("alignment_loss")).total = torch.zeros(())


def test_every_public_name_is_there_and_documented():
    assert sorted(losses.__all__) == sorted(set(losses.__all__))
    for name in losses.__all__:
        assert inspect.getdoc(getattr(losses, name)), name
        assert name not in OPTIONS or ").backward()" in inspect.getdoc(getattr(losses, name))
