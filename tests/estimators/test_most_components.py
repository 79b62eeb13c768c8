from __future__ import annotations

import math

import numpy as np
import pytest

from kontrast.errors import InputError
from kontrast.estimators import ContrastivePCA, DeepLinearSSL, SpectralContrastive, fit_most_components
from tests.cases import randn


@pytest.mark.parametrize(
    "model",
    [
        SpectralContrastive(128, width=16),
        SpectralContrastive(128, width=math.inf),
        ContrastivePCA(128, width=16),
        ContrastivePCA(128),
        DeepLinearSSL(128),
        DeepLinearSSL(128, time=0.5),
    ],
    ids=str,
)
def test_there_are_no_more_components_than_were_fitted(
    model: SpectralContrastive | ContrastivePCA | DeepLinearSSL,
) -> None:
    x = randn(30, 5)
    k = fit_most_components(model, x).n_components
    assert 1 <= k == len(model.eigenvalues_) < 128
    signs = np.sign(model.eigenvalues_)
    if isinstance(model, DeepLinearSSL):  # with a finite time there may be outputs that nothing is learnt for
        assert model.time < math.inf or (signs == -1).all()
    else:
        assert (signs == 1).all()
    with pytest.raises(InputError, match=f"{k}"):
        model.set_params(n_components=k + 1).fit(x)


def test_as_many_as_asked_for_where_there_are_enough() -> None:
    x = randn(100, 5)
    model = fit_most_components(SpectralContrastive(3, width=64), x)
    assert model.n_components == 3
    assert (model.transform(x) == SpectralContrastive(3, width=64).fit_transform(x)).all()


def test_other_mistakes_stay_errors() -> None:
    with pytest.raises(InputError, match="n_views must be"):
        fit_most_components(SpectralContrastive(3, n_views=1), randn(9, 4))
