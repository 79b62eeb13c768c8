"""PNG files that a user asked for by name: where they may be written, and writing them whole or not at all."""

from __future__ import annotations

from pathlib import Path

from kontrast.checks import require_type
from kontrast.errors import InputError, StoreError
from kontrast.runs import write_atomic


def require_png_path(path: str | Path, example: str) -> Path:
    """The path, if a PNG can be written there; `example` is a name to suggest."""
    require_type("path", path, (str, Path), f"pass the name of a file, such as {example!r}")
    path = Path(path)
    if path.suffix.lower() != ".png":
        raise InputError(f"the figure is written as PNG, got the name {path.name!r}; end it in .png")
    if not path.parent.is_dir():
        raise InputError(f"the folder {path.parent} of {path.name} does not exist; make it, or choose one that does")
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file in it, such as {path / example}")
    return path


def write_png(path: Path, content: bytes) -> Path:
    """Write the file, replacing one that is there already; return its path."""
    try:
        write_atomic(path, content)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}; choose a place that is writable") from None
    return path
