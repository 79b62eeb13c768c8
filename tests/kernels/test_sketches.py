"""Sketches against the projection as a matrix and, over many seeds, against the exact kernels that they stand for."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import integers
from torch import Tensor, nn

from kontrast.errors import InputError
from kontrast.kernels import (
    NTKSketch,
    SketchWarning,
    blocks,
    empirical_ntk_sketch,
    empirical_ntk_trace,
    ntk_drift,
    projections,
    sketches,
)
from kontrast.kernels.network import network_of
from kontrast.kernels.planning import Form, Kind, Question
from kontrast.kernels.projections import CountSketch, random_directions
from kontrast.kernels.tangents import plan_for
from kontrast.linalg import Estimate, kernel_alignment, kernel_drift
from kontrast.nets import MLP
from tests.cases import DTYPES, generator, randn
from tests.kernels.networks import IDS, NETWORKS, Bert, of_type, ready, rows_for
from tests.kernels.test_projections import as_matrix
from tests.reference import ntk

AGREEMENT = {torch.float64: 1e-10, torch.float32: 2e-4}  # relative to the largest entry


# --- the projection as a matrix -------------------------------------------------------------------------------------


class Tied(nn.Module):
    """A weight that is used twice, once the other way round; one that trains nothing; one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.unused, self.last = nn.Linear(4, 6), nn.Linear(3, 5), nn.Linear(6, 3)
        self.scale = nn.Parameter(torch.ones(6))
        self.first.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x)) * self.scale
        return self.last(torch.tanh(self.first(h @ self.first.weight)))


class Opaque(nn.Module):
    """Parameters in operations without a rule, beside a layer that has one."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.wave, self.last = nn.Parameter(torch.ones(4, 6)), nn.Parameter(torch.ones(4)), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.einsum("ni,ij->nj", x, self.mix)
        waves = torch.fft.irfft(torch.complex(torch.fft.rfft(h).real, self.wave.expand(len(x), -1)), n=6)
        return self.last(torch.tanh(waves))


class Branching(nn.Module):
    """Another number of layers for every kind of row: no plan fits them all."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.other, self.last = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        deep = (x[:, :1] > 0.3).to(h)
        return self.last(h + deep * torch.tanh(self.other(h)) if bool(deep.any()) else h)


class Spread(nn.Module):
    """Many outputs, all made from those of another network by a fixed map."""

    def __init__(self, inside: nn.Module, n_outputs: int = 40) -> None:
        super().__init__()
        self.inside, self.n_outputs = inside, n_outputs

    def forward(self, x: Tensor) -> Tensor:
        f = self.inside(x)
        return torch.sin(f @ torch.linspace(-2, 3, f.shape[1] * self.n_outputs).to(f).view(f.shape[1], -1).cos())


