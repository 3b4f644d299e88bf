"""What an upload may hold, looked at before anything of the size that it claims is allocated."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from notsodeep.errors import BadInput


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

_NPY_HEADER = 1024  # bytes; numpy.save writes 118 for numbers
_CELL = 32  # characters a cell, on average: -1.2345678901234567e-308 and its delimiter are 25
_LAST_CELL = 100  # characters; labels become an array as wide as the longest
_SPARE_LINES = 1000  # blank ones and comments


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
    shape, dtype, start = _npy_header(content, name)
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


def _npy_header(content: bytes, name: str) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """The shape, the type and where the numbers begin."""
    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        # Versions after 2.0 are for names of fields, which numbers have none of.
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, _, dtype = read(stream, max_header_size=_NPY_HEADER)
    except Exception as error:  # a header is parsed as a Python literal, which fails in many ways, and all mean this
        raise BadInput(f"{name!r} is no .npy file of numbers; write it with numpy.save.") from error
    return shape, dtype, stream.tell()


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
