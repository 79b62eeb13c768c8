r"""Lazy or learning? How far the tangent kernel moved, and how much of this very run its first kernel explains.

Every number is taken at every checkpoint and at a *lazy control*: the same start after a few steps of gradient descent
so small that any model is a kernel machine there. The control says what each number is where the kernel alone acts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
import xarray as xr
from scipy.optimize import nnls
from torch import Tensor
from torch.func import grad, jvp, vjp

from kontrast.diagnosis.blame import OF_THE_LOSS
from kontrast.diagnosis.collapse import EMBEDDING, Seen
from kontrast.diagnosis.inputs import State, has_statistics
from kontrast.diagnosis.quantities import MISSING, Quantity, plain, variables
from kontrast.diagnosis.subject import Subject
from kontrast.errors import InputError
from kontrast.kernels import empirical_ntk_along, empirical_ntk_trace
from kontrast.linalg import Estimate
from kontrast.nets import MLP

CONTROL, CONTROL_STEPS = "control", 2
CONTROL_MOVE = 0.005  # of the embedding's size, by which a step of the control moves it
NORMAL = 1.96  # deviations of a 95 % interval
CARRIED_ON = 0.25  # of the path from the start, on which the loss is followed beyond the end
FINITE_STEP = 1e-2  # of running statistics, for derivatives by differences
STATISTICS_STEP = 1e-4  # of the size of all parameters, likewise
ROWS = 64  # that a derivative sees at once
RIDGES = np.geomspace(1e-6, 1.0, 13)  # of the first kernel's largest eigenvalue
N_PAIRS = 32  # samples whose two views the control and the fixed kernel are trained on
N_LINEARIZED = 64  # samples at which the linearised prediction is compared
N_GRADIENTS = 5  # checkpoints whose gradients the fixed kernel is given

QUANTITIES = (
    Quantity(
        "linearization_error",
        "error of the linearised prediction",
        "‖f − f_lin‖ / ‖f − f(0)‖ over clean samples, f_lin = f(0) + the derivative of f at the start times the change "
        "of the parameters and running statistics: 0 for a kernel machine.",
        percent=True,
    ),
    Quantity(
        "fixed_kernel_error",
        "error of the fixed-kernel prediction",
        "‖Δf − Δf_K‖ / ‖Δf‖ over views, Δf_K = −Σ c K(0) ∂L/∂f with the loss's gradients at the checkpoints and step "
        "lengths c ≥ 0 that fit best: what gradient descent under the first tangent kernel would have done.",
        percent=True,
    ),
    Quantity(
        "explained_share",
        "share of the change that the first kernel explains",
        "1 − the leave-one-out error of kernel regression of the embedding's change with the first tangent kernel, as "
        "a share of the change's variance; the ridge is the best of 13. Compare it with the control's.",
        percent=True,
    ),
    Quantity(
        "drift",
        "kernel drift",
        "‖K − K(0)‖ / ‖K(0)‖ (Frobenius), K the tangent kernel summed over the embedding's dimensions.",
        percent=True,
    ),
    Quantity(
        "alignment_with_first_kernel",
        "alignment with the first kernel",
        "⟨K, K(0)⟩ / (‖K‖ ‖K(0)‖); 1 is the same up to a factor.",
    ),
    Quantity("largest_change", "largest change of a kernel entry", "max |K − K(0)| / max |K(0)|."),
    Quantity(
        "movement",
        "movement of the embedding",
        "‖f − f(0)‖ / ‖f(0) − its mean‖ over clean samples.",
        percent=True,
    ),
    Quantity(
        "slope_left",
        "slope left in the loss",
        "how fast the loss falls over a quarter of the path more, straight on from the start through the end, as a "
        "share of its mean fall on the path: 1 where it falls as before, 0 at a minimum.",
        percent=True,
    ),
)
OF_KERNEL = ("explained_share", "drift", "alignment_with_first_kernel", "largest_change")  # over n_points samples


def measure(subject: Subject, seen: Sequence[Seen], advance: Callable[[], None]) -> tuple[xr.Dataset, dict[str, str]]:
    """The numbers of every checkpoint after the start and of the control, and why some are missing."""
    ground = _Ground(subject, seen[0].clean[EMBEDDING].double())
    outputs = {at.label: at.clean[EMBEDDING].double() for at in seen}
    states = list(subject.checkpoints[1:])
    if subject.settings.control and (control := ground.control()) is not None:
        states.insert(0, (CONTROL, control))
        outputs[CONTROL] = subject.encoder.embed(control, subject.x).double()
    rows = []
    for label, state in states:
        rows.append(ground.numbers(state, outputs[label]))
        if label in (CONTROL, subject.labels[-1]):
            path = [subject.start, state] if label == CONTROL else _some([it for _, it in subject.checkpoints])
            rows[-1] |= ground.of_the_loss(path)
        advance()
    groups, moved = _movement(subject, [state for _, state in states])
    return (
        xr.Dataset(
            {
                **variables(QUANTITIES, rows, "point"),
                "parameter_movement": (
                    ("point", "parameter"),
                    moved,
                    {
                        "long_name": "movement of the parameters by layer",
                        "definition": "‖θ − θ(0)‖ / ‖θ(0)‖ of each module's own parameters",
                    },
                ),
            },
            coords={"point": [label for label, _ in states], "parameter": groups, "bound": ["value", "low", "high"]},
        ),
        ground.why,
    )


def _some(states: list[State]) -> list[State]:
    """A few states at even distances, the first and the last among them."""
    last = len(states) - 1
    return [states[round(k * last / (N_GRADIENTS - 1))] for k in range(N_GRADIENTS)] if last >= N_GRADIENTS else states


def _movement(subject: Subject, states: list[State]) -> tuple[list[str], np.ndarray]:
    """How far every module's own parameters moved, as a share of their first size; infinite where that was 0."""
    first = subject.encoder.parameters(subject.start)
    groups: dict[str, list[str]] = {}
    for name in first:
        groups.setdefault(name.rpartition(".")[0] or name, []).append(name)
    table = []
    for state in states:
        now = subject.encoder.parameters(state)
        row = []
        for names in groups.values():
            moved = math.sqrt(sum(float((now[n].double() - first[n].double()).square().sum()) for n in names))
            size = math.sqrt(sum(float(first[n].double().square().sum()) for n in names))
            row.append(moved / size if size else math.inf if moved else 0.0)
        table.append(row)
    return list(groups), np.array(table, dtype=float).reshape(len(states), len(groups))


