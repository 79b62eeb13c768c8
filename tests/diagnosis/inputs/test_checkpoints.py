from __future__ import annotations

import argparse
import os
import pickle
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import integers, lists
from torch import Tensor, nn

from kontrast.diagnosis.inputs import Encoder, find_checkpoints, read_checkpoint, read_checkpoints
from kontrast.diagnosis.inputs.checkpoints import natural_order
from kontrast.errors import DataError, InputError
from tests.cases import randn
from tests.diagnosis.inputs.models import SimCLR, drawn, images

STATE = drawn(SimCLR(), 3).state_dict()
MODULE = drawn(SimCLR())
OPTIMIZER = {"state": {0: {"exp_avg": torch.zeros(6, 3, 3, 3)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}


def under(prefix: str, state: dict[str, Tensor] = STATE) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in state.items()}


def assert_is(state: dict[str, Tensor], expected: dict[str, Tensor] = STATE) -> None:
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], value) for name, value in expected.items())


ZEROS = {name: torch.zeros_like(value) for name, value in STATE.items()}
SAVED: dict[str, tuple[Any, str]] = {
    "a state_dict": (STATE, ""),
    "compiled and distributed": (under("_orig_mod.module."), ""),
    "compiled parts": ({name.replace("backbone.", "backbone._orig_mod."): t for name, t in STATE.items()}, ""),
    "model": ({"model": STATE, "optimizer": OPTIMIZER, "epoch": 3}, ""),
    "net, deeper": ({"epoch": 3, "weights": {"net": under("module.")}}, ""),
    "Lightning": ({"state_dict": under("online_network."), "optimizer_states": [OPTIMIZER], "epoch": 1}, ""),
    "with a classifier": (
        {"model_state_dict": {**under("encoder."), "fc.weight": torch.ones(2, 4)}},
        "1 entries outside",
    ),
    "momentum encoder": ({**under("momentum_encoder.", ZEROS), **under("encoder_q.")}, "those at momentum_encoder fit"),
    "average first": ({"model_ema": ZEROS, "model": STATE}, "those at model_ema fit as well"),
    "DDP of a wrapper": (under("module.model.backbone."), ""),
}


@pytest.mark.parametrize("kind", SAVED)
@pytest.mark.parametrize("in_a_file", [False, True])
def test_whatever_training_code_saves_is_read(kind: str, in_a_file: bool, tmp_path: Path) -> None:
    saved, note = SAVED[kind]
    if in_a_file:
        torch.save(saved, tmp_path / "saved.pt")
    read = read_checkpoint(tmp_path / "saved.pt" if in_a_file else saved, MODULE)
    assert_is(read)
    assert bool(read.notes) == bool(note)
    assert note in "".join(read.notes)


def test_a_module_and_its_copy_in_an_encoder_read_the_same() -> None:
    encoder = Encoder.of(MODULE, images(), features="backbone")
    for saved, _ in SAVED.values():
        assert_is(read_checkpoint(saved, encoder.module))
    assert_is(read_checkpoint(drawn(SimCLR(), 3), MODULE))


def test_a_wrapper_reads_what_was_saved_of_the_module_inside() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = SimCLR()

    assert_is(read_checkpoint(STATE, Wrapped().double()), under("model."))


def test_safetensors(tmp_path: Path) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed; pip install safetensors")
    from safetensors.torch import save_file

    path = tmp_path / "model.safetensors"
    save_file(STATE, path)
    assert_is(read_checkpoint(path, MODULE))
    path.write_bytes(b"no header at all")
    with pytest.raises(DataError, match="is no safetensors file, or broken"):
        read_checkpoint(path, MODULE)


def test_without_safetensors_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"some bytes")
    monkeypatch.setitem(__import__("sys").modules, "safetensors.torch", None)
    with pytest.raises(InputError, match="needs the package safetensors to be read; pip install safetensors"):
        read_checkpoint(tmp_path / "model.safetensors", MODULE)


