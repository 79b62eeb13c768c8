from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis.strategies import booleans, integers, sampled_from
from torch import nn

from kontrast.errors import InputError
from kontrast.linalg import fit_power_law
from kontrast.nets import (
    MLP,
    EncoderFeatures,
    FourierFeatures,
    NetworkFeatures,
    PatchFeatures,
    ScaledFeatures,
    feature_maps,
    median_distance,
)
from kontrast.pca import hidden_features, pair_features
from tests.cases import DTYPES, generator, randn
from tests.reference import closed_forms as reference

CPU = torch.device("cpu")


def images(n: int = 8, c: int = 1, h: int = 8, w: int = 8, seed: int = 0) -> torch.Tensor:
    return torch.rand(n, c, h, w, generator=generator(seed), dtype=torch.float64)


# Random networks


@given(seed=integers(0, 2**16), depth=integers(1, 3), activation=sampled_from(["relu", "tanh", "leaky_relu:0.3"]))
def test_network_features_are_the_hidden_layer_of_a_net_with_the_same_weights(
    seed: int, depth: int, activation: str
) -> None:
    net = MLP(6, 9, 2, depth=depth, activation=activation, generator=generator(seed), dtype=torch.float64)
    features = NetworkFeatures([V.detach() for V in net.hidden], activation)
    x = randn(5, 6, seed=seed + 1)
    torch.testing.assert_close(features(x), hidden_features(net, x), rtol=0, atol=1e-13)
    torch.testing.assert_close(features(x.view(5, 1, 2, 3)), hidden_features(net, x), rtol=0, atol=1e-13)
    assert features.n_features == 9
    drawn = NetworkFeatures.draw(6, 9, depth=depth, activation=activation, generator=generator(seed))
    for mine, theirs in zip(drawn.hidden, net.hidden, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("delta", [None, 0.01])
def test_scaled_features_are_those_of_the_pair_matrix(delta: float | None) -> None:
    net = MLP(6, 9, 2, generator=generator(), dtype=torch.float64)
    x = randn(5, 6, seed=1)
    scaled = ScaledFeatures(NetworkFeatures([V.detach() for V in net.hidden], "relu"), delta)
    torch.testing.assert_close(scaled(x), pair_features(net, x, delta=delta), rtol=0, atol=1e-13)
    assert scaled.n_features == 9


@pytest.mark.parametrize("dtype", DTYPES)
def test_blank_samples_have_the_features_0_and_not_nan(dtype: torch.dtype) -> None:
    features = NetworkFeatures.draw(4, 8, depth=1, activation="relu", generator=generator()).to(CPU, dtype)
    x = torch.cat([torch.zeros(2, 4, dtype=dtype), randn(2, 4, dtype=dtype)])
    for delta in (None, 1e-6):
        phi = ScaledFeatures(features, delta)(x)
        assert torch.equal(phi[:2], torch.zeros(2, 8, dtype=dtype))
        assert torch.isfinite(phi).all()
    norms = ScaledFeatures(features, 1e-6)(x)[2:].norm(dim=1)
    torch.testing.assert_close(norms, torch.ones(2, dtype=dtype), rtol=1e-5, atol=0)


# Fourier features


def test_fourier_features_by_their_definition() -> None:
    features = FourierFeatures.draw(3, 5, length_scale=2.0, generator=generator())
    x = randn(4, 3)
    waves = list(zip(features.frequencies, features.phases, strict=True))
    expected = [[math.sqrt(2) * math.cos(float(omega @ row) + float(b)) for omega, b in waves] for row in x]
    torch.testing.assert_close(features(x), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)
    assert features.n_features == 5
    assert torch.equal(features(x.view(4, 1, 3, 1)), features(x))


def test_fourier_products_tend_to_the_gaussian_kernel_like_one_over_the_root_of_the_width() -> None:
    x, scale, widths = randn(6, 3), 1.5, [32, 128, 512, 2048]
    K = torch.exp(-torch.cdist(x, x).square() / (2 * scale**2))
    errors = []
    for width in widths:
        squares = []
        for seed in range(40):
            phi = FourierFeatures.draw(3, width, length_scale=scale, generator=generator(seed))(x) / math.sqrt(width)
            squares.append((phi @ phi.mT - K).square().mean())
        errors.append(math.sqrt(float(torch.stack(squares).mean())))
    assert fit_power_law(widths, errors).exponent == pytest.approx(-0.5, abs=0.08)
    assert errors[-1] < 0.03


def test_median_distance() -> None:
    x = torch.tensor([[0.0], [1.0], [3.0], [7.0]]).double()  # distances 1, 3, 7, 2, 6, 4
    assert median_distance(x, generator=generator()) == 3.0
    assert median_distance(torch.cat([x, x]), generator=generator()) == pytest.approx(4.0, abs=1.0)
    assert median_distance(randn(50, 3), generator=generator(), n_rows=10) > 0
    with pytest.raises(InputError, match="all samples are the same"):
        median_distance(torch.ones(5, 3), generator=generator())


# Patches


@pytest.fixture
def few_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_maps, "PATCHES_DRAWN", 400)


