"""The fused pair solver and its slow twin, the pair equation itself: what the tests of both compare."""

import math

import pytest
import torch
from torch import Tensor

import notsodeep as nsd
from notsodeep.kernels.exact.solver import Prepared, prepare
from tests.zoo import build

KERNELS = ("conjugate", "tangent", "preactivation")
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
"""Of the largest entry. Measured over the zoo: 1.4e-13 and 3.6e-6."""
both_precisions = pytest.mark.parametrize("dtype", TOLERANCE, ids=["float64", "float32"])
NETS = {
    "relu": nsd.Implicit("relu", 0.2),
    "relu plain": nsd.Implicit("relu", 0.2, centre=False),
    "tanh": nsd.Implicit("tanh", 0.2),
    "gelu plain": nsd.Implicit("gelu", 0.15, centre=False),
    "hard_tanh": nsd.Implicit("hard_tanh", 0.2),
}
every_net = pytest.mark.parametrize("net", NETS.values(), ids=NETS)


def samples(n: int, p: int, seed: int = 0) -> Tensor:
    return torch.randn(n, p, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) / math.sqrt(p)


def alike(n: int, p: int, seed: int = 0) -> Tensor:
    """Positive samples, like images: correlations from .3 to .99."""
    draw = torch.Generator().manual_seed(seed)
    common, own, share = (torch.rand(s, dtype=torch.float64, generator=draw) for s in ((1, p), (n, p), (n, 1)))
    return (share * common + (1.0 - share) * own**3) * (1.5 / math.sqrt(p))


def network(name: str, centre: bool = True) -> nsd.Implicit:
    """A DEQ of a zoo activation that surely has an equilibrium."""
    phi = build(name)
    bounded = 0.0 < phi.lipschitz < math.inf
    return nsd.Implicit(phi, min(0.2, 0.2 / phi.lipschitz**2) if bounded else 0.02, 0.8, centre=centre)


def twins(net, x: Tensor, x2: Tensor | None = None) -> tuple[Prepared, Prepared]:
    fused, plain = (prepare(net, x, x2, tangent=False, fused=fused) for fused in (True, False))
    assert fused.engine is not None
    assert plain.engine is None
    return fused, plain


def filled(prepared: Prepared, kernels: tuple[str, ...] = KERNELS) -> list[Tensor]:
    found = [torch.full(prepared.shape, math.nan, dtype=prepared.rows.dtype) for _ in kernels]
    prepared.fill(tuple(found), kernels)
    return found


def error(ours: Tensor, twin: Tensor) -> float:
    """The largest difference over the largest entry."""
    assert ours.dtype == twin.dtype
    assert ours.shape == twin.shape
    return float((ours.double() - twin.double()).abs().max() / twin.double().abs().max())


def assert_twins(net, x: Tensor, x2: Tensor | None = None, tol: float | None = None) -> None:
    fused, plain = twins(net, x, x2)
    for name, ours, twin in zip(KERNELS, filled(fused), filled(plain), strict=True):
        assert error(ours, twin) <= (tol or TOLERANCE[x.dtype]), name
        if x2 is None:
            assert torch.equal(ours, ours.T), name
            assert torch.equal(ours.diagonal(), getattr(fused.equation.diagonal(slice(None)), name).to(x.dtype)), name
