"""The map of a study: kernel, PCA, learning, collapsed or diverged, over widths and learning rates."""

from kontrast.study.map.baselines import BASELINES, CLOSED_FORMS
from kontrast.study.map.borders import Border
from kontrast.study.map.findings import TRAINED, MapFindings, as_dict, best_rate, judge
from kontrast.study.map.measures import OF_RUNS, QUANTITIES
from kontrast.study.map.networks import check_network
from kontrast.study.map.regimes import RULES, Estimate, MapCell, Regime
from kontrast.study.map.section import measure, seconds_per_step

__all__ = [
    "BASELINES",
    "CLOSED_FORMS",
    "OF_RUNS",
    "QUANTITIES",
    "RULES",
    "TRAINED",
    "Border",
    "Estimate",
    "MapCell",
    "MapFindings",
    "Regime",
    "as_dict",
    "best_rate",
    "check_network",
    "judge",
    "measure",
    "seconds_per_step",
]
