from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.strategies import integers, lists
from PIL import Image

from kontrast.data import load
from kontrast.errors import DataError, InputError, KontrastError, StoreError
from kontrast.study import StudySpec, find, prepare, run_study
from kontrast.study.cell import draw_cell
from kontrast.study.spec import cell_name, parse_cell, require_current

DIGITS = StudySpec(data="digits", n_samples=8, widths=(8, 16), n_seeds=2, n_steps=5)


def test_preparing_fills_in_what_depends_on_the_data() -> None:
    ready = prepare(DIGITS)
    scale = float(load("digits", dtype=torch.float64).rows.pow(2).sum(1).mean())
    assert ready.views is not None
    assert ready.views.startswith("affine")
    assert ready.learning_rates == (0.1, pytest.approx(0.25 / scale, rel=0.01))
    assert ready.n_ntk_points == 8
    assert len(ready.data_digest) == 16
    assert prepare(ready) == ready


def test_short_forms_and_other_types_are_spelled_out_before_they_are_hashed() -> None:
    short = dataclasses.replace(
        DIGITS,
        similarities=("both",),
        learning_rates=(0.1,),
        n_samples=np.int64(8),
        widths=(np.int64(8), torch.tensor(16)),
        device=torch.device("cpu"),
        dtype=torch.float64,
    )
    ready = prepare(dataclasses.replace(DIGITS, learning_rates=(0.1, 0.1)))
    assert prepare(short) == ready
    assert prepare(short).digest == ready.digest


def test_tabular_rows_get_noise() -> None:
    assert prepare(dataclasses.replace(DIGITS, data="moons")).views == "noise:0.1"


def test_spec_survives_json_and_every_field_changes_the_digest() -> None:
    ready = prepare(DIGITS)
    assert StudySpec.from_dict(ready.as_dict()) == ready
    digests = {ready.digest}
    for field in dataclasses.fields(StudySpec):
        old = getattr(ready, field.name)
        new = (*old, old[0]) if isinstance(old, tuple) else f"{old}x" if isinstance(old, str) else (old or 0) + 1
        digests.add(dataclasses.replace(ready, **{field.name: new}).digest)
    assert len(digests) == 1 + len(dataclasses.fields(StudySpec))


def test_a_spec_of_another_version_is_refused() -> None:
    content = prepare(DIGITS).as_dict()
    for other in ({**content, "format": 99}, {**content, "color": "red"}, {"format": 1}, {**content, "format": 2}):
        with pytest.raises(StoreError, match=r"another kontrast .*; run the study again in another folder"):
            StudySpec.from_dict(other)


# What formats 3 and 4 knew, the second under the present names.
OLD_FIELDS = (
    *("data", "split", "image_shape", "n_samples", "views", "n_positives", "negatives", "similarities", "link"),
    *("temperature", "delta", "activation", "depth", "parametrization", "d_out", "widths", "n_seeds", "n_steps"),
    *("learning_rates", "pca_learning_rate", "n_ntk_points", "n_probe_samples", "label_curves", "device", "dtype"),
    *("data_digest", "format"),
)
PAPER_A = StudySpec.preset("paper-a", data="digits", n_samples=8, widths=(16, 32), n_seeds=2, n_steps=5, d_out=3)


def of_format_4(spec: StudySpec) -> dict[str, Any]:
    content = spec.as_dict() | {"format": 4}
    return {name: content[name] for name in OLD_FIELDS}


def test_a_spec_of_format_3_is_read_under_its_new_names_and_not_continued() -> None:
    ready = prepare(PAPER_A)
    renamed = {"views": "view", "label_curves": "labels", "n_ntk_points": "n_probes"}
    old = {renamed.get(name, name): value for name, value in of_format_4(ready).items()} | {"format": 3}
    spec = StudySpec.from_dict(old)
    assert spec == dataclasses.replace(ready, format=3, pca_outlook="")
    assert StudySpec.from_dict(spec.as_dict()) == spec  # as `find` reads it from a result
    with pytest.raises(StoreError, match=r"format 3, here 5\).* not continued; run the study again in another folder"):
        require_current(spec)


