"""Networks: the papers' MLP, activations with their derivatives, any module as a pure function, linearisation."""

from kontrast.nets.activations import ACTIVATIONS, Activation, activation_from, leaky_relu
from kontrast.nets.functional import Linearized, Parameters, PureFunction, parameters_of, pure_function
from kontrast.nets.mlp import MLP, PARAMETRIZATIONS, check_shape

__all__ = [
    "ACTIVATIONS",
    "MLP",
    "PARAMETRIZATIONS",
    "Activation",
    "Linearized",
    "Parameters",
    "PureFunction",
    "activation_from",
    "check_shape",
    "leaky_relu",
    "parameters_of",
    "pure_function",
]
