"""The linear map W of z = φ(W z + u), as splittings use it: products, its transpose, and (I + α(I − W))⁻¹."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from notsodeep.arrays import check_dense
from notsodeep.errors import BadInput
from notsodeep.fixed_points.layout import HALF, Map

_POWER_STEPS = 12


class Linear(ABC):
    """A linear map of states whose first axis counts samples."""

    @abstractmethod
    def __call__(self, z: Tensor) -> Tensor:
        """W z of every sample."""

    @abstractmethod
    def transposed(self) -> Linear:
        """Wᵀ."""

    @abstractmethod
    def resolvent(self, alpha: float, like: Tensor) -> Map:
        """v ↦ (I + α(I − W))⁻¹ v for states like `like`; what can be prepared once is prepared here."""

    def require_fit(self, shape: Sequence[int], dtype: torch.dtype) -> None:  # noqa: B027 (nothing is known of a W here)
        """Raise `BadInput` unless W takes states of this shape and dtype."""


@dataclass(frozen=True, eq=False)
class Dense(Linear):
    """W as a matrix for states (n, d). The resolvent costs one inverse, and each use of it a product.

    Args:
        weight: W, (d, d).

    Raises:
        BadInput: W is not a square matrix.
    """

    weight: Tensor

    def __post_init__(self) -> None:
        _require_tensor(self.weight, "Dense", "a square matrix")
        if self.weight.ndim != 2 or self.weight.shape[0] != self.weight.shape[1]:
            raise BadInput(f"Dense takes a square matrix, got shape {tuple(self.weight.shape)}.")

    def __call__(self, z: Tensor) -> Tensor:
        return functional.linear(z, self.weight)

    def transposed(self) -> Dense:
        return Dense(self.weight.mT)

    def resolvent(self, alpha: float, like: Tensor) -> Map:  # noqa: ARG002
        inverse = _inverse(_at_least_float32(self.weight.detach()), alpha).to(self.weight.dtype)
        return lambda v: functional.linear(v, inverse)

    def require_fit(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        d = len(self.weight)
        if not shape or shape[-1] != d:
            raise BadInput(
                f"W is {d} × {d} and the state has shape {tuple(shape)}: its last axis must have length {d}. Give W and the "
                "state the same number of features.",
                size=d,
                shape=tuple(shape),
            )
        _require_dtype(self.weight.dtype, dtype)


@dataclass(frozen=True, eq=False)
class CircularConvolution(Linear):
    """W as a convolution with circular padding, of states (n, c, w) or (n, c, h, w).

    Like torch's convolutions it is a cross-correlation: in Fourier space a c × c matrix per frequency, which is inverted.

    Args:
        kernel: (c, c, k) or (c, c, k, k), with odd k.

    Raises:
        BadInput: The kernel has another shape.
    """

    kernel: Tensor

    def __post_init__(self) -> None:
        _require_tensor(self.kernel, "CircularConvolution", "a kernel (c, c, k) or (c, c, k, k)")
        shape = tuple(self.kernel.shape)
        if len(shape) not in (3, 4) or shape[0] != shape[1] or any(k % 2 == 0 for k in shape[2:]):
            raise BadInput(f"CircularConvolution takes a kernel (c, c, k) or (c, c, k, k) with odd k, got {shape}.")

    def __call__(self, z: Tensor) -> Tensor:
        sizes = self.kernel.shape[2:]
        convolve = functional.conv1d if len(sizes) == 1 else functional.conv2d
        axes = range(z.ndim - len(sizes), z.ndim)
        if any(k // 2 > z.shape[axis] for k, axis in zip(sizes, axes, strict=True)):  # torch wraps around once only
            for axis, k in zip(axes, sizes, strict=True):
                width = z.shape[axis]
                z = z.index_select(axis, torch.arange(-(k // 2), width + k // 2, device=z.device) % width)
            return convolve(z, self.kernel)
        pad = [k // 2 for k in reversed(sizes) for _ in range(2)]
        return convolve(functional.pad(z, pad, mode="circular"), self.kernel)

    def transposed(self) -> CircularConvolution:
        return CircularConvolution(self.kernel.transpose(0, 1).flip(*range(2, self.kernel.ndim)))

    def resolvent(self, alpha: float, like: Tensor) -> Map:
        channels, sizes = self.kernel.shape[0], like.shape[2:]
        axes = tuple(range(2, like.ndim))
        kernel = _at_least_float32(self.kernel.detach())
        embedded = kernel.new_zeros(channels, channels, *sizes)
        # A kernel longer than the image wraps around it: its entries add up.
        offsets = [torch.arange(k, device=embedded.device) - k // 2 for k in self.kernel.shape[2:]]
        where = torch.meshgrid(*(o % size for o, size in zip(offsets, sizes, strict=True)), indexing="ij")
        flat = sum(w * stride for w, stride in zip(where, (*sizes[1:], 1), strict=True)).flatten()
        embedded.flatten(2).index_add_(2, flat, kernel.flatten(2))
        response = torch.fft.rfftn(embedded, dim=axes).conj().flatten(2).movedim(2, 0)  # (frequencies, c, c)
        inverse = _inverse(response, alpha)

        def apply(v: Tensor) -> Tensor:
            spectrum = torch.fft.rfftn(_at_least_float32(v), dim=axes)
            image = torch.einsum("foi,nif->nof", inverse, spectrum.flatten(2)).reshape(spectrum.shape)
            back: Tensor = torch.fft.irfftn(image, s=sizes, dim=axes)
            return back.to(v.dtype)

        return apply

    def require_fit(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        kernel, axes = tuple(self.kernel.shape), self.kernel.ndim - 2
        if len(shape) != axes + 2 or shape[1] != kernel[0]:
            wanted = f"(n, {kernel[0]}, {'width' if axes == 1 else 'height, width'})"
            raise BadInput(
                f"A kernel of shape {kernel} takes states {wanted}, and the state has shape {tuple(shape)}. One sample alone "
                "is z[None]; several axes of samples are one, z.flatten(0, 1).",
                kernel=kernel,
                shape=tuple(shape),
            )
        _require_dtype(self.kernel.dtype, dtype)


@dataclass(frozen=True, eq=False)
class Operator(Linear):
    """W as functions of your own.

    Args:
        apply: z ↦ W z.
        apply_transposed: z ↦ Wᵀ z.
        solve: (v, α) ↦ (I + α(I − W))⁻¹ v. Without it only `ForwardBackward` can use W.
        solve_transposed: The same for Wᵀ.

    Raises:
        BadInput: An argument is not a function.
    """

    apply: Map
    apply_transposed: Map
    solve: Callable[[Tensor, float], Tensor] | None = None
    solve_transposed: Callable[[Tensor, float], Tensor] | None = None

    def __post_init__(self) -> None:
        for name in ("apply", "apply_transposed", "solve", "solve_transposed"):
            given = getattr(self, name)
            if not callable(given) and not (given is None and name.startswith("solve")):
                raise BadInput(f"`{name}` of Operator must be a function, got {given!r:.80}. For a matrix W there is Dense(W).")

    def __call__(self, z: Tensor) -> Tensor:
        return self.apply(z)

    def transposed(self) -> Operator:
        return Operator(self.apply_transposed, self.apply, self.solve_transposed, self.solve)

    def resolvent(self, alpha: float, like: Tensor) -> Map:  # noqa: ARG002
        solve = self.solve
        if solve is None:
            raise BadInput(
                "PeacemanRachford needs (I + α(I − W))⁻¹: give Operator solve and solve_transposed, or use ForwardBackward."
            )
        return lambda v: solve(v, alpha)


def as_linear(weight: Linear | Tensor) -> Linear:
    """A matrix as `Dense`; a `Linear` as it is."""
    if isinstance(weight, Tensor):
        return Dense(weight)
    if not isinstance(weight, Linear):
        raise BadInput(f"W must be a matrix, or Dense, CircularConvolution or Operator; got {type(weight).__name__}.")
    return weight


def _inverse(weight: Tensor, alpha: float) -> Tensor:
    """(I + α(I − W))⁻¹ of one matrix, or of many."""
    identity = torch.eye(weight.shape[-1], dtype=weight.dtype, device=weight.device)
    inverse: Tensor
    inverse, info = torch.linalg.inv_ex((1.0 + alpha) * identity - alpha * weight)
    if bool((info != 0).any()):
        raise BadInput(
            f"I + α(I − W) with alpha={alpha:g} has no inverse: {1.0 + 1.0 / alpha:.4g} = 1 + 1/α is an eigenvalue of W. "
            "PeacemanRachford is for an I − W that is strongly monotone, where the eigenvalues of W have real parts below 1. "
            "Make W smaller, or take another alpha or another solver, such as Anderson().",
            alpha=alpha,
        )
    return inverse


def _at_least_float32(v: Tensor) -> Tensor:
    """v, in float32 where its own format has neither inverses nor Fourier transforms."""
    return v.float() if v.dtype in HALF else v


def _require_tensor(value: object, name: str, what: str) -> None:
    if not isinstance(value, Tensor):
        raise BadInput(f"{name} takes {what} as a tensor, got {type(value).__name__}: write torch.tensor(…).")
    check_dense(value, f"The weight of {name}")


def _require_dtype(own: torch.dtype, dtype: torch.dtype) -> None:
    if own != dtype:
        ours, theirs = (str(each).removeprefix("torch.") for each in (own, dtype))
        raise BadInput(f"W is in {ours} and the state in {theirs}: write z0.to(W.dtype) or W.to(z0.dtype).")


@torch.no_grad()
def bounds(linear: Linear, like: Tensor) -> tuple[float, float]:
    """(‖I − W‖₂, the smallest eigenvalue of its symmetric part), each by a few products with one sample like `like`.

    Both are estimates from inside: the norm may be somewhat larger, the eigenvalue somewhat smaller.
    """
    back = linear.transposed()
    v = torch.randn(like.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(like)
    norm = 0.0
    w = v / v.norm()
    for _ in range(_POWER_STEPS):
        w = w - linear(w)
        w = w - back(w)
        squared = float(w.norm())
        norm, w = math.sqrt(squared), w / squared if squared > 0.0 else v / v.norm()
    w, largest = v / v.norm(), 0.0
    for _ in range(2 * _POWER_STEPS):  # the largest eigenvalue of norm·I minus the symmetric part of I − W
        w = (norm - 1.0) * w + 0.5 * (linear(w) + back(w))
        largest = float(w.norm())
        w = w / max(largest, torch.finfo(w.dtype).tiny)
    return norm, norm - largest
