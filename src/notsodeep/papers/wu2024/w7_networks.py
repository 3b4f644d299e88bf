"""W7's networks for images: a small residual network and a small multiscale DEQ, with one stem, block and head.

Ref: Bai et al. (2020), [wu2024].
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from notsodeep.arguments import count
from notsodeep.errors import BadInput
from notsodeep.fixed_points.adjoint import Adjoint, PhantomAdjoint, require_adjoint
from notsodeep.fixed_points.fixed_point import fixed_point
from notsodeep.fixed_points.solution import Solution
from notsodeep.fixed_points.solvers import Anderson, Solver

State = tuple[Tensor, Tensor]
_GROUP = 16
_SMALL = 0.3  # of the usual deviation, for all layers that the state passes last: the map contracts at first, by about ½


def conv(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Conv2d:
    """A convolution without a bias, since a norm follows it; it keeps the resolution, or divides it by the stride."""
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)


def norm(channels: int) -> nn.GroupNorm:
    """Group norm over sixteen channels, or over all of them.

    It treats every sample alone, as a fixed point must; batch norm would couple them. Groups of few channels would not do: the
    mean of a channel normalised alone carries no information.
    """
    return nn.GroupNorm(channels // _GROUP if channels % _GROUP == 0 else 1, channels)


def stem(channels: int) -> nn.Sequential:
    """(n, 3, 2s, 2s) → (n, channels, s, s)."""
    return nn.Sequential(conv(3, channels, stride=2), norm(channels), nn.ReLU())


class Branch(nn.Module):
    """W₂ relu(norm(W₁ z)), the term that a residual block adds."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.first, self.norm, self.second = conv(inputs, outputs, stride=stride), norm(outputs), conv(outputs, outputs)

    def forward(self, z: Tensor) -> Tensor:
        out: Tensor = self.second(functional.relu(self.norm(self.first(z))))
        return out


class Head(nn.Module):
    """W mean(features) + b, with both resolutions in one map, features = [pool(high), low], (n, c₁ + c₂, s/2, s/2).

    `features` is an identity: Grad-CAM, which looks at a layer's output, finds the map there in every network with this head.
    """

    def __init__(self, channels: tuple[int, int], classes: int) -> None:
        super().__init__()
        self.features = nn.Identity()
        self.linear = nn.Linear(sum(channels), classes)

    def forward(self, high: Tensor, low: Tensor) -> Tensor:
        features = self.features(torch.cat([functional.avg_pool2d(high, 2), low], dim=1))
        out: Tensor = self.linear(features.mean((2, 3)))
        return out


