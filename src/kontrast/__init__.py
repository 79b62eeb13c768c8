"""Is a contrastive model a kernel machine, PCA of random features, or does its training learn something?

The subpackages are imported on first use, so that `import kontrast` and `kontrast --help` stay fast::

    import kontrast as kt

    net = kt.nets.MLP(784, 1024, 10)
    K = kt.kernels.empirical_ntk(net, x)   # (n, n, 10, 10)
"""

from __future__ import annotations

import importlib
from types import ModuleType

__version__ = "0.1.0"

_SUBPACKAGES = (
    "linalg",
    "data",
    "nets",
    "losses",
    "kernels",
    "dynamics",
    "lazy",
    "pca",
    "deep_linear",
    "patterns",
    "learnability",
    "estimators",
    "runs",
    "study",
    "claims",
    "report",
    "bounds",
    "errors",
)

__all__ = [*_SUBPACKAGES, "__version__"]  # noqa: PLE0604


def __getattr__(name: str) -> ModuleType:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
