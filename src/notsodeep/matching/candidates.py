"""The networks that a design chooses from, and the choice: the nearest on samples that none of them was fitted to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from notsodeep.activations import Activation, Mixed, Rectifier
from notsodeep.activations.combination import combined, stretched
from notsodeep.activations.mixed import times
from notsodeep.activations.wrappers import affine_parts
from notsodeep.errors import BadInput, NotConverged
from notsodeep.kernels.compare import best_scaled_gap, relative_gap
from notsodeep.kernels.exact.kernels import exact_kernel
from notsodeep.kernels.names import Kernel, Match
from notsodeep.matching.families import Family
from notsodeep.matching.fitted import Fitted
from notsodeep.matching.gains import gained
from notsodeep.matching.hermite import hermite_network
from notsodeep.matching.layers import TANGENT_WEIGHT
from notsodeep.matching.pairs import MOST_SAMPLES, Pairs, imitation
from notsodeep.matching.rescaled import RescaledFamily
from notsodeep.matching.result import Candidate
from notsodeep.matching.solve import fit_of, matching
from notsodeep.runtime.threads import later
from notsodeep.theory.architecture import Explicit, Implicit
from notsodeep.theory.scalars import Scalars

_FEWEST, _MOST_JUDGED, _MOST_FOR_GAINS = 100, 1500, 300
_TIE, _WORTH_IT = 1.05, 0.8
_ROUNDING = 1e-12  # of kernels
_EQUAL_NORMS = 0.02  # of τ0: where one sample is farther from it a Hermite design is far off
_TERMS = 40
_CLOSE, _MOST_CLOSE = 0.99, 300
_DIMENSION = 256  # of the Gaussian sample that stands for data where there is none


@dataclass(frozen=True, eq=False)
class Split:
    """Samples to fit on and others to judge by."""

    fitted: Tensor
    judged: Tensor
    imitated: bool
    """Whether the fitted ones are a Gaussian sample of the data's norms and dimension"""

    @classmethod
    def of(cls, x: Tensor | None, tau0: float) -> Split:
        """Halves of x in an order drawn with a seed; with fewer than 100 samples but zeros, the fitted ones are Gaussian."""
        draw = torch.Generator().manual_seed(1)
        if x is None:
            drawn = torch.randn(2 * MOST_SAMPLES, _DIMENSION, generator=draw, dtype=torch.float64) * (tau0 / _DIMENSION**0.5)
            return cls(drawn[:MOST_SAMPLES], drawn[MOST_SAMPLES:], True)
        if int(x.any(1).sum()) < _FEWEST:
            return cls(imitation(x, MOST_SAMPLES), x, True)
        order = torch.randperm(len(x), generator=draw).to(x.device)
        half = len(x) // 2
        return cls(x[order[:half]], x[order[half : half + _MOST_JUDGED]], False)


def affordable(phi: Activation, x: Tensor) -> Tensor:
    """The first of the samples: all, but of a kinked φ whose sums have no closed form no more than make 300 pairs of
    correlations above .99 or below −.99: no Hermite series is long enough for those, and each costs an integral."""
    core, _, _ = affine_parts(phi)
    if not core.kinks or core.pieces is not None or isinstance(core, Rectifier):
        return x
    unit = torch.nn.functional.normalize(x[:_MOST_JUDGED].to(torch.float64), eps=torch.finfo(torch.float64).tiny)
    close = ((unit @ unit.T).abs() > _CLOSE).tril(-1).sum(1).cumsum(0)
    few = int((close <= _MOST_CLOSE).sum())
    return x if few == len(close) else x[:few]


