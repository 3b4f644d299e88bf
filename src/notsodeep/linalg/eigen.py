"""Leading eigenpairs of symmetric matrices, held in memory or known by their products, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh, lobpcg, svds
from torch import Tensor

from notsodeep.arguments import is_whole, positive, shown
from notsodeep.errors import BadInput, NotConverged
from notsodeep.tolerances import DENSE_SPECTRUM, RADIUS_RTOL, SYMMETRY_RTOL

BlockProduct = Callable[[Tensor], Tensor]
"""V (n,) or (n, b) ↦ A V, of one symmetric A."""

EIGEN_RTOL = {torch.float64: 1e-8, torch.float32: 1e-5}
"""‖A u − θ u‖ relative to the largest |θ|, at which an eigenpair is taken, by the dtype of the products."""

# Twice as many columns as are asked for: a product with fifty vectors costs much what one with one does where the matrix is
# computed anew each time, and the rate is set by the gap behind the block. Measured on kernels: 6 to 17 products for 1 to 20
# pairs, where one vector at a time (ARPACK) takes 21 to 154 and LOBPCG 20 to 113.
_GUARD = 8
_MOST_BLOCKS, _MOST_PRODUCTS = 16, 400
_LOBPCG_STEPS = 60
_ARNOLDI_EVERY, _ARNOLDI_MOST = 20, 200
_LARGEST_DENSE_GRAM = 2048


@dataclass(frozen=True, eq=False)
class Eigenpairs:
    """Values (k,), descending, and vectors (n, k) as columns."""

    values: Tensor
    vectors: Tensor
    residuals: Tensor | None = None
    """Residual norms (k,) relative to the largest value, where the method computes them."""
    products: int = 1
    """The number of (block) products that were needed."""


@torch.no_grad()
def top_eigenpairs(
    matrix: Tensor | BlockProduct, k: int, like: Tensor | None = None, method: Method | None = None
) -> Eigenpairs:
    """The k largest eigenvalues of a symmetric A (n, n) and their eigenvectors.

    Args:
        matrix: A itself, or V ↦ A V.
        k: How many, from 1 to n.
        like: A tensor (n, …) that gives n, the dtype and the device; needed for a product.
        method: `Arpack` where one product is cheap, `BlockLanczos` where it is expensive however many vectors it takes,
            `Lobpcg` from a good start. By default a matrix in memory is decomposed up to DENSE_SPECTRUM rows and given to
            ARPACK beyond, and a product goes to `BlockLanczos`.
    """
    own = matrix if isinstance(matrix, Tensor) else like
    assert own is not None
    n = len(own)
    if not is_whole(k) or not 1 <= k <= n:
        raise BadInput(f"A matrix of {n} rows has {n} eigenvalues; k = {shown(k)} were asked for.")
    if not isinstance(matrix, Tensor):
        return (method or BlockLanczos()).find(matrix, own, k)
    if method is None and n <= DENSE_SPECTRUM:
        return _decomposed(matrix, k)
    return (method or Arpack()).find(lambda v: matrix @ v, matrix, k)


def _decomposed(matrix: Tensor, k: int) -> Eigenpairs:
    n = len(matrix)
    _check_finite(matrix)
    values, vectors = torch.linalg.eigh(matrix)
    return Eigenpairs(values[n - k :].flip(0), vectors[:, n - k :].flip(1), matrix.new_zeros(k))


def _by_identity(product: BlockProduct, like: Tensor, k: int) -> Eigenpairs:
    """All of A by one product with the identity, where A is small."""
    matrix = product(torch.eye(len(like), dtype=like.dtype, device=like.device))
    return _decomposed(0.5 * (matrix + matrix.T), k)


def _check_finite(image: Tensor) -> None:
    if not bool(torch.isfinite(image).all()):
        raise BadInput("The matrix holds NaN or infinity, so it has no spectrum.")


@dataclass(frozen=True)
class Arpack:
    """Lanczos with one vector per product, to round-off; `which` is "LA" (largest), "SA" (smallest), "LM" (in modulus)
    or "BE" (half from each end)."""

    which: str = "LA"

    def find(self, product: BlockProduct, like: Tensor, k: int) -> Eigenpairs:
        n, taken = len(like), 0

        def matvec(v: np.ndarray) -> np.ndarray:
            nonlocal taken
            taken += 1
            return product(torch.as_tensor(v.ravel(), dtype=like.dtype, device=like.device)).cpu().numpy()

        if k >= n - 1 and self.which == "LA":  # ARPACK finds at most n − 1
            return _by_identity(product, like, k)
        start = np.random.default_rng(0).standard_normal(n)  # ARPACK's own start is random: the same call, the same digits
        image = matvec(start)
        _check_finite(torch.from_numpy(image))
        if not image.any():  # the zero matrix, at which ARPACK stops
            unit = torch.eye(n, k, dtype=like.dtype, device=like.device)
            return Eigenpairs(like.new_zeros(k), unit, like.new_zeros(k))
        operator = LinearOperator((n, n), matvec=matvec, dtype=np.float64)
        found, columns = eigsh(operator, k=k, which=self.which, v0=start)
        order = np.argsort(found)[::-1]
        values, vectors = (torch.as_tensor(part.copy()).to(like) for part in (found[order], columns[:, order]))
        return Eigenpairs(values, vectors, products=taken)


@dataclass(frozen=True, eq=False)
class Lobpcg:
    """Locally optimal block conjugate gradients from `start` (n, k): a few products if it is near, on the CPU in float64."""

    start: Tensor
    tolerance: float
    """of ‖A u − θ u‖, relative to ‖A u‖ of the first column of the start"""

    def find(self, product: BlockProduct, like: Tensor, k: int) -> Eigenpairs:
        n, taken = len(like), 0
        assert self.start.shape == (n, k)

        def matmat(v: np.ndarray) -> np.ndarray:
            nonlocal taken
            taken += 1
            return product(torch.from_numpy(np.ascontiguousarray(v))).numpy()

        guess = torch.linalg.qr(self.start).Q.numpy()
        tolerance = self.tolerance * float(np.linalg.norm(matmat(guess[:, :1])))
        operator = LinearOperator((n, n), matvec=matmat, matmat=matmat, dtype=np.float64)
        values, vectors = lobpcg(operator, guess, tol=tolerance, maxiter=_LOBPCG_STEPS, largest=True)
        order = np.argsort(values)[::-1]
        found = torch.from_numpy(values[order].copy()), torch.from_numpy(vectors[:, order].copy())
        return Eigenpairs(*found, products=taken)


@dataclass(frozen=True)
class BlockLanczos:
    """Block Lanczos with full reorthogonalisation and thick restarts.

    It keeps an orthonormal V with A V = V T + Q B eₗᵀ, whose Ritz pairs T y = θ y have residuals ‖B yₗ‖; a full V is replaced
    by its leading Ritz vectors. A block goes through one product; a small A is formed by a product with the identity.

    Ref: Golub and Underwood (1977); Wu and Simon, SIAM J. Matrix Anal. Appl. 22 (2000), for the restart.

    Args:
        block: Vectors per product; 2k + 8 by default.
        tolerance: Of the residuals, relative to the largest |θ|; EIGEN_RTOL by default.
        generator: Of the first block; seeded with 0 by default.
    """

    block: int | None = None
    tolerance: float | None = None
    generator: torch.Generator | None = None

    def find(self, product: BlockProduct, like: Tensor, k: int) -> Eigenpairs:
        n = len(like)
        tolerance = EIGEN_RTOL[like.dtype] if self.tolerance is None else positive(self.tolerance, "tolerance")
        width = 2 * k + _GUARD if self.block is None else self.block
        if width < k:
            raise BadInput(f"A block of {width} vectors cannot find k = {k} copies of an eigenvalue; take block ≥ k.")
        if n <= 6 * width:
            return _by_identity(product, like, k)
        most = min(_MOST_BLOCKS * width, n)
        state = _Krylov(product, orthonormal(_normal(n, width, like, self.generator)))
        while state.products < _MOST_PRODUCTS:
            state.expand()
            values, along = state.ritz()
            scale = max(float(values.abs().max()), torch.finfo(like.dtype).tiny)
            residuals = torch.linalg.vector_norm(state.coupling @ along[-state.last :, :k], dim=0) / scale
            if state.invariant or (len(values) >= k and float(residuals.max()) <= tolerance):
                return Eigenpairs(values[:k], state.basis @ along[:, :k], residuals, state.products)
            if state.basis.shape[1] + state.pending.shape[1] > most:
                state.restart(values, along, k + width)
        raise NotConverged(
            f"Of the {k} largest eigenpairs {int((residuals > tolerance).sum())} have a relative residual above "
            f"{tolerance:.1e} after {state.products} products of {width} vectors (the largest is "
            f"{float(residuals.max()):.1e}). Ask for a larger block, a larger tolerance"
            f"{', or float64' if like.dtype == torch.float32 else ''}.",
            residual=float(residuals.max()),
            steps=state.products,
        )


Method = Arpack | Lobpcg | BlockLanczos
"""A way to find the k leading eigenpairs of A from its products."""


class _Krylov:
    """V, T and the remainder of the last product: A V = V T + Q B eₗᵀ, eₗ the last block of columns."""

    def __init__(self, product: BlockProduct, start: Tensor) -> None:
        self.product, self.pending = product, start
        self.basis = start[:, :0]
        self.matrix = start.new_zeros(0, 0)
        self.coupling = start.new_zeros(0, 0)
        self.last = self.products = 0
        self.invariant = False

    def expand(self) -> None:
        image = self.product(self.pending)
        _check_finite(image)
        self.products += 1
        self.last = self.pending.shape[1]
        self.basis = torch.cat([self.basis, self.pending], dim=1)
        size = float(torch.linalg.vector_norm(image, dim=0).max())
        along = self.basis.T @ image
        rest = image - self.basis @ along
        rest -= self.basis @ (self.basis.T @ rest)  # once leaves rounding relative to the remainder
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


def _normal(n: int, width: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
    own = torch.Generator().manual_seed(0) if generator is None else generator
    return torch.randn(n, width, dtype=torch.float64, generator=own, device=own.device).to(like)


def spectral_radii(apply: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """ρ(M_i) of each row's matrix M_i, (n,), given v ↦ (M_i v_i)_i on (n, d).

    Arnoldi: the vectors M^k v are kept orthonormal, and the largest eigenvalue of M on their span is taken. The plain growth of
    ‖M^k v‖ would need hundreds of products where the spectrum is a disc, as that of a random network is; this takes some 60.
    """
    n, d = start.shape
    most = min(_ARNOLDI_MOST, d)
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
        if (k + 1) % _ARNOLDI_EVERY == 0 or k + 1 == most:
            previous, radius = radius, torch.linalg.eigvals(matrix[:, : k + 1, : k + 1]).abs().amax(1)
            if bool(((radius - previous).abs() <= RADIUS_RTOL * radius).all()):
                break
    return radius


def spectral_norm(matrix: Tensor) -> float:
    """‖A‖, the largest singular value of a dense matrix."""
    rows, columns = matrix.shape
    if not bool(matrix.any()):
        return 0.0
    if not is_symmetric(matrix):
        if min(rows, columns) <= DENSE_SPECTRUM:
            return float(torch.linalg.matrix_norm(matrix, ord=2))
        start = np.random.default_rng(0).standard_normal(min(rows, columns))
        return float(svds(matrix.cpu().numpy(), k=1, v0=start, return_singular_vectors=False)[0])
    if rows <= DENSE_SPECTRUM:
        return float(torch.linalg.eigvalsh(matrix).abs().max())
    return float(top_eigenpairs(matrix, 1, method=Arpack("LM")).values.abs().max())


def extreme_eigenvectors(matrix: Tensor) -> Tensor:
    """Eigenvectors of a symmetric A at the smallest and at the largest eigenvalue, as columns (n, 2)."""
    if len(matrix) <= 3:
        vectors: Tensor = torch.linalg.eigh(matrix).eigenvectors
        return vectors[:, [0, -1]]
    return top_eigenpairs(matrix, 2, method=Arpack("BE")).vectors


def is_symmetric(matrix: Tensor) -> bool:
    """Whether A is square and symmetric, as far as one vector tells."""
    if matrix.shape[0] != matrix.shape[1]:
        return False
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
    return x.new_empty(p, 0) if k == 0 else top_eigenpairs(lambda v: x.T @ (x @ v), k, x[0], Arpack()).vectors
