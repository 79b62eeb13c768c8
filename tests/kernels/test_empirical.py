from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, booleans, composite, integers, sampled_from
from scipy.sparse.linalg import aslinearoperator, eigsh
from torch import Tensor, nn
from torch.nn import functional as F

from kontrast.errors import InputError
from kontrast.kernels import (
    NTKOperator,
    empirical_ntk,
    empirical_ntk_components,
    empirical_ntk_diagonal,
    empirical_ntk_mean,
    empirical_ntk_trace,
)
from kontrast.kernels.network import network_of
from kontrast.kernels.planning import Form, Kind, Question
from kontrast.kernels.tangents import plan_for
from kontrast.nets import ACTIVATIONS, MLP, PARAMETRIZATIONS, parameters_of
from tests.cases import DTYPES, generator, randn
from tests.reference import ntk

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
AGREEMENT = {torch.float64: 1e-10, torch.float32: 2e-4}  # any module, relative to the largest entry
KERNELS = [empirical_ntk, empirical_ntk_trace, empirical_ntk_mean, empirical_ntk_components]


# --- modules --------------------------------------------------------------------------------------------------------


class Scaled(nn.Module):
    """A user's own module: no layer of torch.nn, a scale, a shift, products in three spellings."""

    def __init__(self) -> None:
        super().__init__()
        self.V = nn.Parameter(torch.empty(6, 4))
        self.U = nn.Parameter(torch.empty(6, 5))
        self.W = nn.Parameter(torch.empty(3, 5))
        self.scale, self.shift = nn.Parameter(torch.empty(6)), nn.Parameter(torch.empty(1, 5))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(x @ self.V.T) * self.scale
        h = F.silu(torch.mm(h, self.U) + self.shift)
        return F.linear(h, self.W) * 0.5


class Shared(nn.Module):
    """One layer used twice, and one of its biases once more."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.layer(torch.tanh(self.layer(x))) + self.layer.bias))


class BothWays(nn.Module):
    """A matrix and its transpose, as in a linear autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.empty(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.W.mT) @ self.W


class Tokens(nn.Module):
    """Embedding, a layer at every position, their mean."""

    def __init__(self, *, tied: bool, sequence_first: bool = False) -> None:
        super().__init__()
        self.sequence_first = sequence_first
        self.embed, self.mix = nn.Embedding(7, 4, padding_idx=None if tied else 0), nn.Linear(4, 4)
        self.out = nn.Linear(4, 7 if tied else 3, bias=not tied)
        if tied:
            self.out.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        ids = ids.mT if self.sequence_first else ids
        return self.out(torch.relu(self.mix(self.embed(ids))).mean(0 if self.sequence_first else 1))


class Transformer(nn.Module):
    """An encoder block over tokens, batch first or sequence first."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.embed = nn.Embedding(7, 4)
        self.block = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=batch_first)
        self.out = nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids)
        h = self.block(h) if self.batch_first else self.block(h.transpose(0, 1)).transpose(0, 1)
        return self.out(h[:, 0])


class Attention(nn.Module):
    """Cross attention with queries of its own: slices of one weight, rows that share a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.empty(1, 2, 4))
        self.attend, self.out = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        h, _ = self.attend(self.query.expand(len(x), -1, -1), x, x, need_weights=False)
        return self.out(h.flatten(1))


class Recurrent(nn.Module):
    """Everything else: a cell that only automatic differentiation knows, by steps or whole."""

    def __init__(self, cell: str) -> None:
        super().__init__()
        self.cell = nn.GRU(3, 4, batch_first=True) if cell == "gru" else nn.RNNCell(3, 4)
        self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.cell, nn.GRU):
            return self.out(self.cell(x)[0][:, -1])
        h = x.new_zeros(len(x), 4)
        for step in x.unbind(1):
            h = self.cell(step, h)
        return self.out(h)


class Broadcast(nn.Module):
    """A layer applied to a parameter, without rows, and then to the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.positions, self.layer, self.out = nn.Parameter(torch.empty(3, 4)), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(self.positions) + self.layer(x[:, None].expand(-1, 3, -1))
        return self.out(torch.relu(h).mean(1))


class Branching(nn.Module):
    """Takes another way, with other layers, where a batch is large: no plan from two rows holds."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        if len(x) <= 2:
            return self.a(x) + self.b(x)
        return self.b(x) + self.a(x)


class Overwriting(nn.Module):
    """In-place operations on the outputs of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).relu_()
        z = self.b(h)
        z += h
        z[:, :2] *= 0.5
        return self.c(z.sigmoid_())


class Mixed(nn.Module):
    """Rows along an axis as long as another: (n, n, …) tensors, flattened both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        n, steps, _ = x.shape
        h = torch.tanh(self.a(x.transpose(0, 1).reshape(steps * n, 3)))  # (T·n, 4), rows n apart
        h = torch.tanh(self.b(h.view(steps, n, 4)))  # sequence first
        h = torch.relu(self.out(h.transpose(0, 1).reshape(n * steps, 4)))  # (n·T, 2), rows together
        return h.view(n, steps, 2).sum(1)


