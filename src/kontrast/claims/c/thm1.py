"""C.thm1: stable rest points of a filter."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor

from kontrast.claims.c.filters import PUSH, RATES, SPAN, M, Model, gap_at, patterns_of, push_and_follow, starts_of
from kontrast.claims.c.mixtures import KINDS, RELU, AugmentedMixture, Population, random_mixture, tangent_basis
from kontrast.claims.evidence import (
    Curve,
    Evidence,
    Finding,
    Panel,
    Verdict,
    corrected,
    curve,
    informative,
    judged,
    printed,
    shown,
)
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator
from kontrast.patterns import (
    GatedCovariance,
    LatentCategorical,
    LatentSummation,
    MixtureCovariance,
    OneLayerField,
    find_lmes,
    one_layer_flow,
    power_iteration,
)

FAR = 0.1  # |margin|/λ from which on a push must tell stable from unstable
SAMPLE_PUSH = 0.05  # on samples: far enough for many gates to flip
STEP = 1e-5  # of differences
COLUMNS = ("eigenvalue", "gap", "roughness", "roughness_by_differences", "margin", "margin_by_differences", "returned")


@claim(
    "C.thm1",
    source="Paper C, Theorem 1, Sec. 3.1",
    title="An LME whose gap exceeds the roughness is stable",
    printed="If w is an LME and λ_gap(w) > ρ(w), then w is stable.",
    corrected="True, and w is stable exactly if λ > λ_max(P(A + R)P), where Ru = d/dε A(w + εu)w. Without views R = "
    "−E[h]·E[xx^T δ(w^T x)] ≤ 0 for a ReLU: roughness stabilises, every LME is stable, and lowering ρ cannot make "
    "more of them stable, contrary to Sec. 3.1. Only views, or a leaky ReLU on data behind its plane, lead to unstable "
    "LMEs. The condition is far from necessary: it certifies no pattern of the categorical model, at any noise.",
    recorded=Verdict.HOLDS,
    cost=3,
)
def theorem_1(setting: Setting) -> Evidence:
    """Rest points of random populations, stable or not, each pushed and followed; both models; samples with views."""
    n = len(setting.seeds(quick=4, full=50, paper=50))
    found = {kind: _points([random_mixture(kind, seed) for seed in range(3 * n)]) for kind in KINDS}
    leaky, views = (_points([example]) for example in _example_fields().values())
    found |= {"models": _points(_smoothed_models(setting)), "example_leaky": leaky, "example_views": views}
    every = xr.concat(found.values(), "point")
    noises = np.geomspace(0.003, 0.6, setting.pick(quick=10, full=24, paper=24))
    categorical = _along_noise(noises)
    n_certified = float((categorical.gap > categorical.roughness).sum())
    margin = float(categorical.margin.min())
    return judged(
        *_exceptions(every),
        *_lmes(found),
        corrected("categorical_certified", n_certified, "categorical model: noises with a certified pattern", high=0),
        corrected("categorical_least_margin", margin, "yet it is stable at every noise: smallest margin", low=1e-3),
        *_of_sampled_models(setting.pick(quick=1500, full=4000, paper=4000), 1 + n),
        *shown(
            **{f"n_{kind}": float(points.sizes["point"]) for kind, points in found.items()},
            **{f"certified_of_stable_{kind}": _share(found[kind]) for kind in KINDS},
            certified_of_stable=_share(every),
            stable_and_no_lme=float(((every.gap <= 0) & (every.margin > 0)).sum()),
        ),
        data=every,
        panels=_panels(categorical),
        setting={"mixtures_of_each_kind": 3 * n, "push": PUSH, "followed_for": f"{SPAN:g}/|margin|"},
        warnings=[f"at points with |margin| < {FAR:g} λ that are not certified, the return of the flow is not tested"],
    )


def rest_points(field: OneLayerField, starts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rest points of (7), stable or not, by Newton's method: w (k, d), the margin there and the worst direction.

    The slope of the flow comes from differences of A(w)w, independent of the formula for R.
    """
    w = torch.nn.functional.normalize(starts)
    for _ in range(30):
        T, J, residual = _slope(field, w)
        step = (torch.linalg.pinv(J) @ -residual[:, :, None]).mT @ T.mT  # (k, 1, d)
        step = step[:, 0] * (0.5 / step.norm(dim=-1)).clamp(max=1.0)
        w = torch.nn.functional.normalize(w + step)
    eigenvalues = (field.product(w) * w).sum(1)
    loud = eigenvalues > 1e-6 * eigenvalues.max()
    w = w[loud & (_slope(field, w)[2].norm(dim=1) < 1e-10 * eigenvalues.max())]
    w = w[[i for i in range(len(w)) if (torch.cdist(w[i : i + 1], w[:i]) > 1e-5).all()]]
    if not len(w):
        return w, w[:, 0], w
    T, J, _ = _slope(field, w)
    values, vectors = torch.linalg.eigh((J + J.mT) / 2)
    return w, -values[:, -1], (T @ vectors[:, :, -1:])[:, :, 0]


