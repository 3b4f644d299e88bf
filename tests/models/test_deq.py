"""DEQ and ENN as ordinary torch modules."""

import copy
import gc
import math
import os
import pickle
import subprocess
import sys
import weakref

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, stack_module_state, vmap

import notsodeep as nsd
from notsodeep.fixed_points.plan import Plan

P, M, K = 12, 40, 3


def data(n=7, dtype=torch.float64, seed=0):
    return torch.randn(n, P, generator=torch.Generator().manual_seed(seed), dtype=dtype) / math.sqrt(P)


def deq(name="relu", out_features=K, dtype=torch.float64, width=M, seed=1, var_a=0.2, **options):
    net = nsd.Implicit(name, var_a)
    return nsd.DEQ(net, P, width, out_features, dtype=dtype, generator=torch.Generator().manual_seed(seed), **options)


def enn(dtype=torch.float64, **options):
    return nsd.ENN(nsd.Explicit(["relu", "tanh"]), P, M, K, dtype=dtype, generator=torch.Generator().manual_seed(1), **options)


MODULES = {
    "tanh": lambda **o: deq("tanh", **o),
    "relu": lambda **o: deq("relu", **o),
    "bias": lambda **o: deq("elu", bias=True, readout_bias=True, **o),
    "learned": lambda **o: deq("tanh", learn_variances=True, **o),
    "spectral": lambda **o: deq("relu", well_posed="spectral", **o),
    "monotone": lambda **o: deq("tanh", well_posed="monotone", **o),
    "enn": lambda **o: enn(**o),
    "enn with bias": lambda **o: enn(bias=True, readout_bias=True, **o),
}


