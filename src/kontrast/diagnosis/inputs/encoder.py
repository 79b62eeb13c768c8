"""A user's encoder as the diagnosis sees it: a pure function of a state and samples, layer by layer, in eval mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm

from kontrast.checks import require_finite, require_rows
from kontrast.diagnosis.inputs.copies import copied
from kontrast.diagnosis.inputs.layers import (
    EMBEDDING,
    Tap,
    as_rows,
    averaged_in_words,
    evenly,
    tapped,
    tensor_of,
    tensors_in,
    wanted_taps,
)
from kontrast.errors import InputError, KontrastError
from kontrast.nets import Select, failure_of, select_output

State = dict[str, Tensor]  # parameters and buffers by name, as module.state_dict() gives them

WITNESSES = 16  # samples whose outputs must be the same alone, in another order and again
ROUNDING = {torch.float64: 1e-8, torch.float32: 1e-3}  # by which two evaluations may differ, relative to the largest
MATH = [SDPBackend.MATH]  # attention by matrix products, which has derivatives of every order


@dataclass(frozen=True, eq=False)
class Encoder:
    """A module in eval mode with named layers; every method takes the state (a whole state_dict) it is evaluated at.

    Attributes:
        module: a copy without wrappers; the user's own module is never changed.
        layers: names of layers in the order in which they run; the last is "embedding", what the module returns.
        features: the layer that probes judge.
        notes: what was done to the model or the samples, in sentences.
        select: which tensor is the embedding, if the module returns several.
    """

    module: nn.Module
    layers: tuple[str, ...]
    features: str
    notes: tuple[str, ...]
    select: Select | None = None
    taps: tuple[Tap, ...] = ()

    @classmethod
    def of(
        cls,
        module: nn.Module,
        x: Tensor,
        *,
        features: str | None = None,
        head: str | None = None,
        select: Select | None = None,
    ) -> Encoder:
        """The encoder of a module, tried on samples.

        Args:
            module: any module that gives each sample an output of its own.
            x: samples (n, …), as the module takes them.
            features: the submodule whose output probes judge, such as "backbone"; without it, what enters `head`; and
                without both, the embedding.
            head: the submodule on top, such as "projector", whose linear layers are told apart.
            select: the embedding in what the module returns: a name, a number or a function.
        """
        require_rows("data", x)
        own, notes = copied(module)
        encoder = cls(own, (EMBEDDING,), EMBEDDING, tuple(notes), select)
        few = x[torch.linspace(0, len(x) - 1, min(len(x), WITNESSES)).round().long().to(x.device)]
        with (
            torch.no_grad(),
            torch.random.fork_rng(devices=[]),
        ):  # what is random in it leaves the caller's stream alone
            encoder = _materialized(encoder, few)
            taps, judged = wanted_taps(encoder.module, features, head)
            encoder = _with_layers(encoder, few, taps, judged)
            _refuse_dependence(encoder, few)
        said = _cast_in_words(x, encoder.like)
        return replace(encoder, notes=(*encoder.notes, *[said] * bool(said)))

    @property
    def name(self) -> str:
        """What messages call it."""
        return type(self.module).__name__

    @property
    def like(self) -> Tensor:
        """A tensor of the model's number type and device."""
        return next(self.module.parameters())

    def prepared(self, x: Tensor) -> Tensor:
        """Samples on the model's device and in its number type; whole numbers, such as tokens, stay what they are."""
        return x.to(self.like.device, self.like.dtype if x.is_floating_point() else x.dtype)

    def parameters(self, state: Mapping[str, Tensor]) -> State:
        """The parameters of a state, detached, on the model's device and in its number type."""
        own = dict(self.module.named_parameters())
        if missing := [name for name in own if name not in state]:
            raise InputError(f"the state holds no {missing[0]}; pass a whole state_dict, as read_checkpoint gives it")
        return {name: _like(state[name], p) for name, p in own.items()}

    def buffers(self, state: Mapping[str, Tensor]) -> State:
        """The buffers of a state; those that no state_dict holds are the model's own."""
        return {name: _like(state.get(name, b), b) for name, b in self.module.named_buffers()}

    def output(self, result: Any) -> Tensor:
        """The embedding (n, d) in what the module returns."""
        return as_rows(select_output(result, self.select, self.module, argument="select"), None, self.name)

    def function(self, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """The embedding (n, d) as a pure function, with derivatives of every kind and order."""
        with _differentiable(self.module):
            made = self.output(_called(self.module, {**parameters, **buffers}, self.prepared(x)))
        if len(made) != len(x):
            raise InputError(f"{self.name} gives {len(made)} rows for {len(x)} samples; the first axis must be samples")
        return made

    def embed(self, state: Mapping[str, Tensor], x: Tensor, *, batch_size: int = 256) -> Tensor:
        """The embedding (n, d) alone, without gradients."""
        return replace(self, taps=(), layers=(EMBEDDING,)).outputs(state, x, batch_size=batch_size)[EMBEDDING]

    def outputs(self, state: Mapping[str, Tensor], x: Tensor, *, batch_size: int = 256) -> dict[str, Tensor]:
        """Every layer as rows (n, d) in the order of `layers`, without gradients; refuses NaN and infinite numbers."""
        whole = {**self.parameters(state), **self.buffers(state)}
        found: dict[str, list[Tensor]] = {layer: [] for layer in self.layers}
        for rows in torch.split(x, batch_size):
            for layer, made in self._batch(whole, rows).items():
                found[layer].append(made)
        return {layer: torch.cat(parts) for layer, parts in found.items()}

    def _batch(self, whole: State, x: Tensor) -> dict[str, Tensor]:
        """The layers of one batch; of a submodule that runs several times, its last output."""
        seen: dict[str, Tensor] = {}

        def keep(tap: Tap, value: Any) -> None:
            seen[tap.layer] = as_rows(tensor_of(value, tap.layer), len(x), tap.layer).clone()

        with torch.no_grad(), tapped(self.module, self.taps, keep), _told_of(self, x):
            seen[EMBEDDING] = self.output(_called(self.module, whole, self.prepared(x)))
        made = {layer: seen[layer] for layer in self.layers}
        if not all(bool(torch.isfinite(rows).all()) for rows in made.values()):
            raise _not_finite(self, whole, x)
        return made


# --- layers -----------------------------------------------------------------------------------------------------------


def _materialized(encoder: Encoder, few: Tensor) -> Encoder:
    """The encoder with lazy layers made, by a look at samples and a fixed seed."""
    tensors = (*encoder.module.parameters(), *encoder.module.buffers())
    if not any(nn.parameter.is_lazy(tensor) for tensor in tensors):
        return encoder
    torch.manual_seed(0)
    with _told_of(encoder, few):
        encoder.module(encoder.prepared(few))
    for name, part in encoder.module.named_modules():
        if any(nn.parameter.is_lazy(p) for p in part.parameters(recurse=False)):
            raise InputError(
                f"{encoder.name} has a lazy layer {name!r} that does not run, so it has no weights; take it out"
            )
    return replace(encoder, notes=(*encoder.notes, "lazy layers got their shapes from the samples"))


def _with_layers(encoder: Encoder, few: Tensor, taps: list[Tap], judged: Tap | None) -> Encoder:
    """The encoder with the layers that do run, in their order; those that are no rows of samples are left out."""
    shapes: dict[Tap, tuple[int, ...]] = {}
    times: dict[Tap, int] = {}

    def keep(tap: Tap, value: Any) -> None:
        if tap == judged:
            value = tensor_of(value, tap.layer)
            as_rows(value, len(few), tap.layer)
        shapes[tap], times[tap] = tuple(value.shape), times.get(tap, 0) + 1

    state = encoder.module.state_dict()
    whole = {**encoder.parameters(state), **encoder.buffers(state)}
    with tapped(encoder.module, taps, keep), _told_of(encoder, few):
        result = _called(encoder.module, whole, encoder.prepared(few))
        chosen = select_output(result, encoder.select, encoder.module, argument="select")
        as_rows(chosen, len(few), encoder.name)
    if judged is not None and judged not in shapes:
        argument = "head" if judged.enters else "features"
        raise InputError(
            f"{argument}={judged.at!r} does not run when {encoder.name} is called; name a submodule that its forward "
            "pass calls"
        )
    ran = [tap for tap in shapes if tap == judged or (len(shapes[tap]) > 1 and shapes[tap][0] == len(few))]
    tried = replace(encoder, taps=tuple(ran), layers=(*(tap.layer for tap in ran), EMBEDDING))
    made = tried.outputs(state, few)
    of_head = [tap for tap in ran if tap != judged and not _equal(made[tap.layer], made[EMBEDDING])]
    kept = {*evenly(of_head), judged}
    ran = [tap for tap in ran if tap in kept]
    notes = [averaged_in_words(tap.layer, shapes[tap]) for tap in ran]
    notes += [averaged_in_words("the embedding", tuple(chosen.shape))]
    notes += [f"{tap.layer} runs {times[tap]} times; its last output was diagnosed" for tap in ran if times[tap] > 1]
    return replace(
        encoder,
        layers=(*(tap.layer for tap in ran), EMBEDDING),
        features=EMBEDDING if judged is None else judged.layer,
        notes=(*encoder.notes, *filter(None, notes)),
        taps=tuple(ran),
    )


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)


