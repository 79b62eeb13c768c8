"""Is the trained subspace PCA? Paper A, Sec. 4: the orthonormal network (7), trained, beside PCA of C̃(0) and of C̃(t).

C̃ is the contrastive matrix of the network's features. A twin whose features stay frozen at their start does PCA of C̃(0)
by descent alone, and tells features that move from steps that are too few.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from kontrast.data import Pairs, pair_matrix
from kontrast.dynamics import Snapshot, Status
from kontrast.errors import InputError
from kontrast.linalg import subspace_sines
from kontrast.nets import MLP, Parameters
from kontrast.pca import (
    PCASolution,
    alternating_pca,
    contrastive_drift,
    contrastive_pca,
    orthonormal_start,
    pair_features,
    pca_network,
    row_difference,
    train_pca_network,
)
from kontrast.study.arrival import DOUBT, MOST_STEPS, two_digits
from kontrast.study.cell import Cell
from kontrast.study.over_seeds import about_width, over_widths, seed_means, trend, whole_steps
from kontrast.study.probes import Embedding
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

AXIS = "pca_step"  # the orthonormal run's own steps
N_UPDATES = 5  # of the iterative algorithm; paper A, Fig. 5 (right)
NEEDED = ("pca_angle_start", "pca_angle_now", "pca_angle_frozen", "matrix_drift")  # finite at a step that is judged
SCALARS = ("pca_diverged", "pca_stopped_at", "pca_not_unique", "eigengap_start")  # one number per cell
RELAXED = 5.0  # e-foldings of the slowest direction after which descent has had its time


# What is measured


@dataclass(frozen=True, eq=False)
class _Start:
    """The start of the orthonormal run, with which every step is compared."""

    net: MLP
    pairs: Pairs
    delta: float
    n_components: int
    S: Tensor
    features: Tensor
    solution: PCASolution | None  # PCA of C̃(0)
    frozen: dict[int, Tensor]  # the twin's outputs by step

    @functools.cached_property
    def size(self) -> float:
        """‖C̃(0)‖_F."""
        return contrastive_drift(self.features, torch.zeros_like(self.features), self.S)


@dataclass(frozen=True, eq=False)
class _Moment:
    """One recorded step of the orthonormal run, beside its start."""

    start: _Start
    now: Snapshot

    @property
    def W(self) -> Tensor:
        """The output layer, whose span is compared with PCA."""
        return self.now.parameters["output"]

    @functools.cached_property
    def features(self) -> Tensor:
        """The features at the pairs."""
        start = self.start
        return pair_features(start.net, start.pairs.x, delta=start.delta, parameters=self.now.parameters)

    @functools.cached_property
    def solution(self) -> PCASolution | None:
        """PCA of C̃(t)."""
        return _pca(self.features, self.start.S, self.start.n_components)


def _pca(features: Tensor, S: Tensor, n_components: int) -> PCASolution | None:
    try:
        return contrastive_pca(features, S, n_components)
    except InputError:  # C̃ is zero to rounding: every unit of a narrow net is silent, or all points look alike to it
        return None


def _is_ambiguous(solution: PCASolution | None) -> bool:
    return solution is None or bool(solution.warnings)


def _largest_sine(W: Tensor, solution: PCASolution | None) -> float:
    return math.nan if solution is None else float(subspace_sines(W, solution.frame)[0])


def _matrix_drift(seen: _Moment) -> float:
    size = seen.start.size
    return contrastive_drift(seen.features, seen.start.features, seen.start.S) / size if size else math.nan


def _frozen_gap(seen: _Moment) -> float:
    """`row_difference` over the points that the frozen twin sees: a narrow net may be silent at others."""
    frozen = seen.start.frozen.get(seen.now.step)
    if frozen is None:
        return math.nan
    there = frozen.norm(dim=1) > 0
    return row_difference(seen.now.outputs[there], frozen[there]) if bool(there.any()) else math.nan


_SINES = (
    Plot("pca-width", "width", "Sine to PCA, against width"),
    Plot("pca-step", "step", "Sine to PCA, against step"),
)
_FEATURES = (
    Plot("features-width", "width", "Features moved, against width"),
    Plot("features-step", "step", "Features moved, against step"),
)
QUANTITIES = (
    Quantity(
        "pca_angle_start",
        "largest sine between the span of W(t) and PCA of C̃(0)",
        record=lambda seen: _largest_sine(seen.W, seen.start.solution),
        heading="sine to C̃(0)",
        in_terminal=True,
        fitted=True,
        drawing=Drawing(_SINES, "largest sine", curve="C̃(0)", hue="start", threshold="pca_tolerance"),
    ),
    Quantity(
        "pca_angle_now",
        "largest sine between the span of W(t) and PCA of C̃(t)",
        record=lambda seen: _largest_sine(seen.W, seen.solution),
        heading="sine to C̃(t)",
        in_terminal=True,
        fitted=True,
        drawing=Drawing(_SINES, "largest sine", curve="C̃(t)", hue="now", threshold="pca_tolerance"),
    ),
    Quantity(
        "pca_angle_frozen",
        "largest sine between the span of the frozen twin's W(t) and PCA of C̃(0)",
        read=lambda runs: runs.twin.records.get("sine"),
        heading="sine, frozen",
        in_terminal=True,
    ),
    Quantity(
        "matrix_drift",
        "‖C̃(t) − C̃(0)‖_F / ‖C̃(0)‖_F",
        record=_matrix_drift,
        heading="C̃ drift",
        write=share,
        in_terminal=True,
        fitted=True,
        drawing=Drawing(_FEATURES, "relative change", curve="C̃ drift", hue="start", guide=-0.5),
    ),
    Quantity(
        "frozen_gap",
        "mean over the points of ‖f − f_0‖ / ‖f_0‖, f_0 the twin with its features frozen",
        record=_frozen_gap,
        heading="frozen gap",
        write=share,
        in_terminal=True,
        fitted=True,
        drawing=Drawing(_FEATURES, "relative change", curve="frozen", hue="now", guide=-0.5),
    ),
    Quantity(
        "eigengap",
        "λ_Z − λ_(Z+1) of C̃(t)",
        record=lambda seen: seen.solution.gap if seen.solution else math.nan,
        heading="eigengap now",
    ),
    Quantity("pca_loss", "−Tr(W^T C̃(t) W), the loss (10)", read=lambda runs: runs.losses(runs.trained)),
)


def measure(cell: Cell) -> xr.Dataset:
    """Train (7) under the loss (10) by Grassmannian descent, and measure how far it is from PCA at every record."""
    spec = cell.spec
    if spec.without_pca:
        return xr.Dataset()
    d_out, n_steps, rate = spec.pca_run
    net = cell.net_with(d_out)
    span = _in_own_span(net, cell.pairs)
    S, start = pair_matrix(cell.pairs), orthonormal_start(span.net)
    features = pair_features(span.net, span.pairs.x, delta=spec.delta).detach()
    before = _pca(features, S, d_out)
    train = functools.partial(
        train_pca_network,
        span.net,
        span.pairs,
        delta=spec.delta,
        learning_rate=rate,
        n_steps=n_steps,
        start=start,
        record_at=spec.pca_record_steps,
    )
    twin = train(
        freeze_hidden=True,
        keep_outputs=True,
        recorders={"sine": lambda now: _largest_sine(now.parameters["output"], before)},
    )
    first = _Start(span.net, span.pairs, spec.delta, d_out, S, features, before, outputs_by_step(twin))
    view = functools.lru_cache(maxsize=1)(functools.partial(_Moment, first))  # both recorders look at one step
    trained = train(
        recorders={"all": recorder(QUANTITIES, view), "ambiguous": lambda now: float(_is_ambiguous(view(now).solution))}
    )
    ambiguous = _is_ambiguous(before) or bool(trained.records.get("ambiguous", torch.zeros(1)).any())
    diverged = trained.status is Status.DIVERGED
    network = pca_network(net, delta=spec.delta)

    def embedding(parameters: Parameters | None) -> Embedding | None:
        return None if parameters is None else functools.partial(network, span.lift(parameters))

    cell.embeddings.update(
        {
            "pca": embedding({**start, "output": before.frame} if before else None),
            "trained": embedding(None if diverged else trained.final_parameters),
            "iterative": embedding(_alternation(spec, span) if before else None),
            "random": embedding(start),
        }
    )
    scalars = {
        "pca_diverged": scalar(np.int32(diverged), "1 where it overflowed"),
        "pca_stopped_at": scalar(np.int32(trained.stopped_at), "the orthonormal run's last step"),
        "pca_not_unique": scalar(np.int32(ambiguous), "1 where a C̃ has no eigengap, so that its PCA is not unique"),
        "eigengap_start": scalar(before.gap if before else math.nan, "λ_Z − λ_(Z+1) of C̃(0)"),
    }
    return over_steps(QUANTITIES, Finished(trained, twin, spec.pca_record_steps), scalars, axis=AXIS)


@dataclass(frozen=True, eq=False)
class _Span:
    """A net and its points in the points' own coordinates, and the way back to the input's."""

    net: MLP
    pairs: Pairs
    lift: Callable[[Parameters], Parameters]


def _in_own_span(net: MLP, pairs: Pairs) -> _Span:
    """The same network on the same points, in an orthonormal basis Q of the points' span where that is smaller.

    With x = R Q^T the pre-activations are V x^T = (V Q) R^T, and the gradient in V, a matrix times x, has no part
    outside the span. So descent of V on x and of V Q on R are the same, and at width 2048 training on 100 points of 784
    pixels takes 1.7 s in place of 4.7 s. What V does outside the span, V (I − Q Q^T), never changes; `lift` puts it
    back.
    """
    x = pairs.rows
    m, d = x.shape
    if m >= d:
        return _Span(net, pairs, lambda parameters: parameters)
    Q, R = torch.linalg.qr(x.mT)
    V = net.hidden[0].detach()
    small = MLP(
        m,
        net.width,
        net.d_out,
        depth=net.depth,
        activation=net.activation,
        parametrization=net.parametrization,
        dtype=x.dtype,
        device=x.device,
    )
    small.load_state_dict({**net.state_dict(), "hidden.0": V @ Q})

    def lift(parameters: Parameters) -> Parameters:
        return {**parameters, "hidden.0": V + (parameters["hidden.0"] - V @ Q) @ Q.mT}

    return _Span(small, replace(pairs, x=R.mT.contiguous()), lift)


def _alternation(spec: StudySpec, span: _Span) -> Parameters | None:
    try:
        return alternating_pca(
            span.net, span.pairs, delta=spec.delta, learning_rate=spec.pca_run[2], n_updates=N_UPDATES
        ).parameters
    except InputError:  # a step so long that it overflowed, or silenced every unit
        return None


# What the numbers say


class PCAVerdict(Enum):
    """The verdict on the trained subspace; the value says it in words. The starting features are random ones."""

    PCA = "PCA of its starting features"
    PCA_WHEN_WIDER = "not PCA of its starting features at these widths, but coming closer as it widens"
    PCA_OF_LEARNED_FEATURES = "learning: PCA of features that training has changed"
    STILL = "training has barely moved the network, too little to judge"
    PCA_UNDERWAY = "on its way to PCA of its starting features, not there yet"
    UNDERTRAINED = "not trained far enough to tell whether it is PCA"
    NOT_CONVERGED = "not PCA, neither of its starting features nor of its present ones"
    UNDEFINED = "PCA is not unique here (a zero eigengap)"
    DIVERGES = "training diverges, and no PCA describes where it goes"


@dataclass(frozen=True)
class PCAFindings(WidthFindings[PCAVerdict]):
    """The findings on the orthonormal run."""

    d_out: int  # dimension of the subspace
    outlook: str  # why it was not expected to arrive, before it was trained; empty where it was
    progress: float  # share of the loss at `step` that was won since the first record, at the widest network
    eigengaps: tuple[float, ...]  # mean λ_Z − λ_(Z+1) of C̃(0), per width
    not_unique: tuple[int, ...]  # in how many seeds some C̃ had no eigengap, per width

    @property
    def after(self) -> str:
        """When and where the numbers are taken, as a sentence begins."""
        return f"after {self.step} steps at width {self.widths[-1]}"


def orthonormal_runs(result: xr.Dataset) -> xr.Dataset:
    """The orthonormal run's arrays alone, with its own steps as `step`; older studies have one axis for all runs."""
    own = result[[*(it.name for it in QUANTITIES), *SCALARS]]
    return own.rename({AXIS: "step"}) if AXIS in own.dims else own


