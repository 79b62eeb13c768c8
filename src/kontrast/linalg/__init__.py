"""Matrices, never networks: orthonormal frames and their descent steps, fits with intervals."""

from kontrast.linalg.fits import LogLaw, PowerLaw, fit_log_law, fit_power_law
from kontrast.linalg.frames import (
    grassmann_step,
    grassmann_tangent,
    orthonormality_error,
    polar_retraction,
    qr_retraction,
    random_frame,
)

__all__ = [
    "LogLaw",
    "PowerLaw",
    "fit_log_law",
    "fit_power_law",
    "grassmann_step",
    "grassmann_tangent",
    "orthonormality_error",
    "polar_retraction",
    "qr_retraction",
    "random_frame",
]
