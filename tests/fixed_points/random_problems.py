"""Random fixed-point problems of many kinds, each from a seed; `oracle.py` judges what a solver says about them.

Rows may be independent or coupled, and the solver is told so or not. The contraction factor is drawn from .3 to 1.2, as a norm
or as a spectral radius: some problems have no fixed point that an iteration finds, and those must be named rightly.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

import notsodeep as nsd

ACTIVATIONS = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sin": torch.sin,
    "leaky": lambda h: functional.leaky_relu(h, 0.1),
    "identity": lambda h: h,
    "abs": torch.abs,
}
_EIGENVALUES_UP_TO = 120  # beyond, the norm: eigenvalues of a general matrix take long
TAKES_SAMPLES = "samples" in inspect.signature(nsd.fixed_point).parameters

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Problem:
    """z = apply(weights, z) from `start`; weights and start are in float64, and solved in `dtype`.

    `samples` is the number of leading axes whose entries are problems of their own (0: the whole state is one problem).
    `lipschitz` bounds the map's Lipschitz constant in the Euclidean norm of the whole state, where one is known.
    """

    seed: int
    family: str
    apply: Callable[[Weights, Tensor], Tensor]
    weights: Weights
    start: Tensor
    samples: int
    lipschitz: float
    dtype: torch.dtype
    tol: float
    max_steps: int
    kind: str
    solver: nsd.fixed_points.Solver

    def map(self, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
        weights = {name: weight.to(dtype) for name, weight in self.weights.items()}
        return lambda z: self.apply(weights, z)

    def solve(self, f: Callable[[Tensor], Tensor], *, told: bool) -> nsd.fixed_points.Solution:
        """What the library finds, with its own guess at what is independent, or told."""
        options = {"tol": self.tol, "max_steps": self.max_steps, "throw": False}
        z0 = self.start.to(self.dtype)
        with torch.no_grad():
            if not told:
                return nsd.fixed_point(f, z0, self.solver, **options)
            if TAKES_SAMPLES:
                return nsd.fixed_point(f, z0, self.solver, samples=self.samples, **options)
            # Before `samples` there was the shape: a vector is one problem, a matrix one for each row.
            flat = z0.flatten() if self.samples == 0 else z0.flatten(0, self.samples - 1)
            return nsd.fixed_point(lambda z: f(z.reshape(z0.shape)).reshape(flat.shape), flat, self.solver, **options)


class Draw:
    """Random numbers of one problem."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=self.generator, dtype=torch.float64))

    def integer(self, low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=self.generator))

    def size(self, low: int, high: int) -> int:
        return round(math.exp(self.uniform(math.log(low), math.log(high))))

    def choice(self, options: list):
        return options[self.integer(0, len(options) - 1)]

    def sparse(self, n: int, m: int, density: float) -> Tensor:
        return self.normal(n, m) * (torch.rand(n, m, generator=self.generator, dtype=torch.float64) < density)


def scaled(draw: Draw, weight: Tensor, factor: float, matrix: Tensor | None = None) -> tuple[Tensor, float]:
    """(weight, its norm) where norm or spectral radius, of `matrix` where that is the linear map, is `factor`."""
    matrix = weight if matrix is None else matrix
    norm = float(torch.linalg.matrix_norm(matrix, 2))
    size = norm
    if draw.integer(0, 1) and len(matrix) <= _EIGENVALUES_UP_TO:
        radius = float(torch.linalg.eigvals(matrix).abs().max())
        size = radius if radius > 0.05 * norm else norm
    return (weight, 0.0) if size == 0.0 else (weight * (factor / size), norm * factor / size)


def dense(draw, phi, factor):
    n, d = draw.integer(1, 8), draw.size(2, 400)
    weight, norm = scaled(draw, draw.normal(d, d), factor)
    return lambda w, z: phi(z @ w["W"].T + w["x"]), {"W": weight, "x": draw.normal(n, d)}, (n, d), 1, norm


def tokens(draw, phi, factor):
    n, t, d = draw.integer(1, 4), draw.integer(1, 6), draw.size(2, 60)
    weight, norm = scaled(draw, draw.normal(d, d), factor)
    return lambda w, z: phi(z @ w["W"].T + w["x"]), {"W": weight, "x": draw.normal(n, t, d)}, (n, t, d), 2, norm


def coupled(draw, phi, factor):
    n, d = draw.size(2, 60), draw.integer(1, 8)
    weight, norm = scaled(draw, draw.normal(n, n), factor)
    return lambda w, z: phi(w["W"] @ z + w["x"]), {"W": weight, "x": draw.normal(n, d)}, (n, d), 0, norm


def two_sided(draw, phi, factor):
    n, d = draw.size(2, 40), draw.size(2, 40)
    left, norm = scaled(draw, draw.normal(n, n), factor)
    right, other = scaled(draw, draw.sparse(d, d, 0.3), 1.0)
    weights = {"W": left, "A": right, "x": draw.normal(n, d)}
    return lambda w, z: phi(w["W"] @ z @ w["A"] + w["x"]), weights, (n, d), 0, norm * other


def graph(draw, phi, factor):
    """Features of nodes, mixed along the edges: φ(Â Z Wᵀ + x), Â the normalised adjacency matrix with loops."""
    n, d = draw.size(2, 60), draw.size(1, 30)
    edges = (draw.sparse(n, n, min(1.0, 4.0 / n)) != 0).double()
    edges = ((edges + edges.T + torch.eye(n, dtype=torch.float64)) > 0).double()
    degree = edges.sum(0).rsqrt()
    weight, norm = scaled(draw, draw.normal(d, d), factor)
    weights = {"A": degree[:, None] * edges * degree, "W": weight, "x": draw.normal(n, d)}
    return lambda w, z: phi(w["A"] @ z @ w["W"].T + w["x"]), weights, (n, d), 0, norm


