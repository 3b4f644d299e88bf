"""The two networks of the theory, as values.

    Implicit:  z* = φ(h*)/√m,  h* = σ_a A z* + σ_b B x        (a deep equilibrium model)
    Explicit:  x^(l) = σ_l(W_l x^(l−1))/√m_l,  l = 1 … L      (a feed-forward network)

Ref: docs/theory.md, sections 1 and 5.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from notsodeep.activations import Activation, ActivationLike, Centred, Mixed, activation
from notsodeep.activations.mixed import Units, each_kind, kinds_of
from notsodeep.arguments import flag, norm, numbers, shown, variance
from notsodeep.errors import BadInput, warn
from notsodeep.gaussian.moments import moments_at
from notsodeep.gaussian.variance import equilibrium_deviation


@dataclass(frozen=True)
class Implicit:
    """A DEQ at infinite width: z* = φ(h*)/√m, h* = σ_a A z* + σ_b B x.

    Args:
        phi: The activation: a name such as "tanh", an expression in x, an `Activation`, or a torch callable.
        var_a: σ_a², a variance, never a deviation.
        var_b: σ_b²; 1 − var_a by default.
        centre: Whether E[φ(τ*ξ)] is subtracted from φ, as the theorems ask, with τ* of the data at hand.

    Raises:
        BadInput: An unknown activation, a `Mixed`, or a variance that is not positive.
    """

    phi: Activation
    var_a: float
    var_b: float
    centre: bool

    def __init__(self, phi: ActivationLike, var_a: float, var_b: float | None = None, centre: bool = True) -> None:
        if isinstance(phi, Mixed):
            raise BadInput(f"The units of a DEQ are of one kind, got {phi}; those of an Explicit may be of several.")
        object.__setattr__(self, "phi", activation(phi))
        object.__setattr__(self, "var_a", variance(var_a, "var_a", " (it is σ_a², a variance)"))
        default_hint = f" (by default it is 1 − var_a = {1 - self.var_a:g}; give var_b)" if var_b is None else ""
        object.__setattr__(self, "var_b", variance(1.0 - self.var_a if var_b is None else var_b, "var_b", default_hint))
        object.__setattr__(self, "centre", flag(centre, "centre"))

    def __str__(self) -> str:
        tail = "" if self.centre else ", centre=False"
        return f"Implicit({self.phi}, var_a={self.var_a:g}, var_b={self.var_b:g}{tail})"

    def deviation(self, tau0: float) -> float:
        """τ* of a sample of norm τ0: τ*² = σ_a² E[φ²(τ*ξ)] + σ_b² τ0², with φ centred at τ* if `centre`."""
        solve = _deviation if self.phi.may_change else _kept_deviation
        return solve(self.phi, self.var_a, self.var_b * norm(tau0) ** 2, self.centre)

    def centred(self, tau0: float) -> Implicit:
        """The same network with its offset E[φ(τ*ξ)] written into the activation; itself if `centre=False`."""
        if not self.centre:
            return self
        return Implicit(_centred_at(self.phi, self.deviation(tau0)), self.var_a, self.var_b, centre=False)

    @property
    def contraction_bound(self) -> float:
        """1/(4L²): below it a network of any large width contracts with high probability."""
        return contraction_bound(self.phi)

    def warn_unless_contractive(self) -> None:
        """Give a NumericsWarning where σ_a² ≥ 1/(4L²): the kernels exist, but a finite network may find no equilibrium."""
        if self.var_a >= self.contraction_bound:
            about = "an estimated " if self.phi.lipschitz_is_estimate else ""
            bound = self.contraction_bound
            remedy = f"It is for var_a < {bound:.4g}." if bound > 0 else "No var_a guarantees it for this activation."
            warn(
                f"var_a = {self.var_a:g} ≥ {bound:.4g} = 1/(4L²) with {about}L = {self.phi.lipschitz:.4g} of {self.phi}: the "
                "variance equation has a solution, so the kernels exist, but a network of finite width is not guaranteed to "
                f"contract. {remedy}"
            )


def contraction_bound(phi: Activation) -> float:
    """1/(4L²), infinite for a constant φ."""
    steepest = 4.0 * phi.lipschitz**2
    return 1.0 / steepest if steepest > 0.0 else math.inf


def _deviation(phi: Activation, var_a: float, drive: float, centred: bool) -> float:
    return float(equilibrium_deviation(phi, var_a, torch.tensor([drive], dtype=torch.float64), centred=centred)[0])


_kept_deviation = lru_cache(maxsize=256)(_deviation)


def _centred_at(phi: Activation, tau: float) -> Activation:
    """φ − E[φ(τξ)], or φ itself where that mean is round-off."""
    at = moments_at(phi, tau)
    negligible = abs(float(at.mean)) <= 1e-15 * float(at.gamma2) ** 0.5
    return phi if negligible else Centred(phi, float(at.mean))


@dataclass(frozen=True)
class Explicit:
    """A feed-forward network at infinite width: x^(l) = σ_l(g_l W_l x^(l−1))/√m_l, l = 1 … L, and f = g_{L+1} aᵀx^(L).

    The weights W_l are drawn with variance 1/g_l², and a with 1/g_{L+1}²: gains change how the network trains, and with it the
    tangent kernel, but neither its function at the start nor its conjugate kernel. A gain of 0 freezes a layer.

    Args:
        layers: One activation per hidden layer, taken as it is: names, `Activation`s or torch callables; or a
            `nsd.activations.Mixed` for a layer whose units are of several kinds.
        gains: g_1 … g_{L+1} ≥ 0, one per layer and one for the readout; all 1 by default.

    Raises:
        BadInput: No layer, an unknown activation, or gains that do not fit.
    """

    layers: tuple[Units, ...]
    gains: tuple[float, ...]

    def __init__(
        self, layers: ActivationLike | Mixed | Iterable[ActivationLike | Mixed], gains: Iterable[float] | None = None
    ) -> None:
        one = isinstance(layers, str | bytes | Activation | Mixed | Tensor | np.ndarray) or not isinstance(layers, Iterable)
        given: list[Any] = [layers] if one else list(layers)  # type: ignore[arg-type]
        if not given:
            raise BadInput("An explicit network needs at least one hidden layer; pass for example ['relu', 'relu'].")
        object.__setattr__(self, "layers", tuple(layer if isinstance(layer, Mixed) else activation(layer) for layer in given))
        object.__setattr__(self, "gains", _gains(gains, len(given) + 1))

    @property
    def has_gains(self) -> bool:
        """Whether any gain differs from 1."""
        return any(gain != 1.0 for gain in self.gains)

    def with_gains(self, gains: Iterable[float] | None) -> Explicit:
        """The same layers with other gains."""
        return Explicit(self.layers, gains)

    @property
    def depth(self) -> int:
        return len(self.layers)

    @property
    def curves(self) -> dict[str, Activation]:
        """The activations by "layer 1", …, or "layer 1, kind 1", … where a layer's units are of several kinds: to be drawn."""
        named = {}
        for depth, layer in enumerate(self.layers, start=1):
            kinds = kinds_of(layer)
            for number, kind in enumerate(kinds, start=1):
                named[f"layer {depth}" + (f", kind {number}" if len(kinds) > 1 else "")] = kind
        return named

    def __str__(self) -> str:
        gains = f"; gains {', '.join(f'{gain:.6g}' for gain in self.gains)}" if self.has_gains else ""
        return "Explicit(" + " → ".join(map(str, self.layers)) + gains + ")"

    def deviations(self, tau0: float) -> tuple[float, ...]:
        """τ̃_0 … τ̃_L: τ̃_l² = E[σ_l²(τ̃_{l−1}ξ)], the mean of a layer's kinds."""
        taus = [norm(tau0)]
        for layer in self.layers:
            taus.append(_feature_deviation(layer, taus[-1]))
        return tuple(taus)

    def centred(self, tau0: float) -> Explicit:
        """The network with each layer, and each kind in it, centred at its own input deviation: σ_l − E[σ_l(τ̃_{l−1}ξ)]."""
        tau = norm(tau0)
        layers: list[Units] = []
        for layer in self.layers:
            layers.append(each_kind(layer, partial(_centred_at, tau=tau)))
            tau = _feature_deviation(layers[-1], tau)
        return Explicit(layers, self.gains)