class Summed(nn.Module):
    """The sum of a network's outputs."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x).sum(1, keepdim=True)


def convolutions() -> nn.Module:
    layers = [nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 2, groups=2), nn.ReLU()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(4, 2, 2, bias=False), nn.Flatten(), nn.Linear(8, 3))


ALL: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    **NETWORKS,
    "convolutions": (convolutions, (2, 4, 4)),
    "tied": (Tied, (4,)),
    "opaque": (Opaque, (4,)),
    "branching": (Branching, (4,)),
    "MLP": (lambda: MLP(4, 8, 3, depth=2, generator=generator(0)), (4,)),
}


def network(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    """One of `ALL`; a spectral norm starts from random vectors."""
    torch.manual_seed(0)
    return ready(ALL[name][0](), dtype=dtype)


def rows_of(name: str, n: int = 4) -> Tensor:
    """Rows for it; of tokens, some twice in a row."""
    x = rows_for(ALL[name][1], n)
    if ALL[name][1] == IDS:
        x[0], x[1] = torch.tensor([2, 2, 5]), torch.tensor([2, 0, 2])
    return x


def by_matrix(module: nn.Module, x: Tensor, dim: int, seed: int = 0, names: list[str] | None = None) -> Tensor:
    """The kernel of projected gradients of the right length, from whole Jacobians and one matrix for all of them."""
    J = ntk.jacobian(module, x, names)  # (n, c, p)
    c, groups = J.shape[1], 32
    q = groups * max(1, dim // (128 * groups))
    directions = torch.eye(c).to(J) if c <= q else random_directions(c, q, seed)
    G = torch.einsum("qc,ncp->nqp", directions, J)
    n_numbers, apart = G[0].numel(), c > q
    S = as_matrix(CountSketch(dim // groups if apart else dim, n_numbers, seed=seed, like=J), n_numbers)
    if apart:  # direction k in the numbers of its group
        each = torch.einsum("nqp,qpd->nqd", G, S.view(*G.shape[1:], -1))
        features = torch.unflatten(each, 1, (groups, -1)).sum(2).flatten(1)
    else:
        features = G.flatten(1) @ S
    lengths = G.square().sum((1, 2)).sqrt() / (q**0.5 if apart else 1)
    features *= (lengths / features.norm(dim=1))[:, None]
    return features @ features.mT


def least_memory(compute: Callable[..., Any]) -> int:
    """The memory that a refusal names."""
    with pytest.raises(InputError, match=r"pass memory=\d+ or more") as refused:
        compute(memory=1)
    return int(str(refused.value).split("memory=")[1].split()[0])


def assert_projected(module: nn.Module, x: Tensor, dim: int) -> None:
    """In one go, in slices of a few numbers, in blocks of a row and in float32 it is the same projection."""
    expected = by_matrix(module, x, dim)
    single = copy.deepcopy(module).float()
    least = least_memory(lambda memory: empirical_ntk_sketch(module, x, dim, memory=memory))
    for net, memory, numbers in (
        (module, None, 2**25),
        (module, None, 1),
        (module, 3 * least, 2**25),
        (module, least, 2**25),
        (single, None, 2**25),
    ):
        dtype = torch.float32 if net is single else torch.float64
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(blocks.NUMBERS, "cpu", numbers)
            found = empirical_ntk_sketch(net, of_type(x, dtype), dim, memory=memory)
        assert (found.features.dtype, len(found), found.dim) == (dtype, len(x), dim)
        off = found.kernel().value.double() - expected
        assert float(off.abs().max()) <= AGREEMENT[dtype] * float(expected.abs().max()), f"{memory=} {numbers=}"


@pytest.mark.parametrize("few", [0, 64])
@pytest.mark.parametrize("name", ALL)
def test_gradients_are_projected_as_by_a_matrix(name: str, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projections, "FEW_BLOCKS", few)
    assert_projected(network(name), rows_of(name), 64)


@pytest.mark.parametrize("few", [0, 64])
@pytest.mark.parametrize("name", ["convolutions", "BERT", "weight norm", "tied", "opaque"])
def test_so_are_those_of_many_outputs_in_random_directions(
    name: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projections, "FEW_BLOCKS", few)
    assert_projected(Spread(network(name)), rows_of(name, 3), 128)


def test_more_numbers_hold_more_directions() -> None:
    """Of 80 outputs 64 directions, two in each group; of 64 outputs all."""
    inside, x = ready(MLP(4, 16, 3, generator=generator(0))), rows_for((4,), 2)
    assert_projected(Spread(inside, 80), x, 8192)
    module = Spread(inside, 64)
    found = empirical_ntk_sketch(module, x, 8192).kernel().value.diagonal()
    torch.testing.assert_close(found, empirical_ntk_trace(module, x).diagonal())


def test_the_networks_have_parts_of_every_kind() -> None:
    question = Question(Kind.TRACE, 4, 4, symmetric=True, gradients=True)
    layouts = {name: plan_for(network_of(network(name)), rows_of(name)[:2], question, name="x").layout for name in ALL}
    forms = {group.form for layout in layouts.values() for group in layout.groups}
    assert forms == {Form.OUTER, Form.DENSE, Form.GRAM}
    assert layouts["opaque"].opaque == ("mix",)


def test_some_parameters_at_another_point_and_one_output_of_several() -> None:
    x = rows_of("BERT")
    several, only = ready(Bert(lambda **outputs: tuple(outputs.values()))), ["value.weight", "words"]
    chosen = ready(Bert(lambda **outputs: outputs["pooler_output"]), 5)
    found = empirical_ntk_sketch(several, x, 64, seed=7, parameters=chosen.state_dict(), only=only, output=1)
    expected = by_matrix(chosen, x, 64, 7, ["words.weight", "value.weight"])
    torch.testing.assert_close(found.kernel().value, expected, rtol=0, atol=1e-10 * float(expected.max()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["convolutions", "BERT", "opaque", "MLP"])
def test_lengths_are_exact(name: str, dtype: torch.dtype) -> None:
    module, x = network(name, dtype), of_type(rows_of(name), dtype)
    exact, found = empirical_ntk_trace(module, x).diagonal(), empirical_ntk_sketch(module, x, 64).kernel()
    rounding = {torch.float64: 1e-12, torch.float32: 1e-5}[dtype]
    torch.testing.assert_close(found.value.diagonal(), exact, rtol=rounding, atol=0)
    assert (found.error.diagonal() <= rounding * exact).all()
    torch.testing.assert_close(found.value, found.value.mT, rtol=0, atol=rounding * float(exact.max()))


def test_a_seed_is_a_projection() -> None:
    module, x = network("convolutions", torch.float32), rows_for((2, 4, 4), 5, dtype=torch.float32)
    torch.manual_seed(1)
    first, stream = empirical_ntk_sketch(module, x, 64, seed=3), torch.get_rng_state()
    torch.manual_seed(2)
    again, other = (empirical_ntk_sketch(module, x, 64, seed=seed) for seed in (3, 4))
    assert torch.equal(first.features, again.features)
    assert torch.equal(first.squares, again.squares)
    assert not torch.allclose(first.kernel().value, other.kernel().value, rtol=0.01)
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), stream)  # the user's own numbers are left alone


@pytest.mark.parametrize("options", [{}, {"outputs": "sum"}, {"parameters": {}}], ids=str)
def test_the_module_and_the_rows_are_not_changed(options: dict[str, Any]) -> None:
    module, x = nn.Sequential(nn.ReLU(inplace=True), network("ResNet")).eval(), rows_of("ResNet")
    module(x.clone()).sum().backward()
    if "parameters" in options:
        options = {"parameters": moved(module, 0.1)}

    def state() -> list[Tensor]:
        own = [*module.parameters(), *module.buffers(), *(p.grad for p in module.parameters()), x]
        return [value.detach().clone() for value in own if value is not None]

    before = state()
    empirical_ntk_sketch(module, x, 64, **options)
    assert all(torch.equal(mine, its) for mine, its in zip(state(), before, strict=True))
    assert not any(part.training for part in module.modules())


def test_progress_is_told() -> None:
    module, x = ready(nn.Linear(4, 3)), rows_for((4,), 5)
    least = least_memory(lambda memory: empirical_ntk_sketch(module, x, 64, memory=memory))
    for memory, n_steps in ((None, 1), (least, 5)):
        done: list[tuple[int, int]] = []
        empirical_ntk_sketch(module, x, 64, memory=memory, progress=lambda *at, done=done: done.append(at))
        assert len(done) >= n_steps
        assert done == sorted(set(done))
        assert {total for _, total in done} == {done[-1][0]}


# --- over many seeds ------------------------------------------------------------------------------------------------

N_SEEDS = 50
ENOUGH = 0.88  # of 50 intervals at 95 %: two standard deviations below
STUDENT = 2.04  # 95 % of Student's distribution for 31 degrees of freedom
FEW, MANY = "few outputs", "many outputs"
SETTINGS = {FEW: (100, 4, 512), MANY: (50, 100, 2048)}  # width, outputs, numbers of a sketch


class Study(NamedTuple):
    module: nn.Module
    x: Tensor
    start: dict[str, Tensor]
    end: dict[str, Tensor]
    drawn: list[tuple[NTKSketch, NTKSketch]]  # at the start and at the end, seed by seed
    K0: Tensor
    K: Tensor


def perceptron(width: int, n_outputs: int) -> nn.Module:
    layers = nn.Linear(10, width, bias=False), nn.Tanh(), nn.Linear(width, n_outputs, bias=False)
    return ready(nn.Sequential(*layers))


def moved(module: nn.Module, step: float) -> dict[str, Tensor]:
    """Some way off, running statistics apart."""
    state = module.state_dict()
    return {**state, **{name: p + step * randn(*p.shape, seed=9).to(p) for name, p in module.named_parameters()}}


@cache
def study(setting: str) -> Study:
    width, n_outputs, dim = SETTINGS[setting]
    module, x = perceptron(width, n_outputs), randn(20, 10)
    start, end = dict(module.state_dict()), moved(module, 0.2)
    drawn: list[Any] = [
        tuple(empirical_ntk_sketch(module, x, dim, seed=seed, parameters=point) for point in (start, end))
        for seed in range(N_SEEDS)
    ]
    K0, K = (empirical_ntk_trace(module, x, parameters=point) for point in (start, end))
    return Study(module, x, start, end, drawn, K0, K)


def above(K: Tensor) -> Tensor:
    """The entries above the diagonal."""
    return K[torch.ones_like(K).triu(1).bool()]


def share_held(intervals: list[Estimate], exact: float) -> float:
    return sum(e.low <= exact <= e.high for e in intervals) / len(intervals)


def error_of(intervals: list[Estimate], exact: float) -> float:
    """Root mean square."""
    return math.sqrt(sum((e.value - exact) ** 2 for e in intervals) / len(intervals))


def claimed_by(intervals: list[Estimate]) -> float:
    """The standard error that intervals stand for."""
    return sum(e.high - e.low for e in intervals) / (2 * STUDENT * len(intervals))


@pytest.mark.parametrize("setting", SETTINGS)
def test_kernels_are_unbiased(setting: str) -> None:
    _, _, _, _, drawn, K0, K = study(setting)
    for which, exact in enumerate((K0, K)):
        found = torch.stack([above(pair[which].kernel().value) for pair in drawn])
        error = found.std(0) / N_SEEDS**0.5
        z = (found.mean(0) - above(exact)) / error
        assert float(error.mean()) < 0.01 * float(exact.diagonal().mean())
        assert float(z.abs().max()) < 4.5  # of 190
        assert 0.5 < float(z.square().mean()) < 1.8


@pytest.mark.parametrize("setting", SETTINGS)
def test_entries_are_as_sure_as_they_say(setting: str) -> None:
    _, _, _, _, drawn, _, K = study(setting)
    kernels = [end.kernel() for _, end in drawn]
    off = torch.stack([above(kernel.value - K) for kernel in kernels])
    claimed = torch.stack([above(kernel.error) for kernel in kernels])
    ratio = claimed.square().mean(0).sqrt() / off.square().mean(0).sqrt()
    assert 1 / 1.2 < float(ratio.median()) < 1.2
    assert 1 / 1.8 < float(ratio.min()) < float(ratio.max()) < 1.8
    assert 0.92 < float((off.abs() < STUDENT * claimed).double().mean()) < 0.98


@pytest.mark.filterwarnings("ignore::kontrast.kernels.SketchWarning")
@pytest.mark.parametrize("setting", SETTINGS)
def test_intervals_hold_the_exact_drift(setting: str) -> None:
    module, x, start, end, drawn, K0, K = study(setting)
    exact, found = ntk_drift(module, start, end, x), [last.drift(first) for first, last in drawn]
    assert exact.alignment == pytest.approx(kernel_alignment(K, K0))
    assert drawn[0][1].alignment(drawn[0][0]) == found[0].alignment
    for name in ("relative", "alignment"):
        intervals, number = [getattr(drift, name) for drift in found], getattr(exact, name)
        assert share_held(intervals, number) >= ENOUGH, name
        assert 1 / 1.5 < claimed_by(intervals) / error_of(intervals, number) < 1.5, name


@pytest.mark.filterwarnings("ignore::kontrast.kernels.SketchWarning")
@pytest.mark.parametrize("step", [0.2, 0.01])
def test_so_they_do_where_a_sketch_is_nearly_as_long_as_the_gradients(step: float) -> None:
    """Here numbers of one block share buckets no less than others: else the noise is smaller than the groups tell."""
    module, x = perceptron(50, 4), randn(60, 10)
    start, end = dict(module.state_dict()), moved(module, step)
    exact, found = ntk_drift(module, start, end, x), []
    for seed in range(N_SEEDS):
        first, last = (empirical_ntk_sketch(module, x, 512, seed=seed, parameters=point) for point in (start, end))
        found.append(last.drift(first))
    for name in ("relative", "alignment"):
        assert share_held([getattr(drift, name) for drift in found], getattr(exact, name)) >= ENOUGH, name


@pytest.mark.filterwarnings("ignore::kontrast.kernels.SketchWarning")
@pytest.mark.parametrize("n", [264, 512])
def test_what_is_exact_between_a_few_rows_makes_a_drift_surer(n: int) -> None:
    module, x = perceptron(50, 4), randn(n, 10) + 1
    start, end = dict(module.state_dict()), moved(module, 1.0)
    exact, found, alone = ntk_drift(module, start, end, x), [], []
    for seed in range(N_SEEDS):
        first, last = (empirical_ntk_sketch(module, x, 128, seed=seed, parameters=point) for point in (start, end))
        assert last.witnesses is not None
        rows = last.witnesses.rows
        assert len(rows) == n // 8
        K = empirical_ntk_trace(module, x[rows], parameters=end)
        torch.testing.assert_close(last.witnesses.sketched, K)
        found.append(last.drift(first))
        alone.append(replace(last, witnesses=None).drift(replace(first, witnesses=None)))
    for name in ("relative", "alignment"):
        number = getattr(exact, name)
        with_them, without = ([getattr(drift, name) for drift in some] for some in (found, alone))
        assert share_held(with_them, number) >= ENOUGH, name
        assert error_of(with_them, number) < 0.85 * error_of(without, number), name
        assert 1 / 1.5 < claimed_by(with_them) / error_of(with_them, number) < 2, name  # too wide is safe


@pytest.mark.filterwarnings("ignore::kontrast.kernels.SketchWarning")
@pytest.mark.parametrize("size", [0.0, 1.0])
def test_rows_whose_kernel_tells_nothing_correct_nothing(size: float) -> None:
    """The exact kernel is zero, or every sketch has it right but for rounding."""
    module, x = perceptron(50, 4).float(), randn(256, 10, dtype=torch.float32)
    first = empirical_ntk_sketch(module, x, 128)
    assert first.witnesses is not None
    x[first.witnesses.rows] = size * x[0].clone()
    start, end = dict(module.state_dict()), moved(module, 0.5)
    exact, found = ntk_drift(module, start, end, x), []
    for seed in range(N_SEEDS):
        first, last = (empirical_ntk_sketch(module, x, 128, seed=seed, parameters=point) for point in (start, end))
        found.append(last.drift(first))
        alone = replace(last, witnesses=None).drift(replace(first, witnesses=None))
        assert found[-1].relative.value == pytest.approx(alone.relative.value, abs=1e-6)
        assert last.kernel().error.isfinite().all()
        assert all(map(math.isfinite, vars(last.eigenvalues()[0]).values()))
    for name in ("relative", "alignment"):
        assert share_held([getattr(drift, name) for drift in found], getattr(exact, name)) >= ENOUGH, name


def test_few_rows_and_many_outputs_have_no_exact_kernels() -> None:
    for n, n_outputs in ((255, 4), (256, 33)):
        assert empirical_ntk_sketch(perceptron(5, n_outputs), randn(n, 10), 64).witnesses is None
    assert empirical_ntk_sketch(perceptron(5, 32), randn(256, 10), 64).witnesses is not None


@pytest.mark.filterwarnings("ignore::kontrast.kernels.SketchWarning")
@pytest.mark.parametrize("setting", SETTINGS)
def test_intervals_hold_the_largest_eigenvalues(setting: str) -> None:
    _, _, _, _, drawn, _, K = study(setting)
    found = [end.eigenvalues(3) for _, end in drawn]
    for place, exact in enumerate(torch.linalg.eigvalsh(K).flip(0)[:3].tolist()):
        intervals = [values[place] for values in found]
        assert share_held(intervals, exact) >= ENOUGH
        assert claimed_by(intervals) < 2.5 * error_of(intervals, exact)  # wide on purpose, not without end
        assert sum(e.value for e in intervals) / N_SEEDS == pytest.approx(exact, rel=0.06)


@pytest.mark.filterwarnings("ignore::kontrast.kernels.SketchWarning")
def test_noise_that_makes_eigenvalues_large_is_seen_from_below() -> None:
    """Sixty rows of about the same length in nearly as few numbers."""
    layers = nn.Linear(40, 100, bias=False), nn.Tanh(), nn.Linear(100, 4, bias=False)
    module, x = ready(nn.Sequential(*layers)), randn(60, 40)
    exact = torch.linalg.eigvalsh(empirical_ntk_trace(module, x)).flip(0)[:3]
    raw, found = [], []
    for seed in range(10):
        sketch = empirical_ntk_sketch(module, x, 128, seed=seed)
        raw.append(torch.linalg.eigvalsh(sketch.kernel().value).flip(0)[:3])
        intervals = sketch.eigenvalues(3)
        found.append(torch.tensor([e.value for e in intervals]))
        assert all(e.low <= float(number) <= e.high for e, number in zip(intervals, exact, strict=True))
    above, off = (torch.stack(each).mean(0) / exact - 1 for each in (raw, found))
    assert (above > 0.25).all()
    assert (off.abs() < 0.6 * above).all()


# --- what is read from a sketch -------------------------------------------------------------------------------------


def test_at_home_nothing_moved() -> None:
    for setting in SETTINGS:
        first, last = study(setting).drawn[0]
        for sketch in (first, last):
            found = sketch.drift(sketch)
            assert found.relative == Estimate(0.0, 0.0, 0.0)
            assert found.alignment.value == pytest.approx(1, abs=1e-12)
            assert found.alignment.low == pytest.approx(1, abs=1e-6)
            assert found.alignment.high <= 1


@pytest.mark.parametrize("outputs", ["all", "sum"])
def test_of_a_kernel_that_only_grew_everything_is_known(outputs: Any) -> None:
    """Twice the weights of two layers without biases: four times the kernel, whatever the random numbers are."""
    module, x = (
        ready(nn.Sequential(nn.Linear(10, 30, bias=False), nn.ReLU(), nn.Linear(30, 4, bias=False))),
        randn(9, 10),
    )
    twice = {name: 2 * p for name, p in module.state_dict().items()}
    first, last = (empirical_ntk_sketch(module, x, 64, outputs=outputs, parameters=p) for p in (None, twice))
    found = last.drift(first)
    for estimate, exact in ((found.relative, 3), (found.alignment, 1)):
        assert (estimate.low, estimate.value, estimate.high) == pytest.approx((exact, exact, exact), rel=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("setting, dim", [(FEW, 2048), (MANY, 8192)])
def test_a_small_drift_is_as_well_known_as_a_large_one(setting: str, dim: int, dtype: torch.dtype) -> None:
    """The noise of the entries is a percent or two of the rows' lengths, twenty times this drift."""
    width, n_outputs, _ = SETTINGS[setting]
    module, x = perceptron(width, n_outputs), randn(20, 10)
    start, end = module.state_dict(), moved(module, 1e-3)
    exact = ntk_drift(module, start, end, x)
    assert exact.relative < 1e-3
    module, x = module.to(dtype), x.to(dtype)
    points = ({name: p.to(dtype) for name, p in point.items()} for point in (start, end))
    first, last = (empirical_ntk_sketch(module, x, dim, seed=2, parameters=point) for point in points)
    found = last.drift(first)
    assert found.relative.value == pytest.approx(exact.relative, rel=0.1)
    assert found.relative.high - found.relative.low < 0.2 * exact.relative
    assert 1 - found.alignment.value == pytest.approx(1 - exact.alignment, abs={64: 1e-7, 32: 1e-5}[dtype.itemsize * 8])


