"""Many runs at once have the numbers of each run alone, end by the stated rule, and do not touch one another."""

from __future__ import annotations

import functools
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import integers, sampled_from
from torch import nn

from kontrast.dynamics import OPTIMIZERS, Ending, checkpoints_of, optimizer_from, output_gap, train_many
from kontrast.dynamics.many_runs import LEAST_SHARE, RUNAWAY
from kontrast.errors import InputError
from kontrast.losses import view_loss_from
from kontrast.nets import MLP, stack_of
from tests.cases import DTYPES, generator, randn
from tests.reference import one_run

N, D, Z = 5, 6, 3  # samples of a batch, dimensions of inputs and outputs
CLOSE = {torch.float64: {"rtol": 1e-9, "atol": 1e-10}, torch.float32: {"rtol": 5e-3, "atol": 5e-4}}
RATES = {"sgd": (0.01, 0.05, 0.2), "momentum": (0.005, 0.01, 0.03), "adam": (0.001, 0.005, 0.02)}
SEEDS = integers(0, 2**16)


def nets_of(seed, dtype=torch.float64, n_starts=2, **options):
    return [
        MLP(D, 7, Z, activation="tanh", generator=generator(seed + s), dtype=dtype, **options) for s in range(n_starts)
    ]


class Conv(nn.Module):
    """A network that no stack of matrix products computes.

    Its head has no bias: VICReg has no gradient there but rounding, and Adam makes whole steps of that.
    """

    def __init__(self, seed, dtype=torch.float64):
        super().__init__()
        self.conv, self.head = nn.Conv1d(1, 3, 3, dtype=dtype), nn.Linear(3 * (D - 2), Z, bias=False, dtype=dtype)
        with torch.no_grad():
            for i, p in enumerate(self.parameters()):
                p.copy_(0.5 * randn(*p.shape, seed=seed + i, dtype=dtype))

    def forward(self, x):
        return self.head(torch.tanh(self.conv(x.unsqueeze(1))).flatten(1))


def data_of(seed, n_steps, dtype=torch.float64, n_starts=2):
    """Batches (S, 2N, D) with labels (S, N), and the held-out one."""
    made = [
        (randn(n_starts, 2 * N, D, seed=seed + k, dtype=dtype), torch.arange(N).expand(n_starts, N) % 2)
        for k in range(n_steps + 1)
    ]
    return made[1:], made[0]


def of_start(batch, s):
    x, labels = batch
    return x[s], None if labels is None else labels[s]


