"""What a loss says of pairs, whichever embeddings it takes: anchors with positives and negatives, or two views."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from kontrast.checks import in_words, require_callable
from kontrast.data import Pairs
from kontrast.errors import InputError
from kontrast.losses import ContrastiveLoss, LossModule, LossValue, ViewLoss, alignment_loss, moco, supcon, triplet

PairLoss = Callable[[Pairs, Tensor], Tensor]
"""The loss of pairs, given the outputs (m, z) over their pool."""

KNOWN = (
    "pass a loss of (anchors, positives, negatives) such as ContrastiveLoss(Cosine(), Linear()), or of two views such "
    "as nt_xent"
)


def loss_of_pairs(loss: Callable[..., Any], pairs: Pairs) -> PairLoss:
    """The loss as a function of pairs like these; refuses one that does not fit them, by its arguments alone."""
    require_callable("loss", loss, KNOWN)
    if isinstance(loss, ContrastiveLoss):
        return lambda now, outputs: _of_pool(loss, now, outputs)
    inner = loss.loss if isinstance(loss, LossModule) else loss
    name = str(getattr(loss, "name", None) or getattr(inner, "__name__", type(inner).__name__))
    _refuse_named(inner, name)
    if inner is alignment_loss:
        return lambda now, outputs: _total(loss(*now.split(outputs)[:2]), name)
    least, most, arguments = _positional(inner)
    if least == 2 and not "".join(arguments[2:3]).startswith("neg"):
        _require_two_views(name, pairs)
        return lambda now, outputs: _total(loss(*_views(now, outputs)), name)
    _require_three_arguments(name, least, most, arguments, weighted=pairs.negative_weight is not None)
    return lambda now, outputs: _total(loss(*now.split(outputs), *_weight(now)), name)


def _of_pool(loss: ContrastiveLoss, pairs: Pairs, outputs: Tensor) -> Tensor:
    # Each point of the pool is normalised once, however often it serves.
    return loss.of_embedded(*pairs.split(loss.similarity.embed(outputs)), *_weight(pairs)).total


def _weight(pairs: Pairs) -> tuple[Tensor, ...]:
    # Without weights a loss of three arguments (paper B's, say) fits as well.
    return () if pairs.negative_weight is None else (pairs.negative_weight,)


def _views(pairs: Pairs, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """The anchors and the one positive of each."""
    anchors, positives, _ = pairs.split(outputs)
    return anchors, positives[:, 0]


def _total(value: object, name: str) -> Tensor:
    total = value.total if isinstance(value, LossValue) else value
    if not isinstance(total, Tensor) or total.ndim > 0:
        raise InputError(f"{name} must return one number as a tensor, got {in_words(total)}; return its mean")
    return total


def _refuse_named(loss: object, name: str) -> None:
    """Refuse losses of this package that need what pairs do not have."""
    needs = {moco: "a queue of stored keys", supcon: "labels", triplet: "one negative per anchor, as rows"}
    if isinstance(loss, ViewLoss) and loss.needs_labels:
        raise InputError(f"the loss {name} needs labels, which pairs do not have; {KNOWN}")
    for known, what in needs.items():
        if loss is known:
            raise InputError(f"{name} needs {what}, which pairs do not have; {KNOWN}")


def _require_two_views(name: str, pairs: Pairs) -> None:
    """Refuse pairs that a loss of two views would only look at in part."""
    if pairs.n_positives != 1 or pairs.n_negatives > 0:
        raise InputError(
            f"{name} is a loss of two views, an anchor and its one positive with negatives from the batch, but each "
            f"anchor has {pairs.n_positives} positives and {pairs.n_negatives} negatives of its own; make the pairs "
            "with n_positives=1, negatives=0"
        )


def _require_three_arguments(name: str, least: int, most: float, arguments: list[str], *, weighted: bool) -> None:
    """Refuse a loss that cannot be called with anchors, positives and negatives, and weights where there are any."""
    takes = f"{name} takes ({', '.join(arguments)})"
    if weighted and least <= 3 == most:
        raise InputError(
            f"{takes} and no weights of negatives, which negatives='all' gives pairs; make them with a number of "
            "negatives"
        )
    # One argument with options, (embeddings, labels=None, …), is not meant for anchors, positives and negatives.
    if not least <= 3 + weighted <= most or (least == 1 and most < math.inf):
        raise InputError(f"{takes}, but pairs have anchors, positives and negatives; {KNOWN}")


def _positional(loss: Callable[..., Any]) -> tuple[int, float, list[str]]:
    """The least and the most positional arguments of a loss, and their names; any number where it does not say."""
    try:
        # The signature of a module's __call__ says nothing.
        signature = inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss)
    except (TypeError, ValueError):
        return 0, math.inf, []
    parameters = signature.parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    open_ended = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    least = sum(p.default is p.empty for p in positional)
    return least, math.inf if open_ended else len(positional), [p.name for p in positional]
