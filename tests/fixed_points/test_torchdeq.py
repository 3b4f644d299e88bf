"""Models written for torchdeq on our solvers: the same numbers where torchdeq is there to ask, known ones everywhere."""

import argparse
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import notsodeep as nsd
from notsodeep.fixed_points import torchdeq as ours

from .maps import contraction, tanh_map

SOLVERS = ["fixed_point_iter", "simple_fixed_point_iter", "anderson", "broyden"]
EXACT = {"f_tol": 1e-11, "b_tol": 1e-11, "f_max_iter": 80, "b_max_iter": 80}
KEYS = {"abs_lowest", "rel_lowest", "abs_trace", "rel_trace", "nstep", "sradius"}


class Layer(nn.Module):
    """A DEQ layer as one writes it with torchdeq, `library` being that or ours."""

    def __init__(self, library, **options):
        super().__init__()
        weight, _ = contraction(1, 8)
        self.weight = nn.Parameter(weight)
        self.input = nn.Linear(5, 8, dtype=torch.float64)
        with torch.no_grad():
            self.input.weight.copy_(torch.linspace(-1.0, 1.0, 40, dtype=torch.float64).view(8, 5))
            self.input.bias.zero_()
        self.deq, self.library = library.get_deq(**options), library

    def forward(self, x, **more):
        self.library.reset_deq(self)
        u = self.input(x)
        return self.deq(lambda z: torch.tanh(z @ self.weight.T + u), torch.zeros_like(u), **more)


class Pair(Layer):
    """Two tensors of different shapes as one state, (n, 4, 2) and (n, 1)."""

    def forward(self, x, **more):
        u = self.input(x).unflatten(1, (4, 2))

        def func(a, b):
            mixed = (a.flatten(1) @ self.weight.T).view_as(a)
            return torch.tanh(mixed + u + 0.1 * b[:, :, None]), 0.3 * b + 0.1 * a.sum((1, 2))[:, None]

        return self.deq(func, (torch.zeros_like(u), torch.zeros_like(u[:, 0, :1])), **more)


def data(n=6):
    return torch.randn(n, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def run(layer, x, **more):
    """States, statistics, and the gradient of a loss over all states."""
    states, info = layer(x, **more)
    flat = [torch.cat([t.flatten() for t in (s if isinstance(s, list | tuple) else [s])]) for s in states]
    grads = []
    if layer.training:
        loss = sum((k + 1) * (one.square().sum() + one.sum()) for k, one in enumerate(flat))
        grads = torch.autograd.grad(loss, list(layer.parameters()), materialize_grads=True)
    return flat, info, grads


def compare(kind, options, more=None, train=True, tol=1e-9, trace=True):
    theirs = pytest.importorskip("torchdeq")
    x, found = data(), []
    for library in (ours, theirs):
        layer = kind(library, **options).train(train)
        torch.manual_seed(0)
        found.append(run(layer, x, **(more or {})))
    (states, info, grads), (expected, statistics, gradients) = found
    torch.testing.assert_close(states, expected, rtol=tol, atol=tol)
    torch.testing.assert_close(list(grads), list(gradients), rtol=10 * tol, atol=10 * tol)
    assert set(info) == set(statistics) == KEYS
    assert {key: value.shape for key, value in info.items()} == {key: v.shape for key, v in statistics.items()}
    if trace:
        for key in KEYS - {"sradius"}:
            torch.testing.assert_close(info[key], statistics[key], rtol=1e-6, atol=1e-12, check_dtype=False)


@pytest.mark.parametrize("kind", [Layer, Pair])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"f_max_iter": 6},
        {"f_max_iter": 6, "f_stop_mode": "rel"},
        {"f_solver": "simple_fixed_point_iter", "f_max_iter": 5},
        {"grad": 4, "tau": 0.6},
        {"grad": 6, "sup_gap": 2},
        {"grad": 6, "sup_loc": [1, 4]},
        {"f_max_iter": 10, "n_states": 3},
        {"f_max_iter": 12, "indexing": [2, 5], "grad": [1, 2, 3]},
        {"f_max_iter": 4, "indexing": [2, 4]},
        {"core": "indexing", "f_max_iter": 11, "n_states": 3, "f_tol": 1e-12},
        {"core": "indexing", "f_max_iter": 9, "indexing": [1, 4], "grad": [3, 1, 2], "f_tol": 0.0},
        {"core": "indexing", "f_solver": "simple_fixed_point_iter", "f_max_iter": 7, "n_states": 2},
    ],
    ids=str,
)
def test_plain_steps_give_torchdeq_s_numbers_step_by_step(kind, options):
    compare(kind, options)