def test_tied_weights_under_one_of_their_names() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
            self.head.weight = self.words.weight

    weight = randn(7, 4)
    for name in ("words.weight", "head.weight"):
        assert_is(read_checkpoint({name: weight}, Tied().double()), {"words.weight": weight, "head.weight": weight})


def test_whole_numbers_that_are_missing_are_the_modules_own() -> None:
    few = {name: value for name, value in STATE.items() if "num_batches" not in name}
    assert_is(read_checkpoint(few, MODULE), {**few, **{k: v for k, v in STATE.items() if k not in few}})


# --- refusals -------------------------------------------------------------------------------------------------------


class Runs:
    """Pickled, it would make a folder when it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def test_pickled_code_is_never_run(tmp_path: Path) -> None:
    made, path = tmp_path / "made", tmp_path / "evil.pt"
    for save in (
        lambda: torch.save({"model": STATE, "extra": Runs(made)}, path),
        lambda: path.write_bytes(pickle.dumps(Runs(made))),
        lambda: torch.save({"model": STATE, "args": argparse.Namespace(lr=1)}, path),
        lambda: torch.save(MODULE, path),
    ):
        save()
        with pytest.raises(DataError, match=r"can only be read by running pickled code .* save torch.save") as refused:
            read_checkpoint(path, MODULE)
        assert "\n" not in str(refused.value)
        assert not made.exists()


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_torchscript_is_never_run(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(nn.Linear(3, 2)), tmp_path / "script.pt")
    with pytest.raises(DataError, match="is a TorchScript program, which is never run here"):
        read_checkpoint(tmp_path / "script.pt", MODULE)


def test_broken_files_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "epoch_3.pt"
    torch.save(STATE, path)
    whole, draw = path.read_bytes(), random.Random(0)
    for cut in (0, 1, 20, len(whole) // 2, len(whole) - 10):
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError, match=r"epoch_3.pt is (empty|no checkpoint of torch, or broken)") as refused:
            read_checkpoint(path, MODULE)
        assert "\n" not in str(refused.value)
    for _ in range(30):  # a flipped byte may also lie where nothing reads it
        broken = bytearray(whole)
        broken[draw.randrange(len(broken))] ^= 1 << draw.randrange(8)
        path.write_bytes(broken)
        with suppress(DataError, InputError):
            read_checkpoint(path, MODULE)
    with pytest.raises(DataError, match=r"there is no checkpoint .*epoch_4.pt; did you mean epoch_3.pt\?"):
        read_checkpoint(tmp_path / "epoch_4.pt", MODULE)
    with pytest.raises(DataError, match="is a folder, not a checkpoint"):
        read_checkpoint(tmp_path, MODULE)


def without(name: str) -> dict[str, Tensor]:
    return {key: value for key, value in STATE.items() if key != name}


def with_bad(name: str, n: int) -> dict[str, Tensor]:
    bad = STATE[name].clone()
    bad.view(-1)[:n] = torch.tensor([float("nan"), float("inf")]).repeat(n)[:n]
    return {**STATE, name: bad}


BAD: list[tuple[Any, str]] = [
    (3, "start must be a state_dict or a path, got int"),
    ({"epoch": 3}, "start holds no tensors by name"),
    (without("head.0.bias"), "start does not fit SimCLR: it lacks head.0.bias; pass the state_dict"),
    (
        {**without("head.0.bias"), "head.0.bais": STATE["head.0.bias"]},
        r"lacks head.0.bias and holds head.0.bais, which the module has not \(did you mean head.0.bais as head.0.bias",
    ),
    (under("encoder.", without("head.3.weight")), "it lacks head.3.weight"),
    ({"x": torch.ones(2)}, r"it lacks backbone.0.weight, backbone.0.bias, backbone.1.weight and 5 more and holds x"),
    (
        {**STATE, "head.0.weight": torch.ones(5, 7)},
        r"does not fit SimCLR: head.0.weight is \(5, 7\), not \(5, 6\); build the module as it was",
    ),
    (without("head.1.running_var"), "holds no head.1.running_var, which changes in training as the weights do"),
    (
        with_bad("head.0.weight", 3),
        "holds NaN or infinite weights: 3 of the 30 numbers of head.0.weight; training diverged",
    ),
    (with_bad("backbone.1.running_var", 1), "1 of the 6 numbers of backbone.1.running_var"),
]


@pytest.mark.parametrize("saved, words", BAD)
def test_states_that_do_not_fit_are_one_line(saved: Any, words: str) -> None:
    with pytest.raises(InputError, match=words) as refused:
        read_checkpoint(saved, MODULE, name="start")
    assert "\n" not in str(refused.value)


# --- several --------------------------------------------------------------------------------------------------------


@given(epochs=lists(integers(0, 10**6), min_size=1, unique=True), seed=integers(0, 2**16))
@settings(max_examples=30)
def test_natural_order_is_that_of_the_numbers(epochs: list[int], seed: int) -> None:
    paths = [Path(f"runs/epoch_{k}-loss=0.1.ckpt") for k in epochs]
    random.Random(seed).shuffle(paths)
    assert sorted(paths, key=natural_order) == [Path(f"runs/epoch_{k}-loss=0.1.ckpt") for k in sorted(epochs)]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("a/epoch_10.pt", "a/epoch_2.pt", "a/last.ckpt", "b/epoch_2.pt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        torch.save(STATE, tmp_path / name)
    (tmp_path / "a" / "log.txt").write_text("0.1")
    return tmp_path


def test_folders_patterns_lists_and_labels(runs: Path) -> None:
    def labels(given: Any) -> list[str]:
        return [label for label, _ in find_checkpoints(given)]

    assert labels(runs / "a") == ["epoch_2", "epoch_10", "last"]
    assert labels(str(runs / "a" / "epoch_*.pt")) == ["epoch_2", "epoch_10"]
    assert labels(f"{runs}/*/epoch_2.pt") == ["a/epoch_2", "b/epoch_2"]
    assert labels([runs / "a/last.ckpt", runs / "a/epoch_2.pt"]) == ["last", "epoch_2"]
    assert labels([runs / "a/last.ckpt", f"{runs}/b/*"]) == ["last", "epoch_2"]
    assert labels([STATE, runs / "a/epoch_2.pt"]) == ["checkpoint 0", "epoch_2"]
    assert labels({"start": STATE, 7: runs / "a/epoch_2.pt"}) == ["start", "7"]
    assert labels(runs / "a/epoch_2.pt") == ["epoch_2"]
    assert labels({"model": STATE, "optimizer": OPTIMIZER}) == labels(STATE) == ["checkpoints"]
    for label, state in read_checkpoints(runs / "a", MODULE):
        assert_is(state)
        assert label


def test_an_error_names_the_file_or_the_label(runs: Path) -> None:
    torch.save(with_bad("head.0.weight", 2), runs / "a/epoch_3.pt")
    with pytest.raises(InputError, match=r"a/epoch_3.pt holds NaN"):
        read_checkpoints(runs / "a", MODULE)
    with pytest.raises(InputError, match=r"^end holds NaN"):
        read_checkpoints({"start": STATE, "end": with_bad("head.0.weight", 2)}, MODULE)


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no checkpoint; its files must end in .pt"):
        find_checkpoints(tmp_path)
    with pytest.raises(DataError, match="no file matches"):
        find_checkpoints(str(tmp_path / "*.pt"))
    with pytest.raises(InputError, match="checkpoints holds no checkpoint"):
        find_checkpoints([])
    with pytest.raises(InputError, match="must be paths or state_dicts, got int"):
        find_checkpoints(3)  # type: ignore[arg-type]
    (tmp_path / "one.pt").touch()
    with pytest.raises(InputError, match=r"one.pt is given twice"):
        find_checkpoints([tmp_path / "one.pt"] * 2)


def test_a_checkpoint_of_another_number_type_fits() -> None:
    module = drawn(SimCLR()).float()
    encoder, x = Encoder.of(module, images().float()), images().float()
    state = read_checkpoint(STATE, module)
    expected = drawn(SimCLR(), 3)
    expected.load_state_dict(STATE)
    torch.testing.assert_close(encoder.embed(state, x), expected.float().eval()(x).detach())
