"""Claim A.fig5: three hidden layers, and linear classifiers on PCA and on trained models."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from kontrast.claims.a.orthonormal import PCA_RATE
from kontrast.claims.a.runs import DELTA, cosine_drift, divergence_law, divergence_panels, dot_divergence, drift_steps
from kontrast.claims.evidence import Evidence, Finding, Verdict, corrected, judged, printed, shown
from kontrast.claims.panels import accuracy_panel, width_panel
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, geometric, largest, smallest, sweep, width_law
from kontrast.data import Dataset, default_view, make_pairs, pair_matrix
from kontrast.estimators import linear_probe
from kontrast.pca import (
    alternating_pca,
    contrastive_pca,
    hidden_features,
    orthonormal_start,
    pair_features,
    train_pca_network,
)
from kontrast.study import input_embeddings


@claim(
    "A.fig5",
    source="Paper A, Fig. 5",
    title="Three hidden layers; linear classifiers on PCA and on trained models",
    printed="With three hidden layers the NTK change still decays with the width under cosine similarity and diverges "
    "under the dot product; PCA of C̃(0), the trained model and the iterative algorithm classify alike.",
    corrected="All of it is true, but the raw input, which the paper does not show, classifies better than all three.",
    recorded=Verdict.HOLDS,
    cost=9,
)
def figure_5(setting: Setting) -> Evidence:
    """Measure the three panels, with the baselines that the paper leaves out."""
    widths = setting.pick(quick=geometric(32, 256), full=geometric(32, 1024), paper=geometric(32, 2048))
    n_probe_samples = setting.pick(quick=400, full=800, paper=1000)
    dataset = setting.dataset_of(2 * n_probe_samples, labels=True)  # refused before any training
    n_samples, seeds = setting.pick(quick=10, full=10, paper=1000), setting.seeds(quick=3)
    deep = cosine_drift(setting, widths, seeds, drift_steps(setting), n_samples=n_samples, depth=3)
    # Deeper networks grow faster under the dot product: at twice its rate they would overflow at once.
    dot = dot_divergence(setting, widths, seeds, n_samples=n_samples, depth=3)
    probes = _probes(setting, dataset, n_probe_samples)
    law, deep_law = divergence_law(dot), width_law(deep.change.sel(t=100))
    diverged = float(np.isfinite(dot.diverged_at).mean())
    return judged(
        printed("exponent_three_layers", deep_law, "with three hidden layers the change still falls", high=-0.5),
        printed("share_diverged", diverged, "every run under the dot product overflows", low=1),
        *_probe_findings(probes),
        *(() if law is None else shown(steps_later_a_factor_e=law)),
        data=xr.merge(
            [
                deep.rename({name: f"cosine_{name}" for name in deep.data_vars}),
                dot.rename({name: f"dot_{name}" for name in dot.data_vars}).rename(t="dot_t"),
                probes.rename(width="probe_width"),
            ],
            join="outer",
        ),
        panels=[
            width_panel("Three hidden layers, cosine, 100 steps", {"relu": deep.change.sel(t=100)}),
            divergence_panels(dot)[0],
            accuracy_panel("Downstream accuracy of a linear classifier", probes.accuracy),
        ],
        setting={"n_samples": n_samples, "n_probe_samples": n_probe_samples},
    )


def _probe_findings(probes: xr.Dataset) -> Iterator[Finding]:
    """The criteria on test accuracy, on means over seeds and widths from 128 on."""
    means = probes.accuracy.mean("seed", skipna=False)
    wide = means.where(means.width >= 128, drop=True)
    three = wide.sel(embedding=["pca", "trained", "iterative"])
    trained, iterative = (
        largest(np.abs(wide.sel(embedding=name) - wide.sel(embedding="pca"))) for name in ("trained", "iterative")
    )
    random, pixels = smallest(three - wide.sel(embedding="random")), smallest(wide.sel(embedding="pixels") - three)
    gain = smallest(probes.iterative_gain)
    yield printed("trained_minus_pca", trained, "the trained model and PCA of C̃(0) classify alike, M ≥ 128", high=0.03)
    yield printed("iterative_minus_pca", iterative, "so does the iterative algorithm", high=0.03)
    yield printed(
        "iterative_lowers_the_loss_by",
        gain,
        "the iterative algorithm lowers the loss below that of PCA of C̃(0)",
        low=1e-6,
    )
    yield printed("least_minus_random", random, "all three classify better than a random W", low=0.1)
    yield corrected("pixels_minus_best", pixels, "the raw input classifies better than all three", low=0)
    yield from shown(**{f"accuracy_{name}": float(wide.sel(embedding=name)[-1]) for name in wide.embedding.values})


def _probes(setting: Setting, dataset: Dataset, n_samples: int) -> xr.Dataset:
    """Test accuracy of every embedding by width and seed, with `n_samples` to train on and as many to test on."""
    widths = setting.pick(quick=(32, 128, 256), full=(32, 128, 512), paper=(32, 128, 512, 2048))
    seeds, n_steps = setting.seeds(quick=1, full=3, paper=5), 300
    names = ("pca", "trained", "iterative", "random", "pixels", "pixel-pca")
    of_the_input: dict[int, list[float]] = {}

    def measure(width: int, seed: int) -> dict[str, object]:
        draw = generator("probes", seed)
        order = torch.randperm(len(dataset), generator=draw)
        train_rows, test_rows = order[:n_samples], order[n_samples:][:n_samples]
        x, y = dataset.x[train_rows], dataset.y
        assert y is not None
        pairs = make_pairs(x, views=default_view(dataset), generator=draw).to(device=setting.device)
        net = setting.net(pairs.x, width, 10, seed=seed)
        start, S = orthonormal_start(net), pair_matrix(pairs)
        pca = contrastive_pca(pair_features(net, pairs.rows, delta=DELTA), S, 10).frame
        trained = train_pca_network(net, pairs, delta=DELTA, learning_rate=PCA_RATE, n_steps=n_steps).final_parameters
        alternation = alternating_pca(net, pairs, delta=DELTA, learning_rate=PCA_RATE, n_updates=5)
        turns = alternation.parameters
        rows = torch.stack([dataset.rows[part] for part in (train_rows, test_rows)]).to(setting.device)  # (2, n, d)
        embed: dict[str, Callable[[Tensor], Tensor]] = {
            "pca": lambda x: hidden_features(net, x) @ pca,
            "trained": lambda x: hidden_features(net, x, trained) @ trained["output"],
            "iterative": lambda x: hidden_features(net, x, turns) @ turns["output"],
            "random": lambda x: hidden_features(net, x) @ start["output"],
            **input_embeddings(rows[0], 10),
        }

        def accuracy(name: str) -> float:
            train_f, test_f = (embed[name](part).cpu() for part in rows)
            return linear_probe(train_f, y[train_rows], test_f, y[test_rows])

        if seed not in of_the_input:
            of_the_input[seed] = [accuracy(name) for name in names[4:]]  # the same at every width
        return {
            "accuracy": [*(accuracy(name) for name in names[:4]), *of_the_input[seed]],
            "iterative_gain": float(alternation.losses[-1] / alternation.losses[0] - 1),  # losses are negative
        }

    return sweep(widths, seeds, measure, embedding=list(names))
