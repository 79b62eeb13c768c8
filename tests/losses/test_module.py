from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional as F

from kontrast.errors import InputError
from kontrast.losses import ContrastiveLoss, Cosine, Linear, LossModule, nt_xent, spectral_contrastive, vicreg
from tests.cases import randn

A, B = randn(5, 3), randn(5, 3, seed=1)


def test_the_total_of_the_loss_under_its_options():
    loss = LossModule(nt_xent, temperature=0.3, negatives="intra")
    expected = nt_xent(A, B, temperature=0.3, negatives="intra").total
    assert torch.equal(loss(A, B), expected)
    assert torch.equal(copy.deepcopy(loss)(A, B), expected)
    assert not torch.equal(LossModule(nt_xent)(A, B), expected)
    assert repr(loss) == "LossModule(nt_xent, temperature=0.3, negatives='intra')"


def test_it_trains_a_net():
    net = torch.nn.Linear(3, 2, dtype=torch.float64)
    LossModule(spectral_contrastive)(net(A), net(B)).backward()
    assert net.weight.grad.norm() > 0


def test_losses_of_other_kinds():
    general = ContrastiveLoss(Cosine(), Linear())
    data = A, B.unsqueeze(1), B.flip(0).unsqueeze(1)
    assert torch.equal(LossModule(general)(*data), general(*data).total)
    assert torch.equal(LossModule(F.smooth_l1_loss, beta=0.5)(A, B), F.smooth_l1_loss(A, B, beta=0.5))
    assert torch.equal(LossModule(lambda a, b, **kw: kw["x"] * (a - b).sum(), x=2)(A, B), 2 * (A - B).sum())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LossModule("nt_xent"), r"loss must be a function, got str; pass a loss such as"),
        (lambda: LossModule(nt_xent, temp=1), r"nt_xent has no option 'temp'; its options are temperature, neg"),
        (lambda: LossModule(nt_xent, view_a=A), r"nt_xent has no option 'view_a'"),
        (lambda: LossModule(spectral_contrastive, margin=1), r"spectral_contrastive .* 'margin'; it has no options"),
        (lambda: LossModule(ContrastiveLoss(Cosine(), Linear()), delta=1), r"ContrastiveLoss has no option 'delta'"),
        (lambda: LossModule(nt_xent, temperature=0), r"temperature must be a positive number, got 0"),
        (lambda: LossModule(nt_xent, temperature=True), r"temperature must be a positive number, got True"),
        (lambda: LossModule(nt_xent, negatives="all"), r"negatives must be one of both, cross, intra, got 'all'"),
        (lambda: LossModule(nt_xent, symmetric=1), r"symmetric must be bool, got int; pass True or False"),
        (lambda: LossModule(vicreg, variance=-1), r"variance must be a number of 0 or more, got -1"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused_when_the_module_is_made(call, message):
    with pytest.raises(InputError, match=message):
        call()
