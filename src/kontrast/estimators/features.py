"""The argument `features=`: a word, a word with its own options, or an encoder, made into a frozen map or a kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor

from kontrast.checks import require_choice, require_positive, require_whole
from kontrast.errors import InputError
from kontrast.estimators.samples import Samples
from kontrast.kernels import CosineKernel, GaussianKernel, InfiniteNetwork, Kernel, NetworkKernel
from kontrast.nets import (
    EncoderFeatures,
    FeatureMap,
    FourierFeatures,
    NetworkFeatures,
    PatchFeatures,
    ScaledFeatures,
    check_shape,
    median_distance,
)

LANDMARKS = 2048
SAMPLES_LOOKED_AT = 5000  # for the length scale of Fourier features, and to cut patches from


@dataclass(frozen=True)
class Network:
    """`features="random"`: the last hidden layer of a random network, with the estimator's activation and depth."""


@dataclass(frozen=True)
class Fourier:
    """`features="fourier"`: random Fourier features; the length scale is the median distance between samples."""

    length_scale: float | None = None

    def __post_init__(self) -> None:
        if self.length_scale is not None:
            require_positive(length_scale=self.length_scale)


@dataclass(frozen=True)
class Patches:
    """`features="patches"`: convolutions of images with `width` whitened random patches; see `nets.PatchFeatures`.

    `size` is the side of a patch; None is a fifth of the image's, and at least 3. Responses above `threshold` are
    averaged over `grid` × `grid` cells. `contrast_floor` is the deviation below which a patch counts as flat: 0.1 suits
    drawings, 0.03 photographs.
    """

    size: int | None = None
    grid: int = 3
    threshold: float = 0.5
    two_sided: bool = False
    contrast_floor: float = 0.1


WORDS: dict[str, Network | Fourier | Patches] = {"random": Network(), "fourier": Fourier(), "patches": Patches()}
Encoder = Callable[[Tensor], Tensor]
FeatureChoice = str | Network | Fourier | Patches | Encoder


def read_choice(features: Any) -> Network | Fourier | Patches | Encoder:
    """The features that were chosen; refuses what is no choice."""
    chosen = WORDS.get(features) if isinstance(features, str) else features
    if isinstance(chosen, Network | Fourier | Patches) or callable(chosen):
        return chosen
    given = repr(features) if isinstance(features, str) else type(features).__name__
    raise InputError(f"features must be one of {', '.join(WORDS)}, an nn.Module or a function, got {given}")


def choice_state(features: Any) -> Any:
    """The choice in JSON: the word that was given, or its options; None for an encoder."""
    if isinstance(features, str):
        return features
    for word, kind in WORDS.items():
        if isinstance(features, type(kind)):
            return {"kind": word, **asdict(features)}
    return None


def choice_from_state(state: Any, encoder: Any) -> Any:
    """The choice that `choice_state` wrote; `encoder` stands for one of the user's own."""
    if not isinstance(state, dict):
        return encoder if state is None else state
    return type(WORDS[state["kind"]])(**{name: value for name, value in state.items() if name != "kind"})


@dataclass(frozen=True)
class FeatureOptions:
    """The estimators' options that make features, and the features and kernels they make."""

    features: Any
    width: int | float
    activation: Any
    depth: int
    similarity: str
    delta: float
    n_landmarks: int | None = None

    @classmethod
    def of(cls, estimator: Any) -> Self:
        """The options of an estimator, checked."""
        return cls(**{field.name: getattr(estimator, field.name) for field in fields(cls)})

    def __post_init__(self) -> None:
        if self.n_landmarks is not None:
            require_whole("n_landmarks", self.n_landmarks, otherwise=", or None")
        choice = read_choice(self.features)
        require_choice("similarity", self.similarity, ("cosine", "dot"))
        require_positive(delta=self.delta)
        if not isinstance(choice, Network) and (self.depth, self.activation) != (1, "relu"):
            raise InputError("depth and activation belong to features='random'; leave them out, or leave features out")
        if isinstance(choice, Patches) and self.width == math.inf:
            raise InputError("patches have no infinite width; pass the number of filters, such as width=1024")
        if isinstance(choice, Network | Fourier | Patches) and not self.is_infinite:
            require_whole("width", self.width, otherwise=", or math.inf")
        require_whole("depth", self.depth)
        InfiniteNetwork(depth=int(self.depth), activation=self.activation)  # refuses what is no activation

    @property
    def is_infinite(self) -> bool:
        """Whether a kernel takes the place of features."""
        return self.width == math.inf and isinstance(read_choice(self.features), Network | Fourier)

    @property
    def landmarks(self) -> int:
        """The number of samples that span a solution that is not exact."""
        return int(self.n_landmarks or LANDMARKS)

    @property
    def scale(self) -> float | None:
        """δ, or None for the dot product."""
        return self.delta if self.similarity == "cosine" else None

    def kernel(self, samples: Samples, generator: torch.Generator) -> Kernel:
        """The kernel of infinitely many features."""
        choice = read_choice(self.features)
        if isinstance(choice, Fourier):
            kernel: Kernel = GaussianKernel(_length_scale(choice, samples, generator))
        else:
            kernel = NetworkKernel(InfiniteNetwork(depth=int(self.depth), activation=self.activation))
        return kernel if self.scale is None else CosineKernel(kernel, self.scale)

    def map(self, samples: Samples, generator: torch.Generator) -> FeatureMap:
        """The frozen features, where the samples are."""
        choice, where = read_choice(self.features), (samples.device, samples.dtype)
        d_in = math.prod(samples.shape)
        if isinstance(choice, Network):
            check_shape(d_in, int(self.width), 1, depth=int(self.depth), parametrization="ntk")
            drawn = NetworkFeatures.draw(
                d_in, int(self.width), depth=int(self.depth), activation=self.activation, generator=generator
            )
            return ScaledFeatures(drawn.to(*where), self.scale)
        if isinstance(choice, Fourier):
            scale = _length_scale(choice, samples, generator)
            fourier = FourierFeatures.draw(d_in, int(self.width), length_scale=scale, generator=generator)
            return ScaledFeatures(fourier.to(*where), self.scale)
        if isinstance(choice, Patches):
            seen = _some(samples, generator)
            patches = PatchFeatures.from_images(seen, int(self.width), generator=generator, **asdict(choice))
            return ScaledFeatures(patches.to(*where), self.scale)
        return ScaledFeatures(EncoderFeatures(choice), self.scale)


class InputFeatures:
    """The values of a sample themselves, as a row."""

    def __init__(self, n_features: int) -> None:
        self.n_features = n_features

    def state(self) -> dict[str, Any]:
        """The number from which `from_state` makes the same features."""
        return {"kind": "input", "n_features": self.n_features}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The features of a `state`."""
        return cls(int(state["n_features"]))

    def __call__(self, x: Tensor) -> Tensor:
        """(n, …) → (n, M)."""
        return x.flatten(1)


@dataclass(frozen=True)
class Shifted:
    """Features less a constant."""

    features: FeatureMap
    mean: Tensor

    @property
    def n_features(self) -> int:
        """The number M of features."""
        return self.features.n_features

    def __call__(self, x: Tensor) -> Tensor:
        """(n, …) → (n, M)."""
        return self.features(x) - self.mean


def _some(samples: Samples, generator: torch.Generator) -> Tensor:
    return samples[torch.randperm(len(samples), generator=generator)[:SAMPLES_LOOKED_AT]]


def _length_scale(choice: Fourier, samples: Samples, generator: torch.Generator) -> float:
    if choice.length_scale is not None:
        return choice.length_scale
    return median_distance(_some(samples, generator), generator=generator)
