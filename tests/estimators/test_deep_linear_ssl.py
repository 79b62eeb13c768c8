from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.strategies import booleans, floats, integers, sampled_from
from torch import Tensor

from kontrast.deep_linear import deep_linear_flow, train_deep_linear
from kontrast.deep_linear import orthogonal_flow as deep_linear
from kontrast.errors import InputError, TooManyComponentsError
from kontrast.estimators import DeepLinearSSL, base, load_model
from kontrast.linalg import best_rotation, subspace_sines
from kontrast.nets import MLP
from tests.cases import generator, randn
from tests.estimators.made_data import as_tensor, pairs, pictures, rows

FLOWS = ["grassmann", "polar", "oja"]


def data_matrix(x: np.ndarray, positives: np.ndarray, negatives: np.ndarray | None = None) -> Tensor:
    """C of paper B, (5), over the number of anchors, pair by pair; without negatives their mean over other anchors."""
    n = len(x)
    C = np.zeros((x.shape[1], x.shape[1]))
    for i in range(n):
        others = [x[j] for j in range(n) if j != i] if negatives is None else negatives[i]
        C += np.outer(x[i], np.mean(others, axis=0) - np.mean(positives[i], axis=0)) / n
    return torch.from_numpy((C + C.T) / 2)


def small_problem(seed: int = 0) -> tuple[np.ndarray, np.ndarray, Tensor]:
    """40 pairs of 6 values, so scaled that the largest eigenvalue is about 1."""
    x, positives = (part / 4 for part in pairs(seed=seed))
    return x, positives, data_matrix(x, positives[:, None])


def network(seed: int = 0, depth: int = 1, z: int = 2) -> MLP:
    return MLP(
        6, 12, z, depth=depth, activation="linear", parametrization="orthogonal", generator=generator(seed),
        dtype=torch.float64,
    )  # fmt: skip


def map_of(net: MLP) -> np.ndarray:
    with torch.no_grad():
        return net(torch.eye(6, dtype=torch.float64)).numpy()


# Trained networks


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("steps", [0, 800])
def test_it_embeds_as_a_trained_network_does(flow: str, depth: int, steps: int) -> None:
    """To order η: with η = 1e-3, within 2e-3."""
    x, positives, C = small_problem()
    net = network(depth=depth)
    model = DeepLinearSSL(2, time=1e-3 * steps, depth=depth, flow=flow, start=map_of(net), center=False).fit_pairs(
        x, positives
    )
    trained = train_deep_linear(net, C, learning_rate=1e-3, n_steps=steps, flow=flow)
    _, basis = torch.linalg.eigh(C)
    expected = as_tensor(x) @ basis @ trained.final_outputs
    found = model.transform(x)
    if flow == "oja":  # exact up to a rotation of the outputs
        found = found @ best_rotation(torch.from_numpy(found), expected).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-3)
    assert model.loss_ == pytest.approx(float(trained.losses[-1]), abs=2e-3)
    if steps:
        assert np.abs(model.transform(x) - x @ map_of(net)).max() > 0.1  # something was learnt


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("z", [1, 2])
def test_at_infinity_it_spans_what_a_long_training_spans(flow: str, z: int) -> None:
    x, positives, C = small_problem()
    model = DeepLinearSSL(z, flow=flow, center=False).fit_pairs(x, positives)
    trained = train_deep_linear(network(z=z), C, learning_rate=0.3, n_steps=800, flow=flow)
    _, basis = torch.linalg.eigh(C)
    frame = torch.from_numpy(model.components_.T)
    assert float(subspace_sines(frame, torch.linalg.qr(basis @ trained.final_outputs)[0]).max()) < 1e-6
    assert model.loss_ == pytest.approx(float(trained.losses[-1]), abs=1e-9)


@pytest.mark.parametrize("flow", FLOWS)
def test_long_times_tend_to_infinity(flow: str) -> None:
    x, positives, _ = small_problem()
    limit = DeepLinearSSL(2).fit_pairs(x, positives)
    found = []
    for time in (0.0, 1.0, 10.0, 100.0, 1000.0):
        model = DeepLinearSSL(2, time=time, flow=flow).fit_pairs(x, positives)
        np.testing.assert_allclose(model.eigenvalues_, limit.eigenvalues_, rtol=0, atol=1e-12)
        found.append(model.loss_)
    assert (np.diff(found) < 1e-9).all()
    assert found[0] > 0.6 * limit.loss_ > found[-1]
    assert found[-1] == pytest.approx(limit.loss_, abs=1e-8)
    gram = model.components_.T @ model.components_
    np.testing.assert_allclose(gram, limit.components_.T @ limit.components_, rtol=0, atol=1e-6)