def _feature_deviation(layer: Units, tau: float) -> float:
    """√E[σ²(τξ)], the mean square over the kinds of units."""
    kinds = kinds_of(layer)
    return math.sqrt(sum(float(moments_at(kind, tau).gamma2) for kind in kinds) / len(kinds))


def _gains(given: Iterable[float] | None, wanted: int) -> tuple[float, ...]:
    if given is None:
        return (1.0,) * wanted
    gains = numbers(given, "gains")
    if len(gains) != wanted or min(gains) < 0.0 or not any(gains):
        raise BadInput(
            f"gains must be {wanted} numbers ≥ 0, not all 0: one for each hidden layer and one for the readout; got "
            f"{shown(given)}."
        )
    return gains


@dataclass(frozen=True)
class Stacked:
    """Layers stacked into one implicit layer: z = (z_1 … z_L), z_l = σ_l(Σ_{k<l} A_lk z_k + B_l x + c_l).

    With A strictly block lower triangular that is a feed-forward network, and its fixed point is exact after L sweeps.
    """

    layers: tuple[Units, ...]
    widths: tuple[int, ...]

    @property
    def width(self) -> int:
        return sum(self.widths)

    def masks(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """(width, 1) and (width, width): 1 where the input, and the layer before, may enter a layer."""
        layer = torch.repeat_interleave(
            torch.arange(len(self.widths), device=like.device), torch.tensor(self.widths, device=like.device)
        )
        return (layer == 0).to(like)[:, None], (layer[:, None] == layer + 1).to(like)

    def apply(self, h: Tensor) -> Tensor:
        """Apply the activation of each layer to its block."""
        parts = h.split(self.widths, dim=-1)
        return torch.cat([sigma(part) for sigma, part in zip(self.layers, parts, strict=True)], dim=-1)

    def __str__(self) -> str:
        return "Stacked(" + " → ".join(f"{m}: {sigma}" for sigma, m in zip(self.layers, self.widths, strict=True)) + ")"


Network = Implicit | Explicit
