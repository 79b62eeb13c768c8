"""A network of the user's own is tried before any work, and whatever is wrong with it is one clear line."""

from __future__ import annotations

import dataclasses
import functools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kontrast.data import load
from kontrast.errors import InputError
from kontrast.nets import MLP, builder_from, named_builder, parameters_of, takes_width
from kontrast.study import StudySpec, prepare
from kontrast.study.map.networks import draw_network

TINY = StudySpec(
    data="digits",
    image_shape=(8, 8),
    n_samples=8,
    widths=(2, 4),
    n_seeds=2,
    max_steps=16,
    batch_size=8,
    losses=("dot",),
)


class Net(nn.Module):
    """A small network of images."""

    def __init__(self, width: int, *parts: nn.Module, d_out: int = 3) -> None:
        super().__init__()
        self.conv, self.parts = nn.Conv2d(1, width, 3, stride=2), nn.Sequential(*parts)
        self.head = nn.Linear(9 * width, d_out)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.parts(torch.relu(self.conv(x))).flatten(1))


class Pair(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x


class Noisy(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x) + torch.randn(len(x), 1)


class Detached(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x).detach()


class Mixing(Net):
    def forward(self, x: Tensor) -> Any:
        h = super().forward(x)
        return h - 0.02 * h.mean(0)


class After(Net):
    """A sample depends on those before it in its batch, the first on none."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x).cumsum(0)


class Squeezed(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x).squeeze()


class Double(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x).double()


class Exits(Net):
    def forward(self, x: Tensor) -> Any:
        sys.exit(3)


class Lost(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x) * float("nan")


def of(build: Any, **fields: Any) -> StudySpec:
    return dataclasses.replace(TINY, model=named_builder(build), **fields)


def raising(width: int, generator: torch.Generator) -> nn.Module:
    raise RuntimeError("no weights here\n\tlook elsewhere\n")


REFUSALS = {
    "ignores its width": (
        lambda width, generator: Net(3),
        r"the model's builder ignores its width: 2 widths have \[\d+\] parameters; .*, build\(generator\)",
    ),
    "one output": (lambda width, generator: Net(width, d_out=1), r"\(2, d\) outputs with d >= 2, got \(2, 1\)"),
    "images": (lambda width, generator: nn.Conv2d(1, width, 3), r"to \(2, d\) outputs .*got \(2, 2, 6, 6\)"),
    "two tensors": (lambda width, generator: Pair(width), "Pair must return one tensor, got tuple"),
    "as wide as it is": (
        lambda width, generator: Net(width, d_out=width),
        r"outputs of one dimension at every width, got \[2, 4\]",
    ),
    "no module": (lambda width, generator: "net", "builder must return an nn.Module, got str"),
    "dropout": (
        lambda width, generator: Net(width, nn.Dropout(0.5)),
        r"parts.0 is a Dropout in train mode.*\.eval\(\)",
    ),
    "batch norm": (lambda width, generator: Net(width, nn.BatchNorm2d(width)), "is a BatchNorm2d in train mode"),
    "chance": (lambda width, generator: Noisy(width), "outputs change from call to call; take out what is random"),
    "not finite": (lambda width, generator: Lost(width), "makes of two samples holds NaN or infinite values"),
    "detached": (
        lambda width, generator: Detached(width),
        "do not depend on its parameters, so nothing can be trained",
    ),
    "mixes samples": (lambda width, generator: Mixing(width), "depends on the other samples of its batch; use layers"),
    "sums up": (lambda width, generator: After(width), "depends on the other samples of its batch; use layers"),
    "squeezed": (
        lambda width, generator: Squeezed(width),
        r"map 1 samples to \(1, d\) outputs with d >= 2, got \(3,\)",
    ),
    "double": (
        lambda width, generator: Double(width),
        "must keep samples of torch.float32, got outputs of torch.float64",
    ),
    "exits in forward": (lambda width, generator: Exits(width), "fails on samples of shape .*: SystemExit: 3; mend it"),
    "exits": (lambda width, generator: sys.exit(3), "builder failed at width 2: SystemExit: 3; mend it"),
    "raises": (raising, "builder failed at width 2: RuntimeError: no weights here look elsewhere; mend it"),
    "other samples": (
        lambda width, generator: nn.Linear(5, width),
        r"fails on samples of shape \(2, 1, 8, 8\) at width 2",
    ),
    "no parameters": (lambda width, generator: nn.Flatten(), "Flatten has no parameters"),
    "three arguments": (lambda a, b, c: Net(2), r"build\(generator\), got a function of \(a, b, c\)"),
    "none": (lambda: Net(2), r"got a function of \(\)"),
    "a width alone": (lambda width: Net(2 * width), "builder failed at width 2: TypeError"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_wrong_with_a_builder_is_one_line_before_any_work(name: str) -> None:
    build, words = REFUSALS[name]
    with pytest.raises(InputError, match=words) as refused:
        prepare(of(build))
    assert "\n" not in str(refused.value)


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(InputError, match="build must be a function, got int"):
        named_builder(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.BatchNorm2d(2), nn.GroupNorm(1, 2)])
def test_layers_in_eval_mode_are_fine(layer: nn.Module) -> None:
    assert prepare(of(lambda width, generator: Net(width, layer).eval(), widths=(2,))).d_out == 3


# How it is called


def keywords(*, width: int, generator: torch.Generator) -> nn.Module:
    return Net(width)


def turned_round(generator: torch.Generator, width: int) -> nn.Module:
    return Net(width)


def other_names(w: int, g: torch.Generator) -> nn.Module:
    assert isinstance(g, torch.Generator)
    return Net(w)


@pytest.mark.parametrize("build", [keywords, turned_round, other_names, functools.partial(keywords)])
def test_a_builder_is_called_by_name_or_by_place(build: Any) -> None:
    assert takes_width(build)
    spec = prepare(of(build))
    assert (spec.has_width, spec.widths, spec.d_out) == (True, (2, 4), 3)


def test_without_a_width_the_map_is_over_steps() -> None:
    for build in (lambda generator: Net(2), lambda g: Net(2)):
        spec = prepare(of(build, max_steps=100))
        assert not spec.has_width
        assert spec.widths == (12, 25, 50, 100)  # all, half, … of them, and at least 8
        assert prepare(spec) == spec


def test_a_start_depends_on_seed_and_width_alone() -> None:
    """Layers draw from torch's global stream, which is neither used nor moved."""
    dataset, spec = load("digits", image_shape=(8, 8)), prepare(of(lambda width, generator: Net(width)))

    def start(width: int, seed: int) -> Tensor:
        return torch.cat([p.flatten() for p in parameters_of(draw_network(spec, dataset, width, seed)).values()])

    torch.manual_seed(1)
    first = start(2, 0)
    state = torch.get_rng_state()
    again = start(2, 0)
    assert torch.equal(first, again)
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.equal(first, start(2, 1))
    steps = prepare(of(lambda generator: Net(2)))
    at = [parameters_of(draw_network(steps, dataset, width, 0))["head.weight"] for width in (8, 16)]
    assert torch.equal(*at)  # the same start, trained for longer


def test_the_built_in_network_is_an_mlp_of_rows() -> None:
    spec = prepare(dataclasses.replace(TINY, activation="tanh", depth=2, d_out=5))
    module = draw_network(spec, load("digits"), 4, 0)
    assert isinstance(module, MLP)
    assert (module.d_in, module.width, module.d_out, module.depth) == (64, 4, 5, 2)
    assert module.output.dtype == torch.float32


# Which function it was


def test_two_functions_of_one_name_are_two_studies() -> None:
    specs = [
        prepare(of(build)) for build in (lambda width, generator: Net(width), lambda width, generator: Lazy(width))
    ]
    again = prepare(of(lambda width, generator: Net(width)))
    assert specs[0].model == specs[1].model == again.model
    assert specs[0].digest == again.digest != specs[1].digest


class Lazy(Net):
    """The same weights as `Net`, and another function of them."""

    def forward(self, x: Tensor) -> Any:
        return self.head(torch.tanh(self.conv(x)).flatten(1))


CODE = """
import torch
from torch import nn

def build(width, generator):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, {d_out}))
"""


def test_a_file_is_read_again_once_it_was_edited(tmp_path: Path) -> None:
    file = tmp_path / "my_net.py"
    specs = []
    for d_out in (3, 5):
        file.write_text(CODE.format(d_out=d_out))
        specs.append(prepare(dataclasses.replace(TINY, model=f"{file}:build")))
    assert [spec.d_out for spec in specs] == [3, 5]
    assert specs[0].model_digest != specs[1].model_digest
    assert builder_from(f"{file}:build") is builder_from(f"{file}:build")


@pytest.mark.parametrize(
    "model, code, words",
    [
        ("{file}", "", r"model must be FILE.py:FUNCTION, got '.*my_net.py'; write my_net.py:build"),
        ("build", "", "model must be FILE.py:FUNCTION, got 'build'"),
        ("notes.txt:build", "", "model must be FILE.py:FUNCTION, got 'notes.txt:build'"),
        ("nowhere.py:build", "", "there is no file 'nowhere.py'; model must be FILE.py:FUNCTION"),
        ("{file}:built", "def build(width, generator): pass", "my_net.py defines no function 'built'"),
        ("{file}:build", "build = 3", "my_net.py defines no function 'build'"),
        ("{file}:build", "def build(:", "my_net.py cannot be imported: SyntaxError: .*; mend the file"),
        ("{file}:build", "import nothing_of_this_name", "cannot be imported: ModuleNotFoundError"),
        ("{file}:build", "raise SystemExit(3)", "cannot be imported: SystemExit: 3; mend the file"),
        ("{file}:build", "raise ValueError('one\\ntwo')", "cannot be imported: ValueError: one two; mend the file"),
        ("<function>:gone", "", "call kontrast.study.run with that function again"),
    ],
)
def test_a_model_that_is_not_there_is_one_line(tmp_path: Path, model: str, code: str, words: str) -> None:
    file = tmp_path / "my_net.py"
    file.write_text(code)
    with pytest.raises(InputError, match=words) as refused:
        prepare(dataclasses.replace(TINY, model=model.format(file=file)))
    assert "\n" not in str(refused.value)
