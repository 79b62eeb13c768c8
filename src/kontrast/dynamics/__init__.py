"""Training and its closed-form twins, all returned as one `Trajectory`."""

from kontrast.dynamics.critical_rate import critical_rate
from kontrast.dynamics.descent import Step, gradient_descent
from kontrast.dynamics.fixed_kernel import fixed_kernel_descent, fixed_kernel_flow, flat_kernel
from kontrast.dynamics.loop import descend
from kontrast.dynamics.many_runs import SETTLED_SHARE, Ending, ManyRuns, checkpoints_of, output_gap, train_many
from kontrast.dynamics.optimizers import OPTIMIZERS, Optimizer, OptimizerState, optimizer_from
from kontrast.dynamics.problem import (
    Problem,
    classification_problem,
    contrastive_problem,
    regression_problem,
    trace_problem,
)
from kontrast.dynamics.trajectory import Recorder, Snapshot, Status, Tape, Trajectory, distance_from

__all__ = [
    "OPTIMIZERS",
    "SETTLED_SHARE",
    "Ending",
    "ManyRuns",
    "Optimizer",
    "OptimizerState",
    "Problem",
    "Recorder",
    "Snapshot",
    "Status",
    "Step",
    "Tape",
    "Trajectory",
    "checkpoints_of",
    "classification_problem",
    "contrastive_problem",
    "critical_rate",
    "descend",
    "distance_from",
    "fixed_kernel_descent",
    "fixed_kernel_flow",
    "flat_kernel",
    "gradient_descent",
    "optimizer_from",
    "output_gap",
    "regression_problem",
    "trace_problem",
    "train_many",
]