def judge(result: xr.Dataset, spec: StudySpec, thresholds: Thresholds) -> PCAFindings | None:
    """The findings on the orthonormal run of a consolidated study; None where the spec leaves it out."""
    if spec.without_pca:
        return None
    d_out, _, rate = spec.pca_run
    runs = orthonormal_runs(result)
    diverged = runs.pca_diverged.transpose("width", "seed").values.astype(bool)
    usable = whole_steps(runs, NEEDED, diverged, runs.pca_stopped_at.transpose("width", "seed").values)
    shared = over_widths(runs, QUANTITIES, usable, diverged, dtype=spec.dtype)
    return PCAFindings(
        **shared,
        learning_rate=rate,
        verdict=PCAVerdict.NOT_CONVERGED,
        d_out=d_out,
        outlook=spec.pca_outlook,
        progress=_progress(runs, shared["step"]),
        eigengaps=seed_means(runs.eigengap_start),
        not_unique=tuple(int(n) for n in runs.pca_not_unique.transpose("width", "seed").values.sum(axis=1)),
    ).decided(RULES, thresholds, "orthonormal")


def _progress(result: xr.Dataset, at: int | None) -> float:
    """1 − loss(first record)/loss(at), means over the seeds of the widest network."""
    if at is None:
        return math.nan
    first, last = (seed_means(result.pca_loss.sel(step=step))[-1] for step in (int(result.step[0]), at))
    return 1 - first / last if last else math.nan


