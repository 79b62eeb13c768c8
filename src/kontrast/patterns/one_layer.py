r"""Training of a one-layer network (paper C, Sec. 3): filters on the unit sphere, each driven by its matrix A(w).

The flow is (7), $\dot w = (I - w w^\top) A(w) w$, the iteration is (94), $w \leftarrow A(w) w / \lVert A(w) w \rVert$.
A(w) comes from a `OneLayerField`: samples (`GatedCovariance`) or a population (`MixtureCovariance`).

With a ReLU and samples A(w) is piecewise constant: it jumps where a sample's gate opens, and without views each jump
pushes w back. So maxima of the energy lie on such edges, and there (94) keeps jumping from one side to the other: it
**chatters**. Where the roughness exceeds λ it swings around a point that attracts the flow, even in a population. The
iteration detects both and damps itself, $w \leftarrow A(w) w + s \lVert A(w) w \rVert w$, which is the paper's shift
(99) and has the same fixed points.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.integrate import DOP853
from torch import Tensor

from kontrast import checks
from kontrast.errors import InputError
from kontrast.progress import Advance, progress_bar

PATIENCE = 20  # steps without progress, back and forth or with gates flipping, before the iteration is damped
SILENCE = 1e-13  # ‖A(w)w‖ below this share of the largest seen (and 16 roundings) has no direction
FLOW_STEPS = 20_000  # of DOP853
PACE = 1000  # steps of DOP853 after which the time they covered is compared with the time left


class OneLayerField(Protocol):
    """The field A(w)w of some data; `coupled` if a filter's field depends on the other filters (α of outputs)."""

    coupled: bool

    def product(self, weights: Tensor) -> Tensor:
        """A(w)w for rows w of `weights` (k, d): (k, d)."""

    def gates(self, weights: Tensor) -> Tensor:
        """Whether each sample is on the positive side of each filter, (k, n) of bool; (k, 0) without samples."""


class Ending(Enum):
    """How one filter's run ended; the value is the advice."""

    CONVERGED = "w(t + 1) − w(t) fell below `tolerance`"
    SETTLED = "`find_lmes` brought it to rest exactly, where the iteration had left it chattering or unfinished"
    CHATTERING = "gates keep flipping: w lies on the edge of some samples' gates, or swings; raise `largest_shift`"
    STEP_LIMIT = "ran all `max_steps`; raise it to continue"
    SILENT = (
        "A(w)w is 0 up to rounding: no sample passes the gate, or all give one output; centre x, or start elsewhere"
    )
    DIVERGED = "A(w)w is not finite; check the samples and α"


@dataclass(frozen=True, eq=False)
class FilterRun:
    """The ends of k filters under (94)."""

    weights: Tensor  # (k, d), unit rows
    endings: tuple[Ending, ...]
    n_steps: Tensor  # (k,), steps each filter took
    discrepancies: Tensor  # (T, k): ‖w(t + 1) − w(t)‖, Fig. 1; NaN after a filter's end
    shifts: Tensor  # (k,), the damping s that each filter ended with
    flipping: Tensor  # (k, n) of bool: samples whose gates flipped recently

    @property
    def converged(self) -> Tensor:
        """(k,) of bool."""
        return torch.tensor([ending is Ending.CONVERGED for ending in self.endings], device=self.weights.device)


@dataclass(frozen=True, eq=False)
class FilterFlow:
    """The flow (7) of k filters; `weights[i]` belongs to `times[i]`. It may end before the last time in `times`."""

    times: tuple[float, ...]
    weights: Tensor  # (T, k, d), unit rows
    reached: float  # the time up to which it was integrated; after it, filters were at rest or chattered
    chattering: bool  # whether it ended before the last time, in steps as short as the chatter of the gates


def power_iteration(
    field: OneLayerField,
    starts: Tensor,
    *,
    max_steps: int = 1000,
    tolerance: float = 1e-10,
    shift: float = 0.0,
    largest_shift: float = 64.0,
    progress: bool | Advance = False,
) -> FilterRun:
    r"""Paper C, (94), for many filters at once, damped where gates chatter.

    Args:
        field: the A(w)w of some data.
        starts: (k, d), rows of any length except 0.
        max_steps: the most steps to take.
        tolerance: a filter has converged when $(1 + s) \lVert w(t + 1) - w(t) \rVert$, which is about the angle between
            w and A(w)w, falls below it.
        shift: the s that every filter starts with; 0 is (94) itself.
        largest_shift: s becomes 1 at the first chatter and doubles at every further one, up to this value; beyond it
            the filter ends as `CHATTERING`. 0 never damps.
        progress: show a bar, or a function of the steps done and the steps in all.
    """
    _require_field(field)
    w = _unit_rows(starts)
    max_steps = checks.require_whole("max_steps", max_steps)
    checks.require_positive(tolerance=tolerance)
    checks.require_finite_not_negative(shift=shift, largest_shift=largest_shift)
    state = _Iteration(field, w, shift, largest_shift, tolerance)
    with progress_bar("power iteration", progress) as advance, torch.no_grad():
        for step in range(max_steps):
            if not state.advance():
                break
            advance(step + 1, max_steps)
    return state.result()


