"""Any element-wise torch function as an activation: its kinks, jumps and Lipschitz constant are found by looking."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from notsodeep.activations.base import Activation, from_part
from notsodeep.activations.kinks import at_order, find_jumps, pinned_down, rounded
from notsodeep.activations.mesh import Mesh, mesh_of
from notsodeep.activations.slopes import Function, derivative
from notsodeep.arguments import instance
from notsodeep.errors import BadInput, NumericsWarning
from notsodeep.tolerances import STEEP_RTOL

_REACH = 64.0  # kinks are looked for on [−64, 64]; farther out where inputs come there
_INTERVALS = 1 << 14
_NEAR = 16.0  # what is looked at before anything is asked
_KEPT = 128  # functions whose meshes are kept
_NEXT = 1e-12  # of x, how far it is to a place next to it


@dataclass(frozen=True)
class Custom(Activation):
    """A user's function with what was found out about it. Build one with `custom`."""

    function: Function
    label: str
    kinks_found: tuple[float, ...]
    jumps_found: tuple[tuple[float, float], ...]
    steepest_slope: float
    narrow: tuple[float, ...] = ()
    """places at which φ may have features too narrow to be seen"""

    is_found_by_looking = True
    lipschitz_is_estimate = True
    may_change = True
    kinks = from_part("kinks_found")
    jumps = from_part("jumps_found")
    lipschitz = from_part("steepest_slope")

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x)

    def derivative(self, x: Tensor) -> Tensor:
        """φ'(x); right of x where that is none, as of (|x|^½)² at 0: averages meet such a place, with no weight."""
        slope = derivative(self.function, x)
        none = ~torch.isfinite(slope)
        if bool(none.any()):
            beside = x[none] + _NEXT * x[none].abs().clamp(min=1.0)
            slope = slope.masked_scatter(none, derivative(self.function, beside))
        return slope

    def mesh(self, reach: float) -> Mesh:
        """Made once for the largest reach, to a quarter of a power of two; of a module that has learnt since, anew."""
        return self.mesh_as_of(reach, self._witness())

    def mesh_as_of(self, reach: float, witness: bytes) -> Mesh:
        """`mesh`, of the function that the witness stands for."""
        quarters, known = math.ceil(4.0 * math.log2(max(reach, _NEAR))), _meshes(self, witness)
        wide_enough = [made for made in known if made >= quarters]
        if not wide_enough:
            known[quarters] = mesh_of(self.function, self.label, self.kinks_found, 2.0 ** (quarters / 4.0), self.narrow)
        return known[min(wide_enough, default=quarters)]

    def _witness(self) -> bytes:
        with torch.no_grad():
            return bytes(self.function(_witness_places()).numpy().tobytes())

    def __str__(self) -> str:
        return f"{self.label} (custom, L ≈ {self.lipschitz:.4g})"


@lru_cache(1)
def _witness_places() -> Tensor:
    """Far apart over all of [−64, 64], and a hundredth apart next to 0."""
    return torch.cat([_grid()[::16], torch.linspace(-8.0, 8.0, 1601, dtype=torch.float64)])


@lru_cache(_KEPT)
def _meshes(_phi: Custom, _witness: bytes) -> dict[int, Mesh]:
    """Those that were made of a function, by quarters of a power of two."""
    return {}


def custom(function: Function, kinks: Iterable[float] | None = None, name: str | None = None) -> Custom:
    """`function` as an activation.

    Args:
        function: An element-wise torch function.
        kinks: Where it or its slope jumps; looked for on [−64, 64] by default.
        name: Its name in messages and files; that of the function by default.

    Returns:
        The activation; a `NumericsWarning` says where its kernels may be inaccurate.

    Raises:
        BadInput: It is not element-wise, or the kinks are not finite numbers.
    """
    activation = look_at(function, kinks, name)
    if said := doubt_about(activation):
        warnings.warn(said, NumericsWarning, stacklevel=2)
    return activation


def look_at(
    function: Function, kinks: Iterable[float] | None = None, name: str | None = None, narrow: tuple[float, ...] = ()
) -> Custom:
    """`custom` without its warning; features too narrow to be seen are looked for at the places `narrow`."""
    if name is not None:
        instance(name, str, "name", "a text")
    label = name or getattr(function, "__name__", None) or type(function).__name__
    _check_elementwise(function, label)
    places = find_kinks(function) if kinks is None else _given(kinks, label)
    jumps = find_jumps(function, places)
    steepest = math.inf if jumps else _steepest_slope(function, places)
    return Custom(function, label, places, jumps, steepest, narrow)


def _given(kinks: Iterable[float], label: str) -> tuple[float, ...]:
    try:
        places = tuple(sorted(float(k) for k in kinks))
    except (TypeError, ValueError):
        places = (math.nan,)
    if not all(math.isfinite(place) for place in places):
        raise BadInput(f"The kinks of {label} must be finite numbers, got {kinks!r}.")
    return places


