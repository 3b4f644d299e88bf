"""The package's kernels, dual maps and moments of one hidden layer or a DEQ against the oracle: exact, warned or wrong.

An error is relative to the scale of its entry: √(k(i,i) k(j,j)) of a kernel or of E[φφ], √(q_i q_j) of E[φ'φ'], and for a
moment the bound of Cauchy and Schwarz (tests/gaussian/scales.py).
"""

from __future__ import annotations

import math
import re
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import notsodeep as nsd
from notsodeep.activations import activation
from notsodeep.gaussian import dual_map, moments
from tests.gaussian import oracle
from tests.gaussian.equilibrium_oracle import NoEquilibrium, equilibrium
from tests.gaussian.random_functions import Case, Setting, Subject

SILENT_RTOL = 1e-6
_ROUNDING = 4.0 * float(np.finfo(float).eps)
_NO_VALUE = ("overflow", "underflow", "is 0", "not finite")
_JUMPS = re.compile(r"jump")
_ABOUT_WIDTH = re.compile(r"contract|drift apart")  # warnings about networks of finite width, not about numbers
_NAMED_ERROR = re.compile(r"\d(?:\.\d+)?e[-+]\d+")


@dataclass(frozen=True)
class Entry:
    """One number of the package beside the true one."""

    what: str
    given: float
    true: float
    scale: float
    call: str
    hidden: str = ""
    """"rare" or "rounded" where it is of a value or a slope that is next to nothing: `hidden` or `lost` of `oracle.Side`"""

    @property
    def error(self) -> float:
        if self.given == self.true:
            return 0.0
        error = abs(self.given - self.true) / self.scale
        return error if math.isfinite(error) else math.inf


@dataclass(frozen=True)
class Verdict:
    """`outcome`: exact, wrong, warned, understated, refused, raw, rare, rounded, foreign, dropped or none (no finite value)."""

    seed: int
    subject: str
    outcome: str
    error: float = 0.0
    message: str = ""
    line: str = ""
    seconds: float = 0.0
    panels: int = 0
    proven: bool = False
    """of a refusal: whether what it says of φ was found to be so (that something is too hard cannot be)"""


def judge(case: Case) -> list[Verdict]:
    """One verdict for every setting."""
    if case.variances:
        both = zip(case.settings, case.variances, strict=True)
        return [judge_deq(case.seed, case.subject, setting, *variances) for setting, variances in both]
    return [judge_one(case.seed, case.subject, setting) for setting in case.settings]


def judge_one(seed: int, subject: Subject, setting: Setting) -> Verdict:
    """Of one hidden layer: both kernels, the dual map and the moments."""
    tau_i, tau_j = setting.norms
    places = subject.tree.places(12.0 * max(tau_i, tau_j))
    asked = _Asked(seed, subject, setting)
    try:
        truth = oracle.pair(subject.tree, places, tau_i, tau_j, setting.rho, setting.c)
    except oracle.Undecided as reason:
        return asked.without_truth(str(reason))
    asked.panels = max(len(truth.left.edges), len(truth.right.edges))
    asked.of(lambda phi: _kernels(phi, subject, setting, truth))
    asked.of(lambda phi: _plain(phi, subject, setting, truth))
    return asked.verdict()


def judge_deq(seed: int, subject: Subject, setting: Setting, share: float, var_b: float) -> Verdict:
    """Of a DEQ, σ_a² the given share of 1/E[φ'²] at its drive: both kernels."""
    asked = _Asked(seed, subject, setting)
    norms = setting.norms
    try:
        var_a = _admissible(subject, norms, share, var_b)
        truth = equilibrium(subject.tree, var_a, var_b, norms, setting.rho)
    except oracle.Undecided as reason:
        return asked.without_truth(str(reason))
    except NoEquilibrium as reason:
        return Verdict(seed, subject.source, "none", message=str(reason))
    hidden = ["rare" if nothing else "" for nothing in truth.hidden]
    asked.net = f"nsd.Implicit(phi, {var_a!r}, {var_b!r}, centre=False)"

    def entries(phi: Any) -> list[Entry]:
        found = nsd.exact_kernels(nsd.Implicit(phi, var_a, var_b, centre=False), _samples(setting))
        return [
            *_matrix("conjugate", found.conjugate, truth.conjugate, hidden, 0.0, asked.net),
            *_matrix("tangent", found.tangent, truth.tangent, hidden, 0.0, asked.net),
        ]

    asked.of(entries)
    return asked.verdict()


