"""Features of CIFAR-10 by VGG-19, which the papers classify."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from notsodeep.arguments import count
from notsodeep.data.cache import cache_folder, md5_of
from notsodeep.data.image_sets import FEATURES, images as load_images
from notsodeep.errors import BadInput
from notsodeep.runtime.files import output_folder, write_whole
from notsodeep.runtime.progress import bar

# Of ImageNet, by colour channel: VGG-19 was trained with them.
_MEAN = (0.485, 0.456, 0.406)
_DEVIATION = (0.229, 0.224, 0.225)
_LAST_RELU = 35  # index in torchvision's vgg19().features: the ReLU after the 16th convolution; 36 is the last pool


def vgg19_features(
    images: Tensor, network: Callable[[Tensor], Tensor] | None = None, batch: int = 256, progress: bool = True
) -> Tensor:
    """Features (n, 2048), float16, of images (n, 3072) or (n, 3, 32, 32) in [0, 1]: the output of the 16th convolution after
    ReLU, 512 × 2 × 2, flattened. `network` maps normalised (b, 3, 32, 32) to features; by default it is torchvision's VGG-19
    with its ImageNet weights, which torchvision downloads."""
    if images.shape[1:] not in [(3072,), (3, 32, 32)] or len(images) == 0:
        raise BadInput(f"The images have shape {tuple(images.shape)}; expected (n, 3072) or (n, 3, 32, 32).")
    batch = count(batch, "batch")
    low, high = float(images.min()), float(images.max())
    if not (low >= 0.0 and high <= 1.0):
        raise BadInput(f"The images lie in [{low:g}, {high:g}], not in [0, 1]; divide bytes by 255.")
    network = network or vgg19()
    parameter = next(network.parameters(), None) if isinstance(network, nn.Module) else None
    device = images.device if parameter is None else parameter.device
    mean, deviation = (torch.tensor(v, device=device)[:, None, None] for v in (_MEAN, _DEVIATION))
    parts = []
    with torch.inference_mode(), bar(shown=progress) as shown:
        for part in shown.track(images.split(batch), description="VGG-19"):
            normalised = (part.to(device, torch.float32).reshape(-1, 3, 32, 32) - mean) / deviation
            parts.append(network(normalised).flatten(1).to("cpu", torch.float16))
    result = torch.cat(parts)
    if not bool(torch.isfinite(result).all()):
        raise BadInput(f"Some features are not finite in float16 (above {np.finfo(np.float16).max:g}); check the network.")
    return result


def vgg19() -> nn.Module:
    """The convolutional part of torchvision's VGG-19, up to the ReLU after the 16th convolution, for evaluation."""
    try:
        from torchvision import models
    except ImportError:
        raise BadInput("VGG-19 features need torchvision: pip install 'notsodeep[vision]'.") from None
    except RuntimeError as error:  # of a torchvision that was built for another torch
        raise BadInput(f"torchvision does not fit torch {torch.__version__}: {error}. Install a matching one.") from error
    try:
        whole: Any = models.vgg19(weights=models.VGG19_Weights.IMAGENET1K_V1)
    except OSError as error:
        raise BadInput(f"VGG-19's weights could not be fetched: {error}.") from error
    cut: nn.Module = whole.features[: _LAST_RELU + 1].eval()
    return cut


def make_features(folder: Path | None = None, network: Callable[[Tensor], Tensor] | None = None, progress: bool = True) -> Path:
    """Compute the features of CIFAR-10 and write cifar10-vgg19/features.npz, with its MD5 sum, into `folder` or the cache."""
    path = (folder or cache_folder()) / FEATURES.path
    # Before the long computation, as these may be missing.
    pictures = {split: load_images("cifar10", split) for split in ("train", "test")}
    network = network or vgg19()
    output_folder(path.parent)
    arrays: dict[str, Any] = {}
    for split, (x, y) in pictures.items():
        arrays[f"x_{split}"] = vgg19_features(x, network, progress=progress).numpy()
        arrays[f"y_{split}"] = y.numpy().astype(np.uint8)
    sums = path.with_name(path.name + ".md5")
    sums.unlink(missing_ok=True)  # the old sum must not meet the new file
    write_whole(path, lambda to: np.savez_compressed(to, **arrays))
    write_whole(sums, lambda to: to.write_text(f"{md5_of(path)}  {path.name}\n"))
    return path
