"""The compiler from a DEQ to an explicit network without iterations, with a certificate."""

from __future__ import annotations

import math
import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from notsodeep.arguments import count, flag, generator as checked_generator, positive, shown
from notsodeep.arrays import Array, module_input, samples
from notsodeep.data.targets import Targets
from notsodeep.errors import BadInput, NoMatch, NotContractive, NumericsWarning
from notsodeep.gaussian.moments import moments_at
from notsodeep.kernels.names import Match
from notsodeep.matching.design import design
from notsodeep.matching.fitted import Fitted
from notsodeep.matching.result import Design
from notsodeep.models.certificate import Certificate, Score
from notsodeep.models.deq import DEQ
from notsodeep.models.enn import ENN, assign
from notsodeep.models.frontier import Frontier, Judged, frontier
from notsodeep.models.predictor import learnt, taken
from notsodeep.models.timing import seconds
from notsodeep.models.training.fit import fit
from notsodeep.models.training.objective import Batches, measure, score
from notsodeep.models.training.readout import Features, best_readout, in_batches
from notsodeep.theory.architecture import Implicit
from notsodeep.theory.statistics import tau0 as root_mean_square_norm

_HELD_OUT, _ENOUGH = 0.2, 10
_RESPONSE_ROWS = 4096
_TIMED_ROWS, _TIMED_RUNS = 512, 7
_BATCH, _RATE = 128, 3e-3


@dataclass(frozen=True, eq=False, repr=False)
class Compiled:
    """An explicit network compiled from a DEQ."""

    network: ENN
    """the explicit network"""
    design: Design
    """the design of its activations"""
    certificate: Certificate
    """measurements of both networks"""
    _twins: _Twins | None = None
    """the DEQ and the samples, for `frontier`"""

    def __repr__(self) -> str:
        return f"Compiled({self.design.net} → {self.design.explicit})"

    def summary(self) -> str:
        """Both networks and the table of the certificate, as text."""
        return f"{self.design.net}  →  {self.design.explicit}\n{self.certificate.summary()}"

    def frontier(
        self, y: Array | None = None, *, test: tuple[Array, Array | None] | None = None, keep: float = 0.99
    ) -> Frontier:
        """Every way to pay less for the DEQ, side by side, and the cheapest that keeps enough of its answers.

        The DEQ at looser tolerances and cut after a few steps, this network, one of half the DEQ's width and, with y, plain
        networks of the same layers trained on y: their costs, fidelity and scores on the samples that `compile_deq` held out,
        or on `test`. Where the DEQ was trained on the former too, its score on them flatters it: give test samples.

        Args:
            y: Classes (n,), or real numbers (n,) or (n, K), of the samples that `compile_deq` was given.
            test: (x, y) of other samples to measure on; with y = None where there are no labels.
            keep: The share of the DEQ's answers to keep; of real numbers, that of their variance.

        Returns:
            All ways, and which to deploy.

        Raises:
            BadInput: The DEQ has no readout, or one that is still as it was drawn; there are no samples to measure on; or y or
                test do not fit.
            NotConverged: The DEQ has no equilibrium for some of the samples.
        """
        share = positive(keep, "keep")
        if share > 1.0:
            raise BadInput(f"keep = {share:g} is the share of the DEQ's answers to keep: at most 1.")
        if self._twins is None or self._twins.outputs is None or not self._twins.deq.changed():
            raise BadInput(
                "The frontier is about a DEQ's answers, and this one has none worth keeping: its readout is missing, or as it "
                "was drawn. Give it out_features, and train it or use nsd.fit_readout, before compile_deq."
            )
        return self._twins.frontier(self.design, self._twins.judged(y, test), share)

    def to_onnx(self, path: str | os.PathLike[str], *, check: bool = True) -> Path:
        """Write the network as one ONNX file; see `ENN.to_onnx`."""
        return self.network.to_onnx(path, check=check)

    def to_source(self, path: str | os.PathLike[str] | None = None) -> str:
        """The network as the text of a program that needs torch alone; see `ENN.to_source`."""
        return self.network.to_source(path)


