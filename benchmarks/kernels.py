"""The kernels on a CPU against neural-tangents, torch.func and nngeometry, all in one run, in turns, on two threads.

Infinite ReLU NTK, empirical trace NTK of the two-layer ReLU network, empirical NTK of a small ConvNet, and the trace
NTK of three networks as people train them; float32. neural-tangents takes part in the first three: of the networks its
own layers make the ConvNet alone. Times are medians of warm calls; "first call" is the first in a fresh process, after
the imports, compilation included; "peak" is the most memory a warm call takes in that process beyond what it held
before, the result included. Errors are against float64. A side in torch may take four fifths of the memory that was
free at the start; one that cannot do a case says why in the table.

    make bench-kernels        and then, with options:   .venv/bin/python benchmarks/kernels.py --only networks
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path

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
from largest import print_largest
from networks import NETWORKS
from plot_networks import draw
from tables import OtherWork, machine, print_requirements, write_json
from torch import Tensor
from torch_func import JACOBIAN, ROWS_OF_VECTOR_PRODUCTS, TWO_JACOBIANS, VECTOR_PRODUCTS, one_jacobian
from turns import HERE, Bench, Measurement, Side, faster, forget, show

LARGEST_BYTES = 8 * 2**30


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
            forget(measured)


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
        forget(measured)


def convnet(bench: Bench) -> None:
    n = 64
    x, source = pictures(n)
    net = NETWORKS["convnet"]()
    inputs = {name: bench.save(f"convnet.{name}", weight) for name, weight in net.state_dict().items()}
    inputs["x"] = bench.save("pictures", x)
    for traced in (True, False):
        sides = {
            "kontrast": Side("convnet", {"side": "kontrast", "traced": traced}),
            "torch.func Jacobian": Side("convnet", {"side": "torch.func", "traced": traced}),
            "neural-tangents, structured": Side("convnet", {"traced": traced}, peer=True),
        }
        name, contraction = ("empirical_ntk_trace", "nap,map->nm") if traced else ("empirical_ntk", "nap,mbp->nmab")
        measured = bench.measure(f"ConvNet {name}, {source}, n={n}", inputs, sides)
        exact = _matrix(one_jacobian(NETWORKS["convnet"]().double(), x.double(), contraction))
        for side, m in measured.items():
            if m.result is not None:
                m.errors["scaled"] = scaled_error(_matrix(m.result).double(), exact)
                assert m.errors["scaled"] < 1e-4, f"{side} computes another kernel: {m.errors}"
        ours, theirs = measured["kontrast"], measured["torch.func Jacobian"]
        reached = faster(measured, "kontrast", "torch.func Jacobian")
        bench.require(f"ConvNet {name}: times faster than torch.func", reached, at_least=5)
        bench.require(f"ConvNet {name}: share of its memory", ours.peak_bytes / theirs.peak_bytes, at_most=0.1)
        forget(measured)


def _matrix(K: Tensor) -> Tensor:
    """The kernel (n, n, c, c) of all outputs as a matrix (nc, nc); a trace as it is."""
    return K if K.ndim == 2 else K.permute(0, 2, 1, 3).flatten(2).flatten(0, 1)


def networks(bench: Bench, *, n: int, largest_seconds: float | None) -> None:
    for network, make in NETWORKS.items():
        sides = _network_sides(network, n)
        x, source = pictures(2 * n)
        exact = network_ntk_trace(make(), x[:n])
        for size in (n // 4, n // 2, n, 2 * n):  # kontrast and one Jacobian for time against n, every side at n
            case = f"empirical trace NTK, {network}, {source}, n={size}"
            inputs = {"x": bench.save(f"pictures{size}", x[:size])}
            asked = sides if size == n else {name: sides[name] for name in ("kontrast", JACOBIAN)}
            repeats = min(bench.repeats, 5 if size == n else 3)
            measured = bench.measure(case, inputs, asked, cold=size == n, repeats=repeats, seconds_each=60)
            for name, m in measured.items():
                m.network, m.n = network, asked[name].arguments["rows"] or size
                if m.result is not None:
                    few = min(m.n, n)
                    m.errors["scaled"] = scaled_error(m.result[:few, :few].double(), exact[:few, :few])
            ours = measured["kontrast"]
            assert ours.errors["scaled"] < 1e-4, f"kontrast computes another kernel: {ours.errors}"
            if size == n:
                _require_networks(bench, measured, network)
            forget(measured)
        if largest_seconds is not None:
            for name in ("kontrast", JACOBIAN, TWO_JACOBIANS):
                # Its budget is else half of what the machine has free, whatever a process of it may take.
                memory = {"memory": LARGEST_BYTES / 2} if name == "kontrast" else {}
                bench.find_largest(
                    network, name, sides[name], within_bytes=LARGEST_BYTES, seconds=largest_seconds, **memory
                )


def _network_sides(network: str, n: int) -> dict[str, Side]:
    def side(way: str, rows: int | None = None) -> Side:
        return Side("network_trace", {"network": network, "way": way, "rows": rows})

    sides = {way: side(way) for way in ("kontrast", JACOBIAN, TWO_JACOBIANS)}
    if network == "resnet18":  # two of 32 rows are 29 GB
        sides[f"{TWO_JACOBIANS}, n={n // 2}"] = side(TWO_JACOBIANS, n // 2)
    few = min(n, ROWS_OF_VECTOR_PRODUCTS[network])
    sides[VECTOR_PRODUCTS + (f", n={few}" if few < n else "")] = side(VECTOR_PRODUCTS, few)
    return sides | {"nngeometry": side("nngeometry")}


def _require_networks(bench: Bench, measured: Mapping[str, Measurement], network: str) -> None:
    ours, theirs = measured["kontrast"], measured[JACOBIAN]
    bench.require(f"{network}: scaled error", ours.errors["scaled"], at_most=5e-6)
    if network != "convnet":
        reached = faster(measured, "kontrast", JACOBIAN)
        bench.require(f"{network}: times faster than torch.func's Jacobian", reached, at_least=3)
        bench.require(f"{network}: share of its memory", ours.peak_bytes / theirs.peak_bytes, at_most=0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("infinite", "empirical", "convnet", "networks"), help="one part of it")
    parser.add_argument("--n-networks", type=int, default=32, help="rows of the networks' kernels")
    parser.add_argument(
        "--largest",
        type=float,
        nargs="?",
        const=60.0,
        metavar="SECONDS",
        help="also find the networks' largest n in 8 GiB",
    )
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
            "networks": partial(networks, n=options.n_networks, largest_seconds=options.largest),
        }
        for name, section in sections.items():
            if options.only in (None, name):
                section(bench)
    share = other_work.share()
    about = machine() | {"threads": str(options.threads)} | bench.versions | {"other work": f"{share:.0%} of the cores"}
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    show(bench.measurements)
    if bench.largest:
        print_largest(bench.largest, f"{LARGEST_BYTES / 2**30:g} GiB and {options.largest:g} s a call")
    print_requirements(bench.requirements)
    if share > 0.03:
        print(
            f"Other work took {share:.0%} of the cores meanwhile: these times mislead. Run it again on an idle machine."
        )
    rows = [m.as_row() for m in bench.measurements]
    if options.json:
        write_json(options.json, about, [*rows, *map(asdict, bench.largest)], bench.requirements)
    if options.plot:
        draw({f"{options.threads} CPU threads": rows}, options.plot)


if __name__ == "__main__":
    main()