@pytest.mark.filterwarnings("ignore::kontrast.kernels.SketchWarning")
@settings(max_examples=10)
@given(start=integers(-25, 20), stop=integers(-25, 30), size=integers(1, 25))
def test_parts_of_a_kernel_in_tiles_of_any_size(start: int, stop: int, size: int) -> None:
    first, last = study(FEW).drawn[0]
    whole, drift, rows, columns = last.kernel(), last.drift(first), slice(start, stop), slice(3, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sketches.TILE, "cpu", size)
        part, in_tiles = last.kernel(rows, columns), last.drift(first)
    torch.testing.assert_close(part.value, whole.value[rows, columns])
    torch.testing.assert_close(part.error, whole.error[rows, columns])
    for name in ("relative", "alignment"):
        found, expected = getattr(in_tiles, name), getattr(drift, name)
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-9)


@pytest.mark.filterwarnings("ignore::kontrast.kernels.SketchWarning")
def test_as_many_eigenvalues_as_half_of_the_rows() -> None:
    _, last = study(FEW).drawn[0]
    found = last.eigenvalues(10)
    values = [e.value for e in found]
    assert values == sorted(values, reverse=True)
    assert all(0 <= e.low <= e.value <= e.high for e in found)
    module, x = perceptron(8, 3), randn(1, 10)
    (only,) = empirical_ntk_sketch(module, x, 64).eigenvalues()
    assert only.value == pytest.approx(float(empirical_ntk_trace(module, x)))


