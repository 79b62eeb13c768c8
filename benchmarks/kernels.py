"""The kernels on a CPU against neural-tangents, torch.func and nngeometry, all in one run, in turns, on two threads.

Infinite ReLU NTK, empirical trace NTK of the two-layer ReLU network, empirical NTK of a small ConvNet, and the trace
NTK of three networks as people train them; float32. neural-tangents has no part in the last: of these networks it has
the layers of the ConvNet alone. Every case first checks that its sides compute the same numbers. Times are medians of
warm calls; "first call" is the first in a fresh process, after the imports, compilation included; "peak" is the most
memory a warm call takes in that process beyond what it held before, the result included. A side in torch may take nine
tenths of the memory that was free at the start.

    make bench-kernels        or, after `make dev bench-peers`:   .venv/bin/python benchmarks/kernels.py
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from exact import (
    network_ntk_trace,
    relu_ntk_errors,
    repeated,
    repeated_errors,
    scaled_error,
    two_layer_ntk_trace,
)
from inputs import digits, pictures
from largest import Largest, largest_that_fits, print_largest
from networks import NETWORKS
from plot_networks import draw
from tables import OtherWork, Requirement, machine, print_requirements, print_table, write_json
from torch import Tensor
from worker import CannotError, Worker

from kontrast.memory import free_bytes

HERE = Path(__file__).parent
PAUSE = 0.05  # seconds between turns, so that the other side's idle threads have stopped spinning
JACOBIAN, TWO_JACOBIANS = "torch.func, one Jacobian", "torch.func, two Jacobians"
ROWS_OF_VECTOR_PRODUCTS = {"resnet18": 4, "vit": 8, "convnet": 32}  # n² passes a call: more take minutes
SIZES = (8, 16, 32, 64)  # time against n
LARGEST_MEMORY, LARGEST_SECONDS = 8 * 2**30, 60.0


@dataclass(frozen=True)
class Side:
    """One way to compute a case: a task of `torch_side.py`, or of `peers.py` when `peer`."""

    task: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    peer: bool = False


@dataclass
class Measurement:
    """What one side did in one case; numbers that were not measured, or could not be, are nan."""

    case: str
    side: str
    network: str = ""
    n: int = 0
    seconds: list[float] = field(default_factory=list)
    first_call: float = math.nan
    peak_bytes: float = math.nan
    result_bytes: float = math.nan
    errors: dict[str, float] = field(default_factory=dict)
    refused: str = ""
    result: Tensor | None = None

    @property
    def median(self) -> float:
        """Seconds of a warm call."""
        return statistics.median(self.seconds) if self.seconds else math.nan

    @property
    def peak(self) -> float:
        """Peak memory as a multiple of the result."""
        return self.peak_bytes / self.result_bytes


class Bench:
    """The two long-lived workers, and how a case is measured with them."""

    def __init__(self, folder: Path, stack: ExitStack, *, peers: Path | None, repeats: int, n_threads: int) -> None:
        """Start both sides; with `peers=None` kontrast's alone."""
        self.folder, self.repeats, self._n_threads, self._peers = folder, repeats, n_threads, peers
        self._n_started, self._memory = 0, int(0.9 * free_bytes(torch.device("cpu")))
        self._warm = {False: stack.enter_context(self._worker(peer=False))}
        if peers is not None:
            self._warm[True] = stack.enter_context(self._worker(peer=True))
        self.versions = {key: value for worker in self._warm.values() for key, value in worker.about.items()}
        self.measurements: list[Measurement] = []
        self.requirements: list[Requirement] = []
        self.largest: list[Largest] = []

    def save(self, name: str, array: Tensor) -> Path:
        """An input as a file that either side can read."""
        file = self.folder / f"{name}.npy"
        np.save(file, array.numpy())
        return file

    def require(
        self, what: str, reached: float, *, at_least: float | None = None, at_most: float | None = None
    ) -> None:
        """Put a number beside what was asked for; nan, not measured, stays in the list and is not met."""
        asked = at_least if at_least is not None else at_most
        assert asked is not None
        self.requirements.append(Requirement(what, reached, asked, at_least is not None))

    def measure(
        self,
        case: str,
        inputs: Mapping[str, Path],
        sides: Mapping[str, Side],
        *,
        cold: bool = True,
        repeats: int = 0,
        seconds_each: float = math.inf,
    ) -> dict[str, Measurement]:
        """Run every side that there is; results are in `Measurement.result`. `cold`: in fresh processes as well.

        A side that has taken `seconds_each` is not asked again.
        """
        there = {name: side for name, side in sides.items() if side.peer in self._warm}
        measured = {name: Measurement(case, name) for name in there}
        for name, side in there.items():
            print(f"… {case}: {name}", file=sys.stderr, flush=True)
            try:
                if cold:
                    self._cold(measured[name], side, inputs)
                self._check_out(measured[name], side, inputs)
            except CannotError as error:
                measured[name].refused = str(error)
        able = [name for name in there if not measured[name].refused]
        for _ in range(repeats or self.repeats):
            for name in able:
                if sum(measured[name].seconds) > seconds_each:
                    continue
                time.sleep(PAUSE)
                measured[name].seconds.append(self._ask(self._warm[there[name].peer], there[name], inputs)["seconds"])
        self.measurements += measured.values()
        return measured

    def result(self, inputs: Mapping[str, Path], side: Side) -> Tensor | None:
        """What a side computes, unmeasured; None if it cannot or is not there."""
        measurement = Measurement("", "")
        if side.peer not in self._warm:
            return None
        try:
            self._check_out(measurement, side, inputs)
        except CannotError:
            return None
        return measurement.result

    def find_largest(self, network: str, name: str, side: Side, **options: Any) -> None:
        """How many pictures a side takes in a fresh process of 8 GiB and 60 s a call; `options`: for the side."""
        print(f"… largest n, {network}: {name}", file=sys.stderr, flush=True)

        def attempt(n: int) -> float:
            inputs = {"x": self.save(f"largest{n}", pictures(n)[0])}
            return worker.run(side.task, inputs, **side.arguments, **options)["seconds"]

        with self._worker(peer=False, memory=LARGEST_MEMORY) as worker:
            self.largest.append(largest_that_fits(network, name, attempt, seconds=LARGEST_SECONDS))

    def _worker(self, *, peer: bool, memory: int | None = None) -> Worker:
        python, script = (self._peers, "peers.py") if peer else (sys.executable, "torch_side.py")
        assert python is not None
        self._n_started += 1
        return Worker(
            python,
            HERE / script,
            n_threads=self._n_threads,
            log=self.folder / "messages.txt",
            memory=None if peer else memory or self._memory,
            # A cache of its own for every process: a first call compiles.
            TORCHINDUCTOR_CACHE_DIR=str(self.folder / f"cache-{self._n_started}"),
        )

    def _cold(self, measurement: Measurement, side: Side, inputs: Mapping[str, Path]) -> None:
        with self._worker(peer=side.peer) as worker:
            measurement.first_call = self._ask(worker, side, inputs)["seconds"]
            reply = self._ask(worker, side, inputs, memory=True)
            measurement.peak_bytes, measurement.result_bytes = reply["peak_bytes"], reply["result_bytes"]

    def _check_out(self, measurement: Measurement, side: Side, inputs: Mapping[str, Path]) -> None:
        file = self.folder / "result.npy"
        self._ask(self._warm[side.peer], side, inputs, save=file)
        measurement.result = torch.from_numpy(np.load(file))

    @staticmethod
    def _ask(worker: Worker, side: Side, inputs: Mapping[str, Path], **options: Any) -> dict[str, Any]:
        return worker.run(side.task, inputs, **options, **side.arguments)


