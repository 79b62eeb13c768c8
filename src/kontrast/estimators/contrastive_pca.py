"""`ContrastivePCA`: the optimum of paper A's orthogonality-constrained loss, (5) to (10), without training."""

from __future__ import annotations

import math
from typing import Any, Literal, Self

import numpy as np
import torch

from kontrast.checks import require_components
from kontrast.data import View
from kontrast.errors import ConvergenceError, InputError, TooManyComponentsError
from kontrast.estimators.base import KernelShare, eigenvalue_errors, half_span
from kontrast.estimators.features import LANDMARKS, FeatureChoice, FeatureOptions
from kontrast.estimators.pair_embedding import PairEmbedding, leading_eigenpairs
from kontrast.estimators.pair_sources import DrawnPairs, GivenPairs
from kontrast.kernels import Kernel
from kontrast.linalg import fix_signs, largest_eigenpairs
from kontrast.nets import FeatureMap
from kontrast.pca import KernelFeatures, kernel_contrastive_pca, nystrom_features

EXACT_POOL = {"cpu": 12_000, "cuda": 130_000}  # points whose whole kernel is formed: 1 GB, and 68 GB in float32


class ContrastivePCA(PairEmbedding):
    r"""Contrastive learning as PCA: the orthonormal W that minimises paper A's linear loss over frozen features.

    The loss (8), or (10) for the cosine, is $-\mathrm{Tr}(W^\top \tilde C W)$ with
    $C = \frac1N \sum_n \varphi_n (\bar\varphi_n^+ - \bar\varphi_n^-)^\top$: anchors attract their positives and repel
    their negatives. Its minimum is reached by the eigenvectors of the largest eigenvalues. A wide network trained on it
    comes close to this solution (claims A.lem17, A.pca).

    Args:
        n_components: dimension of the embedding.
        width: number of features, or of filters for patches; `math.inf` is their limit, a kernel.
        features: "random" (the hidden layer of paper A's network), "fourier" or "patches". In Python also `Fourier(…)`
            or `Patches(…)` with options of their own, a frozen `nn.Module`, or a function of a batch; `width` has no
            meaning for the last two.
        activation: activation of the random network.
        depth: number of hidden layers of the random network.
        similarity: "cosine" divides features by their norms, (10); "dot" does not, (8).
        delta: the δ of (10); blank samples need it to be positive.
        views: augmentations joined by +, as in "crop+flip+noise:0.05": crop, flip, affine, brightness, contrast, gray
            for images; noise, relative-noise, mask, mixup for all data; "auto" is affine for images and noise:0.1 for
            rows. Or a `View`.
        standardize: bring every column to mean 0 and deviation 1, those of the samples that `fit` sees, before views
            and features. A constant column is only centred.
        n_positives: views of each anchor that count as its positives. Their mean enters.
        negatives: the number of other samples, drawn at random, that an anchor repels; or "all", the expectation over
            them.
        image_shape: shape of images that come as rows, as in (28, 28) or (3, 32, 32).
        n_landmarks: at infinite width, the samples that span the solution (Nyström). None is exact up to 12,000 points
            (130,000 on a GPU) of anchors with their positives and negatives, and 2048 landmarks above.
        device: "cpu", "cuda", "cuda:1", … None is where X is.
        dtype: "float32" or "float64". None is X's own, float32 for bytes.
        random_state: seed of all random numbers. Or a RandomState; None counts as 0.
        progress: show a bar.
    """

    eigenvalue_meaning = "how much closer a dimension brings a sample to its views than to other samples"

    def __init__(
        self,
        n_components: int = 32,
        *,
        width: int | float = math.inf,
        features: FeatureChoice = "random",
        activation: Any = "relu",
        depth: int = 1,
        similarity: str = "cosine",
        delta: float = 1e-6,
        views: str | View = "auto",
        standardize: bool = False,
        n_positives: int = 1,
        negatives: int | Literal["all"] = "all",
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
        self.n_positives = n_positives
        self.negatives = negatives
        self.image_shape = image_shape
        self.n_landmarks = n_landmarks
        self.device = device
        self.dtype = dtype
        self.random_state = random_state
        self.progress = progress

    def check_options(self) -> None:
        """Refuse options that are wrong whatever the data."""
        super().check_options()
        FeatureOptions.of(self)

    def _fit(self, pairs: DrawnPairs | GivenPairs, generator: torch.Generator) -> Self:
        try:
            return self._fit_whole(pairs, generator)
        except TooManyComponentsError as error:
            if self.n_features_in_ > 1:
                raise
            raise InputError(
                f"{error}; samples of 1 feature(s) have little to contrast, try similarity='dot'"
            ) from None

    def _fit_whole(self, pairs: DrawnPairs | GivenPairs, generator: torch.Generator) -> Self:
        options, samples = FeatureOptions.of(self), pairs.anchors
        self._fit_dtype = samples.dtype
        if not options.is_infinite:
            return self._fit_features(options.map(samples, generator), pairs, kernel=None)
        kernel = options.kernel(samples, generator)
        if self.n_landmarks is None and pairs.n_points <= EXACT_POOL[samples.device.type]:
            return self._fit_kernel(kernel, pairs)
        landmarks = nystrom_features(kernel, pairs.some_points(options.landmarks, generator))
        return self._fit_features(landmarks, pairs, kernel=kernel)

    def _fit_features(self, features: FeatureMap, pairs: DrawnPairs | GivenPairs, *, kernel: Kernel | None) -> Self:
        share = KernelShare(kernel)
        k = require_components(self.n_components, features(pairs.anchors[:2]).shape[1])
        moments = self._moments(features, pairs, share)
        C = moments.matrix()
        values, frame = leading_eigenpairs(C, k, moments, pairs.anchors.dtype)
        self.kernel_error_, self.eigenvalue_errors_ = share.error, None
        if (half := half_span(features)) is not None:
            inside = half.mT @ C @ half
            fewer = largest_eigenpairs(inside, min(k, len(inside)))[0] if len(inside) else values[:0]
            self.eigenvalue_errors_ = eigenvalue_errors(values, fewer)
        return self._finish(features, fix_signs(frame), values, None)

    def _fit_kernel(self, kernel: Kernel, pairs: DrawnPairs | GivenPairs) -> Self:
        pool, S = pairs.pool()
        k = require_components(self.n_components, len(pool), "points of the pairs")
        K = kernel(pool)
        try:
            frame, values = kernel_contrastive_pca(K, S, k)
        except TooManyComponentsError:
            raise
        except (ConvergenceError, InputError) as error:
            raise InputError(
                f"the kernel over the {len(pool)} points of the pairs is too close to singular for an exact solution: "
                f"many points are alike; pass n_landmarks={min(len(pool), LANDMARKS)}"
            ) from error
        self.kernel_error_, self.eigenvalue_errors_ = 0.0, np.zeros(k)
        return self._finish(KernelFeatures(kernel, pool), frame, values, None)
