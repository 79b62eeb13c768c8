r"""Claim A.fig3: under cosine similarity the NTK change falls with the width.

How fast depends on how far training moves the input v·x of a hidden unit. Under cosine similarity ∂L/∂f has the size
1/‖f‖, so ηt moves it by $O(\eta t\,\|x\|^2 \phi' / (\sqrt M \|f\|))$.

* tanh bends on the scale 1, and ‖f‖ does not grow with ‖x‖: what counts is a shift ∝ ηt‖x‖²/√M. Where it is small, the
  change of the NTK is a series in it. The first order is odd in w, so it averages over units to 1/√M · 1/√M; the second
  is even, and is the square of 1/√M. Both are 1/M, the third and fourth 1/M². Where it is not small, units leave the
  range in which tanh has a slope and others enter it, and the change is as large as K(0) itself: what still falls is
  the fluctuation of sums over the few units with a slope.
* ReLU is homogeneous: x → cx leaves the path of all weights as it is (δ = 0) and multiplies the NTK by c², so that the
  input norm drops out. But a share ∝ ηt/√M of units switch on or off, which adds M^−3/4 to the 1/M.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy import stats

from kontrast.claims.a.runs import RATE, cosine_drift, drift_steps
from kontrast.claims.evidence import Evidence, Finding, Panel, Verdict, corrected, curve, judged, printed, shown
from kontrast.claims.panels import step_panel, width_panel
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, geometric, width_law
from kontrast.linalg import Estimate, fit_log_law

FROM_WIDTH = 256
TIMES = (10, 100)  # steps at which laws in the width are fitted for tanh
SMALL_SHIFT, LARGE_SHIFT = 0.15, 0.8
SHORT, SHORT_SQUARE = 10, 16  # steps and max‖x‖² at which units shift little


@claim(
    "A.fig3",
    source="Paper A, Figs. 3, 6 and 7",
    title="Cosine similarity: the NTK change falls with the width",
    printed="At a fixed number of steps the change of the NTK goes down roughly as 1/√M.",
    corrected="With tanh the change falls as 1/M while training shifts the inputs v·x of its units by less than about "
    "0.15, for which ηt·max‖x‖² ≤ ¾√M is enough (max‖x‖ ≥ 1). The exponent passes −3/4 at a shift of about 0.5, and "
    "from 0.8 on it is about −1/2. With ReLU the norm of the inputs drops out, and the change falls about as M^−0.8: "
    "as 1/M, and as M^−3/4 because of units that switch on or off. ‖θ(t) − θ(0)‖ does not depend on M.",
    recorded=Verdict.CORRECTED,
    cost=12,
)
def figure_3(setting: Setting) -> Evidence:
    """Train ReLU networks with linear and softmax links, and tanh (Fig. 7), over widths and over time (Fig. 6).

    Tanh is trained on inputs of several norms too, so that its units shift by little and by much on every data set.
    """
    widths = setting.pick(quick=geometric(256, 2304, 3), full=geometric(32, 8192), paper=geometric(32, 16384))
    seeds, n_samples = setting.seeds(quick=6), setting.pick(quick=10, full=10, paper=1000)
    steps = sorted({*drift_steps(setting), *TIMES})
    data = {
        f"{activation}_{link}": cosine_drift(
            setting, widths, seeds, steps, n_samples=n_samples, activation=activation, link=link
        )
        for activation, link in (("relu", "linear"), ("relu", "softmax"), ("tanh", "linear"))
    }
    wide = [width for width in widths if width >= FROM_WIDTH]
    by_square = {
        square: _tanh_drift(setting, wide, seeds, TIMES, n_samples, square)
        for square in setting.pick(quick=(4, 64, 1024), full=(4, 16, 64, 256, 1024))
    }
    scaled = {f"tanh_{square}": found for square, found in by_square.items()}
    many = range(setting.pick(quick=4, full=8) * len(seeds))  # few steps are cheap, and seeds make the interval narrow
    few_steps = _tanh_drift(setting, wide, many, [SHORT], n_samples, SHORT_SQUARE)
    changes = {name: found.change.sel(t=100) for name, found in data.items()}
    laws = {name: width_law(change, from_width=FROM_WIDTH) for name, change in changes.items()}
    moved = width_law(data["relu_linear"].weights_moved.sel(t=100), from_width=FROM_WIDTH)
    tanh = {"tanh": data["tanh_linear"], **scaled}
    points = _points(tanh)
    return judged(
        *(
            printed(f"exponent_{name}", law, f"the change falls as M^−1/2 ({name})", low=-0.6, high=-0.4)
            for name, law in laws.items()
        ),
        *(
            corrected(f"exponent_{name}", laws[name], f"the change falls faster ({name})", low=-0.95, high=-0.6)
            for name in ("relu_linear", "relu_softmax")
        ),
        corrected(
            "exponent_tanh_little_shift",
            _law_of_little_shift(few_steps),
            f"tanh: the change falls as 1/M where units shift by at most {SMALL_SHIFT} "
            f"(step {SHORT}, max‖x‖² = {SHORT_SQUARE})",
            low=-1.15,
            high=-0.85,
        ),
        *_shift_findings(tanh),
        corrected("exponent_weights_moved", moved, "the weights move equally far at every width", low=-0.1, high=0.1),
        *shown(
            shift_few_steps=float(few_steps["shift"].mean("seed").max()),
            shift_tanh_linear=points[TIMES.index(100)].shift,
            change_widest=changes["relu_linear"].isel(width=-1).values.mean(),
        ),
        data=_merged({**data, **scaled, "few_steps": few_steps.rename(seed="many_seeds", t="few_t")}),
        panels=[
            width_panel("NTK change after 100 steps (Figs. 3, 7)", changes),
            _shift_panel(points),
            step_panel("NTK change in time, ReLU (Fig. 6a)", data["relu_linear"].change),
        ],
        setting={
            "n_samples": n_samples,
            "d_out": 10,
            "learning_rate": RATE,
            "n_steps": steps[-1],
            "largest_square": float(data["tanh_linear"].largest_square.mean()),
            "largest_squares_scaled": list(by_square),
            "n_seeds_little_shift": few_steps.sizes["seed"],
        },
    )


def _tanh_drift(
    setting: Setting, widths: Sequence[int], seeds: Sequence[int], steps: Sequence[int], n_samples: int, square: float
) -> xr.Dataset:
    """Train tanh networks on inputs whose largest ‖x‖² is `square`."""
    return cosine_drift(setting, widths, seeds, steps, n_samples=n_samples, activation="tanh", largest_square=square)


@dataclass(frozen=True)
class _Point:
    """A law in the width at one step and one norm of the inputs, and the shift of units there."""

    series: str
    t: int
    exponent: float
    shift: float  # the geometric mean over the widths of the law
    shift_per_reach: float  # the largest mean of shift·√M/(ηt·c²), c = max‖x‖, or c where c < 1


def _points(tanh: Mapping[str, xr.Dataset], without: int | None = None) -> list[_Point]:
    """A point for every norm and step, over all seeds or all but one."""
    kept = {name: found if without is None else found.drop_isel(seed=without) for name, found in tanh.items()}
    return [_point(name, found, t) for name, found in kept.items() for t in TIMES]


def _point(series: str, found: xr.Dataset, t: int) -> _Point:
    now = found.sel(t=t).where(found.width >= FROM_WIDTH, drop=True)
    # ‖f‖ ∝ ‖x‖ where tanh is linear.
    reach = RATE * t * np.maximum(now.largest_square, np.sqrt(now.largest_square)) / np.sqrt(now.width)
    shifts = now["shift"].mean("seed", skipna=False).values
    per_reach = (now["shift"] / reach).mean("seed", skipna=False).values
    exponent = width_law(now.change).value
    return _Point(series, t, exponent, float(np.exp(np.log(shifts).mean())), float(per_reach.max()))


def _law_of_little_shift(found: xr.Dataset) -> Estimate:
    """The exponent in the width with the jackknife's interval; NaN if units shift too far for this law."""
    if not float(found["shift"].mean("seed", skipna=False).max()) <= SMALL_SHIFT:
        return Estimate.of(math.nan)
    change = found.change.isel(t=0)
    left_out = [width_law(change.drop_isel(seed=seed)).value for seed in range(change.sizes["seed"])]
    return jackknife(width_law(change).value, left_out)


