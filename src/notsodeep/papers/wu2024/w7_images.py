"""W7's images (CIFAR-10, or made-up ones that need no file), their augmentation, and Grad-CAM maps of them with their breadth.

Ref: Selvaraju et al. (2017); [wu2024].
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from notsodeep.data.image_sets import images
from notsodeep.errors import BadInput
from notsodeep.models.training.objective import Batches

SIDE, CLASSES = 32, 10
_SHIFT = 4
_SOURCES = ("cifar10", "made-up")


@dataclass(frozen=True, eq=False)
class Images:
    """Images (n, 3, 32, 32), standardised by the training images' mean and deviation of each channel, their classes (n,), and
    the test images as bytes, (n, 3, 32, 32)."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    test_bytes: Tensor


def load_images(data: str, batches: Sequence[int], train: int, test: int, device: torch.device) -> Images:
    """The first `train` images of these batches of CIFAR-10, whose order is random, and `test` test images; or made-up ones."""
    if data == "cifar10":
        x, y = _first(images("cifar10", "train", batches), train, "training")
        test_x, test_y = _first(images("cifar10", "test"), test, "test")
    elif data == "made-up":
        x, y = made_up(train, torch.Generator().manual_seed(0))
        test_x, test_y = made_up(test, torch.Generator().manual_seed(1))
    else:
        raise BadInput(f"W7 has no data {data!r}; it has {' and '.join(_SOURCES)}.")
    x, test_x = (part.reshape(-1, 3, SIDE, SIDE).to(device) for part in (x, test_x))
    mean, deviation = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), keepdim=True)
    return Images(
        (x - mean) / deviation,
        y.to(device),
        (test_x - mean) / deviation,
        test_y.to(device),
        (255.0 * test_x).round().to(torch.uint8),
    )


def _first(found: tuple[Tensor, Tensor], count: int, what: str) -> tuple[Tensor, Tensor]:
    x, y = found
    if count > len(x):
        raise BadInput(f"W7 is asked for {count} {what} images; there are {len(x)} in the batches named.")
    return x[:count], y[:count]


def made_up(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images (n, 3072) in [0, 1] and their classes: a spot somewhere on grey noise, in one of ten hues, one per class."""
    y = torch.randint(CLASSES, (n,), generator=generator)
    centre = 6.0 + 20.0 * torch.rand(n, 2, 1, 1, generator=generator)
    grid = torch.arange(SIDE, dtype=torch.float32)
    squares = (grid[None, :, None] - centre[:, 0]).square() + (grid[None, None, :] - centre[:, 1]).square()
    phases = 2.0 * torch.pi * (y[:, None] / CLASSES + torch.arange(3) / 3.0)
    spot = 0.4 * phases.cos()[:, :, None, None] * torch.exp(-squares / 60.0)[:, None]
    noise = 0.05 * torch.randn(n, 3, SIDE, SIDE, generator=generator)
    return (0.5 + spot + noise).clamp(0.0, 1.0).flatten(1), y


class Augmented:
    """The batches of a `Batches`, each image mirrored or not and shifted by up to four pixels, differently each time."""

    def __init__(self, batches: Batches, generator: torch.Generator) -> None:
        self.batches, self.generator = batches, generator

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in self.batches:
            yield shifted(x, self.generator), y


def shifted(x: Tensor, generator: torch.Generator) -> Tensor:
    """x (n, 3, H, W), mirrored with probability ½ and shifted by −4 … 4 in both directions; border pixels are repeated."""
    n, _, height, width = x.shape
    mirror = torch.rand(n, generator=generator) < 0.5
    offset = torch.randint(2 * _SHIFT + 1, (2, n, 1), generator=generator)
    rows, columns = offset[0] + torch.arange(height), offset[1] + torch.arange(width)
    columns = torch.where(mirror[:, None], columns.flip(1), columns)
    rows, columns = rows.to(x.device), columns.to(x.device)
    padded = functional.pad(x, (_SHIFT,) * 4, mode="replicate").movedim(1, -1)
    samples = torch.arange(n, device=x.device)[:, None, None]
    return padded[samples, rows[:, :, None], columns[:, None, :]].movedim(-1, 1).contiguous()


def grad_cam(module: nn.Module, layer: nn.Module, images: Tensor, classes: Tensor) -> Tensor:
    """M = relu(Σ_c a_c F_c), (n, H, W), with F (n, C, H, W) the output of `layer` and a_c the mean over pixels of ∂out_k/∂F_c,
    for the class k given for each image.

    The layer must be evaluated once per pass. In a DEQ that excludes the layers within its map; a layer that the equilibrium
    passes through afterwards (`Head.features`) has F = z*, and a gradient that needs no adjoint.

    Computed by captum's `LayerGradCam` (extra ``[saliency]``).
    """
    if classes.shape != images.shape[:1]:
        raise BadInput(f"There are {len(images)} images and classes of shape {tuple(classes.shape)}; give one for each image.")
    # With a gradient for the images, the layer's output has one even where all weights are frozen.
    inputs = images.detach().clone().requires_grad_()
    with torch.enable_grad():
        maps = captum_attr().LayerGradCam(module, layer).attribute(inputs, target=classes, relu_attributions=True)
    if not isinstance(maps, Tensor) or maps.ndim != 4:
        raise BadInput("Grad-CAM needs a layer whose output is one tensor (n, C, H, W): a convolution, or what follows one.")
    return maps.detach()[:, 0]


def map_entropy(maps: Tensor) -> Tensor:
    """H(p)/log(HW), (n,), with p = relu(M)/Σ relu(M) and H(p) = −Σ p log p: 0 for one pixel, 1 for a constant map.

    NaN for a map without a positive pixel, which has no breadth. Maps are (n, H, W); only those of one size can be compared.
    """
    if maps.ndim != 3 or maps[0].numel() < 2:
        raise BadInput(f"Maps are (n, H, W) of two pixels or more, got {tuple(maps.shape)}.")
    p = maps.flatten(1).double().clamp(min=0.0)
    p = p / p.sum(1, keepdim=True)  # 0/0 where nothing is positive
    entropy: Tensor = -torch.special.xlogy(p, p).sum(1)
    return entropy / math.log(p.shape[1])


def captum_attr() -> Any:
    """captum's module of attributions; raises BadInput where the extra is not installed."""
    try:
        return import_module("captum.attr")
    except ImportError as error:
        message = "Grad-CAM needs captum, which is not installed: pip install 'notsodeep[saliency]'."
        raise BadInput(message, extra="saliency", missing=("captum",)) from error
