"""Random activations, norms and correlations, each from its seed alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import notsodeep as nsd
from tests.gaussian.function_trees import Tree, X, of

DEEPEST = 4
DEQ_DIGIT = 9


@dataclass(frozen=True)
class Subject:
    """An activation: how the package is given it (as source text), and as a tree for the oracle."""

    kind: str
    """expression, custom or named"""
    source: str
    tree: Tree

    def build(self) -> Any:
        """What to pass to `Explicit`: made by the very text that a report prints."""
        return eval(self.source, {"torch": torch, "nsd": nsd})


@dataclass(frozen=True)
class Setting:
    """Two samples in the plane."""

    first: tuple[float, float]
    second: tuple[float, float]

    @property
    def x(self) -> list[list[float]]:
        return [list(self.first), list(self.second)]

    @property
    def norms(self) -> tuple[float, float]:
        return self.first[0], math.hypot(*self.second)

    @property
    def rho(self) -> float:
        return self.second[0] / self.norms[1]

    @property
    def c(self) -> float:
        """√(1 − ρ²), to all its digits."""
        return self.second[1] / self.norms[1]


@dataclass(frozen=True)
class Case:
    """An activation and a few pairs of samples; with `variances` (σ_a², σ_b²) in a DEQ, else in one hidden layer."""

    seed: int
    subject: Subject
    settings: tuple[Setting, ...]
    variances: tuple[tuple[float, float], ...] = ()
    """σ_a² as a share of the largest for which a gradient contracts, and σ_b²: one a setting"""


def random_case(seed: int, settings: int = 4, closest: float = 1e-8) -> Case:
    """An activation with a few pairs of samples to try it on, 1 − |ρ| at least `closest` or 0; every tenth in a DEQ."""
    rng = np.random.default_rng(seed)
    subject = random_subject(rng)
    pairs = tuple(random_setting(rng, closest) for _ in range(settings))
    if seed % 10 != DEQ_DIGIT:
        return Case(seed, subject, pairs)
    while subject.tree.may_jump:  # σ_a² E[φ'²] is infinite
        subject = random_subject(rng)
    shares = tuple((_rounded(rng.uniform(0.1, 0.8)), _rounded(10.0 ** rng.uniform(-1.0, 0.5))) for _ in range(settings))
    return Case(seed, subject, pairs, shares)


def setting(tau_i: float, tau_j: float, rho: float, distance: float | None = None) -> Setting:
    """Samples of these norms; `distance` is 1 − |ρ| where ρ is too close to ±1 to tell."""
    d = 1.0 - abs(rho) if distance is None else distance
    cosine = math.copysign(1.0 - d, rho)
    return Setting((tau_i, 0.0), (tau_j * cosine, tau_j * math.sqrt(d * (2.0 - d))))


def random_setting(rng: np.random.Generator, closest: float) -> Setting:
    tau_i = _norm(rng)
    other = rng.random()
    tau_j = tau_i if other < 0.5 else _rounded(tau_i * 2.0 ** rng.normal()) if other < 0.75 else _norm(rng)
    tau_j = min(max(tau_j, 1e-3), 1e3)
    sign = -1.0 if rng.random() < 0.3 else 1.0
    kind = rng.random()
    if kind < 0.08:
        return setting(tau_i, tau_j, 0.0)
    if kind < 0.16:
        return setting(tau_i, tau_j, sign)
    if kind < 0.45:
        return setting(tau_i, tau_j, sign * round(rng.random(), 3))
    return setting(tau_i, tau_j, sign, distance=_rounded(closest ** rng.random()))


def _norm(rng: np.random.Generator) -> float:
    return _rounded(10.0 ** rng.uniform(-3.0, 3.0))


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


# --- activations ------------------------------------------------------------------------------------------------------

NAMED: dict[str, Tree] = {
    **{name: of(name, X) for name in ("tanh", "erf", "sigmoid", "softplus", "sin", "cos", "gelu", "silu")},
    **{name: of(name, X) for name in ("relu", "abs", "elu", "sign")},
    "arctan": of("atan", X),
    "leaky_relu:0.1": of("leaky", X),
    "gaussian": of("exp", -0.5 * X**2),
    "softsign": X / (1.0 + of("abs", X)),
    "hard_tanh": of("clip", X, -1.0, 1.0),
    "hard_tanh:0.75,1.2": 0.75 * of("clip", X, -1.2, 1.2),
    "quadratic:0.5,-1,0.25": 0.5 * X**2 - X + 0.25,
    "polynomial:0.5,1,0.25,-0.125": 0.5 + X + 0.25 * X**2 - 0.125 * X**3,
}
"""What the package calls by name, spelt out."""

_BOUNDED = ("tanh", "sin", "cos", "erf", "atan", "sigmoid")
_GROWING = ("softplus", "gelu", "silu")
_BENT = ("relu", "abs", "elu")


def random_subject(rng: np.random.Generator) -> Subject:
    kind = rng.random()
    if kind < 0.12:
        name = str(rng.choice(list(NAMED)))
        return Subject("named", repr(name), NAMED[name])
    own = kind < 0.35
    tree = random_tree(rng, int(rng.integers(1, DEEPEST + 1)), own)
    while not any(t.op == "x" for t in tree) or len(tree.expression if not own else "") > 190:
        tree = random_tree(rng, int(rng.integers(1, DEEPEST + 1)), own)
    if own:
        return Subject("custom", f"nsd.custom(lambda x: {tree.torch})", tree)
    return Subject("expression", repr(tree.expression), tree)


def random_tree(rng: np.random.Generator, depth: int, torch_too: bool = False) -> Tree:
    """A function of at most `depth` nested operations, finite wherever it can be helped."""
    if depth <= 0:
        return _affine(rng)
    below = depth - 1 if rng.random() < 0.7 else int(rng.integers(0, depth))

    def inner() -> Tree:
        return random_tree(rng, below, torch_too)

    kinds: dict[str, tuple[float, Callable[[], Tree]]] = {
        "bounded": (5.0, lambda: of(str(rng.choice(_BOUNDED)), inner())),
        "growing": (2.0, lambda: of(str(rng.choice(_GROWING)), inner())),
        "bent": (2.5, lambda: of(str(rng.choice(_BENT)), inner())),
        "chosen": (1.5, lambda: of(str(rng.choice(["max", "min"])), inner(), _either(rng, inner))),
        "clipped": (1.0, lambda: _clipped(rng, inner())),
        "jumping": (0.7, lambda: of("sign", inner())),
        "sum": (3.0, lambda: _sum(rng, inner(), inner())),
        "product": (2.0, lambda: inner() * random_tree(rng, depth - 2, torch_too)),
        "ratio": (1.0, lambda: inner() / (1.0 + _positive(rng, random_tree(rng, depth - 2, torch_too)))),
        "power": (0.8, lambda: random_tree(rng, depth - 2, torch_too) ** int(rng.integers(2, 4))),
        "bump": (1.0, lambda: of("exp", -_positive(rng, random_tree(rng, depth - 2, torch_too)))),
        "root": (0.7, lambda: of("sqrt", 1.0 + random_tree(rng, depth - 2, torch_too) ** 2)),
        "cusp": (0.3, lambda: of("abs", random_tree(rng, depth - 2, torch_too)) ** float(rng.choice([0.5, 1.5, 2.5]))),
        "logarithm": (0.7, lambda: of("log", 1.0 + _positive(rng, random_tree(rng, depth - 2, torch_too)))),
        "exponential": (0.4, lambda: of(str(rng.choice(["exp", "sinh", "cosh"])), _gentle(rng))),
        "stepping": (1.5 * torch_too, lambda: of("step", inner())),
        "piecewise": (1.5 * torch_too, lambda: of("where", inner(), inner(), inner())),
        "torch's": (1.0 * torch_too, lambda: of(str(rng.choice(["selu", "leaky"])), inner())),
    }
    weights = np.array([weight for weight, _ in kinds.values()])
    chosen = str(rng.choice(list(kinds), p=weights / weights.sum()))
    tree = kinds[chosen][1]()
    return tree if tree.depth <= DEEPEST else random_tree(rng, depth - 1, torch_too)


def _affine(rng: np.random.Generator) -> Tree:
    """x, w x or w (x − c): steep or flat, near or far."""
    kind = rng.random()
    if kind < 0.25:
        return X
    factor = _rounded(10.0 ** rng.uniform(-1.5, 1.8)) * (1.0 if rng.random() < 0.8 else -1.0)
    if kind < 0.55:
        return factor * X
    return factor * (X - _rounded(rng.normal() * 10.0 ** rng.uniform(-1.0, 1.0)))


def _gentle(rng: np.random.Generator) -> Tree:
    return _rounded(rng.normal() * 0.3) * X


def _sum(rng: np.random.Generator, a: Tree, b: Tree) -> Tree:
    left, right = (_rounded(10.0 ** rng.uniform(-1.5, 0.5)) for _ in range(2))
    return left * a + right * b if rng.random() < 0.5 else left * a - right * b


def _either(rng: np.random.Generator, inner: Callable[[], Tree]) -> Tree:
    return Tree(_rounded(rng.normal())) if rng.random() < 0.5 else inner()


def _clipped(rng: np.random.Generator, u: Tree) -> Tree:
    low = _rounded(rng.normal())
    return of("clip", u, low, _rounded(low + 10.0 ** rng.uniform(-1.0, 1.0)))


def _positive(rng: np.random.Generator, u: Tree) -> Tree:
    return u**2 if rng.random() < 0.6 else of("abs", u)
