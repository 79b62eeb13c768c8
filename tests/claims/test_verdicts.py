"""Every claim has the verdict of the project's own table."""

from __future__ import annotations

import pytest

from kontrast.claims import Setting, all_claims, measure_claim, select
from tests.claims.b.test_broken import SMALL as SMALL_OF_B
from tests.claims.breaks import QUICK, SMALL

CHEAP = [claim.id for claim in all_claims() if claim.id not in SMALL_OF_B]  # those of B: tests/claims/b/test_broken.py


def assert_recorded(claim_id: str, setting: Setting) -> None:
    (claim,) = select([claim_id])
    record = measure_claim(claim, setting)
    assert record.verdict is claim.recorded, {name: str(x) for name, x in record.evidence.measured.items()}
    assert record.evidence.setting
    assert all(curve.x and len(curve.x) == len(curve.y) for panel in record.evidence.panels for curve in panel.curves)


@pytest.mark.parametrize("claim_id", CHEAP)
def test_the_verdict_is_the_recorded_one(claim_id: str) -> None:
    assert_recorded(claim_id, SMALL.get(claim_id, QUICK))


@pytest.mark.slow
@pytest.mark.parametrize("claim_id", [*SMALL, *SMALL_OF_B])
def test_the_quick_verdict_is_the_recorded_one(claim_id: str) -> None:
    assert_recorded(claim_id, QUICK)


def test_small_settings_belong_to_claims() -> None:
    assert SMALL.keys() | SMALL_OF_B.keys() <= {claim.id for claim in all_claims()}
