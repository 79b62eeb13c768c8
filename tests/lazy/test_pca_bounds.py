"""Lemmas 16 and 17 and Davis–Kahan in real trainings: the provable forms hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import integers, sampled_from
from torch import Tensor

from kontrast.data import Pairs
from kontrast.dynamics import contrastive_problem, gradient_descent
from kontrast.errors import InputError
from kontrast.lazy import Constants, constants_of, davis_kahan, lemma16, lemma17
from kontrast.linalg import best_rotation, qr_retraction, subspace_sines
from kontrast.losses import ContrastiveLoss, Dot, Linear
from kontrast.nets import ACTIVATIONS, parameters_of
from tests.lazy.networks import constants, net, some_pairs


def pair_matrix(V: Tensor, pairs: Pairs, delta: float, activation: str) -> Tensor:
    """C_V of (10), pair by pair."""
    features = ACTIVATIONS[activation](pairs.x @ V.mT)
    unit = features / (features.norm(dim=1, keepdim=True) + math.sqrt(len(V)) * delta)
    total = torch.zeros(len(V), len(V), dtype=V.dtype)
    for n in range(pairs.n_anchors):
        for sign, others in ((1, pairs.positive[n]), (-1, pairs.negative[n])):
            for q in others:
                total += sign * torch.outer(unit[q], unit[pairs.anchor[n]])
    return total / pairs.n_anchors


@settings(max_examples=18)
@given(
    seed=integers(0, 2**16),
    activation=sampled_from(["tanh", "relu", "sigmoid"]),
    width=sampled_from([3, 12]),
    delta=sampled_from([0.01, 0.2, 2.0]),
    rate=sampled_from([0.05, 1.0]),
)
def test_sharp_lemma16_and_17_are_never_violated(
    seed: int, activation: str, width: int, delta: float, rate: float
) -> None:
    pairs, model = some_pairs(4, seed=seed, scale=0.7), net(4, width, activation=activation, seed=seed)
    with torch.no_grad():
        model.output.copy_(qr_retraction(model.output))
    phi = model.activation

    def normalized(p: Mapping[str, Tensor], x: Tensor) -> Tensor:  # the loss (10) is the dot product of these
        features = phi(x @ p["hidden.0"].mT)
        return features @ p["output"] / (features.norm(dim=1, keepdim=True) + math.sqrt(width) * delta)

    n_steps = 10
    run = gradient_descent(
        normalized,
        parameters_of(model),
        contrastive_problem(pairs, ContrastiveLoss(Dot(), Linear())),
        learning_rate=rate,
        n_steps=n_steps,
        orthonormal=("output",),
    )
    k = constants_of(model, pairs, learning_rate=rate, delta=delta)
    V0, V1 = model.layers()[0][0], run.final_parameters["hidden.0"]
    C0, C1 = (pair_matrix(V, pairs, delta, activation) for V in (V0, V1))
    drift = float((C1 - C0).norm())
    for form in ("corrected", "sharp"):
        assert lemma16(k, n_steps, form=form).with_measured(drift).holds  # type: ignore[arg-type]
    assert drift <= lemma16(k, n_steps).trivial
    assert "WᵀW = 1" not in lemma16(k, n_steps).failed

    values, vectors = torch.linalg.eigh((C0 + C0.mT) / 2)
    top = vectors[:, -2:]
    other = torch.linalg.eigh((C1 + C1.mT) / 2)[1][:, -2:]
    left, cosines, right = torch.linalg.svd(other.mT @ top)
    rotation = left @ right
    gap = float(values[-2] - values[-3])
    symmetric = float((C1 + C1.mT - C0 - C0.mT).norm()) / 2
    assert davis_kahan(symmetric, gap, n_components=2).with_measured(float((other @ rotation - top).norm())).holds
    sines = float((1 - cosines.clamp(max=1) ** 2).sum().sqrt())
    assert (
        davis_kahan(symmetric, gap, n_components=2, of="angles").with_measured(sines).ratio >= 1 - 1e-6 or sines < 1e-7
    )
    u = [phi(pairs.x @ V.mT) @ frame / math.sqrt(width) for V, frame in ((V1, other @ rotation), (V0, top))]
    difference = float((u[0] - u[1]).norm(dim=1).max())
    for form in ("corrected", "sharp"):
        assert lemma17(k, n_steps, gap, form=form).with_measured(difference).holds  # type: ignore[arg-type]


def test_lemma16_forms_and_their_verdicts() -> None:
    k = constants(width=64, d=4)
    t, common = 10, 0.1 * 4 * k.lipschitz**2 * k.c_in**2 / 0.01**2
    assert lemma16(k, t, form="printed").value == pytest.approx(16 * common * 2 * t / 8)
    assert lemma16(k, t, form="corrected").value == pytest.approx(16 * common * 4 * t / 8)
    assert lemma16(k, t).value == pytest.approx(4 * common / k.c_in**2 * k.c_norm**2 * t / 64)
    assert lemma16(k, t).vacuous
    assert "WᵀW = 1" in lemma16(k, t).failed  # a Gaussian W is no frame
    assert "5" in lemma16(constants("relu"), t, form="printed").failed
    assert not any(name.startswith("5") for name in lemma16(constants("relu"), t).failed)  # kinks do not matter


def test_lemma17_as_printed() -> None:
    k, t, gap = constants("sigmoid", width=64, d=4), 10, 1e-3
    zeta = 4 / 0.01 * 0.1 * 2 * 2 * k.lipschitz**2 * k.c_in**2
    xi = 2**3.5 / 0.01 * 2 * 4 * k.c_in * (k.lipschitz * k.c_theta + 0.5)
    expected = zeta * t / 8 * (1 + xi * math.log(64) / gap)
    assert lemma17(k, t, gap, form="printed").value == pytest.approx(expected, rel=1e-12)
    assert lemma17(k, t, 0.0).value == math.inf
    assert "eigengap" in lemma17(k, t, 0.0).failed


def test_lemma17_corrected_and_sharp_by_hand() -> None:
    """Both terms from the constants: how far the features move, and how far the frames do times the features' norm."""
    k = constants("sigmoid")
    t, gap = 7, 0.3
    frames = {form: 2 * math.sqrt(2) * lemma16(k, t, form=form).value / gap for form in ("corrected", "sharp")}  # type: ignore[arg-type]
    rate = k.learning_rate * k.n_pairs * k.lipschitz**2 / k.delta
    corrected = 4 * rate * k.d_in * k.c_in**2 * t / math.sqrt(k.width) + frames["corrected"] * (
        k.value_at_zero + k.lipschitz * k.d_in * k.c_in * k.max_weight
    )
    sharp = 2 * rate * k.c_norm**2 * t / k.width + frames["sharp"] * k.feature_norm
    assert lemma17(k, t, gap, form="corrected").value == pytest.approx(corrected, rel=1e-12)
    assert lemma17(k, t, gap, form="sharp").value == pytest.approx(sharp, rel=1e-12)


