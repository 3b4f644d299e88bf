"""Uploaded data: parsed as data only, within limits, kept in memory only."""

from __future__ import annotations

import binascii
import io
import re
import secrets
import threading
import unicodedata
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from notsodeep.app.limits import LIMITS, Limits, admit_csv, admit_npy, within
from notsodeep.arrays import samples
from notsodeep.data.labels import encoded
from notsodeep.data.tables import READERS, Source, Table, csv_columns
from notsodeep.errors import BadInput

__all__ = ["LIMITS", "Limits", "Shelf", "Uploaded", "decode", "read_upload"]

_LABELS = ("label", "y", "class", "target")
_NAME = 40  # characters
_PREFIX = 200  # characters: data:, a media type with its parameters, ;base64,


@dataclass(frozen=True, eq=False)
class Uploaded:
    """Samples (n, p), float64; classes 0 … K − 1 (n,), int64, or none; what they are; the file's name, for show."""

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
    """The bytes of ``data:text/csv;base64,…``, which is how a browser hands over a file."""
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
            raise ValueError("padding")  # which the strict mode does not count
        return binascii.a2b_base64(data_url[start:], strict_mode=True)
    except ValueError as error:
        raise BadInput("The upload arrived damaged: it is no base64. Choose the file again.") from error


def read_upload(name: str, content: bytes, limits: Limits = LIMITS) -> Uploaded:
    """The data of a .csv file (commas, semicolons or tabs; with or without names; classes in a last column named label, y,
    class or target) or of a .npy file; `BadInput` says, in words for beside the field, why there are none."""
    shown = _clean(name)
    suffix = shown[shown.rfind(".") :].lower() if "." in shown else ""
    if suffix not in (".csv", ".npy"):
        raise BadInput(f"{shown!r} is neither a .csv nor a .npy file; save the data as one of them.")
    if not content:
        raise BadInput(f"{shown!r} is empty.")
    if len(content) > limits.bytes:
        raise BadInput(_too_large(repr(shown), len(content), limits))
    if suffix == ".npy":
        admit_npy(content, shown, limits)
        source = Source(io.BytesIO(content), shown)
    else:
        source = Source(io.BytesIO(content), shown, admit_csv(content, shown, limits))
    (array, inside), labels = _read(suffix, source)
    x = _usable(array, shown, limits)
    description = f"{shown}, {x.shape[0]} samples × {x.shape[1]} features"
    if inside is None:
        return Uploaded(x, None, description, shown)
    y, names = _classes(*encoded(inside, f"Column {labels!r} of {shown!r}"), limits)
    what = f"{labels!r} is left out, as it holds no classes" if y is None else f"{len(names or ())} classes"
    return Uploaded(x, y, f"{description}, {what}", shown, names)


def _too_large(what: str, size: int, limits: Limits) -> str:
    return (
        f"{what} has {size} bytes; at most {limits.bytes} ({limits.bytes / 2**20:.0f} MiB) are taken. Use a part of it."
    )


def _clean(name: str) -> str:
    """The last part of a path in letters, digits and a few signs, shortened before the suffix."""
    last = unicodedata.normalize("NFC", str(name)[-4 * _NAME :]).replace("\\", "/").rpartition("/")[2]
    kept = "".join(sign for sign in last if sign.isalnum() or sign in " ._-+()").strip()
    stem, dot, suffix = kept.rpartition(".")
    if not dot or len(suffix) > 8:
        stem, dot, suffix = kept, "", ""
    stem = stem.strip(" .")
    stem = stem if len(stem) <= _NAME else f"{stem[:_NAME]}…"
    return f"{stem or 'upload'}{dot}{suffix}"


def _label_column(columns: Sequence[str] | int, name: str) -> str | None:
    """The name of the last column if it says that it holds labels."""
    columns = [] if isinstance(columns, int) else list(columns)
    names = [column.lower() for column in columns]
    elsewhere = next((i for i, column in enumerate(names[:-1]) if column in _LABELS and column != "y"), None)
    if elsewhere is not None:  # as a feature it would give the classes away, and nobody would see it
        raise BadInput(
            f"{name!r} has the column {columns[elsewhere]!r} before its last one, where labels are looked for. Move it to the "
            "end; or rename it, if it is a feature."
        )
    if not names or names[-1] not in _LABELS:
        return None
    if columns[-1] in columns[:-1]:
        raise BadInput(f"{name!r} has two columns {columns[-1]!r}; rename or remove one of them.")
    return columns[-1]


def _read(suffix: str, source: Source) -> tuple[Table, str | None]:
    """The table, and the name of the column that holds its labels."""
    try:
        labels = _label_column(csv_columns(source), source.name) if suffix == ".csv" else None
        return READERS[suffix](source, labels), labels
    except BadInput:
        raise
    except Exception as error:  # each reader fails in its own ways, and all mean this
        cell = re.match(r"could not convert string (.{1,120}) to float64 at row (\d+), column (\d+)", str(error))
        if cell is None:
            raise BadInput(
                f"{source.name!r} cannot be read as {suffix}: it is damaged, or another kind of file."
            ) from error
        what, row, column = cell[1], int(cell[2]), int(cell[3]) - 1
        raise BadInput(
            f"{source.name!r}: row {row}, column {column} (counted from 0) holds {what}, no number (write 0.5, not 0,5). Only "
            f"a last column named {', '.join(_LABELS)} may hold words.",
            row=row,
            column=column,
        ) from error


def _usable(array: np.ndarray[Any, Any], name: str, limits: Limits) -> Tensor:
    """(n, p) in float64, finite, within the limits, and not one sample again and again."""
    rows, columns = array.shape
    within(limits, rows, columns, name)
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is told so
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
        raise BadInput(
            f"All {len(x)} samples of {name!r} are the same, so there is nothing to compare; use data that vary."
        )
    return x


def _classes(
    y: Tensor, names: tuple[str, ...] | None, limits: Limits
) -> tuple[Tensor, tuple[str, ...]] | tuple[None, None]:
    """Classes 0 … K − 1 and their names; none where the labels are real numbers, or too many to be classes."""
    if y.is_floating_point():
        return None, None
    values, codes = torch.unique(y, return_inverse=True)
    if len(values) > limits.classes:
        return None, None
    return codes, tuple(map(str, values.tolist())) if names is None else names


class Shelf:
    """The uploads of one server's visitors, each under a token that nobody can guess; the least recently used are forgotten."""

    def __init__(self, most: int = 16, most_bytes: int = 400_000_000) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._kept: OrderedDict[str, Uploaded] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, uploaded: Uploaded) -> str:
        """The token that gets it back."""
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
        """The upload of this token, unless there is none or it is forgotten."""
        with self._lock:
            if not isinstance(token, str) or token not in self._kept:
                return None
            self._kept.move_to_end(token)
            return self._kept[token]
