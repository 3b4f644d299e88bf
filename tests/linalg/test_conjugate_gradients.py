"""Block conjugate gradients against the dense solution, their rate, and what they say when they fail."""

import math

import pytest
import torch

from notsodeep.errors import BadInput, NotConverged
from notsodeep.linalg.conjugate_gradients import conjugate_gradients
from notsodeep.linalg.preconditioners import SpikedDiagonal
from tests.linalg.test_lanczos import rotated

N = 200


def system(condition=100.0, columns=3, dtype=torch.float64):
    matrix = rotated(torch.logspace(0.0, -math.log10(condition), N), dtype)
    right = torch.randn(N, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(dtype)
    return matrix, right


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-8), (torch.float32, 1e-5)])
@pytest.mark.parametrize("columns", [None, 1, 3])
def test_solutions_are_those_of_the_dense_twin(columns, dtype, limit):
    matrix, right = system(columns=columns or 1, dtype=dtype)
    right = right[:, 0] if columns is None else right
    found = conjugate_gradients(lambda v: matrix @ v, right)
    assert found.converged
    assert found.solution.shape == right.shape
    assert found.solution.dtype == dtype
    assert float(found.residual.max()) <= 2 * limit
    expected = torch.linalg.solve(matrix.double(), right.double())
    assert float((found.solution.double() - expected).norm() / expected.norm()) <= 200 * limit
    assert found.residuals.shape == (found.iterations + 1, columns or 1)


def test_the_error_falls_at_least_as_fast_as_the_condition_number_says():
    """‖x − x_m‖_A ≤ 2 ((√κ − 1)/(√κ + 1))^m ‖x‖_A."""
    matrix, right = system(columns=1)
    exact = torch.linalg.solve(matrix, right)
    rate = (math.sqrt(100.0) - 1) / (math.sqrt(100.0) + 1)
    for steps in (5, 10, 20, 40):
        error = exact - conjugate_gradients(lambda v: matrix @ v, right, most=steps).solution
        ratio = float((error * (matrix @ error)).sum() / (exact * (matrix @ exact)).sum()) ** 0.5
        assert ratio <= 2 * rate**steps


def test_iterations_grow_as_the_root_of_the_condition_number():
    taken = []
    for condition in (4.0, 16.0, 64.0):
        matrix, right = system(condition)
        taken.append(conjugate_gradients(lambda v, m=matrix: m @ v, right).iterations)
    assert 1.4 <= taken[1] / taken[0] <= 2.4
    assert 1.4 <= taken[2] / taken[1] <= 2.4


def test_each_column_has_its_own_scalars_and_leaves_when_it_is_done():
    matrix, right = system()
    values, vectors = torch.linalg.eigh(matrix)
    right = torch.stack([vectors[:, 0], right[:, 1], torch.zeros(N).double()], dim=1)
    widths = []

    def product(v):
        widths.append(v.shape[1])
        return matrix @ v

    found = conjugate_gradients(product, right)
    assert found.converged
    assert widths[:2] == [2, 1]  # zero is solved before it starts, an eigenvector after one product
    torch.testing.assert_close(found.solution[:, 0], vectors[:, 0] / values[0], rtol=1e-9, atol=1e-9)
    assert not found.solution[:, 2].any()
    alone = conjugate_gradients(lambda v: matrix @ v, right[:, 1])
    torch.testing.assert_close(found.solution[:, 1], alone.solution, rtol=0, atol=1e-6)


def test_the_matrix_as_its_own_preconditioner_takes_one_iteration():
    values, vectors = torch.linalg.eigh(system()[0])
    by = SpikedDiagonal(torch.ones(N).double(), vectors, values - 1.0)
    found = conjugate_gradients(lambda v: system()[0] @ v, system()[1], by)
    assert found.iterations == 1


def test_float32_on_a_hard_system_is_put_right_by_its_own_residual():
    """κ = 10⁴: the recursion's residual drifts; the one that is reported does not."""
    matrix, right = system(1e4, dtype=torch.float32)
    found = conjugate_gradients(lambda v: matrix @ v, right)
    true = (right - matrix @ found.solution).norm(dim=0) / right.norm(dim=0)
    torch.testing.assert_close(found.residual, true, rtol=1e-3, atol=1e-7)
    assert found.converged == (float(true.max()) <= 2e-5)


def test_failures_carry_numbers_and_a_remedy():
    matrix, right = system(1e6)
    loose = conjugate_gradients(lambda v: matrix @ v, right, most=5)
    assert not loose.converged
    assert loose.iterations == 5
    with pytest.raises(NotConverged, match="preconditioner of higher rank") as raised:
        conjugate_gradients(lambda v: matrix @ v, right, most=5, strict=True)
    assert raised.value.steps == 5
    assert raised.value.residual == pytest.approx(float(loose.residual.max()))
    with pytest.raises(BadInput, match="not positive definite") as raised:
        conjugate_gradients(lambda v: -(matrix @ v), right)
    assert raised.value.value < 0
    with pytest.raises(BadInput, match="preconditioner is not positive"):
        conjugate_gradients(lambda v: matrix @ v, right, type("P", (), {"solve": staticmethod(lambda v: -v)})())
    with pytest.raises(BadInput, match="NaN"):
        conjugate_gradients(lambda v: v * float("nan"), right)
    with pytest.raises(BadInput, match="shape"):
        conjugate_gradients(lambda v: v, torch.ones(2, 2, 2))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_right_hand_side_that_is_not_finite_is_named(bad):
    matrix, right = system()
    right[7, 1] = right[9, 0] = bad
    with pytest.raises(BadInput, match=r"right-hand side holds NaN or infinity in 2 of 600 entries \(first in row 7\)"):
        conjugate_gradients(lambda v: matrix @ v, right)
    with pytest.raises(BadInput, match="right-hand side"):
        conjugate_gradients(lambda v: matrix @ v, right[:, 0])


def test_an_empty_right_hand_side_is_refused():
    with pytest.raises(BadInput, match=r"empty: shape \(200, 0\)"):
        conjugate_gradients(lambda v: v, torch.ones(N, 0))


@pytest.mark.parametrize("tolerance", [0.0, -1.0, float("nan"), float("inf"), "small"])
def test_a_tolerance_is_positive_and_finite(tolerance):
    matrix, right = system()
    with pytest.raises(BadInput, match="tolerance"):
        conjugate_gradients(lambda v: matrix @ v, right, tolerance=tolerance)
