"""The map of `kontrast study`: its time, its verdicts over base seeds, its borders at other widths, a user's ConvNet.

    python benchmarks/map.py default            the default study: time, sure regimes, and what training pays
    python benchmarks/map.py seeds              the default map from five base seeds: the regimes of its cells
    python benchmarks/map.py borders            borders fitted on every second width, held against the others
    python benchmarks/map.py convnet            examples/convnet.py on CIFAR-10, widths 16 to 128
    python benchmarks/map.py mnist --device cuda    all of MNIST, 8 widths to 16,384 × 8 rates × 3 seeds

Fashion-MNIST, CIFAR-10 and MNIST are files below KONTRAST_DATA. Results are kept in the folder of `--output`, and a
second run reads them.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import xarray as xr
from tables import Requirement, print_requirements, print_table

import kontrast as kt
from kontrast.study import Findings, MapCell, Regime, StudySpec
from kontrast.study.map.borders import borders_of

ROOT = Path(__file__).parents[1]
BASE_SEEDS = (0, 1000, 2000, 3000, 4000)
NEAR = 2.0  # a cell within this factor of a border is not away from it
FACTOR = 1.5  # by which a predicted border may miss the measured one


def real(name: str) -> str:
    """A data file below KONTRAST_DATA."""
    folder = os.environ.get("KONTRAST_DATA")
    if folder is None:
        raise SystemExit(f"set KONTRAST_DATA to the folder that holds {name}")
    return str(Path(folder) / name)


class Studies:
    """Runs studies into one folder, and tells how long each took."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder, self.workers = folder, workers

    def find(self, **fields: Any) -> tuple[Findings, xr.Dataset, float]:
        """The findings of a spec, its numbers, and the seconds that its cells took now."""
        began = time.monotonic()
        spec = kt.study.prepare(StudySpec(**fields))
        result = kt.study.run_study(spec, self.folder / spec.name, workers=self.workers)
        found = kt.study.find(result)
        print(f"\n{spec.name}: {time.monotonic() - began:.0f} s\n{found.verdict}")
        return found, result, time.monotonic() - began


def cells_of(found: Findings, loss: str | None = None) -> tuple[MapCell, ...]:
    assert found.map is not None
    return found.map.cells if loss is None else found.map.panel(loss)


def count(cells: Sequence[MapCell], regime: Regime) -> int:
    return sum(cell.regime is regime and cell.sure for cell in cells)


def default(studies: Studies, options: argparse.Namespace) -> list[Requirement]:
    """The default study; `kontrast study` adds the start of Python and the page, a few seconds."""
    found, result, seconds = studies.find()
    learning = [c for c in cells_of(found) if c.regime is Regime.LEARNING and c.gains["kernel"].low > 0]
    print(f"gain over the closed form: {found.map.setting.gains['closed form'].in_points()}")
    arrived = float(result.pca_angle_frozen.isel(pca_step=-1).mean("seed").max())
    return [
        Requirement("seconds", seconds, 150, at_least=False),
        Requirement("cells surely kernel", count(cells_of(found), Regime.KERNEL), 1, at_least=True),
        Requirement("cells surely learning, above their kernel twin", len(learning), 1, at_least=True),
        Requirement("cells that diverged under dot", count(cells_of(found, "dot"), Regime.DIVERGED), 1, at_least=True),
        Requirement("sine of the frozen twin to PCA, largest over the widths", arrived, 0.05, at_least=False),
    ]


def away(cell: MapCell, found: Findings) -> bool:
    """Whether a cell is further than a factor of `NEAR` from every border at its width."""
    borders = [it for it in found.map.borders if it.loss == cell.loss]
    places = [rate for it in borders for size, rate in zip(it.sizes, it.rates, strict=True) if size == cell.size]
    return all(abs(math.log(cell.rate / rate)) > math.log(NEAR) for rate in places)


def seeds(studies: Studies, options: argparse.Namespace) -> list[Requirement]:
    """The regimes of the default map from different base seeds."""
    runs = [studies.find(seed=seed, full_batch=False)[0] for seed in BASE_SEEDS]
    rows, changed, compared = [], 0, 0
    for cells in zip(*(cells_of(found) for found in runs), strict=True):
        inside = [cell for cell, found in zip(cells, runs, strict=True) if away(cell, found)]
        if len(inside) == len(runs):
            compared += 1
            changed += len({cell.regime for cell in inside}) > 1
        rows.append(
            (
                f"{cells[0].loss} {cells[0].width} {cells[0].rate:g}",
                *(c.regime.word + "?" * (not c.sure) for c in cells),
            )
        )
    print_table("regimes", ("cell", *map(str, BASE_SEEDS)), rows)
    print(f"{compared} of {len(rows)} cells are away from the borders in all runs")
    return [
        Requirement("cells that are compared", compared, 1, at_least=True),
        Requirement("cells away from the borders whose regime changes", changed, 0, at_least=False),
    ]


