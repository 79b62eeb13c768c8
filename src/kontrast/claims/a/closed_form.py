"""Beyond paper A, Section 4: contrastive PCA at infinite width, and the closed form under a whitened constraint."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import xarray as xr
from scipy import stats
from torch import Tensor

from kontrast.claims.a.runs import DELTA
from kontrast.claims.evidence import Criterion, Estimate, Evidence, Panel, Verdict, curve, evidence
from kontrast.claims.panels import guide, log_steps
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, generator, largest, seed_mean, sweep, width_law
from kontrast.data import Dataset, Pairs, default_view, make_pairs, pair_matrix, parse_view
from kontrast.dynamics import Problem, gradient_descent
from kontrast.errors import InputError
from kontrast.estimators import ContrastivePCA, SpectralContrastive, linear_probe
from kontrast.kernels import infinite_nngp
from kontrast.linalg import best_rotation, subspace_sines
from kontrast.pca import KernelFeatures, contrastive_pca, hidden_features, pair_features
from kontrast.runs import padded
from kontrast.study import input_embeddings

MOST_COMPONENTS = 10  # of contrastive PCA, among which the clearest gap is looked for


@claim(
    "A.inf",
    source="Beyond paper A: the M → ∞ limit of Sec. 4",
    title="Contrastive PCA tends to the eigenpairs of S K",
    printed="As the width grows, eigenvalues and outputs of contrastive PCA tend as 1/√M to those of S K, with S the "
    "pair matrix and K the NNGP kernel, normalised for the cosine; f(x) = Σ a_i k(x_i, x) on new samples.",
    recorded=Verdict.HOLDS,
    cost=3,
)
def infinite_width(setting: Setting) -> Evidence:
    """The limit against a dense decomposition, and finite widths against the limit, on the pool and on new samples."""
    widths = setting.pick(
        quick=(256, 512, 1024, 2048, 4096),
        full=(256, 512, 1024, 2048, 4096, 8192),
        paper=(256, 512, 1024, 2048, 4096, 8192, 16384),
    )
    n_samples = setting.pick(quick=100, full=400, paper=2000)
    seeds = setting.seeds(quick=24, full=24, paper=20)  # an eigenvalue's deviation is one random number a seed
    limits = [_Limit(setting, n_samples, seed) for seed in seeds]
    exact = [limit.errors() for limit in limits[:3]]

    def measure(width: int, seed: int) -> dict[str, float]:
        limit = limits[seed]
        net = setting.net(limit.pairs.x, width, 1, seed=seed)
        features, k = pair_features(net, limit.pairs.rows, delta=DELTA), limit.k
        solution = contrastive_pca(features, limit.S, MOST_COMPONENTS)
        frame = solution.frame[:, :k]
        outputs, unseen = features @ frame, pair_features(net, limit.unseen.flatten(1), delta=DELTA)
        rotation = best_rotation(outputs, limit.outputs)
        difference = unseen @ frame @ rotation - limit.unseen_outputs
        return {
            "eigenvalue_error": float((solution.values / limit.values[:-1] - 1).square().mean().sqrt()),
            "sine": float(subspace_sines(outputs, limit.outputs)[0]),
            "unseen_error": float(difference.norm() / limit.unseen_outputs.norm()),
            "top_eigenvalue": float(solution.values[0]),
        }

    data = sweep(widths, seeds, measure)
    tops = xr.DataArray([float(limit.values[0]) for limit in limits], dims="seed")
    ratio = data.top_eigenvalue / tops
    names = {
        "eigenvalue_error": f"{MOST_COMPONENTS} eigenvalues",
        "sine": "span of the outputs",
        "unseen_error": "outputs, new samples",
    }
    first = seed_mean(data.sine)
    return evidence(
        {
            **{name: largest(*(errors[name] for errors in exact)) for name in exact[0]},
            "exponent_eigenvalues": width_law(_mean_square_root(data.eigenvalue_error)),
            "exponent_sine": width_law(_mean_square_root(data.sine)),
            "exponent_unseen": width_law(_mean_square_root(data.unseen_error)),
            "eigenvalue_error_widest": float(seed_mean(data.eigenvalue_error)[-1]),
            "sine_widest": float(seed_mean(data.sine)[-1]),
            "unseen_error_widest": float(seed_mean(data.unseen_error)[-1]),
            "top_eigenvalue_limit": float(tops.mean()),
            "top_eigenvalue_widest": float(seed_mean(data.top_eigenvalue)[-1]),
            "smallest_relative_gap": float(np.min([limit.gap for limit in limits])),
        },
        [
            Criterion("value_error", "eigenvalues are those of K^½ S K^½, decomposed densely", high=1e-10),
            Criterion("vector_error", "outputs F over the pool solve K S F = F Λ", high=1e-8),
            Criterion("orthonormality_error", "coefficients are orthonormal in K: a^T K a = I", high=1e-10),
            Criterion("finite_error", "the estimator at a finite width has the eigenvalues of C̃_V", high=1e-12),
            Criterion("exponent_eigenvalues", "eigenvalues tend to them as 1/√M", low=-0.6, high=-0.4),
            Criterion("exponent_sine", "so does the span of the outputs over the pool", low=-0.6, high=-0.4),
            Criterion("exponent_unseen", "and so do the outputs on new samples", low=-0.6, high=-0.4),
            Criterion("unseen_error_widest", "which the limit gives at the widest up to 5 %", high=0.05),
        ],
        data=data.assign_coords(components=("seed", [limit.k for limit in limits])),
        panels=[
            Panel(
                "Contrastive PCA against its limit",
                "width M",
                "relative error, or largest sine",
                (
                    *(curve(label, data.width, seed_mean(data[name])) for name, label in names.items()),
                    guide(data.width, first, -0.5, "M^−1/2"),
                ),
            ),
            Panel(
                "Top eigenvalue",
                "width M",
                "λ_1 over its limit",
                (
                    curve("mean over seeds", data.width, seed_mean(ratio)),
                    curve("largest", data.width, ratio.max("seed", skipna=False), "plain"),
                    curve("smallest", data.width, ratio.min("seed", skipna=False), "plain"),
                    curve("limit", data.width, np.ones(len(widths)), "dashed"),
                ),
                y_log=False,
            ),
        ],
        setting={
            "n_samples": n_samples,
            "d_out": sorted({limit.k for limit in limits}),
            "delta": DELTA,
        },
    )


class _Limit:
    """Contrastive PCA of one draw of pairs at infinite width, by the estimator, with as many samples held out.

    k ≥ 2 components, up to where the gap λ_k − λ_(k+1) is the clearest.
    """

    def __init__(self, setting: Setting, n: int, seed: int) -> None:
        dataset, draw = setting.dataset(), generator("infinite", seed)
        if 2 * n > len(dataset):
            raise InputError(
                f"this claim needs {2 * n} samples and {setting.data_names[0]!r} has {len(dataset)}; give a larger "
                "--data"
            )
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

    def errors(self) -> dict[str, float]:
        """How far the estimator is from a dense decomposition in which K and S are written out."""
        K = infinite_nngp(self.pairs.rows)
        scale = 1 / (K.diagonal().sqrt() + DELTA)
        K = K * torch.outer(scale, scale)
        squares, U = torch.linalg.eigh(K)
        half = (U * squares.clamp(min=0).sqrt()) @ U.mT
        dense = torch.linalg.eigvalsh(half @ self.S.to_dense() @ half).flip(0)[: len(self.values)]
        F = self.model.transform(self.pairs.x)
        assert isinstance(self.model.features_, KernelFeatures)
        a = torch.as_tensor(self.model.components_, device=F.device)  # (k, points): a row an eigenvector
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


def _mean_square_root(values: xr.DataArray) -> xr.DataArray:
    """The root mean square over seeds, as one seed; NaN where one seed is."""
    return ((values**2).mean("seed", skipna=False) ** 0.5).expand_dims("seed")


@claim(
    "A.spec",
    source="Beyond paper A: the whitened constraint",
    title="With W^T Σ W = I there is a closed form, and it probes better",
    printed="B w = λ Σ w, B the covariance of two views and Σ that of all, gives with lengths √λ the minimum of the "
    "spectral contrastive loss over linear heads. Of handwritten digits, without labels or training, its outputs "
    "classify better than contrastive PCA of the same features and than PCA of the input, and better the wider.",
    recorded=Verdict.HOLDS,
    cost=6,
)
def whitened(setting: Setting) -> Evidence:
    """The closed form against trained, random and nearby heads; and linear probes on samples it has not seen."""
    on_cpu = replace(setting, device="cpu")  # thousands of steps of small matrices would wait for a GPU
    heads = sweep([HEAD_WIDTH], setting.seeds(quick=2, full=5, paper=3), lambda w, s: _heads(on_cpu, w, s), t=_STEPS)
    probes = _probes(setting)
    accuracy = probes.accuracy
    widest = accuracy.isel(width=-1)
    ours, steps = accuracy.sel(embedding="spectral"), heads.t.values
    means = accuracy.mean("seed", skipna=False)
    return evidence(
        {
            "loss_error": float(heads.loss_error.values.max()),
            "gradient_norm": float(heads.gradient_norm.values.max()),
            "least_gap_trained": float(np.min([heads.gap_trained.values, heads.gap_whitened.values])),
            "last_gap_trained": float(heads.gap_trained.isel(t=-1).values.max()),
            "last_gap_whitened": float(heads.gap_whitened.isel(t=-1).values.max()),
            "least_gap_nearby": float(heads.gap_nearby.values.min()),
            "least_gap_random": float(heads.gap_random.values.min()),
            "margin_over_contrastive_pca": _over_seeds(
                widest.sel(embedding="spectral") - widest.sel(embedding="contrastive-pca")
            ),
            "margin_over_pixel_pca": _over_seeds(widest.sel(embedding="spectral") - widest.sel(embedding="pixel-pca")),
            "rise_with_width": _over_seeds(ours.isel(width=-1) - ours.isel(width=0)),
            **{
                f"accuracy_{str(name).replace('-', '_')}": _over_seeds(widest.sel(embedding=name))
                for name in accuracy.embedding.values
            },
        },
        [
            Criterion("loss_error", "the loss of the closed form, pair by pair, is −Σ λ²", high=1e-10),
            Criterion("gradient_norm", "its gradient vanishes there", high=1e-8),
            Criterion("least_gap_trained", "no trained head goes below it", low=-1e-9),
            Criterion("last_gap_trained", "a head trained on the features comes near", high=0.05),
            Criterion("last_gap_whitened", "a head trained on whitened features reaches it", high=1e-9),
            Criterion("least_gap_nearby", "every nearby head is worse", low=0),
            Criterion("least_gap_random", "random heads at their best scale are far worse", low=0.5),
            Criterion("margin_over_contrastive_pca", "it classifies better than contrastive PCA", low=0.015),
            Criterion("margin_over_pixel_pca", "and better than PCA of the input", low=0.015),
            Criterion("rise_with_width", "and better the wider", low=0.015),
        ],
        data=xr.merge([heads.drop_vars("width").squeeze("width").rename(seed="head_seed"), probes], join="outer"),
        panels=[
            Panel(
                "Trained heads approach the closed form",
                "step t",
                "(loss − least loss) / |least loss|",
                (
                    curve("on the features", steps, seed_mean(heads.gap_trained.isel(width=0))),
                    curve(
                        "on whitened features", steps, np.maximum(seed_mean(heads.gap_whitened.isel(width=0)), ROUNDING)
                    ),
                ),
            ),
            Panel(
                f"Linear probe, {probes.attrs['n_components']} components",
                "width M",
                "test accuracy",
                tuple(
                    curve(str(name), means.width, means.sel(embedding=name), "dashed" if "pixel" in name else "line")
                    for name in accuracy.embedding.values
                ),
                y_log=False,
            ),
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


RIDGE = 1e-5
ROUNDING = 1e-16  # a gap of 0 has no place on a logarithmic axis
HEAD_WIDTH, HEAD_COMPONENTS, HEAD_SAMPLES, HEAD_VIEWS = 64, 8, 300, 4
_STEPS = [t for t in log_steps(1000, 12) if t > 0]


def _heads(setting: Setting, width: int, seed: int) -> dict[str, object]:
    """Heads over tanh features, none of which is silent on all samples: Σ is regular and needs no ridge."""
    dataset, draw = setting.dataset(), generator("heads", seed)
    if len(dataset) < HEAD_SAMPLES:
        raise InputError(
            f"this claim needs {HEAD_SAMPLES} samples and {setting.data_names[0]!r} has {len(dataset)}; give a larger "
            "--data"
        )
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
        """Gaps on the way of plain gradient descent from a small random head; NaN once it has overflowed."""
        size = float(inputs.square().sum(1).mean()) ** 0.5
        top = float(torch.linalg.matrix_norm(inputs, 2)) ** 2 / len(inputs)
        run = gradient_descent(
            lambda parameters, phi: phi @ parameters["head"],
            {"head": 0.1 * random_head() / size},
            Problem(inputs, _loss, len(inputs)),
            learning_rate=0.25 / top,
            n_steps=_STEPS[-1],
            record_at=_STEPS,
            recorders={"loss": lambda now: _loss(now.outputs)},
        )
        return (padded(run.records["loss"], len(_STEPS)) - best) / abs(best)

    at_best = W.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(_loss(features @ at_best), at_best)
    random = [random_head() for _ in range(20)]
    nearby = [gap(W + size * W.norm() / D.norm() * D) for D in random for size in (1e-3, 1e-2, 1e-1, 1.0)]
    return {
        "loss_error": abs(best / -float((model.eigenvalues_**2).sum()) - 1),
        "gradient_norm": float(gradient.norm() * W.norm()) / abs(best),
        "gap_trained": trained(features),
        "gap_whitened": trained(features @ (U * squares.rsqrt())),
        "gap_nearby": float(np.min(nearby)),
        "gap_random": float(np.min([1 - _best_scaled(features @ D) / best for D in random])),
    }


def _pairwise_loss(outputs: Tensor) -> Tensor:
    """−2 E f·f⁺ + E (f·f')² as it is written: over all pairs of two views of a sample, and over all pairs of views."""
    products = (outputs @ outputs.mT).view(HEAD_VIEWS, HEAD_SAMPLES, HEAD_VIEWS, HEAD_SAMPLES)
    of_a_sample = products.diagonal(dim1=1, dim2=3).sum(2)  # (v, v)
    attraction = (of_a_sample.sum() - of_a_sample.trace()) / (HEAD_SAMPLES * HEAD_VIEWS * (HEAD_VIEWS - 1))
    return -2 * attraction + products.square().mean()


def _terms(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """E f·f⁺ and E (f·f')², without the products of all pairs."""
    total = outputs.view(HEAD_VIEWS, HEAD_SAMPLES, -1).sum(0)
    different = total.square().sum() - outputs.square().sum()
    attraction = different / (HEAD_SAMPLES * HEAD_VIEWS * (HEAD_VIEWS - 1))
    return attraction, (outputs.mT @ outputs / len(outputs)).square().sum()


def _loss(outputs: Tensor) -> Tensor:
    attraction, repulsion = _terms(outputs)
    return -2 * attraction + repulsion


def _best_scaled(outputs: Tensor) -> float:
    """The least loss over all multiples of the outputs: −2c²a + c⁴r is least at c² = a/r, or 0."""
    attraction, repulsion = (float(term) for term in _terms(outputs))
    return -(attraction**2) / repulsion if attraction > 0 else 0.0


def _probes(setting: Setting) -> xr.Dataset:
    """Test accuracy of a linear probe by width, seed and embedding."""
    dataset, names = setting.dataset(), ("spectral", "contrastive-pca", "pixel-pca", "pixels")
    widths = setting.pick(quick=(128, 512, 1024), full=(128, 512, 2048), paper=(512, 2048, 8192))
    k, n_views = setting.pick(quick=32, full=32, paper=128), 8
    n_train = min(setting.pick(quick=1000, full=1000, paper=5000), 2 * len(dataset) // 3)
    if dataset.y is None or n_train < 300:
        raise InputError(
            f"claim A.spec needs labels and at least 450 samples; {setting.data_names[0]!r} has {len(dataset)} samples"
            f"{'' if dataset.y is not None else ' and no labels'}; give another --data"
        )
    of_the_input: dict[int, list[float]] = {}
    y = dataset.y

    def measure(width: int, seed: int) -> dict[str, object]:
        order = torch.randperm(len(dataset), generator=generator("probes", seed))
        train, test = order[:n_train], order[n_train:][:n_train]
        x, unseen = dataset.x[train].to(setting.device), dataset.x[test].to(setting.device)

        def accuracy(embed: Callable[[Tensor], Tensor]) -> float:
            return linear_probe(embed(x).cpu(), y[train], embed(unseen).cpu(), y[test])

        shared: dict[str, Any] = {"views": _view(dataset), "random_state": seed}
        spectral = SpectralContrastive(k, width=width, n_views=n_views, ridge=RIDGE, **shared).fit(x)
        # The same features, which are normalised already.
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
    """Turned, shifted and scaled images; rows with noise."""
    return "affine:15,0.05,0.1" if dataset.is_image else "noise:0.1"


def _over_seeds(values: xr.DataArray) -> Estimate:
    """The mean over seeds with its 95 % interval; NaN where one seed is."""
    numbers = np.asarray(values.values, dtype=float)
    mean = float(numbers.mean())
    if len(numbers) < 2:
        return Estimate.of(mean)
    half = float(stats.t.ppf(0.975, len(numbers) - 1) * numbers.std(ddof=1) / math.sqrt(len(numbers)))
    return Estimate(mean, mean - half, mean + half)
