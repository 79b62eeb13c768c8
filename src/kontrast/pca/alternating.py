"""Paper A, Sec. 5: the trace maximisation (5) in alternation, W by PCA and V by one gradient step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kontrast.checks import require_positive, require_whole
from kontrast.data import Pairs, pair_matrix
from kontrast.dynamics import contrastive_problem
from kontrast.losses import ContrastiveLoss, Dot, Linear
from kontrast.nets import MLP, Parameters
from kontrast.pca.contrastive_pca import contrastive_pca, pair_features, start_of


@dataclass(frozen=True, eq=False)
class Alternation:
    """A finished run. Row t of `losses` and `gaps` belongs to V after t updates, with W from the PCA of its C̃."""

    parameters: Parameters  # V after the last update, and its W
    losses: Tensor  # (n_updates + 1,), float64
    gaps: Tensor  # (n_updates + 1,), λ_Z − λ_(Z+1) of C̃
    warnings: tuple[str, ...] = ()  # of all PCAs, each text once


def alternating_pca(
    net: MLP,
    pairs: Pairs,
    *,
    delta: float | None,
    learning_rate: float,
    n_updates: int,
    start: Mapping[str, Tensor] | None = None,
) -> Alternation:
    r"""The iterative algorithm of paper A, Sec. 5 (ii) and Fig. 5 (right), for the loss (8) or (10).

    Every update (a) sets W to the PCA of $\tilde C_V(t-1)$ and (b) makes one gradient step of the loss
    $-\mathrm{Tr}(W^\top \tilde C_V W)$ in the hidden layers alone. After the last step W is the PCA of the last C̃ too.
    PCA only lowers the loss, so it falls as long as (b) does. Cost of an update: one forward and backward pass through
    the hidden layers and one `contrastive_pca`.

    The net's own parameters are not changed, and its d_out is the number of components. δ = None is the dot product,
    (8). `start` holds other parameters to start from; its W is not used. `n_updates=0` is PCA of C̃(0) alone.
    """
    require_positive(learning_rate=learning_rate)
    n_updates = require_whole("n_updates", n_updates, least=0)
    problem, S = contrastive_problem(pairs, ContrastiveLoss(Dot(), Linear())), pair_matrix(pairs)
    parameters = {name: p.detach().clone() for name, p in start_of(net, start).items()}
    hidden = [p.requires_grad_() for name, p in parameters.items() if name != "output"]
    losses, gaps, warnings = [], [], dict[str, None]()
    for update in range(n_updates + 1):
        with torch.enable_grad():
            features = pair_features(net, problem.inputs, delta=delta, parameters=parameters)
        solution = contrastive_pca(features, S, net.d_out)
        parameters["output"] = solution.frame
        losses.append(-float(solution.values.sum()))
        gaps.append(solution.gap)
        warnings |= dict.fromkeys(solution.warnings)
        if update < n_updates:
            with torch.enable_grad():
                loss = problem.objective(features @ solution.frame)
            with torch.no_grad():
                for V, gradient in zip(hidden, torch.autograd.grad(loss, hidden), strict=True):
                    V.sub_(gradient, alpha=learning_rate)
    return Alternation(
        parameters={name: p.detach() for name, p in parameters.items()},
        losses=torch.tensor(losses, dtype=torch.float64),
        gaps=torch.tensor(gaps, dtype=torch.float64),
        warnings=tuple(warnings),
    )
