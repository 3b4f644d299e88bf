"""From a DEQ to an explicit network that needs no iterations, with a certificate."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from notsodeep import arrays as checks
from notsodeep.arguments import count, flag, generator as checked_generator
from notsodeep.arrays import Array, samples
from notsodeep.errors import BadInput, NoMatch, NotContractive, NumericsWarning
from notsodeep.gaussian.moments import moments_at
from notsodeep.matching.design import design
from notsodeep.matching.result import Design
from notsodeep.models.certificate import Certificate, Score
from notsodeep.models.deq import DEQ
from notsodeep.models.enn import ENN
from notsodeep.models.labels import Labels
from notsodeep.models.training.batches import Batches
from notsodeep.models.training.fit import fit
from notsodeep.models.training.readout import Features, best_readout, in_batches
from notsodeep.theory.architecture import Implicit
from notsodeep.theory.statistics import tau0 as root_mean_square_norm

_HELD_OUT, _ENOUGH = 0.2, 10
_RESPONSE_ROWS = 4096
_TIMED_ROWS, _TIMED_RUNS = 512, 7
_BATCH, _RATE = 128, 3e-3


@dataclass(frozen=True, eq=False, repr=False)
class Compiled:
    """The explicit network, the design that it follows, and what it keeps of the DEQ."""

    network: ENN
    design: Design
    certificate: Certificate

    def __repr__(self) -> str:
        return f"Compiled({self.design.net} → {self.design.explicit})"

    def summary(self) -> str:
        return f"{self.design.net}  →  {self.design.explicit}\n{self.certificate.summary()}"

    def to_onnx(self, path: str | os.PathLike[str], *, check: bool = True) -> Path:
        """The network as one ONNX file."""
        return self.network.to_onnx(path, check=check)

    def to_source(self, path: str | os.PathLike[str] | None = None) -> str:
        """The network as the text of a program that needs torch alone; also written to `path`, if given."""
        return self.network.to_source(path)


def compile_deq(
    deq: DEQ,
    x: Array,
    y: Array | None = None,
    *,
    family: str = "auto",
    width: int | None = None,
    distil: int = 0,
    progress: bool = True,
    generator: torch.Generator | None = None,
) -> Compiled:
    """The explicit network matched to `deq` on data like x, (n, p), with its design and a certificate.

    1. The activations are designed so that both have the same kernel on x (see `design`; `family` as there).
    2. As many units as the DEQ (or `width`), with random weights; for a *trained* DEQ, with the weights of its linear response
       instead: h* ≈ (I − W D̄)⁻¹ u, D̄ the mean slopes of φ.
    3. Where the DEQ has a readout, the network's own is fitted to the DEQ's outputs on four fifths of x, in closed form.
    4. `distil` epochs of training on those outputs, all weights, if asked (with a bar of its progress), and the readout once
       more.

    The certificate is measured on the fifth of x that was held out. With y, the features of both are also read out by ridge
    regression: accuracy for whole numbers, R² for real ones.
    """
    if not isinstance(deq, DEQ) or not isinstance(deq.net, Implicit):
        raise BadInput("compile_deq takes a DEQ of an Implicit network; to_explicit turns one made by to_deq back.")
    rows = samples(x).to(deq.B)
    checks.batch(rows, deq.in_features, deq.B, "DEQ")
    distil, progress = count(distil, "distil, a number of epochs,", least=0), flag(progress, "progress")
    width = deq.width if width is None else count(width, "width")
    if distil and deq.out_features is None:
        raise BadInput("Distillation follows the DEQ's outputs, and this DEQ has no readout; give it out_features.")
    labels = None if y is None else Labels.of(y, len(rows))
    draw = torch.Generator().manual_seed(0) if generator is None else checked_generator(generator)
    assert draw is not None
    changed = deq.changed()
    trained = not changed.isdisjoint({"A", "B", "bias", "variances"})
    found, notes = _design(deq, rows, family, trained)
    network = ENN(
        found.explicit,
        deq.in_features,
        width,
        deq.out_features,
        readout_bias=deq.out_features is not None,
        generator=draw,
        device=deq.B.device,
        dtype=deq.B.dtype,
    )
    train, test = _split(len(rows), draw)
    if not changed.isdisjoint({"A", "B", "bias"}) and network.widths[0] == deq.width:
        _start_from_linear_response(network, deq, rows[train[:_RESPONSE_ROWS]], found.tau0)
    outputs = None
    if deq.out_features is not None:
        outputs = in_batches(deq, rows)
        _fit_readout(network, rows[train], outputs[train])
        if distil:
            _distil(network, rows[train], outputs[train], distil, draw, progress)
            _fit_readout(network, rows[train], outputs[train])
    certificate = _certify(deq, network, found, rows, test, outputs, trained, distil, notes)
    if labels is not None and len(test):
        certificate = replace(certificate, scores=_scores(deq, network, rows, labels, outputs, train, test))
    return Compiled(network, found, certificate)


def _design(deq: DEQ, x: Tensor, family: str, trained: bool) -> tuple[Design, list[str]]:
    """The design for the DEQ's own variances as they are now, at the data's τ0."""
    net, radius, notes = deq.net, root_mean_square_norm(x), []
    assert isinstance(net, Implicit)
    if not trained:
        found = design(net, x=x, tau0=radius, family=family)
    else:
        with warnings.catch_warnings():
            # Bounds for random weights: whether a trained A contracts, its own solver says.
            warnings.simplefilter("ignore", NumericsWarning)
            try:
                found = design(_present(deq, net), x=x, tau0=radius, family=family)
            except (NoMatch, NotContractive) as error:
                found = design(net, x=x, tau0=radius, family=family)
                notes.append(
                    f"Designed for {net}, the DEQ before training: there is no design for it as it is now. {error}"
                )
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


def _split(n: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Four fifths to fit on, one fifth held out; none where there are fewer than ten."""
    order = torch.randperm(n, generator=draw, device=draw.device).cpu()
    held = int(_HELD_OUT * n) if n >= _ENOUGH else 0
    return order[held:], order[:held]


