"""Exact kernels from their definition in plain numpy: two-dimensional quadrature and Picard iteration, nothing else.

Shares no code, no closed form and no activation with the package; slow, and accurate to about 1e-13.

    τ_i² = σ_a² E[φ²(τ_iξ)] + σ_b² |x_i|²      Λ = σ_a² k(Λ) + σ_b² S      Θ = G + QΛ/(1 − σ_a²Q)      K = Λ/(1 − σ_a²Q)

with k = E[φ(u)φ(v)], Q = E[φ'(u)φ'(v)], u = τ_i ξ, v = τ_j(ρξ + √(1−ρ²) η). Ref: THEORY sections 2 and 5.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import erf, ndtr

CUT = 9.0  # deviations; P(|ξ| > 9) = 2e-19
WIDTH = 1.5  # of the widest panel, in deviations
NODES, WEIGHTS = np.polynomial.legendre.leggauss(12)
BLUR = np.array([-9.0, -3.0, -1.0, 0.0, 1.0, 3.0, 9.0])
COLLINEAR = 1e-14  # 1 − |ρ| that is round-off of ρ = ±1

Function = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Phi:
    """φ and φ' by hand, the kinks, and whether φ varies on a scale of 1 around 0 and its kinks ("graded")."""

    value: Function
    slope: Function
    kinks: tuple[float, ...] = ()
    graded: bool = True

    def marks(self, tau: float) -> np.ndarray:
        """Where panels end, in deviations: the kinks and, if graded, distances ½, 1, 2, 4, … from each and from 0."""
        centres = np.array(sorted({0.0, *self.kinks}))
        steps = 2.0 ** np.arange(-1, math.ceil(math.log2(max(CUT * tau, 1.0))) + 1) if self.graded else np.empty(0)
        marks = np.concatenate([centres, *(centres + step for step in steps), *(centres - step for step in steps)])
        return marks[np.abs(marks) < CUT * tau] / tau

    def minus(self, offset: float) -> "Phi":
        return replace(self, value=lambda x: self.value(x) - offset)


def _density(x: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * x**2) / math.sqrt(2.0 * math.pi)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def _sech2(x: np.ndarray) -> np.ndarray:
    return 1.0 / np.cosh(np.clip(x, -300.0, 300.0)) ** 2


PHI = {
    "relu": Phi(lambda x: np.maximum(x, 0.0), lambda x: 1.0 * (x > 0), (0.0,), graded=False),
    "leaky_relu:0.1": Phi(lambda x: np.where(x > 0, x, 0.1 * x), lambda x: np.where(x > 0, 1.0, 0.1), (0.0,), graded=False),
    "tanh": Phi(np.tanh, _sech2),
    "erf": Phi(erf, lambda x: 2.0 / math.sqrt(math.pi) * np.exp(-(x**2))),
    "gelu": Phi(lambda x: x * ndtr(x), lambda x: ndtr(x) + x * _density(x)),
    "silu": Phi(lambda x: x * _sigmoid(x), lambda x: _sigmoid(x) * (1.0 + x * _sigmoid(-x))),
    "elu": Phi(
        lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0.0))),
        lambda x: np.where(x > 0, 1.0, np.exp(np.minimum(x, 0.0))),
        (0.0,),
    ),
    "softsign": Phi(lambda x: x / (1.0 + np.abs(x)), lambda x: 1.0 / (1.0 + np.abs(x)) ** 2, (0.0,)),
    "hard_tanh:0.75,1.2": Phi(
        lambda x: 0.75 * np.clip(x, -1.2, 1.2), lambda x: 0.75 * (np.abs(x) < 1.2), (-1.2, 1.2), graded=False
    ),
    "sin": Phi(np.sin, np.cos),
    "quadratic": Phi(lambda x: x**2 + x, lambda x: 2.0 * x + 1.0, graded=False),
    "gaussian": Phi(lambda x: np.exp(-0.5 * x**2), lambda x: -x * np.exp(-0.5 * x**2)),
    "user": Phi(
        lambda x: 0.8 * np.maximum(x - 0.3, 0.0) + 0.4 * np.tanh(x), lambda x: 0.8 * (x > 0.3) + 0.4 * _sech2(x), (0.3,)
    ),
}
"""By the package's names, and the function that a test hands over as a user's own."""


