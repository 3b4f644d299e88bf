"""Kernels on disc that something happened to, and runs that meet on one folder."""

import errno
import json
import os
import shutil
import time
from contextlib import nullcontext

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.errors import BadInput, NumericsWarning
from notsodeep.kernels.stored import store as stores
from notsodeep.kernels.stored.write import write_kernels

zarr = pytest.importorskip("zarr")

NET = nsd.Implicit("tanh", 0.2)
NAMES = ("conjugate", "tangent")


def _x(n, p=6, seed=0):
    return torch.randn(n, p, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) / p**0.5


def _write(folder, x=None, **options):
    return write_kernels(NET, _x(30) if x is None else x, folder, **{"kernel": NAMES, "tile": 16} | options)


def _cut(path):
    os.truncate(path, 100)


def _flip(path, byte=77, bit=3):
    content = bytearray(path.read_bytes())
    content[byte] ^= 1 << bit
    path.write_bytes(content)


def _exchange(one, other):
    first, second = one.read_bytes(), other.read_bytes()
    assert first != second
    one.write_bytes(second)
    other.write_bytes(first)


def _from_another_run(k):
    """Of other samples, with its mark."""
    _write(k.parent / "other", _x(30, seed=1))
    for chunk in ("conjugate/c/0/0", "tangent/c/0/0", "finished/c/0/0"):
        (k / chunk).write_bytes((k.parent / "other" / chunk).read_bytes())


DAMAGE = {
    "a chunk": (lambda k: (k / "conjugate/c/0/0").unlink(), 1, {"conjugate/c/0/0": "is gone"}),
    "a mirrored chunk": (lambda k: (k / "tangent/c/1/0").unlink(), 1, {"tangent/c/1/0": "is gone"}),
    "a chunk cut short": (lambda k: _cut(k / "conjugate/c/1/1"), 1, {"conjugate/c/1/1": "100 bytes instead of 2052"}),
    "a bit": (lambda k: _flip(k / "conjugate/c/0/1"), 1, {"conjugate/c/0/1": "other bits"}),
    "a bit of a checksum": (lambda k: _flip(k / "tangent/c/1/0", -1), 1, {"tangent/c/1/0": "other bits"}),
    "two chunks of one kernel exchanged": (
        lambda k: _exchange(k / "conjugate/c/0/0", k / "conjugate/c/0/1"),
        2,
        {"conjugate/c/0/0": "another place", "conjugate/c/0/1": "another place"},
    ),
    "two sides of the diagonal exchanged": (
        lambda k: _exchange(k / "conjugate/c/1/0", k / "conjugate/c/0/1"),
        1,
        {"conjugate/c/1/0": "another place", "conjugate/c/0/1": "another place"},
    ),
    "two kernels exchanged": (
        lambda k: _exchange(k / "conjugate/c/0/0", k / "tangent/c/0/0"),
        1,
        {"conjugate/c/0/0": "another place", "tangent/c/0/0": "another place"},
    ),
    "a tile of another run, with its mark": (_from_another_run, 1, {"conjugate/c/0/0": "or run", "tangent/c/0/0": "or run"}),
    "a bit of a mark": (lambda k: _flip(k / "finished/c/1/1", 0), 1, {"conjugate/c/1/1": "its mark is damaged"}),
    "a mark cut short": (lambda k: os.truncate(k / "finished/c/1/1", 5), 1, {"conjugate/c/1/1": "a damaged one"}),
    "a mark": (lambda k: (k / "finished/c/0/1").unlink(), 1, {}),
    "an array": (lambda k: shutil.rmtree(k / "tangent"), 3, {}),
    "what an array is": (lambda k: (k / "conjugate/zarr.json").unlink(), 3, {}),
    "the marks": (lambda k: shutil.rmtree(k / "finished"), 3, {}),
    "an array, and what the marks are": (
        lambda k: (shutil.rmtree(k / "tangent"), (k / "finished/zarr.json").write_text("")),
        3,
        {},
    ),
    "nothing": (str, 0, {}),
}


@pytest.mark.parametrize(("damage", "computed", "named"), DAMAGE.values(), ids=DAMAGE.keys())
def test_what_is_damaged_is_named_and_computed_again(tmp_path, damage, computed, named):
    first = _write(tmp_path / "k")
    whole = {name: first[name][:] for name in NAMES}
    damage(tmp_path / "k")
    for chunk, words in named.items():  # reading tells it too, and other chunks are read as ever
        name, _, i, j = chunk.split("/")
        with pytest.raises(BadInput, match=f"{chunk}' .*{words}.*made again, computes what is damaged"):
            first[name].get_block_selection((int(i), int(j)))
        with pytest.raises(BadInput, match=words):
            first[name][:]
    told = pytest.warns(NumericsWarning, match=next(iter(named))) if named else nullcontext()
    with told:
        found = _write(tmp_path / "k")
    assert (found.found, found.computed) == (3 - computed, computed)
    for chunk, words in named.items():
        assert any(chunk in each and words in each for each in found.damaged)
    assert bool(found.damaged) == bool(named)
    for name in NAMES:
        np.testing.assert_array_equal(found[name][:], whole[name])


