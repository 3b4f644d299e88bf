"""The Jacobian of any f at a state, or of a DEQ at its equilibria: spectral radius, and a penalty that keeps f contractive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from notsodeep.arguments import count, function, generator as checked_generator
from notsodeep.errors import BadInput, warn
from notsodeep.fixed_points.graph import Graph
from notsodeep.fixed_points.layout import HALF, Map, StateLayout
from notsodeep.fixed_points.progress import rows_depend
from notsodeep.linalg.eigen import spectral_radii

_BLOCK_ELEMENTS = 1 << 25
_VECTORS = 100  # that are kept for every sample, about


@runtime_checkable
class Equilibrates(Protocol):
    """A module that solves for its own states, such as a `DEQ`."""

    width: int

    def equilibria(self, x: Any, rows: int | None = None) -> Iterator[tuple[Map, Tensor]]:
        """The module's map and its fixed points (n, width), for at most `rows` samples of x at a time."""
        ...


def spectral_radius(
    f: Callable[[Any], Any], z: Any, *, samples: int | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """(n,): the largest |eigenvalue| of J = ∂f/∂z at each sample's z, to well within 1 %.

    Below 1 at a solution, steps z ← f(z) converge there, each by that factor in the end.

    Args:
        f: The map, or a `DEQ`.
        z: A state: a tensor, or a nested tuple, list or dict of them. Of a DEQ, the samples (n, p) that it solves for.
        samples: How many leading axes are independent, as for `fixed_point`; none where rows depend on each other.
        generator: Draws the vector that the products begin with.

    Returns:
        One spectral radius per sample.

    Raises:
        BadInput: f or z cannot be used, or autograd is off (inference mode).
    """
    generator = checked_generator(generator)
    if isinstance(f, Equilibrates):
        with torch.no_grad():
            at = f.equilibria(z, max(1, _BLOCK_ELEMENTS // (_VECTORS * f.width)))
            return torch.cat([spectral_radius(step, state, samples=1, generator=generator) for step, state in at])
    layout = _layout(f, z, samples)
    graph = Graph.of(layout.wrap(f), layout.pack(z).detach())
    guessed = samples is None and layout.samples > 1
    if guessed and rows_depend(layout.wrap(f), graph.z.detach(), graph.image.detach()):
        warn(f"The {layout.samples} rows of the state depend on each other: one sample, one spectral radius. Pass samples=0.")
        layout = StateLayout.of(z, 0)

    start = _normal(graph.z, torch.Generator().manual_seed(0) if generator is None else generator)
    return spectral_radii(graph.pull, start.reshape(layout.samples, -1))  # Jᵀ has the eigenvalues of J


def jacobian_penalty(f: Callable[[Any], Any], z: Any, *, probes: int = 1, generator: torch.Generator | None = None) -> Tensor:
    """‖J‖_F²/d over the samples, d numbers each, by Hutchinson's estimate ‖Jᵀε‖², ε of N(0, I); differentiable, for a loss.

    Args:
        f: The map, or a `DEQ`.
        z: A state, usually a solution; a gradient passes through it where it has one. Of a DEQ, the samples (n, p).
        probes: How many ε are averaged.
        generator: Draws ε.

    Returns:
        The estimate, a scalar.

    Raises:
        BadInput: f or z cannot be used, or autograd is off (inference mode).

    Ref: Bai, Koltun & Kolter (2021).
    """
    probes, generator = count(probes, "probes"), checked_generator(generator)
    if isinstance(f, Equilibrates):
        f, z = next(f.equilibria(z))
    layout = _layout(f, z, 0)
    state = layout.pack(z)
    with torch.enable_grad():
        state = state if state.requires_grad else state.detach().requires_grad_()
        image = layout.wrap(f)(state)
        total = state.new_zeros(())
        for _ in range(probes if image.requires_grad else 0):  # otherwise f is constant
            probe = _normal(state, generator)
            (pulled,) = torch.autograd.grad(image, state, probe, create_graph=True, materialize_grads=True)
            total = total + pulled.square().sum()
    return total / (probes * state.numel())


def _layout(f: object, z: Any, samples: int | None) -> StateLayout:
    function(f, "f", "a function of the state", 1)
    layout = StateLayout.of(z, samples)
    if torch.is_inference_mode_enabled():
        raise BadInput("Products with a Jacobian need a graph, and inference_mode makes none: use torch.no_grad().")
    if layout.dtype in HALF:
        raise BadInput(f"Products with a Jacobian in {layout.dtype} are too coarse: pass a float32 state.")
    return layout


def _normal(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Numbers of N(0, 1) in the shape of `like`."""
    where = like.device if generator is None else generator.device
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=where).to(like.device)
