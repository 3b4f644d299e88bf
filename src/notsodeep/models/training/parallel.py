"""Networks of equal shape, trained at once: the first axis of their weights counts the networks.

A sum of their losses keeps their gradients apart, and optimisers that work entry by entry keep their steps apart: each learns
as it would alone. Ref: [wu2024], whose networks these are.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from notsodeep.arguments import count
from notsodeep.errors import BadInput
from notsodeep.fixed_points.adjoint import ImplicitAdjoint
from notsodeep.fixed_points.fixed_point import fixed_point
from notsodeep.fixed_points.solution import Solution
from notsodeep.fixed_points.solvers import Anderson
from notsodeep.models.relu_deq import ReluDEQ
from notsodeep.models.training.flops import Counted, Flops, deq_flops, fnn_flops, with_skip

_NORM_EPS = 1e-5


class Stack(nn.Module, ABC):
    """`copies` networks; x is (copies, n, d), or (n, d) for all of them, and y (copies, n, outputs).

    y = A z + c (+ V x where there is a V), z the features.
    """

    copies: int
    A: nn.Parameter
    c: nn.Parameter
    V: nn.Parameter | None

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """(copies, n, width)."""

    def constrain(self) -> None:
        """Project the weights to where the network is well posed, after a step of an optimiser."""

    @abstractmethod
    def flops(self) -> Flops:
        """FLOPs per sample; of a DEQ, with the evaluations of the last pass and its gradient."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.baddbmm(self.c, self.features(x), self.A.mT)
        return y if self.V is None else y + x @ self.V.mT

    def parameter_count(self) -> int:
        """Parameters of one network."""
        return sum(parameter.numel() for parameter in self.parameters()) // self.copies

    def _read_out(self, draws: _Draws, width: int, in_features: int, outputs: int, skip: bool) -> None:
        self.copies = len(draws)
        self.A, self.c = draws.layer(outputs, width)
        self.V = draws.uniform(outputs, in_features, in_features) if skip else None

    def _with_skip(self, flops: Flops) -> Flops:
        return flops if self.V is None else with_skip(flops, self.V.shape[2], self.V.shape[1])


class StackedFNN(Stack):
    """Hidden layers h ← φ(N(W h + b)), the last one the features. N normalises over the units, with its own scale and shift, if
    `norm`, and is the identity if not. φ is relu, or the layer's entry of `activations`."""

    def __init__(
        self,
        generators: Sequence[torch.Generator],
        in_features: int,
        widths: Sequence[int],
        outputs: int = 1,
        *,
        norm: bool = False,
        skip: bool = False,
        activations: Sequence[Callable[[Tensor], Tensor]] | None = None,
    ) -> None:
        super().__init__()
        draws = _Draws(generators)
        self.activations = (torch.relu,) * len(widths) if activations is None else tuple(activations)
        if len(self.activations) != len(widths):
            raise BadInput(f"{len(self.activations)} activations for {len(widths)} hidden layers; each layer has one.")
        self.sizes = [in_features, *(count(width, "width") for width in widths), outputs]
        layers = [draws.layer(to, by) for by, to in pairwise(self.sizes[:-1])]
        self.weights = nn.ParameterList([weight for weight, _ in layers])
        self.biases = nn.ParameterList([bias for _, bias in layers])
        self.norms = nn.ModuleList([_Norm(len(draws), width) if norm else nn.Identity() for width in widths])
        self._read_out(draws, widths[-1], in_features, outputs, skip)

    def features(self, x: Tensor) -> Tensor:
        h = x.expand(self.copies, *x.shape[-2:])
        for weight, bias, norm, phi in zip(self.weights, self.biases, self.norms, self.activations, strict=True):
            h = phi(norm(torch.baddbmm(bias, h, weight.mT)))
        return h

    def flops(self) -> Flops:
        return self._with_skip(fnn_flops(self.sizes))

    def member(self, index: int) -> nn.Sequential:
        """One of the networks as a module of its own."""
        if self.V is not None or any(isinstance(norm, _Norm) for norm in self.norms):
            raise BadInput("A Sequential of Linear and ReLU has no normalisation and no skip; this network has one.")
        if any(phi is not torch.relu for phi in self.activations):
            raise BadInput("A Sequential of Linear and ReLU has no other activation; this network has one.")
        parts: list[nn.Module] = []
        for weight, bias in zip([*self.weights, self.A], [*self.biases, self.c], strict=True):
            linear = nn.Linear(weight.shape[2], weight.shape[1], dtype=weight.dtype)
            linear.weight.data, linear.bias.data = weight[index].detach().cpu(), bias[index, 0].detach().cpu()
            parts += [linear, nn.ReLU()]
        return nn.Sequential(*parts[:-1])


