"""`ContrastivePCA`: the optimum of paper A's orthogonality-constrained loss, (5) to (10), without training."""

from __future__ import annotations

import math
from typing import Any, Literal, Self

import numpy as np
import torch

from kontrast._types import Tensor
from kontrast.data import ImageShape, View, draw_negatives
from kontrast.errors import ConvergenceError, InputError, TooManyComponentsError, features_not_finite, require_whole
from kontrast.estimators.base import (
    LANDMARKS,
    ClosedFormEmbedding,
    KernelShare,
    all_or_nothing,
    batch_rows,
    eigenvalue_errors,
    half_span,
)
from kontrast.estimators.features import FeatureChoice
from kontrast.estimators.pair_sources import DrawnPairs, GivenPairs
from kontrast.estimators.samples import Samples
from kontrast.linalg import fix_signs, largest_eigenpairs
from kontrast.nets import FeatureMap
from kontrast.progress import progress_bar
from kontrast.spectral import (
    Kernel,
    KernelFeatures,
    PairMoments,
    kernel_contrastive_pca,
    nystrom_features,
    require_components,
    require_positive_values,
)

EXACT_POOL = {"cpu": 12_000, "cuda": 130_000}  # points whose whole kernel is formed: 1 GB, and 68 GB in float32


class ContrastivePCA(ClosedFormEmbedding):
    r"""Contrastive learning as PCA: the orthonormal W that minimises paper A's linear loss over frozen features.

    The loss (8), or (10) for the cosine, is $-\mathrm{Tr}(W^\top \tilde C W)$ with
    $C = \frac1N \sum_n \varphi_n (\bar\varphi_n^+ - \bar\varphi_n^-)^\top$: anchors attract their positives and repel
    their negatives. Its minimum is reached by the eigenvectors of the largest eigenvalues. A wide network trained on it
    comes close to this solution (claims A.thm17, A.pca).

    Args:
        n_components: the dimension of the embedding.
        width: the number of features (of filters, for patches), or `math.inf` for their limit, a kernel.
        features: "random" (the hidden layer of paper A's network), "fourier", "patches", `Fourier(…)` or `Patches(…)`
            with their options, a frozen `nn.Module`, or a function of a batch; `width` is not used with the last two.
        activation: of the random network.
        depth: its number of hidden layers.
        similarity: "cosine" divides features by their norms, (10); "dot" does not, (8).
        delta: the δ of (10); blank samples need it to be positive.
        views: how `fit` makes positives: a text such as "crop+flip+noise:0.05" or a `View`; "auto" is affine for images
            and noise of deviation 0.1 for rows.
        n_positives: views of each anchor that count as positives; their mean enters.
        negatives: how many other samples, drawn at random, an anchor repels; or "all", the expectation over them.
        image_shape: the shape of images that come as rows, (h, w) or (c, h, w).
        n_landmarks: at infinite width, the samples that span the solution (Nyström); None is exact up to 12,000 points
            (130,000 on a GPU) of anchors with their positives and negatives, and 2048 landmarks above.
        device: "cpu", "cuda", …; None is where X is.
        dtype: "float32" or "float64"; None is X's own, float32 for bytes.
        random_state: a seed or a RandomState; None counts as 0.
        progress: show a bar.
    """

    def __init__(
        self,
        n_components: int = 32,
        *,
        width: float = math.inf,
        features: FeatureChoice = "random",
        activation: Any = "relu",
        depth: int = 1,
        similarity: str = "cosine",
        delta: float = 1e-6,
        views: str | View = "auto",
        n_positives: int = 1,
        negatives: int | Literal["all"] = "all",
        image_shape: ImageShape | None = None,
        n_landmarks: int | None = None,
        device: str | None = None,
        dtype: str | None = None,
        random_state: Any = 0,
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
        self.n_positives = n_positives
        self.negatives = negatives
        self.image_shape = image_shape
        self.n_landmarks = n_landmarks
        self.device = device
        self.dtype = dtype
        self.random_state = random_state
        self.progress = progress

    @all_or_nothing
    def fit(self, X: Any, y: Any = None) -> Self:
        """Samples are anchors, fresh views of them positives, other samples negatives; `y` is ignored."""
        self._options()
        n_positives = require_whole("n_positives", self.n_positives)
        if self.negatives != "all":
            require_whole("negatives", self.negatives, otherwise=", or 'all'")
        samples, generator = self._samples_to_fit(X), self._generator()
        negative = None
        if self.negatives != "all":
            negative = draw_negatives(len(samples), int(self.negatives), generator=generator)
        pairs = DrawnPairs(samples, self._view(samples), n_positives, negative, generator)
        return self._fit(pairs, generator)

    @all_or_nothing
    def fit_pairs(self, anchors: Any, positives: Any, negatives: Any = None) -> Self:
        """Pairs of your own.

        Args:
            anchors: samples, (n, …).
            positives: a positive for each anchor, of the same shape; or (n, P, …), several of which the mean enters.
            negatives: likewise; None is the expectation over the other anchors.
        """
        self._options()
        given = self._samples_to_fit(anchors)
        partners = [
            None if part is None else self._partners(name, part, anchors, given)
            for name, part in (("positives", positives), ("negatives", negatives))
        ]
        assert partners[0] is not None
        return self._fit(GivenPairs(given, partners[0], partners[1]), self._generator())

    def _partners(self, name: str, part: Any, anchors: Any, given: Samples) -> list[Samples]:
        """One set of samples for each positive, or negative, that an anchor has."""
        shape, like = tuple(getattr(part, "shape", ())), tuple(getattr(anchors, "shape", ()))
        if len(shape) and len(like) and shape[0] != like[0]:
            raise InputError(f"each anchor needs {name} of its own: got {like[0]} anchors and {shape[0]} {name}")
        several = len(like) > 0 and len(shape) == len(like) + 1
        parts = [part[:, i] for i in range(shape[1])] if several else [part]
        if not parts:
            raise InputError(f"{name} of shape {shape} are none; give at least one an anchor")
        read = [self._samples(one, reset=False) for one in parts]
        for one in read:
            if len(one) != len(given) or one.shape != given.shape:
                raise InputError(
                    f"{name} must be like the anchors, {(len(given), *given.shape)}, got {(len(one), *one.shape)}"
                )
        return [Samples(one.source, given.device, given.dtype) for one in read]

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
        options, samples = self._options(), pairs.anchors
        self._fit_dtype = samples.dtype
        if not options.is_infinite:
            return self._fit_features(options.map(samples, generator), pairs, kernel=None)
        kernel = options.kernel(samples, generator)
        if self.n_landmarks is None and pairs.n_points <= EXACT_POOL[samples.device.type]:
            return self._fit_kernel(kernel, pairs)
        landmarks = nystrom_features(kernel, pairs.some_points(self._n_landmarks, generator))
        return self._fit_features(landmarks, pairs, kernel=kernel)

    def _fit_features(self, features: FeatureMap, pairs: DrawnPairs | GivenPairs, *, kernel: Kernel | None) -> Self:
        samples = pairs.anchors
        n_features = features(samples[:2]).shape[1]
        k = require_components(self.n_components, n_features)
        moments = PairMoments(n_features, len(samples), samples.device)
        share = KernelShare(kernel)
        with progress_bar("fitting", self.progress) as advance:
            for batch in samples.batches(batch_rows(n_features)):
                anchors, positives, negatives = pairs.batch(batch)
                phi, *near = (share.seen(x, features(x)) for x in (anchors, *positives))
                far = [share.seen(x, features(x)) for x in negatives]
                moments.update(phi, _mean(near), _mean(far) if far else None)
                advance(batch.stop, len(samples))
        C = moments.matrix()
        if not bool(torch.isfinite(C).all()):
            raise features_not_finite()
        values, frame = largest_eigenpairs(C, k)
        eps, size = torch.finfo(samples.dtype).eps, C.abs().max()  # the size is taken out before squaring
        noise = 16 * eps * float(size * (C / size).norm())
        require_positive_values(values, k, noise=noise, top_noise=4 * eps * moments.mean_square)
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


def _mean(parts: list[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total / len(parts) if len(parts) > 1 else total
