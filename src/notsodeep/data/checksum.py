"""MD5 sums of files, each computed once."""

from __future__ import annotations

import hashlib
from pathlib import Path

from notsodeep.errors import BadInput

_KNOWN: dict[tuple[str, int, int], str] = {}


def md5_of(path: Path) -> str:
    """The file's MD5 sum, remembered until its size or time of change differs."""
    try:
        state = path.stat()
        key = (str(path), state.st_size, state.st_mtime_ns)
        if key not in _KNOWN:
            with path.open("rb") as stream:
                # A check against damage, not against forgery: it is the sum that the data sets' homes publish.
                _KNOWN[key] = hashlib.file_digest(stream, _md5).hexdigest()
    except OSError as error:
        raise BadInput(f"Cannot read {str(path)!r}: {error.strerror}.") from error
    return _KNOWN[key]


def _md5() -> hashlib._Hash:
    return hashlib.md5(usedforsecurity=False)
