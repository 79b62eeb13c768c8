"""Claim A.forever: does the NTK stay constant until convergence?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kontrast.claims.a.runs import RATE, cosine_drift, train
from kontrast.claims.evidence import Evidence, Panel, Verdict, corrected, curve, judged, printed
from kontrast.claims.panels import step_panel
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, largest, loss_of, seed_mean, width_law
from kontrast.dynamics import contrastive_problem, fixed_kernel_flow
from kontrast.kernels import infinite_ntk
from kontrast.linalg import fit_power_law


@claim(
    "A.forever",
    source="Paper A, Sec. 5, open problem",
    title="Does the NTK stay constant until convergence?",
    printed="Open; Fig. 3 suggests that for wide networks the NTK stays constant beyond M^α steps.",
    corrected="The change saturates within the first 10,000 steps. But for δ > 0 there is no finite minimiser: ‖f‖ "
    "grows forever, as t^(1/3) while the kernel is constant, and as t^(1/2) once ηt ≫ M and the kernel grows with "
    "the weights.",
    recorded=Verdict.HOLDS,
    cost=10,
)
def until_convergence(setting: Setting) -> Evidence:
    """Compare the late change with the earlier one (δ = 0.01), and fit the growth of ‖f‖ (δ = 1)."""
    widths = setting.pick(quick=(128, 256, 512), full=(256, 512, 1024, 2048), paper=(256, 1024, 4096, 8192))
    last = setting.pick(quick=2000, full=10_000)
    steps = [*(t for t in (10, 30, 100, 300, 1000, 3000) if t < last), last]
    data = cosine_drift(setting, widths, setting.seeds(quick=2, full=5, paper=3), steps)[["change"]]
    late = seed_mean(data.change.sel(t=last)) / seed_mean(data.change.sel(t=1000))
    growth = largest(late[data.width.values >= 256])
    times, kernel_norms = _norms_under_the_limit(setting)
    leaving_times, leaving_norms = _norms_of_a_narrow_network(setting)
    slow, fast = fit_power_law(times, kernel_norms), fit_power_law(leaving_times, leaving_norms)
    return judged(
        printed(
            "growth_after_1000",
            growth,
            f"the change at step {last} is at most 1.3 times that at step 1,000, M ≥ 256",
            high=1.3,
        ),
        printed("exponent_late", width_law(data.change.sel(t=last)), "it still falls with the width", high=-0.6),
        corrected(
            "norm_exponent_fixed_kernel",
            slow,
            "under a fixed kernel ‖f‖ grows as t^(1/3) (δ = 1)",
            low=0.313,
            high=0.353,
        ),
        corrected(
            "norm_exponent_narrow_network",
            fast,
            "at ηt ≫ M, ‖f‖ grows faster, as t^(1/2): the kernel grows with the weights (δ = 1, M = 32)",
            low=0.42,
            high=0.6,
        ),
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
    """Norms ‖f‖ under K* with δ = 1, at times so late that the directions of f have settled."""
    on_cpu = replace(setting, device="cpu")  # an ODE of 200 numbers is slower on a GPU
    pairs, times = on_cpu.pairs(10, seed=0), np.geomspace(3e5, 3e6, 6)
    problem = contrastive_problem(pairs, loss_of("cosine", delta=1.0))
    start = on_cpu.net(pairs.x, 128, 10, seed=0)(problem.inputs).detach()
    flow = fixed_kernel_flow(infinite_ntk(problem.inputs), start, problem.objective, times=list(times), tolerance=1e-6)
    return times, flow.flatten(1).norm(dim=1).cpu().numpy()


def _norms_of_a_narrow_network(setting: Setting) -> tuple[np.ndarray, np.ndarray]:
    """Times ηt and norms ‖f‖ of a network of 32 units with δ = 1 and η = 4, long after ηt = M."""
    pairs, rate = setting.pairs(10, seed=0), 4.0
    net, problem = setting.net(pairs.x, 32, 10, seed=0), contrastive_problem(pairs, loss_of("cosine", delta=1.0))
    steps = [int(t) for t in np.geomspace(500, 5000, 6)]
    run = train(net, problem, steps, {"norm": lambda now: now.outputs.norm()}, learning_rate=rate)
    return rate * np.asarray(steps, dtype=float), run.records["norm"].numpy()
