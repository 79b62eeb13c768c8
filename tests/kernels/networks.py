"""Look-alikes of networks in use, small enough for every test: transformers, ResNets, embeddings, derived weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from tests.cases import generator, randn


class Attend(nn.Module):
    """nn.MultiheadAttention over three tokens, with keys and values of other widths if asked."""

    def __init__(self, *, weights: bool = False, kdim: int = 4, vdim: int = 4, **options: bool) -> None:
        super().__init__()
        self.weights, self.kdim, self.vdim, self.out = weights, kdim, vdim, nn.Linear(12, 2)
        self.attend = nn.MultiheadAttention(4, 2, kdim=kdim, vdim=vdim, batch_first=True, **options)

    def forward(self, x: Tensor) -> Tensor:
        h, weights = self.attend(x, x[..., : self.kdim], x[..., : self.vdim], need_weights=self.weights)
        return self.out(h.flatten(1)) + (weights.sum(2)[:, :2] * x[:, 0, :2] if self.weights else 0)


class Encoder(nn.Module):
    """Class token, learned positions, nn.TransformerEncoder, LayerNorm; of tokens or, as a ViT, of patches."""

    def __init__(self, *, norm_first: bool = True, activation: str = "gelu", patches: bool = False) -> None:
        super().__init__()
        self.patch = nn.Conv2d(2, 4, 2, stride=2) if patches else None
        self.token, self.positions = nn.Parameter(torch.empty(1, 1, 4)), nn.Parameter(torch.empty(1, 5, 4))
        layer = nn.TransformerEncoderLayer(4, 2, 6, activation=activation, norm_first=norm_first, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first)
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).reshape(len(x), 4, 4).permute(0, 2, 1) if self.patch is not None else x
        h = torch.cat([self.token.expand(len(x), -1, -1), h], dim=1)
        return self.head(self.norm(self.encoder(h + self.positions[:, : h.shape[1]])[:, 0]))


class TimmViT(nn.Module):
    """Timm's attention, LayerScale, Swin's table of relative position biases, and a classifier by cosines."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.norm, self.proj = nn.Conv2d(2, 4, 2, stride=2), nn.LayerNorm(4), nn.Linear(4, 4)
        self.qkv, self.pos, self.table = (
            nn.Linear(4, 12),
            nn.Parameter(torch.ones(4, 4)),
            nn.Parameter(torch.ones(9, 2)),
        )
        self.q_norm, self.k_norm, self.gamma = nn.LayerNorm(2), nn.LayerNorm(2), nn.Parameter(torch.ones(4))
        self.head, self.scale = nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(1))
        at = torch.cartesian_prod(torch.arange(2), torch.arange(2))
        self.register_buffer("index", ((at[:, None] - at + 1) * torch.tensor([3, 1])).sum(-1))

    def forward(self, images: Tensor) -> Tensor:
        h = self.patch(images).flatten(2).transpose(1, 2) + self.pos
        q, k, v = self.qkv(self.norm(h)).reshape(*h.shape[:2], 3, 2, 2).permute(2, 0, 3, 1, 4).unbind(0)
        z = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v)
        bias = self.table[self.index.view(-1)].view(4, 4, -1).permute(2, 0, 1).contiguous().unsqueeze(0)
        z = z + (q @ k.transpose(-2, -1) + bias).softmax(dim=-1) @ v
        h = h + self.proj(z.transpose(1, 2).reshape(h.shape)) * self.gamma
        return self.scale * F.linear(F.normalize(h.mean(dim=1)), F.normalize(self.head))


class ResNet(nn.Module):
    """Torchvision's stem, a block with a stride and a projection, and head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.maxpool = nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.MaxPool2d(3, 2, 1)
        self.conv2, self.bn2 = nn.Conv2d(4, 6, 3, 2, 1, bias=False), nn.BatchNorm2d(6)
        self.downsample = nn.Sequential(nn.Conv2d(4, 6, 1, 2, bias=False), nn.BatchNorm2d(6))
        self.relu, self.avgpool, self.fc = nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        z = self.bn2(self.conv2(h))
        z += self.downsample(h)
        return self.fc(torch.flatten(self.avgpool(self.relu(z)), 1))


@dataclass
class Outputs:
    """What Hugging Face's models return."""

    last_hidden_state: Tensor
    pooler_output: Tensor


