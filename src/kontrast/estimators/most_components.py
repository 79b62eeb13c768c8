"""A fit for those who do not care how many components they get."""

from __future__ import annotations

import re
from typing import Any, TypeVar

from kontrast.errors import InputError
from kontrast.estimators.base import ClosedFormEmbedding

Model = TypeVar("Model", bound=ClosedFormEmbedding)
# What the solvers say of the most that there are: positive eigenvalues, features, or points in the pairs.
_MOST = re.compile(
    r"n_components.*(?:only (\d+) (?:eigenvalues are positive|features|points)|from 1 to the (\d+) features)"
)


def fit_most_components(model: Model, X: Any) -> Model:
    """Fit with `n_components`, or with as many as there are positive eigenvalues where they are fewer."""
    for _ in range(4):  # fewer features, then fewer positive ones, then rounding at the last
        try:
            return model.fit(X)  # type: ignore[no-any-return]
        except InputError as error:
            match = _MOST.search(str(error))
            most = 0 if match is None else int(match[1] or match[2])
            if not 1 <= most < model.n_components:
                raise
            model.set_params(n_components=most)
    return model.fit(X)  # type: ignore[no-any-return]
