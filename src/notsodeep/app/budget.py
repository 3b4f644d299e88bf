"""What one computation may take, and what is said of one that was stopped."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """Seconds of one computation, from when it begins, and the bytes that it may add to the memory of its process."""

    seconds: float = 30.0
    memory: int = 2 * 2**30

    @property
    def too_long(self) -> OverBudget:
        return OverBudget(
            f"This took longer than the {self.seconds:g} s that one computation may take here, and was stopped.",
            "--seconds",
        )

    @property
    def too_large(self) -> OverBudget:
        megabytes = f"{self.memory / 2**20:.0f} MiB"
        return OverBudget(
            f"This needs more than the {megabytes} that one computation may take here, and was stopped.", "--memory"
        )


class Stopped(Exception):
    """A computation that has no answer though nothing is wrong with its numbers: the sentence says what happened to it."""


class OverBudget(Stopped):
    """Stopped as it took too much; `option` of `notsodeep explore` allows more."""

    def __init__(self, sentence: str, option: str) -> None:
        super().__init__(sentence, option)
        self.sentence, self.option = sentence, option

    def __str__(self) -> str:
        return self.sentence


class Departed(Exception):
    """Nobody waits for this answer any more."""
