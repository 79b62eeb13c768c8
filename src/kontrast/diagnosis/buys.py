"""Is training buying anything? Probes of the trained embedding beside its start and everything that needs no training.

With labels: linear probes and nearest neighbours over resampled splits, as paired differences. Without: tasks that need
no labels, random dichotomies of the samples, learned from some of their views and tested on the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from scipy import stats
from torch import Tensor

from kontrast.diagnosis.collapse import Seen
from kontrast.diagnosis.embeddings import CLOSED_FORMS, TWINS, Embedding, Sources, embeddings_of
from kontrast.diagnosis.metrics import neighbor_agreement
from kontrast.diagnosis.subject import Labelled, Subject
from kontrast.estimators import knn_probe, ridge_probe
from kontrast.linalg import Estimate

PROBES = {
    "linear": "test accuracy of a linear probe: ridge regression of the classes on standardised dimensions, its ridge "
    "by leave-one-out error",
    "knn": "test accuracy of 20 nearest neighbours by cosine similarity",
}
TASKS = {
    "dichotomies": "accuracy at random dichotomies of the samples, learned by ridge regression from half of the views "
    "and tested on the others",
    "agreement": "how often the nearest other row by cosine is a view of the same sample",
}
TEST_SHARE = 0.3  # of the labelled samples, in every split
N_DICHOTOMIES = 32
CHECKPOINT_SPLITS = 5  # in which every checkpoint is probed
CONFIDENCE = 0.95
MOST_VIEWS = 4  # of a sample, for tasks without labels


def measure(
    subject: Subject, seen: Sequence[Seen], sources: Sources, advance: Callable[[], None]
) -> tuple[xr.Dataset, dict[str, str]]:
    """Scores of every embedding in every split, and why some are missing."""
    made = embeddings_of(subject, seen[0])
    missing = {f"score of {it.name}": it.why for it in made if it.after is None}
    tasks = list(PROBES) if subject.labelled is not None else list(TASKS)
    scores = []
    for it in made:
        scores.append(_scores(subject, it, tasks, sources))
        advance()
    words = PROBES | TASKS
    found = xr.Dataset(
        {
            "score": (
                ("embedding", "task", "split"),
                np.array(scores),
                {"long_name": "score", "definition": "; ".join(f"{task}: {words[task]}" for task in tasks)},
            ),
            "score_dimension": ("embedding", np.array([it.dimension for it in made], dtype=np.int32)),
        },
        coords={"embedding": [it.name for it in made], "task": tasks},
    )
    if subject.labelled is not None:
        train, test = _splits(subject, subject.labelled)[0]
        found.attrs.update({"n_probe_train": len(train), "n_probe_test": len(test)})
    if subject.y is not None and len(subject.checkpoints) > 2:
        found = found.merge(_along_checkpoints(subject, subject.y, seen), combine_attrs="override")
    return found, missing


def _scores(subject: Subject, it: Embedding, tasks: Sequence[str], sources: Sources) -> np.ndarray:
    """(task, split); NaN for an embedding that cannot be made."""
    n = subject.settings.n_splits
    if it.after is None:
        return np.full((len(tasks), n), math.nan)
    labelled = subject.labelled
    if labelled is None:
        views = subject.views.views[:, :MOST_VIEWS]
        z = it.after(sources.rows(it.source, "views", views.flatten(0, 1)))
        return _without_labels(subject, z.double().reshape(*views.shape[:2], -1), n)
    z = it.after(sources.rows(it.source, "labelled", labelled.x))
    others, other_y = z, labelled.y
    if labelled.test_x is not None and labelled.test_y is not None:
        others, other_y = it.after(sources.rows(it.source, "test", labelled.test_x)), labelled.test_y
    return np.array(
        [_probed(z, labelled.y, others, other_y, split) for split in _splits(subject, labelled)], dtype=float
    ).T


# --- with labels ----------------------------------------------------------------------------------------------------


def _splits(subject: Subject, labelled: Labelled) -> list[tuple[Tensor, Tensor]]:
    """Rows that train and rows that test; of given test samples a part, so that splits differ as samples of both do."""
    generator, made = subject.generator(2), []
    n = len(labelled.y)
    n_test = max(1, round(TEST_SHARE * n))
    for _ in range(subject.settings.n_splits):
        order = torch.randperm(n, generator=generator)
        test = order[:n_test]
        if labelled.test_y is not None:
            m = len(labelled.test_y)
            test = torch.randperm(m, generator=generator)[: max(1, round((1 - TEST_SHARE) * m))]
        made.append((order[n_test:], test))
    return made


def _probed(z: Tensor, y: Tensor, others: Tensor, other_y: Tensor, split: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Accuracies of the linear probe and of nearest neighbours in a split."""
    train, test = split
    given = (z[train], y[train], others[test], other_y[test])
    if bool((y[train] == y[train[0]]).all()):  # a rare class is all among the others: one answer is all there is
        guess = float((other_y[test] == y[train[0]]).double().mean())
        return guess, guess
    return ridge_probe(*given), knn_probe(*given)


