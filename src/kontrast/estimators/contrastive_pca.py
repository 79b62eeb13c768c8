"""`ContrastivePCA`: the optimum of paper A's orthogonality-constrained loss, (5) to (10), without training."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import torch

from kontrast._types import Tensor
from kontrast.data import ImageShape, Pairs, View, draw_negatives
from kontrast.errors import ConvergenceError, InputError, TooManyComponentsError, require_whole
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
    pair_matrix,
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
        pairs = _Drawn(samples, self._view(samples), n_positives, negative, generator)
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
        return self._fit(_Given(given, partners[0], partners[1]), self._generator())

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

    def _fit(self, pairs: _Drawn | _Given, generator: torch.Generator) -> Self:
        try:
            return self._fit_whole(pairs, generator)
        except TooManyComponentsError as error:
            if self.n_features_in_ > 1:
                raise
            raise InputError(
                f"{error}; samples of 1 feature(s) have little to contrast, try similarity='dot'"
            ) from None

    def _fit_whole(self, pairs: _Drawn | _Given, generator: torch.Generator) -> Self:
        options, samples = self._options(), pairs.anchors
        self._fit_dtype = samples.dtype
        if not options.is_infinite:
            return self._fit_features(options.map(samples, generator), pairs, kernel=None)
        kernel = options.kernel(samples, generator)
        if self.n_landmarks is None and pairs.n_points <= EXACT_POOL[samples.device.type]:
            return self._fit_kernel(kernel, pairs)
        landmarks = nystrom_features(kernel, pairs.some_points(self._n_landmarks, generator))
        return self._fit_features(landmarks, pairs, kernel=kernel)

    def _fit_features(self, features: FeatureMap, pairs: _Drawn | _Given, *, kernel: Kernel | None) -> Self:
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
            raise InputError(
                "the features hold NaN, infinite or huge values; scale the samples, or look at the encoder"
            )
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

    def _fit_kernel(self, kernel: Kernel, pairs: _Drawn | _Given) -> Self:
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


@dataclass(frozen=True)
class _Drawn:
    """Pairs made as they are asked for; `negative` (n, Q) are samples' numbers, None their expectation."""

    anchors: Samples
    view: View
    n_positives: int
    negative: Tensor | None
    generator: torch.Generator

    @property
    def n_points(self) -> int:
        return len(self.anchors) * (1 + self.n_positives)

    def batch(self, rows: slice) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        x = self.anchors[rows]
        negative = [] if self.negative is None else [self.anchors[one] for one in self.negative[rows].mT]
        return x, [self.view(x, self.generator) for _ in range(self.n_positives)], negative

    def some_points(self, n: int, generator: torch.Generator) -> Tensor:
        """Points of the pool at random: anchors, and fresh views in the share of positives."""
        points = torch.randperm(self.n_points, generator=generator)[:n]
        is_view = (points >= len(self.anchors)).to(self.anchors.device)
        x = self.anchors[points % len(self.anchors)]
        if bool(is_view.any()):
            x[is_view] = self.view(x[is_view], generator)
        return x

    def pool(self) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        x, positives, _ = self.batch(slice(None))
        return pool_product(torch.cat([x, *positives]), len(x), self.n_positives, self.negative)


@dataclass(frozen=True)
class _Given:
    """Pairs of the user's own, one set of samples for each positive and negative that an anchor has."""

    anchors: Samples
    positives: list[Samples]
    negatives: list[Samples] | None

    @property
    def n_points(self) -> int:
        return len(self.anchors) * (1 + len(self.positives) + len(self.negatives or []))

    def batch(self, rows: slice) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        return self.anchors[rows], [p[rows] for p in self.positives], [q[rows] for q in self.negatives or []]

    def some_points(self, n: int, generator: torch.Generator) -> Tensor:
        """Points of the pool at random: anchors, positives and negatives."""
        points = torch.randperm(self.n_points, generator=generator)[:n]
        sets = [self.anchors, *self.positives, *(self.negatives or [])]
        chosen, rows = points // len(self.anchors), points % len(self.anchors)
        x = self.anchors[rows]
        for i, one in enumerate(sets[1:], start=1):  # in the order drawn: half of them are random points too
            x[(chosen == i).to(x.device)] = one[rows[chosen == i]]
        return x

    def pool(self) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        x, positives, negatives = self.batch(slice(None))
        n, first = len(x), len(x) * (1 + len(positives))
        places = [torch.arange(first + i * n, first + (i + 1) * n) for i in range(len(negatives))]
        negative = torch.stack(places, dim=1) if places else None
        return pool_product(torch.cat([x, *positives, *negatives]), n, len(positives), negative)


def pool_product(
    pool: Tensor, n: int, n_positives: int, negative: Tensor | None
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    r"""The pool, and products with the symmetric pair matrix S of the mean positive minus the mean negative.

    Without negatives their expectation, $\frac{1}{N(N-1)}(\mathbf 1 \mathbf 1^\top - I)$ over the anchors, is a matrix
    of rank one and a multiple of the identity, and is never formed.

    Args:
        pool: n anchors, then the first positive of each, then the second, and so on, then what negatives there are.
        n: the number of anchors.
        n_positives: the number P an anchor has.
        negative: (n, Q) places in the pool.
    """
    anchor = torch.arange(n, device=pool.device)
    positive = anchor[:, None] + n * torch.arange(1, n_positives + 1, device=pool.device)
    Q = 0 if negative is None else negative.shape[1]
    places = torch.empty(n, 0, dtype=torch.int64) if negative is None else negative
    weight = pool.new_full((n, Q), n_positives / max(Q, 1))
    S = pair_matrix(Pairs(pool, anchor, positive, places.to(pool.device), weight)) / n_positives

    def product(block: Tensor) -> Tensor:
        out = S @ block.contiguous()
        if negative is None:
            out[:n] += (block[:n] - block[:n].sum(0)) / (n * (n - 1))
        return out

    return pool, product


def _mean(parts: list[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total / len(parts) if len(parts) > 1 else total