def loss_of(name):
    found = view_loss_from(name)
    return lambda outputs, labels: found(outputs[: len(outputs) // 2], outputs[len(outputs) // 2 :], labels)


def endless(batches):
    return iter([*batches, *itertools.repeat(batches[-1], 1)])  # one more than there are steps is never asked for


def many(modules, loss, batches, held_out, rates, *, optimizer="sgd", **options):
    rates = torch.as_tensor(rates, dtype=torch.float64)
    rates = rates if rates.ndim == 2 else rates.expand(len(modules), -1)
    return train_many(
        stack_of(modules),
        loss,
        endless(batches),
        held_out,
        learning_rates=rates,
        optimizer=optimizer_from(optimizer),
        max_steps=len(batches),
        **{"rest_share": 0.0, **options},
    )


def close(actual, expected, dtype):
    torch.testing.assert_close(actual.to(dtype), torch.as_tensor(expected, dtype=dtype), **CLOSE[dtype])


# Each run alone


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["mlp", "deep", "conv"])
@settings(max_examples=2)
@given(seed=SEEDS, name=sampled_from(["nt_xent", "supcon", "vicreg", "triplet"]))
def test_every_run_is_that_of_a_plain_loop_with_torchs_optimizer(kind, optimizer, dtype, seed, name):
    modules = {
        "mlp": lambda: nets_of(seed, dtype),
        "deep": lambda: nets_of(seed, dtype, depth=2, parametrization="mup"),
        "conv": lambda: [Conv(seed, dtype), Conv(seed + 10, dtype)],
    }[kind]()
    loss, rates = loss_of(name), torch.tensor([RATES[optimizer], RATES[optimizer][::-1]]).double()
    rates *= 0.02 if name == "vicreg" else 1.0  # whose curvature is higher
    batches, held_out = data_of(seed, 8, dtype)
    runs = many(modules, loss, batches, held_out, rates, optimizer=optimizer, unit_length=True)
    assert runs.checkpoints == (0, 2, 3, 4, 6, 8)
    for s, module in enumerate(modules):
        mine = [of_start(batch, s) for batch in batches], of_start(held_out, s)
        for r, rate in enumerate(rates[s].tolist()):
            one = one_run.trained(module, loss, *mine, rate=rate, optimizer=optimizer)
            twin = one_run.trained_twin(module, loss, *mine, rate=rate, optimizer=optimizer)
            close(runs.batch_losses[:, s, r], one.batch_losses, dtype)
            at = list(runs.checkpoints)
            close(runs.losses[:, s, r], [one.losses[t] for t in at], dtype)
            close(runs.twin_losses[:, s, r], [twin.losses[t] for t in at], dtype)
            unit = [[nn.functional.normalize(it.outputs[t], dim=1) for t in at] for it in (one, twin)]
            close(runs.gaps[:, s, r], [float((f - g).norm() / f.norm()) for f, g in zip(*unit, strict=True)], dtype)
            for names, found in ((one.parameters, runs.parameters), (twin.parameters, runs.twin_steps)):
                for key, p in names.items():
                    close(found[key][s, r], p, dtype)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@settings(max_examples=1)
@given(seed=SEEDS)
def test_a_stack_is_its_runs_one_by_one(optimizer, seed):
    modules, (batches, held_out) = nets_of(seed, n_starts=3), data_of(seed, 8, n_starts=3)
    rates = torch.tensor(RATES[optimizer]).double() * torch.tensor([[1.0], [2.0], [0.5]])
    loss = loss_of("nt_xent")
    together = many(modules, loss, batches, held_out, rates, optimizer=optimizer)
    for s, r in itertools.product(range(3), range(3)):
        mine = [tuple(part[s : s + 1] for part in batch) for batch in (*batches, held_out)]
        alone = many([modules[s]], loss, mine[:-1], mine[-1], rates[s : s + 1, r : r + 1], optimizer=optimizer)
        assert alone.endings == [[together.endings[s][r]]]
        for name in ("losses", "twin_losses", "gaps", "batch_losses"):
            close(getattr(alone, name)[:, 0, 0], getattr(together, name)[:, s, r], torch.float64)
        for key, p in alone.parameters.items():
            close(p[0, 0], together.parameters[key][s, r], torch.float64)
            close(alone.twin_steps[key][0, 0], together.twin_steps[key][s, r], torch.float64)


def test_a_rate_of_almost_zero_leaves_the_twin_where_the_network_is():
    batches, held_out = data_of(3, 8)
    for module, low in ((nets_of(3), 1e-9), ([Conv(3), Conv(4)], 1e-9)):
        gaps = many(module, loss_of("nt_xent"), batches, held_out, [low, 0.5]).gaps
        assert gaps[0].max() < 1e-12  # at the start they are the same function
        assert gaps[-1, :, 0].max() < 1e-10
        assert gaps[-1, :, 1].min() > 1e-4


def test_steps_are_counted_as_they_are_made():
    told, (batches, held_out) = [], data_of(0, 9)
    many(nets_of(0), loss_of("nt_xent"), batches, held_out, [0.1], on_step=told.append)
    assert told == list(range(1, 10))


# Endings


class Scaled(nn.Module):
    """f(x) = xθ, of one number θ."""

    def __init__(self, theta=1.0):
        super().__init__()
        self.theta = nn.Parameter(torch.tensor(theta, dtype=torch.float64))

    def forward(self, x):
        return x * self.theta


def scripted(curve, **options):
    """A run whose batch losses are those of `curve`: a batch carries its loss, which no step can change."""
    batches = [(torch.full((1, 2, 1), value, dtype=torch.float64), None) for value in curve]
    return train_many(
        stack_of([Scaled()]),
        lambda outputs, labels: outputs.mean(),
        iter(batches),
        batches[0],
        learning_rates=torch.zeros(1, 1),
        optimizer=optimizer_from("sgd"),
        max_steps=len(curve),
        **options,
    )


def falls(curve):
    """The rule in words: the fall from the mean of the second quarter to that of the last half, over the whole."""
    n = len(curve)
    earlier = sum(curve[n // 4 : n // 2]) / (n // 2 - n // 4)
    later = sum(curve[n // 2 :]) / (n - n // 2)
    return (earlier - later) / abs(curve[0] - later) if earlier != later else 0.0


STEPS = 64
CURVES = {
    "a straight line": ([10 - step / 10 for step in range(STEPS)], Ending.STEP_LIMIT),
    "fast, then flat": ([10 * math.exp(-step) for step in range(STEPS)], Ending.SETTLED),
    "one over t": ([10 / (1 + step) for step in range(STEPS)], Ending.SETTLED),
    "a root": ([10 - math.sqrt(step) for step in range(STEPS)], Ending.STEP_LIMIT),
    "rises": ([1 + step / 10 for step in range(STEPS)], Ending.SETTLED),
    "a late step": ([1.0] * (STEPS // 2) + [0.0] * (STEPS // 2), Ending.STEP_LIMIT),
    "constant": ([1.0] * STEPS, Ending.SETTLED),
}


@pytest.mark.parametrize("name", CURVES)
def test_a_run_has_settled_by_the_stated_rule(name):
    curve, ending = CURVES[name]
    runs = scripted(curve, rest_share=0.0)
    assert runs.stopped_at.tolist() == [[STEPS]]  # 0 trains to the end, also where the loss rises
    assert runs.batch_losses[:, 0, 0].tolist() == curve
    share = falls(curve)
    assert float(runs.still_falling[0, 0]) == pytest.approx(share)
    assert (runs.endings == [[Ending.SETTLED]]) == (share < 0.125) == (ending is Ending.SETTLED)
    for factor, wanted in ((0.99, Ending.STEP_LIMIT), (1.01, Ending.SETTLED)):  # on either side of what it is
        if 0 < factor * share < 1:
            assert scripted(curve, settled_share=factor * share, rest_share=0.0).endings == [[wanted]]


@pytest.mark.parametrize("name", CURVES)
def test_a_run_rests_at_the_second_of_two_checkpoints_that_pass(name):
    curve, _ = CURVES[name]
    share = 0.05
    places = [step for step in checkpoints_of(STEPS) if step >= 4]
    passes = [step * LEAST_SHARE >= STEPS and falls(curve[:step]) < share for step in places]
    resting = [step for step, (one, two) in zip(places[1:], itertools.pairwise(passes), strict=True) if one and two]
    stopped = resting[0] if resting else STEPS
    runs = scripted(curve, rest_share=share)
    assert runs.stopped_at.tolist() == [[stopped]]
    assert torch.isnan(runs.batch_losses[stopped:]).all()
    assert torch.isfinite(runs.batch_losses[:stopped]).all()
    if name in ("a straight line", "a root"):
        assert stopped == STEPS
    if name == "fast, then flat":
        assert STEPS / LEAST_SHARE < stopped < STEPS


def runaway(bounded):
    """−‖f‖²: descent multiplies a linear network's outputs at every step."""
    module = nn.Linear(2, 2, bias=False, dtype=torch.float64)
    x = torch.eye(2, dtype=torch.float64).unsqueeze(0)
    return train_many(
        stack_of([module]),
        lambda outputs, labels: -outputs.square().sum(),
        itertools.repeat((x, None)),
        (x, None),
        learning_rates=torch.tensor([[1e-6, 0.5, 1e3]]),
        optimizer=optimizer_from("sgd"),
        max_steps=200,
        bounded=bounded,
        rest_share=0.0,
    )


def test_outputs_that_run_away_diverge_where_the_loss_has_no_bound_and_overflow_does_everywhere():
    unbounded, bounded = runaway(False), runaway(True)
    still, slow, fast = unbounded.endings[0]
    assert still is not Ending.DIVERGED
    assert slow is fast is Ending.DIVERGED
    # Outputs double at every step: 100 times the start is reached between 6 and 7 steps, at the next checkpoint.
    assert int(unbounded.stopped_at[0, 1]) == next(it for it in unbounded.checkpoints if it >= math.log2(RUNAWAY))
    # A loss with a bound may have large outputs: they count as diverged once they are no numbers.
    assert bounded.endings[0][1] is not Ending.DIVERGED
    assert float(bounded.losses[-1, 0, 1]) < -1e100
    assert bounded.endings[0][2] is Ending.DIVERGED
    assert int(bounded.stopped_at[0, 2]) > int(unbounded.stopped_at[0, 2])
    for runs in (unbounded, bounded):
        at = runs.checkpoints.index(int(runs.stopped_at[0, 2]))
        assert torch.isnan(runs.losses[at + 1 :, 0, 2]).all()
        assert torch.isfinite(runs.losses[:at, 0, 2]).all()
        assert torch.isfinite(runs.losses[:, 0, 0]).all()
        for curve in (runs.twin_losses, runs.gaps):
            assert torch.isnan(curve[at + 1 :, 0, 2]).all()
        assert torch.isnan(runs.batch_losses[int(runs.stopped_at[0, 2]) :, 0, 2]).all()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_runs_that_end_leave_without_changing_the_others(optimizer):
    """A run that overflows at once, in the middle of the stack, and one that does so at one start only."""
    modules, (batches, held_out) = nets_of(5), data_of(5, 16)
    low, high = 0.0005, 0.005
    rates = torch.tensor([[low, 1e200, 1e200, high], [high, 1e200, low, low]], dtype=torch.float64)
    loss = loss_of("spectral")
    runs = many(modules, loss, batches, held_out, rates, optimizer=optimizer, bounded=False)
    assert [row[1] for row in runs.endings] == [Ending.DIVERGED] * 2
    assert runs.endings[0][2] is Ending.DIVERGED
    assert runs.endings[1][2] is not Ending.DIVERGED
    without = many(modules, loss, batches, held_out, rates[:, [0, 3]], optimizer=optimizer, bounded=False)
    for name in ("losses", "twin_losses", "gaps", "batch_losses"):
        torch.testing.assert_close(
            getattr(runs, name)[..., [0, 3]], getattr(without, name), equal_nan=True, **CLOSE[torch.float64]
        )
    for key, p in without.parameters.items():
        close(runs.parameters[key][:, [0, 3]], p, torch.float64)
        close(runs.twin_steps[key][:, [0, 3]], without.twin_steps[key], torch.float64)
    # What ended keeps what it had: the second start's run goes on beside the first's, which is over.
    at = runs.checkpoints.index(int(runs.stopped_at[0, 2]))
    assert torch.isnan(runs.losses[at + 1 :, 0, 2]).all()
    assert torch.isfinite(runs.losses[:, 1, 2]).all()
    assert [len(row) for row in runs.endings] == [4, 4]


def test_a_run_that_ended_keeps_its_parameters_while_its_column_goes_on():
    """Two starts at one rate: one rests, the other does not, and descent goes on for both in the stack."""
    x = torch.tensor([1.0, 3.0], dtype=torch.float64).view(2, 1, 1).expand(2, 2, 1)  # the second is 9 times as steep

    def run(which):
        return train_many(
            stack_of([Scaled() for _ in which]),
            lambda outputs, labels: (outputs - 2).square().mean(),
            itertools.repeat((x[which], None)),
            (x[which], None),
            learning_rates=torch.full((len(which), 1), 0.01),
            optimizer=optimizer_from("sgd"),
            max_steps=64,
            rest_share=0.1,
        )

    both, alone = run([0, 1]), [run([0]), run([1])]
    assert int(both.stopped_at[0, 0]) > int(both.stopped_at[1, 0])
    for s, one in enumerate(alone):
        assert int(one.stopped_at[0, 0]) == int(both.stopped_at[s, 0])
        assert torch.equal(one.parameters["theta"][0], both.parameters["theta"][s])
        assert torch.equal(one.twin_steps["theta"][0], both.twin_steps["theta"][s])
        torch.testing.assert_close(one.losses[:, 0], both.losses[:, s], equal_nan=True, rtol=1e-12, atol=0)


def test_runs_rest_as_they_do_alone_after_another_has_left():
    x = torch.ones(1, 2, 1, dtype=torch.float64)

    def run(*rates):
        return train_many(
            stack_of([Scaled()]),
            lambda outputs, labels: (outputs - 2).square().mean(),
            itertools.repeat((x, None)),
            (x, None),
            learning_rates=torch.tensor([rates], dtype=torch.float64),
            optimizer=optimizer_from("sgd"),
            max_steps=32,
            rest_share=0.1,
        )

    together = run(1e200, 0.4, 0.1)
    assert together.endings[0][0] is Ending.DIVERGED
    assert together.stopped_at[0, 1:].tolist() == [int(run(rate).stopped_at) for rate in (0.4, 0.1)]
    assert together.stopped_at[0, 0] < together.stopped_at[0, 1] < together.stopped_at[0, 2] < 32


def test_outputs_run_away_from_those_of_their_own_start():
    """Large outputs that stay where they began have not diverged, whatever the size of the other start's."""
    x = torch.ones(2, 2, 1, dtype=torch.float64)
    runs = train_many(
        stack_of([Scaled(), Scaled(10 * RUNAWAY)]),
        lambda outputs, labels: outputs.mean(),
        itertools.repeat((x, None)),
        (x, None),
        learning_rates=torch.tensor([[1e200, 1e-9]] * 2, dtype=torch.float64),
        optimizer=optimizer_from("sgd"),
        max_steps=8,
        bounded=False,
    )
    assert [[ending is Ending.DIVERGED for ending in row] for row in runs.endings] == [[True, False]] * 2


# The pieces


@given(max_steps=integers(1, 5000))
def test_checkpoints_reach_from_0_to_the_end_with_half_of_each_two_places_before(max_steps):
    steps = checkpoints_of(max_steps)
    assert (steps[0], steps[-1]) == (0, max_steps)
    assert all(a < b for a, b in itertools.pairwise(steps))
    for before, _, step in zip(steps[1:], steps[2:], steps[3:], strict=False):
        if step >= 12:  # below that, rounding joins neighbours
            assert abs(before - step / 2) <= 1
    assert len(steps) <= 2 + 2 * math.log2(max_steps + 1)


@given(seed=SEEDS, unit=sampled_from([False, True]))
def test_the_gap_is_a_relative_distance(seed, unit):
    f, g = randn(2, 3, 4, 2, seed=seed), randn(2, 3, 4, 2, seed=seed + 1)
    gap = output_gap(f, g, unit_length=unit)
    for s, r in itertools.product(range(2), range(3)):
        a, b = (([row / row.norm() for row in part[s, r]] if unit else list(part[s, r])) for part in (f, g))
        squares = sum(float((x - y).square().sum()) for x, y in zip(a, b, strict=True))
        size = sum(float(x.square().sum()) for x in a)
        assert float(gap[s, r]) == pytest.approx(math.sqrt(squares / size))
    assert output_gap(f, f, unit_length=unit).max() == 0
    stretched = output_gap(f, 3 * f, unit_length=unit)
    torch.testing.assert_close(stretched, torch.full_like(stretched, 0.0 if unit else 2.0))
    assert torch.isnan(output_gap(f, torch.full_like(g, torch.nan), unit_length=unit)).all()


REFUSALS = [
    ({"max_steps": 0}, "max_steps must be a whole number of at least 1, got 0"),
    ({"max_steps": 2.5}, "max_steps must be a whole number"),
    ({"settled_share": 1.5}, "settled_share must be a number of at least 0 and at most 1, got 1.5"),
    ({"rest_share": 0.2}, "rest_share must be a number of at least 0 and at most 0.125, got 0.2"),
    ({"rest_share": -0.1}, "rest_share must be"),
    ({"learning_rates": torch.ones(3)}, r"learning_rates must have shape \(2, R\), got \(3,\)"),
    ({"learning_rates": torch.ones(3, 1)}, r"learning_rates must have shape \(2, R\), got \(3, 1\)"),
    ({"learning_rates": torch.ones(2, 0)}, r"learning_rates must have shape \(2, R\)"),
    ({"learning_rates": torch.tensor([[1.0], [torch.nan]])}, "learning_rates holds NaN"),
]


@pytest.mark.parametrize("change, words", REFUSALS)
def test_refusals(change, words):
    batches, held_out = data_of(0, 8)
    call = functools.partial(train_many, stack_of(nets_of(0)), loss_of("nt_xent"), endless(batches), held_out)
    fields = {"learning_rates": torch.ones(2, 1), "optimizer": optimizer_from("sgd"), "max_steps": 8, **change}
    with pytest.raises(InputError, match=words):
        call(**fields)


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("loss", ["nt_xent", "supcon", "vicreg"])
@pytest.mark.parametrize("network", [nets_of, lambda seed: [Conv(seed), Conv(seed + 9)]], ids=["mlp", "conv"])
def test_a_gpu_replays_the_steps_of_many_runs(network, loss, optimizer, monkeypatch):
    """Also where a run diverges on the way and leaves the stack."""

    def run(limit):
        monkeypatch.setattr("kontrast.dynamics.many_runs.LARGEST_RECORDED", limit)
        batches, held_out = data_of(5, 24)
        on_gpu = [(x.cuda(), labels.cuda()) for x, labels in batches]
        modules = [module.cuda() for module in network(3)]
        rates = [*RATES[optimizer], 1e200]
        return many(modules, loss_of(loss), on_gpu, tuple(t.cuda() for t in held_out), rates, optimizer=optimizer)

    replayed, plain = run(10**8), run(0)
    assert replayed.endings == plain.endings
    assert torch.equal(replayed.stopped_at, plain.stopped_at)
    # VICReg overflows at the largest rate, too: what is NaN in one must be NaN in the other.
    close_ = functools.partial(torch.testing.assert_close, rtol=1e-9, atol=1e-10, equal_nan=True)
    for name, p in plain.parameters.items():
        close_(replayed.parameters[name][:, :3], p[:, :3])
        close_(replayed.twin_steps[name][:, :3], plain.twin_steps[name][:, :3])
    close_(replayed.batch_losses[:, :, :3], plain.batch_losses[:, :, :3])
