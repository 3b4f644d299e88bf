"""Find the member of a family whose scalars agree with a target."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from notsodeep.architecture import Explicit
from notsodeep.design.families import Family
from notsodeep.design.matching import Comparison, compare_scalars
from notsodeep.errors import NumericsWarning
from notsodeep.numerics.tolerances import MATCH_RTOL
from notsodeep.scalars import Scalars, scalars


@dataclass(frozen=True)
class Fit:
    """The best member that was found, whether or not it matches."""

    explicit: Explicit
    scalars: Scalars
    comparisons: tuple[Comparison, ...]

    @property
    def residual(self) -> float:
        """The largest gap of a matched scalar."""
        return max(c.gap for c in self.comparisons)

    @property
    def matches(self) -> bool:
        return self.residual <= MATCH_RTOL


def fit(family: Family, target: Scalars, names: tuple[str, ...]) -> Fit:
    """Least squares on the relative gaps from each of the family's starts; of several matches, the smallest weights."""

    def member(unknowns: tuple[float, ...]) -> Fit:
        explicit = family.build(tuple(float(u) for u in unknowns), target.tau0)
        with warnings.catch_warnings():
            # Each member is centred by construction, up to the round-off that a solver's extreme guesses magnify.
            warnings.simplefilter("ignore", NumericsWarning)
            reached = scalars(explicit, target.tau0)
        return Fit(explicit, reached, compare_scalars(target, reached, names))

    def gaps(unknowns: np.ndarray) -> np.ndarray:
        return np.array([(c.reached - c.target) / c.scale for c in member(tuple(unknowns)).comparisons])

    fits: list[tuple[float, Fit]] = []
    for start in family.starts:
        found = least_squares(gaps, start, method="trf", x_scale="jac", xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=80)
        fits.append((float(np.linalg.norm(found.x)), member(tuple(found.x))))
    matching = [candidate for candidate in fits if candidate[1].matches]
    if matching:
        return min(matching, key=lambda candidate: candidate[0])[1]
    return min((candidate[1] for candidate in fits), key=lambda candidate: candidate.residual)
