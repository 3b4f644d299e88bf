"""The papers that a report is about, each with the command that runs its experiments, and what a report says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    """`shows` has a place for {deq}, which the first of a text spells out."""

    command: str
    anchor: str
    heading: str
    shows: str


PAPERS = (
    Paper(
        "reproduce",
        "equivalence",
        "Equivalence (Ling et al. 2024)",
        "Ling et al. (ICML 2024) show that a wide {deq} has nearly the same kernels as an explicit network of one or two "
        "hidden layers with a designed activation.",
    ),
    Paper(
        "separate",
        "separation",
        "Separation (Wu et al. 2024)",
        "Wu et al. (NeurIPS 2024) show where a {deq} is worth its cost: functions that it expresses with fewer units or "
        "smaller weights than a feed-forward network, and unseen inputs on which it errs less.",
    ),
)


def title(papers: Sequence[Paper]) -> str:
    return (
        f"Implicit against explicit networks: the {'papers’' if len(papers) > 1 else 'paper’s'} claims, computed anew"
    )


def about(papers: Sequence[Paper]) -> str:
    """What the papers show, and how to read what follows."""
    names = ("deep equilibrium model (DEQ)", *("DEQ",) * len(papers))
    shown = " ".join(paper.shows.format(deq=name) for paper, name in zip(papers, names, strict=False))
    return (
        f"{shown} Here each number of theirs stands beside the same number computed by notsodeep, with its spread, and a "
        "verdict. “Sharper” means: found, and better than they say by more than the spread. Where the paper has no number "
        "(“—”), the claim is ours, and the verdict says whether it holds."
    )


def commands() -> str:
    """ "`notsodeep reproduce` or `notsodeep separate`"."""
    return " or ".join(f"`notsodeep {paper.command}`" for paper in PAPERS)
