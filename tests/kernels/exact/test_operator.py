"""TiledKernel beyond the contract of operators: its tiles, densities and preconditioners."""

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.errors import BadInput, NotConverged
from notsodeep.kernels.exact import operator as triangle
from notsodeep.kernels.exact.operator import TiledKernel
from notsodeep.kernels.exact.preconditioners import Nystrom, Plain, Sharp, SharpNystrom
from tests.linalg.test_operators import INSTANCES, RELU, TANH, close, data, exact, normal

TILED = {name: each for name, each in INSTANCES.items() if isinstance(each.op(), TiledKernel)}


def test_density():
    for instance in TILED.values():
        op, twin = instance.op(), instance.twin()
        density = op.density(probes=20, steps=60)
        assert density.trace_of(lambda v: v).value == pytest.approx(float(twin.trace()), rel=0.1)
        assert density.quantile(1.0) == pytest.approx(float(torch.linalg.eigvalsh(twin)[-1]), rel=1e-9)


CHOICES = {
    "default": None,
    "plain": Plain(),
    "sharp": Sharp(),
    "sharp, all directions": Sharp(directions=12),
    "nystrom": Nystrom(rank=30),
    "sharp + nystrom": SharpNystrom(rank=20),
}


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES.keys())
@pytest.mark.parametrize("instance", TILED.values(), ids=TILED.keys())
def test_solve(instance, choice):
    op, twin = instance.op(), instance.twin()
    for v in (normal(90, seed=1), normal(90, 3, seed=2)):
        solution = op.solve(v, choice)
        assert solution.shape == v.shape
        close(twin @ solution, v, 1e-6)
    found = op.solve(np.ones(90), choice)
    np.testing.assert_allclose(twin.numpy() @ found, np.ones(90), rtol=1e-5)


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES.keys())
def test_logdet(choice):
    """Whatever the preconditioner; and the nearer it is, the smaller the error."""
    op = TiledKernel(RELU, data(), ridge=0.05)
    found = op.logdet(choice, probes=20, steps=60)
    expected = float(torch.logdet(op.to_dense()))
    assert abs(found.value - expected) <= 4 * found.error + 1e-6
    plain = op.logdet(Plain(), probes=20, steps=60)
    assert found.error <= plain.error * (1.0 if isinstance(choice, Plain) else 0.7)


@pytest.mark.parametrize("net", [RELU, TANH])
def test_float32(net):
    x = data(dtype=torch.float32)
    op = TiledKernel(net, x, tile=40, ridge=0.1)
    twin = exact(net, x.double(), "conjugate") + 0.1 * torch.eye(90).double()
    v = normal(90, 2, dtype=torch.float32)
    assert (op @ v).dtype == op.solve(v).dtype == op.eigsh(2)[1].dtype == torch.float32
    close((op @ v).double(), twin @ v.double(), 1e-5)
    close(twin @ op.solve(v).double(), v.double(), 1e-4)
    close(op.eigsh(2)[0].double(), torch.linalg.eigvalsh(twin).flip(0)[:2], 1e-5)


def test_passes_over_the_kernel():
    """Kept tiles are computed once, whatever is asked; others once a product, of however many vectors."""
    kept, lean = (TiledKernel(RELU, data(), tile=30, keep=keep) for keep in (True, False))
    for op in (kept, lean):
        op.matvec(normal(90, 50))
        op.add_ridge(0.1).matvec(normal(90))
        op.diagonal()
    assert (kept.tiles.passes, lean.tiles.passes) == (1, 2)
    found = lean.add_ridge(0.1).solution(normal(90, 5), Sharp())
    assert lean.tiles.passes == 2 + found.iterations + 1


