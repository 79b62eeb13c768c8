from __future__ import annotations

import pytest

from kontrast.study import find, kernel, pca, terminal_tables
from kontrast.study.tables import pca_table, probe_table, similarity_table
from tests.report.studies import study


def test_the_terminal_has_a_table_for_every_section() -> None:
    findings = find(study(label_curves=True))
    cosine, dot, orthonormal, probes, labels = terminal_tables(findings)
    assert cosine.title.startswith("cosine similarity, learning rate 0.1, means at step 60")
    assert [cosine.note, dot.note] == [found.sentence for found in findings.similarities]
    assert cosine.head[1:-1] == tuple(it.heading for it in kernel.QUANTITIES if it.in_terminal)
    assert orthonormal.head[1:] == tuple(it.heading for it in pca.QUANTITIES if it.in_terminal)
    assert [row[-1] for row in cosine.rows] == ["–"] * 3
    assert dot.rows[0][-1] == f"{findings.similarities[1].diverged_at[0]:.0f}"
    assert probes.head == ("width", "16", "64", "256")
    assert labels.head[:4] == ("n", "error 10", "error 50", "error 400")
    for table in (cosine, dot, orthonormal, probes, labels):
        assert {len(row) for row in (table.head, *table.rows, table.foot or table.head)} == {len(table.head)}


@pytest.mark.parametrize("n_widths, shown", [(1, 1), (6, 6), (13, 6)])
def test_of_many_widths_the_probes_show_some(n_widths: int, shown: int) -> None:
    widths = tuple(2**k for k in range(4, 4 + n_widths))
    table = terminal_tables(find(study(widths=widths, n_seeds=1, similarities=("cosine",))))[-1]
    assert len(table.head) == 1 + shown
    assert (table.head[1], table.head[-1]) == (str(widths[0]), str(widths[-1]))


def test_some_seeds_that_diverge_are_counted() -> None:
    some = find(study(diverging={"cosine": lambda width, seed: 20 if seed == 1 and width > 16 else None}))
    assert [row[-1] for row in terminal_tables(some)[0].rows] == ["–", "20 (1×)", "20 (1×)"]
    assert [row[-1] for row in similarity_table(some.similarities[0]).rows] == [
        "–",
        "1 of 3, step 20",
        "1 of 3, step 20",
    ]


def test_exponents_stand_below_with_their_error_or_their_interval() -> None:
    found = find(study()).pca
    assert found is not None
    law = found.exponents["matrix_drift"]
    column = [it.name for it in pca.QUANTITIES if it.heading].index("matrix_drift") + 1
    assert pca_table(found).foot[column] == str(law)
    assert pca_table(found, in_terminal=True).foot[column] == f"{law.exponent:.2f}±{law.high - law.exponent:.2f}"


def test_tables_say_the_dimension_of_what_they_are_about() -> None:
    found = find(study(pca_d_out=3, label_curves=True))
    _, _, orthonormal, probed, *_ = terminal_tables(found)
    assert orthonormal.title.startswith("orthonormal output layer of dimension 3, learning rate 1")
    names = [row[0] for row in probed.rows]
    assert {"pca (3)", "trained (3)", "random (3)", "cosine (16)", "pixel-pca (16)", "pixels (784)", "chance"} <= set(
        names
    )
    assert found.probes is not None
    assert probe_table(found.probes).head[1:] == tuple(names)
    older = study().drop_vars("probe_dimension")  # a study that did not store them
    assert find(older).probes is not None
    assert terminal_tables(find(older))[3].rows[0][0] == "pca"
