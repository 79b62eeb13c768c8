"""Bad input: a clear error that names the culprit, or numbers; never an embedding that holds NaN."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.strategies import booleans, integers, lists, sampled_from

from kontrast.errors import ConvergenceError, InputError
from kontrast.estimators import ContrastivePCA, Fourier, Patches, SpectralContrastive
from tests.estimators.made_data import pictures, rows

KINDS = [ContrastivePCA, SpectralContrastive]
WRONG_FOR_BOTH = [
    *(("n_components", value) for value in (0, -1, 2.5, "2", True, None)),
    *(("width", value) for value in (0, -1, 2.5, math.nan, -math.inf, "8", None, True)),
    *(("depth", value) for value in (0, -1, 1.5, "1", True, None)),
    *(("similarity", value) for value in ("euclidean", None, 3)),
    *(("features", value) for value in ("fourrier", None, 3, [1])),
    *(("activation", value) for value in ("relo", None, 3)),
    *(("delta", value) for value in (0, -1e-3, math.nan, math.inf, "x", None)),
    *(("views", value) for value in ("noise:x", "blur", "", None, 3)),
    *(("image_shape", value) for value in ((2, 2), (6,), 6, (0, 6), "6", (1.0, 6.0), (-1, -6))),
    *(("n_landmarks", value) for value in (0, -1, 2.5, "8", True)),
    *(("device", value) for value in ("tpu", 3, "cuda:x")),
    *(("dtype", value) for value in ("float16", "double", 3, torch.float16)),
    *(("random_state", value) for value in ("seed", -1, 2.5, [1], 2**64)),
]
WRONG_PAIRS = [
    *(("n_positives", value) for value in (0, -1, 1.5, "1", True, None)),
    *(("negatives", value) for value in (0, -1, 40, 2.5, "some", None, True)),
]
WRONG_VIEWS = [
    *(("n_views", value) for value in (0, 1, -2, 2.5, "2", True, None)),
    *(("power", value) for value in (-1, -0.5, 11, math.nan, math.inf, "1", None, True)),
    *(("ridge", value) for value in (-1, -1e-12, math.nan, math.inf, "x", None)),
]


def refuses(model: object, name: str, x: object) -> None:
    """A ValueError of ours or of scikit-learn's, whose text names the option or repeats the value."""
    value = getattr(model, name)
    with pytest.raises(ValueError, match=r"\w+") as caught:
        model.fit(x)
    text = str(caught.value)
    stem = name.removeprefix("n_").rstrip("s")
    assert stem in text or repr(value) in text or (isinstance(value, str) and value in text), text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "value"), WRONG_FOR_BOTH)
def test_every_wrong_option_is_named(kind: type, name: str, value: object) -> None:
    refuses(kind(**{"n_components": 2, "width": 8, name: value}), name, torch.from_numpy(rows()))


@pytest.mark.parametrize(("name", "value"), WRONG_PAIRS)
def test_every_wrong_option_of_contrastive_pca_is_named(name: str, value: object) -> None:
    refuses(ContrastivePCA(**{"n_components": 2, "width": 8, name: value}), name, rows())
    refuses(ContrastivePCA(**{"n_components": 2, name: value}), name, rows())


