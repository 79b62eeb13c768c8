"""What a Monitor costs: the time of SimCLR with it against the same loop without it, and memory over many steps.

The two loops train equal networks on equal batches and run in turns, a step each, so that whatever else the machine
does slows both alike. The number asked for is a ratio below 1.03 at the default: a record every 200 steps.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from networks import resnet18, seeded
from torch import Tensor, nn

import kontrast as kt
from kontrast.diagnosis.monitor import Monitor

OUTPUTS = 128
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


class Loop:
    """SimCLR on random images, a step at a time."""

    def __init__(self, width: int, batch: int, device: str) -> None:
        self.net = resnet18(OUTPUTS, width).to(device).train()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.03, momentum=0.9)
        self.generator = torch.Generator(device).manual_seed(0)
        self.batch, self.device = batch, device
        self.seconds = dict.fromkeys(CLOCKS, 0.0)

    def step(self, number: int, told: Callable[[int, Any], object]) -> None:
        """Two views of a fresh batch, one update."""
        before = {name: clock() for name, clock in CLOCKS.items()}
        images = torch.randn(self.batch, 3, 32, 32, generator=self.generator, device=self.device)
        noise = torch.randn(2 * self.batch, 3, 32, 32, generator=self.generator, device=self.device)
        a, b = self.net(torch.cat([images, images]) + 0.5 * noise).chunk(2)
        loss = kt.losses.nt_xent(a, b).total
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        told(number, loss)
        if self.device == "cuda":
            torch.cuda.synchronize()
        for name, clock in CLOCKS.items():
            self.seconds[name] += clock() - before[name]


def probe_views(n: int) -> tuple[Tensor, Tensor]:
    x, noise = torch.randn(2, n, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    return x, x + 0.5 * noise


def overhead(options: argparse.Namespace) -> dict[str, Any]:
    """Whole periods: each has one record, of which the loop tells at its last step."""
    alone, watched = (Loop(options.width, options.batch, options.device) for _ in range(2))
    with tempfile.TemporaryDirectory() as folder:
        monitor = Monitor(watched.net, probe_views(options.probe), every=options.every, folder=Path(folder) / "m")
        for loop in (alone, watched):  # warm, the start's record too
            loop.step(0, monitor.step if loop is watched else lambda *_: None)
            loop.seconds = dict.fromkeys(CLOCKS, 0.0)
        for number in range(1, options.periods * options.every + 1):
            for loop in (alone, watched) if number % 2 else (watched, alone):
                loop.step(number, monitor.step if loop is watched else lambda *_: None)
        records = len(monitor.to_dataset().checkpoint) - 1
        times = []
        for later in range(1, 6):
            begin = time.perf_counter()
            monitor.step(number + later, now=True)
            times.append(time.perf_counter() - begin)
        record = statistics.median(times)
    same = all(torch.equal(a, b) for a, b in zip(alone.net.parameters(), watched.net.parameters(), strict=True))
    steps = options.periods * options.every
    return {
        "ratio of wall time": round(watched.seconds["wall"] / alone.seconds["wall"], 4),
        "ratio of processor time": round(watched.seconds["cpu"] / alone.seconds["cpu"], 4),
        "a record over a period, 1 + share": round(1 + record / (options.every * alone.seconds["wall"] / steps), 4),
        "seconds of a step": round(alone.seconds["wall"] / steps, 4),
        "seconds of a record": round(record, 3),
        "records": records,
        "weights equal to the bit": same,
        "threads": torch.get_num_threads(),
    }


def memory(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Bytes that Python holds, and the process, as a small network is watched for many steps."""
    with seeded():
        net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32))
    rows = []
    tracemalloc.start()
    with tempfile.TemporaryDirectory() as folder:
        monitor = Monitor(net, probe_views(64), every=options.every_in_memory, folder=Path(folder) / "m")
        for step in range(options.steps + 1):
            monitor.step(step, torch.tensor(1.0))
            if step and step % (options.steps // 10) == 0:
                gc.collect()
                rows.append({"step": step, "python": tracemalloc.get_traced_memory()[0], "process": resident()})
    tracemalloc.stop()
    return rows


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=16, help="channels of the first layer of the ResNet-18")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--probe", type=int, default=256)
    parser.add_argument("--every", type=int, default=200)
    parser.add_argument("--periods", type=int, default=1)
    parser.add_argument("--steps", type=int, default=10_000, help="of the measurement of memory")
    parser.add_argument("--every-in-memory", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", choices=("overhead", "memory"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    if options.only != "memory":
        found["overhead"] = overhead(options)
    if options.only != "overhead":
        found["memory"] = memory(options)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for name, value in found.get("overhead", {}).items():
        print(f"{name}: {value}")
    for row in found.get("memory", []):
        print(f"step {row['step']:>6,}: Python {row['python'] / 1e6:.3f} MB, process {row['process'] / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
