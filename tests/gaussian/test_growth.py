"""Functions that grow nearly as fast as a Gaussian falls: most of E[φ²] lies beyond the twelve deviations that do for others.

φ = Σ c x^d e^(zx), d ≤ 1, has a closed form, with w for the other z and κ = exp((z²τ_i² + w²τ_j²)/2 + zwλ):
E[φ(u)φ(v)] = Σ c c' κ E[(u + a)^d (v + b)^d'], a = zτ_i² + wλ, b = wτ_j² + zλ. Waves among them: z may be complex.
"""

import mpmath
import pytest
import torch

import notsodeep as nsd
from notsodeep.activations import activation, custom, expression
from notsodeep.errors import BadInput
from notsodeep.gaussian import dual_map, moments
from notsodeep.gaussian.integral import conditional_dual
from notsodeep.gaussian.mass import by_cut, cuts

GROWING = {
    "exp(x)": [(1, 1, 0)],
    "cosh(x)": [(0.5, 1, 0), (0.5, -1, 0)],
    "sinh(x)": [(0.5, 1, 0), (-0.5, -1, 0)],
    "exp(x)-1": [(1, 1, 0), (-1, 0, 0)],
    "exp(-x)+x": [(1, -1, 0), (1, 0, 1)],
    "x*exp(x/2)": [(1, 0.5, 1)],
    "exp(3*x)": [(1, 3, 0)],
    "exp(x)*(2+sin(5*x))": [(2, 1, 0), (-0.5j, 1 + 5j, 0), (0.5j, 1 - 5j, 0)],
    "exp(0.1*x)*cos(x)": [(0.5, 0.1 + 1j, 0), (0.5, 0.1 - 1j, 0)],
}
RHO = (-0.9, 0.0, 0.5, 0.99, 1.0 - 1e-6, 1.0)


@mpmath.workdps(60)
def closed(terms, tau_i, tau_j, lam):
    tau_i, tau_j, lam = (mpmath.mpf(each) for each in (tau_i, tau_j, lam))
    total = mpmath.mpc(0)
    for c, z, d in terms:
        for c2, w, e in terms:
            z, w = mpmath.mpmathify(z), mpmath.mpmathify(w)
            a, b = z * tau_i**2 + w * lam, w * tau_j**2 + z * lam
            power = {(0, 0): 1, (1, 0): a, (0, 1): b, (1, 1): a * b + lam}[d, e]
            total += mpmath.mpmathify(c) * mpmath.mpmathify(c2) * power * mpmath.exp((z * a + w * b) / 2)
    return total.real


def slope_of(terms):
    return [(c * z, z, d) for c, z, d in terms if z] + [(c, z, 0) for c, z, d in terms if d]


@pytest.mark.parametrize(("tau_i", "tau_j"), [(1.0, 1.0), (2.9, 2.9), (4.0, 3.0), (6.0, 0.5)])
@pytest.mark.parametrize("text", GROWING)
def test_kernels_are_those_of_the_closed_form(text, tau_i, tau_j):
    """Where any correlation has a value in float64: 9·(2·6)² is past it for exp(3x)."""
    if text == "exp(3*x)" and tau_i > 4.0:
        with pytest.raises(BadInput, match="grows too fast"):
            dual_map(expression(text), tau_i, tau_j, 0.0)
        return
    for rho in RHO:
        lam = rho * tau_i * tau_j
        found = dual_map(expression(text), tau_i, tau_j, lam)
        for given, terms in zip(found, (GROWING[text], slope_of(GROWING[text])), strict=True):
            scale = mpmath.sqrt(closed(terms, tau_i, tau_i, tau_i**2) * closed(terms, tau_j, tau_j, tau_j**2))
            assert abs(float(given) - closed(terms, tau_i, tau_j, lam)) <= 1e-12 * scale, rho


@pytest.mark.parametrize("tau", [2.9, 6.0, 12.0])
def test_pairs_next_to_nothing_beside_the_diagonal_keep_their_digits(tau):
    """exp((1 + ρ)τ²) at ρ = 0 is e^(−144) of the diagonal at τ = 12."""
    phi = expression("exp(x)")
    for rho in (0.0, 0.1, 0.5, 0.9, 1.0):
        wanted = closed(GROWING["exp(x)"], tau, tau, rho * tau**2)
        assert float(dual_map(phi, tau, tau, rho * tau**2)[0]) == pytest.approx(float(wanted), rel=1e-10), rho