def test_depth_speeds_up_all_but_the_grassmannian() -> None:
    x, positives, _ = small_problem()
    losses = {
        (flow, depth): DeepLinearSSL(2, time=0.3, flow=flow, depth=depth).fit_pairs(x, positives).loss_
        for flow in FLOWS
        for depth in (1, 3)
    }
    assert losses["grassmann", 1] == losses["grassmann", 3]
    for flow in ("polar", "oja"):
        assert losses[flow, 3] < losses[flow, 1] - 1e-2


# The matrix


@given(
    seed=integers(0, 2**10),
    contrastive=booleans(),
    n_positives=integers(1, 3),
    n_negatives=integers(0, 2),
    scale=floats(0.1, 10),
)
def test_the_frame_diagonalizes_the_matrix_of_the_pairs(
    seed: int, contrastive: bool, n_positives: int, n_negatives: int, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    x = scale * rows(20, 4, seed=seed)
    positives = x[:, None] + 0.1 * scale * rng.normal(size=(20, n_positives, 4))
    negatives = scale * rng.normal(size=(20, n_negatives, 4)) if n_negatives and contrastive else None
    repelled = negatives if contrastive else np.zeros((20, 1, 4))
    C = data_matrix(x, positives, repelled).numpy()
    model = DeepLinearSSL(2, contrastive=contrastive, center=False).fit_pairs(x, positives, negatives)
    W = model.components_.T
    np.testing.assert_allclose(model.eigenvalues_, np.linalg.eigvalsh(C)[:2], rtol=0, atol=1e-12 * scale**2)
    np.testing.assert_allclose(C @ W, W * model.eigenvalues_, rtol=0, atol=1e-10 * scale**2)
    np.testing.assert_allclose(W.T @ W, np.eye(2), rtol=0, atol=1e-12)
    assert model.loss_ == pytest.approx(model.eigenvalues_.sum())
    np.testing.assert_allclose(model.transform(x), x @ W, rtol=0, atol=1e-12 * scale)


def test_fit_makes_positives_by_views_and_repels_the_others() -> None:
    seen = []

    def view(x: Tensor, g: torch.Generator) -> Tensor:
        seen.append(x + 0.3 * torch.randn(x.shape, generator=g, dtype=x.dtype))
        return seen[-1]

    x = rows()
    model = DeepLinearSSL(2, views=view, n_positives=2, random_state=3).fit(x)
    again = DeepLinearSSL(2).fit_pairs(x, torch.stack(seen, dim=1).numpy())
    np.testing.assert_allclose(again.transform(x), model.transform(x), rtol=0, atol=1e-12)
    # all n − 1 others, drawn without repetition, are their expectation
    some = DeepLinearSSL(2, views="noise:0", negatives=39).fit(x)
    np.testing.assert_allclose(
        some.transform(x), DeepLinearSSL(2, views="noise:0").fit_transform(x), rtol=0, atol=1e-10
    )


def test_without_negatives_centered_data_give_principal_components() -> None:
    """Claim B.nc: E[C] = −Cov(x), here exactly, as positives are the anchors."""
    x = rows(60) - rows(60).mean(0)
    model = DeepLinearSSL(3, contrastive=False, views="noise:0").fit(x)
    np.testing.assert_allclose(model.eigenvalues_, -np.linalg.eigvalsh(x.T @ x / 60)[::-1][:3], rtol=1e-12)


def test_a_large_mean_brings_the_noise_of_views_and_centring_takes_it_away() -> None:
    x = np.random.default_rng(0).normal(size=(100, 2))
    near = DeepLinearSSL(2, random_state=1).fit(x)
    assert (near.eigenvalues_ < -0.5).all()
    with pytest.raises(TooManyComponentsError):
        DeepLinearSSL(2, center=False, random_state=1).fit(x + 300)
    far = DeepLinearSSL(2, random_state=1).fit(x + 300)
    np.testing.assert_allclose(far.eigenvalues_, near.eigenvalues_, rtol=1e-9)
    np.testing.assert_allclose(far.transform(x + 300), near.transform(x), rtol=0, atol=1e-9)
    assert DeepLinearSSL(2, center=False).fit(x).mean_ is None


def test_the_matrix_does_not_depend_on_what_is_done_with_it() -> None:
    x = rows()
    fits = [
        DeepLinearSSL(z, random_state=5, **options).fit(x)
        for z in (1, 2)
        for options in ({}, {"time": 0.1}, {"time": 0.2, "flow": "oja", "depth": 2, "width": 30})
    ]
    for fit in fits:
        assert fit.eigenvalues_[0] == pytest.approx(fits[0].eigenvalues_[0], abs=1e-12)


def test_batches_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    x, positives = pairs(200)
    whole = DeepLinearSSL(2, time=0.2).fit_pairs(x, positives)
    monkeypatch.setattr(base, "BATCH_ENTRIES", 1)
    assert base.batch_rows(6) < 100
    batched = DeepLinearSSL(2, time=0.2).fit_pairs(x, positives)
    np.testing.assert_allclose(batched.transform(x), whole.transform(x), rtol=0, atol=1e-9)


# The start


def test_time_zero_is_a_random_network() -> None:
    """A network's map and the first rows of a frame have the same law: equal moments, over 400 draws of each."""
    x, positives = pairs()
    drawn = [
        DeepLinearSSL(2, time=0.0, width=12, random_state=seed).fit_pairs(x, positives).components_
        for seed in range(400)
    ]
    for depth in (1, 3):
        networks = [map_of(network(seed, depth)).T for seed in range(400)]
        for power in (2, 4):
            ours, theirs = (
                np.array([(np.linalg.svd(one, compute_uv=False) ** power).sum() for one in maps])
                for maps in (drawn, networks)
            )
            error = math.hypot(ours.std(), theirs.std()) / 20
            assert abs(ours.mean() - theirs.mean()) < 4 * error
    squares = np.mean([one @ one.T for one in drawn], axis=0)
    np.testing.assert_allclose(squares, np.eye(2) / 2, rtol=0, atol=0.05)  # d/h
    assert np.abs(np.mean(drawn, axis=0)).max() < 0.06


def test_the_width_is_that_of_the_start() -> None:
    x, positives = pairs()
    square = DeepLinearSSL(2, time=0.0, width=6).fit_pairs(x, positives).components_
    np.testing.assert_allclose(square @ square.T, np.eye(2), rtol=0, atol=1e-12)  # W_1 is a rotation
    wide = DeepLinearSSL(2, time=0.0, width=6000).fit_pairs(x, positives).components_
    assert 0.2 < np.linalg.norm(wide, 2) * math.sqrt(1000) < 3
    default, same = (DeepLinearSSL(2, time=0.1, width=width).fit_pairs(x, positives) for width in (None, 8))
    np.testing.assert_array_equal(default.components_, same.components_)


@pytest.mark.parametrize("kind", ["array", "tensor", "list", "float32"])
def test_a_start_of_ones_own(kind: str) -> None:
    x, positives, C = small_problem()
    start = map_of(network(3))
    given_ = {
        "array": start,
        "tensor": torch.from_numpy(start),
        "list": start.tolist(),
        "float32": start.astype(np.float32),
    }[kind]
    model = DeepLinearSSL(2, time=0.7, start=given_, center=False).fit_pairs(x, positives)
    flow = deep_linear_flow(C, torch.as_tensor(given_, dtype=torch.float64), times=[0.7])
    np.testing.assert_allclose(model.components_, flow.maps[0].mT, rtol=0, atol=1e-8)


def test_a_start_survives_a_file(tmp_path: object) -> None:
    x, positives, _ = small_problem()
    model = DeepLinearSSL(2, time=0.7, start=map_of(network(3))).fit_pairs(x, positives)
    again = load_model(model.save(tmp_path / "model.npz"))
    assert again.loss_ == model.loss_
    np.testing.assert_array_equal(again.fit_pairs(x, positives).components_, model.components_)


# Seeds, number types, features


@given(seed=integers(0, 2**16), flow=sampled_from(FLOWS))
def test_a_seed_says_everything(seed: int, flow: str) -> None:
    x = rows(20)
    a, b, other = (
        DeepLinearSSL(2, time=0.1, flow=flow, random_state=one).fit_transform(x) for one in (seed, seed, seed + 1)
    )
    np.testing.assert_array_equal(a, b)
    assert np.abs(a - other).max() > 1e-6


@pytest.mark.parametrize("time", [0.3, math.inf])
def test_single_precision_is_close(time: float) -> None:
    x, positives, _ = small_problem()
    double = DeepLinearSSL(2, time=time).fit_pairs(x, positives)
    single = DeepLinearSSL(2, time=time).fit_pairs(x.astype(np.float32), positives.astype(np.float32))
    assert single.transform(x.astype(np.float32)).dtype == single.components_.dtype == np.float32
    np.testing.assert_allclose(single.components_, double.components_, rtol=0, atol=1e-5)
    cast = DeepLinearSSL(2, time=time, dtype="float32").fit_pairs(x, positives)
    np.testing.assert_array_equal(cast.components_, single.components_)


def test_images_are_rows_and_tensors_stay_tensors() -> None:
    x = pictures(30)
    as_rows = DeepLinearSSL(3, views="noise:0.1").fit(x.reshape(30, 64))
    images = DeepLinearSSL(3, views="noise:0.1").fit(as_tensor(x))
    found = images.transform(as_tensor(x))
    assert isinstance(found, Tensor)
    rows_ = x.reshape(30, 64)
    np.testing.assert_allclose(found, (rows_ - rows_.mean(0)) @ images.components_.T, rtol=0, atol=1e-12)
    assert images.sample_shape_ == (1, 8, 8)
    assert images.components_.shape == as_rows.components_.shape == (3, 64)
    moved = DeepLinearSSL(3).fit(x)  # affine views
    assert np.abs(moved.components_ - images.components_).max() > 1e-3


def test_features_of_ones_own_lie_below_the_network() -> None:
    x, positives = pairs()
    V = randn(6, 5)
    model = DeepLinearSSL(2, time=0.2, features=lambda t: torch.tanh(t @ V.to(t))).fit_pairs(x, positives)
    phi, plus = (torch.tanh(as_tensor(part) @ V).numpy() for part in (x, positives))
    twin = DeepLinearSSL(2, time=0.2).fit_pairs(phi, plus)
    np.testing.assert_allclose(model.transform(x), twin.transform(phi), rtol=0, atol=1e-9)


# Bad input

WRONG = [
    *(("n_components", value) for value in (0, -1, 2.5, "2", True, None)),
    *(("time", value) for value in (-1, -1e-9, math.nan, -math.inf, "1", None, True)),
    *(("depth", value) for value in (0, -1, 1.5, "1", True, None)),
    *(("flow", value) for value in ("stiefel", None, 3, ["oja"])),
    *(("width", value) for value in (0, -1, 2.5, 5, "8", True, math.inf)),
    *(("start", value) for value in (np.zeros(6), np.zeros((2, 6)), np.zeros((6, 3)), "map", [[1, 2], [3]])),
    *(("start", value) for value in (np.full((6, 2), math.nan), 2 * np.eye(6)[:, :2])),
    *(("contrastive", value) for value in (1, "no", None)),
    *(("features", value) for value in ("random", "patches", None, 3)),
    *(("views", value) for value in ("noise:x", "blur", None)),
    *(("n_positives", value) for value in (0, 1.5, None)),
    *(("negatives", value) for value in (0, 40, "some", None)),
    *(("dtype", value) for value in ("float16", 3)),
    *(("device", value) for value in ("tpu", 3)),
    *(("random_state", value) for value in ("seed", -1)),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_every_wrong_option_is_named(name: str, value: object) -> None:
    model = DeepLinearSSL(**{"n_components": 2, "time": 0.1, name: value})
    with pytest.raises(ValueError, match=r"\w+") as caught:
        model.fit(rows())
    assert name.removeprefix("n_").rstrip("s") in str(caught.value) or repr(value) in str(caught.value)


def test_options_that_do_not_go_together() -> None:
    with pytest.raises(InputError, match=r"contrastive=False repels nothing, got negatives=3"):
        DeepLinearSSL(2, contrastive=False, negatives=3).fit(rows())
    x, positives = pairs()
    with pytest.raises(InputError, match=r"contrastive=False repels nothing.*leave them out"):
        DeepLinearSSL(2, contrastive=False).fit_pairs(x, positives, x[::-1])
    with pytest.raises(InputError, match=r"start stands for a random network.*width=9"):
        DeepLinearSSL(2, start=np.eye(6)[:, :2], width=9).fit(x)


def test_more_outputs_than_inputs_or_negative_eigenvalues_are_refused() -> None:
    x = rows()
    for time in (0.1, math.inf):
        with pytest.raises(TooManyComponentsError, match=r"n_components=7, but there are only 6 feature") as caught:
            DeepLinearSSL(7, time=time).fit(x)
        assert caught.value.most == 6
    positives = x.copy()
    positives[:, :4] *= -1  # only two coordinates are kept
    with pytest.raises(TooManyComponentsError, match=r"only \d eigenvalues of the data matrix are negative") as caught:
        DeepLinearSSL(6).fit_pairs(x, positives, -positives)
    most = caught.value.most
    assert 1 <= most < 6
    assert (DeepLinearSSL(most).fit_pairs(x, positives, -positives).eigenvalues_ < 0).all()
    late = DeepLinearSSL(6, time=50.0).fit_pairs(x, positives, -positives)  # what is not learnt tends to 0
    assert np.linalg.matrix_rank(late.components_, tol=1e-3) == most


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_makes_no_negative_eigenvalues(dtype: type) -> None:
    x = rows(40, 3) @ np.random.default_rng(0).normal(size=(3, 8))
    with pytest.raises(TooManyComponentsError) as caught:
        DeepLinearSSL(5, views="noise:0").fit(x.astype(dtype))
    assert caught.value.most == 3


def test_times_that_would_take_hours_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x, positives = pairs()
    for flow, scale, time in (("grassmann", 1, 1e9), ("polar", 1e6, 1.0)):
        with pytest.raises(InputError, match=r"time=.* is too long for eigenvalues of up to .*flow='oja'"):
            DeepLinearSSL(2, time=time, flow=flow).fit_pairs(scale * x, scale * positives)
    for options in ({"n_components": 2, "flow": "oja"}, {"n_components": 2, "time": math.inf}, {"n_components": 1}):
        model = DeepLinearSSL(**{"time": 1e5, **options}).fit_pairs(x, positives)
        assert model.loss_ == pytest.approx(model.eigenvalues_.sum(), abs=1e-6)
    # the limit is the one that is named
    monkeypatch.setattr(deep_linear, "LONGEST", 10.0)
    with pytest.raises(InputError, match="at most") as caught:
        DeepLinearSSL(2, time=100.0).fit_pairs(x, positives)
    most = float(str(caught.value).split("at most ")[1].split()[0])
    DeepLinearSSL(2, time=0.98 * most).fit_pairs(x, positives)


@given(
    n=integers(2, 10),
    d=integers(1, 5),
    k=integers(1, 3),
    seed=integers(0, 2**10),
    damage=sampled_from(["none", "duplicate", "zero rows", "constant column", "tiny", "large", "one point"]),
    time=sampled_from([0.0, 1e-2, math.inf]),
    flow=sampled_from(FLOWS),
    contrastive=booleans(),
    single=booleans(),
)
def test_small_and_damaged_data_give_finite_embeddings_or_a_clear_error(
    n: int, d: int, k: int, seed: int, damage: str, time: float, flow: str, contrastive: bool, single: bool
) -> None:
    x = rows(n, d, seed=seed)
    if damage == "duplicate":
        x[n // 2 :] = x[: n - n // 2]
    elif damage == "zero rows":
        x[::2] = 0
    elif damage == "constant column":
        x[:, 0] = 1
    elif damage == "one point":
        x[:] = x[0]
    elif damage != "none":
        x *= 1e-9 if damage == "tiny" else 1e6
    x = x.astype(np.float32) if single else x
    model = DeepLinearSSL(k, time=time, flow=flow, contrastive=contrastive, random_state=seed)
    try:
        out = model.fit(x).transform(x)
    except InputError as error:
        assert len(str(error)) > 20  # noqa: PT017
        return
    assert out.shape == (n, k)
    assert np.isfinite(out).all()
    assert np.linalg.norm(model.components_, 2) <= 1 + 1e-5
    assert (np.diff(model.eigenvalues_) >= 0).all()


def test_at_the_least_width_every_output_keeps_its_length() -> None:
    """At h = d the singular values of u stay 1, so that the end is the lowest eigenvectors, negative or not."""
    x = rows(40, 4)
    positives, negatives = x * np.array([1, 0.5, -0.5, -1]), np.zeros_like(x)
    with pytest.raises(TooManyComponentsError):
        DeepLinearSSL(3, center=False).fit_pairs(x, positives, negatives)
    limit = DeepLinearSSL(3, width=4, center=False).fit_pairs(x, positives, negatives)
    late = DeepLinearSSL(3, width=4, center=False, time=1e4, flow="oja").fit_pairs(x, positives, negatives)
    assert limit.eigenvalues_[-1] > 0
    assert late.loss_ == pytest.approx(limit.loss_, rel=1e-9)
    sines = subspace_sines(torch.from_numpy(limit.components_.T.copy()), torch.from_numpy(late.components_.T.copy()))
    assert float(sines[0]) < 1e-6
