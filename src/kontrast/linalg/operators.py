"""One interface for all that multiplies blocks of vectors: torch and numpy matrices, sparse ones, functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypedDict, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import LinearOperator
from torch import Tensor

from kontrast.checks import require_finite, require_whole, resolve_device, resolve_dtype
from kontrast.errors import InputError


class Multiplier(Protocol):
    """An object with a square `shape` that multiplies (n, b) blocks by `@`."""

    @property
    def shape(self) -> Any:
        """(n, n)."""

    def __matmul__(self, block: Any, /) -> Any:
        """The product with an (n, b) block."""


Matrix = Tensor | NDArray[Any]


@dataclass(frozen=True, eq=False)
class Operator:
    """A square linear map on (n, b) blocks; `matrix` holds its entries where they are known."""

    n: int
    dtype: torch.dtype
    device: torch.device
    product: Callable[[Tensor], Tensor]
    name: str
    matrix: Matrix | None = None

    def __post_init__(self) -> None:
        if self.dtype not in (torch.float32, torch.float64):
            raise InputError(f"{self.name} must be float32 or float64, got {self.dtype}; convert it with .double()")

    @property
    def tensor(self) -> Tensor | None:
        """The entries, where torch holds them all."""
        return self.matrix if isinstance(self.matrix, Tensor) and self.matrix.layout == torch.strided else None

    def negative(self) -> Operator:
        """−A, without a second matrix."""
        return replace(self, product=lambda block: -self.product(block), matrix=None)

    def __call__(self, block: Tensor) -> Tensor:
        """The product with an (n, b) block, in the block's own number type and checked."""
        result = self.product(block.to(self.dtype))
        if result.shape != block.shape:
            raise InputError(
                f"{self.name} must map (n, b) blocks to (n, b) blocks: "
                f"given {tuple(block.shape)} it returned {tuple(result.shape)}"
            )
        if not torch.isfinite(result).all():
            raise InputError(f"{self.name} returned NaN or infinite values; check its entries and the data behind it")
        return result.to(dtype=block.dtype, device=block.device)

    def dense(self) -> Tensor:
        """All n² entries in float64; a map without a matrix is applied to the identity."""
        entries = self.tensor
        if entries is not None:
            require_finite(self.name, entries)
        else:
            entries = self(torch.eye(self.n, dtype=self.dtype, device=self.device))
        return entries.to(torch.float64)


OperatorLike = Matrix | Multiplier | Operator | Callable[[Tensor], Tensor]


class OfFunction(TypedDict, total=False):
    """The properties that a matrix knows and a function does not; arguments of all that takes an `OperatorLike`."""

    n: int | None  # the size; a function needs it
    dtype: torch.dtype | str | None  # the number type; float64 by default
    device: torch.device | str | None  # the CPU by default


def as_operator(
    operator: OperatorLike,
    *,
    n: int | None = None,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    name: str = "operator",
) -> Operator:
    """`operator` as an `Operator`; `n`, `dtype` and `device` are those of `OfFunction`."""
    if isinstance(operator, Operator):
        return operator
    if not callable(operator) and not hasattr(operator, "shape"):
        raise InputError(
            f"{name} must be a matrix, an object with shape and @, or a function, got {type(operator).__name__}; "
            f"convert it with torch.tensor(…)"
        )
    if callable(operator) and not hasattr(operator, "shape"):
        if n is None:
            raise InputError(f"{name} is a function, which does not know its size; pass n=...")
        return Operator(require_whole("n", n), _dtype(dtype), _device(device), operator, name)
    size = _size_of(operator, n, name)
    if isinstance(operator, Tensor):
        return Operator(size, operator.dtype, operator.device, operator.__matmul__, name, operator)
    if isinstance(operator, np.ndarray | LinearOperator) or sparse.issparse(operator):
        kind = torch.float32 if getattr(operator, "dtype", None) == np.float32 else torch.float64
        matrix = operator if isinstance(operator, np.ndarray) else None
        return Operator(size, kind, torch.device("cpu"), _numpy_product(operator), name, matrix)
    own_dtype, own_device = getattr(operator, "dtype", None), getattr(operator, "device", None)
    kind = own_dtype if isinstance(own_dtype, torch.dtype) else _dtype(dtype)
    where = _device(own_device if own_device is not None else device)
    return Operator(size, kind, where, lambda block: cast("Multiplier", operator) @ block, name)


def _dtype(dtype: torch.dtype | str | None) -> torch.dtype:
    return resolve_dtype("float64" if dtype is None else dtype) if not isinstance(dtype, torch.dtype) else dtype


def _device(device: torch.device | str | None) -> torch.device:
    """The device with its number, without which "cuda" would not compare equal to "cuda:0"."""
    return torch.empty(0, device=resolve_device("cpu" if device is None else device)).device


