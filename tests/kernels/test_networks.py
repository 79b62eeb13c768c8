"""Networks as they are in use: vision and language transformers, convolutional nets, wrappers, half precision."""

from __future__ import annotations

import copy
import gc
import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import booleans, integers, sampled_from
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from kontrast.errors import InputError
from kontrast.kernels import (
    empirical_ntk,
    empirical_ntk_components,
    empirical_ntk_diagonal,
    empirical_ntk_mean,
    empirical_ntk_trace,
    tangents,
)
from kontrast.kernels.network import network_of
from kontrast.kernels.planning import Kind, Question
from kontrast.kernels.tangents import plan_for
from tests.cases import generator, randn
from tests.reference import ntk

AGREEMENT = {torch.float64: 1e-10, torch.float32: 2e-4}  # relative to the largest entry
KERNELS = [empirical_ntk, empirical_ntk_trace, empirical_ntk_mean, empirical_ntk_diagonal, empirical_ntk_components]


# --- look-alikes of networks in use ---------------------------------------------------------------------------------


class Attend(nn.Module):
    """nn.MultiheadAttention of rows (3, 4), with keys and values of other widths if asked."""

    def __init__(self, *, weights: bool = False, kdim: int = 4, vdim: int = 4, **options: bool) -> None:
        super().__init__()
        self.weights, self.kdim, self.vdim = weights, kdim, vdim
        self.attend = nn.MultiheadAttention(4, 2, kdim=kdim, vdim=vdim, batch_first=True, **options)
        self.out = nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        h, weights = self.attend(x, x[..., : self.kdim], x[..., : self.vdim], need_weights=self.weights)
        return self.out(h.flatten(1)) + (weights.sum(2)[:, :2] ** 2 * x[:, 0, :2] if self.weights else 0)


class OwnAttention(nn.Module):
    """Causal `F.scaled_dot_product_attention` with three linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.unflatten(part(x), 2, (2, 2)).transpose(1, 2) for part in (self.q, self.k, self.v))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(h.transpose(1, 2).flatten(2))[:, -1]


class Encoder(nn.Module):
    """Class token, learned positions, nn.TransformerEncoder, LayerNorm."""

    def __init__(self, *, norm_first: bool, activation: str) -> None:
        super().__init__()
        self.token, self.positions = nn.Parameter(torch.empty(1, 1, 4)), nn.Parameter(torch.empty(1, 4, 4))
        layer = nn.TransformerEncoderLayer(4, 2, 6, activation=activation, norm_first=norm_first, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first)
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.encoder(h)[:, 0]))


class TorchvisionViT(nn.Module):
    """Patches by a convolution, encoder blocks around nn.MultiheadAttention."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_proj = nn.Conv2d(2, 4, 2, stride=2)
        self.class_token, self.pos_embedding = nn.Parameter(torch.empty(1, 1, 4)), nn.Parameter(torch.empty(1, 5, 4))
        self.ln_1, self.ln_2, self.ln = (nn.LayerNorm(4, eps=1e-6) for _ in range(3))
        self.self_attention = nn.MultiheadAttention(4, 2, dropout=0.1, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Dropout(0.1), nn.Linear(6, 4), nn.Dropout(0.1))
        self.heads = nn.Sequential(nn.Linear(4, 3))

    def forward(self, images: Tensor) -> Tensor:
        n = images.shape[0]
        h = self.conv_proj(images).reshape(n, 4, 4).permute(0, 2, 1)
        h = torch.cat([self.class_token.expand(n, -1, -1), h], dim=1) + self.pos_embedding
        z = self.ln_1(h)
        z, _ = self.self_attention(z, z, z, need_weights=False)
        h = h + z
        return self.heads(self.ln(h + self.mlp(self.ln_2(h)))[:, 0])