def faster(measured: Mapping[str, Measurement], side: str, than: str) -> float:
    """How many times as fast `side` is as `than`; nan if either is missing."""
    return measured[than].median / measured[side].median if {side, than} <= measured.keys() else math.nan


def infinite(bench: Bench) -> None:
    for n in (2000, 5000):
        x, source = digits(n)
        inputs, scale = {"x": bench.save(f"x{n}", x)}, 1 / x.shape[1]
        for depth in (1, 3):
            sides = {
                "kontrast": Side("infinite_ntk", {"depth": depth, "compile": False}),
                "kontrast, compile=True": Side("infinite_ntk", {"depth": depth, "compile": True}),
                "neural-tangents, jit": Side("infinite_ntk", {"depth": depth}, peer=True),
                "X Xᵀ alone": Side("product"),
            }
            case = f"infinite NTK, {source}, n={n}, {depth} hidden"
            measured = bench.measure(case, inputs, sides, cold=n == 5000)
            for name in list(sides)[:3]:
                if name in measured and (K := measured[name].result) is not None:
                    measured[name].errors |= asdict(relu_ntk_errors(K, x, depth=depth, input_scale=scale))
                    assert measured[name].errors["off_diagonal_scaled"] < 1e-4, f"{name} computes another kernel"
            few = x[:250]
            repeats = {"x": bench.save(f"repeated{n}", repeated(few))}
            for name in list(sides)[:3] if n == 5000 else ():
                if (K := bench.result(repeats, sides[name])) is not None:
                    measured[name].errors |= repeated_errors(K, few, depth=depth, input_scale=scale)
            if n == 5000:
                _require_infinite(bench, measured, depth)
            _forget(measured)


