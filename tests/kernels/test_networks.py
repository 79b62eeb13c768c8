"""Networks as they are in use: transformers and convolutional nets, wrappers, half precision, plans kept for later."""

from __future__ import annotations

import copy
import gc
import math
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from operator import itemgetter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import booleans, integers, sampled_from
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.profiler import ProfilerActivity, profile

from kontrast.errors import InputError
from kontrast.kernels import (
    blocks,
    contraction,
    empirical_ntk,
    empirical_ntk_components,
    empirical_ntk_diagonal,
    empirical_ntk_mean,
    empirical_ntk_trace,
    planning,
    recording,
    tangents,
)
from kontrast.kernels.network import Network, network_of
from kontrast.kernels.planning import Form, Kind, Question
from kontrast.kernels.recording import Rows
from kontrast.kernels.tangents import plan_for
from tests.cases import generator, randn
from tests.kernels.networks import (
    IDS,
    IMAGE,
    NETWORKS,
    TOKENS,
    Bert,
    Encoder,
    Outputs,
    Reads,
    of_type,
    ready,
    rows_for,
)
from tests.reference import ntk

AGREEMENT = {torch.float64: 1e-10, torch.float32: 2e-4}  # relative to the largest entry
KERNELS = [empirical_ntk, empirical_ntk_trace, empirical_ntk_mean, empirical_ntk_diagonal, empirical_ntk_components]
HALVES = [torch.bfloat16, torch.float16]


def assert_exact(
    module: nn.Module, x: Tensor, y: Tensor, by_definition: nn.Module | None = None, **options: Any
) -> None:
    """The kernels are those of the definition, in float64 and, for the same numbers, in float32."""
    by_definition = by_definition or module
    K, K_xx = ntk.empirical_ntk(by_definition, x, y), ntk.empirical_ntk(by_definition, x, x)
    trace, diagonal = torch.einsum("nmii->nm", K_xx), torch.einsum("nnij->nij", K_xx)
    for dtype, error in AGREEMENT.items():
        net, a, b = copy.deepcopy(module).to(dtype), of_type(x, dtype), of_type(y, dtype)
        kernels = empirical_ntk(net, a, b, **options), empirical_ntk_trace(net, a, **options)
        for got, right in zip((*kernels, empirical_ntk_diagonal(net, a, **options)), (K, trace, diagonal), strict=True):
            assert got.dtype == dtype
            torch.testing.assert_close(got.double(), right, rtol=0, atol=error * float(K_xx.abs().max()))


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_in_use_go_layer_by_layer_and_are_exact(name: str) -> None:
    make, shape = NETWORKS[name]
    module, x, y = ready(make()), rows_for(shape, 3), rows_for(shape, 2, seed=2)
    for kind in Kind:
        question = Question(kind, 50, 50, symmetric=True)
        assert plan_for(network_of(module), x[:2], question, name="x").layout.opaque == ()
    assert_exact(module, x, y)


