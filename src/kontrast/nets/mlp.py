"""The papers' fully connected network without biases, in four parametrisations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from kontrast.checks import require_choice, require_whole, resolve_device, resolve_dtype, resolve_generator
from kontrast.errors import InputError
from kontrast.linalg import qr_retraction
from kontrast.nets.activations import Activation, activation_from

PARAMETRIZATIONS = ("ntk", "standard", "orthogonal", "mup")


class MLP(nn.Module):
    r"""$f(x) = s\,W^\top \phi(V_L \cdots \phi(V_1 x))$ with `depth` hidden layers of `width` units.

    Shapes are the papers': every hidden $V$ is (out, in), the output $W$ is (width, d_out), so that `depth=1` is paper
    A's (2) and paper B's $u(x) = W_2^\top \phi(W_1 x)$, and an orthonormal layer has orthonormal columns.

    * "ntk": all entries N(0, 1); every layer but the first is divided by √width.
    * "standard": entries N(0, 1/fan_in), no factors.
    * "orthogonal": Haar-distributed semi-orthogonal layers, no factors (paper B); the output has orthonormal columns,
      a hidden layer orthonormal columns, or rows where it is wider than tall.
    * "mup": entries N(0, 1/width); the first layer is multiplied by √width, the output divided by √width (maximal
      update: Yang and Hu 2021, the abc-parametrisation with c = 0). At one learning rate the features move by O(1) at
      every width, where those of "ntk" move by O(1/√width).

    From one generator the features and the tangent kernel of "mup" at the start are those of "ntk", and its outputs are
    those over √width. Training it at the rate η is training the "ntk" net over √width at the rate η · width.

    Numbers are drawn in float64 on the CPU from `generator` and then rounded, so a net is the same on every device and,
    to rounding, in every number type. Without a generator the seed is 0: the same call gives the same net.
    """

    def __init__(
        self,
        d_in: int,
        width: int,
        d_out: int,
        *,
        depth: int = 1,
        activation: str | Activation = "relu",
        parametrization: str = "ntk",
        generator: torch.Generator | None = None,
        dtype: torch.dtype | str = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        d_in, width, d_out, depth = check_shape(d_in, width, d_out, depth=depth, parametrization=parametrization)
        self.d_in, self.width, self.d_out, self.depth = d_in, width, d_out, depth
        self.activation = activation_from(activation)
        self.parametrization = parametrization
        generator, device, dtype = resolve_generator(generator), resolve_device(device), resolve_dtype(dtype)

        def draw(n_out: int, n_in: int, fan_in: int) -> nn.Parameter:
            gaussian = torch.randn(n_out, n_in, generator=generator, dtype=torch.float64, device=generator.device)
            if parametrization == "standard":
                gaussian /= math.sqrt(fan_in)
            elif parametrization == "mup":
                gaussian /= math.sqrt(width)
            elif parametrization == "orthogonal":
                gaussian = qr_retraction(gaussian) if n_out >= n_in else qr_retraction(gaussian.mT).mT
            return nn.Parameter(gaussian.to(device=device, dtype=dtype).contiguous())

        fan_ins = [d_in] + [width] * (depth - 1)
        self.hidden = nn.ParameterList([draw(width, fan_in, fan_in) for fan_in in fan_ins])
        self.output = draw(width, d_out, width)

    @property
    def scales(self) -> list[float]:
        """The factor in front of each layer, the output's last."""
        root = math.sqrt(self.width)
        if self.parametrization == "mup":
            return [root] + [1.0] * (self.depth - 1) + [1 / root]
        return [1.0] + [1 / root if self.parametrization == "ntk" else 1.0] * self.depth

    def forward(self, x: Tensor) -> Tensor:
        """(n, d_in) → (n, d_out); images are flattened."""
        return self._evaluate(x, list(self.hidden), self.output)

    def at(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """f(x) with other parameters than the net's own, by the net's names; the net is not changed."""
        return self._evaluate(x, *self.layers(parameters))

    def _evaluate(self, x: Tensor, V: Sequence[Tensor], W: Tensor) -> Tensor:
        self.check_rows(x)
        *hidden_scales, scale = self.scales
        out = hidden_activations(x.flatten(1), V, hidden_scales, self.activation) @ W
        return out if scale == 1.0 else scale * out

    def check_rows(self, x: Tensor) -> None:
        """Refuse inputs of another size or number type than the net's, before torch complains of mat1 and mat2."""
        if x.ndim < 2 or math.prod(x.shape[1:]) != self.d_in or x.dtype != self.output.dtype:
            raise InputError(
                f"this net takes rows (n, {self.d_in}) of {self.output.dtype}, or images of that many pixels, got "
                f"{tuple(x.shape)} of {x.dtype}"
            )

    def layers(self, parameters: Mapping[str, Tensor] | None = None) -> tuple[list[Tensor], Tensor]:
        """The hidden matrices [V_1, …, V_L] and W, of this net or of other `parameters` by this net's names."""
        if parameters is None:
            return [V.detach() for V in self.hidden], self.output.detach()
        names = [*(f"hidden.{i}" for i in range(self.depth)), "output"]
        if not set(names) <= parameters.keys():
            raise InputError(f"the net's parameters are {names}, got {list(parameters)}")
        *hidden, output = (parameters[name] for name in names)
        return hidden, output

    def extra_repr(self) -> str:
        """The sizes, the activation and the parametrisation, for `print(net)`."""
        return (
            f"{self.d_in} → {self.depth} × {self.width} → {self.d_out}, {self.activation.name}, {self.parametrization}"
        )


def hidden_activations(x: Tensor, V: Sequence[Tensor], scales: Sequence[float], activation: Activation) -> Tensor:
    """φ(s_L V_L … φ(s_1 V_1 x)) of rows x (n, d)."""
    h = x
    for factor, V_l in zip(scales, V, strict=True):
        a = h @ V_l.mT
        h = activation(a if factor == 1.0 else factor * a)
    return h


def check_shape(d_in: int, width: int, d_out: int, *, depth: int, parametrization: str) -> tuple[int, int, int, int]:
    """The sizes d_in, width, d_out and depth as ints; refuses those that no `MLP` can have, without building it."""
    d_in, width, d_out, depth = (
        require_whole(name, size)
        for name, size in (("d_in", d_in), ("width", width), ("d_out", d_out), ("depth", depth))
    )
    require_choice("parametrization", parametrization, PARAMETRIZATIONS)
    if parametrization == "orthogonal" and width < d_out:
        raise InputError(
            f"an orthogonal net needs width >= d_out, got width {width} < {d_out}; raise the width or lower d_out"
        )
    return d_in, width, d_out, depth
