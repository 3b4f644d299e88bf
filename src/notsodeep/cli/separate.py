"""`notsodeep separate`."""

from __future__ import annotations

from notsodeep.cli.experiments import experiments_command

experiments_command(
    "separate",
    "Where a DEQ is worth its cost: experiments, report.",
    "Run the experiments of Wu et al. (2024), on what a DEQ does that an explicit network of its cost does not, and write a "
    "report of every claim beside the number found here.",
    "W7.seeds=1, W7.channels=16/32",
)
