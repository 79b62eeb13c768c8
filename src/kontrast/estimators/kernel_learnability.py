"""`KernelLearnability`: the labels that a kernel or frozen representation can learn, and from how many samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from kontrast.checks import features_not_finite, in_words, is_number, require_choice, require_positive, require_whole
from kontrast.errors import InputError
from kontrast.estimators.base import ClosedFormEmbedding, all_or_nothing, generator_of
from kontrast.estimators.samples import Samples, read_samples
from kontrast.kernels import InfiniteNetwork, Kernel, NetworkKernel, TangentKernel
from kontrast.learnability import (
    CalibratedCurve,
    Eigensystem,
    PointPrediction,
    Prediction,
    calibrated_curve,
    eigensystem,
    learnability,
    left_out,
    predict_at_points,
    predict_learning,
)
from kontrast.learnability import SamplesNeeded as SamplesNeeded  # part of this module's interface
from kontrast.linalg import Estimate
from kontrast.nets import EncoderFeatures
from kontrast.progress import progress_bar

WORDS = ("ntk", "nngp", "linear")
NORMAL_DRAWS = 128  # of the outputs at a sample, for the predicted accuracy
MOST_MOMENTS = 2**27  # of the outputs, held for `by="points"`: 1 GB
GRID = 64  # numbers of samples that `samples_needed` looks at before it bisects
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class LearningCurve:
    """Kernel regression from more and more labels, predicted or measured; k numbers of samples, c targets.

    Attributes:
        n_samples: the number of labelled samples, (k,).
        test_error: mean squared error at samples without a label in the training set, as a share of the variance of
            the targets: 1 is that of predicting their mean, (k,).
        test_error_by_target: the same for each class or target, (k, c).
        learnability: of each class or target, (6) of paper D, over all samples, (k, c); predicted by one κ, and None by
            leave-one-out, which knows no other samples.
        accuracy: of the largest output at such samples, (k,); None for real targets, and where it was not predicted.
        kappa: paper D's one κ, (k,); None where measured.
        standard_error: of `test_error`, over the training sets that were drawn, (k,); None where predicted.
        accuracy_standard_error: of `accuracy`, likewise.
        interval: 95 % of `test_error`, (k, 2); by leave-one-out only.
        accuracy_interval: 95 % of `accuracy`, likewise.
    """

    n_samples: tuple[int, ...]
    test_error: Array
    test_error_by_target: Array
    learnability: Array | None
    accuracy: Array | None = None
    kappa: Array | None = None
    standard_error: Array | None = None
    accuracy_standard_error: Array | None = None
    interval: Array | None = None
    accuracy_interval: Array | None = None


@dataclass(frozen=True, eq=False)
class LeaveOneOutScore:
    """Kernel regression at each of M labelled samples from all the others; intervals are 95 %, over the samples.

    Attributes:
        n_samples: M.
        test_error: mean squared error as a share of the variance of the targets.
        test_error_by_target: the same for each class or target, (c,).
        standard_error: of `test_error`.
        accuracy: of the largest output; None for real targets.
        outputs: what the others predict at each sample, (M, c); of class labels, one column per class.
    """

    n_samples: int
    test_error: Estimate
    test_error_by_target: Array
    standard_error: float
    accuracy: Estimate | None
    outputs: Array


class KernelLearnability(BaseEstimator):  # type: ignore[misc]
    r"""Predict what kernel regression learns from n labels, before any probe is trained (paper D, Sec. 2.2).

    The samples given to `fit` stand for all there are. A kernel over them has eigenfunctions; labels whose power lies
    in those of large eigenvalues are learned from few samples: the share $λ_i/(λ_i + κ)$ of mode i, with one κ for all
    modes that the number of samples sets.

    Args:
        kernel: "ntk" or "nngp" of an infinitely wide network, "linear", or a function k(x, y) of two batches that
            returns the matrix of their kernel (`kontrast.kernels` has some). "linear" standardises every feature by
            its mean and deviation over the samples, as `linear_probe` does, and adds a constant one for the intercept,
            of the mean squared norm of the others.
        features: what the kernel sees of a sample: None is the sample itself; or a frozen representation, a fitted
            estimator with `transform`, an `nn.Module` or a function of a batch, usually with kernel="linear".
        depth: hidden layers, of "ntk" and "nngp".
        activation: of "ntk" and "nngp".
        relative_ridge: ridge of the regression as a share of the mean of k(x, x). A very small one, such as 1e-6,
            interpolates; where pairs of samples share features that no other has, predictions by points need a larger
            one.
        max_samples: of more samples, this many are drawn; their kernel is decomposed whole, 5000 in about 20 s.
        image_shape, device, random_state: as in `ContrastivePCA`.
        dtype: "float32" or "float64" of features and kernel; None is X's own. The rest is in float64.
        progress: show a bar, of `measure` and of curves by points.

    Attributes:
        eigenvalues_: of the kernel over its M samples, divided by M, descending, (M,).
        coefficients_: v of the centred targets in its eigenfunctions, (M, c).
        power_: the share of the targets' variance in each mode, (M,).
        ridge_: the ridge δ itself.
        classes_: the classes, for class labels; None for real targets.
        n_samples_: M.
        indices_: which of the samples these are, (M,).
        n_features_in_: the number of values in a sample.
        sample_shape_: its shape, (d,) or (c, h, w).
    """

    def __init__(
        self,
        kernel: str | Kernel | Callable[[Tensor, Tensor], Tensor] = "ntk",
        *,
        features: Any = None,
        depth: int = 1,
        activation: Any = "relu",
        relative_ridge: float = 1e-2,
        max_samples: int = 5000,
        image_shape: tuple[int, ...] | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        random_state: int | np.random.RandomState | None = 0,
        progress: bool = False,
    ) -> None:
        self.kernel = kernel
        self.features = features
        self.depth = depth
        self.activation = activation
        self.relative_ridge = relative_ridge
        self.max_samples = max_samples
        self.image_shape = image_shape
        self.device = device
        self.dtype = dtype
        self.random_state = random_state
        self.progress = progress

    @all_or_nothing
    def fit(self, X: Any, y: Any) -> Self:
        """Decompose the kernel over the samples X, and expand the labels y in its eigenfunctions.

        Args:
            X: samples, rows or images; all that have labels.
            y: class labels (n,), whole numbers, words or truth values; or real targets, floating-point (n,) or (n, c).
        """
        self.check_options()
        samples = read_samples(self, X, reset=True, min_samples=3)
        targets, classes, labels = _read_targets(y, len(samples))
        generator = generator_of(self.random_state)
        chosen = torch.arange(len(samples))
        if len(samples) > self.max_samples:
            chosen = torch.randperm(len(samples), generator=generator)[: int(self.max_samples)].sort().values
        centered, center, labels = _centered(targets[chosen], None if labels is None else labels[chosen])
        K = self._kernel_matrix(samples, chosen)
        self._calibrated: CalibratedCurve | None = None
        self._system = eigensystem(K)
        self._K = K if K.dtype == torch.float64 else _rebuilt(self._system)
        self._labels = None if labels is None else labels.to(K.device)
        self._center, self._targets = center.to(K.device), centered.to(K.device)
        self.ridge_ = float(self.relative_ridge) * float(K.diagonal().mean())
        v = self._system.coefficients(self._targets)
        self._powers = v.square()
        self.eigenvalues_ = self._system.eigenvalues.cpu().numpy()
        self.coefficients_ = v.cpu().numpy()
        self.power_ = (self._powers.sum(1) / self._powers.sum()).cpu().numpy()
        self.classes_ = classes
        self.n_samples_, self.indices_ = len(chosen), chosen.numpy()
        return self

    def learning_curve(
        self, n_samples: Sequence[int], *, by: Literal["spectrum", "points", "leave-one-out"] = "spectrum"
    ) -> LearningCurve:
        """The predicted curve, for training sets of each of the sizes `n_samples`.

        "spectrum" and "points" take the M samples for all there are: sizes are below M, drawn without replacement.
        "leave-one-out" takes them for the labels there are so far, and tells of new samples and more labels.

        Args:
            n_samples: numbers of labelled samples.
            by: "spectrum" is paper D's formula, one κ for all samples: at once, and without accuracies. "points" has a
                κ for every sample (`learnability.predict_at_points`), which takes some ten products of (M, M) matrices
                per size. It is closer where some samples are harder than others, and predicts the accuracy of class
                labels, from Gaussian outputs: on digits 1 point too high with 16 labels per class, 4 with 8 and 7
                with 2. "leave-one-out" (`learnability.calibrated_curve`) answers from M/8 to as many as 16 M, with 95 %
                intervals, and refuses with the reason where it cannot.
        """
        check_is_fitted(self, "eigenvalues_")
        require_choice("by", by, ("spectrum", "points", "leave-one-out"))
        if by == "leave-one-out":
            return _curve_of(self._beyond(), _whole_numbers(n_samples))
        sizes = self._sizes(n_samples)
        found = [self._predicted(n) for n in sizes]
        errors, accuracy = torch.stack([one.unseen_error for one in found]), None
        if by == "points":
            errors, accuracy = self._at_points(sizes)
        return LearningCurve(
            sizes,
            **self._shares(errors),
            learnability=torch.stack([one.learnability for one in found]).cpu().numpy(),
            accuracy=accuracy,
            kappa=np.array([one.kappa for one in found]),
        )

    def leave_one_out(self) -> LeaveOneOutScore:
        """The error and accuracy at each sample of the regression from all the others, exactly: how good it is now.

        Each regression predicts the mean of its own labels plus a function of the kernel, as `measure` does with the
        mean of all. It costs one inverse, not M regressions.
        """
        check_is_fitted(self, "eigenvalues_")
        found = left_out(self._K, self._given(), ridge=self.ridge_)
        return LeaveOneOutScore(
            self.n_samples_,
            found.error,
            found.error_by_target.cpu().numpy(),
            found.standard_error,
            found.accuracy,
            found.outputs.cpu().numpy(),
        )

    def measure(self, n_samples: Sequence[int], *, n_draws: int = 10) -> LearningCurve:
        """The measured curve: regression from `n_draws` random training sets of each size, tested on all others."""
        check_is_fitted(self, "eigenvalues_")
        sizes, n_draws = self._sizes(n_samples), require_whole("n_draws", n_draws)
        generator = generator_of(self.random_state)
        draws = []
        with progress_bar("measuring", self.progress) as advance:
            for k, n in enumerate(sizes):
                draws.append([self._regress(n, generator) for _ in range(n_draws)])
                advance(k + 1, len(sizes))
        errors = torch.stack([torch.stack([one[0] for one in row]) for row in draws])  # (k, draws, c)
        shares = torch.stack([torch.stack([one[1] for one in row]) for row in draws])
        hits = np.array([[one[2] for one in row] for row in draws])  # (k, draws)
        total = (errors.sum(2) / self._variance.sum()).cpu().numpy()
        labeled = self._labels is not None
        return LearningCurve(
            sizes,
            **self._shares(errors.mean(1)),
            learnability=shares.mean(1).cpu().numpy(),
            accuracy=hits.mean(1) if labeled else None,
            standard_error=_standard_error(total),
            accuracy_standard_error=_standard_error(hits) if labeled else None,
        )

    def samples_needed(
        self, error: float = 0.1, *, by: Literal["spectrum", "leave-one-out"] = "spectrum"
    ) -> SamplesNeeded:
        """The smallest number of labels whose predicted `test_error` is at most `error`.

        By the spectrum it is among the M samples; by leave-one-out it may be up to 16 times as many, with an interval.
        Some 64 numbers, evenly spaced on a logarithmic axis, are tried in turn, and the first that reaches the error is
        made exact downwards: the error may rise again above it, as it does at as many samples as features.
        """
        check_is_fitted(self, "eigenvalues_")
        if not is_number(error) or not 0 < error < 1:
            raise InputError(f"error must be a share of the targets' variance between 0 and 1, got {error!r}")
        require_choice("by", by, ("spectrum", "leave-one-out"))
        if by == "leave-one-out":
            return self._beyond().samples_needed(error)
        most = self.n_samples_ - 1
        low = 0
        for n in sorted({round(n) for n in np.geomspace(1, most, GRID)}):
            if self._error(n) <= error:
                while n - low > 1:  # above `error` at low, below at n
                    middle = (low + n) // 2
                    low, n = (low, middle) if self._error(middle) <= error else (middle, n)
                return SamplesNeeded(n, f"an error of {error:.3g} needs {n} of the {self.n_samples_} samples")
            low = n
        return SamplesNeeded(
            None,
            f"no number of labels among {self.n_samples_} samples brings the predicted error down to {error:.3g}: with "
            f"{most} it is {self._error(most):.3g}; by='leave-one-out' looks further, or give more samples, another "
            "kernel, features or relative_ridge",
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    def check_options(self) -> None:
        """Refuse options that are wrong whatever the data."""
        require_positive(relative_ridge=self.relative_ridge)
        require_whole("max_samples", self.max_samples, least=3)
        require_whole("depth", self.depth)
        if not (callable(self.kernel) or (isinstance(self.kernel, str) and self.kernel in WORDS)):
            raise InputError(f"kernel must be one of {', '.join(WORDS)} or a function k(x, y), got {self.kernel!r}")
        if self.kernel in ("ntk", "nngp"):
            InfiniteNetwork(depth=int(self.depth), activation=self.activation)  # refuses what is no activation
        elif (self.depth, self.activation) != (1, "relu"):
            raise InputError("depth and activation belong to kernel='ntk' and 'nngp'; leave them out")
        if not (self.features is None or callable(self.features) or hasattr(self.features, "transform")):
            raise InputError(
                "features must be None, a fitted estimator with `transform`, an nn.Module or a function, got "
                f"{type(self.features).__name__}"
            )

    def _kernel_matrix(self, samples: Samples, chosen: Tensor) -> Tensor:
        """K over the chosen samples; in float64, unless it is the user's own."""
        x = self._features(samples[chosen])
        if not bool(torch.isfinite(x).all()):
            raise features_not_finite()
        K = self._kernel_of(x)
        M = len(chosen)
        good = isinstance(K, Tensor) and K.shape == (M, M) and K.is_floating_point()
        if not good or not bool(torch.isfinite(K).all()):
            raise InputError(f"the kernel of {M} samples must be finite floats ({M}, {M}), got {in_words(K)}")
        if not float(K.diagonal().mean()) > 0:
            raise InputError("the kernel is zero at every sample: are the features all constant? give some that vary")
        return K.detach()

    def _features(self, x: Tensor) -> Tensor:
        if self.features is None:
            return x.flatten(1)
        if not hasattr(self.features, "transform"):
            return EncoderFeatures(self.features)(x)
        own = isinstance(self.features, ClosedFormEmbedding)
        try:
            z = self.features.transform(x if own else x.flatten(1).cpu().numpy())
        except NotFittedError as error:
            raise InputError(
                f"features={type(self.features).__name__} is not fitted; fit it first, and wrap it in scikit-learn's "
                "FrozenEstimator where this model is cloned"
            ) from error
        z = torch.as_tensor(np.asarray(z) if not isinstance(z, Tensor) else z)
        if z.ndim < 2 or len(z) != len(x) or z.is_complex():
            raise InputError(f"features must be ({len(x)}, z) numbers for {len(x)} samples, got {tuple(z.shape)}")
        return z.flatten(1).to(device=x.device, dtype=x.dtype)

    def _kernel_of(self, x: Tensor) -> Tensor:
        self._most_modes: float = math.inf
        if self.kernel == "linear":
            self._most_modes = 1 + standardised(x).shape[1]
            return linear_kernel(x)
        if isinstance(self.kernel, str):
            network = InfiniteNetwork(depth=int(self.depth), activation=self.activation)
            kernel = TangentKernel(network) if self.kernel == "ntk" else NetworkKernel(network)
            return kernel(x.double())
        return self.kernel(x, x)

    def _sizes(self, n_samples: Sequence[int]) -> tuple[int, ...]:
        sizes = _whole_numbers(n_samples)
        if max(sizes) >= self.n_samples_:
            raise InputError(
                f"n_samples must be whole numbers from 1 to {self.n_samples_ - 1}, which leaves one of the "
                f"{self.n_samples_} samples to test on, got {list(sizes)}; learning_curve(…, by='leave-one-out') tells "
                "of more"
            )
        return sizes

    def _given(self) -> Tensor:
        """The labels, or the targets with their mean."""
        return self._targets + self._center if self._labels is None else self._labels

    def _beyond(self) -> CalibratedCurve:
        """The curve by leave-one-out, computed on first use."""
        if self._calibrated is None:
            generator = generator_of(self.random_state)
            self._calibrated = calibrated_curve(
                self._K, self._given(), ridge=self.ridge_, rank=self._rank(), generator=generator
            )
        return self._calibrated

    def _rank(self) -> float:
        """Of the kernel of any samples: that of the M samples where it is lower, or the features of a linear one."""
        rank = int((self.eigenvalues_ > 0).sum())
        return rank if rank < self.n_samples_ else self._most_modes

    @property
    def _variance(self) -> Tensor:
        """Of each target, (c,)."""
        return self._targets.square().mean(0)

    def _predicted(self, n: int) -> Prediction:
        return predict_learning(self._system.spectrum, self._powers, n, ridge=self.ridge_, replacement=False)

    def _error(self, n: int) -> float:
        return float(self._predicted(n).unseen_error.sum() / self._variance.sum())

    def _at_points(self, sizes: tuple[int, ...]) -> tuple[Tensor, Array | None]:
        """Errors (k, c) and accuracies (k,) from a κ for every sample."""
        M, c = self._targets.shape
        if M * c * c > MOST_MOMENTS:
            raise InputError(
                f"by='points' needs the {c} x {c} moments of {c} targets at {M} samples, which is too much; lower "
                "max_samples, or take by='spectrum'"
            )
        errors, accuracies = [], []
        with progress_bar("predicting", self.progress) as advance:
            for k, n in enumerate(sizes):
                found = predict_at_points(self._K, self._targets, n, ridge=self.ridge_)
                errors.append(found.unseen_error)
                if self._labels is not None:
                    accuracies.append(_accuracy(found, self._labels, self._center, generator_of(self.random_state)))
                advance(k + 1, len(sizes))
        return torch.stack(errors), np.array(accuracies) if accuracies else None

    def _regress(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor, float]:
        """From one random training set: errors and learnabilities by target, and the accuracy."""
        order = torch.randperm(self.n_samples_, generator=generator).to(self._K.device)
        seen, others = order[:n], order[n:]
        G = self._K[seen][:, seen]
        G.diagonal().add_(self.ridge_)
        L, info = torch.linalg.cholesky_ex(G)
        if int(info):
            raise InputError(
                f"the kernel of {n} samples is singular to rounding; raise relative_ridge (now {self.relative_ridge:g})"
            )
        outputs = self._K[:, seen] @ torch.cholesky_solve(self._targets[seen], L)
        errors = (outputs - self._targets)[others].square().mean(0)
        hit = math.nan
        if self._labels is not None:
            hit = float(((outputs + self._center).argmax(1) == self._labels)[others].double().mean())
        return errors, learnability(self._targets, outputs), hit

    def _shares(self, errors: Tensor) -> dict[str, Array]:
        """Errors (k, c) as shares of the targets' variance."""
        return {
            "test_error": (errors.sum(1) / self._variance.sum()).cpu().numpy(),
            "test_error_by_target": (errors / self._variance).cpu().numpy(),
        }


