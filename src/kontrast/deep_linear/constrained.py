r"""Paper B, Prop. 2 and 3: the loss (4) of a two-layer linear network under constraints, solved and descended.

$\mathcal L = \mathrm{Tr}(W_2^\top W_1 C W_1^\top W_2)$ with W₁ (h, d), W₂ (h, z) and the `data_matrix` C. Without a
constraint it has no minimum. A bound on Frobenius norms leaves one direction (Prop. 2); bounds on operator norms or
orthonormal columns keep as many as C has to give (Prop. 3).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from kontrast.checks import require_choice, require_generator, require_positive, require_whole
from kontrast.dynamics import Step, Trajectory, gradient_descent, trace_problem
from kontrast.errors import InputError
from kontrast.linalg import as_symmetric, fix_signs, frobenius_ball, operator_ball, polar_step, random_frame
from kontrast.nets import Parameters, PureFunction

Constraint = Literal["scaled", "operator", "product", "orthonormal", "frobenius"]
Projection = Callable[[Tensor], Tensor]
BOUNDED = ("operator", "frobenius")  # the problems with constants c₁ and c₂


@dataclass(frozen=True, eq=False)
class ConstrainedOptimum:
    """The least loss under a constraint, and weights that keep the constraint and reach it."""

    value: float
    W1: Tensor  # (h, d)
    W2: Tensor  # (h, z)
    rank: int  # of W₂^T W₁: the dimensions that do not collapse
    note: str  # how the width, or a C without negative eigenvalues, changed the answer; "" where it did not


def constrained_optimum(
    C: Tensor,
    n_outputs: int,
    *,
    width: int,
    constraint: Constraint,
    bounds: tuple[float, float] = (1.0, 1.0),
    symmetrize: bool = False,
) -> ConstrainedOptimum:
    r"""The optimum of Prop. 2 or 3 in closed form, from the eigenvalues λ₁ ≤ λ₂ ≤ … of C.

    - "scaled" (1): minimise L/(‖W₁‖₂²‖W₂‖₂²); "operator" (2): L under ‖W₁‖₂ ≤ c₁, ‖W₂‖₂ ≤ c₂; "product" (3): L under
      ‖W₂^T W₁‖₂ ≤ 1. All reach the sum of the k most negative eigenvalues, k = min(z, number of negative ones, h)
      (times c₁²c₂²).
    - "orthonormal" (4): L under W₁^T W₁ = I, W₂^T W₂ = I reaches the sum of the p **smallest** eigenvalues,
      p = max(k, z + d − h); p − k of them are not negative. It equals the other problems only for h ≥ d + z − k, a
      condition that the paper leaves out (B.prop3). Proof: the columns of W₁ and W₂ span spaces of d and z dimensions
      in ℝ^h, which share at least z + d − h, so that many singular values of W = W₂^T W₁ are 1, and the others lie in
      [0, 1]. L is Tr(C W^T W), at least Σ σ_i² λ_i over descending σ, which is least for σ = 1 on p values and 0 on
      the rest; the d + z − p ≤ h dimensions of the weights returned allow that.
    - "frobenius" (Prop. 2): L under ‖W₁‖_F ≤ c₁, ‖W₂‖_F ≤ c₂ reaches c₁²c₂²λ₁, or 0 if λ₁ ≥ 0, with rank one.

    C (d, d) is the data matrix; one that is not symmetric is refused unless `symmetrize` takes (C + C^T)/2. z is
    `n_outputs`, from 1 to d, and h is `width`, at least d for "orthonormal". `bounds` are c₁ and c₂.
    """
    z, h = require_whole("n_outputs", n_outputs), require_whole("width", width)
    matrix = _checked(C, z, h, constraint, bounds, symmetrize)
    d = len(matrix)
    values, Q = torch.linalg.eigh(matrix)
    Q = fix_signs(Q)
    n_negative = int((values < -d * torch.finfo(C.dtype).eps * float(values.abs().max())).sum())
    if constraint == "scaled" and n_negative == 0:
        raise InputError(
            "C has no negative eigenvalue, which Prop. 3 assumes: the scaled loss is then smallest for outputs as near "
            "zero as the width allows; pass -C if C has the wrong sign, or use constraint='operator'"
        )
    k = min(n_negative, h, 1 if constraint == "frobenius" else z)
    p = max(k, z + d - h) if constraint == "orthonormal" else k
    W1, W2 = matrix.new_zeros(h, d), matrix.new_zeros(h, z)
    shared = torch.arange(p, device=matrix.device)
    W1[:p] = Q[:, :p].mT
    W2[shared, shared] = 1.0
    if constraint == "orthonormal":  # the rest of both frames, in dimensions of their own
        W1[:d] = Q.mT
        rest = torch.arange(z - p, device=matrix.device)
        W2[d + rest, p + rest] = 1.0
    c1, c2 = (float(bound) for bound in bounds)
    return ConstrainedOptimum(
        value=float(values[:p].sum()) * (c1 * c2) ** 2,
        W1=(c1 * W1).to(C.dtype),
        W2=(c2 * W2).to(C.dtype),
        rank=p,
        note=_note(constraint, k=k, p=p, z=z, d=d, h=h, n_negative=n_negative, worse=float(values[k:p].sum())),
    )


def constrained_descent(
    C: Tensor,
    n_outputs: int,
    *,
    width: int,
    constraint: Constraint,
    learning_rate: float,
    n_steps: int,
    generator: torch.Generator,
    bounds: tuple[float, float] = (1.0, 1.0),
    record_at: Collection[int] | None = None,
    symmetrize: bool = False,
) -> Trajectory:
    r"""The problems of `constrained_optimum` by gradient descent from random weights, without the closed form.

    - "scaled" is unconstrained descent on L/(‖W₁‖₂²‖W₂‖₂²). Its minimum has equal top singular values and therefore a
      kink, around which a constant rate oscillates (by a few percent of the loss). So the rate falls linearly from η to
      0 over `n_steps`.
    - "operator" and "frobenius" step and project on the ball, "product" does so with W = W₂^T W₁ (z, d) itself, of
      rank at most h, and "orthonormal" takes polar steps.
    - Below h = d "operator" and "scaled" have local minima: W₂ switches off hidden directions whose x^T C x is
      positive, and these never turn.

    The inputs are the eigenvectors of C, λ ascending, so the outputs are q (d, z) and the loss is $\sum_i \lambda_i
    \lVert q_i \rVert^2$. Parameters are "W1" and "W2", or "W"; they and the outputs are kept at the steps recorded.
    The loss has curvatures up to twice the largest |λ|, which limits η. `generator` draws the start; the other
    arguments are those of `constrained_optimum` and of `gradient_descent`.
    """
    n_outputs, width = require_whole("n_outputs", n_outputs), require_whole("width", width)
    matrix = _checked(C, n_outputs, width, constraint, bounds, symmetrize)
    require_generator(generator)
    values, Q = torch.linalg.eigh(matrix)
    problem = trace_problem(values, fix_signs(Q))
    balls = _balls(constraint, bounds, width)
    start = _start(constraint, (width, len(matrix)), (width, n_outputs), generator, matrix.device)
    return gradient_descent(
        _network(constraint),
        {name: balls[name](weight) if name in balls else weight for name, weight in start.items()},
        problem,
        learning_rate=learning_rate,
        n_steps=n_steps,
        record_at=record_at,
        keep_outputs=True,
        keep_parameters=True,
        steps={name: _step(constraint, balls.get(name), n_steps, matrix.device) for name in start},
    )


def _network(constraint: Constraint) -> PureFunction:
    def function(parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        if constraint == "product":
            return x @ parameters["W"].mT
        W1, W2 = parameters["W1"], parameters["W2"]
        outputs = x @ W1.mT @ W2
        if constraint == "scaled":  # the loss is quadratic in the outputs, so these are divided by the norms themselves
            outputs = outputs / (torch.linalg.matrix_norm(W1, ord=2) * torch.linalg.matrix_norm(W2, ord=2))
        return outputs

    return function


def _balls(constraint: Constraint, bounds: tuple[float, float], width: int) -> dict[str, Projection]:
    """The projections on the balls of the problems that have any, by parameter."""
    if constraint == "product":
        return {"W": lambda W: operator_ball(_of_rank(W, width))}
    ball = {"operator": operator_ball, "frobenius": frobenius_ball}.get(constraint)
    if ball is None:
        return {}
    c1, c2 = bounds
    return {"W1": lambda W: ball(W, c1), "W2": lambda W: ball(W, c2)}


def _step(constraint: Constraint, ball: Projection | None, n_steps: int, device: torch.device) -> Step:
    if constraint == "orthonormal":
        return polar_step
    # A tensor, so that a step replayed on a GPU advances it too.
    clock = torch.zeros((), dtype=torch.float64, device=device)

    def step(parameter: Tensor, gradient: Tensor, /, *, learning_rate: float) -> Tensor:
        if ball is not None:
            return ball(parameter - learning_rate * gradient)
        share = (1 - clock / n_steps).clamp(min=0)
        clock.add_(1)
        return parameter - learning_rate * share * gradient

    return step


def _of_rank(matrix: Tensor, rank: int) -> Tensor:
    """The nearest matrix of that rank."""
    if rank >= min(matrix.shape):
        return matrix
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    return torch.matmul(u[:, :rank] * s[:rank], vh[:rank])


def _start(
    constraint: Constraint,
    shape1: tuple[int, int],
    shape2: tuple[int, int],
    generator: torch.Generator,
    device: torch.device,
) -> Parameters:
    """Random weights, orthonormal where they must be, else Gaussian of norm about 1; W₂^T W₁ for "product"."""
    if constraint == "orthonormal":
        W1, W2 = (random_frame(*shape, generator=generator) for shape in (shape1, shape2))
    else:
        W1, W2 = (
            torch.randn(*shape, generator=generator, dtype=torch.float64, device=generator.device) / max(shape) ** 0.5
            for shape in (shape1, shape2)
        )
    weights = {"W": W2.mT @ W1} if constraint == "product" else {"W1": W1, "W2": W2}
    return {name: weight.to(device) for name, weight in weights.items()}


def _checked(
    C: Tensor, n_outputs: int, width: int, constraint: str, bounds: tuple[float, float], symmetrize: bool
) -> Tensor:
    require_choice("constraint", constraint, get_args(Constraint))
    matrix = as_symmetric(C, "C", symmetrize=symmetrize)
    d = len(matrix)
    if n_outputs > d:
        raise InputError(f"n_outputs must be from 1 to the {d} dimensions of C, got {n_outputs}; lower it to {d}")
    if width < d and constraint == "orthonormal":
        raise InputError(
            f"W1 (h, {d}) cannot have orthonormal columns at width h = {width}; pass a width of at least {d}; from "
            f"{d + n_outputs} on it makes no difference"
        )
    _check_bounds(bounds, constraint, C.dtype, size=d, largest=float(matrix.abs().max()))
    return matrix


def _check_bounds(
    bounds: tuple[float, float], constraint: str, dtype: torch.dtype, *, size: int, largest: float
) -> None:
    """Refuse bounds that are not two positive numbers, or that take weights or loss out of the range of floats."""
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise InputError(f"bounds must be two numbers, for W1 and W2, got {bounds}; pass a pair such as (1.0, 2.0)")
    require_positive(**{f"bounds[{i}]": bound for i, bound in enumerate(bounds)})
    c1, c2 = (float(bound) for bound in bounds)
    if constraint not in BOUNDED and (c1, c2) != (1.0, 1.0):
        raise InputError(
            f"bounds are for {' and '.join(BOUNDED)}, not for {constraint!r}, got {bounds}; leave them out"
        )
    weights, losses = torch.finfo(dtype), torch.finfo(torch.float64)
    scale = (c1 * c2) * (c1 * c2)  # ** would raise where this is infinite
    held = weights.tiny <= min(c1, c2) and max(c1, c2) <= weights.max and losses.tiny <= scale
    if not held or scale * max(1.0, size * size * largest) > losses.max:  # a bound on the sum of all |λ|
        raise InputError(
            f"bounds {bounds} and a C with entries up to {largest:.3g} make weights or a loss beyond the range of "
            f"{dtype} or float64; take bounds closer to 1, or divide C"
        )


def _note(constraint: str, *, k: int, p: int, z: int, d: int, h: int, n_negative: int, worse: float) -> str:
    if constraint == "orthonormal" and p > k:
        return (
            f"the width {h} is below d + z - k = {d + z - k}, so {p - k} directions with eigenvalues that are not "
            f"negative cannot be dropped, and the loss is {worse:.6g} above that of problems 1 to 3"
        )
    if constraint not in ("orthonormal", "frobenius") and h < min(z, n_negative):
        return f"the width {h} is below min(z, negative eigenvalues) = {min(z, n_negative)} and limits the rank"
    if k == 0:
        return "C has no negative eigenvalue: the best outputs are zero"
    return ""
