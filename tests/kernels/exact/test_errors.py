"""What the exact kernels refuse, and what they warn about, with the numbers that they promise."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor

import notsodeep as nsd
from notsodeep.activations import Scaled
from tests.kernels import reference
from tests.kernels.reference import PHI, worst_gap

RELU = nsd.Implicit("relu", 0.2)


def _x(n: int = 6, p: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(n, p, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) / math.sqrt(p)


# Arrays


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_rows_that_are_not_finite_are_named(bad):
    x = _x()
    x[2, 1] = x[4, 0] = bad
    with pytest.raises(nsd.BadInput, match="row 2, 4") as error:
        nsd.conjugate_kernel(RELU, x)
    assert error.value.rows == [2, 4]
    with pytest.raises(nsd.BadInput, match="x2 holds"):
        nsd.tangent_kernel(RELU, _x(), x)


@pytest.mark.parametrize("shape", [(4,), (2, 3, 4), ()])
def test_wrong_dimensions_are_refused(shape):
    with pytest.raises(nsd.BadInput, match=r"expected \(n, p\)"):
        nsd.conjugate_kernel(RELU, torch.ones(shape, dtype=torch.float64))


@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
def test_empty_arrays_are_refused(shape):
    with pytest.raises(nsd.BadInput, match="empty"):
        nsd.conjugate_kernel(RELU, torch.ones(shape, dtype=torch.float64))


def test_x2_with_other_features_is_refused():
    with pytest.raises(nsd.BadInput, match="4 features and x2 has 3"):
        nsd.conjugate_kernel(RELU, _x(), _x(p=3))


@pytest.mark.parametrize("x", [[[1.0, 2.0]], None, np.array([["a", "b"]]), np.ones((2, 2), dtype=complex)], ids=repr)
def test_what_is_no_array_of_numbers_is_refused(x):
    with pytest.raises(nsd.BadInput):
        nsd.conjugate_kernel(RELU, x)


def test_what_is_no_network_is_refused():
    with pytest.raises(nsd.BadInput):
        nsd.conjugate_kernel("relu", _x())


@pytest.mark.parametrize("tau0", [0.0, -1.0, float("nan"), float("inf")])
def test_tau0_must_be_positive(tau0):
    with pytest.raises(nsd.BadInput, match="tau0"):
        nsd.conjugate_kernel(RELU, _x(), tau0=tau0)


def test_an_unknown_readout_is_refused_with_the_known_ones():
    with pytest.raises(nsd.BadInput, match="choose from features, preactivation"):
        nsd.tangent_kernel(RELU, _x(), readout="logits")


def test_a_kernel_too_large_for_the_memory_is_refused_before_any_work(monkeypatch):
    monkeypatch.setattr("notsodeep.arrays.available_bytes", lambda _: 100)
    with pytest.raises(nsd.BadInput, match="sharp_kernel or equivalent_kernel") as error:
        nsd.conjugate_kernel(RELU, _x())
    assert error.value.needed == 6 * 6 * 8
    assert error.value.available == 100
    with pytest.raises(nsd.BadInput) as error:
        nsd.exact_kernels(RELU, _x().float())
    assert error.value.needed == 2 * 6 * 6 * 4
    with pytest.raises(nsd.BadInput, match="sharp_kernel"):
        nsd.kernels.sharp_entries(RELU, _x())
    low_rank = nsd.sharp_kernel(RELU, _x())  # is not the size of the kernel
    assert low_rank.matvec(torch.ones(6, dtype=torch.float64)).shape == (6,)
    with pytest.raises(nsd.BadInput, match="matvec"):
        low_rank.to_dense()
    assert nsd.conjugate_kernel(RELU, _x(3)).shape == (3, 3)  # 72 bytes


# Activations that jump


@pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")
def test_sign_has_a_conjugate_kernel():
    kernel = nsd.conjugate_kernel(nsd.Implicit("sign", 0.2), _x())
    assert torch.allclose(kernel.diagonal(), torch.ones(6, dtype=torch.float64))


@pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")
@pytest.mark.parametrize(
    "net",
    [nsd.Implicit("sign", 0.2), nsd.Explicit(["sign"]), nsd.Explicit(["relu", "sign"]), nsd.Explicit(["sign", "relu"])],
    ids=str,
)
def test_sign_has_no_tangent_kernel(net):
    with pytest.raises(nsd.NotSoDeepError, match=r"no tangent kernel|does not exist"):
        nsd.tangent_kernel(net, _x())


@pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")
def test_no_var_a_is_recommended_where_none_helps():
    with pytest.raises(nsd.NotSoDeepError) as error:
        nsd.tangent_kernel(nsd.Implicit("sign", 0.2), _x())
    assert "var_a below 0." not in str(error.value)


# Contraction


@pytest.mark.parametrize(("phi", "var_a", "bound"), [("relu", 0.3, "0.25"), ("tanh", 0.25, "0.25"), ("gelu", 0.2, "0.1962")])
def test_a_warning_names_the_contraction_bound(phi, var_a, bound):
    with pytest.warns(nsd.NumericsWarning, match=rf"≥ {bound} = 1/\(4L²\)"):
        nsd.conjugate_kernel(nsd.Implicit(phi, var_a), _x())


def test_no_warning_below_the_contraction_bound():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel = nsd.conjugate_kernel(nsd.Implicit("relu", 0.249), _x())
    assert bool(torch.isfinite(kernel).all())


@pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")
@pytest.mark.parametrize(("phi", "var_a"), [("tanh", 0.8), ("tanh", 2.0), ("relu", 1.5), ("leaky_relu:0.1", 1.2)])
def test_kernels_exist_past_the_bound_where_the_equation_has_one_solution(phi, var_a):
    x = _x().numpy()
    expected = reference.implicit_kernels(PHI[phi], var_a, 1.0, x, True, nsd.tau0(x))
    both = nsd.exact_kernels(nsd.Implicit(phi, var_a, 1.0), x)
    assert worst_gap(both.conjugate, expected.conjugate) <= 1e-9
    assert worst_gap(both.tangent, expected.tangent) <= 1e-9


@pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")
@pytest.mark.parametrize("scale", [1.0, 0.3, 0.1, 0.01])
def test_a_tangent_kernel_exists_exactly_where_gradients_shrink(scale):
    """tanh at σ_a² = 2: σ_a² E[φ'²(τξ)] < 1 on large inputs, which saturate it, and > 1 on small ones."""
    phi, x = PHI["tanh"], scale * _x()
    taus = [reference.deviation(phi, 2.0, float(norm2)) for norm2 in x.square().sum(1)]
    growth = 2.0 * max(reference.expectation(phi, lambda u: phi.slope(u) ** 2, tau) for tau in taus)
    net = nsd.Implicit("tanh", 2.0, 1.0)
    if growth < 1.0:
        assert bool(torch.isfinite(nsd.tangent_kernel(net, x)).all())
        return
    with pytest.raises(nsd.NotContractive) as error:
        nsd.tangent_kernel(net, x)
    assert error.value.left == pytest.approx(growth, rel=1e-9)
    assert error.value.right == 1.0


@pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")
@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["duplicate", "opposite"])
def test_parallel_samples_have_parallel_features_or_the_kernel_is_refused(sign):
    """Where gradients grow (σ_a² E[φ'²] ≥ 1) ρ = ±1 is an unstable solution of the pair equation and there is another one.
    But z(x) = z(x), and z(−x) = −z(x) for an odd φ: a kernel that takes the other solution there belongs to no network."""
    x = 0.01 * _x(3)
    try:
        kernel = nsd.conjugate_kernel(nsd.Implicit("tanh", 2.0, 1.0), torch.cat([x, sign * x]))
    except nsd.NotContractive:
        return
    assert torch.allclose(kernel[:3, 3:].diagonal(), sign * kernel[:3, :3].diagonal(), rtol=1e-9, atol=0)


