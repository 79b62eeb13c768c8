"""A diagnosis of hard models, samples and losses: what cannot be had is missing with a reason, the rest stands."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import kontrast as kt
from kontrast import losses
from kontrast.errors import InputError
from kontrast.losses import LossModule, nt_xent
from tests.cases import generator, randn
from tests.diagnosis.subjects import drawn, mlp, moved, normed, quick, state_of

pytestmark = pytest.mark.usefixtures("few_features")

Y = torch.arange(24) % 3
NET = mlp()
START, END = state_of(NET), moved(NET, 0.3)
NOTHING = {name: 0 * value for name, value in START.items()}


# --- collapsed and constant -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("start, end", [(START, NOTHING), (NOTHING, NOTHING), (NOTHING, END)])
@pytest.mark.parametrize("labels", [None, Y])
def test_a_constant_network_is_no_crash(start: Any, end: Any, labels: Any) -> None:
    d = quick(NET, start, end, labels=labels, control=True)
    assert d.collapse == ("complete" if end is NOTHING else "none")
    assert d.exit_code == 3 or end is END
    assert str(d)
    assert d.table_text()
    assert d.missing[f"centered_rank of embedding at {'end' if end is NOTHING else 'start'}"].startswith(
        "all rows are equal"
    )
    assert d.regime != "unknown"
    if end is NOTHING:
        assert d.verdict.startswith("complete collapse of embedding: all samples look the same")
        assert "add what repels samples" in d.advice[0]


def test_one_direction_alone_is_dimensional_collapse() -> None:
    end = copy.deepcopy(END)
    end["2.weight"][1:] = 1e-6 * end["2.weight"][1:]
    end["2.bias"] *= 0
    d = quick(NET, START, end)
    assert d.collapse == "dimensional"
    assert d.exit_code == 3
    assert d.verdict.startswith("dimensional collapse of embedding")


def test_too_few_samples_for_a_metric_say_so_and_the_others_stand() -> None:
    d = quick(NET, START, END, data=randn(9, 6, seed=2))
    assert d.missing["alpha_req of embedding at end"] == "needs 16 samples, got 9"
    assert math.isnan(d.number("alpha_req", checkpoint="end", layer="embedding").value)
    assert d.number("rankme", checkpoint="end", layer="embedding").value > 1
    d = quick(NET, START, END, labels=Y)
    assert "needs 40 labelled samples, got 24" in d.missing["label_error"]
    assert d.labels is None


# --- losses ---------------------------------------------------------------------------------------------------------


def failing(error: Exception) -> Any:
    def loss(a: Tensor, b: Tensor) -> Tensor:
        raise error

    return loss


@pytest.mark.parametrize(
    "loss, why",
    [
        (failing(ValueError("my loss\nfails")), "my loss fails"),
        (failing(KeyError("queue")), "queue"),
        (failing(AssertionError("batch of 512")), "batch of 512"),
        (lambda a, b: a[:, 100].sum(), "index 100 is out of bounds"),
        (lambda a, b: (a @ b).sum(), "shapes cannot be multiplied"),
        (lambda a, b, labels: a.sum(), "labels"),
        (lambda a, b: a.missing, "missing"),
    ],
)
def test_a_loss_that_raises_is_missing_and_the_rest_stands(loss: Any, why: str) -> None:
    d = quick(NET, START, END, loss=loss, control=True)
    for name in ("control", "slope_left", "fixed_kernel_error", "loss at end"):
        assert why in d.missing[name], name
        assert "\n" not in d.missing[name]
    assert list(d.result.point.values) == ["end"]
    assert d.number("drift", point="end").value > 0
    assert d.number("linearization_error", point="end").value > 0
    assert d.regime in ("kernel", "learning", "pca")


def test_a_loss_that_is_not_a_number_is_missing_with_its_reason() -> None:
    d = quick(NET, START, END, loss=lambda a, b: (a - b).sum() * math.nan, control=True)
    assert "not finite" in d.missing["slope_left"]
    assert "not finite" in d.missing["fixed_kernel_error"]
    assert "not finite" in d.missing["loss at end"]
    assert "control" in d.missing
    assert d.number("drift", point="end").value > 0


def test_losses_return_what_they_like() -> None:
    def squared(a: Tensor, b: Tensor) -> Tensor:
        return (a - b).square().sum(1)

    numbers = []
    for loss in (squared, lambda a, b: squared(a, b).mean(), lambda a, b: [squared(a, b).mean()][0][None]):
        d = quick(NET, START, END, loss=loss, control=True)
        names = ("slope_left", "fixed_kernel_error")
        numbers.append(
            [d.number(name, point="end").value for name in names] + [d.number("loss", checkpoint="end").value]
        )
    assert np.allclose(numbers, numbers[0], rtol=1e-9, equal_nan=True)
    values = [quick(NET, START, END, loss=loss) for loss in ("nt_xent", nt_xent, LossModule(nt_xent))]
    assert len({d.number("loss", checkpoint="end").value for d in values}) == 1


class Queue(nn.Module):
    """A loss that keeps what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(3, dtype=torch.float64))
        self.calls = 0

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        self.calls += 1
        self.kept = 0.9 * self.kept + 0.1 * a.mean(0)
        return (a - b).square().sum(1).mean() - (a @ self.kept).mean()


