"""The tangent kernel as a linear map: K v = J (J^T v), for kernels too large to store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import jvp
from torch.nn.attention import SDPBackend, sdpa_kernel

from kontrast.checks import require_type
from kontrast.errors import InputError
from kontrast.kernels.empirical import prepared, two_rows
from kontrast.kernels.network import refuse_dependent_rows, undisturbed
from kontrast.kernels.planning import observe
from kontrast.kernels.recording import LookupUse
from kontrast.memory import rows_that_fit
from kontrast.nets import Parameters, Select


class NTKOperator:
    """The (n·c, n·c) tangent kernel of a module on the rows of `x`, as products without the matrix.

    `operator @ v` takes v of shape (n·c,), (n·c, k) or, by output, (n, c), as a tensor or a numpy array, and returns
    the same. Row (i, j) of the matrix is output j of row i, as in `empirical_ntk(…).permute(0, 2, 1, 3)`. It has the
    methods that `scipy.sparse.linalg.aslinearoperator` needs. Cost per column: one backward pass and one forward-mode
    derivative over all rows, in blocks that fit in `memory`; k columns keep k directions in parameter space.

    Arguments as in `empirical_ntk`.
    """

    def __init__(
        self,
        module: nn.Module,
        x: Tensor,
        *,
        parameters: Mapping[str, Tensor] | None = None,
        only: Iterable[str] | None = None,
        output: Select | None = None,
        memory: float | None = None,
    ) -> None:
        self._module = module
        with undisturbed(module):
            self._network, self._x, _ = prepared(module, x, None, parameters=parameters, only=only, output=output)
            refuse_dependent_rows(self._network, self._x, "x")
            seen = observe(self._network, two_rows(self._x, None), "x")
        self.n_rows, self.n_outputs = len(x), seen.two.output.shape[1]
        # The backward pass of an embedding leaves its padding row alone; torch's forward-mode derivative does not.
        self._pads = any(isinstance(use, LookupUse) and use.padding is not None for use in seen.two.uses)
        # Activations for the backward pass and, with their tangents, for the forward-mode derivative.
        self._block = rows_that_fit(
            2 * seen.saved.total, len(x), memory=memory, device=self._network.like.device, what="activations"
        )

    @property
    def shape(self) -> tuple[int, int]:
        """(n·c, n·c)."""
        size = self.n_rows * self.n_outputs
        return size, size

    @property
    def dtype(self) -> np.dtype[Any]:
        """The number type as numpy's dtype, for scipy."""
        return torch.empty(0, dtype=self._network.like.dtype).numpy().dtype

    @property
    def device(self) -> torch.device:
        """The module's device; vectors on other devices are moved there and back."""
        return self._network.like.device

    def __matmul__(self, v: Any) -> Any:
        """K v with the shape, type and dtype of v (the module's dtype for integers), computed in the module's."""
        like = self._network.like
        require_type("v", v, (Tensor, np.ndarray))
        given = torch.as_tensor(v)
        if given.is_complex():
            raise InputError("v must be real, got complex numbers; multiply by its real and imaginary parts separately")
        product = self._product(given.to(like)).to(
            given.device, given.dtype if given.is_floating_point() else like.dtype
        )
        return product.numpy(force=True) if isinstance(v, np.ndarray) else product

    def matvec(self, v: NDArray[Any]) -> Any:
        """K v for one vector; scipy's name."""
        return self @ v

    rmatvec = matvec  # K is symmetric

    def matmat(self, v: NDArray[Any]) -> Any:
        """K v for the columns of v; scipy's name."""
        return self @ v

    rmatmat = matmat

    def _product(self, v: Tensor) -> Tensor:
        n, c = self.n_rows, self.n_outputs
        if v.shape != (n, c) and (v.ndim not in (1, 2) or v.shape[0] != n * c):
            raise InputError(f"v must be ({n * c},), ({n * c}, k) or ({n}, {c}), got shape {tuple(v.shape)}")
        if v.numel() == 0:
            return v
        columns = v.detach().reshape(n, c, -1)
        # Fused attention has no forward-mode derivative; the plain formula has.
        with undisturbed(self._module), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            directions = self._pull(columns)
            blocks = [self._push(rows, directions) for rows in torch.split(self._x, self._block)]
            return torch.cat(blocks).reshape(v.shape)

    def _pull(self, columns: Tensor) -> list[list[Tensor]]:
        """J^T v for every column: directions in the space of the selected parameters."""
        wanted = [self._network.parameters[name] for name in self._network.selected]
        directions = [[torch.zeros_like(p, requires_grad=False) for p in wanted] for _ in range(columns.shape[2])]
        for rows, cotangents in zip(torch.split(self._x, self._block), torch.split(columns, self._block), strict=True):
            f = self._network(rows)
            for direction, cotangent in zip(directions, cotangents.unbind(2), strict=True):
                parts = torch.autograd.grad(f, wanted, cotangent, retain_graph=True, allow_unused=True)
                for total, part in zip(direction, parts, strict=True):
                    if part is not None:
                        total.add_(part)
        return directions

    def _push(self, rows: Tensor, directions: list[list[Tensor]]) -> Tensor:
        """J u at these rows for every direction u, (n, c, k)."""
        network = self._network
        fixed = {name: p.detach() for name, p in network.parameters.items()}
        chosen = {name: fixed[name] for name in network.selected}

        def f(parameters: Parameters) -> Tensor:
            return network.function({**fixed, **parameters}, rows)

        if self._pads:
            return torch.stack(self._push_by_two_pulls(rows, directions), dim=2)
        try:
            # torch's stub lists the triple that has_aux=True would return.
            tangents = (dict(zip(chosen, direction, strict=True)) for direction in directions)
            slopes = [jvp(f, (chosen,), (tangent,))[1] for tangent in tangents]
        except (NotImplementedError, RuntimeError):  # an operation without a forward-mode derivative
            slopes = self._push_by_two_pulls(rows, directions)
        return torch.stack(slopes, dim=2)

    def _push_by_two_pulls(self, rows: Tensor, directions: list[list[Tensor]]) -> list[Tensor]:
        """J u as the derivative of (J^T w)·u, which is linear in w."""
        wanted = [self._network.parameters[name] for name in self._network.selected]
        f = self._network(rows)
        w = torch.zeros_like(f, requires_grad=True)
        try:
            pulled = torch.autograd.grad(f, wanted, w, create_graph=True, materialize_grads=True)
            return [torch.autograd.grad(pulled, w, direction, retain_graph=True)[0] for direction in directions]
        except (NotImplementedError, RuntimeError) as error:
            raise InputError(
                f"{self._network.name} has a layer with neither forward-mode nor second derivatives "
                f"({str(error).splitlines()[0]}); compute its kernel with empirical_ntk instead"
            ) from error
