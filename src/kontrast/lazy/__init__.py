"""Paper A, first half: how far the tangent kernel moves, its bounds, the blow-up, the certificate."""

from kontrast.lazy.blow_up import BlowUp
from kontrast.lazy.bounds import (
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
from kontrast.lazy.certificate import Certificate, ntk_certificate
from kontrast.lazy.constants import Constants, assumptions_of, constants_of
from kontrast.lazy.dot_product import dot_product_descent, dot_product_flow

__all__ = [
    "BlowUp",
    "Certificate",
    "Constants",
    "assumptions_of",
    "constants_of",
    "davis_kahan",
    "dot_product_descent",
    "dot_product_flow",
    "lemma7",
    "lemma8",
    "lemma11",
    "lemma12",
    "lemma16",
    "lemma17",
    "ntk_certificate",
    "proposition10",
    "theorem13",
]
