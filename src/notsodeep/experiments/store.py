"""Records on disk: one line of JSON each, written when it is computed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from notsodeep.errors import BadInput
from notsodeep.experiments.record import Record
from notsodeep.runtime.files import output_folder

try:
    import fcntl
except ImportError:  # Windows has none
    fcntl = None  # type: ignore[assignment]


class Store:
    """The records of a run, in FOLDER/records/L1.jsonl, L2.jsonl …

    A line is written in one go and flushed to the disc, so a killed run leaves at most half a line at the end, which is
    overwritten by the next record. Where a computation was recorded twice, the later one counts.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)

    def path(self, experiment: str) -> Path:
        return self.folder / "records" / f"{experiment}.jsonl"

    def experiments(self) -> list[str]:
        """Those that have a file here."""
        return sorted(path.stem for path in (self.folder / "records").glob("*.jsonl"))

    def records(self, experiment: str) -> list[Record]:
        """In the order in which they were first written."""
        path = self.path(experiment)
        if not path.is_file():
            return []
        whole, _ = _whole_lines(path.read_bytes())
        found: dict[str, Record] = {}
        for number, line in enumerate(whole.split(b"\n")[:-1], start=1):
            try:
                record = Record.from_line(line.decode())
                found[record.key] = record
            except (ValueError, RecursionError) as error:
                raise BadInput(
                    f"{str(path)!r}, line {number}, is not a record. Remove that line, or the file, and it is computed anew."
                ) from error
        return list(found.values())

    def add(self, record: Record) -> None:
        path = self.path(record.experiment)
        output_folder(path.parent)
        with open(path, "ab+") as file, _alone(file):
            file.seek(0)
            _, rest = _whole_lines(file.read())
            if rest:  # half a line of a run that was killed
                file.truncate(file.tell() - rest)
            file.write(record.to_line().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def _alone(file: IO[bytes]) -> Iterator[None]:
    """While no other process writes to the file: half a line may be one that it is writing."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX)  # given back when the file is closed
    yield


def _whole_lines(content: bytes) -> tuple[bytes, int]:
    """The lines that have an end, and how many bytes come after them."""
    end = content.rfind(b"\n") + 1
    return content[:end], len(content) - end
