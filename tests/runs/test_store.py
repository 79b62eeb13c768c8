from __future__ import annotations

import multiprocessing
import subprocess
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import integers

from kontrast.errors import StoreError
from kontrast.runs import Store
from kontrast.runs.store import from_bytes, to_bytes, write_atomic


def cell(seed: int = 0) -> xr.Dataset:
    values = np.random.default_rng(seed).standard_normal((2, 5))
    values[1, 3:] = np.nan
    data = {"drift": (("similarity", "step"), values), "diverged": ("similarity", np.array([0, 1], dtype=np.int32))}
    return xr.Dataset(data, coords={"similarity": ["cosine", "dot"], "step": np.arange(5, dtype=np.int32), "width": 64})


def store_at(folder: Path, **spec: object) -> Store:
    store = Store(folder)
    store.claim({"data": "digits", **spec})
    return store


@given(seed=integers(0, 2**16))
def test_bytes_hold_the_dataset_exactly_and_are_deterministic(seed: int) -> None:
    assert to_bytes(cell(seed)) == to_bytes(cell(seed))
    xr.testing.assert_identical(from_bytes(to_bytes(cell(seed))), cell(seed))


def test_a_written_cell_is_read_back_and_checked_by_sha256sum(tmp_path: Path) -> None:
    store = store_at(tmp_path / "s")
    assert not store.has("a")
    store.write("a", cell())
    assert store.has("a")
    xr.testing.assert_identical(store.read("a"), cell())
    subprocess.run(["sha256sum", "-c", "a.nc.sha256"], cwd=tmp_path / "s" / "cells", check=True, capture_output=True)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=integers(0, 10**6), flip=integers(1, 255))
def test_one_changed_byte_is_noticed(tmp_path: Path, position: int, flip: int) -> None:
    store = store_at(tmp_path / "s")
    store.write("a", cell())
    content = bytearray(store.path("a").read_bytes())
    content[position % len(content)] ^= flip
    store.path("a").write_bytes(bytes(content))
    assert not store.has("a")
    with pytest.raises(StoreError, match="missing or damaged; run it again"):
        store.read("a")


@pytest.mark.parametrize("content", ["", "\n", "zz  a.nc\n"])
def test_a_damaged_checksum_is_noticed(tmp_path: Path, content: str) -> None:
    store = store_at(tmp_path / "s")
    store.write("a", cell())
    store.path("a").with_name("a.nc.sha256").write_text(content)
    assert not store.has("a")


def test_data_without_its_checksum_does_not_count(tmp_path: Path) -> None:
    store = store_at(tmp_path / "s")
    store.write("a", cell())
    store.path("a").with_name("a.nc.sha256").unlink()
    assert not store.has("a")


def test_the_same_spec_opens_the_folder_again_and_another_is_refused(tmp_path: Path) -> None:
    store_at(tmp_path / "s", steps=10)
    store_at(tmp_path / "s", steps=10)
    before = (tmp_path / "s" / "spec.json").read_bytes()
    with pytest.raises(StoreError, match=r"holds other results \(steps: 10 there, 20 here\); choose another folder"):
        store_at(tmp_path / "s", steps=20)
    assert (tmp_path / "s" / "spec.json").read_bytes() == before


@pytest.mark.parametrize("content", ["{", "[1]", "\xff", "{}", '{"spec": {}, "sha256": "0"}'])
def test_a_broken_spec_is_refused_and_kept(tmp_path: Path, content: str) -> None:
    (tmp_path / "spec.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(StoreError, match="in another folder"):
        store_at(tmp_path)
    assert (tmp_path / "spec.json").read_bytes() == content.encode("latin-1")


def test_an_edited_spec_is_noticed(tmp_path: Path) -> None:
    store = store_at(tmp_path / "s", steps=10)
    text = (tmp_path / "s" / "spec.json").read_text()
    (tmp_path / "s" / "spec.json").write_text(text.replace("10", "11"))
    with pytest.raises(StoreError, match="changed or damaged"):
        store.spec()


def test_a_claim_killed_half_way_can_be_made_again(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "spec.json.77.partial").write_bytes(b"{")
    assert store_at(tmp_path / "s").spec() == {"data": "digits"}


def test_a_folder_with_other_things_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("do not touch")
    with pytest.raises(StoreError, match="exists and holds no results"):
        store_at(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(StoreError, match="exists and holds no results"):
        store_at(tmp_path / "thesis.tex")


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot write to .*; choose another folder"):
        store_at(tmp_path / "file" / "below")


def test_no_study_here(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no results"):
        Store(tmp_path).spec()


def hold(folder: str, ready: object, done: object) -> None:
    with Store(folder).lock():
        ready.set()
        done.wait(20)


def test_a_second_writer_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    store = store_at(tmp_path / "s")
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    process = context.Process(target=hold, args=(str(store.folder), ready, done))
    process.start()
    try:
        assert ready.wait(30)
        with pytest.raises(StoreError, match="another kontrast process is writing"), store.lock():
            pass
    finally:
        process.kill()  # the lock must die with its holder
        process.join()
    with store.lock():
        assert store.spec() == {"data": "digits"}


def test_half_written_files_are_invisible_and_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_at(tmp_path / "s")
    store.write("a", cell(0))

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="no space"):
        write_atomic(store.path("a"), b"half")
    monkeypatch.undo()
    assert store.has("a")
    assert list(store.folder.rglob("*.partial"))
    store.clear_temporary()
    assert not list(store.folder.rglob("*.partial"))
    xr.testing.assert_identical(store.read("a"), cell(0))
