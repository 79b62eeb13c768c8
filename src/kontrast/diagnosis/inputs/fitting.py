"""Which tensors of a checkpoint are a module's: under which prefix its names fit, and what is missing or left over."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import nn

from kontrast.diagnosis.inputs.encoder import State

FEW = 3  # names that a message tells
# Words of copies that follow the trained weights: they come second where both fit.
FOLLOWERS = ("ema", "momentum", "target", "teacher", "_k", "key", "swa", "average")


@dataclass(frozen=True, eq=False)
class Fitted:
    """One reading of a checkpoint: its tensors under a module's own names, as far as they fit.

    Attributes:
        at: where in the source the mapping lies; empty for the source itself.
        prefix: what stands before the names.
        state: the tensors by the module's names.
        missing: parameters of the module that are not there.
        extra: names in the mapping that are not the module's.
        wrong: how many have another shape.
        others: other readings with every parameter.
    """

    at: str
    prefix: str
    state: State
    missing: tuple[str, ...]
    extra: tuple[str, ...]
    wrong: int
    others: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Where the weights are, for notes."""
        return f"{self.at}.{self.prefix}".strip(".") if self.at or self.prefix else "the top"

    def notes(self) -> tuple[str, ...]:
        """What of the checkpoint was not used."""
        said = []
        if self.extra:
            said.append(f"{len(self.extra)} entries outside the model were ignored ({some(self.extra)})")
        if self.others and (self.at or self.prefix):  # names that fit as they stand leave no doubt
            said.append(f"the weights at {self.place} were taken; those at {some(self.others)} fit as well")
        return tuple(said)


def best_fit(found: Sequence[tuple[str, State]], module: nn.Module) -> Fitted:
    """The reading with most of the module's parameters, then the fewest wrong shapes; averaged weights come last."""
    leads = dict.fromkeys(["", _lead(module)])  # a module that only wraps the one that was saved
    readings = [
        _reading(at, state, prefix, lead, module)
        for at, state in found
        for lead in leads
        for prefix in _prefixes(state, lead, module)
    ]
    best = min(readings, key=_rank)
    whole = [one.place for one in readings if not one.missing and not one.wrong and one.place != best.place]
    others = tuple(dict.fromkeys(whole)) if not best.missing else ()
    return Fitted(best.at, best.prefix, best.state, best.missing, best.extra, best.wrong, others)


def misfit(fitted: Fitted) -> str:
    """Which names are missing, which are extra, and which were meant."""
    missing, extra = fitted.missing, fitted.extra
    words = [f"it lacks {some(missing)}"]
    if extra:
        words.append(f"and holds {some(extra)}, which the module has not")
        close = difflib.get_close_matches(missing[0], extra, n=1, cutoff=0.5)
        words += [f"(did you mean {close[0]} as {missing[0]}?)"] if close else []
    return f"{' '.join(words)}; pass the state_dict() of a module built like this one"


def some(names: Iterable[str]) -> str:
    """The first few names."""
    names = list(names)
    return ", ".join(names[:FEW]) + (f" and {len(names) - FEW} more" if len(names) > FEW else "")


def _rank(one: Fitted) -> tuple[int, int, bool, int]:
    words = f"{one.at}.{one.prefix}".lower()
    return len(one.missing), one.wrong, any(word in words for word in FOLLOWERS), len(one.prefix)


def _reading(at: str, given: State, prefix: str, lead: str, module: nn.Module) -> Fitted:
    """The entries that are `prefix` and then one of the module's names without its `lead`."""
    plain = {_plain(name): value for name, value in given.items()}
    own = {_plain(name).removeprefix(lead): name for name in module.state_dict()}
    named = {name: value for name, value in plain.items() if name.startswith(prefix)}
    state = {own[short]: value for name, value in named.items() if (short := name[len(prefix) :]) in own}
    for names in _tied(module):  # safetensors keeps one name of a tied weight
        value = next((state[name] for name in names if name in state), None)
        state |= {} if value is None else dict.fromkeys(names, value)
    parameters = dict(module.named_parameters(remove_duplicate=False))
    missing = tuple(name for name in parameters if name not in state)
    extra = tuple(name for name in plain if name not in named or name[len(prefix) :] not in own)
    wrong = sum(name in state and state[name].shape != p.shape for name, p in parameters.items())
    return Fitted(at, prefix, state, missing, extra, wrong)


def _lead(module: nn.Module) -> str:
    """What all names of the module's parameters and buffers begin with, up to a dot."""
    tops = {name.partition(".")[0] for name in map(_plain, module.state_dict())}
    only = tops.pop()
    return (
        "" if tops or not any(name.startswith(f"{only}.") for name in map(_plain, module.state_dict())) else f"{only}."
    )


def _prefixes(given: State, lead: str, module: nn.Module) -> list[str]:
    """Every prefix under which some of the module's parameters are found; none first."""
    found = dict.fromkeys([""])
    own = [_plain(name).removeprefix(lead) for name, _ in module.named_parameters()]
    sought = dict.fromkeys([*own[:2], *own[len(own) // 2 :][:2], *own[-2:]])  # any few of them
    for name in map(_plain, given):
        for end in sought:
            if name.endswith("." + end):
                found.setdefault(name[: -len(end)])
    return list(found)


def _tied(module: nn.Module) -> list[tuple[str, ...]]:
    """The names of parameters that are one tensor under several names."""
    groups: dict[int, list[str]] = {}
    for name, p in module.named_parameters(remove_duplicate=False):
        groups.setdefault(id(p), []).append(name)
    return [tuple(names) for names in groups.values() if len(names) > 1]


def _plain(name: str) -> str:
    """A name without what torch.compile puts into it."""
    return name.replace("_orig_mod.", "")
