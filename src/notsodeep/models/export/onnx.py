"""Networks as ONNX files: the export, and operators that the exporter or ONNX Runtime lacks in float64."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import logging
import math
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from notsodeep.arguments import count, flag, path as checked_path
from notsodeep.data.preprocessing import Preprocessing
from notsodeep.errors import BadInput, NotSoDeepError
from notsodeep.fixed_points.exported import Exporting, How, Loop, Written, exporting
from notsodeep.models.export.onnx_check import RTOL, Example, check_file, described, line, numbered, require_converged
from notsodeep.models.export.raw_rows import RawRows, add_answers
from notsodeep.runtime.files import write_whole

Table = dict[Callable[..., Any], Callable[..., Any]]
"""Functions that write ONNX operators, by the torch operator that they replace."""
_LARGEST = 2**31 - 2**20  # bytes: the limit of protobuf, less some room for the graph
_CHECKED_SIZES = (1, 5)
_ONE_AT_A_TIME = threading.RLock()
"""torch's exporter patches modules and uses globals: two exports at once fail."""
_NO_OPERATOR = ("DispatchError", "ConversionError", "UnsupportedOperatorError")  # errors for a missing operator
_PROPERTY = "notsodeep.fixed_points"  # the file's property that describes its fixed points
_HEADED = 4  # axes of queries: samples, heads, length, features
_SELU_SCALE, _SELU_ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717
_FLOAT, _DOUBLE = 1, 11  # ONNX's codes of the types


def to_onnx(
    module: nn.Module,
    path: str | os.PathLike[str],
    example: Tensor | tuple[Tensor, ...] | None = None,
    how: How = Loop(),  # noqa: B008 (a frozen value)
    *,
    samples: int = 1,
    check: bool = True,
) -> Path:
    """Write `module` as one ONNX file with all its weights: input "x", output "out", any number of samples.

    A network that knows its preprocessing takes raw rows: the file centres and scales them. For numbers, "out" is in their own
    units; for classes, it holds the scores, and a second output, "label", the names. The file's property
    "notsodeep.preprocessing" has all of that as JSON. Columns too far from 0 for float32 make "x" a float64 input.

    Several inputs are called "x1", "x2" …, several outputs "out1", "out2" … A fixed point, a DEQ's or one solved by the module
    with `fixed_point`, is written as `how` says; the file's property "notsodeep.fixed_points" describes it, and so does
    ``written`` of an enclosing `exporting`.

    In float64 the file is exact to round-off, except for erf and GELU, which ONNX Runtime has in float32 only, and constants of
    some of torch's own activations, which the exporter rounds to float32.

    Args:
        module: A DEQ, an ENN, or any module together with an example.
        path: The file; an existing one is replaced once the new one is complete.
        example: Inputs of the module, raw rows if it knows its preprocessing: a tensor or a tuple of them, one row per sample.
            A DEQ or an ENN needs none.
        samples: 0 where all rows are one problem, such as the nodes of a graph: the file takes as many as the example has.
        how: `Loop()`, a loop of plain steps that ends when every sample has converged, or `Steps(count)`.
        check: Run the file with ONNX Runtime on two numbers of samples, and compare it with the module in eval mode.

    Returns:
        The path.

    Raises:
        NoMatch: An output differs by more than 1e-5 of the largest one, or 100 times the tolerance; no file is left.
        NotConverged: The loop of plain steps does not reach the solution that the module's own solver finds.
        BadInput: The module cannot be written, does not take the example or does not return tensors; or a package is missing.
    """
    _require_packages()
    target, check = checked_path(path), flag(check, "check")
    if not isinstance(module, nn.Module):
        raise BadInput(f"to_onnx takes a torch module, got {type(module).__name__}: functions go into an nn.Module's forward.")
    inputs, dtype = _own_example(module) if example is None else _given_example(module, example)
    inputs = replace(inputs, fixed=count(samples, "samples", least=0, most=1) == 0)
    size = sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers()))
    if size > _LARGEST:
        raise BadInput(
            f"The weights take {size / 2**30:.2f} GiB, one ONNX file holds 2 GiB: make the network narrower, or use nsd.save.",
            bytes=size,
        )
    # A copy on the CPU: the graph does not depend on the device, and the module stays as it is.
    fixed = copy.deepcopy(module).cpu().eval()
    known = getattr(fixed, "preprocessing", None)
    if isinstance(known, Preprocessing):
        fixed = RawRows(fixed, known, dtype)
        inputs = Example((fixed.raw_rows(inputs.tensors[0]),)) if example is None else inputs
    with _ONE_AT_A_TIME, exporting(how) as graph:
        for size in inputs.sizes:
            outputs, tried = _rehearsed(fixed, inputs.of_size(size), graph)
            if check:
                require_converged(fixed, inputs.of_size(size), tried)

        def write(to: Path) -> None:
            to.write_bytes(_exported(fixed, inputs, dtype, outputs, graph))
            if check:
                check_file(fixed, to, inputs, dtype, tried)

        return write_whole(target, write)


