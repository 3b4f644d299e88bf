"""Tables in .npy, .npz, .csv and .parquet files, with labels if there are any."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np
from torch import Tensor

from notsodeep.arrays import samples
from notsodeep.data.readers import check_npy_header
from notsodeep.data.targets import LABEL_FILES, is_number, labels_of_file, read_labels
from notsodeep.errors import BadInput

_QUOTED = 200  # characters of a reader's message; NumPy quotes the whole header of a file

Table = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None]
"""The samples, and the labels in the same file."""


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
        what = _first_line(error).split(". ")[0].rstrip(".")[:_QUOTED]  # NumPy goes on to advise pickles
        what = "it asks for more memory than there is" if isinstance(error, MemoryError) else what
        raise BadInput(f"{str(path)!r} cannot be read as {suffix}: {what}. {_remedy(suffix, wanted)}") from error
    if array.dtype.kind not in "fiub":
        raise BadInput(
            f"{str(path)!r} holds {array.dtype}, not numbers. If a column holds labels, name it: labels=…; drop other words."
        )
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


def _remedy(suffix: str, wanted: str | None) -> str:
    if suffix != ".csv":
        how = {".npy": ", with numpy.save", ".npz": ", with numpy.savez"}.get(suffix, "")
        return f"Write the file anew{how}: an array of numbers."
    named = "If a column holds labels, name it: labels=…; " if wanted is None else ""
    rest = "drop or number other words, and give every line as many cells."
    return named + rest if named else rest.capitalize()


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


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
            raise BadInput(
                f"{source.name!r} holds {', '.join(names) or 'nothing'}; name the samples x, or keep one array only."
            )
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
        column = _column(columns, wanted, source)
        total = columns if isinstance(columns, int) else len(columns)
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


def _parquet(source: Source, wanted: str | None) -> Table:
    try:
        from pyarrow import parquet
    except ImportError:
        raise BadInput("Reading a .parquet file needs pyarrow: pip install 'notsodeep[parquet]'.") from None
    table = parquet.read_table(source.content)
    column = _column(table.column_names, wanted, source)
    others = [np.asarray(values) for i, values in enumerate(table.columns) if i != column]
    if not others:
        raise BadInput(f"{source.name!r} has the columns {', '.join(table.column_names)}: no features are left.")
    return np.column_stack(others), None if column is None else np.asarray(table.columns[column])


READERS: dict[str, Callable[[Source, str | None], Table]] = {
    ".npy": _npy,
    ".npz": _npz,
    ".csv": _csv,
    ".parquet": _parquet,
}
