"""Zarr, an extra: kernels are stored by it, and nothing else needs it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from notsodeep.errors import BadInput

SUM_BYTES = 4  # a CRC-32C, at the end of a chunk
_MISSING = "Kernels in a Zarr group need zarr: pip install 'notsodeep[dask]'."


def zarr() -> Any:
    """The library; raises BadInput where it is not installed."""
    try:
        import zarr
    except ImportError:
        raise BadInput(_MISSING) from None
    return zarr


def group(store: Any, mode: str, **options: Any) -> Any:
    """The group in `store`, of Zarr's third format: told so, Zarr reads no files of the second, which may be pipes.

    Args:
        store: A folder, or a store of Zarr's.
        mode: "r", "r+", "a" or "w".
        options: For `zarr.open_group`.

    Returns:
        The group.

    Raises:
        BadInput: Zarr is not installed.
    """
    return zarr().open_group(store, mode=mode, zarr_format=3, **options)


def crc32c(content: npt.NDArray[np.uint8]) -> bytes:
    """The checksum that Zarr's codec of this name puts behind `content`."""
    try:
        import google_crc32c  # what Zarr computes it with
    except ImportError:
        raise BadInput(_MISSING) from None
    return int(google_crc32c.value(content)).to_bytes(SUM_BYTES, "little")
