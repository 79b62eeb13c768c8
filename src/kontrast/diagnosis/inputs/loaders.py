"""Views from a loader: batches of pairs, with or without labels, as training loops read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from kontrast.checks import in_words
from kontrast.diagnosis.inputs.samples import as_samples, is_array
from kontrast.diagnosis.inputs.transforms import seeded
from kontrast.errors import InputError, KontrastError
from kontrast.nets import failure_of

FORM = "a loader gives (xa, xb), ((xa, xb), y) or ([xa, xb, …], y)"
AT_ONCE = 64  # samples of a batch, of a Dataset that is no loader yet


@dataclass(frozen=True)
class Batch:
    """Views (b, …) of some samples, and their labels (b,) where there are any."""

    views: list[Tensor]
    labels: Tensor | None


def read_batches(
    loader: Iterable[Any] | Dataset[Any], *, most: int, seed: int, sample_shape: tuple[int, ...] | None
) -> Batch:
    """The first `most` samples of a loader, under a seed; its own generator is left as it was.

    Items whose views have the shape of a sample, `sample_shape`, are single samples.
    """
    if isinstance(loader, Dataset):
        loader = DataLoader(loader, batch_size=min(most, AT_ONCE))
    batches: list[Batch] = []
    with seeded(seed), _generators_kept(loader):
        for item in _items(loader):
            batch = _batch(item, len(batches), sample_shape)
            _require_alike([*batches[:1], batch])
            batches.append(batch)
            if sum(len(one.views[0]) for one in batches) >= most:
                break
    if not batches:
        raise InputError(f"the loader gives no batch; {FORM}")
    views = [torch.cat(parts)[:most] for parts in zip(*(batch.views for batch in batches), strict=True)]
    labels = [batch.labels for batch in batches if batch.labels is not None]
    return Batch(views, torch.cat(labels)[:most] if len(labels) == len(batches) else None)


def _items(loader: Any) -> Iterator[Any]:
    try:
        yield from loader
    except KontrastError:
        raise
    except Exception as error:
        raise InputError(f"the loader fails: {failure_of(error)}; mend it") from error


@contextmanager
def _generators_kept(loader: Any) -> Iterator[None]:
    """Put a loader's own generators back, so that the next pass gives the same."""
    owners = (loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None))
    kept = [
        (own, own.get_state())
        for owner in owners
        if isinstance(own := getattr(owner, "generator", None), torch.Generator)
    ]
    try:
        yield
    finally:
        for own, state in kept:
            own.set_state(state)


def _batch(item: Any, k: int, sample_shape: tuple[int, ...] | None) -> Batch:
    """The views and labels in one item."""
    if isinstance(item, Mapping):
        raise InputError(
            f"the loader gives mappings with {sorted(map(str, item))}; {FORM}, as "
            "((batch['a'], batch['b']) for batch in loader) does"
        )
    if is_array(item) and item.ndim >= 5:
        item = (list(torch.as_tensor(item).unbind(1)),)  # (b, v, c, h, w)
    if not isinstance(item, list | tuple) or not item:
        raise InputError(f"the loader gives one view of each sample, {in_words(item)}; {FORM}")
    views, rest = _parted(item)
    if len(views) < 2:
        raise InputError(f"the loader gives {len(views)} view of each sample, and pairs need 2; {FORM}")
    single = sample_shape is not None and tuple(np.shape(views[0])) == sample_shape
    read = [
        as_samples(f"view {v + 1} of batch {k + 1}", view[None] if single else view) for v, view in enumerate(views)
    ]
    lengths = [len(view) for view in read]
    if len({*lengths}) > 1:
        raise InputError(f"views must be of the same samples, got {' and '.join(map(str, lengths))} in batch {k + 1}")
    return Batch(read, _labels(rest, lengths[0], single=single))


def _parted(item: list[Any] | tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
    """Views and what comes after them; labels are whole numbers, or have fewer axes."""
    first = item[0]
    if isinstance(first, list | tuple):
        return list(first), list(item[1:])
    if not is_array(first):
        return [], list(item)
    n = next((k for k, part in enumerate(item) if not _is_view(part, torch.as_tensor(first))), len(item))
    return list(item[:n]), list(item[n:])


def _is_view(part: Any, first: Tensor) -> bool:
    if not is_array(part) or part.ndim != first.ndim:
        return False
    return torch.as_tensor(part).is_floating_point() == first.is_floating_point()


def _labels(rest: list[Any], n: int, *, single: bool) -> Tensor | None:
    for part in rest:
        if single and isinstance(part, int | np.integer):
            return torch.tensor([int(part)])
        if is_array(part) and part.ndim <= 2 and (value := torch.as_tensor(part).reshape(-1)).numel() == n:
            return None if value.is_floating_point() or value.is_complex() else value.long().cpu()
    return None


def _require_alike(batches: list[Batch]) -> None:
    """Refuse batches of other numbers of views, shapes or number types than the first."""
    first = batches[0].views
    for batch in batches:
        if len(batch.views) != len(first):
            raise InputError(f"batches must have one number of views, got {len(first)} and {len(batch.views)}")
        require_one_kind(batch.views)
    if len(batches) > 1:
        require_one_kind([first[0], batches[-1].views[0]], "batches")


def require_one_kind(views: list[Tensor], what: str = "views") -> None:
    """Refuse views of two shapes or number types."""
    for view in views[1:]:
        if view.shape[1:] != views[0].shape[1:]:
            raise InputError(
                f"{what} must have one shape, got {tuple(views[0].shape[1:])} and {tuple(view.shape[1:])}; pass those "
                "of one size"
            )
        if view.dtype != views[0].dtype:
            raise InputError(f"{what} must have one number type, got {views[0].dtype} and {view.dtype}; convert one")
