"""Tables in .npy, .npz, .csv and .parquet files, with labels if there are any; uploads are checked within limits first."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np
from torch import Tensor

from notsodeep.arrays import samples
from notsodeep.data.readers import check_npy_header, npy_header
from notsodeep.data.targets import LABEL_FILES, is_number, labels_of_file, read_labels
from notsodeep.errors import BadInput, first_line

_NPY_HEADER = 1024  # bytes; numpy.save writes 118 for numbers
_CELL = 32  # characters, on average: -1.2345678901234567e-308 and its delimiter are 25
_LAST_CELL = 100  # characters; labels become an array as wide as the longest
_SPARE_LINES = 1000  # blank ones and comments
_QUOTED = 200  # characters of a reader's message; NumPy quotes the whole header of a file
LABEL_NAMES = ("label", "y", "class", "target")  # of a last column that holds labels, in small or capital letters

Table = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None]
"""The samples, and the labels in the same file."""


@dataclass(frozen=True)
class Limits:
    """Bounds of a table from an untrusted source; `entries` are cells, `classes` different labels, `fewest` samples."""

    bytes: int = 20 * 2**20
    rows: int = 20_000
    columns: int = 4096
    entries: int = 4_000_000
    classes: int = 100
    fewest: int = 4


@dataclass(frozen=True)
class Source:
    """A table in a file or in memory; `name` is for errors, `delimiter` for .csv."""

    content: Path | BinaryIO
    name: str
    delimiter: str = ","


def read_table(path: Path, labels: str | int | None = None) -> tuple[Tensor, Tensor | None, tuple[str, ...] | None]:
    """Samples (n, p), their labels or None, and the names of the classes if labels are words. `labels` is a column by name or
    number (negative from the end), an array of an .npz, or another file; without it, y of an .npz with x and y is used."""
    suffix = path.suffix.lower()
    if path.is_dir():
        raise BadInput(f"{str(path)!r} is a folder; name a file in it.")
    if not path.is_file():
        raise BadInput(f"There is no file {str(path)!r}.")
    wanted = None if labels is None else str(labels)
    try:
        array, inside = READERS[suffix](Source(path, str(path)), wanted)
    except BadInput:
        raise
    except Exception as error:  # readers fail in many ways on a corrupt file
        what = first_line(error).split(". ")[0][:_QUOTED]  # NumPy goes on to advise pickles
        what = "it asks for more memory than there is" if isinstance(error, MemoryError) else what
        if (cell := bad_cell(error)) is not None:
            what = f"row {cell[1] + 1} of the numbers has {cell[0]} in column {cell[2] + 1}, which is no number"
        raise BadInput(f"{str(path)!r} cannot be read as {suffix}: {what}. {_remedy(suffix, wanted)}") from error
    if array.dtype.kind not in "fiub":
        raise BadInput(f"{str(path)!r} holds {array.dtype}, not numbers. If a column holds labels: labels=…; drop other words.")
    if array.ndim != 2:
        raise BadInput(
            f"{str(path)!r} holds an array of shape {array.shape}; expected (samples, features). Save it as "
            "x.reshape(len(x), -1), one row per sample."
        )
    where = repr(str(path))
    x = samples(array, f"The data of {where}")
    if inside is None and wanted is not None:
        inside, where = read_labels(Path(wanted)), repr(wanted)
    if inside is None:
        return x, None, None
    y, classes = labels_of_file(inside, where)
    if len(y) != len(x):
        raise BadInput(
            f"{where} holds {len(y)} labels, the data {len(x)} samples; one label per sample is needed.",
            labels=len(y),
            samples=len(x),
        )
    return x, y, classes


def labels_told(path: Path) -> str | None:
    """The name of the column of a .csv or .parquet file that holds labels by its name; see `label_column`.

    Args:
        path: The file.

    Returns:
        The name; None too where the file cannot be read, as `read_table` says why.

    Raises:
        BadInput: Such a column is not the last one.
    """
    known = {".csv": csv_columns, ".parquet": _parquet_columns}.get(path.suffix.lower())
    if known is None:
        return None
    try:
        columns = known(Source(path, str(path)))
    except Exception:  # the same in the reader, which tells what to change
        return None
    return label_column(columns, str(path), "Say that it holds labels, labels=…")


def label_column(columns: Sequence[str] | int, name: str, remedy: str = "Move it to the end") -> str | None:
    """The name of the last column if that is a name of labels: label, y, class or target.

    Args:
        columns: Names of the columns, or their number.
        name: The table, for errors.
        remedy: What to do where another column has such a name.

    Returns:
        The name as it is written, or None.

    Raises:
        BadInput: Another column has such a name, or the same one.
    """
    columns = [] if isinstance(columns, int) else list(columns)
    names = [column.lower() for column in columns]
    elsewhere = next((i for i, column in enumerate(names[:-1]) if column in LABEL_NAMES and column != "y"), None)
    if elsewhere is not None:  # as a feature it would give the classes away unnoticed
        raise BadInput(
            f"{name!r} has the column {columns[elsewhere]!r} before its last one, where labels are looked for. {remedy}; or "
            "rename it, if it is a feature."
        )
    if not names or names[-1] not in LABEL_NAMES:
        return None
    if columns[-1] in columns[:-1]:
        raise BadInput(f"{name!r} has two columns {columns[-1]!r}; rename or remove one of them.")
    return columns[-1]


def bad_cell(error: Exception) -> tuple[str, int, int] | None:
    """What stands in a cell that NumPy's error says to be no number, its row and its column, both from 0."""
    found = re.match(r"could not convert string (.{1,120}) to float64 at row (\d+), column (\d+)", str(error))
    return None if found is None else (found[1], int(found[2]), int(found[3]) - 1)


