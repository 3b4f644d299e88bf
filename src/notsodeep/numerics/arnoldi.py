"""The largest eigenvalue, in modulus, of many matrices at once, by products with vectors alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from notsodeep.numerics.tolerances import RADIUS_RTOL

_EVERY, _MOST = 20, 200


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
