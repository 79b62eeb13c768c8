"""Large kernel matrices strip by strip: into memory, onto another device, or into a file that resumes.

A kernel here is any function k(x, y) → (n, m), with `k(x)` for x with itself: `InfiniteNetwork(…).ntk`,
`functools.partial(empirical_ntk_trace, net)`, or your own. This is the one module of the numerical core that writes
files, because a kernel of 70,000 points needs one.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kontrast.checks import DTYPES, in_words, require_rows
from kontrast.errors import InputError, StoreError
from kontrast.memory import free_bytes, rows_that_fit
from kontrast.progress import Advance, progress_bar

KernelFunction = Callable[..., Tensor]
Destination = Tensor | np.ndarray[Any, Any] | str | os.PathLike[str]

COPIES = 4  # the temporary copies of a strip that a kernel makes while it computes one
PROBES = 16  # rows whose kernel values tell two kernels apart
HEIGHT = 2048  # the most rows of a strip: enough for products at full speed


def tiled(
    kernel: KernelFunction,
    x: Tensor,
    y: Tensor | None = None,
    *,
    out: Destination | None = None,
    memory: float | None = None,
    progress: bool | Advance = False,
) -> Tensor:
    """The matrix of `kernel` between the rows of x and y, strip by strip; with `y=None` only half is computed.

    `out` is a tensor or array of shape (n, m), on any device and of any float type, which is filled and returned (a
    kernel computed on the GPU can be written to host memory); or the path of an .npy file, which is created
    memory-mapped and returned as a tensor over the map. An interrupted file resumes when the same call is made again; a
    finished one is opened at once; a file of another kernel or other data is refused and not changed.

    No gradients flow through it. `memory` is the number of bytes to work in, by default half of what is free;
    `progress=True` shows a bar on stderr.
    """
    require_rows("x", x)
    require_rows("y", x if y is None else y)
    shape = (len(x), len(x if y is None else y))
    with torch.no_grad():
        probe = _Probe.of(kernel, x, x if y is None else y)
        if isinstance(out, (str, os.PathLike)):
            return _into_file(Path(out), kernel, x, y, probe, memory, progress)
        matrix = _destination(out, x.device, shape, probe.values.dtype)
        with progress_bar("kernel", progress) as advance:
            for top, bottom in _strips(probe, shape, x.device, memory):
                _strip(matrix, kernel, x, y, top, bottom)
                advance(bottom, shape[0])
    return matrix


@dataclass(frozen=True)
class _Probe:
    """The kernel between a few rows spread over the data: it shows the dtype, and tells two kernels apart."""

    values: Tensor

    @classmethod
    def of(cls, kernel: KernelFunction, x: Tensor, y: Tensor) -> _Probe:
        i, j = (torch.linspace(0, len(rows) - 1, min(len(rows), PROBES)).round().long() for rows in (x, y))
        return cls(_checked(kernel(x[i.to(x.device)], y[j.to(y.device)]), len(i), len(j)).cpu())

    def agrees(self, noted: list[float]) -> bool:
        mine, other = self.values.flatten().double(), torch.tensor(noted, dtype=torch.float64)
        return mine.shape == other.shape and bool(((mine - other).abs() <= 1e-4 * mine.abs().max()).all())


def _checked(tile: Any, rows: int, columns: int) -> Tensor:
    """The tile; refuses a kernel that returns anything but a matrix of floats."""
    if isinstance(tile, Tensor) and tuple(tile.shape) == (rows, columns) and tile.is_floating_point():
        return tile
    raise InputError(
        f"kernel must return ({rows}, {columns}) floats for {rows} and {columns} rows, got {in_words(tile)}; "
        "use empirical_ntk_trace in place of empirical_ntk"
    )


def _strip(matrix: Tensor, kernel: KernelFunction, x: Tensor, y: Tensor | None, top: int, bottom: int) -> None:
    rows = x[top:bottom]
    height = bottom - top
    if y is not None:
        matrix[top:bottom] = _checked(kernel(rows, y), height, len(y))
        return
    matrix[top:bottom, top:bottom] = _checked(kernel(rows), height, height)  # with itself: the diagonal is exact
    if bottom < len(x):
        tile = _checked(kernel(rows, x[bottom:]), height, len(x) - bottom)
        matrix[top:bottom, bottom:] = tile
        matrix[bottom:, top:bottom] = tile.mT


def _strips(
    probe: _Probe, shape: tuple[int, int], device: torch.device, memory: float | None, *, start: int = 0
) -> list[tuple[int, int]]:
    per_row = COPIES * shape[1] * probe.values.element_size()
    height = min(HEIGHT, rows_that_fit(per_row, shape[0], memory=memory, device=device, what="the kernel matrix"))
    return [(top, min(top + height, shape[0])) for top in range(start, shape[0], height)]


def _destination(
    out: Tensor | np.ndarray[Any, Any] | None, device: torch.device, shape: tuple[int, int], dtype: torch.dtype
) -> Tensor:
    if out is None:
        needed, there = shape[0] * shape[1] * dtype.itemsize, free_bytes(device)
        if needed > there:
            raise InputError(
                f"the kernel matrix {shape} needs {needed / 2**30:.1f} GiB and {there / 2**30:.1f} GiB are free on "
                f"{device}; pass a file, out='kernel.npy', or a tensor on another device"
            )
        return torch.empty(shape, dtype=dtype, device=device)
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise InputError("out is a read-only array; pass a copy or open the memory map with mode='r+'")
    if not isinstance(out, Tensor | np.ndarray):
        raise InputError(f"out must be a tensor, an array or the path of an .npy file, got {type(out).__name__}")
    matrix = torch.from_numpy(out) if isinstance(out, np.ndarray) else out
    if matrix.requires_grad:
        raise InputError("out requires gradients, which do not flow through tiles; pass out.detach()")
    if tuple(matrix.shape) != shape or not matrix.is_floating_point():
        raise InputError(f"out must be {shape} of floats, got {tuple(matrix.shape)} of {matrix.dtype}")
    return matrix


def _into_file(
    path: Path,
    kernel: KernelFunction,
    x: Tensor,
    y: Tensor | None,
    probe: _Probe,
    memory: float | None,
    progress: bool | Advance,
) -> Tensor:
    """The matrix in `path`; `path`.json notes what it holds and how many rows are done."""
    if path.suffix != ".npy":
        raise InputError(f"out must end in .npy, got {path.name!r}")
    if not path.parent.is_dir():
        raise InputError(f"the folder {path.parent} of out does not exist; create it first")
    shape = (len(x), len(x if y is None else y))
    if probe.values.dtype not in DTYPES.values():
        raise InputError(f"a file holds float32 or float64, but the kernel gives {probe.values.dtype}; convert x first")
    dtype = probe.values.numpy().dtype
    note = path.with_name(path.name + ".json")
    state: dict[str, Any] = {
        "data": _digest(x, y),
        "probe": probe.values.flatten().tolist(),
        "shape": list(shape),
        "dtype": str(dtype),
        "rows_done": 0,
    }
    if path.exists() or note.exists():
        state["rows_done"] = _resume(path, note, state, probe)
        matrix = np.load(path, mmap_mode="r+")
    else:
        needed, there = shape[0] * shape[1] * dtype.itemsize, shutil.disk_usage(path.parent).free
        if needed > there:
            raise InputError(f"{path} needs {needed / 2**30:.1f} GiB and its disk has {there / 2**30:.1f} GiB free")
        _write(note, state)
        matrix = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    with progress_bar(path.name, progress) as advance:
        for top, bottom in _strips(probe, shape, x.device, memory, start=state["rows_done"]):
            _strip(torch.from_numpy(matrix), kernel, x, y, top, bottom)
            matrix.flush()  # on the disk before it counts as done
            state["rows_done"] = bottom
            _write(note, state)
            advance(bottom, shape[0])
    return torch.from_numpy(matrix)


def _resume(path: Path, note: Path, state: dict[str, Any], probe: _Probe) -> int:
    """How many rows of the file are done; refuses a file of another call."""
    if not note.exists():
        raise StoreError(f"{path} exists and was not written by tiled; choose another name or delete it")
    try:
        found = json.loads(note.read_text())
        done, noted = int(found["rows_done"]), [float(value) for value in found["probe"]]
        same = {key: found[key] for key in ("data", "shape", "dtype")}
        if not 0 <= done <= state["shape"][0]:
            raise ValueError(f"rows_done is {done}")
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{note} is damaged ({error}); delete it and {path.name} to start again") from error
    if same != {key: state[key] for key in same} or not probe.agrees(noted):
        raise StoreError(
            f"{path} holds another kernel or other data; choose another name, or delete it and {note.name}"
        )
    if path.exists():
        _refuse_truncated(path, note, state)
        return done
    if done:
        raise StoreError(f"{note} belongs to {path.name}, which is gone; delete {note.name} to start again")
    np.lib.format.open_memmap(path, mode="w+", dtype=state["dtype"], shape=tuple(state["shape"]))
    return 0


def _refuse_truncated(path: Path, note: Path, state: dict[str, Any]) -> None:
    """Refuse a damaged file: a memory map would silently fill a shorter one with zeros."""
    advice = f"delete it and {note.name} to start again"
    try:
        with path.open("rb") as file:
            np.lib.format.read_magic(file)
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            size = file.tell() + math.prod(shape) * dtype.itemsize
    except (ValueError, EOFError) as error:
        raise StoreError(f"{path} is damaged ({error}); {advice}") from error
    if list(shape) != state["shape"] or str(dtype) != state["dtype"] or path.stat().st_size != size:
        raise StoreError(
            f"{path} should hold {state['shape']} of {state['dtype']} but has {path.stat().st_size:,} bytes for "
            f"{list(shape)} of {dtype}; {advice}"
        )


def _digest(x: Tensor, y: Tensor | None) -> str:
    content = hashlib.sha256()
    for rows in (x,) if y is None else (x, y):
        content.update(repr((tuple(rows.shape), rows.dtype)).encode())
        for part in torch.split(rows, 4096):
            content.update(part.detach().cpu().contiguous().numpy().tobytes())
    return content.hexdigest()


def _write(note: Path, state: dict[str, Any]) -> None:
    temporary = note.with_name(note.name + ".tmp")
    temporary.write_text(json.dumps(state))
    os.replace(temporary, note)
