"""The embeddings that are judged side by side: the trained one, its start, closed forms, PCA and the input itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kontrast.diagnosis.collapse import Seen
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

Embed = Callable[[Tensor], Tensor]
END, START, SAVED, INPUT = "end", "start", "start as saved", "input"  # what embeddings are made from


@dataclass(frozen=True, eq=False)
class Embedding:
    """One embedding by its name: a function of the rows of its source. None where it cannot be made, and why."""

    name: str
    source: str
    after: Embed | None
    dimension: int
    why: str = ""


class Sources:
    """The features of samples at the checkpoints that embeddings are made from; a network sees no samples twice."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self._states = {END: subject.end, START: subject.start, SAVED: subject.start_as_saved}
        self._kept: dict[tuple[str, str], Tensor] = {}

    def rows(self, source: str, name: str, x: Tensor) -> Tensor:
        """The features of the samples called `name`, on the CPU; of the input the samples themselves."""
        if source == INPUT:
            return x.cpu()
        if (source, name) not in self._kept:
            state = self._states[source]
            assert state is not None
            self._kept[source, name] = judged(self.subject, state, x).cpu()
        return self._kept[source, name]


def judged(subject: Subject, state: State, x: Tensor) -> Tensor:
    """The layer that probes judge, at a state."""
    return subject.encoder.outputs(state, x)[subject.encoder.features]


def embeddings_of(subject: Subject, start: Seen) -> list[Embedding]:
    """The trained embedding and everything that it is compared with; closed forms are fitted without labels."""
    views = start.views[subject.encoder.features]
    d = views.shape[2]
    k = max(1, min(d, len(subject.x) // SAMPLES_PER_COMPONENT))
    made = [Embedding("trained", END, _itself, d), Embedding("start", START, _itself, d)]
    if subject.start_as_saved is not None:
        made.append(Embedding("start as saved", SAVED, _itself, d))
    of_start = [view.contiguous() for view in views.cpu().unbind(1)]
    made += [_closed_form(subject, name, START, k, of_start) for name in CLOSED_FORMS if name.endswith("of start")]
    if why := _unfit_input(subject):
        of_input = [name for name in TWINS if name not in {it.name for it in made} and not name.startswith("start")]
        return [*made, *(Embedding(name, INPUT, None, 0, why) for name in of_input)]
    of_views = [view.contiguous() for view in subject.views.views.cpu().unbind(1)]
    made += [_closed_form(subject, name, INPUT, k, of_views) for name in ("spectral", "contrastive PCA")]
    n_raw = subject.x[0].numel()
    made.append(Embedding("PCA", INPUT, _pca(subject.x.cpu(), k), min(k, n_raw)))
    return [*made, Embedding("raw input", INPUT, lambda x: x.flatten(1), n_raw)]


def _itself(z: Tensor) -> Tensor:
    return z


def _unfit_input(subject: Subject) -> str:
    """Why closed forms cannot be made of this input; empty where they can."""
    if not subject.x.is_floating_point():
        return "the input is whole numbers, such as tokens, which have no linear structure"
    if subject.x.shape[1:] != subject.views.views.shape[2:]:
        return f"views have shape {tuple(subject.views.views.shape[2:])} but samples {tuple(subject.x.shape[1:])}"
    return "" if subject.x.ndim in (2, 4) else "samples are neither rows (n, d) nor images (n, c, h, w)"


def _closed_form(subject: Subject, name: str, source: str, k: int, views: Sequence[Tensor]) -> Embedding:
    """A closed form with `k` dimensions, or with half or a quarter of them where there are no more."""
    kind = SpectralContrastive if name.startswith("spectral") else ContrastivePCA
    features: Any = _itself if source == START else "random"
    most, why = (views[0].shape[1] if source == START else FEATURES), ""
    for k_tried in dict.fromkeys(min(most, n) for n in (k, k // 2, k // 4) if n >= 1):
        seed = subject.settings.seed % 2**32
        model = kind(k_tried, width=FEATURES, features=features, random_state=seed, dtype="float32")
        try:
            if isinstance(model, SpectralContrastive):
                model.fit_views(views)
            else:
                model.fit_pairs(views[0], views[1])
        except InputError as error:
            why = str(error)
            continue
        return Embedding(name, source, partial(_transform, model), k_tried)
    return Embedding(name, source, None, 0, why or "it has no dimensions")


def _transform(model: SpectralContrastive | ContrastivePCA, x: Tensor) -> Tensor:
    return torch.as_tensor(model.transform(x))


def _pca(x: Tensor, k: int) -> Embed:
    rows = x.flatten(1).double()
    center = rows.mean(0)
    directions = torch.linalg.svd(rows - center, full_matrices=False).Vh[:k].mT
    return lambda given: (given.flatten(1).double() - center) @ directions
