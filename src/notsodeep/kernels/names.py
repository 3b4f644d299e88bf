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
    names = [member.value for member in allowed]
    if isinstance(kernel, str) and kernel in names:
        return Kernel(kernel)
    near = get_close_matches(kernel.lower(), names, 1) if isinstance(kernel, str) else []
    meant = f"did you mean {near[0]!r}? Choose" if near else "choose"
    given = repr(kernel.value) if isinstance(kernel, Kernel) else shown(kernel)
    raise BadInput(f"There is no kernel {given}; {meant} from {', '.join(names)}.")


def as_kernels(kernel: Any) -> tuple[Kernel, ...]:
    """One kernel or several, each once; raises BadInput for an unknown one, or for none."""
    given = tuple(kernel) if isinstance(kernel, list | tuple | set | frozenset | dict) else (kernel,)
    return tuple(dict.fromkeys(as_kernel(name) for name in given or (given,)))
