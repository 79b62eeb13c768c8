"""Networks: the papers' MLP, activations, any module as a pure function, its linearisation and curvature; features."""

from kontrast.nets.activations import ACTIVATIONS, Activation, activation_from, leaky_relu
from kontrast.nets.curvature import HessianNorms, hessian_norm, hessian_vector_product, two_layer_hessian_norm
from kontrast.nets.feature_maps import (
    EncoderFeatures,
    FeatureMap,
    FourierFeatures,
    NetworkFeatures,
    PatchFeatures,
    ScaledFeatures,
    median_distance,
)
from kontrast.nets.functional import Linearized, Parameters, PureFunction, parameters_of, pure_function
from kontrast.nets.homogeneous import Homogeneous, homogeneous_from
from kontrast.nets.mlp import MLP, PARAMETRIZATIONS, check_shape, hidden_activations
from kontrast.nets.nonlinearity import NonlinearGap, nonlinear_gap, output_gap, unit_slope

__all__ = [
    "ACTIVATIONS",
    "MLP",
    "PARAMETRIZATIONS",
    "Activation",
    "EncoderFeatures",
    "FeatureMap",
    "FourierFeatures",
    "HessianNorms",
    "Homogeneous",
    "Linearized",
    "NetworkFeatures",
    "NonlinearGap",
    "Parameters",
    "PatchFeatures",
    "PureFunction",
    "ScaledFeatures",
    "activation_from",
    "check_shape",
    "hessian_norm",
    "hessian_vector_product",
    "hidden_activations",
    "homogeneous_from",
    "leaky_relu",
    "median_distance",
    "nonlinear_gap",
    "output_gap",
    "parameters_of",
    "pure_function",
    "two_layer_hessian_norm",
    "unit_slope",
]
