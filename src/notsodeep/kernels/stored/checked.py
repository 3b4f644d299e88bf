"""Kernels read from a Zarr group, every chunk checked. Imported only where Zarr is installed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import LocalStore, WrapperStore

from notsodeep.errors import BadInput
from notsodeep.kernels.stored.description import whole_description
from notsodeep.kernels.stored.layout import found, of_kernel
from notsodeep.kernels.stored.library import group
from notsodeep.kernels.stored.places import AGAIN, cannot_read, check_file
from notsodeep.kernels.stored.store import KernelStore

_CHUNK = re.compile(r"(\w+)/c/(\d+)/(\d+)")


def open_checked(folder: Path, kernel: str) -> Any:
    """The array of a kernel in `folder`, for reading; a damaged chunk raises BadInput when it is read."""
    about = whole_description(folder)
    if kernel not in about["kernels"]:
        raise BadInput(f"{str(folder)!r} holds no kernel {str(kernel)!r}; it holds {', '.join(about['kernels'])}.")
    opened = group(_Checked(LocalStore(folder, read_only=True), KernelStore(folder, about)), "r")
    array = found(folder, opened, kernel, of_kernel(about))
    if array is None:
        raise BadInput(f"{str(folder / kernel)!r} is gone. {AGAIN}")
    return array


class _Checked(WrapperStore[LocalStore]):
    """The files of a folder. Zarr itself reads a missing chunk as NaN, and accepts one in a wrong place."""

    def __init__(self, store: LocalStore, kernels: KernelStore) -> None:
        super().__init__(store)
        self._kernels = kernels

    def _with_store(self, store: LocalStore) -> _Checked:
        return _Checked(store, self._kernels)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        chunk = _CHUNK.fullmatch(key)
        if chunk is None or chunk[1] not in self._kernels.about["kernels"]:
            return await super().get(key, prototype, byte_range)
        path = self._store.root / key
        check_file(path, "a chunk")
        try:
            found = await super().get(key, prototype)  # whole: Zarr asks for part of a chunk only where it has no checksum
        except OSError as error:
            raise cannot_read(path, error) from error
        content = None if found is None else found.as_numpy_array()
        wrong = self._kernels.fault(chunk[1], (int(chunk[2]), int(chunk[3])), content)
        if wrong is not None:
            raise BadInput(f"{str(path)!r} {wrong}. {AGAIN}")
        return found
