"""When the orthonormal run arrives at PCA: its dimension, rate and steps from the closed form, before it is trained.

A network is PCA of its starting features in the window 1/(η·gap) ≪ steps ≪ M/η: late enough for W to arrive, too early
for the features to move. The window is widest at the largest eigengap, and the twin with frozen features, whose steps
`FrozenDescent` knows, shows when it opens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from kontrast.data import Dataset, pair_matrix
from kontrast.pca import FrozenDescent, orthonormal_start, pair_features
from kontrast.study.draws import draw_net, draw_pairs, first_outputs
from kontrast.study.spec import StudySpec

DOUBT = "the PCA part will not arrive: "  # how every doubt begins
ARRIVED = 0.05  # the largest sine to PCA of C̃(0) at which the twin with frozen features has arrived
AIM = 0.5  # of it: the closed form's steps are good to a factor of two in the sine
MOST_STEPS = 2000  # that a study takes unasked, and advises: 5 s per cell at width 512 with 100 points
LARGEST_MATRIX = 1024  # that is decomposed here, in 0.3 s; for a wider network stands one of this width
STAND_IN = 2.0  # factor on the steps then: the start of the wider one is another, and may be less lucky


def plan_pca(spec: StudySpec, dataset: Dataset) -> dict[str, Any]:
    """The fields of the orthonormal run that the spec leaves open, and in `pca_outlook` why it will not arrive.

    One choice for all cells: the dimension whose eigengap is the largest in the worst of them, the longest steps that
    overshoot in none of them, and as many as the slowest one needs.
    """
    if spec.without_pca:
        return {"pca_outlook": ""}
    forecast = _forecast(spec, dataset)
    d_out = spec.pca_d_out or forecast.best
    rate = spec.pca_learning_rate or forecast.rate
    needed = forecast.steps(d_out, rate)
    n_steps = spec.pca_steps or (int(needed) if needed <= MOST_STEPS else spec.n_steps)
    return {
        "pca_d_out": d_out,
        "pca_learning_rate": rate,
        "pca_steps": n_steps,
        "pca_outlook": "" if needed <= n_steps else forecast.doubt(d_out, rate, n_steps),
    }


@dataclass(frozen=True, eq=False)
class _Forecast:
    """What the closed form says about the cells of a study; those where C̃(0) is zero to rounding are left out."""

    descents: tuple[FrozenDescent, ...]
    stand_ins: bool  # whether a narrower network stands for some
    most: int  # the largest dimension that is looked at

    @property
    def spread(self) -> float:
        """The largest λ_1 − λ_M."""
        return max(it.spread for it in self.descents)

    @property
    def rate(self) -> float:
        """The longest step that overshoots in no cell, in two digits; 1 where there is none."""
        longest = min((it.learning_rate for it in self.descents), default=1.0)
        return two_digits(longest, math.floor)

    def gap(self, k: int) -> float:
        """The smallest λ_k − λ_(k+1)."""
        return min(it.gap(k) for it in self.descents)

    @property
    def best(self) -> int:
        """The dimension of the largest eigengap; all cells share one rate, so the smallest gap decides their steps."""
        return max(range(1, self.most + 1), key=self.gap) if self.descents else 1

    def steps(self, k: int, rate: float) -> float:
        """The steps that the slowest cell needs, in two digits; infinite where one never arrives."""
        slowest = max((it.steps_to(AIM * ARRIVED, k, learning_rate=rate) for it in self.descents), default=math.inf)
        steps = two_digits(slowest * (STAND_IN if self.stand_ins else 1), math.ceil)
        return max(1.0, float(math.ceil(steps))) if math.isfinite(steps) else steps

    def doubt(self, k: int, rate: float, n_steps: int) -> str:
        """Why k dimensions are not reached in these steps, and what would be; advice only where it helps."""
        return f"{DOUBT}{self._reason(k, rate, n_steps)}; {self._advice(k, rate, n_steps)}"

    def _reason(self, k: int, rate: float, n_steps: int) -> str:
        if not self.descents:
            return "all points look alike to these networks (C̃ is zero to rounding)"
        if self.gap(k) == 0:
            return f"at dimension {k} the eigengap is zero to rounding, so that PCA is not unique"
        if rate * self.spread >= 1:
            return f"steps of {rate:g} overshoot where the eigenvalues of C̃ span {self.spread:.2g}"
        needed = self.steps(k, rate)
        return (
            f"at dimension {k} the eigengap is {self.gap(k):.2g} and needs {_about(needed)} steps, {n_steps} are given"
        )

    def _advice(self, k: int, rate: float, n_steps: int) -> str:
        """For this dimension and for the best one: a change that makes do with the steps given, or with a few more."""
        helpful = []
        for dimension in dict.fromkeys((k, self.best)):
            takes = {it: self.steps(*it) for it in ((dimension, rate), (dimension, self.rate))}
            for most in (n_steps, max(MOST_STEPS, 2 * n_steps)):
                if enough := [it for it, steps in takes.items() if steps <= most]:
                    helpful.append((enough[0], int(takes[enough[0]])))
                    break
        if helpful:
            return ", or ".join(_change(it, (k, rate), steps, n_steps) for it, steps in helpful)
        if not self.descents:
            return "PCA is out of reach for these data"
        return (
            f"PCA is out of reach for these data: the eigenvalues of C̃ span {self.spread:.2g}, and the largest "
            f"eigengap up to dimension {self.most} is {self.gap(self.best):.2g} in one of the cells, which takes "
            f"{_about(self.steps(self.best, self.rate))} steps"
        )


def _forecast(spec: StudySpec, dataset: Dataset) -> _Forecast:
    n_points = spec.n_samples * (1 + spec.n_positives)
    most = min(spec.d_out, min(spec.widths) - 1, n_points - 1)
    widths = {min(width, LARGEST_MATRIX) if n_points > LARGEST_MATRIX else width for width in spec.widths}
    descents = [
        descent
        for seed in spec.seeds
        for descent in _frozen_descents(spec, dataset, widths, seed, n_columns=max(most, spec.pca_d_out or 1))
        if math.isfinite(descent.learning_rate)
    ]
    return _Forecast(tuple(descents), stand_ins=not widths >= set(spec.widths), most=max(most, 1))


def _frozen_descents(
    spec: StudySpec, dataset: Dataset, widths: Iterable[int], seed: int, *, n_columns: int
) -> Iterable[FrozenDescent]:
    """From the same start as the cells of this seed, whatever their dimension."""
    _, pairs = draw_pairs(spec, dataset, seed)
    S, d_out = pair_matrix(pairs), max(spec.d_out, n_columns)
    for width in widths:
        net = first_outputs(draw_net(spec, dataset.rows.shape[1], width, seed, d_out=d_out), n_columns)
        features = pair_features(net, pairs.rows, delta=spec.delta)
        if bool(torch.isfinite(features).all()):  # data so large that its squares overflow have no C̃
            yield FrozenDescent.of(features, S, orthonormal_start(net)["output"])


def _change(it: tuple[int, float], given: tuple[int, float], steps: int, n_steps: int) -> str:
    """What to change, in arguments: the dimension and the rate where they differ from those given, and the steps."""
    changes = [
        f"{name}={value:g}"
        for name, value, old in zip(("pca_d_out", "pca_learning_rate"), it, given, strict=True)
        if value != old
    ]
    if steps <= n_steps:
        return f"with {' and '.join(changes)} it takes {steps}"
    return f"with {' and '.join([*changes, f'pca_steps={steps}'])} it arrives"


def _about(steps: float) -> str:
    return f"about {steps:,.0f}" if steps < 1e12 else "very many"


def two_digits(value: float, rounded: Callable[[float], int]) -> float:
    """The value rounded up or down to two digits; one that is infinite or zero as it is."""
    if not math.isfinite(value) or value == 0:
        return value
    exponent = math.floor(math.log10(value)) - 1
    return float(f"{rounded(value / 10.0**exponent)}e{exponent}")
