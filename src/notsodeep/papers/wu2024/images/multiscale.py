"""A small multiscale DEQ for images: one equilibrium of a map at two resolutions. Ref: Bai et al. (2020), [wu2024]."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from notsodeep.arguments import count
from notsodeep.fixed_points.adjoint import Adjoint, PhantomAdjoint, require_adjoint
from notsodeep.fixed_points.fixed_point import fixed_point
from notsodeep.fixed_points.solution import Solution
from notsodeep.fixed_points.solvers import Anderson, Solver
from notsodeep.papers.wu2024.images.residual import Branch, Head, conv, draw_weights, norm, require_images, stem, two

_SMALL = 0.3  # of the usual deviation, for all that the state passes last: the map contracts at the start, factor ~ ½

State = tuple[Tensor, Tensor]


class MultiscaleDEQ(nn.Module):
    """z* = (h*, l*) with

        h = relu(norm(U_h s + branch_h(h) + up(V l))),    (n, c₁, H/2, W/2)
        l = relu(norm(U_l s + branch_l(l) + D h)),        (n, c₂, H/4, W/4)

    s = stem(x), branch a residual block's (`Branch`), D a convolution of stride 2, V one of 1 × 1, and logits = `Head`(h*, l*).

    The norm is outermost, so that the state is bounded whatever the weights. A residual block's term z beside branch(z) is left
    out: it lets signals pass through depth, and would keep this map from contracting.

    The gradient is by default that of four more steps of f at the solution: it costs a fixed number of products, needs no
    second equilibrium, and stays bounded where training makes the map contract little, while the implicit one grows like
    1/(1 − ‖J‖). A state that is not found within `max_steps` is taken as it is (`solve` tells which).
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
        with torch.random.fork_rng(devices=[]):  # torch's layers draw weights of their own, which are not used
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
        """(U_h s, U_l s): what the map takes from the image, computed once."""
        s = self.stem(require_images(x))
        return self.into_high(s), self.into_low(s)

    def step(self, state: State, u_high: Tensor, u_low: Tensor) -> State:
        """f(z), at injections u."""
        high, low = state
        risen = functional.interpolate(self.up(low), scale_factor=2.0, mode="nearest")
        return (
            functional.relu(self.high_norm(u_high + self.high(high) + risen)),
            functional.relu(self.low_norm(u_low + self.low(low) + self.down(high))),
        )

    def solve(self, x: Tensor) -> Solution:
        """(h*, l*) of the images, with steps, residuals, and which samples converged."""
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
