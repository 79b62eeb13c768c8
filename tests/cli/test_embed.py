"""`kontrast embed` as a person uses it."""

from __future__ import annotations

import functools
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from PIL import Image
from rich.cells import cell_len
from sklearn.datasets import load_wine

from kontrast import estimators, report
from kontrast.data import half_moons, load, writing
from kontrast.estimators import ContrastivePCA, DeepLinearSSL, SpectralContrastive, load_model
from tests.cases import generator
from tests.cli.running import Kontrast, content

SMALL = ("--width", "64", "--n-views", "2", "--components", "4", "--no-plot")


@pytest.fixture
def embed(kontrast: Kontrast, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Kontrast:
    """Run `kontrast embed` with these arguments, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return functools.partial(kontrast, "embed")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small data of every kind; no test may change them."""
    folder = tmp_path_factory.mktemp("inputs")
    digits = load("digits").subsample(300, generator=generator())
    x, y = digits.rows.numpy(), digits.y.numpy()
    images = x.reshape(-1, 8, 8)
    np.savez(folder / "split.npz", x_train=images[:200], y_train=y[:200], x_test=images[200:], y_test=y[200:])
    np.savez(folder / "whole.npz", x=images[:200], y=y[:200])
    np.save(folder / "images.npy", images[:200])
    np.save(folder / "rows.npy", x[:200])
    np.save(folder / "labels.npy", y[:200])
    np.save(folder / "constant.npy", np.full((40, 8, 8), 0.5))
    names = ",".join([*(f"p{k}" for k in range(64)), "digit"])
    words = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
    lines = [",".join([*(f"{v:.9g}" for v in row), words[label]]) for row, label in zip(x[:200], y[:200], strict=True)]
    (folder / "rows.csv").write_text("\n".join([names, *lines]))
    (folder / "broken.csv").write_text("a,b\n1,2\n3,x\n")
    (folder / "broken.npz").write_bytes((folder / "split.npz").read_bytes()[:-50])
    (folder / "moons").mkdir()
    moons = half_moons(120, generator=generator())
    np.save(folder / "moons" / "x.npy", moons.x.numpy())
    return folder


def arrays(path: Path | str) -> dict[str, np.ndarray]:
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}


def test_everything_with_the_defaults_of_a_split(embed: Kontrast, inputs: Path) -> None:
    ended = embed(inputs / "split.npz", "-o", "z.npz", "--components", 100, "--width", 256, "--n-views", 3)
    assert ended.code == 0, ended.err
    assert sorted(path.name for path in Path().iterdir()) == ["z-views.png", "z.model.npz", "z.npz", "z.png"]
    made = arrays("z.npz")
    assert {name: values.shape for name, values in made.items()} == {
        "z_train": (200, 100),
        "z_test": (100, 100),
        "y_train": (200,),
        "y_test": (100,),
    }
    twin = SpectralContrastive(100, width=256, n_views=3, dtype="float32").fit(load(inputs / "split.npz").x)
    np.testing.assert_array_equal(made["z_train"], twin.transform(load(inputs / "split.npz").x).numpy())
    for picture in ("z.png", "z-views.png"):
        assert imread(picture).ndim == 3
    for word in ("300 samples of 64 values → 100 dimensions", "3 × affine", "fitted to 200 samples", "eigenvalues 0.9"):
        assert word in ended.words
    assert "the share of a dimension's variance that views of a sample have in common" in ended.words
    assert "probes learn from 200 train samples and are tested on 100 test samples" in ended.words
    for row in ("embedding 100", "raw input 64", "PCA of the input 64"):
        assert row in ended.words
    for line in ("embedding: z.npz", "model: z.model.npz", "plot: z.png", "views: z-views.png"):
        assert line in ended.out
    assert max(cell_len(line) for line in ended.out.splitlines()) <= 80
    assert "fitting" in ended.err
    assert "fitting" not in ended.out


