"""W7's images: CIFAR-10, or made-up ones that need no file, and the changes that leave an image's class as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from notsodeep.data.image_sets import images
from notsodeep.errors import BadInput
from notsodeep.models.training.objective import Batches

SIDE, CLASSES = 32, 10
_SHIFT = 4
_SOURCES = ("cifar10", "made-up")


@dataclass(frozen=True, eq=False)
class Images:
    """x (n, 3, 32, 32) with the training images' mean and deviation of each channel taken out, y (n,), and the test images' own
    bytes, (n, 3, 32, 32)."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    test_bytes: Tensor


def load_images(data: str, batches: Sequence[int], train: int, test: int, device: torch.device) -> Images:
    """The first `train` training images of these batches of CIFAR-10 and the first `test` test images (their order is random
    there); of "made-up" as many as asked for."""
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
    """(n, 3072) in [0, 1], and classes: a spot anywhere on grey noise, class k a hue of ten."""
    y = torch.randint(CLASSES, (n,), generator=generator)
    centre = 6.0 + 20.0 * torch.rand(n, 2, 1, 1, generator=generator)
    grid = torch.arange(SIDE, dtype=torch.float32)
    squares = (grid[None, :, None] - centre[:, 0]).square() + (grid[None, None, :] - centre[:, 1]).square()
    phases = 2.0 * torch.pi * (y[:, None] / CLASSES + torch.arange(3) / 3.0)
    spot = 0.4 * phases.cos()[:, :, None, None] * torch.exp(-squares / 60.0)[:, None]
    noise = 0.05 * torch.randn(n, 3, SIDE, SIDE, generator=generator)
    return (0.5 + spot + noise).clamp(0.0, 1.0).flatten(1), y


class Augmented:
    """The batches of a `Batches`, each image mirrored or not and shifted by up to four pixels, anew each time."""

    def __init__(self, batches: Batches, generator: torch.Generator) -> None:
        self.batches, self.generator = batches, generator

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in self.batches:
            yield shifted(x, self.generator), y


def shifted(x: Tensor, generator: torch.Generator) -> Tensor:
    """x (n, 3, H, W), mirrored with probability ½ and shifted by −4 … 4 in both directions; the border is continued."""
    n, _, height, width = x.shape
    mirror = torch.rand(n, generator=generator) < 0.5
    offset = torch.randint(2 * _SHIFT + 1, (2, n, 1), generator=generator)
    rows, columns = offset[0] + torch.arange(height), offset[1] + torch.arange(width)
    columns = torch.where(mirror[:, None], columns.flip(1), columns)
    rows, columns = rows.to(x.device), columns.to(x.device)
    padded = functional.pad(x, (_SHIFT,) * 4, mode="replicate").movedim(1, -1)
    samples = torch.arange(n, device=x.device)[:, None, None]
    return padded[samples, rows[:, :, None], columns[:, None, :]].movedim(-1, 1).contiguous()