def sparse(draw, phi, factor):
    n, d = draw.integer(0, 6), draw.size(4, 300)
    weight, norm = scaled(draw, draw.sparse(d, d, min(1.0, 5.0 / d)), factor)
    weights = {"W": weight.to_sparse(), "x": draw.normal(max(n, 1), d) if n else draw.normal(d)}

    def apply(w, z):  # n = 0 is a vector
        return phi(torch.sparse.mm(w["W"], z.reshape(-1, d).T).T.reshape(z.shape) + w["x"])

    return apply, weights, tuple(weights["x"].shape), min(n, 1), norm


def convolution(draw, phi, factor):
    axes, channels = draw.integer(1, 2), draw.integer(1, 4)
    mode = draw.choice(["circular", "constant"])
    n, width = draw.integer(1, 5), draw.size(4, 24) if axes == 1 else draw.integer(3, 6)
    shape = (channels,) + (width,) * axes
    convolve = functional.conv1d if axes == 1 else functional.conv2d

    def linear(kernel, z):
        return convolve(functional.pad(z, (1, 1) * axes, mode=mode), kernel)

    kernel, size = draw.normal(channels, channels, *(3,) * axes), math.prod(shape)
    matrix = linear(kernel, torch.eye(size, dtype=torch.float64).reshape(size, *shape)).reshape(size, size).T
    kernel, norm = scaled(draw, kernel, factor, matrix)
    return (lambda w, z: phi(linear(w["K"], z) + w["x"]), {"K": kernel, "x": draw.normal(n, *shape)}, (n, *shape), 1, norm)


def group_norm(draw, phi, factor):
    n, groups = draw.integer(1, 6), draw.choice([1, 2, 4])
    d = groups * draw.integer(3, 20)
    weights = {"W": scaled(draw, draw.normal(d, d), factor)[0], "x": draw.normal(n, d)}

    def apply(w, z):
        return phi(functional.group_norm(z @ w["W"].T + w["x"], groups))

    return apply, weights, (n, d), 1, math.inf


def _attend(w, z, factor):
    d = z.shape[-1]
    weights = torch.softmax((z @ w["Q"]) @ (z @ w["K"]).mT / math.sqrt(d), dim=-1)
    return factor * weights @ (z @ w["V"]) + w["x"]


def _attention(draw, factor, shape, samples):
    d = shape[-1]
    weights = {name: draw.normal(d, d) / math.sqrt(d) for name in "QKV"} | {"x": draw.normal(*shape)}
    return lambda w, z: _attend(w, z, factor), weights, shape, samples, math.inf


def attention(draw, phi, factor):  # noqa: ARG001
    return _attention(draw, factor, (draw.integer(1, 4), draw.integer(2, 8), draw.size(2, 32)), 1)


def attention_rows(draw, phi, factor):  # noqa: ARG001
    """The tokens of one sequence are the rows: they look like samples, and are coupled."""
    return _attention(draw, factor, (draw.integer(2, 16), draw.size(2, 32)), 0)


def domain(draw, phi, factor):  # noqa: ARG001
    """A root whose argument may turn negative: f returns NaN from a finite state, in some rows."""
    n, d = draw.integer(1, 6), draw.size(2, 60)
    weight, _ = scaled(draw, draw.normal(d, d), factor)
    weights = {"W": weight, "x": 3.0 + draw.uniform(0.0, 1.0) * draw.normal(n, d)}
    return lambda w, z: torch.sqrt(z @ w["W"].T + w["x"]), weights, (n, d), 1, math.inf


FAMILIES = {
    "dense": dense,
    "tokens": tokens,
    "coupled": coupled,
    "two-sided": two_sided,
    "graph": graph,
    "sparse": sparse,
    "convolution": convolution,
    "group norm": group_norm,
    "attention": attention,
    "attention rows": attention_rows,
    "domain": domain,
}
KINDS = ("picard", "damped", "anderson", "anderson at once", "broyden", "broyden at once")


def drawn_solver(draw: Draw, kind: str) -> nsd.fixed_points.Solver:
    if kind == "picard":
        return nsd.Picard()
    if kind == "damped":
        return nsd.Picard(damping=draw.uniform(0.3, 0.9))
    engage = {"engage": 0.0} if "at once" in kind else {}
    if kind.startswith("anderson"):
        return nsd.Anderson(memory=draw.choice([1, 2, 3, 5, 10]), damping=draw.choice([1.0, 1.0, 0.7]), **engage)
    return nsd.Broyden(memory=draw.choice([3, 10, 20, 40]), **engage)


def random_problem(seed: int) -> Problem:
    draw = Draw(seed)
    family, kind = draw.choice(list(FAMILIES)), draw.choice(list(KINDS))
    phi, factor = ACTIVATIONS[draw.choice(list(ACTIVATIONS))], draw.uniform(0.3, 1.2)
    apply, weights, shape, samples, lipschitz = FAMILIES[family](draw, phi, factor)
    if family != "domain":
        weights["x"] = weights["x"] * 10.0 ** draw.uniform(-2.0, 1.0)
    start = draw.choice([torch.zeros(shape, dtype=torch.float64), draw.normal(*shape)])
    single = draw.integer(0, 1) == 1
    tol = 10.0 ** draw.uniform(-5.0 if single else -10.0, -3.0)
    dtype = torch.float32 if single else torch.float64
    max_steps, solver = draw.integer(50, 400), drawn_solver(draw, kind)
    if family == "domain":
        start = start.abs()
    return Problem(seed, family, apply, weights, start, samples, lipschitz, dtype, tol, max_steps, kind, solver)
