"""neural-tangents' side of `kernels.py`: runs in the environment of `make bench-peers`, without kontrast or torch.

Its best, as measured: the infinite kernel under `jax.jit`; the empirical one by structured derivatives with
`vmap_axes=0` on a function whose weights lie as jax users store them, (in, out). The whole batch in one call is faster
than `nt.batch` in blocks, and a plain function faster than the same network from `stax`.
"""

from __future__ import annotations

import os
import sys

from worker import Ready, restrict_threads, serve

restrict_threads(int(sys.argv[1]))  # before jax counts the cores
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import neural_tangents as nt  # noqa: E402
import numpy as np  # noqa: E402
from neural_tangents import stax  # noqa: E402


def infinite_ntk(x: np.ndarray, *, depth: int) -> Ready:
    """ReLU, in its own convention: the input product divided by d."""
    layers = [layer for _ in range(depth) for layer in (stax.Dense(1), stax.Relu())]
    _, _, kernel = stax.serial(*layers, stax.Dense(1))
    return _compiled(lambda points: kernel(points, None, "ntk"), x)


def empirical_ntk_trace(x: np.ndarray, V: np.ndarray, W: np.ndarray, *, implementation: str) -> Ready:
    """Σ_i K_ii of f(x) = W^T relu(V x) / √M. Its `trace_axes` takes the mean over the outputs, hence the factor c."""
    n_units, n_outputs = W.shape

    def network(parameters, points):
        hidden, output = parameters
        return jnp.maximum(points @ hidden, 0) @ output / n_units**0.5

    kernel = nt.empirical_ntk_fn(
        network, trace_axes=(-1,), vmap_axes=0, implementation=nt.NtkImplementation[implementation]
    )
    return _compiled(
        lambda points, hidden, output: n_outputs * kernel(points, None, (hidden, output)),
        x,
        np.ascontiguousarray(V.T),
        W,
    )


def convnet(x: np.ndarray, *, traced: bool, **weights: np.ndarray) -> Ready:
    """The kernel, or its trace, of the ConvNet of `networks.py`; pictures and weights with the channels last."""
    (conv1, bias1), (conv2, bias2), (dense, bias3) = (
        (weights[f"{layer}.weight"], weights[f"{layer}.bias"]) for layer in (0, 3, 7)
    )
    n_outputs, channels = len(dense), len(conv2)
    side = int((dense.shape[1] / channels) ** 0.5)  # of a picture where it is flattened

    def network(parameters, pictures):
        *convolutions, (kernel, bias) = parameters
        for filters, shift in convolutions:
            axes = ("NHWC", "HWIO", "NHWC")
            pictures = jax.lax.conv_general_dilated(pictures, filters, (1, 1), "SAME", dimension_numbers=axes)
            n, height, width, depth = pictures.shape
            pictures = jnp.maximum(pictures + shift, 0).reshape(n, height // 2, 2, width // 2, 2, depth).mean((2, 4))
        return pictures.reshape(len(pictures), -1) @ kernel + bias

    parameters = [
        (conv1.transpose(2, 3, 1, 0), bias1),
        (conv2.transpose(2, 3, 1, 0), bias2),
        (dense.reshape(n_outputs, channels, side, side).transpose(2, 3, 1, 0).reshape(-1, n_outputs), bias3),
    ]
    kernel = nt.empirical_ntk_fn(
        network,
        trace_axes=(-1,) if traced else (),
        vmap_axes=0,
        implementation=nt.NtkImplementation.STRUCTURED_DERIVATIVES,
    )
    factor = n_outputs if traced else 1
    return _compiled(
        lambda points, *flat: factor * kernel(points, None, list(zip(flat[::2], flat[1::2], strict=True))),
        x.transpose(0, 2, 3, 1),
        *(array for layer in parameters for array in layer),
    )


def _compiled(function, *arrays: np.ndarray) -> Ready:
    """The jitted function of the arrays; compiling falls into its first call, as it does for a user."""
    arguments = [jnp.asarray(array) for array in arrays]
    jitted = jax.jit(function)
    return lambda: jax.block_until_ready(jitted(*arguments))


if __name__ == "__main__":
    serve(
        {"infinite_ntk": infinite_ntk, "empirical_ntk_trace": empirical_ntk_trace, "convnet": convnet},
        about={"neural-tangents": nt.__version__, "jax": jax.__version__},
    )
