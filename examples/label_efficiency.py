"""Which labels does a representation make learnable, and from how many of them? Asked before any probe is trained.

    python examples/label_efficiency.py

Small digits seen by four kernels: their pixels, the NTK of an infinitely wide network, random features, and a
contrastive embedding in closed form. For each: the predicted error and accuracy of ridge regression from 20 to 500
labels, the same measured, and how many labels an error of a quarter of the labels' variance takes.
"""

from __future__ import annotations

import kontrast as kt
from kontrast import KernelLearnability, SpectralContrastive

SIZES = [20, 100, 500]


def main() -> None:
    data = kt.load("digits")
    x, y = data.x[:1000], data.y[:1000]
    contrasted = data.x[1000:]  # no labels, and none of the digits that are judged
    models = {
        "pixels": KernelLearnability("linear"),
        "infinite NTK": KernelLearnability("ntk"),
        "random features": KernelLearnability("linear", features=kt.nets.MLP(64, 1024, 32)),
        "contrastive": KernelLearnability("linear", features=SpectralContrastive(32, width=1024).fit(contrasted)),
    }
    print(f"{'':<16}" + "".join(f"{f'{n} labels':>26}" for n in SIZES) + f"{'error 0.25 needs':>20}")
    for name, model in models.items():
        model.fit(x, y)
        predicted, measured = model.learning_curve(SIZES, by="points"), model.measure(SIZES, n_draws=5)
        cells = [
            f"{predicted.accuracy[k]:.0%} ({measured.accuracy[k]:.0%}), "
            f"{predicted.test_error[k]:.2f} ({measured.test_error[k]:.2f})"
            for k in range(len(SIZES))
        ]
        needed = model.samples_needed(0.25).n_samples
        print(f"{name:<16}" + "".join(f"{cell:>26}" for cell in cells) + f"{needed if needed else 'never':>20}")
    print("\naccuracy predicted (measured), error predicted (measured)")
    ntk = models["infinite NTK"]
    curve = ntk.learning_curve([100], by="points")
    easy, hard = curve.test_error_by_target[0].argmin(), curve.test_error_by_target[0].argmax()
    print(f"from 100 labels the NTK learns {ntk.classes_[easy]} best and {ntk.classes_[hard]} worst, it says")


if __name__ == "__main__":
    main()
