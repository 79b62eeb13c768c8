"""Any `nn.Module` as a pure function of its parameters, and its linearisation around a parameter point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp

from kontrast.errors import InputError
from kontrast.nets.mlp import MLP, hidden_activations
from kontrast.nets.states import at_point, require_statistics, statistics_of

Parameters = dict[str, Tensor]
PureFunction = Callable[[Mapping[str, Tensor], Tensor], Tensor]
Select = str | int | Callable[[Any], Tensor]  # a name, a number or a function of what a module returns


def parameters_of(module: nn.Module) -> Parameters:
    """A detached copy of the module's parameters by name; changing it does not change the module."""
    parameters = {name: p.detach().clone() for name, p in module.named_parameters()}
    if not parameters:
        raise InputError(f"{type(module).__name__} has no parameters, so there is nothing to train or linearise")
    return parameters


def require_deterministic(module: nn.Module) -> None:
    """Refuse a module whose outputs depend on chance, or on the rest of the batch."""
    for name, part in module.named_modules():
        random = isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0
        if part.training and (random or isinstance(part, nn.modules.batchnorm._BatchNorm)):
            raise InputError(
                f"{name or type(part).__name__} is a {type(part).__name__} in train mode, whose output depends on "
                f"chance or on the rest of the batch; call module.eval() first"
            )


def pure_function(
    module: nn.Module,
    *,
    buffers: Mapping[str, Tensor] | None = None,
    select: Callable[[Any], Tensor] | None = None,
) -> PureFunction:
    """f(parameters, x) for any module; its buffers, such as running statistics, are copied now and never change.

    `buffers` stand in for the module's own; `select` makes a tensor of what the module returns. Given a whole
    state_dict in place of parameters, f takes the buffers from there.
    """
    if select is None and _is_plain_mlp(module):
        return module.at  # without functional_call's 20 µs, a tenth of a small net's step
    buffers = dict(module.named_buffers()) if buffers is None else buffers
    return ModuleFunction(module, {name: b.detach().clone() for name, b in buffers.items()}, select)


def function_at(
    module: nn.Module, state: Mapping[str, Tensor] | None = None, name: str = "parameters"
) -> tuple[PureFunction, Parameters]:
    """f(parameters, x) with the buffers of the point `state`, and the parameters there, as copies.

    `state` is a whole state_dict, or the parameters alone of a module without running statistics; by default the module
    as it is now. `name` is what messages call it.
    """
    if state is None:
        return pure_function(module), parameters_of(module)
    parameters_of(module)  # refuses a module that has none
    parameters, buffers = at_point(module, state, name)
    copies = {it: p.detach().clone() for it, p in parameters.items()}
    return pure_function(module, buffers=buffers), copies


