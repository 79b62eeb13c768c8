"""D.nofree: the learnabilities of a complete basis sum to the number of samples (Theorem 2.2)."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kontrast.claims.d.domains import EXACT, RIDGE, by_level, cube, digits, training_set
from kontrast.claims.evidence import Evidence, Finding, Panel, Verdict, corrected, curve, judged, printed
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, largest
from kontrast.learnability import eigensystem, measure_learning, parities, transfer_matrix


@claim(
    "D.nofree",
    source="Paper D, Theorem 2.2, (11), (7), (8)",
    title="No free lunch: learnabilities sum to n",
    printed="For any complete basis of orthogonal functions, Σ_i L^(D)(φ_i) = Σ_i L(φ_i) = n; without samples the "
    "learnability of every function is 0, with all M it is 1.",
    corrected="With a ridge the sum is n − δ Tr(K_DD + δI)^−1; if K_DD is singular, it is the rank of K_DD.",
    recorded=Verdict.HOLDS,
)
def no_free_lunch(setting: Setting) -> Evidence:
    """Sums over several bases of the hypercube and of digits, for training sets of every size; then with a ridge."""
    d, n_digits = setting.pick(quick=(5, 40), full=(8, 200), paper=(9, 500))
    n_draws = 2
    domains = {"hypercube": cube(d, setting.device), "digits": digits(setting, n_digits)}
    found = {name: _sums(K, n_draws) for name, K in domains.items()}
    K, sizes = domains["hypercube"], np.arange(1, 2**d + 1)
    shifted = _random_basis(2**d, setting.device) + 1.0  # complete, but not orthogonal: they share the constant
    skewed = _sums_over(shifted / shifted.square().mean(0).sqrt(), K, 1)[:, 0]
    at_ends = largest(*(_ends_apart(K) for K in domains.values()))
    with_ridge = largest(*(_ridge_law(K) for K in domains.values()))
    by_rank = largest(*(_rank_law(K) for K in domains.values()))
    skew = _off(skewed[:, None])
    return judged(
        *(finding for domain, sums in found.items() for finding in _apart(domain, sums)),
        printed("apart_without_and_with_all_samples", at_ends, "(7), (8): L = 0 for n = 0, 1 for n = M", high=EXACT),
        corrected("apart_from_the_law_with_ridge", with_ridge, "ridge: Σ L^(D) is n − δ Tr(K_DD + δI)^−1", high=EXACT),
        corrected("apart_from_the_rank", by_rank, "points drawn twice count once in the sum: error", high=EXACT),
        printed("farthest_not_orthogonal", skew, "|Σ L^(D) − n| of a basis that is not orthogonal", low=0.5),
        panels=[_levels_panel(K, d), _sums_panel(K, found["hypercube"], skewed, sizes)],
        setting={"hypercube": 2**d, "digits": n_digits, "sizes": "1 to all", "draws": n_draws, "ridge": RIDGE},
        warnings=["functions must be orthogonal over the domain: a complete basis that is not has another sum"],
    )


def _apart(domain: str, sums: Mapping[str, Tensor]) -> tuple[Finding, ...]:
    """The farthest that sums over each basis are from n."""
    words = {
        "transfer": "trace of the transfer matrix",
        "eigenfunctions": "eigenfunctions",
        "random": "random orthonormal functions",
        "points": "one function per point",
    }
    return tuple(
        printed(f"apart_{basis}_{domain}", _off(found), f"{words[basis]}, {domain}: largest |Σ L^(D) − n|", high=EXACT)
        for basis, found in sums.items()
    )


def _random_basis(M: int, device: str) -> Tensor:
    """Orthogonal functions of mean square 1, as columns."""
    Q: Tensor = torch.linalg.qr(torch.randn(M, M, generator=generator("basis", M), dtype=torch.float64))[0]
    return Q.to(device) * math.sqrt(M)


def _sums(K: Tensor, n_draws: int) -> dict[str, Tensor]:
    """Sums of learnabilities by basis, (M, draws), for training sets of 1, …, M points."""
    M, device, system = len(K), str(K.device), eigensystem(K)
    traces = [transfer_matrix(system, training_set(M, n)).diagonal().sum() for n in range(1, M + 1)]
    return {
        "transfer": torch.stack(traces)[:, None],
        "eigenfunctions": _sums_over(system.functions, K, n_draws),
        "random": _sums_over(_random_basis(M, device), K, n_draws),
        "points": _sums_over(math.sqrt(M) * torch.eye(M, dtype=torch.float64, device=device), K, n_draws),
    }


def _sums_over(basis: Tensor, K: Tensor, n_draws: int) -> Tensor:
    draw = generator("sums", len(K))
    found = [measure_learning(K, basis, n, n_draws=n_draws, generator=draw) for n in range(1, len(K) + 1)]
    return torch.stack([each.learnability.sum(1) for each in found])


def _off(sums: Tensor) -> float:
    """The farthest that row n is from n."""
    n = torch.arange(1, len(sums) + 1, dtype=sums.dtype, device=sums.device)
    return float((sums - n[:, None]).abs().max())


def _ends_apart(K: Tensor) -> float:
    """The distance of L of random functions from 0 without samples and from 1 with all of them."""
    f = torch.randn(len(K), 20, generator=generator("ends", len(K)), dtype=torch.float64).to(K.device)
    measure = functools.partial(measure_learning, K, f, n_draws=1, generator=generator("all"))
    return largest(*(float((measure(n).learnability - share).abs().max()) for n, share in ((0, 0.0), (len(K), 1.0))))


def _ridge_law(K: Tensor) -> float:
    """Largest |Σ L − (n − δ Tr(K_DD + δI)^−1)|, by the transfer matrix and by regression of random functions."""
    M, system, basis, worst = len(K), eigensystem(K), _random_basis(len(K), str(K.device)), 0.0
    for n in range(1, M + 1):
        rows = training_set(M, n).to(K.device)
        G = K[rows][:, rows] + RIDGE * torch.eye(n, dtype=K.dtype, device=K.device)
        law = n - RIDGE * float(torch.linalg.inv(G).diagonal().sum())
        fitted = K[:, rows] @ torch.linalg.solve(G, basis[rows])
        trace = float(transfer_matrix(system, rows, ridge=RIDGE).diagonal().sum())
        worst = largest(worst, abs(trace - law), abs(float((basis * fitted).sum()) / M - law))
    return worst


def _rank_law(K: Tensor) -> float:
    """Largest |Σ L − number of different points|, for points that may be drawn twice."""
    system, worst = eigensystem(K), 0.0
    for n in range(1, len(K) + 1):
        rows = torch.randint(len(K), (n,), generator=generator("twice", n))
        worst = largest(worst, abs(float(transfer_matrix(system, rows).diagonal().sum()) - len(set(rows.tolist()))))
    return worst


def _levels_panel(K: Tensor, d: int) -> Panel:
    basis, sizes = parities(d), [2**d * k // 16 for k in range(17)]
    f = basis.functions.to(K.device)
    found = [measure_learning(K, f, n, n_draws=4, generator=generator("p", n)) for n in sizes]
    learned = torch.stack([by_level(each, basis) for each in found])
    curves = tuple(curve(f"{k} coordinates", sizes, learned[:, k]) for k in range(d + 1))
    title = f"Hypercube 2^{d}: levels compete for n samples"
    return Panel(title, "samples n", "learnability of a parity", curves, x_log=False, y_log=False)


def _sums_panel(K: Tensor, plain: Mapping[str, Tensor], skewed: Tensor, sizes: NDArray[np.int64]) -> Panel:
    system = eigensystem(K)
    some = sizes[:: max(1, len(sizes) // 16)]
    ridged = [float(transfer_matrix(system, training_set(len(K), int(n)), ridge=RIDGE).diagonal().sum()) for n in some]
    curves = (
        *(curve(name, some, plain[name][some - 1, 0]) for name in ("eigenfunctions", "random", "points")),
        curve(f"eigenfunctions, ridge {RIDGE:g}", some, ridged),
        curve("functions that are not orthogonal", some, skewed[some - 1]),
        curve("n", some, some, "dashed"),
    )
    return Panel("Sum over a complete basis", "samples n", "Σ L^(D)", curves)
