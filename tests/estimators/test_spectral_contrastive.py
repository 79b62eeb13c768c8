from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.strategies import floats, integers
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from kontrast.data import GaussianNoise
from kontrast.errors import InputError
from kontrast.estimators import Fourier, SpectralContrastive, base
from kontrast.linalg import subspace_sines
from tests.cases import randn
from tests.estimators.made_data import as_tensor, row_views, rows
from tests.reference import closed_forms as reference


def features_of(model: SpectralContrastive, views: list[np.ndarray]) -> Tensor:
    """(v, n, M)."""
    return torch.stack([model.features_(as_tensor(view)) for view in views])


def frame_of(model: SpectralContrastive) -> Tensor:
    return torch.from_numpy(model.components_).mT


# The closed form


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("ridge", [0.0, 1e-5, 0.05])
@pytest.mark.parametrize("power", [0, 0.5, 1.0])
def test_the_heads_are_those_of_the_generalized_eigenproblem(similarity: str, ridge: float, power: float) -> None:
    views = row_views()
    model = SpectralContrastive(3, width=7, similarity=similarity, ridge=ridge, power=power).fit_views(views)
    mean, covariance, _, between = reference.view_covariances(features_of(model, views))
    values, W = reference.whitened(between, covariance, 3, ridge=ridge)
    np.testing.assert_allclose(model.eigenvalues_, values, rtol=0, atol=1e-9)
    np.testing.assert_allclose(model.mean_, mean, rtol=0, atol=1e-12)
    W = W * values**power
    expected = W * torch.sign((W * frame_of(model)).sum(0))
    np.testing.assert_allclose(model.components_.T, expected, rtol=0, atol=1e-6 * float(expected.abs().max()))
    new = as_tensor(rows(9, seed=3))
    np.testing.assert_allclose(
        model.transform(new.numpy()), (model.features_(new) - mean) @ frame_of(model), rtol=0, atol=1e-9
    )


