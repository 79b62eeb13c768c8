"""A stack computes what each of its networks computes alone, and so do the linearised twins and all gradients."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import integers, sampled_from
from torch import nn
from torch.func import functional_call, jvp

from kontrast.nets import MLP, PARAMETRIZATIONS, one_run, parameters_of, stack_of
from kontrast.nets.stacks import LoopedModules, StackedMLP
from tests.cases import DTYPES, TOLERANCE, generator, randn

S, R, N, D, WIDTH, Z = 2, 3, 4, 5, 6, 3
SEEDS = integers(0, 2**16)
LOOSE = {torch.float64: TOLERANCE[torch.float64], torch.float32: {"rtol": 2e-4, "atol": 2e-5}}


def nets_of(seed, dtype, **options):
    return [MLP(D, WIDTH, Z, generator=generator(seed + s), dtype=dtype, **options) for s in range(S)]


def moved(origin, seed, dtype):
    """A step of its own for every start and run."""
    return {
        name: 0.3 * randn(S, R, *p.shape[2:], seed=seed + i, dtype=dtype) for i, (name, p) in enumerate(origin.items())
    }


def close(actual, expected):
    torch.testing.assert_close(actual, expected, **LOOSE[expected.dtype])


def alone(module, parameters, x):
    return functional_call(module, parameters, (x,))


def twin_alone(module, step, x):
    value, slope = jvp(lambda p: functional_call(module, p, (x,)), (parameters_of(module),), (step,))
    return value + slope


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS)
@settings(max_examples=6)
@given(
    seed=SEEDS, depth=integers(1, 2), activation=sampled_from(["relu", "tanh", "gelu", "erf", "sigmoid", "leaky_relu"])
)
def test_stacked_looped_and_single_networks_are_the_same(dtype, parametrization, seed, depth, activation):
    nets = nets_of(seed, dtype, depth=depth, activation=activation, parametrization=parametrization)
    stack, looped = StackedMLP(nets), LoopedModules(nets)
    x, steps = randn(S, N, D, seed=seed, dtype=dtype), moved(stack.origin, seed, dtype)
    for name, p in stack.origin.items():
        assert p.shape[:2] == (S, 1)
        assert torch.equal(p, looped.origin[name])
    there = {name: p + steps[name] for name, p in stack.origin.items()}
    outputs, twins = stack.outputs(there, x), stack.twin_outputs(steps, x)
    assert outputs.shape == twins.shape == (S, R, N, Z)
    close(looped.outputs(there, x), outputs)
    close(looped.twin_outputs(steps, x), twins)
    for s, r in itertools.product(range(S), range(R)):
        close(alone(nets[s], one_run(there, s, r), x[s]), outputs[s, r])
        close(twin_alone(nets[s], one_run(steps, s, r), x[s]), twins[s, r])


@settings(max_examples=6)
@given(seed=SEEDS, depth=integers(1, 2), parametrization=sampled_from(PARAMETRIZATIONS))
def test_gradients_are_each_runs_own(seed, depth, parametrization):
    nets = nets_of(seed, torch.float64, depth=depth, activation="tanh", parametrization=parametrization)
    x, weight = randn(S, N, D, seed=seed), randn(S, R, N, Z, seed=seed + 1)
    single = {"outputs": alone, "twin_outputs": twin_alone}
    for kind, method in itertools.product((StackedMLP, LoopedModules), single):
        stack = kind(nets)
        steps = moved(stack.origin, seed, torch.float64)
        given = steps if method == "twin_outputs" else {k: p + steps[k] for k, p in stack.origin.items()}
        leaves = {name: p.requires_grad_() for name, p in given.items()}
        found = torch.autograd.grad((getattr(stack, method)(leaves, x) * weight).sum(), list(leaves.values()))
        for s, r in itertools.product(range(S), range(R)):
            mine = {name: p.detach().requires_grad_() for name, p in one_run(leaves, s, r).items()}
            own = torch.autograd.grad((single[method](nets[s], mine, x[s]) * weight[s, r]).sum(), list(mine.values()))
            for part, wanted in zip(found, own, strict=True):
                close(part[s, r], wanted)


@given(seed=SEEDS)
@settings(max_examples=4)
def test_the_twin_is_the_network_at_the_origin_and_its_error_falls_with_the_square_of_the_step(seed):
    nets = nets_of(seed, torch.float64, activation="tanh", depth=2)
    for stack in (StackedMLP(nets), LoopedModules(nets)):
        x, steps = randn(S, N, D, seed=seed), moved(stack.origin, seed, torch.float64)
        errors = []
        for size in (0.0, 1e-2, 1e-3):
            small = {name: size * p for name, p in steps.items()}
            there = {name: p + small[name] for name, p in stack.origin.items()}
            errors.append(float((stack.outputs(there, x) - stack.twin_outputs(small, x)).norm()))
        assert errors[0] < 1e-12
        assert 50 < errors[1] / errors[2] < 200


def test_images_are_rows_to_an_mlp_and_any_other_module_is_looped():
    nets = [MLP(4, 3, 2, generator=generator(s), dtype=torch.float64) for s in range(S)]
    images = randn(S, N, 2, 2)
    stack = stack_of(nets)
    assert isinstance(stack, StackedMLP)
    close(stack.outputs(stack.origin, images), stack.outputs(stack.origin, images.flatten(2)))
    convs = [nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten()).double() for _ in range(S)]
    assert isinstance(stack_of(convs), LoopedModules)
    seen = stack_of(convs).outputs(stack_of(convs).origin, images.unsqueeze(2))
    for s in range(S):
        close(seen[s, 0], convs[s](images[s].unsqueeze(1)).detach())


def test_the_stack_keeps_its_start_when_the_network_goes_on():
    for kind in (StackedMLP, LoopedModules):
        nets, x = nets_of(1, torch.float64), randn(S, N, D)
        stack = kind(nets)
        before = stack.outputs(stack.origin, x)
        with torch.no_grad():
            nets[0].output.add_(1.0)
        assert torch.equal(stack.outputs(stack.origin, x), before)
