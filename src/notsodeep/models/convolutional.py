"""Convolutional networks of finitely many channels: a DEQ whose state is a feature map, and a feed-forward one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from notsodeep.activations import Mixed
from notsodeep.arguments import choices, count, counts, flag, instance, norm, weight_options
from notsodeep.arrays import check_dense
from notsodeep.errors import BadInput
from notsodeep.fixed_points.adjoint import Adjoint, ImplicitAdjoint, require_adjoint
from notsodeep.fixed_points.fixed_point import fixed_point
from notsodeep.fixed_points.plan import FullPrecision, Plan, Precision
from notsodeep.fixed_points.solution import Solution
from notsodeep.fixed_points.solvers import Anderson, Solver
from notsodeep.models.enn import Draw, Readout, gained
from notsodeep.theory.architecture import Explicit, Implicit
from notsodeep.theory.convolution import Convolutional, Patches

_CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d}


class _OfImages(nn.Module):
    """What both networks share: their patches, and the readout of a feature map z (n, m, …).

    A flat readout takes z of all positions over √|s|, a pooled one their mean.
    """

    def __init__(
        self,
        images: Convolutional,
        channels: int,
        width: int,
        out_features: int | None,
        grid: Sequence[int] | None,
        readout_bias: bool,
        draw: Draw,
        gain: float = 1.0,
    ) -> None:
        super().__init__()
        self.images, self.channels = images, count(channels, "channels")
        self.out_features = None if out_features is None else count(out_features, "out_features")
        self.grid = None if grid is None else counts(grid, "lengths")
        self.patch = (images.patch,) * len(self.grid or (0, 0)) if isinstance(images.patch, int) else images.patch
        sites = 1 if images.pooled or self.grid is None else images.patches(self.grid).positions
        if self.out_features is not None and not images.pooled and self.grid is None:
            raise BadInput(
                "A flat readout has weights for every position: give grid=(height, width), or (length,) of signals; or read "
                'the mean over positions, Convolutional(…, readout="pooled").'
            )
        self.readout = Readout(width * sites, self.out_features, readout_bias, draw, gain)

    def features(self, x: Tensor) -> Tensor:
        """(n, features): what the readout takes."""
        z = self.feature_map(x).flatten(2)
        return z.mean(2) if self.images.pooled else z.flatten(1) / math.sqrt(z.shape[2])

    def feature_map(self, x: Tensor) -> Tensor:
        """(n, m, …): the features of every position."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """(n, out_features), or the features where there is no readout."""
        out: Tensor = self.readout(self.features(x))
        return out

    def _checked(self, x: Tensor, weight: Tensor) -> Patches:
        axes, name = len(self.patch), type(self).__name__
        if isinstance(x, Tensor):
            check_dense(x, "x")
        if not isinstance(x, Tensor) or x.ndim != 2 + axes or x.shape[1] != self.channels:
            given = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            shape = "height, width" if axes == 2 else "length"
            raise BadInput(f"x has shape {given}; this {name} takes (n, {self.channels}, {shape}).")
        if self.grid is not None and tuple(x.shape[2:]) != self.grid:
            raise BadInput(f"x has positions {tuple(x.shape[2:])}; this {name} was made for grid = {self.grid}.")
        if x.dtype != weight.dtype or x.device != weight.device:
            raise BadInput(f"x is {x.dtype} on {x.device} and the weights are {weight.dtype} on {weight.device}; convert one.")
        return self.images.patches(x.shape[2:])

    def _convolved(self, x: Tensor, weight: Tensor, patches: Patches) -> Tensor:
        """Σ_r W_r x[s + r], with zeros or the other end beyond the edges."""
        reach = [length // 2 for length in patches.patch]
        convolution = _CONVOLUTIONS[len(reach)]
        if patches.circular:
            sides = [side for length in reversed(reach) for side in (length, length)]
            x, reach = functional.pad(x, sides, mode="circular"), [0] * len(reach)
        found: Tensor = convolution(x, weight, padding=reach)
        return found

    def _kernel(self, draw: Draw, rows: int, columns: int, gain: float = 1.0) -> nn.Parameter:
        flat = draw.gaussian(rows, columns * math.prod(self.patch), gain)
        return nn.Parameter(flat.detach().view(rows, columns, *self.patch))

    def _shared_repr(self) -> str:
        return f"{self.images}, channels={self.channels}, out_features={self.out_features}, grid={self.grid}"

    @property
    def _patch_size(self) -> int:
        return math.prod(self.patch)


class ConvDEQ(_OfImages):
    """z* = φ(h*)/√m, h*[s] = (σ_a Σ_r A_r z*[s + r] + σ_b Σ_r B_r x[s + r])/√|P| (+ c), and out of the readout of z*.

    Ref: docs/theory.md, section 10.

    Args:
        images: A `Convolutional` of an `Implicit`; its φ is centred at `tau0`.
        channels: Channels of a sample.
        width: Channels m of the state.
        out_features: Outputs; None returns the features.
        grid: (height, width) or (length,) of the samples; needed by a flat readout.
        solver: Solver of the equilibrium.
        adjoint: Method of the gradient; the exact `ImplicitAdjoint` by default.
        tol, relative, max_steps, precision, throw, atol: As in `DEQ`.
        tau0: Root mean square norm of a patch that φ is centred for, `images.tau0(x)`.
        bias: Whether there is a c, one for each channel of the state.
        readout_bias: Whether the readout has a bias.
        generator: Draws the weights.
        device: Device of the weights.
        dtype: Dtype of the weights.

    Raises:
        BadInput: An argument does not fit.
    """

    def __init__(
        self,
        images: Convolutional,
        channels: int,
        width: int,
        out_features: int | None = None,
        *,
        grid: Sequence[int] | None = None,
        solver: Solver = Anderson(),  # noqa: B008 (a frozen value)
        adjoint: Adjoint | None = None,
        tol: float | None = None,
        relative: bool = True,
        max_steps: int = 200,
        precision: Precision = FullPrecision(),  # noqa: B008
        throw: bool = True,
        atol: float = 0.0,
        tau0: float = 1.0,
        bias: bool = False,
        readout_bias: bool = False,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        net = _network(images, Implicit, "ConvDEQ")
        draw, units = Draw(*weight_options(generator, device, dtype)), count(width, "width")
        super().__init__(images, channels, units, out_features, grid, flag(readout_bias, "readout_bias"), draw)
        self.width, self.tau0 = units, norm(tau0)
        with torch.device("cpu"):  # the offset is a number, on whatever device the weights are made
            self.phi = net.centred(self.tau0).phi
        self.recurrent = math.sqrt(net.var_a / (self.width * self._patch_size))
        self.inward = math.sqrt(net.var_b / self._patch_size)
        self.adjoint = ImplicitAdjoint() if adjoint is None else adjoint
        require_adjoint(self.adjoint)
        self.plan = Plan(solver, tol, relative, max_steps, precision, throw, atol)
        self.A = self._kernel(draw, self.width, self.width)
        self.B = self._kernel(draw, self.width, self.channels)
        self.bias = draw.zeros(self.width) if flag(bias, "bias") else None

    def solve(self, x: Tensor) -> Solution:
        """√m z* of the samples x, (n, m, …), with steps, residuals, and which samples converged."""
        patches = self._checked(x, self.B)
        drive = self._convolved(x, self.B * self.inward, patches)
        if self.bias is not None:
            drive = drive + self.bias.view(-1, *(1,) * len(self.patch))

        def step(state: Tensor, drive: Tensor, weight: Tensor) -> Tensor:
            following: Tensor = self.phi(self._convolved(state, weight, patches) + drive)
            return following

        plan: dict[str, Any] = {field.name: getattr(self.plan, field.name) for field in fields(Plan)}
        terms: dict[str, Any] = {"inputs": (drive,), "args": (self.A * self.recurrent,)}
        return fixed_point(step, self.phi(drive), adjoint=self.adjoint, samples=1, **terms, **plan)

    def feature_map(self, x: Tensor) -> Tensor:
        """(n, m, …): z* of every position."""
        value: Tensor = self.solve(x).value
        return value / math.sqrt(self.width)

    def extra_repr(self) -> str:
        return (
            f"{self.images}, channels={self.channels}, width={self.width}, out_features={self.out_features}, grid={self.grid}"
        )


class ConvENN(_OfImages):
    """x^(l)[s] = σ_l(g_l Σ_r W_{l,r} x^(l−1)[s + r]/√|P|)/√m_l for l = 1 … L, and out of g_{L+1} R; weights N(0, 1/g²) at the
    start. Ref: docs/theory.md, sections 7 and 10.

    Args:
        images: A `Convolutional` of an `Explicit`.
        channels: Channels of a sample.
        width: Channels m_l, one number or one per layer.
        out_features: Outputs; None returns the features.
        grid: (height, width) or (length,) of the samples; needed by a flat readout.
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
        images: Convolutional,
        channels: int,
        width: int | Sequence[int],
        out_features: int | None = None,
        *,
        grid: Sequence[int] | None = None,
        bias: bool = False,
        readout_bias: bool = False,
        frozen: Iterable[str] = (),
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        net = _network(images, Explicit, "ConvENN")
        widths = counts(width, "widths") if isinstance(width, tuple | list) else (count(width, "width"),) * net.depth
        if len(widths) != net.depth:
            raise BadInput(f"width has {len(widths)} entries for a network of {net.depth} hidden layers.")
        draw, still = Draw(*weight_options(generator, device, dtype)), choices(frozen, "frozen", ("hidden", "readout"))
        options = (out_features, grid, flag(readout_bias, "readout_bias"), draw, net.gains[-1])
        super().__init__(images, channels, widths[-1], *options)
        self.widths, self.net = widths, net
        sizes = zip(widths, (self.channels, *widths), net.gains, strict=False)
        self.weights = nn.ParameterList(self._kernel(draw, *size) for size in sizes)
        self.biases = nn.ParameterList(draw.zeros(m) for m in widths) if flag(bias, "bias") else None
        for weight, gain in zip(self.weights, net.gains, strict=False):
            weight.requires_grad_("hidden" not in still and gain != 0.0)
        if self.biases is not None:
            self.biases.requires_grad_("hidden" not in still)
        self.readout.requires_grad_("readout" not in still and net.gains[-1] != 0.0)

    def feature_map(self, x: Tensor) -> Tensor:
        """(n, m, …): x^(L) of every position."""
        patches = self._checked(x, self.weights[0])
        for layer, (units, weight, gain) in enumerate(zip(self.net.layers, self.weights, self.net.gains, strict=False)):
            h = self._convolved(x, gained(weight, gain) / math.sqrt(self._patch_size), patches)
            if self.biases is not None:
                h = h + self.biases[layer].view(-1, *(1,) * len(self.patch))
            values = units(h.movedim(1, -1)).movedim(-1, 1) if isinstance(units, Mixed) else units(h)
            x = values / math.sqrt(len(weight))
        return x

    def extra_repr(self) -> str:
        widths = self.widths[0] if len(set(self.widths)) == 1 else self.widths
        return f"{self._shared_repr()}, width={widths}"


def _network(images: Any, kind: type[Any], module: str) -> Any:
    instance(images, Convolutional, "images", f"Convolutional({kind.__name__}(…))")
    if not isinstance(images.net, kind):
        raise BadInput(
            f"{module} takes a Convolutional of an {kind.__name__} network, got one of an {type(images.net).__name__}."
        )
    return images.net
