"""Uploads: good files give what numpy gives; every other file gives one short reason, in little memory."""

import io
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from notsodeep.app.uploads import LIMITS, Limits, read_upload
from notsodeep.data.tables import READERS, Source
from notsodeep.errors import BadInput

X = np.arange(12.0).reshape(4, 3) ** 1.5
WORDS = ["cat", "ant", "cat", "a b"]


def table(delimiter=",", names=None, labels=None, end="\n", bom=False):
    cells = [[repr(value) for value in row] for row in X.tolist()]
    rows = cells if labels is None else [[*row, label] for row, label in zip(cells, labels, strict=True)]
    text = end.join(delimiter.join(row) for row in ([names] if names else []) + rows) + end
    return text.encode("utf-8-sig" if bom else "utf-8")


def npy(array, **how):
    stream = io.BytesIO()
    np.save(stream, array, **how)
    return stream.getvalue()


def header(text, version=1):
    data = text.encode("latin1")
    return b"\x93NUMPY" + bytes([version, 0]) + len(data).to_bytes(2 * version, "little") + data


def claims(shape, descr="'<f8'"):
    return header(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n")


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("names", [None, ["a", "b", "c"]])
@pytest.mark.parametrize(("end", "bom"), [("\n", False), ("\r\n", True), ("\r", False)])
def test_tables_of_numbers(delimiter, names, end, bom):
    found = read_upload("t.csv", table(delimiter, names, end=end, bom=bom))
    assert found.x.dtype == torch.float64
    assert (found.x.numpy() == X).all()
    assert (found.y, found.classes) == (None, None)
    assert found.description == "t.csv, 4 samples × 3 features"


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("column", ["label", "Y", "Class", "TARGET"])
def test_labels_in_the_last_column(delimiter, column):
    found = read_upload("t.csv", table(delimiter, ["a", "b", "y", column], WORDS))
    assert (found.x.numpy() == X).all()
    assert (found.y.tolist(), found.y.dtype, found.classes) == ([2, 1, 2, 0], torch.int64, ("a b", "ant", "cat"))
    assert found.description.endswith("3 classes")
    numbers = read_upload("t.csv", table(delimiter, ["a", "b", "c", column], ["-7", "900000000000", "-7", "8"]))
    assert (numbers.y.tolist(), numbers.classes) == ([0, 2, 0, 1], ("-7", "8", "900000000000"))


def test_quoted_cells():
    found = read_upload("t.csv", table(",", ['"a"', '"b, c"', "d", '"label"'], ['"x, y"', "z", '"x, y"', "z"]))
    assert (found.x.numpy() == X).all()
    assert (found.y.tolist(), found.classes) == ([0, 1, 0, 1], ("x, y", "z"))


def test_no_other_column_holds_labels():
    assert read_upload("t.csv", table(",", ["y", "b", "c"])).x.shape == (4, 3)
    assert read_upload("t.csv", table(",", ["a", "b", "labels"])).y is None
    with pytest.raises(BadInput, match="'Label' before its last one"):
        read_upload("t.csv", table(",", ["Label", "b", "c"]))


@pytest.mark.parametrize("labels", [["0.5", "1", "2", "3"], ["9" * 30, "1", "1", "1"]])
def test_real_numbers_are_no_classes(labels):
    found = read_upload("t.csv", table(",", ["a", "b", "c", "target"], labels))
    assert (found.x.numpy() == X).all()
    assert (found.y, found.classes) == (None, None)
    assert "'target' is left out" in found.description


def test_as_many_labels_as_samples_are_no_classes():
    rows = [f"{i},{i}" for i in range(8)]
    content = "\n".join(["a,label", *rows]).encode()
    assert read_upload("t.csv", content, Limits(classes=8)).y.tolist() == list(range(8))
    assert read_upload("t.csv", content, Limits(classes=7)).y is None


@pytest.mark.parametrize(
    "array",
    [
        X,
        X.astype(np.float32),
        X.astype(np.float16),
        X.astype(">f8"),
        X.astype(np.longdouble),
        np.asfortranarray(X),
        X.astype(np.int8),
        X.astype(np.uint64) * 2**58,
        X > 5,
    ],
    ids=lambda array: f"{array.dtype}{'F' if array.flags.f_contiguous else 'C'}",
)
def test_arrays(array):
    found = read_upload("X.NPY", npy(array))
    assert found.x.dtype == torch.float64
    assert found.x.is_contiguous()
    assert (found.x.numpy() == array.astype(np.float64)).all()
    assert (found.y, found.name) == (None, "X.NPY")


def zipped():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", bytes(2**24))
    return stream.getvalue()


ROWS = b"1,2\n3,4\n5,6\n7,8\n"
GOOD = npy(X)
NAN = X.copy()
NAN[2, 1] = np.nan
BAD_TABLES = {
    "empty": (b"", "is empty"),
    "BOM only": (b"\xef\xbb\xbf", "too few lines"),
    "blank": (b"\n\n \n\r\n", "too few lines"),
    "comments": (b"# 1,2\n" * 9, "too few lines"),
    "names only": (b"a,b\n", "too few lines"),
    "names and three": (b"a,b\n1,2\n3,4\n5,6\n", "3 × 2 numbers; at least 4"),
    "text": (b"It was\na dark\nand stormy\nnight\n", "row 0, column 0 .* holds 'a dark', no number"),
    "word": (b"a,b\n1,2\n3,x\n" + ROWS, "row 1, column 1 .* holds 'x', no number"),
    "gap": (b"1,2\n3,\n" + ROWS, "row 1, column 1 .* holds '', no number"),
    "formula": (b"1,=A1\n" + ROWS, "no number"),
    "decimal commas": (b"1,5;2,5\n" * 4, "not 0,5"),
    "ragged": (b"1,2\n3\n" + ROWS, "Line 2 of 't.csv' has 1 cells, the first has 2"),
    "ragged beside labels": (b"a,b,y\n1,2,0\n1,2,0,9\n1,3,1\n1,3,1\n", "Line 3 .* 4 cells"),
    "quoted end of line": (b'a,y\n1,"p\nq"\n2,r\n3,r\n', "quotation mark"),
    "quote left open": (b'a,y\n1,"p\n' + ROWS, "quotation mark"),
    "quote inside": (b'1,2"3\n' + ROWS, "quotation mark"),
    "a million columns": (b"1," * 10**6, "at most 4096 columns"),
    "commas": (b"," * 10**7, "at most 4096 columns"),
    "5000 columns": ((b"1," * 4999 + b"1\n") * 4, "× 5000 numbers; at most"),
    "too many rows": (b"1,2\n" * 20_002, "at most 20000 rows"),
    "far too many rows": (b"1,2\n" * 10**6, "1000000 lines"),
    "ends of lines": (b"\n" * 10**7, "10000000 lines"),
    "returns": (b"\r" * 10**7, "10000000 lines"),
    "too many numbers": ((b"1," * 1999 + b"1\n") * 2002, "2001 × 2000 numbers"),
    "too large": (b"1" * (LIMITS.bytes + 1), "20971521 bytes"),
    # Each label would be given the room of the longest: 10 GB.
    "one long label": (b"a,label\n" + b"1,x\n" * 20_000 + b"1," + b"x" * 130_000, "more than 100 characters"),
    "a long number": (b"1," + b"9" * 10**5 + b",3\n" + b"1,2,3\n" * 4, "row 0, column 1 .* is inf"),
    "nan": (b"1,2\n3,4\n5,NaN\n" + ROWS, "row 2, column 1 .* is nan; 1 cells"),
    "infinity": (b"a,b\n1,2\n-inf,4\ninf,1\n" + ROWS, "row 1, column 0 .* is -inf; 2 cells"),
    "1e400": (b"1,2\n1e400,4\n" + ROWS, "row 1, column 0 .* is inf"),
    "sixty digits": (b"1," + b"9" * 60 + b"\n" + ROWS, "1.0e\\+60"),
    "digits of other scripts": ("1,2\n3,٣\n".encode() + ROWS, "no number"),
    "underscore": (b"1,2\n3,1_0\n" + ROWS, "no number"),
    "hexadecimal": (b"1,2\n3,0x10\n" + ROWS, "no number"),
    "complex": (b"1,2\n3,1+2j\n" + ROWS, "no number"),
    "label nan": (b"a,y\n1,nan\n" + ROWS, "row 0 has the label nan"),
    "label 1e400": (b"a,y\n1,1e400\n" + ROWS, "row 0 has the label inf"),
    "label missing": (b"a,y\n1,\n" + ROWS, "row 0 has no label"),
    "labels only": (b"label\n1\n2\n3\n4\n", "no features"),
    "two columns of labels": (b"y,y\n" + ROWS, "two columns 'y'"),
    "one sample": (b"1,2,3\n", "at least 4"),
    "constant": (b"1,2\n" * 5, "All 5 samples .* the same"),
    "zeros": (b"0,0\n" * 5, "the same"),
    "zero bytes": (b"1,2\n3,\0\n" + ROWS, "zero byte"),
    "UTF-16": ("1,2\n3,4\n".encode("utf-16"), "UTF-8"),
    "Latin-1": ("é,b\n".encode("latin1") + ROWS, "UTF-8"),
    "an array": (GOOD, "UTF-8"),
    "gzip": (b"\x1f\x8b\x08\0\0\0", "UTF-8"),
    "a program": (b"MZ\x90\0\x03\0", "UTF-8"),
}
NO_ARRAY = "not a .npy file of numbers"
BAD_ARRAYS = {
    "empty": (b"", "is empty"),
    "a table": (ROWS, NO_ARRAY),
    "zip bomb": (zipped(), NO_ARRAY),
    "pickle": (b"\x80\x04cposix\nsystem\n(S'true'\ntR.", NO_ARRAY),
    "objects": (npy(np.array([[1, None]] * 4, dtype=object), allow_pickle=True), "holds object"),
    "claims objects": (claims("(4, 3)", "'|O'") + bytes(96), "holds object"),
    "complex": (npy(X + 1j), "holds complex128"),
    "words": (npy(X.astype("U9")), "holds <U9"),
    "dates": (npy(X.astype("M8[s]")), "holds datetime64"),
    "fields": (npy(np.zeros(4, dtype=[("a", "f8")])), "not real numbers"),
    "wide fields": (claims("(4, 3)", "'|V1000000000'"), "not real numbers"),
    "arrays of arrays": (claims("(4, 3)", "'(99999,99999)f8'"), NO_ARRAY),
    "cut": (GOOD[:-3], "declares 96 bytes of numbers and holds 93"),
    "cut in the header": (GOOD[:60], NO_ARRAY),
    "cut in the magic": (GOOD[:5], NO_ARRAY),
    "more": (GOOD + b"x", "holds 97"),
    "10^12 rows": (claims("(1000000000000, 3)"), "1000000000000 × 3 numbers"),
    "10^15 numbers": (claims("(20000, 50000000000)"), "50000000000 numbers; at most"),
    "overflow": (claims("(4294967296, 4294967296)"), "at most"),
    "many digits": (claims(f"({'9' * 500}, 1)"), "9… numbers; at most"),
    "none of very many": (claims("(0, 99999999999999999999)"), "at least 4"),
    "no features": (claims("(5, 0)"), "at least 4"),
    "negative": (claims("(-1, 3)"), "from 0 on"),
    "both negative": (claims("(-4, -3)") + bytes(96), "from 0 on"),
    "truths": (claims("(True, True)") + bytes(8), "from 0 on"),
    "shape of floats": (claims("(4.0, 3.0)"), NO_ARRAY),
    "shape is a word": (claims("'abc'"), NO_ARRAY),
    "images": (npy(np.ones((4, 2, 2))), r"x\.reshape"),
    "one axis": (npy(X[0]), r"shape \(3,\)"),
    "scalar": (npy(np.float64(1)), r"shape \(\)"),
    "10 MB header": (header(claims("(4, 3)")[10:-1].decode() + " " * 10**7, 2) + bytes(96), NO_ARRAY),
    "claims a 4 GB header": (b"\x93NUMPY\x02\0\xff\xff\xff\xff{}", NO_ARRAY),
    "deep": (header("(" * 1000), NO_ARRAY),
    "deep signs": (header("-" * 1000 + "1"), NO_ARRAY),
    "code": (header("__import__('os').abort()"), NO_ARRAY),
    "version 3": (b"\x93NUMPY\x03\0" + GOOD[8:], NO_ARRAY),
    "version 9": (b"\x93NUMPY\x09\0" + GOOD[8:], NO_ARRAY),
    "nan": (npy(np.asfortranarray(NAN)), "row 2, column 1 .* is nan; 1 cells"),
    "beyond float64": (npy(X.astype(np.longdouble) * np.longdouble("1e4000")), "row 0, column 1 .* is inf"),
    "too large numbers": (npy(X * 1e60), "Rescale"),
    "three samples": (npy(X[:3]), "3 × 3 numbers; at least 4"),
    "constant": (npy(np.ones((9, 3))), "All 9 samples"),
}


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [("t.csv", *case) for case in BAD_TABLES.values()] + [("t.npy", *case) for case in BAD_ARRAYS.values()],
    ids=[f"csv {key}" for key in BAD_TABLES] + [f"npy {key}" for key in BAD_ARRAYS],
)
def test_bad_files_are_told_why_in_little_memory(name, content, says):
    tracemalloc.start()
    try:
        with pytest.raises(BadInput, match=says) as caught:
            read_upload(name, content)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 240
    assert most < 2**21 + 2 * len(content)


