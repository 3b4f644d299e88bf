"""Feed-forward networks as DEQs, and back."""

import pytest
import torch
from torch import nn

import notsodeep as nsd
from notsodeep.activations import Mixed


def draw(n=9, p=5, dtype=torch.float64):
    return torch.randn(n, p, generator=torch.Generator().manual_seed(0), dtype=dtype)


NETWORKS = {
    "one layer": lambda: nn.Sequential(nn.Linear(5, 3)),
    "relu": lambda: nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)),
    "no bias": lambda: nn.Sequential(nn.Linear(5, 7, bias=False), nn.Tanh(), nn.Linear(7, 3, bias=False), nn.Tanh()),
    "deep": lambda: nn.Sequential(*[m for _ in range(12) for m in (nn.Linear(5, 5), nn.SiLU())]),
    "nested": lambda: nn.Sequential(nn.Sequential(nn.Linear(5, 4), nn.ELU()), nn.Sequential(nn.Identity(), nn.Linear(4, 2))),
    "linear twice": lambda: nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 6), nn.GELU(), nn.Dropout(0.5), nn.Hardtanh()),
    "activation first": lambda: nn.Sequential(nn.Softplus(), nn.Linear(5, 4), nn.LeakyReLU(0.2), nn.Sigmoid()),
    "in place": lambda: nn.Sequential(
        nn.Linear(5, 7), nn.ReLU(inplace=True), nn.Linear(7, 4), nn.Hardtanh(-0.5, 0.5, inplace=True)
    ),
    "large weights": lambda: nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 7), nn.ReLU(), nn.Linear(7, 3)),
}


def build(name, dtype=torch.float64):
    torch.manual_seed(0)
    network = NETWORKS[name]().to(dtype).eval()
    if name == "large weights":
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.mul_(100.0)
    return network


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_fixed_point_is_the_networks_output(name, dtype):
    network, x = build(name, dtype), draw(dtype=dtype)
    deq = nsd.models.to_deq(network)
    wanted = network(x)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(deq(x), wanted, rtol=50 * eps, atol=50 * eps * float(wanted.detach().abs().max()))
    assert isinstance(deq, nsd.DEQ)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_weights_are_block_nilpotent(name):
    deq = nsd.models.to_deq(build(name))
    power = deq.A.detach()
    for _ in deq.net.layers[1:]:
        power = power @ deq.A.detach()
    assert float(power.abs().max()) == 0.0
    assert deq.solve(draw()).evaluations == 1  # the sweeps leave nothing to solve


@pytest.mark.parametrize("name", NETWORKS)
def test_and_back(name):
    network, x = build(name), draw()
    back = nsd.models.to_explicit(nsd.models.to_deq(network))
    torch.testing.assert_close(back(x), network(x), rtol=1e-13, atol=1e-13)


def test_back_gives_the_modules_people_know():
    kinds = [type(m) for m in nsd.models.to_explicit(nsd.models.to_deq(build("relu")))]
    assert kinds == [nn.Linear, nn.ReLU, nn.Linear]


@pytest.mark.parametrize("out_features", [None, 3])
@pytest.mark.parametrize("layers", [["relu", "tanh"], ["relu", Mixed(["tanh", "relu"])], [Mixed(["x", "gelu", "sin"]), "tanh"]])
def test_an_explicit_network_of_the_theory(layers, out_features):
    net = nsd.Explicit(layers, gains=(1.0, 0.5, 2.0)).centred(1.0)
    enn = nsd.ENN(net, 5, (8, 9), out_features, dtype=torch.float64, bias=True, readout_bias=out_features is not None)
    deq = nsd.models.to_deq(enn)
    for same in (deq, nsd.models.to_explicit(deq), nsd.models.to_deq(nsd.models.to_explicit(deq))):
        torch.testing.assert_close(same(draw()), enn(draw()), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_those_of_the_network(name, dtype):
    network, x, y = build(name, dtype), draw(dtype=dtype), draw(dtype=dtype).requires_grad_()
    x.requires_grad_()
    (wanted,) = torch.autograd.grad(network(x).square().sum(), x)
    (reached,) = torch.autograd.grad(nsd.models.to_deq(network)(y).square().sum(), y)
    assert float((reached - wanted).norm() / wanted.norm()) < 1e3 * torch.finfo(dtype).eps


def test_a_deep_network_of_large_weights():
    torch.manual_seed(0)
    network = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(32, 32), nn.ReLU())]).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(100.0)
    torch.testing.assert_close(nsd.models.to_deq(network)(draw(p=32)), network(draw(p=32)), rtol=1e-12, atol=0.0)


def test_training_keeps_the_chain():
    network, x = build("relu"), draw()
    deq = nsd.models.to_deq(network)
    for module in (network, deq):
        optimiser = torch.optim.Adam(module.parameters(), lr=1e-2)
        for _ in range(20):
            optimiser.zero_grad()
            module(x).square().sum().backward()
            optimiser.step()
    torch.testing.assert_close(nsd.models.to_explicit(deq)(x), deq(x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(deq(x), network(x), rtol=1e-6, atol=1e-8)
    assert deq.solve(x).reason is nsd.fixed_points.Reason.converged


@pytest.mark.parametrize(
    ("network", "says"),
    [
        (nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7)), "Layer 1, BatchNorm1d"),
        (nn.Sequential(nn.Linear(5, 7), nn.Sequential(nn.ReLU(), nn.Softmax(dim=1))), "Layer 1.1, Softmax"),
        (nn.Sequential(nn.Conv2d(1, 2, 3)), "Layer 0, Conv2d"),
        (nn.Sequential(nn.Linear(5, 7), nn.Linear(6, 2)), "takes 6 features, the layer before it gives 7"),
        (nn.Sequential(nn.ReLU()), "no linear layer"),
        (nn.Sequential(), "no linear layer"),
        (nn.LSTM(3, 4), "LSTM"),
    ],
)
def test_what_cannot_be_expressed_is_named(network, says):
    with pytest.raises(nsd.BadInput, match=says):
        nsd.models.to_deq(network)


def test_only_what_to_deq_made_goes_back():
    with pytest.raises(nsd.BadInput, match="to_deq"):
        nsd.models.to_explicit(nsd.DEQ(nsd.Implicit("relu", 0.2), 5, 6))
