from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import integers, sampled_from
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from kontrast.data import Affine, RelativeNoise, parse_view, to_pil
from kontrast.diagnosis.inputs import read_views
from kontrast.errors import InputError, KontrastError
from tests.cases import generator, randn
from tests.diagnosis.inputs.models import images

X = images(10)
A, B = X + 0.1, X - 0.1
Y = torch.arange(10) % 3


def noisy(x: Tensor) -> Tensor:
    return x + torch.randn_like(x)


def flipped_by_numpy(x: Tensor) -> Tensor:
    """As torchvision does: one draw for all it is given."""
    return x.flip(-1) if np.random.rand() < 0.5 else x  # noqa: NPY002


def moved_by_python(x: Tensor) -> Tensor:
    return x.roll(random.randrange(8), -1)


def cropped(image: Tensor) -> Tensor:
    """A crop of one image (c, h, w)."""
    i, j = random.randrange(3), random.randrange(3)
    return image[:, i : i + 6, j : j + 6]


class PilOnly:
    """A transform that takes Pillow images and gives tensors, as torchvision's first generation does."""

    def __call__(self, image: Any) -> Tensor:
        from PIL import Image

        if not isinstance(image, Image.Image):
            raise TypeError(f"pic should be PIL Image. Got {type(image)}")
        array = np.asarray(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else image)
        return torch.from_numpy(array.transpose(2, 0, 1).copy()).float() / 255


def two_at_once(x: Tensor) -> tuple[Tensor, Tensor]:
    return noisy(x), noisy(x)


MADE: list[Any] = [
    "affine",
    "crop+flip",
    Affine(),
    parse_view("relative-noise:0.1"),
    noisy,
    flipped_by_numpy,
    moved_by_python,
    cropped,
    PilOnly(),
    two_at_once,
    nn.Dropout(0.3),
    lambda x, generator: x + torch.rand(x.shape, generator=generator),
]


