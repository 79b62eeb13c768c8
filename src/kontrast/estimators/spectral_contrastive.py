"""`SpectralContrastive`: contrastive learning with whitened outputs in closed form, claim A.spec."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from kontrast.checks import require_between, require_components, require_finite_not_negative, require_whole
from kontrast.data import View
from kontrast.errors import InputError
from kontrast.estimators.base import (
    ClosedFormEmbedding,
    KernelShare,
    all_or_nothing,
    batch_rows,
    eigenvalue_errors,
    generator_of,
    half_span,
)
from kontrast.estimators.features import FeatureChoice, FeatureOptions
from kontrast.estimators.samples import Samples, read_samples
from kontrast.kernels import Kernel
from kontrast.nets import FeatureMap
from kontrast.pca import ViewMoments, nystrom_features, whitened_pca
from kontrast.progress import progress_bar

DIFFERENCES = "differences between samples"  # n − 1 of them: B has no more positive eigenvalues


class SpectralContrastive(ClosedFormEmbedding):
    r"""The best whitened linear head over frozen features, by which views of a sample agree most, without training.

    With Σ the covariance of the features over all views and B the covariance of two views of a sample, it maximises
    $\mathrm{Tr}(W^\top B W)$ under $W^\top(\Sigma + \rho I)W = I$: the heads solve $B w = \lambda(\Sigma + \rho I)w$,
    and λ is the share of an output's variance that views of a sample have in common. With `power=0.5` it is the minimum
    of the spectral contrastive loss $-2\,\mathbb{E} f(x)\cdot f(x^+) + \mathbb{E}(f(x)\cdot f(x'))^2$ of centred f.
    Both moments are added up over batches and views: one pass over the samples, memory O(M²) whatever their number.

    Args:
        n_components: dimension of the embedding.
        width, features, activation, depth, similarity, delta, views, standardize: as in `ContrastivePCA`.
        n_views: views of each sample.
        ridge: ridge as a share of the total variance of the features. It adds ρ = ridge · Tr Σ to every eigenvalue of
            Σ, of which Tr Σ is the sum and not the mean.
        power: the outputs' deviations are λ^power: 0 for whitened outputs, 0.5 for the minimum of the spectral
            contrastive loss, 1 to weigh neighbours by what views share. A linear probe on standardised outputs does
            not see it; distances do.
        n_landmarks: at infinite width, the samples that span the solution (Nyström). None is 2048, or all samples where
            they are fewer.
        image_shape, device, dtype, random_state, progress: as in `ContrastivePCA`.
    """

    eigenvalue_meaning = "the share of a dimension's variance that views of a sample have in common"
    _option_names: ClassVar[dict[str, str | None]] = {"n_views": "--n-views", "power": None}

    def __init__(
        self,
        n_components: int = 128,
        *,
        width: int | float = 2048,
        features: FeatureChoice = "random",
        activation: Any = "relu",
        depth: int = 1,
        similarity: str = "cosine",
        delta: float = 1e-6,
        views: str | View = "auto",
        standardize: bool = False,
        n_views: int = 8,
        ridge: float = 3e-6,
        power: float = 0.0,
        image_shape: tuple[int, ...] | None = None,
        n_landmarks: int | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        random_state: int | np.random.RandomState | None = 0,
        progress: bool = False,
    ) -> None:
        self.n_components = n_components
        self.width = width
        self.features = features
        self.activation = activation
        self.depth = depth
        self.similarity = similarity
        self.delta = delta
        self.views = views
        self.standardize = standardize
        self.n_views = n_views
        self.ridge = ridge
        self.power = power
        self.image_shape = image_shape
        self.n_landmarks = n_landmarks
        self.device = device
        self.dtype = dtype
        self.random_state = random_state
        self.progress = progress

    @all_or_nothing
    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit to fresh views of every sample; `y` is ignored."""
        options = self._options()
        n_views = require_whole("n_views", self.n_views, least=2)
        samples, generator = self._samples_to_fit(X), generator_of(self.random_state)
        view = self._view(samples)
        fit = self._begin(options, samples, view, generator, len(samples))
        with progress_bar("fitting", self.progress) as advance:
            for batch in samples.batches(batch_rows(fit.n_features)):
                x = samples[batch]
                fit.add(view(x, generator) for _ in range(n_views))
                advance(batch.stop, len(samples))
        return self._solve(fit)

    @all_or_nothing
    def fit_views(self, views: Sequence[Any]) -> Self:
        """Fit to views of your own: two or more arrays of the same shape, in which row i is a view of sample i."""
        options = self._options()
        if len(views) < 2:
            raise InputError(f"views must be two arrays or more, to compare them, got {len(views)}")
        read = [read_samples(self, view, reset=i == 0, min_samples=2) for i, view in enumerate(views)]
        shapes = [(len(one), *one.shape) for one in read]
        if len(set(shapes)) > 1:
            raise InputError(f"views must have the same number and shape of samples, got {shapes}")
        first = self._standardized(read[0])
        read = [Samples(one.source, first.device, first.dtype, first.columns) for one in read]
        fit = self._begin(options, first, None, generator_of(self.random_state), len(first))
        with progress_bar("fitting", self.progress) as advance:
            for batch in first.batches(batch_rows(fit.n_features)):
                fit.add(view[batch] for view in read)
                advance(batch.stop, len(first))
        return self._solve(fit)

    @all_or_nothing
    def fit_loader(self, batches: Iterable[Any]) -> Self:
        """Fit to batches of views, as a data loader of self-supervised learning gives them, of any size, in one pass.

        Args:
            batches: each a sequence of two or more tensors of the same shape, in which row i is a view of sample i; or
                a pair of such a sequence and labels, which are ignored. Whatever is taken from the data (patches, the
                length scale, landmarks, the mean and deviation of columns) comes from the first batch.
        """
        options, fit = self._options(), None
        with progress_bar("fitting", self.progress) as advance:
            for number, batch in enumerate(batches):
                views = [
                    read_samples(self, view, reset=fit is None and i == 0) for i, view in enumerate(_views_in(batch))
                ]
                if fit is None:
                    first = self._standardized(views[0])
                    fit = self._begin(options, first, None, generator_of(self.random_state), None)
                shapes = [(len(view), *view.shape) for view in views]
                if len(set(shapes)) > 1:
                    raise InputError(f"batch {number} has views of different shapes, {shapes}")
                where = (fit.first.device, fit.first.dtype, fit.first.columns)
                fit.add(Samples(view.source, *where)[:] for view in views)
                if isinstance(batches, Sized):  # of a generator nobody knows how much is left
                    advance(number + 1, len(batches))
        if fit is None:
            raise InputError("the loader gave no batch; give at least one batch of views")
        return self._solve(fit)

    def check_options(self) -> None:
        """Refuse options that are wrong whatever the data."""
        require_between("power", self.power, 0, 10)
        require_finite_not_negative(ridge=self.ridge)
        super().check_options()
        FeatureOptions.of(self)

    def _options(self) -> FeatureOptions:
        self.check_options()
        return FeatureOptions.of(self)

    def _begin(
        self,
        options: FeatureOptions,
        first: Samples,
        view: View | None,
        generator: torch.Generator,
        n_samples: int | None,  # None for a loader, which does not say
    ) -> _Fit:
        self._fit_dtype = first.dtype
        if not options.is_infinite:
            return _Fit(options.map(first, generator), None, first, self.n_components, n_samples)
        kernel = options.kernel(first, generator)
        chosen = first[torch.randperm(len(first), generator=generator)[: options.landmarks]]
        landmarks = nystrom_features(kernel, chosen if view is None else view(chosen, generator))
        return _Fit(landmarks, kernel, first, self.n_components, n_samples)

    def _solve(self, fit: _Fit) -> Self:
        covariance, between = fit.moments.covariances()
        require_components(fit.k, fit.moments.n - 1, DIFFERENCES)
        solution = whitened_pca(between, covariance, fit.k, ridge=self.ridge, resolution=fit.moments.resolution)
        self.kernel_error_, self.eigenvalue_errors_ = fit.share.error, None
        if (half := half_span(fit.features)) is not None:
            self.eigenvalue_errors_ = eigenvalue_errors(
                solution.values, _values_within(half, covariance, between, fit.k, solution.ridge)
            )
        return self._finish(fit.features, solution.scaled(self.power), solution.values, fit.moments.mean)


def _values_within(basis: Tensor, covariance: Tensor, between: Tensor, k: int, ridge: float) -> Tensor:
    """The positive eigenvalues of the same problem, with the same ρ, inside a subspace of the features."""
    inside = basis.mT @ covariance @ basis
    variance = float(inside.diagonal().sum())
    if not variance > 0:  # landmarks that are blank
        return covariance.new_zeros(0)
    k = min(k, len(inside))
    return whitened_pca(basis.mT @ between @ basis, inside, k, ridge=ridge / variance, allow_fewer=True).values


class _Fit:
    """Moments of features over views, as batches come."""

    def __init__(
        self, features: FeatureMap, kernel: Kernel | None, first: Samples, n_components: int, n_samples: int | None
    ) -> None:
        self.features, self.first, self.share = features, first, KernelShare(kernel)
        self.n_features = features(first[:2]).shape[1]
        self.k = require_components(n_components, self.n_features)
        if n_samples is not None:
            require_components(self.k, n_samples - 1, DIFFERENCES)
        self.moments = ViewMoments(self.n_features, first.device)

    def add(self, views: Iterable[Tensor]) -> None:
        self.moments.update(self.share.seen(x, self.features(x)) for x in views)


def _views_in(batch: Any) -> Sequence[Any]:
    """The views of a batch, with or without labels beside them."""
    if isinstance(batch, Sequence) and len(batch) == 2 and isinstance(batch[0], Sequence):
        batch = batch[0]
    if isinstance(batch, Sequence) and not isinstance(batch, str) and len(batch) >= 2:
        return batch
    raise InputError(
        f"a batch must be a sequence of two or more views, or that and labels, got {type(batch).__name__}"
        + (f" of {len(batch)}" if isinstance(batch, Sequence) else "")
    )
