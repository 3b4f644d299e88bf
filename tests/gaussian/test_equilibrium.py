"""τ² = σ_a² E[φ²(τξ)] + drive: the deviation of a pre-activation at equilibrium."""

import math

import pytest
import torch

from notsodeep.activations import Linear, Polynomial, Scaled, custom
from notsodeep.errors import NotContractive
from notsodeep.gaussian import moments
from notsodeep.gaussian.variance import equilibrium_deviation
from tests.gaussian.scales import float64
from tests.zoo import ACTIVATIONS, OSCILLATING, POLYNOMIAL, build, each

DRIVES = torch.cat([float64(0.0).reshape(1), torch.logspace(-6, 6, 25, dtype=torch.float64)])
VAR_A = 0.2


def residual(phi, var_a, tau, drive, centred=False):
    """Of the fixed point, relative to what it is made of."""
    at = moments(phi, tau)
    power = at.gamma2 - at.mean.square() if centred else at.gamma2
    made_of = tau.square() + var_a * at.gamma2 + drive
    return float(((tau.square() - var_a * power - drive).abs() / made_of.clamp(min=1e-300)).max())


@pytest.mark.parametrize("centred", [False, True])
@each(tuple(name for name in ACTIVATIONS if name not in POLYNOMIAL))
def test_the_equation_holds_to_round_off(name, centred):
    phi, drive = build(name), DRIVES[:18] if name in OSCILLATING else DRIVES
    tau = equilibrium_deviation(phi, VAR_A, drive, centred=centred)
    assert torch.isfinite(tau).all()
    assert (tau.square() >= drive * (1.0 - 1e-15)).all()
    assert residual(phi, VAR_A, tau, drive, centred) <= 1e-14


@pytest.mark.parametrize("drive", [1e-5, 1e-6])
@each(("sigmoid", "softplus", "cos", "gaussian"))
def test_a_tiny_drive_of_a_centred_activation(name, drive):
    """As τ → 0 the variance of φ(τξ) is φ'(0)² τ² + O(τ⁴): v = drive/(1 − σ_a² φ'(0)²), up to a relative O(drive). It must
    not drown in the round-off of E[φ²] − E[φ]²."""
    phi = build(name)
    slope = float(phi.derivative(float64(0.0)))
    v = equilibrium_deviation(phi, VAR_A, float64(drive).reshape(1), centred=True).square()
    assert float(v) == pytest.approx(drive / (1.0 - VAR_A * slope**2), rel=10.0 * drive + 1e-12, abs=0.0)


@each(POLYNOMIAL)
def test_the_equation_holds_for_polynomials(name):
    """They have an equilibrium only for a small drive and a small var_a."""
    phi, drive = build(name), torch.cat([float64(0.0).reshape(1), torch.logspace(-6, -1, 11, dtype=torch.float64)])
    tau = equilibrium_deviation(phi, 0.05, drive)
    assert residual(phi, 0.05, tau, drive) <= 1e-14


@pytest.mark.parametrize("var_a", [1e-9, 0.5, 0.9, 0.999, 0.999999])
def test_linear(var_a):
    """v = drive/(1 − var_a), up to the brink."""
    tau = equilibrium_deviation(Linear(), var_a, DRIVES)
    torch.testing.assert_close(tau.square(), DRIVES / (1.0 - var_a), rtol=1e-9 if var_a > 0.99 else 1e-13, atol=1e-30)


@pytest.mark.parametrize("var_a", [0.2, 1.0, 1.9])
def test_relu(var_a):
    """E[φ²] = v/2, or v(1/2 − 1/(2π)) centred."""
    tau = equilibrium_deviation(build("relu"), var_a, DRIVES)
    torch.testing.assert_close(tau.square(), DRIVES / (1.0 - 0.5 * var_a), rtol=1e-13, atol=1e-30)
    tau = equilibrium_deviation(build("relu"), var_a, DRIVES, centred=True)
    share = 0.5 - 0.5 / math.pi
    torch.testing.assert_close(tau.square(), DRIVES / (1.0 - share * var_a), rtol=1e-13, atol=1e-30)


@each(("tanh", "sigmoid", "cos", "gaussian", "softsign", "sign", "hard_tanh"))
def test_bounded_activations_have_an_equilibrium_for_any_weight(name):
    phi = build(name)
    tau = equilibrium_deviation(phi, 25.0, DRIVES[1:])
    assert residual(phi, 25.0, tau, DRIVES[1:]) <= 1e-14