@pytest.mark.parametrize("views", MADE, ids=lambda v: getattr(v, "__name__", type(v).__name__))
def test_made_views_are_given_by_the_seed_and_leave_no_trace(views: Any) -> None:
    x = X.float()
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    first, again, other = (read_views(views, x, n_views=3, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()  # noqa: NPY002
    assert before[2] == random.getstate()
    assert first.views.shape[:2] == (10, 3)
    assert torch.equal(first.views, again.views)
    assert not torch.equal(first.views, other.views)
    assert not torch.equal(first.views[:, 0], first.views[:, 1])
    assert torch.equal(first.samples, x)
    assert first.fresh(x[:4], generator(3)).shape == first.views[:4, 0].shape
    assert torch.equal(first.fresh(x[:4], generator(3)), first.fresh(x[:4], generator(3)))


def test_a_transform_of_one_image_draws_for_each() -> None:
    """Where samples of a batch would share their random numbers, each gets its own."""
    same = X[:1].repeat(40, 1, 1, 1)
    for views in (flipped_by_numpy, moved_by_python, cropped, PilOnly()):
        assert len(read_views(views, same).views[:, 0].unique(dim=0)) > 1
    assert read_views(cropped, X).views.shape == (10, 4, 3, 6, 6)


def test_pillow_gets_what_the_tensor_holds() -> None:
    x = (X * 255).round() / 255
    seen = read_views(PilOnly(), x.float())
    assert seen.notes == ("the transform PilOnly was given Pillow images of 8 bits",)
    for view in seen.views.unbind(1):
        for image, sample in zip(view, x.float(), strict=True):
            assert torch.equal(image, sample) or torch.equal(image, sample.flip(-1))


def test_kontrasts_views_are_named_fitted_and_kept() -> None:
    seen = read_views("relative-noise:0.2", X)
    assert isinstance(seen.view, RelativeNoise)
    torch.testing.assert_close(seen.view.deviation, X.std(0, correction=0))
    assert seen.words == str(seen.view) == "relative-noise:0.2"
    assert read_views(noisy, X).view is None
    assert read_views(noisy, X).words == "the function noisy"


class Pairs(Dataset[Any]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, k: int) -> Any:
        return (A[k], B[k]), int(Y[k])


def collated(kind: str) -> Iterator[Any]:
    for rows in torch.arange(10).split(4):
        a, b, y = A[rows], B[rows], Y[rows]
        yield {
            "pairs": (a, b),
            "pairs and labels": ((a, b), y),
            "a list and labels": [[a, b], y, ["names"] * len(y)],
            "flat": (a, b, y),
            "flat, a column of labels": [a, b, y[:, None]],
            "one tensor": torch.stack([a, b], 1),
            "bytes": [(v * 255).round().clamp(0, 255).to(torch.uint8) for v in (a, b)],
        }[kind]


GIVEN: dict[str, tuple[Any, bool]] = {
    "two tensors": ((A, B), False),
    "two tensors in a list": ([A, B], False),
    "arrays": ((A.numpy(), B.numpy()), False),
    "channels last": ((A.numpy().transpose(0, 2, 3, 1), B.numpy().transpose(0, 2, 3, 1)), False),
    "a tensor for each image": (list(torch.stack([A, B], 1)), False),
    "lists for each image": ([[a, b] for a, b in zip(A, B, strict=True)], False),
    "tuples for each image": ([(a.numpy(), b.numpy()) for a, b in zip(A, B, strict=True)], False),
    "one tensor": (torch.stack([A, B], 1), False),
    "a data set": (Pairs(), True),
    "a loader": (DataLoader(Pairs(), batch_size=3), True),
    "a loader of tensors": (DataLoader(TensorDataset(A, B, Y), batch_size=4), True),
    "batches in a list": ([(A[:5], B[:5]), (A[5:], B[5:])], False),
    "single items": (zip(A, B, strict=True), False),
    **{
        kind: (kind, "label" in kind or kind == "flat")
        for kind in ("pairs", "pairs and labels", "a list and labels", "flat")
    },
    "flat, a column of labels": ("flat, a column of labels", True),
    "one tensor in batches": ("one tensor", False),
}


@pytest.mark.parametrize("kind", GIVEN)
def test_given_views_are_read_however_they_come(kind: str) -> None:
    given, labelled = GIVEN[kind]
    seen = read_views(collated(given) if isinstance(given, str) else given, X)
    assert torch.equal(seen.views, torch.stack([A, B], 1))
    assert (seen.labels is not None) == labelled
    assert seen.labels is None or torch.equal(seen.labels, Y)
    assert seen.fresh is None
    assert all(torch.equal(one, view) for one, view in zip(seen.pair, (A, B), strict=True))


@pytest.mark.parametrize("kind", [k for k in GIVEN if k not in ("single items",)])
def test_clean_samples_are_not_needed(kind: str) -> None:
    given, _ = GIVEN[kind]
    seen = read_views(collated(given) if isinstance(given, str) else given)
    assert torch.equal(seen.views, torch.stack([A, B], 1))
    assert seen.samples is None


def test_bytes_are_scaled() -> None:
    seen = read_views(collated("bytes"))
    torch.testing.assert_close(seen.views, torch.stack([A, B], 1).clamp(0, 1).float(), atol=0.5 / 255 + 1e-6, rtol=0)
    gray = (X[:, 0] * 255).round().to(torch.uint8).numpy()
    assert read_views("flip", gray).samples.shape == (10, 1, 8, 8)
    assert float(read_views("flip", gray).samples.max()) <= 1


def test_a_shuffled_loader_gives_the_same_views_and_goes_on_as_before() -> None:
    loader = DataLoader(Pairs(), batch_size=3, shuffle=True, generator=generator(4))
    state = loader.generator.get_state()
    first, again = read_views(loader), read_views(loader)
    assert torch.equal(first.views, again.views)
    assert torch.equal(state, loader.generator.get_state())
    without = DataLoader(Pairs(), batch_size=3, shuffle=True)
    assert torch.equal(read_views(without).views, read_views(without).views)


@given(most=integers(2, 30), n=integers(2, 30), kind=sampled_from(["text", "tensors", "loader"]))
@settings(max_examples=30)
def test_no_more_samples_than_asked_for(most: int, n: int, kind: str) -> None:
    x = randn(n, 5)
    given = {"text": "noise", "tensors": (x, -x), "loader": ((x[k : k + 4], -x[k : k + 4]) for k in range(0, n, 4))}[
        kind
    ]
    seen = read_views(given, x, most=most)
    assert len(seen.views) == min(n, most)
    if kind != "loader":
        assert (seen.rows is None) == (n <= most)
        rows = torch.arange(n) if seen.rows is None else seen.rows
        assert torch.equal(seen.samples, x[rows])
        assert len(rows.unique()) == len(rows)
        assert {0, n - 1} <= set(rows.tolist())


def test_an_endless_loader_is_read_as_far_as_needed() -> None:
    def endless() -> Iterator[Any]:
        while True:
            yield A, B

    assert len(read_views(endless(), most=25).views) == 25


def test_tokens_stay_whole_numbers() -> None:
    ids = torch.randint(0, 7, (6, 5), generator=generator(1))
    seen = read_views((ids, ids.flip(1)), ids)
    assert seen.views.dtype == torch.int64
    assert torch.equal(seen.samples, ids)


class Fails:
    def __call__(self, x: Any) -> Any:
        raise ValueError("no\nway")


NAN = torch.where(torch.arange(10)[:, None, None, None] == 3, torch.nan, X)
SMALL = A[:, :, :6]
BAD: list[tuple[Any, Any, str]] = [
    (3, X, "views must tell how samples are augmented, got int; pass a text such as 'crop"),
    (None, X, "got NoneType"),
    ("afine", X, "did you mean affine"),
    ("crop", None, "views 'crop' are made of samples, and there are none; pass data"),
    ("crop", X[:1], "data must hold at least 2 samples, got 1"),
    ("crop", randn(10, 5), "crop needs images"),
    ("noise", NAN, "data holds NaN or infinite values; remove or replace these samples"),
    ("noise", "x.npz", r"data must be a tensor or an array \(n, …\), got str"),
    ("noise", torch.ones(3), r"data must be samples \(n, …\) with no size of 0, got shape \(3,\)"),
    (Fails(), X, "the transform Fails makes no views of samples of shape .*ValueError: no way; and on Pillow images"),
    (PilOnly(), 3 * X, r"Pillow's images have values in \[0, 1\].*pass samples before normalisation"),
    (lambda x: None, X, "a transform must make tensors, got NoneType"),
    (lambda x: x[..., : random.randrange(3, 8)], X, "views must have one shape"),
    ((A, B[:7]), X, "views must be of the same samples, got 10 and 7 of them"),
    ((A, SMALL), X, r"views must have one shape, got \(3, 8, 8\) and \(3, 6, 8\)"),
    ((A, B.float()), X, "views must have one number type, got torch.float64 and torch.float32"),
    ((A, NAN), X, "view 2 holds NaN"),
    ((A,), X, "each sample needs at least 2 views, got 1"),
    (A, X, "are one view of each sample"),
    ((A[:1], B[:1]), None, "views must be of at least 2 samples, got 1"),
    ([], X, "views are an empty list"),
    (["crop", "flip"], X, "views must be arrays, or lists of them, got a list of str"),
    ([[A[0], B[0]], [A[1]]], X, "every image must have one number of views, got 2 of the first and 1 of number 2"),
    ([[A[0], SMALL[0]], [A[1], SMALL[1]]], X, "views must have one shape"),
    (iter([]), X, "the loader gives no batch"),
    (iter([A]), X, "the loader gives one view of each sample"),
    (iter([(A, Y)]), X, "the loader gives 1 view of each sample, and pairs need 2"),
    (iter([{"image": A}]), X, r"the loader gives mappings with \['image'\]"),
    (iter([(A, B[:4])]), X, "views must be of the same samples, got 10 and 4 in batch 1"),
    (iter([(A, SMALL)]), X, "views must have one shape"),
    (iter([(A, B), (SMALL, SMALL)]), X, "batches must have one shape"),
    (iter([(A, B), (A, B, A)]), X, "batches must have one number of views, got 2 and 3"),
    (iter([(A[:1], B[:1])]), X, "at least 2 samples, got 1"),
    ((1 / k for k in [0]), X, "the loader fails: ZeroDivisionError"),
]


@pytest.mark.parametrize("views, data, words", BAD)
def test_bad_views_are_one_line(views: Any, data: Any, words: str) -> None:
    with pytest.raises(KontrastError, match=words) as refused:
        read_views(views, data)
    assert "\n" not in str(refused.value)


def test_bad_numbers() -> None:
    for option in ({"n_views": 1}, {"most": 1}, {"seed": -1}, {"n_views": 2.5}):
        with pytest.raises(InputError, match=f"{next(iter(option))} must be a whole number"):
            read_views("noise", X, **option)  # type: ignore[arg-type]


def test_what_pillow_cannot_hold() -> None:
    with pytest.raises(InputError, match="only images"):
        to_pil(randn(4, 4))
