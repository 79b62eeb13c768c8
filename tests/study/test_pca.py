"""The orthonormal run is measured as paper A defines it, and each verdict follows from the numbers behind it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given, settings
from hypothesis.strategies import floats, integers

from kontrast.data import load_data, make_pairs, parse_view
from kontrast.dynamics import Status, Trajectory
from kontrast.nets import MLP
from kontrast.pca import pca_network, train_pca_network
from kontrast.runs.records import generator_for
from kontrast.study import PCAFindings, PCAVerdict, StudySpec, Thresholds, pca, prepare
from kontrast.study.cell import Cell, draw_cell

TINY = StudySpec(
    data="digits",
    n_samples=6,
    d_out=2,
    widths=(16,),
    n_seeds=1,
    n_steps=5,
    delta=0.05,
    pca_learning_rate=1.0,
    pca_d_out=2,
    pca_steps=12,
)
NAMES = [quantity.name for quantity in pca.QUANTITIES]


@dataclasses.dataclass(frozen=True)
class View:
    measures: xr.Dataset
    embeddings: dict[str, Any]


def measured(cell: Cell) -> View:
    before = dict(cell.embeddings)
    measures = pca.measure(cell)
    return View(
        measures, {k: embed for k, embed in cell.embeddings.items() if k not in before or before[k] is not embed}
    )


def view_of(spec: StudySpec, width: int = 16, seed: int = 0) -> tuple[View, torch.Tensor, torch.Tensor, MLP]:
    """The view, with the pool, the dense symmetric S and the net it was made from."""
    cell = draw_cell(prepare(spec), width, seed)
    pairs, net = cell.pairs, cell.net
    S = torch.zeros(len(pairs.x), len(pairs.x), dtype=torch.float64)
    for n in range(pairs.n_anchors):
        S[pairs.positive[n, 0], pairs.anchor[n]] += 1 / pairs.n_anchors
        S[pairs.negative[n, 0], pairs.anchor[n]] -= 1 / pairs.n_anchors
    return measured(cell), pairs.rows, (S + S.T) / 2, net


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
            seen = view.measures.sel(pca_step=step)
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
    assert set(view.measures.data_vars) >= set(NAMES)


def test_a_wide_net_with_one_output_is_pca_of_its_first_features() -> None:
    """Claim A.pca: in the window 1/(η·gap) ≪ t ≪ M/η."""
    spec = dataclasses.replace(TINY, pca_d_out=1, pca_steps=150, widths=(1024,), n_samples=20)
    last = view_of(spec, width=1024)[0].measures.isel(pca_step=-1)
    assert float(last.pca_angle_start) < 0.05
    assert float(last.pca_angle_frozen) < float(last.pca_angle_start)
    assert float(last.matrix_drift) < 0.05
    assert int(last.pca_not_unique) == 0


def test_long_training_leaves_pca_of_the_first_features_for_that_of_its_own() -> None:
    spec = dataclasses.replace(TINY, pca_d_out=1, pca_steps=600, n_samples=20)
    last = view_of(spec, width=16)[0].measures.isel(pca_step=-1)
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
    cell = dataclasses.replace(draw_cell(spec, 16, 0), pairs=pairs, net=net)
    trained = measured(cell).embeddings["trained"]
    assert trained is not None
    torch.testing.assert_close(trained(x[100:120].flatten(1)), whole, rtol=1e-9, atol=1e-11)


def test_more_points_than_pixels_stay_as_they_are() -> None:
    view = view_of(dataclasses.replace(TINY, n_samples=40))[0]
    assert np.isfinite(view.measures[NAMES].to_dataarray()).all()


def test_deep_nets_have_a_view_of_their_last_features() -> None:
    view = view_of(dataclasses.replace(TINY, depth=3))[0]
    assert np.isfinite(view.measures[NAMES].to_dataarray()).all()


def test_points_that_all_look_alike_have_no_pca_and_end_no_run() -> None:
    spec = prepare(TINY)
    x = load_data("digits", "train", None).x[:1].expand(6, -1, -1, -1)
    pairs = make_pairs(x, views=parse_view("noise:0"), generator=generator_for(0, 0))
    net = MLP(64, 16, 2, generator=generator_for(0, 16), dtype=torch.float64)
    view = measured(dataclasses.replace(draw_cell(spec, 16, 0), pairs=pairs, net=net))
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

    monkeypatch.setattr("kontrast.study.pca.train_pca_network", stopped)
    view = view_of(TINY)[0]
    assert int(view.measures.pca_diverged) == 1
    assert int(view.measures.pca_stopped_at) == 5
    assert view.embeddings["trained"] is None
    assert view.embeddings["pca"] is not None
    for name in set(NAMES) - {"pca_angle_frozen"}:
        assert (np.isfinite(view.measures[name]) == (view.measures.pca_step < 5)).all(), name


def test_steps_of_any_length_end_no_run() -> None:
    view = view_of(dataclasses.replace(TINY, pca_learning_rate=1e200))[0]
    assert int(view.measures.pca_not_unique) == 1  # one step silences the net or makes its points look alike


def test_the_same_spec_gives_the_same_numbers() -> None:
    xr.testing.assert_identical(view_of(TINY)[0].measures, view_of(TINY)[0].measures)


SPEC = StudySpec(widths=(64, 128, 256, 512), n_seeds=3, n_steps=7, pca_learning_rate=1.0, pca_d_out=10, pca_steps=100)


def runs(
    *, start: float = 0.05, now: float = 0.01, frozen: float = 0.01, exponent: float = -1.0, gap: float = 0.05
) -> xr.Dataset:
    """Sines to PCA that are given at width 512, after 100 steps; that of C̃(0) follows a law in the width."""
    widths, steps = np.array(SPEC.widths, dtype=float), np.array(SPEC.pca_record_steps)
    shape = (4, 3, len(steps))
    noise = np.exp(0.01 * np.random.default_rng(0).standard_normal(shape))
    law = (widths / 512)[:, None, None] ** exponent
    values = {name: np.ones(shape) for name in NAMES}
    values |= {
        "pca_angle_start": np.minimum(start * law * noise, 1),
        "pca_angle_now": now * noise,
        "pca_angle_frozen": frozen * noise,
        "matrix_drift": 0.1 * law * noise,
        "pca_loss": -np.broadcast_to(np.linspace(0.1, 0.3, len(steps)), shape),
    }
    dims = ("width", "seed")
    return xr.Dataset(
        {name: ((*dims, "pca_step"), value) for name, value in values.items()}
        | {
            "pca_diverged": (dims, np.zeros((4, 3), dtype=np.int32)),
            "pca_stopped_at": (dims, np.full((4, 3), 100, dtype=np.int32)),
            "pca_not_unique": (dims, np.zeros((4, 3), dtype=np.int32)),
            "eigengap_start": (dims, np.full((4, 3), gap)),
        },
        coords={"width": list(SPEC.widths), "seed": range(3), "pca_step": steps},
    )


def judged(result: xr.Dataset, tolerance: float = 0.1) -> PCAFindings:
    return pca.judge(result, SPEC, Thresholds(pca_tolerance=tolerance))


def test_a_small_sine_is_pca_from_the_width_that_reaches_it() -> None:
    found = judged(runs(start=0.04))
    assert found.verdict is PCAVerdict.PCA
    assert found.sentence.startswith("orthonormal: the sine to PCA of C̃(0) falls as M^-1.0")
    assert "within a sine of 0.04 (within 0.1 from width 256 on)" in found.sentence
    assert found.step == 100


@settings(max_examples=25)
@given(exponent=floats(-1.5, -0.3))
def test_exponents_are_those_of_the_data(exponent: float) -> None:
    found = judged(runs(start=0.02, exponent=exponent))
    assert found.exponents["pca_angle_start"].exponent == pytest.approx(exponent, abs=0.05)
    assert found.exponents["matrix_drift"].exponent == pytest.approx(exponent, abs=0.05)


def test_the_tolerance_decides() -> None:
    result = runs(start=0.05)
    assert judged(result, 0.06).verdict is PCAVerdict.PCA
    assert judged(result, 0.04).verdict is PCAVerdict.PCA_WHEN_WIDER


def test_a_falling_sine_says_which_width_would_do() -> None:
    found = judged(runs(start=0.2, exponent=-0.5))
    assert found.verdict is PCAVerdict.PCA_WHEN_WIDER
    assert "a sine of 0.1 needs a width of about 2,000" in found.sentence


def test_a_twin_that_has_not_arrived_promises_nothing_about_wider_nets() -> None:
    found = judged(runs(start=0.5, now=0.5, frozen=0.5, exponent=-0.2))
    assert found.exponents["pca_angle_start"].high < 0
    assert found.verdict is PCAVerdict.UNDERTRAINED


def test_pca_of_the_present_features_is_learning() -> None:
    found = judged(runs(start=0.9, now=0.02, exponent=0.1))
    assert found.verdict is PCAVerdict.PCA_OF_LEARNED_FEATURES
    assert (
        "a sine of 0.91 from PCA of its starting features, C̃(0), and 0.02 from PCA of its present ones, C̃(t)"
        in found.sentence
    )


@pytest.mark.parametrize(
    "frozen, gap, verdict, advice",
    [
        (0.9, 0.001, PCAVerdict.UNDERTRAINED, "with an eigengap of 0.001 it takes about pca_steps=1300"),
        (0.9, 1e-5, PCAVerdict.UNDERTRAINED, "is too small for descent to arrive in 2,000 steps"),
        (0.9, 0.5, PCAVerdict.UNDERTRAINED, "the steps are too long, lower the PCA learning rate"),
        (0.02, 0.001, PCAVerdict.NOT_CONVERGED, "the features move faster than W can follow: take larger widths"),
    ],
)
def test_what_has_not_arrived_says_what_to_do(frozen: float, gap: float, verdict: PCAVerdict, advice: str) -> None:
    found = judged(runs(start=0.9, now=0.9, frozen=frozen, exponent=0.0, gap=gap))
    assert found.verdict is verdict
    assert found.sentence.endswith(advice)


def test_what_was_known_before_the_run_is_said_again_after_it() -> None:
    known = "the PCA part will not arrive: at dimension 10 it needs 3,000 steps; with pca_d_out=1 it takes 90"
    spec, result = dataclasses.replace(SPEC, pca_outlook=known), runs(start=0.9, now=0.9, frozen=0.9, exponent=0.0)
    found = pca.judge(result, spec, Thresholds())
    assert found is not None
    assert found.outlook == known
    assert found.sentence.endswith(
        "not arrived either (sine 0.91), as was to be expected: at dimension 10 it needs 3,000 steps; with pca_d_out=1 "
        "it takes 90"
    )
    result.pca_not_unique[-1, 1] = 1
    undefined = pca.judge(result, spec, Thresholds())
    assert undefined is not None
    assert undefined.sentence.endswith("so its PCA of dimension 10 is not unique; with pca_d_out=1 it takes 90")


def test_frozen_features_with_the_same_outputs_make_it_pca_underway() -> None:
    result = runs(start=0.9, now=0.9, frozen=0.9, exponent=0.0, gap=0.001)
    result["frozen_gap"] = result.frozen_gap * 0.02
    found = judged(result)
    assert found.verdict is PCAVerdict.PCA_UNDERWAY
    assert "within 2.00% of those of a twin" in found.sentence
    assert (
        "PCA of its starting features, C̃(0), but has not finished (largest sine 0.91, 0 would be PCA)" in found.sentence
    )
    assert "it takes about pca_steps=1300" in found.sentence
    assert pca.judge(result, SPEC, Thresholds(tolerance=0.01)).verdict is PCAVerdict.UNDERTRAINED


def test_a_run_whose_loss_stands_still_says_nothing() -> None:
    """Where nothing moves, frozen features give the same outputs, and that is no PCA underway."""
    result = runs(start=0.9, now=0.9, frozen=0.9, exponent=0.0, gap=0.001)
    result["frozen_gap"] = result.frozen_gap * 0.02
    result["pca_loss"] = result.pca_loss * 0 - 0.3
    found = judged(result)
    assert found.verdict is PCAVerdict.STILL
    assert "its loss has changed by 0.00% since the first record, too little to judge; its twin" in found.sentence


def test_a_subspace_that_is_the_whole_space_has_no_law_in_the_width() -> None:
    """A sine of 1.9e-15 at the width that is the dimension is zero, and zeros follow no law."""
    result = runs(start=0.05)
    result["pca_angle_start"] = result.pca_angle_start.where(result.width > 64, 1.9e-15)
    found = judged(result)
    assert "pca_angle_start" not in found.exponents
    assert {"pca_angle_now", "matrix_drift"} <= found.exponents.keys()
    assert "as M^" not in found.sentence
    single = pca.judge(runs(start=5e-5, exponent=-0.1), dataclasses.replace(SPEC, dtype="float32"), Thresholds())
    assert single is not None
    assert "pca_angle_start" not in single.exponents  # 5e-5 is rounding there
    assert "pca_angle_start" in judged(runs(start=5e-5, exponent=-0.1)).exponents


def test_a_study_with_one_axis_for_all_runs_is_judged_alike() -> None:
    """As it was stored before the orthonormal run had steps of its own."""
    result = runs(start=0.04)
    assert judged(result.rename(pca_step="step")) == judged(result)
    both = result.assign_coords(step=[1, 2, 7])  # those of the other runs
    assert judged(both) == judged(result)


@settings(max_examples=12)
@given(width=integers(0, 3), seed=integers(0, 2))
def test_one_diverged_run_is_never_averaged_away(width: int, seed: int) -> None:
    result = runs()
    result.pca_diverged[width, seed], result.pca_stopped_at[width, seed] = 1, 50
    for name in NAMES:
        result[name][width, seed, result.pca_step.values >= 50] = np.nan
    found = judged(result)
    assert found.verdict is PCAVerdict.DIVERGES
    assert "diverges in 1 of 12 runs" in found.sentence
    assert found.step is not None
    assert found.step <= 25
    assert all(np.isfinite(values).all() for values in found.means.values())


def test_without_an_eigengap_there_is_nothing_to_compare_with() -> None:
    result = runs(start=0.01)
    result.pca_not_unique[0, 1] = 1
    assert judged(result).verdict is PCAVerdict.PCA  # the widest network decides
    result.pca_not_unique[-1, 1] = 1
    found = judged(result)
    assert found.verdict is PCAVerdict.UNDEFINED
    assert "zero in 2 of 12 runs" in found.sentence
    result.pca_angle_start[:] = np.nan
    assert judged(result).verdict is PCAVerdict.UNDEFINED
    assert judged(result).means == {}
