"""`inputs`: samples that are done leave the batch, and nothing else changes."""

import pytest
import torch

import notsodeep as nsd

from .maps import contraction

N = 24


class Counted:
    """tanh(rate·W z + u), where a sample's rate decides how long it takes; counts rows."""

    def __init__(self):
        self.weight, self.u = (t.requires_grad_() for t in contraction(N, 6, radius=0.97))
        self.rate = torch.linspace(0.0, 1.0, N, dtype=torch.float64)[:, None] ** 4
        self.rows = 0

    def __call__(self, z, rate, u):
        self.rows += len(z)
        assert len(rate) == len(u) == len(z)
        return torch.tanh(rate * (z @ self.weight.T) + u)

    def solve(self, leaving, solver, **options):
        tensors = (self.rate, 0.1 * self.u)
        given = {"inputs": tensors} if leaving else {"args": tensors}
        self.rows = 0
        found = nsd.fixed_point(
            self, torch.zeros_like(self.u), solver, nsd.ImplicitAdjoint(tol=1e-12), **given, max_steps=1000, **options
        )
        rows = self.rows
        return found, rows, torch.autograd.grad(found.value.square().sum(), (self.weight, self.u))


@pytest.mark.parametrize("solver", [nsd.Picard(), nsd.Anderson(engage=0.0), nsd.Broyden(engage=0.0)])
def test_fewer_rows_and_the_same_results(solver):
    f = Counted()
    (whole, all_rows, gradients), (found, rows, others) = (f.solve(leaving, solver) for leaving in (False, True))
    assert rows < 0.8 * all_rows
    assert bool(found.converged.all())
    assert torch.equal(found.steps, whole.steps)
    torch.testing.assert_close(found.value, whole.value, rtol=0.0, atol=1e-8)
    with torch.no_grad():
        image = f(found.value, f.rate, 0.1 * f.u)
        torch.testing.assert_close((image - found.value).norm(dim=1) / image.norm(dim=1), found.residual)
    for a, b in zip(gradients, others, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-8)


def test_second_derivatives_and_transforms():
    weight, x = (t.requires_grad_() for t in contraction(2, 2))
    run = lambda weight, x: (  # noqa: E731
        nsd.fixed_point(lambda z, u: torch.tanh(z @ weight.T + u), torch.zeros_like(x), inputs=(x,), tol=1e-13).value
    )
    assert torch.autograd.gradgradcheck(run, (weight, x))
    torch.testing.assert_close(torch.vmap(lambda v: run(weight, v))(x[:, None])[:, 0], run(weight, x))


def test_states_of_several_tensors():
    f = Counted()

    def halves(state, rate, u):
        return f(torch.cat([state["a"], state["b"].flatten(1)], dim=1), rate, u).tensor_split([2], dim=1)

    def g(state, rate, u):
        a, b = halves(state, rate, u)
        return {"a": a, "b": b.unflatten(1, (2, 2))}

    start = {"a": torch.zeros(N, 2).double(), "b": torch.zeros(N, 2, 2).double()}
    with torch.no_grad():
        found = nsd.fixed_point(g, start, nsd.Picard(), inputs=(f.rate, f.u), max_steps=1000)
        wanted = nsd.fixed_point(f, torch.zeros_like(f.u), nsd.Picard(), args=(f.rate, f.u), max_steps=1000).value
    assert f.rows < 2 * N * found.evaluations
    torch.testing.assert_close(torch.cat([found.value["a"], found.value["b"].flatten(1)], dim=1), wanted)


def test_a_sample_that_fails_does_not_stop_the_others():
    rate = torch.tensor([[0.1], [0.5], [3.0], [0.9]], dtype=torch.float64)
    found = nsd.fixed_point(
        lambda z, a: a * z + 1.0, torch.zeros(4, 2).double(), nsd.Picard(), inputs=(rate,), max_steps=400, throw=False
    )
    assert found.converged.tolist() == [True, True, False, True]
    torch.testing.assert_close(found.value[[0, 1, 3]], (1.0 / (1.0 - rate[[0, 1, 3]])).expand(3, 2))


@pytest.mark.parametrize(
    ("inputs", "samples", "says"),
    [
        ((torch.ones(4, 6),), None, "one row for each sample, and the state has 3"),
        ((torch.tensor(1.0),), None, "args"),
        (torch.ones(3, 6), None, "tuple of tensors"),
        ((torch.ones(3, 6),), 2, "first axis; here 12 samples"),
        ((torch.ones(3, 6),), 0, "first axis; here 1 samples"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(inputs, samples, says):
    start = torch.zeros(3, 4, 2) if samples == 2 else torch.zeros(3, 6)
    with pytest.raises(nsd.BadInput, match=says):
        nsd.fixed_point(lambda z, u: 0.5 * z + u, start, inputs=inputs, samples=samples)
