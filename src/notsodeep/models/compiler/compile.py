"""The compiler: from a DEQ, or any module with a fixed point, to a network without iterations, with a certificate."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from notsodeep.arguments import count, flag, function, generator as checked_generator, not_negative, positive, shown
from notsodeep.arrays import Array
from notsodeep.errors import BadInput
from notsodeep.kernels.names import Match
from notsodeep.matching.fitted import Fitted
from notsodeep.matching.result import Design
from notsodeep.models.compiler.certificate import Certificate, Kernels, Score
from notsodeep.models.compiler.foreign import Found, found_in, quiet, tried
from notsodeep.models.compiler.frontier import Frontier
from notsodeep.models.compiler.given import Given, check_outputs
from notsodeep.models.compiler.rivals import shape
from notsodeep.models.compiler.trial import Trial, check_finite
from notsodeep.models.compiler.twin import Twins, design_for
from notsodeep.models.compiler.ways import Search
from notsodeep.models.cost import seconds
from notsodeep.models.deq import DEQ
from notsodeep.models.enn import ENN
from notsodeep.models.export.onnx import to_onnx
from notsodeep.models.training.objective import measure, score
from notsodeep.models.training.readout import Features, best_readout, in_batches
from notsodeep.runtime.progress import phases

_TIMED_ROWS, _TIMED_RUNS = 512, 7
_EXAMPLE_ROWS = 4


@dataclass(frozen=True, eq=False, repr=False)
class Compiled:
    """A network compiled from a DEQ."""

    network: nn.Module
    """the cheapest way that keeps enough of the DEQ's answers; the explicit twin of a DEQ that has none"""
    certificate: Certificate
    """measurements of both networks"""
    frontier: Frontier | None = None
    """every way to pay less; None for a DEQ whose readout is missing or as it was drawn"""
    design: Design | None = None
    """the design of the twin's activations; None for a module that is no DEQ of this package"""
    twin: ENN | None = None
    """the explicit network of that design, of the asked width"""
    example: Tensor | None = None
    """some samples, in the place of which files take any"""
    coupled: bool = False
    """whether all samples are one problem; files then take as many"""

    def __repr__(self) -> str:
        certificate = self.certificate
        return f"Compiled({certificate.network}: {certificate.expected_speedup:.3g} times fewer FLOPs)"

    def summary(self) -> str:
        """The certificate, and the verdict, as text."""
        verdict = "" if self.frontier is None else f"\n{self.frontier.verdict}\n"
        return f"{self.certificate.summary()}{verdict}"

    def to_onnx(self, path: str | os.PathLike[str], *, check: bool = True) -> Path:
        """Write the network as one ONNX file; see `nsd.models.to_onnx`."""
        return to_onnx(self.network, path, self.example, samples=0 if self.coupled else 1, check=check)

    def to_source(self, path: str | os.PathLike[str] | None = None) -> str:
        """The network as the text of a program that needs torch alone.

        Args:
            path: A file to write it into as well.

        Raises:
            BadInput: The network has code of your own inside.
        """
        write = getattr(self.network, "to_source", None)
        if write is None:
            raise BadInput(f"{type(self.network).__name__} cannot be written as source: write it with to_onnx.")
        text: str = write(path)
        return text


