"""Kernels of infinitely wide networks: exact, structured as low rank plus diagonal, and stored on disc."""

from typing import TYPE_CHECKING

from notsodeep._lazy import lazy

if TYPE_CHECKING:
    from notsodeep.kernels.compare import best_scaled_gap as best_scaled_gap
    from notsodeep.kernels.empirical import EmpiricalKernels as EmpiricalKernels
    from notsodeep.kernels.exact.kernels import (
        ExactKernels as ExactKernels,
        KernelTile as KernelTile,
        kernel_tiles as kernel_tiles,
    )
    from notsodeep.kernels.exact.operator import TiledKernel as TiledKernel
    from notsodeep.kernels.exact.preconditioners import (
        Nystrom as Nystrom,
        Plain as Plain,
        Sharp as Sharp,
        SharpNystrom as SharpNystrom,
    )
    from notsodeep.kernels.names import Kernel as Kernel
    from notsodeep.kernels.stored.write import WrittenKernels as WrittenKernels, write_kernels as write_kernels
    from notsodeep.kernels.structured.fit import StreamedFit as StreamedFit, streamed_fit as streamed_fit
    from notsodeep.kernels.structured.sharp import SharpStatistics as SharpStatistics, sharp_entries as sharp_entries
    from notsodeep.linalg.low_rank import LowRankPlusDiagonal as LowRankPlusDiagonal

__getattr__, __dir__, __all__ = lazy(__name__)
