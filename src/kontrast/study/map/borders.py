"""Where one regime ends and the next begins: the rate of a border at every width, and its power law in the width."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from kontrast.dynamics import SETTLED_SHARE
from kontrast.linalg import PowerLaw, fit_power_law
from kontrast.study.map.regimes import CONFIDENCE, Estimate, MapCell
from kontrast.study.thresholds import Thresholds

# Factor around the gap tolerance within which cells tell the law of the kernel border. With 2, four widths and rates a
# factor of 3 apart leave three widths or fewer, which tell no interval; beyond 3 the gap bends away from its power law.
BAND = 3.0


@dataclass(frozen=True)
class LevelLaw(PowerLaw):
    """Where log(gap/level) = a + b log rate + c log size is 0: rate ∝ size^(−c/b), with the errors of a, b and c.

    `n_points` is the number of sizes: cells of one size share their starts, so the errors are those of a line through
    sizes, with their degrees of freedom and at least their variance (`_variance`).

    Attributes:
        coefficients: (a, b, c).
        covariance: of these, row by row.
    """

    coefficients: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]

    def rate_at(self, size: float) -> Estimate:
        """The rate of the border at a size."""
        return self._solved(1, [1.0, 0.0, math.log(size)])

    def size_at(self, rate: float) -> Estimate:
        """The size of the border at a rate."""
        return self._solved(2, [1.0, math.log(rate), 0.0])

    def _solved(self, k: int, known: list[float]) -> Estimate:
        """The unknown exp(v) at which known·β + v β_k = 0, with Fieller's interval.

        That holds every v at which known·β + v β_k is 0 within its own error. It is without end where β_k may be 0.
        """
        beta, V, q = np.array(self.coefficients), np.array(self.covariance), np.array(known)
        t2 = _quantile(self.n_points) ** 2
        mean = _exp(-(q @ beta) / beta[k])
        if math.isinf(t2):
            return Estimate(mean, 0.0, math.inf)
        A = beta[k] ** 2 - t2 * V[k, k]
        B = (q @ beta) * beta[k] - t2 * (q @ V[k])
        C = (q @ beta) ** 2 - t2 * (q @ V @ q)
        if A <= 0:
            return Estimate(mean, 0.0, math.inf)
        half = math.sqrt(max(B * B - A * C, 0.0))
        return Estimate(mean, _exp((-B - half) / A), _exp((-B + half) / A))


@dataclass(frozen=True)
class Border:
    """A border of the map: a rate at every width (or number of steps) where it lies between two rates that were run.

    Attributes:
        loss: the loss.
        name: "kernel" (the gap reaches its tolerance), "settled" (the loss stops falling) or "diverged".
        words: what lies below and above it.
        sizes: the widths, or steps, at which it was found.
        rates: there, in units of the critical rate.
        between: the two rates that were run around each of them.
        law: rate ∝ size^exponent, with its interval; None where too little was seen of it. That of the kernel border is
            of the gap itself (`level_law`), the others are fitted through their rates.
    """

    loss: str
    name: str
    words: str
    sizes: tuple[int, ...]
    rates: tuple[float, ...]
    between: tuple[tuple[float, float], ...]
    law: PowerLaw | None

    def rate_at(self, size: int) -> Estimate:
        """The rate of the border at a width: where it was found between two rates, else by the law of its gap."""
        if size in self.sizes:
            place = self.sizes.index(size)
            return Estimate(self.rates[place], *self.between[place])
        return self.law.rate_at(size) if isinstance(self.law, LevelLaw) else Estimate(math.nan, math.nan, math.nan)

    def size_at(self, rate: float) -> Estimate:
        """The width from which on the border lies above a rate, by the law of its gap; infinite where none is known."""
        if not isinstance(self.law, LevelLaw) or self.law.exponent <= 0:
            return Estimate(math.inf, math.inf, math.inf)
        return self.law.size_at(rate)


def borders_of(cells: Sequence[MapCell], thresholds: Thresholds, max_steps: int) -> tuple[Border, ...]:
    """The borders of one panel."""
    loss = cells[0].loss
    rows: dict[int, list[MapCell]] = {}
    for cell in cells:
        rows.setdefault(cell.size, []).append(cell)
    kinds: dict[str, tuple[str, Callable[[Sequence[MapCell]], float]]] = {
        "settled": (
            "below, the loss still falls when the steps end",
            lambda row: crossing(row, "map_still_falling", SETTLED_SHARE),
        ),
        "kernel": (
            "below, a fixed kernel predicts the run; above, features move",
            lambda row: crossing([cell for cell in row if cell.settled], "map_gap", thresholds.gap_tolerance),
        ),
        "diverged": ("above, training diverges", lambda row: divergence(row, max_steps)),
    }
    found = []
    for name, (words, where) in kinds.items():
        places = {size: where(sorted(row, key=lambda cell: cell.rate)) for size, row in sorted(rows.items())}
        there = {size: rate for size, rate in places.items() if math.isfinite(rate)}
        if there:
            law: PowerLaw | None = level_law(cells, thresholds.gap_tolerance) if name == "kernel" else None
            if law is None and len(there) > 1:
                law = fit_power_law(list(there), list(there.values()))
            between = tuple(_run_around(rate, [cell.rate for cell in rows[size]]) for size, rate in there.items())
            found.append(Border(loss, name, words, tuple(there), tuple(there.values()), between, law))
    return tuple(found)


def _run_around(rate: float, run: Sequence[float]) -> tuple[float, float]:
    """The two rates that were run around one; where it lies outside of all, itself on that side."""
    return max((it for it in run if it <= rate), default=rate), min((it for it in run if it >= rate), default=rate)


def crossing(row: Sequence[MapCell], name: str, level: float) -> float:
    """The first rate at which a quantity crosses a level, on straight lines between neighbours on logarithmic axes.

    Where it crosses just outside the rates, by at most half a step between two of them, the line is carried on; NaN
    where it crosses nowhere. A share that is zero or negative counts as far below any level.
    """
    points = [(cell.rate, cell.numbers[name].mean) for cell in row]
    there = list(itertools.takewhile(lambda point: math.isfinite(point[1]), points))
    logs = [(math.log(rate), math.log(max(value, 1e-6) / level)) for rate, value in there]
    pairs = list(itertools.pairwise(logs))
    for (x, u), (y, v) in pairs:
        if u * v <= 0 and u != v:
            return math.exp(x + (y - x) * u / (u - v))
    ends = [(pairs[0], -0.5, 0.0)] if pairs else []
    if pairs and len(there) == len(points):  # not carried on into rates that diverge
        ends.append((pairs[-1], 1.0, 1.5))
    for ((x, u), (y, v)), low, high in ends:
        part = u / (u - v) if u != v else math.nan
        if low <= part <= high:
            return math.exp(x + (y - x) * part)
    return math.nan


def level_law(cells: Sequence[MapCell], level: float) -> LevelLaw | None:
    """The rate at which the kernel gap reaches a level, as a power of the size, from all settled cells close to it.

    Within a factor `BAND` of the level, log(gap/level) = a + b log rate + c log size is fitted by least squares, so the
    rate at the level is e^(−a/b) size^(−c/b). One width alone tells its crossing badly, since the gap changes slowly
    with the rate. Below settled rates the gap goes with the steps that are missing, and another way. The interval of
    −c/b is that of its linearisation in b and c. None for fewer than four such cells, or a gap that does not grow.
    """
    settled = sorted((cell for cell in cells if cell.settled), key=lambda cell: (cell.size, cell.rate))
    near = [cell for cell in settled if level / BAND <= cell.numbers["map_gap"].mean <= BAND * level]
    X = np.array([[1.0, math.log(cell.rate), math.log(cell.size)] for cell in near])
    y = np.array([math.log(cell.numbers["map_gap"].mean / level) for cell in near])
    n = len(near)
    if n < 4 or np.linalg.matrix_rank(X) < 3:
        return None
    beta = np.linalg.lstsq(X, y, rcond=None)[0]
    a, b, c = map(float, beta)
    if b <= 0:
        return None
    sizes = np.array([cell.size for cell in near])
    n_sizes = len(np.unique(sizes))
    V = _variance(y - X @ beta, sizes) * np.linalg.inv(X.T @ X)
    slope = np.array([0.0, c / b**2, -1 / b])  # of −c/b in (a, b, c)
    half = _quantile(n_sizes) * math.sqrt(float(slope @ V @ slope))
    exponent, prefactor = -c / b, _exp(-a / b)
    covariance = tuple(tuple(row) for row in V.tolist())
    return LevelLaw(exponent, prefactor, exponent - half, exponent + half, CONFIDENCE, n_sizes, (a, b, c), covariance)


def _variance(residuals: NDArray[np.float64], sizes: NDArray[np.int64]) -> float:
    """The variance of a cell, or, where that is larger, that of the means of sizes, times their numbers of cells.

    Cells of one size share their starts. Where they are off together, the first variance alone is too small.
    """
    of_cells = float((residuals**2).sum()) / (len(residuals) - 3)
    groups = [residuals[sizes == size] for size in np.unique(sizes)]
    if len(groups) < 3:
        return of_cells
    return max(of_cells, sum(len(it) * float(it.mean()) ** 2 for it in groups) / (len(groups) - 2))


def _quantile(n_sizes: int) -> float:
    """Student's t of a line through so many sizes; infinite for two."""
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, n_sizes - 2)) if n_sizes > 2 else math.inf


def _exp(value: float) -> float:
    return math.exp(value) if value < 709 else math.inf  # beyond the range of floats


def divergence(row: Sequence[MapCell], max_steps: int) -> float:
    """The rate at which divergence takes all the steps there are: the step of divergence against the rate, carried on.

    Where it cannot be carried on, the middle of the two rates; never outside them. NaN where all or none diverge.
    """
    steps = [cell.numbers["map_diverged_at"].mean for cell in row]  # NaN where a run did not
    first = next((i for i, step in enumerate(steps) if math.isfinite(step)), None)
    if not first:
        return math.nan
    low, high = row[first - 1].rate, row[first].rate
    middle = math.sqrt(low * high)
    if first + 1 >= len(row) or not steps[first + 1] < steps[first]:
        return middle
    slope = math.log(row[first + 1].rate / high) / math.log(steps[first + 1] / steps[first])
    carried: float = high * (max_steps / steps[first]) ** slope
    return min(max(carried, low), high)
