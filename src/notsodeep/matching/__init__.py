"""From a DEQ to its explicit twin."""

from typing import TYPE_CHECKING

from notsodeep._lazy import lazy

if TYPE_CHECKING:
    from notsodeep.kernels.names import Match as Match
    from notsodeep.matching.fitted import Fitted as Fitted
    from notsodeep.matching.result import Candidate as Candidate, Design as Design, Measured as Measured, Optimum as Optimum

__getattr__, __dir__, __all__ = lazy(__name__)
