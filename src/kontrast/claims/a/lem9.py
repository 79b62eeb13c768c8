"""Claim A.lem9: in function space, training follows the tangent kernel."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import jvp

from kontrast.claims.evidence import Evidence, Verdict, judged, printed
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, largest, loss_of
from kontrast.dynamics import Problem, contrastive_problem
from kontrast.kernels import empirical_ntk
from kontrast.nets import MLP, parameters_of, pure_function


@claim(
    "A.lem9",
    source="Paper A, Lemma 9",
    title="Training in function space: df/dt = −K ∂L/∂F",
    printed="Under gradient flow the representation of any input moves by the tangent kernel times the loss gradient.",
    recorded=Verdict.HOLDS,
    cost=2,
)
def lemma_9(setting: Setting) -> Evidence:
    """Compare the kernel's prediction with forward-mode differentiation along −∇L, on the pool and at new inputs."""

    def error(activation: str, similarity: str, link: str, depth: int, seed: int) -> float:
        pairs = setting.pairs(8, seed=seed)
        net = setting.net(pairs.x, 64, 5, seed=seed, activation=activation, depth=depth)
        problem = contrastive_problem(pairs, loss_of(similarity, link))
        everywhere = torch.cat([problem.inputs, setting.pairs(4, seed=seed + 1000).x])  # the pool and new inputs
        outputs = net(problem.inputs).detach().requires_grad_()
        (slope,) = torch.autograd.grad(problem.objective(outputs), outputs)
        predicted = -torch.einsum("xyij,yj->xi", empirical_ntk(net, everywhere, problem.inputs), slope)
        actual = _velocity(net, problem, everywhere)
        return float((predicted - actual).abs().max() / actual.abs().max())

    cases = [
        (activation, similarity, link, depth)
        for activation in ("relu", "tanh")
        for similarity in ("dot", "cosine")
        for link in ("linear", "softmax", "log_softmax")
        for depth in (1, 3)
    ]
    worst = largest(*(error(*case, seed) for case in cases for seed in setting.seeds(quick=2)))
    return judged(
        printed("largest_error", worst, "the kernel and automatic differentiation give the same velocity", high=1e-12),
        setting={"n_cases": len(cases), "width": 64},
    )


def _velocity(net: MLP, problem: Problem, x: Tensor) -> Tensor:
    """Velocity J(x)·(−∇L) of the outputs at x under gradient flow, computed without a kernel."""
    function, parameters = pure_function(net), parameters_of(net)
    live = {name: p.clone().requires_grad_() for name, p in parameters.items()}
    loss = problem.objective(function(live, problem.inputs))
    slopes = torch.autograd.grad(loss, list(live.values()))
    descent = {name: -slope for name, slope in zip(live, slopes, strict=True)}
    return jvp(lambda p: function(p, x), (parameters,), (descent,))[1]  # type: ignore[no-any-return]
