"""Is a trained network a kernel machine? It is trained beside a twin whose kernel stays fixed at its start."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import xarray as xr
from torch import Tensor

from kontrast.dynamics import (
    SETTLED_SHARE,
    Snapshot,
    Status,
    contrastive_problem,
    distance_from,
    fixed_kernel_descent,
    gradient_descent,
)
from kontrast.kernels import empirical_ntk
from kontrast.linalg import LogLaw, effective_rank, fit_log_law, relative_spread
from kontrast.losses import ContrastiveLoss, link_from, similarity_from
from kontrast.nets import MLP, Linearized, Parameters, parameters_of, pure_function
from kontrast.study.cell import Cell
from kontrast.study.over_seeds import about_width, over_widths, seed_means, trend, whole_steps
from kontrast.study.quantities import (
    Drawing,
    Finished,
    Plot,
    Quantity,
    outputs_by_step,
    over_steps,
    recorder,
    scalar,
    share,
)
from kontrast.study.rules import Rule, WidthFindings
from kontrast.study.spec import StudySpec
from kontrast.study.thresholds import Thresholds

MAX_DENSE = 6000  # outputs (points × dimensions) up to which the fixed kernel is held as a matrix
RUNAWAY = 100.0  # outputs that moved by more than this multiple of their first norm are on their way to overflow
FLAT = -0.25  # a gap whose exponent lies surely above half of the theorem's −1/2 does not fall as a kernel's would


# What is measured


@dataclass(frozen=True, eq=False)
class _Start:
    """The start of one run, with which every step is compared."""

    net: MLP
    points: Tensor  # where the NTK is taken
    K0: Tensor
    parameters: Parameters
    outputs: Tensor
    anchor: Tensor
    predicted: dict[int, Tensor]  # the twin's outputs by step


@dataclass(frozen=True, eq=False)
class _Moment:
    """One recorded step of a run, beside its start."""

    start: _Start
    now: Snapshot

    @functools.cached_property
    def ntk_change(self) -> Tensor:
        """K(t) − K(0)."""
        return empirical_ntk(self.start.net, self.start.points, parameters=self.now.parameters) - self.start.K0

    @functools.cached_property
    def embedding(self) -> Tensor:
        """The outputs at the anchors."""
        return self.now.outputs[self.start.anchor]


def _kernel_gap(seen: _Moment) -> float:
    predicted = seen.start.predicted.get(seen.now.step)
    if predicted is None:  # the twin overflowed first
        return math.nan
    return float((seen.now.outputs - predicted).norm() / seen.now.outputs.norm())


QUANTITIES = (
    Quantity(
        "ntk_drift_max",
        "max |K(t) − K(0)| over the NTK points",
        record=lambda seen: seen.ntk_change.abs().max(),
        heading="NTK drift, max",
        in_terminal=True,
        fitted=True,
        scale="ntk_scale",
        drawing=Drawing(
            (
                Plot("study-width", "width", "NTK drift against width"),
                Plot("study-step", "step", "NTK drift against step"),
            ),
            "max |K(t) − K(0)|",
            guide=-0.5,
            unbounded=True,
        ),
    ),
    Quantity(
        "ntk_drift_fro",
        "‖K(t) − K(0)‖_F / ‖K(0)‖_F over the NTK points",
        record=lambda seen: seen.ntk_change.norm() / seen.start.K0.norm(),
        heading="NTK drift, relative",
        write=share,
        in_terminal=True,
        fitted=True,
    ),
    Quantity(
        "kernel_gap",
        "‖f − f_K‖_F / ‖f‖_F, f_K the fixed-kernel prediction",
        record=_kernel_gap,
        heading="kernel gap",
        write=share,
        in_terminal=True,
        fitted=True,
        drawing=Drawing(
            (
                Plot("prediction-width", "width", "Kernel gap against width"),
                Plot("prediction-step", "step", "Kernel gap against step"),
            ),
            "‖f − f_K‖ / ‖f‖",
            threshold="tolerance",
        ),
    ),
    Quantity(
        "output_move",
        "‖f(t) − f(0)‖_F / ‖f(0)‖_F",
        record=lambda seen: (seen.now.outputs - seen.start.outputs).norm() / seen.start.outputs.norm(),
        heading="outputs moved",
        write=share,
        drawing=Drawing(
            (Plot("movement-outputs", "step", "Outputs moved, against step"),),
            "‖f(t) − f(0)‖ / ‖f(0)‖",
            threshold="tolerance",
            unbounded=True,
        ),
    ),
    Quantity(
        "parameter_move",
        "‖θ(t) − θ(0)‖",
        record=lambda seen: distance_from(seen.start.parameters)(seen.now),
        heading="weights moved",
        in_terminal=True,
        fitted=True,
        drawing=Drawing((Plot("movement-weights", "width", "Weights moved, against width"),), "‖θ(t) − θ(0)‖"),
    ),
    Quantity("loss", "the training loss", read=lambda runs: runs.losses(runs.trained)),
    Quantity("kernel_loss", "the loss of the fixed-kernel prediction", read=lambda runs: runs.losses(runs.twin)),
    Quantity(
        "effective_rank",
        "effective rank of the anchors' centred embedding",
        record=lambda seen: effective_rank(seen.embedding),
        heading="effective rank",
        in_terminal=True,
        drawing=Drawing(
            (Plot("collapse-rank", "step", "Effective rank"),),
            "directions in use",
            span=lambda spec: (1, max(2, min(spec.d_out, spec.n_samples - 1))),  # of a centred embedding
        ),
    ),
    Quantity(
        "spread",
        "share of the embedding's squared norm that is not its mean",
        record=lambda seen: relative_spread(seen.embedding),
        heading="spread",
        write=share,
        drawing=Drawing(
            (Plot("collapse-spread", "step", "Spread"),), "1 − ‖mean‖² / mean ‖f‖²", span=lambda spec: (0, 1)
        ),
    ),
)


def measure(cell: Cell) -> xr.Dataset:
    """Train the cell's network under every similarity, each beside its fixed-kernel twin."""
    rates = cell.spec.learning_rates
    assert rates is not None, "the spec was not prepared"
    return xr.concat(
        [_train(cell, name, rate) for name, rate in zip(cell.spec.similarities, rates, strict=True)], dim="similarity"
    )


