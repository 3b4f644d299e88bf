"""The files of known data sets: found in your folders or in the cache, checked by their MD5 sums, or downloaded."""

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

from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn

from notsodeep.errors import BadInput
from notsodeep.runtime.files import output_folder, write_whole
from notsodeep.runtime.progress import bar

_TIMEOUT = 30.0  # seconds without an answer, for the connection and for each block
_BLOCK = 2**16  # bytes
_LARGEST = 2**30  # bytes, several times the largest set: a server that never stops must not fill the disk
_KNOWN: dict[tuple[str, int, int], str] = {}
"""The sums of files by path, size and time of change."""


@dataclass(frozen=True)
class StoredFile:
    """A file of a data set: its path below a data folder, its MD5 sum, and its addresses."""

    path: str
    md5: str
    urls: tuple[str, ...] = ()
    made_by: str = ""
    """The command that computes the file. If you ran it yourself, `<path>.md5` next to the file holds the right sum."""


@dataclass(frozen=True)
class Archive:
    """A tar file; its members are named by their paths below the folder of the tar file."""

    file: StoredFile
    members: tuple[StoredFile, ...]


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/notsodeep, or ~/.cache/notsodeep: the folder for downloaded and computed files."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "notsodeep"


def search_folders() -> list[Path]:
    """The folders of $NOTSODEEP_DATA, in order, then the cache."""
    named = os.environ.get("NOTSODEEP_DATA", "").split(os.pathsep)
    return [Path(os.path.expanduser(folder)) for folder in named if folder.strip()] + [cache_folder()]


def obtain(files: Sequence[StoredFile], name: str, download: bool = True, archive: Archive | None = None) -> list[Path]:
    """Paths of `files`, each found and checked, or downloaded into the cache.

    Args:
        files: The files that are needed.
        name: What errors call the data set.
        download: Whether missing files may be downloaded.
        archive: The tar file to download in place of single files.

    Returns:
        One path per file.

    Raises:
        BadInput: For missing files, naming all of them, or for the first damaged one, which is never replaced.
    """
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
    path = next((path for folder in search_folders() if (path := folder / file.path).is_file()), None)
    if path is None:
        return None
    expected, own = file.md5, path.with_name(path.name + ".md5")
    if file.made_by and own.is_file():
        expected = own.read_text(encoding="utf-8", errors="replace").partition(" ")[0].strip()
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
    return path


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
    """Download the archive, unpack all its members, which later calls may need, and remove it."""
    path = cache_folder() / archive.file.path
    # A whole archive in the cache was left by a run that was killed while unpacking.
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
    """Write the members named in `sums`, with their MD5 sums, below `folder`: each whole or not at all. Other members are
    ignored, and files that exist already are kept."""
    wanted = {name for name in sums if not (folder / name).exists()}
    try:
        with tarfile.open(archive) as members:
            for member in members:
                # Exact names only, and no links: the archive cannot choose where we write.
                if member.name in wanted and member.isfile():
                    target = folder / member.name
                    output_folder(target.parent)
                    write_whole(target, partial(_extract, members, member, sums[member.name]))
                    wanted.remove(member.name)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise BadInput(f"{str(archive)!r} cannot be unpacked: {error}. Delete it, and it is fetched again.") from error
    if wanted:
        raise BadInput(f"{str(archive)!r} does not hold {', '.join(sorted(wanted))}.")


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, md5: str, to: Path) -> None:
    content = archive.extractfile(member)
    assert content is not None  # a file, not a link
    with to.open("wb") as stream:
        shutil.copyfileobj(content, stream)
    found = md5_of(to)
    if found != md5:
        name = PurePosixPath(member.name).name
        raise BadInput(f"The archive's {name!r} has the MD5 sum {found}, expected {md5}; it was not kept.")


def md5_of(path: Path) -> str:
    """The MD5 sum of a file, remembered until its size or time of change differs."""
    try:
        state = path.stat()
        key = (str(path), state.st_size, state.st_mtime_ns)
        if key not in _KNOWN:
            with path.open("rb") as stream:
                # Against damage, not forgery: MD5 is the sum that the data sets' homes publish.
                _KNOWN[key] = hashlib.file_digest(stream, partial(hashlib.md5, usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise BadInput(f"Cannot read {str(path)!r}: {error.strerror}.") from error
    return _KNOWN[key]


class _Failed(Exception):
    """One address did not give the file; the next one may."""


def fetch(urls: Sequence[str], target: Path, md5: str, progress: bool = True) -> Path:
    """Download `target` from the first of `urls` that gives bytes with the sum `md5`; a partial file is never left."""
    output_folder(target.parent)
    failures = []
    for url in urls:
        try:
            return write_whole(target, partial(_stream, url, md5=md5, label=target.name, progress=progress))
        except _Failed as failure:
            failures.append(f"{url}: {failure}")
    raise BadInput(f"{target.name!r} could not be downloaded: {'; '.join(failures) or 'it has no address'}.", failures=failures)


def _opener() -> urllib.request.OpenerDirector:
    """An opener of http and https only; the default one also follows redirections to ftp and opens file:."""
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
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with response, to.open("wb") as stream, bar(*columns, shown=progress) as shown:
        length = response.headers.get("Content-Length", "")
        expected = int(length) if length.isdecimal() else None
        task = shown.add_task(label, total=expected)
        received = 0
        while block := _block(response):
            received += len(block)
            if received > _LARGEST:
                raise _Failed(f"more than {_LARGEST} bytes were sent; no set is that large")
            stream.write(block)
            shown.update(task, advance=len(block))
    if expected is not None and received != expected:
        raise _Failed(f"the connection ended after {received} of {expected} bytes")
    found = md5_of(to)
    if found != md5:
        raise _Failed(f"the {received} bytes sent have the MD5 sum {found}, expected {md5}")


def _block(response: http.client.HTTPResponse) -> bytes:
    # A function of its own, since an OSError of the write means a full disk, not a broken connection.
    try:
        return response.read(_BLOCK)
    except (OSError, http.client.HTTPException) as error:
        raise _Failed(_reason(error)) from error


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", "") or error or type(error).__name__)
