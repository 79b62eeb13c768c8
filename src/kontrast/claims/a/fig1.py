"""Claim A.fig1: the dynamics of a fixed NTK approach gradient descent as the width grows."""

from __future__ import annotations

import numpy as np

from kontrast.claims.a.runs import RATE, train
from kontrast.claims.evidence import Evidence, Panel, Verdict, curve, judged, printed, shown
from kontrast.claims.panels import guide
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, loss_of, seed_mean, sweep, width_law
from kontrast.dynamics import contrastive_problem, fixed_kernel_descent
from kontrast.kernels import empirical_ntk


@claim(
    "A.fig1",
    source="Paper A, Fig. 1",
    title="Fixed-NTK dynamics approach gradient descent as the width grows (cosine)",
    printed="The difference between NTK dynamics and gradient descent falls with the width.",
    recorded=Verdict.HOLDS,
    cost=4,
)
def figure_1(setting: Setting) -> Evidence:
    """Measure ‖f − f_K‖_F/‖f‖_F after training, N = Z = 10.

    The paper divides entry by entry, which explodes wherever an entry of f is near 0.
    """
    widths = setting.pick(
        quick=(64, 128, 256, 512, 1024, 2048),
        full=(32, 64, 128, 256, 512, 1024, 2048, 4096, 8192),
        paper=(32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
    )
    n_steps, seeds = setting.pick(quick=300, full=500, paper=500), setting.seeds(quick=4)

    def measure(width: int, seed: int) -> dict[str, float]:
        pairs = setting.pairs(10, seed=seed)
        net = setting.net(pairs.x, width, 10, seed=seed)
        problem = contrastive_problem(pairs, loss_of("cosine"))
        start = net(problem.inputs).detach()
        trained = train(net, problem, n_steps=n_steps, record_at=[n_steps], recorders={})
        twin = fixed_kernel_descent(
            empirical_ntk(net, problem.inputs), start, problem.objective, learning_rate=RATE, n_steps=n_steps
        )
        f, f_K = trained.final_outputs, twin.final_outputs
        return {
            "gap": float((f - f_K).norm() / f.norm()),
            "entrywise": float(((f - f_K) / f).abs().max()),
            "move": float((f - start).norm() / start.norm()),
        }

    data = sweep(widths, seeds, measure)
    gaps = seed_mean(data.gap)
    return judged(
        printed(
            "exponent",
            width_law(data.gap, from_width=256),
            "from width 256 on, the gap falls as a power of the width",
            low=-1.1,
            high=-0.5,
        ),
        printed(
            "falls",
            float(np.all(np.diff(gaps) < 0)),
            "the mean over seeds falls from each width to the next (1: yes)",
            low=1,
        ),
        printed("outputs_moved", data.move.values.mean(), "training moved the outputs", low=0.1),
        *shown(gap_narrowest=gaps[0], gap_widest=gaps[-1], entrywise_widest=data.entrywise.isel(width=-1).values.max()),
        data=data,
        panels=[
            Panel(
                "NTK dynamics against gradient descent",
                "width M",
                "‖f − f_K‖ / ‖f‖",
                (curve("mean over seeds", widths, gaps), guide(widths, gaps, -0.5, "M^−1/2")),
            )
        ],
        setting={"n_samples": 10, "d_out": 10, "learning_rate": RATE, "n_steps": n_steps},
    )
