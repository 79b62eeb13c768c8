"""Embeddings judged by labels: a linear classifier and nearest neighbours, beside the input itself and its PCA."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kontrast.checks import require_whole
from kontrast.data import Dataset
from kontrast.errors import InputError
from kontrast.progress import Advance, progress_bar

MAX_ITERATIONS = 10_000  # of the classifier; standardised columns need tens
MOST_TRAIN, MOST_TEST = 60_000, 10_000  # samples that train and test the probes of `probe_embeddings`
SIMILARITIES = 2**24  # of test and train samples, held at a time


def linear_probe(train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor) -> float:
    """Test accuracy of a linear classifier: scikit-learn's `LogisticRegression` on standardised columns.

    Deterministic. Columns are standardised by the mean and deviation of `train`; a constant one is only centred. NaN
    for an embedding that is not finite.
    """
    _require_labeled(train, train_labels, test, test_labels)
    if len(torch.unique(train_labels)) < 2:
        raise InputError("a probe needs samples of two classes or more to train on, got one class")
    if not (torch.isfinite(train).all() and torch.isfinite(test).all()):
        return float("nan")
    return float((linear_predictions(train, train_labels, test) == test_labels).double().mean())


def linear_predictions(train: Tensor, train_labels: Tensor, test: Tensor) -> Tensor:
    """The classes that the classifier of `linear_probe` gives to each row of `test`; both embeddings are finite."""
    from sklearn.linear_model import LogisticRegression

    rows, others = _standardized(train, test)
    classifier = LogisticRegression(max_iter=MAX_ITERATIONS)
    classifier.fit(rows.numpy(), train_labels.numpy())
    return torch.from_numpy(classifier.predict(others.numpy()))


def _standardized(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Both by the mean and deviation of the columns of `train`, in float64."""
    rows, others = train.double(), test.double()
    size = rows.abs().max()  # so that no square overflows
    size = torch.where(size > torch.finfo(torch.float64).tiny, size, 1.0)  # a dead network's outputs stay as they are
    rows, others = rows / size, others / size
    mean, deviation = rows.mean(0), rows.std(0, correction=0)
    deviation = torch.where(deviation > 1e-12 * rows.abs().amax(0), deviation, 1.0)
    return (rows - mean) / deviation, (others - mean) / deviation


RIDGES = 10.0 ** (torch.arange(-16, 5, dtype=torch.float64) / 2)  # as shares of the mean eigenvalue of the Gram matrix


def ridge_probe(train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor) -> float:
    r"""Test accuracy of a linear classifier in closed form: ridge regression of the classes' indicators.

    Columns are standardised as in `linear_probe`, and the ridge is the one of 21 with the smallest leave-one-out error,
    $(y_i - \hat y_i)/(1 - h_i)$ with $h_i = (K (K + ρ)^{-1})_{ii} + 1/n$. It takes one eigenvalue problem of the
    smaller side, where logistic regression may take hundreds of passes. NaN for an embedding that is not finite.
    """
    _require_labeled(train, train_labels, test, test_labels)
    if not (torch.isfinite(train).all() and torch.isfinite(test).all()):
        return float("nan")
    classes, numbers = torch.unique(train_labels, return_inverse=True)
    if len(classes) < 2:
        raise InputError("a probe needs samples of two classes or more to train on, got one class")
    rows, others = _standardized(train, test)
    Y = torch.nn.functional.one_hot(numbers, len(classes)).double().to(rows.device)
    mean = Y.mean(0)
    n, d = rows.shape
    # Z = U diag(s) V^T from the smaller of Z Z^T and Z^T Z.
    values, vectors = torch.linalg.eigh(rows @ rows.mT if n <= d else rows.mT @ rows)
    values = values.clamp(min=0)
    kept = values > 1e-10 * values[-1]
    values, vectors = values[kept], vectors[:, kept]
    U = vectors if n <= d else rows @ (vectors / values.sqrt())
    into = rows.mT @ (U / values.sqrt()) if n <= d else vectors  # V
    targets = U.mT @ (Y - mean)
    best, weights = math.inf, targets
    for ridge in (RIDGES * float(values.mean() if len(values) else 1.0)).tolist():
        shrink = values / (values + ridge)
        residual = Y - mean - U @ (shrink[:, None] * targets)
        left_out = residual / (1 - 1 / n - U.square() @ shrink).clamp(min=1e-9)[:, None]
        if (error := float(left_out.square().sum())) < best:
            best, weights = error, (values.sqrt() / (values + ridge))[:, None] * targets
    said = classes[(mean + others @ into @ weights).argmax(1).cpu()]
    return float((said == test_labels.cpu()).double().mean())


