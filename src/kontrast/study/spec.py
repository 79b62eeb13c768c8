"""The spec of a study: every choice that decides its numbers, checked before any long work and hashed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

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
from kontrast.data import Affine, Dataset, data_digest, default_view, load_data, parse_view, require_contrast
from kontrast.dynamics import OPTIMIZERS
from kontrast.errors import InputError, StoreError
from kontrast.losses import SIMILARITIES, VIEW_LOSSES, link_from, similarity_from, view_loss_from
from kontrast.memory import total_bytes
from kontrast.nets import activation_from, check_shape
from kontrast.study.arrival import plan_pca
from kontrast.study.labels import label_problem
from kontrast.study.map.networks import builder_from, check_network, model_digest, takes_width
from kontrast.study.map.split import split_for
from kontrast.study.probes import probe_problem

FORMAT = 5  # raised when a field or a cell changes, so that old folders are not resumed into new ones
RENAMED = {"view": "views", "labels": "label_curves", "n_probes": "n_ntk_points"}  # the one change of format 4
# The full-batch setting of paper A, without a map.
PAPER_A: dict[str, Any] = {
    "losses": (),
    "views": "crop:0.5,1.0",
    "temperature": 1.0,
    "widths": (64, 128, 256, 512, 1024, 2048),
    "n_seeds": 5,
    "d_out": 10,
    "pca_d_out": 10,
    "pca_steps": 200,
    "pca_learning_rate": 1.0,
}
PRESETS = {"paper-a": PAPER_A}
READABLE = (3, 4)  # older formats that can be read, but not resumed
OLDER = {"losses": ()}  # what their studies were without
PROBE_SAMPLES = 500  # that train a probe, and as many that test it: 0.1 s for raw pixels
RATES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # of the map, over the critical rate: from lazy to divergent
DOT_RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # a loss without a lower bound diverges far below it
N_STEP_COUNTS = 5  # columns of the map of a network without a width: all steps, half of them, …
LARGEST = 10**8  # of any count: beyond it a typing error is likelier than a plan


@dataclass(frozen=True)
class StudySpec:
    """Everything that decides a study's numbers. `prepare` checks it and fills in what depends on the data.

    Attributes:
        data: "mnist5k", "digits", "moons", or a .npz, .npy, .csv or idx file, or a folder.
        split: "train", "test" or "all", where the data has splits.
        image_shape: shape of images that come as rows, as in (28, 28) or (3, 32, 32).
        losses: losses of the map's panels: nt_xent, info_nce, supcon, vicreg, barlow_twins, spectral, triplet, or the
            papers' general loss with cosine or dot similarity. None of them makes no map.
        rates: learning rates of the map in units of the critical rate 2/λ_max of the first kernel, as in (0.1, 1, 10).
            None is from lazy to divergent.
        optimizer: "sgd", "momentum" or "adam".
        momentum: momentum of the optimizer of that name.
        batch_size: samples per mini-batch of the map, each in two fresh views.
        max_steps: the most steps of the map's runs, which end once they have settled.
        map_samples: number of samples that the map contrasts. None is all that are not held out for tests.
        setting: width and rate that the verdict is about, as in (512, 3). None is the widest network at the rate of
            the best validation accuracy.
        model: a network of your own in place of the built-in one, as in my_net.py:build, a function of a width and a
            torch.Generator.
        n_samples: number of samples of the full-batch sections below the map.
        views: augmentations joined by +, as in "crop:0.5,1+flip+noise:0.1": crop, flip, affine, brightness, contrast,
            gray for images; noise, mask, mixup for all data. None is crop for images and noise:0.1 for rows.
        n_positives: positives per anchor.
        negatives: negatives per anchor, or "all" for their expectation.
        similarities: "cosine", "dot" or "both".
        link: "linear", "softmax" or "log_softmax".
        temperature: temperature of softmax links and of losses that have one. None is the loss's own.
        delta: the δ of cosine similarity.
        activation: "relu", "tanh", "sigmoid", "erf", "gelu", "leaky_relu" or "linear".
        depth: number of hidden layers.
        parametrization: "ntk", "standard", "orthogonal" or "mup" (maximal update).
        d_out: dimension of the embedding.
        widths: widths of the networks, as in (64, 256, 1024).
        n_seeds: runs per width, averaged.
        seed: the first seed.
        n_steps: steps of gradient descent.
        learning_rates: one for all similarities, or one per similarity, as in (0.1, 0.003). None is 0.1 for cosine and
            0.25/mean |x|^2 for dot.
        pca_learning_rate: learning rate of the orthonormal run, which is compared with PCA (claim A.pca). None is the
            longest that does not overshoot.
        pca_d_out: dimension of the orthonormal run. None is that of the largest eigengap. It is then at most d_out.
        pca_steps: steps of the orthonormal run. None is as many as it needs to arrive at PCA.
        n_ntk_points: number of samples at which the NTK is measured.
        n_probe_samples: labelled samples that train a probe, and as many that test it; 0 for no probes. None is up to
            500.
        label_curves: measure how many labels each embedding needs, and compare with the prediction. This is done for
            the widest network.
        device: "cpu", "cuda", "cuda:1", …
        dtype: "float64" or "float32".
        has_width: whether the network has a width, filled in by `prepare`; without one `widths` are numbers of steps.
        model_digest: hash of the file of `model`, filled in by `prepare`.
        pca_outlook: why the orthonormal run will not arrive at PCA, filled in by `prepare`; empty where it will.
        data_digest: hash of the data, filled in by `prepare`.
        format: version of the stored cells.
    """

    data: str = "mnist5k"
    split: str = "train"
    image_shape: tuple[int, int] | tuple[int, int, int] | None = None
    losses: tuple[str, ...] = ("nt_xent", "dot")
    rates: tuple[float, ...] | None = None
    optimizer: str = "sgd"
    momentum: float = 0.9
    batch_size: int = 64
    max_steps: int = 200
    map_samples: int | None = None
    setting: tuple[float, ...] | None = None
    model: str | None = None
    n_samples: int = 50
    views: str | None = None
    n_positives: int = 1
    negatives: int | Literal["all"] = 1
    similarities: tuple[str, ...] = ("cosine", "dot")
    link: str = "linear"
    temperature: float | None = None
    delta: float = 0.01
    activation: str = "relu"
    depth: int = 1
    parametrization: str = "ntk"
    d_out: int = 16
    widths: tuple[int, ...] = (32, 64, 128, 256, 512)
    n_seeds: int = 4
    seed: int = 0
    n_steps: int = 200
    learning_rates: tuple[float, ...] | None = None
    pca_learning_rate: float | None = None
    pca_d_out: int | None = None
    pca_steps: int | None = None
    n_ntk_points: int = 50
    n_probe_samples: int | None = None
    label_curves: bool = False
    device: str = "cpu"
    dtype: str = "float64"
    has_width: bool = True
    model_digest: str = ""
    pca_outlook: str = ""
    data_digest: str = ""
    format: int = FORMAT

    _option_names: ClassVar[dict[str, str | None]] = {
        "losses": "--loss",
        "similarities": "--similarity",
        "learning_rates": "--learning-rate",
        "n_ntk_points": None,
        "has_width": None,
        "model_digest": None,
        "pca_outlook": None,
        "data_digest": None,
        "format": None,
    }

    def as_dict(self) -> dict[str, Any]:
        """The spec as JSON types."""
        return json.loads(json.dumps(dataclasses.asdict(self)))  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> StudySpec:
        """The spec that `as_dict` wrote."""
        if "kind" in content:
            raise StoreError(f"this folder holds {content['kind']}, and no study; run the study in another folder")
        known = {field.name for field in dataclasses.fields(cls)}
        if content.get("format") in READABLE:  # their cells hold the same numbers: they can be read, and keep the format
            content = {RENAMED.get(name, name): value for name, value in content.items()}
            without = {name: value for name, value in OLDER.items() if name not in content}
            content = {**{field.name: field.default for field in dataclasses.fields(cls)}, **without, **content}
        if content.keys() != known or content["format"] not in (*READABLE, FORMAT):
            raise StoreError(
                f"this study was written by another kontrast (format {content.get('format')}, here {FORMAT}); "
                "run the study again in another folder, or open it with the version that wrote it"
            )
        fields: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in content.items()}
        return cls(**fields)

    @classmethod
    def preset(cls, name: str, **fields: Any) -> StudySpec:
        """A spec by name, with some fields of your own; "paper-a" is the full-batch setting of paper A."""
        require_choice("preset", name, tuple(PRESETS))
        return cls(**{**PRESETS[name], **fields})

    @property
    def digest(self) -> str:
        """A hash of every field: two specs with one digest give the same numbers."""
        return hashlib.sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()

    @property
    def name(self) -> str:
        """A short name for the study's folder."""
        return f"{Path(self.data).stem}-{self.digest[:8]}"

    @property
    def cells(self) -> list[str]:
        """The cells, the widest first, so that the last ones to finish are short."""
        return [cell_name(width, seed) for width in sorted(self.widths, reverse=True) for seed in self.seeds]

    @property
    def seeds(self) -> range:
        """The seeds."""
        return range(self.seed, self.seed + self.n_seeds)

    def rates_of(self, loss: str) -> tuple[float, ...]:
        """The rates of a panel of the map, in units of the critical rate."""
        return self.rates or (RATES if loss != "dot" else DOT_RATES)

    @property
    def without_pca(self) -> str:
        """Why the study has no PCA view; empty where it has one."""
        n_points = self.n_samples * (1 + self.n_positives)
        if self.parametrization != "ntk":
            return f"paper A's network (7) is one in ntk parametrization, and these are {self.parametrization}"
        d_out = self.pca_d_out
        if min(self.widths) < (d_out or 2):
            columns = f"{d_out} orthonormal columns need" if d_out else "PCA of one dimension needs"
            return f"{columns} a width of {d_out or 2}, and one is {min(self.widths)}"
        if d_out and n_points <= d_out:
            return f"{n_points} points have no unique PCA of {d_out} dimensions"
        return ""

    @property
    def record_steps(self) -> list[int]:
        """About 24 steps, evenly spaced on a logarithmic axis, with the first and the last."""
        return _spaced(self.n_steps)

    @property
    def pca_run(self) -> tuple[int, int, float]:
        """Dimension, steps and learning rate of the orthonormal run, once `prepare` has filled them in."""
        assert self.pca_d_out is not None, "the spec was not prepared"
        assert self.pca_steps is not None
        assert self.pca_learning_rate is not None
        return self.pca_d_out, self.pca_steps, self.pca_learning_rate

    @property
    def pca_record_steps(self) -> list[int]:
        """As `record_steps`, of the orthonormal run."""
        return _spaced(self.pca_run[1])