def test_outputs_are_whitened_or_have_the_deviations_of_their_power() -> None:
    views = row_views()
    whitened = SpectralContrastive(3, width=7, ridge=0, power=0.0).fit_views(views).components_
    for power in (0, 0.5, 1, 2.5):
        model = SpectralContrastive(3, width=7, ridge=0, power=power).fit_views(views)
        Z = np.concatenate([model.transform(view) for view in views])
        np.testing.assert_allclose(Z.mean(0), 0, rtol=0, atol=1e-10)
        expected = np.diag(model.eigenvalues_ ** (2 * power))
        np.testing.assert_allclose(Z.T @ Z / len(Z), expected, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(SpectralContrastive(3, width=7, ridge=0).fit_views(views).components_, whitened)


def test_views_that_change_nothing_have_eigenvalues_one_and_fresh_noise_has_none() -> None:
    x = rows()
    same = SpectralContrastive(3, width=7, ridge=0).fit_views([x, x])
    np.testing.assert_allclose(same.eigenvalues_, 1, rtol=0, atol=1e-9)
    shared = SpectralContrastive(1, width=7, ridge=1e-3).fit_views(row_views(v=2, noise=0.1)).eigenvalues_[0]
    noisy = SpectralContrastive(1, width=7, ridge=1e-3).fit_views(row_views(v=2, noise=5.0)).eigenvalues_[0]
    assert 0.9 < shared <= 1
    assert noisy < 0.7


@pytest.mark.parametrize("ridge", [1e-6, 1e-2])
def test_infinite_width_with_all_landmarks_is_the_problem_over_the_root_of_the_kernel(ridge: float) -> None:
    """Features K^½ of all views' points, as finite as any, against landmarks that are these points."""
    x = rows(15)
    views = [x, x[np.arange(15) // 2 * 2]]  # the second view of a sample is another sample, so the first spans all
    model = SpectralContrastive(2, width=math.inf, ridge=ridge, n_landmarks=15, similarity="dot", power=0.5)
    model.fit_views(views)
    K = model.features_.kernel(as_tensor(x))
    s, U = torch.linalg.eigh(K)
    root = (U * s.sqrt()) @ U.mT
    mean, covariance, _, between = reference.view_covariances(torch.stack([root, root[np.arange(15) // 2 * 2]]))
    values, W = reference.whitened(between, covariance, 2, ridge=ridge)
    np.testing.assert_allclose(model.eigenvalues_, values, rtol=0, atol=1e-7)
    expected = (root - mean) @ (W * values.sqrt())
    found = model.transform(x)
    assert float(subspace_sines(torch.from_numpy(found), expected).max()) < 1e-4
    np.testing.assert_allclose(found @ found.T, expected @ expected.mT, rtol=0, atol=1e-4)
    assert model.kernel_error_ == pytest.approx(0, abs=1e-9)


def test_more_landmarks_leave_less_of_the_kernel_out() -> None:
    views = row_views()
    errors = []
    for count in (5, 15, 40, None):
        model = SpectralContrastive(2, width=math.inf, n_landmarks=count).fit_views(views)
        whole = sum(float(model.features_.kernel.diagonal(as_tensor(view)).sum()) for view in views)
        held = float(features_of(model, views).square().sum())
        assert model.kernel_error_ == pytest.approx(1 - held / whole, abs=1e-9)
        errors.append(model.kernel_error_)
    assert errors[0] > errors[1] > errors[2] == errors[3] > 0


def test_the_errors_of_eigenvalues_are_what_half_the_landmarks_lack() -> None:
    """With ρ as it is for all of them, though they have less variance."""
    views = row_views()
    whole = SpectralContrastive(2, width=math.inf, n_landmarks=16, ridge=1e-3).fit_views(views)
    rho = 1e-3 * float(reference.view_covariances(features_of(whole, views))[1].trace())
    half = SpectralContrastive(2, width=math.inf, n_landmarks=8).fit_views(views)
    _, covariance, _, between = reference.view_covariances(features_of(half, views))
    values, _ = reference.whitened(between, covariance, 2, ridge=rho / float(covariance.trace()))
    np.testing.assert_allclose(whole.eigenvalue_errors_, whole.eigenvalues_ - values.numpy(), rtol=0, atol=1e-8)
    assert SpectralContrastive(2, width=8).fit_views(views).eigenvalue_errors_ is None


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("n_landmarks", [2, 3, 8])
def test_landmarks_of_which_half_are_blank_or_the_same(similarity: str, n_landmarks: int) -> None:
    """The estimate of the error must not stop a fit that works."""
    x = np.concatenate([rows(12), np.zeros((28, 6))])
    model = SpectralContrastive(1, width=math.inf, similarity=similarity, n_landmarks=n_landmarks, ridge=1e-3)
    solved = 0
    for seed in range(8):
        try:
            model.set_params(random_state=seed).fit_views([x, 0.9 * x])
        except InputError as error:
            assert "zero on the landmarks" in str(error)  # noqa: PT017
            continue
        solved += 1
        assert np.isfinite(model.eigenvalue_errors_).all()
        assert np.isfinite(model.transform(x)).all()
    assert solved > 0


def test_finite_width_tends_to_the_limit() -> None:
    views = row_views(v=4, n=60)
    limit = SpectralContrastive(2, width=math.inf, ridge=1e-3, n_landmarks=60).fit_views(views)
    found = [
        SpectralContrastive(2, width=400, ridge=1e-3, random_state=seed).fit_views(views).eigenvalues_
        for seed in range(4)
    ]
    np.testing.assert_allclose(np.mean(found, axis=0), limit.eigenvalues_, rtol=0.03)


# The optimum of the spectral contrastive loss


def vectorized_loss(views: Tensor) -> Tensor:
    """`reference.spectral_loss` in matrix products, to train with."""
    v, n, k = views.shape
    flat, total = views.reshape(v * n, k), views.sum(0)
    alike = (total.square().sum() - flat.square().sum()) / (n * v * (v - 1))
    return -2 * alike + (flat @ flat.mT).square().mean()


@pytest.fixture(scope="module")
def fitted() -> tuple[SpectralContrastive, Tensor, float]:
    """A model of 2 components on few samples, their centred features (v, n, M), and the loss of its outputs."""
    views = row_views(v=3, n=14, d=4)
    model = SpectralContrastive(2, width=5, ridge=0, similarity="dot", power=0.5).fit_views(views)
    outputs = torch.stack([torch.from_numpy(model.transform(view)) for view in views])
    return model, features_of(model, views) - torch.from_numpy(model.mean_), float(reference.spectral_loss(outputs))


def test_the_loss_of_the_outputs_is_minus_the_squared_eigenvalues(fitted: tuple) -> None:
    """Straight from the embeddings of all pairs of views, by a double loop: the minimum that the theory names."""
    model, phi, best = fitted
    assert best == pytest.approx(-float((model.eigenvalues_**2).sum()), abs=1e-10)
    assert best == pytest.approx(float(vectorized_loss(phi @ frame_of(model))), abs=1e-12)


def test_the_gradient_is_zero_at_the_closed_form(fitted: tuple) -> None:
    model, phi, best = fitted
    W = frame_of(model).clone().requires_grad_()
    reference.spectral_loss(phi @ W).backward()
    scale = float((phi.reshape(-1, 5).mT @ phi.reshape(-1, 5)).norm()) / phi[..., 0].numel()
    assert float(W.grad.norm()) < 1e-9 * max(1.0, scale)
    moved = frame_of(model).mul(1.1).requires_grad_()
    vectorized_loss(phi @ moved).backward()
    assert float(moved.grad.norm()) > 1e-3
    assert best < 0


@given(seed=integers(0, 2**16), size=floats(1e-3, 3))
def test_no_random_head_and_no_perturbation_has_a_lower_loss(fitted: tuple, seed: int, size: float) -> None:
    model, phi, best = fitted
    W, step = frame_of(model), randn(5, 2, seed=seed)
    for head in (size * step, W + size * step, W + 1e-4 * step, W * size, W @ step[:2]):
        assert float(vectorized_loss(phi @ head)) >= best - 1e-9


@pytest.mark.parametrize("method, seed", [("lbfgs", 0), ("lbfgs", 1), ("adam", 0)])
def test_no_trained_head_has_a_lower_loss(fitted: tuple, method: str, seed: int) -> None:
    """Training comes to the same value, from above."""
    _, phi, best = fitted
    head = (0.5 * randn(5, 2, seed=seed)).requires_grad_()
    if method == "lbfgs":
        optimizer = torch.optim.LBFGS(
            [head], max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-15, line_search_fn="strong_wolfe"
        )
    else:
        optimizer = torch.optim.Adam([head], lr=0.02)
    losses = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = vectorized_loss(phi @ head)
        loss.backward()
        losses.append(float(loss.detach()))
        return loss

    for _ in range(1 if method == "lbfgs" else 600):
        optimizer.step(closure)
    assert min(losses) >= best - 1e-9
    assert min(losses) < best + (1e-7 if method == "lbfgs" else 1e-3)


def test_a_ridge_moves_away_from_the_minimum_of_the_loss(fitted: tuple) -> None:
    """So that the tests above can fail: another head is worse by more than they allow."""
    _, phi, best = fitted
    views = row_views(v=3, n=14, d=4)
    other = SpectralContrastive(2, width=5, ridge=0.1, similarity="dot", power=0.5).fit_views(views)
    assert float(vectorized_loss(phi @ frame_of(other))) > best + 1e-3


# Views, loaders and batches


def recorded(noise: float = 0.3) -> tuple[list[Tensor], object]:
    seen: list[Tensor] = []

    def view(x: Tensor, g: torch.Generator) -> Tensor:
        seen.append(GaussianNoise(noise)(x, g))
        return seen[-1]

    return seen, view


@pytest.mark.parametrize("features", ["random", "fourier"])
def test_fit_equals_fit_views_of_the_views_it_made(features: str) -> None:
    seen, view = recorded()
    x = rows()
    options = {"width": 12, "features": features, "n_views": 3, "ridge": 1e-3, "random_state": 5}
    if features == "fourier":
        options["features"] = Fourier(3.0)  # the median distance would be that of the first view in fit_views
    fit = SpectralContrastive(2, views=view, **options).fit(x)
    assert len(seen) == 3
    again = SpectralContrastive(2, **options).fit_views(seen)
    np.testing.assert_allclose(again.eigenvalues_, fit.eigenvalues_, rtol=0, atol=1e-12)
    np.testing.assert_allclose(again.transform(x), fit.transform(x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("options", [{"width": 12}, {"width": math.inf, "n_landmarks": 9}])
def test_batches_do_not_matter(monkeypatch: pytest.MonkeyPatch, options: dict[str, object]) -> None:
    views = row_views(n=200)
    whole = SpectralContrastive(2, ridge=1e-3, **options).fit_views(views)
    monkeypatch.setattr(base, "BATCH_ENTRIES", 1)
    batched = SpectralContrastive(2, ridge=1e-3, **options).fit_views(views)
    np.testing.assert_allclose(batched.eigenvalues_, whole.eigenvalues_, rtol=0, atol=1e-10)
    np.testing.assert_allclose(batched.transform(views[0]), whole.transform(views[0]), rtol=0, atol=1e-8)


class TwoViews(Dataset):
    """What torchvision's data sets give under a two-view transform."""

    def __init__(self, views: list[np.ndarray], labels: bool) -> None:
        self.views, self.labels = [torch.from_numpy(view) for view in views], labels

    def __len__(self) -> int:
        return len(self.views[0])

    def __getitem__(self, i: int) -> object:
        views = [view[i] for view in self.views]
        return (views, i % 3) if self.labels else views


@pytest.mark.parametrize("v", [2, 3])
@pytest.mark.parametrize("labels", [False, True])
def test_a_torch_loader_gives_what_fit_views_gives(v: int, labels: bool) -> None:
    views = row_views(v)
    model = SpectralContrastive(2, width=12, ridge=1e-3).fit_loader(DataLoader(TwoViews(views, labels), batch_size=7))
    whole = SpectralContrastive(2, width=12, ridge=1e-3).fit_views(views)
    np.testing.assert_allclose(model.eigenvalues_, whole.eigenvalues_, rtol=0, atol=1e-12)
    np.testing.assert_allclose(model.transform(views[0]), whole.transform(views[0]), rtol=0, atol=1e-9)
    assert model.n_features_in_ == 6


def test_a_generator_of_batches_is_read_once_and_arrays_are_taken() -> None:
    views = row_views()
    given_ = []

    def batches() -> Iterator[list[np.ndarray]]:
        for start in range(0, 40, 16):
            given_.append(start)
            yield [view[start : start + 16] for view in views]

    model = SpectralContrastive(2, width=12, ridge=1e-3).fit_loader(batches())
    assert given_ == [0, 16, 32]
    whole = SpectralContrastive(2, width=12, ridge=1e-3).fit_views(np.stack(views))
    np.testing.assert_allclose(model.transform(views[0]), whole.transform(views[0]), rtol=0, atol=1e-9)


def test_loaders_that_give_no_views_are_refused() -> None:
    views = row_views(2)
    x = torch.from_numpy(views[0])
    model = SpectralContrastive(2, width=8)
    with pytest.raises(InputError, match="the loader gave no batch"):
        model.fit_loader([])
    for batch, got in ((x, "Tensor"), ([x], "list of 1"), ("batch", "str"), (([x], torch.zeros(40)), "list of 1")):
        with pytest.raises(InputError, match=f"a sequence of two or more views.*got {got}"):
            model.fit_loader([batch])
    with pytest.raises(InputError, match=r"batch 1 has views of different shapes, \[\(40, 6\), \(39, 6\)\]"):
        model.fit_loader([[x, x], [x, x[1:]]])
    with pytest.raises(InputError, match="give 2 views, got 3"):
        model.fit_loader([[x, x], [x, x, x]])
    with pytest.raises(InputError, match="X has 5 features, but SpectralContrastive is expecting 6"):
        model.fit_loader([[x, x], [x[:, :5], x[:, :5]]])
    with pytest.raises(InputError, match="real numbers in the shape"):
        model.fit_loader([[x, x, torch.zeros(40)]])
    with pytest.raises(InputError, match="at least 2 samples are needed, got 1"):
        model.fit_loader([[x[:1], x[:1]]])


def test_views_that_do_not_match_are_refused() -> None:
    views = row_views(2)
    model = SpectralContrastive(2, width=8)
    for one in ([], views[:1]):
        with pytest.raises(InputError, match=f"views must be two arrays or more, to compare them, got {len(one)}"):
            model.fit_views(one)
    with pytest.raises(InputError, match=r"same number and shape of samples, got \[\(40, 6\), \(39, 6\)\]"):
        model.fit_views([views[0], views[1][:39]])
    with pytest.raises(ValueError, match="X has 5 features, but SpectralContrastive is expecting 6"):
        model.fit_views([views[0], views[1][:, :5]])
    bad = views[1].copy()
    bad[3, 2] = np.inf
    with pytest.raises(ValueError, match=r"infinity|infinite"):
        model.fit_views([views[0], bad])


def test_components_and_covariances_that_cannot_work_are_refused() -> None:
    views = row_views(2, n=10)
    with pytest.raises(InputError, match="n_components=9, but there are only 8 features"):
        SpectralContrastive(9, width=8).fit_views(views)
    with pytest.raises(InputError, match=r"covariance of the 64 features is singular.*pass a ridge above 0"):
        SpectralContrastive(2, width=64, ridge=0).fit_views(views)
    assert np.isfinite(SpectralContrastive(2, width=64).fit_views(views).transform(views[0])).all()
    with pytest.raises(InputError, match="n_components=30, but there are only 9 differences between samples"):
        SpectralContrastive(30, width=64).fit_views(views)
    with pytest.raises(InputError, match="n_components=30, but there are only 9 differences between samples"):
        SpectralContrastive(30, width=64).fit_loader(
            [[view[half] for view in views] for half in (slice(5), slice(5, 10))]
        )
    noisy = [np.random.default_rng(i).standard_normal((40, 6)) for i in range(2)]  # views that have nothing in common
    with pytest.raises(InputError, match=r"n_components=39, but only \d+ eigenvalues are positive"):
        SpectralContrastive(39, width=64).fit_views(noisy)
    constant = np.ones((10, 6))
    with pytest.raises(InputError, match="the features do not vary"):
        SpectralContrastive(2, width=8).fit_views([constant, constant])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ridge": -1}, "ridge must be a finite number of at least 0"),
        ({"ridge": "small"}, "ridge must be a finite number of at least 0"),
        ({"n_components": 7}, "n_components=7, but there are only 6 features"),
    ],
)
def test_what_cannot_work_is_refused_before_the_long_work(options: dict[str, object], message: str) -> None:
    """The whole data must not go through the encoder first."""
    seen = []

    def encoder(x: Tensor) -> Tensor:
        seen.append(len(x))
        return x

    with pytest.raises(InputError, match=message):
        SpectralContrastive(**{"n_components": 2, "features": encoder, **options}).fit(rows(100))
    assert sum(seen) <= 2


def test_landmarks_are_views_of_samples() -> None:
    x = rows(50)
    model = SpectralContrastive(2, width=np.inf, n_landmarks=20, views="noise:0.3").fit(x)
    points, samples = torch.as_tensor(model.features_.points), torch.from_numpy(x)
    nearest = torch.cdist(points, samples).min(1).values
    assert float(nearest.min()) > 1e-3  # no sample itself
    assert float(nearest.max()) < 0.3 * 5


def test_a_loader_of_known_length_shows_progress() -> None:
    views, seen = row_views(2), []
    batches = [[view[start : start + 10] for view in views] for start in range(0, 40, 10)]
    SpectralContrastive(2, width=16, progress=lambda done, total: seen.append((done, total))).fit_loader(batches)
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