class TimmViT(nn.Module):
    """Queries, keys and values from one linear layer, normalised, and LayerScale; mean over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.pos_embed = nn.Conv2d(2, 4, 2, stride=2), nn.Parameter(torch.empty(1, 4, 4))
        self.norm1, self.norm2, self.fc_norm = nn.LayerNorm(4), nn.LayerNorm(4), nn.LayerNorm(4)
        self.q_norm, self.k_norm = nn.LayerNorm(2), nn.LayerNorm(2)
        self.qkv, self.proj = nn.Linear(4, 12, bias=False), nn.Linear(4, 4)
        self.gamma_1, self.gamma_2 = nn.Parameter(torch.empty(4)), nn.Parameter(torch.empty(4))
        self.fc1, self.fc2, self.head = nn.Linear(4, 6), nn.Linear(6, 4), nn.Linear(4, 3)

    def attention(self, h: Tensor) -> Tensor:
        B, N, C = h.shape
        q, k, v = self.qkv(h).reshape(B, N, 3, 2, C // 2).permute(2, 0, 3, 1, 4).unbind(0)
        h = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v)
        return self.proj(h.transpose(1, 2).reshape(B, N, C))

    def forward(self, images: Tensor) -> Tensor:
        h = self.patch(images).flatten(2).transpose(1, 2) + self.pos_embed
        h = h + self.attention(self.norm1(h)) * self.gamma_1
        h = h + self.fc2(F.gelu(self.fc1(self.norm2(h)))).mul(self.gamma_2)
        return self.head(self.fc_norm(h.mean(dim=1)))


class ResNet(nn.Module):
    """Torchvision's stem, two basic blocks, the second with a stride and a projection, and head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        self.layer1, self.layer2 = self._block(4, 4, 1), self._block(4, 6, 2)
        self.downsample = nn.Sequential(nn.Conv2d(4, 6, 1, 2, bias=False), nn.BatchNorm2d(6))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(6, 3)

    def _block(self, before: int, after: int, stride: int) -> nn.Sequential:
        first, second = (
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
        )
        return nn.Sequential(first, nn.BatchNorm2d(after), nn.ReLU(inplace=True), second, nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        h = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        z = self.layer1(h)
        z += h
        h = self.relu(z)
        z = self.layer2(h)
        z += self.downsample(h)
        return self.fc(torch.flatten(self.avgpool(self.relu(z)), 1))


class ConvNeXt(nn.Module):
    """A depthwise convolution, channels moved last and back."""

    def __init__(self) -> None:
        super().__init__()
        self.dwconv, self.norm = nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.LayerNorm(4)
        self.pwconv1, self.pwconv2, self.gamma = nn.Linear(4, 6), nn.Linear(6, 4), nn.Parameter(torch.empty(4))
        self.stem, self.head = nn.Conv2d(2, 4, 2, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        z = self.dwconv(h).permute(0, 2, 3, 1)
        z = self.gamma * self.pwconv2(F.gelu(self.pwconv1(self.norm(z))))
        return self.head((h + z.permute(0, 3, 1, 2)).mean([-2, -1]))


class ClipText(nn.Module):
    """OpenAI's: tokens sequence first in the blocks, a causal mask, the state at the largest id, a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.token_embedding, self.positional_embedding = nn.Embedding(7, 4), nn.Parameter(torch.empty(3, 4))
        self.ln_1, self.ln_final, self.attn = nn.LayerNorm(4), nn.LayerNorm(4), nn.MultiheadAttention(4, 2)
        self.c_fc, self.c_proj = nn.Linear(4, 6), nn.Linear(6, 4)
        self.text_projection = nn.Parameter(torch.empty(4, 3))
        self.register_buffer("attn_mask", torch.full((3, 3), -math.inf).triu_(1), persistent=False)

    def forward(self, text: Tensor) -> Tensor:
        h = (self.token_embedding(text) + self.positional_embedding).permute(1, 0, 2)
        z = self.ln_1(h)
        h = h + self.attn(z, z, z, need_weights=False, attn_mask=self.attn_mask)[0]
        a = self.c_fc(h)
        h = self.ln_final((h + self.c_proj(a * torch.sigmoid(1.702 * a))).permute(1, 0, 2))
        return h[torch.arange(len(h)), text.argmax(dim=-1)] @ self.text_projection


@dataclass
class Pooling:
    """What Hugging Face's models return."""

    last_hidden_state: Tensor
    pooler_output: Tensor


class Bert(nn.Module):
    """Three embeddings added, a post-norm block with attention by matrix products, a pooler."""

    def __init__(self, kind: Callable[..., Any] = Pooling) -> None:
        super().__init__()
        self.kind = kind
        self.words, self.places, self.types = nn.Embedding(7, 4, padding_idx=0), nn.Embedding(3, 4), nn.Embedding(2, 4)
        self.register_buffer("position_ids", torch.arange(3)[None])
        self.query, self.key, self.value, self.dense = (nn.Linear(4, 4) for _ in range(4))
        self.norm, self.after, self.pooler = nn.LayerNorm(4), nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, input_ids: Tensor) -> Any:
        h = self.words(input_ids) + self.types(torch.zeros_like(input_ids)) + self.places(self.position_ids)
        h = self.norm(h)
        q, k, v = (part(h).view(*h.shape[:2], 2, 2).transpose(1, 2) for part in (self.query, self.key, self.value))
        mask = (1 - (input_ids != 0).to(h.dtype))[:, None, None, :] * torch.finfo(h.dtype).min
        weights = torch.softmax(q @ k.transpose(-1, -2) / 2**0.5 + mask, dim=-1)
        h = self.after(self.dense((weights @ v).permute(0, 2, 1, 3).reshape(h.shape)) + h)
        return self.kind(last_hidden_state=h, pooler_output=torch.tanh(self.pooler(h[:, 0])))


class Swin(nn.Module):
    """A window of four tokens whose attention has a bias from a table, gathered by relative position."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj, self.head = nn.Linear(4, 12), nn.Linear(4, 4), nn.Linear(4, 2)
        self.table = nn.Parameter(torch.empty(9, 2))
        at = torch.cartesian_prod(torch.arange(2), torch.arange(2))
        offset = at[:, None] - at[None] + 1
        self.register_buffer("index", (3 * offset[..., 0] + offset[..., 1]).flatten())

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).reshape(len(x), 4, 3, 2, 2).permute(2, 0, 3, 1, 4)
        bias = self.table[self.index].view(4, 4, 2).permute(2, 0, 1).contiguous()
        h = (q @ k.transpose(-2, -1) + bias.unsqueeze(0)).softmax(-1) @ v
        return self.head(self.proj(h.transpose(1, 2).reshape(len(x), 4, 4)).mean(1))


class Cosine(nn.Module):
    """A classifier by cosines, with a learned temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.weight, self.scale = (
            nn.Linear(4, 4),
            nn.Parameter(torch.empty(3, 4)),
            nn.Parameter(torch.ones(1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * F.linear(F.normalize(torch.tanh(self.body(x))), F.normalize(self.weight))


TOKENS, IMAGE, IDS = (3, 4), (2, 4, 4), ()
TRANSFORMERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "attention": (Attend, TOKENS),
    "attention with weights": (lambda: Attend(weights=True), TOKENS),
    "attention to others": (lambda: Attend(kdim=3, vdim=2), TOKENS),
    "attention to others with weights": (lambda: Attend(kdim=3, vdim=2, weights=True), TOKENS),
    "attention without bias": (lambda: Attend(bias=False), TOKENS),
    "attention with learned keys": (lambda: Attend(add_bias_kv=True, add_zero_attn=True), TOKENS),
    "own attention": (OwnAttention, TOKENS),
    "pre-norm encoder": (lambda: Encoder(norm_first=True, activation="gelu"), TOKENS),
    "post-norm encoder": (lambda: Encoder(norm_first=False, activation="relu"), TOKENS),
    "torchvision ViT": (TorchvisionViT, IMAGE),
    "timm ViT": (TimmViT, IMAGE),
    "ResNet": (ResNet, (2, 6, 6)),
    "ConvNeXt": (ConvNeXt, (2, 6, 6)),
    "CLIP text": (ClipText, IDS),
    "Swin": (Swin, (4, 4)),
    "BERT": (lambda: Bert(_pooled), IDS),
    "cosine classifier": (Cosine, (4,)),
    "weight norm": (
        lambda: nn.Sequential(weight_norm(nn.Conv1d(2, 4, 2)), nn.ReLU(), nn.Flatten(), weight_norm(nn.Linear(8, 3))),
        (2, 3),
    ),
    "spectral norm": (lambda: nn.Sequential(spectral_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 2)), (4,)),
}


def _pooled(**outputs: Tensor) -> Tensor:
    return outputs["pooler_output"]


def ready(module: nn.Module, seed: int = 3, dtype: torch.dtype = torch.float64) -> nn.Module:
    """The module in eval mode with parameters and running statistics that are nothing special."""
    g = generator(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(0.7 * torch.randn(p.shape, generator=g))
        for part in module.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.running_mean.normal_(generator=g)
                part.running_var.uniform_(0.5, 1.5, generator=g)
    return module.to(dtype).eval()


def rows_for(shape: tuple[int, ...], n: int, seed: int) -> Tensor:
    """Random rows, of three token ids if there is no shape; without padding in the first place."""
    if shape:
        return randn(n, *shape, seed=seed)
    ids = torch.randint(0, 7, (n, 3), generator=generator(seed))
    ids[:, 0].clamp_(min=1)
    return ids


def assert_exact(module: nn.Module, x: Tensor, y: Tensor, reference: nn.Module | None = None, **options: Any) -> None:
    """All kernels are those of the definition, in float64 and, from the same numbers, in float32."""
    in_float64 = module if reference is None else reference
    K, K_xx = ntk.empirical_ntk(in_float64, x, y), ntk.empirical_ntk(in_float64, x, x)
    for dtype in (torch.float64, torch.float32):
        module = module.to(dtype)
        x, y = (rows.to(dtype) if rows.is_floating_point() else rows for rows in (x, y))
        atol = AGREEMENT[dtype] * max(float(K.abs().max()), float(K_xx.abs().max()))

        def close(got: Tensor, expected: Tensor, atol: float = atol, dtype: torch.dtype = dtype) -> None:
            assert got.dtype == dtype
            torch.testing.assert_close(got.double(), expected, rtol=0, atol=K.shape[-1] * atol)

        close(empirical_ntk(module, x, y, **options), K)
        close(empirical_ntk_trace(module, x, **options), torch.einsum("nmii->nm", K_xx))
        close(empirical_ntk_diagonal(module, x, **options), torch.einsum("nnij->nij", K_xx))


def opaque(module: nn.Module, x: Tensor, kind: Kind = Kind.TRACE, n: int = 50) -> tuple[str, ...]:
    question = Question(kind, n, n, symmetric=True)
    return plan_for(network_of(module), x[:2], question, name="x").layout.opaque


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_networks_in_use_go_layer_by_layer_and_are_exact(name: str) -> None:
    make, shape = TRANSFORMERS[name]
    module, x, y = ready(make()), rows_for(shape, 3, 1), rows_for(shape, 2, 2)
    for kind in Kind:
        assert opaque(module, x, kind) == ()
    assert_exact(module, x, y)


@settings(max_examples=8)
@given(norm_first=booleans(), activation=sampled_from(["relu", "gelu"]), seed=integers(0, 99), n=integers(1, 4))
def test_any_encoder_is_exact_whatever_the_number_of_rows(
    norm_first: bool, activation: str, seed: int, n: int
) -> None:  # three tokens and one more: rows as many as either
    module = ready(Encoder(norm_first=norm_first, activation=activation), seed)
    x = rows_for(TOKENS, n, seed)
    assert opaque(module, x.expand(2, -1, -1) if n == 1 else x) == ()
    assert_exact(module, x, rows_for(TOKENS, 5 - n, seed + 1))


class Chosen(nn.Module):
    """One tensor of what a module returns, for the reference."""

    def __init__(self, module: nn.Module, choose: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.inner, self.choose = module, choose

    def forward(self, x: Tensor) -> Tensor:
        return self.choose(self.inner(x))


def as_tuple(**outputs: Tensor) -> tuple[Tensor, ...]:
    return tuple(outputs.values())


def first_state(out: Any) -> Tensor:
    return out.last_hidden_state[:, 0]


@pytest.mark.parametrize(
    "kind, output, choose",
    [
        (Pooling, "pooler_output", lambda out: out.pooler_output),
        (Pooling, first_state, first_state),
        (dict, "pooler_output", lambda out: out["pooler_output"]),
        (dict, lambda out: out["last_hidden_state"][:, -1], lambda out: out["last_hidden_state"][:, -1]),
        (as_tuple, 1, lambda out: out[1]),
        (as_tuple, -1, lambda out: out[1]),
    ],
)
def test_an_output_chosen_from_several(kind: Any, output: Any, choose: Callable[[Any], Tensor]) -> None:
    module, x, y = ready(Bert(kind)), rows_for(IDS, 3, 1), rows_for(IDS, 2, 2)
    assert_exact(module, x, y, copy.deepcopy(Chosen(module, choose)), output=output)
    mean = empirical_ntk_mean(module, x, y, output=output)
    torch.testing.assert_close(mean * 4, empirical_ntk_trace(module, x, y, output=output))


# --- half precision, wrappers, the world as it was ------------------------------------------------------------------


def classifier() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 3))


HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", ["ResNet", "timm ViT", "weight norm", "BERT"])
def test_half_precision_is_read_as_float32(name: str, half: torch.dtype) -> None:
    make, shape = TRANSFORMERS[name]
    module, x = ready(make(), dtype=half), rows_for(shape, 3, 1)
    x = x.to(half) if shape else x
    in_float32, rows = copy.deepcopy(module).float(), x.float() if shape else x
    for kernel in (empirical_ntk, empirical_ntk_trace, empirical_ntk_mean, empirical_ntk_diagonal):
        K = kernel(module, x)
        assert K.dtype == torch.float32
        assert torch.equal(K, kernel(in_float32, rows))
        assert torch.equal(K, kernel(module, rows))
    assert {p.dtype for p in module.parameters()} == {half}


def test_some_layers_in_half_precision() -> None:
    module, x = ready(classifier(), dtype=torch.float32), rows_for((4,), 3, 1).float()
    module[0].bfloat16()
    assert torch.equal(empirical_ntk(module, x), empirical_ntk(copy.deepcopy(module).float(), x))


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", ["ResNet", "pre-norm encoder"])
def test_autocast_changes_nothing(name: str, half: torch.dtype) -> None:
    make, shape = TRANSFORMERS[name]
    module, x = ready(make(), dtype=torch.float32), rows_for(shape, 3, 1).float()
    expected = empirical_ntk(module, x)
    with torch.autocast("cpu", half):
        assert torch.equal(empirical_ntk(module, x), expected)
        assert torch.is_autocast_enabled("cpu")
        assert module(x).dtype == half


def in_place(module: nn.Module) -> nn.Module:
    module.compile(backend="eager")
    return module


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "compiled": lambda module: torch.compile(module, backend="eager"),  # type: ignore[return-value]
    "compiled in place": in_place,
    "parallel": nn.DataParallel,
    "parallel, compiled": lambda module: torch.compile(nn.DataParallel(module), backend="eager"),  # type: ignore[return-value]
    "compiled, parallel": lambda module: nn.DataParallel(WRAPPERS["compiled"](module)),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers_are_taken_off_and_their_prefixes_are_optional(name: str) -> None:
    module, other, x = ready(classifier(), 1), ready(classifier(), 2), rows_for((4,), 3, 1)
    wrapped = WRAPPERS[name](copy.deepcopy(module))
    expected = empirical_ntk(module, x)
    torch.testing.assert_close(wrapped(x), module(x))
    assert torch.equal(empirical_ntk(wrapped, x), expected)
    torch.testing.assert_close(expected, ntk.empirical_ntk(module, x, x))
    its_names = [key for key, _ in wrapped.named_parameters()]
    elsewhere = dict(zip(its_names, other.parameters(), strict=True))
    for given in (elsewhere, other.state_dict()):
        assert torch.equal(empirical_ntk(wrapped, x, parameters=given), empirical_ntk(other, x))
    prefix = its_names[0].removesuffix("0.weight")
    part = empirical_ntk(module, x, only=["0", "3.bias"])
    for only in (["0", "3.bias"], [f"{prefix}0", f"{prefix}3.bias"], [f"{prefix}0.weight", "0.bias", "3.bias"]):
        assert torch.equal(empirical_ntk(wrapped, x, only=only), part)
    assert list(empirical_ntk_components(wrapped, x)) == [key for key, _ in module.named_parameters()]
    assert torch.equal(wrapped(x), wrapped(x))


def test_a_compiled_part_of_a_network() -> None:
    module, x = ready(classifier(), 1), rows_for((4,), 3, 1)
    expected = empirical_ntk(module, x)
    module[0] = torch.compile(module[0], backend="eager")
    module(x)
    assert torch.equal(empirical_ntk(module, x), expected)
    assert list(empirical_ntk_components(module, x, only=["0.bias"])) == ["0._orig_mod.bias"]


def world() -> dict[str, Any]:
    """The global settings that a kernel might touch."""
    known: Any = torch.backends
    homes = {"cuda": known.cuda.matmul, "conv": known.cudnn.conv, "rnn": known.cudnn.rnn, "all": known}
    return {
        **{name: home.fp32_precision for name, home in homes.items()},
        "cudnn": (known.cudnn.enabled, known.cudnn.benchmark, known.cudnn.deterministic),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "autocast": [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")],
        "cache": torch.is_autocast_cache_enabled(),
        "default": torch.get_default_dtype(),
        "random": torch.get_rng_state().tolist(),
        "threads": torch.get_num_threads(),
    }


@contextmanager
def unusual(contexts: Any) -> Iterator[None]:
    """Settings that are not the default."""
    conv: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = conv.fp32_precision
    conv.fp32_precision = "tf32" if before != "tf32" else "ieee"
    try:
        with contexts():
            yield
    finally:
        conv.fp32_precision = before


class Fails(nn.Module):
    """Raises where it is told to: at the first, or at a later pass."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.layer, self.recurrent, self.left = nn.Linear(4, 3), nn.GRU(4, 4, batch_first=True), at

    def forward(self, x: Tensor) -> Tensor:
        self.left -= 1
        if self.left == 0:
            raise KeyError("mine")
        return self.layer(self.recurrent(x[:, None])[0][:, 0])


CONTEXTS = [torch.enable_grad, torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)]


@pytest.mark.parametrize("contexts", CONTEXTS)
@pytest.mark.parametrize("at", [0, 1, 3, 5, 7])
def test_global_settings_are_as_before_also_after_an_error(contexts: Any, at: int) -> None:
    module, x = ready(Fails(at), dtype=torch.float32), rows_for((4,), 3, 1).float()
    for part in module.modules():
        part.register_full_backward_hook(lambda *_: None)
    with unusual(contexts):
        before, hooks = world(), [dict(part._backward_hooks) for part in module.modules()]
        if at == 0:
            empirical_ntk(module, x)
        else:
            with pytest.raises(KeyError, match="mine"):
                empirical_ntk(module, x)
        assert world() == before
        assert [dict(part._backward_hooks) for part in module.modules()] == hooks


def state(module: nn.Module) -> list[Any]:
    parts = [(p.detach().clone(), None if p.grad is None else p.grad.clone(), p.requires_grad, id(p), p.dtype)
             for p in module.parameters()]  # fmt: skip
    kept = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return [parts, [(b.clone(), id(b)) for b in module.buffers()],
            [(part.training, [dict(getattr(part, k)) for k in kept]) for part in module.modules()]]  # fmt: skip


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(left, right) for left, right in zip(a, b, strict=True))
    return bool(a == b)


def test_the_module_and_its_hooks_are_as_before() -> None:
    module, x = ready(ResNet()), rows_for((2, 6, 6), 3, 1)
    expected, calls = empirical_ntk(module, x), []
    module.layer1.register_forward_hook(lambda part, given, made: calls.append("forward"))
    module.fc.register_forward_pre_hook(lambda part, given: (2 * given[0],))
    module.fc.register_full_backward_hook(lambda part, into, out: (torch.zeros_like(into[0]),))
    module.layer2.register_full_backward_pre_hook(lambda part, out: (5 * out[0],))
    for part in (module.relu, module.layer1):
        part.train(False)
    module.avgpool.train()  # harmless
    module(x).sum().backward()
    module.conv1.weight.requires_grad_(False)
    before = state(module)
    for kernel in KERNELS:
        kernel(module, x)
    assert same(state(module), before)
    assert "forward" in calls
    doubled = copy.deepcopy(module)
    for part in doubled.modules():
        part._backward_hooks.clear()
        part._backward_pre_hooks.clear()
    # Forward hooks are part of the function; backward hooks are not.
    torch.testing.assert_close(empirical_ntk(module, x), ntk.empirical_ntk(doubled, x, x))
    assert not torch.allclose(empirical_ntk(module, x), expected)


# --- bad input ------------------------------------------------------------------------------------------------------


class Returns(nn.Module):
    """Makes an output of a user's choice from that of a linear layer, and counts its passes."""

    def __init__(self, then: Callable[[Tensor], Any], *parts: nn.Module) -> None:
        super().__init__()
        self.layer, self.then, self.parts, self.calls = nn.Linear(4, 2), then, nn.ModuleList(parts), 0

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        return self.then(self.layer(x))


def beside(*parts: nn.Module) -> Returns:
    return Returns(lambda f: f, *parts)


X = randn(5, 4, dtype=torch.float32)
BEFORE: list[tuple[nn.Module, Tensor, dict[str, Any], str]] = [
    (beside(nn.BatchNorm2d(3)), X, {}, r"BatchNorm2d 'parts.0' in train mode .*; call module.eval\(\)"),
    (beside(nn.Dropout2d(0.1)), X, {}, r"Dropout2d 'parts.0' in train mode .*; call module.eval\(\)"),
    (beside(nn.MultiheadAttention(4, 2, dropout=0.1)), X, {}, r"MultiheadAttention 'parts.0' in train mode .*eval"),
    (beside(nn.LSTM(4, 2, 2, dropout=0.1)), X, {}, r"LSTM 'parts.0' in train mode .*; call module.eval\(\)"),
    (beside(nn.Embedding(3, 2, sparse=True)), X, {}, "has sparse gradients, .*; set module.sparse = False on it"),
    (beside(nn.EmbeddingBag(3, 2, sparse=True)), X, {}, "EmbeddingBag 'parts.0' has sparse gradients"),
    (beside().to("meta"), X, {}, r"but layer.weight is on the meta device; call module.to_empty\(device='cpu'\)"),
    (beside(nn.Linear(2, 2, device="meta")), X, {}, r"but parts.0.weight is on the meta device; call module.to_empty"),
    (beside(nn.BatchNorm1d(2, device="meta", affine=False).eval()), X, {}, r"the buffers of Returns must have values"),
    (beside().double(), X.half(), {}, r"x is torch.float16 on cpu but the net is torch.float64 .*; convert with x.to"),
    (
        beside(),
        X / X.new_tensor([1, 1, 1, 0]),
        {},
        "x holds NaN or infinite numbers, first in row 0; remove or replace",
    ),
    (beside(), X, {"only": "layers"}, r"only holds 'layers', which is no parameter nor a prefix of one; there are"),
    (beside(nn.Linear(2, 2, dtype=torch.float64)), X, {}, r"must have one dtype .*; convert with module.to\(…\)"),
]
WITHIN: list[tuple[nn.Module, Tensor, dict[str, Any], str]] = [
    (Returns(lambda f: [f, f]), X, {}, "must return one tensor, got list of 2; choose one with output=, a name"),
    (Returns(lambda f: {"b": f, "a": f}), X, {}, r"got dict with \['a', 'b'\]; choose one with output="),
    (Returns(lambda f: {"b": f}), X, {"output": "a"}, r"dict with \['b'\], which has no output='a'; name one it has"),
    (Returns(lambda f: (f, f)), X, {"output": 2}, "returns tuple of 2, which has no output=2; name one it has"),
    (Returns(lambda f: (f, f)), X, {"output": "a"}, "returns tuple of 2, which has no output='a'"),
    (Returns(lambda f: Pooling(f, f)), X, {"output": "pooled"}, "returns Pooling, which has no output='pooled'"),
    (Returns(lambda f: ([f], f)), X, {"output": 0}, "got list of 1 at output=0; choose one with output="),
    (Returns(lambda f: f.argmax(1, keepdim=True)), X, {}, "returns torch.int64, which has no gradient; return what"),
    (Returns(lambda f: f[:, 0]), X, {}, r"must return \(n, c\).* got shape \(\d,\) .*; add a last axis with"),
    (Returns(lambda f: f[..., None]), X, {}, r"must return \(n, c\).* got shape \(\d, 2, 1\) .*; flatten or pool"),
    (
        nn.Sequential(nn.TransformerEncoderLayer(4, 2, 6), nn.Flatten(), nn.Linear(12, 2)).eval(),
        randn(5, 3, 4, dtype=torch.float32),
        {},
        r"rows depend on each other.*'0.self_attn' has batch_first=False: .*; build it with batch_first=True, or tra",
    ),
]


@pytest.mark.parametrize("module, x, options, message", [*BEFORE, *WITHIN])
def test_what_has_no_kernel_is_refused_in_a_line(
    module: nn.Module, x: Tensor, options: dict[str, Any], message: str
) -> None:
    for kernel in KERNELS:
        with pytest.raises(InputError, match=message) as refusal:
            kernel(module, x, **options)
        assert "\n" not in str(refusal.value)
    if any(module is given[0] for given in BEFORE):
        assert isinstance(module, Returns)
        assert module.calls == 0


# --- plans are kept for a module ------------------------------------------------------------------------------------


def assert_right(module: nn.Module, x: Tensor) -> None:
    K = ntk.empirical_ntk(module, x, x)
    torch.testing.assert_close(empirical_ntk(module, x), K, rtol=0, atol=1e-11)
    torch.testing.assert_close(empirical_ntk_trace(module, x), torch.einsum("nmii->nm", K), rtol=0, atol=1e-11)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes the modules that are planned for."""
    names: list[str] = []
    plan = tangents._planned

    def noted(network: Any, *rest: Any) -> Any:
        names.append(network.name)
        return plan(network, *rest)

    monkeypatch.setattr(tangents, "_planned", noted)
    return names


def test_a_plan_serves_later_calls_with_other_weights(planned: list[str]) -> None:
    module, x = ready(Encoder(norm_first=True, activation="gelu")), rows_for(TOKENS, 3, 1)
    assert_right(module, x)
    assert planned == ["Encoder"] * 2  # for the kernel and for the trace
    ready(module, 5)
    assert_right(module, x)
    assert_right(module, rows_for(TOKENS, 3, 2))
    elsewhere = dict(ready(copy.deepcopy(module), 6).named_parameters())
    torch.testing.assert_close(empirical_ntk(module, x, parameters=elsewhere), empirical_ntk(ready(module, 6), x))
    assert planned == ["Encoder"] * 2


class Switching(nn.Module):
    """A net whose forward pass follows an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.activation: Callable[[Tensor], Tensor] = torch.tanh
        self.first, self.second, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.skip, self.times = False, 1

    def forward(self, x: Tensor) -> Tensor:
        h = self.activation(self.first(x))
        z = h
        for _ in range(self.times):
            z = torch.relu(self.second(z))
        return self.last(z + h if self.skip else z)


def softmax(a: Tensor) -> Tensor:
    return a.softmax(1)


def normalize(module: Any) -> None:
    module.last = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3))


def convolve(module: Any) -> None:
    module.second = nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Conv1d(2, 2, 3, padding=1), nn.Flatten())