def _spaced(n_steps: int) -> list[int]:
    return sorted({round(step) for step in np.geomspace(1, n_steps, 24)})


def require_current(spec: StudySpec) -> None:
    """Refuse a spec that was not prepared, and one of an older format, which can only be read."""
    if not spec.data_digest:
        raise InputError("the spec must be prepared, so that it is checked and complete; pass prepare(spec)")
    if spec.format != FORMAT:
        raise StoreError(
            f"this study was written by an older kontrast (format {spec.format}, here {FORMAT}): it can be read but "
            "not continued; run the study again in another folder"
        )


def cell_name(width: int, seed: int) -> str:
    """The name of the cell (width, seed)."""
    return f"w{width:06d}-s{seed:03d}"


def parse_cell(cell: str) -> tuple[int, int]:
    """The width and the seed of a cell's name."""
    width, seed = cell.split("-")
    return int(width[1:]), int(seed[1:])


def prepare(spec: StudySpec) -> StudySpec:
    """Check every field before any long work, and fill in what depends on the data."""
    spec = _checked(spec)
    dataset = load_data(spec.data, spec.split, spec.image_shape)
    if spec.n_samples > len(dataset):
        raise InputError(
            f"asked for {spec.n_samples} samples but {spec.data!r} has {len(dataset)}; ask for at most {len(dataset)}"
        )
    _check_memory(spec, dataset.rows.shape[1])
    require_contrast(dataset, spec.data)
    if spec.label_curves and (problem := label_problem(dataset.y)):
        raise InputError(f"label_curves needs labels but {spec.data!r} {problem}; leave label_curves out")
    view = parse_view(spec.views) if spec.views is not None else Affine() if dataset.is_image else default_view(dataset)
    view(dataset.x[:1], torch.Generator().manual_seed(0))  # refuses a crop of tabular rows now, not in a worker
    spec = dataclasses.replace(spec, views=str(view))
    if spec.losses:
        spec = _prepared_map(spec, dataset)
    spec = dataclasses.replace(
        spec,
        learning_rates=spec.learning_rates or _automatic_rates(spec, dataset),
        data_digest=data_digest(dataset),
        n_ntk_points=min(spec.n_ntk_points, spec.n_samples),
        n_probe_samples=_probe_samples(spec, dataset),
    )
    return dataclasses.replace(spec, **plan_pca(spec, dataset))