def _says_pca(found: PCAFindings, thresholds: Thresholds) -> str:
    tolerance = thresholds.pca_tolerance
    sines = zip(found.widths, found.means["pca_angle_start"], strict=True)
    first = next(width for width, sine in sines if sine <= tolerance)
    return (
        f"{_fall(found)}{found.after} the trained subspace is PCA of its starting features, C̃(0), within a sine of "
        f"{found.widest('pca_angle_start'):.2g} (within {tolerance:g} from width {first} on)"
    )


def _apart(found: PCAFindings) -> str:
    return (
        f"{found.after} the trained subspace is a sine of {found.widest('pca_angle_start'):.2g} from PCA of its "
        f"starting features, C̃(0), and {found.widest('pca_angle_now'):.2g} from PCA of its present ones, C̃(t)"
    )


def _says_when_wider(found: PCAFindings, thresholds: Thresholds) -> str:
    needed = found.exponents["pca_angle_start"].solve(thresholds.pca_tolerance)
    wanted = f"a sine of {thresholds.pca_tolerance:g} needs {about_width(needed)}"
    return f"{_fall(found)}{_apart(found)}; at this rate {wanted}"


def _says_underway(found: PCAFindings, thresholds: Thresholds) -> str:
    return (
        f"{found.after} its outputs are within {found.widest('frozen_gap'):.2%} of those of a twin whose features stay "
        f"frozen at their start, so it is doing PCA of its starting features, C̃(0), but has not finished (largest sine "
        f"{found.widest('pca_angle_start'):.2g}, 0 would be PCA); {_advice(found, thresholds)}"
    )


