"""Data sets, augmented views, and pairs of an anchor with its positives and negatives.

::

    data = kt.data.load("mnist5k").subsample(100, generator=generator)
    pairs = kt.data.make_pairs(data.x, view=kt.data.default_view(data), generator=generator)
    anchor, positive, negative = pairs.split(net(pairs.rows))   # (n, z), (n, P, z), (n, Q, z)
"""

from kontrast.data.datasets import Dataset, half_moons, load
from kontrast.data.pairs import Pairs, make_pairs
from kontrast.data.views import (
    Compose,
    GaussianNoise,
    HorizontalFlip,
    RandomResizedCrop,
    View,
    default_view,
    parse_view,
)

__all__ = [
    "Compose",
    "Dataset",
    "GaussianNoise",
    "HorizontalFlip",
    "Pairs",
    "RandomResizedCrop",
    "View",
    "default_view",
    "half_moons",
    "load",
    "make_pairs",
    "parse_view",
]