def test_a_kernel_of_zeros() -> None:
    module, x = perceptron(8, 3), randn(6, 10)
    zero = {name: torch.zeros_like(p) for name, p in module.state_dict().items()}
    gone, there = (empirical_ntk_sketch(module, x, 64, parameters=point) for point in (zero, None))
    kernel = gone.kernel()
    assert not kernel.value.any()
    assert not kernel.error.any()
    assert gone.eigenvalues(2) == [Estimate(0.0, 0.0, 0.0)] * 2
    found = gone.drift(there)
    assert found.relative.value == pytest.approx(1)
    alignment = found.alignment  # nothing has no direction
    assert all(math.isnan(bound) for bound in (alignment.value, alignment.low, alignment.high))
    with pytest.raises(InputError, match="the kernel of start is zero everywhere; compare with another"):
        there.drift(gone)


# --- the gradients of summed outputs --------------------------------------------------------------------------------


def test_summed_outputs_are_sketched_as_of_a_module_that_sums_them() -> None:
    module, x = perceptron(20, 4), randn(50, 10)
    found, alone = (
        empirical_ntk_sketch(net, x, 64, outputs=o) for net, o in ((module, "sum"), (Summed(module), "all"))
    )
    torch.testing.assert_close(found.features, alone.features)
    torch.testing.assert_close(found.kernel().value, alone.kernel().value)
    assert found.witnesses is not None
    some = x[torch.linspace(0, 49, 32).round().long()]
    torch.testing.assert_close(found.witnesses.sketched, empirical_ntk_trace(Summed(module), some))
    torch.testing.assert_close(found.witnesses.trace, empirical_ntk_trace(module, some))
    assert (found.kernel().error > alone.kernel().error).all()