def _shift_findings(tanh: Mapping[str, xr.Dataset]) -> list[Finding]:
    """What is judged about the law in the width and the shift, each with the jackknife's interval over seeds."""
    n_seeds = next(iter(tanh.values())).sizes["seed"]
    found = _summary(_points(tanh))
    left_out = [_summary(_points(tanh, without=seed)) for seed in range(n_seeds)] if n_seeds > 1 else []
    number = {name: jackknife(found[name], [other[name] for other in left_out]) for name in found}
    crossover = number.pop("ln_crossover")
    return [
        corrected(
            "exponent_tanh_much_shift",
            number["much"],
            f"tanh: the change falls slower than M^−3/4 where units shift by {LARGE_SHIFT} or more",
            low=-0.75,
            high=-0.2,
        ),
        corrected("exponent_per_e_of_shift", number["slope"], "tanh: the more units shift, the slower", low=0.05),
        corrected(
            "crossover_shift",
            Estimate(_exp(crossover.value), _exp(crossover.low), _exp(crossover.high)),
            "tanh: the exponent is −3/4 at this shift",
            low=0.1,
            high=1.5,
        ),
        corrected(
            "shift_per_reach",
            number["per_reach"],
            "tanh: units shift by at most 0.2·ηt·c²/√M, c = max‖x‖ ≥ 1",
            high=0.2,
        ),
    ]