def test_json_is_the_only_thing_on_standard_output(embed: Kontrast, inputs: Path) -> None:
    ended = embed(inputs / "whole.npz", "-o", "z.npz", *SMALL[:-1], "--json", "--seed", 3)
    found = ended.found
    assert set(found) == {
        "input", "output", "model", "plot", "views_plot", "samples", "samples_written", "samples_fitted",
        "values", "standardized", "dimensions", "method", "options",
        "eigenvalues", "kernel_error", "probes", "judged", "notes", "seconds",
    }  # fmt: skip
    assert (found["input"], found["output"]) == (str(inputs / "whole.npz"), "z.npz")
    assert (found["model"], found["plot"], found["views_plot"]) == ("z.model.npz", "z.png", "z-views.png")
    assert (found["samples"], found["samples_fitted"], found["values"]) == ({"all": 200}, 200, 64)
    assert (found["dimensions"], found["method"], len(found["eigenvalues"])) == (4, "spectral", 4)
    assert found["options"]["views"] == "affine"
    assert found["options"]["random_state"] == 3
    assert [row["name"] for row in found["probes"]] == ["embedding", "raw input", "PCA of the input"]
    assert all(0.2 < row["linear_probe"] <= 1 and 0.2 < row["knn"] <= 1 for row in found["probes"])
    assert "160 samples, each class in its share, and are tested on 40 others; the embedding saw all" in found["judged"]
    assert set(found["seconds"]) == {"read", "fit", "embed", "probe", "write"}
    assert found["notes"] == []
    assert found["kernel_error"] is None


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".csv"])
def test_a_model_gives_the_same_numbers_again(embed: Kontrast, inputs: Path, suffix: str) -> None:
    assert embed(inputs / "whole.npz", "-o", "a.npz", *SMALL).code == 0
    before = Path("a.model.npz").read_bytes()
    ended = embed(inputs / "whole.npz", "-o", f"b{suffix}", "--model", "a.model.npz", "--json")
    assert ended.code == 0, ended.err
    assert sorted(path.name for path in Path().iterdir()) == ["a.model.npz", "a.npz", f"b{suffix}", "b.png"]
    assert Path("a.model.npz").read_bytes() == before
    assert ended.found["model"] == "a.model.npz"
    assert ended.found["samples_fitted"] is None
    assert "fit" not in ended.found["seconds"]
    assert "fitting" not in ended.err
    z = arrays(f"b{suffix}")["z"] if suffix == ".npz" else load(f"b{suffix}").x.numpy()
    np.testing.assert_array_equal(z, arrays("a.npz")["z"])


def test_a_saved_model_is_told_from_a_fitted_one(embed: Kontrast, inputs: Path) -> None:
    assert embed(inputs / "images.npy", "-o", "a.npz", *SMALL, "--dtype", "float64", "--method", "pca").code == 0
    assert arrays("a.npz")["z"].dtype == np.float64
    ended = embed(inputs / "images.npy", "-o", "b.npz", "--model", "a.model.npz", "--no-plot")
    assert "a saved model" in ended.words
    np.testing.assert_array_equal(arrays("a.npz")["z"], arrays("b.npz")["z"])


def test_a_csv_round_trip_with_a_column_of_labels(embed: Kontrast, inputs: Path) -> None:
    options = (*SMALL, "--image-shape", "8,8", "--labels", "digit")
    ended = embed(inputs / "rows.csv", "-o", "z.csv", *options, "--json")
    assert ended.code == 0, ended.err
    assert len(ended.found["probes"]) == 3
    assert Path("z.csv").read_text().startswith("z0,z1,z2,z3\n")
    assert embed(inputs / "images.npy", "-o", "z.npy", *SMALL).code == 0
    np.testing.assert_array_equal(load("z.csv").x.numpy(), np.load("z.npy"))
    again = embed("z.csv", "-o", "zz.npy", *SMALL, "--views", "noise:0.05")
    assert again.code == 0, again.err
    assert np.load("zz.npy").shape == (200, 4)
    # The model knows the shape of its images.
    reused = embed(inputs / "rows.csv", "-o", "r.npy", "--labels", "-1", "--model", "z.model.npz", "--no-plot")
    assert reused.code == 0, reused.err
    np.testing.assert_array_equal(np.load("r.npy"), np.load("z.npy"))


# Tables and files as people have them


@pytest.fixture(scope="module")
def wine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """178 wines by 13 measurements, from 0.1 to 1,700, and their kinds: numbers in one table, words in another."""
    folder, wines = tmp_path_factory.mktemp("wine"), load_wine()
    for name, kinds in (("numbers", "012"), ("words", "abc")):
        rows = zip(wines.data.tolist(), wines.target, strict=True)
        lines = [",".join([*map(str, row), kinds[kind]]) for row, kind in rows]
        (folder / f"{name}.csv").write_text("\n".join([",".join([*wines.feature_names, "Target"]), *lines]))
    np.savez(folder / "keys.npz", measured=wines.data, kind=wines.target, notes=np.zeros(3))
    return folder


WINE = ("--width", "64", "--n-views", "2", "--no-plot")


