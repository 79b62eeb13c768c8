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


def _compiled(function, *arrays: np.ndarray) -> Ready:
    """The jitted function of the arrays; compiling falls into its first call, as it does for a user."""
    arguments = [jnp.asarray(array) for array in arrays]
    jitted = jax.jit(function)
    return lambda: jax.block_until_ready(jitted(*arguments))


if __name__ == "__main__":
    serve(
        {"infinite_ntk": infinite_ntk, "empirical_ntk_trace": empirical_ntk_trace},
        about={"neural-tangents": nt.__version__, "jax": jax.__version__},
    )
