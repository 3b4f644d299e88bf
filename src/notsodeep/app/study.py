"""The numbers that the page shows for a state: the design, the spectra of the kernels, the gaps."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from notsodeep.activations import Activation, Formula, activation, expression
from notsodeep.activations.formula import doubt
from notsodeep.activations.registry import FACTORIES
from notsodeep.app.state import QUICK, RANGES, TERMS_MOVING, State
from notsodeep.app.uploads import Shelf
from notsodeep.data.sources import Dataset
from notsodeep.data.standardiser import standardised
from notsodeep.errors import BadInput, NoMatch, NotContractive, NotConverged, NotSoDeepError
from notsodeep.kernels.compare import relative_gap
from notsodeep.kernels.exact.kernels import conjugate_kernel
from notsodeep.kernels.exact.solver import PreparedKernel, prepare
from notsodeep.kernels.names import Match
from notsodeep.linalg.eigen import spectral_norm
from notsodeep.matching.candidates import Split, Task
from notsodeep.matching.design import FAMILIES, NEARER, choose
from notsodeep.matching.fitted import Fitted
from notsodeep.matching.gains import gained
from notsodeep.matching.rescaled import RescaledFamily
from notsodeep.matching.result import Design
from notsodeep.matching.solve import compare_scalars, matched_names, matching
from notsodeep.runtime.threads import later
from notsodeep.theory.architecture import Explicit, Implicit, Network
from notsodeep.theory.scalars import Scalars, scalars
from notsodeep.theory.statistics import tau0 as root_mean_square_norm

Lengths = dict[tuple[State, tuple[int, ...]], str]
LENGTHS: Lengths = {}
"""hermite:TERMS of the states asked for and of their neighbours; a server keeps those of all its workers."""
MOST_LENGTHS, _TENTHS, _LOWEST, _FEATURES = 256, 10.0, 0.05, 250
_DESIGN_SAMPLES, _SHORTEST = 64, 4  # to choose the length of a Hermite series on; its fewest terms
_MOST_KINKS = 200
_FEWEST = 50  # features of a mixture for the gap against n: with fewer the correlations are large, and slow
_SEED = 0


class Refused(Exception):
    """A choice that cannot be shown: the field it belongs to, and the sentence to show there."""

    def __init__(self, field: str, sentence: str) -> None:
        super().__init__(field, sentence)
        self.field, self.sentence = field, sentence

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, eq=False)
class Study:
    """A DEQ and its explicit network on the data of a state. Gaps are ‖G* − G‖/‖G*‖ in operator norm."""

    state: State
    data: Dataset
    design: Design
    """without measurements"""
    phi: Activation
    """centred, as in the kernels"""
    plain: Explicit
    """the undesigned network of the same depth"""
    spectra: dict[str, Tensor]
    """of the "deq", the "designed" and the "undesigned" network, ascending"""
    gap: float
    plain_gap: float
    conjugate_gap: float | None
    """of the designed network, where both kernels are matched and the other gaps are of the tangent one"""
    scaled_gap: float
    """of the undesigned kernel times its least-squares factor; the best one takes seconds to find"""
    notes: dict[str, str]
    """sentences to show at a field"""
    seconds: float


def study(state: State, data: Dataset) -> Study:
    """The study of a state and its samples; `Refused` where a choice leaves nothing to show."""
    began = time.perf_counter()
    tau0 = root_mean_square_norm(data.x)
    net, notes = network(state)
    with _blamed():
        target = scalars(net, tau0)
        needed = (name for kernel in state.match.kernels for name in matched_names(kernel))
        if not all(math.isfinite(getattr(target, name)) for name in needed):
            prepare(net, data.x, tau0=tau0)  # raises, and says whether σ_a² or the activation makes gradients infinite
        family, explicit, sentence = designed(net, state, data.x, target)
        if sentence:
            notes["family"] = sentence
        plain = Explicit([net.phi] * explicit.depth).centred(tau0)
        spectra, gaps = _compare({"deq": net, "undesigned": plain, "designed": explicit}, state.shown, data.x, tau0)
        conjugate_gap = None
        if state.match is Match.BOTH:
            pair = conjugate_kernel(net, data.x, tau0=tau0), conjugate_kernel(explicit, data.x)
            conjugate_gap = relative_gap(*pair)
        phi, reached = net.centred(tau0).phi, scalars(explicit, tau0)
        comparisons = compare_scalars(target, reached, matched_names(state.match.scalars))
    residual = max(c.gap for c in comparisons)
    design = Design(net, explicit, family, state.kernel, tau0, data.x.shape[1], target, reached, comparisons, residual)
    found = (gaps["designed"], gaps["undesigned"], conjugate_gap, gaps["scaled"], notes)
    return Study(state, data, design, phi, plain, spectra, *found, time.perf_counter() - began)


@contextmanager
def _blamed() -> Iterator[None]:
    """Errors as `Refused`: without an equilibrium σ_a² is too large, else the activation is at fault."""
    try:
        yield
    except (NotContractive, NotConverged) as error:
        raise Refused("var_a", str(error)) from error
    except BadInput as error:
        raise Refused("activation", str(error)) from error
    except ArithmeticError as error:
        raise Refused("activation", "The numbers of this activation are too small or too large to go on with.") from error


def samples_of(state: State, shelf: Shelf) -> Dataset:
    """The samples of a state; like all but the mixture, those of an upload are centred and scaled to τ0 = 1."""
    if state.data != "upload":
        try:
            return state.dataset()
        except NotSoDeepError as error:
            raise Refused("data", str(error)) from error
    held = shelf.get(state.upload)
    if held is None:
        gone = "The file of this link is no longer in memory: upload it again."
        raise Refused("upload", gone if state.upload else "Choose a .csv or .npy file.")
    rows = torch.randperm(len(held.x), generator=torch.Generator().manual_seed(_SEED))[: state.n]
    y = None if held.y is None else held.y[rows]
    return Dataset(standardised(held.x[rows]), y, f"{held.description}, {len(rows)} of them, scaled to τ0 = 1")


def network(state: State) -> tuple[Implicit, dict[str, str]]:
    """The DEQ, and notes on it."""
    notes: dict[str, str] = {}
    phi = _activation(state.activation)
    try:
        net = Implicit(phi, state.var_a, state.var_b)
    except NotSoDeepError as error:
        raise Refused("var_a", str(error)) from error
    bound = net.contraction_bound
    if bound == 0.0:
        notes["var_a"] = "φ jumps, so no network of finite width is sure to contract; the conjugate kernel exists."
    elif state.var_a >= bound:
        notes["var_a"] = (
            f"σ_a² ≥ {bound:.4g} = 1/(4L²): the kernels exist, but a finite network need not contract; see the map."
        )
    return net, notes


def _activation(text: str) -> Activation:
    """A named activation or an expression; `Refused` where its averages cannot be computed."""
    try:
        phi = activation(text) if text.partition(":")[0] in FACTORIES else expression(text)
    except NotSoDeepError as error:
        raise Refused("activation", str(error)) from error
    if len(phi.kinks) > _MOST_KINKS:
        raise Refused("activation", f"{len(phi.kinks)} kinks are too many to follow here; at most {_MOST_KINKS} are.")
    if isinstance(phi, Formula) and doubt(phi.text):
        raise Refused(
            "activation",
            "Averages of this cannot be computed to enough digits: it varies too fast (stretch it, sin(600*x) to sin(x)) or is "
            "infinitely steep somewhere (as abs(x)**0.5 is at 0).",
        )
    return phi


def designed(net: Implicit, state: State, x: Tensor, target: Scalars) -> tuple[str, Explicit, str]:
    """(family, network, note): where the family has no match, its nearest member."""
    if state.family.startswith("fitted"):
        one = Task(net, target, state.match, Split.of(x, target.tau0)).fit(Fitted.named(state.family))
        return one.family, one.explicit, ""
    family, explicit, note = _matched(net, state, x, target)
    if state.match is Match.BOTH:
        explicit = gained(explicit, net, x[:: max(1, len(x) // _DESIGN_SAMPLES)], target.tau0)
    return family, explicit, note


def _matched(net: Implicit, state: State, x: Tensor, target: Scalars) -> tuple[str, Explicit, str]:
    kernel = state.match.scalars
    if state.family.startswith(QUICK):
        return _quick(net, state.family.partition(":")[2], kernel, target)
    open_length = state.family in ("matched", "hermite")
    asked = f"{state.family}:{_SHORTEST}" if open_length else state.family
    try:
        family, explicit, _ = choose(net, target, asked, kernel, None)
        if open_length and family.startswith("hermite"):
            family, explicit, _ = choose(net, target, _length(state, x, target.tau0), kernel, None)
    except NoMatch as error:
        other, residual = error.data["suggestion"], error.data["residual"]
        note = f"No {state.family} network has this kernel: the nearest is shown, of residual {residual:.1e}. "
        note += f"{other} may come nearer." if other in NEARER else f"{other} has it."
        return state.family, error.data["explicit"], note
    return family, explicit, ""


def _quick(net: Implicit, asked: str, kernel: str, target: Scalars) -> tuple[str, Explicit, str]:
    """As `designed`, in milliseconds: a match of the family asked for; else one layer a φ(b x) with the two scalars that count
    most, else the matched network.

    Finding b takes many averages of φ, which those of an expression are too slow for.
    """
    note = ""
    if asked in FAMILIES:
        for found in (matching(family, target, kernel) for family in FAMILIES[asked]):
            if found is not None:
                return asked, found.explicit, ""
        note = f"No {asked} network has this kernel: one near it is shown until the slider rests."
    if not isinstance(net.phi, Formula):
        rescaled = RescaledFamily(net.phi, 1)
        for unknowns in rescaled.candidates(target, kernel)[:1]:
            return "rescaled", rescaled.build(unknowns, target.tau0), note
    family, explicit, _ = choose(net, target, f"matched:{TERMS_MOVING}", kernel, None)
    return family, explicit, note


def _length(state: State, x: Tensor, tau0: float) -> str:
    """hermite:TERMS with the best number of terms on a few samples of a state nearby, so that a slider seldom needs another.

    That state has σ_a² rounded down to tenths, σ_b² = 1 − σ_a² where positive, and for drawn data the defaults of the page with
    about as many features.
    """
    var_a = max(math.floor(_TENTHS * state.var_a) / _TENTHS, _LOWEST)
    near = replace(state, var_a=var_a, var_b=None if var_a < 1.0 else state.var_b, family="hermite")
    if state.data != "upload":
        p = max(state.p // _FEATURES, 1) * _FEATURES
        near = replace(near, n=State.n, p=p, separation=State.separation, spread=State.spread)
        x = near.dataset().x
        tau0 = root_mean_square_norm(x)
    key = near, tuple(x.shape)
    found = LENGTHS.get(key)
    if found is None:
        if len(LENGTHS) >= MOST_LENGTHS:
            LENGTHS.clear()
        net, some = network(near)[0], x[:: max(1, len(x) // _DESIGN_SAMPLES)]
        found = LENGTHS[key] = choose(net, scalars(net, tau0), "hermite", state.match.scalars, some)[0]
    return found


def look_ahead(study: Study) -> None:
    """Find the lengths for the neighbouring tenths of σ_a², while nobody waits."""
    if not study.design.family.startswith("hermite"):
        return
    state, span = study.state, RANGES["var_a"]
    for var_a in (state.var_a + 1.0 / _TENTHS, state.var_a - 1.0 / _TENTHS):
        with suppress(Refused, NotSoDeepError, ArithmeticError):
            if span.low <= var_a <= span.high:
                _length(replace(state, var_a=var_a), study.data.x, study.design.tau0)


def _compare(networks: dict[str, Network], kernel: str, x: Tensor, tau0: float) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Spectra of all networks and their gaps to the first one, with "scaled" for the undesigned one times a factor.

    The gaps of `matching.design.measure`, faster, as a slider needs them: a network is prepared while the kernels, spectra and
    distances of the others are computed in threads, and the factor is the least squares one.
    """
    first, kernels, spectra, gaps = next(iter(networks)), {}, {}, {}
    for name, net in networks.items():
        centre = tau0 if isinstance(net, Implicit) else None
        prepared = prepare(net, x, tau0=centre, tangent=kernel == "tangent", eager=True)
        kernels[name] = later(partial(_filled, prepared, kernel))
        spectra[name] = later(partial(_spectrum, kernels[name]))
        if name != first:
            gaps[name] = later(partial(_distance, kernels[first], kernels[name]))
        if name == "undesigned":
            gaps["scaled"] = later(partial(_distance, kernels[first], kernels[name], scaled=True))
    found = {name: spectrum.result() for name, spectrum in spectra.items()}
    norm = float(found[first][-1])
    return found, {name: gap.result() / norm for name, gap in gaps.items()}


