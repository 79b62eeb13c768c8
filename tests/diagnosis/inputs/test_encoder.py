from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import integers, sampled_from
from torch import Tensor, nn
from torch.func import grad, jvp, vjp

from kontrast.diagnosis.inputs import Encoder
from kontrast.errors import InputError
from tests.cases import randn
from tests.diagnosis.inputs.models import SimCLR, drawn, images
from tests.kernels.networks import NETWORKS, Bert, Outputs, ready, rows_for


class Then(nn.Module):
    """A linear layer and what a function makes of it."""

    def __init__(self, then: Any) -> None:
        super().__init__()
        self.first, self.then = nn.Linear(4, 3), then

    def forward(self, x: Tensor) -> Any:
        return self.then(self.first(x))


@pytest.mark.parametrize("name", NETWORKS)
def test_every_kind_of_network_is_a_function_with_derivatives(name: str) -> None:
    make, shape = NETWORKS[name]
    module, x = ready(make()), rows_for(shape, 6)
    encoder, state = Encoder.of(module, x), module.state_dict()
    p, b = encoder.parameters(state), encoder.buffers(state)
    torch.testing.assert_close(encoder.embed(state, x), module(x).detach())
    value, pullback = vjp(lambda q: encoder.function(q, b, x), p)
    torch.testing.assert_close(value, module(x))
    step = {key: randn(*t.shape, seed=5) for key, t in p.items()}
    _, slope = jvp(lambda q: encoder.function(q, b, x), (p,), (step,))
    v = randn(*value.shape, seed=6)
    (pulled,) = pullback(v)
    torch.testing.assert_close(
        (slope * v).sum(), sum((pulled[key] * step[key]).sum() for key in p)
    )  # <Js, v> = <s, Jᵀv>


def test_derivatives_of_a_loss_are_those_of_autograd() -> None:
    module, x = drawn(SimCLR()).eval(), images()
    encoder, state = Encoder.of(module, x), module.state_dict()
    found = grad(lambda p: encoder.function(p, encoder.buffers(state), x).square().sum())(encoder.parameters(state))
    module(x).square().sum().backward()
    for name, p in module.named_parameters():
        torch.testing.assert_close(found[name], p.grad)


@pytest.mark.parametrize(
    "named, layers, judged",
    [
        ({}, ("embedding",), "embedding"),
        ({"features": "backbone"}, ("backbone", "embedding"), "backbone"),
        ({"head": "head"}, ("before head", "head.0", "embedding"), "before head"),
        ({"features": "backbone", "head": "head"}, ("backbone", "head.0", "embedding"), "backbone"),
        ({"features": "head.1", "head": "head"}, ("head.0", "head.1", "embedding"), "head.1"),
        ({"features": "module.backbone.0"}, ("backbone.0", "embedding"), "backbone.0"),
    ],
)
def test_layers_in_the_order_in_which_they_run(named: dict[str, str], layers: tuple[str, ...], judged: str) -> None:
    module, x = drawn(SimCLR()), images()
    encoder = Encoder.of(module, x, **named)
    assert (encoder.layers, encoder.features) == (layers, judged)
    made = encoder.outputs(module.state_dict(), x, batch_size=5)
    module.eval()
    backbone = module.backbone(x)
    expected = {
        "backbone": backbone,
        "before head": backbone,
        "head.0": module.head[0](backbone),
        "head.1": module.head[:2](backbone),
        "backbone.0": module.backbone[0](x).mean((2, 3)),  # before the ReLU that works in place
        "embedding": module(x),
    }
    assert tuple(made) == layers
    for layer, rows in made.items():
        torch.testing.assert_close(rows, expected[layer].detach())


def test_at_most_six_layers_of_a_head() -> None:
    head = nn.Sequential(*[nn.Linear(4, 4) for _ in range(9)], nn.Tanh())
    module = drawn(nn.Sequential(nn.Linear(3, 4), head))
    layers = Encoder.of(module, randn(5, 3), head="1").layers
    assert layers == ("before 1", "1.0", "1.2", "1.3", "1.5", "1.6", "1.8", "embedding")


