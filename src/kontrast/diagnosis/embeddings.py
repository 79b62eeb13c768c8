"""The embeddings that are judged side by side: the trained one, its start, closed forms, PCA and the input itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kontrast.diagnosis.inputs import State
from kontrast.diagnosis.subject import Subject
from kontrast.errors import InputError
from kontrast.estimators import ContrastivePCA, SpectralContrastive

TWINS = {
    "start": "the model before training",
    "start as saved": "the model before training with the running statistics that it was saved with",
    "spectral of start": "SpectralContrastive on the features of the start",
    "contrastive PCA of start": "ContrastivePCA on the features of the start",
    "spectral": "SpectralContrastive on random ReLU features of the input",
    "contrastive PCA": "ContrastivePCA on random ReLU features of the input",
    "PCA": "plain PCA of the input",
    "raw input": "the input itself, with all its dimensions",
}
CLOSED_FORMS = ("spectral of start", "contrastive PCA of start", "spectral", "contrastive PCA", "PCA")
SAMPLES_PER_COMPONENT = 4  # of a closed form: whitened dimensions, almost as many as samples, are mostly noise
FEATURES = 2048  # random features of the input
ROWS = 256

Embed = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Embedding:
    """One embedding by its name, with its dimension; it has none where it cannot be made, and says why."""

    name: str
    embed: Embed | None
    dimension: int
    why: str = ""


def judged(subject: Subject, state: State, x: Tensor) -> Tensor:
    """The layer that probes judge, at a state."""
    return subject.encoder.outputs(state, x)[subject.encoder.features]


def embeddings_of(subject: Subject) -> list[Embedding]:
    """The trained embedding and everything that it is compared with; closed forms are fitted without labels."""
    trained, start = partial(judged, subject, subject.end), partial(judged, subject, subject.start)
    d = trained(subject.x[:2]).shape[1]
    k = max(1, min(d, len(subject.x) // SAMPLES_PER_COMPONENT))
    made = [Embedding("trained", trained, d), Embedding("start", start, d)]
    if subject.start_as_saved is not None:
        made.append(Embedding("start as saved", partial(judged, subject, subject.start_as_saved), d))
    why = _unfit_input(subject)
    if why:
        return [*made, *(Embedding(name, None, 0, why) for name in TWINS if not name.startswith("start"))]
    made += [_closed_form(subject, name, k, start) for name in CLOSED_FORMS if name != "PCA"]
    n_raw = subject.x[0].numel()
    pca = Embedding("PCA", _pca(subject.x, k), min(k, n_raw))
    return [*made, pca, Embedding("raw input", lambda x: x.flatten(1), n_raw)]


def _unfit_input(subject: Subject) -> str:
    """Why closed forms cannot be made of this input; empty where they can."""
    if not subject.x.is_floating_point():
        return "the input is whole numbers, such as tokens, which have no linear structure"
    if subject.x.shape[1:] != subject.views.views.shape[2:]:
        return f"views have shape {tuple(subject.views.views.shape[2:])} but samples {tuple(subject.x.shape[1:])}"
    return "" if subject.x.ndim in (2, 4) else "samples are neither rows (n, d) nor images (n, c, h, w)"


def _closed_form(subject: Subject, name: str, k: int, start: Embed) -> Embedding:
    """A closed form with `k` dimensions, or with as many as there are."""
    kind = SpectralContrastive if name.startswith("spectral") else ContrastivePCA
    of_start = name.endswith("of start")
    seed, views = subject.settings.seed % 2**32, subject.views.views
    seen = [view.contiguous() for view in views.unbind(1)]
    most = start(subject.x[:2]).shape[1] if of_start else FEATURES
    why = ""
    for k_tried in dict.fromkeys(min(most, n) for n in (k, k // 2, k // 4) if n >= 1):
        features = start if of_start else "random"
        model = kind(k_tried, width=FEATURES, features=features, random_state=seed, dtype="float32")
        try:
            if isinstance(model, SpectralContrastive):
                model.fit_views(seen)
            else:
                model.fit_pairs(seen[0], seen[1])
        except InputError as error:
            why = str(error)
            continue
        return Embedding(name, partial(_transform, model), k_tried)
    return Embedding(name, None, 0, why or "it has no dimensions")


def _transform(model: SpectralContrastive | ContrastivePCA, x: Tensor) -> Tensor:
    return torch.as_tensor(model.transform(x))


def _pca(x: Tensor, k: int) -> Embed:
    rows = x.flatten(1).double()
    center = rows.mean(0)
    directions = torch.linalg.svd(rows - center, full_matrices=False).Vh[:k].mT
    return lambda given: (given.flatten(1).double() - center) @ directions
