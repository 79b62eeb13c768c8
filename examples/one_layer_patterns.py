"""Which patterns of real digits a one-layer contrastive network can learn: ReLU filters beside linear ones.

    python examples/one_layer_patterns.py [FIGURE.png]

From many random starts filters come to rest at patterns of 7 × 7 patches of MNIST (paper C, Sec. 3). On patches as they
are there are few, on whitened ones many; linear filters find one direction, or none where all have the same variance.
With a name for it, a figure shows the patterns of the whitened patches.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import kontrast as kt

SIDE, N_PATCHES, N_STARTS = 7, 600, 96
N_WHITE = 12  # principal components that whitening keeps


def whitened(x: torch.Tensor) -> torch.Tensor:
    """Rows with variance 1 along their first principal components and 0 along the others, as pixels again."""
    u, _, vh = torch.linalg.svd(x, full_matrices=False)
    return u[:, :N_WHITE] @ vh[:N_WHITE] * len(x) ** 0.5


def main(figure: Path | None) -> None:
    generator = torch.Generator().manual_seed(0)
    digits = kt.load("mnist5k", dtype=torch.float64)
    patches = kt.data.draw_patches(digits, SIDE, N_PATCHES, generator=generator, min_std=0.1)
    x = patches - patches.mean(1, keepdim=True)
    x = x - x.mean(0)

    print("patches      activation  patterns  stable  certified  largest basin")
    for name, rows, activation in (
        ("as they are", x, "linear"),
        ("as they are", x, "relu"),
        ("whitened", whitened(x), "relu"),
    ):
        found = kt.patterns.find_lmes(
            rows, activation=activation, n_starts=N_STARTS, distinct=0.3, tolerance=1e-6, generator=generator
        )
        stable, certified = int(found.stable.sum()), int(found.certified.sum())
        print(
            f"{name:<12} {activation:<10} {len(found):>9} {stable:>7} {certified:>10} {float(found.basins[0]):>14.2f}"
        )
    if figure is not None:
        kt.report.write_pattern_figure(figure, found, image_shape=(SIDE, SIDE))
        print("figure:", figure)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
