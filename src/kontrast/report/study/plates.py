"""The plates of a study's page: those of its quantities, as they declare them, and those of a kind of their own."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import xarray as xr

from kontrast.report.plates import Picture, Plate
from kontrast.report.study.curves import (
    Runs,
    against_step,
    against_width,
    divergence_against_width,
    loss_against_step,
    probes_against_width,
)
from kontrast.report.study.labels import labels_plate
from kontrast.report.study.regimes import map_plate, pays_plate
from kontrast.study import Findings, Plot, ProbeFindings, Quantity, kernel, pca

# Title and caption of every plate of quantities; a quantity joins one by the name of its plots.
WORDS = {
    "study": (
        "How far the tangent kernel moves",
        "The largest change of an entry of the tangent kernel K, first against width at the step of the tables, then "
        "step by step. Where it falls with width the kernel freezes, as paper A shows for cosine similarity "
        "(claim A.fig3, Figures 3 and 6; its rate 1/√M is an upper bound). Where lines leave through the top it never "
        "does, as for the dot product (claim A.fig2, Figure 2).",
    ),
    "prediction": (
        "Does a fixed kernel predict training?",
        "The distance between the trained outputs f and f_K, the outputs that gradient descent with the kernel of step "
        "0 predicts, as a share of ‖f‖. Below the dashed tolerance the kernel counts as predicting the model; paper "
        "A's Figure 1 (claim A.fig1) says that the distance falls with width.",
    ),
    "pca": (
        "Is the trained subspace PCA?",
        "The network with an orthonormal output layer W (paper A, (7)), trained on the loss (10): the largest sine "
        "between the span of W(t) and PCA of C̃(0), the features before training, and of C̃(t), the features it has now. "
        "Both below the dashed tolerance: training is PCA of random features (claim A.pca). Only the second: it is PCA "
        "of features that training changed. Neither: it has not arrived.",
    ),
    "features": (
        "Do the features of the orthonormal network move?",
        "C̃ drift is ‖C̃(t) − C̃(0)‖ / ‖C̃(0)‖ (paper A, Figure 4, left); frozen is the mean relative difference between "
        "the outputs when C̃ is trained and when it is frozen (Figure 4, right; claim A.fig4). Where both fall with "
        "width, freezing the features changes nothing.",
    ),
    "movement": (
        "How far outputs and weights move",
        "First how far the outputs move, as a share of their first norm, then the distance that all weights travel "
        "together. A study whose outputs end below the dashed tolerance has not trained enough to judge. A flat line "
        "of weights is laziness: the same distance, spread over more weights (paper A, Lemma 12; claim A.fig3).",
    ),
    "collapse": (
        "Does the embedding collapse?",
        "First how many directions the embedding of the anchors uses, then the share of its squared norm that is not "
        "its mean. A rank that falls towards 1 is dimensional collapse, a spread that falls towards 0 a complete "
        "one. Paper A draws neither, but the diverging runs of its Figure 2 (claim A.fig2) may collapse on their way.",
    ),
}

_SEEN = {"width": "with fitted power laws", "step": "one line per width"}


def plates(result: xr.Dataset, findings: Findings) -> tuple[Plate, ...]:
    """Every plate of the page, the one that stands for the study first."""
    mapped = [] if findings.map is None else [map_plate(findings.map), pays_plate(findings.map)]
    return (*(plate for plate in mapped if plate is not None), *_full_batch(result, findings))


def _full_batch(result: xr.Dataset, findings: Findings) -> tuple[Plate, ...]:
    """The plates of the full-batch sections; none for a network of the user's own, which they do not know."""
    if not findings.similarities:
        return ()
    runs = [Runs.under(found, result) for found in findings.similarities]
    pictures = _pictures(kernel.QUANTITIES, runs, findings)
    if findings.pca is not None:
        pictures |= _pictures(pca.QUANTITIES, [Runs.orthonormal(findings.pca, result)], findings)
    shown = {name: Plate(name, *words, tuple(pictures[name])) for name, words in WORDS.items() if name in pictures}
    made = [shown.pop(name) for name in ("study", "prediction", "pca", "features") if name in shown]
    if findings.probes is not None:
        made.append(_probes(result, findings.probes))
    if findings.labels is not None:
        made.append(labels_plate(result, findings.labels))
    made += shown.values()
    if any(np.isfinite(run.stopped).any() for run in runs):
        made.append(_divergence(runs))
    return (*made, _losses(runs))


def _pictures(quantities: Sequence[Quantity], runs: Sequence[Runs], findings: Findings) -> dict[str, list[Picture]]:
    """The pictures of these quantities by plate; those that name the same plot share a picture."""
    sharing: dict[Plot, list[Quantity]] = {}
    for quantity in quantities:
        for plot in quantity.drawing.plots if quantity.drawing else ():
            sharing.setdefault(plot, []).append(quantity)
    pictures: dict[str, list[Picture]] = {}
    for plot, shown in sharing.items():
        curves = [run.showing(quantity) for quantity in shown for run in runs]
        drawing = shown[0].drawing
        assert drawing is not None
        description = f"{plot.title}: {drawing.symbol}, {_SEEN[plot.against]}"
        against = against_width if plot.against == "width" else against_step
        draw = functools.partial(against, runs=curves, plot=plot, drawing=drawing, findings=findings)
        pictures.setdefault(plot.name.split("-")[0], []).append(Picture(plot.name, description, draw))
    return pictures


def _divergence(runs: Sequence[Runs]) -> Plate:
    return Plate(
        "divergence",
        "When training diverges",
        "The step at which a run overflows, against width on a logarithmic axis. A straight rising line is divergence "
        "that waits for ln M and no longer, however wide the network: paper A, Proposition 10 (claim A.prop10).",
        (
            Picture(
                "divergence",
                "Step of divergence against width, with the fitted logarithm",
                functools.partial(divergence_against_width, runs=runs),
            ),
        ),
    )


def _losses(runs: Sequence[Runs]) -> Plate:
    return Plate(
        "losses",
        "The losses",
        "The training loss and, dashed, the loss of the fixed-kernel prediction from the same start: the two runs that "
        "paper A's Figure 1 compares (claim A.fig1). Where they part, the kernel has stopped describing training.",
        tuple(
            Picture(
                f"losses-{run.name}",
                f"Training loss and fixed-kernel loss under {run.name} similarity against step, one line per width",
                functools.partial(loss_against_step, run=run),
            )
            for run in runs
        ),
    )


def _probes(result: xr.Dataset, found: ProbeFindings) -> Plate:
    return Plate(
        "probes",
        "What does training buy downstream?",
        f"Test accuracy of a linear classifier on each embedding, trained on {found.n_samples} labelled samples and "
        f"tested on {found.n_samples} others (paper A, Figure 5, right; claim A.fig5). The horizontal lines use no "
        "network at all. Embeddings have the dimensions that the table names; the raw input keeps all of its own.",
        (
            Picture(
                "probes",
                "Test accuracy of a linear probe of every embedding against width",
                functools.partial(probes_against_width, found=found, accuracy=result.probe_accuracy),
            ),
        ),
    )
