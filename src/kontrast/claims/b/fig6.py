"""B.fig6: does depth change the dynamics of deep linear networks?"""

from __future__ import annotations

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from kontrast.claims.b.problems import MOONS, first_within, moon_matrix, orthogonal_net, start_of
from kontrast.claims.evidence import Evidence, Finding, Panel, Verdict, corrected, curve, judged, printed, shown
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, largest, seed_mean, sweep
from kontrast.deep_linear import Flow, deep_linear_flow, train_deep_linear
from kontrast.linalg import subspace_sines
from kontrast.nets import MLP

FLOWS: dict[Flow, str] = {"polar": "Projected descent", "grassmann": "I − WW^T on every layer"}
DEPTHS = (1, 2, 3)
Z = 2
RATE = 0.01


@claim(
    "B.fig6",
    source="Paper B, Fig. 6",
    title="Does depth change the dynamics?",
    printed="With one, two and three hidden layers the dynamics are very similar, and all converge to the same final "
    "embedding.",
    corrected="All depths converge to the same span, but under projected descent the outputs differ by a rotation of a "
    "few percent, and each further layer makes the loss fall faster, as its equation predicts. Only the flow with "
    "I − WW^T on every layer does not depend on the depth.",
    recorded=Verdict.CORRECTED,
    cost=2,
)
def figure_6(setting: Setting) -> Evidence:
    """Two kinds of descent by depth: steps to half the least loss, against the equation; where they end."""
    width = setting.pick(quick=10, full=10, paper=100)
    seeds, n_steps = setting.seeds(quick=2, full=10), setting.pick(quick=1200, full=3000)
    steps, ends = list(range(0, 401, 4)), dict[tuple[int, str], Tensor]()

    def measure(depth: int, seed: int) -> dict[str, object]:
        C = moon_matrix(200, seed)
        least = float(torch.linalg.eigvalsh(C)[:Z].sum())
        net = _same_start(orthogonal_net(3, width, Z, seed), depth)
        found: dict[str, object] = {}
        for flow in FLOWS:
            run = train_deep_linear(net, C, flow=flow, learning_rate=RATE, n_steps=n_steps)
            found[f"steps_{flow}"] = first_within(run.losses, least, 0.5)
            found[f"loss_{flow}"] = run.losses[steps] / abs(least)
            shallow = ends.setdefault((seed, flow), run.final_outputs)  # the first depth is 1
            found[f"apart_{flow}"] = float((run.final_outputs - shallow).abs().max())
            found[f"sine_{flow}"] = float(subspace_sines(run.final_outputs, torch.eye(3, dtype=C.dtype)[:, :Z])[0])
        law = deep_linear_flow(C, start_of(net), times=RATE * np.arange(1, n_steps), flow="polar", depth=depth)
        found["steps_equation"] = first_within(law.losses, least, 0.5) + 1
        return found

    data = sweep(DEPTHS, seeds, measure, t=steps).rename(width="depth")
    return judged(
        *_findings(data),
        data=data,
        panels=[
            Panel(
                title,
                "step t",
                "loss over |least loss|",
                tuple(
                    curve(f"{depth + 1} layers", data.t, seed_mean(data[f"loss_{flow}"].sel(depth=depth)), "plain")
                    for depth in DEPTHS
                ),
                x_log=False,
                y_log=False,
            )
            for flow, title in FLOWS.items()
        ],
        setting={**MOONS, "width": width, "learning_rate": RATE, "n_seeds": len(seeds)},
    )


def _findings(data: xr.Dataset) -> list[Finding]:
    """Steps to half the least loss and final outputs by depth, under both kinds of descent."""
    mean = {name: seed_mean(data[name]) for name in data.data_vars if data[name].ndim == 2}
    steps, by_grassmann = mean["steps_polar"], mean["steps_grassmann"]
    ratio, speed_up = steps / mean["steps_equation"], float(steps[0] / steps[-1])
    spread = float(by_grassmann.max() / by_grassmann.min())
    apart = {flow: largest(data[f"apart_{flow}"]) for flow in FLOWS}
    sine = largest(mean["sine_polar"], mean["sine_grassmann"])
    predicted = "projected: the steps are as the equation predicts ({})"
    return [
        *shown(**{f"steps_to_half_{depth + 1}_layers": float(steps[k]) for k, depth in enumerate(DEPTHS)}),
        printed("speed_up_2_to_4_layers", speed_up, "four layers are as fast as two", low=0.9, high=1.1),
        printed("final_difference_polar", apart["polar"], "all depths end with the same outputs", high=1e-3),
        corrected("speed_up_2_to_4_layers", speed_up, "projected: four layers are faster", low=1.2),
        corrected("steps_over_equation_least", float(ratio.min()), predicted.format("smallest ratio"), low=0.93),
        corrected("steps_over_equation_most", float(ratio.max()), predicted.format("largest ratio"), high=1.07),
        corrected("grassmann_spread", spread, "I − WW^T: depth does not change the speed", low=1, high=1.02),
        corrected("final_difference_polar", apart["polar"], "projected: the outputs are rotated", low=0.01, high=0.2),
        corrected("final_difference_grassmann", apart["grassmann"], "I − WW^T: the outputs are the same", high=1e-3),
        corrected("largest_final_sine", sine, "all depths end at the span of v_1, v_2 (sine)", high=0.05),
    ]


def _same_start(net: MLP, depth: int) -> MLP:
    """A deeper network with the same map: the square layers are random rotations, and the last layer undoes them."""
    deep = orthogonal_net(net.d_in, net.width, net.d_out, 0, depth=depth)
    with torch.no_grad():
        deep.hidden[0].copy_(net.hidden[0])
        output = net.output
        for W in deep.hidden[1:]:
            output = W @ output
        deep.output.copy_(output)
    return deep
