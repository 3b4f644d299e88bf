"""Kernels on disc: whoever computes, the same bits, and a run that was stopped at any moment computes what is missing."""

import os
import signal
import subprocess
import sys
import time
from itertools import count

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.errors import BadInput
from notsodeep.kernels.stored import store as stores
from notsodeep.kernels.stored.write import write_kernels

zarr = pytest.importorskip("zarr")

NET = nsd.Implicit("tanh", 0.2)


def _x(n, p=6, seed=0):
    return torch.randn(n, p, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) / p**0.5


@pytest.mark.parametrize("devices", [None, ["cpu"], ["cpu", "cpu"], [torch.device("cpu")] * 3])
def test_all_kernels_of_a_square(tmp_path, devices):
    x, seen = _x(50), []
    found = write_kernels(
        NET,
        x,
        tmp_path / "k",
        kernel=("conjugate", "tangent", "preactivation"),
        tile=16,
        devices=devices,
        progress=lambda *now: seen.append(now),
    )
    assert (found.found, found.computed) == (0, 10)
    assert seen == [(done, 10) for done in range(11)]
    whole = nsd.exact_kernels(NET, x)
    np.testing.assert_allclose(found["conjugate"][:], whole.conjugate, rtol=1e-13)
    np.testing.assert_allclose(found["tangent"][:], whole.tangent, rtol=1e-13)
    wanted = nsd.tangent_kernel(NET, x, readout="preactivation")
    np.testing.assert_allclose(found["preactivation"][:], wanted, rtol=1e-13)
    np.testing.assert_array_equal(found["tangent"][:16, 16:], found["tangent"][16:, :16].T)


