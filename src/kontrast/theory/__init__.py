"""Bounds as values: each knows its assumptions, its constants, and whether it says anything."""

from kontrast.theory.blow_up import BlowUp
from kontrast.theory.bound import Assumption, Bound
from kontrast.theory.certificate import Certificate, ntk_certificate
from kontrast.theory.constants import Constants, assumptions_of, constants_of, slopes_of
from kontrast.theory.one_layer import (
    Guarantee,
    GuaranteeCheck,
    Irregularity,
    LocalConstants,
    ball_radius,
    check_guarantee,
    eigenvector_constant,
    estimate_constants,
    gaussian_z0,
    guarantee,
    irregularity,
    roughness_bound,
    shifted,
)
from kontrast.theory.paper_a import (
    Form,
    davis_kahan,
    lemma7,
    lemma8,
    lemma11,
    lemma12,
    lemma16,
    lemma17,
    proposition10,
    theorem13,
)

__all__ = [
    "Assumption",
    "BlowUp",
    "Bound",
    "Certificate",
    "Constants",
    "Form",
    "Guarantee",
    "GuaranteeCheck",
    "Irregularity",
    "LocalConstants",
    "assumptions_of",
    "ball_radius",
    "check_guarantee",
    "constants_of",
    "davis_kahan",
    "eigenvector_constant",
    "estimate_constants",
    "gaussian_z0",
    "guarantee",
    "irregularity",
    "lemma7",
    "lemma8",
    "lemma11",
    "lemma12",
    "lemma16",
    "lemma17",
    "ntk_certificate",
    "proposition10",
    "roughness_bound",
    "shifted",
    "slopes_of",
    "theorem13",
]
