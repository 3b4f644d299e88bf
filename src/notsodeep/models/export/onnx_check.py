"""Checks of an ONNX file against the module it was written from."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from notsodeep.arguments import shown
from notsodeep.errors import BadInput, NoMatch, NotConverged, NotSoDeepError, NumericsWarning
from notsodeep.fixed_points.exported import Loop, Steps, Written
from notsodeep.fixed_points.plan import Plan
from notsodeep.models.export.raw_rows import RawRows

RTOL = {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 2e-2}
"""Largest difference of an output relative to the largest one, by the dtype of a network."""

_SOLVER_FACTOR = 100.0  # two solutions of a contraction L differ by up to residual/(1 − L)


@dataclass(frozen=True, eq=False)
class Example:
    """Inputs of a module, each with one row per sample."""

    tensors: tuple[Tensor, ...]
    fixed: bool = False
    """whether all rows are one problem, of this size alone"""

    @staticmethod
    def of(given: object) -> Example:
        """`given`, a tensor or a tuple of them, on the CPU; `BadInput` where it is not, or is empty, or rows differ."""
        tensors = (given,) if isinstance(given, Tensor) else given
        if not isinstance(tensors, tuple | list) or not tensors or not all(isinstance(t, Tensor) for t in tensors):
            raise BadInput(f"example must be an input of the module, a tensor or a tuple of them; got {given!r:.80}.")
        unusual = [t for t in tensors if t.layout != torch.strided or t.is_quantized or t.is_meta]
        if unusual:
            raise BadInput(f"example must be ordinary tensors; got {shown(unusual[0])}: pass x.to_dense(), or x.dequantize().")
        shapes = [tuple(t.shape) for t in tensors]
        if any(not shape or 0 in shape or shape[0] != shapes[0][0] for shape in shapes):
            raise BadInput(f"The rows of all tensors of example must be the same samples; got {', '.join(map(str, shapes))}.")
        return Example(tuple(t.detach().cpu() for t in tensors))

    @property
    def count(self) -> int:
        return len(self.tensors[0])

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of samples to check: one, and all (or three); all alone where they are one problem."""
        if self.fixed:
            return (self.count,)
        return (1, self.count if self.count > 1 else 3)

    @property
    def names(self) -> list[str]:
        """Names of the inputs in the file: x, or x1, x2 …"""
        return numbered("x", len(self.tensors))

    def of_size(self, count: int) -> tuple[Tensor, ...]:
        """The first `count` samples, repeated where there are fewer."""
        rows = torch.arange(count) % self.count
        return tuple(t[rows] for t in self.tensors)


def numbered(name: str, count: int) -> list[str]:
    """[name], or name1, name2 … for several."""
    return [name] if count == 1 else [f"{name}{i + 1}" for i in range(count)]


def described(module: nn.Module) -> str:
    """The module's name in messages."""
    module = module.network if isinstance(module, RawRows) else module
    net = getattr(module, "net", None)
    kind = type(module).__name__
    return kind if net is None or isinstance(net, nn.Module) else f"{kind} of {net}"


def line(error: Exception) -> str:
    """First line of the innermost error, or of ours: the exporter wraps a short reason in a long report."""
    inner: BaseException = error
    while inner.__cause__ is not None and not isinstance(inner, NotSoDeepError):
        inner = inner.__cause__
    lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
    return f"{lines[0][:700].rstrip('.')}." if lines else f"{type(inner).__name__}."


def require_converged(module: nn.Module, inputs: Sequence[Tensor], tried: Sequence[Written]) -> None:
    """Raise `NotConverged` where a loop of the file misses its tolerance on samples that the module itself solves."""
    for record in tried:
        if not isinstance(record.how, Loop) or not record.failed:
            continue
        with torch.no_grad():
            module(*inputs)  # raises by itself where its own solver fails too
        ours = "write the explicit network of compile_deq"
        theirs = "let the module solve with smaller steps, Picard(damping=0.3), which the file then takes too"
        advice = ours if isinstance(getattr(module, "plan", None), Plan) else theirs
        raise NotConverged(
            f"The loop of {record.steps} in the ONNX file does not reach the equilibrium within {record.max_steps} steps for "
            f"{record.failed} of {record.samples} samples: the residual is {record.residual:.2e}, the tolerance "
            f"{record.tol:.1e}. The module's own solver, {record.solver}, raised nothing there. Raise max_steps, or {advice}.",
            steps=record.max_steps,
            residual=record.residual,
        )


def check_file(module: nn.Module, file: Path, example: Example, dtype: torch.dtype, tried: Sequence[Written]) -> None:
    """Run the file with ONNX Runtime on two numbers of samples, and compare it with `module`, in eval mode.

    `dtype` is that of the network, `tried` describes its fixed points. Raises `NoMatch` where the outputs differ, `BadInput`
    where ONNX Runtime cannot run the file.
    """
    session = _session(module, file, dtype)
    if session is None:
        return
    allowed = max([RTOL[dtype], *(_SOLVER_FACTOR * record.tol for record in tried)])
    for count in example.sizes:
        inputs = example.of_size(count)
        with torch.no_grad():
            expected = pytree.tree_leaves(module(*inputs))
        feed = {name: tensor.numpy() for name, tensor in zip(example.names, inputs, strict=True)}
        try:
            found = [torch.from_numpy(output) for output in session.run(numbered("out", len(expected)), feed)]
        except Exception as error:  # its errors have no other common base class
            raise _cannot_run(module, dtype, error) from error
        for name, one, other in zip(numbered("out", len(expected)), expected, found, strict=True):
            where = f"{name!r} on {count} samples"
            _compare(module, one.double(), other.double(), where, allowed, tried)


def _session(module: nn.Module, file: Path, dtype: torch.dtype) -> Any:
    """An ONNX Runtime session of the file; None, with a warning, where it is not installed."""
    try:
        import onnxruntime
    except ImportError:
        warnings.warn(
            "The ONNX file was not checked against the network: onnxruntime is not installed (pip install 'notsodeep[onnx]').",
            NumericsWarning,
            stacklevel=7,  # the caller of the module's method
        )
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no other common base class
        raise _cannot_run(module, dtype, error) from error


def _cannot_run(module: nn.Module, dtype: torch.dtype, error: Exception) -> BadInput:
    return BadInput(
        f"ONNX Runtime cannot run {described(module)} in {str(dtype).removeprefix('torch.')}: {line(error)} Write a float32 "
        "copy, copy.deepcopy(module).float(), or pass check=False to keep the file for another runtime."
    )


def _compare(module: nn.Module, expected: Tensor, found: Tensor, where: str, allowed: float, tried: Sequence[Written]) -> None:
    same = expected.shape == found.shape
    gap = float((expected - found).abs().max() / expected.abs().max().clamp(min=1e-300)) if same else math.inf
    if gap <= allowed:
        return
    why = "".join(
        f" Its {record.how.count} {record.steps} leave a residual of {record.residual:.1e}: take more, or Loop()."
        for record in tried
        if isinstance(record.how, Steps) and record.failed
    )
    raise NoMatch(
        f"The ONNX file of {described(module)} is off by {gap:.1e} of the largest output, in {where} (allowed: "
        f"{allowed:.1e}), so it was not kept; check=False keeps it.{why}",
        residual=gap,
    )