@pytest.mark.parametrize("kind", [Layer, Pair])
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("hook", [False, True])
def test_the_exact_gradient_is_torchdeq_s(kind, solver, hook):
    simple = solver == "simple_fixed_point_iter"
    if simple and kind is Pair:
        pytest.skip("torchdeq itself fails on this: a state of several tensors, its simple solver, the exact gradient")
    backward = "anderson" if simple else solver  # torchdeq's simple solver fails backwards
    options = {"f_solver": solver, "b_solver": backward, "ift": not hook, "hook_ift": hook, **EXACT}
    compare(kind, options, tol=1e-8, trace=False)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("more", [{}, {"solver_kwargs": {"f_max_iter": 50}}])
def test_eval_mode_gives_torchdeq_s_solution(solver, more):
    compare(Layer, {"f_solver": solver, "f_tol": 1e-9, "eval_factor": 1.5}, more, train=False, tol=1e-7, trace=False)


@pytest.mark.parametrize("tau", [0.5, 1.2])
@pytest.mark.parametrize("solver", ["fixed_point_iter", "simple_fixed_point_iter"])
def test_damped_steps_give_torchdeq_s_numbers(solver, tau):
    compare(Layer, {"f_solver": solver, "f_max_iter": 30}, {"solver_kwargs": {"tau": tau}})


def test_a_truncated_backward_solve_is_torchdeq_s():
    compare(Layer, {"ift": True, "f_tol": 1e-13, "f_max_iter": 100, "b_max_iter": 3})


class Twisted(Layer):
    """A map whose residuals rise before they fall, and whose samples depend on each other."""

    def forward(self, x, **more):
        u, twist = self.input(x), torch.diag(torch.full((7,), 3.0, dtype=torch.float64), 1)
        return self.deq(lambda z: 0.5 * torch.tanh(z @ twist + 0.1 * z.mean(0) + u), torch.zeros_like(u), **more)


@pytest.mark.parametrize("options", [{}, {"core": "indexing", "n_states": 5, "f_max_iter": 10}], ids=str)
def test_states_that_get_worse_on_the_way_and_samples_that_depend_on_each_other(options):
    # The best state so far is what counts; and nobody looks at the samples.
    with warnings.catch_warnings():
        warnings.simplefilter("error", nsd.NumericsWarning)
        info = Twisted(ours, **options)(data())[1]
    assert (info["abs_trace"][:, 2:].amax(1) > info["abs_trace"][:, 1]).any()
    compare(Twisted, options)


def test_torchdeq_s_norms_and_dropouts_work_beside_ours():
    theirs = pytest.importorskip("torchdeq")
    layer = nn.Sequential(nn.Linear(4, 4), theirs.dropout.VariationalDropout(0.5))
    theirs.norm.apply_norm(layer, "weight_norm")
    deq, x = ours.get_deq(ift=True), torch.randn(3, 4)
    for _ in range(2):
        ours.reset_deq(layer)
        assert layer[1].mask is None
        states, _ = deq(lambda z: torch.tanh(layer(z) + x), torch.zeros(3, 4))
        assert layer[1].mask is not None
        states[-1].sum().backward()


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_known_fixed_point_and_its_gradient(solver):
    weight, x = contraction(6, 8)
    weight.requires_grad_()
    deq = ours.get_deq(f_solver=solver, b_solver=solver, ift=True, **EXACT)
    states, info = deq(tanh_map(weight, x), torch.zeros_like(x))
    found = nsd.fixed_point(tanh_map(weight, x), torch.zeros_like(x), tol=1e-12)
    torch.testing.assert_close(states[-1], found.value, rtol=1e-9, atol=1e-9)
    got, want = (torch.autograd.grad(z.pow(3).sum(), weight)[0] for z in (states[-1], found.value))
    torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-8)
    assert set(info) == KEYS
    assert float(info["abs_lowest"].max()) < 1e-10


def test_the_statistics_have_torchdeq_s_shapes():
    x = data()
    columns = {"fixed_point_iter": 21, "anderson": 19, "broyden": 21, "simple_fixed_point_iter": 1}
    for solver, count in columns.items():
        _, info = Layer(ours, f_solver=solver, f_max_iter=20)(x)
        assert info["abs_trace"].shape == info["rel_trace"].shape == (6, count)
        assert info["abs_lowest"].shape == info["rel_lowest"].shape == info["nstep"].shape == (6,)
        assert info["sradius"].tolist() == [-1.0]
        if solver != "simple_fixed_point_iter":
            assert (info["abs_trace"][:, 0] == 1e8).all()
            torch.testing.assert_close(info["abs_trace"].amin(1), info["abs_lowest"])
            assert (info["abs_lowest"] < 1e-3).all()


