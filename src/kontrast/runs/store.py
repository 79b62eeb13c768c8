"""A store: the folder of one run, with its spec, one checksummed file per cell, and the consolidated result.

A cell is complete when both `NAME.nc` and `NAME.nc.sha256` are there and agree; the second is written last, and each is
written to a temporary file, synced and renamed. So killing the process at any moment loses at most the cells being
computed, and `sha256sum -c` can check a folder by hand. The files are netCDF-3: plain, deterministic, never pickled.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xarray as xr

from kontrast.errors import StoreError

SPEC_FILE, RESULT_FILE, LOCK_FILE, CELLS = "spec.json", "result.nc", ".lock", "cells"


class Store:
    """The results folder of one spec; opening it claims nothing and writes nothing.

    `command` is the one that makes such folders ("study", "verify", "study|verify"), named in messages only.
    """

    def __init__(self, folder: Path | str, *, command: str = "study") -> None:
        self.folder = Path(folder)
        self.command = command

    def spec(self) -> dict[str, Any]:
        """The spec that the folder was made for."""
        path = self.folder / SPEC_FILE
        if not path.is_file():
            raise StoreError(
                f"{self.folder} holds no results (no {SPEC_FILE}); "
                f"give the folder that `kontrast {self.command}` printed"
            )
        try:
            content = json.loads(path.read_text())
            spec: dict[str, Any] = content["spec"]
            whole = content["sha256"] == _spec_digest(spec)
        except (ValueError, KeyError, TypeError):  # not JSON, or not what `claim` writes
            whole = False
        if not whole:
            raise StoreError(
                f"{path} was changed or damaged since it was written; "
                f"run `kontrast {self.command}` again in another folder"
            )
        return spec

    def claim(self, spec: dict[str, Any]) -> None:
        """Make the folder this spec's, or check that it already is; another spec's or unknown content is refused."""
        try:
            if (self.folder / SPEC_FILE).exists():
                if self.spec() != spec:
                    raise StoreError(
                        f"{self.folder} holds other results ({_difference(self.spec(), spec)}); "
                        "choose another folder, or delete that one if you no longer need it"
                    )
                return
            if self.folder.exists() and not self._is_fresh():
                raise StoreError(f"{self.folder} exists and holds no results; choose another folder")
            self.folder.mkdir(parents=True, exist_ok=True)
            content = json.dumps({"sha256": _spec_digest(spec), "spec": spec}, indent=2, sort_keys=True)
            write_atomic(self.folder / SPEC_FILE, content.encode() + b"\n")
        except OSError as error:
            raise StoreError(f"cannot write to {self.folder}: {error.strerror}; choose another folder") from None

    def _is_fresh(self) -> bool:
        """Whether the folder is empty, but for what a claim that was killed half-way leaves."""
        return self.folder.is_dir() and all(path.suffix == ".partial" for path in self.folder.iterdir())

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for one writer; the lock dies with the process, however it ends."""
        with (self.folder / LOCK_FILE).open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreError(
                    f"another kontrast process is writing to {self.folder}; wait for it or use another folder"
                ) from None
            yield

    def path(self, cell: str) -> Path:
        """The cell's data file."""
        return self.folder / CELLS / f"{cell}.nc"

    def cells(self) -> list[str]:
        """The cells that have a data file, whole or not, in order of their names."""
        return sorted(path.name.removesuffix(".nc") for path in (self.folder / CELLS).glob("*.nc"))

    def has(self, cell: str) -> bool:
        """Whether the cell is stored whole: present, and equal to its checksum."""
        path = self.path(cell)
        try:
            recorded = _checksum_path(path).read_text().split()
            return bool(recorded) and recorded[0] == _sha256(path.read_bytes())
        except (FileNotFoundError, UnicodeDecodeError):
            return False

    def write(self, cell: str, result: xr.Dataset) -> None:
        """Store a cell, data first and checksum last."""
        path, content = self.path(cell), to_bytes(result)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)
        write_atomic(_checksum_path(path), f"{_sha256(content)}  {path.name}\n".encode())

    def read(self, cell: str) -> xr.Dataset:
        """A stored cell; refuses one that is missing or damaged."""
        if not self.has(cell):
            raise StoreError(
                f"cell {cell} in {self.folder} is missing or damaged; run it again to compute the cell anew"
            )
        return from_bytes(self.path(cell).read_bytes())

    def write_result(self, result: xr.Dataset) -> None:
        """Store the consolidated result."""
        write_atomic(self.folder / RESULT_FILE, to_bytes(result))

    def clear_temporary(self) -> None:
        """Remove what a killed process left half-written. Call it with the lock held."""
        for stale in self.folder.rglob("*.partial"):
            stale.unlink(missing_ok=True)


def write_atomic(path: Path, content: bytes) -> None:
    """Write a whole file or nothing: temporary file, sync, rename, sync of the folder."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with partial.open("wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
    partial.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def to_bytes(result: xr.Dataset) -> bytes:
    """The dataset as a netCDF-3 file; equal datasets give equal bytes."""
    return bytes(result.to_netcdf(engine="scipy"))


def from_bytes(content: bytes) -> xr.Dataset:
    """The dataset in a netCDF-3 file, loaded into memory."""
    with xr.open_dataset(io.BytesIO(content), engine="scipy") as opened:
        return opened.load()


def _checksum_path(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _spec_digest(spec: dict[str, Any]) -> str:
    return _sha256(json.dumps(spec, sort_keys=True).encode())


def _difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    if old.get("kind") != new.get("kind"):
        return "of another command"
    keys = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    shown = ", ".join(f"{key}: {old.get(key)} there, {new.get(key)} here" for key in keys[:2])
    return shown + (f" and {len(keys) - 2} more" if len(keys) > 2 else "")
