"""Records of computations (settings, numbers, machine), the files that hold them, and which of them may be compared."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from notsodeep.errors import BadInput
from notsodeep.runtime.files import output_folder

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

_VERSIONS = ("torch", "numpy", "scipy", "scikit-learn")
_FIELDS = ("experiment", "config", "values", "seconds", "provenance")


@dataclass(frozen=True)
class Record:
    """One computation. `config` holds every setting, seed included: on one machine the same config gives the same `values`."""

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
        """The record of one line; raises ValueError where the line is not a record."""
        parts = json.loads(line, parse_constant=_no_constant)
        if not isinstance(parts, dict) or set(parts) != set(_FIELDS):
            raise ValueError("not a record")
        if not all(isinstance(parts[name], dict) for name in ("config", "values", "provenance")):
            raise ValueError("not a record")
        return cls(**parts)


def _no_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def key(experiment: str, config: dict[str, Any]) -> str:
    """Hash of an experiment's name and its settings, in any order: the identity of a computation."""
    text = json.dumps([experiment, config], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def provenance(device: torch.device) -> dict[str, Any]:
    """Versions of packages, machine, threads and time."""
    return {
        "versions": _versions(),
        "machine": machine(device),
        "threads": torch.get_num_threads(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def machine(device: torch.device) -> str:
    """Name of the processor: "NVIDIA H200", or "x86_64, 2 cores"."""
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


class Store:
    """The records of a run, in FOLDER/records/L1.jsonl, L2.jsonl …

    Each line is written at once and flushed to the disc. A killed run leaves at most half a line at the end, which the next
    record overwrites. Where a computation was recorded twice, the later record counts.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)

    def path(self, experiment: str) -> Path:
        return self.folder / "records" / f"{experiment}.jsonl"

    def experiments(self) -> list[str]:
        """Names of the experiments that have a file here."""
        return sorted(path.stem for path in (self.folder / "records").glob("*.jsonl"))

    def records(self, experiment: str) -> list[Record]:
        """The records of an experiment, in the order in which they were first written."""
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
        with open(path, "ab+") as file:
            if fcntl is not None:  # half a line may be one that another process is writing
                fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed
            file.seek(0)
            _, rest = _whole_lines(file.read())
            if rest:  # half a line of a run that was killed
                file.truncate(file.tell() - rest)
            file.write(record.to_line().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _whole_lines(content: bytes) -> tuple[bytes, int]:
    """The complete lines, and the number of bytes after them."""
    end = content.rfind(b"\n") + 1
    return content[:end], len(content) - end


def where(records: Iterable[Record], **config: Any) -> list[Record]:
    """The records with these settings."""
    return [record for record in records if config.items() <= record.config.items()]


def of_one_setting(records: Sequence[Record], names: Sequence[str]) -> list[Record]:
    """The records that agree with the latest one in these settings: numbers found under different ones do not mix."""

    def chosen(record: Record) -> tuple[str, ...]:
        return tuple(repr(record.config.get(name)) for name in ("revision", *names))

    return [record for record in records if chosen(record) == chosen(records[-1])]


def of_one_run(records: Sequence[Record], apart: Sequence[str], names: Sequence[str]) -> list[Record]:
    """`of_one_setting`, for each group of records that agree in the settings `apart`."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(repr(record.config.get(name)) for name in apart), []).append(record)
    return [record for group in groups.values() for record in of_one_setting(group, names)]


def in_one_run(records: Sequence[Record], apart: Sequence[str]) -> list[Record]:
    """The records that agree with the latest one in every setting but those named."""
    return of_one_setting(records, [name for name in records[-1].config if name not in apart]) if records else []
