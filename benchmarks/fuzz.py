"""Claim: no kernel, dual map or moment of any activation is silently off by more than 1e-6 of its scale.

Random expressions, torch functions and named activations, norms from 1e-3 to 1e3, correlations up to 1 − 1e-8 and ±1; how they
are drawn: tests/gaussian/random_functions.py, integrated: tests/gaussian/oracle.py, judged: tests/gaussian/judge.py. Each comes
from its seed alone. Run: python benchmarks/fuzz.py [count] [first seed] [seconds]
"""

import multiprocessing
import os
import re
import resource
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.gaussian.judge import Verdict, judge
from tests.gaussian.random_functions import random_case

SETTINGS, CHUNK, SHOWN, MEMORY = 4, 1, 40, 6 << 30
FAILURES = ("wrong", "understated", "raw")
MEANING = {
    "exact": "within 1e-6 of the oracle",
    "wrong": "SILENTLY WRONG: off by more than 1e-6, nothing said",
    "warned": "warned, and the error is within what was named (or below 1e-6)",
    "understated": "WARNED FALSELY: off by more than 1e-6 and by more than was named",
    "refused": "refused",
    "raw": "RAW ERROR: not one of the package's own",
    "rounded": "off, where φ' is next to nothing and lost in the rounding of φ in float64: the kernel of another function",
    "foreign": "off, where torch's own function in float64 is not the one named (its gelu is 0 from −8.3 on)",
    "rare": "off, where E[φ²] or E[φ'²] is next to nothing and comes from beyond 8.5 deviations; no failure",
    "none": "left out: overflows, underflows, is 0, or a DEQ without one well-conditioned equilibrium",
    "dropped": "left out: the oracle itself cannot tell",
}


def begin():
    """One thread, and so much memory: a case that asks for more is a raw error, not the end of the run."""
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def judged(seeds):
    return [verdict for seed in seeds for verdict in of_seed(seed)]


def of_seed(seed):
    """An error of the judge's own is a failure to be looked at, not the end of the run."""
    case = random_case(seed, SETTINGS)
    try:
        return judge(case)
    except Exception as error:
        return [Verdict(seed, case.subject.source, "raw", message=f"in the judge: {type(error).__name__}: {error}")]


def summary(verdicts):
    counts = Counter(v.outcome for v in verdicts)
    for outcome, meaning in MEANING.items():
        print(f"{counts[outcome]:6d}  {100 * counts[outcome] / len(verdicts):5.1f} %  {meaning}")
    silent = [v.error for v in verdicts if v.outcome in ("exact", "wrong")]
    print(f"worst silent error {max(silent, default=0.0):.1e}; slowest case {max(v.seconds for v in verdicts):.1f} s")
    strict = sum(counts[outcome] for outcome in ("wrong", "rounded", "foreign"))
    print(f"{strict} silently wrong, where the two excuses of float64 do not count")
    for outcome in (*FAILURES, "rounded", "foreign", "rare"):
        shown(outcome, [v for v in verdicts if v.outcome == outcome])
    refusals([v for v in verdicts if v.outcome == "refused"])


def shown(outcome, verdicts):
    if verdicts:
        print(f"\n{outcome}: {len(verdicts)}, the worst of each activation first")
    seen = set()
    for verdict in sorted(verdicts, key=lambda v: -v.error):
        if verdict.seed not in seen and len(seen) < SHOWN:
            seen.add(verdict.seed)
            print(f"  seed {verdict.seed}, {verdict.error:.1e} {verdict.message[:160]}\n    {verdict.line}")


def refusals(verdicts):
    """By what they say, numbers and names apart."""
    kinds = defaultdict(list)
    for verdict in verdicts:
        plain = re.sub(r"'.*'|[-−]?\d[\d.]*(e[-+]?\d+)?", "…", verdict.message.replace(verdict.subject.strip("'"), "φ"))
        kinds[plain[:110]].append(verdict)
    for kind, members in sorted(kinds.items(), key=lambda item: -len(item[1])):
        proven, easy = sum(v.proven for v in members), sum(v.panels < 1000 and not v.proven for v in members)
        print(f"\nrefused {len(members)}, {proven} proven right, {easy} though 1,000 panels are enough for the oracle: {kind}")
        print(f"    {min(members, key=lambda v: v.panels).line}")


def main(count=5_000, first=0, seconds=1e9):
    start = time.perf_counter()
    seeds = range(first, first + -(-count // SETTINGS))
    chunks = [seeds[k : k + CHUNK] for k in range(0, len(seeds), CHUNK)]
    verdicts, found = [], multiprocessing.get_context("spawn").Pool(os.cpu_count(), begin).imap_unordered(judged, chunks)
    try:
        for _ in chunks:
            verdicts += found.next(start + seconds - time.perf_counter())
    except multiprocessing.TimeoutError:
        left = sorted(set(seeds) - {v.seed for v in verdicts})
        print(f"stopped before {len(left)} of {len(seeds)} activations were judged, seeds {left[:20]} …")
    print(f"{len(verdicts)} cases, {len(seeds)} activations, {time.perf_counter() - start:.0f} s")
    verdicts.sort(key=lambda v: v.seed)
    summary(verdicts)
    return sum(v.outcome in FAILURES for v in verdicts)


if __name__ == "__main__":
    failures = main(*(int(argument) for argument in sys.argv[1:4]))
    sys.stdout.flush()
    os._exit(1 if failures else 0)  # the pool may still be at work
