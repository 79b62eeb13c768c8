"""Is the trained embedding PCA of its start? Its span beside that of contrastive closed forms of the first features."""

from __future__ import annotations

import torch
import xarray as xr
from torch import Tensor, nn

from kontrast.diagnosis.inputs import State
from kontrast.diagnosis.quantities import MISSING, Quantity, described, plain, stacked
from kontrast.diagnosis.subject import Subject
from kontrast.errors import InputError
from kontrast.linalg import subspace_sines
from kontrast.nets import MLP, last_features
from kontrast.pca import ViewMoments, contrastive_pca, whitened_pca

SAMPLES_PER_DIMENSION = 3  # below which spans of so few samples overlap by chance
RIDGE = 1e-4  # of the whitened closed form, as a share of the total variance

SINE = Quantity(
    "pca_sine",
    "sine to PCA of the start",
    "root mean square sine of the angles between the span of the trained embedding over clean samples, centred, and "
    "that of contrastive PCA (paper A) of the features at the start, or of its whitened form: the smaller of the two.",
)


def measure(subject: Subject) -> tuple[xr.Dataset, dict[str, str]]:
    """The sine at the end, and why it is missing."""
    try:
        sine, why = plain(_sine(subject)), {}
    except InputError as error:
        sine, why = MISSING, {SINE.name: str(error)}
    return xr.Dataset({SINE.name: ("bound", stacked([sine])[0], described(SINE))}), why


def _sine(subject: Subject) -> float:
    n, d = len(subject.x), subject.encoder.embed(subject.end, subject.x[:2]).shape[1]
    if n < SAMPLES_PER_DIMENSION * d:
        raise InputError(f"{n} samples are too few to compare spans of {d} dimensions; raise n_samples")
    a, b = (features_into_head(subject, subject.start, view) for view in subject.pair)
    outputs = subject.encoder.embed(subject.end, subject.x).double()
    outputs = outputs - outputs.mean(0)
    center = torch.cat([a, b]).mean(0)
    phi = features_into_head(subject, subject.start, subject.x) - center
    if phi.shape[1] <= d:
        raise InputError(f"the {phi.shape[1]} features at the start span all {d} dimensions, so any head is their PCA")
    frames = [_contrastive(a - center, b - center, d), _whitened(a - center, b - center, d)]
    whole = [frame for frame in frames if frame.shape[1] == d]
    if not whole:
        raise InputError(f"the features at the start vary in fewer than {d} directions")
    return min(float(subspace_sines(outputs, phi @ frame).square().mean().sqrt()) for frame in whole)


def features_into_head(subject: Subject, state: State, x: Tensor) -> Tensor:
    """What enters the last linear layer of the model, as rows."""
    encoder = subject.encoder
    if isinstance(encoder.module, MLP):
        return last_features(encoder.module)(encoder.parameters(state), x).double().detach()
    linear = [part for part in encoder.module.modules() if isinstance(part, nn.Linear)]
    seen: list[Tensor] = []
    hooks = [part.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach())) for part in linear]
    made = []
    try:
        for rows in torch.split(x, 256):
            seen.clear()
            encoder.embed(state, rows)
            if not seen or seen[-1].ndim != 2 or len(seen[-1]) != len(rows):
                raise InputError("the model has no last linear layer over rows, so no features that enter it")
            made.append(seen[-1])
    finally:
        for hook in hooks:
            hook.remove()
    return torch.cat(made).double()


def _contrastive(a: Tensor, b: Tensor, d: int) -> Tensor:
    """Directions in which the views of a sample agree and those of different samples do not."""
    n = len(a)
    attract, S = torch.eye(n) - torch.ones(n, n) / n, torch.zeros(2 * n, 2 * n, dtype=torch.float64)
    S[:n, n:] = attract / (2 * n)
    return contrastive_pca(torch.cat([a, b]), (S + S.mT).to(a.device), d).frame


def _whitened(a: Tensor, b: Tensor, d: int) -> Tensor:
    moments = ViewMoments(a.shape[1], a.device)
    moments.update([a, b])
    covariance, between = moments.covariances()
    return whitened_pca(between, covariance, d, ridge=RIDGE, allow_fewer=True).frame
