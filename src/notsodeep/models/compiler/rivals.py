"""The simplest rivals of a compiled DEQ: networks of equal cost, trained on y from new weights."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from notsodeep.models.compiler.foreign import Found
from notsodeep.models.enn import ENN
from notsodeep.models.unrolled import Unrolled
from notsodeep.theory.architecture import Explicit

_POWER_STEPS = 30


def shape(network: ENN) -> str:
    """The layers of a network, as "2 × 256"."""
    return f"{len(network.widths)} × {network.width}"


def plain_twin(twin: ENN) -> tuple[nn.Module, str]:
    """A new ReLU network of the twin's shape, with biases."""
    assert twin.out_features is not None
    weight = twin.weights[0]
    made = ENN(
        Explicit(["relu"] * len(twin.widths)),
        twin.in_features,
        twin.widths,
        twin.out_features,
        bias=True,
        readout_bias=True,
        generator=torch.Generator().manual_seed(0),
        device=weight.device,
        dtype=weight.dtype,
    )
    made.preprocessing = twin.preprocessing
    return made, f"a plain network, {shape(made)}"


def plain_steps(found: Found, steps: int) -> tuple[nn.Module, str]:
    """The module with so many steps of its map and new weights."""
    made = learnable(Unrolled.learning(copy.deepcopy(found.module), steps, found.solved))
    renew(made.model, torch.Generator().manual_seed(0))
    return made, f"a plain network, {steps} steps of the same map"


def learnable(network: Unrolled) -> Unrolled:
    """The network, all of whose weights that are no whole numbers may be trained."""
    for weight in network.parameters():
        if weight.is_floating_point() or weight.is_complex():
            weight.requires_grad_()
    return network


@torch.no_grad()
def renew(module: nn.Module, generator: torch.Generator) -> None:
    """Draw new weights in place: those of two axes and more from normal numbers of the size that they have, biases 0; scales,
    of one axis or none, and the lengths of weight norm become their mean size."""
    for name, weight in module.named_parameters():
        if not (weight.is_floating_point() or weight.is_complex()):
            continue
        if "bias" in name.split(".")[-2 if name.split(".")[-1].startswith("original") else -1]:
            weight.zero_()
        elif weight.numel() == max(weight.shape, default=1):
            weight.fill_(weight.abs().mean())
        else:
            dtype = torch.complex128 if weight.is_complex() else torch.float64
            drawn = torch.randn(weight.shape, generator=generator, dtype=dtype)
            weight.copy_(drawn.to(weight) * weight.abs().square().mean().sqrt())
    for part in module.modules():
        for bound in part if isinstance(part, parametrize.ParametrizationList) else ():
            if isinstance(bound, parametrizations._SpectralNorm):  # its estimate of the norm is of the old weights
                original = part.get_parameter("original")
                bound._power_method(bound._reshape_weight_to_matrix(original), _POWER_STEPS)
