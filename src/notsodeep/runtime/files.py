"""Writing files: whole or not at all."""

from __future__ import annotations

import errno
import glob
import json
import os
import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from notsodeep.errors import BadInput

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_ROOM = 1 << 20  # bytes: with less left, a write that failed without a reason failed for lack of room


def output_folder(path: Path) -> Path:
    """The folder, created if necessary."""
    check_folder(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"Cannot make the folder {str(path)!r}: {error.strerror}.") from error
    return path


def check_folder(path: Path) -> None:
    """Raises BadInput if a file is in the place of a folder, or a link to nowhere or to itself."""
    if os.path.lexists(path) and not path.is_dir():
        raise BadInput(f"{str(path)!r} is {'a file' if path.exists() else 'a link that leads nowhere'}; name a folder.")


def write_whole(path: Path, write: Callable[[Path], Any]) -> Path:
    """Call `write` on a temporary file in the folder of `path`, and move it to `path` when it is complete."""
    temporary: Path | None = None
    if path.exists() and not path.is_file():
        raise BadInput(f"{str(path)!r} is not a file, and is not replaced by one; name a file.")
    try:
        temporary = _new_file(path)
        write(temporary)
        _flush(temporary)
        temporary.replace(path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return path


def _new_file(path: Path) -> Path:
    """An empty file in the folder of `path`, with the permissions of the file that it will replace, else those of the umask."""
    temporary = path.with_name(f".{path.stem}-{secrets.token_hex(4)}{path.suffix}")
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    with suppress(OSError):
        shutil.copymode(path, temporary)
    return temporary


def cannot_write(path: Path, error: OSError) -> BadInput:
    """The `BadInput` to raise after `error` in writing `path`. It names a full disc as such, also after NumPy, whose errors
    only say that too few bytes were written."""
    reason = f"{error.strerror or error or type(error).__name__}".rstrip(".")
    try:
        free = shutil.disk_usage(path if path.is_dir() else path.parent).free
    except OSError:
        return BadInput(f"Cannot write {str(path)!r}: {reason}.")
    if error.errno in _FULL or (error.errno is None and free < _NO_ROOM):
        return BadInput(
            f"Cannot write {str(path)!r}: the disc is full ({reason}; {free / 2**20:.1f} MiB are free). Make room there, or "
            "name another place.",
            free=free,
        )
    return BadInput(f"Cannot write {str(path)!r}: {reason}.")


def _flush(path: Path) -> None:
    """Write a file to the disc itself; after a crash, a file that was moved before could have half of its content."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_leftovers(path: Path) -> None:
    """Remove the unfinished files that a killed `write_whole` of this path left."""
    for leftover in path.parent.glob(f".{glob.escape(path.stem)}-????????{glob.escape(path.suffix)}"):
        leftover.unlink(missing_ok=True)


def write_array(path: Path, array: Tensor) -> Path:
    """Write a .npy file."""
    return write_whole(path, lambda to: _save(to, array.cpu().numpy()))


def _save(path: Path, values: npt.NDArray[Any]) -> None:
    # Given a file, NumPy writes past Python, and does not notice a disc that is full at the last moment.
    with path.open("wb") as file:
        np.lib.format.write_array(SimpleNamespace(write=file.write), values, allow_pickle=False)


def write_columns(path: Path, columns: dict[str, Tensor]) -> Path:
    """Write a CSV of named columns of one length."""
    table = np.column_stack([column.cpu().numpy() for column in columns.values()])
    return write_whole(path, lambda to: np.savetxt(to, table, delimiter=",", header=",".join(columns), comments=""))


def write_json(path: Path, record: dict[str, Any]) -> Path:
    return write_whole(
        path, lambda to: to.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", "utf-8", "surrogateescape")
    )