def compile_deq(
    deq: DEQ,
    x: Array,
    y: Array | None = None,
    *,
    family: str | Fitted = "auto",
    match: Match | str = Match.CONJUGATE,
    width: int | None = None,
    distil: int = 0,
    progress: bool = True,
    generator: torch.Generator | None = None,
) -> Compiled:
    """The explicit network matched to `deq` on data like x, with its design and a certificate.

    1. The activations are designed to give both networks the same kernel on x (see `design`).
    2. The weights are random; for a *trained* DEQ, those of its linear response h* ≈ (I − W D̄)⁻¹ u, D̄ the mean slopes of φ.
    3. The readout, if the DEQ has one, is fitted to the DEQ's outputs on four fifths of x, in closed form.
    4. `distil` epochs of training on those outputs, all weights, and the readout once more.

    The certificate is measured on the fifth of x that was held out. With y, ridge readouts of the features of both networks are
    compared too: by accuracy for classes, by R² for real numbers.

    Args:
        deq: A DEQ of an `Implicit` network, trained or not.
        x: Samples, (n, p); raw ones too, if the DEQ knows its preprocessing, which the network then has as well.
        y: Classes (n,), or real numbers (n,) or (n, K), to compare both networks on.
        family: The family of the activations, as in `design`.
        match: The kernel that must agree, "conjugate", "tangent" or "both". Of both, gains of the layers match the tangent one:
            they change how the network trains, never what it computes.
        width: Units per layer; None takes the DEQ's.
        distil: Epochs of training on the DEQ's outputs.
        progress: Show a progress bar while distilling.
        generator: Draws the held-out samples and the weights; None uses a fixed seed.

    Returns:
        The network, its design and its certificate.

    Raises:
        BadInput: `deq` is not a DEQ of an `Implicit`, has no readout to distil, x or y do not fit, or there is no such family
            or match.
        NoMatch: The chosen family has no network with the DEQ's kernel.
        NotConverged: An equilibrium of the DEQ was not found.
    """
    if not isinstance(deq, DEQ) or not isinstance(deq.net, Implicit):
        raise BadInput("compile_deq takes a DEQ of an Implicit network; to_explicit turns one made by to_deq back.")
    rows = taken(deq, samples(x)).to(deq.B)
    module_input(rows, deq.in_features, deq.B, "DEQ")
    distil, progress = count(distil, "distil, a number of epochs,", least=0), flag(progress, "progress")
    width = deq.width if width is None else count(width, "width")
    if distil and deq.out_features is None:
        raise BadInput("Distillation follows the DEQ's outputs, and this DEQ has no readout; give it out_features.")
    labels = None if y is None else learnt(deq, Targets.numbered(y, len(rows)))
    draw = torch.Generator().manual_seed(0) if generator is None else checked_generator(generator)
    assert draw is not None
    trained = not deq.changed().isdisjoint({"A", "B", "bias", "variances"})
    train, test = _split(len(rows), draw)  # before the weights, so that all designs are judged on the same samples
    found, notes = _design(deq, rows, trained, family=family, match=match)
    network = _network(deq, found, width, rows[train[:_RESPONSE_ROWS]], draw)
    twins = _Twins(deq, network, rows, train, test, None if deq.out_features is None else in_batches(deq, rows))
    twins.fit_readout()
    if distil:
        twins.distil(distil, draw, progress)
        twins.fit_readout()
    certificate = twins.certificate(found, notes)
    certificate = replace(certificate, trained=trained, distilled_epochs=distil, preprocessing=deq.preprocessing)
    if labels is not None and len(test):
        certificate = replace(certificate, scores=twins.scores(labels))
    return Compiled(network, found, certificate, twins)


def _design(deq: DEQ, x: Tensor, trained: bool, **wanted: Any) -> tuple[Design, list[str]]:
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