@dataclass(frozen=True, eq=False)
class _Ground:
    """The start, and everything at the start that all points are compared with."""

    subject: Subject
    outputs: Tensor  # the embedding of the clean samples at the start

    @cached_property
    def why(self) -> dict[str, str]:
        """Why numbers are missing."""
        return {}

    @cached_property
    def points(self) -> Tensor:
        """The samples between which kernels are taken."""
        return self.subject.x[: self.subject.settings.n_points]

    @cached_property
    def pairs(self) -> Tensor:
        """Two views of some samples, one below the other."""
        a, b = self.subject.pair
        return torch.cat([a[:N_PAIRS], b[:N_PAIRS]])

    @cached_property
    def kernels(self) -> list[Tensor]:
        """The first tangent kernel: the trace over all outputs, or one per group of random directions."""
        return self._kernels(self.subject.start)

    def numbers(self, state: State, outputs: Tensor) -> dict[str, Estimate]:
        """The numbers of a point at which these are the outputs."""
        found = self._drift(state)
        change = outputs - self.outputs
        size = (self.outputs - self.outputs.mean(0)).norm()
        if float(size) > 0 or float(change.norm()) == 0:
            found["movement"] = plain(float(change.norm() / size) if float(size) > 0 else 0.0)
        else:  # all samples looked the same at the start: whatever came of it is far from it
            found["movement"] = plain(math.inf)
        if float(change.norm()) <= 1e-9 * float(self.outputs.norm()):
            self.why["linearization_error"] = "the embedding is the same as at the start"
            return found
        some = change[:N_LINEARIZED]
        lin = self._linearized(self.subject.x[:N_LINEARIZED], state).double()
        found["linearization_error"] = _ratio((some - lin).square().sum(1), some.square().sum(1))
        found["explained_share"] = self._explained(change[: len(self.points)])
        return found

    # --- tangent kernels --------------------------------------------------------------------------------------------

    def _kernels(self, state: State) -> list[Tensor]:
        encoder, n_outputs = self.subject.encoder, self.outputs.shape[1]
        points = encoder.prepared(self.points)
        q = self.subject.settings.directions(n_outputs)
        if q is None:
            return [empirical_ntk_trace(encoder.module, points, parameters=state, output=self._output).double()]
        normal = torch.randn(n_outputs, q, generator=self.subject.generator(1), dtype=torch.float64)
        directions = math.sqrt(n_outputs) * torch.linalg.qr(normal).Q
        groups = [group / math.sqrt(len(group)) for group in directions.mT.tensor_split(min(4, q))]
        kernels = empirical_ntk_along(encoder.module, points, groups, parameters=state, output=self._output)
        return [K.double() for K in kernels]

    @cached_property
    def _output(self) -> Callable[[object], Tensor] | None:
        """What kernels take for the output, one object, so that they plan once; None for a plain MLP."""
        encoder = self.subject.encoder
        return None if isinstance(encoder.module, MLP) and encoder.select is None else encoder.output

    def _drift(self, state: State) -> dict[str, Estimate]:
        try:
            now = self._kernels(state)
        except InputError as error:
            self.why["drift"] = str(error)
            return {}
        K, K0 = torch.stack(now).mean(0), torch.stack(self.kernels).mean(0)
        entries = _products(K, K0)
        errors = {}
        for name, read in (("drift", _relative), ("alignment_with_first_kernel", _aligned)):
            value = read(entries.sum((1, 2)))
            variance = _jackknife(read, entries)
            if len(now) > 1:  # the random directions' own error
                left_out = [
                    read(_products(_without(now, g), _without(self.kernels, g)).sum((1, 2))) for g in range(len(now))
                ]
                variance += (len(now) - 1) * float(np.var(left_out))
            half = NORMAL * math.sqrt(variance)
            errors[name] = Estimate(value, max(value - half, 0.0), value + half)
        bound = errors["alignment_with_first_kernel"]
        errors["alignment_with_first_kernel"] = replace(bound, high=min(bound.high, 1.0))
        errors["largest_change"] = plain(float((K - K0).abs().max() / K0.abs().max()))
        return errors

    def _explained(self, change: Tensor) -> Estimate:
        """The leave-one-out share of the change's variance that regression with the first kernel predicts."""
        K0 = torch.stack(self.kernels).mean(0)
        y = change - change.mean(0)
        values, vectors = torch.linalg.eigh(K0.to(y.device))
        best = None
        for ridge in RIDGES * float(values[-1].clamp(min=1e-300)):
            inverse = (vectors / (values.clamp(min=0) + ridge)) @ vectors.mT
            residual = (inverse @ y) / inverse.diagonal()[:, None]
            if best is None or float(residual.square().sum()) < float(best.square().sum()):
                best = residual
        assert best is not None
        error = _ratio(best.square().sum(1), y.square().sum(1), root=False)
        return Estimate(1 - error.value, 1 - error.high, 1 - error.low)

    # --- the first linearisation, and descent under the first kernel ------------------------------------------------

    def _linearized(self, x: Tensor, state: State) -> Tensor:
        """The change of the outputs to first order in the change of parameters and running statistics."""
        encoder, start = self.subject.encoder, self.subject.start
        origin, buffers = encoder.parameters(start), encoder.buffers(start)
        step = {name: p - origin[name] for name, p in encoder.parameters(state).items()}
        moved = {
            name: b - buffers[name]
            for name, b in encoder.buffers(state).items()
            if b.is_floating_point() and not torch.equal(b, buffers[name])
        }
        made = []
        for rows in torch.split(x, ROWS):
            part = jvp(lambda p, rows=rows: encoder.function(p, buffers, rows), (origin,), (step,))[1].detach()
            made.append(part + self._by_statistics(rows, origin, buffers, moved) if moved else part)
        return torch.cat(made)

    def _by_statistics(self, rows: Tensor, origin: State, buffers: State, moved: State) -> Tensor:
        """The part of running statistics, which have no derivative in torch: a central difference.

        Its step is so short that no variance changes by more than one per cent.
        """
        shares = [float((b.abs() / (buffers[name].abs() + 1e-12)).max()) for name, b in moved.items() if "var" in name]
        h = FINITE_STEP / max(1.0, *shares)
        with torch.no_grad():
            there, back = (
                self.subject.encoder.function(
                    origin, {**buffers, **{name: buffers[name] + sign * h * b for name, b in moved.items()}}, rows
                )
                for sign in (1, -1)
            )
        return (there - back) / (2 * h)

    def _loss_of(self, parameters: State, buffers: State) -> Tensor:
        outputs = self.subject.encoder.function(parameters, buffers, self.pairs)
        a, b = outputs.chunk(2)
        return self.subject.value_of_loss(a, b)

    def of_the_loss(self, path: Sequence[State]) -> dict[str, Estimate]:
        """What takes the loss, at the end of a path from the start: slope left, fixed-kernel error."""
        try:
            return {"slope_left": self._slope_left(path[-1]), "fixed_kernel_error": self._fixed_kernel(path)}
        except OF_THE_LOSS as error:
            # A user's loss may refuse this batch, or have no derivative that torch.func can take.
            told = f"the loss has no gradient here: {' '.join(str(error).split())[:200]}"
            self.why["slope_left"] = self.why["fixed_kernel_error"] = told
            return {}

    def _slope_left(self, state: State) -> Estimate:
        encoder, start = self.subject.encoder, self.subject.start
        here, origin = encoder.parameters(state), encoder.parameters(start)
        path = {name: p - origin[name] for name, p in here.items()}
        with torch.no_grad():
            first, now = (float(self._loss_of(encoder.parameters(it), encoder.buffers(it))) for it in (start, state))
            fall = first - now
            if not math.isfinite(fall):
                self.why["slope_left"] = f"the loss is not finite: {first:.4g} at the start, {now:.4g} now"
                return MISSING
            if not fall > 1e-6 * (abs(first) + 1e-6):
                self.why["slope_left"] = f"the loss has not fallen: {first:.4g} at the start, {now:.4g} now"
                return MISSING
            # No derivative: a hinge has kinks, and running statistics follow the parameters along the path.
            now, ahead = (self._loss_beside(state, path, length) for length in (0.0, CARRIED_ON))
        return plain((now - ahead) / (CARRIED_ON * fall))

    def _loss_beside(self, state: State, direction: State, length: float) -> float:
        moved = self._beside(state, direction, length)
        return float(self._loss_of(self.subject.encoder.parameters(moved), self.subject.encoder.buffers(moved)))

    def _beside(self, state: State, direction: State, length: float) -> State:
        """The state moved along a direction, with the running statistics that it has there."""
        here = self.subject.encoder.parameters(state)
        moved = {**state, **{name: p + length * direction[name] for name, p in here.items()}}
        return self.subject.restated(moved)

    def _fixed_kernel(self, path: Sequence[State]) -> Estimate:
        r"""The best $-\sum_k c_k K_0\,\partial L/\partial f(\theta_k)$, c ≥ 0, beside the change of the outputs."""
        encoder, start, state = self.subject.encoder, self.subject.start, path[-1]
        origin, buffers = encoder.parameters(start), encoder.buffers(start)
        with torch.no_grad():
            first = encoder.function(origin, buffers, self.pairs)
            change = encoder.function(encoder.parameters(state), encoder.buffers(state), self.pairs) - first
        columns = [self._pulled(origin, buffers, gradient) for gradient in self._gradients(path)]
        size = change.double().square().sum().sqrt()
        if not columns or not float(size) > 0:
            same = "the embedding of the views is the same as at the start"
            self.why["fixed_kernel_error"] = "the loss's gradients are not finite" if not columns else same
            return MISSING
        A = torch.stack([-column.flatten().double() for column in columns], dim=1).cpu().numpy()
        lengths = np.linalg.norm(A, axis=0)
        if not (lengths > 0).any():  # scipy's nnls ends the process where there are no columns
            self.why["fixed_kernel_error"] = "the loss's gradients are all zero"
            return MISSING
        _, error = nnls(A[:, lengths > 0] / lengths[lengths > 0], change.flatten().double().cpu().numpy())
        return plain(error / float(size))

    def _gradients(self, states: Sequence[State]) -> Iterator[Tensor]:
        """∂L/∂f at each state."""
        encoder = self.subject.encoder
        for state in states:
            with torch.no_grad():
                outputs = encoder.function(encoder.parameters(state), encoder.buffers(state), self.pairs)

            def loss(z: Tensor) -> Tensor:
                return self.subject.value_of_loss(*z.chunk(2))

            gradient = grad(loss)(outputs)
            if bool(torch.isfinite(gradient).all()):
                yield gradient

    def _pulled(self, origin: State, buffers: State, cotangent: Tensor) -> Tensor:
        """K(0) times a cotangent, by a backward and a forward derivative, or a difference where statistics follow."""

        def outputs(p: State) -> Tensor:
            return self.subject.encoder.function(p, buffers, self.pairs)

        pullback = vjp(outputs, origin)[1]
        (direction,) = pullback(cotangent)
        if not has_statistics(self.subject.encoder.module):
            result: Tensor = jvp(outputs, (origin,), (direction,))[1]
            return result.detach()
        size, length = (math.sqrt(sum(float(p.square().sum()) for p in it.values())) for it in (origin, direction))
        if not length > 0:
            return torch.zeros_like(cotangent)
        h = STATISTICS_STEP * size / length
        with torch.no_grad():
            ahead, behind = (self._beside(self.subject.start, direction, sign * h) for sign in (1, -1))
            encoder = self.subject.encoder
            there, back = (
                encoder.function(encoder.parameters(it), encoder.buffers(it), self.pairs) for it in (ahead, behind)
            )
        return (there - back) / (2 * h)

    def control(self) -> State | None:
        """The start after a few steps of descent, each of which moves the embedding by half a per cent."""
        encoder, state = self.subject.encoder, self.subject.start
        origin, buffers = encoder.parameters(state), encoder.buffers(state)
        try:
            here, rate = dict(origin), 0.0
            for _ in range(CONTROL_STEPS):
                gradient = grad(self._loss_of)(here, buffers)
                if not rate:
                    with torch.no_grad():
                        outputs = encoder.function(here, buffers, self.pairs)
                    slope = jvp(lambda p: encoder.function(p, buffers, self.pairs), (origin,), (gradient,))[1]
                    size = float((outputs - outputs.mean(0)).norm())
                    rate = CONTROL_MOVE * size / float(slope.norm())
                here = {name: p - rate * gradient[name] for name, p in here.items()}
        except OF_THE_LOSS as error:
            self.why["control"] = f"the loss has no gradient at the start: {' '.join(str(error).split())[:200]}"
            return None
        if not all(bool(torch.isfinite(p).all()) for p in here.values()):
            self.why["control"] = "the loss's gradient at the start is zero or not finite"
            return None
        return self.subject.restated({**state, **here})


