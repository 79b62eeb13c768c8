"""The kernels on one GPU, against the bare matrix product of the same run and the peers' numbers of an H200.

Infinite ReLU NTK of 60,000 × 784 in float32 with every entry checked against float64, of 70,000 × 784 in float64, and
the empirical trace NTK of the two-layer ReLU network. Times are medians between CUDA events, after a warm-up; "first
call" is the first of its kind in this process, kernels compiled on the way included; "peak" is what the call allocates
at most, the result included. neural-tangents is not part of this run: its numbers are constants, taken once on an H200.

    PYTHONPATH=src python benchmarks/kernels_gpu.py
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from exact import relu_ntk_errors, repeated, repeated_errors, scaled_error, two_layer_ntk_trace
from inputs import digits
from tables import Requirement, machine, print_requirements, print_table, write_json
from torch import Tensor

import kontrast as kt

# Milliseconds on one H200 in float32, as measured once; not measured in this run.
NEURAL_TANGENTS = {"infinite, 1 hidden": 118.0, "empirical, M=8192": 4.6, "empirical, M=65536": 35.0}


@dataclass
class Measurement:
    """One case; numbers that were not measured are nan."""

    case: str
    milliseconds: list[float]
    first_call_ms: float
    peak_bytes: int
    result_bytes: int
    peer_ms: float = math.nan
    errors: dict[str, float] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """Milliseconds of a warm call."""
        return statistics.median(self.milliseconds)


def measure(
    case: str, compute: Callable[[], Tensor], *, repeats: int, peer_ms: float = math.nan
) -> tuple[Measurement, Tensor]:
    """Time `compute` and return its last result; only one result is held at any moment."""
    print(f"… {case}", flush=True)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated()
    begin = time.perf_counter()
    result = compute()
    torch.cuda.synchronize()
    first = 1e3 * (time.perf_counter() - begin)
    del result
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(repeats + 1):  # the first is the warm-up
        result = None
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        result = compute()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    peak = torch.cuda.max_memory_allocated() - held
    return Measurement(case, times[1:], first, peak, result.nbytes, peer_ms), result


class Bench:
    """What was measured, and beside it what was asked for."""

    def __init__(self, repeats: int) -> None:
        self.repeats = repeats
        self.measurements: list[Measurement] = []
        self.requirements: list[Requirement] = []

    def run(self, case: str, compute: Callable[[], Tensor], **options: float) -> tuple[Measurement, Tensor]:
        """Measure a case and keep it for the table."""
        measurement, result = measure(case, compute, **({"repeats": self.repeats} | options))
        self.measurements.append(measurement)
        return measurement, result

    def at_most(self, what: str, reached: float, asked: float) -> None:
        """Put a number beside the most that it may be."""
        self.requirements.append(Requirement(what, reached, asked, at_least=False))


def infinite(bench: Bench, *, n: int, compile: bool) -> None:
    x, source = digits(n)
    x = x.cuda()
    scale = 1 / x.shape[1]
    bench.run(f"X Xᵀ alone by cuBLAS, {source}, n={n}", lambda: x @ x.mT)
    for depth, asked in ((1, 45), (3, 60)):
        case = f"infinite NTK, {source}, n={n}, {depth} hidden"
        options = {"depth": depth, "input_scale": scale, "compile": compile}
        m, K = bench.run(
            case,
            lambda options=options: kt.kernels.infinite_ntk(x, **options),
            peer_ms=NEURAL_TANGENTS.get(f"infinite, {depth} hidden", math.nan) if n == 60_000 else math.nan,
        )
        m.errors |= asdict(relu_ntk_errors(K, x, depth=depth, input_scale=scale, rows=2000))
        m.errors["asymmetry"] = max(float((K[i, j] - K[j, i].mT).abs().max()) for i, j in _blocks(n))
        del K
        few = x[: min(n, 2000)]
        K = kt.kernels.infinite_ntk(repeated(few), **options)
        m.errors |= repeated_errors(K, few, depth=depth, input_scale=scale)
        del K
        bench.at_most(f"{case}: ms", m.median, asked)
        bench.at_most(f"{case}: off-diagonal error, scaled", m.errors["off_diagonal_scaled"], 2e-6)
        for kind in ("diagonal", "duplicate", "antipodal", "collinear"):
            bench.at_most(f"{case}: relative error, {kind}", m.errors[kind], 1e-6)


def _blocks(n: int, size: int = 10_000) -> list[tuple[slice, slice]]:
    starts = range(0, n, size)
    return [(slice(i, i + size), slice(j, j + size)) for i in starts for j in starts if i <= j]


def infinite_double(bench: Bench, *, n: int) -> None:
    """The largest kernel asked for: float64, all of MNIST."""
    x, source = digits(n, split="all")
    x = x.cuda().double()
    scale = 1 / x.shape[1]
    case = f"infinite NTK, float64, {source}, n={n}, 1 hidden"
    m, K = bench.run(case, lambda: kt.kernels.infinite_ntk(x, depth=1, input_scale=scale), repeats=3)
    m.errors |= asdict(relu_ntk_errors(K, x, depth=1, input_scale=scale, rows=1000))
    card = torch.cuda.get_device_properties(0).total_memory
    bench.at_most(f"{case}: peak memory over the card's", m.peak_bytes / card, 1)


def empirical(bench: Bench, *, n: int = 1000) -> None:
    x, source = digits(n)
    x = x.cuda()
    for width, asked in ((8192, math.nan), (65_536, 6)):
        net = kt.nets.MLP(x.shape[1], width, 10, device="cuda")
        case = f"empirical trace NTK, {source}, n={n}, Z=10, M={width}"
        m, K = bench.run(
            case,
            lambda net=net: kt.kernels.empirical_ntk_trace(net, x),
            peer_ms=NEURAL_TANGENTS[f"empirical, M={width}"],
        )
        exact = two_layer_ntk_trace(x, net.hidden[0].detach(), net.output.detach())
        m.errors["off_diagonal_scaled"] = scaled_error(K.double(), exact)
        if not math.isnan(asked):
            bench.at_most(f"{case}: ms", m.median, asked)
            # Rounding may put a unit on the other side of the kink, which moves an entry by about 1/M.
            bench.at_most(f"{case}: error, scaled", m.errors["off_diagonal_scaled"], 4 / width)


def show(measurements: list[Measurement]) -> None:
    kinds = list(dict.fromkeys(kind for m in measurements for kind in m.errors))
    columns = ["", "ms, median", "min", "max", "first call, ms", "peak, GiB", "peak / result", "neural-tangents, ms"]
    rows = []
    for m in measurements:
        times = [f"{t:,.2f}" for t in (m.median, min(m.milliseconds), max(m.milliseconds))]
        memory = [f"{m.peak_bytes / 2**30:.2f}", f"{m.peak_bytes / m.result_bytes:.2f}"]
        peer = "–" if math.isnan(m.peer_ms) else f"{m.peer_ms:g}"
        errors = [f"{m.errors[kind]:.1e}" if kind in m.errors else "–" for kind in kinds]
        rows.append([m.case, *times, f"{m.first_call_ms:,.0f}", *memory, peer, *errors])
    print_table(
        "one GPU (neural-tangents: constants from another run, one H200)",
        columns + [kind.replace("_", " ") for kind in kinds],
        rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("infinite", "double", "empirical"), help="one part of it")
    parser.add_argument("--n", type=int, default=60_000, help="rows of the infinite kernel in float32")
    parser.add_argument("--n-double", type=int, default=70_000, help="rows of the one in float64")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--compile", action="store_true", help="infinite_ntk(compile=True)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this benchmark needs a CUDA device; `make bench-kernels` runs the one for the CPU")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.ones(64, 64, device="cuda") @ torch.ones(
        64, 64, device="cuda"
    )  # the context and cuBLAS, before any first call
    bench = Bench(options.repeats)
    if options.only in (None, "infinite"):
        infinite(bench, n=options.n, compile=options.compile)
    if options.only in (None, "empirical"):
        empirical(bench)
    if options.only in (None, "double"):
        infinite_double(bench, n=options.n_double)
    about = machine() | {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "kontrast": kt.__version__}
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    show(bench.measurements)
    print_requirements(bench.requirements)
    if options.json:
        rows = [asdict(m) | {"median": m.median} for m in bench.measurements]
        write_json(options.json, about, rows, bench.requirements)


if __name__ == "__main__":
    main()
