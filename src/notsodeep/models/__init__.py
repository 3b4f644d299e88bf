"""Networks as torch modules, and the compiler from a DEQ to an explicit network."""

from typing import TYPE_CHECKING

from notsodeep._lazy import lazy

if TYPE_CHECKING:
    from notsodeep.models.compiler.certificate import Certificate as Certificate
    from notsodeep.models.compiler.compile import Compiled as Compiled
    from notsodeep.models.compiler.frontier import Frontier as Frontier, Way as Way
    from notsodeep.models.export.onnx import to_onnx as to_onnx
    from notsodeep.models.universal import to_deq as to_deq, to_explicit as to_explicit
    from notsodeep.models.unrolled import Unrolled as Unrolled

__getattr__, __dir__, __all__ = lazy(__name__)
