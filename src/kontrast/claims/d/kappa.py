"""D.kappa: the eigenvalues of a kernel predict what it learns, and its test error (Simon et al. 2021)."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from kontrast.claims.d.domains import EXACT, by_level, cube, least, tangent_kernel
from kontrast.claims.evidence import Evidence, Finding, Panel, Verdict, corrected, curve, judged, printed, shown
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, largest
from kontrast.estimators import SpectralContrastive
from kontrast.kernels import FeatureKernel, InfiniteNetwork, TangentKernel
from kontrast.learnability import (
    MeasuredLearning,
    Parities,
    Spectrum,
    circle,
    circle_spectrum,
    eigensystem,
    hypercube,
    hypercube_spectrum,
    kappa,
    measure_learning,
    parities,
    predict_at_points,
    predict_learning,
    sphere_spectrum,
    zonal_polynomials,
)

DATA, DOMAIN = "mnist5k", 400  # digits that are the whole domain
SAMPLES = (16, 64, 160)
SHOWN = (2, 4, 8, 16, 32, 64, 110, 160, 210)
RIDGE_SAMPLES = (16, 64, 160, 230)
DIGIT_SAMPLES = (20, 50, 100, 200, 350)
SPHERE_SAMPLES = (16, 64, 128)
RIDGES = (0.01, 0.1)  # for k(x, x) = 1.5
ERROR, LEARNED, UNSEEN = "test error", "learnability", "error at unseen points"
TASKS = ("even or odd", "below five", "value", "all ten digits", "random")
SINGLE = tuple(f"{digit}" for digit in range(10))


@claim(
    "D.kappa",
    source="Paper D, Sec. 2.2 and Appendix C (Simon et al. 2021)",
    title="Eigenvalues predict what is learned, and the test error",
    printed="Learnabilities are L_i = λ_i/(λ_i + κ), where Σ_i L_i + δ/κ = n, and the test error is "
    "E_0 Σ_i (1 − L_i)² v_i² with E_0 = n/(n − Σ_i L_i²).",
    corrected="This holds without a ridge, and on infinite domains. On a finite domain, each point drawn once, a ridge "
    "shifts the eigenvalues: κ is that of λ_i + δ/M without a ridge, and L_i = λ_i/(λ_i + δ/M + κ). If n reaches the "
    "rank, κ is 0 and L is 1. The law is one of many dimensions, off by 0.05 on a circle and by 0.001 on S^7, and of "
    "points that are all equally easy to guess: for real images it is too optimistic, the more so the larger the share "
    "of them that is sampled. One κ per point, chosen so that each point recovers itself in n of M draws, corrects "
    "this. The law fails if points come in pairs that share what no other point has, such as x and −x under a ReLU "
    "network without biases.",
    recorded=Verdict.CORRECTED,
    cost=2,
)
def predicted(setting: Setting) -> Evidence:
    """Hypercube, circle, spheres, digits and the kernel of a contrastive model: predictions beside regressions."""
    on_cube, spheres = _cube_study(setting), _sphere_study(setting)
    digits, contrastive = _digits_study(setting), _contrastive_study(setting)
    unseen = "400 digits, NTK: error at unseen digits, one κ per point"
    labels = "Kernel of a contrastive model: learnability of labels"
    return judged(
        *on_cube.findings,
        *_other_domains(setting, spheres),
        *_digit_findings(digits),
        *_contrastive_findings(contrastive),
        data=digits.data(),
        panels=[
            *on_cube.panels,
            digits.panel("400 digits, NTK: test error", ERROR, ("even or odd", "below five", "all ten digits")),
            digits.panel(unseen, UNSEEN, ("even or odd", "1", "8")),
            contrastive.panel(labels, LEARNED, ("0", "1", "8", "even or odd", "random")),
            _sphere_panel(spheres),
        ],
        setting={**on_cube.setting, "digits": DOMAIN, "samples of digits": list(DIGIT_SAMPLES)}
        | {"spheres": list(spheres), "samples of spheres": list(SPHERE_SAMPLES)},
    )


def _at_most(name: str, number: float, statement: str, high: float) -> Finding:
    """An error, which is at least 0."""
    return corrected(name, number, statement, low=0.0, high=high)


def _other_domains(setting: Setting, spheres: Mapping[int, float]) -> tuple[Finding, ...]:
    """Pairs of points, saturation, circle and spheres."""
    saturated_kappa, saturated_apart = _saturated(setting)
    in_pairs = _pairs_error(setting)
    return (
        corrected("rms_hypercube_in_pairs", in_pairs, "no biases, x pairs with −x: rms error of L", low=0.03, high=1.0),
        _at_most("saturated_kappa", saturated_kappa, "κ when n reaches the rank, without a ridge", 0.0),
        _at_most("saturated_apart", saturated_apart, "L is 1 there, predicted and measured: largest error", EXACT),
        _at_most("rms_circle", _circle_error(setting), "128 points of a circle: rms error of L", 0.05),
        _at_most("rms_sphere_2", spheres[2], "continuous circle: rms error of L over degrees", 0.1),
        _at_most("rms_sphere_8", spheres[8], "sphere in 8 dimensions: rms error of L over degrees", 0.01),
        *shown(**{f"rms_sphere_{d}": error for d, error in spheres.items()}),
    )


def _digit_findings(digits: _LabelStudy) -> tuple[Finding, ...]:
    """Test errors of labels of 400 digits."""
    ratio = "test error predicted over measured, minus 1"
    at_points = digits.worst(TASKS, at_points=True)
    return (
        _at_most("worst_error_ratio_digits", digits.worst(TASKS, up_to=DOMAIN // 4), f"n ≤ 100: {ratio}", 0.08),
        corrected("worst_error_ratio_one_kappa", digits.worst(TASKS), f"n ≤ 350, one κ for all: {ratio}", low=0.1),
        _at_most("worst_error_ratio_kappa_a_point", at_points, "one κ per point, unseen digits: ratio minus 1", 0.08),
        _at_most("single_digit_kappa_a_point", digits.worst(SINGLE, at_points=True), "the same, single digits", 0.15),
        *shown(single_digit_one_kappa=digits.worst(SINGLE)),
    )


def _contrastive_findings(study: _LabelStudy) -> tuple[Finding, ...]:
    """Labels under the kernel of a contrastive model."""
    ratio, correlation = study.worst(TASKS, at_points=True), study.correlation
    return (
        _at_most("worst_learnability_contrastive", study.learnability_apart, "contrastive: largest error of L", 0.1),
        _at_most("worst_error_ratio_contrastive", ratio, "unseen digits, one κ per point: ratio minus 1", 0.08),
        corrected("correlation_of_labels_contrastive", correlation, "correlation of L over labels", low=0.9, high=1.0),
    )


@dataclass(frozen=True)
class _CubeStudy:
    findings: tuple[Finding, ...]
    panels: tuple[Panel, ...]
    setting: dict[str, object]


def _cube_study(setting: Setting) -> _CubeStudy:
    """All 256 parities of {±1}^8 as targets of regression from random points, without and with a ridge."""
    d, (n_draws, n_ridged) = 8, setting.pick(quick=(50, 25), full=(100, 300), paper=(300, 300))
    ridges = setting.pick(quick=RIDGES[:1], full=RIDGES, paper=RIDGES)
    K, basis, levels = cube(d, setting.device), parities(d), hypercube_spectrum(tangent_kernel(d), d)
    f = basis.functions.to(setting.device)
    plain = {n: measure_learning(K, f, n, n_draws=n_draws, generator=generator("cube", n)) for n in SAMPLES}
    with_ridge = {}
    for n, ridge in itertools.product(RIDGE_SAMPLES, ridges):
        draw = generator("cube with ridge", n)
        found = measure_learning(K, f, n, n_draws=n_ridged, generator=draw, ridge=ridge)
        with_ridge[n, ridge] = by_level(found, basis).cpu()
    rest = [n for n in SHOWN if n not in plain]
    means = plain | {n: measure_learning(K, f, n, n_draws=10, generator=generator("shown", n)) for n in rest}
    panels = (
        _cube_panel(levels, {n: by_level(means[n], basis).cpu() for n in SHOWN}),
        _ridge_panel(levels, with_ridge),
    )
    about = {"hypercube": 2**d, "draws": n_draws, "draws with ridge": n_ridged, "ridges": list(ridges)}
    return _CubeStudy((*_with_ridge(levels, with_ridge), *_without_ridge(levels, basis, plain)), panels, about)


def _without_ridge(levels: Spectrum, basis: Parities, plain: Mapping[int, MeasuredLearning]) -> tuple[Finding, ...]:
    rms, ratios = [], []
    for n, found in plain.items():
        expected = predict_learning(levels, levels.counts, n, replacement=False)
        apart = found.learnability.mean(0).cpu() - expected.learnabilities[basis.levels]
        words = f"hypercube, no ridge, n = {n}: rms error of L over eigenfunctions"
        rms.append(_at_most(f"rms_hypercube_{n}", float(apart.square().mean().sqrt()), words, 0.01))
        ratios.append(_mixture_ratio(levels, basis, found, n))
    words = "hypercube: test error predicted over measured, minus 1"
    return (*rms, _at_most("worst_error_ratio_hypercube", largest(*ratios), words, 0.1))


def _with_ridge(levels: Spectrum, measured: Mapping[tuple[int, float], Tensor]) -> tuple[Finding, ...]:
    """The largest error of L over levels, for the law as printed and with shifted eigenvalues."""

    def worst(spectrum: Spectrum) -> float:
        errors = []
        for (n, ridge), found in measured.items():
            expected = predict_learning(spectrum, levels.counts, n, ridge=ridge, replacement=False)
            errors.append(float((found - expected.learnabilities).abs().max()))
        return largest(*errors)

    words = "finite domain with a ridge"
    return (
        printed("worst_ridge_unshifted", worst(_unshifted(levels)), f"{words}, as printed: error of L", high=0.02),
        _at_most("worst_ridge_shifted", worst(levels), f"{words}, eigenvalues λ + δ/M: error of L", 0.02),
    )


def _unshifted(levels: Spectrum) -> Spectrum:
    """The same eigenvalues for the law as printed, which ignores the size of the domain."""
    return Spectrum(levels.eigenvalues, levels.counts, math.inf)


def _mixture_ratio(levels: Spectrum, basis: Parities, found: MeasuredLearning, n: int) -> float:
    """|predicted/measured − 1| of the test error of a target with the power 1/M in every parity.

    Its error, over random signs of its coefficients, is the mean of the parities' errors.
    """
    error = predict_learning(levels, levels.counts / len(basis.levels), n, replacement=False).test_error
    return abs(float(error) / float(found.test_error.mean()) - 1)


def _cube_panel(levels: Spectrum, measured: Mapping[int, Tensor]) -> Panel:
    sizes = np.unique(np.geomspace(1, levels.n_points, 40).round())
    expected = [predict_learning(levels, levels.counts, int(n), replacement=False).learnabilities for n in sizes]
    lines, points, chosen = torch.stack(expected), torch.stack(list(measured.values())), (0, 1, 2, 3, 8)
    curves = [curve(f"{k} coordinates, predicted", sizes, lines[:, k], "dashed") for k in chosen]
    curves += [curve(f"{k} coordinates", list(measured), points[:, k]) for k in chosen]
    title = "Hypercube 2^8: L = λ/(λ + κ) and measured"
    return Panel(title, "samples n", "learnability of a parity", tuple(curves), y_log=False)


def _ridge_panel(levels: Spectrum, measured: Mapping[tuple[int, float], Tensor]) -> Panel:
    ridge, k = RIDGES[0], 3
    sizes = np.arange(2, levels.n_points + 1, 2)

    def line(spectrum: Spectrum) -> list[float]:
        found = (predict_learning(spectrum, levels.counts, int(n), ridge=ridge, replacement=False) for n in sizes)
        return [float(each.learnabilities[k]) for each in found]

    curves = (
        curve("measured", RIDGE_SAMPLES, [float(measured[n, ridge][k]) for n in RIDGE_SAMPLES]),
        curve("predicted, as printed", sizes, line(_unshifted(levels)), "plain"),
        curve("predicted, λ + δ/M", sizes, line(levels), "dashed"),
    )
    title = f"With a ridge of {ridge:g}, each point drawn once: parities of {k} coordinates"
    return Panel(title, "samples n", "learnability", curves, x_log=False, y_log=False)


def _pairs_error(setting: Setting) -> float:
    """Rms error of L at n = 160 for an NTK without biases, whose odd levels from 3 on are 0."""
    d, n, n_draws = 8, 160, setting.pick(quick=15, full=100, paper=100)
    kernel = TangentKernel(InfiniteNetwork(depth=1, input_scale=1 / d))
    points, basis, levels = hypercube(d).to(setting.device), parities(d), hypercube_spectrum(kernel, d)
    f = basis.functions.to(setting.device)
    found = measure_learning(kernel(points), f, n, n_draws=n_draws, generator=generator("pairs", n))
    expected = predict_learning(levels, levels.counts, n, replacement=False).learnabilities[basis.levels]
    return float((found.learnability.mean(0).cpu() - expected).square().mean().sqrt())


def _saturated(setting: Setting) -> tuple[float, float]:
    """κ, and the largest distance of L of the d coordinates from 1, for the kernel x·y and more than d samples."""
    d, n = 6, 40
    points = hypercube(d).to(setting.device)
    levels = hypercube_spectrum(lambda x, y: x @ y.mT, d)
    expected = predict_learning(levels, levels.counts, n, replacement=False)
    found = measure_learning(points @ points.mT, points, n, n_draws=4, generator=generator("saturated"))
    apart = largest(abs(float(expected.learnabilities[1]) - 1), float((found.learnability - 1).abs().max()))
    return largest(kappa(_unshifted(levels), n), kappa(levels, n, replacement=False)), apart


def _circle_error(setting: Setting) -> float:
    """Rms error of L of the cosines over 128 points of a circle."""
    M, kernel = 128, tangent_kernel(2)
    n_draws = setting.pick(quick=50, full=300, paper=300)
    levels, points = circle_spectrum(kernel, M), circle(M).to(setting.device)
    frequencies = torch.arange(len(levels.eigenvalues), dtype=torch.float64, device=setting.device)
    angles = torch.atan2(points[:, 1], points[:, 0])
    waves = torch.cos(angles[:, None] * frequencies)
    apart = []
    for n in (16, 32, 64):
        found = measure_learning(kernel(points), waves, n, n_draws=n_draws, generator=generator("circle", n))
        expected = predict_learning(levels, levels.counts, n, replacement=False)
        apart.append(found.learnability.mean(0).cpu() - expected.learnabilities)
    return float(torch.cat(apart).square().mean().sqrt())


def _sphere_study(setting: Setting) -> dict[int, float]:
    """Rms error of L over degrees and sizes, by the dimension d of S^{d−1}; points are drawn from all of the sphere."""
    dimensions = setting.pick(quick=(2, 4, 8), full=(2, 3, 4, 5, 6, 8, 12), paper=(2, 3, 4, 5, 6, 8, 12, 16))
    n_draws = setting.pick(quick=15, full=200, paper=400)
    return {d: _sphere_error(d, n_draws, setting.device) for d in dimensions}


def _sphere_error(d: int, n_draws: int, device: str, n_degrees: int = 10) -> float:
    """L of degree k, the mean over its harmonics, is λ_k Tr(K_DD^−1 P_k(DD^T)) by the addition theorem."""
    kernel, draw = tangent_kernel(d), generator("sphere", d)
    levels = sphere_spectrum(kernel, d, 60 if d == 2 else 30)  # the power of higher degrees acts as a ridge
    values, apart = levels.eigenvalues[:n_degrees].to(device), []
    for n in SPHERE_SAMPLES:
        learned = torch.zeros_like(values)
        for _ in range(n_draws):
            x = torch.randn(n, d, generator=draw, dtype=torch.float64).to(device)
            x = torch.nn.functional.normalize(x, dim=1)
            zonal = zonal_polynomials(x @ x.mT, d, n_degrees)
            learned += values * (torch.linalg.inv(kernel(x)) * zonal).sum((1, 2)) / n_draws
        apart.append(learned.cpu() - predict_learning(levels, levels.counts, n).learnabilities[:n_degrees])
    return float(torch.cat(apart).square().mean().sqrt())


def _sphere_panel(spheres: Mapping[int, float]) -> Panel:
    curves = (curve("NTK, points drawn at random", list(spheres), list(spheres.values())),)
    return Panel("The prediction needs many dimensions", "dimensions d of the sphere S^(d−1)", "rms error of L", curves)


@dataclass(frozen=True, eq=False)
class _LabelStudy:
    """Labels of digits, of mean square 1: `ERROR`, `LEARNED` and `UNSEEN`, each (n, label)."""

    names: tuple[str, ...]
    measured: Mapping[str, Tensor]
    predicted: Mapping[str, Tensor]  # `UNSEEN` with one κ per point

    def of(self, values: Tensor, name: str) -> Tensor:
        """The column of a label; for "all ten digits" the mean over single digits."""
        if name == "all ten digits":
            return torch.stack([self.of(values, digit) for digit in SINGLE]).mean(0)
        return values[:, self.names.index(name)]

    def worst(self, names: Sequence[str], *, up_to: int = DOMAIN, at_points: bool = False) -> float:
        """Largest |predicted/measured − 1| of the test error; `at_points`, of that at unseen points, with their κ."""
        what = UNSEEN if at_points else ERROR
        expected, measured = self.predicted[what], self.measured[what]
        ratios = torch.stack([self.of(expected, name) / self.of(measured, name) - 1 for name in names], dim=1)
        return float(ratios[[n <= up_to for n in DIGIT_SAMPLES]].abs().max())

    @property
    def learnability_apart(self) -> float:
        """Largest error of L."""
        return float((self.measured[LEARNED] - self.predicted[LEARNED]).abs().max())

    @property
    def correlation(self) -> float:
        """The correlation over labels of learnabilities, predicted and measured; the smallest over n."""
        pairs = zip(self.measured[LEARNED], self.predicted[LEARNED], strict=True)
        return least(float(torch.corrcoef(torch.stack(pair))[0, 1]) for pair in pairs)

    def data(self) -> xr.Dataset:
        """Errors of labels over n."""
        parts = {"test_error": self.measured[ERROR], "predicted_test_error": self.predicted[ERROR]}
        named = {name: (("n", "label"), values.numpy()) for name, values in parts.items()}
        return xr.Dataset(named, coords={"n": list(DIGIT_SAMPLES), "label": list(self.names)})

    def panel(self, title: str, what: str, names: Sequence[str]) -> Panel:
        """One quantity of some labels over n, measured and predicted."""
        measured, expected = self.measured[what], self.predicted[what]
        curves = [curve(name, DIGIT_SAMPLES, self.of(measured, name)) for name in names]
        curves += [curve(f"{name}, predicted", DIGIT_SAMPLES, self.of(expected, name), "dashed") for name in names]
        return Panel(title, "samples n", what, tuple(curves), y_log=False)


def _digits_study(setting: Setting) -> _LabelStudy:
    x, y = _domain(setting)
    return _label_study(setting, tangent_kernel(x.shape[1])(x), y, ridge=0.0)


def _contrastive_study(setting: Setting) -> _LabelStudy:
    """The kernel of outputs of `SpectralContrastive`, trained on other digits without labels, plus a constant."""
    x, y = _domain(setting)
    model = _contrastive_model(setting.pick(quick=1000, full=4000, paper=4500), setting.device)
    K = FeatureKernel(lambda rows: torch.as_tensor(model.transform(rows)).to(rows))(x)
    scale = float(K.diagonal().mean())
    return _label_study(setting, K + 0.1 * scale, y, ridge=0.1 * scale)


@functools.lru_cache(maxsize=2)
def _contrastive_model(n: int, device: str) -> SpectralContrastive:
    data, taken = Setting().dataset(DATA), _in_domain(Setting())
    others = torch.ones(len(data), dtype=torch.bool).index_fill_(0, taken, False).nonzero().flatten()
    x = data.rows[others[torch.randperm(len(others), generator=generator("contrasted"))[:n]]]
    return SpectralContrastive(
        32, width=1024, n_views=4, power=0.5, image_shape=(28, 28), device=device, dtype="float64"
    ).fit(x)


def _domain(setting: Setting) -> tuple[Tensor, Tensor]:
    """The digits that make up the domain, and their labels."""
    data, taken = setting.dataset(DATA), _in_domain(setting)
    assert data.y is not None
    return data.rows[taken].to(setting.device), data.y[taken].to(setting.device)


def _in_domain(setting: Setting) -> Tensor:
    """Indices of the digits that make up the domain."""
    return setting.dataset(DATA).draw(DOMAIN, generator=generator("whole domain"))


def _label_study(setting: Setting, K: Tensor, y: Tensor, *, ridge: float) -> _LabelStudy:
    n_draws = setting.pick(quick=100, full=300, paper=300)
    labels = _labels(y)
    f = torch.stack(list(labels.values()), dim=1)
    f = f / f.square().mean(0).sqrt()
    system = eigensystem(K)
    powers, measured, predicted = system.powers(f), [], []
    for n in DIGIT_SAMPLES:
        found = measure_learning(K, f, n, n_draws=n_draws, generator=generator("labels", n), ridge=ridge)
        expected = predict_learning(system.spectrum, powers, n, ridge=ridge, replacement=False)
        unseen = predict_at_points(K, f, n, ridge=ridge).unseen_error
        measured.append({ERROR: found.test_error, LEARNED: found.learnability, UNSEEN: found.unseen_error})
        predicted.append({ERROR: expected.test_error, LEARNED: expected.learnability, UNSEEN: unseen})

    def stacked(rows: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        return {what: torch.stack([row[what].cpu() for row in rows]) for what in rows[0]}

    means = [{what: values.mean(0) for what, values in row.items()} for row in measured]
    return _LabelStudy(tuple(labels), stacked(means), stacked(predicted))


def _labels(y: Tensor) -> dict[str, Tensor]:
    """Targets by name, of mean 0 or nearly so."""
    coins = torch.randint(0, 2, y.shape, generator=generator("coins")).to(y)
    single = {f"{digit}": (y == digit).double() for digit in range(10)}
    return {
        "even or odd": 1.0 - 2 * (y % 2).double(),
        "below five": 1.0 - 2 * (y >= 5).double(),
        "value": y.double() - y.double().mean(),
        "random": 2.0 * coins.double() - 1,
        **{digit: values - values.mean() for digit, values in single.items()},
    }
