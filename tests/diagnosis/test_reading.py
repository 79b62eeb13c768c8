"""Bad input of a diagnosis is refused in one line, before any long work; what can be mended is mended and noted."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kontrast.data import Dataset
from kontrast.diagnosis import collapse
from kontrast.diagnosis.reading import Given, class_numbers, read
from kontrast.diagnosis.settings import Settings
from kontrast.errors import InputError, KontrastError
from tests.cases import randn
from tests.diagnosis.subjects import drawn, mlp, moved, normed, quick, state_of, subject_of

X = randn(24, 6, seed=1)
Y = torch.arange(24) % 3
NET = mlp()
START, END = state_of(NET), moved(NET, 0.3)


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(*_: Any) -> None:
        raise AssertionError("work began before the input was read")

    monkeypatch.setattr(collapse, "look", look)


def broken_weights() -> dict[str, Tensor]:
    state = copy.deepcopy(END)
    state["2.weight"][0, 0] = float("nan")
    return state


def raises(generator: torch.Generator) -> nn.Module:
    raise ValueError("no such\nlayer")


def random(x: Tensor) -> Tensor:
    return torch.nn.functional.dropout(x, 0.5)


class Random(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return random(super().forward(x))


REFUSED = {
    "no start": ({"start": None, "end": None}, r"start is missing.*or a function\s?build"),
    "live start": ({"start": NET.state_dict(), "end": None}, r"shares its memory with the module.*deepcopy"),
    "one sample": ({"data": X[:1]}, "data must be two samples or more, got 1"),
    "one view": ({"data": None, "views": (X[:1], X[:1])}, "at least 2 samples, got 1"),
    "views of unequal length": ({"data": None, "views": (X, X[:-1])}, "got 24 and 23"),
    "views of unequal shape": ({"data": None, "views": (X, X[:, :-1])}, "shape"),
    "views without samples": ({"data": None, "views": "auto"}, "none were given"),
    "auto views of tokens": ({"data": torch.ones(9, 4, dtype=torch.int64), "views": "auto"}, "pass views="),
    "text without samples": ({"data": None, "views": "crop"}, "made of samples, and there are none; pass data"),
    "NaN in samples": ({"data": X / 0}, "data"),
    "other samples": ({"data": randn(24, 5)}, r"Sequential cannot be evaluated on samples of shape \(5,\)"),
    "NaN weights": ({"end": broken_weights()}, "end holds NaN or infinite weights: 1 of the 36 numbers of 2.weight"),
    "other names": (
        {"end": {name.replace("2.", "4."): value for name, value in END.items()}},
        r"it lacks 2.weight, 2.bias and holds 4.weight.*did you mean",
    ),
    "other shapes": ({"end": state_of(mlp(width=5))}, r"0.weight is \(5, 6\), not \(12, 6\)"),
    "no such file": ({"end": "nowhere/epoch_3.pt"}, "there is no checkpoint nowhere/epoch_3.pt"),
    "labels of nothing": ({"data": None, "views": (X, X), "labels": Y}, "no data was given"),
    "labels of others": ({"labels": Y[:20]}, "got 24 and 20"),
    "labels of one class": ({"labels": 0 * Y}, "two classes or more with two samples each, got 1 classes"),
    "labels all different": ({"labels": torch.arange(24)}, "two samples each, got 24 classes"),
    "numbers for labels": ({"labels": randn(24)}, "whole numbers or words, got float64"),
    "rows of labels": ({"labels": Y[:, None]}, "must be class labels"),
    "test without labels": ({"labels": Y, "test": X}, r"\(x_test, y_test\)"),
    "test with other samples": ({"labels": Y, "test": (randn(9, 5), Y[:9])}, r"shape \(5,\), but data of \(6,\)"),
    "test of unequal length": ({"labels": Y, "test": (X, Y[:9])}, "got 24 and 9"),
    "test but no labels": ({"test": (X, Y)}, "none to learn from; pass labels="),
    "unknown setting": ({"n_sampels": 3}, "no argument 'n_sampels'; .* n_samples"),
    "few samples asked": ({"n_samples": 3}, "n_samples must be a whole number of at least 8"),
    "unknown statistics": ({"statistics": "mine"}, "statistics must be"),
    "unknown outputs": ({"outputs": "project:1"}, "outputs must be all or project:8"),
    "no temperature": ({"temperature": 0}, "temperature"),
    "sweep of a module": ({"width_sweep": [8, 16]}, r"width_sweep needs a function build\(width, generator\)"),
    "widths of nothing": ({"width_sweep": [0]}, "each width of width_sweep must be a whole number"),
    "a builder that raises": ({"net": raises}, "the model's builder failed: ValueError: no such layer"),
    "a builder alone": ({"net": lambda generator: mlp(), "end": None}, "end is missing"),
    "a builder of widths": ({"net": lambda width, generator: mlp(width=width)}, "pass width="),
    "no module": ({"net": 3}, "must be an nn.Module or a function"),
    "no submodule": ({"features": "backbone"}, "backbone"),
    "no loss": ({"loss": 3}, "loss must be a function of two views"),
    "no such loss": ({"loss": "nt_xnt"}, "did you mean 'nt_xent'"),
    "random in eval mode": ({"net": Random(*mlp())}, "other outputs at every pass"),
}


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_in_one_line_before_any_work(case: str) -> None:
    given, message = REFUSED[case]
    arguments = {"net": NET, "start": START, "end": END} | given
    net, start, end = (arguments.pop(name) for name in ("net", "start", "end"))
    if callable(net) and not isinstance(net, nn.Module) and "start" not in given:
        start = None
    with pytest.raises(KontrastError, match=message) as caught:
        quick(net, start, end, **arguments)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_copy_of_the_start_is_no_live_one_and_two_states_need_no_module() -> None:
    assert subject_of(NET, copy.deepcopy(NET.state_dict()), None).labels == ("start", "now")
    assert subject_of(NET, NET.state_dict(), END).labels == ("start", "end")  # nothing was trained in place


def test_checkpoints_have_labels_of_their_own() -> None:
    assert subject_of(NET, [START, END], END).labels == ("checkpoint 0", "checkpoint 1", "end")
    assert subject_of(NET, {"a": START, "b": END}, None).labels == ("a", "b")
    assert len({*subject_of(NET, {"end": START}, END).labels}) == 2


def test_a_builder_makes_the_start_again() -> None:
    def build(generator: torch.Generator) -> nn.Module:
        return nn.Linear(6, 2).double()

    one, same, other = (subject_of(build, None, state_of(drawn(nn.Linear(6, 2))), seed=seed) for seed in (3, 3, 4))
    assert torch.equal(one.start["weight"], same.start["weight"])
    assert not torch.equal(one.start["weight"], other.start["weight"])


def notes(module: nn.Module, **given: Any) -> tuple[str, ...]:
    start, end = (given.pop(name) if name in given else state_of(module) for name in ("start", "end"))
    known = {name: given.pop(name) for name in list(given) if name in Settings.__dataclass_fields__}
    names = ("labels", "test", "loss", "features", "head", "select")
    arguments = dict.fromkeys(names) | {"data": X, "views": "noise:0.2"} | given
    return tuple(read(Given(module, start, end, **arguments), Settings(**known))[1])


def test_what_was_done_is_noted() -> None:
    assert notes(NET) == ("no loss was given, so NT-Xent at temperature 0.5 stands in where one is needed",)
    assert notes(NET, loss="vicreg") == ()
    assert any("train mode" in note for note in notes(normed().train()))
    assert any("cast to torch.float32" in note for note in notes(mlp().float(), loss="nt_xent"))
    assert notes(mlp(d_out=40), loss="nt_xent") == (
        "tangent kernels are those of 8 random directions of the 40 outputs, with their error",
    )
    assert notes(mlp(d_out=40), loss="nt_xent", outputs="all") == ()
    for how, words in {
        "data": "recalibrated on the 24 samples",
        "own": "each checkpoint's own",
        "start": "those of the",
    }.items():
        assert any(words in note for note in notes(normed(), statistics=how))
    assert any(
        "built again from seed 7" in note for note in notes(lambda generator: mlp(), start=None, end=START, seed=7)
    )


def test_train_mode_and_dropout_are_diagnosed_in_eval_mode() -> None:
    module = drawn(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)))
    end = moved(module, 0.2)
    quiet = subject_of(module, state_of(module), end)
    loud = subject_of(module.train(), state_of(module), end)
    assert torch.equal(quiet.encoder.embed(quiet.end, X), loud.encoder.embed(loud.end, X))
    assert module.training
    assert not loud.encoder.module.training


def test_statistics_are_those_that_were_asked_for() -> None:
    module = normed()
    start, end = state_of(module), moved(module, 0.3)
    end["1.running_var"] = 5 * end["1.running_var"]
    own, first, data = (subject_of(module, start, end, statistics=how) for how in ("own", "start", "data"))
    assert torch.equal(own.end["1.running_var"], end["1.running_var"])
    assert torch.equal(first.end["1.running_var"], start["1.running_var"])
    assert not torch.equal(data.end["1.running_var"], end["1.running_var"])
    hidden = torch.nn.functional.linear(data.x, end["0.weight"], end["0.bias"])
    assert torch.allclose(data.end["1.running_var"], hidden.var(0), rtol=1e-6)
    assert data.start_as_saved is not None
    assert torch.equal(data.start_as_saved["1.running_var"], start["1.running_var"])
    assert own.start_as_saved is first.start_as_saved is None
    assert subject_of(NET, START, END).start_as_saved is None


def test_labels_are_numbers_or_words() -> None:
    assert class_numbers(["b", "a", "b"], "labels").tolist() == [1, 0, 1]
    assert class_numbers(torch.tensor([True, False]), "labels").tolist() == [1, 0]
    assert class_numbers(torch.tensor([7, -2], dtype=torch.int8), "labels").dtype == torch.int64
    of_data = subject_of(NET, START, END, data=Dataset(X, Y, "rows"))
    assert torch.equal(of_data.y, Y)
    words = subject_of(NET, START, END, labels=[("cat", "dog", "owl")[k] for k in Y.tolist()])
    assert torch.equal(words.y, Y)


def test_labels_go_with_their_samples_where_there_are_more_than_were_asked_for() -> None:
    x = randn(60, 6, seed=4)
    subject = subject_of(NET, START, END, data=x, labels=(x[:, 0] > 0).long())
    assert len(subject.x) == 24
    assert torch.equal(subject.y, (subject.x[:, 0] > 0).long())
    assert len(subject.labelled.y) == 60
    assert torch.equal(subject.labelled.y, (subject.labelled.x[:, 0] > 0).long())


def test_labels_belong_to_the_samples_that_the_views_are_of() -> None:
    x, y = randn(60, 6, seed=4), torch.arange(60) % 3
    assert subject_of(NET, START, END, data=x, labels=y, views=(X, X + 0.1)).y is None  # views of who knows what
    paired = subject_of(NET, START, END, data=X, labels=Y, views=(X, X + 0.1))
    assert torch.equal(paired.y, Y)
    loader = [(X[:12], X[:12] + 0.1, Y[:12]), (X[12:], X[12:] + 0.1, Y[12:])]
    alone = subject_of(NET, START, END, data=None, views=loader)
    assert torch.equal(alone.y, Y)
    assert torch.equal(alone.labelled.x[alone.labelled.x[:, 0].argsort()], X[X[:, 0].argsort()])
    beside = subject_of(NET, START, END, data=x, labels=y, views=loader)
    assert torch.equal(beside.y, Y)


def test_settings_are_checked() -> None:
    assert Settings().directions(16) is None
    assert Settings().directions(17) == 8
    assert Settings(outputs="project:40").directions(30) is None
    assert Settings(outputs="project:3").directions(16) == 3
    for bad in ({"n_points": 7}, {"n_splits": 1}, {"seed": -1}, {"width": 0}, {"outputs": "some"}, {"device": "tpu"}):
        with pytest.raises(InputError):
            Settings(**bad)
