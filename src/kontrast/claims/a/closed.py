"""Claim A.closed: dot product, linear link and a fixed NTK have a closed form."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from kontrast.claims.evidence import Evidence, Verdict, judged, printed
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, largest, loss_of
from kontrast.data import pair_matrix
from kontrast.dynamics import contrastive_problem, fixed_kernel_descent, fixed_kernel_flow
from kontrast.kernels import empirical_ntk, infinite_ntk
from kontrast.lazy import dot_product_descent, dot_product_flow


@claim(
    "A.closed",
    source="Beyond paper A (Remark 14)",
    title="Dot product, linear link and a fixed NTK have a closed form",
    printed="vec F(t) = exp(2tK(S ⊗ I)) vec F(0) for the flow, (I + 2ηK(S ⊗ I))^t vec F(0) for descent; "
    "paper A says that there may be no closed form.",
    recorded=Verdict.HOLDS,
)
def closed_form(setting: Setting) -> Evidence:
    """Compare the closed form with simulated descent and an ODE solver, for the finite and the infinite kernel."""
    setting = replace(setting, device="cpu")  # an ODE of 64 numbers is slower on a GPU
    worst = {"descent": 0.0, "flow": 0.0}
    for seed in setting.seeds(quick=2):
        pairs = setting.pairs(8, seed=seed)
        net = setting.net(pairs.x, 256, 4, seed=seed)
        problem, S = contrastive_problem(pairs, loss_of("dot")), pair_matrix(pairs)
        start = net(problem.inputs).detach()
        for kernel in (empirical_ntk(net, problem.inputs), infinite_ntk(problem.inputs)):
            rate = 0.05 / _largest(kernel)
            steps = [1, 10, 100]
            run = fixed_kernel_descent(
                kernel, start, problem.objective, learning_rate=rate, n_steps=100, record_at=steps, keep_outputs=True
            )
            assert run.outputs is not None
            found = dot_product_descent(kernel, start, S, learning_rate=rate, steps=steps)
            worst["descent"] = largest(worst["descent"], _distance(found, run.outputs))
            times = [10 * rate, 100 * rate]
            flow = fixed_kernel_flow(kernel, start, problem.objective, times=times, tolerance=1e-12)
            worst["flow"] = largest(worst["flow"], _distance(dot_product_flow(kernel, start, S, times=times), flow))
    return judged(
        printed("descent_error", worst["descent"], "the closed form is descent with a fixed kernel", high=1e-10),
        printed("flow_error", worst["flow"], "the closed form is the flow", high=1e-8),
        setting={"n_samples": 8, "width": 256, "d_out": 4},
    )


def _largest(kernel: Tensor) -> float:
    return float(kernel.diagonal(dim1=0, dim2=1).abs().max())


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())
