"""A model whose fixed point is a few steps of its own map: from a learnt start, mixed by learnt numbers."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from notsodeep.arguments import count
from notsodeep.fixed_points.capture import eager
from notsodeep.fixed_points.layout import Map
from notsodeep.fixed_points.linear import CircularConvolution, Dense
from notsodeep.fixed_points.splitting import slopes_at
from notsodeep.fixed_points.stand_in import LeafMap, Problem, Solved, answered_by
from notsodeep.models.deq import DEQ
from notsodeep.models.export.onnx import to_onnx
from notsodeep.models.export.source import written
from notsodeep.models.export.unrolled_source import unrolled_source
from notsodeep.models.predictor import Predictor

_KEPT_POWER = 0.999  # of the squares of an impulse response, which its cut keeps
_WIDEST = 7  # offsets of it in every direction


class Unrolled(Predictor):
    """`model` with K steps of its map f in the place of its fixed point: no solver, no loop, no check.

        s_0 = start,    s_{k+1} = s_k + Σ_{j ≤ k} c_kj (f(s_j) − s_j),    the model goes on with s_K

    Plain steps begin where the model's solver does and have c_kk = 1, or its damping, and no others. Learnt ones have all c_kj,
    and a constant that is added to the start. With a `response`, the start is that of the linearised equation. With a
    `resolvent`, f is the Peaceman–Rachford step T(v) = 2 R(r + u) − r, r = 2 φ(v) − v, R = (2 I − W)⁻¹, and z = φ(s_K).

    Args:
        model: A module with one fixed point: a DEQ, or any that calls `fixed_point`. It is not copied.
        steps: K.
        damping: c_kk of plain steps; None for that of the model's own solver.
        shifts: The constants of learnt steps, one per tensor of the state; None for plain steps.
        response: The linear response of a map φ(W z + u); see `linear_response`.
        resolvent: R of such a map; see `split_resolvent`.
    """

    def __init__(
        self,
        model: nn.Module,
        steps: int,
        damping: float | None = None,
        shifts: Sequence[Tensor] | None = None,
        response: Response | None = None,
        resolvent: Response | None = None,
    ) -> None:
        super().__init__()
        self.model, self.steps, self.response = model, count(steps, "steps", least=0), response
        self.resolvent = resolvent
        self.damping = model.damping if damping is None and isinstance(model, DEQ) else damping
        if isinstance(model, Predictor):
            self.in_features, self.out_features = model.in_features, model.out_features
            self.preprocessing = model.preprocessing
        if isinstance(model, DEQ):
            self.tau0 = model.tau0
        self.shifts = self.mixing = None
        if shifts is not None:
            self.shifts = nn.ParameterList(nn.Parameter(shift.clone()) for shift in shifts)
            plain = torch.eye(steps).expand(len(shifts), -1, -1) * (1.0 if self.damping is None else self.damping)
            self.mixing = nn.Parameter(plain.to(shifts[0]))

    @classmethod
    def learning(
        cls, model: nn.Module, steps: int, solved: Solved, response: Response | None = None, resolvent: Response | None = None
    ) -> Unrolled:
        """Steps that can learn, equal to plain ones until they do."""
        problem = solved.problem
        shifts = [leaf.new_zeros(_one_per_channel(leaf.shape, problem.axes)) for leaf in solved.value]
        return cls(model, steps, problem.damping if resolvent is None else 1.0, shifts, response, resolvent)

    @eager
    def forward(self, x: Tensor) -> Any:
        """The outputs of the model."""
        with answered_by(self):
            return self.model(x)

    def answer(self, problem: Problem) -> list[Tensor]:
        """The state after K steps."""
        state, f, parts, resolvent = list(problem.start), problem.f, problem.structure, self.resolvent
        if self.response is not None:
            assert parts is not None
            state = [parts.phi(self.response(parts.u.expand(state[0].shape)))]
        if resolvent is not None:
            assert parts is not None
            phi, u = parts.phi, parts.u.expand(state[0].shape)

            def f(v: Sequence[Tensor]) -> list[Tensor]:
                reflected = 2.0 * phi(v[0]) - v[0]
                return [2.0 * resolvent(reflected + u) - reflected]

            return [phi(self._stepped(f, state, problem)[0])]
        return self._stepped(f, state, problem)

    def _stepped(self, f: LeafMap, state: list[Tensor], problem: Problem) -> list[Tensor]:
        damping = problem.damping if self.damping is None else self.damping
        if self.shifts is None or self.mixing is None:
            for _ in range(self.steps):
                image = f(state)
                if damping != 1.0:
                    image = [torch.lerp(old, new, damping) for old, new in zip(state, image, strict=True)]
                state = image
            return state
        state = [leaf + shift for leaf, shift in zip(state, self.shifts, strict=True)]
        missed: list[list[Tensor]] = []
        for k in range(self.steps):
            missed.append([new - old for new, old in zip(f(state), state, strict=True)])
            state = [
                leaf + sum(self.mixing[place, k, j] * earlier[place] for j, earlier in enumerate(missed))
                for place, leaf in enumerate(state)
            ]
        return state

    def to_onnx(
        self, path: str | os.PathLike[str], example: Tensor | tuple[Tensor, ...] | None = None, *, check: bool = True
    ) -> Path:
        """Write the network as one ONNX file; see `nsd.models.to_onnx`. Any but a DEQ's needs an example of its inputs."""
        return to_onnx(self, path, example, check=check)

    def to_source(self, path: str | os.PathLike[str] | None = None) -> str:
        """The text of a program with these steps of a DEQ that needs torch alone; also written to `path`, if given."""
        return written(unrolled_source(self), path)

    def extra_repr(self) -> str:
        kind = "plain" if self.shifts is None else "learnt"
        kind += " splitting" if self.resolvent else ""
        start = ", from the linear response" if self.response else ""
        return f"{self.steps} {kind} step{'s' * (self.steps != 1)}{start}"