def _remedy(suffix: str, wanted: str | None) -> str:
    if suffix != ".csv":
        how = {".npy": ", with numpy.save", ".npz": ", with numpy.savez"}.get(suffix, "")
        return f"Write the file anew{how}: an array of numbers."
    named = "If a column holds labels, name it: labels=…; " if wanted is None else ""
    rest = "drop or number other words, and give every line as many cells."
    return named + rest if named else rest.capitalize()


def _column(columns: Sequence[str] | int, wanted: str | None, source: Source) -> int | None:
    """The number of the column `wanted`, or None if that is a file of labels; `columns` are names, or their number."""
    names = [] if isinstance(columns, int) else list(columns)
    total = columns if isinstance(columns, int) else len(names)
    if wanted is None:
        return None
    if wanted in names:
        return names.index(wanted)
    try:
        number = int(wanted)
    except ValueError:
        if Path(wanted).suffix.lower() in LABEL_FILES:
            return None
    else:
        if -total <= number < total:
            return number % total
    there = f"it has {', '.join(names)}" if names else f"it has no names, only numbers 0 … {total - 1}"
    raise BadInput(
        f"{source.name!r} has no column {wanted!r}; {there}. Or name a {', '.join(LABEL_FILES)} file of labels.",
        columns=names or list(range(total)),
    )


def _check_is_file(wanted: str | None, source: Source, held: str) -> None:
    if wanted is not None and Path(wanted).suffix.lower() not in LABEL_FILES:
        raise BadInput(f"{source.name!r} holds {held}, no {wanted!r}; name a {', '.join(LABEL_FILES)} file of labels.")


def _npy(source: Source, wanted: str | None) -> Table:
    _check_is_file(wanted, source, "one array")
    check_npy_header(source.content, source.name)
    return np.asarray(np.load(source.content, allow_pickle=False)), None


