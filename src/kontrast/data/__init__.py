"""Data sets, augmented views, and pairs of an anchor with its positives and negatives.

::

    data = kt.data.load("mnist5k").subsample(100, generator=generator)
    pairs = kt.data.make_pairs(data.x, views=kt.data.default_view(data), generator=generator)
    anchor, positive, negative = pairs.split(net(pairs.rows))   # (n, z), (n, P, z), (n, Q, z)
"""

from kontrast.data.columns import Columns
from kontrast.data.conventions import ImageShape, channels_first, samples_to_tensor
from kontrast.data.datasets import (
    Dataset,
    data_digest,
    half_moons,
    keep_in_memory,
    load,
    load_data,
    load_parts,
    require_contrast,
)
from kontrast.data.image_views import Affine, Brightness, Contrast, Gray, HorizontalFlip, RandomResizedCrop
from kontrast.data.pair_matrix import pair_matrix
from kontrast.data.pairs import Pairs, draw_negatives, make_pairs
from kontrast.data.patches import draw_patches
from kontrast.data.pil_samples import from_pil, is_pil, to_pil
from kontrast.data.row_views import GaussianNoise, Masking, Mixup, RelativeNoise
from kontrast.data.view_batches import view_batches
from kontrast.data.view_parameters import view_parts, view_with_parameters
from kontrast.data.views import Compose, View, default_view, fit_view, fresh_view, parse_view
from kontrast.data.writing import check_writable, write_arrays

__all__ = [
    "Affine",
    "Brightness",
    "Columns",
    "Compose",
    "Contrast",
    "Dataset",
    "GaussianNoise",
    "Gray",
    "HorizontalFlip",
    "ImageShape",
    "Masking",
    "Mixup",
    "Pairs",
    "RandomResizedCrop",
    "RelativeNoise",
    "View",
    "channels_first",
    "check_writable",
    "data_digest",
    "default_view",
    "draw_negatives",
    "draw_patches",
    "fit_view",
    "fresh_view",
    "from_pil",
    "half_moons",
    "is_pil",
    "keep_in_memory",
    "load",
    "load_data",
    "load_parts",
    "make_pairs",
    "pair_matrix",
    "parse_view",
    "require_contrast",
    "samples_to_tensor",
    "to_pil",
    "view_batches",
    "view_parts",
    "view_with_parameters",
    "write_arrays",
]
