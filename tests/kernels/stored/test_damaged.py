"""Kernels on disc that something happened to, and runs that meet on one folder."""

import errno
import json
import os
import shutil
import threading
import time
import warnings
from contextlib import nullcontext, suppress

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


def _cleared(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    return path


def _pipe(path):
    """A named pipe, which keeps its reader waiting; a reader that opens it all the same is let go after a while."""
    os.mkfifo(_cleared(path))
    release = threading.Timer(5.0, lambda: _let_go(path))
    release.daemon = True
    release.start()


def _let_go(path):
    with suppress(OSError):
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))


FILES = ("conjugate/c/0/1", "finished/c/0/1", "conjugate/zarr.json", "zarr.json")
FOLDERS = ("conjugate", "conjugate/c", "conjugate/c/0", "finished/c/0")
NOT_THE_KIND = {
    "a folder": (lambda path: _cleared(path).mkdir(), FILES),
    "a pipe": (_pipe, (*FILES, *FOLDERS)),
    "a loop of links": (lambda path: _cleared(path).symlink_to(path.name), (*FILES, *FOLDERS)),
    "a link to nowhere": (lambda path: _cleared(path).symlink_to("nowhere"), FILES),
    "a file": (lambda path: _cleared(path).write_text("a file"), FOLDERS),
}


@pytest.mark.parametrize(("what", "place"), [(what, place) for what, (_, places) in NOT_THE_KIND.items() for place in places])
def test_neither_a_file_nor_a_folder_where_one_should_be(tmp_path, what, place):
    """Reading and writing say it at once, and what to do."""
    found = _write(tmp_path / "k")
    NOT_THE_KIND[what][0](tmp_path / "k" / place)
    begun = time.monotonic()
    with pytest.raises(
        BadInput,
        match=r"(is no file|is no folder|is gone|cannot be read|without a mark).*(Remove it|made again|another folder)",
    ):
        found["conjugate"].get_block_selection((0, 1))
    with pytest.raises(BadInput, match=f"{place}' is (no file|no folder).*(Remove it|another folder)"):
        _write(tmp_path / "k")
    assert time.monotonic() - begun < 5.0
    if place == "zarr.json":
        return
    _cleared(tmp_path / "k" / place) if what in ("a folder", "a file") else (tmp_path / "k" / place).unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericsWarning)  # told in other tests
        again = _write(tmp_path / "k")
    assert again.computed
    np.testing.assert_array_equal(again["conjugate"][:], _write(tmp_path / "other")["conjugate"][:])


def test_a_folder_that_is_a_loop_of_links(tmp_path):
    (tmp_path / "k").symlink_to("k")
    with pytest.raises(BadInput, match="k' is a link that leads nowhere; name a folder"):
        _write(tmp_path / "k")


def test_a_chunk_that_the_disc_does_not_give(tmp_path, monkeypatch):
    found = _write(tmp_path / "k")

    def fails(*_):
        raise OSError(errno.EIO, "Input/output error")

    array = found["conjugate"]
    monkeypatch.setattr("zarr.storage._local._get", fails)
    with pytest.raises(BadInput, match=r"cannot be read \(Input/output error\).*made again"):
        array[:]
    with pytest.raises(BadInput, match=r"cannot be read \(Input/output error\)"):
        found["conjugate"]


def _described(k, change):
    about = json.loads((k / "zarr.json").read_text())
    change(about["attributes"]["notsodeep"])
    (k / "zarr.json").write_text(json.dumps(about))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tile", None),
        ("tile", [16]),
        ("tile", [16, 0]),
        ("tile", [16.5, 16]),
        ("tile", [16, "16"]),
        ("shape", None),
        ("shape", 30),
        ("shape", [True, 30]),
        ("dtype", None),
        ("dtype", "float128"),
        ("dtype", ["float64"]),
        ("x2", 3),
        ("format", 1),
        ("format", None),
    ],
)
def test_a_damaged_description_is_told(tmp_path, key, value):
    found = _write(tmp_path / "k")
    whole = found["tangent"][:]
    _described(tmp_path / "k", lambda about: about.pop(key) if value is None else about.update({key: value}))
    with pytest.raises(BadInput, match=rf"zarr.json' .*{key}.*resume=False"):
        found["tangent"]
    with pytest.raises(BadInput, match=key):
        _write(tmp_path / "k")
    np.testing.assert_array_equal(_write(tmp_path / "k", resume=False)["tangent"][:], whole)


def test_a_description_without_x2(tmp_path):
    """None is a value of it: it may not be taken for a missing one."""
    found = _write(tmp_path / "k")
    _described(tmp_path / "k", lambda about: about.pop("x2"))
    with pytest.raises(BadInput, match=r"zarr.json' .*x2.*resume=False"):
        found["tangent"]