def _labels(y: Array, x: Tensor, deq: DEQ) -> Tensor:
    """y of the samples x as `score` takes it, checked against the outputs of the DEQ."""
    targets = learnt(deq, Targets.numbered(y, len(x)))
    outputs = deq.out_features or 0
    if targets.outputs > outputs if targets.classes else targets.outputs != outputs:
        raise BadInput(f"y needs {targets.outputs} outputs and the DEQ has {outputs}: it was trained on something else.")
    return targets.y.to(x.device) if targets.classes else targets.read().to(x)


def _split(n: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Indices to fit on and indices held out: a fifth of n, none where n < 10."""
    order = torch.randperm(n, generator=draw, device=draw.device).cpu()
    held = int(_HELD_OUT * n) if n >= _ENOUGH else 0
    return order[held:], order[:held]


@dataclass(frozen=True, eq=False)
class _Twins:
    """A DEQ and its explicit network on the samples x, with the indices to fit on and to test on, and the DEQ's outputs."""

    deq: DEQ
    network: ENN
    x: Tensor
    train: Tensor
    test: Tensor
    outputs: Tensor | None

    def frontier(self, found: Design, data: Judged, keep: float) -> Frontier:
        """All ways to pay less for the DEQ, measured on other data than the network was fitted to."""
        half = max(1, self.deq.width // 2)
        draw = torch.Generator().manual_seed(0)
        smaller = replace(self, network=_network(self.deq, found, half, self.x[self.train[:_RESPONSE_ROWS]], draw))
        smaller.fit_readout()
        named = {"compiled.network": self.network, f"nsd.compile_deq(deq, x, width={half}).network": smaller.network}
        return frontier(self.deq, named, data, keep)

    def fit_readout(self) -> None:
        """Fit the network's readout, if it has one, to the DEQ's outputs."""
        if self.outputs is None:
            return
        chosen, readout = (
            best_readout(self.network.features, self.x[self.train], self.outputs[self.train]),
            self.network.readout,
        )
        readout.assign(chosen.weight, chosen.bias)

    def distil(self, epochs: int, generator: torch.Generator, progress: bool) -> None:
        """Train all weights by Adam with a cosine rate on ‖network(x) − outputs‖² relative to the outputs' spread."""
        assert self.outputs is not None
        wanted = self.outputs[self.train]
        spread = float((wanted - wanted.mean(0)).square().mean()) or 1.0
        fit(
            self.network,
            Batches(self.x[self.train], wanted, _BATCH, generator),
            epochs,
            optimiser=torch.optim.Adam(self.network.parameters(), lr=_RATE),
            loss=lambda out, y: functional.mse_loss(out, y) / spread,
            progress="distilling" if progress else False,
        )

    def judged(self, y: Array | None, test: tuple[Array, Array | None] | None) -> Judged:
        """The samples to measure on, and those that a plain network is trained on."""
        known = None if y is None else _labels(y, self.x, self.deq)
        train, train_y = self.x[self.train], None if known is None else known[self.train]
        if test is None:
            if not len(self.test):
                raise BadInput(
                    f"With {len(self.x)} samples compile_deq held none out to measure on: give it {_ENOUGH} or more, or test="
                )
            return Judged(self.x[self.test], None if known is None else known[self.test], train, train_y)
        if not isinstance(test, tuple | list) or len(test) != 2:
            raise BadInput(f"test must be a pair (x, y) of samples and labels; got {shown(test)}.")
        rows = taken(self.deq, samples(test[0], "x of test")).to(self.x)
        module_input(rows, self.deq.in_features, self.deq.B, "DEQ")
        if (y is None) != (test[1] is None):
            raise BadInput("Labels are needed both of the samples that compile_deq was given, y=, and of the test samples.")
        return Judged(rows, None if test[1] is None else _labels(test[1], rows, self.deq), train, train_y)

    def scores(self, labels: Targets) -> tuple[Score, ...]:
        """Scores of both networks' own outputs, where they are meant for y, and of ridge readouts of their features."""
        targets, outputs, test, found = labels.read().to(self.x), self.outputs, self.test, []
        y, measured = labels.y[test], measure(labels.y)
        if outputs is not None and "readout" in self.deq.changed():
            classes, spare = labels.classes is not None, outputs.shape[1] - targets.shape[1]
            if spare == 0 or (classes and spare > 0):
                scores = (score(out, y) for out in (outputs[test], in_batches(self.network, self.x[test])))
                found.append(Score(f"{measured}, own readout", *scores))

        def ridge(features: Features) -> float:
            readout = best_readout(features, self.x[self.train], targets[self.train])
            return score(readout(in_batches(features, self.x[test])), y)

        found.append(Score(f"{measured}, ridge readout", ridge(self.deq.features), ridge(self.network.features)))
        return tuple(found)

    @torch.no_grad()
    def certificate(self, found: Design, notes: list[str]) -> Certificate:
        """Kernel gap, cost and speed of both networks, and the error of the outputs on held-out samples."""
        deq, network, x, test, measured = self.deq, self.network, self.x, self.test, found.measured
        assert measured is not None
        rows = x[:_TIMED_ROWS]
        deq_seconds, explicit_seconds = map(min, seconds([lambda: deq(rows), lambda: network(rows)], x.device, _TIMED_RUNS))
        evaluations = deq.solve(rows).evaluations
        error = agreement = None
        if not len(test):
            notes = [*notes, f"With {len(x)} samples none are held out, so the network's answers are not measured."]
        elif self.outputs is not None and deq.changed():  # a readout as it was drawn gives no answers worth keeping
            ours, theirs = in_batches(network, x[test]), self.outputs[test]
            spread = (theirs - self.outputs.mean(0)).square().mean().clamp(min=torch.finfo(x.dtype).tiny)
            error = float(((ours - theirs).square().mean() / spread).sqrt())
            if theirs.shape[1] > 1:
                agreement = float((ours.argmax(1) == theirs.argmax(1)).double().mean())
        return Certificate(
            kernel_gap=measured.gap,
            kernel_samples=measured.samples,
            samples=len(x),
            scalars=found.comparisons,
            match=found.match,
            tangent_gap=None if found.measured_tangent is None else found.measured_tangent.gap,
            gains=network.net.gains,
            evaluations=evaluations,
            deq_flops=deq.flops(evaluations),
            explicit_flops=network.flops(),
            deq_seconds=deq_seconds,
            explicit_seconds=explicit_seconds,
            batch=len(rows),
            output_error=error,
            agreement=agreement,
            held_out=len(test),
            notes=tuple(notes),
        )


def _network(deq: DEQ, found: Design, width: int, x: Tensor, draw: torch.Generator) -> ENN:
    """A network of the design, with random weights, or those of the linear response on x of a DEQ that was trained."""
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
    network.preprocessing = deq.preprocessing
    if not deq.changed().isdisjoint({"A", "B", "bias"}) and width <= deq.width:
        _start_from_linear_response(network, deq, x, found.tau0)
    return network


@torch.no_grad()
def _start_from_linear_response(network: ENN, deq: DEQ, x: Tensor, tau0: float) -> None:
    """Set the weights of `network` to the DEQ's linear response h* ≈ (I − W D̄)⁻¹ u, D̄ the mean slopes of φ at h* on x.

    The first layer gets that matrix, scaled to the deviation τ0 of pre-activations that the design assumes; later layers pass
    its features on. On digits this halves the error that random weights leave.
    """
    weight, u = deq.terms(x)
    state = deq.solve(x).value / deq.form.output
    h = functional.linear(state, weight) + u
    slopes = torch.func.jvp(deq.form.phi, (h,), (torch.ones_like(h),))[1].mean(0)
    system = torch.eye(deq.width, dtype=torch.float64, device=x.device) - (weight * slopes).double()
    response = torch.linalg.solve(system, (deq.B * deq.scales()[1]).double())[: network.widths[0]]
    reached = functional.linear(x.double(), response).square().mean().sqrt()
    assign(network, 0, response * (tau0 / reached))
    for number, later in enumerate(network.weights[1:], start=1):
        assign(network, number, math.sqrt(later.shape[1]) * torch.eye(*later.shape))
