"""Write neural_tangents.json: kernels of explicit networks by the public library neural-tangents, in float64.

Independent of the package. Their network is Dense, φ_1, Dense, φ_2, … Dense in the NTK parametrisation without biases. The
library divides x·x by the number of features p, so the first Dense takes W_std = √p and the others 1: then the kernels are
those of f = aᵀx^(L) with Σ^(0) = Θ^(0) = S and every matrix and a trained (THEORY section 5). The last Dense passes the
features' covariance on as "nngp" and adds a's own gradient to "ntk".

Run: python tests/golden/make_neural_tangents.py
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
    "abs": stax.Abs,
    "erf": stax.Erf,
    "gelu": lambda: stax.Gelu(approximate=False),
    "sin": stax.Sin,
    "cos": stax.Cos,
    "gaussian": lambda: stax.Gaussian(1, -0.5),
    "polynomial:0.5,1,-0.25": lambda: stax.Polynomial([0.5, 1.0, -0.25]),
    "sign": stax.Sign,
}
NETWORKS = [
    ["relu"],
    ["relu", "relu"],
    ["leaky_relu:0.1"],
    ["leaky_relu:0.1", "leaky_relu:0.1"],
    ["abs"],
    ["abs", "abs"],
    ["erf"],
    ["erf", "erf"],
    ["gelu"],
    ["gelu", "gelu"],
    ["sin"],
    ["sin", "sin"],
    ["cos", "cos"],
    ["gaussian", "gaussian"],
    ["polynomial:0.5,1,-0.25"],
    ["relu", "erf", "sin"],
    ["gelu", "abs", "gaussian", "leaky_relu:0.1"],
    ["sign"],
]


def inputs() -> np.ndarray:
    """Seven samples of five features, norms from 0.3 to 3, one pair nearly parallel and one nearly opposite."""
    random = np.random.default_rng(20240607)
    x = random.standard_normal((7, 5))
    x[3] = x[2] / np.linalg.norm(x[2]) + 0.1 * x[3]
    x[5] = -x[4] / np.linalg.norm(x[4]) + 0.1 * x[5]
    return x * np.array([0.3, 0.6, 1.0, 1.0, 1.5, 2.0, 3.0])[:, None] / np.linalg.norm(x, axis=1, keepdims=True)


def kernels(x: np.ndarray, names: list[str]) -> dict:
    first = [stax.Dense(1, W_std=float(np.sqrt(x.shape[1])), b_std=None, parameterization="ntk")]
    hidden = [part for name in names for part in (LAYERS[name](), stax.Dense(1, W_std=1.0, b_std=None, parameterization="ntk"))]
    _, _, kernel_fn = stax.serial(*first, *hidden)
    found = kernel_fn(x, x, ("nngp", "ntk"))  # x against itself given as two arguments: no shortcut for the diagonal
    record = {"layers": names, "conjugate": np.asarray(found.nngp).tolist()}
    if "sign" not in names:
        record["tangent"] = np.asarray(found.ntk).tolist()
    return record


def main() -> None:
    x = inputs()
    header = {
        "made by": "tests/golden/make_neural_tangents.py",
        "python": platform.python_version(),
        "neural-tangents": nt.__version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "precision": "float64 (jax_enable_x64)",
    }
    document = {"provenance": header, "x": x.tolist(), "networks": [kernels(x, names) for names in NETWORKS]}
    path = pathlib.Path(__file__).with_name("neural_tangents.json")
    path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