@given(seed=integers(0, 2**16), size=integers(1, 13))
@settings(max_examples=15)
def test_outputs_are_the_same_in_batches_of_any_size_and_at_any_state(seed: int, size: int) -> None:
    module, other, x = drawn(SimCLR(), 0), drawn(SimCLR(), seed), images()
    encoder = Encoder.of(module, x, head="head")
    made = encoder.outputs(other.state_dict(), x, batch_size=size)
    for layer, rows in encoder.outputs(other.state_dict(), x).items():
        torch.testing.assert_close(made[layer], rows)
    torch.testing.assert_close(made["embedding"], other.eval()(x).detach())


def test_the_users_module_is_never_changed() -> None:
    module, x = drawn(SimCLR()), images()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    stream = torch.get_rng_state()
    encoder = Encoder.of(module, x, head="head")
    encoder.outputs(module.state_dict(), x)
    assert module.training
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in encoder.module.modules())
    assert torch.equal(stream, torch.get_rng_state())


def test_train_mode_is_noted_where_it_matters() -> None:
    assert "the model was in train mode; it was diagnosed in eval mode" in Encoder.of(drawn(SimCLR()), images()).notes
    assert Encoder.of(drawn(nn.Sequential(nn.Flatten(), nn.Linear(192, 3))), images()).notes == ()


@pytest.mark.parametrize(
    "kind, select",
    [
        (Outputs, "pooler_output"),
        (dict, "pooler_output"),
        (lambda **outputs: tuple(outputs.values()), 1),
        (Outputs, lambda out: out.pooler_output),
    ],
)
def test_an_output_chosen_from_several(kind: Any, select: Any) -> None:
    module, plain, x = ready(Bert(kind)), ready(Bert(lambda **out: out["pooler_output"])), rows_for((), 5)
    made = Encoder.of(module, x, select=select).embed(module.state_dict(), x)
    torch.testing.assert_close(made, plain(x).detach())


def test_tokens_and_maps_are_averaged_over_their_places() -> None:
    module, x = ready(Bert(dict)), rows_for((), 5)
    encoder = Encoder.of(module, x, select="last_hidden_state")
    expected = module(x)["last_hidden_state"].mean(1)
    torch.testing.assert_close(encoder.embed(module.state_dict(), x), expected.detach())
    assert encoder.notes == ("the embedding is 3 tokens of 4 numbers; their mean was diagnosed",)
    maps = drawn(nn.Conv2d(3, 4, 3))
    encoder = Encoder.of(maps, images())
    torch.testing.assert_close(encoder.embed(maps.state_dict(), images()), maps(images()).mean((2, 3)).detach())
    assert encoder.notes == ("the embedding is 4 maps of 6×6 places; their means were diagnosed",)


def test_samples_of_another_number_type_are_cast_and_noted() -> None:
    module = drawn(SimCLR()).float().eval()
    encoder = Encoder.of(module, images())
    made = encoder.embed(module.state_dict(), images())
    torch.testing.assert_close(made, module(images().float()).detach())
    assert encoder.notes == ("samples of torch.float64 were cast to torch.float32, the model's number type",)
    half = Encoder.of(module.bfloat16(), images().float())
    assert half.notes == ("the model's half precision was read as float32",)
    assert half.embed(module.state_dict(), images()).dtype == torch.float32


def test_lazy_layers_are_made_on_the_copy() -> None:
    module = nn.Sequential(nn.Flatten(), nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(3))
    encoder = Encoder.of(module, images())
    assert encoder.embed(encoder.module.state_dict(), images()).shape == (12, 3)
    assert "lazy layers got their shapes from the samples" in encoder.notes
    assert isinstance(module[1].weight, nn.parameter.UninitializedParameter)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # weight_norm's old way, which DINO's heads still go
@pytest.mark.parametrize("wrap", [torch.nn.DataParallel, torch.compile, lambda m: m])
def test_wrappers_and_old_weight_norms(wrap: Any) -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.utils.weight_norm(nn.Linear(5, 3))).double()
    x = randn(6, 4)
    encoder, state = Encoder.of(wrap(module), x), module.state_dict()
    torch.testing.assert_close(encoder.embed(state, x), module(x).detach())
    p, step = encoder.parameters(state), {k: randn(*t.shape, seed=3) for k, t in encoder.parameters(state).items()}
    _, slope = jvp(lambda q: encoder.function(q, {}, x), (p,), (step,))
    h = 1e-5
    far, near = (encoder.function({k: p[k] + s * step[k] for k in p}, {}, x) for s in (h, -h))
    torch.testing.assert_close(slope, (far - near) / (2 * h), rtol=1e-7, atol=1e-7)


