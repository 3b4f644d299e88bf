"""Whether the rows of a state are problems of their own."""

from __future__ import annotations

import torch
from torch import Tensor

from notsodeep.fixed_points.precision import Map

_TRIALS = 3  # each finds a row that depends on one other with probability 1/4, on most others nearly surely
_ROUNDING = 1e3  # changes of a row, in units of its rounding, that other rows' values in one product may cause


@torch.no_grad()
def repeats(f: Map, z: Tensor, fz: Tensor) -> bool:
    """Whether f gives fz at z once more: without noise, and without a memory of its own."""
    return not bool(_changed(f(z), fz, torch.isfinite(fz).all(1)).any())


@torch.no_grad()
def rows_depend(f: Map, z: Tensor, fz: Tensor, trials: int = _TRIALS) -> bool:
    """Whether some rows of f(z), (n, d), change when other rows of z do: random halves of them are moved.

    Args:
        f: The map.
        z: A state; rows that are not finite are left out.
        fz: f(z).
        trials: How often, at an evaluation each.
    """
    draw = torch.Generator().manual_seed(0)
    usable = torch.isfinite(z).all(1) & torch.isfinite(fz).all(1)
    scale = max((float(v[usable].abs().max()) for v in (fz, z) if bool(usable.any())), default=1.0) or 1.0
    for _ in range(trials):
        moved = torch.randperm(len(z), generator=draw).to(z.device) % 2 == 0
        noise = torch.randn(z.shape, generator=draw, dtype=torch.float32).to(z) * scale
        image = f(torch.where(moved[:, None], torch.nan_to_num(z) + noise, torch.nan_to_num(z)))
        if bool(_changed(image, fz, usable & ~moved).any()):
            return repeats(f, z, fz)  # otherwise it is noise
    return False


def _changed(image: Tensor, before: Tensor, rows: Tensor) -> Tensor:
    """Which of `rows` moved by more than rounding."""
    change, size = (torch.linalg.vector_norm(v, dim=1) for v in (image - before, before))
    moved: Tensor = rows & ~(change <= _ROUNDING * torch.finfo(before.dtype).eps * size)
    return moved
