"""The clients as modules, the way people hold such layers: samples in, a fixed point inside, a small readout, answers out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import notsodeep as nsd
from notsodeep.data import load
from notsodeep.fixed_points import Activated, CircularConvolution, Dense

from . import deblurring, graph_network, monotone_convolution, monotone_dense
from .client import Client, Problem, draw
from .mdeq_layer import MDEQ_LAYER, MultiscaleLayer
from .resnet_layer import RESNET_LAYER, ResNetLayer
from .transformer_layer import TRANSFORMER_LAYER, TransformerLayer

Solve = Callable[[Problem], nsd.fixed_points.Solution]
"""How a module finds its fixed point; by default as its client does."""


def _drawn(module: nn.Module, generator: torch.Generator, gain: float = 1.0) -> nn.Module:
    """The module with weights from the generator: its linear maps scale what they are given by `gain`, biases are 0."""
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.Linear | nn.Conv2d):
                part.weight.copy_(draw(tuple(part.weight.shape), gain / math.sqrt(part.weight[0].numel()), generator))
                if part.bias is not None:
                    part.bias.zero_()
    return module


def _pooled(z: Tensor, side: int) -> Tensor:
    """(n, channels, h, w) ↦ (n, channels·side²), the means of side × side parts."""
    return functional.avg_pool2d(z, z.shape[-1] // side).flatten(1)


class Residual(nn.Module):
    """Images (n, c, h, w) ↦ scores of classes, by the tutorial's residual layer."""

    def __init__(
        self,
        stem: nn.Module | None = None,
        channels: int = 8,
        inner: int = 12,
        groups: int = 4,
        parts: int = 2,
        classes: int = 10,
        seed: int = 0,
        solve: Solve = RESNET_LAYER.solve,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.stem = _drawn(nn.Conv2d(1, channels, 3, padding=1) if stem is None else stem, generator)
        self.layer = ResNetLayer(channels, inner, groups, generator)
        self.readout = _drawn(nn.Linear(channels * parts**2, classes), generator)
        self.parts, self.solve = parts, solve

    def forward(self, x: Tensor) -> Tensor:
        injected = self.stem(x)
        problem = Problem(lambda z: self.layer(z, injected), torch.zeros_like(injected), ())
        return self.readout(_pooled(self.solve(problem).value, self.parts))


class Multiscale(nn.Module):
    """Images (n, c, h, w) ↦ scores of classes, by a state of several resolutions."""

    def __init__(
        self,
        stem: nn.Module | None = None,
        channels: tuple[int, ...] = (8, 16),
        groups: int = 2,
        gain: float = 0.2,
        classes: int = 10,
        seed: int = 0,
        solve: Solve = MDEQ_LAYER.solve,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        # The input must say much more than the state, or some images have no equilibrium before training.
        self.stem = _drawn(nn.Conv2d(1, channels[0], 3, padding=1) if stem is None else stem, generator, gain=9.0)
        self.layer = MultiscaleLayer(channels, groups, gain, generator)
        self.readout = _drawn(nn.Linear(4 * sum(channels), classes), generator)
        self.channels, self.solve = channels, solve

    def forward(self, x: Tensor) -> Tensor:
        injected = self.stem(x)
        n, _, height, width = injected.shape
        start = tuple(injected.new_zeros(n, c, height >> k, width >> k) for k, c in enumerate(self.channels))
        state = self.solve(Problem(lambda state: self.layer(state, injected), start, ())).value
        return self.readout(torch.cat([_pooled(z, 2) for z in state], dim=1))


class MonotoneDense(nn.Module):
    """Features (n, p) ↦ scores of classes, by z = relu(W z + U x + b) with a monotone W."""

    def __init__(
        self, client: Client, build: Callable[..., Problem], m: float, inputs: int, width: int, classes: int = 10, seed: int = 0
    ) -> None:
        super().__init__()
        problem = build(torch.float32, seed, inputs=inputs, width=width)
        self.a, self.b, self.into, self.bias = (nn.Parameter(each.detach()) for each in problem.parameters)
        self.readout = _drawn(nn.Linear(width, classes), torch.Generator().manual_seed(seed))
        self.m, self.solve = m, client.solve

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.a, self.b
        weight = (1.0 - self.m) * torch.eye(len(a), dtype=a.dtype, device=a.device) - a.mT @ a + b - b.mT
        u = functional.linear(x, self.into, self.bias)
        z = self.solve(Problem(Activated(torch.relu, Dense(weight), u), torch.zeros_like(u), ())).value
        return self.readout(z)


class MonotoneConvolution(nn.Module):
    """Images (n, c, h, w) ↦ scores of classes, by z = relu(W ∗ z + U ∗ x) with a monotone circular convolution W."""

    def __init__(
        self,
        client: Client,
        build: Callable[..., Problem],
        m: float,
        inputs: int,
        channels: int,
        classes: int = 10,
        seed: int = 0,
    ) -> None:
        super().__init__()
        problem = build(torch.float32, seed, inputs=inputs, channels=channels)
        self.a, self.b, self.into = (nn.Parameter(each.detach()) for each in problem.parameters)
        self.readout = _drawn(nn.Linear(4 * channels, classes), torch.Generator().manual_seed(seed))
        self.m, self.solve = m, client.solve

    def forward(self, x: Tensor) -> Tensor:
        kernel = monotone_convolution.composite_kernel(self.a, self.b, self.m)
        u = monotone_convolution.convolved(x, self.into)
        z = self.solve(Problem(Activated(torch.relu, CircularConvolution(kernel), u), torch.zeros_like(u), ())).value
        return self.readout(_pooled(z, 2))


class GraphNetwork(nn.Module):
    """The features of a graph's nodes (nodes, p) ↦ scores of classes of each node; the nodes are one problem."""

    def __init__(
        self, nodes: int = 200, features: int = 12, degree: int = 3, inputs: int = 6, classes: int = 4, seed: int = 0
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        links = graph_network.adjacency(nodes, degree, generator)
        largest = float(torch.linalg.eigvalsh(links.double().abs())[-1])
        self.register_buffer("links", links)
        self.weight = nn.Parameter(graph_network.projected(draw((features, features), 1.0, generator), 0.95 / largest))
        self.omega = _drawn(nn.Linear(inputs, features, bias=False), generator)
        self.readout = _drawn(nn.Linear(features, classes), generator)

    def forward(self, x: Tensor) -> Tensor:
        injected = self.omega(x).mT @ self.links
        problem = Problem(lambda z: torch.relu(self.weight @ z @ self.links + injected), torch.zeros_like(injected), ())
        return self.readout(graph_network.GRAPH_NETWORK.solve(problem).value.mT)


class Transformer(nn.Module):
    """Sequences of tokens (n, length, p) ↦ scores of classes, from the mean over the places."""

    def __init__(
        self,
        length: int = 8,
        inputs: int = 8,
        width: int = 16,
        heads: int = 2,
        hidden: int = 32,
        classes: int = 10,
        seed: int = 0,
        solve: Solve = TRANSFORMER_LAYER.solve,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.embedding = _drawn(nn.Linear(inputs, width), generator)
        self.places = nn.Parameter(draw((length, width), 0.3, generator))
        self.layer = TransformerLayer(width, heads, hidden, generator)
        with torch.no_grad():  # as in `Multiscale`
            self.layer.qkv.weight.mul_(0.3)
            self.layer.out.weight.mul_(4.0)
        self.readout = _drawn(nn.Linear(width, classes), generator)
        self.solve = solve

    def forward(self, x: Tensor) -> Tensor:
        injected = self.embedding(x) + self.places
        problem = Problem(lambda z: self.layer(z, injected), torch.zeros_like(injected), ())
        return self.readout(self.solve(problem).value.mean(1))


class Deblurring(nn.Module):
    """Blurred images (n, 1, h, w) ↦ sharper ones, by a learnt proximal gradient step."""

    def __init__(self, features: int = 8, noise: float = 0.2, eta: float = 0.9, seed: int = 0) -> None:
        super().__init__()
        self.denoiser = deblurring.Denoiser(features, noise, torch.Generator().manual_seed(seed))
        self.register_buffer("kernel", deblurring.gaussian_kernel(1.0))
        self.eta = eta

    def forward(self, y: Tensor) -> Tensor:
        def f(z: Tensor) -> Tensor:
            missed = deblurring.blurred(z, self.kernel) - y
            return self.denoiser(z - self.eta * deblurring.blurred(missed, self.kernel))

        return deblurring.DEBLURRING.solve(Problem(f, y, ())).value


@cache
def _digits() -> tuple[Tensor, Tensor]:
    data = load("digits")
    assert data.y is not None
    return 8.0 * data.x.float(), data.y


def _some_digits(count: int, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The first images, 8 × 8 numbers of about unit size, in this shape, and their classes."""
    x, y = _digits()
    return x[:count].reshape(-1, *shape), y[:count]


def _nodes(count: int) -> tuple[Tensor, None]:
    return draw((count, 6), 1.0, torch.Generator().manual_seed(1)), None


def _blurred(count: int) -> tuple[Tensor, Tensor]:
    """Images of a few squares, blurred and noisy, and as they were."""
    generator = torch.Generator().manual_seed(1)
    image = functional.interpolate(torch.rand((count, 1, 3, 3), generator=generator), scale_factor=4, mode="nearest")
    noise = draw(tuple(image.shape), 0.02, generator)
    return deblurring.blurred(image, deblurring.gaussian_kernel(1.0)) + noise, image


@dataclass(frozen=True)
class Case:
    """A client's layer as a module, with samples for it: `samples(count)` gives (x, y), y None where nobody knows it."""

    name: str
    build: Callable[[], nn.Module]
    samples: Callable[[int], tuple[Tensor, Any]]
    coupled: bool = False


_IMAGES, _ROWS, _FEATURES = (partial(_some_digits, shape=shape) for shape in ((1, 8, 8), (8, 8), (64,)))


def _monotone(client: Client, m: float) -> Case:
    """Both kinds of monotone layer; `build` of their clients draws the weights."""
    hard = m < 0.1
    if "dense" in client.name:
        draws = monotone_dense.HARD if hard else monotone_dense.EASY
        return Case(client.name, partial(MonotoneDense, client, draws, m, 64, 48), _FEATURES)
    draws = monotone_convolution.HARD if hard else monotone_convolution.EASY
    return Case(client.name, partial(MonotoneConvolution, client, draws, m, 1, 6), _IMAGES)


CASES = (
    Case(RESNET_LAYER.name, Residual, _IMAGES),
    Case(MDEQ_LAYER.name, Multiscale, _IMAGES),
    _monotone(monotone_dense.MONOTONE_DENSE, 0.5),
    _monotone(monotone_dense.MONOTONE_DENSE_HARD, 0.05),
    _monotone(monotone_convolution.MONOTONE_CONVOLUTION, 0.5),
    _monotone(monotone_convolution.MONOTONE_CONVOLUTION_HARD, 0.05),
    Case(graph_network.GRAPH_NETWORK.name, GraphNetwork, _nodes, coupled=True),
    Case(TRANSFORMER_LAYER.name, Transformer, _ROWS),
    Case(deblurring.DEBLURRING.name, Deblurring, _blurred),
)
