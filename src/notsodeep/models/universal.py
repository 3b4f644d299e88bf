"""A feed-forward network as a DEQ, its layers stacked into one with nilpotent weights, and back.

    z = (z_1 … z_L),  z_1 = σ_1(B x + c_1),  z_l = σ_l(A_l z_{l−1} + c_l)

is z = σ(A z + B x + c) with A zero except for its first block sub-diagonal. L sweeps from any start are exact.

Ref: Bai, Kolter & Koltun (2019), Theorem 3 (universality of single-layer DEQs).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from notsodeep.activations import Activation, Scaled, activation
from notsodeep.activations.mixed import Units, each_kind
from notsodeep.activations.piecewise import Linear
from notsodeep.errors import BadInput
from notsodeep.fixed_points.solvers import Picard
from notsodeep.models.deq import DEQ
from notsodeep.models.enn import ENN
from notsodeep.theory.architecture import Stacked

_ELEMENTWISE = (
    nn.ReLU, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid, nn.Softplus,
    nn.Softsign, nn.Hardtanh, nn.ReLU6, nn.Hardsigmoid, nn.Hardswish, nn.LogSigmoid, nn.Tanhshrink, nn.Softshrink,
    nn.Hardshrink, nn.Threshold,
)  # fmt: skip
_IDENTITIES = (nn.Identity, nn.Dropout)


@dataclass(frozen=True, eq=False)
class _Layer:
    """σ(weight · previous + bias); an identity where weight is None."""

    weight: Tensor | None
    bias: Tensor | None
    sigma: Units
    width: int


def to_deq(network: nn.Module) -> DEQ:
    """The DEQ with the forward pass of `network`.

    The weights are copies; training them keeps the chain of layers. Dropout is left out, as in evaluation.

    Ref: Bai, Kolter & Koltun (2019), Theorem 3.

    Args:
        network: An `nn.Sequential` of `nn.Linear` and element-wise activations, or an `ENN`.

    Returns:
        A DEQ of a `Stacked` network.

    Raises:
        BadInput: A layer cannot be part of a single-layer DEQ, or there is no linear layer.
    """
    blocks = list(_of_enn(network) if isinstance(network, ENN) else _of_sequential(network))
    linear = next((block.weight for block in blocks if block.weight is not None), None)
    if linear is None:
        raise BadInput("The network has no linear layer, so the number of its inputs is not known; add one.")
    net = Stacked(tuple(block.sigma for block in blocks), tuple(block.width for block in blocks))
    deq = DEQ(net, linear.shape[1], net.width, solver=Picard(), bias=True, device=linear.device, dtype=linear.dtype)
    assert deq.bias is not None
    with torch.no_grad():
        for parameter in (deq.A, deq.B, deq.bias):
            parameter.zero_()
        below = 0
        for number, block in enumerate(blocks):
            rows = slice(below, below + block.width)
            into = deq.B[rows] if number == 0 else deq.A[rows, below - blocks[number - 1].width : below]
            into.copy_(torch.eye(block.width) if block.weight is None else block.weight)
            if block.bias is not None:
                deq.bias[rows] = block.bias
            below = rows.stop
    return deq


def to_explicit(deq: DEQ) -> nn.Sequential:
    """The feed-forward network of a DEQ made by `to_deq`, trained or not.

    Args:
        deq: A DEQ of a `Stacked` network.

    Returns:
        An `nn.Sequential` with copies of the weights.

    Raises:
        BadInput: `deq` was not made by `to_deq`.
    """
    if not isinstance(deq, DEQ) or not isinstance(deq.net, Stacked):
        raise BadInput("to_explicit takes a DEQ made by to_deq; compile_deq finds a network for any other.")
    layers: list[nn.Module] = []
    start = 0
    for number, (sigma, width) in enumerate(zip(deq.net.layers, deq.net.widths, strict=True)):
        rows = slice(start, start + width)
        source = deq.A[rows, start - deq.net.widths[number - 1] : start] if number else deq.B[rows]
        linear = nn.Linear(source.shape[1], width, device=source.device, dtype=source.dtype)
        with torch.no_grad():
            linear.weight.copy_(source)
            linear.bias.zero_() if deq.bias is None else linear.bias.copy_(deq.bias[rows])
        layers.append(linear)
        if sigma != Linear():
            layers.append(_as_module(sigma))
        start = rows.stop
    return nn.Sequential(*layers)


class ActivationLayer(nn.Module):
    """A layer's activation as a module."""

    def __init__(self, sigma: Units) -> None:
        super().__init__()
        self.sigma = sigma

    def forward(self, x: Tensor) -> Tensor:
        return self.sigma(x)

    def extra_repr(self) -> str:
        return str(self.sigma)


