"""Write neural_tangents_images.json: kernels of convolutional networks by the public library neural-tangents, in float64.

Independent of the package. Their network is Conv, φ_1, Conv, φ_2, … read out by Flatten or GlobalAvgPool and Dense, in the NTK
parametrisation without biases. The library divides x[s]·x[s'] by the number of channels c, so the first Conv takes W_std = √c
and the others 1; its Conv averages over the patch, as P does (THEORY section 8).

Run: python tests/golden/make_neural_tangents_images.py
in an environment with neural-tangents 0.6.5, jax 0.4.30, numpy < 2 (and tf2jax 0.3.5, which its import needs).
"""

import json
import pathlib
import platform

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

import neural_tangents as nt  # noqa: E402
from neural_tangents import stax  # noqa: E402

LAYERS = {
    "relu": stax.Relu,
    "leaky_relu:0.1": lambda: stax.LeakyRelu(0.1),
    "erf": stax.Erf,
    "gelu": lambda: stax.Gelu(approximate=False),
}
NETWORKS = [["relu"], ["erf"], ["relu", "relu"], ["gelu", "erf"], ["relu", "leaky_relu:0.1", "erf"]]
PADDINGS = {"zero": "SAME", "circular": "CIRCULAR"}
PATCHES = [[3, 3], [1, 3]]


def inputs() -> np.ndarray:
    """Four images of two channels, (n, c, h, w); two of them alike."""
    random = np.random.default_rng(20261120)
    x = random.standard_normal((4, 2, 5, 4))
    x[1] = x[0] + 0.1 * x[1]
    return x / np.sqrt(2.0)


def kernels(x: np.ndarray, names: list[str], patch: list[int], padding: str, readout: str) -> dict:
    parts = []
    for depth, name in enumerate(names):
        scale = float(np.sqrt(x.shape[1])) if depth == 0 else 1.0
        parts.append(stax.Conv(1, tuple(patch), padding=PADDINGS[padding], W_std=scale, b_std=None, parameterization="ntk"))
        parts.append(LAYERS[name]())
    parts.append(stax.Flatten() if readout == "flat" else stax.GlobalAvgPool())
    parts.append(stax.Dense(1, W_std=1.0, b_std=None, parameterization="ntk"))
    _, _, kernel_fn = stax.serial(*parts)
    images = x.transpose(0, 2, 3, 1)
    found = kernel_fn(images, images, ("nngp", "ntk"))
    setting = {"layers": names, "patch": patch, "padding": padding, "readout": readout}
    return setting | {"conjugate": np.asarray(found.nngp).tolist(), "tangent": np.asarray(found.ntk).tolist()}


def main() -> None:
    x = inputs()
    provenance = {
        "made by": "tests/golden/make_neural_tangents_images.py",
        "neural-tangents": nt.__version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "precision": "float64 (jax_enable_x64)",
    }
    networks = [
        kernels(x, names, patch, padding, readout)
        for names in NETWORKS
        for patch in PATCHES
        for padding in PADDINGS
        for readout in ("flat", "pooled")
    ]
    path = pathlib.Path(__file__).with_name("neural_tangents_images.json")
    path.write_text(json.dumps({"provenance": provenance, "x": x.tolist(), "networks": networks}, indent=0) + "\n")


if __name__ == "__main__":
    main()
