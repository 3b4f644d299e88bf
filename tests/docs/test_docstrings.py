"""Docstrings of the public surface: every parameter, what is returned and what is raised is listed.

`python -m tests.docs.test_docstrings` prints the names that do not comply.
"""

import ast
import inspect
import re
import textwrap
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import pairwise
from types import FunctionType

import pytest

import notsodeep as nsd

NAMESPACES = (
    "kernels", "fixed_points", "training", "theory", "models", "matching", "advice", "estimators", "data", "separation",
)  # fmt: skip


def public():
    """Each function and class of the surface under its first name."""
    found = {}
    for namespace in (nsd, *(getattr(nsd, name) for name in NAMESPACES)):
        prefix = "" if namespace is nsd else namespace.__name__.rpartition(".")[2] + "."
        for name in namespace.__all__:
            value = getattr(namespace, name)
            if isinstance(value, type | FunctionType) and value not in found.values():
                found[prefix + name] = value
    return found


PUBLIC = public()


def section(text, *titles):
    """The lines of a section of a docstring, or None."""
    lines = text.splitlines()
    start = next((k for k, line in enumerate(lines) if line.strip() in {f"{title}:" for title in titles}), None)
    if start is None:
        return None
    indent = len(lines[start]) - len(lines[start].lstrip())
    inside = []
    for line in lines[start + 1 :]:
        if line.strip() and len(line) - len(line.lstrip()) <= indent:
            break
        inside.append(line)
    return inside


def listed(text):
    """The parameters that the Args section names: `name: …`, `name (type): …`, `one, other: …` or `**name: …`."""
    lines = [line for line in section(text, "Args") or [] if line.strip()]
    indent = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    heads = [re.match(r"\s*([\w*`, ]+?)\s*(\(.*?\))?:(\s|$)", line) for line in lines if line[indent] != " "]
    return {name.strip("*` ") for head in heads if head for name in head[1].split(",")}


def syntax(value):
    """The syntax tree of a function or class."""
    return ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(value)))).body[0]


def raises(value):
    return any(isinstance(node, ast.Raise) and node.exc is not None for node in ast.walk(syntax(value)))


def documented_fields(kind):
    """The fields of a dataclass that have a string below them."""
    found = set()
    for part in kind.__mro__:
        if is_dataclass(part):
            body = syntax(part).body
            for line, below in pairwise(body):
                text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
                if isinstance(line, ast.AnnAssign) and text and isinstance(below.value.value, str):
                    found.add(line.target.id)
    return found


def own(kind, name):
    """A method that is written in the class or a base of this package, not made by `dataclass` or another library."""
    method = getattr(kind, name, None)
    home = next((part for part in kind.__mro__ if name in vars(part)), object)
    written = isinstance(method, FunctionType) and home.__module__.startswith("notsodeep")
    return method if written and not method.__code__.co_filename.startswith("<") else None


def parameters(value):
    given = inspect.signature(value).parameters.values()
    return [p.name for p in given if p.name not in ("self", "cls")]


def problems_of_function(function):
    text = inspect.getdoc(function) or ""
    found = [f"Args: {name}" for name in parameters(function) if name not in listed(text)]
    returns = inspect.signature(function).return_annotation
    if returns not in (None, "None", inspect.Signature.empty) and section(text, "Returns", "Yields") is None:
        found.append("Returns")
    if raises(function) and section(text, "Raises") is None:
        found.append("Raises")
    return found


def problems_of_class(kind):
    """What the docstring of a class lacks; a base may document the constructor that it shares."""
    texts = [
        inspect.cleandoc(part.__doc__) for part in kind.__mro__ if part.__doc__ and part.__module__.startswith("notsodeep")
    ]
    init, known = own(kind, "__init__"), set().union(*map(listed, texts))
    found = [] if kind.__doc__ else ["a docstring"]
    if issubclass(kind, Enum):
        return found
    if init is not None:
        found += [f"Args: {name}" for name in parameters(init) if name not in known]
    elif is_dataclass(kind):
        known |= documented_fields(kind)
        found += [f"Args: {field.name}" for field in fields(kind) if field.init and field.name not in known]
    checked = [method for method in (init, own(kind, "__post_init__")) if method is not None]
    if any(map(raises, checked)) and all(section(text, "Raises") is None for text in texts):
        found.append("Raises")
    return found


def problems(value):
    return problems_of_class(value) if isinstance(value, type) else problems_of_function(value)


@pytest.mark.parametrize("name", PUBLIC)
def test_arguments_returns_and_raises_are_listed(name):
    missing = problems(PUBLIC[name])
    assert not missing, f"the docstring of {name} lacks {', '.join(missing)}"


SHORT = '''
    """The sum.

    Args:
        one, other: Numbers.
        *more (float): Further
            numbers.

    Returns:
        A number.
    """
'''


def test_the_reader_of_docstrings():
    text = inspect.cleandoc(ast.literal_eval(SHORT.strip()))
    assert listed(text) == {"one", "other", "more"}
    assert section(text, "Raises") is None
    assert section(text, "Returns") == ["    A number."]


if __name__ == "__main__":
    print("\n".join(name for name, value in PUBLIC.items() if problems(value)))