def test_of_many_outputs_the_trace_is_estimated_between_the_witnesses() -> None:
    module, x = Spread(perceptron(50, 60), 100), randn(20, 10)
    found = empirical_ntk_sketch(module, x, 64, outputs="sum").witnesses
    assert found is not None
    assert kernel_drift(found.trace, empirical_ntk_trace(module, x)).relative < 0.3
    assert kernel_drift(found.sketched, empirical_ntk_trace(Summed(module), x)).relative < 1e-10


@pytest.mark.filterwarnings("ignore::kontrast.kernels.SketchWarning")
@pytest.mark.parametrize("n, n_outputs", [(20, 4), (50, 10)])
def test_what_the_sum_misses_is_added_to_the_intervals(n: int, n_outputs: int) -> None:
    module, x = perceptron(100, n_outputs), randn(n, 10)
    start, end = dict(module.state_dict()), moved(module, 0.2)
    exact, K = ntk_drift(module, start, end, x), empirical_ntk_trace(module, x, parameters=end)
    largest = float(torch.linalg.eigvalsh(K)[-1])
    inside = []
    for seed in range(8):
        options = {"seed": seed, "outputs": "sum"}
        first, last = (empirical_ntk_sketch(module, x, 512, parameters=p, **options) for p in (start, end))
        found, (eigenvalue,), kernel = last.drift(first), last.eigenvalues(), last.kernel()
        for name in (
            "relative",
            "alignment",
        ):  # of 20 rows, all of them witnesses, the interval ends at the exact number
            interval, number = getattr(found, name), getattr(exact, name)
            assert interval.low - 1e-9 <= number <= interval.high + 1e-9
        assert eigenvalue.low <= largest <= eigenvalue.high
        inside.append(above((kernel.value - K).abs() < STUDENT * kernel.error).double().mean())
    assert torch.stack(inside).mean() > 0.92


