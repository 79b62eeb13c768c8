"""Every kind of refusal: which values pass, which do not, and what the message says."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from kontrast import checks
from kontrast.errors import InputError

WHOLE = [3, np.int64(3), np.uint8(3), np.int8(3), np.array(3), torch.tensor(3), torch.tensor(3, dtype=torch.uint8)]
BOOLS = [True, False, np.True_, np.array(True), torch.tensor(True), torch.tensor([True])]
NOT_WHOLE = [*BOOLS, 3.0, np.float64(3), torch.tensor(3.0), torch.tensor([3, 4]), np.arange(2), "3", None, 3 + 0j, [3]]
NUMBERS = [1, 0.5, np.float32(0.5), np.float64(0.5), np.int64(2), np.uint8(2), Fraction(1, 2)]
NO_NUMBERS = [*BOOLS, "1", None, 1 + 0j, [1.0], np.ones(2), torch.ones(2)]


def refused(call, *texts):
    with pytest.raises(InputError) as error:
        call()
    message = str(error.value)
    assert "\n" not in message
    for text in texts:
        assert text in message
    return message


def words(value):
    return f"{type(value).__name__}-{value}"


@pytest.mark.parametrize("value", WHOLE, ids=words)
def test_a_whole_number_of_any_kind_becomes_an_int(value):
    for found in (checks.as_whole(value), checks.require_whole("width", value)):
        assert type(found) is int
        assert found == 3


@pytest.mark.parametrize("value", NOT_WHOLE, ids=words)
def test_bools_floats_and_arrays_are_no_whole_numbers(value):
    assert checks.as_whole(value) is None
    refused(lambda: checks.require_whole("width", value), "width must be a whole number of at least 1, got ")


def test_the_limits_of_a_whole_number():
    assert checks.require_whole("n", 0, least=0) == 0
    assert checks.require_whole("n", 5, most=5) == 5
    refused(lambda: checks.require_whole("n", 0), "n must be a whole number of at least 1, got 0")
    refused(lambda: checks.require_whole("n", np.int64(1), least=2), "of at least 2, got 1")
    for value, limit in ((6, "at most 5"), (0, "at least 1"), ("both", "at least 1")):
        text = f"n must be a whole number of {limit}, or 'all', got "
        refused(lambda: checks.require_whole("n", value, most=5, otherwise=", or 'all'"), text)  # noqa: B023


@pytest.mark.parametrize("value", NUMBERS, ids=words)
def test_a_number_of_any_kind_passes(value):
    assert checks.is_number(value)
    checks.require_positive(rate=value)
    checks.require_not_negative(rate=value)
    checks.require_finite_not_negative(rate=value)
    assert type(checks.require_between("rate", value, 0, 2)) is float


@pytest.mark.parametrize("value", NO_NUMBERS, ids=words)
def test_bools_text_and_arrays_are_no_numbers(value):
    assert not checks.is_number(value)
    for check in (checks.require_positive, checks.require_not_negative, checks.require_finite_not_negative):
        refused(lambda: check(fine=1.0, rate=value), "rate must be a ")  # noqa: B023
    refused(lambda: checks.require_between("rate", value, 0, 2), "rate must be a number")


@pytest.mark.parametrize(
    ("value", "positive", "not_negative", "finite"),
    [
        (math.nan, False, False, False),
        (np.float32("nan"), False, False, False),
        (math.inf, False, True, False),
        (-math.inf, False, False, False),
        (0, False, True, True),
        (-0.0, False, True, True),
        (-1e-300, False, False, False),
        (5e-324, True, True, True),
    ],
)
def test_the_edges_of_the_numbers(value, positive, not_negative, finite):
    for check, passes in (
        (checks.require_positive, positive),
        (checks.require_not_negative, not_negative),
        (checks.require_finite_not_negative, finite),
    ):
        if passes:
            check(rate=value)
        else:
            refused(lambda: check(rate=value), "rate must be a ", f"got {value}")  # noqa: B023


def test_a_number_in_an_interval():
    for value in (0, 1, 0.5):
        assert checks.require_between("p", value, 0, 1) == value
    for value in (-0.1, 1.1, math.nan, math.inf):
        refused(lambda: checks.require_between("p", value, 0, 1), "p must be a number of at least 0 and at most 1, got")  # noqa: B023
    open_ends = {"low_included": False, "high_included": False}
    assert checks.require_between("p", 0.5, 0, 1, **open_ends) == 0.5
    for value in (0, 1):
        text = f"p must be a number above 0 and below 1, got {value}; take 0.5"
        refused(lambda: checks.require_between("p", value, 0, 1, **open_ends, fix="take 0.5"), text)  # noqa: B023
    assert checks.require_between("p", 1, 0, 1, low_included=False) == 1
    assert checks.require_between("p", 0, 0, 1, high_included=False) == 0


def test_what_was_given_is_shown_as_it_is_typed():
    refused(lambda: checks.require_positive(rate="0.1"), "got '0.1'")
    refused(lambda: checks.require_positive(rate=np.float64(-1)), "got -1.0")
    refused(lambda: checks.require_whole("n", torch.ones(9, 9)), "got torch.float32 (9, 9)")
    refused(lambda: checks.require_whole("n", np.ones(99)), "got ndarray")


def test_a_choice_of_words():
    checks.require_choice("link", "linear", ["linear", "softmax"])
    for value in ("log", None, 3, ["linear"], torch.ones(2), np.array(["linear", "softmax"])):
        refused(lambda: checks.require_choice("link", value, ["linear", "softmax"]), "link must be one of linear, soft")  # noqa: B023


def test_a_type():
    checks.require_type("net", torch.nn.Linear(1, 1), torch.nn.Module)
    checks.require_type("x", 1.0, (int, float))
    text = "net must be Module, got torch.float32 (2,); pass a net"
    refused(lambda: checks.require_type("net", torch.ones(2), torch.nn.Module, "pass a net"), text)
    assert refused(lambda: checks.require_type("x", "1", (int, float))) == "x must be int or float, got str"


def test_floating_and_finite_tensors():
    x = torch.ones(3, 2)
    for value in (x, x.double(), x.half()):
        checks.require_floating("x", value)
        checks.require_finite("x", value)
    for value in (x.long(), x.bool(), x.to(torch.complex64), x.numpy(), [[1.0]], None):
        text = f"x must be a tensor of floating-point numbers, got {checks.in_words(value)}; use"
        refused(lambda: checks.require_floating("x", value), text)  # noqa: B023
    for bad in (math.nan, math.inf):
        text = "x holds NaN or infinite values; check the data behind it"
        refused(lambda: checks.require_finite("x", torch.tensor([1.0, bad])), text)  # noqa: B023


@pytest.mark.parametrize("shape", [("n", "d"), (3, "d"), (3, 2), ("n", 2)])
def test_shapes_that_fit(shape):
    checks.require_shape("x", torch.ones(3, 2), shape)
    checks.require_matrix("x", torch.ones(3, 2), shape)


@pytest.mark.parametrize(
    ("size", "shape", "text"),
    [
        ((3,), ("n", "d"), "x must have shape (n, d), got (3,)"),
        ((3, 2), (4, "d"), "x must have shape (4, d), got (3, 2)"),
        ((3, 2), ("n",), "x must have shape (n,), got (3, 2)"),
        ((), ("n",), "x must have shape (n,), got ()"),
        ((0, 2), ("n", 2), "x must have shape (n, 2) with no size of 0, got (0, 2)"),
    ],
)
def test_shapes_that_do_not_fit(size, shape, text):
    assert refused(lambda: checks.require_shape("x", torch.ones(size), shape)) == text
    assert refused(lambda: checks.require_matrix("x", torch.ones(size), shape, "flatten it")) == f"{text}; flatten it"


def test_a_matrix_is_floating_and_finite():
    checks.require_shape("x", torch.ones(0, 2), (0, 2))
    refused(lambda: checks.require_matrix("x", torch.ones(3, 2).long()), "x must be a tensor of floating-point")
    refused(lambda: checks.require_matrix("x", torch.full((3, 2), math.nan)), "x holds NaN")


def test_values_that_must_agree():
    a, b = torch.ones(3, 2), torch.ones(4, 2)
    checks.require_same_length(x=a, y=[1, 2, 3])
    checks.require_same_shape(x=a, y=a.double())
    checks.require_same_dtype(x=a, y=b, z=a)
    text = "x and y must have one length, got 3 and 4"
    assert refused(lambda: checks.require_same_length(x=a, y=b)) == text
    text = "z must have the shape of x, (3, 2), got (4, 2); cut it"
    assert refused(lambda: checks.require_same_shape("cut it", x=a, y=a, z=b)) == text
    text = "y must be torch.float32 like x, got torch.float64; use y.to(x.dtype)"
    assert refused(lambda: checks.require_same_dtype(x=a, y=a.double())) == text


def test_functions_and_generators():
    checks.require_callable("view", abs)
    checks.require_generator(torch.Generator())
    assert refused(lambda: checks.require_callable("view", 3)) == "view must be a function, got int; pass a function"
    text = "generator must be a torch.Generator, got int; use torch.Generator().manual_seed(0)"
    assert refused(lambda: checks.require_generator(0)) == text
    refused(lambda: checks.require_generator(None, "rng"), "rng must be a torch.Generator, got NoneType")


def test_times():
    found = checks.increasing_times((0, 1, 2.5))
    assert found.dtype == np.float64
    assert found.tolist() == [0, 1, 2.5]
    assert checks.increasing_times(torch.tensor([0.5])).tolist() == [0.5]
    for value in ([], [1, 1], [2, 1], [-1, 0], [0, math.nan], [0, math.inf], [[0, 1]], 3, "now", None, ["a"]):
        refused(lambda: checks.increasing_times(value), "times must be finite, increasing and start at 0")  # noqa: B023


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_a_dtype_by_name_and_as_torchs_object(kind):
    assert checks.resolve_dtype(kind) is kind
    assert checks.resolve_dtype(str(kind).removeprefix("torch.")) is kind


@pytest.mark.parametrize(
    "value", ["float16", "double", torch.float16, torch.int64, float, None, 3, "", True], ids=words
)
def test_other_dtypes_are_refused(value):
    refused(lambda: checks.resolve_dtype(value), "dtype must be one of float32, float64, got")


@pytest.mark.parametrize("value", ["cpu", "cpu:0", torch.device("cpu"), torch.device("cpu", 0)], ids=words)
def test_the_cpu_by_name_and_as_torchs_object(value):
    assert checks.resolve_device(value) == torch.device("cpu")


@pytest.mark.parametrize(
    "value", ["gpu", "meta", torch.device("meta"), "cuda:-1", "cuda:x", "cuda:²", "", 0, None, True], ids=words
)
def test_other_devices_are_refused(value):
    refused(lambda: checks.resolve_device(value), "device must look like 'cpu', 'cuda' or 'cuda:1', got")


@pytest.mark.parametrize("value", ["cuda", "cuda:1", torch.device("cuda", 1)], ids=words)
def test_a_gpu_that_is_not_there_is_refused(value, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refused(
        lambda: checks.resolve_device(value), f"device '{value}' was asked for", "no CUDA GPU here; use device='cpu'"
    )


def test_the_gpus_that_are_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert checks.resolve_device("cuda") == torch.device("cuda")
    assert checks.resolve_device(torch.device("cuda:1")) == torch.device("cuda", 1)
    refused(lambda: checks.resolve_device("cuda:2"), "device 'cuda:2' was asked for but there are 2 GPUs; use 'cuda:0'")


def test_a_value_in_words():
    assert checks.in_words(torch.ones(2, 3)) == "torch.float32 (2, 3)"
    assert checks.in_words(np.ones(2)) == "ndarray"
    assert checks.in_words(None) == "NoneType"
    assert isinstance(checks.features_not_finite(), InputError)


def test_a_generator_or_seed_0():
    given = torch.Generator().manual_seed(3)
    assert checks.resolve_generator(given) is given
    draws = [torch.rand(3, generator=checks.resolve_generator(None)) for _ in range(2)]
    assert torch.equal(draws[0], torch.rand(3, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(*draws)
    refused(lambda: checks.resolve_generator(0), "generator must be a torch.Generator, got int")
