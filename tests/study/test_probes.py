from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given
from hypothesis.strategies import integers, lists

from kontrast.data import Dataset, load
from kontrast.errors import InputError
from kontrast.estimators import linear_probe
from kontrast.study import ProbeFindings, StudySpec, Thresholds
from kontrast.study.cell import Cell
from kontrast.study.probes import (
    input_embeddings,
    judge,
    measure,
    probe_problem,
    probe_split,
    without_probes,
)


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
        (torch.arange(20) % 11, 5, "has 11 classes in 20 samples, too many to learn"),
        (torch.arange(20) % 2, 11, "has 20 samples, 10 to train and to test on"),
        (torch.tensor([0] * 99 + [1]), 5, "has too few samples of a second class"),
        (torch.arange(20) % 2, 10, ""),
    ],
)
def test_what_keeps_a_probe_from_being_made(labels: torch.Tensor | None, n: int, problem: str) -> None:
    assert probe_problem(labels, n) == problem


def test_probes_of_a_cell() -> None:
    x, y = blobs(240, apart=6)
    embeddings = {"trained": lambda rows: rows[:, :2], "dot": None, **input_embeddings(x[:30].float(), 2)}
    spec = StudySpec(n_probe_samples=60, dtype="float32")
    scores = measure(Cell(spec, 64, 0, Dataset(x, y, "blobs"), torch.arange(30), None, None, embeddings))
    assert int(scores.n_classes) == 3
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


SPEC = StudySpec(n_probe_samples=100)


def probes(scores: dict[str, list[float]], *, narrow: float = 0.5, sizes: dict[str, int] | None = None) -> xr.Dataset:
    """Accuracies at width 128, one per seed; at width 64 everything is `narrow`. An older study stored no `sizes`."""
    wide = np.array(list(scores.values()))  # (embedding, seed)
    stored = {}
    if sizes is not None:
        dimensions = np.array([sizes.get(name, 0) for name in scores], dtype=np.int32)
        stored["probe_dimension"] = ("embedding", dimensions)
    return xr.Dataset(
        {
            "probe_accuracy": (("embedding", "width", "seed"), np.stack([np.full_like(wide, narrow), wide], axis=1)),
            "probe_overlap": (("width", "seed"), np.zeros((2, wide.shape[1]), dtype=np.int32)),
        }
        | stored,
        coords={"embedding": list(scores), "width": [64, 128], "seed": range(wide.shape[1])},
    )


def found(margin: float = 0.02, sizes: dict[str, int] | None = None, **scores: list[float]) -> ProbeFindings:
    return judge(
        probes({name.replace("_", "-"): values for name, values in scores.items()}, sizes=sizes),
        SPEC,
        Thresholds(probe_margin=margin),
    )


def test_training_buys_what_beats_every_closed_form() -> None:
    gain = found(trained=[0.9, 0.92, 0.91], cosine=[0.5] * 3, pixel_pca=[0.85, 0.86, 0.85], random=[0.7] * 3).gain
    assert gain is not None
    assert (gain.embedding, gain.baseline, gain.buys) == ("trained", "pixel-pca", True)
    assert gain.mean == pytest.approx(np.mean([0.05, 0.06, 0.06]))
    assert gain.error == pytest.approx(np.std([0.05, 0.06, 0.06], ddof=1) / math.sqrt(3))
    assert gain.sentence.startswith("training buys 5.7% of test accuracy")
    assert gain.sentence.endswith("(trained 91.0% against pixel-pca 85.3% at width 128)")


@pytest.mark.parametrize("closed", ["pca", "random", "pixel_pca"])
def test_one_closed_form_that_is_as_good_is_enough(closed: str) -> None:
    gain = found(trained=[0.9, 0.92], **{"random": [0.5, 0.5], closed: [0.9, 0.91]}).gain
    assert gain is not None
    assert not gain.buys
    assert gain.baseline == closed.replace("_", "-")
    assert "training buys no test accuracy" in gain.sentence


