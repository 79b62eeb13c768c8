"""SimCLR as people train it: AdamW, warm-up and cosine schedule, NT-Xent; and a small ConvNet for it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn

import kontrast as kt

WEIGHT_DECAY = 1e-4
WARM_UP = 0.05  # of the steps; then the learning rate falls along a cosine


class ConvNet(nn.Module):
    """Four blocks of convolution, batch norm, ReLU and pooling, 256 channels at the end; a head of two layers."""

    def __init__(self, n_channels: int, generator: torch.Generator) -> None:
        super().__init__()
        sizes = (n_channels, 64, 128, 128, 256)
        blocks: list[nn.Module] = []
        for i, (size, following) in enumerate(pairwise(sizes)):
            blocks += [nn.Conv2d(size, following, 3, padding=1, bias=False), nn.BatchNorm2d(following), nn.ReLU()]
            blocks.append(nn.MaxPool2d(2) if i < 3 else nn.AdaptiveAvgPool2d(1))
        self.body = nn.Sequential(*blocks, nn.Flatten())
        self.head = nn.Sequential(
            nn.Linear(256, 256, bias=False), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 128, bias=False)
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of the head."""
        return self.head(self.body(x))


def train_simclr(
    net: nn.Module,
    x: Tensor,
    *,
    views: str,
    epochs: int,
    batch: int,
    learning_rate: float,
    temperature: float,
    seed: int,
) -> None:
    """Two fresh views of every sample an epoch; nothing in the loop waits for the device."""
    view, generator = kt.data.parse_view(views), torch.Generator(x.device).manual_seed(seed)
    batch = min(batch, len(x))
    n_batches = len(x) // batch
    n_steps = epochs * n_batches
    optimizer = torch.optim.AdamW(
        net.parameters(), lr=learning_rate, weight_decay=WEIGHT_DECAY, fused=x.device.type == "cuda"
    )

    def rate(step: int) -> float:
        return min(1.0, (step + 1) / (WARM_UP * n_steps)) * (1 + math.cos(math.pi * step / n_steps)) / 2

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    net.train()
    with torch.enable_grad(), tf32() if x.is_cuda else contextlib.nullcontext():
        for _ in range(epochs):
            order = torch.randperm(len(x), generator=generator, device=x.device)[: n_batches * batch]
            for rows in order.split(batch):
                images = x[rows]
                both = torch.cat([view(images, generator), view(images, generator)])
                a, b = net(both).chunk(2)
                optimizer.zero_grad()
                kt.losses.nt_xent(a, b, temperature=temperature).total.backward()
                optimizer.step()
                schedule.step()


@contextlib.contextmanager
def tf32() -> Iterator[None]:
    """Matrix products on a GPU rounded to TF32 for a while."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
