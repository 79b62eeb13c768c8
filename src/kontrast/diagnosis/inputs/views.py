"""Views of samples however users have them: a text, a transform, tensors, lists for each image, or a loader."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from kontrast.checks import in_words, require_whole
from kontrast.data import View, fit_view, parse_view
from kontrast.diagnosis.inputs.loaders import Batch, read_batches, require_one_kind
from kontrast.diagnosis.inputs.samples import as_samples, is_array
from kontrast.diagnosis.inputs.transforms import GENERATOR, PIL, Transform, words_of
from kontrast.errors import InputError

MOST = 512  # samples that are read
FORMS = (
    "pass a text such as 'crop+flip', a transform, a tuple of tensors (xa, xb), a list of views for each image, or a "
    "loader of (xa, xb)"
)


@dataclass(frozen=True, eq=False)
class Views:
    """Several views of each of n samples.

    Attributes:
        views: (n, v, …).
        samples: the clean samples (n, …), where they are known.
        labels: (n,), where a loader gave them.
        words: what they are, for pages.
        view: the augmentation, where it is one of kontrast's.
        fresh: a new view of any samples, where views are made and not given.
        rows: which of the samples given these are, where there were more.
        notes: what was done to have them, in sentences.
    """

    views: Tensor
    samples: Tensor | None
    labels: Tensor | None
    words: str
    view: View | None = None
    fresh: Callable[[Tensor, torch.Generator], Tensor] | None = None
    rows: Tensor | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n, v = self.views.shape[:2]
        if n < 2:
            raise InputError("views must be of at least 2 samples, got 1; one sample has nothing to differ from")
        if v < 2:
            raise InputError(f"each sample needs at least 2 views, got {v}; {FORMS}")

    @property
    def pair(self) -> tuple[Tensor, Tensor]:
        """The first two views of every sample."""
        return self.views[:, 0], self.views[:, 1]


def read_views(views: Any, data: Any = None, *, n_views: int = 4, most: int = MOST, seed: int = 0) -> Views:
    """Views of up to `most` samples; the same call gives the same views.

    Args:
        views: a text of kontrast's (see `parse_view`), a view or any callable; tensors, one for each view, or a list of
            views for each image; a DataLoader or other iterable of (xa, xb), ((xa, xb), y) or ([xa, xb, …], y).
        data: clean samples (n, …), which a text or a callable needs; of more than `most`, some at even distances.
        n_views: how many views a text or a callable makes of each sample.
        most: samples to read.
        seed: of all random numbers; the global streams are left as they were.
    """
    n_views, most = require_whole("n_views", n_views, least=2), require_whole("most", most, least=2)
    seed = require_whole("seed", seed, least=0, most=2**63 - 1)
    x = None if data is None else as_samples("data", data)
    if isinstance(views, str) or (callable(views) and not isinstance(views, DataLoader | Dataset)):
        return _made(views, x, n_views, most, seed)
    if is_array(views):
        views = _views_of_one_array(views, x)
    if isinstance(views, list | tuple) and (given := _given(views, x)):
        return _from_tensors(given, x, most)
    if not isinstance(views, Iterable) and not isinstance(views, Dataset):
        raise InputError(f"views must tell how samples are augmented, got {in_words(views)}; {FORMS}")
    batch = read_batches(views, most=most, seed=seed, sample_shape=None if x is None else tuple(x.shape[1:]))
    kind = "batches" if isinstance(views, list | tuple) else f"a {type(views).__name__}"
    return Views(torch.stack(batch.views, 1), None, batch.labels, f"{len(batch.views)} views from {kind}")


# --- views that are made --------------------------------------------------------------------------------------------


def _made(views: Any, x: Tensor | None, n_views: int, most: int, seed: int) -> Views:
    """Views by a text, one of kontrast's views, or a callable of the user's."""
    if x is None:
        raise InputError(f"views {_named(views)} are made of samples, and there are none; pass data")
    if len(x) < 2:
        raise InputError("data must hold at least 2 samples, got 1; one sample has nothing to differ from")
    view = parse_view(views) if isinstance(views, str) else views
    own = type(view).__module__.startswith("kontrast.data.")
    if own:
        view = fit_view(view, [x])
    rows = _rows(len(x), most)
    samples = x if rows is None else x[rows.to(x.device)]
    transform = Transform(view, GENERATOR) if own else Transform.of(view, samples)
    generator = torch.Generator().manual_seed(seed)
    seen: list[Tensor] = []
    while len(seen) < n_views:
        seen += transform(samples, generator)
    require_one_kind(seen)
    notes = [f"{words_of(view)} was given Pillow images of 8 bits"] if transform.how == PIL else []
    return Views(
        torch.stack(seen[:n_views], 1),
        samples,
        None,
        _named(view) if own else words_of(view),
        view=view if own else None,
        fresh=lambda new, g: transform(new, g)[0],
        rows=rows,
        notes=tuple(notes),
    )


def _named(views: Any) -> str:
    own = type(views).__module__.startswith("kontrast.data.")
    return repr(views) if isinstance(views, str) else str(views) if own else words_of(views)


def _rows(n: int, most: int) -> Tensor | None:
    """At most so many rows at even distances, since folders of classes come sorted; None for all."""
    return None if n <= most else torch.linspace(0, n - 1, most, dtype=torch.float64).round().long()


# --- views that are given -------------------------------------------------------------------------------------------


def _from_tensors(given: Batch, x: Tensor | None, most: int) -> Views:
    """Views in tensors, one (n, …) for each view."""
    seen = given.views
    if len(seen) < 2:
        raise InputError(f"each sample needs at least 2 views, got 1; {FORMS}")
    lengths = [len(view) for view in seen]
    if len({*lengths}) > 1:
        raise InputError(f"views must be of the same samples, got {' and '.join(map(str, lengths))} of them")
    require_one_kind(seen)
    rows = _rows(lengths[0], most)
    clean = x if x is not None and len(x) == lengths[0] else None
    if rows is not None:
        seen = [view[rows.to(view.device)] for view in seen]
        clean = None if clean is None else clean[rows.to(clean.device)]
    return Views(
        torch.stack([view.to(seen[0].device) for view in seen], 1), clean, None, f"{len(seen)} views given", rows=rows
    )


def _views_of_one_array(views: Any, x: Tensor | None) -> list[Any]:
    """The views in one array (n, v, …); refuses what is one view."""
    if views.ndim >= 5 or (x is not None and views.ndim == x.ndim + 1 and len(views) == len(x)):
        return [views[:, v] for v in range(views.shape[1])]
    raise InputError(f"views of shape {tuple(views.shape)} are one view of each sample; {FORMS}")


def _given(views: list[Any] | tuple[Any, ...], x: Tensor | None) -> Batch | None:
    """The views in a tuple or list, one tensor for each; None where its items are batches."""
    if not views:
        raise InputError(f"views are an empty {type(views).__name__}; {FORMS}")
    if all(is_array(view) for view in views):
        if isinstance(views, list) and _is_by_image(views, x):
            return Batch(_turned([list(image) for image in views]), None)
        return Batch([as_samples(f"view {k + 1}", view) for k, view in enumerate(views)], None)
    if all(isinstance(item, list | tuple) and item for item in views):
        first = views[0][0]
        single = x.ndim - 1 if x is not None else None
        if is_array(first) and (first.ndim in (1, 3) if single is None else first.ndim == single):
            return Batch(_turned([list(image) for image in views]), None)
        return None
    raise InputError(
        f"views must be arrays, or lists of them, got a {type(views).__name__} of {in_words(views[0])}; {FORMS}"
    )


def _is_by_image(views: list[Any], x: Tensor | None) -> bool:
    """Whether a list of arrays has one (v, …) for each image, and not one (n, …) for each view."""
    if x is not None and len(views) != len(views[0]):
        return len(views) == len(x)
    return len(views) > len(views[0])


def _turned(images: list[list[Any]]) -> list[Tensor]:
    """One tensor for each view out of a list of views for each image."""
    counts = [len([view for view in image if is_array(view)]) for image in images]
    for k, count in enumerate(counts):
        if count != counts[0]:
            raise InputError(
                f"every image must have one number of views, got {counts[0]} of the first and {count} of number {k + 1}"
            )
    turned = []
    for v in range(counts[0]):
        column = [torch.as_tensor(image[v]) for image in images]
        require_one_kind([view[None] for view in column])
        turned.append(as_samples(f"view {v + 1}", torch.stack(column)))
    return turned
