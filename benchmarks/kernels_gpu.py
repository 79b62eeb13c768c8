"""The kernels on one GPU, against the bare matrix product, torch.func and neural-tangents' numbers of an H200.

Infinite ReLU NTK of 60,000 × 784 in float32 with every entry checked against float64, of 70,000 × 784 in float64, the
empirical trace NTK of the two-layer ReLU network, and that of three networks as people train them; no TF32 on any side
but where it is named.
Times are medians between CUDA events, after a warm-up; "first call" is the first of its kind in this process, kernels
compiled on the way included; "peak" is what the call allocates at most, the result included. neural-tangents is not
part of this run: its numbers are constants, taken once on an H200, of the infinite and the two-layer kernels alone.

    PYTHONPATH=src python benchmarks/kernels_gpu.py
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import torch
from exact import network_ntk_trace, relu_ntk_errors, repeated, repeated_errors, scaled_error, two_layer_ntk_trace
from inputs import digits, pictures
from largest import Largest, largest_that_fits, print_largest
from networks import NETWORKS
from tables import Requirement, machine, print_requirements, print_table, write_json
from torch import Tensor, nn
from torch_func import JACOBIAN, ROWS_OF_VECTOR_PRODUCTS, TWO_JACOBIANS, VECTOR_PRODUCTS, WAYS, one_jacobian
from worker import CannotError

import kontrast as kt

# Milliseconds on one H200 in float32, as measured once; not measured in this run.
NEURAL_TANGENTS = {"infinite, 1 hidden": 118.0, "empirical, M=8192": 4.6, "empirical, M=65536": 35.0}
NETWORK_SIZES = (64, 256, 1000)
NETWORK_LIMITS = {  # of kontrast at these n: milliseconds, and GiB
    "resnet18": {1000: (1800, 40), 5000: (45_000, math.inf)},
    "vit": {1000: (1200, 20)},
}
ROWS_CHECKED = 256  # of a network's kernel, against float64
WITH_TF32 = f"{JACOBIAN}, TF32"


@dataclass
class Measurement:
    """One case; numbers that were not measured, or could not be, are nan."""

    case: str
    milliseconds: list[float] = field(default_factory=list)
    first_call_ms: float = math.nan
    peak_bytes: float = math.nan
    result_bytes: float = math.nan
    peer_ms: float = math.nan
    errors: dict[str, float] = field(default_factory=dict)
    network: str = ""
    side: str = ""
    n: int = 0
    cannot: str = ""  # why there are no numbers

    @property
    def median(self) -> float:
        """Milliseconds of a warm call."""
        return statistics.median(self.milliseconds) if self.milliseconds else math.nan


def measure(
    case: str,
    compute: Callable[[], Tensor],
    *,
    repeats: int,
    ms_each: float = math.inf,
    peer_ms: float = math.nan,
) -> tuple[Measurement, Tensor]:
    """Time `compute` and return its last result; only one result is held at any moment.

    Calls that have taken `ms_each` are not repeated; without repeats the first call is all.
    """
    print(f"… {case}", flush=True)
    _empty()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    result = compute()
    torch.cuda.synchronize()
    first = 1e3 * (time.perf_counter() - begin)
    if repeats == 0:
        peak = torch.cuda.max_memory_allocated() - held
        return Measurement(case, [first], first, peak, result.nbytes, peer_ms), result
    del result
    torch.cuda.reset_peak_memory_stats()
    times: list[float] = []
    while len(times) <= repeats and sum(times) < ms_each:  # the first is the warm-up
        result = None
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        result = compute()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    peak = torch.cuda.max_memory_allocated() - held
    return Measurement(case, times[1:] or times, first, peak, result.nbytes, peer_ms), result


def _empty() -> None:
    """Give back what earlier cases held, those that ended by an error too."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