def _npz(source: Source, wanted: str | None) -> Table:
    with np.load(source.content, allow_pickle=False) as archive:
        names = archive.files
        others = [name for name in names if name != wanted]
        if not others or (len(others) > 1 and "x" not in others):
            raise BadInput(f"{source.name!r} holds {', '.join(names) or 'nothing'}; name the samples x, or keep one array.")
        x = np.asarray(archive["x" if "x" in others else others[0]])
        if wanted in names:
            return x, np.asarray(archive[wanted])
        _check_is_file(wanted, source, ", ".join(names))
        return x, np.asarray(archive["y"]) if wanted is None and {"x", "y"} <= set(names) else None


@contextmanager
def _lines(source: Source) -> Iterator[TextIO]:
    if isinstance(source.content, Path):
        with source.content.open(encoding="utf-8-sig", newline="") as lines:
            yield lines
        return
    source.content.seek(0)
    lines = io.TextIOWrapper(source.content, encoding="utf-8-sig", newline="")
    try:
        yield lines
    finally:
        lines.detach()  # keeps the caller's stream open


def _head(lines: TextIO, delimiter: str) -> tuple[int, Sequence[str] | int]:
    """How many lines are above the numbers, and the names of the columns, or their number. Names are in the first line without
    a number, or, as np.savetxt writes them, in the last line above the numbers that begins with #."""
    above, named, line = 0, "", lines.readline()
    while line and (not line.strip() or line.lstrip().startswith("#")):
        above, named, line = above + 1, line.strip().lstrip("# ") or named, lines.readline()
    first, names = (next(csv.reader([text], delimiter=delimiter), []) for text in (line, named))
    first, names = ([cell.strip() for cell in cells] for cells in (first, names))
    if not any(map(is_number, first)):
        return above + 1, first
    return above, names if len(names) == len(first) else len(first)


def csv_columns(source: Source) -> Sequence[str] | int:
    """The names of the columns of a .csv file, or their number."""
    with _lines(source) as lines:
        return _head(lines, source.delimiter)[1]


def _csv(source: Source, wanted: str | None) -> Table:
    """Comma-separated numbers, with or without a line of column names."""
    with _lines(source) as lines:
        header, columns = _head(lines, source.delimiter)
        total = columns if isinstance(columns, int) else len(columns)
        if not total:
            raise BadInput(f"{source.name!r} is empty.")
        column = _column(columns, wanted, source)
        others = None if column is None else [i for i in range(total) if i != column]
        if others == []:
            raise BadInput(f"{source.name!r} has one column only: with that as labels, no features are left. Add some.")
        how: dict[str, Any] = {"delimiter": source.delimiter, "skiprows": header, "comments": None, "quotechar": '"'}
        lines.seek(0)
        x = np.loadtxt(lines, ndmin=2, usecols=others, **how)
        if column is None:
            return x, None
        lines.seek(0)
        return x, np.loadtxt(lines, ndmin=1, usecols=column, dtype=str, **how)


def _pyarrow() -> Any:
    try:
        from pyarrow import parquet
    except ImportError:
        raise BadInput("Reading a .parquet file needs pyarrow: pip install 'notsodeep[parquet]'.") from None
    return parquet


def _parquet_columns(source: Source) -> Sequence[str]:
    names: list[str] = _pyarrow().read_schema(source.content).names
    return names


def _parquet(source: Source, wanted: str | None) -> Table:
    table = _pyarrow().read_table(source.content)
    column = _column(table.column_names, wanted, source)
    others = [np.asarray(values) for i, values in enumerate(table.columns) if i != column]
    if not others:
        raise BadInput(f"{source.name!r} has the columns {', '.join(table.column_names)}: no features are left.")
    return np.column_stack(others), None if column is None else np.asarray(table.columns[column])


READERS: dict[str, Callable[[Source, str | None], Table]] = {".npy": _npy, ".npz": _npz, ".csv": _csv, ".parquet": _parquet}


