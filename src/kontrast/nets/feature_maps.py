r"""Frozen features: maps of samples to vectors that no training changes, on which closed forms are built.

The last hidden layer of a random network (paper A, (7)), random Fourier features, convolutions with random patches of
the images, or an encoder of the user's own. All of them slice their input themselves, so it may be of any length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kontrast import checks
from kontrast.errors import InputError
from kontrast.nets.activations import Activation, activation_from
from kontrast.nets.mlp import hidden_activations

PATCHES_DRAWN = 100_000  # to estimate the whitening of at most some hundred dimensions
WHITENING_FLOOR = 0.1  # added to the eigenvalues, of mean 1 or less, of normalised patches (Coates & Ng 2012)
FLAT = 0.1  # a normalised patch of less mean square is nearly constant, and no filter
ENCODED_AT_ONCE = 256  # samples: what large encoders hold of photographs in a GPU's memory
SLICE_BYTES = {"cpu": 2**26, "cuda": 2**31}  # the responses of some images before pooling: inside a cache, or a GPU


class FeatureMap(Protocol):
    """Features Φ (n, M) of samples, the same for a sample in every batch."""

    @property
    def n_features(self) -> int:
        """The number M of features."""

    def __call__(self, x: Tensor, /) -> Tensor:
        """Samples (n, …) to features (n, M)."""
        ...


class NetworkFeatures:
    """φ(V_L … φ(V_1 x)), the last hidden layer of paper A's network, with the factors of the NTK parametrisation."""

    def __init__(self, hidden: Sequence[Tensor], activation: str | Activation) -> None:
        self.hidden = list(hidden)
        self.activation = activation_from(activation)

    def state(self) -> dict[str, Any]:
        """The weights and words from which `from_state` makes the same features."""
        weights = {f"hidden{i}": V for i, V in enumerate(self.hidden)}
        return {"kind": "random", "depth": len(self.hidden), "activation": self.activation.stored_name, **weights}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> NetworkFeatures:
        """The features of a `state`."""
        return cls([state[f"hidden{i}"] for i in range(state["depth"])], state["activation"])

    @classmethod
    def draw(
        cls, d_in: int, width: int, *, depth: int, activation: str | Activation, generator: torch.Generator
    ) -> NetworkFeatures:
        """Entries N(0, 1), drawn in float64 on the generator's device."""
        d_in, width = checks.require_whole("d_in", d_in), checks.require_whole("width", width)
        shapes = [(width, d_in)] + [(width, width)] * (checks.require_whole("depth", depth) - 1)
        checks.require_generator(generator)
        drawn = [torch.randn(s, generator=generator, dtype=torch.float64, device=generator.device) for s in shapes]
        return cls(drawn, activation)

    @property
    def n_features(self) -> int:
        """The width."""
        return len(self.hidden[-1])

    def to(self, device: torch.device | str, dtype: torch.dtype | str) -> NetworkFeatures:
        """The same features elsewhere."""
        return NetworkFeatures(_moved(self.hidden, device, dtype), self.activation)

    def __call__(self, x: Tensor) -> Tensor:
        """(n, …) → (n, width)."""
        factor = 1 / math.sqrt(self.n_features)
        return hidden_activations(x.flatten(1), self.hidden, [1.0] + [factor] * (len(self.hidden) - 1), self.activation)


class FourierFeatures:
    r"""$\sqrt2\cos(\omega_j \cdot x + b_j)$ (Rahimi & Recht 2007); over √M, in the limit $e^{-\|x-y\|^2/2\ell^2}$."""

    def __init__(self, frequencies: Tensor, phases: Tensor) -> None:
        self.frequencies, self.phases = frequencies, phases

    def state(self) -> dict[str, Any]:
        """The tensors from which `from_state` makes the same features."""
        return {"kind": "fourier", "frequencies": self.frequencies, "phases": self.phases}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> FourierFeatures:
        """The features of a `state`."""
        return cls(state["frequencies"], state["phases"])

    @classmethod
    def draw(cls, d_in: int, width: int, *, length_scale: float, generator: torch.Generator) -> FourierFeatures:
        """Frequencies N(0, 1/ℓ²), phases uniform."""
        d_in, width = checks.require_whole("d_in", d_in), checks.require_whole("width", width)
        checks.require_positive(length_scale=length_scale)
        checks.require_generator(generator)
        where = generator.device
        omega = torch.randn(width, d_in, generator=generator, dtype=torch.float64, device=where) / length_scale
        return cls(omega, 2 * math.pi * torch.rand(width, generator=generator, dtype=torch.float64, device=where))

    @property
    def n_features(self) -> int:
        """The number of frequencies."""
        return len(self.frequencies)

    def to(self, device: torch.device | str, dtype: torch.dtype | str) -> FourierFeatures:
        """The same features elsewhere."""
        return FourierFeatures(*_moved((self.frequencies, self.phases), device, dtype))

    def __call__(self, x: Tensor) -> Tensor:
        """(n, …) → (n, width)."""
        angles = torch.addmm(self.phases, x.flatten(1), self.frequencies.mT)
        return angles.cos_().mul_(math.sqrt(2))


