"""Command lines that nobody would write: each ends soon, with 0, 1 or 2, a clear line where it fails, and no half a file."""

import json
import signal
import sys
import time
import zipfile
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import BytesIO, TextIOWrapper
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

import notsodeep as nsd
from notsodeep.cli import main
from notsodeep.errors import BadInput
from tests.cli.command_lines import COMMANDS, command_lines

# Seconds of the processor, and of the clock: other processes may be at work too, and a wait takes no processor.
LONGEST, LONGEST_WAIT = 10.0, 60.0
UNFORESEEN = "beyond what this computation can hold"


class Hangs(BaseException):
    """Nothing catches it."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder of files to name: good, damaged and hostile ones."""
    folder = tmp_path_factory.mktemp("place")
    x = np.random.default_rng(0).standard_normal((24, 6))
    y = np.arange(24) % 2
    np.save(folder / "good.npy", x)
    np.save(folder / "labels.npy", y)
    np.savez(folder / "good.npz", x=x, y=y)
    np.savetxt(folder / "good.csv", x, delimiter=",")
    np.savetxt(folder / "labelled.csv", np.column_stack([x, y]), delimiter=",", header="a,b,c,d,e,f,label", comments="")
    for name, values in {"nan": x * np.nan, "one": x[:1], "zeros": 0 * x, "wide": x[:2] * 1e40, "huge": x * 1e300}.items():
        np.save(folder / f"{name}.npy", values)
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000, 30), }".ljust(117) + b"\n"
    (folder / "lying.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(80))
    (folder / "words.csv").write_text("name,size\nred,1\nblue,2\n")
    (folder / "empty.csv").write_text("")
    (folder / "file.txt").write_text("mine")
    for suffix in ("npy", "npz", "parquet"):
        (folder / f"noise.{suffix}").write_bytes(np.random.default_rng(1).bytes(300))
    (folder / "folder").mkdir()
    deq = nsd.DEQ(nsd.Implicit("relu", 0.2), 10, 8, 2, generator=torch.Generator().manual_seed(0))
    nsd.save(deq, folder / "model.safetensors")
    return folder


@contextmanager
def _harmless():
    """No server, no browser, no experiment, and no ONNX, whose import alone takes seconds: these have tests of their own."""

    def not_run(*_arguments, **_options):
        raise BadInput("Experiments are not run here.")

    server = SimpleNamespace(run=lambda: None, task_dispatcher=SimpleNamespace(active_count=0))

    def served(*_arguments, sockets, **_options):
        sockets[0].close()
        return server

    with (
        patch("notsodeep.app.server.make_app", lambda _explorer, _names: SimpleNamespace(server=None)),
        patch("waitress.server.create_server", served),
        patch("webbrowser.open", lambda _address: None),
        patch("notsodeep.models.enn.ENN.to_onnx", lambda _network, path: path),
        patch("notsodeep.cli.experiments.run", not_run),
    ):
        yield


def _ran(arguments):
    """(exit code, standard output, standard error) of a command line."""

    def hangs(_signal, _frame):
        raise Hangs(arguments)

    out, error = (TextIOWrapper(BytesIO(), "utf-8", write_through=True) for _ in range(2))
    timers = {signal.ITIMER_PROF: (signal.SIGPROF, LONGEST), signal.ITIMER_REAL: (signal.SIGALRM, LONGEST_WAIT)}
    before = {number: signal.signal(number, hangs) for number, _ in timers.values()}
    for timer, (_, seconds) in timers.items():
        signal.setitimer(timer, seconds)
    code = 0
    try:
        with patch.object(sys, "argv", ["notsodeep", *arguments]), redirect_stdout(out), redirect_stderr(error), _harmless():
            main()
    except SystemExit as ended:
        code = ended.code or 0
    finally:
        for timer, (number, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])
    return code, *(stream.buffer.getvalue().decode("utf-8", "surrogateescape") for stream in (out, error))


def _files(folder):
    return {path for path in folder.rglob("*") if path.is_file()}


def _check(place, arguments):
    before = _files(place)
    code, out, error = _ran(arguments)
    new = _files(place) - before
    try:
        assert code in (0, 1, 2), (code, error)
        assert "Traceback" not in error
        assert UNFORESEEN not in error
        if code == 2:
            assert "rror: " in error
            assert len([line for line in error.splitlines() if "rror: " in line]) == 1
            assert not new
        elif "--json" in arguments and "--help" not in arguments:
            json.loads(out)
        for path in new:
            assert not path.name.startswith(".") and "partial" not in path.name, path  # noqa: PT018
            _read(path)
        assert not (place / "made").exists()
    finally:
        for path in new:
            path.unlink()


def _read(path):
    """Whatever was written is whole."""
    assert path.stat().st_size
    if path.suffix == ".npy":
        np.load(path)
    elif path.suffix == ".json":
        json.loads(path.read_text("utf-8"))
    elif path.suffix == ".npz":
        assert zipfile.ZipFile(path).testzip() is None


@pytest.fixture
def there(place, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(place)
    monkeypatch.setenv("NOTSODEEP_TRACEBACK", "1")  # an error that nobody foresaw comes out
    monkeypatch.setenv("NOTSODEEP_DATA", str(place / "folder"))
    monkeypatch.setenv("HOME", str(place / "folder"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "folder"))
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path_factory.mktemp("fonts")))  # which the explorer's processes write
    pytest.importorskip("waitress")
    pytest.importorskip("dash")
    return place


_CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=40, suppress_health_check=_CHECKS)
@given(arguments=command_lines())
@pytest.mark.filterwarnings("ignore")
def test_command_lines(there, arguments):
    _check(there, arguments)


@pytest.mark.slow
@settings(max_examples=500, suppress_health_check=_CHECKS)
@given(arguments=command_lines())
@pytest.mark.filterwarnings("ignore")
def test_many_command_lines(there, arguments):
    _check(there, arguments)


def _raw(*_arguments, **_options):
    raise RuntimeError("nobody foresaw it")


def _half_a_file(*_arguments, **_options):
    Path("new.npy").write_bytes(b"half")
    raise BadInput("too late")


def _hanging(*_arguments, **_options):
    time.sleep(5.0)


def _busy(*_arguments, **_options):
    while True:
        pass


@pytest.mark.parametrize(
    ("fault", "found"), [(_raw, RuntimeError), (_half_a_file, AssertionError), (_hanging, Hangs), (_busy, Hangs)]
)
def test_faults_are_found(there, monkeypatch, fault, found):
    if found is Hangs:
        monkeypatch.setattr("tests.cli.test_command_lines.LONGEST", 0.2)
        monkeypatch.setattr("tests.cli.test_command_lines.LONGEST_WAIT", 0.5)
    monkeypatch.setattr("notsodeep.cli.kernel.load", fault)
    with pytest.raises(found):
        _check(there, ["kernel", "--data", "good.npy"])


def test_every_command_is_drawn_from():
    assert len(COMMANDS) == 12
    assert ("data", "list") in COMMANDS
