"""Checks at the door: what is passed by value."""

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from notsodeep import arguments
from notsodeep.errors import BadInput


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_counts(value):
    found = arguments.count(value, "n")
    assert found == 3
    assert type(found) is int


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "3", None, [3], torch.tensor(3), 2**63, 10**400])
def test_what_is_no_count_is_refused_with_its_value(value):
    with pytest.raises(BadInput, match=r"^n "):
        arguments.count(value, "n")


def test_a_count_may_have_bounds_of_its_own():
    assert arguments.count(0, "n", least=0) == 0
    with pytest.raises(BadInput, match="n = 8 is more than 7"):
        arguments.count(8, "n", most=7)
    assert arguments.counts([2, 3], "widths") == (2, 3)
    with pytest.raises(BadInput, match="width must be a whole number ≥ 1, got 0"):
        arguments.counts((2, 0), "widths")


@pytest.mark.parametrize("value", [0.5, "0.5", Fraction(1, 2), np.float32(0.5), np.array(0.5), torch.tensor(0.5)])
def test_numbers_of_any_kind(value):
    assert arguments.number(value, "factor") == arguments.positive(value, "factor") == 0.5
    assert arguments.not_negative(value, "factor") == arguments.share(value, "factor") == 0.5


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, 10**400, 1j, None, "much", [0.5], np.ones(2), torch.ones(2), torch.ones((), device="meta")]
)
@pytest.mark.parametrize("check", [arguments.number, arguments.positive, arguments.not_negative, arguments.share])
def test_what_is_no_finite_number_is_refused_by_name(check, value):
    with pytest.raises(BadInput, match=r"^factor "):
        check(value, "factor")


def test_several_numbers():
    assert arguments.numbers([1, np.float64(2.0)], "ridges") == (1.0, 2.0)
    assert arguments.numbers(torch.tensor([1.0, 2.0]), "ridges") == (1.0, 2.0)
    for bad in (0.1, "12", [], [1.0, None], {"a": 1}, np.array(1.0), [-1.0]):
        with pytest.raises(BadInput, match="ridges"):
            arguments.numbers(bad, "ridges", least=0.0)


@pytest.mark.parametrize("value", [1e61, 1e-61, 1e160, 5e-324])
def test_norms_whose_powers_are_no_numbers(value):
    with pytest.raises(BadInput, match=r"tau0 = .* leave the range of float64"):
        arguments.norm(value)
    assert math.isfinite(arguments.norm(1e60) ** 4)
    assert arguments.norm(1e-60) ** 4 > 0.0


def test_flags_and_choices():
    assert [arguments.flag(value, "throw") for value in (True, np.bool_(False), 1, 0)] == [True, False, True, False]
    for bad in ("no", None, 2, torch.ones(2)):
        with pytest.raises(BadInput, match="throw must be True or False"):
            arguments.flag(bad, "throw")
    assert arguments.choice("a", "letter", ("a", "b")) == "a"
    for unknown in ("c", None, ["a"], np.array(["a", "b"])):
        with pytest.raises(BadInput, match=r"There is no letter .*; choose from a, b\."):
            arguments.choice(unknown, "letter", ("a", "b"))


def test_seeds_are_those_that_torch_takes():
    for value in (0, -(2**63), 2**64 - 1, np.int64(7)):
        assert torch.Generator().manual_seed(arguments.seed(value)) is not None
    for bad in (2**64, -(2**63) - 1, 1.0, "0", None, True):
        with pytest.raises(BadInput, match="seed must be a whole number of at most 64 bits"):
            arguments.seed(bad)


def test_generators_devices_and_types():
    own = torch.Generator()
    assert arguments.generator(own) is own
    assert arguments.generator(None) is arguments.device(None) is arguments.dtype(None) is None
    assert arguments.device("cpu") == torch.device("cpu")
    assert arguments.dtype(torch.float32) is torch.float32
    for check, bad in (
        (arguments.generator, 0),
        (arguments.device, "gpu please"),
        (arguments.device, 3.0),
        (arguments.device, torch.device("cuda", 99)),
        (arguments.dtype, torch.int8),
        (arguments.dtype, "float32"),
    ):
        with pytest.raises(BadInput, match=f"{check.__name__}"):
            check(bad)


def test_paths():
    assert arguments.path("a/b.npy") == arguments.path(Path("a/b.npy")) == Path("a/b.npy")
    for bad in ("", "a\0b", "x" * 300, b"bytes", None, 3, ["a"]):
        with pytest.raises(BadInput, match="path"):
            arguments.path(bad)


def test_functions_take_what_they_are_given():
    arguments.function(torch.tanh, "f", "a function of the state", 1)
    arguments.function(torch.nn.Tanh(), "f", "a function of the state", 1)
    for bad in (None, "tanh", torch.nn.Tanh, lambda: 1.0, lambda a, b: a + b):
        with pytest.raises(BadInput, match="f must be a function of the state"):
            arguments.function(bad, "f", "a function of the state", 1)


def test_a_message_stays_short():
    for value in (torch.ones(1000, 1000), np.ones((1000, 3)), "x" * 5000, 10**5000, list(range(999))):
        assert len(arguments.shown(value)) < 100
