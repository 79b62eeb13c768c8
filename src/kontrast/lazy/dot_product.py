r"""The one contrastive training with a closed form: dot product, linear link, fixed kernel (claim A.closed).

With the symmetric pair matrix S the loss is $-\mathrm{Tr}(F^\top S F)$, so $\partial L/\partial F = -2 S F$ and paper
A's Lemma 9 is the linear system $\mathrm{vec}\,\dot F = 2 K (S \otimes I)\,\mathrm{vec}\,F$.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from kontrast import checks
from kontrast.errors import InputError, KontrastError


def dot_product_flow(kernel: Tensor, outputs: Tensor, S: Tensor, *, times: Sequence[float]) -> Tensor:
    r"""Outputs (len(times), m, z) of the flow: $\mathrm{vec}\,F(t) = e^{2tK(S \otimes I)}\,\mathrm{vec}\,F(0)$.

    Args:
        kernel: K, (m, m, z, z), or (m, m) where it acts on every output alike.
        outputs: F(0), (m, z).
        S: the symmetric pair matrix (m, m), dense or sparse (`kontrast.data.pair_matrix`).
        times: finite numbers, in any order.
    """
    if len(times) == 0 or not all(math.isfinite(t) for t in times):
        raise InputError(f"times must be finite numbers, at least one, got {list(times)}")
    system, start = _system(kernel, outputs, S)
    flow = torch.stack([(torch.linalg.matrix_exp(t * system) @ start).view_as(outputs) for t in times])
    return _finite(flow, "times")


def dot_product_descent(
    kernel: Tensor, outputs: Tensor, S: Tensor, *, learning_rate: float, steps: Sequence[int]
) -> Tensor:
    r"""Outputs (len(steps), m, z) of descent: $\mathrm{vec}\,F_t = (I + 2\eta K(S \otimes I))^t\,\mathrm{vec}\,F_0$."""
    checks.require_positive(learning_rate=learning_rate)
    if len(steps) == 0:
        raise InputError("steps is empty; pass at least one step")
    steps = [checks.require_whole("every one of steps", step, least=0) for step in steps]
    system, start = _system(kernel, outputs, S)
    step_matrix = torch.eye(len(system), dtype=system.dtype, device=system.device) + learning_rate * system
    descent = torch.stack([(torch.linalg.matrix_power(step_matrix, t) @ start).view_as(outputs) for t in steps])
    return _finite(descent, "steps")


def _system(kernel: Tensor, outputs: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """2K(S ⊗ I) and F(0) in the shape it acts on: (mz, mz) on a vector, or (m, m) on the columns of F."""
    checks.require_matrix("outputs", outputs, ("m", "z"))
    checks.require_finite("kernel", kernel)
    m, z = outputs.shape
    checks.require_shape("S", S, (m, m), "one row per row of outputs")
    checks.require_same_dtype(outputs=outputs, kernel=kernel, S=S)
    pairs = S if S.layout == torch.strided else S.to_dense()
    if not torch.allclose(pairs, pairs.mT):
        raise InputError("S must be symmetric; use pair_matrix(pairs) without symmetric=False")
    if kernel.shape == (m, m):
        return 2 * kernel @ pairs, outputs
    if kernel.shape == (m, m, z, z):
        # (K (S ⊗ I))_(x i)(y j) = Σ_u K_ij(x, u) S_uy
        product = torch.einsum("xuij,uy->xiyj", kernel, pairs)
        return 2 * product.reshape(m * z, m * z), outputs.reshape(-1)
    raise InputError(
        f"kernel must be {(m, m)} or {(m, m, z, z)} for outputs of shape {(m, z)}, got {tuple(kernel.shape)}"
    )


def _finite(outputs: Tensor, what: str) -> Tensor:
    if not bool(torch.isfinite(outputs).all()):
        raise KontrastError(f"the outputs overflow, as they must under the dot product; ask for earlier {what}")
    return outputs