def _require_infinite(bench: Bench, measured: Mapping[str, Measurement], depth: int) -> None:
    case, peer = f"infinite NTK, n=5000, {depth} hidden", "neural-tangents, jit"
    eager, compiled = measured["kontrast"], "kontrast, compile=True"
    at_least = {1: (2, 2.5), 3: (3, 4)}[depth]
    bench.require(f"{case}: times faster than {peer}", faster(measured, "kontrast", peer), at_least=at_least[0])
    bench.require(f"{case}: the same, compile=True", faster(measured, compiled, peer), at_least=at_least[1])
    bench.require(f"{case}: peak memory over the result", eager.peak, at_most=1.3)
    bench.require(f"{case}: the same, compile=True", measured[compiled].peak, at_most=1.3)
    bench.require(f"{case}: first call, seconds", eager.first_call, at_most=1)
    for kind in ("diagonal", "duplicate", "antipodal", "collinear"):
        bench.require(f"{case}: relative error, {kind}", eager.errors.get(kind, math.nan), at_most=1e-6)


def empirical(bench: Bench) -> None:
    structured = Side("empirical_ntk_trace", {"implementation": "STRUCTURED_DERIVATIVES"}, peer=True)
    for n, width in ((1000, 1024), (1000, 8192), (100, 1024)):
        x, source = digits(n)
        generator = torch.Generator().manual_seed(0)
        V, W = (torch.randn(width, size, generator=generator) for size in (x.shape[1], 10))
        inputs = {"x": bench.save(f"x{n}", x), "V": bench.save(f"V{width}", V), "W": bench.save(f"W{width}", W)}
        sides = {
            "kontrast, MLP": Side("empirical_ntk_trace", {"network": "MLP"}),
            "kontrast, nn.Sequential": Side("empirical_ntk_trace", {"network": "Sequential"}),
            "neural-tangents, structured": structured,
        }
        if n == 100:  # at n = 1000 it does not fit in 24 GiB; here to show which of neural-tangents' ways is its best
            vectors = {"implementation": "NTK_VECTOR_PRODUCTS"}
            sides["neural-tangents, vector products"] = Side("empirical_ntk_trace", vectors, peer=True)
        case = f"empirical trace NTK, {source}, n={n}, Z=10, M={width}"
        measured = bench.measure(case, inputs, sides, cold=n == 1000, repeats=0 if n == 1000 else 3)
        exact = two_layer_ntk_trace(x, V, W)
        for name, m in measured.items():
            if m.result is not None:
                factor = width if name == "kontrast, nn.Sequential" else 1
                m.errors["scaled"] = scaled_error(m.result.double() / factor, exact)
                # One unit on the other side of the kink moves an entry by about 1/M of the kernel's size.
                assert m.errors["scaled"] < 8 / width, f"{name} computes another kernel: {m.errors}"
        if n == 1000:
            case, mlp = f"empirical trace NTK, n={n}, M={width}", measured["kontrast, MLP"].median
            reached = faster(measured, "kontrast, MLP", "neural-tangents, structured")
            bench.require(f"{case}: MLP, times faster than neural-tangents", reached, at_least=5)
            sequential = measured["kontrast, nn.Sequential"].median
            bench.require(f"{case}: nn.Sequential's time over MLP's", sequential / mlp, at_most=1.3)
        _forget(measured)


