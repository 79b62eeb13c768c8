"""`kt.diagnose` on planted cases: is every one told right, and does it raise no alarm at healthy runs?

    python benchmarks/diagnose.py                       every case, 20 seeds each
    python benchmarks/diagnose.py "healthy|lazy"        the cases whose names match
    python benchmarks/diagnose.py --seeds 3 --json diagnose.json
    python benchmarks/diagnose.py --resnet18            ten checkpoints of a ResNet-18: time and memory (--device cuda)

The cases are those of the tests, `tests/diagnosis/planted.py`: small real trainings on scikit-learn's digits. A mistake
is an answer that differs from what was planted; a false alarm is a collapse or a cause found in a healthy run.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from tables import OtherWork, Requirement, conclude, print_table

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests are no package of the environment

from tests.diagnosis.planted import HEALTHY, PLANTED, diagnosed, mistakes, told

QUICK = {"n_samples": 192, "n_points": 16}  # settings in which a case takes seconds
QUESTIONS = ("regime", "collapse", "buys", "blamed")


@dataclass(frozen=True)
class Answer:
    """What a diagnosis said of one case."""

    name: str
    seed: int
    said: dict[str, Any]
    mistakes: list[str]
    exit_code: int
    training_seconds: float
    diagnosis_seconds: float


def answer(name: str, seed: int) -> Answer:
    """Train a case and diagnose it, on one core."""
    torch.set_num_threads(1)
    began = time.process_time()
    case = PLANTED[name](seed)
    trained = time.process_time()
    diagnosis = diagnosed(case, **QUICK)
    said = told(diagnosis)
    ended = time.process_time()
    return Answer(name, seed, said, mistakes(case, said), diagnosis.exit_code, trained - began, ended - trained)


def answers(names: list[str], n_seeds: int, workers: int) -> Iterator[Answer]:
    """Of every case, as they come; each case with its seeds in order."""
    pairs = [(name, seed) for name in names for seed in range(n_seeds)]
    if workers == 1:
        yield from (answer(*pair) for pair in pairs)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(answer, *zip(*pairs, strict=True))


def row(name: str, found: list[Answer]) -> tuple[str, ...]:
    """A case in the table: how many seeds were told right, every answer that was given, and the median seconds."""
    given = []
    for question in QUESTIONS:
        words = [_word(it.said[question]) for it in found]
        counts = sorted({word: words.count(word) for word in words}.items(), key=lambda item: -item[1])
        given.append(", ".join(word if len(counts) == 1 else f"{word} {count}" for word, count in counts))
    seconds = sorted(it.diagnosis_seconds for it in found)[len(found) // 2]
    right = sum(not it.mistakes for it in found)
    return name, f"{right} of {len(found)}", *given, f"{seconds:.1f}"


def _word(said: Any) -> str:
    if isinstance(said, tuple):
        return "+".join(said) or "nothing"
    return {True: "yes", False: "no", None: "unsure"}.get(said, said)


def requirements(found: list[Answer]) -> list[Requirement]:
    """No mistake in any case, no alarm in a healthy run."""
    healthy = [it for it in found if it.name in HEALTHY]
    needed = [Requirement("cases told wrong", sum(bool(it.mistakes) for it in found), 0, at_least=False)]
    if healthy:
        alarms = sum(it.said["collapse"] != "none" or bool(it.said["blamed"]) for it in healthy)
        needed += [
            Requirement("healthy runs", len(healthy), 20, at_least=True),
            Requirement("false alarms among them", alarms, 0, at_least=False),
        ]
    slowest = max(it.training_seconds for it in found)
    return [*needed, Requirement("seconds to train the slowest case, one core", slowest, 3, at_least=False)]


def resnet18_case(device: str) -> dict[str, float]:
    """Seconds and GiB of one diagnosis of a ResNet-18 with 128 outputs at ten checkpoints, on 256 images.

    The checkpoints are a random walk: what they hold changes no cost. Images are CIFAR-10's below KONTRAST_DATA.
    """
    import networks
    from inputs import pictures

    import kontrast as kt

    x, y = pictures(256)[0], torch.arange(256) % 10  # labels cost the same, whatever they say
    net, generator = networks.resnet18(128), torch.Generator().manual_seed(0)
    states = [{name: value.clone() for name, value in net.state_dict().items()}]
    for _ in range(9):
        states.append({name: stepped(name, value, generator) for name, value in states[-1].items()})
    began = time.perf_counter()
    kt.diagnose(
        net, states, data=x, labels=y, views="crop+flip+brightness", loss="nt_xent", features="10", device=device,
        progress=True,
    )  # fmt: skip
    seconds = time.perf_counter() - began
    resident = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak = torch.cuda.max_memory_allocated() if device != "cpu" else resident
    return {"seconds": seconds, "GiB": peak / 2**30}


def stepped(name: str, value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A weight after a small random step; statistics and counters stay."""
    if "running" in name or not value.is_floating_point() or value.numel() < 2:
        return value.clone()
    return value + 0.02 * value.std() * torch.randn(value.shape, generator=generator)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="?", default="", help="a regular expression that names of cases match")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, help="a file for every answer")
    parser.add_argument("--resnet18", action="store_true", help="time and memory of a ResNet-18 instead")
    parser.add_argument("--device", default="cpu", help="of the ResNet-18")
    options = parser.parse_args()
    if options.resnet18:
        found_there = resnet18_case(options.device)
        print(f"{found_there['seconds']:.0f} s, {found_there['GiB']:.1f} GiB")
        return
    names = [name for name in PLANTED if re.search(options.names, name)]
    if not names:
        parser.error(f"no case matches {options.names!r}; there are {', '.join(PLANTED)}")
    work, found = OtherWork(), []
    for it in answers(names, options.seeds, options.workers):
        found.append(it)
        for mistake in it.mistakes:
            print(f"{it.name}, seed {it.seed}: {mistake}", flush=True)
    rows = [row(name, [it for it in found if it.name == name]) for name in names]
    print_table("planted cases", ("", "right", *QUESTIONS, "CPU s"), rows)
    conclude(requirements(found), found, work, options.json)


if __name__ == "__main__":
    main()