def test_synchronised_statistics_are_local() -> None:
    module = drawn(nn.Sequential(nn.Linear(4, 3), nn.SyncBatchNorm(3)))
    encoder = Encoder.of(module, randn(6, 4))
    torch.testing.assert_close(encoder.embed(module.state_dict(), randn(6, 4)), module.eval()(randn(6, 4)).detach())


def test_numbers_that_are_not_finite_are_told_by_the_first_layer() -> None:
    module, x = drawn(SimCLR()), images()
    encoder, state = Encoder.of(module, x), module.state_dict()
    broken = {**state, "head.0.bias": state["head.0.bias"].log()}
    with pytest.raises(InputError, match=r"^head\.0 is the first layer of SimCLR that gives NaN or infinite numbers"):
        encoder.embed(broken, x)
    with pytest.raises(InputError, match=r"the data holds NaN"):
        encoder.embed(state, x.log().sqrt())


X = randn(6, 4)
BAD: list[tuple[Any, dict[str, Any], str]] = [
    (3, {}, "module must be Module, got int; wrap a function in a module"),
    (nn.ReLU(), {}, "ReLU has no parameters"),
    (nn.Linear(4, 3, device="meta"), {}, r"no values yet \(weight is on the meta device\)"),
    (nn.Embedding(4, 3, max_norm=1.0), {}, "max_norm, which rewrites its weights"),
    (nn.Sequential(nn.Linear(4, 3)), {"features": "1"}, "features='1' names no submodule of Sequential; .*'?0'?"),
    (SimCLR(), {"head": "haed"}, "head='haed' names no submodule of SimCLR; did you mean 'head'"),
    (SimCLR(), {"features": 3}, "features must be str, got int"),
    (nn.Linear(5, 3), {}, r"Linear cannot be evaluated on samples of shape \(4,\)"),
    (Then(lambda z: (z, z)), {}, "must return one tensor, got tuple of 2; choose one with select="),
    (Then(lambda z: (z, z)), {"select": 2}, "tuple of 2, which has no select=2"),
    (Then(lambda z: z.sum(1)), {}, r"Then gives shape \(6,\), not 6 rows for 6 samples"),
    (Then(lambda z: z.t()), {}, r"Then gives shape \(3, 6\), not 6 rows for 6 samples"),
    (Then(lambda z: z.argmax(1, keepdim=True)), {}, "it must give real floating-point numbers"),
    (Then(lambda z: z - z.mean(0)), {}, "gives a sample another embedding when other samples are evaluated with it"),
    (Then(nn.functional.dropout), {}, "gives other outputs at every pass, in eval mode too"),
    (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)), {}, "1 is a BatchNorm1d without"),
]


@pytest.mark.parametrize("module, named, words", BAD)
def test_bad_models_are_one_line(module: Any, named: dict[str, Any], words: str) -> None:
    if isinstance(module, nn.Module) and not any(p.is_meta for p in module.parameters()):
        module.double()
    with pytest.raises(InputError, match=words) as refused:
        Encoder.of(module, images() if isinstance(module, SimCLR) else X, **named)
    assert "\n" not in str(refused.value)


def test_a_submodule_that_does_not_run_is_refused() -> None:
    module = drawn(SimCLR())
    module.spare = nn.Linear(2, 2)
    for argument in ("features", "head"):
        with pytest.raises(InputError, match=f"{argument}='spare' does not run when SimCLR is called"):
            Encoder.of(module, images(), **{argument: "spare"})


def test_whole_numbers_for_a_layer_of_floats_are_told() -> None:
    with pytest.raises(InputError, match=r"whole numbers, so convert them with x\.float"):
        Encoder.of(nn.Linear(4, 3), torch.ones(5, 4, dtype=torch.long))


@given(factor=sampled_from([1e-6, 1.0, 1e6]))
@settings(max_examples=3)
def test_rows_are_told_apart_from_rounding_at_every_scale(factor: float) -> None:
    module = Then(lambda z: factor * z)
    Encoder.of(drawn(module), X)
    with pytest.raises(InputError, match="another embedding"):
        Encoder.of(drawn(Then(lambda z: factor * (z + z.mean(0)))), X)
