"""Everything a study says: kernel, PCA or learning, judged section by section from the stored result alone."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any

import xarray as xr

from kontrast.study import kernel, labels, pca, probes
from kontrast.study import map as regime_map
from kontrast.study.kernel import SimilarityFindings
from kontrast.study.labels import LabelFindings
from kontrast.study.map import MapFindings
from kontrast.study.pca import PCAFindings
from kontrast.study.probes import ProbeFindings
from kontrast.study.spec import StudySpec
from kontrast.study.thresholds import Thresholds


@dataclass(frozen=True)
class Findings:
    """The findings of every section; None where the spec leaves a section out."""

    spec: StudySpec
    thresholds: Thresholds
    similarities: tuple[SimilarityFindings, ...]
    pca: PCAFindings | None  # `spec.without_pca` says why there are none
    probes: ProbeFindings | None
    without_probes: str  # why there are none; empty where there are
    labels: LabelFindings | None = None
    map: MapFindings | None = None

    @property
    def verdict(self) -> str:
        """Kernel, PCA or learning, in one line: what the map says of the setting; without a map, of every run."""
        return self.full_batch if self.map is None else self.map.verdict

    @property
    def full_batch(self) -> str:
        """The full-batch sections in one line: a phrase for every run, and what training buys downstream."""
        runs: dict[str, list[str]] = {}
        for found in self.similarities:
            runs.setdefault(found.verdict.value, []).append(found.similarity)
        if self.pca is not None:
            runs.setdefault(self.pca.verdict.value, []).append("orthonormal")
        answers = "; ".join(f"{' and '.join(names)}: {words}" for words, names in runs.items())
        if self.probes is None:
            return f"{answers}; no downstream probes, {self.without_probes}"
        gain = self.probes.gain
        return f"{answers}; {gain.sentence if gain else 'every trained run diverged, so no probe judges training'}"

    @property
    def sentences(self) -> tuple[str, ...]:
        """One line per full-batch run."""
        return tuple(found.sentence for found in (*self.similarities, self.pca, self.labels) if found is not None)

    @property
    def summary(self) -> str:
        """The verdict, and one line per run."""
        return "\n".join([self.verdict, *self.sentences])

    def as_dict(self) -> dict[str, Any]:
        """The findings as JSON types; non-finite numbers become null."""
        similarities = {found.similarity: _judged(found) for found in self.similarities}
        for found in similarities.values():
            del found["similarity"]
        plain = {
            "study": self.spec.name,
            "verdict": self.verdict,
            **({} if self.map is None else regime_map.as_dict(self.map)),
            "thresholds": dataclasses.asdict(self.thresholds),
            "spec": self.spec.as_dict(),
            "similarities": similarities,
            "pca": None if self.pca is None else _judged(self.pca),
            "without_pca": self.spec.without_pca,
            "pca_outlook": self.spec.pca_outlook,
            "probes": None if self.probes is None else dataclasses.asdict(self.probes),
            "without_probes": self.without_probes,
            "labels": None if self.labels is None else dataclasses.asdict(self.labels),
        }
        return _finite(plain)  # type: ignore[no-any-return]


def find(result: xr.Dataset, thresholds: Thresholds | None = None) -> Findings:
    """Judge a consolidated study by `thresholds`, or by the default ones."""
    thresholds = thresholds or Thresholds()
    spec = StudySpec.from_dict(json.loads(result.attrs["spec"]))
    mapped = regime_map.judge(result, spec, thresholds)
    if spec.without_sections:
        return Findings(spec, thresholds, (), None, None, spec.without_sections, map=mapped)
    probed = probes.judge(result, spec, thresholds)
    return Findings(
        spec,
        thresholds,
        kernel.judge(result, spec, thresholds),
        pca=pca.judge(result, spec, thresholds),
        probes=probed,
        without_probes="" if probed is not None else probes.without_probes(result),
        labels=labels.judge(result, spec, thresholds),
        map=mapped,
    )


def _judged(found: SimilarityFindings | PCAFindings) -> dict[str, Any]:
    return {**dataclasses.asdict(found), "verdict": found.verdict.name.lower()}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value if not isinstance(value, float) or math.isfinite(value) else None