# --- evaluation -----------------------------------------------------------------------------------------------------


def _called(module: nn.Module, whole: Mapping[str, Tensor], x: Tensor) -> Any:
    """What the module returns; buffers and samples are copies, since a layer may write to them."""
    buffers = {name: whole[name].clone() for name, _ in module.named_buffers()}
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it runs past the layers inside, and has no derivatives
    try:
        return functional_call(module, {**whole, **buffers}, (x.clone(),))
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@contextmanager
def _differentiable(module: nn.Module) -> Iterator[None]:
    """Without fused code that lacks derivatives: of attention, and of cuDNN's recurrent layers."""
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(MATH))
        if any(isinstance(part, nn.RNNBase) for part in module.modules()):
            stack.callback(setattr, torch.backends.cudnn, "enabled", torch.backends.cudnn.enabled)
            torch.backends.cudnn.enabled = False
        yield


def _like(value: Tensor, own: Tensor) -> Tensor:
    return value.detach().to(own.device, own.dtype if own.is_floating_point() else value.dtype)


@contextmanager
def _told_of(encoder: Encoder, x: Tensor) -> Iterator[None]:
    """Errors of the user's own forward pass, in one line."""
    try:
        yield
    except KontrastError:
        raise
    except Exception as error:
        hint = "; they are whole numbers, so convert them with x.float() if its first layer takes floats"
        raise InputError(
            f"{encoder.name} cannot be evaluated on samples of shape {tuple(x.shape[1:])} and type {x.dtype}: "
            f"{failure_of(error)}{'' if x.is_floating_point() else hint}"
        ) from error