def initialized(module: nn.Module, seed: int, dtype: torch.dtype = torch.float64) -> nn.Module:
    """The module in eval mode with parameters and running statistics that are nothing special."""
    module = module.to(dtype).eval()
    g = generator(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(0.7 * torch.randn(p.shape, generator=g, dtype=torch.float64))
        for b in module.buffers():
            if b.is_floating_point():
                b.copy_(0.5 + torch.rand(b.shape, generator=g, dtype=torch.float64))
    return module


@composite
def mlps(draw: DrawFn) -> tuple[nn.Module, tuple[int, ...]]:
    """Linear layers with and without bias and normalisation, all kinds of activation, in place or not."""
    widths = [4, *draw(st.lists(sampled_from([3, 5]), min_size=0, max_size=3)), draw(sampled_from([1, 3]))]
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers.append(nn.Linear(before, after, bias=draw(booleans())))
        layers += draw(sampled_from([[], [nn.LayerNorm(after)], [nn.BatchNorm1d(after)], [nn.RMSNorm(after)]]))
        activation = draw(sampled_from([nn.ReLU(), nn.ReLU(inplace=True), nn.Tanh(), nn.GELU(), nn.Softmax(1)]))
        layers += [activation] if draw(booleans()) or after == widths[-1] else [nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers[: None if draw(booleans()) else -1]), (4,)


@composite
def convnets(draw: DrawFn) -> tuple[nn.Module, tuple[int, ...]]:
    """Two convolutions with all their options, a norm between them, and a head."""
    flat = draw(booleans())
    conv, shape = (nn.Conv1d, (2, 7)) if flat else (nn.Conv2d, (2, 6, 5))
    groups, padding = draw(sampled_from([1, 2])), draw(sampled_from([0, 1, "same", "valid"]))
    stride = 1 if padding == "same" else draw(sampled_from([1, 2]))
    dilation, mode = draw(sampled_from([1, 2])), draw(sampled_from(["zeros", "circular", "reflect"]))
    kernel = draw(sampled_from([1, 2, 3] if flat else [1, 2, (2, 1)]))
    options = {"groups": groups, "padding": padding, "stride": stride, "dilation": dilation, "padding_mode": mode}
    norm = draw(sampled_from([nn.Identity(), nn.GroupNorm(2, 4), (nn.BatchNorm1d if flat else nn.BatchNorm2d)(4)]))
    pool = (nn.AdaptiveAvgPool1d if flat else nn.AdaptiveAvgPool2d)(draw(sampled_from([1, 2])))
    head = [nn.Flatten(), nn.LazyLinear(2)]
    layers = [conv(2, 4, kernel, bias=draw(booleans()), **options), norm, nn.ReLU(), conv(4, 6, 2, groups=2), nn.Tanh()]
    net = nn.Sequential(*layers, pool, *head)
    net(torch.zeros(1, *shape))
    return net, shape


OTHERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "scaled": (Scaled, (4,)),
    "shared": (Shared, (4,)),
    "both ways": (BothWays, (4,)),
    "embedding": (lambda: Tokens(tied=False), (-5,)),
    "one token": (lambda: nn.Sequential(nn.Embedding(7, 4, padding_idx=2), nn.Tanh(), nn.Linear(4, 2)), (-0,)),
    "tied embedding": (lambda: Tokens(tied=True), (-3,)),
    "sequence first": (lambda: Tokens(tied=False, sequence_first=True), (-3,)),
    "transformer": (lambda: Transformer(batch_first=True), (-3,)),
    "sequence-first transformer": (lambda: Transformer(batch_first=False), (-3,)),
    "attention": (Attention, (3, 4)),
    "gru": (lambda: Recurrent("gru"), (3, 3)),
    "rnn cell": (lambda: Recurrent("cell"), (3, 3)),
    "broadcast": (Broadcast, (4,)),
    "branching": (Branching, (4,)),
    "overwriting": (Overwriting, (4,)),
    "mixed axes": (Mixed, (3, 3)),
    "weight norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), nn.ReLU(), nn.Linear(3, 2)),
        (4,),
    ),
}


