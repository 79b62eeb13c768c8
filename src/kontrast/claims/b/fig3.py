"""B.fig3: the discretised equation against trained networks."""

from __future__ import annotations

from typing import Any

import torch
import xarray as xr

from kontrast.claims.b.problems import MOONS, first_within, moon_matrix, orthogonal_net, start_of
from kontrast.claims.evidence import Evidence, Finding, Panel, Style, Verdict, corrected, curve, judged, printed, shown
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, largest, seed_mean, sweep
from kontrast.deep_linear import deep_linear_descent, train_deep_linear

Z = 2
RATE = 0.01
CURVES: tuple[tuple[str, str, Style], ...] = (
    ("trained", "trained network", "plain"),
    ("corrected", "(11) with the factor 2", "dashed"),
    ("printed", "(11) as printed", "plain"),
)


@claim(
    "B.fig3",
    source="Paper B, Fig. 3",
    title="The discretised equation against trained networks",
    printed="With η = 0.01 and h = 10, 100, 1000, the loss of (11) decays slightly more slowly than that of the "
    "trained network, and both converge to the same value; so do the outputs.",
    corrected="(11) takes twice as long. With the factor 2 of (8) the largest gap is a few percent of the loss at h = "
    "10 and falls with the width: wide networks start near q = 0, where all equations of two layers agree.",
    recorded=Verdict.CORRECTED,
    cost=2,
)
def figure_3(setting: Setting) -> Evidence:
    """Two-layer networks under projected descent against (11), as printed and corrected: losses and outputs."""
    widths = setting.pick(quick=(10, 100), full=(10, 100, 1000))
    seeds, n_steps = setting.seeds(quick=2, full=10), setting.pick(quick=1500, full=3000)
    steps = list(range(0, n_steps + 1, 20))

    def measure(width: int, seed: int) -> dict[str, object]:
        C, net = moon_matrix(200, seed), orthogonal_net(3, width, Z, seed)
        options: Any = {"learning_rate": RATE, "n_steps": n_steps, "record_at": steps, "keep_outputs": True}
        runs = {
            "trained": train_deep_linear(net, C, flow="polar", **options),
            "printed": deep_linear_descent(C, start_of(net), printed=True, **options),
            "corrected": deep_linear_descent(C, start_of(net), **options),
        }
        scale = abs(float(torch.linalg.eigvalsh(C)[:Z].sum()))
        losses = {name: run.losses / scale for name, run in runs.items()}
        reached = {name: first_within(loss, -1.0, 0.05) for name, loss in losses.items()}
        found: dict[str, object] = {f"loss_{name}": loss[steps] for name, loss in losses.items()}
        for name in ("printed", "corrected"):
            gaps = (losses["trained"] - losses[name]).abs()
            found |= {f"gap_{name}": float(gaps.max()), f"final_gap_{name}": float(gaps[-1])}
            found[f"delay_{name}"] = reached[name] / reached["trained"]
        apart = runs["trained"].final_outputs - runs["corrected"].final_outputs
        return {**found, "output_difference": float(apart.abs().max())}

    data = sweep(widths, seeds, measure, t=steps)
    return judged(
        *_findings(data),
        data=data,
        panels=[
            Panel(
                f"h = {width}",
                "step t",
                "loss over |least loss|",
                tuple(
                    curve(label, data.t, seed_mean(data[f"loss_{name}"].sel(width=width)), style)
                    for name, label, style in CURVES
                ),
                x_log=False,
                y_log=False,
            )
            for width in widths
        ],
        setting={**MOONS, "learning_rate": RATE, "n_steps": n_steps},
    )


def _findings(data: xr.Dataset) -> list[Finding]:
    """Gaps between losses, relative to the least loss; delays in steps; differences of the final outputs."""
    mean = {name: seed_mean(data[name]) for name in data.data_vars if data[name].ndim == 2}
    gap, apart = mean["gap_corrected"], mean["output_difference"]
    slow, fast = largest(mean["delay_printed"]), largest(mean["delay_corrected"])
    return [
        printed("delay_printed", slow, "(11) is only slightly slower than training", high=1.2),
        *shown(largest_gap_printed=largest(mean["gap_printed"])),
        corrected("largest_gap_narrowest", float(gap[0]), "with the factor 2 it stays close at h = 10", high=0.06),
        corrected("largest_gap_widest", float(gap[-1]), "with the factor 2 it stays closer at large h", high=0.03),
        corrected("gap_widest_over_narrowest", float(gap[-1] / gap[0]), "the gap falls with the width", high=0.7),
        corrected("delay_corrected", fast, "with the factor 2 it is as fast as training", low=0.85, high=1.15),
        corrected("final_gap", largest(mean["final_gap_corrected"]), "both end at the same loss", high=2e-3),
        *shown(output_difference_narrowest=float(apart[0])),
        corrected("output_difference_widest", float(apart[-1]), "wide networks end with the same outputs", high=0.1),
    ]
