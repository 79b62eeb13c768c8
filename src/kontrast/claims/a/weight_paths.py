"""Training runs under cosine similarity that keep their weights: the claims on bounds look at these."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import xarray as xr
from torch import Tensor

from kontrast.bounds import Form
from kontrast.claims.a.runs import DELTA, RATE, train
from kontrast.claims.evidence import Evidence, corrected, judged, printed, shown
from kontrast.claims.setting import Setting, geometric, largest, loss_of
from kontrast.data import Pairs
from kontrast.dynamics import contrastive_problem
from kontrast.kernels import empirical_ntk
from kontrast.lazy import Constants, constants_of
from kontrast.nets import MLP, Parameters, two_layer_hessian_norm

FORMS: tuple[Form, ...] = ("printed", "corrected")
SETTING: dict[str, Any] = {"n_samples": 10, "d_out": 10, "learning_rate": RATE}


@dataclass(frozen=True, eq=False)
class WeightPath:
    """One training run under cosine similarity, with the parameters at its recorded steps."""

    net: MLP
    pairs: Pairs
    constants: Constants
    steps: tuple[int, ...]
    points: list[Parameters]

    def change(self, k: int) -> dict[str, Tensor]:
        """The change θ(t) − θ(0) of every layer at the k-th recorded step."""
        return {name: p - self.points[0][name] for name, p in self.points[k].items()}

    def radius(self, k: int) -> float:
        """The distance ‖θ(t) − θ(0)‖₂ at the k-th recorded step."""
        return math.sqrt(sum(float(change.pow(2).sum()) for change in self.change(k).values()))

    def at(self, k: int) -> MLP:
        """The network at the k-th recorded step; every call returns the same object."""
        self._moving.load_state_dict(self.points[k])
        return self._moving

    def kernels(self, probes: Tensor) -> list[Tensor]:
        """The empirical NTK at the probes, at every recorded step."""
        return [empirical_ntk(self.net, probes, parameters=point) for point in self.points]

    def hessian_bound(self, probes: Tensor) -> float:
        """Lemma 8's ε: the largest norm of a Hessian at the probes and recorded steps."""
        return largest(*(two_layer_hessian_norm(self.at(k), probes) for k in range(len(self.steps))))

    @functools.cached_property
    def _moving(self) -> MLP:
        return copy.deepcopy(self.net)


def weight_path(setting: Setting, width: int, seed: int, *, activation: str, record_at: list[int]) -> WeightPath:
    """Train paper A's network on 10 samples, up to the last step of `record_at`."""
    pairs = setting.pairs(10, seed=seed)
    net = setting.net(pairs.x, width, 10, seed=seed, activation=activation)
    return _trained(net, pairs, record_at=record_at, learning_rate=RATE)


def _trained(net: MLP, pairs: Pairs, *, record_at: list[int], learning_rate: float) -> WeightPath:
    problem = contrastive_problem(pairs, loss_of("cosine"))
    run = train(net, problem, record_at, learning_rate=learning_rate, keep_parameters=True)
    assert run.parameters is not None
    points = [{name: p[k] for name, p in run.parameters.items()} for k in range(len(run.steps))]
    return WeightPath(net, pairs, constants_of(net, pairs, learning_rate=learning_rate, delta=DELTA), run.steps, points)


def bound_scale(setting: Setting) -> tuple[tuple[int, ...], range, int]:
    """Widths, seeds and steps of the claims on bounds."""
    widths = setting.pick(quick=geometric(64, 1024, 4), full=geometric(64, 2048), paper=(*geometric(64, 4096, 4), 8192))
    return widths, setting.seeds(quick=2, full=5, paper=3), setting.pick(quick=100, full=500)


@functools.cache
def counter_example_path(learning_rate: float) -> WeightPath:
    """One step with D = Z = M = N = 1 and |wv| = δ/2, where the gradient is largest: of order 1/δ."""
    anchor, positive, no_negative = torch.tensor([0]), torch.tensor([[1]]), torch.empty(1, 0, dtype=torch.int64)
    pairs = Pairs(torch.ones(2, 1, dtype=torch.float64), anchor, positive, no_negative)
    net = MLP(1, 1, 1, activation="linear", dtype=torch.float64)
    with torch.no_grad():
        net.hidden[0].fill_(math.sqrt(DELTA / 2))
        net.output.fill_(math.sqrt(DELTA / 2))
    return _trained(net, pairs, record_at=[0, 1], learning_rate=learning_rate)


def largest_gradient(kernels: list[Tensor]) -> float:
    """Lemma 8's c₀: the largest ‖∇f_z(x)‖, whose square is on the diagonal of the kernel."""
    return math.sqrt(largest(*(K.diagonal(dim1=0, dim2=1).diagonal(dim1=0, dim2=1) for K in kernels)))


def worst_by_form(ratios: Iterable[dict[Form, float]]) -> dict[str, float]:
    """The largest ratio of a measured number to each form of its bound."""
    found = list(ratios)
    return {f"over_{form}": largest(*(ratio[form] for ratio in found)) for form in FORMS}


def both_forms(data: xr.Dataset, counter_example: dict[str, float], **setting: Any) -> Evidence:
    """Both forms of a bound in training and in the counter-example, which violates the printed one."""
    ratio, over = counter_example["over_printed"], largest(data.over_corrected, counter_example["over_corrected"])
    return judged(
        printed("counter_example_over_printed", ratio, "the printed bound holds at D = Z = M = N = 1, η = 100", high=1),
        corrected("measured_over_corrected", over, "with η and φ(0) the bound is never violated", high=1),
        *shown(measured_over_printed_in_training=largest(data.over_printed)),
        data=data,
        setting=SETTING | setting,
    )
