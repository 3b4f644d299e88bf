"""Where the files of the known sets are: your folders, the cache, or their public homes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from notsodeep.data.archive import unpack
from notsodeep.data.checksum import md5_of
from notsodeep.data.download import fetch
from notsodeep.errors import BadInput


@dataclass(frozen=True)
class StoredFile:
    """One file of a set: where it lies under a data folder, its MD5 sum, and where it comes from."""

    path: str
    md5: str
    urls: tuple[str, ...] = ()
    made_by: str = ""
    """The command that computes it. Such a file may be your own: a sum in `<path>.md5` beside it is then the right one."""


@dataclass(frozen=True)
class Archive:
    """A tar file that holds stored files, by their paths below its own folder."""

    file: StoredFile
    members: tuple[StoredFile, ...]


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/notsodeep, or ~/.cache/notsodeep: what is downloaded or computed goes here."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "notsodeep"


def search_folders() -> list[Path]:
    """The folders of $NOTSODEEP_DATA, in order, then the cache."""
    named = os.environ.get("NOTSODEEP_DATA", "").split(os.pathsep)
    return [Path(os.path.expanduser(folder)) for folder in named if folder.strip()] + [cache_folder()]


def obtain(files: Sequence[StoredFile], name: str, download: bool = True, archive: Archive | None = None) -> list[Path]:
    """The paths of `files`, each found and checked, or downloaded (from `archive`, if given) into the cache. `BadInput`
    names every file that is missing, or the first that is damaged; a damaged file is never replaced behind your back."""
    missing = [file for file in files if _find(file) is None]
    reason = ""
    if missing:
        try:
            _download(missing, download, archive)
        except BadInput as error:
            reason = str(error)
    found = [_find(file) for file in files]
    missing = [file for file, path in zip(files, found, strict=True) if path is None]
    if missing:
        raise _missing(missing, len(files), name, reason)
    return [path for path in found if path is not None]


def _find(file: StoredFile) -> Path | None:
    for folder in search_folders():
        path = folder / file.path
        if path.is_file():
            _check(path, file)
            return path
    return None


def _check(path: Path, file: StoredFile) -> None:
    expected = file.md5
    beside = path.with_name(path.name + ".md5")
    if file.made_by and beside.is_file():
        expected = beside.read_text(encoding="utf-8", errors="replace").partition(" ")[0].strip()
    found = md5_of(path)
    if found != expected:
        again = f"make it again: {file.made_by}" if file.made_by else "it is fetched again where that is possible"
        raise BadInput(
            f"{str(path)!r} is damaged, or another file: its {path.stat().st_size} bytes have the MD5 sum {found}, expected "
            f"{expected}. Delete it ({again}), or put the original there.",
            path=path,
            found=found,
            expected=expected,
        )


def _download(missing: Sequence[StoredFile], allowed: bool, archive: Archive | None) -> None:
    if not any(file.urls for file in missing) and archive is None:
        raise BadInput("no public address is known for them")
    if not allowed:
        raise BadInput("downloading was not allowed (download=False)")
    if os.environ.get("NOTSODEEP_OFFLINE", "") not in ("", "0"):
        raise BadInput("NOTSODEEP_OFFLINE is set")
    if archive is not None:
        _download_archive(archive)
    else:
        for file in missing:
            fetch(file.urls, cache_folder() / file.path, file.md5)


def _download_archive(archive: Archive) -> None:
    """Fetch it, unpack all its files (the next call may want the others), remove it."""
    path = cache_folder() / archive.file.path
    # One that is there and whole was left by a run that ended while unpacking.
    if not (path.is_file() and md5_of(path) == archive.file.md5):
        fetch(archive.file.urls, path, archive.file.md5)
    parent = PurePosixPath(archive.file.path).parent
    sums = {str(PurePosixPath(file.path).relative_to(parent)): file.md5 for file in archive.members}
    unpack(path, sums, path.parent)
    path.unlink(missing_ok=True)


def _missing(missing: Sequence[StoredFile], total: int, name: str, reason: str) -> BadInput:
    listed = ", ".join(f"{file.path} (MD5 {file.md5})" for file in missing)
    folders = " or ".join(map(str, search_folders()))
    made = {file.made_by for file in missing if file.made_by}
    return BadInput(
        f"{name} needs {total} file{'s' * (total > 1)}, and {len(missing)} "
        f"{'is' if len(missing) == 1 else 'are'} not there: {listed}. "
        + "".join(f"Make it with `{command}`, or get it elsewhere. " for command in made)
        + f"Put what is missing, under these names, into {folders} (NOTSODEEP_DATA names your own folders). "
        f"Not downloaded: {reason.rstrip('.')}.",
        missing=[file.path for file in missing],
        folders=search_folders(),
    )
