from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kontrast.data import GaussianNoise, HorizontalFlip, Pairs, RandomResizedCrop, make_pairs
from kontrast.errors import InputError
from tests.cases import DTYPES, generator, randn

relaxed = settings(deadline=None, max_examples=25)
seeds = st.integers(0, 2**32)
noise = GaussianNoise(0.1)


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int, int]:
    """Numbers of anchors, positives and negatives; many anchors too, to reach both ways of drawing negatives."""
    n = draw(st.integers(1, 60))
    return n, draw(st.integers(1, 3)), draw(st.integers(0, n - 1))


@relaxed
@given(size=sizes(), seed=seeds)
def test_negatives_are_distinct_other_anchors(size, seed):
    n, n_positives, n_negatives = size
    pairs = make_pairs(
        randn(n, 2), views=noise, n_positives=n_positives, negatives=n_negatives, generator=generator(seed)
    )
    assert (pairs.n_anchors, pairs.n_positives, pairs.n_negatives) == size
    assert pairs.negative_weight is None
    for i in range(n):
        row = pairs.negative[i].tolist()
        assert len(set(row)) == n_negatives
        assert i not in row
        assert set(row) <= set(range(n))


@relaxed
@given(n=st.integers(2, 40), dtype=st.sampled_from(DTYPES), seed=seeds)
def test_all_negatives_are_every_other_anchor_with_weights_that_sum_to_one(n, dtype, seed):
    pairs = make_pairs(randn(n, 3, dtype=dtype), views=noise, negatives="all", generator=generator(seed))
    assert pairs.negative.tolist() == [list(range(n))]
    assert pairs.negative_weight.dtype == dtype
    assert (pairs.negative_weight.diagonal() == 0).all()
    assert len(pairs.negative_weight[~torch.eye(n, dtype=torch.bool)].unique()) == 1
    torch.testing.assert_close(pairs.negative_weight.sum(dim=1), torch.ones(n, dtype=dtype))


@relaxed
@given(size=sizes(), seed=seeds, shared=st.booleans(), data=st.data())
def test_a_subset_hands_out_the_same_values_from_a_smaller_pool(size, seed, shared, data):
    n, n_positives, n_negatives = size
    negatives = "all" if shared and n > 1 else n_negatives
    options = {"views": noise, "n_positives": n_positives, "negatives": negatives}
    pairs = make_pairs(randn(n, 2), generator=generator(seed), **options)
    rows = torch.tensor(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=n, unique=True)))
    subset = pairs.subset(rows)
    parts, wholes = subset.split(subset.x), pairs.split(pairs.x)
    for part, whole in zip(parts, wholes, strict=True):
        assert torch.equal(part, whole if len(whole) < n else whole[rows])
    if pairs.negative_weight is not None:
        assert torch.equal(subset.negative_weight, pairs.negative_weight[rows])
    assert len(subset.x) == len(
        torch.unique(torch.cat([index.flatten() for index in (subset.anchor, subset.positive, subset.negative)]))
    )


@relaxed
@given(size=sizes(), seed=seeds)
def test_the_pool_is_the_anchors_then_each_positive_of_all(size, seed):
    n, n_positives, n_negatives = size
    x = randn(n, 1, 2, 3)
    pairs = make_pairs(x, views=noise, n_positives=n_positives, negatives=n_negatives, generator=generator(seed))
    g = generator(seed)
    views = [noise(x, g) for _ in range(n_positives)]
    assert torch.equal(pairs.x, torch.cat([x, *views]))
    assert torch.equal(pairs.x[pairs.anchor], x)
    for number, view in enumerate(views):
        assert torch.equal(pairs.x[pairs.positive[:, number]], view)
    assert torch.equal(pairs.rows, pairs.x.reshape(n * (n_positives + 1), 6))


