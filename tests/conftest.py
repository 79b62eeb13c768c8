"""One profile for every property test: the same examples every time, and no clock in the verdict."""

from __future__ import annotations

import torch
from hypothesis import settings

settings.register_profile("kontrast", max_examples=30, deadline=None, derandomize=True)
settings.load_profile("kontrast")
torch.set_num_threads(1)  # small matrices, and pytest-xdist already runs one process a core
