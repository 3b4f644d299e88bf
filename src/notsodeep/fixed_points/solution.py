"""What a fixed-point iteration found, sample by sample."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from torch import Tensor

from notsodeep.errors import NotConverged


class Reason(StrEnum):
    """Why an iteration ended, from best to worst."""

    converged = "converged"
    max_steps = "max_steps"
    stalled = "stalled"
    diverged = "diverged"
    nan = "nan"


REASONS = tuple(Reason)


_HARDLY = 0.999  # of a rate: a thousand steps for each factor of e


@dataclass(frozen=True)
class Subject:
    """What is solved for, in the words of an error, and what to change about it besides the solver."""

    name: str = "The fixed point"
    advice: str = ""
    scaled: bool = False  # its gradient is that of a loss scaled up for float16, as far as it will go

    def gradient(self) -> Subject:
        return replace(self, name=f"The gradient of {self.name[0].lower()}{self.name[1:]}")


class Report:
    """Carries a solution to where nothing can be returned: out of a backward pass."""

    solution: Solution | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Solution:
    """A fixed point and how it was found.

    ``value`` is laid out like the start; each sample has the iterate of its smallest residual. ``steps`` counts, for each
    sample, the evaluations of f until it was within tolerance (or all of them); ``residuals`` is the trace, (evaluations, n),
    of ‖f(z) − z‖/‖f(z)‖, or of ‖f(z) − z‖ for absolute stopping; ``residual`` each sample's smallest, of those in full
    precision. ``status`` holds each sample's place in `REASONS`, ``reason`` the worst of them. Whatever is called converged
    was evaluated once as the whole that is returned.

    ``coupled`` tells that the rows of the state turned out to depend on each other, so that it was solved as one sample;
    ``states`` are the images of the evaluations that ``keep`` named, ``aux`` what f returned beside its state.
    """

    value: Any
    steps: Tensor
    residual: Tensor
    residuals: Tensor
    status: Tensor
    tol: float
    relative: bool
    low_precision_steps: int = 0
    coupled: bool = False
    extra: int = 0
    states: tuple[Any, ...] = ()
    aux: Any = None
    gradient: Report = field(default_factory=lambda: Report())

    def __repr__(self) -> str:
        n, worst = len(self.status), float(self.residual.max())
        samples = "1 sample" if n == 1 else f"{n} samples"
        return f"Solution({self.reason}, {samples}, {self.evaluations} evaluations, residual ≤ {worst:.1e})"

    @property
    def backward(self) -> Solution | None:
        """How the last backward pass through this solution was solved (its value is left out); None before there is one."""
        return self.gradient.solution

    @property
    def converged(self) -> Tensor:
        """(n,) mask."""
        return self.status == 0

    @property
    def failed(self) -> Tensor:
        """(n,) mask of the samples that diverged or turned NaN: what they hold is no state at all."""
        return self.status > REASONS.index(Reason.stalled)

    @property
    def reason(self) -> Reason:
        return REASONS[int(self.status.max())]

    @property
    def evaluations(self) -> int:
        """How often f was evaluated; `extra` of them are not in the trace: they looked for rows that depend on each other,
        or made the graph of the backward pass."""
        return len(self.residuals) + self.extra

    def raise_unless_converged(self, what: Subject | None = None) -> None:
        """Raise `NotConverged`, with numbers and a remedy, unless every sample has converged."""
        if self.reason is Reason.converged:
            return
        what = what or Subject()
        kind = "relative residual" if self.relative else "residual"
        failed = ~self.converged
        worst = float(self.residual[failed].max())
        count, n = int(failed.sum()), len(failed)
        which = "" if n == 1 else f" for {count} of {n} samples"
        raise NotConverged(
            f"{what.name} was not found{which}: {self._meaning()} The best {kind} is {worst:.2e}, the tolerance "
            f"{self.tol:.1e}, after {self.evaluations} evaluations. {self._remedy(what.advice)}",
            residual=self.residual,
            residuals=self.residuals,
            steps=self.evaluations,
            reason=self.reason,
            solution=self,
        )

    def _meaning(self) -> str:
        match self.reason:
            case Reason.nan:
                return "f returned NaN, or numbers too large to square, from a state that had not grown."
            case Reason.diverged:
                return "the iterates run away: f does not contract there, or the solver overshoots."
            case Reason.stalled:
                return "the residual stopped shrinking: the iterates cycle or wander, or rounding is all that is left."
        rate = self._rate()
        how = "the iteration hardly converges, and " if rate < 1.0 else "the iteration "
        if rate < _HARDLY:
            how = f"the iteration still converges, by a factor of {rate:.3g} a step, but "
        return f"{how}ran out of steps."

    def _remedy(self, advice: str) -> str:
        match self.reason:
            case Reason.nan:
                rows = (self.status == REASONS.index(Reason.nan)).nonzero().flatten().tolist()
                return f"Look at the inputs of sample {', '.join(map(str, rows[:5]))}{', …' * (len(rows) > 5)} and at f itself."
            case Reason.diverged:
                return (
                    "Try a solver that does not need f to contract, Anderson(memory=20) or Broyden(), or small steps, "
                    f"Picard(damping=0.3); for φ(W z + u) with a monotone W, PeacemanRachford().{advice}"
                )
            case Reason.stalled:
                return (
                    "Where the residual is near the rounding of its dtype, raise tol or use float64; otherwise try another "
                    "solver, Broyden(), Anderson(memory=20) or Picard(damping=0.3), see that f is deterministic (no dropout, "
                    f"no noise), or pass throw=False to take what there is.{advice}"
                )
        needed = self._steps_needed()
        more = f"Set max_steps to about {needed}, or" if needed else "Raise max_steps, or"
        return (
            f"{more} try a solver that needs fewer evaluations (Anderson(memory=20), Broyden()); or pass throw=False to take "
            f"what there is.{advice}"
        )

    def _rate(self) -> float:
        """The factor by which the slowest sample's residual shrank, a step, over the second half of the trace."""
        trace = self.residuals[:, int(self.residual.argmax())]
        last, middle = float(trace[-1]), float(trace[len(trace) // 2])
        steps = len(trace) - 1 - len(trace) // 2
        return (last / middle) ** (1 / steps) if steps > 0 and middle > 0 and last > 0 else math.nan

    def _steps_needed(self) -> int | None:
        rate, worst = self._rate(), float(self.residual.max())
        if not (0.0 < rate < _HARDLY and self.tol > 0.0):
            return None
        return math.ceil(1.2 * (self.evaluations + math.log(self.tol / worst) / math.log(rate)))