def _cast_in_words(x: Tensor, like: Tensor) -> str:
    if not x.is_floating_point() or x.dtype == like.dtype:
        return ""
    return f"samples of {x.dtype} were cast to {like.dtype}, the model's number type"


# --- refusals -------------------------------------------------------------------------------------------------------


def _refuse_dependence(encoder: Encoder, few: Tensor) -> None:
    """Refuse a module whose output for a sample depends on the other samples, or changes from pass to pass."""
    state = encoder.module.state_dict()
    first, again = encoder.outputs(state, few), encoder.outputs(state, few)
    half = (len(few) + 1) // 2
    apart = [encoder.outputs(state, part.flip(0)) for part in torch.split(few, half)]
    for layer, rows in first.items():
        allowed = ROUNDING.get(rows.dtype, ROUNDING[torch.float32]) * float(rows.abs().max())
        if float((again[layer] - rows).abs().max()) > allowed:
            raise InputError(
                f"{encoder.name} gives other outputs at every pass, in eval mode too; take out what is random in its "
                "forward pass, such as F.dropout without training=self.training"
            )
        alone = torch.cat([part[layer].flip(0) for part in apart])
        if (worst := float((alone - rows).abs().max())) > allowed:
            raise InputError(
                f"{encoder.name} gives a sample another {layer} when other samples are evaluated with it (they differ "
                f"by {worst:.1e}), in eval mode too{_coupling(encoder.module)}; a diagnosis needs outputs of each "
                "sample alone"
            )


def _coupling(module: nn.Module) -> str:
    """Which part is likely to couple samples."""
    for name, part in module.named_modules():
        if isinstance(part, _BatchNorm) and part.running_mean is None:
            return f": {name} is a {type(part).__name__} without running statistics (track_running_stats=False)"
        if isinstance(part, nn.MultiheadAttention) and not part.batch_first:
            return f": {name} attends along the first axis, so build it with batch_first=True if samples lie there"
    return ""


def _not_finite(encoder: Encoder, whole: Mapping[str, Tensor], x: Tensor) -> InputError:
    """The refusal of outputs that are not finite: which layer made the first of them."""
    if x.is_floating_point():
        require_finite("the data", x, "remove or replace these samples")
    bad: list[str] = []

    def keep(tap: Tap, value: Any) -> None:
        if not all(bool(torch.isfinite(part).all()) for part in tensors_in(value)):
            bad.append(tap.layer)

    names = [name for name, _ in encoder.module.named_modules()]
    with torch.no_grad(), tapped(encoder.module, [Tap(name, name) for name in names], keep):
        _called(encoder.module, whole, encoder.prepared(x))
    where = next(filter(None, bad), encoder.name)
    return InputError(
        f"{where} is the first layer of {encoder.name} that gives NaN or infinite numbers; look at its weights, or "
        "scale the samples"
    )
