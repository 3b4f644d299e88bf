"""Structured kernels of new samples against old ones: the rows that the square kernel would have."""

import pytest
import torch

import notsodeep as nsd
from notsodeep.kernels.structured.equivalent import equivalent_cross
from notsodeep.kernels.structured.sharp import sharp_cross
from notsodeep.tolerances import SEPARABLE_RTOL

NETS = {
    "relu": nsd.Implicit("relu", 0.2),
    "tanh": nsd.Implicit("tanh", 0.15),
    "explicit": nsd.Explicit(["relu", "tanh"]).centred(1.0),
}


def mixture(n, p=120, seed=0):
    return nsd.GaussianMixture.two_classes(p).sample(n, torch.Generator().manual_seed(seed))[0]


@pytest.mark.parametrize("kernel", ["conjugate", "tangent"])
@pytest.mark.parametrize("name", NETS)
def test_beside_the_diagonal_a_kernel_is_its_own_cross_kernel(name, kernel):
    x = mixture(90)
    off = ~torch.eye(90, dtype=torch.bool)
    square = nsd.sharp_kernel(NETS[name], x, kernel).to_dense()
    cross = sharp_cross(NETS[name], x, x, kernel)
    # The square one is a sum of products of functions of one sample, up to that tolerance; the cross one is not.
    torch.testing.assert_close(cross[off], square[off], rtol=0.0, atol=SEPARABLE_RTOL * float(square.abs().max()))
    square = nsd.equivalent_kernel(NETS[name], x, nsd.MixtureStatistics.from_data(x), kernel).to_dense()
    cross = equivalent_cross(NETS[name], x, x, kernel)
    torch.testing.assert_close(cross[off], square[off], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kernel", ["conjugate", "tangent"])
def test_the_sharp_rows_are_close_to_the_exact_ones(kernel):
    x, new = mixture(300), mixture(80, seed=1)
    compute = nsd.conjugate_kernel if kernel == "conjugate" else nsd.tangent_kernel
    exact = compute(NETS["relu"], new, x, tau0=nsd.tau0(x))
    size = torch.linalg.matrix_norm(exact, 2)
    sharp = torch.linalg.matrix_norm(sharp_cross(NETS["relu"], new, x, kernel) - exact, 2) / size
    loose = torch.linalg.matrix_norm(equivalent_cross(NETS["relu"], new, x, kernel) - exact, 2) / size
    assert sharp < 0.02
    assert sharp < loose < 0.3


def test_a_row_does_not_depend_on_the_other_new_samples():
    x, new = mixture(60), mixture(10, seed=1) * torch.linspace(0.2, 5.0, 10, dtype=torch.float64)[:, None]
    for cross in (sharp_cross, equivalent_cross):
        whole = cross(NETS["relu"], new, x)
        torch.testing.assert_close(torch.cat([cross(NETS["relu"], row[None], x) for row in new]), whole, rtol=1e-9, atol=1e-12)


def test_numpy_in_numpy_out_and_dtypes():
    x, new = mixture(20).numpy(), mixture(5, seed=1).float()
    assert sharp_cross(NETS["relu"], x[:3], x).shape == (3, 20)
    assert isinstance(equivalent_cross(NETS["relu"], x[:3], x), type(x))
    assert sharp_cross(NETS["relu"], new, mixture(20)).dtype == torch.float32


def test_other_features():
    for cross in (sharp_cross, equivalent_cross):
        with pytest.raises(nsd.BadInput, match="x has 60 features and x2 has 120"):
            cross(NETS["relu"], mixture(5, 60), mixture(6))