@relaxed
@given(size=sizes(), seed=seeds)
def test_splitting_then_mapping_is_mapping_then_splitting(size, seed):
    n, n_positives, n_negatives = size
    pairs = make_pairs(
        randn(n, 3), views=noise, n_positives=n_positives, negatives=n_negatives, generator=generator(seed)
    )
    matrix = randn(3, 2, seed=1)
    for part, raw, index in zip(
        pairs.split(pairs.x @ matrix), pairs.split(pairs.x), (pairs.anchor, pairs.positive, pairs.negative), strict=True
    ):
        assert part.shape == (*index.shape, 2)
        assert torch.equal(raw, pairs.x[index])
        torch.testing.assert_close(part, raw @ matrix)


def test_gradients_pass_through_a_split():
    pairs = make_pairs(randn(6, 2), views=noise, n_positives=2, negatives=3, generator=generator())
    values = randn(18, 2).requires_grad_()
    anchor, positive, negative = pairs.split(values)
    weights = [randn(*part.shape, seed=k) for k, part in enumerate((anchor, positive, negative))]
    total = sum((part * w).sum() for part, w in zip((anchor, positive, negative), weights, strict=True))
    (gradient,) = torch.autograd.grad(total, values)
    expected = torch.zeros(18, 2, dtype=torch.float64)
    for index, w in zip((pairs.anchor, pairs.positive, pairs.negative), weights, strict=True):
        for place in itertools.product(*map(range, index.shape)):
            expected[index[place]] += w[place]
    torch.testing.assert_close(gradient, expected)


@relaxed
@given(size=sizes(), seed=seeds)
def test_pairs_depend_on_the_seed_alone(size, seed):
    n, n_positives, n_negatives = size
    options = {"views": noise, "n_positives": n_positives, "negatives": n_negatives}
    first = make_pairs(randn(n, 2), generator=generator(seed), **options)
    again = make_pairs(randn(n, 2), generator=generator(seed), **options)
    assert torch.equal(first.x, again.x)
    assert torch.equal(first.negative, again.negative)


@pytest.mark.parametrize("n", [5, 17], ids=["by sorting keys", "by Floyd's algorithm"])
def test_every_ordered_choice_of_negatives_is_equally_likely(n):
    n_draws, g = 500, generator(1)
    counts: dict[tuple[int, int], int] = {}
    for _ in range(n_draws):
        negative = make_pairs(torch.zeros(n, 1), views=noise, negatives=2, generator=g).negative
        for i, row in enumerate(negative.tolist()):
            among_others = (row[0] - (row[0] > i), row[1] - (row[1] > i))  # 0..n-2: the same law for every anchor
            counts[among_others] = counts.get(among_others, 0) + 1
    n_cells = (n - 1) * (n - 2)
    expected = n_draws * n / n_cells
    chi_squared = sum((count - expected) ** 2 / expected for count in counts.values())
    assert len(counts) == n_cells
    assert abs(chi_squared - (n_cells - 1)) < 4 * math.sqrt(2 * (n_cells - 1))


def test_pairs_of_images_move_together():
    x = randn(5, 1, 4, 4, dtype=torch.float32)
    pairs = make_pairs(x, views=RandomResizedCrop(), negatives="all", generator=generator())
    double = pairs.to("cpu", torch.float64)
    assert double.x.dtype == double.negative_weight.dtype == torch.float64
    assert torch.equal(double.x, pairs.x.double())
    assert torch.equal(double.negative, pairs.negative)
    assert double.negative.dtype == torch.int64
    assert torch.equal(pairs.to(torch.device("cpu"), "float64").x, double.x)
    assert pairs.to().x.dtype == torch.float32
    assert pairs.to(torch.device("cpu")).x.dtype == torch.float32