@pytest.mark.parametrize("name", ["t.npz", "t.exe", "t.csv.gz", "t.csv\0.exe", "t.parquet", "t", "", "..", "csv", "a/.."])
def test_other_kinds_of_files(name):
    with pytest.raises(BadInput, match=r"neither a \.csv nor a \.npy"):
        read_upload(name, ROWS)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("../../etc/t.csv", "t.csv"),
        ("C:\\fakepath\\my data (2).CSV", "my data (2).CSV"),
        ("a\0b\r\n\u202ec\x1b[31m.csv", "abc31m.csv"),
        ("<b onload='x'>.csv", "b onloadx.csv"),
        ("U\u0308bung.csv", "Übung.csv"),
        (".csv", "upload.csv"),
        ("../.csv", "upload.csv"),
        ("n" * 10**4 + ".csv", "n" * 40 + "….csv"),
    ],
    ids=lambda name: repr(name)[:60],
)
def test_names_are_shown_clean(name, shown):
    found = read_upload(name, ROWS)
    assert found.name == shown
    assert found.description.startswith(f"{shown}, 4 samples")


@settings(max_examples=200)
@given(st.sampled_from(["t.csv", "t.npy"]), st.lists(st.tuples(st.integers(0, 300), st.binary(max_size=4)), max_size=6))
def test_whatever_is_changed_gives_data_or_a_reason(name, changes):
    content = bytearray(GOOD if name == "t.npy" else table(";", ["a", "b", "c", "label"], WORDS, bom=True))
    for place, new in changes:
        content[place : place + 1] = new
    try:
        found = read_upload(name, bytes(content))
    except BadInput:
        return
    assert found.x.ndim == 2
    assert len(found.x) >= 4
    assert torch.isfinite(found.x).all()
    assert found.y is None or len(found.y) == len(found.x)


def test_nothing_touches_the_disk(monkeypatch):
    contents = {"t.csv": table(",", ["a", "b", "c", "label"], WORDS), "t.npy": GOOD}
    before = {name: read_upload(name, content).x for name, content in contents.items()}

    def refuse(*_, **__):
        raise AssertionError("a file was opened")

    for where in ("builtins.open", "io.open", "os.open", "pathlib.Path.open"):
        monkeypatch.setattr(where, refuse)
    for name, content in contents.items():
        assert torch.equal(read_upload(name, content).x, before[name])


@pytest.mark.parametrize("suffix", [".csv", ".npy", ".npz"])
def test_tables_are_read_from_memory_as_from_files(tmp_path, suffix):
    path = tmp_path / f"t{suffix}"
    if suffix == ".csv":
        path.write_bytes(table(",", ["a", "b", "c"], bom=True))
    else:
        (np.save if suffix == ".npy" else np.savez)(path, X)
    stream = io.BytesIO(path.read_bytes())
    (kept, _), (streamed, _) = (READERS[suffix](Source(where, "t"), None) for where in (path, stream))
    assert (kept == X).all()
    assert (streamed == X).all()
    assert not stream.closed
