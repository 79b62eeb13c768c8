"""The tables of a study in plain strings, made from its findings and its quantities; terminal and page lay them out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kontrast.linalg import PowerLaw
from kontrast.study import kernel, labels, pca
from kontrast.study.kernel import SimilarityFindings
from kontrast.study.labels import LabelFindings
from kontrast.study.pca import PCAFindings
from kontrast.study.probes import ProbeFindings, with_dimension
from kontrast.study.quantities import Quantity
from kontrast.study.summary import Findings

TERMINAL_COUNTS = 3  # numbers of labels that 80 characters hold
TERMINAL_WIDTHS = 6  # widths of probes that they hold


@dataclass(frozen=True)
class Table:
    """A table: every row begins with its name. `note` is the sentence below it."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    foot: tuple[str, ...] = ()
    note: str = ""


def terminal_tables(findings: Findings) -> list[Table]:
    """The tables of a study in 80 characters, in the order of its sections."""
    made = [similarity_table(found, in_terminal=True) for found in findings.similarities]
    if findings.pca is not None:
        made.append(pca_table(findings.pca, in_terminal=True))
    if findings.probes is not None:
        made.append(_terminal_probes(findings.probes))
    if findings.labels is not None:
        made.append(_terminal_labels(findings.labels))
    return made


def similarity_table(found: SimilarityFindings, *, in_terminal: bool = False) -> Table:
    """A row per width: the quantities of one similarity, and which runs diverged."""
    when = f"means at step {found.step}" if found.step is not None else "an overflow too early for means"
    heading, write = ("diverged at", _diverged_at) if in_terminal else ("seeds diverged", _diverged_seeds)
    return _width_table(
        f"{found.similarity} similarity, learning rate {found.learning_rate:g}, {when}",
        found,
        kernel.QUANTITIES,
        {heading: [write(found, i) if n else "–" for i, n in enumerate(found.diverged)]},
        in_terminal=in_terminal,
    )


def pca_table(found: PCAFindings, *, in_terminal: bool = False) -> Table:
    """A row per width: the quantities of the orthonormal run."""
    when = f"means at step {found.step}" if found.step is not None else "no step at which all runs are whole"
    title = f"orthonormal output layer of dimension {found.d_out}, learning rate {found.learning_rate:g}, {when}"
    return _width_table(title, found, pca.QUANTITIES, {}, in_terminal=in_terminal)


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
    return Table(title, head, rows, foot if found.exponents else (), found.sentence)


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
