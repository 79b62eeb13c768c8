"""Small samples for the estimators' tests: rows around a few centres, images of bars, and views of both."""

from __future__ import annotations

import numpy as np
import torch

Array = np.ndarray


def rows(n: int = 40, d: int = 6, *, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(4, d))[rng.integers(4, size=n)] * 2 + rng.normal(size=(n, d))


def pairs(n: int = 40, d: int = 6, *, noise: float = 0.4, seed: int = 0) -> tuple[Array, Array]:
    """Anchors and a positive of each."""
    x = rows(n, d, seed=seed)
    return x, x + noise * np.random.default_rng(seed + 1).normal(size=x.shape)


def row_views(v: int = 3, n: int = 40, d: int = 6, *, noise: float = 0.4, seed: int = 0) -> list[Array]:
    x = rows(n, d, seed=seed)
    rng = np.random.default_rng(seed + 1)
    return [x + noise * rng.normal(size=x.shape) for _ in range(v)]


def pictures(n: int = 24, h: int = 8, w: int = 8, *, channels: int = 0, seed: int = 0) -> Array:
    """(n, h, w), or (n, h, w, channels): a bright bar at a random place over noise, in [0, 1]."""
    rng = np.random.default_rng(seed)
    shape = (n, h, w, channels) if channels else (n, h, w)
    x = 0.3 * rng.random(shape)
    for image, row in zip(x, rng.integers(h, size=n), strict=True):
        image[row] += 0.6
    return x


def as_tensor(x: Array) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(x))
