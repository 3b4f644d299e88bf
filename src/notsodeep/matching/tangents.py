"""The slopes of a network's kernel in its weights and stretches, forward through its layers.

A layer of kinds σ_q has the kernel K_ij = Σ_q Σ_k c_qk(τ_i) c_qk(τ_j) ρ^k, ρ = κ_ij/(τ_iτ_j), κ that of the layer below. So

    dK = Σ_qk (dc_qk(τ_i) c_qk(τ_j) + c_qk(τ_i) dc_qk(τ_j)) ρ^k + ∂K/∂ρ dρ,    dρ = dκ/(τ_iτ_j) − ρ (d log τ_i + d log τ_j),

and what is below a layer enters by κ and τ alone: however many unknowns there are, it costs three vectors of pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from notsodeep.matching.pairs import Pairs


class Moving(NamedTuple):
    """What a layer hands on, and its slopes in the unknowns up to there, a row an unknown."""

    kernel: Tensor
    """(N + n,): at the pairs and on the diagonal"""
    taus: Tensor
    """(n + 1,)"""
    kernel_slopes: Tensor
    """(unknowns, N + n)"""
    tau_slopes: Tensor
    """(unknowns, n + 1), of log τ"""


class Kind(NamedTuple):
    """One kind of a layer's units: its coefficients and their slopes, the missed rest of the series as the last of them."""

    numbers: Tensor
    """(n + 1, K + 1)"""
    in_tau: Tensor
    """(n + 1, K + 1), the slope in log τ"""
    in_unknowns: Tensor
    """(n + 1, unknowns, K + 1), the slopes in this kind's unknowns"""


def of_inputs(pairs: Pairs) -> Moving:
    """The samples themselves, of which no unknown changes anything."""
    i, j, taus = pairs.first, pairs.second, pairs.taus
    kernel = torch.cat([pairs.rho * taus[i] * taus[j], taus[:-1].square()])
    return Moving(kernel, taus, kernel.new_zeros(0, len(kernel)), taus.new_zeros(0, len(taus)))


def kind(numbers: Sequence[Tensor], in_tau: Sequence[Tensor], weights: Sequence[float], free: Sequence[bool]) -> Kind:
    """Of σ = Σ_k w_k ψ_k(b_k x), centred at the last deviation, from the numbers of ψ_k(b_k x) and their slopes in log τ."""
    w = torch.tensor(weights, dtype=torch.float64)
    each, sloped = torch.stack(list(numbers))[..., :-1], torch.stack(list(in_tau))[..., :-1]
    stretched = (w[:, None, None] * sloped)[torch.tensor(free)]
    own = torch.cat([each, stretched]).transpose(0, 1).contiguous()
    own[..., 0] -= own[-1:, :, 0].clone()
    total = torch.tensordot(w, each, 1)
    total[:, 0] -= total[-1, 0].clone()
    return Kind(total, torch.tensordot(w, sloped, 1), own)


def through(kinds: Sequence[Kind], below: Moving, pairs: Pairs, kept: float | None) -> Moving:
    """The layer of these kinds, times what keeps the deviation `kept`, if any."""
    i, j, count = pairs.first, pairs.second, len(pairs.first)
    tau_i, tau_j = below.taus[i], below.taus[j]
    rho = (below.kernel[:count] / (tau_i * tau_j)).clamp(-1.0, 1.0)
    terms = kinds[0].numbers.shape[1]
    powers = torch.cat([torch.ones_like(rho)[:, None], rho[:, None].expand(-1, terms - 1)], dim=1).cumprod(1)
    degrees = torch.arange(1, terms, dtype=rho.dtype)
    kernel, in_rho, in_i, in_j = (torch.zeros_like(rho) for _ in range(4))
    power, in_tau = torch.zeros_like(below.taus), torch.zeros_like(below.taus)
    own, own_power = [], []
    for c, sloped, unknowns in kinds:
        first, second = c.index_select(0, i), c.index_select(0, j)
        product = first * second
        in_rho += (product[:, 1:] * powers[:, :-1]) @ degrees
        kernel += product.mul_(powers).sum(1)
        first, second = first.mul_(powers), second.mul_(powers)
        in_i += sloped.index_select(0, i).mul_(second).sum(1)
        in_j += sloped.index_select(0, j).mul_(first).sum(1)
        power += c.square().sum(1)
        in_tau += 2.0 * (sloped * c).sum(1)
        moved = torch.bmm(unknowns.index_select(0, i), second[..., None])
        own.append(moved.baddbmm_(unknowns.index_select(0, j), first[..., None])[..., 0].T)
        own_power.append(2.0 * torch.bmm(unknowns, c[..., None])[..., 0].T)
    if len(below.tau_slopes):
        in_rho, along = in_rho / (tau_i * tau_j), in_rho * rho
        along_i, along_j = (below.tau_slopes.index_select(1, which) for which in (i, j))
        moved = (below.kernel_slopes[:, :count] * in_rho).addcmul_(along_i, in_i - along).addcmul_(along_j, in_j - along)
        own, own_power = [moved, *own], [in_tau * below.tau_slopes, *own_power]
    steep, steep_power = torch.cat(own), torch.cat(own_power)
    if kept is not None and float(power[-1]) > 0.0:
        at, square = steep_power[:, -1:] / power[-1], kept**2 / power[-1]
        steep, steep_power = square * (steep - at * kernel), square * (steep_power - at * power)
        kernel, power = square * kernel, square * power
    all_slopes = torch.cat([steep, steep_power[:, :-1]], dim=1)
    return Moving(torch.cat([kernel, power[:-1]]), power.sqrt(), all_slopes, 0.5 * steep_power / power)
