"""Writing results: whole files or none."""

from __future__ import annotations

import glob
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from notsodeep.errors import BadInput


def output_folder(path: Path) -> Path:
    """The folder, made if it is not there; `BadInput` if it cannot be."""
    refuse_file(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"Cannot make the folder {str(path)!r}: {error.strerror}.") from error
    return path


def refuse_file(path: Path) -> None:
    """`BadInput` where a folder is wanted and a file is in its place."""
    if path.exists() and not path.is_dir():
        raise BadInput(f"{str(path)!r} is a file; name a folder.")


def write_whole(path: Path, write: Callable[[Path], Any]) -> Path:
    """Call `write` on a temporary file beside `path` and move it there when it is complete."""
    temporary: Path | None = None
    if path.exists() and not path.is_file():
        raise BadInput(f"{str(path)!r} is no file, and is not replaced by one; name a file.")
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
        os.close(handle)
        temporary = Path(name)
        write(temporary)
        temporary.chmod(0o644)
        _flush(temporary)
        temporary.replace(path)
    except OSError as error:
        raise BadInput(f"Cannot write {str(path)!r}: {error.strerror}.") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return path


def _flush(path: Path) -> None:
    """To the disc itself: a file that is moved before it is written would be a whole name with half a content after a crash."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_leftovers(path: Path) -> None:
    """Unfinished files of `write_whole` for this path, as a killed process leaves them."""
    for leftover in path.parent.glob(f".{glob.escape(path.stem)}-????????{glob.escape(path.suffix)}"):
        leftover.unlink(missing_ok=True)


def write_array(path: Path, array: Tensor) -> Path:
    return write_whole(path, lambda to: np.save(to, array.cpu().numpy()))


def write_columns(path: Path, columns: dict[str, Tensor]) -> Path:
    """A CSV of columns of one length, with their names."""
    table = np.column_stack([column.cpu().numpy() for column in columns.values()])
    return write_whole(path, lambda to: np.savetxt(to, table, delimiter=",", header=",".join(columns), comments=""))


def write_json(path: Path, record: dict[str, Any]) -> Path:
    return write_whole(
        path,
        lambda to: to.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", "utf-8", "surrogateescape"),
    )