def test_a_table_of_different_units_is_standardised_and_keeps_what_it_holds(embed: Kontrast, wine: Path) -> None:
    """Noise of 0.1 says nothing of a column in thousands: without standardisation the embedding loses the kinds."""
    wide = ("--width", "512", "--n-views", "4", "--no-plot")
    ended = embed(wine / "words.csv", "-o", "z.npz", *wide, "--label-column", "Target", "--json")
    assert ended.code == 0, ended.err
    found = ended.found
    assert found["standardized"] is True
    assert (found["options"]["views"], found["values"]) == ("noise:0.1", 13)
    embedding, scaled, _ = found["probes"]
    assert scaled["name"] == "standardised input"
    assert embedding["linear_probe"] > 0.95
    assert embedding["knn"] > 0.9
    assert scaled["knn"] > 0.95  # of the raw input it is 0.83
    x = load(wine / "words.csv", label_column="Target").x
    twin = SpectralContrastive(44, width=512, n_views=4, standardize=True, dtype="float32").fit(x)
    np.testing.assert_array_equal(arrays("z.npz")["z"], twin.transform(x).numpy())
    assert set(arrays("z.npz")["y"]) == {0, 1, 2}
    small = (*WINE, "--label-column", "Target")
    plain = embed(wine / "words.csv", "-o", "p.npz", *small, "--no-standardize", "--json").found
    assert (plain["standardized"], plain["options"]["views"]) == (False, "relative-noise:0.1")
    assert plain["probes"][1]["name"] == "raw input"
    said = embed(wine / "words.csv", "-o", "z.npz", *small, "--no-probes").words
    assert "columns are standardised to mean 0 and deviation 1; --no-standardize leaves them as they are" in said
    assert "44 dimensions instead of 128: one for 4 samples; --components asks for more" in said


def test_a_model_standardises_new_samples_by_the_old_ones(embed: Kontrast, wine: Path) -> None:
    whole = np.loadtxt(wine / "numbers.csv", delimiter=",", skiprows=1)
    for name, rows in (("old", whole[:100]), ("new", whole[100:])):
        np.savetxt(f"{name}.csv", rows, delimiter=",", header=",".join([*"abcdefghijklm", "class"]), comments="")
    options = ("--label-column", "class", "--no-probes")
    assert embed("old.csv", "-o", "old.npy", *WINE, *options, "--dtype", "float64").code == 0
    ended = embed("new.csv", "-o", "new.npz", "--model", "old.model.npz", "--no-plot", *options)
    assert ended.code == 0, ended.err
    assert "columns are standardised as those that the model was fitted to" in ended.words
    scaled = torch.from_numpy((whole[:, :13] - whole[:100, :13].mean(0)) / whole[:100, :13].std(0))
    twin = SpectralContrastive(25, width=64, n_views=2).fit(scaled[:100])
    np.testing.assert_allclose(arrays("new.npz")["z"], twin.transform(scaled[100:]).numpy(), rtol=0, atol=1e-8)
    assert arrays("new.npz")["y"].tolist() == whole[100:, 13].tolist()
    refused = embed("new.csv", "-o", "z.npy", "--model", "old.model.npz", "--no-standardize", *options).refused
    assert "so --no-standardize cannot be given with it" in refused


def test_a_column_like_labels_is_decided_about(embed: Kontrast, wine: Path) -> None:
    for arguments in ((), ("--labels", wine / "keys.npz")):
        said = embed(wine / "numbers.csv", "-o", "z.npz", *WINE, *arguments).refused
        assert (
            "the column 'Target' looks like labels; pass --label-column Target, or --label-column none to use" in said
        )
    found = embed(wine / "numbers.csv", "-o", "z.npz", *WINE, "--label-column", "none", "--json").found
    assert (found["values"], found["judged"]) == (14, "there are no labels")
    for option in ("--labels", "--label-column"):
        found = embed(wine / "numbers.csv", "-o", f"{option[2:]}.npz", *WINE, option, "Target", "--json").found
        assert (found["values"], len(found["probes"])) == (13, 3)
    np.testing.assert_array_equal(arrays("labels.npz")["z"], arrays("label-column.npz")["z"])


def test_arrays_by_their_keys(embed: Kontrast, wine: Path) -> None:
    ended = embed(wine / "keys.npz", "-o", "z.npz", *WINE, "--x-key", "measured", "--y-key", "kind", "--json")
    assert ended.code == 0, ended.err
    assert (ended.found["values"], len(ended.found["probes"])) == (13, 3)
    again = embed(wine / "keys.npz", "-o", "again.npz", "--model", "z.model.npz", "--x-key", "measured", "--no-plot")
    assert again.code == 0, again.err
    np.testing.assert_array_equal(arrays("again.npz")["z"], arrays("z.npz")["z"])


