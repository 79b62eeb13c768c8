"""What a user gives to `diagnose`, read and checked before any work."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kontrast.checks import in_words, require_same_length
from kontrast.data import Dataset, default_view, load
from kontrast.diagnosis.inputs import (
    Encoder,
    Select,
    Source,
    State,
    Views,
    has_statistics,
    read_checkpoints,
    read_views,
    recalibrated,
    statistics_in_words,
    with_statistics,
)
from kontrast.diagnosis.inputs.samples import as_samples
from kontrast.diagnosis.settings import Settings
from kontrast.diagnosis.subject import Labelled, Loss, Subject
from kontrast.errors import InputError
from kontrast.losses import LossModule, nt_xent, view_loss_from
from kontrast.nets import Build, build_network, takes_width

Checkpoints = Source | Sequence[Source]
STAND_IN_TEMPERATURE = 0.5
COUNTED_ON = 128  # samples, on which running statistics are counted


@dataclass(frozen=True, eq=False)
class Given:
    """What was given: the model and its checkpoints, samples, views and loss, by the arguments of `diagnose`."""

    net: nn.Module | Build
    start: Checkpoints | None
    end: Checkpoints | None
    data: Any
    labels: Any
    test: Any
    views: Any
    loss: Loss | str | None
    features: str | None
    head: str | None
    select: Select | None

    @property
    def build(self) -> Build | None:
        """The function that makes the model, where one was given in its place."""
        return None if isinstance(self.net, nn.Module) else self.net


def read(given: Given, settings: Settings) -> tuple[Subject, list[str]]:
    """The subject of a diagnosis, and what was done to have it, in sentences."""
    loss, words, is_own = _loss(given.loss, settings.temperature)
    x, y = _samples(given.data, given.labels)
    seen = _views(given.views, x, settings)
    clean = seen.samples if seen.samples is not None else seen.views[:, 0]
    if x is None and y is None and seen.labels is not None:
        x, y = clean, seen.labels
    module = given.net if isinstance(given.net, nn.Module) else _built(given.net, settings, clean[:1])
    encoder = Encoder.of(module, clean, features=given.features, head=given.head, select=given.select)
    encoder.module.to(settings.device)
    states = _states(encoder, given)
    labelled = None if y is None or x is None else _labelled(x, y, given.test, settings)
    if labelled is None and given.test is not None:
        raise InputError("test has labels, but the samples have none to learn from; pass labels=")
    # Contiguous: images whose channels lie last in memory take kernels three times the time.
    clean = encoder.prepared(clean).contiguous()
    seen = replace(seen, views=encoder.prepared(seen.views).contiguous())
    held = [state for _, state in states]
    counted = clean[:COUNTED_ON]
    restated = with_statistics(encoder, held, settings.statistics, counted)
    subject = Subject(
        encoder,
        tuple((label, state) for (label, _), state in zip(states, restated, strict=True)),
        clean,
        seen,
        held[0] if has_statistics(encoder.module) and settings.statistics == "data" else None,
        labelled,
        _labels_of(seen, y),
        loss,
        is_own,
        words,
        lambda state: (
            recalibrated(encoder, state, counted)
            if settings.statistics == "data"
            else with_statistics(encoder, [held[0], state], settings.statistics, counted)[1]
        ),
        settings,
    )
    return subject, _notes(subject, states, given)


def _notes(subject: Subject, states: list[tuple[str, State]], given: Given) -> list[str]:
    encoder, settings = subject.encoder, subject.settings
    notes = [*encoder.notes, *subject.views.notes]
    notes += [f"{label}: {note}" for label, state in states for note in getattr(state, "notes", ())]
    if given.start is None:
        notes.append(f"the start was built again from seed {settings.seed}")
    if statistics := statistics_in_words(encoder.module, settings.statistics, min(COUNTED_ON, len(subject.x))):
        notes.append(statistics)
    if not subject.loss_given:
        notes.append(f"no loss was given, so {subject.loss_words} stands in where one is needed")
    d = encoder.embed(subject.start, subject.x[:2]).shape[1]
    if (q := settings.directions(d)) is not None:
        notes.append(f"tangent kernels are those of {q} random directions of the {d} outputs, with their error")
    return notes


# --- samples, labels, views -----------------------------------------------------------------------------------------


def _samples(data: Any, labels: Any) -> tuple[Tensor | None, Tensor | None]:
    """Samples and class numbers; a name or path is loaded."""
    if isinstance(data, str | os.PathLike):
        data = load(data, split="all")
    if isinstance(data, Dataset):
        x: Tensor | None = data.x
        y = data.y if labels is None else class_numbers(labels, "labels")
    elif data is None:
        if labels is not None:
            raise InputError("labels belong to samples, and no data was given; pass data=, the samples they are of")
        return None, None
    else:
        x, y = as_samples("data", data), None if labels is None else class_numbers(labels, "labels")
    assert x is not None
    if len(x) < 2:
        raise InputError(f"data must be two samples or more, got {len(x)}; one sample has nothing to differ from")
    if y is not None:
        require_same_length(data=x, labels=y)
    return x, y


def class_numbers(given: Any, name: str) -> Tensor:
    """Class labels, whole numbers or words, as int64 numbers (n,)."""
    labels = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    if labels.ndim != 1 or labels.dtype.kind not in "biuUSO":
        raise InputError(f"{name} must be class labels (n,), whole numbers or words, got {labels.dtype} {labels.shape}")
    if labels.dtype.kind in "biu":
        return torch.from_numpy(labels.astype(np.int64))
    return torch.from_numpy(np.unique(labels.astype(str), return_inverse=True)[1].astype(np.int64))


def _views(views: Any, x: Tensor | None, settings: Settings) -> Views:
    if isinstance(views, str) and views == "auto":
        if x is None:
            raise InputError(
                "views='auto' makes views of samples, and none were given; pass data=, or views of your own"
            )
        if not x.is_floating_point() or x.ndim not in (2, 4):
            raise InputError(
                f"views='auto' knows images (n, c, h, w) and rows (n, d) of floats, got {in_words(x)}; pass views="
            )
        views = default_view(Dataset(x, None, "data"))
    return read_views(views, x, n_views=settings.n_views, most=settings.n_samples, seed=settings.seed)


def _labels_of(seen: Views, y: Tensor | None) -> Tensor | None:
    """The labels of the samples whose views these are; None of views of samples that are not those of data."""
    if seen.samples is None:
        return seen.labels
    return y if y is None or seen.rows is None else y[seen.rows.cpu()]


def _labelled(x: Tensor, y: Tensor, test: Any, settings: Settings) -> Labelled:
    """Labelled samples for probes, at most as many as asked for; refuses labels that no probe can learn from."""
    generator = torch.Generator().manual_seed(settings.seed)
    classes, counts = torch.unique(y, return_counts=True)
    if int((counts > 1).sum()) < 2:
        raise InputError(
            f"labels must be of two classes or more with two samples each, got {len(classes)} classes among {len(y)} "
            "samples; leave labels out to do without"
        )
    rows = torch.randperm(len(y), generator=generator)[: settings.n_labelled]
    if test is None:
        return Labelled(x[rows], y[rows])
    given = (test.x, test.y) if isinstance(test, Dataset) else test
    if not isinstance(given, tuple | list) or len(given) != 2 or given[1] is None:
        raise InputError(f"test must be samples and their labels, (x_test, y_test), got {in_words(test)}")
    test_x, test_y = as_samples("test", given[0]), class_numbers(given[1], "the labels of test")
    require_same_length(test=test_x, its_labels=test_y)
    if test_x.shape[1:] != x.shape[1:]:
        raise InputError(f"test has samples of shape {tuple(test_x.shape[1:])}, but data of {tuple(x.shape[1:])}")
    kept = torch.randperm(len(test_y), generator=generator)[: settings.n_labelled]
    return Labelled(x[rows], y[rows], test_x[kept], test_y[kept])


# --- the model and its checkpoints ----------------------------------------------------------------------------------


def _built(build: Build, settings: Settings, sample: Tensor) -> nn.Module:
    if not callable(build):
        raise InputError(f"net must be an nn.Module or a function that builds one, got {in_words(build)}")
    width = settings.width
    if width is None and takes_width(build):
        raise InputError("net is build(width, generator); pass width=, that of the model whose checkpoints these are")
    generator = torch.Generator().manual_seed(settings.seed)
    return build_network(build, width, generator, sample.float() if sample.is_floating_point() else sample)


def _states(encoder: Encoder, given: Given) -> list[tuple[str, State]]:
    """The checkpoints by unique labels, the start first."""
    own = {name: value.detach().clone() for name, value in encoder.module.state_dict().items()}
    states: list[tuple[str, State]] = []
    if given.start is not None:
        if given.end is None and _is_live(given.start, given.net):
            raise InputError(
                "start shares its memory with the module, so it changed as the module was trained; keep a copy before "
                "training: start = copy.deepcopy(net.state_dict())"
            )
        states += read_checkpoints(given.start, encoder.module, name="start")
    elif given.build is not None:
        states.append(("start", own))
    else:
        raise InputError(
            "start is missing, the weights before training; pass a state_dict that was kept, a file, or a function "
            "build(generator) in place of the module, which makes them again from the seed"
        )
    if given.end is not None:
        states += read_checkpoints(given.end, encoder.module, name="end")
    elif len(states) < 2:
        if given.build is not None:
            raise InputError("end is missing, the weights after training; pass a state_dict, a file or a list of them")
        states.append(("now", own))
    seen: dict[str, int] = {}
    for k, (label, state) in enumerate(states):
        seen[label] = seen.get(label, 0) + 1
        states[k] = (label if seen[label] == 1 else f"{label} ({seen[label]})", state)
    return states


def _is_live(start: Any, net: Any) -> bool:
    """Whether a state_dict is not a copy but the module's own tensors."""
    if not isinstance(start, Mapping) or not isinstance(net, nn.Module):
        return False
    held = {p.data_ptr() for p in net.parameters() if p.numel()}
    return any(isinstance(value, Tensor) and value.numel() and value.data_ptr() in held for value in start.values())


def _loss(loss: Loss | str | None, temperature: float | None) -> tuple[Loss, str, bool]:
    """The loss of two views, its words, and whether it was given."""
    if loss is None:
        stand_in = LossModule(nt_xent, temperature=STAND_IN_TEMPERATURE)
        return stand_in, f"NT-Xent at temperature {STAND_IN_TEMPERATURE:g}", False
    if isinstance(loss, str):
        named = view_loss_from(loss, temperature=temperature)
        return named, named.words, True
    if not callable(loss):
        raise InputError(f"loss must be a function of two views, or a name such as 'nt_xent', got {in_words(loss)}")
    return loss, str(getattr(loss, "words", "") or getattr(loss, "__name__", "") or type(loss).__name__), True
