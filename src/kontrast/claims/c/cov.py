"""C.cov: the contrastive covariance (3) in the form of a graph Laplacian."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import product

import torch
from torch import Tensor

from kontrast.claims.evidence import Evidence, Finding, Panel, Verdict, curve, judged, printed, shown
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, largest
from kontrast.patterns import (
    GaussianImportance,
    InfoNCEImportance,
    PairLaplacian,
    contrastive_covariance,
    pair_laplacian,
)

EXACT = 1e-12
LOOP_SIZE = 200  # samples at which the double loop is timed


@claim(
    "C.cov",
    source="Paper C, (3)",
    title="The contrastive covariance has the form of a graph Laplacian",
    printed="C_α[a, b] = 1/(2N²) Σ_ij α_ij [(a_i − a_j)(b_i − b_j)^T − (a_i − a'_i)(b_i − b'_i)^T] equals a^T L b/N² − "
    "Δa^T diag(α1) Δb/(2N²) with L = diag(α_s 1) − α_s, for any α, symmetric or not.",
    recorded=Verdict.HOLDS,
)
def covariance(setting: Setting) -> Evidence:
    """Every form of α against the double loop, with views, and the time that both take."""
    n = setting.pick(quick=40, full=LOOP_SIZE, paper=LOOP_SIZE)
    a, a_view, _, _ = _samples(n)
    errors = _errors(n)
    loop, fast = _times(setting.pick(quick=(50, 100), full=(50, 100, LOOP_SIZE), paper=(50, 100, LOOP_SIZE)))
    last = max(loop)
    loop_seconds = loop[last] * (LOOP_SIZE / last) ** 2  # extrapolated by N² if the loop was not run at that size
    kernel = GaussianImportance(2.0)(a, a_view).alpha
    with_diagonal, without = (
        contrastive_covariance(a, positives=a_view, importance=alpha) for alpha in (kernel + torch.eye(n).to(a), kernel)
    )
    curves = (
        curve("double loop (3)", list(loop), list(loop.values())),
        curve("Laplacian form, α given", list(fast), list(fast.values())),
    )
    return judged(
        *errors,
        *shown(
            **{
                "largest_error": largest(*(error.number.value for error in errors)),
                f"times_faster_than_the_loop_at_{LOOP_SIZE}": loop_seconds / fast[LOOP_SIZE],
                "difference_of_3_and_15": float((with_diagonal - without).norm() / with_diagonal.norm()),
            }
        ),
        panels=[Panel("Time for one covariance of 8 outputs", "samples N", "seconds", curves)],
        setting={"samples": n, "views": True},
        warnings=[
            "(3) sums its second term over all j, but (15), in the paper's proof, over j ≠ i: if α_ii ≠ 0, as for "
            "kernels, they differ by 1/(2N²) Σ_i α_ii Δa_i Δb_i^T, of order 1/N. kontrast's own α have α_ii = 0"
        ],
    )


def _errors(n: int) -> list[Finding]:
    """The relative difference from the double loop, for each form of α."""
    a, a_view, b, b_view = _samples(n)
    found = []
    for name, words, laplacian, alpha, pull in _forms(n):
        fast = contrastive_covariance(a, b, positives=a_view, positives_b=b_view, importance=laplacian)
        expected = double_loop(a, b, alpha, a_view, b_view, pull)
        error = float((fast - expected).norm() / expected.norm())
        found.append(printed(f"error_{name}", error, f"{words}: relative difference from the double loop", high=EXACT))
    return found


def double_loop(a: Tensor, b: Tensor, alpha: Tensor, a_view: Tensor, b_view: Tensor, pull: Tensor) -> Tensor:
    """(3) as printed, pair by pair; `pull` is Σ_j α_ij."""
    n, total = len(a), a.new_zeros(a.shape[1], b.shape[1])
    for i, j in product(range(n), range(n)):
        total += alpha[i, j] * torch.outer(a[i] - a[j], b[i] - b[j])
    for i in range(n):
        total -= pull[i] * torch.outer(a[i] - a_view[i], b[i] - b_view[i])
    return total / (2 * n**2)


def _samples(n: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two functions of n samples, (n, 8) and (n, 5), each with its second view."""
    draw = generator("covariance", n)
    rows = torch.randn(n, 26, generator=draw, dtype=torch.float64)
    a, b = rows[:, :8], rows[:, 8:13]
    return a, a + 0.3 * rows[:, 13:21], b, b + 0.3 * rows[:, 21:]


def _forms(n: int) -> Iterator[tuple[str, str, PairLaplacian, Tensor, Tensor]]:
    """The forms in which α can be given: name, words, Laplacian, and α and β in full."""
    a, view, _, _ = _samples(n)
    draw = generator("alpha", n)
    alpha = torch.rand(n, n, generator=draw, dtype=torch.float64)
    few, phi = alpha * (alpha > 0.9), torch.rand(n, 4, generator=draw, dtype=torch.float64)
    ones, kernel = torch.ones_like(alpha).fill_diagonal_(0), (phi @ phi.mT).fill_diagonal_(0)
    yield "asymmetric", "α that is not symmetric", pair_laplacian(alpha), alpha, alpha.sum(1)
    yield "sparse", "sparse α", pair_laplacian(few.to_sparse()), few, few.sum(1)
    yield "uniform", "uniform α in closed form", pair_laplacian("uniform", a), ones, ones.sum(1)
    yield "features", "α = φφ^T from φ alone (Def. 1)", PairLaplacian.of_features(phi), kernel, kernel.sum(1)
    for name, words, rule in (
        ("gaussian", "Gaussian α, never stored as a whole", GaussianImportance(2.0)),
        ("info_nce", "InfoNCE's α, neither symmetric nor stored", InfoNCEImportance(2.0, 0.5)),
    ):
        weights = rule(a, view)
        in_blocks = pair_laplacian(rule, a, view, memory=16 * 32 * n)  # 16 rows at a time
        yield f"streamed_{name}", words, in_blocks, weights.alpha, weights.positive


def _times(loop_sizes: tuple[int, ...]) -> tuple[dict[int, float], dict[int, float]]:
    """Seconds by number of samples: of the double loop, and of the Laplacian form with α as a matrix."""
    loop, fast = {}, {}
    for n in sorted({*loop_sizes, LOOP_SIZE, 800, 1600}):
        a, a_view, b, b_view = _samples(n)
        alpha = torch.rand(n, n, generator=generator("alpha", n), dtype=torch.float64)

        def form() -> Tensor:
            return contrastive_covariance(a, b, positives=a_view, positives_b=b_view, importance=alpha)  # noqa: B023

        fast[n] = min(_seconds(form) for _ in range(5))
        if n in loop_sizes:
            loop[n] = _seconds(lambda: double_loop(a, b, alpha, a_view, b_view, alpha.sum(1)))  # noqa: B023
    return loop, fast


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
