"""From a DEQ to its explicit twin."""

from typing import TYPE_CHECKING

from notsodeep._lazy import lazy

if TYPE_CHECKING:
    from notsodeep.matching.result import Design as Design, Measured as Measured

__getattr__, __dir__, __all__ = lazy(__name__)
