from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import floats, integers, sampled_from
from torch import Tensor

from kontrast.data import GaussianNoise, Pairs, make_pairs, pair_matrix
from kontrast.errors import InputError
from kontrast.estimators import ContrastivePCA, base, features
from kontrast.estimators import contrastive_pca as module
from kontrast.linalg import grassmann_step, qr_retraction, random_frame, subspace_sines
from kontrast.pca import contrastive_pca, kernel_contrastive_pca
from tests.cases import generator, randn
from tests.estimators.made_data import as_tensor, pairs, rows
from tests.reference import closed_forms as reference


def several(n: int, count: int, d: int = 6, *, noise: float = 0.4, seed: int = 5) -> np.ndarray:
    """(n, count, d): positives of `rows(n, d)`."""
    return rows(n, d)[:, None] + noise * np.random.default_rng(seed).normal(size=(n, count, d))


def features_of(model: ContrastivePCA, *parts: np.ndarray | None) -> list[Tensor | None]:
    """The model's own features of samples (n, d) or (n, P, d)."""
    found = []
    for part in parts:
        if part is None:
            found.append(None)
            continue
        flat = model.features_(as_tensor(part.reshape(-1, part.shape[-1])))
        found.append(flat.view(*part.shape[:-1], flat.shape[1]))
    return found


def frame_of(model: ContrastivePCA) -> Tensor:
    return torch.from_numpy(model.components_).mT


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("n_positives", [1, 3])
@pytest.mark.parametrize("n_negatives", [None, 1, 2])
def test_pairs_at_finite_width_are_the_eigenvectors_of_the_matrix_of_the_paper(
    similarity: str, n_positives: int, n_negatives: int | None
) -> None:
    x, positives = rows(), several(40, n_positives)
    negatives = None if n_negatives is None else several(40, n_negatives, noise=3.0, seed=7)
    if n_positives == 1:
        positives = positives[:, 0]
    model = ContrastivePCA(3, width=20, similarity=similarity).fit_pairs(x, positives, negatives)
    phi, plus, minus = features_of(model, x, positives.reshape(40, n_positives, 6), negatives)
    C = reference.pair_matrix(phi, plus, minus)
    values, W = torch.linalg.eigh(C)
    np.testing.assert_allclose(model.eigenvalues_, values.flip(0)[:3], rtol=0, atol=1e-12)
    assert float(subspace_sines(frame_of(model), W.flip(1)[:, :3]).max()) < 1e-6
    np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(3), rtol=0, atol=1e-12)
    assert model.mean_ is None
    assert model.kernel_error_ is None
    new = rows(7, seed=9)
    np.testing.assert_allclose(
        model.transform(new), model.features_(as_tensor(new)) @ frame_of(model), rtol=0, atol=1e-13
    )


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("negatives", [1, "all"])
@pytest.mark.parametrize("n_positives", [1, 2])
def test_the_same_pairs_give_the_contrastive_pca_of_the_spectral_layer(
    similarity: str, negatives: int | str, n_positives: int
) -> None:
    drawn = make_pairs(
        as_tensor(rows()),
        views=GaussianNoise(0.3),
        n_positives=n_positives,
        negatives=negatives,
        generator=generator(3),
    )
    x, plus, minus = drawn.split(drawn.x)
    model = ContrastivePCA(3, width=30, similarity=similarity)
    model.fit_pairs(x, plus if n_positives > 1 else plus[:, 0], None if negatives == "all" else minus)
    # The estimator takes means over positives, paper A's (6) sums: with P of them negatives count P times as much.
    weight = torch.ones(40, 1).double() if drawn.negative_weight is None else drawn.negative_weight
    summed = Pairs(drawn.x, drawn.anchor, drawn.positive, drawn.negative, n_positives * weight)
    solution = contrastive_pca(model.features_(drawn.x), pair_matrix(summed), 3)
    np.testing.assert_allclose(model.eigenvalues_, solution.values / n_positives, rtol=0, atol=1e-12)
    assert float(subspace_sines(frame_of(model), solution.frame).max()) < 1e-6


