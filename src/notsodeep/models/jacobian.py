"""The Jacobian of a DEQ's map at its equilibrium: how contractive it is, and a penalty that keeps it so."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from notsodeep.errors import BadInput
from notsodeep.models import checks
from notsodeep.models.deq import DEQ
from notsodeep.numerics.arnoldi import spectral_radii

_BLOCK_ELEMENTS = 1 << 25


def spectral_radius(deq: DEQ, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """(n,): the largest |eigenvalue| of J = ∂f/∂z at each sample's equilibrium, to well within 1 %.

    Below 1, steps z ← f(z) converge there, each by that factor in the end.
    """
    _require_deq(deq)
    x = checks.batch(x, deq.in_features, deq.B, "DEQ")
    rows = max(1, _BLOCK_ELEMENTS // (100 * deq.width))  # some hundred vectors are kept for every sample
    return torch.cat([_radii(deq, part, generator) for part in x.reshape(-1, deq.in_features).split(rows)])


def _radii(deq: DEQ, x: Tensor, generator: torch.Generator | None) -> Tensor:
    with torch.no_grad():
        state = deq.solve(x).value / deq.form.output
        weight, u = deq.terms(x)
    with torch.enable_grad():
        state = state.detach().requires_grad_()
        image = deq.step(state, weight, u)
    start = _normal(state, generator)

    def transposed(v: Tensor) -> Tensor:  # Jᵀ has the eigenvalues of J
        product: Tensor = torch.autograd.grad(image, state, v, retain_graph=True)[0]
        return product

    return spectral_radii(transposed, start)


def jacobian_penalty(deq: DEQ, x: Tensor, probes: int = 1, generator: torch.Generator | None = None) -> Tensor:
    """E‖J‖_F²/m over the samples, by Hutchinson's estimate ‖Jᵀε‖², ε of N(0, I); differentiable, to be added to a loss.

    Ref: Bai, Koltun & Kolter (2021).
    """
    _require_deq(deq)
    checks.count(probes, "probes")
    x = checks.batch(x, deq.in_features, deq.B, "DEQ").reshape(-1, deq.in_features)
    state = deq.solve(x).value / deq.form.output
    weight, u = deq.terms(x)
    pull = torch.func.vjp(lambda s: deq.step(s, weight, u), state)[1]
    total = sum(pull(_normal(state, generator))[0].square().sum() for _ in range(probes))
    penalty: Tensor = total / (probes * math.prod(state.shape))  # type: ignore[assignment]
    return penalty


def _normal(like: Tensor, generator: torch.Generator | None) -> Tensor:
    where = like.device if generator is None else generator.device
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=where).to(like.device)


def _require_deq(deq: object) -> None:
    if not isinstance(deq, DEQ):
        raise BadInput(f"Expected a DEQ, got {type(deq).__name__}.")