def test_folders_of_images_with_classes_and_splits(embed: Kontrast, inputs: Path) -> None:
    digits = arrays(inputs / "split.npz")
    for part in ("train", "test"):
        for k, (image, label) in enumerate(zip(digits[f"x_{part}"], digits[f"y_{part}"], strict=True)):
            folder = Path("mine") / part / str(label)
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray((255 * image).round().astype(np.uint8)).save(folder / f"{k:03d}.png")
    ended = embed("mine", "-o", "z.npz", *SMALL, "--json")
    assert ended.code == 0, ended.err
    assert (ended.found["samples"], ended.found["standardized"]) == ({"train": 200, "test": 100}, False)
    assert ended.found["options"]["views"] == "affine"
    assert sorted(arrays("z.npz")["y_test"].tolist()) == sorted(digits["y_test"].tolist())
    assert len(ended.found["probes"]) == 3


def test_images_of_different_sizes_and_a_model_that_resizes_new_ones(embed: Kontrast) -> None:
    rng = np.random.default_rng(0)
    for k in range(20):
        Path("photos").mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (9 + k % 2, 12, 3), dtype=np.uint8)).save(f"photos/{k:02d}.jpg")
    said = embed("photos", "-o", "z.npz", *SMALL).refused
    assert (
        "00.jpg of 9×12 pixels (height×width) and 01.jpg of 10×12; to resize all of them pass --image-shape 9,12"
        in said
    )
    assert embed("photos", "-o", "z.npz", *SMALL, "--image-shape", "8,8").code == 0
    assert load_model("z.model.npz").image_shape == (3, 8, 8)
    Path("gray").mkdir()
    Image.fromarray(rng.integers(0, 256, (30, 40), dtype=np.uint8)).save("gray/new.png")
    ended = embed("gray", "-o", "new.npy", "--model", "z.model.npz", "--no-plot")
    assert ended.code == 0, ended.err
    x = load("gray", image_shape=(3, 8, 8)).x
    np.testing.assert_array_equal(np.load("new.npy"), load_model("z.model.npz").transform(x).numpy())


def test_views_of_a_table_are_drawn_as_they_are_made(
    embed: Kontrast, wine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    monkeypatch.setattr(report, "write_view_examples", lambda path, x, view, *, seed: drawn.append((x, view)))
    for switch in ("--standardize", "--no-standardize"):
        ended = embed(wine / "words.csv", "-o", "z.npz", *WINE[:-1], "--label-column", "Target", "--no-probes", switch)
        assert ended.code == 0, ended.err
    (standardised, _), (plain, view) = drawn
    assert standardised.abs().max() < 10
    assert plain.max() > 300
    noise = torch.cat([view(plain, generator(k)) - plain for k in range(300)]).std(0)
    deviation = load(wine / "words.csv", label_column="Target").x.std(0)
    torch.testing.assert_close(noise, 0.1 * deviation, rtol=0.1, atol=0)


@pytest.mark.parametrize(
    "split, n, rows", [("train", 200, slice(None, 200)), ("test", 100, slice(200, None)), ("all", 300, slice(None))]
)
def test_what_of_a_split_is_written(embed: Kontrast, inputs: Path, split: str, n: int, rows: slice) -> None:
    assert embed(inputs / "split.npz", "-o", "whole.npy", *SMALL, "--no-probes").code == 0
    ended = embed(inputs / "split.npz", "-o", "z.npy", *SMALL, "--split", split, "--json")
    assert len(ended.found["probes"]) == 3  # train still learns, and test still tests
    assert np.load("z.npy").shape == (n, 4)
    np.testing.assert_array_equal(np.load("z.npy"), np.load("whole.npy")[rows])
    assert embed(inputs / "split.npz", "-o", "z.npz", *SMALL, "--split", split, "--no-probes").code == 0
    parts = ["train", "test"] if split == "all" else [split]
    assert sorted(arrays("z.npz")) == sorted(f"{key}_{part}" for part in parts for key in "zy")


OPTIONS: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (("--method", "pca", "--width", "inf"), {"width": "inf", "n_positives": 2}),
    (("--method", "pca", "--width", "32"), {"width": 32, "n_positives": 2}),
    (("--width", "inf"), {"width": "inf", "n_views": 2}),
    (("--features", "fourier"), {"features": "fourier", "width": 64}),
    (("--features", "patches", "--width", "8"), {"features": "patches", "width": 8}),
    (("--views", "crop:0.7,1+flip"), {"views": "crop:0.7,1+flip"}),
    (("--ridge", "0.01"), {"ridge": 0.01}),
    (("--depth", "2", "--activation", "tanh"), {"depth": 2, "activation": "tanh"}),
    (("--similarity", "dot"), {"similarity": "dot"}),
    (("--device", "cpu", "--dtype", "float64"), {"device": "cpu", "dtype": "float64"}),
    (("--seed", "5"), {"random_state": 5}),
]


