r"""Moments of features over pairs and over views, batch by batch: the matrices of the closed forms in O(M²) memory.

Products are computed in the features' own number type and added up in float64, so a sum over many batches is as exact
as one product.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from kontrast.checks import features_not_finite, require_whole
from kontrast.errors import InputError

STRIP = 1024  # columns of a symmetric product at a time: what lies above its diagonal is never computed


class PairMoments:
    r"""$\tilde C$ of paper A, (8) and (10), over batches of pairs: attraction minus repulsion, symmetrised.

    $C = \frac1N \sum_n \varphi_n (\bar\varphi_n^+ - \bar\varphi_n^-)^\top$ with the means over an anchor's positives
    and over its negatives. Without negatives, the expectation over the other anchors takes their place,
    $\bar\varphi_n^- = \frac{1}{N-1}\sum_{m \ne n} \varphi_m$. It needs no further product: the sum runs over all m, and
    the term m = n is added back with the positives.
    """

    def __init__(self, n_features: int, n_anchors: int, device: torch.device) -> None:
        self.n_anchors, self.n = require_whole("n_anchors", n_anchors, least=2), 0
        self.mean_square = 0.0  # of the features of all anchors: the size of the terms that cancel in C
        self._product = torch.zeros(n_features, n_features, dtype=torch.float64, device=device)
        self._sum = torch.zeros(n_features, dtype=torch.float64, device=device)

    def update(self, anchors: Tensor, positives: Tensor, negatives: Tensor | None) -> None:
        """Add a batch: features (b, M) of anchors, and the means over their positives and over their negatives."""
        self.n += len(anchors)
        self.mean_square += float(anchors.square().sum(dtype=torch.float64)) / self.n_anchors
        if negatives is not None:
            self._product += anchors.mT @ (positives - negatives)
        else:
            self._product += anchors.mT @ torch.add(positives, anchors, alpha=1 / (self.n_anchors - 1))
            self._sum += anchors.sum(0, dtype=torch.float64)

    def matrix(self) -> Tensor:
        r"""$\tilde C$ (M, M) in float64, once all anchors were added."""
        if self.n != self.n_anchors:
            raise InputError(f"{self.n} of {self.n_anchors} anchors were added; add the other batches first")
        C = self._product - torch.outer(self._sum, self._sum) / (self.n_anchors - 1)  # the sum is 0 with negatives
        return (C + C.mT) / (2 * self.n_anchors)


class ViewMoments:
    r"""Mean μ, covariance Σ and between-sample covariance B of features over v views of each sample (claim A.spec).

    $\Sigma$ is over all views of all samples, G that of the means over a sample's views. Their difference is the
    variance due to views, up to the factor v/(v−1) of a variance from v draws, so
    $B = \Sigma - \frac{v}{v-1}(\Sigma - G) = (vG - \Sigma)/(v - 1)$: the covariance of two different views of a sample.
    """

    def __init__(self, n_features: int, device: torch.device) -> None:
        self.n, self.n_views = 0, 0
        self.resolution = 0.0  # the relative rounding of the features' products
        self._gram = torch.zeros(n_features, n_features, dtype=torch.float64, device=device)
        self._gram_of_means = torch.zeros_like(self._gram)
        self._sum = torch.zeros(n_features, dtype=torch.float64, device=device)
        self._shift: Tensor | None = None

    def update(self, views: Iterable[Tensor]) -> None:
        """Add a batch of samples: features (b, M) of each of its v ≥ 2 views, held one at a time."""
        n_views, total = 0, None
        for view in views:
            if self._shift is None:  # close to the mean, so that no large mean is squared and then subtracted
                self._shift = view.mean(0)
            centered = view - self._shift
            self.resolution = max(self.resolution, torch.finfo(view.dtype).eps)
            add_gram(self._gram, centered)
            total = centered if total is None else total.add_(centered)
            n_views += 1
        if total is None or n_views < 2 or self.n_views not in (0, n_views):
            wanted = "at least 2" if self.n_views == 0 else str(self.n_views)
            raise InputError(f"the closed form compares views of a sample: give {wanted} views, got {n_views}")
        total /= n_views
        add_gram(self._gram_of_means, total)
        self._sum += total.sum(0, dtype=torch.float64)
        self.n += len(total)
        self.n_views = n_views

    @property
    def mean(self) -> Tensor:
        """μ (M,) in float64."""
        self._require_samples()
        assert self._shift is not None
        return self._sum / self.n + self._shift.double()

    def covariances(self) -> tuple[Tensor, Tensor]:
        """Σ and B, (M, M) in float64; more batches may be added afterwards."""
        self._require_samples()
        v, center = self.n_views, self._sum / self.n
        square = torch.outer(center, center)
        covariance = mirrored(self._gram).div_(self.n * v).sub_(square)
        variance, size = float(covariance.diagonal().sum()), float(self.mean.square().sum())
        if not math.isfinite(variance + size):
            raise features_not_finite()
        if variance <= (16 * self.resolution) ** 2 * size:  # no more than the mean's rounding
            raise features_do_not_vary()
        of_means = mirrored(self._gram_of_means).div_(self.n).sub_(square)
        return covariance, of_means.mul_(v).sub_(covariance).div_(v - 1)

    def _require_samples(self) -> None:
        if self.n < 2:
            raise InputError(f"views of at least 2 samples are needed, got {self.n}")


def features_do_not_vary() -> InputError:
    """The error about features that are the same for all samples."""
    return InputError("the features do not vary: they are the same for all samples; pass samples that differ")


def add_gram(total: Tensor, rows: Tensor) -> None:
    """Add Φ^T Φ to the lower triangle of `total`, which is all that `mirrored` reads, at half the cost."""
    for left in range(0, rows.shape[1], STRIP):
        columns = slice(left, left + STRIP)
        total[left:, columns] += rows[:, left:].mT @ rows[:, columns]


def mirrored(total: Tensor) -> Tensor:
    """A symmetric matrix from its lower triangle."""
    lower = total.tril()
    return lower + lower.tril(-1).mT