def linear_kernel(features: Tensor) -> Tensor:
    """Products of standardised features plus those of a constant one, of weight the mean squared norm, (n, n)."""
    z = standardised(features)
    return z @ z.mT + float(z.shape[1])  # the mean squared norm of standardised features is their number


def standardised(features: Tensor) -> Tensor:
    """The features that vary, each of mean 0 and deviation 1, in float64."""
    x = features.double()
    x = x / x.abs().max().clamp(min=torch.finfo(torch.float64).tiny)  # so that no square overflows
    deviation = x.std(0, correction=0)
    varies = deviation > 1e-12 * x.abs().amax(0)
    z: Tensor = (x[:, varies] - x[:, varies].mean(0)) / deviation[varies]
    return z


def _rebuilt(system: Eigensystem) -> Tensor:
    """The kernel of less than float64 without the eigenvalues that are its rounding, some of them below 0."""
    return (system.functions * system.eigenvalues) @ system.functions.mT


def _read_targets(y: Any, n: int) -> tuple[Tensor, Array | None, Tensor | None]:
    """Targets (n, c) in float64, and for class labels the classes and the place of each label among them."""
    if y is None:
        raise InputError("fit requires y to be passed, but the target y is None; pass class labels or real targets")
    given = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    if given.ndim == 2 and given.shape[1] == 1:
        given = given[:, 0]
    if given.ndim not in (1, 2) or len(given) != n or given.size == 0 or given.dtype.kind == "c":
        raise InputError(
            f"y must be class labels ({n},) or real targets ({n},) or ({n}, c), one for each of the {n} samples, got "
            f"{given.dtype} {given.shape}"
        )
    if given.ndim == 1 and given.dtype.kind != "f":
        classes, place = np.unique(given.astype(str) if given.dtype.kind == "O" else given, return_inverse=True)
        labels = torch.from_numpy(place.astype(np.int64))
        return torch.nn.functional.one_hot(labels, len(classes)).double(), classes, labels
    if given.dtype.kind not in "biuf":
        raise InputError(f"real targets must be numbers, got {given.dtype} {given.shape}")
    targets = torch.from_numpy(np.asarray(given, dtype=np.float64).reshape(n, -1).copy())
    if not bool(torch.isfinite(targets).all()):
        raise InputError("y holds NaN or infinite values; drop those samples or fill the values in")
    return targets, None, None