@pytest.mark.parametrize("arguments, expected", OPTIONS, ids=[" ".join(case[0]) for case in OPTIONS])
def test_options_reach_the_estimator(
    embed: Kontrast, inputs: Path, arguments: tuple[str, ...], expected: dict[str, Any]
) -> None:
    assert embed(inputs / "images.npy", "-o", "plain.npy", *SMALL).code == 0
    ended = embed(inputs / "images.npy", "-o", "z.npy", *SMALL, *arguments, "--json")
    assert ended.code == 0, ended.err
    assert expected.items() <= ended.found["options"].items()
    assert ended.found["method"] == ("pca" if "pca" in arguments else "spectral")
    assert type(load_model("z.model.npz")) is (ContrastivePCA if "pca" in arguments else SpectralContrastive)
    z = np.load("z.npy")
    assert z.shape == (200, 4)
    assert np.isfinite(z).all()
    assert not np.array_equal(z, np.load("plain.npy"))


LINEAR = [
    ((), {"time": math.inf}),
    (("--time", "0.5"), {"time": 0.5}),
    (("--time", "2", "--flow", "polar", "--depth", "3"), {"time": 2.0, "flow": "polar", "depth": 3}),
    (("--time", "2", "--flow", "oja", "--width", "80"), {"time": 2.0, "flow": "oja", "width": 80}),
]


@pytest.mark.parametrize("arguments, options", LINEAR, ids=[" ".join(case[0]) for case in LINEAR])
def test_the_flow_of_a_linear_network(
    embed: Kontrast, inputs: Path, arguments: tuple[str, ...], options: dict[str, Any]
) -> None:
    given = (inputs / "whole.npz", "-o", "z.npz", "--method", "linear", "--components", 3, "--n-views", 2, *arguments)
    ended = embed(*given, "--json", "--seed", 2)
    assert ended.code == 0, ended.err
    found = ended.found
    assert (found["method"], found["dimensions"], found["kernel_error"]) == ("linear", 3, None)
    assert max(found["eigenvalues"]) < 0
    expected = {**options, "time": "inf" if options["time"] == math.inf else options["time"], "n_positives": 2}
    assert expected.items() <= found["options"].items()
    assert "start" not in found["options"]
    x = load(inputs / "whole.npz").x
    twin = DeepLinearSSL(3, n_positives=2, random_state=2, dtype="float32", **options).fit(x)
    np.testing.assert_array_equal(arrays("z.npz")["z"], twin.transform(x).numpy())
    assert type(load_model("z.model.npz")) is DeepLinearSSL
    said = embed(*given).words
    assert "of the loss, so that below 0 they say how much closer a dimension brings a sample to its views" in said
    words = "at the end of training" if not arguments else f"flow to time {options['time']}"
    assert words in said
    assert "2 × affine" in said
    again = embed(inputs / "whole.npz", "-o", "again.npz", "--model", "z.model.npz", "--no-plot", "--json").found
    assert again["method"] == "linear"


def test_a_linear_network_has_as_many_dimensions_as_are_learnt(embed: Kontrast, inputs: Path) -> None:
    ended = embed(inputs / "moons", "-o", "z.npy", "--method", "linear", "--no-plot", "--json")
    assert ended.code == 0, ended.err
    assert ended.found["dimensions"] < 4
    assert "dimensions instead of 128: there are no more" in ended.found["notes"][0]


def test_landmarks_say_what_they_leave_out(embed: Kontrast, inputs: Path) -> None:
    arguments = (inputs / "images.npy", "-o", "z.npy", *SMALL, "--width", "inf")
    error = embed(*arguments, "--json").found["kernel_error"]
    assert 0 < error < 1
    assert f"the landmarks leave out {error:.1%} of the kernel" in embed(*arguments).words


def test_the_default_view_is_the_estimators(embed: Kontrast, inputs: Path) -> None:
    for name, text in (("images.npy", "affine"), ("rows.npy", "noise:0.1")):
        x = load(inputs / name).x
        ended = embed(inputs / name, "-o", "z.npy", *SMALL, "--json")
        assert ended.found["options"]["views"] == text
        options = {"views": "auto", "standardize": name == "rows.npy", "dtype": "float32"}
        twin = SpectralContrastive(4, width=64, n_views=2, **options).fit_transform(x)
        np.testing.assert_array_equal(np.load("z.npy"), twin.numpy())


