"""The names at the top of the package: there on first use, and not before."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

import kontrast as kt

HEADLINES = {
    "Diagnosis": "diagnosis",
    "Monitor": "diagnosis",
    "SpectralContrastive": "estimators",
    "diagnose": "diagnosis",
    "ContrastivePCA": "estimators",
    "KernelLearnability": "estimators",
    "empirical_ntk": "kernels",
    "infinite_ntk": "kernels",
    "load": "data",
}


@pytest.mark.parametrize("name", HEADLINES)
def test_headline_names_are_those_of_their_packages(name: str) -> None:
    assert getattr(kt, name) is getattr(importlib.import_module(f"kontrast.{HEADLINES[name]}"), name)
    assert name in dir(kt)
    assert name in kt.__all__


def test_every_package_is_a_name_at_the_top() -> None:
    packages = {module.name for module in pkgutil.iter_modules(kt.__path__) if module.ispkg} - {"cli"}
    assert packages <= set(kt.__all__)
    for name in kt.__all__:
        assert getattr(kt, name) is not None


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'SimCLR'"):
        _ = kt.SimCLR


def test_the_import_is_lazy() -> None:
    program = "import sys, kontrast as kt; assert 'torch' not in sys.modules; kt.load; assert 'torch' in sys.modules"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