def test_a_spec_of_format_4_is_the_study_that_it_was() -> None:
    """Without a map, with columns as they are, and with an orthonormal run like the others; nothing else is made up."""
    ready = prepare(PAPER_A)
    old = of_format_4(ready)
    spec = StudySpec.from_dict(old)
    assert spec == dataclasses.replace(ready, format=4, pca_outlook="")
    assert (spec.losses, spec.standardize, spec.pca_run) == ((), False, (3, 5, 1.0))
    assert (spec.label_column, spec.x_key, spec.y_key) == (None, None, None)
    for name in OLD_FIELDS:
        with pytest.raises(StoreError, match="another kontrast"):
            StudySpec.from_dict({key: value for key, value in old.items() if key != name})


def test_a_study_of_format_4_is_judged_as_it_was(tmp_path: Path) -> None:
    """Its orthonormal run shared the steps of the others, and dimensions were not stored."""
    result = run_study(prepare(PAPER_A), tmp_path / "s")
    old = result.drop_vars(["step", "probe_dimension"]).rename({"pca_step": "step"})
    old.attrs["spec"] = json.dumps(of_format_4(prepare(PAPER_A)))
    found, was = find(old), find(result)
    assert found.verdict == was.verdict.replace("the raw input, with all its 64 dimensions, has", "the raw input has")
    assert found.similarities == was.similarities
    assert found.pca is not None
    assert was.pca is not None
    assert (found.pca.means, found.pca.d_out, found.pca.step) == (was.pca.means, 3, 5)


def test_the_preset_of_paper_a_has_an_orthonormal_run_like_the_others() -> None:
    assert PAPER_A.pca_run == (3, 5, 1.0)
    assert StudySpec.preset("paper-a").pca_run == (10, 200, 1.0)
    assert StudySpec.preset("paper-a", pca_d_out=2, pca_steps=7).pca_run == (2, 7, 1.0)
    assert prepare(PAPER_A).pca_run == PAPER_A.pca_run
    with pytest.raises(InputError, match="preset must be one of paper-a, got 'paper-z'"):
        StudySpec.preset("paper-z")


# Tables and files


UNITS = np.array([1e-3, 1.0, 1e4])


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """Two kinds of samples in columns of different units, and their kinds in words."""
    rng = np.random.default_rng(0)
    kinds = np.arange(40) % 2
    rows = (rng.normal(size=(40, 3)) + 3 * kinds[:, None] + 5) * UNITS
    lines = [f"{a!r},{b!r},{c!r},{'ab'[k]}" for (a, b, c), k in zip(rows.tolist(), kinds, strict=True)]
    (tmp_path / "measured.csv").write_text("\n".join(["u,v,w,Species", *lines]))
    np.savez(tmp_path / "measured.npz", points=rows, kind=kinds)
    return tmp_path / "measured.csv"


def on(path: Path, **fields: Any) -> StudySpec:
    return dataclasses.replace(DIGITS, data=str(path), widths=(16,), n_seeds=1, **fields)


def test_labels_come_from_a_column_or_a_key(measured: Path) -> None:
    with pytest.raises(DataError, match="the column 'Species' looks like labels; pass label_column='Species', or"):
        prepare(on(measured))
    table = prepare(on(measured, label_column="Species"))
    archive = prepare(on(measured.with_suffix(".npz"), x_key="points", y_key="kind"))
    assert (table.label_column, archive.x_key, archive.y_key) == ("Species", "points", "kind")
    assert table.n_probe_samples == 16
    assert table.data_digest == archive.data_digest
    assert prepare(table) == table
    cells = [draw_cell(spec, 16, 0) for spec in (table, archive)]
    assert cells[0].dataset.y is not None
    assert set(cells[0].dataset.y.tolist()) == {0, 1}
    assert torch.equal(cells[0].dataset.x, cells[1].dataset.x)
    assert torch.equal(cells[0].pairs.x, cells[1].pairs.x)


def test_tables_are_standardised_unless_asked_otherwise(measured: Path) -> None:
    spec = prepare(on(measured, label_column="Species"))
    assert (spec.standardize, spec.views) == (True, "noise:0.1")
    cell = draw_cell(spec, 16, 0)
    torch.testing.assert_close(cell.dataset.x.mean(0), torch.zeros(3).double(), rtol=0, atol=1e-12)
    torch.testing.assert_close(cell.dataset.x.std(0, correction=0), torch.ones(3).double())
    plain = prepare(on(measured, label_column="Species", standardize=False))
    assert (plain.standardize, plain.views) == (False, "relative-noise:0.1")
    assert plain.data_digest == spec.data_digest
    assert plain.digest != spec.digest
    cell = draw_cell(plain, 16, 0)
    assert cell.dataset.x.mean(0)[2] > 1e4
    n, x = len(cell.pairs.anchor), cell.pairs.x
    drawn = ((x[n:] - x[:n]) / cell.dataset.x.std(0, correction=0)).flatten()  # the deviations of all 40 samples
    same = draw_cell(spec, 16, 0).pairs.x
    torch.testing.assert_close(drawn, (same[n:] - same[:n]).flatten())


