"""The explicit twin of a fully connected DEQ: designed activations, the linear response, a readout in closed form."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from notsodeep.errors import NoMatch, NotContractive, NumericsWarning
from notsodeep.gaussian.moments import moments_at
from notsodeep.matching.design import design
from notsodeep.matching.result import Design
from notsodeep.models.deq import DEQ
from notsodeep.models.enn import ENN, assign
from notsodeep.models.training.readout import best_readout
from notsodeep.models.unrolled import linearised, usable
from notsodeep.theory.architecture import Explicit, Implicit
from notsodeep.theory.statistics import tau0 as root_mean_square_norm

_RESPONSE_ROWS = 4096


@dataclass(frozen=True, eq=False)
class Twins:
    """Explicit twins of one DEQ, of one design and any width, fitted to some samples and the DEQ's outputs on them."""

    deq: DEQ
    design: Design
    x: Tensor
    outputs: Tensor | None

    def of_width(self, width: int, draw: torch.Generator) -> ENN:
        """The twin of so many units per layer."""
        return self._read_out(network_of(self.deq, self.design, width, self.x[:_RESPONSE_ROWS], draw))

    @torch.no_grad()
    def linear_response(self) -> ENN | None:
        """One layer φ(R (U x + b) + r) of the DEQ's own φ and width: the pre-activations of the linearised equation.

        None where that has no solution.
        """
        deq = self.deq
        draw = torch.Generator().manual_seed(0)  # of weights that are set below: nobody's random numbers move on
        network = _untrained(deq, Explicit([deq.form.phi]), deq.width, bias=True, generator=draw)
        inverse, constant = _linearised(deq, self.x[:_RESPONSE_ROWS])
        if not usable(inverse):
            return None
        assign(network, 0, inverse @ (deq.B * deq.scales()[1]).double())
        assert network.biases is not None
        network.biases[0].copy_(constant if deq.bias is None else constant + inverse @ deq.bias.double())
        return self._read_out(network)

    def _read_out(self, network: ENN) -> ENN:
        if self.outputs is not None:
            chosen = best_readout(network.features, self.x, self.outputs)
            network.readout.assign(chosen.weight, chosen.bias)
        return network


def design_for(deq: DEQ, x: Tensor, trained: bool, **wanted: Any) -> tuple[Design, list[str]]:
    """The design for the present variances of the DEQ at the data's τ0, and notes on it."""
    net, radius, notes = deq.net, root_mean_square_norm(x), []
    assert isinstance(net, Implicit)
    if not trained:
        found = design(net, x=x, tau0=radius, **wanted)
    else:
        with warnings.catch_warnings():
            # These warnings are about random weights; whether a trained A contracts, its own solver finds out.
            warnings.simplefilter("ignore", NumericsWarning)
            try:
                found = design(_present(deq, net), x=x, tau0=radius, **wanted)
            except (NoMatch, NotContractive) as error:
                found = design(net, x=x, tau0=radius, **wanted)
                notes.append(f"Designed for {net}, the DEQ before training: there is no design for it as it is now. {error}")
    offsets = [float(moments_at(net.phi, net.deviation(t)).mean) for t in (deq.tau0, radius)]
    if net.centre and abs(offsets[0] - offsets[1]) > 0.05 * found.target.gamma:
        text = (
            f"The data has τ0 = {radius:.4g}, the DEQ was centred for tau0 = {deq.tau0:.4g} (offsets {offsets[1]:.4g} and "
            f"{offsets[0]:.4g}): its features are not centred, and the kernels differ by more than the gap says. Scale the "
            f"data, or build DEQ(…, tau0={radius:.4g})."
        )
        notes.append(text)
        if not trained:  # training finds its own way around an offset
            warnings.warn(text, NumericsWarning, stacklevel=3)
    return found, notes


@torch.no_grad()
def _present(deq: DEQ, net: Implicit) -> Implicit:
    """The network with the variances that A and B have now."""
    recurrent, inward = deq.scales()
    var_a = float((deq.A * recurrent).double().square().mean()) * deq.width
    var_b = float((deq.B * inward).double().square().mean())
    return Implicit(net.phi, var_a, var_b, centre=net.centre)


def network_of(deq: DEQ, found: Design, width: int, x: Tensor, draw: torch.Generator) -> ENN:
    """A network of the design, with random weights, or those of the linear response on x of a DEQ that was trained."""
    network = _untrained(deq, found.explicit, width, generator=draw)
    if not deq.changed().isdisjoint({"A", "B", "bias"}) and width <= deq.width:
        start_from_linear_response(network, deq, x, found.tau0)
    return network


def _untrained(deq: DEQ, explicit: Explicit, width: int, **options: Any) -> ENN:
    """A network for the DEQ's inputs and outputs."""
    options |= {"device": deq.B.device, "dtype": deq.B.dtype, "readout_bias": deq.out_features is not None}
    network = ENN(explicit, deq.in_features, width, deq.out_features, **options)
    network.preprocessing = deq.preprocessing
    return network


def _linearised(deq: DEQ, x: Tensor) -> tuple[Tensor, Tensor]:
    weight, u = deq.terms(x)
    return linearised(deq.form.phi, weight, functional.linear(deq.solve(x).value / deq.form.output, weight) + u)


@torch.no_grad()
def start_from_linear_response(network: ENN, deq: DEQ, x: Tensor, tau0: float) -> None:
    """Set the weights of `network` to the DEQ's linear response h* ≈ (I − W D̄)⁻¹ u, D̄ the mean slopes of φ at h* on x.

    The first layer gets that matrix, scaled to the deviation τ0 of pre-activations that the design assumes; later layers pass
    its features on. On digits this halves the error that random weights leave.
    """
    inverse = _linearised(deq, x)[0]
    if not usable(inverse):
        return
    response = inverse[: network.widths[0]] @ (deq.B * deq.scales()[1]).double()
    reached = functional.linear(x.double(), response).square().mean().sqrt()
    assign(network, 0, response * (tau0 / reached))
    for number, later in enumerate(network.weights[1:], start=1):
        assign(network, number, math.sqrt(later.shape[1]) * torch.eye(*later.shape))