@pytest.mark.parametrize(("name", "value"), WRONG_VIEWS)
def test_every_wrong_option_of_spectral_contrastive_is_named(name: str, value: object) -> None:
    refuses(SpectralContrastive(**{"n_components": 2, "width": 8, name: value}), name, rows())
    refuses(SpectralContrastive(**{"n_components": 2, "width": math.inf, name: value}), name, rows())


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Fourier(0), "length_scale"),
        (lambda: Fourier(-1.0), "length_scale"),
        (lambda: Fourier(math.nan), "length_scale"),
        (lambda: Fourier("wide"), "length_scale"),
        (lambda: Patches(size=1), "size"),
        (lambda: Patches(size=9), "size"),
        (lambda: Patches(size=2.5), "size"),
        (lambda: Patches(grid=0), "grid"),
        (lambda: Patches(grid=7), "grid"),
        (lambda: Patches(grid="2"), "grid"),
        (lambda: Patches(threshold=-1), "threshold"),
        (lambda: Patches(threshold=math.nan), "threshold"),
        (lambda: Patches(threshold="high"), "threshold"),
        (lambda: Patches(contrast_floor=0), "contrast_floor"),
        (lambda: Patches(contrast_floor="low"), "contrast_floor"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_wrong_options_of_features_are_named(kind: type, make: object, name: str) -> None:
    with pytest.raises(InputError, match=name):
        kind(2, width=8, features=make()).fit(pictures())


@pytest.mark.parametrize("kind", KINDS)
def test_options_that_do_not_go_together(kind: type) -> None:
    with pytest.raises(InputError, match=r"patches have no infinite width.*width=1024"):
        kind(2, features="patches", width=math.inf).fit(pictures())
    for options in ({"depth": 2}, {"activation": "tanh"}):
        with pytest.raises(InputError, match="depth and activation belong to features='random'"):
            kind(2, features="fourier", width=8, **options).fit(rows())
    with pytest.raises(ValueError, match=r"affine|image"):
        kind(2, width=8, views="affine").fit(rows())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("shape", [(12, 16), (12, 4, 4), (12, 4, 4, 1)])
@pytest.mark.parametrize("tensor", [False, True])
def test_nan_and_infinity_are_refused(kind: type, bad: float, shape: tuple[int, ...], tensor: bool) -> None:
    x = rows(12, 16).reshape(shape)
    model = kind(2, width=8, views="noise:0.1").fit(x)
    x = x.copy()
    x.reshape(12, 16)[7, 3] = bad
    given_ = torch.from_numpy(x[..., 0] if x.ndim == 4 else x) if tensor else x
    for call in (kind(2, width=8).fit, model.transform):
        with pytest.raises(ValueError, match=r"NaN|infinity|infinite"):
            call(given_)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_that_are_none_are_refused(kind: type) -> None:
    model = kind(2, width=8)
    with pytest.raises(ValueError, match="minimum of 2"):
        model.fit(rows(1))
    with pytest.raises(InputError, match="minimum of 2"):
        model.fit(torch.from_numpy(rows(1)))
    with pytest.raises(InputError, match="minimum of 2"):
        model.fit(pictures(1))
    for wrong in (
        np.array([["a", "b"]] * 5).reshape(5, 2, 1),
        np.zeros((5, 0, 3)),
        torch.zeros(5, 4, dtype=torch.complex64),
        torch.zeros(5),
        torch.zeros(5, 0),
        torch.zeros(2, 2, 2, 2, 2),
    ):
        with pytest.raises(ValueError, match="real numbers in the shape"):
            model.fit(wrong)
    with pytest.raises(ValueError, match=r"dim|shape"):
        model.fit(np.zeros((2, 2, 2, 2, 2)))
    fitted = model.fit(rows())
    for other in (rows(5, 7), torch.from_numpy(rows(5, 7)), pictures(5, 2, 2)):
        with pytest.raises(ValueError, match=r"X has [74] features, but .* is expecting 6 features"):
            fitted.transform(other)


@pytest.mark.parametrize("kind", KINDS)
def test_no_samples_to_transform(kind: type) -> None:
    model = kind(2, width=8).fit(rows())
    for none in (np.zeros((0, 6)), torch.zeros(0, 6)):
        with pytest.raises(ValueError, match="minimum of 1"):
            model.transform(none)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [8, math.inf])
def test_samples_without_contrast_are_refused(kind: type, width: float) -> None:
    for constant in (np.zeros((12, 4)), np.ones((12, 4))):
        with pytest.raises(InputError, match=r"all samples are the same \(12 of them\)"):
            kind(2, width=width).fit(constant)
    with pytest.raises(InputError, match="all samples are the same"):
        kind(2, width=width, features="fourier", views="noise:0").fit(np.ones((12, 4)))


@pytest.mark.parametrize("views", ["noise:0", "noise:0.1"])
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_large_pools_of_the_same_sample_are_solved_or_refused_in_words_of_the_estimator(
    views: str, similarity: str
) -> None:
    """Above 1000 points Lanczos runs in the metric of a kernel that is nearly singular."""
    model = ContrastivePCA(1, views=views, similarity=similarity)
    try:
        out = model.fit(np.ones((510, 3))).transform(np.ones((2, 3)))
    except (InputError, ConvergenceError) as error:
        words = set(re.findall(r"\w+", str(error)))
        if words & {"metric", "tolerance", "max_steps"}:
            pytest.fail(f"speaks of what no user of the estimator has: {error}")
        return
    assert np.isfinite(out).all()


OPTIONS = [
    {"width": 8},
    {"width": 8, "similarity": "dot"},
    {"width": math.inf},
    {"width": math.inf, "similarity": "dot"},
    {"width": math.inf, "n_landmarks": 4},
    {"width": 8, "features": "fourier"},
    {"width": math.inf, "features": "fourier"},
    {"width": 8, "features": torch.tanh},
]


@given(
    n=integers(2, 12),
    d=integers(1, 5),
    k=integers(1, 3),
    seed=integers(0, 2**10),
    damage=lists(sampled_from(["duplicate", "zero rows", "constant column", "tiny", "large", "one point"]), max_size=3),
    kind=sampled_from(KINDS),
    options=sampled_from(OPTIONS),
    views=sampled_from(["noise:0", "noise:0.3", "mask:0.9", "mixup"]),
    single=booleans(),
)
def test_small_and_damaged_data_give_finite_embeddings_or_a_clear_error(
    n: int, d: int, k: int, seed: int, damage: list[str], kind: type, options: dict, views: str, single: bool
) -> None:
    x = rows(n, d, seed=seed)
    for one in damage:
        if one == "duplicate":
            x[n // 2 :] = x[: n - n // 2]
        elif one == "zero rows":
            x[::2] = 0
        elif one == "constant column":
            x[:, 0] = 1
        elif one == "one point":
            x[:] = x[0]
        else:
            x *= 1e-9 if one == "tiny" else 1e6
    x = x.astype(np.float32) if single else x
    model = kind(k, views=views, random_state=seed, **options)
    try:
        out = model.fit(x).transform(x)
    except InputError as error:
        assert len(str(error)) > 20  # noqa: PT017
        return
    assert out.shape == (n, k)
    assert np.isfinite(out).all()
    assert np.isfinite(model.eigenvalues_).all()
    assert (model.eigenvalues_ > 0).all()
    blank = model.transform(np.zeros((2, d), dtype=x.dtype))
    assert np.isfinite(blank).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [8, math.inf])
