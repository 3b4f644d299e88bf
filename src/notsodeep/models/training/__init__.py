"""Training networks: the loop, its checkpoints, readouts, and comparisons at equal cost."""

from typing import TYPE_CHECKING

from notsodeep._lazy import lazy

if TYPE_CHECKING:
    from notsodeep.models.training.batches import Batches as Batches
    from notsodeep.models.training.fit import History as History

__getattr__, __dir__, __all__ = lazy(__name__)