def rows_for(shape: tuple[int, ...], n: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random rows; a shape with a minus sign means that many token ids."""
    if len(shape) == 1 and shape[0] <= 0:
        size = (n, -shape[0]) if shape[0] else (n,)
        return torch.randint(0, 7, size, generator=generator(seed))
    return randn(n, *shape, seed=seed, dtype=dtype)


def assert_all_routes_agree(module: nn.Module, x: Tensor, y: Tensor, *, dtype: torch.dtype, **options: Any) -> None:
    K, K_xx = ntk.empirical_ntk(module, x, y), ntk.empirical_ntk(module, x, x)
    trace, c = torch.einsum("nmii->nm", K), K.shape[-1]
    atol = AGREEMENT[dtype] * max(float(K.abs().max()), float(K_xx.abs().max()))

    def close(a: Tensor, b: Tensor, scale: float = 1) -> None:
        torch.testing.assert_close(a, b, rtol=0, atol=scale * atol)

    close(empirical_ntk(module, x, y, **options), K)
    close(empirical_ntk_trace(module, x, y, **options), trace, c)
    close(empirical_ntk_mean(module, x, y, **options), trace / c)
    close(empirical_ntk(module, x, **options), K_xx)
    close(empirical_ntk_trace(module, x, **options), torch.einsum("nmii->nm", K_xx), c)
    close(empirical_ntk_diagonal(module, x, **options), torch.einsum("nnij->nij", K_xx))
    names = [name for name, _ in module.named_parameters()]
    components = empirical_ntk_components(module, x, y, **options)
    assert list(components) == names
    for name in names:
        close(components[name], ntk.empirical_ntk(module, x, y, [name]))


# --- any module -----------------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(seed=integers(0, 2**16), case=mlps(), n=integers(1, 4), m=integers(1, 4), dtype=sampled_from(DTYPES))
def test_any_mlp_agrees_with_the_definition(
    seed: int, case: tuple[nn.Module, tuple[int, ...]], n: int, m: int, dtype: torch.dtype
) -> None:
    module, shape = initialized(case[0], seed, dtype), case[1]
    assert_all_routes_agree(module, rows_for(shape, n, seed, dtype), rows_for(shape, m, seed + 1, dtype), dtype=dtype)


@settings(max_examples=20)
@given(seed=integers(0, 2**16), case=convnets(), n=integers(1, 3), m=integers(1, 3), dtype=sampled_from(DTYPES))
def test_any_convnet_agrees_with_the_definition(
    seed: int, case: tuple[nn.Module, tuple[int, ...]], n: int, m: int, dtype: torch.dtype
) -> None:
    module, shape = initialized(case[0], seed, dtype), case[1]
    assert_all_routes_agree(module, rows_for(shape, n, seed, dtype), rows_for(shape, m, seed + 1, dtype), dtype=dtype)


@pytest.mark.parametrize("n, m, dtype", [(3, 4, torch.float64), (1, 2, torch.float32)])
@pytest.mark.parametrize("name", OTHERS)
def test_any_other_module_agrees_with_the_definition(name: str, n: int, m: int, dtype: torch.dtype) -> None:
    make, shape = OTHERS[name]
    module = initialized(make(), 3, dtype)
    assert_all_routes_agree(module, rows_for(shape, n, 1, dtype), rows_for(shape, m, 2, dtype), dtype=dtype)


@pytest.mark.parametrize("name", ["shared", "embedding", "transformer", "gru", "mixed axes", "scaled"])
def test_a_small_budget_gives_the_same_kernel_in_many_blocks(name: str) -> None:
    make, shape = OTHERS[name]
    module = initialized(make(), 3)
    x, y = rows_for(shape, 7, 1), rows_for(shape, 5, 2)
    with pytest.raises(InputError, match="memory is too small: one row of tangents needs") as refusal:
        empirical_ntk_components(module, x, y, memory=10)
    enough = int(str(refusal.value).rsplit("memory=")[1].split()[0])
    assert_all_routes_agree(module, x, y, dtype=torch.float64, memory=2.5 * enough)


def test_blocks_are_as_small_as_the_budget_says(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = initialized(Shared(), 0), randn(9, 4)
    seen: list[int] = []
    forward = Shared.forward

    def counted(self: Shared, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():  # passes that keep their activations
            seen.append(len(x))
        return forward(self, x)

    monkeypatch.setattr(Shared, "forward", counted)
    K = empirical_ntk(module, x)
    assert max(seen) == 9
    with pytest.raises(InputError) as refusal:
        empirical_ntk(module, x, memory=1)
    seen.clear()
    torch.testing.assert_close(
        empirical_ntk(module, x, memory=int(str(refusal.value).split("memory=")[1].split()[0])), K
    )
    assert max(seen) == 1  # the rows went one by one


def forms_of(module: nn.Module, x: Tensor, kind: Kind = Kind.FULL, n: int = 50) -> dict[tuple[str, ...], Form]:
    plan = plan_for(network_of(module), x[:2], Question(kind, n, n, components=False), name="x")
    assert not plan.layout.opaque
    return {group.names: group.form for group in plan.layout.groups}


class Repeated(nn.Module):
    """A wide layer at few positions, where features and signals are smaller than gradients."""

    def __init__(self, *, groups: int = 0) -> None:
        super().__init__()
        self.layer = nn.Conv1d(16, 20, 3, groups=groups) if groups else nn.Linear(20, 30)
        self.out = nn.Linear(40 if groups else 60, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.layer(x)).flatten(1))


@pytest.mark.parametrize(
    "module, shape, kept_as",
    [
        (Repeated(), (2, 20), {("layer.weight", "layer.bias"): Form.GRAM, ("out.weight", "out.bias"): Form.OUTPUT}),
        (Repeated(groups=2), (16, 4), {("layer.weight", "layer.bias"): Form.GRAM}),
        (
            nn.Sequential(nn.Embedding(200, 5, padding_idx=1), nn.Flatten(), nn.Linear(15, 2)),
            (-3,),
            {("0.weight",): Form.GRAM},
        ),
        (nn.Sequential(nn.Conv1d(1, 2, 2), nn.Flatten(), nn.Linear(22, 2)), (1, 12), {("0.weight",): Form.OUTER}),
    ],
)
def test_the_cheaper_form_is_chosen_and_is_right(
    module: nn.Module, shape: tuple[int, ...], kept_as: dict[tuple[str, ...], Form]
) -> None:
    module = initialized(module, 5)
    x, y = rows_for(shape, 3, 1), rows_for(shape, 2, 2)
    assert forms_of(module, x).items() >= kept_as.items()
    assert_all_routes_agree(module, x, y, dtype=torch.float64)


def test_a_weight_used_at_many_places_in_gram_form() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.out = nn.Linear(20, 20), nn.Linear(20, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(torch.tanh(self.layer(torch.sin(self.layer(x)))))

    module, x = initialized(Twice(), 1), randn(3, 20)
    assert forms_of(module, x)["layer.weight", "layer.bias"] is Form.GRAM
    assert_all_routes_agree(module, x, randn(2, 20, seed=1), dtype=torch.float64)


@pytest.mark.parametrize(
    "tail, shortcut",
    [
        ([nn.ReLU()], True),
        ([nn.Tanh(), nn.Sigmoid()], True),
        ([], True),
        ([nn.ReLU(inplace=True)], True),
        ([nn.LayerNorm(6)], False),
        ([nn.Softmax(1)], False),
    ],
)
def test_one_signal_stands_for_all_outputs_in_the_trace(tail: list[nn.Module], shortcut: bool) -> None:
    module = initialized(nn.Sequential(nn.Linear(4, 6), *tail, nn.Linear(6, 3)), 2)
    forms = forms_of(module, randn(2, 4), Kind.TRACE)
    assert (forms["0.weight", "0.bias"] is Form.HIDDEN) == shortcut
    assert_all_routes_agree(module, randn(3, 4), randn(2, 4, seed=1), dtype=torch.float64)


def test_no_shortcut_where_the_hidden_layer_has_another_reader_or_the_output_a_slope() -> None:
    class Skip(nn.Module):
        def __init__(self, way: str) -> None:
            super().__init__()
            self.way, self.a, self.b, self.side = way, nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            a = self.a(x)
            f = self.b(torch.relu(a))
            if self.way == "slope":
                return torch.tanh(f)
            if self.way == "rows":
                return f * (1 + x[:, :1] ** 2)
            return f + self.side(a)

    for way in ("slope", "rows", "reader"):
        module = initialized(Skip(way), 2)
        assert Form.HIDDEN not in forms_of(module, randn(2, 4), Kind.TRACE).values()
        assert_all_routes_agree(module, randn(3, 4), randn(2, 4, seed=1), dtype=torch.float64)


class Pooled(nn.Module):
    """A convolution whose positions are pooled before the last layer, or, wrongly alike, its channels."""

    def __init__(self, pool: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.norm, self.out, self.pool = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 3), pool

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * self.out(self.pool(torch.relu(self.norm(self.conv(x)))))


@pytest.mark.parametrize(
    "pool, by_channel",
    [
        (lambda h: h.mean((2, 3)), True),
        (lambda h: F.adaptive_avg_pool2d(h, 1).flatten(1), True),
        (lambda h: F.max_pool2d(h, 4).flatten(1), True),
        (lambda h: h.sum((2, 3)).tanh(), True),
        (lambda h: h.mean((1, 2)), False),  # leaves four columns: as many as channels
        (lambda h: h.mean((2, 3)).flip(1), False),
        (lambda h: h.mean((2, 3)) + h.amax((2, 3)), False),  # two readers
    ],
)
def test_pooled_channels_need_one_gradient_for_all_outputs(pool: Callable[[Tensor], Tensor], by_channel: bool) -> None:
    module, x = initialized(Pooled(pool), 2), randn(3, 2, 6, 6)
    for kind in Kind:
        assert (forms_of(module, x, kind)[("conv.weight",)] is Form.CHANNELS) == by_channel
    assert_all_routes_agree(module, x, randn(2, 2, 6, 6, seed=1), dtype=torch.float64)


def test_sequences_of_different_lengths() -> None:
    module = initialized(Tokens(tied=False), 1)
    x, y = rows_for((-5,), 3, 1), rows_for((-2,), 4, 2)
    torch.testing.assert_close(empirical_ntk(module, x, y), ntk.empirical_ntk(module, x, y), rtol=0, atol=1e-11)
    module = initialized(Recurrent("gru"), 1)
    x, y = randn(3, 5, 3), randn(2, 4, 3, seed=1)
    torch.testing.assert_close(empirical_ntk(module, x, y), ntk.empirical_ntk(module, x, y), rtol=0, atol=1e-11)


def test_tied_parameters_appear_once() -> None:
    module = initialized(Tokens(tied=True), 1)
    assert list(empirical_ntk_components(module, rows_for((-3,), 2, 1))) == ["embed.weight", "mix.weight", "mix.bias"]


# --- where the layer-wise route must notice that it is wrong ---------------------------------------------------------


class _Doubled(torch.autograd.Function):
    """A product that torch's function mode does not see."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, W: Tensor) -> Tensor:
        ctx.save_for_backward(x, W)
        return 2 * x @ W

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, W = ctx.saved_tensors
        return 2 * g @ W.mT, 2 * x.mT @ g


class Unseen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.W, self.out = nn.Parameter(torch.empty(4, 4)), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(_Doubled.apply(x, self.W)))


