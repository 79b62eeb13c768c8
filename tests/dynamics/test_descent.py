from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import floats, integers, sampled_from
from torch import nn

from kontrast.data import GaussianNoise, Pairs, make_pairs
from kontrast.dynamics import Problem, Status, contrastive_problem, gradient_descent
from kontrast.errors import InputError
from kontrast.linalg import frobenius_ball, grassmann_step, orthonormality_error, polar_step
from kontrast.linalg.frames import polar_retraction
from kontrast.losses import ContrastiveLoss, Cosine, Dot, Linear, contrastive_trace_loss
from kontrast.nets import MLP, parameters_of, pure_function
from tests.cases import DTYPES, TOLERANCE, generator, randn


def pairs_of(n: int = 6, d: int = 4, seed: int = 0, dtype: torch.dtype = torch.float64, **options: object) -> Pairs:
    x = randn(n, d, seed=seed, dtype=dtype)
    return make_pairs(x, views=GaussianNoise(0.1), generator=generator(seed), **options)


def cosine_problem(**options: object) -> Problem:
    return contrastive_problem(pairs_of(**options), ContrastiveLoss(Cosine(0.01), Linear()))


def hand_written(net: MLP, pairs: Pairs, rate: float, n_steps: int) -> MLP:
    """Paper A's triplet loss by hand, through torch's own backward and in-place steps."""
    n = pairs.n_anchors
    for _ in range(n_steps):
        net.zero_grad()
        f = net(pairs.x)
        u = f / (f.norm(dim=1, keepdim=True) + 0.01)
        a, p, q = u[:n], u[pairs.positive[:, 0]], u[pairs.negative[:, 0]]
        ((a * q).sum() - (a * p).sum()).div(n).backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= rate * parameter.grad
    return net


@given(seed=integers(0, 2**16), depth=integers(1, 2), dtype=sampled_from(DTYPES))
@settings(max_examples=15)
def test_descent_equals_the_hand_written_loop(seed: int, depth: int, dtype: torch.dtype) -> None:
    pairs = pairs_of(seed=seed, dtype=dtype)
    net = MLP(4, 8, 3, depth=depth, activation="tanh", generator=generator(seed), dtype=dtype)
    problem = contrastive_problem(pairs, ContrastiveLoss(Cosine(0.01), Linear()))
    run = gradient_descent(pure_function(net), parameters_of(net), problem, learning_rate=0.1, n_steps=8)
    trained = hand_written(net, pairs, 0.1, 8)
    loose = {"rtol": 1e-10, "atol": 1e-11} if dtype is torch.float64 else {"rtol": 1e-3, "atol": 1e-4}
    torch.testing.assert_close(run.final_outputs, trained(pairs.x).detach(), **loose)


def test_any_whole_number_counts_steps() -> None:
    net, problem = MLP(4, 8, 3, dtype=torch.float64), cosine_problem()
    f, start = pure_function(net), parameters_of(net)
    run = gradient_descent(
        f, start, problem, learning_rate=0.1, n_steps=torch.tensor(4), record_at=[np.int64(1), torch.tensor(4)]
    )
    assert run.steps == (1, 4)
    assert run.stopped_at == 4


def test_start_is_not_changed_and_the_loss_falls() -> None:
    net = MLP(4, 32, 3, dtype=torch.float64)
    start = parameters_of(net)
    run = gradient_descent(pure_function(net), start, cosine_problem(), learning_rate=0.1, n_steps=50)
    assert all(torch.equal(start[k], v) for k, v in parameters_of(net).items())
    assert run.status is Status.STEP_LIMIT
    assert run.stopped_at == 50
    assert len(run.losses) == 51
    assert run.losses[-1] < run.losses[0]