def _summary(points: Sequence[_Point]) -> dict[str, float]:
    """The mean exponent above the large shift, and the line of the exponent in ln shift; NaN without points."""
    shift, exponent = (np.array([getattr(point, name) for point in points]) for name in ("shift", "exponent"))
    slope, crossover = _crossover(shift[shift > SMALL_SHIFT / 2], exponent[shift > SMALL_SHIFT / 2])
    much = exponent[shift >= LARGE_SHIFT]
    return {
        "much": float(much.mean()) if len(much) else math.nan,
        "slope": slope,
        "ln_crossover": crossover,
        "per_reach": max(point.shift_per_reach for point in points),
    }


def _crossover(shift: NDArray[np.float64], exponent: NDArray[np.float64]) -> tuple[float, float]:
    """The slope of the exponent in ln shift, and ln of the shift where the line passes −3/4; NaN if it never does."""
    if len(set(shift)) < 3 or not (np.isfinite(shift).all() and np.isfinite(exponent).all()):
        return math.nan, math.nan
    law = fit_log_law(shift, exponent)
    return law.slope, (-0.75 - law.intercept) / law.slope if law.slope > 0 else math.nan


def jackknife(number: float, left_out: Sequence[float]) -> Estimate:
    """A number of n seeds with Student's 95 % interval, from the n numbers that leave one seed out."""
    n, others = len(left_out), np.asarray(left_out, dtype=float)
    if math.isnan(number) or n < 2 or not np.isfinite(others).all():
        return Estimate(number, -math.inf, math.inf)
    error = math.sqrt((n - 1) * float(others.var()))
    half = float(stats.t.ppf(0.975, n - 1)) * error
    return Estimate(number, number - half, number + half)


def _exp(number: float) -> float:
    return math.exp(number) if number < 700 else math.inf


def _merged(data: Mapping[str, xr.Dataset]) -> xr.Dataset:
    return xr.merge(
        [found.rename({name: f"{key}_{name}" for name in found.data_vars}) for key, found in data.items()], join="outer"
    )


def _shift_panel(points: Sequence[_Point]) -> Panel:
    curves = []
    for t in TIMES:
        here = sorted((point for point in points if point.t == t), key=lambda point: point.shift)
        curves.append(curve(f"tanh, step {t}", [p.shift for p in here], [p.exponent for p in here]))
    ends = [min(point.shift for point in points), max(point.shift for point in points)]
    guides = (curve(name, ends, [level, level], "dashed") for level, name in ((-1.0, "1/M"), (-0.5, "M^−1/2")))
    title = "Exponent in the width against the shift of units"
    return Panel(title, "shift of v·x, root mean square", "exponent", (*curves, *guides), y_log=False)
