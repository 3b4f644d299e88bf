"""The weights of a DEQ as others write it, z = φ(W z + U x + b) and y = R z + c, and a solver that finds its equilibria."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from notsodeep.activations import ActivationLike, activation
from notsodeep.arrays import real
from notsodeep.errors import BadInput, NotContractive, NotConverged
from notsodeep.fixed_points.solution import Solution
from notsodeep.fixed_points.solvers import Anderson, Broyden, Picard, Solver
from notsodeep.fixed_points.splitting import PeacemanRachford, Splitting
from notsodeep.theory.architecture import Implicit, contraction_bound

if TYPE_CHECKING:
    from notsodeep.models.deq import DEQ

_TRIED = 16  # samples of each scale
# A solver, and the one that is used where both succeed. Where plain steps converge, so do those of exported files; where they
# do not, the damped ones may, which files take in place of a splitting.
_CANDIDATES: tuple[tuple[Solver | Splitting, Solver | Splitting], ...] = (
    (Picard(), Anderson()),
    (PeacemanRachford(), PeacemanRachford()),
    (Anderson(), Anderson()),
    (Broyden(), Broyden()),
)


@dataclass(frozen=True, eq=False)
class GivenWeights:
    """W (m, m), U (m, p), b (m,), R (outputs, m) and c (outputs,), in the dtype of W."""

    W: Tensor
    U: Tensor
    b: Tensor | None
    R: Tensor
    c: Tensor | None

    @classmethod
    def of(cls, W: Any, U: Any, b: Any, R: Any, c: Any) -> GivenWeights:
        """Checked copies, the identity for an R that is not given; `BadInput` names what does not fit."""
        W, U = real(W, "W, the recurrent weights,", (None, None)), real(U, "U, the input weights,", (None, None))
        (m, columns), p = W.shape, U.shape[1]
        if m != columns or len(U) != m or 0 in (m, p):
            raise BadInput(
                f"W has shape {(m, columns)} and U {tuple(U.shape)}; z = φ(W z + U x + b) of m units and p inputs needs W of "
                "shape (m, m) and U of shape (m, p). Transpose a weight that multiplies from the right."
            )
        b = None if b is None else real(b, "b, the bias of the units,", (m,)).to(W, copy=True)
        R = torch.eye(m) if R is None else real(R, "R, the readout,", (None, m))
        c = None if c is None else real(c, "c, the bias of the outputs,", (len(R),)).to(W, copy=True)
        if len(R) == 0:
            raise BadInput(f"R has shape {tuple(R.shape)}: it gives no output. Leave R out for y = z.")
        return cls(W.clone(), U.to(W, copy=True), b, R.to(W, copy=True), c)

    def network(self, phi: ActivationLike, tau0: float) -> Implicit:
        """The network of the theory: σ_a² and σ_b² are the mean squares of √m W and of U, as far as wide networks contract.

        Its φ is centred, where an offset exists; `parameters` makes good for it.
        """
        phi = activation(phi)
        found = len(self.W) * self.W.double().square().mean(), self.U.double().square().mean()
        var_a, var_b = (float(value) or 1.0 for value in found)
        net = Implicit(phi, min(var_a, contraction_bound(phi) or var_a), var_b)
        try:
            net.centred(tau0)
        except NotContractive:
            net = Implicit(phi, var_a, var_b, centre=False)
        return net

    def parameters(self, deq: DEQ, offset: float) -> dict[str, Tensor]:
        """The parameters of `deq`, whose state is s = z − offset: W z = W s + offset·W 1, R z = R s + offset·R 1."""
        form, zero = deq.form, self.W.new_zeros(())
        named = {"A": self.W / form.recurrent, "B": self.U / form.input, "readout.weight": self.R / form.output}
        for name, bias, weight in (("bias", self.b, self.W), ("readout.bias", self.c, self.R)):
            if bias is not None or offset:
                more = (offset * weight.double().sum(1)).to(weight)
                named[name] = more + (zero if bias is None else bias)
        return named

    def samples(self) -> Tensor:
        """Zero, and random samples of independent features, of variance 1 and of norm 1."""
        draw, p = torch.Generator().manual_seed(0), self.U.shape[1]
        drawn = torch.randn(2 * _TRIED, p, generator=draw, dtype=torch.float64)
        drawn[_TRIED:] /= math.sqrt(p)
        return torch.cat([torch.zeros(1, p, dtype=torch.float64), drawn]).to(self.W)


def solvable(make: Callable[[Solver | Splitting], DEQ], given: Solver | Splitting | None, x: Tensor) -> DEQ:
    """The DEQ with the given solver, or with the first that finds its equilibria for all samples x.

    Raises:
        NotConverged: None does, and the DEQ throws.
    """
    left: list[tuple[float, int, str]] = []
    for tried, used in _CANDIDATES if given is None else ((given, given),):
        deq = make(tried)
        found = _solved(deq, x)
        if found is not None and bool(found.converged.all()):
            usual = deq if used is tried else make(used)
            again = found if used is tried else _solved(usual, x)
            return usual if again is not None and bool(again.converged.all()) else deq
        if found is not None:
            residual = float(found.residual.nan_to_num(nan=math.inf).max())
            left.append((residual, int((~found.converged).sum()), type(tried).__name__))
    if not deq.plan.throw:
        return deq
    residual, failed, name = min(left)
    W, tol = deq.terms(x)[0].detach().double(), deq.plan.tolerance(x.dtype)
    radius, size = float(torch.linalg.eigvals(W).abs().max()), float(torch.linalg.matrix_norm(W, 2))
    raise NotConverged(
        f"z = φ(W z + U x + b) was not solved for {failed} of {len(x)} samples within {deq.plan.max_steps} steps by "
        f"{', '.join(each for *_, each in left)}: {name} came nearest, to a residual of {residual:.1e} (tolerance {tol:.1e}). "
        f"W has spectral radius {radius:.3g} and norm {size:.3g}: there may be no equilibrium, or several. See that W is not "
        "transposed and that φ is the network's own; or pass samples of your data as x=, another solver=, a larger max_steps=, "
        "or throw=False to get the best states.",
        residual=residual,
        steps=deq.plan.max_steps,
        spectral_radius=radius,
    )


@torch.no_grad()
def _solved(deq: DEQ, x: Tensor) -> Solution | None:
    """The solution for x, whether or not it converged; None where a splitting cannot split W."""
    own, deq.plan = deq.plan, replace(deq.plan, throw=False)
    try:
        return deq.solve(x)
    except (BadInput, RuntimeError):  # such as a singular matrix
        if isinstance(deq.plan.solver, Splitting):
            return None
        raise
    finally:
        deq.plan = own