def one_layer_flow(
    field: OneLayerField, starts: Tensor, *, times: ArrayLike, tolerance: float = 1e-8, max_steps: int = FLOW_STEPS
) -> FilterFlow:
    r"""Paper C, (7): $\dot w_k = (I - w_k w_k^\top) A(w_k) w_k$ at given times, by DOP853.

    Time is learning rate × steps for $J = \frac12 C_\alpha[h(w^\top x)]$ and an activation of degree 1; for degree p
    the gradient is p times this field. Where gates chatter the steps become tiny; once `max_steps` of them would not
    be enough at the pace of the last thousand, the flow stops there and says so. `times` increase from 0 on. The
    tolerance is relative, and also absolute as rows have norm 1; at least 100 roundings of the number type.
    """
    _require_field(field)
    w = _unit_rows(starts)
    times_ = checks.increasing_times(times)
    checks.require_positive(tolerance=tolerance)
    max_steps = checks.require_whole("max_steps", max_steps)
    sizes = [0.0]  # of the latest A(w)w

    def velocity(_: float, y: np.ndarray) -> np.ndarray:
        unit = _normalized(torch.as_tensor(y.reshape(w.shape)).to(w))
        product = field.product(unit)
        sizes[0] = float(product.norm(dim=1).max())
        if not torch.isfinite(product).all():  # the solver would try smaller and smaller steps forever
            raise InputError("A(w)w is not finite along the flow; check the samples and α")
        return _tangent(unit, product).double().cpu().numpy().reshape(-1)

    first = w.double().cpu().numpy().reshape(-1)
    finest = max(tolerance, 100 * torch.finfo(w.dtype).eps)
    solver = DOP853(velocity, 0.0, first, float(times_[-1]), rtol=finest, atol=finest)
    seen = _integrated(solver, list(times_), max_steps)
    if len(seen) < len(times_) and np.abs(solver.f).max() <= 10 * finest * sizes[0]:  # at rest, and stays there
        seen += [solver.y] * (len(times_) - len(seen))
    rows = torch.as_tensor(np.stack([first, *seen])[1:])  # none if the first time was not reached
    path = _normalized(rows.reshape(len(seen), *w.shape)).to(w)
    kept = tuple(float(t) for t in times_[: len(seen)])
    return FilterFlow(kept, path, float(solver.t), chattering=len(kept) < len(times_))


def _integrated(solver: DOP853, wanted: list[float], max_steps: int) -> list[np.ndarray]:
    """The solution at the times wanted, as far as `max_steps` reach or would reach."""
    seen = []
    while wanted and wanted[0] <= 0:
        seen.append(solver.y.copy())
        wanted.pop(0)
    before, last = 0.0, wanted[-1] if wanted else 0.0
    for step in range(max_steps):
        if not wanted:
            break
        if step and step % PACE == 0:
            if (last - solver.t) * PACE > (solver.t - before) * (max_steps - step):
                break
            before = float(solver.t)
        solver.step()
        if solver.status == "failed":  # steps as small as the spacing of numbers
            break
        if wanted[0] <= solver.t:
            between = solver.dense_output()
            while wanted and wanted[0] <= solver.t:
                seen.append(between(wanted.pop(0)))
    return seen


