"""Deep linear networks: the flow of the outputs against projected gradient descent of the network, both in one run.

Paper B, Fig. 5: 400 images of two classes of MNIST, d = 784, two outputs, positives are the images with noise. Both
sides descend on the same C from the same network: (11) moves 784 × 2 numbers, the network two layers of h × 784 and
h × 2, brought back to orthonormal columns after every step: by projection as in the paper's (10) (a plain step, then
the polar factor), which the numbers asked for are held against; and by its rivals, a tangent step with QR, and the
projection at its own best rate.

"To the answer" is until the loss stays within 0.1 % of its minimum, what both sides compute before the first step (C's
eigenvectors) included, C itself not. Rates are η |λ_1|: 0.2 is near the largest that (11) is stable for. The polar
projection has no such limit and is shown at its own best rate too. A network that would take longer than --seconds is
not trained to the end: its steps are then those of its flow, and its time is these times the measured time of a step.
The linear SVM learns from the 400 images and is tested on the other images of the two classes.

    make bench-deep-linear
    .venv/bin/python benchmarks/deep_linear.py --widths 800 --seconds 600
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from stopwatch import CLOCKS, Stopwatch
from tables import OtherWork, Requirement, conclude, print_table
from torch import Tensor

import kontrast as kt
from kontrast.deep_linear import deep_linear_descent, deep_linear_flow, train_deep_linear
from kontrast.linalg import largest_eigenpairs
from kontrast.pca import PairMoments

Z, NOISE, SHARE = 2, 0.1, 1e-3
RATE, BEST_RATE = 0.2, 2.0  # η |λ_1|, of both sides and of the polar projection at its best
MOST_STEPS = 4000
Options = argparse.Namespace


@dataclass(frozen=True)
class Result:
    """One way to the answer; numbers that were not measured are nan."""

    way: str
    width: int
    is_flow: bool
    rate: float = math.nan
    step_seconds: float = math.nan
    steps: int = 0
    seconds: float = math.nan
    loss_share: float = math.nan  # of the minimum
    accuracy: float = math.nan
    estimated: bool = False


class Task:
    """The images, C over their pairs, and what a loss and an embedding are worth."""

    def __init__(self, seed: int) -> None:
        data = kt.data.load("mnist5k", dtype=torch.float64)
        classes = [data.rows[data.y == c] for c in (0, 1)]
        self.x, self.others = (torch.cat([c[part] for c in classes]) for part in (slice(200), slice(200, None)))
        self.labels, self.other_labels = (torch.arange(2).repeat_interleave(len(x) // 2) for x in (self.x, self.others))
        self.generator = torch.Generator().manual_seed(seed)
        self.positives = self.x + NOISE * torch.randn(self.x.shape, generator=self.generator, dtype=torch.float64)
        moments = PairMoments(self.x.shape[1], len(self.x), self.x.device)
        moments.update(self.x, self.positives, None)
        self.C = -moments.matrix()
        self.eigenvalues, self.basis = torch.linalg.eigh(self.C)
        self.best = float(self.eigenvalues[:Z].sum())
        self.unit = -float(self.eigenvalues[0])  # |λ_1|

    @property
    def d(self) -> int:
        """The number of pixels."""
        return len(self.C)

    def steps_to_the_answer(self, losses: Tensor) -> int | None:
        """From where on the loss stays near its minimum; None where it does not."""
        away = ((losses - self.best).abs() > SHARE * abs(self.best)).nonzero().flatten()
        if len(away) == 0:
            return 0
        return None if int(away[-1]) == len(losses) - 1 else int(away[-1]) + 1

    def accuracy(self, frame: Tensor) -> float:
        """Of a linear SVM on the outputs of the map (d, z)."""
        svm = make_pipeline(StandardScaler(), LinearSVC(random_state=0))
        svm.fit((self.x @ frame).numpy(), self.labels.numpy())
        return float(svm.score((self.others @ frame).numpy(), self.other_labels.numpy()))

    def judged(self, result: Result, frame: Tensor) -> Result:
        """With what the map (d, z) is worth."""
        loss = float((frame * (self.C @ frame)).sum())
        return replace(result, loss_share=loss / self.best, accuracy=self.accuracy(frame))


def flows(task: Task, net: kt.nets.MLP, watch: Stopwatch) -> list[Result]:
    """The ways from the network's start that train no network."""
    rate, start, C = RATE / task.unit, start_of(net), task.C

    def descend(n: int) -> kt.dynamics.Trajectory:
        return deep_linear_descent(C, start, learning_rate=rate, n_steps=n)

    steps = task.steps_to_the_answer(descend(MOST_STEPS).losses)
    if steps is None:
        raise SystemExit(f"the flow is not at the answer after {MOST_STEPS} steps; try another --seed")
    before, step = watch.of_a_step(descend, 2000)
    result = Result("flow, (11)", net.width, True, RATE, step, steps, before + steps * step)
    found = [task.judged(result, task.basis @ descend(steps).final_outputs)]
    plain = partial(deep_linear_descent, C, start, learning_rate=rate, n_steps=steps, eigenbasis=False)
    result = Result("flow, (11) without eigenvectors", net.width, True, RATE, steps=steps, seconds=watch.seconds(plain))
    found.append(task.judged(result, plain().final_outputs))
    for way, flow in (("flow, DOP853", "grassmann"), ("flow, exact (oja)", "oja")):
        times = [k * rate for k in range(1, 2 * steps)]
        options = {"flow": flow, "method": "exact" if flow == "oja" else "dop853"}
        losses = deep_linear_flow(C, start, times=times, **options).losses
        solve = partial(deep_linear_flow, C, start, times=[times[task.steps_to_the_answer(losses) or 0]], **options)
        found.append(task.judged(Result(way, net.width, True, seconds=watch.seconds(solve)), solve().maps[0]))
    limit = partial(largest_eigenpairs, -C, Z)
    result = Result("flow, time = ∞", net.width, True, seconds=watch.seconds(limit))
    return [*found, task.judged(result, limit()[1])]


