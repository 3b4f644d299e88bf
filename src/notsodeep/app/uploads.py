"""Uploaded data: parsed as data only, within limits, kept in memory only."""

from __future__ import annotations

import binascii
import io
import math
import re
import secrets
import threading
import unicodedata
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from notsodeep.arrays import samples
from notsodeep.data.readers import npy_header
from notsodeep.data.tables import READERS, Source, Table, csv_columns
from notsodeep.data.targets import labels_of_file
from notsodeep.errors import BadInput

__all__ = ["LIMITS", "Limits", "Shelf", "Uploaded", "decode", "read_upload"]

_LABELS = ("label", "y", "class", "target")
_NAME = 40  # characters
_PREFIX = 200  # characters: data:, a media type with its parameters, ;base64,
_NPY_HEADER = 1024  # bytes; numpy.save writes 118 for numbers
_CELL = 32  # characters a cell, on average: -1.2345678901234567e-308 and its delimiter are 25
_LAST_CELL = 100  # characters; labels become an array as wide as the longest
_SPARE_LINES = 1000  # blank ones and comments


@dataclass(frozen=True)
class Limits:
    """The most that is taken in; `entries` counts the cells, `classes` the different labels. And the fewest samples."""

    bytes: int = 20 * 2**20
    rows: int = 20_000
    columns: int = 4096
    entries: int = 4_000_000
    classes: int = 100
    fewest: int = 4


LIMITS = Limits()


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
    y, names = _classes(*labels_of_file(inside, f"Column {labels!r} of {shown!r}"), limits)
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


def within(limits: Limits, rows: int, columns: int, name: str) -> None:
    """`BadInput` if so many rows and columns are too much, or too few."""
    if rows < limits.fewest or columns < 1:
        raise BadInput(
            f"{name!r} holds {_short(f'{rows} × {columns}')} numbers; at least {limits.fewest} samples of a feature are needed."
        )
    if rows > limits.rows or columns > limits.columns or rows * columns > limits.entries:
        raise BadInput(
            f"{name!r} holds {_short(f'{rows} × {columns}')} numbers; at most {limits.rows} rows, {limits.columns} columns and "
            f"{limits.entries} numbers are taken. Use a part of it.",
            rows=rows,
            columns=columns,
        )


def admit_npy(content: bytes, name: str, limits: Limits) -> None:
    """`BadInput` unless this is a whole .npy file of real numbers, two axes, within the limits."""
    header = npy_header(io.BytesIO(content), _NPY_HEADER)
    if header is None:
        raise BadInput(f"{name!r} is no .npy file of numbers; write it with numpy.save.")
    shape, dtype, start = header
    if dtype.kind not in "fiub":
        raise BadInput(f"{name!r} holds {_short(str(dtype))}, not real numbers; save an array of floats or integers.")
    if any(length < 0 or isinstance(length, bool) for length in shape):
        raise BadInput(
            f"{name!r} declares the shape {_short(str(shape))}; lengths are numbers from 0 on. Write it with numpy.save."
        )
    if len(shape) != 2:
        raise BadInput(
            f"{name!r} holds an array of shape {_short(str(shape))}; expected (samples, features). Save x.reshape(len(x), -1)."
        )
    within(limits, *shape, name)
    declared, held = math.prod(shape) * dtype.itemsize, len(content) - start
    if declared != held:
        raise BadInput(f"{name!r} declares {declared} bytes of numbers and holds {held}: it is damaged. Write it anew.")


def admit_csv(content: bytes, name: str, limits: Limits) -> str:
    """The delimiter; `BadInput` unless every line is short, stands on its own and has as many cells as the first."""
    marks = max(content.count(b"\n"), content.count(b"\r"))
    if marks > limits.rows + _SPARE_LINES:
        raise BadInput(f"{name!r} has {marks} lines; at most {limits.rows} are taken. Use a part of it.", lines=marks)
    delimiter, first, rows = "", 0, 0
    for number, line in _lines(content, name, limits):
        if not line or (not rows and (not line.strip() or line.lstrip().startswith("#"))):
            continue  # as the reader does
        delimiter = delimiter or _delimiter(line)
        cells = _cells(line, delimiter, f"Line {number} of {name!r}")
        first, rows = first or cells, rows + 1
        if cells != first:
            raise BadInput(
                f"Line {number} of {name!r} has {cells} cells, the first has {first}; give every line as many."
            )
    if rows < limits.fewest:
        raise BadInput(
            f"{name!r} has too few lines with numbers, {rows}: at least {limits.fewest} samples are needed, a row each."
        )
    within(limits, max(rows - 1, limits.fewest), first, name)  # one line may hold names
    return delimiter


def _lines(content: bytes, name: str, limits: Limits) -> Iterator[tuple[int, str]]:
    """The lines without their ends, numbered from 1: no more of a line is decoded than may be there."""
    longest = limits.columns * _CELL
    text, number = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline=""), 0
    try:
        while line := text.readline(longest + 1):
            number += 1
            if "\0" in line:
                raise BadInput(f"{name!r} is not text: line {number} holds a zero byte. Save it as CSV in UTF-8.")
            if len(line) > longest:
                raise BadInput(
                    f"Line {number} of {name!r} has more than {longest} characters; at most {limits.columns} columns are taken."
                )
            yield number, line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise BadInput(f"{name!r} is not text in UTF-8; save it as CSV in UTF-8.") from error


def _delimiter(line: str) -> str:
    """A tab if there is one, else a semicolon, else a comma: where decimals are written 0,5 the cells are apart by others."""
    plain = re.sub(r'"[^"]*"', "", line)
    return next((mark for mark in "\t;" if mark in plain), ",")


def _cells(line: str, delimiter: str, where: str) -> int:
    """How many cells; a cell is quoted as a whole or not at all, so that every reader takes the lines apart alike."""
    if '"' in line:
        whole = rf'(?:(?<=^)|(?<={delimiter}))"[^"]*"(?={delimiter}|$)'
        line = re.sub(whole, lambda cell: "x" * len(cell[0]), line)
        if '"' in line:
            raise BadInput(f"{where} has a quotation mark inside a cell or one that is not closed; remove it.")
    if len(line) - line.rfind(delimiter) - 1 > _LAST_CELL:
        raise BadInput(f"{where} ends in a cell of more than {_LAST_CELL} characters, which is no number and no label.")
    return line.count(delimiter) + 1


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}…"
