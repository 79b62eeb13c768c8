"""The closed form of Proposition 10 against the flow itself, and where the printed formulas lose their digits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import floats, integers, sampled_from
from scipy.integrate import solve_ivp

from kontrast.errors import InputError
from kontrast.lazy import BlowUp, proposition10
from tests.cases import randn


def flow(w: torch.Tensor, v: torch.Tensor, C: float, t: float) -> float:
    """P(t) by integrating (14) and (15)."""
    M = len(w)

    def slope(_: float, y: np.ndarray) -> np.ndarray:
        S = y[:M] @ y[M:] / M
        return 2 * C * S * np.concatenate([y[M:], y[:M]])

    start = torch.cat([w, v]).numpy()
    end = solve_ivp(slope, (0, t), start, method="DOP853", rtol=1e-12, atol=1e-14).y[:, -1]
    return float(end @ end / M)


@settings(max_examples=15)
@given(
    seed=integers(0, 2**16), width=sampled_from([1, 4, 64]), C=sampled_from([0.3, 1.0, 4.0]), part=floats(0.05, 0.99)
)
def test_level_is_the_flow(seed: int, width: int, C: float, part: float) -> None:
    w, v = randn(2, width, seed=seed)
    found = BlowUp.of(w, v, C)
    t = part * float(found.time)
    assert float(found.level(t)) == pytest.approx(flow(w, v, C, t), rel=1e-6)
    assert float(found.level(0.0)) == pytest.approx(float((w**2 + v**2).mean()), rel=1e-12)


@given(seed=integers(0, 2**16))
def test_the_paper_s_formulas(seed: int) -> None:
    w, v = randn(2, 16, seed=seed)
    found, S, P = BlowUp.of(w, v, 0.7), float((w * v).mean()), float((w**2 + v**2).mean())
    alpha = P**2 / 4 - S**2
    beta = 4 * S**2 / (P + 2 * math.sqrt(alpha)) ** 2
    assert float(found.alpha) == pytest.approx(alpha, rel=1e-10)
    assert float(found.beta) == pytest.approx(beta, rel=1e-10)
    assert float(found.time) == pytest.approx(math.log(1 / beta) / (8 * 0.7 * math.sqrt(alpha)), rel=1e-10)


def test_tiny_beta_keeps_its_digits() -> None:
    w, v = torch.tensor([1.0, 1.0], dtype=torch.float64), torch.tensor([1.0, -1.0 + 1e-12], dtype=torch.float64)
    S = float((w * v).mean())
    found = BlowUp.of(w, v, 1.0)
    assert float(found.beta) == pytest.approx(S**2 / 4, rel=1e-9)  # P = 2, √α = 1
    assert float(found.time) == pytest.approx(math.log(4 / S**2) / 8, rel=1e-9)


def test_equal_weights_are_the_limit_alpha_zero() -> None:
    w = torch.tensor([1.0, 2.0], dtype=torch.float64)
    for nearly in (w, w * (1 + 1e-9), -w):
        found = BlowUp.of(w, nearly, 1.0)  # dP/dt = 2P²: P = P₀/(1 − 2P₀t) with P₀ = 5
        assert float(found.time) == pytest.approx(0.1, rel=1e-7)
        assert float(found.level(0.05)) == pytest.approx(10.0, rel=1e-7)
    assert float(BlowUp.of(w, w, 1.0).level(0.2)) == math.inf


def test_orthogonal_or_repelled_weights_never_blow_up() -> None:
    w, v = torch.tensor([1.0, 1.0]), torch.tensor([1.0, -1.0])
    still = BlowUp.of(w, v, 1.0)
    assert float(still.time) == math.inf
    assert float(still.level(1e6)) == pytest.approx(2.0, rel=1e-15)
    w, v = randn(2, 8)
    falling = BlowUp.of(w, v, -1.0)
    assert float(falling.time) == math.inf
    assert float(falling.level(0.4)) == pytest.approx(flow(w, v, -1.0, 0.4), rel=1e-8)


def test_draws_go_together_and_times_grow_like_log_width() -> None:
    w, v = randn(2, 7, 3, 16)
    together = BlowUp.of(w, v, 1.0)
    assert together.time.shape == (7, 3)
    assert float(together.time[2, 1]) == float(BlowUp.of(w[2, 1], v[2, 1], 1.0).time)
    C, widths = 0.5, (256, 4096)
    means = [float(BlowUp.of(*randn(2, 400, width, seed=3), C).time.mean()) for width in widths]
    slope = (means[1] - means[0]) / math.log(widths[1] / widths[0])
    assert slope == pytest.approx(1 / (8 * C), rel=0.1)


def test_probability_bound_holds_and_is_vacuous_for_small_widths() -> None:
    late = float((BlowUp.of(*randn(2, 4000, 16), 1.0).time >= math.log(16)).double().mean())
    found = proposition10(16, 1.0).with_measured(late)
    assert found.holds
    assert found.vacuous
    assert not proposition10(10_000, 1.0).vacuous
    assert proposition10(16, 0.1).failed == ("C",)


def test_refuses_what_is_no_net() -> None:
    with pytest.raises(InputError, match=r"\(\.\.\., M\)"):
        BlowUp.of(torch.ones(3), torch.ones(4), 1.0)
    with pytest.raises(InputError, match="zero"):
        BlowUp.of(torch.zeros(3), torch.zeros(3), 1.0)
    with pytest.raises(InputError, match="v holds NaN"):
        BlowUp.of(torch.ones(3), torch.full((3,), math.nan), 1.0)
    with pytest.raises(InputError, match="slope must be a number, got nan"):
        BlowUp.of(torch.ones(3), torch.ones(3), math.nan)