def test_tiles_of_the_usual_size(tmp_path):
    x, net = _x(1200, 4), nsd.Implicit("relu", 0.2)
    found = write_kernels(net, x, tmp_path / "k")
    assert found["conjugate"].chunks == (1152, 1152)
    np.testing.assert_allclose(found["conjugate"][:], nsd.conjugate_kernel(net, x), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("tile", [16, (7, 40), (50, 3)])
def test_a_rectangle_in_float32_with_a_tau0(tmp_path, tile):
    x, x2 = _x(50).float().numpy(), _x(23, seed=1).numpy()
    found = write_kernels(NET, x, tmp_path / "k", x2, kernel=["tangent"], tile=tile, tau0=0.7)
    assert found["tangent"].dtype == np.float32
    np.testing.assert_allclose(found["tangent"][:], nsd.tangent_kernel(NET, x, x2, tau0=0.7), rtol=1e-6)


def test_bits_do_not_depend_on_who_computes(tmp_path):
    x = _x(90)
    one, two = (write_kernels(NET, x, tmp_path / str(k), tile=16, devices=["cpu"] * k) for k in (1, 2))
    np.testing.assert_array_equal(one["conjugate"][:], two["conjugate"][:])


def test_the_group_says_what_it_holds(tmp_path):
    x = _x(20)
    write_kernels(NET, x, tmp_path / "k", tile=8)
    group = zarr.open_group(tmp_path / "k", mode="r")
    about = group.attrs["notsodeep"]
    assert about["network"] == "Implicit(phi=Tanh(), var_a=0.2, var_b=0.8, centre=True)"
    assert about["tau0"] is None
    assert about["tau0_used"] == nsd.tau0(x)
    assert (about["shape"], about["tile"], about["dtype"]) == ([20, 20], [8, 8], "float64")
    assert len(about["x"]) == 64
    assert sorted(group.array_keys()) == ["conjugate", "finished"]


class Killed(BaseException):
    """Nothing catches it, as nothing catches a kill."""


def test_stopped_at_every_moment(tmp_path, monkeypatch):
    """Between the kernels of a tile, between its two sides, and between the last of them and the mark."""
    x, names = _x(30), ("conjugate", "tangent")
    whole = write_kernels(NET, x, tmp_path / "whole", kernel=names, tile=16)
    computed = []
    for moment in range(13):  # three tiles: two on the diagonal with 2 chunks each, and one off it with 4
        calls = count()
        with monkeypatch.context() as patch:
            patch.setattr(stores, "_flush", _killing(calls, moment))
            folder = tmp_path / str(moment)
            if moment < 8:
                with pytest.raises(Killed):
                    write_kernels(NET, x, folder, kernel=names, tile=16)
            else:
                write_kernels(NET, x, folder, kernel=names, tile=16)
        found = write_kernels(NET, x, folder, kernel=names, tile=16)
        computed.append(found.computed)
        for name in names:
            np.testing.assert_array_equal(found[name][:], whole[name][:])
    assert computed == [3, 3, 2, 2, 2, 2, 1, 1, 0, 0, 0, 0, 0]


def _killing(calls, moment):
    def flush(_path):
        if next(calls) == moment:
            raise Killed

    return flush


_RUN = """
import sys, torch
import notsodeep as nsd
from notsodeep.kernels.stored.write import write_kernels
x = torch.randn(600, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) / 6**0.5
write_kernels(nsd.Implicit("tanh", 0.2), x, sys.argv[1], tile=30, kernel=("conjugate", "tangent"))
"""


def test_killed_at_several_moments(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "_ABANDONED", 0.0)
    folder, before = tmp_path / "k", 0
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for more in (1, 40):
        with subprocess.Popen([sys.executable, "-c", _RUN, str(folder)], env=environment) as process:
            deadline = time.monotonic() + 120
            while _marks(folder) < before + more and time.monotonic() < deadline and process.poll() is None:
                time.sleep(0.002)
            process.send_signal(signal.SIGKILL)
        assert before < _marks(folder) < 210
        before = _marks(folder)
    x, names = _x(600), ("conjugate", "tangent")
    found = write_kernels(NET, x, folder, tile=30, kernel=names)
    assert (found.found, found.computed) == (before, 210 - before)
    assert not list(folder.rglob("*.partial"))
    whole = write_kernels(NET, x, tmp_path / "whole", tile=30, kernel=names)
    for name in names:
        np.testing.assert_array_equal(found[name][:], whole[name][:])


def _marks(folder):
    return sum(1 for mark in folder.glob("finished/c/*/*") if mark.name.isdigit())


NAMED = {"x": r"the samples\."}  # not their SHA-256


@pytest.mark.parametrize(
    ("change", "differ"),
    [
        ({"net": nsd.Implicit("tanh", 0.2 + 1e-12)}, ["network"]),
        ({"net": nsd.Implicit(nsd.custom(lambda u: torch.tanh(u) + 0.01 * u, kinks=[], name="tanh"), 0.2)}, ["network"]),
        ({"x": _x(20, seed=1)}, ["x"]),
        ({"x2": _x(20)}, ["x2"]),
        ({"x": _x(21)}, ["shape", "x"]),
        ({"x": _x(20).float()}, ["dtype", "x"]),
        ({"tile": 9}, ["tile"]),
        ({"tau0": 1.0}, ["tau0"]),
        ({"kernel": ("tangent",)}, ["kernels"]),
    ],
)
def test_other_kernels_are_refused(tmp_path, change, differ):
    setting = {"net": NET, "x": _x(20), "folder": tmp_path / "k", "tile": 8}
    before = write_kernels(**setting)["conjugate"][:]
    with pytest.raises(BadInput, match=f"differ in {NAMED.get(differ[0], differ[0])}") as caught:
        write_kernels(**setting | change)
    assert caught.value.differ == differ
    np.testing.assert_array_equal(write_kernels(**setting)["conjugate"][:], before)
    anew = write_kernels(**setting | change, resume=False)
    assert anew.found == 0
    assert np.isfinite(anew[change.get("kernel", ("conjugate",))[0]][:]).all()


def test_a_custom_function_is_known_again(tmp_path):
    found = [
        write_kernels(nsd.Implicit(nsd.custom(lambda u: u.sin(), name="mine"), 0.2), _x(20), tmp_path / "k", tile=8)
        for _ in range(2)
    ]
    assert [each.computed for each in found] == [6, 0]


def test_what_is_not_ours_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for resume in (True, False):
        with pytest.raises(BadInput, match="no kernels of notsodeep"):
            write_kernels(NET, _x(5), tmp_path, resume=resume)
    zarr.open_group(tmp_path / "theirs", mode="w").create_array("a", shape=(3,), dtype="float64")
    with pytest.raises(BadInput, match="no kernels of notsodeep"):
        write_kernels(NET, _x(5), tmp_path / "theirs", resume=False)
    with pytest.raises(BadInput, match="is a file"):
        write_kernels(NET, _x(5), tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kernel": ("gram",)}, "no kernel 'gram'"),
        ({"kernel": ()}, "no kernel"),
        ({"tile": (2, 3)}, "not square"),
        ({"tile": 0}, "tile"),
        ({"devices": ["gpu"]}, "'gpu' is not a device"),
        ({"devices": "gpu"}, "'gpu' is not a device"),
        ({"devices": []}, "devices is empty"),
        ({"kernel": None}, "no kernel None"),
        ({"tile": True}, "tile = True"),
        ({"tau0": -1.0}, "tau0"),
        ({"x2": torch.ones(3, 5)}, "6 features and x2 has 5"),
        ({"scheduler": 5}, "scheduler is a int"),
        ({"net": nsd.Explicit(["sign"]), "kernel": ["tangent"]}, "no tangent kernel"),
    ],
)
def test_bad_input_makes_no_folder(tmp_path, wrong, message):
    with pytest.raises(BadInput, match=message):
        write_kernels(**{"net": NET, "x": _x(5), "folder": tmp_path / "k"} | wrong)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_on_one_of_two_devices_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "_flush", _killing(count(), 5))
    with pytest.raises(Killed):
        write_kernels(NET, _x(90), tmp_path / "k", tile=8, devices=["cpu", "cpu"])


@pytest.mark.parametrize(("module", "arguments"), [("zarr", {}), ("distributed", {"scheduler": "tcp://localhost:1"})])
def test_without_the_extra(tmp_path, monkeypatch, module, arguments):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BadInput, match=r"pip install 'notsodeep\[dask\]'"):
        write_kernels(NET, _x(5), tmp_path / "k", **arguments)
    assert list(tmp_path.iterdir()) == []
