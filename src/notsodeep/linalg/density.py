"""The spectral density of a symmetric matrix known by its products: stochastic Lanczos quadrature."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from notsodeep.arguments import count, generator as checked_generator, number
from notsodeep.arrays import check_memory
from notsodeep.errors import BadInput
from notsodeep.linalg.eigen import BlockProduct

_PROBES, _STEPS, _POINTS = 8, 40, 200

# The share of eigenvalues within the default grid: a kernel has a few that are hundreds of times larger than all others.
_BULK = 0.99


@dataclass(frozen=True)
class Estimate:
    """A number estimated from random probes, and the standard error of its mean over them."""

    value: float
    error: float

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return f"{self.value:.6g} ± {self.error:.2g}"


@dataclass(frozen=True, eq=False)
class SpectralDensity:
    """The spectral density of an (n, n) matrix: Gauss quadrature nodes and weights, (probes, steps) each; weights sum to one.

    (1/n) Σ f(λ_i) ≈ mean over probes of Σ_j w_j f(θ_j), exactly so in expectation for polynomials f of degree < 2·steps.
    """

    nodes: Tensor
    weights: Tensor
    n: int

    def trace_of(self, function: Callable[[Tensor], Tensor]) -> Estimate:
        """tr f(A) = Σ f(λ_i): the log-determinant with `torch.log`, the effective dimension with λ ↦ λ/(λ + ridge)."""
        used = self.weights > 0
        values = function(torch.where(used, self.nodes, self.nodes[used].max()))
        if not bool(torch.isfinite(values[used]).all()):
            raise BadInput(
                f"The function is not finite on the spectrum, which reaches down to {float(self.nodes[used].min()):.3g}; "
                "add a ridge, or take another function."
            )
        sums = self.n * (self.weights * torch.where(used, values, 0.0)).sum(1)
        return Estimate(float(sums.mean()), float(sums.std()) / math.sqrt(len(sums)) if len(sums) > 1 else math.inf)

    def quantile(self, share: float) -> float:
        """λ below which this share of the eigenvalues lies."""
        share = number(share, "share")
        if not 0.0 <= share <= 1.0:
            raise BadInput(f"A share of the eigenvalues is from 0 to 1; got {share:g}.")
        nodes, middle = self._cumulative
        above = int(torch.searchsorted(middle, torch.tensor(share, dtype=middle.dtype, device=middle.device)))
        if above in (0, len(nodes)):
            return float(nodes[min(above, len(nodes) - 1)])
        low, high = float(middle[above - 1]), float(middle[above])
        part = (share - low) / (high - low) if high > low else 0.0
        return float(torch.lerp(nodes[above - 1], nodes[above], part))

    @cached_property
    def _cumulative(self) -> tuple[Tensor, Tensor]:
        """All nodes, ascending, and the share of the spectrum up to the middle of each."""
        order = self.nodes.flatten().argsort()
        weights = self.weights.flatten()[order] / len(self.weights)
        used = weights > 0
        nodes, weights = self.nodes.flatten()[order][used], weights[used]
        return nodes, weights.cumsum(0) - 0.5 * weights

    @cached_property
    def width(self) -> float:
        """The width of the bell on each node: the resolution of so many steps in the bulk."""
        low, high = self.quantile(0.0), self.quantile(_BULK)
        return max(2.0 * (high - low) / self.nodes.shape[1], 1e-6 * max(abs(low), abs(high)), 1e-300)

    @cached_property
    def grid(self) -> Tensor:
        """Points from the lowest eigenvalue to the end of the bulk, without the largest hundredth of the spectrum."""
        low, high = self.quantile(0.0) - 3.0 * self.width, self.quantile(_BULK) + 3.0 * self.width
        return torch.linspace(low, high, _POINTS, dtype=self.nodes.dtype, device=self.nodes.device)

    @cached_property
    def values(self) -> Tensor:
        """The density at `grid`."""
        return self.at(self.grid)

    def at(self, points: Tensor, width: float | None = None) -> Tensor:
        """Σ_j w_j N(point − θ_j; width²), the density smoothed by a bell of `width`.

        Ref: Lin, Saad and Yang, SIAM Review 58 (2016).
        """
        sigma = self.width if width is None else width
        nodes, weights = self.nodes.flatten(), self.weights.flatten() / len(self.weights)
        bells = torch.exp(-0.5 * ((points[..., None].to(nodes) - nodes) / sigma).square())
        return bells @ weights / (sigma * math.sqrt(2.0 * math.pi))


@torch.no_grad()
def spectral_density(
    product: BlockProduct, like: Tensor, *, probes: int = _PROBES, steps: int = _STEPS, generator: torch.Generator | None = None
) -> SpectralDensity:
    """Stochastic Lanczos quadrature: `steps` products, each of all probes together; `like` (n, …) gives n, dtype and device.

    From each probe v of random signs, Lanczos with full reorthogonalisation gives the tridiagonal T of A on its Krylov space;
    the nodes are the eigenvalues of T and the weights the squared first entries of its eigenvectors.

    Ref: Ubaru, Chen and Saad, SIAM J. Matrix Anal. Appl. 38 (2017); Golub and Meurant, Matrices, Moments and Quadrature.
    """
    probes, steps = count(probes, "probes"), count(steps, "steps")
    generator = checked_generator(generator)
    check_memory((len(like) * min(steps, len(like)), probes), like.dtype, like.device, "fewer probes", f"{probes} probes")
    n = len(like)
    own = torch.Generator().manual_seed(0) if generator is None else generator
    signs = torch.randint(0, 2, (n, probes), generator=own, device=own.device).to(like) * 2.0 - 1.0
    alpha, beta = _lanczos(product, signs / math.sqrt(n), min(steps, n))
    small = torch.diag_embed(alpha) + torch.diag_embed(beta, 1) + torch.diag_embed(beta, -1)
    nodes, vectors = torch.linalg.eigh(small.double())
    weights = vectors[:, 0, :].square()
    # Beyond an invariant subspace T is zero and decoupled: its zeros have only the weight of round-off.
    weights = torch.where(weights > 1e-28, weights, 0.0)
    return SpectralDensity(nodes, weights / weights.sum(1, keepdim=True), n)


def _lanczos(product: BlockProduct, start: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """The diagonals (b, steps) and off-diagonals (b, steps − 1) of T, for each column of `start` by itself."""
    n, b = start.shape
    basis = start.new_zeros(b, steps, n)
    alpha, beta = start.new_zeros(b, steps), start.new_zeros(b, steps - 1)
    v = start
    for j in range(steps):
        basis[:, j] = v.T
        image = product(v)
        if not bool(torch.isfinite(image).all()):
            raise BadInput("The matrix holds NaN or infinity, so it has no spectrum.")
        alpha[:, j] = (v * image).sum(0)
        if j + 1 == steps:
            break
        known, w = basis[:, : j + 1], image.T[:, :, None]
        before = torch.linalg.vector_norm(image, dim=0)
        for _ in range(2):  # once leaves a component of the size of the rounding over the remainder
            w = w - known.mT @ (known @ w)
        rest = torch.linalg.vector_norm(w[:, :, 0], dim=1)
        alive = rest > 100 * torch.finfo(v.dtype).eps * before
        beta[:, j] = torch.where(alive, rest, 0.0)
        v = torch.where(alive[:, None], w[:, :, 0] / torch.where(alive, rest, 1.0)[:, None], 0.0).T.contiguous()
    return alpha, beta
