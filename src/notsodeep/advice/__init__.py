"""Advice on a task: use a DEQ, the explicit network matched to it, or neither."""

from typing import TYPE_CHECKING

from notsodeep._lazy import lazy

if TYPE_CHECKING:
    from notsodeep.advice.advise import Advice as Advice
    from notsodeep.advice.evidence import Evidence as Evidence, LeftOut as LeftOut
    from notsodeep.advice.race import Race as Race, Runner as Runner

__getattr__, __dir__, __all__ = lazy(__name__)
