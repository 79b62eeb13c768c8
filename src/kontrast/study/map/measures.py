"""What is measured of every run of a map, once it has ended: a registry, as in the other sections."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kontrast.errors import InputError
from kontrast.estimators import knn_probe, linear_predictions
from kontrast.kernels import empirical_ntk_trace
from kontrast.linalg import effective_rank, relative_spread, subspace_sines
from kontrast.nets import Parameters, PureFunction
from kontrast.pca import contrastive_pca
from kontrast.study.map.split import Samples, Split
from kontrast.study.quantities import Quantity, share, short

N_PCA_SAMPLES = 250  # whose pairs make the contrastive matrix of the features
SLICE = 1024  # samples that a network of the user's own sees at once


Scores = tuple[float, float, float]
"""Test accuracy of a linear probe and of nearest neighbours, and the linear probe's on validation samples."""

NO_SCORES: Scores = (math.nan, math.nan, math.nan)


@dataclass(frozen=True, eq=False)
class Probes:
    """Samples that teach probes, choose among embeddings and test them, with their labels."""

    taught: Tensor
    taught_labels: Tensor
    validation: Tensor
    validation_labels: Tensor
    test: Tensor
    test_labels: Tensor

    @classmethod
    def of(cls, samples: Samples, split: Split) -> Probes:
        """The samples of a split."""
        assert samples.labels is not None
        labels = samples.labels.cpu()
        parts = (split.taught, split.validation, split.test)
        return cls(*(array for part in parts for array in (samples.x[part.to(samples.x.device)], labels[part])))

    def scores(self, embed: Callable[[Tensor], Tensor]) -> Scores:
        """How well the labels of an embedding's samples are told from it."""
        taught, validation, test = (embed(x).detach().cpu() for x in (self.taught, self.validation, self.test))
        if not all(bool(torch.isfinite(part).all()) for part in (taught, validation, test)):
            return NO_SCORES
        said = linear_predictions(taught, self.taught_labels, torch.cat([test, validation]))
        right = (said == torch.cat([self.test_labels, self.validation_labels])).double()
        return (
            float(right[: len(test)].mean()),
            knn_probe(taught, self.taught_labels, test, self.test_labels),
            float(right[len(test) :].mean()),
        )


@dataclass(frozen=True, eq=False)
class Ground:
    """What all runs of a start are measured on."""

    module: nn.Module
    inputs: Callable[[Tensor], Tensor]  # samples as the network takes them
    origin: Parameters
    function: PureFunction
    features: PureFunction
    points: Tensor  # where the tangent kernel is taken
    pairs: Tensor  # two views of some samples, for the contrastive matrix of the features
    test: Tensor  # inputs for rank, spread and sines
    probes: Probes | None
    n_components: int

    @functools.cached_property
    def first_kernel(self) -> Tensor:
        """The tangent kernel at the start, summed over outputs."""
        return empirical_ntk_trace(self.module, self.points, parameters=self.origin).double()

    @functools.cached_property
    def first_pca(self) -> Tensor | None:
        """The outputs of contrastive PCA of the first features at `test`; None where they have none."""
        return self.pca_outputs(self.origin)

    @functools.cached_property
    def first_outputs(self) -> Tensor:
        """The outputs at `test` before training."""
        with torch.no_grad():
            return self.function(self.origin, self.test).double()

    def pca_outputs(self, parameters: Parameters) -> Tensor | None:
        """The outputs at `test` of contrastive PCA (paper A, (8)) of the features that a run has."""
        with torch.no_grad():
            phi = self.features(parameters, self.pairs).double()
            n = len(phi) // 2
            center = phi.mean(0)
            S = _in_batch_pairs(n, phi.device)
            try:
                frame = contrastive_pca(phi - center, S, self.n_components).frame
            except InputError:  # fewer features than components, or features that are all alike
                return None
            return (self.features(parameters, self.test).double() - center) @ frame


@functools.lru_cache(maxsize=2)
def _in_batch_pairs(n: int, device: torch.device) -> Tensor:
    """The pair matrix in which sample i attracts its other view and repels, on average, those of all samples."""
    attract, S = torch.eye(n) - torch.ones(n, n) / n, torch.zeros(2 * n, 2 * n, dtype=torch.float64)
    S[:n, n:] = attract / (2 * n)
    return (S + S.mT).to(device)


