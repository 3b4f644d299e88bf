"""What callers have and do: tensors with a graph, modules that remember, guard and count, maps of global names."""

import threading

import pytest
import torch
from torch import nn

import notsodeep as nsd
from notsodeep.models.compiler.foreign import found_in
from notsodeep.models.compiler.frontier import Answers
from notsodeep.models.compiler.trial import Trial

from .test_foreign import QUIET, Loop, Looping, Own, Shown, X

Y = X[:, :3].argmax(1)


def test_no_gradient_reaches_the_caller_s_tensors():
    x, encoder = X.clone().requires_grad_(), nn.Linear(6, 6)
    y = (2.0 * X[:, :3]).requires_grad_()
    trained = {"budget": 0.4, "progress": False}
    nsd.compile_deq(Own(), x, y, **trained)
    nsd.compile_deq(Own(), encoder(X), Y, augment=lambda batch: batch + 0.1 * encoder(batch), **trained)
    assert x.grad is None
    assert y.grad is None
    assert all(weight.grad is None for weight in encoder.parameters())


class Remembering(Own):
    """It keeps its last state."""

    def solved(self, x):
        self.last = super().solved(x)
        return self.last


def test_a_module_that_keeps_its_last_state():
    module = Remembering().eval()
    with torch.no_grad():
        module(X[:2])
    compiled = nsd.compile_deq(module, X, Y, budget=0.4, progress=False)
    assert compiled.frontier["1 learnt step"].kept > 0.5
    module(X[:2])
    with pytest.raises(nsd.BadInput, match=r"cannot be copied.*must be detached"):
        nsd.compile_deq(module, X, **QUIET)


class Guarded(Own):
    """It answers for samples that have converged, and insists on them."""

    def forward(self, x):
        u = self.into(x)
        found = nsd.fixed_point(lambda z: torch.tanh(self.inner(z) + u), torch.zeros_like(u), throw=False)
        assert bool(found.converged.all())
        return self.head(torch.where(found.converged[:, None], found.value, torch.nan))


def test_a_module_that_asks_whether_samples_have_converged():
    names = [way.name for way in nsd.compile_deq(Guarded().eval(), X, budget=0.4, progress=False).frontier.ways]
    assert {"the DEQ cut after 2 steps", "1 learnt step"} <= set(names)


class Drawing(Own):
    """Its solver begins anywhere."""

    def solved(self, x):
        u = self.into(x)
        return nsd.fixed_point(lambda z: torch.tanh(self.inner(z) + u), torch.randn_like(u)).value


def test_the_caller_s_random_numbers_stay_where_they_are():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    module = Drawing().eval()
    torch.random.set_rng_state(before)
    nsd.compile_deq(module, X, **QUIET)
    assert torch.equal(torch.random.get_rng_state(), before)


NET = nn.Sequential(nn.Linear(6, 8), Loop(), nn.Linear(8, 3))


def test_a_map_that_finds_its_model_by_a_global_name():
    model = NET.eval()
    compiled = nsd.compile_deq(
        model, X, Y, layer=model[1], map=lambda z, u: torch.tanh(NET[1].inner(z) + u), budget=0.4, progress=False
    )
    assert all(weight.grad is None for weight in model.parameters())
    ways = [way.module for way in compiled.frontier.ways]
    with torch.no_grad():
        before = [way(X) for way in ways[1:]]
        kept = NET[1].inner.weight.clone()
        NET[1].inner.weight.zero_()
        after = [way(X) for way in ways[1:]]
        NET[1].inner.weight.copy_(kept)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_held_out_samples_have_no_part_in_the_making():
    def frontier(x):
        return nsd.compile_deq(Shown(), x, generator=torch.Generator().manual_seed(0), **QUIET).frontier

    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))
    other = X.clone()
    other[order[: len(X) // 5]] *= 5.0
    one, two = (frontier(x)["the linear response"].module for x in (X, other))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    with torch.no_grad():
        assert torch.equal(one(X), two(X))


def test_another_equilibrium_than_the_layer_s_own_is_told():
    class Far(Loop):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 8)
            with torch.no_grad():
                self.inner.weight.copy_(3.0 * torch.eye(8))
                self.inner.bias.zero_()

        def forward(self, u):
            z = torch.full_like(u, 5.0)
            for _ in range(60):
                z = self.f(z, u)
            return z

    model = Looping()
    model.deq = Far()
    with torch.no_grad():
        for weight in model.into.parameters():
            weight.mul_(0.3)
    found = found_in(model, X, "deq", model.deq.f)
    assert any("other equilibria" in note for note in found.notes)
    assert not found_in(Looping(), X, "deq", Looping().deq.f).notes


def test_what_is_taken_for_scores_of_classes_is_told():
    assert "taken for scores" in nsd.compile_deq(Own(2), X, **QUIET).frontier.verdict
    assert "taken for scores" not in nsd.compile_deq(Own(2), X, X[:, :2], **QUIET).frontier.verdict


def test_numbers_of_tokens_are_judged_each_by_its_own_spread():
    draw = torch.Generator().manual_seed(0)
    wanted = torch.randn(50, 4, 2, generator=draw) * torch.tensor([1.0, 1e-3])
    assert Answers(wanted, None).error(wanted * torch.tensor([1.0, 0.0])) == pytest.approx(0.5**0.5, rel=0.05)


def test_samples_that_judge_are_those_that_steps_are_counted_on():
    others = torch.randn(20, 6)
    trial = Trial(X, torch.arange(60), torch.arange(0), torch.zeros(60, 3), unseen=(others, None))
    assert torch.equal(trial.batch(25), others[torch.arange(25) % 20])


class Locked(Own):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class Fixed(Own):
    @torch.no_grad()
    def forward(self, x):
        return super().forward(x)


class Chosen(Own):
    def forward(self, x):
        return super().forward(x).argmax(1)


class Turned(Own):
    def forward(self, x):
        return super().forward(x).to(torch.complex64)


@pytest.mark.parametrize(
    ("make", "options", "says"),
    [
        (Locked, QUIET, "cannot be copied"),
        (Fixed, {"budget": 0.2, "progress": False}, "have no gradient, so nothing can be trained"),
        (Chosen, QUIET, r"one tensor of floats.*returns torch.int64, shape \(60,\)"),
        (Turned, QUIET, "one tensor of floats.*complex64"),
    ],
)
def test_modules_that_cannot_be_compiled(make, options, says):
    with pytest.raises(nsd.BadInput, match=says):
        nsd.compile_deq(make().eval(), X, **options)


def test_rows_backwards_and_autocast():
    module = Own().eval()
    assert nsd.compile_deq(module, X.numpy()[::-1], **QUIET).certificate.samples == 60
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(nsd.BadInput, match=r"outside of torch\.autocast"):
        nsd.compile_deq(module, X, **QUIET)
