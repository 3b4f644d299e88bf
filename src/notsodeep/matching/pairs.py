"""A sample of pairs on which explicit networks are fitted to the kernels of a DEQ."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from notsodeep.errors import BadInput
from notsodeep.kernels.exact.kernels import exact_kernel
from notsodeep.kernels.names import Kernel, Match
from notsodeep.theory.architecture import Implicit

MOST_SAMPLES = 400
_MOST_PAIRS, _AS_MANY = 30_000, 1000
_CLOSE = 0.99
_FARTHEST = 30.0  # τ0: samples longer than this are left out of a fit
_SHORTEST = 1e-3  # of τ0


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of samples with the entries of a DEQ's kernels there.

    Errors are weighted as in the Frobenius norm of a kernel of 1,000 such samples, relative to the norm of that kernel.
    """

    net: Implicit
    tau0: float
    norms: Tensor
    """‖x_i‖ (n,)"""
    first: Tensor
    second: Tensor
    """Indices of the samples of each pair (N,)"""
    rho: Tensor
    """Their correlations x_i·x_j/(‖x_i‖‖x_j‖) (N,)"""
    targets: dict[Kernel, Tensor]
    """Of each kernel that counts, the entries at the pairs and on the diagonal, weighted: (N + n,)"""
    weights: dict[Kernel, Tensor]
    """Of all these"""

    @classmethod
    def of(cls, net: Implicit, x: Tensor, tau0: float, match: Match = Match.CONJUGATE) -> Pairs:
        """The pairs of at most 400 of the samples x (n, p), drawn with a seed, and the exact kernels at them."""
        draw = torch.Generator().manual_seed(0)
        x = x[torch.randperm(len(x), generator=draw).to(x.device)].to(torch.float64).cpu()
        norms = torch.linalg.vector_norm(x, dim=1)
        usual = int(((norms > tau0 / _FARTHEST) & (norms < tau0 * _FARTHEST)).sum())
        if usual < 2:
            raise BadInput(
                f"Only {usual} of {len(x)} samples to fit on have a norm between τ0/{_FARTHEST:g} and {_FARTHEST:g} τ0, "
                f"τ0 = {tau0:.4g}: give the τ0 of the data, leave outliers and zero rows out, or take a family that is not "
                "fitted, 'matched'."
            )
        some, norms = (each[norms < tau0 * _FARTHEST][:MOST_SAMPLES] for each in (x, norms))
        # A row of zeros has no direction: it is fitted as a short one.
        drawn = torch.nn.functional.normalize(torch.randn(some.shape, generator=draw, dtype=some.dtype)) * (tau0 * _SHORTEST)
        some = torch.where((norms < tau0 * _SHORTEST)[:, None], drawn, some)
        n, norms = len(some), torch.linalg.vector_norm(some, dim=1)
        first, second = torch.triu_indices(n, n, 1)
        if len(first) > _MOST_PAIRS:
            chosen = torch.randperm(len(first), generator=draw)[:_MOST_PAIRS]
            first, second = first[chosen], second[chosen]
        rho = ((some[first] * some[second]).sum(1) / (norms[first] * norms[second])).clamp(-1.0, 1.0)
        off, on = math.sqrt(_AS_MANY * (_AS_MANY - 1) / max(len(first), 1)), math.sqrt(_AS_MANY / n)
        plain = torch.cat([torch.full_like(rho, off), torch.full_like(norms, on)])
        targets, weights = {}, {}
        for kernel in match.kernels:
            matrix = exact_kernel(net, some, None, kernel, tau0)
            target = torch.cat([matrix[first, second], matrix.diagonal()])
            weights[kernel] = plain / torch.linalg.vector_norm(plain * target)
            targets[kernel] = target * weights[kernel]
        return cls(net, tau0, norms, first, second, rho, targets, weights)

    def fewer(self, count: int) -> Pairs:
        """The first `count` of the pairs, and all of the diagonal."""
        given = len(self.first)
        if given <= count:
            return self
        chosen = torch.cat([torch.arange(count), torch.arange(given, given + len(self.norms))])
        more = torch.cat([torch.full((count,), math.sqrt(given / count)), torch.ones(len(self.norms))]).to(torch.float64)
        sizes = {kernel: torch.linalg.vector_norm(target[chosen] * more) for kernel, target in self.targets.items()}
        targets, weights = (
            {kernel: one[chosen] * more / sizes[kernel] for kernel, one in both.items()}
            for both in (self.targets, self.weights)
        )
        return replace(
            self, first=self.first[:count], second=self.second[:count], rho=self.rho[:count], targets=targets, weights=weights
        )

    @cached_property
    def stretch(self) -> float:
        """τ*/τ0, by which φ is stretched where it acts on inputs as long as the data, not on the DEQ's pre-activations."""
        return self.net.deviation(self.tau0) / self.tau0

    @property
    def close(self) -> float:
        """The share of the pairs whose correlation is above .99 or below −.99."""
        return float((self.rho.abs() > _CLOSE).double().mean()) if len(self.rho) else 0.0

    @cached_property
    def taus(self) -> Tensor:
        """‖x_i‖ and, last, τ0: (n + 1,)."""
        return torch.cat([self.norms, self.norms.new_tensor([self.tau0])])


def imitation(x: Tensor, count: int) -> Tensor:
    """A Gaussian sample of the norms and the dimension of x: `count` rows of independent directions."""
    draw = torch.Generator().manual_seed(0)
    norms = torch.linalg.vector_norm(x.to(torch.float64).cpu(), dim=1)
    drawn = torch.randn(count, max(x.shape[1], 2), generator=draw, dtype=torch.float64)
    lengths = norms[torch.arange(count) % len(norms)] / torch.linalg.vector_norm(drawn, dim=1)
    imitated: Tensor = drawn * lengths[:, None]
    return imitated