def _admissible(subject: Subject, norms: tuple[float, float], share: float, var_b: float) -> float:
    steepest = 0.0
    for norm in norms:
        tau = math.sqrt(var_b) * norm
        found = oracle.side(subject.tree, subject.tree.places(12.0 * tau), tau, oracle.RESOLUTIONS[0])
        steepest = max(steepest, found.slope_norm**2)
    return float(f"{min(share / max(steepest, 1e-6), 10.0):.3g}")


class _Asked:
    """What the package answers about one setting, and what that makes."""

    def __init__(self, seed: int, subject: Subject, setting: Setting) -> None:
        self.seed, self.subject, self.setting = seed, subject, setting
        self.net = "nsd.Explicit([phi])"
        self.phi: Any = None
        self.panels = 0
        self.entries: list[Entry] = []
        self.warned: list[str] = []
        self.refused = self.raw = ""
        self.seconds = 0.0

    def of(self, question: Callable[[Any], list[Entry]]) -> None:
        start = time.perf_counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                if self.phi is None:
                    self.phi = activation(self.subject.build())
                self.entries += question(self.phi)
            except nsd.NotSoDeepError as error:
                self.refused = self.refused or str(error)
            except Exception as error:
                self.raw = f"{type(error).__name__}: {error}"
        said = [str(w.message) for w in caught if issubclass(w.category, nsd.NumericsWarning)]
        self.warned += [text for text in said if not _ABOUT_WIDTH.search(text)]
        self.seconds += time.perf_counter() - start

    def without_truth(self, reason: str) -> Verdict:
        """Of what overflows at least that no finite number is given for it in silence."""
        if not any(word in reason for word in _NO_VALUE):
            return Verdict(self.seed, self.subject.source, "dropped", message=reason)
        if "overflows" not in reason or self.net != "nsd.Explicit([phi])":
            return Verdict(self.seed, self.subject.source, "none", message=reason)

        def question(phi: Any) -> list[Entry]:
            found = nsd.exact_kernels(nsd.Explicit([phi]), _samples(self.setting))
            largest = float(torch.stack([found.conjugate, found.tangent]).nan_to_num(math.inf).abs().max())
            call = f"nsd.exact_kernels({self.net}, x)"
            return [Entry("largest", largest, math.inf, 1.0, call)] if largest < 1e299 else []

        self.of(question)
        if self.entries and not self.warned:
            return self._verdict("wrong", reason)
        return self._verdict("raw" if self.raw else "none", self.raw or reason)

    def verdict(self) -> Verdict:
        shown = [entry for entry in self.entries if not entry.hidden]
        error = max((entry.error for entry in shown), default=0.0)
        if self.raw:
            return self._verdict("raw", self.raw)
        if error > SILENT_RTOL and not self.warned:
            return self._verdict("wrong" if self._is_the_oracles() else "foreign")
        if error > SILENT_RTOL:
            named = max((float(n) for text in self.warned for n in _NAMED_ERROR.findall(text)), default=0.0)
            return self._verdict("warned" if error <= named else "understated", self.warned[0])
        if self.refused:
            return self._verdict("refused", self.refused)
        if self.warned:
            return self._verdict("warned", self.warned[0])
        off = {entry.hidden for entry in self.entries if entry.error > SILENT_RTOL}
        return self._verdict("rounded" if "rounded" in off else "rare" if off else "exact")

    def _is_the_oracles(self) -> bool:
        """Whether a torch function that the package merely calls is the oracle's one in float64: sign(gelu(x)) is not, since
        torch's gelu underflows to 0 from −8.3 on. What the package computes itself has no such excuse."""
        if self.subject.kind != "custom":
            return True
        xi = np.linspace(-9.0, 9.0, 200_001)
        for tau in self.setting.norms:
            with np.errstate(all="ignore"):
                true = self.subject.tree(tau * xi)[0] * np.exp(-0.25 * xi**2)
            given = self.phi(torch.from_numpy(tau * xi)).numpy() * np.exp(-0.25 * xi**2)
            if not np.linalg.norm(given - true) <= SILENT_RTOL * np.linalg.norm(true):
                return False
        return True

    def _verdict(self, outcome: str, message: str = "") -> Verdict:
        shown = [entry for entry in self.entries if entry.hidden in ("", outcome)]
        worst = max(shown, key=lambda entry: entry.error, default=None)
        line = reproduction(self.subject, self.setting, worst, self.net)
        error = worst.error if worst else 0.0
        proven = outcome == "refused" and _holds(self.subject, message)
        return Verdict(self.seed, self.subject.source, outcome, error, message, line, self.seconds, self.panels, proven)


