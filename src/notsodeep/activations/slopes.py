"""Slopes by automatic differentiation, to all the digits that φ has.

torch makes those of tanh, sigmoid and expm1 of their values, as 1 − tanh², σ(1 − σ) and expm1 + 1: differences of numbers near
1, of which nothing is left where tanh is. Here they are tanh' = cosh⁻², σ' = σ(x)σ(−x) and expm1' = exp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

Function = Callable[[Tensor], Tensor]


def of_tanh(x: Tensor) -> Tensor:
    """cosh(x)^(−2)"""
    return torch.cosh(x.clamp(-350, 350)) ** -2


def of_sigmoid(x: Tensor) -> Tensor:
    """σ(x)σ(−x)"""
    return torch.sigmoid(x) * torch.sigmoid(-x)


def derivative(function: Function, x: Tensor, keep: bool = False) -> Tensor:
    """φ'(x) by automatic differentiation; where `keep`, with the graph that a second derivative needs."""
    with torch.enable_grad():
        point = x if keep and x.requires_grad else x.detach().requires_grad_()
        with _OwnSlopes():
            value = function(point)
        if not value.requires_grad:
            return torch.zeros_like(x)
        (slope,) = torch.autograd.grad(value.sum(), point, create_graph=keep)
    return slope if keep else slope.detach()


class _WithSlope(torch.autograd.Function):
    """`function` of x with `slope` of x as its derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Function, slope: Function) -> Tensor:
        ctx.save_for_backward(x)
        ctx.slope = slope
        return function(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return grad * ctx.slope(x), None, None


_SLOPES: dict[Any, tuple[Function, Function]] = {
    **dict.fromkeys((torch.tanh, Tensor.tanh), (torch.tanh, of_tanh)),
    **dict.fromkeys((torch.sigmoid, Tensor.sigmoid, torch.special.expit), (torch.sigmoid, of_sigmoid)),
    **dict.fromkeys((torch.expm1, Tensor.expm1, torch.special.expm1), (torch.expm1, torch.exp)),
}
"""By every name that torch has for it: a function and its slope."""


class _OwnSlopes(TorchFunctionMode):
    """While it lasts, the functions of `_SLOPES` have the slopes given there."""

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        known = _SLOPES.get(func)
        if known is None or kwargs or len(args) != 1:
            return func(*args, **(kwargs or {}))
        return _WithSlope.apply(args[0], *known)
