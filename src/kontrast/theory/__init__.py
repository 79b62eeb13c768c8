"""Bounds as values: each knows its assumptions, its constants, and whether it says anything."""

from kontrast.theory.blow_up import BlowUp
from kontrast.theory.bound import Assumption, Bound
from kontrast.theory.certificate import Certificate, ntk_certificate
from kontrast.theory.constants import Constants, assumptions_of, constants_of, slopes_of
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
    "assumptions_of",
    "constants_of",
    "davis_kahan",
    "lemma7",
    "lemma8",
    "lemma11",
    "lemma12",
    "lemma16",
    "lemma17",
    "ntk_certificate",
    "proposition10",
    "slopes_of",
    "theorem13",
]
