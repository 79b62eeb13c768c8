"""One-layer contrastive learning (paper C): its covariance and its patterns, against the ways one would write first.

* The contrastive covariance (3) by its Laplacian against the double loop over pairs, and against all pairs at once
  (n × n × d), which both must equal.
* The same at n = 20,000, where neither can be held: a Gaussian α of all pairs, made in blocks. Its peak memory is that
  of a process of its own, beyond the samples.
* Patterns of 5,000 images of MNIST from 64 starts, uniform and Gaussian α: `find_lmes` as a whole, its power iteration
  alone, and a step of it against the same step by autograd through all pairs.

    make bench-one-layer
    .venv/bin/python benchmarks/one_layer.py --only patterns
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import resource
from dataclasses import dataclass
from pathlib import Path

import torch
from stopwatch import CLOCKS, Stopwatch
from tables import OtherWork, Requirement, conclude, print_table
from torch import Tensor

import kontrast as kt
from kontrast.patterns import GatedCovariance, GaussianImportance, contrastive_covariance, find_lmes, power_iteration

N_LOOP, D_LOOP = 200, 64
N_STREAM, N_STARTS = 20_000, 64
PARTS = ("covariance", "streaming", "patterns")
Options = argparse.Namespace


@dataclass(frozen=True)
class Result:
    """One way to compute something; numbers that were not measured are nan."""

    case: str
    way: str
    seconds: float
    error: float = math.nan  # relative, against the double loop or the first way
    peak_mb: float = math.nan
    note: str = ""


def double_loop(x: Tensor, positives: Tensor, alpha: Tensor) -> Tensor:
    """(3) as it is printed."""
    n, d = x.shape
    C = torch.zeros(d, d, dtype=x.dtype)
    for i in range(n):
        own = x[i] - positives[i]
        for j in range(n):
            apart = x[i] - x[j]
            C += alpha[i, j] * (torch.outer(apart, apart) - torch.outer(own, own))
    return C / (2 * n * n)


def all_pairs(x: Tensor, positives: Tensor, alpha: Tensor) -> Tensor:
    """(3) from the differences of all pairs at once, (n, n, d)."""
    n = len(x)
    apart, own = x[:, None] - x[None], x - positives
    inter = torch.einsum("ij,ijk,ijl->kl", alpha, apart, apart)
    return (inter - torch.einsum("i,ik,il->kl", alpha.sum(1), own, own)) / (2 * n * n)


def covariance(watch: Stopwatch, generator: torch.Generator) -> list[Result]:
    """At n = 200, with an α that is not symmetric and with views."""
    x = torch.randn(N_LOOP, D_LOOP, generator=generator, dtype=torch.float64)
    positives = x + 0.1 * torch.randn(x.shape, generator=generator, dtype=torch.float64)
    alpha = torch.rand(N_LOOP, N_LOOP, generator=generator, dtype=torch.float64)
    expected = double_loop(x, positives, alpha)
    ways = {
        "kontrast": lambda: contrastive_covariance(x, positives=positives, importance=alpha),
        "all pairs at once": lambda: all_pairs(x, positives, alpha),
        "double loop": lambda: double_loop(x, positives, alpha),
    }
    return [
        Result(f"covariance, n = {N_LOOP}, d = {D_LOOP}", way, watch.seconds(compute), error(compute(), expected))
        for way, compute in ways.items()
    ]


def error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def images(n: int) -> Tensor:
    """N images of MNIST as centred rows, float32: from 5,000 real ones, turned by noise where more are asked for."""
    rows = kt.data.load("mnist5k", dtype=torch.float32).rows
    more = rows.repeat(-(-n // len(rows)), 1)[:n]
    more = more + 0.05 * torch.randn(more.shape, generator=torch.Generator().manual_seed(1)) * (n > len(rows))
    return more - more.mean(0)


def spread_of(x: Tensor) -> float:
    """The median squared distance of two samples, half of it: the unit of τ."""
    return float(torch.pdist(x[:500]).square().median() / 2)


def streamed(n: int, answers: multiprocessing.Queue[tuple[float, float, float]]) -> None:
    """A Gaussian α of n samples in blocks: seconds, megabytes beyond the samples, error at 2,000 of them."""
    x = images(n)
    rule = GaussianImportance(temperature=spread_of(x))
    few = x[:2000].double()
    whole = contrastive_covariance(few, importance=rule, memory=2**24)  # in blocks, like all of them
    squares = torch.cdist(few, few).square()
    alpha = torch.exp(-squares / (2 * rule.temperature)).fill_diagonal_(0)
    L = torch.diag(alpha.sum(1)) - alpha
    exact = few.T @ L @ few / len(few) ** 2
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    watch = Stopwatch(CLOCKS["wall"], 1)
    begin = watch.clock()
    C = contrastive_covariance(x, importance=rule, memory=1000 * 2**20)
    seconds = watch.clock() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert torch.isfinite(C).all()
    answers.put((seconds, (peak - before) / 1024, error(whole, exact)))


def streaming() -> list[Result]:
    """N = 20,000 in a process of its own, for its peak memory."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=streamed, args=(N_STREAM, answers))
    process.start()
    seconds, peak, off = answers.get()
    process.join()
    held = f"α alone would be {4 * N_STREAM**2 / 2**20:,.0f} MB, all pairs {4 * N_STREAM**2 * 784 / 2**40:,.1f} TB"
    return [
        Result(f"covariance, n = {N_STREAM:,}, d = 784", "kontrast, Gaussian α in blocks", seconds, off, peak, held)
    ]


