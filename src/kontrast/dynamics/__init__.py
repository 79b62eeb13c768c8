"""Training and its closed-form twins, all returned as one `Trajectory`."""

from kontrast.dynamics.closed_form import dot_product_descent, dot_product_flow
from kontrast.dynamics.deep_linear import (
    DeepLinearFlow,
    Method,
    deep_linear_descent,
    deep_linear_flow,
    train_deep_linear,
)
from kontrast.dynamics.descent import Step, gradient_descent
from kontrast.dynamics.fixed_kernel import fixed_kernel_descent, fixed_kernel_flow
from kontrast.dynamics.flow_laws import Flow, FlowLaw, flow_law
from kontrast.dynamics.learning_rates import LearningRates, learning_rates
from kontrast.dynamics.linearised import (
    LinearisationGap,
    LinearisedFlow,
    LinearisedNetwork,
    linearisation_gap,
    linearised_flow,
    linearised_mse,
)
from kontrast.dynamics.mse import Ensemble, MSETraining, ensemble, mse_training
from kontrast.dynamics.one_layer import (
    Ending,
    FilterFlow,
    FilterRun,
    OneLayerField,
    one_layer_flow,
    power_iteration,
)
from kontrast.dynamics.problem import (
    Problem,
    classification_problem,
    contrastive_problem,
    regression_problem,
    trace_problem,
)
from kontrast.dynamics.times import increasing_times
from kontrast.dynamics.trajectory import Recorder, Snapshot, Status, Trajectory, distance_from

__all__ = [
    "DeepLinearFlow",
    "Ending",
    "Ensemble",
    "FilterFlow",
    "FilterRun",
    "Flow",
    "FlowLaw",
    "LearningRates",
    "LinearisationGap",
    "LinearisedFlow",
    "LinearisedNetwork",
    "MSETraining",
    "Method",
    "OneLayerField",
    "Problem",
    "Recorder",
    "Snapshot",
    "Status",
    "Step",
    "Trajectory",
    "classification_problem",
    "contrastive_problem",
    "deep_linear_descent",
    "deep_linear_flow",
    "distance_from",
    "dot_product_descent",
    "dot_product_flow",
    "ensemble",
    "fixed_kernel_descent",
    "fixed_kernel_flow",
    "flow_law",
    "gradient_descent",
    "increasing_times",
    "learning_rates",
    "linearisation_gap",
    "linearised_flow",
    "linearised_mse",
    "mse_training",
    "one_layer_flow",
    "power_iteration",
    "regression_problem",
    "trace_problem",
    "train_deep_linear",
]