def test_the_witness_catches_a_use_that_was_not_seen() -> None:
    assert_all_routes_agree(initialized(Unseen(), 1), randn(3, 4), randn(2, 4, seed=1), dtype=torch.float64)


@pytest.mark.parametrize("name", ["sequence first", "mixed axes", "sequence-first transformer"])
def test_the_witness_catches_rows_taken_from_the_wrong_axis(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from kontrast.kernels import planning

    make, shape = OTHERS[name]
    module, x = initialized(make(), 3), rows_for(shape, 3, 5)
    network, question = network_of(module), Question(Kind.FULL, 3, 3, components=False)
    assert not plan_for(network, x[:2], question, name="x").layout.opaque
    right = planning._rows_in

    def wrong(one: Tensor, two: Tensor) -> Any:
        rows = right(one, two)
        # As if every tensor had its rows first: where T = n = 2 the shapes do not tell.
        return planning.Rows(0, len(two) // 2) if rows is not None else None

    monkeypatch.setattr(planning, "_rows_in", wrong)
    assert plan_for(network, x[:2, :2], question, name="x").layout.opaque == network.selected
    assert_all_routes_agree(module, x[:2, :2], x[1:, :2], dtype=torch.float64)


# --- subsets, other points, the module as it was ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "only, names",
    [
        (["0.weight"], ["0.weight"]),
        (["0", "4.bias"], ["0.weight", "0.bias", "4.bias"]),
        ("2", ["2.weight", "2.bias"]),
        (["4"], ["4.weight", "4.bias"]),
    ],
)
def test_a_subset_of_the_parameters(only: Any, names: list[str]) -> None:
    module = initialized(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3)), 1)
    x, y = randn(3, 4), randn(4, 4, seed=1)
    K = ntk.empirical_ntk(module, x, y, names)
    torch.testing.assert_close(empirical_ntk(module, x, y, only=only), K, rtol=0, atol=1e-11)
    trace = torch.einsum("nmii->nm", K)
    torch.testing.assert_close(empirical_ntk_trace(module, x, y, only=only), trace, rtol=0, atol=1e-11)
    assert list(empirical_ntk_components(module, x, y, only=only)) == names


def test_a_subset_of_an_mlp() -> None:
    net, x = MLP(4, 9, 2, depth=2, dtype=torch.float64), randn(3, 4)
    K = ntk.empirical_ntk(net, x, x, ["hidden.1"])
    torch.testing.assert_close(empirical_ntk(net, x, only=["hidden.1"]), K)


def test_frozen_parameters_are_no_part_of_the_kernel() -> None:
    module = initialized(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), 1)
    module[0].requires_grad_(False)
    x = randn(3, 4)
    torch.testing.assert_close(empirical_ntk(module, x), ntk.empirical_ntk(module, x, x))
    assert list(empirical_ntk_components(module, x)) == ["2.weight", "2.bias"]


def test_any_module_at_other_parameters_than_its_own() -> None:
    module, other = (initialized(Transformer(batch_first=True), seed) for seed in (1, 2))
    x = rows_for((-3,), 3, 1)
    torch.testing.assert_close(empirical_ntk(module, x, parameters=parameters_of(other)), empirical_ntk(other, x))


def test_a_parameter_that_the_forward_pass_never_uses_adds_nothing() -> None:
    module = nn.Linear(4, 2)
    module.idle = nn.Parameter(torch.ones(3))
    module = initialized(module, 1)
    components = empirical_ntk_components(module, randn(3, 4))
    assert not components["idle"].any()
    assert components["weight"].any()


