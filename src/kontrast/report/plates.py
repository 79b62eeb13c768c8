"""Pictures and plates: what a page shows, each with its words, and how they become figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.figure import Figure, FigureBase

PICTURE = (4.6, 3.9)  # inches


@dataclass(frozen=True)
class Picture:
    """One picture: its file's name, its words for those who cannot see it, and how it is drawn."""

    name: str
    description: str
    draw: Callable[[FigureBase], None]


@dataclass(frozen=True)
class Plate:
    """One or two pictures that tell one thing, with the words below them.

    A picture is a file of its own, so that two stand side by side on a wide page and one below the other on a phone.
    """

    name: str
    title: str
    caption: str
    pictures: tuple[Picture, ...]


def picture_figure(picture: Picture) -> Figure:
    """The picture as a figure of its own. Call it, and save what it returns, inside `axes.style`."""
    figure = Figure(figsize=PICTURE, layout="constrained")
    picture.draw(figure)
    return figure


def plate_figure(plate: Plate) -> Figure:
    """The plate's pictures side by side in one figure. Call and save it inside `axes.style`."""
    figure = Figure(figsize=(PICTURE[0] * len(plate.pictures), PICTURE[1]), layout="constrained")
    parts = figure.subfigures(1, len(plate.pictures), squeeze=False, wspace=0.04)[0]
    for picture, part in zip(plate.pictures, parts, strict=True):
        picture.draw(part)
    return figure
