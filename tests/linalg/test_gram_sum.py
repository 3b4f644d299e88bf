"""Gram matrices summed over blocks, and what they say of low rank + diagonal."""

import pytest
import torch

from notsodeep.linalg.gram_sum import GramSum
from notsodeep.linalg.low_rank import Capacitance


def _draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("p", [1, 5, 300])  # 300 features are cut into panels
@pytest.mark.parametrize("terms", [0, 1, 3])
def test_sum_over_blocks_is_the_whole(p, terms):
    x, scales, narrow, weights = _draw(40, p), _draw(40, terms), _draw(40, 4), _draw(40)
    total = GramSum(terms, p, 4)
    for part in torch.arange(40).split(17):
        total.add(x[part], scales[part], narrow[part], weights[part])
    u = torch.cat([x * scale[:, None] for scale in scales.T] + [narrow], dim=1)
    assert torch.allclose(total.matrix(), u.T @ (u * weights[:, None]), rtol=1e-10, atol=1e-10)


def test_capacitance_against_the_dense_matrix():
    u, d, core = _draw(30, 4), 1.0 + _draw(30, seed=1).square(), _draw(4, 4, seed=2)
    core = core + core.T
    system = Capacitance(core, u.T @ (u / d[:, None]))
    dense = u @ core @ u.T + torch.diag(d)
    inverse = torch.linalg.inv(dense)
    assert torch.allclose(u @ system.inner @ (u / d[:, None]).T, u @ core @ u.T @ inverse, rtol=1e-8, atol=1e-10)
    assert torch.allclose(system.solve(torch.eye(4, dtype=torch.float64)), system.inner, rtol=1e-8, atol=1e-10)
    sign, logdet = torch.linalg.slogdet(dense)
    found = system.logdet() + float(d.log().sum())
    assert found == pytest.approx(float(logdet)) if sign > 0 else found != found
    scaled = (u @ core @ u.T) / d.sqrt() / d.sqrt()[:, None]
    values, vectors = system.ritz(2)
    assert torch.allclose(values, torch.linalg.eigvalsh(scaled).flip(0)[:2])
    assert torch.allclose(scaled @ (u @ vectors / d.sqrt()[:, None]), values * (u @ vectors / d.sqrt()[:, None]), atol=1e-9)
