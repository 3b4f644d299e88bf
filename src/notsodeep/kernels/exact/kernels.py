"""Exact infinite-width kernels of a DEQ or an explicit network, for any data. Ref: docs/theory.md, sections 2 and 5."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from notsodeep.arguments import choice
from notsodeep.arrays import Array, check_dense, check_memory, like, unwritten
from notsodeep.errors import BadInput
from notsodeep.kernels.exact.solver import PreparedKernel, prepare
from notsodeep.kernels.exact.tiles import TileSize, check_square, tile_pairs, tile_size
from notsodeep.kernels.names import Kernel, as_kernel, as_kernels
from notsodeep.theory.architecture import Network

READOUTS = {"features": Kernel.TANGENT, "preactivation": Kernel.PREACTIVATION}
_KINDS = "a tensor, a numpy array or memory map, or a Zarr array"
_FLOATS = ("float32", "float64")
_WORK = 10**6  # a bound on the search for a common byte of two strided arrays; two matrices take a few steps


@dataclass(frozen=True)
class ExactKernels:
    """Both kernels of one pass over the pairs, (n, n) or (n, n2) each."""

    conjugate: Any
    """G_ij = E[z(x_i)·z(x_j)]"""
    tangent: Any
    """Θ_ij = ⟨∂f(x_i), ∂f(x_j)⟩"""


def conjugate_kernel(net: Network, x: Array, x2: Array | None = None, tau0: float | None = None, *, out: Any = None) -> Any:
    """The conjugate kernel G_ij = E[z(x_i)·z(x_j)] of the infinitely wide network.

    Args:
        net: An `Implicit` or an `Explicit` network.
        x: Samples (n, p).
        x2: Other samples (n2, p); x itself by default.
        tau0: The norm at which a DEQ with `centre=True` is centred; √(mean ‖x_i‖²) of x by default.
        out: Where to write the tiles: a tensor, a numpy array or memory map, or a Zarr array of the kernel's shape.

    Returns:
        The kernel, (n, n) or (n, n2), of the type of x; or `out`, where given.

    Raises:
        BadInput: Samples or an output that cannot be used, or a kernel that does not fit in memory.
        NotContractive: The DEQ has no equilibrium on these samples.
    """
    return _compute(net, x, x2, tau0, {Kernel.CONJUGATE: out})[0]


def tangent_kernel(
    net: Network, x: Array, x2: Array | None = None, tau0: float | None = None, readout: str = "features", *, out: Any = None
) -> Any:
    """The tangent kernel Θ_ij = ⟨∂f(x_i), ∂f(x_j)⟩ over all weights of the infinitely wide f = aᵀz.

    Args:
        net, x, x2, tau0, out: As for `conjugate_kernel`.
        readout: "features" for Θ, or "preactivation" for K = Λ/(1 − σ_a² Q), which [ling2024] calls Implicit-NTK.

    Returns:
        The kernel, (n, n) or (n, n2), of the type of x; or `out`, where given.

    Raises:
        BadInput: Samples or an output that cannot be used, or an activation with E[φ'²] = ∞.
        NotContractive: The DEQ has no equilibrium on these samples, or σ_a² E[φ'²] ≥ 1.
    """
    choice(readout, "readout", READOUTS)
    return _compute(net, x, x2, tau0, {READOUTS[readout]: out})[0]


def exact_kernels(
    net: Network, x: Array, x2: Array | None = None, tau0: float | None = None, *, out: Any = None
) -> ExactKernels:
    """The conjugate and the tangent kernel for the price of one.

    Args:
        net, x, x2, tau0: As for `conjugate_kernel`.
        out: Two outputs as in `conjugate_kernel`, for the conjugate and the tangent kernel.

    Returns:
        The two kernels, as `.conjugate` and `.tangent`.

    Raises:
        BadInput: As for `conjugate_kernel` and `tangent_kernel`.
        NotContractive: As for `tangent_kernel`.
    """
    if out is not None and not isinstance(out, tuple | list):
        raise BadInput(f"out is a {type(out).__name__}; expected two arrays, for the conjugate and the tangent kernel.")
    if out is not None and len(out) != 2:
        raise BadInput(f"out holds {len(out)} arrays; expected two, for the conjugate and the tangent kernel.")
    first, second = (None, None) if out is None else out
    return ExactKernels(*_compute(net, x, x2, tau0, {Kernel.CONJUGATE: first, Kernel.TANGENT: second}))


def exact_kernel(
    net: Network, x: Array, x2: Array | None = None, kernel: Kernel | str = Kernel.CONJUGATE, tau0: float | None = None
) -> Any:
    """The exact kernel of any name, as `conjugate_kernel` and `tangent_kernel` compute it."""
    return _compute(net, x, x2, tau0, {as_kernel(kernel): None})[0]


@torch.no_grad()
def _compute(net: Network, x: Array, x2: Array | None, tau0: float | None, out: dict[Kernel, Any]) -> list[Any]:
    """The kernels that are the keys of `out`, written to its values, or to new tensors where these are None."""
    prepared = prepare(net, x, x2, tau0, tangent=[*out] != [Kernel.CONJUGATE])
    given = tuple(out.values())
    check_outputs(given, prepared.shape, (x, x2))
    own = sum(each is None for each in given)
    outputs = tuple(_allocated(prepared, own) if each is None else each for each in given)
    prepared.fill(outputs, tuple(out))
    hand_back = like(x)
    return [hand_back(output) if each is None else each for output, each in zip(outputs, given, strict=True)]


def _allocated(prepared: PreparedKernel, results: int) -> Tensor:
    n, n2 = prepared.shape
    instead = "kernel_tiles or out=… (a memory map), or sharp_kernel or equivalent_kernel, which keep O(n p)"
    what = f"A pair of {n} × {n2} kernels" if results == 2 else None
    check_memory((n * results, n2), prepared.rows.dtype, prepared.rows.device, instead, what)
    return unwritten(n, n2, prepared.rows)


@dataclass(frozen=True, eq=False)
class KernelTile:
    """The entries of the kernels in `rows` × `columns`.

    Args:
        rows: The rows of the kernel that it covers.
        columns: The columns.
        conjugate, tangent, preactivation: The entries of each kernel; None for one that was not asked for.
    """

    rows: slice
    columns: slice
    conjugate: Any = None
    tangent: Any = None
    preactivation: Any = None

    @property
    def mirrored(self) -> KernelTile:
        """The tile across the diagonal of a symmetric kernel."""
        across = {name: None if (own := getattr(self, name)) is None else own.T for name in Kernel}
        return KernelTile(self.columns, self.rows, **across)


@torch.no_grad()
def kernel_tiles(
    net: Network,
    x: Array,
    x2: Array | None = None,
    tile: TileSize = None,
    *,
    kernel: Kernel | str | Sequence[Kernel | str] = (Kernel.CONJUGATE, Kernel.TANGENT),
    tau0: float | None = None,
) -> Iterator[KernelTile]:
    """The exact kernels of x (against x2), tile by tile, each entry once.

    Of a symmetric kernel (no x2) one triangle is computed, and each tile off the diagonal is followed by its mirror image. For
    whole rows take `tile=(rows, len(x2))`, with x2 = x where the kernel is square.

    Args:
        net, x, x2, tau0: As for `conjugate_kernel`.
        tile: The side of a tile, or its (rows, columns); a size that suits the device by default.
        kernel: One or several of "conjugate", "tangent" and "preactivation".

    Yields:
        `KernelTile`s that together cover the kernel.

    Raises:
        BadInput: An unknown kernel, a tile that does not suit, or samples that cannot be used.
        NotContractive: The DEQ has no equilibrium on these samples, or no tangent kernel.
    """
    kernels = as_kernels(kernel)
    prepared = prepare(net, x, x2, tau0, tangent=kernels != (Kernel.CONJUGATE,))
    n, n2 = prepared.shape
    hand_back = like(x)
    sides = tile_size(tile, prepared.rows.device)
    if prepared.symmetric:
        check_square(sides, "; give one side, or x2 = x for any rectangle")
    for rows, columns in tile_pairs(n, None if prepared.symmetric else n2, sides):
        values = prepared.tile(rows, columns, kernels)
        found = KernelTile(rows, columns, **{k: hand_back(v) for k, v in zip(kernels, values, strict=True)})
        yield found
        if prepared.symmetric and rows != columns:
            yield found.mirrored


def check_outputs(given: tuple[Any, ...], shape: tuple[int, int], inputs: tuple[Array | None, ...]) -> None:
    """Raise BadInput unless each output is a writable matrix of this shape that shares no memory with the others or with the
    samples. None stands for one that is still to be allocated."""
    outputs = [out for out in given if out is not None]
    for out in outputs:
        _check_output(out, shape)
    for one, other in combinations(outputs, 2):
        if _shared(one, other):
            raise BadInput("The arrays of out share memory, so one kernel would overwrite the other; give each its own.")
    if any(_shared(out, x) for out in outputs for x in inputs):
        raise BadInput("out shares memory with the samples, which would be overwritten while they are read; copy them.")


def _check_output(out: Any, shape: tuple[int, int]) -> None:
    if isinstance(out, Tensor):
        check_dense(out, "out")
    if not all(hasattr(out, name) for name in ("shape", "dtype", "__setitem__")):
        raise BadInput(f"out is a {type(out).__name__}; expected {_KINDS}.")
    if tuple(out.shape) != shape:
        raise BadInput(f"out has shape {tuple(out.shape)}; the kernel is {shape[0]} × {shape[1]}.")
    dtype = getattr(out.dtype, "name", str(out.dtype).removeprefix("torch."))
    if dtype not in _FLOATS:
        raise BadInput(f"out has dtype {dtype}, which does not hold a kernel's entries; expected float32 or float64.")
    if not out.flags.writeable if isinstance(out, np.ndarray) else getattr(out, "read_only", False):
        raise BadInput("out is read-only; open it for writing (mode 'r+' or 'w+' of a memory map, 'r+' of a Zarr array).")
    if _repeats(out):
        raise BadInput("Entries of out share memory, as those of an expanded tensor do; give an array of its own: out.clone().")


def _repeats(out: Any) -> bool:
    if not isinstance(out, Tensor | np.ndarray):
        return False
    strides = out.stride() if isinstance(out, Tensor) else out.strides
    return any(step == 0 and size > 1 for step, size in zip(strides, out.shape, strict=True))


def _shared(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor | np.ndarray) and isinstance(other, Tensor | np.ndarray):
        return np.may_share_memory(_view(one), _view(other), max_work=_WORK)  # type: ignore[arg-type]  # the stubs know two of its values
    paths = [str(getattr(array, "store_path", "")) for array in (one, other)]  # of Zarr arrays
    return one is other or (paths[0] != "" and paths[0] == paths[1])


class _Addresses:
    """The addresses of a tensor's entries, on any device, for NumPy to compare; nothing is read there."""

    def __init__(self, tensor: Tensor) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{size}",
            "shape": tuple(tensor.shape),
            "strides": tuple(step * size for step in tensor.stride()),
            "data": (tensor.data_ptr(), False),
        }


def _view(array: Array) -> npt.NDArray[Any]:
    if isinstance(array, np.ndarray):
        return array
    if array.layout != torch.strided or array.numel() == 0:
        return np.empty(0)
    return np.asarray(_Addresses(array))
