"""The member of a family whose scalars agree with a target."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from notsodeep.errors import NumericsWarning
from notsodeep.kernels.names import Kernel, as_kernel
from notsodeep.matching.families import Family
from notsodeep.theory.architecture import Explicit
from notsodeep.theory.scalars import Scalars, scalars
from notsodeep.tolerances import MATCH_RTOL

_POLISHED, _WORTH_POLISHING = 1e-13, 1e-4
MATCHES: dict[Kernel, tuple[str, ...]] = {
    Kernel.CONJUGATE: ("gamma", "alpha1", "alpha2", "alpha3"),
    Kernel.TANGENT: ("kappa", "beta1", "beta2", "beta3"),
}


@dataclass(frozen=True)
class Fit:
    """A member of a family and its scalars compared with the target, whether or not it matches."""

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


def matching(family: Family, target: Scalars, kernel: Kernel | str) -> Fit | None:
    """The member that matches, of several the one with the smallest unknowns; None without a match."""
    found = []
    for unknowns in family.candidates(target, kernel):
        candidate = _member(family, target, kernel, unknowns)
        if _POLISHED < candidate.residual <= _WORTH_POLISHING:
            unknowns, candidate = _polished(family, target, kernel, unknowns)
        if candidate.matches:
            found.append((math.hypot(*unknowns), candidate))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def nearest(family: Family, target: Scalars, kernel: Kernel | str) -> Fit:
    """The member that comes closest, from each of the family's starts."""
    fits = [_polished(family, target, kernel, start)[1] for start in family.starts]
    return min(fits, key=lambda candidate: candidate.residual)


def fit_of(explicit: Explicit, target: Scalars, kernel: Kernel | str) -> Fit:
    """The network with its scalars compared with the target."""
    with warnings.catch_warnings():
        # Each member is centred by construction, up to the round-off that a solver's extreme guesses magnify.
        warnings.simplefilter("ignore", NumericsWarning)
        reached = scalars(explicit, target.tau0)
    return Fit(explicit, reached, compare_scalars(target, reached, matched_names(kernel)))


def _member(family: Family, target: Scalars, kernel: Kernel | str, unknowns: tuple[float, ...]) -> Fit:
    return fit_of(family.build(tuple(float(u) for u in unknowns), target.tau0), target, kernel)


def _polished(family: Family, target: Scalars, kernel: Kernel | str, start: tuple[float, ...]) -> tuple[tuple[float, ...], Fit]:
    """Least squares on the relative gaps."""

    def gaps(unknowns: np.ndarray) -> np.ndarray:
        comparisons = _member(family, target, kernel, tuple(unknowns)).comparisons
        return np.array([(c.reached - c.target) / c.scale for c in comparisons])

    found = least_squares(gaps, start, method="trf", x_scale="jac", xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=80)
    unknowns = tuple(float(u) for u in found.x)
    return unknowns, _member(family, target, kernel, unknowns)


def matched_names(kernel: Kernel | str) -> tuple[str, ...]:
    """The four scalars that decide a kernel; raises BadInput for an unknown one."""
    return MATCHES[as_kernel(kernel, MATCHES)]


@dataclass(frozen=True)
class Comparison:
    """One scalar of the DEQ and of the explicit network."""

    name: str
    target: float
    reached: float
    scale: float

    @property
    def gap(self) -> float:
        """|reached − target|/scale."""
        return abs(self.reached - self.target) / self.scale


def compare_scalars(target: Scalars, reached: Scalars, names: tuple[str, ...]) -> tuple[Comparison, ...]:
    """The scalars compared: γ (or κ) relative to itself, each α (or β) in units of τ0 relative to the largest of the three,
    since a tiny one (α2 = 0 for an odd activation) has no scale of its own, and where all are, to the kernel's round-off."""
    wanted = {name: float(getattr(target, name)) for name in names}
    whole, *parts = names
    units = {name: 1.0 if name.endswith("1") else target.tau0**-2 for name in parts}
    unseen = np.finfo(float).eps * (wanted[whole] / target.tau0) ** 2
    largest = max(unseen, *(abs(wanted[name]) / units[name] for name in parts))
    scales = {whole: abs(wanted[whole])} | {name: largest * units[name] for name in parts}
    return tuple(Comparison(name, wanted[name], float(getattr(reached, name)), scales[name]) for name in names)
