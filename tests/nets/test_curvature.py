from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import integers, sampled_from
from torch import nn

from kontrast.errors import ConvergenceError, InputError
from kontrast.linalg import spectral_norm
from kontrast.nets import (
    ACTIVATIONS,
    MLP,
    PARAMETRIZATIONS,
    curvature,
    hessian_norm,
    two_layer_hessian_norm,
)
from tests.cases import generator, randn
from tests.reference.spectra import dense_hessian, dense_hessian_by_reverse_mode

SHAPES = {"seed": integers(0, 2**16), "d_in": integers(1, 4), "width": integers(1, 6), "d_out": integers(1, 3)}


def net_of(seed: int, d_in: int, width: int, d_out: int, **options) -> MLP:
    return MLP(d_in, width, d_out, generator=generator(seed), dtype=torch.float64, **options)


@settings(max_examples=15)
@given(**SHAPES, activation=sampled_from(sorted(ACTIVATIONS)), parametrization=sampled_from(PARAMETRIZATIONS))
def test_the_exact_norm_is_that_of_the_dense_hessian(
    seed: int, d_in: int, width: int, d_out: int, activation: str, parametrization: str
) -> None:
    width = max(width, d_out)
    net = net_of(seed, d_in, width, d_out, activation=activation, parametrization=parametrization)
    x = 2 * randn(2, d_in, seed=seed + 1)
    dense = [[torch.linalg.matrix_norm(dense_hessian(net, row[None], z), 2) for z in range(d_out)] for row in x]
    torch.testing.assert_close(two_layer_hessian_norm(net, x), torch.tensor(dense), rtol=1e-12, atol=1e-14)


@settings(max_examples=3)
@given(seed=integers(0, 2**16), activation=sampled_from(sorted(ACTIVATIONS)))
def test_lanczos_gives_the_exact_norm(seed: int, activation: str) -> None:
    """105 parameters: above what is decomposed whole, so that Lanczos itself is tested."""
    net = net_of(seed, 5, 15, 2, activation=activation)
    x = randn(2, 5, seed=seed + 1)
    found = hessian_norm(net, x)
    torch.testing.assert_close(found.norms, two_layer_hessian_norm(net, x), rtol=1e-12, atol=1e-14)
    assert found.residuals.shape == found.norms.shape == (2, 2)
    assert found.residuals.max() <= 1e-10


def test_lanczos_gives_the_exact_norm_at_some_width() -> None:
    net, x = net_of(0, 20, 500, 1, activation="tanh"), randn(1, 20)
    torch.testing.assert_close(hessian_norm(net, x).norms, two_layer_hessian_norm(net, x), rtol=1e-12, atol=0)


def test_the_norm_falls_as_the_square_root_of_the_width() -> None:
    """Up to the √log M of the largest weight: what Lemma 7 is used for."""
    x = randn(1, 10)
    norms = [float(two_layer_hessian_norm(net_of(1, 10, width, 1, activation="tanh"), x)) for width in (100, 10_000)]
    assert 0.05 < norms[1] / norms[0] < 0.2


def test_relu_has_the_norm_without_its_kinks() -> None:
    net, x = net_of(0, 4, 30, 2), randn(3, 4)
    expected = (x.norm(dim=1) / 30**0.5)[:, None].expand(3, 2)
    torch.testing.assert_close(two_layer_hessian_norm(net, x), expected, rtol=1e-12, atol=0)


def test_a_zero_input_has_no_curvature_and_rows_are_independent_of_the_budget() -> None:
    net = net_of(0, 4, 30, 2, activation="gelu")
    x = torch.cat([torch.zeros(1, 4, dtype=torch.float64), randn(4, 4)])
    whole, one_by_one = two_layer_hessian_norm(net, x), two_layer_hessian_norm(net, x, memory=8 * 30 * 8)
    assert (whole[0] == 0).all()
    assert hessian_norm(net, x[:1]).norms.abs().max() == 0
    torch.testing.assert_close(whole, one_by_one, rtol=1e-13, atol=0)


def test_float32_within_its_rounding() -> None:
    net, x = MLP(6, 40, 2, activation="erf"), randn(3, 6, dtype=torch.float32)
    exact = two_layer_hessian_norm(MLP(6, 40, 2, activation="erf", dtype=torch.float64), x.double())
    found = hessian_norm(net, x)
    assert found.norms.dtype == torch.float32
    torch.testing.assert_close(two_layer_hessian_norm(net, x).double(), exact, rtol=1e-5, atol=0)
    torch.testing.assert_close(found.norms.double(), exact, rtol=2e-5, atol=0)


def test_float32_converges_for_a_hundred_thousand_parameters() -> None:
    """Inner products that long, in float32, would leave residuals above the tolerance."""
    net, x = MLP(784, 130, 1, activation="tanh"), randn(1, 784, dtype=torch.float32) / 28
    torch.testing.assert_close(hessian_norm(net, x).norms, two_layer_hessian_norm(net, x), rtol=2e-5, atol=0)


# ------------------------------------------------------------------------------------------ any module


def convolutional() -> nn.Module:
    torch_net = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.Softplus(), nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(8, 3), nn.Tanh(), nn.Linear(3, 2)
    ).double()
    return _filled(torch_net)


class Tied(nn.Module):
    """One matrix used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4, dtype=torch.float64)
        self.again = self.inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.again(torch.tanh(self.inner(x)))


class Cube(torch.autograd.Function):
    """x³ by a user's own derivative, which forward mode does not know."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, slope: torch.Tensor) -> torch.Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * slope


