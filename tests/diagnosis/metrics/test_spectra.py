"""Spectral metrics: the authors' formulas, what they are blind to, batches in any order, input without an answer."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import floats, integers, lists, sampled_from
from torch import Tensor

from kontrast.diagnosis import metrics
from kontrast.diagnosis.metrics import SPECTRAL_METRICS, Spectrum, bootstrapped, metrics_of, spectrum_of
from kontrast.errors import InputError
from kontrast.linalg import effective_rank, random_frame, relative_spread
from kontrast.linalg import participation_ratio as of_kernel
from tests.cases import generator, randn
from tests.reference import metrics as reference

CENTERED = ("centered_rank", "participation_ratio", "stable_rank", "alpha_req", "nesum")
ROTATION_BLIND = ("rankme", *CENTERED, "spread")
seeds, scales = integers(0, 2**16), floats(1e-6, 1e6)


def power_law(n: int, d: int, decay: float = 0.5, seed: int = 0, mean: float = 0.3) -> Tensor:
    """Gaussian rows whose covariance has eigenvalues k^(−2·decay)."""
    return randn(n, d, seed=seed) * torch.arange(1, d + 1, dtype=torch.float64) ** -decay + mean


def agree(found: dict[str, float], expected: dict[str, float], rel: float = 1e-10) -> None:
    assert found.keys() == expected.keys() == SPECTRAL_METRICS.keys()
    assert found == pytest.approx(expected, rel=rel, abs=1e-12, nan_ok=True)


@settings(max_examples=10)
@given(seed=seeds, n=integers(40, 90), d=integers(1, 30), decay=floats(0, 1.5))
def test_every_metric_is_its_authors_formula(seed: int, n: int, d: int, decay: float) -> None:
    z = power_law(n, d, decay, seed)
    found = metrics_of(z)
    for name in SPECTRAL_METRICS.keys() - {"centered_rank"} - ({"alpha_req"} if d < 15 else set()):
        assert found[name] == pytest.approx(getattr(reference, name)(z.numpy()), rel=1e-10), name


def test_alpha_req_looks_at_eigenvalues_11_to_100() -> None:
    z = power_law(300, 130, 0.7)
    alpha = metrics.alpha_req(z)
    assert alpha == pytest.approx(reference.alpha_req(z.numpy()), rel=1e-10)
    U, s, Vh = torch.linalg.svd(z - z.mean(0), full_matrices=False)
    s[:10], s[100:] = 50 * s[:10], 0.5 * s[100:]
    assert metrics.alpha_req(U * s @ Vh) == pytest.approx(alpha, rel=1e-8)


@given(seed=seeds, alpha=floats(0.2, 3))
def test_alpha_req_reads_a_power_law(seed: int, alpha: float) -> None:
    U = torch.linalg.qr(randn(60, 33, seed=seed) - randn(60, 33, seed=seed).mean(0)).Q
    V = random_frame(32, 32, generator=generator(seed + 1))
    z = U[:, :32] * torch.arange(1, 33, dtype=torch.float64) ** (-alpha / 2) @ V.mT
    assert metrics.alpha_req(z) == pytest.approx(alpha, rel=1e-9)


@given(seed=seeds, n=integers(2, 30), d=integers(1, 20))
def test_conventions_that_linalg_shares(seed: int, n: int, d: int) -> None:
    z = power_law(n, d, seed=seed)
    found, centered = metrics_of(z), z - z.mean(0)
    unit = z / z.norm(dim=1, keepdim=True)
    assert found["centered_rank"] == pytest.approx(effective_rank(z), rel=1e-10)
    assert found["rankme"] == pytest.approx(effective_rank(z, centered=False), rel=1e-4)  # RankMe's epsilon
    assert found["participation_ratio"] == pytest.approx(of_kernel(centered @ centered.mT), rel=1e-10)
    assert found["spread"] == pytest.approx(relative_spread(unit), rel=1e-10)


def test_each_metric_has_its_function() -> None:
    z = power_law(80, 20)
    agree({name: getattr(metrics, name)(z) for name in SPECTRAL_METRICS}, metrics_of(z), rel=0)


def test_rankme_is_not_rankme() -> None:
    z = power_law(2048, 256, mean=0.0)
    plain, shifted = metrics_of(z), metrics_of(z + 3)
    assert plain["rankme"] == pytest.approx(205, abs=1.5)
    assert shifted["rankme"] == pytest.approx(15, abs=0.5)
    assert all(shifted[name] == pytest.approx(plain[name], rel=1e-9) for name in CENTERED)
    nearly_constant = metrics_of(1 + 1e-3 * randn(2048, 256))
    assert nearly_constant["rankme"] == pytest.approx(1.2, abs=0.1)
    assert nearly_constant["centered_rank"] > 240
    assert nearly_constant["spread"] < 1e-5


@given(seed=seeds, n=integers(2, 40), d=integers(1, 25), scale=scales)
def test_rotations_and_scales(seed: int, n: int, d: int, scale: float) -> None:
    z = power_law(n, d, seed=seed)
    R = random_frame(d, d, generator=generator(seed))
    found = metrics_of(z)
    agree(metrics_of(scale * z), found, rel=1e-9)
    rotated = metrics_of(z @ R)
    assert {k: rotated[k] for k in ROTATION_BLIND} == pytest.approx(
        {k: found[k] for k in ROTATION_BLIND}, rel=1e-8, nan_ok=True
    )
    # std·√d depends on the axes; the spread, which does not, is its limit.
    assert rotated["std_sqrt_d"] ** 2 <= found["spread"] * n / (n - 1) * (1 + 1e-9)


@given(seed=seeds, n=integers(2, 40), d=integers(1, 25))
def test_order_of_samples_and_scale_of_rows(seed: int, n: int, d: int) -> None:
    z = power_law(n, d, seed=seed)
    agree(metrics_of(z[torch.randperm(n, generator=generator(seed))]), metrics_of(z))
    lengths = torch.rand(n, 1, generator=generator(seed), dtype=torch.float64) + 0.1
    found, scaled = metrics_of(z), metrics_of(lengths * z)
    assert all(scaled[name] == pytest.approx(found[name], rel=1e-9) for name in ("std_sqrt_d", "spread"))


@given(seed=seeds, n=integers(16, 40), d=integers(1, 25), copies=integers(2, 3))
def test_duplicated_samples(seed: int, n: int, d: int, copies: int) -> None:
    """All stand but two: n − 1 in the deviation, and RankMe's epsilon for singular values that are now there."""
    z = power_law(n, d, seed=seed)
    found, repeated = metrics_of(z), metrics_of(z.repeat(copies, 1))
    found["std_sqrt_d"] *= math.sqrt(copies * (n - 1) / (copies * n - 1))
    new_zeros = min(copies * n, d) - min(n, d)
    found["rankme"] *= math.exp(-new_zeros * 1e-7 * math.log(1e-7))
    agree(repeated, found, rel=1e-9)


