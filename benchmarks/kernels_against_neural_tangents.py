"""CK and NTK of a DEQ, by `nsd.exact_kernels` and by the public library neural-tangents 0.6.5, to the same accuracy.

The model is `Implicit(φ, σ_a², centre=False)`: neural-tangents has no offset of an activation. It unrolls the DEQ to the
fewest layers (and, for tanh, the fewest quadrature points) whose error off the diagonal, over the largest entry, is at most
1e-5 in float32 and 1e-10 in float64; its diagonal, where it loses half the digits of the NTK, is reported but not held
against it. Both run two threads and take turns in one run; each keeps its best. CPU seconds bear a busy machine better.

Run: .venv/bin/python benchmarks/kernels_against_neural_tangents.py --peer-python NT/bin/python
with NT the environment whose making benchmarks/neural_tangents_peer.py describes.
Options: --var-a --n --p --tanh-n --rounds --cases.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

import numpy as np

HERE = pathlib.Path(__file__).parent
TARGET = {"float32": 1e-5, "float64": 1e-10}
PROBE, DEPTH = 60, {"relu": 80, "tanh": 30}
DEGREES = (10, 15, 20, 25, 30, 40, 50, 60, 70, 80)


class Worker:
    """A process that runs its task once for every line it gets; killed when it says nothing for `limit` seconds."""

    def __init__(self, name: str, command: list[str], limit: float) -> None:
        self.name, self.limit, self.best = name, limit, {"wall": float("inf"), "cpu": float("inf")}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.about = self._answer()

    def _answer(self) -> dict:
        timer = threading.Timer(self.limit, self.process.kill)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        if not line:
            raise SystemExit(f"{self.name}: died, or took more than {self.limit:.0f} s.")
        return json.loads(line)

    def turn(self) -> float:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        took = self._answer()
        self.best = {key: min(value, took[key]) for key, value in self.best.items()}
        return took["wall"]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=self.limit)


def ours(options: argparse.Namespace) -> None:
    """The worker: notsodeep, or the one matrix product, behind the peer's own protocol."""
    import torch
    from neural_tangents_peer import serve

    import notsodeep as nsd

    torch.set_num_threads(2)
    x = torch.from_numpy(np.load(options.x))
    net = nsd.Implicit(options.activation, options.var_a, centre=False)

    def kernels(x):
        found = nsd.exact_kernels(net, x)
        return found.conjugate, found.tangent

    def product(x):
        return (x @ x.T,) * 2

    work = kernels if options.worker == "ours" else product
    work(x[:800])  # enough for the compiled path
    serve(lambda: work(x), options.out, {"notsodeep": nsd.__version__, "torch": torch.__version__})


def errors(found, reference) -> list[float]:
    """CK and NTK off the diagonal, then CK and NTK on it: largest error over the largest entry."""
    off, value = ~np.eye(len(reference[0]), dtype=bool), []
    for mask in (off, ~off):
        value += [np.abs(f - r)[mask].max() / np.abs(r).max() for f, r in zip(found, reference, strict=True)]
    return value


def cheapest(path: str, reference, target: float) -> tuple[int, int, float]:
    """Degree, layers and error of the least work that reaches the target on the probe, or else the most exact."""
    tried = []
    with np.load(path) as found:
        for degree in found.files:
            for depth, kernels in enumerate(found[degree], 1):
                tried.append((int(degree), depth, max(errors(kernels, reference)[:2])))
    good = [t for t in tried if t[2] <= 0.9 * target]  # a little room for the samples outside the probe
    return min(good, key=lambda t: (max(t[0], 1) ** 2 * t[1], t[2])) if good else min(tried, key=lambda t: t[2])


def reference_kernels(activation: str, var_a: float, x: np.ndarray):
    import torch

    import notsodeep as nsd

    found = nsd.exact_kernels(nsd.Implicit(activation, var_a, centre=False), torch.from_numpy(x.astype(np.float64)))
    return found.conjugate.numpy(), found.tangent.numpy()


