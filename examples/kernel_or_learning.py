"""One network, three fates: trained, linearised, and replaced by its fixed kernel.

    python examples/kernel_or_learning.py

Gradient descent on the linearised network and the fixed-kernel descent of paper A's Lemma 9 agree to rounding; their
distance from the trained network is what no kernel explains, and it shrinks as the network widens.
"""

from __future__ import annotations

import torch

import kontrast as kt


def gaps(width: int, seed: int) -> list[float]:
    """Relative distance from the fixed-kernel outputs of the trained and of the linearised network."""
    generator = torch.Generator().manual_seed(seed)
    data = kt.load("digits", dtype=torch.float64).subsample(20, generator=generator)
    pairs = kt.data.make_pairs(data.x, views=kt.data.default_view(data), generator=generator)
    loss = kt.losses.ContrastiveLoss(kt.losses.Cosine(delta=0.01), kt.losses.Linear())
    problem = kt.dynamics.contrastive_problem(pairs, loss)
    options = {"learning_rate": 0.1, "n_steps": 60}

    net = kt.nets.MLP(64, width, 10, generator=generator, dtype=torch.float64)
    linear = kt.nets.Linearized.of(net)
    trained = kt.dynamics.gradient_descent(kt.nets.pure_function(net), kt.nets.parameters_of(net), problem, **options)
    linearized = kt.dynamics.gradient_descent(linear, linear.origin, problem, **options)
    K = kt.kernels.empirical_ntk(net, problem.inputs)
    kernel = kt.dynamics.fixed_kernel_descent(K, net(problem.inputs).detach(), problem.objective, **options)
    return [
        float((run.final_outputs - kernel.final_outputs).norm() / run.final_outputs.norm())
        for run in (trained, linearized)
    ]


def main() -> None:
    print("width   trained vs kernel   linearised vs kernel   (mean of 4 seeds)")
    for width in (64, 256, 1024):
        mean = torch.tensor([gaps(width, seed) for seed in range(4)]).mean(0).tolist()
        print(f"{width:>5} {mean[0]:>19.4f} {mean[1]:>22.1e}")


if __name__ == "__main__":
    main()