@torch.inference_mode(False)
@torch.random.fork_rng(devices=[])  # a module may draw the start of its solver
def compile_deq(
    model: nn.Module,
    x: Array,
    y: Array | None = None,
    *,
    keep: float = 0.99,
    budget: float = 100.0,
    test: tuple[Array, Array | None] | None = None,
    layer: nn.Module | str | None = None,
    map: Callable[..., Any] | None = None,
    augment: Callable[[Tensor], Tensor] | None = None,
    family: str | Fitted = "auto",
    match: Match | str = Match.CONJUGATE,
    width: int | None = None,
    progress: bool = True,
    generator: torch.Generator | None = None,
) -> Compiled:
    """The cheapest network found that keeps the answers of a DEQ, with everything else that was tried, and a certificate.

    A fifth of x is held out, unless `test` has samples to judge by. On the rest, ways to pay less are made: the DEQ at looser
    tolerances, by operator splitting and cut after a few steps; the linear response where the map is φ(W z + u); a few steps
    with a learnt start and learnt mixing, trained on the DEQ's outputs; for a DEQ of this package the explicit twin, whose
    activations are designed to give both the same kernel on x (see `design`), as it is and trained further; and, with y, plain
    networks of the same cost, trained on y. All are measured on the same samples.

    A module of any other kind needs one `fixed_point` inside, or `layer` and `map`. Its samples lie along the first axis of x
    and of its outputs; where its fixed point couples them, as the nodes of a graph, some outputs are held out instead.

    A DEQ whose readout is missing, or as it was drawn, has no answers: it is compiled to its twin.

    The model stays as it is, and copies of it are tried. Its forward hooks are called for two batches; those that only watch it
    are not called again, and those that return or change something are part of what is compiled. Backward hooks are not called.

    Args:
        model: A DEQ, or any module with one fixed point.
        x: Samples, (n, …); raw rows too, if a DEQ knows its preprocessing, which the network then has as well.
        y: Classes (n,), or real numbers (n,) or (n, K), to compare scores on.
        keep: The share of the DEQ's answers to keep, surely: with a standard deviation to spare, so that 99 % takes 99 samples
            or more to judge by. Where its outputs are numbers, the share of their variance.
        budget: Seconds for all trainings together; each ends sooner where it no longer helps. 0 for none.
        test: (x, y) of samples that the DEQ was not trained on, to judge by instead of the held-out ones; y may be None.
        layer: The part of a module, or its name, that finds the fixed point by means of its own.
        map: The equation of that part, z = map(z, *inputs): a method or a module of `model`.
        augment: Makes a batch of samples from one, to distil on.
        family: The family of the twin's activations, as in `design`.
        match: The kernel that must agree, "conjugate", "tangent" or "both". Of both, gains of the layers match the tangent one:
            they change how the network trains, never what it computes.
        width: Units per layer of the twin; None takes the DEQ's.
        progress: Show what is under way.
        generator: Draws the held-out samples and the weights; None uses a fixed seed.

    Returns:
        The network, its certificate, the frontier and the design.

    Raises:
        BadInput: The module has no fixed point or several, x, y or test do not fit, or another argument does not.
        NoMatch: The chosen family has no network with the DEQ's kernel.
        NotConverged: An equilibrium of the DEQ was not found.
    """
    share = positive(keep, "keep")
    if share > 1.0:
        raise BadInput(f"keep = {share:g} is the share of the DEQ's answers to keep: at most 1.")
    budget, progress = not_negative(budget, "budget, in seconds,"), flag(progress, "progress")
    if augment is not None:
        function(augment, "augment", "a function of a batch of samples", 1)
    draw = torch.Generator().manual_seed(0) if generator is None else checked_generator(generator)
    assert draw is not None
    if any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda")):
        raise BadInput("compile_deq measures the network as it is: call it outside of torch.autocast.")
    if isinstance(model, DEQ) and layer is None and map is None:
        given = Given.to_deq(model, x, y, test, augment)
        with phases(progress) as say:
            options = {"keep": share, "budget": budget, "say": say}
            return _compiled_deq(model, given, draw, width, {"family": family, "match": match}, options)
    if not isinstance(model, nn.Module):
        raise BadInput(f"compile_deq takes a DEQ or a torch module with a fixed point; got {shown(model)}.")
    if family != "auto" or width is not None or match != Match.CONJUGATE:
        raise BadInput(
            "family, match and width are for the explicit twin of a DEQ of this package: leave them out for a module."
        )
    given = Given.to_module(x, y, test, augment)
    with phases(progress) as say:
        parts = given.split(draw)
        found = found_in(model, given.x, layer, map, parts[0])
        return _compiled_module(model, found, given, parts, {"keep": share, "budget": budget, "say": say})


