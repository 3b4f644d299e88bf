"""CIFAR-10 batches: pickles that may build arrays and nothing else."""

import os
import pickle

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.data.readers import read_batch

X = np.arange(2 * 3072, dtype=np.int64).reshape(2, 3072).astype(np.uint8)


def written(tmp_path, content, protocol=4):
    path = tmp_path / "data_batch_1"
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol))
    return path


def test_a_batch_comes_back(tmp_path):
    x, y = read_batch(written(tmp_path, {b"data": X, b"labels": [3, 9], b"filenames": [b"a", b"b"]}))
    assert np.array_equal(x, X)
    assert y.tolist() == [3, 9]


class Command:
    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


@pytest.mark.parametrize(
    ("call", "name"),
    [(os.system, r"(posix|nt)\.system"), (eval, r"builtins\.eval"), (np.load, r"numpy\.load"), (getattr, "getattr")],
)
def test_every_other_call_is_refused(tmp_path, call, name):
    mark = tmp_path / "mark"
    path = written(tmp_path, {b"data": Command(call, f"touch {mark}"), b"labels": []})
    with pytest.raises(nsd.BadInput, match=f"asks for .*{name}.*refused") as error:
        read_batch(path)
    assert str(path) in str(error.value)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read"),
        (b"no pickle", "cannot be read"),
        (pickle.dumps({b"data": X, b"labels": [1, 2]}, 4)[:-1000], "cannot be read"),
        ([1, 2], "holds data NoneType"),
        ({b"data": X.astype(np.float32), b"labels": [1, 2]}, "float32"),
        ({b"data": X[:, :5], b"labels": [1, 2]}, r"\(2, 5\)"),
        ({b"data": X, b"labels": [1, 10]}, "0 … 9"),
        ({b"data": X, b"labels": [1, "2"]}, "0 … 9"),
        ({b"data": X}, "0 … 9"),
        ({b"data": X, b"labels": [1]}, "2 images and 1 labels"),
    ],
)
def test_other_contents(tmp_path, content, message):
    with pytest.raises(nsd.BadInput, match=message):
        read_batch(written(tmp_path, content))
