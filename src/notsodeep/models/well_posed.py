"""Parametrizations of A with which s = φ(W s + u), W = scale·A, always has exactly one solution."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from notsodeep.activations import Activation
from notsodeep.arguments import shown
from notsodeep.errors import BadInput

_CONTRACTION, _MONOTONE_NORM = 0.95, 2.0
_GRAM_STEPS = 5


class SpectralBound(nn.Module):
    """A ↦ A·min(1, 0.95/(L·scale·b)), b ≥ ‖A‖₂: the map contracts by 0.95 or more, whatever training does.

    b is the bound of Gram iteration, b = ‖G_k‖_F^(1/2^k) with G_0 = A, G_(j+1) = G_jᵀG_j: at least the norm, within a few per
    cent of it, and differentiable.

    Ref: Delattre et al. (2023).
    """

    def __init__(self, lipschitz: float, scale: float) -> None:
        super().__init__()
        self.largest = _CONTRACTION / (lipschitz * scale)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * (self.largest / gram_bound(weight)).clamp(max=1.0)

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight

    def extra_repr(self) -> str:
        return f"norm at most {self.largest:.4g}"


class MonotoneForm(nn.Module):
    """(P, S) ↦ A with L·scale·A = M·min(1, 2/‖M‖), M = (1 − μ)I − PᵀP + S − Sᵀ and μ = 0.05: its symmetric part stays below 1.

    For a non-decreasing φ of slope at most L every eigenvalue of I − J then has a real part ≥ μ, so there is one equilibrium,
    though ‖W‖ may exceed 1. Up to a norm of 2, Broyden's and damped steps reach it; without that bound M could grow until no
    solver does. ‖M‖ is bounded as in `SpectralBound`.

    Ref: Winston & Kolter (2020).
    """

    def __init__(self, lipschitz: float, scale: float) -> None:
        super().__init__()
        self.factor = lipschitz * scale

    def forward(self, root: Tensor, skew: Tensor) -> Tensor:
        identity = torch.eye(len(root), dtype=root.dtype, device=root.device)
        monotone = _CONTRACTION * identity - root.mT @ root + skew - skew.mT
        return monotone * (_MONOTONE_NORM / gram_bound(monotone)).clamp(max=1.0) / self.factor

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The nearest (P, S): exact where the symmetric part is below the bound."""
        scaled = weight.double() * self.factor
        identity = torch.eye(len(weight), dtype=torch.float64, device=weight.device)
        values, vectors = torch.linalg.eigh(_CONTRACTION * identity - 0.5 * (scaled + scaled.mT))
        root = values.clamp(min=0.0).sqrt()[:, None] * vectors.mT
        return root.to(weight), (0.25 * (scaled - scaled.mT)).to(weight)


def gram_bound(weight: Tensor, steps: int = _GRAM_STEPS) -> Tensor:
    """Upper bound of ‖weight‖₂ by Gram iteration: each step squares the ratios of the singular values."""
    gram, log = weight, weight.new_zeros(())
    for _ in range(steps):
        size = torch.linalg.matrix_norm(gram).clamp(min=torch.finfo(gram.dtype).tiny)
        gram, log = gram / size, 2.0 * (log + size.log())
        gram = gram.mT @ gram
    last = torch.linalg.matrix_norm(gram).clamp(min=torch.finfo(gram.dtype).tiny)
    return torch.exp((log + last.log()) / 2.0**steps)


_KINDS: dict[str, Any] = {"spectral": SpectralBound, "monotone": MonotoneForm}


def require_kind(name: object) -> None:
    """Raise `BadInput` unless `name` is None or that of a parametrization."""
    if name is not None and not (isinstance(name, str) and name in _KINDS):
        raise BadInput(f"well_posed must be 'spectral', 'monotone' or None, got {shown(name)}.")


def parametrization(name: str, phi: Callable[[Tensor], Tensor], scale: float) -> nn.Module:
    """The parametrization called `name`, for activation φ and W = scale·A."""
    if not isinstance(phi, Activation) or not 0.0 < phi.lipschitz < math.inf:
        raise BadInput(f"well_posed needs an activation with a Lipschitz constant; {phi} has none.")
    grid = torch.linspace(-30.0, 30.0, 6001, dtype=torch.float64)
    if name == "monotone" and not bool((phi(grid).diff() >= -1e-12).all()):
        raise BadInput(f"well_posed='monotone' needs a non-decreasing activation; {phi} falls somewhere. Use 'spectral'.")
    module: nn.Module = _KINDS[name](phi.lipschitz, scale)
    return module
