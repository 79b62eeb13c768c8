"""Claim A.init: at initialisation the NTK converges to its infinite-width limit."""

from __future__ import annotations

import torch

from kontrast.claims.evidence import Evidence, Verdict, judged, printed, shown
from kontrast.claims.panels import width_panel
from kontrast.claims.registry import claim
from kontrast.claims.setting import Setting, geometric, sweep, width_law
from kontrast.kernels import empirical_ntk, infinite_ntk


@claim(
    "A.init",
    source="Paper A, Sec. 2.3",
    title="At initialisation the NTK converges to its infinite-width limit",
    printed="K(0) → K* = E[K] as M → ∞.",
    recorded=Verdict.HOLDS,
    cost=2,
)
def initialization(setting: Setting) -> Evidence:
    """Measure ‖K(0) − K* ⊗ I‖_F / ‖K* ⊗ I‖_F by width; a mean of M independent units converges as M^−1/2."""
    widths = setting.pick(quick=geometric(64, 4096, 4), full=geometric(64, 16384, 4))

    def measure(width: int, seed: int) -> dict[str, float]:
        x = setting.pairs(10, seed=seed).rows
        found = {}
        for activation in ("relu", "tanh"):
            net = setting.net(x, width, 4, seed=seed, activation=activation)
            limit = infinite_ntk(x, activation=activation)
            whole = torch.einsum("xy,ij->xyij", limit, torch.eye(4, dtype=x.dtype, device=x.device))
            found[activation] = float((empirical_ntk(net, x) - whole).norm() / whole.norm())
        return found

    data = sweep(widths, setting.seeds(quick=8, full=12, paper=8), measure)
    laws = {name: width_law(data[name]) for name in ("relu", "tanh")}
    return judged(
        *(
            printed(f"exponent_{name}", law, f"the error falls as M^−1/2 ({name})", low=-0.6, high=-0.4)
            for name, law in laws.items()
        ),
        *shown(error_widest=data.relu.isel(width=-1).values.mean()),
        data=data,
        panels=[
            width_panel(
                "The NTK at initialisation against its limit",
                {name: data[name] for name in laws},
                "‖K(0) − K*‖ / ‖K*‖",
                guides=[-0.5],
            )
        ],
        setting={"n_samples": 10, "d_out": 4},
    )
