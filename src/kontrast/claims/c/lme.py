"""C.lme: the patterns that a filter behind a ReLU can learn, its locally maximal eigenvectors (LMEs)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from kontrast.claims.c.filters import RATES, D, M, Model, followed, gap_at, patterns_of, push_and_follow, starts_of
from kontrast.claims.evidence import Evidence, Finding, Panel, Verdict, corrected, curve, judged, printed, shown
from kontrast.claims.panels import guide
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, largest
from kontrast.linalg import fit_power_law
from kontrast.patterns import (
    THRESHOLD_Q,
    BatchNormalized,
    Ending,
    GatedCovariance,
    GaussianImportance,
    LatentCategorical,
    LatentSummation,
    MixtureCovariance,
    OneLayerField,
    contrastive_covariance,
    find_lmes,
    power_iteration,
)

EXACT = 1e-12
FOUND = 1 - 1e-9  # the cosine from which on a limit counts as a pattern of a population
SWINGING = 0.01  # a noise at which (94) swings in the categorical model
SIZES = (250, 500, 1000, 2000, 4000)  # samples, for the rate of A(u_m)
SAMPLED_RATES = (0.1, 0.2, 0.3)  # q of the summation model, sampled


@claim(
    "C.lme",
    source="Paper C, Def. 3, (7), (34), (35), (94)",
    title="A ReLU filter has many patterns to learn, a linear one only one",
    printed="Linear filters all converge to the maximal eigenvector of C_α[x], whatever their start and the "
    "distribution. Behind a ReLU every u_m is an LME of the categorical model (34), and of the summation model for q_m "
    "< (3 − √5)/2, where A(u_m) = (1 − q_m)²u_m u_m^T + q_m(I − u_m u_m^T) (35). BatchNorm can enforce ‖w‖ = 1.",
    corrected="ReLU filters find all patterns of both models. In (35) I must be the projector onto the span of U. The "
    "summation model has C_α[x] = UU^T: to a linear filter all directions in the span are alike, and it does not move. "
    "In floating point h'(0) = 0 needs a tolerance. (7) and (94) have the same limits if both converge, but (94) "
    "swings where the roughness is large. There are LMEs other than u_m, and stable points that are not LMEs. "
    "BatchNorm of the output leaves nothing to learn for uniform α without views; BatchNorm before the ReLU amounts to "
    "‖w‖ = 1 only for whitened x.",
    recorded=Verdict.CORRECTED,
    cost=3,
)
def patterns(setting: Setting) -> Evidence:
    """Both generative models, exact and sampled; the threshold in q; flow and iteration; batch normalisation."""
    n = 1 + len(setting.seeds(quick=4, full=9, paper=9))  # 40 starts per seed; those of one would not find all patterns
    rates = {name: _sampled_errors(model, 2 * n) for name, model in _models().items()}
    summation = _summation(40 * n)
    samples = _of_samples(setting.pick(quick=500, full=4000, paper=4000), 20 * n)
    maximal, chattering = (
        next(each.number.value for each in findings if each.name == name)
        for findings, name in ((summation, "maximal_q_0.35"), (samples, "share_chattering_q_0.3"))
    )
    return judged(
        *_linear_summation(40 * n),
        *_categorical(40 * n),
        *summation,
        *_sampled_rates(rates),
        *_threshold(),
        *_flow_and_iteration(5 * n),
        *samples,
        *_batch_norm(),
        *_no_lme(),
        panels=[_gap_panel(), _rate_panel(rates), _swing_panel()],
        data=xr.Dataset({f"error_{name}": ("samples", errors) for name, errors in rates.items()}),
        setting={"patterns": M, "d": D, "n_starts": 40 * n, "q": list(RATES)},
        warnings=[
            f"at q = 0.35 filters find {maximal:g} LMEs of the summation model: more than its {M} patterns",
            f"on samples at q = 0.3, {chattering:.0%} of the starts chatter: their limits lie on the boundary of some "
            "samples' gates",
        ],
    )


def _models() -> dict[str, Model]:
    """Both models; the categorical one has uneven probabilities, as even ones leave linear filters M − 1 directions."""
    weights = torch.linspace(1, 2, M, dtype=torch.float64)
    return {
        "categorical": LatentCategorical(patterns_of(), weights / weights.sum()),
        "summation": LatentSummation(patterns_of(), 0.2),
    }


def _of_states(model: Model, **options: Any) -> GatedCovariance:
    """The population itself: each state once, α_ij = n²p_i p_j."""
    x, p = model.states()
    return GatedCovariance(x, importance=len(x) ** 2 * torch.outer(p, p), **options)


def _n_found(weights: Tensor, cosine: float = FOUND) -> float:
    """The number of patterns among these rows."""
    return float(((weights @ patterns_of().mT).max(0).values > cosine).sum()) if len(weights) else 0.0


def _worst_error(model: Model, **options: Any) -> float:
    """The largest ‖A(u_m) − closed form‖ over m."""
    field = _of_states(model, **options)
    return largest(*(_error_at(field, model, m) for m in range(M)))


def _error_with_identity(model: LatentSummation) -> float:
    """‖A(u_0) − (35)‖, with (35) as printed."""
    u, q = model.patterns[0], float(model.rates[0])
    own = torch.outer(u, u)
    as_printed = (1 - q) ** 2 * own + q * (torch.eye(len(u)).to(u) - own)
    return float(torch.linalg.matrix_norm(_of_states(model).matrix(u) - as_printed, ord=2))


def _categorical(n_starts: int) -> tuple[Finding, ...]:
    """The categorical model itself: limits of ReLU and of linear filters, and A(u_m)."""
    model, starts = _models()["categorical"], starts_of(n_starts)
    found = find_lmes(_of_states(model), starts=starts)
    linear = find_lmes(_of_states(model, activation="linear"), starts=starts, max_steps=4000)
    n_maximal = _n_found(found.weights[found.maximal])
    n_linear = float(len(linear))
    open_gates = _worst_error(model, gate_tolerance=0.0)
    return (
        corrected("patterns_categorical", _n_found(found.weights), "categorical model: u_m that ReLU finds", low=M),
        corrected("limits_categorical", float(len(found)), "number of limits of ReLU filters", high=M),
        corrected("maximal_categorical", n_maximal, "number of u_m that are found and are LMEs", low=M),
        corrected("directions_linear_categorical", n_linear, "directions of linear filters, up to sign", low=1, high=1),
        corrected("error_34", _worst_error(model), "A(u_m) is (34): largest ‖A(u_m) − (34)‖", high=EXACT),
        corrected("error_34_without_tolerance", open_gates, "‖A(u_m) − (34)‖ if rounding opens gates", low=0.05),
    )


def _summation(n_starts: int) -> tuple[Finding, ...]:
    """The summation model itself: limits of ReLU filters at every q, a sum of three patterns, and A(u_m)."""
    found: list[Finding] = []
    models = [LatentSummation(patterns_of(), q) for q in RATES]
    for q, model in zip(RATES, models, strict=True):
        limits = find_lmes(_of_states(model), starts=starts_of(n_starts), max_steps=300)
        n_patterns = _n_found(limits.weights[limits.maximal])
        on_patterns = (limits.weights @ patterns_of().mT > FOUND).any(1)
        words = f"summation model, q = {q}: number of u_m that are found and are LMEs"
        found.append(corrected(f"patterns_q_{q}", n_patterns, words, low=M))
        basin = float(limits.basins[on_patterns].sum())
        found += shown(**{f"maximal_q_{q}": float(limits.maximal.sum()), f"basin_of_patterns_q_{q}": basin})
    three = patterns_of()[:3].sum(0) / math.sqrt(3)
    field = _of_states(models[-1])
    gap = gap_at(field.matrix(three), three)
    with_identity = largest(*(_error_with_identity(model) for model in models))
    with_projector = largest(*(_worst_error(model) for model in models))
    return (
        *found,
        corrected("gap_of_a_sum_of_three", gap, "q = 0.35: gap at (u_1 + u_2 + u_3)/√3, an LME too", low=0.01),
        corrected("residual_of_a_sum_of_three", float(_residuals(field, three[None])), "‖A(w)w − λw‖/λ", high=EXACT),
        printed("error_35_with_identity", with_identity, "(35) with I, for M < d: ‖A(u_m) − (35)‖", high=EXACT),
        corrected("error_35", with_projector, "(35) with the projector onto span U: ‖A(u_m) − (35)‖", high=EXACT),
    )


def _linear_summation(n_starts: int) -> tuple[Finding, ...]:
    """Linear filters on the summation model: A, and the number of directions in which they end."""
    field = _of_states(_models()["summation"], activation="linear")
    projector = patterns_of().mT @ patterns_of()
    ends = power_iteration(field, starts_of(n_starts)).weights
    alike = ((ends @ ends.mT).abs() > 1 - 1e-6).tril(-1).any(1)  # like one before it
    n_directions = float((~alike).sum())
    error = float(torch.linalg.matrix_norm(field.matrix(starts_of(1)[0]) - projector, ord=2))
    return (
        printed("directions_linear_summation", n_directions, "summation model: directions of linear filters", high=1),
        corrected("error_linear_summation", error, "summation model, linear filters: A = UU^T", high=EXACT),
    )


def _sampled_errors(model: Model, n_draws: int) -> np.ndarray:
    """‖A(u_m) − closed form‖₂ by number of samples, rms over draws and patterns."""
    errors = []
    for n in SIZES:
        draw, squares = generator("samples", n), list[float]()
        for _ in range(n_draws):
            field = GatedCovariance(model.sample(n, generator=draw))
            squares += [_error_at(field, model, m) ** 2 for m in range(M)]
        errors.append(math.sqrt(float(np.mean(squares))))
    return np.array(errors)


def _error_at(field: GatedCovariance, model: Model, m: int) -> float:
    return float(torch.linalg.matrix_norm(field.matrix(model.patterns[m]) - model.covariance_at(m), ord=2))


def _sampled_rates(errors: dict[str, np.ndarray]) -> tuple[Finding, ...]:
    """Exponents in the number of samples of ‖A(u_m) − closed form‖."""
    categorical, summation = (fit_power_law(np.array(SIZES), errors[name]) for name in ("categorical", "summation"))
    return (
        corrected("exponent_categorical", categorical, "samples: A(u_m) → (34) as N^−1/2", low=-0.65, high=-0.35),
        corrected("exponent_summation", summation, "samples: A(u_m) → (35) as N^−1/2", low=-0.65, high=-0.35),
    )


def _threshold() -> tuple[Finding, ...]:
    """The q at which the gap of A(u_m) on the states crosses 0, by bisection; and the flow on either side of it."""
    low, high = 0.05, 0.6
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _gap_at_pattern(middle) > 0 else (low, middle)

    def returned(q: float) -> float:
        field = MixtureCovariance.of(LatentSummation(patterns_of(), q), 0.0)
        margin = torch.tensor([_gap_at_pattern(q)]).double()
        return float(push_and_follow(field, patterns_of()[:1], margin))

    below = returned(THRESHOLD_Q - 0.02)
    above = returned(THRESHOLD_Q + 0.02)
    return (
        *shown(threshold_q=low),
        corrected("threshold_error", abs(low - THRESHOLD_Q), "u_m is an LME up to q = (3 − √5)/2: error", high=1e-9),
        corrected("return_below_threshold", below, "just below it the flow returns: distance over push", high=0.5),
        corrected("return_above_threshold", above, "just above it the flow leaves: distance over push", low=2.0),
    )


def _gap_at_pattern(q: float, noise: float = 0.0) -> float:
    u = patterns_of()[0]
    return gap_at(MixtureCovariance.of(LatentSummation(patterns_of(), q), noise).matrix(u), u)


def _flow_and_iteration(n_starts: int) -> tuple[Finding, ...]:
    """Limits of (7) and (94) from the same starts, for two populations where both converge."""
    starts = torch.cat([patterns_of() + 0.1 * starts_of(M), starts_of(n_starts)])
    apart, same = [], []
    for model, noise, time in ((_models()["categorical"], 0.1, 300.0), (_models()["summation"], 0.1, 60.0)):
        field = MixtureCovariance.of(model, noise)
        iterated = power_iteration(field, starts).weights
        flowed = followed(field, starts, time)
        distances = torch.cdist(flowed, iterated)
        apart.append(largest(float(distances.min(0).values.max()), float(distances.min(1).values.max())))
        same.append(float((distances.diagonal() < 1e-2).double().mean()))
    return (
        corrected("limits_apart", largest(*apart), "largest distance between the limits of (7) and (94)", high=1e-3),
        *shown(share_in_the_same_basin=min(same)),
        *_swing(starts),
    )


def _swing(starts: Tensor) -> tuple[Finding, ...]:
    """A population where (94) swings, while the shifted iteration and the flow converge."""
    field = MixtureCovariance.of(_models()["categorical"], SWINGING)
    undamped = power_iteration(field, starts, max_steps=300, largest_shift=0.0)
    damped = power_iteration(field, starts)
    end = followed(field, starts, 300.0)
    by_94 = float(undamped.converged.double().mean())
    shifted = float(damped.converged.double().mean())
    return (
        corrected("swing_converged_undamped", by_94, f"noise {SWINGING:g}: share that (94) brings to rest", high=0.0),
        corrected("swing_converged_damped", shifted, "share of starts that converge when shifted as in (99)", low=1.0),
        corrected("swing_flow_residual", float(_residuals(field, end).max()), "(7) converges: its residual", high=1e-4),
        corrected("swing_flow_patterns", _n_found(end, 0.99), "number of patterns that (7) finds there", low=M),
        *shown(swing_largest_shift=float(damped.shifts.max())),
    )


def _residuals(field: OneLayerField, w: Tensor) -> Tensor:
    """‖A(w)w − λw‖/λ, (k,)."""
    product = field.product(w)
    eigenvalues = (product * w).sum(1, keepdim=True)
    return torch.as_tensor((product - eigenvalues * w).norm(dim=1) / eigenvalues[:, 0])


def _of_samples(n: int, n_starts: int) -> tuple[Finding, ...]:
    """Samples of the summation model: shares of starts that chatter and that stay so, and the patterns found."""
    numbers: dict[str, float] = {}
    for q in SAMPLED_RATES:
        x = LatentSummation(patterns_of(), q).sample(n, generator=generator("sampled", n))
        limits = find_lmes(x, starts=starts_of(n_starts), max_steps=400)
        restless = [ending is not Ending.CONVERGED for ending in limits.run.endings]
        numbers[f"share_chattering_q_{q}"] = float(np.mean(restless))
        numbers[f"share_unresolved_q_{q}"] = float((limits.assignment < 0).double().mean())
        numbers[f"least_cosine_q_{q}"] = float((patterns_of() @ limits.weights.mT).max(1).values.min())
    unresolved = largest(*(numbers[f"share_unresolved_q_{q}"] for q in SAMPLED_RATES))
    return (
        corrected("share_unresolved", unresolved, "samples: share of starts that chatter and find no rest", high=0.05),
        *shown(**numbers),
    )


def _batch_norm() -> tuple[Finding, ...]:
    """BatchNorm after the ReLU with a Gaussian α and with a uniform one; and BatchNorm before it."""
    x = _models()["summation"].sample(200, noise_std=0.3, generator=generator("batch norm"))
    w = torch.nn.functional.normalize(starts_of(6))
    alpha = GaussianImportance(2.0)(x, None).alpha
    gradient = _gradient_behind_batch_norm(x, w, alpha)
    field = BatchNormalized(GatedCovariance(x, importance=alpha))
    expected = gradient / field.energy(w)[:, None] / 2 + w
    flat = BatchNormalized(GatedCovariance(x))
    moved = followed(flat, w, 3.0) - w
    whitened = LatentSummation(patterns_of(M, M), 0.2).states()
    along = float(((gradient * w).sum(1) / gradient.norm(dim=1)).abs().max())
    error = float((field.product(w) - expected).norm() / expected.norm())
    other = _normalized_before(*_models()["categorical"].states())
    white = _normalized_before(*whitened)
    return (
        corrected("batch_norm_along_w", along, "BatchNorm of the output: no gradient along w", high=1e-10),
        corrected("batch_norm_field_error", error, "the field equals that of autograd", high=1e-10),
        *shown(batch_norm_energy_spread=float((flat.energy(w) - 1).abs().max())),
        corrected("batch_norm_drift", float(moved.norm(dim=1).max()), "uniform α, no views: nothing moves", high=1e-9),
        corrected("batch_norm_before_whitened", white, "BatchNorm before the ReLU, whitened x: as ‖w‖ = 1", high=1e-10),
        corrected("batch_norm_before_other", other, "BatchNorm before the ReLU, other x: another energy", low=0.1),
    )


def _gradient_behind_batch_norm(x: Tensor, w: Tensor, alpha: Tensor) -> Tensor:
    """The gradient of C_α[(h − mean)/std] with respect to w, (k, d), by autograd."""
    leaf = w.clone().requires_grad_()
    outputs = torch.relu(x @ leaf.mT)
    normalized = (outputs - outputs.mean(0)) / outputs.std(0, unbiased=False)
    energy = contrastive_covariance(normalized, importance=alpha).diagonal().sum()
    return torch.autograd.grad(energy, leaf)[0]


def _normalized_before(x: Tensor, p: Tensor) -> float:
    """Relative spread of V[h(BN(w^T x))]/V[h(w^T x)] over unit directions w; 0 if both have the same maxima."""
    z = x @ torch.nn.functional.normalize(starts_of(20, x.shape[1])).mT  # (states, k)

    def variance(outputs: Tensor) -> Tensor:
        return torch.as_tensor(p @ (outputs - p @ outputs).square())

    plain, normalized = variance(z.relu()), variance(((z - p @ z) / variance(z).sqrt()).relu())
    ratio = normalized / plain
    return float(ratio.max() / ratio.min() - 1)


def _no_lme() -> tuple[Finding, ...]:
    """The summation model at q = 0.35, smoothed: u_m stays a limit but is not an LME."""
    field = MixtureCovariance.of(LatentSummation(patterns_of(), 0.35), 0.6)
    w = power_iteration(field, patterns_of()[:1]).weights
    margin = field.stability_margin(w[0])
    gap = gap_at(field.matrix(w[0]), w[0])
    returned = float(push_and_follow(field, w, torch.tensor([margin]).double()))
    return (
        corrected("gap_of_no_lme", gap, "q = 0.35, noise 0.6: the gap at u_m, which is not an LME", high=-0.01),
        corrected("return_to_no_lme", returned, "yet the flow returns to it: distance over push", high=0.5),
        *shown(margin_of_no_lme=margin, cosine_of_no_lme=float(w[0] @ patterns_of()[0])),
    )


def _rate_panel(errors: dict[str, np.ndarray]) -> Panel:
    curves = (
        *(curve(f"{name} model", SIZES, values) for name, values in errors.items()),
        guide(SIZES, errors["categorical"], -0.5, "N^−1/2"),
    )
    return Panel("A(u_m) of samples tends to its closed form", "samples N", "‖A(u_m) − closed form‖, rms", curves)


def _gap_panel() -> Panel:
    q = np.linspace(0.05, 0.5, 19)
    curves = []
    for label, noise in (("the model itself", 0.0), ("noise 0.3", 0.3), ("noise 0.6", 0.6)):
        curves.append(curve(label, q, [_gap_at_pattern(float(each), noise) for each in q]))
    curves.append(curve("(1 − q)² − q", q, (1 - q) ** 2 - q, "dashed"))
    title = "Summation model: u_m is an LME while its gap is above 0"
    return Panel(title, "q", "gap of A(u_m)", tuple(curves), x_log=False, y_log=False)


def _swing_panel() -> Panel:
    """‖w(t + 1) − w(t)‖ of one filter of the categorical model, smoothed: by (94), and by (94) shifted."""
    field, start = MixtureCovariance.of(_models()["categorical"], SWINGING), starts_of(1)
    plain = power_iteration(field, start, max_steps=60, largest_shift=0.0)
    shifted = power_iteration(field, start, max_steps=60, shift=4.0)
    curves = []
    for label, run in (("(94)", plain), ("shifted as in (99)", shifted)):
        curves.append(curve(label, np.arange(1, len(run.discrepancies) + 1), run.discrepancies[:, 0]))
    title = f"Categorical model, noise {SWINGING:g}: the iteration swings where the flow is stable"
    return Panel(title, "step", "‖w(t + 1) − w(t)‖", tuple(curves), x_log=False)
