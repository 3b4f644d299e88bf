"""Where a network looks: Grad-CAM, and how broad its maps are. Ref: Selvaraju et al. (2017); [wu2024]."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from notsodeep.errors import BadInput


def grad_cam(module: nn.Module, layer: nn.Module, images: Tensor, classes: Tensor) -> Tensor:
    """M = relu(Σ_c a_c F_c), (n, H, W): F the output of `layer`, (n, C, H, W), a_c the mean over pixels of ∂out_k/∂F_c, k the
    class asked for of each image.

    The layer is to be evaluated once a pass. In a DEQ that excludes all that is within its map; a layer that the equilibrium
    passes through afterwards (`Head.features`) has F = z*, and a gradient that needs no adjoint.

    Computed by captum's `LayerGradCam` (extra ``[saliency]``).
    """
    if classes.shape != images.shape[:1]:
        raise BadInput(
            f"There are {len(images)} images and classes of shape {tuple(classes.shape)}; give one for each image."
        )
    # With a gradient for the images the layer's output has one too where all weights are frozen.
    inputs = images.detach().clone().requires_grad_()
    with torch.enable_grad():
        maps = captum_attr().LayerGradCam(module, layer).attribute(inputs, target=classes, relu_attributions=True)
    if not isinstance(maps, Tensor) or maps.ndim != 4:
        raise BadInput(
            "Grad-CAM needs a layer whose output is one tensor (n, C, H, W): take a convolution or what follows one."
        )
    return maps.detach()[:, 0]


def map_entropy(maps: Tensor) -> Tensor:
    """H(p)/log(HW), (n,), with p = relu(M)/Σ relu(M) and H(p) = −Σ p log p: 0 for one pixel, 1 for all alike.

    NaN for a map without a positive pixel, which has no breadth. Maps are (n, H, W): compare those of one size only, as a map
    of larger pixels has less to lose.
    """
    if maps.ndim != 3 or maps[0].numel() < 2:
        raise BadInput(f"Maps are (n, H, W) of two pixels or more, got {tuple(maps.shape)}.")
    p = maps.flatten(1).double().clamp(min=0.0)
    p = p / p.sum(1, keepdim=True)  # 0/0 where nothing is positive
    entropy: Tensor = -torch.special.xlogy(p, p).sum(1)
    return entropy / math.log(p.shape[1])


def captum_attr() -> Any:
    """captum's module of attributions; `BadInput` where the extra is not installed, to be told before a network is trained."""
    try:
        return import_module("captum.attr")
    except ImportError as error:
        message = "Grad-CAM needs captum, which is not installed: pip install 'notsodeep[saliency]'."
        raise BadInput(message, extra="saliency", missing=("captum",)) from error