@dataclass(frozen=True, eq=False)
class Ended:
    """A run where it ended, beside its twin."""

    ground: Ground
    parameters: Parameters
    twin_outputs: Callable[[Tensor], Tensor]
    gap: float

    def network(self, inputs: Tensor) -> Tensor:
        """The trained network's outputs."""
        with torch.no_grad():
            return torch.cat([self.ground.function(self.parameters, part) for part in torch.split(inputs, SLICE)])

    @functools.cached_property
    def outputs(self) -> Tensor:
        """The trained network's outputs at the test samples."""
        return self.network(self.ground.test).double()

    @functools.cached_property
    def kernel(self) -> Tensor:
        """The tangent kernel now."""
        return empirical_ntk_trace(self.ground.module, self.ground.points, parameters=self.parameters).double()

    def sine(self, other: Tensor | None) -> float:
        """Root mean square sine between the span of the outputs and that of others, all centred."""
        if other is None:
            return math.nan
        here, there = (part - part.mean(0) for part in (self.outputs, other))
        try:
            return float(subspace_sines(here, there).square().mean().sqrt())
        except InputError:  # outputs that span fewer dimensions
            return math.nan

    @functools.cached_property
    def scores(self) -> Scores:
        """Probes of the trained network."""
        return self._scores(self.network)

    @functools.cached_property
    def twin_scores(self) -> Scores:
        """Probes of the linearised twin."""
        return self._scores(self.twin_outputs)

    def _scores(self, outputs: Callable[[Tensor], Tensor]) -> Scores:
        probes = self.ground.probes
        return NO_SCORES if probes is None else probes.scores(lambda x: outputs(self.ground.inputs(x)))


def _alignment(a: Tensor, b: Tensor) -> float:
    return float((a * b).sum() / (a.norm() * b.norm()))


QUANTITIES = (
    Quantity(
        "map_gap",
        "kernel gap: ‖f − f_lin‖_F / ‖f‖_F at held-out samples, f_lin the linearised twin trained on the same batches; "
        "rows at unit length under a loss of cosine similarities",
        read=lambda run: run.gap,
        heading="kernel gap",
        write=share,
        in_terminal=True,
    ),
    Quantity(
        "map_drift",
        "kernel drift: ‖K − K(0)‖_F / ‖K(0)‖_F, K the tangent kernel summed over outputs",
        read=lambda run: float((run.kernel - run.ground.first_kernel).norm() / run.ground.first_kernel.norm()),
        heading="kernel drift",
        write=share,
    ),
    Quantity(
        "map_alignment",
        "alignment with the first kernel: ⟨K, K(0)⟩ / (‖K‖ ‖K(0)‖)",
        read=lambda run: _alignment(run.kernel, run.ground.first_kernel),
        heading="alignment",
    ),
    Quantity(
        "map_pca_first",
        "root mean square sine between the span of the outputs and contrastive PCA of the first features",
        read=lambda run: run.sine(run.ground.first_pca),
        heading="sine to PCA of first features",
    ),
    Quantity(
        "map_pca_now",
        "root mean square sine between the span of the outputs and contrastive PCA of the present features",
        read=lambda run: run.sine(run.ground.pca_outputs(run.parameters)),
        heading="sine to PCA of present features",
    ),
    Quantity(
        "map_rank",
        "effective rank of the centred outputs at the test samples",
        read=lambda run: effective_rank(run.outputs),
        heading="effective rank",
        write=short,
    ),
    Quantity(
        "map_spread",
        "share of the outputs' squared norm that is not their mean",
        read=lambda run: relative_spread(run.outputs),
        heading="spread",
        write=share,
    ),
    Quantity(
        "map_first_rank",
        "effective rank of the centred outputs at the test samples before training",
        read=lambda run: effective_rank(run.ground.first_outputs),
        heading="effective rank at the start",
        write=short,
    ),
    Quantity(
        "map_first_spread",
        "share of the outputs' squared norm that is not their mean, before training",
        read=lambda run: relative_spread(run.ground.first_outputs),
        heading="spread at the start",
        write=share,
    ),
    Quantity(
        "map_accuracy",
        "test accuracy of a linear probe of the trained network",
        read=lambda run: run.scores[0],
        heading="linear probe",
        write=share,
        in_terminal=True,
    ),
    Quantity(
        "map_knn",
        "test accuracy of 20 nearest neighbours in the trained network",
        read=lambda run: run.scores[1],
        heading="nearest neighbours",
        write=share,
    ),
    Quantity(
        "map_validation",
        "validation accuracy of a linear probe of the trained network",
        read=lambda run: run.scores[2],
        heading="linear probe, validation",
        write=share,
    ),
    Quantity(
        "map_twin_accuracy",
        "test accuracy of a linear probe of the linearised twin",
        read=lambda run: run.twin_scores[0],
        heading="twin's linear probe",
        write=share,
    ),
    Quantity(
        "map_twin_knn",
        "test accuracy of 20 nearest neighbours in the linearised twin",
        read=lambda run: run.twin_scores[1],
        heading="twin's nearest neighbours",
        write=share,
    ),
)
STILL_FALLING = Quantity(
    "map_still_falling",
    "share of the loss's whole fall that the last half of the steps added",
    heading="still falling",
    write=share,
)
DIVERGED_AT = Quantity(
    "map_diverged_at", "the step at which a run diverged, where every run did", heading="diverged at"
)
OF_RUNS = (STILL_FALLING, DIVERGED_AT)  # told by the runs themselves
