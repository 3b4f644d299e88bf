"""Kernels on disc that something happened to, and runs that meet on one folder."""

import os
import shutil
import time

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.errors import BadInput
from notsodeep.kernels import store as stores
from notsodeep.kernels.written import write_kernels

zarr = pytest.importorskip("zarr")

NET = nsd.Implicit("tanh", 0.2)
NAMES = ("conjugate", "tangent")


def _x(n, p=6, seed=0):
    return torch.randn(n, p, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) / p**0.5


def _write(folder, x=None, **options):
    return write_kernels(NET, _x(30) if x is None else x, folder, **{"kernels": NAMES, "tile": 16} | options)


def _cut(path):
    os.truncate(path, 100)


DAMAGE = {
    "a chunk": (lambda k: (k / "conjugate/c/0/0").unlink(), 1),
    "a mirrored chunk": (lambda k: (k / "tangent/c/1/0").unlink(), 1),
    "a chunk cut short": (lambda k: _cut(k / "conjugate/c/1/1"), 1),
    "a mark": (lambda k: (k / "finished/c/0/1").unlink(), 1),
    "an array": (lambda k: shutil.rmtree(k / "tangent"), 3),
    "what an array is": (lambda k: (k / "conjugate/zarr.json").unlink(), 3),
    "the marks": (lambda k: shutil.rmtree(k / "finished"), 3),
    "an array, and what the marks are": (
        lambda k: (shutil.rmtree(k / "tangent"), (k / "finished/zarr.json").write_text("")),
        3,
    ),
    "nothing": (str, 0),
}


@pytest.mark.parametrize(("damage", "computed"), DAMAGE.values(), ids=DAMAGE.keys())
def test_what_is_gone_is_computed_again(tmp_path, damage, computed):
    whole = {name: _write(tmp_path / "k")[name][:] for name in NAMES}
    damage(tmp_path / "k")
    found = _write(tmp_path / "k")
    assert (found.found, found.computed) == (3 - computed, computed)
    for name in NAMES:
        np.testing.assert_array_equal(found[name][:], whole[name])


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
    monkeypatch.setattr("notsodeep.numerics.safe.available_bytes", lambda _: 10_000)
    with pytest.raises(BadInput, match=r"A tile of 30 × 30 .* Use a smaller tile") as caught:
        _write(tmp_path / "k", tile=100)
    assert caught.value.needed == 2 * 2 * 30 * 30 * 8
    assert not (tmp_path / "k").exists()
    assert _write(tmp_path / "k", tile=10).computed == 6


def test_one_name_is_as_good_as_a_tuple(tmp_path):
    found = write_kernels(NET, _x(20), tmp_path / "k", kernels="tangent", tile=np.int64(8), devices="cpu")
    assert found.computed == 6
    with pytest.raises(BadInput, match="no kernel 'conjugate'; it holds tangent"):
        found["conjugate"]
