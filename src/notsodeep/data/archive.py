"""Taking named files out of a tar archive."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from notsodeep.data.files import output_folder, write_whole
from notsodeep.errors import BadInput


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
