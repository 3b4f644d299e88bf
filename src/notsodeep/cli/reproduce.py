"""`notsodeep reproduce`."""

from __future__ import annotations

from notsodeep.cli.experiments import experiments_command

experiments_command(
    "reproduce",
    "The explicit equal of a DEQ: experiments, report.",
    "Run the experiments of Ling et al. (2024), on the explicit network that equals a wide DEQ, and write a report of every "
    "claim beside the number found here.",
    "L5.seeds=1, L1.sizes=200/400",
)
