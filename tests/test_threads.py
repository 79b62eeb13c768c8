from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from kontrast import threads
from kontrast.threads import as_many_threads_as_cores_are_idle, wanted_by_others


def machine(folder: Path, *, running: int, own: str) -> Path:
    """A /proc where so many threads run, this process's own in the given states."""
    (folder / "loadavg").write_text(f"0.20 0.18 0.12 {running}/94 4311\n")
    for number, state in enumerate(own):
        task = folder / "self" / "task" / str(number)
        task.mkdir(parents=True)
        (task / "stat").write_text(f"{number} (a (strange) name) {state} 1 2 3\n")
    return folder


@pytest.fixture
def two_threads() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "running, own, others", [(1, "R", 0), (2, "RS", 1), (2, "RR", 0), (5, "RSR", 3), (0, "R", 0), (1, "S", 0)]
)
def test_what_others_want_is_what_runs_besides_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, running: int, own: str, others: int
) -> None:
    monkeypatch.setattr(threads, "PROC", machine(tmp_path, running=running, own=own))
    assert wanted_by_others() == others


def test_a_program_that_just_woke_up_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([3, 1, 2])
    monkeypatch.setattr(threads, "_wanted_now", lambda: next(looks))
    assert wanted_by_others() == 1


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("cores, running, threads_inside", [(2, 1, 2), (2, 2, 1), (2, 9, 1), (8, 4, 2), (8, 8, 1)])
def test_no_more_threads_than_idle_cores_and_all_of_them_again_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, running: int, threads_inside: int
) -> None:
    monkeypatch.setattr(threads, "PROC", machine(tmp_path, running=running, own="R"))
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    inside = []

    def fails() -> None:
        inside.append(torch.get_num_threads())
        raise KeyError

    with pytest.raises(KeyError), as_many_threads_as_cores_are_idle():
        fails()
    assert inside == [threads_inside]
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_where_the_system_does_not_say_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "PROC", tmp_path)
    with as_many_threads_as_cores_are_idle():
        assert torch.get_num_threads() == 2
