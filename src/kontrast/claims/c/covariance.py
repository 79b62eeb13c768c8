"""Paper C, Sec. 2: the contrastive covariance, the losses that are its gradient, and its limit for many samples."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from itertools import product

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from kontrast.claims.evidence import Criterion, Evidence, Panel, Verdict, curve, evidence
from kontrast.claims.panels import guide
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, largest
from kontrast.linalg import fit_power_law
from kontrast.patterns import (
    GaussianImportance,
    ImportanceRule,
    InfoNCEImportance,
    PairLaplacian,
    SpectralImportance,
    TripletImportance,
    UniformImportance,
    adjusted_covariance,
    contrastive_covariance,
    gaussian_features,
    pair_laplacian,
)

EXACT = 1e-12
LOOP_SIZE = 200  # samples at which the double loop is timed


@claim(
    "C.cov",
    source="Paper C, (3)",
    title="The contrastive covariance is a form of a graph Laplacian",
    printed="C_α[a, b] = 1/(2N²) Σ_ij α_ij [(a_i − a_j)(b_i − b_j)^T − (a_i − a'_i)(b_i − b'_i)^T], which is a^T L "
    "b/N² − Δa^T diag(α1) Δb/(2N²) with L = diag(α_s 1) − α_s, for any α, symmetric or not.",
    recorded=Verdict.HOLDS,
)
def covariance(setting: Setting) -> Evidence:
    """Every form in which α can be given against the double loop, with views; and the time that both take."""
    n = setting.pick(quick=40, full=LOOP_SIZE, paper=LOOP_SIZE)
    a, a_view, b, b_view = _samples(n)
    errors = {}
    for name, (laplacian, alpha, pull) in _kinds(n).items():
        found = contrastive_covariance(a, b, positives=a_view, positives_b=b_view, importance=laplacian)
        expected = double_loop(a, b, alpha, a_view, b_view, pull)
        errors[f"error_{name}"] = float((found - expected).norm() / expected.norm())
    loop, fast = _times(setting.pick(quick=(50, 100), full=(50, 100, LOOP_SIZE), paper=(50, 100, LOOP_SIZE)))
    kernel = GaussianImportance(2.0)(a, a_view).alpha
    printed, split = (_of(alpha, a, a_view) for alpha in (kernel + torch.eye(n).to(a), kernel))
    return evidence(
        {
            **errors,
            "largest_error": largest(*errors.values()),
            f"times_faster_than_the_loop_at_{LOOP_SIZE}": _loop_seconds(loop) / fast[LOOP_SIZE],
            "difference_of_3_and_15": float((printed - split).norm() / printed.norm()),
        },
        _CRITERIA_COV,
        panels=[
            Panel(
                "Time for one covariance of 8 outputs",
                "samples N",
                "seconds",
                (
                    curve("double loop (3)", list(loop), list(loop.values())),
                    curve("Laplacian form, α given", list(fast), list(fast.values())),
                ),
            )
        ],
        setting={"samples": n, "views": True},
        warnings=[
            "(3) sums its second term over all j, (15) in the paper's proof over j ≠ i: for α_ii ≠ 0, as kernels have "
            "it, they differ by 1/(2N²) Σ_i α_ii Δa_i Δb_i^T, of order 1/N. kontrast's own α have α_ii = 0"
        ],
    )


_CRITERIA_COV = (
    Criterion("error_asymmetric", "an α that is not symmetric: relative difference from the double loop", high=EXACT),
    Criterion("error_sparse", "a sparse α", high=EXACT),
    Criterion("error_uniform", "uniform α in closed form", high=EXACT),
    Criterion("error_features", "α = φφ^T from φ alone (Def. 1)", high=EXACT),
    Criterion("error_streamed_gaussian", "Gaussian α, never held as a whole", high=EXACT),
    Criterion("error_streamed_info_nce", "that of InfoNCE, neither symmetric nor held", high=EXACT),
)


def double_loop(a: Tensor, b: Tensor, alpha: Tensor, a_view: Tensor, b_view: Tensor, pull: Tensor) -> Tensor:
    """(3) as it is printed, pair by pair; `pull` is Σ_j α_ij."""
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


def _kinds(n: int) -> dict[str, tuple[PairLaplacian, Tensor, Tensor]]:
    """Laplacians by the form α was given in, each with α and β in full."""
    a, view, _, _ = _samples(n)
    draw = generator("alpha", n)
    alpha = torch.rand(n, n, generator=draw, dtype=torch.float64)
    few, phi = alpha * (alpha > 0.9), torch.rand(n, 4, generator=draw, dtype=torch.float64)
    ones, kernel = torch.ones_like(alpha).fill_diagonal_(0), (phi @ phi.mT).fill_diagonal_(0)
    kinds = {
        "asymmetric": (pair_laplacian(alpha), alpha, alpha.sum(1)),
        "sparse": (pair_laplacian(few.to_sparse()), few, few.sum(1)),
        "uniform": (pair_laplacian("uniform", a), ones, ones.sum(1)),
        "features": (PairLaplacian.of_features(phi), kernel, kernel.sum(1)),
    }
    for name, rule in (("gaussian", GaussianImportance(2.0)), ("info_nce", InfoNCEImportance(2.0, 0.5))):
        weights = rule(a, view)
        in_blocks = pair_laplacian(rule, a, view, memory=16 * 32 * n)  # 16 rows at a time
        kinds[f"streamed_{name}"] = (in_blocks, weights.alpha, weights.positive)
    return kinds


def _of(alpha: Tensor, a: Tensor, view: Tensor) -> Tensor:
    return contrastive_covariance(a, positives=view, importance=alpha)


def _times(loop_sizes: tuple[int, ...]) -> tuple[dict[int, float], dict[int, float]]:
    """Seconds by the number of samples, of the double loop and of the Laplacian form with α as a matrix."""
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


def _loop_seconds(loop: Mapping[int, float]) -> float:
    """Of the double loop at LOOP_SIZE, extrapolated by N² where it was not run."""
    last = max(loop)
    return loop[last] * (LOOP_SIZE / last) ** 2


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


TEMPERATURES = (1e-3, 0.1, 1.0, 10.0, 1e3)
EPSILONS = (0.0, 0.1, 1.0, 10.0)
MARGINS = (0.0, 0.3, 3.0)


@claim(
    "C.alpha",
    source="Paper C, (1), (2)",
    title="Contrastive losses are energies with the pairwise importance held fixed",
    printed="Many contrastive losses are α-CL with an α of their own: quadratic α_ij = const, InfoNCE (ε = 0) α_ij = "
    "e^{−d_ij²/τ}/Σ_{k≠i} e^{−d_ik²/τ}, triplet. That is −∇L = N² ∇ tr C_{sg(α)}[f].",
    recorded=Verdict.HOLDS,
)
def alpha(setting: Setting) -> Evidence:
    """Both gradients by the weights of a ReLU network, for every loss, temperature, ε and margin."""
    n = setting.pick(quick=24, full=128, paper=256)
    seeds = setting.seeds(quick=2, full=5, paper=5)
    found = {
        name: [_gradients_apart(rule, n, seed) for rule in rules for seed in seeds] for name, rules in _LOSSES.items()
    }
    apart = {f"apart_{name}": largest(*(pair[0] for pair in pairs)) for name, pairs in found.items()}
    ratios = {f"ratio_{name}": max((p[1] for p in pairs), key=lambda r: abs(r - 1)) for name, pairs in found.items()}
    loose = [_through_alpha(n, seed) for seed in seeds]
    return evidence(
        {
            **apart,
            **ratios,
            "apart_without_stop_gradient": min(loose),
            "curl_gaussian_with_views": _curl(GaussianImportance(), views=True),
            "curl_gaussian_without_views": _curl(GaussianImportance(), views=False),
            "curl_info_nce_with_views": _curl(InfoNCEImportance(1.0, 0.5), views=True),
        },
        _CRITERIA_ALPHA,
        panels=[
            Panel(
                "InfoNCE: −∇L against N²∇E",
                "temperature τ",
                "relative difference",
                tuple(
                    curve(
                        f"ε = {epsilon:g}",
                        TEMPERATURES,
                        [
                            max(
                                largest(
                                    *(_gradients_apart(InfoNCEImportance(tau, epsilon), n, seed)[0] for seed in seeds)
                                ),
                                1e-17,
                            )
                            for tau in TEMPERATURES
                        ],
                    )
                    for epsilon in EPSILONS
                ),
            )
        ],
        setting={"samples": n, "n_seeds": len(seeds), "temperatures": list(TEMPERATURES), "epsilons": list(EPSILONS)},
        warnings=[
            "with views the update of the Gaussian α is the gradient of no function (its Jacobian is not symmetric), "
            "as α does not depend on the distance of the views: its loss must hold Σ_j α_ij fixed in the second term",
            "the spectral loss is an α-CL only on outputs of length 1 and with a weight of its own, 2, on the views: "
            "its α_ij = 2 f_i·f_j/(N − 1) may be negative and does not sum to 2",
        ],
    )


_LOSSES: dict[str, tuple[ImportanceRule, ...]] = {
    "quadratic": (UniformImportance(),),
    "info_nce": tuple(InfoNCEImportance(tau, epsilon) for tau in TEMPERATURES for epsilon in EPSILONS),
    "triplet": tuple(TripletImportance(margin) for margin in MARGINS),
    "spectral": (SpectralImportance(),),
    "gaussian": tuple(GaussianImportance(tau) for tau in TEMPERATURES),
}
_CRITERIA_ALPHA = (
    Criterion("apart_quadratic", "quadratic loss: relative difference of −∇L and N²∇E", high=1e-10),
    Criterion("apart_info_nce", "InfoNCE, any τ and ε", high=1e-10),
    Criterion("apart_triplet", "triplet loss, any margin", high=1e-10),
    Criterion("apart_spectral", "spectral loss, with its own weight on the views", high=1e-10),
    Criterion("apart_gaussian", "Gaussian α, with the weight of the views held fixed in the loss", high=1e-10),
    Criterion("apart_without_stop_gradient", "and α must be held fixed: with it moving ∇E is another", low=1e-3),
)


def _batch(n: int, seed: int, *, unit: bool = False) -> tuple[nn.Module, Tensor, Tensor]:
    """A network and its outputs of n samples and of a second view of each."""
    draw = generator("batch", n, seed)
    x = torch.randn(n, 6, generator=draw, dtype=torch.float64)
    view = x + 0.3 * torch.randn(n, 6, generator=draw, dtype=torch.float64)
    net = Setting().net(x, 32, 4, seed=seed)
    f, f_view = net(x), net(view)
    if unit:
        f, f_view = nn.functional.normalize(f, dim=1), nn.functional.normalize(f_view, dim=1)
    return net, f, f_view


def _gradients_apart(rule: ImportanceRule, n: int, seed: int) -> tuple[float, float]:
    """How far −∇L is from N²∇E relative to it, and the ratio of both along it."""
    net, f, view = _batch(n, seed, unit=isinstance(rule, SpectralImportance))
    loss = -_gradient(rule.loss(f, view), net)
    energy = _gradient(n**2 * torch.trace(contrastive_covariance(f, positives=view, importance=rule)), net)
    square = float(energy @ energy)
    return math.sqrt(float((loss - energy).square().sum()) / square), float(loss @ energy) / square


def _through_alpha(n: int, seed: int) -> float:
    """The same for InfoNCE with gradients that flow into α as well."""
    net, f, view = _batch(n, seed)
    loss = -_gradient(InfoNCEImportance().loss(f, view), net)
    squares = (f[:, None] - f[None]).square().sum(2) / 2
    moving = torch.softmax((-squares).masked_fill(torch.eye(n, dtype=torch.bool, device=f.device), -math.inf), dim=1)
    energy = _gradient((moving * squares).sum() - ((f - view).square().sum(1) / 2).sum(), net)
    return float((loss - energy).norm() / loss.norm())


def _gradient(value: Tensor, net: nn.Module) -> Tensor:
    parts = torch.autograd.grad(value, tuple(net.parameters()), retain_graph=True)
    return torch.cat([part.flatten() for part in parts])


def _curl(rule: ImportanceRule, *, views: bool, n: int = 5, step: float = 1e-5) -> float:
    """‖J − J^T‖/‖J‖ of the field N²∇E_{sg(α)} of the outputs: 0 for the gradient of a function."""
    start = torch.randn(2 * n if views else n, 2, generator=generator("curl"), dtype=torch.float64)

    def field(flat: Tensor) -> Tensor:
        rows = flat.reshape(start.shape).requires_grad_()
        view = rows[n:] if views else None
        energy = torch.trace(contrastive_covariance(rows[:n], positives=view, importance=rule))
        return torch.autograd.grad(energy, rows)[0].flatten()

    flat, basis = start.flatten(), torch.eye(start.numel(), dtype=torch.float64)
    J = torch.stack([(field(flat + step * e) - field(flat - step * e)) / (2 * step) for e in basis])
    return float((J - J.mT).norm() / J.norm())


N_INPUTS = 7
NOISE = 0.5  # standard deviation of the augmentation
TAU = 0.5
RATE = (-0.55, -0.45)


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
    sizes = setting.pick(quick=(32, 64, 128, 256), full=(32, 64, 128, 256, 512, 1024), paper=_TO_2048)
    n_draws = setting.pick(quick=120, full=200, paper=400)
    limits = {(alpha, noise): _limit(alpha, noise) for alpha in ("uniform", "gaussian") for noise in (0.0, NOISE)}
    distances: dict[str, list[float]] = {name: [] for name in _CASES}
    offsets: dict[str, list[float]] = {"gaussian_augmented": [], "views": []}
    negative = []
    for n in sizes:
        found = _draws(n, n_draws)
        for name, key in _CASES.items():
            distances[name].append(_rms(found[name], limits[key]))
        for name, values in offsets.items():
            values.append(_offset(found[name], limits[_CASES["gaussian_augmented"]]))
        negative.append(float((torch.linalg.eigvalsh(found["gaussian_augmented"])[:, 0] < 0).double().mean()))
    data = xr.Dataset({name: ("n", values) for name, values in distances.items()}, coords={"n": list(sizes)})
    x0 = torch.randn(256, N_INPUTS, generator=generator("identity"), dtype=torch.float64)
    features = gaussian_features(_g(x0)[:, 1:2], temperature=TAU, order=80, lower=0.0)
    dense = contrastive_covariance(_g(x0), importance=GaussianImportance(TAU)(_g(x0)[:, 1:2]).alpha)
    adjusted = adjusted_covariance(_g(x0), features.values)
    return evidence(
        {
            **{f"rate_{name}": fit_power_law(sizes, distances[name]) for name in _CASES},
            "finite_n_identity": float((dense - adjusted).norm() / dense.norm()),
            "features_cut_off": features.error,
            "limit_two_ways": largest(*(_limit_apart(noise) for noise in (0.0, NOISE))),
            "share_not_psd_at_fewest": negative[0],
            "share_not_psd_at_most": negative[-1],
            "offset_with_alpha_of_samples": offsets["gaussian_augmented"][-1],
            "offset_with_alpha_of_views": offsets["views"][-1],
        },
        _CRITERIA_LEMMA_2,
        data=data,
        panels=[
            Panel(
                "Distance from the limit, over many draws",
                "samples N",
                "RMS of ‖C_α − limit‖/‖limit‖",
                (
                    *(curve(name.replace("_", ", "), sizes, distances[name]) for name in _CASES),
                    guide(sizes, distances["uniform"], -0.5, "N^−1/2"),
                ),
            ),
            Panel(
                "Gaussian α must be that of the samples before augmentation",
                "samples N",
                "‖mean C_α − limit‖/‖limit‖ for (x_1, relu x_1)",
                (
                    curve("α of the samples", sizes, offsets["gaussian_augmented"]),
                    curve("α of their views", sizes, offsets["views"]),
                ),
                y_log=False,
            ),
            Panel(
                "With views C_α need not be positive semi-definite",
                "samples N",
                "share of draws with a negative eigenvalue",
                (curve("Gaussian α", sizes, negative),),
                y_log=False,
            ),
        ],
        setting={"samples": list(sizes), "draws": n_draws, "temperature": TAU, "noise": NOISE, "d": N_INPUTS},
        warnings=[
            "without augmentation (4) is an identity at every N, for the samples' own distribution: only that this "
            "tends to the population's takes many samples",
            "with augmentation α must be that of the samples before it, as Def. 1 has it: α of the views, as losses in "
            "practice have it, leads to another limit",
        ],
    )


_TO_2048 = (32, 64, 128, 256, 512, 1024, 2048)
_CASES = {
    "uniform": ("uniform", 0.0),
    "uniform_augmented": ("uniform", NOISE),
    "gaussian": ("gaussian", 0.0),
    "gaussian_augmented": ("gaussian", NOISE),
}
_CRITERIA_LEMMA_2 = (
    *(
        Criterion(f"rate_{name}", f"exponent of the distance in N, {words}", low=RATE[0], high=RATE[1])
        for name, words in (
            ("uniform", "uniform α"),
            ("uniform_augmented", "uniform α with augmentation"),
            ("gaussian", "Gaussian α"),
            ("gaussian_augmented", "Gaussian α with augmentation"),
        )
    ),
    Criterion("finite_n_identity", "without augmentation it is an identity at finite N", high=1e-10),
    Criterion("limit_two_ways", "the limit by the features (13) is that by the kernel", high=1e-10),
)


def _g(x: Tensor) -> Tensor:
    """What the covariance is taken of, (n, 1 + N_INPUTS): x_1, relu x_1 and the other inputs."""
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
    found: dict[str, list[Tensor]] = {name: [] for name in (*_CASES, "views")}
    for _ in range(n_draws):
        x0, first, second = torch.randn(3, n, N_INPUTS, generator=draw, dtype=torch.float64)
        x, view = _g(x0 + NOISE * first), _g(x0 + NOISE * second)
        for name, outputs in (("uniform", None), ("gaussian", _g(x0)[:, 1:2]), ("views", x[:, 1:2])):
            laplacian = pair_laplacian(
                "uniform" if outputs is None else GaussianImportance(TAU), x if outputs is None else outputs
            )
            augmented = contrastive_covariance(x, positives=view, importance=laplacian)
            if name == "views":
                found[name].append(augmented)
                continue
            found[name].append(contrastive_covariance(_g(x0), importance=laplacian))
            found[f"{name}_augmented"].append(augmented)
    return {name: torch.stack(values) for name, values in found.items()}


def _rms(found: Tensor, limit: Tensor) -> float:
    return float((found - limit).square().sum((1, 2)).mean().sqrt() / limit.norm())


def _offset(found: Tensor, limit: Tensor) -> float:
    """How far the mean over draws is from the limit in x_1 and relu x_1, which α looks at."""
    return float((found.mean(0) - limit)[:2, :2].norm() / limit[:2, :2].norm())


def _population() -> tuple[Tensor, Tensor]:
    """Points and weights of N(0, 1), Gauss and Legendre's on both sides of relu's kink."""
    nodes, weights = np.polynomial.legendre.leggauss(160)
    half = 4.25 * (nodes + 1)  # 0 to 8.5
    points = torch.as_tensor(np.concatenate([-half[::-1], half]))
    mass = torch.as_tensor(4.25 * np.concatenate([weights[::-1], weights])) * torch.exp(-points.square() / 2)
    return points, mass / math.sqrt(2 * math.pi)


def _limit(alpha: str, noise: float) -> Tensor:
    """½ E[K(x_0, y_0)(m(x_0) − m(y_0))(m(x_0) − m(y_0))^T] with m = E[g|x_0]: what (4) is, by the kernel."""
    points, mass = _population()
    means, r = _conditional_mean(points, noise), points.relu()
    kernel = torch.ones(len(r), len(r)).to(r) if alpha == "uniform" else torch.exp(-((r[:, None] - r) ** 2) / (2 * TAU))
    pairs = mass[:, None] * kernel * mass
    limit = float(pairs.sum()) * torch.eye(1 + N_INPUTS, dtype=torch.float64)  # inputs that α does not look at
    limit[:2, :2] = means.mT @ (pairs.sum(1)[:, None] * means - pairs @ means)
    return limit


def _limit_apart(noise: float) -> float:
    """How far Σ_l z_l² V_{p̃_l}[(x_1, relu x_1)] with the features of the Gaussian α is from `_limit`."""
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
