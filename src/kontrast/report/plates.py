"""Pictures and plates: what a page shows, each with its words, and how they become figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from matplotlib.figure import Figure, FigureBase

PICTURE = (4.6, 3.9)  # inches
COLUMNS = 3  # the most pictures side by side in a PNG


@dataclass(frozen=True)
class Picture:
    """One picture: its file's name, its words for those who cannot see it, and how it is drawn.

    `links` has the words of every link in it by its fragment, to which the page adds the picture's name.
    """

    name: str
    description: str
    draw: Callable[[FigureBase], None]
    size: tuple[float, float] = PICTURE
    links: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plate:
    """Some pictures, mostly one or two, that tell one thing, with the words below them.

    A picture is a file of its own, so that two stand side by side on a wide page and one below the other on a phone.
    """

    name: str
    title: str
    caption: str
    pictures: tuple[Picture, ...]


def picture_figure(picture: Picture) -> Figure:
    """The picture as a figure of its own. Call it, and save what it returns, inside `axes.style`."""
    figure = Figure(figsize=picture.size, layout="constrained")
    picture.draw(figure)
    return figure


def plate_figure(plate: Plate) -> Figure:
    """The plate's pictures, all of one size, side by side in one figure. Call and save it inside `axes.style`."""
    n, (width, height) = len(plate.pictures), plate.pictures[0].size
    rows, columns = math.ceil(n / COLUMNS), min(n, COLUMNS)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    parts = figure.subfigures(rows, columns, squeeze=False, wspace=0.04)
    for picture, part in zip(plate.pictures, parts.flat, strict=False):
        picture.draw(part)
    return figure
