"""The twins that need no gradient: the start itself, closed forms over its features, PCA of the input, the input."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kontrast.errors import InputError
from kontrast.estimators import ContrastivePCA, SpectralContrastive
from kontrast.nets import Parameters, PureFunction
from kontrast.study.map.split import Samples
from kontrast.study.probes import input_embeddings

if TYPE_CHECKING:
    from kontrast.study.spec import StudySpec

BASELINES = {
    "start": "the network before training",
    "spectral": "SpectralContrastive on the features at the start",
    "contrastive-pca": "ContrastivePCA on the features at the start",
    "pca": "plain PCA of the input",
    "raw": "the input itself, with all its dimensions",
    "chance": "always the most frequent class",
}
CLOSED_FORMS = ("spectral", "contrastive-pca", "pca")  # in the embedding's own dimension; one of them is the best

Embedding = Callable[[Tensor], Tensor]


def embeddings(
    spec: StudySpec,
    samples: Samples,
    contrasted: Tensor,
    features: PureFunction,
    function: PureFunction,
    start: Parameters,
    seed: int,
) -> dict[str, Embedding | None]:
    """Every baseline as a map of samples; None for a closed form that the features are too few for."""
    x = samples.x[contrasted.to(samples.x.device)]

    def encode(images: Tensor) -> Tensor:
        with torch.no_grad():
            return features(start, samples.inputs(images))

    made: dict[str, Embedding | None] = {"start": lambda images: function(start, samples.inputs(images))}
    estimators = {
        "spectral": SpectralContrastive(spec.d_out, features=encode, views=samples.view, random_state=seed),
        "contrastive-pca": ContrastivePCA(spec.d_out, features=encode, views=samples.view, random_state=seed),
    }
    for name, estimator in estimators.items():
        try:
            made[name] = estimator.fit(x).transform
        except InputError:  # fewer features, or directions in which views agree, than dimensions
            made[name] = None
    of_input = input_embeddings(x.flatten(1), min(spec.d_out, x[0].numel()))
    for name, source in (("pca", "pixel-pca"), ("raw", "pixels")):
        made[name] = functools.partial(_of_rows, of_input[source])
    return {name: made[name] for name in BASELINES if name != "chance"}


def _of_rows(embed: Embedding, images: Tensor) -> Tensor:
    return embed(images.flatten(1))
