"""The base of the estimators over pairs: anchors, positives and negatives in, and the moments of their features."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from kontrast.checks import features_not_finite, require_whole
from kontrast.data import draw_negatives
from kontrast.errors import InputError
from kontrast.estimators.base import ClosedFormEmbedding, KernelShare, all_or_nothing, batch_rows, generator_of
from kontrast.estimators.pair_sources import DrawnPairs, GivenPairs
from kontrast.estimators.samples import Samples, read_samples
from kontrast.linalg import largest_eigenpairs
from kontrast.nets import FeatureMap
from kontrast.pca import PairMoments, require_positive_values
from kontrast.progress import progress_bar

Pairs = DrawnPairs | GivenPairs


class PairEmbedding(ClosedFormEmbedding):
    """Anchors attract their positives and repel their negatives."""

    n_positives: int
    negatives: int | Literal["all"]
    _option_names: ClassVar[dict[str, str | None]] = {"n_positives": "--n-views", "negatives": None}

    def check_options(self) -> None:
        """Refuse options that are wrong whatever the data."""
        super().check_options()
        require_whole("n_positives", self.n_positives)
        if self.negatives != "all":
            require_whole("negatives", self.negatives, otherwise=", or 'all'")

    @all_or_nothing
    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit to samples as anchors, with fresh views as positives and other samples as negatives; `y` is ignored."""
        self.check_options()
        samples, generator = self._samples_to_fit(X), generator_of(self.random_state)
        negative = None
        if self.negatives != "all":
            negative = draw_negatives(len(samples), int(self.negatives), generator=generator)
        pairs = DrawnPairs(samples, self._view(samples), int(self.n_positives), negative, generator)
        return self._fit(pairs, generator)

    @all_or_nothing
    def fit_pairs(self, anchors: Any, positives: Any, negatives: Any = None) -> Self:
        """Fit to pairs of your own.

        Args:
            anchors: samples, (n, …).
            positives: a positive for each anchor, of the same shape; or (n, P, …), several whose mean enters.
            negatives: likewise; None is the expectation over the other anchors.
        """
        self.check_options()
        given = self._samples_to_fit(anchors)
        partners = [
            None if part is None else self._partners(name, part, anchors, given)
            for name, part in (("positives", positives), ("negatives", negatives))
        ]
        assert partners[0] is not None
        return self._fit(GivenPairs(given, partners[0], partners[1]), generator_of(self.random_state))

    @abstractmethod
    def _fit(self, pairs: Pairs, generator: torch.Generator) -> Self: ...

    def _partners(self, name: str, part: Any, anchors: Any, given: Samples) -> list[Samples]:
        """One set of samples for each positive, or negative, that an anchor has."""
        shape, like = tuple(getattr(part, "shape", ())), tuple(getattr(anchors, "shape", ()))
        if len(shape) and len(like) and shape[0] != like[0]:
            raise InputError(f"each anchor needs {name} of its own: got {like[0]} anchors and {shape[0]} {name}")
        several = len(like) > 0 and len(shape) == len(like) + 1
        parts = [part[:, i] for i in range(shape[1])] if several else [part]
        if not parts:
            raise InputError(f"{name} of shape {shape} are none; give at least one per anchor")
        read = [read_samples(self, one, reset=False) for one in parts]
        for one in read:
            if len(one) != len(given) or one.shape != given.shape:
                raise InputError(
                    f"{name} must be like the anchors, {(len(given), *given.shape)}, got {(len(one), *one.shape)}"
                )
        return [Samples(one.source, given.device, given.dtype, given.columns) for one in read]

    def _moments(
        self, features: FeatureMap, pairs: Pairs, share: KernelShare, *, contrastive: bool = True
    ) -> PairMoments:
        """One pass over the pairs; without `contrastive` nothing is repelled."""
        samples = pairs.anchors
        n_features = features(samples[:2]).shape[1]
        moments = PairMoments(n_features, len(samples), samples.device)
        with progress_bar("fitting", self.progress) as advance:
            for batch in samples.batches(batch_rows(n_features)):
                anchors, positives, negatives = pairs.batch(batch)
                phi, *near = (share.seen(x, features(x)) for x in (anchors, *positives))
                far = [share.seen(x, features(x)) for x in negatives] if contrastive else [phi.new_zeros(1)]
                moments.update(phi, _mean(near), _mean(far) if far else None)
                advance(batch.stop, len(samples))
        return moments


def leading_eigenpairs(C: Tensor, k: int, moments: PairMoments, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The largest eigenvalues of the moments' matrix C and their eigenvectors; refuses any that is not positive."""
    if not bool(torch.isfinite(C).all()):
        raise features_not_finite()
    values, frame = largest_eigenpairs(C, k)
    eps, size = torch.finfo(dtype).eps, C.abs().max()  # the size is taken out before squaring
    noise = 16 * eps * float(size * (C / size).norm())
    require_positive_values(values, k, noise=noise, top_noise=4 * eps * moments.mean_square)
    return values, frame


def _mean(parts: list[Tensor]) -> Tensor:
    total = sum(parts[1:], start=parts[0])
    return total / len(parts) if len(parts) > 1 else total