@pytest.mark.filterwarnings("ignore::kontrast.kernels.SketchWarning")
def test_where_the_sum_is_much_smaller_than_the_trace_intervals_hold_it_all_the_same() -> None:
    module, x = network("ResNet"), rows_for((2, 8, 8), 12)
    K = empirical_ntk_trace(module, x)
    largest, held = float(torch.linalg.eigvalsh(K)[-1]), 0
    for seed in range(20):
        sketch = empirical_ntk_sketch(module, x, 256, seed=seed, outputs="sum")
        held += sketch.eigenvalues()[0].low <= largest <= sketch.eigenvalues()[0].high
    assert held >= 18


def test_the_sum_of_one_output_misses_nothing() -> None:
    module, x = perceptron(20, 1), randn(6, 10)
    alone, of_sum = (empirical_ntk_sketch(module, x, 64, outputs=outputs).kernel() for outputs in ("all", "sum"))
    torch.testing.assert_close(of_sum.value, alone.value)
    torch.testing.assert_close(of_sum.error, alone.error)


# --- too few numbers, and what is refused ---------------------------------------------------------------------------


def test_a_sketch_that_is_too_small_says_how_large_to_make_it() -> None:
    module, x = perceptron(100, 4), randn(20, 10)
    points = [moved(module, 0.2), module.state_dict()]

    def pair(dim: int, **options: Any) -> list[NTKSketch]:
        return [empirical_ntk_sketch(module, x, dim, parameters=point, **options) for point in points]

    last, first = pair(256)
    said = r"^a sketch of 256 dimensions is too small for the drift: .* is more than 10% to either side; take about "
    with pytest.warns(SketchWarning, match=said + r"[\d,]+$") as told:
        found = last.drift(first).relative
    assert told[0].filename == __file__
    enough = int(re.split("take about ", str(told[0].message))[1].replace(",", ""))
    assert enough % 32 == 0
    assert enough == pytest.approx(256 * ((found.high - found.low) / 0.2 / found.value) ** 2, abs=32)
    last, first = pair(2 * enough)
    last.drift(first)  # says nothing

    last, _ = pair(64)
    with pytest.warns(SketchWarning, match=r"too small for the largest eigenvalue: .*; take about [\d,]+$"):
        last.eigenvalues(2)
    last, first = pair(512, outputs="sum")
    with pytest.warns(SketchWarning, match='too small for the drift: .*; use outputs="all"$'):
        last.drift(first)


