"""Modules of one's own, with a fixed point inside or a layer that loops by itself."""

import copy
import functools
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import notsodeep as nsd
from notsodeep.fixed_points import Activated
from notsodeep.models.compiler.distil import _size
from notsodeep.models.compiler.foreign import found_in
from notsodeep.models.compiler.rivals import plain_steps, renew
from notsodeep.models.compiler.ways import Replanned
from notsodeep.models.unrolled import Unrolled

N, FEATURES, WIDTH, CLASSES = 60, 6, 8, 3
X = torch.randn(N, FEATURES, generator=torch.Generator().manual_seed(1))
RESPONDING = tuple("the linear response" + more for more in ("", ", then 1 step", ", then 2 steps"))
QUIET = {"budget": 0.0, "progress": False}


def small(linear, factor=0.5):
    """Of a spectral norm that contracts."""
    with torch.no_grad():
        linear.weight.mul_(factor / torch.linalg.matrix_norm(linear.weight, 2))
    return linear


class Own(nn.Module):
    """A head on z = tanh(W z + U x + b), solved with `fixed_point`."""

    def __init__(self, classes=CLASSES):
        super().__init__()
        torch.manual_seed(0)
        self.into, self.inner, self.head = nn.Linear(FEATURES, WIDTH), small(nn.Linear(WIDTH, WIDTH)), nn.Linear(WIDTH, classes)
        self.drop = nn.Dropout(0.5)

    def solved(self, x):
        u = self.into(x)
        return nsd.fixed_point(lambda z: torch.tanh(self.inner(z) + u), torch.zeros_like(u)).value

    def forward(self, x):
        return self.head(self.drop(self.solved(x)))


class Shown(Own):
    """The same in its parts φ, W and u."""

    def solved(self, x):
        u = self.into(x) + self.inner.bias
        return nsd.fixed_point(Activated(torch.tanh, self.inner.weight, u), torch.zeros_like(u)).value


class Loop(nn.Module):
    """z = tanh(W z + u), by a loop of its own."""

    def __init__(self):
        super().__init__()
        self.inner = small(nn.Linear(WIDTH, WIDTH))

    def f(self, z, u):
        return torch.tanh(self.inner(z) + u)

    def forward(self, u):
        z = torch.zeros_like(u)
        for _ in range(40):
            z = self.f(z, u)
        return z


class Map(nn.Module):
    """The same map as a module of its own."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, z, u):
        return torch.tanh(self.inner(z) + u)


class Looping(nn.Module):
    """A head on a layer that loops by itself."""

    def __init__(self, layer=None, classes=CLASSES):
        super().__init__()
        torch.manual_seed(0)
        self.into, self.head = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, classes)
        self.deq = Loop() if layer is None else layer
        self.map = Map(self.deq.inner) if isinstance(self.deq, Loop) else None

    def forward(self, x):
        return self.head(self.deq(self.into(x)))


class Graph(nn.Module):
    """Outputs of the nodes of one graph: each state depends on its neighbours'."""

    def __init__(self, n=N, samples=0):
        super().__init__()
        torch.manual_seed(0)
        links = (torch.rand(n, n) < 0.1).float()
        self.register_buffer("links", (links + links.T) / (links + links.T).sum(1, keepdim=True).clamp(min=1.0))
        self.into, self.inner, self.head = nn.Linear(FEATURES, WIDTH), small(nn.Linear(WIDTH, WIDTH)), nn.Linear(WIDTH, CLASSES)
        self.samples = samples

    def forward(self, x):
        u = self.into(x)
        f = lambda z: torch.tanh(self.links @ self.inner(z) + u)  # noqa: E731
        return self.head(nsd.fixed_point(f, torch.zeros_like(u), samples=self.samples).value)


def closure(model):
    deq = model.deq
    return lambda z, u: torch.tanh(deq.inner(z) + u)


def closure_over_weights(model):
    weight, bias = model.deq.inner.weight, model.deq.inner.bias
    return lambda z, u: torch.tanh(z @ weight.T + bias + u)


def with_a_keyword(model):
    deq = model.deq

    def f(z, u, *, inner=None):
        return torch.tanh((inner or deq.inner)(z) + u)

    return f


def with_a_default(model):
    return lambda z, u, inner=model.deq.inner: torch.tanh(inner(z) + u)


MAPS = {
    "method": lambda model: model.deq.f,
    "module": lambda model: model.map,
    "closure": closure,
    "closure over weights": closure_over_weights,
    "keyword": with_a_keyword,
    "default": with_a_default,
    "partial": lambda model: functools.partial(lambda inner, z, u: torch.tanh(inner(z) + u), model.deq.inner),
}


