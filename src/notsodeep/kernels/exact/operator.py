"""The exact kernel matrix as an operator: products, eigenpairs, spectra and systems, a tile at a time."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from notsodeep.arguments import count, flag
from notsodeep.arrays import Array, available_bytes, check_memory, operand, ridge as checked_ridge
from notsodeep.errors import BadInput
from notsodeep.kernels.exact.preconditioners import Nystrom, Preconditioning, SharpNystrom
from notsodeep.kernels.exact.solver import PreparedKernel, prepare
from notsodeep.kernels.exact.tiles import TileSize, check_square, tile_pairs, tile_size
from notsodeep.kernels.names import Kernel, as_kernel
from notsodeep.linalg.conjugate_gradients import LinearSolution, conjugate_gradients
from notsodeep.linalg.density import Estimate, SpectralDensity, spectral_density
from notsodeep.linalg.eigen import BlockLanczos, top_eigenpairs
from notsodeep.linalg.preconditioners import Preconditioner, whitened
from notsodeep.theory.architecture import Network
from notsodeep.theory.convolution import Convolutional

_KEPT_SHARE = 1 / 3
"""Tiles are kept where one triangle of them takes less than this share of the free memory."""


class TiledKernel:
    """K + ridge·I of the exact kernel K (n, n) of some samples, as an operator that is never whole in memory unless it fits.

    A product computes one triangle of tiles, each for K[I, J] v[J] and K[J, I] v[I], and costs as much for fifty vectors.

    Args:
        net: An `Implicit` or an `Explicit` network.
        x: Samples (n, p).
        kernel: "conjugate", "tangent" or "preactivation".
        tau0: The norm at which a DEQ is centred; √(mean ‖x_i‖²) by default.
        tile: The side of a tile; one that suits the device by default.
        ridge: A number ≥ 0, or one per sample.
        keep: Whether tiles are held after the first product; by default where they take less than a third of the free memory.

    Raises:
        BadInput: An unknown kernel, a tile that is not square, a negative ridge, or samples that cannot be used.
        NotContractive: The DEQ has no equilibrium on these samples, or no tangent kernel.
    """

    def __init__(
        self,
        net: Network,
        x: Array,
        kernel: Kernel | str = Kernel.CONJUGATE,
        *,
        tau0: float | None = None,
        tile: TileSize = None,
        ridge: float | Tensor = 0.0,
        keep: bool | None = None,
    ) -> None:
        self.net, self.kernel, self.tau0 = net, as_kernel(kernel), tau0
        keep = None if keep is None else flag(keep, "keep")
        prepared = prepare(net, x, None, tau0, tangent=self.kernel is not Kernel.CONJUGATE)
        self.samples, self.shape, self.dtype = prepared.rows, prepared.shape, prepared.rows.dtype
        sides = tile_size(tile, prepared.rows.device)
        check_square(sides)
        self.tiles = Triangle(prepared, self.kernel, sides[0], keep)
        self.ridge = _ridge(ridge, prepared.rows)

    def __repr__(self) -> str:
        kept = "kept" if self.tiles.keep else "computed at every product"
        name = str(self.dtype).removeprefix("torch.")
        return f"TiledKernel(n={self.shape[0]}, {self.kernel}, {name}, tiles of {self.tiles.side} {kept})"

    @torch.no_grad()
    def matvec(self, v: Any) -> Any:
        """(K + ridge·I) v for v (n,) or (n, b), in one pass over the tiles."""
        if isinstance(v, np.ndarray):
            return self.matvec(self._operand(v)).cpu().numpy()
        v = self._operand(v)
        out = (self.ridge if v.ndim == 1 else self.ridge[:, None]) * v
        for rows, columns, values in self.tiles:
            out[rows] += values @ v[columns]
            if rows != columns:
                out[columns] += values.T @ v[rows]
        return out

    def __matmul__(self, v: Any) -> Any:
        return self.matvec(v)

    def diagonal(self) -> Tensor:
        """K_ii + ridge_i, (n,)."""
        return self.tiles.diagonal() + self.ridge

    def trace(self) -> Tensor:
        """tr(K + ridge·I)."""
        return self.diagonal().sum()

    def add_ridge(self, ridge: float | Tensor) -> TiledKernel:
        """K + (own ridge + ridge)·I, on the same tiles."""
        shifted = copy.copy(self)
        shifted.ridge = self.ridge + _ridge(ridge, self.samples)
        return shifted

    @torch.no_grad()
    def to_dense(self) -> Tensor:
        """The (n, n) matrix; raises BadInput where it does not fit."""
        n = self.shape[0]
        check_memory((n, n), self.dtype, self.samples.device, "matvec, solve, eigsh(k) or density()")
        dense = torch.empty(n, n, dtype=self.dtype, device=self.samples.device)
        for rows, columns, values in self.tiles:
            dense[rows, columns], dense[columns, rows] = values, values.T
        dense.diagonal().add_(self.ridge)
        return dense

    def eigsh(self, k: int, tolerance: float | None = None) -> tuple[Tensor, Tensor]:
        """The k largest eigenvalues, descending, and their eigenvectors (n, k), by block Lanczos (`top_eigenpairs`)."""
        found = top_eigenpairs(self.matvec, k, self.ridge, BlockLanczos(tolerance=tolerance))
        return found.values, found.vectors

    def eigvalsh(self, k: int | None = None) -> Tensor:
        """All eigenvalues, ascending, through `to_dense`, or the k largest by `eigsh`."""
        if k is None:
            values: Tensor = torch.linalg.eigvalsh(self.to_dense())
            return values
        return self.eigsh(min(count(k, "k"), self.shape[0]))[0].flip(0)

    def spectral_norm(self) -> float:
        """‖K + ridge·I‖, the largest eigenvalue, since none is negative."""
        return float(self.eigsh(1)[0][0])

    def density(self, probes: int = 8, steps: int = 40, generator: torch.Generator | None = None) -> SpectralDensity:
        """The distribution of the eigenvalues by `steps` products of `probes` vectors (`spectral_density`)."""
        return spectral_density(self.matvec, self.ridge, probes=probes, steps=steps, generator=generator)

    def logdet(
        self,
        preconditioner: Preconditioning | None = None,
        probes: int = 8,
        steps: int = 40,
        generator: torch.Generator | None = None,
    ) -> Estimate:
        """log det(K + ridge·I) = log det P + tr log(L⁻¹(K + ridge·I)L⁻ᵀ), P = LLᵀ; the second by `spectral_density`.

        The nearer P is, the smaller the error. Ref: Wenger et al., Preconditioning for scalable Gaussian process
        hyperparameter optimization, ICML 2022.

        Args:
            preconditioner: `SharpNystrom()` by default, and `Nystrom` for images.
            probes: Random vectors of the estimate.
            steps: Products with all of them.
            generator: Of the probes.

        Returns:
            The value and its standard error.
        """
        by = self.preconditioner(preconditioner)
        rest = spectral_density(
            whitened(self.matvec, by), self.ridge, probes=probes, steps=steps, generator=generator
        ).trace_of(torch.log)
        return Estimate(by.logdet() + rest.value, rest.error)

    def preconditioner(self, choice: Preconditioning | None = None) -> Preconditioner:
        """The preconditioner of this operator; `SharpNystrom()` by default, and `Nystrom` for images."""
        if choice is not None and (isinstance(choice, type) or not hasattr(choice, "of")):
            raise BadInput(f"preconditioner = {choice!r}: choose Plain(), Nystrom(rank), Sharp() or SharpNystrom(rank).")
        if choice is None:
            images = isinstance(self.net, Convolutional)
            choice = Nystrom(min(Nystrom().rank, len(self.samples))) if images else SharpNystrom()
        return choice.of(self)

    def solve(
        self, v: Any, preconditioner: Preconditioning | None = None, tolerance: float | None = None, most: int = 1000
    ) -> Any:
        """(K + ridge·I)⁻¹ v by preconditioned conjugate gradients.

        Args:
            v: Right-hand sides, (n,) or (n, b).
            preconditioner: `SharpNystrom()` by default, and `Nystrom` for images.
            tolerance: Of the relative residual; 1e-8, or 1e-5 in float32, by default.
            most: Iterations.

        Raises:
            NotConverged: A residual is above the tolerance after `most` iterations.
        """
        if isinstance(v, np.ndarray):
            return self.solve(self._operand(v), preconditioner, tolerance, most).cpu().numpy()
        return self.solution(v, preconditioner, tolerance, most, strict=True).solution

    def solution(
        self,
        v: Tensor,
        preconditioner: Preconditioning | None = None,
        tolerance: float | None = None,
        most: int = 1000,
        strict: bool = False,
    ) -> LinearSolution:
        """`solve` with its iterations and residuals; raises NotConverged only where `strict`."""
        most, strict = count(most, "most"), flag(strict, "strict")
        right, by = self._operand(v), self.preconditioner(preconditioner)
        return conjugate_gradients(self.matvec, right, by, tolerance=tolerance, most=most, strict=strict)

    def _operand(self, v: Any) -> Tensor:
        return operand(v, self.shape[0], self.samples)


def _ridge(ridge: float | Tensor, like: Tensor) -> Tensor:
    """One number per sample; raises BadInput for a negative one."""
    found = checked_ridge(ridge, len(like))
    return torch.as_tensor(found, dtype=like.dtype, device=like.device).expand(len(like)).clone()


class Triangle:
    """One triangle of a symmetric kernel; kept after the first pass where `keep`, else computed at every pass."""

    def __init__(self, prepared: PreparedKernel, kernel: Kernel, side: int, keep: bool | None) -> None:
        self.prepared, self.kernel, self.side = prepared, kernel, side
        rows = prepared.rows
        needed = len(rows) * (len(rows) + side) // 2 * rows.element_size()
        self.keep = needed < _KEPT_SHARE * available_bytes(rows.device) if keep is None else keep
        self.passes = 0
        """How often the kernel was computed: once where it is kept."""
        self._kept: list[tuple[slice, slice, Tensor]] | None = None

    def __iter__(self) -> Iterator[tuple[slice, slice, Tensor]]:
        if self._kept is not None:
            yield from self._kept
            return
        self.passes += 1
        kept = []
        for rows, columns in tile_pairs(len(self.prepared.rows), None, (self.side, self.side)):
            (values,) = self.prepared.tile(rows, columns, (self.kernel,))
            if self.keep:
                kept.append((rows, columns, values))
            yield rows, columns, values
        if self.keep:
            self._kept = kept

    def diagonal(self) -> Tensor:
        return self.prepared.diagonal(self.kernel)