def _train(cell: Cell, similarity: str, rate: float) -> xr.Dataset:
    spec, net, pairs, steps = cell.spec, cell.net, cell.pairs, cell.spec.record_steps
    loss = ContrastiveLoss(
        similarity_from(similarity, delta=spec.delta), link_from(spec.link, temperature=spec.temperature or 1.0)
    )
    problem = contrastive_problem(pairs, loss)
    descent: dict[str, Any] = {"learning_rate": rate, "n_steps": spec.n_steps, "record_at": steps}
    outputs = net(problem.inputs).detach()
    kernel = _fixed_kernel(net, problem.inputs, outputs.numel())
    twin = fixed_kernel_descent(kernel, outputs, problem.objective, keep_outputs=True, **descent)
    points = problem.inputs[pairs.anchor[: spec.n_ntk_points]]
    K0 = empirical_ntk(net, points)
    start = _Start(net, points, K0, parameters_of(net), outputs, pairs.anchor, outputs_by_step(twin))
    function, records = pure_function(net), {"all": recorder(QUANTITIES, functools.partial(_Moment, start))}
    trained = gradient_descent(function, parameters_of(net), problem, recorders=records, **descent)
    diverged, twin_diverged = (run.status is Status.DIVERGED for run in (trained, twin))
    cell.embeddings[similarity] = None if diverged else functools.partial(function, trained.final_parameters)
    scalars = {
        "diverged": scalar(np.int32(diverged), "1 where the run overflowed"),
        "stopped_at": scalar(np.int32(trained.stopped_at), "the step at which the run ended"),
        "kernel_diverged": scalar(np.int32(twin_diverged), "1 where the fixed kernel's own prediction overflowed"),
        "learning_rate": scalar(rate, "the learning rate"),
        "ntk_scale": scalar(float(K0.abs().max()), "max |K(0)| over the NTK points"),
    }
    return over_steps(QUANTITIES, Finished(trained, twin, steps), scalars).assign_coords(similarity=similarity)


def _fixed_kernel(net: MLP, inputs: Tensor, size: int) -> Tensor | Callable[[Tensor], Tensor]:
    """The NTK at the start: a matrix where it fits, its products with vectors where it does not."""
    if size <= MAX_DENSE:
        return empirical_ntk(net, inputs)
    return functools.partial(Linearized.of(net).kernel_product, inputs)


# What the numbers say


class KernelVerdict(Enum):
    """The verdict on a network trained under one similarity; the value says it in words."""

    KERNEL = "a kernel machine"
    KERNEL_WHEN_WIDER = "not a kernel machine at these widths, but becoming one as it widens"
    LEARNS = "learning: no fixed kernel describes what training does"
    UNDECIDED = "not a kernel machine at these widths, and too few widths to say more"
    DIVERGES = "training diverges, and no kernel describes where it goes"
    UNDERTRAINED = "undertrained: the loss still falls"
    STILL = "training has barely moved the network, too little to judge"


