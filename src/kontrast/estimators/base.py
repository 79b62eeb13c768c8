"""The base of the estimators: options checked before any work, `transform`, and their state for files."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from kontrast.checks import as_whole, require_type, require_whole, resolve_device, resolve_dtype
from kontrast.data import Affine, Columns, GaussianNoise, View, fit_view, fresh_view, parse_view
from kontrast.errors import InputError
from kontrast.estimators.features import choice_from_state, choice_state
from kontrast.estimators.samples import Samples, read_image_shape, read_samples
from kontrast.kernels import Kernel
from kontrast.nets import FeatureMap, activation_from
from kontrast.pca import KernelFeatures

BATCH_ENTRIES = 2**25  # features of a batch: the same on every device, so that views are the same
TRANSFORM_ENTRIES = {"cpu": 2**25, "cuda": 2**30}


F = TypeVar("F", bound=Callable[..., Any])


def all_or_nothing(fit: F) -> F:
    """Decorate a fit so that one that fails leaves the model as it was."""

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
        columns_: the mean and deviation of the samples' columns, by which they are standardised, or None.
        n_features_in_: the number of values in a sample.
        sample_shape_: its shape, (d,) or (c, h, w).
    """

    n_components: int
    width: Any
    features: Any
    views: Any
    standardize: Any
    image_shape: Any
    device: Any
    dtype: Any
    random_state: Any
    progress: bool

    features_: FeatureMap
    components_: np.ndarray[Any, Any]
    eigenvalues_: np.ndarray[Any, Any]
    mean_: np.ndarray[Any, Any] | None
    kernel_error_: float | None
    eigenvalue_errors_: np.ndarray[Any, Any] | None
    columns_: Columns | None
    sample_shape_: tuple[int, ...]

    eigenvalue_meaning: ClassVar[str]  # in words, for people
    _kinds: ClassVar[dict[str, type[ClosedFormEmbedding]]] = {}  # every estimator by its name, for files
    _numbers: ClassVar[tuple[str, ...]] = ()  # what else a fit finds, by the names of the attributes
    _former_names: ClassVar[dict[str, str]] = {}  # arguments as older files call them
    _option_names: ClassVar[dict[str, str | None]] = {
        "random_state": "--seed",
        "delta": None,
        "n_landmarks": None,
        "standardize": None,  # the command line's own default depends on the data
        "progress": None,
    }

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        ClosedFormEmbedding._kinds[cls.__name__] = cls

    def check_options(self) -> None:
        """Refuse options that are wrong whatever the data."""
        require_whole("n_components", self.n_components)
        if not (isinstance(self.views, str) or callable(self.views)):
            raise InputError(f"views must be a text such as affine+noise:0.1, or a View, got {self.views!r}")
        if isinstance(self.views, str) and self.views != "auto":
            parse_view(self.views)
        require_type("standardize", self.standardize, (bool, np.bool_), "pass True or False")
        if self.device is not None:
            resolve_device(self.device)
        if self.dtype is not None:
            resolve_dtype(self.dtype)
        if self.image_shape is not None:
            read_image_shape(self.image_shape)

    def transform(self, X: Any) -> Any:
        """The embedding (n, n_components) of samples: numpy for numpy, a tensor on X's device for a tensor."""
        check_is_fitted(self, "components_")
        samples = read_samples(self, X, reset=False, like=self._frame)
        samples.columns = self.columns_
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

    def standardized(self, x: Tensor) -> Tensor:
        """Samples as the views and features see them: standardised, where the model standardises them."""
        check_is_fitted(self, "components_")
        return x if self.columns_ is None else self.columns_.standardize(x)

    def save(self, path: str | Path) -> Path:
        """Write the fitted model to an .npz file without pickles; `load_model` reads it."""
        from kontrast.estimators.model_files import save_model

        return save_model(self, path)

    def summary(self) -> str:
        """The features and views in a few words, for people."""
        word = choice_state(self.features)
        kind = word["kind"] if isinstance(word, dict) else word or "encoder"
        return f"{kind} features of width {self.width}, {self._views_in_words}"

    @property
    def _views_in_words(self) -> str:
        options = self.get_params(deep=False)
        return f"{options.get('n_views', options.get('n_positives'))} × {self.views}"

    def state(self) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
        """The fitted model without its features, as JSON types and arrays, from which `from_state` makes it again."""
        arrays = {"components": self.components_, "eigenvalues": self.eigenvalues_}
        for name, array in (("mean", self.mean_), ("eigenvalue_errors", self.eigenvalue_errors_)):
            if array is not None:
                arrays[name] = array
        if self.columns_ is not None:
            arrays["column_mean"] = self.columns_.mean.cpu().numpy()
            arrays["column_deviation"] = self.columns_.deviation.cpu().numpy()
        words = {
            "parameters": self._parameter_state(),
            "n_features_in": self.n_features_in_,
            "sample_shape": list(self.sample_shape_),
            "feature_names_in": [str(name) for name in getattr(self, "feature_names_in_", ())],
            "kernel_error": self.kernel_error_,
            "numbers": {name: getattr(self, name) for name in self._numbers},
        }
        return words, arrays

    @classmethod
    def from_state(
        cls,
        words: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray[Any, Any]],
        features: FeatureMap,
        encoder: Any,
        device: str | torch.device | None,
    ) -> Self:
        """The model that `state` describes, over its features; `encoder` is the user's own, where it stands on one."""
        model = cls(**{**cls._parameters_from_state(words["parameters"], encoder), "device": device})
        model.n_features_in_ = int(words["n_features_in"])
        model.sample_shape_ = tuple(words["sample_shape"])
        if words["feature_names_in"]:
            model.feature_names_in_ = np.array(words["feature_names_in"], dtype=object)
        model.kernel_error_, model.eigenvalue_errors_ = words["kernel_error"], arrays.get("eigenvalue_errors")
        model.columns_ = None
        if model.standardize:
            model.columns_ = Columns(*(torch.from_numpy(arrays[f"column_{name}"]) for name in ("mean", "deviation")))
        for name in cls._numbers:
            setattr(model, name, float(words["numbers"][name]))
        tensors = {
            name: torch.from_numpy(arrays[name]).to(resolve_device(device or "cpu"))
            for name in ("components", "eigenvalues", "mean")
            if name in arrays
        }
        model._fit_dtype = tensors["components"].dtype
        return model._finish(features, tensors["components"].mT, tensors["eigenvalues"], tensors.get("mean"))

    def _parameter_state(self) -> dict[str, Any]:
        """The arguments as JSON types; those that are objects by what makes them again, or None."""
        state: dict[str, Any] = self.get_params(deep=False)
        del state["device"], state["progress"]
        for name, value in state.items():
            if isinstance(value, np.generic):
                state[name] = value.item()
            if isinstance(value, float) and math.isinf(value):
                state[name] = "inf"
        state["features"] = choice_state(self.features)
        state["views"] = _view_state(self.views)
        state["random_state"] = as_whole(self.random_state)
        if self.dtype is not None:
            state["dtype"] = str(resolve_dtype(self.dtype)).removeprefix("torch.")
        if self.image_shape is not None:
            state["image_shape"] = [int(size) for size in self.image_shape]
        state["standardize"] = bool(self.standardize)
        if "activation" in state:
            state["activation"] = activation_from(state["activation"]).name
        return state

    @classmethod
    def _parameters_from_state(cls, state: Mapping[str, Any], encoder: Any) -> dict[str, Any]:
        named = {cls._former_names.get(name, name): value for name, value in state.items()}
        parameters = {name: math.inf if value == "inf" else value for name, value in named.items()}
        parameters["features"] = choice_from_state(state["features"], encoder)
        parameters["views"] = state["views"] or "auto"
        if state["image_shape"] is not None:
            parameters["image_shape"] = tuple(state["image_shape"])
        return parameters

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _samples_to_fit(self, X: Any) -> Samples:
        """The samples, standardised if asked for; refuses fewer than two, and samples that are all the same."""
        samples = read_samples(self, X, reset=True, min_samples=2)
        first = samples[:1]
        if all(bool((samples[batch] == first).all()) for batch in samples.batches(1024)):
            raise InputError(f"all samples are the same ({len(samples)} of them), so there is nothing to contrast")
        return self._standardized(samples)

    def _standardized(self, samples: Samples) -> Samples:
        """Find the columns of the samples, if asked for, and return the samples standardised by them."""
        self.columns_ = None
        if self.standardize:
            exact = Samples(samples.source, samples.device, torch.float64)
            self.columns_ = Columns.of(exact[batch] for batch in samples.batches(1024))
        return Samples(samples.source, samples.device, samples.dtype, self.columns_)

    def _view(self, samples: Samples) -> View:
        """The view that was asked for, for these samples; one of the user's own is checked whenever it is called."""
        if self.views == "auto":
            return Affine() if samples.is_image else GaussianNoise(0.1)
        given: View = parse_view(self.views) if isinstance(self.views, str) else self.views
        view = fit_view(given, (samples[batch] for batch in samples.batches(1024)))
        return view if isinstance(self.views, str) else lambda x, generator: fresh_view(view, x, generator)

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
    """A generator of the estimator's own; None counts as 0, so that the same call gives the same numbers."""
    if isinstance(random_state, np.random.RandomState):
        seed = int(random_state.randint(2**31))
    else:
        given = 0 if random_state is None else random_state
        seed = require_whole("random_state", given, least=0, most=2**63 - 1, otherwise=", a RandomState or None")
    return torch.Generator().manual_seed(seed)


class KernelShare:
    """The share of a kernel's diagonal that features hold, added up over batches."""

    def __init__(self, kernel: Kernel | None) -> None:
        self.kernel, self.held, self.whole = kernel, 0.0, 0.0

    def seen(self, x: Tensor, phi: Tensor) -> Tensor:
        """Count samples with their features, and return the features."""
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
    """The number of samples whose features `fit` computes at a time."""
    return max(64, BATCH_ENTRIES // n_features)


def _view_state(view: Any) -> str | None:
    """The text of a view; None for one that has none, which a fitted model no longer needs."""
    if isinstance(view, str):
        return view
    try:
        parse_view(str(view))
    except InputError:
        return None
    return str(view)
