"""Small diagnoses, made once: a little network after a little training, seen in every way that the page knows."""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from torch import Tensor, nn

import kontrast as kt
from kontrast.diagnosis import Diagnosis
from kontrast.losses import nt_xent

SMALL = {"n_samples": 40, "n_points": 8, "n_splits": 3}


class Encoder(nn.Module):
    """A backbone and a head."""

    def __init__(self, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, width), nn.Tanh())
        self.head = nn.Linear(width, 4)
        for parameter in self.parameters():
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[-1] ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of the head."""
        return self.head(self.backbone(x))


def build(width: int, generator: torch.Generator) -> nn.Module:
    return Encoder(width, generator)


def samples(n: int = 60) -> tuple[Tensor, Tensor]:
    """Three kinds of rows."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 3
    return torch.randn(n, 6, generator=generator) + 2 * torch.eye(6)[y], y


@functools.cache
def states(n: int = 3, steps: int = 12, rate: float = 0.3) -> dict[str, dict[str, Tensor]]:
    """The start and what descent on NT-Xent makes of it."""
    generator = torch.Generator().manual_seed(1)
    net, (x, _) = Encoder(16, generator).float(), samples()
    x, made = x.float(), {}
    for k in range(n):
        made[f"epoch_{k}"] = {name: value.clone() for name, value in net.state_dict().items()}
        for _ in range(steps):
            a, b = (x + 0.3 * torch.randn(x.shape, generator=generator) for _ in range(2))
            gradients = torch.autograd.grad(nt_xent(net(a), net(b)).total, list(net.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                    parameter -= rate * gradient
    return made


def collapsed() -> dict[str, dict[str, Tensor]]:
    """A start, and a network whose outputs are one point."""
    start = states()["epoch_0"]
    return {"epoch_0": start, "epoch_1": {**start, "head.weight": 1e-7 * start["head.weight"]}}


@functools.cache
def diagnosed(kind: str = "whole") -> Diagnosis:
    """With everything; without labels, views of its own and control; of two checkpoints, collapsed."""
    net, (x, y) = Encoder(16, torch.Generator()).float(), samples()
    x = x.float()
    if kind == "bare":
        views = (x + 0.1, x - 0.1)
        return kt.diagnose(net, states()["epoch_0"], states()["epoch_2"], data=x, views=views, control=False, **SMALL)
    if kind == "collapsed":
        return kt.diagnose(net, collapsed(), data=x, labels=y, views="noise:0.3", loss="nt_xent", **SMALL)
    return kt.diagnose(
        build,
        states(),
        data=x,
        labels=y,
        views="noise:0.3+mask:0.2",
        loss="nt_xent",
        features="backbone",
        head="head",
        width=16,
        width_sweep=(8, 16, 32),
        name="a <small> model",
        **SMALL,
    )


def monitored(folder: Path) -> Path:
    """The folder of a monitor beside a training of a few steps."""
    from kontrast.diagnosis.monitor import Monitor

    net, (x, y) = Encoder(16, torch.Generator().manual_seed(1)).float(), samples()
    x = x.float()
    monitor = Monitor(net, (x + 0.1, x - 0.1), every=2, folder=folder, head="head", labels=y)
    for step, state in enumerate(states(5).values()):
        net.load_state_dict(state)
        monitor.step(2 * step, loss=1.0 / (1 + step))
    return folder
