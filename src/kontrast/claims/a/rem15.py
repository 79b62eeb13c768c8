"""Claim A.rem15: under the dot product with an orthonormal W, C_V diverges."""

from __future__ import annotations

import math

import torch

from kontrast.claims.evidence import Evidence, Panel, Verdict, against, curve, judged, printed, shown
from kontrast.claims.panels import width_panel
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, largest, seed_mean, sweep, width_law
from kontrast.data import pair_matrix
from kontrast.pca import contrastive_drift, pair_features, train_pca_network


@claim(
    "A.rem15",
    source="Paper A, Remark 15",
    title="Dot product with an orthonormal W: C_V diverges",
    printed="As V is trained, C_V(t) moves arbitrarily far from C_V(0) within time log M, as the NTK does.",
    recorded=Verdict.REFUTED,
    cost=4,
)
def remark_15(setting: Setting) -> Evidence:
    """Measure ‖C_V(t) − C_V(0)‖/‖C_V(0)‖ at ηt = log M, and against ηt‖x‖²/M, the time it does depend on."""
    widths, seeds = setting.pick(quick=(32, 128, 512), full=(32, 128, 512, 2048)), setting.seeds(quick=2, full=4)
    times, square = (1.5, 6.0, 15.0), setting.mean_square()
    rate = 4.0 / square

    def measure(width: int, seed: int) -> dict[str, object]:
        pairs = setting.pairs(50, seed=seed)
        net = setting.net(pairs.x, width, 5, seed=seed)
        features, S = pair_features(net, pairs.rows), pair_matrix(pairs)
        size = contrastive_drift(features, torch.zeros_like(features), S)
        at_log = max(1, round(math.log(width) / rate))
        steps = [round(time * width / (rate * square)) for time in times]  # NaN where the run overflowed before
        run = train_pca_network(
            net,
            pairs,
            delta=None,
            learning_rate=rate,
            n_steps=max(*steps, at_log),
            record_at={*steps, at_log},
            recorders={
                "change": lambda now: (
                    contrastive_drift(pair_features(net, pairs.rows, parameters=now.parameters), features, S) / size
                )
            },
        )
        change = dict(zip(run.steps, run.records["change"].tolist(), strict=True))
        return {"at_log_M": change.get(at_log, math.nan), "change": [change.get(step, math.nan) for step in steps]}

    data = sweep(widths, seeds, measure, time=list(times))
    changes, at_log = seed_mean(data.change), seed_mean(data.at_log_M)  # (width, time), (width,)
    law, spread = width_law(data.at_log_M), largest(changes.max(0) / changes.min(0))
    title, y_label = "C_V under the dot product, orthonormal W", "‖C_V(t) − C_V(0)‖ / ‖C_V(0)‖"
    lines = tuple(curve(f"M = {width}", times, change) for width, change in zip(widths, changes, strict=True))
    return judged(
        printed("exponent_at_log_M", law, "at ηt = log M the change does not vanish with the width", low=0),
        printed(
            "change_at_log_M_widest",
            at_log[-1],
            "at ηt = log M the C_V of the widest network has left its start",
            low=1,
        ),
        against(
            "exponent_at_log_M", law, "instead the change at ηt = log M vanishes about as 1/M", low=-1.4, high=-0.6
        ),
        against(
            "spread_at_equal_time",
            spread,
            "instead, at equal ηt‖x‖²/M, widths differ by a factor of at most 2.5",
            high=2.5,
        ),
        *shown(change_at_log_M_narrowest=at_log[0]),
        data=data,
        panels=[
            Panel(title, "ηt‖x‖²/M", y_label, lines),
            width_panel("The same at ηt = log M", {"measured": data.at_log_M}, y_label),
        ],
        setting={"n_samples": 50, "d_out": 5, "learning_rate": rate},
    )
