from __future__ import annotations

import pytest

from tests.cli.running import Ended, Kontrast, in_this_process


@pytest.fixture
def kontrast(capfd: pytest.CaptureFixture[str]) -> Kontrast:
    """Run a command in this process, in the current folder."""

    def run(*arguments: object) -> Ended:
        capfd.readouterr()
        return Ended(in_this_process(arguments), *capfd.readouterr())

    return run