def test_eval_mode_returns_the_solution_alone_and_its_spectral_radius():
    layer = Layer(ours, n_states=3, f_max_iter=30).eval()
    states, info = layer(data())
    assert len(states) == 1
    assert not states[0].requires_grad
    assert info["sradius"].tolist() == [0.0]
    states, info = layer(data(), sradius_mode=True)
    assert not states[0].requires_grad
    slopes = 1.0 - states[0].detach() ** 2
    radii = torch.linalg.eigvals(slopes[:, :, None] * layer.weight.detach()).abs().amax(1)
    torch.testing.assert_close(info["sradius"], radii, rtol=1e-2, atol=0.0)


def test_the_writer_sees_the_backward_solve():
    seen = []
    states, _ = Layer(ours, ift=True, b_max_iter=30, b_stop_mode="rel")(data(), backward_writer=seen.append)
    assert seen == []
    states[-1].sum().backward()
    assert len(seen) == 1
    assert seen[0]["rel_trace"].shape == (6, 31)
    assert (seen[0]["rel_lowest"] < 1e-6).all()


def test_every_state_that_was_asked_for_is_there():
    # torchdeq drops those after convergence, the solution among them.
    for core in ("indexing", "sliced"):
        layer = Layer(ours, core=core, n_states=4, f_max_iter=60, ift=True)
        states, _ = layer(data())
        assert len(states) == 4
        exact = Layer(ours, **EXACT)(data())[0][-1]
        torch.testing.assert_close(states[-1], exact, rtol=0.0, atol=1e-3)


def test_options_come_from_a_namespace_a_dict_or_an_object_and_keywords_win():
    given = {"f_max_iter": 7, "f_tol": 1e-2, "learning_rate": 0.1, "gamma": 0.8, "indexing": None}
    for args in (argparse.Namespace(**given), dict(given), SimpleNamespace(**given)):
        options = ours.get_deq(args, f_tol=1e-4).options
        assert (options.f_max_iter, options.f_tol, options.b_tol) == (7, 1e-4, 1e-6)
        assert vars(args) == given if not isinstance(args, dict) else args == given


def test_nothing_is_raised_and_nothing_said_where_it_does_not_converge():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for solver in SOLVERS:
            scale = torch.tensor(3.0, requires_grad=True)
            states, info = ours.get_deq(f_solver=solver, f_max_iter=5, ift=True)(
                lambda z, scale=scale: scale * z + 1, torch.ones(2, 3)
            )
            states[-1].sum().backward()
            assert info["nstep"].shape == (2,)


def test_a_sample_of_nan_keeps_the_others():
    x = data()
    x[0] = torch.nan
    found, info = Layer(ours, f_tol=1e-9)(x)
    clean, _ = Layer(ours, f_tol=1e-9)(data())
    torch.testing.assert_close(found[-1][1:], clean[-1][1:], rtol=1e-8, atol=1e-8)
    assert info["abs_lowest"][0] == 1e8


def test_autocast_and_half_precision_states():
    weight, x = contraction(4, 8, dtype=torch.float32)
    for solver in SOLVERS:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            states, _ = ours.get_deq(f_solver=solver, f_tol=1e-2)(tanh_map(weight, x), torch.zeros_like(x))
        assert states[-1].dtype == torch.float32
        exact = nsd.fixed_point(tanh_map(weight, x), torch.zeros_like(x)).value
        torch.testing.assert_close(states[-1], exact, rtol=0.05, atol=0.05)
        # 1e8, which torchdeq calls a residual that was not measured, is no number of float16.
        half = tanh_map(weight.half(), x.half())
        states, info = ours.get_deq(f_solver=solver, f_tol=1e-2)(half, torch.zeros_like(x).half())
        assert (states[-1].dtype, info["abs_lowest"].dtype) == (torch.float16, torch.float32)
        torch.testing.assert_close(states[-1].float(), exact, rtol=0.05, atol=0.05)


