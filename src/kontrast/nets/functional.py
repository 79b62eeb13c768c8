"""Any `nn.Module` as a pure function of its parameters, and its linearisation around a parameter point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp

from kontrast.errors import InputError
from kontrast.nets.mlp import MLP, hidden_activations

Parameters = dict[str, Tensor]
PureFunction = Callable[[Mapping[str, Tensor], Tensor], Tensor]


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

    `buffers` stand in for the module's own; `select` makes a tensor of what the module returns.
    """
    if isinstance(module, MLP):
        return module.at  # without functional_call's 20 µs, a tenth of a small net's step
    buffers = {
        name: b.detach().clone() for name, b in (dict(module.named_buffers()) if buffers is None else buffers).items()
    }
    # Looking for tied weights costs 30 µs per call, so it is done once here, and skipped for a net that has none.
    tied = len(list(module.named_parameters())) < len(list(module.named_parameters(remove_duplicate=False)))

    def function(parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        # Fresh buffer copies: a module in train mode writes to its buffers, which would make this function impure.
        state = {**parameters, **{name: b.clone() for name, b in buffers.items()}}
        output = functional_call(module, state, (x,), tie_weights=tied)
        output = output if select is None else select(output)
        if not isinstance(output, Tensor):
            raise InputError(f"{type(module).__name__} must return one tensor, got {type(output).__name__}")
        return output

    return function


@dataclass(frozen=True, eq=False)
class Linearized:
    r"""$f_{lin}(x; \theta) = f(x; \theta_0) + J(x)(\theta - \theta_0)$, a pure function like the one it linearises.

    It has its own parameters, which start at $\theta_0$, so that it is trained by the same descent as the network; its
    tangent kernel is $J J^\top$ at $\theta_0$ at all times (paper D, Sec. on linearised networks; paper A, Lemma 9).
    """

    function: PureFunction
    origin: Parameters

    @classmethod
    def of(cls, module: nn.Module) -> Linearized:
        """The linearisation of a module around the parameters it has now."""
        return cls(pure_function(module), parameters_of(module))

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

    def _step(self, parameters: Mapping[str, Tensor]) -> Parameters:
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
