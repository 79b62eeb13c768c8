"""Losses of two views of a batch by name, in one form: what a training loop takes, for one run or a stack of runs."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kontrast.checks import require_choice, require_positive
from kontrast.errors import InputError
from kontrast.losses import named
from kontrast.losses._checks import require_rows
from kontrast.losses.similarity_and_link import LINKS, Linear, Link, Similarity, link_from, similarity_from
from kontrast.losses.value import LossValue


@dataclass(frozen=True)
class ViewLoss:
    """A loss of two views of a batch: `loss(view_a, view_b, labels)` is a scalar tensor.

    Row i of both views shows sample i. Nothing in a loss depends on the values of a tensor but its result, so
    `torch.func.vmap`, `grad` and `jvp` of it work, for a stack of runs and for products with its Hessian.

    Attributes:
        name: one of `VIEW_LOSSES`.
        words: its name in tables.
        scale_free: whether the length of each embedding does not matter. Barlow Twins, which standardises dimensions
            and not embeddings, is not; the cosine is but for δ, if embeddings are much longer than that.
        needs_labels: whether it must have labels.
        bounded: whether it is bounded below. The spectral loss is not, though its expectation is: in a batch its
            squares leave out a sample with itself, so one embedding may grow while the others are zero.
        function: the loss of the views and of labels or None.
    """

    name: str
    words: str
    scale_free: bool
    needs_labels: bool
    bounded: bool
    function: Callable[[Tensor, Tensor, Tensor | None], Tensor]

    def __call__(self, view_a: Tensor, view_b: Tensor, labels: Tensor | None = None) -> Tensor:
        """The loss of embeddings (n, z) of both views, n ≥ 2, and labels (n,); labels it does not need are ignored."""
        require_rows(2, view_a=view_a, view_b=view_b)
        if self.needs_labels and labels is None:
            raise InputError(f"the loss {self.name!r} needs the label of each sample, got none; pass labels")
        return self.function(view_a, view_b, labels)


def view_loss_from(
    name: str, *, temperature: float | None = None, link: str = "linear", delta: float = 0.01
) -> ViewLoss:
    r"""The loss of two views called `name` in `VIEW_LOSSES`; of the options it takes those it has.

    "cosine" and "dot" are paper A's general loss (1): anchors are the rows of the first view, the positive of an anchor
    is its twin in the second, and its negatives are all other rows of the second: their mean with the linear link, the
    expectation over one random negative, and their sum below a softmax. "triplet" takes the next row of the second view
    as the negative, "supcon" the labels, and the others are the functions of their name in `kontrast.losses`.

    Args:
        name: one of `VIEW_LOSSES`.
        temperature: of "nt_xent", "info_nce", "supcon" and the softmax links. None is the loss's own: 0.5 for NT-Xent,
            0.1 for InfoNCE and SupCon, 1 for the links.
        link: of "cosine" and "dot", one of `LINKS`.
        delta: δ of "cosine", as in `Cosine`.
    """
    if name not in VIEW_LOSSES:
        close = difflib.get_close_matches(name.lower(), VIEW_LOSSES, n=1) if isinstance(name, str) else []
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise InputError(f"no loss of two views is called {name!r}; {hint}names: {', '.join(VIEW_LOSSES)}")
    require_choice("link", link, LINKS)
    require_positive(delta=delta)
    if temperature is not None:
        require_positive(temperature=temperature)
    if name in _SIMILARITY_WORDS:
        return _similarity_loss(name, temperature, link, delta)
    function, words, scale_free, needs_labels, bounded = _NAMED[name]
    options = {} if temperature is None or name not in _TEMPERED else {"temperature": temperature}
    return ViewLoss(name, words, scale_free, needs_labels, bounded, partial(function, **options))


def _similarity_loss(name: str, temperature: float | None, link: str, delta: float) -> ViewLoss:
    made = link_from(link, temperature=1.0 if temperature is None else temperature)
    return ViewLoss(
        name,
        f"{_SIMILARITY_WORDS[name]}, {link.replace('_', '-')} link",
        scale_free=name == "cosine",
        needs_labels=False,
        bounded=name == "cosine" or link != "linear",
        function=partial(_in_batch, similarity=similarity_from(name, delta=delta), link=made),
    )


def _in_batch(view_a: Tensor, view_b: Tensor, labels: Tensor | None, *, similarity: Similarity, link: Link) -> Tensor:
    a, b = similarity.embed(view_a), similarity.embed(view_b)
    if isinstance(link, Linear):
        # The mean similarity with the other rows is that with their mean: n products instead of n².
        others = (b.sum(0) - b) / (b.shape[0] - 1)
        s_pos, s_neg = (a * b).sum(-1, keepdim=True), (a * others).sum(-1, keepdim=True)
    else:
        s = a @ b.mT
        s_pos, s_neg = s.diagonal().unsqueeze(1), named.off_diagonal(s)
    return link(s_pos, s_neg).mean()


def _total(
    function: Callable[..., LossValue], view_a: Tensor, view_b: Tensor, labels: Tensor | None, **options: float
) -> Tensor:
    return function(view_a, view_b, **options).total


def _supcon(view_a: Tensor, view_b: Tensor, labels: Tensor | None, **options: float) -> Tensor:
    assert labels is not None  # refused by ViewLoss
    return named.supcon(torch.stack([view_a, view_b], 1), labels, **options).total


def _triplet(view_a: Tensor, view_b: Tensor, labels: Tensor | None) -> Tensor:
    return named.triplet(view_a, view_b, view_b.roll(-1, 0)).total


_TEMPERED = ("nt_xent", "info_nce", "supcon")
_SIMILARITY_WORDS = {"cosine": "cosine similarity", "dot": "dot product"}
# Each function with its words, and whether it is scale-free, needs labels, is bounded.
_NAMED: Mapping[str, tuple[Callable[..., Tensor], str, bool, bool, bool]] = {
    "nt_xent": (partial(_total, named.nt_xent), "NT-Xent", True, False, True),
    "info_nce": (partial(_total, named.info_nce), "InfoNCE", True, False, True),
    "supcon": (_supcon, "SupCon", True, True, True),
    "vicreg": (partial(_total, named.vicreg), "VICReg", False, False, True),
    "barlow_twins": (partial(_total, named.barlow_twins), "Barlow Twins", False, False, True),
    "spectral": (partial(_total, named.spectral_contrastive), "spectral contrastive", False, False, False),
    "triplet": (_triplet, "triplet", False, False, True),
}
VIEW_LOSSES: tuple[str, ...] = (*_NAMED, *_SIMILARITY_WORDS)
