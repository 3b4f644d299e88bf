"""Networks trained in stacks: each as if alone, with their costs counted."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from notsodeep.errors import BadInput
from notsodeep.models.training.equal_cost import Samples, Schedule, equal_cost, evaluate, generators, train
from notsodeep.models.training.flops import Solves, deq_flops, fnn_flops, paired_width
from notsodeep.models.training.parallel import StackedDEQ, StackedFNN
from notsodeep.separation.pieces import count_pieces


def made_up(copies=3, n=200, d=4):
    draw = torch.Generator().manual_seed(5)
    x = torch.randn(copies, n, d, generator=draw)
    y = torch.sin(2.0 * x[..., :1])
    return Samples(x, y, x, y)


def build(kind, copies, d=4, **options):
    draws = generators(copies, 0)
    return StackedDEQ(draws, d, 6, **options) if kind == "deq" else StackedFNN(draws, d, (6, 5), **options)


@pytest.mark.parametrize("kind", ["deq", "fnn"])
def test_each_network_learns_as_it_would_alone(kind):
    """With gradients of the same samples: the sum over networks does not mix them, and neither does the optimiser."""
    samples = made_up()
    options = {"tol": 1e-6} if kind == "deq" else {}
    together, alone = build(kind, 3, **options), build(kind, 1, **options)
    for stack, x, y in ((together, samples.x, samples.y), (alone, samples.x[:1], samples.y[:1])):
        optimiser = Schedule(rate=1e-2).make(stack)
        before = evaluate(stack, x, y)[0]
        for _ in range(20):
            optimiser.zero_grad()
            (stack(x) - y).square().mean((1, 2)).sum().backward()
            optimiser.step()
            stack.constrain()
        assert evaluate(stack, x, y)[0] < 0.9 * before
    for many, single in zip(together.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(many[:1], single, atol=1e-4)


@pytest.mark.parametrize("kind", ["deq", "fnn"])
def test_training_lowers_the_loss_of_every_network(kind):
    samples = made_up()
    before = evaluate(build(kind, 3), samples.x_test, samples.y_test)
    found = train(build(kind, 3), samples, Schedule(steps=60, rate=1e-2), torch.Generator().manual_seed(1))
    assert all(after < 0.8 * float(start) for after, start in zip(found.test, before, strict=True))


@pytest.mark.parametrize("skip", [False, True])
def test_a_member_is_the_network_of_its_index(skip):
    x = torch.randn(7, 4)
    deq = build("deq", 3, skip=skip, tol=1e-6)
    assert torch.allclose(deq.member(1)(x), deq(x)[1], atol=1e-4)
    fnn = build("fnn", 3, skip=skip)
    if skip:
        with pytest.raises(BadInput, match="skip"):
            fnn.member(1)
    else:
        assert torch.allclose(fnn.member(1)(x), fnn(x)[1], atol=1e-6)


def test_members_of_one_input_have_pieces():
    assert 1 <= count_pieces(StackedDEQ(generators(2, 0), 1, 5).member(0), 0.0, 1.0) <= 2**5
    assert 1 <= count_pieces(StackedFNN(generators(2, 0), 1, (4,)).member(1), 0.0, 1.0) <= 5


def test_normalised_layers_have_no_member_and_unit_variance():
    stack = build("deq", 2, norm=True)
    with pytest.raises(BadInput, match="normalisation"):
        stack.member(0)
    h = stack.norm(torch.randn(2, 9, 6))
    assert torch.allclose(h.square().mean(-1), torch.ones(2, 9), atol=1e-3)


def test_parameters_of_the_paper():
    """W4: 2401, 2281 and 2801 parameters of the feed-forward networks; 241 of the DEQ (the paper counts a second bias)."""
    counts = [StackedFNN(generators(2, 0), 10, w, norm=True).parameter_count() for w in ((30,) * 3, (40,) * 2, (200,))]
    assert counts == [2401, 2281, 2801]
    assert StackedDEQ(generators(2, 0), 10, 10, norm=True).parameter_count() == 241


def test_flops_are_those_of_the_matrix_products():
    """Counted by torch itself, for the feed-forward network forwards and backwards."""
    layers = nn.Sequential(nn.Linear(7, 11, bias=False), nn.ReLU(), nn.Linear(11, 3, bias=False))
    x = torch.randn(10, 7)
    with FlopCounterMode(display=False) as forward:
        y = layers(x).sum()
    with FlopCounterMode(display=False) as backward:
        y.backward()
    found = fnn_flops([7, 11, 3])
    assert 10 * found.forward == forward.get_total_flops()
    assert 10 * found.backward == backward.get_total_flops()


def test_flops_of_an_equilibrium_grow_with_its_evaluations():
    few, many = (deq_flops(7, 5, 2, Solves(k), Solves(k)) for k in (3, 10))
    assert many.forward - few.forward == 7 * 2 * 25
    assert many.backward - few.backward == 7 * 2 * 25
    assert deq_flops(7, 5, 2, Solves(3, 100.0), Solves(3)).forward == few.forward + 100.0


def test_a_solver_s_evaluations_are_counted():
    stack = build("deq", 2, tol=1e-5)
    stack(torch.randn(2, 8, 4)).sum().backward()
    assert stack.ahead.solves.evaluations >= 2
    assert stack.back.solves.evaluations >= 2
    tighter = build("deq", 2, tol=1e-7)
    tighter(torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0))).sum().backward()
    assert tighter.flops().forward > 2 * 4 * 6 + 2 * 36 + 2 * 6


@pytest.mark.parametrize("hidden", [1, 2, 3])
def test_paired_width_is_the_widest_that_costs_no_more(hidden):
    width = paired_width(9, hidden, 1, 50_000.0)
    assert fnn_flops([9, *[width] * hidden, 1]).training <= 50_000.0
    assert fnn_flops([9, *[width + 1] * hidden, 1]).training > 50_000.0
    with pytest.raises(BadInput, match="one hidden layer"):
        paired_width(9, 0, 1, 1e4)


def test_equal_cost_is_of_what_the_deq_took():
    samples = made_up()
    deq = train(build("deq", 3), samples, Schedule(steps=5), torch.Generator().manual_seed(0))
    widths = equal_cost(deq, 4, 2, 1)
    rival = train(StackedFNN(generators(3, 0), 4, widths), samples, Schedule(steps=5), torch.Generator().manual_seed(0))
    assert 0.8 * deq.flops.training <= rival.flops.training <= deq.flops.training


def test_the_bound_holds_after_every_step():
    stack = build("deq", 2, bound=0.5)
    seen = []
    train(
        stack,
        made_up(2),
        Schedule(steps=20, rate=0.1),
        torch.Generator().manual_seed(0),
        lambda step, now: seen.append((step, float(torch.linalg.matrix_norm(now.W.detach(), 2).max()))),
    )
    assert [step for step, _ in seen] == list(range(1, 21))
    assert max(norm for _, norm in seen) <= 0.5 + 1e-5


def test_a_network_that_diverges_is_told_and_leaves_the_others_alone():
    samples = made_up(2)
    stack = build("fnn", 2)
    with torch.no_grad():
        stack.weights[0][1] *= 1e18
    found = train(stack, samples, Schedule(steps=10, rate=1e-2), torch.Generator().manual_seed(0))
    assert found.diverged[0] is None
    assert found.test[0] is not None
    lost = build("fnn", 2)
    with torch.no_grad():
        lost.A[1] *= float("nan")
    found = train(lost, samples, Schedule(steps=10, rate=1e-2), torch.Generator().manual_seed(0))
    assert found.diverged == (None, 0)
    assert [found.test[1], found.train[1], found.largest_weight[1]] == [None] * 3
    assert found.test[0] is not None


def test_the_best_constant_is_the_mean_of_the_training_samples():
    x = torch.zeros(4, 1)
    samples = Samples(x, torch.tensor([[0.0], [0.0], [1.0], [1.0]]), x, torch.tensor([[0.0], [0.0], [0.0], [1.0]]))
    assert samples.best_constant == pytest.approx(0.25)


def test_an_unknown_optimiser_is_refused():
    with pytest.raises(BadInput, match="adamw or sgd"):
        Schedule(optimiser="lion").make(build("fnn", 1))
