"""Arithmetic in x, read from text by a walk of its syntax tree: only what is listed here has a way to be computed."""

from __future__ import annotations

import ast
import difflib
import math
import operator
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

import torch
from torch import Tensor

from notsodeep.activations.piecewise import Elu
from notsodeep.activations.slopes import Function
from notsodeep.activations.smooth import Gelu, Silu, Softplus
from notsodeep.errors import BadInput

_LONGEST, _NODES, _DEEPEST = 200, 100, 30
_EXPONENT = 16.0
_LARGEST = torch.finfo(torch.float32).max  # of a constant: networks are trained in float32

Part = float | Function  # a number, or a function of x
_KNOWN_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_ .+-*/(),")
_INSTEAD = {
    **dict.fromkeys("^", "**"),
    **dict.fromkeys("×·⋅∙", "*"),
    **dict.fromkeys("÷∕", "/"),
    **dict.fromkeys("−–—", "-"),
    **dict.fromkeys("²³", "**2 or **3"),
    **dict.fromkeys("[{", "("),
    **dict.fromkeys("]}", ")"),
    **dict.fromkeys("|", "abs(x)"),
    **dict.fromkeys("<>", "max, min, clip or sign"),
    **dict.fromkeys("√", "sqrt(x)"),
    **dict.fromkeys("π", "pi"),
    **dict.fromkeys("=", "what is right of it only"),
}
_NUMBER = r"(?>(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"  # taken whole, so that the e of 1e5 is no name
_GLUED = re.compile(rf"(?<![\w.])({_NUMBER})\s*([A-Za-z_]\w*|\()|(\))\s*(\w+|\()")
_BENT_AT_0 = ("abs", "sign", "relu", "elu", "sqrt")
_NUMBERS = {"pi": math.pi, "e": math.e}
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_NOT_ARITHMETIC: dict[type[ast.expr], str] = {
    ast.Attribute: "asks for something by a dot: write a function as tanh(x)",
    ast.IfExp: "chooses between values: write max, min, clip or sign instead",
    ast.BoolOp: "chooses between values: write max, min, clip or sign instead",
    ast.Compare: "compares: write max, min, clip or sign instead",
    ast.Tuple: "has a comma outside of a function: write . in a number",
    ast.Starred: "has a * with nothing to its left: write a factor there",
}


def refusal(part: str, why: str) -> BadInput:
    shown = part if len(part) <= 60 else f"{part[:59]}…"
    return BadInput(f"In an activation's expression, {shown!r} {why}.", part=part)


def plain(text: str) -> str:
    """The text without its spaces, if it can be read."""
    if not isinstance(text, str):
        raise BadInput(f"An activation's expression must be text, got {type(text).__name__}: write for example x*tanh(x).")
    text = text.strip()
    if not text:
        raise BadInput("An activation's expression is empty: write for example x*tanh(x).")
    if len(text) > _LONGEST:
        raise refusal(text, f"has {len(text)} characters and may have {_LONGEST}: pass a torch function (nsd.custom) instead")
    if wrong := [c for c in dict.fromkeys(text) if c not in _KNOWN_CHARACTERS]:
        raise refusal("".join(wrong), f"cannot be read: {', '.join(map(_remedy, wrong[:4]))}")
    if glued := _GLUED.search(text):
        number, name, _, after = glued.groups()
        if name in ("j", "J"):
            raise refusal(glued[0], "is complex: write real numbers only")
        written = f"{number}*{name}" if number else f")*{after}"
        raise refusal(glued[0], f"lacks an operator: write {written}")
    Reading(text)  # before its spaces go: "x * * 2" is not a power, nor "s in(x)" a sine
    return text.replace(" ", "")


def _remedy(character: str) -> str:
    if character in _INSTEAD:
        return f"write {_INSTEAD[character]} for {character}"
    # Some look like a letter of the keyboard, or like nothing.
    name = "" if character.isascii() and character.isprintable() else f" ({unicodedata.name(character, 'no letter')})"
    return f"write no {character!r}{name}"


def _tree(text: str) -> ast.expr:
    open_now = list(accumulate({"(": 1, ")": -1}.get(c, 0) for c in text))
    if max(open_now) > _DEEPEST:
        raise refusal(text, f"has {max(open_now)} parentheses open at once and may have {_DEEPEST}: write fewer")
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if word := re.search(rf"\b({'|'.join(FUNCTIONS)})\s+\w+", text):
            why = f"lacks its parentheses: write {word[1]}(x)"
            raise refusal(word[0], why) from None
        # Python's parser counts from 1, and from the end of a text that breaks off.
        place = min(max((getattr(error, "offset", None) or 1) - 1, 0), len(text) - 1)
        why = "cannot be read: write + - * / ** between terms and close every parenthesis, as in x*tanh(x)"
        raise refusal(text[place:], why) from None
    nodes = sum(isinstance(node, ast.expr) for node in ast.walk(tree))
    if nodes > _NODES:
        why = f"has {nodes} terms and functions and may have {_NODES}: pass a torch function (nsd.custom) instead"
        raise refusal(text, why)
    return tree


