"""What is read off a table is what the function says."""

import math

import pytest
import torch
from torch import Tensor

import notsodeep as nsd
from notsodeep.activations.wrappers import affine_parts
from notsodeep.approximation import tables
from notsodeep.approximation.tables import Smooth, tabulated
from notsodeep.gaussian import rows
from notsodeep.gaussian.hermite import hermite_coefficients
from notsodeep.gaussian.moments import moments, tabulated_moments
from notsodeep.gaussian.variance import equilibrium_deviation, tabulated_deviation
from notsodeep.tolerances import TABLE_RTOL
from tests.zoo import CONTINUOUS, OSCILLATING, build, each

pytestmark = pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")
FIELDS = ("mean", "e1", "e2", "e3", "variance", "v2", "q")
RANGES = {"wide": (0.05, 20.0, 600), "narrow": (0.93, 1.02, 120), "one value": (0.7, 0.7, 60)}
every_range = pytest.mark.parametrize("ends", RANGES.values(), ids=RANGES)


def _between(low: float, high: float, points: int) -> Tensor:
    return torch.logspace(math.log10(low), math.log10(high), points, dtype=torch.float64)


class Counted:
    """A function, and at how many points it was called each time."""

    def __init__(self, function) -> None:
        self.function, self.points = function, []

    def __call__(self, x: Tensor) -> Tensor:
        self.points.append(len(x))
        return self.function(x)


def _smooth(function, name: str) -> tuple[Smooth, Counted]:
    counted = Counted(function)
    return Smooth((name, object()), False, counted), counted  # a name of its own: nothing is left of other tests


def _columns(x: Tensor) -> Tensor:
    return torch.stack([1.0 / (1.0 + x.square()), 1e-8 * (1.0 + x).sqrt()], -1)


# Tables of this package


@every_range
@each(CONTINUOUS)
def test_moments(name, ends):
    phi, tau = build(name), _between(*ends)
    if name in OSCILLATING:
        tau = tau.clamp(max=8.0)
    found, exact = tabulated_moments(phi, tau), moments(phi, tau)
    root, spread = exact.q.sqrt(), exact.variance.sqrt()
    scales = (spread + exact.mean.abs(), root, root / tau, root / tau.square(), exact.variance, exact.q, exact.q)
    for field, scale in zip(FIELDS, scales, strict=True):
        error = ((getattr(found, field) - getattr(exact, field)).abs() / scale.clamp(min=1e-200)).max()
        # Tables hold logarithms and ratios, up to some tens in size.
        assert float(error) <= 100.0 * TABLE_RTOL, field


@each(CONTINUOUS)
def test_deviations(name):
    phi, norms = build(name), _between(0.3, 6.0, 500)
    var_a = min(0.2, 0.2 / phi.lipschitz**2) if 0.0 < phi.lipschitz < math.inf else 1e-4
    drive = norms.square()
    found, exact = tabulated_deviation(phi, var_a, drive)[::11], equilibrium_deviation(phi, var_a, drive[::11])
    # Each is known to the tolerance of its own solver, whose next step is below round-off.
    assert float(((found - exact) / exact).abs().max()) <= 10.0 * TABLE_RTOL


@every_range
@pytest.mark.parametrize("name", ["tanh", "gelu", "elu", "softplus", "erf", "hard_tanh", "polynomial:0.5,1,0.25,-0.125"])
def test_hermite_coefficients(name, ends):
    tau = _between(*ends).clamp(max=4.0)
    known = rows(build(name), tau, series=True)
    assert known.coefficients is not None
    core, _, _ = affine_parts(build(name))
    exact = hermite_coefficients(core, tau, known.coefficients.shape[1])
    exact[:, 0] = 0.0  # of the core less its mean
    error = (known.coefficients - exact).abs().amax(1) / exact.abs().amax(1)
    assert float(error.max()) <= 10.0 * TABLE_RTOL


# When there is a table, and when not


