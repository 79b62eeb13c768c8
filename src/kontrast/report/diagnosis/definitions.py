"""What every number of a diagnosis is: as its variable says, or, for a monitor's and for derived ones, from here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import xarray as xr

from kontrast.diagnosis import buys, collapse, laziness, pca_of_start, views_and_loss

DECLARED: dict[str, tuple[str, str]] = {
    it.name: (it.words, it.definition)
    for it in (
        *collapse.QUANTITIES,
        *laziness.QUANTITIES,
        pca_of_start.SINE,
        *views_and_loss.QUANTITIES,
        views_and_loss.CHANGE,
        views_and_loss.INVARIANCE,
        views_and_loss.LEAK,
    )
}
OTHERS: dict[str, tuple[str, str]] = {
    "singular_values": ("singular values", "Of the centred layer over the samples, divided by √n, descending."),
    "layer_dimension": ("dimensions of a layer", "How many numbers the layer gives for each sample."),
    "score_dimension": ("dimension d", "How many numbers an embedding has for each sample."),
    "similarity_histogram": ("similarities", "How many pairs of views have a cosine in each bin."),
    "similarity_to_start": ("similarity to the start", "Linear CKA of the layer with itself at the first record."),
    "loss_mean": ("mean loss", "Mean of the losses that training told since the last record."),
    "knn_accuracy": ("nearest neighbours", "Leave-one-out accuracy of 20 nearest neighbours by cosine similarity."),
    "score": ("score", "Of every embedding at every task in every split."),
    "parameter_movement": (
        "movement of the parameters by layer",
        "‖θ − θ(0)‖ / ‖θ(0)‖ of each layer's own parameters.",
    ),
    "width_drift": ("kernel drift by width", "‖K − K(0)‖ / ‖K(0)‖ after the same short training at every width."),
    "status": ("status", "Whether the record could be made, or why not."),
    "collapse": ("collapse", "The kind of collapse that a monitor saw in each layer."),
    "labels_needed": ("labels needed", "The fewest labels with which the error comes down to that level."),
    "checkpoint_accuracy": ("linear probe at checkpoints", buys.PROBES["linear"]),
}
DERIVED: Mapping[str, tuple[str, str]] = {
    **{f"score-{task}": (f"score: {task}", text) for task, text in (buys.PROBES | buys.TASKS).items()},
    "difference": (
        "trained less it",
        "Mean over the splits of the trained embedding's score less the other's, with the corrected interval of Nadeau "
        "and Bengio (2003), because splits share samples.",
    ),
    "regret": ("below the best", "The best checkpoint's accuracy by a linear probe, less the chosen one's."),
    "rank-correlation": (
        "rank correlation",
        "Spearman's, over the checkpoints, of what the criterion makes largest with the accuracy of a linear probe.",
    ),
}
OF_SCORES = {f"score-{task}": task for task in buys.PROBES | buys.TASKS}


@dataclass(frozen=True)
class Definition:
    """A number: its variable, or a name of its own where it is derived; its words, what it is, and its dimensions."""

    name: str
    words: str
    text: str
    dims: str


def definitions(result: xr.Dataset) -> list[Definition]:
    """One for every variable of the result, and one for every number that the page derives from them."""
    made = []
    for name, array in result.data_vars.items():
        words, text = (DECLARED | OTHERS).get(str(name), (str(name).replace("_", " "), ""))
        words, text = str(array.attrs.get("long_name", "") or words), str(array.attrs.get("definition", "") or text)
        made.append(Definition(str(name), words, sentence(text), ", ".join(map(str, array.dims))))
    tasks = {str(task) for task in result.task.values} if "task" in result.coords else set()
    choices = "checkpoint" in result.dims and result.sizes["checkpoint"] > 2
    for name, (words, text) in DERIVED.items():
        if OF_SCORES.get(name) in tasks if name in OF_SCORES else bool(tasks) if name == "difference" else choices:
            made.append(Definition(name, words, sentence(text), ""))
    return sorted(made, key=lambda it: (it.words.lower(), it.name))


def sentence(text: str) -> str:
    """With a capital letter first and a full stop last; empty stays empty."""
    text = text.strip()
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', ')')) else '.'}" if text else ""