def reproduction(subject: Subject, setting: Setting, entry: Entry | None, net: str) -> str:
    """One line of Python that shows the entry, or both kernels, with the true value behind it."""
    start, given = "import torch, notsodeep as nsd; ", f"x = torch.tensor({setting.x!r}, dtype=torch.float64)"
    if entry is None:
        return f"{start}{given}; phi = {subject.source}; print(nsd.exact_kernels({net}, x))"
    if not entry.call.startswith("nsd."):
        start += "from notsodeep.activations import activation; from notsodeep.gaussian import dual_map, moments; "
        given = f"t = torch.tensor({[*setting.norms, _covariance(setting)]!r}, dtype=torch.float64)"
    return (
        f"{start}{given}; phi = {subject.source}; print({entry.call})  "
        f"# {entry.what}: {entry.given:.10g}, true {entry.true:.10g}, {entry.error:.1e} off"
    )


def _holds(subject: Subject, refusal: str) -> bool:
    """Whether φ is constant, or not finite, on [−64, 64], where that is what is said."""
    with np.errstate(all="ignore"):
        values, slopes = subject.tree(np.linspace(-64.0, 64.0, 100_001) + 1e-7)
    if "for all x" in refusal:
        return bool(np.ptp(values) <= 1e-9 * np.abs(values).max())
    finite = bool(np.isfinite(values).all() and np.isfinite(slopes).all())
    return not finite and bool(re.search("finite|NaN", refusal))


def _samples(setting: Setting) -> torch.Tensor:
    return torch.tensor(setting.x, dtype=torch.float64)


def _covariance(setting: Setting) -> float:
    tau_i, tau_j = setting.norms
    if setting.c == 0.0:
        return math.copysign(tau_i * tau_j, setting.rho)
    return setting.first[0] * setting.second[0]


# --- the package's answers --------------------------------------------------------------------------------------------


