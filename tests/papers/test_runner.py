"""What is on disk is not computed again; what is computed is on disk at once."""

import pytest
import torch

from notsodeep.errors import BadInput
from notsodeep.papers.records import Store
from notsodeep.papers.runner import _Clock, _Pending, run
from tests.papers.counting import Counting

CPU = torch.device("cpu")


def go(counting, store, full=False, show=lambda _: None, changes=None):
    return run([(counting.experiment, counting.experiment.config(full, changes))], store, CPU, show)


def test_every_unit_once(tmp_path):
    counting, store = Counting(), Store(tmp_path)
    assert go(counting, store).computed == 3
    again = go(counting, store)
    assert (again.computed, again.found) == (0, 3)
    assert set(counting.runs.values()) == {1}
    assert go(counting, store, full=True).computed == 2
    assert [r.values["twice"] for r in store.records("L1")] == [2.0, 4.0, 6.0, 8.0, 10.0]


def test_a_changed_setting_is_another_computation(tmp_path):
    counting, store = Counting(), Store(tmp_path)
    go(counting, store)
    assert go(counting, store, changes={"factor": "3"}).computed == 3
    assert len(store.records("L1")) == 6


def test_a_new_revision_computes_anew(tmp_path):
    counting, store = Counting(), Store(tmp_path)
    go(counting, store)
    object.__setattr__(counting.experiment, "revision", 2)
    assert go(counting, store).computed == 3
    assert go(counting, store).computed == 0
    assert [r.config.get("revision") for r in store.records("L1")] == [None] * 3 + [2] * 3


def test_what_was_computed_before_a_failure_stays(tmp_path):
    store = Store(tmp_path)
    with pytest.raises(RuntimeError, match="killed"):
        go(Counting(fails_at=3), store)
    assert [r.config["number"] for r in store.records("L1")] == [1, 2]
    counting = Counting()
    assert go(counting, store).computed == 1
    assert dict(counting.runs) == {3: 1}


def test_missing_data_leave_their_units_out_and_no_others(tmp_path):
    store = Store(tmp_path)
    outcome = go(Counting(missing=2), store)
    assert outcome.computed == 2
    assert outcome.left_out == {"L1": "the data are not there"}
    assert [r.config["number"] for r in store.records("L1")] == [1, 3]


def test_other_bad_input_is_not_swallowed(tmp_path):
    bad = Counting()
    object.__setattr__(bad.experiment, "run", lambda *_: (_ for _ in ()).throw(BadInput("wrong")))
    with pytest.raises(BadInput, match="wrong"):
        go(bad, Store(tmp_path))


def test_progress_counts_up_and_time_runs_out(tmp_path):
    seen = []
    go(Counting(), Store(tmp_path), full=True, show=seen.append)
    assert [p.done for p in seen] == [0, 1, 2, 3, 4, 5]
    assert all(p.total == 5 for p in seen)
    assert seen[0].remaining == 15.0  # nothing is known yet but the estimated costs, 1 + 2 + … + 5
    assert seen[-1].remaining == 0.0
    assert seen[1].remaining < seen[0].remaining


@pytest.mark.parametrize(("overhead", "rate"), [(0.5, 2.0), (3.0, 0.01), (0.0, 1.0)])
def test_remaining_time_learns_overhead_and_rate(overhead, rate):
    experiment = Counting().experiment
    clock = _Clock()
    items = [_Pending(experiment, None, cost) for cost in (1.0, 1.0, 4.0, 4.0, 16.0, 16.0)]
    for item in items[:4]:
        clock.learn(item, overhead + rate * item.cost)
    assert clock.remaining(items[4:]) == pytest.approx(2 * (overhead + rate * 16.0))


def test_small_units_do_not_frighten():
    """Two units of no size took 2 s each, all of it overhead: a large one is not expected to take a thousand times that."""
    clock = _Clock()
    for _ in range(2):
        clock.learn(_Pending(Counting().experiment, None, 0.1), 2.0)
    assert clock.remaining([_Pending(Counting().experiment, None, 100.0)]) == pytest.approx(101.9)


def test_provenance_is_recorded(tmp_path):
    store = Store(tmp_path)
    go(Counting(), store)
    found = store.records("L1")[0].provenance
    assert found["versions"]["torch"] == torch.__version__
    assert "cores" in found["machine"]
    assert found["time"].endswith("+00:00")
    assert store.records("L1")[0].seconds >= 0.0
