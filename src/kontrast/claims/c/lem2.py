"""C.lem2: the limit of the contrastive covariance for many samples, a sum of adjusted variances."""

from __future__ import annotations

import math

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from kontrast.claims.evidence import Evidence, Finding, Panel, Verdict, curve, judged, printed, shown
from kontrast.claims.panels import guide
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, largest
from kontrast.linalg import fit_power_law
from kontrast.patterns import (
    GaussianImportance,
    adjusted_covariance,
    contrastive_covariance,
    gaussian_features,
    pair_laplacian,
)

N_INPUTS = 7
NOISE = 0.5  # standard deviation of the augmentation
TAU = 0.5
CASES = {  # α, and the noise of the views
    "uniform": ("uniform", 0.0),
    "uniform_augmented": ("uniform", NOISE),
    "gaussian": ("gaussian", 0.0),
    "gaussian_augmented": ("gaussian", NOISE),
}
TO_2048 = (32, 64, 128, 256, 512, 1024, 2048)


@claim(
    "C.lem2",
    source="Paper C, Lemma 2, Corollary 1, Lemma 1, (4)",
    title="For many samples the contrastive covariance is a sum of adjusted variances",
    printed="If α has kernel structure, C_α[g(x)] → Σ_l z_l² V_{x_0 ~ p̃_l}[E[g(x)|x_0]] for N → ∞, with and without "
    "augmentation (at the rate N^−1/2); Gaussian α has kernel structure.",
    recorded=Verdict.HOLDS,
    cost=2,
)
def lemma_2(setting: Setting) -> Evidence:
    """RMS distance from the limit over many draws of normal x_0 and noisy views, for g = (x_1, relu x_1, x_2, …).

    α compares relu x_1 of the samples before augmentation, as in Corollary 2.
    """
    sizes = setting.pick(quick=(32, 64, 128, 256), full=(32, 64, 128, 256, 512, 1024), paper=TO_2048)
    n_draws = setting.pick(quick=120, full=200, paper=400)
    data = _by_size(sizes, n_draws)
    apart = largest(*(_limit_apart(noise) for noise in (0.0, NOISE)))
    return judged(
        *(_rate(data[name]) for name in CASES),
        *_identity(),
        printed("limit_two_ways", apart, "the limit from the features (13) equals that from the kernel", high=1e-10),
        *shown(
            share_not_psd_at_fewest=float(data.negative[0]),
            share_not_psd_at_most=float(data.negative[-1]),
            offset_with_alpha_of_samples=float(data.offset_samples[-1]),
            offset_with_alpha_of_views=float(data.offset_views[-1]),
        ),
        data=data[list(CASES)],
        panels=_panels(data),
        setting={"samples": list(sizes), "draws": n_draws, "temperature": TAU, "noise": NOISE, "d": N_INPUTS},
        warnings=[
            "without augmentation (4) is an identity at every N for the empirical distribution of the samples: many "
            "samples are needed only for this to approach the population's",
            "with augmentation α must be computed from the samples before it, as in Def. 1: computed from the views, "
            "as losses do in practice, it leads to another limit",
        ],
    )


def _by_size(sizes: tuple[int, ...], n_draws: int) -> xr.Dataset:
    """Distances from the limit, offsets of the mean, and shares of draws with a negative eigenvalue, by N."""
    limits, rows = {name: _limit(*case) for name, case in CASES.items()}, []
    for n in sizes:
        found = _draws(n, n_draws)
        augmented, limit = found["gaussian_augmented"], limits["gaussian_augmented"]
        row = {name: _rms(found[name], limits[name]) for name in CASES}
        row |= {"offset_samples": _offset(augmented, limit), "offset_views": _offset(found["views"], limit)}
        row["negative"] = float((torch.linalg.eigvalsh(augmented)[:, 0] < 0).double().mean())
        rows.append(row)
    return xr.Dataset({name: ("n", [row[name] for row in rows]) for name in rows[0]}, coords={"n": list(sizes)})


def _rate(distances: xr.DataArray) -> Finding:
    name, law = str(distances.name), fit_power_law(distances.n.values, distances.values)
    words = f"α {name.replace('_', ', ')}: exponent of the distance in N"
    return printed(f"rate_{name}", law, words, low=-0.55, high=-0.45)


def _identity() -> tuple[Finding, ...]:
    """C_α at finite N, by α itself and by its features."""
    x0 = torch.randn(256, N_INPUTS, generator=generator("identity"), dtype=torch.float64)
    features = gaussian_features(_g(x0)[:, 1:2], temperature=TAU, order=80, lower=0.0)
    dense = contrastive_covariance(_g(x0), importance=GaussianImportance(TAU)(_g(x0)[:, 1:2]).alpha)
    adjusted = adjusted_covariance(_g(x0), features.values)
    apart = float((dense - adjusted).norm() / dense.norm())
    return (
        printed("finite_n_identity", apart, "without augmentation (4) is an identity at finite N", high=1e-10),
        *shown(features_cut_off=features.error),
    )


