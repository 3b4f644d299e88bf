"""The peer, torchdeq, on the same map: z = φ(W z + u), by each of its exact settings."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor
from torch.nn import functional

try:
    from torchdeq import get_deq
except ImportError:
    raise SystemExit(
        "This benchmark needs the peer: pip install torchdeq, into an environment that can be thrown away."
    ) from None

SOLVERS = ("fixed_point_iter", "anderson", "broyden")


def peer_version() -> str:
    try:
        return version("torchdeq")
    except PackageNotFoundError:
        return "0.1.0"  # a copy beside the script


class Peer:
    """A torchdeq layer with relative stopping; `start` is "zeros", as it is used, or "phi(u)", as ours starts."""

    def __init__(self, phi: Callable[[Tensor], Tensor], solver: str, start: str, tol: float, hook: bool = False) -> None:
        settings = {"f_solver": solver, "b_solver": solver, "f_tol": tol, "b_tol": tol, "f_max_iter": 60, "b_max_iter": 60}
        self.layer = get_deq(ift=True, hook_ift=hook, f_stop_mode="rel", b_stop_mode="rel", **settings)
        self.phi, self.start = phi, start

    def solve(self, weight: Tensor, u: Tensor, training: bool) -> Tensor:
        """The state; with `training`, with its exact implicit gradient."""
        start = torch.zeros_like(u) if self.start == "zeros" else self.phi(u).detach()
        self.layer.train(training)
        out, _ = self.layer(lambda z: self.phi(functional.linear(z, weight) + u), start)
        value: Tensor = out[-1]
        return value
