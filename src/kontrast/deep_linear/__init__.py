"""Paper B: data matrix, collapse, constraints, the flow of deep linear networks, almost linear networks."""

from kontrast.deep_linear.collapse import Collapse, kernel_collapse, linear_collapse
from kontrast.deep_linear.constrained import ConstrainedOptimum, Constraint, constrained_descent, constrained_optimum
from kontrast.deep_linear.data_matrix import data_matrix, expected_data_matrix, pair_weights
from kontrast.deep_linear.flow import DeepLinearFlow, Method, deep_linear_descent, deep_linear_flow, train_deep_linear
from kontrast.deep_linear.flow_laws import Flow, FlowLaw, flow_law
from kontrast.deep_linear.nonlinearity import NonlinearGap, nonlinear_gap, output_gap, unit_slope
from kontrast.deep_linear.scaled import scaled

__all__ = [
    "Collapse",
    "ConstrainedOptimum",
    "Constraint",
    "DeepLinearFlow",
    "Flow",
    "FlowLaw",
    "Method",
    "NonlinearGap",
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
    "scaled",
    "train_deep_linear",
    "unit_slope",
]
