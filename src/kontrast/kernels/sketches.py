r"""Tangent kernels too large for exact products, from random projections of the gradients, with their errors.

A sketch keeps a short random vector S(x) for each row, with $\langle S(x), S(y)\rangle$ close to the trace kernel. Its
numbers stand in groups; each group alone estimates the kernel, and their spread gives the error of everything that is
read from the sketch. The length of every row's gradients is known exactly, so vectors are scaled to it: nearly parallel
gradients lose almost nothing.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from scipy import stats
from torch import Tensor

from kontrast.checks import require_type, require_whole
from kontrast.errors import InputError
from kontrast.kernels.estimates import KernelEstimate
from kontrast.linalg import Estimate, kernel_drift, top_eigenpairs

GROUPS = 32  # of a sketch's numbers, each an estimate of the kernel
CONFIDENCE = 0.95
WIDEST = 0.1  # half an interval over its number: beyond that, a sketch is called too small
LEAST_SHARED = 0.25  # of an error's variance, from which the exact kernel between a few rows corrects it
MOST = 8  # times too wide, for which a larger sketch is named
TILE = {"cpu": 256, "cuda": 1024}


class SketchWarning(UserWarning):
    """A sketch is too small for what is read from it."""


@dataclass(frozen=True)
class SketchedDrift:
    """`KernelDrift` of the kernels behind two sketches, with confidence intervals."""

    relative: Estimate
    alignment: Estimate


class Witnesses(NamedTuple):
    """Exact kernels between a few rows: the one that is sketched, and the trace that it stands for."""

    rows: Tensor  # their places
    sketched: Tensor  # of the summed outputs, where outputs="sum"
    trace: Tensor


@dataclass(frozen=True)
class Drawn:
    """What two sketches must have in common to be compared: the same random numbers, the same rows."""

    seed: int
    dim: int
    outputs: str
    n_numbers: int  # parameters times directions
    sums: tuple[float, ...]  # of every row's numbers, with random weights


@dataclass(frozen=True, eq=False)
class NTKSketch:
    """Sketched gradients of every row, from `empirical_ntk_sketch`."""

    features: Tensor  # (n, groups, dim / groups)
    squares: Tensor  # (n, groups): squared lengths, exact, of the gradients that each group stands for
    drawn: Drawn
    witnesses: Witnesses | None = None  # where there are enough rows and not too many outputs

    def __len__(self) -> int:
        return len(self.features)

    @property
    def dim(self) -> int:
        """Numbers per row."""
        return self.drawn.dim

    @property
    def tile(self) -> int:
        """Rows of the kernel that are computed at a time."""
        return TILE.get(self.features.device.type, 256)

    def kernel(self, rows: slice = slice(None), columns: slice = slice(None)) -> KernelEstimate:
        """The kernel between these rows, and the standard error of each entry."""
        for name, part in (("rows", rows), ("columns", columns)):
            require_type(name, part, slice, "choose from the kernel that slices give")
        whole = range(len(self))
        i, j = (slice(r.start, max(r.start, r.stop)) for r in (whole[rows], whole[columns]))
        if whole[rows].step != 1 or whole[columns].step != 1:
            raise InputError("rows and columns must be slices with step 1; choose from the kernel they give")
        value = self.features.new_empty(i.stop - i.start, j.stop - j.start)
        error = torch.empty_like(value)
        for down, across in _tiles(len(value), value.shape[1], self.tile):
            replicates = self._replicates(_after(i.start, down), _after(j.start, across))
            value[down, across] = replicates[0]
            error[down, across] = replicates[1:].std(0, correction=0) * math.sqrt(GROUPS - 1)
        if (summed := self._summed) is not None:
            size = self._lengths[0]
            error = torch.hypot(error, _gap(summed) * size[i, None] * size[None, j])
        return KernelEstimate(value, error)

    def drift(self, start: NTKSketch) -> SketchedDrift:
        r"""How far the kernel is from that of `start`: $\|K - K_0\|_F / \|K_0\|_F$ and the alignment of the two.

        Both sketches must have the same rows, `seed`, `dim` and `outputs`; then what the random numbers do to one
        kernel they do to the other, and a small drift is as well known as a large one. Between a few rows the drift is
        known exactly; what the sketches have wrong there they have wrong everywhere, so that part is taken off.
        """
        found = self._drift(start)
        self._warn_if_wide("drift", found.relative)
        return found

    def alignment(self, other: NTKSketch) -> Estimate:
        """The alignment of the two kernels, as `kernel_alignment` of the exact ones."""
        found = self._drift(other).alignment
        self._warn_if_wide("alignment", found)
        return found

    def _drift(self, start: NTKSketch) -> SketchedDrift:
        self._refuse_other(start)
        squared, aligned = _read(self, start)
        mine, its = self.witnesses, start.witnesses
        if mine is not None and its is not None and float(its.sketched.norm()) > 0:
            exact = kernel_drift(mine.sketched, its.sketched)
            squared_there, aligned_there = _read(self._of(mine.rows), start._of(its.rows))
            squared = squared.without_errors_of(squared_there, exact.relative**2)
            aligned = aligned.without_errors_of(aligned_there, exact.alignment)
        relative = squared.interval()
        # Below zero there is nothing but noise: the interval then begins at zero, as wide as it was.
        high = max(0.0, squared.value) + relative.high - squared.value
        drift = Estimate(*(math.sqrt(max(0.0, bound)) for bound in (squared.value, relative.low, high)))
        found = SketchedDrift(drift, _at_most_one(aligned.interval()))
        if (summed := self._summed) is not None and its is not None:
            found = _with_gaps(found, summed, its)
        return found

    def eigenvalues(self, k: int = 1) -> list[Estimate]:
        """The k largest eigenvalues of the kernel.

        Noise makes the eigenvalues of an estimate too large on average; quotients of half of the groups at the
        eigenvectors of the other half are too small. The interval reaches from below these to above those, and the
        estimate lies between them where both errors cancel to first order.
        """
        k = require_whole("k", k, most=len(self) // 2 if len(self) > 1 else 1)
        above, vectors = self._eigenpairs(slice(None), k)
        halves = [slice(0, None, 2), slice(1, None, 2)]
        below = torch.zeros_like(above)
        for fitted, tested in (halves, halves[::-1]):
            inside = self._scaled(tested).mT @ self._eigenpairs(fitted, k)[1]
            below += torch.linalg.eigvalsh((inside.mT @ inside).double()).flip(0) / 2
        below = torch.minimum(below, above)
        spread = self._quotients(vectors).std(0, correction=0) * math.sqrt(GROUPS - 1)
        margin = _quantile() * spread
        if (summed := self._summed) is not None:
            sketched, trace = summed.sketched.double(), summed.trace.double()
            kernel = self._scaled(slice(None)).double()
            margin = margin + (sketched - trace).norm() / sketched.norm() * (kernel.mT @ kernel).norm()
        found = [
            Estimate((2 * high + low) / 3, max(0.0, low - wide), high + wide)
            for high, low, wide in zip(above.tolist(), below.tolist(), margin.tolist(), strict=True)
        ]
        self._warn_if_wide("largest eigenvalue", found[0])
        return found

    # --- how it is computed -----------------------------------------------------------------------------------------

    @property
    def _summed(self) -> Witnesses | None:
        """The witnesses, where the kernel that is sketched is not the trace itself."""
        return self.witnesses if self.drawn.outputs == "sum" else None

    @cached_property
    def _lengths(self) -> Tensor:
        """The length of every row's gradients, from all groups and with each left out, (1 + groups, n)."""
        return _with_and_without(self.squares.mT).sqrt_()

    @cached_property
    def _scale(self) -> Tensor:
        """What makes the sketched vectors as long as the gradients, from all groups and with each left out."""
        sketched = _with_and_without(GROUPS * self.features.square().sum(2).mT).sqrt_()
        return torch.where(sketched > 0, self._lengths / sketched, 0)

    def _replicates(self, i: slice, j: slice) -> Tensor:
        """The kernel between rows i and j from all groups and with each left out, (1 + groups, |i|, |j|)."""
        left, right = (self.features[rows].transpose(0, 1) for rows in (i, j))
        kernels = _with_and_without(GROUPS * (left @ right.mT))
        return kernels.mul_(self._scale[:, i, None]).mul_(self._scale[:, None, j])

    def _scaled(self, groups: slice) -> Tensor:
        """Vectors whose inner products are the kernel that these groups estimate, (n, numbers)."""
        features, squares = self.features[:, groups], self.squares[:, groups].mean(1)
        size = features.square().sum((1, 2))
        return (features * torch.where(size > 0, squares / size, 0).sqrt()[:, None, None]).flatten(1)

    def _eigenpairs(self, groups: slice, k: int) -> tuple[Tensor, Tensor]:
        F = self._scaled(groups)
        pairs = top_eigenpairs(lambda block: F @ (F.mT @ block), k, n=len(F), dtype=F.dtype, device=F.device)
        return pairs.values.double(), pairs.vectors.to(F)

    def _quotients(self, vectors: Tensor) -> Tensor:
        """v·K v for each vector with each group left out, (groups, k)."""
        found = []
        for group, scale in enumerate(self._scale[1:]):
            inside = torch.einsum("nad,nk->adk", self.features, scale[:, None] * vectors).double().square().sum(1)
            found.append(GROUPS / (GROUPS - 1) * (inside.sum(0) - inside[group]))
        return torch.stack(found)

    def _of(self, rows: Tensor) -> NTKSketch:
        """The sketch of some rows."""
        return replace(self, features=self.features[rows], squares=self.squares[rows])

    def _refuse_other(self, start: NTKSketch) -> None:
        if not isinstance(start, NTKSketch):
            raise InputError(
                f"start must be an NTKSketch, got {type(start).__name__}; make it with empirical_ntk_sketch"
            )
        for name in ("seed", "dim", "outputs", "n_numbers"):
            mine, its = getattr(self.drawn, name), getattr(start.drawn, name)
            if mine != its:
                what = "numbers of parameters times outputs" if name == "n_numbers" else name
                raise InputError(f"the sketches differ in {what}: {mine} here, {its} in start; make both alike")
        mine, its = torch.tensor(self.drawn.sums), torch.tensor(start.drawn.sums)
        if mine.shape != its.shape or float((mine - its).abs().max()) > 1e-4 * float(mine.abs().max()):
            raise InputError("the sketches are of different rows; make both of the same rows in the same order")

    def _warn_if_wide(self, what: str, found: Estimate) -> None:
        half, allowed = (found.high - found.low) / 2, WIDEST * abs(found.value)
        if half <= allowed:
            return
        fix = "take more dimensions"
        if self.drawn.outputs == "sum":
            fix = 'use outputs="all"'
        elif allowed > 0 and half < MOST * allowed:
            fix = f"take about {GROUPS * math.ceil((half / allowed) ** 2 * self.dim / GROUPS):,}"
        warnings.warn(
            f"a sketch of {self.dim:,} dimensions is too small for the {what}: {found} is more than {WIDEST:.0%} to "
            f"either side; {fix}",
            SketchWarning,
            stacklevel=3,  # where the sketch was asked
        )