@settings(max_examples=20)
@given(seed=seeds, d=integers(1, 20), sizes=lists(integers(1, 9), min_size=1, max_size=12))
def test_batches_of_any_size_in_any_order_give_what_all_at_once_gives(seed: int, d: int, sizes: list[int]) -> None:
    z = power_law(sum(sizes), d, seed=seed, mean=5.0)
    batches = list(z.split(sizes))
    order = torch.randperm(len(batches), generator=generator(seed)).tolist()
    forward, shuffled = Spectrum(), Spectrum()
    for batch, index in zip(batches, order, strict=True):
        forward.update(batch)
        shuffled.update(batches[index])
    assert forward.n == shuffled.n == len(z)
    for spectrum in (forward, shuffled):
        agree(spectrum.compute(), metrics_of(z))
        for centered in (False, True):
            rows = z - z.mean(0) if centered else z
            exact = torch.linalg.svdvals(rows)
            torch.testing.assert_close(
                spectrum.singular_values(centered=centered), exact, rtol=1e-11, atol=1e-13 * float(z.norm())
            )


def joined(*parts: Spectrum) -> Spectrum:
    whole = Spectrum()
    for part in parts:
        whole.merge(part)
    return whole


@settings(max_examples=20)
@given(seed=seeds, d=integers(1, 20), sizes=lists(integers(0, 12), min_size=3, max_size=3).filter(any))
def test_merging_is_associative_and_commutative(seed: int, d: int, sizes: list[int]) -> None:
    z = power_law(sum(sizes), d, seed=seed, mean=-2.0)
    a, b, c = (joined() if not len(part) else spectrum_of(part) for part in z.split(sizes))
    before = b.compute()
    whole = metrics_of(z)
    agree(joined(joined(a, b), c).compute(), whole)
    agree(joined(a, joined(b, c)).compute(), whole)
    agree(joined(c, b, a).compute(), whole)
    agree(b.compute(), before, rel=0)