def _compiled_deq(
    deq: DEQ, given: Given, draw: torch.Generator, width: int | None, wanted: dict[str, Any], options: dict[str, Any]
) -> Compiled:
    width, known = deq.width if width is None else count(width, "width"), deq.preprocessing
    deq = quiet(deq, given.x)[0]
    deq.preprocessing = known  # the same value, not a copy
    trained = not deq.changed().isdisjoint({"A", "B", "bias", "variances"})
    answers = deq.out_features is not None and "readout" in deq.changed()
    if not answers:
        given = replace(given, unseen=None)  # a ridge readout of the twin's is judged on a part of x
    train, test = given.split(draw)  # before the weights, so that all designs are judged on the same samples
    options["say"]("designing the explicit twin")
    found, notes = design_for(deq, given.x[train] if answers else given.x, trained, **wanted)
    outputs = None if deq.out_features is None else in_batches(deq, given.x)
    if outputs is not None:
        check_finite(outputs, deq.plan.max_steps)
    twins = Twins(deq, found, given.x[train], None if outputs is None else outputs[train])
    twin = twins.of_width(width, draw)
    if outputs is None or not answers or (given.unseen is None and not len(test)):
        if outputs is not None and not len(test):
            notes.append(f"With {len(given.x)} samples none are held out, so the network's answers are not measured.")
        certificate = _of_twin(twins, twin, given, train, test, notes)
        return Compiled(twin, certificate, None, found, twin)
    half = twins.of_width(max(1, width // 2), torch.Generator().manual_seed(0))
    trial = Trial(given.x, train, test, outputs, given.y, given.unseen, False, given.augment, given.classifies)
    networks = {f"the explicit twin, {shape(each)}": each for each in (twin, half)}
    responding = twins.linear_response()
    if responding is not None:
        networks["the linear response"] = responding
    # A copy, as the network may be the DEQ itself, and later training is to change one of them alone.
    search = Search(copy.deepcopy(deq), found_in(deq, given.x[train[:_TIMED_ROWS]]), trial, networks, **options)
    notes += search.found.notes
    frontier = search.frontier()
    certificate = Certificate.of(
        frontier,
        samples=len(given.x),
        evaluations=search.found.solved.solution.evaluations,
        kernels=Kernels.of(found),
        trained=trained,
        preprocessing=deq.preprocessing,
        notes=tuple(notes),
    )
    network = frontier.faithful.module
    assert network is not None
    return Compiled(network, certificate, frontier, found, twin)


def _compiled_module(
    model: nn.Module, found: Found, given: Given, parts: tuple[Tensor, Tensor], options: dict[str, Any]
) -> Compiled:
    given.require_judges()
    reference, name = found.reference, type(model).__name__
    check_outputs(model, found.out, found.rows, given)
    if found.coupled and given.unseen is not None:
        raise BadInput(
            f"The fixed point of {name} couples all samples, such as the nodes of a graph: other samples are another problem. "
            "Leave test out; a fifth of the outputs is held out."
        )
    if found.coupled and given.augment is not None:
        raise BadInput(f"The fixed point of {name} couples all samples: none can be made by themselves, so leave augment out.")
    with torch.no_grad():
        outputs = tried(reference, given.x) if found.coupled else in_batches(partial(tried, reference), given.x)
        if given.unseen is not None:
            in_batches(partial(tried, reference), given.unseen[0])
    check_finite(outputs, found.solved.solution.evaluations)
    trial = Trial(given.x, *parts, outputs, given.y, given.unseen, found.coupled, given.augment)
    search = Search(reference, found, trial, **options)
    frontier = search.frontier()
    evaluations = search.found.solved.solution.evaluations
    certificate = Certificate.of(frontier, len(given.x), evaluations, notes=tuple(search.found.notes))
    network, example = frontier.faithful.module, given.x if found.coupled else given.x[:_EXAMPLE_ROWS]
    assert network is not None
    return Compiled(network, certificate, frontier, example=example, coupled=found.coupled)


def _of_twin(twins: Twins, twin: ENN, given: Given, train: Tensor, test: Tensor, notes: list[str]) -> Certificate:
    """The certificate of a twin whose DEQ has no answers: costs, kernels, and ridge readouts of both networks' features."""
    deq, x, labels = twins.deq, given.x, given.labels
    rows = x[:_TIMED_ROWS]
    with torch.no_grad():
        times = seconds([lambda: deq(rows), lambda: twin(rows)], x.device, _TIMED_RUNS)
        evaluations = deq.solve(rows).evaluations
    scores: tuple[Score, ...] = ()
    if labels is not None and len(test):
        targets, y = labels.read().to(x), labels.y[test]

        def ridge(features: Features) -> float:
            readout = best_readout(features, x[train], targets[train])
            return score(readout(in_batches(features, x[test])), y)

        scores = (Score(f"{measure(labels.y)}, ridge readout", ridge(deq.features), ridge(twin.features)),)
    return Certificate(
        network="explicit twin",
        samples=len(x),
        held_out=len(test),
        evaluations=evaluations,
        deq_flops=deq.flops(evaluations),
        network_flops=twin.flops(),
        deq_seconds=min(times[0]),
        network_seconds=min(times[1]),
        batch=len(rows),
        scores=scores,
        kernels=Kernels.of(twins.design),
        trained=not deq.changed().isdisjoint({"A", "B", "bias", "variances"}),
        preprocessing=deq.preprocessing,
        notes=tuple(notes),
    )