@dataclass(frozen=True)
class SimilarityFindings(WidthFindings[KernelVerdict]):
    """The findings for one similarity.

    Where a run diverged, `step` is the last recorded one before half of the earliest divergence, so that no mean holds
    a run that is about to overflow.
    """

    similarity: str
    still_falling: float  # share of the loss's fall up to `step` that the last half of the steps added; widest network
    running_away: tuple[int, ...]  # seeds, per width, that ended finite but over `RUNAWAY` times their start
    kernel_diverged: tuple[int, ...]  # in how many seeds the fixed kernel's own prediction overflowed, per width
    diverged_at: tuple[float, ...]  # mean step of divergence, per width; NaN where none did
    divergence_law: LogLaw | None  # mean step of divergence against ln width, when every run diverged


def judge(result: xr.Dataset, spec: StudySpec, thresholds: Thresholds) -> tuple[SimilarityFindings, ...]:
    """The findings for every similarity of a consolidated study."""
    return tuple(_judge(result.sel(similarity=name), spec.dtype, thresholds) for name in spec.similarities)


def _judge(result: xr.Dataset, dtype: str, thresholds: Thresholds) -> SimilarityFindings:
    diverged = result.diverged.values.astype(bool)  # (width, seed)
    stopped = np.where(diverged, result.stopped_at.values, np.nan)
    diverged_at = tuple(float(np.nanmean(row)) if np.isfinite(row).any() else math.nan for row in stopped)
    fitted = [quantity.name for quantity in QUANTITIES if quantity.fitted]
    usable = whole_steps(result, fitted, diverged, result.stopped_at.values)
    moves = result.output_move.transpose("step", "width", "seed").values  # NaN, a diverged run, compares as False
    usable = usable & (moves <= RUNAWAY).all(axis=(1, 2))
    shared = over_widths(result, QUANTITIES, usable, diverged, dtype=dtype)
    found = SimilarityFindings(
        **shared,
        similarity=str(result.similarity.values),
        learning_rate=float(result.learning_rate.values.flat[0]),
        verdict=KernelVerdict.UNDECIDED,
        still_falling=_still_falling(result, shared["step"]),
        running_away=tuple(int(row.sum()) for row in moves[-1] > RUNAWAY),
        kernel_diverged=tuple(int(row.sum()) for row in result.kernel_diverged.values),
        diverged_at=diverged_at,
        divergence_law=fit_log_law(shared["widths"], diverged_at) if diverged.all() and len(diverged) > 1 else None,
    )
    remark = ""
    if sum(found.kernel_diverged) and found.step is not None:
        remark = f" (judged at step {found.step}: the fixed kernel's own prediction overflows later)"
    return found.decided(RULES, thresholds, found.similarity, remark)


def _still_falling(result: xr.Dataset, at: int | None) -> float:
    """The share of the loss's fall that the last half of the steps up to `at` added: means over the seeds, widest net.

    The fall begins at the first recorded step; the last half begins at the one nearest to half of `at`.
    """
    steps = result.step.values
    if at is None or at == steps[0]:
        return 1.0  # one number is no fall yet
    half = int(steps[np.abs(steps - at / 2).argmin()])
    first, middle, last = (seed_means(result.loss.sel(step=step))[-1] for step in (int(steps[0]), half, at))
    return (middle - last) / max(abs(first - last), np.finfo(np.float64).tiny)


def _says_diverges(found: SimilarityFindings, thresholds: Thresholds) -> str:
    if sum(found.diverged) or sum(found.running_away):
        return f"{_divergence(found)}{_drift(found)}no kernel describes where it goes"
    return "the fixed kernel's own prediction overflows at once; lower the learning rate"


def _says_kernel(found: SimilarityFindings, thresholds: Thresholds) -> str:
    gaps, tolerance = found.means["kernel_gap"], thresholds.tolerance
    first = next(w for w, gap in zip(found.widths, gaps, strict=True) if gap <= tolerance)
    return (
        f"{_drift(found)}at width {found.widths[-1]} a kernel machine predicts this model within {gaps[-1]:.1%} "
        f"(within {tolerance:.0%} from width {first} on)"
    )


