"""One hidden layer with a DEQ's kernel, exactly, on inputs of equal norm. Ref: docs/theory.md, section 6; [simon2022].

On a sphere of radius τ0 the DEQ's kernel is a power series in s = S/τ0² with non-negative coefficients b_k, found by
composing series; a one-hidden-layer network with σ = Σ ±√b_k h_k(x/τ0) has that series as its kernel.
"""

from __future__ import annotations

import numpy as np
import torch

from notsodeep.activations import HermiteSeries
from notsodeep.errors import BadInput
from notsodeep.gaussian import hermite_coefficients
from notsodeep.kernels.names import Kernel
from notsodeep.theory.architecture import Explicit, Implicit

Series = np.ndarray
MOST_TERMS = 200


def hermite_network(net: Implicit, tau0: float, terms: int, kernel: Kernel | str) -> Explicit:
    """σ(x) = Σ_{k<terms} s_k √b_k h_k(x/τ0), with the signs s_k of the activation's own coefficients, which keep σ close to φ.

    For the tangent kernel Σ θ_k s^k of f = aᵀz, b_k = θ_k/(1 + k).
    """
    if not 2 <= terms <= MOST_TERMS:
        raise BadInput(f"A Hermite design needs 2 to {MOST_TERMS} terms, got {terms}.")
    own, series = sphere_series(net, tau0, terms, kernel)
    if kernel == Kernel.TANGENT:
        series = series / (1.0 + np.arange(terms))
    signs = np.where(own < 0, -1.0, 1.0)
    # Round-off can leave a coefficient that is zero in truth at −1e-18.
    return Explicit([HermiteSeries(tuple(signs * np.sqrt(np.maximum(series, 0.0))), scale=tau0)])


def sphere_series(net: Implicit, tau0: float, terms: int, kernel: Kernel | str) -> tuple[Series, Series]:
    """c_k(τ*) of the centred activation, and the coefficients of G (or Θ) as a series in s = S/τ0²."""
    tau_star = net.deviation(tau0)
    own = hermite_coefficients(net.centred(tau0).phi, torch.tensor(tau_star, dtype=torch.float64), terms).numpy()
    own[0] = 0.0  # centred
    power = own**2
    a, variance = net.var_a, tau_star**2
    # λ(s) = Λ/τ*² solves λ = (σ_a² Σ c_k² λ^k + σ_b² τ0² s)/τ*². With no constant term, coefficient k of λ follows from
    # lower ones and itself times σ_a² c_1²/τ*² < 1, so it is fixed after k sweeps.
    direct = a * power[1] / variance
    lam = np.zeros(terms)
    for _ in range(terms):
        composed = _compose(power, lam)
        rest = (a * (composed - power[1] * lam)) / variance
        rest[1] += net.var_b * tau0**2 / variance
        lam = rest / (1.0 - direct)
    conjugate = _compose(power, lam)
    if kernel == Kernel.CONJUGATE:
        return own, conjugate
    slope = _compose(np.append(power[1:] * np.arange(1, terms), 0.0), lam) / variance
    return own, conjugate + _multiply(slope, _divide(variance * lam, -a * slope))


def _multiply(f: Series, g: Series) -> Series:
    return np.convolve(f, g)[: len(f)]


def _compose(outer: Series, inner: Series) -> Series:
    """outer(inner(s)), truncated, by Horner."""
    value = np.zeros_like(inner)
    for coefficient in outer[::-1]:
        value = _multiply(value, inner)
        value[0] += coefficient
    return value


def _divide(numerator: Series, denominator_less_one: Series) -> Series:
    """numerator/(1 + d), coefficient by coefficient."""
    d = denominator_less_one
    quotient = np.zeros_like(numerator)
    for k in range(len(numerator)):
        quotient[k] = (numerator[k] - quotient[:k] @ d[k:0:-1]) / (1.0 + d[0])
    return quotient
