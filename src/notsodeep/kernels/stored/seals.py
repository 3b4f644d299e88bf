"""Whether the bytes of a chunk are those that were written, for this place of these kernels.

A chunk ends with the CRC-32C of its other bytes: a codec of Zarr's own, which every reader of Zarr checks. It finds flipped
bits, but not a whole chunk in a wrong place. So a tile's mark holds a seal of each of its chunks: a checksum over that CRC, the
kernel, the place and what the store says that it holds. Checksums are against accidents; whoever wants to forge one can.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from notsodeep.errors import BadInput

SUM_BYTES = 4  # a CRC-32C, at the end of a chunk
AGAIN = "The call that wrote the kernels, made again, computes what is damaged anew."

Index = tuple[int, int]
"""Of a tile or a chunk: which block of rows, and which of columns."""


def seal(about: Mapping[str, Any], kernel: str, chunk: Index, crc: bytes) -> int:
    """The checksum of a chunk's own checksum together with whose it is; never 0, which stands for none."""
    whose = json.dumps([dict(about), kernel, list(chunk)], sort_keys=True)
    return zlib.crc32(crc, zlib.crc32(whose.encode())) or 1


def last_bytes(path: Path) -> bytes:
    """The checksum that a chunk on the disc ends with."""
    with path.open("rb") as file:
        file.seek(-SUM_BYTES, 2)
        return file.read()


def fault(content: npt.NDArray[np.uint8] | None, size: int, wanted: int, whose: tuple[Any, str, Index]) -> str | None:
    """What is wrong with the bytes of a chunk, as the end of a sentence; None where nothing is.

    Args:
        content: The chunk's bytes; None where there is no such file.
        size: How many there should be.
        wanted: Its seal, in the mark of the tile.
        whose: What the store says of itself, the kernel, and the place.
    """
    if content is None:
        return "is gone"
    if len(content) != size:
        return f"has {len(content)} bytes instead of {size}"
    crc = content[-SUM_BYTES:].tobytes()
    if _crc32c(content[:-SUM_BYTES]) != crc:
        return "has other bits than were written (its checksum does not match)"
    if seal(*whose, crc) != wanted:
        return (
            "is whole, but not the chunk that was written here: it is from another place or run, or its mark is damaged"
        )
    return None


def _crc32c(content: npt.NDArray[np.uint8]) -> bytes:
    try:
        import google_crc32c  # what Zarr computes it with
    except ImportError:
        raise BadInput("Kernels in a Zarr group need zarr: pip install 'notsodeep[dask]'.") from None
    return int(google_crc32c.value(content)).to_bytes(SUM_BYTES, "little")
