"""Is a contrastive model a kernel machine, PCA of random features, or does its training learn something?

The subpackages are imported on first use, so that `import kontrast` and `kontrast --help` stay fast::

    import kontrast as kt

    net = kt.nets.MLP(784, 1024, 10)
    K = kt.empirical_ntk(net, x)                             # (n, n, 10, 10)
    Z = kt.SpectralContrastive(128).fit_transform(images)    # no labels, no training
    print(kt.diagnose(model, start, end, data=images))       # lazy, learning or collapsed? does training pay?
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors, which do not call `__getattr__`
    from kontrast import (
        bounds,
        claims,
        data,
        deep_linear,
        diagnosis,
        dynamics,
        errors,
        estimators,
        kernels,
        lazy,
        learnability,
        linalg,
        losses,
        nets,
        patterns,
        pca,
        report,
        runs,
        study,
    )
    from kontrast.data import load
    from kontrast.diagnosis import Diagnosis, Monitor, diagnose
    from kontrast.estimators import ContrastivePCA, KernelLearnability, SpectralContrastive
    from kontrast.kernels import empirical_ntk, infinite_ntk

__version__ = "0.1.0"

_HEADLINES = {
    "ContrastivePCA": "estimators",
    "Diagnosis": "diagnosis",
    "KernelLearnability": "estimators",
    "Monitor": "diagnosis",
    "SpectralContrastive": "estimators",
    "diagnose": "diagnosis",
    "empirical_ntk": "kernels",
    "infinite_ntk": "kernels",
    "load": "data",
}

__all__ = [
    "ContrastivePCA",
    "Diagnosis",
    "KernelLearnability",
    "Monitor",
    "SpectralContrastive",
    "__version__",
    "bounds",
    "claims",
    "data",
    "deep_linear",
    "diagnose",
    "diagnosis",
    "dynamics",
    "empirical_ntk",
    "errors",
    "estimators",
    "infinite_ntk",
    "kernels",
    "lazy",
    "learnability",
    "linalg",
    "load",
    "losses",
    "nets",
    "patterns",
    "pca",
    "report",
    "runs",
    "study",
]


def __getattr__(name: str) -> Any:
    if name in _HEADLINES:
        return getattr(importlib.import_module(f"{__name__}.{_HEADLINES[name]}"), name)
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