def test_fit_draws_what_make_pairs_draws() -> None:
    """Positives are views and negatives other samples: one run recorded, and given back as pairs of one's own."""
    seen = []

    def view(x: Tensor, g: torch.Generator) -> Tensor:
        seen.append(GaussianNoise(0.3)(x, g))
        return seen[-1]

    x = rows()
    for width in (20, math.inf):
        seen.clear()
        drawn = ContrastivePCA(2, width=width, views=view, n_positives=2, random_state=4).fit(x)
        given_ = ContrastivePCA(2, width=width, random_state=4).fit_pairs(x, torch.stack(seen, dim=1).numpy())
        np.testing.assert_allclose(drawn.transform(x), given_.transform(x), rtol=0, atol=1e-9)


@pytest.mark.parametrize("width", [16, math.inf])
def test_sampled_negatives_come_near_their_expectation(width: float) -> None:
    """n − 1 distinct others are all of them: the same numbers. One of them: the same on average."""
    x = rows(30)
    fits = {
        negatives: ContrastivePCA(2, width=width, negatives=negatives, views="noise:0", random_state=1).fit(x)
        for negatives in ("all", 29, 1)
    }
    if width == math.inf:
        np.testing.assert_allclose(fits[29].eigenvalues_, fits["all"].eigenvalues_, rtol=0, atol=1e-10)
    else:
        # The negatives are drawn before the features, so the features differ: compare with their own expectation.
        (phi,) = features_of(fits[29], x)
        values = torch.linalg.eigvalsh(reference.pair_matrix(phi, phi[:, None], None)).flip(0)[:2]
        np.testing.assert_allclose(fits[29].eigenvalues_, values, rtol=0, atol=1e-10)
    assert not np.allclose(fits[1].eigenvalues_, fits["all"].eigenvalues_, rtol=1e-3)


# Infinite width


@pytest.mark.parametrize("n, similarity", [(20, "cosine"), (20, "dot"), (505, "cosine")])
def test_infinite_width_solves_the_kernel_problem(n: int, similarity: str) -> None:
    """Pools of 40 points, decomposed whole, and of 1010, by Lanczos."""
    x, positives = pairs(n)
    model = ContrastivePCA(2, similarity=similarity).fit_pairs(x, positives)
    pool = as_tensor(np.concatenate([x, positives]))
    assert torch.equal(model.features_.points, pool)
    K, S = model.features_.kernel(pool), reference.dense_pair_matrix(n, 1, None, 2 * n)
    a = frame_of(model)
    if n == 20:
        dense = np.sort(np.linalg.eigvals((S @ K).numpy()).real)[::-1]
        np.testing.assert_allclose(model.eigenvalues_, dense[:2], rtol=0, atol=1e-10)
    error = S @ (K @ a) - a * torch.from_numpy(model.eigenvalues_)
    assert float((K @ error).norm()) < 1e-5 * float((K @ a).norm())
    np.testing.assert_allclose(a.mT @ K @ a, np.eye(2), rtol=0, atol=1e-6)
    np.testing.assert_allclose(model.transform(pool.numpy()), K @ a, rtol=0, atol=1e-8)
    assert model.kernel_error_ == 0.0


def test_infinite_width_with_explicit_and_sampled_negatives() -> None:
    x, positives = rows(15), several(15, 2)
    negatives = several(15, 3, noise=2.0, seed=8)
    model = ContrastivePCA(2).fit_pairs(x, positives, negatives)
    pool = np.concatenate([x, *positives.transpose(1, 0, 2), *negatives.transpose(1, 0, 2)])
    K = model.features_.kernel(as_tensor(pool))
    places = torch.stack([torch.arange(15) + 15 * (3 + q) for q in range(3)], dim=1)
    S = reference.dense_pair_matrix(15, 2, places, len(pool))
    _, values = kernel_contrastive_pca(K, lambda block: S @ block, 2)
    np.testing.assert_allclose(model.eigenvalues_, values, rtol=0, atol=1e-12)


