"""W7's claims: whether the DEQ's maps are the broader ones, and what else could make them so."""

from __future__ import annotations

from collections.abc import Sequence

from notsodeep.papers.claims import Claim, holds
from notsodeep.papers.experiment import Records
from notsodeep.papers.records import Record
from notsodeep.papers.statistics import Estimate, mean, of_one_setting, signed

NETWORKS = ("deq", "resnet")
_LIKE = 0.05  # of accuracy: what "about as accurate" is taken to mean


def comparable(records: Sequence[Record]) -> list[Record]:
    """Those of one run: all settings but the network and the seed as the latest record has them."""
    if not records:
        return []
    return of_one_setting(records, [name for name in records[-1].config if name not in ("network", "seed")])


def entropies(records: Sequence[Record], network: str, when: str, of: str = "entropy") -> Estimate | None:
    """The mean over seeds of the mean entropy of "trained" or "untrained" networks, `of` all maps, or "entropy_correct"."""
    own = [record.values[when][of] for record in records if record.config["network"] == network]
    found = [value for value in own if value is not None]
    return mean(found) if found else None


def accuracies(records: Sequence[Record], network: str) -> Estimate | None:
    found = [record.values["accuracy"] for record in records if record.config["network"] == network]
    return mean(found) if found else None


def claims(every: Records, command: str) -> list[Claim]:
    records = comparable(every["W7"])
    return [*_broader(records, command), *_as_accurate(records, command)]


def _broader(records: Sequence[Record], command: str) -> list[Claim]:
    deq, resnet = (entropies(records, name, "trained") for name in NETWORKS)
    if deq is None or resnet is None:
        return []
    # One seed has no interval, and then nothing tells a difference from chance.
    told_apart = min(deq.count, resnet.count) > 1
    return [
        Claim(
            id="W7.breadth",
            claim="Grad-CAM maps of a multiscale DEQ are broader than a ResNet's of like size (entropy over log of pixels)",
            paper="broader",
            ours=f"{deq.value:.3f} against {resnet.value:.3f}; before training {_before(records)}",
            spread=_spreads(deq, resnet, ".3f"),
            verdict=holds(told_apart and deq.value - deq.half_width > resnet.value + resnet.half_width),
            command=command,
        )
    ]


def _before(records: Sequence[Record]) -> str:
    deq, resnet = (entropies(records, name, "untrained") for name in NETWORKS)
    return " against ".join("no map" if found is None else f"{found.value:.3f}" for found in (deq, resnet))


def _as_accurate(records: Sequence[Record], command: str) -> list[Claim]:
    deq, resnet = (accuracies(records, name) for name in NETWORKS)
    if deq is None or resnet is None:
        return []
    return [
        Claim(
            id="W7.accuracy",
            claim=f"The two networks are about as accurate (within {100 * _LIKE:g} points), so that maps of like networks meet",
            paper="—",
            ours=f"{deq.value:.1%} against {resnet.value:.1%}",
            spread=_spreads(deq, resnet, ".1%"),
            verdict=holds(abs(deq.value - resnet.value) <= _LIKE),
            command=command,
        )
    ]


def _spreads(deq: Estimate, resnet: Estimate, digits: str) -> str:
    """ "± 0.002 and ± 0.003, 5 seeds"."""
    many = resnet.spelt(digits, "seed")
    return f"± {deq.spread:{digits}} and {many}" if min(deq.count, resnet.count) > 1 else many


def notes(every: Records) -> list[str]:
    records = comparable(every["W7"])
    if not records:
        return []
    found = [
        "The paper maps ImageNet networks; here both are small and trained on CIFAR-10, and their maps have 8 × 8 pixels.",
        "Breadth is the entropy of a map over its largest value, the logarithm of its pixels: 0 for one pixel, 1 for all "
        "alike. It depends on the accuracy and on the resolution too, so both networks have one stem, one head and one size "
        "of maps; each map is for the class that its network gives the image.",
    ]
    return found + _control(records) + _correct(records) + _solver(records)


def _control(records: Sequence[Record]) -> list[str]:
    """How much of the difference is there before training: seed by seed, as both are drawn from the same seed."""
    gaps = {when: _gaps(records, when) for when in ("trained", "untrained")}
    seeds = sorted(set(gaps["trained"]) & set(gaps["untrained"]))
    if not seeds:
        return []
    after, before = (mean([gaps[when][seed] for seed in seeds]) for when in ("trained", "untrained"))
    change = mean([gaps["trained"][seed] - gaps["untrained"][seed] for seed in seeds])
    return [
        f"A control: the DEQ's maps differ in entropy from the ResNet's by {signed(before.value, 3)} before any training and "
        f"by {signed(after.value, 3)} after it, so that training accounts for {signed(change.value, 3)} "
        f"({change.spelt('.3f', 'seed')}) and the architecture for the rest."
    ]


def _gaps(records: Sequence[Record], when: str) -> dict[int, float]:
    """DEQ − ResNet, by seed."""
    found: dict[str, dict[int, float]] = {name: {} for name in NETWORKS}
    for record in records:
        value = record.values[when]["entropy"]
        if value is not None:
            found[record.config["network"]][record.config["seed"]] = value
    return {seed: deq - found["resnet"][seed] for seed, deq in found["deq"].items() if seed in found["resnet"]}


def _correct(records: Sequence[Record]) -> list[str]:
    deq, resnet = (entropies(records, name, "trained", "entropy_correct") for name in NETWORKS)
    if deq is None or resnet is None:
        return []
    return [
        f"Of images that a network classifies rightly, the entropy is {deq.value:.3f} ({deq.spelt('.3f', 'seed')}) for the "
        f"DEQ and {resnet.value:.3f} ({resnet.spelt('.3f', 'seed')}) for the ResNet."
    ]


def _solver(records: Sequence[Record]) -> list[str]:
    solvers = [record.values["solver"] for record in records if "solver" in record.values]
    if not solvers:
        return []
    steps, share = (mean([solver[name] for solver in solvers]).value for name in ("steps", "converged"))
    config = records[-1].config
    return [
        f"The DEQ's equilibrium is found to a relative residual of {config['tol']:g} for {share:.1%} of the test images, after "
        f"{steps:.1f} evaluations of its map on average ({config['max_steps']} at most)."
    ]
