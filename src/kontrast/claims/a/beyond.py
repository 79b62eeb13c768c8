"""Paper A's open problems, what it leaves out, and the next checks its readers ask for."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from kontrast.claims.a.runs import RATE, dot_rate, ntk_change, probes_of, train
from kontrast.claims.evidence import Criterion, Evidence, Panel, Verdict, curve, evidence
from kontrast.claims.panels import step_panel, width_panel
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, largest, loss_of, seed_mean, sweep, width_law
from kontrast.data import Pairs, pair_matrix
from kontrast.dynamics import Problem, Status, contrastive_problem, fixed_kernel_descent, fixed_kernel_flow
from kontrast.kernels import empirical_ntk, infinite_ntk
from kontrast.lazy import dot_product_descent, dot_product_flow
from kontrast.linalg import fit_power_law
from kontrast.losses import info_nce, nt_xent, supcon
from kontrast.nets import MLP
from kontrast.runs import padded


@claim(
    "A.forever",
    source="Paper A, Sec. 5, open problem",
    title="Does the NTK stay constant until convergence?",
    printed="Open; Fig. 3 suggests that for wide networks the NTK stays constant beyond M^α steps.",
    corrected="The change saturates over the first 10,000 steps. But for δ > 0 there is no finite minimiser: ‖f‖ grows "
    "for ever, as t^(1/3) while the kernel stands still, as t^(1/2) once ηt ≫ M and the kernel grows with the weights.",
    recorded=Verdict.HOLDS,
    cost=10,
)
def until_convergence(setting: Setting) -> Evidence:
    """The change late against earlier (δ = 0.01), and how ‖f‖ grows (δ = 1) under a fixed kernel and in a network."""
    widths = setting.pick(quick=(128, 256, 512), full=(256, 512, 1024, 2048), paper=(256, 1024, 4096, 8192))
    seeds, last = setting.seeds(quick=2, full=5, paper=3), setting.pick(quick=2000, full=10_000, paper=10_000)
    steps = [*(t for t in (10, 30, 100, 300, 1000, 3000) if t < last), last]

    def measure(width: int, seed: int) -> dict[str, object]:
        pairs = setting.pairs(10, seed=seed)
        net = setting.net(pairs.x, width, 10, seed=seed)
        run = train(
            net,
            contrastive_problem(pairs, loss_of("cosine")),
            n_steps=last,
            record_at=steps,
            recorders={"change": ntk_change(net, probes_of(pairs))},
        )
        return {"change": padded(run.records["change"], len(steps))}

    data = sweep(widths, seeds, measure, t=steps)
    late = seed_mean(data.change.sel(t=last)) / seed_mean(data.change.sel(t=1000))
    times, kernel_norms = _norms_under_the_limit(setting)
    leaving_times, leaving_norms = _norms_of_a_narrow_network(setting)
    return evidence(
        {
            "growth_after_1000": float(late[data.width.values >= 256].max()),
            "exponent_late": width_law(data.change.sel(t=last)),
            "norm_exponent_fixed_kernel": fit_power_law(times, kernel_norms),
            "norm_exponent_narrow_network": fit_power_law(leaving_times, leaving_norms),
        },
        [
            Criterion(
                "growth_after_1000", f"the change at step {last} is at most 1.3 times that at 1,000, M ≥ 256", high=1.3
            ),
            Criterion("exponent_late", "it still falls with the width", high=-0.6),
            Criterion(
                "norm_exponent_fixed_kernel",
                "under a fixed kernel ‖f‖ grows as t^(1/3) (δ = 1)",
                low=0.313,
                high=0.353,
                role="corrected",
            ),
            Criterion(
                "norm_exponent_narrow_network",
                "at ηt ≫ M, ‖f‖ grows faster, as t^(1/2): the kernel grows with the weights (δ = 1, M = 32)",
                low=0.42,
                high=0.6,
                role="corrected",
            ),
        ],
        data=data.assign(
            norm_fixed_kernel=("time", kernel_norms), norm_narrow_network=("late_time", leaving_norms)
        ).assign_coords(time=times, late_time=leaving_times),
        panels=[
            step_panel(f"NTK change over {last:,} steps", data.change),
            Panel(
                "The norm never settles (δ = 1)",
                "time ηt",
                "‖f‖",
                (
                    curve("fixed kernel", times, kernel_norms),
                    curve("network, M = 32", leaving_times, leaving_norms),
                    curve("t^(1/3)", times, kernel_norms[-1] * (times / times[-1]) ** (1 / 3), "dashed"),
                ),
            ),
        ],
        setting={"n_samples": 10, "d_out": 10, "learning_rate": RATE},
    )


def _norms_under_the_limit(setting: Setting) -> tuple[np.ndarray, np.ndarray]:
    """‖f‖ under K* and δ = 1 at times so late that its directions have settled."""
    on_cpu = replace(setting, device="cpu")  # an ODE of 200 numbers would wait for a GPU
    pairs = on_cpu.pairs(10, seed=0)
    net = on_cpu.net(pairs.x, 128, 10, seed=0)
    problem = contrastive_problem(pairs, loss_of("cosine", delta=1.0))
    times = np.geomspace(3e5, 3e6, 6)
    start = net(problem.inputs).detach()
    flow = fixed_kernel_flow(infinite_ntk(problem.inputs), start, problem.objective, times=list(times), tolerance=1e-6)
    return times, flow.flatten(1).norm(dim=1).cpu().numpy()


def _norms_of_a_narrow_network(setting: Setting) -> tuple[np.ndarray, np.ndarray]:
    """‖f‖ of a network of 32 units with δ = 1 and η = 4, long after ηt = M; against ηt."""
    pairs, rate = setting.pairs(10, seed=0), 4.0
    net = setting.net(pairs.x, 32, 10, seed=0)
    steps = [int(t) for t in np.geomspace(500, 5000, 6)]
    run = train(
        net,
        contrastive_problem(pairs, loss_of("cosine", delta=1.0)),
        n_steps=steps[-1],
        record_at=steps,
        recorders={"norm": lambda now: now.outputs.norm()},
        learning_rate=rate,
    )
    return rate * np.asarray(steps, dtype=float), run.records["norm"].numpy()


@claim(
    "A.closed",
    source="Beyond paper A (Remark 14)",
    title="Dot product, linear link and a fixed NTK have a closed form",
    printed="vec F(t) = exp(2tK(S ⊗ I)) vec F(0) for the flow, (I + 2ηK(S ⊗ I))^t vec F(0) for descent, where paper A "
    "says that there may be none.",
    recorded=Verdict.HOLDS,
)
def closed_form(setting: Setting) -> Evidence:
    """The closed form against simulated descent and an ODE solver, for the finite and the infinite kernel."""
    setting = replace(setting, device="cpu")  # an ODE of 64 numbers would wait for a GPU
    worst = {"descent": 0.0, "flow": 0.0}
    for seed in setting.seeds(quick=2):
        pairs = setting.pairs(8, seed=seed)
        net = setting.net(pairs.x, 256, 4, seed=seed)
        problem, S = contrastive_problem(pairs, loss_of("dot")), pair_matrix(pairs)
        start = net(problem.inputs).detach()
        for kernel in (empirical_ntk(net, problem.inputs), infinite_ntk(problem.inputs)):
            rate = 0.05 / _largest(kernel)
            steps = [1, 10, 100]
            run = fixed_kernel_descent(
                kernel, start, problem.objective, learning_rate=rate, n_steps=100, record_at=steps, keep_outputs=True
            )
            assert run.outputs is not None
            found = dot_product_descent(kernel, start, S, learning_rate=rate, steps=steps)
            worst["descent"] = largest(worst["descent"], _distance(found, run.outputs))
            times = [10 * rate, 100 * rate]
            flow = fixed_kernel_flow(kernel, start, problem.objective, times=times, tolerance=1e-12)
            worst["flow"] = largest(worst["flow"], _distance(dot_product_flow(kernel, start, S, times=times), flow))
    return evidence(
        {"descent_error": worst["descent"], "flow_error": worst["flow"]},
        [
            Criterion("descent_error", "the closed form is descent with a fixed kernel", high=1e-10),
            Criterion("flow_error", "the closed form is the flow", high=1e-8),
        ],
        setting={"n_samples": 8, "width": 256, "d_out": 4},
    )


def _largest(kernel: Tensor) -> float:
    return float(kernel.diagonal(dim1=0, dim2=1).abs().max())


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


@claim(
    "A.variants",
    source="Beyond paper A (next checks of its summary)",
    title="Which parts of the theory depend on the loss and the data?",
    printed="Under every loss on cosine similarity, and on every data set, the NTK's change falls with the width at "
    "least as 1/√M; under the linear loss on the dot product every run diverges.",
    recorded=Verdict.HOLDS,
    cost=12,
)
def variants(setting: Setting) -> Evidence:
    """The exponent of the NTK's change for each loss and data set, in one table."""
    widths = setting.pick(
        quick=(128, 256, 512, 1024), full=(128, 256, 512, 1024, 2048), paper=(256, 512, 1024, 2048, 4096, 8192)
    )
    n_samples, n_steps = setting.pick(quick=20, full=50, paper=100), setting.pick(quick=50, full=100, paper=100)
    seeds = setting.seeds(quick=4, full=5, paper=5)
    names = [Path(name).stem for name in setting.data_names]
    if len(set(names)) < len(names):  # files of one name in two folders
        names = [name.replace("/", "_") for name in setting.data_names]
    found: dict[str, xr.Dataset] = {}
    for name, source in zip(names, setting.data_names, strict=True):
        losses = [loss for loss in LOSSES if loss != "supcon" or setting.dataset(source).y is not None]

        def measure(width: int, seed: int, losses: list[str] = losses, source: str = source) -> dict[str, object]:
            pairs, labels = setting.labeled_pairs(n_samples, seed=seed, data=source)
            net = setting.net(pairs.x, width, 10, seed=seed)
            rates = {
                loss: LOSSES[loss] * (dot_rate(setting, source) if loss.endswith("_dot") else RATE) for loss in losses
            }
            runs = [_variant_run(net, pairs, labels, loss, rates[loss], n_steps=n_steps) for loss in losses]
            return {key: [run[key] for run in runs] for key in ("change", "diverged")}

        data = sweep(widths, seeds, measure, loss=losses)
        found |= {f"{name}_{loss}": data.sel(loss=loss, drop=True) for loss in losses}
    diverged = {key: float(data.diverged.values.mean()) for key, data in found.items()}
    laws = {key: width_law(data.change) for key, data in found.items() if diverged[key] == 0}
    on_cosine = [key for key in found if not key.endswith("_dot")]
    worst = largest(*(laws[key].value for key in on_cosine if key in laws)) if laws else math.nan
    dot = [key for key in found if key.endswith("linear_dot")]
    first = [key for key in laws if key.startswith(f"{names[0]}_")]
    return evidence(
        {
            "largest_exponent_on_cosine": worst,
            "share_diverged_on_cosine": largest(*(diverged[key] for key in on_cosine)),
            "share_diverged_linear_dot": min(diverged[key] for key in dot),
            **{f"exponent_{key}": law for key, law in laws.items()},
            **{f"share_diverged_{key}": share for key, share in diverged.items() if share > 0},
        },
        [
            Criterion("largest_exponent_on_cosine", "the change falls at least as 1/√M under each of them", high=-0.5),
            Criterion("share_diverged_on_cosine", "no run on cosine similarity diverges", high=0),
            Criterion(
                "share_diverged_linear_dot", "every run under the linear loss on the dot product diverges", low=1
            ),
        ],
        data=xr.concat(list(found.values()), dim=xr.Variable("case", list(found))),
        panels=[
            width_panel(
                f"NTK change by loss, {names[0]}, {n_steps} steps",
                {key.removeprefix(f"{names[0]}_"): found[key].change for key in first},
            ),
            width_panel("NTK change by data, linear loss", {name: found[f"{name}_linear"].change for name in names}),
        ],
        setting={"n_samples": n_samples, "d_out": 10, "n_steps": n_steps, "data": names},
    )