def _steepest_slope(function: Function, kinks: tuple[float, ...]) -> float:
    """max |φ'| on a grid of [−64, 64], finer around 0 and around the kinks: a lower bound of L, close to it."""
    near = torch.logspace(-9, 0, 200, dtype=torch.float64)
    around = [centre + sign * near for centre in (0.0, *kinks) for sign in (-1.0, 1.0)]
    return float(derivative(function, torch.cat([_grid(), *around])).abs().max())


def find_kinks(function: Function) -> tuple[float, ...]:
    """Places where the function, its slope or its curvature jumps.

    A jump stands out on a grid and keeps its size when its interval is halved; a steep but smooth piece shrinks.
    """
    found: list[float] = []
    largest = 0.0
    for order in range(3):
        edges = _grid()
        try:
            values = at_order(function, edges, order)
        except RuntimeError:  # torch knows no second derivative of some of its functions; they are searched to the first
            break
        change, scale = values.diff().abs(), float(values.abs().max()) + 1e-300
        largest = max(largest, scale)
        # The curvature of a straight piece can be rounding errors alone.
        floor = max(1e-7 * scale, 1e-12 * largest)
        around = torch.maximum(change.roll(2), change.roll(-2))
        stands_out = torch.nonzero((change > 3.0 * around) & (change > floor)).flatten()
        places = pinned_down(function, edges[stands_out], edges[stands_out + 1], (order,))
        found += places[~places.isnan()].tolist()
    merged: list[float] = []
    for place in sorted(rounded(place) for place in found):
        if not merged or place - merged[-1] > 1e-6:
            merged.append(place + 0.0)
    return tuple(merged)


def _grid() -> Tensor:
    # Shifted by an irrational fraction of a step, so that a kink at a round number is inside an interval.
    step = 2.0 * _REACH / _INTERVALS
    return torch.linspace(-_REACH, _REACH, _INTERVALS + 1, dtype=torch.float64) + step / math.pi


def _check_elementwise(function: Function, label: str) -> None:
    probe = torch.linspace(-3.0, 3.0, 12, dtype=torch.float64).reshape(3, 4)
    try:
        with torch.no_grad():
            given = probe.clone()
            value = function(given)
    except Exception as error:
        raise BadInput(f"The activation {label} fails on a (3, 4) float64 tensor: {error}") from error
    if not isinstance(value, Tensor) or value.shape != probe.shape:
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise BadInput(f"The activation {label} maps shape (3, 4) to {got}; it must act element by element.")
    if not torch.equal(given, probe):
        raise BadInput(f"The activation {label} changes its argument in place; it must leave it as it is.")
    if value.dtype != probe.dtype:
        raise BadInput(f"The activation {label} turns float64 into {value.dtype}; it must keep the dtype.")
    places = torch.cat([_grid(), torch.zeros(1, dtype=torch.float64)])
    with torch.no_grad():
        single = torch.stack([function(v.reshape(1))[0] for v in probe.flatten()]).reshape(3, 4)
        wide = function(places)
    if not torch.allclose(value, single, rtol=1e-9, atol=1e-12, equal_nan=True):
        raise BadInput(f"The activation {label} mixes entries: its value at one entry depends on the others.")
    if not bool(torch.isfinite(wide).all()):
        bad = float(places[~torch.isfinite(wide)][0])
        raise BadInput(f"The activation {label} is NaN or infinite at {bad:.4g}; it must be finite on [−64, 64].")
    _check_derivative(function, label, places[:-1:97])


def _check_derivative(function: Function, label: str, places: Tensor) -> None:
    """Automatic differentiation must see what finite differences see, but for a kink or two."""
    places = torch.cat([places, torch.linspace(-4.0, 4.0, 201, dtype=torch.float64) + 1e-3 / math.pi])
    try:
        slope = derivative(function, places)
    except RuntimeError as error:
        raise BadInput(f"The activation {label} cannot be differentiated by torch: {error}") from error
    with torch.no_grad():
        expected, other = ((function(places + h) - function(places - h)) / (2.0 * h) for h in (1e-5, 3e-5))
    # Where two differences agree there is no kink, and where they are not small there is a slope to be seen.
    smooth = (expected - other).abs() <= 1e-4 * expected.abs()
    scale = float(expected[smooth].abs().max()) if bool(smooth.any()) else 0.0
    judged = smooth & (expected.abs() > 1e-3 * scale)
    wrong = float(((slope - expected).abs() > 0.1 * expected.abs())[judged].double().mean()) if scale else 0.0
    if wrong > 0.25:
        raise BadInput(
            f"The derivative of the activation {label} by torch is not its slope (at {100 * wrong:.0f} % of the "
            "places tried): does it detach its argument, or leave torch?"
        )


def doubt_about(activation: Custom) -> str | None:
    """What to warn of: that it cannot be followed near 0, or has a slope without bound."""
    try:
        mesh = activation.mesh(_NEAR)
    except BadInput as error:
        return str(error)
    if mesh.steepness <= STEEP_RTOL:
        return None
    return (
        f"{activation.label} is infinitely steep somewhere (as abs(x)**0.5 is at 0): E[φ'²], and with it the tangent kernel, "
        "is infinite or known to few digits only. The conjugate kernel is exact."
    )