def test_the_trivial_bounds_of_davis_kahan_are_attained() -> None:
    """Orthogonal planes: ‖W̃O − W‖_F = √(2Z) for every O, and ‖sin Θ‖_F = √Z."""
    top, other = torch.eye(4, dtype=torch.float64)[:, :2], torch.eye(4, dtype=torch.float64)[:, 2:]
    distance = float((other @ best_rotation(other, top) - top).norm())
    assert davis_kahan(1.0, 1e-9, n_components=2).trivial == pytest.approx(distance)
    assert davis_kahan(1.0, 1e-9, n_components=2, of="angles").trivial == pytest.approx(
        float(subspace_sines(top, other).norm())
    )


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda k: lemma16(k, -1), "step must be a number of 0 or more, got -1"),
        (lambda k: lemma16(k, 1, form="exact"), "form must be one of printed, corrected, sharp, got 'exact'"),
        (lambda k: lemma17(k, -1, 0.1), "step must be a number of 0 or more"),
        (lambda k: davis_kahan(1.0, math.nan, n_components=1), "gap must be a number, got nan"),
        (lambda k: davis_kahan(-1.0, 1.0, n_components=1), "drift_norm must be a number of 0 or more"),
        (lambda k: davis_kahan(1.0, 1.0, n_components=0), "n_components must be a whole number of at least 1"),
        (lambda k: davis_kahan(1.0, 1.0, n_components=2, of="vectors"), "of must be one of frames, angles"),
    ],
)
def test_what_cannot_be_is_refused(call: Callable[[Constants], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(constants("sigmoid"))