def _slope(field: OneLayerField, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A tangent basis T (k, d, d − 1), the Jacobian of (7) in it, and T^T A(w)w."""
    k, d = w.shape
    T, product = tangent_basis(w), field.product(w)
    moved = torch.cat([w[:, None] + STEP * T.mT, w[:, None] - STEP * T.mT])  # (2k, d − 1, d)
    length = moved.norm(dim=-1, keepdim=True)
    ahead, back = (field.product((moved / length).reshape(-1, d)).reshape(2 * k, d - 1, d) * length).split(k)
    eigenvalues = (product * w).sum(1)[:, None, None]
    J = T.mT @ ((ahead - back) / (2 * STEP)).mT - eigenvalues * torch.eye(d - 1).to(w)
    return T, J, (T.mT @ product[:, :, None])[:, :, 0]


def _roughness_by_differences(field: Population, w: Tensor) -> float:
    """The largest ‖(A(v) − A(w))w‖/‖v − w‖ over all directions of v."""
    columns = []
    for u in tangent_basis(w[None])[0].mT:
        ahead, back = (torch.nn.functional.normalize(w + sign * STEP * u, dim=0) for sign in (1, -1))
        columns.append((field.matrix(ahead) - field.matrix(back)) @ w / (2 * STEP))
    return float(torch.linalg.matrix_norm(torch.stack(columns), ord=2))


def _rows_of(field: Population, w: Tensor, numeric: Tensor, worst: Tensor) -> np.ndarray:
    """A row of `COLUMNS` per rest point."""
    if not len(w):
        return np.empty((0, len(COLUMNS)))
    returned = push_and_follow(field, w, numeric, worst)
    rows = []
    for each, margin, back in zip(w, numeric, returned, strict=True):
        A = field.matrix(each)
        roughness = (field.roughness(each), _roughness_by_differences(field, each))
        margins = (field.stability_margin(each), float(margin))
        rows.append((float(each @ A @ each), gap_at(A, each), *roughness, *margins, float(back)))
    return np.array(rows)


def _points(fields: Sequence[tuple[Population, Tensor]]) -> xr.Dataset:
    """All rest points of some populations."""
    rows = np.concatenate([_rows_of(field, *rest_points(field, starts)) for field, starts in fields])
    return xr.Dataset({name: ("point", column) for name, column in zip(COLUMNS, rows.T, strict=True)})


def _certified(points: xr.Dataset) -> NDArray[np.bool_]:
    return np.asarray(points.gap > np.maximum(points.roughness, points.roughness_by_differences))


def _exceptions(points: xr.Dataset) -> tuple[Finding, ...]:
    """Certified points that are not stable, and formulas that disagree with differences or with the flow."""
    certified, far = _certified(points), abs(points.margin) > FAR * points.eigenvalue
    came_back, left = points.returned < 0.5, points.returned > 2
    size = points.eigenvalue + points.roughness
    agrees = np.where(points.margin > 0, came_back, left)
    n_unstable = float((certified & (points.margin <= 0)).sum())
    n_left = float((certified & ~came_back).sum())
    roughness_error = float((abs(points.roughness - points.roughness_by_differences) / size).max())
    margin_error = float((abs(points.margin - points.margin_by_differences) / size).max())
    n_wrong = float((far & ~agrees).sum())
    return (
        printed("certified_and_unstable", n_unstable, "certified points whose margin is not positive", high=0),
        printed("certified_and_left", n_left, "certified points that the flow leaves after a push", high=0),
        informative("n_certified", float(certified.sum()), "number of certified points", low=10),
        corrected("roughness_error", roughness_error, "ρ from its formula agrees with differences", high=1e-4),
        corrected("margin_error", margin_error, "the exact criterion agrees with differences of the flow", high=1e-4),
        corrected("sign_exceptions", n_wrong, "number of points at which its sign misjudges the flow", high=0),
        *shown(n_points=float(points.sizes["point"]), n_followed=float(far.sum())),
    )


def _lmes(found: Mapping[str, xr.Dataset]) -> tuple[Finding, ...]:
    """Unstable LMEs, which the flow leaves, of each kind of population."""
    unstable = {kind: float(((p.gap > 0) & (p.margin <= 0) & (p.returned > 1)).sum()) for kind, p in found.items()}
    relu = found["relu"].isel(point=np.flatnonzero(found["relu"].gap > 0))
    excess = float(((relu.margin - relu.gap) / relu.eigenvalue).min())
    return (
        corrected("unstable_lmes_relu", unstable["relu"], "ReLU without views: number of unstable LMEs", high=0),
        corrected("least_margin_over_gap_relu", excess, "ReLU without views: smallest (margin − λ_gap)/λ", low=-1e-9),
        corrected("unstable_lmes_example_views", unstable["example_views"], "with views: unstable LMEs", low=1),
        corrected("unstable_lmes_example_leaky", unstable["example_leaky"], "leaky ReLU: unstable LMEs", low=1),
        *shown(**{f"unstable_lmes_{kind}": count for kind, count in unstable.items()}),
    )


def _share(points: xr.Dataset) -> float:
    """The share of the stable points that is certified."""
    stable = points.margin > 0
    return float((_certified(points) & stable).sum() / stable.sum())


def _example_fields() -> dict[str, tuple[Population, Tensor]]:
    """Two Gaussians on a line, both behind the plane, and the filter along that line."""
    half, e = torch.tensor([0.5, 0.5]).double(), torch.tensor([[1.0, 0.0]]).double()
    leaky = torch.tensor([[-1.5, 0.0], [-2.0, 0.0]]).double()
    views = torch.tensor([[-0.5, 0.0], [-2.5, 0.0]]).double()
    return {
        "leaky ReLU: unstable": (MixtureCovariance(leaky, half, 1.0, activation="leaky_relu:0.5"), e),
        "ReLU with views: unstable": (AugmentedMixture(views, half, 1.0, activation=RELU), e),
    }


def _smoothed_models(setting: Setting) -> list[tuple[Population, Tensor]]:
    """Both models of Appendix B.1 under noise, with starts at their patterns and elsewhere."""
    starts = torch.cat([patterns_of(4, 5), starts_of(setting.pick(quick=8, full=24, paper=24), 5)])
    models: list[Model] = [
        LatentCategorical(patterns_of(4, 5), torch.full((4,), 0.25).double()),
        *(LatentSummation(patterns_of(4, 5), q) for q in setting.pick(quick=(0.2,), full=RATES, paper=RATES)),
    ]
    noises = setting.pick(quick=(0.1, 0.3), full=(0.05, 0.1, 0.2, 0.3, 0.6), paper=(0.05, 0.1, 0.2, 0.3, 0.6))
    return [(MixtureCovariance.of(model, noise), starts) for model in models for noise in noises]


def _even_categorical() -> LatentCategorical:
    return LatentCategorical(patterns_of(), torch.full((M,), 1 / M, dtype=torch.float64))


def _along_noise(noises: np.ndarray) -> xr.Dataset:
    """The first pattern of the categorical model with even probabilities, as noise moves it."""
    rows = []
    for noise in noises:
        field = MixtureCovariance.of(_even_categorical(), float(noise))
        w = power_iteration(field, patterns_of()[:1], max_steps=5000).weights[0]
        rows.append((gap_at(field.matrix(w), w), field.roughness(w), field.stability_margin(w)))
    columns = zip(("gap", "roughness", "margin"), np.array(rows).T, strict=True)
    return xr.Dataset({name: ("noise", column) for name, column in columns}, {"noise": noises})


def _of_sampled_models(n: int, n_fields: int) -> tuple[Finding, ...]:
    """Limits on samples, without and with views: pushed as far as ρ looks, and iterated back."""
    n_certified, n_left = 0, 0
    for q, (activation, augment) in itertools.islice(itertools.product((0.1, 0.2), _SAMPLED), n_fields):
        field = _sampled_field(q, n, activation, augment)
        limits = find_lmes(field, starts=patterns_of() + 0.1 * starts_of(M), max_steps=300)
        w = limits.weights[limits.certified]
        if not len(w):
            continue
        draw = torch.randn(w.shape, generator=generator("sample pushes", len(w)), dtype=torch.float64)
        pushed = w + SAMPLE_PUSH * torch.nn.functional.normalize(draw)
        end = power_iteration(field, pushed, max_steps=300, tolerance=1e-6).weights
        n_certified += len(w)
        n_left += int(((end - w).norm(dim=1) > SAMPLE_PUSH / 2).sum())
    return (
        printed("samples_certified_and_left", float(n_left), "samples: certified limits that do not return", high=0),
        informative("samples_certified", float(n_certified), "number of certified limits on samples", low=1),
    )


_SAMPLED = (("relu", 0.0), ("leaky_relu:0.2", 0.3), ("relu", 0.3), ("leaky_relu:0.2", 0.0))  # the last: noise of views


def _sampled_field(q: float, n: int, activation: str, augment: float) -> GatedCovariance:
    """Samples of the summation model; with views if `augment`, the noise of each view, is above 0."""
    draw = generator("thm1 samples", n)
    x = LatentSummation(patterns_of(), q).sample(n, noise_std=0.1, generator=draw)
    if not augment:
        return GatedCovariance(x, activation=activation)
    noise = augment * torch.randn(2, *x.shape, generator=draw, dtype=x.dtype)
    return GatedCovariance(x + noise[0], x + noise[1], activation=activation)


def _panels(categorical: xr.Dataset) -> list[Panel]:
    labels = {"gap": "λ_gap", "roughness": "ρ", "margin": "exact margin λ − λ_max(P(A + R)P)"}
    along = tuple(curve(label, categorical.noise, categorical[name]) for name, label in labels.items())
    paths = (
        _path("summation model: certified", MixtureCovariance.of(LatentSummation(patterns_of(), 0.2), 0.3)),
        _path("categorical model: not certified", MixtureCovariance.of(_even_categorical(), 0.1)),
        *(_path(label, field, e) for label, (field, e) in _example_fields().items()),
    )
    title = "Categorical model: never certified, always stable"
    return [
        Panel(title, "noise", "gap, roughness, margin", along, y_log=False),
        Panel("LMEs after a push: not all are stable", "time × λ", "distance from the LME", paths, x_log=False),
    ]


def _path(label: str, field: Population, near: Tensor | None = None) -> Curve:
    """The flow after a push away from a rest point in its worst direction."""
    w, _, worst = rest_points(field, patterns_of()[:1] if near is None else near)
    times = np.linspace(0, SPAN, 16)
    eigenvalue = float((field.product(w) * w).sum())
    flow = one_layer_flow(field, w + PUSH * worst, times=times / eigenvalue, tolerance=1e-9)
    return curve(label, times, (flow.weights - w).norm(dim=-1)[:, 0])
