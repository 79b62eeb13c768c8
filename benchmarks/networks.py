"""The networks whose tangent kernels are measured: pictures of 3×32×32, ten outputs, the same weights every time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def seeded() -> Iterator[None]:
    """Inside, torch draws the same numbers every time; the caller's generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


class Block(nn.Module):
    """Two convolutions and a shortcut (He et al. 2016)."""

    def __init__(self, d_in: int, d_out: int, stride: int) -> None:
        """The shortcut is a convolution of 1×1 where the shape changes."""
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(d_in, d_out, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(d_out),
            nn.ReLU(inplace=True),
            nn.Conv2d(d_out, d_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(d_out),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or d_in != d_out:
            self.shortcut.extend([nn.Conv2d(d_in, d_out, 1, stride, bias=False), nn.BatchNorm2d(d_out)])

    def forward(self, x: Tensor) -> Tensor:
        """Maps (n, d_in, h, w) to (n, d_out, h / stride, w / stride)."""
        return (self.inner(x) + self.shortcut(x)).relu()


def resnet18(n_outputs: int = 10, width: int = 64) -> nn.Module:
    """ResNet-18 for CIFAR: a first convolution of 3×3 and no pooling after it; 11.2 M weights, in eval mode."""
    with seeded():
        layers = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        d_in = width
        for d_out, stride in ((width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)):
            layers += [Block(d_in, d_out, stride), Block(d_out, d_out, 1)]
            d_in = d_out
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(d_in, n_outputs)).eval()


class ViT(nn.Module):
    """Patches of 4×4, a class token, learned positions, six encoder layers of 192 units; 2.7 M weights."""

    def __init__(self, n_outputs: int = 10, width: int = 192, depth: int = 6) -> None:
        """Three heads; the norms come before attention and before the two linear layers, with GELU between these."""
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 65, width))
        layer = nn.TransformerEncoderLayer(width, 3, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """The head reads the class token alone."""
        tokens = self.patches(x).flatten(2).mT
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.positions
        return self.head(self.encoder(tokens)[:, 0])


def vit(n_outputs: int = 10) -> nn.Module:
    """The small vision transformer, in eval mode."""
    with seeded():
        return ViT(n_outputs).eval()


def convnet() -> nn.Module:
    """Two convolutions and a linear layer; 25,578 parameters."""
    with seeded():
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 8 * 8, 10),
        )


NETWORKS = {"resnet18": resnet18, "vit": vit, "convnet": convnet}
