from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from kontrast.errors import InputError
from kontrast.kernels import blocks, empirical_ntk_trace, ntk_drift
from kontrast.linalg import KernelDrift, kernel_drift
from kontrast.nets import MLP
from tests.cases import DTYPES, generator, randn

AGREEMENT = {torch.float64: 1e-9, torch.float32: 1e-4}


def mlp() -> nn.Module:
    return MLP(6, 16, 3, generator=generator(0))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (1, 6)),
        nn.Conv1d(1, 4, 3, padding=1),
        nn.BatchNorm1d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24, 8),
        nn.Tanh(),
        nn.Linear(8, 3),
    ).eval()


class Branching(nn.Module):
    """Another number of layers for every kind of row: no plan fits them all."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.other, self.last = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        deep = (x[:, :1] > 0.3).to(h)
        return self.last(h + deep * self.other(h) if bool(deep.any()) else h)


MODULES = {"mlp": mlp, "network": network, "branching": Branching}


def moved(module: nn.Module, *, step: float, seed: int) -> dict[str, Tensor]:
    """A state_dict some way off, running statistics included."""
    end = {}
    for name, value in module.state_dict().items():
        draw = randn(*value.shape, seed=seed).to(value) if value.is_floating_point() else torch.zeros_like(value)
        end[name] = value + step * (draw.abs() if "var" in name else draw)
    return end


def reference(module: nn.Module, start: dict[str, Tensor], end: dict[str, Tensor], *rows: Any) -> KernelDrift:
    kernels = [empirical_ntk_trace(module, *rows, parameters=point) for point in (end, start)]
    return kernel_drift(*kernels)


def agree(a: KernelDrift, b: KernelDrift, tolerance: float) -> None:
    for name in ("relative", "largest", "alignment"):
        assert getattr(a, name) == pytest.approx(getattr(b, name), rel=tolerance), name


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_the_drift_is_that_of_two_stored_kernels(name: str, dtype: torch.dtype, data: st.DataObject) -> None:
    module = MODULES[name]().to(dtype)
    start, end = (
        module.state_dict(),
        moved(module, step=data.draw(st.floats(0.05, 1)), seed=data.draw(st.integers(1, 9))),
    )
    x = randn(data.draw(st.integers(1, 9)), 6, seed=20).to(dtype)
    y = data.draw(st.sampled_from([None, randn(5, 6, seed=21).to(dtype)]))
    memory = data.draw(st.sampled_from([None, 40_000]))
    found = ntk_drift(module, start, end, x, y, memory=memory)
    agree(found, reference(module, start, end, x, y), AGREEMENT[dtype])


def test_at_home_nothing_moved() -> None:
    module, x = network().double(), randn(7, 6)
    found = ntk_drift(module, module.state_dict(), module.state_dict(), x)
    assert (found.relative, found.largest, found.alignment) == (0.0, 0.0, pytest.approx(1))


def test_running_statistics_move_with_the_parameters() -> None:
    """A point is the whole state: with the module's own statistics the drift would be another one."""
    module, x = network().double(), randn(7, 6)
    start, end = module.state_dict(), moved(module, step=0.3, seed=1)
    half = {name: start[name] if "running" in name else value for name, value in end.items()}
    whole = ntk_drift(module, start, end, x)
    assert abs(ntk_drift(module, start, half, x).relative - whole.relative) > 0.05 * whole.relative
    other = copy.deepcopy(module)
    other.load_state_dict(end)
    agree(whole, kernel_drift(empirical_ntk_trace(other, x), empirical_ntk_trace(module, x)), 1e-9)


def test_only_some_parameters() -> None:
    module, x = network().double(), randn(7, 6)
    start, end = module.state_dict(), moved(module, step=0.3, seed=1)
    kernels = [empirical_ntk_trace(module, x, parameters=point, only="5") for point in (end, start)]
    agree(ntk_drift(module, start, end, x, only="5"), kernel_drift(*kernels), 1e-9)