@dataclass(frozen=True, eq=False)
class Task:
    """A DEQ, the samples, and the kernels that must agree."""

    net: Implicit
    target: Scalars
    match: Match
    split: Split

    @property
    def tau0(self) -> float:
        return self.target.tau0

    @cached_property
    def fitted(self) -> Tensor:
        """The samples to fit on."""
        return affordable(self.net.phi, self.split.fitted)

    @cached_property
    def judged(self) -> Tensor:
        """The samples to judge by."""
        return affordable(self.net.phi, self.split.judged)

    def candidates(self, families: Sequence[tuple[str, Family]], depth: int) -> list[Candidate]:
        """Every network of at most `depth` layers that a design may choose, judged, the chosen one first."""
        for kernel in self.match.kernels:
            self.kernel(self.net, kernel)
        fits = [partial(self._fitted, Fitted(layers)) for layers in range(depth, 0, -1)]
        layered = [partial(make, layers) for layers in range(depth, 0, -1) for make in (self._unrolled, self._scaled)]
        ways: list[Callable[[], Iterable[Candidate]]] = [
            *fits,
            *layered,
            partial(self._matched, families, depth),
            self._rescaled,
            self._hermite,
        ]
        # In threads of the pool, where torch works alone: its own threads would wait for each other at every small step.
        judged = [later(partial(self._judged, way)) for way in ways]
        return self._ranked([one for some in judged for one in some.result()])

    def kernel(self, net: Implicit | Explicit, kernel: Kernel) -> Tensor:
        """The exact kernel of a network on the judged samples, computed once."""
        known = self._kernels.get((net, kernel))
        if known is None:
            tau0 = self.tau0 if isinstance(net, Implicit) else None
            known = self._kernels[net, kernel] = exact_kernel(net, self.judged, None, kernel, tau0)
        return known

    @cached_property
    def _kernels(self) -> dict[tuple[Implicit | Explicit, Kernel], Tensor]:
        return {}

    def matched(self, families: Sequence[tuple[str, Family]], depth: int) -> list[Candidate]:
        """The networks of at most `depth` layers that have the four scalars of the DEQ, judged, the nearest first."""
        found = [*self._matched(families, depth), *(one for one in self._rescaled() if one.matched)]
        if not found and depth > 1:
            found = [one for one in self._fitted(Fitted(2, scalars="matched")) if one.matched]
        return self._ranked(self._judged(lambda: found)) if found else []

    def _judged(self, proposed: Callable[[], Iterable[Candidate]]) -> list[Candidate]:
        """The candidates with their gaps on the judged samples."""
        judged = []
        for one in proposed():
            gaps = {k: relative_gap(self.kernel(self.net, k), self.kernel(one.explicit, k)) for k in self.match.kernels}
            if len(gaps) > 1:
                gaps[Kernel.TANGENT] *= TANGENT_WEIGHT
            judged.append(replace(one, gap=max(gaps.values())))
        return judged

    def _ranked(self, judged: Sequence[Candidate]) -> list[Candidate]:
        """The candidates by closeness; first the simplest of those that tie with the closest."""
        judged = sorted(judged, key=lambda one: one.gap)
        plain = min((one.gap for one in judged if one.family == "scaled"), default=math.inf)
        most = max(min(_TIE * judged[0].gap, plain), judged[0].gap + _ROUNDING)
        ties = [one for one in judged if one.gap <= most]
        first = min(ties, key=lambda one: (one.explicit.depth, not one.matched, one.gap))
        return [first, *(one for one in judged if one is not first)]

    def fit(self, family: Fitted) -> Candidate:
        """The network nearest on the fitted half; raises BadInput where φ cannot be followed as far as the samples reach."""
        explicit, optimum = family.of(self._pairs)
        if family.scalars == "matched":  # which a factor would change
            matches = fit_of(explicit, self.target, Kernel.CONJUGATE).matches
            return self._gained(Candidate(str(family), explicit, matched=matches))
        return self._gained(Candidate(str(family), self._calibrated(explicit), optimum=optimum))

    def _fitted(self, family: Fitted) -> Iterator[Candidate]:
        try:
            yield self.fit(family)
        except (BadInput, NotConverged):  # the fitted kernels need φ farther out than the exact ones do
            return

    def _matched(self, families: Sequence[tuple[str, Family]], depth: int) -> Iterator[Candidate]:
        for name, family in families:
            found = matching(family, self.target, self.match.scalars) if family.depth <= depth else None
            if found is not None:
                yield self._gained(Candidate(name, found.explicit, matched=True))

    def _rescaled(self) -> Iterator[Candidate]:
        family = RescaledFamily(self.net.phi, 1)
        for unknowns in family.candidates(self.target, self.match.scalars)[:1]:
            matched = matching(family, self.target, self.match.scalars) is not None
            yield self._gained(Candidate("rescaled", family.build(unknowns, self.tau0), matched=matched))

    def _hermite(self) -> Iterator[Candidate]:
        halves = (self.split.fitted, self.split.judged)
        norms = torch.cat([torch.linalg.vector_norm(half.to(torch.float64), dim=1) for half in halves])
        if float((norms - self.tau0).abs().max()) <= _EQUAL_NORMS * self.tau0:
            yield self._gained(Candidate(f"hermite:{_TERMS}", hermite_network(self.net, self.tau0, _TERMS, self.match.scalars)))

    def _scaled(self, depth: int) -> Iterator[Candidate]:
        """The DEQ's activation in every layer, times its best factor on the fitted half: the simplest rival."""
        plain = Explicit([self.net.phi] * depth).centred(self.tau0)
        yield self._gained(Candidate("scaled", self._calibrated(plain)))

    def _unrolled(self, depth: int) -> Iterator[Candidate]:
        """φ(σ_a A φ(σ_b B x) + σ_b B x), the DEQ cut after two steps, times its best factor likewise."""
        if depth == 2:
            phi, a, b = self.net.phi, math.sqrt(2.0 * self.net.var_a), math.sqrt(self.net.var_b)
            step = Mixed([combined([(a, stretched(phi, b))]), Rectifier(math.sqrt(2.0) * b, math.sqrt(2.0) * b)])
            yield self._gained(Candidate("unrolled", self._calibrated(Explicit([step, phi]).centred(self.tau0))))

    @cached_property
    def _pairs(self) -> Pairs:
        return Pairs.of(self.net, self.fitted, self.tau0, self.match)

    @cached_property
    def _calibration(self) -> tuple[Tensor, Tensor]:
        """Samples of the fitted half, and the DEQ's kernel of them."""
        some = self.fitted[:MOST_SAMPLES]
        return some, exact_kernel(self.net, some, None, self.match.scalars, self.tau0)

    def _calibrated(self, explicit: Explicit) -> Explicit:
        """The network with its last layer scaled so that the kernel is nearest on the fitted samples: in operator norm where
        that gains enough to hold on others (a fit of entries leaves a little in the leading direction), else by least
        squares."""
        some, exact = self._calibration
        given = exact_kernel(explicit, some, None, self.match.scalars)
        factor = float((exact * given).sum() / given.square().sum())
        least, best = best_scaled_gap(exact, given)
        if least < _WORTH_IT * relative_gap(exact, factor * given):
            factor = best
        *below, last = explicit.layers
        scale = math.sqrt(max(factor, 0.0))
        return Explicit([*below, times(last, scale)], explicit.gains)

    def _gained(self, one: Candidate) -> Candidate:
        """With gains where the tangent kernel counts; a network matched for it keeps its own, all 1."""
        if Kernel.TANGENT not in self.match.kernels or (one.matched and self.match.scalars == Kernel.TANGENT):
            return one
        return replace(one, explicit=gained(one.explicit, self.net, self.fitted[:_MOST_FOR_GAINS], self.tau0))
