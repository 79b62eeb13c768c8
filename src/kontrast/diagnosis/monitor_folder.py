"""The folder of a monitor: what it watches, the first embedding, and a line of JSON per record, appended as they come.

A record counts once its line is written and synced, so a process that is killed at any moment loses at most the line
that it was writing; the next one to write takes such a torn end away. Nothing is pickled.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kontrast.errors import StoreError
from kontrast.runs import write_atomic

SPEC_FILE, RECORDS_FILE, START_FILE, KIND = "spec.json", "records.jsonl", "start.npz", "monitor"
Record = dict[str, Any]


class MonitorFolder:
    """The records of one training run; opening it claims nothing and writes nothing."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._size: int | None = None  # of the records, as this writer left them

    def spec(self) -> dict[str, Any]:
        """What the run was when it began: encoder, probe set, options."""
        path = self.folder / SPEC_FILE
        if not path.is_file():
            raise StoreError(f"{self.folder} holds no records of a monitor (no {SPEC_FILE}); give a Monitor's folder")
        try:
            content = json.loads(path.read_bytes())
            spec: dict[str, Any] = content["spec"]
            whole = content["sha256"] == _digest(spec)
            kind = spec["kind"]
        except (ValueError, KeyError, TypeError):  # not JSON, or not what `claim` writes
            whole, kind = False, ""
        if not whole:
            raise StoreError(f"{path} was changed or damaged since it was written; choose another folder")
        if kind != KIND:
            raise StoreError(
                f"{self.folder} holds results of `kontrast {kind}`, not of a monitor; choose another folder"
            )
        return spec

    def check(self, spec: Mapping[str, Any] | None = None) -> None:
        """Refuse a folder of something else, or of another encoder, probe set or options; nothing is written."""
        if (self.folder / SPEC_FILE).exists():
            there = self.spec()
            if spec is None:
                return
            names = sorted((there.keys() | spec.keys()) - {"notes"})
            changed = [name for name in names if there.get(name) != spec.get(name)]
            if changed:
                raise StoreError(
                    f"{self.folder} holds the records of another {_WORDS.get(changed[0], changed[0])} "
                    f"({there.get(changed[0])} there, {spec.get(changed[0])} here); choose another folder"
                )
        elif self.folder.exists() and not self._is_fresh():
            raise StoreError(f"{self.folder} exists and holds no records of a monitor; choose another folder")

    def claim(self, spec: Mapping[str, Any]) -> None:
        """Make the folder this run's, if it is not yet; what `check` refuses is refused."""
        self.check(spec)
        if (self.folder / SPEC_FILE).exists():
            return
        content = json.dumps({"sha256": _digest(spec), "spec": spec}, indent=2, sort_keys=True)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomic(self.folder / SPEC_FILE, content.encode() + b"\n")
        except OSError as error:
            raise _cannot_write(self.folder, error) from None

    def _is_fresh(self) -> bool:
        """Whether it is an empty folder, but for what a claim that was killed half-way leaves."""
        return self.folder.is_dir() and all(path.suffix == ".partial" for path in self.folder.iterdir())

    def records(self) -> Iterator[Record]:
        """The whole records, one after the other; a torn last line is left out."""
        for record, _ in self._lines():
            yield record

    def _lines(self) -> Iterator[tuple[Record, int]]:
        """Every whole record, with the place in the file where it ends."""
        path = self.folder / RECORDS_FILE
        if not path.exists():
            return
        end = 0
        with path.open("rb") as lines:
            torn = 0
            for number, line in enumerate(lines, 1):
                if torn:
                    raise StoreError(f"line {torn} of {path} is damaged; take it out of the file to read the others")
                record = _record_in(line)
                torn = number if record is None else 0
                if record is not None:
                    end += len(line)
                    yield record, end

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record and wait until it is on the disk; refuses when another process wrote here meanwhile."""
        line = json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        path = self.folder / RECORDS_FILE
        is_first_write = self._size is None
        if self._size is None:
            self._size = max((end for _, end in self._lines()), default=0)
        try:
            with path.open("r+b" if path.exists() else "w+b") as handle:
                fcntl.flock(handle, fcntl.LOCK_EX)
                there = handle.seek(0, os.SEEK_END)
                if is_first_write:
                    handle.truncate(self._size)  # what a killed process left of its last line
                elif there != self._size:
                    raise StoreError(f"another process writes to {self.folder}; give every run a folder of its own")
                handle.seek(self._size)
                if self._size and not _ends_a_line(handle, self._size):
                    line = b"\n" + line
                handle.seek(self._size)
                handle.write(line)
                handle.flush()
                os.fsync(handle.fileno())
                self._size += len(line)
            if is_first_write:
                _sync(self.folder)
        except OSError as error:
            self._size = None  # the line may be half there: look again before the next
            raise _cannot_write(self.folder, error) from None

    def begin_again(self) -> None:
        """Forget all records."""
        try:
            (self.folder / RECORDS_FILE).unlink(missing_ok=True)
        except OSError as error:
            raise _cannot_write(self.folder, error) from None
        self._size = None

    def write_start(self, layers: Mapping[str, Tensor]) -> None:
        """Store the first embedding of every layer, in single precision."""
        content = io.BytesIO()
        arrays: dict[str, Any] = {f"layer:{name}": z.float().cpu().numpy() for name, z in layers.items()}
        np.savez(content, **arrays)
        try:
            write_atomic(self.folder / START_FILE, content.getvalue())
        except OSError as error:
            raise _cannot_write(self.folder, error) from None

    def start(self) -> dict[str, Tensor]:
        """The first embedding of every layer."""
        path = self.folder / START_FILE
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return {name.removeprefix("layer:"): torch.from_numpy(arrays[name]) for name in arrays.files}
        except (OSError, ValueError, KeyError, EOFError):
            raise StoreError(
                f"{path} is missing or damaged, so the run cannot go on in it; choose another folder"
            ) from None


_WORDS = {"kind": "kind", "probe": "probe set", "labels": "labelling", "encoder": "encoder"}


def _record_in(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except ValueError:  # torn, or not text
        return None
    return record if isinstance(record, dict) and "step" in record else None


def _ends_a_line(handle: io.BufferedRandom, size: int) -> bool:
    handle.seek(size - 1)
    return handle.read(1) == b"\n"


def _sync(folder: Path) -> None:
    """Wait until the names of its files are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _digest(spec: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()


def _cannot_write(folder: Path, error: OSError) -> StoreError:
    return StoreError(f"cannot write to {folder}: {error.strerror}; choose another folder")
