"""From a DEQ to an equivalent explicit network. Ref: docs/theory.md, sections 5 and 6."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from notsodeep.arguments import instance, norm
from notsodeep.arrays import Array, samples
from notsodeep.errors import BadInput, NoMatch
from notsodeep.gaussian.moments import moments_at
from notsodeep.kernels.compare import best_scaled_gap, relative_gap
from notsodeep.kernels.exact.kernels import conjugate_kernel, tangent_kernel
from notsodeep.kernels.names import OF_OUTPUTS, Kernel, as_kernel
from notsodeep.matching.families import Family, HardTanhFamily, LeakyReluFamily, QuadraticFamily
from notsodeep.matching.hermite import hermite_network
from notsodeep.matching.result import Design, Measured
from notsodeep.matching.solve import Fit, compare_scalars, matched_names, matching, nearest
from notsodeep.theory.architecture import Explicit, Implicit
from notsodeep.theory.scalars import Scalars, scalars
from notsodeep.theory.statistics import tau0 as root_mean_square_norm
from notsodeep.tolerances import CENTRED_ATOL

FAMILIES: dict[str, tuple[Family, ...]] = {
    "leaky_relu": (LeakyReluFamily(1), LeakyReluFamily(2)),
    "hard_tanh": (HardTanhFamily(),),
    "quadratic": (QuadraticFamily(),),
}
"""By name, in the order of preference at equal depth; "hermite" and "auto" are handled apart."""

_SHALLOWEST_FIRST = sorted(
    ((name, member) for name, members in FAMILIES.items() for member in members), key=lambda pair: pair[1].depth
)
_HERMITE_TERMS = (4, 6, 8, 10, 12, 16, 20, 24, 32, 40)
_EQUAL_NORMS_RTOL = 1e-6
_MEASURED_SAMPLES, _TRIAL_SAMPLES = 3000, 300
_COMPUTE: dict[Kernel, Callable[..., Any]] = {Kernel.CONJUGATE: conjugate_kernel, Kernel.TANGENT: tangent_kernel}


def design(
    net: Implicit,
    x: Array | None = None,
    tau0: float | None = None,
    family: str = "auto",
    match: Kernel | str = Kernel.CONJUGATE,
) -> Design:
    """The explicit network with the kernel of a DEQ, in high dimension, on data of root mean square norm τ0.

    Two networks have one conjugate kernel where (γ, α1, α2, α3) agree, and one tangent kernel where (κ, β1, β2, β3) do.

    Args:
        net: The DEQ.
        x: Samples (n, p) on which the gap of the exact kernels is measured; they also give τ0.
        tau0: The root mean square norm of the data; that of `x` by default, or 1 without data.
        family: "hard_tanh" (one layer), "leaky_relu" (one or two), "quadratic" (two), "hermite" or "hermite:TERMS" (one layer,
            exact on inputs of equal norm), or "auto" or "auto:TERMS": the shallowest that matches to 1e-8, else hermite.
        match: The kernel that must agree, "conjugate" or "tangent".

    Returns:
        The explicit network with both sets of scalars and, given `x`, the measured gaps.

    Raises:
        NoMatch: The named family has no such network; carries the best residual and a family that has one.
        BadInput: An unknown family or kernel, or a DEQ that is not centred or has no such kernel.
        NotContractive: The DEQ has no equilibrium.
    """
    if not isinstance(net, Implicit):
        raise BadInput(f"design() starts from an Implicit network, got {type(net).__name__}.")
    kernel = as_kernel(match, OF_OUTPUTS)
    names = matched_names(kernel)
    instance(family, str, "family", f"a word, one of auto, hermite, {', '.join(FAMILIES)}")
    data = None if x is None else samples(x)
    radius = norm(tau0) if tau0 is not None else (1.0 if data is None else root_mean_square_norm(data))
    _check_centred(net, radius)
    target = scalars(net, radius)
    if not all(math.isfinite(getattr(target, name)) for name in names):
        raise BadInput(f"{net} has no {kernel} kernel to match: one of {', '.join(names)} is infinite.")
    chosen, explicit, note = choose(net, target, family, kernel, data)
    reached = scalars(explicit, radius)
    comparisons = compare_scalars(target, reached, names)
    # On inputs of equal norm α2 (β2) multiplies zero, so a Hermite design is not judged by it.
    judged = [c for c in comparisons if not (chosen.startswith("hermite") and c.name == names[2])]
    return Design(
        net=net,
        explicit=explicit,
        family=chosen,
        match=kernel.value,
        tau0=radius,
        target=target,
        scalars=reached,
        comparisons=comparisons,
        residual=max(c.gap for c in judged),
        measured=None if data is None else measure(net, explicit, data, radius, kernel),
        note=note,
    )


def choose(net: Implicit, target: Scalars, family: str, kernel: Kernel | str, data: Tensor | None) -> tuple[str, Explicit, str]:
    """(family, network, note); raises NoMatch. `data` decides the length of a Hermite series."""
    kind, _, argument = family.partition(":")
    if kind == "hermite":
        return _hermite(net, target.tau0, kernel, data, argument)
    if kind == "auto":
        for name, candidate in _SHALLOWEST_FIRST:
            found = matching(candidate, target, kernel)
            if found is not None:
                return name, found.explicit, ""
        return _hermite(net, target.tau0, kernel, data, argument)
    if kind not in FAMILIES:
        raise BadInput(f"There is no family {family!r}; choose auto, hermite, {', '.join(FAMILIES)}.")
    for candidate in FAMILIES[kind]:
        found = matching(candidate, target, kernel)
        if found is not None:
            return kind, found.explicit, ""
    best = min((nearest(candidate, target, kernel) for candidate in FAMILIES[kind]), key=lambda near: near.residual)
    raise _no_match(net, target, kernel, kind, best)


def _no_match(net: Implicit, target: Scalars, kernel: Kernel | str, kind: str, best: Fit) -> NoMatch:
    others = (name for name, candidate in _SHALLOWEST_FIRST if name != kind and matching(candidate, target, kernel))
    suggestion = next(others, "hermite")
    table = ", ".join(f"{c.name} {c.target:.6g} (reached {c.reached:.6g})" for c in best.comparisons)
    return NoMatch(
        f"No {kind} network has the kernel of {net} at τ0 = {target.tau0:.6g}: the best residual is {best.residual:.1e}, with "
        f"{table}. "
        + ("family='hermite' may come nearer." if suggestion == "hermite" else f"Use family={suggestion!r} instead."),
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
        if not terms.isdigit():
            raise BadInput(f"hermite:{terms} is not a number of terms; write for example hermite:60.")
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
    exact = _COMPUTE[as_kernel(kernel)](net, some, tau0=tau0)
    best, smallest, worse = _HERMITE_TERMS[0], math.inf, 0
    for terms in _HERMITE_TERMS:
        gap = relative_gap(exact, _COMPUTE[as_kernel(kernel)](hermite_network(net, tau0, terms, kernel), some))
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


def measure(net: Implicit, explicit: Explicit, data: Tensor, tau0: float, kernel: Kernel | str) -> Measured:
    """The gaps of the exact kernels on at most 3000 evenly chosen samples: of the design, and of the same depth undesigned."""
    some = _evenly(data, _MEASURED_SAMPLES)
    compute = _COMPUTE[as_kernel(kernel)]
    exact, designed = compute(net, some, tau0=tau0), compute(explicit, some)
    plain = Explicit([net.phi] * explicit.depth).centred(tau0)
    undesigned = compute(plain, some)
    scaled_gap, factor = best_scaled_gap(exact, undesigned)
    return Measured(
        samples=len(some),
        of_samples=len(data),
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
    at = moments_at(net.centred(tau0).phi, net.deviation(tau0))
    if abs(float(at.mean)) > CENTRED_ATOL * float(at.gamma2) ** 0.5:
        raise BadInput(
            f"{net} is not centred: E[φ(τ*ξ)] = {float(at.mean):.4g}. Equivalent networks exist for centred activations; use "
            "centre=True."
        )
