"""The spec of a study: every choice that decides its numbers, checked before any long work and hashed."""

from __future__ import annotations

import dataclasses
import functools
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
    require_positive,
    require_type,
    require_whole,
    resolve_device,
    resolve_dtype,
)
from kontrast.data import (
    Dataset,
    RelativeNoise,
    View,
    data_digest,
    default_view,
    fit_view,
    load_data,
    parse_view,
    require_contrast,
)
from kontrast.errors import InputError, StoreError
from kontrast.losses import SIMILARITIES, link_from, similarity_from
from kontrast.memory import total_bytes
from kontrast.nets import activation_from, check_shape
from kontrast.study.labels import label_problem
from kontrast.study.probes import probe_problem

FORMAT = 4  # raised when a field or a cell changes, so that old folders are not resumed into new ones
RENAMED = {"view": "views", "labels": "label_curves", "n_probes": "n_ntk_points"}  # the one change since format 3
ADDED = ("label_column", "x_key", "y_key", "standardize")  # fields that older specs lack; None then as now
PROBE_SAMPLES = 500  # that train a probe, and as many that test it: 0.1 s for raw pixels
LARGEST = 10**8  # of any count: beyond it a typing error is likelier than a plan


@dataclass(frozen=True)
class StudySpec:
    """Everything that decides a study's numbers. `prepare` checks it and fills in what depends on the data.

    Attributes:
        data: "mnist5k", "digits", "moons", or a .npz, .npy, .csv or idx file, or a folder of these or of images.
        split: "train", "test" or "all", where the data has splits.
        image_shape: shape of images that come as rows, or that those of a folder are resized to, as in (28, 28) or
            (3, 32, 32).
        label_column: column of a .csv that holds the labels, by name or number; "none" where no column does. Without
            it, a column that is called target, label, class, y, category or species is refused.
        x_key: array of a .npz that holds the samples. None is x, data or images.
        y_key: array of a .npz that holds the labels. None is y, label or target.
        standardize: bring every column to mean 0 and deviation 1. None is on for tables in files, off for images and
            named data sets. A constant column is only centred.
        n_samples: number of samples to contrast.
        views: augmentations joined by +, as in "crop:0.5,1+flip+noise:0.1": crop, flip, affine, brightness, contrast,
            gray for images; noise, relative-noise, mask, mixup for all data. None is crop for images, noise:0.1 for
            rows, relative-noise:0.1 for tables that are not standardised.
        n_positives: positives per anchor.
        negatives: negatives per anchor, or "all" for their expectation.
        similarities: "cosine", "dot" or "both".
        link: "linear", "softmax" or "log_softmax".
        temperature: temperature of softmax links.
        delta: the δ of cosine similarity.
        activation: "relu", "tanh", "sigmoid", "erf", "gelu", "leaky_relu" or "linear".
        depth: number of hidden layers.
        parametrization: "ntk", "standard" or "orthogonal".
        d_out: dimension of the embedding.
        widths: widths of the networks, as in (64, 256, 1024).
        n_seeds: runs per width, averaged.
        n_steps: steps of gradient descent.
        learning_rates: one for all similarities, or one per similarity, as in (0.1, 0.003). None is 0.1 for cosine and
            0.25/mean |x|^2 for dot.
        pca_learning_rate: learning rate of the orthonormal run, which is compared with PCA (claim A.pca).
        n_ntk_points: number of samples at which the NTK is measured.
        n_probe_samples: labelled samples that train a probe, and as many that test it; 0 for no probes. None is up to
            500.
        label_curves: measure how many labels each embedding needs, and compare with the prediction. This is done for
            the widest network.
        device: "cpu", "cuda", "cuda:1", …
        dtype: "float64" or "float32".
        data_digest: hash of the data, filled in by `prepare`.
        format: version of the stored cells.
    """

    data: str = "mnist5k"
    split: str = "train"
    image_shape: tuple[int, int] | tuple[int, int, int] | None = None
    label_column: str | None = None
    x_key: str | None = None
    y_key: str | None = None
    standardize: bool | None = None
    n_samples: int = 50
    views: str | None = None
    n_positives: int = 1
    negatives: int | Literal["all"] = 1
    similarities: tuple[str, ...] = ("cosine", "dot")
    link: str = "linear"
    temperature: float = 1.0
    delta: float = 0.01
    activation: str = "relu"
    depth: int = 1
    parametrization: str = "ntk"
    d_out: int = 10
    widths: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048)
    n_seeds: int = 5
    n_steps: int = 200
    learning_rates: tuple[float, ...] | None = None
    pca_learning_rate: float = 1.0
    n_ntk_points: int = 50
    n_probe_samples: int | None = None
    label_curves: bool = False
    device: str = "cpu"
    dtype: str = "float64"
    data_digest: str = ""
    format: int = FORMAT

    _option_names: ClassVar[dict[str, str | None]] = {
        "similarities": "--similarity",
        "learning_rates": "--learning-rate",
        "n_ntk_points": None,
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
        if content.get("format") == 3:  # its cells hold the same numbers: it can be read, and keeps its format
            content = {RENAMED.get(name, name): value for name, value in content.items()}
        content = {**dict.fromkeys(ADDED), **content}
        if content.keys() != {field.name for field in dataclasses.fields(cls)} or content["format"] not in (3, FORMAT):
            raise StoreError(
                f"this study was written by another kontrast (format {content.get('format')}, here {FORMAT}); "
                "run the study again in another folder, or open it with the version that wrote it"
            )
        fields: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in content.items()}
        return cls(**fields)

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
        return [cell_name(width, seed) for width in sorted(self.widths, reverse=True) for seed in range(self.n_seeds)]

    @property
    def without_pca(self) -> str:
        """Why the study has no PCA view; empty where it has one."""
        n_points = self.n_samples * (1 + self.n_positives)
        if self.parametrization != "ntk":
            return f"paper A's network (7) is one in ntk parametrization, and these are {self.parametrization}"
        if min(self.widths) < self.d_out:
            return f"{self.d_out} orthonormal columns need a width of {self.d_out}, and one is {min(self.widths)}"
        if n_points <= self.d_out:
            return f"{n_points} points have no unique PCA of {self.d_out} dimensions"
        return ""

    @property
    def record_steps(self) -> list[int]:
        """About 24 steps, evenly spaced on a logarithmic axis, with the first and the last."""
        return sorted({round(step) for step in np.geomspace(1, self.n_steps, 24)})


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
    raw = load_samples(dataclasses.replace(spec, standardize=False))
    require_contrast(raw, spec.data)
    if spec.standardize is None:
        spec = dataclasses.replace(spec, standardize=raw.is_table)
    dataset = load_samples(spec)
    if spec.n_samples > len(dataset):
        raise InputError(
            f"asked for {spec.n_samples} samples but {spec.data!r} has {len(dataset)}; ask for at most {len(dataset)}"
        )
    _check_memory(spec, dataset.rows.shape[1])
    if spec.label_curves and (problem := label_problem(dataset.y)):
        raise InputError(f"label_curves needs labels but {spec.data!r} {problem}; leave label_curves out")
    view = parse_view(spec.views) if spec.views is not None else _default_view(spec, dataset)
    # refuses a crop of tabular rows now, not in a worker
    fit_view(view, [dataset.x])(dataset.x[:1], torch.Generator().manual_seed(0))
    return dataclasses.replace(
        spec,
        views=str(view),
        learning_rates=spec.learning_rates or _automatic_rates(spec, dataset),
        data_digest=data_digest(raw),
        n_ntk_points=min(spec.n_ntk_points, spec.n_samples),
        n_probe_samples=_probe_samples(spec, dataset),
    )