@pytest.mark.parametrize("name", ["transformer", "gru", "weight norm"])
def test_the_module_is_left_as_it_was(name: str) -> None:
    make, shape = OTHERS[name]
    module = initialized(nn.Sequential(make(), nn.BatchNorm1d(2)), 3)
    module[1].train(False)
    module(rows_for(shape, 2, 0)).sum().backward()
    module.get_parameter(next(iter(dict(module.named_parameters())))).requires_grad_(False)
    before, x = copy.deepcopy(module), rows_for(shape, 3, 1)
    for p, q in zip(module.parameters(), before.parameters(), strict=True):
        q.grad = None if p.grad is None else p.grad.clone()  # which deepcopy leaves out
    copied = x.clone()
    for kernel in (*KERNELS, empirical_ntk_diagonal, NTKOperator):
        kernel(module, x)
    assert torch.equal(x, copied)
    for (name, p), q in zip(module.named_parameters(), before.parameters(), strict=True):
        assert torch.equal(p, q), name
        assert p.requires_grad == q.requires_grad
        assert (p.grad is None) == (q.grad is None)
        assert p.grad is None or torch.equal(p.grad, q.grad)
    for b, old in zip(module.buffers(), before.buffers(), strict=True):
        assert torch.equal(b, old)
    assert [part.training for part in module.modules()] == [part.training for part in before.modules()]


def test_under_no_grad_and_inference_mode() -> None:
    module = initialized(Shared(), 1)
    expected = empirical_ntk(module, randn(3, 4))
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            result, product = empirical_ntk(module, randn(3, 4)), NTKOperator(module, randn(3, 4)) @ torch.ones(6)
        torch.testing.assert_close(result, expected)
        torch.testing.assert_close(product.double(), expected.sum((1, 3)).flatten(), rtol=1e-5, atol=1e-5)


def test_results_carry_no_gradient() -> None:
    x = randn(3, 4).requires_grad_()
    for module in (initialized(Shared(), 1), MLP(4, 5, 2, dtype=torch.float64)):
        assert not empirical_ntk(module, x).requires_grad
        assert not empirical_ntk_trace(module, x).requires_grad


# --- the operator ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["scaled", "embedding", "transformer", "gru", "rnn cell", "weight norm", "attention"])
def test_the_operator_is_the_dense_kernel(name: str) -> None:
    make, shape = OTHERS[name]
    module, x = initialized(make(), 3), rows_for(shape, 5, 1)
    K = ntk.empirical_ntk(module, x, x)
    n, c = K.shape[0], K.shape[-1]
    matrix = K.permute(0, 2, 1, 3).reshape(n * c, n * c)
    operator = NTKOperator(module, x)
    assert operator.shape == matrix.shape
    v = randn(n * c, 3)
    close = {"rtol": 0, "atol": 1e-10 * float(matrix.abs().max())}
    torch.testing.assert_close(operator @ v, matrix @ v, **close)
    torch.testing.assert_close(operator @ v[:, 0], matrix @ v[:, 0], **close)
    torch.testing.assert_close(operator @ v[:, 0].view(n, c), (matrix @ v[:, 0]).view(n, c), **close)


def test_the_operator_in_blocks_on_a_subset_and_elsewhere() -> None:
    module, other = (initialized(Shared(), seed) for seed in (1, 2))
    x, v = randn(7, 4), randn(14)
    K = empirical_ntk(other, x, only=["layer"]).permute(0, 2, 1, 3).reshape(14, 14)
    with pytest.raises(InputError, match="one row of activations") as refusal:
        NTKOperator(module, x, memory=1)
    enough = int(str(refusal.value).split("memory=")[1].split()[0])
    operator = NTKOperator(module, x, parameters=parameters_of(other), only=["layer"], memory=2 * enough)
    torch.testing.assert_close(operator @ v, K @ v, rtol=0, atol=1e-11)


def test_the_operator_in_scipy() -> None:
    module, x = initialized(Scaled(), 1), randn(6, 4)
    operator = NTKOperator(module, x)
    matrix = empirical_ntk(module, x).permute(0, 2, 1, 3).reshape(18, 18).numpy()
    linear = aslinearoperator(operator)
    assert linear.dtype == np.float64
    np.testing.assert_allclose(linear @ np.eye(18), matrix, atol=1e-10)
    np.testing.assert_allclose(eigsh(linear, k=3)[0], np.linalg.eigvalsh(matrix)[-3:], rtol=1e-9)


def test_the_operator_takes_and_gives_back_other_number_types() -> None:
    module, x = initialized(Scaled(), 1, torch.float32), randn(6, 4, dtype=torch.float32)
    operator, v = NTKOperator(module, x), randn(18)
    assert operator.dtype == np.float32
    assert (operator @ v).dtype == torch.float64
    assert (operator @ v.numpy()).dtype == np.float64
    torch.testing.assert_close(operator @ v.float(), (operator @ v).float())


@pytest.mark.parametrize("v", [torch.ones(17), torch.ones(6, 2), torch.ones(18, 2, 2)])
def test_the_operator_refuses_other_shapes(v: Tensor) -> None:
    operator = NTKOperator(initialized(Scaled(), 1), randn(6, 4))
    with pytest.raises(InputError, match=r"v must be \(18,\), \(18, k\) or \(6, 3\), got shape"):
        _ = operator @ v.double()
    with pytest.raises(InputError, match="v must be Tensor or ndarray, got list"):
        _ = operator @ [1.0]


# --- bad input ------------------------------------------------------------------------------------------------------


