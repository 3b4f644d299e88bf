"""A quick and a full run in one folder do not mix, in claims as in figures."""

from dataclasses import replace

import pytest
import torch

from notsodeep.papers.ling2024.comparison import Sizes
from notsodeep.papers.records import Record, Store, in_one_run, of_one_run
from notsodeep.papers.registry import EXPERIMENTS
from notsodeep.papers.runner import run
from tests.papers.figures import made_up

NOTHING = {name: [] for name in EXPERIMENTS}


@pytest.mark.parametrize("name", ["L2", "L3", "L4"])
def test_sizes_do_not_mix(name, tmp_path):
    large, small = (Sizes(mixture_n=n, mixture_p=50, mixture_seeds=k, image_seeds=0) for n, k in ((80, 2), (40, 1)))
    stores = [Store(tmp_path / part) for part in ("alone", "both")]
    experiment = EXPERIMENTS[name]
    run([(experiment, large)], stores[0], torch.device("cpu"))
    run([(experiment, small), (experiment, large)], stores[1], torch.device("cpu"))
    alone, both = (experiment.claims(NOTHING | {name: store.records(name)}, "") for store in stores)
    assert len(stores[1].records(name)) > len(stores[0].records(name))
    assert alone
    assert both == alone


def test_l5_runs_do_not_mix():
    full = [
        replace(record, config={**record.config, "train": 0, "epochs": 100})
        for record in made_up.everything()["L5"]
        if record.config["kind"] == "width"
    ]
    quick = [
        replace(record, config={**record.config, "train": 500, "epochs": 1}, values=_worse(record.values))
        for record in full[::3]
    ]
    experiment = EXPERIMENTS["L5"]
    assert experiment.claims(NOTHING | {"L5": [*quick, *full]}, "") == experiment.claims(NOTHING | {"L5": full}, "")
    assert experiment.notes(NOTHING | {"L5": [*quick, *full]}) == experiment.notes(NOTHING | {"L5": full})


def _worse(values):
    spoilt = {how: dict.fromkeys(by, 0.1) | {"deq": 0.9} for how, by in values["accuracy"].items()}
    return {**values, "accuracy": spoilt}


def test_groups_are_chosen_apart():
    records = [record for record in made_up.everything()["L5"] if record.config["kind"] == "width"]
    kept = of_one_run(records, ("data", "activation"), ("rate",))
    assert {(r.config["data"], r.config["activation"]) for r in kept} == {
        (r.config["data"], r.config["activation"]) for r in records
    }


def test_records_of_one_run_agree_with_the_latest():
    settings = ((0, 10, "deq"), (0, 20, "deq"), (1, 20, "fnn"))
    records = [Record("W6", {"seed": s, "steps": n, "network": net}, {}, 0.0) for s, n, net in settings]
    assert in_one_run(records, ("seed", "network")) == records[1:]
    assert in_one_run([], ("seed",)) == []
