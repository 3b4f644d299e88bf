"""What a report leaves on disk, and what it refuses."""

import json
from dataclasses import fields

import pytest

from notsodeep.errors import BadInput
from notsodeep.papers.claims import Claim, Verdict
from notsodeep.papers.records import Store
from notsodeep.papers.report.words import collapsed, duration, plain
from notsodeep.papers.report.write import write_results
from tests.papers.report.made_up import Unit, record, whole_run


def test_writes_everything(run_of):
    store = run_of(whole_run())
    results = write_results(store, store.folder)
    written = sorted(str(path.relative_to(store.folder)) for path in store.folder.rglob("*") if path.is_file())
    assert written == [
        "README.md",
        "claims.json",
        "figures/L1-gap-gmm.png",
        "figures/L1-gap-gmm.svg",
        "figures/L5-gap-gmm.png",
        "figures/L5-gap-gmm.svg",
        "records/L1.jsonl",
        "records/L5.jsonl",
        "report.html",
    ]
    assert results.page == store.folder / "report.html"
    assert results.left_out == ()


def test_claims_round_trip(run_of):
    store = run_of(whole_run())
    results = write_results(store, store.folder)
    found = json.loads((store.folder / "claims.json").read_text("utf-8"))
    assert [list(claim) for claim in found] == [[field.name for field in fields(Claim)]] * 6
    assert tuple(Claim(**claim | {"verdict": Verdict(claim["verdict"])}) for claim in found) == results.claims


def test_the_same_records_give_the_same_words(run_of):
    store = run_of(whole_run())

    def words():
        write_results(store, store.folder)
        return [(store.folder / name).read_bytes() for name in ("claims.json", "README.md")]

    assert words() == words()


@pytest.mark.parametrize("here", [True, False])
def test_without_records(tmp_path, here):
    folder = tmp_path / "run"
    if here:
        (folder / "records").mkdir(parents=True)
    with pytest.raises(BadInput, match="Run `notsodeep reproduce` or `notsodeep separate` first") as caught:
        write_results(Store(folder), folder)
    assert str(folder / "records") in str(caught.value)
    assert not (folder / "figures").exists()


def test_part_of_a_run(run_of):
    store = run_of([record("L5", Unit("gmm", 200, 0))])
    results = write_results(store, store.folder)
    assert {claim.experiment for claim in results.claims} == {"L5"}


def test_unknown_experiments_are_named_and_skipped(run_of):
    strange = [record("L99", Unit("gmm", 200, seed)) for seed in range(2)]
    store = run_of([*whole_run("quick"), *strange])
    store.path("L1").write_text(store.path("L1").read_text("utf-8") + record("L5", Unit("gmm", 9, 9)).to_line() + "\n", "utf-8")
    results = write_results(store, store.folder)
    assert [sentence.partition(" left out")[0] for sentence in results.left_out] == [
        "1 record of “L5” in records/L1.jsonl",
        "2 records of “L99” in records/L99.jsonl",
    ]
    for name in ("README.md", "report.html"):
        text = (store.folder / name).read_text("utf-8")
        assert "2 records of “L99”" in text
        assert "4 computations, 2 seeds" in text


def test_only_unknown_experiments(run_of):
    store = run_of([record("L99", Unit("gmm", 200, 0))])
    with pytest.raises(BadInput, match=r"L99.*notsodeep reproduce"):
        write_results(store, store.folder)


@pytest.mark.parametrize(("name", "command"), [("L1", "reproduce"), ("W2", "separate")])
def test_records_of_another_kind_are_bad_input(run_of, name, command):
    store = run_of([record(name, Unit("gmm", 200, 0), values={})])
    with pytest.raises(BadInput, match=rf"{name}\.jsonl.*KeyError.*notsodeep {command} {name}"):
        write_results(store, store.folder)
    assert not (store.folder / "report.html").exists()


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1600, 200, 800, 400, 3200, 200], "200 … 3200 (5 values)"),
        ([0.8, 0.2], "0.2, 0.8"),
        (["tanh", "relu", "tanh"], "tanh, relu"),
        ([f"a{k}" for k in range(12)], "a0, a1, a2 … (12 values)"),
        ([True, None, [1, "b"]], "yes, none, 1/b"),
        ([1, "1", float("nan")], "1, nan"),
        ([], ""),
    ],
)
def test_settings_collapse(values, text):
    assert collapsed(values) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.0 s"),
        (9.96, "10 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (725, "12 min"),
        (7500, "2 h 5 min"),
        (3 * 3600, "3 h"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds).replace("\N{NO-BREAK SPACE}", " ") == text


def test_plain_text():
    assert plain("a\nb\x00\x1bc\u202e") == "a b c"
    assert plain("\ud800") == "\N{REPLACEMENT CHARACTER}"
    assert plain("x" * 10**6, 10) == "x" * 9 + "…"
    assert plain("‖G* − Ḡ‖ ≤ σ_a²") == "‖G* − Ḡ‖ ≤ σ_a²"
