"""Sketches of a trained ResNet-18's tangent kernels beside the exact ones: how far off, how sure, and how fast.

The network is trained on made labels, and its kernel's drift and alignment are read from sketches of many seeds. Beside
each stands the exact number of `ntk_drift`; an interval should hold it in 19 of 20 seeds. On a CPU the full network
takes hours: `--width 8` has a sixty-fourth of the weights.

    .venv/bin/python benchmarks/sketches.py --width 8
    PYTHONPATH=src python benchmarks/sketches.py --device cuda
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from inputs import pictures
from networks import resnet18
from tables import OtherWork, Requirement, conclude, print_table
from torch import Tensor, nn

import kontrast as kt

T = TypeVar("T")
QUANTITIES = ("relative", "alignment")


@dataclass(frozen=True)
class Found:
    """One quantity after some steps of training, from the sketches of one seed."""

    quantity: str
    steps: int
    seed: int
    exact: float
    value: float
    low: float
    high: float

    @property
    def off(self) -> float:
        """From the exact number, as a share of it."""
        return abs(self.value / self.exact - 1)

    @property
    def holds(self) -> bool:
        """Whether the interval has the exact number in it."""
        return self.low <= self.exact <= self.high


def trained(net: nn.Module, x: Tensor, steps: tuple[int, ...], batch: int = 128) -> dict[int, dict[str, Tensor]]:
    """The states of the network after so many steps of descent on made labels; it is left at its start.

    The start has running statistics of its own: with those that BatchNorm begins with, their change alone would be a
    drift of thousands.
    """
    generator = torch.Generator(x.device).manual_seed(0)
    labels = torch.randint(10, (len(x),), generator=generator, device=x.device)
    net.train()
    with torch.no_grad():
        for some in torch.split(x.repeat(50 // max(1, len(x) // batch) + 1, 1, 1, 1), batch):
            net(some)
    start = copy.deepcopy(net.state_dict())
    optimizer, states = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9), {}
    for step in range(max(steps) + 1):
        if step in steps:
            states[step] = copy.deepcopy(net.state_dict())
        some = torch.randint(len(x), (min(batch, len(x)),), generator=generator, device=x.device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[some]), labels[some]).backward()
        optimizer.step()
    net.load_state_dict(start)
    net.eval().zero_grad()
    return states


def timed(compute: Callable[[], T]) -> tuple[T, float]:
    """The result and the seconds it took."""
    begin = time.perf_counter()
    result = compute()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return result, time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--width", type=int, default=64, help="channels of the network's first layers")
    parser.add_argument("--n", type=int, default=1000, help="pictures")
    parser.add_argument("--dim", type=int, default=4096, help="numbers of a sketch per picture")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--steps", type=int, nargs="+", default=[100], help="of training, where the drift is measured")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    options = parser.parse_args()
    other_work = OtherWork()
    x, source = pictures(options.n)
    net, x = resnet18(width=options.width).to(options.device), x.to(options.device)
    start, *ends = (points := trained(net, x, (0, *options.steps))).values()
    seconds: dict[str, list[float]] = {"exact drift, of two kernels": [], "sketch, of one point": []}
    exact = []
    for end in ends:
        drift, taken = timed(lambda end=end: kt.kernels.ntk_drift(net, start, end, x, progress=True))
        exact.append(drift)
        seconds["exact drift, of two kernels"].append(taken)
    found = []
    for seed in range(options.seeds):
        sketches = []
        for point in points.values():
            sketch, taken = timed(
                lambda point=point, seed=seed: kt.kernels.empirical_ntk_sketch(
                    net, x, options.dim, seed=seed, parameters=point
                )
            )
            sketches.append(sketch)
            seconds["sketch, of one point"].append(taken)
        for steps, last, true in zip(options.steps, sketches[1:], exact, strict=True):
            drift = last.drift(sketches[0])
            for quantity in QUANTITIES:
                estimate = getattr(drift, quantity)
                truth = getattr(true, quantity)
                found.append(Found(quantity, steps, seed, truth, estimate.value, estimate.low, estimate.high))
            print(f"… seed {seed}, {steps} steps: drift {drift.relative}", flush=True)
    rows, requirements = [], []
    for steps in options.steps:
        for quantity in QUANTITIES:
            some = [f for f in found if (f.quantity, f.steps) == (quantity, steps)]
            off, held = [f.off for f in some], sum(f.holds for f in some)
            width = statistics.mean((f.high - f.low) / 2 / abs(f.exact) for f in some)
            numbers = [f"{some[0].exact:.4f}", f"{statistics.median(off):.2%}", f"{max(off):.2%}", f"±{width:.2%}"]
            what = f"{quantity} after {steps} steps"
            rows.append([what, *numbers, f"{held} of {len(some)}"])
            if quantity == "relative":
                requirements.append(Requirement(f"{what}: worst seed off by", max(off), 0.03, at_least=False))
            requirements.append(Requirement(f"{what}: share of intervals that hold it", held / len(some), 0.9, True))
    weights = sum(p.numel() for p in net.parameters())
    title = f"ResNet-18 of {weights:,} weights, {source}, n={options.n}, dim={options.dim}"
    print_table(title, ["", "exact", "off, median", "off, worst", "interval", "intervals that hold it"], rows)
    taken = [[what, f"{statistics.median(each):.2f}"] for what, each in seconds.items()]
    print_table("seconds, median", ["", "s"], taken)
    conclude(requirements, found, other_work, options.json, torch=torch.__version__, kontrast=kt.__version__)


if __name__ == "__main__":
    main()
