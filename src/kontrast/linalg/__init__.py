"""Matrices, never networks: operators, eigenpairs, solves, angles, frames, ranks and similarities, fits."""

from kontrast.linalg.alignment import KernelDrift, cka, condition_number, kernel_alignment, kernel_drift
from kontrast.linalg.conjugate_gradients import nystrom_preconditioner
from kontrast.linalg.eigen import (
    Eigenpairs,
    ExtremeEigenvalues,
    eigenvalue_rounding,
    extreme_eigenvalues,
    fix_signs,
    largest_eigenpairs,
    spectral_norm,
    top_eigenpairs,
)
from kontrast.linalg.fits import LogLaw, PowerLaw, fit_log_law, fit_power_law
from kontrast.linalg.frames import (
    cayley_step,
    frobenius_ball,
    grassmann_step,
    operator_ball,
    orthonormality_error,
    polar_step,
    qr_retraction,
    random_frame,
)
from kontrast.linalg.operators import as_operator, as_symmetric, require_symmetric
from kontrast.linalg.ranks import effective_rank, entropy_rank, participation_ratio, relative_spread
from kontrast.linalg.solves import (
    LeaveOneOut,
    Posterior,
    RidgeSolution,
    RidgeSystem,
    gp_covariance,
    gp_posterior,
    leave_one_out,
    log_marginal_likelihood,
    ridge_solve,
)
from kontrast.linalg.subspaces import best_rotation, subspace_sines

__all__ = [
    "Eigenpairs",
    "ExtremeEigenvalues",
    "KernelDrift",
    "LeaveOneOut",
    "LogLaw",
    "Posterior",
    "PowerLaw",
    "RidgeSolution",
    "RidgeSystem",
    "as_operator",
    "as_symmetric",
    "best_rotation",
    "cayley_step",
    "cka",
    "condition_number",
    "effective_rank",
    "eigenvalue_rounding",
    "entropy_rank",
    "extreme_eigenvalues",
    "fit_log_law",
    "fit_power_law",
    "fix_signs",
    "frobenius_ball",
    "gp_covariance",
    "gp_posterior",
    "grassmann_step",
    "kernel_alignment",
    "kernel_drift",
    "largest_eigenpairs",
    "leave_one_out",
    "log_marginal_likelihood",
    "nystrom_preconditioner",
    "operator_ball",
    "orthonormality_error",
    "participation_ratio",
    "polar_step",
    "qr_retraction",
    "random_frame",
    "relative_spread",
    "require_symmetric",
    "ridge_solve",
    "spectral_norm",
    "subspace_sines",
    "top_eigenpairs",
]
