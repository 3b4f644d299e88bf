"""From a DEQ to an equivalent explicit network. Ref: docs/theory.md, sections 5 to 7."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from notsodeep.arguments import norm, shown
from notsodeep.arrays import Array, samples
from notsodeep.errors import BadInput, NoMatch
from notsodeep.gaussian.moments import moments_at
from notsodeep.kernels.compare import best_scaled_gap, relative_gap
from notsodeep.kernels.exact.kernels import exact_kernel
from notsodeep.kernels.names import Kernel, Match, as_match
from notsodeep.matching.candidates import Split, Task
from notsodeep.matching.families import Family, HardTanhFamily, LeakyReluFamily, QuadraticFamily
from notsodeep.matching.fitted import Fitted
from notsodeep.matching.gains import gained
from notsodeep.matching.hermite import MOST_TERMS, hermite_network
from notsodeep.matching.rescaled import RescaledFamily
from notsodeep.matching.result import Candidate, Design, Measured
from notsodeep.matching.solve import Fit, compare_scalars, fit_of, matched_names, matching, nearest
from notsodeep.runtime.threads import later, small_matrices
from notsodeep.theory.architecture import Explicit, Implicit
from notsodeep.theory.scalars import Scalars, scalars
from notsodeep.theory.statistics import tau0 as root_mean_square_norm
from notsodeep.tolerances import CENTRED_ATOL, CONSTANT_RTOL

FAMILIES: dict[str, tuple[Family, ...]] = {
    "leaky_relu": (LeakyReluFamily(1), LeakyReluFamily(2)),
    "hard_tanh": (HardTanhFamily(),),
    "quadratic": (QuadraticFamily(),),
}
"""By name, in the order of preference at equal depth; the others depend on the DEQ or on samples."""
NEARER = ("hermite", "fitted:2", "fitted:2:matched")  # suggestions that need not match
_MATCHED_FITS = ("matched", "1:matched", "2:matched")
_NAMES = ("auto", "matched", "rescaled", "fitted", *FAMILIES, "hermite")

_SHALLOWEST_FIRST = sorted(
    ((name, member) for name, members in FAMILIES.items() for member in members), key=lambda pair: pair[1].depth
)
_HERMITE_TERMS = (4, 6, 8, 10, 12, 16, 20, 24, 32, 40)
_EQUAL_NORMS_RTOL = 1e-6
_MEASURED_SAMPLES, _TRIAL_SAMPLES, _SAMPLES_FOR_GAINS = 3000, 300, 300


def design(
    net: Implicit,
    x: Array | None = None,
    tau0: float | None = None,
    family: str | Fitted = "auto",
    match: Match | str = Match.CONJUGATE,
) -> Design:
    """The explicit network whose kernel is nearest to that of a DEQ, or that has it in high dimension.

    In high dimension two networks have one conjugate kernel where (γ, α1, α2, α3) agree, and one tangent kernel where
    (κ, β1, β2, β3) do; at finite n and p other networks are nearer.

    Args:
        net: The DEQ.
        x: Samples (n, p): networks are fitted to one half, and the gaps of the exact kernels measured on the other. They also
            give τ0. With fewer than 100 a Gaussian sample of their norms and dimension is fitted.
        tau0: The root mean square norm of the data; that of `x` by default, or 1 without data.
        family: "auto" (or "auto:1", of one layer): of all families, the network with the smallest gap on the half that was not
            fitted, the simpler where they tie; without `x` a matched one, the nearest on a Gaussian sample. By name:
            "fitted" or "fitted:2", one layer or two that are nearest to the samples' kernel, "fitted:matched" or
            "fitted:2:matched", of those with the four scalars, or a `matching.Fitted`;
            "rescaled", the DEQ's own φ as a φ(b x); "hard_tanh" (one layer), "leaky_relu" (one or two), "quadratic" (two);
            "hermite" or "hermite:TERMS" (one layer, exact on inputs of equal norm); "matched" or "matched:TERMS": the
            shallowest of hard_tanh, leaky_relu and quadratic that matches to 1e-8, else hermite.
        match: The kernel that must agree, "conjugate", "tangent" or "both": then gains of the layers match the tangent one.

    Returns:
        The explicit network with both sets of scalars and, given `x`, the measured gaps.

    Raises:
        NoMatch: The named family has no such network; carries the best residual and a family that has one.
        BadInput: An unknown family or kernel, or a DEQ that is not centred or has no such kernel.
        NotContractive: The DEQ has no equilibrium.
    """
    if not isinstance(net, Implicit):
        raise BadInput(f"design() starts from an Implicit network, got {type(net).__name__}.")
    wanted = as_match(match)
    if not isinstance(family, str | Fitted):
        raise BadInput(f"family must be a word, one of {', '.join(_NAMES)}, or a nsd.matching.Fitted(…); got {shown(family)}.")
    _check_family(str(family))
    data = None if x is None else samples(x)
    radius = norm(tau0) if tau0 is not None else (1.0 if data is None else root_mean_square_norm(data))
    _check_centred(net, radius)
    target = scalars(net, radius)
    for kernel in wanted.kernels:
        if not all(math.isfinite(getattr(target, name)) for name in matched_names(kernel)):
            infinite = ", ".join(matched_names(kernel))
            raise BadInput(f"{net} has no {kernel} kernel to match: one of {infinite} is infinite.")
    task = Task(net, target, wanted, Split.of(data, radius))
    with small_matrices():
        chosen, others, note, judged = _chosen(task, family, data)
    reached = scalars(chosen.explicit, radius)
    names = matched_names(wanted.scalars)
    comparisons = compare_scalars(target, reached, names)
    # On inputs of equal norm α2 (β2) multiplies zero, so a Hermite design is not judged by it.
    compared = [c for c in comparisons if not (chosen.family.startswith("hermite") and c.name == names[2])]
    measured = []
    if data is not None:
        for kernel in wanted.kernels:
            known = judged is task.judged
            exact = partial(task.kernel if known else partial(_exact, judged, radius), kernel=kernel)
            measured.append(measure(net, chosen.explicit, radius, exact, len(data)))
    return Design(
        net=net,
        explicit=chosen.explicit,
        family=chosen.family,
        match=wanted.value,
        tau0=radius,
        features=judged.shape[1],
        target=target,
        scalars=reached,
        comparisons=comparisons,
        residual=max(c.gap for c in compared),
        measured=measured[0] if measured else None,
        measured_tangent=measured[1] if len(measured) == 2 else None,
        candidates=tuple(others),
        optimum=chosen.optimum,
        note=note,
    )


def _chosen(task: Task, family: str | Fitted, data: Tensor | None) -> tuple[Candidate, list[Candidate], str, Tensor]:
    """The network, the candidates it was chosen from, a note, and the samples to measure it on."""
    judged, kind = task.judged, str(family).partition(":")[0]
    fits = "A Gaussian sample of the data's norms and dimension was fitted" if task.split.imitated else ""
    if data is None:
        fits = f"A Gaussian sample of {judged.shape[1]} features was fitted, as there is no data"
    if kind == "auto":
        depth = 1 if family == "auto:1" else 2
        if data is None:
            return _without_data(task, depth)
        ranked = task.candidates(_SHALLOWEST_FIRST, depth)
        few = int(data.any(1).sum())
        told = f"{fits}: there are only {few} samples{' that are not zero' * (few < len(data))}."
        return ranked[0], ranked, told if fits else "", judged
    if kind == "fitted":
        asked = family if isinstance(family, Fitted) else Fitted.named(family)
        found = later(lambda: task.fit(asked)).result()  # in a thread where torch works alone, as in Task.candidates
        if asked.scalars == "matched" and not found.matched:
            raise _no_match(
                task.net, task.target, Kernel.CONJUGATE, str(asked), fit_of(found.explicit, task.target, Kernel.CONJUGATE)
            )
        return found, [], f"{fits}." if fits else "", judged
    name, explicit, note = choose(task.net, task.target, str(family), task.match.scalars, data)
    everything = judged if data is None else _evenly(data, _MEASURED_SAMPLES)
    if task.match is Match.BOTH:
        explicit = gained(explicit, task.net, _evenly(everything, _SAMPLES_FOR_GAINS), task.tau0)
    return Candidate(name, explicit), [], note, everything


def _without_data(task: Task, depth: int) -> tuple[Candidate, list[Candidate], str, Tensor]:
    """Of the matched networks the nearest on a Gaussian sample; of all, where none is matched."""
    ranked, note = task.matched(_SHALLOWEST_FIRST, depth), ""
    if not ranked:
        ranked = task.candidates(_SHALLOWEST_FIRST, depth)
        note = "No family has the four scalars exactly: this network is the nearest on a Gaussian sample."
    return ranked[0], ranked, note, task.judged


def _check_family(family: str) -> None:
    """Raise BadInput for an unknown family, and for what stands behind a colon and does not belong there."""
    kind, colon, argument = family.partition(":")
    if kind not in _NAMES:
        raise BadInput(f"There is no family {family!r}; choose from {', '.join(_NAMES)}.")
    if not colon:
        return
    if kind in ("auto", "fitted"):
        if argument not in ("1", "2", *_MATCHED_FITS * (kind == "fitted")):
            also = "; :matched behind them keeps the four scalars" * (kind == "fitted")
            raise BadInput(f"{family!r}: {kind}:1 and {kind}:2 are networks of one and of two hidden layers{also}.")
    elif kind not in ("hermite", "matched"):
        raise BadInput(f"{family!r}: {kind} takes nothing behind its name; write family={kind!r}.")
    elif not (argument.isdecimal() and 2 <= int(argument[:9]) <= MOST_TERMS):
        raise BadInput(
            f"{family!r}: {argument!r} is not a number of terms; a Hermite design has 2 to {MOST_TERMS} terms: write {kind}:60."
        )


def choose(net: Implicit, target: Scalars, family: str, kernel: Kernel | str, data: Tensor | None) -> tuple[str, Explicit, str]:
    """(family, network, note) of a family that needs no fit; raises NoMatch. `data` decides the length of a Hermite series."""
    kind, _, argument = family.partition(":")
    if kind == "hermite":
        return _hermite(net, target.tau0, kernel, data, argument)
    if kind == "rescaled":
        return _rescaled(net, target, kernel)
    if kind == "matched":
        for name, candidate in _SHALLOWEST_FIRST:
            found = matching(candidate, target, kernel)
            if found is not None:
                return name, found.explicit, ""
        return _hermite(net, target.tau0, kernel, data, argument)
    for candidate in FAMILIES[kind]:
        found = matching(candidate, target, kernel)
        if found is not None:
            return kind, found.explicit, ""
    best = min((nearest(candidate, target, kernel) for candidate in FAMILIES[kind]), key=lambda near: near.residual)
    raise _no_match(net, target, kernel, kind, best)


def _rescaled(net: Implicit, target: Scalars, kernel: Kernel | str) -> tuple[str, Explicit, str]:
    """One layer a φ(b x) where that matches all four scalars, else two with a line in each."""
    found = matching(RescaledFamily(net.phi, 1), target, kernel) or nearest(RescaledFamily(net.phi, 2), target, kernel)
    if not found.matches:
        raise _no_match(net, target, kernel, "rescaled", found)
    return "rescaled", found.explicit, ""


def _no_match(net: Implicit, target: Scalars, kernel: Kernel | str, kind: str, best: Fit) -> NoMatch:
    others = (name for name, candidate in _SHALLOWEST_FIRST if name != kind and matching(candidate, target, kernel))
    fits = "fitted:2" if kind == "fitted:2:matched" else "fitted:2:matched"
    suggestion = next(others, fits if kernel == Kernel.CONJUGATE else "hermite")
    table = ", ".join(f"{c.name} {c.target:.6g} (reached {c.reached:.6g})" for c in best.comparisons)
    return NoMatch(
        f"No {kind} network has the kernel of {net} at τ0 = {target.tau0:.6g}: the best residual is {best.residual:.1e}, with "
        f"{table}. "
        + (f"family={suggestion!r} may come nearer." if suggestion in NEARER else f"Use family={suggestion!r} instead."),
        residual=best.residual,
        target={c.name: c.target for c in best.comparisons},
        reached={c.name: c.reached for c in best.comparisons},
        suggestion=suggestion,
        explicit=best.explicit,
    )


def _hermite(net: Implicit, tau0: float, kernel: Kernel | str, data: Tensor | None, terms: str) -> tuple[str, Explicit, str]:
    """A Hermite design of the given length, or of the length that does best on a few of the samples."""
    norms = None if data is None else data.to(torch.float64).square().sum(1).sqrt()
    spread = 0.0 if norms is None else float((norms.max() - norms.min()) / tau0)
    if terms:
        count = int(terms)
    elif data is None or spread <= _EQUAL_NORMS_RTOL:
        count = _HERMITE_TERMS[-1]
    else:
        count = _best_length(net, tau0, kernel, _evenly(data, _TRIAL_SAMPLES))
    note = "A Hermite design is exact on inputs of equal norm, up to its number of terms."
    if spread > _EQUAL_NORMS_RTOL:
        note += f" The norms of this data spread over {spread:.2g} τ0: the measured gap says what that costs."
    return f"hermite:{count}", hermite_network(net, tau0, count, kernel), note


def _best_length(net: Implicit, tau0: float, kernel: Kernel | str, some: Tensor) -> int:
    """The number of terms with the smallest gap on the samples: more are tried until two in a row have done worse."""
    exact = exact_kernel(net, some, None, kernel, tau0)
    best, smallest, worse = _HERMITE_TERMS[0], math.inf, 0
    for terms in _HERMITE_TERMS:
        gap = relative_gap(exact, exact_kernel(hermite_network(net, tau0, terms, kernel), some, None, kernel))
        worse = worse + 1 if gap > smallest else 0
        if gap < smallest:
            best, smallest = terms, gap
        if worse == 2:
            break
    return best


def _evenly(data: Tensor, most: int) -> Tensor:
    """At most `most` of the samples, evenly chosen, in float64."""
    count = min(len(data), most)
    chosen = torch.linspace(0, len(data) - 1, count, dtype=torch.float64).long()
    return data[chosen.to(data.device)].to(torch.float64)


def _exact(x: Tensor, tau0: float, net: Implicit | Explicit, kernel: Kernel) -> Tensor:
    found: Tensor = exact_kernel(net, x, None, kernel, tau0 if isinstance(net, Implicit) else None)
    return found


def measure(
    net: Implicit, explicit: Explicit, tau0: float, exact_of: Callable[[Implicit | Explicit], Tensor], of_samples: int
) -> Measured:
    """The gaps of the exact kernels that `exact_of` gives: of the design, and of the same depth undesigned."""
    plain = Explicit([net.phi] * explicit.depth).centred(tau0)
    exact, designed, undesigned = exact_of(net), exact_of(explicit), exact_of(plain)
    scaled_gap, factor = best_scaled_gap(exact, undesigned)
    return Measured(
        samples=len(exact),
        of_samples=of_samples,
        gap=relative_gap(exact, designed),
        plain=plain,
        plain_gap=relative_gap(exact, undesigned),
        plain_scaled_gap=scaled_gap,
        plain_factor=factor,
        kernel=exact,
        explicit_kernel=designed,
        plain_kernel=undesigned,
    )


def _check_centred(net: Implicit, tau0: float) -> None:
    plain = moments_at(net.phi, net.deviation(tau0))
    if float(plain.variance) <= CONSTANT_RTOL * float(plain.gamma2):
        raise BadInput(
            f"{net.phi} is {float(plain.mean):.4g} and next to constant on samples of norm {tau0:.4g}: centred, its kernel is "
            "zero, and there is nothing to match. Rescale the data or take another activation."
        )
    at = moments_at(net.centred(tau0).phi, net.deviation(tau0))
    if abs(float(at.mean)) > CENTRED_ATOL * float(at.gamma2) ** 0.5:
        raise BadInput(
            f"{net} is not centred: E[φ(τ*ξ)] = {float(at.mean):.4g}. Equivalent networks exist for centred activations; use "
            "centre=True."
        )