def _require_packages() -> None:
    missing = [name for name in ("onnx", "onnxscript") if not _installed(name)]
    if missing:
        raise BadInput(f"ONNX files need {' and '.join(missing)}: pip install 'notsodeep[onnx]'.")


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # a module that was put in sys.modules by hand, or None in its place
        return False


def _own_example(module: nn.Module) -> tuple[Example, torch.dtype]:
    """Samples (n, p) of the norm that a DEQ or an ENN was made for, and its dtype."""
    features, weight = getattr(module, "in_features", None), next(module.parameters(), None)
    if not isinstance(features, int) or weight is None:
        raise BadInput(
            f"to_onnx takes a network with in_features and weights, an ENN or a DEQ; got {type(module).__name__}. For another "
            "module pass inputs of it: to_onnx(module, path, example=x)."
        )
    dtype = _required(weight.dtype)
    draw = torch.Generator().manual_seed(0)
    scale = float(getattr(module, "tau0", 1.0)) / math.sqrt(features)
    x = [torch.randn(count, features, generator=draw, dtype=torch.float64) for count in _CHECKED_SIZES]
    return Example(((scale * torch.cat(x)).to(dtype),)), dtype


def _given_example(module: nn.Module, example: object) -> tuple[Example, torch.dtype]:
    inputs = Example.of(example)
    dtypes = (t.dtype for t in (*module.parameters(), *inputs.tensors) if t.is_floating_point())
    return inputs, _required(next(dtypes, torch.float32))


def _required(dtype: torch.dtype) -> torch.dtype:
    if dtype not in RTOL:
        raise BadInput(
            f"ONNX Runtime cannot run a network of {str(dtype).removeprefix('torch.')}; write a float32 copy: "
            "copy.deepcopy(module).float()."
        )
    return dtype


def _rehearsed(module: nn.Module, inputs: tuple[Tensor, ...], graph: Exporting) -> tuple[int, tuple[Written, ...]]:
    """Number of outputs for `inputs`, and how the fixed points are written; `BadInput` where the module fails on them."""
    given = ", ".join(f"{tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}" for t in inputs)
    try:
        answer, tried = graph.rehearse(module, *inputs)
    except NotSoDeepError:
        raise
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise BadInput(
            f"{described(module)} fails on the example, here with {given}: {line(error)} Pass inputs as its forward takes "
            "them, one row for each sample: example=x, or example=(x, y) for forward(x, y)."
        ) from error
    outputs = pytree.tree_leaves(answer)
    kinds = [type(output).__name__ for output in outputs if not isinstance(output, Tensor)]
    if kinds or not outputs:
        raise BadInput(
            f"{described(module)} returns {' and '.join(sorted(set(kinds))) or 'nothing'} among its {len(outputs)} outputs, "
            "and an ONNX file has tensors only: let its forward return nothing else, or wrap it in a module that does."
        )
    return len(outputs), tried


