"""What a console, a disc and a keyboard do to the command line."""

import io
import json
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import numpy as np
import pytest

from notsodeep.cli import main
from notsodeep.cli.console import in_ascii
from notsodeep.errors import BadInput
from notsodeep.runtime.files import write_whole

GMM = "gmm:n=20,p=10"


@pytest.fixture
def console(monkeypatch):
    """Run the command line on a console of an encoding: (exit code, bytes on standard output, bytes on standard error)."""

    def run(encoding, *arguments, errors="strict"):
        out, error = (io.TextIOWrapper(io.BytesIO(), encoding, errors) for _ in range(2))
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["notsodeep", *arguments])
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", error)
            try:
                main()
                code = 0
            except SystemExit as ended:
                code = ended.code or 0
            out.flush()
            error.flush()
        return code, out.buffer.getvalue(), error.buffer.getvalue()

    return run


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437", "utf-8", "utf-16"])
def test_a_console_of_any_encoding(console, encoding):
    code, out, _ = console(encoding, "design", "--data", GMM)
    text = out.decode(encoding)
    assert code == 0
    assert f"20 samples {'x' if encoding in ('ascii', 'cp437') else '×'} 10 features" in text
    code, out, _ = console(encoding, "design", "--help")
    assert code == 0
    assert "the variance of the recurrent weights" in out.decode(encoding)
    code, out, error = console(encoding, "design", "--var-a", "7", "--data", GMM)
    assert (code, out.decode(encoding)) == (2, "")
    assert f"by default it is 1 {'−' if encoding.startswith('utf') else '-'} var_a" in error.decode(encoding)


def test_json_loses_nothing_on_an_ascii_console(console):
    _, plain, _ = console("utf-8", "kernel", "--data", GMM, "--json")
    code, out, _ = console("ascii", "kernel", "--data", GMM, "--json")
    assert code == 0
    found = json.loads(out.decode("ascii"))
    assert found | {"seconds": 0} == json.loads(plain) | {"seconds": 0}
    assert "×" in found["data"]


def test_a_file_name_that_is_no_text(console, tmp_path):
    name = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.npy")
    code, _, error = console("utf-8", "design", "--data", name)
    assert code == 2
    assert b"There is no file" in error


def test_signs_in_ascii():
    assert "".join(map(in_ascii, "σ_a² ≥ 1 − Δτ, ‖x‖ → ∞; é ⠋ 日")) == "sigma_a^2 >= 1 - Deltatau, ||x|| -> inf; e * ?"


def test_an_endless_input_is_told_in_one_short_line(console):
    code, _, error = console("utf-8", "design", "--activation", "y\n\x1b[31m" * 10_000, "--data", GMM)
    assert code == 2
    assert error.startswith(b"error: There is no activation named")
    assert error.count(b"\n") == 1
    assert b"\x1b" not in error
    assert len(error) < 2000


@pytest.mark.parametrize("kind", ["hermite", "polynomial"])
def test_thousands_of_coefficients_are_refused_at_once(console, kind):
    started = time.monotonic()
    code, _, error = console("utf-8", "kernel", "--activation", f"{kind}:{','.join(['1e-3'] * 3000)}", "--data", GMM)
    assert code == 2
    assert b"are 3000; at most 512" in error
    assert time.monotonic() - started < 5


def _lying(path, shape):
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(800))
    return path


@pytest.mark.parametrize("shape", ["(1000000000, 30)", "(20, 6)", "(-1, 5)", "(9223372036854775808, 4)"])
def test_a_header_that_promises_too_much(console, tmp_path, shape):
    path = _lying(tmp_path / "x.npy", shape)
    np.save(tmp_path / "good.npy", np.eye(20))
    for arguments in (["--data", str(path)], ["--data", str(tmp_path / "good.npy"), "--labels", str(path)]):
        code, _, error = console("utf-8", "advise", *arguments)
        assert code == 2
        assert b"x.npy' promises an array of shape" in error
        assert b"and holds 800: it was cut short, or its header is wrong" in error
        assert error.count(b"\n") == 1


