"""A spec checked before any long work, and completed by what depends on the data."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np
import torch

from kontrast.checks import (
    as_whole,
    is_number,
    require_between,
    require_choice,
    require_positive,
    require_type,
    require_whole,
    resolve_device,
    resolve_dtype,
)
from kontrast.data import (
    Affine,
    Dataset,
    RelativeNoise,
    View,
    data_digest,
    default_view,
    fit_view,
    parse_view,
    require_contrast,
)
from kontrast.dynamics import OPTIMIZERS
from kontrast.errors import InputError
from kontrast.losses import SIMILARITIES, VIEW_LOSSES, link_from, similarity_from, view_loss_from
from kontrast.memory import total_bytes
from kontrast.nets import activation_from, builder_from, check_shape, takes_width
from kontrast.study.arrival import plan_pca
from kontrast.study.draws import load_samples
from kontrast.study.labels import label_problem
from kontrast.study.map.networks import check_network, model_digest
from kontrast.study.map.split import split_for
from kontrast.study.probes import probe_problem
from kontrast.study.spec import StudySpec

PROBE_SAMPLES = 500  # that train a probe, and as many that test it: 0.1 s for raw pixels
BATCH = 64  # samples of a mini-batch
ROUNDING = 1e-9  # of a setting at the edge of the map
FEWEST = 6  # samples of a map: 2 to contrast, to choose by and to test on
N_STEP_COUNTS = 5  # columns of the map of a network without a width: all steps, half of them, …
LARGEST = 10**8  # of any count: beyond it a typing error is likelier than a plan


def prepare(spec: StudySpec) -> StudySpec:
    """Check every field before any long work, and fill in what depends on the data."""
    spec = _checked(spec)
    raw = load_samples(dataclasses.replace(spec, standardize=False))
    require_contrast(raw, spec.data)
    if spec.standardize is None:
        spec = dataclasses.replace(spec, standardize=raw.is_table)
    dataset = load_samples(spec)
    if spec.n_samples > len(dataset) and not spec.without_sections:
        raise InputError(
            f"asked for {spec.n_samples} samples but {spec.data!r} has {len(dataset)}; ask for at most {len(dataset)}"
        )
    _check_memory(spec, dataset.rows.shape[1])
    if spec.label_curves and (problem := label_problem(dataset.y)):
        raise InputError(f"label_curves needs labels but {spec.data!r} {problem}; leave label_curves out")
    view = parse_view(spec.views) if spec.views is not None else _default_view(spec, dataset)
    # refuses a crop of tabular rows now, not in a worker
    fit_view(view, [dataset.x])(dataset.x[:1], torch.Generator().manual_seed(0))
    spec = dataclasses.replace(spec, views=str(view))
    if spec.losses:
        spec = _prepared_map(spec, dataset)
    spec = dataclasses.replace(
        spec,
        learning_rates=spec.learning_rates or _automatic_rates(spec, dataset),
        data_digest=data_digest(raw),
        n_ntk_points=min(spec.n_ntk_points, spec.n_samples),
        n_probe_samples=_probe_samples(spec, dataset),
    )
    return spec if spec.without_sections else dataclasses.replace(spec, **plan_pca(spec, dataset))


def _prepared_map(spec: StudySpec, dataset: Dataset) -> StudySpec:
    """Check what the map needs of the data, and try a network of the user's own."""
    for name in spec.losses:
        if view_loss_from(name, link=spec.link).needs_labels and dataset.y is None:
            raise InputError(f"the loss {name!r} needs labels and {spec.data!r} has none; choose another loss")
    if len(dataset) < FEWEST:
        raise InputError(
            f"the map needs {FEWEST} samples, to train, to choose and to test on, and {spec.data!r} has "
            f"{len(dataset)}; give more, or losses='none' for a study without a map"
        )
    there = len(split_for(spec, dataset, spec.seed).contrasted)
    if spec.map_samples is not None and spec.map_samples > there:
        raise InputError(
            f"asked for {spec.map_samples} map_samples but {spec.data!r} leaves {there} beside those held out; ask for "
            "fewer"
        )
    if spec.batch_size is not None and spec.batch_size > there:
        raise InputError(
            f"a batch_size of {spec.batch_size} needs as many samples, and {there} are there; take a smaller one"
        )
    spec = dataclasses.replace(spec, batch_size=spec.batch_size or min(BATCH, there))
    if spec.model is not None and not takes_width(builder_from(spec.model)):
        steps = {round(spec.max_steps / 2**k) for k in range(N_STEP_COUNTS)}
        spec = dataclasses.replace(spec, has_width=False, widths=tuple(sorted(step for step in steps if step >= 8)))
    _check_setting(spec)
    if spec.model is None:
        return spec
    return dataclasses.replace(spec, d_out=check_network(spec, dataset), model_digest=model_digest(spec, dataset))


