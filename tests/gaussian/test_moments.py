"""Moments against 30-digit integration (tests/golden), exact formulas, and the limits τ → 0."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import mpmath
import pytest
import torch

from notsodeep.activations import Centred, HermiteSeries, Polynomial, Scaled
from notsodeep.gaussian import Moments, moments
from notsodeep.gaussian.moments import moments_at
from tests.gaussian.scales import FIELDS, ROUND_OFF, float64, natural_scales
from tests.zoo import CONTINUOUS, JUMPING, SMOOTH, build, each

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "moments.json").read_text())["records"]
TAUS = float64(1e-3, 0.05, 1.0, 30.0, 1e3)


def relative_errors(found: Moments, exact: dict[str, float], tau: float) -> dict[str, float]:
    """Of each moment that `exact` holds."""
    known = {field: float64(exact.get(field, 0.0)) for field in FIELDS}
    scales = natural_scales(SimpleNamespace(**known), float64(tau))
    finite = [field for field in exact if math.isfinite(exact[field])]
    errors = {field: abs(float(getattr(found, field)) - exact[field]) for field in finite}
    shares = {field: error / max(float(scales[field]), 1e-300) for field, error in errors.items()}
    return {field: math.inf if math.isnan(share) else share for field, share in shares.items()}  # NaN has no largest


@pytest.mark.parametrize("record", GOLDEN, ids=lambda record: f"{record['activation']} at {record['tau']:g}")
def test_moments_of_30_digits(record):
    exact = {field: float(record[field]) for field in FIELDS if field in record}
    errors = relative_errors(moments_at(build(record["activation"]), record["tau"]), exact, record["tau"])
    assert max(errors.values()) <= ROUND_OFF, errors


def test_the_golden_file_is_not_empty():
    assert len(GOLDEN) == 75


@pytest.mark.parametrize("tau", [1e-3, 0.02, 0.5, 1.0, 7.0, 30.0, 1e3])
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_sine_and_cosine(name, tau):
    """E[sin u] = 0, E[cos u] = e^(−τ²/2), and squares by cos 2u."""
    with mpmath.workdps(30):
        t = mpmath.mpf(tau)
        decay, fast = mpmath.exp(-t * t / 2), mpmath.exp(-2 * t * t)
        small, large = (1 - fast) / 2, (1 + fast) / 2
        exact = {
            "sin": {"mean": 0, "e1": decay, "e2": 0, "e3": -decay, "gamma2": small, "s2": 2 * fast, "q": large},
            "cos": {"mean": decay, "e1": 0, "e2": -decay, "e3": 0, "gamma2": large, "s2": -2 * fast, "q": small},
        }[name]
        found = moments_at(build(name), tau)
        for field in FIELDS:
            assert float(getattr(found, field)) == pytest.approx(float(exact[field]), rel=1e-14, abs=1e-30), field


def power_moment(k: int) -> int:
    """E[ξ^k]."""
    return 0 if k % 2 else math.prod(range(1, k, 2))


def exact_polynomial_moments(coefficients, tau) -> dict[str, float]:
    """From the coefficients, in 50 digits, everything but q by Stein's identity."""
    with mpmath.workdps(50):
        t = mpmath.mpf(tau)
        c = [mpmath.mpf(a) * t**k for k, a in enumerate(coefficients)]
        d = [k * a / t for k, a in enumerate(c)][1:] or [mpmath.mpf(0)]

        def mean(poly, hermite=(1,)):
            """E[He(ξ) poly(ξ)], He given by its coefficients."""
            return mpmath.fsum(a * h * power_moment(k + j) for k, a in enumerate(poly) for j, h in enumerate(hermite))

        def square(poly):
            out = [mpmath.mpf(0)] * (2 * len(poly) - 1)
            for i, a in enumerate(poly):
                for j, b in enumerate(poly):
                    out[i + j] += a * b
            return out

        values = {
            "mean": mean(c),
            "e1": mean(c, (0, 1)) / t,
            "e2": mean(c, (-1, 0, 1)) / t**2,
            "e3": mean(c, (0, -3, 0, 1)) / t**3,
            "gamma2": mean(square(c)),
            "s2": mean(square(c), (-1, 0, 1)) / t**2,
            "q": mean(square(d)),
        }
        return {field: float(value) for field, value in values.items()}


