"""Exact infinite-width kernels of a DEQ or an explicit network, for any data. Ref: docs/theory.md, sections 2 and 5."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from notsodeep.arguments import choice
from notsodeep.arrays import Array, like, refuse_if_too_large, unwritten
from notsodeep.errors import BadInput
from notsodeep.kernels.outputs import refuse_unfit_outputs
from notsodeep.kernels.prepared import Prepared, prepare
from notsodeep.theory.architecture import Network

READOUTS = ("features", "preactivation")


@dataclass(frozen=True)
class ExactKernels:
    """Both kernels of one pass over the pairs."""

    conjugate: Any
    tangent: Any


def conjugate_kernel(
    net: Network, x: Array, x2: Array | None = None, tau0: float | None = None, *, out: Any = None
) -> Any:
    """G_ij = E[z(x_i)·z(x_j)] of the infinitely wide network: (n, n), or (n, n2) against `x2`.

    A DEQ with `centre=True` is centred at τ* of τ0, the root mean square norm of `x` unless given. With `out`, a tensor, a
    numpy array or memory map, or a Zarr array of that shape, the tiles are written there, and it is returned.
    """
    return _compute(net, x, x2, tau0, ("conjugate",), (out,))[0]


def tangent_kernel(
    net: Network,
    x: Array,
    x2: Array | None = None,
    tau0: float | None = None,
    readout: str = "features",
    *,
    out: Any = None,
) -> Any:
    """Θ_ij = ⟨∂f(x_i), ∂f(x_j)⟩ over all weights of the infinitely wide f = aᵀz: (n, n), or (n, n2) against `x2`.

    ``readout="preactivation"`` gives the kernel that [ling2024] calls Implicit-NTK, K = Λ/(1 − σ_a² Q). `out` is as in
    `conjugate_kernel`.
    """
    choice(readout, "readout", READOUTS)
    return _compute(net, x, x2, tau0, ("tangent" if readout == "features" else "preactivation",), (out,))[0]


def exact_kernels(
    net: Network, x: Array, x2: Array | None = None, tau0: float | None = None, *, out: Any = None
) -> ExactKernels:
    """`conjugate_kernel` and `tangent_kernel` for the price of one; `out` is a pair of what each is written to."""
    if out is not None and not isinstance(out, tuple | list):
        raise BadInput(f"out is a {type(out).__name__}; expected two arrays, for the conjugate and the tangent kernel.")
    if out is not None and len(out) != 2:
        raise BadInput(f"out holds {len(out)} arrays; expected two, for the conjugate and the tangent kernel.")
    return ExactKernels(
        *_compute(net, x, x2, tau0, ("conjugate", "tangent"), (None, None) if out is None else tuple(out))
    )


@torch.no_grad()
def _compute(
    net: Network, x: Array, x2: Array | None, tau0: float | None, wanted: tuple[str, ...], out: tuple[Any, ...]
) -> list[Any]:
    prepared = prepare(net, x, x2, tau0, tangent=wanted != ("conjugate",))
    refuse_unfit_outputs(out, prepared.shape, (x, x2))
    own = sum(given is None for given in out)
    outputs = tuple(_allocated(prepared, own) if given is None else given for given in out)
    prepared.fill(outputs, wanted)
    hand_back = like(x)
    return [hand_back(output) if given is None else given for output, given in zip(outputs, out, strict=True)]


def _allocated(prepared: Prepared, results: int) -> Tensor:
    rows = prepared.rows
    n, n2 = prepared.shape
    instead = "kernel_tiles or out=… (a memory map), or sharp_kernel or equivalent_kernel, which keep O(n p)"
    what = f"A pair of {n} × {n2} kernels" if results == 2 else None
    refuse_if_too_large(n * results, n2, rows.dtype, rows.device, instead, what)
    return unwritten(n, n2, rows)
