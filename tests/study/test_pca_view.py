from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

from kontrast.data import load_data, make_pairs, parse_view
from kontrast.dynamics import Status, Trajectory
from kontrast.nets import MLP
from kontrast.pca import pca_network, train_pca_network
from kontrast.runs.records import generator_for
from kontrast.study import PCA_MEASURES, StudySpec, prepare
from kontrast.study.pca_view import PCAView, pca_view

TINY = StudySpec(data="digits", n_samples=6, d_out=2, widths=(16,), n_seeds=1, n_steps=12, delta=0.05)


def view_of(spec: StudySpec, width: int = 16, seed: int = 0) -> tuple[PCAView, torch.Tensor, torch.Tensor, MLP]:
    """The view, with the pool, the dense symmetric S and the net it was made from."""
    spec = prepare(spec)
    sampler = generator_for(seed, 0)
    sample = load_data(spec.data, spec.split, None).subsample(spec.n_samples, generator=sampler)
    pairs = make_pairs(sample.x, views=parse_view(str(spec.views)), generator=sampler)
    net = MLP(64, width, spec.d_out, depth=spec.depth, generator=generator_for(seed, width), dtype=torch.float64)
    S = torch.zeros(len(pairs.x), len(pairs.x), dtype=torch.float64)
    for n in range(pairs.n_anchors):
        S[pairs.positive[n, 0], pairs.anchor[n]] += 1 / pairs.n_anchors
        S[pairs.negative[n, 0], pairs.anchor[n]] -= 1 / pairs.n_anchors
    return pca_view(spec, net, pairs), pairs.rows, (S + S.T) / 2, net


def features(x: torch.Tensor, V: torch.Tensor, delta: float) -> torch.Tensor:
    """Paper A, (10): φ over ‖φ‖ + √M δ."""
    phi = torch.relu(x @ V.T)
    return phi / (phi.norm(dim=1, keepdim=True) + delta * V.shape[0] ** 0.5)


def top(C: torch.Tensor, k: int) -> tuple[torch.Tensor, float]:
    values, vectors = torch.linalg.eigh(C)
    return vectors[:, -k:], float(values[-k] - values[-k - 1])


def sine(U: torch.Tensor, V: torch.Tensor) -> float:
    return float(torch.linalg.svdvals(V - U @ (U.T @ V)).max())


def test_a_view_is_what_a_slow_hand_written_run_measures() -> None:
    """(7) under (10) again, with C̃ written out, torch's own backward and an explicit loop."""
    view, x, S, net = view_of(TINY)
    V, W = net.hidden[0].detach().clone(), torch.linalg.qr(net.output.detach()).Q
    F0, frozen = features(x, V, 0.05), W.clone()
    C0 = F0.T @ S @ F0
    first, gap = top(C0, 2)
    assert float(view.measures.eigengap_start) == pytest.approx(gap, rel=1e-8)

    def descend(W: torch.Tensor, G: torch.Tensor) -> torch.Tensor:
        return torch.linalg.qr(W - (G - W @ (W.T @ G))).Q

    for step in range(1, 13):
        V_, W_ = V.requires_grad_(), W.requires_grad_()
        F = features(x, V_, 0.05)
        dV, dW = torch.autograd.grad(-(W_.T @ F.T @ S @ F @ W_).trace(), (V_, W_))
        V, W = (V_ - dV).detach(), descend(W_.detach(), dW)
        frozen = descend(frozen, -2 * C0 @ frozen)
        if step in (1, 5, 12):
            seen = view.measures.sel(step=step)
            F = features(x, V, 0.05)
            C = F.T @ S @ F
            now, gap = top(C, 2)
            # The frames of a QR factor differ by signs from mine, the same ones in both runs.
            gaps = [
                min(float((a - b).norm()), float((a + b).norm())) / float(b.norm())
                for a, b in zip((F @ W), (F0 @ frozen), strict=True)
            ]
            expected = {
                "pca_angle_start": sine(first, W),
                "pca_angle_now": sine(now, W),
                "pca_angle_frozen": sine(first, frozen),
                "matrix_drift": float((C - C0).norm() / C0.norm()),
                "eigengap": gap,
                "pca_loss": -float((W.T @ C @ W).trace()),
            }
            for name, value in expected.items():
                assert float(seen[name]) == pytest.approx(value, rel=1e-6), name
            assert float(seen.frozen_gap) == pytest.approx(float(np.mean(gaps)), rel=0.5)
    assert set(view.measures.data_vars) >= PCA_MEASURES.keys()


def test_a_wide_net_with_one_output_is_pca_of_its_first_features() -> None:
    """Claim A.pca: in the window 1/(η·gap) ≪ t ≪ M/η."""
    spec = dataclasses.replace(TINY, d_out=1, n_steps=150, widths=(1024,), n_samples=20)
    last = view_of(spec, width=1024)[0].measures.isel(step=-1)
    assert float(last.pca_angle_start) < 0.05
    assert float(last.pca_angle_frozen) < float(last.pca_angle_start)
    assert float(last.matrix_drift) < 0.05
    assert int(last.pca_not_unique) == 0