@pytest.mark.parametrize("data", ["digits", "moons"])
def test_named_data_and_images_stay_as_they_are(data: str, tmp_path: Path) -> None:
    spec = prepare(dataclasses.replace(DIGITS, data=data))
    assert spec.standardize is False
    assert torch.equal(draw_cell(spec, 16, 0).dataset.x, load(data, dtype=torch.float64).x)
    assert spec.views == {"digits": "affine:15.0,0.05,0.2", "moons": "noise:0.1"}[data]
    np.save(tmp_path / "images.npy", np.random.default_rng(0).random((20, 4, 4)))
    assert prepare(on(tmp_path / "images.npy")).standardize is False
    asked = prepare(dataclasses.replace(DIGITS, data=data, standardize=True))
    assert asked.standardize is True
    torch.testing.assert_close(draw_cell(asked, 16, 0).dataset.x.mean(), torch.tensor(0.0).double(), rtol=0, atol=1e-12)


def test_a_study_of_a_folder_of_images(tmp_path: Path) -> None:
    for k in range(24):
        folder = tmp_path / "images" / ("even" if k % 2 == 0 else "odd")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(k).integers(0, 256, (6, 5 + k % 2), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{k:02d}.png")
    with pytest.raises(
        DataError, match=r"even/00\.png of 6×5 pixels .* and odd/01\.png of 6×6; .* image_shape=\(6, 5\)"
    ):
        prepare(on(tmp_path / "images"))
    spec = prepare(on(tmp_path / "images", image_shape=(6, 5)))
    assert (spec.standardize, spec.views, spec.n_probe_samples) == (False, "affine:15.0,0.05,0.2", 8)
    assert draw_cell(spec, 16, 0).dataset.x.shape == (24, 1, 6, 5)


def test_the_data_itself_is_part_of_the_digest(tmp_path: Path) -> None:
    digests = set()
    for k in range(2):
        path = tmp_path / f"{k}" / "data.npy"
        path.parent.mkdir()
        np.save(path, np.random.default_rng(k).random((20, 3)))
        digests.add(prepare(dataclasses.replace(DIGITS, data=str(path))).data_digest)
    assert len(digests) == 2


@given(width=integers(1, 10**6 - 1), seed=integers(0, 999))
def test_cell_names_round_trip(width: int, seed: int) -> None:
    assert parse_cell(cell_name(width, seed)) == (width, seed)


@given(n_steps=integers(1, 10**5), widths=lists(integers(1, 9999), min_size=1, max_size=5, unique=True))
def test_steps_and_cells(n_steps: int, widths: list[int]) -> None:
    spec = dataclasses.replace(DIGITS, n_steps=n_steps, widths=tuple(widths))
    steps = spec.record_steps
    assert steps[0] == 1
    assert steps[-1] == n_steps
    assert steps == sorted(set(steps))
    assert len(steps) <= 24
    assert {parse_cell(cell) for cell in spec.cells} == {(w, s) for w in widths for s in range(2)}
    assert len(spec.cells) == 2 * len(widths)


BAD = [
    ({"data": "mnist6k"}, DataError, "mnist5k"),
    ({"data": "/no/such/file.npz"}, DataError, "/no/such/file.npz"),
    ({"n_samples": 5000}, InputError, "asked for 5000 samples but 'digits' has 1797; ask for at most 1797"),
    ({"n_samples": 1}, InputError, "n_samples must be a whole number of at least 2, got 1"),
    ({"n_samples": True}, InputError, "n_samples must be a whole number of at least 2, got True"),
    ({"widths": (8, 2.5)}, InputError, "widths must be different whole numbers"),
    ({"label_curves": "yes"}, InputError, "label_curves must be bool, got str"),
    ({"widths": ()}, InputError, "widths must be"),
    ({"widths": (0, 4)}, InputError, "widths must be"),
    ({"widths": (4, 4)}, InputError, "widths must be"),
    ({"widths": (8, 16), "d_out": 10, "parametrization": "orthogonal"}, InputError, "width 8 < 10; raise the width"),
    ({"parametrization": "lazy"}, InputError, "parametrization must be one of"),
    ({"similarities": ("euclid",)}, InputError, "euclid"),
    ({"similarities": ()}, InputError, "similarities must be"),
    ({"similarities": ("dot", "dot")}, InputError, "each once"),
    ({"link": "hinge"}, InputError, "hinge"),
    ({"activation": "swish"}, InputError, "swish"),
    ({"temperature": 0.0, "link": "softmax"}, InputError, "temperature"),
    ({"temperature": -1.0}, InputError, "temperature"),
    ({"delta": 0.0}, InputError, "delta"),
    ({"delta": math.nan}, InputError, "delta"),
    ({"learning_rates": (0.1, 0.0)}, InputError, "learning_rates must be a positive number, got 0.0"),
    ({"learning_rates": (0.1, 0.2, 0.3)}, InputError, "one for all similarities, or one for each of"),
    ({"learning_rates": ()}, InputError, "learning_rates must be one for all"),
    ({"depth": 0}, InputError, "depth must be a whole number of at least 1, got 0"),
    ({"n_steps": 10**9}, InputError, "n_steps must be a whole number of at most 100000000"),
    ({"widths": (10**9,)}, InputError, r"width 1000000000 .* GiB .* smaller widths"),
    ({"device": "cuda:x"}, InputError, "device must look like"),
    ({"pca_learning_rate": 0.0}, InputError, "pca_learning_rate must be a positive number"),
    ({"pca_learning_rate": math.nan}, InputError, "pca_learning_rate must be a positive number"),
    ({"n_probe_samples": -1}, InputError, "n_probe_samples must be a whole number of at least 0, got -1"),
    ({"n_probe_samples": 899}, InputError, "has 1797 samples, 898 to train and to test on"),
    ({"n_seeds": 0}, InputError, "n_seeds must be a whole number of at least 1"),
    ({"n_steps": 0}, InputError, "n_steps must be a whole number of at least 1"),
    ({"d_out": 0}, InputError, "d_out must be a whole number of at least 1"),
    ({"negatives": 8}, InputError, "asked for 8 negatives per anchor but 8 samples leave 7"),
    ({"negatives": -1}, InputError, "negatives must be a whole number of at least 0, or 'all', got -1"),
    ({"negatives": "some"}, InputError, "negatives must be a whole number of at least 0, or 'all'"),
    ({"dtype": "float16"}, InputError, "dtype must be one of float32, float64, got 'float16'"),
    ({"device": "tpu"}, InputError, "device must look like"),
    ({"views": "spin"}, InputError, "spin"),
    ({"data": "moons", "views": "crop"}, InputError, "noise"),
    ({"label_column": "target"}, InputError, "'digits' has its own labels and no column 'target'"),
    ({"x_key": "x"}, InputError, "'digits' has its own labels and no key 'x'; leave x_key out"),
    ({"label_column": 3}, InputError, "label_column must be str or NoneType, got int"),
    ({"standardize": "yes"}, InputError, "standardize must be bool or NoneType, got str"),
]


@pytest.mark.parametrize("change, kind, message", BAD, ids=[str(next(iter(case[0].items()))) for case in BAD])
def test_bad_specs_are_refused_in_one_line(change: dict[str, object], kind: type[KontrastError], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        prepare(dataclasses.replace(DIGITS, **change))
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU, so cuda is a legal device here")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="no CUDA GPU here; use device='cpu'"):
        prepare(dataclasses.replace(DIGITS, device="cuda"))


@pytest.mark.parametrize("value, word", [(0.0, "zero"), (0.7, "the same")])
@pytest.mark.parametrize("rates", [None, (0.1, 0.1)])
def test_data_without_any_signal_is_refused(
    tmp_path: Path, value: float, word: str, rates: tuple[float, ...] | None
) -> None:
    np.save(tmp_path / "flat.npy", np.full((20, 3, 3), value))
    with pytest.raises(InputError, match=rf"every sample of .* is {word}, so there is nothing to contrast"):
        prepare(dataclasses.replace(DIGITS, data=str(tmp_path / "flat.npy"), learning_rates=rates))


def labeled(folder: Path, labels: np.ndarray | None) -> str:
    rows = np.random.default_rng(0).random((40, 3))
    np.savez(folder / "data.npz", x=rows, **({} if labels is None else {"y": labels}))
    return str(folder / "data.npz")


NO_PROBES = {
    "no labels": (None, "has no labels", 0),
    "one class": (np.zeros(40, dtype=int), "has labels of one class only", 0),
    "a class of one": (np.array([1] + [0] * 39), "has too few samples of a second class", 16),  # enough of all 40
}


@pytest.mark.parametrize("name", NO_PROBES)
def test_data_that_no_probe_can_learn_from_has_none_and_refuses_those_asked_for(name: str, tmp_path: Path) -> None:
    labels, problem, automatic = NO_PROBES[name]
    spec = dataclasses.replace(DIGITS, data=labeled(tmp_path, labels))
    assert prepare(spec).n_probe_samples == automatic
    assert prepare(dataclasses.replace(spec, n_probe_samples=0)).n_probe_samples == 0
    with pytest.raises(InputError, match=f"asked for 5 probe samples but .* {problem}; leave n_probe_samples out"):
        prepare(dataclasses.replace(spec, n_probe_samples=5))


@pytest.mark.parametrize("n_samples, n_probe_samples", [(8, 16), (20, 10), (30, 10), (40, 10)])
def test_probe_samples_are_what_the_contrasted_leave_or_a_quarter(
    n_samples: int, n_probe_samples: int, tmp_path: Path
) -> None:
    data = labeled(tmp_path, np.arange(40) % 2)
    assert prepare(dataclasses.replace(DIGITS, data=data, n_samples=n_samples)).n_probe_samples == n_probe_samples
    assert prepare(DIGITS).n_probe_samples == 500


@pytest.mark.parametrize(
    "change, reason",
    [
        ({}, ""),
        ({"parametrization": "standard"}, "ntk parametrization"),
        ({"parametrization": "mup"}, "ntk parametrization, and these are mup"),
        ({"widths": (4, 16)}, "5 orthonormal columns need a width of 5, and one is 4"),
        ({"n_samples": 2, "pca_d_out": 4}, "4 points have no unique PCA of 4 dimensions"),
        ({"n_samples": 2, "pca_d_out": 3}, ""),
        ({"pca_d_out": None, "widths": (1, 16)}, "PCA of one dimension needs a width of 2, and one is 1"),
        ({"pca_d_out": None, "widths": (2, 16)}, ""),
    ],
)
def test_the_pca_view_says_when_it_cannot_be(change: dict[str, object], reason: str) -> None:
    without = dataclasses.replace(DIGITS, **{"pca_d_out": 5, **change}).without_pca
    assert reason in without
    assert bool(reason) == bool(without)


@pytest.mark.parametrize(
    "changed, plain",
    [
        ({"image_shape": [np.int64(8), np.int64(8)]}, {"image_shape": (8, 8)}),
        ({"temperature": np.float32(2)}, {"temperature": 2.0}),
        ({"learning_rates": np.array([0.5, 0.25])}, {"learning_rates": (0.5, 0.25)}),
        ({"learning_rates": 0.5}, {"learning_rates": (0.5, 0.5)}),
        ({"widths": np.int64(16)}, {"widths": (16,)}),
        ({"similarities": "cosine"}, {"similarities": ("cosine",)}),
        ({"similarities": "both"}, {"similarities": ("cosine", "dot")}),
        ({"data": Path("digits")}, {"data": "digits"}),
    ],
)
def test_a_prepared_spec_holds_plain_values(changed: dict[str, Any], plain: dict[str, Any]) -> None:
    ready = prepare(StudySpec(**{"data": "digits", **changed}))
    assert {name: getattr(ready, name) for name in plain} == plain
    assert StudySpec.from_dict(json.loads(json.dumps(ready.as_dict()))) == ready


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"widths": None}, "widths must be tuple or list or ndarray, got NoneType"),
        ({"similarities": ("euclid",)}, "similarities must be some of cosine and dot, each once"),
        ({"views": 3}, "views must be str, got int"),
        ({"data": 3}, "data must be str or PathLike, got int"),
        ({"activation": len}, "activation must be str"),
        ({"dtype": np.array([1, 2])}, "dtype must be one of float32, float64"),
    ],
)
def test_values_of_a_wrong_type_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepare(StudySpec(**{"data": "digits", **changed}))


def test_a_spec_that_was_not_prepared_does_not_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"pass prepare\(spec\)"):
        run_study(StudySpec(data="digits"), tmp_path / "s")
    assert not (tmp_path / "s").exists()
