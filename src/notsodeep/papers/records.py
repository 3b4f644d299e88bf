"""One computation of an experiment: what was asked, what came out, and where."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

import torch

from notsodeep.errors import BadInput
from notsodeep.runtime.files import output_folder

_VERSIONS = ("torch", "numpy", "scipy", "scikit-learn")
_FIELDS = ("experiment", "config", "values", "seconds", "provenance")


@dataclass(frozen=True)
class Record:
    """`config` holds every setting, the seed among them: the same config gives the same `values`, on the same machine."""

    experiment: str
    config: dict[str, Any]
    values: dict[str, Any]
    seconds: float
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return key(self.experiment, self.config)

    def to_line(self) -> str:
        return json.dumps(asdict(self), allow_nan=False)

    @classmethod
    def from_line(cls, line: str) -> Record:
        """The record of one line; ValueError where the line is not one."""
        parts = json.loads(line, parse_constant=_refuse)
        if not isinstance(parts, dict) or set(parts) != set(_FIELDS):
            raise ValueError("not a record")
        if not all(isinstance(parts[name], dict) for name in ("config", "values", "provenance")):
            raise ValueError("not a record")
        return cls(**parts)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def key(experiment: str, config: dict[str, Any]) -> str:
    """What a computation is known by: its experiment and its settings, in any order."""
    text = json.dumps([experiment, config], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def provenance(device: torch.device) -> dict[str, Any]:
    """Versions, machine and time."""
    return {
        "versions": _versions(),
        "machine": machine(device),
        "threads": torch.get_num_threads(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def machine(device: torch.device) -> str:
    """The processor that computes: "NVIDIA H200", or "x86_64, 2 cores"."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()}, {os.cpu_count()} cores"


@cache
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("notsodeep", *_VERSIONS):
        with suppress(PackageNotFoundError):  # run from its sources
            found[name] = version(name)
    return found


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