def held_out(n=N):
    """Indices of the fifth that is held out by default."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    return order[: n // 5], order[n // 5 :]


def relative_error(out, wanted):
    return float(((out - wanted).square().mean() / (wanted - wanted.mean(0)).square().mean()).sqrt())


def loop_by_hand(model, x, steps):
    u, inner = model.into(x), model.inner if hasattr(model, "inner") else model.deq.inner
    z = torch.zeros_like(u)
    for _ in range(steps):
        z = torch.tanh(inner(z) + u)
    return model.head(z)


def names_of(compiled):
    return [way.name for way in compiled.frontier.ways]


def check_against_the_module(compiled, model):
    """What is said of the network is what it does, on samples that it was not made with."""
    frontier, certificate = compiled.frontier, compiled.certificate
    held, _ = held_out()
    with torch.no_grad():
        wanted, out = copy.deepcopy(model).eval()(X[held]), compiled.network(X[held])
    assert certificate.network == frontier.faithful.name
    assert certificate.held_out == frontier.samples == len(held)
    assert certificate.output_error == pytest.approx(relative_error(out, wanted), rel=1e-3, abs=1e-6)
    if certificate.agreement is not None:
        assert certificate.agreement == float((out.argmax(1) == wanted.argmax(1)).double().mean()) >= frontier.keep
    assert certificate.network_flops < certificate.deq_flops
    assert (compiled.design, compiled.twin) == (None, None)


@pytest.mark.parametrize("make", [Own, Shown])
def test_a_module_with_a_fixed_point(make):
    model = make()
    compiled = nsd.compile_deq(model, X, keep=0.9, **QUIET)
    check_against_the_module(compiled, model)
    model.eval()
    held, _ = held_out()
    with torch.no_grad():
        wanted = model(X[held])
        for k in (8, 5, 3, 2, 1):
            way, by_hand = compiled.frontier[f"the DEQ cut after {k} step{'s' * (k > 1)}"], loop_by_hand(model, X[held], k)
            torch.testing.assert_close(way.module(X[held]), by_hand)
            assert way.output_error == pytest.approx(relative_error(by_hand, wanted), rel=1e-3, abs=1e-6)
            flops = 2 * (FEATURES * WIDTH + k * WIDTH**2 + WIDTH * CLASSES)
            assert way.mflop == pytest.approx(1e-6 * flops)
    assert compiled.frontier.ways[0].kept == 1.0
    assert compiled.frontier.measure is None
    assert not [way for way in compiled.frontier.ways if way.plain or way.score is not None]


def test_a_map_in_parts_gets_a_linear_response_and_a_splitting():
    plain, shown = (names_of(nsd.compile_deq(make(), X, **QUIET)) for make in (Own, Shown))
    more = {"the DEQ by Peaceman–Rachford", *RESPONDING}
    assert set(shown) - set(plain) == more
    compiled = nsd.compile_deq(Shown(), X, **QUIET)
    split = compiled.frontier["the DEQ by Peaceman–Rachford"]
    assert split.iterates
    assert split.output_error < 1e-4
    errors = [compiled.frontier[name].output_error for name in RESPONDING[:2]]
    assert errors[1] < errors[0] < compiled.frontier["the DEQ cut after 1 step"].output_error


def test_looser_tolerances():
    compiled = nsd.compile_deq(Own(), X, **QUIET)
    ways = [compiled.frontier[f"the DEQ at tolerance {tol}"] for tol in ("0.001", "0.01", "0.1")]
    costs = [way.mflop for way in (compiled.frontier.ways[0], *ways)]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < costs[0]
    assert all(way.iterates and way.output_error < 0.3 for way in ways)
    assert 0.0 < ways[0].output_error < ways[2].output_error


@pytest.mark.parametrize("layer", ["deq", lambda model: model.deq], ids=["by name", "itself"])
@pytest.mark.parametrize("map_of", MAPS.values(), ids=MAPS)
def test_a_layer_that_loops_by_itself(map_of, layer):
    model = Looping()
    compiled = nsd.compile_deq(
        model, X, keep=0.9, layer=layer if isinstance(layer, str) else layer(model), map=map_of(model), **QUIET
    )
    check_against_the_module(compiled, model)
    held, _ = held_out()
    with torch.no_grad():
        for k in (1, 3):
            way = compiled.frontier[f"the DEQ cut after {k} step{'s' * (k > 1)}"]
            torch.testing.assert_close(way.module(X[held]), loop_by_hand(model, X[held], k))
    # The loop is measured as it is, with its 40 steps, not as `fixed_point` solves the equation.
    flops = 2 * (FEATURES * WIDTH + 40 * WIDTH**2 + WIDTH * CLASSES)
    assert compiled.certificate.deq_flops == pytest.approx(flops)


@pytest.mark.parametrize("map_of", MAPS.values(), ids=MAPS)
def test_the_network_is_a_copy_whatever_the_map(map_of):
    """Weights of the module that change later change nothing in it, and its own weights are those that it uses."""
    model = Looping()
    network = nsd.compile_deq(model, X, keep=0.9, layer="deq", map=map_of(model), **QUIET).network
    with torch.no_grad():
        before = network(X)
        for weight in model.parameters():
            weight.zero_()
        assert torch.equal(network(X), before)
        changed = copy.deepcopy(network)
        for name, weight in changed.named_parameters():
            if "inner" in name or "equation" in name:
                weight.mul_(3.0)
        assert torch.equal(network(X), before)
        assert not torch.allclose(changed(X), before, atol=1e-3)


@pytest.mark.parametrize("map_of", MAPS.values(), ids=MAPS)
def test_all_weights_of_a_map_can_learn(map_of):
    """Those of learnt steps get gradients; those of the plain network that a DEQ must beat are drawn anew."""
    model = Looping()
    found = found_in(model, X, "deq", map_of(model))
    learning = Unrolled.learning(copy.deepcopy(found.module), 2, found.solved).requires_grad_()
    learning(X).square().sum().backward()
    assert all(weight.grad is not None for weight in learning.parameters())
    plain, _ = plain_steps(found, 2)
    with torch.no_grad():
        before = plain(X)
        for name, weight in plain.named_parameters():
            if "inner" in name or "equation" in name:
                weight.zero_()
        assert not torch.allclose(plain(X), before, atol=1e-3)


@pytest.mark.parametrize("y", [None, "classes", "numbers"])
def test_learnt_steps_and_plain_networks(y):
    model = Own(classes=2 if y == "numbers" else CLASSES).eval()
    with torch.no_grad():
        out = model(X)
    labels = {None: None, "classes": out.argmax(1), "numbers": out}[y]
    compiled = nsd.compile_deq(model, X, labels, keep=1.0, budget=1.5, progress=False)
    learnt, cut = compiled.frontier["1 learnt step"], compiled.frontier["the DEQ cut after 1 step"]
    assert learnt.mflop == pytest.approx(cut.mflop)
    assert learnt.output_error < cut.output_error
    assert learnt.seconds > 0.0
    plain = [way for way in compiled.frontier.ways if way.plain]
    assert len(plain) == (0 if y is None else 1)
    assert compiled.frontier.measure == {None: None, "classes": "accuracy", "numbers": "R²"}[y]
    if y is None:
        return
    (rival,) = plain
    assert rival.mflop == pytest.approx(compiled.frontier["the DEQ cut after 2 steps"].mflop)
    assert compiled.frontier.ways[0].score == pytest.approx(1.0)
    assert rival.score > {"classes": 0.5, "numbers": 0.1}[y]
    assert not compiled.frontier.faithful.plain
    assert compiled.network is compiled.frontier.faithful.module


def test_outputs_for_each_pixel():
    """Classes along the last axis of outputs (n, h, K)."""

    class Pixels(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.inner, self.head = small(nn.Linear(4, 4)), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(nsd.fixed_point(lambda z: torch.tanh(self.inner(z) + x), torch.zeros_like(x)).value)

    x = torch.randn(40, 5, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        y = Pixels()(x).argmax(-1)
    compiled = nsd.compile_deq(Pixels(), x, y, keep=0.9, **QUIET)
    held, _ = held_out(40)
    with torch.no_grad():
        same = float((compiled.network(x[held]).argmax(-1) == y[held]).double().mean())
    assert compiled.certificate.agreement == compiled.certificate.scores[0].network == same
    assert compiled.certificate.scores[0].deq == 1.0


def test_numpy_and_whole_numbers_as_inputs():
    class Tokens(Own):
        def __init__(self):
            super().__init__()
            self.into = nn.Embedding(11, WIDTH)

    x = np.arange(N) % 11
    compiled = nsd.compile_deq(Tokens(), x, keep=0.9, **QUIET)
    assert compiled.network(torch.from_numpy(x)).shape == (N, CLASSES)
    assert compiled.certificate.agreement >= 0.9


def test_a_layer_that_takes_whole_numbers():
    """Its state is of the dtype that it returns, not of its inputs'."""

    class Embedded(Loop):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(11, WIDTH)

        def f(self, z, tokens):
            return torch.tanh(self.inner(z) + self.words(tokens))

        def forward(self, tokens):
            z = torch.zeros(len(tokens), WIDTH)
            for _ in range(40):
                z = self.f(z, tokens)
            return z

    model = nn.Sequential(Embedded(), nn.Linear(WIDTH, CLASSES))
    compiled = nsd.compile_deq(model, torch.arange(N) % 11, keep=0.9, layer="0", map=model[0].f, **QUIET)
    assert compiled.certificate.agreement >= 0.9


