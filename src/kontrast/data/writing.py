"""Arrays written to `.npy`, `.npz` and `.csv` files, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from kontrast.data.conventions import Array
from kontrast.errors import InputError, StoreError

WRITTEN_KINDS = (".npy", ".npz", ".csv")


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> Path:
    """Write a `.npz` of the arrays, or a `.npy` or `.csv` of a single one; a file that exists is replaced.

    A `.csv` begins with names, z0, z1 and so on for the array z, and has every digit that its numbers need to be read
    back as they are.
    """
    check_writable(path)
    if path.suffix != ".npz" and len(arrays) != 1:
        raise InputError(f"a {path.suffix} file holds one array, got {', '.join(arrays)}; name it {path.stem}.npz")
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with partial.open("wb") as file:
            _write(file, path.suffix, arrays)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}; choose a place that is writable") from None
    finally:
        partial.unlink(missing_ok=True)
    return path


def check_writable(path: Path) -> None:
    """Refuse a file that `write_arrays` could not write, before anything is computed."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file in it, such as {path / 'z.npz'}")
    if path.suffix not in WRITTEN_KINDS:
        raise InputError(f"arrays are written as {', '.join(WRITTEN_KINDS)}, got {path.name!r}; end it in one of these")
    if not path.parent.is_dir():
        raise InputError(f"there is no folder {path.parent}; make it first, or choose one that exists")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"nothing can be written to the folder {path.parent}; choose another")


def _write(file: BinaryIO, suffix: str, arrays: Mapping[str, Array]) -> None:
    if suffix == ".npz":
        np.savez(file, allow_pickle=False, **arrays)
        return
    [(name, array)] = arrays.items()
    if suffix == ".npy":
        np.save(file, array, allow_pickle=False)
        return
    names = ",".join(f"{name}{column}" for column in range(array.shape[1]))
    digits = "%.9g" if array.dtype == np.float32 else "%.17g"
    np.savetxt(file, array, fmt=digits, delimiter=",", header=names, comments="")
