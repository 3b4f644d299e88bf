"""Things of torch that wrap a fixed point: lines of the table in the docs, one by one."""

import copy
import os
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.func import functional_call, grad, jacrev, stack_module_state, vmap
from torch.utils.checkpoint import checkpoint

import notsodeep as nsd

from .plain import (
    Layer,
    assert_close,
    assert_same,
    assert_same_map,
    assert_same_module,
    contracting,
    derivatives,
    distributed,
    loss,
    reference,
    samples,
    solved,
)

HALF = {"rtol": 0.05, "atol": 0.05}


# Automatic mixed precision


@pytest.mark.parametrize("backward_inside", [False, True])
def test_autocast_to_bfloat16(backward_inside, device):
    layer = Layer(device, torch.float32)
    layer.solve = lambda f, z0: nsd.fixed_point(f, z0.float()).value
    twin, x = reference(layer), samples(device=device, dtype=torch.float32)
    with torch.autocast(device, dtype=torch.bfloat16):
        found = layer(x)
        if backward_inside:
            loss(found.float()).backward()
    if not backward_inside:
        loss(found.float()).backward()
    wide = x.detach().double().requires_grad_()
    wanted = twin(wide)
    loss(wanted).backward()
    assert_close(found, wanted, **HALF)
    for ours, theirs in zip([x, *layer.parameters()], [wide, *twin.parameters()], strict=True):
        assert ours.grad.dtype == torch.float32
        assert float((ours.grad.double() - theirs.grad).norm() / theirs.grad.norm()) < 0.03


def test_float16_with_a_grad_scaler(device):
    layer = Layer(device, torch.float32)
    layer.solve = lambda f, z0: nsd.fixed_point(f, z0.float()).value
    twin, x = reference(layer), samples(device=device, dtype=torch.float32)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**12)
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (layer, twin))
    with torch.autocast(device, dtype=torch.float16):
        value = loss(layer(x).float())
    scaler.scale(value).backward()
    scaler.unscale_(ours)
    loss(twin(x.double())).backward()
    for a, b in zip(layer.parameters(), twin.parameters(), strict=True):
        assert float((a.grad.double() - b.grad).norm() / b.grad.norm()) < 0.01
    scaler.step(ours)
    scaler.update()
    theirs.step()
    assert scaler.get_scale() == 2.0**12  # nothing overflowed
    assert_close(list(layer.parameters()), list(twin.parameters()), rtol=0.01, atol=0.01)


# Distributed data parallel


def test_distributed_alone(tmp_path):
    distributed(0, 1, tmp_path / "store", ({}, {"static_graph": True}, {"find_unused_parameters": True}))


@pytest.mark.slow
def test_distributed_over_two_processes(tmp_path, monkeypatch):
    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", "1")
    both = torch.multiprocessing.spawn(distributed, (2, tmp_path / "store"), nprocs=2, join=False)
    end = time.monotonic() + 120.0
    while not both.join(timeout=1.0):
        if time.monotonic() > end:
            for process in both.processes:
                process.kill()
            pytest.fail("The two processes did not end within two minutes.")


# Checkpointed activations


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_around(use_reentrant, device):
    layer = Layer(device)
    run = lambda x: checkpoint(layer, x, use_reentrant=use_reentrant)  # noqa: E731
    assert_same_module(layer, layer, samples(device=device), run)


def test_checkpoint_inside(device):
    linear, x = contracting(device=device), samples(device=device)
    f = lambda z: checkpoint(lambda z: torch.tanh(linear(z) + x), z, use_reentrant=False)  # noqa: E731
    assert_same_map(f, torch.zeros_like(x), [x, *linear.parameters()], second=False)


@pytest.mark.filterwarnings("ignore:None of the inputs")
def test_reentrant_checkpoint_inside_is_refused_by_torch(device):
    linear, x = contracting(device=device), samples(device=device)
    f = lambda z: checkpoint(lambda z: torch.tanh(linear(z) + x), z, use_reentrant=True)  # noqa: E731
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        solved(f, torch.zeros_like(x)).sum().backward()


def test_saved_tensor_hooks_around(device):
    layer = Layer(device)

    def run(x):
        with torch.autograd.graph.save_on_cpu():
            return layer(x)

    assert_same_module(layer, layer, samples(device=device), run)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomaly_detection(device):
    with torch.autograd.detect_anomaly(check_nan=True):
        assert_same_module(layer := Layer(device), layer, samples(device=device))


# torch.func, copies, threads, modes


