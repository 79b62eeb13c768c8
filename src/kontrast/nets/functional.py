"""Any `nn.Module` as a pure function of its parameters, and its linearisation around a parameter point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp

from kontrast.errors import InputError
from kontrast.nets.mlp import MLP

Parameters = dict[str, Tensor]
PureFunction = Callable[[Mapping[str, Tensor], Tensor], Tensor]


def parameters_of(module: nn.Module) -> Parameters:
    """A detached copy of the module's parameters by name; changing it does not change the module."""
    parameters = {name: p.detach().clone() for name, p in module.named_parameters()}
    if not parameters:
        raise InputError(f"{type(module).__name__} has no parameters, so there is nothing to train or linearise")
    return parameters


def pure_function(module: nn.Module) -> PureFunction:
    """f(parameters, x) for any module; its buffers, such as running statistics, are copied now and never change."""
    if isinstance(module, MLP):
        return module.at  # without functional_call's 20 µs, a tenth of a small net's step
    buffers = {name: b.detach().clone() for name, b in module.named_buffers()}
    # Looking for tied weights costs 30 µs per call, so it is done once here, and skipped for a net that has none.
    tied = len(list(module.named_parameters())) < len(list(module.named_parameters(remove_duplicate=False)))

    def function(parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        # Fresh buffer copies: a module in train mode writes to its buffers, which would make this function impure.
        state = {**parameters, **{name: b.clone() for name, b in buffers.items()}}
        output = functional_call(module, state, (x,), tie_weights=tied)
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
        step = {name: parameters[name] - origin for name, origin in self.origin.items()}
        value, slope = self._jvp(x, step)
        return value + slope

    def kernel_product(self, x: Tensor, cotangent: Tensor) -> Tensor:
        """K v = J (J^T v) at the origin for v of the shape of f(x), without forming J or K."""
        _, pullback = vjp(lambda p: self.function(p, x.clone()), self.origin)  # type: ignore[misc]
        (direction,) = pullback(cotangent)
        return self._jvp(x, direction)[1]

    def _jvp(self, x: Tensor, direction: Parameters) -> tuple[Tensor, Tensor]:
        # A copy, made inside: a first layer that works in place would change a captured tensor, which jvp refuses.
        # torch's stub lists the triple that has_aux=True would return.
        value, slope = jvp(lambda p: self.function(p, x.clone()), (self.origin,), (direction,))  # type: ignore[misc]
        return value, slope