def test_long_training_leaves_pca_of_the_first_features_for_that_of_its_own() -> None:
    spec = dataclasses.replace(TINY, d_out=1, n_steps=600, n_samples=20)
    last = view_of(spec, width=16)[0].measures.isel(step=-1)
    assert float(last.pca_angle_start) > 0.3
    assert float(last.pca_angle_now) < 0.1


def test_embeddings_are_those_of_the_networks() -> None:
    view, x, S, net = view_of(TINY)
    F = features(x, net.hidden[0].detach(), 0.05)
    frame, _ = top(F.T @ S @ F, 2)
    projected = view.embeddings["pca"](x)
    assert torch.linalg.svdvals(projected) == pytest.approx(torch.linalg.svdvals(F @ frame), rel=1e-8)
    assert torch.linalg.svdvals(view.embeddings["random"](x)) == pytest.approx(
        torch.linalg.svdvals(F @ torch.linalg.qr(net.output.detach()).Q), rel=1e-8
    )
    shapes = {name: tuple(embed(x).shape) for name, embed in view.embeddings.items()}
    assert shapes == dict.fromkeys(("pca", "trained", "iterative", "random"), (12, 2))


@pytest.mark.parametrize("depth", [1, 2])
def test_the_span_of_the_points_is_enough(depth: int) -> None:
    """12 points of 64 pixels are trained in 12 coordinates; a net trained on all 64 embeds unseen points alike."""
    spec = prepare(dataclasses.replace(TINY, depth=depth))
    x = load_data("digits", "train", None).x
    pairs = make_pairs(x[:6], views=parse_view("crop"), generator=generator_for(0, 0))
    net = MLP(64, 16, 2, depth=depth, generator=generator_for(0, 16), dtype=torch.float64)
    run = train_pca_network(net, pairs, delta=0.05, learning_rate=1.0, n_steps=12)
    whole = pca_network(net, delta=0.05)(run.final_parameters, x[100:120].flatten(1))
    trained = pca_view(spec, net, pairs).embeddings["trained"]
    assert trained is not None
    torch.testing.assert_close(trained(x[100:120].flatten(1)), whole, rtol=1e-9, atol=1e-11)


def test_more_points_than_pixels_stay_as_they_are() -> None:
    view = view_of(dataclasses.replace(TINY, n_samples=40))[0]
    assert np.isfinite(view.measures[list(PCA_MEASURES)].to_dataarray()).all()


def test_deep_nets_have_a_view_of_their_last_features() -> None:
    view = view_of(dataclasses.replace(TINY, depth=3))[0]
    assert np.isfinite(view.measures[list(PCA_MEASURES)].to_dataarray()).all()


def test_points_that_all_look_alike_have_no_pca_and_end_no_run() -> None:
    spec = prepare(TINY)
    x = load_data("digits", "train", None).x[:1].expand(6, -1, -1, -1)
    pairs = make_pairs(x, views=parse_view("noise:0"), generator=generator_for(0, 0))
    net = MLP(64, 16, 2, generator=generator_for(0, 16), dtype=torch.float64)
    view = pca_view(spec, net, pairs)
    assert int(view.measures.pca_not_unique) == 1
    assert np.isnan(view.measures.pca_angle_start).all()
    assert view.embeddings["pca"] is None
    assert view.embeddings["iterative"] is None


def test_an_overflow_is_recorded_and_embeds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The normalised loss is bounded, so that hardly any learning rate overflows; this run is stopped by hand."""

    def stopped(*arguments: Any, freeze_hidden: bool = False, **options: Any) -> Trajectory:
        run = train_pca_network(*arguments, freeze_hidden=freeze_hidden, **options)
        if freeze_hidden:
            return run
        records = {name: values[:4] for name, values in run.records.items()}
        return dataclasses.replace(
            run, status=Status.DIVERGED, stopped_at=5, steps=run.steps[:4], losses=run.losses[:5], records=records
        )

    monkeypatch.setattr("kontrast.study.pca_view.train_pca_network", stopped)
    view = view_of(TINY)[0]
    assert int(view.measures.pca_diverged) == 1
    assert int(view.measures.pca_stopped_at) == 5
    assert view.embeddings["trained"] is None
    assert view.embeddings["pca"] is not None
    for name in PCA_MEASURES.keys() - {"pca_angle_frozen"}:
        assert (np.isfinite(view.measures[name]) == (view.measures.step < 5)).all(), name


def test_steps_of_any_length_end_no_run() -> None:
    view = view_of(dataclasses.replace(TINY, pca_learning_rate=1e200))[0]
    assert int(view.measures.pca_not_unique) == 1  # one step silences the net or makes its points look alike


def test_the_same_spec_gives_the_same_numbers() -> None:
    xr.testing.assert_identical(view_of(TINY)[0].measures, view_of(TINY)[0].measures)