def _rule(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights (…, q) with Σ w g(ξ) = E[g(ξ)], ξ ~ N(0, 1), from sorted edges (…, e)."""
    half = 0.5 * np.diff(edges)[..., None]
    middle = 0.5 * (edges[..., 1:] + edges[..., :-1])[..., None]
    xi = middle + half * NODES
    weights = half * WEIGHTS * _density(xi)
    return xi.reshape(*edges.shape[:-1], -1), weights.reshape(*edges.shape[:-1], -1)


GRID = np.linspace(-CUT, CUT, round(2 * CUT / WIDTH) + 1)


def _edges(*marks: np.ndarray) -> np.ndarray:
    inside = np.concatenate([m[np.abs(m) < CUT] for m in marks])
    return np.unique(np.concatenate([GRID, inside]))


def expectation(phi: Phi, g: Function, tau: float) -> float:
    """E[g(τξ)] for a g that is analytic where φ is."""
    if tau == 0.0:
        return float(g(np.zeros(1))[0])
    xi, weights = _rule(_edges(phi.marks(tau)))
    return float(weights @ g(tau * xi))


def pair_expectation(phi: Phi, g: Function, tau_i: float, tau_j: float, lam: float) -> float:
    """E[g(u)g(v)] for (u, v) centred Gaussian with deviations τ_i, τ_j and covariance λ; g analytic where φ is."""
    if tau_i == 0.0 or tau_j == 0.0:
        return expectation(phi, g, tau_i) * expectation(phi, g, tau_j)
    rho = min(max(lam / (tau_i * tau_j), -1.0), 1.0)
    of_u, of_v = phi.marks(tau_i), phi.marks(tau_j)
    if 1.0 - abs(rho) <= COLLINEAR:
        sign = math.copysign(1.0, rho)
        xi, weights = _rule(_edges(of_u, sign * of_v))
        return float(weights @ (g(tau_i * xi) * g(tau_j * sign * xi)))
    spread = math.sqrt((1.0 - rho) * (1.0 + rho))
    crossings = np.empty(0)
    if abs(rho) > 1e-3:  # where v's mean meets a mark; a kink acts as far as η blurs it
        kinks = (np.array(phi.kinks)[:, None] / tau_j + spread * BLUR).ravel()
        crossings = np.concatenate([of_v, kinks]) / rho
    xi, weights = _rule(_edges(of_u, crossings))
    cuts = np.clip((of_v - rho * xi[:, None]) / spread, -CUT, CUT)
    edges = np.sort(np.concatenate([np.broadcast_to(GRID, (len(xi), len(GRID))), cuts], axis=1), axis=1)
    eta, inner_weights = _rule(edges)
    inner = np.einsum("ij,ij->i", inner_weights, g(tau_j * (rho * xi[:, None] + spread * eta)))
    return float(weights @ (g(tau_i * xi) * inner))


def _iterate(step: Callable[[float], float], start: float, scale: float) -> float:
    """Plain Picard iteration to round-off."""
    current = start
    for _ in range(500):
        following = step(current)
        if abs(following - current) <= 1e-14 * max(scale, abs(following)):
            return following
        current = following
    raise AssertionError("The reference did not converge: choose a contractive network.")


def deviation(phi: Phi, var_a: float, drive: float, centred: bool = False) -> float:
    """τ of τ² = σ_a² E[φ²(τξ)] + drive, or with the variance of φ for E[φ²]."""

    def step(variance: float) -> float:
        tau = math.sqrt(variance)
        mean = expectation(phi, phi.value, tau) if centred else 0.0
        return var_a * expectation(phi, lambda u: (phi.value(u) - mean) ** 2, tau) + drive

    return math.sqrt(_iterate(step, drive, drive))


@dataclass(frozen=True)
class Kernels:
    conjugate: np.ndarray
    tangent: np.ndarray
    preactivation: np.ndarray | None = None


def implicit_kernels(phi: Phi, var_a: float, var_b: float, x: np.ndarray, centre: bool, tau0: float) -> Kernels:
    """G, Θ and K of a DEQ, with φ centred at τ* of τ0 if `centre`."""
    if centre:
        tau_star = deviation(phi, var_a, var_b * tau0**2, centred=True)
        phi = phi.minus(expectation(phi, phi.value, tau_star))
    gram = x @ x.T
    tau = [deviation(phi, var_a, var_b * gram[i, i]) for i in range(len(x))]

    def solve(i: int, j: int) -> tuple[float, float, float]:
        limit = tau[i] * tau[j]

        def step(lam: float) -> float:
            value = pair_expectation(phi, phi.value, tau[i], tau[j], lam)
            return min(max(var_a * value + var_b * gram[i, j], -limit), limit)

        # From the side of ρ = ±1: parallel samples start, and stay, at their solution.
        lam = _iterate(step, math.copysign(limit, gram[i, j]), limit)
        value, slope = (pair_expectation(phi, g, tau[i], tau[j], lam) for g in (phi.value, phi.slope))
        return lam, value, slope

    covariance, conjugate, slope = _symmetric(len(x), solve)
    preactivation = covariance / (1.0 - var_a * slope)
    return Kernels(conjugate, conjugate + slope * preactivation, preactivation)


def explicit_kernels(layers: list[Phi], x: np.ndarray) -> Kernels:
    """Σ^(L) and Θ^(L), from Σ^(0) = Θ^(0) = S."""
    covariance = tangent = x @ x.T
    for phi in layers:
        tau = np.sqrt(np.diag(covariance))

        def layer(i: int, j: int, phi: Phi = phi, tau: np.ndarray = tau, at: np.ndarray = covariance):
            return tuple(pair_expectation(phi, g, tau[i], tau[j], at[i, j]) for g in (phi.value, phi.slope))

        covariance, slope = _symmetric(len(x), layer)
        tangent = covariance + tangent * slope
    return Kernels(covariance, tangent)


def _symmetric(n: int, entries: Callable[[int, int], tuple[float, ...]]) -> np.ndarray:
    """A stack of symmetric matrices, one for each number that `entries(i, j)` gives."""
    rows = {(i, j): entries(i, j) for i in range(n) for j in range(i, n)}
    return np.array([[rows[min(i, j), max(i, j)] for j in range(n)] for i in range(n)]).transpose(2, 0, 1)


def worst_gap(ours: np.ndarray, reference: np.ndarray) -> float:
    """max |ours − reference|_ij/√(reference_ii reference_jj); rows of exact zeros count against the largest entry."""
    root = np.sqrt(np.diag(reference))
    scale = np.maximum(np.outer(root, root), 1e-20 * root.max() ** 2)
    return float((np.abs(ours - reference) / scale).max())
