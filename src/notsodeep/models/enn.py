"""A feed-forward network of finite width."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from notsodeep.activations import Mixed
from notsodeep.arguments import choices, count, flag, is_whole, shown, weight_options
from notsodeep.arrays import check_memory, module_input
from notsodeep.errors import BadInput
from notsodeep.models.export.onnx import to_onnx
from notsodeep.models.export.source import to_source, written
from notsodeep.models.predictor import Predictor
from notsodeep.theory.architecture import Explicit


class ENN(Predictor):
    """x^(l) = σ_l(g_l W_l x^(l−1))/√m_l for l = 1 … L, and out = g_{L+1} R x^(L); all weights N(0, 1/g²) at the start.

    The gains g of `net` are 1 unless it was designed with others. At the start they do not show; in training a layer learns
    g² times as fast, and one of gain 0 (whose weights are N(0, 1)) not at all. Ref: docs/theory.md, sections 5 and 7.

    Args:
        net: An `Explicit`, with the activations σ_1 … σ_L.
        in_features: Features p of a sample.
        width: Units m_l, one number or one per layer.
        out_features: Outputs; None returns the features x^(L).
        bias: Whether the layers have biases.
        readout_bias: Whether the readout has a bias.
        frozen: Weights that are not trained: "hidden", "readout".
        generator: Draws the weights.
        device: Device of the weights.
        dtype: Dtype of the weights.

    Raises:
        BadInput: An argument does not fit.
    """

    def __init__(
        self,
        net: Explicit,
        in_features: int,
        width: int | Sequence[int],
        out_features: int | None = None,
        *,
        bias: bool = False,
        readout_bias: bool = False,
        frozen: Iterable[str] = (),
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(net, Explicit):
            raise BadInput(f"ENN takes an Explicit network, got {type(net).__name__}; a DEQ takes an Implicit one.")
        self.net = net
        self.in_features = count(in_features, "in_features")
        self.widths = _widths(width, net.depth)
        for layer, units in zip(net.layers, self.widths, strict=True):
            if isinstance(layer, Mixed):
                layer.shares(units)  # raises where there are too few
        self.out_features = None if out_features is None else count(out_features, "out_features")
        still = choices(frozen, "frozen", ("hidden", "readout"))
        draw = Draw(*weight_options(generator, device, dtype))
        bias, readout_bias = flag(bias, "bias"), flag(readout_bias, "readout_bias")
        sizes = zip(self.widths, (self.in_features, *self.widths), net.gains, strict=False)
        self.weights = nn.ParameterList(draw.gaussian(rows, columns, gain) for rows, columns, gain in sizes)
        self.biases = nn.ParameterList(draw.zeros(m) for m in self.widths) if bias else None
        self.readout = Readout(self.widths[-1], self.out_features, readout_bias, draw, net.gains[-1])
        for weight, gain in zip(self.weights, net.gains, strict=False):
            weight.requires_grad_("hidden" not in still and gain != 0.0)
        if self.biases is not None:
            self.biases.requires_grad_("hidden" not in still)
        self.readout.requires_grad_("readout" not in still and net.gains[-1] != 0.0)

    @property
    def width(self) -> int:
        """Units of the last layer."""
        return self.widths[-1]

    def features(self, x: Tensor) -> Tensor:
        """(…, m): x^(L)."""
        x = module_input(x, self.in_features, self.weights[0], "ENN")
        for layer, (sigma, weight) in enumerate(zip(self.net.layers, self.effective_weights(), strict=True)):
            h = functional.linear(x, weight, None if self.biases is None else self.biases[layer])
            x = _scaled(sigma(h), 1.0 / math.sqrt(len(weight)))
        return x

    def forward(self, x: Tensor) -> Tensor:
        """(…, out_features), or the features where there is no readout."""
        out: Tensor = self.readout(self.features(x))
        return out

    def effective_weights(self) -> list[Tensor]:
        """g_l W_l of each hidden layer; the weights of a frozen layer as they are."""
        return [gained(weight, gain) for weight, gain in zip(self.weights, self.net.gains, strict=False)]

    def flops(self) -> int:
        """Multiplications and additions of the matrix products per sample."""
        hidden: int = sum(2 * weight.numel() for weight in self.weights)
        return hidden + self.readout.flops()

    def to_onnx(self, path: str | os.PathLike[str], *, check: bool = True) -> Path:
        """Write the network as one ONNX file, checked against this module; see `nsd.models.to_onnx`."""
        return to_onnx(self, path, check=check)

    def to_source(self, path: str | os.PathLike[str] | None = None) -> str:
        """The text of a program with the network and its weights that needs torch alone; also written to `path`, if given."""
        return written(to_source(self), path)

    def extra_repr(self) -> str:
        widths = self.widths[0] if len(set(self.widths)) == 1 else self.widths
        return f"{self.net}, in_features={self.in_features}, width={widths}, out_features={self.out_features}"


@torch.no_grad()
def assign(network: ENN, layer: int, weight: Tensor) -> None:
    """Make g_l W_l of the hidden layer with this number, from 0, equal to `weight`."""
    network.weights[layer].copy_(_without(network.net.gains[layer], weight))


@dataclass(frozen=True, eq=False)
class Draw:
    """Generator, device and dtype of new weights."""

    generator: torch.Generator | None
    device: torch.device | str | None
    dtype: torch.dtype | None

    def gaussian(self, rows: int, columns: int, gain: float = 1.0) -> nn.Parameter:
        """A parameter of N(0, 1/gain²), or N(0, 1) for a gain of 0, drawn on the generator's device: the same numbers on every
        device."""
        place = torch.device("cpu" if self.device is None else self.device)
        if place.type != "meta":
            what, dtype = f"A weight of {rows} × {columns}", self.dtype or torch.get_default_dtype()
            check_memory((rows, columns), dtype, place, "a narrower network", what)
        where = self.device if self.generator is None else self.generator.device
        drawn = torch.randn(rows, columns, generator=self.generator, device=where, dtype=self.dtype)
        scaled = drawn if gain in (0.0, 1.0) else drawn / gain
        return nn.Parameter(scaled if self.device is None else scaled.to(self.device))

    def zeros(self, size: int) -> nn.Parameter:
        """A parameter of zeros."""
        return nn.Parameter(torch.zeros(size, device=self.device, dtype=self.dtype))


class Readout(nn.Module):
    """out = g R z (+ c), R of N(0, 1/g²); z includes the factor 1/√m. Without `out_features`, out = z."""

    def __init__(self, width: int, out_features: int | None, bias: bool, draw: Draw, gain: float = 1.0) -> None:
        super().__init__()
        self.gain = gain
        if bias and out_features is None:
            raise BadInput("readout_bias needs a readout: give out_features.")
        self.weight = None if out_features is None else draw.gaussian(out_features, width, gain)
        self.bias = draw.zeros(out_features or 0) if bias else None

    def forward(self, z: Tensor) -> Tensor:
        weight = self.effective_weight()
        return z if weight is None else functional.linear(z, weight, self.bias)

    def effective_weight(self) -> Tensor | None:
        """g R; None without a readout."""
        return None if self.weight is None else gained(self.weight, self.gain)

    @torch.no_grad()
    def assign(self, weight: Tensor, bias: Tensor | None) -> None:
        """Make it out = weight·z (+ bias)."""
        assert self.weight is not None
        self.weight.copy_(_without(self.gain, weight))
        if self.bias is not None and bias is not None:
            self.bias.copy_(bias)

    def flops(self) -> int:
        return 0 if self.weight is None else 2 * self.weight.numel()

    def extra_repr(self) -> str:
        return "none" if self.weight is None else f"{tuple(self.weight.shape)}, bias={self.bias is not None}"


def gained(weight: Tensor, gain: float) -> Tensor:
    """gain·weight; the weights of a frozen layer, of gain 0, as they are."""
    return weight if gain in (0.0, 1.0) else gain * weight


def _without(gain: float, weight: Tensor) -> Tensor:
    """The parameter of which `gained` makes `weight`."""
    return weight if gain in (0.0, 1.0) else weight / gain


def _scaled(fresh: Tensor, factor: float) -> Tensor:
    """factor·fresh, in place where no gradient needs the old values."""
    return fresh * factor if torch.is_grad_enabled() else fresh.mul_(factor)


def _widths(width: int | Sequence[int], depth: int) -> tuple[int, ...]:
    if is_whole(width):
        return (count(width, "width"),) * depth
    if not isinstance(width, list | tuple):
        raise BadInput(f"width must be a whole number ≥ 1, or one for each of {depth} hidden layers; got {shown(width)}.")
    widths = tuple(count(m, "width") for m in width)
    if len(widths) != depth:
        raise BadInput(f"width has {len(widths)} entries for a network of {depth} hidden layers; give one number, or {depth}.")
    return widths
