"""Embed a folder of images of your own, without labels and without training, and find each image's neighbours.

    python examples/embed_your_images.py [FOLDER [SHEET.png]]

Without a folder it makes one, of scikit-learn's handwritten digits. Images of any size are brought to one size; where
one has colours all are RGB.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import kontrast as kt

SIDE = 32  # pixels; larger shows more, and takes longer
N_QUERIES, N_NEIGHBORS = 6, 5


def make_folder(folder: Path) -> None:
    """600 digits as PNG files, named by their number alone."""
    digits = kt.load("digits").subsample(600, generator=torch.Generator().manual_seed(0))
    for i, image in enumerate(digits.x[:, 0]):
        pixels = (255 * image).byte().numpy()
        Image.fromarray(pixels).resize((SIDE, SIDE)).save(folder / f"{i:03d}.png")


def read_folder(folder: Path) -> tuple[list[Path], np.ndarray]:
    """The paths of the images below `folder`, and their pixels (n, h, w) or (n, h, w, 3), bytes."""
    paths = sorted(p for p in folder.rglob("*") if p.suffix.lower() in (".png", ".jpg", ".jpeg"))
    if len(paths) <= N_NEIGHBORS:
        raise SystemExit(f"{folder} holds {len(paths)} images (.png, .jpg); give a folder of {N_NEIGHBORS + 1} or more")
    images = [Image.open(path) for path in paths]
    mode = "L" if all(image.mode in ("1", "L", "I;16") for image in images) else "RGB"
    return paths, np.stack([np.asarray(image.convert(mode).resize((SIDE, SIDE))) for image in images])


def neighbors(z: torch.Tensor, queries: list[int]) -> torch.Tensor:
    """The numbers of the images of the largest cosine similarity to each query, itself left out."""
    directions = torch.nn.functional.normalize(z, dim=1)
    similarity = directions[queries] @ directions.T
    similarity[torch.arange(len(queries)), queries] = -torch.inf
    return similarity.topk(N_NEIGHBORS).indices


def draw(path: Path, x: np.ndarray, queries: list[int], near: torch.Tensor) -> None:
    """A contact sheet: a query in the first column, its neighbours beside it."""
    gap, step = 6, SIDE + 4
    sheet = Image.new("RGB", (gap + step * (1 + N_NEIGHBORS), step * len(queries)), "white")
    for row, (query, found) in enumerate(zip(queries, near.tolist(), strict=True)):
        for column, place in enumerate([query, *found]):
            sheet.paste(Image.fromarray(x[place]).convert("RGB"), (column * step + gap * (column > 0), row * step))
    sheet.resize((3 * sheet.width, 3 * sheet.height), Image.Resampling.NEAREST).save(path)


def main(folder: Path, sheet: Path) -> None:
    paths, x = read_folder(folder)
    # Crops and flips are for photographs; digits must not be mirrored.
    views = "crop:0.5,1+flip+brightness+contrast" if x.ndim == 4 else "affine"
    n_components = min(32, len(x) // 4)
    model = kt.SpectralContrastive(n_components, width=32, features="patches", views=views, n_views=4)
    z = torch.from_numpy(model.fit_transform(x))

    queries = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))[:N_QUERIES].tolist()
    near = neighbors(z, queries)
    print(f"{len(x)} images of {x[0].size} values → {z.shape[1]} dimensions")
    for query, found in zip(queries, near.tolist(), strict=True):
        print(f"{paths[query].name}: {' '.join(paths[place].name for place in found)}")
    draw(sheet, x, queries, near)
    print("sheet:", sheet)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else Path("neighbours.png"))
    else:
        with tempfile.TemporaryDirectory() as made:
            make_folder(Path(made))
            main(Path(made), Path("neighbours.png"))