def test_what_is_recorded_belongs_to_its_step() -> None:
    net, problem = MLP(4, 8, 3, dtype=torch.float64), cosine_problem()
    f, start = pure_function(net), parameters_of(net)
    run = gradient_descent(
        f,
        start,
        problem,
        learning_rate=0.1,
        n_steps=9,
        record_at=[0, 4, 9],
        recorders={"norm": lambda now: now.outputs.norm(), "step": lambda now: now.step},
        keep_outputs=True,
        keep_parameters=True,
    )
    assert run.steps == (0, 4, 9)
    assert run.records["step"].tolist() == [0, 4, 9]
    assert run.outputs is not None
    assert run.parameters is not None
    for k, step in enumerate(run.steps):
        again = gradient_descent(f, start, problem, learning_rate=0.1, n_steps=step)
        torch.testing.assert_close(run.outputs[k], again.final_outputs)
        torch.testing.assert_close(run.parameters["output"][k], again.final_parameters["output"])
        torch.testing.assert_close(run.records["norm"][k], again.final_outputs.norm())
        torch.testing.assert_close(f({n: p[k] for n, p in run.parameters.items()}, problem.inputs), run.outputs[k])
        assert float(problem.objective(run.outputs[k])) == pytest.approx(float(run.losses[step]))


@given(rate_hidden=floats(0.0, 0.5), rate_output=floats(0.01, 0.5))
def test_learning_rates_per_layer(rate_hidden: float, rate_output: float) -> None:
    net, problem = MLP(4, 8, 3, dtype=torch.float64), cosine_problem()
    start = parameters_of(net)
    rates = {"hidden.0": rate_hidden, "output": rate_output}
    run = gradient_descent(pure_function(net), start, problem, learning_rate=rates, n_steps=1)
    moved = {k: run.final_parameters[k] - start[k] for k in start}
    unit = gradient_descent(pure_function(net), start, problem, learning_rate=1.0, n_steps=1)
    for name, rate in rates.items():
        expected = rate * (unit.final_parameters[name] - start[name])
        torch.testing.assert_close(moved[name], expected, rtol=1e-9, atol=1e-14)