class ModuleFunction:
    """f(parameters, x) of a module with fixed buffers, as `pure_function` makes it."""

    def __init__(
        self, module: nn.Module, buffers: Mapping[str, Tensor], select: Callable[[Any], Tensor] | None
    ) -> None:
        self.module, self.buffers, self.select = module, buffers, select
        self.statistics = statistics_of(module)
        # Looking for tied weights costs 30 µs per call, so it is done once here, and skipped for a net that has none.
        first, every = (dict(module.named_parameters(remove_duplicate=once)) for once in (True, False))
        self.second_names = every.keys() - first.keys()

    def __call__(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """The module's output, as a tensor."""
        # Fresh buffer copies: a module in train mode writes to its buffers, which would make this function impure.
        state = {**parameters, **{name: parameters.get(name, b).clone() for name, b in self.buffers.items()}}
        for name in self.second_names:
            state.pop(name, None)  # a state_dict has a tied weight under each of its names
        given = [name for name in self.statistics if name in parameters]
        if given and len(given) < len(self.statistics):
            require_statistics("parameters", self.module, parameters)
        output = functional_call(self.module, state, (x,), tie_weights=bool(self.second_names))
        output = output if self.select is None else self.select(output)
        if not isinstance(output, Tensor):
            raise InputError(f"{type(self.module).__name__} must return one tensor, got {type(output).__name__}")
        return output

    def holding(self, buffers: Mapping[str, Tensor]) -> ModuleFunction:
        """The same function with these buffers in place of its own."""
        require_statistics("parameters", self.module, buffers)
        copies = {name: buffers.get(name, b).detach().clone() for name, b in self.buffers.items()}
        return ModuleFunction(self.module, copies, self.select)


def _is_plain_mlp(module: nn.Module) -> TypeGuard[MLP]:
    """Whether it is an `MLP`, and not a subclass with a forward pass of its own."""
    return isinstance(module, MLP) and type(module).forward is MLP.forward and type(module).at is MLP.at


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside `torch.compile`, `DataParallel` and `DistributedDataParallel`."""
    while True:
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            module = module.module
        elif isinstance(inner := getattr(module, "_orig_mod", None), nn.Module):
            module = inner
        else:
            return module


def select_output(result: Any, output: Select | None, module: nn.Module, *, argument: str = "output") -> Tensor:
    """The tensor that `output` names in what the module returned; `argument` is what messages call it."""
    what = type(module).__name__
    try:
        if callable(output):
            result = output(result)
        elif isinstance(output, str) and not isinstance(result, Mapping):
            result = getattr(result, output)
        elif output is not None:
            result = result[output]
    except (KeyError, IndexError, AttributeError, TypeError) as error:
        raise InputError(
            f"{what} returns {_contents(result)}, which has no {argument}={output!r}; name one it has, or pass a "
            "function"
        ) from error
    if isinstance(result, Tensor):
        return result
    said = "" if output is None else f" at {argument}={output!r}"
    raise InputError(
        f"{what} must return one tensor, got {_contents(result)}{said}; choose one with {argument}=, a name, a number "
        "or a function of what the module returns"
    )


def _contents(result: Any) -> str:
    """The kind of a result and the names or number of its parts."""
    kind = type(result).__name__
    if isinstance(result, Mapping):
        return f"{kind} with {sorted(map(str, result))}"
    return f"{kind} of {len(result)}" if isinstance(result, list | tuple) else kind


@dataclass(frozen=True, eq=False)
class Linearized:
    r"""$f_{lin}(x; \theta) = f(x; \theta_0) + J(x)(\theta - \theta_0)$, a pure function like the one it linearises.

    It has its own parameters, which start at $\theta_0$, so that it is trained by the same descent as the network; its
    tangent kernel is $J J^\top$ at $\theta_0$ at all times (paper D, Sec. on linearised networks; paper A, Lemma 9).
    Buffers, such as running statistics, are those of the origin and never change; others are refused.
    """

    function: PureFunction
    origin: Parameters
    buffers: Parameters = field(default_factory=dict)

    @classmethod
    def of(cls, module: nn.Module, parameters: Mapping[str, Tensor] | None = None) -> Linearized:
        """The linearisation of a module around the parameters it has now, or around another point.

        `parameters` is a whole state_dict(), or the parameters alone of a module without running statistics.
        """
        function, origin = function_at(module, parameters)
        return cls(function, origin, dict(getattr(function, "buffers", {})))

    def __call__(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """f_lin(x; parameters), by one forward-mode derivative."""
        value, slope = self._jvp(x, self._step(parameters))
        return value + slope

    def change(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """f_lin(x; parameters) − f(x; θ_0), without the digits that a difference of the two would lose."""
        return self._jvp(x, self._step(parameters))[1]

    def kernel_product(self, x: Tensor, cotangent: Tensor) -> Tensor:
        """K v = J (J^T v) at the origin for v of the shape of f(x), without forming J or K."""
        _, pullback = vjp(lambda p: self.function(p, x.clone()), self.origin)  # type: ignore[misc]
        (direction,) = pullback(cotangent)
        return self._jvp(x, direction)[1]

    def holding(self, buffers: Mapping[str, Tensor]) -> Linearized:
        """The same, if these buffers are the origin's; refuses others."""
        for name, b in self.buffers.items():
            if b.is_floating_point() and name in buffers and not torch.equal(buffers[name].detach().to(b), b):
                raise InputError(
                    f"parameters hold another {name} than the point of linearisation, which keeps its own; pass the "
                    "parameters alone, {name: state[name] for name in linearized.origin}"
                )
        return self

    def _step(self, parameters: Mapping[str, Tensor]) -> Parameters:
        self.holding(parameters)
        return {name: parameters[name] - origin for name, origin in self.origin.items()}

    def _jvp(self, x: Tensor, direction: Parameters) -> tuple[Tensor, Tensor]:
        # A copy, made inside: a first layer that works in place would change a captured tensor, which jvp refuses.
        # torch's stub lists the triple that has_aux=True would return.
        value, slope = jvp(lambda p: self.function(p, x.clone()), (self.origin,), (direction,))  # type: ignore[misc]
        return value, slope


def last_features(module: nn.Module) -> PureFunction:
    """What enters the module's last linear layer, φ(parameters, x) as rows; its outputs where it has none.

    Last is the one that runs last, whatever the order in which the layers were made.
    """
    if isinstance(module, MLP):
        *scales, _ = module.scales

        def hidden(parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
            return hidden_activations(x.flatten(1), module.layers(parameters)[0], scales, module.activation)

        return hidden
    function = pure_function(module)
    linear = [part for part in module.modules() if isinstance(part, nn.Linear)]

    def features(parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        seen: list[Tensor] = []
        hooks = [part.register_forward_pre_hook(lambda _, given: seen.append(given[0])) for part in linear]
        try:
            outputs = function(parameters, x)
        finally:
            for hook in hooks:
                hook.remove()
        last = seen[-1] if seen and seen[-1].ndim == 2 and len(seen[-1]) == len(x) else outputs
        return last.flatten(1)

    return features
