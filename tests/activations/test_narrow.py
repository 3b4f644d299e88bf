"""Features too narrow to be seen on a grid: the parts of an expression point to them."""

import numpy as np
import pytest
import torch

from notsodeep.activations import expression
from notsodeep.activations.mesh import mesh_of
from notsodeep.activations.places import grid, narrow_places, zeros
from notsodeep.activations.slopes import derivative
from notsodeep.errors import BadInput
from notsodeep.gaussian import dual_map, moments

NARROW = {
    "a hat": ("relu(1-1000*abs(x-0.3))", 0.3, 0.002),
    "a hat beside x": ("x+relu(1-1000*abs(x-0.3))", 0.3, 0.002),
    "a hat made of lines": ("max(0,min(1000*(x-0.3),1-1000*(x-0.3)))", 0.3, 0.002),
    "a hat of a hat": ("relu(1-200*abs(relu(1-200*abs(x+1.1))-0.5))", -1.1, 0.006),
    "a bell": ("exp(-(2000*(x-0.3))**2)", 0.3, 0.005),
    "a bell beside x": ("x+exp(-(2000*(x-0.3))**2)", 0.3, 0.005),
    "a low bell on a steep line": ("100*x+0.01*exp(-(2000*(x-0.3))**2)", 0.3, 0.005),
    "a plateau": ("tanh(x)+sigmoid(9-(3000*(x+2.2))**2)", -2.2, 0.004),
    "a peak": ("x+0.1/(1+(3000*(x-0.3))**2)", 0.3, 0.5),
    "a near pole": ("1/(0.00001+(x-1)**2)", 1.0, 2.0),
    "waves in a bell": ("tanh(x)+sin(3000*x)*exp(-(1000*(x-0.7))**2)", 0.7, 0.01),
}
BENDS = np.array([5e-4, 1e-3, 0.002475, 0.0025, 0.002525, 0.005])  # how far from its middle a hat has a kink


def integrals(phi, place, width):
    """E[φ²] and E[φ'²] under N(0, 1), over panels ever shorter towards the place."""
    steps = np.concatenate([np.linspace(0.0, width, 2001)[1:], np.geomspace(width, 14.0, 200)[1:]])
    at = [-place] if place < 0.0 else []
    edges = np.unique(np.concatenate([place - steps, [place], place + steps, [*(place + BENDS), *(place - BENDS)], at]))
    nodes, weights = np.polynomial.legendre.leggauss(20)
    half = 0.5 * np.diff(edges)[:, None]
    x = 0.5 * (edges[1:] + edges[:-1])[:, None] + half * nodes
    density = half * weights * np.exp(-0.5 * x**2) / np.sqrt(2.0 * np.pi)
    u = torch.from_numpy(x)
    return [float((each.numpy() ** 2 * density).sum()) for each in (phi(u), derivative(phi, u))]


@pytest.mark.parametrize(("text", "place", "width"), NARROW.values(), ids=NARROW.keys())
def test_a_narrow_feature_counts(text, place, width):
    phi = expression(text)
    at = moments(phi, 1.0)
    wanted = integrals(phi, place, width)
    assert float(at.gamma2) == pytest.approx(wanted[0], rel=1e-8)
    assert float(at.q) == pytest.approx(wanted[1], rel=1e-8)


def test_a_pair_of_bells():
    """E of exp(−c²((u − m)² + (v − m)²)): with A = Σ⁻¹ + 2c² and b = 2c²m(1, 1) it is √(|Σ⁻¹|/|A|) e^(bA⁻¹b/2 − 2c²m²)."""
    c, m, rho = 300.0, 0.3, 0.6
    inverse = np.linalg.inv(np.array([[1.0, rho], [rho, 1.0]]))
    a, b = inverse + 2.0 * c**2 * np.eye(2), 2.0 * c**2 * m * np.ones(2)
    wanted = np.sqrt(np.linalg.det(inverse) / np.linalg.det(a)) * np.exp(0.5 * b @ np.linalg.solve(a, b) - 2.0 * c**2 * m**2)
    found = dual_map(expression("exp(-(300*(x-0.3))**2)"), 1.0, 1.0, rho)[0]
    assert float(found) == pytest.approx(float(wanted), rel=1e-8)


def test_only_what_is_the_same_everywhere_is_called_so():
    for text in ("clip(tanh(x),2,3)", "0*x", "max(x,0)-max(x,0)+5", "sign(1+x**2)"):
        with pytest.raises(BadInput, match=r"to twelve digits for all x of \[−64, 64\] that were looked at"):
            expression(text)


def test_what_overflows_is_no_zero():
    with pytest.raises(BadInput, match="slope that is not finite"):
        expression("x+1/cosh(3000*(x-0.3))")
    assert zeros(lambda x: torch.cosh(3000.0 * x)) == []


def test_places_of_nested_arguments():
    """The outer one is looked at next to the places of the inner one."""
    inner, outer = lambda x: x - 0.3, lambda x: 1.0 - 1000.0 * (x - 0.3).abs()
    assert zeros(outer, zeros(inner)) == pytest.approx([0.299, 0.301], abs=1e-12)
    assert narrow_places([lambda x: 1000.0 * (x - 0.3)]) == pytest.approx([0.3], abs=1e-12)
    assert narrow_places([lambda x: x, torch.tanh, lambda x: 3.0 * x.square() + 1.0]) == ()
    assert narrow_places([lambda x: torch.sin(5000.0 * x)]) == ()  # waves
    assert len(grid([0.3])) > len(grid())


def test_ordinary_functions_keep_their_panels():
    for text in (
        "max(x,0)-0.2*x",
        "tanh(x)*abs(x-0.3)",
        "exp(-x**2)",
        "sqrt(1+x**2)",
        "x*sin(3*x)",
        "sigmoid(5*(x-3))",
        "1/(1+x**2)",
    ):
        assert expression(text)._found.narrow == (), text
    for function in (torch.tanh, lambda x: x.abs().sqrt()):
        plain, pointed = (mesh_of(function, "f", (0.0,), 16.0, narrow) for narrow in ((), (0.0,)))
        assert torch.equal(plain.edges, pointed.edges)
        assert plain.steepness == pointed.steepness
