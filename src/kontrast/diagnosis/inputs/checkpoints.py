"""Checkpoints as states that fit a module: from files or mappings, whatever training code wrapped around the weights.

Files are read as tensors alone, by safetensors or by torch's `weights_only`: code inside a file is never run.
"""

from __future__ import annotations

import difflib
import glob
import os
import pickle
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kontrast.checks import in_words
from kontrast.diagnosis.inputs.encoder import State
from kontrast.diagnosis.inputs.fitting import Fitted, best_fit, misfit
from kontrast.errors import DataError, InputError
from kontrast.nets import failure_of

Source = Mapping[str, Any] | nn.Module | str | os.PathLike[str]

SUFFIXES = (".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".tar")
CONTAINERS = ("model", "state_dict", "model_state_dict", "net", "network", "encoder", "module", "weights", "params")
BESIDE = ("optimizer", "optimizer_state_dict", "epoch", "step", "global_step", "scheduler", "lr_schedulers")
FEW = 3  # names that a message tells
DEEPEST = 4  # mappings inside mappings


class Checkpoint(State):
    """A state that fits its module, and in `notes` what was left out of the source."""

    notes: tuple[str, ...] = ()


def read_checkpoint(source: Source, module: nn.Module, *, name: str = "checkpoint") -> Checkpoint:
    """The whole state of a module in a file or a mapping; refuses one that does not fit, and says why.

    Args:
        source: a path, a state_dict, or what training code saved: the mapping inside whose names fit best is taken.
        module: the module it is of.
        name: what messages call it, such as "start".
    """
    if isinstance(source, str | os.PathLike):
        name = str(source)
        content: Any = _read_file(Path(source).expanduser())
    else:
        content = source.state_dict() if isinstance(source, nn.Module) else source
    if not isinstance(content, Mapping):
        raise InputError(f"{name} must be a state_dict or a path, got {in_words(content)}; pass module.state_dict()")
    found = list(_states_in(content))
    if not found:
        raise InputError(f"{name} holds no tensors by name; save module.state_dict()")
    fitted = best_fit(found, module)
    if fitted.missing:
        raise InputError(f"{name} does not fit {type(module).__name__}: {misfit(fitted)}")
    return _checked(fitted, module, name)


def read_checkpoints(
    sources: Source | Sequence[Source], module: nn.Module, *, name: str = "checkpoints"
) -> list[tuple[str, Checkpoint]]:
    """The states of several checkpoints with short labels: see `find_checkpoints`."""
    found = find_checkpoints(sources, name=name)
    return [(label, read_checkpoint(source, module, name=label)) for label, source in found]


def find_checkpoints(sources: Source | Sequence[Source], *, name: str = "checkpoints") -> list[tuple[str, Source]]:
    """Labels and sources, nothing read yet.

    A folder's files and those of a text with *, ? or [ come in natural order, epoch_2 before epoch_10; a list keeps its
    own; a mapping has labels for keys. A single path or state_dict is one checkpoint.
    """
    found: list[tuple[str, Source]]
    if isinstance(sources, Mapping):
        labelled = _is_labelled(sources)
        found = [(str(label), source) for label, source in sources.items()] if labelled else [(name, sources)]
    elif isinstance(sources, str | os.PathLike):
        found = _labelled(_files(Path(sources).expanduser()))
    elif isinstance(sources, nn.Module):
        found = [(name, sources)]
    elif isinstance(sources, Iterable):
        listed: list[Source] = []
        for source in sources:
            several = isinstance(source, str) and _is_glob(source)
            listed += _files(Path(str(source)).expanduser()) if several else [source]
        found = _labelled(listed)
    else:
        raise InputError(f"{name} must be paths or state_dicts, got {in_words(sources)}; pass a list, or a folder")
    if not found:
        raise InputError(f"{name} holds no checkpoint; name at least one file or state_dict")
    return found


# --- files ----------------------------------------------------------------------------------------------------------


def _read_file(path: Path) -> Any:
    if not path.is_file():
        raise DataError(_absent(path))
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty (0 bytes); save or copy it again")
    return _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)


def _absent(path: Path) -> str:
    if path.is_dir():
        return f"{path} is a folder, not a checkpoint; name a file in it"
    beside = sorted(one.name for one in path.parent.iterdir() if one.is_file()) if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, beside, n=1)
    return f"there is no checkpoint {path}; {f'did you mean {close[0]}?' if close else 'check the path'}"


def _read_safetensors(path: Path) -> Any:
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise InputError(f"{path} needs the package safetensors to be read; pip install safetensors") from error
    try:
        return load_file(path, device="cpu")
    except Exception as error:
        raise DataError(f"{path} is no safetensors file, or broken ({failure_of(error)}); save it again") from error


def _read_torch(path: Path) -> Any:
    instead = "save torch.save(model.state_dict(), path), or safetensors, where you trust it"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old formats
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if needed := _code_in(path, str(error)):
            raise DataError(
                f"{path} can only be read by running pickled code ({needed}), which is never done: a file may hold any "
                f"program; {instead}"
            ) from error
        raise DataError(f"{path} is no checkpoint of torch, or broken ({_first_line(error)}); save it again") from error
    except RuntimeError as error:
        if "TorchScript" in str(error):
            raise DataError(f"{path} is a TorchScript program, which is never run here; {instead}") from error
        raise DataError(f"{path} is no checkpoint of torch, or broken ({_first_line(error)}); save it again") from error
    except Exception as error:  # whatever torch, zipfile and pickle raise on broken bytes
        raise DataError(f"{path} is no checkpoint of torch, or broken ({_first_line(error)}); save it again") from error