class Returns(nn.Module):
    """Makes an output of a user's choice from that of a linear layer."""

    def __init__(self, then: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.then = nn.Linear(4, 2), then

    def forward(self, x: Tensor) -> Any:
        return self.then(self.layer(x))


def _half(module: nn.Module) -> nn.Module:
    module[1].double()
    return module


NET = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
X = torch.ones(3, 4)
NAN = torch.tensor([[0.0, 0, 0, 0], [0, 0, 0, float("nan")]])


@pytest.mark.parametrize(
    "module, x, message",
    [
        (nn.ReLU(), X, "ReLU has no parameters"),
        (nn.LazyLinear(3), X, "lazy layers without parameters yet; call it once"),
        (nn.Linear(4, 2).requires_grad_(False), X, r"all parameters are frozen.*requires_grad_\(True\)"),
        (Returns(lambda f: f[:, 0]), X, r"must return \(n, c\).* got shape \(\d,\) for \d rows; add a last axis"),
        (Returns(lambda f: f[:, None]), X, r"must return \(n, c\).* got shape \(\d, 1, 2\) for \d rows; flatten"),
        (Returns(lambda f: f.sum(0)[None]), X, r"must return \(n, c\).* got shape \(1, 2\) for \d rows"),
        (Returns(lambda f: f[:, :0]), X, r"must return \(n, c\).* got shape \(\d, 0\)"),
        (Returns(lambda f: (f, f)), X, "must return one tensor, got tuple"),
        (Returns(lambda f: f.detach()), X, r"has no gradient with respect to its parameters; remove torch.no_grad"),
        (
            NET,
            torch.ones(3, 5),
            r"cannot be evaluated on x, rows of shape \(5,\) and type torch.float32: mat1 and mat2",
        ),
        (NET, torch.ones(3, 4, dtype=torch.int64), r"x holds integers, so if its first layer needs floats pass x.to"),
        (nn.Embedding(3, 2), torch.full((2,), 3), r"cannot be evaluated on x, .*index out of range"),
        (NET, torch.ones(0, 4), r"x must be a tensor with at least one row, got torch.float32 \(0, 4\)"),
        (NET, torch.tensor(1.0), r"x must be a tensor with at least one row, got torch.float32 \(\)"),
        (NET, NAN, "x holds NaN or infinite numbers, first in row 1; remove or replace them"),
        (NET, 1 / torch.zeros(2, 4), "x holds NaN or infinite numbers, first in row 0"),
        (NET, X.double(), r"x is torch.float64 on cpu but the net is torch.float32 on cpu; convert with x.to\(device="),
        (NET, X.to("meta"), r"x is torch.float32 on meta but the net is torch.float32 on cpu"),
        (NET, [[1.0]], "x must be a tensor with at least one row, got list"),
        (
            _half(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))),
            X,
            "must have one dtype and one device",
        ),
        (nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)), X, r"BatchNorm1d '1' in train mode uses batch.*eval\(\)"),
        (
            nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2, track_running_stats=False)).eval(),
            X,
            "without running statistics uses batch statistics.*track_running_stats=True",
        ),
        (nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.1)), X, r"Dropout '1' in train mode drops .*call module.eval\(\)"),
        (nn.TransformerEncoderLayer(4, 2), X, "MultiheadAttention 'self_attn' in train mode drops"),
        (nn.Embedding(3, 2, max_norm=1.0), torch.ones(2, dtype=torch.int64), "max_norm, which rewrites its weights"),
        (Returns(lambda f: f - f.mean(0)), torch.eye(4), "another output when other rows are evaluated with it"),
        (Returns(lambda f: F.dropout(f + 5, 0.5)), torch.eye(4), "depend on each other or on chance"),
    ],
)
def test_what_has_no_kernel_is_refused(module: nn.Module, x: Any, message: str) -> None:
    torch.manual_seed(0)  # of the dropout
    for kernel in (*KERNELS, empirical_ntk_diagonal, NTKOperator):
        with pytest.raises(InputError, match=message):
            kernel(module, x)


@pytest.mark.parametrize(
    "y, message",
    [
        (torch.ones(2, 5), r"cannot be evaluated on y, rows of shape \(5,\)"),
        (torch.ones(0, 4), "y must be a tensor with at least one row"),
        (NAN, "y holds NaN"),
        (X.double(), "y is torch.float64"),
    ],
)
def test_a_bad_y_is_named(y: Tensor, message: str) -> None:
    for kernel in KERNELS:
        with pytest.raises(InputError, match=message):
            kernel(NET, X, y)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"only": ["0.weigh"]}, r"only holds '0.weigh'.*there are \['0.weight', '0.bias', '2.weight', '2.bias'\]"),
        ({"only": []}, r"only selects no parameter that trains, got \[\]"),
        ({"parameters": {}}, r"parameters hold no 0.weight, 0.bias, 2.weight and 1 more; pass the state_dict"),
        ({"parameters": nn.Linear(4, 3)}, r"parameters must be Mapping, got .*; pass what module.state_dict\(\) gives"),
        ({"parameters": {"0.weight": [1.0]}}, r"parameters\['0.weight'\] must be Tensor, got .*; pass what module"),
        ({"memory": math.inf}, "memory must be a number of bytes above 0, got inf"),
        ({"memory": 0}, "memory must be a number of bytes above 0"),
        ({"memory": 10}, "memory is too small: one row of"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    for kernel in (*KERNELS, empirical_ntk_diagonal, NTKOperator):
        with pytest.raises(InputError, match=message):
            kernel(NET, X, **options)


def test_parameters_of_another_shape_are_refused() -> None:
    other = {**parameters_of(NET), "0.bias": torch.ones(4)}
    with pytest.raises(InputError, match=r"the net's parameter 0.bias has shape \(3,\), got \(4,\)"):
        empirical_ntk(NET, X, parameters=other)


def test_a_users_own_error_keeps_its_type() -> None:
    def fail(_: Tensor) -> Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        empirical_ntk(Returns(fail), X)


# --- the papers' network --------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    seed=integers(0, 2**16),
    depth=integers(1, 3),
    width=sampled_from([3, 8, 33]),
    activation=sampled_from(list(ACTIVATIONS)),
    parametrization=sampled_from(PARAMETRIZATIONS),
    dtype=sampled_from(DTYPES),
)
def test_layerwise_ntk_equals_the_jacobian_product(
    seed: int, depth: int, width: int, activation: str, parametrization: str, dtype: torch.dtype
) -> None:
    shape = {"depth": depth, "activation": activation, "parametrization": parametrization}
    net = MLP(5, width, 3, **shape, generator=generator(seed), dtype=dtype)
    x, y = randn(4, 5, seed=seed, dtype=dtype), randn(6, 5, seed=seed + 1, dtype=dtype)
    K = ntk.empirical_ntk(net, x, y)
    scale = max(1.0, float(K.abs().max()))
    assert (empirical_ntk(net, x, y) - K).abs().max() <= TOLERANCE[dtype] * scale
    trace = torch.einsum("nmii->nm", K)
    assert (empirical_ntk_trace(net, x, y) - trace).abs().max() <= 3 * TOLERANCE[dtype] * scale