def test_any_reader_of_zarr_finds_a_flipped_bit(tmp_path):
    found = _write(tmp_path / "k")
    plain = zarr.open_group(tmp_path / "k", mode="r")
    np.testing.assert_array_equal(plain["tangent"][:], found["tangent"][:])
    _flip(tmp_path / "k/tangent/c/0/0")
    with pytest.raises(ValueError, match="checksum"):
        plain["tangent"][:5, :5]
    np.testing.assert_array_equal(plain["tangent"][16:, 16:], found["tangent"][16:, 16:])


@pytest.mark.parametrize("place", ["conjugate/c/0/1", "finished/c/0/0", "tangent/c/1", "tangent/c"])
def test_a_folder_for_a_chunk_and_a_file_for_a_folder(tmp_path, place):
    _write(tmp_path / "k")
    misplaced = tmp_path / "k" / place
    if misplaced.is_dir():
        shutil.rmtree(misplaced)
        misplaced.write_text("a file")
    else:
        misplaced.unlink()
        misplaced.mkdir()
    with pytest.raises(BadInput, match=f"{place}' is (no file|no folder|a file)"):
        _write(tmp_path / "k")


def test_a_full_disc_is_told_and_goes_on_when_there_is_room(tmp_path, monkeypatch):
    def full(_path):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(stores, "_flush", full)
        with pytest.raises(BadInput, match="the disc is full"):
            _write(tmp_path / "k")
    assert _write(tmp_path / "k").computed == 3


@pytest.mark.parametrize("text", ["", "{}", '{"zarr_format": 3, "node_type": "group"}'])
@pytest.mark.parametrize("array", ["conjugate", "finished"])
def test_a_damaged_array_is_told_with_what_to_do(tmp_path, array, text):
    _write(tmp_path / "k")
    (tmp_path / "k" / array / "zarr.json").write_text(text)
    with pytest.raises(BadInput, match=f"{array}' is damaged.*Remove that folder"):
        _write(tmp_path / "k")
    shutil.rmtree(tmp_path / "k" / array)
    assert _write(tmp_path / "k").computed == 3
    (tmp_path / "k" / array / "zarr.json").write_text(text)
    assert _write(tmp_path / "k", resume=False).computed == 3


def test_another_tau0_than_that_of_the_samples_is_told(tmp_path):
    _write(tmp_path / "k")
    about = tmp_path / "k" / "zarr.json"
    used = json.loads(about.read_text())["attributes"]["notsodeep"]["tau0_used"]
    about.write_text(about.read_text().replace(repr(used), repr(1.01 * used)))
    with pytest.raises(nsd.BadInput, match="tau0"):
        _write(tmp_path / "k")


def test_a_run_that_ends_leaves_the_files_of_another_one(tmp_path):
    """Both write to names of their own that end in .partial; only those of the dead are removed."""
    _write(tmp_path / "k")
    live, dead = (tmp_path / "k" / "conjugate/c/0" / f"{name}.partial" for name in ("live", "dead"))
    for path in (live, dead):
        path.write_bytes(b"half")
    long_ago = time.time() - 2 * stores._ABANDONED
    os.utime(dead, (long_ago, long_ago))
    _write(tmp_path / "k")
    assert (live.exists(), dead.exists()) == (True, False)


def test_samples_that_a_stopped_run_left_are_removed(tmp_path):
    x = _x(30)
    _write(tmp_path / "k", x)
    about = zarr.open_group(tmp_path / "k", mode="r").attrs["notsodeep"]
    stores.put_samples(stores.KernelStore(tmp_path / "k", about), 32 * "a", x=x)
    zarr.open_group(tmp_path / "k", mode="r+").create_array("x", data=x.numpy())  # somebody's own
    _write(tmp_path / "k", x)
    assert {path.name for path in (tmp_path / "k").iterdir()} == {*NAMES, "finished", "x", "zarr.json"}


@pytest.mark.parametrize(("n", "n2", "tile", "chunks"), [(20, None, 10**7, (20, 20)), (20, 5, (7, 100), (7, 5))])
def test_a_chunk_is_no_larger_than_the_kernel(tmp_path, n, n2, tile, chunks):
    x2 = None if n2 is None else _x(n2, seed=1)
    found = write_kernels(NET, _x(n), tmp_path / "k", x2, tile=tile)
    assert found["conjugate"].chunks == chunks
    np.testing.assert_allclose(found["conjugate"][:], nsd.conjugate_kernel(NET, _x(n), x2), rtol=1e-13)


def test_a_tile_that_does_not_fit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("notsodeep.arrays.available_bytes", lambda _: 10_000)
    with pytest.raises(BadInput, match=r"A tile of 30 × 30 .* Use a smaller tile") as caught:
        _write(tmp_path / "k", tile=100)
    assert caught.value.needed == 2 * 2 * 30 * 30 * 8
    assert not (tmp_path / "k").exists()
    assert _write(tmp_path / "k", tile=10).computed == 6


def test_one_name_is_as_good_as_a_tuple(tmp_path):
    found = write_kernels(NET, _x(20), tmp_path / "k", kernel="tangent", tile=np.int64(8), devices="cpu")
    assert found.computed == 6
    with pytest.raises(BadInput, match="no kernel 'conjugate'; it holds tangent"):
        found["conjugate"]
