"""The study's plates: pure functions of its result and findings, panels by two, with the words below them.

A panel is a picture of its own, so that two stand side by side on a wide page and one below the other on a phone.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import xarray as xr

from kontrast.report.drawing import (
    Panel,
    Plate,
    Runs,
    against_step,
    against_width,
    divergence_against_width,
    loss_against_step,
    probes_against_width,
)
from kontrast.report.label_curves import labels_plate
from kontrast.study import Findings, PCAFindings, ProbeFindings


def plates(result: xr.Dataset, findings: Findings) -> tuple[Plate, ...]:
    """Every plate of the page, the headline first."""
    runs = [Runs.under(found, result) for found in findings.similarities]
    largest_rank = max(2, min(findings.spec.d_out, findings.spec.n_samples - 1))  # of a centred embedding
    made = [_study(runs), _prediction(runs, findings.thresholds.tolerance)]
    if findings.pca is not None:
        made += [_pca(result, findings.pca, findings.thresholds.pca_tolerance), _features(result, findings.pca)]
    if findings.probes is not None:
        made.append(_probes(result, findings.probes))
    if findings.labels is not None:
        made.append(labels_plate(result, findings.labels))
    made += [_movement(runs, findings.thresholds.tolerance), _collapse(runs, largest_rank)]
    if any(np.isfinite(run.stopped).any() for run in runs):
        made.append(_divergence(runs))
    return (*made, _losses(runs))


def _study(runs: Sequence[Runs]) -> Plate:
    return Plate(
        "study",
        "How far the tangent kernel moves",
        "The largest change of an entry of the tangent kernel K, first against width at the step of the tables, then "
        "step by step. Where it falls with width the kernel freezes, which paper A shows for cosine similarity "
        "(claim A.fig3, Figures 3 and 6; its rate 1/√M is an upper bound), and where lines leave through the top it "
        "never does, as for the dot product (claim A.fig2, Figure 2).",
        (
            Panel(
                "study-width",
                "NTK drift against width, with fitted power laws",
                lambda figure: against_width(
                    figure, runs, "ntk_drift_max", "NTK drift against width", "max |K(t) − K(0)|", guide=-0.5
                ),
            ),
            Panel(
                "study-step",
                "NTK drift against step, one line a width",
                lambda figure: against_step(
                    figure, runs, "ntk_drift_max", "NTK drift against step", "max |K(t) − K(0)|", unbounded=True
                ),
            ),
        ),
    )


def _prediction(runs: Sequence[Runs], tolerance: float) -> Plate:
    label = "‖f − f_K‖ / ‖f‖"
    return Plate(
        "prediction",
        "Does a fixed kernel predict training?",
        "The distance between the trained outputs f and f_K, the outputs that gradient descent with the kernel of step "
        "0 predicts, as a share of ‖f‖. Below the dashed tolerance the kernel counts as predicting the model; paper "
        "A's Figure 1 (claim A.fig1) says that the distance falls with width.",
        (
            Panel(
                "prediction-width",
                "Gap between training and its fixed-kernel prediction against width, with fitted power laws",
                lambda figure: against_width(
                    figure, runs, "kernel_gap", "Kernel gap against width", label, tolerance=tolerance
                ),
            ),
            Panel(
                "prediction-step",
                "Gap between training and its fixed-kernel prediction against step, one line a width",
                lambda figure: against_step(
                    figure, runs, "kernel_gap", "Kernel gap against step", label, tolerance=tolerance
                ),
            ),
        ),
    )


def _movement(runs: Sequence[Runs], tolerance: float) -> Plate:
    return Plate(
        "movement",
        "How far weights and outputs move",
        "First the distance all weights travel together, then how far the outputs move as a share of their first norm. "
        "A flat line of weights is laziness (the same distance, spread over more weights: claim A.fig3 of paper A, "
        "Lemma 12), and a study whose outputs end below the dashed tolerance has not trained enough to judge.",
        (
            Panel(
                "movement-weights",
                "Distance the weights moved against width, with fitted power laws",
                lambda figure: against_width(
                    figure, runs, "parameter_move", "Weights moved, against width", "‖θ(t) − θ(0)‖"
                ),
            ),
            Panel(
                "movement-outputs",
                "Relative distance the outputs moved against step, one line a width",
                lambda figure: against_step(
                    figure,
                    runs,
                    "output_move",
                    "Outputs moved, against step",
                    "‖f(t) − f(0)‖ / ‖f(0)‖",
                    tolerance=tolerance,
                    unbounded=True,
                ),
            ),
        ),
    )


def _collapse(runs: Sequence[Runs], largest_rank: int) -> Plate:
    return Plate(
        "collapse",
        "Does the embedding collapse?",
        "First how many directions the embedding of the anchors uses, then the share of its squared norm that is not "
        "its mean. A rank that falls towards 1 is dimensional collapse, a spread that falls towards 0 a complete "
        "one; paper A draws neither, but the diverging runs of its Figure 2 (claim A.fig2) may collapse on their way.",
        (
            Panel(
                "collapse-rank",
                "Effective rank of the embedding against step, one line a width",
                lambda figure: against_step(
                    figure, runs, "effective_rank", "Effective rank", "directions in use", span=(1, largest_rank)
                ),
            ),
            Panel(
                "collapse-spread",
                "Spread of the embedding against step, one line a width",
                lambda figure: against_step(figure, runs, "spread", "Spread", "1 − ‖mean‖² / mean ‖f‖²", span=(0, 1)),
            ),
        ),
    )


def _divergence(runs: Sequence[Runs]) -> Plate:
    return Plate(
        "divergence",
        "When training diverges",
        "The step at which a run overflows, against width on a logarithmic axis. A straight rising line is divergence "
        "that waits for ln M and no longer, however wide the network: paper A, Proposition 10 (claim A.prop10).",
        (
            Panel(
                "divergence",
                "Step of divergence against width, with the fitted logarithm",
                lambda figure: divergence_against_width(figure, runs),
            ),
        ),
    )


def _losses(runs: Sequence[Runs]) -> Plate:
    return Plate(
        "losses",
        "The losses",
        "The training loss and, dashed, the loss of the fixed-kernel prediction from the same start. Where they part, "
        "the kernel has stopped describing training; together they are the two runs that paper A's Figure 1 compares "
        "(claim A.fig1).",
        tuple(
            Panel(
                f"losses-{run.name}",
                f"Training loss and fixed-kernel loss under {run.name} similarity against step, one line a width",
                functools.partial(loss_against_step, run=run),
            )
            for run in runs
        ),
    )


def _pca(result: xr.Dataset, found: PCAFindings, tolerance: float) -> Plate:
    runs = [
        Runs.orthonormal("C̃(0)", "start", "pca_angle_start", found, result),
        Runs.orthonormal("C̃(t)", "now", "pca_angle_now", found, result),
    ]
    return Plate(
        "pca",
        "Is the trained subspace PCA?",
        "The network with an orthonormal output layer W (paper A, (7)), trained on the loss (10): the largest sine "
        "between the span of W(t) and the span of PCA, of C̃(0), the features before training, and of C̃(t), the "
        "features it has now. Both below the dashed tolerance: training is PCA of random features (claim A.pca); the "
        "second alone: it is PCA of features that training changed; none: it has not arrived.",
        (
            Panel(
                "pca-width",
                "Largest sine between the trained subspace and PCA against width, with fitted power laws",
                lambda figure: against_width(
                    figure, runs, "value", "Sine to PCA, against width", "largest sine", tolerance=tolerance
                ),
            ),
            Panel(
                "pca-step",
                "Largest sine between the trained subspace and PCA against step, one line a width",
                lambda figure: against_step(
                    figure, runs, "value", "Sine to PCA, against step", "largest sine", tolerance=tolerance
                ),
            ),
        ),
    )


def _features(result: xr.Dataset, found: PCAFindings) -> Plate:
    runs = [
        Runs.orthonormal("C̃ drift", "start", "matrix_drift", found, result),
        Runs.orthonormal("frozen", "now", "frozen_gap", found, result),
    ]
    return Plate(
        "features",
        "Do the features of the orthonormal network move?",
        "C̃ drift is ‖C̃(t) − C̃(0)‖ / ‖C̃(0)‖ (paper A, Figure 4, left), frozen the mean relative difference of the "
        "outputs when C̃ is trained and when it is frozen (Figure 4, right; claim A.fig4). Where both fall with width, "
        "freezing the features changes nothing.",
        (
            Panel(
                "features-width",
                "Drift of the contrastive matrix, and outputs trained against frozen, against width, with power laws",
                lambda figure: against_width(
                    figure, runs, "value", "Features moved, against width", "relative change", guide=-0.5
                ),
            ),
            Panel(
                "features-step",
                "Drift of the contrastive matrix, and outputs trained against frozen, against step, one line a width",
                lambda figure: against_step(figure, runs, "value", "Features moved, against step", "relative change"),
            ),
        ),
    )


def _probes(result: xr.Dataset, found: ProbeFindings) -> Plate:
    return Plate(
        "probes",
        "What does training buy downstream?",
        f"Test accuracy of a linear classifier on each embedding, trained on {found.n_samples} labelled samples and "
        f"tested on {found.n_samples} others (paper A, Figure 5, right; claim A.fig5). The horizontal lines use no "
        "network at all; the raw input keeps all its dimensions, every other embedding has those of the output.",
        (
            Panel(
                "probes",
                "Test accuracy of a linear probe of every embedding against width",
                lambda figure: probes_against_width(figure, found, result.probe_accuracy),
            ),
        ),
    )
