"""The tables of a study in plain strings, made from its findings and its quantities; terminal and page lay them out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kontrast.linalg import PowerLaw
from kontrast.study import kernel, labels, pca
from kontrast.study.kernel import SimilarityFindings
from kontrast.study.labels import LabelFindings
from kontrast.study.map import BASELINES, TRAINED, Border, Estimate, MapCell, MapFindings, Regime, best_rate
from kontrast.study.pca import PCAFindings
from kontrast.study.probes import ProbeFindings, with_dimension
from kontrast.study.quantities import Quantity
from kontrast.study.summary import Findings

TERMINAL_COUNTS = 3  # numbers of labels that 80 characters hold
TERMINAL_WIDTHS = 6  # widths of probes that they hold
TERMINAL_COLUMNS = 5  # widths of a map that they hold
TERMINAL_WORDS = {
    Regime.PCA: "PCA",
    Regime.LEARNING: "learns",
    Regime.UNDERTRAINED: "under",
    Regime.COLLAPSED: "coll.",
}


@dataclass(frozen=True)
class Table:
    """A table: every row begins with its name.

    Attributes:
        title: what it shows.
        head: a heading per column.
        rows: a word per column.
        foot: a last row, apart.
        note: the sentence below it.
        variables: the stored array behind each column, which defines it; empty where there is none.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    foot: tuple[str, ...] = ()
    note: str = ""
    variables: tuple[str, ...] = ()


def terminal_tables(findings: Findings) -> list[Table]:
    """The tables of a study in 80 characters: its map, then its sections in their order."""
    made = terminal_map(findings.map) if findings.map is not None else []
    made += [similarity_table(found, in_terminal=True) for found in findings.similarities]
    if findings.pca is not None:
        made.append(pca_table(findings.pca, in_terminal=True))
    if findings.probes is not None:
        made.append(_terminal_probes(findings.probes))
    if findings.labels is not None:
        made.append(_terminal_labels(findings.labels))
    return made


def terminal_map(found: MapFindings) -> list[Table]:
    """The map in 80 characters, a table per loss, and what the widest network can be compared with."""
    made = [map_table(found, loss, in_terminal=True) for loss in found.losses]
    return [*made, _terminal_baselines(found)] if found.baselines else made


def map_table(found: MapFindings, loss: str, *, in_terminal: bool = False) -> Table:
    """A row per rate, the largest first, and a column per width: a cell's regime, and what its probe reads."""
    grid = found.grid(loss)
    sizes = list(grid[0])
    if in_terminal:
        sizes = [sizes[i] for i in _spread_out(len(sizes), TERMINAL_COLUMNS)]
    write = _terminal_cell if in_terminal else _page_cell
    words = _terminal_words(found) if in_terminal and loss == found.losses[0] else []
    axis, symbol = found.axis
    borders = [
        f"{border.name} border: {_border_law(border, axis, symbol)}" for border in found.borders if border.loss == loss
    ]
    return Table(
        f"{loss}: what training does, by rate and {axis}",
        (f"rate \\ {axis}", *map(str, sizes)),
        tuple((f"{row[sizes[0]].rate:g}", *(write(row[size], found) for size in sizes)) for row in reversed(grid)),
        note="; ".join([*words, *borders]),
    )


def baseline_tables(found: MapFindings) -> list[Table]:
    """For each probe a row per twin without a gradient, a column per width; the input itself apart."""
    made = []
    for probe, words in {"linear": "a linear probe", "knn": "20 nearest neighbours"}.items():
        rows = [
            (f"{name}: {BASELINES[name]}", *(_accuracy(table[name][probe]) for table in found.baselines.values()))
            for name in BASELINES
        ]
        made.append(
            Table(
                f"what needs no training: test accuracy of {words} in per cent, ± half a 95 % interval",
                (found.axis[0], *map(str, found.baselines)),
                tuple(row for row in rows if not row[0].startswith("raw: ")),
                next(row for row in rows if row[0].startswith("raw: ")),
                variables=("", *("map_baseline" for _ in found.baselines)),
            )
        )
    return made


def border_table(found: MapFindings) -> Table | None:
    """A row per border: its exponent, and its rate wherever it was found; None without any."""
    sizes = sorted({size for border in found.borders for size in border.sizes})
    if not sizes:
        return None
    rows = []
    for border in found.borders:
        rates = dict(zip(border.sizes, border.rates, strict=True))
        places = (f"{rates[size]:.3g}" if size in rates else "–" for size in sizes)
        exponent = str(border.law) if border.law is not None else "–"
        rows.append((f"{border.loss}, {border.name}: {border.words}", exponent, *places))
    return Table(
        f"borders of the map: the exponent p of rate ∝ {found.axis[1]}^p with its 95 % interval, and the rates it was "
        "fitted to",
        ("border", "exponent", *(f"{found.axis[0]} {size}" for size in sizes)),
        tuple(rows),
    )


