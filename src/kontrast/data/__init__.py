"""Data sets, augmented views, and pairs of an anchor with its positives and negatives.

::

    data = kt.data.load("mnist5k").subsample(100, generator=generator)
    pairs = kt.data.make_pairs(data.x, view=kt.data.default_view(data), generator=generator)
    anchor, positive, negative = pairs.split(net(pairs.rows))   # (n, z), (n, P, z), (n, Q, z)
"""

from kontrast.data.conventions import ImageShape, channels_first
from kontrast.data.datasets import Dataset, half_moons, load, load_parts
from kontrast.data.image_views import Affine, Brightness, Contrast, Grey, HorizontalFlip, RandomResizedCrop
from kontrast.data.latent import (
    THRESHOLD_Q,
    LatentCategorical,
    LatentSummation,
    nearly_orthogonal_patterns,
    orthonormal_patterns,
    require_probabilities,
)
from kontrast.data.pairs import Pairs, draw_negatives, make_pairs
from kontrast.data.patches import draw_patches
from kontrast.data.row_views import GaussianNoise, Masking, Mixup
from kontrast.data.views import Compose, View, default_view, fresh_view, parse_view
from kontrast.data.writing import check_writable, write_arrays

__all__ = [
    "THRESHOLD_Q",
    "Affine",
    "Brightness",
    "Compose",
    "Contrast",
    "Dataset",
    "GaussianNoise",
    "Grey",
    "HorizontalFlip",
    "ImageShape",
    "LatentCategorical",
    "LatentSummation",
    "Masking",
    "Mixup",
    "Pairs",
    "RandomResizedCrop",
    "View",
    "channels_first",
    "check_writable",
    "default_view",
    "draw_negatives",
    "draw_patches",
    "fresh_view",
    "half_moons",
    "load",
    "load_parts",
    "make_pairs",
    "nearly_orthogonal_patterns",
    "orthonormal_patterns",
    "parse_view",
    "require_probabilities",
    "write_arrays",
]