# Loss → its learning rate over that of the linear loss: those with a temperature of 1/2 have twice the slopes.
LOSSES = {
    "linear": 1.0,
    "softmax": 1.0,
    "log_softmax": 1.0,
    "info_nce": 0.5,
    "nt_xent": 0.5,
    "supcon": 0.5,
    "moco_dot": 0.5,
    "linear_dot": 1.0,
}
TEMPERATURE = 0.5


def _variant_run(
    net: MLP, pairs: Pairs, labels: Tensor | None, loss: str, rate: float, *, n_steps: int
) -> dict[str, float]:
    """One training: how far the NTK moved, or that it diverged."""
    run = train(
        net,
        _variant_problem(pairs, labels, loss),
        n_steps=400 if loss == "linear_dot" else n_steps,  # long enough to diverge
        record_at=[n_steps],
        recorders={"change": ntk_change(net, probes_of(pairs))},
        learning_rate=rate,
    )
    change = run.records.get("change")
    return {
        "change": math.nan if change is None else float(change[0]),
        "diverged": float(run.status is Status.DIVERGED),
    }


def _variant_problem(pairs: Pairs, labels: Tensor | None, loss: str) -> Problem:
    """The paper's triplet losses by their link; the named ones over the batch of anchors and their positives."""
    if loss in ("linear", "softmax", "log_softmax"):
        return contrastive_problem(pairs, loss_of("cosine", loss))
    if loss == "linear_dot":
        return contrastive_problem(pairs, loss_of("dot"))

    def objective(outputs: Tensor) -> Tensor:
        a, b = outputs[pairs.anchor], outputs[pairs.positive[:, 0]]
        if loss == "nt_xent":
            return nt_xent(a, b, temperature=TEMPERATURE).total
        if loss == "supcon":
            assert labels is not None
            return supcon(torch.stack([a, b], dim=1), labels, temperature=TEMPERATURE).total
        # MoCo's is InfoNCE on plain dot products (paper A, Sec. 2.1).
        return info_nce(a, b, temperature=TEMPERATURE, normalize=loss == "info_nce").total

    return Problem(pairs.rows, objective, pairs.n_anchors)
