"""`DeepLinearSSL`: a deep linear network under orthogonality (paper B, Sec. 4), at any time of its training."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

from kontrast.checks import features_not_finite, require_components, require_not_negative, require_type, require_whole
from kontrast.data import View
from kontrast.deep_linear import Flow, Method, deep_linear_flow, flow_law
from kontrast.errors import InputError, TooManyComponentsError
from kontrast.estimators.base import KernelShare, batch_rows
from kontrast.estimators.features import InputFeatures, Shifted
from kontrast.estimators.pair_embedding import PairEmbedding, Pairs, leading_eigenpairs
from kontrast.estimators.pair_sources import GivenPairs
from kontrast.linalg import fix_signs, largest_eigenpairs, random_frame
from kontrast.nets import EncoderFeatures, FeatureMap
from kontrast.pca import PairMoments


class DeepLinearSSL(PairEmbedding):
    r"""The outputs of a deep linear network with orthonormal layers, trained for some time on paper B's loss (7).

    The network is $u(x) = W_l^\top W_{l-1} \cdots W_1 x$ with $W_i^\top W_i = I$. Its loss is $\mathrm{Tr}(u C u^\top)$
    with $C = \frac1N \sum_n x_n(\bar x_n^- - \bar x_n^+)^\top$ of (5), symmetrised. C is divided by the number N of
    anchors here, which makes it the mean loss: so `time` is learning rate × steps of training on the mean, N times as
    long as on the paper's sum. Training obeys an equation in d × z numbers, whatever the width (Theorem 2), and `fit`
    solves that: one pass over the samples, one eigenproblem of size d, and for a finite `time` the equation, exactly
    for `flow="oja"` and for one component. As `time` grows the outputs come to span the eigenvectors of the most
    negative eigenvalues, which `time=math.inf` returns as an orthonormal frame.

    The mean of the anchors is subtracted first, which the contrastive loss does not see in expectation. Without that
    (`center=False`, the paper's own C) a large mean, times what views add to the N samples on average, drowns C.

    Args:
        n_components: dimension of the embedding.
        time: training time of the linear network, learning rate × steps, from 0 to `math.inf`. The scale is one over
            the eigenvalues and their gaps. An equation without an exact solution is followed up to
            α · time · max |λ| = 200,000.
        depth: number of hidden layers. It makes "polar" and "oja" faster; the span at the end is the same.
        flow: descent of the linear network: "grassmann", "polar" or "oja". See `kontrast.deep_linear.flow_law`:
            "grassmann" is the paper's (8), "polar" is the limit of projected gradient descent, "oja" descends in the
            canonical metric of the Stiefel manifold; its exact solution holds up to a rotation of the outputs.
        width: width of the hidden layers, at least the number d of inputs. None is d + n_components. It matters through
            the random start, and at `time=math.inf` where it is d: then every output keeps its length, also where that
            costs (claim B.prop3).
        start: the map (d, n_components) at time 0, u(x) = start^T x, instead of a random network's: `net(torch.eye(d))`
            of your own. Its singular values are at most 1.
        center: subtract the mean μ of the anchors: u(x) = components_ (x − μ). Without it the non-contrastive loss,
            whose C is −E[x x^T] and not a covariance, is another one.
        contrastive: False repels nothing, the non-contrastive loss (12) with C = −Σ x x^{+T}/N.
        features: "input", the values of a sample themselves; or a frozen `nn.Module`, or a function of a batch, below
            the linear network.
        views, standardize, n_positives, negatives, image_shape, device, dtype, random_state, progress: as in
            `ContrastivePCA`.

    Attributes:
        components_: the map u, (n_components, d); orthonormal rows at `time=math.inf`.
        mean_: μ (d,), or None without `center`.
        eigenvalues_: the n_components smallest of C, ascending: what is negative is learnt. The sum of the negative
            ones is the smallest loss that there is.
        loss_: Tr(u C u^T) at `time`.
        features_: the frozen feature map.
        columns_: the mean and deviation of the samples' columns, by which they are standardised, or None.
        n_features_in_: the number of values in a sample.
        sample_shape_: its shape, (d,) or (c, h, w).
    """

    loss_: float
    eigenvalue_meaning = (
        "of the loss, so that below 0 they say how much closer a dimension brings a sample to its views than to other "
        "samples"
    )
    _numbers: ClassVar[tuple[str, ...]] = ("loss_",)
    _former_names: ClassVar[dict[str, str]] = {"centre": "center"}
    _option_names: ClassVar[dict[str, str | None]] = {
        "start": None,
        "center": None,
        "contrastive": None,
        "features": None,
    }

    def __init__(
        self,
        n_components: int = 2,
        *,
        time: float = math.inf,
        depth: int = 1,
        flow: Flow = "grassmann",
        width: int | None = None,
        start: Any = None,
        center: bool = True,
        contrastive: bool = True,
        features: str | Callable[[Tensor], Tensor] = "input",
        views: str | View = "auto",
        standardize: bool = False,
        n_positives: int = 1,
        negatives: int | Literal["all"] = "all",
        image_shape: tuple[int, ...] | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        random_state: int | np.random.RandomState | None = 0,
        progress: bool = False,
    ) -> None:
        self.n_components = n_components
        self.time = time
        self.depth = depth
        self.flow = flow
        self.width = width
        self.start = start
        self.center = center
        self.contrastive = contrastive
        self.features = features
        self.views = views
        self.standardize = standardize
        self.n_positives = n_positives
        self.negatives = negatives
        self.image_shape = image_shape
        self.device = device
        self.dtype = dtype
        self.random_state = random_state
        self.progress = progress

    def check_options(self) -> None:
        """Refuse options that are wrong whatever the data."""
        super().check_options()
        flow_law(self.flow, depth=self.depth)
        require_not_negative(time=self.time)
        for name in ("center", "contrastive"):
            require_type(name, getattr(self, name), (bool, np.bool_), "pass True or False")
        if not self.contrastive and self.negatives != "all":
            raise InputError(
                f"contrastive=False repels nothing, got negatives={self.negatives!r}; leave one of them out"
            )
        if self.width is not None:
            require_whole("width", self.width, otherwise=", or None")
        if self.width is not None and self.start is not None:
            raise InputError(
                f"start stands for a random network of some width, got width={self.width} too; leave it out"
            )
        if self.features != "input" and (isinstance(self.features, str) or not callable(self.features)):
            raise InputError(f"features must be 'input', an nn.Module or a function, got {self.features!r}")

    def summary(self) -> str:
        """The network and its views in a few words, for people."""
        trained = f"network of {self.depth} hidden layer(s), {self.flow} flow to time {self.time}"
        return f"{'network at the end of training' if self.time == math.inf else trained}, {self._views_in_words}"

    def _parameter_state(self) -> dict[str, Any]:
        start = None if self.start is None else torch.as_tensor(self.start).tolist()
        return {**super()._parameter_state(), "start": start}

    def _fit(self, pairs: Pairs, generator: torch.Generator) -> Self:
        samples = pairs.anchors
        if not self.contrastive and isinstance(pairs, GivenPairs) and pairs.negatives is not None:
            raise InputError("contrastive=False repels nothing, so that negatives have no meaning; leave them out")
        features: FeatureMap = InputFeatures(math.prod(samples.shape))
        if self.features != "input":
            features = EncoderFeatures(self.features)
        d = features(samples[:2]).shape[1]
        k = require_components(self.n_components, d, "feature(s)")
        start = self._checked_start(d, k)
        mean = self._mean(features, pairs) if self.center else None
        shifted = features if mean is None else Shifted(features, mean)
        moments = self._moments(shifted, pairs, KernelShare(None), contrastive=bool(self.contrastive))
        C = -moments.matrix()
        if not bool(torch.isfinite(C).all()):
            raise features_not_finite()
        self._fit_dtype, self.kernel_error_, self.eigenvalue_errors_ = samples.dtype, None, None
        if self.time == math.inf:
            values, frame = self._limit(C, k, moments)
            self.loss_ = float(values.sum())
            return self._finish(features, frame, values, mean)
        if start is None:
            # W_1^T (W_2 … W_l) of independent uniform frames is uniform too: the first d rows of one frame (h, z).
            start = random_frame(self._width(d, k), k, generator=generator)[:d]
        method: Method = "exact" if self.flow == "oja" else "auto"
        flow = deep_linear_flow(
            C, start, times=[float(self.time)], flow=self.flow, depth=int(self.depth), method=method
        )
        self.loss_ = float(flow.losses[0])
        return self._finish(features, flow.maps[0], flow.eigenvalues[:k], mean)

    def _mean(self, features: FeatureMap, pairs: Pairs) -> Tensor:
        """The mean of the anchors' features, in their number type."""
        samples, d = pairs.anchors, features(pairs.anchors[:2]).shape[1]
        total = torch.zeros(d, dtype=torch.float64, device=samples.device)
        for batch in samples.batches(batch_rows(d)):
            total += features(samples[batch]).sum(0, dtype=torch.float64)
        return (total / len(samples)).to(samples.dtype)

    def _limit(self, C: Tensor, k: int, moments: PairMoments) -> tuple[Tensor, Tensor]:
        """The most negative eigenvalues and their frame."""
        if self.width == len(C):
            values, frame = largest_eigenpairs(-C, k)
            return -values, fix_signs(frame)
        try:
            values, frame = leading_eigenpairs(-C, k, moments, self._fit_dtype)
        except TooManyComponentsError as error:
            raise TooManyComponentsError(
                f"n_components={k}, but only {error.most} eigenvalues of the data matrix are negative, and further "
                f"outputs tend to 0; ask for at most {error.most} or for a finite time, or give more samples",
                error.most,
            ) from None
        return -values, fix_signs(frame)

    def _width(self, d: int, k: int) -> int:
        return d + k if self.width is None else int(self.width)

    def _checked_start(self, d: int, k: int) -> Tensor | None:
        """The map that was given, or None; its singular values are looked at by the flow."""
        if self._width(d, k) < d:
            raise InputError(
                f"W_1^T W_1 = I needs a width of at least the {d} inputs, got {self.width}; raise the width"
            )
        if self.start is None:
            return None
        try:
            start = torch.as_tensor(self.start, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"start must be an array of numbers (d, n_components), got {self.start!r}") from error
        if start.shape != (d, k):
            raise InputError(f"start must be a map (d, n_components) = {(d, k)}, got {tuple(start.shape)}")
        return start