@pytest.mark.parametrize("name", NETWORKS)
def test_one_backward_pass_for_all_outputs_gives_what_a_pass_for_each_gives(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, shape = NETWORKS[name]
    module, x = ready(make()), rows_for(shape, 4)
    passes: list[int] = []
    signals_at = tangents.signals_at

    def counted(output: Tensor, edges: Any, directions: Tensor) -> Any:
        passes.append(len(directions))
        return signals_at(output, edges, directions)

    found = []
    for few in (2**40, 0):
        monkeypatch.setitem(blocks.FEW, "cpu", few)
        empirical_ntk(module, x), empirical_ntk_trace(module, x)  # planned
        monkeypatch.setattr(tangents, "signals_at", counted)
        passes.clear()
        found += [empirical_ntk(module, x), empirical_ntk_trace(module, x)]
        assert set(passes) == ({found[0].shape[-1]} if few else {1})
        monkeypatch.setattr(tangents, "signals_at", signals_at)
    for together, apart in zip(found[:2], found[2:], strict=True):
        torch.testing.assert_close(together, apart, rtol=0, atol=1e-12 * float(apart.abs().max()))


class Transposed(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h.mT


class Largest(nn.Module):
    """Of all positions, in every channel."""

    def forward(self, h: Tensor) -> Tensor:
        return h.amax(1)


def heard_in(module: nn.Module, x: Tensor) -> list[tuple[int, ...] | None]:
    plan = plan_for(network_of(module), x[:2], Question(Kind.FULL, 3, 3, symmetric=True), name="x")
    assert plan.layout.opaque == ()
    uses, _ = plan.layout.signature
    return [
        where.heard
        for (_, parameter, _), where in zip(uses, plan.layout.rows, strict=True)
        if where is not None and parameter in ("up.weight", "up.bias", "down.weight")
    ]


@pytest.mark.parametrize("few", [0, 2**40])
def test_positions_that_no_output_reads_are_left_out(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(blocks.FEW, "cpu", few)
    module, x, y = ready(Reads()), rows_for((16, 4), 3), rows_for((16, 4), 2, seed=2)
    assert heard_in(module, x) == [(0,), (0,), (0,)]
    assert_exact(module, x, y)


POOLED = {
    "words": (nn.Sequential(nn.Embedding(9, 3), nn.Linear(3, 4), nn.ReLU()), (64,)),
    "tokens": (nn.Sequential(nn.Linear(3, 4), nn.Tanh()), (64, 3)),
    "pictures": (nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(2), Transposed()), (2, 10, 10)),
}


@pytest.mark.parametrize("name", POOLED)
def test_the_largest_of_every_channel_is_elsewhere_in_every_row(name: str) -> None:
    """Planned for two equal rows, or for one row twice; the maps before the last need no backward pass."""
    inside, shape = POOLED[name]
    module = ready(nn.Sequential(inside, Largest(), nn.Linear(4, 3)))
    ids = torch.randint(0, 9, (5, *shape), generator=generator(1))
    x = ids if name == "words" else randn(5, *shape)
    x[1] = x[0]
    assert_exact(module, x, x[2:])
    for row in x.split(1):  # by one plan
        torch.testing.assert_close(empirical_ntk(module, row), ntk.empirical_ntk(module, row, row))


@pytest.mark.parametrize("kind", Kind)
def test_positions_left_out_of_a_kernel_take_memory_in_a_backward_pass(kind: Kind) -> None:
    module, x = ready(Reads()), rows_for((16, 4), 2)
    costs = plan_for(network_of(module), x, Question(kind, 3, 3, symmetric=True), name="x").costs
    assert costs.streamed + costs.at_work >= 8 * 16 * (6 + 4)


@pytest.mark.parametrize("few", [0, 2**40])
def test_positions_that_two_rows_read_by_chance_are_no_rule(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(blocks.FEW, "cpu", few)
    module, x, y = ready(Reads(largest=True)), rows_for((16, 4), 4), rows_for((16, 4), 3, seed=2)
    x[:2, 5, 0] = 9.0
    assert heard_in(module, x) == [(5,), (5,), (5,)]
    assert_exact(module, x, y)
    empirical_ntk(module, x[:3])
    assert heard_in(module, x) == [None, None, None]  # the third row reads another


@pytest.mark.parametrize("few", [0, 2**40])
@pytest.mark.parametrize("name", ["attention", "torchvision ViT", "ResNet"])
def test_gradients_lie_row_by_row_on_a_gpu(name: str, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    make, shape = NETWORKS[name]
    module, x, y = ready(make()), rows_for(shape, 4), rows_for(shape, 3, seed=2)
    monkeypatch.setattr(contraction, "ROWS_FIRST", {"cpu"})
    dear = planning._Choice(Form.GRAM, math.inf, planning.Sizes())
    monkeypatch.setattr(planning, "_gram_choice", lambda *_: dear)  # as if there were many rows
    monkeypatch.setitem(blocks.FEW, "cpu", few)
    assert_exact(module, x, y)


class Unmapped(torch.autograd.Function):
    """A user's own operation, of which torch cannot map the backward pass."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        ctx.save_for_backward(h)
        return h.tanh()

    @staticmethod
    def backward(ctx: Any, signal: Tensor) -> Tensor:
        (h,) = ctx.saved_tensors
        assert float(signal.abs().sum()) >= 0  # a number of every output: no map
        slope: Tensor = 1 - h.tanh() ** 2
        return signal * slope


class OwnOperation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(Unmapped.apply(self.second(torch.relu(self.first(x)))))


class LastOfLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.last = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.recurrent(x)[0][:, -1])


def test_an_lstm_is_exact_in_single_precision_too() -> None:
    assert_exact(ready(LastOfLSTM()), rows_for(TOKENS, 4), rows_for(TOKENS, 3, seed=2))


def test_where_torch_cannot_map_a_backward_pass_there_is_one_for_each_output() -> None:
    module, x, y = ready(OwnOperation()), rows_for((4,), 3), rows_for((4,), 2, seed=2)
    plan = plan_for(network_of(module), x[:2], Question(Kind.FULL, 3, 3, symmetric=True), name="x")
    assert plan.layout.opaque == ()
    assert not plan.batched
    assert_exact(module, x, y)


@given(
    shape=sampled_from([(6,), (6, 2), (2, 6), (3, 6, 2)]), per_row=sampled_from([1, 2, 3]), together=booleans(),
    q=integers(1, 4),
)  # fmt: skip
def test_rows_of_several_outputs_joined(shape: tuple[int, ...], per_row: int, together: bool, q: int) -> None:
    rows = Rows(shape.index(6), per_row, together or per_row == 1)
    tensors = randn(q, *shape)
    expected = torch.cat([rows.split(tensor) for tensor in tensors])
    assert torch.equal(rows.split(rows.joined(tensors)), expected)


@settings(max_examples=8)
@given(norm_first=booleans(), activation=sampled_from(["relu", "gelu"]), seed=integers(0, 99), n=integers(1, 4))
def test_encoders_are_exact_for_as_many_rows_as_tokens(norm_first: bool, activation: str, seed: int, n: int) -> None:
    module = ready(Encoder(norm_first=norm_first, activation=activation), seed)
    assert_exact(module, rows_for(TOKENS, n, seed), rows_for(TOKENS, 5 - n, seed + 1))


@pytest.mark.parametrize(
    "kind, output, choose",
    [
        (Outputs, "pooler_output", lambda out: out.pooler_output),
        (Outputs, lambda out: out.last_hidden_state[:, 0], lambda out: out.last_hidden_state[:, 0]),
        (dict, "pooler_output", lambda out: out["pooler_output"]),
        (lambda **outputs: tuple(outputs.values()), 1, lambda out: out[1]),
    ],
)
def test_an_output_chosen_from_several(kind: Any, output: Any, choose: Callable[[Any], Tensor]) -> None:
    x, y = rows_for(IDS, 3), rows_for(IDS, 2, seed=2)
    module, chosen = ready(Bert(kind)), ready(Bert(lambda **outputs: choose(kind(**outputs))))
    assert_exact(module, x, y, chosen, output=output)
    mean = empirical_ntk_mean(module, x, y, output=output)
    torch.testing.assert_close(4 * mean, empirical_ntk_trace(module, x, y, output=output))


# --- half precision, wrappers, the world as it was ------------------------------------------------------------------


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", ["ResNet", "timm ViT", "weight norm", "BERT"])
def test_half_precision_is_read_as_float32(name: str, half: torch.dtype) -> None:
    module, x = ready(NETWORKS[name][0](), dtype=half), of_type(rows_for(NETWORKS[name][1], 3), half)
    for kernel in (empirical_ntk, empirical_ntk_trace, empirical_ntk_mean, empirical_ntk_diagonal):
        expected = kernel(copy.deepcopy(module).float(), of_type(x, torch.float32))
        assert expected.dtype == torch.float32
        assert torch.equal(kernel(module, x), expected)
        assert torch.equal(kernel(module, of_type(x, torch.float32)), expected)
    assert {p.dtype for p in module.parameters()} == {half}


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", ["ResNet", "encoder"])
def test_autocast_changes_nothing(name: str, half: torch.dtype) -> None:
    module = ready(NETWORKS[name][0](), dtype=torch.float32)
    x = rows_for(NETWORKS[name][1], 3, dtype=torch.float32)
    expected = empirical_ntk(module, x)
    with torch.autocast("cpu", half):
        assert torch.equal(empirical_ntk(module, x), expected)
        assert module(x).dtype == half


def compiled(module: nn.Module) -> Any:
    return torch.compile(module, backend="eager")


WRAPPERS: list[Callable[[nn.Module], nn.Module]] = [
    compiled,
    lambda module: module.compile(backend="eager") or module,
    nn.DataParallel,
    lambda module: nn.DataParallel(compiled(module)),
    lambda module: compiled(nn.DataParallel(module)),
]


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_wrappers_are_taken_off_and_their_prefixes_are_optional(wrap: Callable[[nn.Module], nn.Module]) -> None:
    module, x = ready(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))), rows_for((4,), 3)
    other = ready(copy.deepcopy(module), 2)
    wrapped = wrap(copy.deepcopy(module))
    torch.testing.assert_close(wrapped(x), module(x))  # compiled now, if it is to be
    assert torch.equal(empirical_ntk(wrapped, x), empirical_ntk(module, x))
    names = [name for name, _ in wrapped.named_parameters()]
    for point in (dict(zip(names, other.parameters(), strict=True)), other.state_dict()):
        assert torch.equal(empirical_ntk(wrapped, x, parameters=point), empirical_ntk(other, x))
    prefix, part = names[0].removesuffix("0.weight"), empirical_ntk(module, x, only=["0", "2.bias"])
    for only in (["0", "2.bias"], [f"{prefix}0", f"{prefix}2.bias"], [f"{prefix}0.weight", "0.bias", "2.bias"]):
        assert torch.equal(empirical_ntk(wrapped, x, only=only), part)


def world() -> list[Any]:
    """The global settings that a kernel might touch."""
    known: Any = torch.backends
    homes = (known, known.cuda.matmul, known.cudnn.conv, known.cudnn.rnn, known.mkldnn.matmul)
    cudnn = known.cudnn.enabled, known.cudnn.benchmark, known.cudnn.deterministic
    autocast = [(torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in ("cpu", "cuda")]
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype()
    return [[home.fp32_precision for home in homes], cudnn, autocast, modes, torch.get_rng_state().tolist()]


def state(module: nn.Module) -> list[Any]:
    """What a kernel might change in a module; of numbers, copies."""
    own = [*module.parameters(), *module.buffers()]
    tensors = [(id(t), t.dtype, t.requires_grad, t.tolist(), None if t.grad is None else t.grad.tolist()) for t in own]
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooks = [[dict(getattr(part, kind)) for kind in kinds] for part in module.modules()]
    return [tensors, hooks, [part.training for part in module.modules()]]


CONTEXTS = [torch.enable_grad, torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)]


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("at", [0, 1, 3, 5, 7])
def test_everything_is_as_before_also_after_an_error(context: Callable[[], Any], at: int) -> None:
    module, x = ready(nn.GRU(4, 3, batch_first=True), dtype=torch.float32), rows_for(TOKENS, 3, dtype=torch.float32)
    passes: list[int] = []

    def fail(*_: Any) -> None:
        passes.append(1)
        if at and len(passes) == at + 1:  # one is made here
            raise KeyError("mine")

    module.register_forward_pre_hook(fail)
    module(x)[0].sum().backward()
    module.register_full_backward_hook(lambda *_: None)
    module.register_full_backward_pre_hook(lambda *_: None)
    module.train().bias_ih_l0.requires_grad_(False)
    with context():
        before = world(), state(module)
        for kernel in KERNELS:
            with pytest.raises(KeyError, match="mine") if at and len(passes) <= at else nullcontext():
                kernel(module, x, output=lambda out: out[0][:, -1])
        assert (world(), state(module)) == before
    assert len(passes) > at


def test_kernels_are_computed_in_full_precision() -> None:
    module, x = ready(Encoder(), dtype=torch.float32), rows_for(TOKENS, 3, dtype=torch.float32)
    known: Any = torch.backends
    homes, seen = (known.cuda.matmul, known.cudnn.conv, known.cudnn.rnn), set()
    before = [home.fp32_precision for home in homes]
    module.register_forward_pre_hook(lambda *_: seen.update(home.fp32_precision for home in homes))
    try:
        for home in homes:
            home.fp32_precision = "tf32"
        for kernel in KERNELS:
            kernel(module, x)
        assert [home.fp32_precision for home in homes] == ["tf32"] * 3
    finally:
        for home, precision in zip(homes, before, strict=True):
            home.fp32_precision = precision
    assert seen == {"ieee"}


@pytest.mark.parametrize("kernel, stride, dilation", [((3, 2), (1, 2), (1, 1)), ((2, 3), (3, 1), (2, 1))])
def test_windows_of_a_gpu_are_those_of_unfold(kernel: Any, stride: Any, dilation: Any) -> None:
    h = randn(2, 3, 9, 8)
    windows = recording._windows(h, torch.Size(kernel), stride, dilation)
    assert torch.equal(windows, F.unfold(h, kernel, dilation, 0, stride))


def test_forward_hooks_are_part_of_the_function_and_backward_hooks_are_not() -> None:
    module, x = ready(Encoder()), rows_for(TOKENS, 3)
    plain = empirical_ntk(module, x)
    module.norm.register_full_backward_hook(lambda part, into, out: (torch.zeros_like(into[0]),))
    module.head.register_full_backward_pre_hook(lambda part, out: (5 * out[0],))
    torch.testing.assert_close(empirical_ntk(module, x), plain)
    module.head.register_forward_hook(lambda part, given, made: 2 * made)
    torch.testing.assert_close(empirical_ntk(module, x), 4 * plain)


def peak_bytes(compute: Callable[[], Tensor]) -> tuple[Tensor, int]:
    """The result, and the most that torch held at a time while it was computed."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        result = compute()
    events = seen.profiler.kineto_results.events()  # type: ignore[union-attr]
    held = torch.tensor([e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()) if e.name() == "[memory]"])
    return result, int(held.cumsum(0).max())


def test_memory_is_a_limit_on_what_is_held() -> None:
    layers = [nn.Conv2d(2, 16, 3), nn.ReLU(), nn.Flatten(2), nn.TransformerEncoderLayer(36, 2, 32, batch_first=True)]
    module = ready(nn.Sequential(*layers, nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(64, 128)), 1)
    x, limit, constant = rows_for((2, 8, 8), 40), 120e6, 4e6
    expected, free = peak_bytes(lambda: empirical_ntk_diagonal(module, x))
    found, used = peak_bytes(lambda: empirical_ntk_diagonal(module, x, memory=limit))
    assert used <= 1.25 * limit + constant < free
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 * float(expected.abs().max()))


# --- bad input ------------------------------------------------------------------------------------------------------


class Returns(nn.Module):
    """A linear layer, another part, and what a user makes of the outputs; counts its passes."""

    def __init__(self, part: nn.Module | None = None, then: Callable[[Tensor], Any] | None = None) -> None:
        super().__init__()
        self.layer, self.part, self.then, self.n_passes = nn.Linear(4, 2), part, then, 0

    def forward(self, x: Tensor) -> Any:
        self.n_passes += 1
        return self.then(self.layer(x)) if self.then else self.layer(x)


X, X3 = randn(5, 4, dtype=torch.float32), randn(5, 3, 4, dtype=torch.float32)
SEQUENCE_FIRST = nn.Sequential(nn.TransformerEncoderLayer(4, 2, 6), nn.Flatten(), nn.Linear(12, 2)).eval()
# fmt: off
REFUSED: list[tuple[nn.Module, Tensor, dict[str, Any], str]] = [
    (Returns(nn.BatchNorm2d(3)), X, {}, r"BatchNorm2d 'part' in train mode .*; call module.eval\(\)"),
    (Returns(nn.Dropout2d(0.1)), X, {}, r"Dropout2d 'part' in train mode .*; call module.eval\(\)"),
    (Returns(nn.MultiheadAttention(4, 2, dropout=0.1)), X, {}, r"MultiheadAttention 'part' in train mode .*eval"),
    (Returns(nn.LSTM(4, 2, 2, dropout=0.1)), X, {}, r"LSTM 'part' in train mode .*; call module.eval\(\)"),
    (Returns(nn.Embedding(3, 2, sparse=True)), X, {}, "sparse gradients, .*; set module.sparse = False on it"),
    (Returns().to("meta"), X, {}, r"but layer.weight is on the meta device; call module.to_empty\(device='cpu'\)"),
    (Returns(nn.Linear(2, 2, device="meta")), X, {}, r"but part.weight is on the meta device; call module.to_empty"),
    (Returns(nn.BatchNorm1d(2, device="meta", affine=False).eval()), X, {}, "the buffers of Returns must have values"),
    (Returns(nn.Linear(2, 2, dtype=torch.float64)), X, {}, r"must have one dtype .*; convert with module.to\(…\)"),
    (Returns().double(), X.half(), {}, r"x is torch.float16 on cpu but the net is torch.float64 .*; convert with x.to"),
    (Returns(), X / X.new_tensor([1, 1, 1, 0]), {}, "x holds NaN or infinite numbers, first in row 0; remove or repla"),
    (Returns(then=lambda f: [f, f]), X, {}, "must return one tensor, got list of 2; choose one with output="),
    (Returns(then=lambda f: {"b": f, "a": f}), X, {}, r"got dict with \['a', 'b'\]; choose one with output="),
    (Returns(then=lambda f: {"b": f}), X, {"output": "a"}, r"dict with \['b'\], which has no output='a'; name one it"),
    (Returns(then=lambda f: (f, f)), X, {"output": 2}, "returns tuple of 2, which has no output=2; name one it has"),
    (Returns(then=lambda f: Outputs(f, f)), X, {"output": "a"}, "returns Outputs, which has no output='a'; name one"),
    (Returns(then=lambda f: ([f], f)), X, {"output": 0}, "got list of 1 at output=0; choose one with output="),
    (Returns(then=lambda f: f.argmax(1, keepdim=True)), X, {}, "returns torch.int64, which has no gradient; return wh"),
    (Returns(then=lambda f: f.half()), X, {}, "returns torch.float16 but its parameters are read as torch.float32; re"),
    (Returns(then=lambda f: f.double()), X, {}, "returns torch.float64 but its parameters are read as torch.float32"),
    (Returns(then=lambda f: f[:, 0]), X, {}, r"must return \(n, c\).* got shape \(\d,\) .*; add a last axis with"),
    (SEQUENCE_FIRST, X3, {}, "rows depend on each other.*'0.self_attn' has batch_first=False: .*; build it with bat"),
]
# fmt: on


@pytest.mark.parametrize("module, x, options, message", REFUSED)
def test_what_has_no_kernel_is_refused_in_a_line(module: Any, x: Tensor, options: Any, message: str) -> None:
    for kernel in KERNELS:
        with pytest.raises(InputError, match=message) as refusal:
            kernel(module, x, **options)
        assert "\n" not in str(refusal.value)
    assert module is SEQUENCE_FIRST or module.then or module.n_passes == 0


# --- plans are kept for a module ------------------------------------------------------------------------------------


def assert_right(module: nn.Module, x: Tensor) -> None:
    K = ntk.empirical_ntk(module, x, x)
    torch.testing.assert_close(empirical_ntk(module, x), K, rtol=0, atol=1e-11)
    torch.testing.assert_close(empirical_ntk_trace(module, x), torch.einsum("nmii->nm", K), rtol=0, atol=1e-11)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modules that were planned for."""
    names: list[str] = []
    plan = tangents._planned

    def noted(network: Network, *rest: Any, **options: Any) -> Any:
        names.append(network.name)
        return plan(network, *rest, **options)

    monkeypatch.setattr(tangents, "_planned", noted)
    return names


def test_a_plan_serves_later_calls_with_other_weights(planned: list[str]) -> None:
    module, x = ready(Encoder()), rows_for(TOKENS, 3)
    assert_right(module, x)
    assert planned == ["Encoder"] * 2  # for the kernel and for the trace
    assert_right(ready(module, 5), rows_for(TOKENS, 3, seed=2))
    elsewhere = dict(ready(copy.deepcopy(module), 6).named_parameters())
    torch.testing.assert_close(empirical_ntk(module, x, parameters=elsewhere), empirical_ntk(ready(module, 6), x))
    assert planned == ["Encoder"] * 2


def test_plans_depend_on_the_rows_the_output_and_the_selection(planned: list[str]) -> None:
    module = ready(Bert(lambda **outputs: tuple(outputs.values())))
    for choose in (itemgetter(1), lambda out: out[0][:, 0]):
        chosen = ready(Bert(lambda choose=choose, **outputs: choose(tuple(outputs.values()))))
        for x in (rows_for(IDS, 3), rows_for(IDS, 3).int()):
            for only in (None, ["value.weight"]):
                K = ntk.empirical_ntk(chosen, x, x, only)
                torch.testing.assert_close(empirical_ntk(module, x, output=choose, only=only), K, rtol=0, atol=1e-11)
    assert len(planned) == 8


class Switching(nn.Module):
    """A net whose forward pass follows attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.activation, self.skip, self.times = torch.tanh, 0.0, 1

    def forward(self, x: Tensor) -> Tensor:
        h = z = self.activation(self.first(x))
        for _ in range(self.times):
            z = torch.relu(self.second(z))
        return self.last(z + self.skip * h if self.skip else z)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "an activation": lambda m: setattr(m, "activation", torch.sigmoid),
    "an activation that mixes": lambda m: setattr(m, "activation", nn.Softmax(1)),
    "a skip": lambda m: setattr(m, "skip", 1.0),
    "a layer used twice": lambda m: setattr(m, "times", 2),
    "a layer not used": lambda m: setattr(m, "times", 0),
    "more outputs": lambda m: setattr(m, "last", nn.Linear(6, 5)),
    "no bias": lambda m: setattr(m, "second", nn.Linear(6, 6, bias=False)),
    "a norm": lambda m: setattr(m, "last", nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3))),
    "a convolution": lambda m: setattr(
        m, "second", nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Conv1d(2, 2, 1), nn.Flatten())
    ),
    "no layer": lambda m: setattr(m, "second", nn.Identity()),
    "frozen": lambda m: m.second.requires_grad_(False),
    "tied": lambda m: setattr(m.second, "bias", m.first.bias),
    "train mode": lambda m: m.second.train(),
    "weight norm": lambda m: weight_norm(m.second),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_module_has_another_kernel(name: str) -> None:
    module, x = ready(Switching()), rows_for((4,), 4)
    assert_right(module, x)
    CHANGES[name](module)
    assert_right(module.double(), x)
    assert_right(ready(module, 4), x[:3])


def test_plans_go_with_their_module_and_hold_no_tensors() -> None:
    module, x = ready(Encoder(patches=True)), rows_for(IMAGE, 3)
    for kernel in KERNELS:
        kernel(module, x)
    weight, gone = weakref.ref(module.head.weight), weakref.ref(module)
    module.head = nn.Linear(4, 3, dtype=torch.float64)
    gc.collect()
    assert weight() is None
    assert module in tangents._PLANNED
    n_planned = len(tangents._PLANNED)
    del module
    gc.collect()
    assert gone() is None
    assert len(tangents._PLANNED) == n_planned - 1
