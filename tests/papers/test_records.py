"""Records on disk outlive whatever stops a run."""

import json
import multiprocessing

import pytest

from notsodeep.errors import BadInput
from notsodeep.papers.records import Record, Store, key


def record(number, value=1.0, text="x"):
    return Record("L1", {"number": number, "text": text, "seed": 0}, {"value": value}, 0.5, {"machine": "m"})


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def test_what_is_written_is_read(store):
    written = [record(1), record(2, text="σ_a² \u2028 \u0085 \x1b"), record(3, value=1e-300)]
    for each in written:
        store.add(each)
    assert store.records("L1") == written
    assert store.experiments() == ["L1"]
    assert store.records("L2") == []


def test_each_record_is_one_line_of_json(store):
    store.add(record(1))
    store.add(record(2))
    lines = store.path("L1").read_text().splitlines()
    assert [json.loads(line)["config"]["number"] for line in lines] == [1, 2]
    assert set(json.loads(lines[0])) == {"experiment", "config", "values", "seconds", "provenance"}


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_half_a_line_is_forgotten_and_overwritten(store, cut):
    store.add(record(1))
    whole = store.path("L1").read_bytes()
    store.path("L1").write_bytes(whole + record(2).to_line().encode()[:cut])
    assert store.records("L1") == [record(1)]
    store.add(record(3))
    assert store.records("L1") == [record(1), record(3)]


@pytest.mark.parametrize(
    "line",
    [record(2).to_line().replace("1.0", "NaN"), "{}", "not json", "[1]", '{"experiment": "L1"}', "[" * 100_000, "\udcff"],
)
def test_a_line_that_is_no_record_is_named(store, line):
    store.add(record(1))
    with open(store.path("L1"), "ab") as file:
        file.write(line.encode("utf-8", "surrogateescape") + b"\n")
    with pytest.raises(BadInput, match="line 2, is not a record"):
        store.records("L1")


def test_the_later_of_two_counts(store):
    store.add(record(1, value=1.0))
    store.add(record(2))
    store.add(record(1, value=5.0))
    assert [r.values["value"] for r in store.records("L1")] == [5.0, 1.0]


def test_a_key_knows_the_settings_in_any_order():
    assert key("L1", {"a": 1, "b": 2.0}) == key("L1", {"b": 2.0, "a": 1})
    assert len({key("L1", {"a": 1}), key("L2", {"a": 1}), key("L1", {"a": 2}), key("L1", {"b": 1})}) == 4


def test_a_number_that_json_lacks_is_refused(store):
    with pytest.raises(ValueError, match="JSON"):
        store.add(record(1, value=float("nan")))
    assert not store.path("L1").exists() or store.records("L1") == []


def _write_many(folder, process):
    for number in range(30):
        Store(folder).add(record(100 * process + number, text="x" * 20_000))


def test_processes_do_not_lose_each_other_s_records(tmp_path):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.papers.test_records"])  # imported once, for all of them
    writers = [context.Process(target=_write_many, args=(tmp_path, process)) for process in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(Store(tmp_path).records("L1")) == 90
