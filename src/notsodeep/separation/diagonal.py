"""The diagonal linear DEQ, f(x) = Σ_i β_i x_i + b with β_i = 1/(1 − w_i): its gradient flow, and where that ends.

Ref: [wu2024], learning dynamics.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.integrate import solve_ivp
from scipy.optimize import brentq
from torch import Tensor, nn

from notsodeep import arrays as checks
from notsodeep.arguments import count, dtype as checked_dtype, flag, not_negative, number, positive
from notsodeep.arrays import real, refuse_if_too_large
from notsodeep.errors import BadInput, NotConverged

_NEWTON_STEPS, _NEWTON_RTOL = 200, 1e-13
_FLOW_RTOL, _FLOW_ATOL = 1e-10, 1e-12
_LARGEST_COEFFICIENT = 1e100
_MOST_EVALUATIONS = 100_000  # of the flow, some seconds
_SHORTEST = 1e-100  # a time in which nothing changes, and which LSODA would cut into steps of zero


class DiagonalDEQ(nn.Module):
    """z_i = w_i z_i + x_i, so z_i = x_i/(1 − w_i), and f(x) = Σ_i z_i (+ b); w = b = 0 at the start."""

    def __init__(self, in_features: int, bias: bool = False, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        d, dtype = count(in_features, "in_features"), checked_dtype(dtype)
        refuse_if_too_large(d, 1, torch.float64, torch.device("cpu"), "fewer inputs", f"{d} weights")
        self.w = nn.Parameter(torch.zeros(d, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(1, dtype=dtype)) if flag(bias, "bias") else None

    @property
    def in_features(self) -> int:
        return len(self.w)

    def features(self, x: Tensor) -> Tensor:
        return checks.batch(x, self.in_features, self.w, "DiagonalDEQ") / (1.0 - self.w)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 1)."""
        f = self.features(x).sum(-1, keepdim=True)
        return f if self.bias is None else f + self.bias


def gradient_descent(X: Tensor, y: Tensor, steps: int, rate: float = 2e-2) -> DiagonalDEQ:
    """The diagonal DEQ with a bias after so many steps of gradient descent, from w = b = 0, on ½ mean (f(x) − y)², y (n, 1)."""
    X, y = real(X, "X", (None, None)), real(y, "y")
    if X.numel() == 0 or y.shape != (len(X), 1):
        raise BadInput(
            f"X has shape {tuple(X.shape)} and y {tuple(y.shape)}; expected (n, d) and (n, 1), one sample at least."
        )
    y, steps, rate = y.to(X), count(steps, "steps", least=0), positive(rate, "rate")
    network = DiagonalDEQ(X.shape[1], bias=True, dtype=X.dtype).to(X.device)
    optimiser = torch.optim.SGD(network.parameters(), lr=rate)
    for _ in range(steps):
        optimiser.zero_grad()
        (0.5 * (network(X) - y).square().mean()).backward()
        optimiser.step()
    return network


def gradient_flow(X: Tensor, y: Tensor, beta0: Tensor, time: float) -> Tensor:
    """β(time) of β' = −(Xᵀ(Xβ − y)) ⊙ β⁴: gradient descent on ½‖Xβ − y‖² in w, with steps without end."""
    x, wanted = _arrays(X, y)
    start, time = _start(beta0, x), not_negative(time, "time")
    if time < _SHORTEST:
        return torch.from_numpy(start.copy())
    evaluations = 0

    def slope(_: float, beta: np.ndarray) -> np.ndarray:
        nonlocal evaluations
        evaluations += 1
        found: np.ndarray = -(x.T @ (x @ beta - wanted)) * beta**4
        if evaluations > _MOST_EVALUATIONS or not np.isfinite(found).all():
            raise NotConverged(
                f"The gradient flow was not followed to its end: after {evaluations} evaluations β' is as large as "
                f"{np.abs(found).max():.2g}. Take a shorter time, or rescale X and y.",
                residual=float(np.abs(found).max()),
                steps=evaluations,
            )
        return found

    found = solve_ivp(
        slope,
        (0.0, time),
        start,
        method="LSODA",
        rtol=_FLOW_RTOL,
        atol=_FLOW_ATOL,
    )
    if not found.success or not np.isfinite(found.y[:, -1]).all():
        raise NotConverged(f"The gradient flow stopped: {found.message}", residual=float("nan"), steps=len(found.t))
    return torch.from_numpy(found.y[:, -1])


