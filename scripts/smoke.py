"""Does an installed notsodeep work? Run by the interpreter that has it, away from the sources; needs the base install only."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import notsodeep as nsd
from notsodeep.data import load

# (a module that an extra brings, a command that needs it, the extra to be named); commands that are not there are passed over.
NEEDS_AN_EXTRA = (
    ("pyarrow", ("design", "--data", "table.parquet"), "parquet"),
    ("zarr", ("kernel", "--data", "gmm:n=40,p=20", "--format", "zarr", "--out", "kernels"), "dask"),
    ("dash", ("explore",), "app"),
)


def library() -> None:
    """Design, kernels, both networks, and a file, on handwritten digits."""
    x = load("digits").x[:200]
    net = nsd.Implicit("relu", var_a=0.2)
    found = nsd.design(net, x=x)
    assert found.residual < 1e-8, found.residual
    assert found.measured is not None
    assert found.measured.gap < 1e-2, found.measured.gap
    kernels = nsd.exact_kernels(net, x)
    assert kernels.conjugate.shape == kernels.tangent.shape == (len(x), len(x))
    assert nsd.relative_gap(kernels.conjugate, nsd.sharp_kernel(net, x)) < 0.1
    draw = torch.Generator().manual_seed(0)
    deq = nsd.DEQ(net, in_features=64, width=128, out_features=10, generator=draw)
    enn = nsd.ENN(found.explicit, in_features=64, width=128, out_features=10, generator=draw)
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        for network in (deq, enn):
            path = Path(folder) / "network.safetensors"
            nsd.save(network, path)
            assert torch.equal(nsd.load(path)(x.float()), network(x.float()))


def command(*arguments: str, folder: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "notsodeep.cli", *arguments]
    return subprocess.run(program, cwd=folder, capture_output=True, text=True, timeout=600)


def command_line() -> list[str]:
    """The program, also where an extra is missing; says which of these were seen."""
    seen = []
    with tempfile.TemporaryDirectory() as folder:
        assert command("--version", folder=folder).stdout == f"notsodeep {nsd.__version__}\n"
        shown = command("--help", folder=folder)
        assert shown.returncode == 0, shown.stderr
        assert "design" in shown.stdout
        made = command("design", "--data", "digits", "--json", "--out", "made", folder=folder)
        assert made.returncode == 0, made.stderr
        assert json.loads(made.stdout)["residual"] < 1e-8
        assert (Path(folder) / "made" / "design.png").stat().st_size > 0
        (Path(folder) / "table.parquet").write_bytes(b"PAR1")
        for module, arguments, extra in NEEDS_AN_EXTRA:
            if importlib.util.find_spec(module) is not None or f" {arguments[0]} " not in shown.stdout:
                continue
            refused = command(*arguments, folder=folder)
            assert refused.returncode == 2, (arguments, refused.returncode, refused.stderr)
            assert f"notsodeep[{extra}]" in refused.stderr, refused.stderr
            assert len(refused.stderr.strip().splitlines()) == 1, refused.stderr
            seen.append(extra)
    return seen


if __name__ == "__main__":
    library()
    refused = command_line()
    print(f"notsodeep {nsd.__version__} in {Path(nsd.__file__).parent} works; told as missing: {', '.join(refused) or 'none'}")
