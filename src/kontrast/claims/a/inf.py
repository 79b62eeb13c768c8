"""Claim A.inf: contrastive PCA at infinite width is the eigenvalue problem of S K."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from kontrast.claims.a.runs import DELTA
from kontrast.claims.evidence import Evidence, Finding, Panel, Verdict, curve, judged, printed, shown
from kontrast.claims.panels import guide
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, geometric, largest, seed_mean, smallest, sweep, width_law
from kontrast.data import Pairs, default_view, make_pairs, pair_matrix
from kontrast.estimators import ContrastivePCA
from kontrast.kernels import infinite_nngp
from kontrast.linalg import Estimate, best_rotation, subspace_sines
from kontrast.nets import MLP
from kontrast.pca import KernelFeatures, contrastive_pca, hidden_features, pair_features

MOST_COMPONENTS = 10  # of contrastive PCA; the clearest gap is looked for among these


@claim(
    "A.inf",
    source="Beyond paper A: the M → ∞ limit of Sec. 4",
    title="Contrastive PCA tends to the eigenpairs of S K",
    printed="As the width grows, eigenvalues and outputs of contrastive PCA tend as 1/√M to those of S K, where S is "
    "the pair matrix and K the NNGP kernel, normalised for cosine similarity; on new samples f(x) = Σ a_i k(x_i, x).",
    recorded=Verdict.HOLDS,
    cost=3,
)
def infinite_width(setting: Setting) -> Evidence:
    """Compare the limit with a dense decomposition, and finite widths with the limit, also on new samples."""
    widths = setting.pick(quick=geometric(256, 4096), full=geometric(256, 8192), paper=geometric(256, 16384))
    n_samples = setting.pick(quick=100, full=400, paper=2000)
    seeds = setting.seeds(quick=24, full=24, paper=20)  # the deviation of an eigenvalue is one random number per seed
    limits = [_Limit(setting, n_samples, seed) for seed in seeds]
    data = sweep(widths, seeds, lambda w, s: limits[s].distance(setting.net(limits[s].pairs.x, w, 1, seed=s)))
    tops = xr.DataArray([float(limit.values[0]) for limit in limits], dims="seed")
    widest = seed_mean(data.unseen_error)[-1]
    return judged(
        *_exact_findings([limit.errors() for limit in limits[:3]]),
        *(
            printed(name, _root_mean_square_law(data[variable]), statement, low=-0.6, high=-0.4)
            for name, variable, statement in (
                ("exponent_eigenvalues", "eigenvalue_error", "eigenvalues tend to their limits as 1/√M"),
                ("exponent_sine", "sine", "so does the span of the outputs over the pool"),
                ("exponent_unseen", "unseen_error", "so do the outputs on new samples"),
            )
        ),
        printed(
            "unseen_error_widest",
            widest,
            "at the largest width the outputs on new samples are within 5 % of their limit",
            high=0.05,
        ),
        *shown(
            eigenvalue_error_widest=seed_mean(data.eigenvalue_error)[-1],
            sine_widest=seed_mean(data.sine)[-1],
            top_eigenvalue_limit=float(tops.mean()),
            top_eigenvalue_widest=seed_mean(data.top_eigenvalue)[-1],
            smallest_relative_gap=smallest([limit.gap for limit in limits]),
        ),
        data=data.assign_coords(components=("seed", [limit.k for limit in limits])),
        panels=_panels(data, data.top_eigenvalue / tops),
        setting={"n_samples": n_samples, "d_out": sorted({limit.k for limit in limits}), "delta": DELTA},
    )


def _exact_findings(errors: list[dict[str, float]]) -> Iterator[Finding]:
    """The criteria on the estimator itself, with the largest of the `errors` over draws."""
    statements = {
        "value_error": ("eigenvalues are those of a dense decomposition of K^½ S K^½", 1e-10),
        "vector_error": ("outputs F over the pool solve K S F = F Λ", 1e-8),
        "orthonormality_error": ("coefficients are orthonormal in K: a^T K a = I", 1e-10),
        "finite_error": ("at a finite width the estimator has the eigenvalues of C̃_V", 1e-12),
    }
    for name, (statement, high) in statements.items():
        yield printed(name, largest(*(found[name] for found in errors)), statement, high=high)


class _Limit:
    """Contrastive PCA of one draw of pairs at infinite width, by the estimator, and as many samples held out.

    The number of components k ≥ 2 is where the relative gap (λ_k − λ_(k+1))/λ_k is largest.
    """

    def __init__(self, setting: Setting, n: int, seed: int) -> None:
        dataset, draw = setting.dataset_of(2 * n), generator("infinite", seed)
        sample = dataset.subsample(2 * n, generator=draw)
        self.pairs: Pairs = make_pairs(sample.x[:n], views=default_view(dataset), generator=draw).to(setting.device)
        self.unseen = sample.x[n:].to(setting.device)
        self.net = setting.net(self.pairs.x, 256, 1, seed=seed)
        self.S = pair_matrix(self.pairs)
        self.model = self._fitted(math.inf, "random", MOST_COMPONENTS + 1)
        self.values = torch.as_tensor(self.model.eigenvalues_, device=setting.device)
        gaps = 1 - self.values[1:] / self.values[:-1]  # (λ_k − λ_(k+1))/λ_k, for k = 1, 2, …
        self.k = 2 + int(gaps[1:].argmax())
        self.gap = float(gaps[self.k - 1])
        self.outputs: Tensor = self.model.transform(self.pairs.x)[:, : self.k]
        self.unseen_outputs: Tensor = self.model.transform(self.unseen)[:, : self.k]

    def _fitted(self, width: float, features: Any, k: int) -> ContrastivePCA:
        anchors, positives, negatives = self.pairs.split(self.pairs.x)
        model = ContrastivePCA(k, width=width, features=features, delta=DELTA)
        return model.fit_pairs(anchors, positives[:, 0], negatives[:, 0])

    def distance(self, net: MLP) -> dict[str, float]:
        """Errors of contrastive PCA of this network's features relative to the limit, and its top eigenvalue."""
        features = pair_features(net, self.pairs.rows, delta=DELTA)
        solution = contrastive_pca(features, self.S, MOST_COMPONENTS)
        frame = solution.frame[:, : self.k]
        outputs, unseen = features @ frame, pair_features(net, self.unseen.flatten(1), delta=DELTA)
        rotation = best_rotation(outputs, self.outputs)
        difference = unseen @ frame @ rotation - self.unseen_outputs
        return {
            "eigenvalue_error": float((solution.values / self.values[:-1] - 1).square().mean().sqrt()),
            "sine": float(subspace_sines(outputs, self.outputs)[0]),
            "unseen_error": float(difference.norm() / self.unseen_outputs.norm()),
            "top_eigenvalue": float(solution.values[0]),
        }

    def errors(self) -> dict[str, float]:
        """Errors of the estimator against a dense decomposition with K and S written out."""
        K = infinite_nngp(self.pairs.rows)
        scale = 1 / (K.diagonal().sqrt() + DELTA)
        K = K * torch.outer(scale, scale)
        squares, U = torch.linalg.eigh(K)
        half = (U * squares.clamp(min=0).sqrt()) @ U.mT
        dense = torch.linalg.eigvalsh(half @ self.S.to_dense() @ half).flip(0)[: len(self.values)]
        F = self.model.transform(self.pairs.x)
        assert isinstance(self.model.features_, KernelFeatures)
        a = torch.as_tensor(self.model.components_, device=F.device)  # (k, points): one row per eigenvector
        gram = a @ self.model.transform(self.model.features_.points)
        finite = self._fitted(self.net.width, lambda x: hidden_features(self.net, x.flatten(1)), self.k)
        found = torch.as_tensor(finite.eigenvalues_, device=F.device)
        wanted = contrastive_pca(pair_features(self.net, self.pairs.rows, delta=DELTA), self.S, self.k).values
        return {
            "value_error": float(((self.values - dense) / dense).abs().max()),
            "vector_error": float((K @ (self.S @ F) - F * dense).norm() / (F * dense).norm()),
            "orthonormality_error": float((gram - torch.eye(len(gram), device=F.device)).abs().max()),
            "finite_error": float(((found - wanted) / wanted).abs().max()),
        }