def _panels(data: xr.Dataset) -> list[Panel]:
    distances = [curve(name.replace("_", ", "), data.n, data[name]) for name in CASES]
    distances.append(guide(data.n, data.uniform, -0.5, "N^−1/2"))
    of_samples = curve("α of the samples", data.n, data.offset_samples)
    of_views = curve("α of their views", data.n, data.offset_views)
    negative = curve("Gaussian α", data.n, data.negative)
    before = "Gaussian α must be computed from the samples before augmentation"
    offset = "‖mean C_α − limit‖/‖limit‖ for (x_1, relu x_1)"
    indefinite, share = "With views C_α need not be positive semi-definite", "share of draws with a negative eigenvalue"
    return [
        Panel("Distance from the limit", "samples N", "RMS over draws of ‖C_α − limit‖/‖limit‖", tuple(distances)),
        Panel(before, "samples N", offset, (of_samples, of_views), y_log=False),
        Panel(indefinite, "samples N", share, (negative,), y_log=False),
    ]


def _g(x: Tensor) -> Tensor:
    """The function whose covariance is taken, (n, 1 + N_INPUTS): x_1, relu x_1 and the other inputs."""
    return torch.cat([x[:, :1], x[:, :1].relu(), x[:, 1:]], dim=1)


def _conditional_mean(first: Tensor, noise: float) -> Tensor:
    """E[(x_1, relu x_1)|x_0], (n, 2), for x = x_0 + noise·ξ; that of the other inputs is x_0."""
    if noise == 0:
        return torch.stack([first, first.relu()], dim=1)
    t = first / noise
    density = torch.exp(-t.square() / 2) / math.sqrt(2 * math.pi)
    return torch.stack([first, first * torch.special.ndtr(t) + noise * density], dim=1)


def _draws(n: int, n_draws: int) -> dict[str, Tensor]:
    """C_α of each draw by case, (draws, d, d)."""
    draw = generator("lemma 2", n)
    found: dict[str, list[Tensor]] = {name: [] for name in (*CASES, "views")}
    for _ in range(n_draws):
        x0, first, second = torch.randn(3, n, N_INPUTS, generator=draw, dtype=torch.float64)
        x, view = _g(x0 + NOISE * first), _g(x0 + NOISE * second)
        uniform, gaussian = pair_laplacian("uniform", x), pair_laplacian(GaussianImportance(TAU), _g(x0)[:, 1:2])
        for name, laplacian in (("uniform", uniform), ("gaussian", gaussian)):
            found[name].append(contrastive_covariance(_g(x0), importance=laplacian))
            found[f"{name}_augmented"].append(contrastive_covariance(x, positives=view, importance=laplacian))
        of_views = pair_laplacian(GaussianImportance(TAU), x[:, 1:2])
        found["views"].append(contrastive_covariance(x, positives=view, importance=of_views))
    return {name: torch.stack(values) for name, values in found.items()}


def _rms(found: Tensor, limit: Tensor) -> float:
    return float((found - limit).square().sum((1, 2)).mean().sqrt() / limit.norm())


def _offset(found: Tensor, limit: Tensor) -> float:
    """The distance of the mean over draws from the limit in x_1 and relu x_1, which α compares."""
    return float((found.mean(0) - limit)[:2, :2].norm() / limit[:2, :2].norm())


def _population() -> tuple[Tensor, Tensor]:
    """Points and weights of N(0, 1): Gauss-Legendre on both sides of relu's kink."""
    nodes, weights = np.polynomial.legendre.leggauss(160)
    half = 4.25 * (nodes + 1)  # 0 to 8.5
    points = torch.as_tensor(np.concatenate([-half[::-1], half]))
    mass = torch.as_tensor(4.25 * np.concatenate([weights[::-1], weights])) * torch.exp(-points.square() / 2)
    return points, mass / math.sqrt(2 * math.pi)


def _limit(alpha: str, noise: float) -> Tensor:
    """½ E[K(x_0, y_0)(m(x_0) − m(y_0))(m(x_0) − m(y_0))^T] with m = E[g|x_0]: (4) from the kernel."""
    points, mass = _population()
    means, r = _conditional_mean(points, noise), points.relu()
    kernel = torch.ones(len(r), len(r)).to(r) if alpha == "uniform" else torch.exp(-((r[:, None] - r) ** 2) / (2 * TAU))
    pairs = mass[:, None] * kernel * mass
    limit = float(pairs.sum()) * torch.eye(1 + N_INPUTS, dtype=torch.float64)  # inputs that α does not compare
    limit[:2, :2] = means.mT @ (pairs.sum(1)[:, None] * means - pairs @ means)
    return limit


def _limit_apart(noise: float) -> float:
    """The distance of Σ_l z_l² V_{p̃_l}[(x_1, relu x_1)], with the features of the Gaussian α, from `_limit`."""
    points, mass = _population()
    phi = gaussian_features(points.relu()[:, None], temperature=TAU, order=260, lower=0.0).values
    means, total = _conditional_mean(points, noise), torch.zeros(2, 2, dtype=torch.float64)
    for component in phi.mT:
        z = float(mass @ component)
        p = mass * component / max(z, 1e-300)
        centered = means - p @ means
        total += z**2 * (centered.mT * p) @ centered
    limit = _limit("gaussian", noise)[:2, :2]
    return float((total - limit).norm() / limit.norm())
