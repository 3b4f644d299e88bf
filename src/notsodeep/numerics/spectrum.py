"""Extreme eigenvalues and operator norms of symmetric matrices, dense or known by their products."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh, svds
from torch import Tensor

from notsodeep.errors import BadInput
from notsodeep.numerics.tolerances import DENSE_SPECTRUM, SYMMETRY_RTOL

_LARGEST_DENSE_GRAM = 2048

Product = Callable[[Tensor], Tensor]


def top_eigenvalues(matvec: Product, n: int, k: int, like: Tensor, which: str = "LA") -> Tensor:
    """The k largest ("LA"), smallest ("SA") or largest-in-modulus ("LM") eigenvalues, ascending, by Lanczos."""

    def product(v: np.ndarray) -> np.ndarray:
        return matvec(torch.as_tensor(v.ravel(), dtype=like.dtype, device=like.device)).cpu().numpy()

    operator = LinearOperator((n, n), matvec=product, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(n)  # ARPACK's own start is random: the same call, the same digits
    if not 1 <= k < n:
        raise BadInput(f"Lanczos finds 1 to {n - 1} eigenvalues of a matrix of {n} rows; k = {k}.")
    if not np.isfinite(product(start)).all():
        raise BadInput("The matrix holds NaN or infinity, so it has no spectrum.")
    if not product(start).any():
        return like.new_zeros(k)  # the zero matrix, at which ARPACK stops
    values = eigsh(operator, k=k, which=which, v0=start, return_eigenvectors=False)
    return torch.as_tensor(np.sort(values), dtype=like.dtype, device=like.device)


def spectral_norm(matrix: Tensor) -> float:
    """‖A‖, the largest singular value of a dense matrix."""
    rows, columns = matrix.shape
    if not bool(matrix.any()):
        return 0.0
    if rows != columns or not _is_symmetric(matrix):
        if min(rows, columns) <= DENSE_SPECTRUM:
            return float(torch.linalg.matrix_norm(matrix, ord=2))
        start = np.random.default_rng(0).standard_normal(min(rows, columns))
        return float(svds(matrix.cpu().numpy(), k=1, v0=start, return_singular_vectors=False)[0])
    if rows <= DENSE_SPECTRUM:
        return float(torch.linalg.eigvalsh(matrix).abs().max())
    return float(top_eigenvalues(lambda v: matrix @ v, rows, 1, matrix, which="LM").abs().max())


def _is_symmetric(matrix: Tensor) -> bool:
    probe = torch.linspace(-1.0, 1.0, matrix.shape[0], dtype=matrix.dtype, device=matrix.device)
    left, right = matrix @ probe, matrix.T @ probe
    return float((left - right).norm()) <= SYMMETRY_RTOL * float(right.norm())


def leading_directions(x: Tensor, k: int) -> Tensor:
    """The k leading right singular vectors of x (n, p), as columns (p, k), orthonormal."""
    p = x.shape[1]
    if k > p:
        raise BadInput(f"There are {p} directions in {p} features; {k} were asked for.")
    if p <= _LARGEST_DENSE_GRAM or k >= p - 1:
        vectors: Tensor = torch.linalg.eigh(x.T @ x).eigenvectors
        return vectors[:, p - k :].flip(1)
    product = LinearOperator((p, p), matvec=lambda v: _gram_product(x, v), dtype=np.float64)
    _, columns = eigsh(product, k=k, which="LA", v0=np.random.default_rng(0).standard_normal(p))
    return torch.as_tensor(columns[:, ::-1].copy(), dtype=x.dtype, device=x.device)


def _gram_product(x: Tensor, v: np.ndarray) -> np.ndarray:
    vector = torch.as_tensor(v.ravel(), dtype=x.dtype, device=x.device)
    return (x.T @ (x @ vector)).cpu().numpy()


def top_eigenvectors(matrix: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest eigenvalues of a dense symmetric matrix, descending, and their eigenvectors as columns (n, k)."""
    n = len(matrix)
    if n <= DENSE_SPECTRUM or k >= n:
        values, vectors = torch.linalg.eigh(matrix)
        return values[n - k :].flip(0), vectors[:, n - k :].flip(1)

    def product(v: np.ndarray) -> np.ndarray:
        return (matrix @ torch.as_tensor(v.ravel(), dtype=matrix.dtype, device=matrix.device)).cpu().numpy()

    operator = LinearOperator((n, n), matvec=product, dtype=np.float64)
    found, columns = eigsh(operator, k=k, which="LA", v0=np.random.default_rng(0).standard_normal(n))
    order = np.argsort(found)[::-1]
    return torch.as_tensor(found[order].copy()).to(matrix), torch.as_tensor(columns[:, order].copy()).to(matrix)
