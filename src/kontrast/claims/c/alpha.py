"""C.alpha: contrastive losses whose gradient is that of an energy with the pairwise importance α held fixed."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from kontrast.claims.evidence import Evidence, Finding, Panel, Verdict, curve, judged, printed, shown
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, largest
from kontrast.patterns import (
    GaussianImportance,
    ImportanceRule,
    InfoNCEImportance,
    SpectralImportance,
    TripletImportance,
    UniformImportance,
    contrastive_covariance,
)

TEMPERATURES = (1e-3, 0.1, 1.0, 10.0, 1e3)
EPSILONS = (0.0, 0.1, 1.0, 10.0)
MARGINS = (0.0, 0.3, 3.0)


@claim(
    "C.alpha",
    source="Paper C, (1), (2)",
    title="Contrastive losses are energies with the pairwise importance held fixed",
    printed="Many contrastive losses are α-CL with an α of their own: the quadratic loss with α_ij = const, InfoNCE (ε "
    "= 0) with α_ij = e^{−d_ij²/τ}/Σ_{k≠i} e^{−d_ik²/τ}, the triplet loss. That is, −∇L = N² ∇ tr C_{sg(α)}[f].",
    recorded=Verdict.HOLDS,
)
def alpha(setting: Setting) -> Evidence:
    """Both gradients with respect to the weights of a ReLU network, for every loss, temperature, ε and margin."""
    n = setting.pick(quick=24, full=128, paper=256)
    seeds = setting.seeds(quick=2, full=5, paper=5)
    info_nce = tuple(InfoNCEImportance(tau, epsilon) for tau in TEMPERATURES for epsilon in EPSILONS)
    gaussian = tuple(GaussianImportance(tau) for tau in TEMPERATURES)

    compared = functools.partial(_compared, n, seeds)
    through = min(_through_alpha(n, seed) for seed in seeds)
    return judged(
        *compared("quadratic", "quadratic loss", UniformImportance()),
        *compared("info_nce", "InfoNCE, any τ and ε", *info_nce),
        *compared("triplet", "triplet loss, any margin", *(TripletImportance(margin) for margin in MARGINS)),
        *compared("spectral", "spectral loss, with its own weight on the views", SpectralImportance()),
        *compared("gaussian", "Gaussian α, with the weight of the views held fixed in the loss", *gaussian),
        printed("apart_without_stop_gradient", through, "InfoNCE: the same if gradients flow into α", low=1e-3),
        *shown(
            curl_gaussian_with_views=_curl(GaussianImportance(), views=True),
            curl_gaussian_without_views=_curl(GaussianImportance(), views=False),
            curl_info_nce_with_views=_curl(InfoNCEImportance(1.0, 0.5), views=True),
        ),
        panels=[_temperature_panel(n, seeds)],
        setting={"samples": n, "n_seeds": len(seeds), "temperatures": list(TEMPERATURES), "epsilons": list(EPSILONS)},
        warnings=[
            "with views, the update of the Gaussian α is not the gradient of any function (its Jacobian is not "
            "symmetric), as α does not depend on the distance between views: its loss must hold Σ_j α_ij fixed in the "
            "second term",
            "the spectral loss is an α-CL only on outputs of length 1 and with its own weight, 2, on the views: its "
            "α_ij = 2 f_i·f_j/(N − 1) may be negative and do not sum to 2",
        ],
    )


def _compared(n: int, seeds: Sequence[int], name: str, words: str, *rules: ImportanceRule) -> tuple[Finding, ...]:
    """The worst difference of the two gradients over some rules, and the ratio farthest from 1."""
    pairs = [_gradients_apart(rule, n, seed) for rule in rules for seed in seeds]
    apart, ratio = largest(*(pair[0] for pair in pairs)), max((pair[1] for pair in pairs), key=lambda r: abs(r - 1))
    return (
        printed(f"apart_{name}", apart, f"{words}: relative difference of −∇L and N²∇E", high=1e-10),
        *shown(**{f"ratio_{name}": ratio}),
    )


def _temperature_panel(n: int, seeds: Sequence[int]) -> Panel:
    def apart(tau: float, epsilon: float) -> float:
        found = largest(*(_gradients_apart(InfoNCEImportance(tau, epsilon), n, seed)[0] for seed in seeds))
        return max(found, 1e-17)  # 0 has no place on a logarithmic axis

    curves = tuple(
        curve(f"ε = {epsilon:g}", TEMPERATURES, [apart(tau, epsilon) for tau in TEMPERATURES]) for epsilon in EPSILONS
    )
    return Panel("InfoNCE: −∇L against N²∇E", "temperature τ", "relative difference", curves)


def _batch(n: int, seed: int, *, unit: bool = False) -> tuple[nn.Module, Tensor, Tensor]:
    """A network, and its outputs on n samples and on a second view of each."""
    draw = generator("batch", n, seed)
    x = torch.randn(n, 6, generator=draw, dtype=torch.float64)
    view = x + 0.3 * torch.randn(n, 6, generator=draw, dtype=torch.float64)
    net = Setting().net(x, 32, 4, seed=seed)
    f, f_view = net(x), net(view)
    if unit:
        f, f_view = nn.functional.normalize(f, dim=1), nn.functional.normalize(f_view, dim=1)
    return net, f, f_view


def _gradients_apart(rule: ImportanceRule, n: int, seed: int) -> tuple[float, float]:
    """The distance of −∇L from N²∇E, relative to the latter, and the ratio of both along it."""
    net, f, view = _batch(n, seed, unit=isinstance(rule, SpectralImportance))
    loss = -_gradient(rule.loss(f, view), net)
    energy = _gradient(n**2 * torch.trace(contrastive_covariance(f, positives=view, importance=rule)), net)
    square = float(energy @ energy)
    return math.sqrt(float((loss - energy).square().sum()) / square), float(loss @ energy) / square


def _through_alpha(n: int, seed: int) -> float:
    """The same distance for InfoNCE, with gradients that flow into α as well."""
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