def test_a_tensor_of_one_axis_is_a_batch_of_numbers():
    start = (torch.zeros(5), torch.ones(5, 2))
    (states,), info = ours.get_deq()(lambda a, b: (0.5 * a + b.mean(1), 0.5 * b), start)
    assert [tuple(state.shape) for state in states] == [(5,), (5, 2)]
    assert info["nstep"].shape == (5,)
    states, info = ours.get_deq(f_max_iter=100)(lambda z: 0.5 * z + torch.arange(5.0), torch.zeros(5))
    torch.testing.assert_close(states[-1], 2.0 * torch.arange(5.0), rtol=0.0, atol=1e-2)
    assert info["nstep"].shape == (5,)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"f_max_itr": 5}, "f_max_iter"),
        ({"nonsense": 5}, "known"),
        ({"f_solver": "newton"}, "anderson"),
        ({"core": "custom"}, "sliced"),
        ({"f_stop_mode": "both"}, "abs"),
        ({"f_max_iter": -1}, "f_max_iter"),
        ({"grad": 0}, "grad"),
        ({"grad": [1, 2], "n_states": 3}, "3 states"),
        ({"grad": 2, "sup_gap": 3}, "sup_gap"),
        ({"indexing": [9, 3]}, "indexing"),
        ({"f_max_iter": "40"}, "f_max_iter must be a whole number ≥ 0, got '40'"),
        ({"b_max_iter": 2.5}, "b_max_iter must be a whole number"),
        ({"grad": 1.5}, "grad must be one number ≥ 1"),
        ({"grad": "ab"}, "grad must be one number ≥ 1"),
        ({"indexing": 5}, "indexing must be a list of whole numbers.*got 5"),
        ({"indexing": "ab"}, "indexing must be a list of whole numbers"),
        ({"sup_loc": 5}, "sup_loc must be a list of whole numbers.*got 5"),
        ({"sup_gap": "a"}, "sup_gap must be a whole number"),
        ({"f_tol": "x"}, "f_tol must be a finite number ≥ 0, got 'x'"),
        ({"b_tol": -1.0}, "b_tol must be a finite number ≥ 0"),
        ({"tau": "a"}, "tau.*between 0 and 2, got 'a'"),
        ({"tau": 0}, "tau.*between 0 and 2, got 0: 0 stands still"),
        ({"tau": 2}, "tau.*between 0 and 2, got 2"),
        ({"n_states": -1}, "n_states must be a whole number ≥ 1, got -1"),
        ({"eval_factor": "a"}, "eval_factor must be a finite number"),
        ({"args": 3}, "namespace, a dict or an object with attributes, or by name; got 3"),
        ({"args": 0}, "got 0"),
    ],
)
def test_options_that_cannot_be_had_are_refused(options, says):
    with pytest.raises(nsd.BadInput, match=says):
        ours.get_deq(**options)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"ls": True}, "line search"),
        ({"return_final": True}, "simple_fixed_point_iter"),
        ({"tol": 1e-3}, "no option 'tol'"),
        ({"tau": 1.5}, "damping"),  # of Anderson
        ({"m": 1}, "m must be a whole number ≥ 2, got 1"),
        ({"m": "a"}, "m must be a whole number ≥ 2, got 'a'"),
        ({"f_max_iter": "a"}, "f_max_iter must be a whole number ≥ 0, got 'a'"),
        ({"f_max_iter": -1}, "f_max_iter must be a whole number ≥ 0, got -1"),
        ({"tau": "a"}, "tau.*got 'a'"),
        ({"LBFGS_thres": 0}, "LBFGS_thres must be a whole number ≥ 1"),
        (3, "solver_kwargs must be a dict, got 3"),
    ],
)
def test_options_of_a_call_that_cannot_be_had_are_refused(more, says):
    with pytest.raises(nsd.BadInput, match=says):
        ours.get_deq(f_solver="anderson")(torch.cos, torch.zeros(2, 3), solver_kwargs=more)


@pytest.mark.parametrize(
    ("func", "start", "says"),
    [
        (lambda z: z[:, :2], torch.ones(2, 3), "shape"),
        (lambda z: z.mul_(0.5), torch.ones(2, 3), "in place"),
        (lambda a, b: (a, b), (torch.ones(2, 3), torch.ones(3, 2)), "samples"),
        (lambda a, b: a + b, (torch.ones(2, 3), torch.ones(2, 3)), "return"),
        (torch.cos, {"z": torch.ones(2, 3)}, "tuple or list"),
        ("cos", torch.ones(2, 3), "function"),
    ],
)
def test_functions_and_states_that_cannot_be_solved_are_refused(func, start, says):
    with pytest.raises(nsd.BadInput, match=says):
        ours.get_deq()(func, start)


def test_a_gradient_of_the_gradient_is_refused():
    layer = Layer(ours, ift=True)
    states, _ = layer(data())
    with pytest.raises(nsd.BadInput, match="any order"):
        torch.autograd.grad(states[-1].sum(), layer.weight, create_graph=True)
