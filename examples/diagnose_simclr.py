"""What is your self-supervised model doing? A SimCLR ResNet trained in minutes, broken on purpose, and diagnosed.

    python examples/diagnose_simclr.py [WORD ...] [--data IMAGES] [--size 5000] [--epochs 12] [--folder simclr-runs]

The words are `healthy` (the default) and those of BREAKS below. IMAGES is what `kt.load` reads, such as a `.npz` of
CIFAR-10 images or a folder of images; without it the model sees digits that install with the package. Two CPU cores
take some two minutes for 5,000 images, and ten seconds for `--size 500`. The checkpoints stay, for the command line:

    kontrast diagnose examples/diagnose_simclr.py:build --checkpoint "simclr-runs/hot/epoch_*.pt" --data IMAGES
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kontrast as kt

FEATURES, OUTPUTS = 64, 64  # of the backbone and of the projector
BREAKS = {
    "hot": "SimCLR at temperature 10, the inverse of what was meant",
    "no-augmentation": "SimCLR whose two views are the same image",
    "lr-0": "SimCLR at a learning rate of 0: BatchNorm's running statistics alone move",
    "projector-collapse": "VICReg without its covariance term: all dimensions may say the same",
    "no-stop-gradient": "SimSiam without its stop-gradient: one point for all images is the best answer",
}
RUNS = {"healthy": "SimCLR", "simsiam": "SimSiam with its stop-gradient", **BREAKS}


class Block(nn.Module):
    """Two convolutions, and a shortcut beside them."""

    def __init__(self, d_in: int, d_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(d_in, d_out, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(d_out),
            nn.ReLU(),
            nn.Conv2d(d_out, d_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(d_out),
        )
        self.shortcut = nn.Sequential(nn.Conv2d(d_in, d_out, 1, stride, bias=False), nn.BatchNorm2d(d_out))

    def forward(self, x: Tensor) -> Tensor:
        """Maps (n, c, h, w), of half the side where the stride is 2."""
        return F.relu(self.body(x) + self.shortcut(x))


class SimCLR(nn.Module):
    """A ResNet-8, and the projector that the loss looks through."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            Block(16, 16, stride=1),
            Block(16, 32, stride=2),
            Block(32, FEATURES, stride=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = two_layers(FEATURES, FEATURES, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings (n, 64) of images; a gray one has three equal channels."""
        return self.head(self.backbone(x.expand(-1, 3, -1, -1)))


def two_layers(d_in: int, d_hidden: int, d_out: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(d_in, d_hidden, bias=False), nn.BatchNorm1d(d_hidden), nn.ReLU(), nn.Linear(d_hidden, d_out)
    )


def build(generator: torch.Generator) -> nn.Module:
    """The model at its start; torch draws its weights from a stream that is seeded for you."""
    return SimCLR()


def views_of(how: str, x: Tensor) -> str:
    """What the two views of an image may differ in. Digits must not be mirrored."""
    if how == "no-augmentation":
        return "flip:0"  # never
    return "crop:0.2,1+flip+brightness+contrast+gray" if x.shape[1] == 3 else "affine:25,0.1,0.3+contrast"


def loss_of(how: str) -> Callable[[Tensor, Tensor], Any]:
    """The loss of two views."""
    if how in ("simsiam", "no-stop-gradient"):
        return lambda a, b: -F.cosine_similarity(a, b).mean()
    if how == "projector-collapse":
        return partial(kt.losses.vicreg, covariance=0.0)
    return partial(kt.losses.nt_xent, temperature=10.0 if how == "hot" else 0.2)  # whose temperature can be read


def train(how: str, x: Tensor, folder: Path, *, epochs: int = 12, learning_rate: float = 2e-3, seed: int = 0) -> Path:
    """Train on images (n, c, h, w), one of RUNS; a checkpoint per epoch, `epoch_0.pt` the start. The folder again."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    net, predictor = build(generator), two_layers(OUTPUTS, OUTPUTS // 2, OUTPUTS)  # the predictor is SimSiam's
    parameters = [*net.parameters(), *predictor.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.0 if how == "lr-0" else learning_rate)
    loss, view = loss_of(how), kt.data.parse_view(views_of(how, x))
    batch_size = min(256, max(2, len(x) // 8))
    batches = kt.data.view_batches(x, view, batch_size=batch_size, generator=generator)

    torch.save(net.state_dict(), folder / "epoch_0.pt")
    for epoch in range(1, epochs + 1):
        total = 0.0
        for _ in range(n_steps := len(x) // batch_size):
            views, _ = next(batches)
            a, b = net(views.contiguous(memory_format=torch.channels_last)).chunk(2)  # twice as fast on a CPU
            if how == "simsiam":
                value = (loss(predictor(a), b.detach()) + loss(predictor(b), a.detach())) / 2
            elif how == "no-stop-gradient":
                value = (loss(predictor(a), b) + loss(predictor(b), a)) / 2
            else:
                value = loss(a, b)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            total += value.item()
        torch.save(net.state_dict(), folder / f"epoch_{epoch}.pt")
        print(f"  epoch {epoch:>2}: loss {total / n_steps:.3f}", flush=True)
    return folder


def diagnose(folder: Path, how: str, data: kt.data.Dataset, test: kt.data.Dataset | None = None) -> kt.Diagnosis:
    """What training made of the start, from the first and the last checkpoint of a folder."""
    checkpoints = sorted(folder.glob("epoch_*.pt"), key=lambda path: int(path.stem.removeprefix("epoch_")))
    found = kt.diagnose(
        build(torch.Generator()),
        checkpoints[0],
        checkpoints[-1],
        data=data.x,
        labels=data.y,
        test=None if test is None else (test.x, test.y),
        views=views_of(how, data.x),
        loss=loss_of(how),
        features="backbone",
        head="head",
    )
    print(found)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small SimCLR ResNet, break it on purpose, diagnose it.")
    parser.add_argument("words", nargs="*", default=["healthy"], help=", ".join(RUNS))
    parser.add_argument("--data", default="mnist5k", help="images that kt.load reads")
    parser.add_argument("--size", type=int, default=5000, help="images to train on, at most")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("simclr-runs"))
    options = parser.parse_args()
    if unknown := [word for word in options.words if word not in RUNS]:
        parser.error(f"there is no run {unknown[0]!r}; the words are {', '.join(RUNS)}")

    data, *others = kt.data.load_parts(options.data).values()
    size = min(options.size, len(data))
    data = data.subsample(size, generator=torch.Generator().manual_seed(options.seed))
    for how in options.words:
        print(f"{how}: {RUNS[how]}")
        folder = train(how, data.x, options.folder / how, epochs=options.epochs, seed=options.seed)
        diagnose(folder, how, data, *others)


if __name__ == "__main__":
    main()
