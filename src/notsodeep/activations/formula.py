"""An activation typed as an expression in x, such as x*tanh(x): it is read, never run as code."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from notsodeep.activations.base import Activation, from_part
from notsodeep.activations.custom import Custom, doubt_about, find_kinks, look_at
from notsodeep.activations.formula_grammar import Reading, plain, refusal
from notsodeep.activations.mesh import Mesh
from notsodeep.activations.pieces import Pieces, pieces_of
from notsodeep.activations.places import grid, narrow_places, zeros
from notsodeep.activations.slopes import Function
from notsodeep.errors import NumericsWarning

_REACH, _INTERVALS = 64.0, 1 << 14
_VARIES_RTOL = 1e-12
_APART = 1e-6
_MANY = 1000  # zeros: more are waves that no panel follows
_UNDERFLOW = 1e-290  # what is nearer to 0 than this, and 0 a little farther on, may be so by rounding alone
_KEPT = 128  # expressions whose kinks need not be looked for again


@dataclass(frozen=True)
class Formula(Activation):
    """The function that `text` spells. Two of the same text are equal, and a file or a worker is sent the text alone."""

    text: str

    is_found_by_looking = True
    lipschitz_is_estimate = True
    kinks = from_part("_found.kinks")
    jumps = from_part("_found.jumps")
    lipschitz = from_part("_found.lipschitz")

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", plain(self.text))
        _ = self._found  # now: what cannot be used is refused here, and a call only calls

    @cached_property
    def _found(self) -> Custom:
        return _looked_at(self.text)

    def __call__(self, x: Tensor) -> Tensor:
        return self._found.function(x)

    def derivative(self, x: Tensor) -> Tensor:
        return self._found.derivative(x)

    def mesh(self, reach: float) -> Mesh:
        found = self._found.mesh_as_of(reach, b"")  # a text stands for one function
        if found.jumps:
            _check_signs(self.text, [place for place, _ in found.jumps if abs(place) < reach])
        return found

    @property
    def pieces(self) -> Pieces | None:
        return _pieces(self.text)

    def __reduce__(self) -> tuple[type[Formula], tuple[str]]:
        return Formula, (self.text,)

    def __str__(self) -> str:
        return self.text


def expression(text: str) -> Formula:
    """The activation of an expression in x: + − * / **, numbers, pi, e and functions, such as "max(x, 0) - 0.1*x".

    A text that is not such an expression, or not finite on [−64, 64], raises BadInput.
    """
    formula = Formula(text)
    if said := doubt(formula.text):
        warnings.warn(said, NumericsWarning, stacklevel=2)
    return formula


@lru_cache(_KEPT)
def _looked_at(text: str) -> Custom:
    reading = Reading(text)
    value = reading.value
    if isinstance(value, float):
        raise refusal(text, f"is the number {value:g} whatever x is: write an expression in x, such as x*tanh(x)")
    _check_values(value, text)
    for part, divisor in reading.divisors:
        if poles := zeros(divisor):
            raise refusal(part, f"divides by 0 at x = {poles[0]:.4g}: write a divisor that is never 0, such as 1 + x**2")
    kinks, narrow = _kinks(value, reading.switches), narrow_places(reading.arguments)
    _check_varies(value, text, grid({*kinks, *narrow}))
    found = look_at(value, kinks, text, narrow)
    _check_slope(found, text)
    _check_signs(text, [place for place, _ in found.jumps])
    return found


def _kinks(function: Function, switches: list[Function]) -> list[float]:
    """Those seen on a grid, and those too slight to be seen where the slope is large elsewhere."""
    kinks = list(find_kinks(function))
    for switch in switches:
        places = zeros(switch, kinks)
        if len(places) <= _MANY:
            kinks += [place for place in places if all(abs(place - kink) > _APART for kink in kinks)]
    return kinks


@lru_cache(_KEPT)
def _pieces(text: str) -> Pieces | None:
    found = _looked_at(text)
    return pieces_of(found.function, found.kinks)


@lru_cache(_KEPT)
def doubt(text: str) -> str | None:
    return doubt_about(_looked_at(text))


def _check_values(function: Function, text: str) -> None:
    places = grid()
    with torch.no_grad():
        values = function(places)
    _check_finite(text, "", places, values)


def _check_varies(function: Function, text: str, places: Tensor) -> None:
    with torch.no_grad():
        values = function(places)
    if float(values.max() - values.min()) <= _VARIES_RTOL * float(values.abs().max()):
        raise refusal(
            text,
            f"is {float(values[0]):.4g} to twelve digits for all x of [−64, 64] that were looked at, {len(places):,} with "
            "those next to its kinks: write one that varies with x",
        )


def _check_slope(found: Custom, text: str) -> None:
    # Between round numbers, which may be kinks.
    places = torch.linspace(-_REACH, _REACH, _INTERVALS, dtype=torch.float64) + 1.0 / (_INTERVALS * math.pi)
    _check_finite(text, "has a slope that ", places, found.derivative(places))


def _check_signs(text: str, jumps: list[float]) -> None:
    """`BadInput` where sign(u) jumps because u, which is never 0 there, is nearer to 0 than float64 can tell."""
    for part, inner in Reading(text).signs:
        for place in jumps:
            step = 1e-6 * max(1.0, abs(place))
            with torch.no_grad():
                sides = inner(torch.tensor([place - step, place + step], dtype=torch.float64)).abs()
            if float(sides.min()) == 0.0 and 0.0 < float(sides.max()) < _UNDERFLOW:
                raise refusal(
                    part,
                    f"jumps at x = {place:.4g} only because what it is the sign of underflows to 0 there in float64: write the "
                    "sign of what does not come so near to 0, such as sign(x) for sign(gelu(x))",
                )


def _check_finite(text: str, what: str, places: Tensor, values: Tensor) -> None:
    wrong = torch.nonzero(~torch.isfinite(values)).flatten()
    if not len(wrong):
        return
    place, value = float(places[wrong[0]]), float(values[wrong[0]])
    raise refusal(
        text,
        f"{what}is not finite at x = {place:.4g} ({value:g}): write one that is on [−64, 64], such as log(1 + abs(x)) for "
        "log(x), x/(1 + x**2) for 1/x or sigmoid(x) for 1/(1 + exp(-x))",
    )
