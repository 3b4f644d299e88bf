"""A few steps of a DEQ as the text of a program that needs torch alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from notsodeep.activations import Activation
from notsodeep.errors import BadInput
from notsodeep.models.deq import DEQ
from notsodeep.models.export.source import Text, program, zeros

if TYPE_CHECKING:
    from notsodeep.models.unrolled import Unrolled

_LINEAR = "torch.nn.functional.linear"


@torch.no_grad()
def unrolled_source(module: Unrolled) -> str:
    """A program that holds a DEQ of so many steps: `import torch`, its activation, `class Network`, its weights, and `load()`.

        u = U x (+ b), s ← φ(u) or φ(R u + r), then K steps s ← φ(W s + u) or learnt mixtures of them, out = V s (+ c)

    The factors of the DEQ are inside the weights. Run as a program, it prints its shapes and the norm of its output on a fixed
    input, with the norm found here.

    Raises:
        BadInput: It is not made of a DEQ of one activation, or that is a function which cannot be traced.
    """
    deq = module.model
    if not isinstance(deq, DEQ) or not isinstance(deq.form.phi, Activation):
        raise BadInput(
            f"Steps of {type(deq).__name__} cannot be written as a program of their own, as its map is code: write them with "
            "to_onnx."
        )
    weights = _weights(module, deq)
    state = {f"weights.{name}": weight.detach().cpu().contiguous() for name, weight in weights.items()}
    made = ["self.weights = torch.nn.ParameterDict(", "    {"]
    made += [f'        "{name}": {zeros(weight)},' for name, weight in weights.items()]
    made += ["    }", ")"]
    kind = "plain" if module.shifts is None else "learnt"
    sizes = (deq.in_features, deq.width, *([] if deq.out_features is None else [deq.out_features]))
    step = "s ← φ(W s + u)" if module.resolvent is None else "v ← 2 P (r + u) − r, r = 2 φ(v) − v, s = φ(v)"
    formula = f"u = U x + b, {module.steps} {kind} steps {step}, out = V s + c"
    steps = _steps(module, weights, deq.form.output)
    return program(module, Text(sizes, formula, {deq.form.phi: "phi"}, made, steps), state)


def _weights(module: Unrolled, deq: DEQ) -> dict[str, Tensor]:
    recurrent, inward = deq.scales()
    weights = {"U": deq.B * inward, "W": deq.A * recurrent}
    if deq.bias is not None:
        weights["b"] = deq.bias
    if module.response is not None:
        weights |= {"R": module.response.weight, "r": module.response.bias}
    if module.resolvent is not None:
        weights |= {"P": module.resolvent.weight, "p": module.resolvent.bias}
    if module.shifts is not None and module.mixing is not None:
        weights |= {"shift": module.shifts[0]} | ({"mixing": module.mixing[0]} if module.steps else {})
    weight = deq.readout.effective_weight()
    if weight is not None:
        weights["V"] = weight * deq.form.output
    if deq.readout.bias is not None:
        weights["c"] = deq.readout.bias
    return weights


def _steps(module: Unrolled, weights: dict[str, Tensor], factor: float) -> list[str]:
    """The lines of `forward`."""

    def linear(x: str, weight: str, bias: str) -> str:
        return f'{_LINEAR}({x}, w["{weight}"]' + (f', w["{bias}"])' if bias in weights else ")")

    image = f'phi({_LINEAR}(s, w["W"]) + u)' if module.resolvent is None else "split(s)"
    lines = ["w = self.weights", f"u = {linear('x', 'U', 'b')}"]
    lines.append("s = phi(u)" if module.response is None else f"s = phi({linear('u', 'R', 'r')})")
    if module.resolvent is not None:
        lines += ["def split(v):", "    r = 2.0 * phi(v) - v", f"    return 2.0 * {linear('r + u', 'P', 'p')} - r"]
    if "shift" in weights:
        lines.append('s = s + w["shift"]')
    if "mixing" in weights:
        lines += ["missed = []", f"for k in range({module.steps}):", f"    missed.append({image} - s)"]
        lines.append('    s = s + sum(w["mixing"][k, j] * earlier for j, earlier in enumerate(missed))')
    elif module.steps and "shift" not in weights:
        step = image if module.damping == 1.0 else f"torch.lerp(s, {image}, {module.damping!r})"
        lines += [f"for _ in range({module.steps}):", f"    s = {step}"]
    if module.resolvent is not None:
        lines.append("s = phi(s)")
    if "V" in weights:
        lines.append(f"return {linear('s', 'V', 'c')}")
    else:
        lines.append(f"return s * {factor!r}")
    return lines
