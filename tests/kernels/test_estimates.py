"""Estimated traces against the mean over the same directions of the whole kernel, and over many seeds."""

from __future__ import annotations

import copy
import math
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import integers
from scipy import stats
from torch import Tensor, nn

from kontrast.errors import InputError
from kontrast.kernels import KernelEstimate, empirical_ntk_trace, empirical_ntk_trace_estimate
from kontrast.kernels.projections import random_directions
from kontrast.nets import MLP
from tests.cases import DTYPES, generator, randn
from tests.kernels.networks import Bert, of_type, ready, rows_for
from tests.kernels.test_sketches import AGREEMENT, ALL, Spread, least_memory, network, rows_of
from tests.reference import ntk

GROUPS = 8


def deep(n_outputs: int) -> nn.Module:
    """Of its end no sum over outputs is known."""
    layers = nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, n_outputs), nn.Softmax(1)
    return ready(nn.Sequential(*layers))


def over_directions(module: nn.Module, x: Tensor, y: Tensor, directions: int, seed: int) -> KernelEstimate:
    """v·K v for each direction v, and what eight means of them say of their mean."""
    K = ntk.empirical_ntk(module, x, y)
    c = K.shape[2]
    groups = random_directions(c, directions, seed).tensor_split(GROUPS)
    means = torch.stack([torch.einsum("qi,nmij,qj->nm", V, K, V) / len(V) for V in groups])
    return KernelEstimate(means.mean(0), means.std(0) * ((1 - directions / c) / GROUPS) ** 0.5)


def assert_alike(found: KernelEstimate, expected: KernelEstimate, tolerance: float) -> None:
    off = tolerance * float(expected.value.abs().max())
    torch.testing.assert_close(found.value.double(), expected.value, rtol=0, atol=off)
    torch.testing.assert_close(found.error.double(), expected.error, rtol=0, atol=off)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["convolutions", "ResNet", "encoder", "BERT", "weight norm", "tied", "opaque", "MLP"])
def test_it_is_the_mean_over_directions(name: str, dtype: torch.dtype) -> None:
    module, x, y = Spread(network(name), 24), rows_of(name, 3), rows_for(ALL[name][1], 2, seed=2)
    symmetric, across = over_directions(module, x, x, 19, 4), over_directions(module, x, y, 19, 4)
    module, x, y = module.to(dtype), of_type(x, dtype), of_type(y, dtype)
    for rows, expected in (((x,), symmetric), ((x, y), across)):
        found = empirical_ntk_trace_estimate(module, *rows, directions=19, seed=4)
        assert found.value.dtype == found.error.dtype == dtype
        assert_alike(found, expected, AGREEMENT[dtype])


@settings(max_examples=10)
@given(seed=integers(0, 2**16), directions=integers(16, 39))
def test_blocks_of_rows_share_their_directions(seed: int, directions: int) -> None:
    module, x = deep(40), randn(6, 5)
    whole = empirical_ntk_trace_estimate(module, x, directions=directions, seed=seed)
    for name, kernel in (("value", whole.value), ("error", whole.error)):
        torch.testing.assert_close(kernel, kernel.mT)
        assert (kernel.diagonal() > 0).all(), name
    part = empirical_ntk_trace_estimate(module, x[:2], x[2:], directions=directions, seed=seed)
    assert_alike(part, KernelEstimate(whole.value[:2, 2:], whole.error[:2, 2:]), 1e-10)


@pytest.mark.parametrize("module", [deep(16), deep(3), MLP(5, 8, 16, depth=2, generator=generator(0)).double()])
@pytest.mark.parametrize("directions", [16, 32])
def test_as_many_directions_as_outputs_are_exact(module: nn.Module, directions: int) -> None:
    x, y = randn(4, 5), randn(3, 5, seed=2)
    for dtype in DTYPES:
        net, rows = copy.deepcopy(module).to(dtype), (x.to(dtype), y.to(dtype))
        for some in (rows[:1], rows):
            found = empirical_ntk_trace_estimate(net, *some, directions=directions)
            assert torch.equal(found.value, empirical_ntk_trace(net, *some))
            assert torch.equal(found.error, torch.zeros_like(found.value))


def test_a_seed_is_a_set_of_directions() -> None:
    module, x = deep(40), randn(5, 5)
    torch.manual_seed(1)
    first, stream = empirical_ntk_trace_estimate(module, x, seed=3), torch.get_rng_state()
    torch.manual_seed(2)
    again, other = (empirical_ntk_trace_estimate(module, x, seed=seed) for seed in (3, 4))
    assert torch.equal(first.value, again.value)
    assert torch.equal(first.error, again.error)
    assert not torch.allclose(first.value, other.value, rtol=1e-3)
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), stream)


@pytest.mark.parametrize("name", ["convolutions", "BERT", "opaque"])
def test_blocks_of_any_size_and_a_module_left_alone(name: str) -> None:
    module, x = Spread(network(name), 24).eval(), rows_of(name, 3)
    before = [value.clone() for value in (*module.parameters(), *module.buffers())]
    expected = empirical_ntk_trace_estimate(module, x, directions=16)
    least = least_memory(lambda memory: empirical_ntk_trace_estimate(module, x, directions=16, memory=memory))
    for memory in (least, 3 * least):
        assert_alike(empirical_ntk_trace_estimate(module, x, directions=16, memory=memory), expected, 1e-10)
    after = (*module.parameters(), *module.buffers())
    assert all(torch.equal(mine, its) for mine, its in zip(after, before, strict=True))
    assert all(p.grad is None for p in module.parameters())
    assert not any(part.training for part in module.modules())