def _larger(a: Any, b: Any) -> Any:
    if isinstance(a, float):
        return b.clamp(min=a)
    return a.clamp(min=b) if isinstance(b, float) else torch.maximum(a, b)


def _smaller(a: Any, b: Any) -> Any:
    if isinstance(a, float):
        return b.clamp(max=a)
    return a.clamp(max=b) if isinstance(b, float) else torch.minimum(a, b)


FUNCTIONS: Final[dict[str, tuple[int, Callable[..., Any]]]] = {
    "tanh": (1, torch.tanh),
    "sinh": (1, torch.sinh),
    "cosh": (1, torch.cosh),
    "sin": (1, torch.sin),
    "cos": (1, torch.cos),
    "exp": (1, torch.exp),
    "log": (1, torch.log),
    "sqrt": (1, torch.sqrt),
    "abs": (1, torch.abs),
    "sign": (1, torch.sign),
    "erf": (1, torch.erf),
    "atan": (1, torch.atan),
    "arctan": (1, torch.atan),
    "relu": (1, torch.relu),
    "sigmoid": (1, torch.sigmoid),
    "softplus": (1, Softplus()),
    "gelu": (1, Gelu()),
    "silu": (1, Silu()),
    "swish": (1, Silu()),
    "elu": (1, Elu()),
    "max": (2, _larger),
    "min": (2, _smaller),
    "clip": (3, torch.clamp),
    "clamp": (3, torch.clamp),
}
"""Name → number of arguments, and the function of tensors."""


