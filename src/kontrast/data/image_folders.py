"""Folders of images, `.png` and `.jpg`: all in one folder, or one folder per class, and either below train and test."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kontrast.data.broken_files import explained, require_content
from kontrast.data.conventions import Array, ImageShape, image_sizes
from kontrast.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

READ = (".png", ".jpg", ".jpeg")
FORMATS = ("PNG", "JPEG")  # whatever a file is called, no other reader of Pillow sees its bytes
# Beside images these are samples too, or labels, that must not be left out unseen.
NOT_READ = re.compile(r"\.(npz|npy|csv|bmp|gif|heic|ppm|pgm|tiff?|webp)$|[-.]idx\d", re.IGNORECASE)
PARTS = ("train", "test")
OTHER_PARTS = ("val", "valid", "validation", "dev")
GRAY_MODES = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L")
ORIENTATION = 0x0112  # the tag by which a camera says how it was held; 5 to 8 lie on their side

Images = Sequence[tuple[Path, str | None]]  # each file with its class, where it lies in the folder of one


@dataclass(frozen=True)
class ImageFolder:
    """The images of a folder by their split, or under "all", in the order of classes and then of names."""

    path: Path
    parts: Mapping[str, Images]

    @classmethod
    def find(cls, folder: Path) -> ImageFolder | None:
        """The images of a folder, or None where neither it nor a folder in it holds any."""
        here = _look(folder)
        named = {one.name.lower(): one for one in here.folders}
        if not named or not {*named} <= {*PARTS, *OTHER_PARTS} or not {*named} & {*PARTS}:
            images = _images_of(folder)
            return cls(folder, {"all": images}) if images else None
        parts = {name: _images_of(one) for name, one in named.items()}
        if not any(parts.values()):
            return None
        if unknown := [one.name for name, one in named.items() if name not in PARTS]:
            raise DataError(
                f"{folder} has splits called train and test alone, got {unknown[0]}; give one folder itself"
            )
        _refuse_others(folder, [*here.images, *here.others], "folders of images")
        if empty := [named[name] for name, images in parts.items() if not images]:
            raise DataError(f"{empty[0]} holds no .png or .jpg image; fill it, or remove it")
        return cls(folder, {name: parts[name] for name in PARTS if name in parts})

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits there are: train and test, one of them, or none."""
        return tuple(name for name in self.parts if name in PARTS)

    def read(self, split: str, image_shape: ImageShape | None) -> tuple[Array, Array | None]:
        """Bytes (n, h, w) or (n, 3, h, w), and the numbers of the classes (n,) where there are any.

        Images of all splits have one size, or are resized bilinearly to `image_shape`; they are gray where all are,
        and RGB otherwise, unless `image_shape` has a number of channels. Classes called by whole numbers keep them,
        others are numbered in the order of their names, over all splits.
        """
        if self.splits and split != "all" and split not in self.parts:
            raise DataError(f"{self.path} has no folder {split}; ask for split={self.splits[0]!r}")
        chosen = list(self.parts) if not self.splits or split == "all" else [split]
        labeled = [name for name in chosen if self.parts[name][0][1] is not None]
        if labeled and labeled != chosen:
            raise DataError(f"{self.path} has folders of classes in {labeled[0]} alone; ask for split={labeled[0]!r}")
        gray, (height, width) = self._kind(image_shape)
        images = [one for name in chosen for one in self.parts[name]]
        x = np.empty((len(images), height, width) if gray else (len(images), 3, height, width), dtype=np.uint8)
        for k, (path, _) in enumerate(images):
            x[k] = _pixels(path, gray=gray, size=(width, height))
        numbers = self._numbers()
        return x, np.array([numbers[str(name)] for _, name in images]) if labeled else None

    def _kind(self, image_shape: ImageShape | None) -> tuple[bool, tuple[int, int]]:
        """Whether the images are read as gray, and their height and width; refuses two sizes, unless one is given."""
        heads = [(path, _head(path)) for images in self.parts.values() for path, _ in images]
        gray = all(head.gray for _, head in heads)
        if image_shape is not None:
            *channels, height, width = image_sizes(image_shape)
            if channels and channels[0] not in (1, 3):
                raise DataError(
                    f"{self.path} holds images, of 1 channel (gray) or 3 (RGB), got image_shape {tuple(image_shape)}; "
                    f"give 1 or 3 channels, or image_shape=({height}, {width})"
                )
            return (channels == [1] if channels else gray), (height, width)
        first, like = heads[0]
        for path, head in heads:
            if head.size != like.size:
                raise DataError(
                    f"{self.path} holds images of two sizes, {first.relative_to(self.path)} of "
                    f"{like.size[0]}×{like.size[1]} pixels (height×width) and {path.relative_to(self.path)} of "
                    f"{head.size[0]}×{head.size[1]}; to resize all of them pass image_shape={like.size}"
                )
        return gray, like.size

    def _numbers(self) -> dict[str, int]:
        names = sorted({name for images in self.parts.values() for _, name in images if name is not None})
        whole = all(re.fullmatch(r"-?[0-9]{1,15}", name) for name in names) and len({*map(int, names)}) == len(names)
        return {name: int(name) if whole else k for k, name in enumerate(names)}


