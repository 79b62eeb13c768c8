"""D.mono: more data helps eigenfunctions, but not every function (Lemma 1(e))."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from kontrast.claims.d.domains import EXACT, RIDGE, cube, digits, least, training_set
from kontrast.claims.evidence import Curve, Evidence, Finding, Panel, Verdict, corrected, curve, judged, printed, shown
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, largest
from kontrast.learnability import Eigensystem, eigensystem, transfer_derivative, transfer_matrix

ROUNDING = 1e-9


@claim(
    "D.mono",
    source="Paper D, Lemma 1(e), (9), (10), (39), (40)",
    title="More data helps eigenfunctions; other functions only in the RKHS norm",
    printed="A new point never lowers L^(D)(f), for any f, and L(f) lies in [0, 1]; dT_jj/dλ_i is (39), (40), so that "
    "a larger λ_i helps φ_i and harms all others.",
    corrected="(39), (40), (9) and (10) hold; both statements on L hold for eigenfunctions. The proof of (e) loses Λ: "
    "T^(D+) − T^(D) = Λ^½ (…) Λ^−½ is not a positive matrix, and L^(D)(f) fills [(1 − ‖T‖)/2, (1 + ‖T‖)/2]. T is the "
    "orthogonal projector of the RKHS, so ⟨f, f̂⟩_H/‖f‖_H² = ‖f̂‖_H²/‖f‖_H² lies in [0, 1] and grows, for every f; L(f) "
    "grows on average if the kernel's symmetries make E_D[T] diagonal, as on the hypercube.",
    recorded=Verdict.CORRECTED,
)
def monotone(setting: Setting) -> Evidence:
    """Nested training sets of the hypercube and of digits: gains of random functions and eigenfunctions per point."""
    d, n_digits = setting.pick(quick=(5, 30), full=(7, 100), paper=(8, 200))
    n_orders, n_functions = setting.pick(quick=(2, 100), full=(10, 400), paper=(10, 1000))
    domains = {"hypercube": cube(d, setting.device), "digits": digits(setting, n_digits)}
    paths = {name: [_path(K, n_functions, seed) for seed in range(n_orders)] for name, K in domains.items()}
    return judged(
        *_along_paths(paths),
        *_in_rkhs([path for group in paths.values() for path in group]),
        *_updates(list(domains.values())),
        *_derivatives(list(domains.values())),
        *_means(setting.device),
        data=xr.Dataset({"losing": (("domain", "order"), [[p.losing for p in g] for g in paths.values()])}),
        panels=[*(_path_panel(name, group[0]) for name, group in paths.items()), _range_panel(paths)],
        setting={"hypercube": 2**d, "digits": n_digits, "functions": n_functions, "orders of points": n_orders},
        warnings=[
            "even the mean of L(f) over training sets may lie below 0 if k(x, x) differs between points: for two "
            "points with k(x, x) = 1 and 100, and n = 1 (least_mean_of_two_points)",
            "(154) lacks 1/n: as Σ_i φ_i(x)² = M, φ_i(D)^T φ_i(D) is n on average, not 1. In (155) n cannot exceed M, "
            "and Φ^T Φ is M I, which leaves T as it is",
            "the first step of the proof of (e) has Λ^½ where Λ^−½ belongs: A^T Λ^−½ is Φ^T",
        ],
    )


def _along_paths(paths: Mapping[str, Sequence[_Path]]) -> tuple[Finding, ...]:
    """L^(D) of random functions and of eigenfunctions as points are added one by one."""
    every = [path for group in paths.values() for path in group]
    on_cube, on_digits = (float(np.mean([path.losing for path in paths[name]])) for name in ("hypercube", "digits"))
    low, high, _ = _extremes([path.plain for path in every])
    low_mode, high_mode, gain = _extremes([path.modes for path in every])
    possible, apart = _extremes([path.bounds for path in every]), largest(*(path.range_apart for path in every))
    return (
        printed("share_that_loses_hypercube", on_cube, "Lemma 1(e), hypercube: share of points that lower L", high=0.0),
        printed("share_that_loses_digits", on_digits, "Lemma 1(e), digits: the same share", high=0.0),
        printed("least_learnability", low, "smallest L^(D)(f) found", low=-ROUNDING),
        printed("largest_learnability", high, "largest L^(D)(f) found", high=1 + ROUNDING),
        corrected("least_of_eigenfunctions", low_mode, "smallest L^(D)(φ_i)", low=-ROUNDING),
        corrected("largest_of_eigenfunctions", high_mode, "largest L^(D)(φ_i)", high=1 + ROUNDING),
        corrected("least_gain_of_eigenfunctions", gain, "smallest change of L^(D)(φ_i) by a new point", low=-ROUNDING),
        corrected("range_apart", apart, "L^(D)(f) fills (1 ± ‖T‖)/2: error of the extremes of sym T", high=ROUNDING),
        *shown(least_possible=possible[0], largest_possible=possible[1]),
    )


def _in_rkhs(paths: Sequence[_Path]) -> tuple[Finding, ...]:
    """The learnability of random functions in the RKHS."""
    low, high, gain = _extremes([path.rkhs for path in paths])
    return (
        corrected("least_in_rkhs", low, "smallest ⟨f, f̂⟩_H/‖f‖_H², any f", low=-ROUNDING),
        corrected("largest_in_rkhs", high, "largest ⟨f, f̂⟩_H/‖f‖_H²", high=1 + ROUNDING),
        corrected("least_gain_in_rkhs", gain, "smallest change of ⟨f, f̂⟩_H/‖f‖_H² by a new point", low=-ROUNDING),
    )


def _extremes(paths: Sequence[Tensor]) -> tuple[float, float, float]:
    """The smallest and the largest learnability along some paths, and the smallest step."""
    steps = least(float(values.diff(dim=0).min()) for values in paths)
    return least(float(values.min()) for values in paths), largest(*(float(values.max()) for values in paths)), steps


def _updates(kernels: Sequence[Tensor]) -> tuple[Finding, ...]:
    found = [_update_apart(K) for K in kernels]
    apart = largest(*(right for _, right in found))
    return (
        corrected("update_with_lambda_apart", apart, "T^(D+) by Sherman-Morrison, with Λ^±½: error", high=EXACT),
        *shown(update_as_printed_apart=least(as_printed for as_printed, _ in found)),
    )


def _derivatives(kernels: Sequence[Tensor]) -> tuple[Finding, ...]:
    """dT_jj/dλ_i, with and without a ridge."""
    found = [_slopes(K, ridge, seed) for K in kernels for ridge in (0.0, RIDGE) for seed in range(2)]
    most = {name: largest(*(each[name] for each in found)) for name in found[0]}
    own = least(each["own"] for each in found)
    return (
        corrected("slopes_from_autograd", most["autograd"], "(39), (40) against autograd: error", high=EXACT),
        corrected("slopes_from_differences", most["differences"], "against differences of T: error", high=1e-6),
        corrected("least_slope_of_own", own, "(9): smallest dL(φ_i)/dλ_i, over the largest", low=-ROUNDING),
        corrected("largest_slope_of_others", most["others"], "(10): largest dL(φ_j)/dλ_i, likewise", high=ROUNDING),
        corrected("slopes_sum", most["total"], "zero-sum: Σ_j dL(φ_j)/dλ_i without a ridge", high=ROUNDING),
    )


def _means(device: str) -> tuple[Finding, ...]:
    """E_D[T] over all training sets: of the hypercube, and of two points of different k(x, x)."""
    means = _exact_means(cube(3, device))
    off_diagonal = largest(*(float((T - T.diagonal().diag()).abs().max()) for T in means))
    gain = least(float(_spread(b - a)[0]) for a, b in pairwise(means))
    two_points = torch.tensor([[1.0, 9.5], [9.5, 100.0]], dtype=torch.float64, device=device)  # a cosine of 0.95
    of_two = float(_spread(_exact_means(two_points)[1])[0])
    return (
        corrected("mean_not_diagonal", off_diagonal, "hypercube: E_D[T] is diagonal", high=EXACT),
        corrected("least_mean_gain", gain, "hypercube: L(f) grows with n for every f: smallest gain", low=0.0),
        printed("least_mean_of_two_points", of_two, "two points: smallest L(f), the mean over D", low=-ROUNDING),
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
        """Distance of the extremes from (1 ∓ ‖T‖)/2, over ‖T‖; not for T = 0 and T = I, with no or all samples."""
        bounds, norms = self.bounds[1:-1], self.norms[1:-1, None]
        return float(((bounds - (1 + norms * norms.new_tensor([-1.0, 1.0])) / 2) / norms).abs().max())

    @property
    def losing(self) -> float:
        """The share of steps of random functions that lower L."""
        return float((self.plain.diff(dim=0) < -ROUNDING).double().mean())


def _path(K: Tensor, n_functions: int, seed: int) -> _Path:
    """Add the points in random order; random functions have independent normal values at every point."""
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


def _slopes(K: Tensor, ridge: float, seed: int) -> dict[str, float]:
    """dT_jj/dλ_i by (39), (40) against automatic differentiation and differences; all over the largest."""
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
    return {
        "autograd": float((found - J).abs().max()) / top,
        "differences": float((found[i] - difference).abs().max() / found[i].abs().max()),
        "own": float(found.diagonal().min()) / top,
        "others": float(off.max()) / top,
        "total": float(found.sum(1).abs().max()) / top if ridge == 0 else 0.0,
    }


def _diagonal_at(system: Eigensystem, i: int, step: float, rows: Tensor, ridge: float) -> Tensor:
    values = system.eigenvalues.clone()
    values[i] += step
    return transfer_matrix(Eigensystem(values, system.functions), rows, ridge=ridge).diagonal()


def _update_apart(K: Tensor) -> tuple[float, float]:
    """Relative errors of Lemma 1(e)'s update of T by one point, as printed and with Λ^±½, at a ridge δ.

    With B = AA^T + δI and A = Λ^½Φ(D) it is printed as δ B^−1 ξξ^T B^−1/(1 + ξ^T B^−1 ξ); u = Λ^½ξ in place of ξ is
    right.
    """
    system, M = eigensystem(K), len(K)
    rows = training_set(M, M // 3)
    root = system.eigenvalues.sqrt()
    A = root[:, None] * system.functions[rows[:-1]].mT
    xi = system.functions[rows[-1]]
    B = A @ A.mT + RIDGE * torch.eye(M).to(A)
    step = transfer_matrix(system, rows, ridge=RIDGE) - transfer_matrix(system, rows[:-1], ridge=RIDGE)

    def update(u: Tensor) -> Tensor:
        b: Tensor = torch.linalg.solve(B, u)
        return RIDGE * torch.outer(b, b) / (1 + u @ b)

    right = root[:, None] * update(root * xi) / root
    as_printed, right = ((found - step).norm() / step.norm() for found in (update(xi), right))
    return float(as_printed), float(right)


def _exact_means(K: Tensor) -> list[Tensor]:
    """E_D[T] for n = 0, …, M, over all training sets."""
    system, M = eigensystem(K), len(K)
    every = [[torch.tensor(D, dtype=torch.int64) for D in combinations(range(M), n)] for n in range(M + 1)]
    return [torch.stack([transfer_matrix(system, D) for D in sets]).mean(0) for sets in every]


def _path_panel(name: str, path: _Path) -> Panel:
    n = np.arange(len(path.plain))
    worst = int(path.plain.min(0).values.argmin())
    curves = (
        curve("⟨f, f̂⟩/⟨f, f⟩", n, path.plain[:, worst], "plain"),
        curve("⟨f, f̂⟩/⟨f, f⟩ in the RKHS", n, path.rkhs[:, worst], "plain"),
        curve("an eigenfunction", n, path.modes[:, len(n) // 8], "plain"),
        curve("0", n, 0.0 * n, "dashed"),
        curve("1", n, 1 + 0.0 * n, "dashed"),
    )
    title = f"Learnability as points are added, {name}"
    return Panel(title, "samples n", "learnability", curves, x_log=False, y_log=False)


def _range_panel(paths: Mapping[str, Sequence[_Path]]) -> Panel:
    curves: list[Curve] = []
    for name, (path, *_) in paths.items():
        share = np.linspace(0, 1, len(path.plain))[1:-1]
        least, most, norms = (part[1:-1].cpu() for part in (*path.bounds.unbind(1), path.norms))
        curves += [
            curve(f"{name}: smallest", share, least, "plain"),
            curve(f"{name}: largest", share, most, "plain"),
            curve(f"{name}: (1 − ‖T‖)/2", share, (1 - norms) / 2, "dashed"),
        ]
    return Panel("Range of L^(D)(f)", "share n/M of all points", "L^(D)(f)", tuple(curves), x_log=False, y_log=False)
