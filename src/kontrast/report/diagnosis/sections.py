"""What a section of the page is: a question, sentences, pictures and tables, in which every number has a definition."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kontrast.diagnosis import Diagnosis
from kontrast.report.plates import Plate


@dataclass(frozen=True)
class Word:
    """The words of a heading, and the variable that defines the numbers below or beside it; none for a label."""

    words: str
    name: str = ""


@dataclass(frozen=True)
class Grid:
    """A table. A cell is a number as text, "94 [93, 95]", whose interval is set below it.

    Attributes:
        title: its caption.
        head: a heading for every column.
        rows: the heading and the cells of every row.
        folded: whether it is closed until the reader opens it.
    """

    title: str
    head: tuple[Word, ...]
    rows: tuple[tuple[Word, tuple[str, ...]], ...]
    folded: bool = False


@dataclass(frozen=True)
class Section:
    """One question.

    Attributes:
        id: its anchor.
        title: the question.
        sentences: the answer in words.
        plates: its pictures.
        grids: its tables.
        absent: why it has no numbers; empty where it has.
    """

    id: str
    title: str
    sentences: tuple[str, ...] = ()
    plates: tuple[Plate, ...] = ()
    grids: tuple[Grid, ...] = ()
    absent: str = ""


def checkpoints_of(d: Diagnosis) -> list[str]:
    """The labels of the checkpoints, the start first."""
    return [str(label) for label in d.result.checkpoint.values] if "checkpoint" in d.result.dims else []


def layers_of(d: Diagnosis) -> list[str]:
    """The layers, in the order in which they run."""
    return [str(layer) for layer in d.result.layer.values] if "layer" in d.result.dims else []


def is_monitor(d: Diagnosis) -> bool:
    """Whether the numbers were recorded by a monitor, which measures neither kernels nor probes."""
    return str(d.result.attrs.get("kind", "")) == "monitor"


def samples_in_words(d: Diagnosis) -> str:
    """How many samples the numbers are over."""
    return f"over {int(d.result.attrs['n_samples']):,} samples"


def written(value: float) -> str:
    """Three digits; a dash where there is no number."""
    return f"{value:.3g}" if math.isfinite(value) else "–"