@pytest.mark.parametrize("features", ["random", "fourier"])
def test_all_landmarks_are_exact(features: str) -> None:
    """Positives are other anchors, so the anchors span everything."""
    x = rows(30)
    positives = x[np.arange(30) ^ 1]
    exact = ContrastivePCA(3, features=features).fit_pairs(x, positives)
    landmarks = ContrastivePCA(3, features=features, n_landmarks=60).fit_pairs(x, positives)
    np.testing.assert_allclose(landmarks.eigenvalues_, exact.eigenvalues_, rtol=0, atol=1e-9)
    new = rows(10, seed=3)
    a, b = exact.transform(new), landmarks.transform(new)
    signs = np.sign((a * b).sum(0))
    np.testing.assert_allclose(a, b * signs, rtol=0, atol=1e-6)
    assert landmarks.kernel_error_ == pytest.approx(0.0, abs=1e-9)


@settings(max_examples=10)
@given(seed=integers(0, 2**10), similarity=sampled_from(["cosine", "dot"]))
def test_fewer_landmarks_have_smaller_eigenvalues_and_larger_errors(seed: int, similarity: str) -> None:
    """Projections interlace; a seed's landmarks are nested."""
    x, positives = pairs(24, seed=seed)
    options = {"similarity": similarity, "random_state": seed}
    exact = ContrastivePCA(2, **options).fit_pairs(x, positives)
    errors = []
    for count in (6, 12, 24, 48):  # the last are all points
        model = ContrastivePCA(2, n_landmarks=count, **options).fit_pairs(x, positives)
        assert (model.eigenvalues_ <= exact.eigenvalues_ + 1e-9).all()
        points = as_tensor(np.concatenate([x, positives]))
        K = model.features_.kernel(points)
        phi = model.features_(points)
        left = 1 - float((phi @ phi.mT).trace()) / float(K.trace())
        assert model.kernel_error_ == pytest.approx(left, abs=1e-9)
        errors.append(model.kernel_error_)
    assert (np.diff(errors) <= 1e-12).all()
    assert errors[0] > errors[-1] - 1e-12
    assert errors[-1] == pytest.approx(0.0, abs=1e-9)


@settings(max_examples=15)
@given(seed=integers(0, 2**10), similarity=sampled_from(["cosine", "dot"]))
def test_the_errors_of_eigenvalues_are_what_half_the_landmarks_lack(seed: int, similarity: str) -> None:
    """A seed's landmarks are nested, so half of them can be asked for."""
    x, positives = pairs(24, seed=seed)
    options = {"similarity": similarity, "random_state": seed}
    whole = ContrastivePCA(2, n_landmarks=16, **options).fit_pairs(x, positives)
    half = ContrastivePCA(2, n_landmarks=8, **options).fit_pairs(x, positives)
    expected = whole.eigenvalues_ - half.eigenvalues_
    np.testing.assert_allclose(whole.eigenvalue_errors_, expected, rtol=0, atol=1e-9)
    assert (whole.eigenvalue_errors_ >= 0).all()


def test_without_landmarks_there_is_no_error_of_eigenvalues() -> None:
    x, positives = pairs()
    assert ContrastivePCA(2, width=8).fit_pairs(x, positives).eigenvalue_errors_ is None
    np.testing.assert_array_equal(ContrastivePCA(2).fit_pairs(x, positives).eigenvalue_errors_, [0, 0])


def test_large_pools_take_landmarks_and_say_their_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXACT_POOL", {"cpu": 79})
    monkeypatch.setattr(features, "LANDMARKS", 10)
    x, positives = pairs(40)
    model = ContrastivePCA(2).fit_pairs(x, positives)
    assert len(model.features_.points) == 10
    assert 0 < model.kernel_error_ < 1
    monkeypatch.setattr(module, "EXACT_POOL", {"cpu": 80})
    assert ContrastivePCA(2).fit_pairs(x, positives).kernel_error_ == 0.0


@pytest.mark.parametrize("options", [{}, {"activation": "erf", "depth": 2}, {"features": "fourier"}])
def test_finite_width_tends_to_the_limit(options: dict[str, object]) -> None:
    """The mean over draws of width 512 is within 5 percent."""
    x, positives = pairs(25)
    limit = ContrastivePCA(2, **options).fit_pairs(x, positives)
    found = []
    for seed in range(6):
        model = ContrastivePCA(2, width=512, random_state=seed, **options).fit_pairs(x, positives)
        found.append(model.eigenvalues_)
    np.testing.assert_allclose(np.mean(found, axis=0), limit.eigenvalues_, rtol=0.05)


