"""The samples that ways to answer are fitted to and judged by."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from notsodeep.errors import NotConverged
from notsodeep.models.compiler.distil import Loss
from notsodeep.models.compiler.frontier import Answers, size_of
from notsodeep.models.training.objective import spread, usual_loss
from notsodeep.models.training.readout import in_batches


@dataclass(frozen=True, eq=False)
class Trial:
    """The samples x that ways are fitted to and judged by, the DEQ's outputs and y on them."""

    x: Tensor
    train: Tensor
    """indices of the samples to fit to"""
    test: Tensor
    """indices of the samples that are held out"""
    outputs: Tensor
    """the DEQ's on x"""
    y: Tensor | None = None
    """classes or numbers of x"""
    unseen: tuple[Tensor, Tensor | None] | None = None
    """other samples to judge by, and their y"""
    coupled: bool = False
    """whether all samples are one problem"""
    augment: Callable[[Tensor], Tensor] | None = None
    """makes samples to distil on from given ones"""
    classifies: bool | None = None
    """whether outputs are scores of classes, where that is known without y"""

    def answers(self, module: nn.Module) -> Tensor:
        """Outputs on the samples that ways are judged by."""
        if self.unseen is not None:
            return in_batches(module, self.unseen[0])
        if self.coupled:
            with torch.no_grad():
                out: Tensor = module(self.x)
            return out[self.test]
        return in_batches(module, self.x[self.test])

    @property
    def judged_y(self) -> Tensor | None:
        """y of the samples that ways are judged by."""
        if self.unseen is not None:
            return self.unseen[1]
        return None if self.y is None else self.y[self.test]

    def batch(self, count: int) -> Tensor:
        """So many of the samples to judge by, some more than once if need be; all of them where they are one problem."""
        rows = self.x if self.unseen is None else self.unseen[0]
        return rows if self.coupled else rows[torch.arange(count, device=rows.device) % len(rows)]

    def of(self, module: nn.Module, rows: Tensor) -> Tensor:
        """Outputs for the samples with these indices, with their gradient."""
        out: Tensor = module(self.x)[rows] if self.coupled else module(self.x[rows])
        return out

    def distillation(self, teacher: nn.Module) -> Loss:
        """‖out − the DEQ's‖² relative to the spread of the latter."""
        size = size_of(self.outputs[self.train], Answers(self.outputs, self.y, self.classifies).classifies)

        def loss(network: nn.Module, rows: Tensor) -> Tensor:
            if self.augment is None or not torch.is_grad_enabled():
                return ((self.of(network, rows) - self.outputs[rows]).square() / size).mean()
            theirs = None
            with torch.no_grad():
                made = self.augment(self.x[rows])
                with contextlib.suppress(NotConverged):
                    theirs = teacher(made)
            if theirs is None or not bool(theirs.isfinite().all()):  # samples that have no equilibrium teach nothing
                made, theirs = self.x[rows], self.outputs[rows]
            apart: Tensor = network(made) - theirs
            return (apart.square() / size).mean()

        return loss

    def task(self) -> Loss:
        """The usual loss on y; of several numbers, each relative to its own spread."""
        y = self.y
        assert y is not None
        several = y.is_floating_point() and y.ndim > 1 and y.shape[-1] > 1
        size = spread(y[self.train].double()).sqrt().to(y) if several else None

        def loss(network: nn.Module, rows: Tensor) -> Tensor:
            out, wanted = self.of(network, rows), y[rows]
            classes = not wanted.is_floating_point()
            pair = (out.flatten(0, -2), wanted.flatten()) if classes else (out.reshape(wanted.shape), wanted)
            if size is not None:
                pair = pair[0] / size, pair[1] / size
            found: Tensor = usual_loss(*pair)
            return found

        return loss


def check_finite(outputs: Tensor, evaluations: int) -> None:
    """Raise `NotConverged` where a DEQ's outputs are NaN or infinite: there is nothing to compare with, or to learn from."""
    wrong = int((~outputs.isfinite()).reshape(len(outputs), -1).any(1).sum())
    if wrong:
        raise NotConverged(
            f"The DEQ's outputs are not finite for {wrong} of {len(outputs)} samples: its map diverges there. Leave these "
            "samples out, or give the DEQ another solver.",
            residual=float("nan"),
            steps=evaluations,
        )
