"""The pairs of a pool as one sparse matrix, in which the linear loss is a quadratic form of the outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from kontrast.checks import require_floating
from kontrast.data.pairs import Pairs
from kontrast.errors import InputError


def pair_matrix(pairs: Pairs, *, symmetric: bool = True) -> Tensor:
    r"""$S = \frac1N \sum_n [\sum_p e_{np} e_n^\top - \sum_q w_q e_{nq} e_n^\top]$, (m, m) over the pool, sparse.

    The weights of paper A, (6), without the network: for `ContrastiveLoss(Dot(), Linear())` the loss of outputs F
    (m, z) over the pool is −Tr(F^T S F), so that $C_V = \Phi^\top S \Phi$ is the matrix of (8), and of (10) where the
    features Φ are normalised. Pairs that occur more than once add up; shared negatives and weights are respected.

    Args:
        pairs: N anchors with their positives and negatives, over a pool of m points.
        symmetric: (S + S^T)/2, the S of $\tilde C_V$, equal to its transpose to the last bit; False keeps anchors in
            the columns and their partners in the rows.

    Returns:
        A coalesced sparse COO tensor in the number type and on the device of `pairs.x`.
    """
    n, m = pairs.n_anchors, len(pairs.x)
    if n == 0:
        raise InputError("there are no anchors, so the mean over pairs is not defined; pass at least 1")
    require_floating("pairs.x", pairs.x, 'use pairs.to(dtype="float64")')
    anchor = pairs.anchor[:, None]  # (n, 1)
    positive, negative = pairs.positive, pairs.negative.expand(n, -1)  # (n, P), (n, Q)
    attraction = pairs.x.new_full(positive.shape, 1 / n)
    repulsion = pairs.x.new_full(negative.shape, -1 / n)
    if pairs.negative_weight is not None:
        repulsion = repulsion * pairs.negative_weight
    rows = torch.cat([positive.reshape(-1), negative.reshape(-1)])
    columns = torch.cat([anchor.expand_as(positive).reshape(-1), anchor.expand_as(negative).reshape(-1)])
    values = torch.cat([attraction.reshape(-1), repulsion.reshape(-1)])
    kept = values != 0  # a weight of 0 leaves a shared negative out
    S = _sparse(torch.stack([rows[kept], columns[kept]]), values[kept], m)
    if not symmetric:
        return S
    # From the coalesced S: each entry is then one sum s_ij + s_ji, the same number for (i, j) and (j, i).
    both = torch.cat([S.indices(), S.indices().flip(0)], dim=1)
    return _sparse(both, torch.cat([S.values(), S.values()]) / 2, m)


def _sparse(indices: Tensor, values: Tensor, m: int) -> Tensor:
    # The indices come from Pairs, which has checked them, so torch need not; by default it warns that it does not.
    with torch.sparse.check_sparse_tensor_invariants(enable=False):  # type: ignore[no-untyped-call]
        return torch.sparse_coo_tensor(indices, values, (m, m)).coalesce()
