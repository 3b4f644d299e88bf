"""Which kernel of a network: conjugate, tangent, or tangent at a pre-activation."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from notsodeep.arguments import shown
from notsodeep.errors import BadInput


class Kernel(StrEnum):
    """A kernel of an infinitely wide network; every `kernel=` takes a member or its name."""

    CONJUGATE = "conjugate"
    """G = E[z(x)·z(x')], the kernel of the features."""
    TANGENT = "tangent"
    """Θ = ⟨∂f(x), ∂f(x')⟩ over all weights of f = aᵀz."""
    PREACTIVATION = "preactivation"
    """K = Λ/(1 − σ_a² Q), which [ling2024] calls Implicit-NTK."""


OF_OUTPUTS = (Kernel.CONJUGATE, Kernel.TANGENT)
"""The kernels that can be matched, learnt with and drawn: those of a network's features and of its output."""


def as_kernel(kernel: Any, allowed: Iterable[Kernel] = Kernel) -> Kernel:
    """`kernel`, a member or a name, as a member of `allowed`; raises BadInput with the nearest name for any other."""
    return Kernel(_named(kernel, [member.value for member in allowed], "kernel"))


def _named(given: Any, names: list[str], what: str) -> str:
    """`given` if it is one of the names; raises BadInput with the nearest name for any other."""
    if isinstance(given, str) and given in names:
        return str(given)
    near = get_close_matches(given.lower(), names, 1) if isinstance(given, str) else []
    meant = f"did you mean {near[0]!r}? Choose" if near else "choose"
    said = repr(str(given)) if isinstance(given, StrEnum) else shown(given)
    raise BadInput(f"There is no {what} {said}; {meant} from {', '.join(names)}.")


def as_kernels(kernel: Any) -> tuple[Kernel, ...]:
    """One kernel or several, each once; raises BadInput for an unknown one, or for none."""
    given = tuple(kernel) if isinstance(kernel, list | tuple | set | frozenset | dict) else (kernel,)
    return tuple(dict.fromkeys(as_kernel(name) for name in given or (given,)))


class Match(StrEnum):
    """The kernels in which an explicit network must agree with a DEQ; every `match=` takes a member or its name."""

    CONJUGATE = "conjugate"
    TANGENT = "tangent"
    BOTH = "both"

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels that count."""
        return OF_OUTPUTS if self is Match.BOTH else (Kernel(self.value),)

    @property
    def scalars(self) -> Kernel:
        """The kernel whose four scalars are matched; of both it is the conjugate one, and gains match the other."""
        return Kernel.CONJUGATE if self is Match.BOTH else Kernel(self.value)


def as_match(match: Any) -> Match:
    """`match`, a member or a name; raises BadInput with the nearest name for any other."""
    return match if isinstance(match, Match) else Match(_named(match, [member.value for member in Match], "match"))