def test_memory_does_not_grow() -> None:
    spectrum = Spectrum()
    for seed in range(60):
        spectrum.update(randn(7, 5, seed=seed))
        assert spectrum._rows._n_rows <= 2 * 5 + 8
    assert spectrum.n == 420


def test_small_singular_values_survive_a_large_mean_and_batches() -> None:
    """A covariance in float64 would lose everything below 1e-8 of the largest singular value."""
    U, V = torch.linalg.qr(randn(40, 6) - randn(40, 6).mean(0)).Q, random_frame(6, 6, generator=generator(1))
    s = torch.tensor([1.0, 1e-2, 1e-4, 1e-6, 1e-9, 1e-11], dtype=torch.float64)
    spectrum = Spectrum()
    for batch in (U * s @ V.mT).split(7):
        spectrum.update(batch)
    torch.testing.assert_close(spectrum.singular_values(centered=True), s, rtol=1e-3, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_number_types_are_widened_not_followed(dtype: torch.dtype) -> None:
    z = power_law(60, 20).to(dtype).requires_grad_()
    agree(metrics_of(z), metrics_of(z.detach().double()))
    assert not spectrum_of(z).singular_values(centered=True).requires_grad


@pytest.mark.gpu
def test_batches_stay_on_their_device() -> None:
    z = power_law(60, 20)
    spectrum = spectrum_of(z[:30].cuda())
    spectrum.update(z[30:])
    assert spectrum.singular_values(centered=True).is_cuda
    agree(spectrum.compute(), metrics_of(z))
    agree(joined(spectrum_of(z[:9]), spectrum_of(z[9:].cuda())).compute(), metrics_of(z))


@pytest.mark.parametrize("make", [torch.ones, lambda *shape: torch.full(shape, 0.1) ** 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_equal_rows_have_no_ranks_and_no_spread(make: Callable[..., Tensor], dtype: torch.dtype) -> None:
    spectrum = Spectrum()
    for size in (1, 5, 14):
        spectrum.update(make(size, 30).to(dtype))
    found = spectrum.compute()
    assert {name for name in found if math.isnan(found[name])} == set(CENTERED) == spectrum.missing.keys()
    assert "all rows are equal" in spectrum.missing["centered_rank"]
    assert found["std_sqrt_d"] == found["spread"] == 0
    assert found["rankme"] == pytest.approx(1, abs=1e-3)  # one direction: the mean


def test_rows_that_differ_by_rounding_are_equal() -> None:
    z = (1 + 3e-8 * randn(100, 20)).float()
    assert set(spectrum_of(z).missing) == set(CENTERED)
    assert set(spectrum_of((1 + 1e-5 * randn(100, 20)).float()).missing) == set()


def test_a_metric_that_needs_more_says_so_and_the_others_stand() -> None:
    short = spectrum_of(power_law(12, 30))
    assert short.missing == {"alpha_req": "needs 16 samples, got 12"}
    narrow = spectrum_of(power_law(40, 8))
    assert narrow.missing == {"alpha_req": "fewer than 15 eigenvalues of the covariance stand above rounding"}
    flat = spectrum_of(randn(40, 3) @ randn(3, 30, seed=1))
    assert set(flat.missing) == {"alpha_req"}
    assert flat.compute()["centered_rank"] <= 3 + 1e-9


def test_one_sample_and_none() -> None:
    one = spectrum_of(randn(1, 5))
    assert all(math.isnan(value) for value in one.compute().values())
    assert one.missing["rankme"] == "needs 2 samples, got 1"
    assert Spectrum().missing["spread"] == "needs 2 samples, got 0"
    assert one.n == 1
    assert one.d == 5


def test_rows_of_zeros_count_as_rows_at_the_origin() -> None:
    z = power_law(20, 4)
    z[3] = 0
    found = metrics_of(z)
    assert found["std_sqrt_d"] == pytest.approx(reference.std_sqrt_d(z.numpy()), rel=1e-12)
    assert found["spread"] == pytest.approx(reference.spread(z.numpy()), rel=1e-12)
    agree(joined(spectrum_of(z[:7]), spectrum_of(z[7:])).compute(), found)
    agree(joined(spectrum_of(z[3:4]), spectrum_of(z[4:]), spectrum_of(z[:3])).compute(), found)
    nothing = spectrum_of(torch.zeros(5, 4))
    assert nothing.missing["rankme"] == "all rows are zero"
    assert nothing.compute()["spread"] == nothing.compute()["std_sqrt_d"] == 0


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_sizes_at_the_ends_of_the_range_of_floats(size: float) -> None:
    z = power_law(40, 20)
    agree(metrics_of(size * z), metrics_of(z), rel=1e-9)
    one, other = bootstrapped(size * z)["rankme"], bootstrapped(z)["rankme"]
    assert (one.low, one.high) == pytest.approx((other.low, other.high), rel=1e-6)


@pytest.mark.parametrize(
    "z, message",
    [
        (torch.tensor([[1.0, math.nan]]), "z holds NaN or infinite values"),
        (torch.tensor([[1.0, math.inf]]), "z holds NaN or infinite values"),
        (torch.ones(3), r"z must have shape \(n, d\), got \(3,\); pass one embedding per row"),
        (torch.ones(3, 4, 5), r"z must have shape \(n, d\)"),
        (torch.ones(0, 4), "no size of 0"),
        (torch.ones(3, 4, dtype=torch.int64), "z must be a tensor of floating-point numbers"),
        ([[1.0]], "z must be a tensor of floating-point numbers, got list"),
        (torch.ones(3, 7), "embeddings had 4 dimensions so far, got 7; start a new accumulator"),
    ],
)
def test_what_is_no_batch_is_refused_and_changes_nothing(z: Tensor, message: str) -> None:
    spectrum = spectrum_of(randn(5, 4))
    before = spectrum.compute()
    with pytest.raises(InputError, match=message):
        spectrum.update(z)
    agree(spectrum.compute(), before, rel=0)


def test_other_widths_do_not_merge() -> None:
    with pytest.raises(InputError, match="embeddings had 4 dimensions so far, got 5"):
        spectrum_of(randn(5, 4)).merge(spectrum_of(randn(5, 5)))
    with pytest.raises(InputError, match="there are no rows yet"):
        Spectrum().singular_values(centered=False)


@pytest.mark.parametrize("name", SPECTRAL_METRICS)
def test_definitions_name_their_convention(name: str) -> None:
    metric = SPECTRAL_METRICS[name]
    assert metric.name == name
    assert any(word in metric.definition for word in ("centred", "unit length"))
    assert "'" not in metric.words


@given(seed=seeds, rank=sampled_from([1, 2, 5]))
def test_equal_directions_are_counted(seed: int, rank: int) -> None:
    U = random_frame(20, rank, generator=generator(seed))
    V = random_frame(8, rank, generator=generator(seed + 1))
    found = metrics_of(torch.cat([U, -U]) @ V.mT)  # centred already
    for name in ("rankme", "centered_rank", "participation_ratio", "stable_rank", "nesum"):
        assert found[name] == pytest.approx(rank, rel=1e-4), name