@pytest.fixture
def chatty():
    """Ports at which something listens that is no Dask scheduler: one keeps silent, one speaks first, one hangs up."""
    with ExitStack() as stack:
        greetings = {"silent": None, "speaks": b"SSH-2.0-OpenSSH_9.6\r\n", "hangs up": b""}
        servers = {name: stack.enter_context(socket.create_server(("127.0.0.1", 0))) for name in greetings}

        def serve(name):
            line, _ = servers[name].accept()
            with line:
                line.sendall(greetings[name])

        for name in ("speaks", "hangs up"):
            threading.Thread(target=serve, args=(name,), daemon=True).start()
        yield {name: server.getsockname()[1] for name, server in servers.items()}


@pytest.mark.parametrize("kind", ["dead", "silent", "speaks", "hangs up", "unreachable", "no port", "no address", "empty"])
def test_no_scheduler_there(console, chatty, tmp_path, monkeypatch, kind):
    pytest.importorskip("distributed")
    monkeypatch.setattr("notsodeep.runtime.dask._ANSWER", 0.5)
    address = {
        "dead": "tcp://127.0.0.1:1",
        "unreachable": "tcp://no.such.host.invalid:8786",
        "no port": "tcp://127.0.0.1:99999",
        "no address": "tcp://:::",
        "empty": "",
    }.get(kind) or (f"tcp://127.0.0.1:{chatty[kind]}" if kind in chatty else "")
    started = time.monotonic()
    code, _, error = console(
        "utf-8", "kernel", "--data", GMM, "--format", "zarr", "--out", str(tmp_path / "k"), "--scheduler", address
    )
    assert (code, error.count(b"\n")) == (2, 1), error
    assert b"There is no Dask scheduler at" in error
    assert time.monotonic() - started < 8
    assert not (tmp_path / "k").exists()


def test_a_full_disc_is_told(tmp_path):
    with pytest.raises(BadInput, match=r"'.*x.npy': the disc is full \(No space left on device; .* MiB are free\)\. Make room"):
        write_whole(tmp_path / "x.npy", lambda _: _write_to("/dev/full"))
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_without_a_reason(tmp_path, monkeypatch):
    """As NumPy's do."""

    def short(_):
        raise OSError("400 requested and 128 written")

    with pytest.raises(BadInput, match=r"x.csv': 400 requested and 128 written\."):
        write_whole(tmp_path / "x.csv", short)
    monkeypatch.setattr("notsodeep.runtime.files._NO_ROOM", 1 << 62)
    with pytest.raises(BadInput, match=r"the disc is full \(400 requested and 128 written; "):
        write_whole(tmp_path / "x.csv", short)


def test_a_limit_of_file_size_leaves_no_half_a_file(console, tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        code, _, error = console("utf-8", "kernel", "--data", GMM, "--out", str(tmp_path / "k"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (code, list((tmp_path / "k").iterdir())) == (2, [])
    assert b"kernel.npy': File too large." in error


def _write_to(path):
    with open(path, "wb", buffering=0) as file:
        file.write(b"x")


@pytest.mark.parametrize("umask", [0o077, 0o002, 0o022])
def test_new_files_respect_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        path = write_whole(tmp_path / "x.txt", lambda to: to.write_text("new"))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    path.chmod(0o600)
    write_whole(path, lambda to: to.write_text("again"))  # and a file that is private stays so
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["x.txt"]


_SLOW_TORCH = "import sys, time\nprint('importing', file=sys.stderr, flush=True)\ntime.sleep(30)\n"


def test_stopped_while_it_starts(tmp_path):
    """With a torch that takes its time."""
    (tmp_path / "torch.py").write_text(_SLOW_TORCH)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    with subprocess.Popen(
        [sys.executable, "-m", "notsodeep.cli", "design"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    ) as process:
        assert process.stderr.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=20)
    assert (process.returncode, out, error) == (130, "", "stopped\n")
