from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.strategies import integers, sampled_from
from torch import Tensor

from kontrast.errors import InputError, StoreError
from kontrast.kernels import InfiniteNetwork, empirical_ntk, empirical_ntk_trace, infinite_ntk, tiled
from kontrast.nets import MLP
from tests.cases import randn

PROBE = 16 * 16  # entries that tell one kernel from another


class Counting:
    """A kernel that counts the entries it computes and may be interrupted."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.entries, self.calls, self.stop_after = 0, 0, stop_after

    def __call__(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        K = infinite_ntk(x, y, depth=2)
        self.calls += 1
        self.entries += K.numel()
        if self.stop_after is not None and self.calls > self.stop_after:
            raise KeyboardInterrupt
        return K


def row_bytes(n: int, rows: int, dtype: torch.dtype = torch.float64) -> int:
    """A budget in which `rows` rows of a strip fit."""
    return rows * 4 * n * dtype.itemsize


@given(n=integers(1, 30), m=sampled_from([0, 1, 7]), rows=integers(1, 9), dtype=sampled_from(["float32", "float64"]))
def test_strips_of_any_height_give_the_matrix(n: int, m: int, rows: int, dtype: str) -> None:
    x = randn(n, 4, dtype=getattr(torch, dtype))
    y = randn(m, 4, seed=1, dtype=x.dtype) if m else None
    K = tiled(partial(infinite_ntk, depth=2), x, y, memory=row_bytes(m or n, rows, x.dtype))
    expected = infinite_ntk(x, y, depth=2)
    torch.testing.assert_close(K, expected, rtol=1e-12 if dtype == "float64" else 1e-6, atol=1e-12)
    if y is None:
        assert torch.equal(K, K.mT)
        assert torch.equal(K.diagonal(), expected.diagonal())


def test_a_symmetric_matrix_costs_half() -> None:
    kernel, x = Counting(), randn(100, 3)
    tiled(kernel, x, memory=row_bytes(100, 10))
    assert kernel.entries == 100 * 110 // 2 + PROBE


def test_the_tangent_kernel_of_a_network_in_strips() -> None:
    net, x = MLP(4, 30, 3, dtype=torch.float64), randn(11, 4)
    torch.testing.assert_close(
        tiled(partial(empirical_ntk_trace, net), x, memory=row_bytes(11, 4)), empirical_ntk_trace(net, x)
    )


def test_into_a_given_buffer_of_another_type() -> None:
    x, buffer, array = randn(9, 4), torch.empty(9, 9, dtype=torch.float32), np.empty((9, 9))
    assert tiled(infinite_ntk, x, out=buffer) is buffer
    torch.testing.assert_close(buffer, infinite_ntk(x).float())
    tiled(infinite_ntk, x, out=array)
    np.testing.assert_allclose(array, infinite_ntk(x).numpy())


def test_a_file_resumes_where_it_stopped(tmp_path: Path) -> None:
    path, x, memory = tmp_path / "K.npy", randn(50, 4, dtype=torch.float32), row_bytes(50, 10, torch.float32)
    with pytest.raises(KeyboardInterrupt):
        tiled(Counting(stop_after=6), x, out=path, memory=memory)  # the fingerprint, and two and a half strips
    assert json.loads((tmp_path / "K.npy.json").read_text())["rows_done"] == 20
    resumed = Counting()
    K = tiled(resumed, x, out=path, memory=memory)
    assert resumed.entries == PROBE + 30 * 30 - (10 * 20 + 10 * 10), "done strips were computed again"
    expected = tiled(Counting(), x, memory=memory)
    assert torch.equal(K, expected)
    assert np.array_equal(np.load(path), expected.numpy())
    finished = Counting()
    assert torch.equal(tiled(finished, x, out=str(path), memory=memory), expected)
    assert finished.calls == 1, "a finished file is opened, not computed"


def test_a_resumed_file_may_have_another_budget(tmp_path: Path) -> None:
    path, x = tmp_path / "K.npy", randn(50, 4)
    with pytest.raises(KeyboardInterrupt):
        tiled(Counting(stop_after=6), x, out=path, memory=row_bytes(50, 10))
    K = tiled(Counting(), x, out=path, memory=row_bytes(50, 7))
    torch.testing.assert_close(K, infinite_ntk(x, depth=2), rtol=1e-12, atol=1e-12)


def test_a_file_of_something_else_is_refused_and_kept(tmp_path: Path) -> None:
    path, x = tmp_path / "K.npy", randn(6, 4)
    tiled(infinite_ntk, x, out=path)
    before = path.read_bytes()
    for kernel, rows in ((partial(infinite_ntk, depth=2), x), (infinite_ntk, x + 1), (infinite_ntk, x.float())):
        with pytest.raises(StoreError, match="holds another kernel or other data"):
            tiled(kernel, rows, out=path)
    assert path.read_bytes() == before
    (tmp_path / "mine.npy").write_bytes(b"precious")
    with pytest.raises(StoreError, match="exists and was not written by tiled"):
        tiled(infinite_ntk, x, out=tmp_path / "mine.npy")
    assert (tmp_path / "mine.npy").read_bytes() == b"precious"
    (tmp_path / "K.npy.json").write_text("{")
    with pytest.raises(StoreError, match=r"K.npy.json is damaged"):
        tiled(infinite_ntk, x, out=path)


def test_a_file_that_vanished_is_named(tmp_path: Path) -> None:
    path, x = tmp_path / "K.npy", randn(6, 4)
    tiled(infinite_ntk, x, out=path)
    path.unlink()
    with pytest.raises(StoreError, match=r"belongs to K.npy, which is gone"):
        tiled(infinite_ntk, x, out=path)


def test_progress_is_told_or_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[tuple[int, int]] = []
    tiled(infinite_ntk, randn(25, 3), memory=row_bytes(25, 10), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(10, 25), (20, 25), (25, 25)]
    tiled(infinite_ntk, randn(25, 3), out=tmp_path / "K.npy", progress=True)
    drawn = capsys.readouterr()
    assert "K.npy" in drawn.err
    assert "100%" in drawn.err
    assert drawn.out == ""


@pytest.mark.parametrize(
    "options, message",
    [
        ({"memory": 10}, "memory is too small: one row of the kernel matrix needs 192 bytes and the budget is 10"),
        ({"memory": -1}, "memory must be a number of bytes above 0"),
        ({"out": "K.csv"}, "out must end in .npy, got 'K.csv'"),
        ({"out": "/nowhere/at/all/K.npy"}, "the folder /nowhere/at/all of out does not exist"),
        ({"out": torch.empty(3, 3)}, r"out must be \(6, 6\) of floats, got \(3, 3\)"),
        ({"out": torch.empty(6, 6, dtype=torch.long)}, "of floats, got .* of torch.int64"),
    ],
)
def test_bad_destinations_and_budgets(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tiled(infinite_ntk, randn(6, 4), **options)


def test_no_rows_and_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"x must be a tensor with at least one row, got torch.float64 \(0, 4\)"):
        tiled(infinite_ntk, randn(0, 4))
    monkeypatch.setattr("kontrast.kernels.tiles.free_bytes", lambda device: 100)
    with pytest.raises(InputError, match=r"needs 0.0 GiB .* pass a file, out='kernel.npy'"):
        tiled(infinite_ntk, randn(6, 4))


@pytest.mark.gpu
def test_from_the_gpu_into_host_memory() -> None:
    x = randn(300, 20, dtype=torch.float32)
    host = torch.empty(300, 300)
    kernel = InfiniteNetwork(depth=2).ntk
    tiled(kernel, x.cuda(), out=host, memory=row_bytes(300, 64, torch.float32))
    assert not host.is_cuda
    torch.testing.assert_close(host, kernel(x), rtol=2e-6, atol=1e-5)


def test_integer_rows_give_the_kernels_own_numbers(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Embedding(9, 3), torch.nn.Flatten(), torch.nn.Linear(12, 2)).double()
    x = torch.randint(0, 9, (20, 4), generator=torch.Generator().manual_seed(0))
    kernel = partial(empirical_ntk_trace, net)
    for K in (tiled(kernel, x), tiled(kernel, x, out=tmp_path / "K.npy")):
        assert K.dtype == torch.float64
        torch.testing.assert_close(K, kernel(x))


def test_a_damaged_file_is_told_not_believed(tmp_path: Path) -> None:
    path, note, x = tmp_path / "K.npy", tmp_path / "K.npy.json", randn(30, 4)
    tiled(infinite_ntk, x, out=path)
    good, state = path.read_bytes(), json.loads(note.read_text())

    def refused(message: str) -> None:
        with pytest.raises(StoreError, match=message):
            tiled(infinite_ntk, x, out=path)

    for rows_done in (-5, 999):
        note.write_text(json.dumps({**state, "rows_done": rows_done}))
        refused(f"K.npy.json is damaged .rows_done is {rows_done}")
    note.write_text(json.dumps(state))
    path.write_bytes(good[:-800])
    refused("should hold .* bytes for")
    np.save(path, np.zeros((3, 3)))
    refused(r"should hold \[30, 30\] of float64 but has .* bytes for \[3, 3\] of float64")
    path.write_bytes(b"no array at all, but longer than a header")
    refused("K.npy is damaged")
    path.write_bytes(good)
    assert torch.equal(tiled(infinite_ntk, x, out=path), infinite_ntk(x))


def test_a_kernel_that_differs_on_few_rows_is_told_apart(tmp_path: Path) -> None:
    x = randn(200, 4)

    def other(a: Tensor, b: Tensor | None = None) -> Tensor:
        K = infinite_ntk(a, b)
        return K + (a[:, :1] > 1.0) * (((a if b is None else b)[:, :1] > 1.0).mT)

    tiled(infinite_ntk, x, out=tmp_path / "K.npy")
    with pytest.raises(StoreError, match="holds another kernel"):
        tiled(other, x, out=tmp_path / "K.npy")


def test_kernels_and_buffers_that_cannot_work() -> None:
    x, net = randn(6, 4), MLP(4, 8, 3, dtype=torch.float64)
    with pytest.raises(InputError, match=r"kernel must return \(6, 6\) floats .* use empirical_ntk_trace"):
        tiled(partial(empirical_ntk, net), x)
    with pytest.raises(InputError, match=r"kernel must return \(6, 6\) floats for 6 and 6 rows, got float"):
        tiled(lambda a, b=None: 1.0, x)  # type: ignore[arg-type, return-value]
    frozen = np.zeros((6, 6))
    frozen.flags.writeable = False
    with pytest.raises(InputError, match="out is a read-only array"):
        tiled(infinite_ntk, x, out=frozen)
    with pytest.raises(InputError, match="out requires gradients"):
        tiled(infinite_ntk, x, out=torch.zeros(6, 6, requires_grad=True))
    with pytest.raises(InputError, match=r"out must be a tensor, an array or the path of an .npy file, got list"):
        tiled(infinite_ntk, x, out=[1])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="x must be a tensor with at least one row, got ndarray"):
        tiled(infinite_ntk, x.numpy())  # type: ignore[arg-type]
    assert not tiled(infinite_ntk, x.requires_grad_()).requires_grad