def _along_checkpoints(subject: Subject, y: Tensor, seen: Sequence[Seen]) -> xr.Dataset:
    """Accuracy of the linear probe at every checkpoint, on the samples at hand: how good is a choice without labels?"""
    splits = _splits(subject, Labelled(subject.x, y))[:CHECKPOINT_SPLITS]
    table = []
    for at in seen:
        z = at.clean[subject.encoder.features].cpu()
        table.append([_probed(z, y, z, y, split)[0] for split in splits])
    attributes = {"long_name": "linear probe", "definition": PROBES["linear"]}
    return xr.Dataset(
        {"checkpoint_accuracy": (("checkpoint", "checkpoint_split"), np.array(table), attributes)},
        coords={"checkpoint": list(subject.labels)},
    )


# --- without labels -------------------------------------------------------------------------------------------------


def _without_labels(subject: Subject, z: Tensor, n_splits: int) -> np.ndarray:
    n, v = z.shape[:2]
    generator, half = subject.generator(3), max(1, v // 2)
    found = []
    for _ in range(n_splits):
        rows = torch.randperm(n, generator=generator)[: max(4, round((1 - TEST_SHARE) * n))]
        signs = 2.0 * torch.randint(2, (len(rows), N_DICHOTOMIES), generator=generator).double() - 1
        order = torch.randperm(v, generator=generator)
        some = z[rows][:, order]
        found.append((_dichotomies(some[:, :half], some[:, half:], signs), neighbor_agreement(some)))
    return np.array(found).T


def _dichotomies(seen: Tensor, unseen: Tensor, signs: Tensor) -> float:
    """Accuracy of ridge regression at ±1 labels of samples, from some of their views on others."""
    x, other = seen.flatten(0, 1), unseen.flatten(0, 1)
    mean, deviation = x.mean(0), x.std(0, correction=0)
    deviation = torch.where(deviation > 1e-12 * (x.abs().amax(0) + 1e-300), deviation, 1.0)
    x, other = (x - mean) / deviation, (other - mean) / deviation
    y = signs.repeat_interleave(seen.shape[1], 0)
    K = x @ x.mT
    ridge = 1e-2 * float(K.diagonal().mean()) + 1e-12
    weights = torch.linalg.solve(K + ridge * torch.eye(len(K), dtype=K.dtype), y)
    said = (other @ x.mT @ weights).sign()  # 0 where all embeddings are the same, which is a guess
    return float((1 + said * signs.repeat_interleave(unseen.shape[1], 0)).mean()) / 2


# --- what it says ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gain:
    """The trained embedding's score less another's, over the same splits."""

    over: str
    words: str
    task: str
    difference: Estimate
    score: float  # the other's mean

    def in_points(self) -> str:
        """The difference in points, with half its interval."""
        half = (self.difference.high - self.difference.low) / 2
        return f"{100 * self.difference.value:+.1f} ± {100 * half:.1f} points"


def gains(result: xr.Dataset, task: str) -> dict[str, Gain]:
    """Paired differences to every embedding that there is; none where the result has no scores."""
    if "score" not in result or task not in result.task.values:
        return {}
    scores = result.score.sel(task=task)
    trained = scores.sel(embedding="trained").values
    found = {}
    for name, words in TWINS.items():
        if name not in result.embedding.values:
            continue
        other = scores.sel(embedding=name).values
        if np.isfinite(other).all() and np.isfinite(trained).all():
            found[name] = Gain(name, words, task, over_splits(trained - other, result), float(other.mean()))
    return found


def over_splits(differences: np.ndarray, result: xr.Dataset) -> Estimate:
    """The mean over splits with the corrected interval of Nadeau and Bengio (2003), for splits that share samples."""
    k, mean = len(differences), float(differences.mean())
    n_train, n_test = result.attrs.get("n_probe_train", 1), result.attrs.get("n_probe_test", 0)
    ratio = n_test / n_train if n_test else TEST_SHARE / (1 - TEST_SHARE)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, k - 1)) * math.sqrt((1 / k + ratio) * float(differences.var(ddof=1)))
    return Estimate(mean, mean - half, mean + half)


def main_task(result: xr.Dataset) -> str:
    """The score that the verdict is about."""
    return str(result.task.values[0]) if "score" in result else "linear"


def rivals(found: dict[str, Gain]) -> list[Gain]:
    """What training has to beat to pay: its start and the closed forms; the raw input, with all its dimensions, not."""
    return [found[name] for name in ("start", "start as saved", *CLOSED_FORMS) if name in found]
