"""A diagnosis as files: its numbers, its figure and its page, and the numbers read back.

`diagnosis.nc` is netCDF-3, plain and never pickled, with its own checksum inside: the attribute `sha256` is that of the
file with zeros in its place. Equal numbers give equal bytes.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from kontrast.diagnosis import Diagnosis, Limits
from kontrast.errors import StoreError
from kontrast.report.axes import PRINT_INK, style
from kontrast.report.diagnosis.page import diagnosis_figure, diagnosis_page
from kontrast.report.svg import to_png
from kontrast.runs import write_atomic

RESULT, PAGE, FIGURE = "diagnosis.nc", "diagnosis.html", "figures/diagnosis.png"
FORMAT = 1  # that can be read
KINDS = ("diagnosis", "monitor")
UNSIGNED = "0" * 64
MOST = 2**31  # netCDF-3 has no larger whole numbers
_DIGEST = re.compile(rb"(?<=sha256\0\0\0\0\0\x02\0\0\0\x40)[0-9a-f]{64}")  # the attribute: text of 64 letters


def write_diagnosis(folder: str | Path, d: Diagnosis) -> Path:
    """Write `diagnosis.nc`, `figures/diagnosis.png` and `diagnosis.html` into a folder; return the page's path.

    The same numbers and limits give the same bytes. The page is written last and needs none of the other files.
    """
    folder = Path(folder)
    check_diagnosis_folder(folder)
    with style(PRINT_INK, salt="diagnosis"):
        picture = to_png(diagnosis_figure(d))
    files = {RESULT: to_bytes(d.result), FIGURE: picture, PAGE: diagnosis_page(d).encode()}
    try:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomic(folder / name, content)
    except OSError as error:
        raise _cannot_write(folder, error) from None
    return folder / PAGE


def check_diagnosis_folder(folder: str | Path) -> None:
    """Refuse, before any work, a folder that holds something else or cannot be written to; nothing is made."""
    folder = Path(folder)
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise StoreError(
            f"cannot write the diagnosis to {folder}: {there} is no folder to write to; choose another one"
        )
    found = {path.name for path in folder.iterdir() if path.suffix != ".partial"} if folder.exists() else set()
    ours = {RESULT, PAGE} | ({"spec.json"} if "records.jsonl" in found else set())  # the folder of a monitor
    if found and not ours & found:
        raise StoreError(f"{folder} exists and holds no diagnosis; choose another folder")


def _cannot_write(folder: Path, error: OSError) -> StoreError:
    return StoreError(f"cannot write the diagnosis to {folder}: {error.strerror}; choose another folder")


def read_diagnosis(folder: str | Path, limits: Limits | None = None) -> Diagnosis:
    """The diagnosis in a folder, or in its `diagnosis.nc`; it says what it said, or what follows from other limits."""
    path = Path(folder).expanduser()
    path = path / RESULT if path.is_dir() else path
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StoreError(
            f"there is no diagnosis {path} ({error.strerror}); give the folder that `kontrast diagnose` printed"
        ) from None
    return Diagnosis(from_bytes(content, path), limits or Limits())


# --- bytes ----------------------------------------------------------------------------------------------------------


def to_bytes(result: xr.Dataset) -> bytes:
    """The numbers as a netCDF-3 file that holds its own checksum."""
    data, coords = (  # in order of their names, as reading a file gives variables in another order
        {name: xr.Variable(array.dims, array.values, _attributes(array.attrs)) for name, array in sorted(part.items())}
        for part in (result.data_vars, result.coords)
    )
    plain = xr.Dataset(data, coords, _attributes(result.attrs))
    unsigned = bytes(plain.assign_attrs(sha256=UNSIGNED).to_netcdf(engine="scipy"))
    return _DIGEST.sub(hashlib.sha256(unsigned).hexdigest().encode(), unsigned, count=1)


def _attributes(given: Mapping[Any, Any]) -> dict[str, int | float | str]:
    return {str(name): _plain(value) for name, value in sorted(given.items())}


def _plain(value: Any) -> int | float | str:
    """An attribute as netCDF-3 has it: no truth values, no None, no large whole numbers."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    number = value.item() if isinstance(value, np.generic) else value
    if isinstance(number, bool | int) and -MOST <= number < MOST:
        return int(number)
    return float(number) if isinstance(number, int | float) else str(number)


def from_bytes(content: bytes, path: Path) -> xr.Dataset:
    """The numbers in such a file; refuses one that is damaged, or something else."""
    signed = _DIGEST.search(content)
    if signed is None:
        raise StoreError(f"{path} is no diagnosis, or damaged; give the folder that `kontrast diagnose` printed")
    unsigned = _DIGEST.sub(UNSIGNED.encode(), content, count=1)
    if hashlib.sha256(unsigned).hexdigest().encode() != signed[0]:
        raise StoreError(f"{path} was changed or damaged since it was written; run `kontrast diagnose` again")
    with xr.open_dataset(io.BytesIO(unsigned), engine="scipy") as opened:
        result = opened.load()
    del result.attrs["sha256"]
    kind, made = str(result.attrs.get("kind", "")), int(result.attrs.get("format", 0))
    if kind not in KINDS or made != FORMAT:
        raise StoreError(f"{path} is of another version of kontrast (format {made}); run `kontrast diagnose` again")
    return _with_texts(result).drop_encoding()


def _with_texts(result: xr.Dataset) -> xr.Dataset:
    """Text as numpy's own, which netCDF gives as objects."""
    for name, array in list(result.variables.items()):
        if array.dtype.kind == "O":
            text = (array.dims, array.values.astype(str), array.attrs)
            result = result.assign_coords({name: text}) if name in result.coords else result.assign({name: text})
    result.attrs = {
        key: value.item() if isinstance(value, np.generic) else value for key, value in result.attrs.items()
    }
    return result