def _without(kernels: list[Tensor], g: int) -> Tensor:
    return torch.stack([K for k, K in enumerate(kernels) if k != g]).mean(0)


def _products(K: Tensor, K0: Tensor) -> Tensor:
    """The entries of (K − K0)², K K0, K² and K0², (4, n, n)."""
    return torch.stack([(K - K0) ** 2, K * K0, K**2, K0**2])


def _relative(sums: Tensor) -> float:
    return math.sqrt(float(sums[0]) / float(sums[3])) if float(sums[3]) > 0 else math.nan


def _aligned(sums: Tensor) -> float:
    size = math.sqrt(float(sums[2])) * math.sqrt(float(sums[3]))
    return float(sums[1]) / size if size > 0 else math.nan


def _jackknife(read: Callable[[Tensor], float], entries: Tensor) -> float:
    """The variance of a number read from sums over entries of symmetric matrices, leaving out a sample at a time."""
    left_out = entries.sum((1, 2))[:, None] - 2 * entries.sum(2) + entries.diagonal(dim1=1, dim2=2)
    values = np.array([read(sums) for sums in left_out.mT])
    values = values[np.isfinite(values)]
    return float((len(values) - 1) * np.var(values)) if len(values) > 1 else math.nan


def _ratio(part: Tensor, whole: Tensor, *, root: bool = True) -> Estimate:
    """√(Σ part / Σ whole) over samples, or without the root, with a jackknife interval."""
    a, b = part.double().cpu().numpy(), whole.double().cpu().numpy()

    def read(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        ratio: np.ndarray = np.maximum(x, 0.0) / y
        return ratio**0.5 if root else ratio

    value = float(read(a.sum(), b.sum()))
    left_out = read(a.sum() - a, b.sum() - b)
    half = NORMAL * math.sqrt((len(a) - 1) * float(np.var(left_out)))
    return Estimate(value, max(value - half, 0.0), value + half)