@dataclass
class Reading:
    """A text as a part, `value`, and its parts that matter where they are 0: kinks, divisors, and arguments of sign; and what
    functions and powers are taken of, the inner ones first: nothing narrow is far from where one of them is 0 or turns.

    Only the nodes of arithmetic in the tree of `text` have a way to become a part.
    """

    text: str
    value: Part = field(init=False)
    switches: list[Function] = field(default_factory=list)
    divisors: list[tuple[str, Function]] = field(default_factory=list)
    signs: list[tuple[str, Function]] = field(default_factory=list)
    arguments: list[Function] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.value = self.part(_tree(self.text))

    def part(self, node: ast.expr, depth: int = 1) -> Part:
        if depth > _DEEPEST:
            raise self.refusal(node, f"is nested more than {_DEEPEST} deep: write fewer terms, or group them in parentheses")
        match node:
            case ast.Constant():
                return self.number(node)
            case ast.Name():
                return self.name(node)
            case ast.UnaryOp(op=ast.UAdd()):
                return self.part(node.operand, depth + 1)
            case ast.UnaryOp(op=ast.USub()):
                return self.applied(node, operator.neg, [self.part(node.operand, depth + 1)])
            case ast.BinOp():
                return self.binary(node, depth)
            case ast.Call():
                return self.call(node, depth)
        raise self.refusal(node, _NOT_ARITHMETIC.get(type(node), "is not arithmetic: write + - * / ** and functions of x"))

    def quoted(self, node: ast.expr) -> str:
        return ast.get_source_segment(self.text, node) or self.text

    def refusal(self, node: ast.expr, why: str) -> BadInput:
        return refusal(self.quoted(node), why)

    def number(self, node: ast.Constant) -> float:
        if isinstance(node.value, bool) or not isinstance(node.value, int | float):
            raise self.refusal(node, "is not a number: write one such as 0.5")
        return self.finite(node, float(node.value))

    def finite(self, node: ast.expr, value: float) -> float:
        if math.isnan(value):
            raise self.refusal(node, "is not a real number: write one such as 0.5")
        if abs(value) > _LARGEST:
            raise self.refusal(node, f"is {value:g}: write numbers up to {_LARGEST:.2g}, the largest of float32")
        return value

    def name(self, node: ast.Name) -> Part:
        if node.id == "x":
            return lambda x: x
        if node.id in _NUMBERS:
            return _NUMBERS[node.id]
        if node.id in FUNCTIONS:
            raise self.refusal(node, f"lacks its argument: write {node.id}(x)")
        raise self.refusal(node, f"is unknown: {_meant(node.id, ['x', *_NUMBERS, *FUNCTIONS])}")

    def binary(self, node: ast.BinOp, depth: int) -> Part:
        if type(node.op) not in _OPERATORS:
            raise self.refusal(node, "has an operator that is not arithmetic: write + - * / or **")
        left, right = self.part(node.left, depth + 1), self.part(node.right, depth + 1)
        if isinstance(node.op, ast.Pow):
            return self.power(node, left, right)
        power = _one_plus_exp(node.right)
        if isinstance(node.op, ast.Div) and power is not None:  # a/(1 + e^u), which never overflows so
            return self.applied(node, lambda a, u: a * torch.sigmoid(-u), [left, self.argument(self.part(power, depth))])
        if isinstance(node.op, ast.Div) and not isinstance(right, float):
            self.argument(right)
            self.divisors.append((self.quoted(node), right))
        return self.applied(node, _OPERATORS[type(node.op)], [left, right])

    def power(self, node: ast.BinOp, base: Part, exponent: Part) -> Part:
        if not isinstance(exponent, float):
            raise self.refusal(node, "has an exponent that is not a number: write exp(log(2)*x) for 2**x")
        if abs(exponent) > _EXPONENT:
            raise self.refusal(node, f"has the exponent {exponent:g}: write one from -{_EXPONENT:g} to {_EXPONENT:g}")
        # torch multiplies for a whole exponent, and negative numbers have one power of it.
        whole = int(exponent) if exponent.is_integer() else exponent
        if not isinstance(base, float) and exponent < 0.0:
            self.divisors.append((self.quoted(node), base))
        elif not isinstance(base, float) and not exponent.is_integer():
            self.switches.append(base)
        return self.applied(node, lambda u: u**whole, [self.argument(base)])

    def call(self, node: ast.Call, depth: int) -> Part:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in ("x", *_NUMBERS) or not name:
            raise self.refusal(node, f"calls what is not a function: write {name or '…'}*(…) for a product")
        if name not in FUNCTIONS:
            raise self.refusal(node, f"calls a function that is unknown: {_meant(name, list(FUNCTIONS))}")
        count, function = FUNCTIONS[name]
        if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
            raise self.refusal(node, f"names or unpacks its arguments: write {_example(name)}")
        if len(node.args) != count:
            raise self.refusal(node, f"has {len(node.args)} arguments and takes {count}: write {_example(name)}")
        parts = [self.argument(self.part(argument, depth + 1)) for argument in node.args]
        if count == 3 and not (isinstance(parts[1], float) and isinstance(parts[2], float) and parts[1] < parts[2]):
            raise self.refusal(node, f"needs two numbers as its bounds, the lower first: write {_example(name)}")
        power = _one_plus_exp(node.args[0]) if name == "log" else None
        if power is not None:
            return self.applied(node, Softplus(), [self.part(power, depth)])
        self.switch(name, parts)
        if name == "sign" and not isinstance(parts[0], float):
            self.signs.append((self.quoted(node), parts[0]))
        return self.applied(node, function, parts)

    def argument(self, part: Part) -> Part:
        if not isinstance(part, float):
            self.arguments.append(part)
        return part

    def switch(self, name: str, parts: list[Part]) -> None:
        """Where |u| and the like are not smooth, u is 0; where max(u, v) and clip are not, u − v is."""
        first, *others = parts
        if name in _BENT_AT_0 and not isinstance(first, float):
            self.switches.append(first)
        self.switches.extend(_difference(first, other) for other in others)

    def applied(self, node: ast.expr, operation: Callable[..., Any], parts: list[Part]) -> Part:
        """operation(parts…): of numbers a number, in float64; else a function of x."""
        numbers = [part for part in parts if isinstance(part, float)]
        if len(numbers) == len(parts):
            return self.finite(node, float(operation(*(torch.tensor(n, dtype=torch.float64) for n in numbers))))
        return lambda x: operation(*[part if isinstance(part, float) else part(x) for part in parts])


def _difference(a: Part, b: Part) -> Function:
    def value(x: Tensor) -> Tensor:
        left, right = (part if isinstance(part, float) else part(x) for part in (a, b))
        return left - right + torch.zeros_like(x)

    return value


def _one_plus_exp(node: ast.expr) -> ast.expr | None:
    """u of 1 + exp(u), which overflows where its logarithm and its inverse do not."""
    match node:
        case ast.BinOp(ast.Constant(1), ast.Add(), ast.Call(ast.Name("exp"), [u])):
            return u
        case ast.BinOp(ast.Call(ast.Name("exp"), [u]), ast.Add(), ast.Constant(1)):
            return u
    return None


def _meant(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name.lower(), known, n=1)
    return f"write {near[0]}" if near else f"write one of {', '.join(known)}"


def _example(name: str) -> str:
    return f"{name}(x{', 0' if FUNCTIONS[name][0] == 2 else ', -1, 1' if FUNCTIONS[name][0] == 3 else ''})"