def _filled(prepared: PreparedKernel, kernel: str) -> Tensor:
    matrix = prepared.rows.new_empty(prepared.shape)
    prepared.fill((matrix,), (kernel,))
    return matrix


def _spectrum(matrix: Future[Tensor]) -> Tensor:
    values: Tensor = torch.linalg.eigvalsh(matrix.result())
    return values


def _distance(one: Future[Tensor], other: Future[Tensor], scaled: bool = False) -> float:
    """‖A − cB‖, c = 1 or ⟨A, B⟩/⟨B, B⟩, in float32: more digits than are shown, in half the time."""
    a, b = one.result(), other.result()
    factor = float((a * b).sum() / b.square().sum()) if scaled else 1.0
    return spectral_norm((a - factor * b).float())


@dataclass(frozen=True)
class GapPoint:
    """The gap of a design for n samples of p features."""

    n: int
    p: int
    gap: float


def gaps_against_n(study: Study) -> list[GapPoint]:
    """Gaps at n/8, n/4, n/2 and n of designs in the same family; p of a mixture shrinks with n, as in the theorem."""
    net, state, points = study.design.net, replace(study.state, family=study.design.family), []
    for share in (8, 4, 2):
        n = max(8, state.n // share)
        if state.data == "mixture":
            p = state.p // share
            if p < _FEWEST:
                continue
            x = State(data="mixture", n=n, p=p, separation=state.separation, spread=state.spread).dataset().x
        else:
            x = study.data.x[torch.randperm(len(study.data.x), generator=torch.Generator().manual_seed(_SEED))[:n]]
            p = x.shape[1]
        tau0 = root_mean_square_norm(x)
        _, explicit, _ = designed(net, state, x, scalars(net, tau0))
        _, gaps = _compare({"deq": net, "designed": explicit}, state.shown, x, tau0)
        points.append(GapPoint(len(x), p, gaps["designed"]))
    return [*points, GapPoint(len(study.data.x), study.data.x.shape[1], study.gap)]
