"""An activation seen through its wrappers."""

from __future__ import annotations

from notsodeep.activations import Activation, Centred, Scaled


def affine_parts(phi: Activation) -> tuple[Activation, float, float]:
    """(core, factor, offset) with φ = factor·core − offset, however `Centred` and `Scaled` are nested."""
    match phi:
        case Centred(inner=inner, offset=offset):
            core, factor, inside = affine_parts(inner)
            return core, factor, inside + offset
        case Scaled(inner=inner, factor=scale):
            core, factor, inside = affine_parts(inner)
            return core, scale * factor, scale * inside
    return phi, 1.0, 0.0
