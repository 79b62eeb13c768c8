"""Probes against scikit-learn, and what they make of hard embeddings."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.strategies import integers

from kontrast.data import Dataset, load
from kontrast.errors import InputError
from kontrast.estimators import compare_with_input, knn_probe, linear_probe, probe_embeddings, probes, ridge_probe
from tests.cases import generator, randn
from tests.reference import diagnosis as slow


def blobs(n: int, *, apart: float, classes: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.arange(n) % classes
    return apart * torch.eye(classes, dtype=torch.float64)[y] + randn(n, classes, seed=seed), y


def predicted(train: np.ndarray, labels: np.ndarray, test: np.ndarray, k: int) -> list[int]:
    """The vote, slowly: scikit-learn's neighbours, and of tied classes the one that comes first among them."""
    from sklearn.neighbors import NearestNeighbors

    near = NearestNeighbors(n_neighbors=k, metric="cosine", algorithm="brute").fit(train).kneighbors(test)[1]
    votes = []
    for row in labels[near].tolist():
        most = max(row.count(label) for label in row)
        votes.append(next(label for label in row if row.count(label) == most))
    return votes


@pytest.mark.parametrize("k", [1, 5, 21])
def test_neighbors_are_scikit_learns(k: int) -> None:
    from sklearn.neighbors import KNeighborsClassifier

    (x, y), (x_test, y_test) = (blobs(201, apart=1.5, classes=2, seed=seed) for seed in (0, 1))  # odd k: no tie
    theirs = KNeighborsClassifier(k, metric="cosine").fit(x.numpy(), y.numpy()).score(x_test.numpy(), y_test.numpy())
    assert knn_probe(x, y, x_test, y_test, k=k) == pytest.approx(theirs, abs=1e-12)
    assert theirs < 1


@given(seed=integers(0, 2**16), k=integers(1, 12))
def test_tied_classes_fall_to_the_nearest_neighbor(seed: int, k: int) -> None:
    x, x_test = randn(40, 3, seed=seed), randn(15, 3, seed=seed + 1)
    y = torch.randint(0, 4, (40,), generator=generator(seed))
    votes = torch.tensor(predicted(x.numpy(), y.numpy(), x_test.numpy(), k))
    assert knn_probe(x, y, x_test, votes, k=k) == 1.0


def test_digits_have_scikit_learns_neighbors_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    digits = load("digits", dtype=torch.float64)
    x, y = digits.rows, digits.y
    votes = predicted(x[:1000].numpy(), y[:1000].numpy(), x[1000:1400].numpy(), 20)
    expected = (np.array(votes) == y[1000:1400].numpy()).mean()
    whole = knn_probe(x[:1000], y[:1000], x[1000:1400], y[1000:1400])
    assert whole == pytest.approx(expected, abs=1e-12)
    monkeypatch.setattr(probes, "SIMILARITIES", 7000)  # seven at a time, the last batch of one
    assert knn_probe(x[:1000], y[:1000], x[1000:1400], y[1000:1400]) == whole
    assert knn_probe(x[:1000].float(), y[:1000], x[1000:1400].float(), y[1000:1400]) == pytest.approx(whole, abs=0.005)


def test_equal_neighbors_vote_in_their_order() -> None:
    x = torch.ones(4, 2)
    for labels in ([0, 1, 1, 0], [1, 0, 0, 1]):
        assert knn_probe(x, torch.tensor(labels), x[:1], torch.tensor(labels[:1]), k=4) == 1.0


def test_lengths_do_not_matter_and_zero_rows_are_no_nan() -> None:
    (x, y), (x_test, y_test) = (blobs(90, apart=4, seed=seed) for seed in (0, 1))
    plain = knn_probe(x, y, x_test, y_test)
    stretched = x * torch.logspace(-200, 200, 90, dtype=torch.float64)[:, None]
    assert knn_probe(stretched, y, 1e-250 * x_test, y_test) == plain
    assert 0.8 < plain < 1
    x[::9] = 0
    assert knn_probe(x, y, torch.zeros_like(x_test), y_test) == pytest.approx(1 / 3, abs=0.05)


def test_few_samples_all_vote_and_labels_may_be_any_numbers() -> None:
    x = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    y = torch.tensor([-7, -7, 10**12])
    assert knn_probe(x, y, x, y) == pytest.approx(2 / 3)
    assert knn_probe(x, y, x, y, k=1) == 1.0
    assert knn_probe(x, y, x[:1], torch.tensor([5]), k=1) == 0.0  # a class that was not there to learn


