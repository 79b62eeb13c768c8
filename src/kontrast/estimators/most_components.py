"""A fit for those to whom the number of components does not matter."""

from __future__ import annotations

from typing import Any, TypeVar

from kontrast.errors import TooManyComponentsError
from kontrast.estimators.base import ClosedFormEmbedding

Model = TypeVar("Model", bound=ClosedFormEmbedding)


def fit_most_components(model: Model, X: Any) -> Model:
    """Fit with `n_components`, or with one per positive eigenvalue where there are fewer of them."""
    while True:  # limited by the features, then by positive eigenvalues; each turn asks for fewer
        try:
            return model.fit(X)  # type: ignore[no-any-return]
        except TooManyComponentsError as error:
            if not 1 <= error.most < model.n_components:
                raise
            model.set_params(n_components=error.most)