def test_a_width_of_2048_is_within_a_few_percent_of_the_limit() -> None:
    x, positives = pairs(25)
    limit = ContrastivePCA(2).fit_pairs(x, positives)
    wide = ContrastivePCA(2, width=2048).fit_pairs(x, positives)
    np.testing.assert_allclose(wide.eigenvalues_, limit.eigenvalues_, rtol=0.06)
    new = rows(12, seed=3)
    gram, limit_gram = (Z @ Z.T for Z in (wide.transform(new), limit.transform(new)))
    assert np.linalg.norm(gram - limit_gram) < 0.2 * np.linalg.norm(limit_gram)


# The optimum


def loss_of(C: Tensor, W: Tensor) -> float:
    return -float((W.mT @ C @ W).trace())


@pytest.fixture(scope="module")
def fitted() -> tuple[ContrastivePCA, Tensor, np.ndarray, np.ndarray]:
    x, positives = pairs(20)
    model = ContrastivePCA(3, width=16).fit_pairs(x, positives)
    phi, plus = features_of(model, x, positives[:, None])
    return model, reference.pair_matrix(phi, plus, None), x, positives


def test_the_loss_of_the_embedding_itself_is_minus_the_eigenvalues(fitted: tuple) -> None:
    """(6) from the embeddings of the pairs alone: what the closed form promises to minimise."""
    model, C, x, positives = fitted
    f, plus = (torch.from_numpy(model.transform(part)) for part in (x, positives))
    direct = reference.pair_loss(f, plus[:, None], None)
    assert direct == pytest.approx(-model.eigenvalues_.sum(), abs=1e-12)
    assert direct == pytest.approx(loss_of(C, frame_of(model)), abs=1e-12)


@given(seed=integers(0, 2**16))
def test_no_random_frame_has_a_lower_loss(fitted: tuple, seed: int) -> None:
    model, C, _, _ = fitted
    assert loss_of(C, random_frame(16, 3, generator=generator(seed))) >= -model.eigenvalues_.sum() - 1e-12


@given(seed=integers(0, 2**16), size=floats(1e-6, 10))
def test_no_step_away_has_a_lower_loss(fitted: tuple, seed: int, size: float) -> None:
    model, C, _, _ = fitted
    best, W = -model.eigenvalues_.sum(), frame_of(model)
    assert loss_of(C, qr_retraction(W + size * randn(16, 3, seed=seed))) >= best - 1e-12
    assert loss_of(C, qr_retraction(W + size * C @ W)) >= best - 1e-12
    assert loss_of(C, grassmann_step(W, -2 * C @ W, learning_rate=size)) == pytest.approx(best, abs=1e-10)


def test_no_trained_frame_has_a_lower_loss(fitted: tuple) -> None:
    """Grassmannian descent and plain torch over the same features come to the same loss, from above."""
    model, C, _, _ = fitted
    best = -model.eigenvalues_.sum()
    W = random_frame(16, 3, generator=generator(2))
    for _ in range(1500):
        W = grassmann_step(W, -2 * C @ W, learning_rate=1.0)
    assert best - 1e-12 <= loss_of(C, W) < best + 1e-6
    raw = randn(16, 3, seed=3).requires_grad_()
    optimizer = torch.optim.Adam([raw], lr=0.05)
    losses = []
    for _ in range(500):
        frame, _ = torch.linalg.qr(raw)
        loss = -(frame.mT @ C @ frame).trace()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert min(losses) >= best - 1e-12
    assert min(losses) < best + 1e-3


# Batches


