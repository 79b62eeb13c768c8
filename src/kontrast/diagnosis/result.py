"""`Diagnosis`: stored numbers, and what they say: a sentence, its reasons, what to try next."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import xarray as xr

from kontrast.diagnosis import widths
from kontrast.diagnosis.buys import Gain, gains, main_task
from kontrast.diagnosis.causes import Cause, causes_in
from kontrast.diagnosis.choice import Choice, choose
from kontrast.diagnosis.collapse import steps_of
from kontrast.diagnosis.collapse_rules import Collapse
from kontrast.diagnosis.labels_needed import LabelsNeeded, labels_in
from kontrast.diagnosis.quantities import estimate_in
from kontrast.diagnosis.rules import Decided, Numbers, Pays, pays, regime_of, worst_collapse
from kontrast.diagnosis.sentences import advice_of, reasons_of, verdict_of
from kontrast.diagnosis.settings import Limits
from kontrast.diagnosis.tables import Row, rows_of, table_text


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What a model is doing, from `kontrast.diagnose`; `print` shows the sentence, its reasons and what to try next.

    Everything is read from the stored numbers and the limits, so that a diagnosis that was saved says the same.

    Attributes:
        result: the numbers, as `to_dataset` gives them.
        limits: where words change.
    """

    result: xr.Dataset
    limits: Limits = field(default_factory=Limits)

    # --- the answers ------------------------------------------------------------------------------------------------

    @cached_property
    def decided(self) -> Decided:
        """The regime, the rule that decided, and whether it is sure."""
        return regime_of(Numbers.of(self.result), self.limits)

    @property
    def regime(self) -> str:
        """Whether the model is "kernel", "pca", "learning" or "undertrained"; "unknown" of one checkpoint alone."""
        return self.decided.regime.word

    @property
    def collapse(self) -> Collapse:
        """Whether features or embedding have collapsed: "none", "dimensional" or "complete"."""
        return worst_collapse(self.result)[0]

    @cached_property
    def buys(self) -> dict[str, Gain]:
        """The trained model's score less that of its start, of closed forms, of PCA and of the raw input."""
        return gains(self.result, main_task(self.result))

    @cached_property
    def _paid(self) -> tuple[Pays, Gain | None]:
        return pays(self.result, self.limits)

    @property
    def pays(self) -> Pays:
        """Whether training buys anything: "yes", "no" or "unsure"."""
        return self._paid[0]

    @property
    def hardest(self) -> Gain | None:
        """The comparison that decided whether training pays."""
        return self._paid[1]

    @cached_property
    def causes(self) -> tuple[Cause, ...]:
        """What is to blame: augmentation, temperature, batch or loss, each with its sentence."""
        return causes_in(self.result, collapsed=self.collapse != "none")

    @property
    def blamed(self) -> tuple[str, ...]:
        """What is to blame, in words: "augmentation", "temperature", …; empty where nothing is."""
        return tuple(dict.fromkeys(cause.what for cause in self.causes))

    @cached_property
    def choice(self) -> Choice | None:
        """The checkpoint to take, among three or more."""
        return choose(self.result, str(self.result.attrs["features"]))

    @cached_property
    def labels(self) -> LabelsNeeded | None:
        """How many labels the model needs, from those there are."""
        return labels_in(self.result)

    def width_for(self, drift: float = widths.DRIFT) -> widths.WidthNeeded | None:
        """How wide the model must be for a kernel drift below `drift`, from the widths that were swept."""
        return widths.needed(self.result, drift)

    @property
    def learned_dimensions(self) -> list[tuple[str, int]]:
        """The checkpoints at which dimensions of the embedding were learned, and how many."""
        return list(steps_of(self.result, "embedding"))

    # --- in words ---------------------------------------------------------------------------------------------------

    @cached_property
    def verdict(self) -> str:
        """The answer in one sentence."""
        return verdict_of(self)

    @cached_property
    def reasons(self) -> tuple[str, ...]:
        """The numbers behind it, in sentences."""
        return tuple(reasons_of(self))

    @cached_property
    def advice(self) -> tuple[str, ...]:
        """What to try next."""
        return tuple(advice_of(self))

    @property
    def notes(self) -> tuple[str, ...]:
        """How the model and the data were read: running statistics, modes, conversions."""
        return tuple(json.loads(self.result.attrs.get("notes", "[]")))

    @property
    def missing(self) -> dict[str, str]:
        """The numbers that could not be had, and why."""
        return dict(json.loads(self.result.attrs.get("missing", "{}")))

    @cached_property
    def table(self) -> tuple[Row, ...]:
        """Every number at the last checkpoint with its interval, convention, n and d."""
        return tuple(rows_of(self.result))

    @property
    def exit_code(self) -> Literal[0, 3, 4]:
        """0 for a healthy model, 3 for a collapsed one, 4 where training buys nothing."""
        if self.collapse != "none":
            return 3
        return 4 if self.pays == "no" else 0

    def __str__(self) -> str:
        parts = [self.verdict, "", "because", *(f"  {reason}" for reason in self.reasons)]
        if self.advice:
            parts += ["try next", *(f"  {line}" for line in self.advice)]
        return "\n".join([*parts, *(f"note: {note}" for note in self.notes)])

    def __repr__(self) -> str:
        return f"Diagnosis({self.verdict})"

    # --- out --------------------------------------------------------------------------------------------------------

    def judged_by(self, limits: Limits) -> Diagnosis:
        """The same numbers under other limits."""
        return replace(self, limits=limits)

    def to_dataset(self) -> xr.Dataset:
        """All numbers, labelled; `Diagnosis(dataset)` reads them back."""
        return self.result.copy()

    def as_dict(self) -> dict[str, Any]:
        """What `kontrast diagnose --json` prints."""
        hardest = self.hardest
        return {
            "verdict": self.verdict,
            "regime": self.regime,
            "regime_reason": self.decided.reason,
            "sure": self.decided.sure,
            "collapse": self.collapse,
            "pays": self.pays,
            "hardest_to_beat": None if hardest is None else hardest.over,
            "buys": {name: _interval(it.difference) for name, it in self.buys.items()},
            "blamed": list(self.blamed),
            "reasons": list(self.reasons),
            "advice": list(self.advice),
            "checkpoint": None if self.choice is None else self.choice.chosen.checkpoint,
            "notes": list(self.notes),
            "missing": self.missing,
            "numbers": [row.as_dict() for row in self.table],
            "exit_code": self.exit_code,
        }

    def to_html(self, path: str | Path | None = None) -> str:
        """The page: one HTML file with everything inside; also written to `path` where one is given."""
        page: str = _report().diagnosis_page(self)
        if path is not None:
            Path(path).write_text(page, "utf-8")
        return page

    def plot(self) -> Any:
        """A matplotlib figure: what training buys, the spectrum, similarities, and the checkpoints."""
        return _report().diagnosis_figure(self)

    def _repr_html_(self) -> str:
        html: str = _report().diagnosis_summary(self)
        return html

    def number(self, name: str, **at: str) -> Any:
        """A stored number as an `Estimate`, as in `number("rankme", checkpoint="end", layer="embedding")`."""
        return estimate_in(self.result, name, **at)

    def table_text(self) -> str:
        """The table in plain text."""
        return table_text(self.table)


def _report() -> Any:
    """Pages and figures, which lie above this package and are loaded when they are asked for."""
    import kontrast

    return kontrast.report


def _interval(estimate: Any) -> dict[str, float | None]:
    return {
        name: value if math.isfinite(value) else None
        for name, value in (("value", estimate.value), ("low", estimate.low), ("high", estimate.high))
    }
