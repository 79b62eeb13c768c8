"""What the estimators share: options checked before any work, `transform`, and files."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from kontrast.checks import require_whole
from kontrast.data import Affine, GaussianNoise, View, fresh_view, parse_view
from kontrast.errors import InputError
from kontrast.estimators.samples import Samples, read_samples
from kontrast.kernels import Kernel
from kontrast.nets import FeatureMap
from kontrast.pca import KernelFeatures

BATCH_ENTRIES = 2**25  # features of a batch: the same on every device, so that views are the same
TRANSFORM_ENTRIES = {"cpu": 2**25, "cuda": 2**30}


F = TypeVar("F", bound=Callable[..., Any])


def all_or_nothing(fit: F) -> F:
    """A fit that fails leaves the model as it was."""

    @functools.wraps(fit)
    def guarded(self: Any, *args: Any, **options: Any) -> Any:
        before = dict(self.__dict__)
        try:
            return fit(self, *args, **options)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    return cast("F", guarded)


class ClosedFormEmbedding(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A linear head over frozen features, found in closed form; f(x) = W^T (φ(x) − μ).

    Attributes:
        components_: W^T, (n_components, M), of features or, at infinite width, of kernel columns.
        eigenvalues_: (n_components,), the best first.
        mean_: μ (M,), or None where the objective does not centre.
        features_: the frozen feature map.
        kernel_error_: at infinite width by landmarks, the share of the kernel's diagonal over the samples that they
            leave out; 0 where the kernel is exact, None at finite width.
        eigenvalue_errors_: how much the eigenvalues rose from half the landmarks to all of them, an indication of how
            far they lie below those of the exact kernel: as far where that falls as one over the number of landmarks,
            several times as far with too few of them; zeros where the kernel is exact, None at finite width.
        n_features_in_: the number of values in a sample.
        sample_shape_: its shape, (d,) or (c, h, w).
    """

    n_components: int
    features: Any
    views: Any
    image_shape: Any
    device: str | None
    dtype: str | None
    random_state: Any
    progress: bool

    features_: FeatureMap
    components_: np.ndarray[Any, Any]
    eigenvalues_: np.ndarray[Any, Any]
    mean_: np.ndarray[Any, Any] | None
    kernel_error_: float | None
    eigenvalue_errors_: np.ndarray[Any, Any] | None
    sample_shape_: tuple[int, ...]
    _numbers: ClassVar[tuple[str, ...]] = ()  # what else a fit finds, by the names of the attributes

    def transform(self, X: Any) -> Any:
        """The embedding (n, n_components) of samples: numpy for numpy, a tensor on X's device for a tensor."""
        check_is_fitted(self, "components_")
        samples = self._samples(X, reset=False, device=str(self._frame.device), dtype=_word(self._frame.dtype))
        rows = max(1, TRANSFORM_ENTRIES[self._frame.device.type] // len(self._frame))
        out = torch.empty(len(samples), self._frame.shape[1], dtype=self._frame.dtype, device=self._frame.device)
        for batch in samples.batches(rows):
            # (φ − μ) W, subtracted before the product: after it, a large mean would leave its rounding behind.
            phi = self.features_(samples[batch])
            out[batch] = (phi if self._center is None else phi - self._center) @ self._frame
        bad = (~torch.isfinite(out)).any(dim=1).nonzero().flatten()
        if len(bad):
            raise InputError(
                f"the features of {len(bad)} of {len(out)} samples (the first is sample {int(bad[0])}) are NaN, "
                "infinite or huge; scale the samples, or look at the encoder"
            )
        return out.to(X.device) if isinstance(X, Tensor) else out.cpu().numpy()

    def save(self, path: str | Path) -> Path:
        """Write the fitted model to an .npz file without pickles; `load_model` reads it."""
        from kontrast.estimators.model_files import save_model

        return save_model(self, path)

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _check_options(self) -> None:
        """Refuse what needs no data to be seen as wrong."""
        require_whole("n_components", self.n_components)
        if not (self.views == "auto" or isinstance(self.views, str) or callable(self.views)):
            raise InputError(f"views must be a text such as affine+noise:0.1, or a View, got {self.views!r}")
        if isinstance(self.views, str) and self.views != "auto":
            parse_view(self.views)

    def _samples(
        self, X: Any, *, reset: bool, min_samples: int = 1, device: str | None = None, dtype: str | None = None
    ) -> Samples:
        return read_samples(
            self,
            X,
            reset=reset,
            image_shape=self.image_shape,
            device=self.device if device is None else device,
            dtype=self.dtype if dtype is None else dtype,
            min_samples=min_samples,
        )

    def _samples_to_fit(self, X: Any) -> Samples:
        """Two samples at least, of which not all are the same."""
        samples = self._samples(X, reset=True, min_samples=2)
        first = samples[:1]
        if all(bool((samples[batch] == first).all()) for batch in samples.batches(1024)):
            raise InputError(f"all samples are the same ({len(samples)} of them), so there is nothing to contrast")
        return samples

    def _view(self, samples: Samples) -> View:
        """The view that was asked for, refusing what is none, at the latest when it makes one."""
        if self.views == "auto":
            return Affine() if samples.is_image else GaussianNoise(0.1)
        if isinstance(self.views, str):
            return parse_view(self.views)
        view: View = self.views
        return lambda x, generator: fresh_view(view, x, generator)

    def _generator(self) -> torch.Generator:
        return generator_of(self.random_state)

    def _finish(self, features: FeatureMap, frame: Tensor, values: Tensor, mean: Tensor | None) -> Self:
        dtype = self._fit_dtype
        self.features_ = features
        self._frame = frame.to(dtype)
        self._center = None if mean is None else mean.to(dtype)
        self.components_ = self._frame.mT.cpu().numpy()
        self.eigenvalues_ = values.to(dtype).cpu().numpy()
        self.mean_ = None if self._center is None else self._center.cpu().numpy()
        return self


def generator_of(random_state: Any) -> torch.Generator:
    """A stream of its own; None counts as 0, so that the same call gives the same numbers."""
    if isinstance(random_state, np.random.RandomState):
        seed = int(random_state.randint(2**31))
    elif random_state is None or isinstance(random_state, int | np.integer):
        seed = int(random_state or 0)
    else:
        check_random_state(random_state)  # says what is allowed
        raise InputError(f"random_state must be a whole number, a RandomState or None, got {random_state!r}")
    if not 0 <= seed < 2**63:
        raise InputError(f"random_state must lie in 0 to 2**63 - 1, got {seed}")
    return torch.Generator().manual_seed(seed)


class KernelShare:
    """How much of a kernel's diagonal features hold, over batches."""

    def __init__(self, kernel: Kernel | None) -> None:
        self.kernel, self.held, self.whole = kernel, 0.0, 0.0

    def seen(self, x: Tensor, phi: Tensor) -> Tensor:
        """Samples and their features, which are given back."""
        if self.kernel is not None:
            self.held += float(phi.square().sum(dtype=torch.float64))
            self.whole += float(self.kernel.diagonal(x).sum(dtype=torch.float64))
        return phi

    @property
    def error(self) -> float | None:
        """The share left out; None without a kernel."""
        return None if self.kernel is None else max(0.0, 1 - self.held / self.whole) if self.whole else math.nan


def half_span(features: FeatureMap) -> Tensor | None:
    """An orthonormal basis of what half the landmarks span, within Nyström features; None for other features."""
    if not isinstance(features, KernelFeatures) or features.mix is None or len(features.points) < 2:
        return None
    spanning = features(features.points[: len(features.points) // 2]).double()  # (L/2, r)
    values, vectors = torch.linalg.eigh(spanning.mT @ spanning)
    kept = values > torch.finfo(features.mix.dtype).eps * values[-1]
    basis: Tensor = vectors[:, kept]
    return basis


def eigenvalue_errors(values: Tensor, with_half: Tensor) -> np.ndarray[Any, Any]:
    """λ − λ' for those there are; the whole λ where half the landmarks lack it."""
    fewer = torch.zeros_like(values)
    fewer[: len(with_half)] = with_half
    return np.asarray((values - fewer).clamp(min=0).cpu().numpy())


def batch_rows(n_features: int) -> int:
    """How many samples have their features computed at a time in `fit`."""
    return max(64, BATCH_ENTRIES // n_features)


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
