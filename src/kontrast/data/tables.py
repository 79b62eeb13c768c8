"""Tables as text, `.csv`: numbers, a line of names or none, and a column of labels where one is named."""

from __future__ import annotations

import csv
import re
import warnings

import numpy as np

from kontrast.data.conventions import LARGEST_EXACT, Array
from kontrast.errors import DataError

DELIMITERS = (",", ";", "\t")
LABEL_NAMES = ("target", "label", "labels", "class", "y", "category", "species")
NO_COLUMN = "none"  # the label column of a table without one


def parse_table(text: str, *, source: str, label_column: str | None = None) -> tuple[Array, Array | None]:
    """Samples (n, d) and, from the column called `label_column` or of this number, labels (n,).

    Fields are separated by commas, semicolons or tabs. The first line names the columns where it has a word and the
    second a number, or where it holds the name `label_column`. Numbers that are all whole count as integers. A column
    that is called like labels is never a feature by accident: it is refused unless `label_column` is given, "none"
    where no column holds labels.
    """
    lines = _lines(text)
    if not lines:
        raise DataError(f"{source} holds no numbers; give a table with one sample per line")
    delimiter = max(DELIMITERS, key=lines[0].count)
    fields = [_fields(line, delimiter) for line in lines[:2]]
    decided = label_column is not None
    label_column = None if label_column == NO_COLUMN else label_column
    names = fields[0] if _is_header(fields, label_column) else None
    n_columns = len(fields[0])
    if names is not None:
        lines = lines[1:]
        if not decided:
            _refuse_labels(names, source)
    if not lines:
        raise DataError(f"{source} holds names of columns and no numbers; give a table with one sample per line")
    for number, line in enumerate(lines):
        if line.count(delimiter) + 1 != n_columns and len(_fields(line, delimiter)) != n_columns:
            raise DataError(
                f"{source} has {n_columns} columns in its first line and {len(_fields(line, delimiter))} in sample "
                f"{number}, counted from 0; save it again"
            )
    label = None if label_column is None else _column(label_column, names, n_columns, source)
    kept = [column for column in range(n_columns) if column != label]
    if not kept:
        raise DataError(f"{source} has one column, the labels, and no samples; give a table of more columns")
    x = _numbers(lines, delimiter, kept, names, source)
    if np.isfinite(x).all() and (x == np.trunc(x)).all() and (np.abs(x) <= LARGEST_EXACT).all():
        x = x.astype(np.int64)
    return x, None if label is None else _labels([_fields(line, delimiter)[label] for line in lines])


def parse_labels(text: str, *, source: str, n_samples: int) -> Array:
    """Labels from one column; where there is one line more than samples, the first is its name."""
    fields = [_fields(line, ",") for line in _lines(text)]
    if not fields or any(len(one) != 1 for one in fields):
        raise DataError(f"{source} must hold labels in one column, got {len(fields[0]) if fields else 'no'} columns")
    values = [one[0] for one in fields]
    return _labels(values[1:] if len(values) == n_samples + 1 else values)


def _lines(text: str) -> list[str]:
    return [line for line in text.replace("\r", "\n").split("\n") if line.strip()]


def _fields(line: str, delimiter: str) -> list[str]:
    try:
        return [field.strip() for field in next(csv.reader([line], delimiter=delimiter))]
    except csv.Error:  # a field beyond the reader's limit: no number, and no name
        return [line]


def _is_header(fields: list[list[str]], label_column: str | None) -> bool:
    if label_column in fields[0] and not _is_number(str(label_column)):
        return True
    below = fields[1] if len(fields) > 1 else ["0"] * len(fields[0])
    return any(not _is_number(up) and _is_number(down) for up, down in zip(fields[0], below, strict=False))


def _refuse_labels(names: list[str], source: str) -> None:
    for name in names:
        if name.lower() in LABEL_NAMES:
            raise DataError(
                f"{source}: the column {name!r} looks like labels; pass label_column={name!r}, or "
                f"label_column={NO_COLUMN!r} to use it as a feature"
            )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _column(name: str, names: list[str] | None, n_columns: int, source: str) -> int:
    if names is not None and names.count(name) == 1:
        return names.index(name)
    if re.fullmatch(r"-?[0-9]{1,9}", name) and -n_columns <= int(name) < n_columns:
        return int(name) % n_columns
    if names is None:
        known = "no line of names"
    elif name in names:
        known = f"{names.count(name)} of them"
    else:
        known = "the columns " + ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    raise DataError(
        f"{source} has no column {name!r} to take the labels from: it has {known}; give a name, or the column's number "
        f"from 0 to {n_columns - 1}"
    )


def _numbers(lines: list[str], delimiter: str, columns: list[int], names: list[str] | None, source: str) -> Array:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return np.loadtxt(lines, delimiter=delimiter, comments=None, quotechar='"', ndmin=2, usecols=columns)
        except (ValueError, IndexError, Warning) as error:
            raise DataError(f"{source} is no table of numbers: {_explained(str(error), names)}") from error


def _explained(error: str, names: list[str] | None) -> str:
    """The words of numpy for what is wrong, with the name of the column."""
    match = re.search(r"could not convert string '(.*)' to float64 at row (\d+), column (\d+)", error, re.S)
    if match is None:
        return f"{' '.join(error.split()).rstrip('.')}; save it again"
    given, row, column = match[1], match[2], int(match[3]) - 1
    name = repr(names[column]) if names is not None and column < len(names) else column
    what = repr(given[:40]) if given.strip() else "nothing"
    return (
        f"column {name} holds {what} in sample {row}, counted from 0; leave the column out, fill the value in, or name "
        "the column as the labels"
    )


def _labels(values: list[str]) -> Array:
    """Labels that are all numbers as numbers, others as text."""
    return np.array([float(value) for value in values] if all(map(_is_number, values)) else values)
