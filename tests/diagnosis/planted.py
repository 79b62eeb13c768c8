"""Planted cases: small real trainings of which it is known beforehand what a diagnosis must say of them.

`PLANTED[name](seed)` trains one, in at most a few seconds on one core. Seeds differ in their samples, starts, batches
and views. Nothing here looks at a diagnosis: what a case is was decided by how it was trained.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

import kontrast as kt
from kontrast.losses import LossModule, barlow_twins, nt_xent, supcon, vicreg, view_loss_from
from kontrast.pca import contrastive_pca, hidden_features, orthonormal_start

State = Mapping[str, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]

N_TEST = 600
VIEWS = "affine"
NO_VIEWS = "noise:0.000001"
RUINOUS_VIEWS = "noise:2"  # of pixels between 0 and 1


@dataclass(frozen=True, eq=False)
class Case:
    """A training whose diagnosis is known.

    Attributes:
        name: what was planted.
        module: the network at its start, in eval mode.
        start: its whole state before training.
        end: its whole state after training.
        data: the samples it was trained on, images (n, 1, 8, 8).
        labels: theirs.
        test: other samples, with their labels.
        views: the text of the views it was trained with.
        loss: the loss it was trained with, of the module's outputs at two views; None where it takes more than them.
        expected: what the diagnosis must say, as in {"regime": "kernel"}; {"blamed": None} is that nothing is to blame.
        options: further arguments of the diagnosis, such as the names of submodules.
    """

    name: str
    module: nn.Module
    start: State
    end: State
    data: Tensor
    labels: Tensor
    test: tuple[Tensor, Tensor]
    views: str
    loss: Loss | None
    expected: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Ground:
    """What a case is made on: its samples, and the generator of all its random numbers."""

    data: Tensor
    labels: Tensor
    test: tuple[Tensor, Tensor]
    generator: torch.Generator

    @classmethod
    def of(cls, seed: int, *, n: int = 400, classes: tuple[int, ...] = tuple(range(10))) -> Ground:
        """Digits of some classes, drawn by a seed: `n` to train on, others to test."""
        digits, generator = _digits(), torch.Generator().manual_seed(seed)
        assert digits.y is not None
        kept = torch.isin(digits.y, torch.tensor(classes)).nonzero()[:, 0]
        order = kept[torch.randperm(len(kept), generator=generator)]
        data, test = order[:n], order[n : n + N_TEST]
        return cls(digits.x[data], digits.y[data], (digits.x[test], digits.y[test]), generator)


@functools.cache
def _digits() -> kt.data.Dataset:
    return kt.load("digits")


# --- networks -------------------------------------------------------------------------------------------------------


class Network(Protocol):
    """Makes a network with `d_out` outputs."""

    def __call__(self, d_out: int, generator: torch.Generator) -> nn.Module: ...


def mlp(d_out: int, generator: torch.Generator, *, width: int = 128) -> nn.Module:
    """Two hidden layers."""
    layers = (nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, d_out))
    return _drawn(nn.Sequential(nn.Flatten(), *layers), generator)


def convnet(d_out: int, generator: torch.Generator) -> nn.Module:
    """Three convolutions with batch norm, and a linear head."""
    return _drawn(nn.Sequential(*_convolutions(), nn.Linear(256, d_out)), generator)


class Projected(nn.Module):
    """Three convolutions with batch norm, and a projector of two layers."""

    def __init__(self, d_out: int, generator: torch.Generator) -> None:
        super().__init__()
        self.backbone = nn.Sequential(*_convolutions())
        self.projector = nn.Sequential(nn.Linear(256, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, d_out))
        _drawn(self, generator)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of the projector."""
        return self.projector(self.backbone(x))


def _convolutions() -> list[nn.Module]:
    made: list[nn.Module] = []
    for c_in, c_out, stride in ((1, 16, 1), (16, 32, 2), (32, 64, 2)):
        convolution = nn.Conv2d(c_in, c_out, 3, stride=stride, padding=1, bias=False)
        made += [convolution, nn.BatchNorm2d(c_out), nn.ReLU()]
    return [*made, nn.Flatten()]


