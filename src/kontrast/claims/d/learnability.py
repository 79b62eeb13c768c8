"""Paper D, Sec. 2.2, 4 and Appendix C (Simon et al. 2021): how much a kernel learns of a function."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor

from kontrast.claims.d.domains import EXACT, cube, least, tangent_kernel
from kontrast.claims.evidence import Criterion, Curve, Evidence, Panel, Verdict, curve, evidence
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, largest
from kontrast.learnability import (
    Eigensystem,
    MeasuredLearning,
    Parities,
    eigensystem,
    measure_learning,
    parities,
    transfer_derivative,
    transfer_matrix,
)


def _digits(setting: Setting, n: int) -> Tensor:
    """The NTK over n images of the data."""
    x = setting.dataset().subsample(n, generator=generator("learnable digits")).rows.to(setting.device)
    return tangent_kernel(x.shape[1])(x)


def _random_basis(M: int, device: str) -> Tensor:
    """Orthogonal functions of mean square 1, as columns."""
    Q: Tensor = torch.linalg.qr(torch.randn(M, M, generator=generator("basis", M), dtype=torch.float64))[0]
    return Q.to(device) * math.sqrt(M)


@claim(
    "D.nofree",
    source="Paper D, Theorem 2.2, (11), (7), (8)",
    title="No free lunch: learnabilities sum to n",
    printed="For any complete basis of orthogonal functions, Σ_i L^(D)(φ_i) = Σ_i L(φ_i) = n; without samples the "
    "learnability of every function is 0, with all M it is 1.",
    corrected="With a ridge the sum is n − δ Tr(K_DD + δI)^−1, and where K_DD is singular it is its rank.",
    recorded=Verdict.HOLDS,
)
def no_free_lunch(setting: Setting) -> Evidence:
    """Sums over three bases of the hypercube and of digits, for training sets of every size; then with a ridge."""
    d, n_digits = setting.pick(quick=(5, 40), full=(8, 200), paper=(9, 500))
    n_draws = 2
    domains = {"hypercube": cube(d, setting.device), "digits": _digits(setting, n_digits)}
    found = {name: _sums(K, n_draws) for name, K in domains.items()}
    K, sizes = domains["hypercube"], np.arange(1, 2**d + 1)
    skewed = _sums_over(_skew_basis(2**d, setting.device), K, 1)[:, 0]
    return evidence(
        {
            **{f"apart_{basis}_{name}": _off(sums) for name, by in found.items() for basis, sums in by.items()},
            "apart_without_and_with_all_samples": largest(*(_ends_apart(K) for K in domains.values())),
            "apart_from_the_law_with_ridge": largest(*(_ridge_law(K) for K in domains.values())),
            "apart_from_the_rank": largest(*(_rank_law(K) for K in domains.values())),
            "farthest_not_orthogonal": _off(skewed[:, None]),
        },
        _CRITERIA_NOFREE,
        panels=[_levels_panel(K, d), _sums_panel(K, found["hypercube"], skewed, sizes)],
        setting={"hypercube": 2**d, "digits": n_digits, "sizes": "1 to all", "draws": n_draws, "ridge": RIDGE},
        warnings=["functions must be orthogonal over the domain: a complete basis that is not has another sum"],
    )


_CRITERIA_NOFREE = (
    *(
        Criterion(f"apart_{basis}_{domain}", f"{words}, {domain}: largest |Σ L^(D) − n|, every n and D", high=EXACT)
        for domain in ("hypercube", "digits")
        for basis, words in (
            ("transfer", "trace of the transfer matrix"),
            ("eigenfunctions", "eigenfunctions"),
            ("random", "random orthonormal functions"),
            ("points", "one function a point"),
        )
    ),
    Criterion("apart_without_and_with_all_samples", "(7), (8): L = 0 for n = 0 and 1 for n = M, any f", high=EXACT),
    Criterion(
        "apart_from_the_law_with_ridge", "with a ridge the sum is n − δ Tr(K_DD + δI)^−1", high=EXACT, role="corrected"
    ),
    Criterion("apart_from_the_rank", "of points drawn twice the sum counts one", high=EXACT, role="corrected"),
    Criterion("farthest_not_orthogonal", "and the functions must be orthogonal", low=0.5),
)
RIDGE = 0.1


def _sums(K: Tensor, n_draws: int) -> dict[str, Tensor]:
    """Σ of learnabilities by the basis they are taken over, (M, draws), for training sets of 1, …, M points."""
    M, device, system = len(K), str(K.device), eigensystem(K)
    traces = [transfer_matrix(system, _rows(M, n)).diagonal().sum() for n in range(1, M + 1)]
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


def _rows(M: int, n: int) -> Tensor:
    """Places of n among M points, none twice."""
    return torch.randperm(M, generator=generator("training set", M, n))[:n]


def _off(sums: Tensor) -> float:
    """The farthest that row n is from n."""
    n = torch.arange(1, len(sums) + 1, dtype=sums.dtype, device=sums.device)
    return float((sums - n[:, None]).abs().max())


def _ends_apart(K: Tensor) -> float:
    """How far L is from 0 without samples and from 1 with all of them, of random functions."""
    f = torch.randn(len(K), 20, generator=generator("ends", len(K)), dtype=torch.float64).to(K.device)
    measure = functools.partial(measure_learning, K, f, n_draws=1, generator=generator("all"))
    return largest(*(float((measure(n).learnability - share).abs().max()) for n, share in ((0, 0.0), (len(K), 1.0))))


def _ridge_law(K: Tensor) -> float:
    """Largest |Σ L − (n − δ Tr(K_DD + δI)^−1)|, by the transfer matrix and by regression of random functions."""
    M, system, basis, worst = len(K), eigensystem(K), _random_basis(len(K), str(K.device)), 0.0
    for n in range(1, M + 1):
        rows = _rows(M, n).to(K.device)
        G = K[rows][:, rows] + RIDGE * torch.eye(n, dtype=K.dtype, device=K.device)
        law = n - RIDGE * float(torch.linalg.inv(G).diagonal().sum())
        fitted = K[:, rows] @ torch.linalg.solve(G, basis[rows])
        trace = float(transfer_matrix(system, rows, ridge=RIDGE).diagonal().sum())
        worst = largest(worst, abs(trace - law), abs(float((basis * fitted).sum()) / M - law))
    return worst


def _rank_law(K: Tensor) -> float:
    """Largest |Σ L − number of different points| for points that may be drawn twice."""
    system, worst = eigensystem(K), 0.0
    for n in range(1, len(K) + 1):
        rows = torch.randint(len(K), (n,), generator=generator("twice", n))
        worst = largest(worst, abs(float(transfer_matrix(system, rows).diagonal().sum()) - len(set(rows.tolist()))))
    return worst


def _skew_basis(M: int, device: str) -> Tensor:
    """A complete basis of functions of mean square 1 that are not orthogonal: they share the constant."""
    basis = _random_basis(M, device) + 1.0
    return basis / basis.square().mean(0).sqrt()


def _levels_panel(K: Tensor, d: int) -> Panel:
    basis, sizes = parities(d), [2**d * k // 16 for k in range(17)]
    learned = torch.stack(
        [
            _by_level(
                measure_learning(K, basis.functions.to(K.device), n, n_draws=4, generator=generator("p", n)), basis
            )
            for n in sizes
        ]
    )
    return Panel(
        f"Hypercube 2^{d}: levels compete for n samples",
        "samples n",
        "learnability of a parity",
        tuple(curve(f"{k} coordinates", sizes, learned[:, k]) for k in range(d + 1)),
        x_log=False,
        y_log=False,
    )


def _sums_panel(K: Tensor, plain: Mapping[str, Tensor], skewed: Tensor, sizes: NDArray[np.int64]) -> Panel:
    system = eigensystem(K)
    some = sizes[:: max(1, len(sizes) // 16)]
    ridged = [float(transfer_matrix(system, _rows(len(K), int(n)), ridge=RIDGE).diagonal().sum()) for n in some]
    return Panel(
        "Sum over a complete basis",
        "samples n",
        "Σ L^(D)",
        (
            *(curve(name, some, plain[name][some - 1, 0]) for name in ("eigenfunctions", "random", "points")),
            curve(f"eigenfunctions, ridge {RIDGE:g}", some, ridged),
            curve("functions that are not orthogonal", some, skewed[some - 1]),
            curve("n", some, some, "dashed"),
        ),
    )


def _by_level(found: MeasuredLearning, basis: Parities) -> Tensor:
    """Means over draws and over the parities of each level, (d + 1,)."""
    means = found.learnability.mean(0)
    return torch.stack([means[(basis.levels == k).to(means.device)].mean() for k in range(int(basis.levels.max()) + 1)])


@claim(
    "D.mono",
    source="Paper D, Lemma 1(e), (9), (10), (39), (40)",
    title="More data helps eigenfunctions, and every function in the RKHS norm alone",
    printed="A new point never lowers L^(D)(f), for any f, and L(f) lies in [0, 1]; dT_jj/dλ_i is (39), (40), so that "
    "a larger λ_i helps φ_i and harms all others.",
    corrected="(39), (40), (9) and (10) hold; both statements on L hold for eigenfunctions. The proof of (e) loses Λ: "
    "T^(D+) − T^(D) = Λ^½ (…) Λ^−½ is no positive matrix, and L^(D)(f) fills [(1 − ‖T‖)/2, (1 + ‖T‖)/2]. T is the "
    "orthogonal projector of the RKHS, so ⟨f, f̂⟩_H/‖f‖_H² = ‖f̂‖_H²/‖f‖_H² lies in [0, 1] and grows, for every f; L(f) "
    "does on average where the kernel's symmetries make E_D[T] diagonal, as on the hypercube.",
    recorded=Verdict.CORRECTED,
)
def monotone(setting: Setting) -> Evidence:
    """Nested training sets of the hypercube and of digits: what random functions and eigenfunctions gain of a point."""
    d, n_digits = setting.pick(quick=(5, 30), full=(7, 100), paper=(8, 200))
    n_orders, n_functions = setting.pick(quick=(2, 100), full=(10, 400), paper=(10, 1000))
    domains = {"hypercube": cube(d, setting.device), "digits": _digits(setting, n_digits)}
    paths = {name: [_path(K, n_functions, seed) for seed in range(n_orders)] for name, K in domains.items()}
    every = [path for group in paths.values() for path in group]
    means = _exact_means(cube(3, setting.device))
    updates = [_update_apart(K) for K in domains.values()]
    slopes = [_slopes(K, ridge, seed) for K in domains.values() for ridge in (0.0, RIDGE) for seed in range(2)]
    return evidence(
        {
            **{f"share_that_loses_{name}": float(np.mean([p.losing for p in group])) for name, group in paths.items()},
            "least_learnability": least(p.least("plain") for p in every),
            "largest_learnability": largest(*(p.most("plain") for p in every)),
            "least_possible": least(p.possible[0] for p in every),
            "largest_possible": largest(*(p.possible[1] for p in every)),
            "range_apart": largest(*(p.range_apart for p in every)),
            "least_of_eigenfunctions": least(p.least("modes") for p in every),
            "largest_of_eigenfunctions": largest(*(p.most("modes") for p in every)),
            "least_gain_of_eigenfunctions": least(p.gain("modes") for p in every),
            "least_in_rkhs": least(p.least("rkhs") for p in every),
            "largest_in_rkhs": largest(*(p.most("rkhs") for p in every)),
            "least_gain_in_rkhs": least(p.gain("rkhs") for p in every),
            "update_as_printed_apart": least(printed for printed, _ in updates),
            "update_with_lambda_apart": largest(*(right for _, right in updates)),
            "slopes_from_autograd": largest(*(found.autograd for found in slopes)),
            "slopes_from_differences": largest(*(found.differences for found in slopes)),
            "least_slope_of_own": least(found.own for found in slopes),
            "largest_slope_of_others": largest(*(found.others for found in slopes)),
            "slopes_sum": largest(*(found.total for found in slopes)),
            "mean_not_diagonal": largest(*(float((T - T.diagonal().diag()).abs().max()) for T in means)),
            "least_mean_gain": least(float(_spread(b - a)[0]) for a, b in pairwise(means)),
            "least_mean_of_two_points": float(_spread(_exact_means(_two_points(setting.device))[1])[0]),
        },
        _CRITERIA_MONO,
        data=xr.Dataset({"losing": (("domain", "order"), [[p.losing for p in g] for g in paths.values()])}),
        panels=[*(_path_panel(name, group[0]) for name, group in paths.items()), _range_panel(paths)],
        setting={"hypercube": 2**d, "digits": n_digits, "functions": n_functions, "orders of points": n_orders},
        warnings=[
            "even the mean over training sets of L(f) may lie below 0 where k(x, x) differs between points: for two "
            "points, of k(x, x) = 1 and 100, and n = 1 (least_mean_of_two_points)",
            "(154) lacks 1/n: as Σ_i φ_i(x)² = M, φ_i(D)^T φ_i(D) is n on average, not 1. In (155) n cannot pass M, "
            "and Φ^T Φ is M I, which leaves T as it is",
            "the first step of the proof of (e) has Λ^½ where Λ^−½ belongs: A^T Λ^−½ is Φ^T",
        ],
    )


ROUNDING = 1e-9
_CRITERIA_MONO = (
    Criterion("share_that_loses_hypercube", "Lemma 1(e): share of random f that a new point harms", high=0.0),
    Criterion("share_that_loses_digits", "the same, digits", high=0.0),
    Criterion("least_learnability", "smallest L^(D)(f) found", low=-ROUNDING),
    Criterion("largest_learnability", "largest L^(D)(f) found", high=1 + ROUNDING),
    Criterion("least_mean_of_two_points", "smallest L(f), the mean over D, for two points", low=-ROUNDING),
    *(
        Criterion(name, words, low=low, high=high, role="corrected")
        for name, words, low, high in (
            ("slopes_from_autograd", "(39), (40) against automatic differentiation", -math.inf, EXACT),
            ("slopes_from_differences", "(39), (40) against differences of T", -math.inf, 1e-6),
            ("least_slope_of_own", "(9): smallest dL(φ_i)/dλ_i, over the largest", -ROUNDING, math.inf),
            ("largest_slope_of_others", "(10): largest dL(φ_j)/dλ_i, over the largest", -math.inf, ROUNDING),
            ("slopes_sum", "zero-sum: Σ_j dL(φ_j)/dλ_i without a ridge", -math.inf, ROUNDING),
            ("least_of_eigenfunctions", "smallest L^(D)(φ_i)", -ROUNDING, math.inf),
            ("largest_of_eigenfunctions", "largest L^(D)(φ_i)", -math.inf, 1 + ROUNDING),
            ("least_gain_of_eigenfunctions", "least that a new point adds to L^(D)(φ_i)", -ROUNDING, math.inf),
            ("range_apart", "L^(D)(f) fills (1 ± ‖T‖)/2: extremes of sym T beside it", -math.inf, ROUNDING),
            ("least_in_rkhs", "smallest ⟨f, f̂⟩_H/‖f‖_H², any f", -ROUNDING, math.inf),
            ("largest_in_rkhs", "largest ⟨f, f̂⟩_H/‖f‖_H²", -math.inf, 1 + ROUNDING),
            ("least_gain_in_rkhs", "least that a new point adds to it", -ROUNDING, math.inf),
            ("update_with_lambda_apart", "T^(D+) by Sherman and Morrison, with Λ^±½", -math.inf, EXACT),
            ("mean_not_diagonal", "hypercube: E_D[T] is diagonal", -math.inf, EXACT),
            ("least_mean_gain", "hypercube: so that L(f) grows with n for every f", 0.0, math.inf),
        )
    ),
)


@dataclass(frozen=True, eq=False)
class _Path:
    """Learnabilities along D = ∅, {x_1}, {x_1, x_2}, …: each (M + 1, functions)."""

    plain: Tensor  # L^(D) of random functions
    modes: Tensor  # of the eigenfunctions
    rkhs: Tensor  # of random functions in the RKHS
    bounds: Tensor  # (M + 1, 2): extremes of v^T T v/v^T v
    norms: Tensor  # (M + 1,): ‖T‖

    @property
    def range_apart(self) -> float:
        """How far the extremes are from (1 ∓ ‖T‖)/2, over ‖T‖; without samples and with all of them T is 0 and I."""
        bounds, norms = self.bounds[1:-1], self.norms[1:-1, None]
        return float(((bounds - (1 + norms * norms.new_tensor([-1.0, 1.0])) / 2) / norms).abs().max())

    @property
    def losing(self) -> float:
        """The share of steps of random functions that lower L."""
        return float((self.plain.diff(dim=0) < -ROUNDING).double().mean())

    @property
    def possible(self) -> tuple[float, float]:
        return float(self.bounds[:, 0].min()), float(self.bounds[:, 1].max())

    def least(self, field: str) -> float:
        """The smallest value."""
        return float(getattr(self, field).min())

    def most(self, field: str) -> float:
        """The largest."""
        return float(getattr(self, field).max())

    def gain(self, field: str) -> float:
        """The least step."""
        values: Tensor = getattr(self, field)
        return float(values.diff(dim=0).min())


def _path(K: Tensor, n_functions: int, seed: int) -> _Path:
    """Random functions have independent normal values at every point."""
    system, M, draw = eigensystem(K), len(K), generator("path", len(K), seed)
    order = torch.randperm(M, generator=draw)
    v = system.coefficients(torch.randn(M, n_functions, generator=draw, dtype=torch.float64).to(K.device))
    w = v / system.eigenvalues[:, None]  # ⟨f, g⟩_H = Σ v_i u_i/λ_i
    rows = []
    for n in range(M + 1):
        T = transfer_matrix(system, order[:n])
        learned = T @ v
        plain, rkhs = (v * learned).sum(0) / v.square().sum(0), (w * learned).sum(0) / (w * v).sum(0)
        rows.append((plain, T.diagonal(), rkhs, _spread(T), torch.linalg.matrix_norm(T, 2)))
    return _Path(*(torch.stack(part) for part in zip(*rows, strict=True)))


def _spread(T: Tensor) -> Tensor:
    """The smallest and the largest v^T T v/v^T v, (2,)."""
    values: Tensor = torch.linalg.eigvalsh((T + T.mT) / 2)
    return values[[0, -1]]


@dataclass(frozen=True)
class _Slopes:
    autograd: float
    differences: float
    own: float
    others: float
    total: float


def _slopes(K: Tensor, ridge: float, seed: int) -> _Slopes:
    """dT_jj/dλ_i by (39), (40), beside automatic differentiation and differences; all over the largest."""
    system, M = eigensystem(K), len(K)
    rows = torch.randperm(M, generator=generator("slopes", M, seed))[: M // 3]
    found = transfer_derivative(system, rows, ridge=ridge)
    top = float(found.abs().max())
    Phi = system.functions[rows].mT

    def diagonal(values: Tensor) -> Tensor:
        G = Phi.mT @ (values[:, None] * Phi) + ridge * torch.eye(len(rows)).to(Phi)
        weights: Tensor = torch.linalg.solve(G, Phi.mT)
        return values * (Phi * weights.mT).sum(1)

    values = system.eigenvalues.clone().requires_grad_()
    each = [torch.autograd.grad(share, values, retain_graph=True)[0] for share in diagonal(values)]
    J = torch.stack(each).mT  # rows of dT_jj/dλ, so that (i, j) is dT_jj/dλ_i
    i, step = M // 2, 1e-4 * float(system.eigenvalues[M // 2])
    ends = [_diagonal_at(system, i, sign * step, rows, ridge) for sign in (1, -1)]
    difference = (ends[0] - ends[1]) / (2 * step)
    off = found - found.diagonal().diag()
    return _Slopes(
        float((found - J).abs().max()) / top,
        float((found[i] - difference).abs().max() / found[i].abs().max()),
        float(found.diagonal().min()) / top,
        float(off.max()) / top,
        float(found.sum(1).abs().max()) / top if ridge == 0 else 0.0,
    )


def _diagonal_at(system: Eigensystem, i: int, step: float, rows: Tensor, ridge: float) -> Tensor:
    values = system.eigenvalues.clone()
    values[i] += step
    return transfer_matrix(Eigensystem(values, system.functions), rows, ridge=ridge).diagonal()


def _update_apart(K: Tensor) -> tuple[float, float]:
    """How far T of one point more is from Lemma 1(e)'s update as it is printed and with Λ^±½, at a ridge δ.

    B = AA^T + δI, A = Λ^½Φ(D): as printed δ B^−1 ξξ^T B^−1/(1 + ξ^T B^−1 ξ), with u = Λ^½ξ in the place of ξ right.
    """
    system, M = eigensystem(K), len(K)
    rows = _rows(M, M // 3)
    root = system.eigenvalues.sqrt()
    A = root[:, None] * system.functions[rows[:-1]].mT
    xi = system.functions[rows[-1]]
    B = A @ A.mT + RIDGE * torch.eye(M).to(A)
    step = transfer_matrix(system, rows, ridge=RIDGE) - transfer_matrix(system, rows[:-1], ridge=RIDGE)

    def update(u: Tensor) -> Tensor:
        b: Tensor = torch.linalg.solve(B, u)
        return RIDGE * torch.outer(b, b) / (1 + u @ b)

    right = root[:, None] * update(root * xi) / root
    printed, right = ((found - step).norm() / step.norm() for found in (update(xi), right))
    return float(printed), float(right)


def _exact_means(K: Tensor) -> list[Tensor]:
    """E_D[T] for n = 0, …, M, over all training sets."""
    system, M = eigensystem(K), len(K)
    every = [[torch.tensor(D, dtype=torch.int64) for D in combinations(range(M), n)] for n in range(M + 1)]
    return [torch.stack([transfer_matrix(system, D) for D in sets]).mean(0) for sets in every]


def _two_points(device: str) -> Tensor:
    """A kernel of two points, of k(x, x) = 1 and 100 at a cosine of 0.95."""
    return torch.tensor([[1.0, 9.5], [9.5, 100.0]], dtype=torch.float64, device=device)


def _path_panel(name: str, path: _Path) -> Panel:
    n = np.arange(len(path.plain))
    worst = int(path.plain.min(0).values.argmin())
    return Panel(
        f"One function on the way through all points, {name}",
        "samples n",
        "learnability",
        (
            curve("⟨f, f̂⟩/⟨f, f⟩", n, path.plain[:, worst], "plain"),
            curve("⟨f, f̂⟩/⟨f, f⟩ in the RKHS", n, path.rkhs[:, worst], "plain"),
            curve("an eigenfunction", n, path.modes[:, len(n) // 8], "plain"),
            curve("0", n, 0.0 * n, "dashed"),
            curve("1", n, 1 + 0.0 * n, "dashed"),
        ),
        x_log=False,
        y_log=False,
    )


def _range_panel(paths: Mapping[str, Sequence[_Path]]) -> Panel:
    curves: list[Curve] = []
    for name, (path, *_) in paths.items():
        share = np.linspace(0, 1, len(path.plain))[1:-1]
        least, most, norms = (part[1:-1].cpu() for part in (*path.bounds.unbind(1), path.norms))
        curves += [
            curve(f"{name}: least f", share, least, "plain"),
            curve(f"{name}: largest f", share, most, "plain"),
            curve(f"{name}: (1 − ‖T‖)/2", share, (1 - norms) / 2, "dashed"),
        ]
    return Panel("What L^(D)(f) can be", "share n/M of all points", "L^(D)(f)", tuple(curves), x_log=False, y_log=False)
