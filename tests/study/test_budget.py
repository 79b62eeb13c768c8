"""A study in a given time: what is planned fits, nothing is lost, and too little time is refused in one line."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis.strategies import floats, integers, lists, sampled_from

from kontrast.errors import InputError
from kontrast.study import StudySpec, seconds_from
from kontrast.study.budget import FEWEST_SEEDS, RESERVE, first_cells, plan, require_time_for_one, whole_grid
from kontrast.study.spec import cell_name, parse_cell

WIDTHS = lists(sampled_from([8, 16, 32, 64, 128, 256]), min_size=1, max_size=5, unique=True)


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("90s", 90),
        ("2m", 120),
        ("2min", 120),
        ("1.5h", 5400),
        (" 3 m ", 180),
        ("45", 45),
        (30, 30),
        (0.5, 0.5),
        (".5h", 1800),
    ],
)
def test_times_as_people_write_them(text, seconds):
    assert seconds_from(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "2 days", "-5s", "1e3s", "5 5s", "m", True, None, 0, -3, "0s", math.inf])
def test_what_is_no_time_is_refused_in_one_line(text):
    with pytest.raises(InputError, match=r"budget must be .*90s, 2m or 1h") as refused:
        seconds_from(text)
    assert "\n" not in str(refused.value)


@given(seconds=floats(1e-3, 1e6))
def test_a_number_is_seconds(seconds):
    assert seconds_from(seconds) == seconds
    assert seconds_from(f"{seconds:.6f}s") == pytest.approx(seconds, abs=1e-6)


def spec_of(widths, n_seeds):
    return StudySpec(widths=tuple(widths), n_seeds=n_seeds, seed=3)


def planned(widths, n_seeds, per_unit, base, seconds, workers):
    """The plan after the first cells took base + per_unit · width seconds each, and what each other cell will take."""
    spec = spec_of(widths, n_seeds)
    first = first_cells(spec.cells)
    times = {cell: base + per_unit * parse_cell(cell)[0] for cell in first}
    missing = [cell for cell in spec.cells if cell not in first]

    def needed(cell):
        width = parse_cell(cell)[0]
        return base + per_unit * width if len(first) == 2 else times[first[0]] * width / parse_cell(first[0])[0]

    return spec, missing, first, needed, plan(spec, missing, times, seconds, workers)


CASES = {
    "widths": WIDTHS,
    "n_seeds": integers(1, 5),
    "per_unit": floats(0.001, 1),
    "base": floats(0, 5),
    "seconds": floats(-5, 1000),
    "workers": integers(0, 4),
}


@given(**CASES)
def test_what_is_planned_fits_and_nothing_is_lost(widths, n_seeds, per_unit, base, seconds, workers):
    _, missing, _, needed, made = planned(widths, n_seeds, per_unit, base, seconds, workers)
    assert [cell for cell in missing if cell in {*made.cells, *made.left_out}] == missing
    assert not set(made.cells) & set(made.left_out)
    if made.cells:
        assert sum(map(needed, made.cells)) / max(1, workers) <= RESERVE * seconds * (1 + 1e-9)
        assert max(map(needed, made.cells)) <= RESERVE * seconds * (1 + 1e-9)


@given(**CASES)
def test_what_is_left_out_are_seeds_beyond_two_before_the_widest_networks(
    widths, n_seeds, per_unit, base, seconds, workers
):
    spec, missing, first, needed, made = planned(widths, n_seeds, per_unit, base, seconds, workers)
    done = {*made.cells, *first}
    kept = sorted({parse_cell(cell)[0] for cell in made.cells})
    assert kept == sorted(widths)[: len(kept)] or not made.left_out  # the narrowest are kept
    if len(kept) > 1 and made.left_out:
        n_kept = [sum(cell_name(width, seed) in done for seed in spec.seeds) for width in kept]
        assert min(n_kept) == max(n_kept) >= min(n_seeds, FEWEST_SEEDS)
    # A width is left out only where two seeds of it do not fit beside two of the narrower ones.
    without = [width for width in sorted(widths) if all(cell_name(width, s) not in done for s in spec.seeds)]
    if without:
        grid = [width for width in sorted(widths) if width <= without[0]]
        least = [cell_name(width, s) for width in grid for s in spec.seeds[: min(n_seeds, FEWEST_SEEDS)]]
        times = [needed(cell) for cell in least if cell in missing]
        assert max(sum(times) / max(1, workers), *times) > RESERVE * seconds


@given(**CASES)
def test_the_sentence_names_what_the_result_is_without(widths, n_seeds, per_unit, base, seconds, workers):
    spec, missing, first, _, made = planned(widths, n_seeds, per_unit, base, seconds, workers)
    if not made.left_out:
        assert made.sentence == "the whole study fits into the budget"
        assert set(made.cells) == set(missing)
        return
    done = {*made.cells, *first}
    kept_widths, kept_seeds = whole_grid(spec, done)
    assert {cell_name(width, seed) for width in kept_widths for seed in kept_seeds} <= done
    named = made.sentence.removeprefix("the budget leaves out ").partition("; resume the study without a budget")[0]
    said = {part.partition(" ")[0]: part.partition(" ")[2].split(", ") for part in named.split(" and ")}
    assert said.get("widths", []) == [str(width) for width in sorted(widths) if width not in kept_widths]
    assert said.get("seeds", []) == [str(seed) for seed in spec.seeds if seed not in kept_seeds]
    assert said


@given(widths=WIDTHS, n_seeds=integers(1, 4), holes=lists(integers(0, 30), max_size=12))
def test_the_largest_whole_grid_is_whole_and_no_other_is_larger(widths, n_seeds, holes):
    spec = spec_of(widths, n_seeds)
    stored = {cell for i, cell in enumerate(spec.cells) if i not in holes}
    kept_widths, kept_seeds = whole_grid(spec, stored)
    assert {cell_name(width, seed) for width in kept_widths for seed in kept_seeds} <= stored
    assert list(kept_seeds) == list(spec.seeds)[: len(kept_seeds)]
    for n in range(1, n_seeds + 1):
        whole = [width for width in widths if all(cell_name(width, seed) in stored for seed in spec.seeds[:n])]
        assert n * len(whole) <= len(kept_widths) * len(kept_seeds)


def test_a_whole_study_fits_into_a_long_time_and_little_time_keeps_two_seeds():
    spec = spec_of((8, 16, 32), 4)
    missing = [cell for cell in spec.cells if cell not in first_cells(spec.cells)]
    times = {cell_name(8, 3): 1.0, cell_name(16, 3): 2.0}  # 4 s at width 32: 26 s in all, 13 s for two seeds
    assert plan(spec, missing, times, 1000, 0).sentence == "the whole study fits into the budget"
    tight = plan(spec, missing, times, 13, 0)
    assert tight.sentence.startswith("the budget leaves out seeds 5, 6; ")
    assert sorted(tight.cells) == sorted([cell_name(8, 4), cell_name(16, 4), cell_name(32, 3), cell_name(32, 4)])
    tighter = plan(spec, missing, times, 8, 0)
    assert "widths 32" in tighter.sentence
    assert plan(spec, missing, times, 8, 2).left_out == tight.left_out  # two processes have twice the time


def test_too_little_time_for_one_cell_is_refused():
    spec = StudySpec(widths=(64, 16), max_steps=200)
    require_time_for_one(spec, 10, 0.05)
    with pytest.raises(InputError, match=r"a budget of 9 s is too small for one cell, .* about 10 s at width 16; give"):
        require_time_for_one(spec, 9, 0.05)


def test_a_network_without_a_width_needs_time_for_its_fewest_steps():
    spec = StudySpec(widths=(25, 50, 100), max_steps=100, has_width=False)
    require_time_for_one(spec, 3, 0.1)
    with pytest.raises(
        InputError, match=r"a budget of 2 s is too small for one cell, .* about 2.5 s for 25 steps; give"
    ):
        require_time_for_one(spec, 2, 0.1)
