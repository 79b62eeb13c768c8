"""Claim A.fig2: under the dot product the NTK change diverges within epochs."""

from __future__ import annotations

import math

import numpy as np

from kontrast.claims.a.runs import divergence_law, divergence_panels, dot_divergence, dot_rate
from kontrast.claims.evidence import Evidence, Verdict, judged, printed
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, geometric, largest


@claim(
    "A.fig2",
    source="Paper A, Fig. 2",
    title="Dot product: the NTK change diverges within epochs",
    printed="Under the dot product the change of the NTK diverges after a few epochs, at every width.",
    recorded=Verdict.HOLDS,
)
def figure_2(setting: Setting) -> Evidence:
    """Train until overflow: every run overflows, and wider ones later, about as ln M."""
    widths = setting.pick(quick=geometric(32, 1024), full=geometric(32, 4096), paper=geometric(32, 8192))
    n_samples = setting.pick(quick=10, full=10, paper=1000)
    data = dot_divergence(setting, widths, setting.seeds(quick=4), n_samples=n_samples)
    law, last = divergence_law(data), largest(np.nan_to_num(data.diverged_at.values, nan=math.inf))
    sentence = "wider networks overflow later: the slope in ln M is positive"
    # Without a law some run never overflowed, and the claim is refuted already.
    later = () if law is None else (printed("steps_later_a_factor_e", law, sentence, low=0),)
    return judged(
        printed("share_diverged", float(np.isfinite(data.diverged_at).mean()), "every run overflows", low=1),
        printed("last_divergence", last, "all of them do within 40 epochs", high=40),
        *later,
        data=data,
        panels=divergence_panels(data),
        setting={"n_samples": n_samples, "d_out": 10, "learning_rate": dot_rate(setting)},
    )
