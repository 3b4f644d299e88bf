"""Every W of φ(W z + u) against its dense twin."""

import itertools

import pytest
import torch

import notsodeep as nsd
from notsodeep.fixed_points import Activated, CircularConvolution, Dense, Operator
from notsodeep.fixed_points.linear import bounds

from .maps import contraction


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def operator(d):
    """W = cyclic shift, times 0.5, by functions alone."""
    shift = 0.5 * torch.eye(d, dtype=torch.float64).roll(1, 0)
    system = lambda alpha: (1.0 + alpha) * torch.eye(d) - alpha * shift  # noqa: E731
    return Operator(
        lambda z: 0.5 * z.roll(1, -1),
        lambda z: 0.5 * z.roll(-1, -1),
        lambda v, alpha: torch.linalg.solve(system(alpha), v.mT).mT,
        lambda v, alpha: torch.linalg.solve(system(alpha).mT, v.mT).mT,
    )


LINEAR = {
    "dense": (Dense(0.5 * draw(6, 6)), (6,)),
    "convolution of signals": (CircularConvolution(0.3 * draw(3, 3, 3)), (3, 7)),
    "convolution of images": (CircularConvolution(0.2 * draw(2, 2, 3, 3)), (2, 4, 5)),
    "kernel that is not square": (CircularConvolution(0.2 * draw(2, 2, 1, 5)), (2, 3, 6)),
    "kernel larger than the image": (CircularConvolution(0.2 * draw(2, 2, 5, 5)), (2, 2, 3)),
    "operator": (operator(5), (5,)),
}
every_kind = pytest.mark.parametrize("name", LINEAR)


def matrix(linear, shape):
    count = torch.Size(shape).numel()
    rows = linear(torch.eye(count, dtype=torch.float64).reshape(count, *shape))
    return rows.reshape(count, count).T


@every_kind
def test_the_transposed(name):
    linear, shape = LINEAR[name]
    torch.testing.assert_close(matrix(linear.transposed(), shape), matrix(linear, shape).T)


@every_kind
@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_the_resolvent(name, alpha):
    linear, shape = LINEAR[name]
    v, w = draw(4, *shape, seed=1), matrix(linear, shape)
    for each, dense in ((linear, w), (linear.transposed(), w.T)):
        wanted = torch.linalg.solve((1.0 + alpha) * torch.eye(len(w)) - alpha * dense, v.flatten(1).T).T
        torch.testing.assert_close(each.resolvent(alpha, v)(v).flatten(1), wanted)


@every_kind
def test_bounds_are_estimates_from_inside(name):
    linear, shape = LINEAR[name]
    w = torch.eye(torch.Size(shape).numel()) - matrix(linear, shape)
    norm, least = bounds(linear, draw(1, *shape, seed=1))
    exact = float(torch.linalg.matrix_norm(w, 2)), float(torch.linalg.eigvalsh(0.5 * (w + w.T))[0])
    assert 0.9 * exact[0] <= norm <= exact[0] * (1 + 1e-9)
    assert exact[1] - 0.3 * norm <= least
    assert least <= exact[1] + 0.3 * norm


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: Dense(draw(2, 3)), r"square matrix, got shape \(2, 3\)"),
        (lambda: CircularConvolution(draw(2, 2, 2)), "odd k"),
        (lambda: CircularConvolution(draw(2, 3, 3)), r"kernel \(c, c, k\)"),
        (lambda: Activated(3, torch.eye(2), torch.zeros(2)), "phi must be a function, got int"),
        (lambda: Activated(torch.relu, 0.5, torch.zeros(2)), "matrix, or Dense, CircularConvolution or Operator"),
        (lambda: Activated(torch.relu, torch.eye(2), 0.5), "u must be a tensor"),
        (lambda: Dense([[1.0]]), "Dense takes a square matrix as a tensor, got list"),
        (lambda: CircularConvolution([1.0]), "CircularConvolution takes a kernel .* as a tensor, got list"),
        (lambda: Operator(1, 2), "`apply` of Operator must be a function, got 1"),
        (lambda: Operator(torch.relu, None), "`apply_transposed` of Operator must be a function, got None"),
        (lambda: Operator(torch.relu, torch.relu, 3), "`solve` of Operator must be a function, got 3"),
    ],
)
def test_what_cannot_be_used_is_refused(build, says):
    with pytest.raises(nsd.BadInput, match=says):
        build()


def test_activated_is_a_map_like_any_other():
    weight, x = contraction(3, 4)
    f = Activated(torch.tanh, weight, x)
    plain = lambda z: torch.tanh(z @ weight.T + x)  # noqa: E731
    values = [nsd.fixed_point(each, torch.zeros_like(x)).value for each in (f, plain)]
    torch.testing.assert_close(*values)


@pytest.mark.parametrize("shape", [(9,), (9, 3), (3, 9)])
def test_a_kernel_longer_than_the_image_wraps_around_it(shape):
    kernel, sizes = draw(2, 2, *shape), (3, 4)[: len(shape)]
    z = draw(3, 2, *sizes, seed=1)
    expected = torch.zeros_like(z)
    for entry in itertools.product(*map(range, shape)):
        moved = z.roll([k // 2 - e for k, e in zip(shape, entry, strict=True)], dims=tuple(range(2, z.ndim)))
        expected += torch.einsum("oi,ni...->no...", kernel[(..., *entry)], moved)
    w = CircularConvolution(kernel)
    torch.testing.assert_close(w(z), expected)
    dense = matrix(w, z.shape[1:])
    torch.testing.assert_close(matrix(w.transposed(), z.shape[1:]), dense.T)
    system = 1.3 * torch.eye(len(dense)).double() - 0.3 * dense
    solved = w.resolvent(0.3, z)(z).flatten(1)
    torch.testing.assert_close(solved @ system.T, z.flatten(1))