@pytest.mark.usefixtures("few_patches")
@pytest.mark.parametrize(
    ("shape", "side", "grid", "two_sided", "threshold", "contrast_floor"),
    [
        ((1, 8, 8), 3, 3, False, 0.5, 0.1),
        ((3, 6, 7), 4, 2, True, 0.1, 0.03),
        ((1, 7, 9), 2, 5, True, 0.0, 0.2),
        ((2, 5, 5), 5, 1, False, 0.2, 0.1),
    ],
)
def test_patch_features_equal_the_loop_over_patches(
    shape: tuple[int, int, int], side: int, grid: int, two_sided: bool, threshold: float, contrast_floor: float
) -> None:
    x = images(4, *shape)
    x[0, 0, :side, :side] = 0.5  # a place without contrast
    options = {"grid": grid, "threshold": threshold, "two_sided": two_sided, "contrast_floor": contrast_floor}
    features = PatchFeatures.from_images(x, 6, size=side, generator=generator(3), **options)
    patches = feature_maps._draw_patches(x, side, generator(3)).numpy()
    expected = reference.patch_features(
        x.numpy(),
        patches,
        6,
        side=side,
        whitening_floor=feature_maps.WHITENING_FLOOR,
        flat=feature_maps.FLAT,
        **options,
    )
    assert features.n_features == 6 * grid**2 * (2 if two_sided else 1)
    torch.testing.assert_close(features(x), torch.from_numpy(expected), rtol=0, atol=1e-10)
    assert float(torch.from_numpy(expected).max()) > 0.01


@pytest.mark.usefixtures("few_patches")
def test_the_default_side_is_a_fifth_of_the_image_and_3_at_least() -> None:
    for size, side in ((8, 3), (28, 6), (32, 6)):
        features = PatchFeatures.from_images(images(3, 1, size, size), 4, generator=generator())
        assert features.filters.shape[-1] == side


@pytest.mark.usefixtures("few_patches")
@given(at_once=integers(1, 9), two_sided=booleans())
def test_slices_of_images_do_not_matter(at_once: int, two_sided: bool) -> None:
    x = images(7, 2)
    features = PatchFeatures.from_images(x, 5, generator=generator(), two_sided=two_sided)
    whole = features(x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feature_maps, "SLICE_BYTES", {"cpu": at_once * 36 * 5 * 8})
        torch.testing.assert_close(features(x), whole, rtol=0, atol=1e-13)
        torch.testing.assert_close(torch.cat([features(x[:3]), features(x[3:])]), whole, rtol=0, atol=1e-13)


@pytest.mark.usefixtures("few_patches")
def test_patches_in_float32_are_near_those_in_float64() -> None:
    x = images()
    features = PatchFeatures.from_images(x, 5, generator=generator())
    single = features.to(CPU, torch.float32)(x.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), features(x), rtol=0, atol=1e-4)


