"""`diagnose`: a model, its checkpoints and samples in, a `Diagnosis` out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import torch
import xarray as xr
from torch import nn

from kontrast.checks import require_whole
from kontrast.diagnosis import buys, collapse, labels_needed, laziness, pca_of_start, views_and_loss, widths
from kontrast.diagnosis.blame import OF_THE_LOSS
from kontrast.diagnosis.embeddings import TWINS, Sources
from kontrast.diagnosis.inputs import Select
from kontrast.diagnosis.quantities import BOUNDS
from kontrast.diagnosis.reading import Checkpoints, Given, read
from kontrast.diagnosis.result import Diagnosis
from kontrast.diagnosis.settings import Limits, Settings
from kontrast.diagnosis.subject import Loss, Subject
from kontrast.errors import InputError
from kontrast.nets import Build, build_network, takes_width
from kontrast.progress import Advance, progress_bar

FORMAT = 1  # of the stored result


def diagnose(
    net: nn.Module | Build,
    start: Checkpoints | None = None,
    end: Checkpoints | None = None,
    *,
    data: Any = None,
    labels: Any = None,
    test: Any = None,
    views: Any = "auto",
    loss: Loss | str | None = None,
    features: str | None = None,
    head: str | None = None,
    select: Select | None = None,
    width_sweep: Sequence[int] = (),
    limits: Limits | None = None,
    name: str = "",
    progress: bool | Advance = False,
    **settings: Any,
) -> Diagnosis:
    """What a model is doing: lazy or learning, collapsed or not, and whether its training buys anything.

    The module is copied, put in eval mode, and never changed. `print` the result, or look at its `verdict`, `table`,
    `plot()` and `to_html()`.

    Args:
        net: the encoder, any `nn.Module` that gives each sample an output of its own; or a function `build(generator)`
            or `build(width, generator)` that makes it.
        start: the weights before training: a `state_dict`, or a file of one; or several checkpoints, the start first,
            as a list, a folder or a pattern such as "runs/epoch_*.pt". None is what `build` makes from the seed.
        end: the weights after training, or several checkpoints. None is what `net` holds now.
        data: samples (n, …) as the model takes them: a tensor, an array, a `Dataset`, or a name or path as in `load`.
            None takes the first views.
        labels: class labels of the samples. None are those of the data, if it has any.
        test: other samples with labels, to test probes on. None tests on some of the samples themselves.
        views: a text such as "crop+flip", a transform of a sample or of a batch, two tensors, or a loader of pairs.
            "auto" is crops of images, noise for rows.
        loss: of two views: a function, or a name of `losses.VIEW_LOSSES`. None is NT-Xent, which stands in.
        features: the submodule whose outputs probes judge, such as "backbone". None is the embedding itself, or what
            enters `head`.
        head: the submodule on top of the features, such as "projector".
        select: which part of what the model returns is the embedding: a name, a number or a function.
        width_sweep: widths that are built and trained for a moment, to tell how wide the model must be for a kernel
            that stays; for `build(width, generator)`.
        limits: where words change.
        name: what the page calls the model.
        progress: show a bar, or a function of the parts done and the parts in all.
        **settings: fields of `Settings`, such as n_samples, n_points, statistics, outputs, temperature, device, seed.
    """
    chosen, bounds = Settings(**_known(settings)), limits or Limits()
    given = Given(net, start, end, data, labels, test, views, loss, features, head, select)
    sweep = _checked_sweep(width_sweep, given.build)
    subject, notes = read(given, chosen)
    with progress_bar("diagnosing", progress) as advance:
        counter = _Counter(advance)
        found, missing = _measured(subject, counter, sweep, given)
        counter.finish()
    found.attrs |= {
        "format": FORMAT,
        "kind": "diagnosis",
        "name": name or _name_of(net),
        "n_samples": len(subject.x),
        "n_points": min(chosen.n_points, len(subject.x)),
        "n_parameters": sum(p.numel() for p in subject.encoder.parameters(subject.start).values()),
        "features": subject.encoder.features,
        "loss_given": int(subject.loss_given),
        "loss": subject.loss_words,
        "views": subject.views.words,
        "settings": json.dumps(asdict(chosen)),
        "notes": json.dumps(notes, ensure_ascii=False),
        "missing": json.dumps(missing, ensure_ascii=False),
    }
    return Diagnosis(found, bounds)


def _known(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    known = [field.name for field in fields(Settings)]
    for name in settings:
        if name not in known:
            raise InputError(f"diagnose has no argument {name!r}; beside its own it takes {', '.join(known)}")
    return settings


def _name_of(net: nn.Module | Build) -> str:
    return type(net).__name__ if isinstance(net, nn.Module) else getattr(net, "__qualname__", type(net).__name__)


def _checked_sweep(given: Sequence[int], build: Build | None) -> list[int]:
    swept = sorted({require_whole("each width of width_sweep", width) for width in given})
    if swept and (build is None or not takes_width(build)):
        raise InputError("width_sweep needs a function build(width, generator) in place of the module")
    return swept


class _Counter:
    """Parts done, of a number that grows as parts are announced."""

    def __init__(self, advance: Advance) -> None:
        self._advance, self._done, self._all = advance, 0, 0

    def announce(self, n: int) -> None:
        """Expect so many parts more."""
        self._all += n

    def __call__(self) -> None:
        """Count one more part."""
        self._done += 1
        self._advance(self._done, max(self._done, self._all))

    def finish(self) -> None:
        """Nothing more comes: not every part that was announced is in every diagnosis."""
        if self._done < self._all:
            self._advance(self._all, self._all)


def _measured(subject: Subject, count: _Counter, sweep: list[int], given: Given) -> tuple[xr.Dataset, dict[str, str]]:
    """Every section's numbers in one dataset, and why some are missing."""
    count.announce(2 * len(subject.checkpoints) + len(TWINS) + len(sweep) + 1)
    seen = []
    for label, state in subject.checkpoints:
        seen.append(collapse.look(subject, label, state))
        count()
    sources = Sources(subject)
    parts = [
        laziness.measure(subject, seen, count),
        collapse.measure(subject, seen),
        views_and_loss.measure(subject, seen),
        pca_of_start.measure(subject),
        buys.measure(subject, seen, sources, count),
        labels_needed.measure(subject, sources),
    ]
    found = [part for part, _ in parts]
    missing = {name: reason for _, why in parts for name, reason in why.items()}
    if sweep:
        try:
            found.append(widths.measure(subject, _of_width(subject, given), sweep, given.select, count))
        except OF_THE_LOSS as error:  # of the loss or the builder at another width: the rest stands
            missing["width_drift"] = " ".join(str(error).split())
    attributes = {key: value for part in found for key, value in part.attrs.items()}
    whole = xr.merge(found, join="exact", compat="override", combine_attrs="override")
    return whole.assign_coords(bound=list(BOUNDS)).assign_attrs(attributes), missing


def _of_width(subject: Subject, given: Given) -> widths.Builder:
    build = given.build
    assert build is not None

    def of(width: int, seed: int) -> nn.Module:
        generator = torch.Generator().manual_seed(subject.settings.seed + seed)
        return build_network(build, width, generator, subject.x[:1].cpu())

    return of
