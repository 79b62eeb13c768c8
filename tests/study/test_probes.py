from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.strategies import integers, lists

from kontrast.data import Dataset, load
from kontrast.errors import InputError
from kontrast.estimators import linear_probe
from kontrast.study.probes import input_embeddings, probe_accuracies, probe_problem, probe_split


def blobs(n: int, *, apart: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    corners = apart * torch.eye(3, dtype=torch.float64)
    return corners[y] + torch.randn(n, 3, generator=generator, dtype=torch.float64), y


def test_a_probe_separates_what_a_line_can_and_guesses_what_it_cannot() -> None:
    train, test = blobs(300, apart=12, seed=0), blobs(300, apart=12, seed=1)
    assert linear_probe(*train, *test) == 1.0
    noise, noise_test = blobs(300, apart=0, seed=0), blobs(300, apart=0, seed=1)
    assert linear_probe(*noise, *noise_test) == pytest.approx(1 / 3, abs=0.1)


def test_a_probe_is_scikit_learns_own_classifier_on_standardized_columns() -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    digits = load("digits", dtype=torch.float64)
    x, y = digits.rows.numpy(), digits.y.numpy()
    twin = make_pipeline(StandardScaler(), LogisticRegression(max_iter=10_000)).fit(x[:200], y[:200])
    expected = (twin.predict(x[200:400]) == y[200:400]).mean()
    got = linear_probe(digits.rows[:200], digits.y[:200], digits.rows[200:400], digits.y[200:400])
    assert got == expected
    assert 0.8 < got < 1


@pytest.mark.parametrize("scale, shift", [(1e-200, 0.0), (1e150, 0.0), (3.0, -7.0)])
def test_neither_unit_nor_origin_matters(scale: float, shift: float) -> None:
    (x, y), (x_test, y_test) = blobs(90, apart=1.5, seed=0), blobs(90, apart=1.5, seed=1)
    plain = linear_probe(x, y, x_test, y_test)
    assert linear_probe(scale * x + shift, y, scale * x_test + shift, y_test) == plain
    assert plain < 1


def test_collapsed_and_overflown_embeddings_are_judged_too() -> None:
    (x, y), (x_test, y_test) = blobs(90, apart=3, seed=0), blobs(90, apart=3, seed=1)
    assert linear_probe(torch.full_like(x, 0.1), y, torch.full_like(x, 0.1), y_test) == pytest.approx(1 / 3)
    assert linear_probe(torch.zeros_like(x), y, torch.zeros_like(x), y_test) == pytest.approx(1 / 3)
    x_test[3, 1] = math.inf
    assert math.isnan(linear_probe(x, y, x_test, y_test))


def test_bad_input_to_a_probe() -> None:
    x, y = blobs(9, apart=1)
    with pytest.raises(InputError, match="two classes or more to train on, got one class"):
        linear_probe(x, torch.zeros(9, dtype=torch.int64), x, y)
    with pytest.raises(InputError, match=r"test must be an embedding \(n, z\) with n >= 1 labels, got \(0, 3\)"):
        linear_probe(x, y, x[:0], y[:0])
    with pytest.raises(InputError, match="train must be"):
        linear_probe(x[0], y[:1], x, y)


@given(
    sizes=lists(integers(4, 40), min_size=2, max_size=5),
    share=integers(1, 4),
    n_contrasted=integers(0, 20),
    seed=integers(0, 2**16),
)
def test_a_split_is_disjoint_stratified_and_spares_the_contrasted(
    sizes: list[int], share: int, n_contrasted: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.full((size,), k) for k, size in enumerate(sizes)])
    labels = labels[torch.randperm(len(labels), generator=generator)]
    n = len(labels) // (2 * share)
    contrasted = torch.randperm(len(labels), generator=generator)[:n_contrasted]
    train, test = probe_split(labels, n, contrasted=contrasted, generator=generator)
    assert len(train) == len(test) == n
    assert len(set(train.tolist()) | set(test.tolist())) == 2 * n
    for k, size in enumerate(sizes):
        for part in (train, test):
            assert abs(int((labels[part] == k).sum()) - n * size / len(labels)) <= 2
        # A contrasted sample of a class is used only where all others of its class are.
        used = {i for i in torch.cat([train, test]).tolist() if labels[i] == k}
        others = {i for i in range(len(labels)) if labels[i] == k} - set(contrasted.tolist())
        assert others <= used or not used & set(contrasted.tolist())


def test_samples_that_were_not_contrasted_test_first() -> None:
    """Ten of one class, six of them contrasted, and three to test: none of the three is contrasted."""
    labels, contrasted = torch.zeros(10, dtype=torch.int64), torch.arange(6)
    train, test = probe_split(labels, 3, contrasted=contrasted, generator=torch.Generator().manual_seed(0))
    assert not set(test.tolist()) & set(contrasted.tolist())
    assert len(set(train.tolist()) & set(contrasted.tolist())) == 2  # one is left that was not contrasted


def test_every_seed_learns_from_the_same_labels() -> None:
    labels = torch.tensor([0] * 50 + [1] * 7 + [2] * 3)
    counts = set()
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        train, _ = probe_split(labels, 20, contrasted=torch.arange(seed), generator=generator)
        counts.add(tuple(labels[train].bincount().tolist()))
    assert len(counts) == 1


@pytest.mark.parametrize(
    "labels, n, problem",
    [
        (None, 5, "has no labels"),
        (torch.zeros(20, dtype=torch.int64), 5, "has labels of one class only"),
        (torch.arange(20) % 2, 11, "has 20 samples, 10 to train and to test on"),
        (torch.tensor([0] * 99 + [1]), 5, "has too few samples of a second class"),
        (torch.arange(20) % 2, 10, ""),
    ],
)
def test_what_keeps_a_probe_from_being_made(labels: torch.Tensor | None, n: int, problem: str) -> None:
    assert probe_problem(labels, n) == problem


def test_probes_of_a_cell() -> None:
    x, y = blobs(240, apart=6)
    dataset = Dataset(x, y, "blobs")
    scores = probe_accuracies(
        {"trained": lambda rows: rows[:, :2], "dot": None, **input_embeddings(x[:30].float(), 2)},
        dataset,
        60,
        contrasted=torch.arange(30),
        generator=torch.Generator().manual_seed(0),
        device=torch.device("cpu"),
        dtype=torch.float32,
    )
    got = dict(zip(scores.embedding.values.tolist(), scores.probe_accuracy.values, strict=True))
    assert list(got) == ["trained", "dot", "pixels", "pixel-pca", "chance"]
    assert math.isnan(got["dot"])
    assert got["pixels"] > 0.95
    assert got["chance"] == pytest.approx(1 / 3, abs=0.02)
    assert int(scores.probe_overlap) == 0


def test_plain_pca_is_scikit_learns() -> None:
    from sklearn.decomposition import PCA

    x, _ = blobs(40, apart=4)
    rows = x @ torch.diag(torch.tensor([3.0, 1.0, 0.2], dtype=torch.float64))
    mine = input_embeddings(rows, 2)["pixel-pca"](rows - rows.mean(0))
    theirs = PCA(2).fit_transform(rows.numpy())
    np.testing.assert_allclose(mine.abs(), np.abs(theirs), atol=1e-10)
    assert input_embeddings(rows, 7)["pixel-pca"](rows).shape == (40, 3)  # no more directions than there are