def test_the_features_are_the_equilibrium_of_the_paper():
    # z* = φ(h*)/√m, h* = σ_a A z* + σ_b B x, φ centred at τ* of τ0 = 1: spelt out, from the module's weights.
    module, x = deq("relu"), data()
    z = module.features(x)
    phi = nsd.Implicit("relu", 0.2).centred(1.0).phi
    h = math.sqrt(0.2) * z @ module.A.T + math.sqrt(0.8) * x @ module.B.T
    torch.testing.assert_close(z, phi(h) / math.sqrt(M), rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(module(x), z @ module.readout.weight.T)
    assert float(phi(torch.zeros((), dtype=torch.float64))) == pytest.approx(-0.3696464, abs=1e-7)


def test_the_explicit_network_is_that_of_the_paper():
    module, x = enn(), data()
    hidden = torch.relu(x @ module.weights[0].T) / math.sqrt(M)
    torch.testing.assert_close(module.features(x), torch.tanh(hidden @ module.weights[1].T) / math.sqrt(M))


def test_wide_networks_have_the_infinite_networks_deviation():
    net = nsd.Implicit("tanh", 0.2)
    module = nsd.DEQ(net, P, 4096, dtype=torch.float32, generator=torch.Generator().manual_seed(0))
    x = torch.nn.functional.normalize(data(4, torch.float32))
    norms = module.features(x).detach().square().sum(1)
    assert norms.mean().item() == pytest.approx(0.36992464, rel=0.03)  # γ² of the known values


@pytest.mark.parametrize("name", MODULES)
def test_gradients_are_exact(name):
    module, x = MODULES[name](), data(4).requires_grad_()
    if name != "enn" and name != "enn with bias":
        module.plan = Plan(tol=1e-13)
        module.adjoint = nsd.ImplicitAdjoint(tol=1e-13)
    assert torch.autograd.gradcheck(module, (x,))
    parameters = {key: p.detach()[:2].clone().requires_grad_() for key, p in module.named_parameters() if p.ndim == 2}
    rest = {key: p.detach() for key, p in module.named_parameters()}

    def of_weights(*rows):
        merged = {key: torch.cat([r, rest[key][2:]]) for key, r in zip(parameters, rows, strict=True)}
        return functional_call(module, {**rest, **merged}, (x.detach(),))

    assert torch.autograd.gradcheck(of_weights, tuple(parameters.values()))


def test_learned_variances_have_gradients():
    module, x = deq("tanh", learn_variances=True), data()
    module(x).square().sum().backward()
    wanted = []
    for k in range(2):
        values = []
        for step in (1e-6, -1e-6):
            moved = copy.deepcopy(module)
            with torch.no_grad():
                moved.log_variances[k] += step
                values.append(float(moved(x).square().sum()))
        wanted.append((values[0] - values[1]) / 2e-6)
    torch.testing.assert_close(module.log_variances.grad, torch.tensor(wanted, dtype=torch.float64), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", MODULES)
def test_state_dict_deepcopy_and_dtype(name, tmp_path):
    module, x = MODULES[name](), data()
    wanted = module(x)
    other = MODULES[name](seed=9) if not name.startswith("enn") else MODULES[name]()
    torch.save(module.state_dict(), tmp_path / "weights.pt")
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    torch.testing.assert_close(other(x), wanted, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(copy.deepcopy(module)(x), wanted)
    single = copy.deepcopy(module).to(torch.float32)
    torch.testing.assert_close(single(x.float()).double(), wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", MODULES)
def test_torch_func(name):
    module, x = MODULES[name](), data(5)
    torch.testing.assert_close(vmap(module)(x), module(x), rtol=1e-8, atol=1e-9)
    by_row = vmap(jacrev(module))(x)
    assert by_row.shape == (5, K, P)
    torch.testing.assert_close(by_row[0], torch.autograd.functional.jacobian(module, x[:1])[0, :, 0], rtol=1e-7, atol=1e-8)
    forwards = jacfwd(module)(x[0])
    torch.testing.assert_close(forwards, by_row[0], rtol=1e-7, atol=1e-8)
    energy = lambda row: module(row).square().sum()  # noqa: E731
    torch.testing.assert_close(hessian(energy)(x[0]), jacrev(jacrev(energy))(x[0]), rtol=1e-6, atol=1e-7)
    weights = dict(module.named_parameters())
    gradients = grad(lambda w: functional_call(module, w, (x,)).square().sum())(weights)
    module(x).square().sum().backward()
    for key, parameter in module.named_parameters():
        torch.testing.assert_close(gradients[key], parameter.grad, rtol=1e-6, atol=1e-8)


def test_ensembles():
    members, x = [deq("tanh", seed=s) for s in range(3)], data()
    weights, buffers = stack_module_state(members)
    together = vmap(lambda w, b: functional_call(members[0], (w, b), (x,)))(weights, buffers)
    torch.testing.assert_close(together, torch.stack([m(x) for m in members]), rtol=1e-8, atol=1e-9)


def test_an_exported_network_that_does_not_converge_says_nan():
    wild = wild_deq()
    exported = torch.export.export(wild, (data(),)).module()(data())
    assert bool(exported.isnan().all())


def test_baking_a_parametrization_in():
    module, x = deq("relu", well_posed="spectral"), data()
    wanted = module(x)
    torch.nn.utils.parametrize.remove_parametrizations(module, "A")
    plain = deq("relu", seed=5)
    plain.load_state_dict(module.state_dict())
    torch.testing.assert_close(plain(x), wanted)
    pickle.loads(pickle.dumps(module))


@pytest.mark.parametrize("name", ["tanh", "relu", "bias", "learned", "spectral", "monotone", "enn"])
def test_export(name):
    module, x = MODULES[name](), data()
    program = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("n")},))
    for n in (2, 7, 31):
        torch.testing.assert_close(program.module()(data(n)), module(data(n)), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["relu", "enn"])
def test_inside_a_compiled_network(name):
    torch.manual_seed(0)
    network, x = nn.Sequential(nn.Linear(P, P, dtype=torch.float64), MODULES[name](), nn.Tanh()), data()
    network(x).sum().backward()
    wanted = [p.grad.clone() for p in network.parameters()]
    network.zero_grad()
    torch.compile(network, backend="aot_eager")(x).sum().backward()
    for parameter, gradient in zip(network.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_hooks_are_called():
    module, calls = deq(), []
    module.register_forward_hook(lambda *_: calls.append("forward"))
    module.register_full_backward_hook(lambda *_: calls.append("backward"))
    module(data().requires_grad_()).sum().backward()
    assert calls == ["forward", "backward"]


def test_autocast_solves_in_full_precision_and_reads_out_in_less():
    module, x = deq(dtype=torch.float32), data(dtype=torch.float32)
    wanted = module(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(module.features(x), module.features(x.bfloat16()), rtol=0.02, atol=0.01)
        out = module(x)
        assert module.features(x).dtype == torch.float32
        assert out.dtype == torch.bfloat16
        out.float().square().sum().backward()
    torch.testing.assert_close(out.float(), wanted, rtol=0.02, atol=0.02)
    reference = copy.deepcopy(module)
    reference.zero_grad()
    reference(x).square().sum().backward()
    assert float((module.A.grad - reference.A.grad).norm() / reference.A.grad.norm()) < 0.03


def test_in_a_distributed_wrapper(tmp_path):
    # Two processes on one half of the batch each: the averaged gradient is that of the whole.
    script = tmp_path / "worker.py"
    script.write_text(
        "import math, sys, torch, notsodeep as nsd\n"
        "import torch.distributed as dist\n"
        "rank, store = int(sys.argv[1]), sys.argv[2]\n"
        "dist.init_process_group('gloo', init_method='file://' + store, rank=rank, world_size=2)\n"
        "seed = lambda: torch.Generator().manual_seed(0)\n"
        "make = lambda: nsd.DEQ(nsd.Implicit('relu', 0.2), 6, 20, 2, dtype=torch.float64, generator=seed())\n"
        "x = torch.randn(8, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)\n"
        "wrapped, plain = torch.nn.parallel.DistributedDataParallel(make()), make()\n"
        "wrapped(x[rank::2]).square().mean().backward()\n"
        "plain(x).square().mean().backward()\n"
        "for a, b in zip(wrapped.parameters(), plain.parameters()):\n"
        "    torch.testing.assert_close(a.grad, b.grad, rtol=1e-6, atol=1e-9)\n"
        "dist.destroy_process_group()\n"
        "print('same')\n"
    )
    command = [sys.executable, str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    workers = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for rank in (0, 1)
    ]
    for worker in workers:
        out, err = worker.communicate(timeout=240)
        assert b"same" in out, err.decode()[-2000:]


def test_frozen_weights_stay():
    module, x = deq(frozen=("A", "B")), data()
    before = module.A.clone()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    module(x).square().sum().backward()
    optimiser.step()
    assert torch.equal(before, module.A)
    assert module.changed() == {"readout"}
    assert [name for name, p in module.named_parameters() if p.requires_grad] == ["readout.weight"]
    assert not enn(frozen=("hidden",)).weights[0].requires_grad


def test_made_where_the_context_says():
    with torch.device("meta"):
        module = nsd.DEQ(nsd.Implicit("relu", 0.2), P, M, K)
        assert nsd.ENN(nsd.Explicit("relu"), P, M).weights[0].is_meta
    assert module.A.is_meta
    module.to_empty(device="cpu").load_state_dict(deq(dtype=torch.float32).state_dict())
    torch.testing.assert_close(module(data().float()), deq(dtype=torch.float32)(data().float()))


def test_what_was_trained_is_known():
    module = deq()
    assert module.changed() == frozenset()
    assert copy.deepcopy(module).float().bfloat16().changed() == frozenset()
    with torch.no_grad():
        module.B.mul_(1.001)
    assert module.changed() == {"B"}


def test_graphs_are_freed():
    module, x = deq(), data().requires_grad_()
    gc.collect()
    gc.disable()
    try:
        for create_graph in (False, True):
            out = module(x)
            (gradient,) = torch.autograd.grad(out.square().sum(), x, create_graph=create_graph)
            dead = [weakref.ref(t) for t in (out, gradient, module.solve(x).value)]
            del out, gradient
            assert all(ref() is None for ref in dead)
    finally:
        gc.enable()


def test_the_same_generator_gives_the_same_network():
    assert torch.equal(deq(seed=3).A, deq(seed=3).A)
    assert not torch.equal(deq(seed=3).A, deq(seed=4).A)


def test_inputs_of_any_leading_shape():
    module, x = deq(), data(6)
    torch.testing.assert_close(module(x.reshape(2, 3, P)), module(x).reshape(2, 3, K))
    torch.testing.assert_close(module(x[0]), module(x)[0], rtol=1e-8, atol=1e-9)
    assert module(x[:0]).shape == (0, K)
    with pytest.raises(nsd.BadInput, match="no sample"):
        module.solve(x[:0])
    assert enn()(x[:0]).shape == (0, K)


@pytest.mark.parametrize("build", [deq, enn])
def test_inputs_that_do_not_fit_say_both_sides(build):
    module = build(dtype=torch.float32)
    with pytest.raises(nsd.BadInput, match=r"\(5, 7\).*in_features = 12"):
        module(torch.zeros(5, 7))
    with pytest.raises(nsd.BadInput, match=r"float64.*float32"):
        module(torch.zeros(5, P, dtype=torch.float64))
    with pytest.raises(nsd.BadInput, match="int64"):
        module(torch.zeros(5, P, dtype=torch.long))
    with pytest.raises(nsd.BadInput, match="ndarray"):
        module(torch.zeros(5, P).numpy())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"frozen": ("C",)}, "'C'"),
        ({"frozen": 3}, "names"),
        ({"well_posed": "always"}, "spectral"),
        ({"width": 0}, "width"),
        ({"width": 2.5}, "width"),
        ({"out_features": None, "readout_bias": True}, "out_features"),
        ({"adjoint": "exact"}, "adjoint"),
        ({"tau0": -1.0}, "tau0"),
        ({"learn_variances": True, "well_posed": "spectral"}, "learn_variances"),
        ({"name": "sin", "well_posed": "monotone"}, "non-decreasing"),
        ({"name": "sign", "well_posed": "spectral"}, "Lipschitz"),
    ],
)
def test_options_are_checked(options, says):
    with pytest.raises(nsd.BadInput, match=says):
        deq(**options)


