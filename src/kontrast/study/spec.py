"""The spec of a study: every choice that decides its numbers, hashed; `prepare` checks it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from kontrast.checks import require_choice
from kontrast.errors import InputError, StoreError

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
    "n_steps": 200,
    "pca_learning_rate": 1.0,
}
PRESETS = {"paper-a": PAPER_A}
READABLE = (3, 4)  # older formats that can be read, but not resumed
# The fields that they lack; those with a value other than the default are in `_of_an_older_format`.
ADDED = (
    *("label_column", "x_key", "y_key", "standardize"),
    *("losses", "rates", "optimizer", "momentum", "batch_size", "max_steps", "map_samples", "setting", "full_batch"),
    *("model", "has_width", "model_digest", "seed", "pca_d_out", "pca_steps", "pca_outlook"),
)
RATES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # of the map, over the critical rate: from lazy to divergent
DOT_RATES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # a loss without a lower bound diverges far below it


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
        losses: losses of the map's panels: nt_xent, info_nce, supcon, vicreg, barlow_twins, spectral, triplet, or the
            papers' general loss with cosine or dot similarity. None of them makes no map.
        rates: learning rates of the map in units of the critical rate 2/λ_max of the first kernel, as in (0.1, 1, 10).
            Adam's unit is the rate at which its first step is as long as descent's there. None is from lazy to
            divergent.
        optimizer: "sgd", "momentum" or "adam".
        momentum: momentum of the optimizer of that name.
        batch_size: samples per mini-batch of the map, each in two fresh views. None is 64, or all there are.
        max_steps: the most steps of the map's runs, which end early once their loss rests.
        map_samples: number of samples that the map contrasts. None is all that are not held out for tests.
        setting: width and rate that the verdict is about, as in (512, 3). None is the widest network at the rate of
            the best validation accuracy, among those at which it settles.
        model: a network of your own in place of the built-in one, as in my_net.py:build, a function of a width and a
            torch.Generator.
        full_batch: whether the full-batch sections stand below the map. A network of your own has none.
        n_samples: number of samples of the full-batch sections.
        views: augmentations joined by +, as in "crop:0.5,1+flip+noise:0.1": crop, flip, affine, brightness, contrast,
            gray for images; noise, relative-noise, mask, mixup for all data. None is affine for images, noise:0.1 for
            rows, relative-noise:0.1 for tables that are not standardised.
        n_positives: positives per anchor.
        negatives: negatives per anchor, or "all" for their expectation.
        similarities: "cosine", "dot" or "both".
        link: "linear", "softmax" or "log_softmax".
        temperature: temperature of softmax links and of losses that have one. None is the loss's own.
        delta: the δ of cosine similarity.
        activation: "relu", "tanh", "sigmoid", "erf", "gelu", "leaky_relu" or "linear".
        depth: number of hidden layers.
        parametrization: "ntk", "standard", "orthogonal" or "mup" (maximal update). Under a loss of
            cosines "mup" makes the map of "ntk", because rates are in units of the critical rate.
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
        model_digest: hash of the file of `model`, or of what a function makes, filled in by `prepare`.
        pca_outlook: why the orthonormal run will not arrive at PCA, filled in by `prepare`; empty where it will.
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
    losses: tuple[str, ...] = ("nt_xent", "dot")
    rates: tuple[float, ...] | None = None
    optimizer: str = "sgd"
    momentum: float = 0.9
    batch_size: int | None = None
    max_steps: int = 200
    map_samples: int | None = None
    setting: tuple[float, ...] | None = None
    model: str | None = None
    full_batch: bool = True
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
    widths: tuple[int, ...] = (64, 128, 256, 512)
    n_seeds: int = 4
    seed: int = 0
    n_steps: int = 100
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
        if content.get("format") in READABLE:  # their cells hold the same numbers: they keep the format
            content = _of_an_older_format(content)
        if content.keys() != known or content["format"] not in (*READABLE, FORMAT):
            raise StoreError(
                f"this study was written by another kontrast (format {content.get('format')}, here {FORMAT}); "
                "run the study again in another folder, or open it with the version that wrote it"
            )
        fields: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in content.items()}
        return cls(**fields)

    @classmethod
    def preset(cls, name: str, **fields: Any) -> StudySpec:
        """A spec by name, with some fields of your own; "paper-a" is the full-batch setting of paper A.

        Its orthonormal run has the dimension and the steps of the others.
        """
        require_choice("preset", name, tuple(PRESETS))
        chosen = {**PRESETS[name], **fields}
        return cls(**{"pca_d_out": chosen["d_out"], "pca_steps": chosen["n_steps"], **chosen})

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
    def without_sections(self) -> str:
        """Why the study has no full-batch sections; empty where it has."""
        if self.model is not None:
            return "they are of the built-in network"
        return "" if self.full_batch else "they were left out"

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


def _of_an_older_format(content: dict[str, Any]) -> dict[str, Any]:
    """The fields of an older study under their present names, with what it was in those that it lacks.

    It had no map, took columns as they were, and its orthonormal run had the dimension and the steps of the others.
    """
    content = {RENAMED.get(name, name): value for name, value in content.items()}
    added = {field.name: field.default for field in dataclasses.fields(StudySpec) if field.name in ADDED}
    own = {"pca_d_out": content.get("d_out"), "pca_steps": content.get("n_steps")}
    return {**added, "losses": (), "standardize": False, **own, **content}


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
