"""Paper A, first half: how far the tangent kernel moves, its bounds, the blow-up, the certificate.

Paper A is Anil, Esser, Ghoshdastidar, "When can we Approximate Wide Contrastive Models with Neural Tangent Kernels and
Principal Component Analysis?" (2024, https://arxiv.org/abs/2403.08673). Its second half is `kontrast.pca`; the bounds
of both halves are here, as they share their constants: `bounds`, and `pca_bounds` for Lemmas 16 and 17.
"""

from kontrast.lazy.blow_up import BlowUp
from kontrast.lazy.bounds import lemma7, lemma8, lemma11, lemma12, proposition10, theorem13
from kontrast.lazy.certificate import Certificate, ntk_certificate
from kontrast.lazy.constants import Constants, constants_of
from kontrast.lazy.dot_product import dot_product_descent, dot_product_flow
from kontrast.lazy.pca_bounds import davis_kahan, lemma16, lemma17

__all__ = [
    "BlowUp",
    "Certificate",
    "Constants",
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
