"""Paper D: McKinzie's review of Lee et al., "Wide Neural Networks of Any Depth Evolve as Linear Models" (2019).

https://arxiv.org/abs/1902.06720, and of Simon et al., "The Eigenlearning Framework" (2021),
https://arxiv.org/abs/2110.03922. A wide network trains like its linearisation, so it learns like kernel regression, and
the eigenvalues of the kernel predict how much of a function it learns from n samples.
"""

from kontrast.learnability.bounds import (
    JacobianBall,
    LinearizationConstants,
    closed_ball,
    gronwall,
    gronwall_at_new_point,
    jacobian_at,
    linearization_constants,
    required_width,
    taylor_remainder,
    theorem_b2,
    theorem_b3,
)
from kontrast.learnability.calibrated import CalibratedCurve, SamplesNeeded, calibrated_curve
from kontrast.learnability.domains import (
    Parities,
    circle,
    circle_spectrum,
    hypercube,
    hypercube_spectrum,
    parities,
    sphere_spectrum,
    zonal_polynomials,
)
from kontrast.learnability.eigenlearning import Prediction, Spectrum, kappa, predict_learning
from kontrast.learnability.learning_rates import learning_rates
from kontrast.learnability.left_out import LeftOut, left_out
from kontrast.learnability.linearized import linearization_gap, linearized_flow, linearized_mse
from kontrast.learnability.measured import MeasuredLearning, learnability, measure_learning
from kontrast.learnability.mse import MSETraining, ensemble, mse_training
from kontrast.learnability.pointwise import PointPrediction, predict_at_points
from kontrast.learnability.regression import KernelRegression, kernel_regression
from kontrast.learnability.transfer import Eigensystem, eigensystem, transfer_derivative, transfer_matrix

__all__ = [
    "CalibratedCurve",
    "Eigensystem",
    "JacobianBall",
    "KernelRegression",
    "LeftOut",
    "LinearizationConstants",
    "MSETraining",
    "MeasuredLearning",
    "Parities",
    "PointPrediction",
    "Prediction",
    "SamplesNeeded",
    "Spectrum",
    "calibrated_curve",
    "circle",
    "circle_spectrum",
    "closed_ball",
    "eigensystem",
    "ensemble",
    "gronwall",
    "gronwall_at_new_point",
    "hypercube",
    "hypercube_spectrum",
    "jacobian_at",
    "kappa",
    "kernel_regression",
    "learnability",
    "learning_rates",
    "left_out",
    "linearization_constants",
    "linearization_gap",
    "linearized_flow",
    "linearized_mse",
    "measure_learning",
    "mse_training",
    "parities",
    "predict_at_points",
    "predict_learning",
    "required_width",
    "sphere_spectrum",
    "taylor_remainder",
    "theorem_b2",
    "theorem_b3",
    "transfer_derivative",
    "transfer_matrix",
    "zonal_polynomials",
]
