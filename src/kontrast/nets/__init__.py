"""Networks: the papers' MLP, activations, any module as a pure function, its linearisation and its curvature."""

from kontrast.nets.activations import ACTIVATIONS, Activation, activation_from, leaky_relu
from kontrast.nets.curvature import HessianNorms, hessian_norm, hessian_vector_product, two_layer_hessian_norm
from kontrast.nets.functional import Linearized, Parameters, PureFunction, parameters_of, pure_function
from kontrast.nets.mlp import MLP, PARAMETRIZATIONS, check_shape

__all__ = [
    "ACTIVATIONS",
    "MLP",
    "PARAMETRIZATIONS",
    "Activation",
    "HessianNorms",
    "Linearized",
    "Parameters",
    "PureFunction",
    "activation_from",
    "check_shape",
    "hessian_norm",
    "hessian_vector_product",
    "leaky_relu",
    "parameters_of",
    "pure_function",
    "two_layer_hessian_norm",
]