def _fit_readout(network: ENN, x: Tensor, targets: Tensor) -> None:
    chosen = best_readout(network.features, x, targets)
    assert network.readout.weight is not None
    assert network.readout.bias is not None
    with torch.no_grad():
        network.readout.weight.copy_(chosen.weight)
        network.readout.bias.copy_(chosen.bias)


def _scores(
    deq: DEQ, network: ENN, x: Tensor, labels: Labels, outputs: Tensor | None, train: Tensor, test: Tensor
) -> tuple[Score, ...]:
    """Both networks' own outputs on y, where they are made for it, and ridge readouts of their features."""
    targets = labels.targets.to(x)
    found = []
    fits = outputs is not None and (
        outputs.shape[1] >= targets.shape[1] if labels.classes is not None else outputs.shape[1] == targets.shape[1]
    )
    if outputs is not None and fits and "readout" in deq.changed():
        theirs, ours = outputs[test], in_batches(network, x[test])
        found.append(Score(f"{labels.measure}, own readout", labels.score(theirs, test), labels.score(ours, test)))

    def ridge(features: Features) -> float:
        readout = best_readout(features, x[train], targets[train])
        return labels.score(readout(in_batches(features, x[test])), test)

    found.append(Score(f"{labels.measure}, ridge readout", ridge(deq.features), ridge(network.features)))
    return tuple(found)


@torch.no_grad()
def _certify(
    deq: DEQ,
    network: ENN,
    found: Design,
    x: Tensor,
    test: Tensor,
    outputs: Tensor | None,
    trained: bool,
    distilled: int,
    notes: list[str],
) -> Certificate:
    measured = found.measured
    assert measured is not None
    rows = x[:_TIMED_ROWS]
    seconds = _times([lambda: deq(rows), lambda: network(rows)], x.device)
    evaluations = deq.solve(rows).evaluations
    error = agreement = None
    if not len(test):
        notes = [*notes, f"With {len(x)} samples none are held out, so the network's answers are not measured."]
    elif outputs is not None and deq.changed():  # a readout as it was drawn gives no answers worth keeping
        ours, theirs = in_batches(network, x[test]), outputs[test]
        spread = (theirs - outputs.mean(0)).square().mean().clamp(min=torch.finfo(x.dtype).tiny)
        error = float(((ours - theirs).square().mean() / spread).sqrt())
        if theirs.shape[1] > 1:
            agreement = float((ours.argmax(1) == theirs.argmax(1)).double().mean())
    return Certificate(
        kernel_gap=measured.gap,
        kernel_samples=measured.samples,
        samples=len(x),
        scalars=found.comparisons,
        evaluations=evaluations,
        deq_flops=deq.flops(evaluations),
        explicit_flops=network.flops(),
        deq_seconds=seconds[0],
        explicit_seconds=seconds[1],
        batch=len(rows),
        trained=trained,
        distilled_epochs=distilled,
        output_error=error,
        agreement=agreement,
        held_out=len(test),
        notes=tuple(notes),
    )


def _times(calls: list[Callable[[], object]], device: torch.device) -> list[float]:
    """The best of several runs of each, in turn, so that a busy machine slows all of them."""
    best = [math.inf] * len(calls)
    for _ in range(_TIMED_RUNS):
        for k, call in enumerate(calls):
            _wait(device)
            started = time.perf_counter()
            call()
            _wait(device)
            best[k] = min(best[k], time.perf_counter() - started)
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _distil(
    network: nn.Module, x: Tensor, targets: Tensor, epochs: int, generator: torch.Generator, progress: bool
) -> None:
    """Adam with a cosine rate on ‖network(x) − targets‖² relative to the targets' spread, in place, all weights."""
    spread = float((targets - targets.mean(0)).square().mean()) or 1.0
    fit(
        network,
        Batches(x, targets, _BATCH, generator),
        epochs,
        optimiser=torch.optim.Adam(network.parameters(), lr=_RATE),
        loss=lambda out, wanted: functional.mse_loss(out, wanted) / spread,
        progress="distilling" if progress else False,
    )


@torch.no_grad()
def _start_from_linear_response(network: ENN, deq: DEQ, x: Tensor, tau0: float) -> None:
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
