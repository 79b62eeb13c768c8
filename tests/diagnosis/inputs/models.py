"""Small encoders as practitioners build them: a backbone with BatchNorm and a projector on top."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.cases import generator


class SimCLR(nn.Module):
    """A ConvNet with BatchNorm and dropout, and a projector of two linear layers."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(channels, 6, 3),
            nn.BatchNorm2d(6, momentum=0.3),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(0.5),
        )
        self.head = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, affine=False), nn.ReLU(), nn.Linear(5, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))


def drawn(module: nn.Module, seed: int = 0) -> nn.Module:
    """The module in float64 with weights from a seed, in train mode as modules are when they are made."""
    g = generator(seed)
    module.double()
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(0.7 * torch.randn(p.shape, generator=g))
    return module


def images(n: int = 12, *, channels: int = 3, side: int = 8, seed: int = 1) -> Tensor:
    """Random images in [0, 1], float64."""
    return torch.rand(n, channels, side, side, generator=generator(seed), dtype=torch.float64)
