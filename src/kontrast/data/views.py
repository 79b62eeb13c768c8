"""Augmented views: batched, in plain torch, random through a generator alone; and the language they are written in."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kontrast.checks import in_words
from kontrast.data.columns import Columns
from kontrast.data.datasets import Dataset
from kontrast.data.image_views import Affine, Brightness, Contrast, Gray, HorizontalFlip, RandomResizedCrop
from kontrast.data.row_views import GaussianNoise, Masking, Mixup, RelativeNoise
from kontrast.errors import InputError


class View(Protocol):
    """A random map of a batch to a batch of the same shape, number type and device; `str` names it for `parse_view`."""

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """A fresh random view of each sample."""
        ...


@dataclass(frozen=True)
class Compose:
    """Views one after another, `Compose((HorizontalFlip(), GaussianNoise(0.1)))`; nested compositions are flattened."""

    views: tuple[View, ...]

    def __post_init__(self) -> None:
        if not self.views:
            raise InputError("a composition of views needs at least one view, got none; write crop or noise:0.1")
        flat: list[View] = []
        for view in self.views:
            flat.extend(view.views if isinstance(view, Compose) else (view,))
        object.__setattr__(self, "views", tuple(flat))

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Each sample through all views in turn."""
        for view in self.views:
            x = view(x, generator)
        return x

    def __str__(self) -> str:
        return "+".join(map(str, self.views))


def parse_view(text: str) -> View:
    """The view written as `text`: a name, or a name with its numbers, or several of these joined by "+".

    "crop:0.5,1.0" (area) or "crop:0.5,1.0,0.8,1.25" (area and ratio), "flip:0.5", "affine:15,0.05,0.2" (rotation, shift
    and scale), "brightness:0.4", "contrast:0.4" and "gray:0.2" for images; "noise:0.1", "relative-noise:0.1",
    "mask:0.25" and "mixup:0.2" for all samples. A name alone takes its view's own numbers. `str` of a view writes the
    same language.
    """
    views = [_parse_one(part.strip(), text) for part in text.split("+")]
    return views[0] if len(views) == 1 else Compose(tuple(views))


def fresh_view(view: View, x: Tensor, generator: torch.Generator) -> Tensor:
    """A view of a batch; refuses a result of another shape or number type, as a user's own function may return."""
    seen: object = view(x, generator)
    if not isinstance(seen, Tensor) or seen.shape != x.shape or seen.dtype != x.dtype:
        raise InputError(
            f"the view {view} turned {in_words(x)} into {in_words(seen)}; a view must keep number type and shape"
        )
    return seen


def fit_view(view: View, batches: Iterable[Tensor]) -> View:
    """The view for a data set, given in batches: `relative-noise` takes in its deviations, others stay as they are."""
    parts = view.views if isinstance(view, Compose) else (view,)
    if not any(isinstance(part, RelativeNoise) and part.deviation is None for part in parts):
        return view
    columns = Columns.of(batches)
    fitted = tuple(
        part.fitted(columns) if isinstance(part, RelativeNoise) and part.deviation is None else part for part in parts
    )
    return Compose(fitted) if isinstance(view, Compose) else fitted[0]


def default_view(dataset: Dataset) -> View:
    """The default view: crops of half the area or more for images, noise of std 0.1 for rows."""
    return RandomResizedCrop() if dataset.is_image else GaussianNoise(0.1)


def _crop(*bounds: float) -> View:
    """A crop from no numbers, its area, or its area and its ratio."""
    return RandomResizedCrop(*zip(bounds[::2], bounds[1::2], strict=True))


# name: the function that makes the view, and how many numbers it takes
_VIEWS: dict[str, tuple[Callable[..., View], tuple[int, ...]]] = {
    "affine": (Affine, (0, 3)),
    "brightness": (Brightness, (0, 1)),
    "contrast": (Contrast, (0, 1)),
    "crop": (_crop, (0, 2, 4)),
    "flip": (HorizontalFlip, (0, 1)),
    "gray": (Gray, (0, 1)),
    "mask": (Masking, (0, 1)),
    "mixup": (Mixup, (0, 1)),
    "noise": (GaussianNoise, (0, 1)),
    "relative-noise": (RelativeNoise, (0, 1)),
}


def _parse_one(part: str, text: str) -> View:
    name, colon, arguments = part.partition(":")
    if name not in _VIEWS:
        close = difflib.get_close_matches(name.lower(), _VIEWS, n=1)
        raise _unreadable(part, text, f"did you mean {close[0]}?" if close else "no view has this name")
    make, counts = _VIEWS[name]
    try:
        numbers = [float(number) for number in arguments.split(",")] if colon else []
    except ValueError:
        raise _unreadable(part, text, "numbers separated by commas follow the colon") from None
    if len(numbers) not in counts:
        *few, most = counts
        raise _unreadable(part, text, f"{name} takes {', '.join(map(str, few))} or {most} numbers, not {len(numbers)}")
    try:
        return make(*numbers)
    except InputError as error:
        raise InputError(f"{part!r} is not a view: {error}") from None


def _unreadable(part: str, text: str, why: str) -> InputError:
    *names, last = _VIEWS
    return InputError(
        f"cannot read {part!r} in the view {text!r}: {why}; the views are {', '.join(names)} and {last}, "
        "joined by +, as in crop:0.5,1.0+flip+noise:0.05"
    )
