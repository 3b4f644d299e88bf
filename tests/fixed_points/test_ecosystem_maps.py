"""Layers that f may be made of: more lines of the table in the docs."""

import pytest
import torch
from torch.nn.utils import parametrizations, parametrize

import notsodeep as nsd

from .plain import (
    WIDTH,
    Layer,
    assert_close,
    assert_same,
    assert_same_map,
    assert_same_module,
    contracting,
    derivatives,
    loss,
    reference,
    samples,
)

# Layers inside f


def layers():
    attention = torch.nn.MultiheadAttention(4, 2, batch_first=True)
    return {
        "layer norm": (torch.nn.LayerNorm(4), (3, 4)),
        "group norm": (torch.nn.GroupNorm(2, 4), (3, 4, 5)),
        "convolution": (torch.nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), (3, 2, 4, 4)),
        "attention": (attention, (3, 5, 4)),
        "transformer": (torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), (3, 5, 4)),
        "recurrent cell": (torch.nn.GRUCell(4, 4), (3, 4)),
    }


@pytest.mark.parametrize("name", layers())
def test_usual_layers(name, device):
    torch.manual_seed(0)
    module, shape = layers()[name]
    module.to(device, torch.float64)
    x = torch.randn(shape, dtype=torch.float64).to(device).requires_grad_()
    call = {"attention": lambda z: module(z, z, z)[0], "recurrent cell": lambda z: module(x, z)}.get(name, module)
    f = lambda z: torch.tanh(0.2 * call(z) + x)  # noqa: E731
    second = name != "transformer"  # torch has no second derivative of its fast attention
    assert_same_map(f, torch.zeros_like(x), [x, *module.parameters()], second)


# Parametrizations


def normed(kind, device, dtype=torch.float64):
    linear = torch.nn.Linear(WIDTH, WIDTH, dtype=dtype, device=device)
    with torch.no_grad():
        linear.weight.copy_(contracting(device=device).weight).add_(torch.eye(WIDTH, dtype=dtype, device=device))
    torch.manual_seed(0)
    make = {
        "spectral": parametrizations.spectral_norm,
        "old spectral": torch.nn.utils.spectral_norm,
        "weight": parametrizations.weight_norm,
        "old weight": torch.nn.utils.weight_norm,
    }[kind]
    return make(linear)


class Normed(Layer):
    """z = tanh(½ N(z) + u), N normed: in training mode spectral norms take a step of the power iteration at every use."""

    def __init__(self, kind, device, warm=200):
        super().__init__(device)
        self.inner = normed(kind, device)
        with torch.no_grad():
            for _ in range(warm):  # so that f is the same function every time, to rounding
                self.inner(samples(device=device))

    def step(self, z, u):
        return torch.tanh(0.5 * self.inner(z) + u)


NORMS = ["spectral", "old spectral", "weight", "old weight"]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", NORMS)
def test_normed_weights(kind, training, device):
    layer = Normed(kind, device).train(training)
    assert_same_module(layer, layer, samples(device=device))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", NORMS)
def test_normed_weights_used_twice_before_a_backward_pass(kind, device):
    layer = Normed(kind, device)
    assert_same_module(layer, layer, samples(device=device), lambda x: 0.5 * (layer(x) + layer(x)))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["spectral", "weight"])
def test_normed_weights_cached(kind, device):
    """The weight is made once for the whole solve."""
    layer = Normed(kind, device)

    def run(x):
        with parametrize.cached():
            return layer(x)

    assert_same_module(layer, layer, samples(device=device), run)


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("kind", ["spectral", "weight"])
def test_normed_weights_cached_and_used_outside_of_f_too(where, kind, device):
    layer, x = Normed(kind, device), samples(device=device)
    twin = reference(layer)

    def run(module):
        with parametrize.cached():
            return module(module.inner(x)) if where == "before" else module.inner(module(x))

    assert_same(run(layer), [x, *layer.parameters()], run(twin), [x, *twin.parameters()])


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_second_derivatives_with_normed_weights(kind, device):
    layer, x = Normed(kind, device).eval(), samples(device=device)
    twin = reference(layer)
    assert_same(layer(x), [x, *layer.parameters()], twin(x), [x, *twin.parameters()], second=True)