@pytest.mark.parametrize("tau", TAUS.tolist())
@pytest.mark.parametrize("coefficients", [(3.0,), (0.0, 2.0), (0.5, 1.0, 0.25, -0.125), (1.0, 0.0, 0.0, 0.0, 0.0, 0.2, 1e-3)])
def test_polynomials(coefficients, tau):
    errors = relative_errors(moments_at(Polynomial(coefficients), tau), exact_polynomial_moments(coefficients, tau), tau)
    assert max(errors.values()) <= ROUND_OFF, errors


@pytest.mark.parametrize("terms", [1, 2, 5, 60, 180, 260, 400])
def test_hermite_series_at_its_own_scale(terms):
    """At τ = scale the h_k(ξ) are orthonormal and h_k' = √k h_{k−1}/τ."""
    generator = torch.Generator().manual_seed(terms)
    c = torch.randn(terms, dtype=torch.float64, generator=generator) / (1.0 + torch.arange(terms)) ** 1.5
    tau = 1.3
    k = torch.arange(terms, dtype=torch.float64)
    padded = torch.cat([c, c.new_zeros(3)]).tolist()
    exact = {
        "mean": padded[0],
        "e1": padded[1] / tau,
        "e2": 2**0.5 * padded[2] / tau**2,
        "e3": 6**0.5 * padded[3] / tau**3,
        "gamma2": float(c.square().sum()),
        "q": float((k * c.square()).sum()) / tau**2,
    }
    errors = relative_errors(moments_at(HermiteSeries(tuple(c.tolist()), scale=tau), tau), exact, tau)
    assert max(errors.values()) <= ROUND_OFF, errors