def test_a_network_trained_by_descent_is_held_against_closed_forms_of_its_dimension() -> None:
    """Neither the iterative twin nor the raw input nor guessing has a say in either choice."""
    scores = {"cosine": [0.46], "iterative": [0.6], "pixel_pca": [0.76], "random": [0.44], "chance": [0.99]}
    some = found(sizes={"pixels": 784, "chance": 0, "cosine": 10, "pixel-pca": 10}, **scores, pixels=[0.846])
    assert some.gain is not None
    assert (some.gain.embedding, some.gain.baseline) == ("cosine", "pixel-pca")
    assert some.gain.sentence == (
        "training buys no test accuracy over the best closed form (cosine 46.0% against pixel-pca 76.0% at width 128; "
        "the raw input, with all its 784 dimensions, has 84.6%)"
    )
    older = found(**scores, pixels=[0.846]).gain
    assert older is not None
    assert older.sentence.endswith("against pixel-pca 76.0% at width 128; the raw input has 84.6%)")
    for word in (
        "descent (cosine) beats",
        "(random, pixel-pca) by",
        "before training, random, is one of those to beat",
    ):
        assert word in some.rule


def test_a_closed_form_of_more_dimensions_is_no_rival() -> None:
    sizes = {"trained": 2, "pca": 2, "random": 2, "cosine": 10, "pixel-pca": 10}
    scores = {"pca": [0.5, 0.5], "random": [0.4, 0.4], "pixel_pca": [0.7, 0.7]}
    small = found(sizes=sizes, trained=[0.6, 0.6], cosine=[0.5, 0.5], **scores).gain
    assert small is not None
    assert (small.embedding, small.baseline, small.buys) == ("trained", "pca", True)
    large = found(sizes=sizes, trained=[0.5, 0.5], cosine=[0.6, 0.6], **scores).gain
    assert large is not None
    assert (large.embedding, large.baseline, large.buys) == ("cosine", "pixel-pca", False)


def test_the_margin_decides() -> None:
    scores = {"trained": [0.90, 0.90], "pca": [0.85, 0.85]}
    assert found(0.04, **scores).gain.buys
    assert not found(0.06, **scores).gain.buys


def test_a_difference_within_its_error_is_not_bought() -> None:
    gain = found(trained=[0.95, 0.70, 0.80], pca=[0.70, 0.75, 0.75]).gain
    assert gain is not None
    assert gain.mean > 0.02
    assert gain.error > gain.mean
    assert not gain.buys
    assert "is not known" in gain.sentence


def test_one_seed_cannot_tell_a_gain_from_chance() -> None:
    one = found(trained=[0.9], pca=[0.5])
    assert one.gain is not None
    assert not one.gain.buys
    assert "one seed cannot tell it from chance" in one.gain.sentence
    assert math.isnan(one.deviations["trained"][1])


def test_a_diverged_run_is_no_candidate_and_no_mean() -> None:
    some = found(trained=[0.6, 0.6], dot=[0.99, math.nan], pca=[0.5, 0.5])
    assert some.gain is not None
    assert some.gain.embedding == "trained"
    assert math.isnan(some.means["dot"][1])
    assert some.means["dot"][0] == 0.5
    assert found(dot=[math.nan, math.nan], pca=[0.5, 0.5]).gain is None


def test_means_and_deviations_are_over_the_seeds() -> None:
    some = found(trained=[0.6, 0.8], pixels=[0.5, 0.5])
    assert some.means["trained"] == pytest.approx((0.5, 0.7))
    assert some.deviations["trained"] == pytest.approx((0.0, np.std([0.6, 0.8], ddof=1)))
    assert some.n_samples == 100


@pytest.mark.parametrize("n_classes, reason", [(0, "no labels"), (1, "all of one class"), (10, "switched off")])
def test_the_reason_for_no_probes_is_told(n_classes: int, reason: str) -> None:
    assert reason in without_probes(xr.Dataset({"n_classes": (("width", "seed"), [[n_classes]])}))
