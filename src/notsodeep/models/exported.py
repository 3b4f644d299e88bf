"""A fixed point as part of an exported graph, where no Python loop can run."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop


def picard_loop(
    step: Callable[..., Tensor], start: Tensor, weight: Tensor, u: Tensor, max_steps: int, tol: float, relative: bool
) -> Tensor:
    """s ← step(s) until every sample is within tolerance, as one `while_loop` node: the same stopping rule as `iterate`.

    An exported network is for inference: no gradient passes through the loop.
    """
    start, weight, u = start.detach(), weight.detach(), u.detach()

    def unfinished(count: Tensor, s: Tensor, image: Tensor) -> Tensor:
        size = torch.linalg.vector_norm(image - s, dim=1)
        scale = torch.linalg.vector_norm(image, dim=1) + torch.finfo(s.dtype).eps if relative else 1.0
        go_on: Tensor = (count < max_steps) & (size > tol * scale).any()
        return go_on

    def body(count: Tensor, s: Tensor, image: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG001
        return count + 1, image.clone(), step(image, weight, u)

    begin = (torch.ones((), dtype=torch.int64), start, step(start, weight, u))
    found: Tensor = while_loop(unfinished, body, begin)[1]
    return found
