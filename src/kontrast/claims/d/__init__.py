"""Claims of paper D.

Brandon McKinzie: A review of Lee et al. (2019), Wide Neural Networks of Any Depth Evolve as Linear Models Under
Gradient Descent, and of Simon et al. (2021), Neural Tangent Kernel Eigenvalues Accurately Predict Generalization.
"""

# In the order of the paper, which is the order of `kontrast verify`.
# isort: off
from kontrast.claims.d import lee
from kontrast.claims.d import eta
from kontrast.claims.d import b2
from kontrast.claims.d import nngp
from kontrast.claims.d import nofree
from kontrast.claims.d import mono
from kontrast.claims.d import kappa

__all__ = ["b2", "eta", "kappa", "lee", "mono", "nngp", "nofree"]