def test_a_spectral_norm_that_is_not_there_yet(device):
    """At the start of training the power iteration runs along with the solver's, and its last state is the one that counts."""
    layer, x = Normed("spectral", device, warm=0), samples(device=device)
    found = layer(x)
    gradient = derivatives(found, [x])[0]
    twin = reference(layer).eval()  # the vectors as the solve has left them
    assert_close(found, twin(x), rtol=1e-3, atol=1e-4)
    assert_close(gradient, derivatives(twin(x), [x])[0], rtol=1e-2, atol=1e-3)


# Batch norm, dropout, statistics


class Batched(Layer):
    def __init__(self, device):
        super().__init__(device)
        self.norm = torch.nn.BatchNorm1d(WIDTH, dtype=torch.float64, device=device)
        with torch.no_grad():
            self.norm.weight.fill_(0.4)

    def step(self, z, u):
        return torch.tanh(0.3 * self.norm(self.inner(z) + u) + 0.5 * u)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(training, device):
    layer = Batched(device)
    layer.norm.running_mean.fill_(0.3)
    layer.train(training)
    assert_same_module(layer, layer, samples(8, device=device))


def test_batch_norm_used_twice_before_a_backward_pass(device):
    layer = Batched(device)
    assert_same_module(layer, layer, samples(8, device=device), lambda x: 0.5 * (layer(x) + layer(x)))


def test_running_statistics_count_evaluations(device):
    """Each evaluation of f moves them, those that look for rows that depend on each other among them."""
    layer, x = Batched(device), samples(8, device=device)
    u = layer.inject(x)
    found = nsd.fixed_point(lambda z: layer.step(z, u), torch.zeros_like(u), nsd.Picard(), tol=1e-12)
    assert found.coupled
    assert int(layer.norm.num_batches_tracked) == found.evaluations
    loss(found.value).backward()
    assert int(layer.norm.num_batches_tracked) == found.evaluations  # the backward pass follows a graph
    wanted = (layer.inner(found.value) + u).mean(0)
    assert_close(layer.norm.running_mean, wanted, rtol=0.2, atol=0.05)  # of the last iterates, for the most part


def test_second_derivatives_with_batch_norm(device):
    layer = Batched(device).eval()
    twin, x = reference(layer), samples(8, device=device)
    assert_same(layer(x), [x, *layer.parameters()], twin(x), [x, *twin.parameters()], second=True)
    with pytest.raises(RuntimeError, match="in-place operation"):  # torch.func refuses to change the statistics
        derivatives(layer.train()(x), [x, *layer.parameters()], second=True)


def test_dropout_with_one_mask_a_call(device):
    linear, x = contracting(device=device), samples(device=device)
    mask = torch.nn.functional.dropout(torch.ones_like(x), 0.3)
    f = lambda z: torch.tanh(linear(0.5 * mask * z) + x)  # noqa: E731
    assert_same_map(f, torch.zeros_like(x), [x, *linear.parameters()])


def test_dropout_drawn_in_f_stalls(device):
    linear, x = contracting(device=device), samples(device=device)
    f = lambda z: torch.tanh(linear(torch.nn.functional.dropout(z, 0.3)) + x)  # noqa: E731
    torch.manual_seed(0)
    with pytest.raises(nsd.NotConverged, match="see that f is deterministic") as error:
        nsd.fixed_point(f, torch.zeros_like(x))
    assert error.value.reason is nsd.fixed_points.Reason.stalled


class Averaging(Layer):
    """Keeps a moving average of its states, a new tensor at every call."""

    def __init__(self, device, used):
        super().__init__(device)
        self.register_buffer("mean", torch.zeros(WIDTH, dtype=torch.float64, device=device))
        self.used = used

    def step(self, z, u):
        self.mean = 0.5 * self.mean + 0.5 * z.detach().mean(0)
        return torch.tanh(self.inner(z) + u - 0.3 * self.used * self.mean)


def test_a_moving_average_beside_f(device):
    layer = Averaging(device, used=False)
    assert_same_module(layer, layer, samples(device=device))


def test_a_moving_average_in_f(device):
    """No function of z alone any more; at the end it is, of the last average, which has no gradient."""
    layer, x = Averaging(device, used=True), samples(device=device)
    found = layer(x)
    gradients = derivatives(found, [x, *layer.parameters()])
    twin = reference(layer)
    frozen = twin.mean.clone()
    twin.step = lambda z, u: torch.tanh(twin.inner(z) + u - 0.3 * frozen)
    wanted = twin(x)
    assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert_close(gradients, derivatives(wanted, [x, *twin.parameters()]), rtol=1e-3, atol=1e-4)