class Block(nn.Module):
    """relu(norm(S z + branch(z))), with S the identity, or a 1 × 1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.branch, self.norm = Branch(inputs, outputs, stride), norm(outputs)
        same = stride == 1 and inputs == outputs
        self.short = nn.Identity() if same else conv(inputs, outputs, 1, stride)

    def forward(self, z: Tensor) -> Tensor:
        return functional.relu(self.norm(self.short(z) + self.branch(z)))


class ResidualNetwork(nn.Module):
    """stem → blocks[0] blocks of c₁ channels → blocks[1] blocks of c₂ at half the resolution → `Head` of both stages.

    With blocks = (1, 2) and c₂ = 2 c₁ it has 7 % more weights than the `MultiscaleDEQ` of the same channels. Images are
    (n, 3, H, W), H and W multiples of four. The weights are drawn from `generator`.
    """

    def __init__(
        self,
        classes: int = 10,
        channels: Sequence[int] = (32, 64),
        blocks: Sequence[int] = (1, 2),
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        c1, c2 = two(channels, "channels")
        many, more = two(blocks, "blocks")
        with torch.random.fork_rng(devices=[]):  # torch's layers draw weights of their own, which are replaced
            self.stem = stem(c1)
            self.high = nn.Sequential(*(Block(c1, c1) for _ in range(many)))
            self.low = nn.Sequential(Block(c1, c2, 2), *(Block(c2, c2) for _ in range(more - 1)))
            self.head = Head((c1, c2), count(classes, "classes"))
        draw_weights(self, generator)

    def forward(self, x: Tensor) -> Tensor:
        high = self.high(self.stem(require_images(x)))
        out: Tensor = self.head(high, self.low(high))
        return out


class MultiscaleDEQ(nn.Module):
    """z* = (h*, l*) with

        h = relu(norm(U_h s + branch_h(h) + up(V l))),    (n, c₁, H/2, W/2)
        l = relu(norm(U_l s + branch_l(l) + D h)),        (n, c₂, H/4, W/4)

    s = stem(x), branch a residual block's (`Branch`), D a convolution of stride 2, V one of 1 × 1, and logits = `Head`(h*, l*).

    The norm is outermost, which bounds the state whatever the weights. The skip term z of a residual block is left out: it lets
    signals pass through depth, and would keep this map from contracting.

    By default the gradient is that of four more steps of f at the solution: it costs a fixed number of products, needs no
    second equilibrium, and stays bounded where training makes the map contract little, while the implicit one grows like
    1/(1 − ‖J‖). A state that is not found within `max_steps` is used as it is (`solve` says which ones).
    """

    def __init__(
        self,
        classes: int = 10,
        channels: Sequence[int] = (32, 64),
        *,
        solver: Solver = Anderson(memory=4),  # noqa: B008 (a frozen value)
        adjoint: Adjoint = PhantomAdjoint(steps=4),  # noqa: B008
        tol: float = 1e-2,
        max_steps: int = 20,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        c1, c2 = self.channels = two(channels, "channels")
        require_adjoint(adjoint)
        self.solver, self.adjoint, self.tol, self.max_steps = solver, adjoint, tol, max_steps
        with torch.random.fork_rng(devices=[]):  # torch's layers draw weights of their own, which are replaced
            self.stem = stem(c1)
            self.into_high, self.into_low = conv(c1, c1), conv(c1, c2, stride=2)
            self.high, self.low = Branch(c1, c1), Branch(c2, c2)
            self.up, self.down = conv(c2, c1, 1), conv(c1, c2, stride=2)
            self.high_norm, self.low_norm = norm(c1), norm(c2)
            self.head = Head((c1, c2), count(classes, "classes"))
        draw_weights(self, generator)
        with torch.no_grad():
            for layer in (self.high.second, self.low.second, self.up, self.down):
                layer.weight.mul_(_SMALL)

    def injections(self, x: Tensor) -> State:
        """(U_h s, U_l s), the map's input from the images, computed once."""
        s = self.stem(require_images(x))
        return self.into_high(s), self.into_low(s)

    def step(self, state: State, u_high: Tensor, u_low: Tensor) -> State:
        """f(z) at the injections u."""
        high, low = state
        risen = functional.interpolate(self.up(low), scale_factor=2.0, mode="nearest")
        return (
            functional.relu(self.high_norm(u_high + self.high(high) + risen)),
            functional.relu(self.low_norm(u_low + self.low(low) + self.down(high))),
        )

    def solve(self, x: Tensor) -> Solution:
        """The equilibria (h*, l*) of the images, with steps, residuals, and which samples converged."""
        u_high, u_low = self.injections(x)
        start = functional.relu(self.high_norm(u_high)), functional.relu(self.low_norm(u_low))
        return fixed_point(
            lambda state: self.step(state, u_high, u_low),
            (start[0].detach(), start[1].detach()),
            self.solver,
            self.adjoint,
            tol=self.tol,
            max_steps=self.max_steps,
            throw=False,
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(*self.solve(x).value)
        return out


@torch.no_grad()
def draw_weights(module: nn.Module, generator: torch.Generator | None) -> None:
    """Draw convolutions from N(0, 2/fan-in) and the readout from a tenth of N(0, 1/fan-in); norms stay as they are."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            layer.weight.normal_(0.0, math.sqrt(2.0 / layer.weight[0].numel()), generator=generator)
        elif isinstance(layer, nn.Linear):
            layer.weight.normal_(0.0, 0.1 / math.sqrt(layer.in_features), generator=generator)
            layer.bias.zero_()


def require_images(x: Tensor) -> Tensor:
    """x, if it is (n, 3, H, W) with H and W multiples of 4; raises BadInput otherwise."""
    if x.ndim != 4 or x.shape[1] != 3 or x.shape[2] % 4 or x.shape[3] % 4 or x.numel() == 0:
        raise BadInput(f"Images are (n, 3, H, W), H and W multiples of 4; got {tuple(x.shape)}: reshape, crop or pad them.")
    return x


def two(values: Sequence[int], what: str) -> tuple[int, int]:
    """The two counts, one for each resolution; raises BadInput for anything else."""
    if isinstance(values, int) or len(values) != 2:
        raise BadInput(f"{what} must be two counts, one for each resolution, such as (32, 64); got {values!r}.")
    return count(values[0], what), count(values[1], what)