def test_a_parameter_the_output_does_not_use_stays() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = (nn.Parameter(torch.ones(4, 3, dtype=torch.float64)) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.used

    net = Half()
    run = gradient_descent(pure_function(net), parameters_of(net), cosine_problem(), learning_rate=0.1, n_steps=3)
    assert torch.equal(run.final_parameters["unused"], net.unused)
    assert not torch.equal(run.final_parameters["used"], net.used)


def test_divergence_is_a_status_with_its_step() -> None:
    problem = contrastive_problem(pairs_of(), ContrastiveLoss(Dot(), Linear()))
    net = MLP(4, 16, 3, dtype=torch.float64)
    seen: list[int] = []
    run = gradient_descent(
        pure_function(net),
        parameters_of(net),
        problem,
        learning_rate=0.5,
        n_steps=500,
        record_at=range(500),
        recorders={"loss": lambda now: (seen.append(now.step), float(problem.objective(now.outputs)))[1]},
    )
    assert run.status is Status.DIVERGED
    assert 0 < run.stopped_at < 500
    assert not math.isfinite(run.losses[-1])
    assert torch.isfinite(run.losses[:-1]).all()
    assert seen == list(range(run.stopped_at))
    assert torch.isfinite(run.records["loss"]).all()


def test_convergence_stops_early() -> None:
    target = randn(6, 3, seed=4)
    problem = Problem(randn(6, 4), lambda f: (f - target).pow(2).sum() / 2, size=6)
    net = MLP(4, 64, 3, activation="tanh", dtype=torch.float64)
    run = gradient_descent(
        pure_function(net), parameters_of(net), problem, learning_rate=0.1, n_steps=5000, tolerance=1e-6
    )
    assert run.status is Status.CONVERGED
    assert run.stopped_at < 5000
    assert run.losses[-1] < 1e-10


def test_minibatches_visit_every_sample_once_an_epoch_and_are_seeded() -> None:
    pairs = pairs_of(n=7)
    seen: list[torch.Tensor] = []

    def loss(anchor: torch.Tensor, positives: torch.Tensor, negatives: torch.Tensor) -> object:
        seen.append(anchor.detach())
        return ContrastiveLoss(Cosine(0.01), Linear())(anchor, positives, negatives)

    net = MLP(4, 8, 3, dtype=torch.float64)
    frozen = {"hidden.0": 0.0, "output": 0.0}  # so that outputs tell samples apart
    options = {"learning_rate": frozen, "n_steps": 2, "batch_size": 3, "generator": generator(1)}
    gradient_descent(pure_function(net), parameters_of(net), contrastive_problem(pairs, loss), **options)
    assert [len(batch) for batch in seen] == [3, 3, 1]
    expected = net(pairs.x[pairs.anchor]).detach()
    distance = torch.cdist(torch.cat(seen), expected)
    assert sorted(distance.argmin(1).tolist()) == list(range(7))
    assert distance.min(1).values.max() < 1e-12


def test_minibatch_gradients_are_the_subsets_own_and_seeds_repeat() -> None:
    problem, net = cosine_problem(n=8), MLP(4, 8, 3, dtype=torch.float64)
    f, start = pure_function(net), parameters_of(net)
    options = {"learning_rate": 0.1, "n_steps": 10, "batch_size": 3}
    runs = [gradient_descent(f, start, problem, generator=generator(s), **options) for s in (5, 5, 6)]
    assert torch.equal(runs[0].final_outputs, runs[1].final_outputs)
    assert not torch.equal(runs[0].final_outputs, runs[2].final_outputs)
    assert runs[0].final_outputs.shape == (16, 3)  # the whole pool, not the last batch
    full = gradient_descent(f, start, problem, learning_rate=0.1, n_steps=5)
    batch = gradient_descent(f, start, problem, learning_rate=0.1, n_steps=5, batch_size=8, generator=generator())
    torch.testing.assert_close(batch.final_outputs, full.final_outputs, rtol=1e-10, atol=1e-12)


@given(seed=integers(0, 2**16), activation=sampled_from(["relu", "tanh"]))
@settings(max_examples=12)
def test_grassmannian_layer_stays_orthonormal_while_the_loss_falls(seed: int, activation: str) -> None:
    net = MLP(
        4, 12, 3, activation=activation, parametrization="orthogonal", generator=generator(seed), dtype=torch.float64
    )
    problem = contrastive_problem(pairs_of(seed=seed), contrastive_trace_loss)
    run = gradient_descent(
        pure_function(net),
        parameters_of(net),
        problem,
        learning_rate={"hidden.0": 0.0, "output": 0.01},
        n_steps=40,
        record_at=range(41),
        recorders={"error": lambda now: orthonormality_error(now.parameters["output"])},
        orthonormal=["output"],
    )
    assert run.records["error"].max() <= 1e-12
    assert (run.losses.diff() <= 1e-9).all()
    assert run.losses[-1] < run.losses[0]


def half_ball(parameter: torch.Tensor, gradient: torch.Tensor, /, *, learning_rate: float) -> torch.Tensor:
    return frobenius_ball(parameter - learning_rate * gradient, 0.5)


@given(seed=integers(0, 2**16), rate=floats(0.01, 0.5))
def test_a_step_of_its_own_stands_in_the_place_of_the_plain_one(seed: int, rate: float) -> None:
    """θ − η∇L for the parameters without one, the step at that parameter's own rate for the others."""
    net, problem = MLP(4, 8, 3, generator=generator(seed), dtype=torch.float64), cosine_problem(seed=seed)
    f, start = pure_function(net), parameters_of(net)
    rates = {"hidden.0": 0.1, "output": rate}
    plain = gradient_descent(f, start, problem, learning_rate=rates, n_steps=1).final_parameters
    run = gradient_descent(f, start, problem, learning_rate=rates, n_steps=1, steps={"output": half_ball})
    torch.testing.assert_close(run.final_parameters["hidden.0"], plain["hidden.0"])
    torch.testing.assert_close(run.final_parameters["output"], frobenius_ball(plain["output"], 0.5))
    assert torch.equal(start["output"], parameters_of(net)["output"])


def test_a_step_of_its_own_replaces_the_grassmannian_one() -> None:
    net = MLP(4, 12, 3, parametrization="orthogonal", dtype=torch.float64)
    f, start = pure_function(net), parameters_of(net)
    problem = contrastive_problem(pairs_of(), contrastive_trace_loss)
    options = {"learning_rate": 0.05, "n_steps": 1, "orthonormal": ["output"]}
    polar = gradient_descent(f, start, problem, steps={"output": polar_step}, **options).final_parameters["output"]
    plain = gradient_descent(f, start, problem, **{**options, "orthonormal": ()}).final_parameters["output"]
    torch.testing.assert_close(polar, polar_retraction(plain))
    default = gradient_descent(f, start, problem, **options).final_parameters["output"]
    named = gradient_descent(f, start, problem, steps={"output": grassmann_step}, **options).final_parameters["output"]
    assert torch.equal(default, named)
    assert not torch.allclose(default, polar)


def test_a_rate_of_zero_freezes_a_parameter_with_a_step_of_its_own() -> None:
    net, problem = MLP(4, 8, 3, dtype=torch.float64), cosine_problem()
    start, rates = parameters_of(net), {"hidden.0": 0.1, "output": 0.0}
    run = gradient_descent(
        pure_function(net), start, problem, learning_rate=rates, n_steps=3, steps={"output": half_ball}
    )
    assert torch.equal(run.final_parameters["output"], start["output"])


def test_tolerance_measures_the_step_and_not_the_gradient() -> None:
    """At the optimum on the ball the gradient does not vanish; the step does."""
    target = randn(6, 3, seed=4)
    problem = Problem(torch.eye(6, dtype=torch.float64), lambda f: (f - target).pow(2).sum() / 2, size=6)

    def linear(parameters: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return x @ parameters["W"]

    start = {"W": torch.zeros(6, 3, dtype=torch.float64)}
    options = {"learning_rate": 0.3, "n_steps": 500, "tolerance": 1e-8, "steps": {"W": half_ball}}
    run = gradient_descent(linear, start, problem, **options)
    assert run.status is Status.CONVERGED
    torch.testing.assert_close(run.final_parameters["W"], frobenius_ball(target, 0.5), rtol=0, atol=1e-7)
    assert float((run.final_parameters["W"] - target).norm()) > 1


def test_weights_of_all_pairs_reach_the_loss() -> None:
    pairs = pairs_of(negatives="all")
    problem = contrastive_problem(pairs, ContrastiveLoss(Dot(), Linear()))
    f = randn(12, 3)
    others = [sum(f[i] @ f[j] for j in range(6) if j != i) / 5 - f[i] @ f[6 + i] for i in range(6)]
    torch.testing.assert_close(problem.objective(f), sum(others) / 6, **TOLERANCE[torch.float64])


BAD = [
    ({"learning_rate": 0.0}, "learning_rate must be a positive number, got 0"),
    ({"learning_rate": math.nan}, "positive number, got nan"),
    ({"learning_rate": {"output": 0.1}}, r"missing: \['hidden.0'\]"),
    ({"learning_rate": {"output": 0.1, "hidden.0": -1.0}}, "learning rate of hidden.0 must be a positive number"),
    ({"n_steps": -1}, "n_steps must be a whole number of at least 0"),
    ({"n_steps": True}, "n_steps must be a whole number of at least 0, got True"),
    ({"record_at": [3, 11]}, "every step of record_at must be a whole number of at most 10, got 11"),
    ({"record_at": [-1]}, "every step of record_at must be a whole number of at least 0, got -1"),
    ({"record_at": [0.5]}, "every step of record_at must be a whole number of at least 0, got 0.5"),
    ({"tolerance": -1.0}, "tolerance must be a number of 0 or more, got -1.0"),
    ({"tolerance": math.nan}, "tolerance must be a number of 0 or more, got nan"),
    ({"batch_size": 7, "generator": generator()}, "batch_size must be a whole number of at most 6, got 7"),
    ({"batch_size": 3}, "generator must be a torch.Generator, got NoneType"),
    ({"orthonormal": ["W"]}, "no parameter is called 'W'"),
    ({"orthonormal": ["output"]}, "must start with orthonormal columns"),
    ({"steps": {"W": grassmann_step}}, r"no parameter is called 'W'; the parameters are \['output', 'hidden.0'\]"),
]


@pytest.mark.parametrize("options, message", BAD)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    net = MLP(4, 8, 3, dtype=torch.float64)
    with pytest.raises(InputError, match=message):
        gradient_descent(
            pure_function(net), parameters_of(net), cosine_problem(), **{"learning_rate": 0.1, "n_steps": 10, **options}
        )


def test_a_problem_without_samples_has_no_minibatches() -> None:
    net, problem = MLP(4, 8, 3), Problem(torch.ones(2, 4), lambda f: f.sum(), size=2)
    with pytest.raises(InputError, match="use batch_size=None"):
        gradient_descent(pure_function(net), parameters_of(net), problem, learning_rate=0.1, n_steps=1, batch_size=1)
