"""A user's own transform as views, by a seed: called on a batch, on one sample after another, or on Pillow images."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kontrast.checks import in_words
from kontrast.data import from_pil, is_pil, to_pil
from kontrast.errors import InputError
from kontrast.nets import failure_of

TRIES = 8  # calls that tell whether samples of a batch share their random numbers
GENERATOR, BATCH, SAMPLE, PIL = "with a generator", "on batches", "sample by sample", "on Pillow images, one by one"


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run under a seed of torch's, numpy's and Python's global random numbers, which are put back afterwards."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    # The streams that users' own code draws from, and no other way reaches them.
    of_numpy, of_python = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=list(devices)):
            torch.manual_seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002
            random.seed(seed)
            yield
    finally:
        np.random.set_state(of_numpy)  # noqa: NPY002
        random.setstate(of_python)


@dataclass(frozen=True)
class Transform:
    """A function that makes views, with the way in which it is called."""

    function: Callable[..., Any]
    how: str

    @classmethod
    def of(cls, function: Callable[..., Any], x: Tensor) -> Transform:
        """The way in which a function takes samples, found by trying it on two.

        One that takes a generator is given one, as kontrast's views are. Others are tried on a batch; where that fails,
        or all samples of a batch get the same random numbers (torchvision's transforms), on one sample after another,
        and at last on Pillow images.
        """
        if _takes_generator(function):
            return cls(function, GENERATOR)
        failed: dict[str, Exception] = {}
        for how in (BATCH, SAMPLE, PIL):
            try:
                with seeded(0):
                    made = cls(function, how)._views(x[:2])
            except Exception as error:  # noqa: BLE001 – whatever a user's function raises on what it does not take
                failed[how] = error
                continue
            if how == BATCH and not cls(function, how)._suits_batches(x, made):
                continue
            return cls(function, how)
        if BATCH not in failed:
            return cls(function, BATCH)
        raise InputError(
            f"{words_of(function)} makes no views of samples of shape {tuple(x.shape[1:])}: "
            f"{failure_of(failed[SAMPLE])}; and on Pillow images: {failure_of(failed[PIL])}"
        ) from failed[SAMPLE]

    def __call__(self, x: Tensor, generator: torch.Generator) -> list[Tensor]:
        """Fresh views of samples, each (n, …): one, or as many as the function makes at once."""
        try:
            if self.how == GENERATOR:
                return _split(self.function(x, generator), len(x))
            seed = int(torch.randint(2**62, (1,), generator=generator, device=generator.device))
            with seeded(seed):
                return self._views(x)
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"{words_of(self.function)} fails on the samples: {failure_of(error)}; mend it") from error

    def _views(self, x: Tensor) -> list[Tensor]:
        if self.how == BATCH:
            return _split(self.function(x.clone()), len(x))
        rows = [_parts(self.function(to_pil(one) if self.how == PIL else one.clone())) for one in x]
        if len({len(row) for row in rows}) > 1:
            raise InputError(f"views must be as many for every sample, got {len(rows[0])} and other numbers")
        return [_stacked(list(view)).to(x.device) for view in zip(*rows, strict=True)]

    def _suits_batches(self, x: Tensor, made: list[Tensor]) -> bool:
        """Whether batches are what the function is for; if not, it is tried sample by sample."""
        if all(view.shape[1:] == x.shape[1:] for view in made):
            return not self._shares_chance(x)
        try:  # a crop written for one image (c, h, w) cuts other axes of a batch
            with seeded(0):
                alone = Transform(self.function, SAMPLE)._views(x[:2])
        except Exception:  # noqa: BLE001
            return True
        as_before = all(view.shape[1] == x.shape[1] for view in alone)
        return not as_before or [view.shape for view in alone] == [view.shape for view in made]

    def _shares_chance(self, x: Tensor) -> bool:
        """Whether two copies of a sample in a batch get the same view, and the next batch another."""
        twice = torch.stack([x[0], x[0]])
        seen = []
        for seed in range(TRIES):
            with seeded(seed):
                seen.append(self._views(twice)[0])
        if any(not torch.equal(one[0], one[1]) for one in seen):
            return False
        return any(not torch.equal(one, seen[0]) for one in seen)


def words_of(function: Callable[..., Any]) -> str:
    """What messages and pages call a transform."""
    name = getattr(function, "__name__", None)
    return f"the function {name}" if isinstance(name, str) else f"the transform {type(function).__name__}"


def _takes_generator(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    plain = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(plain) == 2 and plain[1].name == "generator"


def _split(result: Any, n: int) -> list[Tensor]:
    """The views (n, …) in what a function of a batch returned."""
    views = _parts(result)
    for view in views:
        if view.ndim < 2 or len(view) != n or 0 in view.shape:
            raise InputError(f"views of {n} samples must be (n, …), got shape {tuple(view.shape)}")
    return views


def _parts(result: Any) -> list[Tensor]:
    """The tensors in what a transform returned: one, or several views at once."""
    parts = [_as_tensor(part) for part in (result if isinstance(result, list | tuple) else [result])]
    if not parts:
        raise InputError("the transform made no view")
    return parts


def _as_tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value / 255 if value.dtype == torch.uint8 else value.detach()
    if is_pil(value) or (isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 3):
        return from_pil(value)
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.array(value))
    raise InputError(f"a transform must make tensors, got {in_words(value)}")


def _stacked(views: list[Tensor]) -> Tensor:
    kinds = {(tuple(view.shape), view.dtype) for view in views}
    if len(kinds) > 1:
        (a, _), (b, _), *_ = sorted(kinds, key=str)
        raise InputError(f"views must have one shape and number type, got {a} and {b}; resize them to one size")
    return torch.stack(views)
