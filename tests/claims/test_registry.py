"""Claims are found by id or prefix; a misspelled id is answered with the nearest one."""

from __future__ import annotations

from pathlib import Path

import pytest

import kontrast
from kontrast.claims import PAPERS, Verdict, all_claims, select
from kontrast.claims.registry import claim
from kontrast.errors import InputError

ROOT = Path(kontrast.__file__).parent
PAPER_A = (
    *("lem9", "fig1", "init", "prop10", "fig2", "fig3", "lem7", "lem8", "lem11", "lem12", "thm13"),
    *("eq8", "eq10", "eq9", "lem16", "fig4", "lem17", "pca", "rem15", "prop18", "fig5", "forever", "closed"),
)


def test_every_claim_of_paper_a_is_there() -> None:
    assert {f"A.{name}" for name in PAPER_A} <= {claim.id for claim in select(["A"])}


def test_claims_come_in_the_order_of_the_paper() -> None:
    ids = [claim.id for claim in all_claims()]
    landmarks = ["A.lem9", "A.fig3", "A.lem7", "A.thm13", "A.eq8", "A.lem17", "A.fig5", "A.forever"]
    assert [claim_id for claim_id in ids if claim_id in landmarks] == landmarks


def test_a_prefix_ends_at_a_dot() -> None:
    with pytest.raises(InputError):
        select(["A.lem1"])  # neither lem11 nor lem12
    assert [claim.id for claim in select(["A.lem11", "A.lem9", "A.lem9"])] == ["A.lem9", "A.lem11"]
    assert select([]) == all_claims()


@pytest.mark.parametrize(
    ("given", "nearest"), [("A.porp18", "A.prop18"), ("a.pca", "A.pca"), ("A.fg3", "A.fig3"), ("A.forevr", "A.forever")]
)
def test_an_unknown_id_names_the_nearest(given: str, nearest: str) -> None:
    with pytest.raises(InputError, match=rf"no claim is called '{given}'; did you mean {nearest}\?"):
        select([given])


def test_an_id_like_no_other_names_all_claims() -> None:
    with pytest.raises(InputError, match=r"no claim is called '@@@'; the claims are A\.lem9, A\.fig1, .*, D\."):
        select(["@@@"])


def test_two_functions_cannot_measure_one_claim() -> None:
    with pytest.raises(ValueError, match=r"two functions measure A\.lem9"):
        claim("A.lem9", source="", title="", printed="", recorded=Verdict.HOLDS)(lambda setting: None)  # type: ignore[arg-type,return-value]


def test_every_claim_says_what_it_is() -> None:
    for one in all_claims():
        assert one.title, one.id
        paper = one.id[0]
        assert one.source.startswith((f"Paper {paper}", f"Beyond paper {paper}")), one.id
        assert len(one.printed) > 10, one.id
        assert one.recorded is not Verdict.UNDECIDED, one.id
        assert one.recorded is not Verdict.CORRECTED or one.corrected, f"{one.id} is corrected, but to what?"


def test_every_claim_of_paper_a_has_its_own_file_named_by_its_id() -> None:
    for one in select(["A"]):
        assert one.file == f"claims/a/{one.id.removeprefix('A.')}.py"
        assert f'@claim(\n    "{one.id}"' in (ROOT / one.file).read_text()


def test_every_claim_knows_its_file_and_its_paper() -> None:
    for one in all_claims():
        assert (ROOT / one.file).is_file(), one.id
        assert one.paper is PAPERS[one.id[0]]
        assert str(one.paper).startswith(one.paper.authors)