def test_some_parameters_at_another_point_and_one_output_of_several() -> None:
    x = rows_of("BERT")
    several = Spread(ready(Bert(lambda **outputs: outputs["pooler_output"])))
    chosen = copy.deepcopy(several)
    ready(chosen, 5)
    forward = several.forward
    several.forward = lambda ids: {"mean": ids.double(), "last": forward(ids)}  # type: ignore[method-assign]
    options: dict[str, Any] = {"only": ["inside.value.weight", "inside.words"], "output": "last"}
    found = empirical_ntk_trace_estimate(several, x, directions=16, parameters=chosen.state_dict(), **options)
    rest = [p for name, p in chosen.named_parameters() if name not in ("inside.value.weight", "inside.words.weight")]
    for p in rest:
        p.requires_grad_(False)
    assert_alike(found, over_directions(chosen, x, x, 16, 0), 1e-10)


# --- over many seeds ------------------------------------------------------------------------------------------------

N_SEEDS = 80
SETTINGS = [(40, 20), (40, 32), (120, 16)]  # outputs, directions


@cache
def drawn(n_outputs: int, directions: int) -> tuple[Tensor, Tensor]:
    """How far estimates are off, and their errors, in units of the kernel's mean, (seeds, n, n)."""
    module, x = deep(n_outputs), randn(6, 5)
    K = empirical_ntk_trace(module, x)
    found = [empirical_ntk_trace_estimate(module, x, directions=directions, seed=seed) for seed in range(N_SEEDS)]
    return torch.stack([each.value - K for each in found]) / K.mean(), torch.stack([e.error for e in found]) / K.mean()


@pytest.mark.parametrize("n_outputs, directions", SETTINGS)
def test_estimates_are_unbiased(n_outputs: int, directions: int) -> None:
    off, _ = drawn(n_outputs, directions)
    z = off.mean(0) / off.std(0) * N_SEEDS**0.5
    assert float(z.abs().max()) < 4  # of 21
    assert float(off.std(0).mean()) < 0.3


@pytest.mark.parametrize("n_outputs, directions", SETTINGS)
def test_errors_are_as_large_as_they_say(n_outputs: int, directions: int) -> None:
    off, claimed = drawn(n_outputs, directions)
    ratio = claimed.square().mean(0).sqrt() / off.square().mean(0).sqrt()
    assert 1 / 1.2 < float(ratio.median()) < 1.2
    assert 1 / 1.5 < float(ratio.min()) < float(ratio.max()) < 1.5
    within = off.abs() < float(stats.t.ppf(0.975, GROUPS - 1)) * claimed
    assert 0.9 < float(within.double().mean()) < 0.99


def test_deep_perceptrons_have_a_plan_of_their_own() -> None:
    module, x = MLP(5, 12, 40, depth=3, generator=generator(0)).double(), randn(6, 5)
    K = empirical_ntk_trace(module, x)
    found = [empirical_ntk_trace_estimate(module, x, directions=16, seed=seed) for seed in range(N_SEEDS)]
    off, claimed = torch.stack([each.value - K for each in found]), torch.stack([each.error for each in found])
    assert float((off.mean(0) / off.std(0)).abs().max()) < 4 / N_SEEDS**0.5
    assert 1 / 1.4 < float((claimed.square().mean() / off.square().mean()).sqrt()) < 1.4


# --- bad input, and a GPU -------------------------------------------------------------------------------------------

NET, X = deep(40), randn(4, 5)
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"directions": 15}, "^directions must be a whole number of at least 16, got 15$"),
    ({"directions": True}, "^directions must be a whole number of at least 16, got True$"),
    ({"directions": 32.0}, r"^directions must be a whole number of at least 16, got 32\.0$"),
    ({"seed": -1}, "^seed must be a whole number of at least 0, got -1$"),
    ({"seed": 0.5}, r"^seed must be a whole number of at least 0, got 0\.5$"),
    ({"memory": 1}, r"^memory is too small: one row of tangents needs .*; pass memory=\d+ or more$"),
    ({"only": "7"}, "^only holds '7', which is no parameter nor a prefix of one"),
    ({"x": X[:0]}, "^x must be a tensor with at least one row"),
    ({"y": X.float()}, r"^y is torch.float32 on cpu but the net is torch.float64 on cpu; convert with y.to"),
    ({"seed": 2**64}, "^seed must be a whole number of at most 9223372036854775807, got 18446744073709551616$"),
    (
        {"parameters": {name: p * math.nan for name, p in NET.named_parameters()}},
        "^parameters hold NaN or infinite numbers in ",
    ),
    ({"x": X * math.nan}, "^x holds NaN or infinite numbers, first in row 0"),
    ({"module": NET.state_dict()}, "^module must be an nn.Module, got OrderedDict; wrap a function in a module$"),
]


@pytest.mark.parametrize("given, message", REFUSED)
def test_what_cannot_be_estimated_is_refused_in_a_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as refusal:
        empirical_ntk_trace_estimate(**{"module": NET, "x": X, **given})
    assert "\n" not in str(refusal.value)


@pytest.mark.gpu
def test_a_gpu_draws_the_same_directions() -> None:
    module = Spread(network("convolutions", torch.float32))
    x, y = (rows_for((2, 4, 4), n, dtype=torch.float32, seed=n) for n in (8, 5))
    for rows in ((x,), (x, y)):
        here = empirical_ntk_trace_estimate(module.cpu(), *rows, directions=24, seed=5)
        there = empirical_ntk_trace_estimate(module.cuda(), *(r.cuda() for r in rows), directions=24, seed=5)
        assert there.value.is_cuda
        assert there.error.is_cuda
        for mine, its in ((here.value, there.value), (here.error, there.error)):
            torch.testing.assert_close(its.cpu(), mine, rtol=0, atol=1e-4 * float(here.value.abs().max()))