def similarity_table(found: SimilarityFindings, *, in_terminal: bool = False) -> Table:
    """A row per width: the quantities of one similarity, and which runs diverged."""
    when = f"means at step {found.step}" if found.step is not None else "an overflow too early for means"
    heading, write = ("diverged at", _diverged_at) if in_terminal else ("seeds diverged", _diverged_seeds)
    return _width_table(
        f"{found.similarity} similarity, learning rate {found.learning_rate:g}, {when}",
        found,
        kernel.QUANTITIES,
        {heading: [write(found, i) if n else "–" for i, n in enumerate(found.diverged)]},
        ("stopped_at",),
        in_terminal=in_terminal,
    )


def pca_table(found: PCAFindings, *, in_terminal: bool = False) -> Table:
    """A row per width: the quantities of the orthonormal run."""
    when = f"means at step {found.step}" if found.step is not None else "no step at which all runs are whole"
    title = f"orthonormal output layer of dimension {found.d_out}, learning rate {found.learning_rate:g}, {when}"
    return _width_table(title, found, pca.QUANTITIES, {}, (), in_terminal=in_terminal)


def probe_table(found: ProbeFindings) -> Table:
    """A row per width, a column per embedding."""
    return Table(
        "linear probes: test accuracy in per cent, of embeddings with their dimension in brackets"
        + (", mean and standard deviation over seeds" if found.n_seeds > 1 else ""),
        ("width", *(with_dimension(name, found.dimensions[name]) for name in found.embeddings)),
        tuple(
            (str(width), *(accuracy(found.means[name][i], found.deviations[name][i]) for name in found.embeddings))
            for i, width in enumerate(found.widths)
        ),
        variables=("", *("probe_accuracy" for _ in found.embeddings)),
    )


def label_tables(found: LabelFindings) -> list[Table]:
    """For errors and for accuracies a row per representation; then the labels that each needs, where any is enough."""
    about = f"kernel ridge regression from n labels, width {found.width}"
    made = [
        Table(
            f"{about}: {it.caption}, measured / predicted",
            ("labels", *map(str, found.n_labels)),
            tuple(
                (with_dimension(name, found.dimensions[name]), *_pairs(found, it, name, it.page_format))
                for name in found.representations
            ),
            variables=("", *(it.measured for _ in found.n_labels)),
        )
        for it in labels.COMPARISONS
    ]
    if found.best:
        share = f"{labels.SHARE:.0%} of the best with {found.n_labels[-1]}"
        rows = {"measured": found.needed, "predicted": found.predicted_needed}
        made.append(
            Table(
                f"labels needed for an accuracy of {found.level:.0%}, {share}",
                ("", *found.representations),
                tuple((what, *(count(n[name]) for name in found.representations)) for what, n in rows.items()),
            )
        )
    return made


def accuracy(mean: float, deviation: float) -> str:
    """An accuracy in per cent with its deviation over the seeds, where there is one."""
    if not math.isfinite(mean):
        return "–"
    return f"{100 * mean:.1f}±{100 * deviation:.1f}" if math.isfinite(deviation) else f"{100 * mean:.1f}"


def count(n: float) -> str:
    """A number of labels, in two digits; a dash where there were too few."""
    return f"{float(f'{n:.2g}'):.0f}" if math.isfinite(n) else "–"


def _width_table(
    title: str,
    found: SimilarityFindings | PCAFindings,
    quantities: Sequence[Quantity],
    further: Mapping[str, Sequence[str]],
    further_variables: tuple[str, ...],
    *,
    in_terminal: bool,
) -> Table:
    """A row per width: the means of the quantities that have a heading, `further` columns, and the exponents below."""
    shown = [it for it in quantities if it.heading and (it.in_terminal or not in_terminal)]
    rows = tuple(
        (
            str(width),
            *(it.write(found.means[it.name][i]) if found.means else "–" for it in shown),
            *(words[i] for words in further.values()),
        )
        for i, width in enumerate(found.widths)
    )
    write: Callable[[PowerLaw], str] = _with_error if in_terminal else str
    laws = (found.exponents.get(it.name) for it in shown)
    foot = ("~ M^" if in_terminal else "∝ M^", *(write(law) if law else "–" for law in laws), *("" for _ in further))
    head = ("width", *(it.heading for it in shown), *further)
    variables = ("", *(it.name for it in shown), *further_variables)
    return Table(title, head, rows, foot if found.exponents else (), found.sentence, variables)


def _terminal_cell(cell: MapCell, found: MapFindings) -> str:
    word = TERMINAL_WORDS.get(cell.regime, cell.regime.word) + ("" if cell.sure else "?")
    accuracy, gap = (cell.numbers[name].mean for name in ("map_accuracy", "map_gap"))
    value, shown = (accuracy, f"{100 * accuracy:.1f}") if found.baselines else (gap, f"{gap:.2f}")
    return f"{word} {shown}" if math.isfinite(value) else word


def _terminal_words(found: MapFindings) -> list[str]:
    """What the words and numbers of the terminal's map mean."""
    seen = {cell.regime for cell in found.cells}
    words = ["rate: learning rate / critical rate"]
    words.append(f"numbers: {'test accuracy of a linear probe in %' if found.baselines else 'kernel gap'}")
    words += [f"{short}: {it.word}" for it, short in TERMINAL_WORDS.items() if it in seen and it is not Regime.LEARNING]
    return words if all(cell.sure for cell in found.cells) else [*words, "?: not sure"]


