"""Constants found in a run against their definitions, and the table of slopes against a numerical search."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis.strategies import integers, sampled_from

from kontrast.data import Pairs
from kontrast.errors import InputError
from kontrast.lazy import constants_of
from kontrast.lazy.constants import assumptions_of
from kontrast.losses import Linear, LogSoftmax, Softmax
from kontrast.nets import ACTIVATIONS, MLP, Activation, leaky_relu, slopes_of
from kontrast.nets.slopes import largest
from tests.cases import generator, randn


def some_pairs(d: int = 5, n: int = 4, *, seed: int = 0, n_positives: int = 1) -> Pairs:
    index = torch.arange(n)
    positive = index[:, None].repeat(1, n_positives) + n
    return Pairs(randn(2 * n, d, seed=seed), index, positive, index.roll(1)[:, None])


def net(width: int = 32, *, activation: str = "tanh", d: int = 5, **options: Any) -> MLP:
    return MLP(d, width, 3, activation=activation, generator=generator(1), dtype=torch.float64, **options)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_table_of_slopes_agrees_with_a_search(name: str) -> None:
    lipschitz, smoothness = slopes_of(name)
    act = ACTIVATIONS[name]
    assert largest(act.first) == pytest.approx(lipschitz, rel=1e-9)
    if act.smooth:
        assert largest(act.second) == pytest.approx(smoothness, rel=1e-9)
    else:
        assert smoothness == math.inf


def test_slopes_of_others() -> None:
    assert slopes_of(leaky_relu(1.0)) == (1.0, 0.0)
    assert slopes_of("leaky_relu:0.3") == (1.0, math.inf)
    act = Activation("square", torch.square, lambda a: 3 * torch.cos(a), lambda a: -3 * torch.sin(a), smooth=True)
    assert slopes_of(act) == pytest.approx((3.0, 3.0), rel=1e-9)


def test_constants_are_their_definitions() -> None:
    model, pairs = net(), some_pairs()
    k = constants_of(model, pairs, learning_rate=0.1, delta=0.02)
    (V,), W = model.layers()
    x = pairs.x
    assert k.c_in == float(x.abs().max())
    assert k.c_norm == pytest.approx(max(float(row.norm()) for row in x))
    assert k.c_theta * math.log(32) == pytest.approx(max(float(V.abs().max()), float(W.abs().max())))
    assert k.c_s * math.sqrt(32) == pytest.approx(max(float(torch.linalg.svdvals(A)[0]) for A in (V, W)))
    b2 = [W[:, z] / math.sqrt(32) for z in range(3)]
    assert k.s_0 == pytest.approx(max(math.sqrt(32) * float(b.abs().max() / b.norm()) for b in b2))
    b1 = [torch.func.jacrev(lambda r: model(r[None])[0])(row).detach() for row in x]  # (3, 5) each
    assert k.s_0_input == pytest.approx(
        max(math.sqrt(32) * float(b.abs().max() / b.norm()) for rows in b1 for b in rows), rel=1e-10
    )
    assert k.s_0_input >= math.sqrt(32 / 5)  # Assumption 6 as printed cannot have a constant s_0
    assert (k.n_pairs, k.c_l, k.d_in, k.d_out, k.width, k.n_anchors) == (2, 1.0, 5, 3, 32, 4)
    assert k.value_at_zero == 0.0
    assert constants_of(net(activation="sigmoid"), pairs, learning_rate=0.1).value_at_zero == 0.5


@given(
    seed=integers(0, 2**16),
    link=sampled_from([Linear(), Softmax(), Softmax(0.2), LogSoftmax(), LogSoftmax(0.3)]),
    n_positives=sampled_from([1, 3]),
    weighted=sampled_from([False, True]),
)
def test_c_l_bounds_every_pair_and_their_sum(seed: int, link: Linear, n_positives: int, weighted: bool) -> None:
    pairs = some_pairs(n_positives=n_positives)
    weight = None
    if weighted:
        weight = torch.rand(4, 4, generator=generator(seed), dtype=torch.float64)
        pairs = Pairs(pairs.x, pairs.anchor, pairs.positive, torch.arange(4)[None], weight)
    k = constants_of(net(), pairs, learning_rate=0.1, link=link)
    n_negatives = pairs.n_negatives
    s = 4 * randn(4, n_positives + n_negatives, seed=seed)
    slopes = torch.func.grad(lambda s: link(s[:, :n_positives], s[:, n_positives:], weight).sum())(s).abs()
    assert float(slopes.max()) <= k.c_l * (1 + 1e-12)
    assert float(slopes.sum(1).max()) <= k.c_l * k.n_pairs * (1 + 1e-12)


def test_assumptions_tell_what_fails() -> None:
    judged = {a.name: a for a in assumptions_of(constants_of(net(activation="relu"), some_pairs(), learning_rate=0.1))}
    assert not judged["5"].holds
    assert "β_φ = inf" in judged["5"].detail
    assert "relu" in judged["5"].detail
    assert all(judged[name].holds for name in "12346")
    wide = {a.name: a.holds for a in assumptions_of(constants_of(net(512), some_pairs(), learning_rate=0.1))}
    assert wide["5"]
    assert not wide["6, b₁"]


def test_refuses_what_paper_a_does_not_bound() -> None:
    with pytest.raises(InputError, match="depth=1"):
        constants_of(net(depth=2), some_pairs(), learning_rate=0.1)
    with pytest.raises(InputError, match="a 'mup' net has √width there; use parametrization='ntk'"):
        constants_of(net(parametrization="mup"), some_pairs(), learning_rate=0.1)
    with pytest.raises(InputError, match="learning_rate"):
        constants_of(net(), some_pairs(), learning_rate=0.0)
    with pytest.raises(InputError, match="Linear, Softmax"):
        constants_of(net(), some_pairs(), learning_rate=0.1, link=object())  # type: ignore[arg-type]
