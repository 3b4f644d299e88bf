"""Top eigenpairs of a symmetric matrix known by its products with blocks of vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh, svds
from torch import Tensor

from notsodeep.arguments import is_whole, positive, shown
from notsodeep.errors import BadInput, NotConverged
from notsodeep.tolerances import DENSE_SPECTRUM, RADIUS_RTOL, SYMMETRY_RTOL

BlockProduct = Callable[[Tensor], Tensor]
"""V (n, b) ↦ A V, of one symmetric A."""

EIGEN_RTOL = {torch.float64: 1e-8, torch.float32: 1e-5}
"""‖A u − θ u‖ relative to the largest |θ|, at which an eigenpair is taken, by the dtype of the products."""

# Twice as many columns as are asked for: a product with fifty vectors costs much what one with one does where the matrix is
# computed anew each time, and the rate is set by the gap behind the block. Measured on kernels: 6 to 17 products for 1 to 20
# pairs, where one vector at a time (ARPACK) takes 21 to 154 and LOBPCG 20 to 113.
_GUARD = 8
_MOST_BLOCKS, _MOST_PRODUCTS = 16, 400
_EVERY, _MOST = 20, 200
_LARGEST_DENSE_GRAM = 2048


@dataclass(frozen=True, eq=False)
class Eigenpairs:
    """Values (k,), descending, vectors (n, k) as columns, residual norms (k,) relative to the largest value, and the number of
    block products that they took."""

    values: Tensor
    vectors: Tensor
    residuals: Tensor
    products: int


@torch.no_grad()
def top_eigenpairs(
    product: BlockProduct,
    like: Tensor,
    k: int,
    *,
    block: int | None = None,
    tolerance: float | None = None,
    generator: torch.Generator | None = None,
) -> Eigenpairs:
    """The k largest eigenvalues of A (n, n) and their eigenvectors; `like` (n, …) gives n, the dtype and the device.

    Block Lanczos with full reorthogonalisation and thick restarts: an orthonormal V with A V = V T + Q B eₗᵀ, whose Ritz pairs
    T y = θ y have residuals ‖B yₗ‖; when V is full, it is replaced by its leading Ritz vectors. A whole block goes through one
    product, since it is the product that is dear. Where A is small it is had by one product with the identity.

    Ref: Golub and Underwood (1977); Wu and Simon, SIAM J. Matrix Anal. Appl. 22 (2000), for the restart.
    """
    n = len(like)
    if not is_whole(k) or not 1 <= k <= n:
        raise BadInput(f"A matrix of {n} rows has {n} eigenvalues; k = {shown(k)} were asked for.")
    tolerance = EIGEN_RTOL[like.dtype] if tolerance is None else positive(tolerance, "tolerance")
    width = 2 * k + _GUARD if block is None else block
    if width < k:
        raise BadInput(f"A block of {width} vectors cannot find k = {k} copies of an eigenvalue; take block ≥ k.")
    if n <= 6 * width:
        return _dense(product, like, k)
    state = _Krylov(product, orthonormal(_normal(n, width, like, generator)), min(_MOST_BLOCKS * width, n))
    while state.products < _MOST_PRODUCTS:
        state.expand()
        values, along = state.ritz()
        scale = max(float(values.abs().max()), torch.finfo(like.dtype).tiny)
        residuals = torch.linalg.vector_norm(state.coupling @ along[-state.last :, :k], dim=0) / scale
        if state.invariant or (len(values) >= k and float(residuals.max()) <= tolerance):
            return Eigenpairs(values[:k], state.basis @ along[:, :k], residuals, state.products)
        if state.full:
            state.restart(values, along, k + width)
    raise NotConverged(
        f"Of the {k} largest eigenpairs {int((residuals > tolerance).sum())} have a relative residual above {tolerance:.1e} "
        f"after {state.products} products of {width} vectors (the largest is {float(residuals.max()):.1e}). Ask for a larger "
        f"block, a larger tolerance{', or float64' if like.dtype == torch.float32 else ''}.",
        residual=float(residuals.max()),
        steps=state.products,
    )


class _Krylov:
    """V, T and what is left of the last product: A V = V T + Q B eₗᵀ, eₗ the last block of columns."""

    def __init__(self, product: BlockProduct, start: Tensor, most: int) -> None:
        self.product, self.pending, self.most = product, start, most
        self.basis = start[:, :0]
        self.matrix = start.new_zeros(0, 0)
        self.coupling = start.new_zeros(0, 0)
        self.last = self.products = 0
        self.invariant = False

    @property
    def full(self) -> bool:
        return self.basis.shape[1] + self.pending.shape[1] > self.most

    def expand(self) -> None:
        image = self.product(self.pending)
        _refuse_nan(image)
        self.products += 1
        self.last = self.pending.shape[1]
        self.basis = torch.cat([self.basis, self.pending], dim=1)
        size = float(torch.linalg.vector_norm(image, dim=0).max())
        along = self.basis.T @ image
        rest = image - self.basis @ along
        rest -= self.basis @ (
            self.basis.T @ rest
        )  # once leaves a component of the size of the rounding over the remainder
        grown = self.matrix.new_zeros(len(along), len(along))
        known = len(self.matrix)
        grown[:known, :known] = self.matrix
        grown[:, known:], grown[known:] = along, along.T
        grown[known:, known:] = 0.5 * (along[known:] + along[known:].T)
        self.matrix = grown
        self.pending, self.coupling = _range(rest, size)
        self.pending = orthonormal(self.pending - self.basis @ (self.basis.T @ self.pending))
        self.invariant = self.pending.shape[1] == 0

    def ritz(self) -> tuple[Tensor, Tensor]:
        """Ritz values, descending, and their coordinates in V."""
        values, along = torch.linalg.eigh(self.matrix)
        return values.flip(0), along.flip(1)

    def restart(self, values: Tensor, along: Tensor, kept: int) -> None:
        """The leading Ritz vectors instead of V; T is then diagonal, and its coupling to Q comes with the next product."""
        self.basis = orthonormal(self.basis @ along[:, :kept])
        self.matrix = torch.diag(values[:kept])


def orthonormal(vectors: Tensor) -> Tensor:
    """The Q of vectors = QR with a positive diagonal of R, so that it is next to vectors that are nearly orthonormal."""
    if vectors.shape[1] == 0:
        return vectors
    q, r = torch.linalg.qr(vectors)
    signs = torch.where(r.diagonal() < 0, -1.0, 1.0).to(vectors)
    flipped: Tensor = q * signs
    return flipped


def _range(rest: Tensor, size: float) -> tuple[Tensor, Tensor]:
    """Q (n, b′) and B (b′, b) with rest = Q B, without the directions that are round-off of columns of norm `size`."""
    left, singular, right = torch.linalg.svd(rest, full_matrices=False)
    kept = singular > 100 * torch.finfo(rest.dtype).eps * size
    return left[:, kept], singular[kept, None] * right[kept]


def _dense(product: BlockProduct, like: Tensor, k: int) -> Eigenpairs:
    n = len(like)
    matrix = product(torch.eye(n, dtype=like.dtype, device=like.device))
    _refuse_nan(matrix)
    values, vectors = torch.linalg.eigh(0.5 * (matrix + matrix.T))
    return Eigenpairs(values[n - k :].flip(0), vectors[:, n - k :].flip(1), like.new_zeros(k), 1)


def _refuse_nan(image: Tensor) -> None:
    if not bool(torch.isfinite(image).all()):
        raise BadInput("The matrix holds NaN or infinity, so it has no spectrum.")


def _normal(n: int, width: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
    own = torch.Generator().manual_seed(0) if generator is None else generator
    return torch.randn(n, width, dtype=torch.float64, generator=own, device=own.device).to(like)


def spectral_radii(apply: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """ρ(M_i) of each row's matrix M_i, (n,), given v ↦ (M_i v_i)_i on (n, d).

    Power iteration that remembers (Arnoldi): the vectors M^k v are kept orthonormal, and the largest eigenvalue of M on their
    span is taken. The plain growth of ‖M^k v‖ would need hundreds of products where the spectrum is a disc, as that of a
    random network is; this takes some 60.
    """
    n, d = start.shape
    most = min(_MOST, d)
    basis = [start / torch.linalg.vector_norm(start, dim=1, keepdim=True)]
    matrix = start.new_zeros(n, most + 1, most)
    radius = start.new_zeros(n)
    for k in range(most):
        w = apply(basis[k])
        before = torch.linalg.vector_norm(w, dim=1)
        known = torch.stack(basis, dim=1)  # (n, k + 1, d)
        for _ in range(2):  # once leaves a component of the size of the rounding over the remainder
            along = (known @ w[:, :, None])[:, :, 0]
            w = w - (along[:, None] @ known)[:, 0]
            matrix[:, : k + 1, k] += along
        rest = torch.linalg.vector_norm(w, dim=1)
        # Where nothing is left the span is invariant, and its eigenvalues are exact: go on with zeros.
        alive = rest > 100 * torch.finfo(w.dtype).eps * before
        matrix[:, k + 1, k] = torch.where(alive, rest, 0.0)
        basis.append(torch.where(alive[:, None], w / torch.where(alive, rest, 1.0)[:, None], 0.0))
        if (k + 1) % _EVERY == 0 or k + 1 == most:
            previous, radius = radius, _largest(matrix[:, : k + 1, : k + 1])
            if bool(((radius - previous).abs() <= RADIUS_RTOL * radius).all()):
                break
    return radius


def _largest(matrix: Tensor) -> Tensor:
    largest: Tensor = torch.linalg.eigvals(matrix).abs().amax(1)
    return largest


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
