"""Where the files of the known sets are: your folders, the cache, or their public homes."""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from notsodeep.errors import BadInput
from notsodeep.runtime.files import output_folder, write_whole
from notsodeep.runtime.progress import bar

_KNOWN: dict[tuple[str, int, int], str] = {}
_TIMEOUT = 30.0
"""Seconds without an answer, for the connection and for each block."""
_BLOCK = 2**16
_LARGEST = 2**30
"""Bytes; several times the largest set. A server that never stops must not fill the disk."""


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


def unpack(archive: Path, sums: Mapping[str, str], folder: Path) -> None:
    """Write the members named in `sums` under `folder`, each whole and with the MD5 sum given. Nothing else is written,
    whatever the archive holds; a file that is already there stays as it is."""
    wanted = {name for name in sums if not (folder / name).exists()}
    try:
        with tarfile.open(archive) as members:
            for member in members:
                # A member of the exact name only, and no link: the archive cannot choose where we write.
                if member.name in wanted and member.isfile():
                    content = members.extractfile(member)
                    assert content is not None  # isfile() has said so
                    _write(content, folder / member.name, sums[member.name])
                    wanted.remove(member.name)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise BadInput(f"{str(archive)!r} cannot be unpacked: {error}. Delete it, and it is fetched again.") from error
    if wanted:
        raise BadInput(f"{str(archive)!r} does not hold {', '.join(sorted(wanted))}.")


def _write(content: IO[bytes], target: Path, md5: str) -> None:
    output_folder(target.parent)

    def copy(to: Path) -> None:
        with to.open("wb") as stream:
            shutil.copyfileobj(content, stream)
        with to.open("rb") as stream:
            found = hashlib.file_digest(stream, "md5").hexdigest()
        if found != md5:
            raise BadInput(f"The archive's {target.name!r} has the MD5 sum {found}, expected {md5}; it was not kept.")

    write_whole(target, copy)


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


class _Failed(Exception):
    """One address that did not give the file; the next one may."""


def fetch(urls: Sequence[str], target: Path, md5: str, progress: bool = True) -> Path:
    """The file at the first of `urls` that answers with the bytes of sum `md5`, moved to `target` once it is complete."""
    output_folder(target.parent)
    failures = []
    for url in urls:
        try:
            return write_whole(target, partial(_stream, url, md5=md5, label=target.name, progress=progress))
        except _Failed as failure:
            failures.append(f"{url}: {failure}")
    raise BadInput(
        f"{target.name!r} could not be downloaded: {'; '.join(failures) or 'it has no address'}.", failures=failures
    )


def _opener() -> urllib.request.OpenerDirector:
    """Opens http and https only: the usual opener also follows a redirection to ftp, and takes file:."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


def _stream(url: str, to: Path, md5: str, label: str, progress: bool) -> None:
    if not url.startswith(("http://", "https://")):
        raise _Failed("only http and https addresses are opened")
    try:
        response = _opener().open(url, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        raise _Failed(f"HTTP error {error.code} ({error.reason})") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _Failed(_reason(error)) from error
    with response, to.open("wb") as stream, _bar(progress) as shown:
        length = response.headers.get("Content-Length", "")
        expected = int(length) if length.isdecimal() else None
        task = shown.add_task(label, total=expected)
        received, digest = 0, hashlib.md5(usedforsecurity=False)
        while block := _block(response):
            received += len(block)
            if received > _LARGEST:
                raise _Failed(f"more than {_LARGEST} bytes were sent; no set is that large")
            digest.update(block)
            stream.write(block)
            shown.update(task, advance=len(block))
    if expected is not None and received != expected:
        raise _Failed(f"the connection ended after {received} of {expected} bytes")
    if digest.hexdigest() != md5:
        raise _Failed(f"the {received} bytes sent have the MD5 sum {digest.hexdigest()}, expected {md5}")


def _block(response: http.client.HTTPResponse) -> bytes:
    # Apart from the writing, so that a full disk is not taken for a broken connection.
    try:
        return response.read(_BLOCK)
    except (OSError, http.client.HTTPException) as error:
        raise _Failed(_reason(error)) from error


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", "") or error or type(error).__name__)


def _bar(shown: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return bar(*columns, shown=shown)