def require_real_matrix(matrix: Any, name: str) -> None:
    """Refuse anything without a shape, and complex numbers, whose imaginary part would be dropped."""
    if not hasattr(matrix, "shape"):
        raise InputError(f"{name} must be a matrix, got {type(matrix).__name__}; convert it with torch.tensor(…)")
    if "complex" in str(getattr(matrix, "dtype", "")):
        raise InputError(f"{name} must be real, got {matrix.dtype}; take its real part")


def _size_of(operator: Any, n: int | None, name: str) -> int:
    require_real_matrix(operator, name)
    shape = tuple(operator.shape)
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] < 1:
        raise InputError(f"{name} must be square and not empty, got shape {shape}")
    if n is not None and n != shape[0]:
        raise InputError(f"n={n} does not fit {name} of shape {shape}; leave n out")
    return int(shape[0])


def _numpy_product(matrix: Any) -> Callable[[Tensor], Tensor]:
    # numpy multiplies read-only memory maps in place; torch.from_numpy would warn about them.
    return lambda block: torch.from_numpy(np.ascontiguousarray(matrix @ block.cpu().numpy()))


def require_symmetric(matrix: Matrix, name: str, *, n_sampled: int = 256) -> None:
    """Refuse a matrix that is not square or, on `n_sampled` evenly spaced rows and columns, not symmetric.

    Kernels computed tile by tile differ from their transpose by rounding, which passes.
    """
    asymmetry, size = sampled_asymmetry(matrix, name, n_sampled=n_sampled)
    if asymmetry > math.sqrt(resolution(matrix)) * size:
        raise _not_symmetric(name, asymmetry, size)


def sampled_asymmetry(matrix: Matrix, name: str, *, n_sampled: int = 256) -> tuple[float, float]:
    """The largest |K_ij − K_ji| and the largest |K_ij| on `n_sampled` evenly spaced rows and columns.

    A sample, so that a memory-mapped matrix of gigabytes is not read twice.
    """
    n = _size_of(matrix, None, name)
    rows = np.unique(np.linspace(0, n - 1, min(n, n_sampled)).round().astype(int))
    if isinstance(matrix, Tensor):
        if matrix.layout != torch.strided:
            return 0.0, 0.0
        index = torch.from_numpy(rows).to(matrix.device)
        block = matrix[index[:, None], index[None, :]].to(torch.float64)
    else:
        block = torch.from_numpy(np.asarray(matrix[np.ix_(rows, rows)], dtype=np.float64))
    require_finite(name, block)
    return float((block - block.mT).abs().max()), float(block.abs().max())


def _not_symmetric(name: str, asymmetry: float, size: float) -> InputError:
    return InputError(
        f"{name} must be symmetric, but entries differ from their mirror images by up to {asymmetry:.2g} "
        f"(largest entry {size:.2g}); if that is rounding, pass ({name} + {name}.T) / 2"
    )


def as_symmetric(matrix: Tensor, name: str, *, symmetrize: bool = False) -> Tensor:
    """The (d, d) matrix, in float64 and without gradients, every entry checked; or, only when asked, (C + C^T)/2."""
    _size_of(matrix, None, name)
    if not isinstance(matrix, Tensor) or matrix.layout != torch.strided or not matrix.is_floating_point():
        raise InputError(f"{name} must be a dense tensor of floating-point numbers, {_given_and_fix(matrix, name)}")
    doubled = matrix.detach().double()
    require_finite(name, doubled)
    size = float(doubled.abs().max())
    asymmetry = float((doubled - doubled.mT).abs().max())
    if not symmetrize and asymmetry > math.sqrt(resolution(matrix)) * size:
        raise InputError(f"{_not_symmetric(name, asymmetry, size)}, or symmetrize=True")
    # Halves first: a sum of the largest numbers overflows.
    return doubled if asymmetry == 0 else doubled / 2 + doubled.mT / 2


def _given_and_fix(matrix: Any, name: str) -> str:
    """The thing that was given in place of a dense tensor, and how to turn it into one."""
    if isinstance(matrix, Tensor):
        dense = "" if matrix.layout == torch.strided else ".to_dense()"
        return f"got {matrix.layout} {matrix.dtype}; use {name}{dense}.double()"
    entries = f"{name}.toarray()" if sparse.issparse(matrix) else name
    return f"got {type(matrix).__name__}; use torch.as_tensor({entries}).double()"


def resolution(matrix: Matrix) -> float:
    """The relative rounding of the matrix's number type; integers count as float64."""
    if isinstance(matrix, Tensor):
        return torch.finfo(matrix.dtype).eps if matrix.dtype.is_floating_point else 2.0**-52
    return float(np.finfo(matrix.dtype).eps) if matrix.dtype.kind == "f" else 2.0**-52