class StackedDEQ(Stack):
    """z = relu(N(W z + U x + b)), by Anderson's method to `tol`, the gradient by the implicit function theorem.

    W starts at half the size of a layer's weights: its spectral radius is then about 0.3, and the map contracts. `constrain`
    keeps ‖W‖ at most `bound` < 1; with bound = 0 W is free. A sample not solved within `max_steps` keeps the best state found;
    `unsolved` is the share of such samples in the last pass.
    """

    def __init__(
        self,
        generators: Sequence[torch.Generator],
        in_features: int,
        width: int,
        outputs: int = 1,
        *,
        norm: bool = False,
        skip: bool = False,
        bound: float = 0.99,
        tol: float = 1e-3,
        max_steps: int = 50,
    ) -> None:
        super().__init__()
        draws = _Draws(generators)
        self.W = nn.Parameter(0.5 * draws.uniform(width, count(width, "width"), width).detach())
        self.U, self.b = draws.layer(width, in_features)
        self.norm = _Norm(len(draws), width) if norm else nn.Identity()
        self._read_out(draws, width, in_features, outputs, skip)
        self.bound, self.tol, self.max_steps = bound, tol, max_steps
        self.ahead, self.back = Counted(Anderson()), Counted(Anderson())
        self.unsolved = torch.zeros(self.copies)

    def solve(self, x: Tensor) -> Solution:
        """The states of all networks' samples, (copies·n, width)."""
        u = torch.baddbmm(self.b, x.expand(self.copies, *x.shape[-2:]), self.U.mT)

        def step(z: Tensor, W: Tensor, u: Tensor, *affine: Tensor) -> Tensor:
            h = torch.baddbmm(u, z.view(u.shape), W.mT)
            return torch.relu(_normalised(h, *affine) if affine else h).flatten(0, 1)

        self.ahead, self.back = Counted(Anderson()), Counted(Anderson())
        return fixed_point(
            step,
            torch.relu(u.detach()).flatten(0, 1),
            self.ahead,
            ImplicitAdjoint(self.back, tol=self.tol, max_steps=self.max_steps, throw=False),
            args=(self.W, u, *self.norm.parameters()),
            tol=self.tol,
            max_steps=self.max_steps,
            throw=False,
        )

    @torch.no_grad()
    def constrain(self) -> None:
        if self.bound > 0.0:
            self.W.mul_((self.bound / torch.linalg.matrix_norm(self.W, 2, keepdim=True)).clamp(max=1.0))

    def features(self, x: Tensor) -> Tensor:
        found = self.solve(x)
        self.unsolved = 1.0 - found.converged.view(self.copies, -1).float().mean(1)
        z: Tensor = found.value.view(self.copies, -1, self.W.shape[1])
        return z

    def flops(self) -> Flops:
        outputs, width = self.A.shape[1:]
        return self._with_skip(deq_flops(self.U.shape[2], width, outputs, self.ahead.solves, self.back.solves))

    def member(self, index: int) -> ReluDEQ:
        """One of the networks as a module of its own."""
        if isinstance(self.norm, _Norm):
            raise BadInput("A ReluDEQ has no normalisation; this network has one.")
        W, U, b, A, c = (weight[index].detach() for weight in (self.W, self.U, self.b, self.A, self.c))
        return ReluDEQ(W, U, b[0], A, None if self.V is None else self.V[index].detach(), c[0])


class _Norm(nn.Module):
    def __init__(self, copies: int, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(copies, 1, width))
        self.shift = nn.Parameter(torch.zeros(copies, 1, width))

    def forward(self, h: Tensor) -> Tensor:
        return _normalised(h, self.scale, self.shift)


def _normalised(h: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """(h − mean)/deviation over the units of a sample, scaled and shifted."""
    centred = h - h.mean(-1, keepdim=True)
    return torch.addcmul(shift, centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + _NORM_EPS), scale)


class _Draws:
    """Draws of weights like those of torch's linear layers, U(±1/√fan), with one generator per network."""

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        self.generators = generators

    def __len__(self) -> int:
        return len(self.generators)

    def uniform(self, rows: int, columns: int, fan: int) -> nn.Parameter:
        drawn = torch.stack([torch.rand(rows, columns, generator=generator) for generator in self.generators])
        return nn.Parameter((2.0 * drawn - 1.0) / math.sqrt(fan))

    def layer(self, to: int, by: int) -> tuple[nn.Parameter, nn.Parameter]:
        """(weight, bias)."""
        return self.uniform(to, by, by), self.uniform(1, to, by)
