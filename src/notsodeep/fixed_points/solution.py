"""The result of a fixed-point iteration, sample by sample."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from torch import Tensor

from notsodeep.errors import NotConverged

_HARDLY = 0.999  # of a rate: a thousand steps for each factor of e


class Reason(StrEnum):
    """Why an iteration ended, from best to worst."""

    converged = "converged"
    max_steps = "max_steps"
    stalled = "stalled"
    diverged = "diverged"
    nan = "nan"


REASONS = tuple(Reason)


@dataclass(frozen=True)
class Subject:
    """The name, in errors, of the quantity that is solved for, and advice about it besides another solver."""

    name: str = "The fixed point"
    advice: str = ""
    scaled: bool = False  # a GradScaler may scale its gradient up until it overflows in float16

    def gradient(self) -> Subject:
        return replace(self, name=f"The gradient of {self.name[0].lower()}{self.name[1:]}")


class Report:
    """Carries a solution out of a backward pass, which cannot return it."""

    solution: Solution | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Solution:
    """A fixed point and how it was found. A sample is called converged only if the returned state was evaluated as a whole."""

    value: Any
    """The fixed point, laid out like the start; each sample has the iterate of its smallest residual."""
    steps: Tensor
    """(n,): evaluations of f until each sample was within tolerance, or all of them."""
    residual: Tensor
    """(n,): each sample's smallest residual in full precision."""
    residuals: Tensor
    """(evaluations, n): the trace of ‖f(z) − z‖/‖f(z)‖, or of ‖f(z) − z‖ for absolute stopping."""
    status: Tensor
    """(n,): the index of each sample's reason among the members of `Reason`."""
    tol: float
    """The tolerance."""
    relative: bool
    """Whether residuals and tolerance are relative."""
    low_precision_steps: int = 0
    """How many of the first evaluations were in lower precision."""
    coupled: bool = False
    """Whether the rows of the state turned out to depend on each other and were solved as one sample."""
    extra: int = 0
    """Evaluations outside of the trace: tests whether rows depend on each other, and the graph of the backward pass."""
    states: tuple[Any, ...] = ()
    """The images of the evaluations that ``keep`` named."""
    aux: Any = None
    """The second value that f returned at the solution, with ``aux=True``."""
    gradient: Report = field(default_factory=Report)
    """The holder of `backward`."""

    def __repr__(self) -> str:
        n, worst = len(self.status), float(self.residual.max())
        samples = "1 sample" if n == 1 else f"{n} samples"
        return f"Solution({self.reason}, {samples}, {self.evaluations} evaluations, residual ≤ {worst:.1e})"

    @property
    def backward(self) -> Solution | None:
        """The solution (without its value) of the last backward pass through this one; None before there is one."""
        return self.gradient.solution

    @property
    def converged(self) -> Tensor:
        """(n,) mask of the samples that converged."""
        return self.status == 0

    @property
    def failed(self) -> Tensor:
        """(n,) mask of the samples that diverged or turned NaN: their values mean nothing."""
        return self.status > REASONS.index(Reason.stalled)

    @property
    def reason(self) -> Reason:
        """The worst reason among the samples."""
        return REASONS[int(self.status.max())]

    @property
    def evaluations(self) -> int:
        """How often f was evaluated, `extra` included."""
        return len(self.residuals) + self.extra

    def raise_unless_converged(self, what: Subject | None = None) -> None:
        """Raise an error with numbers and a remedy unless every sample has converged.

        Args:
            what: The name of the quantity in the message, and further advice.

        Raises:
            NotConverged: Some sample has not converged.
        """
        if self.reason is Reason.converged:
            return
        what = what or Subject()
        kind = "relative residual" if self.relative else "residual"
        failed = ~self.converged
        worst, n = float(self.residual[failed].max()), len(failed)
        which = "" if n == 1 else f" for {int(failed.sum())} of {n} samples"
        meaning, remedy = self._diagnosis()
        raise NotConverged(
            f"{what.name} was not found{which}: {meaning} The best {kind} is {worst:.2e}, the tolerance "
            f"{self.tol:.1e}, after {self.evaluations} evaluations. {remedy}{'' if self.reason is Reason.nan else what.advice}",
            residual=self.residual,
            residuals=self.residuals,
            steps=self.evaluations,
            reason=self.reason,
            solution=self,
        )

    def _diagnosis(self) -> tuple[str, str]:
        """The meaning of the worst reason, and a remedy."""
        match self.reason:
            case Reason.nan:
                rows = (self.status == REASONS.index(Reason.nan)).nonzero().flatten().tolist()
                which = f"{', '.join(map(str, rows[:5]))}{', …' * (len(rows) > 5)}"
                return (
                    "f returned NaN, or numbers too large to square, from a state that had not grown.",
                    f"Look at the inputs of sample {which} and at f itself.",
                )
            case Reason.diverged:
                return (
                    "the iterates run away: f does not contract there, or the solver overshoots.",
                    "Try a solver that does not need f to contract, Anderson(memory=20) or Broyden(), or small steps, "
                    "Picard(damping=0.3); for φ(W z + u) with a monotone W, PeacemanRachford().",
                )
            case Reason.stalled:
                return (
                    "the residual stopped shrinking: the iterates cycle or wander, or rounding is all that is left.",
                    "Where the residual is near the rounding of its dtype, raise tol or use float64; otherwise try another "
                    "solver, Broyden(), Anderson(memory=20) or Picard(damping=0.3), see that f is deterministic (no dropout, "
                    "no noise), or pass throw=False to take the best state.",
                )
        rate, more = self._rate(), "Raise max_steps"
        how = "the iteration hardly converges, and " if rate < 1.0 else "the iteration "
        if rate < _HARDLY:
            how = f"the iteration still converges, by a factor of {rate:.3g} a step, but "
            steps = self.evaluations + math.log(self.tol / float(self.residual.max())) / math.log(rate)
            more = f"Set max_steps to about {math.ceil(1.2 * steps)}"
        return (
            f"{how}ran out of steps.",
            f"{more}, or try a solver that needs fewer evaluations (Anderson(memory=20), Broyden()); or pass throw=False to "
            "take the best state.",
        )

    def _rate(self) -> float:
        """The factor per step by which the slowest sample's residual shrank over the second half of the trace."""
        trace = self.residuals[:, int(self.residual.argmax())]
        last, middle = float(trace[-1]), float(trace[len(trace) // 2])
        steps = len(trace) - 1 - len(trace) // 2
        return (last / middle) ** (1 / steps) if steps > 0 and middle > 0 and last > 0 else math.nan
