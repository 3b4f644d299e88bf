"""A fixed point as part of an exported graph, where no Python loop can run."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop


def picard_loop(
    step: Callable[..., Tensor], start: Tensor, weight: Tensor, u: Tensor, max_steps: int, tol: float, damping: float
) -> Tensor:
    """s ← s + damping·(step(s) − s) until every sample is within tol·‖step(s)‖, as one `while_loop` node.

    An exported network is for inference: no gradient passes through the loop. It cannot raise, so samples that do not
    converge are NaN.
    """
    start, weight, u = start.detach(), weight.detach(), u.detach()

    def unfinished(s: Tensor, image: Tensor) -> Tensor:
        size, scale = (torch.linalg.vector_norm(v, dim=1) for v in (image - s, image))
        not_yet: Tensor = ~(size <= tol * scale) | ~torch.isfinite(size)
        return not_yet

    def go_on(count: Tensor, s: Tensor, image: Tensor) -> Tensor:
        more: Tensor = (count < max_steps) & unfinished(s, image).any()
        return more

    def body(count: Tensor, s: Tensor, image: Tensor) -> tuple[Tensor, ...]:
        after = torch.lerp(s, image, damping)
        return count + 1, after, step(after, weight, u)

    begin = (torch.ones((), dtype=torch.int64, device=u.device), start, step(start, weight, u))
    _, s, image = while_loop(go_on, body, begin)
    return torch.where(unfinished(s, image)[:, None], torch.nan, s)
