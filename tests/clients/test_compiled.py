"""Modules that people train, compiled: a frontier, the network that it says to deploy, and a file that answers like it."""

import pytest
import torch

import notsodeep as nsd

from .modules import CASES

KEEP, BUDGET = 0.99, 1.2
SAMPLES, UNSEEN = 400, 120
OTHERS = 7  # samples of another batch than any before


def kept(out, wanted):
    """The share of the classes, of images that of the variance, that `out` has in common with `wanted`."""
    if out.ndim == 2:
        return float((out.argmax(1) == wanted.argmax(1)).double().mean())
    spread = (wanted - wanted.mean(0)).double().square().mean()
    return 1.0 - float((out - wanted).double().square().mean() / spread)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def case(request):
    return request.param


@pytest.fixture(scope="module")
def module(case):
    return case.build().eval()


@pytest.fixture(scope="module")
def held_out(case):
    """(samples to compile with, rows of them that nothing is fitted to, or other samples)."""
    if case.coupled:  # the samples of one problem are held out in the order of the generator
        x, _ = case.samples(200)
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(3))
        return x, order[: len(x) // 5]
    x, _ = case.samples(SAMPLES + UNSEEN)
    return x[:SAMPLES], x[SAMPLES:]


@pytest.fixture(scope="module")
def compiled(case, module, held_out):
    x, others = held_out
    test = {} if case.coupled else {"test": (others, None)}
    draw = torch.Generator().manual_seed(3)
    return nsd.compile_deq(module, x, keep=KEEP, budget=BUDGET, progress=False, generator=draw, **test)


def deployed(compiled):
    return next(way for way in compiled.frontier.ways if way.module is compiled.network)


def test_the_frontier_begins_with_the_module(case, compiled):
    ways = compiled.frontier.ways
    first, names = ways[0], [way.name for way in ways]
    assert (first.name, first.output_error, first.kept, first.iterates) == ("the DEQ", 0.0, 1.0, True)
    assert len(set(names)) == len(names)
    assert {"the DEQ cut after 2 steps", "1 learnt step"} <= set(names)
    assert any("linear response" in name for name in names) == ("monotone" in case.name)
    assert all(way.mflop > 0.0 and way.milliseconds > 0.0 for way in ways)
    assert any(way.mflop < first.mflop / 3.0 for way in ways)
    assert deployed(compiled).kept >= KEEP


def test_the_network_keeps_what_the_frontier_says(case, module, held_out, compiled):
    x, others = held_out
    with torch.no_grad():
        if case.coupled:
            found, wanted = compiled.network(x)[others], module(x)[others]
        else:
            found, wanted = compiled.network(others), module(others)
    way = deployed(compiled)
    assert way.kept == pytest.approx(kept(found, wanted), abs=1e-3)
    assert compiled.frontier.samples == len(wanted)


def test_the_file_answers_like_the_network(case, module, held_out, compiled, tmp_path):
    pytest.importorskip("onnx")
    session = pytest.importorskip("onnxruntime").InferenceSession(compiled.to_onnx(tmp_path / "network.onnx"))
    x, others = held_out
    given = x.flip(0) if case.coupled else others[:OTHERS]  # other features of the same nodes; another number of samples
    (found,) = (torch.from_numpy(out) for out in session.run(None, {"x": given.numpy()}))
    with torch.no_grad():
        wanted = compiled.network(given)
    assert found.shape == wanted.shape
    if deployed(compiled).iterates:  # within its tolerance, by the steps of another solver
        with torch.no_grad():
            assert kept(found, module(given)) >= KEEP - 1.0 / len(given)
    else:
        torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-4 * float(wanted.abs().max()))