def _with_and_without(each: Tensor) -> Tensor:
    """The mean of the groups' estimates, first with all of them, then with each left out."""
    total = each.sum(0)
    return torch.cat([total[None] / len(each), (total - each) / (len(each) - 1)])


def _after(start: int, part: slice) -> slice:
    return slice(start + part.start, start + part.stop)


def _tiles(n: int, m: int, size: int) -> Iterator[tuple[slice, slice]]:
    for i, j in itertools.product(range(0, n, size), range(0, m, size)):
        yield slice(i, min(i + size, n)), slice(j, min(j + size, m))


def _sums(last: NTKSketch, first: NTKSketch) -> tuple[Tensor, Tensor]:
    """‖K − K0‖², ⟨K, K0⟩, ‖K‖² and ‖K0‖², from all groups (4,) and with each left out (groups, 4), in float64."""
    total = last.features.new_zeros(1 + GROUPS, 4, dtype=torch.float64)
    for i, j in _tiles(len(last), len(last), last.tile):
        if i.start <= j.start:
            K, K0 = (sketch._replicates(i, j).flatten(1).double() for sketch in (last, first))
            parts = [(K - K0).square().sum(1), (K * K0).sum(1), K.square().sum(1), K0.square().sum(1)]
            total += (1 if i == j else 2) * torch.stack(parts, 1)
    return total[0].cpu(), total[1:].cpu()


