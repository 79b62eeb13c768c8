from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.strategies import integers

from kontrast.dynamics import classification_problem, gradient_descent, regression_problem
from kontrast.errors import InputError
from kontrast.nets import MLP, parameters_of, pure_function
from tests.cases import generator, randn

X, Y, LABELS = randn(5, 3), randn(5, 2, seed=1), torch.tensor([0, 2, 1, 2, 0])


@given(seed=integers(0, 2**16))
def test_regression_is_half_the_sum_of_squares(seed: int) -> None:
    f = randn(5, 2, seed=seed)
    expected = sum((float(f[i, j]) - float(Y[i, j])) ** 2 for i in range(5) for j in range(2)) / 2
    assert float(regression_problem(X, Y).objective(f)) == pytest.approx(expected, rel=1e-14)


@given(seed=integers(0, 2**16))
def test_classification_is_the_sum_of_cross_entropies(seed: int) -> None:
    f = randn(5, 3, seed=seed)
    expected = -sum(math.log(f[i].exp()[LABELS[i]] / f[i].exp().sum()) for i in range(5))
    problem = classification_problem(X, LABELS.to(torch.uint8))
    assert float(problem.objective(f)) == pytest.approx(expected, rel=1e-12)


@given(seed=integers(0, 2**16), n_first=integers(1, 4))
def test_parts_add_up_to_the_whole(seed: int, n_first: int) -> None:
    """A sum, not a mean: the losses of a split are those of its mini-batches."""
    order = torch.randperm(5, generator=generator(seed))
    f = randn(5, 3, seed=seed)
    for problem in (regression_problem(X, randn(5, 3, seed=seed + 1)), classification_problem(X, LABELS)):
        parts = [problem.subset(rows) for rows in (order[:n_first], order[n_first:])]
        assert [part.size for part in parts] == [n_first, 5 - n_first]
        assert torch.equal(parts[0].inputs, X[order[:n_first]])
        total = sum(
            float(part.objective(f[rows])) for part, rows in zip(parts, (order[:n_first], order[n_first:]), strict=True)
        )
        assert float(problem.objective(f)) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("problem", [regression_problem(X, Y), classification_problem(X, LABELS % 2)])
def test_networks_train_on_them_in_mini_batches(problem: object) -> None:
    net = MLP(3, 32, 2, activation="tanh", dtype=torch.float64)
    run = gradient_descent(
        pure_function(net),
        parameters_of(net),
        problem,
        learning_rate=0.05,
        n_steps=200,
        batch_size=2,
        generator=generator(),
    )
    start = net(X).detach()
    assert problem.objective(run.final_outputs) < 0.5 * problem.objective(start)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: regression_problem(X.numpy(), Y), "x must be a tensor with at least one row, got ndarray"),
        (lambda: regression_problem(X[:0], Y), "at least one row"),
        (lambda: regression_problem(X, Y.numpy()), "targets must be a tensor of floating-point numbers, got ndarray"),
        (lambda: regression_problem(X, Y[:, 0]), r"got \(5,\); .*for one output use targets\[:, None\]"),
        (lambda: regression_problem(X, LABELS), "for class numbers use classification_problem"),
        (lambda: regression_problem(X, Y[:4]), r"targets must have shape \(5, z\), got \(4, 2\)"),
        (
            lambda: regression_problem(X, Y.float()),
            r"targets must be torch.float64 on cpu like x, got torch.float32 on cpu; use targets.to\(x\)",
        ),
        (lambda: regression_problem(X, Y / 0), "NaN or infinite"),
        (lambda: classification_problem(np.ones(3), LABELS), "x must be a tensor"),
        (lambda: classification_problem(X, [0, 1]), "labels must be a tensor of whole class numbers, got list"),
        (lambda: classification_problem(X, LABELS.double()), "use labels.long()"),
        (lambda: classification_problem(X, LABELS > 0), "use labels.long()"),
        (lambda: classification_problem(X, torch.eye(5).long()), r"labels must have shape \(5,\).*labels.argmax\(1\)"),
        (lambda: classification_problem(X, LABELS - 1), "labels must be 0 or more .* got -1"),
        (lambda: regression_problem(X, Y).objective(Y[:, :1]), r"outputs are \(5, 1\) but the targets \(5, 2\)"),
        (lambda: classification_problem(X, LABELS).objective(Y), r"k of 3 or more classes, got \(5, 2\)"),
    ],
)
def test_bad_problems_are_refused(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