def _code_in(path: Path, said: str) -> str:
    """What a pickle would run, by torch's message; empty where the file is only broken."""
    if named := re.search(r"GLOBAL (\S+)|Unsupported class (\S+)", said):
        return named[1] or named[2]
    with path.open("rb") as file:  # torch reads the opcodes of its own files alone
        return "pickle.load" if file.read(1) == pickle.PROTO and "Unsupported operand" in said else ""


def _first_line(error: BaseException) -> str:
    """What torch says is wrong, without its advice to load unsafely."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    of_file = [line for line in lines if not line.startswith(("Weights only load failed", "Please file", "Check the"))]
    return f"{type(error).__name__}: {of_file[0][:120]}" if of_file else type(error).__name__


# --- the state in what was saved ------------------------------------------------------------------------------------


def _states_in(content: Mapping[Any, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, State]]:
    """Every mapping of names to tensors inside, with where it lies, those of plain names first."""
    own = {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
    if own:
        yield ".".join(path), own
    if len(path) < DEEPEST:
        for key, value in content.items():
            if isinstance(value, nn.Module):
                value = value.state_dict()
            if isinstance(value, Mapping):
                yield from _states_in(value, (*path, str(key)))


def _checked(fitted: Fitted, module: nn.Module, name: str) -> Checkpoint:
    """The whole state, in the module's own names; refuses other shapes, missing statistics and values not finite."""
    what, own = type(module).__name__, module.state_dict()
    given = fitted.state
    wrong = [key for key, value in given.items() if key in own and value.shape != own[key].shape]
    if wrong:
        shapes = [f"{key} is {tuple(given[key].shape)}, not {tuple(own[key].shape)}" for key in wrong[:FEW]]
        raise InputError(
            f"{name} does not fit {what}: {'; '.join(shapes)}{_more(wrong)}; build the module as it "
            "was for this checkpoint"
        )
    left = [key for key, value in own.items() if key not in given and value.is_floating_point()]
    if left:
        raise InputError(
            f"{name} holds no {left[0]}, which changes in training as the weights do ({len(left)} such buffers), so "
            "the model would be half of one point and half of another; save the whole module.state_dict()"
        )
    _require_finite(given, name)
    state = Checkpoint({key: given.get(key, value).detach() for key, value in own.items()})
    state.notes = fitted.notes()
    return state


def _require_finite(state: State, name: str) -> None:
    bad = {key: n for key, value in state.items() if (n := _count_not_finite(value))}
    if bad:
        key, n = next(iter(bad.items()))
        others = f", and so do {len(bad) - 1} more entries" if len(bad) > 1 else ""
        raise InputError(
            f"{name} holds NaN or infinite weights: {n} of the {state[key].numel()} numbers of {key}{others}; training "
            "diverged before it was saved, so take an earlier one"
        )


def _count_not_finite(value: Tensor) -> int:
    return value.numel() - int(torch.isfinite(value).sum()) if value.is_floating_point() else 0


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - FEW} more" if len(names) > FEW else ""


# --- several --------------------------------------------------------------------------------------------------------


def _is_labelled(sources: Mapping[Any, Any]) -> bool:
    """Whether a mapping holds checkpoints by label, and is not a state_dict, nor what training code saved."""
    if not sources or any(str(key).lower() in (*CONTAINERS, *BESIDE) for key in sources):
        return not sources
    return all(isinstance(value, Mapping | nn.Module | str | os.PathLike) for value in sources.values())


def _is_glob(text: str) -> bool:
    return bool(re.search(r"[*?\[]", text)) and not Path(text).expanduser().exists()


def _files(path: Path) -> list[Path]:
    """The files of a folder or of a pattern in natural order; a plain path is itself."""
    if path.is_dir():
        found = [one for one in path.iterdir() if one.is_file() and one.suffix.lower() in SUFFIXES]
        if not found:
            raise DataError(f"{path} holds no checkpoint; its files must end in {', '.join(SUFFIXES)}")
    elif _is_glob(str(path)):
        found = [Path(one) for one in glob.glob(str(path), recursive=True) if Path(one).is_file()]
        if not found:
            raise DataError(f"no file matches {str(path)!r}; check the pattern")
    else:
        return [path]
    return sorted(found, key=natural_order)


def natural_order(path: Path) -> tuple[tuple[Any, ...], str]:
    """A key that sorts numbers inside names by their value."""
    parts = re.split(r"(\d+)", str(path))
    return tuple(int(part) if part.isdigit() else part for part in parts), str(path)


def _labelled(sources: Sequence[Source]) -> list[tuple[str, Source]]:
    """A short label for each: a file's name without its ending, with its folder where names would be the same."""
    paths = [Path(source) if isinstance(source, str | os.PathLike) else None for source in sources]
    there = [path for path in paths if path is not None]
    full = [str(path.with_suffix("")) for path in there]
    shared = os.path.commonpath([os.path.dirname(os.path.abspath(one)) for one in full]) if full else ""
    for make in (
        lambda path: path.stem,
        lambda path: os.path.relpath(os.path.abspath(path.with_suffix("")), shared),
        lambda path: os.path.relpath(os.path.abspath(path), shared),
    ):
        labels = [f"checkpoint {k}" if path is None else make(path) for k, path in enumerate(paths)]
        if len({*labels}) == len(labels):
            break
    else:
        twice = next(label for label in labels if labels.count(label) > 1)
        raise InputError(f"{twice} is given twice; name every checkpoint once")
    return list(zip(labels, sources, strict=True))