def test_unknown_options_are_errors():
    with pytest.raises(TypeError, match="ift"):
        deq(ift=True)
    with pytest.raises(nsd.BadInput, match="Explicit"):
        nsd.DEQ(nsd.Explicit("relu"), P, M)
    with pytest.raises(nsd.BadInput, match="Implicit"):
        nsd.ENN(nsd.Implicit("relu", 0.2), P, M)
    with pytest.raises(nsd.BadInput, match="2 entries"):
        nsd.ENN(nsd.Explicit(["relu"]), P, (3, 4))


def wild_deq(**options):
    module = deq("relu", solver=nsd.Picard(), **options)
    with torch.no_grad():
        module.A.mul_(20.0)
    return module


def test_divergence_is_an_error_or_a_status_never_a_silent_nan():
    wild = wild_deq()
    with pytest.raises(nsd.NotConverged, match="well_posed"):
        wild(data())
    lenient = wild_deq(throw=False)
    found = lenient.solve(data())
    assert found.reason is nsd.fixed_points.Reason.diverged
    assert bool(torch.isfinite(lenient(data())).all())
    x = data()
    x[2, 3] = torch.nan
    with pytest.raises(nsd.NotConverged, match="sample 2"):
        deq()(x)


@pytest.mark.parametrize("learned", [False, True])
def test_training_goes_on_past_a_sample_that_fails(learned):
    module = deq("relu", throw=False, bias=True, learn_variances=learned)
    x = data()
    x[2] = torch.nan
    found = module.solve(x)
    assert found.converged.logical_not().nonzero().flatten().tolist() == [2]
    good = torch.arange(len(x)) != 2
    module(x)[good].square().sum().backward()
    wanted = copy.deepcopy(module)
    wanted.zero_grad()
    wanted(x[good]).square().sum().backward()
    for name, parameter in module.named_parameters():
        if name == "B" or name == "log_variances":  # 0 · NaN, as in any linear layer
            continue
        torch.testing.assert_close(parameter.grad, dict(wanted.named_parameters())[name].grad, rtol=1e-6, atol=1e-8)


def test_repr_and_flops():
    module = deq(out_features=None, width=8)
    assert "Implicit(relu, var_a=0.2" in repr(module)
    assert "Anderson" in repr(module)
    assert module.flops(10) == 2 * (8 * P + 10 * 64)
    assert enn().flops() == 2 * (M * P + M * M + K * M)
