"""A few steps in the place of a fixed point."""

import copy
import dataclasses
import math

import pytest
import torch
from torch import nn

import notsodeep as nsd
from notsodeep.fixed_points import Activated, CircularConvolution, Dense, Operator
from notsodeep.fixed_points.stand_in import watching
from notsodeep.models.unrolled import Unrolled, linear_response, split_resolvent
from tests.fixed_points.test_splitting import matrix

WIDTH, FEATURES, OUTPUTS = 16, 5, 3
X = torch.randn(7, FEATURES, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def deq_of(**options):
    options = {"readout_bias": True, "dtype": torch.float64, "generator": torch.Generator().manual_seed(0)} | options
    deq = nsd.DEQ(nsd.Implicit("tanh", 0.2), FEATURES, WIDTH, OUTPUTS, **options)
    if deq.readout.bias is not None:
        nn.init.normal_(deq.readout.bias, generator=torch.Generator().manual_seed(2))
    return deq


def by_hand(deq, x, steps, damping=1.0):
    """The outputs of a DEQ after so many steps, in one's own words."""
    weight, u = deq.terms(x)
    s = torch.tanh(u)
    for _ in range(steps):
        s = (1.0 - damping) * s + damping * torch.tanh(s @ weight.T + u)
    return s / math.sqrt(WIDTH) @ deq.readout.weight.T + deq.readout.bias


class Own(nn.Module):
    """A fixed point of a state of two tensors, from another start than 0, and a head."""

    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.into, self.options = nn.Linear(FEATURES, 4), options

    def f(self, state, u):
        a, b = state
        return torch.tanh(0.4 * self.first(b) + u), torch.tanh(0.4 * self.second(a) - u)

    def forward(self, x):
        u = self.into(x)
        start = (torch.ones_like(u), torch.zeros_like(u))
        a, b = nsd.fixed_point(lambda state: self.f(state, u), start, **self.options).value
        return self.head(a + b)


def looked_into(model, x):
    with watching() as watch, torch.no_grad():
        model(x)
    return watch.solves[0]


def test_it_is_public():
    assert nsd.models.Unrolled is Unrolled


@pytest.mark.parametrize("steps", range(5))
def test_plain_steps_are_ones_own_loop(steps):
    deq = deq_of()
    torch.testing.assert_close(Unrolled(deq, steps)(X), by_hand(deq, X, steps))


def test_many_steps_are_the_deq():
    deq = deq_of()
    torch.testing.assert_close(Unrolled(deq, 60)(X), deq(X), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("damping", [1.0, 0.3])
def test_steps_of_a_module_of_ones_own(damping):
    model = Own().double()
    u = model.into(X)
    a, b = torch.ones_like(u), torch.zeros_like(u)
    for _ in range(3):
        new = model.f((a, b), u)
        a, b = ((1.0 - damping) * old + damping * image for old, image in zip((a, b), new, strict=True))
    torch.testing.assert_close(Unrolled(model, 3, damping)(X), model.head(a + b))
    torch.testing.assert_close(Unrolled(model, 80, damping)(X), model(X), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(
    ("options", "damping"),
    [({}, 1.0), ({"well_posed": "monotone"}, 0.3), ({"solver": nsd.Picard(damping=0.5)}, 0.5)],
    ids=["plain", "monotone", "damped"],
)
def test_steps_of_a_deq_are_damped_where_its_file_has_them_damped(options, damping, tmp_path):
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    deq, x = deq_of(**options).float(), X.float()
    out = Unrolled(deq, 3)(x)
    torch.testing.assert_close(out, by_hand(deq, x, 3, damping))
    file = deq.to_onnx(tmp_path / "steps.onnx", nsd.fixed_points.Steps(3), check=False)
    (written,) = runtime.InferenceSession(file).run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(written), out.detach(), rtol=1e-4, atol=1e-5)
    assert float((out - deq(x)).detach().abs().max()) > 1e-4


@pytest.mark.parametrize("damping", [1.0, 0.5])
@pytest.mark.parametrize("make", [lambda d: deq_of(solver=nsd.Picard(d)), lambda d: Own(solver=nsd.Picard(d)).double()])
def test_learnt_steps_begin_as_plain_ones(make, damping):
    model = make(damping)
    solved = looked_into(model, X)
    for steps in (0, 1, 4):
        learning = Unrolled.learning(copy.deepcopy(model), steps, solved)
        torch.testing.assert_close(learning(X), Unrolled(model, steps, damping)(X))
    assert {name for name, _ in learning.named_parameters()} > {"mixing", "shifts.0"}


def test_learnt_steps_mix_all_earlier_ones():
    """s_{k+1} = s_k + Σ_j c_kj (f(s_j) − s_j) from φ(u) + shift."""
    deq = deq_of()
    network = Unrolled.learning(deq, 3, looked_into(deq, X))
    with torch.no_grad():
        network.mixing.copy_(torch.randn(network.mixing.shape, generator=torch.Generator().manual_seed(3)))
        network.shifts[0].copy_(torch.randn(WIDTH, generator=torch.Generator().manual_seed(4)))
        c = network.mixing[0]
        weight, u = deq.terms(X)
        s = [torch.tanh(u) + network.shifts[0]]
        missed = []
        for k in range(3):
            missed.append(torch.tanh(s[k] @ weight.T + u) - s[k])
            s.append(s[k] + sum(c[k, j] * missed[j] for j in range(k + 1)))
        wanted = s[-1] / math.sqrt(WIDTH) @ deq.readout.weight.T + deq.readout.bias
        torch.testing.assert_close(network(X), wanted)


@pytest.mark.parametrize("damping", [1.0, 0.3])
def test_gradients_are_those_of_the_loop(damping):
    deq, twin = deq_of(), deq_of()
    Unrolled(deq, 3, damping)(X).square().sum().backward()
    by_hand(twin, X, 3, damping).square().sum().backward()
    for (name, ours), theirs in zip(deq.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, msg=name)


def test_learnt_numbers_get_exact_gradients():
    deq = deq_of()
    network = Unrolled.learning(deq, 2, looked_into(deq, X))
    weights = tuple(network.parameters())

    def loss(*values):
        named = dict(zip(dict(network.named_parameters()), values, strict=True))
        return torch.func.functional_call(network, named, (X,)).square().sum()

    assert torch.autograd.gradcheck(loss, weights, fast_mode=True)
    network(X).square().sum().backward()
    assert all(weight.grad is not None for weight in weights)
    assert float(network.mixing.grad.triu(1).abs().max()) == 0.0  # c_kj with j > k is used nowhere


@pytest.mark.parametrize(
    "wanted", [((9, 4), 1, (4,)), ((9, 6, 4), 1, (4,)), ((9, 3, 6, 4), 1, (3, 1, 1)), ((9, 4), 0, ())], ids=str
)
def test_a_learnt_start_has_one_number_per_feature_or_channel(wanted):
    """So it takes sequences and images of other sizes; and a state that is one sample is not known by heart."""
    shape, samples, of_shift = wanted
    start = torch.zeros(shape)

    class Cosine(nn.Module):
        def forward(self, x):
            return nsd.fixed_point(lambda z: 0.5 * torch.cos(z), x, samples=samples).value

    network = Unrolled.learning(Cosine(), 2, looked_into(Cosine(), start))
    assert network.shifts[0].shape == of_shift
    assert network(start).shape == shape
    if samples:
        other = torch.zeros(2, *(2 * length if axis > 1 else length for axis, length in enumerate(shape[1:], 1)))
        other = other if len(shape) != 3 else torch.zeros(2, 11, 4)
        assert network(other).shape == other.shape


class Linear(nn.Module):
    """z = φ(W z + U x), shown in its parts."""

    def __init__(self, weight, phi, into=None):
        super().__init__()
        self.weight, self.phi = nn.Parameter(weight), phi
        self.into = nn.Identity() if into is None else into

    def linear(self):
        return Dense(self.weight) if self.weight.ndim == 2 else CircularConvolution(self.weight)

    def forward(self, x):
        u = self.into(x)
        return nsd.fixed_point(Activated(self.phi, self.linear(), u), torch.zeros_like(u)).value


def responding(model, x, steps=0, **more):
    solved = looked_into(model, x)
    response = linear_response(solved)
    return Unrolled(model, steps, response=response, **more)


AFFINE = {"identity": lambda h: h, "affine": lambda h: 0.6 * h + 0.4}


@pytest.mark.parametrize("phi", AFFINE.values(), ids=AFFINE)
def test_the_linear_response_solves_an_affine_map(phi):
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(6, 6, generator=draw, dtype=torch.float64)
    weight = 0.7 * weight / torch.linalg.matrix_norm(weight, 2)
    x, others = torch.randn(2, 9, 6, generator=draw, dtype=torch.float64)
    model = Linear(weight, phi)
    network = responding(model, x)
    with torch.no_grad():
        torch.testing.assert_close(network(others), model(others), rtol=1e-8, atol=1e-8)
    assert float((Unrolled(model, 0)(others) - model(others)).detach().abs().max()) > 0.1  # the usual start is no solution


@pytest.mark.parametrize("phi", AFFINE.values(), ids=AFFINE)
@pytest.mark.parametrize("sizes", [(7,), (6,), (5, 7), (6, 4)], ids=str)
def test_the_linear_response_of_a_convolution_with_a_short_inverse(sizes, phi):
    """Channel 0 feeds channel 1 and nothing feeds back, so (I − W D)⁻¹ = I + W D is exact in a small window."""
    kernel = torch.zeros(2, 2, *(3 for _ in sizes), dtype=torch.float64)
    kernel[1, 0] = torch.randn(kernel.shape[2:], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x, others = torch.randn(2, 4, 2, *sizes, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    model = Linear(kernel, phi)
    network = responding(model, x)
    with torch.no_grad():
        torch.testing.assert_close(network(others), model(others), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("sizes", [(9,), (8,), (7, 5), (6, 8)], ids=str)
def test_the_impulse_response_of_a_convolution_is_that_of_the_dense_inverse(sizes):
    """Where it is not cut off, and nearly all of its power is left."""
    draw = torch.Generator().manual_seed(0)
    kernel = torch.randn(2, 2, *(3 for _ in sizes), generator=draw, dtype=torch.float64)
    kernel = 0.4 * kernel / kernel.abs().sum((1, *range(2, kernel.ndim))).max()
    x = torch.randn(4, 2, *sizes, generator=draw, dtype=torch.float64)
    response = linear_response(looked_into(Linear(kernel, lambda h: h), x))
    with torch.no_grad():
        ours = matrix(CircularConvolution(response.weight), (2, *sizes))
    count = 2 * math.prod(sizes)
    exact = torch.linalg.inv(torch.eye(count, dtype=torch.float64) - matrix(CircularConvolution(kernel), (2, *sizes)))
    inside = ours != 0.0
    torch.testing.assert_close(ours[inside], exact[inside], rtol=1e-8, atol=1e-10)
    assert float(exact[inside].square().sum()) >= 0.999 * float(exact.square().sum())
    assert not bool(inside.all())  # it was cut
    assert response.bias.abs().max().item() < 1e-12


def test_the_linear_response_of_a_deq_is_near_and_steps_from_it_are_nearer():
    deq = deq_of()
    network = responding(deq, X)
    with torch.no_grad():
        wanted = deq(X)
        errors = [float((network_of - wanted).norm()) for network_of in (Unrolled(deq, 0)(X), network(X))]
        weight, u = deq.terms(X)
        s = torch.tanh(network.response(u))
        later = []
        for steps in (1, 2):
            s = torch.tanh(s @ weight.T + u)
            out = Unrolled(deq, steps, response=network.response)(X)
            torch.testing.assert_close(out, s / math.sqrt(WIDTH) @ deq.readout.weight.T + deq.readout.bias)
            later.append(float((out - wanted).norm()))
    assert later[1] < later[0] < errors[1] < 0.7 * errors[0]


def expanding(sizes):
    """W whose plain steps run away, with I − W strongly monotone."""
    draw = torch.Generator().manual_seed(0)
    if sizes:  # −W is positive: a convolution with itself, mirrored
        kernel = torch.zeros(2, 2, *(3 for _ in sizes), dtype=torch.float64)
        kernel[0, 0].flatten()[:] = -0.6 / 3 ** len(sizes)
        middle = (..., *(1 for _ in sizes))
        kernel[middle] -= 2.0 * torch.eye(2, dtype=torch.float64)
        return kernel
    skew = torch.randn(6, 6, generator=draw, dtype=torch.float64)
    return 0.5 * torch.eye(6, dtype=torch.float64) + skew - skew.T


@pytest.mark.parametrize("sizes", [(), (7,), (5, 6)], ids=str)
def test_splitting_steps_come_to_the_equilibrium_where_plain_ones_do_not(sizes):
    weight = expanding(sizes)
    model = Linear(weight, torch.relu)
    x = torch.randn(5, *((6,) if not sizes else (2, *sizes)), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    with watching(lambda plan: dataclasses.replace(plan, solver=nsd.fixed_points.PeacemanRachford(), tol=1e-10)) as watch:
        wanted = model(x).detach()
    (solved,) = watch.solves
    resolvent = split_resolvent(solved)
    with torch.no_grad():
        many = Unrolled(model, 200, 1.0, resolvent=resolvent)(x)
        few = [float((Unrolled(model, k, 1.0, resolvent=resolvent)(x) - wanted).norm()) for k in (2, 8, 40)]
        plain = Unrolled(model, 40, 1.0)(x)
    # The filter of a convolution is cut where 99.9 % of its power is inside.
    close = {"rtol": 1e-6, "atol": 1e-6} if not sizes else {"rtol": 0.05, "atol": 0.05}
    torch.testing.assert_close(many, wanted, **close)
    assert few[0] > few[1] > few[2] or (sizes and few[0] > 2.0 * few[2])  # what the cut leaves out stays
    assert float((plain - wanted).norm()) > 1.0
    learnt = Unrolled.learning(model, 8, solved, None, resolvent)
    with torch.no_grad():
        torch.testing.assert_close(learnt(x), Unrolled(model, 8, 1.0, resolvent=resolvent)(x))


def test_where_no_linear_response_is_known():
    assert linear_response(looked_into(Own().double(), X)) is None

    class Functions(nn.Module):
        def forward(self, x):
            linear = Operator(lambda z: 0.5 * z, lambda z: 0.5 * z)
            return nsd.fixed_point(Activated(torch.tanh, linear, x), torch.zeros_like(x)).value

    assert linear_response(looked_into(Functions(), X)) is None


ONE = torch.eye(3, dtype=torch.float64)


@pytest.mark.parametrize("weight", [ONE, (1.0 + 1e-12) * ONE, ONE[:, :, None]], ids=["singular", "nearly", "convolution"])
def test_an_equation_whose_linear_part_has_no_inverse_has_no_linear_response(weight):
    model = Linear(weight, lambda h: h)
    x = torch.zeros(4, 3, dtype=torch.float64) if weight.ndim == 2 else torch.zeros(4, 3, 5, dtype=torch.float64)
    assert linear_response(looked_into(model, x)) is None


@pytest.mark.parametrize("steps", [-1, 1.5, True, "2"])
def test_the_number_of_steps_is_checked(steps):
    with pytest.raises(nsd.BadInput, match="steps"):
        Unrolled(deq_of(), steps)


class Images(nn.Module):
    """z = tanh(K ∗ z + x) with circular padding, and the mean over pixels."""

    def __init__(self):
        super().__init__()
        self.inner = Linear(0.1 * torch.randn(2, 2, 3, 3, generator=torch.Generator().manual_seed(0)), torch.tanh)

    def forward(self, x):
        return self.inner(x).mean((2, 3))


def networks():
    x, images = X.float(), torch.randn(6, 2, 4, 6, generator=torch.Generator().manual_seed(0))
    deq, monotone, own, shown = deq_of().float(), deq_of(well_posed="monotone").float(), Own(), Images()
    yield "a DEQ", Unrolled(deq, 3), x, None
    yield "a monotone DEQ", Unrolled(monotone, 3, 0.3), x, None
    yield "a DEQ from its linear response", responding(deq, x, 1), x, None
    learnt = Unrolled.learning(deq_of().float(), 2, looked_into(deq, x), linear_response(looked_into(deq, x)))
    nn.init.normal_(learnt.mixing, generator=torch.Generator().manual_seed(0))
    yield "learnt steps of a DEQ", learnt, x, None
    yield "a module", Unrolled(own, 2), x, x[:4]
    learnt = Unrolled.learning(Own(), 2, looked_into(own, x))
    nn.init.normal_(learnt.mixing, generator=torch.Generator().manual_seed(0))
    yield "learnt steps of a module", learnt, x, x[:4]
    yield "images", responding(shown, images, 1), images, images[:3]


@pytest.mark.parametrize(("network", "x", "example"), [pytest.param(*rest, id=name) for name, *rest in networks()])
def test_a_file_gives_the_same_numbers_for_any_number_of_samples(network, x, example, tmp_path):
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    given = () if example is None else (example,)
    session = runtime.InferenceSession(network.to_onnx(tmp_path / "network.onnx", *given))
    for count in (1, 2, len(x)):
        (out,) = session.run(None, {"x": x[:count].numpy()})
        torch.testing.assert_close(torch.from_numpy(out), network(x[:count]).detach(), rtol=1e-5, atol=1e-5)
    assert not [node for node in session.get_modelmeta().custom_metadata_map if "fixed_points" in node]  # no solver inside


def test_a_file_of_a_module_needs_an_example(tmp_path):
    pytest.importorskip("onnx")
    with pytest.raises(nsd.BadInput, match="example"):
        Unrolled(Own(), 1).to_onnx(tmp_path / "network.onnx")


def saved():
    x = X.float()
    for dtype in (torch.float32, torch.float64):
        deq = deq_of(bias=True).to(dtype)
        solved = looked_into(deq, x.to(dtype))
        learnt = Unrolled.learning(copy.deepcopy(deq), 3, solved, linear_response(solved))
        with torch.no_grad():
            for weight in (learnt.mixing, *learnt.shifts):
                weight.normal_(generator=torch.Generator().manual_seed(0))
        yield f"plain {dtype}", Unrolled(deq, 2)
        yield f"damped {dtype}", Unrolled(deq, 2, 0.3)
        yield f"response {dtype}", Unrolled(deq, 0, response=linear_response(solved))
        yield f"learnt {dtype}", learnt
        split = Unrolled.learning(copy.deepcopy(deq), 2, solved, None, split_resolvent(solved))
        yield f"splitting {dtype}", split
        for more in ({}, {"response": linear_response(solved)}):
            moved = Unrolled.learning(copy.deepcopy(deq), 0, solved, **more)
            nn.init.normal_(moved.shifts[0], generator=torch.Generator().manual_seed(0))
            yield f"a learnt shift and no step {dtype} {list(more)}", moved
    features = nsd.DEQ(nsd.Implicit("relu", 0.2), FEATURES, WIDTH, generator=torch.Generator().manual_seed(0))
    yield "features", Unrolled(features, 2)


SAVED = [pytest.param(network, id=name) for name, network in saved()]


@pytest.mark.parametrize("network", SAVED)
def test_saved_and_loaded(network, tmp_path):
    network = copy.deepcopy(network)
    network.model.A.requires_grad_(False)
    again = nsd.load(nsd.save(network, tmp_path / "network.safetensors"))
    x = X.to(network.model.B)
    torch.testing.assert_close(again(x), network(x))
    assert all(torch.equal(weight, network.state_dict()[name]) for name, weight in again.state_dict().items())
    assert str(again) == str(network)
    assert [(n, w.requires_grad) for n, w in again.named_parameters()] == [
        (n, w.requires_grad) for n, w in network.named_parameters()
    ]
    assert again.model.changed() == network.model.changed()


@pytest.mark.parametrize("network", SAVED)
def test_the_program_gives_the_same_numbers(network, tmp_path):
    space = {"__name__": "network"}
    text = network.to_source(tmp_path / "network.py")
    assert (tmp_path / "network.py").read_text(encoding="utf-8") == text
    assert "notsodeep" not in "".join(line for line in text.splitlines() if "import" in line)
    exec(compile(text, "network.py", "exec"), space)
    x = X.to(network.model.B)
    close = {"rtol": 1e-5, "atol": 1e-5} if x.dtype == torch.float32 else {}
    with torch.no_grad():
        torch.testing.assert_close(space["load"]()(x), network(x), **close)


def test_what_cannot_be_saved_or_written_as_source(tmp_path):
    network = Unrolled(Own(), 2)
    with pytest.raises(nsd.BadInput, match="Own"):
        nsd.save(network, tmp_path / "network.safetensors")
    with pytest.raises(nsd.BadInput, match="to_onnx"):
        network.to_source()


@pytest.fixture
def known():
    """A DEQ that knows its preprocessing, steps of it, and raw rows."""
    raw = 3.0 * X.float() + 5.0
    deq = deq_of().float()
    deq.preprocessing = nsd.data.Preprocessing(nsd.data.Standardiser.of(raw), classes=("a", "b", "c"))
    return deq, Unrolled(deq, 60), raw


def test_raw_rows(known):
    deq, network, raw = known
    assert network.preprocessing is deq.preprocessing
    assert list(network.predict(raw)) == list(deq.predict(raw))
    assert len(set(network.predict(raw))) > 1


def test_files_take_raw_rows(known, tmp_path):
    deq, network, raw = known
    again = nsd.load(nsd.save(network, tmp_path / "network.safetensors"))
    assert list(again.predict(raw)) == list(deq.predict(raw))
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(Unrolled(deq, 3).to_onnx(tmp_path / "network.onnx"))
    labels = session.run(["label"], {"x": raw.numpy()})[0]
    assert list(labels) == list(Unrolled(deq, 3).predict(raw))


@pytest.mark.parametrize("part", [nn.Linear(FEATURES, FEATURES), str.lower, {"mean": 0.0}], ids=["module", "function", "dict"])
def test_what_a_module_calls_preprocessing_is_its_own(part):
    """A module of one's own may use any name."""

    class Named(Own):
        def __init__(self):
            super().__init__()
            self.preprocessing, self.tau0 = part, nn.Parameter(torch.ones(()))

    network = Unrolled(Named().double(), 80)
    torch.testing.assert_close(network(X), network.model(X), rtol=1e-7, atol=1e-7)
    assert network.preprocessing is None
    assert all(name.startswith("model.") for name in network.state_dict())
