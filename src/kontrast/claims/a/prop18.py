"""Claim A.prop18: equal columns of W(0) give equal outputs forever."""

from __future__ import annotations

import math

import torch

from kontrast.claims.a.runs import RATE, dot_rate, train
from kontrast.claims.evidence import Evidence, Verdict, corrected, judged, printed
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, largest, loss_of
from kontrast.dynamics import contrastive_problem, fixed_kernel_descent
from kontrast.kernels import empirical_ntk, infinite_ntk


@claim(
    "A.prop18",
    source="Paper A, Prop. 18",
    title="Equal columns of W(0) give equal outputs forever",
    printed="W_i(0) = W_j(0) implies f_i(x; t) = f_j(x; t) for every t and x, under both similarities and under K*.",
    corrected="The result is exact. The step K_ip = K_jp of its proof is wrong (they differ for p = i and p = j), but "
    "the gradients of W_i and W_j agree without it.",
    recorded=Verdict.HOLDS,
)
def proposition_18(setting: Setting) -> Evidence:
    """Train from W with two equal columns, and compare the kernel entries that the proof calls equal."""
    found, proof_step = {"outputs_dot": 0.0, "outputs_cosine": 0.0, "outputs_limit": 0.0}, math.inf
    for seed in setting.seeds(quick=2):
        pairs = setting.pairs(10, seed=seed)
        net = setting.net(pairs.x, 64, 4, seed=seed)
        with torch.no_grad():
            net.output[:, 1] = net.output[:, 0]
        # Under the dot product longer runs diverge, and the difference of two infinities says nothing.
        for similarity, rate, n_steps in (("dot", dot_rate(setting) / 8, 20), ("cosine", RATE, 100)):
            problem = contrastive_problem(pairs, loss_of(similarity))
            run = train(net, problem, [n_steps], learning_rate=rate)
            K, start = infinite_ntk(problem.inputs), net(problem.inputs).detach()
            limit = fixed_kernel_descent(K, start, problem.objective, learning_rate=rate, n_steps=n_steps)
            for name, f in ((f"outputs_{similarity}", run.final_outputs), ("outputs_limit", limit.final_outputs)):
                found[name] = largest(found[name], float((f[:, 0] - f[:, 1]).abs().max() / f.abs().max()))
        K = empirical_ntk(net, pairs.rows)
        proof_step = min(proof_step, float((K[:, :, 0, 0] - K[:, :, 1, 0]).abs().max() / K.abs().max()))
    return judged(
        printed("outputs_dot", found["outputs_dot"], "f_i = f_j after 20 steps, dot product", high=1e-12),
        printed("outputs_cosine", found["outputs_cosine"], "f_i = f_j after 100 steps, cosine", high=1e-12),
        printed("outputs_limit", found["outputs_limit"], "f_i = f_j after as many steps under K*", high=1e-12),
        corrected("proof_step", proof_step, "K_ip and K_jp differ, contrary to the proof", low=1e-3),
        setting={"n_samples": 10, "width": 64, "d_out": 4, "n_steps": "20 and 100"},
    )