def _advice(found: PCAFindings, thresholds: Thresholds) -> str:
    """Why the descent is at no PCA, from its twin with frozen features and from the eigengap."""
    sine, gap = found.widest("pca_angle_frozen"), found.eigengaps[-1]
    if sine <= thresholds.pca_tolerance:
        return (
            f"its twin with frozen features has arrived (sine {sine:.2g}), so the features move faster than W can "
            "follow: take larger widths"
        )
    away = f"its twin with frozen features has not arrived either (sine {sine:.2g})"
    if found.outlook:
        return f"{away}, as was to be expected: {found.outlook.removeprefix(DOUBT)}"
    # Around PCA the error of W shrinks by 1 − 2η·gap a step.
    pace = 1 / (2 * found.learning_rate * gap)
    assert found.step is not None
    if found.step > RELAXED * pace:
        return (
            f"{away}, though {found.step} steps of {found.learning_rate:g} are enough for an eigengap of {gap:.2g}: "
            "the steps are too long, lower the PCA learning rate"
        )
    needed = two_digits(found.step + pace * math.log(sine / thresholds.pca_tolerance), math.ceil)
    if needed > MOST_STEPS:
        return f"{away}: an eigengap of {gap:.2g} is too small for descent to arrive in {MOST_STEPS:,} steps"
    return f"{away}: with an eigengap of {gap:.2g} it takes about pca_steps={needed:.0f}"