def test_an_embedding_that_is_not_finite_has_no_accuracy() -> None:
    x, y = blobs(9, apart=1)
    for value in (math.nan, math.inf):
        broken = x.clone()
        broken[4, 1] = value
        assert math.isnan(knn_probe(broken, y, x, y))
        assert math.isnan(knn_probe(x, y, broken, y))


def test_a_network_that_is_dead_at_the_samples_it_learns_from_guesses() -> None:
    labels = torch.arange(40) % 2
    assert linear_probe(torch.zeros(40, 3), labels, randn(40, 3, seed=1), labels) == 0.5


def test_bad_input() -> None:
    x, y = blobs(9, apart=1)
    with pytest.raises(
        InputError, match=r"train must be an embedding \(n, z\) with n >= 1 labels, got \(9, 3\) and \(8"
    ):
        knn_probe(x, y[:8], x, y)
    with pytest.raises(InputError, match=r"test must be .* got \(0, 3\)"):
        knn_probe(x, y, x[:0], y[:0])
    for k in (0, -1, 2.0, True):
        with pytest.raises(InputError, match="k must be a whole number of at least 1, got"):
            knn_probe(x, y, x, y, k=k)


# The table


def test_the_table_stands_beside_the_input_and_its_pca() -> None:
    from sklearn.decomposition import PCA

    digits = load("digits")
    x, y = digits.x[:600], digits.y[:600]
    z = digits.rows[:600, ::4]
    made = compare_with_input((z[:400], z[400:]), (x[:400], x[400:]), (y[:400], y[400:]))
    assert [(row.name, row.dimensions) for row in made] == [
        ("embedding", 16),
        ("raw input", 64),
        ("PCA of the input", 16),
    ]
    rows = digits.rows[:600]
    assert made[0].linear_probe == linear_probe(z[:400], y[:400], z[400:], y[400:])
    assert made[1].knn == knn_probe(rows[:400], y[:400], rows[400:], y[400:])
    pca = PCA(16, random_state=0).fit(rows[:400].numpy())
    reduced = torch.from_numpy(pca.transform(rows.numpy()))
    assert made[2].linear_probe == linear_probe(reduced[:400], y[:400], reduced[400:], y[400:])


def test_pca_has_no_more_components_than_the_input() -> None:
    x, y = blobs(30, apart=5)
    z = torch.cat([x, x], dim=1)
    seen: list[tuple[int, int]] = []
    made = compare_with_input(
        (z[:20], z[20:]), (x[:20], x[20:]), (y[:20], y[20:]), k=3, progress=lambda *done: seen.append(done)
    )
    assert [row.dimensions for row in made] == [6, 3, 3]
    assert seen == [(0, 6), *((k, 6) for k in range(1, 7))]


def parts_of(n: int, *, names: tuple[str, ...], labeled: tuple[str, ...]) -> dict[str, Dataset]:
    made = {}
    for seed, name in enumerate(names):
        x, y = blobs(n, apart=4, seed=seed)
        made[name] = Dataset(x, y if name in labeled else None, "blobs")
    return made


