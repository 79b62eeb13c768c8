"""Claim A.spec: the whitened constraint W^T Σ W = I has a closed form, and it classifies better."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import xarray as xr
from scipy import stats
from torch import Tensor

from kontrast.claims.evidence import Evidence, Finding, Panel, Verdict, curve, judged, printed, shown
from kontrast.claims.panels import accuracy_panel, log_steps
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, largest, seed_mean, smallest, sweep
from kontrast.data import Dataset, parse_view
from kontrast.dynamics import Problem, gradient_descent
from kontrast.estimators import ContrastivePCA, SpectralContrastive, linear_probe
from kontrast.linalg import Estimate
from kontrast.runs import padded
from kontrast.study import input_embeddings

RIDGE = 1e-5
ROUNDING = 1e-16  # a logarithmic axis cannot show a gap of 0
HEAD_WIDTH, HEAD_COMPONENTS, HEAD_SAMPLES, HEAD_VIEWS = 64, 8, 300, 4
STEPS = log_steps(1000, 12)[1:]


@claim(
    "A.spec",
    source="Beyond paper A: the whitened constraint",
    title="With W^T Σ W = I there is a closed form, and it classifies better",
    printed="The eigenvectors of B w = λ Σ w, where B is the covariance of two views and Σ that of all views, scaled "
    "to lengths √λ, minimise the spectral contrastive loss over linear heads. On handwritten digits, without labels or "
    "training, their outputs classify better than contrastive PCA of the same features and than PCA of the input, and "
    "better as the width grows.",
    recorded=Verdict.HOLDS,
    cost=6,
)
def whitened(setting: Setting) -> Evidence:
    """Compare the closed form with trained, random and nearby heads, and fit linear probes tested on unseen samples."""
    on_cpu = replace(setting, device="cpu")  # thousands of steps of small matrices are slower on a GPU
    heads = sweep([HEAD_WIDTH], setting.seeds(quick=2, full=5, paper=3), lambda w, s: _heads(on_cpu, w, s), t=STEPS)
    probes = _probes(setting)
    error, random = largest(heads.loss_error), smallest(heads.gap_random)
    on_features, on_whitened = heads.gap_trained, heads.gap_whitened
    least, last = smallest(on_features, on_whitened), heads.isel(t=-1)
    near, reached = largest(last.gap_trained), largest(last.gap_whitened)
    return judged(
        printed("loss_error", error, "the loss of the closed form, summed pair by pair, is −Σ λ²", high=1e-10),
        printed("gradient_norm", largest(heads.gradient_norm), "its gradient vanishes there", high=1e-8),
        printed("least_gap_trained", least, "no trained head has a lower loss", low=-1e-9),
        printed("last_gap_trained", near, "a head trained on the features comes near it", high=0.05),
        printed("last_gap_whitened", reached, "a head trained on whitened features reaches it", high=1e-9),
        printed("least_gap_nearby", smallest(heads.gap_nearby), "every nearby head is worse", low=0),
        printed("least_gap_random", random, "random heads at their best scale are far worse", low=0.5),
        *_probe_findings(probes),
        data=xr.merge([heads.drop_vars("width").squeeze("width").rename(seed="head_seed"), probes], join="outer"),
        panels=[
            Panel(
                "Trained heads approach the closed form",
                "step t",
                "(loss − least loss) / |least loss|",
                (
                    curve("on the features", STEPS, seed_mean(on_features)[0]),
                    curve("on whitened features", STEPS, np.maximum(seed_mean(on_whitened)[0], ROUNDING)),
                ),
            ),
            accuracy_panel(f"Linear probe, {probes.attrs['n_components']} components", probes.accuracy),
        ],
        setting={
            "widths": [int(width) for width in probes.width.values],
            "n_seeds": probes.sizes["seed"],
            **probes.attrs,
            "head_width": HEAD_WIDTH,
            "head_components": HEAD_COMPONENTS,
            "head_samples": HEAD_SAMPLES,
            "head_views": HEAD_VIEWS,
        },
    )


def _probe_findings(probes: xr.Dataset) -> Iterator[Finding]:
    """The criteria on test accuracy, with intervals over seeds."""
    names = [str(name) for name in probes.embedding.values]
    at = {name: probes.accuracy.sel(embedding=name).isel(width=-1) for name in names}
    narrowest = probes.accuracy.sel(embedding="spectral").isel(width=0)
    contrastive, pixels, rise = (
        _over_seeds(at["spectral"] - other) for other in (at["contrastive-pca"], at["pixel-pca"], narrowest)
    )
    yield printed(
        "margin_over_contrastive_pca", contrastive, "its outputs classify better than contrastive PCA", low=0.015
    )
    yield printed("margin_over_pixel_pca", pixels, "they classify better than PCA of the input", low=0.015)
    yield printed("rise_with_width", rise, "they classify better as the width grows", low=0.015)
    yield from shown(**{f"accuracy_{name.replace('-', '_')}": _over_seeds(at[name]) for name in names})


def _heads(setting: Setting, width: int, seed: int) -> dict[str, object]:
    """Losses of heads over tanh features; none of these is zero on all samples, so Σ is regular without a ridge."""
    dataset, draw = setting.dataset_of(HEAD_SAMPLES), generator("heads", seed)
    x = dataset.subsample(HEAD_SAMPLES, generator=draw).x.to(setting.device)
    view = parse_view(_view(dataset))
    views = [view(x, draw) for _ in range(HEAD_VIEWS)]
    model = SpectralContrastive(
        HEAD_COMPONENTS, width=width, activation="tanh", ridge=0.0, power=0.5, random_state=seed
    ).fit_views(views)
    outputs = torch.cat([model.transform(part) for part in views])
    best = float(_pairwise_loss(outputs))
    features = torch.cat([model.features_(part) for part in views])
    features = features - features.mean(0)
    squares, U = torch.linalg.eigh(features.mT @ features / len(features))
    W = torch.as_tensor(model.components_, device=features.device).mT

    def gap(head: Tensor) -> float:
        return (float(_loss(features @ head)) - best) / abs(best)

    def random_head() -> Tensor:
        return torch.randn(W.shape, generator=draw, dtype=W.dtype).to(W.device)

    def trained(inputs: Tensor) -> np.ndarray:
        """Gaps along plain gradient descent from a small random head; NaN after an overflow."""
        size = float(inputs.square().sum(1).mean()) ** 0.5
        top = float(torch.linalg.matrix_norm(inputs, 2)) ** 2 / len(inputs)
        run = gradient_descent(
            lambda parameters, phi: phi @ parameters["head"],
            {"head": 0.1 * random_head() / size},
            Problem(inputs, _loss, len(inputs)),
            learning_rate=0.25 / top,
            n_steps=STEPS[-1],
            record_at=STEPS,
            recorders={"loss": lambda now: _loss(now.outputs)},
        )
        return (padded(run.records["loss"], len(STEPS)) - best) / abs(best)

    at_best = W.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(_loss(features @ at_best), at_best)
    random = [random_head() for _ in range(20)]
    nearby = [gap(W + size * W.norm() / D.norm() * D) for D in random for size in (1e-3, 1e-2, 1e-1, 1.0)]
    return {
        "loss_error": abs(best / -float((model.eigenvalues_**2).sum()) - 1),
        "gradient_norm": float(gradient.norm() * W.norm()) / abs(best),
        "gap_trained": trained(features),
        "gap_whitened": trained(features @ (U * squares.rsqrt())),
        "gap_nearby": smallest(nearby),
        "gap_random": smallest([1 - _best_scaled(features @ D) / best for D in random]),
    }


def _pairwise_loss(outputs: Tensor) -> Tensor:
    """The loss −2 E f·f⁺ + E (f·f')², term by term: over pairs of views of one sample, and over all pairs of views."""
    products = (outputs @ outputs.mT).view(HEAD_VIEWS, HEAD_SAMPLES, HEAD_VIEWS, HEAD_SAMPLES)
    of_a_sample = products.diagonal(dim1=1, dim2=3).sum(2)  # (v, v)
    attraction = (of_a_sample.sum() - of_a_sample.trace()) / (HEAD_SAMPLES * HEAD_VIEWS * (HEAD_VIEWS - 1))
    return -2 * attraction + products.square().mean()


def _terms(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """E f·f⁺ and E (f·f')², without forming the products of all pairs."""
    total = outputs.view(HEAD_VIEWS, HEAD_SAMPLES, -1).sum(0)
    different = total.square().sum() - outputs.square().sum()
    attraction = different / (HEAD_SAMPLES * HEAD_VIEWS * (HEAD_VIEWS - 1))
    return attraction, (outputs.mT @ outputs / len(outputs)).square().sum()


def _loss(outputs: Tensor) -> Tensor:
    attraction, repulsion = _terms(outputs)
    return -2 * attraction + repulsion


def _best_scaled(outputs: Tensor) -> float:
    """The least loss over all multiples c of the outputs: −2c²a + c⁴r is least at c² = a/r, or at 0."""
    attraction, repulsion = (float(term) for term in _terms(outputs))
    return -(attraction**2) / repulsion if attraction > 0 else 0.0


def _probes(setting: Setting) -> xr.Dataset:
    """Test accuracy of a linear probe by width, seed and embedding."""
    dataset = setting.dataset_of(450, labels=True)  # to train on 300 at least
    names = ("spectral", "contrastive-pca", "pixel-pca", "pixels")
    widths = setting.pick(quick=(128, 512, 1024), full=(128, 512, 2048), paper=(512, 2048, 8192))
    k, n_views = setting.pick(quick=32, full=32, paper=128), 8
    n_train = min(setting.pick(quick=1000, full=1000, paper=5000), 2 * len(dataset) // 3)
    of_the_input: dict[int, list[float]] = {}
    y = dataset.y
    assert y is not None

    def measure(width: int, seed: int) -> dict[str, object]:
        order = torch.randperm(len(dataset), generator=generator("probes", seed))
        train, test = order[:n_train], order[n_train:][:n_train]
        x, unseen = dataset.x[train].to(setting.device), dataset.x[test].to(setting.device)

        def accuracy(embed: Callable[[Tensor], Tensor]) -> float:
            return linear_probe(embed(x).cpu(), y[train], embed(unseen).cpu(), y[test])

        shared: dict[str, Any] = {"views": _view(dataset), "random_state": seed}
        spectral = SpectralContrastive(k, width=width, n_views=n_views, ridge=RIDGE, **shared).fit(x)
        # The same features; they are normalised already.
        plain = ContrastivePCA(k, features=spectral.features_, similarity="dot", n_positives=n_views, **shared).fit(x)
        if seed not in of_the_input:  # the same at every width
            inputs = input_embeddings(x.flatten(1), k)
            by_name = {name: (lambda part, f=f: f(part.flatten(1))) for name, f in inputs.items()}
            of_the_input[seed] = [accuracy(by_name[name]) for name in names[2:]]
        return {"accuracy": [accuracy(spectral.transform), accuracy(plain.transform), *of_the_input[seed]]}

    found = sweep(widths, setting.seeds(quick=4, full=5, paper=3), measure, embedding=list(names))
    n_test = min(n_train, len(dataset) - n_train)
    return found.assign_attrs(
        view=_view(dataset), n_components=k, n_views=n_views, n_samples=n_train, n_test_samples=n_test
    )


def _view(dataset: Dataset) -> str:
    """Rotated, shifted and scaled images; rows with noise."""
    return "affine:15,0.05,0.1" if dataset.is_image else "noise:0.1"


def _over_seeds(values: xr.DataArray) -> Estimate:
    """The mean over seeds with its 95 % interval; NaN if one seed is NaN."""
    numbers = np.asarray(values.values, dtype=float)
    mean = float(numbers.mean())
    if len(numbers) < 2:
        return Estimate.of(mean)
    half = float(stats.t.ppf(0.975, len(numbers) - 1) * numbers.std(ddof=1) / math.sqrt(len(numbers)))
    return Estimate(mean, mean - half, mean + half)
