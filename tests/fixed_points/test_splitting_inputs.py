"""Errors of splittings that cannot take the map, the state, W or u."""

import pytest
import torch

import notsodeep as nsd
from notsodeep.fixed_points import Activated, CircularConvolution, Dense, ForwardBackward, Operator, PeacemanRachford
from notsodeep.fixed_points.layout import StateLayout

EYE = torch.eye(4)
KERNEL = 0.1 * torch.ones(2, 2, 3)
SPLITTINGS = [PeacemanRachford(), ForwardBackward()]


def solve(linear, solver, z0=None, u=None, phi=torch.relu, **options):
    z0 = torch.zeros(3, 4) if z0 is None else z0
    return nsd.fixed_point(Activated(phi, linear, torch.ones(4) if u is None else u), z0, solver, **options)


@pytest.mark.parametrize("linear", [2.0 * EYE, 2.0 * EYE.bfloat16(), CircularConvolution(2.0 * torch.ones(1, 1, 1))])
def test_a_resolvent_that_does_not_exist(linear):
    z0 = torch.zeros(3, 4) if isinstance(linear, torch.Tensor) else torch.zeros(3, 1, 4)
    dtype = linear.dtype if isinstance(linear, torch.Tensor) else torch.float32
    with pytest.raises(nsd.BadInput, match=r"alpha=1 has no inverse: 2 = 1 \+ 1/α is an eigenvalue of W") as caught:
        solve(linear, PeacemanRachford(), z0.to(dtype))
    assert caught.value.alpha == 1.0


@pytest.mark.parametrize("solver", [ForwardBackward(), PeacemanRachford(None)])
def test_the_identity_gives_no_step_size(solver):
    with pytest.raises(nsd.BadInput, match=rf"norm of I − W, which is .*Pass a number, {type(solver).__name__}\(alpha=1.0\)"):
        solve(EYE, solver)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["dense", "signals"])
def test_half_precision_is_solved(kind, dtype):
    linear = Dense(-0.5 * EYE.to(dtype)) if kind == "dense" else CircularConvolution(-KERNEL.to(dtype))
    u = torch.ones((3, 4) if kind == "dense" else (3, 2, 5), dtype=dtype)
    found = solve(linear, PeacemanRachford(), torch.zeros_like(u), u)
    assert found.value.dtype == dtype
    expected = 1.0 / 1.5 if kind == "dense" else 1.0 / 1.6
    torch.testing.assert_close(found.value.float(), torch.full(u.shape, expected), rtol=2e-2, atol=0.0)


@pytest.mark.parametrize("solver", SPLITTINGS)
def test_a_complex_state_is_refused_and_other_solvers_take_it(solver):
    z0, linear, phi = torch.zeros(3, 4, dtype=torch.complex64), 0.5 * EYE.to(torch.complex64), lambda h: h
    u = torch.ones(4, dtype=torch.complex64)
    with pytest.raises(nsd.BadInput, match=r"The state is complex64.*real states.*Anderson"):
        solve(linear, solver, z0, u, phi)
    torch.testing.assert_close(solve(linear, nsd.Anderson(), z0, u, phi).value, 2.0 * u.expand(3, 4), rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("solver", [*SPLITTINGS, nsd.Anderson()])
@pytest.mark.parametrize(
    ("linear", "z0", "u", "says"),
    [
        (0.5 * torch.eye(5), torch.zeros(3, 4), torch.ones(4), r"W is 5 × 5 and the state has shape \(3, 4\)"),
        (0.5 * EYE.double(), torch.zeros(3, 4), torch.ones(4), "W is in float64 and the state in float32"),
        (0.5 * EYE, torch.zeros(3, 4), torch.ones(2, 4), r"u has shape \(2, 4\) and the state \(3, 4\)"),
        (0.5 * EYE, [torch.zeros(3, 4)], torch.ones(4), "one tensor, got a list"),
        (0.5 * EYE, [torch.zeros(3, 4), torch.zeros(3, 4)], torch.ones(4), "one tensor, got a list"),
        (CircularConvolution(KERNEL), torch.zeros(3, 5, 4), torch.ones(4), r"takes states \(n, 2, width\).*\(3, 5, 4\)"),
        (CircularConvolution(KERNEL), torch.zeros(3, 2, 4, 4), torch.ones(4), r"takes states \(n, 2, width\)"),
        (CircularConvolution(KERNEL[..., None]), torch.zeros(3, 2, 4), torch.ones(4), r"\(n, 2, height, width\)"),
    ],
)
def test_parts_that_do_not_fit_the_state(linear, z0, u, says, solver, grad):
    with torch.set_grad_enabled(grad), pytest.raises(nsd.BadInput, match=says):
        solve(linear, solver, z0, u.requires_grad_(grad))


@pytest.mark.parametrize("grad", [False, True])
def test_one_signal_alone_is_not_split(grad):
    with torch.set_grad_enabled(grad), pytest.raises(nsd.BadInput, match=r"\(2, 4\). One sample alone is z\[None\]"):
        solve(CircularConvolution(KERNEL), PeacemanRachford(), torch.zeros(2, 4))
    assert solve(CircularConvolution(KERNEL), nsd.Anderson(), torch.zeros(2, 4)).value.shape == (2, 4)


@pytest.mark.parametrize("solver", SPLITTINGS)
@pytest.mark.parametrize(
    "phi",
    [
        lambda h: torch.softmax(h, 1),
        lambda h: torch.softmax(h, 0),
        lambda h: torch.relu(h) / (1.0 + torch.relu(h).sum(1, keepdim=True)),
        lambda h: h.sort(dim=1).values,
        lambda h: torch.nn.functional.layer_norm(h, h.shape[1:]),
    ],
)
def test_an_activation_of_whole_rows_is_refused(phi, solver):
    weight = (0.1 * EYE).requires_grad_()
    with pytest.raises(nsd.BadInput, match=r"phi must be element-wise: \d+ of \d+ numbers"):
        solve(weight, solver, phi=phi, u=torch.zeros(4))
    with pytest.raises(nsd.BadInput, match="phi must be element-wise"):
        solve(weight, nsd.Anderson(), phi=phi, adjoint=nsd.ImplicitAdjoint(solver)).value.sum().backward()


@pytest.mark.parametrize("phi", [torch.relu, torch.nn.functional.gelu, torch.sigmoid, torch.sqrt, lambda h: h.clamp(-1, 1)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_what_is_element_wise_is_taken_for_it(phi, dtype):
    Activated(phi, EYE.to(dtype), torch.linspace(-3.0, 3.0, 28, dtype=dtype).reshape(7, 4)).rows(
        StateLayout.of(torch.zeros(7, 4, dtype=dtype))
    ).require_splittable()


def test_errors_inside_of_an_operator_stay_what_they_are():
    def broken(_):
        raise TypeError("one's own")

    with pytest.raises(TypeError, match="one's own"):
        solve(Operator(broken, broken), nsd.Anderson())


def test_an_activation_with_parameters_for_each_channel():
    u = torch.ones(3, 2, 5)
    with pytest.raises(nsd.BadInput, match=r"phi must be an element-wise function.*\(3, 10\), and there it fails"):
        solve(CircularConvolution(KERNEL), PeacemanRachford(), torch.zeros_like(u), u, torch.nn.PReLU(2))
    # Of a matrix the channels are its columns.
    found = solve(-0.5 * EYE, ForwardBackward(), phi=torch.nn.PReLU(4))
    torch.testing.assert_close(found.value, torch.full((3, 4), 1.0 / 1.5), rtol=1e-4, atol=0.0)
