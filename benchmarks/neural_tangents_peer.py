"""The peer of kernels_against_neural_tangents.py: CK and NTK of a DEQ by the public library neural-tangents 0.6.5.

Runs in an environment of its own and never imports notsodeep. The DEQ is unrolled: h ← φ(h) W + x U, L times from h = x U,
one stax layer in a lax.fori_loop inside one jit; the NTK of the untied layers goes to that of the tied one as L grows.
Three forms: "steps", a jitted layer in a Python loop; "whole", the loop inside one jit; "tiles", that on the square tiles of
the lower triangle, each mirrored by hand.

The environment (Python 3.11):
  python3.11 -m venv NT && NT/bin/pip install neural-tangents==0.6.5 jax==0.4.25 jaxlib==0.4.25 tf2jax==0.3.5 \
      tensorflow-cpu==2.15.1 numpy==1.26.4 scipy==1.11.4
(pip takes ml_dtypes 0.3.2; tensorflow-cpu 2.15.1 refuses 0.2.0.)
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from functools import partial

import numpy as np

try:
    import jax
    import jax.numpy as jnp
except ImportError:  # notsodeep's own process takes only `serve` from here
    pass


def network(activation: str, degree: int, features: int, var_a: float):
    """The kernel functions of the injection x U, of one layer from (h, xU) to the next h, and of the readout."""
    from neural_tangents import stax

    if activation == "relu":
        phi = stax.Relu()
    else:
        phi = stax.ElementwiseNumerical(jnp.tanh, deg=degree, df=lambda t: 1.0 - jnp.tanh(t) ** 2)
    injection = stax.Dense(1, W_std=((1.0 - var_a) * features) ** 0.5)
    state = stax.serial(phi, stax.Dense(1, W_std=var_a**0.5))
    layer = stax.serial(stax.parallel(state, stax.Identity()), stax.FanInSum())
    return injection[2], layer[2], stax.serial(phi, stax.Dense(1))[2]


def started(injection, x1, x2):
    """The kernel of x U. Of x against itself, its diagonal and its variances differ in the last bit unless made equal, and
    the square root of that bit shows in the NTK."""
    drive = injection(x1, x2, None)
    return drive.replace(cov1=jnp.diagonal(drive.nngp)) if x2 is None else drive


def unrolled(kernels):
    """(x1, x2 or None, L) → (CK, NTK)."""
    injection, layer, readout = kernels

    def run(x1, x2, layers):
        drive = started(injection, x1, x2)
        last = readout(jax.lax.fori_loop(0, layers, lambda _, h: layer([h, drive]), drive))
        return last.nngp, last.ntk

    return run


def steps(kernels, x, layers):
    injection, layer, readout = (jax.jit(part) for part in (partial(started, kernels[0], x2=None), *kernels[1:]))

    def work():
        h = drive = injection(x)
        for _ in range(layers):
            h = layer([h, drive])
        last = readout(h)
        return jax.block_until_ready((last.nngp, last.ntk))

    work()
    return work


def whole(run, x, layers):
    compiled = jax.jit(lambda x: run(x, None, layers)).lower(x).compile()
    return lambda: jax.block_until_ready(compiled(x))


def tiles(run, x, layers, size):
    size = min(size, len(x))
    if len(x) % size:
        raise SystemExit(f"{len(x)} samples are no whole number of tiles of {size}.")
    blocks = [x[start : start + size] for start in range(0, len(x), size)]
    square = jax.jit(lambda x: run(x, None, layers)).lower(blocks[0]).compile()
    pair = jax.jit(lambda x1, x2: run(x1, x2, layers)).lower(blocks[0], blocks[-1]).compile()

    def work():
        results = [np.empty((len(x), len(x)), x.dtype) for _ in range(2)]
        for i, left in enumerate(blocks):
            rows = slice(i * size, (i + 1) * size)
            for j, right in enumerate(blocks[: i + 1]):
                columns = slice(j * size, (j + 1) * size)
                for result, tile in zip(results, square(left) if i == j else pair(left, right), strict=True):
                    result[rows, columns] = tile
                    if i != j:
                        result[columns, rows] = np.asarray(tile).T
        return results

    return work


def search(options, x) -> None:
    """The kernels of a few samples after 1 … max layers, for every degree: an npz for the caller to choose from."""
    found = {}
    for degree in options.degrees:
        injection, layer, readout = network(options.activation, degree, x.shape[1], options.var_a)
        step = jax.jit(lambda h, drive, layer=layer: layer([h, drive]))
        h = drive = started(injection, x, None)
        after = []
        for _ in range(options.layers):
            h = step(h, drive)
            last = readout(h)
            after.append((last.nngp, last.ntk))
        found[str(degree)] = np.asarray(after)  # (layers, 2, n, n)
    np.savez(options.out, **found)


def memory(field: str) -> float:
    """MB of VmRSS (now) or VmHWM (at most) of this process. getrusage would answer with its parent's peak."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 / 1e6 for line in file if line.startswith(field))


def serve(work, out: str, versions: dict) -> None:
    """One first run, whose memory is measured; then one timed run a line of input; the kernels are saved at its end."""
    before = memory("VmRSS")
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # forget the peak of the imports and the compiler
    except OSError:
        pass
    work()
    peak = memory("VmHWM") - before
    print(json.dumps({"memory_mb": peak, "versions": versions}), flush=True)
    result = None
    for _ in sys.stdin:
        result = None
        wall, cpu = time.perf_counter(), time.process_time()
        result = work()
        print(json.dumps({"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}), flush=True)
    if result is not None:
        np.savez(out, conjugate=np.asarray(result[0]), tangent=np.asarray(result[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--x", required=True, help="an .npy of (n, p) samples, in the precision to compute in")
    parser.add_argument("--out", required=True, help="the .npz to write")
    parser.add_argument("--activation", choices=("relu", "tanh"), default="relu")
    parser.add_argument("--var-a", type=float, default=0.2)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--degrees", type=int, nargs="+", default=[0], help="of the quadrature, for tanh")
    parser.add_argument("--form", choices=("search", "steps", "whole", "tiles"), required=True)
    parser.add_argument("--tile", type=int, default=500)
    options = parser.parse_args()
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    warnings.filterwarnings("ignore")
    x = np.load(options.x)
    jax.config.update("jax_enable_x64", x.dtype == np.float64)
    x = jnp.asarray(x)
    if options.form == "search":
        search(options, x)
        return
    import neural_tangents

    kernels = network(options.activation, options.degrees[0], x.shape[1], options.var_a)
    if options.form == "steps":
        work = steps(kernels, x, options.layers)
    elif options.form == "whole":
        work = whole(unrolled(kernels), x, options.layers)
    else:
        work = tiles(unrolled(kernels), x, options.layers, options.tile)
    serve(work, options.out, {"neural-tangents": neural_tangents.__version__, "jax": jax.__version__})


if __name__ == "__main__":
    main()