def _exported(module: nn.Module, inputs: Example, dtype: torch.dtype, outputs: int, graph: Exporting) -> bytes:
    free = None if inputs.fixed else tuple({0: torch.export.Dim("n")} for _ in inputs.tensors)
    with _quiet():
        try:
            program = torch.onnx.export(
                module,
                # With a single sample, n would become a constant.
                inputs.tensors if inputs.fixed else inputs.of_size(max(inputs.count, 2)),
                dynamo=True,
                input_names=inputs.names,
                output_names=numbered("out", outputs),
                dynamic_shapes=free,
                custom_translation_table=translations(dtype),
                verbose=False,
            )
        except Exception as error:  # the exporter's errors have no common base class
            raise BadInput(f"{described(module)} cannot be written as ONNX: {line(error)} {_remedy(error)}") from error
    assert program is not None
    proto = program.model_proto
    if not inputs.fixed and not all(given.type.tensor_type.shape.dim[0].dim_param for given in proto.graph.input):
        raise BadInput(
            f"{described(module)} cannot be written as ONNX for any number of samples: on the way it became the constant "
            f"{inputs.count}. Take it from a shape, x.shape[0] or torch.zeros_like(x), not from len(x) or int(…).",
            samples=inputs.count,
        )
    if graph.written:
        note = proto.metadata_props.add()
        note.key, note.value = _PROPERTY, "\n".join(map(str, graph.written))
    if isinstance(module, RawRows):
        add_answers(proto, module.known)
    octets: bytes = proto.SerializeToString()
    return octets


def _remedy(error: BaseException) -> str:
    """The remedy for an error of the exporter: change the module only where an operator is missing."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and cause not in causes:
        causes.append(cause)
    if any(type(cause).__name__ in _NO_OPERATOR for cause in causes):
        return "Use activations and operations that ONNX has operators for."
    return (
        f"That is a {type(causes[-1]).__name__} inside torch's exporter, which need not be the module's fault: try torch.export"
        " on it, and export nothing with torch in another thread meanwhile; nsd.save and to_source need no exporter."
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the exporter's progress, its notes on optional packages, and warnings from inside torch."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def translations(dtype: torch.dtype) -> Table:
    """Translations for torch.onnx.export that keep the numbers of a network of this dtype."""
    op = _operators()

    def logaddexp(a: Any, b: Any) -> Any:
        """max(a, b) + log(1 + e^(−|a − b|)), finite where e^a or e^b overflows, unlike the exporter's own."""
        smaller = op.Exp(op.Neg(op.Abs(op.Sub(a, b))))
        return op.Add(op.Max(a, b), op.Log(op.Add(smaller, op.CastLike(_constant(1.0), smaller))))

    always: Table = {torch.ops.aten.logaddexp.default: logaddexp}
    always[torch.ops.aten.scaled_dot_product_attention.default] = _attention
    return always | _rounded() | _in_float32_only() if dtype == torch.float64 else always


def _operators() -> Any:
    from onnxscript import opset18

    return opset18


def _constant(value: float) -> Any:
    from onnxscript import ir

    return _operators().Constant(value=ir.tensor(float(value), dtype=ir.DataType.DOUBLE))


def _attention(query: Any, key: Any, value: Any, mask: Any = None, *given: Any, **named: Any) -> Any:
    """Attention on (n, T, d) or (T, d), as that of a single head; the exporter's own takes (n, heads, T, d) only."""
    from onnxscript.function_libs.torch_lib.ops.nn import aten_scaled_dot_product_attention as of_heads

    op, axes = _operators(), len(query.shape)
    if axes == _HEADED:
        return of_heads(query, key, value, mask, *given, **named)
    if axes > _HEADED or {axes} != {len(each.shape) for each in (key, value)} or named.get("enable_gqa"):
        raise ValueError(
            f"scaled_dot_product_attention on queries of {axes} axes: give queries, keys and values (n, heads, T, d), as by "
            "x.flatten(0, -4)."
        )
    headed = (
        (1,) if axes == _HEADED - 1 else (0, 1)
    )  # (n, T, d) gets a head, (T, d) a sample too, and so does a mask of samples
    query, key, value = (_with_axes(each, headed) for each in (query, key, value))
    if mask is not None and len(mask.shape) == _HEADED - 1:
        mask = _with_axes(mask, headed)
    return op.Squeeze(of_heads(query, key, value, mask, *given, **named), op.Constant(value_ints=headed))


