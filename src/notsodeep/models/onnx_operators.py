"""Operators that the exporter writes with less accuracy than torch has, or that ONNX Runtime has in float32 only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_SELU_SCALE, _SELU_ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717
_FLOAT, _DOUBLE = 1, 11  # ONNX's numbers of the types

Table = dict[Callable[..., Any], Callable[..., Any]]


def translations(dtype: torch.dtype) -> Table:
    """For torch.onnx.export: torch's operators → the same numbers in ONNX's operators, for a network of this dtype."""
    from onnxscript import opset18

    op: Any = opset18

    def logaddexp(a: Any, b: Any) -> Any:
        """max(a, b) + log(1 + e^(−|a − b|)): the exporter's own is infinite where e^a or e^b overflows."""
        smaller = op.Exp(op.Neg(op.Abs(op.Sub(a, b))))
        return op.Add(op.Max(a, b), op.Log(op.Add(smaller, op.CastLike(_constant(1.0), smaller))))

    always: Table = {torch.ops.aten.logaddexp.default: logaddexp}
    return always | _rounded() | _in_float32_only() if dtype == torch.float64 else always


def _constant(value: float) -> Any:
    from onnxscript import ir, opset18

    op: Any = opset18
    return op.Constant(value=ir.tensor(float(value), dtype=ir.DataType.DOUBLE))


def _rounded() -> Table:
    """Operators whose numbers the exporter rounds to float32."""
    from onnxscript import opset18

    op: Any = opset18

    def scalar_tensor(s: float, dtype: int = _DOUBLE, **_: Any) -> Any:
        exact = _constant(s)  # the exporter's own goes through float32
        return exact if dtype == _DOUBLE else op.Cast(exact, to=dtype)

    def full_like(x: Any, fill_value: float, dtype: int = _DOUBLE, **_: Any) -> Any:
        return op.Expand(scalar_tensor(fill_value, dtype), op.Shape(x))

    def hardtanh(x: Any, low: float = -1.0, high: float = 1.0) -> Any:
        return op.Clip(x, _constant(low), _constant(high))

    def clamp(x: Any, low: Any = None, high: Any = None) -> Any:
        """A Clip: from Max and Min the exporter's optimiser makes one too, but loses its bounds where x has two of them."""
        if all(bound is None or (bound.shape is not None and len(bound.shape) == 0) for bound in (low, high)):
            return op.Clip(x, low, high)
        x = x if low is None else op.Max(x, low)
        return x if high is None else op.Min(x, high)

    aten = torch.ops.aten
    return {
        aten.scalar_tensor.default: scalar_tensor,
        aten.full_like.default: full_like,
        aten.hardtanh.default: hardtanh,
        aten.clamp.Tensor: clamp,
    }


def _in_float32_only() -> Table:
    """Operators that ONNX Runtime has in float32 only, made of others."""
    from onnxscript import opset18

    op: Any = opset18

    def leaky_relu(x: Any, slope: float = 0.01) -> Any:
        return op.Where(op.Greater(x, _constant(0.0)), x, op.Mul(x, _constant(slope)))

    def elu(x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
        """scale·x for x > 0, scale·alpha·(e^(input_scale·x) − 1) below."""
        power = op.Exp(op.Mul(_constant(input_scale), op.Clip(x, None, _constant(0.0))))
        below = op.Mul(_constant(scale * alpha), op.Sub(power, _constant(1.0)))
        return op.Where(op.Greater(x, _constant(0.0)), op.Mul(_constant(scale), x), below)

    def selu(x: Any) -> Any:
        return elu(x, _SELU_ALPHA, _SELU_SCALE)

    def erf(x: Any) -> Any:
        return op.Cast(op.Erf(op.Cast(x, to=_FLOAT)), to=_DOUBLE)

    def atan(x: Any) -> Any:
        """a + (x cos a − sin a)/(cos a + x sin a), a = atan(x) in float32: tan of what a misses, and that is its cube off."""
        first = op.Cast(op.Atan(op.Cast(x, to=_FLOAT)), to=_DOUBLE)
        sine, cosine = op.Sin(first), op.Cos(first)
        missed = op.Div(op.Sub(op.Mul(x, cosine), sine), op.Add(cosine, op.Mul(x, sine)))
        return op.Add(first, missed)

    aten = torch.ops.aten
    return {
        aten.leaky_relu.default: leaky_relu,
        aten.elu.default: elu,
        aten.selu.default: selu,
        aten.erf.default: erf,
        aten.atan.default: atan,
    }
