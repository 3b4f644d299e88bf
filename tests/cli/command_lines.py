"""Command lines drawn from the signatures of the commands: good, bad, extreme and hostile values, of small computations."""

import inspect
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Annotated, get_args, get_origin, get_type_hints

from hypothesis import strategies as st
from typer.models import ArgumentInfo

from notsodeep.cli import app
from notsodeep.cli.program import COMMANDS as PROGRAM

BAD_TEXT = [
    "", " ", "x" * 5000, "σ²\u202e日本", "\x1b[31m", "-1", "--", "%s%n{0}", "$(touch made)", "../..", "null", "nan", ":", ",",
    "=", "\udcff",
]  # fmt: skip
BAD_NUMBERS = ["nan", "inf", "-inf", "1e308", "-1e308", "1e-320", "-1", "0", "-0.0", "", "1e999", "0x10", "½", "1,5", "٣"]
HUGE = ["2147483648", "9223372036854775808", "9" * 40, "-9223372036854775809"]
PATHS = ["nowhere/at/all", "folder", "file.txt", "/dev/null", "/dev/full", "/proc/1/mem", "file.txt/below", "new", "", ".",
         "n" * 300, "\udcff", "σ"]  # fmt: skip
DATA = [
    "gmm:n=20,p=10", "gmm:n=30,p=40,seed=3", "gmm:n=12,p=5,separation=0", "digits:n=30", "digits:n=25,classes=3/8", "good.npy",
    "good.csv", "good.npz", "labelled.csv", "gmm:n=0,p=3", "gmm:n=-1", "gmm:n=1", "gmm:n=2,p=1", "gmm:p=nan", "gmm:n=1e3",
    "gmm:n=99999999999,p=9", "gmm:n=9,p=9,seed=99999999999999999999", "gmm:n=9,p=9,separation=inf", "gmm:n=9,p=9,spread=1e308",
    "gmm:n=9,p=9,spread=0", "digits:n=0", "digits:classes=1/1", "digits:classes=77", "mnist", "mnist:n=5,split=middle",
    "cifar10:n=5,batches=9", "lying.npy", "nan.npy", "words.csv", "empty.csv", "noise.npy", "noise.npz", "noise.parquet",
    "one.npy", "zeros.npy", "wide.npy", "huge.npy", "good.npy,labels.npy", "folder", "/dev/null", "/dev/zero",
    "model.safetensors",
]  # fmt: skip
ACTIVATIONS = [
    "relu", "tanh", "sin", "leaky_relu:0.1", "sign", "linear", "hard_tanh:0.7,1", "x*tanh(x)", "max(x, 0) - 0.2*x",
    "polynomial:0,1", "hermite:1,0.5", "leaky_relu:nan", "leaky_relu:inf", "leaky_relu:1e308", "leaky_relu:", "relu:1,2,3",
    "tanh(x", "x^x^x", "x/0", "1/x", "exp(exp(x))", "x" + "+x" * 3000, "(" * 500 + "x" + ")" * 500,
    "__import__('os').system('touch made')", "polynomial:" + "1," * 3000, "hermite:1e308,1e308", "1e999*x",
    "log(x)", "sqrt(x)", "x**99999",
]  # fmt: skip
TEXT = {
    "data": DATA,
    "activation": ACTIVATIONS,
    "layers": ["relu/relu", "tanh", "relu//relu", "/", "relu/" * 20 + "relu", *ACTIVATIONS[-8:]],
    "family": ["auto", "hard_tanh", "leaky_relu", "quadratic", "hermite", "hermite:8", "hermite:3000",
               "hermite:-1", "hermite:²", "hermite:"],
    "labels": ["labels.npy", "label", "0", "-1", "99", "y", "words.csv", "lying.npy", "labels.npy,labels.npy"],
    "scheduler": ["tcp://127.0.0.1:1", "tcp://127.0.0.1:99999", "http://127.0.0.1:1", "127.0.0.1:1", "tcp://"],
    "host": ["127.0.0.1", "::1", "256.1.1.1", "no.such.host.invalid", "127.0.0.1:80"],
    "device": ["cpu", "auto", "cuda", "tpu"],
    "names": ["L1", "W1", "l1", "all", "L99"],
    "change": ["L1.seeds=1", "L1.sizes=", "W1.seeds=nan", "L1.sizes=1/x", "L1", "L1.nothing=1", "=", "L99.seeds=1"],
    "name": ["cifar10", "mnist", "fashion-mnist", "cifar10-vgg19"],
}  # fmt: skip
MEANT = {
    "data": 9,
    "activation": 11,
    "layers": 2,
    "family": 6,
    "host": 2,
    "device": 2,
    "change": 1,
}  # so many of them, the first
# Where a large number asks for long work, and is right to: a small one must do.
LONG_WORK = {"epochs": ["0", "1", "2"], "budget": ["0", "0.5"], "steps": ["1", "2"], "seeds": ["1", "2"]}
SMALL = {"data": "gmm:n=20,p=10", "width": "8", "steps": "2", "seeds": "1"}  # what is given unless it is drawn


