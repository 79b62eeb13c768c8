"""Is a contrastive network with an orthonormal output layer PCA of its random features, and did its NTK stay put?

    python examples/pca_or_learning.py

The trained subspace meets PCA of C̃(0) as the network widens (paper A, Sec. 4; claim A.pca), and a certificate bounds
every entry of the NTK's change from the two ends of training alone (claim A.cert).
"""

from __future__ import annotations

import torch

import kontrast as kt


def measure(width: int) -> tuple[float, float, kt.lazy.Certificate]:
    """The sine to PCA of C̃(0), its eigengap, and the certificate itself."""
    generator = torch.Generator().manual_seed(0)
    data = kt.load("digits", dtype=torch.float64).subsample(50, generator=generator)
    pairs = kt.data.make_pairs(data.x, views=kt.data.default_view(data), generator=generator)
    net = kt.nets.MLP(64, width, 1, activation="tanh", generator=generator, dtype=torch.float64)

    S = kt.data.pair_matrix(pairs)
    pca = kt.pca.contrastive_pca(kt.pca.pair_features(net, pairs.rows, delta=0.01), S, n_components=1)
    trained = kt.pca.train_pca_network(net, pairs, delta=0.01, learning_rate=1.0, n_steps=200).final_parameters
    sine = float(kt.linalg.subspace_sines(trained["output"], pca.frame)[0])

    start = kt.pca.orthonormal_start(net)
    certificate = kt.lazy.ntk_certificate(net, start, trained, pairs.rows[:10])
    return sine, pca.gap, certificate


def main() -> None:
    print("width   sine to PCA of C(0)   eigengap   NTK moved   certified")
    for width in (64, 256, 1024):
        sine, gap, certificate = measure(width)
        print(f"{width:>5} {sine:>21.4f} {gap:>10.4f} {certificate.measured:>11.2e} {certificate.value:>11.2e}")


if __name__ == "__main__":
    main()