@pytest.mark.parametrize(
    "n, options, given_text, fix",
    [
        (4, {"negatives": 5}, "asked for 5 negatives per anchor but only 3 other samples exist", "at most 3"),
        (1, {"negatives": 1}, "asked for 1 negatives per anchor but only 0 other samples exist", "at most 0"),
        (1, {"negatives": "all"}, "asked for 1 negatives per anchor but only 0 other samples exist", "add samples"),
        (4, {"negatives": -1}, "got -1", "negatives must be a whole number of at least 0, or 'all'"),
        (4, {"negatives": "every"}, "got 'every'", "negatives must be a whole number of at least 0, or 'all'"),
        (4, {"negatives": True}, "got True", "negatives must be a whole number of at least 0, or 'all'"),
        (4, {"n_positives": 0}, "got 0", "n_positives must be a whole number of at least 1"),
        (4, {"n_positives": True}, "got True", "n_positives must be a whole number of at least 1"),
    ],
)
def test_impossible_numbers_of_pairs_are_refused(n, options, given_text, fix):
    with pytest.raises(InputError) as caught:
        make_pairs(randn(n, 2), views=noise, generator=generator(), **options)
    assert given_text in str(caught.value)
    assert fix in str(caught.value)


@pytest.mark.parametrize("view", [lambda x, g: x[:, :1], lambda x, g: x.float()])
def test_a_view_that_changes_shape_or_type_is_refused(view):
    with pytest.raises(InputError, match=r"turned torch.float64 \(3, 2\) into .* must keep number type and shape"):
        make_pairs(randn(3, 2), views=view, generator=generator())


def test_an_image_view_of_rows_is_refused():
    with pytest.raises(InputError, match="use a noise view"):
        make_pairs(randn(3, 2), views=HorizontalFlip(), generator=generator())


def test_numbers_of_pairs_of_every_kind():
    expected = make_pairs(randn(5, 2), views=noise, n_positives=2, negatives=3, generator=generator())
    found = make_pairs(randn(5, 2), views=noise, n_positives=np.int64(2), negatives=np.uint8(3), generator=generator())
    assert torch.equal(found.x, expected.x)
    assert torch.equal(found.negative, expected.negative)


def test_no_negatives_is_the_non_contrastive_setting():
    pairs = make_pairs(randn(1, 2), views=noise, negatives=0, generator=generator())
    assert pairs.negative.shape == (1, 0)
    assert pairs.split(randn(2, 5))[2].shape == (1, 0, 5)


@pytest.mark.parametrize(
    "changes, given_text, fix",
    [
        ({"anchor": torch.tensor([[0], [1]])}, "(2, 1)", "shape (2,)"),
        ({"positive": torch.tensor([2, 3])}, "(2,)", "shape (2, any)"),
        ({"positive": torch.tensor([[2.0], [3.0]])}, "torch.float32", "int64"),
        ({"negative": torch.tensor([[1], [0], [1]])}, "(3, 1)", "shape (2, any)"),
        ({"negative": torch.tensor([[1], [4]])}, "from 1 to 4", "use 0 to 3"),
        ({"negative": torch.tensor([[-1], [0]])}, "from -1 to 0", "use 0 to 3"),
        ({"negative_weight": torch.ones(2, 2, dtype=torch.float64)}, "(2, 2)", "shape (2, 1)"),
        ({"negative_weight": torch.ones(2, 1)}, "torch.float32", "torch.float64"),
    ],
)
def test_pairs_that_do_not_fit_together_are_refused(changes, given_text, fix):
    good = {
        "x": randn(4, 2),
        "anchor": torch.tensor([0, 1]),
        "positive": torch.tensor([[2], [3]]),
        "negative": torch.tensor([[1], [0]]),
    }
    assert Pairs(**good).n_anchors == 2
    with pytest.raises(InputError) as caught:
        Pairs(**(good | changes))
    assert given_text in str(caught.value)
    assert fix in str(caught.value)
    assert next(iter(changes)) in str(caught.value)


def test_values_that_are_not_over_the_pool_are_refused():
    pairs = make_pairs(randn(3, 2), views=noise, generator=generator())
    with pytest.raises(InputError, match=r"got 3 values for a pool of 6 points; pass the outputs over all of pairs.x"):
        pairs.split(randn(3, 2))