@pytest.mark.parametrize("kernels", [[], [""], ["../mine"], ["mine"], [3], [["conjugate"]], "conjugate", None])
def test_nothing_else_is_removed_for_a_damaged_description(tmp_path, kernels):
    """`resume=False` removes what the description names: kernels, and never a folder of something else."""
    found = _write(tmp_path / "k")
    for mine in (tmp_path / "mine", tmp_path / "k" / "mine"):
        mine.mkdir()
        (mine / "file").write_text("mine")
    _described(tmp_path / "k", lambda about: about.update(kernels=kernels))
    for call in (lambda: found["tangent"], lambda: _write(tmp_path / "k"), lambda: _write(tmp_path / "k", resume=False)):
        with pytest.raises(BadInput, match="no kernels of notsodeep"):
            call()
    assert (tmp_path / "mine" / "file").exists()
    assert (tmp_path / "k" / "mine" / "file").exists()
    assert (tmp_path / "k" / "conjugate" / "c" / "0" / "0").exists()


def test_a_full_disc_is_told_and_goes_on_when_there_is_room(tmp_path, monkeypatch):
    def full(_path):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(stores, "_flush", full)
        with pytest.raises(BadInput, match="the disc is full"):
            _write(tmp_path / "k")
    assert _write(tmp_path / "k").computed == 3


def _other_order(codecs):
    codecs[0]["configuration"]["endian"] = "big"


OTHER_ARRAYS = {
    "empty": lambda _: "",
    "nothing": lambda _: "{}",
    "a list": lambda _: "[1]",
    "no text": lambda _: "\ud800",
    "a group": lambda _: '{"zarr_format": 3, "node_type": "group"}',
    "another byte order": lambda array: _other_order(array["codecs"]),
    "transposed chunks": lambda array: array["codecs"].insert(0, {"name": "transpose", "configuration": {"order": [1, 0]}}),
    "an unknown codec": lambda array: array["codecs"].append({"name": "nobody's"}),
    "no codecs": lambda array: array.pop("codecs"),
    "codecs that are none": lambda array: array.update(codecs=[3]),
    "other names of chunks": lambda array: array.update(chunk_key_encoding={"name": "v2", "configuration": {"separator": "/"}}),
    "integers": lambda array: array.update(data_type="int64", fill_value=0),
    "other chunks": lambda array: array["chunk_grid"]["configuration"].update(chunk_shape=[5, 5]),
    "another shape": lambda array: array.update(shape=[29, 30]),
    "a huge shape": lambda array: array.update(shape=[10**30, 30]),
}


@pytest.mark.parametrize("damage", OTHER_ARRAYS.values(), ids=OTHER_ARRAYS.keys())
@pytest.mark.parametrize("array", ["conjugate", "finished"])
def test_a_damaged_array_is_told_with_what_to_do(tmp_path, array, damage):
    found = _write(tmp_path / "k")
    whole = found["conjugate"][:]
    about = tmp_path / "k" / array / "zarr.json"
    changed = json.loads(about.read_text())
    text = damage(changed)
    damaged = (text if isinstance(text, str) else json.dumps(changed)).encode("utf-8", "surrogatepass")
    about.write_bytes(damaged)
    if array == "conjugate":
        with pytest.raises(BadInput, match=f"{array}' is damaged.*Remove that folder"):
            found["conjugate"]
    else:  # which Zarr does not read
        np.testing.assert_array_equal(found["conjugate"][:], whole)
    with pytest.raises(BadInput, match=f"{array}' is damaged.*Remove that folder"):
        _write(tmp_path / "k")
    shutil.rmtree(tmp_path / "k" / array)
    assert _write(tmp_path / "k").computed == 3
    about.write_bytes(damaged)
    assert _write(tmp_path / "k", resume=False).computed == 3


def test_an_array_that_is_gone_is_told(tmp_path):
    found = _write(tmp_path / "k")
    shutil.rmtree(tmp_path / "k" / "tangent")
    with pytest.raises(BadInput, match=r"tangent' is gone.*made again"):
        found["tangent"]
    shutil.rmtree(tmp_path / "k")
    with pytest.raises(BadInput, match="holds no kernels of notsodeep"):
        found["conjugate"]


def test_what_others_add_to_an_array_is_no_damage(tmp_path):
    """Attributes and names of axes change no number."""
    found = _write(tmp_path / "k")
    about = tmp_path / "k" / "conjugate" / "zarr.json"
    array = json.loads(about.read_text())
    about.write_text(json.dumps(array | {"attributes": {"mine": 1}, "dimension_names": ["row", "column"]}))
    assert found["conjugate"].attrs["mine"] == 1
    assert _write(tmp_path / "k").computed == 0


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