def _drawn(network: nn.Module, generator: torch.Generator) -> nn.Module:
    for part in network.modules():
        if isinstance(part, nn.Linear | nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, generator=generator)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
    return network


# --- losses ---------------------------------------------------------------------------------------------------------


def temperature(value: float) -> Loss:
    """NT-Xent at a temperature."""
    return LossModule(nt_xent, temperature=value)


def alignment(a: Tensor, b: Tensor) -> Tensor:
    """Views of a sample shall be alike, and nothing else: its minimum is one point for all samples."""
    return -cosine_similarity(a, b).mean()


def one_direction(a: Tensor, b: Tensor) -> Tensor:
    """Views shall be alike, and the first dimension mean 0 and deviation 1: nothing keeps the others up."""
    first = torch.stack([a[:, 0], b[:, 0]])
    off = (1 - first.std(1)).square() + first.mean(1).square()
    return (a - b).square().sum(1).mean() + off.sum() + (a[:, 1:].square() + b[:, 1:].square()).sum(1).mean()


def all_alike(a: Tensor, b: Tensor) -> Tensor:
    """All dimensions shall correlate, where Barlow Twins keeps them apart: they become copies of one."""
    za, zb = ((z - z.mean(0)) / (z.var(0, correction=0) + 1e-5).sqrt() for z in (a, b))
    return (1 - za.mT @ zb / len(a)).mean() + 0.1 * (a.mean(0).square() + b.mean(0).square()).mean()


# --- training -------------------------------------------------------------------------------------------------------


def descend(
    ground: Ground,
    network: nn.Module,
    loss: Callable[..., Any],
    *,
    views: str = VIEWS,
    n_steps: int,
    rate: float = 3e-3,
    batch: int = 128,
    plain: bool = False,
    labels: bool = False,
    predictor: nn.Module | None = None,
) -> State:
    """The whole state of a copy of the network after training it; the network itself stays as it is.

    Args:
        ground: the samples.
        network: what is trained.
        loss: of the outputs for two views, of their predictions with a predictor, or of them and labels.
        views: drawn afresh in every step.
        n_steps: of Adam, its rate falling to 0 in the last half.
        rate: the learning rate.
        batch: samples in a step.
        plain: gradient descent at a constant rate in Adam's place.
        labels: whether the loss takes labels.
        predictor: trained along with the network, on top of it.
    """
    trained, view, generator = copy.deepcopy(network).train(), kt.data.parse_view(views), ground.generator
    parameters = [*trained.parameters(), *([] if predictor is None else predictor.parameters())]
    optimizer = torch.optim.SGD(parameters, lr=rate) if plain else torch.optim.Adam(parameters, lr=rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1.0 if plain else min(1.0, 2 - 2 * k / n_steps))
    for _ in range(n_steps):
        rows = torch.randperm(len(ground.data), generator=generator)[:batch]
        x = ground.data[rows]
        z = trained(torch.cat([view(x, generator), view(x, generator)]))
        given = z.chunk(2) if predictor is None else (*z.chunk(2), *predictor(z).chunk(2))
        value = loss(*given, ground.labels[rows]) if labels else loss(*given)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        schedule.step()
    return _state(trained)


def _state(network: nn.Module) -> State:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


def trained(
    seed: int,
    name: str,
    network: Network,
    loss: Loss,
    *,
    d_out: int = 16,
    views: str = VIEWS,
    expected: Mapping[str, Any],
    **training: Any,
) -> Case:
    """A case of a network trained with a loss of two views."""
    ground = Ground.of(seed)
    module = network(d_out, ground.generator)
    end = descend(ground, module, loss, views=views, **training)
    return _case(name, ground, module, end, views, loss, expected)


def _case(
    name: str, ground: Ground, module: nn.Module, end: State, views: str, loss: Loss | None, expected: Mapping[str, Any]
) -> Case:
    options = {"features": "backbone", "head": "projector"} if isinstance(module, Projected) else {}
    samples = (ground.data, ground.labels, ground.test)
    return Case(name, module.eval(), _state(module), end, *samples, views, loss, expected, options)


# --- cases that are more than a training with a loss of two views ---------------------------------------------------


