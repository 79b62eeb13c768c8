"""Where a temperature is written, and that it is blamed where it is far off and nowhere else."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from kontrast import losses
from kontrast.diagnosis.metrics import Similarities, effective_negatives
from kontrast.diagnosis.temperatures import read_temperature, temperature_of, temperature_word
from kontrast.errors import InputError
from tests.cases import generator, randn


def trained_like(n: int, d: int, *, seed: int = 0, within: float = 0.7, noise: float = 0.3, n_clusters: int = 10):
    """Two views of samples in clusters on the sphere."""
    g = generator(seed)
    centers = F.normalize(torch.randn(n_clusters, d, generator=g, dtype=torch.float64), dim=1)
    of = torch.randint(0, n_clusters, (n,), generator=g)
    samples = centers[of] + within * torch.randn(n, d, generator=g, dtype=torch.float64) / math.sqrt(d)
    shifts = noise * torch.randn(2, n, d, generator=g, dtype=torch.float64) / math.sqrt(d)
    return tuple(F.normalize(samples + shifts, dim=2))


@pytest.mark.parametrize("n, d", [(64, 16), (64, 128), (256, 16), (256, 128), (700, 64)])
@pytest.mark.parametrize("within, n_clusters", [(0.3, 10), (0.7, 10), (50.0, 1)])
def test_a_temperature_is_blamed_where_it_is_far_off_and_nowhere_else(n, d, within, n_clusters):
    for noise in (0.0, 0.5) if n < 256 else (0.2,):
        a, b = trained_like(n, d, within=within, noise=noise, n_clusters=n_clusters)
        words = [temperature_word(a, b, temperature) for temperature in (0.07, 0.3, 1.0)]
        assert words == [None] * 3
        assert [temperature_word(a, b, temperature) for temperature in (10, 20)] == ["too high"] * 2
        assert temperature_word(a, b, 0.005) == "too low"


@pytest.mark.parametrize("temperature", [0.005, 0.5, 10, 20])
def test_a_collapsed_embedding_has_no_fault_of_its_temperature(temperature):
    a = 1 + 0.01 * randn(64, 32)
    assert temperature_word(a, a, temperature) is None
    assert temperature_word(torch.ones_like(a), torch.ones_like(a), temperature) is None


def test_two_clusters_at_a_usual_temperature_are_no_fault_of_it():
    a = torch.cat([torch.ones(40, 4), -torch.ones(40, 4)]).double()
    assert temperature_word(a, a, 0.07) is None


def test_losses_without_a_temperature_have_no_verdict():
    reading = read_temperature(*trained_like(64, 16), None)
    assert reading.word is None
    assert reading.missing == "the loss has no temperature that can be read"
    assert reading.sentence == ""


def test_a_verdict_says_its_numbers():
    a, b = trained_like(64, 16)
    assert read_temperature(a, b, 20.0).sentence.startswith("the temperature 20 is too high: the logits of negatives")
    low = read_temperature(a, b, 0.005)
    assert low.sentence.startswith("the temperature 0.005 is too low: ")
    assert low.spread.low < low.spread.value < low.spread.high


@settings(deadline=None, max_examples=15)
@given(n=st.integers(2, 20), d=st.integers(1, 8), seed=st.integers(0, 999), temperature=st.floats(0.05, 5))
def test_the_spread_is_that_of_all_negatives_and_pushing_counts_samples(n, d, seed, temperature):
    a, b = randn(n, d, seed=seed), randn(n, d, seed=seed + 1000)
    found = read_temperature(a, b, temperature)
    pairs = Similarities()
    pairs.update(a, b)
    deviation = pairs.compute()["negatives"].deviation
    assert found.spread.value * temperature == pytest.approx(deviation, rel=1e-9, abs=1e-12)
    assert 1 - 1e-9 <= found.pushing.value <= n - 1 + 1e-9
    # Of equal views both count the same, each sample twice.
    equal = read_temperature(a, a, temperature).pushing.value
    assert effective_negatives(a, a, temperature) == pytest.approx(2 * equal, rel=1e-9)


class Module(nn.Module):
    def __init__(self, **values):
        super().__init__()
        for name, value in values.items():
            setattr(self, name, value)

    def step(self, a, b):
        return a


def with_default(a, b, *, tau=0.3):
    return a


@pytest.mark.parametrize(
    "loss, temperature",
    [
        (partial(losses.nt_xent, temperature=0.2), 0.2),
        (losses.nt_xent, 0.5),
        (partial(losses.info_nce, symmetric=True), 0.1),
        (losses.LossModule(losses.nt_xent, temperature=0.3), 0.3),
        (losses.LossModule(losses.nt_xent), 0.5),
        (losses.view_loss_from("nt_xent", temperature=0.7), 0.7),
        (losses.view_loss_from("nt_xent"), 0.5),
        (losses.view_loss_from("supcon"), 0.1),
        (losses.view_loss_from("cosine", link="log_softmax", temperature=0.4), 0.4),
        (losses.ContrastiveLoss(losses.Cosine(), losses.LogSoftmax(0.6)), 0.6),
        (losses.ContrastiveLoss(losses.Cosine(), losses.Linear()), None),
        (losses.view_loss_from("cosine"), None),
        (losses.vicreg, None),
        (losses.view_loss_from("barlow_twins"), None),
        (lambda a, b: a, None),
        (with_default, 0.3),
        (Module(temperature=0.25), 0.25),
        (Module(tau=nn.Parameter(torch.tensor([0.25]))), 0.25),
        (Module(logit_scale=nn.Parameter(torch.tensor(math.log(100.0), dtype=torch.float64))), 0.01),
        (Module(logit_scale=torch.tensor(20.0)), 0.05),
        (Module(criterion=losses.LossModule(losses.nt_xent, temperature=0.9)), 0.9),
        (Module(inner=Module(temperature=0.8)), 0.8),
        (Module(temperature=0.15).step, 0.15),
        (Module(temperature="warm"), None),
        (Module(temperature=-1.0), None),
        (Module(temperature=torch.ones(3)), None),
    ],
)
def test_a_temperature_is_found_where_it_is_written(loss, temperature):
    assert temperature_of(loss) == (None if temperature is None else pytest.approx(temperature, rel=1e-9))


def test_a_loss_that_holds_itself_is_searched_once_around():
    loss = Module()
    object.__setattr__(loss, "loss", loss)
    assert temperature_of(loss) is None


def test_bad_embeddings_are_refused():
    a = randn(8, 3)
    with pytest.raises(InputError, match="shape of view_a"):
        temperature_word(a, a[:7], 0.5)
    with pytest.raises(InputError, match="at least 2 samples, got 1"):
        read_temperature(a[:1], a[:1], 0.5)
    with pytest.raises(InputError, match="view_b holds NaN"):
        read_temperature(a, a / 0, 0.5)
    with pytest.raises(InputError, match="temperature must be a positive number"):
        read_temperature(a, a, 0.0)
