"""On a real cluster of worker processes: the same bits and the same records as in this process, and workers may die."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.errors import BadInput, NotSoDeepError, NumericsWarning
from notsodeep.kernels.stored.write import write_kernels
from notsodeep.papers.records import Store
from notsodeep.papers.registry import EXPERIMENTS
from notsodeep.papers.runner import run
from notsodeep.runtime import dask as cluster
from notsodeep.runtime.dask import connected, result_of
from tests.cli.conftest import notsodeep  # noqa: F401
from tests.papers.counting import Counting
from tests.papers.small import CONFIGS

pytest.importorskip("zarr")
distributed = pytest.importorskip("distributed")

NET = nsd.Implicit("tanh", 0.2)
CPU = torch.device("cpu")


def _x(n, p=6, seed=0):
    return torch.randn(n, p, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) / p**0.5


@pytest.fixture(scope="module")
def client():
    settings = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with distributed.LocalCluster(**settings) as local, distributed.Client(local, set_as_default=False) as client:
        yield client


def test_kernels_have_the_same_bits(client, tmp_path):
    x, x2 = _x(130), _x(50, seed=1).float()
    setting = {"kernel": ("conjugate", "tangent"), "tile": 16}
    for columns in (None, x2):
        here = write_kernels(NET, x, tmp_path / f"here-{columns is None}", columns, **setting)
        there = write_kernels(NET, x, tmp_path / f"there-{columns is None}", columns, scheduler=client, **setting)
        assert there.computed == here.computed
        for name in setting["kernel"]:
            np.testing.assert_array_equal(there[name][:], here[name][:])
        assert {path.name for path in there.folder.iterdir()} == {path.name for path in here.folder.iterdir()}
    again = write_kernels(NET, x, tmp_path / "here-True", scheduler=client, **setting)
    assert (again.found, again.computed) == (45, 0)
    one, other = (tmp_path / "here-True" / "tangent" / "c" / "2" / column for column in "34")
    whole, content = again["tangent"][:], one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    with pytest.warns(NumericsWarning, match=r"tangent/c/2/3 is whole, but .*; tangent/c/2/4 is"):
        mended = write_kernels(NET, x, tmp_path / "here-True", scheduler=client, **setting)
    assert (mended.found, mended.computed) == (43, 2)
    np.testing.assert_array_equal(mended["tangent"][:], whole)


def test_by_address_from_a_file_that_is_mapped(client, tmp_path):
    x = _x(60).numpy()
    np.save(tmp_path / "x.npy", x)
    mapped, seen = np.load(tmp_path / "x.npy", mmap_mode="r"), []
    address = client.scheduler.address

    def look(done, _total):
        seen.append((done, (tmp_path / "k" / "x").exists()))

    found = write_kernels(NET, mapped, tmp_path / "k", tile=16, scheduler=address, progress=look)
    assert seen == [(done, False) for done in range(11)]  # the samples were copied nowhere
    np.testing.assert_array_equal(found["conjugate"][:], write_kernels(NET, x, tmp_path / "h", tile=16)["conjugate"][:])
    part = write_kernels(NET, mapped[::2], tmp_path / "part", tile=16, scheduler=address)
    np.testing.assert_allclose(part["conjugate"][:], nsd.conjugate_kernel(NET, x[::2]), rtol=1e-13, atol=1e-15)


def test_a_function_of_ones_own(client, tmp_path):
    net = nsd.Implicit(nsd.custom(lambda u: u.sin(), name="mine"), 0.2)
    found = write_kernels(net, _x(40), tmp_path / "k", tile=16, scheduler=client)
    np.testing.assert_allclose(found["conjugate"][:], nsd.conjugate_kernel(net, _x(40)), rtol=1e-13, atol=1e-15)


def test_workers_that_are_killed_cost_nothing(client, tmp_path):
    """One of them, and later all at once: Dask starts others in their place."""
    x, killed = _x(600), []

    def kill(done, _total):
        if done in (5, 60):
            pids = list(client.run(os.getpid).values())
            for pid in pids[:1] if done == 5 else pids:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    found = write_kernels(NET, x, tmp_path / "k", tile=40, scheduler=client, progress=kill)
    assert len(killed) >= 2
    assert (found.found, found.computed) == (0, 120)
    here = write_kernels(NET, x, tmp_path / "here", tile=40)
    np.testing.assert_array_equal(found["conjugate"][:], here["conjugate"][:])


def test_a_run_that_fails_there_goes_on_here(client, tmp_path):
    x = _x(130)

    def stop(done, _total):
        if done == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_kernels(NET, x, tmp_path / "k", tile=16, scheduler=client, progress=stop)
    assert {path.name for path in (tmp_path / "k").iterdir()} == {"conjugate", "finished", "zarr.json"}
    client.run(time.sleep, 0.2)  # what had begun is written still
    found = write_kernels(NET, x, tmp_path / "k", tile=16)
    assert found.found >= 7
    assert found.found + found.computed == 45
    np.testing.assert_array_equal(found["conjugate"][:], write_kernels(NET, x, tmp_path / "h", tile=16)["conjugate"][:])


def test_a_task_that_ends_every_worker_is_told():
    class Future:
        def result(self):
            raise distributed.KilledWorker("a tile", SimpleNamespace(address="tcp://there:1"), 3)

    with pytest.raises(NotSoDeepError, match="ended its worker again and again"):
        result_of(Future())


def _numbers(store):
    return {record.key: record.values for record in store.records("L1")}


def test_a_sweep_gives_the_same_records(client, tmp_path):
    chosen = [(EXPERIMENTS["L1"], replace(CONFIGS["L1"], sizes=(60, 120), seeds=1))]
    here, there, seen = Store(tmp_path / "here"), Store(tmp_path / "there"), []
    first = run(chosen, here, CPU)
    second = run(chosen, there, CPU, seen.append, client)
    assert second == first
    assert _numbers(there) == _numbers(here)
    assert len(there.records("L1")) == first.computed == 4
    assert [now.done for now in seen] == list(range(first.computed + 1))
    assert there.records("L1")[0].provenance["versions"] == here.records("L1")[0].provenance["versions"]
    again = run(chosen, there, None, scheduler=client)
    assert (again.found, again.computed) == (first.computed, 0)


def test_failures_there_are_failures_here(client, tmp_path):
    def go(counting, folder):
        return run([(counting.experiment, counting.experiment.config(True))], Store(folder), CPU, scheduler=client)

    outcome = go(Counting(missing=2), tmp_path / "missing")
    assert outcome.left_out == {"L1": "the data are not there"}
    assert sorted(r.config["number"] for r in Store(tmp_path / "missing").records("L1")) == [1, 3, 4, 5]
    with pytest.raises(RuntimeError, match="killed"):
        go(Counting(fails_at=3), tmp_path / "fails")
    assert go(Counting(), tmp_path / "fails").found < 5
    assert sorted(r.config["number"] for r in Store(tmp_path / "fails").records("L1")) == [1, 2, 3, 4, 5]


def test_the_command_line(client, notsodeep, tmp_path):  # noqa: F811
    address, data = client.scheduler.address, ["--data", "gmm:n=40,p=20"]
    ran = notsodeep("kernel", *data, "--out", str(tmp_path), "--format", "zarr", "--scheduler", address, "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["tiles_computed"] == 1
    notsodeep("kernel", *data, "--out", str(tmp_path))
    zarr = pytest.importorskip("zarr")
    found = zarr.open_group(tmp_path / "kernel.zarr", mode="r")["conjugate"][:]
    np.testing.assert_allclose(found, np.load(tmp_path / "kernel.npy"), rtol=1e-12, atol=1e-15)
    small = ["--set", "L1.sizes=60/120", "--set", "L1.activations=relu", "--set", "L1.seeds=1"]
    ran = notsodeep("reproduce", "L1", *small, "--out", str(tmp_path / "run"), "--scheduler", address)
    assert ran.returncode == 0, ran.stderr
    assert "records: 2 computed now, 0 found" in ran.stdout


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nonsense", "ftp://a:1"])
def test_a_wrong_address_is_one_line_within_seconds(notsodeep, tmp_path, address, monkeypatch):  # noqa: F811
    monkeypatch.setattr(cluster, "_ANSWER", 1.0)
    began = time.monotonic()
    ran = notsodeep("reproduce", "L1", "--out", str(tmp_path / "run"), "--scheduler", address)
    assert ran.returncode == 2
    assert f"error: There is no Dask scheduler at '{address}'" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.stderr.strip().count("\n") == 0
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("address", ["http://nowhere", "inproc://x", "tls://127.0.0.1:9"])
def test_a_wrong_address_ends_the_process_too(tmp_path, address):
    """In a process of its own: a client that was half made would hold it for 10 s, and end in a traceback."""
    data = ["--data", "gmm:n=40,p=20", "--format", "zarr", "--out", str(tmp_path / "k"), "--scheduler", address]
    ran = subprocess.run([sys.executable, "-m", "notsodeep.cli", "kernel", *data], capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stderr.startswith(f"error: There is no Dask scheduler at '{address}'")
    assert ran.stderr.strip().count("\n") == 0
    assert not list(tmp_path.iterdir())


def test_a_wrong_address_makes_no_folder(notsodeep, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(cluster, "_ANSWER", 0.5)
    out = tmp_path / "run"
    ran = notsodeep("kernel", "--data", "gmm:n=40,p=20", "--out", str(out), "--format", "zarr", "--scheduler", "tcp://a:9")
    assert ran.returncode == 2
    assert "There is no Dask scheduler" in ran.stderr
    assert not out.exists()


def test_a_scheduler_without_workers(monkeypatch):
    monkeypatch.setattr(cluster, "_ANSWER", 0.5)
    with (
        distributed.LocalCluster(n_workers=0, processes=False, dashboard_address=":0", protocol="tcp") as empty,
        pytest.raises(BadInput, match="has no workers"),
        connected(empty.scheduler_address),
    ):
        pass


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scheduler", "tcp://127.0.0.1:9"], "add --format zarr"),
        (["--format", "zarr"], "needs a folder"),
        (["--format", "zarr", "--form", "sharp"], "is for exact kernels"),
    ],
)
def test_options_that_do_not_go_together(notsodeep, arguments, message):  # noqa: F811
    ran = notsodeep("kernel", *arguments)
    assert ran.returncode == 2
    assert message in ran.stderr
