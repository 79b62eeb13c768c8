"""A diagnosis in words: the verdict, the numbers behind it, and what to try next."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kontrast.diagnosis.augmentations import told_by
from kontrast.diagnosis.buys import Gain
from kontrast.diagnosis.laziness import CONTROL
from kontrast.diagnosis.rules import Regime, collapse_in, worst_collapse
from kontrast.diagnosis.views_and_loss import augmentations_in
from kontrast.linalg import Estimate

if TYPE_CHECKING:
    from kontrast.diagnosis.result import Diagnosis

REGIMES = {
    Regime.UNDERTRAINED: "undertrained",
    Regime.PCA: "the model is PCA of the features at its start",
    Regime.KERNEL: "the model is a kernel machine",
    Regime.LEARNING: "training learns features",
    Regime.UNKNOWN: "one checkpoint alone does not tell what training did",
}
COLLAPSES = {
    "none": "no collapse",
    "dimensional": "dimensional collapse of {layer}: few directions are left",
    "complete": "complete collapse of {layer}: all samples look the same",
}
PROBE_WORDS = {
    "linear": "linear-probe accuracy",
    "knn": "nearest-neighbour accuracy",
    "dichotomies": "random dichotomies",
}


def verdict_of(d: Diagnosis) -> str:
    """Regime, collapse and what training pays, in one sentence."""
    collapse, layer = worst_collapse(d.result)
    regime = REGIMES[d.decided.regime] + ("" if d.decided.sure else " (not sure)")
    if _is_monitor(d):
        seen = [str(label) for label in d.result.checkpoint.values]
        regime = f"seen from {seen[0]} to {seen[-1]}"
    elif collapse == "complete" and d.decided.regime is Regime.LEARNING:
        regime = "training moved features"  # what was learned is lost
    parts = [regime, COLLAPSES[collapse].format(layer=layer)]
    if collapse != "none":  # the gravest first
        parts.reverse()
    blamed = f"to blame: {' and '.join(d.blamed)}" if d.blamed else ""
    return "; ".join(part for part in (*parts, blamed, _pays(d)) if part)


def _pays(d: Diagnosis) -> str:
    start, hardest = d.buys.get("start"), d.hardest
    if hardest is None:
        return ""
    task = PROBE_WORDS.get(hardest.task, hardest.task)
    if hardest.task not in ("linear", "knn"):
        lost = f"training has lost {task} to its start ({hardest.in_points()})"
        return lost if d.pays == "no" else "whether training buys anything only labels would decide"
    over = [] if start is None or hardest.over.startswith("start") else [f"{start.in_points()} over its start"]
    gained = ", ".join([*over, f"{hardest.in_points()} over {hardest.over}"])
    told = {
        "yes": f"training pays: {gained} in {task}, the hardest to beat",
        "no": f"training buys nothing over {hardest.over}: {gained} in {task}",
        "unsure": f"whether training pays is not sure: {gained} in {task}",
    }
    return told[d.pays]


def _is_monitor(d: Diagnosis) -> bool:
    """Whether the numbers are a monitor's, which sees embeddings alone and cannot tell the regime."""
    return str(d.result.attrs.get("kind", "")) == "monitor"


def reasons_of(d: Diagnosis) -> Iterator[str]:
    """The numbers that decided, each beside its own zero where it has one."""
    if not _is_monitor(d):
        yield f"{d.regime}: {d.decided.reason}"
    yield from _loss(d)
    yield from _lazy(d)
    yield from _ranks(d)
    yield from _scores(d)
    yield from (cause.sentence for cause in d.causes)
    if parts := augmentations_in(d.result):
        yield told_by(parts)
    yield from _checkpoints(d)
    if d.labels is not None:
        yield from d.labels.sentences
    if (width := d.width_for()) is not None:
        yield width.sentence


def _loss(d: Diagnosis) -> Iterator[str]:
    """Why the loss that was given tells nothing."""
    why = next((reason for name, reason in d.missing.items() if name.startswith("loss at")), None)
    if why is not None and d.result.attrs.get("loss_given", 0):
        yield f"of the loss that was given nothing is known: {why}"


def _lazy(d: Diagnosis) -> Iterator[str]:
    if "point" not in d.result.dims or not d.result.sizes["point"]:
        return
    end = str(d.result.point.values[-1])
    words = {
        "linearization_error": "the linearised prediction is off by {} of the embedding's change",
        "fixed_kernel_error": "the fixed-kernel prediction by {}",
        "drift": "the tangent kernel moved by {} of its size",
        "alignment_with_first_kernel": "its alignment with the first is {}",
        "explained_share": "the first kernel explains {} of the change",
    }
    parts = []
    for name, text in words.items():
        it = d.number(name, point=end)
        if math.isfinite(it.value):
            control = d.number(name, point=CONTROL)
            beside = f" (lazy control {_write(name, control.value)})" if math.isfinite(control.value) else ""
            parts.append(text.format(_write(name, it.value)) + beside)
    if parts:
        yield "; ".join(parts)


