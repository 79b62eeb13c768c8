"""What a linear network learns, and when: a network in training, and its embedding predicted without training.

    python examples/deep_linear_ssl.py

A network of 80 hidden units and orthonormal layers brings 8 × 8 digits closer to noisy copies than to other digits. At
every time `DeepLinearSSL` gives the outputs that projected gradient descent reaches, up to the size of its steps (paper
B, Theorem 2, as corrected for that projection). By its five outputs digits are told apart better and better.
"""

from __future__ import annotations

import math

import torch

import kontrast as kt

RATE = 0.005  # of the training; the flow has none
TIMES = (0.0, 0.1, 0.3, 1.0, 3.0)


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    digits = kt.load("digits", dtype=torch.float64).subsample(800, generator=generator)
    pairs = kt.data.make_pairs(digits.rows, views=kt.data.GaussianNoise(0.1), generator=generator)
    x, positives, negatives = (pairs.rows[i] for i in (pairs.anchor, pairs.positive[:, 0], pairs.negative[:, 0]))
    net = kt.nets.MLP(
        64, 80, 5, activation="linear", parametrization="orthogonal", generator=generator, dtype=torch.float64
    )
    start = net(torch.eye(64, dtype=torch.float64)).detach()
    C = kt.deep_linear.data_matrix(pairs) / pairs.n_anchors  # of the mean loss
    _, basis = torch.linalg.eigh(C)

    print("time   loss   trained   largest difference   5-NN accuracy")
    for time in (*TIMES, math.inf):
        model = kt.estimators.DeepLinearSSL(5, time=time, flow="polar", start=start, center=False)
        model.fit_pairs(x, positives, negatives)
        z = model.transform(x)
        accuracy = kt.estimators.knn_probe(z[:600], digits.y[:600], z[600:], digits.y[600:], k=5)
        beside = f"{'–':>9} {'–':>20}"
        if time < math.inf:
            run = kt.deep_linear.train_deep_linear(net, C, learning_rate=RATE, n_steps=round(time / RATE), flow="polar")
            difference = float((x @ basis @ run.final_outputs - z).abs().max())
            beside = f"{float(run.losses[-1]):>9.3f} {difference:>20.4f}"
        print(f"{time:>4} {model.loss_:>6.3f} {beside} {accuracy:>15.3f}")


if __name__ == "__main__":
    main()
