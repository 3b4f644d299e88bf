"""The package's kernels, dual maps and moments of one hidden layer against the oracle: exact, refused, warned or wrong.

An error is relative to the scale of its entry: √(k(i,i) k(j,j)) of a kernel or of E[φφ], √(q_i q_j) of E[φ'φ'], and for a
moment the bound of Cauchy and Schwarz (tests/gaussian/scales.py).
"""

from __future__ import annotations

import math
import re
import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import notsodeep as nsd
from notsodeep.activations import activation
from notsodeep.gaussian import dual_map, moments
from tests.gaussian import oracle
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
    hidden: bool = False
    """of a value or a slope that is next to nothing; see `oracle.Side`"""

    @property
    def error(self) -> float:
        error = abs(self.given - self.true) / self.scale
        return error if math.isfinite(error) else math.inf


@dataclass(frozen=True)
class Verdict:
    """`outcome`: exact, wrong, warned, understated, refused, raw, rare, dropped or none (there is no finite value)."""

    seed: int
    subject: str
    outcome: str
    error: float = 0.0
    message: str = ""
    line: str = ""
    seconds: float = 0.0
    panels: int = 0


@dataclass
class Answers:
    """What the package said to one setting."""

    entries: list[Entry]
    warned: list[str]
    refused: str = ""
    raw: str = ""


def judge(case: Case) -> list[Verdict]:
    """One verdict for every setting."""
    return [judge_one(case.seed, case.subject, setting) for setting in case.settings]


def judge_one(seed: int, subject: Subject, setting: Setting) -> Verdict:
    tau_i, tau_j = setting.norms
    places = subject.tree.places(12.0 * max(tau_i, tau_j))
    try:
        truth = oracle.pair(subject.tree, places, tau_i, tau_j, setting.rho, setting.c)
    except oracle.Undecided as reason:
        outcome = "none" if any(word in str(reason) for word in _NO_VALUE) else "dropped"
        return Verdict(seed, subject.source, outcome, message=str(reason))
    start = time.perf_counter()
    answers = _asked(subject, setting, truth)
    return _verdict(seed, subject, setting, truth, answers, time.perf_counter() - start)


def _verdict(
    seed: int, subject: Subject, setting: Setting, truth: oracle.Pair, answers: Answers, seconds: float
) -> Verdict:
    worst = max(answers.entries, key=lambda entry: (not entry.hidden or entry.error == 0.0, entry.error), default=None)
    if worst is not None and worst.error <= SILENT_RTOL:
        worst = max(answers.entries, key=lambda entry: entry.error)
    error = worst.error if worst else 0.0
    panels = max(len(truth.left.edges), len(truth.right.edges))

    def verdict(outcome: str, message: str = "") -> Verdict:
        line = reproduction(subject, setting, worst) if worst else build_line(subject, setting)
        return Verdict(seed, subject.source, outcome, error, message, line, seconds, panels)

    if answers.raw:
        return verdict("raw", answers.raw)
    if error > SILENT_RTOL and not answers.warned:
        return verdict("rare" if worst and worst.hidden else "wrong")
    if error > SILENT_RTOL:
        named = max((float(n) for text in answers.warned for n in _NAMED_ERROR.findall(text)), default=0.0)
        return verdict("warned" if error <= named else "understated", answers.warned[0])
    if answers.refused:
        return verdict("refused", answers.refused)
    return verdict("warned" if answers.warned else "exact", answers.warned[0] if answers.warned else "")


def build_line(subject: Subject, setting: Setting) -> str:
    return (
        f"import torch, notsodeep as nsd; x = torch.tensor({setting.x!r}, dtype=torch.float64); phi = {subject.source}; "
        "print(nsd.exact_kernels(nsd.Explicit([phi]), x))"
    )


def reproduction(subject: Subject, setting: Setting, entry: Entry) -> str:
    """One line of Python that shows the entry, with the true value behind it."""
    start, given = "import torch, notsodeep as nsd; ", f"x = torch.tensor({setting.x!r}, dtype=torch.float64)"
    if not entry.call.startswith("nsd."):
        start += "from notsodeep.activations import activation; from notsodeep.gaussian import dual_map, moments; "
        given = f"t = torch.tensor({[*setting.norms, _covariance(setting)]!r}, dtype=torch.float64)"
    return (
        f"{start}{given}; phi = {subject.source}; print({entry.call})  "
        f"# {entry.what}: {entry.given:.10g}, true {entry.true:.10g}, {entry.error:.1e} off"
    )


