"""Activations as Python text that needs torch alone."""

from __future__ import annotations

import ast
import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from notsodeep.activations.base import Activation
from notsodeep.activations.combination import Stretched, Sum
from notsodeep.activations.custom import Custom
from notsodeep.activations.piecewise import Elu, HardTanh, Rectifier, Sign, Softsign
from notsodeep.activations.polynomial import HermiteSeries, Polynomial
from notsodeep.activations.smooth import Arctan, Cos, Erf, Gaussian, Gelu, Sigmoid, Silu, Sin, Softplus, Tanh
from notsodeep.activations.wrappers import Centred, Scaled
from notsodeep.errors import BadInput

_WIDTH = 100  # columns of the text, before indentation
_TRACED_RTOL = 1e-12
_INTERVALS, _REACH = 4096, 64.0


@dataclass(frozen=True)
class Expression:
    """φ(x) as text: the statements `lines`, then the expression `value`, both in terms of `x` and `torch` only."""

    value: str
    lines: tuple[str, ...] = ()

    def function(self, name: str, doc: str = "") -> str:
        """`def name(x): …`, ending in a newline."""
        # The name is the user's text: nothing in it may end the docstring.
        plain = "".join("'" if c == '"' else "/" if c == "\\" else c for c in doc if c.isprintable())
        body = [f'"""{plain}"""'] if plain else []
        body += [*self.lines, f"return {self.value}"]
        return f"def {name}(x):\n{textwrap.indent(chr(10).join(body), '    ')}\n"


def source_expression(phi: Activation) -> Expression:
    """The text that computes φ in the same operations as φ itself, every number exact.

    A function of the user's own is traced; `BadInput` where it holds tensors or calls other things than torch.
    """
    write = _WRITERS.get(type(phi))
    return _traced(phi) if write is None else write(phi)


def _number(value: float) -> str:
    return repr(float(value)) if math.isfinite(value) else f'float("{float(value)}")'


def _factor(text: str) -> str:
    """`text` as one factor of a product."""
    whole = isinstance(ast.parse(text, mode="eval").body, ast.Name | ast.Call | ast.Attribute)
    return text if whole else f"({text})"


def _tuple(values: tuple[float, ...], before: str, after: str) -> tuple[str, ...]:
    """The lines of before(values…)after, broken where they get long."""
    inside = ", ".join(map(_number, values)) + ("," if len(values) == 1 else "")
    if len(before) + len(inside) + len(after) < _WIDTH:
        return (f"{before}({inside}){after}",)
    rows = textwrap.wrap(inside, _WIDTH - 4)
    return (f"{before}(", *(f"    {row}" for row in rows), f"){after}")


def _rectifier(phi: Rectifier) -> Expression:
    if phi.positive == phi.negative:
        return Expression("x" if phi.positive == 1.0 else f"{_number(phi.positive)} * x")
    if phi.positive == 0.0:
        return Expression(f"{_number(-phi.negative)} * torch.relu(-x)")
    slope = phi.negative / phi.positive
    rectified = "torch.relu(x)" if slope == 0.0 else f"torch.nn.functional.leaky_relu(x, {_number(slope)})"
    return Expression(rectified if phi.positive == 1.0 else f"{_number(phi.positive)} * {rectified}")


def _polynomial(phi: Polynomial) -> Expression:
    """Horner's rule."""
    first, rest = phi.coefficients[-1], phi.coefficients[-2::-1]
    start = f"value = torch.full_like(x, {_number(first)})"
    if not rest:
        return Expression("value", (start,))
    return Expression("value", (start, *_tuple(rest, "for c in ", ":"), "    value = value * x + c"))


def _hermite(phi: HermiteSeries) -> Expression:
    """h_{k+1} = (ξ h_k − √k h_{k−1})/√(k+1)."""
    first, rest = phi.coefficients[0], phi.coefficients[1:]
    lines = [
        f"xi = x / {_number(phi.scale)}",
        "before, now = torch.zeros_like(xi), torch.ones_like(xi)",
        f"total = {_number(first)} * now",
    ]
    if rest:
        lines += [
            *_tuple(rest, "for k, c in enumerate(", "):"),
            "    before, now = now, (xi * now - k**0.5 * before) / (k + 1) ** 0.5",
            "    total = total + c * now",
        ]
    return Expression("total", tuple(lines))


def _centred(phi: Centred) -> Expression:
    inner = source_expression(phi.inner)
    minus = math.copysign(1.0, phi.offset) > 0.0
    return Expression(f"{inner.value} {'-' if minus else '+'} {_number(abs(phi.offset))}", inner.lines)


def _scaled(phi: Scaled) -> Expression:
    inner = source_expression(phi.inner)
    return Expression(f"{_number(phi.factor)} * {_factor(inner.value)}", inner.lines)


def _stretched(phi: Stretched) -> Expression:
    inner = _renamed(source_expression(phi.inner), lambda name: "wide" if name == "x" else name)
    return Expression(inner.value, (f"wide = {_number(phi.stretch)} * x", *inner.lines))


def _sum(phi: Sum) -> Expression:
    def numbered(k: int) -> Callable[[str], str]:
        return lambda name: name if name == "x" else f"{name}{k}"

    parts = [_renamed(source_expression(part), numbered(k)) for k, part in enumerate(phi.parts)]
    lines = [line for part in parts for line in part.lines]
    first, *rest = (part.value for part in parts)
    return Expression("total", (*lines, f"total = {first}", *(f"total = total + {_factor(value)}" for value in rest)))


