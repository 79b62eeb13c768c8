"""Verdicts are computed: each changes when the numbers behind it change."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis.strategies import floats, integers

from kontrast.dynamics import SETTLED_SHARE
from kontrast.study import KernelVerdict, StudySpec, Thresholds, find, kernel

# Neither a PCA view nor probes: `test_pca` and `test_probes` judge those.
SPEC = StudySpec(
    losses=(),
    widths=(64, 128, 256, 512),
    n_seeds=3,
    n_steps=100,
    similarities=("cosine",),
    learning_rates=(0.1,),
    views="crop",
    parametrization="standard",
    n_probe_samples=0,
)


def study(
    *,
    drift: float = -0.8,
    gap: float = -0.8,
    gap_at_64: float = 0.1,
    move: float = 0.5,
    diverged_at: dict[tuple[int, int], int] | None = None,
    kernel_diverged: int = 0,
    spec: StudySpec = SPEC,
    noise: float = 0.02,
) -> xr.Dataset:
    """A made-up study whose drift and gap follow given power laws in the width, and whose loss has settled."""
    rng = np.random.default_rng(0)
    steps, widths = np.array(spec.record_steps), np.array(spec.widths, dtype=float)
    shape = (1, len(widths), spec.n_seeds, len(steps))
    growth = np.log1p(steps) / np.log1p(steps[-1])

    def law(at_64: float, exponent: float) -> np.ndarray:
        values = at_64 * (widths / 64) ** exponent
        return values[None, :, None, None] * growth * np.exp(noise * rng.standard_normal(shape))

    made = {name: np.full(shape, 1.0) * growth for name in (quantity.name for quantity in kernel.QUANTITIES)}
    made |= {"ntk_drift_max": law(10, drift), "ntk_drift_fro": law(0.1, drift), "kernel_gap": law(gap_at_64, gap)}
    made |= {"output_move": law(move, 0), "parameter_move": law(3, 0)}
    made["loss"] = np.exp(-8 * steps / steps[-1]) * np.ones(shape)
    diverged, stopped = np.zeros(shape[:3], dtype=np.int32), np.full(shape[:3], spec.n_steps, dtype=np.int32)
    for (i, j), step in (diverged_at or {}).items():
        diverged[0, i, j], stopped[0, i, j] = 1, step
        for values in made.values():
            values[0, i, j, steps >= step] = np.nan
    dims = ("similarity", "width", "seed")
    data = {name: ((*dims, "step"), values) for name, values in made.items()}
    data |= {
        "diverged": (dims, diverged),
        "kernel_diverged": (dims, np.full(shape[:3], kernel_diverged, dtype=np.int32)),
        "stopped_at": (dims, stopped),
        "learning_rate": (dims, np.full(shape[:3], 0.1)),
        "ntk_scale": (dims, np.full(shape[:3], 250.0)),
        "n_classes": (dims[1:], np.zeros(shape[1:3], dtype=np.int32)),
    }
    coords = {"similarity": ["cosine"], "width": list(spec.widths), "seed": range(spec.n_seeds), "step": steps}
    return xr.Dataset(data, coords=coords, attrs={"spec": json.dumps(spec.as_dict())})


def one(**options: object):
    return find(study(**options)).similarities[0]


@settings(max_examples=25)
@given(drift=floats(-1.5, 1.0), gap=floats(-1.5, -0.2))
def test_exponents_are_those_of_the_data(drift: float, gap: float) -> None:
    found = one(drift=drift, gap=gap)
    assert found.step == 100
    assert found.exponents["ntk_drift_max"].exponent == pytest.approx(drift, abs=0.05)
    assert found.exponents["kernel_gap"].exponent == pytest.approx(gap, abs=0.05)
    assert found.exponents["parameter_move"].exponent == pytest.approx(0, abs=0.05)
    law = found.exponents["ntk_drift_max"]
    assert f"{'falls' if law.high < 0 else 'grows' if law.low > 0 else 'goes'} as M^{law}" in found.sentence


def test_a_small_gap_is_a_kernel_machine_from_the_width_that_reaches_it() -> None:
    found = one(gap_at_64=0.1)
    assert found.verdict is KernelVerdict.KERNEL
    gap = found.means["kernel_gap"][-1]
    assert f"at width 512 a kernel machine predicts this model within {gap:.1%}" in found.sentence
    first = next(w for w, g in zip(found.widths, found.means["kernel_gap"], strict=True) if g <= 0.05)
    assert f"within 5% from width {first}" in found.sentence
    assert first == 256


def test_a_falling_gap_says_which_width_would_do() -> None:
    found = one(gap_at_64=2.0)
    assert found.verdict is KernelVerdict.KERNEL_WHEN_WIDER
    needed = found.exponents["kernel_gap"].solve(0.05)
    assert needed == pytest.approx(64 * 40 ** (1 / 0.8), rel=0.3)
    assert f"needs a width of about {float(f'{needed:.1g}'):,.0f}" in found.sentence


def test_outputs_that_run_away_are_no_learning() -> None:
    result = study(gap_at_64=0.5, gap=0.0)
    result.output_move[0, 0, 1, -3:] = [80.0, 150.0, 1e7]
    found = find(result).similarities[0]
    assert found.verdict is KernelVerdict.DIVERGES
    assert found.running_away == (1, 0, 0, 0)
    assert "runs away in 1 of 12 runs" in found.sentence
    assert found.step == int(result.step[-3])


@pytest.mark.parametrize("noise", [0.02, 1.0])
def test_an_exponent_that_is_not_known_decides_nothing(noise: float) -> None:
    found = one(gap_at_64=0.9, gap=-0.2, noise=noise)
    law = found.exponents["kernel_gap"]
    expected = KernelVerdict.KERNEL_WHEN_WIDER if law.high < 0 else KernelVerdict.UNDECIDED
    assert found.verdict is expected
    assert (noise == 1.0) == (expected is KernelVerdict.UNDECIDED)


@pytest.mark.parametrize("gap", [0.0, 0.3])
def test_a_gap_that_does_not_fall_is_learning(gap: float) -> None:
    assert one(gap_at_64=0.5, gap=gap).verdict is KernelVerdict.LEARNS


def test_a_model_that_barely_moved_is_not_judged() -> None:
    found = one(move=0.01, gap_at_64=0.001)
    assert found.verdict is KernelVerdict.STILL
    assert "raise the steps or the learning rate" in found.sentence


def test_the_tolerance_decides() -> None:
    result = study(gap_at_64=0.4)
    assert find(result, Thresholds(tolerance=0.2)).similarities[0].verdict is KernelVerdict.KERNEL
    assert find(result, Thresholds(tolerance=0.01)).similarities[0].verdict is KernelVerdict.KERNEL_WHEN_WIDER


def test_divergence_everywhere_and_later_when_wider() -> None:
    when = {(i, j): 40 + 10 * i + j for i in range(4) for j in range(3)}
    found = one(diverged_at=when)
    assert found.verdict is KernelVerdict.DIVERGES
    assert "diverges at every width, later when wider: step 41 at width 64, 71 at 512" in found.sentence
    assert found.diverged == (3, 3, 3, 3)
    assert found.diverged_at == (41, 51, 61, 71)
    assert found.divergence_law is not None
    assert found.divergence_law.slope == pytest.approx(10 / math.log(2))
    assert found.step is not None
    assert found.step <= 20  # half of the earliest divergence
    assert "later when wider" not in one(diverged_at=dict.fromkeys(when, 40)).sentence


def test_later_when_wider_needs_more_than_a_positive_slope() -> None:
    steps = [40, 60, 41, 62]  # rises on the whole, but its interval holds zero
    found = one(diverged_at={(i, j): steps[i] for i in range(4) for j in range(3)})
    assert found.divergence_law is not None
    assert found.divergence_law.low < 0 < found.divergence_law.slope
    assert "later when wider" not in found.sentence


def test_the_widest_network_decides() -> None:
    rising = study(gap=0.5, gap_at_64=0.03)  # within the tolerance when narrow, outside when wide
    assert rising.kernel_gap[0, 0, :, -1].max() < 0.05 < rising.kernel_gap[0, -1, :, -1].min()
    assert find(rising).similarities[0].verdict is KernelVerdict.LEARNS
    for still, verdict in ((0, KernelVerdict.KERNEL), (-1, KernelVerdict.STILL)):
        result = study(gap_at_64=0.01)
        result.output_move[0, still] = 0.001
        assert find(result).similarities[0].verdict is verdict


@settings(max_examples=12)
@given(seed=integers(0, 2), width=integers(0, 3))
def test_one_diverged_run_is_never_averaged_away(seed: int, width: int) -> None:
    found = one(diverged_at={(width, seed): 50})
    assert found.verdict is KernelVerdict.DIVERGES
    assert "diverges in 1 of 12 runs" in found.sentence
    assert sum(found.diverged) == 1
    assert found.step is not None
    assert found.step <= 25
    assert all(math.isfinite(v) for values in found.means.values() for v in values)


def test_divergence_before_anything_was_recorded() -> None:
    found = one(diverged_at={(i, j): 1 for i in range(4) for j in range(3)})
    assert found.verdict is KernelVerdict.DIVERGES
    assert found.step is None
    assert found.means == {}
    assert found.exponents == {}


def test_a_kernel_prediction_that_overflows_is_told() -> None:
    result = study(kernel_diverged=1)
    result.kernel_gap.loc[{"step": result.step[result.step > 30]}] = math.nan
    found = find(result).similarities[0]
    assert found.step is not None
    assert found.step <= 30
    assert f"judged at step {found.step}: the fixed kernel's own prediction overflows later" in found.sentence
    result.kernel_gap[:] = math.nan
    found = find(result).similarities[0]
    assert found.verdict is KernelVerdict.DIVERGES
    assert "lower the learning rate" in found.sentence


# Undertrained


def falling(result: xr.Dataset, share: float = 0.5) -> xr.Dataset:
    """The same study with a loss that falls in a line to the step nearest to half of the last, then adds `share`."""
    steps = result.step.values
    last = steps[-1]
    half = steps[np.abs(steps - last / 2).argmin()]
    heights = np.interp(steps, [steps[0], half, last], [1, share, 0])
    return result.assign(loss=result.loss * 0 + xr.DataArray(heights, dims="step", coords={"step": steps}))


@settings(max_examples=12)
@given(share=floats(-0.5, 1).filter(lambda share: abs(share - SETTLED_SHARE) > 1e-6))
def test_undertrained_is_where_the_last_half_adds_much_of_the_fall(share: float) -> None:
    found = find(falling(study(), share)).similarities[0]
    assert found.still_falling == pytest.approx(share)
    assert (found.verdict is KernelVerdict.UNDERTRAINED) == (share > SETTLED_SHARE)


@pytest.mark.parametrize(
    "verdict, made",
    [
        (KernelVerdict.STILL, {"move": 0.01, "gap_at_64": 0.001}),
        (KernelVerdict.KERNEL, {"gap_at_64": 0.1}),
        (KernelVerdict.KERNEL_WHEN_WIDER, {"gap_at_64": 2.0}),
        (KernelVerdict.LEARNS, {"gap_at_64": 0.5, "gap": 0.0}),
        (KernelVerdict.UNDECIDED, {"gap_at_64": 0.9, "gap": -0.2, "noise": 1.0}),
    ],
)
def test_an_undertrained_run_has_no_other_verdict_and_keeps_what_was_measured(
    verdict: KernelVerdict, made: dict[str, float]
) -> None:
    settled, found = one(**made), find(falling(study(**made))).similarities[0]
    assert settled.verdict is verdict
    assert found.verdict is KernelVerdict.UNDERTRAINED
    assert "the last half of the steps added more than 0.125 of its whole fall" in found.reason
    measured = settled.sentence.removesuffix(": training learns what no fixed kernel does")
    so_far = (
        "this is so at step 100, where the loss still falls: the last half of the steps added 50.0% of its whole fall"
    )
    assert found.sentence == f"{measured}; {so_far}"
    assert (found.means["kernel_gap"], found.exponents) == (settled.means["kernel_gap"], settled.exponents)


def test_a_diverged_run_is_not_undertrained() -> None:
    found = find(falling(study(diverged_at={(0, 0): 50}))).similarities[0]
    assert found.verdict is KernelVerdict.DIVERGES


def test_the_widest_networks_loss_decides() -> None:
    result = study()
    for width, verdict in ((64, KernelVerdict.KERNEL), (512, KernelVerdict.UNDERTRAINED)):
        loss = result.loss.where(result.width != width, falling(result).loss)
        assert find(result.assign(loss=loss)).similarities[0].verdict is verdict


def test_one_step_is_no_fall_yet() -> None:
    found = one(spec=dataclasses.replace(SPEC, n_steps=1))
    assert found.still_falling == 1
    assert found.verdict is KernelVerdict.UNDERTRAINED


def test_a_loss_that_never_moved_does_not_fall() -> None:
    result = study()
    found = find(result.assign(loss=result.loss * 0 + 0.7)).similarities[0]
    assert found.still_falling == 0
    assert found.verdict is KernelVerdict.KERNEL


@pytest.mark.parametrize("widths", [(64,), (64, 128)])
def test_few_widths_still_give_a_verdict(widths: tuple[int, ...]) -> None:
    spec = dataclasses.replace(SPEC, widths=widths)
    assert one(spec=spec, gap_at_64=0.01).verdict is KernelVerdict.KERNEL
    # One or two widths bound no exponent, so nothing is promised about wider ones.
    assert one(spec=spec, gap_at_64=0.9).verdict is KernelVerdict.UNDECIDED
    diverged = one(spec=spec, diverged_at={(i, j): 40 for i in range(len(widths)) for j in range(3)})
    assert "step 40" in diverged.sentence


def test_changes_of_the_size_of_rounding_have_no_law_in_the_width() -> None:
    """Those of the kernel are measured by the kernel's own size, shares by one."""
    result = study()
    assert {"ntk_drift_max", "kernel_gap"} <= find(result).similarities[0].exponents.keys()
    result["ntk_drift_max"], result["ntk_scale"] = result.ntk_drift_max * 1e12, result.ntk_scale * 1e24
    found = find(result).similarities[0]
    assert "ntk_drift_max" not in found.exponents
    assert "ntk_drift_fro" in found.exponents
    result["kernel_gap"] = result.kernel_gap.where(result.width > 64, 1e-12)
    assert "kernel_gap" not in find(result).similarities[0].exponents


def test_a_loss_that_rises_has_settled() -> None:
    loss = xr.DataArray(
        np.array([1.0, 1.5, 3.0])[:, None, None],
        dims=("step", "width", "seed"),
        coords={"step": [1, 5, 10], "width": [8], "seed": [0]},
    )
    assert kernel._still_falling(xr.Dataset({"loss": loss}), 10) == pytest.approx(-0.75)
