"""Settings by text, and experiments by name."""

import pytest

from notsodeep.errors import BadInput
from notsodeep.papers.experiment import from_config, settings
from notsodeep.papers.records import key
from notsodeep.papers.registry import EXPERIMENTS, chosen, of_command
from notsodeep.papers.report.words import PAPERS
from tests.papers.counting import Config, Counting, Unit


def test_text_becomes_what_the_setting_is():
    config = Counting().experiment.config(False, {"numbers": "4/5/4", "pause": "0", "factor": "0.5", "word": "b"})
    assert (config.numbers, config.pause, config.factor, config.word) == ((4, 5), 0, 0.5, "b")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("size", "3", "no setting 'size'; it has numbers, pause, factor, word"),
        ("numbers", "4/x", "must be a whole number, got 'x'"),
        ("factor", "", "must be a number"),
        ("word", "", "is empty"),
        ("numbers", "4//5", "must be a whole number, got ''"),
        ("numbers", "4/0", "must be above 0"),
        ("numbers", "-4", "must be above 0"),
        ("pause", "-1", "must be at least 0"),
        ("numbers", "99999999999", "at most 1,000,000"),
        ("factor", "nan", "must be above 0"),
        ("factor", "inf", "at most 1,000,000"),
    ],
)
def test_wrong_settings_are_told(name, text, message):
    with pytest.raises(BadInput, match=message):
        Counting().experiment.config(False, {name: text})


def test_a_unit_takes_the_settings_that_it_shares_with_its_config():
    assert from_config(Unit, Config(factor=3.0), number=2) == Unit(2, 3.0)
    assert from_config(Unit, Config(), number=2, factor=5.0).factor == 5.0


def test_experiments_by_name():
    assert [e.name for e in chosen(["l3", "L1", "L3"], "reproduce")] == ["L1", "L3"]
    assert [e.name for e in chosen(["w7"], "separate")] == ["W7"]
    with pytest.raises(BadInput, match=r"no experiment 'L9'; there are L1, .*L7, and all"):
        chosen(["L1", "L9"], "reproduce")


def test_each_experiment_has_one_command():
    commands = {"reproduce": "L", "separate": "W"}
    for command, letter in commands.items():
        own = chosen(["all"], command)
        assert [e.name for e in own] == list(of_command(command)) == [n for n in EXPERIMENTS if n[0] == letter]
    assert {e.command for e in EXPERIMENTS.values()} == set(commands) == {paper.command for paper in PAPERS}


@pytest.mark.parametrize(("name", "wrong", "right"), [("w7", "reproduce", "separate"), ("L1", "separate", "reproduce")])
def test_an_experiment_of_the_other_command(name, wrong, right):
    with pytest.raises(BadInput, match=f"run `notsodeep {right} {name.upper()}`"):
        chosen(["all", name], wrong)


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("full", [False, True])
def test_every_unit_has_a_key_of_its_own_and_a_cost(name, full):
    experiment = EXPERIMENTS[name]
    units = experiment.units(experiment.config(full))
    keys = [key(name, settings(unit)) for unit in units]
    assert len(set(keys)) == len(units) > 0
    assert all(unit.cost > 0.0 for unit in units)
    # What is trained or drawn at random says from which seed, or how many; a construction has nothing random.
    assert all({"seed", "seeds"} & set(settings(unit)) or unit.kind == "constructed" for unit in units)


def test_full_is_the_paper_s_size():
    l5, l2 = EXPERIMENTS["L5"].full, EXPERIMENTS["L2"].full
    assert 2**12 in l5.widths
    assert (l5.epochs, l5.batch, l5.train) == (100, 128, 0)
    assert (l2.mixture_n, l2.mixture_p, l2.images, l2.var_a) == (800, 1000, 6000, 0.1)
