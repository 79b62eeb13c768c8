"""Training and its closed-form twins, all returned as one `Trajectory`."""

from kontrast.dynamics.closed_form import dot_product_descent, dot_product_flow
from kontrast.dynamics.descent import gradient_descent
from kontrast.dynamics.fixed_kernel import fixed_kernel_descent, fixed_kernel_flow
from kontrast.dynamics.problem import Problem, contrastive_problem
from kontrast.dynamics.trajectory import Recorder, Snapshot, Status, Trajectory, distance_from

__all__ = [
    "Problem",
    "Recorder",
    "Snapshot",
    "Status",
    "Trajectory",
    "contrastive_problem",
    "distance_from",
    "dot_product_descent",
    "dot_product_flow",
    "fixed_kernel_descent",
    "fixed_kernel_flow",
    "gradient_descent",
]