def _says_when_wider(found: SimilarityFindings, thresholds: Thresholds) -> str:
    needed = found.exponents["kernel_gap"].solve(thresholds.tolerance)
    return (
        f"{_drift(found)}at width {found.widths[-1]} a kernel machine still misses this model by "
        f"{found.widest('kernel_gap'):.1%}; at this rate {thresholds.tolerance:.0%} needs {about_width(needed)}"
    )


def _says_undertrained(found: SimilarityFindings, thresholds: Thresholds) -> str:
    """What is measured at the last step is true of that step; where training ends is not said."""
    rule = next(it for it in RULES if it.verdict in SETTLED and it.holds(found, thresholds))
    measured = _flat(found) if rule.verdict is KernelVerdict.LEARNS else rule.sentence(found, thresholds)
    return (
        f"{measured}; this is so at step {found.step}, where the loss still falls: the last half of the steps added "
        f"{found.still_falling:.1%} of its whole fall"
    )


def _missed(found: SimilarityFindings) -> str:
    gap = found.widest("kernel_gap")
    return f"{_drift(found)}at width {found.widths[-1]} a fixed kernel misses this model by {gap:.1%}"


def _flat(found: SimilarityFindings) -> str:
    return f"{_missed(found)}, and the gap does not fall with width"


SETTLED = set(KernelVerdict) - {KernelVerdict.DIVERGES, KernelVerdict.UNDERTRAINED}  # said of runs that have settled
RULES = (
    Rule(
        KernelVerdict.DIVERGES,
        f"a run overflowed or ended with outputs over {RUNAWAY:g} times their start, or the fixed kernel's own "
        "prediction overflowed at once",
        lambda found, _: bool(sum(found.diverged) or sum(found.running_away)) or not found.means,
        _says_diverges,
    ),
    Rule(
        KernelVerdict.UNDERTRAINED,
        "at the widest network the loss still falls: the last half of the steps added more than "
        f"{SETTLED_SHARE:g} of its whole fall",
        lambda found, _: not found.still_falling < SETTLED_SHARE,
        _says_undertrained,
    ),
    Rule(
        KernelVerdict.STILL,
        "at the widest network the outputs moved by less than a tolerance of {tolerance}, as a share of their norm",
        lambda found, thresholds: found.widest("output_move") < thresholds.tolerance,
        lambda found, _: (
            f"after {found.step} steps the outputs have moved by {found.widest('output_move'):.2%} at width "
            f"{found.widths[-1]}, too little to judge; raise the steps or the learning rate"
        ),
    ),
    Rule(
        KernelVerdict.KERNEL,
        "at the widest network the kernel gap is at most a tolerance of {tolerance}",
        lambda found, thresholds: found.widest("kernel_gap") <= thresholds.tolerance,
        _says_kernel,
    ),
    Rule(
        KernelVerdict.KERNEL_WHEN_WIDER,
        "the kernel gap falls with width: the 95 % interval of its exponent lies below zero",
        lambda found, _: found.falls("kernel_gap"),
        _says_when_wider,
    ),
    Rule(
        KernelVerdict.LEARNS,
        f"the kernel gap does not fall with width: the 95 % interval of its exponent lies above {FLAT:g}",
        lambda found, _: (law := found.exponents.get("kernel_gap")) is not None and law.low > FLAT,
        lambda found, _: f"{_flat(found)}: training learns what no fixed kernel does",
    ),
    Rule(
        KernelVerdict.UNDECIDED,
        "none of these: the gap is larger than the tolerance, and its exponent is not known well enough",
        lambda found, _: True,
        lambda found, _: (
            f"{_missed(found)}; these widths do not tell whether the gap falls with width, add more or larger ones"
        ),
    ),
)


def _divergence(found: SimilarityFindings) -> str:
    total = found.n_runs
    first, last = found.diverged_at[0], found.diverged_at[-1]
    if not sum(found.diverged):
        return (
            f"runs away in {sum(found.running_away)} of {total} runs, with outputs over {RUNAWAY:.0f} times their "
            "start; "
        )
    if sum(found.diverged) < total:
        return f"diverges in {sum(found.diverged)} of {total} runs; "
    if found.divergence_law is None:
        return f"diverges at step {first:.0f}; "
    later = ", later when wider" if found.divergence_law.low > 0 else ""
    steps = f"step {first:.0f} at width {found.widths[0]}, {last:.0f} at {found.widths[-1]}"
    return f"diverges at every width{later}: {steps}; "


def _drift(found: SimilarityFindings) -> str:
    law = found.exponents.get("ntk_drift_max")
    return "" if law is None else f"NTK drift at step {found.step} {trend(law)} as M^{law}; "