def _quantile() -> float:
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, GROUPS - 1))


@dataclass(frozen=True)
class _Reading:
    """A number read from all groups, and what each group contributes to its error."""

    value: float
    influence: Tensor  # (groups,)

    def without_errors_of(self, other: _Reading, exact: float) -> _Reading:
        """Less the part of the error that it shares with another number whose exact value is known.

        A control variate: the slope is fitted to the groups, and costs them two degrees of freedom.
        """
        mine, its = float(self.influence.square().sum()), float(other.influence.square().sum())
        both = float((self.influence * other.influence).sum())
        # Where the other number has next to no error, what is left is rounding, which a slope would blow up.
        if not (math.isfinite(other.value + exact) and both * both >= LEAST_SHARED * mine * its > 0):
            return self
        slope = both / its
        rest = (self.influence - slope * other.influence) * math.sqrt((GROUPS - 1) / (GROUPS - 3))
        return _Reading(self.value - slope * (other.value - exact), rest)

    def interval(self) -> Estimate:
        """Student's interval."""
        half = _quantile() * float(self.influence.std()) / math.sqrt(GROUPS)
        return Estimate(self.value, self.value - half, self.value + half)


def _read(last: NTKSketch, first: NTKSketch) -> tuple[_Reading, _Reading]:
    """The squared relative drift and the alignment."""
    full, without = _sums(last, first)
    # What leaving a group out does to the sums removes their bias, and says how sure they are.
    pseudo = GROUPS * full - (GROUPS - 1) * without
    moved, product, size, first_size = pseudo.mean(0).tolist()
    if first_size <= 0:
        raise InputError("the kernel of start is zero everywhere; compare with another")
    squared = moved / first_size
    relative = _Reading(squared, (pseudo[:, 0] - squared * pseudo[:, 3]) / first_size)
    if size <= 0:
        return relative, _Reading(math.nan, torch.zeros(GROUPS))
    alignment = product / math.sqrt(size * first_size)
    shares = pseudo[:, 1] / product - pseudo[:, 2] / (2 * size) - pseudo[:, 3] / (2 * first_size)
    return relative, _Reading(alignment, alignment * shares)


def _gap(witnesses: Witnesses) -> float:
    """By how much entries of the two kernels differ, as a share of the sum's gradients' lengths: root mean square."""
    sketched, trace = witnesses.sketched.double(), witnesses.trace.double()
    size = sketched.diagonal().sqrt()
    return float(((sketched - trace) / (size[:, None] * size)).square().mean().sqrt())


def _with_gaps(found: SketchedDrift, last: Witnesses, first: Witnesses) -> SketchedDrift:
    """Wider by what the kernels of the sum miss of the drift of the traces, between the witnesses."""
    sketched, trace = kernel_drift(last.sketched, first.sketched), kernel_drift(last.trace, first.trace)
    moved, aligned = abs(sketched.relative - trace.relative), abs(sketched.alignment - trace.alignment)
    a, b = found.relative, found.alignment
    return SketchedDrift(
        Estimate(a.value, max(0.0, a.low - moved), a.high + moved),
        _at_most_one(Estimate(b.value, b.low - aligned, b.high + aligned)),
    )


def _at_most_one(found: Estimate) -> Estimate:
    """Without what rounding and noise put above 1; nan stays."""
    return Estimate(
        *(bound if math.isnan(bound) else min(1.0, bound) for bound in (found.value, found.low, found.high))
    )