def test_many_points_cost_few_evaluations_and_later_ones_almost_none():
    function, counted = _smooth(_columns, "many")
    x = torch.rand(5000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3.0 + 0.5
    exact = _columns(x)
    for most in (600, 10):
        counted.points.clear()
        error = (tabulated(function, x) - exact).abs().amax(0) / exact.amax(0)
        assert float(error.max()) <= TABLE_RTOL
        assert sum(counted.points) <= most


@pytest.mark.parametrize(
    "x",
    [
        torch.rand(47, dtype=torch.float64) + 0.5,
        torch.logspace(-30, 30, 200, dtype=torch.float64),
        torch.ones(0, dtype=torch.float64),
        torch.ones(1, dtype=torch.float64),
    ],
    ids=["few", "far apart", "none", "one"],
)
def test_the_function_itself_is_called(x):
    function, counted = _smooth(_columns, "direct")
    assert torch.equal(tabulated(function, x), _columns(x))
    assert counted.points[-1] == len(x)


def test_zeros_alone_are_computed_directly():
    function, counted = _smooth(_columns, "a zero")
    x = torch.cat([torch.rand(500, dtype=torch.float64) + 0.5, torch.zeros(2, dtype=torch.float64)])
    found, exact = tabulated(function, x), _columns(x)
    assert torch.equal(found[-2:], exact[-2:])
    assert float(((found - exact).abs().amax(0) / exact.amax(0)).max()) <= TABLE_RTOL
    assert counted.points[0] == 2
    assert len(x) not in counted.points


def test_smooth_functions_to_round_off_from_any_number_of_points():
    """As a kernel's factor asks for them, block after block."""

    def both(s: Tensor) -> Tensor:
        return torch.stack([s.sqrt(), torch.exp(-s)], 1)

    function = Smooth("both", True, both, may_change=False)
    for points in (1, 7, 1001):
        s = torch.linspace(0.1, 30.0, points, dtype=torch.float64)
        assert float((tabulated(function, s, times=1000) - both(s)).abs().max()) <= 1e-12


@pytest.mark.parametrize("place", [1.05, 1.3, 1.7])
def test_a_kink_in_x_is_never_smoothed(place):
    def kinked(x: Tensor) -> Tensor:
        return (x - place).abs().unsqueeze(-1)

    function, counted = _smooth(kinked, "kinked")
    x = _between(0.9, 2.2, 3000)
    assert torch.equal(tabulated(function, x), kinked(x))
    assert counted.points[-1] == 3000


def test_a_narrow_bump_gets_more_nodes_or_no_table():
    for width in (0.3, 0.1, 0.03, 0.01):
        function, _ = _smooth(lambda x, w=width: torch.exp(-((x.log() - 0.3) / w).square()).unsqueeze(-1), "bump")
        x = _between(1.0, 1.8, 2000)
        assert float((tabulated(function, x) - function.call(x)).abs().max()) <= 10.0 * TABLE_RTOL


def test_not_a_number_is_no_table():
    function, counted = _smooth(lambda x: torch.where(x > 1.5, math.nan, x).unsqueeze(-1), "nan")
    x = _between(1.0, 1.4, 500)
    assert torch.equal(tabulated(function, x).flatten(), x)
    assert counted.points[-1] == 500


def test_a_function_that_ends_within_a_panel():
    """Drives up to a largest one have an equilibrium; a panel would go on beyond it."""
    phi, var_a = nsd.activation("quadratic:0.3,1,0"), 0.3

    def exists(drive: float) -> bool:
        try:
            equilibrium_deviation(phi, var_a, torch.tensor([drive], dtype=torch.float64))
        except nsd.NotContractive:
            return False
        return True

    low, high = 1e-3, 1e3
    assert exists(low)
    assert not exists(high)
    for _ in range(30):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if exists(middle) else (low, middle)
    panel = math.floor(math.log(low) / tables._WIDTH)
    assert panel == math.floor(math.log(0.98 * low) / tables._WIDTH)  # both ends on one panel, which ends later
    drive = _between(0.98 * low, 0.999 * low, 100)
    assert torch.equal(tabulated_deviation(phi, var_a, drive), equilibrium_deviation(phi, var_a, drive))
    with pytest.raises(nsd.NotContractive):
        tabulated_deviation(phi, var_a, torch.cat([drive, drive[-1:] * 1.1]))


def test_a_network_close_to_its_end_has_the_right_kernel():
    net = nsd.Implicit("quadratic:0.3,1,0", 0.3, 0.05, centre=False)
    x = torch.randn(60, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    few = nsd.conjugate_kernel(net, x[:20])
    assert torch.allclose(nsd.conjugate_kernel(net, x)[:20, :20], few, rtol=1e-12, atol=1e-14)


def test_moments_of_a_function_that_is_zero_where_the_samples_are():
    phi = build("uneven_hinge")
    tau = torch.full((3,), 1e-3, dtype=torch.float64)
    assert torch.equal(tabulated_moments(phi, tau).mean, moments(phi, tau).mean)


# What is kept


def test_names_alone_do_not_tell_activations_apart():
    tau = _between(0.5, 2.0, 300)
    same_name = [nsd.custom(f, kinks=[], name="mine") for f in (torch.tanh, torch.sin, lambda u: u.tanh() * 0.5)]
    for phi in (*map(nsd.activation, ("elu", "elu:0.5", "hard_tanh", "hard_tanh:0.75,1.2")), *same_name, same_name[0]):
        exact = moments(phi, tau)
        torch.testing.assert_close(tabulated_moments(phi, tau).variance, exact.variance, rtol=1e-12, atol=0)
        deviation = equilibrium_deviation(phi, 0.1, tau)
        torch.testing.assert_close(tabulated_deviation(phi, 0.1, tau), deviation, rtol=1e-12, atol=0)
        core, _, _ = affine_parts(phi)
        known = rows(phi, tau, series=True).coefficients
        exact_series = hermite_coefficients(core, tau, known.shape[1])
        torch.testing.assert_close(known[:, 1:], exact_series[:, 1:], rtol=0, atol=1e-13)


def test_var_a_tells_deviations_apart():
    phi, drive = nsd.activation("tanh"), _between(0.5, 2.0, 300)
    for var_a in (0.1, 0.2, 0.1):
        exact = equilibrium_deviation(phi, var_a, drive)
        torch.testing.assert_close(tabulated_deviation(phi, var_a, drive), exact, rtol=1e-13, atol=0)


def test_a_module_that_has_learnt_is_another_function():
    module = torch.nn.PReLU(init=0.25).double()
    x = torch.randn(120, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) / 3.0
    for slope in (0.25, 0.1):
        with torch.no_grad():
            module.weight.fill_(slope)
        learnt, known = (
            nsd.conjugate_kernel(nsd.Implicit(phi, 0.2, centre=False), x)
            for phi in (nsd.custom(module), nsd.activation(f"leaky_relu:{slope}"))
        )
        torch.testing.assert_close(learnt, known, rtol=1e-11, atol=1e-13)


def test_tables_kept_are_few(monkeypatch):
    function, counted = _smooth(_columns, "kept")
    x = _between(1.0, 1.5, 200)
    tabulated(function, x)
    first = sum(counted.points)
    monkeypatch.setattr(tables, "_witness", lambda *_: b"other")
    tabulated(function, x)
    assert sum(counted.points) >= first + 24  # another witness: made anew
    assert tables._panel.cache_info().maxsize == tables._KEPT