class _Folder(NamedTuple):
    """What is to be seen in a folder: images, folders, and files that images must not lie beside."""

    images: list[Path]
    folders: list[Path]
    others: list[Path]


class _Head(NamedTuple):
    """What an image says before it is decoded; `size` is (height, width)."""

    gray: bool
    size: tuple[int, int]


def _look(folder: Path) -> _Folder:
    with explained(folder, "readable folder"):
        seen = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        folders = [path for path in seen if path.is_dir()]
    files = [path for path in seen if path not in folders]
    images = [path for path in files if path.suffix.lower() in READ]
    return _Folder(images, folders, [path for path in files if NOT_READ.search(path.name)])


def _images_of(folder: Path) -> Images:
    """The images of a folder, or those of its folders, each with its folder's name; none where there are none."""
    here = _look(folder)
    classes = {one: _look(one) for one in here.folders}
    holding = [one for one, inside in classes.items() if inside.images]
    if here.images:
        _refuse_others(folder, [*here.others, *holding], "images")
        return [(path, None) for path in here.images]
    if not holding:
        return []
    _refuse_others(folder, here.others, "folders of images")
    for one, inside in classes.items():
        if not inside.images:
            raise DataError(f"{one} holds no .png or .jpg image, as a folder of a class must; fill it, or remove it")
        _refuse_others(one, [*inside.others, *inside.folders], "the images of a class")
    return [(path, one.name) for one, inside in classes.items() for path in inside.images]


def _refuse_others(folder: Path, others: Sequence[Path], beside: str) -> None:
    if others:
        raise DataError(
            f"{folder} holds {others[0].name} beside {beside}; keep .png and .jpg images in a folder of their own, or "
            "give the file itself"
        )


@contextmanager
def _opened(path: Path) -> Iterator[Image]:
    """An image that is not decoded yet, whose errors are explained."""
    from PIL import Image, UnidentifiedImageError

    require_content(path)
    with explained(path, "readable PNG or JPEG image"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of large images and of odd notes that cameras leave in them
        try:
            with Image.open(path, formats=FORMATS) as image:
                yield image
        except UnidentifiedImageError as error:
            raise DataError(f"{path} holds neither a PNG nor a JPEG image; save it again as one") from error
        except Image.DecompressionBombError as error:
            raise DataError(f"{path} is too large ({error}); make it smaller") from error


def _head(path: Path) -> _Head:
    with _opened(path) as image:
        width, height = image.size
        lies = image.format != "PNG" and image.getexif().get(ORIENTATION, 1) >= 5
        return _Head(image.mode in GRAY_MODES, (width, height) if lies else (height, width))


def _pixels(path: Path, *, gray: bool, size: tuple[int, int]) -> Array:
    """The bytes (h, w) or (3, h, w) of an image, upright and without transparency, of `size` (w, h)."""
    from PIL import Image, ImageOps

    with _opened(path) as opened:
        image: Image.Image = opened if opened.format == "PNG" else ImageOps.exif_transpose(opened)
        if image.mode.startswith("I"):  # 16 bits, which Pillow would clip at 255
            image = Image.fromarray(((np.asarray(image).astype(np.int64) + 128) // 257).astype(np.uint8))
        elif image.mode == "P":  # by way of RGBA, as a palette may have transparent colours
            image = image.convert("RGBA")
        image = image.convert("L" if gray else "RGB")
        if image.size != size:
            image = image.resize(size, Image.Resampling.BILINEAR)
        array: np.ndarray[Any, Any] = np.asarray(image)
        return array if gray else array.transpose(2, 0, 1)