def test_samples_to_fit_are_drawn_and_all_are_embedded(embed: Kontrast, inputs: Path) -> None:
    ended = embed(inputs / "images.npy", "-o", "z.npy", *SMALL, "--samples", 50, "--json")
    assert ended.found["samples_fitted"] == 50
    x = load(inputs / "images.npy").x
    some = x[torch.randperm(200, generator=generator())[:50]]
    twin = SpectralContrastive(4, width=64, n_views=2, dtype="float32").fit(some)
    np.testing.assert_array_equal(np.load("z.npy"), twin.transform(x).numpy())
    assert "asked for 201 samples" in embed(inputs / "images.npy", "-o", "z.npy", *SMALL, "--samples", 201).refused


def test_fewer_dimensions_are_a_note_and_only_where_no_number_was_asked_for(embed: Kontrast, inputs: Path) -> None:
    arguments = (inputs / "moons", "-o", "z.npy", "--width", "16", "--no-plot", "--json")
    ended = embed(*arguments)
    assert ended.code == 0, ended.err
    k = ended.found["dimensions"]
    assert k == np.load("z.npy").shape[1] <= 16
    assert min(ended.found["eigenvalues"]) > 0
    assert f"{k} dimensions instead of 128: there are no more" in ended.found["notes"][0]
    assert "--components 17, but there are only 16 features" in embed(*arguments, "--components", 17).refused
    assert f"note: {k} dimensions instead of 128" in embed(*arguments[:-1]).words


