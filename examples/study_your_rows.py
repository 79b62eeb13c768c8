"""A study of your own tabular data: save it as .npz, run, read the verdict.

python examples/study_your_rows.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import kontrast as kt


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 300)
    rows = 3 * np.eye(3)[labels] @ rng.standard_normal((3, 12)) + rng.standard_normal((300, 12))
    np.savez(folder / "rows.npz", x=rows, y=labels)

    spec = kt.study.StudySpec(
        data=str(folder / "rows.npz"),
        views="noise:0.2",
        widths=(16, 32, 64),
        n_seeds=2,
        max_steps=100,
        full_batch=False,  # the map alone
    )
    result = kt.study.run_study(kt.study.prepare(spec), folder / "study")
    findings = kt.study.find(result)
    print(findings.summary)
    print("page:", kt.report.write_report(folder / "study", result, findings))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("my-rows"))
