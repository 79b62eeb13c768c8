"""What a diagnosis may be asked to do otherwise, and the limits that turn its numbers into words."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import ClassVar

from kontrast.checks import is_number, require_choice, require_positive, require_whole, resolve_device
from kontrast.errors import InputError

STATISTICS = ("data", "own", "start")
WHOLE_OUTPUTS = 16  # outputs up to which every one has its tangents; of more, random projections


@dataclass(frozen=True)
class Settings:
    """How a diagnosis is made.

    Attributes:
        n_samples: samples that everything but probes is measured on, at even distances where there are more.
        n_views: views of each sample, where views are drawn here.
        n_points: samples between which tangent kernels are computed.
        n_splits: splits of the labelled samples into those that train probes and those that test them.
        n_labelled: labelled samples that probes see at the most.
        statistics: of BatchNorm at every checkpoint: "data" counts them anew on the samples given, "own" takes each
            checkpoint's, "start" those of the start for all.
        outputs: whose tangents make the kernel: "all" dimensions of the embedding, or "project:8" for so many random
            directions, with an error bar. None is all up to 16 dimensions, and project:8 beyond.
        temperature: of the softmax over negatives. None is that of the loss, where it has one.
        width: of a model that a function build(width, generator) makes.
        control: whether a lazy control runs beside the model: the same start, a few tiny steps.
        seed: of everything random.
        device: "cpu", or "cuda" for the first NVIDIA GPU.
    """

    _option_names: ClassVar[dict[str, str | None]] = {"n_views": "--views-per-sample"}

    n_samples: int = 256
    n_views: int = 4
    n_points: int = 32
    n_splits: int = 10
    n_labelled: int = 2000
    statistics: str = "data"
    outputs: str | None = None
    temperature: float | None = None
    width: int | None = None
    control: bool = True
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name, least in (("n_samples", 8), ("n_views", 2), ("n_points", 8), ("n_splits", 2), ("n_labelled", 8)):
            object.__setattr__(self, name, require_whole(name, getattr(self, name), least=least))
        object.__setattr__(self, "seed", require_whole("seed", self.seed, least=0, most=2**63 - 1))
        require_choice("statistics", self.statistics, STATISTICS)
        self.directions(1)
        if self.width is not None:
            object.__setattr__(self, "width", require_whole("width", self.width))
        if self.temperature is not None:
            require_positive(temperature=self.temperature)
        object.__setattr__(self, "device", str(resolve_device(self.device)))

    def directions(self, n_outputs: int) -> int | None:
        """How many random directions stand for so many outputs; None for all of them."""
        if self.outputs == "all" or (self.outputs is None and n_outputs <= WHOLE_OUTPUTS):
            return None
        found = re.fullmatch(r"project:(\d+)", self.outputs or "project:8")
        if not found or int(found[1]) < 2:
            raise InputError(f"outputs must be all or project:8, with 2 directions or more, got {self.outputs!r}")
        return int(found[1]) if int(found[1]) < n_outputs else None


@dataclass(frozen=True)
class Limits:
    """The limits at which a diagnosis changes its words.

    Attributes:
        moved: share of the embedding's own size that it must have moved by to count as trained.
        slope: share of the loss's fall, carried on along its own path, above which the model counts as undertrained.
        gap: error of the linearised prediction, as a share of the embedding's change, up to which it is a kernel
            machine.
        pca: root mean square sine up to which the embedding counts as contrastive PCA of the features at its start.
        margin: accuracy by which training must beat its start and every closed form to pay.
    """

    moved: float = 0.05
    slope: float = 0.5
    gap: float = 0.25
    pca: float = 0.2
    margin: float = 0.01

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if not is_number(value) or not 0 <= value < 1:
                raise InputError(
                    f"{name} must be at least 0 and below 1, got {value}; the default is {getattr(Limits, name)}"
                )