def borders(studies: Studies, options: argparse.Namespace) -> list[Requirement]:
    """The borders of kernel and of settling from every second width, held against the widths between, both ways."""
    rows, requirements = [], []
    for data in ("mnist5k", "digits", real("fashion_mnist_subset.npz")):
        found, _, _ = studies.find(
            data=data,
            losses=("nt_xent",),
            widths=(64, 128, 256, 512, 1024, 2048),
            n_probe_samples=0,
            full_batch=False,
            n_seeds=8 if data == "digits" else 4,
        )
        for name in ("kernel", "settled"):
            misses = list(missed(found, name))
            rows += [(Path(data).stem, name, *map(str, place)) for place in misses]
            worst = max(factor for *_, factor in misses)
            requirements.append(Requirement(f"{Path(data).stem}, {name}: worst factor", worst, FACTOR, at_least=False))
    print_table("borders from the other half of the widths", ("", "", "width", "rate", "predicted", "factor"), rows)
    return requirements


def missed(found: Findings, name: str) -> Iterator[tuple[int, float, float, float]]:
    """Every width with its rate on a border, the rate by the law of the other half of the widths, and their ratio."""
    border, widths = found.map.border("nt_xent", name), sorted({cell.size for cell in cells_of(found)})
    assert border is not None
    for first in (0, 1):
        half = [cell for cell in cells_of(found) if cell.size in widths[first::2]]
        law = next(it.law for it in borders_of(half, found.thresholds, found.spec.max_steps) if it.name == name)
        for size, rate in zip(border.sizes, border.rates, strict=True):
            if size not in widths[first::2]:
                factor = math.exp(abs(math.log(law(size) / rate)))
                yield size, float(f"{rate:.3g}"), float(f"{law(size):.3g}"), float(f"{factor:.3g}")


def convnet(studies: Studies, options: argparse.Namespace) -> list[Requirement]:
    """A user's network in a file."""
    found, _, seconds = studies.find(
        data=real("cifar10_subset.npz"),
        model=f"{ROOT / 'examples' / 'convnet.py'}:build",
        losses=("nt_xent",),
        widths=(16, 32, 64, 128),
        rates=(0.3, 1.0, 3.0, 10.0, 30.0),
        optimizer="adam",
        max_steps=100,
        n_seeds=3,
    )
    print_cells(found)
    return [Requirement("seconds", seconds, 300, at_least=False)]


def mnist(studies: Studies, options: argparse.Namespace) -> list[Requirement]:
    """All of MNIST on a GPU; small cells are batched over seeds and rates."""
    found, _, seconds = studies.find(
        data=real("mnist.npz"),
        split="all",
        device=options.device,
        losses=("nt_xent",),
        widths=tuple(2**k for k in range(7, 15)),
        rates=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0),
        n_seeds=3,
        max_steps=1000,
        batch_size=256,
        d_out=32,
        full_batch=False,
    )
    print_cells(found)
    return [Requirement("seconds", seconds, 240, at_least=False)]


def print_cells(found: Findings) -> None:
    widths = [str(width) for width in sorted({cell.size for cell in cells_of(found)})]
    rows = []
    for rate, cells in itertools.groupby(sorted(cells_of(found), key=lambda c: (-c.rate, c.size)), lambda c: c.rate):
        rows.append(
            (f"{rate:g}", *(f"{c.regime.word}{'' if c.sure else '?'} {c.numbers['map_gap'].mean:.2f}" for c in cells))
        )
    print_table("regime and kernel gap, by rate and width", ("", *widths), rows)


PARTS: dict[str, Callable[[Studies, argparse.Namespace], list[Requirement]]] = {
    it.__name__: it for it in (default, seeds, borders, convnet, mnist)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--output", type=Path, default=Path("kontrast-studies"))
    options = parser.parse_args()
    workers = options.workers if options.device == "cpu" else 0
    studies = Studies(options.output, workers)
    requirements = [it for part in options.parts for it in PARTS[part](studies, options)]
    print_requirements(requirements)


if __name__ == "__main__":
    main()
