"""Views, pairs and losses: marks that a loss moves between, and a view that is off."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from kontrast import losses
from kontrast.data import parse_view
from kontrast.diagnosis.blame import _deranged, blame, loss_marks, pair_statistics, takes_cosines
from kontrast.diagnosis.intervals import jackknifed
from kontrast.diagnosis.metrics import Similarities, alignment, effective_negatives, neighbor_agreement, uniformity
from kontrast.errors import InputError
from tests.cases import generator, randn


def two_views(n: int = 64, d: int = 8, *, noise: float = 0.3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    samples = randn(n, d, seed=seed)
    return samples + noise * randn(n, d, seed=seed + 1), samples + noise * randn(n, d, seed=seed + 2)


def marks(a, b, loss=None, **options):
    return loss_marks(a, b, loss, generator=generator(), **options)


def numbers_of(found):
    return [number for row in found.rows() for number in (row.value.value, row.value.low, row.value.high)]


# --- intervals ------------------------------------------------------------------------------------------------------


def test_the_interval_of_a_mean_is_students_in_expectation():
    widths, inside = [], 0
    for seed in range(200):
        x = randn(100, seed=seed)
        found = jackknifed(lambda rows, x=x: {"mean": float(x[rows].mean())}, 100)["mean"]
        assert found.value == pytest.approx(float(x.mean()))
        widths.append((found.high - found.low) / 2)
        inside += found.low < 0 < found.high
    assert sum(widths) / 200 == pytest.approx(2.09 / 10, rel=0.05)
    assert 180 <= inside <= 199


def test_few_samples_and_numbers_that_are_not_finite_have_no_interval():
    few = jackknifed(lambda rows: {"n": float(len(rows))}, 7)["n"]
    assert few.value == 7
    assert math.isnan(few.low)
    lost = jackknifed(lambda rows: {"n": math.nan if len(rows) < 20 else 1.0}, 20)["n"]
    assert lost.value == 1
    assert math.isnan(lost.high)


# --- pairs ----------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=10)
@given(n=st.integers(2, 40), d=st.integers(1, 9), seed=st.integers(0, 99))
def test_statistics_of_pairs_are_those_of_the_metrics(n, d, seed):
    a, b = two_views(n, d, seed=seed)
    found = pair_statistics(a, b, temperature=0.3)
    cosines = Similarities()
    cosines.update(a, b)
    kinds = cosines.compute()
    expected = {
        "alignment": alignment(a, b),
        "uniformity": uniformity([a, b]),
        "neighbor_agreement": neighbor_agreement([a, b]),
        "effective_negatives": effective_negatives(a, b, 0.3),
        "positive_similarity": kinds["positives"].mean,
        "negative_similarity": kinds["negatives"].mean,
    }
    assert {row.name: row.value.value for row in found.rows()} == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert torch.equal(found.negatives.counts, kinds["negatives"].counts)
    for row in found.rows():
        assert math.isnan(row.value.low) == (n < 8)


# --- the loss between its marks -------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(n=st.integers(2, 50), seed=st.integers(0, 2**31))
def test_in_a_shuffle_nobody_stays_and_everybody_is_there(n, seed):
    order = _deranged(n, generator(seed))
    assert (order != torch.arange(n)).all()
    assert sorted(order.tolist()) == list(range(n))


SHARED = [losses.nt_xent, losses.info_nce, losses.vicreg, losses.barlow_twins, losses.non_contrastive]


@pytest.mark.parametrize("loss", SHARED, ids=lambda loss: loss.__name__)
def test_the_share_is_1_for_equal_views_0_for_strangers_and_falls_with_noise(loss):
    a, _ = two_views(noise=0)
    assert marks(a, a, loss).loss_share.value == pytest.approx(1)
    strangers = marks(a, randn(*a.shape, seed=9), loss).loss_share
    assert abs(strangers.value) < 0.2
    assert strangers.low < 0.05
    shares = [marks(*two_views(noise=noise), loss).loss_share.value for noise in (0.1, 0.5, 1.0)]
    assert shares == sorted(shares, reverse=True)


def test_the_loss_of_a_batch_is_at_chance_where_views_are_strangers():
    a, b = randn(256, 16), randn(256, 16, seed=1)
    found = marks(a, b)
    assert found.loss.value == pytest.approx(float(losses.nt_xent(a, b).total))
    assert found.loss_of_equal_views.value == pytest.approx(float(losses.nt_xent(a, a).total))
    assert found.loss_at_chance.value == pytest.approx(math.log(2 * 256 - 1), rel=0.05)
    assert "at chance" in found.sentence
    assert marks(*two_views()).sentence == ""
    assert marks(a, a).sentence == ""  # as good as equal views is no fault of a loss


def test_a_loss_may_return_a_loss_value_a_tensor_or_a_float():
    a, b = two_views()
    wanted = marks(a, b, losses.nt_xent)
    for loss in (
        losses.LossModule(losses.nt_xent),
        lambda a, b: losses.nt_xent(a, b).total,
        lambda a, b: float(losses.nt_xent(a, b).total),
        lambda a, b: losses.nt_xent(a, b).total.expand(3),
    ):
        assert numbers_of(marks(a, b, loss)) == pytest.approx(numbers_of(wanted), rel=1e-9)
    assert marks(a, b, None) == wanted


@pytest.mark.parametrize(
    "loss, why",
    [
        (lambda a, b: a.square().mean(), "does not see which rows are pairs"),
        (lambda a, b: a.sum() * math.nan, "not finite for these pairs"),
        (lambda a, b: {"loss": a.sum()}, "cannot be evaluated on 64 samples: float"),
        (lambda a, b: a @ b, "cannot be evaluated on 64 samples: mat1"),
        (losses.view_loss_from("supcon"), "needs the label of each sample"),
    ],
)
def test_a_loss_that_tells_nothing_is_missing_with_its_reason(loss, why):
    found = marks(*two_views(), loss)
    assert why in found.missing
    assert "\n" not in found.missing
    assert math.isnan(found.loss_share.value)
    assert found.sentence == ""


def test_a_collapsed_embedding_has_no_share():
    assert "does not see" in marks(torch.ones(20, 3), torch.ones(20, 3)).missing


def test_a_loss_for_one_size_of_batch_has_no_interval():
    def fixed(a, b):
        return losses.nt_xent(a + torch.zeros(64, 1), b).total

    found = marks(*two_views(), fixed)
    assert found.missing == ""
    assert found.loss_share.value == marks(*two_views()).loss_share.value
    assert math.isnan(found.loss_share.low)


class Queue(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, a, b):
        self.seen += 1
        return losses.nt_xent(a, b).total + self.seen


def test_a_loss_with_a_memory_is_left_as_it_is():
    loss = Queue()
    found = marks(*two_views(), loss)
    assert float(loss.seen) == 0
    assert found.loss.value == pytest.approx(marks(*two_views()).loss.value + 1)
    assert found.loss_share.value == pytest.approx(marks(*two_views()).loss_share.value)


def test_only_a_loss_of_directions_has_the_temperature_of_cosines():
    a, b = two_views()
    assert takes_cosines(losses.nt_xent, a, b)
    assert not takes_cosines(partial(losses.info_nce, normalize=False), a, b)
    assert not takes_cosines(losses.vicreg, a, b)
    unit = nn.functional.normalize
    assert takes_cosines(partial(losses.info_nce, normalize=False), unit(a), unit(b))
    assert not takes_cosines(lambda a, b: a @ b, a, b)


# --- all together ---------------------------------------------------------------------------------------------------


def images(n: int = 80) -> torch.Tensor:
    return torch.rand(n, 3, 6, 6, generator=generator(), dtype=torch.float64)


def flat(x):
    return x.flatten(1)


def test_an_augmentation_that_is_off_is_blamed_and_one_that_is_on_is_not():
    x = images()
    off = blame(flat, x, x, generator=generator())
    assert off.to_blame == {"augmentation": "the augmentation is off: both views of a sample are equal"}
    view = parse_view("noise:0.001")
    nearly = blame(flat, view(x, generator()), view(x, generator(1)), generator=generator())
    assert "nearly off" in nearly.to_blame["augmentation"]
    view = parse_view("noise:0.1")
    on = blame(flat, view(x, generator()), view(x, generator(1)), generator=generator())
    assert "augmentation" not in on.to_blame
    assert 0.01 < on.distance.input.low < on.distance.input.value < 0.3


@pytest.mark.parametrize("temperature, word", [(20.0, "too high"), (0.5, None), (0.001, "too low")])
def test_a_temperature_far_off_is_blamed(temperature, word):
    x = randn(64, 16)
    view = parse_view("noise:0.5")
    views = (view(x, generator()), view(x, generator(1)))
    loss = partial(losses.nt_xent, temperature=temperature)
    for found in (
        blame(flat, *views, loss=loss, generator=generator()),
        blame(flat, *views, temperature=temperature, generator=generator()),
    ):
        assert found.temperature.word == word
        assert ("temperature" in found.to_blame) == (word is not None)
    assert blame(flat, *views, loss=losses.vicreg, generator=generator()).temperature.word is None


def test_all_numbers_are_listed_and_a_seed_makes_them():
    x, view = images(), parse_view("flip+brightness")
    first, again = (
        blame(flat, view(x, generator(1)), view(x, generator(2)), view=view, samples=x, generator=generator(3))
        for _ in range(2)
    )
    # Numbers that are missing are NaN, which is not equal to itself, so texts are compared.
    assert list(map(str, first.rows())) == list(map(str, again.rows()))
    assert first.sentences == again.sentences
    names = [row.name for row in first.rows()]
    assert len(names) == len(set(names))
    assert {"alignment", "loss_share", "temperature", "view_distance", "leak: brightness, the embedding"} <= set(names)


def test_bad_views_and_embeddings_are_refused():
    x = images(8)
    with pytest.raises(InputError, match="view_b must have the shape of view_a"):
        blame(flat, x, x[:7], generator=generator())
    with pytest.raises(InputError, match="need 2 of them"):
        blame(flat, x[:1], x[:1], generator=generator())
    with pytest.raises(InputError, match="the embedding holds NaN or infinite values; look for NaN among the model's"):
        blame(lambda x: x.flatten(1) / 0, x, x, generator=generator())
    with pytest.raises(InputError, match=r"the embedding must have shape \(8, d\), got \(8, 3, 6, 6\)"):
        blame(lambda x: x, x, x, generator=generator())
    with pytest.raises(InputError, match="view_a must have shape"):
        pair_statistics(x, x)
    with pytest.raises(InputError, match="at least 2 samples"):
        loss_marks(x[:1].flatten(1), x[:1].flatten(1), generator=generator())