def test_torch_func(device):
    layer, x = Layer(device), samples(device=device)
    twin = reference(layer)
    rows = vmap(grad(lambda row: loss(layer(row[None]))))(x.detach())
    assert_close(rows, derivatives(twin(x), [x])[0])
    assert_close(jacrev(layer)(x.detach()), torch.autograd.functional.jacobian(twin, x))


def test_functional_call_around(device):
    """The parameters are back in their places when the backward pass evaluates f."""
    layer, x = Layer(device), samples(device=device)
    parameters = {name: 0.9 * p.detach() for name, p in layer.named_parameters()}
    found, wanted = (
        grad(lambda parameters, module=module: loss(functional_call(module, parameters, (x,))))(parameters)
        for module in (layer, reference(layer))
    )
    assert_close(found, wanted)


@pytest.mark.parametrize("frozen", [False, True])
def test_functional_call_around_by_autograd(frozen, device):
    layer, x = Layer(device), samples(device=device)
    layer.requires_grad_(not frozen)
    parameters = {name: (0.9 * p.detach()).requires_grad_() for name, p in layer.named_parameters()}
    found, wanted = (functional_call(module, parameters, (x,)) for module in (layer, reference(layer)))
    assert_same(found, list(parameters.values()), wanted, list(parameters.values()))


@pytest.mark.parametrize("gradient", [False, True])
def test_an_ensemble_of_modules(gradient, device):
    layers, x = [Layer(device, seed=seed) for seed in range(3)], samples(device=device, requires_grad=False)
    parameters, _ = stack_module_state(layers)
    value = lambda p: functional_call(layers[0], p, (x,))  # noqa: E731
    twins = [reference(layer) for layer in layers]
    if not gradient:
        assert_close(vmap(value)(parameters), torch.stack([twin(x) for twin in twins]))
        return
    found = vmap(grad(lambda p: loss(value(p))))(parameters)
    wanted = [derivatives(twin(x), list(twin.parameters())) for twin in twins]
    assert_close(list(found.values()), [torch.stack(part) for part in zip(*wanted, strict=True)])


def test_copies_and_state_dicts(device):
    layer, other = Layer(device), Layer(device, seed=5)
    layer(samples(device=device)).sum().backward()  # what a pass leaves behind is no obstacle
    other.load_state_dict(layer.state_dict())
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), other):
        twin.zero_grad()
        assert_same_module(twin, twin, samples(device=device))
        assert_close(twin(samples(device=device)), layer(samples(device=device)))


def test_two_threads_at_once(device):
    layers = [Layer(device, seed=seed) for seed in range(2)]

    def work(k):
        shared = 0
        for _ in range(4):
            layer = copy.deepcopy(layers[k])
            assert_same_module(layer, layer, samples(seed=k, device=device))
            shared = shared + derivatives(layers[0](samples(seed=k, device=device)), [layers[0].inner.weight])[0]
        return shared / 4

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(work, range(2)))
    twin = reference(layers[0])
    for k, gradient in enumerate(found):
        assert_close(gradient, derivatives(twin(samples(seed=k, device=device)), [twin.inner.weight])[0])


def test_the_compiler_is_on_again_after_two_threads():
    """A solve turns it off while it looks into f. Here the second thread looks before the first is done, and on after it."""
    torch.compiler.reset()  # imports it
    second_is_in, first_is_done = threading.Event(), threading.Event()

    def waiting(mine, other, x):
        def f(z):
            mine.set()
            assert other.wait(60)
            return 0.5 * torch.tanh(z) + x

        return f

    def first():
        nsd.fixed_point(waiting(threading.Event(), second_is_in, samples()), torch.zeros(4, 5).double())
        first_is_done.set()

    def second():
        nsd.fixed_point(waiting(second_is_in, first_is_done, samples()), torch.zeros(4, 5).double())

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(first), pool.submit(second)]:
            done.result()
    graphs = []
    torch.compile(lambda x: x + 1.0, backend=lambda graph, _: graphs.append(graph) or graph)(torch.zeros(1))
    assert graphs


def test_inference_mode(device):
    layer, x = Layer(device), samples(device=device)
    with torch.inference_mode():
        found = layer(x)
    assert found.is_inference()
    assert_close(found, reference(layer)(x))


def test_a_constant_made_in_inference_mode(device):
    linear = contracting(device=device)
    with torch.inference_mode():
        x = samples(device=device, requires_grad=False)
    f = lambda z: torch.tanh(linear(z) + x)  # noqa: E731
    assert_same_map(f, torch.zeros(4, 5, dtype=torch.float64, device=device), list(linear.parameters()))


def test_under_a_default_device(device):
    with torch.device(device):
        assert_same_module(layer := Layer(device), layer, samples(device=device))