def test_weights_that_are_whole_numbers_stay():
    class Counting(Own):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.tensor(2), requires_grad=False)

        def forward(self, x):
            return self.factor * super().forward(x)

    compiled = nsd.compile_deq(Counting(), X, keep=1.0, budget=0.5, progress=False)
    assert compiled.frontier["1 learnt step"].module.model.factor == 2


def test_a_module_that_asks_how_its_fixed_point_was_found():
    """For states on the way, and for the number of evaluations: steps have both in some form."""

    class Asking(Own):
        def solved(self, x):
            u = self.into(x)
            found = nsd.fixed_point(lambda z: torch.tanh(self.inner(z) + u), torch.zeros_like(u), keep=(1, 3))
            assert found.evaluations >= 1
            return found.value + 0.1 * found.states[0] + 0.1 * found.states[1]

    compiled = nsd.compile_deq(Asking(), X, keep=0.9, **QUIET)
    assert compiled.certificate.agreement >= 0.9


def test_unseen_samples():
    model, others = Own().eval(), torch.randn(30, FEATURES, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        y, theirs = model(X).argmax(1), model(others).argmax(1)
    compiled = nsd.compile_deq(model, X, y, keep=0.9, test=(others, theirs), **QUIET)
    certificate = compiled.certificate
    assert (certificate.unseen, certificate.held_out, certificate.samples) == (True, 30, N)
    assert certificate.scores[0].deq == 1.0
    with torch.no_grad():
        assert certificate.agreement == float((compiled.network(others).argmax(1) == theirs).double().mean())
    few = nsd.compile_deq(model, X[:4], keep=0.9, test=(others, None), **QUIET)  # none of x need be held out
    assert few.certificate.held_out == 30
    assert few.certificate.scores == ()


def test_samples_to_distil_on_can_be_made():
    seen = []

    def augment(x):
        seen.append(len(x))
        return x + 0.1 * torch.randn_like(x)

    nsd.compile_deq(Own(), X, budget=0.5, progress=False, augment=augment)
    assert seen
    assert max(seen) <= len(held_out()[1])


def test_coupled_samples_are_one_problem():
    model = Graph()
    compiled = nsd.compile_deq(model, X, keep=0.9, **QUIET)
    held, _ = held_out()
    with torch.no_grad():
        wanted, out = model(X), compiled.network(X)
    assert compiled.certificate.held_out == len(held)
    assert compiled.certificate.output_error == pytest.approx(relative_error(out[held], wanted[held]), rel=1e-3, abs=1e-6)
    assert torch.equal(compiled.example, X)
    assert compiled.certificate.network_flops < compiled.certificate.deq_flops


def made_unless_told(word, call):
    """What `call` makes; None where it raises a `BadInput` with this word, and any other error as it is."""
    try:
        return call()
    except nsd.BadInput as error:
        if word not in str(error):
            raise
        return None


class Crowd(Own):
    """Each state depends on the mean of all others in the batch, and nobody says so."""

    def solved(self, x):
        u = self.into(x)
        f = lambda z: torch.tanh(self.inner(z) + 0.5 * z.mean(0) + u)  # noqa: E731
        return nsd.fixed_point(f, torch.zeros_like(u)).value


@pytest.mark.parametrize("make", [lambda: Graph(samples=None), Crowd], ids=["a graph", "a mean"])
def test_samples_that_are_coupled_without_a_word(make):
    """Are found out, or it is said what is missing: a part of them alone has other answers, or none."""
    model = make().eval()
    compiled = made_unless_told("samples=0", lambda: nsd.compile_deq(model, X, keep=0.9, **QUIET))
    if compiled is not None:
        held, _ = held_out()
        with torch.no_grad():
            wanted, out = model(X)[held], compiled.network(X)[held]
        assert compiled.certificate.output_error == pytest.approx(relative_error(out, wanted), rel=1e-3, abs=1e-6)
        assert torch.equal(compiled.example, X)


class GraphLoop(Loop):
    """The loop of a graph's layer: map has no word on what is coupled."""

    def __init__(self, n):
        super().__init__()
        self.register_buffer("links", Graph(n).links)

    def f(self, z, u):
        return torch.tanh(self.links @ self.inner(z) + u)


@pytest.mark.parametrize("n", [N, 100])  # 100 are more than the module is looked into with
def test_a_layer_of_a_graph_that_loops_by_itself(n):
    model, x = Looping(GraphLoop(n)), torch.randn(n, FEATURES, generator=torch.Generator().manual_seed(0))
    call = lambda: nsd.compile_deq(model, x, keep=0.9, layer="deq", map=model.deq.f, **QUIET)  # noqa: E731
    compiled = made_unless_told("couple", call)
    if compiled is not None:
        held, _ = held_out(n)
        with torch.no_grad():
            wanted, out = model(x)[held], compiled.network(x)[held]
        assert compiled.certificate.output_error == pytest.approx(relative_error(out, wanted), rel=1e-3, abs=1e-6)


def test_steps_of_a_coupled_problem_learn():
    model = Graph()
    with torch.no_grad():
        y = model(X).argmax(1)
    compiled = nsd.compile_deq(model, X, y, keep=1.0, budget=1.5, progress=False)
    learnt, cut = compiled.frontier["1 learnt step"], compiled.frontier["the DEQ cut after 1 step"]
    assert learnt.output_error < cut.output_error
    assert [way.name for way in compiled.frontier.ways if way.plain] == ["a plain network, 2 steps of the same map"]


def test_samples_of_a_graph_cannot_be_made_by_rows():
    """A part of a graph is another graph, so augment gets all of its nodes, or compile_deq says that it cannot be."""
    seen = []

    def augment(x):
        seen.append(len(x))
        return x + 0.01

    call = lambda: nsd.compile_deq(Graph(), X, budget=0.5, progress=False, augment=augment)  # noqa: E731
    if made_unless_told("augment", call) is not None:
        assert set(seen) == {N}


@pytest.mark.parametrize("make", [Own, Shown, Graph, Looping])
def test_the_module_stays_as_it_was(make):
    model = make()
    options = {"layer": model.deq, "map": model.deq.f} if make is Looping else {}
    model.train()
    model.into.weight.requires_grad_(False)
    model.register_forward_hook(lambda *_: None)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [part.training for part in model.modules()]
    hooks = [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules()]
    with torch.no_grad():
        y = copy.deepcopy(model).eval()(X).argmax(1)
    compiled = nsd.compile_deq(model, X, y, budget=0.6, progress=False, **options)
    assert [part.training for part in model.modules()] == modes
    assert [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules()] == hooks
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())
    assert [name for name, weight in model.named_parameters() if not weight.requires_grad] == ["into.weight"]
    ours = {weight.data_ptr() for way in compiled.frontier.ways for weight in way.module.parameters()}
    assert ours.isdisjoint(weight.data_ptr() for weight in model.parameters())