def _with_axes(x: Any, axes: tuple[int, ...]) -> Any:
    """x with axes of length 1, its shape and dtype known as before."""
    from onnxscript import ir

    op, lengths = _operators(), list(x.shape)
    for axis in axes:
        lengths.insert(axis, 1)
    made = op.Unsqueeze(x, op.Constant(value_ints=axes))
    made.shape, made.dtype = ir.Shape(lengths), x.dtype
    return made


def _rounded() -> Table:
    """Operators whose constants the exporter rounds to float32."""
    op, aten = _operators(), torch.ops.aten

    def scalar_tensor(s: float, dtype: int = _DOUBLE, **_: Any) -> Any:
        exact = _constant(s)
        return exact if dtype == _DOUBLE else op.Cast(exact, to=dtype)

    def full_like(x: Any, fill_value: float, dtype: int = _DOUBLE, **_: Any) -> Any:
        return op.Expand(scalar_tensor(fill_value, dtype), op.Shape(x))

    def clamp(x: Any, low: Any = None, high: Any = None) -> Any:
        """A Clip: the exporter's optimiser would make one from Max and Min, but lose its bounds where x has two."""
        if all(bound is None or (bound.shape is not None and len(bound.shape) == 0) for bound in (low, high)):
            return op.Clip(x, low, high)
        x = x if low is None else op.Max(x, low)
        return x if high is None else op.Min(x, high)

    return {
        aten.scalar_tensor.default: scalar_tensor,
        aten.full_like.default: full_like,
        aten.hardtanh.default: lambda x, low=-1.0, high=1.0: op.Clip(x, _constant(low), _constant(high)),
        aten.clamp.Tensor: clamp,
    }


def _in_float32_only() -> Table:
    """Operators that ONNX Runtime has in float32 only, composed of others."""
    op, aten = _operators(), torch.ops.aten

    def leaky_relu(x: Any, slope: float = 0.01) -> Any:
        return op.Where(op.Greater(x, _constant(0.0)), x, op.Mul(x, _constant(slope)))

    def elu(x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
        """scale·x for x > 0, scale·alpha·(e^(input_scale·x) − 1) below."""
        power = op.Exp(op.Mul(_constant(input_scale), op.Clip(x, None, _constant(0.0))))
        below = op.Mul(_constant(scale * alpha), op.Sub(power, _constant(1.0)))
        return op.Where(op.Greater(x, _constant(0.0)), op.Mul(_constant(scale), x), below)

    def erf(x: Any) -> Any:
        return op.Cast(op.Erf(op.Cast(x, to=_FLOAT)), to=_DOUBLE)

    def erfc(x: Any) -> Any:
        return op.Sub(_constant(1.0), erf(x))

    def atan(x: Any) -> Any:
        """a + (x cos a − sin a)/(cos a + x sin a), a = atan(x) in float32: one Newton-like step, of cubic error."""
        first = op.Cast(op.Atan(op.Cast(x, to=_FLOAT)), to=_DOUBLE)
        sine, cosine = op.Sin(first), op.Cos(first)
        missed = op.Div(op.Sub(op.Mul(x, cosine), sine), op.Add(cosine, op.Mul(x, sine)))
        return op.Add(first, missed)

    return {
        aten.leaky_relu.default: leaky_relu,
        aten.elu.default: elu,
        aten.selu.default: lambda x: elu(x, _SELU_ALPHA, _SELU_SCALE),
        aten.erf.default: erf,
        aten.special_erfc.default: erfc,
        aten.erfc.default: erfc,
        aten.atan.default: atan,
    }