class Cubic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 12, dtype=torch.float64), nn.Linear(12, 2, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(Cube.apply(self.inner(x)))


class Attentive(nn.Module):
    """Attention among four tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(2, 6, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x.reshape(len(x), 4, 2)).chunk(3, dim=-1)
        return nn.functional.scaled_dot_product_attention(q, k, v).mean(1)


def _filled(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(0.5 * randn(*p.shape, seed=i))
    return module


CASES = {
    "convolution": (convolutional, (1, 4, 4)),
    "tied weights": (lambda: _filled(Tied()), (4,)),
    "no forward derivative": (lambda: _filled(Cubic()), (3,)),
    "attention": (lambda: _filled(Attentive()), (8,)),
    "deep MLP": (lambda: net_of(3, 4, 5, 2, depth=3, activation="tanh"), (4,)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_norms_of_any_module_are_those_of_the_dense_hessian(case: str) -> None:
    build, shape = CASES[case]
    module, x = build(), randn(1, *shape, seed=9)
    dense = dense_hessian_by_reverse_mode if case == "no forward derivative" else dense_hessian
    for z in range(module(x).shape[1]):
        norm = hessian_norm(module, x, output=z).norms
        expected = torch.linalg.matrix_norm(dense(module, x, z), 2)
        torch.testing.assert_close(norm, expected.reshape(1, 1), rtol=1e-9, atol=1e-12)


def test_one_output_is_a_column_of_all() -> None:
    net, x = net_of(0, 4, 6, 3, activation="tanh"), randn(2, 4)
    torch.testing.assert_close(hessian_norm(net, x, output=1).norms, hessian_norm(net, x).norms[:, 1:2])


# ---------------------------------------------------------------------------------------------------------- errors

NET, X = net_of(0, 4, 6, 3, activation="tanh"), randn(2, 4)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: two_layer_hessian_norm(net_of(0, 4, 6, 3, depth=2), X), r"depth=1, got depth=2; use hessian_norm"),
        (lambda: two_layer_hessian_norm(nn.Linear(4, 3), X), r"got Linear; use hessian_norm"),
        (lambda: two_layer_hessian_norm(NET, X[:, :3]), r"x must have shape \(n, 4\), got \(2, 3\)"),
        (lambda: two_layer_hessian_norm(NET, X[:0]), r"x must have shape \(n, 4\) with no size of 0, got \(0, 4\)"),
        (lambda: two_layer_hessian_norm(NET, X / 0), r"x holds NaN or infinite"),
        (lambda: hessian_norm(NET, X / 0), r"x holds NaN or infinite"),
        (
            lambda: hessian_norm(nn.Linear(4, 3, dtype=torch.bfloat16), X.bfloat16()),
            r"float32 or float64, got torch.bf",
        ),
        (lambda: two_layer_hessian_norm(NET, X, memory=5), r"memory is too small: one row of hidden units"),
        (lambda: two_layer_hessian_norm(NET, X[0]), r"x must have shape \(n, 4\), got \(4,\)"),
        (lambda: hessian_norm(NET, X, output=3), r"output must be a whole number of at most 2, got 3"),
        (lambda: hessian_norm(NET, X, output=-1), r"output must be .*, got -1"),
        (lambda: hessian_norm(NET, X, output=True), r"output must be .*, got True"),
        (lambda: hessian_norm(NET, X, generator=3), r"generator must be a torch.Generator, got int"),
        (lambda: hessian_norm(nn.Tanh(), X), r"Tanh has no parameters"),
        (lambda: hessian_norm(NET, X[:0]), r"outputs \(n, c\), not empty, got \(0, 3\)"),
        (lambda: hessian_norm(nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5)), X), r"1 is a Dropout in train mode"),
        (lambda: hessian_norm(nn.BatchNorm1d(4), X), r"BatchNorm1d in train mode.*call module.eval\(\) first"),
    ],
)
def test_what_cannot_work_is_refused_with_the_fix(call, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_an_impossible_tolerance_is_an_error_not_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curvature, "spectral_norm", partial(spectral_norm, max_steps=100))  # ten times sooner
    with pytest.raises(ConvergenceError, match="relative residual"):
        hessian_norm(net_of(0, 3, 15, 1, activation="tanh"), randn(1, 3), tolerance=1e-18)


def test_rows_that_no_hessian_takes() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    for x, message in (
        (torch.ones(2, 5), "Sequential cannot be evaluated on x, .*give rows that it takes"),
        (torch.ones(2, 4, dtype=torch.float64), "cannot be evaluated on x"),
        (torch.ones(2, 4, dtype=torch.long), "x must be a tensor of floating-point numbers, got torch.int64"),
        (torch.ones(2, 4, dtype=torch.complex64), "x must be a tensor of floating-point numbers, got torch.complex64"),
        ([[1.0]], "x must be a tensor of floating-point numbers, got list"),
    ):
        with pytest.raises(InputError, match=message):
            hessian_norm(net, x)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="x must be a tensor of floating-point numbers"):
        two_layer_hessian_norm(MLP(4, 3, 2), torch.ones(2, 4, dtype=torch.complex64))
    with pytest.raises(InputError, match=r"module must be Module, got NoneType"):
        hessian_norm(None, torch.ones(2, 4))  # type: ignore[arg-type]
