"""The names of the three kernels."""

from __future__ import annotations

from typing import Any

from notsodeep.arguments import shown
from notsodeep.errors import BadInput

KERNELS = ("conjugate", "tangent", "preactivation")


def kernel_names(asked: Any) -> tuple[str, ...]:
    """One name or several, each once, as a tuple; `BadInput` if there is no such kernel."""
    given = tuple(asked) if isinstance(asked, list | tuple | set | frozenset | dict) else (asked,)
    strange = [name for name in given if not isinstance(name, str) or name not in KERNELS]
    unknown = [name[:60] if isinstance(name, str) else shown(name) for name in strange]
    if unknown or not given:
        raise BadInput(f"There is no kernel {', '.join(unknown) or '()'}; choose from {', '.join(KERNELS)}.")
    return tuple(dict.fromkeys(given))