@given(seed=integers(0, 2**16), depth=integers(1, 3))
def test_the_kernel_is_symmetric_and_positive(seed: int, depth: int) -> None:
    net, x = MLP(5, 16, 2, depth=depth, generator=generator(seed), dtype=torch.float64), randn(6, 5, seed=seed)
    K = empirical_ntk(net, x)
    torch.testing.assert_close(K, K.permute(1, 0, 3, 2), rtol=0, atol=1e-13 * float(K.abs().max()))
    torch.testing.assert_close(K, empirical_ntk(net, x, x), rtol=0, atol=1e-12)
    matrix = K.permute(0, 2, 1, 3).reshape(12, 12)
    assert torch.linalg.eigvalsh(matrix).min() > -1e-12 * torch.linalg.matrix_norm(matrix, 2)


def test_at_other_parameters_than_the_nets_own() -> None:
    net, other = (MLP(4, 9, 2, depth=2, generator=generator(s), dtype=torch.float64) for s in (1, 2))
    x = randn(3, 4)
    torch.testing.assert_close(empirical_ntk(net, x, parameters=parameters_of(other)), empirical_ntk(other, x))
    torch.testing.assert_close(
        empirical_ntk_trace(net, x, parameters=parameters_of(other)), empirical_ntk_trace(other, x)
    )


def test_an_output_of_the_papers_network_is_chosen_as_of_any() -> None:
    net, x = MLP(4, 9, 3, dtype=torch.float64), randn(3, 4)
    whole = empirical_ntk(net, x)
    torch.testing.assert_close(empirical_ntk(net, x, output=lambda y: y[:, 1:]), whole[:, :, 1:, 1:])
    torch.testing.assert_close(empirical_ntk(net, x, output=lambda y: y), whole)


def test_parameters_of_another_net_are_refused() -> None:
    with pytest.raises(InputError, match=r"^parameters hold no hidden\.0; pass the state_dict"):
        empirical_ntk(MLP(4, 9, 2), torch.ones(3, 4), parameters={"output": torch.ones(9, 2)})
    strange = {name: torch.ones(9, 2) for name in ("output", "a", "b", "c", "d")}
    with pytest.raises(
        InputError, match=r"hold no hidden\.0 and a, b, c and 1 more, which the net has not; pass the st"
    ):
        empirical_ntk(MLP(4, 9, 2), torch.ones(3, 4), parameters=strange)


def test_the_trace_is_a_sum_not_a_mean() -> None:
    net, x = MLP(4, 9, 5, dtype=torch.float64), randn(3, 4)
    K = empirical_ntk(net, x)
    torch.testing.assert_close(empirical_ntk_trace(net, x), sum(K[:, :, i, i] for i in range(5)))


def test_a_zero_input_has_a_zero_kernel_under_relu() -> None:
    net = MLP(4, 9, 2)
    assert torch.equal(empirical_ntk(net, torch.zeros(2, 4)), torch.zeros(2, 2, 2, 2))


@pytest.mark.parametrize(
    "module, x, message",
    [
        (MLP(4, 3, 2), torch.ones(2, 4, dtype=torch.int64), "x holds integers but the net needs floats"),
        (MLP(4, 3, 2), torch.ones(4), r"x must be \(n, 4\), got shape \(4,\)"),
        (MLP(4, 3, 2), torch.ones(2, 5), "x has 5 features but the net takes 4"),
        (MLP(4, 3, 2), torch.ones(2, 4, dtype=torch.float64), r"float64 on cpu but the net is torch.float32"),
    ],
)
def test_bad_input_to_an_mlp_is_refused(module: nn.Module, x: torch.Tensor, message: str) -> None:
    for kernel in (empirical_ntk, empirical_ntk_trace):
        with pytest.raises(InputError, match=message):
            kernel(module, x)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["mlp", *OTHERS])
def test_on_the_gpu_as_on_the_cpu(name: str) -> None:
    make, shape = OTHERS.get(name, (lambda: MLP(5, 64, 3, depth=2, generator=generator(1)), (5,)))
    module, x = initialized(make(), 1), rows_for(shape, 6, 1)
    on_cpu, trace, product = empirical_ntk(module, x), empirical_ntk_trace(module, x), None
    if name != "gru":  # cuDNN's recurrent networks have neither forward-mode nor second derivatives
        product = NTKOperator(module, x) @ torch.ones(6, on_cpu.shape[-1])
    module, x = module.cuda(), x.cuda()
    error = 1e-5 if name == "weight norm" else 1e-10  # torch's weight_norm on CUDA sums squares in float32
    close = {"rtol": error, "atol": error * float(on_cpu.abs().max())}
    torch.testing.assert_close(empirical_ntk(module, x).cpu(), on_cpu, **close)
    torch.testing.assert_close(empirical_ntk_trace(module, x).cpu(), trace, **close)
    if product is not None:
        torch.testing.assert_close(NTKOperator(module, x) @ torch.ones(6, on_cpu.shape[-1]), product, **close)


class Experts(nn.Module):
    """Rows choose their own layer, so that the first rows may not show what the later ones use."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.first(row) if row[0] > 0 else self.second(row) for row in x])


class LateScale(nn.Module):
    """A parameter that only some rows use, by an operation of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(5, 3), nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        late = x[:, :1] > 1
        out: Tensor = self.layer(x)
        return out + late * self.scale.exp() * x.sum(1, keepdim=True) if bool(late.any()) else out


@pytest.mark.parametrize("make", [Experts, LateScale])
@pytest.mark.parametrize("memory", [None, 4000])
def test_parameters_that_only_later_rows_use(make: Callable[[], nn.Module], memory: int | None) -> None:
    module, x = initialized(make(), 2), randn(8, 5, seed=3)
    x[:2, 0], x[2:, 0] = -2, 2
    expected = ntk.empirical_ntk(module, x, x)
    torch.testing.assert_close(empirical_ntk(module, x, memory=memory), expected, rtol=0, atol=1e-11)
    torch.testing.assert_close(
        empirical_ntk_trace(module, x, x[2:]), torch.einsum("nmii->nm", expected[:, 2:]), rtol=0, atol=1e-11
    )
    parts = empirical_ntk_components(module, x)
    assert all(part.abs().max() > 0 for part in parts.values())
    torch.testing.assert_close(sum(parts.values()), expected, rtol=0, atol=1e-11)