class Bert(nn.Module):
    """Hugging Face's: embeddings added, a post-norm block with attention by matrix products, a pooler."""

    def __init__(self, kind: Callable[..., Any] = Outputs) -> None:
        super().__init__()
        self.kind, self.words, self.places = kind, nn.Embedding(7, 4, padding_idx=0), nn.Embedding(3, 4)
        self.register_buffer("position_ids", torch.arange(3)[None])
        self.query, self.key, self.value, self.pooler = (nn.Linear(4, 4) for _ in range(4))
        self.norm, self.after = nn.LayerNorm(4), nn.LayerNorm(4)

    def forward(self, ids: Tensor) -> Any:
        h = self.norm(self.words(ids) + self.places(self.position_ids))
        q, k, v = (part(h).view(*h.shape[:2], 2, 2).transpose(1, 2) for part in (self.query, self.key, self.value))
        mask = (ids == 0).to(h.dtype)[:, None, None, :] * torch.finfo(h.dtype).min
        z = torch.softmax(q @ k.transpose(-1, -2) / 2**0.5 + mask, dim=-1) @ v
        h = self.after(z.permute(0, 2, 1, 3).reshape(h.shape) + h)
        return self.kind(last_hidden_state=h, pooler_output=torch.tanh(self.pooler(h[:, 0])))


class Reads(nn.Module):
    """Maps of sixteen tokens, of which one is read: the first, or the one whose first number is largest."""

    def __init__(self, *, largest: bool = False) -> None:
        super().__init__()
        self.largest, self.mix = largest, nn.Conv1d(16, 16, 1)
        self.up, self.norm, self.down, self.head = nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        at = x[..., 0].argmax(1) if self.largest else torch.zeros(len(x), dtype=torch.long)
        h = self.down(torch.tanh(self.norm(self.up(x + torch.tanh(self.mix(x))))))
        return self.head(torch.tanh(h[torch.arange(len(x)), at]))


def normed(by: Callable[[nn.Module], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # a spectral norm starts from random vectors
        return nn.Sequential(by(nn.Conv1d(2, 4, 2)), nn.ReLU(), nn.Flatten(), by(nn.Linear(8, 3)))


TOKENS, IMAGE, IDS = (3, 4), (2, 4, 4), ()
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "attention": (Attend, TOKENS),
    "attention with weights": (lambda: Attend(weights=True), TOKENS),
    "attention to others": (lambda: Attend(kdim=3, vdim=2), TOKENS),
    "attention to others with weights": (lambda: Attend(kdim=3, vdim=2, weights=True), TOKENS),
    "attention with learned keys": (lambda: Attend(add_bias_kv=True, add_zero_attn=True), TOKENS),
    "attention without biases": (lambda: Attend(bias=False), TOKENS),
    "encoder": (Encoder, TOKENS),
    "torchvision ViT": (lambda: Encoder(patches=True), IMAGE),
    "timm ViT": (TimmViT, IMAGE),
    "ResNet": (ResNet, (2, 8, 8)),
    "BERT": (lambda: Bert(lambda **outputs: outputs["pooler_output"]), IDS),
    "one token of sixteen": (Reads, (16, 4)),
    "weight norm": (lambda: normed(weight_norm), (2, 3)),
    "spectral norm": (lambda: normed(spectral_norm), (2, 3)),
}


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


def rows_for(shape: tuple[int, ...], n: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random rows; of three token ids, the first no padding, if there is no shape."""
    ids = torch.randint(0, 7, (n, 3), generator=generator(seed))
    ids[:, 0].clamp_(min=1)
    return randn(n, *shape, seed=seed, dtype=dtype) if shape else ids


def of_type(rows: Tensor, dtype: torch.dtype) -> Tensor:
    return rows.to(dtype) if rows.is_floating_point() else rows
