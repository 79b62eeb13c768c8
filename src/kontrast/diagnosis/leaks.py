"""What an embedding tells: ridge regression from the embedding to a number, judged on samples it has not seen."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from kontrast.diagnosis.intervals import jackknifed
from kontrast.linalg import Estimate

FOLDS = 5
# As shares of the trace of the kernel: from almost no ridge to one that leaves nothing but the mean.
RIDGES = tuple(10.0 ** (power / 2) for power in range(-20, 3))


def explained(features: Tensor, targets: Mapping[str, Tensor], *, seed: int = 0) -> dict[str, Estimate]:
    r"""The share of each target's variance that a linear probe of the features predicts, $R^2$, with its interval.

    Five folds: in each, ridge regression with an intercept learns from four and predicts the fifth, and its ridge is
    the one with the smallest leave-one-out error within the four, in closed form:
    $(y_i - \hat y_i) / (1 - h_i)$, $h$ the diagonal of the smoother. Then
    $R^2 = 1 - \sum_i (y_i - \hat y_i)^2 / \sum_i (y_i - \bar y)^2$ over all samples, $\bar y$ the mean of the four
    folds: 0, or a little below, for a probe that knows nothing. It is what a probe of so many samples finds, and more
    samples may find more. It depends neither on the scale nor on the directions of the features.

    Args:
        features: (n, d), one row per sample.
        targets: Numbers (n,) by name; yes and no count as ±1. None may be constant.
        seed: of the folds.
    """
    Z = features.detach().double()
    Z = Z - Z.mean(0)
    K = Z @ Z.mT
    Y = torch.stack([_as_number(target).to(K.device) for target in targets.values()], dim=1)
    fold = torch.randperm(len(K), generator=torch.Generator().manual_seed(seed)).to(K.device) % FOLDS
    errors, totals = torch.zeros_like(Y), torch.zeros_like(Y)
    for held_out in range(FOLDS):
        train, test = (fold != held_out).nonzero()[:, 0], (fold == held_out).nonzero()[:, 0]
        mean = Y[train].mean(0)
        predicted = mean + _predicted(K[train][:, train], K[test][:, train], Y[train] - mean)
        errors[test], totals[test] = (Y[test] - predicted).square(), (Y[test] - mean).square()
    errors, totals = errors.cpu(), totals.cpu()

    def shares(rows: Tensor) -> dict[str, float]:
        share = 1 - errors[rows].sum(0) / totals[rows].sum(0)
        return dict(zip(targets, share.tolist(), strict=True))

    return jackknifed(shares, len(K), seed=seed)


def _as_number(target: Tensor) -> Tensor:
    if target.dtype == torch.bool:
        return 2 * target.double() - 1
    deviation = target.double().std()
    return (target.double() - target.double().mean()) / deviation


def _predicted(K: Tensor, K_cross: Tensor, Y: Tensor) -> Tensor:
    """Predictions (m, k) of centred targets Y (n, k), each column by its own ridge."""
    K_cross = K_cross - K_cross.mean(1, keepdim=True) - K.mean(0) + K.mean()
    K = K - K.mean(0) - K.mean(1, keepdim=True) + K.mean()
    eigenvalues, U = torch.linalg.eigh(K)
    eigenvalues = eigenvalues.clamp(min=0)
    trace = eigenvalues.sum()
    if float(trace) == 0:  # equal rows predict the mean
        return torch.zeros(len(K_cross), Y.shape[1], dtype=Y.dtype, device=Y.device)
    ridges = trace * torch.tensor(RIDGES, dtype=K.dtype, device=K.device)
    inverse = 1 / (eigenvalues + ridges[:, None])  # (r, n)
    coordinates = U.mT @ Y
    fitted = U @ ((eigenvalues * inverse)[:, :, None] * coordinates)  # (r, n, k)
    leverage = 1 / len(K) + (eigenvalues * inverse) @ U.square().mT  # (r, n); the first term is the intercept's
    loo = ((Y - fitted) / (1 - leverage).clamp(min=1e-12)[:, :, None]).square().mean(1)  # (r, k)
    best = loo.argmin(0)
    predicted: Tensor = K_cross @ (U @ (inverse[best].mT * coordinates))
    return predicted
