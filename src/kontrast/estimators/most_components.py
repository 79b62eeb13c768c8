"""A fit for those who do not care how many components they get."""

from __future__ import annotations

from typing import Any, TypeVar

from kontrast.errors import TooManyComponentsError
from kontrast.estimators.base import ClosedFormEmbedding

Model = TypeVar("Model", bound=ClosedFormEmbedding)


def fit_most_components(model: Model, X: Any) -> Model:
    """Fit with `n_components`, or with as many as there are positive eigenvalues where they are fewer."""
    while True:  # fewer features, then fewer positive eigenvalues; each turn asks for fewer
        try:
            return model.fit(X)  # type: ignore[no-any-return]
        except TooManyComponentsError as error:
            if not 1 <= error.most < model.n_components:
                raise
            model.set_params(n_components=error.most)
