"""The twins that need no gradient: the start itself, closed forms over its features, PCA of the input, the input."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from kontrast.errors import InputError
from kontrast.estimators import ContrastivePCA, SpectralContrastive
from kontrast.study.draws import load_samples
from kontrast.study.map.measures import NO_SCORES, SLICE, Ground, Probes, Scores
from kontrast.study.map.split import Samples, split_for
from kontrast.study.probes import input_embeddings
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


def scores(spec: StudySpec, samples: Samples, contrasted: Tensor, ground: Ground, seed: int) -> dict[str, Scores]:
    """The probes of every baseline; NaN for a closed form that the features are too few for."""
    if ground.probes is None:
        return {}
    found = {
        name: NO_SCORES if embed is None else ground.probes.scores(embed)
        for name, embed in _on_features(spec, samples, contrasted, ground, seed).items()
    }
    found |= _of_input(spec, seed)
    return {name: found[name] for name in BASELINES}


def _on_features(
    spec: StudySpec, samples: Samples, contrasted: Tensor, ground: Ground, seed: int
) -> dict[str, Embedding | None]:
    """The start, and the closed forms over its features."""

    def encode(x: Tensor) -> Tensor:
        with torch.no_grad():
            return ground.features(ground.origin, samples.inputs(x))

    def start(x: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat([ground.function(ground.origin, samples.inputs(part)) for part in torch.split(x, SLICE)])

    made: dict[str, Embedding | None] = {"start": start}
    estimators = {
        "spectral": SpectralContrastive(spec.d_out, features=encode, views=samples.view, random_state=seed),
        "contrastive-pca": ContrastivePCA(spec.d_out, features=encode, views=samples.view, random_state=seed),
    }
    for name, estimator in estimators.items():
        try:
            made[name] = estimator.fit(samples.x[contrasted.to(samples.x.device)]).transform
        except InputError:  # fewer features, or directions in which views agree, than dimensions
            made[name] = None
    return made


@functools.lru_cache(maxsize=32)
def _of_input(spec: StudySpec, seed: int) -> dict[str, Scores]:
    """The baselines without a network, the same at every width: probed once per process."""
    dataset = load_samples(spec)
    samples, split = Samples.of(spec, dataset), split_for(spec, dataset, seed)
    probes = Probes.of(samples, split)
    x = samples.x[split.contrasted.to(samples.x.device)].flatten(1)
    made = input_embeddings(x, min(spec.d_out, x.shape[1]))
    guess = torch.mode(probes.taught_labels).values
    chance = [float((y == guess).double().mean()) for y in (probes.test_labels, probes.validation_labels)]
    return {
        "pca": probes.scores(lambda rows: made["pixel-pca"](rows.flatten(1))),
        "raw": probes.scores(lambda rows: made["pixels"](rows.flatten(1))),
        "chance": (chance[0], chance[0], chance[1]),
    }
