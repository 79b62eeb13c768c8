"""Losses on embeddings: paper A's as similarity × link, paper B's, the named ones of self-supervised learning."""

from kontrast.losses._checks import require_rows
from kontrast.losses.module import LossModule
from kontrast.losses.named import (
    barlow_twins,
    info_nce,
    moco,
    non_contrastive,
    nt_xent,
    spectral_contrastive,
    supcon,
    triplet,
    vicreg,
)
from kontrast.losses.of_views import VIEW_LOSSES, ViewLoss, view_loss_from
from kontrast.losses.similarity_and_link import (
    LINKS,
    SIMILARITIES,
    ContrastiveLoss,
    Cosine,
    Dot,
    Linear,
    Link,
    LogSoftmax,
    Similarity,
    Softmax,
    alignment_loss,
    contrastive_trace_loss,
    link_from,
    similarity_from,
)
from kontrast.losses.value import LazyTerms, LossValue

__all__ = [
    "LINKS",
    "SIMILARITIES",
    "VIEW_LOSSES",
    "ContrastiveLoss",
    "Cosine",
    "Dot",
    "LazyTerms",
    "Linear",
    "Link",
    "LogSoftmax",
    "LossModule",
    "LossValue",
    "Similarity",
    "Softmax",
    "ViewLoss",
    "alignment_loss",
    "barlow_twins",
    "contrastive_trace_loss",
    "info_nce",
    "link_from",
    "moco",
    "non_contrastive",
    "nt_xent",
    "require_rows",
    "similarity_from",
    "spectral_contrastive",
    "supcon",
    "triplet",
    "vicreg",
    "view_loss_from",
]