def convnet(bench: Bench) -> None:
    n = 64
    x, source = pictures(n)
    inputs = {"x": bench.save("pictures", x)}
    for traced in (True, False):
        sides = {
            "kontrast": Side("convnet", {"side": "kontrast", "traced": traced}),
            "torch.func Jacobian": Side("convnet", {"side": "torch.func", "traced": traced}),
        }
        name = "empirical_ntk_trace" if traced else "empirical_ntk"
        measured = bench.measure(f"ConvNet {name}, {source}, n={n}", inputs, sides)
        ours, theirs = measured.values()
        if ours.result is not None and theirs.result is not None:
            ours.errors["scaled"] = float((ours.result - theirs.result).abs().max() / theirs.result.abs().max())
            assert ours.errors["scaled"] < 1e-4, f"kontrast computes another kernel than torch.func: {ours.errors}"
        reached = faster(measured, "kontrast", "torch.func Jacobian")
        bench.require(f"ConvNet {name}: times faster than torch.func", reached, at_least=5)
        bench.require(f"ConvNet {name}: share of its memory", ours.peak_bytes / theirs.peak_bytes, at_most=0.1)
        _forget(measured)


def networks(bench: Bench, *, n: int, largest: bool) -> None:
    for network, make in NETWORKS.items():
        sizes = sorted({*SIZES, n})
        x, source = pictures(max(sizes))
        exact = network_ntk_trace(make(), x[:n])
        for size in sizes:
            case = f"empirical trace NTK, {network}, {source}, n={size}"
            sides = _ways(network, n) if size == n else {k: _ways(network, n)[k] for k in ("kontrast", JACOBIAN)}
            inputs = {"x": bench.save(f"pictures{size}", x[:size])}
            repeats = min(bench.repeats, 5 if size == n else 3)
            measured = bench.measure(case, inputs, sides, cold=size == n, repeats=repeats, seconds_each=60)
            for name, m in measured.items():
                m.network, m.n = network, sides[name].arguments["rows"] or size
                if m.result is not None:
                    few = min(m.n, n)
                    m.errors["scaled"] = scaled_error(m.result[:few, :few].double(), exact[:few, :few])
                    assert m.errors["scaled"] < 1e-3, f"{name} computes another kernel: {m.errors}"
            if size == n:
                _require_networks(bench, measured, network)
            _forget(measured)
        if largest:
            bench.find_largest(network, "kontrast", _ways(network, n)["kontrast"], memory=LARGEST_MEMORY / 2)
            for name in (JACOBIAN, TWO_JACOBIANS):
                bench.find_largest(network, name, _ways(network, n)[name])