def _check_setting(spec: StudySpec) -> None:
    """Refuse a setting that lies outside of the map."""
    if spec.setting is None:
        return
    sizes, rates = spec.widths, spec.rates_of(spec.losses[0])
    for value, there in zip(spec.setting, (sizes, rates), strict=True):
        if not min(there) * (1 - ROUNDING) <= value <= max(there) * (1 + ROUNDING):
            raise InputError(
                f"setting ({spec.setting[0]:g}, {spec.setting[1]:g}) lies outside of the map, whose "
                f"{'widths' if spec.has_width else 'steps'} are {', '.join(map(str, sizes))} and whose rates are "
                f"{', '.join(f'{rate:g}' for rate in rates)}; give widths and rates that reach it"
            )


def _default_view(spec: StudySpec, dataset: Dataset) -> View:
    if dataset.is_image:
        return Affine()
    return RelativeNoise() if dataset.is_table and not spec.standardize else default_view(dataset)


def _probe_samples(spec: StudySpec, dataset: Dataset) -> int:
    """The number of samples that train a probe, and test it: as asked for, or as many as the contrasted ones leave.

    Where more than half of the data is contrasted, it is a quarter of all samples, some of them contrasted.
    """
    size, asked = len(dataset), spec.n_probe_samples
    n = asked if asked is not None else min(PROBE_SAMPLES, max((size - spec.n_samples) // 2, size // 4))
    if n == 0:
        return 0
    problem = probe_problem(dataset.y, n)
    if problem and asked is not None:
        raise InputError(
            f"asked for {asked} probe samples but {spec.data!r} {problem}; leave n_probe_samples out, or give 0"
        )
    return 0 if problem else n


def _automatic_rates(spec: StudySpec, dataset: Dataset) -> tuple[float, ...]:
    scale = float(dataset.rows.double().pow(2).sum(1).mean())
    if not 1e-100 < scale < 1e100:  # where squares of squares still are numbers
        raise InputError(f"the samples of {spec.data!r} have a mean square norm of {scale:.3g}; scale them to about 1")
    return tuple(SIMILARITIES[similarity].learning_rate(scale) for similarity in spec.similarities)


def _checked(spec: StudySpec) -> StudySpec:
    """The spec in plain Python types, once every rule that needs no data holds."""
    require_type("data", spec.data, (str, os.PathLike))
    for name in ("split", "link", "activation", "parametrization", *(("views",) if spec.views is not None else ())):
        require_type(name, getattr(spec, name), str)
    for name in ("label_column", "x_key", "y_key"):
        require_type(name, getattr(spec, name), (str, type(None)))
    require_type("standardize", spec.standardize, (bool, type(None)))
    for name in ("full_batch", "label_curves"):
        require_type(name, getattr(spec, name), bool)
    similarities = _several("similarities", spec.similarities)
    similarities = StudySpec.similarities if similarities == ("both",) else similarities
    rates = None if spec.learning_rates is None else _several("learning_rates", spec.learning_rates)
    for rate in rates or ():
        require_positive(learning_rates=rate)
    spec = dataclasses.replace(
        spec,
        **_plain_map(spec),
        data=os.fspath(spec.data),
        similarities=similarities,
        learning_rates=rates and tuple(map(float, rates * len(similarities) if len(rates) == 1 else rates)),
        device=str(resolve_device(spec.device)),
        dtype=str(resolve_dtype(spec.dtype)).removeprefix("torch."),
        **_plain_numbers(spec),
    )
    _check_sections(spec)
    _check_loss(spec)
    activation_from(spec.activation)
    check_shape(1, min(spec.widths), spec.d_out, depth=spec.depth, parametrization=spec.parametrization)
    return spec


def _plain_map(spec: StudySpec) -> dict[str, Any]:
    """The map's fields in plain Python types."""
    losses = _several("losses", spec.losses)
    losses = () if losses == ("none",) else losses
    for name in losses:
        view_loss_from(name)
    if len(set(losses)) < len(losses):
        raise InputError(f"losses must be different ones of {', '.join(VIEW_LOSSES)}, got {list(losses)}")
    fields: dict[str, Any] = {"losses": losses}
    for name, count in (("rates", None), ("setting", 2)):
        if (given := getattr(spec, name)) is None:
            continue
        values = _several(name, given)
        for value in values:
            require_positive(**{name: value})
        if count is not None and len(values) != count:
            raise InputError(f"{name} must be a width and a rate, as in 512,3; got {list(values)}")
        fields[name] = tuple(map(float, values)) if name == "setting" else tuple(sorted(set(map(float, values))))
    require_choice("optimizer", spec.optimizer, OPTIMIZERS)
    require_between("momentum", spec.momentum, 0, 1)
    fields["momentum"] = float(spec.momentum)
    fields["max_steps"] = require_whole("max_steps", spec.max_steps, least=8, most=LARGEST)
    fields["seed"] = require_whole("seed", spec.seed, least=0, most=LARGEST)
    for name, least in (("batch_size", 2), ("map_samples", 4)):
        if getattr(spec, name) is not None:
            fields[name] = require_whole(name, getattr(spec, name), least=least, most=LARGEST)
    if spec.model is not None:
        require_type("model", spec.model, str)
    return fields


def _several(name: str, value: Any) -> tuple[Any, ...]:
    """One value, or several in a tuple, list or array, as a tuple."""
    if isinstance(value, str) or is_number(value):
        return (value,)
    require_type(name, value, (tuple, list, np.ndarray))
    return tuple(value)


def _plain_numbers(spec: StudySpec) -> dict[str, Any]:
    given = {name: getattr(spec, name) for name in ("temperature", "delta", "pca_learning_rate")}
    positive = {name: value for name, value in given.items() if value is not None}
    require_positive(**positive)  # also where this study's link has no use for them
    counts = ("n_positives", "d_out", "depth", "n_seeds", "n_steps", "n_ntk_points")
    whole: dict[str, Any] = {name: require_whole(name, getattr(spec, name), most=LARGEST) for name in counts}
    whole["n_samples"] = require_whole("n_samples", spec.n_samples, least=2, most=LARGEST)  # a negative is another one
    if spec.n_probe_samples is not None:
        whole["n_probe_samples"] = require_whole("n_probe_samples", spec.n_probe_samples, least=0, most=LARGEST)
    for name in ("pca_d_out", "pca_steps"):
        if getattr(spec, name) is not None:
            whole[name] = require_whole(name, getattr(spec, name), most=LARGEST)
    asked = _several("widths", spec.widths)
    widths = tuple(as_whole(width) or 0 for width in asked)
    if not widths or min(widths) < 1 or len(set(widths)) < len(widths):
        raise InputError(f"widths must be different whole numbers of at least 1, got {list(asked)}")
    whole["widths"] = widths
    if spec.image_shape is not None:
        shape = _several("image_shape", spec.image_shape)
        whole["image_shape"] = tuple(require_whole("image_shape", size) for size in shape)
    if spec.negatives != "all":
        whole["negatives"] = require_whole("negatives", spec.negatives, least=0, otherwise=", or 'all'")
        if whole["negatives"] >= whole["n_samples"]:
            raise InputError(
                f"asked for {spec.negatives} negatives per anchor but {spec.n_samples} samples leave "
                f"{spec.n_samples - 1}; ask for fewer, or for 'all'"
            )
    return {**whole, **{name: float(value) for name, value in positive.items()}}


def _check_sections(spec: StudySpec) -> None:
    if spec.without_sections and not spec.losses:
        raise InputError(
            "there is nothing to measure: no losses make no map, and there are no full-batch sections, because "
            f"{spec.without_sections}; give losses"
        )
    if spec.without_sections and spec.label_curves:
        raise InputError(
            f"label_curves belong to the full-batch sections, and there are none, because {spec.without_sections}; "
            "leave label_curves out"
        )


def _check_loss(spec: StudySpec) -> None:
    link_from(spec.link, temperature=spec.temperature or 1.0)
    known = " and ".join(SIMILARITIES)
    each_once = len(set(spec.similarities)) == len(spec.similarities) > 0
    if not each_once or not set(spec.similarities) <= SIMILARITIES.keys():
        raise InputError(f"similarities must be some of {known}, each once, got {list(spec.similarities)}")
    for similarity in spec.similarities:
        similarity_from(similarity, delta=spec.delta)
    if spec.learning_rates is not None and len(spec.learning_rates) != len(spec.similarities):
        raise InputError(
            f"learning_rates must be one for all similarities, or one for each of {list(spec.similarities)}, got "
            f"{list(spec.learning_rates)}"
        )


def _check_memory(spec: StudySpec, d_in: int) -> None:
    """Refuse a study whose largest network cannot fit, before any work; an estimate from below."""
    width, itemsize = max(spec.widths), 4 if spec.dtype == "float32" else 8
    weights = width * (d_in + spec.d_out + (spec.depth - 1) * width)
    points = spec.n_samples * (1 + spec.n_positives)
    # Weights, their start, their gradient and a step; inputs; the hidden units of every point and their derivatives.
    needed = itemsize * (4 * weights + points * (d_in + 3 * spec.depth * width))
    there = total_bytes(torch.device(spec.device))
    if needed > there:
        raise InputError(
            f"width {width} with {points} points needs at least {needed / 2**30:,.0f} GiB per run and there are "
            f"{there / 2**30:,.0f} GiB on {spec.device}; take smaller widths, fewer samples or dtype='float32'"
        )
