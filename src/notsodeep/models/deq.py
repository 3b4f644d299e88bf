"""A deep equilibrium model of finite width."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from notsodeep.activations import ActivationLike, Centred
from notsodeep.arguments import choices, count, flag, norm, weight_options
from notsodeep.arrays import Array, module_input, real
from notsodeep.errors import BadInput
from notsodeep.fixed_points.adjoint import Adjoint, ImplicitAdjoint, require_adjoint
from notsodeep.fixed_points.affine import AffineStep
from notsodeep.fixed_points.exported import MONOTONE_DAMPING, How, Loop, in_graph, solve_in_graph, steps_damping
from notsodeep.fixed_points.implicit import equilibrium
from notsodeep.fixed_points.layout import Map
from notsodeep.fixed_points.plan import MixedPrecision, Plan, Precision
from notsodeep.fixed_points.solution import Solution, Subject
from notsodeep.fixed_points.solvers import Anderson, Broyden, Solver
from notsodeep.fixed_points.splitting import Activated, Splitting
from notsodeep.fixed_points.stand_in import Problem, answered, watched
from notsodeep.models.enn import Draw, Readout
from notsodeep.models.export.onnx import to_onnx
from notsodeep.models.given_weights import GivenWeights, solvable
from notsodeep.models.predictor import Predictor
from notsodeep.models.well_posed import parametrization, require_kind
from notsodeep.theory.architecture import Implicit, Stacked
from notsodeep.theory.statistics import tau0 as root_mean_square_norm

_SUBJECT = Subject("The equilibrium of the DEQ", " Or make the map contract: a smaller var_a, or DEQ(well_posed='spectral').")
_SAMPLE = 4096  # entries of a weight that are compared to see whether it was trained
_FREEZABLE = ("A", "B", "readout")
_STEPS = 1000  # for weights of others, which may contract slowly
_SOLVING = frozenset({"adjoint", "tol", "relative", "max_steps", "precision", "throw", "atol"})


class DEQ(Predictor):
    """z* = φ(h*)/√m, h* = σ_a A z* + σ_b B x (+ c), and out = R z*; A, B and R of N(0, 1) at the start.

    Ref: docs/theory.md, section 1.

    Args:
        net: An `Implicit`; its φ is centred at `tau0`.
        in_features: Features p of a sample.
        width: Units m.
        out_features: Outputs; None returns the features z*.
        solver: Solver of the equilibrium; Anderson by default, Broyden with well_posed="monotone".
        adjoint: Method of the gradient; the exact `ImplicitAdjoint` by default.
        tol: Residual at which a sample has converged; None depends on the dtype.
        relative: Whether `tol` is relative to the size of the state.
        max_steps: Steps after which the solver stops.
        precision: Precision of the steps; the answer is always refined in that of the weights.
        throw: Raise `NotConverged` for a state that is not found; False returns the best one, and `solve` names the samples.
        atol: Absolute tolerance added to the relative one.
        tau0: Root mean square norm of the data that φ is centred for.
        bias: Whether there is a c.
        readout_bias: Whether the readout has a bias.
        frozen: Weights that are not trained: "A", "B", "readout".
        learn_variances: Whether σ_a² and σ_b² are trained too.
        well_posed: "spectral" or "monotone" keeps the map solvable while A is trained; see `well_posed.py`.
        generator: Draws the weights.
        device: Device of the weights.
        dtype: Dtype of the weights.

    Raises:
        BadInput: An argument does not fit.
    """

    def __init__(
        self,
        net: Implicit | Stacked,
        in_features: int,
        width: int,
        out_features: int | None = None,
        *,
        solver: Solver | Splitting | None = None,
        adjoint: Adjoint | None = None,
        tol: float | None = None,
        relative: bool = True,
        max_steps: int = 200,
        precision: Precision = MixedPrecision(),  # noqa: B008 (a frozen value)
        throw: bool = True,
        atol: float = 0.0,
        tau0: float = 1.0,
        bias: bool = False,
        readout_bias: bool = False,
        frozen: Iterable[str] = (),
        learn_variances: bool = False,
        well_posed: str | None = None,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.net = net
        self.in_features = count(in_features, "in_features")
        self.width = count(width, "width")
        self.out_features = None if out_features is None else count(out_features, "out_features")
        self.tau0 = norm(tau0)
        self.form = _form(net, self.width, self.tau0)
        # A monotone map may have eigenvalues all around the unit disc, where mixing a few iterates takes long.
        require_kind(well_posed)
        usual = Broyden() if well_posed == "monotone" else Anderson()
        backward = solver if isinstance(solver, Splitting) else usual
        self.adjoint = ImplicitAdjoint(backward, throw=throw) if adjoint is None else adjoint
        require_adjoint(self.adjoint)
        self.plan = Plan(usual if solver is None else solver, tol, relative, max_steps, precision, throw, atol)
        still = choices(frozen, "frozen", _FREEZABLE)
        draw = Draw(*weight_options(generator, device, dtype))
        bias, readout_bias = flag(bias, "bias"), flag(readout_bias, "readout_bias")
        learn_variances = flag(learn_variances, "learn_variances")
        self.A = draw.gaussian(self.width, self.width)
        self.B = draw.gaussian(self.width, self.in_features)
        self.bias = draw.zeros(self.width) if bias else None
        self.readout = Readout(self.width, self.out_features, readout_bias, draw)
        self.A.requires_grad_("A" not in still)
        self.B.requires_grad_("B" not in still)
        self.readout.requires_grad_("readout" not in still)
        self.log_variances = self._log_variances(well_posed) if learn_variances else None
        self.well_posed = well_posed
        if well_posed is not None:
            bounded = parametrization(well_posed, self.form.phi, self.form.recurrent)
            parametrize.register_parametrization(self, "A", bounded)
        self._start = self._sample()

    @classmethod
    def from_weights(
        cls,
        W: Array,
        U: Array,
        b: Array | None = None,
        R: Array | None = None,
        c: Array | None = None,
        phi: ActivationLike = "tanh",
        *,
        x: Array | None = None,
        solver: Solver | Splitting | None = None,
        frozen: Iterable[str] = (),
        tau0: float | None = None,
        **solving: Any,
    ) -> DEQ:
        """The network that others write as z = φ(W z + U x + b), y = R z + c.

        Its weights are scaled copies, in the dtype of W, and where the theory wants φ centred, the offset μ goes into biases:
        outputs are those of the given weights, to rounding, and `features` are (z − μ)/√m. Whatever W is like, equilibria of
        some samples are found before the DEQ is returned; it gets the solver that found them.

        Args:
            W: Recurrent weights, (m, m).
            U: Input weights, (m, p).
            b: Bias of the units, (m,).
            R: Readout, (outputs, m); None gives y = z (+ c).
            c: Bias of the outputs, (outputs,).
            phi: The activation, as in `Implicit`.
            x: Samples, (n, p), to solve for; random ones by default.
            solver: Solver of the equilibrium; the first of several that succeeds by default.
            frozen: As in `DEQ`.
            tau0: As in `DEQ`; the norm of x by default, where it is given.
            solving: adjoint, tol, relative, max_steps (1000, of gradients too), precision, throw and atol, as in `DEQ`.

        Returns:
            The DEQ.

        Raises:
            BadInput: The weights do not fit together or are not finite, or another argument does not fit.
            NotConverged: No solver finds the equilibria of the samples.
        """
        given = GivenWeights.of(W, U, b, R, c)
        unknown = sorted(set(solving) - _SOLVING)
        if unknown:
            raise BadInput(f"from_weights takes {', '.join(sorted(_SOLVING))} of DEQ; got {', '.join(unknown)}.")
        rows = given.samples() if x is None else real(x, "x", (None, given.U.shape[1])).to(given.W)
        tau0 = norm(tau0 if tau0 is not None else 1.0 if x is None else root_mean_square_norm(rows))
        net = given.network(phi, tau0)
        centred = net.centred(tau0).phi
        offset = 0.0 if centred == net.phi or not isinstance(centred, Centred) else centred.offset
        own = {
            "bias": b is not None or offset != 0.0,
            "readout_bias": c is not None or offset != 0.0,
            "frozen": choices(frozen, "frozen", _FREEZABLE) | ({"readout"} if R is None else set()),
            "tau0": tau0,
            "device": "meta",
            "dtype": rows.dtype,
        }

        def make(solver: Solver | Splitting) -> DEQ:
            adjoint = ImplicitAdjoint(solver, max_steps=_STEPS, throw=solving.get("throw", True))
            options: dict[str, Any] = {"adjoint": adjoint, "max_steps": _STEPS, **own, **solving}
            made = cls(net, rows.shape[1], len(given.W), len(given.R), solver=solver, **options)
            made.load_state_dict(given.parameters(made, offset), assign=True)
            if R is None:
                made.mark_changed(made.changed() - {"readout"})
            return made

        return solvable(make, solver, rows)

    def _log_variances(self, well_posed: str | None) -> nn.Parameter:
        if not isinstance(self.net, Implicit) or well_posed is not None:
            raise BadInput("learn_variances needs an Implicit network without well_posed, which bounds A for a fixed σ_a.")
        return nn.Parameter(torch.tensor([self.net.var_a, self.net.var_b], dtype=torch.float64).log().to(self.A))

    def scales(self) -> tuple[Tensor | float, Tensor | float]:
        """(σ_a/√m, σ_b), learned or fixed."""
        if self.log_variances is None:
            return self.form.recurrent, self.form.input
        deviations = (0.5 * self.log_variances).exp()
        return deviations[0] / math.sqrt(self.width), deviations[1]

    def terms(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(W, u) of the equation s = φ(W s + u), s = √m z: W = σ_a A/√m, (m, m), and u = σ_b B x (+ c), (n, m)."""
        x = module_input(x, self.in_features, self.B, "DEQ")
        recurrent, inward = self.scales()
        if isinstance(self.net, Stacked):  # whatever training does, the layers stay a chain
            into, between = self.net.masks(self.B)
            weight, u = self.A * between, functional.linear(x, self.B * into)
        else:
            weight, u = self.A * recurrent, functional.linear(x, self.B) * inward
        return weight, u if self.bias is None else u + self.bias

    @property
    def step(self) -> AffineStep:
        """step(s, W, u) = φ(W s + u), whose fixed point is √m z*."""
        return AffineStep(self.form.phi)

    def solve(self, x: Tensor) -> Solution:
        """The features z* of x, (n, p), with steps, residuals, and which samples converged."""
        x = module_input(x, self.in_features, self.B, "DEQ")
        if x.numel() == 0:
            raise BadInput(f"x has shape {tuple(x.shape)}: there is no sample to solve for.")
        # In the weights' own precision: in a lower one no residual below its rounding is reached.
        with torch.autocast(x.device.type, enabled=False):
            weight, u = self.terms(x.reshape(-1, self.in_features))
            start = self._swept(weight, u)

            def solve(plan: Plan) -> Solution:
                return equilibrium(self.step, start, (weight, u), plan, self.adjoint, what=_SUBJECT)

            found = watched(partial(self._problem, weight, u), self.plan, solve, lambda s: [s])
            return replace(found, value=self._as_features(found.value, x))

    def equilibria(self, x: Tensor, rows: int | None = None) -> Iterator[tuple[Map, Tensor]]:
        """(s ↦ φ(W s + u), its fixed points √m z*) of the samples x, at most `rows` of them at a time.

        Args:
            x: Samples, (…, p).
            rows: How many at a time; all by default.

        Raises:
            BadInput: `x` does not fit the DEQ, or `rows` is not a whole number from 1 on.
        """
        x = module_input(x, self.in_features, self.B, "DEQ").reshape(-1, self.in_features)
        for part in x.split(len(x) if rows is None else count(rows, "rows")):
            weight, u = self.terms(part)
            yield partial(self.step, weight=weight, u=u), self.solve(part).value / self.form.output

    def features(self, x: Tensor) -> Tensor:
        """(…, m): z*."""
        x = module_input(x, self.in_features, self.B, "DEQ")
        if isinstance(self.net, Stacked) or x.numel() == 0:
            return self._as_features(self._swept(*self.terms(x.reshape(-1, self.in_features))), x)
        answer = answered(lambda: self._problem(*self.terms(x.reshape(-1, self.in_features))))
        if answer is not None:
            return self._as_features(answer[0], x)
        if in_graph():
            weight, u = (term.detach() for term in self.terms(x.reshape(-1, self.in_features)))
            found = solve_in_graph(lambda s: self.step(s, weight, u), self.form.phi(u), 1, self.plan, self.damping)
            return self._as_features(found.value, x)
        value: Tensor = self.solve(x).value
        return value

    def _problem(self, weight: Tensor, u: Tensor) -> Problem:
        """s = φ(W s + u) from φ(u), for what stands in for a solver."""
        parts = Activated(self.form.phi, weight, u)
        return Problem(lambda state: [self.step(state[0], weight, u)], [self.form.phi(u)], 1, self.damping, parts)

    @property
    def damping(self) -> float:
        """The damping of plain steps that come nearer."""
        return MONOTONE_DAMPING if self.well_posed == "monotone" else steps_damping(self.plan)

    def _swept(self, weight: Tensor, u: Tensor) -> Tensor:
        """φ(u) and one step per further block of a `Stacked`: its weights are nilpotent, so that is the equilibrium."""
        s = self.form.phi(u)
        for _ in range(len(self.net.layers) - 1 if isinstance(self.net, Stacked) else 0):
            s = self.step(s, weight, u)
        return s

    def _as_features(self, s: Tensor, x: Tensor) -> Tensor:
        z = s if self.form.output == 1.0 else s * self.form.output
        return z.reshape(*x.shape[:-1], self.width)

    def forward(self, x: Tensor) -> Tensor:
        """(…, out_features), or the features where there is no readout."""
        z = self.features(x)
        if isinstance(self.net, Stacked):
            return z[..., -self.net.widths[-1] :]
        out: Tensor = self.readout(z)
        return out

    def flops(self, evaluations: int) -> int:
        """Multiplications and additions of the matrix products per sample, with this many evaluations of the map."""
        evaluations = count(evaluations, "evaluations", least=0)
        return 2 * (self.width * self.in_features + evaluations * self.width**2) + self.readout.flops()

    def to_onnx(
        self,
        path: str | os.PathLike[str],
        how: How = Loop(),  # noqa: B008 (a frozen value)
        *,
        check: bool = True,
    ) -> Path:
        """Write the model as one ONNX file; `how` is `Loop()` or `Steps(count)`. See `nsd.models.to_onnx`."""
        return to_onnx(self, path, how=how, check=check)

    def changed(self) -> frozenset[str]:
        """Those of "A", "B", "bias", "variances" and "readout" that differ from what the module was made with."""
        return frozenset(name for name, now in self._sample().items() if _differ(now, self._start.get(name)))

    def mark_changed(self, names: Iterable[str]) -> None:
        """Take the present weights, except those named, for what the module was made with."""
        changed = choices(names, "names", ("A", "B", "bias", "variances", "readout"))
        self._start = {name: now for name, now in self._sample().items() if name not in changed}

    @torch.no_grad()
    def _sample(self) -> dict[str, Tensor]:
        """Some entries of each weight, to recognise it."""
        weights = {"A": self.A, "B": self.B, "bias": self.bias}
        weights |= {"variances": self.log_variances, "readout": self.readout.weight}
        flat = {name: weight.detach().flatten() for name, weight in weights.items() if weight is not None}
        return {name: w[:: 1 + len(w) // _SAMPLE].to("cpu", copy=True) for name, w in flat.items() if not w.is_meta}

    def extra_repr(self) -> str:
        more = f", well_posed={self.well_posed!r}" if self.well_posed else ""
        return (
            f"{self.net}, in_features={self.in_features}, width={self.width}, out_features={self.out_features}, "
            f"solver={self.plan.solver}, adjoint={type(self.adjoint).__name__}{more}"
        )


def _differ(now: Tensor, start: Tensor | None) -> bool:
    """Whether they differ by more than the rounding of a conversion in between."""
    if start is None:
        return True
    coarse = {torch.bfloat16, torch.float16} & {now.dtype, start.dtype}
    close = torch.allclose(now.double(), start.double(), rtol=1e-2 if coarse else 1e-6, atol=0.0)
    return not close


@dataclass(frozen=True)
class _Factors:
    """φ as applied, and the factors of A, of B and of φ's value."""

    phi: Map
    recurrent: float
    input: float
    output: float


def _form(net: Implicit | Stacked, width: int, tau0: float) -> _Factors:
    if isinstance(net, Stacked):
        if net.width != width:
            raise BadInput(f"The blocks of this network have {net.width} units together; width = {width} does not fit.")
        return _Factors(net.apply, 1.0, 1.0, 1.0)
    if not isinstance(net, Implicit):
        raise BadInput(f"DEQ takes an Implicit network, got {type(net).__name__}; an ENN takes an Explicit one.")
    root = math.sqrt(width)
    with torch.device("cpu"):  # the offset is a number, on whatever device the weights are made
        phi = net.centred(tau0).phi
    return _Factors(phi, math.sqrt(net.var_a) / root, math.sqrt(net.var_b), 1.0 / root)
