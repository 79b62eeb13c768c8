"""Paper C, Sec. 3: the patterns that a filter behind a ReLU can learn, its locally maximal eigenvectors (LMEs)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from kontrast.claims.evidence import Criterion, Evidence, Panel, Verdict, curve, evidence
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
    one_layer_flow,
    orthonormal_patterns,
    power_iteration,
)

M, D = 8, 10  # patterns, and the dimension they lie in
RATES = (0.1, 0.2, 0.3, 0.35)  # q of the summation model
EXACT = 1e-12
FOUND = 1 - 1e-9  # the cosine at which a limit is a pattern of a population
SWINGING = 0.01  # a noise under which (94) swings in the categorical model
SIZES = (250, 500, 1000, 2000, 4000)  # samples, for the rate of A(u_m)
PUSH, SPAN = 1e-4, 3.0  # a point is pushed that far, and followed for that many of its own times 1/|margin|

Model = LatentCategorical | LatentSummation


@claim(
    "C.lme",
    source="Paper C, Def. 3, (7), (34), (35), (94)",
    title="A ReLU filter has many patterns to learn, a linear one a single one",
    printed="Linear filters all converge to the maximal eigenvector of C_α[x], whatever their start and the "
    "distribution. Behind a ReLU every u_m is an LME of the categorical model (34), and of the summation model for q_m "
    "< (3 − √5)/2, where A(u_m) = (1 − q_m)²u_m u_m^T + q_m(I − u_m u_m^T) (35). ‖w‖ = 1 can be had by BatchNorm.",
    corrected="ReLU finds all patterns of both models. (35) has the projector on the span of U in the place of I. The "
    "summation model has C_α[x] = UU^T: all directions in the span are alike to a linear filter, and stay. h'(0) = 0 "
    "needs a tolerance in floating point. (7) and (94) have the same limits where both converge, but (94) swings where "
    "the roughness is large. Other LMEs than u_m exist, and stable points that are no LME. BatchNorm of the output "
    "leaves nothing to learn with uniform α and no views; BatchNorm before the ReLU is ‖w‖ = 1 for whitened x only.",
    recorded=Verdict.CORRECTED,
    cost=3,
)
def patterns(setting: Setting) -> Evidence:
    """Both generative models, exact and sampled; the threshold in q; flow and iteration; batch normalisation."""
    n = 1 + len(setting.seeds(quick=4, full=9, paper=9))  # a seed is 40 starts, and one is too few to find all patterns
    rates = {name: _sampled_errors(model, 2 * n) for name, model in _models().items()}
    summation, samples = _summation(40 * n), _of_samples(setting.pick(quick=500, full=4000, paper=4000), 20 * n)
    return evidence(
        {
            **_categorical(40 * n),
            **summation,
            **_linear_summation(40 * n),
            **{f"exponent_{name}": fit_power_law(np.array(SIZES), errors) for name, errors in rates.items()},
            **_threshold(),
            **_flow_and_iteration(5 * n),
            **samples,
            **_batch_norm(),
            **_no_lme(),
        },
        _CRITERIA_LME,
        panels=[
            _gap_panel(),
            Panel(
                "A(u_m) of samples tends to its closed form",
                "samples N",
                "‖A(u_m) − closed form‖, rms",
                (
                    *(curve(f"{name} model", SIZES, errors) for name, errors in rates.items()),
                    guide(SIZES, rates["categorical"], -0.5, "N^−1/2"),
                ),
            ),
            _swing_panel(),
        ],
        data=xr.Dataset({f"error_{name}": ("samples", errors) for name, errors in rates.items()}),
        setting={"patterns": M, "d": D, "n_starts": 40 * n, "q": list(RATES)},
        warnings=[
            f"at q = 0.35 filters find {summation['maximal_q_0.35']:g} LMEs of the summation model: more than its {M} "
            "patterns",
            f"{samples['share_chattering_q_0.3']:.0%} of the starts chatter on samples at q = 0.3: their limits lie on "
            "the edge of some samples' gates",
        ],
    )


_CRITERIA_LME = (
    Criterion("error_35_with_identity", "(35) with I, where M < d: ‖A(u_m) − (35)‖", high=EXACT),
    Criterion("directions_linear_summation", "linear filters on the summation model end in one direction", high=1),
    Criterion("error_34", "A(u_m) is (34)", high=EXACT, role="corrected"),
    Criterion("error_35", "A(u_m) is (35) with the projector on span U", high=EXACT, role="corrected"),
    Criterion("patterns_categorical", "categorical model: u_m that filters end at", low=M, role="corrected"),
    Criterion("limits_categorical", "and they end nowhere else", high=M, role="corrected"),
    Criterion("maximal_categorical", "all of them LMEs", low=M, role="corrected"),
    Criterion("directions_linear_categorical", "linear filters: one direction, ±", low=1, high=1, role="corrected"),
    *(
        Criterion(f"patterns_q_{q}", f"summation model, q = {q}: u_m that are found, and LMEs", low=M, role="corrected")
        for q in RATES
    ),
    Criterion("gap_of_a_sum_of_three", "q = 0.35: (u_1 + u_2 + u_3)/√3 is an LME too", low=0.01, role="corrected"),
    Criterion("residual_of_a_sum_of_three", "‖A(w)w − λw‖/λ there", high=EXACT, role="corrected"),
    Criterion("error_34_without_tolerance", "gates that round-off opens: ‖A(u_m) − (34)‖", low=0.05, role="corrected"),
    Criterion(
        "exponent_categorical", "samples: A(u_m) tends to (34) as N^−1/2", low=-0.65, high=-0.35, role="corrected"
    ),
    Criterion("exponent_summation", "and to (35)", low=-0.65, high=-0.35, role="corrected"),
    Criterion("threshold_error", "u_m is an LME up to q = (3 − √5)/2, and no further", high=1e-9, role="corrected"),
    Criterion("return_below_threshold", "just below, the flow comes back to u_m", high=0.5, role="corrected"),
    Criterion("return_above_threshold", "just above, it leaves", low=2.0, role="corrected"),
    Criterion("error_linear_summation", "linear, summation model: A = UU^T", high=EXACT, role="corrected"),
    Criterion("limits_apart", "(7) and (94) have the same limits", high=1e-3, role="corrected"),
    Criterion("swing_converged_undamped", "noise 0.01: (94) itself converges nowhere", high=0.0, role="corrected"),
    Criterion("swing_converged_damped", "shifted as in (99) it does", low=1.0, role="corrected"),
    Criterion("swing_flow_residual", "and so does (7)", high=1e-4, role="corrected"),
    Criterion("swing_flow_patterns", "which finds all patterns", low=M, role="corrected"),
    Criterion(
        "share_unresolved", "samples: starts that chatter and are not brought to rest", high=0.05, role="corrected"
    ),
    Criterion("batch_norm_along_w", "BatchNorm: no gradient along w", high=1e-10, role="corrected"),
    Criterion("batch_norm_field_error", "the field is that of autograd", high=1e-10, role="corrected"),
    Criterion("batch_norm_drift", "uniform α, no views: no filter moves", high=1e-9, role="corrected"),
    Criterion("batch_norm_before_whitened", "before the ReLU, whitened x: as ‖w‖ = 1", high=1e-10, role="corrected"),
    Criterion("batch_norm_before_other", "otherwise another energy", low=0.1, role="corrected"),
    Criterion("gap_of_no_lme", "q = 0.35, noise 0.6: u_m is no LME (gap)", high=-0.01, role="corrected"),
    Criterion("return_to_no_lme", "and yet the flow comes back to it", high=0.5, role="corrected"),
)


def patterns_of(n: int = M, d: int = D) -> Tensor:
    """Orthonormal patterns (n, d), the same for all measurements."""
    return orthonormal_patterns(n, d, generator=generator("patterns", n, d))


def _models() -> dict[str, Model]:
    """The categorical model with uneven probabilities, as even ones leave linear filters M − 1 directions."""
    weights = torch.linspace(1, 2, M, dtype=torch.float64)
    return {
        "categorical": LatentCategorical(patterns_of(), weights / weights.sum()),
        "summation": LatentSummation(patterns_of(), 0.2),
    }


def _of_states(model: Model, **options: Any) -> GatedCovariance:
    """The population itself: each state once, α_ij = n²p_i p_j."""
    x, p = model.states()
    return GatedCovariance(x, importance=len(x) ** 2 * torch.outer(p, p), **options)


def starts_of(n: int, d: int = D) -> Tensor:
    """Random directions (n, d)."""
    return torch.randn(n, d, generator=generator("starts", n, d), dtype=torch.float64)


def _n_found(weights: Tensor, cosine: float = FOUND) -> float:
    """How many patterns are among these rows."""
    return float(((weights @ patterns_of().mT).max(0).values > cosine).sum()) if len(weights) else 0.0


def _worst_error(model: Model, **options: Any) -> float:
    """The largest ‖A(u_m) − closed form‖ over m."""
    field = _of_states(model, **options)
    return largest(*(_error_at(field, model, m) for m in range(M)))


def _error_with_identity(model: LatentSummation) -> float:
    """‖A(u_0) − (35)‖ as it is printed."""
    u, q = model.patterns[0], float(model.rates[0])
    own = torch.outer(u, u)
    printed = (1 - q) ** 2 * own + q * (torch.eye(len(u)).to(u) - own)
    return float(torch.linalg.matrix_norm(_of_states(model).matrix(u) - printed, ord=2))


def _categorical(n_starts: int) -> dict[str, float]:
    model, starts = _models()["categorical"], starts_of(n_starts)
    found = find_lmes(_of_states(model), starts=starts)
    linear = find_lmes(_of_states(model, activation="linear"), starts=starts, max_steps=4000)
    return {
        "patterns_categorical": _n_found(found.weights),
        "limits_categorical": float(len(found)),
        "maximal_categorical": _n_found(found.weights[found.maximal]),
        "directions_linear_categorical": float(len(linear)),
        "error_34": _worst_error(model),
        "error_34_without_tolerance": _worst_error(model, gate_tolerance=0.0),
    }


def _summation(n_starts: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for q in RATES:
        limits = find_lmes(_of_states(LatentSummation(patterns_of(), q)), starts=starts_of(n_starts), max_steps=300)
        found[f"patterns_q_{q}"] = _n_found(limits.weights[limits.maximal])
        found[f"maximal_q_{q}"] = float(limits.maximal.sum())
        on_patterns = (limits.weights @ patterns_of().mT > FOUND).any(1)
        found[f"basin_of_patterns_q_{q}"] = float(limits.basins[on_patterns].sum())
    models = [LatentSummation(patterns_of(), q) for q in RATES]
    three = patterns_of()[:3].sum(0) / math.sqrt(3)
    field = _of_states(models[-1])
    return {
        **found,
        "gap_of_a_sum_of_three": gap_at(field.matrix(three), three),
        "residual_of_a_sum_of_three": float(_residuals(field, three[None])),
        "error_35": largest(*(_worst_error(model) for model in models)),
        "error_35_with_identity": largest(*(_error_with_identity(model) for model in models)),
    }


def _linear_summation(n_starts: int) -> dict[str, float]:
    """Linear filters on the summation model: A, and the number of directions they end in."""
    field = _of_states(_models()["summation"], activation="linear")
    projector = patterns_of().mT @ patterns_of()
    ends = power_iteration(field, starts_of(n_starts)).weights
    alike = ((ends @ ends.mT).abs() > 1 - 1e-6).tril(-1).any(1)  # as one before it
    return {
        "error_linear_summation": float(torch.linalg.matrix_norm(field.matrix(starts_of(1)[0]) - projector, ord=2)),
        "directions_linear_summation": float((~alike).sum()),
    }


def _sampled_errors(model: Model, n_draws: int) -> np.ndarray:
    """The rms over draws and patterns of ‖A(u_m) − closed form‖₂ by the number of samples."""
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


def _threshold() -> dict[str, float]:
    """Where the gap of A(u_m) on the states crosses 0, by bisection; and what the flow does on either side."""
    low, high = 0.05, 0.6
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _gap_at_pattern(middle) > 0 else (low, middle)

    def returned(q: float) -> float:
        field = MixtureCovariance.of(LatentSummation(patterns_of(), q), 0.0)
        margin = torch.tensor([_gap_at_pattern(q)]).double()
        return float(push_and_follow(field, patterns_of()[:1], margin))

    return {
        "threshold_q": low,
        "threshold_error": abs(low - THRESHOLD_Q),
        "return_below_threshold": returned(THRESHOLD_Q - 0.02),
        "return_above_threshold": returned(THRESHOLD_Q + 0.02),
    }


def _gap_at_pattern(q: float, noise: float = 0.0) -> float:
    u = patterns_of()[0]
    return gap_at(MixtureCovariance.of(LatentSummation(patterns_of(), q), noise).matrix(u), u)


def gap_at(A: Tensor, w: Tensor) -> float:
    """λ of A w = λw less the largest other eigenvalue of A."""
    values, eigenvalue = torch.linalg.eigvalsh(A), w @ A @ w
    own = int((values - eigenvalue).abs().argmin())
    return float(eigenvalue - torch.cat([values[:own], values[own + 1 :]]).max())


def _flow_and_iteration(n_starts: int) -> dict[str, float]:
    """Limits of (7) and (94) from the same starts: two populations where both converge, and one where (94) swings."""
    starts = torch.cat([patterns_of() + 0.1 * starts_of(M), starts_of(n_starts)])
    apart, same = [], []
    for model, noise, time in ((_models()["categorical"], 0.1, 300.0), (_models()["summation"], 0.1, 60.0)):
        field = MixtureCovariance.of(model, noise)
        iterated = power_iteration(field, starts).weights
        flowed = followed(field, starts, time)
        distances = torch.cdist(flowed, iterated)
        apart.append(largest(float(distances.min(0).values.max()), float(distances.min(1).values.max())))
        same.append(float((distances.diagonal() < 1e-2).double().mean()))
    field = MixtureCovariance.of(_models()["categorical"], SWINGING)
    undamped = power_iteration(field, starts, max_steps=300, largest_shift=0.0)
    damped = power_iteration(field, starts)
    end = followed(field, starts, 300.0)
    return {
        "limits_apart": largest(*apart),
        "share_in_the_same_basin": min(same),
        "swing_converged_undamped": float(undamped.converged.double().mean()),
        "swing_converged_damped": float(damped.converged.double().mean()),
        "swing_flow_residual": float(_residuals(field, end).max()),
        "swing_flow_patterns": _n_found(end, 0.99),
        "swing_largest_shift": float(damped.shifts.max()),
    }


def _residuals(field: OneLayerField, w: Tensor) -> Tensor:
    """‖A(w)w − λw‖/λ, (k,)."""
    product = field.product(w)
    eigenvalues = (product * w).sum(1, keepdim=True)
    return torch.as_tensor((product - eigenvalues * w).norm(dim=1) / eigenvalues[:, 0])


def _of_samples(n: int, n_starts: int) -> dict[str, float]:
    """Samples of the summation model: how many starts chatter, how many are left, how near the patterns are found."""
    found: dict[str, float] = {}
    for q in (0.1, 0.2, 0.3):
        x = LatentSummation(patterns_of(), q).sample(n, generator=generator("sampled", n))
        limits = find_lmes(x, starts=starts_of(n_starts), max_steps=400)
        restless = [ending is not Ending.CONVERGED for ending in limits.run.endings]
        found[f"share_chattering_q_{q}"] = float(np.mean(restless))
        found[f"share_unresolved_q_{q}"] = float((limits.assignment < 0).double().mean())
        found[f"least_cosine_q_{q}"] = float((patterns_of() @ limits.weights.mT).max(1).values.min())
    return {**found, "share_unresolved": largest(*(found[f"share_unresolved_q_{q}"] for q in (0.1, 0.2, 0.3)))}


def _batch_norm() -> dict[str, float]:
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
    return {
        "batch_norm_along_w": float(((gradient * w).sum(1) / gradient.norm(dim=1)).abs().max()),
        "batch_norm_field_error": float((field.product(w) - expected).norm() / expected.norm()),
        "batch_norm_energy_spread": float((flat.energy(w) - 1).abs().max()),
        "batch_norm_drift": float(moved.norm(dim=1).max()),
        "batch_norm_before_whitened": _normalized_before(*whitened),
        "batch_norm_before_other": _normalized_before(*_models()["categorical"].states()),
    }


def _gradient_behind_batch_norm(x: Tensor, w: Tensor, alpha: Tensor) -> Tensor:
    """The gradient of C_α[(h − mean)/std] by w, (k, d), by autograd."""
    leaf = w.clone().requires_grad_()
    outputs = torch.relu(x @ leaf.mT)
    normalized = (outputs - outputs.mean(0)) / outputs.std(0, unbiased=False)
    energy = contrastive_covariance(normalized, importance=alpha).diagonal().sum()
    return torch.autograd.grad(energy, leaf)[0]


def _normalized_before(x: Tensor, p: Tensor) -> float:
    """By what V[h(BN(w^T x))]/V[h(w^T x)] varies over directions w, ‖w‖ = 1; 0 where both have the same maxima."""
    z = x @ torch.nn.functional.normalize(starts_of(20, x.shape[1])).mT  # (states, k)

    def variance(outputs: Tensor) -> Tensor:
        return torch.as_tensor(p @ (outputs - p @ outputs).square())

    plain, normalized = variance(z.relu()), variance(((z - p @ z) / variance(z).sqrt()).relu())
    ratio = normalized / plain
    return float(ratio.max() / ratio.min() - 1)


def _no_lme() -> dict[str, float]:
    """The summation model at q = 0.35, smoothed: u_m keeps its place as a limit but is no LME."""
    field = MixtureCovariance.of(LatentSummation(patterns_of(), 0.35), 0.6)
    w = power_iteration(field, patterns_of()[:1]).weights
    margin = field.stability_margin(w[0])
    return {
        "gap_of_no_lme": gap_at(field.matrix(w[0]), w[0]),
        "margin_of_no_lme": margin,
        "cosine_of_no_lme": float(w[0] @ patterns_of()[0]),
        "return_to_no_lme": float(push_and_follow(field, w, torch.tensor([margin]).double())),
    }


def _gap_panel() -> Panel:
    q = np.linspace(0.05, 0.5, 19)
    return Panel(
        "Summation model: u_m is an LME while its gap is above 0",
        "q",
        "gap of A(u_m)",
        (
            *(
                curve(label, q, [_gap_at_pattern(float(each), noise) for each in q])
                for label, noise in (("the model itself", 0.0), ("noise 0.3", 0.3), ("noise 0.6", 0.6))
            ),
            curve("(1 − q)² − q", q, (1 - q) ** 2 - q, "dashed"),
        ),
        x_log=False,
        y_log=False,
    )


def _swing_panel() -> Panel:
    """‖w(t + 1) − w(t)‖ of one filter of the categorical model, smoothed: by (94), and by (94) shifted."""
    field, start = MixtureCovariance.of(_models()["categorical"], SWINGING), starts_of(1)
    runs = {
        "(94)": power_iteration(field, start, max_steps=60, largest_shift=0.0),
        "shifted as in (99)": power_iteration(field, start, max_steps=60, shift=4.0),
    }
    return Panel(
        f"Categorical model, noise {SWINGING:g}: the iteration swings where the flow is stable",
        "step",
        "‖w(t + 1) − w(t)‖",
        tuple(
            curve(label, np.arange(1, len(run.discrepancies) + 1), run.discrepancies[:, 0])
            for label, run in runs.items()
        ),
        x_log=False,
    )


def followed(field: OneLayerField, starts: Tensor, time: float) -> Tensor:
    """Where the flow (7) is at that time; NaN where it does not get there."""
    flow = one_layer_flow(field, starts, times=[time], tolerance=1e-7, max_steps=1500)
    return torch.full_like(starts, math.nan) if flow.chattering else flow.weights[-1]


@dataclass(eq=False)
class _Rescaled:
    """A field with a clock of its own for each row."""

    field: OneLayerField
    rates: Tensor  # (k,)
    coupled: bool = False

    def product(self, weights: Tensor) -> Tensor:
        return self.rates[:, None] * self.field.product(weights)

    def gates(self, weights: Tensor) -> Tensor:
        return self.field.gates(weights)


def push_and_follow(field: OneLayerField, w: Tensor, margins: Tensor, worst: Tensor | None = None) -> Tensor:
    """How far the flow (7) is from each rest point (k, d) at time `SPAN`/|margin| after a push, over the push: (k,).

    Pushes are by `PUSH`, in random directions and in the `worst` ones (k, d) where given; the largest counts.
    """
    k, d = w.shape
    draw = torch.randn(3, k, d, generator=generator("pushes", k, d), dtype=torch.float64)
    directions = draw if worst is None else torch.cat([draw, worst[None]])
    directions = directions - (directions * w).sum(-1, keepdim=True) * w
    pushed = (w + PUSH * torch.nn.functional.normalize(directions, dim=-1)).reshape(-1, d)
    clock = _Rescaled(field, (1 / margins.abs()).repeat(len(directions)))
    end = followed(clock, pushed, SPAN).reshape(-1, k, d)
    return torch.as_tensor((end - w).norm(dim=-1).max(0).values / PUSH)
