"""Downloading: whole files with the right sum, or none."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from notsodeep.data.files import output_folder, write_whole
from notsodeep.errors import BadInput
from notsodeep.numerics.progress import bar

_TIMEOUT = 30.0
"""Seconds without an answer, for the connection and for each block."""
_BLOCK = 2**16
_LARGEST = 2**30
"""Bytes; several times the largest set. A server that never stops must not fill the disk."""


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