def test_a_loss_with_a_memory_is_left_as_it_was() -> None:
    loss = Queue()
    d = quick(NET, START, END, loss=loss, control=True)
    assert loss.calls == 0
    assert torch.equal(loss.kept, torch.zeros(3, dtype=torch.float64))
    assert math.isfinite(d.number("loss", checkpoint="end").value)
    assert "control" not in d.missing


def test_a_loss_with_labels_inside_it_is_a_loss_of_two_views() -> None:
    def loss(a: Tensor, b: Tensor) -> Tensor:
        return losses.supcon(torch.stack([a, b], 1), Y[: len(a)]).total

    d = quick(NET, START, END, loss=loss, labels=Y)
    assert math.isfinite(d.number("fixed_kernel_error", point="end").value)


# --- samples and models of other kinds ------------------------------------------------------------------------------


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(11, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.table(x).tanh().mean(1))


@pytest.mark.parametrize("labels", [None, Y])
def test_tokens(labels: Any) -> None:
    module = drawn(Words())
    a, b = (torch.randint(0, 11, (24, 7), generator=generator(seed)) for seed in (0, 1))
    given = {"data": None} if labels is None else {"data": a, "labels": labels}
    d = quick(module, state_of(module), moved(module, 0.3), views=(a, b), control=True, **given)
    assert "whole numbers" in d.missing["score of raw input"]
    assert set(d.buys) == {"start", "spectral of start", "contrastive PCA of start"}
    assert d.number("drift", point="end").value > 0
    assert "view_distance" not in d.result
    assert str(d)


def test_bytes_are_images_and_channels_may_come_last() -> None:
    layers = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    module = drawn(nn.Sequential(*layers)).float()
    end = moved(module, 0.3)
    bytes_ = torch.randint(0, 256, (24, 3, 8, 8), generator=generator(0), dtype=torch.uint8)
    given = {"views": "crop+flip", "control": True}
    d = quick(module, state_of(module), end, data=bytes_, **given)
    floats = quick(module, state_of(module), end, data=bytes_.float() / 255, **given)
    last = quick(module, state_of(module), end, data=bytes_.permute(0, 2, 3, 1).numpy(), **given)
    drifts = {it.number("drift", point="end").value for it in (d, floats, last)}
    assert len({f"{value:.5f}" for value in drifts}) == 1
    assert "crop" in d.result.part.values


def test_single_precision_agrees_with_double() -> None:
    double = quick(NET, START, END, control=True)
    single = quick(
        copy.deepcopy(NET).float(),
        *({name: value.float() for name, value in state.items()} for state in (START, END)),
        control=True,
    )
    for name in ("drift", "linearization_error", "movement", "explained_share"):
        expected = double.number(name, point="end").value
        assert single.number(name, point="end").value == pytest.approx(expected, rel=0.02, abs=1e-3)
    assert single.regime == double.regime