def flow_limit(X: Tensor, y: Tensor, beta0: Tensor) -> Tensor:
    """argmin Σ_i 1/(2β_i²) + β_i(0)^(−3) β_i subject to Xβ = y: where the gradient flow from β(0) > 0 ends.

    At the minimum β^(−3) = β(0)^(−3) + Xᵀν; Newton's method finds ν, in a basis of X's rows. Ref: [wu2024], learning dynamics.
    """
    x, wanted = _arrays(X, y)
    start = _start(beta0, x)
    if not (start > 0.0).all():
        raise BadInput("The flow is one of β > 0: every entry of beta0 must be positive.")
    left, sizes, rows = np.linalg.svd(x, full_matrices=False)
    kept = sizes > 1e-12 * sizes.max()
    if not kept.any():
        raise BadInput("Every sample of X is zero: it says nothing of β.")
    basis, reduced = rows[kept], (left[:, kept].T @ wanted) / sizes[kept]
    nu = np.zeros(len(basis))
    level = start**-3.0
    for _ in range(_NEWTON_STEPS):
        beta = (level + basis.T @ nu) ** (-1.0 / 3.0)
        missed = basis @ beta - reduced
        if np.abs(missed).max() <= _NEWTON_RTOL * max(np.abs(reduced).max(), 1.0):
            return torch.from_numpy(beta)
        try:
            step = np.linalg.solve((basis * beta**4) @ basis.T / 3.0, missed)
        except np.linalg.LinAlgError:  # β has gone to zero or to infinity
            break
        size = 1.0
        while (level + basis.T @ (nu + size * step) <= 0.0).any():  # β stays positive
            size *= 0.5
        nu = nu + size * step
    raise NotConverged(
        f"The limit of the flow was not found: Xβ = y is missed by {np.abs(missed).max():.2g}. Is there a β > 0 with Xβ = y?",
        residual=float(np.abs(missed).max()),
        steps=_NEWTON_STEPS,
    )


def gotu_limit(f_empty: float, f_k: float) -> tuple[float, float]:
    """(β_k, GOTU) of the flow with a bias, from w = b = 0, where x_k = −1 is never seen.

    β_k solves β + (1 − β^(−3))/3 = f_∅ + f_k, and the mean squared error on the unseen half is 4(f_k − β_k)²; f_∅ and f_k are
    the Fourier coefficients of the target. Ref: [wu2024], learning dynamics.
    """
    f_empty, f_k = (_coefficient(value, name) for value, name in ((f_empty, "f_empty"), (f_k, "f_k")))
    total = f_empty + f_k

    def excess(beta: float) -> float:
        return beta + (1.0 - 1.0 / (beta * beta * beta)) / 3.0 - total

    low = high = 1.0
    while excess(low) > 0.0:
        low *= 0.5
    while excess(high) < 0.0:
        high *= 2.0
    beta = float(brentq(excess, low, high, xtol=1e-15, rtol=1e-14)) if low < high else 1.0
    return beta, 4.0 * (float(f_k) - beta) ** 2


def gotu_bound(f_k: float) -> float:
    """4(f_k − (4 + 3f_k)^(−1/3))², which `gotu_limit` stays below where f_∅ = 0; a linear network's error is 4f_k².

    Ref: [wu2024], learning dynamics.
    """
    f_k = _coefficient(f_k, "f_k")
    if not f_k > 0.0:
        raise BadInput(f"The bound is for a coefficient f_k > 0, got {f_k!r}.")
    return float(4.0 * (f_k - (4.0 + 3.0 * f_k) ** (-1.0 / 3.0)) ** 2)


def _arrays(X: Tensor, y: Tensor) -> tuple[np.ndarray, np.ndarray]:
    X, y = real(X, "X", dtype=torch.float64), real(y, "y", dtype=torch.float64)
    if X.ndim != 2 or y.shape != (len(X),) or X.numel() == 0:
        raise BadInput(f"X has shape {tuple(X.shape)} and y {tuple(y.shape)}; expected (n, d) and (n,), not empty.")
    return X.cpu().numpy(), y.cpu().numpy()


def _start(beta0: Tensor, x: np.ndarray) -> np.ndarray:
    return real(beta0, "beta0", (x.shape[1],), torch.float64).cpu().numpy()


def _coefficient(value: float, name: str) -> float:
    """A Fourier coefficient, of which squares are taken."""
    found = number(value, name)
    if abs(found) > _LARGEST_COEFFICIENT:
        raise BadInput(f"{name} = {found:g} has no square in double precision; rescale the target.")
    return found