@pytest.mark.parametrize(
    "names, labeled, learn, unseen",
    [
        (("all",), ("all",), "80 samples", "20 others"),
        (("train", "test"), ("train", "test"), "100 train samples", "100 test samples"),
        (("train", "test"), ("train",), "80 samples", "20 others"),
    ],
)
def test_who_learns_and_who_is_tested(
    names: tuple[str, ...], labeled: tuple[str, ...], learn: str, unseen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = parts_of(100, names=names, labeled=labeled)
    z = {name: part.x for name, part in parts.items()}
    table, how = probe_embeddings(parts, z)
    assert learn in how
    assert unseen in how
    assert ("saw all of them" in how) == (len(labeled) == 1)
    assert table[0] == probe_embeddings(parts, z)[0][0]
    assert table[0].linear_probe == table[1].linear_probe > 0.8  # the embedding is the input here
    monkeypatch.setattr(probes, "MOST_TRAIN", 30)
    monkeypatch.setattr(probes, "MOST_TEST", 10)
    assert "from 30" in probe_embeddings(parts, z)[1]
    assert "on 10 " in probe_embeddings(parts, z)[1]


def test_samples_that_test_did_not_train(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    monkeypatch.setattr(probes, "compare_with_input", lambda z, x, y, progress: seen.append(z) or ())
    parts = parts_of(50, names=("all",), labeled=("all",))
    probe_embeddings(parts, {"all": torch.arange(50.0)[:, None]})
    [(learn, unseen)] = seen
    assert sorted([*learn[:, 0].tolist(), *unseen[:, 0].tolist()]) == list(range(50))
    counts = parts["all"].y[learn[:, 0].long()].bincount()
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize(
    "labels, reason",
    [
        (None, "there are no labels"),
        (torch.zeros(20, dtype=torch.int64), "the labels are of one class"),
        (torch.arange(20), "there are 16 different labels among 16 samples"),
    ],
)
def test_labels_that_allow_no_probe(labels: torch.Tensor | None, reason: str) -> None:
    x = randn(20, 3)
    table, why = probe_embeddings({"all": Dataset(x, labels, "x")}, {"all": x})
    assert table == ()
    assert reason in why


# The probe in closed form


def ridges_of(x: torch.Tensor) -> list[float]:
    """The probe's ridges: shares of the mean of the Gram matrix's eigenvalues above rounding."""
    values = torch.linalg.eigvalsh(x @ x.mT)
    return (probes.RIDGES * values[values > 1e-10 * values[-1]].mean()).tolist()


@pytest.mark.parametrize("n, d, classes", [(24, 3, 3), (12, 20, 2), (15, 15, 4), (30, 5, 2)])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_ridge_probe_is_that_of_refits(n: int, d: int, classes: int, seed: int) -> None:
    y, y_test = torch.arange(n) % classes, torch.arange(60) % classes
    centers = randn(classes, d, seed=seed)
    x, x_test = centers[y] + randn(n, d, seed=seed + 10), centers[y_test] + randn(60, d, seed=seed + 20)
    x[:, 0], x_test[:, 0] = 7.0, randn(60, seed=3)  # a constant column says nothing, whatever it is in the test
    expected, _ = slow.ridge_probe(x, y, x_test, y_test, ridges_of)
    assert ridge_probe(x, y, x_test, y_test) == pytest.approx(expected, abs=1e-12)
    assert ridge_probe(x.float(), y, x_test.float(), y_test) == pytest.approx(expected, abs=0.02)


@given(seed=integers(0, 999))
def test_the_ridge_probe_does_not_know_scales_shifts_orders_and_names(seed: int) -> None:
    (x, y), (x_test, y_test) = (blobs(30, apart=1.5, seed=seed + k) for k in (0, 1))
    found = ridge_probe(x, y, x_test, y_test)
    scale, shift = torch.tensor([1e-3, 1.0, 1e5]).double(), torch.tensor([-5.0, 0.0, 3.0]).double()
    assert ridge_probe(x * scale + shift, y, x_test * scale + shift, y_test) == pytest.approx(found, abs=1 / 30 + 1e-9)
    order = torch.randperm(30, generator=generator(seed))
    assert ridge_probe(x[order], y[order], x_test, y_test) == pytest.approx(found, abs=1 / 30 + 1e-9)
    names = torch.tensor([9, -4, 2])  # the same classes by other numbers, in another order
    assert ridge_probe(x, names[y], x_test, names[y_test]) == pytest.approx(found, abs=1 / 30 + 1e-9)


def test_the_ridge_probe_of_permuted_labels_guesses_and_of_clear_ones_is_right() -> None:
    (x, y), (x_test, y_test) = (blobs(120, apart=8, seed=seed) for seed in (0, 1))
    assert ridge_probe(x, y, x_test, y_test) == 1.0
    found = [ridge_probe(x, y[torch.randperm(120, generator=generator(s))], x_test, y_test) for s in range(20)]
    assert np.mean(found) == pytest.approx(1 / 3, abs=0.08)
    many = [
        ridge_probe(randn(40, 200, seed=s), torch.arange(40) % 2, randn(60, 200, seed=s + 50), torch.arange(60) % 2)
        for s in range(20)
    ]
    assert np.mean(many) == pytest.approx(0.5, abs=0.06)


def test_hard_embeddings_for_the_ridge_probe() -> None:
    x, y = blobs(30, apart=6)
    assert ridge_probe(torch.zeros(30, 4), y, torch.ones(30, 4), y) == pytest.approx(1 / 3)
    assert ridge_probe(1e-200 * x, y, 1e-200 * x, y) == ridge_probe(1e200 * x, y, 1e200 * x, y) == 1.0
    assert math.isnan(ridge_probe(x / 0, y, x, y))
    assert ridge_probe(torch.cat([x, x], 1), y, torch.cat([x, x], 1), y) == 1.0  # columns twice
    with pytest.raises(InputError, match="two classes or more"):
        ridge_probe(x, torch.zeros_like(y), x, y)
    with pytest.raises(InputError, match="test must be an embedding"):
        ridge_probe(x, y, x, y[:3])
