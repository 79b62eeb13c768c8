"""Matrices, never networks: eigenpairs, kernel solves and measures, frames and subspaces, fits with intervals."""

from kontrast.linalg.eigen import (
    Eigenpairs,
    ExtremeEigenvalues,
    SpectralNorm,
    extreme_eigenvalues,
    fix_signs,
    largest_eigenpairs,
    spectral_norm,
    top_eigenpairs,
)
from kontrast.linalg.fits import LogLaw, PowerLaw, fit_log_law, fit_power_law
from kontrast.linalg.frames import (
    grassmann_step,
    grassmann_tangent,
    orthonormality_error,
    polar_retraction,
    qr_retraction,
    random_frame,
)
from kontrast.linalg.operators import Operator, OperatorLike, as_operator
from kontrast.linalg.similarity import (
    ConditionNumber,
    KernelDrift,
    cka,
    condition_number,
    entropy_rank,
    kernel_alignment,
    kernel_drift,
    participation_ratio,
)
from kontrast.linalg.solves import (
    Posterior,
    RidgeSolution,
    gp_covariance,
    gp_posterior,
    log_marginal_likelihood,
    ridge_solve,
)
from kontrast.linalg.subspaces import best_rotation, subspace_sines

__all__ = [
    "ConditionNumber",
    "Eigenpairs",
    "ExtremeEigenvalues",
    "KernelDrift",
    "LogLaw",
    "Operator",
    "OperatorLike",
    "Posterior",
    "PowerLaw",
    "RidgeSolution",
    "SpectralNorm",
    "as_operator",
    "best_rotation",
    "cka",
    "condition_number",
    "entropy_rank",
    "extreme_eigenvalues",
    "fit_log_law",
    "fit_power_law",
    "fix_signs",
    "gp_covariance",
    "gp_posterior",
    "grassmann_step",
    "grassmann_tangent",
    "kernel_alignment",
    "kernel_drift",
    "largest_eigenpairs",
    "log_marginal_likelihood",
    "orthonormality_error",
    "participation_ratio",
    "polar_retraction",
    "qr_retraction",
    "random_frame",
    "ridge_solve",
    "spectral_norm",
    "subspace_sines",
    "top_eigenpairs",
]