CHANGES: dict[str, Callable[[Any], Any]] = {
    "an activation": lambda module: setattr(module, "activation", torch.sigmoid),
    "an activation that mixes": lambda module: setattr(module, "activation", softmax),
    "a skip": lambda module: setattr(module, "skip", True),
    "a layer used twice": lambda module: setattr(module, "times", 2),
    "a layer not used": lambda module: setattr(module, "times", 0),
    "more outputs": lambda module: setattr(module, "last", nn.Linear(6, 5)),
    "no bias": lambda module: setattr(module, "second", nn.Linear(6, 6, bias=False)),
    "a normalisation": normalize,
    "a convolution": convolve,
    "a layer left out": lambda module: setattr(module, "second", nn.Identity()),
    "frozen": lambda module: module.second.requires_grad_(False),
    "tied": lambda module: setattr(module.second, "bias", module.first.bias),
    "train mode": lambda module: module.second.train(),
    "weight norm": lambda module: weight_norm(module.second),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_module_has_another_kernel(name: str) -> None:
    module, x = ready(Switching()), rows_for((4,), 4, 1)
    assert_right(module, x)
    CHANGES[name](module)
    module.double()
    assert_right(module, x)
    ready(module, 4)
    assert_right(module, x[:3])


def test_plans_depend_on_rows_output_and_selection(planned: list[str]) -> None:
    module = ready(Bert(dict))
    for x in (rows_for(IDS, 3, 1), rows_for(IDS, 3, 1).int()):
        for choose in ("pooler_output", first_of_dict):
            reference = Chosen(module, choose if callable(choose) else lambda out: out["pooler_output"])
            for only in (None, ["words", "pooler"]):
                names = None if only is None else ["inner.words.weight", "inner.pooler.weight", "inner.pooler.bias"]
                K = ntk.empirical_ntk(reference, x, x, names)
                torch.testing.assert_close(empirical_ntk(module, x, output=choose, only=only), K, rtol=0, atol=1e-11)
    assert len(planned) == 8


def first_of_dict(out: Any) -> Tensor:
    return out["last_hidden_state"][:, 0]


def test_plans_go_with_their_module_and_hold_no_tensors() -> None:
    kept = len(tangents._PLANNED)
    module, x = ready(TorchvisionViT()), rows_for(IMAGE, 3, 1)
    for kernel in KERNELS:
        kernel(module, x)
    assert len(tangents._PLANNED) == kept + 1
    parameter, its_module = weakref.ref(module.heads[0].weight), weakref.ref(module)
    module.heads[0] = nn.Linear(4, 3, dtype=torch.float64)
    gc.collect()
    assert parameter() is None  # though the plan is still there
    assert len(tangents._PLANNED) == kept + 1
    del module
    gc.collect()
    assert its_module() is None
    assert len(tangents._PLANNED) == kept
