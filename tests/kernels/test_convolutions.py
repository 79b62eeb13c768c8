from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis.strategies import integers
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from kontrast.kernels import blocks, convolutions, empirical_ntk, empirical_ntk_trace
from tests.cases import randn
from tests.kernels.networks import ready
from tests.reference import ntk


def net(*, norm: bool = False, padding: Any = 1) -> nn.Module:
    """Convolutions with a bias, without one, and one used twice; in the middle one with a stride."""
    twice = nn.Conv2d(4, 4, 3, padding=padding)
    middle = nn.Conv2d(4, 4, 3, padding=padding, bias=False)
    layers = [nn.Conv2d(2, 4, 3, padding=padding), nn.GELU(), weight_norm(middle) if norm else middle]
    layers += [nn.BatchNorm2d(4), nn.ReLU(), twice, nn.ReLU(), nn.Conv2d(4, 4, 3, 2, 1), twice]
    return ready(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The signals that went the faster way, on a CPU by torch's transposed convolution."""
    seen: list[torch.Size] = []
    found = convolutions.signals

    def noted(signal: Tensor, weight: Tensor) -> Tensor:
        seen.append(signal.shape)
        return found(signal, weight)

    monkeypatch.setattr(convolutions, "signals", noted)
    monkeypatch.setattr(convolutions, "is_faster", lambda input, weight: weight.shape[2:] == (3, 3))
    return seen


@pytest.mark.parametrize("few", [0, 2**40])
@pytest.mark.parametrize("options", [{}, {"norm": True}, {"padding": (1, 1)}])
def test_kernels_by_faster_signals_are_those_of_the_definition(
    options: dict[str, Any], few: int, calls: list[torch.Size], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(blocks.FEW, "cpu", few)
    module, x = net(**options), randn(3, 2, 6, 5)
    K = ntk.empirical_ntk(module, x, x)
    torch.testing.assert_close(empirical_ntk(module, x), K, rtol=0, atol=1e-11 * float(K.abs().max()))
    # Of four such layers the first has no signals to pass on. A mapped call calls again, for all outputs at once.
    assert len(calls) == 3 * (2 if few else 3)
    torch.testing.assert_close(empirical_ntk_trace(module, x), torch.einsum("nmii->nm", K), rtol=0, atol=1e-9)


def test_other_convolutions_go_their_own_way(calls: list[torch.Size]) -> None:
    shape = {"kernel_size": 3, "padding": 1}
    for options in ({"stride": 2}, {"padding": 0}, {"dilation": 2}, {"groups": 2}, {"kernel_size": 1, "padding": 0}):
        layer = nn.Conv2d(4, 4, **(shape | options))  # type: ignore[arg-type]
        module = ready(nn.Sequential(nn.Conv2d(2, 4, 1), layer, nn.AdaptiveAvgPool2d(1), nn.Flatten()))
        x = randn(2, 2, 6, 6)
        K = ntk.empirical_ntk(module, x, x)
        torch.testing.assert_close(empirical_ntk(module, x), K, rtol=0, atol=1e-11 * float(K.abs().max()))
    assert calls == []


class Made(nn.Module):
    """A layer whose filters come from the pictures' own mean over all rows: not a parameter to cut from the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.scale = nn.Conv2d(2, 2, 1), nn.Parameter(torch.ones(2, 2, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        filters = self.scale.detach() * self.first(torch.ones_like(x[:1])).mean()
        return F.conv2d(h, filters, padding=1).mean((2, 3))


def test_filters_that_are_made_from_activations_stay_in_the_graph(calls: list[torch.Size]) -> None:
    module, x = ready(Made()), randn(3, 2, 4, 4)
    K = ntk.empirical_ntk(module, x, x)
    torch.testing.assert_close(empirical_ntk(module, x), K, rtol=0, atol=1e-11 * float(K.abs().max()))


@given(n=integers(1, 4), q=integers(1, 3), height=integers(1, 7), width=integers(1, 7))
def test_signals_are_torchs_own_and_map_over_outputs(n: int, q: int, height: int, width: int) -> None:
    B, W = randn(q, n, 3, height, width, seed=1), randn(3, 2, 3, 3, seed=2)
    h = randn(n, 2, height, width, seed=3).requires_grad_()
    a = F.conv2d(h, W, padding=1)
    expected = torch.stack([torch.autograd.grad(a, h, one, retain_graph=True)[0] for one in B])
    mapped = torch.vmap(convolutions.signals, (0, None))(B, W)
    torch.testing.assert_close(mapped, expected)
    torch.testing.assert_close(convolutions.signals(B[0], W), expected[0])


@pytest.mark.gpu
@pytest.mark.parametrize(
    "n, channels, units, height, width", [(3, 64, 32, 5, 9), (70, 128, 64, 8, 8), (2, 64, 96, 1, 1)]
)
def test_signals_on_a_gpu_have_the_accuracy_of_float32(
    n: int, channels: int, units: int, height: int, width: int
) -> None:
    B = randn(n, units, height, width, seed=1, dtype=torch.float32).cuda()
    W = randn(units, channels, 3, 3, seed=2, dtype=torch.float32).cuda()
    right = F.conv_transpose2d(B.double(), W.double(), padding=1)
    for some in (B, B.to(memory_format=torch.channels_last)):
        error = convolutions.signals(some, W).double() - right
        assert float(error.norm() / right.norm()) < 5e-7
        assert float(error.abs().max() / right.abs().max()) < 2e-6


@pytest.mark.gpu
@pytest.mark.parametrize("n", [2, 40])
def test_a_residual_network_on_a_gpu(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    found = convolutions.is_faster
    monkeypatch.setattr(convolutions, "is_faster", lambda *given: seen.append(found(*given)) or seen[-1])
    layers = [
        nn.Conv2d(3, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
    ]
    module = nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, 5)).eval()
    x = randn(n, 3, 9, 8, dtype=torch.float32)
    right = empirical_ntk_trace(module.double(), x.double())
    size = right.diagonal().sqrt()
    error = (empirical_ntk_trace(module.float().cuda(), x.cuda()).cpu().double() - right) / (size[:, None] * size)
    assert float(error.abs().max()) < 5e-6
    assert any(seen)
