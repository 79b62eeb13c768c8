"""Optimisers over parameters by name: the numbers of torch.optim, for one run and for each run of a stack."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import integers, sampled_from

from kontrast.dynamics import OPTIMIZERS, OptimizerState, optimizer_from
from kontrast.errors import InputError
from tests.cases import DTYPES, TOLERANCE, randn

SHAPES = {"hidden": (5, 3), "output": (5, 2), "bias": (4,), "scale": ()}
RUNS = 3
RATES = (0.003, 0.05, 0.4)
STEPS = 20
OPTIONS = {"momentum": 0.8, "betas": (0.7, 0.95), "epsilon": 1e-3}


def torchs(name, parameters, rate, *, momentum=0.9, betas=(0.9, 0.999), epsilon=1e-8):
    """The optimiser of torch."""
    if name == "adam":
        return torch.optim.Adam(parameters, lr=rate, betas=betas, eps=epsilon)
    return torch.optim.SGD(parameters, lr=rate, momentum=momentum if name == "momentum" else 0.0)


def drawn(seed, dtype, *front):
    shapes = {name: (*front, *shape) for name, shape in SHAPES.items()}
    return {
        name: randn(1, *shape, seed=seed + i, dtype=dtype).reshape(shape)
        for i, (name, shape) in enumerate(shapes.items())
    }


def gradient(parameters, step):
    """Of Σ sin(θ + step): it depends on θ, changes over time, and is the same for a run alone and in a stack."""
    return {name: torch.cos(p + step) for name, p in parameters.items()}


def by_torch(name, start, rate, n_steps=STEPS, **options):
    parameters = {key: torch.nn.Parameter(p.clone()) for key, p in start.items()}
    optimizer = torchs(name, list(parameters.values()), rate, **options)
    for step in range(n_steps):
        for key, g in gradient({key: p.detach() for key, p in parameters.items()}, step).items():
            parameters[key].grad = g
        optimizer.step()
    return {key: p.detach() for key, p in parameters.items()}


def stepped(optimizer, start, rate, n_steps=STEPS):
    parameters = {name: p.clone() for name, p in start.items()}
    state = optimizer.start(parameters)
    for step in range(n_steps):
        optimizer.step(parameters, gradient(parameters, step), state, rate)
    return parameters, state


def close(actual, expected):
    assert actual.keys() == expected.keys()
    for name, tensor in actual.items():
        torch.testing.assert_close(tensor, expected[name], **TOLERANCE[tensor.dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIMIZERS)
@settings(max_examples=3)
@given(seed=integers(0, 2**16), rate=sampled_from(RATES), options=sampled_from([{}, OPTIONS]))
def test_one_run_has_the_numbers_of_torch(name, dtype, seed, rate, options):
    start = drawn(seed, dtype)
    found, _ = stepped(optimizer_from(name, **options), start, rate)
    close(found, by_torch(name, start, rate, **options))
    tensor, _ = stepped(optimizer_from(name, **options), start, torch.tensor(rate, dtype=dtype))
    close(tensor, found)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("rates_dtype", DTYPES)
def test_every_run_of_a_stack_has_the_numbers_of_torch(name, dtype, rates_dtype):
    start = drawn(1, dtype, RUNS)
    # Rates that both number types hold: the comparison is of steps, not of roundings of the rates.
    rates = torch.tensor([0.25, 2**-7, 0.5], dtype=rates_dtype)
    found, _ = stepped(optimizer_from(name, **OPTIONS), start, rates)
    assert all(p.dtype == dtype for p in found.values())
    for run, rate in enumerate(rates.tolist()):
        alone = by_torch(name, {key: p[run] for key, p in start.items()}, rate, **OPTIONS)
        close({key: p[run] for key, p in found.items()}, alone)
    same, _ = stepped(optimizer_from(name, **OPTIONS), start, 0.25)
    close({key: p[:1] for key, p in same.items()}, {key: p[:1] for key, p in found.items()})


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("rows", [torch.tensor([0, 2]), torch.tensor([True, False, True])])
def test_runs_that_are_kept_go_on_as_before(name, rows):
    optimizer, start, rates = optimizer_from(name), drawn(2, torch.float64, RUNS), torch.tensor(RATES).double()
    whole, _ = stepped(optimizer, start, rates)
    parameters, state = stepped(optimizer, start, rates, n_steps=7)
    kept, some = {key: p[rows] for key, p in parameters.items()}, state.keep(rows)
    before = [t.clone() for t in (state.n_steps, *state.first.values(), *state.second.values())]
    for step in range(7, STEPS):
        optimizer.step(kept, gradient(kept, step), some, rates[rows])
    close(kept, {key: p[rows] for key, p in whole.items()})
    # What the kept runs did since did not reach the state they came from.
    assert all(map(torch.equal, before, (state.n_steps, *state.first.values(), *state.second.values())))


@pytest.mark.parametrize("name, n_tensors", [("sgd", 0), ("momentum", 1), ("adam", 2)])
def test_steps_are_in_place_and_remember_only_what_they_need(name, n_tensors):
    optimizer, parameters = optimizer_from(name), drawn(3, torch.float32)
    state = optimizer.start(parameters)
    assert isinstance(state, OptimizerState)
    assert len(state.first) + len(state.second) == n_tensors * len(SHAPES)
    places = [p.data_ptr() for p in (*parameters.values(), *state.first.values(), *state.second.values())]
    gradients = gradient(parameters, 0)
    copies = {key: g.clone() for key, g in gradients.items()}
    optimizer.step(parameters, gradients, state, 0.1)
    assert places == [p.data_ptr() for p in (*parameters.values(), *state.first.values(), *state.second.values())]
    assert all(torch.equal(gradients[key], copy) for key, copy in copies.items())
    assert pickle.loads(pickle.dumps(optimizer)) == optimizer


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_rate_of_zero_stands_still_and_parameters_may_require_gradients(name):
    start = {key: p.requires_grad_() for key, p in drawn(4, torch.float64, RUNS).items()}
    optimizer, parameters = optimizer_from(name), {key: p.detach().clone().requires_grad_() for key, p in start.items()}
    state = optimizer.start(parameters)
    assert not any(t.requires_grad for t in (*state.first.values(), *state.second.values()))
    zeros = {key: torch.zeros_like(p) for key, p in start.items()}
    for gradients in (zeros, {key: torch.ones_like(p) for key, p in start.items()}):
        optimizer.step(parameters, gradients, state, torch.tensor([0.0, 0.1, 0.0]).double())
    for key, p in parameters.items():
        assert p.is_leaf
        assert torch.equal(p[[0, 2]], start[key][[0, 2]])
        assert not torch.equal(p[1], start[key][1])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_waits_for_no_data(name):
    # Meta tensors have shapes but no values: reading one raises.
    optimizer, parameters = optimizer_from(name), {key: p.to("meta") for key, p in drawn(5, torch.float32, 3).items()}
    state = optimizer.start(parameters)
    optimizer.step(parameters, gradient(parameters, 0), state, torch.ones(3, device="meta"))


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_recorded_step_counts_on(name):
    start = {key: p.cuda() for key, p in drawn(6, torch.float64, RUNS).items()}
    optimizer, rates = optimizer_from(name), torch.tensor(RATES, device="cuda").double()
    gradients = {key: torch.sin(p) for key, p in start.items()}
    parameters = {key: p.clone() for key, p in start.items()}
    state = optimizer.start(parameters)
    optimizer.step(parameters, gradients, state, rates)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step(parameters, gradients, state, rates)
    for _ in range(5):
        graph.replay()
    expected = {key: p.clone() for key, p in start.items()}
    state = optimizer.start(expected)
    for _ in range(6):
        optimizer.step(expected, gradients, state, rates)
    close(parameters, expected)


def one_step(**changes):
    parameters = {"w": randn(3, 2)}
    optimizer = optimizer_from("sgd")
    given = {"gradients": {"w": randn(3, 2)}, "learning_rate": torch.ones(3).double(), **changes}
    optimizer.step(parameters, given["gradients"], optimizer.start(parameters), given["learning_rate"])


REFUSALS = [
    (lambda: optimizer_from("adagrad"), "optimizer must be one of sgd, momentum, adam, got 'adagrad'"),
    (lambda: optimizer_from("momentum", momentum=1.0), "momentum must be a number of at least 0 and below 1, got 1"),
    (lambda: optimizer_from("adam", betas=(0.9, 1.5)), "each of betas must be a number of at least 0 and below 1"),
    (lambda: optimizer_from("adam", betas=0.9), "betas must be two numbers, got 0.9"),
    (lambda: optimizer_from("adam", epsilon=0), "epsilon must be a positive number"),
    (lambda: optimizer_from("sgd").start({}), "there are no parameters"),
    (lambda: one_step(gradients={}), r"gradients must have the parameters' names \['w'\], got \[\]"),
    (lambda: one_step(learning_rate=torch.ones(2)), r"\(R,\) .* got \(2,\) for a parameter of shape \(3, 2\)"),
    (lambda: one_step(learning_rate=torch.ones(3, 2)), r"learning_rate must be a number or have shape \(R,\)"),
]


@pytest.mark.parametrize("call, words", REFUSALS)
def test_refusals(call, words):
    with pytest.raises(InputError, match=words):
        call()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_first_step_is_as_long_as_the_gradient_or_as_its_signs(dtype: torch.dtype) -> None:
    gradients = drawn(3, dtype)
    entries = torch.cat([g.flatten() for g in gradients.values()])
    for name, length in (("sgd", entries.norm()), ("momentum", entries.norm()), ("adam", len(entries) ** 0.5)):
        assert optimizer_from(name).first_step(gradients) == pytest.approx(float(length), rel=1e-5)
