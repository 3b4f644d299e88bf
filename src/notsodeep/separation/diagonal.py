"""The diagonal linear DEQ, f(x) = Σ_i β_i x_i + b with β_i = 1/(1 − w_i): its gradient flow, and where that ends.

Ref: [wu2024], learning dynamics.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.integrate import solve_ivp
from scipy.optimize import brentq
from torch import Tensor, nn

from notsodeep.arguments import count, dtype as checked_dtype, flag, not_negative, number, positive
from notsodeep.arrays import check_memory, module_input, real
from notsodeep.errors import BadInput, NotConverged

_NEWTON_STEPS, _NEWTON_RTOL = 200, 1e-13
_FLOW_RTOL, _FLOW_ATOL = 1e-10, 1e-12
_LARGEST_COEFFICIENT = 1e100
_MOST_EVALUATIONS = 100_000  # of the flow: some seconds
_SHORTEST = 1e-100  # nothing changes in a shorter time, and LSODA would take steps of zero


class DiagonalDEQ(nn.Module):
    """z_i = w_i z_i + x_i, so z_i = x_i/(1 − w_i), and f(x) = Σ_i z_i (+ b); w = b = 0 at the start.

    Args:
        in_features: the number of inputs.
        bias: whether there is a b.
        dtype: of the weights; torch's default where None.

    Raises:
        BadInput: `in_features` is not a whole number from 1 on, or does not fit in memory.
    """

    def __init__(self, in_features: int, bias: bool = False, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        d, dtype = count(in_features, "in_features"), checked_dtype(dtype)
        check_memory((d, 1), torch.float64, torch.device("cpu"), "fewer inputs", f"{d} weights")
        self.in_features, self.w = d, nn.Parameter(torch.zeros(d, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(1, dtype=dtype)) if flag(bias, "bias") else None

    def features(self, x: Tensor) -> Tensor:
        """The states z of x (n, d), (n, d)."""
        return module_input(x, self.in_features, self.w, "DiagonalDEQ") / (1.0 - self.w)

    def forward(self, x: Tensor) -> Tensor:
        """The network's values at x (n, d), as (n, 1)."""
        f = self.features(x).sum(-1, keepdim=True)
        return f if self.bias is None else f + self.bias


@torch.no_grad()
def gradient_descent(X: Tensor, y: Tensor, steps: int, rate: float = 2e-2) -> DiagonalDEQ:
    """The diagonal DEQ with a bias after gradient descent on ½ mean (f(x) − y)² from w = b = 0:

        w ← w − rate β² ⊙ Xᵀr/n,   b ← b − rate Σ_i r_i/n,   β = 1/(1 − w),   r = Xβ + b − y.

    Args:
        X: samples (n, d).
        y: values (n, 1).
        steps: the number of steps.
        rate: the step size.

    Returns:
        The network, of the dtype and on the device of X.

    Raises:
        BadInput: the shapes do not fit, there is no sample, or `steps` or `rate` is out of range.
    """
    X, y = real(X, "X", (None, None)), real(y, "y")
    if X.numel() == 0 or y.shape != (len(X), 1):
        raise BadInput(f"X has shape {tuple(X.shape)} and y {tuple(y.shape)}; expected (n, d) and (n, 1), one sample at least.")
    wanted, steps, rate = y.to(X)[:, 0], count(steps, "steps", least=0), positive(rate, "rate")
    network = DiagonalDEQ(X.shape[1], bias=True, dtype=X.dtype).to(X.device)
    assert network.bias is not None
    for _ in range(steps):
        beta = 1.0 / (1.0 - network.w)
        missed = X @ beta + network.bias - wanted
        network.w.sub_(rate * beta.square() * (missed @ X) / len(X))
        network.bias.sub_(rate * missed.mean())
    return network


def gradient_flow(X: Tensor, y: Tensor, beta0: Tensor, time: float) -> Tensor:
    """β(time) of β' = −(Xᵀ(Xβ − y)) ⊙ β⁴, the limit of gradient descent on ½‖Xβ − y‖² in w for small steps.

    Args:
        X: samples (n, d).
        y: values (n,).
        beta0: β at time 0, (d,).
        time: the end of the flow.

    Returns:
        β(time), (d,), in double precision.

    Raises:
        BadInput: the shapes do not fit, there is no sample, or `time` is negative.
        NotConverged: the flow could not be followed to its end.
    """
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

    found = solve_ivp(slope, (0.0, time), start, method="LSODA", rtol=_FLOW_RTOL, atol=_FLOW_ATOL)
    if not found.success or not np.isfinite(found.y[:, -1]).all():
        raise NotConverged(f"The gradient flow stopped: {found.message}", residual=float("nan"), steps=len(found.t))
    return torch.from_numpy(found.y[:, -1])


def flow_limit(X: Tensor, y: Tensor, beta0: Tensor) -> Tensor:
    """argmin Σ_i 1/(2β_i²) + β_i(0)^(−3) β_i subject to Xβ = y, the limit of the gradient flow from β(0) > 0.

    At the minimum β^(−3) = β(0)^(−3) + Xᵀν; Newton's method finds ν, in a basis of X's rows. Ref: [wu2024], learning dynamics.

    Args:
        X, y: as for `gradient_flow`.
        beta0: β at time 0, (d,), all positive.

    Returns:
        The limit of β, (d,), in double precision.

    Raises:
        BadInput: the shapes do not fit, every sample is zero, or an entry of `beta0` is not positive.
        NotConverged: there may be no β > 0 with Xβ = y.
    """
    x, wanted = _arrays(X, y)
    start = _start(beta0, x)
    if not (start > 0.0).all():
        raise BadInput("The flow is defined for β > 0: every entry of beta0 must be positive.")
    left, sizes, rows = np.linalg.svd(x, full_matrices=False)
    kept = sizes > 1e-12 * sizes.max()
    if not kept.any():
        raise BadInput("Every sample of X is zero, so X does not determine β; give other samples.")
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

    Args:
        f_empty: f_∅, the coefficient of the constant.
        f_k: the coefficient of x_k.

    Returns:
        β_k and the error.

    Raises:
        BadInput: a coefficient is not finite, or above 1e100.
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
    """4(f_k − (4 + 3f_k)^(−1/3))², an upper bound of `gotu_limit` where f_∅ = 0; a linear network's error is 4f_k².

    Ref: [wu2024], learning dynamics.

    Args:
        f_k: the coefficient of x_k, positive.

    Returns:
        The bound.

    Raises:
        BadInput: `f_k` is not positive, or above 1e100.
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
    """The value, if its square fits into double precision; raises BadInput otherwise."""
    found = number(value, name)
    if abs(found) > _LARGEST_COEFFICIENT:
        raise BadInput(f"{name} = {found:g} is too large to be squared in double precision; rescale the target.")
    return found