def run(path, x):
    runtime = pytest.importorskip("onnxruntime")
    (out,) = runtime.InferenceSession(path).run(None, {"x": x.numpy()})
    return torch.from_numpy(out)


def test_files(tmp_path):
    pytest.importorskip("onnx")
    model = Own()
    compiled = nsd.compile_deq(model, X, keep=0.9, **QUIET)
    assert isinstance(compiled.network, Unrolled)
    path = compiled.to_onnx(tmp_path / "network.onnx")
    for rows in (X[:1], X[:7], X):
        torch.testing.assert_close(run(path, rows), compiled.network(rows).detach(), rtol=1e-5, atol=1e-5)
    with pytest.raises(nsd.BadInput, match="to_onnx"):
        compiled.to_source()


def test_a_file_of_a_looser_tolerance_has_that_tolerance(tmp_path):
    pytest.importorskip("onnx")
    model, x = Own().eval(), X.repeat(3, 1)
    loose = Replanned(model, lambda plan: replace(plan, solver=nsd.Picard(), tol=0.1))
    with torch.no_grad():
        wanted = loose(x)
        assert float((wanted - model(x)).abs().max()) > 1e-3
    path = nsd.models.to_onnx(loose, tmp_path / "network.onnx", x[:4], check=False)
    onnx = pytest.importorskip("onnx")
    notes = {note.key: note.value for note in onnx.load(path).metadata_props}
    assert "tol 0.1" in notes["notsodeep.fixed_points"]
    assert float((run(path, x) - model(x).detach()).abs().max()) > 1e-3


