"""Contrastive problems of images, and of every kind of loss."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis.strategies import integers, sampled_from
from torch import Tensor, nn
from torch.nn import functional as F

from kontrast import losses
from kontrast.data import GaussianNoise, Pairs, make_pairs
from kontrast.dynamics import contrastive_problem, fixed_kernel_descent, gradient_descent
from kontrast.errors import InputError
from kontrast.kernels import empirical_ntk, infinite_ntk
from kontrast.learnability import linearized_flow
from kontrast.losses import ContrastiveLoss, Cosine, Dot, Linear, LossModule, contrastive_trace_loss, nt_xent
from kontrast.nets import MLP, Linearized, parameters_of, pure_function
from tests.cases import generator, randn

LOSS = ContrastiveLoss(Cosine(), Linear())


def pairs_of(n: int = 6, *, shape: tuple[int, ...] = (1, 4, 4), seed: int = 0, **options: object) -> Pairs:
    x = randn(n, *shape, seed=seed)
    return make_pairs(x, views=GaussianNoise(0.1), generator=generator(seed), **options)


def two_views(**options: object) -> Pairs:
    return pairs_of(negatives=0, **options)


def convnet() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)).double()


# --- images ---------------------------------------------------------------------------------------------------------


def test_a_convnet_trains_on_pairs_of_images_whole_and_in_mini_batches() -> None:
    net, pairs = convnet(), pairs_of(negatives=2)
    problem = contrastive_problem(pairs, LOSS)
    assert problem.inputs is pairs.x
    assert problem.subset(torch.tensor([1, 4])).inputs.shape[1:] == (1, 4, 4)
    for options in ({}, {"batch_size": 2, "generator": generator()}):
        run = gradient_descent(
            pure_function(net), parameters_of(net), problem, learning_rate=0.1, n_steps=40, **options
        )
        assert problem.objective(run.final_outputs) < problem.objective(net(pairs.x).detach()) - 0.1


def test_kernel_descent_of_a_convnet_is_that_of_its_linearization() -> None:
    net, problem = convnet(), contrastive_problem(pairs_of(), LOSS)
    options = {"learning_rate": 0.05, "n_steps": 10}
    linear = gradient_descent(Linearized.of(net), parameters_of(net), problem, **options)
    K = empirical_ntk(net, problem.inputs)
    kernel = fixed_kernel_descent(K, net(problem.inputs).detach(), problem.objective, **options)
    torch.testing.assert_close(linear.final_outputs, kernel.final_outputs)
    flow = linearized_flow(net, problem, times=[0.0, 0.5], new_inputs=randn(2, 1, 4, 4, seed=5))
    assert flow.new_outputs.shape == (2, 2, 3)


@pytest.mark.parametrize("negatives", [2, "all"])
def test_an_mlp_gives_the_same_numbers_on_images_as_on_their_rows(negatives: object) -> None:
    net = MLP(16, 8, 3, dtype=torch.float64)
    images = pairs_of(negatives=negatives)
    rows = replace(images, x=images.rows)
    runs = []
    for pairs in (images, rows):
        problem = contrastive_problem(pairs, LOSS)
        descent = {"learning_rate": 0.1, "n_steps": 5, "record_at": (0, 5), "keep_outputs": True}
        trained = gradient_descent(pure_function(net), parameters_of(net), problem, **descent)
        start = net(problem.inputs).detach()
        limits = [
            fixed_kernel_descent(K, start, problem.objective, **descent).final_outputs
            for K in (empirical_ntk(net, problem.inputs), infinite_ntk(problem.inputs))
        ]
        flow = linearized_flow(net, problem, times=[0.0, 1.0]).outputs
        runs.append([trained.outputs, trained.losses, *limits, flow])
    for of_images, of_rows in zip(*runs, strict=True):
        torch.testing.assert_close(of_images, of_rows, rtol=1e-13, atol=1e-13)


def test_a_net_of_rows_is_told_to_flatten_images() -> None:
    net, problem = nn.Linear(16, 3).double(), contrastive_problem(pairs_of(), LOSS)
    with pytest.raises(InputError, match=r"layer does not take samples of shape \(1, 4, 4\).*nn.Flatten\(\) in fr"):
        gradient_descent(pure_function(net), parameters_of(net), problem, learning_rate=0.1, n_steps=1)
    flat = nn.Sequential(nn.Flatten(), net)
    gradient_descent(pure_function(flat), parameters_of(flat), problem, learning_rate=0.1, n_steps=1)


# --- losses of two views --------------------------------------------------------------------------------------------


class OfTwoViews(nn.Module):
    """As other libraries write it."""

    def forward(self, out0: Tensor, out1: Tensor) -> Tensor:
        return (out0 - out1).square().mean()


class OfTwoAndMore(OfTwoViews):
    def forward(self, out0: Tensor, out1: Tensor, weight: float = 1.0) -> Tensor:
        return weight * super().forward(out0, out1)


VIEWS = {
    name: getattr(losses, name)
    for name in ("nt_xent", "info_nce", "spectral_contrastive", "vicreg", "barlow_twins", "non_contrastive")
} | {
    "partial": partial(nt_xent, temperature=0.2),
    "module": LossModule(nt_xent, temperature=0.2),
    "view loss": losses.view_loss_from("cosine"),
    "view loss, triplet": losses.view_loss_from("triplet"),
    "module of a view loss": LossModule(losses.view_loss_from("nt_xent")),
    "lambda": lambda a, b: (a - b).square().mean(),
    "of another library": OfTwoViews(),
    "with an option": OfTwoAndMore(),
    "of torch": F.mse_loss,
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_loss_of_two_views_sees_anchors_and_their_positives(name: str) -> None:
    loss, pairs, outputs = VIEWS[name], two_views(), randn(12, 3)
    expected = loss(outputs[:6], outputs[6:])
    expected = getattr(expected, "total", expected)
    problem = contrastive_problem(pairs, loss)
    assert torch.equal(problem.objective(outputs), expected)
    batch = torch.tensor([4, 1, 3])
    of_batch = loss(outputs[:6][batch], outputs[6:][batch])
    part = problem.subset(batch)
    used = torch.cat([batch, batch + 6]).sort().values
    torch.testing.assert_close(part.objective(outputs[used]), getattr(of_batch, "total", of_batch))


@given(seed=integers(0, 2**16), name=sampled_from(["nt_xent", "module", "of another library"]))
def test_networks_train_on_two_views(seed: int, name: str) -> None:
    net, problem = MLP(16, 32, 3, generator=generator(seed), dtype=torch.float64), None
    problem = contrastive_problem(two_views(seed=seed), VIEWS[name])
    run = gradient_descent(pure_function(net), parameters_of(net), problem, learning_rate=0.01, n_steps=20)
    assert run.losses[-1] < run.losses[0]


# --- losses of anchors, positives and negatives ---------------------------------------------------------------------


def test_losses_that_return_tensors_or_take_any_arguments() -> None:
    pairs, outputs = pairs_of(negatives=3), randn(12, 3)
    expected = ContrastiveLoss(Dot(), Linear())(*pairs.split(outputs)).total
    for loss in (
        lambda a, p, n: ContrastiveLoss(Dot(), Linear())(a, p, n).total,
        lambda *parts: ContrastiveLoss(Dot(), Linear())(*parts).total,
        lambda anchors, positives, negatives=None: ContrastiveLoss(Dot(), Linear())(anchors, positives, negatives),
        LossModule(ContrastiveLoss(Dot(), Linear())),
        LossModule(contrastive_trace_loss),
    ):
        found = contrastive_problem(pairs, loss).objective(outputs)
        scale = 6 if isinstance(loss, LossModule) and loss.loss is contrastive_trace_loss else 1
        torch.testing.assert_close(found, scale * expected)


def test_the_non_contrastive_loss_of_paper_b_takes_anchors_and_positives() -> None:
    pairs, outputs = two_views(), randn(12, 3)
    found = contrastive_problem(pairs, losses.alignment_loss).objective(outputs)
    assert torch.equal(found, losses.alignment_loss(*pairs.split(outputs)[:2]).total)


class OfLabels(nn.Module):
    """As pytorch-metric-learning writes it."""

    def forward(self, embeddings: Tensor, labels: Tensor | None = None, indices: object = None) -> Tensor:
        raise AssertionError("never called")


FIX = r"; pass a loss of \(anchors, positives, negatives\) such as ContrastiveLoss\(Cosine\(\), Linear\(\)\), or of"


@pytest.mark.parametrize(
    "loss, options, message",
    [
        ("nt_xent", {}, r"^loss must be a function, got str; pass a loss of \(anchors"),
        (OfLabels(), {}, r"^OfLabels takes \(embeddings, labels, indices\), but pairs have anchors, pos.*" + FIX),
        (lambda z: z.sum(), {}, r"takes \(z\), but pairs have anchors, positives and negatives" + FIX),
        (lambda a, b, c, d: a, {}, r"takes \(a, b, c, d\), but pairs have anchors, positives and negatives" + FIX),
        (losses.moco, {}, r"^moco needs a queue of stored keys, which pairs do not have" + FIX),
        (losses.supcon, {}, r"^supcon needs labels"),
        (losses.view_loss_from("supcon"), {}, r"^the loss supcon needs labels"),
        (LossModule(losses.triplet), {}, r"^triplet needs one negative per anchor, as rows"),
        (nt_xent, {"negatives": 2}, r"nt_xent is a loss of two views.* has 1 positives and 2 neg.*negatives=0$"),
        (nt_xent, {"negatives": "all"}, r"nt_xent is a loss of two views.* has 1 positives and 6 negatives of its own"),
        (LossModule(nt_xent), {"negatives": 0, "n_positives": 2}, r"nt_xent is .* 2 positives .*n_positives=1"),
        (
            contrastive_trace_loss,
            {"negatives": "all"},
            r"^contrastive_trace_loss takes \(anchor, positives, negatives\) and no weights.* with a number of neg",
        ),
    ],
)
def test_a_loss_that_cannot_work_is_refused_at_once(loss: object, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        contrastive_problem(pairs_of(**options), loss)


def test_a_loss_that_returns_no_scalar_is_refused_at_the_first_step() -> None:
    for loss, got in ((lambda a, b: (a - b).sum(1), r"torch.float64 \(6,\)"), (lambda a, b: 1.0, "float")):
        with pytest.raises(InputError, match=rf"must return one number as a tensor, got {got}; return its mean"):
            contrastive_problem(two_views(), loss).objective(randn(12, 3))


def test_pairs_are_asked_for() -> None:
    with pytest.raises(InputError, match=r"pairs must be Pairs, got .*; use kontrast.data.make_pairs"):
        contrastive_problem(randn(3, 2), nt_xent)
