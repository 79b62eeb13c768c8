"""One training step against the same step written by hand in torch; prints the ratio of the times.

Both sides run in one process, in turns, on the same network, loss and data: paper A's network (2) under the linear
cosine loss. The number asked for is a ratio of at most 1.2.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch

import kontrast as kt


def hand_written(net: kt.nets.MLP, pairs: kt.data.Pairs, rate: float, n_steps: int) -> torch.Tensor:
    """What a careful person writes: leaf tensors, one forward pass, autograd, in-place steps, loss read every step."""
    V, W = (p.detach().clone().requires_grad_() for p in (net.hidden[0], net.output))
    x, n, scale = pairs.rows, pairs.n_anchors, net.width**-0.5
    positive, negative = pairs.positive[:, 0], pairs.negative[:, 0]
    for _ in range(n_steps):
        f = scale * (torch.relu(x @ V.T) @ W)
        u = f / (f.norm(dim=1, keepdim=True) + 0.01)
        loss = (u[:n] * (u[negative] - u[positive])).sum() / n
        if not torch.isfinite(loss):
            break
        gradients = torch.autograd.grad(loss, (V, W))
        with torch.no_grad():
            for p, g in zip((V, W), gradients, strict=True):
                p.sub_(g, alpha=rate)
    return scale * (torch.relu(x @ V.T) @ W).detach()


def kontrast_run(net: kt.nets.MLP, pairs: kt.data.Pairs, rate: float, n_steps: int) -> torch.Tensor:
    loss = kt.losses.ContrastiveLoss(kt.losses.Cosine(0.01), kt.losses.Linear())
    problem = kt.dynamics.contrastive_problem(pairs, loss)
    function, start = kt.nets.pure_function(net), kt.nets.parameters_of(net)
    return kt.dynamics.gradient_descent(function, start, problem, learning_rate=rate, n_steps=n_steps).final_outputs


def seconds(function, *arguments) -> float:
    begin = time.perf_counter()
    result = function(*arguments)
    if result.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="mnist5k")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for width in (64, 256, 1024, 4096):
        for n_samples in (50, 500):
            generator = torch.Generator().manual_seed(0)
            data = kt.data.load(options.data, dtype=torch.float64).subsample(n_samples, generator=generator)
            pairs = kt.data.make_pairs(data.x, views=kt.data.default_view(data), generator=generator).to(options.device)
            net = kt.nets.MLP(
                data.rows.shape[1], width, 10, generator=generator, dtype=torch.float64, device=options.device
            )
            arguments, n_steps = (net, pairs, 0.1), 100 if width * n_samples < 10**5 else 5
            difference = (kontrast_run(*arguments, 5) - hand_written(*arguments, 5)).abs().max()
            assert difference < 1e-10, f"the two sides do not compute the same thing: {difference}"
            pairs_of_times = [
                (seconds(kontrast_run, *arguments, n_steps), seconds(hand_written, *arguments, n_steps))
                for _ in range(options.repeats)
            ]
            ours, theirs = (statistics.median(column) / n_steps for column in zip(*pairs_of_times, strict=True))
            rows.append({"width": width, "samples": n_samples, "kontrast_ms": 1e3 * ours, "torch_ms": 1e3 * theirs})
            rows[-1]["ratio"] = ours / theirs
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'width':>6} {'samples':>8} {'kontrast':>12} {'by hand':>12} {'ratio':>6}   (ms a step, {options.device})")
    for row in rows:
        print(
            f"{row['width']:>6} {row['samples']:>8} {row['kontrast_ms']:>12.3f} {row['torch_ms']:>12.3f} "
            f"{row['ratio']:>6.2f}"
        )
    print(f"worst ratio {max(row['ratio'] for row in rows):.2f}, asked for: at most 1.20")


if __name__ == "__main__":
    main()