class Late(Own):
    """Its solver stops early and says nothing."""

    def solved(self, x):
        u = self.into(x)
        return nsd.fixed_point(lambda z: torch.tanh(self.inner(z) + u), torch.zeros_like(u), max_steps=3, throw=False).value


def test_a_solver_that_does_not_converge_is_told():
    compiled = nsd.compile_deq(Late(), X, **QUIET)
    (note,) = compiled.certificate.notes
    assert "own solver did not converge for 48 of 48 samples" in note
    assert note in compiled.summary()
    assert note in compiled.certificate.to_dict()["notes"]
    assert nsd.compile_deq(Own(), X, **QUIET).certificate.notes == ()


def test_a_deq_whose_solver_does_not_converge_is_told(digits):
    x = digits[0][:40]
    deq = nsd.DEQ(nsd.Implicit("tanh", 0.2), 64, 8, 3, max_steps=2, throw=False)
    nn.init.normal_(deq.readout.weight, generator=torch.Generator().manual_seed(0))
    compiled = nsd.compile_deq(deq, x, family="matched", **QUIET)
    assert [note for note in compiled.certificate.notes if "did not converge for 32 of 32" in note]


class OneMore(Looping):
    """It takes its layer's map, and a number of it, for itself."""

    def __init__(self):
        super().__init__()
        self.deq.factor = 2.0

    def forward(self, x):
        u = self.into(x)
        return self.head(self.deq.factor * self.deq.f(self.deq(u), u))


