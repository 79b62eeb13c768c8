"""Paper B: Esser, Mukherjee, Ghoshdastidar, "Representation Learning Dynamics of Self-Supervised Models" (2023).

https://arxiv.org/abs/2309.02011. A linear model's loss is a trace with the `data_matrix` C. Without constraints its
outputs collapse; under constraints they keep the dimensions that C offers, and the outputs of a deep network obey one
flow, which almost linear networks follow too.
"""

from kontrast.deep_linear.collapse import Collapse, kernel_collapse, linear_collapse
from kontrast.deep_linear.constrained import Constraint, constrained_descent, constrained_optimum
from kontrast.deep_linear.data_matrix import data_matrix, expected_data_matrix, pair_weights
from kontrast.deep_linear.flow_laws import Flow, FlowLaw, flow_law
from kontrast.deep_linear.nonlinearity import nonlinear_gap, output_gap, unit_slope
from kontrast.deep_linear.orthogonal_flow import (
    DeepLinearFlow,
    Method,
    deep_linear_descent,
    deep_linear_flow,
    train_deep_linear,
)
from kontrast.deep_linear.scaled_loss import scaled_loss

__all__ = [
    "Collapse",
    "Constraint",
    "DeepLinearFlow",
    "Flow",
    "FlowLaw",
    "Method",
    "constrained_descent",
    "constrained_optimum",
    "data_matrix",
    "deep_linear_descent",
    "deep_linear_flow",
    "expected_data_matrix",
    "flow_law",
    "kernel_collapse",
    "linear_collapse",
    "nonlinear_gap",
    "output_gap",
    "pair_weights",
    "scaled_loss",
    "train_deep_linear",
    "unit_slope",
]
