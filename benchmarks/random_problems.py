"""Claim: what a `Solution` says is true. 10,000 random problems: no "converged" above 3·tol, failures named rightly.

Dense, sparse, convolutional, graph, group-norm and attention maps, rows independent or coupled, the solver told so or not; how
they are drawn: tests/fixed_points/random_problems.py, how they are judged: tests/fixed_points/oracle.py. Each comes from its
seed alone. Run: python benchmarks/random_problems.py [count] [first seed]
"""

import multiprocessing
import sys
import time
from collections import defaultdict
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.fixed_points.oracle import judge
from tests.fixed_points.random_problems import KINDS, random_problem

CHUNK, SHOWN = 50, 8


def facts(verdict):
    """Plain numbers, which travel between processes."""
    return {
        "seed": verdict.problem.seed,
        "family": verdict.problem.family,
        "kind": verdict.problem.kind,
        "told": verdict.told,
        "samples": len(verdict.found.converged),
        "claims": verdict.claims,
        "false": verdict.false,
        "worst": verdict.worst,
        "misnamed": verdict.misnamed,
        "reason": str(verdict.found.reason),
    }


def judged(seeds):
    torch.set_num_threads(1)
    problems = [random_problem(seed) for seed in seeds]
    return [facts(judge(problem, told=told)) for problem in problems for told in ways(problem)]


def ways(problem):
    """Both where it makes a difference; one or the other where rows are independent, as is assumed."""
    return (False, True) if problem.samples != 1 else (problem.seed % 2 == 1,)


def table(rows, told):
    print(
        f"\n{'told' if told else 'not told'} what is independent: solves, false samples (solves with any), worst residual/tol"
    )
    chosen = [row for row in rows if row["told"] == told]
    cells = defaultdict(list)
    for row in chosen:
        cells[row["family"], row["kind"]].append(row)
    print(f"{'':16}" + "".join(f"{kind:>24}" for kind in KINDS))
    for family in sorted({row["family"] for row in chosen}):
        print(f"{family:16}" + "".join(f"{cell(cells[family, kind]):>24}" for kind in KINDS))


def cell(rows):
    false, solves = sum(row["false"] for row in rows), sum(row["false"] > 0 for row in rows)
    worst = max((row["worst"] for row in rows), default=0.0)
    return f"{len(rows)} {false} ({solves}) {worst:.3g}"


def summary(rows):
    for told in (False, True):
        chosen = [row for row in rows if row["told"] == told]
        false = sum(row["false"] for row in chosen)
        solves = sum(row["false"] > 0 for row in chosen)
        claims = sum(row["claims"] for row in chosen)
        table(rows, told)
        reasons = defaultdict(int)
        for row in chosen:
            reasons[row["reason"]] += 1
        print(
            f"{len(chosen)} solves, reasons {dict(reasons)}; {claims} samples claim convergence, {false} falsely, "
            f"in {solves} solves"
        )
        worst = sorted((row for row in chosen if row["false"]), key=lambda row: -row["worst"])[:SHOWN]
        for row in worst:
            print(
                f"  seed {row['seed']}: {row['family']}, {row['kind']}, {row['false']} false, residual/tol {row['worst']:.3g}"
            )
        misnamed(chosen)


def misnamed(rows):
    groups = defaultdict(list)
    for row in rows:
        for reason, why in {(reason, why.split(",")[0]) for _, reason, why in row["misnamed"]}:
            groups[reason, why].append(row)
    print(f"misnamed: {sum(bool(row['misnamed']) for row in rows)} solves")
    for (reason, why), members in sorted(groups.items()):
        kinds = defaultdict(int)
        for row in members:
            kinds[f"{row['family']}/{row['kind']}"] += 1
        top = ", ".join(f"{name} {count}" for name, count in sorted(kinds.items(), key=lambda item: -item[1])[:SHOWN])
        print(f"  {reason}, but {why}: {len(members)} ({top}); seeds {[row['seed'] for row in members[:SHOWN]]}")


def main(count=10_000, first=0):
    start = time.perf_counter()
    seeds = range(first, first + count)
    chunks = [seeds[k : k + CHUNK] for k in range(0, count, CHUNK)]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        rows = [row for chunk in pool.imap_unordered(judged, chunks) for row in chunk]
    rows.sort(key=lambda row: (row["seed"], row["told"]))
    summary(rows)
    print(f"\n{count} problems in {time.perf_counter() - start:.0f} s")
    return sum(row["false"] for row in rows)


if __name__ == "__main__":
    sys.exit(1 if main(*(int(argument) for argument in sys.argv[1:3])) else 0)