def test_no_block_is_larger_than_the_budget_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels of 400 rows would take 1.3 MB each; the blocks of both stay within their quarter of the budget."""
    sizes = []
    add = blocks._add

    def noted(at_x: Any, at_y: Any, out: dict[str, Tensor], question: Any) -> None:
        sizes.append(sum(block.nbytes for block in out.values()))
        add(at_x, at_y, out, question)

    monkeypatch.setattr(blocks, "_add", noted)
    module, x = MLP(6, 16, 1, generator=generator(0)).double(), randn(400, 6)
    end = moved(module, step=0.3, seed=1)
    done: list[tuple[int, int]] = []
    memory = 400_000
    found = ntk_drift(module, module.state_dict(), end, x, memory=memory, progress=lambda *at: done.append(at))
    assert len(sizes) > 8
    assert max(sizes) <= memory / 8
    assert done == [(k, len(sizes) // 2) for k in range(1, len(sizes) // 2 + 1)]
    agree(found, reference(module, dict(module.state_dict()), end, x), 1e-9)


def test_the_memory_that_a_refusal_names_is_enough() -> None:
    module, x = network().double(), randn(5, 6)
    with pytest.raises(InputError, match=r"pass memory=\d+ or more") as refused:
        ntk_drift(module, module.state_dict(), module.state_dict(), x, memory=100)
    enough = int(str(refused.value).split("memory=")[1].split()[0])
    assert ntk_drift(module, module.state_dict(), module.state_dict(), x, memory=enough).relative == 0


@pytest.mark.parametrize("which", ["start", "end"])
def test_bad_points_are_refused(which: str) -> None:
    module, x = network(), randn(4, 6).float()
    good = dict(module.state_dict())
    broken = {**good, "1.weight": torch.full_like(good["1.weight"], torch.nan)}
    points = {"start": good, "end": good, which: broken}
    with pytest.raises(InputError, match=rf"^{which} holds NaN or infinite numbers in 1.weight"):
        ntk_drift(module, points["start"], points["end"], x)
    points[which] = dict(module.named_parameters())
    with pytest.raises(InputError, match=r"parameters hold no 2.running_mean.*pass the whole state_dict"):
        ntk_drift(module, points["start"], points["end"], x)
    points[which] = {name: value for name, value in good.items() if name != "5.bias"}
    with pytest.raises(InputError, match=r"parameters hold no 5.bias; pass the state_dict\(\)"):
        ntk_drift(module, points["start"], points["end"], x)


@pytest.mark.parametrize("which", ["start", "end"])
@pytest.mark.parametrize("given", [None, [1], network()])
def test_points_that_are_no_tensors_by_name_are_refused(which: str, given: Any) -> None:
    module, x = network(), randn(4, 6).float()
    points = {"start": module.state_dict(), "end": module.state_dict(), which: given}
    with pytest.raises(InputError, match=rf"^{which} must be Mapping, got .*; pass what module.state_dict\(\) gives"):
        ntk_drift(module, points["start"], points["end"], x)
    with pytest.raises(InputError, match=r"^progress must be True, False or a function .*, got 'yes'"):
        ntk_drift(module, module.state_dict(), module.state_dict(), x, progress="yes")  # type: ignore[arg-type]


def test_a_kernel_of_zeros_or_without_bounds_has_no_drift() -> None:
    module, x = nn.Sequential(nn.Linear(6, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False)), randn(4, 6).float()
    good = dict(module.state_dict())
    zero = {name: torch.zeros_like(value) for name, value in good.items()}
    with pytest.raises(InputError, match="K0 is zero everywhere"):
        ntk_drift(module, zero, good, x)
    gone = ntk_drift(module, good, zero, x)
    assert gone.relative == pytest.approx(1)
    assert gone.alignment != gone.alignment  # nan: nothing has no direction
    huge = {name: 1e25 * value for name, value in good.items()}
    with pytest.raises(InputError, match="a kernel overflows"):
        ntk_drift(module, good, huge, x)
