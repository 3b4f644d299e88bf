"""A network as an ONNX file."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import logging
import math
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from notsodeep.data.files import write_whole
from notsodeep.errors import BadInput, NoMatch, NotConverged, NumericsWarning
from notsodeep.fixed_points.plan import Plan
from notsodeep.models.onnx_operators import translations

_LARGEST = 2**31 - 2**20  # bytes: what protobuf takes, less some room for the graph
_CHECKED_SIZES = (1, 5)
_RTOL = {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 2e-2}
_SOLVER_FACTOR = 100.0  # an equilibrium is within residual/(1 − L) of another one


def to_onnx(module: nn.Module, path: str | os.PathLike[str], how=None, *, check: bool = True) -> Path:
    """Write `module` as one ONNX file with all its weights: input "x", (n, p), output "out", any number n of samples.

    A DEQ becomes a loop of plain steps that ends when every sample has converged, as in its own exported graph. `check` runs
    the file with ONNX Runtime on 1 and on 5 samples and compares it with the module: a difference above 1e-5 of the largest
    output (a DEQ: above 100 times its own tolerance) raises `NoMatch`, and no file is left.

    In float64 the file is exact to round-off, but for erf and GELU, which ONNX Runtime knows in float32 only, and numbers in
    some of torch's own activations, which the exporter rounds to it.
    """
    _require_packages()
    features, dtype = _input(module)
    size = sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers()))
    if size > _LARGEST:
        raise BadInput(
            f"The weights take {size / 2**30:.2f} GiB and one ONNX file holds 2 GiB at most; make the network narrower, or "
            "write it with nsd.save.",
            bytes=size,
        )
    # A copy on the CPU: the graph does not depend on the device, and the module stays as it is.
    fixed = copy.deepcopy(module).cpu().eval()

    def write(to: Path) -> None:
        to.write_bytes(_exported(fixed, features, dtype))
        if check:
            _check(fixed, to, features, dtype)

    return write_whole(Path(path), write)


def _require_packages() -> None:
    missing = [name for name in ("onnx", "onnxscript") if not _there(name)]
    if missing:
        raise BadInput(f"ONNX files need {' and '.join(missing)}: pip install 'notsodeep[onnx]'.")


def _there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # a module that was put in sys.modules by hand, or None in its place
        return False


def _input(module: nn.Module) -> tuple[int, torch.dtype]:
    """p and the dtype of the samples, (n, p), that the module takes."""
    features, weight = getattr(module, "in_features", None), next(module.parameters(), None)
    if not isinstance(features, int) or weight is None:
        raise BadInput(
            f"to_onnx takes a network with in_features and weights, an ENN or a DEQ; got {type(module).__name__}."
        )
    if weight.dtype not in _RTOL:
        raise BadInput(
            f"ONNX Runtime cannot run a network of {str(weight.dtype).removeprefix('torch.')}; write a float32 copy: "
            "copy.deepcopy(module).float()."
        )
    return features, weight.dtype


def _exported(module: nn.Module, features: int, dtype: torch.dtype) -> bytes:
    with _quiet():
        try:
            program = torch.onnx.export(
                module,
                (torch.zeros(3, features, dtype=dtype),),
                dynamo=True,
                input_names=["x"],
                output_names=["out"],
                dynamic_shapes=({0: torch.export.Dim("n")},),
                custom_translation_table=translations(dtype),
                verbose=False,
            )
        except Exception as error:  # the exporter has no base class of its own for what it cannot convert
            raise BadInput(
                f"{_described(module)} cannot be written as ONNX: {_line(error)} Use activations that ONNX has operators for."
            ) from error
    assert program is not None
    octets: bytes = program.model_proto.SerializeToString()
    return octets


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's progress, its notes on packages that are not needed, and warnings from inside torch."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _check(module: nn.Module, file: Path, features: int, dtype: torch.dtype) -> None:
    if not _there("onnxruntime"):
        warnings.warn(
            "The ONNX file was not checked against the network: onnxruntime is not installed (pip install 'notsodeep[onnx]').",
            NumericsWarning,
            stacklevel=6,  # whoever called the module's method
        )
        return
    import onnxruntime

    plan = getattr(module, "plan", None)
    solved = plan if isinstance(plan, Plan) else None
    allowed = max(_RTOL[dtype], 0.0 if solved is None else _SOLVER_FACTOR * solved.tolerance(dtype))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    draw = torch.Generator().manual_seed(0)
    try:
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors share no base class but this
        raise BadInput(
            f"ONNX Runtime cannot run {_described(module)} in {str(dtype).removeprefix('torch.')}: {_line(error)} Write a "
            "float32 copy, copy.deepcopy(module).float(), or pass check=False to keep the file for another runtime."
        ) from error
    scale = float(getattr(module, "tau0", 1.0)) / math.sqrt(features)
    for n in _CHECKED_SIZES:
        x = (scale * torch.randn(n, features, generator=draw, dtype=torch.float64)).to(dtype)
        with torch.no_grad():
            expected = module(x).double()
        found = torch.from_numpy(session.run(["out"], {"x": x.numpy()})[0]).double()
        _compare(module, expected, found, n, allowed, solved)


def _compare(
    module: nn.Module, expected: torch.Tensor, found: torch.Tensor, n: int, allowed: float, solved: Plan | None
) -> None:
    if solved is not None and bool(found.isnan().any()):
        raise NotConverged(
            f"The loop of plain steps in the ONNX file does not reach the equilibrium within {solved.max_steps} steps, where "
            "the DEQ's own solver does; raise max_steps, or write the explicit network of compile_deq.",
            steps=solved.max_steps,
            residual=math.nan,
        )
    same = expected.shape == found.shape
    gap = float((expected - found).abs().max() / expected.abs().max().clamp(min=1e-300)) if same else math.inf
    if not gap <= allowed:
        raise NoMatch(
            f"The ONNX file of {_described(module)} is off by {gap:.1e} of the largest output on {n} samples (allowed: "
            f"{allowed:.1e}), so it was not kept; check=False keeps it.",
            residual=gap,
        )


def _described(module: nn.Module) -> str:
    return f"{type(module).__name__} of {getattr(module, 'net', 'unknown layers')}"


def _line(error: Exception) -> str:
    """The first line of the innermost message: the exporter wraps a short reason in a long report."""
    inner: BaseException = error
    while inner.__cause__ is not None:
        inner = inner.__cause__
    lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
    return f"{lines[0][:300].rstrip('.')}." if lines else f"{type(inner).__name__}."