@pytest.mark.parametrize("method", ["spectral", "pca"])
def test_patches_have_a_width_of_their_own(
    embed: Kontrast, inputs: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    widths = []

    def stop(self: Any, x: torch.Tensor) -> None:
        widths.append(self.width)
        raise KeyboardInterrupt

    for kind in (SpectralContrastive, ContrastivePCA):
        monkeypatch.setattr(kind, "fit", stop)
    assert embed(inputs / "images.npy", "-o", "z.npy", "--method", method, "--features", "patches").code == 130
    assert widths == [256]


@pytest.mark.parametrize("how", ["a file", "none"])
def test_labels_beside_and_no_labels(embed: Kontrast, inputs: Path, how: str) -> None:
    labels = ("--labels", inputs / "labels.npy") if how == "a file" else ()
    ended = embed(inputs / "images.npy", "-o", "z.npz", *SMALL[:-1], *labels)
    assert ended.code == 0, ended.err
    assert sorted(arrays("z.npz")) == (["y", "z"] if labels else ["z"])
    assert ("linear probe" in ended.words) == bool(labels)
    assert ("no probes: there are no labels" in ended.words) == (not labels)
    assert imread("z.png").ndim == 3
    if labels:
        assert (
            "no probes: not asked for"
            in embed(inputs / "images.npy", "-o", "z.npz", *SMALL, *labels, "--no-probes").words
        )


BAD: list[tuple[str, tuple[str, ...], str]] = [
    ("gone.npz", (), "no data set or file is called"),
    ("broken.npz", (), "is not a complete .npz file"),
    ("broken.csv", (), "column 'b' holds 'x' in sample 1"),
    ("constant.npy", (), "is the same, so there is nothing to contrast"),
    ("constant.npy", ("--method", "pca"), "nothing to contrast"),
    ("images.npy", ("--method", "simclr"), "--method must be spectral, pca or linear, got 'simclr'"),
    ("images.npy", ("--components", "0"), "--components must be a whole number of at least 1, got 0"),
    ("images.npy", ("--components", "2000"), "64 features"),
    ("images.npy", ("--features", "deep"), "--features must be one of random, fourier, patches"),
    ("images.npy", ("--width", "0"), "--width must be a whole number of at least 1, or inf, got 0"),
    ("images.npy", ("--width", "many"), "--width must be a number, got 'many'"),
    ("images.npy", ("--features", "patches", "--width", "inf"), "patches have no infinite width"),
    ("images.npy", ("--views", "twirl"), "cannot read 'twirl'"),
    ("rows.npy", ("--views", "crop"), "crop"),
    ("images.npy", ("--n-views", "1"), "--n-views must be a whole number of at least 2"),
    ("images.npy", ("--ridge", "-1"), "--ridge must be a finite number of at least 0"),
    ("images.npy", ("--ridge", "nan"), "--ridge must be a finite number of at least 0"),
    ("images.npy", ("--method", "pca", "--ridge", "1"), "--ridge belongs to --method spectral"),
    ("images.npy", ("--time", "1"), "--time belongs to --method linear; leave it out"),
    ("images.npy", ("--method", "pca", "--flow", "oja"), "--flow belongs to --method linear; leave it out"),
    ("images.npy", ("--method", "linear", "--ridge", "1"), "--ridge belongs to --method spectral; leave it out"),
    ("images.npy", ("--method", "linear", "--features", "patches"), "--features belongs to --method spectral or pca"),
    ("images.npy", ("--method", "linear"), "--width says how training goes on up to some --time"),
    ("images.npy", ("--method", "linear", "--time", "inf", "--flow", "oja"), "where it ends; give a finite --time"),
    ("images.npy", ("--method", "linear", "--flow", "foo"), "--flow must be one of grassmann, polar, oja, got 'foo'"),
    (
        "images.npy",
        ("--method", "linear", "--time", "1", "--width", "inf"),
        "--width must be a whole number, got 'inf'",
    ),
    ("images.npy", ("--method", "linear", "--time", "1", "--width", "63"), "a width of at least the 64 inputs, got 63"),
    ("images.npy", ("--method", "linear", "--time", "-1"), "--time must be a number of 0 or more, got -1"),
    ("images.npy", ("--method", "linear", "--time", "nan"), "--time must be a number of 0 or more, got nan"),
    ("images.npy", ("--method", "linear", "--time", "1e9"), "or --flow oja"),
    (
        "images.npy",
        ("--method", "linear", "--time", "1", "--flow", "qr"),
        "--flow must be one of grassmann, polar, oja",
    ),
    ("images.npy", ("--method", "linear", "--time", "1", "--depth", "0"), "--depth must be a whole number"),
    (
        "images.npy",
        ("--method", "linear", "--time", "1", "--components", "65"),
        "--components 65, but there are only 64",
    ),
    ("images.npy", ("--depth", "0"), "depth"),
    ("images.npy", ("--activation", "swirl"), "swirl"),
    ("images.npy", ("--similarity", "angle"), "--similarity must be one of cosine, dot, got 'angle'"),
    ("images.npy", ("--image-shape", "8x8"), "--image-shape takes whole numbers"),
    ("rows.npy", ("--image-shape", "9,9"), "which --image-shape (9, 9) does not fit"),
    ("rows.npy", ("--features", "patches"), "image"),
    ("images.npy", ("--seed", "-1"), "--seed must be a whole number of at least 0, got -1"),
    ("images.npy", ("--device", "tpu"), "--device must look like"),
    ("images.npy", ("--dtype", "float16"), "--dtype must be one of float32, float64, got 'float16'"),
    ("images.npy", ("--split", "test"), "--split test is for data with train and test"),
    ("split.npz", ("--split", "half"), "--split must be train, test or all, got 'half'"),
    ("images.npy", ("--labels", "digit"), "has no columns, so none called 'digit'"),
    ("images.npy", ("--labels", "gone.npy"), "there is no file of labels gone.npy"),
    ("rows.csv", ("--labels", "digits"), "no column 'digits'"),
    ("rows.csv", ("--label-column", "digits"), "no column 'digits' to take the labels from: it has the columns p0, p1"),
    ("rows.csv", ("--label-column", "none"), "column 'digit' holds"),
    ("rows.csv", ("--label-column", "digit", "--labels", "digit"), "the labels are given twice"),
    ("rows.csv", ("--label-column", "digit", "--labels", "LABELS"), "by --label-column 'digit'; leave one out"),
    ("rows.csv", ("--x-key", "x"), "is no .npz, so it has no key 'x'; leave --x-key out"),
    ("whole.npz", ("--label-column", "y"), "so none called 'y'; leave --label-column out, and name the array"),
    ("whole.npz", ("--x-key", "z"), "no array 'z'; give --x-key one of its keys: x, y"),
    ("whole.npz", ("--y-key", "z"), "no array 'z'; give --y-key one of its keys: x, y"),
    ("whole.npz", ("--y-key", "y", "--labels", "LABELS"), "by --y-key 'y'; leave one out"),
    ("rows.csv", (), "column 'digit' holds"),
    ("split.npz", ("--labels", "LABELS"), "has 300 samples but labels of shape (200,)"),
    ("images.npy", ("-o", "z.txt"), "arrays are written as .npy, .npz, .csv, got 'z.txt'"),
    ("images.npy", ("-o", "gone/z.npy"), "there is no folder gone"),
    ("images.npy", ("-o", "there"), "there is a folder; give the name of a file in it"),
    ("images.npy", ("-o", "taken.npy"), "taken.png is to be written and is a folder"),
    ("images.npy", ("--model", "gone.npz"), "there is no model file gone.npz"),
    ("images.npy", ("--model", "IMAGES"), "is no kontrast model"),
    (
        "images.npy",
        ("--model", "m.npz", "--width", "9", "--seed", "2", "--views", "flip"),
        "so --width, --views cannot",
    ),
]


@pytest.mark.parametrize("name, arguments, message", BAD, ids=[" ".join([case[0], *case[1]]) for case in BAD])
def test_bad_input_is_one_line_and_writes_nothing(
    embed: Kontrast, inputs: Path, name: str, arguments: tuple[str, ...], message: str
) -> None:
    Path("there").mkdir()
    Path("taken.png").mkdir()
    places = {"LABELS": str(inputs / "labels.npy"), "IMAGES": str(inputs / "images.npy")}
    small = () if "--model" in arguments else SMALL[:-1]
    ended = embed(inputs / name, "-o", "z.npz", *small, *(places.get(word, word) for word in arguments))
    assert message in ended.refused
    assert content(Path()) == {}


@pytest.mark.parametrize(
    "source, output",
    [
        ("x.npy", "x.npy"),
        ("x.npy", "./there/../x.npy"),
        ("x.npy", "link.npy"),
        ("x.model.npz", "x.npy"),  # the model beside it
        ("there", "there/z.npy"),
    ],
)
def test_the_input_is_never_written_over(embed: Kontrast, inputs: Path, source: str, output: str) -> None:
    Path("there").mkdir()
    shutil.copy(inputs / "images.npy", "x.npy")
    shutil.copy(inputs / "images.npy", "there/a.npy")
    shutil.copy(inputs / "whole.npz", "x.model.npz")
    Path("link.npy").symlink_to("x.npy")
    before = content(Path())
    assert "which is read; choose another --output" in embed(source, "-o", output, *SMALL).refused
    assert content(Path()) == before


def test_neither_the_model_nor_the_labels_are_written_over(embed: Kontrast, inputs: Path) -> None:
    shutil.copy(inputs / "labels.npy", "y.npy")
    assert "which is read" in embed(inputs / "images.npy", "-o", "y.npy", *SMALL, "--labels", "y.npy").refused
    assert embed(inputs / "images.npy", "-o", "a.npy", *SMALL).code == 0
    assert "which is read" in embed(inputs / "images.npy", "-o", "a.model.npz", "--model", "a.model.npz").refused
    assert embed(inputs / "images.npy", "-o", "a.npy", *SMALL, "--seed", 1).code == 0  # what was written may be again


def test_an_interrupted_write_leaves_no_half_file(
    embed: Kontrast, inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = writing._write

    def stop(*arguments: Any) -> None:
        real(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(writing, "_write", stop)
    ended = embed(inputs / "images.npy", "-o", "z.npy", *SMALL)
    assert ended.code == 130
    assert ended.err.endswith("stopped\n")
    assert content(Path()) == {}


def test_the_embedding_is_there_before_it_is_judged(
    embed: Kontrast, inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(estimators, "probe_embeddings", stop)
    assert embed(inputs / "whole.npz", "-o", "z.npz", *SMALL).code == 130
    assert sorted(content(Path())) == ["z.model.npz", "z.npz"]


def test_a_full_disk_is_one_line(embed: Kontrast, inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)  # which writes the model
    ended = embed(inputs / "images.npy", "-o", "z.npy", *SMALL)
    assert ended.code == 2
    assert "error: cannot write z.model.npz: No space left on device; choose" in ended.err.splitlines()[-1]
    assert sorted(path.name for path in Path().iterdir()) == ["z.npy"]


def test_debug_shows_the_traceback(embed: Kontrast, inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "write_embedding_figure", None)  # --no-plot does not need it
    assert embed(inputs / "images.npy", "-o", "z.npy", *SMALL).code == 0
    with pytest.raises(ValueError, match="no data set or file is called"):
        embed("gone.npz", "-o", "z.npy", "--debug")


def test_the_words_count_what_is_written(embed: Kontrast, inputs: Path) -> None:
    ended = embed(inputs / "split.npz", "-o", "z.npy", *SMALL, "--split", "test", "--json")
    written = len(np.load("z.npy"))
    assert ended.found["samples_written"] == written == ended.found["samples"]["test"]
    assert f"{written} samples of" in embed(inputs / "split.npz", "-o", "z.npy", *SMALL, "--split", "test").words
