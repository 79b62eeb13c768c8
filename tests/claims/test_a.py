"""Every claim of paper A notices when the code it rests on is broken."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from kontrast.claims import select
from kontrast.claims.a import (
    cert,
    closed,
    eq9,
    fig1,
    fig5,
    forever,
    inf,
    init,
    lem7,
    lem8,
    lem9,
    lem11,
    lem12,
    lem16,
    lem17,
    orthonormal,
    pca,
    prop10,
    prop18,
    rem15,
    runs,
    spec,
    thm13,
    trace_identity,
)
from kontrast.estimators import features as estimator_features
from kontrast.estimators import pair_sources
from kontrast.estimators import spectral_contrastive as spectral_estimator
from kontrast.pca import ViewMoments, WhitenedPCA
from tests.claims.breaks import (
    SMALL,
    Break,
    assert_criterion_fails,
    assert_noticed,
    scaled_rate,
    small,
    times,
    with_keyword,
)


def times_a_power_of_the_width(power: float) -> Break:
    """A kernel or a drift with a factor of M too many; the width is the net's, or the features' last size."""

    def broken(real: Any) -> Any:
        def wrapped(first: Any, *args: Any, **kwargs: Any) -> Any:
            width = first.width if hasattr(first, "width") else first.shape[-1]
            return width**power * real(first, *args, **kwargs)

        return wrapped

    return broken


def scaled_bound(factor: float) -> Break:
    """A bound with a factor lost."""
    return lambda real: lambda *a, **k: dataclasses.replace(real(*a, **k), value=factor * real(*a, **k).value)


def wider_is_faster(real: Any) -> Any:
    """A learning rate that forgets the 1/M of the gradient."""
    return lambda net, *a, **k: real(net, *a, **{**k, "learning_rate": net.width / 8 * k["learning_rate"]})


def smallest_eigenvalues(real: Any) -> Any:
    """The wrong end of the spectrum."""
    return lambda features, S, n_components: real(features, -S, n_components)


def twice_the_slope(real: Any) -> Any:
    """The blow-up time with 16C in the place of 8C."""
    return lambda w, v, slope: real(w, v, 2 * slope)


def rolled_outputs(real: Any) -> Any:
    """Outputs handed back in another order."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        run = real(*args, **kwargs)
        return dataclasses.replace(run, final_outputs=run.final_outputs * run.final_outputs.new_tensor([1, 1.5, 1, 1]))

    return wrapped


def halved_certificate(real: Any) -> Any:
    """A bound of half the size."""
    return lambda *a, **k: dataclasses.replace(real(*a, **k), bound=0.3 * real(*a, **k).bound)


def as_dot(real: Any) -> Any:
    """The dot product where cosine was asked for, and the other way round."""
    other = {"cosine": "dot", "dot": "cosine"}
    return lambda similarity, *args, **kwargs: real(other[similarity], *args, **kwargs)


def tiny_logarithm(real: Any) -> Any:
    """1/bound."""
    return lambda *a, **k: dataclasses.replace(real(*a, **k), log10=-real(*a, **k).log10)


def growing(real: Any) -> Any:
    """A change that never stops to grow."""
    return lambda net, pairs: lambda now: now.step * real(net, pairs)(now)


def five_times_as_far(real: Any) -> Any:
    """Units that are said to shift five times as far as they do."""
    return lambda net, pairs: lambda now: 5 * real(net, pairs)(now)


def unscaled(real: Any) -> Any:
    """Inputs that keep the norm they have."""
    return lambda pairs, **changes: pairs


def without_norms(real: Any) -> Any:
    """The kernel of the dot product where that of the cosine was asked for."""
    return lambda kernel, delta: kernel


def without_negatives(real: Any) -> Any:
    """Positives attract, and nothing repels."""
    return lambda pairs: real(dataclasses.replace(pairs, negative=pairs.negative[:, :0], negative_weight=None))


def without_correction(real: Any) -> Any:
    """The covariance G of the views' means in the place of B, which it exceeds by what v draws of a view vary."""

    def covariances(self: Any) -> Any:
        sigma, between = real(self)
        return sigma, between + (sigma - between) / self.n_views

    return covariances


def of_unit_variance(real: Any) -> Any:
    """Heads of the whitened constraint without the lengths √λ."""
    return lambda self, power: self.frame


def orthonormal_heads(real: Any) -> Any:
    """The constraint W^T W = I, up to a factor, in the place of the whitened one."""
    return lambda between, sigma, k, **options: real(
        between, sigma.trace() * torch.eye(len(sigma)).to(sigma), k, **options
    )


