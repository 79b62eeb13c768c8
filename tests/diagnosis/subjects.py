"""Small models, samples and states for tests of a diagnosis, in float64, and the subject that they make."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

import kontrast as kt
from kontrast.diagnosis.inputs import State
from kontrast.diagnosis.reading import Given, read
from kontrast.diagnosis.settings import Settings
from kontrast.diagnosis.subject import Subject
from tests.cases import generator, randn

QUICK = {"n_samples": 24, "n_points": 8, "n_splits": 2, "n_views": 2, "control": False}


def mlp(d_in: int = 6, width: int = 12, d_out: int = 3, *, seed: int = 0) -> nn.Module:
    """Two linear layers with tanh between them."""
    return drawn(nn.Sequential(nn.Linear(d_in, width), nn.Tanh(), nn.Linear(width, d_out)), seed)


def normed(d_in: int = 6, width: int = 12, d_out: int = 3, *, seed: int = 0) -> nn.Module:
    """The same with BatchNorm, its running statistics away from those that it begins with."""
    module = drawn(
        nn.Sequential(nn.Linear(d_in, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Linear(width, d_out)), seed
    )
    module.train()
    with torch.no_grad():
        module(3 * randn(64, d_in, seed=seed + 7) + 1)
    return module.eval()


def drawn(module: nn.Module, seed: int = 0) -> nn.Module:
    """A module in float64 and eval mode with the weights of a seed, as large as He's."""
    g = generator(seed)
    module.double().eval()
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.Linear | nn.Conv2d | nn.Embedding):
                n_in = 1 if isinstance(part, nn.Embedding) else part.weight[0].numel()
                part.weight.copy_(torch.randn(part.weight.shape, generator=g) / n_in**0.5)
            if isinstance(part, nn.Linear | nn.Conv2d):
                part.bias.copy_(0.1 * torch.randn(part.bias.shape, generator=g))
    return module


def state_of(module: nn.Module) -> State:
    """A copy of its state."""
    return copy.deepcopy(dict(module.state_dict()))


def moved(module: nn.Module, by: float, *, seed: int = 5) -> State:
    """Its state with noise on the parameters, so large beside their size."""
    state, g = state_of(module), generator(seed)
    for name, p in module.named_parameters():
        noise = torch.randn(p.shape, generator=g, dtype=p.dtype)
        state[name] = p.detach() + by * noise * p.detach().norm() / noise.norm()
    return state


def squared_distance(a: Tensor, b: Tensor) -> Tensor:
    """A loss of two views that is quadratic in the embedding."""
    return (a - b).square().sum(1).mean()


def subject_of(module: Any, start: Any, end: Any, *, x: Tensor | None = None, **given: Any) -> Subject:
    """What the sections of a diagnosis read."""
    known = {name: given.pop(name) for name in list(given) if name in Settings.__dataclass_fields__}
    x = randn(24, 6, seed=1) if x is None else x
    arguments = {"data": x, "labels": None, "test": None, "views": "noise:0.2", "loss": None}
    arguments |= {"features": None, "head": None, "select": None} | given
    return read(Given(module, start, end, **arguments), Settings(**QUICK | known))[0]


def quick(module: Any, start: Any = None, end: Any = None, **given: Any) -> kt.Diagnosis:
    """A diagnosis with few samples, views and splits."""
    return kt.diagnose(module, start, end, **{"data": randn(24, 6, seed=1), "views": "noise:0.2"} | QUICK | given)