def test_a_variance_that_grows_without_end_is_refused_with_a_var_a_that_works():
    x = _x()
    with pytest.raises(nsd.NotContractive, match="no equilibrium") as error:
        nsd.conjugate_kernel(nsd.Implicit("relu", 3.0, 1.0, centre=False), x)
    assert error.value.left == 3.0
    assert error.value.largest_var_a == pytest.approx(2.0, rel=1e-6)  # E[relu²(τξ)] = τ²/2
    with pytest.warns(nsd.NumericsWarning):
        kernel = nsd.conjugate_kernel(nsd.Implicit("relu", 0.999 * error.value.largest_var_a, 1.0, centre=False), x)
    assert bool(torch.isfinite(kernel).all())


@pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")
@pytest.mark.parametrize(
    ("phi", "kernel"), [("relu", nsd.conjugate_kernel), ("relu", nsd.tangent_kernel), ("tanh", nsd.tangent_kernel)]
)
def test_a_var_a_past_the_limit_is_refused_with_one_that_works_on_this_data(phi, kernel):
    """φ is centred at a deviation that depends on σ_a²: a bound read off the present one holds for no other."""
    x = _x() * torch.linspace(0.2, 4.0, len(_x()), dtype=torch.float64)[:, None]
    with pytest.raises(nsd.NotContractive) as error:
        kernel(nsd.Implicit(phi, 50.0, 1.0), x)
    bound = error.value.largest_var_a
    said = float(str(error.value).split("var_a = ")[-1].split(" or less")[0])
    assert 0.999 * bound <= said <= bound
    assert bool(torch.isfinite(kernel(nsd.Implicit(phi, said, 1.0), x)).all())
    with pytest.raises(nsd.NotContractive):
        kernel(nsd.Implicit(phi, 1.02 * bound, 1.0), x)


@pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")
def test_where_var_b_follows_var_a_the_remedy_follows_too():
    steep = Scaled(nsd.activation("relu"), 3.0)
    with pytest.raises(nsd.NotContractive, match="var_b = 1 − var_a") as error:
        nsd.conjugate_kernel(nsd.Implicit(steep, 0.8), _x())
    said = float(str(error.value).split("var_a = ")[-1].split(" or less")[0])
    assert bool(torch.isfinite(nsd.conjugate_kernel(nsd.Implicit(steep, said), _x())).all())


@pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")
@pytest.mark.parametrize("var_a", [1.9, 1.98, 1.998])
def test_duplicates_are_equal_however_steep_their_equation(var_a):
    """σ_a² Q is up to 0.999 at ρ = 1, and magnifies what rounding leaves of ρ a thousand times."""
    x = _x(6, 30)
    kernel = nsd.tangent_kernel(nsd.Implicit("relu", var_a, 1.0, centre=False), torch.cat([x, x]))
    assert torch.equal(kernel[:6, 6:].diagonal(), kernel[:6, :6].diagonal())


@pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")
@pytest.mark.parametrize(("phi", "distance"), [("erf", 1e-9), ("erf", 3e-8), ("erf", 1e-7), ("erf", 1e-6), ("tanh", 1e-7)])
def test_nearly_equal_samples_keep_the_kernel_positive(phi, distance):
    """Where σ_a² Q > 1 the equation of nearly equal samples has two roots; all of them must take the same one."""
    x = _x(3, 30)
    near = torch.cat([x + distance * k * _x(3, 30, seed=k) for k in range(3 if phi == "tanh" else 5)])
    values = torch.linalg.eigvalsh(nsd.conjugate_kernel(nsd.Implicit(phi, 4.0, 1.0), torch.cat([near, near[:1]])))
    assert float(values[0]) >= -1e-12 * float(values[-1])