@pytest.mark.parametrize("options", [{"width": 12}, {"n_landmarks": 9}, {"width": 12, "similarity": "dot"}])
@pytest.mark.parametrize("negatives", [False, True])
def test_batches_do_not_matter(monkeypatch: pytest.MonkeyPatch, options: dict[str, object], negatives: bool) -> None:
    x, positives = pairs(200)
    minus = rows(200, seed=7) if negatives else None
    whole = ContrastivePCA(2, **options).fit_pairs(x, positives, minus)
    monkeypatch.setattr(base, "BATCH_ENTRIES", 1)
    assert base.batch_rows(12) < 100
    batched = ContrastivePCA(2, **options).fit_pairs(x, positives, minus)
    np.testing.assert_allclose(batched.eigenvalues_, whole.eigenvalues_, rtol=0, atol=1e-10)
    embedding = whole.transform(x)
    np.testing.assert_allclose(batched.transform(x), embedding, rtol=0, atol=1e-9)
    monkeypatch.setattr(base, "TRANSFORM_ENTRIES", {"cpu": 12 * 7})
    np.testing.assert_allclose(whole.transform(x), embedding, rtol=0, atol=1e-12)


# Bad pairs


def test_pairs_that_do_not_match_are_refused() -> None:
    x, positives = pairs(10)
    model = ContrastivePCA(2, width=8)
    for part, name in ((positives[:9], "positives"), (several(9, 2), "positives")):
        with pytest.raises(InputError, match=f"each anchor needs {name} of its own: got 10 anchors and 9 {name}"):
            model.fit_pairs(x, part)
    with pytest.raises(InputError, match="each anchor needs negatives of its own: got 10 anchors and 3 negatives"):
        model.fit_pairs(x, positives, x[:3])
    with pytest.raises(ValueError, match="X has 5 features, but ContrastivePCA is expecting 6"):
        model.fit_pairs(x, positives[:, :5])
    with pytest.raises(InputError, match=r"positives of shape \(10, 0, 6\) are none"):
        model.fit_pairs(x, several(10, 2)[:, :0])
    with pytest.raises(InputError, match=r"positives must be like the anchors.*\(10, 6\).*\(9, 6\)"):
        model.fit_pairs(x.tolist(), positives[:9].tolist())
    with pytest.raises(ValueError, match="minimum of 2"):
        model.fit_pairs(x[:1], positives[:1])
    bad = positives.copy()
    bad[3, 2] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        model.fit_pairs(x, bad)


def test_components_beyond_what_there_is_are_refused() -> None:
    x, positives = pairs(10)
    with pytest.raises(InputError, match="n_components=9, but there are only 8 features"):
        ContrastivePCA(9, width=8).fit_pairs(x, positives)
    with pytest.raises(InputError, match="n_components=21, but there are only 20 points of the pairs"):
        ContrastivePCA(21).fit_pairs(x, positives)
    with pytest.raises(InputError, match=r"n_components=6, but there are only 5 features"):
        ContrastivePCA(6, n_landmarks=5).fit_pairs(x, positives)
    for options in ({"width": 64}, {}):
        with pytest.raises(InputError, match=r"n_components=15, but only \d+ eigenvalues are positive"):
            ContrastivePCA(15, **options).fit_pairs(x, positives)
    with pytest.raises(InputError, match="only 0 eigenvalues are positive"):
        ContrastivePCA(1, features=lambda t: t, similarity="dot").fit_pairs(x, -x, x)


def test_landmarks_come_from_positives_too_and_the_error_counts_them() -> None:
    """Positives far from every anchor: landmarks among the anchors alone would not see them."""
    x, far = rows(60), rows(60, seed=5)[::-1] * 3
    exact = ContrastivePCA(3, features="fourier").fit_pairs(x, far)
    all_points = ContrastivePCA(3, features="fourier", n_landmarks=120).fit_pairs(x, far)
    np.testing.assert_allclose(all_points.eigenvalues_, exact.eigenvalues_, rtol=1e-6)
    assert all_points.kernel_error_ < 1e-6
    half = ContrastivePCA(3, features="fourier", n_landmarks=60).fit_pairs(x, far)
    points = {tuple(point) for point in half.features_.points.tolist()}
    assert 10 < len(points & {tuple(row) for row in far.tolist()}) < 50
    assert half.kernel_error_ > 0.01


def test_drawn_landmarks_hold_anchors_and_views() -> None:
    x = rows(60)
    model = ContrastivePCA(3, n_landmarks=60, views="noise:0.3").fit(x)
    points = {tuple(point) for point in model.features_.points.tolist()}
    assert 10 < len(points & {tuple(row) for row in x.tolist()}) < 50
    assert 0 < model.kernel_error_ < 1