@each()
def test_wrappers_are_affine_in_the_moments(name):
    """φ ↦ aφ − b, with b not so large that E[(aφ − b)²] cancels."""
    phi, a, b = build(name), -1.5, 0.2
    m, found = moments(phi, TAUS), moments(Centred(Scaled(phi, a), b), TAUS)
    nested = moments(Scaled(Centred(phi, b / a), a), TAUS)
    expected = SimpleNamespace(
        mean=a * m.mean - b,
        e1=a * m.e1,
        e2=a * m.e2,
        e3=a * m.e3,
        gamma2=a**2 * m.gamma2 - 2 * a * b * m.mean + b**2,
        s2=a**2 * m.s2 - 2 * a * b * m.e2,
        q=a**2 * m.q,
    )
    for wrapped in (found, nested):
        for field in FIELDS:
            torch.testing.assert_close(getattr(wrapped, field), getattr(expected, field), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("tau", [1e-3, 0.05, 1.0, 5.0])
@pytest.mark.parametrize("name", ["cos", "gaussian", "sigmoid", "softplus", "relu", "gelu"])
def test_a_centred_activation_keeps_its_digits(name, tau):
    """E[(φ − E φ)²] and E[((φ − E φ)²)''] where φ hardly varies, so that they are far smaller than E[φ²] and E[(φ²)'']: the
    centred activation is what every theorem is written in. The reference has 30 digits to lose."""
    phi = build(name)
    offset = float(moments_at(phi, tau).mean)
    with mpmath.workdps(30):
        f = {
            "cos": mpmath.cos,
            "gaussian": lambda x: mpmath.exp(-x * x / 2),
            "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
            "softplus": lambda x: mpmath.log1p(mpmath.exp(x)),
            "relu": lambda x: max(x, mpmath.mpf(0)),
            "gelu": lambda x: x * mpmath.ncdf(x),
        }[name]
        exact, curvature = (
            mpmath.quad(
                lambda xi, h=hermite: (f(mpmath.mpf(tau) * xi) - mpmath.mpf(offset)) ** 2 * h(xi) * mpmath.npdf(xi),
                [-12, -6, -3, -1, 0, 1, 3, 6, 12],
            )
            for hermite in (lambda _: 1, lambda xi: xi**2 - 1)
        )
    found = moments_at(Centred(phi, offset), tau)
    assert float(found.gamma2) == pytest.approx(float(exact), rel=ROUND_OFF, abs=0.0)
    scale = 2.0 * math.sqrt(float(exact) * float(found.q)) / tau
    rounding = 2.0**-52 * abs(offset * float(found.e2))  # the offset itself is a rounded number
    assert float(found.s2) == pytest.approx(float(curvature) / tau**2, rel=0.0, abs=ROUND_OFF * scale + rounding)


@each(SMOOTH)
def test_limit_of_no_deviation(name):
    """At τ = 0 the argument is 0: E[φ'] is φ'(0), and so on."""
    phi = build(name)
    value, first, _, _ = derivatives(phi, 0.0)
    found = moments_at(phi, 0.0)
    expected = {"mean": value, "e1": first, "gamma2": value**2, "q": first**2}
    assert {field: float(getattr(found, field)) for field in expected} == pytest.approx(expected, rel=1e-12, abs=1e-12)


@each(SMOOTH)
def test_limit_of_the_curvatures(name):
    """E[φ''], E[φ'''] and E[(φ²)''] at τ = 0, where they are quotients of numbers that vanish: six digits will do."""
    phi = build(name)
    value, first, second, third = derivatives(phi, 0.0)
    found = moments_at(phi, 0.0)
    expected = {"e2": second, "e3": third, "s2": 2.0 * (first**2 + value * second)}
    assert {field: float(getattr(found, field)) for field in expected} == pytest.approx(expected, rel=1e-6, abs=1e-6)


def derivatives(phi, place: float) -> list[float]:
    """φ and its first three derivatives at a place, by automatic differentiation."""
    x = torch.tensor(place, dtype=torch.float64, requires_grad=True)
    results = [phi(x)]
    for _ in range(3):
        last = results[-1]
        results.append(torch.autograd.grad(last, x, create_graph=True)[0] if last.requires_grad else torch.zeros(()))
    return [float(result.detach()) for result in results]


@each(CONTINUOUS)
def test_moments_keep_the_shape(name):
    phi = build(name)
    tau = torch.linspace(0.1, 2.0, 6, dtype=torch.float64).reshape(2, 3)
    found = moments(phi, tau)
    for field in FIELDS:
        assert getattr(found, field).shape == (2, 3)
    one = moments(phi, tau[1, 2])
    assert float(one.gamma2) == pytest.approx(float(found[1, 2].gamma2), rel=1e-14)
    assert moments(phi, tau[:0]).mean.shape == (0, 3)


@each(JUMPING)
def test_a_jump_makes_the_slope_square_infinite(name):
    assert torch.isinf(moments(build(name), TAUS).q).all()


def test_float32_deviations_are_answered_in_float64():
    assert moments(build("tanh"), torch.tensor([1.0])).mean.dtype == torch.float64


@pytest.mark.parametrize("tau", [1e-3, 0.05, 1.0, 30.0])
def test_a_jump_with_slopes(tau):
    """φ = x/2 below 1/4 and x + 1 above; all by truncated moments of a Gaussian and Stein's identity."""
    with mpmath.workdps(40):
        t, a = mpmath.mpf(tau), mpmath.mpf(0.25)
        z = a / t
        p, n = mpmath.ncdf(-z), mpmath.npdf(z)
        # E[ξ^k; ξ > z] for k = 0 … 5
        above = [p, n]
        for k in range(2, 6):
            above.append((k - 1) * above[k - 2] + z ** (k - 1) * n)
        below = [power_moment(k) - above[k] for k in range(6)]

        def mean(low, high, hermite=(1,)):
            return mpmath.fsum(
                c * h * side[k + j]
                for poly, side in ((low, below), (high, above))
                for k, c in enumerate(poly)
                for j, h in enumerate(hermite)
            )

        phi, square = ([0, t / 2], [1, t]), ([0, 0, t**2 / 4], [1, 2 * t, t**2])
        exact = {
            "mean": mean(*phi),
            "e1": mean(*phi, (0, 1)) / t,
            "e2": mean(*phi, (-1, 0, 1)) / t**2,
            "e3": mean(*phi, (0, -3, 0, 1)) / t**3,
            "gamma2": mean(*square),
            "s2": mean(*square, (-1, 0, 1)) / t**2,
            "q": math.inf,
        }
        exact = {field: float(value) for field, value in exact.items()}
    errors = relative_errors(moments_at(build("lifted"), tau), exact, tau)
    assert max(errors.values()) <= ROUND_OFF, errors


def test_deviations_may_come_as_several_tensors():
    pair = (torch.tensor([0.5, 1.0]), torch.tensor([1.5, 2.0]))
    torch.testing.assert_close(moments(build("tanh"), pair).mean, moments(build("tanh"), torch.stack(pair)).mean)