def _other_dimension(found: PCAFindings) -> str:
    advice = found.outlook.rpartition("; ")[2]
    return advice or "lower the PCA learning rate, or take more samples"


def _fall(found: PCAFindings) -> str:
    law = found.exponents.get("pca_angle_start")
    return "" if law is None else f"the sine to PCA of C̃(0) {trend(law)} as M^{law}; "


def _twin_is_away(found: PCAFindings, thresholds: Thresholds) -> bool:
    return found.widest("pca_angle_frozen") > thresholds.pca_tolerance


RULES = (
    Rule(
        PCAVerdict.DIVERGES,
        "a run overflowed",
        lambda found, _: bool(sum(found.diverged)),
        lambda found, _: (
            f"diverges in {sum(found.diverged)} of {found.n_runs} runs; lower the PCA learning rate "
            f"({found.learning_rate:g})"
        ),
    ),
    Rule(
        PCAVerdict.UNDEFINED,
        "at the widest network some C̃ has an eigengap of zero, so that its PCA is not unique",
        lambda found, _: bool(found.not_unique[-1]) or not found.means,
        lambda found, _: (
            f"the eigengap of C̃ is zero in {sum(found.not_unique)} of {found.n_runs} runs, so its PCA of dimension "
            f"{found.d_out} is not unique; {_other_dimension(found)}"
        ),
    ),
    Rule(
        PCAVerdict.PCA,
        "at the widest network the trained subspace is within a PCA tolerance of {pca_tolerance} of PCA of C̃(0)",
        lambda found, thresholds: found.widest("pca_angle_start") <= thresholds.pca_tolerance,
        _says_pca,
    ),
    Rule(
        PCAVerdict.PCA_WHEN_WIDER,
        "the twin with frozen features is within {pca_tolerance} of PCA of C̃(0), and the trained network's sine falls "
        "with width: the 95 % interval of its exponent lies below zero",
        lambda found, thresholds: not _twin_is_away(found, thresholds) and found.falls("pca_angle_start"),
        _says_when_wider,
    ),
    Rule(
        PCAVerdict.PCA_OF_LEARNED_FEATURES,
        "at the widest network the trained subspace is within {pca_tolerance} of PCA of C̃(t)",
        lambda found, thresholds: found.widest("pca_angle_now") <= thresholds.pca_tolerance,
        lambda found, _: f"{_apart(found)}: training changed the features, and the subspace follows them",
    ),
    Rule(
        PCAVerdict.STILL,
        "the twin with frozen features is not within {pca_tolerance} of PCA of C̃(0), and since the first record the "
        "loss of the widest network has changed by less than a tolerance of {tolerance}",
        lambda found, thresholds: _twin_is_away(found, thresholds) and not abs(found.progress) > thresholds.tolerance,
        lambda found, thresholds: (
            f"{_apart(found)}, but its loss has changed by {found.progress:.2%} since the first record, too little to "
            f"judge; {_advice(found, thresholds)}"
        ),
    ),
    Rule(
        PCAVerdict.PCA_UNDERWAY,
        "at the widest network the frozen gap is at most a tolerance of {tolerance}, and the twin with frozen features "
        "is not within {pca_tolerance} of PCA of C̃(0) either",
        lambda found, thresholds: (
            _twin_is_away(found, thresholds) and found.widest("frozen_gap") <= thresholds.tolerance
        ),
        _says_underway,
    ),
    Rule(
        PCAVerdict.UNDERTRAINED,
        "the twin with frozen features is not within {pca_tolerance} of PCA of C̃(0) either",
        _twin_is_away,
        lambda found, thresholds: f"{_apart(found)}; {_advice(found, thresholds)}",
    ),
    Rule(
        PCAVerdict.NOT_CONVERGED,
        "none of these: the twin with frozen features has arrived, the network itself has not",
        lambda found, _: True,
        lambda found, thresholds: f"{_apart(found)}; {_advice(found, thresholds)}",
    ),
)