def lazy(seed: int) -> Case:
    """A wide MLP after descent at a small rate, until its loss has settled: it stays a kernel machine.

    Its 16 outputs are worth less than those that a closed form finds in its 2,000 features.
    """
    ground = Ground.of(seed, n=256)
    module = kt.nets.MLP(64, 2000, 16, generator=ground.generator)
    end = descend(ground, module, loss := temperature(0.5), n_steps=100, rate=4.0, batch=256, plain=True)
    return _case("lazy", ground, module, end, VIEWS, loss, {"regime": "kernel", "collapse": "none"})


def pca(seed: int) -> Case:
    """Random features that never move, below a head that is their contrastive PCA.

    Of zeros, twos and sixes, whose two first directions stand clear of the third: it takes few samples to find them.
    """
    ground = Ground.of(seed, n=256, classes=(0, 2, 6))
    module, views = kt.nets.MLP(64, 512, 2, generator=ground.generator), "noise:0.1"
    module.load_state_dict(orthonormal_start(module))
    view, n = kt.data.parse_view(views), len(ground.data)
    seen = torch.cat([view(ground.data, ground.generator) for _ in range(2)])
    phi = hidden_features(module, seen).double()
    attract, S = torch.eye(n) - torch.ones(n, n) / n, torch.zeros(2 * n, 2 * n, dtype=torch.float64)
    S[:n, n:] = attract / n  # each sample attracts its other view, and repels those of all samples
    head = contrastive_pca(phi - phi.mean(0), S, 2).frame
    end = {**_state(module), "output": head.to(module.output.dtype)}
    return _case("pca", ground, module, end, views, view_loss_from("dot"), {"regime": "pca"})


def supervised(seed: int, *, name: str, network: Network, n_steps: int) -> Case:
    """Supervised contrastive training: four dimensions that hold ten classes, as no closed form without labels can."""
    ground = Ground.of(seed, n=1000)
    module = network(4, ground.generator)

    def loss(a: Tensor, b: Tensor, labels: Tensor) -> Tensor:
        return supcon(torch.stack([a, b], 1), labels, temperature=0.2).total

    end = descend(ground, module, loss, n_steps=n_steps, labels=True)
    expected = {"regime": "learning", "collapse": "none", "buys": True}
    return _case(name, ground, module, end, VIEWS, None, expected)


def no_stop_gradient(seed: int) -> Case:
    """SimSiam without its stop-gradient: predictor and target meet at one point."""
    ground = Ground.of(seed)
    module = mlp(16, ground.generator)
    predictor = _drawn(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)), ground.generator)

    def loss(a: Tensor, b: Tensor, predicted_a: Tensor, predicted_b: Tensor) -> Tensor:
        return (alignment(predicted_a, b) + alignment(predicted_b, a)) / 2

    end = descend(ground, module, loss, n_steps=200, predictor=predictor)
    return _case("complete: no stop-gradient", ground, module, end, VIEWS, alignment, {"collapse": "complete"})


# --- the table ------------------------------------------------------------------------------------------------------

_LEARNING = {"regime": "learning", "collapse": "none"}
_HEALTHY = {"collapse": "none", "blamed": None}
_UNDERTRAINED = {"regime": "undertrained", "collapse": "none", "buys": False}
_TEMPERATURE = {"blamed": "temperature"}
_AUGMENTATION = {"blamed": "augmentation", "buys": False}

