"""Fewer random features of the input, for tests that are not about what they find."""

from __future__ import annotations

import pytest

from kontrast.diagnosis import embeddings


@pytest.fixture
def few_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings, "FEATURES", 32)
