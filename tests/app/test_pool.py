"""Computations in processes: their budget, those who leave, and processes that are replaced."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from notsodeep.app import pool as pools, worker as process
from notsodeep.app.pool import LATER, Pool
from notsodeep.app.study import Refused
from notsodeep.app.worker import Budget, Departed, OverBudget, Stopped
from notsodeep.errors import NoMatch
from tests.app import jobs

MEMORY = 2**29


@pytest.fixture(scope="module")
def pool():
    made = Pool(Budget(seconds=120, memory=MEMORY), workers=2, most_waiting=4, preload="tests.app.jobs")
    yield made
    made.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(process, "_GRACE", 0.05)
    monkeypatch.setattr(pools, "_LOOK", 0.02)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_call_and_its_errors(pool):
    first = pool.run("a", jobs.pid)
    assert pool.run("b", jobs.pid) == first  # the process that was last at work
    for error in (Refused("var_a", "too large"), NoMatch("none", residual=0.5), ZeroDivisionError("of a test")):
        with pytest.raises(type(error), match=str(error)) as raised:
            pool.run("c", jobs.fail, error)
        assert "jobs.py" in raised.value.__notes__[0]
        assert vars(error).items() <= vars(raised.value).items()
    # Of this process, from which the server of forks has it; one that an earlier test started may have another.
    assert os.environ["OMP_WAIT_POLICY"] == "passive"


def test_over_its_time():
    pool = Pool(Budget(seconds=0.5), workers=1, preload="tests.app.jobs")
    worker = pool.run("quick", jobs.pid)
    with pytest.raises(OverBudget, match=r"longer than the 0.5 s .* was stopped") as over:
        pool.run("long", jobs.sleep, 600)
    assert over.value.option == "--seconds"
    assert pool.run("next", jobs.pid) != worker
    until(lambda: not alive(worker))
    pool.close()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="there is no limit on memory but on Linux")
def test_over_its_memory(pool):
    before = pool.run("a", jobs.pid)
    assert pool.run("small", jobs.allocate, 10) == 10 * 2**17
    with pytest.raises(OverBudget, match=r"more than the 512 MiB .* was stopped") as over:
        pool.run("large", jobs.allocate, 2 * MEMORY // 2**20)
    assert over.value.option == "--memory"
    until(lambda: not alive(before))
    assert pool.run("after", jobs.pid) != before


def test_who_leaves_takes_the_call_along(pool, tmp_path):
    begun, left = tmp_path / "begun", threading.Event()
    with ThreadPoolExecutor(2) as visitors:
        first, second = (
            visitors.submit(pool.run, "shared", jobs.sleep, 60, begun, departed=gone)
            for gone in (left.is_set, lambda: left.is_set() and both.is_set())
        )
        both = threading.Event()
        until(lambda: begun.exists() and begun.read_text())
        worker = int(begun.read_text())
        left.set()
        with pytest.raises(Departed):
            first.result(30)
        time.sleep(0.3)
        assert alive(worker)  # another still waits for it
        both.set()
        with pytest.raises(Departed):
            second.result(30)
    until(lambda: not alive(worker))
    assert pool.run("next", jobs.pid) != worker


def test_who_leaves_the_queue_is_forgotten_and_the_urgent_come_first(pool, tmp_path):
    order, left, free = [], threading.Event(), tmp_path / "free"

    def visit(name, **how):
        order.append(pool.run(name, jobs.until_there, free, **how) and name)

    with ThreadPoolExecutor(4) as visitors:
        for k in range(2):
            visitors.submit(visit, f"busy {k}")
        until(lambda: not pool._idle)
        gone = visitors.submit(visit, "gone", departed=left.is_set)
        visitors.submit(visit, "later", urgency=LATER)
        until(lambda: len(pool._queue) == 2)
        with pytest.raises(Stopped, match="4 computations are asked for already"):
            pool.run("one too many", jobs.pid)
        left.set()
        with pytest.raises(Departed):
            gone.result(30)
        assert [job.key for job in pool._queue] == ["later"]
        visitors.submit(visit, "urgent")
        until(lambda: len(pool._queue) == 2)
        assert pool._pick().key == "urgent"
        free.touch()
    assert sorted(order) == ["busy 0", "busy 1", "later", "urgent"]


def test_a_process_that_dies_is_replaced(pool):
    with pytest.raises(Stopped, match="ended before its answer"):
        pool.run("die", jobs.die)
    assert pool.run("next", jobs.pid) in pool.pids()
    until(lambda: len(pool.pids()) == 2)


def test_one_that_has_grown_is_replaced_when_idle(pool, monkeypatch):
    monkeypatch.setattr(process, "_GROWN", -(2**40))
    monkeypatch.setattr(pools, "_REST", 0.1)
    worker = pool.run("a", jobs.pid)
    until(lambda: not alive(worker))
    until(lambda: len(pool.pids()) == 2)


def test_the_end_is_at_once(tmp_path):
    own = Pool(Budget(), workers=1, preload="tests.app.jobs")
    with ThreadPoolExecutor(2) as visitors:
        waiting = [visitors.submit(own.run, k, jobs.sleep, 60, tmp_path / "begun") for k in range(2)]
        until(lambda: (tmp_path / "begun").exists())
        worker = own.pids()[0]
        own.close()
        for each in waiting:
            with pytest.raises(Stopped):
                each.result(10)
    until(lambda: not alive(worker))
    with pytest.raises(Stopped, match="was stopped"):
        own.run("after", jobs.pid)