class Two(nn.Module):
    """A backbone and a projector, which return both."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.projector = (
            mlp(d_out=8),
            nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 2)).double(),
        )

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.backbone(x)
        return {"h": h, "z": self.projector(h)}


def test_backbone_and_projector_are_told_apart() -> None:
    module = drawn(Two())
    end = moved(module, 0.2)
    end["projector.2.weight"] *= 0
    d = quick(module, state_of(module), end, features="backbone", head="projector", select="z", labels=Y)
    layers = list(d.result.layer.values)
    assert layers[0] == "backbone"
    assert layers[-1] == "embedding"
    assert d.result.attrs["features"] == "backbone"
    assert d.verdict.startswith("complete collapse of embedding")
    assert d.number("centered_rank", checkpoint="end", layer="backbone").value > 2
    assert int(d.result.score_dimension.sel(embedding="trained")) == 8  # probes judge the backbone


def test_checkpoints_are_a_trajectory() -> None:
    states = {f"epoch_{k}": moved(NET, 0.1 * k) for k in (1, 2, 10)}
    d = quick(NET, {"epoch_0": START, **states}, labels=Y)
    assert list(d.result.checkpoint.values) == ["epoch_0", "epoch_1", "epoch_2", "epoch_10"]
    assert list(d.result.point.values) == ["epoch_1", "epoch_2", "epoch_10"]
    drifts = d.result.drift.sel(bound="value").values
    assert (np.diff(drifts) > 0).all()
    assert d.choice.chosen.checkpoint in states
    assert d.choice.best in states
    assert d.choice.chosen.regret >= 0
    bounds = d.result.rankme.sel(layer="embedding")
    assert np.isnan(bounds.sel(bound="low").values).tolist() == [False, True, True, False]  # the ends alone


def test_a_batch_norm_network_says_which_statistics_and_has_its_start_twice() -> None:
    module = normed()
    d = quick(module.train(), state_of(module), moved(module, 0.3), control=True)
    assert any("recalibrated" in note for note in d.notes)
    assert any("train mode" in note for note in d.notes)
    assert "start as saved" in d.buys
    assert d.number("linearization_error", point="control").value < 0.1
    other = quick(module, state_of(module), moved(module, 0.3), statistics="own")
    assert any("each checkpoint's own" in note for note in other.notes)
    assert "start as saved" not in other.buys
    assert other.number("drift", point="end").value != d.number("drift", point="end").value


# --- nothing of the user's is changed -------------------------------------------------------------------------------


def test_the_module_the_states_and_the_random_streams_are_left_alone() -> None:
    module = normed().train()
    given = [state_of(module), moved(module, 0.3)]
    before, kept = copy.deepcopy(given), state_of(module)
    x = randn(24, 6, seed=1)
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002 – the global stream is what must stay
    stream, stream_of_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    quick(module, *given, data=x, labels=Y, control=True)
    assert torch.equal(torch.get_rng_state(), stream)
    assert (np.random.get_state()[1] == stream_of_numpy).all()  # noqa: NPY002
    assert module.training
    assert all(part.training for part in module.modules())
    assert all(torch.equal(value, kept[name]) for name, value in module.state_dict().items())
    assert all(torch.equal(a[name], b[name]) for a, b in zip(given, before, strict=True) for name in a)
    assert all(p.grad is None and p.requires_grad for p in module.parameters())
    assert torch.equal(x, randn(24, 6, seed=1))


def test_the_same_call_gives_the_same_numbers_and_another_seed_others() -> None:
    a, b = (quick(NET, START, END, labels=Y, control=True) for _ in range(2))
    assert a.to_dataset().identical(b.to_dataset())
    other = quick(NET, START, END, labels=Y, seed=1)
    assert not np.array_equal(a.result.score.values, other.result.score.values)


def test_progress_counts_to_its_end() -> None:
    seen: list[tuple[int, int]] = []
    quick(NET, START, END, progress=lambda done, whole: seen.append((done, whole)))
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1][0] == seen[-1][1]


def test_a_file_is_what_its_state_is(tmp_path: Any) -> None:
    for k, state in enumerate((START, END)):
        torch.save(state, tmp_path / f"epoch_{k}.pt")
    from_files = quick(NET, str(tmp_path / "epoch_*.pt"))
    assert list(from_files.result.checkpoint.values) == ["epoch_0", "epoch_1"]
    assert from_files.number("drift", point="epoch_1") == quick(NET, START, END).number("drift", point="end")
    with pytest.raises(InputError, match="must be a state_dict or a path"):
        kt.diagnose(NET, [3], data=randn(24, 6))