def start_of(net: kt.nets.MLP) -> Tensor:
    """The map (d, z) of a network."""
    with torch.no_grad():
        return net(torch.eye(net.d_in, dtype=net.output.dtype)).double()


def training(task: Task, net: kt.nets.MLP, flow: str, rate: float, watch: Stopwatch, options: Options) -> Result:
    """Projected gradient descent of a real network, to the end where that is within the limit."""

    def train(n: int) -> kt.dynamics.Trajectory:
        return train_deep_linear(net, task.C, learning_rate=rate / task.unit, n_steps=n, flow=flow)

    before, step = watch.of_a_step(train, options.timed_steps)
    result = Result(f"network, {flow}", net.width, False, rate, step)
    # The flow's own descent needs as many steps where it is stable; above that the projection needs fewer.
    slow = min(rate, RATE)
    losses = deep_linear_descent(
        task.C, start_of(net), learning_rate=slow / task.unit, n_steps=MOST_STEPS, flow=flow
    ).losses
    steps = task.steps_to_the_answer(losses) or MOST_STEPS
    n_steps = math.ceil((1.1 if rate == slow else 0.5) * steps) + 5
    if n_steps * step > options.seconds and rate == slow:
        return replace(result, steps=steps, seconds=before + steps * step, estimated=True)
    if n_steps * step > options.seconds:
        return result
    trained = train(n_steps)
    reached = task.steps_to_the_answer(trained.losses.double())
    if reached is None:
        return replace(result, loss_share=float(trained.losses[-1]) / task.best)
    result = replace(result, steps=reached, seconds=before + reached * step)
    return task.judged(result, task.basis @ trained.final_outputs.double())


def run(task: Task, width: int, watch: Stopwatch, options: Options) -> list[Result]:
    """The flow, both projections at its rate, and the polar one at its own."""
    net = kt.nets.MLP(
        task.d, width, Z, activation="linear", parametrization="orthogonal", generator=task.generator,
        dtype=getattr(torch, options.dtype),
    )  # fmt: skip
    found = flows(task, net, watch)
    for flow, rate in (("grassmann", RATE), ("polar", RATE), ("polar", BEST_RATE)):
        found.append(training(task, net, flow, rate, watch, options))
        print(f"  {found[-1].way}, width {width}, rate {rate}: {found[-1].step_seconds:.3f} s a step", flush=True)
    return found


def requirements(results: list[Result], width: int) -> list[Requirement]:
    """(11), and the fastest way of the flow, against projected descent at the same rate; then against its rivals."""
    ours, theirs = ([r for r in results if r.width == width and r.is_flow == is_flow] for is_flow in (True, False))
    step, fastest = ours[0].step_seconds, min(ours, key=lambda r: r.seconds)
    projected, *rivals = sorted(theirs, key=lambda r: r.way != "network, polar" or r.rate != RATE)
    gaps = [abs(ours[0].accuracy - r.accuracy) for r in theirs if not math.isnan(r.accuracy)]
    asked = [
        Requirement(f"h = {width}: a step, times less", projected.step_seconds / step, 1000, at_least=True),
        Requirement(f"h = {width}: to the answer, {fastest.way}", projected.seconds / fastest.seconds, 100, True),
        Requirement(f"h = {width}: to the answer, {ours[0].way}", projected.seconds / ours[0].seconds, 100, True),
        Requirement(f"h = {width}: accuracies differ by", max(gaps, default=math.nan), 0.01, at_least=False),
    ]
    for rival in rivals:
        name = f"h = {width}, {rival.way.split(', ')[1]} at {rival.rate:g}"
        asked.append(Requirement(f"{name}: a step", rival.step_seconds / step, 1000, at_least=True))
        asked.append(Requirement(f"{name}: to the answer", rival.seconds / fastest.seconds, 100, at_least=True))
    return asked


def row(result: Result) -> tuple[str, ...]:
    def text(value: float, form: str) -> str:
        return "–" if math.isnan(value) else f"{value:{form}}"

    return (
        result.way,
        str(result.width),
        text(result.rate, "g"),
        text(1e3 * result.step_seconds, ".4g"),
        str(result.steps or "–"),
        text(result.seconds, ".3g") + (" (estimated)" if result.estimated else ""),
        text(result.loss_share, ".5f"),
        text(result.accuracy, ".4f"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[800, 2400])
    parser.add_argument("--seconds", type=float, default=45.0, help="the longest that one network is trained for")
    parser.add_argument("--repeats", type=int, default=5, help="of every timing")
    parser.add_argument("--timed-steps", type=int, default=4, help="of a network, to time one")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"], help="of the networks")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument(
        "--clock", default="wall", choices=list(CLOCKS), help="cpu: on a busy machine, with --threads 1"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    work, task, watch = OtherWork(), Task(options.seed), Stopwatch(CLOCKS[options.clock], options.repeats)
    results = [result for width in options.widths for result in run(task, width, watch, options)]
    columns = ("", "width", "η|λ₁|", "ms a step", "steps", "s to the answer", "loss / minimum", "SVM accuracy")
    print_table(f"{len(task.x)} images, d = {task.d}, z = {Z}", columns, [row(r) for r in results])
    asked = [one for width in options.widths for one in requirements(results, width)]
    threads = str(torch.get_num_threads())
    conclude(asked, results, work, options.json, clock=options.clock, threads=threads, dtype=options.dtype)


if __name__ == "__main__":
    main()
