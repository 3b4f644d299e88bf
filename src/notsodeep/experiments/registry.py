"""Every experiment, by name."""

from __future__ import annotations

from notsodeep.errors import BadInput
from notsodeep.experiments.experiment import Experiment
from notsodeep.experiments.l1_kernel_gap import L1
from notsodeep.experiments.l2_equivalent_spectra import L2
from notsodeep.experiments.l3_relu_design import L3
from notsodeep.experiments.l4_tanh_design import L4
from notsodeep.experiments.l5_accuracy import L5
from notsodeep.experiments.l6_cost import L6

EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in (L1, L2, L3, L4, L5, L6)}


def chosen(names: list[str]) -> list[Experiment]:
    """Those named, in the registry's order, each once; "all" are all."""
    asked = {name.upper() for name in names}
    wrong = [name for name in names if name.upper() not in EXPERIMENTS and name.lower() != "all"]
    if wrong:
        raise BadInput(f"There is no experiment {wrong[0]!r}; there are {', '.join(EXPERIMENTS)}, and all.")
    return [experiment for name, experiment in EXPERIMENTS.items() if "ALL" in asked or name in asked]