def _of_enn(enn: ENN) -> Iterator[_Layer]:
    for layer, (sigma, weight) in enumerate(zip(enn.net.layers, enn.effective_weights(), strict=True)):
        bias = None if enn.biases is None else enn.biases[layer]
        yield _Layer(weight, bias, each_kind(sigma, partial(Scaled, factor=1.0 / math.sqrt(len(weight)))), len(weight))
    last = enn.readout.effective_weight()
    if last is not None:
        yield _Layer(last, enn.readout.bias, Linear(), len(last))


def _of_sequential(network: nn.Module) -> Iterator[_Layer]:
    """Pairs of a linear and an activation layer, with an identity for whichever is missing."""
    layers = list(_flat(network, ""))
    pending: nn.Linear | None = None
    width = next((layer.in_features for _, layer in layers if isinstance(layer, nn.Linear)), 0)
    for place, layer in layers:
        if isinstance(layer, nn.Linear):
            if layer.in_features != width:
                raise BadInput(f"Layer {place} takes {layer.in_features} features, the layer before it gives {width}.")
            if pending is not None:
                yield _Layer(pending.weight, pending.bias, Linear(), width)
            pending, width = layer, layer.out_features
        elif pending is None:
            yield _Layer(None, None, _as_activation(layer), width)
        else:
            yield _Layer(pending.weight, pending.bias, _as_activation(layer), width)
            pending = None
    if pending is not None:
        yield _Layer(pending.weight, pending.bias, Linear(), width)


def _flat(network: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """Each layer with its place ("0", "2.1"), in nested sequences too; `BadInput` for one that no DEQ can express."""
    if not isinstance(network, nn.Sequential):
        raise BadInput(f"to_deq takes an nn.Sequential or an ENN, got {type(network).__name__}.")
    for number, layer in enumerate(network):
        place = f"{prefix}{number}"
        if isinstance(layer, nn.Sequential):
            yield from _flat(layer, f"{place}.")
        elif isinstance(layer, (nn.Linear, ActivationLayer, *_ELEMENTWISE)):
            yield place, layer
        elif not isinstance(layer, _IDENTITIES):
            raise BadInput(
                f"Layer {place}, {layer}, cannot be written as part of a single-layer DEQ: only nn.Linear, element-wise "
                "activations, Identity and Dropout can.",
                layer=layer,
                place=place,
            )


def _as_activation(layer: nn.Module) -> Units:
    if isinstance(layer, ActivationLayer):
        return layer.sigma
    if isinstance(layer, nn.ReLU):
        return activation("relu")
    if isinstance(layer, nn.Tanh):
        return activation("tanh")
    if isinstance(layer, nn.LeakyReLU):
        return activation(f"leaky_relu:{layer.negative_slope}")
    return ModuleActivation(layer)


def _as_module(sigma: Units) -> nn.Module:
    """The torch module with the values of σ."""
    if isinstance(sigma, ModuleActivation):
        return sigma.module
    known: dict[Units, nn.Module] = {activation("relu"): nn.ReLU(), activation("tanh"): nn.Tanh()}
    return known.get(sigma, ActivationLayer(sigma))


class ModuleActivation(Activation):
    """An element-wise torch module as an activation without moments: a network needs only its values."""

    lipschitz = math.inf

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        if getattr(module, "inplace", False):  # it would overwrite its part of the state
            self.module = copy.copy(module)
            self.module.inplace = False  # type: ignore[assignment]

    def __call__(self, x: Tensor) -> Tensor:
        value: Tensor = self.module(x)
        return value

    def derivative(self, x: Tensor) -> Tensor:
        slope: Tensor = torch.func.jvp(self.module, (x,), (torch.ones_like(x),))[1]
        return slope

    def __str__(self) -> str:
        return str(self.module)