def _root_mean_square_law(values: xr.DataArray) -> Estimate:
    """The exponent in the width of the root mean square over seeds; NaN if one seed is NaN."""
    return width_law(((values**2).mean("seed", skipna=False) ** 0.5).expand_dims("seed"))


def _panels(data: xr.Dataset, ratio: xr.DataArray) -> list[Panel]:
    """Errors by width, and `ratio`, the top eigenvalue over its limit."""
    M = data.width
    errors = (
        curve(f"{MOST_COMPONENTS} eigenvalues", M, seed_mean(data.eigenvalue_error)),
        curve("span of the outputs", M, seed_mean(data.sine)),
        curve("outputs, new samples", M, seed_mean(data.unseen_error)),
        guide(M, seed_mean(data.sine), -0.5, "M^−1/2"),
    )
    ratios = (
        curve("mean over seeds", M, seed_mean(ratio)),
        curve("largest", M, ratio.max("seed", skipna=False), "plain"),
        curve("smallest", M, ratio.min("seed", skipna=False), "plain"),
        curve("limit", M, np.ones(len(M)), "dashed"),
    )
    return [
        Panel("Contrastive PCA against its limit", "width M", "relative error, or largest sine", errors),
        Panel("Top eigenvalue", "width M", "λ_1 over its limit", ratios, y_log=False),
    ]
