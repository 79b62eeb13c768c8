"""Kernel matrices larger than comfortable: strip by strip, into memory, another device, or a file that resumes.

A kernel here is any function k(x, y) → (n, m) that takes `k(x)` for a set with itself: `InfiniteNetwork(…).ntk`,
`functools.partial(empirical_ntk_trace, net)`, or one's own. This is the one place of the numerical core that touches
files, because a kernel of 70,000 points lives in one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kontrast._types import Tensor
from kontrast.errors import InputError, StoreError
from kontrast.memory import free_bytes, rows_that_fit
from kontrast.progress import Advance, progress_bar

Kernel = Callable[..., Tensor]
Destination = Tensor | np.ndarray[Any, Any] | str | os.PathLike[str]

COPIES = 4  # a kernel's own temporaries while it computes a strip
HEIGHT = 2048  # rows of a strip at most: tall enough for products at full speed


def tiled(
    kernel: Kernel,
    x: Tensor,
    y: Tensor | None = None,
    *,
    out: Destination | None = None,
    memory: float | None = None,
    progress: bool | Advance = False,
) -> Tensor:
    """The matrix of `kernel` between the rows of x and y, strip by strip; with `y=None` only half is computed.

    `out` is a tensor or array of shape (n, m), on any device and of any float type, which is filled and returned (a
    kernel computed on the GPU can land in host memory); or the path of an .npy file, which is created memory-mapped and
    returned as a tensor over the map. An interrupted file resumes when the same call is made again; a finished one is
    opened at once; a file of another kernel or other data is refused and left alone.

    `memory` is the budget in bytes for what is computed at a time, by default half of what is free; `progress=True`
    shows a bar on stderr.
    """
    shape = (x.shape[0], (x if y is None else y).shape[0])
    if 0 in shape:
        raise InputError(f"{'x' if shape[0] == 0 else 'y'} has no rows")
    if isinstance(out, (str, os.PathLike)):
        return _into_file(Path(out), kernel, x, y, shape, memory, progress)
    matrix = _destination(out, x, shape)
    with progress_bar("kernel", progress) as advance:
        for top, bottom in _strips(x, shape, memory):
            _strip(matrix, kernel, x, y, top, bottom)
            advance(bottom, shape[0])
    return matrix


def _strip(matrix: Tensor, kernel: Kernel, x: Tensor, y: Tensor | None, top: int, bottom: int) -> None:
    rows = x[top:bottom]
    if y is not None:
        matrix[top:bottom] = kernel(rows, y)
        return
    matrix[top:bottom, top:bottom] = kernel(rows)  # the set with itself: its diagonal is exact
    if bottom < len(x):
        tile = kernel(rows, x[bottom:])
        matrix[top:bottom, bottom:] = tile
        matrix[bottom:, top:bottom] = tile.mT


def _strips(x: Tensor, shape: tuple[int, int], memory: float | None, *, start: int = 0) -> list[tuple[int, int]]:
    per_row = COPIES * shape[1] * x.element_size()
    height = min(HEIGHT, rows_that_fit(per_row, shape[0], memory=memory, device=x.device, what="the kernel matrix"))
    return [(top, min(top + height, shape[0])) for top in range(start, shape[0], height)]


def _destination(out: Tensor | np.ndarray[Any, Any] | None, x: Tensor, shape: tuple[int, int]) -> Tensor:
    if out is None:
        needed, there = shape[0] * shape[1] * x.element_size(), free_bytes(x.device)
        if needed > there:
            raise InputError(
                f"the kernel matrix {shape} needs {needed / 2**30:.1f} GiB and {there / 2**30:.1f} GiB are free on "
                f"{x.device}; give a file, out='kernel.npy', or a tensor on another device"
            )
        return x.new_empty(shape)
    matrix = torch.from_numpy(out) if isinstance(out, np.ndarray) else out
    if tuple(matrix.shape) != shape or not matrix.is_floating_point():
        raise InputError(f"out must be {shape} of floats, got {tuple(matrix.shape)} of {matrix.dtype}")
    return matrix


def _into_file(
    path: Path,
    kernel: Kernel,
    x: Tensor,
    y: Tensor | None,
    shape: tuple[int, int],
    memory: float | None,
    progress: bool | Advance,
) -> Tensor:
    """The matrix in `path`, with a note of what it holds and how far it is in `path`.json."""
    if path.suffix != ".npy":
        raise InputError(f"out must end in .npy, got {path.name!r}")
    if not path.parent.is_dir():
        raise InputError(f"the folder {path.parent} of out does not exist; make it first")
    dtype = np.dtype(str(x.dtype).removeprefix("torch."))
    note = path.with_name(path.name + ".json")
    state: dict[str, Any] = {
        "holds": _fingerprint(kernel, x, y),
        "shape": list(shape),
        "dtype": str(dtype),
        "rows_done": 0,
    }
    if path.exists() or note.exists():
        state["rows_done"] = _resume(path, note, state)
        matrix = np.load(path, mmap_mode="r+")
    else:
        needed, there = shape[0] * shape[1] * dtype.itemsize, shutil.disk_usage(path.parent).free
        if needed > there:
            raise InputError(f"{path} needs {needed / 2**30:.1f} GiB and its disk has {there / 2**30:.1f} GiB free")
        _write(note, state)
        matrix = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    with progress_bar(path.name, progress) as advance:
        for top, bottom in _strips(x, shape, memory, start=state["rows_done"]):
            _strip(torch.from_numpy(matrix), kernel, x, y, top, bottom)
            matrix.flush()  # on the disk before it is called done
            state["rows_done"] = bottom
            _write(note, state)
            advance(bottom, shape[0])
    return torch.from_numpy(matrix)


def _resume(path: Path, note: Path, state: dict[str, Any]) -> int:
    """How many rows of the file are done, or an error when it is not this call's file."""
    if not note.exists():
        raise StoreError(f"{path} exists and was not written here; choose another name or delete it")
    try:
        found = json.loads(note.read_text())
        done, same = int(found["rows_done"]), {key: found[key] for key in ("holds", "shape", "dtype")}
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{note} is damaged ({error}); delete it and {path.name} to start again") from error
    if same != {key: state[key] for key in same}:
        raise StoreError(
            f"{path} holds another kernel or other data; choose another name or delete it with {note.name}"
        )
    if not path.exists():
        if done:
            raise StoreError(f"{note} speaks of {path.name}, which is gone; delete {note.name} to start again")
        np.lib.format.open_memmap(path, mode="w+", dtype=state["dtype"], shape=tuple(state["shape"]))
    return done


def _fingerprint(kernel: Kernel, x: Tensor, y: Tensor | None) -> str:
    """Which data, and which kernel by its values at their first and last rows (four digits: any thread count)."""
    content = hashlib.sha256()
    for rows in (x,) if y is None else (x, y):
        content.update(repr((tuple(rows.shape), rows.dtype)).encode())
        for part in torch.split(rows, 4096):
            content.update(part.detach().cpu().contiguous().numpy().tobytes())
    other = x if y is None else y
    probe = kernel(torch.cat([x[:2], x[-2:]]), torch.cat([other[:2], other[-2:]]))
    content.update(" ".join(f"{value:.3e}" for value in probe.flatten().tolist()).encode())
    return content.hexdigest()


def _write(note: Path, state: dict[str, Any]) -> None:
    temporary = note.with_name(note.name + ".tmp")
    temporary.write_text(json.dumps(state))
    os.replace(temporary, note)
