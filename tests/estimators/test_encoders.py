"""The closed form as a head on an encoder of one's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kontrast.errors import InputError
from kontrast.estimators import ContrastivePCA, SpectralContrastive
from tests.estimators.made_data import as_tensor, pictures, row_views, rows

KINDS = [ContrastivePCA, SpectralContrastive]


def encoder(d: int = 6) -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(d, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.5), nn.Linear(12, 5))
    net[1].running_mean += 0.2
    return net


def fit(kind: type, features: object, x: np.ndarray) -> object:
    return kind(2, features=features, views="noise:0.1").fit(x)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("training", [True, False])
def test_a_module_keeps_its_mode_and_its_statistics_and_gives_its_eval_features(kind: type, training: bool) -> None:
    net = encoder().train(training)
    net[3].train(not training)
    modes = [module.training for module in net.modules()]
    before = {name: value.clone() for name, value in net.state_dict().items()}
    x = rows().astype(np.float32)
    model = fit(kind, net, x)
    out = model.transform(x)
    assert [module.training for module in net.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in net.parameters())
    with torch.no_grad():
        phi = net.eval()(torch.from_numpy(x))
    phi = (phi / (phi.norm(dim=1, keepdim=True) + 1e-6 * 5**0.5)).numpy()
    centered = phi if model.mean_ is None else phi - model.mean_
    np.testing.assert_allclose(out, centered @ model.components_.T, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_functions_and_numpy_functions(kind: type) -> None:
    x = rows()
    linear = np.random.default_rng(0).normal(size=(6, 4))
    as_numpy = fit(kind, lambda t: t.numpy() @ linear, x).transform(x)
    as_torch = fit(kind, lambda t: t @ torch.from_numpy(linear), x).transform(x)
    np.testing.assert_allclose(as_numpy, as_torch, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_convolutions_on_images_have_their_outputs_flattened(kind: type) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
    x = pictures().astype(np.float32)
    model = kind(2, features=net, views="affine").fit(x)
    assert model.components_.shape == (2, 12)
    assert model.transform(x).shape == (24, 2)


def test_the_width_does_not_matter() -> None:
    x, net = rows(), encoder().double()
    expected = ContrastivePCA(2, features=net).fit(x).transform(x)
    np.testing.assert_array_equal(ContrastivePCA(2, features=net, width=7).fit(x).transform(x), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_two_models_over_one_encoder(kind: type) -> None:
    """One in float32 and one in float64: the second must not take the encoder from the first."""
    net, x = encoder(), rows().astype(np.float32)
    first = fit(kind, net, x)
    expected = first.transform(x)
    fit(kind, net, x.astype(np.float64))
    np.testing.assert_allclose(first.transform(x), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_users_encoder_keeps_its_number_type(kind: type) -> None:
    """numpy's float64 rows must not turn the pretrained encoder at hand into a float64 one."""
    net = encoder()
    fit(kind, net, rows())
    assert {parameter.dtype for parameter in net.parameters()} == {torch.float32}


class Output(dict):
    """As large libraries return it."""


WRONG = {
    "one number a sample": lambda x: x[:, 0],
    "fewer samples": lambda x: x[: len(x) // 2],
    "whole numbers": lambda x: x.long(),
    "nothing": lambda x: None,
    "a tuple": lambda x: (x, x),
    "a dictionary": lambda x: Output(features=x),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", WRONG)
def test_encoders_that_give_no_vectors_are_refused(kind: type, wrong: str) -> None:
    with pytest.raises(InputError, match="the encoder must map a batch of 2 samples to as many"):
        fit(kind, WRONG[wrong], rows())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_encoders_that_give_nan_are_refused_at_fit_and_at_transform(kind: type, bad: float) -> None:
    x = rows()
    with pytest.raises(InputError, match="NaN, infinite"):
        fit(kind, lambda t: t * bad, x)
    model = fit(kind, lambda t: torch.where(t > 100, bad, t), x)
    far = x.copy()
    far[0, 0] = 1000
    with pytest.raises(InputError, match="NaN, infinite"):
        model.transform(far)


@pytest.mark.parametrize("kind", KINDS)
def test_an_encoder_for_other_samples_is_refused_with_its_own_words(kind: type) -> None:
    with pytest.raises((InputError, RuntimeError), match=r"encoder|mat1 and mat2"):
        fit(kind, encoder(d=4), rows())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{"depth": 2}, {"activation": "tanh"}])
def test_options_of_the_random_network_are_refused(kind: type, options: dict[str, object]) -> None:
    with pytest.raises(InputError, match="depth and activation belong to features='random'"):
        kind(2, features=encoder(), **options).fit(rows())


def test_more_components_than_outputs_are_refused() -> None:
    with pytest.raises(InputError, match="n_components=6, but there are only 5 features"):
        ContrastivePCA(6, features=encoder().double()).fit(rows())
    with pytest.raises(InputError, match="n_components=6, but there are only 5 features"):
        SpectralContrastive(6, features=encoder().double()).fit(rows())


VIEWS = {
    "another width": lambda x, g: x[:, :3],
    "fewer samples": lambda x, g: x[:5],
    "another number type": lambda x, g: x.half(),
    "an array": lambda x, g: x.numpy(),
    "nothing": lambda x, g: None,
}


@pytest.mark.parametrize("width", [8, float("inf")])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("view", VIEWS)
def test_views_of_ones_own_that_are_none_are_refused(kind: type, width: float, view: str) -> None:
    """As `make_pairs` refuses them: a view must keep number type and shape."""
    with pytest.raises(InputError, match="a view must keep number type and shape"):
        kind(2, width=width, views=VIEWS[view]).fit(rows())


def test_a_head_on_an_encoder_streams_from_a_loader() -> None:
    net = encoder().double()
    views = row_views(2)
    batches = [[as_tensor(view[start : start + 10]) for view in views] for start in range(0, 40, 10)]
    model = SpectralContrastive(2, features=net).fit_loader(batches)
    whole = SpectralContrastive(2, features=net).fit_views(views)
    np.testing.assert_allclose(model.transform(views[0]), whole.transform(views[0]), rtol=0, atol=1e-9)


def test_a_forward_hook_sees_no_gradient() -> None:
    seen: list[bool] = []

    def look(x: Tensor) -> Tensor:
        seen.append(torch.is_grad_enabled())
        return x

    ContrastivePCA(2, features=look).fit(rows()).transform(rows())
    assert len(seen) > 1
    assert not any(seen)


def test_encoders_see_a_bounded_number_of_samples_at_a_time() -> None:
    seen: list[int] = []

    def look(x: Tensor) -> Tensor:
        seen.append(len(x))
        return torch.tanh(x)

    model = SpectralContrastive(2, features=look, n_views=2).fit(rows(1000))
    model.transform(rows(1000))
    assert max(seen) == 256
    assert sum(seen) == 2 + 3 * 1000  # two samples to count the features


def test_a_large_mean_of_the_features_leaves_no_rounding_behind() -> None:
    """The mean is subtracted before the product with W, not after it."""
    views = [view.astype(np.float32) for view in row_views(2)]
    model = SpectralContrastive(2, features=lambda t: 1000 + torch.tanh(t), similarity="dot", ridge=1e-2)
    model.fit_views(views)
    far = model.transform(views[0])
    phi = (1000 + torch.tanh(torch.from_numpy(views[0]))) / np.sqrt(6)  # as the encoder rounds them
    exact = (phi.numpy().astype(np.float64) - model.mean_) @ model.components_.T.astype(np.float64)
    np.testing.assert_allclose(far, exact, rtol=0, atol=1e-5 * np.abs(exact).max())
