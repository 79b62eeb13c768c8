r"""Empirical NTK $K_{ij}(x, y) = \nabla_\theta f_i(x)^\top \nabla_\theta f_j(y)$ (paper A, Sec. 2.3) of any module.

For a layer $a = V h$ with backward signal $B_i = \partial f_i / \partial a$, the weight gradient is the outer product
$B_i h^\top$, so the layer adds $(h(x)\cdot h(y))\,(B_i(x)\cdot B_j(y))$ to the kernel: two products of small
matrices, and no Jacobian with its n·c·p entries. `network` makes a function of the module, `recording` watches it,
`planning` chooses a form for every parameter, `tangents` computes it, `contraction` multiplies it, and `blocks` divides
the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypedDict, TypeVar, Unpack

import torch
from torch import Tensor, nn

from kontrast.errors import InputError
from kontrast.kernels.blocks import fill
from kontrast.kernels.mlp_tangents import mlp_plan
from kontrast.kernels.network import (
    Network,
    check_rows,
    network_of,
    refuse_dependent_rows,
    undisturbed,
)
from kontrast.kernels.planning import Kind, Question
from kontrast.kernels.tangents import Plan, RecordedPlan, UnplannedError, jacobian_plan, plan_for
from kontrast.nets import Select

T = TypeVar("T")


class NTKOptions(TypedDict, total=False):
    """The options of all empirical tangent kernels."""

    parameters: Mapping[str, Tensor] | None  # evaluate there, by the module's names, as a trajectory records them
    only: Iterable[str] | None  # restrict the kernel to these parameters, by names or prefixes such as "encoder.0"
    output: Select | None  # which tensor, if the module returns several: a name, a number, or a function of them all
    memory: float | None  # bytes to work in besides the result; by default half of what is free


def empirical_ntk(module: nn.Module, x: Tensor, y: Tensor | None = None, **options: Unpack[NTKOptions]) -> Tensor:
    """The tangent kernel (n, m, c, c) between the rows of `x` and `y` (`y=None`: of `x` with itself).

    Exact for any module whose rows are independent: linear and convolutional layers, biases, normalisations (in eval
    mode) and embeddings go layer by layer, even if a parameter is used several times; the rest goes through per-row
    Jacobians. The parameters are those that train, `requires_grad=True`; tied ones count once.

    Args:
        module: any module with outputs (n, c); it is not changed.
        x: rows (n, …) of floats or, for embeddings, integers.
        y: rows (m, …), or None for the symmetric kernel, which costs half.
        **options: `parameters`, `only` and `memory`, see `NTKOptions`.
    """
    return _kernels(module, x, y, Kind.FULL, **options)[""].permute(0, 2, 1, 3)


def empirical_ntk_trace(module: nn.Module, x: Tensor, y: Tensor | None = None, **options: Unpack[NTKOptions]) -> Tensor:
    """The sum over outputs, not the mean, of `empirical_ntk`'s diagonal blocks: Σ_i K_ii(x, y), shape (n, m).

    The outputs are summed inside the products, so the (n, m, c, c) kernel is never formed. Arguments as there.
    """
    return _kernels(module, x, y, Kind.TRACE, **options)[""]


def empirical_ntk_mean(module: nn.Module, x: Tensor, y: Tensor | None = None, **options: Unpack[NTKOptions]) -> Tensor:
    """`empirical_ntk_trace` divided by the number of outputs: the kernel of an average output, (n, m)."""
    trace = empirical_ntk_trace(module, x, y, **options)
    with torch.no_grad(), undisturbed(module):
        which = options.get("parameters"), options.get("only"), options.get("output")
        network = network_of(module, *which)
        n_outputs = network(check_rows("x", x[:1], network)).shape[1]
    return trace.div_(n_outputs)


def empirical_ntk_diagonal(module: nn.Module, x: Tensor, **options: Unpack[NTKOptions]) -> Tensor:
    """K(x_i, x_i) for every row, (n, c, c), without the rest of the kernel. Arguments as in `empirical_ntk`."""
    return _kernels(module, x, None, Kind.DIAGONAL, **options)[""]


def empirical_ntk_components(
    module: nn.Module, x: Tensor, y: Tensor | None = None, **options: Unpack[NTKOptions]
) -> dict[str, Tensor]:
    """The part of `empirical_ntk` due to each parameter, by name: (n, m, c, c) each; their sum is the kernel."""
    kernels = _kernels(module, x, y, Kind.FULL, True, **options)
    return {name: kernel.permute(0, 2, 1, 3) for name, kernel in kernels.items()}


def _kernels(
    module: nn.Module,
    x: Tensor,
    y: Tensor | None,
    kind: Kind,
    components: bool = False,
    /,
    *,
    memory: float | None = None,
    **options: Any,
) -> dict[str, Tensor]:
    """The kernels by parameter, or their sum under the name ""; the full kernel as (n, c, m, c)."""
    with undisturbed(module):
        network, x, y = prepared(module, x, y, **options)
        question = Question(kind, len(x), len(x if y is None else y), components, symmetric=y is None)
        return filled(network, x, y, question, memory)


def prepared(
    module: nn.Module,
    x: Tensor,
    y: Tensor | None,
    *,
    parameters: Mapping[str, Tensor] | None = None,
    only: Iterable[str] | None = None,
    output: Select | None = None,
) -> tuple[Network, Tensor, Tensor | None]:
    """The module and the rows, checked."""
    network = network_of(module, parameters, only, output)
    return network, check_rows("x", x, network), None if y is None else check_rows("y", y, network)


def filled(
    network: Network,
    x: Tensor,
    y: Tensor | None,
    question: Question,
    memory: float | None,
    directions: Tensor | None = None,
) -> dict[str, Tensor]:
    """The kernels, by the first plan that fits all rows."""
    return by_a_plan(
        lambda plans: fill(plans[0], x, y, question, memory, directions), plans_to_try(network, x, y, question)
    )


def plans_to_try(network: Network, x: Tensor, y: Tensor | None, question: Question) -> Iterator[tuple[Plan, Plan]]:
    """The plan known for this module, a new one, and automatic differentiation alone, which fits all rows."""
    for again in (False, True):
        yield plans_for(network, x, y, question, again=again)
    yield _jacobian_plans(network, x, y)


def by_a_plan(compute: Callable[[tuple[tuple[Plan, Plan], ...]], T], *to_try: Iterator[tuple[Plan, Plan]]) -> T:
    """What `compute` makes of the first plans, one for each network, that hold for all rows.

    A plan fails if the module was changed since it was made, or if its forward pass branches on the rows' values.
    """
    for plans in zip(*to_try, strict=True):
        try:
            return compute(plans)
        except UnplannedError:
            continue
    raise AssertionError("automatic differentiation fits all rows")


def plans_for(
    network: Network, x: Tensor, y: Tensor | None, question: Question, *, again: bool = False
) -> tuple[Plan, Plan]:
    """The plans for the rows of x and for those of y."""
    if network.mlp is not None and not question.gradients:
        plan = mlp_plan(network.mlp, network, question.kind, x=x, y=x if y is None else y)
        return plan, plan
    return _recorded_plans(network, x, y, question, again)


def _recorded_plans(
    network: Network, x: Tensor, y: Tensor | None, question: Question, again: bool
) -> tuple[RecordedPlan, RecordedPlan]:
    refuse_dependent_rows(network, x, "x")
    plan = plan_for(network, two_rows(x, y), question, name="x", again=again)
    if y is not None:
        refuse_dependent_rows(network, y, "y")
    if y is None or _alike(x, y):
        return plan, plan
    # Rows of another shape, for instance sequences of another length: the same forms at other places.
    other = plan_for(network, two_rows(y, None), question, name="y", again=again)
    if other.n_outputs != plan.n_outputs:
        raise InputError(f"x has {plan.n_outputs} outputs but y has {other.n_outputs}; pass rows with equally many")
    mine, its = plan.layout, other.layout
    if (mine.signature, mine.opaque, mine.ends) == (its.signature, its.opaque, its.ends):
        return plan, replace(other, layout=replace(its, groups=mine.groups))
    return _jacobian_plans(network, x, y)


def _jacobian_plans(network: Network, x: Tensor, y: Tensor | None) -> tuple[RecordedPlan, RecordedPlan]:
    plan = jacobian_plan(network, two_rows(x, None), name="x")
    return plan, plan if y is None else jacobian_plan(network, two_rows(y, None), name="y")


def _alike(x: Tensor, y: Tensor) -> bool:
    return x.shape[1:] == y.shape[1:] and x.dtype == y.dtype


def two_rows(x: Tensor, y: Tensor | None) -> Tensor:
    """Two rows to plan with, different ones if there are."""
    if len(x) > 1:
        return x[:2]
    if y is not None and _alike(x, y):
        return torch.cat([x[:1], y[:1]])
    return torch.cat([x, x.roll(1, -1) if x.is_floating_point() and x.ndim > 1 else x])
