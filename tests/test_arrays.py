"""Checks at the door."""

import numpy as np
import pytest
import torch

from notsodeep.arguments import is_whole, positive
from notsodeep.arrays import check_memory, like, samples
from notsodeep.errors import BadInput

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_float_tensors_are_taken_as_they_are(dtype):
    x = torch.ones(3, 2, dtype=dtype)
    assert samples(x) is x or samples(x).data_ptr() == x.data_ptr()
    assert samples(x).dtype == dtype


@pytest.mark.parametrize(
    ("given", "answered"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.int8, torch.float64),
        (torch.int64, torch.float64),
        (torch.uint8, torch.float64),
        (torch.bool, torch.float64),
    ],
)
def test_other_tensors_become_floats(given, answered):
    x = torch.tensor([[0, 1], [1, 1]]).to(given)
    assert samples(x).dtype == answered
    assert samples(x).tolist() == [[0.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize(
    ("given", "answered"),
    [
        ("float32", torch.float32),
        ("float64", torch.float64),
        ("float16", torch.float32),
        ("int32", torch.float64),
        ("uint16", torch.float64),
        ("uint64", torch.float64),
        ("bool", torch.float64),
        (">f8", torch.float64),
        ("longdouble", torch.float64),
    ],
)
def test_numpy_arrays_become_tensors(given, answered):
    x = np.array([[0, 1], [1, 1]]).astype(given)
    assert samples(x).dtype == answered
    assert samples(x).tolist() == [[0.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize("view", [lambda a: a[::-1], lambda a: a.T, lambda a: a[:, ::2], np.asfortranarray])
def test_numpy_views(view):
    x = view(np.arange(12.0).reshape(3, 4))
    assert samples(x).tolist() == x.tolist()


def test_gradients_stop_here():
    assert not samples(torch.ones(2, 2, requires_grad=True)).requires_grad


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_rows_that_are_not_finite_are_named(bad):
    x = torch.zeros(10, 3)
    x[4, 1] = x[7, 2] = bad
    with pytest.raises(BadInput, match=r"2 of 10 rows \(row 4, 7\)") as raised:
        samples(x, name="features")
    assert raised.value.rows == [4, 7]
    assert "features" in str(raised.value)


def test_many_bad_rows_are_counted_not_listed():
    with pytest.raises(BadInput, match="…") as raised:
        samples(torch.full((100, 2), float("nan")))
    assert len(raised.value.rows) == 100
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4)])
def test_other_than_two_axes_are_refused(shape):
    with pytest.raises(BadInput, match="expected \\(n, p\\)"):
        samples(torch.ones(shape))


def test_one_sample_gets_a_hint():
    with pytest.raises(BadInput, match=r"x\[None, :\]"):
        samples(np.ones(5))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_empty_data_are_refused(shape):
    with pytest.raises(BadInput, match="empty"):
        samples(torch.ones(shape))


@pytest.mark.parametrize(
    "x",
    [
        torch.ones(2, 2, dtype=torch.complex64),
        np.ones((2, 2), dtype=complex),
        np.array([["a", "b"]]),
        np.array([[1.0, None]], dtype=object),
        np.array([["2024-01-01"]], dtype="datetime64[D]"),
        [[1.0, 2.0]],
        "data.csv",
        None,
        3.0,
        torch.eye(3).to_sparse(),
    ],
    ids=lambda x: f"{type(x).__name__} {getattr(x, 'dtype', '')}",
)
def test_what_holds_no_real_numbers_is_refused(x):
    with pytest.raises(BadInput, match="expected"):
        samples(x)


def test_masked_entries_are_not_taken_for_data():
    x = np.ma.masked_array(np.ones((3, 2)), mask=[[0, 0], [1, 0], [0, 0]])
    with pytest.raises(BadInput):
        samples(x)


@pytest.mark.parametrize("value", [1, 0.5, "0.5", np.float32(2.0), torch.tensor(3.0), 1e-300, 1e300])
def test_positive_numbers(value):
    assert positive(value, "var_a") == float(value)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), None, "many", [1.0], 1j, torch.ones(2)])
def test_other_numbers_are_refused_by_name(value):
    with pytest.raises(BadInput, match="var_a"):
        positive(value, "var_a")


def test_results_come_back_in_kind():
    result = torch.ones(2)
    assert isinstance(like(np.ones(1))(result), np.ndarray)
    assert like(torch.ones(1))(result) is result


def test_a_result_too_large_is_refused_with_its_size_and_a_remedy():
    """10¹⁸ entries: had it been allocated, this test would not return."""
    with pytest.raises(BadInput, match="matvec") as raised:
        check_memory((10**9, 10**9), torch.float64, CPU, "matvec")
    error = raised.value
    assert error.needed == 8 * 10**18
    assert 0 < error.available < error.needed
    assert "GiB" in str(error)
    assert "float64" in str(error)


def test_the_size_of_an_entry_counts():
    with pytest.raises(BadInput) as raised:
        check_memory((10**9, 10**9), torch.float32, CPU, "matvec")
    assert raised.value.needed == 4 * 10**18


def test_a_result_that_fits_is_let_through():
    assert check_memory((10, 10), torch.float64, CPU, "matvec") is None


def test_what_takes_the_memory_is_named():
    with pytest.raises(BadInput, match=r"^A 1000000000 × 1000000000 kernel in float64 takes"):
        check_memory((10**9, 10**9), torch.float64, CPU, "matvec")
    with pytest.raises(BadInput, match=r"^Two of them in float64 takes"):
        check_memory((10**9, 10**9), torch.float64, CPU, "matvec", "Two of them")


def test_whole_numbers():
    assert all(map(is_whole, (0, -3, np.int64(5), np.uint8(1))))
    assert not any(map(is_whole, (True, np.bool_(True), 1.0, "1", None, np.float64(2))))
