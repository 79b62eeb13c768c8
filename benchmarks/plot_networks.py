"""Time against n of the networks' trace kernels: a panel for each network, a row of panels for each machine.

    .venv/bin/python benchmarks/plot_networks.py networks.svg "two CPU cores=cpu.json" "one H200=gpu.json"

The files are what `kernels.py` and `kernels_gpu.py` write with --json.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from networks import NETWORKS
from torch_func import JACOBIAN

Rows = Sequence[Mapping[str, Any]]
TITLES = {"resnet18": "ResNet-18", "vit": "vision transformer", "convnet": "ConvNet"}
SIDES = {"kontrast": "kontrast", JACOBIAN: "torch.func, vmap(jacrev)"}  # as measured, and as drawn


def draw(machines: Mapping[str, Rows], file: Path) -> None:
    """Draw the measurements of each machine as PNG or SVG; those of other cases, and what did not run, are left out."""
    from matplotlib.figure import Figure  # here: a GPU machine may have torch and this repository alone

    from kontrast.report.axes import BLUE, ORANGE, PRINT_INK, dress_log_y, dress_width, style

    with style(PRINT_INK, salt="networks"):
        figure = Figure(figsize=(9.6, 0.5 + 2.7 * len(machines)), layout="constrained")
        panels = figure.subplots(len(machines), len(NETWORKS), squeeze=False)
        for across, (machine, rows) in zip(panels, machines.items(), strict=True):
            for ax, network in zip(across, NETWORKS, strict=True):
                lines = {side: times(rows, network, side) for side in SIDES}
                for (side, line), color in zip(lines.items(), (BLUE, ORANGE), strict=True):
                    ax.plot(line.keys(), line.values(), "o-", color=color, markersize=4, label=SIDES[side])
                ax.set_title(TITLES[network])
                dress_width(ax, sorted({n for line in lines.values() for n in line}) or [1])
                ax.set_xlabel("n")
                dress_log_y(ax, np.array([t for line in lines.values() for t in line.values()]))
            across[0].set_ylabel(f"seconds, {machine}")
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(SIDES))
        figure.savefig(file, dpi=150, metadata={"Date": None} if file.suffix == ".svg" else None)


def times(rows: Rows, network: str, side: str) -> dict[int, float]:
    """Seconds of a warm call by n."""
    found = {}
    for row in rows:
        median = row.get("median")
        if (row.get("network"), row.get("side")) == (network, side) and median is not None and not math.isnan(median):
            found[row["n"]] = median / 1e3 if "milliseconds" in row else median
    return dict(sorted(found.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="the picture, .png or .svg")
    parser.add_argument("machines", nargs="+", metavar="MACHINE=JSON", help="a name and what was measured there")
    options = parser.parse_args()
    named = [machine.partition("=") for machine in options.machines]
    draw({name: json.loads(Path(json_file).read_text())["measurements"] for name, _, json_file in named}, options.file)


if __name__ == "__main__":
    main()
