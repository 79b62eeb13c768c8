"""What is wrong with files that cannot be read, in one line with the fix."""

from __future__ import annotations

import gzip
import lzma
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kontrast.errors import DataError, KontrastError

# What numpy, zipfile, gzip and Pillow raise on broken bytes, found by cutting, flipping and inserting bytes.
CORRUPT = (
    ValueError,  # numpy: wrong header, short data, pickled objects; also text that does not decode
    EOFError,  # gzip, numpy: the file ends early
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    zlib.error,
    lzma.LZMAError,  # zipfile: a flipped byte can name another compression
    RuntimeError,  # zipfile: an encrypted member; its subclass NotImplementedError: an unknown compression
    tokenize.TokenError,  # numpy: a header that is no Python literal; so are the next two
    SyntaxError,
    TypeError,
    MemoryError,  # a header that promises more than can be allocated, and the next, more than can be counted
    OverflowError,
    struct.error,  # Pillow: a part of an image that is too short
    Warning,  # numpy: an oddly spelled header, where the caller turns warnings into errors
)


def require_content(path: Path) -> None:
    """Refuse a file of 0 bytes."""
    with explained(path, "readable file"):
        size = os.stat(path).st_size
    if size == 0:
        raise DataError(f"{path} is empty (0 bytes); download or save it again")


@contextmanager
def explained(path: Path, kind: str) -> Iterator[None]:
    """Turn what a reader raises on broken bytes, or the system on a file it cannot open, into one line with the fix."""
    try:
        yield
    except KontrastError:
        raise
    except CORRUPT as error:
        raise DataError(f"{path} is not a {kind} ({type(error).__name__}); download or save it again") from error
    except OSError as error:
        if error.errno is None:  # not the system's: Pillow's, for bytes that are no image, or end early
            raise DataError(f"{path} is not a {kind} ({error}); download or save it again") from error
        raise DataError(
            f"{path} cannot be read: {error.strerror or error}; check the path and its permissions"
        ) from error