def _prepared_map(spec: StudySpec, dataset: Dataset) -> StudySpec:
    """Check what the map needs of the data, and try a network of the user's own."""
    for name in spec.losses:
        if view_loss_from(name, link=spec.link).needs_labels and dataset.y is None:
            raise InputError(f"the loss {name!r} needs labels and {spec.data!r} has none; choose another loss")
    there = len(split_for(spec, dataset, spec.seed).contrasted)
    if spec.map_samples is not None and spec.map_samples > there:
        raise InputError(
            f"asked for {spec.map_samples} map_samples but {spec.data!r} leaves {there} beside those held out; ask for "
            "fewer"
        )
    if spec.batch_size > there:
        raise InputError(f"a batch_size of {spec.batch_size} needs as many samples, and {there} are there; take a smaller one")
    if spec.model is None:
        return spec
    if not takes_width(builder_from(spec.model)):
        steps = {round(spec.max_steps / 2**k) for k in range(N_STEP_COUNTS)}
        spec = dataclasses.replace(spec, has_width=False, widths=tuple(sorted(step for step in steps if step >= 8)))
    return dataclasses.replace(spec, d_out=check_network(spec, dataset), model_digest=model_digest(spec.model))


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
    require_type("label_curves", spec.label_curves, bool)
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
    fields["batch_size"] = require_whole("batch_size", spec.batch_size, least=2, most=LARGEST)
    fields["max_steps"] = require_whole("max_steps", spec.max_steps, least=8, most=LARGEST)
    fields["seed"] = require_whole("seed", spec.seed, least=0, most=LARGEST)
    if spec.map_samples is not None:
        fields["map_samples"] = require_whole("map_samples", spec.map_samples, least=4, most=LARGEST)
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
    positive = {name: getattr(spec, name) for name in ("temperature", "delta", "pca_learning_rate")}
    if spec.temperature is None:
        del positive["temperature"]
    positive = {name: getattr(spec, name) for name in ("temperature", "delta")}
    if spec.pca_learning_rate is not None:
        positive["pca_learning_rate"] = spec.pca_learning_rate
    require_positive(**positive)  # also where this study's link has no use for them
    counts = ("n_positives", "d_out", "depth", "n_seeds", "n_steps", "n_ntk_points")
    whole: dict[str, Any] = {name: require_whole(name, getattr(spec, name), most=LARGEST) for name in counts}
    whole["n_samples"] = require_whole("n_samples", spec.n_samples, least=2, most=LARGEST)  # a negative is another one
    if spec.n_probe_samples is not None:
        whole["n_probe_samples"] = require_whole("n_probe_samples", spec.n_probe_samples, least=0, most=LARGEST)
    for name in ("pca_d_out", "pca_steps"):
        if getattr(spec, name) is not None:
            whole[name] = require_whole(name, getattr(spec, name), most=LARGEST)
    given = _several("widths", spec.widths)
    widths = tuple(as_whole(width) or 0 for width in given)
    if not widths or min(widths) < 1 or len(set(widths)) < len(widths):
        raise InputError(f"widths must be different whole numbers of at least 1, got {list(given)}")
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