def compare(options, folder: pathlib.Path, activation: str, precision: str, var_a: float, n: int) -> None:
    x = (np.random.default_rng(0).standard_normal((n, options.p)) / options.p**0.5).astype(np.float32).astype(precision)
    at = {name: str(folder / f"{name}.np{'y' if name in 'xs' else 'z'}") for name in ("x", "s", "found", "a", "b", "c")}
    np.save(at["x"], x)
    np.save(at["s"], x[:PROBE])
    peer = [options.peer_python, str(HERE / "neural_tangents_peer.py"), "--activation", activation]
    peer += ["--var-a", str(var_a)]
    degrees = [str(d) for d in (DEGREES if activation == "tanh" else (0,))]
    search = [
        "--x",
        at["s"],
        "--out",
        at["found"],
        "--form",
        "search",
        "--layers",
        str(DEPTH[activation]),
        "--degrees",
        *degrees,
    ]
    subprocess.run(peer + search, check=True, timeout=options.limit)
    probe = reference_kernels(activation, var_a, x[:PROBE])
    degree, layers, _ = cheapest(at["found"], probe, TARGET[precision])
    with np.load(at["found"]) as found:
        floor = errors(found[degrees[-1]][-1], probe)
    print(f"\n{activation} DEQ, σ_a² = {var_a:g}, n = {n}, p = {options.p}, {precision}: L = {layers}", end="", flush=True)
    print(f", quadrature of degree {degree}" if degree else "")
    print(f"  ours against its deepest ({DEPTH[activation]} layers), {PROBE} samples, off the diagonal: {max(floor[:2]):.1e}")
    own = [sys.executable, __file__, "--activation", activation, "--var-a", str(var_a), "--x", at["x"]]
    workers = [Worker("ours", [*own, "--worker", "ours", "--out", at["a"]], options.limit)]
    workers.append(Worker("x @ x.T (torch)", [*own, "--worker", "product", "--out", at["b"]], options.limit))
    run = [*peer, "--x", at["x"], "--layers", str(layers), "--degrees", str(degree), "--out", at["c"]]
    tile = ["--tile", "500" if activation == "relu" else "100"]
    for form in ("steps", "whole", "tiles") if activation == "relu" else ("tiles",):  # the others: degree² × n² numbers at once
        workers.append(Worker(f"peer, {form}", [*run, "--form", form, *tile], options.limit))
    spent = 0.0
    for _ in range(options.rounds):
        spent += sum(worker.turn() for worker in workers)
        if spent > options.limit / 2:
            break
    reference = reference_kernels(activation, var_a, x)
    results = 2 * n * n * x.itemsize / 1e6
    for worker in workers:
        worker.close()
        line = f"  {worker.name:16s} {worker.best['wall']:8.3f} s  {worker.best['cpu']:8.3f} CPU s"
        if "x.T" not in worker.name:
            memory = worker.about["memory_mb"]
            with np.load(at["a" if worker.name == "ours" else "c"]) as found:
                wrong = errors((found["conjugate"], found["tangent"]), reference)
            line += f"  {memory:7.0f} MB = {memory / results:.2f} × the two results"
            line += f"  error CK {wrong[0]:.0e} NTK {wrong[1]:.0e}, diagonal {wrong[2]:.0e} {wrong[3]:.0e}"
            if worker.name == "ours" and precision == "float64":
                line += " (against itself: see the line above)"
            elif max(wrong[:2]) > TARGET[precision]:
                line += "  MISSES THE TARGET"
        print(line)
    ratios = {w.name: [w.best[key] / workers[0].best[key] for key in ("wall", "cpu")] for w in workers[2:]}
    print("  over ours, in time and in CPU time: " + "; ".join(f"{k} {a:.1f}, {b:.1f}" for k, (a, b) in ratios.items()))
    print("  " + ", ".join(f"{k} {v}" for w in (workers[0], workers[-1]) for k, v in w.about["versions"].items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python", help="the python of the environment with neural-tangents")
    parser.add_argument("--n", type=int, default=4000, help="a multiple of 500")
    parser.add_argument("--tanh-n", type=int, default=1000, help="a multiple of 100")
    parser.add_argument("--p", type=int, default=784)
    parser.add_argument("--var-a", type=float, nargs="+", default=[0.2, 0.5, 0.8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=900.0, help="seconds without a word before a process is killed")
    parser.add_argument("--cases", nargs="+", default=[f"{a}:{t}" for a in ("relu", "tanh") for t in TARGET])
    for hidden in ("--worker", "--activation", "--x", "--out"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        options.var_a = options.var_a[0]
        ours(options)
        return
    check = "import jax, neural_tangents"
    made = options.peer_python and pathlib.Path(options.peer_python).exists()
    if not made or subprocess.run([options.peer_python, "-c", check], capture_output=True).returncode:
        raise SystemExit("--peer-python must have neural-tangents: see benchmarks/neural_tangents_peer.py for its making.")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # two threads for everyone, children included
    for case, var_a in itertools.product(options.cases, options.var_a):
        activation, precision = case.split(":")
        with tempfile.TemporaryDirectory() as folder:
            n = options.n if activation == "relu" else options.tanh_n
            compare(options, pathlib.Path(folder), activation, precision, var_a, n)


if __name__ == "__main__":
    main()
