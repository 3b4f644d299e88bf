"""The multiscale DEQ and the residual network beside it."""

import pytest
import torch
from torch.nn import functional

import notsodeep as nsd
from notsodeep.errors import BadInput
from notsodeep.fixed_points.adjoint import PhantomAdjoint, UnrolledAdjoint
from notsodeep.models.training.fit import fit
from notsodeep.models.training.objective import Batches, score
from notsodeep.papers.wu2024.w7_images import made_up
from notsodeep.papers.wu2024.w7_networks import MultiscaleDEQ, ResidualNetwork


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def exact(adjoint, **changes):
    """A tiny DEQ in float64, solved to round-off."""
    settings = {"tol": 1e-12, "max_steps": 200} | changes
    return MultiscaleDEQ(3, (2, 4), adjoint=adjoint, generator=seeded(0), **settings).double()


def draw(n, side=8, dtype=torch.float64):
    return torch.randn(n, 3, side, side, generator=seeded(1), dtype=dtype)


def gradients(module, x):
    y = torch.arange(len(x)) % 3
    inputs = x.clone().requires_grad_()
    functional.cross_entropy(module(inputs), y).backward()
    return [inputs.grad, *(weight.grad for weight in module.parameters())]


@pytest.mark.parametrize("adjoint", [nsd.ImplicitAdjoint(), PhantomAdjoint(steps=80), UnrolledAdjoint()])
def test_the_gradient_is_that_of_the_iteration_written_out(adjoint):
    module, x = exact(adjoint, solver=nsd.Picard()), draw(3)
    found = gradients(module, x)
    inputs = x.clone().requires_grad_()
    module.zero_grad()
    u = module.injections(inputs)
    state = tuple(torch.zeros_like(part) for part in u)
    for _ in range(150):
        state = module.step(state, *u)
    functional.cross_entropy(module.head(*state), torch.arange(3)).backward()
    wanted = [inputs.grad, *(weight.grad for weight in module.parameters())]
    assert all(float(g.abs().max()) > 1e-8 for g in wanted)  # every weight matters
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-10)


def test_the_usual_gradient_points_the_same_way():
    module, x = MultiscaleDEQ(3, (4, 8), generator=seeded(0)).double(), draw(8, 16)
    cheap = torch.cat([g.flatten() for g in gradients(module, x)[1:]])
    module.zero_grad()
    module.adjoint, module.tol, module.max_steps = nsd.ImplicitAdjoint(), 1e-10, 200
    true = torch.cat([g.flatten() for g in gradients(module, x)[1:]])
    assert float(functional.cosine_similarity(cheap, true, dim=0)) > 0.99


def test_solve_gives_a_state_that_the_map_leaves_as_it_is():
    module, x = exact(nsd.ImplicitAdjoint()), draw(4, 16)
    with torch.no_grad():
        found = module.solve(x)
        high, low = found.value
        again = module.step(found.value, *module.injections(x))
    assert (high.shape, low.shape) == ((4, 2, 8, 8), (4, 4, 4, 4))
    assert bool(found.converged.all())
    assert found.steps.shape == (4,)
    torch.testing.assert_close(again[0], high, rtol=0.0, atol=1e-10)
    torch.testing.assert_close(again[1], low, rtol=0.0, atol=1e-10)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("channels", [(4, 8), (16, 32), (32, 64)])
def test_it_contracts_at_the_start(channels, seed):
    module = MultiscaleDEQ(10, channels, solver=nsd.Picard(), tol=1e-3, generator=seeded(seed))
    with torch.no_grad():
        found = module.solve(draw(16, 32, torch.float32))
    assert bool(found.converged.all())
    assert float(found.steps.double().mean()) < 16.0


@pytest.mark.parametrize("channels", [(4, 8), (8, 16), (16, 32), (32, 64), (64, 128), (24, 48)])
def test_both_are_of_like_size(channels):
    deq, resnet = (
        sum(weight.numel() for weight in kind(10, channels).parameters()) for kind in (MultiscaleDEQ, ResidualNetwork)
    )
    assert abs(resnet - deq) <= 0.1 * deq


@pytest.mark.parametrize("kind", [MultiscaleDEQ, ResidualNetwork])
def test_weights_come_from_the_generator_alone(kind):
    before = torch.get_rng_state()
    first, again, other = (kind(10, (4, 8), generator=seeded(seed)).state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["stem.0.weight"], other["stem.0.weight"])


@pytest.mark.parametrize("kind", [MultiscaleDEQ, ResidualNetwork])
def test_a_sample_does_not_depend_on_its_batch(kind):
    module, x = kind(10, (4, 8), generator=seeded(0)).double(), draw(5, 16)
    if isinstance(module, MultiscaleDEQ):
        module.tol, module.max_steps = 1e-11, 200
    with torch.no_grad():
        torch.testing.assert_close(module(x)[:2], module(x[:2]), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("kind", [MultiscaleDEQ, ResidualNetwork])
def test_both_learn(kind):
    x, y = made_up(640, seeded(0))
    test_x, test_y = made_up(128, seeded(1))
    x, test_x = ((part.reshape(-1, 3, 32, 32) - 0.5) / 0.1 for part in (x, test_x))
    module = kind(10, (8, 16), generator=seeded(0))
    optimiser = torch.optim.AdamW(module.parameters(), lr=2e-2)
    with torch.no_grad():
        before = score(module(test_x), test_y)
    fit(module, Batches(x, y, 32, seeded(2)), 3, optimiser=optimiser, progress=False)
    with torch.no_grad():
        after = score(module(test_x), test_y)
    assert before < 0.3
    assert after > 0.8


@pytest.mark.parametrize("kind", [MultiscaleDEQ, ResidualNetwork])
def test_what_cannot_be_used_is_told(kind):
    with pytest.raises(BadInput, match=r"two counts.*\(8,\)"):
        kind(10, (8,))
    with pytest.raises(BadInput, match=r"multiples of 4; got \(2, 3, 30, 30\)"):
        kind(10, (4, 8))(torch.zeros(2, 3, 30, 30))
    with pytest.raises(BadInput, match="classes"):
        kind(0, (4, 8))
