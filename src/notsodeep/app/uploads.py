"""Uploaded data: read within limits and kept in memory, never on disk."""

from __future__ import annotations

import binascii
import secrets
import threading
import unicodedata
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from notsodeep.arrays import samples
from notsodeep.data.tables import (
    LABEL_NAMES,
    READERS,
    Limits,
    Source,
    Table,
    admit,
    bad_cell,
    check_size,
    csv_columns,
    label_column,
)
from notsodeep.data.targets import labels_of_file
from notsodeep.errors import BadInput

__all__ = ["LIMITS", "Limits", "Shelf", "Uploaded", "decode", "read_upload"]

_NAME = 40  # characters
_PREFIX = 200  # characters: data:, a media type with its parameters, ;base64,

LIMITS = Limits()


@dataclass(frozen=True, eq=False)
class Uploaded:
    """Samples (n, p), float64, and classes 0 … K − 1 (n,), int64, or None; a description, and the name of the file."""

    x: Tensor
    y: Tensor | None
    description: str
    name: str
    classes: tuple[str, ...] | None = None
    """The name of class k is classes[k]."""

    @property
    def nbytes(self) -> int:
        return self.x.nbytes + (0 if self.y is None else self.y.nbytes)


def decode(data_url: str, limits: Limits = LIMITS) -> bytes:
    """The bytes of a data URL, ``data:text/csv;base64,…``, by which a browser sends a file."""
    if not isinstance(data_url, str):
        raise BadInput("The upload did not arrive as a file; choose it again.")
    head, base64, _ = data_url[:_PREFIX].partition(";base64,")
    if not base64 or not head.startswith("data:"):
        raise BadInput("The upload did not arrive as a file (data:…;base64,…); choose it again.")
    start = len(head) + len(base64)
    if len(data_url) - start > 4 * ((limits.bytes + 2) // 3):
        raise BadInput(_too_large("The file", 3 * (len(data_url) - start) // 4, limits))
    try:
        if (len(data_url) - start) % 4 or data_url.endswith("==="):
            raise ValueError("padding")  # the strict mode does not check it
        return binascii.a2b_base64(data_url[start:], strict_mode=True)
    except ValueError as error:
        raise BadInput("The upload arrived damaged: it is not base64. Choose the file again.") from error


def read_upload(name: str, content: bytes, limits: Limits = LIMITS) -> Uploaded:
    """The data of a .npy file, or of a .csv file (commas, semicolons or tabs; with or without names; classes in a last column
    named label, y, class or target). A `BadInput` is worded for the page, next to the field."""
    shown = _clean(name)
    suffix = shown[shown.rfind(".") :].lower() if "." in shown else ""
    if suffix not in (".csv", ".npy"):
        raise BadInput(f"{shown!r} is neither a .csv nor a .npy file; save the data as one of them.")
    if not content:
        raise BadInput(f"{shown!r} is empty.")
    if len(content) > limits.bytes:
        raise BadInput(_too_large(repr(shown), len(content), limits))
    (array, inside), labels = _read(suffix, admit(content, suffix, shown, limits))
    x = _usable(array, shown, limits)
    description = f"{shown}, {x.shape[0]} samples × {x.shape[1]} features"
    if inside is None:
        return Uploaded(x, None, description, shown)
    y, names = _classes(*labels_of_file(inside, f"Column {labels!r} of {shown!r}"), limits)
    what = f"{labels!r} is left out, as it holds no classes" if y is None else f"{len(names or ())} classes"
    return Uploaded(x, y, f"{description}, {what}", shown, names)


def _too_large(what: str, size: int, limits: Limits) -> str:
    return f"{what} has {size} bytes; at most {limits.bytes} ({limits.bytes / 2**20:.0f} MiB) are taken. Use a part of it."


def _clean(name: str) -> str:
    """The last part of a path, in letters, digits and a few signs, shortened before the suffix."""
    last = unicodedata.normalize("NFC", str(name)[-4 * _NAME :]).replace("\\", "/").rpartition("/")[2]
    kept = "".join(sign for sign in last if sign.isalnum() or sign in " ._-+()").strip()
    stem, dot, suffix = kept.rpartition(".")
    if not dot or len(suffix) > 8:
        stem, dot, suffix = kept, "", ""
    stem = stem.strip(" .")
    stem = stem if len(stem) <= _NAME else f"{stem[:_NAME]}…"
    return f"{stem or 'upload'}{dot}{suffix}"


def _read(suffix: str, source: Source) -> tuple[Table, str | None]:
    """The table, and the name of its column of labels."""
    try:
        labels = label_column(csv_columns(source), source.name) if suffix == ".csv" else None
        return READERS[suffix](source, labels), labels
    except BadInput:
        raise
    except Exception as error:  # readers fail in many ways
        cell = bad_cell(error)
        if cell is None:
            raise BadInput(f"{source.name!r} cannot be read as {suffix}: it is damaged, or another kind of file.") from error
        what, row, column = cell
        raise BadInput(
            f"{source.name!r}: row {row}, column {column} (counted from 0) holds {what}, no number (write 0.5, not 0,5). Only "
            f"a last column named {', '.join(LABEL_NAMES)} may hold words.",
            row=row,
            column=column,
        ) from error


def _usable(array: np.ndarray[Any, Any], name: str, limits: Limits) -> Tensor:
    """Samples (n, p) in float64: finite, within the limits, and not all the same."""
    rows, columns = array.shape
    check_size(limits, rows, columns, name)
    with np.errstate(over="ignore"):  # too large becomes infinite, which is reported below
        array = array.astype(np.float64, order="C", copy=False)
    wrong = ~np.isfinite(array)
    if wrong.any():
        row, column = divmod(int(wrong.argmax()), columns)
        raise BadInput(
            f"{name!r}: row {row}, column {column} (counted from 0) is {array[row, column]}; {wrong.sum()} cells in all are "
            "NaN or infinite. Drop or fill these rows.",
            row=row,
            column=column,
        )
    x = samples(torch.from_numpy(array), repr(name))
    if torch.equal(x, x[:1].expand_as(x)):
        raise BadInput(f"All {len(x)} samples of {name!r} are the same, so there is nothing to compare; use data that vary.")
    return x


def _classes(y: Tensor, names: tuple[str, ...] | None, limits: Limits) -> tuple[Tensor, tuple[str, ...]] | tuple[None, None]:
    """Classes 0 … K − 1 and their names; None if the labels are real numbers, or too many."""
    if y.is_floating_point():
        return None, None
    values, codes = torch.unique(y, return_inverse=True)
    if len(values) > limits.classes:
        return None, None
    return codes, tuple(map(str, values.tolist())) if names is None else names


class Shelf:
    """The uploads of a server's visitors, each under a token that cannot be guessed; the least recently used are dropped."""

    def __init__(self, most: int = 16, most_bytes: int = 400_000_000) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._kept: OrderedDict[str, Uploaded] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, uploaded: Uploaded) -> str:
        """Keep an upload, and return its token."""
        if uploaded.nbytes > self._most_bytes:
            raise BadInput(
                f"{uploaded.name!r} takes {uploaded.nbytes} bytes; at most {self._most_bytes} are kept. Use a part of it."
            )
        token = secrets.token_urlsafe(24)
        with self._lock:
            self._kept[token] = uploaded
            while len(self._kept) > self._most or sum(kept.nbytes for kept in self._kept.values()) > self._most_bytes:
                self._kept.popitem(last=False)
        return token

    def get(self, token: str) -> Uploaded | None:
        """The upload of a token; None if it is unknown or dropped."""
        with self._lock:
            if not isinstance(token, str) or token not in self._kept:
                return None
            self._kept.move_to_end(token)
            return self._kept[token]
