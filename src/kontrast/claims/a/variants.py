"""Claim A.variants: which parts of the theory depend on the loss and the data?"""

from __future__ import annotations

import math
from pathlib import Path

import torch
import xarray as xr
from torch import Tensor

from kontrast.claims.a.runs import RATE, dot_rate, ntk_change, train
from kontrast.claims.evidence import Evidence, Verdict, judged, printed, shown
from kontrast.claims.panels import width_panel
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, geometric, largest, loss_of, sweep, width_law
from kontrast.data import Pairs
from kontrast.dynamics import Problem, Status, contrastive_problem
from kontrast.losses import info_nce, nt_xent, supcon
from kontrast.nets import MLP
from kontrast.runs import padded

# Loss → its learning rate relative to the linear loss: a temperature of 1/2 doubles the slopes.
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


@claim(
    "A.variants",
    source="Beyond paper A (next checks of its summary)",
    title="Which parts of the theory depend on the loss and the data?",
    printed="Under every loss on cosine similarity, and on every data set, the change of the NTK falls with the width "
    "at least as 1/√M; under the linear loss on the dot product every run diverges.",
    recorded=Verdict.HOLDS,
    cost=12,
)
def variants(setting: Setting) -> Evidence:
    """Measure the exponent of the NTK change for every loss and data set."""
    widths = setting.pick(quick=geometric(128, 1024), full=geometric(128, 2048), paper=geometric(256, 8192))
    n_samples, n_steps = setting.pick(quick=20, full=50, paper=100), setting.pick(quick=50, full=100)
    names = [Path(name).stem for name in setting.data_names]
    if len(set(names)) < len(names):  # files of the same name in two folders
        names = [name.replace("/", "_") for name in setting.data_names]
    found: dict[str, xr.Dataset] = {}
    for name, source in zip(names, setting.data_names, strict=True):
        losses = [loss for loss in LOSSES if loss != "supcon" or setting.dataset(source).y is not None]

        def measure(width: int, seed: int, losses: list[str] = losses, source: str = source) -> dict[str, object]:
            pairs, labels = setting.labeled_pairs(n_samples, seed=seed, data=source)
            net = setting.net(pairs.x, width, 10, seed=seed)
            dot = dot_rate(setting, source)
            rates = {loss: LOSSES[loss] * (dot if loss.endswith("_dot") else RATE) for loss in losses}
            runs = [_variant_run(net, pairs, labels, loss, rates[loss], n_steps=n_steps) for loss in losses]
            return {key: [run[key] for run in runs] for key in ("change", "diverged")}

        data = sweep(widths, setting.seeds(quick=4), measure, loss=losses)
        found |= {f"{name}_{loss}": data.sel(loss=loss, drop=True) for loss in losses}
    diverged = {key: float(data.diverged.values.mean()) for key, data in found.items()}
    laws = {key: width_law(data.change) for key, data in found.items() if diverged[key] == 0}
    on_cosine = [key for key in found if not key.endswith("_dot")]
    worst = largest(*(laws[key].value for key in on_cosine if key in laws)) if laws else math.nan
    first = [key for key in laws if key.startswith(f"{names[0]}_")]
    cosine = largest(*(diverged[key] for key in on_cosine))
    linear_dot = min(share for key, share in diverged.items() if key.endswith("linear_dot"))
    return judged(
        printed(
            "largest_exponent_on_cosine",
            worst,
            "under every loss on cosine similarity the change falls at least as 1/√M",
            high=-0.5,
        ),
        printed("share_diverged_on_cosine", cosine, "no run on cosine similarity diverges", high=0),
        printed(
            "share_diverged_linear_dot",
            linear_dot,
            "every run under the linear loss on the dot product diverges",
            low=1,
        ),
        *shown(**{f"exponent_{key}": law for key, law in laws.items()}),
        *shown(**{f"share_diverged_{key}": share for key, share in diverged.items() if share > 0}),
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


def _variant_run(
    net: MLP, pairs: Pairs, labels: Tensor | None, loss: str, rate: float, *, n_steps: int
) -> dict[str, float]:
    """Train once; return how far the NTK moved and whether the run diverged."""
    problem, recorders = _variant_problem(pairs, labels, loss), {"change": ntk_change(net, pairs)}
    length = 400 if loss == "linear_dot" else n_steps  # long enough to diverge
    run = train(net, problem, [n_steps], recorders, n_steps=length, learning_rate=rate)
    return {"change": float(padded(run.records.get("change"), 1)[0]), "diverged": float(run.status is Status.DIVERGED)}


def _variant_problem(pairs: Pairs, labels: Tensor | None, loss: str) -> Problem:
    """The paper's triplet losses, by their link, or a named loss over the batch of anchors and their positives."""
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
        # MoCo's loss is InfoNCE on plain dot products (paper A, Sec. 2.1).
        return info_nce(a, b, temperature=TEMPERATURE, normalize=loss == "info_nce").total

    return Problem(pairs.rows, objective, pairs.n_anchors)
