"""Errors about the user's own f say what happened and what to change."""

import pytest
import torch

import notsodeep as nsd

Z0 = torch.ones(3, 4, dtype=torch.float64)
LONGER, BROYDEN = "Anderson(memory=20)", "Broyden()"
FAILURES = {
    "diverged": (lambda z: 2.0 * z + 1.0, [LONGER, BROYDEN, "Picard(damping=", "PeacemanRachford()"]),
    "stalled": (lambda z: 1.0 - z, [LONGER, BROYDEN, "raise tol", "float64", "deterministic"]),
    "max_steps": (lambda z: 0.99 * z + 1.0, ["Set max_steps to about", LONGER, BROYDEN, "throw=False"]),
    "nan": (lambda z: torch.where(z > 1.5, torch.nan, 0.5 * z + 1.0), ["inputs of sample 0", "f itself"]),
}


@pytest.mark.parametrize("reason", FAILURES)
@pytest.mark.parametrize("samples", [0, 1])
def test_failures_of_ones_own_f(reason, samples):
    f, remedies = FAILURES[reason]
    with pytest.raises(nsd.NotConverged) as error:
        nsd.fixed_point(f, Z0, nsd.Picard(), samples=samples, max_steps=100)
    message = str(error.value)
    assert error.value.reason == reason
    assert [remedy for remedy in remedies if remedy not in message] == []
    assert "var_a" not in message
    assert "well_posed" not in message
    assert ("samples=0" in message) == (samples == 1 and reason != "nan")


def test_the_gradient_of_ones_own_f():
    b = torch.ones(3, 4, dtype=torch.float64, requires_grad=True)
    adjoint = nsd.ImplicitAdjoint(nsd.Picard(), max_steps=5)
    value = nsd.fixed_point(lambda z: 0.9 * z + b, Z0, adjoint=adjoint).value
    with pytest.raises(nsd.NotConverged, match=r"The gradient of the fixed point.*max_steps.*Anderson\(memory=20\)") as error:
        value.sum().backward()
    assert "var_a" not in str(error.value)


def test_the_remedy_works():
    """max_steps, as the message says; and a longer memory where plain steps run away."""
    turn = torch.tensor([[0.0, -1.3], [1.3, 0.0]], dtype=torch.float64)
    f = lambda z: z @ turn + 1.0  # noqa: E731
    start = torch.zeros(3, 2, dtype=torch.float64)
    with pytest.raises(nsd.NotConverged, match=r"Anderson\(memory=20\)"):
        nsd.fixed_point(f, start, nsd.Picard())
    found = nsd.fixed_point(f, start, nsd.Anderson(memory=20))
    torch.testing.assert_close(found.value, torch.linalg.solve(torch.eye(2) - turn.T, torch.ones(2, 3).double()).T)


def test_a_deq_is_told_of_its_variance():
    module = nsd.DEQ(nsd.Implicit("tanh", 0.2), 4, 8, 1, solver=nsd.Picard(), max_steps=2)
    with pytest.raises(nsd.NotConverged, match=r"var_a.*well_posed") as error:
        module(torch.ones(2, 4))
    assert "samples=0" not in str(error.value)
