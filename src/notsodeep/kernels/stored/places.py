"""The files and folders of a store: each of its kind, or BadInput. To read a pipe would be to wait for ever."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from notsodeep.errors import BadInput

AGAIN = "The call that wrote the kernels, made again, computes what is damaged anew."
_REMOVE = "Remove it; the call that wrote the kernels, made again, then computes what belongs there."


def check_file(path: Path, what: str, remedy: str = _REMOVE) -> None:
    """Raise BadInput where something is there that is no file: a folder, a pipe, or a link to nowhere or to itself."""
    if os.path.lexists(path) and not os.path.isfile(path):
        raise BadInput(f"{str(path)!r} is no file, where {what} of the kernels should be. {remedy}")


def check_array(folder: Path) -> None:
    """Raise BadInput unless the folders of an array are folders, and its description is a file."""
    for each in (folder, folder / "c"):
        if os.path.lexists(each) and not os.path.isdir(each):
            raise _no_folder(str(each), "an array" if each == folder else "chunks")
    check_file(folder / "zarr.json", "the description of an array")


def check_chunks(folder: Path, depth: int = 2) -> None:
    """Raise BadInput unless the chunks in a folder are files in folders."""
    if not folder.is_dir():
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.isdigit():
                if depth == 1 and not _is(entry, folder=False):
                    check_file(Path(entry.path), "a chunk")
                elif depth > 1 and not _is(entry, folder=True):
                    raise _no_folder(entry.path, "chunks")
                elif depth > 1:
                    check_chunks(Path(entry.path), depth - 1)


def _is(entry: os.DirEntry[str], folder: bool) -> bool:
    """Known from the listing, mostly: `os.path.isfile` would ask the disc for each of a million chunks."""
    try:
        return entry.is_dir() if folder else entry.is_file()
    except OSError:  # a loop of links
        return False


def remove(path: Path) -> None:
    """Remove what is there, whatever it is and as far as that is possible."""
    if os.path.isdir(path) and not os.path.islink(path):
        remove_folder(path)
    else:
        with suppress(OSError):
            path.unlink()


def remove_folder(path: Path) -> None:
    """Remove a folder, and nothing else: of a pipe, `shutil.rmtree` would wait for someone to write."""
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)


def _no_folder(path: str, what: str) -> BadInput:
    return BadInput(f"{path!r} is no folder, where {what} of the kernels should be. {_REMOVE}")


def cannot_read(path: Path, error: OSError) -> BadInput:
    """The `BadInput` to raise after `error` in reading `path`."""
    return BadInput(f"{str(path)!r} {unreadable(error)}. {AGAIN}")


def unreadable(error: OSError) -> str:
    """The end of a sentence on a file."""
    return f"cannot be read ({error.strerror or error})"
