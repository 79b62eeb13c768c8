"""A module at another point: its parameters with the buffers that belong to them, or a refusal."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import integers
from torch import Tensor, nn

from kontrast.data import GaussianNoise, make_pairs
from kontrast.dynamics import contrastive_problem, distance_from, gradient_descent, regression_problem
from kontrast.errors import InputError
from kontrast.kernels import empirical_ntk
from kontrast.lazy import ntk_certificate
from kontrast.learnability import linearization_gap
from kontrast.losses import nt_xent
from kontrast.nets import (
    MLP,
    Linearized,
    at_point,
    function_at,
    hessian_norm,
    last_features,
    parameters_of,
    pure_function,
    statistics_of,
)
from tests.cases import generator, randn

X = randn(5, 3)
HALF = r"hold no 1.running_mean, which changes in training as they do \(2 such buffers\).*pass the whole state_dict\(\)"


def normed(seed: int) -> nn.Module:
    """A network with running statistics that are nothing special."""
    g = generator(seed)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).double().eval()
    with torch.no_grad():
        for p in module.parameters():
            p.normal_(generator=g)
        module[1].running_mean.normal_(generator=g)
        module[1].running_var.uniform_(0.5, 2.0, generator=g)
        module[1].num_batches_tracked.fill_(seed + 3)
    return module


EVALUATIONS: dict[str, Callable[[nn.Module, dict[str, Tensor]], Tensor]] = {
    "pure_function": lambda net, state: pure_function(net)(state, X),
    "function_at": lambda net, state: (lambda f, p: f(p, X))(*function_at(net, state)),
    "Linearized": lambda net, state: (lambda lin: lin(lin.origin, X))(Linearized.of(net, state)),
    "hessian_norm": lambda net, state: hessian_norm(net, X[:1], parameters=state, output=0).norms,
    "last_features": lambda net, state: last_features(net)(state, X),
    "empirical_ntk": lambda net, state: empirical_ntk(net, X, parameters=state),
    "a run's end": lambda net, state: descent(net, state, 0).final_outputs,
}


def descent(net: nn.Module, state: dict[str, Tensor], n_steps: int, **options: object):
    problem = regression_problem(X, randn(5, 2, seed=9))
    return gradient_descent(pure_function(net), state, problem, learning_rate=0.01, n_steps=n_steps, **options)


@pytest.mark.parametrize("name", EVALUATIONS)
@settings(max_examples=4)
@given(seed=integers(0, 2**16))
def test_a_state_dict_is_the_module_it_came_from(name: str, seed: int) -> None:
    """Whatever module of this kind it is evaluated with."""
    net, other = normed(seed), normed(seed + 1)
    evaluate = EVALUATIONS[name]
    torch.testing.assert_close(evaluate(net, other.state_dict()), evaluate(other, other.state_dict()))
    own = {name: value.clone() for name, value in net.state_dict().items()}
    assert not torch.allclose(evaluate(net, own), evaluate(net, other.state_dict()))
    assert all(torch.equal(value, own[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize("name", ["function_at", "Linearized", "hessian_norm", "empirical_ntk"])
def test_parameters_without_their_statistics_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="parameters " + HALF):
        EVALUATIONS[name](normed(0), parameters_of(normed(1)))
    kept = {**normed(0).state_dict(), **parameters_of(normed(1))}
    EVALUATIONS[name](normed(0), kept)


@pytest.mark.parametrize("name", EVALUATIONS)
def test_half_of_the_statistics_are_refused(name: str) -> None:
    state = dict(normed(1).state_dict())
    del state["1.running_var"]
    with pytest.raises(InputError, match=r"parameters hold no 1.running_var, which changes in training"):
        EVALUATIONS[name](normed(0), state)


def test_a_function_of_parameters_keeps_the_statistics_it_was_made_with() -> None:
    net = normed(0)
    f, before, parameters = pure_function(net), net(X).detach(), parameters_of(net)
    net[1].running_mean.add_(1.0)
    assert torch.equal(f(parameters, X), before)
    assert not torch.equal(f({**parameters, **dict(net.named_buffers())}, X), before)


def test_a_given_state_is_never_written_to() -> None:
    net, state = normed(0).train(), copy.deepcopy(normed(1).state_dict())
    before = {name: value.clone() for name, value in state.items()}
    pure_function(net)(state, X)
    assert all(torch.equal(value, before[name]) for name, value in state.items())


def test_tied_weights_stand_in_a_state_dict_twice() -> None:
    net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Tanh(), nn.Linear(3, 3, bias=False)).double()
    net[2].weight = net[0].weight
    other = copy.deepcopy(net)
    other[0].weight.data.mul_(2)
    state = other.state_dict()
    assert len(state) == 2
    for f, parameters in ((pure_function(net), state), function_at(net, state)):
        assert torch.equal(f(parameters, X), other(X))
    assert list(Linearized.of(net, state).origin) == ["0.weight"]


def test_names_that_wrappers_give() -> None:
    net, other = normed(0), normed(1)
    of_parallel = nn.DataParallel(other).state_dict()
    f, parameters = function_at(net, of_parallel)
    assert torch.equal(f(parameters, X), other(X))
    parameters, buffers = at_point(net, of_parallel)
    assert [*parameters, *buffers] == [*dict(net.named_parameters()), *dict(net.named_buffers())]
    assert statistics_of(net) == ["1.running_mean", "1.running_var"]
    assert statistics_of(MLP(3, 4, 2)) == []


def test_copies_of_the_point_are_handed_out() -> None:
    net, state = normed(0), normed(1).state_dict()
    f, parameters = function_at(net, state)
    before = f(parameters, X)
    for value in state.values():
        value.zero_()
    assert torch.equal(f(parameters, X), before)


@pytest.mark.parametrize(
    "state, message",
    [
        ({}, r"^parameters hold no 0.weight, 0.bias, 1.weight and 3 more; pass the state_dict"),
        (nn.Linear(1, 1), r"^parameters must be Mapping, got Linear; pass what module.state_dict\(\) gives"),
        ({**normed(0).state_dict(), "x": X}, r"^parameters hold x, which the net has not"),
        ({**normed(0).state_dict(), "0.bias": X}, r"^the net's parameter 0.bias has shape \(4,\), got \(5, 3\)"),
        ({**normed(0).state_dict(), "1.running_var": X}, r"^the net's buffer 1.running_var has shape \(4,\)"),
    ],
)
def test_states_of_other_modules_are_refused(state: object, message: str) -> None:
    for take in (at_point, function_at, Linearized.of):
        with pytest.raises(InputError, match=message):
            take(normed(0), state)


# --- linearisation --------------------------------------------------------------------------------------------------


def test_the_linearization_around_a_checkpoint_is_its_tangent() -> None:
    net, start, end = normed(0), normed(1), normed(2)
    lin = Linearized.of(net, start.state_dict())
    moved = {name: p + 0.1 * end.get_parameter(name).detach() for name, p in lin.origin.items()}
    same = Linearized.of(start)
    torch.testing.assert_close(lin(moved, X), same(moved, X))
    torch.testing.assert_close(lin.kernel_product(X, X[:, :2]), same.kernel_product(X, X[:, :2]))


def test_a_linearization_keeps_the_statistics_of_its_origin() -> None:
    lin, end = Linearized.of(normed(0)), normed(1).state_dict()
    with pytest.raises(InputError, match=r"hold another 1.running_mean than the point of linearisation.*pass the par"):
        lin(end, X)
    with pytest.raises(InputError, match=r"hold another 1\.running_mean"):
        lin.change(end, X)
    alone = {name: end[name] for name in lin.origin}
    assert torch.equal(lin(alone, X), lin({**end, **lin.buffers}, X))


# --- descent --------------------------------------------------------------------------------------------------------


def test_a_descent_from_a_state_dict_moves_the_parameters_and_hands_on_the_statistics() -> None:
    net, start = normed(0), normed(1)
    state = start.state_dict()
    options = {
        "record_at": (0, 3),
        "recorders": {
            "kernel": lambda now: empirical_ntk(net, X, parameters=now.parameters),
            "way": distance_from(state),
        },
        "keep_parameters": True,
    }
    run = descent(net, state, 3, **options)
    plain = descent(start, parameters_of(start), 3)
    torch.testing.assert_close(run.final_outputs, plain.final_outputs)
    assert run.final_parameters.keys() == state.keys()
    for name in dict(net.named_buffers()):
        assert torch.equal(run.final_parameters[name], state[name])
    torch.testing.assert_close(
        run.records["kernel"][-1], empirical_ntk(start, X, parameters=run.final_parameters), rtol=1e-9, atol=1e-9
    )
    assert run.records["way"][-1] > 0
    net.load_state_dict(run.final_parameters)
    torch.testing.assert_close(net(X), run.final_outputs)


def test_a_linearized_descent_from_a_state_dict() -> None:
    net, state = normed(0), normed(1).state_dict()
    problem = regression_problem(X, randn(5, 2, seed=9))
    lin = Linearized.of(net, state)
    runs = [gradient_descent(lin, start, problem, learning_rate=0.01, n_steps=3) for start in (state, dict(lin.origin))]
    assert torch.equal(runs[0].final_outputs, runs[1].final_outputs)
    with pytest.raises(InputError, match=r"hold another 1\.running_mean"):
        gradient_descent(lin, normed(2).state_dict(), problem, learning_rate=0.01, n_steps=3)


def test_contrastive_descent_of_a_net_with_statistics() -> None:
    net = normed(0)
    pairs = make_pairs(X, views=GaussianNoise(0.1), negatives=0, generator=generator())
    problem = contrastive_problem(pairs, nt_xent)
    run = gradient_descent(pure_function(net), normed(1).state_dict(), problem, learning_rate=0.01, n_steps=10)
    assert run.losses[-1] < run.losses[0]


def test_the_gap_to_the_linearization_of_a_net_with_statistics() -> None:
    gap = linearization_gap(normed(0), regression_problem(X, randn(5, 2, seed=9)), learning_rate=0.001, n_steps=3)
    assert gap.kernel_drift[0] == 0
    assert 0 < gap.kernel_drift[-1] < gap.kernel_norm


# --- certificates ---------------------------------------------------------------------------------------------------


def test_a_certificate_between_two_checkpoints_of_the_same_statistics() -> None:
    net, start, end = normed(0), normed(1), normed(2).state_dict()
    parameters = {name: p + 0.01 * end[name] for name, p in parameters_of(start).items()}
    moved = {**start.state_dict(), **parameters}
    found = ntk_certificate(net, start.state_dict(), moved, X)
    change = empirical_ntk(net, X, parameters=moved) - empirical_ntk(start, X)
    torch.testing.assert_close(found.change, change)
    assert found.holds
    with pytest.raises(InputError, match=r"start and end hold different 1.running_mean, but the chord"):
        ntk_certificate(net, start.state_dict(), {**end, **parameters}, X)
    with pytest.raises(InputError, match="start " + HALF):
        ntk_certificate(net, parameters_of(start), moved, X)


def test_a_certificate_of_some_parameters_leaves_the_others_to_the_module() -> None:
    net = normed(0)
    start = {"3.weight": net[3].weight.detach()}
    found = ntk_certificate(net, start, {"3.weight": start["3.weight"] + 0.1}, X)
    assert found.holds
    assert found.radius == pytest.approx(0.1 * 8**0.5)
