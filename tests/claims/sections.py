"""A claim measured in sections: a test of broken code measures again only those that rest on what is broken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kontrast.claims import Setting, measure_claim, select
from tests.claims.breaks import QUICK, Break


def each_of(breaks: Sequence[tuple[Any, ...]]) -> pytest.MarkDecorator:
    """One test for each (where, name, broken, *sections that rest on it), named after what it breaks."""
    names = [f"{name}-{k}" for k, (_, name, *_) in enumerate(breaks)]
    packed = [(where, name, broken, sections) for where, name, broken, *sections in breaks]
    return pytest.mark.parametrize(("where", "name", "broken", "rest_on_it"), packed, ids=names)


class Sections:
    """The results of some functions of a claim's module in one run with nothing broken, in the order of their calls.

    That run must have the recorded verdict. With some code broken the claim is measured as a whole again, but
    functions that do not rest on that code return what they returned before.
    """

    def __init__(self, claim_id: str, module: Any, names: Sequence[str], setting: Setting = QUICK) -> None:
        (self.claim,) = select([claim_id])
        self.module, self.setting = module, setting
        self.results: dict[str, list[Any]] = {name: [] for name in names}
        with pytest.MonkeyPatch.context() as patch:
            for name in names:
                patch.setattr(module, name, self._recording(name, getattr(module, name)))
            found = measure_claim(self.claim, setting)
        assert found.verdict is self.claim.recorded, {name: str(x) for name, x in found.evidence.measured.items()}
        assert all(self.results.values()), "a section that is never measured"

    def assert_noticed(self, where: Any, name: str, broken: Break, *rest_on_it: str) -> None:
        """With `where.name` broken, and the sections that rest on it measured again, the verdict is another."""
        assert set(rest_on_it) <= set(self.results)
        with pytest.MonkeyPatch.context() as patch:
            for section in set(self.results) - set(rest_on_it):
                patch.setattr(self.module, section, self._replayed(section))
            patch.setattr(where, name, broken(getattr(where, name)))
            found = measure_claim(self.claim, self.setting)
        assert found.verdict is not self.claim.recorded, {name: str(x) for name, x in found.evidence.measured.items()}

    def _recording(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*args: Any, **options: Any) -> Any:
            self.results[name].append(real(*args, **options))
            return self.results[name][-1]

        return recorded

    def _replayed(self, name: str) -> Callable[..., Any]:
        results = iter(self.results[name])
        return lambda *args, **options: next(results)