def test_tiles_are_kept_where_they_fit(monkeypatch):
    assert TiledKernel(RELU, data()).tiles.keep
    monkeypatch.setattr(triangle, "available_bytes", lambda _: 3 * 8 * 90 * 90 // 2)
    lean = TiledKernel(RELU, data())
    assert not lean.tiles.keep
    assert "computed at every product" in repr(lean)
    assert repr(TiledKernel(RELU, data(), keep=True)) == "TiledKernel(n=90, conjugate, float64, tiles of 384 kept)"


ODD_DATA = {
    "norms over two decades": normal(40, 6) * torch.logspace(-1, 1, 40).double()[:, None] / 6**0.5,
    "equal samples": data(20, 6).repeat(2, 1),
    "a zero sample": torch.cat([torch.zeros(1, 6).double(), data(39, 6)]),
    "one direction": data(40, 1) @ normal(1, 6, seed=3),
    "far from the origin": data(40, 6) + 3.0,
    "three samples": data(3, 6),
}


@pytest.mark.parametrize("kernel", ["conjugate", "tangent"])
@pytest.mark.parametrize("phi", ["relu", "erf"])
@pytest.mark.parametrize("x", ODD_DATA.values(), ids=ODD_DATA.keys())
def test_the_sharp_preconditioner_is_positive_definite_on_any_data(x, phi, kernel):
    """Also where the sharp kernel itself is not: its diagonal part is floored, its negative directions are damped."""
    plain = TiledKernel(nsd.Implicit(phi, 0.15), x, kernel)
    op = plain.add_ridge(1e-3 * float(plain.trace()) / len(x))
    by = op.preconditioner(Sharp())
    inverse = by.solve(torch.eye(len(x)).double())
    assert float(torch.linalg.eigvalsh(0.5 * (inverse + inverse.T)).min()) > 0
    found = op.solution(normal(len(x), 1), Sharp())
    assert found.converged


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("choice", [None, Nystrom(100)], ids=["default", "nystrom"])
@pytest.mark.parametrize("net", [RELU, TANH])
def test_equal_samples_without_a_ridge(net, choice, dtype):
    """A singular kernel, a preconditioner of full rank: no sign is lost to round-off where the system has a solution."""
    op = TiledKernel(net, data(50, 20, dtype=dtype).repeat(2, 1), "tangent")
    right = op @ torch.ones(100, dtype=dtype)
    assert op.solution(right, choice).converged
    by, v = op.preconditioner(choice), normal(100, 20, dtype=dtype)
    assert bool(((v * by.solve(v)).sum(0) > 0).all())


def test_the_sharp_preconditioner_gains_as_the_data_grows():
    """n = 2p → ∞: the sharp kernel tends to the kernel, so its iterations do not grow; those without it do not fall."""
    taken = {}
    for p in (50, 100, 200):
        x = nsd.GaussianMixture.two_classes(p).sample(2 * p, torch.Generator().manual_seed(p))[0]
        op = TiledKernel(TANH, x, ridge=1e-3)
        right = normal(2 * p, 1)
        taken[p] = [op.solution(right, choice).iterations for choice in (Plain(), Sharp(), Nystrom(p))]
    plain, sharp, nystrom = taken[200]
    assert sharp <= 0.25 * plain
    assert sharp <= 0.6 * nystrom
    assert taken[200][1] <= taken[50][1]


def test_errors_carry_numbers_and_a_remedy():
    with pytest.raises(BadInput, match="conjugate, tangent, preactivation"):
        TiledKernel(RELU, data(), "gram")
    with pytest.raises(BadInput, match="not square"):
        TiledKernel(RELU, data(), tile=(2, 3))
    with pytest.raises(BadInput, match="ridge"):
        TiledKernel(RELU, data(), ridge=-1.0)
    with pytest.raises(BadInput, match="ridge"):
        TiledKernel(RELU, data()).add_ridge(torch.ones(3))
    for ridge in (float("nan"), float("inf"), torch.full((90,), torch.inf)):
        with pytest.raises(BadInput, match=r"NaN or infinity|not a finite number"):
            TiledKernel(RELU, data(), ridge=ridge)
    with pytest.raises(BadInput, match="'a' is not a number"):
        TiledKernel(RELU, data(), ridge="a")
    op = TiledKernel(RELU, data(), ridge=1e-6)
    with pytest.raises(BadInput, match=r"k = 1\.5"):
        op.eigsh(1.5)
    for choice in ("sharp", Sharp, 3):
        with pytest.raises(BadInput, match="choose Plain"):
            op.solve(normal(90), choice)
    with pytest.raises(BadInput, match=r"rank must be a whole number ≥ 1, got 1\.5"):
        op.solve(normal(90), Nystrom(1.5))
    for vector in ([1.0] * 90, np.ones(90, complex), np.full(90, "a"), torch.ones(90) * 1j):
        with pytest.raises(BadInput, match="real numbers in a tensor or a numpy array"):
            op.solve(vector)
    with pytest.raises(NotConverged, match="larger ridge"):
        op.solve(normal(90), Plain(), most=3)