def test_a_drift_lost_in_noise_names_no_number() -> None:
    module, x, messages = perceptron(50, 100), randn(20, 10), []
    for seed in range(5):
        last, first = (empirical_ntk_sketch(module, x, 64, seed=seed, parameters=moved(module, s)) for s in (0.01, 0.0))
        with pytest.warns(SketchWarning, match="too small for the drift") as told:
            last.drift(first)
        messages.append(str(told[0].message))
    assert any(message.endswith("; take more dimensions") for message in messages)


def test_a_drift_that_is_nothing_but_noise_is_told_with_how_much() -> None:
    layers = nn.Linear(10, 100, bias=False), nn.Tanh(), nn.Linear(100, 4, bias=False)
    module, x, at_zero = ready(nn.Sequential(*layers)), randn(4, 10), 0
    for seed in range(30):
        last, first = (empirical_ntk_sketch(module, x, 64, seed=seed, parameters=moved(module, s)) for s in (0.01, 0.0))
        with pytest.warns(SketchWarning, match="too small for the drift"):
            found = last.drift(first).relative
        at_zero += found.value == 0
        assert found.low <= found.value < found.high
    assert at_zero > 0


def test_alignments_are_at_most_one_and_warn_of_themselves() -> None:
    module, x = perceptron(100, 4), randn(20, 10)
    for seed in range(10):
        last, first = (empirical_ntk_sketch(module, x, 64, seed=seed, parameters=moved(module, s)) for s in (1e-9, 0.0))
        found = last.alignment(first)  # says nothing, however unsure the drift is
        assert found.low <= found.value <= found.high <= 1
    last, first = (empirical_ntk_sketch(module, x, 64, parameters=moved(module, step)) for step in (3.0, 0.0))
    with pytest.warns(SketchWarning, match="too small for the alignment") as told:
        last.alignment(first)
    assert told[0].filename == __file__


@pytest.mark.parametrize("seed", [np.int64(3), torch.tensor(3)])
def test_whole_numbers_of_any_kind_are_seeds_and_dimensions(seed: Any) -> None:
    found = empirical_ntk_sketch(NET, X, np.int32(64), seed=seed)  # type: ignore[arg-type]
    assert torch.equal(found.features, empirical_ntk_sketch(NET, X, 64, seed=3).features)


NET, X = perceptron(8, 3), randn(6, 10)
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"dim": 100}, "^dim must be a multiple of 32, got 100; the nearest is 96$"),
    ({"dim": 32}, "^dim must be a whole number of at least 64, got 32$"),
    ({"dim": True}, "^dim must be a whole number of at least 64, got True$"),
    ({"dim": 128.0}, r"^dim must be a whole number of at least 64, got 128\.0$"),
    ({"seed": -1}, "^seed must be a whole number of at least 0, got -1$"),
    ({"seed": 0.5}, r"^seed must be a whole number of at least 0, got 0\.5$"),
    ({"seed": 2**64}, "^seed must be a whole number of at most 9223372036854775807, got 18446744073709551616$"),
    ({"dim": 2**40}, "^dim must be a whole number of at most 524288, got 1099511627776$"),
    ({"outputs": "mean"}, "^outputs must be one of all, sum, got 'mean'$"),
    ({"memory": 1}, r"^memory is too small: one row of tangents needs .*; pass memory=\d+ or more$"),
    ({"only": "3"}, "^only holds '3', which is no parameter nor a prefix of one"),
    ({"output": 0, "x": X[:0]}, "^x must be a tensor with at least one row"),
    ({"x": X / X.new_tensor([0.0] + 9 * [1.0])}, "^x holds NaN or infinite numbers, first in row 0"),
    (
        {"parameters": moved(NET, math.nan)},
        r"NaN or infinite numbers in 0\.weight; training diverged before this point$",
    ),
    ({"module": NET.state_dict()}, "^module must be an nn.Module, got OrderedDict; wrap a function in a module$"),
]


