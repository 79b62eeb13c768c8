"""The norm of the second derivative of a network's outputs in its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import grad, jvp, vmap

from kontrast import checks
from kontrast.errors import InputError
from kontrast.linalg import spectral_norm
from kontrast.memory import rows_that_fit
from kontrast.nets.functional import Parameters, PureFunction, function_at, require_deterministic
from kontrast.nets.mlp import MLP


@dataclass(frozen=True, eq=False)
class HessianNorms:
    """‖H^(z)(x)‖₂ for each sample and output, with the relative residual of the eigenpair each was read from."""

    norms: Tensor  # (n, c); (n, 1) where one output was asked for
    residuals: Tensor  # the same shape


def hessian_norm(
    module: nn.Module,
    x: Tensor,
    *,
    parameters: Mapping[str, Tensor] | None = None,
    output: int | None = None,
    tolerance: float | None = None,
    generator: torch.Generator | None = None,
) -> HessianNorms:
    r"""The spectral norm of $H^{(z)}(x) = \nabla^2_\theta f_z(x; \theta)$ for every sample and output, by Lanczos.

    For any module with outputs (n, c); both ends of the spectrum are searched. Each (sample,
    output) is one Lanczos run of some tens of Hessian-vector products on blocks of two; `two_layer_hessian_norm` is
    exact and far faster where it applies. At a kink (ReLU) automatic differentiation takes φ'' = 0: the result is then
    the norm of the Hessian that exists almost everywhere, and no bound on how fast the gradient can change.

    All parameters count, frozen ones too, while `kernels.empirical_ntk` leaves those out.

    Args:
        module: Any module in evaluation mode, or without dropout and batch normalisation.
        x: (n, …).
        parameters: Another point than the module's own: a whole state_dict(), or the parameters alone of a module
            without running statistics.
        output: One output instead of all; the result is then (n, 1).
        tolerance: Of the eigenpair's residual, relative to the norm; 1e-10 in float64, 1e-5 in float32.
        generator: Draws the start blocks; seed 0 by default.

    Raises:
        ConvergenceError: A residual stayed above the tolerance.
    """
    checks.require_type("module", module, nn.Module)
    require_deterministic(module)
    checks.require_floating("x", x)
    checks.require_finite("x", x, "leave those rows out")
    f, point = function_at(module, parameters)
    try:
        with torch.no_grad():
            outputs = f(point, x)
    except (RuntimeError, ValueError, IndexError) as error:
        raise InputError(
            f"{type(module).__name__} cannot be evaluated on x, {tuple(x.shape)} of {x.dtype}: "
            f"{str(error).splitlines()[0]}; give rows that it takes"
        ) from error
    if outputs.ndim != 2 or 0 in outputs.shape:
        raise InputError(f"the network must map x to outputs (n, c), not empty, got {tuple(outputs.shape)}")
    last = outputs.shape[1] - 1
    which = range(last + 1) if output is None else [checks.require_whole("output", output, least=0, most=last)]
    generator = checks.resolve_generator(generator)
    flat = torch.cat([p.flatten() for p in point.values()])
    found = [
        spectral_norm(
            _hessian_of(f, point, sample, z),
            n=len(flat),
            dtype=flat.dtype,
            device=flat.device,
            tolerance=tolerance,
            generator=generator,
        )
        for sample in torch.split(x, 1)
        for z in which
    ]
    norms, residuals = (flat.new_tensor(values) for values in zip(*((h.value, h.residual) for h in found), strict=True))
    return HessianNorms(norms.reshape(len(x), -1), residuals.reshape(len(x), -1))


def two_layer_hessian_norm(net: MLP, x: Tensor, *, memory: float | None = None) -> Tensor:
    r"""$\|H^{(z)}(x)\|_2$ of a two-layer net, exact, (n, d_out); the quantity that Lemma 7 of paper A bounds.

    $f_z(x) = s\,\sum_i w_{iz}\,\phi(v_i^\top x)$ couples a unit's parameters $(v_i, w_{iz})$ with no other unit's, so
    H is block diagonal with the blocks $s\,[[w\phi'' x x^\top, \phi' x], [\phi' x^\top, 0]]$. Each acts in the plane of
    x/‖x‖ and w as $s\,[[a, b], [b, 0]]$ with $a = w\phi''\|x\|^2$ and $b = \phi'\|x\|$, hence

    $$\|H^{(z)}\| = s\,\max_i \Big\{ |a_i|/2 + \sqrt{a_i^2/4 + b_i^2} \Big\}$$

    with s = M^-½ in the "ntk" parametrisation and 1 in "standard" and "orthogonal", where the Hessian is the ambient
    one; in "mup" s = M^-½ and √M x stands for x. The lemma's own bound is false as printed (claims A.lem7). For
    ReLU-like activations φ'' = 0, as it is almost everywhere: the norm is then s·max φ'·‖x‖ and does not see the kinks.

    Args:
        net: An `MLP` with `depth=1`.
        x: (n, d_in); images are flattened.
        memory: Bytes that intermediate results may take; by default half of what is free.
    """
    if not isinstance(net, MLP) or net.depth != 1:
        raise InputError(
            f"the exact Hessian norm is known for an MLP with depth=1, got "
            f"{f'depth={net.depth}' if isinstance(net, MLP) else type(net).__name__}; use hessian_norm"
        )
    checks.require_floating("x", x)
    (V,), W = net.layers()
    x = (x.flatten(1) if x.ndim > 2 else x).to(W)
    checks.require_matrix("x", x, ("n", net.d_in))
    rows = rows_that_fit(8 * net.width * W.element_size(), len(x), memory=memory, device=W.device, what="hidden units")
    factor, scale = net.scales
    return scale * torch.cat([_largest_blocks(net, V, W, factor * part) for part in torch.split(x, rows)])


def _largest_blocks(net: MLP, V: Tensor, W: Tensor, x: Tensor) -> Tensor:
    """max_i {|a_i|/2 + √(a_i²/4 + b_i²)}, (n, d_out)."""
    norm = x.norm(dim=1, keepdim=True)
    preactivation = x @ V.mT
    half_curvature = 0.5 * net.activation.second(preactivation).abs() * norm**2  # (n, M)
    b = net.activation.first(preactivation).abs() * norm
    columns = (half_curvature * w.abs() for w in W.mT)  # one output at a time: never (n, M, d_out)
    return torch.stack([(half_a + torch.hypot(half_a, b)).amax(1) for half_a in columns], dim=1)


def _hessian_of(f: PureFunction, parameters: Parameters, sample: Tensor, z: int) -> Callable[[Tensor], Tensor]:
    """Products of the Hessian of f_z(sample) with (p, b) blocks of flat parameter vectors."""
    sizes = [p.numel() for p in parameters.values()]

    def gradient(p: Parameters) -> Parameters:
        slopes: Parameters = grad(lambda q: f(q, sample)[0, z])(p)
        return slopes

    def product(flat: Tensor) -> Tensor:
        parts = torch.split(flat, sizes)
        vector = {name: part.view_as(p) for (name, p), part in zip(parameters.items(), parts, strict=True)}
        curved = _along(gradient, parameters, vector)
        return torch.cat([curved[name].flatten() for name in parameters])

    return vmap(product, in_dims=1, out_dims=1)


def _along(gradient: Callable[[Parameters], Parameters], parameters: Parameters, vector: Parameters) -> Parameters:
    """The derivative of the gradient along `vector`."""
    try:
        _, curved = jvp(gradient, (parameters,), (vector,))  # type: ignore[misc]
    except NotImplementedError:  # a layer without a forward-mode derivative

        def slope(p: Parameters) -> Tensor:
            return torch.stack([(g * vector[name]).sum() for name, g in gradient(p).items()]).sum()

        curved = grad(slope)(parameters)
    return curved  # type: ignore[no-any-return]