def _commands(typer_app, before=()):
    for info in typer_app.registered_commands:
        yield (*before, info.name), info.callback
    for group in typer_app.registered_groups:
        yield from _commands(group.typer_instance, (*before, group.name))


for home in {module for module, _ in PROGRAM.values()}:
    import_module(f"notsodeep.cli.{home}")  # which adds its commands
COMMANDS = dict(_commands(app))


def _values(name, kind):
    """The texts that a parameter of that name and type may be given: those that are meant for it, and all others."""
    if get_origin(kind) is list:
        return _values(name, get_args(kind)[0])
    if inspect.isclass(kind) and issubclass(kind, Enum):
        return [each.value for each in kind], BAD_TEXT[:4]
    if kind is int:
        few = LONG_WORK.get(name)
        return few or ["1", "3", "8"], [*BAD_NUMBERS[:3], "-1", "0", "", "½", *([] if few else HUGE)]
    if kind is float:
        return ["0.1", "0.2", "0.5", "1"], BAD_NUMBERS
    if kind is Path:
        return ["model.safetensors"] if name == "model" else ["new", "folder", "new/deep/er.safetensors"], PATHS
    known = TEXT.get(name, BAD_TEXT)
    return known[: MEANT.get(name)], [*known, *BAD_TEXT]


def _parameters(callback):
    """(name, type, the option's words or None for an argument, may be left out) of each parameter."""
    hints = get_type_hints(callback, include_extras=True)
    for name, parameter in inspect.signature(callback).parameters.items():
        hint = hints[name]
        info = None
        while get_origin(hint) is not list and get_args(hint):
            if get_origin(hint) is Annotated:
                hint, info = get_args(hint)[0], next(iter(hint.__metadata__), info)
            else:  # T | None
                hint = next(each for each in get_args(hint) if each is not NoneType)
        first = getattr(info, "default", None)  # where Typer keeps the first word that was given
        words = [word for word in (first, *(getattr(info, "param_decls", None) or ())) if isinstance(word, str)]
        words = words or [f"--{name.replace('_', '-')}" + (f"/--no-{name}" if hint is bool else "")]
        optional = parameter.default is not inspect.Parameter.empty
        yield name, hint, None if isinstance(info, ArgumentInfo) else words, optional


def drawn(choose, text):
    """The arguments of one command line. `choose` takes one of a list, `text` makes any."""
    command = choose(sorted(COMMANDS))
    options, arguments, given = [], [], set()
    spoilt = choose(range(3))  # values at most: the first bad one ends most lines, and hides the others
    for name, kind, words, optional in _parameters(COMMANDS[command]):
        if optional and choose(range(3 if len(given) < 3 else 7)):
            continue
        given.add(name)
        if kind is bool:
            options.append(choose([part for word in words for part in word.split("/")]))
            continue
        meant, other = _values(name, kind)
        if spoilt and not choose(range(3)):
            spoilt, value = spoilt - 1, choose([*other, text()])
        else:
            value = choose(meant)
        arguments += [value] if words is None else []
        options += [] if words is None else [choose(words), value]
    own = inspect.signature(COMMANDS[command]).parameters
    for name, value in SMALL.items():
        if name in own and name not in given:
            options += [f"--{name}", value]
    if choose(range(30)) == 29:
        options.append(choose(["--nonsense", "--help", "-x", "--", "extra"]))
    return [*command, *options, *arguments]


@st.composite
def command_lines(draw):
    """Command lines, each as the list of its arguments."""
    text = st.text(max_size=8).filter(lambda text: "\0" not in text)
    return drawn(lambda options: draw(st.sampled_from(options)), lambda: draw(text))
