"""Is your own network a kernel machine? The map of a ConvNet that this file builds, over widths and learning rates.

On the command line, with your images: kontrast study --model examples/convnet.py:build --data images.npz --budget 5m
"""

from __future__ import annotations

import torch
from torch import nn

import kontrast as kt


def build(width: int, generator: torch.Generator) -> nn.Module:
    """Three convolutional layers and a linear head; torch draws their weights from a stream that is seeded for you."""
    return nn.Sequential(
        nn.LazyConv2d(width, 4, stride=4, bias=False),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, stride=2, padding=1, bias=False),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, stride=2, padding=1, bias=False),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, 16, bias=False),
    )


def main() -> None:
    found = kt.study.run(
        build, "digits", loss="nt_xent", optimizer="adam", widths=(8, 16), rates=(1, 10), n_seeds=2, max_steps=150
    )
    print(found.verdict)
    for cell in found.map.cells:
        print(
            f"width {cell.width}, rate {cell.rate:g}: {cell.regime.word}, kernel gap {cell.numbers['map_gap'].mean:.2f}"
        )


if __name__ == "__main__":
    main()