def autograd_step(x: Tensor, w: Tensor, alpha: Tensor) -> Tensor:
    """A(w)w for filters w, as the gradient of the energy over all pairs: what one would write in torch."""
    w = w.clone().requires_grad_()
    outputs = torch.relu(x @ w.T)
    energy = sum((alpha * (f[:, None] - f[None]).square()).sum() for f in outputs.T) / (4 * len(x) ** 2)
    (gradient,) = torch.autograd.grad(energy, w)
    return gradient


def patterns(watch: Stopwatch, generator: torch.Generator) -> list[Result]:
    """5,000 images, 64 random starts."""
    x = images(5000).double()
    starts = torch.randn(N_STARTS, x.shape[1], generator=generator, dtype=torch.float64)
    starts = starts / starts.norm(dim=1, keepdim=True)
    once, results = Stopwatch(watch.clock, 1), []
    for name, importance in (("uniform α", "uniform"), ("Gaussian α", GaussianImportance(temperature=spread_of(x)))):
        case = f"patterns, {name}, n = {len(x)}, d = {x.shape[1]}, {N_STARTS} starts"
        begin = once.clock()
        field = GatedCovariance(x, importance=importance)
        found = find_lmes(field, starts=starts)
        results.append(Result(case, "find_lmes, α included", once.clock() - begin, note=str(found)))
        begin = once.clock()
        run = power_iteration(field, starts)
        note = f"{len(run.discrepancies)} steps"
        results.append(Result(case, "its power iteration", once.clock() - begin, note=note))
        step = watch.seconds(lambda field=field: field.product(starts))
        results.append(Result(case, "a step", step))
    alpha = torch.ones(len(x), len(x), dtype=torch.float64)
    expected = GatedCovariance(x).product(starts[:2])
    slow = once.clock()
    by_hand = autograd_step(x, starts[:2], alpha)
    slow = (once.clock() - slow) * N_STARTS / 2
    note = "2 filters timed"
    results.append(Result("patterns, uniform α", "a step, autograd", slow, error(by_hand, expected), note=note))
    return results


def requirements(results: list[Result]) -> list[Requirement]:
    """What was asked for, of the parts that ran."""
    asked = []
    by_way = {(r.case.split(",")[0], r.way): r for r in results}
    if ("covariance", "double loop") in by_way:
        ours, loop = by_way["covariance", "kontrast"], by_way["covariance", "double loop"]
        asked.append(
            Requirement("covariance: times faster than the double loop", loop.seconds / ours.seconds, 1000, True)
        )
        asked.append(Requirement("covariance: relative error", ours.error, 1e-12, at_least=False))
    for r in results:
        if r.way == "its power iteration":
            asked.append(Requirement(f"{r.case}: power iteration, s", r.seconds, 60, at_least=False))
        if r.way == "find_lmes, α included":
            asked.append(Requirement(f"{r.case}: all of find_lmes, s", r.seconds, 60, at_least=False))
        if r.way == "kontrast, Gaussian α in blocks":
            asked.append(Requirement(f"{r.case}: MB beyond the samples", r.peak_mb, 1500, at_least=False))
    return asked


def row(result: Result) -> tuple[str, ...]:
    def text(value: float, form: str) -> str:
        return "–" if math.isnan(value) else f"{value:{form}}"

    numbers = text(result.seconds, ".4g"), text(result.error, ".1e"), text(result.peak_mb, ",.0f")
    return (result.case, result.way, *numbers, result.note or "–")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--repeats", type=int, default=5, help="of every short timing")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    work, watch = OtherWork(), Stopwatch(CLOCKS["wall"], options.repeats)
    generator = torch.Generator().manual_seed(options.seed)
    results: list[Result] = []
    for part, measure in (
        ("covariance", lambda: covariance(watch, generator)),
        ("streaming", streaming),
        ("patterns", lambda: patterns(watch, generator)),
    ):
        if part in options.only:
            print(f"  {part} …", flush=True)
            results += measure()
    print_table("one layer", ("", "way", "s", "error", "peak, MB", ""), [row(r) for r in results])
    conclude(requirements(results), results, work, options.json, threads=str(torch.get_num_threads()))


if __name__ == "__main__":
    main()