def _renamed(text: Expression, rename: Callable[[str], str]) -> Expression:
    """The same text with other names for its variables."""
    tree = ast.parse("\n".join([*text.lines, text.value]))
    own = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)} | {"x"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in own:
            node.id = rename(node.id)
    *lines, value = (ast.unparse(statement) for statement in tree.body)
    return Expression(value, tuple(line for statement in lines for line in statement.splitlines()))


def _fixed(text: str) -> Callable[[Any], Expression]:
    return lambda _: Expression(text)


_WRITERS: dict[type[Activation], Callable[[Any], Expression]] = {
    Rectifier: _rectifier,
    HardTanh: lambda phi: Expression(f"{_number(phi.a)} * x.clamp({_number(-phi.c)}, {_number(phi.c)})"),
    Elu: lambda phi: Expression(f"torch.where(x > 0, x, {_number(phi.scale)} * torch.expm1(x.clamp(max=0)))"),
    Softsign: _fixed("x / (1.0 + x.abs())"),
    Sign: _fixed("torch.sign(x)"),
    Tanh: _fixed("torch.tanh(x)"),
    Erf: _fixed("torch.erf(x)"),
    Sigmoid: _fixed("torch.sigmoid(x)"),
    Softplus: _fixed("torch.logaddexp(x, torch.zeros_like(x))"),
    Arctan: _fixed("torch.atan(x)"),
    Sin: _fixed("torch.sin(x)"),
    Cos: _fixed("torch.cos(x)"),
    Gelu: _fixed(f"0.5 * x * torch.special.erfc({-math.sqrt(0.5)} * x)"),
    Silu: _fixed("torch.nn.functional.silu(x)"),
    Gaussian: _fixed("torch.exp(-0.5 * x.square())"),
    Polynomial: _polynomial,
    HermiteSeries: _hermite,
    Centred: _centred,
    Scaled: _scaled,
    Stretched: _stretched,
    Sum: _sum,
}


class _Called(nn.Module):
    """A function, or a module, as a submodule for the tracer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class _Through(fx.Tracer):
    """A tracer that enters every module, torch's own too."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002 (torch's signature)
        return False


def _traced(phi: Activation) -> Expression:
    """The calls of φ as torch.fx records them, compared with φ on a grid."""
    function = phi.function if isinstance(phi, Custom) else phi
    label = phi.label if isinstance(phi, Custom) else type(phi).__name__
    remedy = "Write it as torch calls and plain numbers on x only, or use an activation of the package."
    try:
        graph = _Through().trace(_Called(function))
        text = graph.python_code("self").src
    except Exception as error:
        raise BadInput(f"The activation {label} cannot be written as text: torch.fx fails on it ({error}). {remedy}") from error
    found = _statements(text)
    if isinstance(found, str):
        raise BadInput(f"The activation {label} cannot be written as text: it needs {found} besides torch. {remedy}")
    gap = _gap(phi, found)
    if not gap <= _TRACED_RTOL:
        raise BadInput(
            f"The activation {label} cannot be written as text: its traced calls are off by {gap:.1e} (it depends on more "
            f"than x, or on the shape of x). {remedy}",
            gap=gap,
        )
    return found


def _statements(text: str) -> Expression | str:
    """The body of the traced function, or what it needs besides x and torch."""
    tree = ast.parse(text)
    *others, function = tree.body
    if others or not isinstance(function, ast.FunctionDef):
        return "a wrapped function"
    known, lines = {"x", "torch"}, list[str]()
    for statement in function.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in known:
                return "values of its own" if node.id == "self" else repr(node.id)
        if isinstance(statement, ast.Return) and statement.value is not None:
            return _shortened(ast.unparse(statement.value), lines)
        if not isinstance(statement, ast.Assign | ast.AnnAssign):
            return "a statement that is not an assignment"
        if isinstance(statement.value, ast.Constant) and statement.value.value is None:
            continue  # torch.fx frees values that are no longer used
        known |= {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
        lines.append(ast.unparse(statement))
    return "a value that is not returned"


def _shortened(value: str, lines: list[str]) -> Expression:
    """The expression, without a last line that only names its value."""
    last = f"{value} = "
    if lines and lines[-1].startswith(last):
        return Expression(lines[-1].removeprefix(last), tuple(lines[:-1]))
    return Expression(value, tuple(lines))


@torch.no_grad()
def _gap(phi: Activation, found: Expression) -> float:
    """The largest difference between φ and its text on a grid, relative to the largest value."""
    space: dict[str, Any] = {"torch": torch}
    try:
        exec(found.function("traced"), space)
        x = torch.linspace(-_REACH, _REACH, _INTERVALS + 1, dtype=torch.float64)
        places = torch.cat([x, x / _REACH, torch.tensor(phi.kinks, dtype=torch.float64)])
        pairs = [(phi(at), space["traced"](at)) for at in (places, places[:12].reshape(3, 4))]
    except Exception:  # a user's function may raise anything
        return math.inf
    return max(float((ours - theirs).abs().max() / ours.abs().max().clamp(min=1e-300)) for ours, theirs in pairs)
