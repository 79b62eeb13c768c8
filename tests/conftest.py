"""One profile for every property test: the same examples every time, and no clock in the verdict. GPU tests skip."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

settings.register_profile("kontrast", max_examples=30, deadline=None, derandomize=True)
settings.load_profile("kontrast")
torch.set_num_threads(1)  # small matrices, and pytest-xdist already runs one process a core


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests marked `gpu` need one."""
    if item.get_closest_marker("gpu") is not None and not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA GPU here")