def test_a_model_that_takes_more_from_its_layer():
    """Copies and pickles of what it is compiled to do so as well, with weights of their own."""
    model = OneMore()
    found = found_in(model, X, "deq", model.deq.f)
    with torch.no_grad():
        wanted = model(X)
        torch.testing.assert_close(found.module(X), wanted, rtol=1e-3, atol=1e-3)
        assert found.module.deq.factor == 2.0
        again = pickle.loads(pickle.dumps(copy.deepcopy(found.module)))
        assert torch.equal(again(X), found.module(X))
        again.deq.layer.inner.weight.zero_()
        assert not torch.allclose(again(X), wanted, atol=1e-2)
        torch.testing.assert_close(found.module(X), wanted, rtol=1e-3, atol=1e-3)
    with pytest.raises(AttributeError, match="'Loop' object has no attribute 'nothing'"):
        _ = found.module.deq.nothing
    with pytest.raises(AttributeError):  # and not by asking itself forever
        _ = type(found.module.deq).__new__(type(found.module.deq)).layer
    check_against_the_module(nsd.compile_deq(model, X, keep=0.9, layer="deq", map=model.deq.f, **QUIET), model)


class Complex(Own):
    """Rotated by complex weights, with a scale that is one number."""

    def __init__(self):
        super().__init__()
        self.turn = nn.Parameter(torch.polar(torch.ones(WIDTH, WIDTH) / WIDTH, torch.arange(1.0 * WIDTH)))
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        z = self.solved(x)
        return self.head(self.scale * (z.to(self.turn) @ self.turn).abs() + z)


class Normed(Own):
    def __init__(self):
        super().__init__()
        nn.utils.parametrizations.weight_norm(self.into)
        nn.utils.parametrizations.weight_norm(self.head)


@pytest.mark.parametrize("make", [Complex, Normed])
@pytest.mark.filterwarnings("error")  # such as one that imaginary parts are dropped
def test_weights_of_other_kinds_are_taken(make):
    model = make().eval()
    with torch.no_grad():
        y = model(X).argmax(1)
    frontier = nsd.compile_deq(model, X, y, keep=1.0, budget=0.4, progress=False).frontier
    learnt, (plain,) = frontier["1 learnt step"], [way for way in frontier.ways if way.plain]
    assert learnt.output_error <= frontier["the DEQ cut after 1 step"].output_error + 0.05  # of a few steps, on other samples
    for way in (learnt, plain):
        assert way.seconds > 0.0
        assert all(weight.isfinite().all() for weight in way.module.parameters())
    own = dict(plain.module.model.named_parameters())
    assert not [name for name, weight in model.named_parameters() if weight.ndim > 1 and torch.equal(weight, own[name])]


def test_new_weights_have_the_size_of_the_old_ones():
    module = Complex()
    nn.utils.parametrizations.weight_norm(module.into)
    module.register_parameter("lengths", nn.Parameter(torch.tensor([[1.0], [-3.0]])))
    old = copy.deepcopy(module)
    renew(module, torch.Generator().manual_seed(0))
    turn = module.turn.detach()
    assert float(turn.real.std()) == pytest.approx(float(turn.imag.std()), rel=0.3)
    assert float(turn.abs().square().mean()) == pytest.approx(WIDTH**-2, rel=0.4)
    assert module.scale.item() == 1.5
    assert module.lengths.tolist() == [[2.0], [2.0]]
    assert not any(linear.bias.any() for linear in (module.into, module.inner, module.head))
    length, direction = (each.detach() for each in module.into.parametrizations.weight.parameters())
    old_length, old_direction = (each.detach() for each in old.into.parametrizations.weight.parameters())
    torch.testing.assert_close(length, old_length.abs().mean().expand_as(length))
    assert float(direction.square().mean()) == pytest.approx(float(old_direction.square().mean()), rel=0.5)
    assert not torch.equal(direction, old_direction)


def test_new_biases_are_zero_whatever_bounds_them():
    linear = nn.Linear(3, 4)
    nn.utils.parametrize.register_parametrization(linear, "bias", nn.Identity())
    renew(linear, torch.Generator().manual_seed(0))
    assert torch.equal(linear.bias, torch.zeros(4))


def test_the_size_of_a_complex_weight_is_that_of_its_moduli():
    assert _size(torch.full((3,), 3.0 + 4.0j)) == pytest.approx(5.0)