def _centered(targets: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Targets less their mean, the mean, and the labels; refuses what has nothing to learn."""
    center = targets.mean(0)
    centered = targets - center
    still = ~(centered.abs().amax(0) > 1e-12 * targets.abs().amax(0))
    if labels is not None and bool(still.any()) and len(torch.unique(labels)) >= 2:
        raise InputError(
            f"{int(still.sum())} of {len(still)} classes have no sample among the {len(targets)} that were drawn; "
            "raise max_samples, or leave those classes out"
        )
    if bool(still.any()):
        what = "y holds one class only" if labels is not None else f"{int(still.sum())} of y's targets are constant"
        raise InputError(f"{what}, so there is nothing to learn; give labels that vary")
    return centered, center, labels


def _accuracy(found: PointPrediction, labels: Tensor, offset: Tensor, generator: torch.Generator) -> float:
    """How often the largest output plus `offset` (c,) is that of the label (M,), of Gaussian outputs."""
    values, vectors = torch.linalg.eigh(found.covariance)
    root = vectors * values.clamp(min=0).sqrt()[:, None, :]
    draws = torch.randn(NORMAL_DRAWS, len(offset), generator=generator, dtype=torch.float64).to(offset)
    hits = [((found.outputs + root @ z + offset).argmax(1) == labels).double().mean() for z in draws]
    return float(torch.stack(hits).mean())


def _whole_numbers(n_samples: Sequence[int]) -> tuple[int, ...]:
    given = np.atleast_1d(np.asarray(n_samples, dtype=object)).ravel()
    if not given.size:
        raise InputError("n_samples is empty; pass numbers of labelled samples, such as [100, 1000]")
    return tuple(require_whole("each of n_samples", n) for n in given)


def _curve_of(curve: CalibratedCurve, sizes: tuple[int, ...]) -> LearningCurve:
    errors = [curve.error(n) for n in sizes]
    accuracies = [one for one in map(curve.accuracy, sizes) if one is not None]
    return LearningCurve(
        sizes,
        test_error=np.array([one.value for one in errors]),
        test_error_by_target=np.stack([curve.error_by_target(n) for n in sizes]),
        learnability=None,
        accuracy=np.array([one.value for one in accuracies]) if accuracies else None,
        kappa=np.array([curve.kappa(n) for n in sizes]),
        interval=np.array([(one.low, one.high) for one in errors]),
        accuracy_interval=np.array([(one.low, one.high) for one in accuracies]) if accuracies else None,
    )


def _standard_error(draws: Array) -> Array:
    """Of the mean over the draws, (k, draws) → (k,); infinite for one draw."""
    n = draws.shape[1]
    return draws.std(axis=1, ddof=1) / math.sqrt(n) if n > 1 else np.full(len(draws), math.inf)