def _one_per_channel(shape: torch.Size, axes: int) -> tuple[int, ...]:
    """The shape of a constant for a tensor of this shape whose first `axes` axes count samples.

    One number per feature, of images per channel, of sequences per feature: lengths and sizes may change. A state that is one
    sample as a whole gets one number: more would know its answer by heart.
    """
    own = shape[axes:]
    if axes == 0 or not own:
        return ()
    if len(own) <= 2:
        return (own[-1],)
    return (own[0], *(1 for _ in own[1:]))


class DenseResponse(nn.Module):
    """u ↦ R u + r for features u, (n, m)."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, u: Tensor) -> Tensor:
        return functional.linear(u, self.weight, self.bias)


class ConvolutionResponse(nn.Module):
    """u ↦ R ∗ u + r for images u, (n, c, h, w), or signals, with circular padding."""

    def __init__(self, kernel: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(kernel), nn.Parameter(bias)

    def forward(self, u: Tensor) -> Tensor:
        return CircularConvolution(self.weight)(u) + self.bias


Response = DenseResponse | ConvolutionResponse


@torch.no_grad()
def linear_response(solved: Solved) -> Response | None:
    """The pre-activations h of the linearised equation as a function of u, where f(z) = φ(W z + u); None for another f.

    φ(h) ≈ D̄ h + e, with the mean slopes D̄ and mean remainders e of each unit (channel) at the solutions, so that
    h = (I − W D̄)⁻¹ (u + W e). A circular convolution has the inverse of a matrix per frequency; its impulse response is cut
    where 99.9 % of its power is inside.
    """
    parts = solved.problem.structure
    if parts is None or len(solved.value) != 1:
        return None
    z, linear = solved.value[0], parts.weight
    h = linear(z) + parts.u
    if isinstance(linear, Dense):
        inverse, constant = linearised(parts.phi, linear.weight, h)
        return DenseResponse(inverse.to(z), constant.to(z)) if usable(inverse) else None
    if isinstance(linear, CircularConvolution):
        axes, slopes = (0, *range(2, z.ndim)), slopes_at(parts.phi, h)
        slope, rest = (v.double().mean(axes) for v in (slopes, parts.phi(h) - slopes * h))
        found = _inverse_filter(linear, 1.0, slope, z)
        if found is None:
            return None
        kernel, sums = found
        constant = sums @ (linear.kernel.double().sum(tuple(range(2, linear.kernel.ndim))) @ rest)
        return ConvolutionResponse(kernel.to(z), constant.reshape(-1, *(1 for _ in axes[1:])).to(z))
    return None


@torch.no_grad()
def split_resolvent(solved: Solved) -> Response | None:
    """(2 I − W)⁻¹ of a map φ(W z + u), with which a Peaceman–Rachford step is one product; None for another map."""
    parts = solved.problem.structure
    if parts is None or len(solved.value) != 1:
        return None
    z, linear = solved.value[0], parts.weight
    if isinstance(linear, Dense):
        weight = linear.weight.double()
        inverse = _inverse(2.0 * torch.eye(len(weight), dtype=torch.float64, device=z.device) - weight)
        return DenseResponse(inverse.to(z), z.new_zeros(len(weight))) if usable(inverse) else None
    if isinstance(linear, CircularConvolution):
        resolvent = _inverse_filter(linear, 2.0, z.new_ones(z.shape[1], dtype=torch.float64), z)
        nothing = z.new_zeros(z.shape[1], *(1,) * (z.ndim - 2))
        return None if resolvent is None else ConvolutionResponse(resolvent[0].to(z), nothing)
    return None


@torch.no_grad()
def linearised(phi: Map, weight: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """R and r of the linearised equation h ≈ R u + r at pre-activations h (…, m): R = (I − W D̄)⁻¹, r = R W e, in float64."""
    axes, slopes = tuple(range(h.ndim - 1)), slopes_at(phi, h)
    slope, rest = (v.double().mean(axes) for v in (slopes, phi(h) - slopes * h))
    weight = weight.double()
    inverse = _inverse(torch.eye(len(weight), dtype=torch.float64, device=h.device) - weight * slope)
    return inverse, inverse @ (weight @ rest)


def _inverse(system: Tensor) -> Tensor:
    """The inverse of a matrix or of several; NaN where there is none."""
    found = torch.linalg.inv_ex(system)
    inverse: Tensor = found.inverse.masked_fill((found.info != 0)[..., None, None], torch.nan)
    return inverse


def _inverse_filter(linear: CircularConvolution, diagonal: float, slope: Tensor, z: Tensor) -> tuple[Tensor, Tensor] | None:
    """The kernel of (d I − W D)⁻¹ for images like z, cut where 99.9 % of its power is inside, and that matrix for constant
    images; None where there is no inverse."""
    sizes, axes, channels = z.shape[2:], tuple(range(2, z.ndim)), z.shape[1]
    impulses = torch.zeros(channels, channels, *sizes, dtype=torch.float64, device=z.device)
    impulses.flatten(2)[:, :, 0].fill_diagonal_(1.0)  # image i: a peak in channel i
    columns = CircularConvolution(linear.kernel.double())(impulses)  # W of each peak: (in, out, …)
    response = torch.fft.rfftn(columns, dim=axes).flatten(2).permute(2, 1, 0)  # (frequencies, out, in)
    inverse = _inverse(diagonal * torch.eye(channels, dtype=torch.float64, device=z.device) - response * slope)
    spectrum = inverse.permute(2, 1, 0).reshape(channels, channels, *sizes[:-1], sizes[-1] // 2 + 1)
    peaks = torch.fft.irfftn(spectrum, s=sizes, dim=axes)  # (in, out, …), the answer to each peak
    if not usable(peaks):
        return None
    # As a cross-correlation, the weight at offset d is the answer at −d; offset 0 goes to the middle.
    middle = [size // 2 for size in sizes]
    centred = torch.roll(peaks.flip(axes), [m + 1 for m in middle], axes)
    total, most = float(peaks.square().sum()), min(_WIDEST, (min(sizes) - 1) // 2)
    for reach in range(most + 1):
        kernel = centred
        for axis, m in zip(axes, middle, strict=True):
            kernel = kernel.narrow(axis, m - reach, 2 * reach + 1)
        if float(kernel.square().sum()) >= _KEPT_POWER * total:
            break
    return kernel.transpose(0, 1).contiguous(), inverse[0].real  # a constant has frequency 0


def usable(inverse: Tensor) -> bool:
    """Whether the inverse of I − W D̄ exists, and float32 can hold what it makes of rounded numbers."""
    return bool(inverse.isfinite().all()) and float(inverse.abs().max()) < 1.0 / math.sqrt(torch.finfo(torch.float32).eps)