class PatchFeatures:
    r"""Images convolved with whitened random patches of theirs, rectified and averaged over a grid (Coates & Ng 2012).

    A patch p loses its mean and is divided by its deviation, is ZCA-whitened, and multiplied by filters d_j, which are
    such patches themselves, of length 1: $r_j = d_j^\top Z(\hat p - \mu)$. A feature is the mean of
    $\max(r_j - \theta, 0)$ over one cell of the grid; two-sided, that of $\max(-r_j - \theta, 0)$ is another. Every
    step before the rectifier is linear in p up to the deviation, so all of it is one convolution.
    """

    _stored = ("filters", "offsets", "image_shape", "grid", "threshold", "sides", "contrast_floor")

    def __init__(
        self,
        filters: Tensor,
        offsets: Tensor,
        *,
        image_shape: Sequence[int],
        grid: int,
        threshold: float,
        sides: int,
        contrast_floor: float,
    ) -> None:
        self.filters, self.offsets = filters, offsets  # (F, c, p, p) and (F,)
        self.image_shape, self.grid, self.threshold, self.sides = tuple(image_shape), grid, threshold, sides
        self.contrast_floor = contrast_floor

    def state(self) -> dict[str, Any]:
        """The tensors and numbers from which `from_state` makes the same features."""
        return {"kind": "patches", **{name: getattr(self, name) for name in self._stored}}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> PatchFeatures:
        """The features of a `state`."""
        return cls(**{name: state[name] for name in cls._stored})

    @classmethod
    def from_images(
        cls,
        x: Tensor,
        n_filters: int,
        *,
        generator: torch.Generator,
        size: int | None = None,
        grid: int = 3,
        threshold: float = 0.5,
        two_sided: bool = False,
        contrast_floor: float = 0.1,
    ) -> PatchFeatures:
        """Filters from images x (n, c, h, w).

        Args:
            x: The images to cut patches from.
            n_filters: How many filters.
            generator: Draws the patches.
            size: The side of a patch; by default a fifth of the image's, and at least 3.
            grid: Responses are averaged over grid × grid cells.
            threshold: θ.
            two_sided: Negative responses make features of their own.
            contrast_floor: The deviation below which a patch counts as flat; its square is added to the patch's own
                variance. For values in [0, 1], 0.1 suits drawings and 0.03 photographs.
        """
        if x.ndim != 4:
            raise InputError(
                f"patches are cut from images (n, c, h, w), got samples of shape {tuple(x.shape)}; for rows give "
                "image_shape, as in image_shape=(28, 28)"
            )
        n_filters = checks.require_whole("n_filters", n_filters, most=PATCHES_DRAWN // 2)
        c, h, w = x.shape[1:]
        if min(h, w) < 2:
            raise InputError(f"images {c}×{h}×{w} are too small to cut patches from; use features='random'")
        side = min(h, w, max(3, round(min(h, w) / 5))) if size is None else size
        side = checks.require_whole("size", side, least=2, most=min(h, w), otherwise=f" for images {c}×{h}×{w}")
        fits = f" for images {h}×{w} and patches of side {side}"
        grid = checks.require_whole("grid", grid, most=min(h, w) - side + 1, otherwise=fits)
        checks.require_finite_not_negative(threshold=threshold)
        checks.require_positive(contrast_floor=contrast_floor)
        checks.require_generator(generator)
        patches = _normalized(_draw_patches(x, side, generator).double(), contrast_floor)
        mean, whitening = _zca(patches)
        lively = patches[patches.square().mean(1) > FLAT][:n_filters]
        if len(lively) < n_filters:
            raise InputError(
                f"only {len(lively)} of {len(patches)} random patches are not constant, and {n_filters} filters were "
                "asked for; give images that are not constant, or a smaller width"
            )
        d = F.normalize((lively - mean) @ whitening, dim=1)  # the filters, of length 1
        linear = d @ whitening
        offsets = -(linear @ mean)
        linear = linear - linear.mean(1, keepdim=True)  # (p − p̄) · l = p · (l − l̄): the patch's mean drops out
        return cls(
            linear.view(n_filters, c, side, side),
            offsets,
            image_shape=(c, h, w),
            grid=grid,
            threshold=threshold,
            sides=2 if two_sided else 1,
            contrast_floor=contrast_floor,
        )

    @property
    def n_features(self) -> int:
        """Filters × cells × sides."""
        return len(self.filters) * self.grid**2 * self.sides

    def to(self, device: torch.device | str, dtype: torch.dtype | str) -> PatchFeatures:
        """The same features elsewhere."""
        filters, offsets = _moved((self.filters, self.offsets), device, dtype)
        return PatchFeatures.from_state({**self.state(), "filters": filters, "offsets": offsets})

    def __call__(self, x: Tensor) -> Tensor:
        """(n, c, h, w) → (n, M), some images at a time."""
        if tuple(x.shape[1:]) != self.image_shape:
            raise InputError(
                f"these patches were cut from images {self.image_shape}, got samples of shape {tuple(x.shape[1:])}; "
                "give images (n, c, h, w) of that shape, or rows with image_shape"
            )
        places = math.prod(side - self.filters.shape[-1] + 1 for side in self.image_shape[1:])
        at_once = SLICE_BYTES[x.device.type] // (places * len(self.filters) * x.element_size())
        return torch.cat([self._pooled(part) for part in torch.split(x, max(1, at_once))])

    def _pooled(self, x: Tensor) -> Tensor:
        box = torch.full_like(self.filters[:1], 1 / self.filters[0].numel())
        with torch.backends.cudnn.flags(allow_tf32=False):  # its default would make features differ between devices
            mean, square = F.conv2d(x, box), F.conv2d(x.square(), box)
            response = F.conv2d(x, self.filters)
        contrast = ((square - mean.square()).clamp(min=0) + self.contrast_floor**2).rsqrt()
        response.mul_(contrast).add_(self.offsets[:, None, None])
        sides = [response] if self.sides == 1 else [response, -response]
        pooled = [F.adaptive_avg_pool2d(F.relu(side - self.threshold), self.grid).flatten(1) for side in sides]
        return torch.cat(pooled, dim=1)


class EncoderFeatures:
    """The outputs of a frozen `nn.Module` (in evaluation mode) or of any function of a batch, flattened to (n, M).

    A module runs on the device and in the number type of its parameters; the outputs go back to those of x.
    """

    def __init__(self, encoder: nn.Module | Callable[[Tensor], Tensor], n_features: int | None = None) -> None:
        self.encoder = encoder
        self._n_features = n_features

    def state(self) -> dict[str, Any]:
        """A word alone: the encoder is the user's own."""
        return {"kind": "encoder"}

    @property
    def n_features(self) -> int:
        """The number of outputs, known from the first batch on."""
        assert self._n_features is not None, "n_features is asked for before the first batch"
        return self._n_features

    def __call__(self, x: Tensor) -> Tensor:
        """Samples through the encoder, some at a time, without gradients or a trace in its running statistics."""
        return torch.cat([self._encoded(part) for part in torch.split(x, ENCODED_AT_ONCE)])

    def _encoded(self, x: Tensor) -> Tensor:
        with torch.no_grad(), _evaluating(self.encoder):
            raw = self.encoder(self._moved(x))
        good = isinstance(raw, Tensor | np.ndarray)
        out = torch.as_tensor(raw) if good else x
        if not good or out.ndim < 2 or len(out) != len(x) or not out.is_floating_point():
            given = checks.in_words(out if good else raw)
            raise InputError(
                f"the encoder must map a batch of {len(x)} samples to as many floating-point vectors, got {given}; "
                "wrap it in a function that returns these"
            )
        out = out.flatten(1).to(device=x.device, dtype=x.dtype)
        if self._n_features not in (None, out.shape[1]):
            raise InputError(f"the encoder gave {self._n_features} features before and {out.shape[1]} now")
        self._n_features = out.shape[1]
        return out

    def _moved(self, x: Tensor) -> Tensor:
        """The samples where a module's parameters are, and in their number type; the user's module is not moved."""
        if isinstance(self.encoder, nn.Module):
            for parameter in self.encoder.parameters():
                return x.to(device=parameter.device, dtype=parameter.dtype)
        return x


class ScaledFeatures:
    r"""Features as paper A's loss (6) sees them: φ/(‖φ‖ + √M δ) for the cosine, (10), or φ/√M for the dot product, (8).

    With a small δ > 0 a sample without any feature has the vector 0. `delta=None` is the dot product.
    """

    def __init__(self, features: FeatureMap, delta: float | None) -> None:
        self.features, self.delta = features, delta

    def state(self) -> dict[str, Any]:
        """The state of the features, and δ."""
        inner: Any = self.features
        return {**inner.state(), "delta": self.delta}

    @property
    def n_features(self) -> int:
        """Those of the features."""
        return self.features.n_features

    def __call__(self, x: Tensor) -> Tensor:
        """(n, …) → (n, M)."""
        phi = self.features(x)
        root = math.sqrt(phi.shape[1])
        if self.delta is None:
            return phi / root
        norm: Tensor = torch.linalg.vector_norm(phi, dim=1, keepdim=True)
        if not bool(torch.isfinite(norm).all()):  # φ/∞ would be 0, and look like a blank sample
            raise checks.features_not_finite()
        return phi / (norm + root * self.delta)


class _evaluating:
    """A context in which a module is in evaluation mode; afterwards each of its parts has its own mode again."""

    def __init__(self, encoder: object) -> None:
        self.modules = list(encoder.modules()) if isinstance(encoder, nn.Module) else []

    def __enter__(self) -> None:
        self.modes = [module.training for module in self.modules]
        for module in self.modules:
            module.training = False

    def __exit__(self, *error: object) -> None:
        for module, mode in zip(self.modules, self.modes, strict=True):
            module.training = mode


def median_distance(x: Tensor, *, generator: torch.Generator, n_rows: int = 1000) -> float:
    """The median distance between at most `n_rows` rows: the usual length scale of a Gaussian kernel."""
    checks.require_generator(generator)
    chosen = torch.randperm(len(x), generator=generator)[: checks.require_whole("n_rows", n_rows, least=2)]
    distances = torch.pdist(x.flatten(1)[chosen.to(x.device)].double())
    positive = distances[distances > 0]
    if len(positive) == 0:
        raise InputError("all samples are the same, so no length scale fits them; give samples that differ")
    return float(positive.median())


def _moved(tensors: Sequence[Tensor], device: torch.device | str, dtype: torch.dtype | str) -> list[Tensor]:
    where, kind = checks.resolve_device(device), checks.resolve_dtype(dtype)
    return [tensor.to(device=where, dtype=kind) for tensor in tensors]


def _draw_patches(x: Tensor, side: int, generator: torch.Generator) -> Tensor:
    """PATCHES_DRAWN patches at random places of random images, as rows (k, c·side²)."""
    windows = x.unfold(2, side, 1).unfold(3, side, 1)  # (n, c, places down, places across, side, side), a view
    image, top, left = (
        torch.randint(windows.shape[axis], (PATCHES_DRAWN,), generator=generator, device=generator.device).to(x.device)
        for axis in (0, 2, 3)
    )
    return windows[image, :, top, left].flatten(1)


def _normalized(patches: Tensor, floor: float) -> Tensor:
    centered = patches - patches.mean(1, keepdim=True)
    return centered * (centered.square().mean(1, keepdim=True) + floor**2).rsqrt()


def _zca(patches: Tensor) -> tuple[Tensor, Tensor]:
    """The mean, and the symmetric matrix that makes the patches' covariance the identity, up to WHITENING_FLOOR."""
    mean = patches.mean(0)
    centered = patches - mean
    values, vectors = torch.linalg.eigh(centered.mT @ centered / len(patches))
    return mean, (vectors * (values.clamp(min=0) + WHITENING_FLOOR).rsqrt()) @ vectors.mT