def admit(content: bytes, suffix: str, name: str, limits: Limits) -> Source:
    """A .csv or .npy table in memory, for `READERS`, after checks within the limits; they take little memory themselves."""
    if suffix == ".npy":
        _check_npy(content, name, limits)
        return Source(io.BytesIO(content), name)
    return Source(io.BytesIO(content), name, _checked_delimiter(content, name, limits))


def check_size(limits: Limits, rows: int, columns: int, name: str) -> None:
    """Raises BadInput for too many or too few rows and columns."""
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


def _check_npy(content: bytes, name: str, limits: Limits) -> None:
    """Raises BadInput unless this is a whole .npy file of a matrix of real numbers within the limits."""
    header = npy_header(io.BytesIO(content), _NPY_HEADER)
    if header is None:
        raise BadInput(f"{name!r} is not a .npy file of numbers; write it with numpy.save.")
    shape, dtype, start = header
    if dtype.kind not in "fiub":
        raise BadInput(f"{name!r} holds {_short(str(dtype))}, not real numbers; save an array of floats or integers.")
    if any(length < 0 or isinstance(length, bool) for length in shape):
        raise BadInput(f"{name!r} declares the shape {_short(str(shape))}; lengths are from 0 on. Write it with numpy.save.")
    if len(shape) != 2:
        raise BadInput(
            f"{name!r} holds an array of shape {_short(str(shape))}; expected (samples, features). Save x.reshape(len(x), -1)."
        )
    check_size(limits, *shape, name)
    declared, held = math.prod(shape) * dtype.itemsize, len(content) - start
    if declared != held:
        raise BadInput(f"{name!r} declares {declared} bytes of numbers and holds {held}: it is damaged. Write it anew.")


def _checked_delimiter(content: bytes, name: str, limits: Limits) -> str:
    """The delimiter of a .csv file whose lines are short, complete, and of equally many cells."""
    marks = max(content.count(b"\n"), content.count(b"\r"))
    if marks > limits.rows + _SPARE_LINES:
        raise BadInput(f"{name!r} has {marks} lines; at most {limits.rows} are taken. Use a part of it.", lines=marks)
    delimiter, first, rows = "", 0, 0
    for number, line in _short_lines(content, name, limits):
        if not line or (not rows and (not line.strip() or line.lstrip().startswith("#"))):
            continue  # as `_csv` does
        delimiter = delimiter or _delimiter(line)
        cells = _cells(line, delimiter, f"Line {number} of {name!r}")
        first, rows = first or cells, rows + 1
        if cells != first:
            raise BadInput(f"Line {number} of {name!r} has {cells} cells, the first has {first}; give every line as many.")
    if rows < limits.fewest:
        raise BadInput(f"{name!r} has too few lines with numbers, {rows}: at least {limits.fewest} samples are needed.")
    check_size(limits, max(rows - 1, limits.fewest), first, name)  # one line may hold names
    return delimiter


def _short_lines(content: bytes, name: str, limits: Limits) -> Iterator[tuple[int, str]]:
    """(number, line without its end), from 1; a line that is too long is never decoded whole."""
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
    """A tab if there is one, else a semicolon, else a comma, which may be part of a decimal such as 0,5."""
    plain = re.sub(r'"[^"]*"', "", line)
    return next((mark for mark in "\t;" if mark in plain), ",")


def _cells(line: str, delimiter: str, where: str) -> int:
    """The number of cells. A cell is quoted as a whole or not at all; readers differ on other quotes."""
    if '"' in line:
        whole = rf'(?:(?<=^)|(?<={delimiter}))"[^"]*"(?={delimiter}|$)'
        line = re.sub(whole, lambda cell: "x" * len(cell[0]), line)
        if '"' in line:
            raise BadInput(f"{where} has a quotation mark inside a cell or one that is not closed; remove it.")
    if len(line) - line.rfind(delimiter) - 1 > _LAST_CELL:
        raise BadInput(f"{where} ends in a cell of more than {_LAST_CELL} characters, which is neither a number nor a label.")
    return line.count(delimiter) + 1


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}…"