@pytest.mark.parametrize("bound", [nn.utils.weight_norm, nn.utils.spectral_norm])
@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_norms_of_older_kinds_cannot_be_copied(bound):
    model = Own()
    bound(model.inner)
    model(X)
    with pytest.raises(nsd.BadInput, match=r"Own cannot be copied.*parametrizations"):
        nsd.compile_deq(model, X, **QUIET)


def test_a_graph_whose_nodes_were_made_in_inference_mode():
    with torch.inference_mode():
        x = X.clone()
        compiled = nsd.compile_deq(Graph(), x, keep=1.0, budget=0.2, progress=False)
    assert compiled.frontier["1 learnt step"].seconds > 0.0


class Twice(Own):
    def forward(self, x):
        return self.head(self.solved(x) + self.solved(-x))


class Flat(Own):
    """A state whose first axis counts numbers, not samples."""

    def forward(self, x):
        u = self.into(x)
        z = nsd.fixed_point(lambda z: 0.5 * torch.cos(z), torch.zeros(7, 3), samples=1).value
        return self.head(u) + z.sum()


class Returning(Own):
    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, x):
        return self.change(super().forward(x))


class Both(Loop):
    """A layer that returns its number of steps too."""

    def forward(self, u):
        return super().forward(u), 40


class Tupled(Looping):
    def __init__(self):
        super().__init__(Both())

    def forward(self, x):
        return self.head(self.deq(self.into(x))[0])


class CalledTwice(Looping):
    def forward(self, x):
        return self.head(self.deq(self.into(x)) + self.deq(-self.into(x)))


class Named(Looping):
    def forward(self, x):
        return self.head(self.deq(u=self.into(x)))


def compile_layer(model=None, x=X, layer="deq", map=None, **options):
    model = Looping() if model is None else model
    return nsd.compile_deq(model, x, layer=layer, map=model.deq.f if map is None else map, **(QUIET | options))