def load_samples(spec: StudySpec) -> Dataset:
    """The data of a spec, standardised where it says so."""
    dataset = load_data(spec.data, spec.split, spec.image_shape, spec.label_column, spec.x_key, spec.y_key)
    return _standardized(dataset) if spec.standardize else dataset


@functools.lru_cache(maxsize=1)
def _standardized(dataset: Dataset) -> Dataset:
    """Once per process, as cells share it."""
    return dataset.standardized()


def _default_view(spec: StudySpec, dataset: Dataset) -> View:
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
    require_type("label_curves", spec.label_curves, bool)
    similarities = _several("similarities", spec.similarities)
    similarities = StudySpec.similarities if similarities == ("both",) else similarities
    rates = None if spec.learning_rates is None else _several("learning_rates", spec.learning_rates)
    for rate in rates or ():
        require_positive(learning_rates=rate)
    spec = dataclasses.replace(
        spec,
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


def _several(name: str, value: Any) -> tuple[Any, ...]:
    """One value, or several in a tuple, list or array, as a tuple."""
    if isinstance(value, str) or is_number(value):
        return (value,)
    require_type(name, value, (tuple, list, np.ndarray))
    return tuple(value)


def _plain_numbers(spec: StudySpec) -> dict[str, Any]:
    positive = {name: getattr(spec, name) for name in ("temperature", "delta", "pca_learning_rate")}
    require_positive(**positive)  # also where this study's link has no use for them
    counts = ("n_positives", "d_out", "depth", "n_seeds", "n_steps", "n_ntk_points")
    whole: dict[str, Any] = {name: require_whole(name, getattr(spec, name), most=LARGEST) for name in counts}
    whole["n_samples"] = require_whole("n_samples", spec.n_samples, least=2, most=LARGEST)  # a negative is another one
    if spec.n_probe_samples is not None:
        whole["n_probe_samples"] = require_whole("n_probe_samples", spec.n_probe_samples, least=0, most=LARGEST)
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
    link_from(spec.link, temperature=spec.temperature)
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
