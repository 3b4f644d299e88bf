"""The ways to pay less for the answers of a DEQ: made, trained against the clock, and measured side by side."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from notsodeep.errors import NotSoDeepError
from notsodeep.fixed_points.linear import Dense
from notsodeep.fixed_points.plan import Plan
from notsodeep.fixed_points.splitting import PeacemanRachford
from notsodeep.fixed_points.stand_in import watching
from notsodeep.models.compiler.distil import Clock, Loss, Trained, ready, train_until
from notsodeep.models.compiler.foreign import Found
from notsodeep.models.compiler.frontier import Answers, Frontier, Way, optimal
from notsodeep.models.compiler.rivals import learnable, plain_steps, plain_twin, shape
from notsodeep.models.compiler.trial import Trial, check_finite
from notsodeep.models.cost import operations, seconds
from notsodeep.models.deq import DEQ
from notsodeep.models.enn import ENN
from notsodeep.models.unrolled import DenseResponse, Response, Unrolled, linear_response, split_resolvent

_TOLERANCES, _CUTS, _RESPONDED, _LEARNT = (1e-3, 1e-2, 1e-1), (48, 32, 24, 16, 12, 8, 5, 3, 2, 1), (2, 1, 0), (1, 2, 4, 8, 16)
_ALWAYS = 8  # steps of a cut; more where the DEQ itself takes more
_TIMED_ROWS, _TIMED_RUNS, _COUNTED_ROWS, _COMPARED = 512, 9, 64, 512
_AT_FIRST, _AGAIN = 0.4, 2.0 / 3.0  # of the time to distil: all of the ways; of what is left: the one that is nearest
_LEAST_SHARE, _NEAR = 0.05, 0.1  # of the budget for one more training; of the answers that may be missing for it
_TIMED_SECONDS = 10.0  # for all ways together, if one run of each takes no longer


@dataclass(frozen=True, eq=False)
class _Made:
    """A way that is not measured yet."""

    name: str
    module: nn.Module
    trained: Trained | None = None
    iterates: bool = False
    plain: bool = False
    portable: bool = True


@dataclass(frozen=True, eq=False)
class Search:
    """A search for ways to pay less for the DEQ `model`, in which `found` is the fixed point."""

    model: nn.Module
    found: Found
    trial: Trial
    explicit: Mapping[str, ENN] = field(default_factory=dict)
    """explicit networks of a fully connected DEQ, by name"""
    keep: float = 0.99
    budget: float = 100.0
    """seconds for trainings"""
    say: Callable[[str], None] = lambda _: None
    """told what is under way"""

    def frontier(self) -> Frontier:
        """All ways, measured.

        Raises:
            NotConverged: The DEQ has no finite outputs to compare with.
        """
        given = [_Made(name, network) for name, network in self.explicit.items()]
        ways = [*self._solved(), *self._cut(), *self._responding(), *self._splitting(), *given]
        judged = self._judged(ways[0])
        if self.budget > 0.0:
            ways += self._trained(judged)
        self.say("measuring all ways")
        rows = self.trial.batch(_TIMED_ROWS)
        with torch.no_grad():
            outs = [self.trial.answers(way.module) for way in ways]
            # Steps of a map that does not contract may overflow: that is no way to answer.
            answers = [(way, out) for way, out in zip(ways, outs, strict=True) if bool(out.isfinite().all())]
            times = seconds([partial(way.module, rows) for way, _ in answers], rows.device, _TIMED_RUNS, _TIMED_SECONDS)
            measured = [
                self._measured(way, out, judged, 1e6 * min(spent) / len(rows))
                for (way, out), spent in zip(answers, times, strict=True)
            ]
        unseen = self.trial.unseen is not None
        return Frontier(optimal(measured), self.keep, len(judged.wanted), judged.measure, unseen, judged.guessed)

    def _judged(self, deq: _Made) -> Answers:
        wanted = self.trial.answers(deq.module)
        check_finite(wanted, self.found.solved.solution.evaluations)
        return Answers(wanted, self.trial.judged_y, self.trial.classifies)

    def _measured(self, way: _Made, out: Tensor, judged: Answers, milliseconds: float) -> Way:
        return Way(
            way.name,
            self._operations(way) / 1e6,
            milliseconds,
            judged.same(out),
            judged.error(out),
            judged.score(out),
            way.iterates,
            plain=way.plain,
            seconds=0.0 if way.trained is None else way.trained.seconds,
            finished=way.trained is None or way.trained.finished,
            portable=way.portable,
            module=way.module,
        )

    def _operations(self, way: _Made) -> float:
        """Per sample; what is done once a batch, such as making weights, does not count."""
        rows = self.trial.batch(_COUNTED_ROWS)
        inside = way.iterates or isinstance(way.module, Unrolled)
        return (operations(partial(way.module, rows)) - (self._once if inside else 0)) / len(rows)

    @cached_property
    def _once(self) -> int:
        """What the module does once a batch."""
        step = Unrolled(self.found.module, 1)
        fewer, more = (self.trial.batch(count) for count in (_COUNTED_ROWS // 2, _COUNTED_ROWS))
        if 2 * len(fewer) != len(more):
            return 0
        counts = [operations(partial(step, rows)) for rows in (fewer, more)]
        return max(2 * counts[0] - counts[1], 0)

    def _solved(self) -> list[_Made]:
        """The DEQ itself, at looser tolerances, and by operator splitting where that is possible."""
        ways = [_Made("the DEQ", self.model, iterates=True, portable=self._portable)]
        own = self.found.solved.solution
        for tol in _TOLERANCES:
            if tol > own.tol or not own.relative:
                ways.append(self._solved_by(f"the DEQ at tolerance {tol:g}", partial(_loosened, tol)))
        structure = self.found.solved.problem.structure
        if structure is not None and isinstance(structure.weight, Dense):
            split = self._solved_by("the DEQ by Peaceman–Rachford", _split)
            with torch.no_grad():
                try:
                    split.module(self.trial.batch(_COUNTED_ROWS))
                    ways.append(split)
                except NotSoDeepError:  # it cannot be split, or not solved so
                    pass
        return ways

    def _solved_by(self, name: str, change: Callable[[Plan], Plan]) -> _Made:
        module: nn.Module
        if isinstance(self.model, DEQ):
            module = looser = copy.deepcopy(self.model)
            looser.plan = change(self.model.plan)
        else:
            module = Replanned(self.found.module, change)
        return _Made(name, module, iterates=True, portable=self._portable)

    @property
    def _portable(self) -> bool:
        """Whether a loop of plain steps finds the equilibrium, which files can hold."""
        return self.found.solved.problem.damping == 1.0

    def _cut(self) -> list[_Made]:
        problem = self.found.solved.problem
        ways = []
        for k in self._counts():
            module = Unrolled(self.found.module, k, problem.damping)
            ways.append(_Made(f"the DEQ cut after {_steps(k)}", module))
        return ways

    def _counts(self) -> list[int]:
        return [k for k in _CUTS if k <= max(_ALWAYS, self.found.solved.solution.evaluations - 1)]

    def _splitting(self) -> list[_Made]:
        """Steps of operator splitting, where plain ones need a damping: they may be far fewer."""
        problem = self.found.solved.problem
        resolvent = None if problem.damping == 1.0 else split_resolvent(self.found.solved)
        ways = []
        for k in self._counts() if resolvent is not None else ():
            module = Unrolled(self.found.module, k, 1.0, resolvent=copy.deepcopy(resolvent))
            ways.append(_Made(f"the DEQ cut after {k} splitting step{'s' * (k > 1)}", module))
        return ways

    def _responding(self) -> list[_Made]:
        """Steps from the linear response, where the structure of the map is known."""
        response = linear_response(self.found.solved)
        ways = []
        for k in _RESPONDED if response is not None else ():
            if not k and self.explicit:
                continue  # one layer, folded
            module = Unrolled(self.found.module, k, self.found.solved.problem.damping, response=copy.deepcopy(response))
            ways.append(_Made("the linear response" + (f", then {_steps(k)}" if k else ""), module))
        return ways

    def _trained(self, judged: Answers) -> list[_Made]:
        """Explicit networks and steps, distilled; with y plain networks, which begin with nothing and have half of the time."""
        ready()
        if self.trial.y is None:
            return self._distilled(judged, self.budget)
        began = time.monotonic()
        distilled = self._distilled(judged, 0.5 * self.budget)
        return [*distilled, *self._plain(self.budget - (time.monotonic() - began))]

    def _distilled(self, judged: Answers, seconds: float) -> list[_Made]:
        """All for a while, the fewest steps first until so many keep enough; then those that may be the cheapest to do so."""
        trial, used = self.trial, self.found.solved.solution.evaluations
        loss, until = trial.distillation(self.model), time.monotonic() + seconds
        counts = [k for k in _LEARNT if k < max(used, 2)]
        clock, kept = Clock(_AT_FIRST * seconds, len(self.explicit) + len(counts)), {}

        def train(way: _Made, clock: Clock) -> _Made:
            way = self._train(way, loss, clock)
            kept[way.name] = judged.surely(trial.answers(way.module))
            return way

        given = {f"{name}, distilled": copy.deepcopy(network) for name, network in self.explicit.items()}
        ways = {name: train(_Made(name, network), clock) for name, network in given.items()}
        for k in counts:
            name, network = f"{k} learnt step{'s' * (k > 1)}", self._learning(k)
            ways[name] = train(_Made(name, network), clock)
            if kept[name] >= self.keep:
                break  # more steps only cost more
        again: set[str] = set()
        while (left := until - time.monotonic()) > _LEAST_SHARE * self.budget:
            costs = {name: self._operations(way) for name, way in ways.items()}
            most = min((costs[name] for name in ways if kept[name] >= self.keep), default=math.inf)
            near = [
                name
                for name, way in ways.items()
                if costs[name] < most and name not in again and kept[name] >= self.keep - _NEAR and not _done(way)
            ]
            if not near:
                break
            name = max(near, key=lambda name: kept[name])
            ways[name] = train(ways[name], Clock(_AGAIN * left, 1))
            again.add(name)
        return list(ways.values())

    def _plain(self, seconds: float) -> list[_Made]:
        """Networks of the same shapes, trained on y: for about as many steps each, then, in what is left, the best of them."""
        loss, until = self.trial.task(), time.monotonic() + seconds
        shapes = {shape(network): network for network in self.explicit.values()}
        made = [plain_twin(network) for network in shapes.values()] or [plain_steps(self.found, 2)]
        ways = [_Made(name, network, plain=True) for network, name in made]
        costs = [max(self._operations(way), 1.0) for way in ways]
        waiting = sorted(range(len(ways)), key=costs.__getitem__)  # the dearest has what the others leave
        while waiting:
            share = costs[waiting[0]] / sum(costs[place] for place in waiting)
            place = waiting.pop(0)
            ways[place] = self._train(ways[place], loss, Clock(share * (until - time.monotonic()), 1))
        left = until - time.monotonic()
        losses = [math.inf if way.trained is None else way.trained.after for way in ways]
        best = losses.index(min(losses))
        if left > _LEAST_SHARE * self.budget and not _done(ways[best]):
            ways[best] = self._train(ways[best], loss, Clock(left, 1))
        return ways

    def _train(self, way: _Made, loss: Loss, clock: Clock) -> _Made:
        """The way, trained for a share of the time, further where it was trained before."""
        self.say(f"training: {way.name}")
        draw, trial = torch.Generator().manual_seed(0), self.trial
        took = clock.spend(lambda s: train_until(way.module, loss, trial.train, s, draw, whole=trial.coupled))
        if way.trained is not None:
            before = way.trained
            took = replace(took, steps=took.steps + before.steps, seconds=took.seconds + before.seconds, before=before.before)
        return replace(way, trained=took)

    def _learning(self, steps: int) -> Unrolled:
        """Steps that learn, with a copy of the module's weights.

        The first of them is the linear response, which costs as much, where that is nearer to begin with.
        """
        found, response, resolvent = self.found, linear_response(self.found.solved), None
        if found.solved.problem.damping != 1.0:
            resolvent = split_resolvent(found.solved)
        starts: list[tuple[int, Response | None, Response | None]] = [(steps, None, None)]
        starts += [(steps - 1, response, None)] if isinstance(response, DenseResponse) else []
        starts += [(steps, None, resolvent)] if isinstance(resolvent, DenseResponse) else []
        made = [Unrolled.learning(copy.deepcopy(found.module), k, found.solved, *given) for k, *given in starts]
        some = self.trial.train if self.trial.coupled else self.trial.train[:_COMPARED]
        with torch.no_grad():
            wanted = self.trial.outputs[some]
            apart = [float((self.trial.of(each, some) - wanted).norm().nan_to_num(nan=torch.inf)) for each in made]
        return learnable(made[apart.index(min(apart))])


class Replanned(nn.Module):
    """A module whose fixed point is solved by another plan than its own."""

    def __init__(self, model: nn.Module, change: Callable[[Plan], Plan]) -> None:
        super().__init__()
        self.model, self.change = model, change

    def forward(self, x: Tensor) -> Any:
        with watching(self.change):
            return self.model(x)


def _done(way: _Made) -> bool:
    return way.trained is not None and way.trained.finished


def _loosened(tol: float, plan: Plan) -> Plan:
    return replace(plan, tol=tol, relative=True, atol=0.0)


def _split(plan: Plan) -> Plan:
    return replace(plan, solver=PeacemanRachford())


def _steps(k: int) -> str:
    return "1 step" if k == 1 else f"{k} steps"