def knn_probe(train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor, *, k: int = 20) -> float:
    """Test accuracy of the vote of the `k` training samples of the largest cosine similarity, or of all of fewer.

    Where classes have as many votes, the one with the nearest neighbour among them wins. Deterministic. A row of zeros
    has similarity 0 to all others. NaN for an embedding that is not finite. Similarities are held for some test samples
    at a time, on the device of the embedding.
    """
    _require_labeled(train, train_labels, test, test_labels)
    k = min(require_whole("k", k), len(train))
    if not (torch.isfinite(train).all() and torch.isfinite(test).all()):
        return float("nan")
    classes, numbers = torch.unique(train_labels.to(train.device), return_inverse=True)
    directions, right = _directions(train), 0
    step = max(1, SIMILARITIES // len(train))
    for start in range(0, len(test), step):
        rows, labels = test[start : start + step], test_labels[start : start + step]
        similarity, neighbor = (_directions(rows) @ directions.mT).topk(k)  # (b, k)
        # By similarity and then by place: which of two equal ones topk names first is its own affair.
        neighbor, by_place = neighbor.sort(1)
        nearest_first = similarity.gather(1, by_place).sort(dim=1, descending=True, stable=True).indices
        seen = numbers[neighbor.gather(1, nearest_first)]
        votes = seen.new_zeros(len(rows), len(classes)).scatter_add_(1, seen, torch.ones_like(seen))
        place = torch.arange(k, device=seen.device).expand(len(rows), k)
        first = torch.full_like(votes, k).scatter_reduce_(1, seen, place, "amin")
        right += int((classes[(votes * (k + 1) - first).argmax(1)] == labels.to(classes.device)).sum())
    return right / len(test)


@dataclass(frozen=True)
class Probed:
    """An embedding by what labels say of it: accuracies on samples that the probes were not trained on."""

    name: str
    dimensions: int
    linear_probe: float
    knn: float


def compare_with_input(
    embedding: tuple[Tensor, Tensor],
    samples: tuple[Tensor, Tensor],
    labels: tuple[Tensor, Tensor],
    *,
    k: int = 20,
    progress: bool | Advance = False,
) -> tuple[Probed, ...]:
    """Probes of an embedding, of the input itself, and of its PCA with as many components, where there are as many.

    Args:
        embedding: of the samples that train the probes, and of those that test them, (n, z) each.
        samples: the same samples, rows or images.
        labels: theirs.
        k: neighbours that vote.
        progress: show a bar.
    """
    from sklearn.decomposition import PCA

    train, test = (part.flatten(1) for part in samples)
    n_components = min(embedding[0].shape[1], *train.shape)
    pca = PCA(n_components, random_state=0).fit(train.numpy())
    reduced = [torch.from_numpy(pca.transform(part.numpy())) for part in (train, test)]
    seen = {"embedding": embedding, "raw input": (train, test), "PCA of the input": (reduced[0], reduced[1])}
    found: list[Probed] = []
    with progress_bar("probing", progress) as advance:
        advance(0, 2 * len(seen))
        for name, (x, x_test) in seen.items():
            linear = linear_probe(x, labels[0], x_test, labels[1])
            advance(2 * len(found) + 1, 2 * len(seen))
            found.append(Probed(name, x.shape[1], linear, knn_probe(x, labels[0], x_test, labels[1], k=k)))
            advance(2 * len(found), 2 * len(seen))
    return tuple(found)


def probe_embeddings(
    parts: Mapping[str, Dataset], z: Mapping[str, Tensor], *, seed: int = 0, progress: bool | Advance = False
) -> tuple[tuple[Probed, ...], str]:
    """Make the table of `compare_with_input` and say how; no table, and the reason, where labels allow none.

    Probes learn from train and are tested on test, where both are there with labels; of one part, four fifths of each
    class train and the rest tests. Of many samples 60,000 train and 10,000 test, drawn at random.

    Args:
        parts: train and test, or a single part, as `data.load_parts` gives them.
        z: the embedding of each part.
        seed: of what is drawn.
        progress: show a bar.
    """
    (name, train), *others = parts.items()
    generator = torch.Generator().manual_seed(seed)
    if train.y is None:
        return (), "there are no labels"
    if others and others[0][1].y is not None:
        other, test = others[0]
        learn = train.draw(min(len(train), MOST_TRAIN), generator=generator)
        unseen = test.draw(min(len(test), MOST_TEST), generator=generator)
        how = f"probes learn from {len(learn):,} train samples and are tested on {len(unseen):,} test samples"
    else:
        other, test = name, train
        learn = train.draw(max(1, min(4 * len(train) // 5, MOST_TRAIN)), generator=generator)
        rest = torch.ones(len(train), dtype=torch.bool)
        rest[learn] = False
        unseen = rest.nonzero()[:, 0]
        unseen = unseen[torch.randperm(len(unseen), generator=generator)[:MOST_TEST]]
        how = (
            f"probes learn from {len(learn):,} samples, each class in its share, and are tested on {len(unseen):,} "
            "others; the embedding saw all of them, without labels"
        )
    assert test.y is not None
    n_classes = len(torch.unique(train.y[learn]))
    if n_classes < 2 or len(unseen) == 0:
        return (), "the labels are of one class, or of too few samples"
    if 2 * n_classes > len(learn):
        return (), f"there are {n_classes} different labels among {len(learn)} samples"
    table = compare_with_input(
        (z[name][learn], z[other][unseen]),
        (train.x[learn], test.x[unseen]),
        (train.y[learn], test.y[unseen]),
        progress=progress,
    )
    return table, how


def _require_labeled(train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor) -> None:
    for name, rows, labels in (("train", train, train_labels), ("test", test, test_labels)):
        if rows.ndim != 2 or labels.shape != rows.shape[:1] or len(rows) == 0:
            raise InputError(
                f"{name} must be an embedding (n, z) with n >= 1 labels, got {tuple(rows.shape)} and "
                f"{tuple(labels.shape)}"
            )


def _directions(rows: Tensor) -> Tensor:
    """Rows of length 1, or 0; divided by their largest entry first, so that no square overflows or vanishes."""
    tiny = torch.finfo(rows.dtype).tiny
    rows = rows / rows.abs().amax(1, keepdim=True).clamp(min=tiny)
    return rows.div_(torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=tiny))
