"""A DEQ trained on digits, and its data, for the tests of the compiler, whose budgets count steps instead of seconds."""

import itertools
from types import SimpleNamespace

import pytest
import torch

import notsodeep as nsd
from notsodeep.data import load_split
from notsodeep.data.sources import load

_STEP = 1e-3  # seconds that a look at the clock takes, which each step of a training does once


@pytest.fixture(scope="module", autouse=True)
def clock_of_steps(request):
    """A busy machine trains as much as an idle one; the tests of the training itself have their own clock."""
    with pytest.MonkeyPatch.context() as patched:
        if not request.module.__name__.endswith("test_distil"):
            ticks = itertools.count()
            clock = SimpleNamespace(monotonic=lambda: _STEP * next(ticks))
            for name in ("distil", "ways"):
                patched.setattr(f"notsodeep.models.compiler.{name}.time", clock)
        yield


@pytest.fixture(scope="session")
def digits():
    found = load("digits")
    return found.x.float(), found.y


@pytest.fixture(scope="session")
def split():
    return load_split("digits:n=700")


@pytest.fixture(scope="session")
def trained(split):
    """Not to be changed: every test has the same one."""
    x, y = split.train.x.float(), split.train.y
    deq = nsd.DEQ(nsd.Implicit("tanh", 0.2), 64, 64, 10, readout_bias=True, generator=torch.Generator().manual_seed(0))
    batches = nsd.training.Batches(x, y, 64, torch.Generator().manual_seed(0))
    nsd.fit_readout(deq, batches)
    nsd.fit(deq, batches, 4, optimiser=torch.optim.Adam(deq.parameters(), lr=1e-2), progress=False)
    return deq
