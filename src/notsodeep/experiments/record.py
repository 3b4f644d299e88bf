"""One computation of an experiment: what was asked, what came out, and where."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

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
