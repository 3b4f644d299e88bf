"""docs/results: its claims follow from its records, and hold what the documentation says of them."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from notsodeep.papers.experiment import settings
from notsodeep.papers.records import Store, key
from notsodeep.papers.registry import EXPERIMENTS

FOLDER = Path(__file__).parents[2] / "docs" / "results"
CLAIMS = {claim["id"]: claim for claim in json.loads((FOLDER / "claims.json").read_text())}
ROWS = [f"L5.{data}.{phi}" for data in ("mnist", "fashion-mnist", "cifar10-vgg19") for phi in ("tanh", "relu")]


def test_claims_follow_from_the_records():
    records = {name: Store(FOLDER).records(name) for name in EXPERIMENTS}
    found = []
    for name, experiment in EXPERIMENTS.items():
        found += [claim.to_dict() for claim in experiment.claims(records, f"notsodeep {experiment.command} {name} --full")]
    assert found == list(CLAIMS.values())


def test_every_experiment_was_run_in_full():
    for name, experiment in EXPERIMENTS.items():
        if name == "L6":  # its units depend on the machine
            continue
        there = {key(name, unrevised(record.config)) for record in Store(FOLDER).records(name)}
        planned = [settings(unit) for unit in experiment.units(experiment.full)]
        if name == "L7":  # its finite networks were run smaller: no GPU was at hand
            planned = [config for config in planned if config["kind"] == "infinite"]
        assert {key(name, config) for config in planned} <= there
    devices = {(r.config["device"], r.config["width"]) for r in Store(FOLDER).records("L6")}
    assert devices == {(device, 2**k) for device in ("cpu", "cuda") for k in range(5, 14)}


def unrevised(config):
    return {name: value for name, value in config.items() if name != "revision"}


@pytest.mark.parametrize("row", ROWS)
def test_matched_network_and_deq_are_as_accurate(row):
    assert CLAIMS[f"{row}.gap"]["verdict"] == "reproduced"
    if "cifar" not in row:
        assert CLAIMS[f"{row}.deq"]["verdict"] == CLAIMS[f"{row}.matched"]["verdict"] == "reproduced"


def test_the_designed_network_is_below_the_preprint_s_norm():
    assert CLAIMS["L3.mnist.designed"]["verdict"] == "sharper"
    assert float(CLAIMS["L3.mnist.designed"]["ours"].split()[0]) < 1.83


def test_the_constructions_are_exact():
    exact = ("W1.construction", "W5.limit", *(f"W2.construction.N{N}" for N in (4, 10, 20, 50)))
    assert {CLAIMS[name]["verdict"] for name in exact} == {"reproduced"}
    assert "m up to 15; largest error 0" in CLAIMS["W1.construction"]["ours"]
    assert "β_k 1.141042, error 0.047488" in CLAIMS["W5.limit"]["ours"]


def test_weights_grow_with_d_where_the_steep_part_is_resolved():
    """As docs/separation.md says: of built feed-forward networks, as they must, and not of DEQs."""
    assert {CLAIMS[f"W3.{network}.built"]["verdict"] for network in ("deq", "fnn")} == {"reproduced"}
    assert CLAIMS["W3.deq.built"]["ours"].startswith("1.00 at d = 6, 1.00 at d = 20")
    assert "4.55 at d = 20" in CLAIMS["W3.fnn.built"]["ours"]
    assert "4.30 (proven)" in CLAIMS["W3.fnn.built"]["ours"]


def test_where_deqs_were_found_ahead():
    """As docs/separation.md says: at equal FLOPs on W4, and in the breadth of their maps."""
    assert {CLAIMS[name]["verdict"] for name in ("W4.order", "W4.flops", "W4.level", "W7.breadth")} == {"reproduced"}


def test_figures_are_there_and_named_in_the_readme():
    text = (FOLDER / "README.md").read_text()
    names = {path.stem for path in (FOLDER / "figures").glob("*.png")}
    assert names == {path.stem for path in (FOLDER / "figures").glob("*.svg")}
    assert len(names) >= 14
    assert all(f"figures/{name}." in text for name in names)


def test_the_tour_counts_the_verdicts():
    """docs/results.md, experiment by experiment and in all."""
    text = (FOLDER.parent / "results.md").read_text()
    rows = re.findall(r"^\| \[([LW]\d)\]\([^)]*\) \|[^|]*\| (\d+) \| (\d+) \| (\d+) \|$", text, flags=re.MULTILINE)
    verdicts = ("reproduced", "sharper", "not reproduced")
    count = Counter((name.partition(".")[0], claim["verdict"]) for name, claim in CLAIMS.items())
    assert rows == [(name, *(str(count[name, verdict]) for verdict in verdicts)) for name in EXPERIMENTS]
    total = [sum(count[name, verdict] for name in EXPERIMENTS) for verdict in verdicts]
    said = f"Of {len(CLAIMS)} claims {total[0]} were reproduced, {total[1]} are sharper than printed, and {total[2]} were not"
    assert said in " ".join(text.split())
