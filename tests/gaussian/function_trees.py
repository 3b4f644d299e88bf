"""Functions of x as trees, in three tongues: the package's expressions, torch, and numpy with their slopes.

The numpy one is what the oracle integrates, so it shares nothing with the package, and reads the tree, not its text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy import special

Array = np.ndarray
Both = tuple[Array, Array]
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


@dataclass(frozen=True)
class Tree:
    """`op` of `args`; a number is its own `op`, and "x" the variable."""

    op: str | float
    args: tuple[Tree, ...] = ()

    def __call__(self, x: Array) -> Both:
        """Value and slope; a jump has none."""
        if self.op == "x":
            return x, np.ones_like(x)
        if not isinstance(self.op, str):
            return np.full_like(x, self.op), np.zeros_like(x)
        if self.op == "**":
            return _power(self.args[0](x), float(self.args[1].op))
        return _NUMPY[self.op](*[arg(x) for arg in self.args])

    def __add__(self, other: Tree | float) -> Tree:
        return Tree("+", (self, _tree(other)))

    def __radd__(self, other: float) -> Tree:
        return Tree("+", (_tree(other), self))

    def __sub__(self, other: Tree | float) -> Tree:
        return Tree("-", (self, _tree(other)))

    def __mul__(self, other: Tree | float) -> Tree:
        return Tree("*", (self, _tree(other)))

    def __rmul__(self, other: float) -> Tree:
        return Tree("*", (_tree(other), self))

    def __truediv__(self, other: Tree | float) -> Tree:
        return Tree("/", (self, _tree(other)))

    def __pow__(self, exponent: float) -> Tree:
        return Tree("**", (self, _tree(exponent)))

    def __neg__(self) -> Tree:
        return Tree("neg", (self,))

    def __iter__(self) -> Iterator[Tree]:
        yield self
        for arg in self.args:
            yield from arg

    @property
    def depth(self) -> int:
        """Of functions and operations; one of numbers and x alone, such as 2*(x - 3), counts as none."""
        if not self.args or (self.op in ("+", "-", "*", "neg") and sum(t.op == "x" for t in self) == 1):
            return max((arg.depth for arg in self.args), default=0)
        return 1 + max(arg.depth for arg in self.args)

    @property
    def may_jump(self) -> bool:
        return any(t.op in ("sign", "step", "where") for t in self)

    @property
    def torch_only(self) -> bool:
        return any(t.op in ("step", "where", "selu", "leaky") for t in self)

    @property
    def expression(self) -> str:
        """As `Explicit(["…"])` takes it."""
        return self._text(_EXPRESSION)

    @property
    def torch(self) -> str:
        """The body of a function of the tensor x."""
        return self._text(_TORCH)

    def _text(self, tongue: dict[str, str]) -> str:
        if self.op == "x":
            return "x"
        if not isinstance(self.op, str):
            return f"({self.op!r})" if self.op < 0 else repr(self.op)
        return tongue[self.op].format(*(arg._text(tongue) for arg in self.args))

    def places(self, reach: float) -> list[float]:
        """Where on [−reach, reach] an argument of one of its functions is 0: there it may bend, jump or be steep."""
        found: set[float] = {0.0}
        for argument in dict.fromkeys(argument for t in self if t.op in _SPECIAL_AT_0 for argument in _arguments(t)):
            found.update(_zeros(argument, reach, sorted(found)[:20]))
        return sorted(found)


def _arguments(tree: Tree) -> list[Tree]:
    if tree.op in ("max", "min"):
        return [Tree("-", tree.args)]
    if tree.op == "clip":
        return [Tree("-", (tree.args[0], bound)) for bound in tree.args[1:]]
    if tree.op == "/":
        return [tree.args[1]]
    return [tree.args[0]]


def _zeros(argument: Tree, reach: float, around: list[float]) -> list[float]:
    """By sign changes and least absolute values on a grid that is fine around 0 and around other places too."""
    if all(not isinstance(t.op, str) for t in argument):
        return []
    near = np.concatenate([[0.0], np.geomspace(1e-6 * min(reach, 1.0), reach, 1000)])
    grid = np.concatenate([np.linspace(-reach, reach, 8001), *(p + s * near for p in around for s in (-1.0, 1.0))])
    grid = np.unique(np.clip(grid, -reach, reach))
    with np.errstate(all="ignore"):
        values = argument(grid)[0]
        crossing = np.flatnonzero(np.sign(values[1:]) * np.sign(values[:-1]) < 0)[:400]
        low, high = grid[crossing], grid[crossing + 1]
        below = values[crossing]
        for _ in range(70):
            middle = 0.5 * (low + high)
            now = argument(middle)[0]
            left = np.sign(now) == np.sign(below)
            low, high = np.where(left, middle, low), np.where(left, high, middle)
        size = np.abs(values)
        touching = np.flatnonzero((size[1:-1] <= size[:-2]) & (size[1:-1] < size[2:]))[:400] + 1
        exact = grid[values == 0.0][:50]
    return [*low.tolist(), *high.tolist(), *grid[touching].tolist(), *exact.tolist()]


def _tree(value: Tree | float) -> Tree:
    return value if isinstance(value, Tree) else Tree(float(value))


def of(op: str, *args: Tree | float) -> Tree:
    """`op` of trees and numbers."""
    return Tree(op, tuple(_tree(arg) for arg in args))


X = Tree("x")


# --- numpy ------------------------------------------------------------------------------------------------------------


def _unary(value: Callable[[Array], Array], slope: Callable[[Array], Array]) -> Callable[[Both], Both]:
    def both(u: Both) -> Both:
        outer = slope(u[0])
        return value(u[0]), np.where(outer == 0.0, 0.0, outer * u[1])  # 0, also where the inner slope overflows

    return both


def _pdf(x: Array) -> Array:
    return np.exp(-0.5 * x**2) / math.sqrt(2.0 * math.pi)


def _power(u: Both, n: float) -> Both:
    slope = n * u[0] ** (n - 1.0) * u[1]
    return u[0] ** n, np.where(u[0] == 0.0, 0.0, slope) if n < 1.0 else slope  # a point where there is none counts for nothing


def _larger(a: Both, b: Both) -> Both:
    return np.maximum(a[0], b[0]), np.where(a[0] > b[0], a[1], b[1])


def _smaller(a: Both, b: Both) -> Both:
    return np.minimum(a[0], b[0]), np.where(a[0] < b[0], a[1], b[1])


_NUMPY: dict[str, Callable[..., Both]] = {
    "+": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "-": lambda a, b: (a[0] - b[0], a[1] - b[1]),
    "*": lambda a, b: (a[0] * b[0], a[0] * b[1] + a[1] * b[0]),
    "/": lambda a, b: (a[0] / b[0], (a[1] - a[0] / b[0] * b[1]) / b[0]),
    "neg": lambda a: (-a[0], -a[1]),
    "tanh": _unary(np.tanh, lambda u: 4.0 * special.expit(2.0 * u) * special.expit(-2.0 * u)),
    "sinh": _unary(np.sinh, np.cosh),
    "cosh": _unary(np.cosh, np.sinh),
    "sin": _unary(np.sin, np.cos),
    "cos": _unary(np.cos, lambda u: -np.sin(u)),
    "exp": _unary(np.exp, np.exp),
    "log": _unary(np.log, lambda u: 1.0 / u),
    "sqrt": _unary(np.sqrt, lambda u: 0.5 / np.sqrt(u)),
    "abs": _unary(np.abs, np.sign),
    "sign": _unary(np.sign, np.zeros_like),
    "erf": _unary(special.erf, lambda u: 2.0 / math.sqrt(math.pi) * np.exp(-(u**2))),
    "atan": _unary(np.arctan, lambda u: 1.0 / (1.0 + u**2)),
    "relu": _unary(lambda u: np.maximum(u, 0.0), lambda u: (u > 0.0).astype(float)),
    "sigmoid": _unary(special.expit, lambda u: special.expit(u) * special.expit(-u)),
    "softplus": _unary(lambda u: np.logaddexp(0.0, u), special.expit),
    "gelu": _unary(lambda u: u * special.ndtr(u), lambda u: special.ndtr(u) + u * _pdf(u)),
    "silu": _unary(lambda u: u * special.expit(u), lambda u: special.expit(u) * (1.0 + u * special.expit(-u))),
    "elu": _unary(
        lambda u: np.where(u > 0.0, u, np.expm1(np.minimum(u, 0.0))),
        lambda u: np.where(u > 0.0, 1.0, np.exp(np.minimum(u, 0.0))),
    ),
    "selu": _unary(
        lambda u: _SELU_SCALE * np.where(u > 0.0, u, _SELU_ALPHA * np.expm1(np.minimum(u, 0.0))),
        lambda u: _SELU_SCALE * np.where(u > 0.0, 1.0, _SELU_ALPHA * np.exp(np.minimum(u, 0.0))),
    ),
    "leaky": _unary(lambda u: np.where(u > 0.0, u, 0.1 * u), lambda u: np.where(u > 0.0, 1.0, 0.1)),
    "step": _unary(lambda u: (u > 0.0).astype(float), np.zeros_like),
    "where": lambda u, a, b: (np.where(u[0] > 0.0, a[0], b[0]), np.where(u[0] > 0.0, a[1], b[1])),
    "max": _larger,
    "min": _smaller,
    "clip": lambda u, a, b: (np.clip(u[0], a[0], b[0]), np.where((u[0] > a[0]) & (u[0] < b[0]), u[1], 0.0)),
}
_SPECIAL_AT_0 = ("**", *(op for op in _NUMPY if op not in ("+", "-", "*", "neg")))

# --- texts ------------------------------------------------------------------------------------------------------------

_SAME = ("tanh", "sinh", "cosh", "sin", "cos", "exp", "log", "sqrt", "abs", "sign", "erf", "atan", "relu", "sigmoid")
_ARITHMETIC = {**{op: f"({{0}} {op} {{1}})" for op in "+-*/"}, "neg": "(-{0})", "**": "({0})**{1}"}
_EXPRESSION: dict[str, str] = {
    **_ARITHMETIC,
    **{op: f"{op}({{0}})" for op in (*_SAME, "softplus", "gelu", "silu", "elu")},
    "max": "max({0}, {1})",
    "min": "min({0}, {1})",
    "clip": "clip({0}, {1}, {2})",
}
_TORCH: dict[str, str] = {
    **_ARITHMETIC,
    **{op: f"torch.{op}({{0}})" for op in _SAME},
    # torch's own softplus is 2e-9 off where its argument passes 20.
    "softplus": "torch.logaddexp({0}, 0*x)",
    **{op: f"torch.nn.functional.{op}({{0}})" for op in ("gelu", "silu", "elu", "selu")},
    "leaky": "torch.nn.functional.leaky_relu({0}, 0.1)",
    "step": "({0} > 0).to(x.dtype)",
    "where": "torch.where({0} > 0, {1} + 0*x, {2} + 0*x)",
    "max": "torch.maximum({0} + 0*x, {1} + 0*x)",
    "min": "torch.minimum({0} + 0*x, {1} + 0*x)",
    "clip": "torch.clamp({0}, {1}, {2})",
}
