"""Tangent and NNGP kernels: of any module at finite width, of MLPs at infinite width, tile by tile for big n."""

from kontrast.kernels.drift import ntk_drift
from kontrast.kernels.empirical import (
    empirical_ntk,
    empirical_ntk_components,
    empirical_ntk_diagonal,
    empirical_ntk_mean,
    empirical_ntk_trace,
)
from kontrast.kernels.estimates import KernelEstimate, empirical_ntk_along, empirical_ntk_trace_estimate
from kontrast.kernels.infinite import InfiniteNetwork, QuadratureError, infinite_nngp, infinite_ntk
from kontrast.kernels.kernel_functions import (
    KERNEL_TILE,
    CosineKernel,
    FeatureKernel,
    GaussianKernel,
    Kernel,
    NetworkKernel,
    TangentKernel,
    kernel_from_state,
)
from kontrast.kernels.ntk_operator import NTKOperator
from kontrast.kernels.sketches import NTKSketch, SketchedDrift, SketchWarning
from kontrast.kernels.sketching import empirical_ntk_sketch
from kontrast.kernels.tiles import tiled

__all__ = [
    "KERNEL_TILE",
    "CosineKernel",
    "FeatureKernel",
    "GaussianKernel",
    "InfiniteNetwork",
    "Kernel",
    "KernelEstimate",
    "NTKOperator",
    "NTKSketch",
    "NetworkKernel",
    "QuadratureError",
    "SketchWarning",
    "SketchedDrift",
    "TangentKernel",
    "empirical_ntk",
    "empirical_ntk_along",
    "empirical_ntk_components",
    "empirical_ntk_diagonal",
    "empirical_ntk_mean",
    "empirical_ntk_sketch",
    "empirical_ntk_trace",
    "empirical_ntk_trace_estimate",
    "infinite_nngp",
    "infinite_ntk",
    "kernel_from_state",
    "ntk_drift",
    "tiled",
]
