"""A visitor's choices as one frozen value, and the link that carries it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, urlencode

from notsodeep.data.sources import Dataset, load
from notsodeep.errors import BadInput
from notsodeep.kernels.names import Kernel, Match, as_match
from notsodeep.matching.design import FAMILIES

NAMED = (
    "relu", "tanh", "elu", "gelu", "silu", "erf", "leaky_relu:0.1", "hard_tanh", "arctan", "sigmoid", "softplus", "softsign",
    "sin", "cos", "gaussian", "abs",
)  # fmt: skip
DATA = {"mixture": "Gaussian mixture", "digits": "digits", "mnist": "MNIST", "upload": "your file"}
FAMILY_NAMES = ("matched", "fitted", "fitted:2", "fitted:2:matched", *FAMILIES, "hermite")
QUICK = "quick"
"""The family that stands for one that takes long to search while a slider moves; no link and no control asks for it."""
_MOST_MOVING, TERMS_MOVING = 300, 8
KERNELS = {"conjugate": "CK (conjugate)", "tangent": "NTK (tangent)", "both": "both"}
"""What the design is to match."""
_loaded = lru_cache(maxsize=8)(load)


@dataclass(frozen=True)
class Range:
    """Range of a slider."""

    low: float
    high: float
    step: float


RANGES = {
    "var_a": Range(0.01, 1.5, 0.01),
    "var_b": Range(0.05, 2.0, 0.05),
    "separation": Range(0.0, 20.0, 0.5),
    "spread": Range(0.0, 20.0, 0.5),
    "n": Range(100, 1000, 50),
    "p": Range(50, 1000, 50),
}


@dataclass(frozen=True)
class State:
    """A visitor's choices; the defaults are those of a new page.

    `var_b` None is 1 − var_a; `n` counts samples, `p` features of the mixture; `upload` is the token of an uploaded file.
    """

    activation: str = "relu"
    var_a: float = 0.2
    var_b: float | None = None
    data: str = "mixture"
    separation: float = 8.0
    spread: float = 8.0
    n: int = 500
    p: int = 500
    family: str = "matched"
    kernel: str = "conjugate"
    upload: str = ""

    @property
    def query(self) -> str:
        """The choices that are not the defaults, as the end of a link: ?activation=tanh&var_a=0.1."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        chosen = {name: value for name, value in values.items() if value != getattr(State, name)}
        return f"?{urlencode(chosen)}" if chosen else ""

    @property
    def match(self) -> Match:
        """The kernels that the design is to match."""
        return Match(self.kernel)

    @property
    def shown(self) -> Kernel:
        """The kernel whose spectra and gaps are shown: of both, the tangent one."""
        return self.match.kernels[-1]

    @property
    def spec(self) -> str:
        """The data in one line, as `data.sources.load` and `--data` take it; not for uploads."""
        if self.data == "mixture":
            return f"gmm:n={self.n},p={self.p},separation={self.separation:g},spread={self.spread:g}"
        return f"{self.data}:n={self.n}"

    @property
    def moving(self) -> State:
        """What is computed in its place while a slider moves: at most 300 samples, and no search for a network that takes long.

        In place of a fit, and of the nearest network of a family without a match, stands `QUICK`; Hermite series have 8 terms.
        """
        terms = f"{self.family}:{TERMS_MOVING}"
        family = terms if self.family in ("matched", "hermite") else f"{QUICK}:{self.family}"
        return replace(self, n=min(self.n, _MOST_MOVING), family=family)

    def dataset(self) -> Dataset:
        """The samples; not for uploads."""
        return _loaded(self.spec)


def parse(query: str) -> tuple[State, dict[str, str]]:
    """The state of a link, and what is wrong with it by field; such a field keeps its default."""
    pairs = dict(parse_qsl(query.removeprefix("?")[:2000], keep_blank_values=True))
    return checked({name: pairs[name] for name in (f.name for f in fields(State)) if name in pairs})


def checked(values: Mapping[str, Any]) -> tuple[State, dict[str, str]]:
    """The state of values from a page or a link, and a sentence for each value that cannot be taken."""
    state, wrong = State(), {}
    for name, value in values.items():
        found, sentence = _checked(name, value)
        if sentence:
            wrong[name] = sentence
        else:
            state = replace(state, **{name: found})
    if state.var_b is None and state.var_a >= 1.0 and "var_a" not in wrong:
        wrong["var_a"] = f"σ_b² = 1 − σ_a² = {1.0 - state.var_a:.2g} must be positive: take σ_a² below 1, or choose σ_b²."
        state = replace(state, var_a=State.var_a)
    return state, wrong


def _checked(name: str, value: Any) -> tuple[Any, str]:
    """(value, ""), or (None, why it cannot be taken)."""
    if name in RANGES:
        return (None, "") if name == "var_b" and value in (None, "", "None") else _number(name, value)
    text = str(value if value is not None else "").strip()
    known = {"data": DATA, "family": FAMILY_NAMES}.get(name)
    if known is not None and text not in known:
        return None, f"There is no {name} {text[:30]!r}; choose {', '.join(known)}."
    if name == "kernel":
        try:
            as_match(text)
        except BadInput as error:
            return None, str(error)
    if name == "activation" and not text:
        return None, "Choose an activation, or type an expression in x."
    return text, ""


def _number(name: str, value: Any) -> tuple[Any, str]:
    allowed = RANGES[name]
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not allowed.low <= number <= allowed.high:
        return None, f"{name} = {str(value)[:30]} must be a number between {allowed.low:g} and {allowed.high:g}."
    return (round(number) if isinstance(allowed.low, int) else number), ""