def _ways(network: str, n: int) -> dict[str, Side]:
    def side(way: str, rows: int | None = None) -> Side:
        return Side("network_trace", {"network": network, "way": way, "rows": rows})

    few = min(n, ROWS_OF_VECTOR_PRODUCTS[network])
    ways = {"kontrast": side("kontrast"), JACOBIAN: side("one Jacobian"), TWO_JACOBIANS: side("two Jacobians")}
    if network == "resnet18":  # two of 32 rows are 29 GB
        ways[f"{TWO_JACOBIANS}, n={n // 2}"] = side("two Jacobians", n // 2)
    ways["torch.func, vector products" + (f", n={few}" if few < n else "")] = side("vector products", few)
    return ways | {"nngeometry": side("nngeometry")}


def _require_networks(bench: Bench, measured: Mapping[str, Measurement], network: str) -> None:
    ours, theirs = measured["kontrast"], measured[JACOBIAN]
    bench.require(f"{network}: scaled error", ours.errors.get("scaled", math.nan), at_most=5e-6)
    if network != "convnet":
        reached = faster(measured, "kontrast", JACOBIAN)
        bench.require(f"{network}: times faster than torch.func's Jacobian", reached, at_least=3)
        bench.require(f"{network}: share of its memory", ours.peak_bytes / theirs.peak_bytes, at_most=0.2)


def _forget(measured: Mapping[str, Measurement]) -> None:
    for m in measured.values():
        m.result = None


def show(measurements: Sequence[Measurement]) -> None:
    """One table a case; times are also given as multiples of the first row's, errors as found against float64."""
    for case in dict.fromkeys(m.case for m in measurements):
        group = [m for m in measurements if m.case == case]
        kinds = list(dict.fromkeys(kind for m in group for kind in m.errors))
        columns = ["", "ms, median", "min", "max", "× first row", "first call, s", "peak, MB", "peak / result"]
        rows = []
        for m in group:
            low, high = (min(m.seconds), max(m.seconds)) if m.seconds else (math.nan, math.nan)
            times = [_text(1e3 * t, ",.1f") for t in (m.median, low, high)]
            memory = [_text(m.peak_bytes / 1e6, ",.0f"), _text(m.peak, ",.2f")]
            row = [m.side, *times, _text(m.median / group[0].median, ".2f"), _text(m.first_call, ".2f"), *memory]
            rows.append(row + [_text(m.errors.get(kind, math.nan), ".1e") for kind in kinds])
        print_table(case, columns + [kind.replace("_", " ") for kind in kinds], rows)
        for m in group:
            if m.refused:
                print(f"{m.side} did not run: {m.refused}")


def _text(number: float, form: str) -> str:
    return "–" if math.isnan(number) else f"{number:{form}}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("infinite", "empirical", "convnet", "networks"), help="one part of it")
    parser.add_argument("--n-networks", type=int, default=32, help="rows of the networks' kernels")
    parser.add_argument("--largest", action="store_true", help="the networks' largest n in 8 GiB and 60 s a call, too")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peers", type=Path, default=HERE.parent / ".venv-peers/bin/python", help="their interpreter")
    parser.add_argument("--without-peers", action="store_true", help="kontrast and torch alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the networks' times against n there")
    options = parser.parse_args()
    peers = None if options.without_peers else options.peers
    if peers is not None and not peers.exists():
        parser.error(f"there is no {peers}; run `make bench-peers` first, or pass --without-peers")
    torch.set_num_threads(options.threads)
    other_work = OtherWork()
    with tempfile.TemporaryDirectory(prefix="kontrast-bench-") as folder, ExitStack() as stack:
        bench = Bench(Path(folder), stack, peers=peers, repeats=options.repeats, n_threads=options.threads)
        sections = {
            "infinite": infinite,
            "empirical": empirical,
            "convnet": convnet,
            "networks": partial(networks, n=options.n_networks, largest=options.largest),
        }
        for name, section in sections.items():
            if options.only in (None, name):
                section(bench)
    share = other_work.share()
    about = machine() | {"threads": str(options.threads)} | bench.versions | {"other work": f"{share:.0%} of the cores"}
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    show(bench.measurements)
    if bench.largest:
        print_largest(bench.largest, f"{LARGEST_MEMORY / 2**30:g} GiB and {LARGEST_SECONDS:g} s a call")
    print_requirements(bench.requirements)
    if share > 0.03:
        print(
            f"Other work took {share:.0%} of the cores meanwhile: these times mislead. Run it again on an idle machine."
        )
    rows = [
        {key: value for key, value in asdict(m).items() if key != "result"} | {"median": m.median}
        for m in bench.measurements
    ]
    if options.json:
        write_json(options.json, about, [*rows, *map(asdict, bench.largest)], bench.requirements)
    if options.plot:
        draw({"two CPU cores": rows}, options.plot)


if __name__ == "__main__":
    main()