def _covariance(setting: Setting) -> float:
    tau_i, tau_j = setting.norms
    if setting.c == 0.0:
        return math.copysign(tau_i * tau_j, setting.rho)
    return setting.first[0] * setting.second[0]


# --- the package's answers --------------------------------------------------------------------------------------------


def _asked(subject: Subject, setting: Setting, truth: oracle.Pair) -> Answers:
    answers = Answers([], [])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            phi = activation(subject.build())
            _kernels(answers, phi, subject, setting, truth)
            _plain(answers, phi, subject, setting, truth)
        except nsd.NotSoDeepError as error:
            answers.refused = str(error)
        except Exception as error:
            answers.raw = f"{type(error).__name__}: {error}"
    said = [str(w.message) for w in caught if issubclass(w.category, nsd.NumericsWarning)]
    answers.warned = [text for text in said if not _ABOUT_WIDTH.search(text)]
    return answers


def _kernels(answers: Answers, phi: Any, subject: Subject, setting: Setting, truth: oracle.Pair) -> None:
    x = torch.tensor(setting.x, dtype=torch.float64)
    net = nsd.Explicit([phi])
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
    hidden = [at.hidden[0] for at in sides]
    answers.entries += _matrix("conjugate", conjugate, k, hidden, _ROUNDING * abs(truth.slope * lam))
    if tangent is None:
        return
    q = ((sides[0].slope_norm ** 2, truth.slope), (truth.slope, sides[1].slope_norm ** 2))
    s = ((sides[0].tau ** 2, lam), (lam, sides[1].tau ** 2))
    theta = [[k[i][j] + s[i][j] * q[i][j] for j in (0, 1)] for i in (0, 1)]
    if subject.tree.may_jump:
        for i, at in enumerate(sides):
            theta[i][i] = math.inf if at.jumps else theta[i][i]
    answers.entries += _matrix("tangent", tangent, theta, hidden, 0.0)


def _matrix(what: str, given: Any, true: Any, hidden: list[bool], slack: float) -> list[Entry]:
    found = []
    for i, j in ((0, 0), (1, 1), (0, 1)):
        scale = math.sqrt(true[i][i]) * math.sqrt(true[j][j])
        call = f"nsd.{what}_kernel(nsd.Explicit([phi]), x)[{i}, {j}]"
        name, covered = f"{what}[{i}, {j}]", hidden[i] or hidden[j]
        found.append(_entry(name, float(given[i, j]), true[i][j], scale, call, covered, slack))
    return found


def _entry(what: str, given: float, true: float, scale: float, call: str, hidden: bool, slack: float = 0.0) -> Entry:
    # What the rounding of λ itself makes of the entry is not the package's.
    near = true if abs(given - true) <= slack else given
    return Entry(what, near, true, scale or 1.0, call, hidden)


def _plain(answers: Answers, phi: Any, subject: Subject, setting: Setting, truth: oracle.Pair) -> None:
    """The dual map and the moments, asked for themselves."""
    left, right = truth.left, truth.right
    taus = torch.tensor([*setting.norms, _covariance(setting)], dtype=torch.float64)
    value, slope = dual_map(phi, *taus)
    call, slack = "dual_map(activation(phi), *t)", _ROUNDING * abs(truth.slope * float(taus[2]))
    hidden = [left.hidden[which] or right.hidden[which] for which in (0, 1)]
    scale = left.norm * right.norm
    answers.entries.append(_entry("dual value", float(value), truth.value, scale, f"{call}[0]", hidden[0], slack))
    if subject.tree.may_jump:
        return
    scale = left.slope_norm * right.slope_norm
    answers.entries.append(_entry("dual slope", float(slope), truth.slope, scale, f"{call}[1]", hidden[1]))
    at = moments(phi, taus[:1])
    for name, scale in _scales(left).items():
        call = f"moments(activation(phi), t[:1]).{name}"
        covered = left.hidden[0 if name in ("mean", "variance") else 1]
        answers.entries.append(_entry(name, float(getattr(at, name)[0]), left.moments[name], scale, call, covered))


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
