"""Semidefinite least squares, min over M ⪰ 0 of ‖g − A M‖ with A M = Σ_kl M_kl a_kl, and a proof that nothing is closer.

A barrier method finds it: the minimiser of f(M) − μ log det M, f = ½‖g − A M‖², has ∇f = μ M⁻¹ ≻ 0. The proof: for a y with
A*y ⪯ 0 and any M ⪰ 0, ‖y‖ ‖g − A M‖ ≥ ⟨y, g⟩ − ⟨A*y, M⟩ ≥ ⟨y, g⟩, so no error is below ⟨y, g⟩/‖y‖; y = g − A M of the minimiser
has A*y = −∇f. Ref: docs/theory.md, section 7.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_SHRINK, _LAST = 0.2, 1e-14  # the barrier's factor per round, and its last weight
_CLOSE = 1e-5  # of f, what the barrier may add to it
_NEWTON_STEPS, _SETTLED, _INSIDE = 40, 1e-6, 0.95
_PRESENT = 1e-3  # of the largest eigenvalue


@dataclass(frozen=True, eq=False)
class Minimum:
    """The minimiser and its proof."""

    matrix: np.ndarray
    """M (K, K)"""
    error: float
    """‖g − A M‖"""
    bound: float
    """No M ⪰ 0 has an error below this"""

    @property
    def rank(self) -> int:
        """How many eigenvalues of M exceed a thousandth of the largest."""
        values = np.linalg.eigvalsh(self.matrix)
        return int((values > _PRESENT * values[-1]).sum())


def nearest_semidefinite(forms: np.ndarray, target: np.ndarray, positive: np.ndarray) -> Minimum:
    """The minimum of ‖g − A M‖ over M ⪰ 0.

    Args:
        forms: a_kl, (K, K, N), symmetric in k and l, linearly independent.
        target: g (N,).
        positive: Some v (N,) for which [⟨a_kl, v⟩] ≻ 0: it makes the proof exact where rounding left A*y with a positive part.
    """
    # In units in which the target and the longest form are 1: the barrier's weights are numbers.
    size, unit = float(np.linalg.norm(target)) or 1.0, float(np.linalg.norm(np.einsum("kkN->kN", forms), axis=1).max()) or 1.0
    problem = _Problem(forms / unit, target / size)
    matrix, weight = problem.start(), 1.0
    while True:
        matrix = problem.centre(matrix, weight)
        error = problem.error(matrix)
        if weight <= _LAST or len(matrix) * weight <= _CLOSE * error**2:
            return Minimum(matrix * (size / unit), error * size, problem.bound(matrix, positive) * size)
        weight *= _SHRINK


class _Problem:
    """‖g − A m‖ as a function of the upper triangle m of M, in coordinates of the range of A."""

    def __init__(self, forms: np.ndarray, target: np.ndarray) -> None:
        self.target = target
        self.upper = rows, columns = np.triu_indices(len(forms))
        self.twice = np.where(rows == columns, 1.0, 2.0)
        self.design = forms[rows, columns].T * self.twice
        orthogonal, self.reduced = np.linalg.qr(self.design)
        self.aim = orthogonal.T @ target
        self.beyond = max(float(target @ target - self.aim @ self.aim), 0.0)

    def start(self) -> np.ndarray:
        """The best multiple of the unit matrix."""
        rows, columns = self.upper
        unit = self.reduced @ (rows == columns)
        return np.eye(rows.max() + 1) * max(float(unit @ self.aim / (unit @ unit)), 1e-6)

    def error(self, matrix: np.ndarray) -> float:
        left = self.reduced @ matrix[self.upper] - self.aim
        return float(np.sqrt(left @ left + self.beyond))

    def centre(self, matrix: np.ndarray, weight: float) -> np.ndarray:
        """The minimiser of f(M) − weight·log det M, by Newton's method kept inside of M ≻ 0."""
        rows, columns = self.upper
        for _ in range(_NEWTON_STEPS):
            inverse = np.linalg.inv(matrix)
            gradient = self.reduced.T @ (self.reduced @ matrix[self.upper] - self.aim)
            gradient -= weight * self.twice * inverse[self.upper]
            # The second derivative of −log det M along E_kl and E_pq is tr(M⁻¹ E_kl M⁻¹ E_pq).
            curved = inverse[np.ix_(rows, rows)] * inverse[np.ix_(columns, columns)]
            curved += inverse[np.ix_(rows, columns)] * inverse[np.ix_(columns, rows)]
            hessian = self.reduced.T @ self.reduced + 0.5 * weight * np.outer(self.twice, self.twice) * curved
            scale = 1.0 / np.sqrt(hessian.diagonal())
            move = -scale * np.linalg.lstsq(hessian * np.outer(scale, scale), scale * gradient, rcond=None)[0]
            change = self._full(move)
            lowest = float(np.linalg.eigvalsh(_relative(change, matrix))[0])
            matrix = matrix + change * (1.0 if lowest >= 0.0 else min(1.0, -_INSIDE / lowest))
            if -float(gradient @ move) <= _SETTLED * weight:
                break
        return matrix

    def bound(self, matrix: np.ndarray, positive: np.ndarray) -> float:
        """⟨y, g⟩/‖y‖ of the residual y, less as much of `positive` as A*y ⪯ 0 needs."""
        y = self.target - self.design @ matrix[self.upper]
        excess = float(np.linalg.eigvalsh(_relative(self._adjoint(y), self._adjoint(positive)))[-1])
        y = y - max(excess, 0.0) * positive
        return max(float(y @ self.target) / float(np.linalg.norm(y)), 0.0)

    def _adjoint(self, v: np.ndarray) -> np.ndarray:
        return self._full(self.design.T @ v / self.twice)

    def _full(self, triangle: np.ndarray) -> np.ndarray:
        rows, columns = self.upper
        matrix = np.zeros((rows.max() + 1,) * 2)
        matrix[rows, columns] = matrix[columns, rows] = triangle
        return matrix


def _relative(matrix: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """L⁻¹ M L⁻ᵀ with L Lᵀ the positive definite one."""
    root = np.linalg.cholesky(positive)
    return np.asarray(np.linalg.solve(root, np.linalg.solve(root, matrix).T))
