"""One hidden layer, exactly, on inputs of equal norm."""

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.matching.hermite import sphere_series


@pytest.fixture(scope="module")
def sphere():
    x = torch.randn(300, 120, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    return 1.4 * x / x.norm(dim=1, keepdim=True)


def off_diagonal_norm(a, b):
    gap = (a - b).clone().fill_diagonal_(0.0)
    return float(torch.linalg.matrix_norm(gap, 2))


@pytest.mark.parametrize(("match", "kernel"), [("conjugate", nsd.conjugate_kernel), ("tangent", nsd.tangent_kernel)])
@pytest.mark.parametrize("name", ["tanh", "silu", "elu", "relu"])
def test_exact_off_the_diagonal_on_a_sphere(sphere, name, match, kernel):
    """Whatever the truncation misses on the diagonal is a multiple of I."""
    net = nsd.Implicit(name, 0.2)
    found = nsd.design(net, x=sphere, family="hermite:60", match=match)
    deq, explicit = kernel(net, sphere), kernel(found.explicit, sphere)
    assert off_diagonal_norm(deq, explicit) <= 1e-10
    missed = (deq - explicit).diagonal()
    assert float(missed.max() - missed.min()) <= 1e-12


def test_more_terms_miss_less(sphere):
    net = nsd.Implicit("relu", 0.2)
    gaps = [nsd.design(net, x=sphere, family=f"hermite:{k}").measured.gap for k in (4, 8, 16, 32)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 0.1 * gaps[0]


@pytest.mark.parametrize("match", ["conjugate", "tangent"])
def test_series_sums_to_the_exact_kernel(match):
    """At s = S/τ0² the series is the kernel of two samples with that inner product."""
    net, tau0 = nsd.Implicit("tanh", 0.24, 0.6), 1.2
    _, series = sphere_series(net, tau0, 80, match)
    kernel = nsd.conjugate_kernel if match == "conjugate" else nsd.tangent_kernel
    for s in (-0.8, 0.1, 0.7):
        x = tau0 * torch.tensor([[1.0, 0.0], [s, (1 - s * s) ** 0.5]], dtype=torch.float64)
        assert float(np.polyval(series[::-1], s)) == pytest.approx(float(kernel(net, x, tau0=tau0)[0, 1]), abs=1e-11)
    assert (series > -1e-15).all()


def test_designed_activation_stays_close_to_the_own_one():
    """The signs follow φ's coefficients, so that σ resembles a multiple of φ where both are smooth."""
    found = nsd.design(nsd.Implicit("tanh", 0.2), family="hermite:30")
    x = torch.linspace(-1.5, 1.5, 50, dtype=torch.float64)
    correlation = torch.corrcoef(torch.stack([torch.tanh(x), found.explicit.layers[0](x)]))[0, 1]
    assert float(correlation) > 0.999


def test_varying_norms_are_said_and_answered_with_fewer_terms():
    x = torch.randn(200, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) / 30**0.5
    found = nsd.design(nsd.Implicit("elu", 0.2), x=x, family="matched")
    assert found.family.startswith("hermite:")
    assert int(found.family.split(":")[1]) < 40
    assert "norms of this data spread" in found.summary()
    assert found.measured.gap < 0.05
