"""The scaled loss of paper B, Prop. 3 (1)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis.strategies import floats, integers, sampled_from

from kontrast.deep_linear import scaled_loss
from kontrast.errors import InputError
from kontrast.linalg import random_frame
from kontrast.losses import LossValue, alignment_loss, contrastive_trace_loss
from tests.cases import DTYPES, TOLERANCE, generator, randn


def value(W1: torch.Tensor, W2: torch.Tensor, seed: int) -> LossValue:
    """Loss (1) of a linear network, of two positives and one negative per anchor."""
    anchor, positives, negatives = (
        randn(5, *n, 3, seed=seed + i, dtype=W1.dtype) for i, n in enumerate([(), (2,), (1,)])
    )
    return contrastive_trace_loss(*(x @ W1.mT @ W2 for x in (anchor, positives, negatives)))


@given(seed=integers(0, 2**16), factor=floats(1e-3, 1e3), dtype=sampled_from(DTYPES))
def test_rescaling_a_weight_of_a_linear_network_changes_nothing(seed: int, factor: float, dtype: torch.dtype) -> None:
    W1, W2 = randn(4, 3, seed=seed + 10, dtype=dtype), randn(4, 2, seed=seed + 11, dtype=dtype)
    plain = scaled_loss(value(W1, W2, seed), W1, W2).total
    tolerance = {**TOLERANCE[dtype], "atol": 100 * TOLERANCE[dtype]["atol"]}
    torch.testing.assert_close(scaled_loss(value(factor * W1, W2, seed), factor * W1, W2).total, plain, **tolerance)
    torch.testing.assert_close(scaled_loss(value(W1, -factor * W2, seed), W1, -factor * W2).total, plain, **tolerance)
    assert plain.dtype == dtype


def test_orthonormal_weights_leave_the_loss_as_it_is() -> None:
    W1, W2 = random_frame(4, 3, generator=generator(0)), random_frame(4, 2, generator=generator(1))
    torch.testing.assert_close(scaled_loss(value(W1, W2, 0), W1, W2).total, value(W1, W2, 0).total)


def test_tensors_stay_tensors_and_terms_are_scaled_with_the_total() -> None:
    W, U = torch.diag(torch.tensor([2.0, 1.0])), torch.diag(torch.tensor([3.0, -4.0]))
    loss = torch.tensor(8.0)
    assert float(scaled_loss(loss, W)) == pytest.approx(2.0)
    assert float(scaled_loss(loss, W, U)) == pytest.approx(8 / (4 * 16))
    of_terms = scaled_loss(value(randn(4, 3), randn(4, 2), 0), W.double())
    assert set(of_terms.terms) == {"positive", "negative"}
    torch.testing.assert_close(sum(of_terms.terms.values()), of_terms.total)
    torch.testing.assert_close(of_terms.total, value(randn(4, 3), randn(4, 2), 0).total / 4)


def test_the_gradient_is_right_in_every_weight() -> None:
    W1, W2 = randn(4, 3, seed=1).requires_grad_(), randn(4, 2, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: scaled_loss(value(a, b, 0), a, b).total, (W1, W2))


@pytest.mark.parametrize("gap", [1e-3, 1e-9, 1e-13])
def test_a_nearly_double_singular_value_costs_the_gradient_nothing(gap: float) -> None:
    """∇‖W‖⁻² = −2‖W‖⁻³ u₁v₁^T: of norm 2 at ‖W‖ = 1, along the first pair of singular vectors."""
    U, V = random_frame(4, 2, generator=generator(0)), random_frame(3, 2, generator=generator(1))
    W = (U @ torch.diag(torch.tensor([1.0, 1.0 - gap], dtype=torch.float64)) @ V.mT).requires_grad_()
    (gradient,) = torch.autograd.grad(scaled_loss(torch.ones((), dtype=torch.float64), W), W)
    assert torch.isfinite(gradient).all()
    assert float(torch.linalg.matrix_norm(gradient, ord="nuc")) == pytest.approx(2, rel=1e-6)
    # At a gap of 1e-13 the two vectors are not resolved, but their span is.
    assert float(torch.trace(U.mT @ gradient @ V)) == pytest.approx(-2, rel=1e-6)
    if gap == 1e-3:
        torch.testing.assert_close(gradient, -2 * torch.outer(U[:, 0], V[:, 0]), rtol=0, atol=1e-9)


def test_it_trains_any_network_where_the_plain_loss_diverges() -> None:
    x = randn(30, 3)
    losses = {}
    for use in (True, False):
        net = torch.nn.Sequential(torch.nn.Linear(3, 8, bias=False), torch.nn.Tanh(), torch.nn.Linear(8, 2, bias=False))
        with torch.no_grad():
            for i, p in enumerate(net.parameters()):
                p.copy_(0.3 * randn(*p.shape, seed=i))
        net.double()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
        history = []
        for _ in range(120):
            u = net(x)
            loss = alignment_loss(u, u.unsqueeze(1))
            loss = scaled_loss(loss, net[0].weight, net[2].weight) if use else loss
            optimizer.zero_grad()
            loss.total.backward()
            optimizer.step()
            history.append(loss.total.item())
        losses[use] = history
    assert losses[True][-1] < 2 * losses[True][0] < 0  # it learns …
    assert losses[True][-1] > -2 * float(x.square().sum())  # … within the bound ‖φ(W₁x)‖ ≤ ‖W₁‖‖x‖, z = 2 times over
    assert losses[False][-1] < -1e6


def test_bad_weights_are_refused() -> None:
    loss = torch.ones(())
    for weights, message in (
        ((), "no weights"),
        ((torch.ones(3),), r"weights\[0\] must have shape \(n, m\), got \(3,\); leave biases out"),
        ((torch.eye(2), torch.ones(1, 1, 1)), r"weights\[1\] must have shape .*\(1, 1, 1\)"),
        ((torch.ones(2, 2, dtype=torch.int64),), "torch.int64"),
        ((torch.ones(0, 2),), r"\(0, 2\)"),
        ((torch.zeros(2, 2),), r"weights\[0\] is zero, NaN or infinite"),
        ((torch.eye(2), torch.full((2, 2), math.nan)), r"weights\[1\] is zero, NaN or infinite"),
        ((torch.eye(2).numpy(),), r"weights\[0\] must be .* got ndarray; .*torch.as_tensor\(array\)"),
        (([torch.eye(2), torch.eye(2)],), r"weights\[0\] .* got list; pass matrices one by one"),
        ((torch.eye(2), torch.nn.Linear(2, 2)), r"weights\[1\] .* got Linear; .*layer.weight"),
    ):
        with pytest.raises(InputError, match=message):
            scaled_loss(loss, *weights)
    for no_loss in (1.0, loss.numpy(), [loss]):
        with pytest.raises(InputError, match="loss must be Tensor or LossValue, got"):
            scaled_loss(no_loss, torch.eye(2))  # type: ignore[type-var]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("power", [-1.0, 1.0])
def test_norms_whose_powers_overflow_are_refused_and_others_are_exact(dtype: torch.dtype, power: float) -> None:
    """Of 1e±200 the square is infinite or zero, and so the loss would be; the gradient −2‖W‖⁻³ is the first to go."""
    edge = torch.finfo(dtype).max ** (1 / 3)
    W = torch.eye(2, dtype=dtype, requires_grad=True)
    for factor in (1.1 * edge, 1e3 * edge):
        with pytest.raises(
            InputError, match=rf"weights\[0\] has norm .*, whose powers are beyond the range of {dtype}; rescale"
        ):
            scaled_loss(W.sum(), W * factor**power)
    size = (0.5 * edge) ** power
    outer = torch.diag(torch.tensor([size, 0.0], dtype=dtype)).requires_grad_()
    value = scaled_loss(torch.ones((), dtype=dtype), outer)
    (gradient,) = torch.autograd.grad(value, outer)
    assert value.item() == pytest.approx(size**-2, rel=1e-5)
    assert gradient[0, 0].item() == pytest.approx(-2 * size**-3, rel=1e-5)
    with pytest.raises(InputError, match=r"the product of the 2 squared norms is beyond the range of torch.float"):
        scaled_loss(torch.ones((), dtype=dtype), outer, outer)
    inverse = torch.eye(2, dtype=dtype) / size
    assert scaled_loss(torch.ones((), dtype=dtype), outer, inverse).item() == pytest.approx(1)