def _page_cell(cell: MapCell, found: MapFindings) -> str:
    parts = [cell.regime.word + ("" if cell.sure else "?")]
    accuracy, gap = (cell.numbers[name].mean for name in ("map_accuracy", "map_gap"))
    parts += [f"{accuracy:.1%}"] if math.isfinite(accuracy) else []
    parts += [f"gap {gap:.2g}"] if math.isfinite(gap) else []
    return ", ".join(parts)


def _border_law(border: Border, axis: str, symbol: str) -> str:
    if border.law is None:
        return f"rate {border.rates[0]:.2g} at {axis} {border.sizes[0]}"
    return f"rate ∝ {symbol}^{border.law}"


def _accuracy(estimate: Estimate) -> str:
    return accuracy(estimate.mean, estimate.error)


def _terminal_baselines(found: MapFindings) -> Table:
    """What the widest network can be compared with; of what is trained, its best rate."""
    width = max(found.baselines)
    rows = []
    for loss in found.losses:
        best = best_rate([cell for cell in found.panel(loss) if cell.size == width])
        if best is None:
            continue
        for name, quantities in zip(
            (f"{loss}, rate {best.rate:g}", "  its kernel twin"), zip(*TRAINED.values(), strict=True), strict=True
        ):
            rows.append((name, *(_accuracy(best.numbers[quantity]) for quantity in quantities)))
    twins = found.baselines[width]
    for name in BASELINES:
        if name != "raw":
            words = f"{name}, the best closed form" if name == found.best_closed_form[width] else name
            rows.append((words, *(_accuracy(estimate) for estimate in twins[name].values())))
    return Table(
        f"test accuracy in % at {found.axis[0]} {width}, ± half a 95 % interval",
        ("", "linear probe", "nearest neighbours"),
        tuple(rows),
        ("raw input, all its dimensions", *(_accuracy(estimate) for estimate in twins["raw"].values())),
        note="each loss at the rate of its best validation accuracy, a settled one where there is any",
    )


def _terminal_probes(found: ProbeFindings) -> Table:
    """A row per embedding; of many widths some, the first and the last among them."""
    columns = _spread_out(len(found.widths), TERMINAL_WIDTHS)
    return Table(
        f"linear probes, test accuracy in %, {found.n_samples} samples to train and to test",
        ("width", *(str(found.widths[i]) for i in columns)),
        tuple(
            (
                with_dimension(name, found.dimensions[name]),
                *(accuracy(found.means[name][i], found.deviations[name][i]) for i in columns),
            )
            for name in found.embeddings
        ),
    )


def _terminal_labels(found: LabelFindings) -> Table:
    """A row per representation: measured / predicted at some numbers of labels, and the labels needed."""
    columns = _spread_out(len(found.n_labels), TERMINAL_COUNTS)

    def cells(name: str) -> list[str]:
        rows = [_pairs(found, it, name, it.terminal_format) for it in labels.COMPARISONS]
        return [row[i].replace(" ", "") for row in rows for i in columns]

    return Table(
        f"kernel ridge regression from n labels, width {found.width}, measured/predicted",
        (
            "n",
            *(f"{it.heading} {found.n_labels[i]}" for it in labels.COMPARISONS for i in columns),
            f"n for {found.level:.0%}" if found.best else "n for –",
        ),
        tuple(
            (name, *cells(name), f"{count(found.needed[name])}/{count(found.predicted_needed[name])}")
            for name in found.representations
        ),
        note=f"labels: {found.sentence}",
    )


def _pairs(found: LabelFindings, it: labels.Comparison, name: str, form: str) -> list[str]:
    """Measured / predicted, without per-cent signs; a dash for a run that diverged."""
    return [
        f"{form.format(one)} / {form.format(other)}".replace("%", "") if math.isfinite(one) else "–"
        for one, other in zip(found.means[it.measured][name], found.means[it.predicted][name], strict=True)
    ]


def _spread_out(n: int, most: int) -> list[int]:
    """Up to `most` of n indices, the first and the last among them."""
    last, parts = n - 1, min(n, most) - 1
    return sorted({round(k * last / parts) for k in range(parts + 1)}) if parts else [0]


def _diverged_at(found: SimilarityFindings, i: int) -> str:
    """The mean step of divergence, and in how many seeds it was where it was not all of them."""
    some = f" ({found.diverged[i]}×)" if found.diverged[i] < found.n_seeds else ""
    return f"{found.diverged_at[i]:.0f}{some}"


def _diverged_seeds(found: SimilarityFindings, i: int) -> str:
    return f"{found.diverged[i]} of {found.n_seeds}, step {found.diverged_at[i]:.0f}"


def _with_error(law: PowerLaw) -> str:
    return f"{law.exponent:.2f}±{law.high - law.exponent:.2f}" if law.n_points > 2 else f"{law.exponent:.2f}"