@pytest.mark.parametrize(
    ("name", "centred", "limit"),
    [("relu", False, 2.0), ("relu", True, 1.0 / (0.5 - 0.5 / math.pi)), ("linear", False, 1.0), ("abs", False, 1.0)],
)
def test_too_large_a_weight_is_refused_with_the_largest_allowed(name, centred, limit):
    phi = build(name)
    with pytest.raises(NotContractive, match="var_a") as raised:
        equilibrium_deviation(phi, 3.0, float64(1.0, 2.0), centred=centred)
    error = raised.value
    assert error.largest_var_a == pytest.approx(limit, rel=1e-6)
    assert error.left == 3.0
    assert error.right == error.largest_var_a
    tau = equilibrium_deviation(phi, 0.999 * error.largest_var_a, float64(1.0, 2.0), centred=centred)
    assert residual(phi, 0.999 * error.largest_var_a, tau, float64(1.0, 2.0), centred) <= 1e-14


def quadratic_limit(drive):
    """Largest σ_a² with a root of v = σ_a²(3v² + v) + drive: (1 − σ_a²)² = 12 σ_a² drive."""
    half = 1.0 + 6.0 * drive
    return half - math.sqrt(half**2 - 1.0)


@pytest.mark.parametrize("drive", [0.01, 1.0, 100.0])
def test_quadratic_beyond_its_limit_is_refused(drive):
    limit = quadratic_limit(drive)
    with pytest.raises(NotContractive) as raised:
        equilibrium_deviation(build("quadratic"), 1.01 * limit, float64(drive).reshape(1))
    assert raised.value.largest_var_a == pytest.approx(limit, rel=1e-3)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99, 0.999, 0.9999])
@pytest.mark.parametrize("drive", [0.01, 1.0, 100.0])
def test_the_smallest_of_two_roots_is_taken(drive, share):
    """v = σ_a²(3v² + v) + drive, the root that the network's own iteration reaches from below."""
    var_a = share * quadratic_limit(drive)
    v = equilibrium_deviation(build("quadratic"), var_a, float64(drive).reshape(1)).square()
    root = 2.0 * drive / (1.0 - var_a + math.sqrt((1.0 - var_a) ** 2 - 12.0 * var_a * drive))
    assert float(v) == pytest.approx(root, rel=1e-11 / math.sqrt(1.0 - share))


def test_a_mixed_batch_has_each_its_own_root():
    """One sample needs the scan for its root, the others do not."""
    drive = float64(1e-3, 0.1, 1.5)
    v = equilibrium_deviation(build("quadratic"), 0.05, drive).square()
    assert float(v[2]) == pytest.approx(3.0, rel=1e-9)
    assert residual(build("quadratic"), 0.05, v.sqrt(), drive) <= 1e-14


def test_samples_may_have_any_shape():
    drive = torch.full((2, 3), 1.5, dtype=torch.float64)
    v = equilibrium_deviation(build("quadratic"), 0.05, drive).square()
    torch.testing.assert_close(v, torch.full_like(drive, 3.0), rtol=1e-9, atol=0.0)
    assert float(equilibrium_deviation(build("tanh"), VAR_A, float64(1.0))) == pytest.approx(
        float(equilibrium_deviation(build("tanh"), VAR_A, float64(1.0).reshape(1))), rel=1e-15
    )


def test_a_far_second_root_does_not_blunt_the_first():
    """E[φ²] is tiny up to τ ≈ 1 and 10⁶ far out: v = σ_a² E[φ²] + drive has a root near the drive and one near 10¹¹."""
    phi = Scaled(custom(lambda x: torch.sigmoid(4.0 * (x.abs() - 4.0)), name="threshold"), 1e3)
    var_a, drive = 9.26e4, float64(0.05).reshape(1)
    tau = equilibrium_deviation(phi, var_a, drive)
    assert residual(phi, var_a, tau, drive) <= 1e-13


def test_float32_drives_are_answered_in_float64():
    assert equilibrium_deviation(build("tanh"), VAR_A, torch.tensor([1.0])).dtype == torch.float64


def test_the_deviation_grows_with_drive_and_weight():
    tau = equilibrium_deviation(build("gelu"), VAR_A, DRIVES)
    assert (tau.diff() > 0).all()
    assert (equilibrium_deviation(build("gelu"), 0.4, DRIVES[1:]) > tau[1:]).all()


def test_a_constant_activation():
    """E[φ²] = 4 whatever τ."""
    tau = equilibrium_deviation(Polynomial((2.0,)), 0.5, float64(0.0, 1.0))
    torch.testing.assert_close(tau.square(), float64(2.0, 3.0), rtol=1e-14, atol=0.0)