def blind(real: Any) -> Any:
    """A probe that looks at no embedding."""
    return lambda *args: 0.9


# claim → (where the name is looked up, the name, how it is broken)
BROKEN: dict[str, tuple[Any, str, Break]] = {
    "A.lem9": (lem9, "empirical_ntk", times(-1)),
    "A.fig1": (fig1, "fixed_kernel_descent", scaled_rate(2)),
    "A.init": (init, "infinite_ntk", times(1.1)),
    "A.prop10": (prop10.BlowUp, "of", twice_the_slope),
    "A.fig2": (runs, "loss_of", as_dot),
    "A.fig3": (runs, "empirical_ntk", times_a_power_of_the_width(0.5)),
    "A.lem7": (lem7, "lemma7", with_keyword(form="printed")),
    "A.lem8": (lem8, "lemma8", scaled_bound(0.01)),
    "A.lem11": (lem11, "lemma11", with_keyword(form="printed")),
    "A.lem12": (lem12, "lemma12", with_keyword(form="printed")),
    "A.thm13": (thm13, "theorem13", tiny_logarithm),
    "A.cert": (cert, "ntk_certificate", halved_certificate),
    "A.eq8": (trace_identity, "pair_matrix", times(-1)),
    "A.eq10": (trace_identity, "pair_matrix", times(-1)),
    "A.eq9": (eq9, "pair_features", times(3)),
    "A.lem16": (lem16, "lemma16", scaled_bound(1e-8)),
    "A.fig4": (orthonormal, "contrastive_drift", times_a_power_of_the_width(0.5)),
    "A.lem17": (lem17, "davis_kahan", scaled_bound(1e-3)),
    "A.pca": (pca, "contrastive_pca", smallest_eigenvalues),
    "A.rem15": (rem15, "train_pca_network", wider_is_faster),
    "A.prop18": (prop18, "train", rolled_outputs),
    "A.fig5": (fig5, "contrastive_pca", smallest_eigenvalues),
    "A.closed": (closed, "dot_product_descent", scaled_rate(0.5)),
    "A.variants": (runs, "empirical_ntk", times_a_power_of_the_width(0.75)),
    "A.inf": (estimator_features, "CosineKernel", without_norms),
    "A.spec": (ViewMoments, "covariances", without_correction),
}

# Claims of several parts, each of which has to notice.
BROKEN_ELSEWHERE: list[tuple[str, Any, str, Break]] = [
    ("A.fig3", runs, "unit_shift", five_times_as_far),
    ("A.fig3", runs, "replace", unscaled),
    ("A.inf", pair_sources, "pair_matrix", without_negatives),
    ("A.inf", inf, "contrastive_pca", smallest_eigenvalues),
    ("A.spec", WhitenedPCA, "scaled", of_unit_variance),
    ("A.spec", spectral_estimator, "whitened_pca", orthonormal_heads),
    ("A.spec", spec, "linear_probe", blind),
]


def test_every_claim_is_broken_once() -> None:
    assert BROKEN.keys() | {"A.forever"} == {claim.id for claim in select(["A"])}


@pytest.mark.parametrize("claim_id", BROKEN)
def test_a_broken_implementation_changes_the_verdict(claim_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_noticed(claim_id, *BROKEN[claim_id], monkeypatch, setting=SMALL.get(claim_id))


@pytest.mark.parametrize(
    ("claim_id", "where", "name", "broken"),
    BROKEN_ELSEWHERE,
    ids=[f"{claim_id}-{broken.__name__}" for claim_id, _, _, broken in BROKEN_ELSEWHERE],
)
def test_every_part_of_a_claim_notices(
    claim_id: str, where: Any, name: str, broken: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_noticed(claim_id, where, name, broken, monkeypatch, setting=SMALL[claim_id])


def test_a_change_that_never_stops_growing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The growth of the norms, which takes most of the time, is no part of this."""
    t = np.geomspace(1, 10, 6)
    monkeypatch.setattr(forever, "_norms_under_the_limit", lambda setting: (t, t ** (1 / 3)))
    monkeypatch.setattr(forever, "_norms_of_a_narrow_network", lambda setting: (t, t**0.5))
    setting = small(1, (2000, 1500), ((128, 256, 512), (256, 512)))
    assert_criterion_fails("A.forever", "growth_after_1000", runs, "ntk_change", growing, monkeypatch, setting)