# name: network, loss, what the diagnosis must say, and how it was trained
_TRAINED: Mapping[str, tuple[Network, Loss, Mapping[str, Any], Mapping[str, Any]]] = {
    "learning: MLP": (partial(mlp, width=64), temperature(0.5), _LEARNING, {"n_steps": 200, "rate": 0.01}),
    "learning: projector": (Projected, temperature(0.5), _LEARNING, {"n_steps": 120}),
    "undertrained: rate 0": (convnet, temperature(0.5), _UNDERTRAINED, {"n_steps": 20, "rate": 0.0}),
    "undertrained: three steps": (mlp, temperature(0.5), _UNDERTRAINED, {"n_steps": 3, "rate": 1e-5}),
    "healthy: MLP, T = 0.5": (mlp, temperature(0.5), _HEALTHY, {"n_steps": 200}),
    "healthy: MLP, T = 0.1": (mlp, temperature(0.1), _HEALTHY, {"n_steps": 200}),
    "healthy: ConvNet, T = 0.5": (convnet, temperature(0.5), _HEALTHY, {"n_steps": 120}),
    "healthy: ConvNet, T = 0.1": (convnet, temperature(0.1), _HEALTHY, {"n_steps": 120}),
    "healthy: projector, T = 0.2": (Projected, temperature(0.2), _HEALTHY, {"n_steps": 120}),
    "healthy: VICReg": (mlp, LossModule(vicreg), _HEALTHY, {"n_steps": 200}),
    "healthy: Barlow Twins, projector": (Projected, LossModule(barlow_twins), _HEALTHY, {"n_steps": 120}),
    "dimensional: one direction": (mlp, one_direction, {"collapse": "dimensional"}, {"n_steps": 400, "d_out": 32}),
    "dimensional: all alike": (mlp, all_alike, {"collapse": "dimensional"}, {"n_steps": 400, "d_out": 32}),
    "dimensional: all alike, ConvNet": (convnet, all_alike, {"collapse": "dimensional"}, {"n_steps": 160, "d_out": 32}),
    "complete: alignment, MLP": (mlp, alignment, {"collapse": "complete"}, {"n_steps": 200}),
    "complete: alignment, ConvNet": (convnet, alignment, {"collapse": "complete"}, {"n_steps": 120}),
    "useless: ruinous views": (mlp, temperature(0.5), {"buys": False}, {"n_steps": 200, "views": RUINOUS_VIEWS}),
    "augmentation off: MLP": (mlp, temperature(0.5), _AUGMENTATION, {"n_steps": 200, "views": NO_VIEWS}),
    "augmentation off: ConvNet": (convnet, temperature(0.5), _AUGMENTATION, {"n_steps": 120, "views": NO_VIEWS}),
    "temperature 20: MLP": (mlp, temperature(20), _TEMPERATURE, {"n_steps": 200}),
    "temperature 20: ConvNet": (convnet, temperature(20), _TEMPERATURE, {"n_steps": 120}),
    "temperature 0.005: MLP": (mlp, temperature(0.005), _TEMPERATURE, {"n_steps": 200}),
    "temperature 0.005: ConvNet": (convnet, temperature(0.005), _TEMPERATURE, {"n_steps": 120}),
}

PLANTED: Mapping[str, Callable[[int], Case]] = {
    "lazy": lazy,
    "pca": pca,
    "useful: MLP": partial(supervised, name="useful: MLP", network=mlp, n_steps=400),
    "useful: ConvNet": partial(supervised, name="useful: ConvNet", network=convnet, n_steps=200),
    "complete: no stop-gradient": no_stop_gradient,
    **{
        name: partial(trained, name=name, network=network, loss=loss, expected=expected, **training)
        for name, (network, loss, expected, training) in _TRAINED.items()
    },
}
HEALTHY = tuple(name for name in PLANTED if name.startswith("healthy"))


def diagnosed(case: Case, **settings: Any) -> Any:
    """The diagnosis of a case, from everything that a user would have."""
    given = {"data": case.data, "labels": case.labels, "test": case.test, "views": case.views, "loss": case.loss}
    return kt.diagnose(case.module, case.start, case.end, **given, **case.options, **settings)


def told(diagnosis: Any) -> dict[str, Any]:
    """What a diagnosis says, in the words of `Case.expected`; of all that is to blame, the names."""
    return {
        "regime": diagnosis.regime,
        "collapse": diagnosis.collapse,
        "buys": {"yes": True, "no": False}.get(diagnosis.pays),
        "blamed": tuple(diagnosis.blamed),
    }


def mistakes(case: Case, said: Mapping[str, Any]) -> list[str]:
    """Where a diagnosis is wrong; empty where it says all that is expected. Others may be blamed beside the culprit."""
    wrong = []
    for question, answer in case.expected.items():
        if question == "blamed":
            right = answer in said["blamed"] if answer else not said["blamed"]
        else:
            right = said[question] == answer
        if not right:
            wrong.append(f"{question}: {said[question]}, expected {answer}")
    return wrong
