from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import integers, sampled_from
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from kontrast.diagnosis.inputs import Encoder, has_statistics, statistics_in_words, with_statistics
from kontrast.errors import InputError
from tests.cases import randn
from tests.diagnosis.inputs.models import SimCLR, drawn, images

KINDS = {
    "plain": lambda: nn.BatchNorm1d(4),
    "cumulative": lambda: nn.BatchNorm1d(4, momentum=None),
    "fast": lambda: nn.BatchNorm1d(4, momentum=0.9, affine=False),
    "synchronised": lambda: nn.SyncBatchNorm(4),
}


@given(seed=integers(0, 2**16), n=integers(2, 700), kind=sampled_from(sorted(KINDS)))
@settings(max_examples=20)
def test_recalibrated_statistics_are_those_of_the_data(seed: int, n: int, kind: str) -> None:
    module, x = drawn(nn.Sequential(nn.Linear(3, 4), KINDS[kind]()), seed), randn(n, 3, seed=seed)
    state = module.state_dict() | {"1.running_mean": randn(4, seed=9), "1.running_var": 5 + randn(4, seed=8).abs()}
    (made,) = with_statistics(Encoder.of(module, x), [state], "data", x)
    batches = torch.tensor_split(module[0](x).detach(), -(-n // 256))
    torch.testing.assert_close(made["1.running_mean"], torch.stack([b.mean(0) for b in batches]).mean(0))
    torch.testing.assert_close(made["1.running_var"], torch.stack([b.var(0) for b in batches]).mean(0))
    assert made["1.num_batches_tracked"] == len(batches)


def test_a_deep_model_is_recalibrated_as_torch_does_it() -> None:
    module, x = drawn(SimCLR()), images(40)
    (made,) = with_statistics(Encoder.of(module, x), [module.state_dict()], "data", x)
    module.backbone[5].p = 0.0  # update_bn leaves dropout in train mode
    update_bn([x], module)
    for name, value in module.state_dict().items():
        torch.testing.assert_close(made[name], value)


def test_with_one_batch_eval_mode_gives_what_batch_statistics_give() -> None:
    module, x = drawn(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))), randn(50, 3)
    encoder = Encoder.of(module, x)
    (made,) = with_statistics(encoder, [module.state_dict()], "data", x)
    here = encoder.embed(made, x)
    torch.testing.assert_close(here.mean(0), module[1].bias.detach())
    scale = (49 / 50) ** 0.5  # running variances are unbiased
    torch.testing.assert_close(here.std(0, correction=0), scale * module[1].weight.detach().abs(), rtol=1e-4, atol=0)


def test_running_statistics_of_instances() -> None:
    module, x = drawn(nn.Sequential(nn.InstanceNorm2d(3, track_running_stats=True), nn.Conv2d(3, 2, 3))), images()
    (made,) = with_statistics(Encoder.of(module, x), [module.state_dict()], "data", x)
    torch.testing.assert_close(made["0.running_mean"], x.mean((0, 2, 3)))
    torch.testing.assert_close(made["0.running_var"], x.var((2, 3)).mean(0))


def test_a_layer_used_twice_has_its_statistics_under_both_names() -> None:
    norm = nn.BatchNorm1d(4)
    module = drawn(nn.Sequential(nn.Linear(4, 4), norm, nn.Linear(4, 4), norm))
    (made,) = with_statistics(Encoder.of(module, randn(9, 4)), [module.state_dict()], "data", randn(9, 4))
    assert torch.equal(made["1.running_mean"], made["3.running_mean"])
    assert made["1.num_batches_tracked"] == 2


def test_own_and_start_take_what_is_there() -> None:
    x = images()
    states = [drawn(SimCLR(), k).state_dict() for k in range(3)]
    for k, state in enumerate(states):
        state["backbone.1.running_mean"] += k
    encoder = Encoder.of(drawn(SimCLR()), x)
    assert all(
        torch.equal(a[key], b[key])
        for a, b in zip(with_statistics(encoder, states, "own", x), states, strict=True)
        for key in b
    )
    for made, state in zip(with_statistics(encoder, states, "start", x), states, strict=True):
        for key, value in made.items():
            assert torch.equal(value, (states[0] if "running" in key else state)[key])
    assert float(states[2]["backbone.1.running_mean"].mean()) == 2  # those given are as they were


def test_states_given_are_never_changed_and_the_encoder_is_in_eval_mode_again() -> None:
    module, x = drawn(SimCLR()), images()
    encoder, state = Encoder.of(module, x), module.state_dict()
    before = {key: value.clone() for key, value in state.items()}
    with_statistics(encoder, [state], "data", x)
    assert all(torch.equal(before[key], value) for key, value in state.items())
    assert not any(part.training for part in encoder.module.modules())
    assert [part.momentum for part in encoder.module.modules() if isinstance(part, nn.BatchNorm2d)] == [0.3]


def test_modules_without_running_statistics() -> None:
    module, x = drawn(nn.Sequential(nn.Linear(3, 4), nn.GroupNorm(2, 4))), randn(5, 3)
    assert not has_statistics(module)
    assert has_statistics(SimCLR())
    assert not has_statistics(nn.BatchNorm1d(3, track_running_stats=False))
    state = module.state_dict()
    assert with_statistics(Encoder.of(module, x), [state], "data", x) == [state]
    assert statistics_in_words(module, "data", 5) == ""


def test_the_choice_in_words() -> None:
    words = "running statistics recalibrated on the 256 samples given"
    assert statistics_in_words(SimCLR(), "data", 256) == words
    assert len({statistics_in_words(SimCLR(), how, 256) for how in ("own", "start", "data")}) == 3


class OneValue(nn.Module):
    """Statistics of one value for each channel, as of one sample."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.norm(one[None]) for one in x])


def test_refusals() -> None:
    encoder, state = Encoder.of(drawn(SimCLR()), images()), drawn(SimCLR()).state_dict()
    with pytest.raises(InputError, match="statistics must be one of own, start, data, got 'mean'"):
        with_statistics(encoder, [state], "mean", images())
    with pytest.raises(InputError, match="need at least 2 samples to be recalibrated on, got 1"):
        with_statistics(encoder, [state], "data", images(1))
    one = drawn(OneValue())
    with pytest.raises(InputError, match="cannot be recalibrated on 6 samples: ValueError: Expected more than 1 value"):
        with_statistics(Encoder.of(one, randn(6, 3)), [one.state_dict()], "data", randn(6, 3))
