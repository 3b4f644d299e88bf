"""The DEQ of [wu2024]: z = relu(W z + U x + b), y = A z + V x + c."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from notsodeep.arguments import count, flag, instance, shown, weight_options
from notsodeep.arrays import check_dense, check_memory, module_input
from notsodeep.errors import BadInput
from notsodeep.fixed_points.adjoint import Adjoint, ImplicitAdjoint, require_adjoint
from notsodeep.fixed_points.affine import AffineStep
from notsodeep.fixed_points.capture import transforms_active
from notsodeep.fixed_points.implicit import equilibrium
from notsodeep.fixed_points.plan import Plan
from notsodeep.fixed_points.solution import Solution, Subject
from notsodeep.fixed_points.solvers import Anderson, Solver


class ReluDEQ(nn.Module):
    """z = relu(W z + U x + b) and y = A z + V x + c, with weights as given; V and c are 0 unless given.

    If W is strictly lower triangular in some order of the units, as many sweeps as the longest chain has units reach the
    equilibrium exactly, however large W is. Any other W goes through `solver`, and its gradient through `adjoint`.

    Ref: [wu2024], expressivity.

    Args:
        W: Recurrent weights, (m, m).
        U: Input weights, (m, p).
        b: Bias of the units, (m,).
        A: Readout, (outputs, m).
        V: Skip weights, (outputs, p), or None.
        c: Bias of the outputs, (outputs,), or None.
        solver, adjoint, tol, max_steps, throw: As in `DEQ`.

    Raises:
        BadInput: The weights do not fit together.
    """

    def __init__(
        self,
        W: Tensor,
        U: Tensor,
        b: Tensor,
        A: Tensor,
        V: Tensor | None = None,
        c: Tensor | None = None,
        *,
        solver: Solver = Anderson(),  # noqa: B008 (a frozen value)
        adjoint: Adjoint | None = None,
        tol: float | None = None,
        max_steps: int = 200,
        throw: bool = True,
    ) -> None:
        super().__init__()
        _require_shapes(W, U, b, A, V, c)
        self.width, self.in_features, self.out_features = len(b), U.shape[1], len(A)
        self.W, self.U, self.b, self.A = (nn.Parameter(weight.detach().clone()) for weight in (W, U, b, A))
        self.V, self.c = (None if weight is None else nn.Parameter(weight.detach().clone()) for weight in (V, c))
        self.adjoint = ImplicitAdjoint(throw=throw) if adjoint is None else adjoint
        require_adjoint(self.adjoint)
        self.plan = Plan(solver, tol, max_steps=max_steps, throw=throw)

    @classmethod
    def random(
        cls,
        in_features: int,
        width: int,
        out_features: int = 1,
        *,
        skip: bool = False,
        bias: bool = True,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        **solving: Any,
    ) -> Self:
        """A network to train: U, A, V, b and c uniform on ±1/√(inputs), as in `nn.Linear`, and W on ±1/(2√m).

        V exists with `skip`; without `bias` c is None and b stays 0. `solving` goes to the constructor: solver=Broyden().
        """
        p, m = count(in_features, "in_features"), count(width, "width")
        outputs = count(out_features, "out_features")
        generator, _, dtype = weight_options(generator, None, dtype)
        skip, bias = flag(skip, "skip"), flag(bias, "bias")
        for rows, columns in ((m, max(m, p)), (outputs, max(m, p))):
            what, cpu = f"A weight of {rows} × {columns}", torch.device("cpu")
            check_memory((rows, columns), dtype or torch.get_default_dtype(), cpu, "a narrower network", what)

        def uniform(*shape: int, inputs: int) -> Tensor:
            return torch.empty(shape, dtype=dtype).uniform_(-1.0, 1.0, generator=generator) / math.sqrt(inputs)

        U, A = uniform(m, p, inputs=p), uniform(outputs, m, inputs=m)
        # On ±1/√m, of variance 1/3m, W has a norm near 2/√3 > 1; half of it has 1/√3, and z ↦ relu(W z + u) contracts.
        W = 0.5 * uniform(m, m, inputs=m)
        b = uniform(m, inputs=p) if bias else torch.zeros(m, dtype=dtype)
        V = uniform(outputs, p, inputs=p) if skip else None
        c = uniform(outputs, inputs=m) if bias else None
        made = cls(W, U, b, A, V, c, **solving)
        made.b.requires_grad_(bias)
        return made

    @property
    def step(self) -> AffineStep:
        """step(z, W, u) = relu(W z + u), u = U x + b."""
        return AffineStep(torch.relu)

    def solve(self, x: Tensor) -> Solution:
        """Features z* of x, with steps, residuals, and which samples converged."""
        x = module_input(x, self.in_features, self.U, "ReluDEQ")
        if x.numel() == 0:
            raise BadInput(f"x has shape {tuple(x.shape)}: there is no sample to solve for.")
        # In the weights' own precision: in a lower one no residual below its rounding is reached.
        with torch.autocast(x.device.type, enabled=False):
            u = functional.linear(x.reshape(-1, self.in_features), self.U, self.b)
            chain = longest_chain(self.W)
            start = torch.relu(u) if chain is None else self._swept(u, chain)
            what = Subject("The equilibrium of the ReluDEQ", " Or make W smaller: with ‖W‖ < 1 plain steps converge.")
            found = equilibrium(self.step, start, (self.W, u), self.plan, self.adjoint, what=what)
            z = found.value if chain is None else start
            return replace(found, value=z.reshape(*x.shape[:-1], self.width))

    def features(self, x: Tensor) -> Tensor:
        """(…, m): z*."""
        x = module_input(x, self.in_features, self.U, "ReluDEQ")
        chain = longest_chain(self.W)
        if chain is None and x.numel() > 0:
            value: Tensor = self.solve(x).value
            return value
        with torch.autocast(x.device.type, enabled=False):
            return self._swept(functional.linear(x, self.U, self.b), chain or 0)

    def _swept(self, u: Tensor, chain: int) -> Tensor:
        """z* by `chain` sweeps from z = 0, which are exact, and as many again for each derivative."""
        z = torch.zeros_like(u)
        with torch.no_grad():
            for _ in range(chain):
                z = self.step(z, self.W, u)
        if not (torch.is_grad_enabled() or transforms_active()):
            return z
        # The sweeps above pass states other than z*, whose dependence on W is not its gradient. From z* on, k sweeps sum the
        # series Σ_{l<k} (D W)^l D (dW z* + du), which ends as (D W)^k = 0; second derivatives take as many more.
        for _ in range(2 * chain):
            z = self.step(z, self.W, u)
        return z

    def forward(self, x: Tensor) -> Tensor:
        """(…, outputs)."""
        y = functional.linear(self.features(x), self.A, self.c)
        return y if self.V is None else y + functional.linear(x, self.V)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, width={self.width}, out_features={self.out_features}, "
            f"solver={self.plan.solver}, adjoint={type(self.adjoint).__name__}"
        )


@torch.no_grad()
def longest_chain(W: Tensor) -> int | None:
    """Length of the longest chain of units that each read the one before; None where there is a cycle.

    Units that read none of the remaining ones are dropped, round after round, until none remains or none can be dropped.
    """
    reads = (W != 0).to(W.dtype)
    left = torch.ones_like(reads[0])
    for rounds in range(len(reads)):
        following = ((reads @ left) > 0).to(W.dtype)
        if torch.equal(following, left):
            return None if bool(left.any()) else rounds
        left = following
    return None if bool(left.any()) else len(reads)


def _require_shapes(W: Tensor, U: Tensor, b: Tensor, A: Tensor, V: Tensor | None, c: Tensor | None) -> None:
    for name, given in zip("WUbAVc", (W, U, b, A, V, c), strict=True):
        if given is not None or name in "WUbA":
            weight: Tensor = instance(given, Tensor, name, "a tensor")
            check_dense(weight, name)
            if weight.ndim == 0 or not weight.is_floating_point():
                raise BadInput(f"{name} is {shown(weight)} of {weight.dtype}; expected real numbers, one or more axes of them.")
    if len({given.dtype for given in (W, U, b, A, V, c) if given is not None}) > 1:
        raise BadInput("The weights are of several types; give them all in one, such as W.double().")
    m, p, outputs = len(b), U.shape[-1], len(A)
    wanted = {"W": (m, m), "U": (m, p), "b": (m,), "A": (outputs, m), "V": (outputs, p), "c": (outputs,)}
    for (name, shape), given in zip(wanted.items(), (W, U, b, A, V, c), strict=True):
        if given is not None and tuple(given.shape) != shape:
            raise BadInput(
                f"{name} has shape {tuple(given.shape)}; with {m} units (b), {p} inputs (U) and {outputs} outputs (A) it must "
                f"have {shape}."
            )