class _Iteration:
    """The state of (94). Only filters that still move are computed, unless the field couples them."""

    def __init__(self, field: OneLayerField, w: Tensor, shift: float, largest: float, tolerance: float) -> None:
        k = len(w)
        self.field, self.w, self.largest, self.tolerance = field, w, largest, tolerance
        self.shift = torch.full((k,), float(shift), dtype=w.dtype, device=w.device)
        self.endings: list[Ending | None] = [None] * k
        self.n_steps = torch.zeros(k, dtype=torch.long)
        self.moves: list[Tensor] = []
        self.scale = 0.0
        self.gates = field.gates(w)
        self.restless = torch.zeros(k, dtype=torch.long, device=w.device)  # steps of this window with a flip or a turn
        self.last_move = torch.zeros_like(w)
        self.flipping = torch.zeros_like(self.gates)
        self.lately = torch.zeros_like(self.gates)
        self.best = torch.full((k,), math.inf, dtype=w.dtype, device=w.device)  # of the window before
        self.lowest = torch.full((k,), math.inf, dtype=w.dtype, device=w.device)  # of this window
        self.age = 0

    def advance(self) -> bool:
        """One step of every filter that has not ended; False if all have."""
        moving = [i for i, ending in enumerate(self.endings) if ending is None]
        if not moving:
            return False
        live = torch.tensor(moving, device=self.w.device)
        w = self.w[live]
        product = self.field.product(self.w)[live] if self.field.coupled else self.field.product(w)
        size = product.norm(dim=1)
        finite = torch.isfinite(size)
        if finite.any():
            self.scale = max(self.scale, float(size[finite].max()))
        heard = finite & (size > max(SILENCE, 16 * torch.finfo(size.dtype).eps) * self.scale)
        damped = product / size.where(heard, 1.0)[:, None] + self.shift[live, None] * w
        new = torch.where(heard[:, None], _normalized(damped), w)
        move = (new - w).norm(dim=1)
        self.w = self.w.index_copy(0, live, new)
        self._watch(live, new, new - w)
        residual = (1 + self.shift[live]) * move
        self.lowest[live] = torch.minimum(self.lowest[live], residual)
        row = torch.full((len(self.w),), math.nan, dtype=w.dtype, device=w.device)
        row[live] = move.where(heard, math.nan)
        self.moves.append(row)
        self.n_steps[moving] += 1
        self._end(moving, finite.tolist(), heard.tolist(), (residual < self.tolerance).tolist())
        self.age += 1
        if self.age == PATIENCE:
            self._damp_where_chattering()
        return True

    def _watch(self, live: Tensor, new: Tensor, move: Tensor) -> None:
        """Count the steps in which some gate flipped, or the move turned back."""
        gates = self.field.gates(new)
        flipped = gates != self.gates[live]
        turned = (move * self.last_move[live]).sum(1) < 0
        self.gates = self.gates.index_copy(0, live, gates)
        self.last_move = self.last_move.index_copy(0, live, move)
        self.restless[live] += flipped.any(dim=1) | turned
        self.lately[live] |= flipped

    def _end(self, moving: list[int], finite: list[bool], heard: list[bool], still: list[bool]) -> None:
        for place, i in enumerate(moving):
            if not finite[place]:
                self.endings[i] = Ending.DIVERGED
            elif not heard[place]:
                self.endings[i] = Ending.SILENT
            elif still[place]:
                self.endings[i] = Ending.CONVERGED
        if self.field.coupled and any(ending in (None, Ending.DIVERGED) for ending in self.endings):
            # no filter is at rest while the others move
            self.endings = [None if ending is Ending.CONVERGED else ending for ending in self.endings]

    def _damp_where_chattering(self) -> None:
        """Every `PATIENCE` steps, damp the filters that chattered without progress, or give them up."""
        stuck = (self.restless >= PATIENCE // 2) & (self.lowest > 0.9 * self.best)
        for i in torch.nonzero(stuck)[:, 0].tolist():
            if self.endings[i] is not None:
                continue
            further = max(1.0, 2 * float(self.shift[i]))
            if further > self.largest:
                self.endings[i] = Ending.CHATTERING
            else:
                self.shift[i] = further
                self.lowest[i] = math.inf  # the new shift starts afresh
        moved = (self.n_steps.to(self.w.device) == self.n_steps.max())[:, None]  # the others keep their last window
        self.flipping = torch.where(moved, self.lately, self.flipping)
        self.lately.zero_()
        self.best = self.lowest.clone()
        self.lowest.fill_(math.inf)
        self.restless.zero_()
        self.age = 0

    def result(self) -> FilterRun:
        return FilterRun(
            weights=self.w,
            endings=tuple(Ending.STEP_LIMIT if ending is None else ending for ending in self.endings),
            n_steps=self.n_steps,
            discrepancies=torch.stack(self.moves),
            shifts=self.shift,
            flipping=self.flipping | self.lately,
        )


def _normalized(rows: Tensor) -> Tensor:
    return torch.as_tensor(rows / rows.norm(dim=-1, keepdim=True))


def _tangent(w: Tensor, v: Tensor) -> Tensor:
    """(I − w w^T) v, row by row."""
    return v - (v * w).sum(-1, keepdim=True) * w


def _unit_rows(starts: Tensor) -> Tensor:
    checks.require_floating("starts", starts, "use torch.randn(k, d)")
    checks.require_shape("starts", starts, ("k", "d"), "pass one row per filter")
    sizes = starts.norm(dim=1)
    bad = torch.nonzero(~(torch.isfinite(sizes) & (sizes > 0)))
    if len(bad):
        raise InputError(f"starts[{int(bad[0])}] is zero, NaN or infinite and has no direction; drop or replace it")
    return torch.as_tensor(starts.detach() / sizes[:, None])


def _require_field(field: OneLayerField) -> None:
    if not all(hasattr(field, name) for name in ("product", "gates", "coupled")):
        raise InputError(
            f"field must be a OneLayerField, got {checks.in_words(field)}; make one from samples x with "
            "kontrast.patterns.GatedCovariance(x)"
        )