def test_a_layer_that_works_in_place_on_its_input() -> None:
    module = initialized(nn.Sequential(nn.LeakyReLU(0.1, inplace=True), nn.Linear(5, 3)), 1)
    x = randn(6, 5, seed=4)
    kept, expected = x.clone(), ntk.empirical_ntk(nn.Sequential(nn.LeakyReLU(0.1), module[1]), x, x)
    torch.testing.assert_close(empirical_ntk(module, x), expected, rtol=0, atol=1e-11)
    trace = torch.einsum("nmii->nm", expected)
    torch.testing.assert_close(empirical_ntk_mean(module, x), trace / 3, rtol=0, atol=1e-11)
    v = randn(6, 3, seed=5)
    torch.testing.assert_close(NTKOperator(module, x) @ v, torch.einsum("nmij,mj->ni", expected, v), rtol=0, atol=1e-10)
    assert torch.equal(x, kept)


def test_the_operator_on_vectors_of_other_kinds() -> None:
    module, x = initialized(nn.Linear(5, 3), 1), randn(4, 5)
    operator = NTKOperator(module, x)
    exact = operator @ torch.ones(12, dtype=torch.float64)
    torch.testing.assert_close(operator @ torch.ones(12, dtype=torch.long), exact)
    np.testing.assert_allclose(operator @ np.ones(12, dtype=int), exact.numpy())
    assert (operator @ torch.ones(12, dtype=torch.float32)).dtype == torch.float32
    assert (operator @ torch.empty(12, 0, dtype=torch.float64)).shape == (12, 0)
    with pytest.raises(InputError, match="v must be real, got complex numbers"):
        operator @ torch.ones(12, dtype=torch.complex128)


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * (1 + 2j)


@pytest.mark.parametrize(
    "module, options, message",
    [
        (lambda x: x, {}, "module must be an nn.Module, got function; wrap a function in a module"),
        (nn.Linear(5, 3), {"only": [1]}, "only must hold names of parameters, got 1"),
        (nn.Linear(5, 3), {"memory": "1GB"}, "memory must be a number of bytes above 0, got '1GB'"),
        (nn.Linear(5, 3, dtype=torch.complex64), {}, "must be real floats, but weight is torch.complex64"),
        (Complex(), {}, "Complex returns complex numbers"),
    ],
)
def test_mistakes_of_kind_are_told(module: nn.Module, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        empirical_ntk(module, torch.ones(2, 5), **options)


def test_complex_rows_are_refused() -> None:
    with pytest.raises(InputError, match="x must be real, got complex numbers"):
        empirical_ntk(nn.Linear(5, 3), torch.ones(2, 5, dtype=torch.complex64))


class OutputDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(self.layer(x), 0.1)


class BatchScaled(OutputDropout):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x / x.norm(dim=1).max())
        return out


class Sorted(OutputDropout):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x.sort(0).values)
        return out


@pytest.mark.parametrize("make", [OutputDropout, BatchScaled, Sorted])
def test_rows_that_depend_on_chance_or_on_each_other(make: Callable[[], nn.Module]) -> None:
    module, x = initialized(make(), 1), randn(40, 5, seed=6)
    x[0] *= 10  # the largest row alone is what it is beside the others
    x[:2] = x[:2].sort(0).values
    torch.manual_seed(0)
    for evaluate in (empirical_ntk, empirical_ntk_trace, empirical_ntk_diagonal, NTKOperator):
        with pytest.raises(InputError, match="its rows depend on each other or on chance"):
            evaluate(module, x)


class Shortcuts(nn.Module):
    """Row by row the same function; but rows beyond one take another course through the last layers."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where, self.first, self.last = where, nn.Linear(5, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        late = x[:, :1] > 1
        some = bool(late.any())
        h: Tensor = self.first(x)
        other = torch.where(late, h.softmax(1), h.tanh()) if some and self.where == "hidden" else h.tanh()
        if some and self.where == "norm":
            other = torch.where(late, other * other.norm(dim=1, keepdim=True), other)
        out: Tensor = self.last(other)
        return torch.where(late, out.cumsum(1), out) if some and self.where == "output" else out


@pytest.mark.parametrize("where", ["hidden", "norm", "output"])
def test_shortcuts_hold_only_where_every_block_ends_alike(where: str) -> None:
    module, x = initialized(Shortcuts(where), 2), randn(8, 5, seed=3)
    x[:3, 0], x[3:, 0] = -2, 2
    expected = ntk.empirical_ntk(module, x, x)
    for y in (None, x):
        torch.testing.assert_close(empirical_ntk(module, x, y), expected, rtol=0, atol=1e-11)
        trace = torch.einsum("nmii->nm", expected)
        torch.testing.assert_close(empirical_ntk_trace(module, x, y), trace, rtol=0, atol=1e-11)
    torch.testing.assert_close(
        empirical_ntk_diagonal(module, x), torch.einsum("nnij->nij", expected), rtol=0, atol=1e-11
    )


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(11, 6, padding_idx=0), nn.Linear(6, 6)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layer(self.table(tokens)).tanh().mean(1) @ self.table.weight.mT


def test_the_operator_leaves_padding_alone() -> None:
    module = initialized(Tied(), 1)
    tokens = torch.randint(0, 11, (4, 5), generator=generator(3))
    tokens[:, 0] = 0
    K = ntk.empirical_ntk(module, tokens, tokens).permute(0, 2, 1, 3).reshape(44, 44)
    torch.testing.assert_close(NTKOperator(module, tokens) @ torch.eye(44, dtype=torch.float64), K, rtol=0, atol=1e-10)


class Square(torch.autograd.Function):
    """A function with a first derivative alone."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        ctx.save_for_backward(a)
        return a * a

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (a,) = ctx.saved_tensors
        return 2 * a * gradients[0]


class OnceDifferentiable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return Square.apply(self.layer(x))  # type: ignore[no-any-return]


def test_the_operator_says_what_it_cannot_multiply() -> None:
    module, x = initialized(OnceDifferentiable(), 1), randn(3, 5)
    torch.testing.assert_close(empirical_ntk(module, x), ntk.empirical_ntk(module, x, x), rtol=0, atol=1e-11)
    with pytest.raises(InputError, match=r"OnceDifferentiable has a layer with neither .* empirical_ntk instead"):
        NTKOperator(module, x) @ torch.ones(6)
