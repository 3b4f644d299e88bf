"""Arguments that no door was made for, each by a name that a failing example can be told by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch


def _quantised() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.randn(6, 3, generator=torch.Generator().manual_seed(1)), 0.1, 0, torch.qint8)


def _ragged_objects() -> Any:
    array = np.empty(2, dtype=object)
    array[:] = [[1.0], [2.0, 3.0]]
    return array


_X = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

BAD: dict[str, Callable[[], Any]] = {
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "-inf": lambda: float("-inf"),
    "-1": lambda: -1,
    "-0.5": lambda: -0.5,
    "0": lambda: 0,
    "0.0": lambda: 0.0,
    "2.5": lambda: 2.5,
    "1e308": lambda: 1e308,
    "1e160": lambda: 1e160,
    "1e-320": lambda: 1e-320,
    "2**40": lambda: 2**40,
    "2**62": lambda: 2**62,
    "2**63": lambda: 2**63,
    "2**70": lambda: 2**70,
    "-2**70": lambda: -(2**70),
    "10**400": lambda: 10**400,
    "complex": lambda: 1j,
    "True": lambda: True,
    "None": lambda: None,
    "empty text": lambda: "",
    "text": lambda: "no such thing",
    "text with NUL": lambda: "a\0b",
    "long text": lambda: "x" * 5000,
    "digits": lambda: "12",
    "bytes": lambda: b"relu",
    "list": lambda: [1, 2],
    "empty list": lambda: [],
    "ragged list": lambda: [[1.0, 2.0], [3.0]],
    "list of None": lambda: [None, None],
    "tuple of strings": lambda: ("a", "b"),
    "pair of tensors": lambda: (_X.clone(), _X.clone()),
    "dict": lambda: {"a": 1},
    "set": lambda: {1, 2},
    "object": object,
    "type": lambda: torch.nn.Linear,
    "iterator": lambda: iter([1.0, 2.0]),
    "function of none": lambda: lambda: 1.0,
    "function of three": lambda: lambda a, b, c: (a, b, c),
    "function to text": lambda: lambda *_: "text",
    "function that fails": lambda: _failing,
    "numpy nan": lambda: np.float64("nan"),
    "numpy -1": lambda: np.int64(-1),
    "empty tensor": lambda: torch.empty(0),
    "no samples": lambda: torch.empty(0, 3, dtype=torch.float64),
    "no features": lambda: torch.empty(6, 0, dtype=torch.float64),
    "0-d tensor": lambda: torch.tensor(1.0),
    "0-d array": lambda: np.array(1.0),
    "1-d tensor": lambda: torch.ones(6, dtype=torch.float64),
    "3-d tensor": lambda: torch.ones(2, 3, 4, dtype=torch.float64),
    "5 × 3 tensor": lambda: _X[:5].clone(),
    "6 × 4 tensor": lambda: torch.cat([_X, _X[:, :1]], 1),
    "one sample": lambda: _X[:1].clone(),
    "equal samples": lambda: torch.ones(6, 3, dtype=torch.float64),
    "zero samples": lambda: torch.zeros(6, 3, dtype=torch.float64),
    "NaN tensor": lambda: torch.full((6, 3), float("nan"), dtype=torch.float64),
    "inf tensor": lambda: torch.full((6, 3), float("inf"), dtype=torch.float64),
    "complex tensor": lambda: torch.ones(6, 3, dtype=torch.complex64),
    "int tensor": lambda: torch.ones(6, 3, dtype=torch.int64),
    "uint8 tensor": lambda: torch.ones(6, 3, dtype=torch.uint8),
    "bool tensor": lambda: torch.ones(6, 3, dtype=torch.bool),
    "negative labels": lambda: torch.tensor([-1, 0, 1, 0, 1, 1]),
    "large labels": lambda: torch.tensor([0, 1, 2**40, 0, 1, 1]),
    "sparse tensor": lambda: torch.eye(3, dtype=torch.float64).to_sparse(),
    "sparse rows": lambda: torch.eye(3, dtype=torch.float64).to_sparse_csr(),
    "nested tensor": lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]),
    "meta tensor": lambda: torch.ones(6, 3, dtype=torch.float64, device="meta"),
    "quantised tensor": _quantised,
    "float16 tensor": lambda: _X.half(),
    "bfloat16 tensor": lambda: _X.bfloat16(),
    "float8 tensor": lambda: _X.to(torch.float8_e4m3fn),
    "float32 tensor": lambda: _X.float(),
    "huge tensor": lambda: _X * 1e300,
    "huge float32 tensor": lambda: (_X * 1e30).float(),
    "tiny tensor": lambda: _X * 1e-300,
    "tiny float32 tensor": lambda: (_X * 1e-30).float(),
    "subnormal tensor": lambda: torch.full((6, 3), 5e-324, dtype=torch.float64),
    "tensor with a gradient": lambda: _X.clone().requires_grad_(),
    "object array": lambda: np.array([[object(), 1.0, 2.0]] * 6, dtype=object),
    "ragged array": _ragged_objects,
    "structured array": lambda: np.zeros(6, dtype=[("a", "f8"), ("b", "i4")]),
    "masked array": lambda: np.ma.masked_array(np.ones((6, 3)), mask=np.eye(6, 3)),
    "array of words": lambda: np.array([["a", "b", "c"]] * 6),
    "array of dates": lambda: np.array(["2020-01-01"] * 6, dtype="M8[D]"),
    "float16 array": lambda: np.ones((6, 3), np.float16),
    "long double array": lambda: np.ones((6, 3), np.longdouble),
    "big-endian array": lambda: np.arange(18, dtype=">f8").reshape(6, 3),
    "read-only array": lambda: np.broadcast_to(np.arange(3.0), (6, 3)),
    "Fortran array": lambda: np.asfortranarray(_X.numpy()),
    "backward array": lambda: _X.numpy()[::-1],
    "matrix": lambda: np.ones((6, 3), order="F")[::2, ::-1],
    "generator": lambda: torch.Generator().manual_seed(0),
    "no device": lambda: torch.device("cuda", 99),
    "meta device": lambda: torch.device("meta"),
    "int8": lambda: torch.int8,
    "complex dtype": lambda: torch.complex64,
    "float16": lambda: torch.float16,
}
"""By name, a way to make each anew: no call sees what another may have changed."""


def contraction(z: torch.Tensor) -> torch.Tensor:
    """A good f: what it raises is, like that of a bad one, the caller's own."""
    return 0.5 * torch.tanh(z) + 1.0


def _failing(*_: Any) -> Any:
    raise KeyError("the caller's own function fails")