class Bench:
    """What was measured, and beside it what was asked for."""

    def __init__(self, repeats: int) -> None:
        self.repeats = repeats
        self.measurements: list[Measurement] = []
        self.requirements: list[Requirement] = []
        self.largest: list[Largest] = []

    def run(self, case: str, compute: Callable[[], Tensor], **options: float) -> tuple[Measurement, Tensor]:
        """Measure a case and keep it for the table."""
        measurement, result = measure(case, compute, **({"repeats": self.repeats} | options))
        self.measurements.append(measurement)
        return measurement, result

    def attempt(self, case: str, compute: Callable[[], Tensor], **options: float) -> tuple[Measurement, Tensor | None]:
        """As `run`; what torch cannot do, most often for want of memory, is a line of the table and not the end."""
        try:
            return self.run(case, compute, **options)
        except RuntimeError as error:
            self.measurements.append(Measurement(case, cannot=_reason(error)))
            return self.measurements[-1], None

    def at_most(self, what: str, reached: float, asked: float) -> None:
        """Put a number beside the most that it may be."""
        self.requirements.append(Requirement(what, reached, asked, at_least=False))

    def at_least(self, what: str, reached: float, asked: float) -> None:
        """Put a number beside the least that it may be."""
        self.requirements.append(Requirement(what, reached, asked, at_least=True))


def _reason(error: RuntimeError) -> str:
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "out of memory"
    return f"{type(error).__name__}: {error}".splitlines()[0]


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


def networks(bench: Bench, *, n_large: int, largest_seconds: float | None) -> None:
    ways = {"kontrast": kt.kernels.empirical_ntk_trace, WITH_TF32: one_jacobian_in_tf32} | WAYS
    first, *others = NETWORK_SIZES
    for network, make in NETWORKS.items():
        # Every side at the first size, but vector products on few rows; then kontrast and one Jacobian.
        cases = [(side, first) for side in ("kontrast", JACOBIAN, WITH_TF32, TWO_JACOBIANS)]
        cases.append((VECTOR_PRODUCTS, min(first, ROWS_OF_VECTOR_PRODUCTS[network])))
        cases += [(side, n) for n in others for side in ("kontrast", JACOBIAN)]
        if network == "resnet18":
            cases.append(("kontrast", n_large))
        x, source = pictures(max(n for _, n in cases))
        net, x = make().cuda(), x.cuda()
        exact = network_ntk_trace(net, x[:ROWS_CHECKED])
        measured = {}
        for side, n in cases:
            case, repeats = f"{network}, {source}, n={n}: {side}", 0 if n == n_large else bench.repeats
            m, K = bench.attempt(case, partial(ways[side], net, x[:n]), repeats=repeats, ms_each=2000)
            m.network, m.side, m.n = network, side, n
            if K is not None:
                few = min(n, ROWS_CHECKED)
                m.errors["scaled"] = scaled_error(K[:few, :few].double(), exact[:few, :few])
                assert side != "kontrast" or m.errors["scaled"] < 1e-4, f"kontrast computes another kernel: {m.errors}"
            measured[side, n] = m
            del K
        _require_networks(bench, network, measured)
        if largest_seconds is not None:
            for side in ("kontrast", JACOBIAN, TWO_JACOBIANS):
                attempt = partial(_seconds_of_a_call, ways[side], net)
                bench.largest.append(largest_that_fits(network, side, attempt, seconds=largest_seconds))


def one_jacobian_in_tf32(net: nn.Module, x: Tensor) -> Tensor:
    """torch.func as torch comes: convolutions in TF32."""
    torch.backends.cudnn.allow_tf32 = True
    try:
        return one_jacobian(net, x)
    finally:
        torch.backends.cudnn.allow_tf32 = False


def _require_networks(bench: Bench, network: str, measured: Mapping[tuple[str, int], Measurement]) -> None:
    ours = {n: m for (side, n), m in measured.items() if side == "kontrast"}
    for n, (milliseconds, gibibytes) in NETWORK_LIMITS.get(network, {}).items():
        m = ours.get(n, Measurement("not run"))
        bench.at_most(f"{network}, n={n}: ms", m.median, milliseconds)
        if gibibytes < math.inf:
            bench.at_most(f"{network}, n={n}: peak, GiB", m.peak_bytes / 2**30, gibibytes)
    if network in NETWORK_LIMITS:
        n = NETWORK_SIZES[0]
        for side in (JACOBIAN, TWO_JACOBIANS):
            bench.at_least(f"{network}, n={n}: × {side}", measured[side, n].median / ours[n].median, 3)
    worst = torch.tensor([m.errors.get("scaled", math.nan) for m in ours.values()]).max()  # nan if one is
    bench.at_most(f"{network}: error, scaled", float(worst), 5e-6)


