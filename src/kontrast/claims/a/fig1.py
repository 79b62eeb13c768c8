"""Claim A.fig1: the dynamics of a fixed NTK approach gradient descent as the width grows."""

from __future__ import annotations

import numpy as np

from kontrast.claims.a.runs import RATE, train
from kontrast.claims.evidence import Evidence, Verdict, judged, printed, shown
from kontrast.claims.panels import width_panel
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, geometric, loss_of, seed_mean, sweep, width_law
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
    widths = setting.pick(quick=geometric(64, 2048), full=geometric(32, 8192), paper=geometric(32, 32768))
    n_steps = setting.pick(quick=300, full=500)

    def measure(width: int, seed: int) -> dict[str, float]:
        pairs = setting.pairs(10, seed=seed)
        net = setting.net(pairs.x, width, 10, seed=seed)
        problem = contrastive_problem(pairs, loss_of("cosine"))
        start = net(problem.inputs).detach()
        trained = train(net, problem, [n_steps])
        twin = fixed_kernel_descent(
            empirical_ntk(net, problem.inputs), start, problem.objective, learning_rate=RATE, n_steps=n_steps
        )
        f, f_K = trained.final_outputs, twin.final_outputs
        return {
            "gap": float((f - f_K).norm() / f.norm()),
            "entrywise": float(((f - f_K) / f).abs().max()),
            "move": float((f - start).norm() / start.norm()),
        }

    data = sweep(widths, setting.seeds(quick=4), measure)
    gaps, law = seed_mean(data.gap), width_law(data.gap, from_width=256)
    falls = float(np.all(np.diff(gaps) < 0))
    return judged(
        printed("exponent", law, "from width 256 on, the gap falls as a power of the width", low=-1.1, high=-0.5),
        printed("falls", falls, "the mean over seeds falls from each width to the next (1: yes)", low=1),
        printed("outputs_moved", data.move.values.mean(), "training moved the outputs", low=0.1),
        *shown(gap_narrowest=gaps[0], gap_widest=gaps[-1], entrywise_widest=data.entrywise.isel(width=-1).values.max()),
        data=data,
        panels=[
            width_panel(
                "NTK dynamics against gradient descent", {"mean over seeds": data.gap}, "‖f − f_K‖ / ‖f‖", guides=[-0.5]
            )
        ],
        setting={"n_samples": 10, "d_out": 10, "learning_rate": RATE, "n_steps": n_steps},
    )
