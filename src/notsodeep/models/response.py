"""The linear response of a DEQ: where an explicit network starts from when the DEQ has been trained."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from notsodeep.models.deq import DEQ
from notsodeep.models.explicit import ENN


@torch.no_grad()
def start_from_linear_response(network: ENN, deq: DEQ, x: Tensor, tau0: float) -> None:
    """Give `network` the DEQ's directions: h* ≈ (I − W D̄)⁻¹ u, with D̄ the mean slope of φ at each unit's h* on x.

    The first layer gets those rows, scaled to the deviation τ0 of its pre-activations that the design was made for; later
    layers pass them on unchanged. On digits this halves the error that random weights leave.
    """
    weight, u = deq.terms(x)
    state = deq.solve(x).value / deq.form.output
    h = functional.linear(state, weight) + u
    slopes = torch.func.jvp(deq.form.phi, (h,), (torch.ones_like(h),))[1].mean(0)
    system = torch.eye(deq.width, dtype=torch.float64, device=x.device) - (weight * slopes).double()
    response = torch.linalg.solve(system, (deq.B * deq.scales()[1]).double())
    reached = functional.linear(x.double(), response).square().mean().sqrt()
    network.weights[0].copy_(response * (tau0 / reached))
    for later in network.weights[1:]:
        later.copy_(math.sqrt(later.shape[1]) * torch.eye(*later.shape))