def _write(name: str, value: float) -> str:
    if name == "alignment_with_first_kernel":
        return f"{value:.2f}" if value < 0.995 else f"{value:.4f}"
    return f"{100 * value:.2g} %" if value < 0.995 else f"{100 * value:.0f} %"


def _ranks(d: Diagnosis) -> Iterator[str]:
    if "centered_rank" not in d.result:
        return
    start, end = (str(d.result.checkpoint.values[k]) for k in (0, -1))
    for layer in dict.fromkeys([str(d.result.attrs["features"]), "embedding"]):
        rank, first = (d.number("centered_rank", checkpoint=at, layer=layer) for at in (end, start))
        spread = d.number("spread", checkpoint=end, layer=layer)
        size = int(d.result.layer_dimension.sel(layer=layer))
        yield (
            f"{layer}: centred rank {_plain(rank)} of {size} dimensions (start {_plain(first)}), "
            f"spread {spread.value:.2g}"
            + ("" if (word := collapse_in(d.result, layer)) == "none" else f": {word} collapse")
        )


def _scores(d: Diagnosis) -> Iterator[str]:
    if "score" not in d.result or not d.buys:
        return
    task = next(iter(d.buys.values())).task
    trained = float(d.result.score.sel(task=task, embedding="trained").mean())
    others = ", ".join(f"{gain.over} {100 * gain.score:.1f} %" for gain in d.buys.values())
    yield f"{PROBE_WORDS.get(task, task)}: trained {100 * trained:.1f} %; {others}"


def _checkpoints(d: Diagnosis) -> Iterator[str]:
    if d.choice is None:
        return
    chosen = d.choice.chosen
    told = f"the best checkpoint without labels is {chosen.checkpoint} ({chosen.words})"
    if d.choice.best is not None:
        told += (
            f": linear probe {100 * chosen.accuracy:.1f} %, {100 * chosen.regret:.1f} points below the best, "
            f"{d.choice.best}, on these {d.result.attrs['n_samples']} samples"
        )
    yield told
    if d.learned_dimensions:
        yield "dimensions were learned at " + ", ".join(f"{label} ({count})" for label, count in d.learned_dimensions)


def _plain(it: Estimate) -> str:
    if not math.isfinite(it.value):
        return "–"
    return f"{it.value:.3g}" if not math.isfinite(it.low) else f"{it.value:.3g} [{it.low:.3g}, {it.high:.3g}]"


# --- what to try next -----------------------------------------------------------------------------------------------

ADVICE = {
    Regime.UNDERTRAINED: "train longer, or at a larger learning rate, before drawing conclusions",
    Regime.KERNEL: "features do not move: train longer or faster, narrow the network, or use its kernel without "
    "training (kt.KernelLearnability, kt.kernels.empirical_ntk_trace)",
    Regime.PCA: "take the closed form instead: kt.ContrastivePCA or kt.SpectralContrastive on the first features",
}
COLLAPSE_ADVICE = {
    "complete": "add what repels samples: negatives, a variance term, or a stop-gradient and predictor; lower the "
    "learning rate; check that the loss sees both views",
    "dimensional": "add what decorrelates dimensions (VICReg's covariance, Barlow Twins), weaker augmentation, a wider "
    "or linear projector; probe the features below the projector",
}


def advice_of(d: Diagnosis) -> Iterator[str]:
    """What to try next, the gravest first."""
    if d.collapse != "none":
        yield COLLAPSE_ADVICE[d.collapse]
    yield from (cause.advice for cause in d.causes)
    if d.decided.regime in ADVICE:
        yield ADVICE[d.decided.regime]
    if d.pays == "no" and d.hardest is not None:
        yield _instead(d.hardest)
    elif d.pays == "unsure" and d.hardest is not None and d.hardest.task in ("linear", "knn"):
        yield "give more labelled samples (labels=, test=), so that the intervals tell"
    elif d.hardest is not None and d.hardest.task not in ("linear", "knn"):
        yield "give labels of a few hundred samples (labels=): they decide whether training buys anything"
    if _is_ahead(d) and d.choice is not None:
        yield f"look at checkpoint {d.choice.chosen.checkpoint}, which is ahead of the last without labels"


def _is_ahead(d: Diagnosis) -> bool:
    """Whether an earlier checkpoint is worth a look: nothing has collapsed, and labels do not say otherwise."""
    if d.choice is None or d.collapse != "none" or d.choice.chosen.checkpoint == str(d.result.checkpoint.values[-1]):
        return False
    last = next((it for it in d.choice.others if it.name == "last"), None)
    return last is None or not d.choice.chosen.accuracy < last.accuracy


def _instead(gain: Gain) -> str:
    if gain.over == "start":
        return "training does not beat its own start: look at the augmentation, the loss and the learning rate"
    return f"{gain.over} ({gain.words}) does as well without training: use it, or train longer or on more data"
