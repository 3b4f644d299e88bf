"""A DEQ trained on digits, and its data, for the tests of the compiler."""

import pytest
import torch

import notsodeep as nsd
from notsodeep.data import load_split
from notsodeep.data.sources import load


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
