"""Exact kernels of convolutional networks from their definition: two-dimensional quadrature of every pair of positions, plain
iteration over all of them, patch averages by loops.

    DEQ:       Λ = σ_a² P k(Λ) + σ_b² P S,   Θ_h = Λ + σ_a² P(Q ∘ Θ_h),   Θ = k(Λ) + Q ∘ Θ_h
    explicit:  Λ_l = P Σ^(l−1),  T_l = P Θ^(l−1),  Σ^(l) = k_l(Λ_l),  Θ^(l) = Σ^(l) + Q_l ∘ T_l,  Σ^(0) = Θ^(0) = S

with (P K)[s, s'] = |P|⁻¹ Σ_r K[s + r, s' + r]. Shares no code with the package. Ref: THEORY section 8.
"""

import itertools
import math

import numpy as np

from tests.kernels.reference import Kernels, Phi, deviation, expectation, pair_expectation

STEPS = 60


def neighbours(grid: tuple[int, ...], patch: int, circular: bool) -> list[list[int | None]]:
    """For each offset of a patch, the position that it leads to from each position; None beyond an edge."""
    reach = range(-(patch // 2), patch // 2 + 1)
    table = []
    for offset in itertools.product(reach, repeat=len(grid)):
        to = []
        for place in itertools.product(*map(range, grid)):
            moved = [a + b for a, b in zip(place, offset, strict=True)]
            moved = [a % size for a, size in zip(moved, grid, strict=True)] if circular else moved
            inside = all(0 <= a < size for a, size in zip(moved, grid, strict=True))
            to.append(int(np.ravel_multi_index(moved, grid)) if inside else None)
        table.append(to)
    return table


def patch_average(values: np.ndarray, table: list[list[int | None]]) -> np.ndarray:
    """P of values (positions, positions)."""
    total = np.zeros_like(values)
    for to in table:
        for s, t in itertools.product(range(len(values)), repeat=2):
            if to[s] is not None and to[t] is not None:
                total[s, t] += values[to[s], to[t]]
    return total / len(table)


class Images:
    """Pairs of images (n, channels, …) and their patches; `pooled` reads all pairs of positions, else the same ones."""

    def __init__(self, x: np.ndarray, patch: int, circular: bool, pooled: bool) -> None:
        self.x = x.reshape(*x.shape[:2], -1)
        self.pooled, self.positions = pooled, self.x.shape[-1]
        self.table = neighbours(x.shape[2:], patch, circular)

    def average(self, values: np.ndarray) -> np.ndarray:
        return patch_average(values, self.table)

    def gram(self, i: int, j: int) -> np.ndarray:
        return self.x[i].T @ self.x[j]

    def tau0(self) -> float:
        own = [np.diag(self.average(self.gram(i, i))).mean() for i in range(len(self.x))]
        return math.sqrt(float(np.mean(own)))

    def each(self, phi: Phi, taus: tuple[np.ndarray, np.ndarray], lam: np.ndarray, slope: bool) -> np.ndarray:
        """k or Q at every pair of positions that is read; where an image meets itself ρ is 1, free of rounding."""
        found, g = np.zeros_like(lam), phi.slope if slope else phi.value
        for s, t in itertools.product(range(self.positions), repeat=2):
            if self.pooled or s == t:
                limit = taus[0][s] * taus[1][t]
                at = limit if s == t and taus[0] is taus[1] else min(max(lam[s, t], -limit), limit)
                found[s, t] = pair_expectation(phi, g, taus[0][s], taus[1][t], at)
        return found

    def read(self, values: np.ndarray) -> float:
        return float(values.mean() if self.pooled else np.diag(values).mean())

    def symmetric(self, entry) -> Kernels:
        n = len(self.x)
        found = np.zeros((2, n, n))
        for i, j in itertools.combinations_with_replacement(range(n), 2):
            found[:, i, j] = found[:, j, i] = entry(i, j)
        return Kernels(*found)


def implicit_kernels(phi: Phi, var_a: float, var_b: float, images: Images) -> Kernels:
    """Of a DEQ that is centred at τ* of the mean patch."""
    tau_star = deviation(phi, var_a, var_b * images.tau0() ** 2, centred=True)
    phi = phi.minus(expectation(phi, phi.value, tau_star))

    def deviations(i: int) -> np.ndarray:
        drive = np.diag(images.average(images.gram(i, i)))
        variance = var_b * drive
        for _ in range(STEPS):
            power = [expectation(phi, lambda u: phi.value(u) ** 2, math.sqrt(v)) for v in variance]
            variance = var_a * np.diag(images.average(np.diag(power))) + var_b * drive
        return np.sqrt(variance)

    taus = [deviations(i) for i in range(len(images.x))]

    def entry(i: int, j: int) -> tuple[float, float]:
        drive = var_b * images.average(images.gram(i, j))
        both, lam = (taus[i], taus[j]), drive
        for _ in range(STEPS):
            before, lam = lam, var_a * images.average(images.each(phi, both, lam, slope=False)) + drive
            if np.abs(lam - before).max() <= 1e-13 * np.abs(lam).max():
                break
        value, slope = (images.each(phi, both, lam, slope) for slope in (False, True))
        through = lam
        for _ in range(STEPS):
            through = lam + var_a * images.average(slope * through)
        return images.read(value), images.read(value + slope * through)

    return images.symmetric(entry)


def explicit_kernels(layers: list[Phi], images: Images) -> Kernels:
    def deviations(i: int) -> list[np.ndarray]:
        found, variance = [], np.diag(images.average(images.gram(i, i)))
        for phi in layers:
            found.append(np.sqrt(variance))
            power = [expectation(phi, lambda u, phi=phi: phi.value(u) ** 2, tau) for tau in found[-1]]
            variance = np.diag(images.average(np.diag(power)))
        return found

    taus = [deviations(i) for i in range(len(images.x))]

    def entry(i: int, j: int) -> tuple[float, float]:
        value = theta = images.gram(i, j)
        for depth, phi in enumerate(layers):
            lam, through = images.average(value), images.average(theta)
            both = taus[i][depth], taus[j][depth]
            value, slope = (images.each(phi, both, lam, slope) for slope in (False, True))
            theta = value + slope * through
        return images.read(value), images.read(theta)

    return images.symmetric(entry)