@pytest.mark.usefixtures("few_patches")
def test_what_no_patches_can_be_cut_from_is_refused() -> None:
    def cut(x: torch.Tensor, width: int = 4, **options: object) -> PatchFeatures:
        return PatchFeatures.from_images(x, width, generator=generator(), **options)

    for constant in (torch.zeros(3, 1, 8, 8), torch.full((3, 1, 8, 8), 0.7), images()[:, :, :1, :1].expand(8, 1, 8, 8)):
        with pytest.raises(InputError, match="0 of 400 random patches are not constant"):
            cut(constant)
    with pytest.raises(InputError, match=r"images \(n, c, h, w\), got samples of shape \(8, 64\).*image_shape"):
        cut(images().flatten(1))
    for width in (0, 201, True, 2.0):
        with pytest.raises(
            InputError, match=rf"n_filters must be a whole number of at (least 1|most 200), got {width}"
        ):
            cut(images(), width)
    for size in (1, 9, 2.5, True, "3"):
        with pytest.raises(InputError, match=r"size must be a whole number of at (least 2|most 8) for images 1×8×8"):
            cut(images(), size=size)
    for grid in (0, 7, 1.5, True):
        with pytest.raises(InputError, match=r"grid must be .* (least 1|most 6) for images 8×8 and patches of side 3"):
            cut(images(), grid=grid)
    for threshold in (-1.0, math.nan, math.inf):
        with pytest.raises(InputError, match="threshold must be a finite number of at least 0"):
            cut(images(), threshold=threshold)
    for floor in (0, -1.0, math.nan, "0.1"):
        with pytest.raises(InputError, match="contrast_floor must be a positive number"):
            cut(images(), contrast_floor=floor)
    with pytest.raises(InputError, match=r"cut from images \(1, 8, 8\), got samples of shape \(1, 9, 8\)"):
        cut(images())(images(2, 1, 9, 8))
    with pytest.raises(InputError, match=r"got samples of shape \(64,\)"):
        cut(images())(images().flatten(1))


# Encoders


class Tail(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stack = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))
        self.stack[1].running_mean += 0.3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.stack(x).view(len(x), 2, 3)


def test_a_module_is_frozen_for_the_features_and_as_it_was_afterwards() -> None:
    torch.manual_seed(0)
    encoder = Tail().double().train()
    encoder.stack[2].eval()  # modes may differ by part
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    features = EncoderFeatures(encoder)
    x = randn(5, 4)
    phi = features(x)
    assert [module.training for module in encoder.modules()] == [True, True, True, True, False]
    assert all(torch.equal(before[name], value) for name, value in encoder.state_dict().items())
    assert not phi.requires_grad
    assert (phi.shape, features.n_features) == ((5, 6), 6)
    assert torch.equal(phi, encoder.eval()(x).detach().flatten(1))


def test_a_modules_modes_come_back_after_an_error_too() -> None:
    encoder = Tail().train()
    with pytest.raises(RuntimeError):
        EncoderFeatures(encoder)(torch.zeros(2, 9))
    assert encoder.stack[2].training


def test_functions_and_numpy_arrays_are_taken() -> None:
    x = randn(5, 4, dtype=torch.float32)
    assert torch.equal(EncoderFeatures(lambda t: t[:, None] * 2)(x), x * 2)
    found = EncoderFeatures(lambda t: t.numpy().astype("float64") ** 2)(x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, x**2)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x[:, 0],
        lambda x: x[:2],
        lambda x: x.sum(),
        lambda x: x.long(),
        lambda x: x > 0,
        lambda x: None,
        lambda x: (x, x),
        lambda x: {"features": x},
        lambda x: "features",
    ],
)
def test_encoders_that_give_no_vectors_are_refused(wrong: object) -> None:
    with pytest.raises(InputError, match="the encoder must map a batch of 5 samples to as many floating-point vectors"):
        EncoderFeatures(wrong)(randn(5, 4))


def test_an_encoder_that_changes_its_number_of_features_is_refused() -> None:
    features = EncoderFeatures(lambda x: x[:, : len(x)])
    features(randn(2, 4))
    with pytest.raises(InputError, match="gave 2 features before and 3 now"):
        features(randn(3, 4))
