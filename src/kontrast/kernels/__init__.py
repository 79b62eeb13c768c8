"""Tangent and NNGP kernels: of any module at finite width, of MLPs at infinite width, tile by tile for big n."""

from kontrast.kernels.empirical import empirical_ntk, empirical_ntk_trace
from kontrast.kernels.infinite import InfiniteNetwork, QuadratureError, infinite_nngp, infinite_ntk
from kontrast.kernels.tiles import tiled

__all__ = [
    "InfiniteNetwork",
    "QuadratureError",
    "empirical_ntk",
    "empirical_ntk_trace",
    "infinite_nngp",
    "infinite_ntk",
    "tiled",
]
