"""Steps that a GPU replays are the steps of the plain loop: same numbers, same records, same end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kontrast.data import Pairs
from kontrast.dynamics import (
    Problem,
    Snapshot,
    Status,
    Tape,
    Trajectory,
    contrastive_problem,
    descend,
    fixed_kernel_descent,
    gradient_descent,
    loop,
)
from kontrast.dynamics.replay import Plain, Repeatable, Replay, fastest_way
from kontrast.kernels import empirical_ntk
from kontrast.linalg import qr_retraction
from kontrast.losses import ContrastiveLoss, Cosine, Dot, Linear
from kontrast.nets import MLP, parameters_of, pure_function
from tests.cases import generator, randn


class Shrinking:
    """x ← x/2, with the loss x; or a loss that is not finite from some step on."""

    def __init__(self, *, overflow_at: int | None = None) -> None:
        self.x, self.overflow_at = torch.ones(1, dtype=torch.float64), overflow_at

    @property
    def state(self) -> list[torch.Tensor]:
        return [self.x]

    def loss(self) -> torch.Tensor:
        done = -torch.log2(self.x).sum()
        return self.x.sum() if self.overflow_at is None or done < self.overflow_at else self.x.sum() * torch.inf

    def update(self) -> None:
        self.x /= 2

    def gradient_norm(self) -> float:
        return 1.0

    def snapshot(self, step: int) -> Snapshot:
        return Snapshot(step, self.x[:, None], {})


class ByHand:
    """In the place of a CUDA graph: replaying calls the step again."""

    def __init__(self, stepper: Shrinking, losses: torch.Tensor, place: torch.Tensor) -> None:
        self.stepper, self.losses, self.place = stepper, losses, place

    def replay(self) -> None:
        self.losses.scatter_(0, self.place, self.stepper.loss().reshape(1))
        self.place.add_(1)
        self.stepper.update()


def replay_of(stepper: Shrinking) -> Replay:
    losses, place = torch.zeros(100, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
    return Replay(stepper, ByHand(stepper, losses, place), losses, place)  # type: ignore[arg-type]


def test_advancing_makes_the_steps_and_hands_over_the_losses_between() -> None:
    stepper = Shrinking()
    replay = replay_of(stepper)
    assert replay.advance(3) == [0.5, 0.25]  # the loss before the first step is known to the caller
    assert replay.advance(2) == [0.0625]
    assert stepper.x.item() == 2**-5


def test_an_overflow_on_the_way_takes_everything_back_and_goes_on_in_single_steps() -> None:
    stepper = Shrinking(overflow_at=4)
    replay = replay_of(stepper)
    assert replay.advance(2) == [0.5]
    assert replay.advance(5) == []
    assert stepper.x.item() == 2**-3
    assert replay.advance(2) == []  # two steps would not have overflowed, but the graph is gone
    assert stepper.x.item() == 2**-4


@pytest.mark.parametrize("overflow_at", [None, 1, 6, 9, 20])
@pytest.mark.parametrize("record_at", [None, [0, 5, 20], range(21), []])
def test_the_loop_does_the_same_with_replayed_steps(
    overflow_at: int | None, record_at: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tape = Tape(20, record_at, {"x": lambda now: now.outputs.sum()})
    plain = descend(Shrinking(overflow_at=overflow_at), tape)
    monkeypatch.setattr(loop, "fastest_way", lambda stepper, n_steps: replay_of(stepper))
    replayed = descend(Shrinking(overflow_at=overflow_at), tape)
    assert torch.equal(replayed.losses, plain.losses)
    assert (replayed.steps, replayed.status, replayed.stopped_at) == (plain.steps, plain.status, plain.stopped_at)
    assert replayed.records.keys() == plain.records.keys()
    assert all(torch.equal(replayed.records[name], plain.records[name]) for name in plain.records)
    assert torch.equal(replayed.final_outputs, plain.final_outputs)
    assert plain.status is (Status.STEP_LIMIT if overflow_at is None else Status.DIVERGED)
    assert plain.stopped_at == (20 if overflow_at is None else overflow_at)


def test_a_cpu_records_nothing() -> None:
    assert type(fastest_way(Shrinking(), n_steps=1000)) is Plain


@pytest.fixture
def problem() -> Problem:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA GPU here")
    x = randn(12, 5)
    pairs = Pairs(x, torch.arange(4), torch.arange(4, 8)[:, None], torch.arange(8, 12)[:, None]).to("cuda")
    return contrastive_problem(pairs, ContrastiveLoss(Cosine(), Linear()))


def both_ways(run: Callable[[], Trajectory], monkeypatch: pytest.MonkeyPatch) -> tuple[Trajectory, Trajectory]:
    """A run with its steps replayed, and the same run in plain steps."""
    ways: list[Plain] = []

    def watched(stepper: Repeatable, *, n_steps: int) -> Plain:
        ways.append(fastest_way(stepper, n_steps=n_steps))
        return ways[-1]

    monkeypatch.setattr(loop, "fastest_way", watched)
    replayed = run()
    assert isinstance(ways[0], Replay), "the step was not recorded"
    monkeypatch.setattr(loop, "fastest_way", lambda stepper, n_steps: Plain(stepper))
    return replayed, run()


@pytest.mark.gpu
@pytest.mark.parametrize("orthonormal", [(), ("output",)])
def test_a_gpu_replays_gradient_descent(
    problem: Problem, orthonormal: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    net = MLP(5, 32, 3, generator=generator(), dtype=torch.float64, device="cuda")
    start = parameters_of(net)
    if orthonormal:
        start["output"] = qr_retraction(start["output"])

    def run() -> Trajectory:
        return gradient_descent(
            pure_function(net),
            start,
            problem,
            learning_rate=0.1,
            n_steps=100,
            record_at=[0, 1, 50, 100],
            recorders={"norm": lambda now: now.outputs.norm()},
            orthonormal=orthonormal,
        )

    replayed, plain = both_ways(run, monkeypatch)
    assert torch.equal(replayed.losses, plain.losses)
    assert torch.equal(replayed.records["norm"], plain.records["norm"])
    assert torch.equal(replayed.final_parameters["output"], plain.final_parameters["output"])
    assert replayed.steps == plain.steps


@pytest.mark.gpu
def test_a_gpu_stops_at_the_step_that_overflows(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    net = MLP(5, 32, 3, generator=generator(), dtype=torch.float64, device="cuda")
    pairs = Pairs(randn(12, 5), torch.arange(4), torch.arange(4, 8)[:, None], torch.arange(8, 12)[:, None]).to("cuda")
    dot = contrastive_problem(pairs, ContrastiveLoss(Dot(), Linear()))

    def run() -> Trajectory:
        return gradient_descent(pure_function(net), parameters_of(net), dot, learning_rate=0.5, n_steps=500)

    replayed, plain = both_ways(run, monkeypatch)
    assert plain.status is replayed.status is Status.DIVERGED
    assert replayed.stopped_at == plain.stopped_at
    assert torch.equal(replayed.losses[:-1], plain.losses[:-1])


@pytest.mark.gpu
def test_a_gpu_replays_the_fixed_kernel(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    net = MLP(5, 32, 3, generator=generator(), dtype=torch.float64, device="cuda")
    K, start = empirical_ntk(net, problem.inputs), net(problem.inputs).detach()

    def run() -> Trajectory:
        return fixed_kernel_descent(K, start, problem.objective, learning_rate=0.1, n_steps=60)

    replayed, plain = both_ways(run, monkeypatch)
    assert torch.equal(replayed.final_outputs, plain.final_outputs)


@pytest.mark.gpu
def test_an_objective_that_looks_at_its_values_is_run_plainly(problem: Problem) -> None:
    net = MLP(5, 32, 3, generator=generator(), dtype=torch.float64, device="cuda")

    def choosy(outputs: torch.Tensor) -> torch.Tensor:
        value = problem.objective(outputs)
        return value if float(value.detach()) > -10 else 2 * value

    run = gradient_descent(
        pure_function(net),
        parameters_of(net),
        Problem(problem.inputs, choosy, problem.size),
        learning_rate=0.1,
        n_steps=50,
    )
    assert run.status is Status.STEP_LIMIT
    assert len(run.losses) == 51
