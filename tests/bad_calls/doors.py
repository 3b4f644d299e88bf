"""Every public door: the names of the package and of its public namespaces, and the methods of what they give."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import nn

import notsodeep as nsd
from notsodeep import activations, data, estimators, fixed_points, separation
from tests.bad_calls.calls import Door
from tests.bad_calls.values import BAD, contraction

NAMESPACES = (
    nsd, fixed_points, activations, data, estimators, separation,
    nsd.advice, nsd.kernels, nsd.matching, nsd.models, nsd.theory, nsd.training,
)  # fmt: skip
_X = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
_Y = torch.tensor([0, 1, 0, 1, 1, 0])

# What a user asks for or is handed, and never makes: results, errors, what is abstract, and lists of names.
_NO_DOORS = {
    "Candidate", "Evidence", "LeftOut", "Match", "Measured", "Optimum", "Race", "Runner",
    "Advice", "Certificate", "Compiled", "Dataset", "Design", "EmpiricalKernels", "ExactKernels", "Frontier", "History",
    "Kernel", "KernelTile", "Moments", "Reason", "Scalars", "Solution", "Split", "StreamedFit", "Way", "WrittenKernels",
    "Written", "Exporting",
    "BadInput", "NoMatch", "NotContractive", "NotConverged", "NotSoDeepError", "NumericsWarning",
    "Activation", "Solver", "Splitting", "Linear", "Target", "Custom", "Formula", "ActivationLike",
    "BOOLEAN_TARGETS", "ESTIMATORS", "errors", "fixed_points",
}  # fmt: skip

# Solvers, precisions, splittings and linear maps are extended, not called: a driver does that, with arguments of its own.
_PROTOCOL = {"init", "step", "stages", "split", "resolvent", "transposed", "require_fit", "rows", "of", "marks"}
# Element-wise functions of tensors, in the innermost loops: they answer as torch's own do.
_ELEMENTWISE = {"derivative", "value", "square"}
# Numbers pass through these as through torch's modules: what overflows is an infinity.
_LIKE_TORCH = {
    "ENN", "DEQ", "ReluDEQ", "DiagonalDEQ", "SteepDEQ", "Sawtooth", "Steep", "Chirps", "BooleanTarget", "Standardiser",
}  # fmt: skip
# Some seconds where nothing is wrong.
_HEAVY = {"design", "to_onnx", "advise", "compile_deq", "steep_fnn", "images"}
# Who asks for work without end gets it.
_WORK = {"epochs", "budget", "steps", "max_steps", "probes"}
# Not replaced: train=True takes a minute, as it says; the others are looked at where they are written.
_ASIDE = {
    "advise": ("train",),
    "Moments.scaled": ("factor", "offset"),  # in the inner loop of every search
    "write_kernels": ("scheduler",),
}


def _net() -> nsd.Implicit:
    return nsd.Implicit("relu", 0.2)


def _deq(**options: Any) -> nsd.DEQ:
    return nsd.DEQ(_net(), 3, 4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64, **options)


def _enn() -> nsd.ENN:
    return nsd.ENN(nsd.Explicit(["relu"]), 3, 4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def _patched(net: Any) -> nsd.Convolutional:
    return nsd.Convolutional(net, readout="pooled")


def _images() -> torch.Tensor:
    return torch.randn(3, 2, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def _conv(kind: Any, net: Any) -> Any:
    return kind(_patched(net), 2, 4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def _operator() -> nsd.kernels.LowRankPlusDiagonal:
    return nsd.kernels.LowRankPlusDiagonal(_X.clone(), torch.eye(3, dtype=torch.float64), torch.ones(6, dtype=torch.float64))


def _relu_deq() -> separation.ReluDEQ:
    return separation.ReluDEQ.random(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@lru_cache(maxsize=1)
def _knowing(network: Any) -> Any:
    network.preprocessing = data.Preprocessing(data.Standardiser.of(_X), ("no", "yes"))
    return network


def _compiled() -> nsd.models.Compiled:
    return nsd.compile_deq(_deq(), _X, budget=0.0, progress=False)


GOOD: dict[str, Callable[[], Any]] = {
    "net": _net,
    "x": lambda: _X.clone(),
    "X": lambda: _X.clone(),
    "y": lambda: _Y.clone(),
    "tau0": lambda: 1.0,
    "phi": lambda: nsd.activation("tanh"),
    "inner": lambda: nsd.activation("tanh"),
    "factor": lambda: 2.0,
    "stretch": lambda: 2.0,
    "gains": lambda: (1.0, 2.0),
    "images": lambda: _patched(_net()),
    "channels": lambda: 2,
    "grid": lambda: (3, 3),
    "parts": lambda: (nsd.activation("tanh"), nsd.activation("relu")),
    "weighted": lambda: [(1.0, nsd.activation("tanh"))],
    "offset": lambda: 0.5,
    "spec": lambda: "tanh",
    "text": lambda: "x*tanh(x)",
    "function": lambda: torch.tanh,
    "var_a": lambda: 0.2,
    "kinds": lambda: ["tanh", "x"],
    "layers": lambda: ["relu"],
    "in_features": lambda: 3,
    "width": lambda: 4,
    "stats": lambda: nsd.MixtureStatistics.from_labels(_X, _Y),
    "reference": lambda: _X @ _X.T,
    "other": lambda: _X @ _X.T + 1.0,
    "module": _deq,
    "model": _deq,
    "deq": _deq,
    "network": _enn,
    "path": lambda: "written.file",
    "folder": lambda: "written",
    "loader": lambda: [(_X.clone(), _Y.clone())],
    "epochs": lambda: 1,
    "f": lambda: contraction,
    "z0": lambda: _X.clone(),
    "z": lambda: _X.clone(),
    "z_star": lambda: torch.zeros(2, 3, dtype=torch.float64),
    "tau": lambda: torch.tensor([1.0], dtype=torch.float64),
    "tau_i": lambda: torch.tensor(1.0),
    "tau_j": lambda: torch.tensor(1.0),
    "lam": lambda: torch.tensor(0.5),
    "means": lambda: torch.zeros(2, 3, dtype=torch.float64),
    "covariances": lambda: torch.ones(2, dtype=torch.float64),
    "mixture": lambda: nsd.GaussianMixture(torch.zeros(2, 3), torch.ones(2)),
    "norms2": lambda: _X.square().sum(1),
    "directions": lambda: torch.eye(3, dtype=torch.float64)[:, :2],
    "core": lambda: torch.eye(3, dtype=torch.float64),
    "diag": lambda: torch.ones(6, dtype=torch.float64),
    "coefficients": lambda: (0.0, 1.0),
    "linear": lambda: 0.1 * torch.eye(3, dtype=torch.float64),
    "u": lambda: _X.clone(),
    "kernel": lambda: torch.ones(1, 3, 3, dtype=torch.float64),
    "weight": lambda: torch.eye(3, dtype=torch.float64),
    "apply": lambda: lambda z: z,
    "apply_transposed": lambda: lambda z: z,
    "count": lambda: 2,
    "evaluations": lambda: 3,
    "names": lambda: ["A"],
    "n": lambda: 4,
    "p": lambda: 9,
    "k": lambda: 2,
    "v": lambda: torch.ones(6, dtype=torch.float64),
    "ridge": lambda: 0.1,
    "mean": lambda: torch.zeros(3, dtype=torch.float64),
    "scale": lambda: 1.0,
    "name": lambda: "digits:n=10",
    "W": lambda: torch.zeros(4, 4, dtype=torch.float64),
    "U": lambda: torch.ones(4, 3, dtype=torch.float64),
    "b": lambda: torch.zeros(4, dtype=torch.float64),
    "A": lambda: torch.ones(2, 4, dtype=torch.float64),
    "m": lambda: 3,
    "d": lambda: 3,
    "N": lambda: 3,
    "dimension": lambda: 3,
    "depth": lambda: 2,
    "pieces_log2": lambda: 3,
    "low": lambda: 0.0,
    "high": lambda: 1.0,
    "beta0": lambda: torch.ones(3, dtype=torch.float64),
    "f_k": lambda: 1.0,
    "f_empty": lambda: 0.0,
    "steps": lambda: 3,
    "time": lambda: 1.0,
    "widths": lambda: (4, 4),
    "loss": lambda: 0.01,
    "error": lambda: 0.1,
    "unseen": lambda: lambda x: x[:, 0] > 0,
    "t": lambda: torch.zeros(2, dtype=torch.float64),
    "T": lambda: torch.eye(2, dtype=torch.float64),
    "psi": lambda: torch.zeros(6, dtype=torch.float64),
    "J": lambda: torch.eye(2, dtype=torch.float64)[[0, 1, 0, 1, 0, 1]],
}
"""A good argument for each required parameter, by its name."""

_OF_IMAGES = ("forward", "features", "feature_map", "solve")
GOOD_AT: dict[str, dict[str, Callable[[], Any]]] = {
    "scalars": {"net": _net},
    "ENN": {"net": lambda: nsd.Explicit(["relu"])},
    "ConvENN": {"images": lambda: _patched(nsd.Explicit(["relu"]))},
    **{f"{name}.{method}": {"x": _images} for name in ("ConvDEQ", "ConvENN") for method in _OF_IMAGES},
    "Convolutional.tau0": {"x": _images},
    "kernels.TiledKernel": {"kernel": lambda: "conjugate"},
    "models.to_explicit": {"deq": lambda: nsd.models.to_deq(_enn())},
    "fixed_points.Activated": {"phi": lambda: torch.tanh},
    "fit": {"progress": lambda: False},
    "compile_deq": {"budget": lambda: 0.5, "progress": lambda: False},
    "separation.flow_limit": {"y": lambda: torch.ones(6, dtype=torch.float64)},
    "separation.gradient_flow": {"y": lambda: torch.ones(6, dtype=torch.float64)},
    "separation.gradient_descent": {"y": lambda: torch.ones(6, 1, dtype=torch.float64)},
    "separation.count_pieces": {"module": lambda: nn.Sequential(nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 1))},
    "data.images": {"name": lambda: "mnist"},
    "data.load": {"spec": lambda: "digits:n=12"},
    "data.load_split": {"spec": lambda: "digits:n=12"},
    "kernels.LowRankPlusDiagonal": {"factor": lambda: _X.clone()},
    "separation.BooleanTarget": {"function": lambda: lambda x: x[:, 0], "name": lambda: "f"},
    "advise": {"x": lambda: torch.randn(60, 2, generator=torch.Generator().manual_seed(0)), "y": lambda: torch.arange(60) % 2},
}


def _estimator(kind: type) -> Callable[[], Any]:
    small = {"width": 4} if "width" in inspect.signature(kind).parameters else {}
    return lambda: kind(**small).fit(_X.numpy(), _Y.numpy())


INSTANCES: dict[str, Callable[[], Any]] = {
    "DEQ": lambda: _knowing(_deq()),
    "ENN": lambda: _knowing(_enn()),
    "Implicit": _net,
    "Convolutional": lambda: _patched(_net()),
    "ConvDEQ": lambda: _conv(nsd.ConvDEQ, _net()),
    "ConvENN": lambda: _conv(nsd.ConvENN, nsd.Explicit(["relu"])),
    "Explicit": lambda: nsd.Explicit(["tanh"]),
    "LowRankPlusDiagonal": _operator,
    "TiledKernel": lambda: nsd.kernels.TiledKernel(_net(), _X, ridge=0.1),
    "GaussianMixture": GOOD["mixture"],
    "MixtureStatistics": GOOD["stats"],
    "SharpStatistics": lambda: nsd.kernels.SharpStatistics.from_pass(_X),
    "Scalars": lambda: nsd.scalars(_net(), 1.0),
    "Moments": lambda: nsd.theory.moments(nsd.activation("tanh"), torch.ones(1, dtype=torch.float64)),
    "StreamedFit": lambda: nsd.kernels.streamed_fit(_net(), _X, _Y),
    "Compiled": _compiled,
    "Standardiser": lambda: data.Standardiser.of(_X),
    "ReluDEQ": _relu_deq,
    "DiagonalDEQ": lambda: separation.DiagonalDEQ(3, dtype=torch.float64),
    "SteepDEQ": lambda: separation.SteepDEQ(3, 2),
    "Sawtooth": lambda: separation.Sawtooth(3),
    "Steep": lambda: separation.Steep(3),
    "Chirps": lambda: separation.Chirps(),
    "BooleanTarget": lambda: separation.BOOLEAN_TARGETS["f4"],
    **{kind.__name__: _estimator(kind) for kind in estimators.ESTIMATORS},
}
"""Something to call methods of."""

# Called by name in Python: a module's forward, a target's values.
_CALLED = {"Standardiser", "BooleanTarget", "Sawtooth", "Steep", "Chirps"}


def _fitted(kind: type) -> Callable[[], Any]:
    """An estimator stores what it is given, as scikit-learn asks; the door is its `fit`."""
    small = {"width": 4} if "width" in inspect.signature(kind).parameters else {}
    return lambda: lambda **options: kind(**(small | options)).fit(_X.numpy(), _Y.numpy())


def _doors() -> Iterator[Door]:
    seen: set[int] = set()
    for space in NAMESPACES:
        for name in space.__all__:
            value = getattr(space, name)
            if name in _NO_DOORS or id(value) in seen or not callable(value):
                continue
            seen.add(id(value))
            name = name if space is nsd else f"{space.__name__.rpartition('.')[2]}.{name}"
            get = _fitted(value) if space is estimators else lambda value=value: value
            yield _door(name, value, get)
    for name, make in INSTANCES.items():
        kind = next(getattr(space, name) for space in NAMESPACES if name in space.__all__)
        for method, value in inspect.getmembers(kind):
            own = (getattr(value, "__module__", None) or "").startswith("notsodeep")
            called = method == "__call__" and name in _CALLED
            if not (own and callable(value) and (called or not method.startswith("_"))):
                continue
            if method in _PROTOCOL | _ELEMENTWISE:
                continue
            bound = inspect.ismethod(value)  # of the class
            get = (lambda value=value: value) if bound else (lambda make=make, method=method: getattr(make(), method))
            yield _door(f"{name}.{method}", value, get, skip=() if bound else ("self",))


def _door(name: str, value: Any, get: Callable[[], Any], skip: tuple[str, ...] = ()) -> Door:
    own = GOOD_AT.get(name, {})
    good, optional = dict(own), []
    for parameter in inspect.signature(value).parameters.values():
        if parameter.name in (*skip, *own) or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.default is not parameter.empty:
            optional.append(parameter.name)
        else:
            good[parameter.name] = GOOD[parameter.name]
    replaceable = tuple(each for each in (*good, *optional) if each not in _ASIDE.get(name, ()))
    parts = set(name.split("."))
    return Door(name, get, good, replaceable, bool(_LIKE_TORCH & parts), bool(_HEAVY & parts))


def bad_values(parameter: str) -> tuple[str, ...]:
    """The names of the bad values for a parameter of this name."""
    return tuple(name for name in BAD if not (parameter in _WORK and name in ("2**40", "2**62")))


DOORS = tuple(door for door in _doors() if door.replaceable)