@pytest.mark.parametrize("make", [expression, lambda _: custom(torch.exp)], ids=["expression", "torch"])
def test_moments_of_exp(make):
    tau = torch.tensor([0.1, 2.0, 2.9, 7.0, 11.0, 14.0], dtype=torch.float64)
    at = moments(make("exp(x)"), tau)
    for found in (at.mean, at.e1, at.e2, at.e3):
        torch.testing.assert_close(found, torch.exp(0.5 * tau**2), rtol=1e-12, atol=0.0)
    torch.testing.assert_close(at.q, torch.exp(2.0 * tau**2), rtol=1e-12, atol=0.0)
    torch.testing.assert_close(at.gamma2, torch.exp(2.0 * tau**2), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("rho", [-0.5, 0.3, 0.9, 1.0 - 1e-8])
@pytest.mark.parametrize("text", ["exp(x)", "exp(x)*(2+sin(5*x))"])
def test_integration_of_pairs_reaches_as_far(text, rho):
    """The path of pairs for which no series is long enough; waves take it over a line, exp(x) over a plane."""
    tau_i, tau_j = 6.0, 5.0
    lam = rho * tau_i * tau_j
    found = conditional_dual(expression(text), *(torch.tensor([each], dtype=torch.float64) for each in (tau_i, tau_j, lam)))
    for given, terms in zip(found, (GROWING[text], slope_of(GROWING[text])), strict=True):
        scale = mpmath.sqrt(closed(terms, tau_i, tau_i, tau_i**2) * closed(terms, tau_j, tau_j, tau_j**2))
        assert abs(float(given) - closed(terms, tau_i, tau_j, lam)) <= 1e-12 * scale


def test_growth_that_ends():
    """exp(x) up to 20, then flat: beyond 12 deviations for τ from .6 to 1.6 only."""
    phi = expression("exp(5*min(x,20))")
    for tau in (0.5, 1.3, 2.0, 4.0, 30.0):
        with mpmath.workdps(40):
            below = mpmath.exp(50 * mpmath.mpf(tau) ** 2) * mpmath.ncdf(20 / mpmath.mpf(tau) - 10 * mpmath.mpf(tau))
            wanted = below + mpmath.exp(200) * mpmath.ncdf(-20 / mpmath.mpf(tau))
        assert float(moments(phi, tau).gamma2) == pytest.approx(float(wanted), rel=1e-11), tau


def test_kernels_of_samples_of_many_sizes():
    """Those that reach farther and those that do not, in one call, tables and all."""
    norms = torch.linspace(0.05, 5.0, 60, dtype=torch.float64)
    x = torch.stack([norms, torch.zeros_like(norms)], dim=1)
    found = nsd.conjugate_kernel(nsd.Explicit(["exp(x)"]), x)
    lam = torch.outer(norms, norms)
    half = 0.5 * norms.square()
    wanted = torch.exp(half[:, None] + half + lam)
    sizes = torch.exp(norms.square())
    scale = torch.outer(sizes, sizes)
    # A layer is scaled by a number of its own.
    assert float(((found * (wanted[-1, -1] / found[-1, -1]) - wanted).abs() / scale).max()) <= 1e-12


def test_what_float64_cannot_hold_is_refused():
    for tau in (15.0, 20.0, 1000.0):
        with pytest.raises(BadInput, match=rf"grows too fast.*τ = {tau:g}.*Scale the data down"):
            moments(expression("exp(x)"), tau)
    with pytest.raises(BadInput, match="grows too fast"):  # E[φ²] is infinite
        moments(expression("exp(x**2/16)"), 2.1)
    assert float(moments(expression("exp(x**2/16)"), 1.9).gamma2) == pytest.approx((1.0 - 1.9**2 / 4.0) ** -0.5, rel=1e-12)


def test_others_reach_no_farther_than_twelve_deviations():
    tau = torch.logspace(-3, 3, 61, dtype=torch.float64)
    for phi in (activation("relu"), expression("x*tanh(x)"), expression("log(cosh(x))"), custom(torch.atan)):
        assert cuts(phi, tau).unique().tolist() == [12.0]
    assert float(cuts(expression("exp(x)"), torch.tensor([10.0], dtype=torch.float64))[0]) >= 28.0


def test_a_module_that_has_learnt_is_looked_at_again():
    class Power(torch.nn.Module):
        rate = 0.1

        def forward(self, x):
            return torch.exp(self.rate * x)

    power = Power()
    phi, tau = custom(power), torch.tensor([5.0], dtype=torch.float64)
    assert float(moments(phi, tau).gamma2) == pytest.approx(float(torch.exp(2.0 * 0.01 * tau**2)), rel=1e-12)
    power.rate = 1.0
    assert float(moments(phi, tau).gamma2) == pytest.approx(float(torch.exp(2.0 * tau**2)), rel=1e-12)


def test_rows_come_back_in_their_order():
    tau = torch.tensor([7.0, 0.1, 4.0, 0.2, 7.0], dtype=torch.float64)
    found = by_cut(expression("exp(x)"), tau, lambda some, cut: torch.stack([some, torch.full_like(some, cut)], dim=1))
    torch.testing.assert_close(found[:, 0], tau)
    assert found[1, 1] == 12.0 < found[2, 1] < found[0, 1]
