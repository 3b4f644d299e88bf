"""Every experiment, by name."""

from __future__ import annotations

from notsodeep.errors import BadInput
from notsodeep.papers.experiment import Experiment
from notsodeep.papers.ling2024.l1_kernel_gap import L1
from notsodeep.papers.ling2024.l2_l3_l4_spectra import L2, L3, L4
from notsodeep.papers.ling2024.l5_accuracy import L5
from notsodeep.papers.ling2024.l6_cost import L6
from notsodeep.papers.ling2024.l7_training import L7
from notsodeep.papers.wu2024.w1_w4_sawtooth import W1, W4
from notsodeep.papers.wu2024.w2_steep import W2
from notsodeep.papers.wu2024.w3_weights import W3
from notsodeep.papers.wu2024.w5_unseen import W5
from notsodeep.papers.wu2024.w6_features import W6
from notsodeep.papers.wu2024.w7_saliency import W7

_LING = (L1, L2, L3, L4, L5, L6, L7)
_WU = (W1, W2, W3, W4, W5, W6, W7)

EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in (*_LING, *_WU)}


def of_command(command: str) -> dict[str, Experiment]:
    """The experiments that `notsodeep COMMAND` runs, by name."""
    return {name: experiment for name, experiment in EXPERIMENTS.items() if experiment.command == command}


def chosen(names: list[str], command: str) -> list[Experiment]:
    """The named experiments of a command, in the registry's order, each once; "all" stands for all of them.

    Raises BadInput for a name that does not exist or belongs to another command.
    """
    own = of_command(command)
    for name in names:
        if name.lower() == "all" or name.upper() in own:
            continue
        if name.upper() in EXPERIMENTS:
            other = EXPERIMENTS[name.upper()]
            raise BadInput(f"{other.name} is not of `notsodeep {command}`: run `notsodeep {other.command} {other.name}`.")
        raise BadInput(f"There is no experiment {name!r}; there are {', '.join(own)}, and all.")
    asked = {name.upper() for name in names}
    return [experiment for name, experiment in own.items() if "ALL" in asked or name in asked]