BAD = {
    "no module": (lambda: nsd.compile_deq(torch.tanh, X), "takes a DEQ or a torch module"),
    "no fixed point": (lambda: nsd.compile_deq(nn.Linear(FEATURES, 3), X), "Linear solves no fixed point.*layer=.*map="),
    "two fixed points": (lambda: nsd.compile_deq(Twice(), X), "Twice solves 2 fixed points.*layer= and map="),
    "no samples": (lambda: nsd.compile_deq(Flat(), X), "state of 7 samples for 48 rows.*samples=0"),
    "other features": (lambda: nsd.compile_deq(Own(), X[:, :4]), r"Own fails on samples of shape \(60, 4\).*float32"),
    "other features, layer": (lambda: compile_layer(x=X[:, :4]), r"Looping fails on samples of shape \(60, 4\)"),
    "other dtype": (lambda: nsd.compile_deq(Own(), X.double()), "Own fails on samples.*float64"),
    "NaN": (lambda: nsd.compile_deq(Own(), X * torch.nan), "360 numbers that are NaN"),
    "list": (lambda: nsd.compile_deq(Own(), X.tolist()), "x must be a tensor"),
    "no row": (lambda: nsd.compile_deq(Own(), X[:0]), "x must be a tensor"),
    "few": (lambda: nsd.compile_deq(Own(), X[:9]), "9 samples none are held out.*10 or more, or test="),
    "keep 1.5": (lambda: nsd.compile_deq(Own(), X, keep=1.5), "keep = 1.5.*at most 1"),
    "keep 0": (lambda: nsd.compile_deq(Own(), X, keep=0), "keep = 0 must be a positive"),
    "keep word": (lambda: nsd.compile_deq(Own(), X, keep="most"), "keep = 'most' is not a number"),
    "budget": (lambda: nsd.compile_deq(Own(), X, budget=-1), "budget.*≥ 0"),
    "progress": (lambda: nsd.compile_deq(Own(), X, progress="no"), "progress"),
    "augment": (lambda: nsd.compile_deq(Own(), X, augment=3), "augment"),
    "tuple": (lambda: nsd.compile_deq(Returning(lambda out: (out, out)), X), "one tensor of floats with a row for each.*tuple"),
    "number": (lambda: nsd.compile_deq(Returning(torch.Tensor.mean), X), r"a row for each of the 60 samples.*shape \(\)"),
    "mean": (lambda: nsd.compile_deq(Returning(lambda out: out.mean(0)), X), r"a row for each of the 60.*shape \(3,\)"),
    "graph, tuple": (
        lambda: nsd.compile_deq(nn.Sequential(Graph(), Returned(lambda out: (out, 1))), X),
        "one tensor of floats with a row for each.*tuple",
    ),
    "y": (lambda: nsd.compile_deq(Own(), X, torch.zeros(5)), r"60 samples and y has shape \(5,\)"),
    "classes": (lambda: nsd.compile_deq(Own(), X, torch.arange(N) % 5), "classes 0 to 4"),
    "numbers": (lambda: nsd.compile_deq(Own(), X, torch.randn(N, 2)), r"outputs of shape \(3,\).*y has \(2,\)"),
    "words": (lambda: nsd.compile_deq(Own(), X, np.array(["ant", "bee"] * 30)), r"y holds \['ant'\].*numbers of the classes"),
    "NaN in y": (lambda: nsd.compile_deq(Own(), X, torch.full((N, 3), torch.nan)), "y holds NaN"),
    "constant": (lambda: nsd.compile_deq(Own(), X, torch.ones(N, 3)), "All labels are equal"),
    "words of test": (lambda: nsd.compile_deq(Own(), X, torch.arange(N) % 3, test=(X, ["ant"] * N)), "y holds"),
    "family": (lambda: nsd.compile_deq(Own(), X, family="matched"), "family, match and width are for the explicit twin"),
    "match": (lambda: nsd.compile_deq(Own(), X, match="both"), "family, match and width"),
    "width": (lambda: nsd.compile_deq(Own(), X, width=8), "family, match and width"),
    "attribute": (lambda: nsd.compile_deq(Returning(lambda out: out.nothing), X), "Returning fails on samples.*nothing"),
    "key": (lambda: nsd.compile_deq(Returning(lambda _: {}["key"]), X), "Returning fails on samples.*key"),
    "map, attribute": (lambda: compile_layer(map=lambda z, _: z.nothing), "map fails on the state.*nothing"),
    "test alone": (lambda: nsd.compile_deq(Own(), X, test=X), "pair"),
    "y of test": (lambda: nsd.compile_deq(Own(), X, torch.arange(N) % 3, test=(X, None)), "Labels are needed both"),
    "test shape": (lambda: nsd.compile_deq(Own(), X, test=(X[:, :2], None), **QUIET), r"\(60, 2\)"),
    "test of a graph": (lambda: nsd.compile_deq(Graph(), X, test=(X, None)), "couples all samples.*Leave test out"),
    "layer alone": (lambda: nsd.compile_deq(Looping(), X, layer="deq"), "layer= and map= together"),
    "map alone": (lambda: nsd.compile_deq(Looping(), X, map=torch.tanh), "layer= and map= together"),
    "no such layer": (lambda: compile_layer(layer="dec"), "layer must be a part of Looping.*deq.*'dec'"),
    "another's layer": (lambda: compile_layer(layer=Loop()), "layer must be a part of Looping"),
    "the module": (lambda: compile_layer(layer=""), "layer must be a part of Looping"),
    "list of layers": (lambda: compile_layer(layer=["deq"]), "layer must be a part of Looping"),
    "no map": (lambda: compile_layer(map=3), "map must be"),
    "map of z alone": (lambda: compile_layer(map=lambda z: z), "map"),
    "wrong map": (lambda: compile_layer(map=lambda _, u: torch.tanh(u)), r"no fixed point of map: ‖map\(z\) − z‖.* = 0\.\d+"),
    "map, shape": (lambda: compile_layer(map=lambda z, _: z[:, :2]), r"map must return a state.*\(48, 8\); got \(48, 2\)"),
    "map, tuple": (lambda: compile_layer(map=lambda z, u: (z, u)), r"map must return a state.*got \("),
    "called twice": (lambda: compile_layer(CalledTwice()), "layer 'deq' was called 2 times"),
    "never called": (lambda: compile_layer(layer="map"), "layer 'map' was called 0 times"),
    "layer, tuple": (lambda: compile_layer(Tupled()), "layer 'deq' returns a tuple.*one tensor"),
    "by keyword": (lambda: compile_layer(Named()), "layer 'deq'"),
}


class Returned(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, x):
        return self.change(x)


@pytest.mark.parametrize(("call", "says"), BAD.values(), ids=BAD)
def test_bad_input(call, says):
    with pytest.raises(nsd.BadInput, match=f"(?s){says}"):
        call()


def test_a_wrong_map_tells_its_residual():
    with pytest.raises(nsd.BadInput) as caught:
        compile_layer(map=lambda z, _: 2.0 * torch.tanh(z))
    assert math.isfinite(caught.value.residual)
    assert caught.value.residual > 0.01


@pytest.mark.parametrize("part", [0, 1], ids=["held out", "trained on"])
def test_outputs_that_are_not_finite(part):
    """There is nothing to compare with, or to learn from."""
    row = X[held_out()[part][3], 0]

    class Broken(Own):
        def forward(self, x):
            return super().forward(x) / (x[:, :1] != row).float()

    with pytest.raises(nsd.NotConverged, match="outputs are not finite for 1 of "):
        nsd.compile_deq(Broken(), X, **QUIET)
