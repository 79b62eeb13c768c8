"""Pictures show what was measured: means, seeds, laws and divergences, read back from the axes."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis.strategies import floats
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from kontrast.report.axes import COLORS, INK, log_limits, log_ticks, number, style, width_colors
from kontrast.report.plates import picture_figure, plate_figure
from kontrast.report.study.labels import MARKS
from kontrast.report.study.plates import WORDS, plates
from kontrast.study import OF_THE_INPUT, Thresholds, find, kernel, pca
from tests.report.studies import study


@pytest.fixture(autouse=True)
def _styled() -> Iterator[None]:
    with style(INK, salt="test"):
        yield


def axes_of(result: xr.Dataset, name: str) -> Axes:
    [panel] = [panel for plate in plates(result, find(result)) for panel in plate.pictures if panel.name == name]
    [ax] = picture_figure(panel).axes
    return ax


def lines(ax: Axes, **wanted: object) -> list[Line2D]:
    return [line for line in ax.lines if all(getattr(line, f"get_{key}")() == value for key, value in wanted.items())]


def some_seeds_diverge() -> xr.Dataset:
    return study(diverging={"cosine": lambda width, seed: 20 if seed == 1 and width > 16 else None})


@pytest.mark.parametrize("result", [study(), some_seeds_diverge()], ids=["all of dot", "some of cosine"])
def test_a_mean_is_drawn_where_every_seed_is_finite_and_every_seed_is_drawn(result: xr.Dataset) -> None:
    ax = axes_of(result, "study-step")
    for similarity in ("cosine", "dot"):
        values = result.ntk_drift_max.sel(similarity=similarity).transpose("width", "seed", "step").values
        for color, seeds in zip(width_colors(similarity, 3), values, strict=True):
            [mean] = lines(ax, color=color, linewidth=1.6)
            np.testing.assert_allclose(mean.get_ydata(), seeds.mean(0))  # NaN where a seed is NaN, and equal there
            thin = [
                np.asarray(line.get_ydata())
                for line in lines(ax, color=color, linewidth=0.7)
                if len(line.get_ydata()) > 2
            ]
            np.testing.assert_allclose(thin, seeds)
    assert np.isnan(result.ntk_drift_max.values).any()


def test_a_seed_that_has_not_moved_counts_in_the_mean() -> None:
    result = study(diverging={})
    result.ntk_drift_max[{"seed": 1, "step": 0}] = 0.0
    ax = axes_of(result, "study-step")
    for color, mean in zip(
        width_colors("cosine", 3), result.ntk_drift_max.sel(similarity="cosine").mean("seed").values, strict=True
    ):
        [line] = lines(ax, color=color, linewidth=1.6)
        np.testing.assert_allclose(line.get_ydata(), mean)


def test_a_diverged_run_ends_in_a_cross_at_its_step() -> None:
    result = study()
    ax = axes_of(result, "study-step")
    crosses = sorted(float(x) for line in lines(ax, marker="x") for x in line.get_xdata())
    assert crosses == sorted(result.stopped_at.sel(similarity="dot").values.ravel().tolist())
    assert {float(y) for line in lines(ax, marker="x") for y in line.get_ydata()} == {1.0}  # the top of the axes
    assert not lines(axes_of(study(diverging={}), "study-step"), marker="x")


def test_a_diverging_run_does_not_flatten_the_others() -> None:
    ax = axes_of(study(), "study-step")
    low, high = ax.get_ylim()
    assert high < 1e8 < float(study().ntk_drift_max.max())
    assert low > 1e-3


def test_widths_show_seeds_means_and_law() -> None:
    result = study()
    ax = axes_of(result, "study-width")
    for found in find(result).similarities:
        color = COLORS[found.similarity]
        [mean] = lines(ax, color=color, markersize=5.5)
        np.testing.assert_allclose(mean.get_ydata(), found.means["ntk_drift_max"])
        [dots] = lines(ax, color=color, markersize=3.2)
        seeds = result.ntk_drift_max.sel(similarity=found.similarity, step=found.step)
        np.testing.assert_allclose(sorted(dots.get_ydata()), np.sort(seeds.values.ravel()))
        [law] = lines(ax, color=color, linestyle=":")
        fitted = [found.exponents["ntk_drift_max"](x) for x in law.get_xdata()]
        np.testing.assert_allclose(law.get_ydata(), fitted)
    [guide] = lines(ax, color=INK)
    (x0, x1), (y0, y1) = guide.get_xdata(), guide.get_ydata()
    assert math.log(y1 / y0) / math.log(x1 / x0) == pytest.approx(-0.5)


def legend_texts(ax: Axes) -> list[str]:
    [legend] = ax.figure.legends
    return [text.get_text() for text in legend.get_texts()]


def test_legends_say_the_exponents_with_their_intervals() -> None:
    result = study()
    for panel, measure in (("study-width", "ntk_drift_max"), ("prediction-width", "kernel_gap")):
        texts = legend_texts(axes_of(result, panel))
        for text, found in zip(texts, find(result).similarities, strict=True):
            assert text == f"{found.similarity}, step {found.step}: ∝ M^{found.exponents[measure]}"
    assert "no fit" in legend_texts(axes_of(study(widths=(64,)), "study-width"))[0]
    early = study(diverging={"dot": lambda width, seed: 1})
    assert legend_texts(axes_of(early, "study-width"))[1] == "dot overflows too early to compare"


def test_the_tolerance_is_a_line() -> None:
    result = study()
    [panel] = [
        p
        for plate in plates(result, find(result, Thresholds(tolerance=0.125)))
        for p in plate.pictures
        if p.name == "prediction-step"
    ]
    [ax] = picture_figure(panel).axes
    assert [list(line.get_ydata()) for line in lines(ax, color=INK)] == [[0.125, 0.125]]


def test_divergence_shows_every_run_and_its_logarithm() -> None:
    result = study()
    ax = axes_of(result, "divergence")
    [dots] = lines(ax, markersize=3.2)
    assert sorted(dots.get_ydata()) == sorted(result.stopped_at.sel(similarity="dot").values.ravel())
    law = find(result).similarities[1].divergence_law
    assert law is not None
    [fit] = lines(ax, linestyle=":")
    np.testing.assert_allclose(fit.get_ydata(), [law(x) for x in fit.get_xdata()])
    assert f"{law.slope:+.1f} [{law.low:+.1f}, {law.high:+.1f}]" in legend_texts(ax)[0]
    assert "divergence" not in [plate.name for plate in plates(study(diverging={}), find(study(diverging={})))]


def test_some_diverging_seeds_are_no_mean() -> None:
    ax = axes_of(some_seeds_diverge(), "divergence")
    [mean] = lines(ax, markersize=5.5)
    assert np.isnan(mean.get_ydata()).all()
    assert len(lines(ax, marker="^")) == 1


def legend_title(ax: Axes) -> str:
    [legend] = ax.figure.legends
    return str(legend.get_title().get_text())


@pytest.mark.parametrize("panel", ["study-width", "study-step"])
def test_zeros_are_marked_at_the_edge(panel: str) -> None:
    ax = axes_of(study(scale={"ntk_drift_max": 0}), panel)
    assert lines(ax, marker="v")
    assert "▼: zero" in legend_title(ax)
    assert not lines(axes_of(study(), panel), marker="v")
    assert "▼" not in legend_title(axes_of(study(), panel))


def test_legends_explain_only_what_is_drawn() -> None:
    assert legend_title(axes_of(study(), "study-width")).split(" · ")[0] == "dots: seeds"
    assert "95 % interval" in legend_title(axes_of(study(), "study-width"))
    alone = legend_title(axes_of(study(widths=(64,), n_seeds=1, diverging={}), "study-width"))
    assert alone == "circles: one seed"
    assert "diverged" in legend_title(axes_of(study(), "study-step"))
    assert "diverged" not in legend_title(axes_of(study(diverging={}), "study-step"))


@pytest.mark.parametrize(
    "panel, measures", [("pca", ("pca_angle_start", "pca_angle_now")), ("features", ("matrix_drift", "frozen_gap"))]
)
def test_the_orthonormal_run_is_drawn_as_measured(panel: str, measures: tuple[str, str]) -> None:
    result = study(pca_diverging=lambda width, seed: 20 if (width, seed) == (64, 1) else None)
    found = find(result).pca
    assert found is not None
    against_width, against_step = axes_of(result, f"{panel}-width"), axes_of(result, f"{panel}-step")
    for measure, hue in zip(measures, ("start", "now"), strict=True):
        [mean] = lines(against_width, color=COLORS[hue], markersize=5.5)
        np.testing.assert_allclose(mean.get_ydata(), found.means[measure])
        for color, seeds in zip(
            width_colors(hue, 3), result[measure].transpose("width", "seed", "pca_step"), strict=True
        ):
            [mean] = lines(against_step, color=color, linewidth=1.6)
            assert mean.get_xdata()[-1] == 40 != result.step[-1]  # its own steps
            np.testing.assert_allclose(mean.get_ydata(), seeds.mean("seed", skipna=False))
    assert len(lines(against_step, marker="x")) == 2  # one diverged run, in both curves


def test_the_pca_tolerance_is_a_line() -> None:
    result = study()
    made = plates(result, find(result, Thresholds(pca_tolerance=0.25)))
    [panel] = [p for plate in made for p in plate.pictures if p.name == "pca-step"]
    [ax] = picture_figure(panel).axes
    assert [list(line.get_ydata()) for line in lines(ax, color=INK)] == [[0.25, 0.25]]


def test_probes_show_every_embedding_and_lines_without_a_width() -> None:
    result = study()
    found = find(result).probes
    assert found is not None
    ax = axes_of(result, "probes")
    texts = legend_texts(ax)
    assert "dot (diverged)" in texts
    assert {text.removesuffix(" (diverged)") for text in texts} == set(found.embeddings)
    drawn = [line.get_ydata() for line in ax.lines if len(line.get_ydata()) == 3]
    for name in set(found.embeddings) - {*OF_THE_INPUT, "dot"}:
        assert any(np.allclose(y, found.means[name]) for y in drawn), name
    levels = [y[0] for line in ax.lines if len(y := line.get_ydata()) == 2]
    np.testing.assert_allclose(levels, [found.means[name][0] for name in OF_THE_INPUT])
    low, high = ax.get_ylim()
    finite = result.probe_accuracy.values[np.isfinite(result.probe_accuracy.values)]
    assert low < finite.min() < finite.max() < high


def test_every_plot_of_a_quantity_is_a_picture_in_its_plate() -> None:
    made = {plate.name: [picture.name for picture in plate.pictures] for plate in plates(study(), find(study()))}
    declared = [
        plot.name for it in (*kernel.QUANTITIES, *pca.QUANTITIES) if it.drawing is not None for plot in it.drawing.plots
    ]
    assert {name.split("-")[0] for name in declared} == WORDS.keys()
    for name in declared:
        assert name in made[name.split("-")[0]]


def test_what_was_not_measured_has_no_plate() -> None:
    def names(**fields: object) -> set[str]:
        return {plate.name for plate in plates(study(**fields), find(study(**fields)))}

    assert {"pca", "features", "probes"} <= names()
    assert not {"pca", "features"} & names(parametrization="standard")
    assert "probes" not in names(n_probe_samples=0)


def test_label_curves_are_predicted_lines_and_measured_marks() -> None:
    result = study(label_curves=True)
    found = find(result).labels
    assert found is not None
    for panel, measured, predicted in (
        ("labels-error", *(found.means[name] for name in ("label_error", "label_error_predicted"))),
        ("labels-accuracy", *(found.means[name] for name in ("label_accuracy", "label_accuracy_predicted"))),
    ):
        ax = axes_of(result, panel)
        assert [tick.get_text() for tick in ax.get_xticklabels()] == ["10", "20", "50", "100", "200", "400"]
        for name, (color, marker) in MARKS.items():
            [line] = lines(ax, color=color or INK, linewidth=1.4)
            np.testing.assert_array_equal(line.get_ydata(), predicted[name])
            [marks] = lines(ax, color=color or INK, marker=marker, linestyle="None")
            np.testing.assert_array_equal(marks.get_ydata(), measured[name])
        assert "dot (diverged)" in legend_texts(ax)
    [level] = [line for line in axes_of(result, "labels-accuracy").lines if list(line.get_xdata()) == [0, 1]]
    assert list(level.get_ydata()) == [found.level] * 2
    assert len({color for color, _ in MARKS.values()}) == len(MARKS)
    assert "labels" not in [plate.name for plate in plates(study(), find(study()))]


def test_losses_are_drawn_with_their_twin() -> None:
    result = study()
    ax = axes_of(result, "losses-cosine")
    for name, width in (("loss", 1.6), ("kernel_loss", 1.2)):
        drawn = [np.asarray(line.get_ydata()) for line in lines(ax, linewidth=width)]
        np.testing.assert_allclose(drawn, result[name].sel(similarity="cosine").mean("seed").transpose("width", "step"))
    assert ax.get_yscale() == "linear"
    assert axes_of(result, "losses-dot").get_yscale() == "symlog"


def test_an_empty_panel_says_why() -> None:
    result = study(similarities=("dot",), diverging={"dot": lambda width, seed: 1})
    assert [text.get_text() for text in axes_of(result, "study-step").texts] == ["no finite value was recorded"]
    assert not axes_of(study(), "study-step").texts


def test_widths_are_labeled_by_their_own_numbers() -> None:
    ticks = axes_of(study(widths=(64, 128, 256, 512, 1024, 2048)), "study-width").get_xticklabels()
    assert [tick.get_text() for tick in ticks] == ["64", "128", "256", "512", "1024", "2048"]
    crowded = axes_of(study(widths=tuple(range(64, 90)), n_seeds=1), "study-width").get_xticklabels()
    assert 2 <= len(crowded) <= 9


def test_no_word_is_outside_the_picture_and_no_legend_over_the_data() -> None:
    result = study(widths=(64, 128, 256, 512, 1024, 2048), n_seeds=2, label_curves=True)
    for plate in plates(result, find(result)):
        figure = plate_figure(plate)
        figure.draw_without_rendering()
        whole = figure.bbox
        for part in figure.subfigs:
            [ax], [legend] = part.axes, part.legends
            box, inner = legend.get_window_extent(), ax.get_tightbbox()
            assert inner is not None
            assert box.y1 <= inner.y0 + 1
            for edge in (box, inner):
                assert whole.x0 - 1 <= edge.x0
                assert edge.x1 <= whole.x1 + 1
                assert whole.y0 - 1 <= edge.y0
                assert edge.y1 <= whole.y1 + 1


def test_numbers_are_written_plainly() -> None:
    values = [0, 1, 0.02, 500, -0.4, 1e5, -1e5, 2e-7, 1.2e5, 1e150]
    assert [number(v) for v in values] == ["0", "1", "0.02", "500", "−0.4", "10⁵", "−10⁵", "2×10⁻⁷", "1.2×10⁵", "10¹⁵⁰"]


@given(low=floats(-200, 200), decades=floats(0.16, 150))
def test_a_logarithmic_axis_has_a_few_different_labels(low: float, decades: float) -> None:
    low, high = 10.0**low, 10.0 ** (low + decades)
    ticks = log_ticks(low, high)
    assert 2 <= len(ticks) <= 9
    assert ticks == sorted(ticks)
    assert all(low <= tick <= high for tick in ticks)
    assert len({number(tick) for tick in ticks}) == len(ticks)


@given(value=floats(1e-200, 1e200), ratio=floats(1, 1e6))
def test_limits_hold_their_values_and_keep_a_flat_line_flat(value: float, ratio: float) -> None:
    low, high = log_limits(np.array([value, value * ratio, np.nan, 0.0]), decades=1.0)
    assert low < value <= value * ratio < high
    assert math.log10(high / low) >= 0.999


@pytest.mark.parametrize("ends", [(1.0, 1e300), (1e-300, 1e300), (5e-324, 1.0), (1.0, 1.7e308), (5e-324, 1.7e308)])
def test_limits_of_the_widest_ranges_are_numbers_above_zero(ends: tuple[float, float]) -> None:
    low, high = log_limits(np.array(ends))
    assert 0 < low <= max(ends[0], 1e-300)
    assert min(ends[1], 1e300) <= high < math.inf
    assert log_ticks(low, high)