@pytest.mark.parametrize("given, message", REFUSED)
def test_what_cannot_be_sketched_is_refused_in_a_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as refusal:
        empirical_ntk_sketch(**{"module": NET, "x": X, "dim": 64, **given})
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("outputs", ["all", "sum"])
def test_numbers_that_are_none_or_too_large_are_refused(outputs: Any) -> None:
    module = copy.deepcopy(NET)
    module[2].weight.data[1, 1] = math.inf
    with pytest.raises(InputError, match=r"^the module holds NaN or infinite numbers in 2\.weight"):
        empirical_ntk_sketch(module, X, 64, outputs=outputs)
    module, x = ready(nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3)), dtype=torch.float32), X.float()
    huge = {name: 1e25 * p for name, p in module.state_dict().items()}
    with pytest.raises(InputError, match=r"^gradients overflow, so there is no kernel; .* or compute in float64$"):
        empirical_ntk_sketch(module, x, 64, outputs=outputs, parameters=huge)
    point = {name: p.double() for name, p in huge.items()}
    assert empirical_ntk_sketch(module.double(), X, 64, outputs=outputs, parameters=point).squares.isfinite().all()


OTHERS: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: empirical_ntk_sketch(NET, X, 64, seed=1),
        "the sketches differ in seed: 0 here, 1 in start; make both ali",
    ),
    (lambda: empirical_ntk_sketch(NET, X, 128), "the sketches differ in dim: 64 here, 128 in start; make both alike"),
    (lambda: empirical_ntk_sketch(NET, X, 64, outputs="sum"), "the sketches differ in outputs: all here, sum in start"),
    (lambda: empirical_ntk_sketch(NET, X, 64, only="0"), "the sketches differ in numbers of parameters times outputs"),
    (
        lambda: empirical_ntk_sketch(perceptron(8, 4), X, 64),
        "the sketches differ in numbers of parameters times output",
    ),
    (lambda: empirical_ntk_sketch(NET, X.flip(0), 64), "the sketches are of different rows; make both of the same row"),
    (lambda: empirical_ntk_sketch(NET, X[:5], 64), "the sketches are of different rows; make both of the same rows"),
    (lambda: empirical_ntk_trace(NET, X), "start must be an NTKSketch, got Tensor; make it with empirical_ntk_sketch"),
]


@pytest.mark.parametrize("make, message", OTHERS)
def test_sketches_that_have_nothing_to_do_with_each_other_are_not_compared(
    make: Callable[[], Any], message: str
) -> None:
    mine, other = empirical_ntk_sketch(NET, X, 64), make()
    for compare in (mine.drift, mine.alignment):
        with pytest.raises(InputError, match=f"^{message}"):
            compare(other)


def test_rows_are_told_apart_by_more_than_their_sums() -> None:
    centered = X - X.mean(1, keepdim=True)
    ids = rows_for(IDS, 5)
    for module, x, other in ((NET, centered, centered.flip(1)), (network("BERT"), ids, ids.flip(1))):
        mine, its = (empirical_ntk_sketch(module, rows, 64) for rows in (x, other))
        with pytest.raises(InputError, match=r"^the sketches are of different rows"):
            mine.drift(its)


def test_what_a_sketch_does_not_tell_is_refused() -> None:
    sketch = empirical_ntk_sketch(NET, X, 64)
    for part in (slice(0, 6, 2), slice(None, None, -1)):
        for parts in ((part, slice(None)), (slice(None), part)):
            with pytest.raises(InputError, match=r"^rows and columns must be slices with step 1; choose"):
                sketch.kernel(*parts)
    for name, parts in (("rows", (3,)), ("columns", (slice(2), [1, 2]))):
        with pytest.raises(InputError, match=f"^{name} must be slice, got "):
            sketch.kernel(*parts)  # type: ignore[arg-type]
    for k, limit in ((0, "at least 1"), (4, "at most 3"), (True, "at least 1"), (1.0, "at least 1")):
        with pytest.raises(InputError, match=f"^k must be a whole number of {limit}, got {k}$"):
            sketch.eigenvalues(k)  # type: ignore[arg-type]


# --- on a GPU -------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::kontrast.kernels.SketchWarning")
@pytest.mark.parametrize("many", [False, True])
def test_a_gpu_draws_the_same_numbers(many: bool) -> None:
    module = network("convolutions", torch.float32)
    module = Spread(module) if many else module
    x = rows_for((2, 4, 4), 8, dtype=torch.float32)
    points = module.state_dict(), moved(module, 0.5)
    here = [empirical_ntk_sketch(module, x, 1024, seed=5, parameters=point) for point in points]
    module.cuda()
    there = [
        empirical_ntk_sketch(module, x.cuda(), 1024, seed=5, parameters={name: p.cuda() for name, p in point.items()})
        for point in points
    ]
    for mine, its in zip(here, there, strict=True):
        kernel, on_gpu = mine.kernel(), its.kernel()
        assert on_gpu.value.is_cuda
        scale = float(kernel.value.max())
        torch.testing.assert_close(on_gpu.value.cpu(), kernel.value, rtol=0, atol=1e-4 * scale)
        torch.testing.assert_close(on_gpu.error.cpu(), kernel.error, rtol=0, atol=1e-4 * scale)
    found, expected = there[1].drift(there[0]), here[1].drift(here[0])
    assert found.relative.value == pytest.approx(expected.relative.value, rel=1e-3)
    assert found.alignment.value == pytest.approx(expected.alignment.value, rel=1e-3)
    assert there[0].eigenvalues()[0].value == pytest.approx(here[0].eigenvalues()[0].value, rel=1e-3)
