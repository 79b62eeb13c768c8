"""A loss behaves as the scalar tensor that is its total."""

from __future__ import annotations

import copy
import operator
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.strategies import integers, sampled_from

from kontrast.losses import LossModule, LossValue, nt_xent, vicreg
from tests.cases import randn


def views(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return randn(5, 3, seed=seed).requires_grad_(), randn(5, 3, seed=seed + 1)


def plain(value: object) -> object:
    """A result that is no LossValue, comparable with ==."""
    assert not isinstance(value, LossValue)
    return value.detach().tolist() if isinstance(value, torch.Tensor) else value


@given(seed=integers(0, 2**16), loss=sampled_from([nt_xent, vicreg]))
def test_backward_gives_the_gradients_of_the_total(seed, loss):
    a, b = views(seed)
    loss(a, b).backward()
    (expected,) = torch.autograd.grad(loss(a, b).total, a)
    assert torch.equal(a.grad, expected)
    assert torch.equal(torch.autograd.grad(loss(a, b), a)[0], expected)
    value = loss(a, b)
    value.backward(retain_graph=True)
    torch.autograd.backward(value)
    torch.testing.assert_close(a.grad, 3 * expected)
    (of_list,) = torch.autograd.grad([loss(a, b), loss(a, b)], [a])
    torch.testing.assert_close(of_list, 2 * expected)


BINARY = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.lt, operator.le, operator.gt,
    operator.ge, operator.eq, operator.ne,
]  # fmt: skip


@pytest.mark.parametrize("operation", BINARY, ids=lambda operation: operation.__name__)
@pytest.mark.parametrize("other", [2, 0.5, np.float64(1.5), randn(3).abs(), "itself", "another"])
def test_arithmetic_and_comparisons_are_those_of_the_totals(operation, other):
    value = nt_xent(*views())
    if isinstance(other, str):
        other = value if other == "itself" else nt_xent(*views(7))
    total_of_other = other.total if isinstance(other, LossValue) else other
    assert plain(operation(value, other)) == plain(operation(value.total, total_of_other))
    if not isinstance(other, np.floating):
        assert plain(operation(other, value)) == plain(operation(total_of_other, value.total))
    assert plain(np.float64(2) * value) == plain(2 * value.total)


def test_sums_as_loops_make_them():
    values = [nt_xent(*views(seed)) for seed in (0, 2)]
    expected = values[0].total + values[1].total
    assert torch.equal(sum(values), expected)
    running, in_place = 0.0, torch.zeros((), dtype=torch.float64)
    for value in values:
        running += value
        in_place += value.detach()
    assert torch.equal(running, expected)
    assert torch.equal(in_place, expected.detach())
    assert torch.equal((values[0] + 0.1 * values[1]), values[0].total + 0.1 * values[1].total)
    assert max(values, key=float) in values
    assert torch.equal(-values[0], -values[0].total)
    assert torch.equal(abs(+values[0]), values[0].total.abs())


def test_numbers_and_words():
    value = nt_xent(*views())
    number = value.total.item()
    assert (value.item(), float(value), int(value), bool(value)) == (number, number, int(number), True)
    assert f"{value:.3f}" == f"{number:.3f}"
    assert "total=" in repr(value)
    assert "uniformity" in repr(value)
    assert np.asarray(value.detach()) == number
    with torch.no_grad():
        assert np.array([nt_xent(*views())]).tolist() == [number]


def test_what_a_tensor_knows():
    value = nt_xent(*views())
    assert (value.shape, value.ndim, value.dtype, value.requires_grad) == ((), 0, torch.float64, True)
    assert value.grad_fn is value.total.grad_fn
    assert not value.detach().requires_grad
    assert torch.equal(value.float(), value.total.float())
    assert isinstance(value.mean(), LossValue)
    assert not hasattr(value, "no_such_thing")
    with pytest.raises(AttributeError, match="has no attribute '__len__'"):
        value.__len__()
    with pytest.raises(TypeError):
        iter(value)


def test_functions_of_torch_see_the_total():
    a, b = views()
    value, other = nt_xent(a, b), vicreg(a, b)
    assert torch.isfinite(value)
    assert torch.equal(torch.stack([value, other]), torch.stack([value.total, other.total]))
    assert torch.equal(torch.where(value > 0, value, 0.0), value.total)
    assert torch.equal(torch.maximum(value, other), other.total)
    assert torch.equal(torch.add(input=value, other=other), value.total + other.total)
    assert torch.equal(torch.nn.functional.relu(value), value.total)


def test_an_optimizer_with_a_closure_takes_it():
    a, b = views()
    optimizer = torch.optim.LBFGS([a])

    def closure() -> LossValue:
        optimizer.zero_grad()
        loss = nt_xent(a, b)
        loss.backward()
        return loss

    start = nt_xent(a, b).item()
    optimizer.step(closure)
    assert nt_xent(a, b).item() < start


def test_copies_and_dictionaries():
    value = vicreg(*(view.detach() for view in views()))
    for copied in (copy.deepcopy(value), copy.copy(value), pickle.loads(pickle.dumps(value))):
        assert isinstance(copied, LossValue)
        assert torch.equal(copied.total, value.total)
        assert copied.terms.keys() == value.terms.keys()
    assert {value: 1}[value] == 1


def test_a_transform_that_insists_on_a_tensor_takes_the_total_or_the_module():
    a, b = views()
    with pytest.raises(RuntimeError, match="to return a Tensor"):
        torch.func.grad(lambda x: nt_xent(x, b))(a)
    (expected,) = torch.autograd.grad(nt_xent(a, b), a)
    for loss in (lambda x, y: nt_xent(x, y).total, LossModule(nt_xent)):
        torch.testing.assert_close(torch.func.grad(loss)(a, b), expected)
