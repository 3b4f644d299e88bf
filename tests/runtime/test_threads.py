"""Work shared by threads: order, what each of them may do, failures, and the number of threads that others see."""

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from threadpoolctl import threadpool_info

import notsodeep as nsd
from notsodeep.runtime.threads import later, shared, small_matrices


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_answers_come_in_order():
    assert shared(lambda k: k * k, range(20)) == [k * k for k in range(20)]
    assert shared(str, []) == []


def test_each_computes_alone_and_may_share_again(threads):
    """What a thread of the pool shares it does itself: it would else wait for the thread that it is."""

    def nested(k: int) -> list[int]:
        assert torch.get_num_threads() == 1
        return shared(lambda j: 10 * k + j, range(5))

    assert shared(nested, range(8)) == [[10 * k + j for j in range(5)] for k in range(8)]
    assert torch.get_num_threads() == threads


@pytest.mark.usefixtures("threads")
def test_later_ones_may_wait_for_earlier_ones():
    first = later(lambda: 1)
    chain = [first]
    for _ in range(12):
        chain.append(later(lambda before=chain[-1]: before.result() + 1))
    assert [step.result(timeout=30) for step in chain] == list(range(1, 14))


@pytest.mark.usefixtures("threads")
def test_a_failure_is_the_callers():
    failed = later(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        failed.result(timeout=30)
    with pytest.raises(ZeroDivisionError):
        shared(lambda k: 1 // k, [1, 0, 2])
    assert shared(abs, [-1, -2]) == [1, 2]


def test_threads_to_come_begin_with_the_callers_number(threads):
    later(lambda: None).result(timeout=30)
    shared(abs, [-1, -2])
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == threads
    assert torch.get_num_threads() == threads


def test_many_callers_at_once(threads):
    """More callers than threads, each of which waits: nobody waits for ever."""
    found = {}

    def call(name: int) -> None:
        torch.set_num_threads(threads)
        found[name] = sum(shared(lambda k: later(lambda: k).result(timeout=30), range(10)))

    callers = [threading.Thread(target=call, args=(k,)) for k in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=60)
    assert found == dict.fromkeys(range(6), 45)


@pytest.mark.usefixtures("threads")
def test_a_warning_in_a_thread_is_of_the_line_that_called():
    with pytest.warns(nsd.NumericsWarning, match="contract") as told:
        later(lambda: nsd.Implicit("gelu", 0.2).warn_unless_contractive()).result()
    assert told[0].filename == __file__
    with pytest.warns(nsd.NumericsWarning, match="contract") as told:
        shared(lambda var_a: nsd.Implicit("gelu", var_a).warn_unless_contractive(), [0.2, 0.21])
    assert {one.filename for one in told} == {__file__}


@pytest.mark.usefixtures("threads")
def test_a_design_warns_once():
    """Its fits are made in threads, behind cached properties, and the warning would be another one at each place."""
    x = torch.randn(120, 8, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        nsd.design(nsd.Implicit("gelu", 0.2), x)
    assert [one.filename for one in told] == [__file__]


def test_matrices_are_small_until_the_last_one_leaves():
    def most():
        return max(each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas")

    before = most()
    first, second = small_matrices(), small_matrices()
    with first:
        second.__enter__()
        assert most() == 1
    assert most() == 1
    second.__exit__(None, None, None)
    assert most() == before
