"""Kernels of networks of finite width, by automatic differentiation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from notsodeep.arguments import count
from notsodeep.arrays import Array, check_memory, images, like, samples
from notsodeep.errors import BadInput
from notsodeep.fixed_points.adjoint import ImplicitAdjoint
from notsodeep.theory.convolution import Convolutional

_BLOCK_BYTES = 1 << 28


@dataclass(frozen=True, eq=False)
class EmpiricalKernels:
    """The two kernels of a network of finite width, (n, n) each."""

    conjugate: Any
    """z_i·z_j of the features"""
    tangent: Any
    """⟨∂f(x_i), ∂f(x_j)⟩ of the gradients"""


def empirical_kernels(module: nn.Module, x: Array, block_bytes: int = _BLOCK_BYTES) -> EmpiricalKernels:
    """The conjugate and tangent kernels of a network of finite width, with its present weights.

        conjugate_ij = z(x_i)·z(x_j)          tangent_ij = mean over outputs k of ⟨∂f_k(x_i)/∂θ, ∂f_k(x_j)/∂θ⟩

    over the trainable weights θ, by exact gradients whatever the module's adjoint. With a readout R of N(0, 1), as the networks
    are drawn, they estimate the infinite-width kernels; without one, tangent is its mean over such readouts: conjugate +
    Σ_k ⟨∂z_k(x_i), ∂z_k(x_j)⟩.

    Args:
        module: A `DEQ` or an `ENN`, or a `ConvDEQ` or a `ConvENN`.
        x: Samples (n, p), or images.
        block_bytes: Memory for gradients, which are held in two blocks of half that size.

    Returns:
        Both kernels, of the type of x.

    Raises:
        BadInput: Another kind of module, frozen weights, or kernels that do not fit in memory.
    """
    features = getattr(module, "features", None)
    if not isinstance(module, nn.Module) or not callable(features):
        raise BadInput(f"empirical_kernels takes a DEQ or an ENN, got {type(module).__name__}.")
    weights = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not weights:
        raise BadInput("Every weight of this network is frozen, so it has no tangent kernel; unfreeze some.")
    first, block_bytes = next(iter(weights.values())), count(block_bytes, "block_bytes")
    rows = (images(x) if isinstance(getattr(module, "images", None), Convolutional) else samples(x)).to(first)
    what = f"A pair of {len(rows)} × {len(rows)} kernels"
    check_memory((2 * len(rows), len(rows)), rows.dtype, rows.device, "fewer samples", what)
    with torch.no_grad():
        z: Tensor = features(rows)
        conjugate = z @ z.T
        outputs = int(module(rows[:1]).shape[-1])
    with _exact_gradients(module):
        tangent = _tangent(module, weights, rows, outputs, block_bytes)
    readout = getattr(module, "out_features", None) is not None
    tangent = tangent / outputs if readout else conjugate + tangent
    hand_back = like(x)
    return EmpiricalKernels(hand_back(conjugate), hand_back(tangent))


@contextmanager
def _exact_gradients(module: nn.Module) -> Iterator[None]:
    """Give `module` the implicit adjoint, if it has a choice, and restore its own afterwards."""
    chosen = getattr(module, "adjoint", None)
    if chosen is None or isinstance(chosen, ImplicitAdjoint):
        yield
        return
    module.adjoint = ImplicitAdjoint()  # type: ignore[assignment]
    try:
        yield
    finally:
        module.adjoint = chosen


def _tangent(module: nn.Module, weights: dict[str, nn.Parameter], rows: Tensor, outputs: int, block_bytes: int) -> Tensor:
    """Σ_k ⟨∂f_k(x_i), ∂f_k(x_j)⟩, block by block."""
    count = sum(p.numel() for p in weights.values())
    size = max(1, block_bytes // (2 * count * rows.element_size()))
    gradients = _gradients(module, weights)
    tangent = rows.new_zeros(len(rows), len(rows))
    starts = range(0, len(rows), size)
    for k in range(outputs):
        for a in starts:
            left = gradients(rows[a : a + size], k)
            for b in range(a, len(rows), size):
                right = left if b == a else gradients(rows[b : b + size], k)
                block = left @ right.T
                tangent[a : a + size, b : b + size] += block
                if b != a:
                    tangent[b : b + size, a : a + size] += block.T
    return tangent


def _gradients(module: nn.Module, weights: dict[str, nn.Parameter]) -> Callable[[Tensor, int], Tensor]:
    """(rows, k) ↦ (n, P): each sample's gradient of output k."""
    values = {name: p.detach() for name, p in weights.items()}

    def one(sample: Tensor, k: int) -> Tensor:
        alone = sample[None] if sample.ndim > 1 else sample  # an image needs the axis of samples
        out, pull = vjp(lambda w: functional_call(module, w, (alone,))[..., k].sum(), values)[:2]
        (gradient,) = pull(torch.ones_like(out))
        return torch.cat([gradient[name].flatten() for name in values])

    return lambda rows, k: vmap(lambda sample: one(sample, k))(rows).detach()
