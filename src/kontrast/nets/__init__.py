"""Networks: the papers' MLP, activations, frozen features; any module as a pure function, linearised, its curvature."""

from kontrast.nets.activations import ACTIVATIONS, Activation, Pointwise, activation_from, leaky_relu
from kontrast.nets.curvature import hessian_norm, two_layer_hessian_norm
from kontrast.nets.feature_maps import (
    EncoderFeatures,
    FeatureMap,
    FourierFeatures,
    NetworkFeatures,
    PatchFeatures,
    ScaledFeatures,
    median_distance,
)
from kontrast.nets.functional import (
    Linearized,
    Parameters,
    PureFunction,
    last_features,
    parameters_of,
    pure_function,
    require_deterministic,
)
from kontrast.nets.mlp import MLP, PARAMETRIZATIONS, check_shape, hidden_activations
from kontrast.nets.slopes import slopes_of
from kontrast.nets.stacks import Stack, one_run, stack_of

__all__ = [
    "ACTIVATIONS",
    "MLP",
    "PARAMETRIZATIONS",
    "Activation",
    "EncoderFeatures",
    "FeatureMap",
    "FourierFeatures",
    "Linearized",
    "NetworkFeatures",
    "Parameters",
    "PatchFeatures",
    "Pointwise",
    "PureFunction",
    "ScaledFeatures",
    "Stack",
    "activation_from",
    "check_shape",
    "hessian_norm",
    "hidden_activations",
    "last_features",
    "leaky_relu",
    "median_distance",
    "one_run",
    "parameters_of",
    "pure_function",
    "require_deterministic",
    "slopes_of",
    "stack_of",
    "two_layer_hessian_norm",
]
