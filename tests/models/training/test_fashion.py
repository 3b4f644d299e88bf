"""On Fashion-MNIST the matched network does as well as the DEQ, and a compiled one nearly as well as a trained one."""

import pytest
import torch

import notsodeep as nsd
from notsodeep.data import load_split
from notsodeep.models.training.objective import score
from notsodeep.models.training.readout import in_batches, scale_to_logits
from tests.data.conftest import real

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def split():
    real("fashion-mnist/train-images-idx3-ubyte.gz")
    return load_split("fashion-mnist")


@pytest.mark.parametrize("name", ["relu", "tanh"])
def test_readouts_of_both_are_within_a_point(name, split):
    net = nsd.Implicit(name, 0.2)
    explicit = nsd.design(net, tau0=1.0).explicit
    scores = []
    for module in (
        nsd.DEQ(net, 784, 1024, 10, readout_bias=True, generator=torch.Generator().manual_seed(0)),
        nsd.ENN(explicit, 784, 1024, 10, readout_bias=True, generator=torch.Generator().manual_seed(0)),
    ):
        nsd.fit_readout(module, nsd.training.Batches(split.train.x, split.train.y, 1024))
        scores.append(score(in_batches(module, split.test.x), split.test.y))
    assert min(scores) > 0.83
    assert abs(scores[0] - scores[1]) < 0.01


def test_a_trained_deq_and_its_compiled_network(split):
    x, y = split.train.x, split.train.y
    draw = torch.Generator().manual_seed(0)
    deq = nsd.DEQ(nsd.Implicit("relu", 0.2), 784, 1024, 10, readout_bias=True, generator=draw)
    nsd.fit_readout(deq, nsd.training.Batches(x, y, 1024))
    scale_to_logits(deq, nsd.training.Batches(x, y, 1024, draw))
    optimiser = torch.optim.Adam(deq.parameters(), lr=1e-2)
    nsd.fit(deq, nsd.training.Batches(x, y, 128, draw), 5, optimiser=optimiser, progress=False)
    compiled = nsd.compile_deq(deq, x, progress=False)
    theirs, ours = (score(in_batches(module, split.test.x), split.test.y) for module in (deq, compiled.network))
    assert theirs >= 0.88
    assert abs(theirs - ours) < 0.01