def _kernels(phi: Any, subject: Subject, setting: Setting, truth: oracle.Pair) -> list[Entry]:
    x, net = _samples(setting), nsd.Explicit([phi])
    try:
        kernels = nsd.exact_kernels(net, x)
        conjugate, tangent = kernels.conjugate, kernels.tangent
    except nsd.BadInput as error:
        if not (_JUMPS.search(str(error)) and subject.tree.may_jump):
            raise
        conjugate, tangent = nsd.conjugate_kernel(net, x), None
    sides = truth.left, truth.right
    lam = _covariance(setting)
    k = ((sides[0].norm ** 2, truth.value), (truth.value, sides[1].norm ** 2))
    hidden = [_hidden(at, 0) for at in sides]
    slack = 0.0 if math.isnan(truth.slope) else _ROUNDING * abs(truth.slope * lam)
    entries = _matrix("conjugate", conjugate, k, hidden, slack)
    if tangent is None or math.isnan(truth.slope):
        return entries
    q = ((sides[0].slope_norm ** 2, truth.slope), (truth.slope, sides[1].slope_norm ** 2))
    s = ((sides[0].tau ** 2, lam), (lam, sides[1].tau ** 2))
    theta = [[k[i][j] + s[i][j] * q[i][j] for j in (0, 1)] for i in (0, 1)]
    if subject.tree.may_jump:
        for i, at in enumerate(sides):
            theta[i][i] = math.inf if at.jumps else theta[i][i]
    return entries + _matrix("tangent", tangent, theta, hidden, 0.0)


def _matrix(
    what: str, given: Any, true: Any, hidden: Sequence[str], slack: float, net: str = "nsd.Explicit([phi])"
) -> list[Entry]:
    found = []
    for i, j in ((0, 0), (1, 1), (0, 1)):
        scale = math.sqrt(true[i][i]) * math.sqrt(true[j][j])
        call = f"nsd.{what}_kernel({net}, x)[{i}, {j}]"
        name, covered = f"{what}[{i}, {j}]", hidden[i] or hidden[j]
        found.append(_entry(name, float(given[i, j]), true[i][j], scale, call, covered, slack))
    return found


def _hidden(at: oracle.Side, which: int) -> str:
    """Why the value (0) or the slope (1) is next to nothing, if it is."""
    return "rare" if at.hidden[which] else "rounded" if which == 1 and at.lost else ""


def _entry(what: str, given: float, true: float, scale: float, call: str, hidden: str, slack: float = 0.0) -> Entry:
    # What the rounding of λ itself makes of the entry is not the package's.
    near = true if abs(given - true) <= slack else given
    return Entry(what, near, true, scale or 1.0, call, hidden)


def _plain(phi: Any, subject: Subject, setting: Setting, truth: oracle.Pair) -> list[Entry]:
    """The dual map and the moments, asked for themselves."""
    left, right = truth.left, truth.right
    taus = torch.tensor([*setting.norms, _covariance(setting)], dtype=torch.float64)
    value, slope = dual_map(phi, *taus)
    unknown = subject.tree.may_jump or math.isnan(truth.slope)
    call, slack = "dual_map(activation(phi), *t)", 0.0 if unknown else _ROUNDING * abs(truth.slope * float(taus[2]))
    hidden = [_hidden(left, which) or _hidden(right, which) for which in (0, 1)]
    scale = left.norm * right.norm
    entries = [_entry("dual value", float(value), truth.value, scale, f"{call}[0]", hidden[0], slack)]
    if unknown:
        return entries
    scale = left.slope_norm * right.slope_norm
    entries.append(_entry("dual slope", float(slope), truth.slope, scale, f"{call}[1]", hidden[1]))
    at = moments(phi, taus[:1])
    for name, scale in _scales(left).items():
        call = f"moments(activation(phi), t[:1]).{name}"
        covered = _hidden(left, 0 if name in ("mean", "variance") else 1)
        true = left.moments[name]
        entries.append(_entry(name, float(getattr(at, name)[0]), true, max(scale, abs(true)), call, covered))
    return entries


def _scales(side: oracle.Side) -> dict[str, float]:
    sigma, slope, tau = side.norm, side.slope_norm, side.tau
    return {
        "mean": sigma,
        "e1": min(slope, sigma / tau),
        "e2": min(slope / tau, math.sqrt(2.0) * sigma / tau**2),
        "e3": min(math.sqrt(2.0) * slope / tau**2, math.sqrt(6.0) * sigma / tau**3),
        "variance": sigma**2,
        "v2": 2.0 * sigma * min(slope / tau, sigma / tau**2),
        "q": slope**2,
    }