def _seconds_of_a_call(kernel: Callable[[nn.Module, Tensor], Tensor], net: nn.Module, n: int) -> float:
    x = pictures(n)[0].cuda()
    _empty()
    begin = time.perf_counter()
    try:
        kernel(net, x)
        torch.cuda.synchronize()
    except RuntimeError as error:
        raise CannotError(_reason(error)) from error
    return time.perf_counter() - begin


def show(measurements: Sequence[Measurement], title: str) -> None:
    kinds = list(dict.fromkeys(kind for m in measurements for kind in m.errors))
    columns = ["", "ms, median", "min", "max", "first call, ms", "peak, GiB", "peak / result"]
    with_peers = any(not math.isnan(m.peer_ms) for m in measurements)
    rows = []
    for m in measurements:
        if m.cannot:
            rows.append([m.case, f"cannot: {m.cannot}"])
            continue
        times = [f"{t:,.2f}" for t in (m.median, min(m.milliseconds), max(m.milliseconds))]
        memory = [f"{m.peak_bytes / 2**30:.2f}", f"{m.peak_bytes / m.result_bytes:,.2f}"]
        peer = ["–" if math.isnan(m.peer_ms) else f"{m.peer_ms:g}"] if with_peers else []
        errors = [f"{m.errors[kind]:.1e}" if kind in m.errors else "–" for kind in kinds]
        rows.append([m.case, *times, f"{m.first_call_ms:,.0f}", *memory, *peer, *errors])
    names = ["neural-tangents, ms"] if with_peers else []
    print_table(title, columns + names + [kind.replace("_", " ") for kind in kinds], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("infinite", "double", "empirical", "networks"), help="one part of it")
    parser.add_argument("--n", type=int, default=60_000, help="rows of the infinite kernel in float32")
    parser.add_argument("--n-double", type=int, default=70_000, help="rows of the one in float64")
    parser.add_argument("--n-large", type=int, default=5000, help="rows of the largest kernel of ResNet-18, taken once")
    parser.add_argument(
        "--largest", type=float, nargs="?", const=10.0, metavar="SECONDS", help="also find the networks' largest n"
    )
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--compile", action="store_true", help="infinite_ntk(compile=True)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this benchmark needs a CUDA device; `make bench-kernels` runs the one for the CPU")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    one = torch.ones(64, 64, device="cuda")
    one @ one  # the context and cuBLAS, before any first call
    bench = Bench(options.repeats)
    if options.only in (None, "infinite"):
        infinite(bench, n=options.n, compile=options.compile)
    if options.only in (None, "empirical"):
        empirical(bench)
    if options.only in (None, "double"):
        infinite_double(bench, n=options.n_double)
    if options.only in (None, "networks"):
        networks(bench, n_large=options.n_large, largest_seconds=options.largest)
    about = machine() | {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "kontrast": kt.__version__}
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    kernels = [m for m in bench.measurements if not m.network]
    if kernels:
        show(kernels, "one GPU (neural-tangents: constants from another run, one H200)")
    if len(kernels) < len(bench.measurements):
        show([m for m in bench.measurements if m.network], "trace NTK of networks, one GPU")
    if bench.largest:
        print_largest(bench.largest, f"the card's memory and {options.largest:g} s a call")
    print_requirements(bench.requirements)
    if options.json:
        rows = [asdict(m) | {"median": m.median} for m in bench.measurements]
        write_json(options.json, about, [*rows, *map(asdict, bench.largest)], bench.requirements)


if __name__ == "__main__":
    main()