def test_more_components_than_anything_are_refused(kind: type, width: float) -> None:
    with pytest.raises(InputError, match="n_components"):
        kind(500, width=width).fit(rows())


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_fit_leaves_a_fitted_model_as_it_was(kind: type) -> None:
    x = rows()
    model = kind(2, width=8).fit(x)
    before = model.transform(x)
    model.set_params(n_components=9)
    with pytest.raises(InputError, match="n_components"):
        model.fit(x)
    np.testing.assert_array_equal(model.transform(x), before)


@pytest.mark.parametrize("value", [0.1, 1.0, 1 / 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_features_that_do_not_vary_are_refused_whatever_their_rounding(value: float, dtype: type) -> None:
    constant = np.full((10, 6), value, dtype=dtype)
    with pytest.raises(InputError, match="the features do not vary"):
        SpectralContrastive(1, width=32).fit_views([constant, constant])
    for kind in KINDS:
        with pytest.raises(InputError, match=r"do not vary|eigenvalues are positive"):
            kind(1, features=lambda x: torch.full((len(x), 5), value, dtype=x.dtype)).fit(rows().astype(dtype))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "factor"), [(np.float32, 1e25), (np.float64, 1e200)])
def test_features_that_overflow_are_no_blank_samples(kind: type, dtype: type, factor: float) -> None:
    x = rows().astype(dtype)
    model = kind(2, width=32).fit(x)
    with pytest.raises(InputError, match="scale the samples"):
        model.transform(x * dtype(factor))
    with pytest.raises(InputError, match=r"scale the samples|too large"):
        kind(2, width=32).fit(x * dtype(factor))


@pytest.mark.parametrize("kind", KINDS)
def test_images_of_another_shape_are_refused(kind: type) -> None:
    x = pictures(24, 8, 6)
    model = kind(2, width=16).fit(x)
    with pytest.raises(InputError, match=r"images of shape \(1, 6, 8\), but .* is expecting \(1, 8, 6\)"):
        model.transform(x.reshape(24, 6, 8))
    np.testing.assert_array_equal(model.transform(x.reshape(24, 48)), model.transform(x))


def test_a_ridge_below_the_rounding_is_named() -> None:
    with pytest.raises(InputError, match=r"a ridge of 1e-09 is below their rounding.*dtype='float64'"):
        SpectralContrastive(2, width=256, ridge=1e-9).fit(rows().astype(np.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_that_fails_leaves_the_model_as_it_was(kind: type) -> None:
    model = kind(2, width=16).fit(rows())
    before = model.transform(rows())
    for bad in (np.zeros((12, 4)), rows(1), pictures() * np.nan):
        with pytest.raises(ValueError, match=r"same|minimum|NaN"):
            model.fit(bad)
        np.testing.assert_array_equal(model.transform(rows()), before)


@pytest.mark.parametrize("kind", KINDS)
def test_masked_values_are_refused_and_long_doubles_are_read(kind: type) -> None:
    x = rows()
    with pytest.raises(InputError, match="masked values"):
        kind(2, width=16).fit(np.ma.masked_greater(x, 0))
    long = kind(2, width=16).fit_transform(x.astype(np.longdouble))
    np.testing.assert_array_equal(long, kind(2, width=16).fit_transform(x))


def test_images_too_small_for_patches() -> None:
    with pytest.raises(InputError, match="too small to cut patches from"):
        SpectralContrastive(2, width=8, features="patches").fit(pictures(24, 1, 9))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_makes_no_components(dtype: type) -> None:
    """With the samples' differences used up, what eigenvalues are left are rounding over the ridge."""
    views = [rows(20, seed=seed).astype(dtype) for seed in (0, 0)]
    views[1] = views[1] + dtype(0.01) * rows(20, seed=1).astype(dtype)
    model = SpectralContrastive(19, width=256).fit_views(views)
    assert model.eigenvalues_[-1] > 1e-2
    with pytest.raises(InputError, match="only 19 differences between samples"):
        SpectralContrastive(20, width=256).fit_views(views)
    copies = [np.concatenate([view] * 3) for view in views]  # 60 samples of which 20 differ
    with pytest.raises(InputError, match="only 19 eigenvalues are positive"):
        SpectralContrastive(30, width=256).fit_views(copies)
